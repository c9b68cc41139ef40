"""The feeds that run in this process, reconciled with the job table."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence

from changefeed.catalog import AnyLease, LeaseLost
from changefeed.catalog.model import DesiredStatus, Job, Status
from changefeed.core.errors import Action, ChangefeedError
from changefeed.core.internal_errors import FailureCounter
from changefeed.core.telemetry import log
from changefeed.feeds.runner import FeedRunner, FeedServices
from changefeed.feeds.status import log_start
from changefeed.node.sources import NodeSources

#: How long a runner is waited for at the end, seconds.
STOP_SECONDS = 20.0


class RunningFeeds:
    """Runners by job. The node's loop compares them with the jobs; any thread may read."""

    def __init__(self, services: FeedServices, sources: NodeSources) -> None:
        self._services = services
        self._catalog = services.catalog
        self._sources = sources
        self._mutex = threading.Lock()
        self._runners: dict[int, FeedRunner] = {}
        self._failures = FailureCounter(services.clock)
        #: Feeds of clients that no process runs, and since when.
        self._unheld: dict[int, float] = {}

    def __contains__(self, job_id: object) -> bool:
        return job_id in self._runners

    def __len__(self) -> int:
        return len(self._runners)

    def runner(self, job_id: int) -> FeedRunner | None:
        """The runner of a job, if it has one here."""
        return self._runners.get(job_id)

    def register(self, job: Job, runner: FeedRunner | None) -> None:
        """Record a runner that other code started (None: it has ended)."""
        with self._mutex:
            if runner is None:
                self._runners.pop(job.id, None)
            else:
                self._runners[job.id] = runner

    @property
    def sources(self) -> set[str]:
        return {runner.source for runner in list(self._runners.values())}

    @property
    def any_ended(self) -> bool:
        return any(not runner.is_alive() for runner in list(self._runners.values()))

    # -- as the job table wants ---------------------------------------------------------------

    def end_unwanted(self, jobs: Sequence[Job], here: Collection[int]) -> None:
        """Forget runners that have ended, and stop those that should not run.

        Args:
            here: the feeds with a sink that this node is to run.
        """
        for job_id, runner in list(self._runners.items()):
            if not runner.is_alive():
                del self._runners[job_id]
                runner.release_lease()
        by_id = {job.id: job for job in jobs}
        for job_id, runner in list(self._runners.items()):
            found = by_id.get(job_id)
            if found is None or found.wanted is not DesiredStatus.RUNNING:
                runner.request_stop()
            elif found.sinkless:
                # It runs where its client is, whichever node captures its source.
                continue
            elif job_id not in here:
                if not runner.stopping:
                    log.info("feed %s: another node is to run it, stopping", runner.name)
                runner.request_stop()
            elif runner.source_runtime.elsewhere != self._sources.elsewhere(runner.source):
                # It reads a copy of a log that this node writes by now, or the other way round.
                runner.request_stop()

    def settle(self, jobs: Sequence[Job]) -> list[Job]:
        """Write that feeds are paused and remove dropped ones, if no node runs them; returns the
        jobs that are left.

        Args:
            jobs: those of the sources that this node captures.
        """
        for job in jobs:
            idle = not self._runs(job) and job.status.active
            if job.wanted is DesiredStatus.PAUSED and idle:
                paused = self._catalog.stands_still(job.id)
                log.info("feed %s: %s", job.name, paused.reason)
        kept = []
        for job in jobs:
            gone = job.wanted is DesiredStatus.DROPPED or self._abandoned(job)
            if gone and not self._runs(job):
                self._catalog.delete_job(job.id)
                log.info("feed %s: dropped", job.name)
            elif not gone or self._sources.held_elsewhere(job.id):
                kept.append(job)
        self._unheld = {job.id: self._unheld[job.id] for job in kept if job.id in self._unheld}
        return kept

    def _runs(self, job: Job) -> bool:
        return job.id in self._runners or self._sources.held_elsewhere(job.id)

    def _abandoned(self, job: Job) -> bool:
        if not job.sinkless or self._catalog.lease_holder(job.id) is not None:
            self._unheld.pop(job.id, None)
            return False
        # By this process's clock: that of its client's machine may show another time.
        now = self._services.clock.monotonic()
        return now - self._unheld.setdefault(job.id, now) > self._services.timings.lease

    def tell_altered(self, jobs: Sequence[Job]) -> None:
        """Give runners an ALTER once the source is ready for it: an added table is captured
        then, and a retried table gets the present answer of the source. What gathers is delivered
        where another process asked for it.
        """
        for job in jobs:
            runner = self._runners.get(job.id)
            if runner is None:
                continue
            if job.name != runner.name:
                runner.request_rename(job.name)
            if job.hurried != runner.hurried:
                runner.hurried = job.hurried
                runner.request_delivery()
            if job.generation != runner.generation and self._sources.covered(job):
                runner.request_reload()

    def start_wanted(self, jobs: Sequence[Job], here: Collection[int]) -> None:
        """Start the feeds that should run here, whose source is ready, and that no other node runs.

        Args:
            here: as of :meth:`end_unwanted`.
        """
        for job in jobs:
            if job.id not in here:
                continue
            if job.status is Status.PAUSED and job.wanted is DesiredStatus.RUNNING:
                # A RESUME that came while the job was being paused.
                job = self._catalog.transition(
                    job.id, Status.STARTING, reason="resumed, waits for a node"
                )
            if _runnable(job) and not self._runs(job):
                self._start(job)

    def _start(self, job: Job) -> None:
        services = self._services
        if not self._sources.covered(job):
            # What the job says is of the node before this one.
            stale = job.status in (Status.RUNNING, Status.SCANNING)
            if stale and self._catalog.lease_holder(job.id) is None:
                self._catalog.transition(job.id, Status.STARTING, reason="waits for a node")
            return
        try:
            source_runtime = self._sources.runtime_for(job)
        except ChangefeedError as refused:
            found = self._catalog.find_job(job.id)
            if found is not None and _runnable(found):
                self._refuse(found, refused)
            return
        if source_runtime is None:
            return
        lease = self._catalog.acquire_lease(job.id, services.node_id, services.timings.lease)
        if lease is None:
            return
        # Who ran it before may have ended it since the jobs were read: nobody else can, now.
        found = self._catalog.find_job(job.id)
        if found is None or not _runnable(found):
            self._catalog.release_lease(lease)
            return
        if source_runtime.log.error is not None:
            source_runtime.retry()
        try:
            runner = FeedRunner(job, lease, services, source_runtime)
        except Exception as failure:
            # One that cannot even be read must not keep those behind it from running.
            error = self._explained(job, failure)
            self._catalog.release_lease(lease)
            log.warning("feed %s: %s %s", job.name, error.code.number, error.message)
            self._refuse(job, error)
            return
        # On a cluster a warm session makes scans and backlogs jobs from the first on.
        if runner.needs_spark or not services.spark.local:
            services.spark.start()
        self._runners[job.id] = runner
        log_start(job)
        runner.start()

    def _explained(self, job: Job, failure: Exception) -> ChangefeedError:
        if isinstance(failure, ChangefeedError):
            return failure
        return self._failures.error(f"feed {job.name}", failure, job.name)

    def _refuse(self, job: Job, error: ChangefeedError) -> None:
        status = Status.RETRYING if error.action is Action.RETRY else Status.FAILED
        if (job.status, job.error) != (status, error.message):
            self._catalog.transition(job.id, status, reason=error.message, error=error)

    # -- while they run -----------------------------------------------------------------------

    @property
    def leases(self) -> set[AnyLease]:
        return {runner.lease for runner in list(self._runners.values())}

    def stop_without_lease(self, lost: Collection[AnyLease]) -> None:
        """Make the runners end whose lease is another node's."""
        for runner in list(self._runners.values()):
            if runner.lease in lost:
                log.warning("feed %s: the lease was lost, stopping", runner.name)
                runner.lose_lease()

    def show_waits(self) -> None:
        """Make every feed show what it waits for."""
        for runner in list(self._runners.values()):
            try:
                runner.pulse()
            except LeaseLost:
                runner.request_stop()

    def request_checkpoints(self) -> None:
        """Make every feed save its progress soon."""
        for runner in list(self._runners.values()):
            runner.request_checkpoint()

    def stop_source(self, source: str) -> None:
        """Make the runners of a source end, which another node runs now."""
        for runner in list(self._runners.values()):
            if runner.source == source:
                runner.request_stop()

    # -- the end ------------------------------------------------------------------------------

    def stop(self) -> None:
        """Stop all runners, and leave the jobs unchanged."""
        with self._mutex:
            runners = list(self._runners.values())
        for runner in runners:
            runner.request_stop()
        self._sources.wake()
        for runner in runners:
            runner.join(STOP_SECONDS)
        # The next node need not wait for the leases' end.
        self._catalog.release_leases([runner.lease for runner in runners if not runner.is_alive()])


def _runnable(job: Job) -> bool:
    return job.wanted is DesiredStatus.RUNNING and job.status.active
