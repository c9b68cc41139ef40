"""Changes on their way: log -> chunks -> messages -> sink, one range at a time.

Encoding of the next chunk runs in a second thread while the sink takes the present one, so
that on a backlog both work at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from changefeed.capture.log_access import LogAccess
from changefeed.capture.table_identity import moved
from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError, Scope
from changefeed.core.events import SchemaChange, Truncate
from changefeed.core.schema import TableName, TableSchema
from changefeed.core.table_errors import TableError, about_table
from changefeed.encoding.encode import encode_messages
from changefeed.feeds.chunks import SLICE_BYTES, Chunk, Item, MarkItem, Turn, items
from changefeed.feeds.feed import Feed
from changefeed.feeds.message_cache import SharedMessages
from changefeed.feeds.schema_policy import check_images
from changefeed.feeds.sink_session import Outlet
from changefeed.options import DELIVERY, MAX_MEMORY, Guarantee
from sinks.base import Batch, Epoch, Receipt


@dataclass(frozen=True, slots=True)
class Made:
    """A chunk as the sink takes it: finished messages, or typed rows of ``schema``."""

    chunk: Chunk
    schema: TableSchema
    rows: pa.Table


class Round:
    """What was written since the last commit."""

    def __init__(self, epoch: Epoch) -> None:
        self.epoch = epoch
        self.receipts: list[Receipt] = []
        self.rows = 0
        self.counts: dict[TableName, tuple[int, int]] = {}
        #: The last turn of which everything is written.
        self.turn: Turn | None = None

    def add(self, table: TableName, receipt: Receipt) -> None:
        """Count a written batch."""
        self.receipts.append(receipt)
        self.rows += receipt.rows
        rows, size = self.counts.get(table, (0, 0))
        self.counts[table] = (rows + receipt.rows, size + receipt.bytes)


class Delivery:
    """Delivers ranges of the log for one feed. Used by the feed's thread only."""

    def __init__(
        self,
        name: str,
        log: LogAccess,
        shared: SharedMessages,
        outlet: Outlet,
    ) -> None:
        self.name = name
        self._log = log
        self._shared = shared
        self._outlet = outlet
        self._number = 0
        self._ahead = ThreadPoolExecutor(1, thread_name_prefix=f"encode-{name}")

    def deliver(
        self,
        feed: Feed,
        bounds: dict[TableName, Timestamp],
        upto: Timestamp,
        *,
        on_schema_change: Callable[[SchemaChange], None],
        after_commit: Callable[[], None],
        interrupted: Callable[[], bool],
        scanned: bool = False,
    ) -> int:
        """Move the tables of ``bounds`` (each above its own bound) to ``upto``.

        ``scanned``: a scan delivers the tables as they are at ``upto``. What was written at that
        very instant is then among its rows, with the same timestamp, and where nothing may come
        twice only the deletes are told here.

        A turn is committed when the round has the sink's ``round_rows``, at the end, and when
        ``interrupted`` says that there is something else to do, which also ends the delivery.
        Returns the rows delivered.

        Raises:
            TableError: one table cannot go on; nothing after the last commit counts.
            ChangefeedError: the source or the sink failed.
        """
        # Asked here, in the feed's thread: the sink is opened by it.
        typed = self._outlet.takes_rows
        source = items(self._log, bounds, upto, _slice_bytes(feed))
        once = feed.options[DELIVERY] is Guarantee.EXACTLY_ONCE and not typed
        told_by_scan = upto if scanned and once else None
        total = 0
        settled = False
        current = self._round(upto)
        ahead = self._ahead.submit(self._next, feed, source, typed, told_by_scan)
        try:
            while (item := ahead.result()) is not None:
                ended = isinstance(item, Turn) and item.upto >= upto
                if not ended:
                    ahead = self._ahead.submit(self._next, feed, source, typed, told_by_scan)
                if isinstance(item, Made):
                    total += item.rows.num_rows
                    self._write(feed, item, current)
                elif isinstance(item, MarkItem):
                    current = self._mark(feed, item, current, on_schema_change)
                elif isinstance(item, Turn):
                    current.turn = item
                    full = current.rows >= self._outlet.round_rows
                    if ended or full or not current.rows or interrupted():
                        self._commit(feed, current)
                        current = self._round(upto)
                        after_commit()
                        if ended or interrupted():
                            break
            settled = True
        finally:
            # The generator must have come to rest before its owner goes on or gives up.
            if not ahead.cancel():
                ahead.exception()
            if not settled:
                self._outlet.abort(current.epoch, current.receipts)
        return total

    def close(self) -> None:
        """End the encoding thread."""
        self._ahead.shutdown(wait=False, cancel_futures=True)

    def _round(self, upto: Timestamp) -> Round:
        self._number += 1
        return Round(Epoch(self._number, upto))

    def _next(
        self, feed: Feed, source: Iterator[Item], typed: bool, told_by_scan: Timestamp | None
    ) -> Item | Made | None:
        """The next item, as the sink takes it; runs in the encoding thread."""
        item = next(source, None)
        if not isinstance(item, Chunk):
            return item
        try:
            feed.recognise(item.schema)
            if not typed and not feed.tables[item.schema.table].scan_wanted:
                check_images(item.schema, feed.options)
            with about_table(item.schema.table):
                if typed:
                    plan = feed.row_plan(item.schema)
                    rows = feed.rows(item.schema, item.load())
                    return Made(item, plan.schema, plan.rows(rows))
                messages = self._encode(feed, item)
                if told_by_scan is not None:
                    messages = _but_written_at(messages, told_by_scan)
                return Made(item, feed.row_plan(item.schema).schema, messages)
        except ChangefeedError as error:
            if error.scope is Scope.TABLE:
                raise TableError(item.schema.table, error) from error
            raise

    def _encode(self, feed: Feed, chunk: Chunk) -> pa.Table:
        plan = feed.messages(chunk.schema)

        def compute() -> pa.Table:
            rows = feed.rows(chunk.schema, chunk.load())
            # What the log knows of its columns says nothing of a query's.
            return encode_messages(rows, plan, chunk.clean if feed.query is None else None)

        # The rows themselves too: compaction between two reads cuts a slice in other places.
        rows = (chunk.pieces[0].first_seq, chunk.pieces[-1].last_seq, chunk.rows)
        key = (plan.fingerprint, chunk.after, chunk.upto, chunk.number, *rows)
        return self._shared.get(key, compute)

    def _write(self, feed: Feed, item: Made, current: Round) -> None:
        if not item.rows.num_rows:
            return
        table = item.schema.table
        with about_table(table):
            receipt = self._outlet.write(
                Batch(
                    feed=self.name,
                    epoch=current.epoch,
                    partition=len(current.receipts),
                    target=feed.target(table),
                    schema=item.schema,
                    rows=item.rows,
                    frontier=item.chunk.after,
                )
            )
        current.add(table, receipt)

    def _commit(self, feed: Feed, current: Round, mark: MarkItem | None = None) -> None:
        """Make the round durable; then the tables have come to the last turn, or to the mark."""
        written = {table: _reached(feed, table, current.turn, mark) for table in current.counts}
        upto = min(written.values(), default=current.epoch.upto)
        epoch = replace(current.epoch, upto=upto)
        self._outlet.commit(epoch, current.receipts, current.counts, written)
        for table, (rows, size) in current.counts.items():
            feed.count(table, rows, size)
        if current.turn is not None:
            feed.advance(current.turn.tables, current.turn.upto)
        for table, reached in written.items():
            feed.advance([table], reached)

    def _mark(
        self,
        feed: Feed,
        item: MarkItem,
        current: Round,
        on_schema_change: Callable[[SchemaChange], None],
    ) -> Round:
        """A mark for the target comes after everything before it is durable; the round then."""
        if item.renamed:
            self._end_renamed(feed, item, current)
            return current
        try:
            feed.recognise(item.shape)
        except ChangefeedError as error:
            raise TableError(item.table, error) from error
        if isinstance(item.event, Truncate):
            self._commit(feed, current, item)
            with about_table(item.table):
                self._outlet.truncate(item.event)
            return self._round(current.epoch.upto)
        try:
            with about_table(item.table):
                on_schema_change(item.event)
        except TableError:
            # What came before the change is delivered all the same.
            self._commit(feed, current, item)
            current.receipts.clear()
            raise
        if not self._outlet.evolves:
            return current
        self._commit(feed, current, item)
        self._evolve(item)
        return self._round(current.epoch.upto)

    def _end_renamed(self, feed: Feed, item: MarkItem, current: Round) -> None:
        """The table has another name from here on.

        One that the feed names fails, after what came before. One that a pattern brought leaves
        the feed as soon as all of it is delivered (:mod:`changefeed.feeds.lost_tables`), and a
        table that took over the name of another began with its own scan: for these the mark
        means nothing.
        """
        known, event = feed.tables.get(item.table), item.event
        if not isinstance(event, SchemaChange) or known is None or known.joined:
            return
        if known.table_id and event.old.table_id not in (0, known.table_id):
            return
        self._commit(feed, current, item)
        current.receipts.clear()
        raise TableError(item.table, moved(item.table, event.new.table))

    def _evolve(self, item: MarkItem) -> None:
        if isinstance(item.event, SchemaChange):
            try:
                with about_table(item.table):
                    self._outlet.evolve(item.event)
            except ChangefeedError as error:
                if error.scope is Scope.TABLE:
                    raise TableError(item.table, error) from error
                raise


def _but_written_at(messages: pa.Table, at: Timestamp) -> pa.Table:
    """Without what was inserted or updated at an instant."""
    there = pc.and_(pc.equal(messages["wall"], at.wall), pc.equal(messages["logical"], at.logical))
    return messages.filter(pc.invert(pc.and_(there, pc.not_equal(messages["op"], "d"))))


def _reached(feed: Feed, table: TableName, turn: Turn | None, mark: MarkItem | None) -> Timestamp:
    """How far a table is delivered once everything written of it is durable."""
    places = [feed.tables[table].done_upto or Timestamp.ZERO]
    if turn is not None:
        places.append(turn.upto)
    if mark is not None and table in mark.complete:
        places.append(mark.upto)
    if mark is not None and table == mark.table:
        places.append(mark.event.at.previous())
    return max(places)


def _slice_bytes(feed: Feed) -> int:
    """How much of the log is taken at once: a slice is in memory about four times, as rows and
    as messages, one being encoded while another is written."""
    budget = feed.options[MAX_MEMORY]
    return SLICE_BYTES if budget is None else max(1, min(SLICE_BYTES, budget // 8))
