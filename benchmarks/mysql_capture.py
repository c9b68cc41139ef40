"""Draining a backlog from MySQL's or MariaDB's binlog: our reader, Debezium, mysql-replication.

Every contender reads the same backlog from the same server, each in a process of its own:

* ``decode``: ours, to Arrow batches with timestamps and marks, then dropped.
* ``log``: ours, to the durable change log.
* ``debezium``: its engine, records as the connector makes them, then dropped.
* ``mysql-replication``: Python objects, then dropped; on MariaDB it cannot begin at a GTID of a
  running server reliably, so it runs on MySQL alone.

Workloads are those of ``benchmarks/binlog.py``. Wall time counts from the first connection to the
last change, Debezium's from the start of its engine in a JVM that runs; CPU is that of the reader.
On a busy machine trust the CPU figures.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
from changefeed.core.arrow import keep_pandas_out
from changefeed.log import LogWriter
from changefeed.sources.base import Memo
from changefeed.sources.mysql import MySQLSource
from changefeed.sources.mysql.gtid import parse
from changefeed.sources.mysql.session import connect
from changefeed.sources.mysql.stream import BinlogAccess, BinlogStream
from tests.services.mysql import SERVERS, BinlogServer
from tests.services.python import packages

_PEER, _DEBEZIUM = "mysql-replication", "debezium"


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
    memo: Memo = {"tables": [[DATABASE, TABLE]]}
    access = BinlogAccess(
        lambda: connect(source.address),
        source=source.name,
        flavor=flavor,
        mode="gtid",
        server_id=4001,
        describe=lambda name: source.describe(name.schema, name.name),
    )
    request = stream_request(parse(flavor, start).position, start, memo, folder)
    stream = BinlogStream(access, request)
    writer = LogWriter(folder / "log") if contender == "log" else None
    read = 0
    for flush in stream:
        read += rows_of(flush)
        if writer is not None:
            writer.append(flush)
        if read >= rows and flush.frontier is not None:
            break
    stream.close()
    if writer is not None:
        writer.close()
    return read


def _read_peer(uri: str, start: str, rows: int) -> int:
    # From the peer's own folder of packages, which is on the path of this process alone.
    from pymysqlreplication import BinLogStreamReader  # type: ignore[import-not-found]
    from pymysqlreplication.row_event import (  # type: ignore[import-not-found]
        DeleteRowsEvent,
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
        only_events=[WriteRowsEvent, UpdateRowsEvent, DeleteRowsEvent],
        blocking=True,
    )
    read = 0
    for event in reader:
        if event.table == TABLE:
            read += len(event.rows)
            if read >= rows:
                break
    reader.close()
    return read


def _reader(contender: str, uri: str, start: str, rows: int) -> None:
    """The process of one contender: prints its figures."""
    if contender != _PEER:
        keep_pandas_out()  # as the capture process does
    began, cpu = time.perf_counter(), time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        if contender == _PEER:
            read = _read_peer(uri, start, rows)
        else:
            read = _read_ours(contender, uri, start, rows, Path(folder))
    print(json.dumps([read, time.perf_counter() - began, time.process_time() - cpu]))


# -------------------------------------------------------------------------------- the run


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
    parser.add_argument("--workload", choices=WORKLOADS, default="bulk")
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--only", help="one contender")
    options = parser.parse_args()
    contenders = ["decode", "log", _DEBEZIUM]
    if options.server == "mysql8":
        contenders.append(_PEER)
    with serving(options.server) as server:
        start = place(server)
        rows = change(server, options.workload, options.rows)
        for contender in [options.only] if options.only else contenders:
            if contender == _DEBEZIUM:
                cost = engine_cost(server, start, rows)
                result = Result(contender, rows, cost.wall_seconds, cost.cpu_seconds)
            else:
                result = _run(server, contender, start.gtids, rows)
            print(result.line(), flush=True)


if __name__ == "__main__":
    main()
