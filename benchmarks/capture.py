"""Draining a backlog of changes from PostgreSQL: our decoder and log beside the limit.

Every contender reads the same backlog (each from its own copy of one slot):

* ``pg_recvlogical`` to /dev/null: what the server can send. Without that program on the
  machine, ``raw`` is the limit: our own socket reader that throws the bytes away.
* ``decode``: to Arrow batches with timestamps and marks, then dropped.
* ``log``: to the durable change log.

Wall time counts from the start of streaming to the last change; CPU is that of the reader and
of the server's walsender, each alone. On a busy machine trust the CPU figures. The workloads
are those of ``benchmarks/workload.py``; ``wide-full`` has REPLICA IDENTITY FULL.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import psycopg

from benchmarks.workload import WORKLOADS
from changefeed.core.clock import Timestamp
from changefeed.core.events import ChangeBatch, Flush, Frontier
from changefeed.core.schema import TableSchema
from changefeed.log import LogWriter
from changefeed.sources.base import StreamRequest
from changefeed.sources.postgres.details import read_details
from changefeed.sources.postgres.lsn import format_lsn, lsn_of, position_of
from changefeed.sources.postgres.pgoutput import Inbox
from changefeed.sources.postgres.stream import BATCH_BYTES, LogicalSlot, ReplicationStream
from changefeed.sources.postgres.types import TableDetails
from changefeed.sources.postgres.wire import ReplicationConnection
from tests.services.postgres import PostgresCluster

_SLOT = "backlog"
_PUBLICATION = "measured"
_TABLES = {"narrow": "narrow", "wide": "wide", "wide-full": "wide"}


@dataclass(frozen=True, slots=True)
class Result:
    """One contender's figures; seconds."""

    name: str
    rows: int
    wall: float
    reader: float
    walsender: float

    def line(self) -> str:
        """One line of the table."""
        per_row = 1e6 / self.rows
        return (
            f"{self.name:16} {self.rows / self.wall:12,.0f} rows/s"
            f" {self.reader * per_row:7.2f} us reader {self.walsender * per_row:7.2f} us walsender"
        )


# --------------------------------------------------------------------- the reader process


def _describer(uri: str) -> Callable[[Sequence[int]], Mapping[int, TableDetails]]:
    def describe(oids: Sequence[int]) -> Mapping[int, TableDetails]:
        with psycopg.connect(uri, autocommit=True) as connection:
            return read_details(connection, oids)

    return describe


def _intern(schema: TableSchema) -> TableSchema:
    return schema.with_version(1)


def _read(uri: str, slot_name: str, mode: str, end: int, folder: Path) -> tuple[int, float, float]:
    """Drain the slot; rows (0 when nobody counted), wall and CPU seconds."""
    slot = LogicalSlot(uri, slot_name, _PUBLICATION, "bench", _describer(uri))
    request = StreamRequest(
        start=Frontier(Timestamp.ZERO, ""),
        identity="",
        memo=dict,
        intern=_intern,
        latest=lambda name: None,
        names=lambda oid: (),
        spool=folder / "spool",
        folder=folder,
    )
    stream = ReplicationStream(slot, request)
    writer = LogWriter(folder / "log") if mode.endswith("log") else None
    started, cpu = time.perf_counter(), time.process_time()
    rows = _drain_raw(uri, slot_name, end) if mode == "raw" else _drain(stream, writer, end)
    figures = rows, time.perf_counter() - started, time.process_time() - cpu
    stream.close()
    if writer:
        writer.close()
    return figures


def _drain(stream: ReplicationStream, writer: LogWriter | None, end: int) -> int:
    rows = 0
    for flush in stream:
        rows += _count(flush)
        if writer:
            writer.append(flush)
        if flush.frontier:
            stream.acknowledge(flush.frontier.position)
            if lsn_of(flush.frontier.position) >= end:
                return rows
    raise RuntimeError("the stream ended before the backlog did")


def _count(flush: Flush) -> int:
    return sum(event.rows.num_rows for event in flush.events if isinstance(event, ChangeBatch))


def _drain_raw(uri: str, slot: str, end: int) -> int:
    """Receive and drop: looks only at the position in the last frame of each buffer."""
    with ReplicationConnection(uri) as connection:
        options = {"proto_version": "2", "publication_names": _PUBLICATION, "streaming": "on"}
        connection.start_replication(slot, 0, options)
        inbox = Inbox(BATCH_BYTES)
        reached = 0
        while reached < end:
            if not inbox.fill(connection.receive_into):
                connection.send_status(reached, reply=True)
                connection.wait(0.2)
            inbox.scan()
            if inbox.marks:
                last = inbox.marks[-1]
                offset = 1 if last.tag == ord("k") else 10 if last.tag == ord("C") else None
                if offset:
                    reached = int.from_bytes(inbox.data[last.place + offset :][:8])
            rows = inbox.cut(everything=True)
            inbox.drop(rows)
    return 0


# ------------------------------------------------------------------------- the benchmark


class Bench:
    """A backlog in a database, and the contenders that drain it."""

    def __init__(self, uri: str, rows: int) -> None:
        self.uri = uri
        self.rows = rows
        self.connection = psycopg.connect(uri, autocommit=True)
        self.end = 0

    def load(self, name: str) -> None:
        """Make the table, the slot and the backlog behind it."""
        workload = WORKLOADS[_TABLES[name]]
        self._clean(workload.table)
        existing = self.rows // 10
        workload.create(self.connection, existing)
        if name.endswith("-full"):
            self.connection.execute(f"alter table {workload.table} replica identity full")
        self.connection.execute(f"create publication {_PUBLICATION} for table {workload.table}")
        self._query("select pg_create_logical_replication_slot(%s, 'pgoutput')", _SLOT)
        workload.change(self.connection, self.rows, existing=existing)
        self.end = int(self._query("select pg_current_wal_lsn() - '0/0'::pg_lsn"))

    def close(self) -> None:
        """Leave nothing behind."""
        for table in set(_TABLES.values()):
            self._clean(table)
        self.connection.close()

    def run(self, contender: str) -> Result:
        """Drain a copy of the slot."""
        slot = f"{_SLOT}_copy"
        self._query("select pg_copy_logical_replication_slot(%s, %s)", _SLOT, slot)
        try:
            run = self._recvlogical if contender == "pg_recvlogical" else self._ours
            return run(contender, slot)
        finally:
            self._drop(slot)

    def _ours(self, contender: str, slot: str) -> Result:
        with tempfile.TemporaryDirectory() as folder:
            words = [contender, self.uri, slot, str(self.end), folder]
            command = [sys.executable, "-m", "benchmarks.capture", "--reader", *words]
            with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
                server = self._walsender(slot)
                assert process.stdout is not None
                line = process.stdout.readline()
            if process.returncode:
                raise RuntimeError(f"{contender} failed")
        rows, wall, cpu = json.loads(line)
        return Result(contender, rows or self.rows, wall, cpu, server())

    def _recvlogical(self, contender: str, slot: str) -> Result:
        command = [
            _recvlogical_path() or contender, "--start", "--no-loop", "-d", self.uri,
            "-S", slot, "-f", "/dev/null", "--endpos", format_lsn(self.end),
            "-o", "proto_version=2", "-o", "streaming=on",
            "-o", f"publication_names={_PUBLICATION}",
        ]  # fmt: skip
        started = time.perf_counter()
        process = psutil.Popen(command)
        server = self._walsender(slot)
        cpu = 0.0
        while process.poll() is None:
            try:
                times = process.cpu_times()
                cpu = times.user + times.system
            except psutil.Error:
                break
            time.sleep(0.005)
        process.wait()
        return Result(contender, self.rows, time.perf_counter() - started, cpu, server())

    def _walsender(self, slot: str) -> Callable[[], float]:
        """CPU seconds of the process that serves the slot, once that has begun."""
        query = "select active_pid from pg_replication_slots where slot_name = %s"
        deadline = time.monotonic() + 30
        while not (pid := self._query(query, slot)):
            if time.monotonic() > deadline:
                raise TimeoutError("nobody reads the slot")
            time.sleep(0.002)
        process = psutil.Process(int(pid))
        latest = [0.0]

        def watch() -> None:
            try:
                while True:
                    times = process.cpu_times()
                    latest[0] = times.user + times.system
                    time.sleep(0.005)
            except psutil.Error:
                return

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()

        def seconds() -> float:
            thread.join(10)
            return latest[0]

        return seconds

    def _clean(self, table: str) -> None:
        self._drop(_SLOT)
        self._drop(f"{_SLOT}_copy")
        self.connection.execute(f"drop publication if exists {_PUBLICATION}")
        self.connection.execute(f"drop table if exists {table}")

    def _drop(self, slot: str) -> None:
        deadline = time.monotonic() + 30
        held = "select count(*) from pg_replication_slots where slot_name = %s and active"
        while self._query(held, slot):
            if time.monotonic() > deadline:
                raise TimeoutError(f"slot {slot} is still read")
            time.sleep(0.02)
        self.connection.execute(
            "select pg_drop_replication_slot(slot_name) from pg_replication_slots"
            " where slot_name = %s",
            [slot],
        )

    def _query(self, sql: str, *values: object) -> Any:
        row = self.connection.execute(sql, values).fetchone()
        return row[0] if row else None


def _recvlogical_path() -> str | None:
    return shutil.which("pg_recvlogical")


@contextmanager
def _server(uri: str | None) -> Iterator[str]:
    if uri:
        yield uri
        return
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        cluster = PostgresCluster.make(16, Path(folder))
        cluster.start()
        try:
            yield cluster.uri("postgres")
        finally:
            cluster.stop()


def main() -> None:
    """Run it; see --help."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=2_000_000, help="changes in the backlog")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--workload", action="append", choices=sorted(_TABLES))
    parser.add_argument("--only", action="append", help="contenders")
    parser.add_argument("--uri", help="a server with wal_level=logical; default: one of our own")
    parser.add_argument("--reader", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.reader:
        mode, uri, slot, end, folder = options.reader
        print(json.dumps(_read(uri, slot, mode, int(end), Path(folder))))
        return
    limit = ["pg_recvlogical"] if _recvlogical_path() else []
    contenders = options.only or [*limit, "raw", "decode", "log"]
    with _server(options.uri) as uri:
        bench = Bench(uri, options.rows)
        try:
            for workload in options.workload or ["narrow", "wide"]:
                bench.load(workload)
                print(f"{workload}, {options.rows:,} changes up to {position_of(bench.end)}")
                for _ in range(options.rounds):
                    for contender in contenders:
                        print(bench.run(contender).line(), flush=True)
        finally:
            bench.close()


if __name__ == "__main__":
    main()
