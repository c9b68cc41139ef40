"""A database's log through the Debezium door into the change log, beside Debezium's own engine.

    python -m benchmarks.door --server mariadb --rows 1000000
    python -m benchmarks.door --server postgresql

Every contender reads the same backlog by the same version of the same connector:

* ``engine``: Debezium's engine, records as the connector makes them, then dropped.
* ``engine-json``: the same as texts of JSON, keys and values, then dropped.
* ``door``: ours, its columns through a pipe into the durable change log; CPU is that of the reader
  and its JVM, from their first statement.

Workloads are those of ``benchmarks/binlog.py``; PostgreSQL has ``bulk`` and ``mixed``, with the
table *narrow* of ``benchmarks/workload.py``. All have batches and queues of one size. On a busy
machine trust the CPU figures; a JVM that starts compiles for some seconds, so measure many rows.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
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
from benchmarks.peers import debezium
from benchmarks.workload import NARROW
from changefeed.core.schema import TableName
from changefeed.log import LogWriter
from changefeed.sources.base import Memo
from changefeed.sources.debezium import DebeziumSource
from changefeed.sources.debezium.stream import COMMON
from changefeed.spark.packs import FOLDER_VARIABLE
from tests.services.cache import cache_root, server_folder
from tests.services.mariadb import PASSWORD, USER
from tests.services.mysql import SERVERS
from tests.services.postgres import PostgresCluster

#: Of the jars that the door runs.
VERSION = "3.5.0.Final"
_OWNER = "benchmark"
#: Of every contender: the door's.
_SIZES: Mapping[str, str] = {
    name: COMMON[name] for name in ("max.batch.size", "max.queue.size", "poll.interval.ms")
}


@dataclass(frozen=True, slots=True)
class _Backlog:
    """A database with an empty table, whose changes are read.

    Attributes:
        uri: of the database, for the door, without parameters.
        schema, table: names of the table.
        change: commits changes; how many.
        engine: what Debezium's engine uses for that many rows, in ``connect`` or ``json``.
    """

    uri: str
    schema: str
    table: str
    change: Callable[[], int]
    engine: Callable[[int, str], Cost]


@contextmanager
def _binlog(kind: str, workload: str, rows: int) -> Iterator[_Backlog]:
    with serving(kind) as server:
        start = place(server)
        yield _Backlog(
            f"debezium-{server.uri(DATABASE, USER, PASSWORD)}",
            DATABASE,
            TABLE,
            lambda: change(server, workload, rows),
            lambda made, form: engine_cost(server, start, made, _SIZES, form=form, version=VERSION),
        )


@contextmanager
def _postgresql(kind: str, workload: str, rows: int) -> Iterator[_Backlog]:
    with server_folder("peer") as folder:
        cluster = PostgresCluster.make(16, folder).start()
        try:
            with cluster.database() as database:
                with database.connect() as connection:
                    NARROW.create(connection)
                name, slots = debezium.PUBLICATION, ("connect", "json")
                database.execute(f"create publication {name} for table {NARROW.table}")
                for slot in slots:
                    database.execute(
                        f"select pg_create_logical_replication_slot('{slot}', 'pgoutput')"
                    )

                def commit() -> int:
                    with database.connect() as connection:
                        if workload == "mixed":
                            NARROW.change(connection, rows)
                        else:
                            values = NARROW.row.format(id="n")
                            for first in range(0, rows, 5_000):
                                connection.execute(
                                    f"insert into {NARROW.table} select {values}"
                                    f" from generate_series({first + 1}, {first + 5_000}) n"
                                )
                    return rows if workload == "mixed" else -(-rows // 5_000) * 5_000

                def cost(made: int, form: str) -> Cost:
                    connector = debezium.of_postgresql(database, version=VERSION)
                    table = f"public.{NARROW.table}"
                    settings = {
                        **_SIZES,
                        "slot.name": form,
                        "snapshot.mode": "no_data",
                        "table.include.list": table,
                    }
                    return debezium.dropped(folder, connector, table, made, settings, form=form)

                yield _Backlog(f"debezium-{database.uri}", "public", NARROW.table, commit, cost)
        finally:
            cluster.stop()


def _source(server_uri: str) -> DebeziumSource:
    return DebeziumSource("measured", server_uri)


def _begin(uri: str, schema: str, table: str) -> Memo:
    """What the source keeps when its log begins now."""
    source = _source(uri)
    try:
        attachment = source.attach(_OWNER, None)
        attachment.capture([TableName(source.name, schema, table)], resume=False)
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
    # Kept: the JVM ends with the iterator.
    flushes = iter(stream)
    for flush in flushes:
        writer.append(flush)
        if flush.frontier is not None:
            stream.acknowledge(flush.frontier.position)
        read += rows_of(flush)
        if read >= rows:
            break
    # The JVM is still there: it is measured now.
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
    parser.add_argument("--server", choices=[*sorted(SERVERS), "postgresql"], default="mariadb")
    parser.add_argument("--workload", choices=WORKLOADS, default="mixed")
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--only", choices=["engine", "engine-json", "door"])
    parser.add_argument("--heap", default="512m", help="memory of the door's JVM")
    options = parser.parse_args()
    if options.server == "postgresql" and options.workload not in ("bulk", "mixed"):
        parser.error("PostgreSQL has the workloads bulk and mixed")
    making: Callable[[str, str, int], AbstractContextManager[_Backlog]]
    making = _postgresql if options.server == "postgresql" else _binlog
    with making(options.server, options.workload, options.rows) as backlog:
        joint = "&" if "?" in backlog.uri else "?"
        uri = f"{backlog.uri}{joint}heap={options.heap}"
        memo = _begin(uri, backlog.schema, backlog.table)
        rows = backlog.change()
        contenders: dict[str, Callable[[], Cost]] = {
            "engine": lambda: backlog.engine(rows, "connect"),
            "engine-json": lambda: backlog.engine(rows, "json"),
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
