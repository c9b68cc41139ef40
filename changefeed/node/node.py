"""The node: reconciles what runs with the jobs of the state.

Every loop it reads the job table (only when something changed) and then

* gives the thread of each source (:mod:`changefeed.capture.reconciler`) what its feeds need,
* starts a :class:`~changefeed.feeds.runner.FeedRunner` for each feed that should run and whose
  source is ready for it,
* stops those that should not, and removes what was dropped.

The loop itself waits for no source and no sink. A feed belongs to the node that holds its lease.
A statement never calls a runner: it changes the job table, and the node follows.
"""

from __future__ import annotations

import math
import os
import shutil
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from changefeed.api import Interpreter, Result, Session
from changefeed.capture.source_runtime import SourceRuntime
from changefeed.capture.standby import Standby
from changefeed.catalog import Catalog, DesiredStatus, Job, ScheduledRun, Status
from changefeed.core.clock import Clock, SystemClock
from changefeed.core.engines import SparkReport
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.events import ClientRow
from changefeed.core.internal_errors import log_failure
from changefeed.core.node_lock import NodeLock
from changefeed.core.schema import TableSchema
from changefeed.core.sizes import Sizes
from changefeed.core.spark_jobs import SparkJobs
from changefeed.core.state import StateLayout
from changefeed.core.telemetry import log
from changefeed.core.timings import Timings
from changefeed.dataset.model import DatasetColumn
from changefeed.dataset.tables import Registration, check_tables
from changefeed.feeds.message_cache import DEFAULT_BYTES, MessageCache
from changefeed.feeds.runner import FeedServices
from changefeed.node.datasets import DatasetThreads
from changefeed.node.proofs import ProofThreads
from changefeed.node.questions import NodeAnswers
from changefeed.node.running_feeds import RunningFeeds
from changefeed.node.schedules import ScheduledFeeds
from changefeed.node.sinkless import SinklessFeeds
from changefeed.node.sources import NodeSources
from changefeed.plan.stages import FeedPlan
from changefeed.query.evaluate import QuerySessions
from changefeed.query.model import CompiledQuery
from changefeed.query.written import Constants
from changefeed.spark.session import NodeSpark
from changefeed.statements.context import Measurement
from changefeed.statements.inquiry import NodeInquiry
from grammar import nodes
from sinks.base import SparkAccess

#: How many feeds a node has room for, for each core of its machine.
FEEDS_PER_CORE: Final = 50
#: How often a feed looks whether its leases were renewed, when they were not in time.
HOLD_SECONDS: Final = 0.05


class Node:
    """Runs the feeds of a state in this process until :meth:`stop`."""

    def __init__(
        self,
        catalog: Catalog,
        state: str,
        *,
        spark: NodeSpark | None = None,
        clock: Clock | None = None,
        timings: Timings | None = None,
        sizes: Sizes | None = None,
        max_memory: int | None = None,
        max_disk: int | None = None,
        max_copies: int | None = None,
        max_feeds: int | None = None,
        ready: Standby | None = None,
        lock: NodeLock | None = None,
    ) -> None:
        """
        Args:
            state: what ``--state`` named, for child processes.
            spark: Spark; our own when not given.
            clock: for ages, leases and whatever waits.
            timings: how often the parts of the node act; the state may say how long leases last.
            sizes: how much feeds do at once.
            max_memory: limit in bytes for encoded messages that feeds share.
            max_disk: limit in bytes for the change log of each source.
            max_copies: limit in bytes for the copies of objects of each source's shared log.
            max_feeds: how many feeds this node has room for before other nodes of the state take
                some (:mod:`.placement`); :data:`FEEDS_PER_CORE` for each core when not given.
            ready: a capture process for the first source; it ends with the node, or at once if
            the state has no feed when the node starts.
            lock: the state's lock, if it was taken for this node.
        """
        self.catalog = catalog
        self.id = uuid.uuid4().hex[:12]
        self.clock: Clock = clock or SystemClock()
        self.timings = timings or Timings()
        if (lease := catalog.lease_seconds) is not None:
            self.timings = replace(self.timings, lease=lease)
        self._layout = StateLayout(Path(catalog.directory))
        self._lock_file = lock or NodeLock(self._layout.lock)
        self.spark = spark or NodeSpark()
        self._max_feeds = max_feeds or FEEDS_PER_CORE * (os.cpu_count() or 1)
        self.shared = MessageCache(max_memory or DEFAULT_BYTES)
        #: Spark's sessions for CDC queries.
        self.queries = QuerySessions(self.spark, catalog.functions, self.clock)
        services = FeedServices(
            catalog,
            self.spark,
            self.shared,
            self.id,
            self.wake,
            self.queries,
            self.clock,
            self.timings,
            sizes or Sizes(),
            saves_together=True,
            holds_leases=self._holds_leases,
        )
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._seen_version: object = None
        self._news = threading.Event()
        self._next_turn = 0.0
        #: How often the pulse has begun: it stands still while one hangs.
        self.beats = 0
        #: When leases were renewed last.
        self._renewed = self.clock.monotonic()
        #: The error that each thread met last.
        self._errors: dict[str, str] = {}
        self._datasets = DatasetThreads(catalog, self.spark, self.clock, self.timings)
        self.sources = NodeSources(
            catalog,
            state,
            self.id,
            clock=self.clock,
            timings=self.timings,
            max_disk=max_disk,
            max_copies=max_copies,
            standby=ready,
            capturing=lambda: self.is_node,
            runs=lambda job_id: job_id in self.feeds or self.sources.held_elsewhere(job_id),
            changed=self._look_again,
            held_up=self._datasets.held_up,
        )
        self._answers = NodeAnswers(catalog, self, self.clock)
        self._schedules = ScheduledFeeds(catalog, self.clock, self._make_run)
        self.feeds = RunningFeeds(services, self.sources)
        self._proofs = ProofThreads(services, self, self.feeds.runner)
        self._sinkless = SinklessFeeds(
            services,
            source_runtime=self.sources.runtime,
            covered=self.sources.covered,
            register=self.feeds.register,
            wake=self.wake,
            # A node has its pulse.
            keeps_leases=lambda: self.is_node,
            stopping=self._stopping,
        )
        self.is_node = False
        #: Why the node cannot use the state any more.
        self.refused: ChangefeedError | None = None

    # -- life -----------------------------------------------------------------------------

    def start(self) -> bool:
        """Become the node of this state; False when another process is.

        Spark starts in the background only when there is a feed to run.
        """
        if not self._lock_file.acquire():
            return False
        self.is_node = True
        self._renewed = self.clock.monotonic()
        self._clean_work()
        self.catalog.register_node(self.id, os.getpid(), max_feeds=self._max_feeds)
        for name, work in (
            ("node", self._loop),
            ("node-pulse", self._pulse),
            ("node-status", self._show),
            ("node-progress", self._save),
        ):
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
        """Stop all runners and captures, leave the jobs unchanged, release the lock."""
        self._stopping.set()
        self._wake.set()
        self.catalog.offered.hurried.set()
        self.catalog.offered.news.set()
        for thread in self._threads:
            thread.join(15)
        self.sources.request_stop()
        self._datasets.stop()
        self._proofs.stop()
        self.feeds.stop()
        self.sources.close()
        self.spark.close()
        if self.is_node and self.refused is None:
            self.catalog.unregister_node(self.id)
        self._lock_file.release()

    @property
    def alive(self) -> bool:
        return all(thread.is_alive() for thread in self._threads)

    def wake(self) -> None:
        """Read the job table now, and save every feed's progress soon (SYNC waits for it)."""
        self.feeds.request_checkpoints()
        self._wake.set()

    def hasten(self, source: str) -> None:
        """Make capture catch up now, because a caller waits for what a source has committed."""
        self.sources.hasten(source)

    def deliver_now(self, job_id: int) -> None:
        """Make a feed deliver everything that waits and save its progress, without its sink's
        pauses.
        """
        runner = self.feeds.runner(job_id)
        if runner is not None:
            runner.request_delivery()
        else:
            self.catalog.hurry(job_id)

    def spark_with(self, packs: Sequence[str]) -> SparkAccess:
        """The Spark of this process, with jar packs."""
        self.spark.require(*packs)
        return self.spark

    def node_running(self) -> bool:
        """Whether some process runs the feeds of this state."""
        return self.is_node or bool(self.catalog.live_nodes())

    def source_runtime(self, source: str) -> SourceRuntime:
        """The runtime of a source, created on first use and again after its last feed was
        dropped.
        """
        return self.sources.runtime(source)

    # -- the loop -------------------------------------------------------------------------

    def _loop(self) -> None:
        # The first turn at once.
        self._wake.set()
        while not self._stopping.is_set():
            self.clock.wait(self._wake, self.timings.node_loop)
            self._wake.clear()
            if self._stopping.is_set():
                return
            # The loop must outlive a fault of one turn: all feeds hang on it.
            self._try("turn", self._turn)

    def _pulse(self) -> None:
        """Renew heartbeat and leases, and nothing else: all other work of the node may take long,
        and without a pulse all leases end, while the feeds go on.
        """

        def beat() -> None:
            self.beats += 1
            leases = self.feeds.leases | self.sources.leases
            load = os.getloadavg()[0] / (os.cpu_count() or 1)
            asked = self.clock.monotonic()
            lost = self.catalog.heartbeat(self.id, leases, self.timings.lease, load)
            self.feeds.stop_without_lease(lost)
            self.sources.note_lost(lost)
            self._renewed = asked

        self._every_pulse("pulse", beat)

    def _holds_leases(self) -> bool:
        """Wait until leases were renewed within their time; False if the node ends before. Where
        other nodes could have taken what is here, a process that stood still learns first whether
        they did.
        """
        if not (self.is_node and self.sources.waits):
            return True
        while self.clock.monotonic() - self._renewed > self.timings.lease:
            if self.clock.wait(self._stopping, HOLD_SECONDS):
                return False
        return True

    def _show(self) -> None:
        """Save what SHOW and SYNC read: how far the logs reach, and what the feeds wait for."""

        def save() -> None:
            self.sources.save_frontiers()
            self.feeds.show_waits()

        self._every_pulse("status", save)

    def _save(self) -> None:
        """Save the progress of the feeds that only watch time pass, at most once a pulse unless a
        statement waits. The source's heartbeat moves them all at once, so a moment after the first
        has offered its progress the others have, too.
        """
        offered, clock, timings = self.catalog.offered, self.clock, self.timings
        last = -math.inf

        def save() -> None:
            nonlocal last
            clock.wait(offered.hurried, max(0.0, last + timings.pulse - clock.monotonic()))
            if len(self.feeds) > 1:
                clock.wait(self._stopping, timings.save_gather)
            last = clock.monotonic()
            self.catalog.save_offered()

        self._every_pulse("progress", save, offered.news)

    def _every_pulse(
        self, name: str, work: Callable[[], None], early: threading.Event | None = None
    ) -> None:
        while not self._stopping.is_set():
            self.clock.wait(early or self._stopping, self.timings.pulse)
            if self._stopping.is_set():
                return
            self._try(name, work)

    def _try(self, name: str, work: Callable[[], None]) -> None:
        """Do ``work``, and log what it raises; an error that lasts is logged once."""
        try:
            work()
        except ChangefeedError as error:
            if error.code is Code.STATE_OF_ANOTHER_VERSION:
                self.refused = error
            if self._errors.get(name) != error.message:
                log.error("node: %s", error.message)
            self._errors[name] = error.message
        except Exception as failure:
            log_failure(f"node: the {name}", failure)
        else:
            self._errors.pop(name, None)

    def _turn(self) -> None:
        now = self.clock.monotonic()
        version = self.catalog.version()
        due = now >= self._next_turn or self._news.is_set() or self.feeds.any_ended
        if version == self._seen_version and not due:
            return
        self._news.clear()
        self._seen_version = version
        self._next_turn = now + (
            self.timings.pulse if self.sources.waits else self.timings.node_turn
        )
        self._answers.give(self.id)
        self._schedules.look(version)
        for name in self.sources.lost:
            log.warning("source %s: another node has taken it, letting go", name)
            self.feeds.stop_source(name)
            self.sources.let_go(name)
        jobs = self.catalog.jobs()
        self.sources.look()
        given_away = self.sources.given_away
        ours = self.sources.owned({job.source for job in jobs}) - given_away
        here = self.sources.placed(jobs)
        self.feeds.end_unwanted(jobs, here)
        for name in given_away - self.feeds.sources:
            log.info("source %s: given to another node", name)
            self.sources.let_go(name)
        of_ours = self.feeds.settle([job for job in jobs if job.source in ours])
        # First: with its last feed the definition of a dataset goes, too.
        self._datasets.want({job.source for job in of_ours if _reads(job)})
        self.sources.want(of_ours, self.feeds.sources | given_away)
        self.sources.publish()
        self.feeds.tell_altered(jobs)
        self.feeds.start_wanted(jobs, here)
        self._proofs.want(jobs)
        self.sources.close_unused(
            self.feeds.sources | {job.source for job in jobs if job.id in here}
        )
        self.shared.feeds = len(self.feeds)

    def _look_again(self) -> None:
        """Run the loop now, because of an event that the job table does not show."""
        self._news.set()
        self._wake.set()

    # -- CDC queries ------------------------------------------------------------------------

    def compile_query(self, schema: TableSchema, query: nodes.Query) -> CompiledQuery:
        """Check a CDC query against its table; starts Spark if it does not run yet."""
        compiled = self.queries.compile(schema, query, Constants(self.clock.now().wall))
        lookups = self.queries.lookups()
        for lookup in compiled.lookups:
            lookups.rows(lookup)
        return compiled

    def extract_columns(
        self, location: str, form: str | None, delimiter: str
    ) -> tuple[DatasetColumn, ...]:
        """The columns of an extract; starts Spark if it does not run yet."""
        with self.spark.use("dataset columns") as session:
            from changefeed.dataset.incoming import extract_columns

            return extract_columns(session, location, form, delimiter)

    def check_tables(self, registration: Registration) -> None:
        """Whether a dataset could have its tables; starts Spark if it does not run yet."""
        with self.spark.use("dataset tables") as session:
            check_tables(session, registration)

    def verify(self, statement: str, gone: Callable[[], bool]) -> Result:
        """What a VERIFY CHANGEFEED of another process finds; it stops soon after ``gone`` says that
        nobody waits for it."""
        return self._execute(statement, Session(client="node", gone=gone, user=""))

    def _make_run(self, statement: str, run: ScheduledRun) -> None:
        self._execute(statement, Session(client="schedule", user="", run=run))

    def _execute(self, statement: str, session: Session) -> Result:
        interpreter = Interpreter(self.catalog, self.clock, host=self, timings=self.timings)
        return interpreter.execute(statement, session)

    @property
    def spark_elsewhere(self) -> bool:
        """False: the Spark of the node is that of the state."""
        return False

    def spark_report(self) -> SparkReport:
        """What the node's Spark is; starts nothing."""
        return self.spark.report()

    def spark_jobs(self, feed: int, node: str | None = None) -> SparkJobs:
        """The jobs of a feed that the node's Spark knows, or that of another one; starts
        nothing."""
        if node is not None and node != self.id:
            return NodeInquiry(self.catalog).spark_jobs(feed, node)
        return self.spark.jobs_of(self.catalog.state_id, feed)

    def query_sessions(self) -> QuerySessions:
        """The Spark sessions that evaluate CDC queries here; Spark starts with the first query."""
        return self.queries

    # -- sinkless feeds -------------------------------------------------------------------

    def start_sinkless(self, plan: FeedPlan, gone: Callable[[], bool]) -> Iterator[ClientRow]:
        """Run a feed for the one client in this process; closing the iterator ends it, and so does
        ``gone``."""
        return self._sinkless.rows(plan, gone)

    def measure(self, plan: FeedPlan, seconds: float, gone: Callable[[], bool]) -> Measurement:
        """Run a feed for so long into nothing, and say what it cost."""
        return self._sinkless.measured(plan, seconds, gone)


def _reads(job: Job) -> bool:
    return (
        job.wanted is DesiredStatus.RUNNING
        and job.status is not Status.FAILED
        and (not job.status.finished)
    )
