"""Rounds of few rows into a Delta table on a local disk, by the node and without a job of Spark.

A round costs about the same however large the table is. An index of the table's keys
(:mod:`.key_index`) finds the old rows; the round writes one Parquet file with the new ones, one
file of deletion vectors (:mod:`.vectors`) that marks the old ones, and one commit of both
(:mod:`.commit_log`). :mod:`.rounds` puts these together, and leaves to Spark what it cannot do
exactly as Spark does.
"""
