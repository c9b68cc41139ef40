"""``changefeed start`` with a Spark that takes every scan and every backlog that can be a job.

``python -m tests.nemesis.spark_node --state STATE --heap 512m --master URL --conf NAME=VALUE``
"""

from __future__ import annotations

import argparse

from changefeed.core.engines import EngineOption
from changefeed.spark.settings import SparkSettings, parse_property
from shell.service import serve

#: A change alone is delivered by the node, so that both take part in a feed.
LEAST_ROWS = 5


def main() -> None:
    """Run the feeds of the state until SIGTERM."""
    flags = argparse.ArgumentParser()
    flags.add_argument("--state", required=True)
    flags.add_argument("--heap")
    flags.add_argument("--master")
    flags.add_argument("--conf", action="append", default=[], type=parse_property)
    given = flags.parse_args()
    settings = SparkSettings(
        given.master,
        given.heap,
        tuple(given.conf),
        EngineOption.SPARK,
        least_job_rows=LEAST_ROWS,
    )
    raise SystemExit(serve(given.state, spark=settings))


if __name__ == "__main__":
    main()
