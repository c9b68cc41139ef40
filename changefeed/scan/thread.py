"""The initial scan, and the backfill after a schema change: a consistent snapshot of tables.

The scan has its own thread, so that changes of other tables are delivered meanwhile. All tables of
one scan are read under one snapshot of the source and have its timestamp. A table whose changes are
already delivered (a backfill) is read only after its changes up to that timestamp were delivered,
so a consumer never sees an older version of a row after a newer one.

:mod:`changefeed.scan.table` reads and delivers a table. After an interruption another scan delivers
the unfinished tables: rows may be repeated, but none is lost. A row that the interrupted scan
delivered may be deleted at the source before the next scan, whose snapshot then lacks it. So the
timestamp of a scan is saved before its first row is delivered, and the next scan of the table
follows the changes since then, like a backfill.

Where source and sink allow it, the next scan reads only what the earlier ones left
(:mod:`changefeed.core.unread`)::

    scan as of S1         parts 1, 2 durable, then an interruption
    changes up to S2      of every row: parts 1 and 2 are as of S2 now
    scan as of S2         the other parts
    the table is complete as of S2

A row that moved from an unread part to one that was read had to change for that, so the changes
have it. They must have all of its values: if one lacks a value that the source did not send, or the
table was truncated or altered meanwhile, the next scan reads everything
(:meth:`changefeed.feeds.rounds.Rounds.turn` finds this out before it delivers them).
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from changefeed.catalog.model import RowRepair, TableProgress
from changefeed.core.clock import SYSTEM_CLOCK, Clock, Timestamp
from changefeed.core.engines import EngineOption, Work, choose_engine
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.faults import Point, fault_point
from changefeed.core.schema import KeyRange, TableName, TableSchema
from changefeed.core.spark_jobs import JobName
from changefeed.core.table_errors import TableError, about_table
from changefeed.core.unread import UnreadParts
from changefeed.scan.admission import LEASE_SECONDS, ScanStopped, WriteBarrier
from changefeed.scan.host import ScanHost
from changefeed.scan.table import PartLedger, ScanWork, TableParts, spark_hindrance
from changefeed.sources.base import KeySet, ScanPart, Snapshot, Source
from changefeed.sources.scans import table_changed
from changefeed.spark.standing import StandingWorkers

#: Of the scans of this process: a group of jobs that was cancelled cannot be used again.
_NUMBERS = itertools.count(1)


@dataclass
class TableScan:
    """One table of a running scan. ``done`` or ``error`` is set when it ended.

    ``repair`` are the rows that the scan is about, None for all. ``dismissed`` is set by the feed
    if it needs another scan of the table instead: this one delivers no rows of it.
    ``before`` is what earlier scans have left, None if this one reads all: the feed takes it away
    before it sets ``caught_up``, if the changes since then do not complete it. ``goes_on`` is
    whether the image does, once the scan knows. ``ledger`` says how far the table is.
    """

    progress: TableProgress
    backfill: bool
    schema: TableSchema | None = None
    total: int = 0
    rows: int = 0
    bytes: int = 0
    done: bool = False
    error: ChangefeedError | None = None
    repair: RowRepair | None = None
    dismissed: bool = False
    caught_up: threading.Event = field(default_factory=threading.Event)
    ledger: PartLedger | None = None
    before: UnreadParts | None = None
    goes_on: bool | None = None

    @classmethod
    def of(cls, progress: TableProgress) -> TableScan:
        """The scan that a table is owed, as far as it is known before it begins."""
        known = None if progress.done_upto is None else progress.unread
        return cls(
            progress,
            backfill=progress.done_upto is not None,
            repair=progress.repair,
            total=0 if known is None else progress.scan_total,
            rows=0 if known is None else known.rows,
            bytes=0 if known is None else known.bytes,
            before=known,
        )

    @property
    def name(self) -> TableName:
        return self.progress.table


class SnapshotScan(threading.Thread):
    """Scans tables of a feed; the feed looks at :attr:`tables` and :attr:`at`."""

    def __init__(
        self,
        host: ScanHost,
        tables: Sequence[TableProgress],
        clock: Clock = SYSTEM_CLOCK,
        task_lease: float = LEASE_SECONDS,
    ) -> None:
        """``task_lease``: how long workers may write that hear nothing of this process, seconds."""
        super().__init__(name=f"scan-{host.name}", daemon=True)
        self.tables = {t.table: TableScan.of(t) for t in tables}
        self.at: Timestamp | None = None
        self.error: Exception | None = None
        #: What this scan writes, it writes through here.
        self.barrier = WriteBarrier(task_lease)
        #: Set by the feed's thread once :attr:`at` is durable in the progress of the tables.
        self.timestamp_saved = threading.Event()
        self._host = host
        self._clock = clock
        self._stopping = threading.Event()
        self._group = JobName(host.name, host.job_id, f"scan {next(_NUMBERS)}", state=host.state)
        self._began = 0.0
        #: What the scan waits for before it reads.
        self._waits = ""
        self._work: ScanWork | None = None

    @property
    def delivered(self) -> bool:
        """Whether rows of the scan are durable in the sink."""
        return self._work is not None and self._work.delivered

    def stop(self) -> None:
        """End soon: running Spark jobs are cancelled."""
        self._stopping.set()
        self.timestamp_saved.set()
        for table in self.tables.values():
            table.caught_up.set()
        self._host.spark.cancel(self._group)

    def text(self) -> str:
        """The progress of the scan and the time that it still needs at its present rate."""
        tables = self.tables.values()
        done = sum(t.done for t in tables)
        rows, total = sum(t.rows for t in tables), sum(t.total for t in tables)
        share = min(0.99, rows / total) if total else 0.0
        name = "rescan" if all(t.progress.rescan_owed for t in tables) else "initial scan"
        if all(t.repair is not None for t in tables):
            name = "repair of rows"
        if self._waits:
            # The source knows the transaction for which its snapshot waits, if it waits for one.
            what = self._host.source_runtime.source.waits_for
            return f"{name}: waits for {self._waits}" + (f", for {what}" if what else "")
        text = f"{name}: {done} of {len(tables)} tables, {rows}"
        text += f" of about {total} rows" if total else " rows"
        fresh = rows - sum(t.before.rows for t in tables if t.before is not None)
        if share > 0.01 and self._began and fresh > 0:
            left = (self._clock.monotonic() - self._began) * (1 - share) * total / fresh
            text += f" ({share:.0%}, about {_duration(left)} left)"
        return text

    def run(self) -> None:
        try:
            self._scan()
        except Exception as error:  # raised again by the feed's own thread
            self.error = error
        finally:
            # Tasks of a job that failed may still run: the next scan comes after them.
            self.barrier.close()
            self._host.wake()

    def _scan(self) -> None:
        source_runtime = self._host.source_runtime
        source = source_runtime.source
        if self._waits_for_spark():
            # An open image holds back VACUUM at the source: nothing may wait for Spark's start
            # then.
            self._waits = "Spark"
            self._host.spark.session()
            self._host.spark.hindrance(lambda: True)  # a job may begin now to find out
        # The image must be younger than the capture, or changes between them would be lost.
        self._waits = "the capture of its tables"
        source_runtime.wait_captured(self.tables, self._stopping)
        described = self._describe()
        promised = self._host.promised()
        if promised is not None:
            # An idle source's image has the instant of the last frontier, and consumers may count
            # on having everything up to there.
            source_runtime.log.wait_above(promised, self._stopping)
        with ExitStack() as held:
            standing = held.enter_context(self._workers(self._wants_workers(source)))
            workers = standing.gathered(self._stopping.is_set) if standing else ()
            self._waits = "the source's snapshot"
            schemas = [t.schema for t in described if t.schema]
            snapshot = held.enter_context(
                source.snapshot_in(schemas, workers) if workers else source.snapshot(schemas)
            )
            self.at = source_runtime.log.wait_position(snapshot.position, self._stopping)
            self._began, self._waits = self._clock.monotonic(), ""
            self._host.wake()
            fault_point(Point.SCAN_AFTER_SNAPSHOT)
            self.timestamp_saved.wait()
            fault_point(Point.SCAN_PLACED)
            # Again: the image may have waited long for open transactions, and has the columns
            # that came meanwhile. The image itself says so of one that came since then.
            described = self._describe()
            # The timestamp of the scan before this one, or the oldest one of a scan that is owed:
            # not as it is by now, with the timestamp of this scan.
            unfinished = {
                name: table.progress.scan_at
                for name, table in self.tables.items()
                if table.progress.scan_at is not None
            }
            reading = self._work = ScanWork(
                self._host,
                self.at,
                self.barrier,
                self._group,
                self._stopping.is_set,
                unfinished,
                clock=self._clock,
                workers=snapshot.workers if workers else (),
            )
            # Of all tables before the first row, so that a share is one of the whole.
            parts = {table.name: self._parts(snapshot, table, reading) for table in described}
            # The feed waits with the first row until it knows which tables begin again.
            self._host.wake()
            for table in described:
                if self._stopping.is_set():
                    return
                if standing is not None and table is described[-1]:
                    # What follows the last table's reading needs the cores of the workers.
                    reading.release = standing.close
                self._scan_table(table, reading, parts.pop(table.name))
                self._host.wake()

    def _waits_for_spark(self) -> bool:
        """Whether jobs are certain to read the tables, or to write what is read."""
        host = self._host
        if host.needs_spark:
            return True
        asked = host.asked_engine is EngineOption.SPARK
        return asked and not spark_hindrance(host, host.sinks.new_sink())

    def _wants_workers(self, source: Source) -> bool:
        """Whether workers of Spark are to hold the snapshot, which they must do from its begin on,
        before anything is known of the tables' parts."""
        host = self._host
        repairs = all(table.repair is not None for table in self.tables.values())
        if source.parts_travel or repairs:
            return False
        sink = host.sinks.new_sink()
        if spark_hindrance(host, sink):
            return False
        state = host.spark.state()
        rows, auto = state.least_job_rows, host.asked_engine is EngineOption.AUTO
        if auto:
            rows = sum(t.rows_estimate for t in source.tables() if t.name in self.tables)
        if auto and host.needs_spark:
            wanted = rows >= host.sizes.small_scan_rows
        else:
            work = Work(rows, state.cores - 1, loads=bool(sink.capabilities.loads_parts))
            wanted = choose_engine(host.asked_engine, work, state).spark
        return wanted and not host.spark.hindrance(self._stopping.is_set)

    @contextmanager
    def _workers(self, wanted: bool) -> Iterator[StandingWorkers | None]:
        if not wanted:
            yield None
            return
        spark = self._host.spark
        self._waits = "Spark"
        spark.session()
        with spark.occupied() as cores:
            if cores == 0:
                yield None
                return
            with StandingWorkers(spark, cores, self._group, self._clock) as workers:
                yield workers

    def _describe(self) -> list[TableScan]:
        """Read each table's present schema; a table that no longer exists fails, the others
        continue."""
        found = []
        for table in self.tables.values():
            if table.error is not None:
                continue
            try:
                shape = self._host.source_runtime.source.describe(
                    table.name.schema, table.name.name
                )
                self._host.recognise(shape)
                logged = self._host.source_runtime.tables.logged(shape)
                table.schema = self._host.intern_schema(logged)
                found.append(table)
            except ChangefeedError as error:
                if error.code is Code.SOURCE_UNREACHABLE:
                    raise
                table.error = error
        return found

    def _parts(self, snapshot: Snapshot, table: TableScan, reading: ScanWork) -> _Cuts:
        progress, schema = table.progress, table.schema
        if schema is None or self._stopping.is_set():
            return _Cuts()
        keys: KeyRange | KeySet = KeyRange(progress.values_from or None, progress.values_to or None)
        try:
            with about_table(table.name):
                if table.repair is not None and reading.why_rescan(progress, schema):
                    table.repair = None  # an ALTER since the statement that asked for it
                if table.repair is not None:
                    keys = KeySet(table.repair.keys)

                def cut(size: int) -> Sequence[ScanPart]:
                    return snapshot.parts(schema, size, keys=keys, partition=progress.partition)

                parts = cut(self._host.sizes.scan_part_bytes)
                whole = TableParts(parts, cut, snapshot.part_range, first=not table.backfill)
                rest = self._rest(snapshot, table, schema, reading)
        except TableError as failed:
            table.error = failed.error
            return _Cuts()
        table.total = sum(p.rows_estimate for p in whole.parts)
        table.goes_on = rest is not None
        return _Cuts(whole, rest)

    def _rest(
        self, snapshot: Snapshot, table: TableScan, schema: TableSchema, reading: ScanWork
    ) -> TableParts | None:
        """What earlier scans left of a table, if this image can complete it."""
        before, progress = table.before, table.progress
        if before is None or table.repair is not None or before.form != self._host.form(schema):
            return None
        if not reading.continues(schema):
            return None
        keys = KeyRange(progress.values_from or None, progress.values_to or None)

        def left(size: int) -> Sequence[ScanPart] | None:
            return snapshot.rest(
                schema,
                before.places,
                before.left,
                size,
                keys=keys,
                partition=progress.partition,
            )

        def cut(size: int) -> Sequence[ScanPart]:
            found = left(size)
            if found is None:
                raise table_changed(schema.table, "it was rewritten")
            return found

        parts = left(self._host.sizes.scan_part_bytes)
        return None if parts is None else TableParts(parts, cut, snapshot.part_range, before)

    def _scan_table(self, table: TableScan, reading: ScanWork, cuts: _Cuts) -> None:
        if table.error is not None:
            return
        if table.backfill:
            table.caught_up.wait()
        if table.schema is None or self._stopping.is_set() or table.dismissed:
            return
        before = table.before
        found = cuts.whole if before is None else cuts.rest
        rows, size = (0, 0) if before is None else (before.rows, before.bytes)
        table.rows, table.bytes = rows, size
        if found is None:
            raise AssertionError("the feed lets a table go on that this image does not complete")

        def progress(more: int, more_bytes: int) -> None:
            table.rows, table.bytes = rows + more, size + more_bytes
            self._host.wake()

        def keep(ledger: PartLedger) -> None:
            table.ledger = ledger

        try:
            with about_table(table.name):
                try:
                    if table.repair is None:
                        reading.read(table.schema, found, table.total, progress, keep)
                    else:
                        reading.repair(table.schema, found.parts, table.repair, progress)
                except ScanStopped:
                    return
        except TableError as failed:
            table.error = failed.error
            return
        if not self._stopping.is_set():
            table.done = True


@dataclass(frozen=True, slots=True)
class _Cuts:
    """All of a table, and what earlier scans left of it, if that is enough."""

    whole: TableParts | None = None
    rest: TableParts | None = None


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f}s"
    return f"{seconds / 60:.0f}m" if seconds < 5400 else f"{seconds / 3600:.1f}h"
