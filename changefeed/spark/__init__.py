"""Spark: the pipeline that shapes change rows into finished messages.

Owns the session (:mod:`~changefeed.spark.session`), what a message looks like
(:mod:`~changefeed.spark.envelope`), and the three ways rows become messages: small batches
without a job and big ones with one (:mod:`~changefeed.spark.encode`), initial scans
(:mod:`~changefeed.spark.scan`). Everything per row happens in Spark's JVM or in Arrow; no
Python code runs per row. Nothing here is imported by the shell before it is needed, and
importing it starts nothing.
"""
