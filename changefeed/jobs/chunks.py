"""The change log cut into what a feed delivers in one go.

    slice of the log -> per table, in log order -> chunks of bounded size, and marks

A :class:`Chunk` is rows of one table and schema version; a :class:`MarkItem` is a TRUNCATE or
schema change between two of them; a :class:`Turn` says that everything up to a timestamp was
handed out. Chunks are lazy: only what is about to be encoded is in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from changefeed.clock import Timestamp
from changefeed.events import SchemaChange, Truncate
from changefeed.jobs.keeper import SourceKeeper
from changefeed.log import Piece, Slice
from changefeed.schema import TableName, TableSchema

#: Rows of one slice. A transaction larger than this is one slice, in several chunks.
SLICE_ROWS = 200_000
SLICE_BYTES = 48 << 20
#: Rows of one chunk: what is encoded and written in one go.
CHUNK_ROWS = 100_000


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows of one table and version in order: pieces of the log, or rows already loaded."""

    schema: TableSchema
    pieces: tuple[Piece, ...]
    after: Timestamp
    upto: Timestamp
    #: place of the chunk among those of its table in the slice
    number: int = 0
    #: cut by sequence number, where a mark divides a piece: [low, high)
    low: int | None = None
    high: int | None = None

    @property
    def rows(self) -> int:
        """How many rows at the most."""
        return sum(p.rows for p in self.pieces)

    @property
    def bytes(self) -> int:
        """About how large they are in the log."""
        return sum(p.bytes for p in self.pieces)

    def load(self) -> pa.Table:
        """The rows in memory."""
        tables = [p.load() for p in self.pieces]
        table = tables[0] if len(tables) == 1 else pa.concat_tables(tables)
        if self.low is not None:
            table = table.filter(pc.greater_equal(table["seq"], self.low))
        if self.high is not None:
            table = table.filter(pc.less(table["seq"], self.high))
        return table


@dataclass(frozen=True, slots=True)
class MarkItem:
    """Something that happened to a whole table, after the chunks before it."""

    event: Truncate | SchemaChange


@dataclass(frozen=True, slots=True)
class Turn:
    """Everything of ``tables`` up to ``upto`` was handed out."""

    tables: tuple[TableName, ...]
    upto: Timestamp


Item = Chunk | MarkItem | Turn


def items(
    keeper: SourceKeeper, bounds: Mapping[TableName, Timestamp], upto: Timestamp
) -> Iterator[Item]:
    """What the feed has to deliver, from its tables' ``bounds`` (exclusive) to ``upto``."""
    names = tuple(bounds)
    at = dict(bounds)
    while True:
        with keeper.lock:
            found = keeper.reader.slice(
                at, upto, max_rows=SLICE_ROWS, max_bytes=SLICE_BYTES
            )
        yield from _cut(found, at)
        yield Turn(names, found.upto)
        at = {name: max(bound, found.upto) for name, bound in at.items()}
        if found.upto >= upto:
            return


def _cut(found: Slice, bounds: Mapping[TableName, Timestamp]) -> Iterator[Item]:
    pieces: dict[TableName, list[Piece]] = {}
    for piece in found.pieces:
        pieces.setdefault(piece.schema.table, []).append(piece)
    marks: dict[TableName, list[Truncate | SchemaChange]] = {}
    for mark in found.marks:
        marks.setdefault(_table_of(mark), []).append(mark)
    for table in sorted({*pieces, *marks}):
        yield from _table_items(
            pieces.get(table, []), marks.get(table, []), bounds[table], found.upto
        )


def _table_of(mark: Truncate | SchemaChange) -> TableName:
    return mark.new.table if isinstance(mark, SchemaChange) else mark.schema.table


def _table_items(
    pieces: list[Piece],
    marks: list[Truncate | SchemaChange],
    after: Timestamp,
    upto: Timestamp,
) -> Iterator[Item]:
    """Chunks and marks of one table in the order of their sequence numbers."""
    low: int | None = None
    number = 0
    for mark in [*sorted(marks, key=lambda m: m.seq), None]:
        high = mark.seq if mark is not None else None
        for run in _runs(_between(pieces, low, high)):
            cut_low = low if low is not None and run[0].first_seq < low else None
            cut_high = high if high is not None and run[-1].last_seq >= high else None
            yield Chunk(
                run[0].schema, tuple(run), after, upto, number, low=cut_low, high=cut_high
            )
            number += 1
        if mark is not None:
            yield MarkItem(mark)
            low = mark.seq
    return


def _between(pieces: list[Piece], low: int | None, high: int | None) -> list[Piece]:
    return [
        p
        for p in pieces
        if (low is None or p.last_seq >= low) and (high is None or p.first_seq < high)
    ]


def _runs(pieces: list[Piece]) -> Iterator[list[Piece]]:
    """Neighbours of one schema version, at most :data:`CHUNK_ROWS` together."""
    run: list[Piece] = []
    for piece in pieces:
        full = sum(p.rows for p in run) + piece.rows > CHUNK_ROWS
        if run and (full or piece.schema != run[0].schema):
            yield run
            run = []
        run.append(piece)
    if run:
        yield run
