"""Rounds of few rows into a Delta table on a local disk, by the node and without a job of Spark.

A round costs about the same however large the table is: an index of the table's keys
(:mod:`.key_index`) says where the old rows stand, one Parquet file takes the new ones, one file of
deletion vectors (:mod:`.vectors`) marks the old ones, and one commit (:mod:`.commit_log`) has both.
:mod:`.rounds` puts these together, and leaves to Spark what it cannot do exactly as Spark does.
"""
