"""A job that brings the feeds of a state up to date and ends: ``--state URL [--timeout 30m]``.

For AWS Glue, which adds parameters of its own to those of the job.
"""

import argparse

from pyspark.sql import SparkSession

import changefeed

if __name__ == "__main__":
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--state", required=True)
    parser.add_argument("--timeout", default="30m")
    given, _ = parser.parse_known_args()
    spark = SparkSession.builder.getOrCreate()
    with changefeed.attach(spark, given.state) as node:
        for row in node.execute(f"SYNC ALL TIMEOUT '{given.timeout}'").rows:
            print(*row)
