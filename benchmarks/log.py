"""The change log: appends and reads beside plain pyarrow files of the same rows.

Rows are made in memory beforehand. ``segment`` appends flushes large enough for a Parquet file,
``inline`` flushes of 5,000 rows that stay in the journal; the limits write the same batches with
``pyarrow.parquet`` (lz4, no dictionaries) and as Arrow IPC (lz4), each file synced. Reading takes
slices of 100,000 rows and loads them; its limit reads the limit's files. ``latency`` is that
of a flush of one transaction of ten rows, with the fsync of the same disk measured alone beside it.
CPU is of this process, all threads.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from changefeed.core.clock import Timestamp
from changefeed.core.elapsed import read_clocks
from changefeed.core.events import ChangeBatch, Commits, Flush, Frontier
from changefeed.core.schema import BeforeImage, Column, TableName, TableSchema
from changefeed.core.types import LogicalType
from changefeed.log import LogReader, LogSettings, LogWriter

_BASE = 1_800_000_000_000_000_000


def _column(name: str, number: int) -> Column:
    logical = {
        "int": "int64",
        "num": "decimal",
        "doc": "json",
        "text": "text",
        "flag": "bool",
    }[name]
    return Column(f"{name}{number}", name, LogicalType.parse(logical), number != 1, number)


def _schema(name: str, kinds: list[str], before_image: BeforeImage) -> TableSchema:
    columns = tuple(_column(kind, i + 1) for i, kind in enumerate(kinds))
    return TableSchema(TableName("bench", "public", name), columns, (0,), before_image, version=1)


#: As the tables of ``benchmarks/workload.py``; wide rows have full old rows.
SCHEMAS = {
    "narrow": _schema("narrow", ["int", "int", "text", "text", "num"], BeforeImage.KEY),
    "wide": _schema(
        "wide",
        ["int", "int", "text", "text", "num", "num", "flag", "flag", "text", "doc", "num"]
        + ["text"] * 4,
        BeforeImage.FULL,
    ),
}


def _values(kind: str, count: int, seed: int) -> pa.Array:
    numbers = np.random.default_rng(seed).integers(0, 1_000_000, count)
    if kind == "int":
        return pa.array(numbers)
    if kind == "flag":
        return pa.array(numbers % 2 == 0)
    digits = pa.array(numbers).cast(pa.string())
    parts = {
        "num": (digits, pa.scalar(".25")),
        "doc": (pa.scalar('{"k": "0123456789abcdef", "n": '), digits, pa.scalar("}")),
        "text": (pa.scalar("some text of the usual length "), digits),
    }[kind]
    return pa.compute.binary_join_element_wise(*parts, "")


def make_batches(schema: TableSchema, rows: int, size: int) -> list[ChangeBatch]:
    """``rows`` rows in batches of ``size``; a transaction is ten rows."""
    made = []
    for start in range(0, rows, size):
        count = min(size, rows - start)
        seq = np.arange(start + 1, start + count + 1)
        wall = _BASE + (seq - 1) // 10 * 1_000
        arrays = [
            pa.array(np.array(["c", "u"])[seq % 2], pa.string()),
            pa.array(wall),
            pa.array(np.zeros(count, np.int32)),
            pa.array(seq),
            pa.array((seq % 10).astype(np.int32)),
            pa.array(seq // 10),
            pa.array(wall // 1000),
            pa.array(np.ones(count, bool)),
            pa.nulls(count, pa.string()),
        ]
        kinds = [c.type_name for c in schema.columns]
        arrays += [_values(kind, count, i) for i, kind in enumerate(kinds)]
        arrays += [_values(kinds[i], count, 99 + i) for i in schema.before_ordinals]
        batch = pa.RecordBatch.from_arrays(arrays, schema=schema.log_schema())
        made.append(ChangeBatch(schema, batch))
    return made


def as_flush(batch: ChangeBatch) -> Flush:
    """A batch as capture hands it over."""
    wall = np.unique(batch.rows.column("wall").to_numpy())
    seq = batch.rows.column("seq")[len(batch.rows) - 1].as_py()
    places = [f"{w - _BASE:016X}" for w in wall.tolist()]
    commits = Commits(wall, np.zeros(len(wall), np.int32), places, wall // 1000)  # type: ignore[arg-type]
    return Flush([batch], Frontier(Timestamp(int(wall[-1])), places[-1], seq), commits)


@dataclass
class Line:
    """One measured line."""

    rows: int
    wall: float = 0.0
    cpu: float = 0.0

    def text(self) -> str:
        """Rates."""
        return f"{self.rows / self.wall:12,.0f} rows/s {self.cpu * 1e6 / self.rows:7.2f} us CPU/row"


@contextmanager
def measured(rows: int, title: str) -> Iterator[None]:
    """Print what the block took."""
    line, wall, cpu = Line(rows), time.perf_counter(), time.process_time()
    yield
    line.wall, line.cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(f"  {title:34} {line.text()}")


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def _write_limit(root: Path, batches: list[ChangeBatch], kind: str) -> None:
    for i, batch in enumerate(batches):
        path = root / f"{kind}-{i}"
        if kind == "parquet":
            table = pa.Table.from_batches([batch.rows])
            pq.write_table(table, path, compression="lz4", use_dictionary=False)
        else:
            options = pa.ipc.IpcWriteOptions(compression="lz4")
            with pa.ipc.new_file(str(path), batch.rows.schema, options=options) as writer:
                writer.write_batch(batch.rows)
        _sync(path)


def _read_log(root: Path, schema: TableSchema) -> int:
    progress, rows = Timestamp(_BASE - 1), 0
    with LogReader(root) as reader:
        frontier = reader.frontier
        while frontier is not None and progress < frontier.at:
            got = reader.slice({schema.table: progress}, Timestamp.MAX, 100_000, 1 << 30)
            rows += sum(len(piece.load()) for piece in got.pieces)
            progress = got.upto
    return rows


def bulk(root: Path, schema: TableSchema, rows: int, size: int, title: str) -> None:
    """Append, merge and read many rows, and the limits beside it."""
    batches = make_batches(schema, rows, size)
    flushes = [as_flush(b) for b in batches]
    print(f"{schema.table.name}, {title}: {rows:,} rows in flushes of {size:,}")
    for kind in ("parquet", "ipc"):
        with measured(rows, f"limit: write {kind}, synced"):
            _write_limit(root, batches, kind)
    with LogWriter(root / "log", LogSettings()) as writer:
        with measured(rows, "append"):
            for flush in flushes:
                writer.append(flush)
        with measured(rows, "limit: read parquet"):
            for i in range(len(batches)):
                pq.read_table(root / f"parquet-{i}", use_threads=False)
        with measured(rows, "read"):
            assert _read_log(root / "log", schema) == rows
        writer.roll()
        size = writer.bytes
        with measured(rows, "merge journals"):
            writer.maintain(read_clocks(), Timestamp(0))
        with measured(rows, "read merged"):
            assert _read_log(root / "log", schema) == rows
    print(f"  {size / rows:.0f} bytes a row on disk before the merge")


def _quantiles(name: str, seconds: list[float]) -> None:
    cuts = statistics.quantiles(seconds, n=100)
    print(f"  {name:34} p50 {cuts[49] * 1e3:7.3f} ms  p99 {cuts[98] * 1e3:7.3f} ms")


def _timed(count: int, work: Callable[[int], object]) -> list[float]:
    taken = []
    for i in range(count):
        start = time.perf_counter()
        work(i)
        taken.append(time.perf_counter() - start)
    return taken


def _append(writer: LogWriter, flush: Flush, _: int) -> None:
    writer.append(flush)


def latency(root: Path, schema: TableSchema, count: int) -> None:
    """One transaction a flush: the writer's side and that of a feed that has caught up."""
    flushes = [as_flush(b) for b in make_batches(schema, count * 10, 10)]
    print(f"{schema.table.name}, latency: {count:,} flushes of one transaction of 10 rows")
    fd = os.open(root / "fsync", os.O_CREAT | os.O_RDWR)

    def sync_only(_: int) -> None:
        os.write(fd, bytes(2_000))
        os.fdatasync(fd)

    _quantiles("limit: write 2 kB and fdatasync", _timed(count, sync_only))
    os.close(fd)
    reader: LogReader
    progress = {schema.table: Timestamp(_BASE - 1)}

    def follow(_: int) -> None:
        reader.refresh()
        got = reader.slice(progress, Timestamp.MAX, 10_000, 1 << 27)
        for piece in got.pieces:
            piece.load()
        progress[schema.table] = got.upto

    with LogWriter(root / "small") as writer, LogReader(root / "small") as reader:
        appends: list[float] = []
        follows: list[float] = []
        cpu = time.process_time()
        for i in range(count):
            appends += _timed(1, partial(_append, writer, flushes[i]))
            follows += _timed(1, follow)
        cpu = time.process_time() - cpu
        _quantiles("append", appends)
        _quantiles("refresh, slice, load", follows)
        print(f"  {'CPU of both':34} {cpu / count * 1e6:.0f} us a flush")
        _quantiles("refresh when nothing happened", _timed(10_000, lambda _: reader.refresh()))


def main() -> None:
    """Run what the words ask for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--flushes", type=int, default=500)
    parser.add_argument("--table", choices=[*SCHEMAS], action="append")
    parser.add_argument("--directory", type=Path, help="where to write; default: a temporary one")
    given = parser.parse_args()
    for name in given.table or SCHEMAS:
        schema = SCHEMAS[name]
        for title, size in (("segment", 65_530), ("inline", 5_000)):
            rows = given.rows if title == "segment" else given.rows // 2
            with _folder(given.directory) as root:
                bulk(root, schema, rows, size, title)
        with _folder(given.directory) as root:
            latency(root, schema, given.flushes)


@contextmanager
def _folder(parent: Path | None) -> Iterator[Path]:
    root = Path(tempfile.mkdtemp(prefix="log-bench-", dir=parent))
    try:
        yield root
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
