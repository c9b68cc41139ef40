"""Batches of Debezium's engine -> flushes: transactions, timestamps, numbers, positions.

Pure: no process, no clock. The same batches after the same frontier give the same flushes.

* Debezium sends transactions whole and one after the other, in the order of their commits, with a
  mark at the end of each. Rows of complete transactions go out together, a table at a time.
* The rows of a transaction that grows too large go to disk, and out in flushes without a frontier
  when it ends.
* A row or an event of the log is an *item*; items are counted through the log.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.events import Event, Flush, Frontier, Truncate
from changefeed.core.schema import BeforeImage, TableName, TableSchema
from changefeed.sources.debezium.carriers import column_of, fits, log_values
from changefeed.sources.debezium.connectors.base import Connector
from changefeed.sources.debezium.frames import (
    DoorBatch,
    Group,
    Offset,
    RecordMark,
    TableShape,
    in_halves,
)
from changefeed.sources.decoded.flushes import FlushBuilder, LogCommit, ShapeChange
from changefeed.sources.decoded.rows import CREATED, DELETED, DecodedRows
from changefeed.sources.decoded.stored import StoredRows, StoredTransaction
from changefeed.sources.decoded.superseded import collapse
from changefeed.sources.decoded.unsent import missing_column

#: Bytes of rows of one transaction that are kept in memory at most.
BATCH_BYTES = 16 << 20

Numbers = npt.NDArray[np.int64]
#: An event at a record of a batch; 1 where the record is nothing but the event, else 0.
_At = tuple[int, int, Callable[[Timestamp, int], Event]]


class _End(NamedTuple):
    """The end of a transaction, behind so many items."""

    items: int
    commit: LogCommit

    def without(self, items: int) -> _End:
        """The same, when the first items are gone."""
        return self._replace(items=self.items - items)


@dataclass(slots=True)
class _LogEvent:
    """An event between rows; ``number`` counts items."""

    number: int
    make: Callable[[Timestamp, int], Event]


@dataclass(slots=True)
class _PendingItems:
    """Items of which the transaction's end has not come, or that wait to be given out."""

    items: int = 0
    rows: list[StoredRows] = field(default_factory=list)
    unsent: list[dict[int, npt.NDArray[np.bool_]]] = field(default_factory=list)
    events: list[_LogEvent] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        return sum(
            column.nbytes for part in self.rows for column in (*part.rows.after, *part.rows.before)
        )


class Assembler:
    """The state of one stream between the engine's batches and its flushes."""

    def __init__(
        self,
        start: Frontier,
        connector: Connector,
        source: str,
        shapes: Shapes,
        spool: Path,
        *,
        batch_bytes: int = BATCH_BYTES,
    ) -> None:
        self._connector = connector
        self._source = source
        self._shapes = shapes
        self._spool = spool
        self._batch_bytes = batch_bytes
        #: Transactions at or below this position were read before.
        self._read_upto = "" if connector.resumes_by_offset else start.position
        self._skipped = 0
        self._out = FlushBuilder(start)
        self._position = start.position
        self._history = start.history
        self._tables: frozenset[tuple[str, str]] = frozenset()
        self._frame_shapes: dict[int, TableShape] = {}
        self._schemas: dict[int, TableSchema] = {}
        #: The shape in which a table came last.
        self._present: dict[TableName, int] = {}
        self._pending = _PendingItems()
        self._stored: StoredTransaction | None = None
        self._disk_events: list[_LogEvent] = []
        self._in_transaction = False
        self._last_row: Mapping[str, Any] | None = None

    @property
    def frontier(self) -> Frontier:
        """What was read completely so far."""
        return Frontier(self._out.last, self._position, self._out.seq, self._history)

    @property
    def idle(self) -> bool:
        """No transaction is half read."""
        return not self._in_transaction and not self._pending.items and self._stored is None

    @property
    def shapes(self) -> Mapping[int, TableShape]:
        """The shapes that came in this run of the engine."""
        return self._frame_shapes

    def watch(self, tables: frozenset[tuple[str, str]]) -> None:
        """The tables of which rows are wanted from here on."""
        if tables != self._tables:
            self._tables = tables
            self._present.clear()

    def shape(self, shape: TableShape) -> None:
        """A table in a shape that comes for the first time in this run of the engine."""
        self._frame_shapes[shape.number] = shape

    def caught_up(self, now_ns: int) -> None:
        """The source had nothing more to send at that time."""
        self._out.pass_time(now_ns)

    # ----------------------------------------------------------------------------- batches

    def take(self, batch: DoorBatch) -> Iterator[Flush]:
        """What a batch completes."""
        found: list[_At] = []
        wanted = []
        for group in batch.groups:
            if self._name(group.table) is not None:
                schema = self._schema(group.table, found, int(group.at[0]))
                keyless = schema.keyless
                wanted.append(in_halves(group) if keyless else (group, np.zeros(1, np.int64)))
        numbers, events = self._numbered(batch, [group for group, _ in wanted], found)
        ends: list[_End] = []
        for mark in batch.marks:
            after = mark.at + (mark.kind == "truncate")
            self._mark(mark, int(numbers[after]), ends)
        first = self._pending.items
        for group, half in wanted:
            part, unsent = self._rows(group, numbers[group.at] + half)
            self._pending.rows.append(part)
            self._pending.unsent.append(unsent)
        self._pending.events += events
        self._pending.items = max(first, int(numbers[-1]))
        if self._skipped:
            self._drop(self._skipped)
            ends = [end.without(self._skipped) for end in ends]
            self._skipped = 0
        if ends and self._stored is not None:
            large = ends.pop(0)
            yield from self._give_out_stored(self._stored, large)
            ends = [end.without(large.items) for end in ends]
        if ends:
            self._give_out(ends)
        yield from self._out.flush(self.frontier)
        if self._pending.bytes >= self._batch_bytes:
            self._store()

    def _numbered(
        self, batch: DoorBatch, wanted: list[Group], found: list[_At]
    ) -> tuple[Numbers, list[_LogEvent]]:
        """For each record, how many items there are before it, counted from the open
        transaction's first; and the events among the records."""
        counted = np.zeros(batch.records, np.int64)
        for mark in batch.marks:
            name = self._name(mark.table) if mark.kind == "truncate" else None
            if name is not None:
                schema = self._schema(mark.table, found, mark.at)
                counted[mark.at] += 1
                found.append((mark.at, 1, partial(Truncate, schema)))
        for group in wanted:
            np.add.at(counted, group.at, 1)
        for at, kind, _ in found:
            counted[at] += 1 - kind
        before = np.zeros(batch.records + 1, np.int64)
        np.cumsum(counted, out=before[1:])
        before += self._pending.items
        # An event at a record with a row comes before the row.
        events, shifts = [], dict[int, int]()
        for at, _, make in sorted(found, key=lambda each: each[:2]):
            events.append(_LogEvent(int(before[at]) + shifts.get(at, 0), make))
            shifts[at] = shifts.get(at, 0) + 1
        for group in wanted:
            for at, shift in shifts.items():
                if at in group.at:
                    before[at] += shift
        return before, events

    def _schema(self, table: int, found: list[_At], at: int) -> TableSchema:
        name = self._name(table)
        if name is None:
            raise ChangefeedError(
                Code.UNEXPECTED_MESSAGE, "a row of a table that was not described"
            )
        if self._present.get(name) != table:
            known, change = self._shapes.resolve(name, self._frame_shapes[table])
            if change is not None:
                found.append((at, 0, change.event))
            self._schemas[table], self._present[name] = known, table
        return self._schemas[table]

    def _name(self, table: int) -> TableName | None:
        """The full name of a table that is watched."""
        if table < 0:
            return None
        schema, name = self._connector.table_of(self._frame_shapes[table].source)
        return TableName(self._source, schema, name) if (schema, name) in self._tables else None

    def _mark(
        self,
        mark: RecordMark,
        items: int,
        ends: list[_End],
    ) -> None:
        self._last_row = mark.source or self._last_row
        if mark.kind == "begin":
            if self._in_transaction:
                self._end(mark, items, ends)
            self._in_transaction = True
        elif mark.kind == "end" or (mark.kind == "truncate" and self._connector.truncate_commits):
            self._end(mark, items, ends)
            self._in_transaction = False
        elif mark.kind == "beat":
            position = self._connector.position(mark.offset[1])
            if self._connector.ends_by_position and position > self._position:
                self._in_transaction = False
            if not self._in_transaction:
                self._end(mark, items, ends)
                self._move(position, mark.offset)

    def _move(self, position: str, offset: Offset) -> None:
        self._position = max(self._position, position)
        self._history = json.dumps(offset, separators=(",", ":"))

    def _end(
        self,
        mark: RecordMark,
        items: int,
        ends: list[_End],
    ) -> None:
        """A transaction is complete: the items before ``items`` that no earlier one has."""
        source = self._last_row or {}
        if source:
            position = self._connector.commit_position(source, mark.offset[1])
            if position and position <= self._read_upto:
                self._skipped = items
                return
            self._move(position, mark.offset)
        before = ends[-1].items if ends else self._skipped
        on_disk = self._stored is not None and self._stored.rows > 0
        if items <= before and not (on_disk and not ends):
            return
        commit_us = _commit_us(source)
        self._out.reach(commit_us)
        xid = self._connector.transaction_id(source)
        ends.append(_End(items, LogCommit(self._out.last, xid, commit_us, self._position)))

    # ------------------------------------------------------------------------------- rows

    def _rows(
        self, group: Group, numbers: Numbers
    ) -> tuple[StoredRows, dict[int, npt.NDArray[np.bool_]]]:
        schema = self._schemas[group.table]
        shape = self._frame_shapes[group.table]
        pairs = list(zip(shape.columns, schema.columns, strict=True))
        after = [
            log_values(carrier, column, values)
            for (carrier, column), values in zip(pairs, group.after, strict=True)
        ]
        old = [
            log_values(carrier, column, values)
            for (carrier, column), values in zip(pairs, group.before, strict=True)
        ]
        unsent: dict[int, npt.NDArray[np.bool_]] = {}
        for column, row in group.unsent:
            unsent.setdefault(column, np.zeros(len(numbers), np.bool_))[row] = True
        if schema.before_image is BeforeImage.FULL:
            for column, where in unsent.items():
                # The old row has the value that Debezium left out of the new one.
                chosen = pa.array(where & group.has_before)
                after[column] = pc.if_else(chosen, old[column], after[column])
                where &= ~group.has_before
            unsent = {column: where for column, where in unsent.items() if where.any()}
        key_is_old = pa.array(group.has_before)
        created = pa.array(group.op == CREATED)
        for place in schema.key:
            # An update may come without an old row where the key stayed.
            filled = pc.if_else(key_is_old, old[place], after[place])
            old[place] = pc.if_else(created, None, filled)
        deleted = pa.array(group.op == DELETED)
        key = [pc.if_else(deleted, old[place], after[place]) for place in schema.key]
        rows = DecodedRows(
            np.arange(len(numbers)),
            group.op,
            after,
            [old[place] for place in schema.before_ordinals],
            key,
            unsent,
        )
        return StoredRows(schema, rows, numbers.astype(np.int64)), unsent

    def _store(self) -> None:
        pending, self._pending = self._pending, _PendingItems()
        if any(pending.unsent):
            raise ChangefeedError(
                Code.UNEXPECTED_MESSAGE,
                "a large transaction has rows of which Debezium does not know all values",
                hint="let the database log whole rows (REPLICA IDENTITY FULL, supplemental logging"
                " of all columns); then RESCAN the feeds of this source.",
            )
        if self._stored is None:
            self._stored = StoredTransaction(self._spool / "transaction")
        stored = self._stored
        for part in pending.rows:
            part.number[:] += stored.rows
        for each in pending.events:
            each.number += stored.rows
        self._disk_events += pending.events
        stored.append(pending.rows, pending.items)

    def _give_out_stored(self, stored: StoredTransaction, end: _End) -> Iterator[Flush]:
        """The large transaction: flushes without a frontier; its last rows and its end go out with
        what follows."""
        tail = self._split(end.items)
        self._store()
        events = self._disk_events
        shift = np.array(sorted(each.number for each in events), np.int64)
        for each in events:
            self._out.add(each.make(end.commit.at, self._out.seq + each.number + 1))
        for replayed in stored.replay():
            yield from self._out.flush(None)
            for part in replayed:
                self._out.rows(
                    part.schema,
                    part.rows.after,
                    part.marked,
                    [end.commit],
                    of=np.zeros(len(part.number), np.intp),
                    number=part.number,
                    ordinal=part.number - np.searchsorted(shift, part.number),
                )
        self._out.seq += stored.rows
        self._discard(stored)
        self._out.add_commit(end.commit)
        self._pending = tail

    def _discard(self, stored: StoredTransaction) -> None:
        stored.discard()
        self._stored, self._disk_events = None, []

    def _drop(self, items: int) -> None:
        """Forget the first items: they were read before."""
        self._pending = self._split(items)
        if self._stored is not None:
            self._discard(self._stored)

    def _split(self, items: int) -> _PendingItems:
        """Keep the items before ``items``; give back the others, counted from there."""
        whole, head, tail = (
            self._pending,
            _PendingItems(items),
            _PendingItems(self._pending.items - items),
        )
        for part, unsent in zip(whole.rows, whole.unsent, strict=True):
            cut = int(np.searchsorted(part.number, items))
            for side, rows, shift in (
                (head, slice(0, cut), 0),
                (tail, slice(cut, len(part.number)), items),
            ):
                if rows.stop > rows.start:
                    side.rows.append(_sliced(part, rows, shift))
                    side.unsent.append({c: where[rows] for c, where in unsent.items()})
        for each in whole.events:
            if each.number < items:
                head.events.append(each)
            else:
                tail.events.append(_LogEvent(each.number - items, each.make))
        self._pending = head
        return tail

    # ------------------------------------------------------------------------- giving out

    def _give_out(self, ends: list[_End]) -> None:
        """All complete transactions, of which ``ends`` are the ends."""
        tail = self._split(ends[-1].items)
        whole, self._pending = self._pending, tail
        commits = [end.commit for end in ends]
        bounds = np.array([end.items for end in ends], np.int64)
        firsts = np.concatenate([[0], bounds[:-1]])
        shift = np.array(sorted(each.number for each in whole.events), np.int64)
        given: list[tuple[int, Callable[[], None]]] = []
        for each in whole.events:
            commit = commits[int(np.searchsorted(bounds, each.number, "right"))]
            event = each.make(commit.at, self._out.seq + each.number + 1)
            given.append((each.number, partial(self._out.add, event)))
        for part, unsent in _together(whole):
            for cut in _cuts(part.number, [each.number for each in whole.events]):
                piece = part if cut == slice(0, len(part.number)) else _sliced(part, cut, 0)
                of = np.searchsorted(bounds, piece.number, "right")
                base = firsts[of]
                ordinal = piece.number - base
                ordinal -= np.searchsorted(shift, piece.number) - np.searchsorted(shift, base)
                masks = {column: where[cut] for column, where in unsent.items()}
                rows = partial(
                    self._out.rows,
                    piece.schema,
                    piece.rows.after,
                    collapse(piece.schema, piece.rows, of),
                    commits,
                    of=of,
                    number=piece.number,
                    ordinal=ordinal,
                    missing=missing_column(piece.schema, masks, len(of)),
                )
                given.append((int(piece.number[0]), rows))
        for _, give in sorted(given, key=lambda each: each[0]):
            give()
        self._out.seq += int(bounds[-1])
        for commit in commits:
            self._out.add_commit(commit)


# ------------------------------------------------------------------------------------ parts


def _commit_us(source: Mapping[str, Any]) -> int:
    for name, factor in (("ts_us", 1), ("ts_ms", 1000)):
        if isinstance(source.get(name), int):
            return int(source[name]) * factor
    return 0


def _sliced(part: StoredRows, rows: slice, shift: int) -> StoredRows:
    """Some rows of a part, counted from ``shift``."""
    count = rows.stop - rows.start

    def cut(columns: list[pa.Array]) -> list[pa.Array]:
        return [column.slice(rows.start, count) for column in columns]

    whole = part.rows
    kept = DecodedRows(
        np.arange(count), whole.op[rows], cut(whole.after), cut(whole.before), cut(whole.key)
    )
    return StoredRows(part.schema, kept, part.number[rows] - shift)


def _together(
    pending: _PendingItems,
) -> list[tuple[StoredRows, dict[int, npt.NDArray[np.bool_]]]]:
    """The parts of each table in one shape as one: writes of a key must be seen together."""
    found: dict[int, list[int]] = {}
    for place, part in enumerate(pending.rows):
        found.setdefault(id(part.schema), []).append(place)
    whole = []
    for places in found.values():
        parts = [pending.rows[place] for place in places]
        if len(parts) == 1:
            whole.append((parts[0], pending.unsent[places[0]]))
            continue
        number = np.concatenate([part.number for part in parts])
        unsent: dict[int, npt.NDArray[np.bool_]] = {}
        start = 0
        for place, part in zip(places, parts, strict=True):
            for column, where in pending.unsent[place].items():
                mask = unsent.setdefault(column, np.zeros(len(number), np.bool_))
                mask[start : start + len(part.number)] = where
            start += len(part.number)

        def joined(columns: list[list[pa.Array]]) -> list[pa.Array]:
            return [pa.concat_arrays(list(pieces)) for pieces in zip(*columns, strict=True)]

        rows = DecodedRows(
            np.arange(len(number)),
            np.concatenate([part.rows.op for part in parts]),
            joined([part.rows.after for part in parts]),
            joined([part.rows.before for part in parts]),
            joined([part.rows.key for part in parts]),
        )
        whole.append((StoredRows(parts[0].schema, rows, number), unsent))
    return whole


def _cuts(number: Numbers, events: list[int]) -> list[slice]:
    """The rows in stretches without an event of the log between them."""
    places = {int(np.searchsorted(number, event)) for event in events}
    bounds = [0, *sorted(place for place in places if 0 < place < len(number)), len(number)]
    return [slice(a, b) for a, b in pairwise(bounds)]


Describe = Callable[[TableName], TableSchema | None]


class Shapes:
    """The schemas of the tables of one stream."""

    def __init__(
        self,
        describe: Describe,
        intern: Callable[[TableSchema], TableSchema],
        latest: Describe,
        *,
        long_times: bool,
    ) -> None:
        self._describe = describe
        self._intern = intern
        self._latest = latest
        self._long_times = long_times
        self._known: dict[TableName, TableSchema] = {}

    def resolve(self, name: TableName, shape: TableShape) -> tuple[TableSchema, ShapeChange | None]:
        """The schema of rows of this shape, and what changed since the last ones."""
        known = self._known.get(name) or self._latest(name)
        if known is not None and self.fits(shape, known):
            self._known[name] = known
            return known, None
        described = self._describe(name)
        if described is not None and self.fits(shape, described):
            new = self._intern(described)
        else:
            new = self._intern(self._made(name, shape, known or described))
        self._known[name] = new
        if known is None or known.fingerprint() == new.fingerprint():
            return new, None
        return new, ShapeChange(known, new, _rewritten(known, new, shape))

    def fits(self, shape: TableShape, schema: TableSchema) -> bool:
        """Rows of the shape can be read as rows of the schema."""
        if len(shape.columns) != len(schema.columns):
            return False
        # Debezium sorts the key's columns by their place in the table, where we do not.
        key = set() if schema.keyless else {column.name for column in schema.key_columns}
        if key and shape.key and set(shape.key) != key:
            return False
        return all(
            fits(carrier, column, long_times=self._long_times)
            for carrier, column in zip(shape.columns, schema.columns, strict=True)
        )

    def _made(self, name: TableName, shape: TableShape, like: TableSchema | None) -> TableSchema:
        """A schema of what Debezium says; columns that are as in ``like`` stay as they are."""
        known = {} if like is None else {column.name: column for column in like.columns}
        columns = []
        for carrier in shape.columns:
            column = known.get(carrier.name)
            if column is None or not fits(carrier, column, long_times=self._long_times):
                column = column_of(carrier, long_times=self._long_times)
            columns.append(column)
        places = {column.name: place for place, column in enumerate(columns)}
        key = tuple(places[part] for part in shape.key if part in places)
        return TableSchema(
            table=name,
            columns=tuple(columns),
            key=key or tuple(range(len(columns))),
            before_image=BeforeImage.FULL if like is None else like.before_image,
            keyless=not key,
        )


def _rewritten(old: TableSchema, new: TableSchema, shape: TableShape) -> bool:
    """Rows that are there already read otherwise now, and were not sent."""
    before = {column.name: column for column in old.columns}
    for carrier, column in zip(shape.columns, new.columns, strict=True):
        known = before.get(column.name)
        if known is None:
            if carrier.default or not carrier.optional:
                return True
        elif known.logical != column.logical:
            return True
    return False
