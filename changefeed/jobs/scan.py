"""The initial scan, and the scan again after a schema change: a consistent image of tables.

One thread beside the feed's own, so that other tables keep flowing. All tables of one scan
are read under one snapshot of the source and carry its timestamp. A table that is flowing
already (a backfill) is read only after its changes up to that timestamp were delivered, so a
consumer never sees an older version of a row after a newer one.

Small tables are read here; large ones by Spark, in parallel, part by part. A scan that broke
begins again for the tables that were not finished: consumers see repeats, never a hole. A row
that the broken scan delivered may be deleted before the next one, whose image says nothing of
it: so the instant of a scan is saved before its first row goes out, and the next scan of the
table comes after the changes since then, as a backfill does.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from changefeed.clock import Timestamp
from changefeed.errors import ChangefeedError
from changefeed.faults import fault_point
from changefeed.jobs.model import TableProgress
from changefeed.schema import TableName, TableSchema
from changefeed.sources.base import KeyRange, ScanPart, Snapshot
from changefeed.spark.scan import run_scan, scan_rows
from changefeed.telemetry import log
from sinks.base import Batch, Epoch, Receipt, Sink, SinkContext, Target

if TYPE_CHECKING:
    from changefeed.jobs.runner import FeedRunner

T = TypeVar("T")

#: Tables estimated below this are read by the node itself: a Spark job would cost more.
SMALL_ROWS = 20_000
#: Rows encoded in one go on the node.
BATCH_ROWS = 5_000


@dataclass
class TableScan:
    """One table of a running scan. ``done`` or ``error`` is set when it ended."""

    progress: TableProgress
    backfill: bool
    schema: TableSchema | None = None
    total: int = 0
    rows: int = 0
    bytes: int = 0
    done: bool = False
    error: ChangefeedError | None = None
    caught_up: threading.Event = field(default_factory=threading.Event)

    @property
    def name(self) -> TableName:
        return self.progress.table


class Scan(threading.Thread):
    """Scans tables of a feed; the feed's runner looks at :attr:`tables` and :attr:`at`."""

    def __init__(self, runner: FeedRunner, tables: Sequence[TableProgress]) -> None:
        super().__init__(name=f"scan-{runner.name}", daemon=True)
        self.tables = {t.table: TableScan(t, backfill=t.done_upto is not None) for t in tables}
        self.at: Timestamp | None = None
        self.error: ChangefeedError | None = None
        #: Set by the runner once :attr:`at` is durable in the progress of the tables.
        self.placed = threading.Event()
        self._runner = runner
        self._stopping = threading.Event()
        self._group = f"scan-{runner.job_id}-{id(self)}"
        self._epoch = 0
        self._began = 0.0

    def stop(self) -> None:
        """End soon: running Spark jobs are cancelled."""
        self._stopping.set()
        self.placed.set()
        for table in self.tables.values():
            table.caught_up.set()
        self._runner.engine.cancel(self._group)

    @property
    def group(self) -> str:
        """Name of the Spark job group of this scan."""
        return self._group

    def text(self) -> str:
        """How far the scan is and the time it still needs at its present pace."""
        tables = self.tables.values()
        done = sum(t.done for t in tables)
        rows, total = sum(t.rows for t in tables), sum(t.total for t in tables)
        share = min(0.99, rows / total) if total else 0.0
        text = f"initial scan: {done} of {len(tables)} tables, {rows} of about {total} rows"
        if share > 0.01 and self._began:
            left = (time.monotonic() - self._began) * (1 - share) / share
            text += f" ({share:.0%}, about {_duration(left)} left)"
        return text

    def run(self) -> None:
        try:
            self._scan()
        except ChangefeedError as error:
            self.error = error
        except Exception as failure:
            log.exception("scan of feed %s", self._runner.name)
            self.error = ChangefeedError("CF2201", f"the scan failed: {type(failure).__name__}")
        finally:
            self._runner.wake()

    def _scan(self) -> None:
        keeper = self._runner.keeper
        source = keeper.source
        # An open image holds back VACUUM at the source: nothing may wait for Spark's start then.
        self._runner.engine.session()
        # The image must be younger than the capture, or changes between them would be lost.
        keeper.wait_captured(self.tables, self._stopping)
        described = self._describe()
        if self._runner.promised is not None:
            # An idle source's image has the instant of the last frontier, which consumers may
            # have been told is complete.
            keeper.wait_above(self._runner.promised, self._stopping)
        with source.snapshot([t.schema for t in described if t.schema]) as snapshot:
            self.at = keeper.wait_position(snapshot.position, self._stopping)
            self._began = time.monotonic()
            self._runner.wake()
            fault_point("scan.after_snapshot")
            self.placed.wait()
            for table in described:
                if self._stopping.is_set():
                    return
                self._scan_table(snapshot, table)
                self._runner.wake()

    def _describe(self) -> list[TableScan]:
        """Find each table's present shape; one that is gone fails alone."""
        found = []
        for table in self.tables.values():
            try:
                shape = self._runner.keeper.source.describe(table.name.schema, table.name.name)
                self._runner.recognise(shape)
                table.schema = self._runner.catalog.intern_schema(shape)
                found.append(table)
            except ChangefeedError as error:
                if error.code.number == "CF2001":
                    raise
                table.error = error
        return found

    def _scan_table(self, snapshot: Snapshot, table: TableScan) -> None:
        if table.backfill:
            table.caught_up.wait()
        if table.schema is None or self._stopping.is_set():
            return
        progress = table.progress
        keys = KeyRange(progress.values_from or None, progress.values_to or None)
        try:
            parts = snapshot.parts(table.schema, keys=keys)
            table.total = sum(p.rows_estimate for p in parts)
            if len(parts) <= 1 and table.total < SMALL_ROWS:
                self._read_here(parts, table)
            else:
                self._read_by_spark(parts, table)
        except ChangefeedError as error:
            if error.code.number in _TABLE_ERRORS:
                table.error = error
                return
            raise
        if not self._stopping.is_set():
            table.done = True

    def _read_here(self, parts: Sequence[ScanPart], table: TableScan) -> None:
        schema, at = _known(table.schema), _known(self.at)
        sink = self._runner.outlet.for_scan()
        self._epoch += 1
        epoch = Epoch(self._epoch, at)
        receipts: list[Receipt] = []
        for number, batch in enumerate(_batches(parts)):
            if self._stopping.is_set():
                sink.abort(epoch, receipts)
                return
            messages = self._runner.encode_rows(scan_rows(schema, batch, at), schema)
            receipts.append(
                sink.write(
                    Batch(
                        feed=self._runner.name,
                        epoch=epoch,
                        partition=number,
                        target=self._runner.target(table.name),
                        schema=schema,
                        rows=messages,
                        frontier=at.previous(),
                        scan=True,
                    )
                )
            )
            table.rows += batch.num_rows
            table.bytes += receipts[-1].bytes
        sink.commit(epoch, receipts)

    def _read_by_spark(self, parts: Sequence[ScanPart], table: TableScan) -> None:
        schema, at = _known(table.schema), _known(self.at)
        runner = self._runner

        def progress(rows: int, size: int) -> None:
            table.rows, table.bytes = rows, size
            runner.wake()

        self._epoch += 1
        deliver = ScanDelivery(
            sink=runner.outlet.made_anew(),
            context=runner.outlet.context(),
            feed=runner.name,
            epoch=Epoch(self._epoch, at),
            target=runner.target(table.name),
            schema=schema,
        )
        run_scan(
            runner.engine,
            parts,
            plan=runner.plan(schema),
            at=at,
            deliver=deliver,
            on_driver=not runner.outlet.runs_in_executors,
            group=self._group,
            on_progress=progress,
            stopping=self._stopping.is_set,
        )


#: Errors that concern the one table that is read.
_TABLE_ERRORS = frozenset({"CF1101", "CF1302", "CF2202", "CF4001", "CF5003", "CF5006"})


@dataclass
class ScanDelivery:
    """Writes the finished messages of one part to the sink; runs where the part was read.

    It pickles with an unopened sink; each process that runs it opens the sink once.
    """

    sink: Sink
    context: SinkContext
    feed: str
    epoch: Epoch
    target: Target
    schema: TableSchema
    _opened: bool = False

    def __call__(self, part: int, batches: Iterator[pa.RecordBatch]) -> tuple[int, int]:
        """Deliver all messages of a part durably: rows and bytes."""
        if not self._opened:
            self.sink.open(self.context)
            self._opened = True
        receipts: list[Receipt] = []
        for rows in batches:
            receipts.append(
                self.sink.write(
                    Batch(
                        feed=self.feed,
                        epoch=self.epoch,
                        partition=part,
                        target=self.target,
                        schema=self.schema,
                        rows=rows,
                        frontier=self.epoch.upto.previous(),
                        scan=True,
                    )
                )
            )
        self.sink.commit(self.epoch, receipts)
        return sum(r.rows for r in receipts), sum(r.bytes for r in receipts)

    def close(self) -> None:
        """Let go of the sink."""
        if self._opened:
            self.sink.close()
            self._opened = False

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_opened": False}


def _batches(parts: Sequence[ScanPart]) -> Iterator[pa.RecordBatch]:
    for part in parts:
        for batch in part.read():
            for start in range(0, batch.num_rows, BATCH_ROWS):
                yield batch.slice(start, BATCH_ROWS)


def _duration(seconds: float) -> str:
    """``45s``, ``12m``, ``3.5h``: the size that fits."""
    if seconds < 90:
        return f"{seconds:.0f}s"
    return f"{seconds / 60:.0f}m" if seconds < 5400 else f"{seconds / 3600:.1f}h"


def _known(value: T | None) -> T:
    if value is None:
        raise AssertionError("set before the table is read")
    return value
