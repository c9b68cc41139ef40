"""A source as the node sees it: its tables under watch, its capture, its change log.

One keeper a source, shared by all feeds that read it. It makes the source keep its log for us,
adds a table before a feed may rely on it, keeps the capture process alive, and tells waiting
feeds when the log has grown.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from changefeed.attachments import attachment, begin_again, capture_tables, release
from changefeed.capture.process import Notice
from changefeed.capture.supervisor import CaptureSupervisor
from changefeed.capture.table_identity import Known, Lost, capturable, missing, moved
from changefeed.catalog import Catalog, Gap
from changefeed.catalog.model import TableState, Wanted
from changefeed.core.clock import SystemClock, Timestamp
from changefeed.core.errors import LOG_LOST, Action, ChangefeedError, Code
from changefeed.core.events import Frontier, Position
from changefeed.core.schema import TableName
from changefeed.core.state import StateLayout
from changefeed.core.telemetry import log
from changefeed.log import LogReader, Slice
from changefeed.sources.base import Located, Source
from changefeed.sources.registry import open_source

#: How often a keeper looks at the log by itself when another process runs the capture.
POLL_SECONDS = 0.05

#: How often a keeper asks the state for gaps that another process found.
GAPS_SECONDS = 1.0

#: How long a feed waits for its tables to be captured before it says so and tries again.
CAPTURE_SECONDS = 60.0

_SECONDS = "%Y-%m-%d %H:%M:%S"


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
        self._layout = StateLayout(Path(catalog.directory))
        self._capturing = capturing
        self._lock = threading.RLock()
        self._watching = threading.Lock()
        self._grown = threading.Condition(self._lock)
        self._supervisor: CaptureSupervisor | None = None
        self._reader: LogReader | None = None
        self._source: Source | None = None
        self._uri = ""
        self._wanted: frozenset[Known] = frozenset()
        self._captured: Mapping[TableName, int] = {}
        self._lost: dict[Known, Lost] = {}
        self.problems: dict[TableName, ChangefeedError] = {}
        self._gaps: Mapping[TableName, Gap] = {}
        #: Of the state, when the gaps were read last; and when that is looked at again.
        self._gaps_version = -1
        self._gaps_due = 0.0
        self._looked: datetime | None = None
        self._error: ChangefeedError | None = None
        self._stalled = ""
        self._wakes = 0
        self._closed = threading.Event()
        self._follower: threading.Thread | None = None

    # -- the source -----------------------------------------------------------------------

    @property
    def source(self) -> Source:
        """The source, opened from its connection on first use."""
        with self._lock:
            if self._source is None:
                self._uri = self._catalog.connection(self.name).uri
                self._source = open_source(self.name, self._uri)
            return self._source

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
            self._wanted = frozenset(wanted)
            began = datetime.now(UTC)
            seen = self._look()
            tables = capturable(self._wanted, seen)
            told = self._look_for_gaps()
            again = self.problems or told or self._unsafe(tables, seen)
            if tables != self._captured or again:
                self._prepare(tables, told)
            self._looked = began
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
        if not reasons:
            return
        now = f"{datetime.now(UTC):{_SECONDS}}"
        when = f"between {self._looked:{_SECONDS}} and {now}" if self._looked else f"before {now}"
        texts = {
            table: f'changes to table "{table.schema}.{table.name}" {when} UTC may be missing: '
            f"{why}"
            for table, why in reasons.items()
        }
        numbers = self._catalog.captured_table_ids(self.name)
        found = self._catalog.add_gaps(texts)
        for table, gap in found.items():
            log.warning("source %s: %s", self.name, gap.reason)
            self._catalog.fail_idle_tables(table, numbers.get(table, 0), gap.error, gap.at)
        self._gaps_due = 0.0
        self.wake()

    @property
    def gaps(self) -> Mapping[TableName, Gap]:
        """Tables of which changes may be missing in the log, whichever process found that."""
        now = time.monotonic()
        if now >= self._gaps_due:
            # Feeds ask in each of their rounds.
            self._gaps_due = now + GAPS_SECONDS
            version = self._catalog.version()
            if version != self._gaps_version:
                self._gaps, self._gaps_version = self._catalog.gaps(self.name), version
        return self._gaps

    def _look(self) -> Located | None:
        """Where the wanted tables are now; None when the source has no ids for them."""
        source = self.source
        names = {table for table, _ in self._wanted}
        seen = source.locate(sorted(names), sorted({i for _, i in self._wanted if i}))
        if seen is None:
            return None
        unknown = {table for table, table_id in self._wanted if not table_id}
        self._catalog.adopt_table_ids({t: seen.ids[t] for t in unknown & seen.ids.keys()})
        gone = missing(self._wanted, seen)
        back = self._back(gone)
        with self._lock:
            new = gone.keys() - self._lost.keys()
        after = source.current_position() if new else ""
        with self._grown:
            self._lost = {known: lost for known, lost in self._lost.items() if known not in back}
            for known in new:
                dropped = known[1] not in seen.names
                self._lost[known] = Lost(gone[known], dropped, after)
        for known in new:
            log.warning("source %s: %s", self.name, gone[known].message)
        if new:
            self.wake()
        return seen

    def _back(self, gone: Collection[Known]) -> set[Known]:
        """What is not lost any more: nobody wants it, or it has its name again.

        While it had another name its rows went there, so a feed that follows it must hear of
        that first; one that was resumed scans it.
        """
        back = self._lost.keys() - self._wanted
        again = self._lost.keys() - back - set(gone)
        if again:
            for job in self._catalog.source_jobs(self.name):
                for table in self._catalog.tables(job.id):
                    if table.state is TableState.RUNNING:
                        again.discard((table.table, table.table_id))
        return back | again

    def lost(self, table: TableName, table_id: int) -> Lost | None:
        """What became of a table that is not any more what a feed began with."""
        return self._lost.get((table, table_id))

    def place_of(self, lost: Lost) -> Timestamp | None:
        """Where in the log the table's changes end; None while the log has not come so far."""
        if lost.at is not None:
            return lost.at
        with self._lock:
            frontier = self._log().frontier
            if frontier is None or frontier.position < lost.after:
                return None
            return self._log().timestamp_at(lost.after) or self._log().oldest

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
        """Why the change log cannot go on, once the capture has met the source; None: it goes on.

        Raises:
            ChangefeedError: the capture cannot tell: another error holds it up.
        """
        deadline = time.monotonic() + timeout
        with self._grown:
            before = self.frontier
            while not stop.is_set() and time.monotonic() < deadline:
                error = self._error
                if error is not None and error.code in LOG_LOST:
                    return error
                if error is not None and error.action is not Action.RETRY:
                    raise error
                frontier = self.frontier
                if frontier is not None and (before is None or frontier.at > before.at):
                    return None
                self._grown.wait(0.2)
            raise self._error or ChangefeedError(
                "CF2101", f"capture from {self.name!r} did not begin"
            )

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
        self._error = lost
        self.close()
        begin_again(self._catalog, self.source)

    # -- capture --------------------------------------------------------------------------

    def _start_capture(self) -> None:
        with self._lock:
            if self._supervisor is None and self._capturing and not self._closed.is_set():
                self._error = None
                self._supervisor = CaptureSupervisor.for_source(
                    self._state, self.name, self._heard, self._disk
                )
                self._supervisor.start()

    def fail(self, error: ChangefeedError) -> None:
        """Let the feeds that run end with what was found at the source; :meth:`retry` undoes it."""
        with self._grown:
            self._error = error
            self._grown.notify_all()

    def retry(self) -> None:
        """Start a capture that stopped with an error again, and look at the log afresh."""
        with self._lock:
            if self._error is not None and self._error.code is Code.LOG_DAMAGED:
                # Not closed: pieces that were handed out may still be read through it.
                self._reader = None
            self._error = None
            if self._supervisor is not None:
                self._supervisor.retry()

    @property
    def capture_pid(self) -> int | None:
        """Process id of the capture, if it runs here."""
        supervisor = self._supervisor
        return supervisor.pid if supervisor else None

    def _heard(self, notice: Notice) -> None:
        with self._grown:
            if notice.kind == "frontier":
                self._stalled = ""
                self._refresh()
            elif notice.kind == "stalled":
                self._stalled = notice.message
            elif notice.kind == "flowing":
                self._stalled = ""
            elif notice.kind == "warning":
                log.warning("capture of %s: %s %s", self.name, notice.code, notice.message)
            elif notice.kind == "moved":
                self._heard_moved(notice)
            elif notice.kind == "error":
                log.warning("capture of %s: %s %s", self.name, notice.code, notice.message)
                self._error = ChangefeedError(
                    notice.code, notice.message, detail=notice.detail, hint=notice.hint
                )
            self._grown.notify_all()

    def _refresh(self) -> None:
        """See how far the log is; what is wrong with it is said once."""
        before = self._error
        try:
            self._log().refresh()
        except ChangefeedError as error:
            if before is None or before.message != error.message:
                log.error("log of %s: %s %s", self.name, error.code.number, error.message)
            self._error = error
        else:
            self._error = None

    def _heard_moved(self, notice: Notice) -> None:
        """The log has rows of a table under a new name: a look may come too late to see it."""
        table, now = (TableName(self.name, *name) for name in (notice.table, notice.now))
        known = (table, notice.table_id)
        if known in self._wanted and known not in self._lost:
            log.warning("source %s: %s is %s now", self.name, table, now)
            error = moved(table, now)
            self._lost[known] = Lost(error, dropped=False, at=Timestamp.parse(notice.at))
            self._wakes += 1

    def _follow(self) -> None:
        """Refresh by looking, for a log that another process writes."""
        if self._follower is not None:
            return

        def look() -> None:
            while not self._closed.wait(POLL_SECONDS):
                with self._grown:
                    before = self._log().frontier, self._error
                    self._refresh()
                    if (self._log().frontier, self._error) != before:
                        self._grown.notify_all()

        self._follower = threading.Thread(target=look, name="log-follower", daemon=True)
        self._follower.start()

    # -- the log --------------------------------------------------------------------------

    def _log(self) -> LogReader:
        """The reader of the change log; :attr:`_lock` is held while it is used."""
        with self._lock:
            if self._reader is None:
                path = self._layout.log(self.name)
                path.mkdir(parents=True, exist_ok=True)
                self._reader = LogReader(path)
                self._reader.refresh()
            return self._reader

    @property
    def frontier(self) -> Frontier | None:
        """How far the log reaches."""
        with self._lock:
            return self._log().frontier

    @property
    def oldest(self) -> Timestamp:
        """Everything above this is in the log; MAX while it is empty."""
        with self._lock:
            return self._log().oldest

    def slice(
        self, bounds: Mapping[TableName, Timestamp], upto: Timestamp, max_rows: int, max_bytes: int
    ) -> Slice:
        """See :meth:`changefeed.capture.log_access.LogAccess.slice`."""
        with self._lock:
            return self._log().slice(bounds, upto, max_rows=max_rows, max_bytes=max_bytes)

    @property
    def error(self) -> ChangefeedError | None:
        """Why capture does not move, if it does not."""
        return self._error

    @property
    def stalled(self) -> str:
        """Why the log takes no more, or an empty string."""
        return self._stalled

    def wait_beyond(self, at: Timestamp, timeout: float) -> Frontier | None:
        """Wait until the log reaches above ``at``, :meth:`wake` or the timeout; the frontier."""
        deadline = time.monotonic() + timeout
        with self._grown:
            woken = self._wakes
            while True:
                frontier = self._log().frontier
                if frontier is not None and frontier.at > at:
                    return frontier
                left = deadline - time.monotonic()
                if left <= 0 or self._closed.is_set() or woken != self._wakes:
                    return frontier
                self._grown.wait(left)

    def wait_captured(self, tables: Iterable[TableName], stop: threading.Event) -> None:
        """Wait until every later commit to ``tables`` is sure to reach the log.

        Raises:
            ChangefeedError: the node of this state does not get there.
        """
        wanted = frozenset(tables)
        deadline = time.monotonic() + CAPTURE_SECONDS
        while not stop.is_set() and not wanted <= self._ready():
            if self._error is not None and self._error.action is not Action.RETRY:
                raise self._error
            if time.monotonic() > deadline:
                why = self._catalog.source_state(self.name).error
                raise ChangefeedError(
                    "CF2101",
                    f"capture from {self.name!r} did not begin",
                    detail=why or "no node of this state took it up",
                )
            stop.wait(POLL_SECONDS)
        if not self._capturing:
            self._follow()

    def _ready(self) -> frozenset[TableName]:
        """Tables that are captured, or that never will be (each reader meets its error)."""
        lost = {table for table, _ in self._lost}
        return frozenset(self._catalog.captured(self.name)) | self.problems.keys() | lost

    def wait_position(
        self, position: Position, stop: threading.Event, timeout: float = 300.0
    ) -> Timestamp:
        """The log timestamp of ``position``, once the log has reached it.

        A position before the log's begin has the begin's timestamp.

        Raises:
            ChangefeedError: capture stopped with an error, or the wait was too long.
        """
        with self._grown:
            self._wait_until(lambda f: f.position >= position, position, stop, timeout)
            at = self._log().timestamp_at(position)
            return at if at is not None else self._log().oldest

    def wait_above(self, at: Timestamp, stop: threading.Event, timeout: float = 300.0) -> None:
        """Wait until the log has reached above ``at`` (an idle source's does every second).

        Raises:
            ChangefeedError: capture stopped with an error, or the wait was too long.
        """
        with self._grown:
            self._wait_until(lambda f: f.at > at, str(at), stop, timeout)

    def _wait_until(
        self,
        reached: Callable[[Frontier], bool],
        place: str,
        stop: threading.Event,
        timeout: float,
    ) -> None:
        deadline = time.monotonic() + timeout
        while not stop.is_set():
            frontier = self._log().frontier
            if frontier is not None and reached(frontier):
                return
            if self._error is not None:
                raise self._error
            if time.monotonic() > deadline:
                raise ChangefeedError(
                    "CF2101", f"the change log of {self.name!r} did not reach {place}"
                )
            self._grown.wait(0.2)
        raise ChangefeedError("CF2201", "stopped")

    def wake(self) -> None:
        """Let every waiting feed look around."""
        with self._grown:
            self._wakes += 1
            self._grown.notify_all()

    @property
    def closed(self) -> bool:
        """It was closed for good: another keeper takes its place."""
        return self._closed.is_set()

    def close(self) -> None:
        """Stop the capture and let go of the log."""
        self._closed.set()
        with self._grown:
            self._grown.notify_all()
            supervisor, self._supervisor = self._supervisor, None
        if supervisor is not None:
            supervisor.stop()
        with self._lock:
            if self._reader is not None:
                self._reader.close()
