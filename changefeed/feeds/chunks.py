"""Divides the change log into the units that a feed delivers.

    slice of the log -> per table, in log order -> chunks of bounded size, and control events

A :class:`Chunk` is rows of one table and schema version; a :class:`ControlItem` is a TRUNCATE, a
schema change or a statement of DDL between two of them; a :class:`Watermark` says that everything
up to a timestamp was returned. Chunks are lazy: only the rows that are encoded next are in memory.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from changefeed.capture.growing_log import LogAccess
from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.events import Ddl, SchemaChange, Truncate
from changefeed.core.schema import TableName, TableSchema
from changefeed.core.sizes import Sizes
from changefeed.core.table_errors import TableError
from changefeed.log import LogPiece, Slice
from changefeed.options import MAX_MEMORY, Options

#: How many bytes of the log are read at once, unless a feed has little memory.
SLICE_BYTES = 48 << 20


def slice_bytes(options: Options, lanes: int = 1) -> int:
    """How many bytes of the log a feed, or each of its lanes, reads at once: a slice is in memory
    about four times, as rows and as messages, because one is encoded while another is written.
    """
    budget = options[MAX_MEMORY]
    return SLICE_BYTES if budget is None else max(1, min(SLICE_BYTES, budget // (8 * lanes)))


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows of one table and version in order.

    All rows are above ``after``. ``after``, ``upto`` and ``number`` (its place among the table's
    chunks of the slice) identify it: two feeds with the same progress get the same chunks. Rows
    that a TRUNCATE in their own transaction removed (``removed``) were never visible to other
    transactions, and are left out. ``unsent_beside``: a transaction has rows here and in another
    chunk, where some may lack values that the source did not send and that the rows here know.
    """

    schema: TableSchema
    pieces: tuple[LogPiece, ...]
    after: Timestamp
    upto: Timestamp
    number: int
    removed: tuple[Truncate, ...]
    unsent_beside: bool

    @property
    def rows(self) -> int:
        return sum(p.rows for p in self.pieces)

    @property
    def clean(self) -> frozenset[str]:
        """Columns whose values need no escape in JSON."""
        return frozenset.intersection(*(p.clean for p in self.pieces))

    def load(self) -> pa.Table:
        """Read the rows from the log into memory."""
        table = pa.concat_tables(p.load() for p in self.pieces)
        for event in self.removed:
            same = pc.and_(
                pc.equal(table["wall"], event.at.wall), pc.equal(table["logical"], event.at.logical)
            )
            table = table.filter(pc.invert(pc.and_(same, pc.less(table["seq"], event.seq))))
        return table


@dataclass(frozen=True, slots=True)
class ControlItem:
    """An event of a whole table, after the chunks before it.

    Of the tables ``complete``, everything up to ``upto`` was returned before; of the event's own
    table, everything before the event.
    """

    event: Truncate | SchemaChange | Ddl
    complete: tuple[TableName, ...] = ()
    upto: Timestamp = Timestamp.ZERO

    @property
    def table(self) -> TableName:
        """The table of the event, by its name before the event."""
        event = self.event
        if isinstance(event, Ddl):
            return event.table
        return event.old.table if isinstance(event, SchemaChange) else event.schema.table

    @property
    def renamed(self) -> bool:
        """Whether later rows have another table name, and so belong to another target."""
        event = self.event
        return isinstance(event, SchemaChange) and event.old.table != event.new.table


@dataclass(frozen=True, slots=True)
class Watermark:
    """Says that everything of ``tables`` up to ``upto`` was returned."""

    tables: tuple[TableName, ...]
    upto: Timestamp


@dataclass(frozen=True, slots=True)
class SliceStart:
    """The chunks of every table that is counted, from where a slice begins (exclusive) to
    ``upto``; the items that follow are among them."""

    chunks: tuple[Chunk, ...]
    after: Timestamp
    upto: Timestamp


Item = Chunk | ControlItem | Watermark | SliceStart


def items(
    log: LogAccess,
    bounds: Mapping[TableName, Timestamp],
    upto: Timestamp,
    max_bytes: int = SLICE_BYTES,
    counted: Mapping[TableName, Timestamp] | None = None,
    sizes: Sizes | None = None,
) -> Iterator[Item]:
    """What the feed has to deliver, from its tables' ``bounds`` (exclusive) to ``upto``.

    ``counted``: each slice begins with a :class:`SliceStart` that has these tables too, each above
    its own timestamp at most.

    Raises:
        TableError: the log no longer reaches back to this table's bound, but to that of others.
        ChangefeedError: CF3002, it reaches back to no table's bound; CF3001.
    """
    sizes = sizes or Sizes()
    names = tuple(bounds)
    at = dict(bounds)
    while True:
        try:
            end = upto
            if counted is not None:
                wide = _wide(at, counted)
                whole = log.slice(wide, upto, max_rows=sizes.slice_rows, max_bytes=max_bytes)
                chunks = tuple(
                    c for c in _cut(whole, wide, sizes.chunk_rows) if isinstance(c, Chunk)
                )
                yield SliceStart(chunks, min(at.values()), whole.upto)
                end = whole.upto
            found = log.slice(at, end, max_rows=sizes.slice_rows, max_bytes=max_bytes)
        except ChangefeedError as error:
            raise _blamed(error, at, log.oldest) from error
        yield from _cut(found, at, sizes.chunk_rows)
        yield Watermark(names, found.upto)
        at = {name: max(bound, found.upto) for name, bound in at.items()}
        if found.upto >= upto:
            return


def _wide(
    at: Mapping[TableName, Timestamp], counted: Mapping[TableName, Timestamp]
) -> dict[TableName, Timestamp]:
    """Where the rows of every table begin that share a transaction with one above ``at``."""
    least = min(at.values())
    wide = {name: max(least, since) for name, since in counted.items()}
    return wide | {name: min(bound, wide.get(name, bound)) for name, bound in at.items()}


def _blamed(
    error: ChangefeedError, at: Mapping[TableName, Timestamp], oldest: Timestamp
) -> Exception:
    """The error of a table whose bound the log no longer has: only such a table may fail."""
    behind = [name for name, bound in at.items() if bound < oldest]
    if error.code is not Code.POSITION_TOO_OLD or not behind or len(behind) == len(at):
        return error
    return TableError(behind[0], error)


def _cut(found: Slice, bounds: Mapping[TableName, Timestamp], chunk_rows: int) -> Iterator[Item]:
    """The events of a slice (table by table, in log order), neighbours joined to chunks of at most
    ``chunk_rows`` rows, or one piece of the log."""
    numbers: Counter[TableName] = Counter()
    after = dict(bounds)
    truncations = [control for control in found.control_events if isinstance(control, Truncate)]
    unsent = _unsent(found)
    run: list[LogPiece] = []
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
            _unsent_beside(run, unsent[table]),
        )

    for event in found.events:
        if run and not (isinstance(event, LogPiece) and _joins(run, event, chunk_rows)):
            yield chunk()
            run = []
        if isinstance(event, LogPiece):
            begun[event.schema.table] = None
            run.append(event)
        else:
            control = ControlItem(event)
            begun[control.table] = None
            if isinstance(event, Truncate):
                # What follows must sort after the truncation in sinks that order by time.
                bound = after[control.table]
                after[control.table] = max(event.at.previous(), bound)
            complete = tuple(table for table in begun if table != control.table)
            yield replace(control, complete=complete, upto=found.upto)
    if run:
        yield chunk()


def _unsent(found: Slice) -> dict[TableName, list[LogPiece]]:
    pieces: dict[TableName, list[LogPiece]] = defaultdict(list)
    for event in found.events:
        if isinstance(event, LogPiece) and event.has_unsent:
            pieces[event.schema.table].append(event)
    return pieces


def _unsent_beside(run: Sequence[LogPiece], unsent: Sequence[LogPiece]) -> bool:
    """Whether one of the pieces ``unsent`` before or after the run has rows of a transaction of the
    run's. Only the first and the last transaction of a run can be cut."""
    before = bisect_left(unsent, run[0].first_seq, key=lambda piece: piece.first_seq)
    after = bisect_right(unsent, run[-1].last_seq, key=lambda piece: piece.first_seq)
    begun = before > 0 and unsent[before - 1].last == run[0].first
    return begun or (after < len(unsent) and unsent[after].first == run[-1].last)


def _removes(event: Truncate, run: list[LogPiece]) -> bool:
    same = event.schema.table == run[0].schema.table
    return same and run[-1].last >= event.at and run[0].first_seq < event.seq


def _joins(run: list[LogPiece], piece: LogPiece, chunk_rows: int) -> bool:
    same = piece.schema == run[0].schema
    return same and sum(p.rows for p in run) + piece.rows <= chunk_rows
