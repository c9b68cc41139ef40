"""One thread per source reconciles what is held there with what its feeds need.

A source may hang (a firewall drops packets, a transaction must end before the log can be held);
the node and the feeds of other sources must not be affected. So the node only sets the desired
state, and starts a feed once :meth:`SourceReconciler.covers` returns true for its tables. The
thread starts with the first feed of a source, and ends when the last feed is gone and nothing of
changefeed is left at the source.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from changefeed.capture.expand import expand_job
from changefeed.capture.source_runtime import SourceRuntime
from changefeed.capture.table_identity import Known
from changefeed.catalog import Catalog
from changefeed.catalog.model import DesiredStatus, Job, Status, TableProgress, TableState
from changefeed.core.clock import Clock, SystemClock
from changefeed.core.errors import LOG_LOST, Action, ChangefeedError, Code
from changefeed.core.internal_errors import FailureCounter
from changefeed.core.telemetry import log
from changefeed.core.timings import Timings


@dataclass(frozen=True, slots=True)
class DesiredState:
    """What the feeds of one source need.

    Attributes:
        jobs: each feed's id and generation.
        tables: the tables, as the feeds know them.
    """

    jobs: frozenset[tuple[int, int]] = frozenset()
    tables: frozenset[Known] = frozenset()

    @classmethod
    def of(cls, feeds: Iterable[tuple[Job, list[TableProgress]]]) -> DesiredState:
        """The combined needs of these jobs and their tables."""
        jobs: set[tuple[int, int]] = set()
        tables: set[Known] = set()
        for job, progress in feeds:
            jobs.add((job.id, job.generation))
            tables.update((t.table, t.table_id) for t in progress if not given_up(t))
        return cls(frozenset(jobs), frozenset(tables))


def given_up(table: TableProgress) -> bool:
    """Whether a feed that names the table has lost it, until RESUME."""
    failed = table.state is TableState.FAILED and table.error_code == Code.TABLE_REPLACED
    return failed and not table.joined


class SourceReconciler:
    """Brings a source into the desired state of its feeds, in a separate thread."""

    def __init__(
        self,
        catalog: Catalog,
        name: str,
        source_runtime: Callable[[], SourceRuntime],
        *,
        runs: Callable[[int], bool],
        changed: Callable[[], None],
        clock: Clock | None = None,
        timings: Timings | None = None,
    ) -> None:
        """
        Args:
            source_runtime: the source's present runtime.
            runs: whether a job is running (it then shows the source's errors itself).
            changed: called after each attempt that changed what :meth:`covers` says.
        """
        self.name = name
        self.error: ChangefeedError | None = None
        self._catalog = catalog
        self._clock = clock or SystemClock()
        self._timings = timings or Timings()
        self._failures = FailureCounter(self._clock)
        self._source_runtime = source_runtime
        self._runs = runs
        self._changed = changed
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._wish = DesiredState()
        self._done = DesiredState()
        self._over = False
        self._next_expand = self._clock.monotonic() + self._timings.expand
        self._thread = threading.Thread(target=self._run, name=f"source-{name}", daemon=True)

    # -- from the node --------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def want(self, wish: DesiredState) -> bool:
        """Set the desired state (empty: leave the source); False when the thread has ended."""
        with self._lock:
            if self._over:
                return False
            if wish != self._wish:
                self._wish = wish
                self._wake.set()
            return True

    def covers(self, job: Job) -> bool:
        """Whether the last successful attempt included the present tables of the job."""
        return (job.id, job.generation) in self._done.jobs

    @property
    def ready(self) -> dict[int, int]:
        """The jobs that :meth:`covers` is true for, with the generation of each."""
        return dict(self._done.jobs)

    @property
    def over(self) -> bool:
        """Whether nothing is left to do, and nothing is held at the source now."""
        return self._over

    def stop(self) -> None:
        """End soon, and leave the source as it is. Does not wait for a call that hangs."""
        self._stopping.set()
        self._wake.set()

    def join(self, timeout: float) -> None:
        """Wait for the end of the thread."""
        self._thread.join(timeout)

    # -- the thread -----------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._wake.clear()
            wish = self._wish
            left = False
            # The feeds of the source depend on this thread. It survives an internal error, and a
            # state that cannot be reached: then not even the error can be shown.
            with self._failures.survived(f"source {self.name}"):
                left = self._attempt(wish)
            if left and self._end(wish):
                return
            busy = self.error is not None and self.error.code is Code.SOURCE_BUSY
            times = self._timings
            pause = min(times.source_busy, times.source_look) if busy else times.source_look
            self._clock.wait(self._wake, pause)

    def _end(self, wish: DesiredState) -> bool:
        """End, because nothing is held at the source, unless a new feed has come meanwhile."""
        with self._lock:
            self._over = self._wish == wish
        self._changed()
        return self._over

    def _attempt(self, wish: DesiredState) -> bool:
        """Returns whether no feed is left and nothing is held."""
        try:
            if not wish.jobs:
                return self._leave()
            self._make_ready(wish)
        except (ChangefeedError, OSError) as error:
            self._failed(error, leaving=not wish.jobs)
        except Exception as failure:
            found = self._failures.error(f"source {self.name}", failure)
            self._failed(found, leaving=not wish.jobs)
        return False

    def _make_ready(self, wish: DesiredState) -> None:
        source_runtime = self._source_runtime()
        source_runtime.follow_connection()
        if self._catalog.source_state(self.name).renewal:
            source_runtime = self._renew(source_runtime, wish)
        source_runtime.watch(wish.tables)
        if self._stopping.is_set():
            return
        news = self.error is not None or self._done != wish
        if self.error is not None:
            log.info("source %s: recovered", self.name)
        self._catalog.save_source_state(self.name, status="running", error="", error_code="")
        self.error, self._done = None, wish
        if news:
            self._changed()
        if self._clock.monotonic() >= self._next_expand:
            self._next_expand = self._clock.monotonic() + self._timings.expand
            self._expand()

    def _renew(self, source_runtime: SourceRuntime, wish: DesiredState) -> SourceRuntime:
        """Start a new log for a RESCAN, unless the present log can be continued after all.

        Raises:
            ChangefeedError: it is not known yet; the request stays.
        """
        source_runtime.retry()  # the error may be an old one
        lost = None
        try:
            source_runtime.watch(wish.tables)
            lost = source_runtime.log.why_lost(self._stopping)
        except ChangefeedError as error:
            if error.code not in LOG_LOST:
                raise
            lost = error
        if lost is not None:
            source_runtime.begin_again(lost)
            source_runtime = self._source_runtime()
        self._catalog.save_source_state(self.name, renewal=False)
        return source_runtime

    def _leave(self) -> bool:
        self._done = DesiredState()
        left = self._source_runtime().forget()
        self.error = None
        return left

    def _failed(self, error: ChangefeedError | OSError, *, leaving: bool) -> None:
        if isinstance(error, OSError):
            error = ChangefeedError(
                Code.LOG_NOT_WRITABLE, f"cannot remove the change log: {error.strerror}"
            )
        else:
            error = self._source_runtime().read_secrets_again(error)
        if self.error is None or self.error.message != error.message:
            doing = "cannot remove what it keeps for us yet: " if leaving else ""
            log.warning("source %s: %s%s %s", self.name, doing, error.code.number, error.message)
        self.error = error
        if not leaving:
            if error.code in LOG_LOST:
                self._source_runtime().log.fail(error)
            # The feeds first: a statement that sees the source's state answers with theirs.
            self._tell_waiting(error)
            self._catalog.save_source_state(
                self.name, status="retrying", error=error.message, error_code=error.code.number
            )

    def _tell_waiting(self, error: ChangefeedError) -> None:
        usual = Status.RETRYING if error.action is Action.RETRY else Status.FAILED
        for job in self._catalog.source_jobs(self.name):
            waits = job.status.active and not self._runs(job.id) and not self.covers(job)
            if not waits:
                continue
            # A RESCAN asks for a new log before it lets its feed wait: this error is an old one.
            if self._catalog.source_state(self.name).renewal and error.code in LOG_LOST:
                continue
            # A busy source is not an error: the feed waits for its turn.
            busy = error.code is Code.SOURCE_BUSY and job.status is Status.STARTING
            status = Status.STARTING if busy else usual
            if (job.status, job.error) != (status, error.message):
                reason = f"source: {error.message}"
                self._catalog.transition(job.id, status, reason=reason, error=error)

    def _expand(self) -> None:
        for job in self._catalog.source_jobs(self.name):
            if not job.has_patterns or job.wanted is not DesiredStatus.RUNNING:
                continue
            try:
                added = expand_job(self._catalog, job, self._source_runtime().source)
            except ChangefeedError as error:
                log.warning("feed %s: cannot list tables: %s", job.name, error.message)
                continue
            for name in added:
                self._catalog.record_event(job.id, "table", "joined the feed", table=name)
