"""What a feed does with tables that the source no longer has under their names.

Everything they had is delivered first. One that came by a SCHEMA or DATABASE target leaves the feed
quietly (another table of its name joins as a new one, with a scan). One that the feed names fails
alone, unless it lives on under another name: then the feed follows it, without a scan, and keeps
its target. The log says where rows begin to come under another name
(:attr:`changefeed.sources.base.StreamRequest.names`). If the table has had no rows since then, the
periodic look at the source finds the rename.
"""

from __future__ import annotations

from collections.abc import Callable

from changefeed.capture.source_runtime import SourceRuntime
from changefeed.capture.table_identity import LostTable
from changefeed.catalog import Catalog
from changefeed.catalog.model import TableProgress, TableState
from changefeed.core.clock import Timestamp
from changefeed.core.faults import Point, fault_point
from changefeed.core.schema import TableName
from changefeed.core.table_errors import TableError, about_table, renamed
from changefeed.core.telemetry import log
from changefeed.feeds.feed import Feed
from changefeed.plan.targets import rename_hindrance


class TableRenames:
    """Follows the renamed tables of one feed. Used by the feed's thread only."""

    def __init__(
        self,
        catalog: Catalog,
        source_runtime: SourceRuntime,
        pulled: Callable[[], bool],
        renamed: Callable[[int], None],
    ) -> None:
        """
        Args:
            pulled: the feed's consumer reads the rows from the log itself.
            renamed: called with the job's new generation, whose changes the feed already has.
        """
        self._catalog = catalog
        self._source_runtime = source_runtime
        self._pulled = pulled
        self._renamed = renamed

    def follow(
        self, feed: Feed, table: TableName, now: TableName, at: Timestamp | None = None
    ) -> bool:
        """Continue with a renamed table after all rows under its old name were delivered.

        Args:
            at: where the rows under the new name begin; None if there are none yet.

        Returns:
            Whether the feed goes on with the new name. False: the table has its old name again;
            or, if tables have no ids, a table has, and the name decides.

        Raises:
            TableError: the feed cannot continue with the table.
            ChangefeedError: the source cannot be queried.
        """
        known = feed.tables[table]
        seen = self._source_runtime.source.locate([table], [known.table_id])
        holder = None if seen is None else seen.ids.get(table)
        if at is None and holder == known.table_id:
            return False
        if seen is None and self._source_runtime.source.describe_tables([table]):
            log.info("feed %s: a table has the name %s again", feed.job.name, table)
            return False
        why = self.hindrance(feed, now)
        if holder not in (None, known.table_id):
            why = "another table has that name now"
        if why:
            raise TableError(table, renamed(table, now, why))
        was, is_now = (f"{name.schema}.{name.name}" for name in (table, now))
        text = f'"{was}" was renamed to "{is_now}", its target stays {known.topic}'
        generation = feed.rename_table(table, now, text, at)
        if not generation:
            if table not in feed.tables:
                return False
            raise TableError(table, renamed(table, now, "the feed has a table of that name"))
        log.info("feed %s: %s", feed.job.name, text)
        fault_point(Point.RUNNER_AFTER_RENAME)
        self._renamed(generation)
        return True

    def hindrance(self, feed: Feed, now: TableName) -> str:
        """Why a feed cannot continue with a table of that name; empty: it can."""
        query = feed.query is not None
        rights = self._catalog.owner_rights(feed.job.owner)
        lacks = None if rights is None else rights.table_error(now)
        return rename_hindrance(now, feed.tables, query=query, pulled=self._pulled(), lacks=lacks)


class TableDeparture:
    """Removes the lost tables of one feed. Used by the feed's thread only."""

    def __init__(
        self,
        catalog: Catalog,
        source_runtime: SourceRuntime,
        dropped: Callable[[TableName], None],
        renames: TableRenames,
    ) -> None:
        """
        Args:
            dropped: reports to the feed's sink that a table is gone at the source.
            renames: goes on with tables that are there under another name.
        """
        self._catalog = catalog
        self._source_runtime = source_runtime
        self._dropped = dropped
        self._renames = renames
        #: Losses of tables that were found to have their old name again. Capture still reports them
        #: until its own look at the source finds that, too.
        self._back: dict[TableName, LostTable] = {}

    def turn(self, feed: Feed) -> None:
        """Remove lost tables whose last change was delivered.

        Raises:
            TableError: one that the feed names is lost.
        """
        for table in list(feed.tables.values()):
            lost = self._source_runtime.tables.lost(table.table, table.table_id)
            if lost is None or not self._settled(table, lost) or self._named_again(table, lost):
                continue
            if table.joined or lost.now is None or not _can_follow(table, lost):
                self._leave(feed, table, lost)
            elif self._back.get(table.table) is not lost and not self._renames.follow(
                feed, table.table, lost.now
            ):
                self._back[table.table] = lost

    def _settled(self, table: TableProgress, lost: LostTable) -> bool:
        if table.state is TableState.PAUSED:
            return False  # what it had is delivered when it is resumed
        if table.state is TableState.FAILED:
            return table.joined  # one that is named waits for RESUME
        if table.state is TableState.PENDING and table.done_upto and not table.scan_wanted:
            return False  # it is about to continue from its place
        if table.state is not TableState.RUNNING or table.done_upto is None or table.scan_wanted:
            return True  # its scan would find no table, or another one
        end = self._source_runtime.tables.end_of(lost)
        return end is not None and table.done_upto >= end

    def _named_again(self, table: TableProgress, lost: LostTable) -> bool:
        """Whether a table of a source without ids is there again: then the name decides."""
        if table.table_id:
            return False
        if self._back.get(table.table) is not lost:
            if not self._source_runtime.source.describe_tables([table.table]):
                return False
            self._back[table.table] = lost
        return True

    def _leave(self, feed: Feed, table: TableProgress, lost: LostTable) -> None:
        if lost.dropped:
            with about_table(table.table):
                self._dropped(table.table)
        if not table.joined:
            if lost.now is not None and not table.table_id:
                # RESCAN would not find it either: the source knows no more than its name.
                why = self._renames.hindrance(feed, lost.now) or "its scan had not ended"
                raise TableError(table.table, renamed(table.table, lost.now, why))
            raise TableError(table.table, lost.error)
        feed.save()
        self._catalog.record_event(
            feed.job.id, "table", f"left the feed: {lost.error.message}", table=str(table.table)
        )
        self._catalog.drop_tables(feed.job.id, [table.table])
        feed.keep_only(feed.tables.keys() - {table.table})


def _can_follow(table: TableProgress, lost: LostTable) -> bool:
    """Whether the feed can continue with the new name without repeated or missing rows.

    It cannot after a scan has begun, whose rows may be delivered as of an instant at which the
    table had its old name. And if rows have come under the new name (``lost.at`` is known), the
    feed follows when it reaches that place in the log.
    """
    if table.state is TableState.PENDING:
        return table.scan_wanted and table.done_upto is None and table.scan_at is None
    running = table.state is TableState.RUNNING and table.done_upto is not None
    return running and not table.scan_wanted and lost.at is None
