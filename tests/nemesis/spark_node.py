"""``changefeed start`` with a Spark that takes every scan and every backlog that can be a job.

``python -m tests.nemesis.spark_node --state STATE --heap 512m --master URL --conf NAME=VALUE
--scan-part-bytes N``
"""

from __future__ import annotations

import argparse

from changefeed.core.engines import EngineOption
from changefeed.core.sizes import Sizes
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
    flags.add_argument("--scan-part-bytes", type=int, default=Sizes().scan_part_bytes)
    given = flags.parse_args()
    settings = SparkSettings(
        given.master,
        given.heap,
        tuple(given.conf),
        EngineOption.SPARK,
        least_job_rows=LEAST_ROWS,
    )
    sizes = Sizes(scan_part_bytes=given.scan_part_bytes)
    raise SystemExit(serve(given.state, spark=settings, sizes=sizes))


if __name__ == "__main__":
    main()
