"""Delivers a large backlog of messages as a Spark job: lanes of the log, one task each.

The node reads from the log's index how much waits, selects a range that ends before the next
TRUNCATE or schema change, and lets Spark's workers deliver it (:mod:`changefeed.feeds.lanes`). When
all lanes are durable, the progress of the tables advances to the end of the range, and not before:
a job that fails or is cancelled repeats messages, in order, and loses none. No worker writes after
the job has ended (:mod:`changefeed.scan.admission`).
"""

from __future__ import annotations

import itertools
import math
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from changefeed.capture.growing_log import LogAccess
from changefeed.core.clock import Clock, Timestamp
from changefeed.core.engines import EngineChoice, EngineOption, Work, choose_engine
from changefeed.core.errors import ChangefeedError, Scope
from changefeed.core.faults import Point, fault_point
from changefeed.core.proofs import FileProof
from changefeed.core.schema import TableName, TableSchema
from changefeed.core.spans import Attributes, span
from changefeed.core.spark_jobs import JobName
from changefeed.core.table_errors import about_table
from changefeed.core.telemetry import log
from changefeed.feeds.chunks import Chunk, ControlItem, items, slice_bytes
from changefeed.feeds.counted import with_rows
from changefeed.feeds.feed import Feed
from changefeed.feeds.lanes import DeliveryForm, LaneDelivery
from changefeed.feeds.schema_policy import check_images
from changefeed.feeds.sink_session import SinkSession
from changefeed.feeds.staged_lanes import StagedLanes, write_lanes
from changefeed.options import DELIVERY, ENGINE, Guarantee
from changefeed.plan.bulk_work import backlog_hindrance
from changefeed.scan.admission import ScanStopped, WriteBarrier
from changefeed.spark.executor_check import NOT_KNOWN
from changefeed.spark.session import NodeSpark
from changefeed.spark.tasks import TaskResult, run_files, run_tasks
from sinks.base import Epoch

#: Most rows of one job: a failed job repeats them.
JOB_ROWS = 2_000_000
#: The node has a connection, a thread and, with a staging place, an open file for each lane.
MOST_LANES = 200
#: A lane costs a task and an open sink: of fewer rows there are fewer lanes.
LEAST_LANE_ROWS = 500
#: Most bytes of the log in one job with staged lanes: an executor holds a lane's file in memory.
STAGED_BYTES = 256 << 20
_LOOK_SECONDS = 0.2
#: How long a backlog with ``auto`` waits for the answer of an executor, which a cold cluster gives
#: later.
_ANSWER_SECONDS = 5.0

_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class LogRange:
    """A range of the log without control events.

    Attributes:
        bytes: of the rows in the log.
        versions: the schema versions of the rows.
        control_at: the instant of the control event that ends it; None where none does.
        pieces: rows of each piece of the log, and when the first and the last were committed, ns.
    """

    upto: Timestamp
    rows: int = 0
    bytes: int = 0
    versions: frozenset[TableSchema] = frozenset()
    control_at: Timestamp | None = None
    pieces: tuple[tuple[int, int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class BacklogResult:
    """What :meth:`Backlog.deliver` did.

    Attributes:
        rows: rows that Spark delivered durably.
        moved: Spark reached the end of a range, even if the feed takes no row of it.
        node_upto: if not moved: how far the node should deliver before it asks again; None:
        without a limit.
    """

    rows: int = 0
    moved: bool = False
    node_upto: Timestamp | None = None


def waiting(
    log: LogAccess,
    bounds: Mapping[TableName, Timestamp],
    upto: Timestamp,
    slice_bytes: int,
    most_bytes: float = math.inf,
) -> LogRange:
    """What can be delivered in lanes, from the log's index: up to the next control event, at most
    :data:`JOB_ROWS` rows, about ``most_bytes`` bytes."""
    found = LogRange(max(bounds.values()))
    rows, size, versions = 0, 0, set[TableSchema]()
    pieces: list[tuple[int, int, int]] = []
    for item in items(log, bounds, upto, slice_bytes):
        if isinstance(item, ControlItem):
            before = item.event.at.previous()
            if before <= min(bounds.values()):
                return LogRange(before, control_at=item.event.at)
            # Another table may have one before it: the range shrinks until it has none.
            shorter = waiting(log, bounds, before, slice_bytes, most_bytes)
            if shorter.control_at is None and shorter.upto == before:
                return replace(shorter, control_at=item.event.at)
            return shorter
        if isinstance(item, Chunk):
            rows += item.rows
            size += sum(piece.bytes for piece in item.pieces)
            pieces += [(piece.rows, piece.first.wall, piece.last.wall) for piece in item.pieces]
            versions.add(item.schema)
        else:
            found = LogRange(item.upto, rows, size, frozenset(versions), pieces=tuple(pieces))
            if rows >= JOB_ROWS or size >= most_bytes:
                break
    return found


def count_lanes(rows: int, cores: int) -> int:
    """How many lanes a job of so many rows has, if Spark runs ``cores`` tasks at the same time."""
    return max(1, min(MOST_LANES, cores, rows // LEAST_LANE_ROWS))


def _hindrance(feed: Feed) -> str:
    if feed.abilities is None:
        return "a feed without a sink runs where its client is"
    return backlog_hindrance(
        feed.abilities,
        query=feed.query is not None,
        exactly_once=feed.options[DELIVERY] is Guarantee.EXACTLY_ONCE,
        numbered=feed.boundaries is not None,
        dead_letters=feed.dead_letters.wanted or any(t.skips for t in feed.tables.values()),
    )


class Backlog:
    """Delivers a large backlog of a feed. Used by the feed's thread only."""

    def __init__(
        self,
        log: LogAccess,
        folder: Path,
        spark: NodeSpark,
        sink_session: SinkSession,
        note: Callable[[str], None],
        clock: Clock,
        task_lease: float,
    ) -> None:
        """
        Args:
            log: the change log, as the node reads it.
            folder: its directory, which Spark's workers see, too.
            note: records for SHOW what runs as a job.
            task_lease: how long workers may write that hear nothing of this process, seconds.
        """
        self._log = log
        self._folder = folder
        self._scratch = sink_session.folder
        self._spark = spark
        self._sink_session = sink_session
        self._note = note
        self._clock = clock
        self._task_lease = task_lease
        self._refused_upto = Timestamp.ZERO
        self._noted: set[str] = set()

    def deliver(
        self,
        feed: Feed,
        bounds: Mapping[TableName, Timestamp],
        upto: Timestamp,
        *,
        interrupted: Callable[[], bool],
    ) -> BacklogResult:
        """Deliver a range of the log by Spark, if that is estimated to be faster.

        The progress of the feed's tables then is the end of the range.

        Raises:
            TableError: one table cannot go on.
            ChangefeedError: the source, Spark or the sink failed.
        """
        asked = feed.asked_engine(self._spark.preferred)
        if asked is EngineOption.DRIVER:
            return BacklogResult()
        if why := _hindrance(feed):
            return self._hindered(feed, why)
        state = self._spark.state()
        lanes = count_lanes(JOB_ROWS, state.cores)
        # The largest possible job: if even that stays in the node, the log's index need not be
        # read.
        most_work = choose_engine(asked, Work(JOB_ROWS, lanes), state)
        if most_work.hindered:
            return self._hindered(feed, most_work.reason)
        if not most_work.spark:
            return BacklogResult()
        if min(bounds.values()) < self._refused_upto:
            return BacklogResult(node_upto=self._refused_upto)
        most = STAGED_BYTES if self._spark.stages else math.inf
        found = waiting(self._log, bounds, upto, slice_bytes(feed.options, lanes), most)
        lanes = count_lanes(found.rows, state.cores)
        if file := self._sink_session.round_bytes:
            # More lanes would write smaller files.
            lanes = max(1, min(lanes, found.bytes // file))
        choice = choose_engine(asked, Work(found.rows, lanes), state)
        if choice.spark and not self._spark.installed:
            self._tell(feed, "Spark cannot be started here: the node delivers the backlog itself")
            return BacklogResult()
        if not choice.spark or interrupted():
            # After the control event there may be a range that is large enough for a job.
            return BacklogResult(node_upto=found.control_at)
        wait_until = self._clock.monotonic() + _ANSWER_SECONDS

        def stopping() -> bool:
            late = asked is EngineOption.AUTO and self._clock.monotonic() >= wait_until
            return interrupted() or late

        # Until there is an answer, the node delivers rounds.
        if why := self._spark.hindrance(stopping, self._folder):
            return BacklogResult() if why == NOT_KNOWN else self._hindered(feed, why)
        try:
            about: Attributes = {"feed": feed.job.name, "rows": found.rows, "lanes": lanes}
            with span("changefeed.backlog", about):
                return self._run(feed, dict(bounds), found, lanes, choice, interrupted)
        except ChangefeedError as error:
            if error.scope is not Scope.TABLE:
                raise
            # A worker cannot say of which table; the node meets the same row, and can.
            log.info(
                "feed %s: a lane stopped, the node continues: %s", feed.job.name, error.message
            )
            self._refused_upto = found.upto
            self._sink_session.renew()
            return BacklogResult(node_upto=found.upto)

    def _hindered(self, feed: Feed, why: str) -> BacklogResult:
        if feed.options[ENGINE] is EngineOption.SPARK:
            self._tell(feed, f"the node delivers backlogs although engine = 'spark': {why}")
        return BacklogResult()

    def _tell(self, feed: Feed, text: str) -> None:
        if text not in self._noted:
            self._noted.add(text)
            log.warning("feed %s: %s", feed.job.name, text)
            self._note(text)

    def _run(
        self,
        feed: Feed,
        bounds: dict[TableName, Timestamp],
        found: LogRange,
        lanes: int,
        choice: EngineChoice,
        interrupted: Callable[[], bool],
    ) -> BacklogResult:
        number, upto = next(_numbers), found.upto
        name = feed.job.name
        group = JobName(
            name, feed.job.id, f"backlog {number}", state=self._sink_session.context().state
        )
        barrier = WriteBarrier(self._task_lease)
        text = f"backlog of {found.rows:,} rows as a Spark job of {lanes} lanes"
        log.info("feed %s: %s, up to %s (%s)", name, text, upto, choice.reason)
        self._note(text)
        try:
            work = LaneDelivery(
                count=lanes,
                log=self._folder,
                bounds=bounds,
                upto=upto,
                slice_bytes=slice_bytes(feed.options, lanes),
                versions={schema: _delivered(feed, schema) for schema in found.versions},
                feed=name,
                epoch=Epoch(number, upto),
                context=self._sink_session.context(here=False),
                sink=self._sink_session.new_sink(),
                ticket=barrier.ticket(self._spark.address(), here=self._spark.local),
            )
            with self._cancelled_when(interrupted, name, group) as cancelled:
                try:
                    done = self._run_lanes(work, group)
                except ChangefeedError:
                    if cancelled.is_set():
                        self._sink_session.renew()
                        return BacklogResult()
                    raise
        except ScanStopped as stopped:
            raise AssertionError(
                "the barrier of a backlog is closed by its own thread"
            ) from stopped
        finally:
            barrier.close()
        fault_point(Point.RUNNER_AFTER_COMMIT)
        return BacklogResult(_settle(feed, bounds, found, done, self._clock.now().wall), moved=True)

    def _run_lanes(self, work: LaneDelivery, group: JobName) -> list[TaskResult]:
        def tell(rows: int, size: int) -> None:
            """Ignore the progress of the job: it is shown nowhere."""

        if not self._spark.stages:
            return run_tasks(self._spark, work, work.count, group=group, on_progress=tell)
        # A running feed has this folder; a new feed may never have staged anything.
        self._scratch.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="lanes-", dir=self._scratch) as folder:
            paths = write_lanes(work, self._log, Path(folder))
            staged = StagedLanes(work, tuple(FileProof.of(path) for path in paths))
            return run_files(self._spark, staged, paths, group=group, on_progress=tell)

    @contextmanager
    def _cancelled_when(
        self, interrupted: Callable[[], bool], name: str, group: JobName
    ) -> Iterator[threading.Event]:
        """Cancels the job when the feed's thread has other work, and then sets the event."""
        over, cancelled = threading.Event(), threading.Event()

        def watch() -> None:
            while not over.wait(_LOOK_SECONDS):
                if interrupted():
                    cancelled.set()
                    self._spark.cancel(group)
                    return

        watching = threading.Thread(target=watch, name=f"backlog-{name}", daemon=True)
        watching.start()
        try:
            yield cancelled
        finally:
            over.set()
            watching.join()


def _delivered(feed: Feed, schema: TableSchema) -> DeliveryForm:
    table = schema.table
    with about_table(table):
        feed.recognise(schema)
        if not feed.tables[table].scan_wanted:
            check_images(schema, feed.options)
        return DeliveryForm(feed.messages(schema), feed.row_plan(schema).schema, feed.target(table))


def _settle(
    feed: Feed,
    bounds: Mapping[TableName, Timestamp],
    found: LogRange,
    done: list[TaskResult],
    now: int,
) -> int:
    """Set the progress of the tables to the end of the range: all lanes are durable since ``now``.

    The log's index has no time of each row: those of a piece count as if they were committed
    evenly between its first and its last.
    """
    tables = list(bounds)
    walls = (np.linspace(first, last, rows, dtype=np.int64) for rows, first, last in found.pieces)
    feed.delays = with_rows(feed.delays, walls, now)
    for part in done:
        feed.count(tables[part.item], part.rows, part.bytes)
    feed.advance(tables, found.upto)
    return sum(part.rows for part in done)
