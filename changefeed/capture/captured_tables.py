"""The tables that a source sends: made so, and held against what the feeds began with."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import UTC, datetime

from changefeed.attachments import attachment, capture_tables
from changefeed.capture.growing_log import GrowingLog
from changefeed.capture.lost_tables import LostTables
from changefeed.capture.process import Notice
from changefeed.capture.table_gaps import TableGaps
from changefeed.capture.table_identity import Known, LostTable, capturable
from changefeed.catalog import Catalog, Gap
from changefeed.core.clock import Clock, Timestamp
from changefeed.core.errors import ChangefeedError
from changefeed.core.schema import TableName
from changefeed.core.telemetry import log
from changefeed.core.timings import Timings
from changefeed.sources.base import Source, TableLocations


class CapturedTables:
    """Of one source. :meth:`prepare` and what it calls run in one thread at a time; the rest may be
    asked by any thread."""

    def __init__(
        self,
        catalog: Catalog,
        name: str,
        source: Callable[[], Source],
        change_log: GrowingLog,
        clock: Clock,
        timings: Timings,
    ) -> None:
        """
        Args:
            catalog: the state.
            name: the source's.
            source: gives the source, opened.
            change_log: its change log.
            clock: for the instants from which the log has a table.
            timings: how often the state is asked for gaps that another process found.
        """
        self._catalog = catalog
        self._name = name
        self._source = source
        self._log = change_log
        self._clock = clock
        self._lost = LostTables(catalog, name)
        self._gaps = TableGaps(catalog, name, clock, timings)
        self._captured: Mapping[TableName, int] = {}
        #: Why the source cannot send some of the tables.
        self.problems: dict[TableName, ChangefeedError] = {}

    def prepare(self, wanted: Iterable[Known]) -> None:
        """Look where the tables are, and make the source send exactly those that are there.

        Returns when the source has agreed: every change committed after this call to one of the
        tables is sent. Those that it cannot send are in :attr:`problems`, those that are not what
        a feed began with are told by :meth:`lost`.

        Raises:
            ChangefeedError: the source refused, or cannot be reached.
        """
        known = frozenset(wanted)
        began = datetime.now(UTC)
        seen, lost = self._lost.look(self._source(), known)
        if lost:
            self._log.wake()
        tables = capturable(known, seen)
        told = self._look_for_gaps()
        if tables != self._captured or self.problems or told or self._unsafe(tables, seen):
            self._capture(tables, told)
        self._gaps.looked = began

    def forget(self) -> None:
        """The source has to be retried for all of them: another connection, or nothing left."""
        self._captured = {}

    def hear(self, notice: Notice) -> None:
        """The capture says where the changes of a table end that was lost."""
        if self._lost.hear(notice):
            self._log.wake()

    # -- asked by feeds and statements --------------------------------------------------------

    @property
    def gaps(self) -> Mapping[TableName, Gap]:
        """Tables of which changes may be missing in the log, whichever process found that."""
        return self._gaps.known()

    def lost(self, table: TableName, table_id: int) -> LostTable | None:
        """What became of a table that is no longer what a feed began with."""
        return self._lost.get(table, table_id)

    def place_of(self, lost: LostTable) -> Timestamp | None:
        """Where in the log the table's changes end; None while the log has not come so far."""
        return lost.at if lost.at is not None else self._log.timestamp_of(lost.after)

    @property
    def ready(self) -> frozenset[TableName]:
        """Tables that are captured, or that never will be (each reader meets its error)."""
        captured = frozenset(self._catalog.captured(self._name))
        return captured | self.problems.keys() | self._lost.names

    # -- how ----------------------------------------------------------------------------------

    @staticmethod
    def _unsafe(tables: Mapping[TableName, int], seen: TableLocations | None) -> bool:
        """A captured table lost what lets the source's users change its rows."""
        return seen is not None and not seen.unsafe.isdisjoint(tables.values())

    def _look_for_gaps(self) -> Collection[TableName]:
        """Tables that miss changes, because somebody else changed what makes the source send them.
        It is written down before it is undone, so that no crash forgets it.

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
        """Tell the feeds of tables that changes of them may be missing."""
        if reasons:
            self._gaps.add(reasons)
            self._log.wake()

    def _capture(self, wanted: Mapping[TableName, int], told: Collection[TableName]) -> None:
        """Make the source send these tables; feeds of ``told`` know of their gap."""
        prepared = capture_tables(self._catalog, self._source(), sorted(wanted))
        self._add_gaps({t: why for t, why in prepared.altered.items() if t not in told})
        since = self._since()
        self._leave_out(wanted, prepared.problems)
        captured = {t: table_id for t, table_id in wanted.items() if t not in self.problems}
        self._catalog.set_captured(self._name, dict.fromkeys(captured, since), captured)
        self._captured = wanted

    def _leave_out(
        self, wanted: Mapping[TableName, int], problems: Mapping[TableName, ChangefeedError]
    ) -> None:
        """Say which tables are not captured, and keep it for feeds that do not run now.

        A feed that runs sees :attr:`problems` itself. One that is paused must not go on without
        a scan when the table is captured again by then: what was written between is not in the
        log.
        """
        for table in problems.keys() - self.problems.keys():
            error = problems[table]
            log.warning("source %s: %s %s", self._name, error.code.number, error.message)
            if table in self._catalog.captured(self._name):
                self._catalog.fail_idle_tables(table, wanted.get(table, 0), error)
        self.problems = dict(problems)

    def _since(self) -> Timestamp:
        """From when on the log has all changes of a table that the source agreed to just now.

        The log may lag: what it has yet to read was committed before the agreement, too.
        """
        frontier = self._log.frontier
        return max(frontier.at, self._clock.now()) if frontier else Timestamp.ZERO
