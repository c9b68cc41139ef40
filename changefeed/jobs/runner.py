"""One feed: range of the log -> messages -> sink -> durable -> progress -> resolved.

A thread a feed, so that a slow sink holds up nothing else. Progress moves only on what the
sink calls durable, is written to the job table before a resolved timestamp says so, and a
crash at any point repeats messages but loses none.

Encoding of the next chunk runs in a second thread while the sink takes the present one.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from changefeed.catalog import Lease, LeaseLost
from changefeed.clock import Timestamp
from changefeed.errors import Action, ChangefeedError
from changefeed.events import Resolved, SchemaChange, Truncate
from changefeed.faults import fault_point
from changefeed.jobs.chunks import Chunk, Item, MarkItem, Turn, items
from changefeed.jobs.feed import Feed
from changefeed.jobs.keeper import SourceKeeper
from changefeed.jobs.model import Job, Status, TableProgress, TableState
from changefeed.jobs.scan import Scan
from changefeed.options import (
    ENVELOPE,
    INITIAL_SCAN,
    MIN_CHECKPOINT_FREQUENCY,
    ON_ERROR,
    RESOLVED,
    RETRY_FOR,
    SCHEMA_CHANGE_EVENTS,
    SCHEMA_CHANGE_POLICY,
    InitialScan,
    OnError,
    SchemaChangeEvents,
    SchemaChangePolicy,
)
from changefeed.schema import TableName, TableSchema
from changefeed.spark.encode import encode_big, encode_small
from changefeed.spark.plan import Envelope, MessagePlan, mark_payload
from changefeed.telemetry import log
from sinks.base import Batch, Delivery, Epoch, Receipt, Sink, SinkContext, Target
from sinks.registry import open_sink

if TYPE_CHECKING:
    from changefeed.jobs.node import Node

#: Up to this many rows a chunk is encoded on the driver without a Spark job (design.md).
SMALL_ROWS = 5_000
#: How long an idle feed sleeps before it looks around by itself.
IDLE_SECONDS = 0.5
#: Progress of a feed that delivers is saved about this often.
SAVE_SECONDS = 1.0
#: Progress of a feed that only watches time pass is saved this often.
SAVE_IDLE_SECONDS = 5.0
FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 30.0


class StopFeed(Exception):
    """The runner was asked to stop."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """A chunk with its finished messages."""

    chunk: Chunk
    messages: pa.Table


class TableError(Exception):
    """An error that stops one table of the feed and no other."""

    def __init__(self, table: TableName, error: ChangefeedError) -> None:
        super().__init__(error.message)
        self.table = table
        self.error = error


class FeedRunner:
    """Runs one job until it is stopped, fails or is done."""

    def __init__(self, node: Node, job: Job, lease: Lease, sink: Sink | None = None) -> None:
        """``sink``: an opened-by-us sink object for a sinkless feed, else made from the URI."""
        self.node = node
        self.catalog = node.catalog
        self.engine = node.engine
        self.job_id = job.id
        self.job_name = self.name = job.name
        self.source = job.source
        self.generation = job.generation
        self.keeper: SourceKeeper = node.keeper(job.source)
        self._job = job
        self._lease = lease
        self._given_sink = sink
        self._sink: Sink | None = None
        self._scan_sink: Sink | None = None
        self._feed = Feed(self.catalog, job, lease)
        self._scan: Scan | None = None
        self._stopping = threading.Event()
        self._reload = threading.Event()
        self._checkpoint = threading.Event()
        self._epoch = 0
        self._saved_at = 0.0
        self._resolved_at = 0.0
        self._resolved: Timestamp | None = None
        self._dirty = False
        self._shown: tuple[Status, str] | None = None
        self._ahead = ThreadPoolExecutor(1, thread_name_prefix=f"encode-{job.name}")
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

    def request_checkpoint(self) -> None:
        """Save progress at the next turn (SYNC waits for it)."""
        self._checkpoint.set()
        self.wake()

    def wake(self) -> None:
        """Look around now."""
        self.keeper.wake()

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

    # -- for the scan ---------------------------------------------------------------------

    def plan(self, schema: TableSchema) -> MessagePlan:
        """How changes of a table version become messages."""
        return self._feed.plan(schema)

    def target(self, table: TableName) -> Target:
        """The table as the sink sees it."""
        return self._feed.target(table)

    def new_sink(self) -> Sink:
        """Another sink object of the feed, not opened."""
        if self._given_sink is not None:
            return self._given_sink
        if self._job.sink_uri is None:
            raise AssertionError("a feed without a sink URI is given its sink")
        return open_sink(self.catalog.resolve_uri(self._job.sink_uri), self._feed.options)

    def scan_sink(self) -> Sink:
        """The scan thread's own opened sink."""
        if self._given_sink is not None:
            return self._opened_sink()
        if self._scan_sink is None:
            self._scan_sink = self.new_sink()
            self._scan_sink.open(self.sink_context())
        return self._scan_sink

    @property
    def sink_runs_in_executors(self) -> bool:
        """Spark's executors may write to the sink."""
        return self._given_sink is None and self._opened_sink().capabilities.executor

    def sink_context(self) -> SinkContext:
        """What the sink may know."""
        return SinkContext(
            feed=self.job_name,
            job_id=self.job_id,
            targets=self._feed.targets(),
            options=self._feed.options,
            node=self.node.id,
            resolved=self._feed.options[RESOLVED] is not None,
        )

    def encode_rows(self, rows: pa.Table, schema: TableSchema) -> pa.Table:
        """Messages of a few rows, without a Spark job."""
        return encode_small(self.engine, rows, self.plan(schema))

    # -- the feed's thread ----------------------------------------------------------------

    def _run(self) -> None:
        retry = RetryClock()
        try:
            while not self._stopping.is_set():
                try:
                    if self._live(retry):
                        return
                except StopFeed:
                    break
                except LeaseLost:
                    log.warning("feed %s: the lease was lost", self.name)
                    return
                except TableError as failed:
                    self._table_failed(failed)
                except ChangefeedError as error:
                    if not self._after_error(error, retry):
                        return
                except Exception as surprise:
                    log.exception("feed %s: unexpected error", self.name)
                    if not self._after_error(_unexpected(surprise), retry):
                        return
            self._save_quietly()
        finally:
            self._close()
            self.node.wake()

    def _live(self, retry: RetryClock) -> bool:
        """Work until an error or a stop; True when the feed is done for good."""
        self._open()
        self._announce("")
        while True:
            self._check_stop()
            self._begin_scan()
            moved = self._deliver()
            self._follow_scan()
            if moved:
                retry.reset()
            self._progress(moved)
            if self._finished():
                return True
            self._notice_capture()
            if not moved:
                self._wait()

    def _check_stop(self) -> None:
        if self._stopping.is_set():
            raise StopFeed
        if self._reload.is_set():
            self._reload.clear()
            self._take_new_row()

    def _take_new_row(self) -> None:
        """The job was altered: save what was done, take the new row and reopen the sink."""
        self._feed.save()
        job = self.catalog.job(self.job_id)
        self.generation = job.generation
        if job.sink_uri != self._job.sink_uri:
            self._close_sinks()
        self._job = job
        self.job_name = self.name = job.name
        self._feed = Feed(self.catalog, job, self._lease)
        if self._scan is not None:
            self._stop_scan()
        self._open()

    # -- states ---------------------------------------------------------------------------

    def _announce(self, reason: str) -> None:
        """Write the feed's state where people look: scanning or running."""
        if self._stopping.is_set():
            return
        scanning = self._owed_scans() or self._scan is not None
        status = Status.SCANNING if scanning else Status.RUNNING
        if not reason:
            reason = "initial scan" if scanning else "running"
        self.catalog.transition(self.job_id, status, reason=reason, lease=self._lease)
        self._shown = (status, reason)

    def _show(self, status: Status, reason: str) -> None:
        if self._shown != (status, reason):
            self.catalog.transition(self.job_id, status, reason=reason, lease=self._lease)
            self._shown = (status, reason)

    def _notice_capture(self) -> None:
        """Say it when the source or the log holds the feed up."""
        error = self.keeper.error
        if error is not None and error.action is not Action.RETRY:
            raise error
        if error is not None:
            self._show(Status.RETRYING, f"source: {error.message}")
        elif self.keeper.stalled:
            self._show(Status.STALLED, self.keeper.stalled)
        elif self._scan is not None or self._owed_scans():
            self._show(Status.SCANNING, self._scan_text())
        else:
            self._show(Status.RUNNING, "running")

    def _scan_text(self) -> str:
        if self._scan is None:
            return "initial scan"
        tables = self._scan.tables.values()
        done = sum(t.done for t in tables)
        rows, total = sum(t.rows for t in tables), sum(t.total for t in tables)
        return f"initial scan: {done} of {len(tables)} tables, {rows} of about {total} rows"

    def _after_error(self, error: ChangefeedError, retry: RetryClock) -> bool:
        """Pause before another try; False when the feed ends with the error."""
        log.warning("feed %s: %s %s", self.name, error.code.number, error.message)
        self._stop_scan()
        self._close_sinks()
        self._save_quietly()
        budget = self._feed.options[RETRY_FOR]
        if error.action is Action.RETRY and retry.allows(budget):
            pause = retry.next_pause()
            self.catalog.transition(
                self.job_id,
                Status.RETRYING,
                reason=f"{error.message}; attempt {retry.attempt}, again in {pause:.1f}s",
                error=error,
                lease=self._lease,
            )
            self._shown = None
            self._stopping.wait(pause)
            return not self._stopping.is_set()
        self._end_with(error)
        return False

    def _end_with(self, error: ChangefeedError) -> None:
        if self._feed.options[ON_ERROR] is OnError.PAUSE:
            reason = f"job failed ({error.message}) but is being paused because of on_error=pause"
            self.catalog.transition(
                self.job_id, Status.PAUSED, reason=reason, error=error, lease=self._lease
            )
            self.catalog.pause_wanted(self.job_id)
            return
        self.catalog.transition(
            self.job_id, Status.FAILED, reason=error.message, error=error, lease=self._lease
        )

    def _table_failed(self, failed: TableError) -> None:
        log.warning("feed %s: table %s: %s", self.name, failed.table, failed.error.message)
        self._feed.fail_table(failed.table, failed.error)
        self._close_sinks()
        if not self._feed.targets():
            self._end_with(failed.error)
            raise StopFeed

    def _finished(self) -> bool:
        """Whether the feed reached its end; it is marked succeeded then."""
        if self._scan is not None or self._owed_scans():
            return False
        end = self._job.end_time
        only = self._feed.options[INITIAL_SCAN] is InitialScan.ONLY
        high = self._feed.high_water()
        reached = end is not None and high is not None and high >= end
        if not (only or reached):
            return False
        self._feed.save()
        self._emit_resolved(force=True)
        reason = "initial scan finished" if only else "end_time reached"
        self.catalog.transition(self.job_id, Status.SUCCEEDED, reason=reason, lease=self._lease)
        return True

    # -- sinks ----------------------------------------------------------------------------

    def _open(self) -> None:
        if self._sink is None:
            sink = self.new_sink()
            sink.open(self.sink_context())
            self._sink = sink
        else:
            self._sink.open(self.sink_context())

    def _opened_sink(self) -> Sink:
        if self._sink is None:
            self._open()
        if self._sink is None:
            raise AssertionError("opened above")
        return self._sink

    def _close_sinks(self) -> None:
        for sink in (self._sink, self._scan_sink):
            if sink is not None and sink is not self._given_sink:
                try:
                    sink.close()
                except ChangefeedError as error:
                    log.warning("feed %s: closing the sink: %s", self.name, error.message)
        self._sink = self._scan_sink = None

    def _close(self) -> None:
        self._stop_scan()
        self._close_sinks()
        if self._given_sink is not None:
            self._given_sink.close()
        self._ahead.shutdown(wait=False, cancel_futures=True)

    # -- scans ----------------------------------------------------------------------------

    def _owed_scans(self) -> list[TableProgress]:
        return [t for t in self._feed.in_state(TableState.PENDING, TableState.SCANNING)] + [
            t for t in self._feed.in_state(TableState.RUNNING) if t.scan_wanted
        ]

    def _begin_scan(self) -> None:
        """Start a scan for the tables that are owed one; place those that need none."""
        if self._scan is not None:
            return
        owed = self._owed_scans()
        for table in [t for t in owed if not t.scan_wanted]:
            self._place(table)
        owed = [t for t in owed if t.scan_wanted]
        if not owed:
            return
        for table in owed:
            if table.state is TableState.PENDING:
                self._feed.update(table.table, state=TableState.SCANNING)
        self._scan = Scan(self, owed)
        self._scan.start()

    def _place(self, table: TableProgress) -> None:
        """A table without a scan begins at the cursor, or after the statement that added it."""
        cursor = self._job.cursor
        if table.done_upto is None and cursor is not None:
            self._check_cursor(table.table, cursor)
            at = cursor
        elif table.done_upto is not None:
            at = table.done_upto
        else:
            position = table.start or self.keeper.source.current_position()
            at = self.keeper.wait_position(position, self._stopping)
        self._feed.update(table.table, state=TableState.RUNNING, done_upto=at)
        self._dirty = True

    def _check_cursor(self, table: TableName, cursor: Timestamp) -> None:
        since = self.catalog.captured(self.source).get(table)
        with self.keeper.lock:
            oldest = self.keeper.reader.oldest
        begin = max(since or Timestamp.ZERO, oldest or Timestamp.ZERO)
        if cursor < begin:
            raise TableError(
                table,
                ChangefeedError(
                    "CF3002",
                    f"cursor {cursor} is before the change log of {table}, which begins at {begin}",
                ),
            )

    def _follow_scan(self) -> None:
        """Take over what the scan has finished."""
        scan = self._scan
        if scan is None:
            return
        ended = not scan.is_alive()
        for table in scan.tables.values():
            self._follow_table(scan, table.name)
        if not ended:
            return
        self._scan = None
        if scan.error is not None:
            raise scan.error

    def _follow_table(self, scan: Scan, name: TableName) -> None:
        table = scan.tables[name]
        now = self._feed.tables.get(name)
        if now is None or now.state is TableState.FAILED or not now.scan_wanted:
            return
        if table.error is not None:
            raise TableError(name, table.error)
        if table.done and scan.at is not None:
            done = max(now.done_upto or Timestamp.ZERO, scan.at)
            self._feed.update(
                name,
                state=TableState.RUNNING,
                scan_wanted=False,
                scan_at=scan.at,
                done_upto=done,
                scan_rows=table.rows,
                scan_total=table.rows,
                emitted_rows=now.emitted_rows + table.rows,
                emitted_bytes=now.emitted_bytes + table.bytes,
                schema_version=table.schema.version if table.schema else now.schema_version,
            )
            self._feed.save()
            fault_point("scan.table_saved")
            return
        if table.backfill and scan.at and now.done_upto and now.done_upto >= scan.at:
            table.caught_up.set()
        if (table.rows, table.total) != (now.scan_rows, now.scan_total):
            self._feed.update(name, scan_rows=table.rows, scan_total=table.total, scan_at=scan.at)
            self._dirty = True

    def _stop_scan(self) -> None:
        scan, self._scan = self._scan, None
        if scan is not None:
            scan.stop()
            scan.join(30)

    # -- changes --------------------------------------------------------------------------

    def _deliver(self) -> bool:
        """Deliver what the log has beyond the feed; whether there was anything."""
        frontier = self.keeper.frontier
        if frontier is None:
            return False
        moved = False
        for upto, bounds in self._groups(frontier.at):
            behind = {name: at for name, at in bounds.items() if at < upto}
            if behind:
                moved = self._deliver_range(behind, upto) or moved
        return moved

    def _groups(
        self, frontier: Timestamp
    ) -> Iterator[tuple[Timestamp, dict[TableName, Timestamp]]]:
        """Running tables by how far they may go now.

        A table that waits for its backfill stops at the scan's timestamp.
        """
        end = self._job.end_time
        upto = min(frontier, end) if end is not None else frontier
        free: dict[TableName, Timestamp] = {}
        held: dict[TableName, Timestamp] = {}
        for table in self._feed.in_state(TableState.RUNNING):
            if table.done_upto is None:
                continue
            waits = self._scan is not None and table.table in self._scan.tables
            (held if waits and table.scan_wanted else free)[table.table] = table.done_upto
        if free:
            yield upto, free
        if held and self._scan is not None and self._scan.at is not None:
            yield min(upto, self._scan.at), held

    def _deliver_range(self, bounds: dict[TableName, Timestamp], upto: Timestamp) -> bool:
        """Move all tables of ``bounds`` to ``upto``, turn by turn."""
        source = items(self.keeper, bounds, upto)
        self._epoch += 1
        epoch = Epoch(self._epoch, upto)
        receipts: list[Receipt] = []
        counts: dict[TableName, tuple[int, int]] = {}
        rows = 0
        ahead = self._ahead.submit(self._next, source)
        try:
            while (item := self._take(ahead)) is not None:
                if not isinstance(item, Turn) or item.upto < upto:
                    ahead = self._ahead.submit(self._next, source)
                if isinstance(item, Encoded):
                    receipts.append(self._write(item, epoch, len(receipts), counts))
                    rows += item.messages.num_rows
                elif isinstance(item, MarkItem):
                    self._mark(item, epoch, receipts)
                elif isinstance(item, Turn):
                    self._commit(epoch, receipts, item, counts)
                    receipts, counts = [], {}
                    self._epoch += 1
                    epoch = Epoch(self._epoch, upto)
                    if item.upto >= upto:
                        break
                    self._progress(True)
                if self._stopping.is_set() or self._reload.is_set():
                    break
        finally:
            ahead.cancel()
            if not ahead.cancelled():
                ahead.exception()  # the generator must not run when its owner goes on
            if receipts:
                self._opened_sink().abort(epoch, receipts)
        return rows > 0

    def _take(self, ahead: Future[Item | Encoded | None]) -> Item | Encoded | None:
        return ahead.result()

    def _next(self, source: Iterator[Item]) -> Item | Encoded | None:
        """The next item, encoded; runs in the encoding thread."""
        item = next(source, None)
        if not isinstance(item, Chunk):
            return item
        try:
            return Encoded(item, self._encode(item))
        except ChangefeedError as error:
            if error.code.number == "CF4001":
                raise TableError(item.schema.table, error) from error
            raise

    def _encode(self, chunk: Chunk) -> pa.Table:
        plan = self.plan(chunk.schema)
        key = (plan.fingerprint(), chunk.after, chunk.upto, chunk.number, chunk.low, chunk.high)

        def compute() -> pa.Table:
            clean = frozenset.intersection(*(p.clean for p in chunk.pieces))
            rows = chunk.load()
            if rows.num_rows <= SMALL_ROWS:
                return encode_small(self.engine, rows, plan, clean)
            return encode_big(self.engine, rows, plan, clean)

        return self.node.shared.get(key, compute)

    def _write(
        self,
        item: Encoded,
        epoch: Epoch,
        partition: int,
        counts: dict[TableName, tuple[int, int]],
    ) -> Receipt:
        table = item.chunk.schema.table
        fault_point("runner.before_write")
        try:
            receipt = self._opened_sink().write(
                Batch(
                    feed=self.job_name,
                    epoch=epoch,
                    partition=partition,
                    target=self._feed.target(table),
                    schema=item.chunk.schema,
                    rows=item.messages,
                    frontier=item.chunk.after,
                )
            )
        except ChangefeedError as error:
            if error.code.number in ("CF5003", "CF5006"):
                raise TableError(table, error) from error
            raise
        rows, size = counts.get(table, (0, 0))
        counts[table] = (rows + receipt.rows, size + receipt.bytes)
        return receipt

    def _commit(
        self,
        epoch: Epoch,
        receipts: Sequence[Receipt],
        turn: Turn,
        counts: dict[TableName, tuple[int, int]],
    ) -> None:
        if receipts:
            if self._opened_sink().commit(epoch, receipts) is not Delivery.DURABLE:
                raise ChangefeedError("CF5004", "the sink did not make the messages durable")
            fault_point("runner.after_commit")
        for table, (rows, size) in counts.items():
            self._feed.count(table, rows, size)
        self._feed.advance(turn.tables, turn.upto)
        self._dirty = True

    def _mark(self, item: MarkItem, epoch: Epoch, receipts: list[Receipt]) -> None:
        if receipts:
            self._opened_sink().commit(epoch, receipts)
        event = item.event
        if isinstance(event, Truncate):
            self._opened_sink().truncate(
                event,
                self._feed.target(event.schema.table),
                self._mark_payload("truncate", event.at),
            )
            return
        self._schema_changed(event)

    def _schema_changed(self, event: SchemaChange) -> None:
        table, options = event.new.table, self._feed.options
        policy = options[SCHEMA_CHANGE_POLICY]
        dropped = {c.number for c in event.old.columns} - {c.number for c in event.new.columns}
        counts = (
            event.rewritten or bool(dropped) or options[SCHEMA_CHANGE_EVENTS] is SchemaChangeEvents.COLUMN_CHANGES
        )
        text = _difference(event)
        self.catalog.record_event(self.job_id, "notice", text, table=str(table))
        if not counts or policy is SchemaChangePolicy.IGNORE:
            return
        if policy is SchemaChangePolicy.STOP:
            raise TableError(
                table,
                ChangefeedError(
                    "CF4101",
                    f"schema of {table} changed at {event.at}: {text}",
                    hint="ALTER CHANGEFEED .. SET schema_change_policy = 'nobackfill', then "
                    "RESUME; or CREATE it anew.",
                ),
            )
        if policy is SchemaChangePolicy.BACKFILL and event.rewritten:
            self._feed.update(table, scan_wanted=True, scan_rows=0, scan_total=0)

    # -- progress -------------------------------------------------------------------------

    def _progress(self, moved: bool) -> None:
        """Save when it is time, and emit resolved after what was saved."""
        now = time.monotonic()
        every = min(SAVE_SECONDS, self._feed.options[MIN_CHECKPOINT_FREQUENCY])
        if not (moved or self._dirty):
            every = SAVE_IDLE_SECONDS
        due = now - self._saved_at >= every or self._checkpoint.is_set()
        wants_resolved = self._resolved_due(now)
        if not (due or wants_resolved):
            return
        self._checkpoint.clear()
        self._feed.save()
        self._saved_at = now
        self._dirty = False
        fault_point("runner.after_save")
        if wants_resolved:
            self._emit_resolved()

    def _resolved_due(self, now: float) -> bool:
        options = self._feed.options
        every = options[RESOLVED]
        if every is None or not self._sink_resolves():
            return False
        high = self._feed.high_water()
        if high is None or high == self._resolved:
            return False
        return now - self._resolved_at >= every

    def _sink_resolves(self) -> bool:
        return self._opened_sink().capabilities.resolved

    def _emit_resolved(self, force: bool = False) -> None:
        """Tell consumers how far they are; only after :meth:`Feed.save`."""
        high = self._feed.high_water()
        if high is None or self._feed.options[RESOLVED] is None or not self._sink_resolves():
            return
        if high == self._resolved and not force:
            return
        self._opened_sink().resolved(Resolved(high), self._mark_payload("resolved", high))
        self._resolved = high
        self._resolved_at = time.monotonic()

    def _mark_payload(self, member: str, at: Timestamp) -> bytes:
        envelope = Envelope(self._feed.options[ENVELOPE].value)
        return mark_payload(envelope, member, at)

    def _wait(self) -> None:
        high = self._feed.high_water() or Timestamp.ZERO
        self.keeper.wait_beyond(high, IDLE_SECONDS)

    def _save_quietly(self) -> None:
        try:
            self._feed.save()
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
        return time.monotonic() - self._since <= budget and budget > 0

    def next_pause(self) -> float:
        """Seconds to wait before the next try."""
        pause: float = min(FIRST_PAUSE_SECONDS * 2**self.attempt, LONGEST_PAUSE_SECONDS)
        self.attempt += 1
        return pause * random.uniform(0.75, 1.25)


def _unexpected(surprise: Exception) -> ChangefeedError:
    return ChangefeedError(
        "CF4002",
        f"unexpected error: {type(surprise).__name__}",
        hint="the node's log (node.log in the state directory) has the details.",
    )


def _difference(event: SchemaChange) -> str:
    """What changed, for people: ``column "x" added (text)``."""
    old = {c.number: c for c in event.old.columns}
    new = {c.number: c for c in event.new.columns}
    parts = [f'column "{new[n].name}" added ({new[n].type_name})' for n in new.keys() - old.keys()]
    parts += [f'column "{old[n].name}" dropped' for n in old.keys() - new.keys()]
    for number in old.keys() & new.keys():
        before, after = old[number], new[number]
        if before.name != after.name:
            parts.append(f'column "{before.name}" renamed to "{after.name}"')
        if before.type_name != after.type_name:
            parts.append(f'type of "{after.name}" changed to {after.type_name}')
    return "; ".join(sorted(parts)) or "replica identity or key changed"
