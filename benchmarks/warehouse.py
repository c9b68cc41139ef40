"""Draining a backlog into PostgreSQL and DuckDB: the sink beside COPY and MERGE written by hand.

    python -m benchmarks.warehouse [--rows 1000000] [--changes 250000] [--rounds 3] [--case keyed]

A table of ``--rows`` rows, then a backlog of ``--changes`` changes of it (80 % updates, 10 %
deletes, 10 % inserts, keys at random, one key in ten changed twice), each on a fresh table:

sink      what a feed does: rows of the log are written in batches and committed in rounds as large
          as the sink takes of a backlog
by hand   what a data engineer writes: typed columns loaded into a staging table (COPY; DuckDB reads
          them from memory), the last change of each key by a window, one MERGE, one transaction

The other cases are the sink's alone: ``unsent`` lacks a value in each third update, ``versions`` is
``history = 'scd2'``, ``keyless`` a table without a key (half deletes, half inserts). Reported are
rows/s and CPU seconds of the backlog, this process's and the server's.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path

import duckdb
import numpy as np
import numpy.typing as npt
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from benchmarks.lake import CHUNK, LOADED, SCHEMA, TARGET, changes_of, loaded, log_rows, typed
from benchmarks.measure import Cost, Meter
from changefeed.core.clock import Timestamp
from changefeed.core.schema import BeforeImage, TableSchema
from sinks.base import Batch, Epoch, Receipt, Sink, SinkContext
from sinks.registry import open_sink
from tests.services.cache import server_folder
from tests.services.postgres import Database, PostgresCluster

KEYLESS = replace(SCHEMA, key=tuple(range(5)), before_image=BeforeImage.FULL, keyless=True)
COLUMNS = "id bigint, customer integer, total numeric(12,2), placed timestamptz, note text"
MERGE = """
    MERGE INTO orders AS t USING (
        SELECT * FROM (
            SELECT *, row_number() OVER (PARTITION BY id ORDER BY seq DESC) AS n FROM batch
        ) AS numbered WHERE n = 1) AS s
    ON t.id = s.id
    WHEN MATCHED AND s.op = 'd' THEN DELETE
    WHEN MATCHED AND s.seq > t.seq THEN UPDATE SET
        seq = s.seq, customer = s.customer, total = s.total, placed = s.placed, note = s.note
    WHEN NOT MATCHED AND s.op <> 'd' THEN INSERT (id, seq, customer, total, placed, note)
        VALUES (s.id, s.seq, s.customer, s.total, s.placed, s.note)
"""


@dataclass(frozen=True)
class Case:
    """A table, and the backlog of a feed that keeps it."""

    schema: TableSchema
    before: pa.Table
    backlog: pa.Table
    options: Mapping[str, object]


def case_of(name: str, rows: int, changes: int) -> Case:
    """The case of this name."""
    backlog = changes_of(rows, changes, 2).log
    if name == "unsent":
        lacks = pa.array(np.arange(len(backlog)) % 3 == 0)
        lacks = pc.and_(lacks, pc.equal(backlog["op"], "u"))
        for column, value in (("missing", '["note"]'), ("a4", None)):
            place = backlog.schema.get_field_index(column)
            values = pc.if_else(lacks, pa.scalar(value, pa.string()), backlog[column])
            backlog = backlog.set_column(place, backlog.schema.field(place), values)
    if name == "keyless":
        ids = np.random.default_rng(2).choice(rows, min(rows, changes // 2), replace=False)
        gone = _without_key(log_rows(pa.array(ids), pa.repeat("r", len(ids)), _versions(ids, 1), 0))
        new = np.arange(rows, rows + len(ids))
        came = log_rows(pa.array(new), pa.repeat("c", len(new)), _versions(new, 1 + len(ids)), 1)
        backlog = pa.concat_tables([_deleted(gone), _without_key(came)])
        return Case(KEYLESS, _without_key(loaded(rows)), backlog, {})
    options = {"history": "scd2"} if name == "versions" else {}
    return Case(SCHEMA, loaded(rows), backlog, options)


def _versions(rows: npt.NDArray[np.int64], first: int) -> npt.NDArray[np.int64]:
    return LOADED + first + np.arange(len(rows))


def _without_key(rows: pa.Table) -> pa.Table:
    """Rows of the log of the table without a key, which have all columns before a change."""
    columns = {name: rows[name] for name in rows.column_names if name != "b0"}
    columns |= {f"b{i}": pa.nulls(len(rows), rows.schema.field(f"a{i}").type) for i in range(5)}
    return pa.table(columns, schema=KEYLESS.log_schema())


def _deleted(rows: pa.Table) -> pa.Table:
    columns = {name: rows[name] for name in rows.column_names}
    for i in range(5):
        columns[f"b{i}"], columns[f"a{i}"] = columns[f"a{i}"], columns[f"b{i}"]
    columns["op"] = pa.repeat("d", len(rows))
    return pa.table(columns, schema=KEYLESS.log_schema())


def rounds(sink: Sink, schema: TableSchema, log: pa.Table, *, scan: bool) -> None:
    """Rows of the log through a sink, as the engine delivers a backlog."""
    receipts: list[Receipt] = []
    waiting, number = 0, 1
    for start in range(0, log.num_rows, CHUNK):
        part = log.slice(start, CHUNK)
        epoch = Epoch(number, Timestamp(part["wall"][-1].as_py()))
        receipts.append(
            sink.write(Batch("bench", epoch, len(receipts), TARGET, schema, part, scan=scan))
        )
        waiting += part.num_rows
        if waiting >= sink.pacing().rows or start + CHUNK >= log.num_rows:
            sink.commit(epoch, receipts)
            receipts, waiting, number = [], 0, number + 1
    if scan:
        sink.end_scan(TARGET, schema, epoch.upto)


class Bench:
    """One server of PostgreSQL, and a folder for files of DuckDB."""

    def __init__(self, cluster: PostgresCluster, folder: Path) -> None:
        self._cluster = cluster
        self._folder = folder
        self._pids = (os.getpid(), int((cluster.data / "postmaster.pid").read_text().split()[0]))

    def sink(self, kind: str, case: Case) -> Cost:
        """Load through the sink, then drain the backlog."""
        with self._place(kind) as uri:
            sink = open_sink(uri, case.options)
            with closing(sink):
                scratch = str(self._folder / "scratch")
                sink.open(SinkContext("bench", 1, (TARGET,), scratch=scratch))
                rounds(sink, case.schema, case.before, scan=True)
                with Meter(*self._pids) as meter:
                    rounds(sink, case.schema, case.backlog, scan=False)
            return meter.cost

    @contextmanager
    def _place(self, kind: str) -> Iterator[str]:
        if kind == "duckdb":
            with tempfile.TemporaryDirectory(dir=self._folder) as folder:
                yield f"duckdb:///{folder}/orders.duckdb"
            return
        with self._cluster.database() as database:
            yield database.uri

    def by_hand(self, kind: str, case: Case) -> Cost:
        """The same rows by COPY and one MERGE."""
        before, batch = (typed(rows).combine_chunks() for rows in (case.before, case.backlog))
        if kind == "postgresql":
            with self._cluster.database() as database:
                return self._postgresql_by_hand(database, before.drop(["op"]), batch)
        with (
            tempfile.TemporaryDirectory(dir=self._folder) as folder,
            duckdb.connect(f"{folder}/orders.duckdb") as connection,
        ):
            connection.execute("SET TimeZone = 'UTC'")
            connection.register("before", before.drop(["op"]))
            connection.execute("CREATE TABLE orders AS SELECT * FROM before")
            with Meter(*self._pids) as meter:
                connection.register("batch", batch)
                connection.execute(MERGE)
                connection.execute("CHECKPOINT")
            return meter.cost

    def _postgresql_by_hand(self, database: Database, before: pa.Table, batch: pa.Table) -> Cost:
        with database.connect(autocommit=True) as connection:
            connection.execute(f"CREATE TABLE orders (seq bigint, {COLUMNS}, PRIMARY KEY (id))")
            connection.execute(f"CREATE UNLOGGED TABLE batch (op text, seq bigint, {COLUMNS})")
            _copy(connection, "orders", before)
            with Meter(*self._pids) as meter, connection.transaction():
                _copy(connection, "batch", batch)
                connection.execute(MERGE)
            return meter.cost


def _copy(connection: psycopg.Connection, table: str, rows: pa.Table) -> None:
    names = ", ".join(rows.column_names)
    options = csv.WriteOptions(include_header=False, quoting_style="needed")
    with (
        connection.cursor() as cursor,
        cursor.copy(f"COPY {table} ({names}) FROM STDIN (FORMAT csv)".encode()) as copy,
    ):
        for batch in rows.to_batches(max_chunksize=20_000):
            data = BytesIO()
            csv.write_csv(batch, data, options)
            copy.write(data.getbuffer())


def main() -> None:
    """Run and print a line for each contender and round."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the table")
    parser.add_argument("--changes", type=int, default=250_000, help="changes in the backlog")
    parser.add_argument("--rounds", type=int, default=3)
    cases = ("keyed", "unsent", "versions", "keyless")
    parser.add_argument("--case", nargs="*", choices=cases, default=["keyed"])
    kinds = ("postgresql", "duckdb")
    parser.add_argument("--into", nargs="*", choices=kinds, default=list(kinds))
    words = parser.parse_args()
    with server_folder("warehouse") as folder:
        cluster = PostgresCluster.make(16, folder).start()
        try:
            bench = Bench(cluster, folder)
            for name in words.case:
                case = case_of(name, words.rows, words.changes)
                ways: dict[str, Callable[[str, Case], Cost]] = {"sink": bench.sink}
                if name == "keyed":
                    ways["by hand"] = bench.by_hand
                for number in range(words.rounds):
                    for kind in words.into:
                        # The order changes, so that no contender always finds warm caches.
                        for way in list(ways)[:: 1 if number % 2 else -1]:
                            cost = ways[way](kind, case)
                            _say(f"{name} {kind} {way}", case.backlog.num_rows, cost)
        finally:
            cluster.stop()


def _say(name: str, count: int, cost: Cost) -> None:
    print(
        f"{name:28} {count:>9,} changes {cost.wall_seconds:7.2f} s "
        f"{count / cost.wall_seconds:>9,.0f} rows/s {cost.cpu_seconds:7.2f} s of CPU",
        flush=True,
    )


if __name__ == "__main__":
    main()
