"""The node: makes what runs equal to what the job table wants.

Every loop it reads the job table (only when something changed) and then

* watches the tables of all feeds of a source, and runs that source's capture,
* starts a :class:`~changefeed.jobs.runner.FeedRunner` for each feed that should run,
* stops those that should not, and removes what was dropped.

A feed belongs to the node that holds its lease. A statement never talks to a runner: it
changes the table, and the node follows.
"""

from __future__ import annotations

import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol, cast

from changefeed.catalog import Catalog
from changefeed.clock import Clock, SystemClock
from changefeed.errors import Action, ChangefeedError
from changefeed.events import Frontier
from changefeed.jobs.keeper import SourceKeeper
from changefeed.jobs.lock import NodeLock
from changefeed.jobs.model import Job, Status, Wanted
from changefeed.jobs.runner import FeedRunner
from changefeed.jobs.share import DEFAULT_BYTES, SharedMessages
from changefeed.plan.stages import FeedPlan
from changefeed.schema import TableName
from changefeed.spark.session import SparkEngine
from changefeed.state import StateLayout
from changefeed.statements.context import StreamRow
from changefeed.telemetry import log
from sinks.base import Sink
from sinks.registry import open_sink

LOOP_SECONDS = 0.1
SINKLESS_STOP_SECONDS = 10.0
PULSE_SECONDS = 1.0
LEASE_SECONDS = 15.0
EXPAND_SECONDS = 10.0
SOURCE_RETRY_SECONDS = 5.0


class ClientSink(Sink, Protocol):
    """The sink of a feed whose rows go to a client in this process."""

    def take(self, timeout: float | None) -> StreamRow | None:
        """The next row; None after ``timeout`` seconds or at the end."""
        ...

    @property
    def ended(self) -> bool:
        """The feed is over and every row was taken."""
        ...

    def leave(self) -> None:
        """The client goes away."""
        ...


class Node:
    """Runs the feeds of a state in this process until :meth:`stop`."""

    def __init__(
        self,
        catalog: Catalog,
        state: str,
        *,
        engine: SparkEngine | None = None,
        clock: Clock | None = None,
        max_memory: int | None = None,
        max_disk: int | None = None,
    ) -> None:
        """
        Args:
            catalog: the state.
            state: what ``--state`` named, for child processes.
            engine: Spark; our own when not given.
            clock: for ages and leases.
            max_memory: bytes of finished messages feeds may share.
            max_disk: bytes the change log of a source may take.
        """
        self.catalog = catalog
        self.id = uuid.uuid4().hex[:12]
        self.clock: Clock = clock or SystemClock()
        self._state = state
        self._layout = StateLayout(Path(catalog.directory))
        self._lock_file = NodeLock(self._layout.lock)
        self.engine = engine or SparkEngine()
        self.shared = SharedMessages(max_memory or DEFAULT_BYTES)
        self._max_disk = max_disk
        self._keepers: dict[str, SourceKeeper] = {}
        self._runners: dict[int, FeedRunner] = {}
        self._failed_sources: dict[str, float] = {}
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._seen_version: object = None
        self._next_expand = 0.0
        self._saved_frontiers: dict[str, Frontier] = {}
        self._mutex = threading.RLock()
        self.is_node = False

    # -- life -----------------------------------------------------------------------------

    def start(self) -> bool:
        """Become the node of this state; False when another process is.

        Spark starts in the background only when there is a feed to run.
        """
        if not self._lock_file.acquire():
            return False
        self.is_node = True
        self._clean_work()
        self.catalog.register_node(self.id, os.getpid(), socket.gethostname())
        self._thread = threading.Thread(target=self._loop, name="node", daemon=True)
        self._thread.start()
        threading.Thread(target=self._pulse, name="node-pulse", daemon=True).start()
        return True

    def _clean_work(self) -> None:
        self._layout.work.mkdir(parents=True, exist_ok=True)
        for leftover in self._layout.work.iterdir():
            if leftover.is_file():
                leftover.unlink()

    def stop(self) -> None:
        """Stop all runners and captures, leave the jobs as they are, free the lock."""
        self._stopping.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(30)
        with self._mutex:
            runners = list(self._runners.values())
        for runner in runners:
            runner.request_stop()
        for keeper in list(self._keepers.values()):
            keeper.wake()
        for runner in runners:
            runner.join(20)
            if not runner.is_alive():
                # The next node need not wait for the lease's end.
                runner.release_lease()
        for keeper in list(self._keepers.values()):
            keeper.close()
        self.engine.close()
        if self.is_node:
            self.catalog.unregister_node(self.id)
        self._lock_file.release()

    def wake(self) -> None:
        """Look at the job table now, and save every feed's progress soon (SYNC waits for it)."""
        for runner in list(self._runners.values()):
            runner.request_checkpoint()
        self._wake.set()

    def node_running(self) -> bool:
        """Whether some process runs the feeds of this state."""
        return self.is_node or bool(self.catalog.live_nodes())

    def keeper(self, source: str) -> SourceKeeper:
        """The keeper of a source, made on first use."""
        with self._mutex:
            if source not in self._keepers:
                self._keepers[source] = SourceKeeper(
                    self.catalog,
                    self._state,
                    source,
                    capturing=self.is_node,
                    disk=self._max_disk,
                )
            return self._keepers[source]

    # -- the loop -------------------------------------------------------------------------

    def _loop(self) -> None:
        while not self._stopping.is_set():
            self._wake.wait(LOOP_SECONDS)
            self._wake.clear()
            if self._stopping.is_set():
                return
            try:
                self._turn()
            except ChangefeedError as error:
                log.error("node: %s", error.message)
            except Exception:
                # The loop must outlive a surprise in one turn: all feeds hang on it.
                log.exception("node: unexpected error in a turn")

    def _pulse(self) -> None:
        """Heartbeat, leases and frontiers: apart from the loop, which may wait for a source."""
        while not self._stopping.wait(PULSE_SECONDS):
            try:
                self.catalog.heartbeat(self.id)
                self._renew_leases()
                self._save_frontiers()
            except ChangefeedError as error:
                log.error("node: %s", error.message)
            except Exception:
                # Without a pulse all leases end, while the feeds go on.
                log.exception("node: unexpected error in the pulse")

    def _turn(self) -> None:
        now = time.monotonic()
        version = self.catalog.version()
        due = now >= self._next_expand
        ended = any(not r.is_alive() for r in self._runners.values())
        retry = any(at <= now for at in self._failed_sources.values())
        if version == self._seen_version and not due and not ended and not retry:
            return
        self._seen_version = version
        if due:
            self._next_expand = now + EXPAND_SECONDS
            self._expand_patterns()
        jobs = self.catalog.jobs()
        self._reap()
        self._stop_unwanted(jobs)
        self._remove_dropped(jobs)
        jobs = [j for j in jobs if j.wanted is not Wanted.DROPPED]
        self._watch_sources(jobs)
        # After the sources: a table that is tried again meets what they say now.
        self._reload_altered(jobs)
        self._start_wanted(jobs)
        self.shared.feeds = len(self._runners)

    def _save_frontiers(self) -> None:
        """Let other processes see how far the logs are (SHOW, SYNC)."""
        for name, keeper in list(self._keepers.items()):
            frontier = keeper.frontier
            if frontier is not None and frontier != self._saved_frontiers.get(name):
                self._saved_frontiers[name] = frontier
                self.catalog.save_source_state(
                    name, position=frontier.position, frontier=frontier.at
                )

    def _renew_leases(self) -> None:
        for runner in list(self._runners.values()):
            if not runner.renew_lease(LEASE_SECONDS):
                log.warning("feed %s: the lease was lost, stopping", runner.name)
                runner.request_stop()

    def _expand_patterns(self) -> None:
        """Let tables made after a SCHEMA or DATABASE feed join it."""
        from changefeed.plan.expand import expand_job

        for job in self.catalog.jobs(include_finished=False):
            if job.has_patterns and job.wanted is Wanted.RUNNING:
                try:
                    added = expand_job(self.catalog, job, self.keeper(job.source).source)
                except ChangefeedError as error:
                    log.warning("feed %s: cannot list tables: %s", job.name, error.message)
                    continue
                for name in added:
                    self.catalog.record_event(job.id, "table", "joined the feed", table=name)

    # -- jobs -----------------------------------------------------------------------------

    def _reap(self) -> None:
        for job_id, runner in list(self._runners.items()):
            if not runner.is_alive():
                del self._runners[job_id]
                runner.release_lease()

    def _stop_unwanted(self, jobs: list[Job]) -> None:
        by_id = {j.id: j for j in jobs}
        for job_id, runner in list(self._runners.items()):
            job = by_id.get(job_id)
            if job is None or job.wanted is not Wanted.RUNNING:
                runner.request_stop()
        for job in jobs:
            idle = job.id not in self._runners and job.status.active
            if job.wanted is Wanted.PAUSED and idle:
                self.catalog.transition(job.id, Status.PAUSED, reason="paused by the user")

    def _reload_altered(self, jobs: list[Job]) -> None:
        for job in jobs:
            runner = self._runners.get(job.id)
            if runner is not None and job.generation != runner.generation:
                runner.request_reload()

    def _remove_dropped(self, jobs: list[Job]) -> None:
        for job in jobs:
            gone = job.wanted is Wanted.DROPPED or self._abandoned(job)
            if gone and job.id not in self._runners:
                self.catalog.delete_job(job.id)
                log.info("feed %s dropped", job.name)

    def _abandoned(self, job: Job) -> bool:
        """A sinkless feed whose process is gone."""
        if not job.sinkless or self.catalog.lease_holder(job.id) is not None:
            return False
        return self.clock.now().wall - job.created > LEASE_SECONDS * 1e9

    def _watch_sources(self, jobs: list[Job]) -> None:
        wanted: dict[str, set[TableName]] = {}
        for job in jobs:
            if job.status.finished:
                continue
            names = {t.table for t in self.catalog.tables(job.id)}
            wanted.setdefault(job.source, set()).update(names)
        for name in set(self._keepers) | {s.name for s in self.catalog.source_states()}:
            if name not in wanted:
                self._forget_source(name)
        for name, tables in wanted.items():
            self._watch(name, tables)

    def _watch(self, name: str, tables: set[TableName]) -> None:
        if self._failed_sources.get(name, 0.0) > time.monotonic():
            return
        keeper = self.keeper(name)
        try:
            keeper.follow_connection()
            keeper.watch(tables)
            self._failed_sources.pop(name, None)
            self.catalog.save_source_state(name, status="running", error="", error_code="")
        except ChangefeedError as error:
            self._failed_sources[name] = time.monotonic() + SOURCE_RETRY_SECONDS
            self.catalog.save_source_state(
                name, status="retrying", error=error.message, error_code=error.code.number
            )
            log.warning("source %s: %s %s", name, error.code.number, error.message)
            self._tell_waiting(name, error)

    def _tell_waiting(self, source: str, error: ChangefeedError) -> None:
        """The source cannot be watched: feeds that do not run here yet show why."""
        for job in self.catalog.jobs(include_finished=False):
            if job.source != source or job.id in self._runners or not job.status.active:
                continue
            retry = error.action is Action.RETRY
            status = Status.RETRYING if retry else Status.FAILED
            if (job.status, job.error) != (status, error.message):
                reason = f"source: {error.message}"
                self.catalog.transition(job.id, status, reason=reason, error=error)

    def _forget_source(self, name: str) -> None:
        if any(r.source == name for r in self._runners.values()):
            return
        if self._failed_sources.get(name, 0.0) > time.monotonic():
            return
        keeper = self.keeper(name)
        try:
            if not keeper.forget():
                return
            self._failed_sources.pop(name, None)
        except (ChangefeedError, OSError) as error:
            self._failed_sources[name] = time.monotonic() + SOURCE_RETRY_SECONDS
            log.warning("source %s: cannot remove the slot yet: %s", name, error)
        # It is closed, whatever became of the slot: the next feed gets a new one.
        self._keepers.pop(name, None)

    def _start_wanted(self, jobs: list[Job]) -> None:
        for job in jobs:
            if job.status is Status.PAUSED and job.wanted is Wanted.RUNNING:
                # A RESUME that came while the job was being paused.
                job = self.catalog.transition(
                    job.id, Status.PENDING, reason="resumed, waits for a node"
                )
            runnable = job.wanted is Wanted.RUNNING and job.status.active
            if not runnable or job.id in self._runners or job.sinkless:
                continue
            if job.source in self._failed_sources:
                continue
            lease = self.catalog.acquire_lease(job.id, self.id, LEASE_SECONDS)
            if lease is None:
                continue
            self.engine.start()
            keeper = self.keeper(job.source)
            if keeper.error is not None:
                keeper.retry()
            try:
                runner = FeedRunner(self, job, lease)
            except ChangefeedError as error:
                # One that cannot even be read must not keep those behind it from running.
                self.catalog.release_lease(lease)
                log.warning("feed %s: %s %s", job.name, error.code.number, error.message)
                self._refuse(job, error)
                continue
            self._runners[job.id] = runner
            runner.start()

    def _refuse(self, job: Job, error: ChangefeedError) -> None:
        status = Status.RETRYING if error.action is Action.RETRY else Status.FAILED
        if (job.status, job.error) != (status, error.message):
            self.catalog.transition(job.id, status, reason=error.message, error=error)

    # -- sinkless feeds -------------------------------------------------------------------

    def start_sinkless(self, plan: FeedPlan) -> Iterator[StreamRow]:
        """Run a feed for the one client in this process; closing the iterator ends it.

        Its job is in the table while it lives, so that the node that captures the source
        (maybe another process) includes its tables; it is gone afterwards.
        """
        job = self.catalog.create_job(plan.spec())
        sink = cast("ClientSink", open_sink("sinkless://"))
        runner: FeedRunner | None = None
        try:
            lease = self.catalog.acquire_lease(job.id, self.id, LEASE_SECONDS)
            if lease is None:
                raise ChangefeedError("CF6003", "another node took the feed")
            self.wake()
            self.engine.start()
            keeper = self.keeper(job.source)
            if keeper.error is not None:
                keeper.retry()
            runner = FeedRunner(self, job, lease, sink)
            # Before the loop sees it: a runner that is not alive gives its lease back.
            runner.start()
            with self._mutex:
                self._runners[job.id] = runner
            yield from self._rows(sink, runner)
        finally:
            sink.leave()
            if runner is not None:
                runner.request_stop()
                runner.join(SINKLESS_STOP_SECONDS)
                self._runners.pop(job.id, None)
            self.catalog.delete_job(job.id)
            self.wake()

    def _rows(self, sink: ClientSink, runner: FeedRunner) -> Iterator[StreamRow]:
        if not self.is_node:
            # A client may look at one row for long; a node has its pulse.
            threading.Thread(target=self._keep_lease, args=(runner,), daemon=True).start()
        while not sink.ended:
            row = sink.take(0.2)
            if row is not None:
                yield row
        job = self.catalog.job(runner.job_id)
        if job.status is Status.FAILED:
            raise ChangefeedError(job.error_code or "CF4002", job.error or job.reason)
        if job.status is not Status.SUCCEEDED:
            raise ChangefeedError("CF6004", f'the stream of "{job.name}" was cut off: {job.reason}')

    def _keep_lease(self, runner: FeedRunner) -> None:
        while runner.is_alive() and not self._stopping.wait(PULSE_SECONDS):
            try:
                if not runner.renew_lease(LEASE_SECONDS):
                    runner.request_stop()
                    return
            except ChangefeedError as error:
                log.error("feed %s: %s", runner.name, error.message)
