"""Makes a source send the wanted tables, and checks that they are still the feeds' tables."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from itertools import starmap
from pathlib import Path

from changefeed.attachments import attachment, capture_tables
from changefeed.capture.growing_log import GrowingLog
from changefeed.capture.lost_tables import LostTables
from changefeed.capture.process import Notice
from changefeed.capture.table_identity import Known, LostTable, capturable
from changefeed.catalog import Catalog, Gap
from changefeed.catalog.database import CachedRead
from changefeed.core.clock import Clock, SystemClock, Timestamp
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.schema import BeforeImage, TableName, TableSchema
from changefeed.core.state import StateLayout
from changefeed.core.telemetry import log
from changefeed.core.timings import Timings
from changefeed.images.states import StoreState, StoreStatus, store_status
from changefeed.images.wanted import wanted_images
from changefeed.sources.base import Source, TableLocations

_SECONDS = "%Y-%m-%d %H:%M:%S"


class TableGaps:
    """The gaps that the state knows, read again when the state has changed."""

    def __init__(
        self,
        catalog: Catalog,
        name: str,
        clock: Clock | None = None,
        timings: Timings | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._timings = timings or Timings()
        self._catalog = catalog
        self._name = name
        self._known: Mapping[TableName, Gap] = {}
        self._saved = CachedRead(catalog.version, partial(catalog.gaps, name))
        #: When the state is asked again.
        self._due = 0.0
        #: When the last check found the source in order.
        self.looked: datetime | None = None

    def add(self, reasons: Mapping[TableName, str]) -> None:
        """Record that changes of these tables may be missing, and fail them in feeds that do not
        run."""
        now = f"{datetime.now(UTC):{_SECONDS}}"
        when = f"between {self.looked:{_SECONDS}} and {now}" if self.looked else f"before {now}"
        texts = {
            table: f'changes to table "{table.schema}.{table.name}" {when} UTC may be missing: '
            f"{why}"
            for table, why in reasons.items()
        }
        ids = self._catalog.captured_table_ids(self._name)
        found = self._catalog.add_gaps(texts)
        for table, gap in found.items():
            log.warning("source %s: %s", self._name, gap.reason)
            self._catalog.fail_idle_tables(table, ids.get(table, 0), gap.error, gap.at)
        self._due = 0.0

    def known(self) -> Mapping[TableName, Gap]:
        """The gaps by table, whichever process found them."""
        now = self._clock.monotonic()
        if now >= self._due:
            # Feeds ask in each of their rounds.
            self._due = now + self._timings.gaps
            self._known = self._saved()
        return self._known


class CapturedTables:
    """The captured tables of one source. :meth:`prepare` must run in one thread at a time; any
    thread may call the other methods.
    """

    def __init__(
        self,
        catalog: Catalog,
        name: str,
        source: Callable[[], Source],
        change_log: GrowingLog,
        clock: Clock,
        timings: Timings,
        *,
        elsewhere: bool = False,
    ) -> None:
        """
        Args:
            clock: for the instants from which the log has a table.
            timings: how often the state is asked for gaps that another process found.
            elsewhere: a node of another host captures, and has the row images.
        """
        self._catalog = catalog
        self._name = name
        self._source = source
        self._log = change_log
        self._clock = clock
        self._lost = LostTables(catalog, name)
        self._gaps = TableGaps(catalog, name, clock, timings)
        self._captured: Mapping[TableName, int] = {}
        self._images = StateLayout(Path(catalog.directory)).images(name)
        self._images_wanted = (lambda: {}) if elsewhere else wanted_images(catalog, name)
        #: For each table that the source cannot send: the error.
        self.problems: dict[TableName, ChangefeedError] = {}

    def prepare(self, wanted: Iterable[Known]) -> None:
        """Look the tables up, and make the source send exactly those that exist.

        On return, every change of one of the tables that is committed later will be sent.
        :attr:`problems` has the tables that the source cannot send, and :meth:`lost` returns
        those that are no longer the tables that a feed began with.

        Raises:
            ChangefeedError: the source refused, or cannot be reached.
        """
        known = frozenset(wanted)
        began = datetime.now(UTC)
        for last in (False, False, True):
            seen, lost = self._lost.look(self._source(), known)
            if lost:
                self._log.wake()
            tables = capturable(known, seen)
            reported = self._look_for_gaps()
            doubtful = (
                self.problems or self._unsafe(tables, seen) or (seen is None and self._lost.names)
            )
            if tables == self._captured and not reported and not doubtful:
                break
            # A table that was there a moment ago was renamed or dropped since: look again.
            if self._capture(tables, reported, named_only=seen is None, certain=last):
                break
        self._gaps.looked = began

    def forget(self) -> None:
        """Forget what the source has agreed to: the connection is another one, or no feed is
        left.
        """
        self._captured = {}

    def hear(self, notice: Notice) -> None:
        """Record the position, found by capture, at which the changes of a lost table end."""
        if self._lost.hear(notice):
            self._log.wake()

    # -- asked by feeds and statements --------------------------------------------------------

    @property
    def gaps(self) -> Mapping[TableName, Gap]:
        """Tables of which changes may be missing in the log, whichever process found that."""
        return self._gaps.known()

    def lost(self, table: TableName, table_id: int) -> LostTable | None:
        """What became of a table that is no longer the one that a feed began with."""
        return self._lost.get(table, table_id)

    def end_of(self, lost: LostTable) -> Timestamp | None:
        """Where in the log the table's changes end; None until the log has reached that
        position.
        """
        if lost.at is not None:
            return lost.at
        at = self._log.timestamp_of(lost.after)
        if at is None or not lost.delay:
            return at
        # While the source is idle, the position is that of ever later timestamps.
        at = Timestamp(at.wall + lost.delay, at.logical)
        self._lost.ends_at(lost, at)
        return at

    def bound(self, feeds: Mapping[int, Collection[Known]]) -> dict[int, str]:
        """Those of these feeds, by their tables, that only the node which captures the source can
        run, and why."""
        images = self._images_wanted()

        def why(table: TableName, table_id: int) -> str:
            lost = self.lost(table, table_id)
            problem = self.problems.get(table) or (lost.error if lost is not None else None)
            if problem is not None:
                return problem.message
            there = f"its row images of {table.schema}.{table.name} are there"
            return there if table in images else ""

        found = {f: next(filter(None, starmap(why, tables)), "") for f, tables in feeds.items()}
        return {feed: reason for feed, reason in found.items() if reason}

    @property
    def ready(self) -> frozenset[TableName]:
        """The tables that are captured, and those that cannot be (their readers get the error)."""
        captured = frozenset(self._catalog.captured(self._name))
        awaited = {table for table, status in self._stores().items() if status.awaited}
        return (captured - awaited) | self.problems.keys() | self._lost.names

    @property
    def filling(self) -> frozenset[TableName]:
        """Tables whose row images a feed wants, and that are being made."""
        return frozenset(table for table, status in self._stores().items() if status.comes)

    def images_lost(self, tables: Collection[TableName]) -> str:
        """Why some of these tables have no row images, or an empty text."""
        stores = self._stores()
        return next((stores[t].reason for t in tables if t in stores and stores[t].reason), "")

    def _stores(self) -> dict[TableName, StoreStatus]:
        wanted = self._images_wanted()
        return {table: store_status(self._images, table) for table in wanted}

    def logged(self, schema: TableSchema) -> TableSchema:
        """The shape in which rows of a table go into the log from now on."""
        wanted = schema.table in self._images_wanted()
        if wanted and store_status(self._images, schema.table).state is StoreState.LIVE:
            return replace(schema, before_image=BeforeImage.FULL)
        return schema

    # -- how ----------------------------------------------------------------------------------

    @staticmethod
    def _unsafe(tables: Mapping[TableName, int], seen: TableLocations | None) -> bool:
        return seen is not None and not seen.unsafe.isdisjoint(tables.values())

    def _look_for_gaps(self) -> Collection[TableName]:
        """Find tables with missing changes, because a change at the source kept it from sending
        them. The gap is saved before that change is undone, so that a crash does not lose it.

        Raises:
            ChangefeedError: CF2102 nothing makes the source send them any longer.
        """
        if not self._catalog.source_state(self._name).identity:
            return ()
        ids = {i: table for table, i in self._catalog.captured_table_ids(self._name).items() if i}
        altered = attachment(self._catalog, self._source()).altered(ids)
        reasons = {ids[table_id]: reason for table_id, reason in altered.items()}
        self._add_gaps(reasons)
        return reasons.keys()

    def _add_gaps(self, reasons: Mapping[TableName, str]) -> None:
        if reasons:
            self._gaps.add(reasons)
            self._log.wake()

    def _capture(
        self,
        wanted: Mapping[TableName, int],
        reported: Collection[TableName],
        *,
        named_only: bool,
        certain: bool,
    ) -> bool:
        """Make the source send these tables; feeds know already of the gaps of ``reported`` tables.

        ``named_only``: tables have no ids. One that is not there is lost when the log has come to
        where the source stands now: it may have another name, which the log says. Else one that has
        a number and is not there went after the last look: nothing is recorded, unless this is
        ``certain``, and the answer is false.
        """
        prepared = capture_tables(self._catalog, self._source(), sorted(wanted))
        problems = prepared.problems
        absent = {t: e for t, e in problems.items() if e.code is Code.NAME_UNKNOWN}
        if named_only:
            problems = {t: e for t, e in problems.items() if t not in absent}
            if self._lost.see_absent(self._source(), absent):
                self._log.wake()
        self._add_gaps({t: why for t, why in prepared.altered.items() if t not in reported})
        if not certain and any(wanted[table] for table in absent):
            return False
        since = self._since()
        self._leave_out(wanted, problems)
        captured = {t: table_id for t, table_id in wanted.items() if t not in self.problems}
        self._catalog.set_captured(self._name, dict.fromkeys(captured, since), captured)
        self._captured = wanted
        return True

    def _leave_out(
        self, wanted: Mapping[TableName, int], problems: Mapping[TableName, ChangefeedError]
    ) -> None:
        """Log which tables are not captured, and record it for feeds that do not run now.

        A running feed sees :attr:`problems` itself. A paused feed must scan the table when it
        resumes, even if the table is captured again by then: the log lacks the changes in between.
        """
        for table in problems.keys() - self.problems.keys():
            error = problems[table]
            log.warning("source %s: %s %s", self._name, error.code.number, error.message)
            if table in self._catalog.captured(self._name):
                self._catalog.fail_idle_tables(table, wanted.get(table, 0), error)
        self.problems = dict(problems)

    def _since(self) -> Timestamp:
        """The instant from which the log has all changes of a table that was added just now.

        The log may lag, so changes that it still has to read may be older than the addition. Their
        times are the server's.
        """
        frontier = self._log.frontier
        if frontier is None:
            return Timestamp.ZERO
        now = self._source().server_time()
        return max(frontier.at, self._clock.now() if now is None else Timestamp(now))
