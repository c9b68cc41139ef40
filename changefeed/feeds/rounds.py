"""The rounds of a feed: how far each table may advance now, and who delivers its changes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

from changefeed.capture.source_runtime import SourceRuntime
from changefeed.catalog import Catalog
from changefeed.catalog.model import TableState
from changefeed.core.clock import Clock, Timestamp
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.events import SchemaChange
from changefeed.core.schema import TableName
from changefeed.core.telemetry import log
from changefeed.core.timings import Timings
from changefeed.feeds.backlog import Backlog
from changefeed.feeds.chunks import Chunk, ControlItem, Item, items
from changefeed.feeds.delivery import Delivery
from changefeed.feeds.feed import Feed
from changefeed.feeds.lost_tables import TableRenames
from changefeed.feeds.scan_coordinator import ScanCoordinator
from changefeed.feeds.schema_policy import (
    check_message_key,
    check_readable,
    difference,
    needs_backfill,
    scan_has,
)
from changefeed.feeds.sink_session import SinkSession
from changefeed.feeds.windows import WindowDelivery
from changefeed.options import INITIAL_SCAN, InitialScan

#: A pause between two rounds that is shown, seconds; a shorter one is not worth a write.
GATHERS = 1.0
#: No pause is shown as a longer one, seconds.
_LONGEST = 365 * 86_400

#: Of a change that moved rows, to a feed of messages.
LEFT_WITHOUT_DELETES = (
    "rows that left the table with this statement get no messages of their deletion: the source "
    "did not send their keys. The rescan sends every row that is there."
)


@dataclass(frozen=True, slots=True)
class Deliverers:
    """Who delivers rounds.

    Attributes:
        delivery: this thread.
        backlog: Spark, if a backlog is large enough.
        windows: this thread, if the feed's query groups changes.
    """

    delivery: Delivery
    backlog: Backlog
    windows: WindowDelivery


class Rounds:
    """One round after the other, each as far as scans, the log and the sink allow. One thread."""

    def __init__(
        self,
        catalog: Catalog,
        source_runtime: SourceRuntime,
        sink_session: SinkSession,
        scanning: ScanCoordinator,
        deliverers: Deliverers,
        renames: TableRenames,
        clock: Clock,
        timings: Timings,
        *,
        committed: Callable[[], None],
        interrupted: Callable[[], bool],
    ) -> None:
        """
        Args:
            committed: called when a round, or a part of one, is durable in the sink.
            interrupted: whether the feed's thread has something else to do.
        """
        self._catalog = catalog
        self._source_runtime = source_runtime
        self._sink_session = sink_session
        self._scanning = scanning
        self._deliverers = deliverers
        self._renames = renames
        self._clock = clock
        self._timings = timings
        self._committed = committed
        self._interrupted = interrupted
        self._next_round = 0.0
        self._hurried = threading.Event()
        self._state_version: object = None
        self._unknown: Collection[TableName] = set()
        self._seen = Timestamp.ZERO
        self._waiter = source_runtime.log.waiter()
        #: Up to where the changes that gather were weighed, and their bytes.
        self._gathered = (Timestamp.ZERO, 0)

    def hurry(self) -> None:
        """Deliver what the log has, whatever the sink's pace. Safe from any thread."""
        self._hurried.set()

    def reloaded(self) -> None:
        """The feed was altered: read its tables again."""
        self._state_version = None

    def joining(self, feed: Feed) -> bool:
        """Whether a statement added a table that the feed will know only after a reload."""
        self._leave_dropped_tables(feed)
        return bool(self._unknown)

    def wake(self) -> None:
        """End :meth:`wait`; safe from any thread."""
        self._waiter.wake()

    def wait(self, feed: Feed, *, prompt: bool) -> None:
        """Wait until the log has more; for a sink with a commit interval, let changes gather then.

        The pause comes second: a change that arrives after the pause then wakes the thread once.

        ``prompt``: time that passes is enough; else the log must have more of the feed's tables.
        """
        # Feeds that were woken together do not stay together: they would share one CPU again and
        # again at the same moment.
        idle = self._timings.feed_idle * (1 - feed.job.id % 16 / 64)
        # Not the high-water mark: it stays behind while a backfill is needed.
        self._waiter.wait_beyond(self._seen, idle, None if prompt else feed.tables.keys())
        pause = self._next_round - self._clock.monotonic()
        if pause > 0 and not self._hurried.is_set():
            # Ignore log growth during the pause, but wake for statements and for the scan.
            self._waiter.wait_beyond(Timestamp.MAX, min(pause, idle))

    def turn(self, feed: Feed) -> bool:
        """Deliver what the log has beyond the feed's progress; returns whether rows were
        delivered.
        """
        if self._sink_session.pulled:
            self._seen = Timestamp.MAX
            follow_consumer(
                feed, self._sink_session.consumed(), self._scanning, self._source_runtime.log.oldest
            )
            return False
        began = self._clock.monotonic()
        if began < self._next_round and not self._hurried.is_set() and not self._filled(feed):
            return False
        self._hurried.clear()
        self._gathered = (Timestamp.ZERO, 0)
        frontier = self._source_runtime.log.frontier
        at = frontier.at if frontier else Timestamp.ZERO
        groups = list(self._groups(feed, at))
        if not (quiet := self._only_time_passed(feed, groups)):
            self._leave_dropped_tables(feed)
            groups = list(self._groups(feed, at))
        # While a scan holds back every table, new log entries must not wake us.
        self._seen = at if any(upto == at for upto, _ in groups) else Timestamp.MAX
        if quiet:
            return False
        rows = 0
        for upto, bounds in groups:
            behind = {name: at for name, at in bounds.items() if at < upto}
            if not behind:
                continue
            rows += self._deliver(feed, behind, upto)
            if self._interrupted():
                self._seen = Timestamp.ZERO  # the rest need not wait
                break
        if rows:
            rest = min(self._sink_session.pace, self._timings.rest_longest)
            self._next_round = max(self._clock.monotonic() + rest, began + self._timings.gather)
            if rest >= GATHERS:
                now = self._clock.now().wall
                feed.gather(now, now + int(min(rest, _LONGEST) * 1e9))
        return rows > 0

    def _only_time_passed(
        self, feed: Feed, groups: Iterable[tuple[Timestamp, dict[TableName, Timestamp]]]
    ) -> bool:
        """Whether the log has nothing for the feed; its tables then advance to where they may.

        A feed finds this each second as long as nobody changes its tables, so it has to be cheap.
        """
        if feed.boundaries is not None or (feed.query is not None and feed.query.grouped):
            return False  # transactions of other tables, or time, make messages of these feeds
        for upto, bounds in groups:
            behind = {name: at for name, at in bounds.items() if at < upto}
            if behind:
                if not self._source_runtime.log.has_nothing(behind, upto):
                    return False
                feed.advance(behind, upto)
        return True

    def _filled(self, feed: Feed) -> bool:
        """Whether the changes that gather are as many as the sink wants in one commit. Reads each
        stretch of the log's index once."""
        most = self._sink_session.round_bytes
        frontier = self._source_runtime.log.frontier
        if not most or frontier is None:
            return False
        weighed, size = self._gathered
        for upto, bounds in self._groups(feed, frontier.at):
            rest = {t: max(at, weighed) for t, at in bounds.items() if max(at, weighed) < upto}
            for item in items(self._source_runtime.log, rest, upto) if rest else ():
                if isinstance(item, Chunk):
                    size += sum(piece.bytes for piece in item.pieces)
        self._gathered = (frontier.at, size)
        return size >= most

    def _check_unread(
        self, feed: Feed, bounds: dict[TableName, Timestamp], upto: Timestamp
    ) -> None:
        """Let the scan of a table begin again if the changes that are about to be delivered do not
        complete what it has delivered (:mod:`changefeed.scan.thread`)."""
        for name, at in bounds.items():
            if feed.tables[name].unread is None:
                continue
            changes = items(self._source_runtime.log, {name: at}, upto)
            if not all(_has_all_values(item) for item in changes):
                feed.update(name, unread=None)

    def _deliver(self, feed: Feed, bounds: dict[TableName, Timestamp], upto: Timestamp) -> int:
        self._check_unread(feed, bounds, upto)
        if feed.query is not None and feed.query.grouped:
            return self._deliverers.windows.deliver(
                feed,
                feed.query,
                bounds,
                upto,
                after_commit=self._committed,
                interrupted=self._interrupted,
            )
        done = self._deliverers.backlog.deliver(feed, bounds, upto, interrupted=self._interrupted)
        if done.moved or (done.node_upto is not None and done.node_upto < upto):
            # More rows wait, for another job or for this thread.
            self._seen = Timestamp.ZERO
        if done.moved:
            self._committed()
            return done.rows
        if self._interrupted():
            return 0
        upto = min(upto, done.node_upto or upto)
        behind = {name: at for name, at in bounds.items() if at < upto}
        return self._deliverers.delivery.deliver(
            feed,
            behind,
            upto,
            on_schema_change=lambda event: self._schema_changed(feed, event),
            on_rename=lambda event: self._renamed(feed, event),
            after_commit=self._committed,
            interrupted=self._interrupted,
            scanned=upto == self._scanning.at
            and all(self._scanning.holds(feed.tables[name]) for name in behind),
        )

    def _leave_dropped_tables(self, feed: Feed) -> None:
        """Stop delivering dropped tables: nothing that commits after ALTER .. DROP has returned.

        The rest of an ALTER waits for the node, which has to prepare the source first.
        """
        version = self._catalog.version()
        if version != self._state_version:
            self._state_version = version
            names = self._catalog.table_names(feed.job.id, version)
            feed.keep_only(names)
            self._unknown = names - feed.tables.keys()

    def _groups(
        self, feed: Feed, frontier: Timestamp
    ) -> Iterator[tuple[Timestamp, dict[TableName, Timestamp]]]:
        """Running tables, grouped by how far they may advance now.

        A table that waits for its backfill stops at the scan's timestamp. A feed that only
        scans delivers no changes.
        """
        if feed.options[INITIAL_SCAN] is InitialScan.ONLY:
            return
        end = feed.job.end_time
        upto = min(frontier, end) if end is not None else frontier
        free: dict[TableName, Timestamp] = {}
        held: dict[Timestamp, dict[TableName, Timestamp]] = {}
        for table in feed.in_state(TableState.RUNNING, TableState.SCANNING):
            if table.done_upto is None:
                continue
            if not self._scanning.holds(table):
                if table.state is TableState.RUNNING:
                    free[table.table] = table.done_upto
            elif self._scanning.at is not None:
                held.setdefault(self._scanning.at, {})[table.table] = table.done_upto
        if free:
            yield upto, free
        for scan_at, bounds in held.items():
            yield min(upto, scan_at), bounds

    def _renamed(self, feed: Feed, event: SchemaChange) -> None:
        table = event.old.table
        followed = self._renames.follow(feed, table, event.new.table, event.at)
        if not followed and table in feed.tables:
            feed.advance([table], event.at)  # no rows under the old name have that instant
        self._seen = Timestamp.ZERO  # there is more, under the new name

    def _schema_changed(self, feed: Feed, event: SchemaChange) -> None:
        check_readable(event)
        table = event.new.table
        name = feed.job.name
        log.info("feed %s: the schema of %s changed: %s", name, table, difference(event))
        feed.record_event("schema", difference(event), table, event.at)
        owed = feed.tables[table]
        scanned = scan_has(event, owed)
        if not scanned and not self._sink_session.takes_rows:
            check_message_key(event, feed.options)
        by_name = not self._sink_session.takes_rows
        if needs_backfill(event, feed.options, scanned=scanned, by_name=by_name):
            # Resolved timestamps stay below the schema change until its backfill was delivered,
            # because the scan reads the table as it is after the change.
            since = owed.scan_at if owed.scan_wanted and owed.scan_at else event.at
            feed.update(
                table,
                scan_wanted=True,
                scan_at=since,
                scan_rows=0,
                scan_total=0,
                repair=None,
                unread=None,
            )
            if event.moved and by_name:
                feed.record_event("notice", LEFT_WITHOUT_DELETES, table, event.at)


def follow_consumer(
    feed: Feed, consumed: Timestamp | None, scanning: ScanCoordinator, oldest: Timestamp
) -> None:
    """Set the progress of the feed's tables to that of the consumer.

    Args:
        consumed: what the consumer has committed; None before its first commit.
        oldest: the change log holds everything above this.

    Raises:
        ChangefeedError: CF3002, retention removed changes that the consumer has not read.
    """
    for table in feed.in_state(TableState.RUNNING, TableState.SCANNING):
        done = table.done_upto
        if done is None:
            continue
        if scanning.holds(table):
            # A repeated scan: no consumer saw the rows of the interrupted one, so no changes
            # need to be delivered between the two.
            if scanning.at is not None:
                feed.advance([table.table], scanning.at)
            continue
        reached = done if consumed is None else max(done, consumed)
        if oldest is not Timestamp.MAX and reached < oldest:
            raise ChangefeedError(
                Code.POSITION_TOO_OLD,
                f"the reader of {table.table} has committed {reached}, and the change log begins "
                f"at {oldest}",
                hint="make another reader, which begins with a scan of the table.",
            )
        feed.advance([table.table], reached)


def _has_all_values(item: Item) -> bool:
    """Whether changes are rows that lack no value, of the table as it was."""
    if isinstance(item, Chunk):
        return not any(piece.has_unsent for piece in item.pieces)
    return not isinstance(item, ControlItem)
