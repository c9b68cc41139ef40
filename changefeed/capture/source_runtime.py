"""A source as the node sees it: what it is asked for, its capture process, its change log.

One keeper a source, shared by all feeds that read it. It makes the source keep its log for us,
adds a table before a feed may rely on it, keeps the capture process alive, and tells waiting
feeds when the log has grown.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from changefeed.attachments import attachment, begin_again, capture_tables, release
from changefeed.capture.growing_log import POLL_SECONDS, GrowingLog
from changefeed.capture.lost_tables import LostTables
from changefeed.capture.process import Notice
from changefeed.capture.supervisor import CaptureSupervisor
from changefeed.capture.table_gaps import TableGaps
from changefeed.capture.table_identity import Known, Lost, capturable
from changefeed.catalog import Catalog, Gap
from changefeed.catalog.model import Wanted
from changefeed.core.clock import SystemClock, Timestamp
from changefeed.core.errors import Action, ChangefeedError
from changefeed.core.events import Frontier, Position
from changefeed.core.schema import TableName
from changefeed.core.state import StateLayout
from changefeed.core.telemetry import log
from changefeed.log import Slice
from changefeed.sources.base import Located, Source
from changefeed.sources.registry import open_source

#: How long a feed waits for its tables to be captured before it says so and tries again.
CAPTURE_SECONDS = 60.0


class SourceKeeper:
    """Everything the node does for one source. Thread-safe."""

    def __init__(
        self,
        catalog: Catalog,
        state: str,
        name: str,
        *,
        capturing: bool,
        disk: int | None = None,
    ) -> None:
        """``capturing``: run the capture here; else only follow the log another node writes.

        ``disk``: the most bytes its change log may take.
        """
        self._disk = disk
        self.name = name
        self._catalog = catalog
        self._state = state
        self._capturing = capturing
        self._lock = threading.RLock()
        self._watching = threading.Lock()
        self._supervisor: CaptureSupervisor | None = None
        self._log = GrowingLog(name, StateLayout(Path(catalog.directory)).log(name))
        self._lost = LostTables(catalog, name)
        self._gaps = TableGaps(catalog, name)
        self._source: Source | None = None
        self._uri = ""
        self._captured: Mapping[TableName, int] = {}
        self.problems: dict[TableName, ChangefeedError] = {}

    # -- the source -----------------------------------------------------------------------

    @property
    def source(self) -> Source:
        """The source, opened from its connection on first use."""
        with self._lock:
            if self._source is None:
                self._uri = self._catalog.connection(self.name).uri
                self._source = open_source(self.name, self._uri)
            return self._source

    @property
    def log_folder(self) -> Path:
        """The directory of the change log, for readers in other processes."""
        return self._log.folder

    def follow_connection(self) -> None:
        """Where the connection was altered, open it anew and restart the capture."""
        with self._lock:
            if self._source is None or self._catalog.connection(self.name).uri == self._uri:
                return
            self._source = None
            self._captured = {}
            supervisor, self._supervisor = self._supervisor, None
        if supervisor is not None:
            supervisor.stop()

    def watch(self, wanted: Iterable[Known]) -> None:
        """Look where the tables are, make the source send exactly those that are there, and
        capture run.

        Returns when the source has agreed: every change committed after this call to one of
        the tables reaches the log. Those that it cannot send are in :attr:`problems`, those
        that are not what a feed began with are told by :meth:`lost`.

        Raises:
            ChangefeedError: the source refused, or cannot be reached.
        """
        # Not the reader's lock: feeds go on while the source is asked.
        with self._watching:
            known = frozenset(wanted)
            began = datetime.now(UTC)
            seen, lost = self._lost.look(self.source, known)
            if lost:
                self.wake()
            tables = capturable(known, seen)
            told = self._look_for_gaps()
            again = self.problems or told or self._unsafe(tables, seen)
            if tables != self._captured or again:
                self._prepare(tables, told)
            self._gaps.looked = began
            self._start_capture()

    @staticmethod
    def _unsafe(tables: Mapping[TableName, int], seen: Located | None) -> bool:
        """A captured table lost what lets the source's users change its rows."""
        return seen is not None and not seen.unsafe.isdisjoint(tables.values())

    def _look_for_gaps(self) -> Collection[TableName]:
        """Tables that miss changes, because somebody else changed what makes the source send them.
        It is written down before it is undone, so that no crash forgets it.

        Raises:
            ChangefeedError: CF2102 nothing makes the source send them any longer.
        """
        if not self._catalog.source_state(self.name).identity:
            return ()
        ids = {i: table for table, i in self._catalog.captured_table_ids(self.name).items() if i}
        altered = attachment(self._catalog, self.source).altered(ids)
        reasons = {ids[table_id]: reason for table_id, reason in altered.items()}
        self._add_gaps(reasons)
        return reasons.keys()

    def _add_gaps(self, reasons: Mapping[TableName, str]) -> None:
        """Tell the feeds of tables that changes of them may be missing."""
        if reasons:
            self._gaps.add(reasons)
            self.wake()

    @property
    def gaps(self) -> Mapping[TableName, Gap]:
        """Tables of which changes may be missing in the log, whichever process found that."""
        return self._gaps.known()

    def lost(self, table: TableName, table_id: int) -> Lost | None:
        """What became of a table that is no longer what a feed began with."""
        return self._lost.get(table, table_id)

    def place_of(self, lost: Lost) -> Timestamp | None:
        """Where in the log the table's changes end; None while the log has not come so far."""
        return lost.at if lost.at is not None else self._log.timestamp_of(lost.after)

    def _prepare(self, wanted: Mapping[TableName, int], told: Collection[TableName] = ()) -> None:
        """Make the source send these tables; feeds of ``told`` know of their gap."""
        prepared = capture_tables(self._catalog, self.source, sorted(wanted))
        self._add_gaps({t: why for t, why in prepared.altered.items() if t not in told})
        since = self._since()
        self._leave_out(wanted, prepared.problems)
        captured = {t: table_id for t, table_id in wanted.items() if t not in self.problems}
        self._catalog.set_captured(self.name, dict.fromkeys(captured, since), captured)
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
            log.warning("source %s: %s %s", self.name, error.code.number, error.message)
            if table in self._catalog.captured(self.name):
                self._catalog.fail_idle_tables(table, wanted.get(table, 0), error)
        self.problems = dict(problems)

    def _since(self) -> Timestamp:
        """From when on the log has all changes of a table that the source agreed to just now.

        The log may lag: what it has yet to read was committed before the agreement, too.
        """
        frontier = self.frontier
        return max(frontier.at, SystemClock().now()) if frontier else Timestamp.ZERO

    def forget(self) -> bool:
        """No feed is left: stop the capture, remove the log and what we hold at the source.

        False when a feed came meanwhile: nothing was removed, and the keeper stays good. Else,
        also after an error, it is closed for good.
        """
        # A statement that makes a feed now must not take the tables for captured ones.
        self._catalog.set_captured(self.name, {})
        if any(j.wanted is not Wanted.DROPPED for j in self._catalog.source_jobs(self.name)):
            self._captured = {}
            return False
        self.close()
        release(self._catalog, self.source)
        return True

    # -- a new log ------------------------------------------------------------------------

    def why_lost(self, stop: threading.Event, timeout: float = 60.0) -> ChangefeedError | None:
        """See :meth:`changefeed.capture.growing_log.GrowingLog.why_lost`."""
        return self._log.why_lost(stop, timeout)

    def begin_again(self, lost: ChangefeedError) -> None:
        """Remove the log, which cannot go on because of ``lost``, and what we have at the source.

        This keeper is closed for good; the next one makes a new log, which begins
        after everything that was delivered from this one. Feeds that still read this log end with
        the error.
        """
        log.warning("source %s: a new change log begins: %s", self.name, lost.message)
        try:
            frontier = self.frontier
        except ChangefeedError:  # the log is damaged: what is saved in the state has to do
            frontier = None
        if frontier is not None:
            self._catalog.save_source_state(self.name, frontier=frontier.at)
        self._log.fail(lost)
        self.close()
        begin_again(self._catalog, self.source)

    # -- capture --------------------------------------------------------------------------

    def _start_capture(self) -> None:
        with self._lock:
            if self._supervisor is None and self._capturing and not self.closed:
                self._log.retry()
                self._supervisor = CaptureSupervisor.for_source(
                    self._state, self.name, self._heard, self._disk
                )
                self._supervisor.start()

    def fail(self, error: ChangefeedError) -> None:
        """Let the feeds that run end with what was found at the source; :meth:`retry` undoes it."""
        self._log.fail(error)

    def retry(self) -> None:
        """Start a capture that stopped with an error again, and look at the log afresh."""
        self._log.retry()
        with self._lock:
            if self._supervisor is not None:
                self._supervisor.retry()

    def hasten(self) -> None:
        """Somebody waits for the log to reach what is committed now: capture looks at once."""
        supervisor = self._supervisor
        if supervisor is not None:
            supervisor.hasten()

    @property
    def capture_pid(self) -> int | None:
        """Process id of the capture, if it runs here."""
        supervisor = self._supervisor
        return supervisor.pid if supervisor else None

    def _heard(self, notice: Notice) -> None:
        if notice.kind == "frontier":
            self._log.refresh()
        elif notice.kind == "stalled":
            self._log.stall(notice.message)
        elif notice.kind == "flowing":
            self._log.stall("")
        elif notice.kind == "warning":
            log.warning("capture of %s: %s %s", self.name, notice.code, notice.message)
        elif notice.kind == "moved":
            if self._lost.hear(notice):
                self.wake()
        elif notice.kind == "error":
            log.warning("capture of %s: %s %s", self.name, notice.code, notice.message)
            self._log.fail(
                ChangefeedError(notice.code, notice.message, detail=notice.detail, hint=notice.hint)
            )

    # -- the log --------------------------------------------------------------------------

    @property
    def frontier(self) -> Frontier | None:
        """How far the log reaches."""
        return self._log.frontier

    @property
    def oldest(self) -> Timestamp:
        """Everything above this is in the log; MAX while it is empty."""
        return self._log.oldest

    def slice(
        self, bounds: Mapping[TableName, Timestamp], upto: Timestamp, max_rows: int, max_bytes: int
    ) -> Slice:
        """See :meth:`changefeed.capture.log_access.LogAccess.slice`."""
        return self._log.slice(bounds, upto, max_rows, max_bytes)

    @property
    def error(self) -> ChangefeedError | None:
        """Why capture does not move, if it does not."""
        return self._log.error

    @property
    def stalled(self) -> str:
        """Why the log takes no more, or an empty string."""
        return self._log.stalled

    def wait_beyond(self, at: Timestamp, timeout: float) -> Frontier | None:
        """See :meth:`changefeed.capture.growing_log.GrowingLog.wait_beyond`."""
        return self._log.wait_beyond(at, timeout)

    def wait_position(
        self, position: Position, stop: threading.Event, timeout: float = 300.0
    ) -> Timestamp:
        """See :meth:`changefeed.capture.growing_log.GrowingLog.wait_position`."""
        return self._log.wait_position(position, stop, timeout)

    def wait_above(self, at: Timestamp, stop: threading.Event, timeout: float = 300.0) -> None:
        """See :meth:`changefeed.capture.growing_log.GrowingLog.wait_above`."""
        self._log.wait_above(at, stop, timeout)

    def wait_captured(self, tables: Iterable[TableName], stop: threading.Event) -> None:
        """Wait until every later commit to ``tables`` is sure to reach the log.

        Raises:
            ChangefeedError: the node of this state does not get there.
        """
        wanted = frozenset(tables)
        deadline = time.monotonic() + CAPTURE_SECONDS
        while not stop.is_set() and not wanted <= self._ready():
            error = self._log.error
            if error is not None and error.action is not Action.RETRY:
                raise error
            if time.monotonic() > deadline:
                why = self._catalog.source_state(self.name).error
                raise ChangefeedError(
                    "CF2101",
                    f"capture from {self.name!r} did not begin",
                    detail=why or "no node of this state took it up",
                )
            stop.wait(POLL_SECONDS)
        if not self._capturing:
            self._log.follow()

    def _ready(self) -> frozenset[TableName]:
        """Tables that are captured, or that never will be (each reader meets its error)."""
        captured = frozenset(self._catalog.captured(self.name))
        return captured | self.problems.keys() | self._lost.names

    def wake(self) -> None:
        """Let every waiting feed look around."""
        self._log.wake()

    @property
    def closed(self) -> bool:
        """It was closed for good: another keeper takes its place."""
        return self._log.closed

    def close(self) -> None:
        """Stop the capture and let go of the log."""
        self._log.close()
        with self._lock:
            supervisor, self._supervisor = self._supervisor, None
        if supervisor is not None:
            supervisor.stop()
        self._log.release()
