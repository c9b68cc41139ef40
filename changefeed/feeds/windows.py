"""Feeds whose query groups changes by windows of commit time: one window after the other.

    log -> changes with their windows -> groups of the complete windows -> sink -> progress

A window is complete when the log reaches beyond its end. Progress is always the end of a window, so
after any failure a window is evaluated again from its first change: no change is counted twice or
left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from changefeed.capture.growing_log import LogAccess
from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.events import Ddl, SchemaChange
from changefeed.core.figures import size_text
from changefeed.core.schema import TableName, TableSchema
from changefeed.core.sizes import Sizes
from changefeed.core.table_errors import TableError, about_table, renamed
from changefeed.encoding.encode import encode_messages
from changefeed.feeds.chunks import Chunk, ControlItem, Watermark, items, slice_bytes
from changefeed.feeds.ddl import tell_ddl
from changefeed.feeds.feed import Feed
from changefeed.feeds.schema_policy import check_readable, difference, needs_backfill
from changefeed.feeds.sink_session import SinkSession
from changefeed.query.of_feed import FeedQuery
from changefeed.query.window_rows import SEQ
from changefeed.query.windows import WINDOW, first_start, last_end, through
from sinks.base import Batch, Epoch, Receipt

#: Changes of an incomplete window are in memory, with the columns that the query reads.
WINDOW_BYTES = 512 << 20


@dataclass(frozen=True, slots=True)
class _Sink:
    feed: Feed
    query: FeedQuery
    table: TableName
    after_commit: Callable[[], None]


class _OpenWindows:
    def __init__(self) -> None:
        self.schema: TableSchema | None = None
        self._batches: list[pa.Table] = []
        self.bytes = 0

    def add(self, schema: TableSchema, batch: pa.Table) -> None:
        """Add changes; those of an older schema of the table are converted to the newer one.

        Raises:
            ChangefeedError: CF4001 a column that the query reads has another type since.
        """
        self.schema = schema
        self._batches.append(batch)
        self.bytes += batch.nbytes

    def take(self, end: int) -> pa.Table | None:
        """The changes of the windows that end at ``end`` (ns) or before; None if there are none."""
        if not self._batches:
            return None
        whole = self._joined()
        ends = pc.struct_field(whole[WINDOW], "end").cast(pa.int64())
        taken = pc.less_equal(ends, end // 1_000)
        rest = whole.filter(pc.invert(taken))
        self._batches = [rest] if rest.num_rows else []
        self.bytes = rest.nbytes
        found = whole.filter(taken)
        return found if found.num_rows else None

    def _joined(self) -> pa.Table:
        newest = self._batches[-1].schema
        try:
            return pa.concat_tables(
                batch.select(newest.names).cast(newest) for batch in self._batches
            )
        except (KeyError, pa.ArrowException) as cause:
            raise ChangefeedError(
                Code.VALUE_NOT_ENCODABLE,
                "a column that the query reads got another type within a window",
                hint="DROP the changefeed and CREATE it again: it begins with the next window.",
            ) from cause


class WindowDelivery:
    """Delivers complete windows for one feed. Used by the feed's thread only."""

    def __init__(
        self,
        log: LogAccess,
        sink_session: SinkSession,
        sizes: Sizes | None = None,
        window_bytes: int = WINDOW_BYTES,
    ) -> None:
        self._log = log
        self._sink_session = sink_session
        self._sizes = sizes or Sizes()
        self._window_bytes = window_bytes
        self._number = 0

    def deliver(
        self,
        feed: Feed,
        query: FeedQuery,
        bounds: dict[TableName, Timestamp],
        upto: Timestamp,
        *,
        after_commit: Callable[[], None],
        interrupted: Callable[[], bool],
    ) -> int:
        """Deliver the windows that are complete at ``upto``; returns the number of rows delivered.

        The window in which the feed began is left out, because its first changes are missing.

        Raises:
            TableError: the table cannot go on.
            ChangefeedError: the source or the sink failed.
        """
        ((table, done),) = bounds.items()
        end = last_end(upto, query.window_length)
        begin = max(done, through(first_start(done, query.window_length)))
        rows = 0
        if through(end) > begin:
            to = _Sink(feed, query, table, after_commit)
            rows = self._deliver(to, begin, end, interrupted)
        if upto == feed.job.end_time and not interrupted():
            # The rest is a window whose end the feed does not see.
            feed.advance([table], upto)
            after_commit()
        return rows

    def _deliver(
        self, to: _Sink, begin: Timestamp, end: int, interrupted: Callable[[], bool]
    ) -> int:
        gathered = _OpenWindows()
        rows = 0
        length = to.query.window_length
        most = slice_bytes(to.feed.options)
        for item in items(self._log, {to.table: begin}, through(end), most, None, self._sizes):
            if isinstance(item, Chunk):
                self._gather(to, gathered, item)
            elif isinstance(item, ControlItem):
                rows += self._control(to, gathered, item, length)
            elif isinstance(item, Watermark):
                rows += self._write(to, gathered, last_end(item.upto, length))
                if interrupted():
                    break
                self._check_size(to, gathered)
        return rows

    def _gather(self, to: _Sink, gathered: _OpenWindows, chunk: Chunk) -> None:
        with about_table(to.table):
            to.feed.recognise(chunk.schema)
            gathered.add(chunk.schema, to.query.window_batch(chunk.schema, chunk.load()))

    def _check_size(self, to: _Sink, gathered: _OpenWindows) -> None:
        if gathered.bytes <= self._window_bytes:
            return
        size = size_text(self._window_bytes)
        raise TableError(
            to.table,
            ChangefeedError(
                Code.VALUE_NOT_ENCODABLE,
                f"the changes of one window need more than {size} of memory",
                detail=f"table {to.table}",
                hint="CREATE a changefeed with shorter windows, or one that reads fewer columns.",
            ),
        )

    def _control(self, to: _Sink, gathered: _OpenWindows, item: ControlItem, length: int) -> int:
        """Evaluate windows before a schema change of the table with the old schema.

        A TRUNCATE does not count as a change of a row.
        """
        event = item.event
        if isinstance(event, Ddl):
            tell_ddl(to.feed, self._sink_session, event)
            return 0
        if not isinstance(event, SchemaChange):
            to.feed.record_event("truncate", "all rows were removed", item.table, event.at)
            return 0
        if event.arrived and event.old == event.new and not event.rewritten:
            return 0
        rows = self._write(to, gathered, last_end(event.at.previous(), length))
        if item.renamed:
            why = "a CDC query does not follow"
            raise TableError(item.table, renamed(item.table, event.new.table, why))
        with about_table(to.table):
            to.feed.recognise(event.new)
            check_readable(event)
            to.feed.record_event("schema", difference(event), event.new.table, event.at)
            # Windows have no old rows to send again; the policy may stop the table all the same.
            needs_backfill(event, to.feed.options)
            self._sink_session.evolve(event)
        return rows

    def _write(self, to: _Sink, gathered: _OpenWindows, end: int) -> int:
        reached = through(end)
        done = to.feed.tables[to.table].done_upto or Timestamp.ZERO
        if reached <= done:
            return 0
        with about_table(to.table):
            batch = gathered.take(end)
            made = None if batch is None else self._encoded(to, gathered, batch)
        rows = 0 if made is None else made[0].num_rows
        if made is not None and rows:
            self._commit(to, *made, done, reached)
        to.feed.advance([to.table], reached)
        to.after_commit()
        return rows

    def _encoded(
        self, to: _Sink, gathered: _OpenWindows, batch: pa.Table
    ) -> tuple[pa.Table, TableSchema]:
        schema = gathered.schema
        if schema is None:
            raise AssertionError("changes have a shape")
        last_seq = pc.max(batch[SEQ]).as_py()
        rows = to.query.groups(schema, batch.drop_columns([SEQ]), last_seq)
        plan = to.feed.row_plan(schema)
        if self._sink_session.takes_rows:
            return plan.rows(rows), plan.schema
        return encode_messages(rows, to.feed.messages(schema), None), plan.schema

    def _commit(
        self,
        to: _Sink,
        rows: pa.Table,
        schema: TableSchema,
        done: Timestamp,
        reached: Timestamp,
    ) -> None:
        self._number += 1
        epoch = Epoch(self._number, reached)
        receipts: list[Receipt] = []
        batch = Batch(
            feed=to.feed.job.name,
            epoch=epoch,
            partition=0,
            target=to.feed.target(to.table),
            schema=schema,
            rows=rows,
            after=done,
        )
        try:
            with about_table(to.table):
                receipts.append(self._sink_session.write(batch))
                self._sink_session.commit(epoch, receipts, [to.table], {to.table: reached})
        except BaseException:
            self._sink_session.abort(epoch, receipts)
            raise
        to.feed.count(to.table, receipts[0].rows, receipts[0].bytes)
