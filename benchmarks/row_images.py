"""The row-image store: what it adds to a row on its way into the change log.

One run, the same changes three times: appended to a change log as the source sends them
(``log``), completed by the store and appended with whole old rows (``store``), and the append of
such rows alone (``full``: what a source with whole old rows costs). ``store`` less ``full`` is the
store itself, ``store`` less ``log`` what a user pays for it. Changes are updates of random keys
of a table that the store was filled with before; one in four leaves a large value out. CPU of this
process, all threads; checkpoints and merges of the store are in it.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.core.clock import Timestamp
from changefeed.core.events import ChangeBatch, Flush, Frontier
from changefeed.core.schema import BeforeImage, Column, TableName, TableSchema
from changefeed.core.types import LogicalType
from changefeed.images.complete import complete
from changefeed.images.runs import KeyBatch
from changefeed.images.states import StoreState
from changefeed.images.store import ImageStore, pack_keys
from changefeed.log import LogSettings, LogWriter

_BASE = 1_800_000_000_000_000_000
_KINDS = ["int64", "int64", "int32", "text", "text", "text", "bool", "text"]


def _schema(before: BeforeImage) -> TableSchema:
    columns = tuple(
        Column(f"c{i}", kind, LogicalType.parse(kind), i > 0, i + 1)
        for i, kind in enumerate(_KINDS)
    )
    return TableSchema(TableName("bench", "public", "t"), columns, (0,), before, version=1)


FULL, KEY = _schema(BeforeImage.FULL), _schema(BeforeImage.KEY)


def _row_columns(keys: np.ndarray, stamp: int) -> list[pa.Array]:
    """Rows of about 150 bytes."""
    texts = pa.array(keys).cast(pa.string())
    longer = pc.binary_repeat(texts, 6)
    return [
        pa.array(keys),
        pa.array(keys * 7 + stamp),
        pa.array((keys % 1_000).astype(np.int32)),
        texts,
        longer,
        pc.binary_repeat(texts, 8),
        pa.array(keys % 2 == 0),
        pc.utf8_upper(texts),
    ]


def _changes(schema: TableSchema, keys: np.ndarray, number: int) -> pa.RecordBatch:
    """Updates of these keys, ten to a transaction, as the source sends them."""
    count = len(keys)
    after = _row_columns(keys, number)
    left_out = np.arange(count) % 4 == 0
    after[5] = pc.if_else(pa.array(left_out), pa.scalar(None, pa.string()), after[5])
    missing = pc.if_else(pa.array(left_out), '["c5"]', pa.scalar(None, pa.string()))
    seq = np.arange(number * count + 1, (number + 1) * count + 1)
    before = {i: pa.nulls(count, schema.columns[i].arrow) for i in schema.before_ordinals}
    before[0] = after[0]
    return pa.RecordBatch.from_arrays(
        [
            pa.repeat(pa.scalar("u"), count),
            pa.array(_BASE + (seq + 9) // 10 * 1_000_000),
            pa.array(np.zeros(count, np.int32)),
            pa.array(seq),
            pa.array((seq % 10).astype(np.int32)),
            pa.array(seq // 10),
            pa.array(seq // 10),
            pa.repeat(pa.scalar(True), count),
            missing,
            *after,
            *before.values(),
        ],
        schema=schema.log_schema(),
    )


@dataclass
class Figure:
    """CPU and wall time of some rows, seconds."""

    name: str
    rows: int = 0
    cpu: float = 0.0
    wall: float = 0.0

    def measure(self, rows: int, work: Callable[[], None]) -> None:
        """Add some work."""
        cpu, wall = time.process_time(), time.perf_counter()
        work()
        self.cpu += time.process_time() - cpu
        self.wall += time.perf_counter() - wall
        self.rows += rows

    def line(self) -> str:
        """One line of the table."""
        each = 1e6 / self.rows
        return f"{self.name:10} {self.cpu * each:6.2f} us CPU {self.wall * each:6.2f} us wall a row"


def _filled(folder: Path, rows: int) -> tuple[ImageStore, Figure]:
    figure = Figure("fill")
    store = ImageStore.create(folder, FULL, Timestamp(_BASE))
    store.state = StoreState.LIVE
    for start in range(0, rows, 50_000):
        keys = np.arange(start, min(start + 50_000, rows))
        columns = _row_columns(keys, 0)
        there = pa.repeat(pa.scalar(True), len(keys))

        def put(columns: list[pa.Array] = columns, there: pa.Array = there) -> None:
            store.put(KeyBatch.of(pack_keys(store.key, columns[:1])), columns, there)

        figure.measure(len(keys), put)

    def settle() -> None:
        store.checkpoint()
        while store.merge(lambda: False, whole=True):
            pass

    figure.measure(0, settle)
    return store, figure


def _append(writer: LogWriter, schema: TableSchema, rows: pa.RecordBatch) -> Timestamp:
    at = Timestamp(rows["wall"][-1].as_py())
    seq = rows["seq"][-1].as_py()
    writer.append(Flush((ChangeBatch(schema, rows),), Frontier(at, f"{seq:020}", seq)))
    return at


def run(rows: int, changes: int, batch: int) -> Iterator[str]:
    """The figures, line by line."""
    folder = Path(tempfile.mkdtemp(prefix="row-images-"))
    draw = np.random.default_rng(1)
    try:
        store, fill = _filled(folder / "store", rows)
        yield f"store of {rows:,} rows: {store.bytes / 1e6:,.0f} MB"
        yield fill.line()
        figures = {name: Figure(name) for name in ("log", "full", "store")}
        writers = {name: LogWriter(folder / name, LogSettings()) for name in figures}
        for number in range(changes // batch):
            keys = draw.choice(rows, batch, replace=False)
            bare, sent = _changes(KEY, keys, number), _changes(FULL, keys, number)
            made: list[pa.RecordBatch] = []

            def stored(sent: pa.RecordBatch = sent, made: list[pa.RecordBatch] = made) -> None:
                made.append(complete(store, FULL, sent))
                store.committed(_append(writers["store"], FULL, made[0]))
                store.merge(lambda: False)

            def plain(bare: pa.RecordBatch = bare) -> None:
                _append(writers["log"], KEY, bare)

            def full(made: list[pa.RecordBatch] = made) -> None:
                _append(writers["full"], FULL, made[0])

            figures["store"].measure(batch, stored)
            figures["log"].measure(batch, plain)
            figures["full"].measure(batch, full)
        for writer in writers.values():
            writer.close()
        for figure in figures.values():
            yield figure.line()
        extra = replace(figures["store"], name="extra")
        extra.cpu -= figures["log"].cpu
        extra.wall -= figures["log"].wall
        yield f"{extra.line()} (goal: 3 us)"
        own = replace(figures["store"], name="of it ours")
        own.cpu -= figures["full"].cpu
        own.wall -= figures["full"].wall
        yield own.line()
    finally:
        shutil.rmtree(folder)


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the table")
    parser.add_argument("--changes", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=20_000, help="changes of one flush")
    args = parser.parse_args()
    for line in run(args.rows, args.changes, args.batch):
        print(line, flush=True)


if __name__ == "__main__":
    main()
