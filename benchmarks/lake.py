"""MERGE into Delta and Iceberg: the sink, a MERGE written by hand, and DuckDB as the limit.

One table of ``--rows`` rows; then changes of 1 %, 10 % and 100 % of them (80 % updates, 10 %
deletes, 10 % inserts, keys at random, one key in ten changed twice), each on a fresh copy:

sink       what a feed does: rows of the log are staged and merged in rounds as large as the sink
           takes of a backlog
public     the same without Spark's internals, as over Spark Connect
by hand    what a data engineer writes into foreachBatch: the batch as a Parquet file of typed
           columns, the last row of each key by a window, one MERGE, a table without settings
duckdb     the same rows and statement in DuckDB

Reported are rows/s and CPU seconds (this process and the JVM) of one merge after a warm-up.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.measure import Cost, Meter, public_ways
from changefeed.core.clock import Timestamp
from changefeed.core.schema import Column, TableName, TableSchema
from changefeed.core.types import LogicalType
from changefeed.spark.session import NodeSpark
from sinks.base import Batch, Epoch, Receipt, Sink, SinkContext, Target
from sinks.registry import open_sink

SCHEMA = TableSchema(
    TableName("shop", "public", "orders"),
    (
        Column("id", "int8", LogicalType.parse("int64"), False, 1),
        Column("customer", "int4", LogicalType.parse("int32"), True, 2),
        Column("total", "numeric(12,2)", LogicalType.parse("decimal(12,2)"), True, 3),
        Column("placed", "timestamptz", LogicalType.parse("timestamptz"), True, 4),
        Column("note", "text", LogicalType.parse("text"), True, 5),
    ),
    (0,),
)
TARGET = Target(SCHEMA.table, "orders")
#: The version of the loaded rows; changes follow.
LOADED = 1_700_000_000_000_000_000
#: Rows handed to the sink in one go, as the engine does.
CHUNK = 100_000


@dataclass(frozen=True)
class Changes:
    """The same changes as rows of the log and as typed columns."""

    log: pa.Table
    typed: pa.Table


def loaded(rows: int) -> pa.Table:
    """The table before: rows of a scan."""
    ids = pa.array(np.arange(rows, dtype=np.int64))
    return log_rows(ids, pa.array(["r"] * rows), np.full(rows, LOADED), 0)


def changes_of(rows: int, count: int, seed: int) -> Changes:
    """``count`` changes of a table of ``rows`` rows."""
    chance = np.random.default_rng(seed)
    inserts = count // 10
    once = count - inserts - count // 10
    keys = chance.choice(rows, size=min(once, rows), replace=False)
    again = chance.choice(keys, size=count - inserts - len(keys), replace=True)
    ids = np.concatenate([keys, again, np.arange(rows, rows + inserts)]).astype(np.int64)
    kinds = np.where(chance.random(len(ids)) < 1 / 9, "d", "u").astype(object)
    kinds[len(keys) + len(again) :] = "c"
    ops = pa.array(kinds, pa.string())
    log = log_rows(pa.array(ids), ops, LOADED + 1 + np.arange(len(ids)), 1)
    return Changes(log, typed(log))


def log_rows(ids: pa.Array, ops: pa.Array, versions: np.ndarray[Any, Any], salt: int) -> pa.Table:
    """Rows of the log: those of a scan, or changes; ``salt``: other values for the same id."""
    rows = len(ids)
    number = ids.to_numpy() * 7 + salt
    cents = pa.array(number % 1_000_000)
    text = cents.cast(pa.string())
    total = pc.binary_join_element_wise(text, pa.scalar("25"), ".")
    gone = pc.equal(ops, "d")
    columns: dict[str, pa.Array] = {
        "op": ops,
        "wall": pa.array(versions.astype(np.int64)),
        "logical": pa.array(np.zeros(rows, np.int32)),
        "seq": pa.array(np.arange(rows, dtype=np.int64)),
        "ord": pa.array(np.zeros(rows, np.int32)),
        "xid": pa.array(np.ones(rows, np.int64)),
        "commit_us": pa.array((versions // 1000).astype(np.int64)),
        "last": pa.array(np.ones(rows, bool)),
        "missing": pa.nulls(rows, pa.string()),
        "a0": ids,
        "a1": pa.array((number % 50_000).astype(np.int32)),
        "a2": total,
        "a3": pa.repeat("2024-03-31T01:02:03.123456Z", rows),
        "a4": pc.binary_join_element_wise(text, pa.scalar("a note of some length"), " "),
    }
    for i in range(5):
        array = columns[f"a{i}"]
        columns[f"a{i}"] = pc.if_else(gone, pa.scalar(None, array.type), array)
    columns["b0"] = pc.if_else(gone, ids, pa.scalar(None, pa.int64()))
    return pa.table(columns, schema=SCHEMA.log_schema())


def typed(log: pa.Table) -> pa.Table:
    """The same rows as typed columns."""
    return pa.table(
        {
            "op": log["op"],
            "seq": log["wall"],
            "id": pc.coalesce(log["a0"], log["b0"]),
            "customer": log["a1"],
            "total": log["a2"].cast(pa.decimal128(12, 2)),
            "placed": pc.strptime(log["a3"], "%Y-%m-%dT%H:%M:%S.123456Z", "us").cast(
                pa.timestamp("us", "UTC")
            ),
            "note": log["a4"],
        }
    )


class Bench:
    """One engine, one folder."""

    def __init__(self, engine: NodeSpark, folder: Path) -> None:
        self.engine = engine
        self.folder = folder
        self._places = 0

    @contextmanager
    def metered(self) -> Iterator[list[Cost]]:
        costs: list[Cost] = []
        with Meter(os.getpid(), self.engine.pid or os.getpid()) as meter:
            yield costs
        costs.append(meter.cost)

    def place(self, kind: str) -> str:
        self._places += 1
        folder = self.folder / f"{kind}{self._places}"
        if kind == "delta":
            return f"delta://{folder}"
        return f"iceberg://c{self._places}/shop?type=hadoop&warehouse={folder}"

    # -- the sink ---------------------------------------------------------------------------

    def sink(self, kind: str, rows: int, changes: Changes) -> Cost:
        """Load through the sink, then merge the changes in rounds."""
        sink = open_sink(self.place(kind), {})
        scratch = self.folder / "scratch"
        context = SinkContext("bench", 1, (TARGET,), spark=self.engine, scratch=str(scratch))
        sink.open(context)
        self._rounds(sink, loaded(rows), scan=True)
        with self.metered() as costs:
            self._rounds(sink, changes.log, scan=False)
        sink.close()
        return costs[0]

    def public(self, kind: str, rows: int, changes: Changes) -> Cost:
        """The sink, by Spark's public API alone."""
        with public_ways():
            return self.sink(kind, rows, changes)

    def _rounds(self, sink: Sink, log: pa.Table, *, scan: bool) -> None:
        receipts: list[Receipt] = []
        waiting, number = 0, 1
        for start in range(0, log.num_rows, CHUNK):
            part = log.slice(start, CHUNK)
            epoch = Epoch(number, Timestamp(part["wall"][-1].as_py()))
            batch = Batch("bench", epoch, len(receipts), TARGET, SCHEMA, part, scan=scan)
            receipts.append(sink.write(batch))
            waiting += part.num_rows
            most = sink.capabilities.pacing.rows if scan else sink.pacing().rows
            if waiting >= most or start + CHUNK >= log.num_rows:
                sink.commit(epoch, receipts)
                receipts, waiting, number = [], 0, number + 1

    # -- by hand ----------------------------------------------------------------------------

    def by_hand(self, kind: str, rows: int, changes: Changes) -> Cost:
        """A table as CREATE TABLE makes it, one MERGE of the deduplicated batch."""
        batch = self.folder / "batch.parquet"
        pq.write_table(changes.typed, batch, row_group_size=131_072)
        before = self.folder / "before.parquet"
        pq.write_table(typed(loaded(rows)).drop(["op"]), before, row_group_size=131_072)
        with self.engine.use(packs=(kind,)) as session:
            name = self._by_hand_name(kind)
            session.sql(f"CREATE TABLE {name} USING {kind} AS SELECT * FROM parquet.`{before}`")
            with self.metered() as costs:
                session.read.parquet(str(batch)).createOrReplaceTempView("batch")
                session.sql(
                    f"""
                    MERGE INTO {name} AS t USING (
                        SELECT * EXCEPT (n) FROM (
                            SELECT *, row_number() OVER (PARTITION BY id ORDER BY seq DESC) AS n
                            FROM batch) WHERE n = 1) AS s
                    ON t.id = s.id
                    WHEN MATCHED AND s.op = 'd' THEN DELETE
                    WHEN MATCHED AND s.seq > t.seq THEN UPDATE SET
                        seq = s.seq, customer = s.customer, total = s.total,
                        placed = s.placed, note = s.note
                    WHEN NOT MATCHED AND s.op <> 'd' THEN INSERT
                        (id, seq, customer, total, placed, note)
                        VALUES (s.id, s.seq, s.customer, s.total, s.placed, s.note)
                    """
                ).collect()
        return costs[0]

    def _by_hand_name(self, kind: str) -> str:
        self._places += 1
        folder = self.folder / f"hand{self._places}"
        if kind == "delta":
            return f"delta.`{folder}`"
        with self.engine.use(packs=(kind,)) as session:
            head = f"spark.sql.catalog.h{self._places}"
            session.conf.set(head, "org.apache.iceberg.spark.SparkCatalog")
            session.conf.set(f"{head}.type", "hadoop")
            session.conf.set(f"{head}.warehouse", str(folder))
            # Not theirs: this session's filesystem cannot commit a hadoop catalog.
            local = "org.apache.hadoop.fs.LocalFileSystem"
            session.conf.set(f"{head}.hadoop.fs.file.impl", local)
            session.conf.set(f"{head}.hadoop.fs.file.impl.disable.cache", "true")
            session.sql(f"CREATE NAMESPACE IF NOT EXISTS h{self._places}.shop")
        return f"h{self._places}.shop.orders"

    # -- the limit --------------------------------------------------------------------------

    def duckdb(self, kind: str, rows: int, changes: Changes) -> Cost:
        """The same in DuckDB, with a file on disk and a key."""
        self._places += 1
        with duckdb.connect(str(self.folder / f"d{self._places}.duckdb")) as connection:
            connection.execute("SET TimeZone = 'UTC'")
            before = typed(loaded(rows)).drop(["op"])
            connection.register("before", before)
            connection.execute("CREATE TABLE orders AS SELECT * FROM before")
            connection.register("batch", changes.typed)
            with self.metered() as costs:
                connection.execute(
                    """
                    MERGE INTO orders AS t USING (
                        SELECT * FROM batch
                        QUALIFY row_number() OVER (PARTITION BY id ORDER BY seq DESC) = 1) AS s
                    ON t.id = s.id
                    WHEN MATCHED AND s.op = 'd' THEN DELETE
                    WHEN MATCHED AND s.seq > t.seq THEN UPDATE SET
                        seq = s.seq, customer = s.customer, total = s.total,
                        placed = s.placed, note = s.note
                    WHEN NOT MATCHED AND s.op <> 'd' THEN INSERT
                        (id, seq, customer, total, placed, note)
                        VALUES (s.id, s.seq, s.customer, s.total, s.placed, s.note)
                    """
                )
                connection.execute("CHECKPOINT")
        return costs[0]


def main() -> None:
    """Run and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000_000, help="rows of the table")
    parser.add_argument("--percent", type=float, nargs="*", default=[1, 10, 100])
    parser.add_argument("--formats", nargs="*", default=["delta", "iceberg"])
    parser.add_argument("--ways", nargs="*", default=["sink", "by hand", "duckdb"])
    parser.add_argument("--heap", default="4g")
    words = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="changefeed-bench-lake-"))
    try:
        with NodeSpark(heap=words.heap, packs=words.formats) as engine:
            bench = Bench(engine, folder)
            _run(bench, words.rows, words.percent, words.formats, words.ways)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(
    bench: Bench, rows: int, percents: list[float], formats: list[str], wanted: list[str]
) -> None:
    known: dict[str, Callable[[str, int, Changes], Cost]] = {
        "sink": bench.sink,
        "public": bench.public,
        "by hand": bench.by_hand,
    }
    ways = {name: way for name, way in known.items() if name in wanted}
    print("warming up ...", flush=True)
    for kind in formats:
        for way in ways.values():
            way(kind, 50_000, changes_of(50_000, 5_000, 1))
    print(f"{rows:,} rows; {time.strftime('%F %T')}; load {os.getloadavg()[0]:.1f}")
    for percent in percents:
        changes = changes_of(rows, max(10, int(rows * percent / 100)), 2)
        count = changes.log.num_rows
        for kind in formats:
            for name, way in ways.items():
                _say(percent, count, f"{kind} {name}", way(kind, rows, changes))
        if "duckdb" in wanted:
            _say(percent, count, "duckdb", bench.duckdb("", rows, changes))


def _say(percent: float, count: int, name: str, cost: Cost) -> None:
    rate = count / cost.wall_seconds
    print(
        f"{percent:5g} % {count:>11,} changes  {name:16} {cost.wall_seconds:8.1f} s "
        f"{rate:>10,.0f} rows/s {cost.cpu_seconds:8.1f} s of CPU",
        flush=True,
    )


if __name__ == "__main__":
    main()
