"""A database's log through the Debezium door into the change log, beside Debezium's own engine.

    python -m benchmarks.door --server mariadb --rows 1000000

Every contender reads the same backlog by the same version of the same connector:

* ``engine``: Debezium's engine, records as the connector makes them, then dropped.
* ``engine-json``: the same as texts of JSON, keys and values, then dropped.
* ``door``: ours, its columns through a pipe into the durable change log; CPU is that of the reader
  and its JVM, from their first statement.

Workloads are those of ``benchmarks/binlog.py``. On a busy machine trust the CPU figures; a JVM that
starts compiles for some seconds, so measure many rows.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.binlog import (
    DATABASE,
    TABLE,
    WORKLOADS,
    change,
    engine_cost,
    place,
    rows_of,
    serving,
    stream_request,
)
from benchmarks.measure import Cost, Meter
from changefeed.core.schema import TableName
from changefeed.log import LogWriter
from changefeed.sources.base import Memo
from changefeed.sources.debezium import DebeziumSource
from changefeed.spark.packs import FOLDER_VARIABLE
from tests.services.cache import cache_root
from tests.services.mariadb import PASSWORD, USER
from tests.services.mysql import SERVERS

#: Of the jars that the door runs.
VERSION = "3.5.0.Final"
_OWNER = "benchmark"


def _source(server_uri: str) -> DebeziumSource:
    return DebeziumSource("measured", server_uri)


def _begin(uri: str) -> Memo:
    """What the source keeps when its log begins now."""
    source = _source(uri)
    try:
        attachment = source.attach(_OWNER, None)
        attachment.capture([TableName(source.name, DATABASE, TABLE)], resume=False)
        return attachment.memo
    finally:
        source.close()


def _read(uri: str, memo: Memo, rows: int, folder: Path) -> None:
    """Read into a log until ``rows`` rows are durable, print how many there were, and wait for a
    line before the end."""
    source = _source(uri)
    attachment = source.attach(_OWNER, memo)
    position, history = attachment.start()
    request = stream_request(position, history, memo, folder)
    request.folder.mkdir()
    stream = attachment.stream(request)
    writer = LogWriter(folder / "log")
    read = 0
    for flush in stream:
        writer.append(flush)
        if flush.frontier is not None:
            stream.acknowledge(flush.frontier.position)
        read += rows_of(flush)
        if read >= rows:
            break
    # The JVM is still there: whoever measures looks at it now.
    print(json.dumps(read), flush=True)
    sys.stdin.readline()
    stream.close()
    writer.close()
    source.close()


def _door(uri: str, memo: Memo, rows: int) -> Cost:
    """A process that reads as capture does."""
    command = [sys.executable, "-m", "benchmarks.door", "--reader", uri, json.dumps(memo)]
    with subprocess.Popen(
        [*command, str(rows)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("the reader has no pipes")
        # Loaded: what comes now is work.
        process.stdout.readline()
        with Meter(process.pid) as meter:
            process.stdin.write("go\n")
            process.stdin.flush()
            read = process.stdout.readline()
        if not read:
            raise RuntimeError("the reader ended early")
        process.stdin.write("end\n")
        process.stdin.close()
        process.wait(60)
    if int(read) != rows:
        raise RuntimeError(f"the door read {read.strip()} rows of {rows}")
    return meter.cost


def main() -> None:
    """Make a backlog and let each contender read it."""
    os.environ.setdefault(FOLDER_VARIABLE, str(cache_root() / "spark-jars"))
    if sys.argv[1:2] == ["--reader"]:
        given, kept, count = sys.argv[2:5]
        print("ready", flush=True)
        sys.stdin.readline()
        with tempfile.TemporaryDirectory() as folder:
            _read(given, json.loads(kept), int(count), Path(folder))
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--server", choices=sorted(SERVERS), default="mariadb")
    parser.add_argument("--workload", choices=WORKLOADS, default="mixed")
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--only", choices=["engine", "engine-json", "door"])
    parser.add_argument("--heap", default="512m", help="memory of the door's JVM")
    options = parser.parse_args()
    with serving(options.server) as server:
        uri = f"debezium-{server.uri(DATABASE, USER, PASSWORD)}?heap={options.heap}"
        memo, start = _begin(uri), place(server)
        rows = change(server, options.workload, options.rows)
        contenders: dict[str, Callable[[], Cost]] = {
            "engine": lambda: engine_cost(server, start, rows, version=VERSION),
            "engine-json": lambda: engine_cost(server, start, rows, form="json", version=VERSION),
            "door": lambda: _door(uri, memo, rows),
        }
        for name, contend in contenders.items():
            if options.only in (None, name):
                cost = contend()
                print(
                    f"{name:12} {rows / cost.wall_seconds:10,.0f} rows/s"
                    f" {rows / cost.cpu_seconds:10,.0f} rows per CPU second",
                    flush=True,
                )


if __name__ == "__main__":
    main()
