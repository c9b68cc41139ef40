"""Scanned messages -> flushes: transactions, timestamps, numbers, positions.

Pure: no socket, no clock. The same bytes after the same frontier give the same flushes, so a
crash between receiving and making durable changes nothing.

* A commit gets ``last.at_least(commit time)``; transactions come in commit order.
* Its position is the end of its commit record; a restart goes on from there.
* Rows of a transaction too large for one buffer go out in flushes without a frontier.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError
from changefeed.core.events import (
    ChangeBatch,
    Commits,
    Event,
    Flush,
    Frontier,
    SchemaChange,
    Truncate,
)
from changefeed.core.schema import TableSchema
from changefeed.sources.postgres import pgoutput
from changefeed.sources.postgres.columns import Block, Decoded, decode_columns
from changefeed.sources.postgres.lsn import lsn_of, position_of
from changefeed.sources.postgres.pgoutput import Cut, Inbox, Mark
from changefeed.sources.postgres.relations import Relations
from changefeed.sources.postgres.rows import decode_rows
from changefeed.sources.postgres.spool import Spool
from changefeed.sources.postgres.superseded import last_column, mark_superseded
from changefeed.sources.postgres.values import Mask, Places

#: Below this many rows of a table in a block the decoder of single rows is cheaper. Measured:
#: five columns break even at 45 rows, fifteen with old rows at 60.
SMALL = 50
#: Two keepalives this far apart at the same place: the server waits for new log.
STANDS_STILL_NS = 200_000_000
#: Samples of the server's log end that are kept until they are reached.
SAMPLES = 8


class Found(Protocol):
    """What a lookup answers: see :class:`changefeed.sources.postgres.lookup.Found`."""

    @property
    def present(self) -> pa.BooleanArray:
        """Whether there is such a row now."""
        ...

    @property
    def values(self) -> Sequence[pa.Array | None]:
        """Values by column asked for; None for a column that cannot be read any more."""
        ...


#: Present values of columns (positions) of rows given by their key, an array a key column.
Lookup = Callable[[TableSchema, Sequence[int], Sequence[pa.Array]], Found]


@dataclass(slots=True)
class _Transaction:
    """A transaction being read.

    ``previous`` is the timestamp before it, ``rows`` counts what was given out so far.
    """

    xid: int
    at: Timestamp
    previous: Timestamp
    commit_us: int
    skip: bool = False
    rows: int = 0
    touched: bool = False


@dataclass(slots=True)
class _Commits:
    wall: list[int] = field(default_factory=list)
    logical: list[int] = field(default_factory=list)
    position: list[str] = field(default_factory=list)
    xid: list[int] = field(default_factory=list)

    def add(self, transaction: _Transaction, position: str) -> None:
        self.wall.append(transaction.at.wall)
        self.logical.append(transaction.at.logical)
        self.position.append(position)
        self.xid.append(transaction.xid)

    def freeze(self) -> Commits:
        return Commits(self.wall, self.logical, self.position, self.xid)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Row messages of one stretch without schema changes, with the transaction of each."""

    tags: Places
    of: Places
    transactions: Sequence[_Transaction]
    streamed: bool = False


class Assembler:
    """The state of one stream between its bytes and its flushes."""

    def __init__(
        self,
        start: Frontier,
        relations: Relations,
        spool: Spool,
        lookup: Lookup | None = None,
        *,
        small: int = SMALL,
    ) -> None:
        self._start = lsn_of(start.position)
        self._last = start.at
        self._position = self._start
        self._seq = start.seq
        self._relations = relations
        self._spool = spool
        self._lookup = lookup
        self._small = small
        self._open: _Transaction | None = None
        self._streaming: int | None = None
        self._events: list[Event] = []
        self._commits = _Commits()
        self._log_schemas: dict[int, tuple[TableSchema, pa.Schema]] = {}
        self._standing = (0, 0)
        self._samples: list[tuple[int, int]] = []

    @property
    def frontier(self) -> Frontier:
        """What was read completely so far."""
        return Frontier(self._last, position_of(self._position), self._seq)

    @property
    def idle(self) -> bool:
        """No transaction is half read."""
        return self._open is None

    @property
    def last(self) -> Timestamp:
        """The newest timestamp given out."""
        return self._last

    def take(self, inbox: Inbox, cut: Cut) -> Iterator[Flush]:
        """Decode what lies before ``cut``; the caller drops it from the inbox afterwards."""
        if cut.place:
            yield from _Taking(self, inbox, cut).run()

    def caught_up(self, sent_ns: int) -> None:
        """The server had nothing more to send at that time: nothing at or below it follows."""
        if sent_ns > self._last.version:
            self._last = Timestamp(sent_ns)

    # ------------------------------------------------------------------- transactions

    def begin(self, lsn: int, commit_us: int, xid: int) -> _Transaction:
        """The next transaction in commit order; one that the frontier covers is skipped."""
        skip = lsn < self._start
        previous = self._last
        if not skip:
            self._last = previous.at_least(commit_us * 1000)
        self._open = _Transaction(xid, self._last, previous, commit_us, skip)
        return self._open

    def commit(self, end: int) -> None:
        """The end of the open transaction."""
        transaction, self._open = self._open, None
        if transaction is None:
            raise ChangefeedError("CF2105", "a commit without a begin")
        if transaction.skip:
            return
        self._position = max(self._position, end)
        if transaction.touched:
            self._commits.add(transaction, position_of(end))

    def keepalive(self, message: pgoutput.Keepalive) -> None:
        """The server has read its log up to here and has sent all it found for us.

        The time of the message counts only where the server stands still: one deep in a
        backlog sends keepalives too (also unasked, whenever it looks for newer log), and its
        clock is then far ahead of the commits to come.
        """
        if self._open is not None:
            return
        lsn, since = self._standing
        if message.lsn != lsn:
            self._standing = (message.lsn, message.sent_ns)
        elif message.sent_ns - since >= STANDS_STILL_NS:
            self.caught_up(message.sent_ns)
        self._reach(message.lsn)

    def sample(self, lsn: int, at_ns: int) -> None:
        """The server's log ended at ``lsn`` when its clock showed ``at_ns``: once everything
        up to there is read, nothing at or below that time follows."""
        self._samples = [*self._samples[-SAMPLES:], (lsn, at_ns)]
        self._reach(self._position)

    def _reach(self, lsn: int) -> None:
        self._position = max(self._position, lsn)
        while self._samples and self._samples[0][0] <= self._position:
            self.caught_up(self._samples.pop(0)[1])

    def flush(self, frontier: Frontier | None) -> Flush | None:
        """What has gathered, None if nothing has."""
        if not self._events and not self._commits.wall:
            return None
        made = Flush(tuple(self._events), frontier, self._commits.freeze())
        self._events, self._commits = [], _Commits()
        return made

    # ---------------------------------------------------------------------------- rows

    def rows(self, inbox: Inbox, block: Block, rows: _Rows) -> None:
        """Decode a stretch of row messages into batches, one for each table."""
        oids = block.word(rows.tags + (5 if rows.streamed else 1)) & 0xFFFFFFFF
        groups = _by_table(oids)
        self._resolve(groups, rows)
        decoded = [(oid, at, self._decode(inbox, block, oid, rows, at)) for oid, at in groups]
        numbers, width = _numbers(len(rows.tags), [(at, d) for _, at, d in decoded])
        ordinals = self._ordinals(rows, width)
        for (oid, _, part), number in zip(decoded, numbers, strict=True):
            self._events.append(self._batch(oid, part, number, ordinals, rows))
        self._seq += int(width.sum())

    def _resolve(self, groups: Sequence[tuple[int, Places]], rows: _Rows) -> None:
        changed = self._relations.resolve([oid for oid, _ in groups])
        for oid, at in groups:
            if oid in changed:
                change = changed[oid]
                moment = rows.transactions[rows.of[at[0]]].at
                self._seq += 1
                self._events.append(
                    SchemaChange(change.old, change.new, moment, self._seq, change.rewritten)
                )

    def _decode(self, inbox: Inbox, block: Block, oid: int, rows: _Rows, at: Places) -> _Part:
        schema = self._relations.schema(oid)
        tags = rows.tags[at]
        if len(at) < self._small:
            found = decode_rows(inbox.data, tags.tolist(), schema, streamed=rows.streamed)
        else:
            found = decode_columns(block, tags, schema, streamed=rows.streamed)
        return _Part(schema, found, at[found.message])

    def _ordinals(self, rows: _Rows, width: Places) -> Places:
        """For each message the number of its first log row inside its transaction."""
        starts = np.cumsum(width) - width
        counts = np.bincount(rows.of, width, len(rows.transactions)).astype(np.intp)
        first = np.cumsum(counts) - counts
        given = np.array([t.rows for t in rows.transactions], np.intp)
        for transaction, count in zip(rows.transactions, counts.tolist(), strict=True):
            transaction.rows += count
        ordinals: Places = starts - (first - given)[rows.of]
        return ordinals

    def _batch(
        self, oid: int, part: _Part, number: Places, ordinals: Places, rows: _Rows
    ) -> ChangeBatch:
        schema, found, message = part.schema, part.rows, part.message
        missing = self._fill(schema, found)
        of = rows.of[message]
        stays, before = mark_superseded(schema, found, of)
        walls, logicals, xids, micros = _by_transaction(rows.transactions)
        seconds = _seconds(message)
        arrays = [
            _letters(found.op),
            pa.array(walls[of]),
            pa.array(logicals[of]),
            pa.array(self._seq + 1 + number),
            pa.array((ordinals[message] + seconds).astype(np.int32)),
            pa.array(xids[of]),
            pa.array(micros[of]),
            last_column(stays, len(found)),
            missing,
            *found.after,
            *before,
        ]
        return ChangeBatch(
            schema, pa.RecordBatch.from_arrays(arrays, schema=self._log_schema(oid, schema))
        )

    def _log_schema(self, oid: int, schema: TableSchema) -> pa.Schema:
        known = self._log_schemas.get(oid)
        if known is None or known[0] is not schema:
            known = (schema, schema.log_schema())
            self._log_schemas[oid] = known
        return known[1]

    def _fill(self, schema: TableSchema, rows: Decoded) -> pa.Array:
        """Look up values that were not sent; the ``missing`` column for those not found."""
        if not rows.unchanged:
            return pa.nulls(len(rows), pa.string())
        if self._lookup is None or schema.keyless:
            left = rows.unchanged
        else:
            left = look_up(schema, rows, self._lookup)
        names: list[list[str]] = [[] for _ in range(len(rows))]
        for ordinal in sorted(left):
            for place in np.flatnonzero(left[ordinal]).tolist():
                names[place].append(schema.columns[ordinal].name)
        return pa.array([json.dumps(some) if some else None for some in names], pa.string())

    def truncate(self, oids: Sequence[int], transaction: _Transaction) -> None:
        """TRUNCATE of tables."""
        self._resolve([(oid, np.zeros(1, np.intp)) for oid in oids], _one_row(transaction))
        for oid in oids:
            self._seq += 1
            transaction.rows += 1
            self._events.append(Truncate(self._relations.schema(oid), transaction.at, self._seq))


@dataclass(frozen=True, slots=True)
class _Part:
    """One table's rows of a stretch; ``message`` numbers them among all its messages."""

    schema: TableSchema
    rows: Decoded
    message: Places


class _Taking:
    """One pass over the marks of an inbox."""

    def __init__(self, assembler: Assembler, inbox: Inbox, cut: Cut) -> None:
        self.to = assembler
        self.inbox = inbox
        self.cut = cut
        self.block = Block(inbox.bytes())
        self.from_row = 0
        self.transactions: list[_Transaction] = []
        self.first_rows: list[int] = []
        self.region = 0
        self.carried = assembler._open

    def run(self) -> Iterator[Flush]:
        to = self.to
        if to._open is not None:
            self._enter(to._open, 0)
        for mark in self.inbox.marks[: self.cut.marks]:
            if mark.tag == pgoutput.STREAM_COMMIT:
                self._decode(mark.rows)
                yield from self._stream_commit(mark)
            else:
                action = _ACTIONS.get(mark.tag)
                if action is None:
                    raise ChangefeedError("CF2105", f"unknown message {chr(mark.tag)!r}")
                action(self, mark)
        yield from self._finish()

    def _finish(self) -> Iterator[Flush]:
        to = self.to
        if to._streaming is not None:
            self._spool(self.cut.place)
        if to._open is None:
            self._decode(self.cut.rows)
            flush = to.flush(to.frontier)
        else:
            # Only when the buffer is full: the complete ones first, for they need not wait.
            yield from self._complete_before_open()
            self._decode(self.cut.rows)
            flush = to.flush(None)
        if flush is not None:
            yield flush

    def _complete_before_open(self) -> Iterator[Flush]:
        """What committed before the open transaction began, unless a part of that one is
        already among the events."""
        transaction = self.to._open
        if transaction is None or transaction is self.carried:
            return
        self._decode(self.first_rows[-1])
        if transaction.rows == 0:
            to = self.to
            flush = to.flush(Frontier(transaction.previous, position_of(to._position), to._seq))
            if flush is not None:
                yield flush

    # -------------------------------------------------------------------------- marks

    def _begin(self, mark: Mark) -> None:
        message = pgoutput.read_begin(self.inbox.data, mark.place)
        self._enter(self.to.begin(message.lsn, message.commit_us, message.xid), mark.rows)

    def _enter(self, transaction: _Transaction, row: int) -> None:
        self.transactions.append(transaction)
        self.first_rows.append(row)

    def _commit(self, mark: Mark) -> None:
        transaction = self.to._open
        if transaction is not None and self.first_rows and mark.rows > self.first_rows[-1]:
            transaction.touched = True
        self.to.commit(pgoutput.read_commit(self.inbox.data, mark.place).end)

    def _relation(self, mark: Mark) -> None:
        body = pgoutput.relation_body(self.inbox.data, mark.place, streamed=False)
        if self.to._relations.changes(body):
            self._decode(mark.rows)
        self.to._relations.put(body)

    def _truncate(self, mark: Mark) -> None:
        self._decode(mark.rows)
        transaction = self.to._open
        if transaction is not None and not transaction.skip:
            transaction.touched = True
            oids = pgoutput.read_truncate(self.inbox.data, mark.place, streamed=False)
            self.to.truncate(oids, transaction)

    def _keepalive(self, mark: Mark) -> None:
        message = pgoutput.read_keepalive(self.inbox.data, mark.place)
        self.to.keepalive(message)

    def _nothing(self, mark: Mark) -> None:
        """Type, Origin and Message: nothing that rows need."""

    # ------------------------------------------------------------------ large ones

    def _stream_start(self, mark: Mark) -> None:
        self.to._streaming = pgoutput.read_xid(self.inbox.data, mark.place)
        self.region = pgoutput.frame_end(self.inbox.data, mark.place)

    def _stream_stop(self, mark: Mark) -> None:
        self._spool(mark.place - pgoutput.TAG_OFFSET)
        self.to._streaming = None

    def _spool(self, end: int) -> None:
        if self.to._streaming is not None and end > self.region:
            with memoryview(self.inbox.data) as view:
                self.to._spool.append(self.to._streaming, view[self.region : end])
        self.region = end

    def _stream_abort(self, mark: Mark) -> None:
        data, place = self.inbox.data, mark.place
        self.to._spool.abort(pgoutput.read_xid(data, place), pgoutput.read_xid(data, place + 4))

    def _stream_commit(self, mark: Mark) -> Iterator[Flush]:
        to, data = self.to, self.inbox.data
        xid = pgoutput.read_xid(data, mark.place)
        message = pgoutput.read_commit(data, mark.place + 4)
        before = to.frontier
        transaction = to.begin(message.lsn, message.commit_us, xid)
        if not transaction.skip:
            flush = to.flush(before)
            if flush is not None:
                yield flush
            yield from _Replay(to, transaction).run()
        to._spool.discard(xid)
        to.commit(message.end)

    # --------------------------------------------------------------------------- rows

    def _decode(self, upto: int) -> None:
        """Decode the rows since the last call; the open transaction goes on."""
        first, self.from_row = self.from_row, upto
        transactions, starts = self.transactions, self.first_rows
        goes_on = self.to._open is not None and bool(transactions)
        self.transactions = [transactions[-1]] if goes_on else []
        self.first_rows = [upto] if goes_on else []
        if upto <= first:
            return
        if goes_on and upto > starts[-1]:
            transactions[-1].touched = True
        tags = np.array(self.inbox.rows[first:upto], np.intp)
        ends = [*starts[1:], upto]
        counts = np.array(ends, np.intp) - np.maximum(np.array(starts, np.intp), first)
        if int(counts.sum()) != len(tags):
            raise ChangefeedError("CF2105", "rows outside of a transaction")
        of = np.repeat(np.arange(len(counts)), counts)
        if any(transaction.skip for transaction in transactions):
            wanted = ~np.array([t.skip for t in transactions])[of]
            tags, of = tags[wanted], of[wanted]
            if not len(tags):
                return
        self.to.rows(self.inbox, self.block, _Rows(tags, of, transactions))


_ACTIONS: dict[int, Callable[[_Taking, Mark], None]] = {
    pgoutput.BEGIN: _Taking._begin,
    pgoutput.COMMIT: _Taking._commit,
    pgoutput.RELATION: _Taking._relation,
    pgoutput.TRUNCATE: _Taking._truncate,
    pgoutput.KEEPALIVE: _Taking._keepalive,
    pgoutput.TYPE: _Taking._nothing,
    pgoutput.ORIGIN: _Taking._nothing,
    pgoutput.MESSAGE: _Taking._nothing,
    pgoutput.STREAM_START: _Taking._stream_start,
    pgoutput.STREAM_STOP: _Taking._stream_stop,
    pgoutput.STREAM_ABORT: _Taking._stream_abort,
}


class _Replay:
    """The rows of a spooled transaction, a flush without a frontier for each chunk but the
    last, which waits for its commit."""

    def __init__(self, to: Assembler, transaction: _Transaction) -> None:
        self.to = to
        self.transaction = transaction
        self.aborted = np.array(sorted(to._spool.aborted(transaction.xid)), np.intp)

    def run(self) -> Iterator[Flush]:
        for inbox in self.to._spool.replay(self.transaction.xid):
            flush = self.to.flush(None)
            if flush is not None:
                yield flush
            self._chunk(inbox)

    def _chunk(self, inbox: Inbox) -> None:
        block = Block(inbox.bytes())
        done = 0
        for mark in inbox.marks:
            if mark.tag == pgoutput.RELATION:
                body = pgoutput.relation_body(inbox.data, mark.place, streamed=True)
                if self.to._relations.changes(body):
                    self._rows(inbox, block, done, mark.rows)
                    done = mark.rows
                self.to._relations.put(body)
            elif mark.tag == pgoutput.TRUNCATE:
                self._rows(inbox, block, done, mark.rows)
                done = mark.rows
                self._truncate(inbox, mark)
        self._rows(inbox, block, done, len(inbox.rows))

    def _truncate(self, inbox: Inbox, mark: Mark) -> None:
        if pgoutput.read_xid(inbox.data, mark.place) not in self.aborted:
            self.transaction.touched = True
            oids = pgoutput.read_truncate(inbox.data, mark.place, streamed=True)
            self.to.truncate(oids, self.transaction)

    def _rows(self, inbox: Inbox, block: Block, first: int, upto: int) -> None:
        tags = np.array(inbox.rows[first:upto], np.intp)
        if len(self.aborted) and len(tags):
            tags = tags[~np.isin(block.word(tags + 1) & 0xFFFFFFFF, self.aborted)]
        if len(tags):
            self.transaction.touched = True
            of = np.zeros(len(tags), np.intp)
            self.to.rows(inbox, block, _Rows(tags, of, [self.transaction], streamed=True))


# ------------------------------------------------------------------------------- helpers


def _by_table(oids: Places) -> list[tuple[int, Places]]:
    """Row places by table."""
    first = int(oids[0])
    if (oids == first).all():
        return [(first, np.arange(len(oids)))]
    names, inverse = np.unique(oids, return_inverse=True)
    order = np.argsort(inverse, kind="stable")
    counts = np.bincount(inverse, minlength=len(names))
    parts = np.split(order, np.cumsum(counts)[:-1])
    return list(zip(names.tolist(), parts, strict=True))


def _seconds(message: Places) -> Places:
    """1 for the second row of a message, else 0."""
    second = np.zeros(len(message), np.intp)
    second[1:] = message[1:] == message[:-1]
    return second


def _numbers(count: int, parts: Sequence[tuple[Places, _Part]]) -> tuple[list[Places], Places]:
    """Rising numbers over the rows of all tables, in message order; rows of each message."""
    width = np.ones(count, np.intp)
    for at, part in parts:
        if len(part.message) != len(at):
            width[part.message[_seconds(part.message) == 1]] = 2
    starts = np.cumsum(width) - width
    return [starts[part.message] + _seconds(part.message) for _, part in parts], width


def _by_transaction(
    transactions: Sequence[_Transaction],
) -> tuple[Places, npt.NDArray[np.int32], Places, Places]:
    return (
        np.array([t.at.wall for t in transactions], np.int64),
        np.array([t.at.logical for t in transactions], np.int32),
        np.array([t.xid for t in transactions], np.int64),
        np.array([t.commit_us for t in transactions], np.int64),
    )


def _letters(op: npt.NDArray[np.uint8]) -> pa.Array:
    offsets = np.arange(len(op) + 1, dtype=np.int32)
    return pa.StringArray.from_buffers(len(op), pa.py_buffer(offsets), pa.py_buffer(op))


def _one_row(transaction: _Transaction) -> _Rows:
    return _Rows(np.zeros(1, np.intp), np.zeros(1, np.intp), [transaction])


def look_up(schema: TableSchema, rows: Decoded, lookup: Lookup) -> dict[int, Mask]:
    """Put present values where the source sent none; what could not be found, by column."""
    ordinals = sorted(rows.unchanged)
    wanted = np.zeros(len(rows), np.bool_)
    for mask in rows.unchanged.values():
        wanted |= mask
    places = pa.array(np.flatnonzero(wanted))
    found = lookup(schema, ordinals, [column.take(places) for column in rows.key])
    present = found.present.to_numpy(zero_copy_only=False)
    left: dict[int, Mask] = {}
    for ordinal, values in zip(ordinals, found.values, strict=True):
        unsent = rows.unchanged[ordinal]
        if values is None:
            left[ordinal] = unsent
            continue
        rows.after[ordinal] = pc.replace_with_mask(
            rows.after[ordinal], pa.array(unsent), values.filter(pa.array(unsent[wanted]))
        )
        lost = unsent.copy()
        lost[wanted] &= ~present
        if lost.any():
            left[ordinal] = lost
    return left
