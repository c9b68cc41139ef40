"""Scanned messages -> flushes: transactions, timestamps, numbers, positions.

Pure: no socket, no clock. The same bytes after the same frontier give the same flushes, so a
crash between receiving and making durable changes nothing.

* A commit gets ``last.at_least(commit time)``; transactions come in commit order.
* Its position is the end of its commit record; a restart goes on from there.
* A transaction too large for one buffer waits in the spool for its commit; its rows then go out
  in flushes without a frontier (:mod:`.replay`).

What comes in which order is read by :mod:`.inbox_pass`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.events import Flush, Frontier, Position
from changefeed.core.schema import BeforeImage, TableSchema
from changefeed.sources.decoded.flushes import FlushBuilder, LogCommit, ShapeChange
from changefeed.sources.decoded.rows import DecodedRows
from changefeed.sources.decoded.spans import Mask, Places
from changefeed.sources.decoded.superseded import CollapsedRows, collapse
from changefeed.sources.decoded.unsent import missing_column
from changefeed.sources.postgres import ddl_events, pgoutput
from changefeed.sources.postgres.columns import Block, decode_columns
from changefeed.sources.postgres.continuity import Redelivery, ServerHistory, Witness
from changefeed.sources.postgres.ddl_events import TableDefinition
from changefeed.sources.postgres.logical_messages import (
    LOGICAL_OID,
    decode_messages,
    with_prefix,
)
from changefeed.sources.postgres.lookup import LookupResult
from changefeed.sources.postgres.lsn import lsn_of, position_of
from changefeed.sources.postgres.pgoutput import MESSAGE
from changefeed.sources.postgres.relations import Relations
from changefeed.sources.postgres.rows import decode_rows
from changefeed.sources.postgres.spool import Spool
from changefeed.sources.postgres.visibility import Visibility

#: Below this many rows of a table in a block the decoder of single rows is cheaper. Measured:
#: five columns break even at 45 rows, fifteen with old rows at 60.
SMALL = 50
#: Samples of the server's log end that are kept until they are reached.
SAMPLES = 16
#: What may be wrong with the rows of one table, and is no matter of the others.
_OF_ONE_TABLE = frozenset({Code.UNEXPECTED_MESSAGE, Code.NOT_SUPPORTED})


#: Values of columns (positions) of rows given by their key, an array a key column, where they are
#: still as the (sub)transactions of the last argument wrote them.
LookupCall = Callable[[TableSchema, Sequence[int], Sequence[pa.Array], pa.Array], LookupResult]


class Assembler:
    """The state of one stream between its bytes and its flushes."""

    def __init__(
        self,
        start: Frontier,
        relations: Relations,
        spool: Spool,
        lookup: LookupCall | None = None,
        *,
        visibility: Visibility | None = None,
        small: int = SMALL,
        history: ServerHistory | None = None,
        redelivery: Redelivery | None = None,
        upto: Position | None = None,
        messages: Callable[[], bool] = lambda: True,
        ddl: Callable[[], str] = lambda: "",
        wanted: Callable[[], frozenset[int] | None] = lambda: None,
    ) -> None:
        """
        Args:
            start: everything up to there was read; what comes again is skipped.
            upto: transactions that commit behind it are skipped, and the frontier stays there.
            relations: the tables of the stream.
            spool: for large transactions.
            lookup: present values, where the server does not send them.
            visibility: what is looked up is waited for until the server shows it.
            small: below this many rows the decoder of single rows is used.
            history: of the server that is read; that of ``start`` when not given.
            messages: whether logical messages of others are wanted.
            ddl: by which name statements of DDL are written into messages; empty: they are not.
            wanted: the tables whose rows are wanted, by oid; None: those of all.
            redelivery: judges what comes again, before anything new is given out.
        """
        self._start = lsn_of(start.position)
        self._upto = lsn_of(upto) if upto else None
        known = history or ServerHistory.parse(start.history)
        self._timeline, self._witness = known.timeline, known.witness
        #: A later one than the witness: there are many commits to a frontier.
        self._newest: OpenTransaction | None = None
        self._redelivery = redelivery
        self._out = FlushBuilder(start)
        self._position = self._start
        self.relations = relations
        self._messages = relations.messages
        self.spool = spool
        self._lookup = lookup
        self._visibility = visibility
        self._small = small
        self._wants_messages = messages
        self._ddl = ddl
        self._wanted = wanted
        #: The transaction that is half read.
        self.open: OpenTransaction | None = None
        #: The transaction whose part the server streams now, by its number.
        self.streaming: int | None = None
        #: The open transaction goes into the spool.
        self.spooling = False
        self._samples: list[tuple[int, int]] = []

    @property
    def frontier(self) -> Frontier:
        """What was read completely so far."""
        return self.frontier_at(self._out.last)

    def frontier_at(self, at: Timestamp) -> Frontier:
        """What was read completely so far, all of it at or below ``at``."""
        if self._newest is not None:
            self._witness, self._newest = _witness(self._newest), None
        if self._position == self._upto:
            # What lies before cannot be asked for again: it has another publication.
            self._witness = None
        history = ServerHistory(self._timeline, self._witness).text()
        return Frontier(at, position_of(self._position), self._out.seq, history)

    @property
    def idle(self) -> bool:
        """No transaction is half read."""
        return self.open is None

    @property
    def settled(self) -> bool:
        """The server has come to the start, and has the history that was read."""
        return self._redelivery is None

    @property
    def last(self) -> Timestamp:
        """The newest timestamp given out."""
        return self._out.last

    # ------------------------------------------------------------------- transactions

    def begin(self, lsn: int, commit_us: int, xid: int) -> OpenTransaction:
        """The next transaction in commit order; one that the frontier covers is skipped."""
        covered = lsn < self._start
        beyond = self._upto is not None and lsn >= self._upto
        previous = self._out.last
        if not covered:
            self._pass_start()
        if beyond:
            self._reach(lsn)
        elif not covered:
            self._out.reach(commit_us)
        skip = covered or beyond
        self.open = OpenTransaction(lsn, xid, self._out.last, previous, commit_us, skip)
        return self.open

    def outside(self, end: int) -> OpenTransaction:
        """A logical message outside of any transaction, by the end of its record: a transaction of
        its own, which committed when the one before it did."""
        transaction = self.begin(end - 1, self._out.last.wall // 1_000, 0)
        transaction.spoke = not transaction.skip
        self.commit(end)
        return transaction

    def commit(self, end: int) -> None:
        """The end of the open transaction."""
        transaction, self.open = self.open, None
        if transaction is None:
            raise ChangefeedError(Code.UNEXPECTED_MESSAGE, "a commit without a begin")
        if transaction.skip:
            if self._redelivery is not None:
                self._redelivery.repeated(_witness(transaction), touched=transaction.touched)
            return
        self._position = max(self._position, end)
        if transaction.touched:
            # Messages do not make a witness: a later stream may not ask for them.
            self._newest = transaction
        if transaction.touched or transaction.spoke:
            at, xid, commit_us = transaction.at, transaction.xid, transaction.commit_us
            self._out.add_commit(LogCommit(at, xid, commit_us, position_of(end)))

    def _pass_start(self) -> None:
        """What the server sends from here on is new."""
        if self._redelivery is not None:
            self._redelivery.passed()
            self._redelivery = None

    def keepalive(self, message: pgoutput.Keepalive) -> None:
        """The server has read its log up to here and has sent all it found for us.

        When it sent the message says nothing: it answers before it looks for newer log, and while
        it decodes a large transaction, however long that takes. What committed meanwhile is to
        come.
        """
        if self.open is not None or message.lsn < self._start:
            return
        self._pass_start()
        self._reach(message.lsn)

    def sample(self, lsn: int, at_ns: int) -> None:
        """Whatever had committed when the server's clock showed ``at_ns`` lies before ``lsn``: once
        everything up to there is read, nothing at or below that time follows."""
        # Of too many the newest makes room: time passes in larger steps, but it passes.
        self._samples = [*self._samples[: SAMPLES - 1], (lsn, at_ns)]
        self._reach(self._position)

    def _reach(self, lsn: int) -> None:
        if self._upto is not None:
            lsn = min(lsn, self._upto)
        self._position = max(self._position, lsn)
        for place, at_ns in self._samples:
            if place <= self._position:
                self._out.pass_time(at_ns)
        self._samples = [sample for sample in self._samples if sample[0] > self._position]

    @property
    def position(self) -> int:
        """Everything up to there was read."""
        return self._position

    def change_shapes(self, changes: Iterable[ShapeChange]) -> tuple[Flush, ...]:
        """Tables have another shape from here on, between two transactions."""
        for change in changes:
            self._out.last = self._out.last.next()
            self._out.change(change, self._out.last)
        return self.flush(self.frontier)

    def flush(self, frontier: Frontier | None) -> tuple[Flush, ...]:
        """A flush of all that has gathered; none if nothing has."""
        return self._out.flush(frontier)

    # ---------------------------------------------------------------------------- rows

    def shapes(self, oids: Iterable[int]) -> Shapes:
        """What tables look like to the rows that come now; a change is reported once."""
        wanted = list(oids)
        changes = self.relations.resolve(wanted)
        return Shapes({oid: self.relations.schema(oid) for oid in wanted}, changes)

    def rows(
        self,
        data: bytearray,
        block: Block,
        rows: RowMessages,
        shapes: Shapes | None = None,
        collapsed: Collapse | None = None,
    ) -> None:
        """Decode a stretch of row messages, and report the statements of DDL in it: each before
        the rows of its transaction, because these may be of what it made.

        The arguments are those of :meth:`_rows`.
        """
        begun = 0
        for first, transaction, definition in self._definitions(block, rows):
            if first > begun:
                self._rows(data, block, rows.part(begun, first), shapes, collapsed)
                begun = first
            self._tell_definition(definition, transaction)
        self._rows(data, block, rows.part(begun, len(rows.tags)), shapes, collapsed)

    def _definitions(
        self, block: Block, rows: RowMessages
    ) -> list[tuple[int, OpenTransaction, TableDefinition]]:
        """The statements of DDL, each with the first message of its transaction."""
        name = self._ddl()
        logical = np.flatnonzero(block.data[rows.tags] == pgoutput.MESSAGE) if name else ()
        if not len(logical):
            return []
        found = []
        written = with_prefix(
            block, rows.tags[logical], ddl_events.PREFIX + name, streamed=rows.streamed
        )
        for index, content in written:
            definition = ddl_events.read_definition(content)
            if definition is not None:
                of = int(rows.of[logical[index]])
                first = int(np.argmax(rows.of == of))
                found.append((first, rows.transactions[of], definition))
        return found

    def _tell_definition(self, definition: TableDefinition, transaction: OpenTransaction) -> None:
        for oid, schema, name, part in definition.tables:
            kind = definition.kind(part=part)
            for table in self.relations.named(oid, schema, name):
                position = position_of(transaction.lsn)
                self._out.define(table, kind, definition.statement, position, transaction.at)

    def _rows(
        self,
        data: bytearray,
        block: Block,
        rows: RowMessages,
        shapes: Shapes | None = None,
        collapsed: Collapse | None = None,
    ) -> None:
        """Decode a stretch of row messages into batches, one for each table.

        Args:
            data, block: the buffer they lie in.
            shapes: of the tables, where they are known already.
            collapsed: finds the writes of one key. By default every transaction of ``rows`` is
                there as a whole.
        """
        oids = table_oids(block, rows.tags, streamed=rows.streamed)
        groups = _by_table(oids)
        chosen = self._chosen(oid for oid, _ in groups)
        if len(chosen) < len(groups):
            rows = rows.of_tables(oids, chosen)
            if not len(rows.tags):
                return
            groups = _by_table(table_oids(block, rows.tags, streamed=rows.streamed))
        if shapes is None:
            shapes = self.shapes(oid for oid, _ in groups)
        for oid, at in groups:
            self._tell_change(shapes, oid, rows.transactions[rows.of[at[0]]])
        parted = [(oid, at) for oid, at in groups if oid in self.relations.parted]
        self.relations.filled(dict(_inserts(block, rows, parted)))
        decoded: list[tuple[int, Places, _TableRows]] = []
        lost: list[tuple[int, Places, ChangefeedError]] = []
        for oid, at in groups:
            try:
                self.relations.demand_readable(oid)
                decoded.append((oid, at, self._decode(data, block, shapes.schemas[oid], rows, at)))
            except ChangefeedError as error:
                of_table = shapes.schemas[oid].table != self._messages
                if error.code not in _OF_ONE_TABLE or not of_table:
                    raise
                lost.append((oid, at, error))
        numbers, width = _numbers(len(rows.tags), [(at, d) for _, at, d in decoded])
        ordinals = self._ordinals(rows, width)
        for (oid, _, part), number in zip(decoded, numbers, strict=True):
            if not len(part.rows):
                continue  # logical messages of our own
            if collapsed is None:
                marked = collapse(part.schema, part.rows, rows.of[part.message])
            else:
                try:
                    marked = collapsed(oid, part.schema, part.rows, part.message)
                except ChangefeedError as error:  # it reads older rows of the transaction
                    if error.code not in _OF_ONE_TABLE:
                        raise
                    lost.append((oid, part.message, error))
                    continue
            self._add(part, number, ordinals, rows, marked)
        self._out.seq += int(width.sum())
        for oid, at, problem in lost:
            self._tell_unreadable(shapes.schemas[oid], rows.transactions[rows.of[at[-1]]], problem)

    def _tell_unreadable(
        self, schema: TableSchema, transaction: OpenTransaction, error: ChangefeedError
    ) -> None:
        why = f"{error.message}; {error.hint}" if error.hint else error.message
        text = f"changes of {schema.table.schema}.{schema.table.name} cannot be read: {why}"
        self._out.unreadable(schema, text, transaction.at)

    def _chosen(self, oids: Iterable[int]) -> list[int]:
        """Those of the tables whose rows are wanted; logical messages have their own rule."""
        wanted = self._wanted()
        return [oid for oid in oids if wanted is None or oid in wanted or oid == LOGICAL_OID]

    def _tell_change(self, shapes: Shapes, oid: int, transaction: OpenTransaction) -> None:
        change = shapes.changes.get(oid)
        if change is not None:
            self._out.change(change, transaction.at)

    def _decode(
        self, data: bytearray, block: Block, schema: TableSchema, rows: RowMessages, at: Places
    ) -> _TableRows:
        tags = rows.tags[at]
        if schema.table == self._messages:
            wanted = self._wants_messages()
            found = decode_messages(block, tags, streamed=rows.streamed, wanted=wanted)
        elif len(at) < self._small:
            found = decode_rows(data, tags.tolist(), schema, streamed=rows.streamed)
        else:
            found = decode_columns(block, tags, schema, streamed=rows.streamed)
        return _TableRows(schema, found, at[found.message])

    def _ordinals(self, rows: RowMessages, width: Places) -> Places:
        """For each message the number of its first log row inside its transaction."""
        starts = np.cumsum(width) - width
        counts = np.bincount(rows.of, width, len(rows.transactions)).astype(np.intp)
        first = np.cumsum(counts) - counts
        given = np.array([t.rows for t in rows.transactions], np.intp)
        for transaction, count in zip(rows.transactions, counts.tolist(), strict=True):
            transaction.rows += count
        ordinals: Places = starts - (first - given)[rows.of]
        return ordinals

    def _add(
        self,
        part: _TableRows,
        number: Places,
        ordinals: Places,
        rows: RowMessages,
        marked: CollapsedRows,
    ) -> None:
        found, message = part.rows, part.message
        # This replaces columns of the images after.
        missing = self._fill(part.schema, found, rows.writers[message], rows.transactions)
        self._out.rows(
            part.schema,
            found.after,
            marked,
            rows.transactions,
            of=rows.of[message],
            number=number,
            ordinal=ordinals[message] + _seconds(message),
            missing=missing,
        )

    def _fill(
        self,
        schema: TableSchema,
        rows: DecodedRows,
        writers: Places,
        transactions: Sequence[OpenTransaction],
    ) -> pa.Array:
        """Look up values that were not sent; the ``missing`` column for those not found."""
        if not rows.unchanged:
            return pa.nulls(len(rows), pa.string())
        # Where whole old rows are promised, only those are left open that a store of images fills.
        if self._lookup is None or schema.keyless or schema.before_image is BeforeImage.FULL:
            left = rows.unchanged
        else:
            if self._visibility is not None:
                self._visibility.wait({transaction.xid for transaction in transactions})
            left = look_up(schema, rows, writers, self._lookup)
        return missing_column(schema, left, len(rows))

    def truncate(
        self, oids: Sequence[int], transaction: OpenTransaction, shapes: Shapes | None = None
    ) -> None:
        oids = self._chosen(oids)
        if shapes is None:
            shapes = self.shapes(oids)
        for oid in oids:
            self._tell_change(shapes, oid, transaction)
        for oid in oids:
            transaction.rows += 1
            self._out.truncate(shapes.schemas[oid], transaction.at)
            self.relations.emptied(oid, transaction.xid)


@dataclass(frozen=True, slots=True)
class _TableRows:
    """One table's rows of a stretch; ``message`` numbers them among all its messages."""

    schema: TableSchema
    rows: DecodedRows
    message: Places


# ------------------------------------------------------------------------------- helpers


def _witness(transaction: OpenTransaction) -> Witness:
    return Witness(transaction.lsn, transaction.xid, transaction.commit_us)


def _by_table(oids: Places) -> list[tuple[int, Places]]:
    first = int(oids[0])
    if (oids == first).all():
        return [(first, np.arange(len(oids)))]
    names, inverse = np.unique(oids, return_inverse=True)
    order = np.argsort(inverse, kind="stable")
    counts = np.bincount(inverse, minlength=len(names))
    parts = np.split(order, np.cumsum(counts)[:-1])
    return list(zip(names.tolist(), parts, strict=True))


def _inserts(
    block: Block, rows: RowMessages, groups: Iterable[tuple[int, Places]]
) -> Iterator[tuple[int, list[int]]]:
    """The transactions that inserted rows, by table."""
    for oid, at in groups:
        inserts = at[block.data[rows.tags[at]] == pgoutput.INSERT]
        if len(inserts):
            yield oid, [rows.transactions[of].xid for of in np.unique(rows.of[inserts])]


def _seconds(message: Places) -> Places:
    """1 for the second row of a message, else 0."""
    second = np.zeros(len(message), np.intp)
    second[1:] = message[1:] == message[:-1]
    return second


def _numbers(count: int, parts: Sequence[tuple[Places, _TableRows]]) -> tuple[list[Places], Places]:
    """Rising numbers over the rows of all tables, in message order; rows of each message."""
    width = np.ones(count, np.intp)
    for at, part in parts:
        if len(part.message) != len(at):
            width[part.message[_seconds(part.message) == 1]] = 2
    starts = np.cumsum(width) - width
    return [starts[part.message] + _seconds(part.message) for _, part in parts], width


def look_up(
    schema: TableSchema, rows: DecodedRows, writers: Places, lookup: LookupCall
) -> dict[int, Mask]:
    """Put values of the table where the source sent none; what could not be found, by column.

    ``writers``: the (sub)transaction that each row is of; what a later one wrote does not count.
    """
    ordinals = sorted(rows.unchanged)
    wanted = np.zeros(len(rows), np.bool_)
    for mask in rows.unchanged.values():
        wanted |= mask
    places = pa.array(np.flatnonzero(wanted))
    keys = [column.take(places) for column in rows.key]
    found = lookup(schema, ordinals, keys, pa.array(writers[wanted]))
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


#: Makes of a table's rows the changes of their transactions: oid, schema, rows, and for each row
#: its message's place in the stretch.
Collapse = Callable[[int, TableSchema, DecodedRows, Places], CollapsedRows]


@dataclass(slots=True)
class OpenTransaction:
    """A transaction being read.

    ``lsn`` is the place of its commit record, ``previous`` the timestamp before it; ``rows`` counts
    what was given out so far, ``touched`` says that it has rows of ours, ``spoke`` that it has
    logical messages.
    """

    lsn: int
    xid: int
    at: Timestamp
    previous: Timestamp
    commit_us: int
    skip: bool = False
    rows: int = 0
    touched: bool = False
    spoke: bool = False


@dataclass(frozen=True, slots=True)
class Shapes:
    """What tables look like from some place of the stream on, by oid.

    ``changes`` has those that look otherwise than before.
    """

    schemas: Mapping[int, TableSchema]
    changes: Mapping[int, ShapeChange]


@dataclass(frozen=True, slots=True)
class RowMessages:
    """Row messages of one stretch without schema changes, with the transaction of each.

    Attributes:
        writers: the transaction's number, or that of its subtransaction where it is known.
    """

    tags: Places
    of: Places
    transactions: Sequence[OpenTransaction]
    writers: Places
    streamed: bool = False

    def part(self, first: int, upto: int) -> RowMessages:
        """Those of the messages from ``first`` on and before ``upto``."""
        if first == 0 and upto == len(self.tags):
            return self
        cut = slice(first, upto)
        return replace(self, tags=self.tags[cut], of=self.of[cut], writers=self.writers[cut])

    def of_tables(self, oids: Places, chosen: Collection[int]) -> RowMessages:
        """Those of the messages whose table, in ``oids``, is among the chosen."""
        mine = np.isin(oids, np.array(sorted(chosen), np.int64))
        return replace(self, tags=self.tags[mine], of=self.of[mine], writers=self.writers[mine])


def table_oids(block: Block, tags: Places, *, streamed: bool) -> Places:
    """Which table each row message is about."""
    oids = block.word(tags + (5 if streamed else 1)) & 0xFFFFFFFF
    logical = block.data[tags] == MESSAGE
    if logical.any():
        oids[logical] = LOGICAL_OID
    return oids
