"""Rounds of few rows into a Delta table on a local disk or in S3, by the node and without a job of
Spark.

A round costs about the same however large the table is. An index of the table's keys
(:mod:`.key_index`) finds the old rows in its files (:mod:`.indexed_table`); the round writes a
Parquet file with the new ones, a file of deletion vectors (:mod:`.vectors`) that marks the old
ones, and one commit of both (:mod:`.draft`, :mod:`.commit_log`), wherever the table's files are
(:mod:`.table_files`). :mod:`.rounds` puts these together, and leaves to Spark what it cannot do
exactly as Spark does (:mod:`.table_form`, :mod:`.values`, :mod:`.partitions`).
"""
