"""The sink side of a feed: one opened sink for changes, one for the scan, and who is to blame.

An error of the sink that concerns one table only becomes a :class:`TableError`, so that the
other tables go on.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from changefeed.catalog import Catalog
from changefeed.clock import Timestamp
from changefeed.errors import ChangefeedError
from changefeed.events import Resolved, Truncate
from changefeed.faults import fault_point
from changefeed.jobs.feed import Feed
from changefeed.options import ENVELOPE
from changefeed.schema import TableName
from changefeed.shapes import Envelope
from changefeed.spark.plan import mark_payload
from changefeed.telemetry import log
from sinks.base import Batch, Delivery, Epoch, Receipt, Sink, SinkContext
from sinks.registry import open_sink

#: Errors that concern one table: others of the feed go on.
TABLE_ERRORS = frozenset({"CF5003", "CF5006"})


class TableError(Exception):
    """An error that stops one table of the feed and no other."""

    def __init__(self, table: TableName, error: ChangefeedError) -> None:
        super().__init__(error.message)
        self.table = table
        self.error = error


class Outlet:
    """The sinks of one feed. The scan thread uses :meth:`for_scan` only."""

    def __init__(
        self, catalog: Catalog, feed: Feed, node_id: str, given: Sink | None = None
    ) -> None:
        """``given``: the one sink object of a sinkless feed, else sinks are made from the URI."""
        self._catalog = catalog
        self._feed = feed
        self._node_id = node_id
        self._given = given
        self._sink: Sink | None = None
        self._scan_sink: Sink | None = None

    def made_anew(self) -> Sink:
        """Another sink object of the feed, not opened."""
        if self._given is not None:
            return self._given
        if self._feed.job.sink_uri is None:
            raise AssertionError("a feed without a sink URI is given its sink")
        options: dict[str, object] = {**self._feed.options, "state_url": self._catalog.url}
        return open_sink(self._catalog.resolve_uri(self._feed.job.sink_uri), options)

    def context(self) -> SinkContext:
        """What the sink may know now."""
        return self._feed.sink_context(self._node_id)

    def open(self, feed: Feed | None = None) -> Sink:
        """Open the sink, or tell an opened one of the feed's present targets."""
        if feed is not None:
            self._feed = feed
        if self._sink is None:
            sink = self.made_anew()
            sink.open(self.context())
            self._sink = sink
        elif feed is not None:
            self._sink.open(self.context())
        return self._sink

    def for_scan(self) -> Sink:
        """The scan thread's own opened sink."""
        if self._given is not None:
            return self.open()
        if self._scan_sink is None:
            self._scan_sink = self.made_anew()
        self._scan_sink.open(self.context())
        return self._scan_sink

    @property
    def runs_in_executors(self) -> bool:
        """Spark's executors may write to the sink."""
        return self._given is None and self.open().capabilities.executor

    @property
    def pace(self) -> float:
        """Seconds the sink likes between two commits."""
        return self.open().capabilities.pace

    @property
    def resolves(self) -> bool:
        """The sink carries resolved timestamps."""
        return self.open().capabilities.resolved

    def write(self, batch: Batch) -> Receipt:
        """Hand over messages.

        Raises:
            TableError: the sink refuses this table's data.
            ChangefeedError: anything else.
        """
        fault_point("runner.before_write")
        try:
            return self.open().write(batch)
        except ChangefeedError as error:
            if error.code.number in TABLE_ERRORS:
                raise TableError(batch.target.table, error) from error
            raise

    def commit(
        self, epoch: Epoch, receipts: Sequence[Receipt], tables: Collection[TableName]
    ) -> None:
        """Return once everything is durable in the target; ``tables`` is what it may be of.

        Raises:
            TableError: the sink refuses the data of one table.
            ChangefeedError: anything else.
        """
        if not receipts:
            return
        try:
            delivery = self.open().commit(epoch, receipts)
        except ChangefeedError as error:
            table = self._blamed(error, tables)
            if table is not None:
                raise TableError(table, error) from error
            raise
        if delivery is not Delivery.DURABLE:
            raise ChangefeedError("CF5004", "the sink did not make the messages durable")
        fault_point("runner.after_commit")

    def _blamed(self, error: ChangefeedError, tables: Collection[TableName]) -> TableName | None:
        """The table an error of ``commit`` is about: the only one there was, or by its topic."""
        if error.code.number not in TABLE_ERRORS:
            return None
        if len(tables) == 1:
            return next(iter(tables))
        words = f"{error.message} {error.detail} ".replace(":", " ").replace(",", " ").split()
        return next((t for t in tables if self._feed.target(t).topic in words), None)

    def abort(self, epoch: Epoch, receipts: Sequence[Receipt]) -> None:
        """Forget what was written and not committed, half a write too."""
        if self._sink is not None:
            self._sink.abort(epoch, receipts)

    def truncate(self, event: Truncate) -> None:
        """Tell consumers that a table was emptied."""
        target = self._feed.target(event.schema.table)
        self.open().truncate(event, target, self._payload("truncate", event.at))

    def resolved(self, at: Timestamp) -> None:
        """Tell consumers that nothing at or below ``at`` follows."""
        self.open().resolved(Resolved(at), self._payload("resolved", at))

    def _payload(self, member: str, at: Timestamp) -> bytes:
        return mark_payload(Envelope(self._feed.options[ENVELOPE].value), member, at)

    def close(self, *, for_good: bool = False) -> None:
        """Close the sinks; a given one only ``for_good``."""
        for sink in (self._sink, self._scan_sink):
            if sink is not None and (for_good or sink is not self._given):
                try:
                    sink.close()
                except ChangefeedError as error:
                    log.warning("closing the sink: %s", error.message)
        self._sink = self._scan_sink = None
