"""The node: makes what runs equal to what the job table wants.

Every loop it reads the job table (only when something changed) and then

* tells the thread of each source (:mod:`changefeed.capture.reconciler`) what its feeds need,
* starts a :class:`~changefeed.feeds.runner.FeedRunner` for each feed that should run and whose
  source is ready for it,
* stops those that should not, and removes what was dropped.

The loop itself waits for no source and no sink. A feed belongs to the node that holds its
lease. A statement never talks to a runner: it changes the table, and the node follows.
"""

from __future__ import annotations

import os
import shutil
import socket
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

from changefeed.capture.reconciler import SourceWatch, Wish
from changefeed.capture.source_runtime import SourceKeeper
from changefeed.catalog import Catalog
from changefeed.catalog.model import Job, Status, TableProgress, Wanted
from changefeed.core.clock import Clock, SystemClock
from changefeed.core.errors import Action, ChangefeedError
from changefeed.core.events import ClientRow, Frontier
from changefeed.core.internal_errors import FailureCounter, log_failure
from changefeed.core.schema import TableSchema
from changefeed.core.state import StateLayout
from changefeed.core.telemetry import log
from changefeed.feeds import life
from changefeed.feeds.message_cache import DEFAULT_BYTES, SharedMessages
from changefeed.feeds.runner import FeedRunner, FeedServices
from changefeed.node.lock import NodeLock
from changefeed.node.sinkless import SinklessFeeds
from changefeed.node.timings import LEASE_SECONDS, LOOP_SECONDS, PULSE_SECONDS
from changefeed.plan.stages import FeedPlan
from changefeed.query.evaluate import QuerySessions
from changefeed.query.model import CompiledQuery
from changefeed.query.written import Constants
from changefeed.spark.session import SparkEngine
from grammar import nodes
from sinks.base import SparkAccess

#: A source that does not answer is not waited for any longer at the end.
WATCH_STOP_SECONDS = 2.0
#: The job table is read this often though nothing in it has changed: leases end by time.
TURN_SECONDS = 5.0


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
        #: Spark's sessions for CDC queries.
        self.queries = QuerySessions(self.engine)
        self._services = FeedServices(
            catalog, self.engine, self.shared, self.id, self.wake, self.queries
        )
        self._max_disk = max_disk
        self._keepers: dict[str, SourceKeeper] = {}
        self._runners: dict[int, FeedRunner] = {}
        self._watches: dict[str, SourceWatch] = {}
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._seen_version: object = None
        self._news = threading.Event()
        self._next_turn = 0.0
        self._saved_frontiers: dict[str, Frontier] = {}
        self._mutex = threading.RLock()
        self._failures = FailureCounter()
        self._sinkless = SinklessFeeds(
            self._services,
            keeper=self.keeper,
            covered=self._covered,
            register=self._register,
            wake=self.wake,
            # A node has its pulse.
            keeps_leases=lambda: self.is_node,
            stopping=self._stopping,
        )
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
        for name, work in (("node", self._loop), ("node-pulse", self._pulse)):
            thread = threading.Thread(target=work, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()
        return True

    def _clean_work(self) -> None:
        self._layout.work.mkdir(parents=True, exist_ok=True)
        for leftover in self._layout.work.iterdir():
            if leftover.is_dir():
                shutil.rmtree(leftover, ignore_errors=True)
            else:
                leftover.unlink()

    def stop(self) -> None:
        """Stop all runners and captures, leave the jobs as they are, free the lock."""
        self._stopping.set()
        self._wake.set()
        for thread in self._threads:
            thread.join(15)
        watches = list(self._watches.values())
        for watch in watches:
            watch.stop()
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
        for watch in watches:
            watch.join(WATCH_STOP_SECONDS)
        for keeper in list(self._keepers.values()):
            keeper.close()
        self.engine.close()
        if self.is_node:
            self.catalog.unregister_node(self.id)
        self._lock_file.release()

    @property
    def alive(self) -> bool:
        """Its threads are at work."""
        return all(thread.is_alive() for thread in self._threads)

    def wake(self) -> None:
        """Look at the job table now, and save every feed's progress soon (SYNC waits for it)."""
        for runner in list(self._runners.values()):
            runner.request_checkpoint()
        self._wake.set()

    def hasten(self, source: str) -> None:
        """Somebody waits until the change log has what is committed at a source now."""
        keeper = self._keepers.get(source)
        if keeper is not None:
            keeper.hasten()

    def deliver_now(self, job_id: int) -> None:
        """Deliver what a feed has waiting and save its progress, without the pauses of its sink."""
        runner = self._runners.get(job_id)
        if runner is not None:
            runner.request_delivery()

    def spark(self, packs: Sequence[str]) -> SparkAccess:
        """Spark of this process with jar packs."""
        self.engine.require(*packs)
        return self.engine

    def node_running(self) -> bool:
        """Whether some process runs the feeds of this state."""
        return self.is_node or bool(self.catalog.live_nodes())

    def keeper(self, source: str) -> SourceKeeper:
        """The keeper of a source, made on first use and after the last feed left the source."""
        with self._mutex:
            known = self._keepers.get(source)
            if known is None or known.closed:
                known = self._keepers[source] = SourceKeeper(
                    self.catalog,
                    self._state,
                    source,
                    capturing=self.is_node,
                    disk=self._max_disk,
                )
            return known

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
            except Exception as failure:
                # The loop must outlive a fault of one turn: all feeds hang on it.
                log_failure("node: a turn", failure)

    def _pulse(self) -> None:
        """Heartbeat, leases and frontiers: apart from the loop, whose turn may take its time."""
        while not self._stopping.wait(PULSE_SECONDS):
            try:
                self.catalog.heartbeat(self.id)
                self._renew_leases()
                self._save_frontiers()
            except ChangefeedError as error:
                log.error("node: %s", error.message)
            except Exception as failure:
                # Without a pulse all leases end, while the feeds go on.
                log_failure("node: the pulse", failure)

    def _turn(self) -> None:
        now = time.monotonic()
        version = self.catalog.version()
        ended = any(not r.is_alive() for r in list(self._runners.values()))
        due = now >= self._next_turn or self._news.is_set() or ended
        if version == self._seen_version and not due:
            return
        self._news.clear()
        self._seen_version = version
        self._next_turn = now + TURN_SECONDS
        jobs = self.catalog.jobs()
        self._reap()
        self._stop_unwanted(jobs)
        self._remove_dropped(jobs)
        jobs = [j for j in jobs if j.wanted is not Wanted.DROPPED]
        self._watch_sources(jobs)
        self._tell_altered(jobs)
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
        runners = {runner.job_id: runner for runner in list(self._runners.values())}
        leases = [runner.lease for runner in runners.values()]
        for job_id in self.catalog.renew_leases(leases, LEASE_SECONDS):
            log.warning("feed %s: the lease was lost, stopping", runners[job_id].name)
            runners[job_id].request_stop()

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
                log.info("feed %s: paused by the user", job.name)

    def _tell_altered(self, jobs: list[Job]) -> None:
        """Runners take an ALTER once the source was made ready for it: an added table is
        captured then, and one that is tried again meets what the source says now."""
        for job in jobs:
            runner = self._runners.get(job.id)
            if runner is None:
                continue
            if job.name != runner.name:
                runner.request_rename(job.name)
            if job.generation != runner.generation and self._covered(job):
                runner.request_reload()

    def _remove_dropped(self, jobs: list[Job]) -> None:
        for job in jobs:
            gone = job.wanted is Wanted.DROPPED or self._abandoned(job)
            if gone and job.id not in self._runners:
                self.catalog.delete_job(job.id)
                log.info("feed %s: dropped", job.name)

    def _abandoned(self, job: Job) -> bool:
        """A sinkless feed whose process is gone."""
        if not job.sinkless or self.catalog.lease_holder(job.id) is not None:
            return False
        return self.clock.now().wall - job.created > LEASE_SECONDS * 1e9

    def _watch_sources(self, jobs: list[Job]) -> None:
        """Tell each source's thread what its feeds need; none waits for another."""
        feeds: dict[str, list[tuple[Job, list[TableProgress]]]] = {}
        for job in jobs:
            if not job.status.finished:
                feeds.setdefault(job.source, []).append((job, self.catalog.tables(job.id)))
        busy = {runner.source for runner in self._runners.values()}
        idle = {state.name for state in self.catalog.source_states()} | self._watches.keys()
        for name in idle - feeds.keys() - busy:
            feeds[name] = []
        for name, of_source in feeds.items():
            self._want(name, Wish.of(of_source))

    def _want(self, name: str, wish: Wish) -> None:
        watch = self._watches.get(name)
        if watch is not None and watch.want(wish):
            return
        if watch is not None and not wish.jobs:
            # It has ended: nothing is left at the source.
            del self._watches[name]
            return
        watch = self._watches[name] = SourceWatch(
            self.catalog,
            name,
            lambda: self.keeper(name),
            runs=lambda job_id: job_id in self._runners,
            changed=self._look_again,
        )
        watch.want(wish)
        watch.start()

    def _covered(self, job: Job) -> bool:
        """The source was made ready for the job as it is now."""
        watch = self._watches.get(job.source)
        return watch is not None and watch.covers(job)

    def _look_again(self) -> None:
        """Something happened that the job table does not show."""
        self._news.set()
        self._wake.set()

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
            if not self._covered(job):
                continue
            lease = self.catalog.acquire_lease(job.id, self.id, LEASE_SECONDS)
            if lease is None:
                continue
            keeper = self.keeper(job.source)
            if keeper.error is not None:
                keeper.retry()
            try:
                runner = FeedRunner(job, lease, self._services, keeper)
            except Exception as failure:
                # One that cannot even be read must not keep those behind it from running.
                error = self._named(job, failure)
                self.catalog.release_lease(lease)
                log.warning("feed %s: %s %s", job.name, error.code.number, error.message)
                self._refuse(job, error)
                continue
            # On a cluster a warm session makes scans and backlogs jobs from the first on.
            if runner.needs_spark or not self.engine.local:
                self.engine.start()
            self._runners[job.id] = runner
            life.started(job)
            runner.start()

    def _named(self, job: Job, failure: Exception) -> ChangefeedError:
        if isinstance(failure, ChangefeedError):
            return failure
        return self._failures.error(f"feed {job.name}", failure, job.name)

    def _refuse(self, job: Job, error: ChangefeedError) -> None:
        status = Status.RETRYING if error.action is Action.RETRY else Status.FAILED
        if (job.status, job.error) != (status, error.message):
            self.catalog.transition(job.id, status, reason=error.message, error=error)

    def compile_query(self, schema: TableSchema, query: nodes.Query) -> CompiledQuery:
        """Check a CDC query against its table; starts Spark where it does not run yet."""
        return self.queries.compile(schema, query, Constants(self.clock.now().wall))

    # -- sinkless feeds -------------------------------------------------------------------

    def start_sinkless(self, plan: FeedPlan) -> Iterator[ClientRow]:
        """Run a feed for the one client in this process; closing the iterator ends it."""
        return self._sinkless.rows(plan)

    def _register(self, job: Job, runner: FeedRunner | None) -> None:
        """The loop sees a sinkless feed's runner (None: it is over)."""
        with self._mutex:
            if runner is None:
                self._runners.pop(job.id, None)
            else:
                self._runners[job.id] = runner
