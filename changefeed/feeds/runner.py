"""One feed: range of the log -> messages -> sink -> durable -> progress -> resolved.

:mod:`.rounds` delivers, :mod:`.scan_coordinator` scans, :mod:`.checkpoint` saves progress, and
:mod:`.status` records the feed's status; the thread here calls them in turn, and retries.

Each feed has one thread, so that a slow sink delays no other feed. Progress advances only when the
sink reports rows as durable, and is saved before a resolved timestamp states it. A crash at any
point repeats messages but loses none.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from changefeed.capture.source_runtime import SourceRuntime
from changefeed.catalog import Catalog, Lease, LeaseLost
from changefeed.catalog.model import Job, Status, TableProgress, TableState
from changefeed.core.clock import Clock, SystemClock, Timestamp
from changefeed.core.errors import Action, ChangefeedError, Code
from changefeed.core.internal_errors import FailureCounter
from changefeed.core.references import refused_login
from changefeed.core.schema import TableName
from changefeed.core.sizes import Sizes
from changefeed.core.table_errors import TableError, TableFailure
from changefeed.core.telemetry import log
from changefeed.core.timings import Timings
from changefeed.core.work_stages import UNMEASURED, Stages
from changefeed.feeds.backlog import Backlog
from changefeed.feeds.checkpoint import Checkpoint
from changefeed.feeds.ddl import tell_origin
from changefeed.feeds.delivery import Delivery
from changefeed.feeds.feed import Feed
from changefeed.feeds.lost_tables import TableDeparture, TableRenames
from changefeed.feeds.message_cache import MessageCache
from changefeed.feeds.retry import RetryClock
from changefeed.feeds.rounds import Deliverers, Rounds
from changefeed.feeds.scan_coordinator import ScanCoordinator
from changefeed.feeds.sink_session import SinkSession
from changefeed.feeds.status import FeedStatus
from changefeed.feeds.windows import WindowDelivery
from changefeed.options import (
    HISTORY,
    INITIAL_SCAN,
    INITIAL_SCAN_CONCURRENCY,
    INITIAL_SCAN_MAX_RATE,
    RETRY_FOR,
    InitialScan,
)
from changefeed.plan.bulk_work import scan_limit
from changefeed.query.evaluate import QuerySessions
from changefeed.scan.admission import LEASE_SECONDS
from changefeed.scan.host import ScanHost, ScanLimits
from changefeed.scan.thread import SnapshotScan
from changefeed.spark.session import NodeSpark
from sinks.base import Sink


class StopFeed(Exception):
    """The runner was asked to stop, or has nothing left to do."""


@dataclass(frozen=True, slots=True)
class FeedServices:
    """What all feeds of a node share.

    Attributes:
        messages: the cache of encoded messages that feeds share.
        node_id: the node, for sinks that must know who writes.
        ended: called by a feed's thread when it ends.
        sizes: how much is done at once.
        saves_together: the node writes the progress of feeds at rest, all of them at once.
        holds_leases: waits until the node knows which leases it has; False if it ends before.
    """

    catalog: Catalog
    spark: NodeSpark
    messages: MessageCache
    node_id: str
    ended: Callable[[], None]
    queries: QuerySessions | None = None
    clock: Clock = field(default_factory=SystemClock)
    timings: Timings = field(default_factory=Timings)
    sizes: Sizes = field(default_factory=Sizes)
    saves_together: bool = False
    holds_leases: Callable[[], bool] = lambda: True


class FeedRunner:
    """Runs one job until it is stopped, fails or is done."""

    def __init__(
        self,
        job: Job,
        lease: Lease,
        services: FeedServices,
        source_runtime: SourceRuntime,
        sink: Sink | None = None,
        stages: Stages = UNMEASURED,
    ) -> None:
        """
        Args:
            services: what the feeds of a node share.
            sink: the sink object of a sinkless feed; other feeds create theirs from the URI.
            stages: measures the steps of the delivery.
        """
        self._stages = stages
        self._services = services
        time = services.clock, services.timings
        self.catalog = services.catalog
        self.job_id = job.id
        self.name = job.name
        self.source = job.source
        self.generation = job.generation
        #: As of :attr:`Job.hurried`, when its node last looked.
        self.hurried = job.hurried
        self.source_runtime = source_runtime
        self._lease = lease
        self._stopping = threading.Event()
        self._lost = threading.Event()
        self._reload = threading.Event()
        self._renamed = threading.Event()
        #: Set when the feed's thread has something to do; it ends a pause after an error.
        self._called = threading.Event()
        self._feed = Feed(self.catalog, job, lease, services.queries)
        self._feed.gather(0, 0)  # the first round of a runner waits for nothing
        self.sink_session = SinkSession(
            self.catalog,
            self._feed,
            services.node_id,
            services.spark,
            sink,
            services.clock,
            services.timings.unanswered,
            self._check_lease,
        )
        self._delivery = Delivery(
            job.name,
            self.source_runtime.log,
            services.messages,
            self.sink_session,
            services.sizes,
            services.clock,
            stages,
        )
        backlog = Backlog(
            self.source_runtime.log,
            self.source_runtime.log.folder,
            services.spark,
            self.sink_session,
            lambda text: self.catalog.record_event(self.job_id, "engine", text),
            services.clock,
            self._task_lease,
        )
        self._checkpoint = Checkpoint(
            self.sink_session,
            lambda: self._rounds.joining(self._feed),
            *time,
            with_others=services.saves_together and not job.sinkless,
        )
        renames = TableRenames(
            self.catalog, self.source_runtime, lambda: self.sink_session.pulled, self._took_rename
        )
        self._leaving = TableDeparture(
            self.catalog, self.source_runtime, self.sink_session.dropped, renames
        )
        self._scanning = ScanCoordinator(
            self.catalog,
            self.source_runtime,
            self._stopping,
            self._scan,
            lambda: self._checkpoint.resolved,
            self._tell_origin,
            self.sink_session.holds_target,
        )
        self._rounds = Rounds(
            self.catalog,
            self.source_runtime,
            self.sink_session,
            self._scanning,
            Deliverers(
                self._delivery,
                backlog,
                WindowDelivery(self.source_runtime.log, self.sink_session, services.sizes),
            ),
            renames,
            *time,
            committed=lambda: self._checkpoint.turn(self._feed),
            interrupted=self._interrupted,
        )
        self._status = FeedStatus(self.catalog, self.source_runtime, self._scanning, *time)
        self._retry = RetryClock(*time)
        self._failures = FailureCounter(services.clock)
        self._thread = threading.Thread(target=self._run, name=f"feed-{job.name}", daemon=True)

    # -- from other threads ---------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def join(self, timeout: float) -> None:
        self._thread.join(timeout)

    @property
    def stopping(self) -> bool:
        """Whether it was asked to stop."""
        return self._stopping.is_set()

    def request_stop(self) -> None:
        """End soon; progress is saved first. Returns at once."""
        self._stopping.set()
        self._called.set()
        self.sink_session.interrupt()
        self.wake()

    def lose_lease(self) -> None:
        """Another node has the job: give nothing more to the sink, and end."""
        self._lost.set()
        self.request_stop()

    def _check_lease(self) -> None:
        if not self._services.holds_leases() or self._lost.is_set():
            raise LeaseLost(self.job_id)

    def request_reload(self) -> None:
        """The job was altered: take its new row."""
        self._reload.set()
        self._called.set()
        self.wake()

    def request_rename(self, name: str) -> None:
        """Take the feed's new name for logs, batches, jobs and the feed's thread."""
        self.name = name
        self._thread.name = f"feed-{name}"
        self._renamed.set()
        self.wake()

    def request_checkpoint(self, upto: Timestamp | None = None) -> None:
        """Save progress at the next turn, and as soon as ``upto`` is delivered."""
        self._checkpoint.want(upto)
        self.wake()

    def request_delivery(self) -> None:
        """Deliver what the log has and save progress, now and when that is done, whatever the
        sink's pace (SYNC waits).
        """
        self._rounds.hurry()
        upto = None
        # A log that is damaged the feed itself reports.
        with contextlib.suppress(ChangefeedError):
            frontier = self.source_runtime.log.frontier
            upto = frontier.at if frontier else None
        self.request_checkpoint(upto)

    def pulse(self) -> None:
        """Show what the feed's thread waits for now, also that its Spark has ended.

        Raises:
            LeaseLost: another node has the job now.
        """
        waits, lost = self.sink_session.waits(), None
        if self.needs_spark or self.sink_session.needs_spark:
            spark = self._services.spark
            lost = spark.lost
            if lost is not None:
                spark.start()
                waits = spark.step
        self._status.pulse(self._feed, waits, lost)

    def wake(self) -> None:
        """Let the feed's thread look at what there is to do."""
        self._rounds.wake()

    @property
    def _task_lease(self) -> float:
        # A state in a directory has one node, and none other takes the feeds of one that hangs.
        shared = self.catalog.on_server
        return self._services.timings.task_lease if shared else LEASE_SECONDS

    @property
    def lease(self) -> Lease:
        """The right to run the job."""
        return self._lease

    def release_lease(self) -> None:
        self.catalog.release_lease(self._lease)

    # -- what its node may ask -------------------------------------------------------------

    @property
    def needs_spark(self) -> bool:
        """See :attr:`changefeed.feeds.feed.Feed.needs_spark`."""
        return self._feed.needs_spark

    # -- the feed's thread ----------------------------------------------------------------

    def _run(self) -> None:
        try:
            self.catalog.take_generation(self.job_id, self.generation, self._lease)
            self._status.begin(self._feed)
            self.source_runtime.begin_feed(self.job_id)
            while not self._stopping.is_set():
                if not self._guarded():
                    break
            self._scanning.stop(self._feed)
            self._save_quietly()
        except LeaseLost:
            log.warning("feed %s: the lease was lost", self.name)
        except ChangefeedError as error:
            log.error("feed %s: %s %s", self.name, error.code.number, error.message)
        finally:
            self._scanning.stop(self._feed)
            self._delivery.close()
            self.sink_session.close(for_good=True)
            self._services.ended()

    def _guarded(self) -> bool:
        """Returns whether to continue after an error or a stop."""
        try:
            self._live()
        except StopFeed:
            return False
        except TableError as failed:
            return self._table_failed(failed)
        except LeaseLost:
            raise
        except ChangefeedError as error:
            return self._after_error(error)
        except TableFailure as failure:
            return self._after_failure(failure.__cause__ or failure, failure.table)
        except Exception as failure:
            return self._after_failure(failure)

    def _after_failure(self, failure: BaseException, table: TableName | None = None) -> bool:
        """Pause after an internal error; if it repeats, the table stops, or else the feed."""
        doing = f"feed {self.name}" if table is None else f"feed {self.name}, table {table}"
        error = self._failures.error(doing, failure, str(table or ""))
        if table is not None and error.action is not Action.RETRY:
            return self._table_failed(TableError(table, error))
        return self._after_error(error)

    def _live(self) -> NoReturn:
        self._check_requests()  # an ALTER may be what brings the sink back
        self.sink_session.open()
        while True:
            self._check_requests()
            self._leaving.turn(self._feed)
            self._scanning.begin(self._feed)
            self._status.turn(self._feed)
            moved = self._deliver()
            if moved or self._scanning.delivers:
                # Before progress is saved: a caller who waits for progress then finds the right
                # status.
                self._status.works(self._feed)
            self._scanning.follow(self._feed, self._scanned)
            self._checkpoint.turn(self._feed)
            scans = self._scanning.active(self._feed)
            if moved or self._scanning.advanced or not scans:
                self._retry.reset()
                self._status.works(self._feed)
            if not scans:
                self._end_if_done()
            self._rounds.wait(self._feed, prompt=scans or self._prompt())

    def _prompt(self) -> bool:
        """Whether the feed is to act as soon as time passes in the source, without a change of its
        tables."""
        query = self._feed.query
        return self._checkpoint.prompt(self._feed) or (query is not None and query.grouped)

    def _deliver(self) -> bool:
        try:
            return self._rounds.turn(self._feed)
        except TableError as failed:
            if not self._scanning.skip_undeliverable(self._feed, failed):
                raise
            log.warning("feed %s: skipped before a rescan: %s", self.name, failed.error.message)
            return False

    def _scanned(self) -> None:
        self._status.works(self._feed)
        self._status.turn(self._feed)

    def _check_requests(self) -> None:
        self._called.clear()
        if self._stopping.is_set():
            raise StopFeed
        self._status.check_limits(self._feed)
        if self._reload.is_set():
            self._reload.clear()
            self._take_new_row()
        if self._renamed.is_set():
            self._renamed.clear()
            self._feed.job = self.catalog.job(self.job_id)
            self.sink_session.open(self._feed)

    def _take_new_row(self) -> None:
        # Stop the scan first: nothing may write to a closed sink.
        self._scanning.stop(self._feed)
        self._feed.save()
        job = self.catalog.job(self.job_id)
        if job.sink_uri != self._feed.job.sink_uri or job.options != self._feed.job.options:
            self.sink_session.close()
        self.generation, self.name = job.generation, job.name
        before, self._feed = (
            self._feed,
            Feed(self.catalog, job, self._lease, self._services.queries),
        )
        self._feed.continue_from(before)
        self._rounds.reloaded()
        self._status.forget()
        self.catalog.take_generation(self.job_id, self.generation, self._lease)
        self.sink_session.open(self._feed)

    def _tell_origin(self, table: TableName, at: Timestamp) -> None:
        log, sizes = self.source_runtime.log, self._services.sizes
        tell_origin(self._feed, table, at, log, self.sink_session, sizes)

    def _took_rename(self, generation: int) -> None:
        """Take over the generation of a rename, which the feed has applied already."""
        if generation == self.generation + 1:
            self.generation = generation
            self.catalog.take_generation(self.job_id, generation, self._lease)

    def _interrupted(self) -> bool:
        return self._stopping.is_set() or self._reload.is_set() or self._scanning.waits

    def _scan(self, tables: Sequence[TableProgress]) -> SnapshotScan:
        feed, spark = self._feed, self._services.spark

        def promised() -> Timestamp | None:
            known = [feed.job.high_water, self._checkpoint.resolved]
            return max((at for at in known if at is not None), default=None)

        def note_engine(table: TableName, text: str) -> None:
            self.catalog.record_event(self.job_id, "engine", text, table=str(table))

        host = ScanHost(
            name=feed.job.name,
            job_id=self.job_id,
            state=self.catalog.state_id,
            source_runtime=self.source_runtime,
            spark=spark,
            sinks=self.sink_session,
            sizes=self._services.sizes,
            stages=self._stages,
            asked_engine=feed.asked_engine(spark.preferred),
            limits=ScanLimits(
                feed.options[INITIAL_SCAN_CONCURRENCY],
                feed.options[INITIAL_SCAN_MAX_RATE],
                scan_limit(feed.options),
            ),
            history=feed.options[HISTORY],
            needs_spark=feed.needs_spark,
            has_query=feed.query is not None,
            promised=promised,
            note_engine=note_engine,
            recognise=feed.recognise,
            intern_schema=self.catalog.intern_schema,
            plan=feed.plan,
            form=feed.form,
            messages=feed.messages,
            row_plan=feed.row_plan,
            rows=feed.rows,
            target=feed.target,
            refuse_row=feed.refuse_row if feed.dead_letters.wanted else None,
            wake=self.wake,
        )
        return SnapshotScan(host, tables, self._services.clock, self._task_lease)

    def _after_error(self, error: ChangefeedError) -> bool:
        """Pause before another attempt; returns False if the feed ends with the error."""
        self._scanning.stop(self._feed)
        self.sink_session.close()
        self._save_quietly()
        refused, error = error, refused_login(error, self._feed.places)
        if error is not refused:
            self.source_runtime.read_secrets_again(error)
            self._reload.set()
        if error.action is Action.RETRY and self._stopping.is_set():
            return True  # it stops now, and the stop may have caused the error
        if error.action is Action.RETRY and self._retry.allows(self._feed.options[RETRY_FOR]):
            pause = self._retry.next_pause()
            at = Timestamp(self._services.clock.now().wall + int(pause * 1e9))
            self._status.retrying(self._feed, error, self._retry.attempt, at)
            self._services.clock.wait(self._called, pause)
            return True
        return not self._ended(error)

    def _table_failed(self, failed: TableError) -> bool:
        """Returns False if no table is left."""
        self._status.failed_table(self._feed, failed)
        self._scanning.stop(self._feed)
        self.sink_session.close()
        return bool(self._feed.targets()) or not self._ended(failed.error)

    def _ended(self, error: ChangefeedError) -> bool:
        """Whether the feed ends with an error; else it goes on with an ALTER that came before.

        The node hands it the ALTER once the source has answered for it: what the source said of
        its tables before that may be what the ALTER is about. A source that cannot answer is not
        waited for.
        """
        if self._status.ended(self._feed, error, self.generation):
            return True
        self._services.clock.wait(self._called, self._services.timings.source_look)
        self._reload.set()
        return False

    def _end_if_done(self) -> None:
        end = self._feed.job.end_time
        high = self._feed.high_water() if end is not None else None
        if self._feed.options[INITIAL_SCAN] is InitialScan.ONLY:
            reason = "initial scan finished"
        elif end is not None and high is not None and high >= end:
            reason = "end_time reached"
        else:
            return
        if self._feed.in_state(TableState.PAUSED):
            return  # they are delivered when they are resumed
        if (error := self._failed_tables()) is not None:
            if self._ended(error):
                raise StopFeed
            return
        self._checkpoint.last(self._feed)
        self._status.show(self._feed, Status.SUCCEEDED, reason)
        raise StopFeed

    def _failed_tables(self) -> ChangefeedError | None:
        """Why the feed is no success: a feed with failed tables ends as failed, so that RESUME
        retries them.
        """
        failed = self._feed.in_state(TableState.FAILED)
        if not failed:
            return None
        first = failed[0]
        return ChangefeedError(
            Code.stored(first.error_code) or Code.INTERNAL_ERROR_REPEATS,
            f"{len(failed)} of {len(self._feed.tables)} tables failed: {first.table}: "
            f"{first.error}",
        )

    def _save_quietly(self) -> None:
        """Save the progress; a failure is only logged, because another error is reported."""
        try:
            self._feed.save()
        except LeaseLost:
            raise
        except ChangefeedError as error:
            log.warning("feed %s: saving progress: %s", self.name, error.message)
