"""Changes on their way: log -> chunks -> messages -> sink, one range at a time.

Encoding of the next chunk runs in a second thread while the sink takes the present one, so
that on a backlog Spark and the sink's client work at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa

from changefeed.clock import Timestamp
from changefeed.errors import ChangefeedError
from changefeed.events import SchemaChange, Truncate
from changefeed.jobs.chunks import SLICE_BYTES, Chunk, Item, MarkItem, Turn, items
from changefeed.jobs.feed import Feed
from changefeed.jobs.keeper import SourceKeeper
from changefeed.jobs.outlet import Outlet, TableError
from changefeed.jobs.share import SharedMessages
from changefeed.log import by_file
from changefeed.options import MAX_MEMORY
from changefeed.schema import TableName
from changefeed.spark.encode import encode_big, encode_files, encode_small
from changefeed.spark.segment import Segment
from changefeed.spark.session import SparkEngine
from sinks.base import Batch, Epoch, Receipt

#: Up to this many rows a chunk is encoded on the driver without a Spark job (design.md).
SMALL_ROWS = 5_000


@dataclass(frozen=True, slots=True)
class Encoded:
    """A chunk with its finished messages."""

    chunk: Chunk
    messages: pa.Table


class Round:
    """What was written since the last commit."""

    def __init__(self, epoch: Epoch) -> None:
        self.epoch = epoch
        self.receipts: list[Receipt] = []
        #: Batches written, also those that a mark has had committed: places never repeat.
        self.written = 0
        self.counts: dict[TableName, tuple[int, int]] = {}

    def add(self, table: TableName, receipt: Receipt) -> None:
        """Count a written batch."""
        self.written += 1
        self.receipts.append(receipt)
        rows, size = self.counts.get(table, (0, 0))
        self.counts[table] = (rows + receipt.rows, size + receipt.bytes)


class Delivery:
    """Delivers ranges of the log for one feed. Used by the feed's thread only."""

    def __init__(
        self,
        name: str,
        keeper: SourceKeeper,
        engine: SparkEngine,
        shared: SharedMessages,
        outlet: Outlet,
    ) -> None:
        self._name = name
        self._keeper = keeper
        self._engine = engine
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
        after_turn: Callable[[], bool],
    ) -> int:
        """Move the tables of ``bounds`` (each above its own bound) to ``upto``.

        After every committed turn ``after_turn`` is asked whether to go on. Returns the rows
        delivered.

        Raises:
            TableError: one table cannot go on; nothing after the last turn counts.
            ChangefeedError: the source, Spark or the sink failed.
        """
        source = items(self._keeper, bounds, upto, _slice_bytes(feed))
        total = 0
        settled = False
        current = self._round(upto)
        ahead = self._ahead.submit(self._next, feed, source)
        try:
            while (item := ahead.result()) is not None:
                ended = isinstance(item, Turn) and item.upto >= upto
                if not ended:
                    ahead = self._ahead.submit(self._next, feed, source)
                if isinstance(item, Encoded):
                    total += item.messages.num_rows
                    self._write(feed, item, current)
                elif isinstance(item, MarkItem):
                    self._mark(feed, item, current, on_schema_change)
                elif isinstance(item, Turn):
                    self._commit(feed, current, item)
                    current = self._round(upto)
                    if not after_turn() or ended:
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

    def _next(self, feed: Feed, source: Iterator[Item]) -> Item | Encoded | None:
        """The next item, encoded; runs in the encoding thread."""
        item = next(source, None)
        if not isinstance(item, Chunk):
            return item
        try:
            feed.recognise(item.schema)
            return Encoded(item, self._encode(feed, item))
        except ChangefeedError as error:
            if error.code.number in ("CF4001", "CF1101", "CF1302", "CF2106"):
                raise TableError(item.schema.table, error) from error
            raise

    def _encode(self, feed: Feed, chunk: Chunk) -> pa.Table:
        plan = feed.plan(chunk.schema)

        def compute() -> pa.Table:
            if chunk.rows <= SMALL_ROWS:
                return encode_small(self._engine, chunk.load(), plan, chunk.clean)
            if chunk.in_files:
                ranges = by_file(chunk.pieces)
                segments = [Segment(r.path, r.first_seq, r.last_seq) for r in ranges]
                return encode_files(self._engine, segments, plan, chunk.clean)
            return encode_big(self._engine, chunk.load(), plan, chunk.clean)

        # The rows themselves too: compaction between two reads cuts a slice in other places.
        rows = (chunk.pieces[0].first_seq, chunk.pieces[-1].last_seq, chunk.rows)
        key = (plan.fingerprint(), chunk.after, chunk.upto, chunk.number, *rows)
        return self._shared.get(key, compute)

    def _write(self, feed: Feed, item: Encoded, current: Round) -> None:
        table = item.chunk.schema.table
        receipt = self._outlet.write(
            Batch(
                feed=self._name,
                epoch=current.epoch,
                partition=current.written,
                target=feed.target(table),
                schema=item.chunk.schema,
                rows=item.messages,
                frontier=item.chunk.after,
            )
        )
        current.add(table, receipt)

    def _commit(self, feed: Feed, current: Round, turn: Turn) -> None:
        self._outlet.commit(current.epoch, current.receipts, current.counts)
        for table, (rows, size) in current.counts.items():
            feed.count(table, rows, size)
        current.receipts.clear()
        feed.advance(turn.tables, turn.upto)

    def _mark(
        self,
        feed: Feed,
        item: MarkItem,
        current: Round,
        on_schema_change: Callable[[SchemaChange], None],
    ) -> None:
        """A mark comes after everything before it is durable."""
        shape = item.event.schema if isinstance(item.event, Truncate) else item.event.new
        try:
            feed.recognise(shape)
        except ChangefeedError as error:
            raise TableError(shape.table, error) from error
        self._outlet.commit(current.epoch, current.receipts, current.counts)
        current.receipts.clear()
        if isinstance(item.event, Truncate):
            self._outlet.truncate(item.event)
        else:
            on_schema_change(item.event)


def _slice_bytes(feed: Feed) -> int:
    """How much of the log is taken at once: a slice is in memory about four times, as rows and
    as messages, one being encoded while another is written."""
    budget = feed.options[MAX_MEMORY]
    return SLICE_BYTES if budget is None else max(1, min(SLICE_BYTES, budget // 8))
