"""A source as the node sees it: its captured tables, its capture process, its change log.

There is one runtime per source, shared by all feeds that read it. It makes the source retain its
log, adds a table before a feed may rely on it, keeps the capture process alive, and wakes waiting
feeds when the log has grown.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from pathlib import Path

from changefeed.attachments import begin_again, release
from changefeed.capture.captured_tables import CapturedTables
from changefeed.capture.growing_log import POLL_SECONDS, GrowingLog
from changefeed.capture.process import Notice
from changefeed.capture.standby import Standby
from changefeed.capture.supervisor import CaptureSupervisor
from changefeed.capture.table_identity import Known, LostTable
from changefeed.catalog import Catalog, Gap
from changefeed.catalog.model import DesiredStatus
from changefeed.core.clock import Clock, SystemClock, Timestamp
from changefeed.core.errors import Action, ChangefeedError, Code
from changefeed.core.events import Frontier, Position
from changefeed.core.schema import TableName, TableSchema
from changefeed.core.state import StateLayout
from changefeed.core.telemetry import log
from changefeed.core.timings import Timings
from changefeed.log import Slice
from changefeed.sources.base import Source
from changefeed.sources.registry import open_source


class SourceRuntime:
    """Everything the node does for one source. Thread-safe."""

    def __init__(
        self,
        catalog: Catalog,
        state: str,
        name: str,
        *,
        capturing: bool,
        disk: int | None = None,
        ready: Standby | None = None,
        clock: Clock | None = None,
        timings: Timings | None = None,
    ) -> None:
        """``capturing``: run the capture here; else only follow the log that another node writes.

        ``disk`` limits the change log in bytes. ``ready``: a capture process on standby.
        """
        self._clock = clock or SystemClock()
        self._timings = timings or Timings()
        self._disk = disk
        self._ready_process = ready
        self.name = name
        self._catalog = catalog
        self._state = state
        self._capturing = capturing
        self._lock = threading.RLock()
        self._watching = threading.Lock()
        self._supervisor: CaptureSupervisor | None = None
        self._log = GrowingLog(name, StateLayout(Path(catalog.directory)).log(name), self._clock)
        self._tables = CapturedTables(
            catalog, name, lambda: self.source, self._log, self._clock, self._timings
        )
        self._source: Source | None = None
        self._uri = ""

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
        """If the connection was altered, open it again and restart the capture."""
        with self._lock:
            if self._source is None or self._catalog.connection(self.name).uri == self._uri:
                return
            self._source = None
            self._tables.forget()
            supervisor, self._supervisor = self._supervisor, None
        if supervisor is not None:
            supervisor.stop()

    def watch(self, wanted: Iterable[Known]) -> None:
        """Make the source send exactly those of these tables that exist, and start the capture.

        Raises:
            ChangefeedError: see :meth:`changefeed.capture.captured_tables.CapturedTables.prepare`.
        """
        # Not the reader's lock: feeds continue while this waits for the source.
        with self._watching:
            self._tables.prepare(wanted)
            self._start_capture()

    @property
    def problems(self) -> Mapping[TableName, ChangefeedError]:
        """For each table that the source cannot send: the error."""
        return self._tables.problems

    def logged(self, schema: TableSchema) -> TableSchema:
        """The shape in which rows of a table go into the log from now on."""
        return self._tables.logged(schema)

    @property
    def gaps(self) -> Mapping[TableName, Gap]:
        """Tables of which changes may be missing in the log, whichever process found that."""
        return self._tables.gaps

    def lost(self, table: TableName, table_id: int) -> LostTable | None:
        """What became of a table that is no longer the one that a feed began with."""
        return self._tables.lost(table, table_id)

    def place_of(self, lost: LostTable) -> Timestamp | None:
        """Where in the log the table's changes end; None until the log has reached that
        position.
        """
        return self._tables.place_of(lost)

    def forget(self) -> bool:
        """No feed is left: stop the capture, remove the log, and release what the source holds.

        Returns False if a feed was created meanwhile: then nothing was removed, and the runtime
        can still be used. Otherwise, even after an error, the runtime is closed permanently.
        """
        # A statement that creates a feed now must not find the tables captured.
        self._catalog.set_captured(self.name, {})
        if any(j.wanted is not DesiredStatus.DROPPED for j in self._catalog.source_jobs(self.name)):
            self._tables.forget()
            return False
        self.close()
        release(self._catalog, self.source)
        return True

    # -- a new log ------------------------------------------------------------------------

    def why_lost(self, stop: threading.Event, timeout: float = 60.0) -> ChangefeedError | None:
        """See :meth:`changefeed.capture.growing_log.GrowingLog.why_lost`."""
        return self._log.why_lost(stop, timeout)

    def begin_again(self, lost: ChangefeedError) -> None:
        """Remove the log, which ``lost`` keeps from continuing, and what is held at the source.

        This runtime is then closed permanently; the next one creates a new log, which begins after
        everything that was delivered from this one. Feeds that still read this log end with the
        error.
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
                    self._state,
                    self.name,
                    self._heard,
                    self._disk,
                    self._ready_process,
                    self._clock,
                    self._timings,
                )
                self._supervisor.start()

    def fail(self, error: ChangefeedError) -> None:
        """End running feeds with an error that was found at the source; :meth:`retry` undoes it."""
        self._log.fail(error)

    def retry(self) -> None:
        """Restart a capture that stopped with an error, and open the log again."""
        self._log.retry()
        with self._lock:
            if self._supervisor is not None:
                self._supervisor.retry()

    def hasten(self) -> None:
        """Make capture read at once, because a caller waits for what is committed now."""
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
            told = f"{notice.code} {notice.message}".strip()
            log.warning("capture of %s: %s", self.name, told)
        elif notice.kind == "moved":
            self._tables.hear(notice)
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
        """Why capture has stopped, or None."""
        return self._log.error

    @property
    def stalled(self) -> str:
        """Why capture does not write to the log for now, or an empty string."""
        return self._log.stalled

    def wait_beyond(self, at: Timestamp, timeout: float) -> Frontier | None:
        """See :meth:`changefeed.capture.growing_log.GrowingLog.wait_beyond`."""
        return self._log.wait_beyond(at, timeout)

    def wait_position(
        self, position: Position, stop: threading.Event, timeout: float = 300.0
    ) -> Timestamp:
        """See :meth:`changefeed.capture.growing_log.GrowingLog.wait_position`."""
        return self._log.wait_position(position, stop, timeout)

    def has(self, position: Position) -> bool:
        """See :meth:`changefeed.capture.growing_log.GrowingLog.has`."""
        return self._log.has(position)

    def wait_above(self, at: Timestamp, stop: threading.Event, timeout: float = 300.0) -> None:
        """See :meth:`changefeed.capture.growing_log.GrowingLog.wait_above`."""
        self._log.wait_above(at, stop, timeout)

    def wait_captured(self, tables: Iterable[TableName], stop: threading.Event) -> None:
        """Wait until every later commit to ``tables`` is certain to reach the log.

        Raises:
            ChangefeedError: the node of this state did not achieve it in time.
        """
        wanted = frozenset(tables)
        deadline = self._clock.monotonic() + self._timings.begin
        while not stop.is_set() and not wanted <= self._tables.ready:
            error = self._log.error
            if error is not None and error.action is not Action.RETRY:
                raise error
            if wanted & self._tables.filling:
                # That takes as long as a scan.
                deadline = self._clock.monotonic() + self._timings.begin
            if self._clock.monotonic() > deadline:
                why = self._catalog.source_state(self.name).error or self._tables.images_lost(
                    wanted
                )
                raise ChangefeedError(
                    Code.STREAM_BROKE,
                    f"capture from {self.name!r} did not begin",
                    detail=why or "no node of this state started it",
                )
            self._clock.wait(stop, POLL_SECONDS)
        if not self._capturing:
            self._log.follow()

    def wake(self) -> None:
        """Wake every waiting feed."""
        self._log.wake()

    @property
    def closed(self) -> bool:
        """Whether it was closed permanently: another runtime takes its place."""
        return self._log.closed

    def close(self) -> None:
        """Stop the capture and close the log."""
        self._log.close()
        with self._lock:
            supervisor, self._supervisor = self._supervisor, None
        if supervisor is not None:
            supervisor.stop()
        self._log.release()
