"""A source as the node sees it: its captured tables, its capture process, its change log.

There is one runtime per source, shared by all feeds that read it. It makes the source retain its
log, adds a table before a feed may rely on it, keeps the capture process alive, and wakes waiting
feeds when the log has grown.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from changefeed.attachments import begin_again, release
from changefeed.capture.captured_tables import CapturedTables
from changefeed.capture.feed_budgets import OverLimit
from changefeed.capture.growing_log import POLL_SECONDS, GrowingLog
from changefeed.capture.process import Notice
from changefeed.capture.standby import CaptureTask, Standby
from changefeed.capture.supervisor import CaptureSupervisor
from changefeed.capture.table_identity import Known
from changefeed.catalog import Catalog, SourceLease
from changefeed.catalog.model import DesiredStatus
from changefeed.core.clock import Clock, SystemClock
from changefeed.core.errors import Action, ChangefeedError, Code
from changefeed.core.references import has_references, refused_login
from changefeed.core.schema import TableName
from changefeed.core.state import StateLayout
from changefeed.core.telemetry import log
from changefeed.core.timings import Timings
from changefeed.shared_logs import followed_logs
from changefeed.sources.base import Source
from changefeed.sources.registry import open_source


class SourceRuntime:
    """Everything the node does for one source. Thread-safe.

    Attributes:
        name: of the source.
        log: its change log, which feeds read and wait for.
        tables: which of its tables are captured, and which cannot be.
        elsewhere: another node has the right to write its shared log, which is followed here.
    """

    def __init__(
        self,
        catalog: Catalog,
        state: str,
        name: str,
        *,
        capturing: Callable[[], bool],
        lease: SourceLease | None = None,
        disk: int | None = None,
        copies: int | None = None,
        ready: Standby | None = None,
        clock: Clock | None = None,
        timings: Timings | None = None,
        held_up: Callable[[], str] = lambda: "",
    ) -> None:
        """``capturing``: whether the capture is to run here now; else the log that another process
        writes is only read. A process that read it may become the node.

        ``lease``: the node's right to write the source's shared log; a shared log of which another
        node has it is followed.

        ``disk`` limits the change log in bytes, ``copies`` those of a shared one.
        ``ready``: a capture process on standby. ``held_up``: why nothing of the source can be
        captured for now, if so.
        """
        self._clock = clock or SystemClock()
        self._timings = timings or Timings()
        self._lease = lease
        self._task = CaptureTask(
            name, disk, copies, *((lease.node, lease.token) if lease is not None else ())
        )
        self._ready_process = ready
        self.name = name
        self._catalog = catalog
        self._state = state
        self._capturing = capturing
        self._lock = threading.RLock()
        self._watching = threading.Lock()
        self._supervisor: CaptureSupervisor | None = None
        self.elsewhere = lease is None and catalog.log_place is not None
        self.log = GrowingLog(
            name,
            StateLayout(Path(catalog.directory)).log(name),
            self._clock,
            partial(followed_logs().open, catalog, name, copies) if self.elsewhere else None,
        )
        self.tables = CapturedTables(
            catalog,
            name,
            lambda: self.source,
            self.log,
            self._clock,
            self._timings,
            elsewhere=self.elsewhere,
        )
        self._source: Source | None = None
        self._uri = ""
        self._held_up = held_up
        self._over: dict[int, OverLimit] = {}

    # -- the source -----------------------------------------------------------------------

    @property
    def source(self) -> Source:
        """The source, opened from its connection on first use."""
        with self._lock:
            if self._source is None:
                self._uri = self._catalog.connection(self.name).uri
                self._source = open_source(self.name, self._uri)
            return self._source

    def read_secrets_again(self, error: ChangefeedError) -> ChangefeedError:
        """After an error: if the connection refers to secrets, open it again when it is used.

        Returns ``error``, as of :func:`refused_login`.
        """
        with self._lock:
            if has_references(self._uri):
                self._source = None
            return refused_login(error, lambda: [self._uri])

    def follow_connection(self) -> None:
        """If the connection was altered, open it again and restart the capture."""
        with self._lock:
            if not self._uri or self._catalog.connection(self.name).uri == self._uri:
                return
            self._uri = ""
            self._source = None
            self.tables.forget()
            supervisor, self._supervisor = self._supervisor, None
        if supervisor is not None:
            supervisor.stop()

    def watch(self, wanted: Iterable[Known]) -> None:
        """Make the source send exactly those of these tables that exist, and start the capture.

        Raises:
            ChangefeedError: see :meth:`changefeed.capture.captured_tables.CapturedTables.prepare`.
        """
        # Not `_lock`: feeds continue while this waits for the source.
        with self._watching:
            self.tables.prepare(wanted)
            self._start_capture()

    def forget(self) -> bool:
        """No feed is left: stop the capture, remove the log, and release what the source holds.

        Returns False if a feed was created meanwhile: then nothing was removed, and the runtime
        can still be used. Otherwise, even after an error, the runtime is closed permanently.
        """
        # A statement that creates a feed now must not find the tables captured.
        self._catalog.set_captured(self.name, {})
        if any(j.wanted is not DesiredStatus.DROPPED for j in self._catalog.source_jobs(self.name)):
            self.tables.forget()
            return False
        self.close()
        release(self._catalog, self.source, self._lease)
        return True

    # -- a new log ------------------------------------------------------------------------

    def begin_again(self, lost: ChangefeedError) -> None:
        """Remove the log, which ``lost`` keeps from continuing, and what is held at the source.

        This runtime is then closed permanently; the next one creates a new log, which begins after
        everything that was delivered from this one. Feeds that still read this log end with the
        error.
        """
        log.warning("source %s: a new change log begins: %s", self.name, lost.message)
        try:
            frontier = self.log.frontier
        except ChangefeedError:  # the log is damaged: what is saved in the state has to do
            frontier = None
        if frontier is not None:
            self._catalog.save_source_state(self.name, frontier=frontier.at)
        self.log.fail(lost)
        self.close()
        begin_again(self._catalog, self.source, self._lease)

    # -- capture --------------------------------------------------------------------------

    def _start_capture(self) -> None:
        with self._lock:
            if self._supervisor is None and self._capturing() and not self.log.closed:
                self.log.retry()
                self._supervisor = CaptureSupervisor.for_source(
                    self._state,
                    self._task,
                    self._heard,
                    self._ready_process,
                    self._clock,
                    self._timings,
                )
                self._supervisor.start()

    def retry(self) -> None:
        """Restart a capture that stopped with an error, and open the log again."""
        self.log.retry()
        with self._lock:
            if self._supervisor is not None:
                self._supervisor.retry()

    @property
    def held_up(self) -> str:
        """Why feeds get nothing new for now, although nothing failed; empty if they do."""
        return self._held_up() or self.log.stalled

    def over_limit(self, job_id: int) -> OverLimit | None:
        """The limit of disk space that a feed of this process is above, or None."""
        return self._over.get(job_id)

    @property
    def over_limits(self) -> dict[int, str]:
        """The feeds that work and are above a limit of disk space, with a sentence of each."""
        with self._lock:
            return {job_id: over.why for job_id, over in self._over.items()}

    def begin_feed(self, job_id: int) -> None:
        """Forget the limits that the feed was above before it starts."""
        with self._lock:
            self._over.pop(job_id, None)

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
            self.log.refresh()
        elif notice.kind == "stalled":
            self.log.stall(notice.message)
        elif notice.kind == "flowing":
            self.log.stall("")
        elif notice.kind == "limits":
            with self._lock:
                # That a feed is to end stays true until its thread has seen it.
                ending = {job_id: over for job_id, over in self._over.items() if over.ends}
                self._over = {over.job_id: over for over in notice.over} | ending
        elif notice.kind == "warning":
            text = f"{notice.code} {notice.message}".strip()
            log.warning("capture of %s: %s", self.name, text)
        elif notice.kind == "moved":
            self.tables.hear(notice)
        elif notice.kind == "error":
            log.warning("capture of %s: %s %s", self.name, notice.code, notice.message)
            self.log.fail(
                ChangefeedError(notice.code, notice.message, detail=notice.detail, hint=notice.hint)
            )

    # -- the log --------------------------------------------------------------------------

    def wait_captured(self, tables: Iterable[TableName], stop: threading.Event) -> None:
        """Wait until every later commit to ``tables`` is certain to reach the log.

        Raises:
            ChangefeedError: the node of this state did not achieve it in time.
        """
        wanted = frozenset(tables)
        deadline = self._clock.monotonic() + self._timings.begin
        while not stop.is_set() and not wanted <= self.tables.ready:
            error = self.log.error
            if error is not None and error.action is not Action.RETRY:
                raise error
            if wanted & self.tables.filling:
                # That takes as long as a scan.
                deadline = self._clock.monotonic() + self._timings.begin
            if self._clock.monotonic() > deadline:
                why = self._catalog.source_state(self.name).error or self.tables.images_lost(wanted)
                raise ChangefeedError(
                    Code.STREAM_BROKE,
                    f"capture from {self.name!r} did not begin",
                    detail=why or "no node of this state started it",
                )
            self._clock.wait(stop, POLL_SECONDS)
        if not self._capturing():
            self.log.follow()

    def close(self) -> None:
        """Stop the capture and close the log."""
        self.log.close()
        with self._lock:
            supervisor, self._supervisor = self._supervisor, None
        if supervisor is not None:
            supervisor.stop()
        self.log.release()
