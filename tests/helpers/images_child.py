"""A capture without a source, for tests of row images: random changes, completed and appended.

    python -m tests.helpers.images_child DIRECTORY STEPS

Step ``n`` is one transaction at position ``n``; after each the process prints its number. The
changes are those of :class:`tests.helpers.image_changes.Table`, the same in every life, so that the
table as of any step is known.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pyarrow as pa

from changefeed.core.clock import Timestamp
from changefeed.core.events import ChangeBatch, Event, Flush, Frontier
from changefeed.core.schema import BeforeImage, TableName, TableSchema
from changefeed.images.source_images import SourceImages
from changefeed.images.store import StoreSizes
from changefeed.log import LogSettings, LogWriter
from changefeed.sources.base import Source
from tests.helpers.image_changes import SCHEMA, Row, Table, batch

#: Everything a store does happens within a few steps.
SIZES = StoreSizes(memory=1_500, age=5_000)
SENT = replace(SCHEMA, before_image=BeforeImage.KEY, version=6)
KEYS = 12


@dataclass
class World:
    """The table, and how often it was changed."""

    table: Table = field(default_factory=lambda: Table(5, keys=KEYS))
    step: int = 0
    seq: int = 1

    def next(self, schema: TableSchema) -> tuple[Flush, list[dict[str, object]]]:
        """The next transaction as it is sent, and its true rows."""
        self.step += 1
        sent = self.table.transaction(1 + self.step % 7)
        rows, expected = batch(schema, sent, self.seq)
        self.seq += len(sent)
        events: tuple[Event, ...] = (ChangeBatch(schema, rows),)
        frontier = Frontier(self.table.at, f"{self.step:012}", self.seq - 1)
        return Flush(events, frontier), expected

    @classmethod
    def at(cls, step: int) -> World:
        """The table after a step."""
        world = cls()
        while world.step < step:
            world.next(SENT)
        return world


@dataclass
class FakeSource:
    """What a scan shows: the table as of the end of the log."""

    world: World

    def describe(self, schema: str | None, name: str) -> TableSchema:
        return replace(SENT, version=0)

    @contextmanager
    def snapshot(self, tables: Sequence[TableSchema]) -> Iterator[FakeSource]:
        yield self

    @property
    def position(self) -> str:
        return f"{self.world.step:012}"

    def parts(self, table: TableSchema) -> Sequence[FakeSource]:
        return [self]

    def read(self) -> Iterator[pa.RecordBatch]:
        rows: list[Row] = list(self.world.table.rows.values())
        yield pa.RecordBatch.from_arrays(
            [
                pa.array([row[i] for row in rows], column.arrow)
                for i, column in enumerate(SCHEMA.columns)
            ],
            names=[f"a{i}" for i in range(len(SCHEMA.columns))],
        )


@dataclass
class Life:
    """From a start of the process to its end."""

    folder: Path
    wanted: dict[TableName, int | None] = field(default_factory=lambda: {SCHEMA.table: None})

    def __post_init__(self) -> None:
        self.writer = LogWriter(self.folder / "log", LogSettings())
        if self.writer.frontier is None:
            self.writer.append(Flush((), Frontier(Timestamp(1_000), f"{0:012}")))
        assert self.writer.frontier is not None
        self.world = World.at(int(self.writer.frontier.position))
        self.images = SourceImages(
            self.folder / "images",
            self.folder / "log",
            cast(Source, FakeSource(self.world)),
            lambda: self.wanted,
            frontier=lambda: self.writer.frontier,
            captured=lambda: {SCHEMA.table: Timestamp.ZERO},
            sizes=SIZES,
        )
        self.images.start(self.writer.frontier)

    @property
    def whole(self) -> bool:
        """Rows go into the log whole."""
        return self.images.shape(SENT).before_image is BeforeImage.FULL

    def step(self) -> None:
        """One transaction; what the store makes of it is true."""
        schema = SCHEMA if self.whole else SENT
        flush, expected = self.world.next(schema)
        done = self.images.complete(flush)
        if schema.before_image is BeforeImage.FULL:
            check(done, expected)
        self.writer.append(done)
        assert done.frontier is not None
        self.images.committed(done.frontier)
        self.images.look()
        if self.images.news:
            self.images.start(done.frontier)

    def close(self) -> None:
        self.images.stop()
        self.writer.close()


def check(flush: Flush, expected: list[dict[str, object]]) -> None:
    """The rows are whole and true."""
    (event,) = flush.events
    assert isinstance(event, ChangeBatch)
    rows: list[dict[str, Any]] = event.rows.to_pylist()
    assert [{name: row[name] for name in expected[0]} for row in rows] == expected
    assert all(row["missing"] is None for row in rows)


def run(folder: Path, steps: int, *, tell: bool = False) -> bool:
    """Steps up to a number; whether rows were whole at the end."""
    life = Life(folder)
    while life.world.step < steps:
        life.step()
        if tell:
            print(life.world.step, flush=True)
    whole = life.whole
    life.close()
    return whole


if __name__ == "__main__":
    run(Path(sys.argv[1]), int(sys.argv[2]), tell=True)
