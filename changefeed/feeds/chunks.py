"""The change log cut into what a feed delivers in one go.

    slice of the log -> per table, in log order -> chunks of bounded size, and marks

A :class:`Chunk` is rows of one table and schema version; a :class:`MarkItem` is a TRUNCATE or
schema change between two of them; a :class:`Turn` says that everything up to a timestamp was
handed out. Chunks are lazy: only what is about to be encoded is in memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from changefeed.capture.log_access import LogAccess
from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.events import SchemaChange, Truncate
from changefeed.core.schema import TableName, TableSchema
from changefeed.core.table_errors import TableError
from changefeed.log import Piece, Slice

#: Rows of one slice. A transaction larger than this is one slice, in several chunks.
SLICE_ROWS = 200_000
SLICE_BYTES = 48 << 20
#: Rows of one chunk: what is encoded and written in one go.
CHUNK_ROWS = 100_000


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows of one table and version in order.

    All rows are above ``after``. ``after``, ``upto`` and ``number`` (its place among the
    table's chunks of the slice) name it: two feeds that are equally far meet the same chunks.
    Rows that a TRUNCATE of their own transaction removed (``removed``) were never seen by
    anybody, and are left out.
    """

    schema: TableSchema
    pieces: tuple[Piece, ...]
    after: Timestamp
    upto: Timestamp
    number: int = 0
    removed: tuple[Truncate, ...] = ()

    @property
    def rows(self) -> int:
        """How many rows."""
        return sum(p.rows for p in self.pieces)

    @property
    def clean(self) -> frozenset[str]:
        """Columns in which no value holds a character that JSON escapes."""
        return frozenset.intersection(*(p.clean for p in self.pieces))

    def load(self) -> pa.Table:
        """The rows in memory."""
        tables = [p.load() for p in self.pieces]
        table = tables[0] if len(tables) == 1 else pa.concat_tables(tables)
        for event in self.removed:
            same = pc.and_(
                pc.equal(table["wall"], event.at.wall), pc.equal(table["logical"], event.at.logical)
            )
            table = table.filter(pc.invert(pc.and_(same, pc.less(table["seq"], event.seq))))
        return table


@dataclass(frozen=True, slots=True)
class MarkItem:
    """Something that happened to a whole table, after the chunks before it.

    Everything up to ``upto`` was handed out of the tables ``complete``, and of the mark's own
    table everything before the mark.
    """

    event: Truncate | SchemaChange
    complete: tuple[TableName, ...] = ()
    upto: Timestamp = Timestamp.ZERO

    @property
    def table(self) -> TableName:
        """The table it happened to, by the name that it had before."""
        event = self.event
        return event.schema.table if isinstance(event, Truncate) else event.old.table

    @property
    def renamed(self) -> bool:
        """The rows after it come under another name: they belong to another target."""
        event = self.event
        return isinstance(event, SchemaChange) and event.old.table != event.new.table

    @property
    def shape(self) -> TableSchema:
        """The table's shape after it."""
        return self.event.schema if isinstance(self.event, Truncate) else self.event.new


@dataclass(frozen=True, slots=True)
class Turn:
    """Everything of ``tables`` up to ``upto`` was handed out."""

    tables: tuple[TableName, ...]
    upto: Timestamp


Item = Chunk | MarkItem | Turn


def items(
    log: LogAccess,
    bounds: Mapping[TableName, Timestamp],
    upto: Timestamp,
    max_bytes: int = SLICE_BYTES,
) -> Iterator[Item]:
    """What the feed has to deliver, from its tables' ``bounds`` (exclusive) to ``upto``.

    Raises:
        TableError: the log does not go back to this table's bound, but to that of others.
        ChangefeedError: CF3002 it goes back to no table's, CF3001.
    """
    names = tuple(bounds)
    at = dict(bounds)
    while True:
        try:
            found = log.slice(at, upto, max_rows=SLICE_ROWS, max_bytes=max_bytes)
        except ChangefeedError as error:
            raise _blamed(error, at, log.oldest) from error
        yield from _cut(found, at)
        yield Turn(names, found.upto)
        at = {name: max(bound, found.upto) for name, bound in at.items()}
        if found.upto >= upto:
            return


def _blamed(
    error: ChangefeedError, at: Mapping[TableName, Timestamp], oldest: Timestamp
) -> Exception:
    """A table that was away too long must not take those with it that were not."""
    behind = [name for name, bound in at.items() if bound < oldest]
    if error.code is not Code.POSITION_TOO_OLD or not behind or len(behind) == len(at):
        return error
    return TableError(behind[0], error)


def _cut(found: Slice, bounds: Mapping[TableName, Timestamp]) -> Iterator[Item]:
    """The events of a slice (table by table, in log order), neighbours joined to chunks."""
    numbers: Counter[TableName] = Counter()
    after = dict(bounds)
    truncations = [mark for mark in found.marks if isinstance(mark, Truncate)]
    run: list[Piece] = []
    begun: dict[TableName, None] = {}

    def chunk() -> Chunk:
        table = run[0].schema.table
        numbers[table] += 1
        return Chunk(
            run[0].schema,
            tuple(run),
            after[table],
            found.upto,
            numbers[table],
            tuple(t for t in truncations if _removes(t, run)),
        )

    for event in found.events:
        if run and not (isinstance(event, Piece) and _joins(run, event)):
            yield chunk()
            run = []
        if isinstance(event, Piece):
            begun[event.schema.table] = None
            run.append(event)
        else:
            mark = MarkItem(event)
            begun[mark.table] = None
            if isinstance(event, Truncate):
                # What follows must sort behind the truncation in sinks that order by instant.
                bound = after[mark.table]
                after[mark.table] = max(event.at.previous(), bound)
            complete = tuple(table for table in begun if table != mark.table)
            yield replace(mark, complete=complete, upto=found.upto)
    if run:
        yield chunk()


def _removes(event: Truncate, run: list[Piece]) -> bool:
    """The truncation is of the run's table and may be of a transaction that wrote its rows."""
    same = event.schema.table == run[0].schema.table
    return same and run[-1].last >= event.at and run[0].first_seq < event.seq


def _joins(run: list[Piece], piece: Piece) -> bool:
    same = piece.schema == run[0].schema
    return same and sum(p.rows for p in run) + piece.rows <= CHUNK_ROWS
