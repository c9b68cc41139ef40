"""Delivers changes: log -> chunks -> messages -> sink, one range at a time.

During a backlog other threads encode the next chunk while the sink writes the present one
(:mod:`.ahead`). A few rows are encoded in the feed's thread, because handing them to another thread
would cost more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.capture.growing_log import LogAccess
from changefeed.core.clock import SYSTEM_CLOCK, Clock, Timestamp
from changefeed.core.errors import ChangefeedError
from changefeed.core.events import Ddl, SchemaChange, Truncate
from changefeed.core.halves import by_halves, row_error, sifted
from changefeed.core.schema import TableName, TableSchema
from changefeed.core.shapes import Envelope
from changefeed.core.sizes import Sizes
from changefeed.core.spans import span
from changefeed.core.table_errors import TableError, about_table, renamed
from changefeed.core.work_stages import UNMEASURED, Stages, WorkStage
from changefeed.encoding.encode import encode_messages
from changefeed.encoding.transactions import (
    TransactionOrders,
    boundary_messages,
    boundary_shape,
)
from changefeed.feeds.ahead import Ahead, Workers
from changefeed.feeds.chunks import (
    Chunk,
    ControlItem,
    Item,
    SliceStart,
    Watermark,
    items,
    slice_bytes,
)
from changefeed.feeds.counted import with_rows
from changefeed.feeds.ddl import tell_ddl
from changefeed.feeds.feed import Feed
from changefeed.feeds.message_cache import MessageCache
from changefeed.feeds.schema_policy import check_images
from changefeed.feeds.sink_session import SinkSession
from changefeed.options import DELIVERY, ENVELOPE, MAX_MEMORY, SCHEMAS_ENABLE, Guarantee
from sinks.base import Batch, Epoch, Receipt


@dataclass(frozen=True, slots=True)
class EncodedChunk:
    """A chunk in the form for the sink: encoded messages, or typed rows of ``schema``."""

    chunk: Chunk
    schema: TableSchema
    rows: pa.Table


@dataclass(frozen=True, slots=True)
class WatermarkWithBoundaries:
    """A watermark, with BEGIN and END of every transaction above ``after`` up to it."""

    watermark: Watermark
    after: Timestamp
    messages: pa.Table


class Round:
    """What was written since the last commit."""

    def __init__(self, epoch: Epoch) -> None:
        self.epoch = epoch
        self.receipts: list[Receipt] = []
        self.rows = 0
        #: Commit times of the rows, for :attr:`changefeed.feeds.feed.Feed.delays`.
        self.walls: list[np.ndarray] = []
        self.counts: dict[TableName, tuple[int, int]] = {}
        #: BEGIN and END of the transactions up to there are written.
        self.boundaries = Timestamp.ZERO
        #: The last one up to which everything is written.
        self.watermark: Watermark | None = None

    def add(self, table: TableName, receipt: Receipt) -> None:
        """Count a batch that the sink has taken."""
        self.receipts.append(receipt)
        self.rows += receipt.rows
        rows, size = self.counts.get(table, (0, 0))
        self.counts[table] = (rows + receipt.rows, size + receipt.bytes)


class _Calls(NamedTuple):
    """See :meth:`Delivery.deliver`."""

    on_schema_change: Callable[[SchemaChange], None]
    on_rename: Callable[[SchemaChange], None]
    after_commit: Callable[[], None]
    interrupted: Callable[[], bool]


class _Interruption(Exception):
    """The feed has something else to do than to look for rows that are refused."""


class Delivery:
    """Delivers ranges of the log for one feed. Used by the feed's thread only."""

    def __init__(
        self,
        name: str,
        log: LogAccess,
        shared: MessageCache,
        sink_session: SinkSession,
        sizes: Sizes | None = None,
        clock: Clock = SYSTEM_CLOCK,
        stages: Stages = UNMEASURED,
    ) -> None:
        self._clock = clock
        self._stages = stages
        self._sizes = sizes or Sizes()
        self._log = log
        self._shared = shared
        self._sink_session = sink_session
        self._number = 0
        #: The numbered changes of the present slice; used by the thread that prepares items.
        self._orders = TransactionOrders()
        self._after = Timestamp.ZERO
        #: BEGIN and END of every transaction up to there are durable.
        self._announced = Timestamp.ZERO
        #: Tables whose chunks are delivered by halves.
        self._careful: frozenset[TableName] = frozenset()
        #: Tables that got their present names by a rename in this delivery, and when.
        self._named_at: dict[TableName, Timestamp] = {}
        self._workers = Workers(name)

    def deliver(
        self,
        feed: Feed,
        bounds: dict[TableName, Timestamp],
        upto: Timestamp,
        *,
        on_schema_change: Callable[[SchemaChange], None],
        on_rename: Callable[[SchemaChange], None],
        after_commit: Callable[[], None],
        interrupted: Callable[[], bool],
        scanned: bool = False,
    ) -> int:
        """Move the tables of ``bounds`` (each above its own bound) to ``upto``.

        ``scanned``: a scan delivers the tables as of ``upto``. Rows that were written at exactly
        that instant are then among the scan's rows, with the same timestamp; for exactly-once
        delivery only the deletes of that instant are delivered here.

        A slice is committed when the round has the sink's ``round_rows``, at the end, and when
        ``interrupted`` says that there is something else to do, which also ends the delivery.
        The rename of a table ends it, too: once everything before it is durable, ``on_rename`` lets
        the feed continue with the new name. Returns the rows delivered.

        In a feed that keeps dead letters, a row that is refused becomes one, and the delivery goes
        on without it. In others its table fails at the transaction of the row, with everything
        before that row delivered.

        Raises:
            TableError: one table cannot go on; nothing after the last commit counts.
            ChangefeedError: the source or the sink failed; CF5009, too many rows were refused.
        """
        calls = _Calls(on_schema_change, on_rename, after_commit, interrupted)
        total, more = 0, True
        try:
            while more:
                try:
                    about = {"feed": feed.job.name}
                    with span("changefeed.delivery", about, lazily=True) as traced:
                        rows, more = self._deliver(feed, bounds, upto, calls, scanned=scanned)
                        traced.note(rows=rows)
                    total += rows
                    self._careful = frozenset()
                except TableError as failed:
                    known = failed.table in self._careful
                    if known or not feed.finds_refused or row_error(failed) is None:
                        raise
                    self._careful |= {failed.table}
                if more:
                    bounds = {name: _done(feed, name, at) for name, at in bounds.items()}
                    bounds = {name: at for name, at in bounds.items() if at < upto}
        finally:
            self._careful = frozenset()
        return total

    def _deliver(
        self,
        feed: Feed,
        bounds: dict[TableName, Timestamp],
        upto: Timestamp,
        calls: _Calls,
        *,
        scanned: bool,
    ) -> tuple[int, bool]:
        """As :meth:`deliver`, in one go; returns also whether there is more to deliver now: the
        search for rows that are refused ends with the first commit."""
        on_schema_change, on_rename, after_commit, interrupted = calls
        # A feed whose progress was moved back repeats BEGIN and END, too.
        done = [t.done_upto for t in feed.tables.values() if t.done_upto is not None]
        self._announced = min(self._announced, max(done, default=Timestamp.ZERO))
        # Asked here, in the feed's thread: the sink is opened by it.
        typed = self._sink_session.takes_rows
        most = slice_bytes(feed.options)
        source = items(self._log, bounds, upto, most, feed.counted(), self._sizes)
        once = feed.options[DELIVERY] is Guarantee.EXACTLY_ONCE and not typed
        scanned_at = upto if scanned and once else None
        total = 0
        settled = more = False
        self._named_at.clear()
        current = self._round(upto)
        ahead = Ahead(
            source,
            lambda item: self._prepared(feed, item, typed, scanned_at),
            self._workers,
            several=_several_at_once(feed),
            least_rows=self._sizes.ahead_rows,
        )
        try:
            while (item := ahead.next()) is not None:
                if isinstance(item, WatermarkWithBoundaries):
                    self._write_boundaries(feed, item, current)
                    item = item.watermark
                ended = isinstance(item, Watermark) and item.upto >= upto
                if isinstance(item, EncodedChunk):
                    total += item.rows.num_rows
                if (
                    total >= self._sizes.ahead_rows
                    and not ended
                    and not isinstance(item, ControlItem)
                ):
                    ahead.prepare_next()
                if isinstance(item, EncodedChunk):
                    self._write(feed, item, current)
                elif isinstance(item, Chunk):
                    self._commit(feed, current)
                    current = self._round(upto)
                    self._write_by_halves(feed, item, upto, interrupted, typed=typed)
                    total += item.rows
                elif isinstance(item, ControlItem):
                    if (rename := self._rename(feed, item)) is not None:
                        self._end_renamed(feed, item, rename, current, on_rename)
                        after_commit()
                        break
                    current = self._control(feed, item, current, on_schema_change)
                elif isinstance(item, Watermark):
                    current.watermark = item
                    full = current.rows >= self._sink_session.round_rows
                    careful = bool(self._careful)
                    if ended or full or careful or not current.rows or interrupted():
                        self._commit(feed, current)
                        current = self._round(upto)
                        after_commit()
                        if ended or interrupted():
                            break
                        if careful:
                            more = True
                            break
            settled = True
        except _Interruption:
            settled = True
        finally:
            # The generator must be idle before its owner continues or fails.
            ahead.close()
            if not settled:
                self._sink_session.abort(current.epoch, current.receipts)
        return total, more

    def close(self) -> None:
        self._workers.close()

    def _round(self, upto: Timestamp) -> Round:
        self._number += 1
        return Round(Epoch(self._number, upto))

    def _prepared(
        self, feed: Feed, item: Item, typed: bool, scanned_at: Timestamp | None
    ) -> Item | EncodedChunk | WatermarkWithBoundaries:
        """An item in the form for the sink; during a backlog other threads call this."""
        if isinstance(item, SliceStart):
            self._number_changes(feed, item)
            return item
        if isinstance(item, Watermark) and feed.boundaries is not None:
            return self._boundaries(feed, item)
        if not isinstance(item, Chunk):
            return item
        with about_table(item.schema.table):
            feed.recognise(item.schema)
            if not typed and not feed.tables[item.schema.table].scan_wanted:
                check_images(item.schema, feed.options)
            if item.schema.table in self._careful:
                return item
            if typed:
                rows = item.load()
                rows = _typed_rows(feed, item, rows, superseded=_superseded(item, rows))
                return EncodedChunk(item, feed.row_plan(item.schema).schema, rows)
            messages = self._encode(feed, item)
            if scanned_at is not None:
                messages = _but_written_at(messages, scanned_at)
            return EncodedChunk(item, feed.row_plan(item.schema).schema, messages)

    def _encode(self, feed: Feed, chunk: Chunk) -> pa.Table:
        plan = feed.messages(chunk.schema)

        def compute() -> pa.Table:
            return self._messages(feed, chunk, self._stages.run(WorkStage.READ, chunk.load))

        if plan.transactions:
            # The numbers depend on the other tables of the feed.
            return compute()
        # The rows differ, too: after a compaction a slice is divided differently.
        rows = (chunk.pieces[0].first_seq, chunk.pieces[-1].last_seq, chunk.rows)
        skipped = feed.tables[chunk.schema.table].skipped
        key = (plan.fingerprint, chunk.after, chunk.upto, chunk.number, *rows, skipped)
        return self._shared.get(key, compute)

    def _messages(self, feed: Feed, chunk: Chunk, rows: pa.Table) -> pa.Table:
        # Facts that the log stores about its columns do not apply to a query's columns.
        clean = chunk.clean if feed.query is None else None
        if feed.query is None:
            rows = feed.rows(chunk.schema, rows)
        else:
            rows = self._stages.run(WorkStage.QUERY, partial(feed.rows, chunk.schema, rows))
        plan = feed.messages(chunk.schema)
        encode = partial(encode_messages, rows, plan, clean, orders=self._orders)
        return self._stages.run(WorkStage.ENCODE, encode)

    def _write_by_halves(
        self,
        feed: Feed,
        chunk: Chunk,
        upto: Timestamp,
        interrupted: Callable[[], bool],
        *,
        typed: bool,
    ) -> None:
        """Make a chunk durable, in commits that state no progress; rows that are refused become
        dead letters.

        Raises:
            TableError: a row was refused, and the feed keeps no dead letters.
            _Interruption: there is something else to do; what was delivered will be repeated.
        """
        whole = chunk.load()
        superseded = _superseded(chunk, whole)
        shape = feed.row_plan(chunk.schema).schema

        def encoded(some: pa.Table) -> EncodedChunk:
            if interrupted():
                raise _Interruption
            with about_table(chunk.schema.table):
                if typed:
                    rows = _typed_rows(feed, chunk, some, superseded=superseded)
                else:
                    rows = self._messages(feed, chunk, some)
            return EncodedChunk(chunk, shape, rows)

        def examine(some: pa.Table) -> None:
            found = encoded(some)
            with about_table(chunk.schema.table):
                self._sink_session.examine(self._batch(feed, found, self._round(upto)))

        def deliver(some: pa.Table) -> None:
            found = encoded(some)
            attempt = self._round(upto)
            try:
                self._write(feed, found, attempt)
                self._commit(feed, attempt)
            except BaseException:
                self._sink_session.abort(attempt.epoch, attempt.receipts)
                raise

        def refuse(row: pa.Table, error: ChangefeedError, beside: int = 0) -> None:
            feed.refuse_row(chunk.schema, row, error, beside)

        rows, refused = sifted(whole, examine)
        if refused and not feed.dead_letters.wanted:
            first, error = refused[0]
            by_halves(whole.slice(0, first), deliver, refuse)
            refuse(whole.slice(first, 1), error)
        # Before the rows behind them: a sink may say of these that all up to there is applied.
        for place, error in refused:
            refuse(whole.slice(place, 1), error, rows.num_rows)
        by_halves(rows, deliver, refuse)

    def _number_changes(self, feed: Feed, opening: SliceStart) -> None:
        self._orders, self._after = TransactionOrders(), opening.after
        for chunk in opening.chunks:
            with about_table(chunk.schema.table):
                self._orders.add(chunk.schema.table, feed.numbered(chunk.schema, chunk.load()))
        self._orders.number()

    def _boundaries(self, feed: Feed, watermark: Watermark) -> WatermarkWithBoundaries:
        """BEGIN and END of the transactions up to the watermark, unless they were sent before.

        END says how many changes the transaction has in all tables of the feed, including a failed
        table that is behind.
        """
        since = max(self._after, self._announced)
        ended = [t for t in self._orders.transactions if since < t.at <= watermark.upto]
        messages = boundary_messages(
            ended,
            debezium=feed.options[ENVELOPE] is Envelope.DEBEZIUM,
            schemas_enabled=feed.options[SCHEMAS_ENABLE],
        )
        return WatermarkWithBoundaries(watermark, since, messages)

    def _write_boundaries(self, feed: Feed, item: WatermarkWithBoundaries, current: Round) -> None:
        """Write BEGIN and END after the changes, so that a reader of END has all of them."""
        if not item.messages.num_rows or feed.boundaries is None:
            return
        batch = Batch(
            feed=feed.job.name,
            epoch=current.epoch,
            partition=len(current.receipts),
            target=feed.boundaries,
            schema=boundary_shape(feed.job.source),
            rows=item.messages,
            after=item.after,
        )
        current.receipts.append(self._sink_session.write(batch))
        current.boundaries = item.watermark.upto

    @staticmethod
    def _batch(feed: Feed, item: EncodedChunk, current: Round) -> Batch:
        return Batch(
            feed=feed.job.name,
            epoch=current.epoch,
            partition=len(current.receipts),
            target=feed.target(item.schema.table),
            schema=item.schema,
            rows=item.rows,
            after=item.chunk.after,
        )

    def _write(self, feed: Feed, item: EncodedChunk, current: Round) -> None:
        if not item.rows.num_rows:
            return
        table = item.schema.table
        with about_table(table):
            receipt = self._sink_session.write(self._batch(feed, item, current))
        current.add(table, receipt)
        # A copy: a column of the chunk would keep all of its rows in memory.
        current.walls.append(np.array(item.rows["wall"]))

    def _commit(self, feed: Feed, current: Round, control: ControlItem | None = None) -> None:
        if feed.boundaries is not None:
            # If progress passed the END of a transaction before it was sent, END would be lost.
            # So progress moves only from watermark to watermark; rows after one may be repeated.
            control = None
        written = {
            table: _reached(feed, table, current.watermark, control) for table in current.counts
        }
        upto = min(written.values(), default=current.epoch.upto)
        epoch = Epoch(current.epoch.number, upto)
        self._sink_session.commit(epoch, current.receipts, current.counts, written)
        self._announced = max(self._announced, current.boundaries)
        for table, (rows, size) in current.counts.items():
            feed.count(table, rows, size)
        if current.walls:
            feed.delays = with_rows(feed.delays, current.walls, self._clock.now().wall)
        if current.watermark is not None:
            feed.advance(current.watermark.tables, current.watermark.upto)
        for table, reached in written.items():
            feed.advance([table], reached)

    def _control(
        self,
        feed: Feed,
        item: ControlItem,
        current: Round,
        on_schema_change: Callable[[SchemaChange], None],
    ) -> Round:
        if item.renamed:
            return current  # of a table that is not followed
        event = item.event
        if isinstance(event, Ddl):
            self._commit(feed, current, item)
            tell_ddl(feed, self._sink_session, event)
            return self._round(current.epoch.upto)
        try:
            feed.recognise(event.new if isinstance(event, SchemaChange) else event.schema)
        except ChangefeedError as error:
            raise TableError(item.table, error) from error
        if isinstance(event, SchemaChange) and event.arrived:
            self._named_at[item.table] = event.at
            if event.old == event.new and not event.rewritten:
                return current
        if isinstance(event, Truncate):
            self._commit(feed, current, item)
            with about_table(item.table):
                self._sink_session.truncate(event)
            feed.record_event("truncate", "all rows were removed", item.table, event.at)
            return self._round(current.epoch.upto)
        try:
            with about_table(item.table):
                on_schema_change(event)
        except TableError:
            # Everything before the change is still delivered.
            self._commit(feed, current, item)
            current.receipts.clear()
            raise
        if not self._sink_session.evolves:
            return current
        self._commit(feed, current, item)
        with about_table(item.table):
            self._sink_session.evolve(event)
        return self._round(current.epoch.upto)

    def _rename(self, feed: Feed, item: ControlItem) -> SchemaChange | None:
        """The event, if it gives a followed table another name from here on; else None.

        One that a pattern brought leaves the feed as soon as all of it is delivered
        (:mod:`changefeed.feeds.lost_tables`), and a table that took over the name of another began
        with its own scan: for these the event means nothing. Nor for one that got its name back and
        is scanned by RESUME or RESCAN.
        """
        known, event = feed.tables.get(item.table), item.event
        if not item.renamed or not isinstance(event, SchemaChange):
            return None
        if known is None or known.joined or (known.scan_wanted and known.done_upto is not None):
            return None
        same = not known.table_id or event.old.table_id in (0, known.table_id)
        return event if same else None

    def _end_renamed(
        self,
        feed: Feed,
        item: ControlItem,
        event: SchemaChange,
        current: Round,
        on_rename: Callable[[SchemaChange], None],
    ) -> None:
        self._commit(feed, current, item)
        current.receipts.clear()
        if feed.boundaries is None:
            # Also without rows: what the log has under the new name from before is not the feed's.
            feed.advance([item.table], event.at.previous())
        if self._named_at.get(item.table) == event.at:
            # The rows before it and behind it have one instant: after a crash nothing would
            # distinguish them.
            why = "it was renamed twice in one transaction"
            # RESCAN finds the table by its number, where it has one.
            known = event.old.table_id != 0
            raise TableError(item.table, renamed(item.table, event.new.table, why, rescan=known))
        on_rename(event)


def _several_at_once(feed: Feed) -> bool:
    """Whether several chunks are prepared at the same time: those of queries, if there is memory.

    Numbers of changes in their transactions are given one slice after another.
    """
    return feed.query is not None and feed.boundaries is None and feed.options[MAX_MEMORY] is None


def _done(feed: Feed, name: TableName, bound: Timestamp) -> Timestamp:
    return max(bound, feed.tables[name].done_upto or bound)


def _superseded(chunk: Chunk, rows: pa.Table) -> bool:
    """Whether rows that later ones of their transaction supersede may have values for these."""
    return chunk.unsent_beside or rows["missing"].null_count != rows.num_rows


def _typed_rows(feed: Feed, chunk: Chunk, rows: pa.Table, *, superseded: bool) -> pa.Table:
    found = feed.rows(chunk.schema, rows, superseded=superseded)
    return feed.row_plan(chunk.schema).rows(found, superseded=superseded)


def _but_written_at(messages: pa.Table, at: Timestamp) -> pa.Table:
    there = pc.and_(pc.equal(messages["wall"], at.wall), pc.equal(messages["logical"], at.logical))
    return messages.filter(pc.invert(pc.and_(there, pc.not_equal(messages["op"], "d"))))


def _reached(
    feed: Feed, table: TableName, watermark: Watermark | None, control: ControlItem | None
) -> Timestamp:
    reached = [feed.tables[table].done_upto or Timestamp.ZERO]
    if watermark is not None:
        reached.append(watermark.upto)
    if control is not None and table in control.complete:
        reached.append(control.upto)
    if control is not None and table == control.table:
        reached.append(control.event.at.previous())
    return max(reached)
