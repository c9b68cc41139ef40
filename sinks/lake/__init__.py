"""Tables of a data lake, kept by Spark's MERGE: ``delta://`` and ``iceberg://``."""
