"""Change rows to JSON messages by Spark: small batches in milliseconds, big ones in rows/s.

*Small*: time of one call, by the number of rows. ``fold`` is ``encode_small`` (no Spark job),
``job`` is ``encode_big`` (one job on all cores); where they cross is ``SMALL_ROWS``.

*Big*: a Parquet file of the log, in the page cache.

* ``read``: the limit, the plan's columns thrown away in the JVM;
* ``encode``: messages thrown away in the JVM; ``guarded`` with every text checked for
  characters to escape; ``to_json`` is Spark's own writer on the same columns (a peer: it
  changes numbers and spacing);
* ``driver``: messages to this process, in order; ``workers``: to Python workers that count.

CPU is that of the JVM, its workers and this process. On a busy machine trust the CPU figures.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from benchmarks.measure import Meter
from changefeed.schema import Column, Form, TableName, TableSchema
from changefeed.spark.encode import encode_big, encode_files, encode_small, text_inputs
from changefeed.spark.executors import deliver_on_executors
from changefeed.spark.plan import MessagePlan
from changefeed.spark.rows import from_segments, messages
from changefeed.spark.segment import Segment
from changefeed.spark.session import SparkEngine

_KINDS = {
    "int8": Column("", "int8", "int64", Form.NATIVE, "int64"),
    "int4": Column("", "int4", "int32", Form.NATIVE, "int32"),
    "bool": Column("", "bool", "bool", Form.NATIVE, "bool"),
    "numeric": Column("", "numeric(12,2)", "string", Form.RAW, "decimal(12,2)"),
    "jsonb": Column("", "jsonb", "string", Form.RAW, "json"),
    "text": Column("", "text", "string", Form.TEXT, "text"),
    "timestamptz": Column("", "timestamptz", "string", Form.TEXT, "timestamptz"),
}
_SHAPES = {
    "narrow": "int8 int4 text timestamptz numeric",
    "wide": "int8 int4 text text numeric numeric bool bool text jsonb numeric timestamptz "
    "timestamptz text text",
}


def table_of(shape: str) -> TableSchema:
    """The narrow or the wide table."""
    columns = []
    for i, kind in enumerate(_SHAPES[shape].split()):
        like = _KINDS[kind]
        columns.append(Column(f"column_{i}", kind, like.physical, like.form, like.logical, i > 0))
    return TableSchema(TableName("bench", "public", shape), tuple(columns), (0,))


def changes(schema: TableSchema, rows: int, seed: int = 1) -> pa.Table:
    """Updates as the log keeps them: distinct values, nothing to escape, one text in ten NULL."""
    random = np.random.default_rng(seed)
    numbers = np.arange(rows)
    wall = pa.array(1_700_000_000_000_000_000 + numbers)
    columns: dict[str, pa.Array] = {"wall": wall, "seq": pa.array(numbers)}
    fixed: dict[str, object] = {"op": "u", "last": True, "missing": None}
    for i, column in enumerate(schema.columns):
        columns[f"a{i}"] = _values(column, random, rows)
    log = schema.log_schema()
    for field in log:
        if field.name not in columns:
            value = fixed.get(field.name, None if field.name.startswith("b") else 0)
            columns[field.name] = pa.repeat(pa.scalar(value, field.type), rows)
    return pa.table([columns[name].cast(log.field(name).type) for name in log.names], schema=log)


def _values(column: Column, random: np.random.Generator, rows: int) -> pa.Array:
    numbers = pa.array(random.integers(0, 2**31 - 1, rows))
    texts = numbers.cast(pa.string())
    made: dict[str, Callable[[], pa.Array]] = {
        "bool": lambda: pa.array(random.integers(0, 2, rows).astype(bool)),
        "numeric": lambda: _around(texts, "", ".25"),
        "jsonb": lambda: _around(texts, '{"k": "', '", "n": 17, "ok": true}'),
        "timestamptz": lambda: _around(texts, "2026-01-01T01:02:03.", "Z"),
        "text": lambda: _with_nulls(_around(texts, "some words and the number ", ""), random),
    }
    return made.get(column.type_name, lambda: numbers)()


def _around(texts: pa.Array, before: str, after: str) -> pa.Array:
    return pc.binary_join_element_wise(before, texts, after, "")


def _with_nulls(texts: pa.Array, random: np.random.Generator) -> pa.Array:
    return pc.if_else(pa.array(random.random(len(texts)) < 0.1), None, texts)


class Counting:
    """A sink that counts."""

    def __call__(self, part: int, batches: Iterator[pa.RecordBatch]) -> tuple[int, int]:
        sizes = [(batch.num_rows, batch.nbytes) for batch in batches]
        return sum(rows for rows, _ in sizes), sum(size for _, size in sizes)

    def close(self) -> None:
        """Nothing to close."""


@dataclass
class Bench:
    """One engine and how often to measure."""

    engine: SparkEngine
    rounds: int

    def small(self, shape: str) -> None:
        """Latency by number of rows, both ways."""
        schema = table_of(shape)
        plan = MessagePlan(schema, shape, updated=True)
        clean = text_inputs(plan)
        for _ in range(60):
            encode_small(self.engine, changes(schema, 50), plan, clean)
        for rows in (1, 10, 100, 1_000, 5_000, 10_000, 20_000, 50_000):
            table = changes(schema, rows)
            line = f"{shape:7} {rows:6,} rows "
            for name, way in (("fold", encode_small), ("job", encode_big)):
                times = []
                for _ in range(max(5, self.rounds * 20 // (1 + rows // 2_000))):
                    began = time.perf_counter()
                    way(self.engine, table, plan, clean)
                    times.append((time.perf_counter() - began) * 1e3)
                times.sort()
                p95 = times[min(len(times) - 1, int(len(times) * 0.95))]
                line += f" | {name} median {statistics.median(times):6.1f} p95 {p95:6.1f} ms"
            print(line, flush=True)

    def big(self, shape: str, rows: int, folder: Path) -> None:
        """Rates of the ways big data goes."""
        schema = table_of(shape)
        plan = MessagePlan(schema, shape, updated=True)
        clean = text_inputs(plan)
        path = folder / f"{shape}.parquet"
        pq.write_table(changes(schema, rows), path, compression="zstd", row_group_size=65_536)
        session = self.engine.session()

        def frame() -> DataFrame:
            return from_segments(session, [Segment(path)], plan)

        def drop(made: DataFrame) -> None:
            made.write.format("noop").mode("overwrite").save()

        row = F.struct(*plan.inputs)
        ways: dict[str, Callable[[], object]] = {
            "read": lambda: drop(frame()),
            "encode": lambda: drop(messages(frame(), plan, clean)),
            "guarded": lambda: drop(messages(frame(), plan, frozenset())),
            "to_json": lambda: drop(
                frame().select(F.to_json(row, {"ignoreNullFields": "false"}).cast("binary"), "seq")
            ),
            "driver": lambda: encode_files(self.engine, [Segment(path)], plan, clean),
            "workers": lambda: deliver_on_executors(
                self.engine, messages(frame(), plan, clean), plan, Counting(), ordered=False
            ),
            "workers by key": lambda: deliver_on_executors(
                self.engine, messages(frame(), plan, clean), plan, Counting()
            ),
        }
        for name, way in ways.items():
            for _ in range(2):
                way()
            best = min((self._measured(way) for _ in range(self.rounds)), key=lambda c: c[0])
            wall, cpu = best
            print(
                f"{shape:7} {name:15} {rows / wall:10,.0f} rows/s  {cpu * 1e6 / rows:5.2f} us of "
                "CPU a row",
                flush=True,
            )

    def _measured(self, way: Callable[[], object]) -> tuple[float, float]:
        with Meter(os.getpid()) as meter:
            way()
        return meter.cost.wall_seconds, meter.cost.cpu_seconds


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", nargs="?", choices=("small", "big", "all"), default="all")
    parser.add_argument("--shape", choices=(*_SHAPES, "both"), default="both")
    parser.add_argument("--rows", type=int, default=400_000, help="rows of the big ones")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--heap", default="2g")
    asked = parser.parse_args()
    shapes = list(_SHAPES) if asked.shape == "both" else [asked.shape]
    with SparkEngine(heap=asked.heap) as engine, tempfile.TemporaryDirectory() as folder:
        bench = Bench(engine, asked.rounds)
        for shape in shapes:
            if asked.what in ("small", "all"):
                bench.small(shape)
            if asked.what in ("big", "all"):
                bench.big(shape, asked.rows, Path(folder))


if __name__ == "__main__":
    main()
