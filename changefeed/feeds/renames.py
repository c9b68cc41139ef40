"""Feeds follow a table that was renamed, whose rows then come under another name.

A feed that names a table follows it, without a scan, and keeps its target. Capture tells every
reader of the log where rows begin to come under another name
(:attr:`changefeed.sources.base.StreamRequest.names`). If the table has had no rows since then, the
periodic look-up at the source finds the rename (:mod:`.lost_tables`).
"""

from __future__ import annotations

from collections.abc import Callable

from changefeed.capture.source_runtime import SourceRuntime
from changefeed.core.clock import Timestamp
from changefeed.core.faults import Point, fault_point
from changefeed.core.schema import TableName
from changefeed.core.table_errors import TableError, renamed
from changefeed.core.telemetry import log
from changefeed.feeds.feed import Feed
from changefeed.plan.targets import rename_hindrance


class TableRenames:
    """Follows the renamed tables of one feed. Used by the feed's thread only."""

    def __init__(
        self,
        source_runtime: SourceRuntime,
        pulled: Callable[[], bool],
        renamed: Callable[[int], None],
    ) -> None:
        """
        Args:
            source_runtime: the feed's source.
            pulled: the feed's consumer reads the rows from the log itself.
            renamed: called with the job's new generation, whose changes the feed already has.
        """
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
        return rename_hindrance(now, feed.tables, query=query, pulled=self._pulled())
