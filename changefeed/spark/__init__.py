"""Spark: many processes for what one cannot do fast enough.

Owns the session that lake tables are merged in (:mod:`~changefeed.spark.session`), the jars it
needs (:mod:`~changefeed.spark.packs`), and the scans of large tables, whose parts are read and
delivered by workers (:mod:`~changefeed.scan.spark`, :mod:`~changefeed.spark.executors`,
:mod:`~changefeed.scan.admission`). No Python code runs per row. Nothing here is imported by the
shell before it is needed, and importing it starts nothing.
"""
