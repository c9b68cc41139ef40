"""Decides which tables of a feed need a scan, and follows the running scan."""

from __future__ import annotations

import threading
from collections.abc import Callable

from changefeed.capture.source_runtime import SourceRuntime
from changefeed.catalog import Catalog
from changefeed.catalog.model import TableProgress, TableState
from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.events import Position
from changefeed.core.faults import Point, fault_point
from changefeed.core.schema import TableName
from changefeed.core.table_errors import TableError, before_log
from changefeed.feeds.feed import Feed
from changefeed.options import CURSOR, INITIAL_SCAN, DebeziumOffset, InitialScan
from changefeed.scan.thread import SnapshotScan, TableScan

JOIN_SECONDS = 30.0


class ScanCoordinator:
    """Starts and follows scans, and sets the start of tables without one. Used by one thread."""

    def __init__(
        self,
        catalog: Catalog,
        source_runtime: SourceRuntime,
        stopping: threading.Event,
        start: Callable[[list[TableProgress]], SnapshotScan],
        resolved: Callable[[], Timestamp | None] = lambda: None,
        joined: Callable[[TableName, Timestamp], None] = lambda table, at: None,
        holds_target: Callable[[TableName], bool] = lambda table: True,
    ) -> None:
        """
        Args:
            resolved: the last resolved timestamp that consumers got.
            joined: called with a table that a pattern brought and where its first scan begins,
                before the scan delivers anything.
            holds_target: whether what a table's scan has delivered so far can still be there.
        """
        self._resolved = resolved
        self._joined = joined
        self._holds_target = holds_target
        self._catalog = catalog
        self._source_runtime = source_runtime
        self._stopping = stopping
        self._start = start
        self._scan: SnapshotScan | None = None
        #: Tables of the running scan that are finished and saved: if they need a scan again,
        #: that is another scan, however long this one continues with its other tables.
        self._taken: set[TableName] = set()
        #: The most rows that any attempt of the needed scan has made durable.
        self._furthest = 0
        #: Whether the scan got further than every earlier attempt since the last :meth:`follow`.
        self.advanced = False

    def active(self, feed: Feed) -> bool:
        """Whether a scan runs or is needed."""
        return self._scan is not None or bool(_owed(feed))

    def owes(self, feed: Feed) -> bool:
        """Whether the scan of some table is not delivered yet."""
        return bool(_owed(feed))

    @property
    def reads(self) -> bool:
        """Whether the running scan has its snapshot: it does not wait for Spark or the source."""
        return self._scan is not None and self._scan.at is not None

    @property
    def delivers(self) -> bool:
        """Whether rows of the running scan are durable in the sink."""
        return self._scan is not None and self._scan.delivered

    def holds(self, table: TableProgress) -> bool:
        """Whether a backfill of this table runs: its changes must not pass :attr:`at`."""
        scan = self._scan
        name = table.table
        mine = scan is not None and name in scan.tables and name not in self._taken
        return mine and table.scan_wanted

    @property
    def at(self) -> Timestamp | None:
        """The timestamp of the running scan, once it is known: held tables advance up to it."""
        return self._scan.at if self._scan is not None else None

    @property
    def waits(self) -> bool:
        """Whether the scan knows its timestamp and waits until :meth:`follow` has saved it."""
        scan = self._scan
        return scan is not None and scan.at is not None and not scan.timestamp_saved.is_set()

    def text(self) -> str:
        """The progress of the scan and the time that it still needs, as text for users."""
        return self._scan.text() if self._scan is not None else "initial scan"

    def begin(self, feed: Feed) -> None:
        """Start a scan of the tables that need one; set the start of those that do not."""
        if self._scan is not None:
            return
        for table in [t for t in _owed(feed) if not t.scan_wanted]:
            self._place(feed, table)
        for table in [t for t in _owed(feed) if t.partition and t.partition.of_messages]:
            self._go_on(feed, table)
        owed = [t for t in _owed(feed) if t.scan_wanted]
        for table in owed:
            self._begin_table(feed, table)
        if not owed:
            self._furthest = 0
        if owed:
            self._taken.clear()
            self._scan = self._start([feed.tables[t.table] for t in owed])
            tables = "1 table" if len(owed) == 1 else f"{len(owed)} tables"
            self._catalog.record_event(feed.job.id, "scan", f"a scan of {tables} begins")
            self._scan.start()

    def _begin_table(self, feed: Feed, table: TableProgress) -> None:
        if table.state is TableState.PENDING:
            feed.update(table.table, state=TableState.SCANNING)
        broken = table.done_upto is None and table.scan_at is not None
        if broken and feed.options[INITIAL_SCAN] is not InitialScan.ONLY:
            # The interrupted scan may already have delivered rows as of that timestamp; only
            # the change stream reveals deletes since.
            table = feed.update(table.table, done_upto=table.scan_at)
        if feed.options[INITIAL_SCAN] is InitialScan.ONLY and table.done_upto is not None:
            # Scanned before and lost since: no changes follow with which it could catch up.
            table = feed.update(table.table, done_upto=None)
        if table.repair is not None and table.done_upto is None:
            table = feed.update(table.table, repair=None)
        if table.rescan_owed:
            self._skip_gap(feed, table)
        if table.unread is not None and not self._holds_target(table.table):
            # Saved before changes are delivered, which make another target.
            feed.update(table.table, unread=None)
            feed.save()

    def _go_on(self, feed: Feed, table: TableProgress) -> None:
        """Continue logical messages without a scan: they exist only in the log, and messages
        that it no longer has are lost.
        """
        self._source_runtime.wait_captured([table.table], self._stopping)
        done, oldest = table.done_upto, self._source_runtime.log.oldest
        if done is not None and done < oldest < Timestamp.MAX:
            self._catalog.record_event(
                feed.job.id,
                "notice",
                f"the logical messages between {done} and {oldest} are lost: the change log does "
                "not have them any more",
                table=str(table.table),
            )
            done = oldest
        feed.update(table.table, scan_wanted=False, rescanned=table.rescan, done_upto=done)
        self._place(feed, feed.tables[table.table])

    def _skip_gap(self, feed: Feed, table: TableProgress) -> None:
        """Skip changes that the log no longer has, because RESCAN allows it: they are not
        delivered, but the rows of the scan include their effect.
        """
        done = table.done_upto
        oldest = self._source_runtime.log.oldest
        if done is None or done >= oldest:
            return
        self._skip(feed, table, f"are not in the change log, which begins at {oldest}")

    def skip_undeliverable(self, feed: Feed, failed: TableError) -> bool:
        """Skip changes of a table that cannot be delivered, where RESCAN allows it.

        Without this a RESCAN, which first delivers the changes up to its scan, would fail at the
        same change for ever. Returns False if the table is to fail.
        """
        table = feed.tables.get(failed.table)
        if table is None or table.done_upto is None or not table.rescan_owed:
            return False
        codes = _UNDELIVERABLE if feed.query is None else _UNDELIVERABLE_TO_QUERY
        if failed.error.code not in codes:
            return False
        # The running scan waits for these changes.
        self.stop(feed)
        self._skip(feed, feed.tables[failed.table], f"cannot be delivered: {failed.error.message}")
        return True

    def _skip(self, feed: Feed, table: TableProgress, why: str) -> None:
        # What the changes said of other rows than those of a repair is lost, too.
        feed.update(table.table, done_upto=None, scan_at=None, repair=None, unread=None)
        self._catalog.record_event(
            feed.job.id,
            "notice",
            f"the changes between {table.done_upto} and the rescan {why}; a message sink gets no "
            "messages for rows that were deleted then",
            table=str(table.table),
        )

    def follow(self, feed: Feed, show: Callable[[], None]) -> None:
        """Save what the scan has finished. ``show`` is called first, so that a caller who waits for
        the progress finds the feed's status changed, too.

        Raises:
            TableError: one table cannot be scanned.
            ChangefeedError: the scan failed; it is repeated for the remaining tables.
        """
        scan = self._scan
        self.advanced = False
        if scan is None:
            return
        ended = not scan.is_alive()
        if self.waits:
            self._save_timestamp(feed, scan)
        self._measure(scan)
        for name in scan.tables:
            self._follow_table(feed, scan, name, show)
        if ended:
            self._scan = None
            if scan.error is not None:
                raise scan.error

    def stop(self, feed: Feed) -> None:
        """End the running scan; its unfinished tables still need one, which goes on from what this
        one has delivered, where it can."""
        scan, self._scan = self._scan, None
        if scan is not None:
            scan.stop()
            # From here on the thread delivers nothing more, even if it still runs.
            scan.barrier.close()
            # Before it knows its timestamp it may wait long for its snapshot: until the
            # transactions open at the source end.
            if scan.at is not None:
                scan.join(JOIN_SECONDS)
            for name, table in scan.tables.items():
                now = feed.tables.get(name)
                if now is not None and name not in self._taken:
                    self._keep_unread(feed, table, now)

    def _measure(self, scan: SnapshotScan) -> None:
        """Record whether rows are durable that no earlier attempt reached. A scan that fails at the
        same row each time makes no progress, and would be repeated for ever."""
        rows = sum(t.rows for name, t in scan.tables.items() if name not in self._taken)
        if scan.delivered and rows > self._furthest:
            self._furthest, self.advanced = rows, True

    def _save_timestamp(self, feed: Feed, scan: SnapshotScan) -> None:
        for name in scan.tables:
            now = feed.tables.get(name)
            owed = now is not None and now.scan_wanted and now.state is not TableState.FAILED
            # A table that has a position got it from an earlier attempt, whose rows may be
            # delivered: rows of later scans in the sink do not count until one scan is saved.
            if owed and now is not None and now.scan_at is None and name not in self._taken:
                if now.never_began and scan.at is not None:
                    self._joined(name, scan.at)
                feed.update(name, scan_at=scan.at)
        feed.save()
        # A RESCAN meanwhile ends this scan: its rows must not be delivered, because the
        # timestamp from which changes must follow was not saved.
        if not feed.superseded & scan.tables.keys():
            scan.timestamp_saved.set()

    def _follow_table(
        self, feed: Feed, scan: SnapshotScan, name: TableName, show: Callable[[], None]
    ) -> None:
        table = scan.tables[name]
        now = feed.tables.get(name)
        if now is None or now.state is TableState.FAILED or not now.scan_wanted:
            return
        if name in self._taken:
            return
        if table.error is not None:
            raise TableError(name, table.error)
        if table.repair is not None and now.repair is None:
            # All rows have to be read by now: by the next scan.
            table.dismissed = True
            table.caught_up.set()
            return
        now = self._keep_unread(feed, table, now)
        if table.done and scan.at is not None:
            self._taken.add(name)
            self._furthest, self.advanced = 0, True
            feed.update(
                name,
                state=TableState.RUNNING,
                scan_wanted=False,
                rescanned=now.rescan,
                repair=None,
                unread=None,
                scan_at=scan.at,
                done_upto=scan.at if now.done_upto is None else max(now.done_upto, scan.at),
                scan_rows=table.rows,
                scan_total=table.rows,
                emitted_rows=now.emitted_rows + table.rows,
                emitted_bytes=now.emitted_bytes + table.bytes,
                schema_version=_version(table, now),
            )
            show()
            feed.save()
            # Durable before: a letter goes only when its row is where it belongs.
            self._catalog.forget_delivered_letters(
                feed.job.id,
                name,
                rescan=now.rescan,
                whole=scan.at if table.repair is None else None,
            )
            self._catalog.record_event(
                feed.job.id,
                "scan",
                f"{_scanned(table)} as of {scan.at}",
                table=str(name),
            )
            fault_point(Point.SCAN_TABLE_SAVED)
            return
        # A feed with an end time delivers nothing beyond it, so its scan need not wait for more.
        end = feed.job.end_time or Timestamp.MAX
        if (
            table.backfill
            and scan.at
            and now.done_upto
            and now.done_upto >= min(scan.at, end)
            and (table.before is None or table.goes_on is not None)
            and not table.caught_up.is_set()
        ):
            if not table.goes_on:
                now = feed.update(name, unread=None)
            table.before = now.unread
            # Saved before any row of the scan is delivered: after a crash the changes continue
            # from there, so in sinks that order by time (files) later rows follow the scan's
            # rows.
            feed.save()
            table.caught_up.set()
        if (table.rows, table.total) != (now.scan_rows, now.scan_total):
            feed.update(name, scan_rows=table.rows, scan_total=table.total)

    def _keep_unread(self, feed: Feed, scanned: TableScan, now: TableProgress) -> TableProgress:
        """Take over what the scan has still to read, for the next one if this one breaks."""
        ledger = scanned.ledger
        if ledger is None or not now.scan_wanted or ledger.unread in (None, now.unread):
            return now
        return feed.update(scanned.name, unread=ledger.unread)

    def _place(self, feed: Feed, table: TableProgress) -> None:
        cursor = feed.job.cursor
        if table.done_upto is not None:
            at = table.done_upto
        elif cursor is not None and table.start is None:
            self._source_runtime.wait_captured([table.table], self._stopping)
            self._check_cursor(table.table, cursor)
            at = cursor
        else:
            self._source_runtime.wait_captured([table.table], self._stopping)
            position = table.start or self._source_runtime.source.current_position()
            at = self._source_runtime.log.wait_position(position, self._stopping)
            if isinstance(feed.options[CURSOR], DebeziumOffset):
                self._check_offset(table.table, position, at)
            # What was resolved meanwhile was committed before the statement answered.
            at = max(at, self._resolved() or at)
        feed.update(table.table, state=TableState.RUNNING, done_upto=at)

    def _check_offset(self, table: TableName, position: Position, at: Timestamp) -> None:
        if not self._source_runtime.log.has(position):
            raise TableError(
                table,
                ChangefeedError(
                    Code.POSITION_TOO_OLD,
                    f"the connector's offset is before the change log of {table}",
                    hint="DROP the feed and make it without cursor, for an initial scan.",
                ),
            )
        self._check_cursor(table, at)

    def _check_cursor(self, table: TableName, cursor: Timestamp) -> None:
        since = self._catalog.captured(self._source_runtime.name).get(table)
        oldest = self._source_runtime.log.oldest
        begin = oldest if since is None else max(since, oldest)
        if cursor < begin:
            hint = "use a later cursor, or leave it out for an initial scan."
            raise TableError(table, before_log(cursor, table, begin, hint))


#: Errors of a change or of a shape of the table, which is in the log, or missing there, for good.
_UNDELIVERABLE = frozenset({Code.VALUE_NOT_ENCODABLE, Code.TABLE_NOT_READABLE})
_UNDELIVERABLE_TO_QUERY = _UNDELIVERABLE | {Code.NAME_UNKNOWN, Code.NOT_SUPPORTED}


def _version(scanned: TableScan, now: TableProgress) -> int:
    """The version that all rows in the sink have. A repair is of some rows: a schema change that it
    saw still needs its backfill."""
    if scanned.repair is None and scanned.schema is not None:
        return scanned.schema.version
    return now.schema_version


def _scanned(table: TableScan) -> str:
    if table.repair is None:
        return f"scanned: {table.rows:,} rows"
    return f"repaired by key: {table.rows:,} rows"


def _owed(feed: Feed) -> list[TableProgress]:
    new = feed.in_state(TableState.PENDING, TableState.SCANNING)
    return new + [t for t in feed.in_state(TableState.RUNNING) if t.scan_wanted]
