"""One feed: range of the log -> messages -> sink -> durable -> progress -> resolved.

A thread a feed, so that a slow sink holds up nothing else. Progress moves only on what the
sink calls durable, is written to the job table before a resolved timestamp says so, and a
crash at any point repeats messages but loses none.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from changefeed.capture.source_runtime import SourceKeeper
from changefeed.catalog import Catalog, Lease, LeaseLost
from changefeed.catalog.gaps import concerns
from changefeed.catalog.model import Job, Status, TableProgress, TableState
from changefeed.core.clock import Timestamp
from changefeed.core.errors import Action, ChangefeedError, Code
from changefeed.core.events import SchemaChange
from changefeed.core.internal_errors import FailureCounter
from changefeed.core.schema import TableName
from changefeed.core.table_errors import TableError, TableFailure
from changefeed.core.telemetry import log
from changefeed.feeds import life
from changefeed.feeds.backlog import Backlog
from changefeed.feeds.backlog import Progress as BacklogProgress
from changefeed.feeds.checkpoint import Checkpoint
from changefeed.feeds.consumer import follow_consumer
from changefeed.feeds.delivery import Delivery
from changefeed.feeds.feed import Feed
from changefeed.feeds.lost_tables import Leaving
from changefeed.feeds.message_cache import SharedMessages
from changefeed.feeds.scan_coordinator import Scanning
from changefeed.feeds.scan_host import FeedScanHost
from changefeed.feeds.schema_policy import (
    check_message_key,
    difference,
    needs_backfill,
    scan_has,
)
from changefeed.feeds.sink_session import Outlet
from changefeed.options import INITIAL_SCAN, ON_ERROR, RETRY_FOR, InitialScan, OnError
from changefeed.query.evaluate import QuerySessions
from changefeed.scan.thread import Scan
from changefeed.spark.session import SparkEngine
from sinks.base import Sink

#: How long an idle feed sleeps before it looks around by itself.
IDLE_SECONDS = 0.5
#: A round of one row costs a feed as much as one of fifty: rounds begin at most this often.
GATHER_SECONDS = 0.005
#: How often the progress of a scan is written down.
SHOW_SECONDS = 1.0
FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 30.0


class StopFeed(Exception):
    """The runner was asked to stop, or has nothing left to do."""


@dataclass(frozen=True, slots=True)
class FeedServices:
    """What all feeds of a node share.

    Attributes:
        catalog: the state.
        engine: Spark.
        messages: the messages that several feeds encode alike.
        node_id: the node, for sinks that must know who writes.
        ended: called by a feed's thread when it ends.
        queries: Spark's sessions for CDC queries.
    """

    catalog: Catalog
    engine: SparkEngine
    messages: SharedMessages
    node_id: str
    ended: Callable[[], None]
    queries: QuerySessions | None = None


class FeedRunner:
    """Runs one job until it is stopped, fails or is done."""

    def __init__(
        self,
        job: Job,
        lease: Lease,
        services: FeedServices,
        keeper: SourceKeeper,
        sink: Sink | None = None,
    ) -> None:
        """
        Args:
            job: the feed's row.
            lease: the right to run it.
            services: what the feeds of a node share.
            keeper: the feed's source.
            sink: the sink object of a sinkless feed; others make theirs from the URI.
        """
        self._services = services
        self.catalog = services.catalog
        self.job_id = job.id
        self.name = job.name
        self.source = job.source
        self.generation = job.generation
        self.keeper = keeper
        self._lease = lease
        self._stopping = threading.Event()
        self._reload = threading.Event()
        self._renamed = threading.Event()
        self._feed = Feed(self.catalog, job, lease, services.queries)
        self.outlet = Outlet(self.catalog, self._feed, services.node_id, services.engine, sink)
        self._delivery = Delivery(job.name, self.keeper, services.messages, self.outlet)
        self._backlog = Backlog(
            job.name,
            self.keeper,
            self.keeper.log_folder,
            services.engine,
            self.outlet,
            lambda text: self.catalog.record_event(self.job_id, "engine", text),
        )
        self._checkpoint = Checkpoint(self.outlet, self._joining)
        self._leaving = Leaving(self.catalog, self.keeper, self.outlet.dropped)
        self._scanning = Scanning(
            self.catalog,
            self.keeper,
            self._stopping,
            self._scan,
            lambda: self._checkpoint.resolved,
        )
        self._next_round = 0.0
        self._hurried = threading.Event()
        self._state_version: object = None
        self._unknown: set[TableName] = set()
        self._seen = Timestamp.ZERO
        self._retry = RetryClock()
        self._failures = FailureCounter()
        self._shown: tuple[Status, str] | None = None
        self._shown_at = 0.0
        self._thread = threading.Thread(target=self._run, name=f"feed-{job.name}", daemon=True)

    # -- from other threads ---------------------------------------------------------------

    def start(self) -> None:
        """Begin; returns at once."""
        self._thread.start()

    def is_alive(self) -> bool:
        """The feed's thread is there."""
        return self._thread.is_alive()

    def join(self, timeout: float) -> None:
        """Wait for the end."""
        self._thread.join(timeout)

    def request_stop(self) -> None:
        """End soon; progress is saved first."""
        self._stopping.set()
        self.wake()

    def request_reload(self) -> None:
        """The job was altered: take its new row."""
        self._reload.set()
        self.wake()

    def request_rename(self, name: str) -> None:
        """The feed has another name: in logs, thread names, and what its sink is told."""
        self.name = name
        self._thread.name = f"feed-{name}"
        self._renamed.set()
        self.wake()

    def request_checkpoint(self) -> None:
        """Save progress at the next turn (SYNC waits for it)."""
        self._checkpoint.want()
        self.wake()

    def request_delivery(self) -> None:
        """Deliver what the log has and save progress now, whatever the sink's pace (SYNC waits)."""
        self._hurried.set()
        self.request_checkpoint()

    def wake(self) -> None:
        """Look around now."""
        self.keeper.wake()

    @property
    def lease(self) -> Lease:
        """The right to run the job."""
        return self._lease

    def renew_lease(self, ttl: float) -> bool:
        """Keep the job; False when another node has it by now."""
        try:
            self._lease = self._feed.lease = self.catalog.renew_lease(self._lease, ttl)
        except LeaseLost:
            return False
        return True

    def release_lease(self) -> None:
        """Let another node have the job."""
        self.catalog.release_lease(self._lease)

    # -- what its node may ask -------------------------------------------------------------

    @property
    def needs_spark(self) -> bool:
        """Spark merges what this feed delivers; else it only helps with large scans."""
        return self._feed.needs_spark

    # -- the feed's thread ----------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                if not self._guarded():
                    break
            self._save_quietly()
        except LeaseLost:
            log.warning("feed %s: the lease was lost", self.name)
        except ChangefeedError as error:
            log.error("feed %s: %s %s", self.name, error.code.number, error.message)
        finally:
            self._scanning.stop()
            self._delivery.close()
            self.outlet.close(for_good=True)
            self._services.ended()

    def _guarded(self) -> bool:
        """Work until an error; whether to go on after it."""
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
        return True

    def _after_failure(self, failure: BaseException, table: TableName | None = None) -> bool:
        """Pause after a fault of ours; one that repeats stops the table, else the feed."""
        doing = f"feed {self.name}" if table is None else f"feed {self.name}, table {table}"
        error = self._failures.error(doing, failure, str(table or ""))
        if table is not None and error.action is not Action.RETRY:
            return self._table_failed(TableError(table, error))
        return self._after_error(error)

    def _live(self) -> None:
        """Work until an error, a stop or the end."""
        self.outlet.open()
        while True:
            self._check_requests()
            self._leaving.turn(self._feed)
            self._scanning.begin(self._feed)
            self._show_state()
            moved = self._deliver()
            self._scanning.follow(self._feed, self._show_state)
            self._checkpoint.turn(self._feed, moved=moved)
            if moved or not self._scanning.active(self._feed):
                self._retry.reset()
            self._end_if_done()
            if not moved:
                self._wait()

    def _wait(self) -> None:
        """Until the log has more; a sink with a pace lets changes gather first."""
        pause = self._next_round - time.monotonic()
        if pause > 0 and not self._hurried.is_set():
            # Whatever the log does; but a statement or the scan may want something.
            self.keeper.wait_beyond(Timestamp.MAX, min(pause, IDLE_SECONDS))
        else:
            # Not the high-water: that stays behind while a backfill is owed.
            self.keeper.wait_beyond(self._seen, IDLE_SECONDS)

    def _check_requests(self) -> None:
        if self._stopping.is_set():
            raise StopFeed
        if self._reload.is_set():
            self._reload.clear()
            self._take_new_row()
        if self._renamed.is_set():
            self._renamed.clear()
            self._feed.job = self.catalog.job(self.job_id)
            self.outlet.open(self._feed)

    def _take_new_row(self) -> None:
        """The job was altered: save what was done, take the new row, tell the sink."""
        # The scan first: nothing may write to a sink that is closed.
        self._scanning.stop()
        self._feed.save()
        job = self.catalog.job(self.job_id)
        if job.sink_uri != self._feed.job.sink_uri or job.options != self._feed.job.options:
            self.outlet.close()
        self.generation, self.name = job.generation, job.name
        before, self._feed = (
            self._feed,
            Feed(self.catalog, job, self._lease, self._services.queries),
        )
        self._feed.continue_from(before)
        self._state_version = None
        self.outlet.open(self._feed)
        self._shown = None

    # -- changes --------------------------------------------------------------------------

    def _deliver(self) -> bool:
        """Deliver what the log has beyond the feed; whether rows were delivered."""
        if self.outlet.pulled:
            self._seen = Timestamp.MAX
            follow_consumer(self._feed, self.outlet.consumed(), self._scanning, self.keeper.oldest)
            return False
        began = time.monotonic()
        if began < self._next_round and not self._hurried.is_set():
            return False
        self._hurried.clear()
        self._leave_dropped_tables()
        frontier = self.keeper.frontier
        at = frontier.at if frontier else Timestamp.ZERO
        groups = list(self._groups(at))
        # Where a scan holds all tables back, a growing log is no reason to look again.
        self._seen = at if any(upto == at for upto, _ in groups) else Timestamp.MAX
        rows = 0
        for upto, bounds in groups:
            behind = {name: at for name, at in bounds.items() if at < upto}
            if not behind:
                continue
            done = self._in_lanes(behind, upto)
            if done.rows or (done.node_upto is not None and done.node_upto < upto):
                # There is more, for another job or for this thread.
                self._seen = Timestamp.ZERO
            rows += done.rows
            if self._interrupted():
                break
            if not done.rows:
                upto = min(upto, done.node_upto or upto)
                behind = {name: at for name, at in behind.items() if at < upto}
                rows += self._delivery.deliver(
                    self._feed,
                    behind,
                    upto,
                    on_schema_change=self._schema_changed,
                    after_commit=self._after_commit,
                    interrupted=self._interrupted,
                    scanned=upto == self._scanning.at
                    and all(self._scanning.holds(self._feed.tables[name]) for name in behind),
                )
        if rows:
            pace = time.monotonic() + self.outlet.pace
            self._next_round = max(pace, began + GATHER_SECONDS)
        return rows > 0

    def _in_lanes(self, bounds: dict[TableName, Timestamp], upto: Timestamp) -> BacklogProgress:
        """Let Spark deliver a large backlog, as far as one job goes."""
        done = self._backlog.deliver(self._feed, bounds, upto, interrupted=self._interrupted)
        if done.rows:
            self._after_commit()
        return done

    def _leave_dropped_tables(self) -> None:
        """What commits after ALTER .. DROP has answered is not delivered any more.

        The rest of an ALTER waits for the node, which has to prepare the source first.
        """
        version = self.catalog.version()
        if version != self._state_version:
            self._state_version = version
            names = {t.table for t in self.catalog.tables(self.job_id)}
            self._feed.keep_only(names)
            self._unknown = names - self._feed.tables.keys()

    def _joining(self) -> bool:
        """The feed has got a table that only the reload will bring."""
        self._leave_dropped_tables()
        return bool(self._unknown)

    def _groups(
        self, frontier: Timestamp
    ) -> Iterator[tuple[Timestamp, dict[TableName, Timestamp]]]:
        """Running tables by how far they may go now.

        A table that waits for its backfill stops at the scan's timestamp. A feed that only
        scans delivers no changes.
        """
        if self._feed.options[INITIAL_SCAN] is InitialScan.ONLY:
            return
        end = self._feed.job.end_time
        upto = min(frontier, end) if end is not None else frontier
        free: dict[TableName, Timestamp] = {}
        held: dict[Timestamp, dict[TableName, Timestamp]] = {}
        for table in self._feed.in_state(TableState.RUNNING, TableState.SCANNING):
            if table.done_upto is None:
                continue
            if not self._scanning.holds(table):
                if table.state is TableState.RUNNING:
                    free[table.table] = table.done_upto
            elif self._scanning.at is not None:
                held.setdefault(self._scanning.at, {})[table.table] = table.done_upto
        if free:
            yield upto, free
        for scan_at, bounds in held.items():
            yield min(upto, scan_at), bounds

    def _after_commit(self) -> None:
        self._checkpoint.turn(self._feed, moved=True)

    def _interrupted(self) -> bool:
        return self._stopping.is_set() or self._reload.is_set() or self._scanning.waits

    def _schema_changed(self, event: SchemaChange) -> None:
        table = event.new.table
        log.info("feed %s: the schema of %s changed: %s", self.name, table, difference(event))
        self.catalog.record_event(self.job_id, "notice", difference(event), table=str(table))
        owed = self._feed.tables[table]
        scanned = scan_has(event, owed)
        if not owed.scan_wanted and not scanned and not self.outlet.takes_rows:
            check_message_key(event, self._feed.options)
        if needs_backfill(event, self._feed.options, scanned=scanned):
            # Resolved stays below the change until its backfill was delivered: what the scan
            # reads is how the table is from the change on.
            since = owed.scan_at if owed.scan_wanted and owed.scan_at else event.at
            self._feed.update(table, scan_wanted=True, scan_at=since, scan_rows=0, scan_total=0)

    def _scan(self, tables: Sequence[TableProgress]) -> Scan:
        host = FeedScanHost(
            self._feed,
            self.catalog,
            self.keeper,
            self._services.engine,
            self.outlet,
            lambda: self._checkpoint.resolved,
        )
        return Scan(host, tables)

    # -- states ---------------------------------------------------------------------------

    def _show_state(self) -> None:
        """Write the feed's state where people look, with what holds it up."""
        gaps = self.keeper.gaps
        for table in self._feed.in_state(
            TableState.PENDING, TableState.SCANNING, TableState.RUNNING
        ):
            if (problem := self.keeper.problems.get(table.table)) is not None:
                raise TableError(table.table, problem)
            gap = gaps.get(table.table)
            if gap is not None and concerns(gap, table):
                self._feed.update(table.table, gap=gap.at)
                raise TableError(table.table, gap.error)
        error = self.keeper.error
        if error is not None and error.action is not Action.RETRY:
            raise error
        if error is not None:
            self._show(Status.RETRYING, f"source: {error.explained}", error)
        elif self.keeper.stalled:
            self._show(Status.STALLED, self.keeper.stalled)
        elif self._scanning.owes(self._feed):
            self._show(Status.SCANNING, self._scanning.text())
        else:
            self._show(Status.RUNNING, "running")

    def _show(self, status: Status, reason: str, error: ChangefeedError | None = None) -> None:
        if self._shown == (status, reason):
            return
        now = time.monotonic()
        moved = self._shown is None or self._shown[0] is not status
        # The text of a scan tells how far it is: nobody reads it more often.
        if moved or status is not Status.SCANNING or now - self._shown_at >= SHOW_SECONDS:
            self._shown_at = now
            if moved or status is Status.RETRYING:
                life.moved(
                    self.name, self._shown[0] if self._shown else None, status, reason, error
                )
            self.catalog.transition(
                self.job_id, status, reason=reason, error=error, lease=self._lease
            )
            self._shown = (status, reason)

    def _after_error(self, error: ChangefeedError) -> bool:
        """Pause before another try; False when the feed ends with the error."""
        self._scanning.stop()
        self.outlet.close()
        self._save_quietly()
        if error.action is Action.RETRY and self._retry.allows(self._feed.options[RETRY_FOR]):
            pause = self._retry.next_pause()
            again = f"attempt {self._retry.attempt}, again in {pause:.1f}s"
            told = life.explained(error, self._feed.job)
            self._show(Status.RETRYING, f"{told.message}; {again}", told)
            self._stopping.wait(pause)
            return True
        self._end_with(error)
        return False

    def _table_failed(self, failed: TableError) -> bool:
        """Take the table out; False when none is left."""
        error = life.explained(failed.error, self._feed.job)
        number = error.code.number
        log.error("feed %s: table %s failed: %s %s", self.name, failed.table, number, error.message)
        self._feed.fail_table(failed.table, error)
        self._scanning.stop()
        self.outlet.close()
        if self._feed.targets():
            return True
        self._end_with(failed.error)
        return False

    def _end_with(self, error: ChangefeedError) -> None:
        error = life.explained(error, self._feed.job)
        status, reason = Status.FAILED, error.message
        if self._feed.options[ON_ERROR] is OnError.PAUSE:
            # CockroachDB's words.
            status = Status.PAUSED
            reason = f"job failed ({error.message}) but is being paused because of on_error=pause"
            self.catalog.pause_wanted(self.job_id)
        life.moved(self.name, None, status, reason, error)
        self.catalog.transition(self.job_id, status, reason=reason, error=error, lease=self._lease)

    def _end_if_done(self) -> None:
        if self._scanning.active(self._feed):
            return
        end, high = self._feed.job.end_time, self._feed.high_water()
        if self._feed.options[INITIAL_SCAN] is InitialScan.ONLY:
            reason = "initial scan finished"
        elif end is not None and high is not None and high >= end:
            reason = "end_time reached"
        else:
            return
        self._refuse_success()
        self._checkpoint.last(self._feed)
        self._show(Status.SUCCEEDED, reason)
        raise StopFeed

    def _refuse_success(self) -> None:
        """A feed that left tables out has not succeeded: RESUME tries them again."""
        failed = self._feed.in_state(TableState.FAILED)
        if not failed:
            return
        first = failed[0]
        code = Code.stored(first.error_code) or Code.INTERNAL_ERROR_REPEATS
        error = ChangefeedError(
            code,
            f"{len(failed)} of {len(self._feed.tables)} tables failed: {first.table}: "
            f"{first.error}",
        )
        self._end_with(error)
        raise StopFeed

    def _save_quietly(self) -> None:
        """Save; an error has been or will be reported by whoever caused it."""
        try:
            self._feed.save()
        except LeaseLost:
            raise
        except ChangefeedError as error:
            log.warning("feed %s: saving progress: %s", self.name, error.message)


class RetryClock:
    """Exponential back-off with jitter, and how long the present trouble has lasted."""

    def __init__(self) -> None:
        self.attempt = 0
        self._since: float | None = None

    def reset(self) -> None:
        """Something was delivered: the trouble is over."""
        self.attempt = 0
        self._since = None

    def allows(self, budget: float) -> bool:
        """Whether another try is within ``budget`` seconds of the first failure."""
        if self._since is None:
            self._since = time.monotonic()
        return budget > 0 and time.monotonic() - self._since <= budget

    def next_pause(self) -> float:
        """Seconds to wait before the next try."""
        # A bounded exponent: no float holds 2**1024, and an outage of nine hours is as many tries.
        pause = min(FIRST_PAUSE_SECONDS * 2.0 ** min(self.attempt, 30), LONGEST_PAUSE_SECONDS)
        self.attempt += 1
        return pause * random.uniform(0.75, 1.25)
