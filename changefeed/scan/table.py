"""One table of a scan: read in parts, converted for the sink, delivered, and ended.

======================  ==============================  =======================================
sink takes              small table                     large table
======================  ==============================  =======================================
messages, in workers    encoded here, one commit        Spark's workers: one task a part does all
messages                encoded here, one commit        read here in parallel, in rounds
messages, exactly once  encoded here, one commit        read here in parallel, one commit
rows                    read here, one commit           read here in parallel, in rounds
rows, by Spark          read here, one commit           Spark; the sink runs the job
rows, in workers        read here, one commit           Spark's workers write files for that job
rows, by files          read here, one commit           Spark's workers write files; loaded here
======================  ==============================  =======================================

A table counts as scanned when all its rows are durable and the sink knows that the scan ended.
Which of its parts are durable is kept meanwhile (:class:`PartLedger`), so that a scan which is
interrupted can go on.
"""

from __future__ import annotations

import itertools
import math
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import pyarrow as pa

from changefeed.catalog.model import RowRepair, TableProgress
from changefeed.core.clock import SYSTEM_CLOCK, Clock, Timestamp
from changefeed.core.engines import EngineChoice, EngineOption, Work, choose_engine
from changefeed.core.errors import ChangefeedError
from changefeed.core.faults import Point, fault_point
from changefeed.core.halves import by_halves, sifted
from changefeed.core.log_rows import delete_rows, scan_rows
from changefeed.core.schema import TableName, TableSchema
from changefeed.core.shapes import Deletes
from changefeed.core.spans import Attributes, Span, current, span
from changefeed.core.spark_jobs import JobName
from changefeed.core.telemetry import log
from changefeed.core.unread import PartRange, UnreadParts
from changefeed.core.unread import joined as joined_ranges
from changefeed.core.work_stages import WorkStage
from changefeed.encoding.encode import encode_messages
from changefeed.options import History
from changefeed.plan.bulk_work import scan_hindrance
from changefeed.scan.admission import (
    Admission,
    AdmissionTicket,
    ScanStopped,
    WriteBarrier,
    deliver_once,
)
from changefeed.scan.host import ScanHost, scan_progress_key
from changefeed.scan.repair import keys_to_delete, why_rescan
from changefeed.scan.spark import row_frame, run_scan, stored_frame, write_parts
from changefeed.spark.progress import driver_host
from sinks.base import (
    Batch,
    Epoch,
    PartPlace,
    Receipt,
    Sink,
    SinkContext,
    Target,
    require_durable,
)

if TYPE_CHECKING:
    from changefeed.sources.base import ScanPart, ScanWorker

#: Rows encoded in one go on the node.
MESSAGE_ROWS = 20_000
#: The same where a CDC query is evaluated by a Spark job: its fixed cost is spread over more rows.
QUERY_ROWS = 100_000
#: Typed rows handed to a sink in one go, and committed in one go where the sink says nothing.
TYPED_ROWS = 50_000
ROUND_ROWS = 500_000
#: The same where rows are held until they are durable, because one of them may be refused.
HELD_ROWS = 100_000
#: Written rows wait no longer than this for a commit, seconds, unless the sink commits less often.
ROUND_SECONDS = 5.0
#: How often a pause or a wait looks whether the scan is to end.
_LOOK_SECONDS = 0.2
#: A table whose scan can go on is read here in about so many parts, each of at least so many bytes:
#: an interruption wastes at most one for each reader, and what is not committed.
FINE_PARTS = 256
FINE_PART_BYTES = 2 << 20
#: A scan that Spark reads is committed in at most so many rounds, each of at least so many parts
#: for each core, because a commit takes half a second or more. Rows that come to older ones are
#: merged, for which the sink looks through the whole table each time.
SPARK_ROUNDS, SPARK_MERGES = 20, 4
PARTS_PER_CORE = 2
#: What workers have read that hold the snapshot, the cores that they leave write for each commit:
#: one, until the last is at its end. With more workers than so many all of it is one commit.
MOST_WORKERS_IN_ROUNDS = 3


class PartLedger:
    """Which parts of a table are durable in the sink, so that a scan can go on. Thread-safe.

    Attributes:
        unread: what is left, once a part is durable.
        known: whether a later image knows every part, so that the scan can go on.
        since: the first instant of which the sink has rows of this scan.
    """

    def __init__(
        self,
        form: str,
        at: Timestamp,
        ranges: Sequence[PartRange | None],
        before: UnreadParts | None,
    ) -> None:
        """
        Args:
            form: as of :attr:`UnreadParts.form`.
            at: the instant of the scan.
            ranges: of the parts that are read, by number; None: of one that no later image knows.
            before: what an earlier scan left, and this one reads; None: this one reads all.
        """
        places = dict.fromkeys(one.place for one in ranges if one is not None)
        self.known = None not in ranges
        self._left = {number: one for number, one in enumerate(ranges) if one is not None}
        self._lock = threading.Lock()
        self.since = at if before is None else before.since
        self._unread = (
            UnreadParts(at, form, tuple(places), ())
            if before is None
            else replace(before, places=tuple(dict.fromkeys((*before.places, *places))))
        )
        self.unread: UnreadParts | None = before

    def part_durable(self, number: int, rows: int, size: int) -> None:
        """A part is durable, which may have been said before."""
        if number in self._left:
            self.durable((number,), rows, size)

    def durable(self, parts: Iterable[int], rows: int, size: int) -> None:
        """The rows of these parts are durable; ``rows`` and ``size`` came since the last call."""
        with self._lock:
            for number in parts:
                self._left.pop(number, None)
            self._unread = replace(
                self._unread, rows=self._unread.rows + rows, bytes=self._unread.bytes + size
            )
            if self.known:
                self.unread = replace(self._unread, left=joined_ranges(self._left.values()))


@dataclass(frozen=True)
class TableParts:
    """What a scan reads of a table.

    Attributes:
        parts: all of it.
        cut: returns the same rows in parts of about so many bytes.
        part_range: see :meth:`changefeed.sources.base.Snapshot.part_range`.
        before: what an earlier scan left, if these parts are only that.
        first: whether nothing of the table was delivered before.
    """

    parts: Sequence[ScanPart]
    cut: Callable[[int], Sequence[ScanPart]]
    part_range: Callable[[ScanPart], PartRange | None]
    before: UnreadParts | None = None
    first: bool = False


@dataclass
class ScanWork:
    """What all tables of one scan have in common.

    ``unfinished``: see :attr:`sinks.base.SinkContext.unfinished`. ``delivered``: rows of it are
    durable in the sink. ``workers``: those of Spark that hold the snapshot. ``release``: ends
    them, once no table is left that they are to read.
    """

    host: ScanHost
    at: Timestamp
    barrier: WriteBarrier
    group: JobName
    stopping: Callable[[], bool]
    unfinished: Mapping[TableName, Timestamp] = field(default_factory=dict)
    delivered: bool = False
    clock: Clock = SYSTEM_CLOCK
    workers: Sequence[ScanWorker] = ()
    release: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self._epochs = itertools.count(1)
        self._next_read = 0.0

    def _sink(self) -> Sink:
        with self.barrier.passing():
            return self.host.sinks.for_scan(self.unfinished)

    def read(
        self,
        schema: TableSchema,
        found: TableParts,
        rows: int,
        progress: Callable[[int, int], None],
        keep: Callable[[PartLedger], None],
    ) -> None:
        """Deliver a table; returns when it is durable and ended at the sink.

        Args:
            rows: about how many rows there are.
            progress: takes rows and bytes delivered so far; called from any thread.
            keep: takes the ledger of the parts, before the first row, if the scan of the table can
                go on after an interruption.

        Raises:
            ScanStopped: before the end.
            ChangefeedError: the source, Spark or the sink failed.
        """
        sink = self._sink()
        parts = found.parts
        writer = ScanWriter(self, sink, schema, progress)
        choice = self._engine(writer, rows, len(parts))
        folder = None
        if sink.capabilities.loads_parts is PartPlace.FOLDER:
            folder = Path(self.host.sinks.context(scan=True).scratch)
        if choice.spark and (why := self.host.spark.hindrance(self.stopping, folder)):
            choice = EngineChoice(False, why, hindered=True)
        if choice.spark:
            text = f"scan of {schema.table.schema}.{schema.table.name} as a Spark job"
            log.info("feed %s: %s (%s)", self.host.name, text, choice.reason)
            self.host.note_engine(schema.table, text)
        elif choice.hindered and self.host.asked_engine is EngineOption.SPARK:
            text = f"the node reads the table although engine = 'spark': {choice.reason}"
            log.warning("feed %s: %s: %s", self.host.name, schema.table, text)
            self.host.note_engine(schema.table, text)
        if self.continues(schema):
            if not choice.spark:
                parts = found.cut(fine_bytes(parts))
            ranges = [found.part_range(part) for part in parts]
            ledger = PartLedger(self.host.form(schema), self.at, ranges, found.before)
            writer.ledger = ledger
            keep(ledger)
        name = self.host.name
        try:
            if self.host.plan(schema).deletes is Deletes.ONLY:
                parts = ()
            with span("changefeed.scan", {"feed": name, "table": str(schema.table)}) as traced:
                if choice.spark and sink.capabilities.loads_parts:
                    self._typed_by_files(parts, writer, first=found.first)
                elif writer.typed and choice.spark:
                    self._typed_by_spark(parts, writer, first=found.first)
                elif writer.typed:
                    self._typed_here(parts, writer)
                elif choice.spark:
                    self._messages_in_workers(parts, writer)
                else:
                    self._messages_here(parts, writer)
                writer.end()
                traced.note(rows=writer.delivered, engine="spark" if choice.spark else "node")
        except BaseException:
            writer.abort()
            raise

    def continues(self, schema: TableSchema) -> bool:
        """Whether a scan of the table can go on after an interruption, as far as its target and the
        feed are concerned."""
        sink = self._sink()
        able = sink.capabilities.continues_scans and not self.host.sinks.keeps(sink)
        # A target that keeps the past must know of every row by which scan it came.
        past = sink.capabilities.takes_rows and self.host.history is not History.OFF
        return able and not past and not schema.keyless

    def why_rescan(self, table: TableProgress, schema: TableSchema) -> str:
        """See :func:`.repair.why_rescan`."""
        host = self.host
        sink = self._sink()
        return why_rescan(
            table,
            schema,
            host.plan(schema),
            source=host.source_runtime.source,
            sink=sink.capabilities,
            history=host.history,
            has_query=host.has_query,
        )

    def repair(
        self,
        schema: TableSchema,
        parts: Sequence[ScanPart],
        repair: RowRepair,
        progress: Callable[[int, int], None],
    ) -> None:
        """Deliver single rows of a table, and deletes of those that only the target has; returns
        when they are durable.

        Args:
            parts: the rows that the source has of the repair's keys.
            progress: takes rows and bytes delivered so far.

        Raises:
            ScanStopped: before the end.
            ChangefeedError: the source or the sink failed.
        """
        sink = self._sink()
        writer = ScanWriter(self, sink, schema, progress)
        try:
            batches = [b for part in parts for b in part.read()]
            none = pa.schema([pa.field(f"a{i}", c.arrow) for i, c in enumerate(schema.columns)])
            found = pa.Table.from_batches(batches, none)
            reads = scan_rows(schema, found, self.at)
            deletes = delete_rows(schema, keys_to_delete(schema, found, repair), self.at)

            def shape(rows: pa.Table, *, scan: bool = False) -> pa.Table:
                if writer.typed:
                    return self.host.row_plan(schema).rows(rows)
                return encode_messages(rows, self.host.messages(schema), scan=scan)

            writer.take(reads, partial(shape, scan=True))
            writer.take(deletes, shape)
            writer.end(whole=False)
        except BaseException:
            writer.abort()
            raise

    def _engine(self, writer: ScanWriter, rows: int, parts: int) -> EngineChoice:
        host = self.host
        why = spark_hindrance(host, writer.sink)
        if not why and not host.source_runtime.source.parts_travel and not self.workers:
            why = "Spark has no core to spare for a worker that holds the snapshot"
        asked = host.asked_engine
        loads = bool(writer.sink.capabilities.loads_parts)
        if writer.typed and not loads and asked is EngineOption.AUTO and not why:
            # The session is needed for the merge anyway: only the job itself counts.
            small = parts <= 1 and rows < host.sizes.small_scan_rows
            return EngineChoice(not small, "Spark merges this table in any case")
        tasks = min(parts, len(self.workers)) if self.workers else parts
        return choose_engine(asked, Work(rows, max(1, tasks), why, loads), host.spark.state())

    # -- typed rows -------------------------------------------------------------------------

    def _typed_here(self, parts: Sequence[ScanPart], writer: ScanWriter) -> None:
        plan = self.host.row_plan(writer.schema)

        def shape(rows: pa.Table) -> pa.Table:
            return plan.rows(self.host.rows(writer.schema, rows))

        self._here(parts, writer, shape, TYPED_ROWS)

    def _typed_by_spark(
        self, parts: Sequence[ScanPart], writer: ScanWriter, *, first: bool
    ) -> None:
        shape = partial(self.host.row_plan(writer.schema).scanned, at=self.at)
        for numbers in self._rounds(len(parts), writer, SPARK_ROUNDS if first else SPARK_MERGES):
            if self.stopping():
                raise ScanStopped
            frames = row_frame
            if self.workers:
                folder = Path(
                    self.host.sinks.context(scan=True).scratch, f"parts-{writer.epoch.number}"
                )
                last = numbers.stop == len(parts)
                release = self.release if last else lambda: None
                frames = partial(stored_frame, workers=self.workers, folder=folder, release=release)
            with frames(
                self.host.spark,
                parts[numbers.start : numbers.stop],
                schema=writer.seen,
                shape=shape,
                group=replace(self.group, table=str(writer.schema.table)),
                on_progress=writer.progress_of_round,
            ) as frame:
                # The sink's own action: cancelled with the group, waited for by the barrier.
                with self.barrier.passing():
                    written = writer.sink.write_scan(
                        frame, writer.epoch, writer.target, writer.seen
                    )
            writer.written(written, numbers)

    def _typed_by_files(
        self, parts: Sequence[ScanPart], writer: ScanWriter, *, first: bool
    ) -> None:
        write = partial(
            write_parts,
            self.host.spark,
            shape=partial(self.host.row_plan(writer.schema).scanned, at=self.at),
            group=replace(self.group, table=str(writer.schema.table)),
            on_progress=writer.progress_of_round,
            workers=self.workers,
        )
        for numbers in self._rounds(len(parts), writer, SPARK_ROUNDS if first else SPARK_MERGES):
            if self.stopping():
                raise ScanStopped
            self.host.sinks.check_lease()
            # As above: the job is cancelled with the group, and the barrier waits for its end.
            with self.barrier.passing():
                loaded = writer.sink.write_parts(
                    partial(write, parts[numbers.start : numbers.stop]),
                    writer.epoch,
                    writer.target,
                    writer.seen,
                )
            writer.written(loaded, numbers)

    def _rounds(self, parts: int, writer: ScanWriter, most: int) -> Sequence[range]:
        """The numbers of the parts that Spark reads for one commit: of all, if the scan cannot go
        on after an interruption."""
        each = max(1, parts)
        ledger = writer.ledger
        if ledger and ledger.known and len(self.workers) <= MOST_WORKERS_IN_ROUNDS:
            least = PARTS_PER_CORE * max(1, self.host.spark.state().cores)
            each = max(least, math.ceil(parts / most))
        return [range(n, min(n + each, parts)) for n in range(0, max(1, parts), each)]

    # -- messages ---------------------------------------------------------------------------

    def _messages_here(self, parts: Sequence[ScanPart], writer: ScanWriter) -> None:
        stages = self.host.stages

        def messages(rows: pa.Table) -> pa.Table:
            if self.host.has_query:
                found = partial(self.host.rows, writer.schema, rows)
                rows = stages.run(WorkStage.SCAN_QUERY, found)
            else:
                rows = self.host.rows(writer.schema, rows)
            encode = partial(encode_messages, rows, self.host.messages(writer.schema), scan=True)
            return stages.run(WorkStage.SCAN_ENCODE, encode)

        rows = QUERY_ROWS if self.host.has_query else MESSAGE_ROWS
        self._here(parts, writer, messages, rows)

    def _here(
        self,
        parts: Sequence[ScanPart],
        writer: ScanWriter,
        shape: Callable[[pa.Table], pa.Table],
        rows: int,
    ) -> None:
        limits = self.host.limits
        about = {"feed": self.host.name, "table": str(writer.schema.table)}
        read = read_parts(parts, self.stopping, limits.readers, writer.ended.append, about)
        found = joined(self._paced(read, limits.rate), rows, writer.overdue)
        for batch in self.host.stages.each(WorkStage.SCAN_READ, found):
            writer.take(scan_rows(writer.schema, batch, self.at), shape)

    def _paced(
        self, batches: Iterator[pa.RecordBatch], rate: int | None
    ) -> Iterator[pa.RecordBatch]:
        """The same batches, at most ``rate`` bytes a second."""
        for batch in batches:
            yield batch
            if rate is None:
                continue
            now = self.clock.monotonic()
            self._next_read = max(now, self._next_read) + batch.nbytes / rate
            while now < self._next_read:
                if self.stopping():
                    raise ScanStopped
                self.clock.sleep(min(_LOOK_SECONDS, self._next_read - now))
                now = self.clock.monotonic()

    def _messages_in_workers(self, parts: Sequence[ScanPart], writer: ScanWriter) -> None:
        def on_durable(part: int, rows: int, size: int) -> None:
            self.note_durable()
            if writer.ledger is not None:
                writer.ledger.part_durable(part, rows, size)

        done = run_scan(
            self.host.spark,
            parts,
            plan=self.host.messages(writer.schema),
            at=self.at,
            deliver=self._in_worker(writer),
            group=replace(self.group, table=str(writer.schema.table)),
            on_progress=writer.progress,
            on_durable=on_durable,
            stopping=self.stopping,
            workers=self.workers,
        )
        if self.stopping():
            raise ScanStopped
        self.note_durable()
        for part in done:
            on_durable(part.part, part.rows, part.bytes)

    def note_durable(self) -> None:
        """Rows of the scan are durable in the sink."""
        self.delivered = True

    def _in_worker(self, writer: ScanWriter) -> WorkerDelivery:
        with self.host.spark.use() as session:
            host = driver_host(session)
        local = self.host.spark.master.startswith("local")
        return WorkerDelivery(
            sink=self.host.sinks.new_sink(),
            context=self.host.sinks.context(scan=True, here=False),
            feed=self.host.name,
            epoch=writer.epoch,
            target=writer.target,
            schema=writer.seen,
            ticket=self.barrier.ticket(host, here=local),
        )

    def next_epoch(self) -> Epoch:
        """The next epoch; epochs of a scan end at its instant."""
        return Epoch(next(self._epochs), self.at)


def spark_hindrance(host: ScanHost, sink: Sink) -> str:
    """Why the node itself reads the tables of a scan into this sink; empty: Spark's workers can."""
    source = host.source_runtime.source
    why = scan_hindrance(
        sink.capabilities,
        query=host.has_query,
        exactly_once=host.sinks.keeps(sink),
        parts_travel=source.parts_travel,
        takes_workers=source.takes_workers,
        limit=host.limits.option,
    )
    can, place = sink.capabilities, host.spark.shared_place.root
    # The client of HDFS is in the JVM, and Python workers write the rows of such a snapshot.
    if not why and can.scans_by_spark and not source.parts_travel and place.startswith("hdfs://"):
        return "the snapshot of this source cannot be staged in HDFS"
    if not why and can.loads_parts is PartPlace.FOLDER and "://" in place:
        return f"this sink loads files of a directory, and the staging place is {place}"
    if not why and not can.scans_by_spark and not host.sinks.in_workers(sink):
        return "Spark cannot be started here"
    return why or host.spark.state().hindrance


class ScanWriter:
    """Writes one table of a scan to the scan's sink object from this process, and ends it."""

    def __init__(
        self,
        reading: ScanWork,
        sink: Sink,
        schema: TableSchema,
        progress: Callable[[int, int], None],
    ) -> None:
        host = reading.host
        self.sink = sink
        self.schema = schema
        self.typed = sink.capabilities.takes_rows
        #: The shape the sink sees.
        self.seen = host.row_plan(schema).schema
        self.target: Target = host.target(schema.table)
        self.epoch = reading.next_epoch()
        #: The whole table is one commit, which says so to the sink.
        self.keeps = host.sinks.keeps(sink)
        self._reading = reading
        self._progress = progress
        #: Rows so far, also those that Spark's workers wrote.
        self.delivered = 0
        #: Keeps which parts are durable, if the scan can go on after an interruption.
        self.ledger: PartLedger | None = None
        #: Parts whose rows were all written since the last commit.
        self.ended: list[int] = []
        self._receipts: list[Receipt] = []
        self._pending = self._pending_bytes = 0
        self._rows = self._bytes = 0
        #: Rows that are not durable, and what makes them rows of the sink, in a feed that keeps
        #: dead letters.
        self._held: list[tuple[pa.Table, Callable[[pa.Table], pa.Table]]] = []
        self._settled_at = reading.clock.monotonic()
        self._round = max(sink.capabilities.pacing.rows, ROUND_ROWS)
        if host.refuse_row is not None:
            self._round = min(self._round, HELD_ROWS)
        deletes = host.plan(schema).deletes
        self._ends = ends_scan(deletes, host.history, gathers=self.typed and self.seen.keyless)

    def progress(self, rows: int, size: int) -> None:
        """Take rows and bytes so far, also those that Spark's workers wrote."""
        self.delivered = rows
        self._progress(rows, size)

    def progress_of_round(self, rows: int, size: int) -> None:
        """Take rows and bytes that Spark's workers wrote since the last commit."""
        self.progress(self._rows + rows, self._bytes + size)

    def written(self, receipt: Receipt, parts: Iterable[int]) -> None:
        """The rows of these parts are durable."""
        self._rows, self._bytes = self._rows + receipt.rows, self._bytes + receipt.bytes
        self._pending, self._pending_bytes = receipt.rows, receipt.bytes
        self.ended.extend(parts)
        self._settled()
        self.progress(self._rows, self._bytes)
        fault_point(Point.SCAN_COMMITTED)

    def take(self, rows: pa.Table, shape: Callable[[pa.Table], pa.Table]) -> None:
        """Hand over rows of a scan, in the log's columns, as ``shape`` makes them for the sink.
        Where the feed keeps dead letters, one that is refused becomes a letter."""
        if not rows.num_rows:
            return
        if self._reading.host.refuse_row is None:
            self.write(shape(rows))
            self.commit_round()
            return
        self._held.append((rows, shape))
        self._or_by_halves(lambda: self._sift(rows, shape))
        self.commit_round()

    def _sift(self, rows: pa.Table, shape: Callable[[pa.Table], pa.Table]) -> None:
        """Write rows; without those that are refused before the sink has any."""
        try:
            self.write(shape(rows))
            return
        except ChangefeedError as error:
            if not error.about_row:
                raise
            good, refused = sifted(rows, lambda some: self.sink.examine(self._batch(shape(some))))
            if not refused:
                raise
        refuse_row = self._reading.host.refuse_row
        assert refuse_row is not None
        for place, why in refused:
            refuse_row(self.schema, rows.slice(place, 1), why, self._rows + good.num_rows)
        self._held[-1] = good, shape
        self.write(shape(good))

    def _or_by_halves(self, step: Callable[[], None]) -> None:
        """Do it; if a row is refused, deliver all rows that are not durable by halves."""
        refuse_row = self._reading.host.refuse_row
        try:
            step()
            return
        except ChangefeedError as error:
            if refuse_row is None or not error.about_row:
                raise
        keep = refuse_row
        held, self._held = self._held, []
        # Their last rows are among those that are held.
        ended = list(self.ended)
        self.ended.clear()
        self._forget_pending()

        def deliver(shape: Callable[[pa.Table], pa.Table], some: pa.Table) -> None:
            if self._reading.stopping():
                raise ScanStopped
            try:
                self.write(shape(some))
                self._commit_pending()
            except BaseException:
                self._forget_pending()
                raise

        def refused(row: pa.Table, error: ChangefeedError) -> None:
            keep(self.schema, row, error, self._rows)

        for rows, shape in held:
            by_halves(rows, partial(deliver, shape), refused)
        if self.ledger is not None:
            self.ledger.durable(ended, 0, 0)

    def _forget_pending(self) -> None:
        """Discard what was written since the last commit: it is written again."""
        self.abort()
        self._receipts.clear()
        self._rows, self._bytes = self._rows - self._pending, self._bytes - self._pending_bytes
        self._pending = self._pending_bytes = 0

    def _batch(self, rows: pa.Table) -> Batch:
        return Batch(
            feed=self._reading.host.name,
            epoch=self.epoch,
            partition=len(self._receipts),
            target=self.target,
            schema=self.seen,
            rows=rows,
            after=self._reading.at.previous(),
            scan=True,
        )

    def write(self, rows: pa.Table) -> None:
        """Hand over rows as the sink takes them."""
        self._reading.host.sinks.check_lease()
        with self._reading.barrier.passing(), self._traced("write", rows.num_rows):
            receipt = self.sink.write(self._batch(rows))
        self._receipts.append(receipt)
        self._pending += rows.num_rows
        self._pending_bytes += receipt.bytes
        self._rows, self._bytes = self._rows + rows.num_rows, self._bytes + receipt.bytes
        self.progress(self._rows, self._bytes)

    def commit_round(self) -> None:
        """Commit what is written, if it is much, or has waited long where a restart would go on
        from there, and the table may be committed in several rounds.
        """
        if not self.keeps and (self._pending >= self._round or self.overdue()):
            self.commit()

    def overdue(self) -> bool:
        """Whether a commit would be due even of a few rows: a restart would go on from there."""
        if self.ledger is None:
            return False
        waited = self._reading.clock.monotonic() - self._settled_at
        return waited >= max(ROUND_SECONDS, self.sink.pacing().seconds)

    def commit(self) -> None:
        """Make durable what was written since the last commit."""
        self._or_by_halves(self._commit_pending)
        fault_point(Point.SCAN_COMMITTED)

    def _commit_pending(self) -> None:
        if self._receipts:
            with self._reading.barrier.passing(), self._traced_commit():
                require_durable(self.sink.commit(self.epoch, self._receipts))
            self._settled()

    def _traced(self, what: str, rows: int) -> AbstractContextManager[Span]:
        feed, table = self._reading.host.name, str(self.schema.table)
        return span(f"changefeed.{what}", {"feed": feed, "table": table, "rows": rows})

    def _traced_commit(self) -> AbstractContextManager[Span]:
        return self._traced("merge" if self.typed else "commit", self._pending)

    def end(self, *, whole: bool = True) -> None:
        """Commit the rest of the table, and tell the sink that the scan of it is complete, if it
        was one of the whole table.
        """
        sink, at = self.sink, self._reading.at
        if self.keeps:
            with self._reading.barrier.passing(), self._traced_commit():
                progress = {scan_progress_key(self.target.table): at}
                require_durable(sink.commit_with(self.epoch, self._receipts, progress))
            self._settled()
        else:
            self.commit()
        if self.ledger is not None:
            self.ledger.durable(self.ended, 0, 0)
            at = self.ledger.since
        fault_point(Point.SCAN_BEFORE_END)
        if whole and self._ends and sink.capabilities.ends_scans:
            with self._reading.barrier.passing():
                sink.end_scan(self.target, self.seen, at)
        fault_point(Point.SCAN_AFTER_END)

    def _settled(self) -> None:
        self._reading.note_durable()
        if self.ledger is not None:
            self.ledger.durable(self.ended, self._pending, self._pending_bytes)
        self.ended.clear()
        self._held.clear()
        self._receipts.clear()
        self._pending = self._pending_bytes = 0
        self._settled_at = self._reading.clock.monotonic()
        self.epoch = self._reading.next_epoch()

    def abort(self) -> None:
        """Discard what was written but not committed."""
        try:
            with self._reading.barrier.passing():
                self.sink.abort(self.epoch, self._receipts)
        except (ScanStopped, ChangefeedError):
            # The reason for it is on its way up; a sink that is closed forgets as well.
            self._receipts.clear()


def ends_scan(deletes: Deletes, history: History, *, gathers: bool) -> bool:
    """Whether the sink learns that a scan is complete.

    Rows that a complete scan did not find are deleted, so the sink of a feed without deletes does
    not learn it and keeps them. There are two exceptions. A target that keeps every change deletes
    no row, and must know which scans are complete. A table of rows without a key (``gathers``) can
    take the rows of a scan only at its end, because they cannot be merged one by one.
    """
    if deletes is Deletes.NO:
        return history is History.APPEND or (gathers and history is History.OFF)
    return deletes is not Deletes.ONLY


@dataclass
class WorkerDelivery:
    """Writes the encoded messages of one part to the sink, in the worker that read the part.

    It is pickled with an unopened sink.
    """

    sink: Sink
    context: SinkContext
    feed: str
    epoch: Epoch
    target: Target
    schema: TableSchema
    ticket: AdmissionTicket

    def __call__(self, part: int, batches: Iterator[pa.RecordBatch]) -> tuple[int, int]:
        """Deliver all messages of a part durably, unless another attempt did: rows and bytes."""

        def deliver(admission: Admission) -> list[list[int]]:
            return [self._deliver(admission, part, batches)]

        [[rows, size]] = deliver_once(self.ticket, part, self.sink, self.context, deliver)
        return rows, size

    def _deliver(
        self, admission: Admission, part: int, batches: Iterator[pa.RecordBatch]
    ) -> list[int]:
        receipts: list[Receipt] = []
        for rows in batches:
            admission.check()
            receipts.append(
                self.sink.write(
                    Batch(
                        feed=self.feed,
                        epoch=self.epoch,
                        partition=part,
                        target=self.target,
                        schema=self.schema,
                        rows=rows,
                        after=self.epoch.upto.previous(),
                        scan=True,
                    )
                )
            )
        admission.check()
        require_durable(self.sink.commit(self.epoch, receipts))
        return [sum(r.rows for r in receipts), sum(r.bytes for r in receipts)]


# ------------------------------------------------------------------------------- reading


def fine_bytes(parts: Sequence[ScanPart]) -> int:
    """How large parts of a table should be that the node reads so that it can go on."""
    size = sum(part.bytes_estimate for part in parts)
    largest = max((part.bytes_estimate for part in parts), default=0)
    return max(FINE_PART_BYTES, min(largest, size // FINE_PARTS))


def read_parts(
    parts: Sequence[ScanPart],
    stopping: Callable[[], bool],
    readers: int = 4,
    on_end: Callable[[int], None] = lambda number: None,
    about: Attributes = MappingProxyType({}),
) -> Iterator[pa.RecordBatch]:
    """The rows of all parts, ``readers`` read at the same time, in no particular order.

    At most a few batches are in memory. ``on_end`` is called with the number of a part when all of
    its rows were returned; ``about`` are attributes of its span.

    Raises:
        ScanStopped: ``stopping`` said so.
        ChangefeedError: a part cannot be read.
    """
    ready: queue.Queue[pa.RecordBatch | BaseException | int | None] = queue.Queue(2 * readers)
    left = iter(enumerate(parts))
    lock, over = threading.Lock(), threading.Event()
    outer = current()

    def put(item: pa.RecordBatch | BaseException | int | None) -> None:
        while not over.is_set():
            try:
                return ready.put(item, timeout=_LOOK_SECONDS)
            except queue.Full:
                continue

    def work() -> None:
        try:
            while not over.is_set():
                with lock:
                    numbered = next(left, None)
                if numbered is None:
                    break
                number, part = numbered
                rows = 0
                with span(
                    "changefeed.scan.part", {**about, "part": number}, inside=outer
                ) as traced:
                    for batch in part.read():
                        put(batch)
                        rows += batch.num_rows
                        if over.is_set():
                            return
                    traced.note(rows=rows)
                put(number)
        except BaseException as error:
            put(error)
        finally:
            put(None)

    threads = min(readers, len(parts))
    pool = ThreadPoolExecutor(max(1, threads), thread_name_prefix="scan-read")
    for _ in range(threads):
        pool.submit(work)
    try:
        while threads:
            if stopping():
                raise ScanStopped
            try:
                item = ready.get(timeout=_LOOK_SECONDS)
            except queue.Empty:
                continue
            if isinstance(item, BaseException):
                raise item
            if item is None:
                threads -= 1
            elif isinstance(item, int):
                on_end(item)
            elif item.num_rows:
                yield item
    finally:
        over.set()
        pool.shutdown(wait=False)


def joined(
    batches: Iterator[pa.RecordBatch], rows: int, overdue: Callable[[], bool] = lambda: False
) -> Iterator[pa.Table]:
    """Successive tables joined into tables of about ``rows`` rows, or fewer where ``overdue``."""
    held: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        held.append(batch)
        count += batch.num_rows
        if count >= rows or overdue():
            yield pa.Table.from_batches(held)
            held, count = [], 0
    if held:
        yield pa.Table.from_batches(held)
