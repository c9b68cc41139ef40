"""Draining a backlog from MySQL's or MariaDB's binlog: our reader beside mysql-replication.

Every contender reads the same backlog from the same server, each in a process of its own:

* ``decode``: ours, to Arrow batches with timestamps and marks, then dropped.
* ``log``: ours, to the durable change log.
* ``mysql-replication``: Python objects, then dropped; on MariaDB it cannot begin at a GTID of a
  running server reliably, so it runs on MySQL alone.

Workloads are ``bulk`` (statements of 5,000 rows), ``update`` (the same, then an UPDATE of all rows)
and ``small`` (a transaction per row). Wall time counts from the first connection to the last
change; CPU is that of the reader. On a busy machine trust the CPU figures.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from changefeed.core.clock import Timestamp
from changefeed.core.events import ChangeBatch, Flush, Frontier
from changefeed.core.schema import TableSchema
from changefeed.log import LogWriter
from changefeed.sources.base import StreamRequest
from changefeed.sources.mysql import MySQLSource
from changefeed.sources.mysql.gtid import parse
from changefeed.sources.mysql.session import connect
from changefeed.sources.mysql.stream import BinlogStream
from tests.services.mysql import SERVERS, BinlogServer
from tests.services.python import packages

_DATABASE, _TABLE = "measured", "rows_"
_PEER = "mysql-replication"
_COLUMNS = (
    "id bigint primary key auto_increment, a int, b varchar(40), c decimal(12,2), d datetime(6),"
    " e double, f varchar(100), g timestamp null"
)
_VALUES = (
    "n, concat('name ', n), n / 7, '2024-01-01 01:02:03.123456', n / 3, repeat('x', n % 60),"
    " '2024-01-01 00:00:00'"
)
_STATEMENT = 5_000


@dataclass(frozen=True, slots=True)
class Result:
    """One contender's figures; seconds."""

    name: str
    rows: int
    wall: float
    cpu: float

    def line(self) -> str:
        """One line of the table."""
        return (
            f"{self.name:18} {self.rows / self.wall:12,.0f} rows/s"
            f" {self.rows / self.cpu:12,.0f} rows per CPU second"
        )


# ------------------------------------------------------------------------------ readers


def _read_ours(contender: str, uri: str, start: str, rows: int, folder: Path) -> int:
    source = MySQLSource("measured", uri)
    flavor = "mariadb" if uri.startswith("mariadb") else "mysql"
    versions = itertools.count(1)
    known: dict[str, TableSchema] = {}

    def intern(schema: TableSchema) -> TableSchema:
        return known.setdefault(schema.to_json(), schema.with_version(next(versions)))

    request = StreamRequest(
        start=Frontier(Timestamp.ZERO, parse(flavor, start).position, 0, start),
        identity="",
        memo=lambda: {"tables": [[_DATABASE, _TABLE]]},
        intern=intern,
        latest=lambda name: None,
        spool=folder / "spool",
        folder=folder / "kept",
    )
    stream = BinlogStream(
        lambda: connect(source.address),
        source=source.name,
        flavor=flavor,
        mode="gtid",
        server_id=4001,
        request=request,
        describe=lambda name: source.describe(name.schema, name.name),
    )
    writer = LogWriter(folder / "log") if contender == "log" else None
    read = 0
    for flush in stream:
        read += _count(flush)
        if writer is not None:
            writer.append(flush)
        if read >= rows and flush.frontier is not None:
            break
    stream.close()
    if writer is not None:
        writer.close()
    return read


def _count(flush: Flush) -> int:
    return sum(event.rows.num_rows for event in flush.events if isinstance(event, ChangeBatch))


def _read_peer(uri: str, start: str, rows: int) -> int:
    # From the peer's own folder of packages, which is on the path of this process alone.
    from pymysqlreplication import BinLogStreamReader  # type: ignore[import-not-found]
    from pymysqlreplication.row_event import (  # type: ignore[import-not-found]
        UpdateRowsEvent,
        WriteRowsEvent,
    )

    address = MySQLSource("measured", uri).address
    reader = BinLogStreamReader(
        {
            "host": address.host,
            "port": address.port,
            "user": address.user,
            "passwd": address.password,
        },
        server_id=4002,
        auto_position=start,
        only_events=[WriteRowsEvent, UpdateRowsEvent],
        blocking=True,
    )
    read = 0
    for event in reader:
        if event.table == _TABLE:
            read += len(event.rows)
            if read >= rows:
                break
    reader.close()
    return read


def _reader(contender: str, uri: str, start: str, rows: int) -> None:
    """The process of one contender: prints its figures."""
    began, cpu = time.perf_counter(), time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        if contender == _PEER:
            read = _read_peer(uri, start, rows)
        else:
            read = _read_ours(contender, uri, start, rows, Path(folder))
    print(json.dumps([read, time.perf_counter() - began, time.process_time() - cpu]))


# -------------------------------------------------------------------------------- the run


@contextmanager
def _server(kind: str) -> Iterator[BinlogServer]:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        server = SERVERS[kind](Path(folder))
        server.start()
        try:
            yield server
        finally:
            server.stop()


def _load(server: BinlogServer, workload: str, rows: int) -> tuple[str, int]:
    """Make the backlog; where it begins, and how many changes it has."""
    server.run(f"CREATE DATABASE {_DATABASE}")
    server.run(f"CREATE TABLE {_TABLE} ({_COLUMNS})", database=_DATABASE)
    variable = "gtid_binlog_pos" if server.flavor == "mariadb" else "gtid_executed"
    start = str(server.run(f"SELECT @@GLOBAL.{variable}")[0][0]).replace("\n", "")
    names = "a, b, c, d, e, f, g"
    if workload == "small":
        with server.connect("root", "", _DATABASE) as connection, connection.cursor() as cursor:
            for n in range(rows):
                cursor.execute(
                    f"INSERT INTO {_TABLE} ({names}) SELECT {_VALUES} FROM (SELECT {n} n) q"
                )
        return start, rows
    recursive = (
        "SET SESSION max_recursive_iterations = 100000"
        if server.flavor == "mariadb"
        else "SET SESSION cte_max_recursion_depth = 100000"
    )
    numbers = (
        f"WITH RECURSIVE q(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM q WHERE n < {_STATEMENT})"
    )
    for _ in range(-(-rows // _STATEMENT)):
        insert = f"INSERT INTO {_TABLE} ({names}) {numbers} SELECT {_VALUES} FROM q"
        server.run(recursive, insert, database=_DATABASE)
    made = -(-rows // _STATEMENT) * _STATEMENT
    if workload == "update":
        server.run(f"UPDATE {_TABLE} SET a = a + 1", database=_DATABASE)
        made *= 2
    return start, made


def _run(server: BinlogServer, contender: str, start: str, rows: int) -> Result:
    environment = dict(os.environ)
    if contender == _PEER:
        lock = Path(__file__).parent / "peers" / "mysql-replication.lock"
        folder = packages(lock, Path(sys.executable))
        environment["PYTHONPATH"] = os.pathsep.join([*sys.path, str(folder)])
    command = [sys.executable, "-m", "benchmarks.mysql_capture", "--reader", contender]
    command += [server.uri(), start, str(rows)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{contender} failed\n{done.stderr[-3000:]}")
    figures: list[Any] = json.loads(done.stdout.splitlines()[-1])
    return Result(contender, *figures)


def main() -> None:
    """Make a backlog and let each contender read it."""
    if sys.argv[1:2] == ["--reader"]:
        contender, uri, begin, count = sys.argv[2:6]
        _reader(contender, uri, begin, int(count))
        return
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--server", choices=sorted(SERVERS), default="mysql8")
    parser.add_argument("--workload", choices=["bulk", "update", "small"], default="bulk")
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--only", help="one contender")
    options = parser.parse_args()
    contenders = ["decode", "log"] + ([_PEER] if options.server == "mysql8" else [])
    with _server(options.server) as server:
        start, rows = _load(server, options.workload, options.rows)
        for contender in [options.only] if options.only else contenders:
            print(_run(server, contender, start, rows).line(), flush=True)


if __name__ == "__main__":
    main()
