"""Initial scans by Spark: parts of a table are read, converted and delivered in parallel.

No shuffle::

    messages    part -> read() -> encoded -> deliver(), all in one Python worker
    typed rows  part -> read() in a Python worker -> what the sink's own action does in the JVM
    files       part -> read() -> a file of the sink, all in one Python worker; the node loads it

A part is a task of a job, which Spark retries. The parts of a snapshot that workers hold are
divided among these workers (:mod:`changefeed.spark.standing`); a part whose worker was lost goes to
another one. So messages may be repeated, but none is lost. Typed rows such workers write to files,
one per attempt at a part, and the sink's action reads those that are complete.
"""

from __future__ import annotations

import functools
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError
from changefeed.core.log_rows import scan_rows
from changefeed.core.schema import TableSchema
from changefeed.core.spark_jobs import JobGroup
from changefeed.encoding.encode import encode_messages
from changefeed.encoding.plan import MessagePlan
from changefeed.sources.base import ScanWorker
from changefeed.spark.executors import (
    RECEIPT,
    RECEIPT_DDL,
    Deliverer,
    PartDelivery,
    PartResult,
    errors_packed,
)
from changefeed.spark.internals.arrow_types import spark_schema
from changefeed.spark.progress import Listener, driver_host
from changefeed.spark.sealed import sealed
from changefeed.spark.staging import ArrowFiles
from changefeed.spark.staging_place import StagingPlace
from changefeed.spark.standing import LostWorker
from sinks.base import PartWriter, Receipt

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from changefeed.spark.session import NodeSpark

R = TypeVar("R")


class ReadablePart(Protocol):
    """A part of a table; must be picklable. See :class:`changefeed.sources.base.ScanPart`."""

    def read(self) -> Iterator[pa.RecordBatch]:
        """The rows: columns ``a0..an`` in log form."""
        ...


def run_scan(
    spark: NodeSpark,
    parts: Sequence[ReadablePart],
    *,
    plan: MessagePlan,
    at: Timestamp,
    deliver: PartDelivery,
    group: JobGroup | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    on_durable: Callable[[int, int, int], None] = lambda part, rows, size: None,
    stopping: Callable[[], bool] = lambda: False,
    workers: Sequence[ScanWorker] = (),
) -> list[PartResult]:
    """Read, encode and deliver all parts; returns when everything is delivered.

    Args:
        spark: started or not; waits for it.
        parts: what to read, only one batch of each at a time in memory.
        at: timestamp of all rows.
        deliver: takes the messages of a part; pickles.
        group: name for :meth:`NodeSpark.cancel`, which ends the scan.
        on_progress: takes rows and bytes of all parts, now and then and at the end.
        on_durable: called with number, rows and bytes of a part when its rows are durable; a call
            may get lost.
        stopping: asked when the job failed and before it starts; true ends quietly.
        workers: those who hold the snapshot of the parts; none: any process can read them, and each
            is a task of a job.

    Raises:
        ChangefeedError: what a part's ``read`` or ``deliver`` raised (after the last attempt),
            CF4001 a value cannot be encoded, CF4002 Spark failed.
    """
    tell = on_progress or (lambda rows, size: None)
    delivered: list[PartResult] = []
    try:
        if parts and not stopping():
            with spark.use(group) as session:
                host = driver_host(session)
                with Listener(tell, host, on_durable=on_durable) as report:
                    work = _PartWork(plan, at, Deliverer(deliver, report))
                    if workers:
                        delivered = _divided(workers, parts, work)
                    else:
                        delivered = _tasks(session, host, parts, work)
    except ChangefeedError:
        if not stopping():
            raise
    tell(sum(d.rows for d in delivered), sum(d.bytes for d in delivered))
    return delivered


@dataclass
class _PartWork:
    """Reads, encodes and delivers a part, in the process that is called."""

    plan: MessagePlan
    at: Timestamp
    deliver: Deliverer

    def __call__(self, number: int, part: ReadablePart) -> PartResult:
        return self.deliver(number, self._messages(part))

    def _messages(self, part: ReadablePart) -> Iterator[pa.RecordBatch]:
        for rows in part.read():
            table = scan_rows(self.plan.schema, rows, self.at)
            yield from encode_messages(table, self.plan, scan=True).to_batches()


class _Task:
    def __init__(
        self, parts: Sequence[ReadablePart], work: Callable[[int, ReadablePart], PartResult]
    ) -> None:
        self._parts = parts
        self._work = work

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column("id").to_pylist():
                with errors_packed():
                    done = self._work(number, self._parts[number])
                values = [[done.part], [done.rows], [done.bytes], [done.staged]]
                yield pa.record_batch(values, schema=RECEIPT)


def _tasks(
    session: SparkSession,
    host: str,
    parts: Sequence[ReadablePart],
    work: Callable[[int, ReadablePart], PartResult],
) -> list[PartResult]:
    numbers = session.range(len(parts), numPartitions=len(parts))
    with sealed(_Task(parts, work), host) as task:
        receipts = numbers.mapInArrow(task, RECEIPT_DDL).collect()
    return [PartResult(r["part"], r["rows"], r["bytes"], tuple(r["staged"])) for r in receipts]


def _divided(
    workers: Sequence[ScanWorker],
    parts: Sequence[ReadablePart],
    work: Callable[[int, ReadablePart], R],
) -> list[R]:
    """Returns, or raises, when no worker delivers any longer.

    Raises:
        ChangefeedError: of the first part that failed; CF2201 all workers were lost.
    """
    left = deque(enumerate(parts))
    done: list[R] = []

    def keep_busy(worker: ScanWorker) -> None:
        while left:
            try:
                number, part = left.popleft()
            except IndexError:
                return
            try:
                done.append(worker.call(functools.partial(_call, work, number, part)))
            except LostWorker:
                left.append((number, part))
                return
            except BaseException:
                left.clear()
                raise

    while left:
        present = [worker for worker in workers if not worker.lost]
        if not present:
            raise LostWorker
        with ThreadPoolExecutor(len(present), thread_name_prefix="scan-part") as pool:
            list(pool.map(keep_busy, present))
    return done


def _call(
    work: Callable[[int, ReadablePart], R], number: int, part: ReadablePart, kept: ExitStack
) -> R:
    return work(number, part)


class _RowReader:
    def __init__(
        self,
        parts: Sequence[ReadablePart],
        shape: Callable[[pa.RecordBatch], pa.Table],
        tell: Callable[[int, int, int], None],
    ):
        self._parts = parts
        self._shape = shape
        self._tell = tell

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        with errors_packed():
            for batch in batches:
                for number in batch.column("id").to_pylist():
                    for table in _shaped(number, self._parts[number], self._shape, self._tell):
                        yield from table.to_batches()


def _shaped(
    number: int,
    part: ReadablePart,
    shape: Callable[[pa.RecordBatch], pa.Table],
    tell: Callable[[int, int, int], None],
) -> Iterator[pa.Table]:
    rows = size = 0
    for read in part.read():
        table = shape(read)
        yield table
        rows, size = rows + table.num_rows, size + table.nbytes
        tell(number, rows, size)


@dataclass
class _SinkFile:
    """Writes the rows of a part to a file of the sink, in the process that is called."""

    write: PartWriter
    shape: Callable[[pa.RecordBatch], pa.Table]
    tell: Callable[[int, int, int], None]

    def __call__(self, number: int, part: ReadablePart) -> PartResult:
        done = self.write(number, _shaped(number, part, self.shape, self.tell))
        return PartResult(number, done.rows, done.bytes, done.staged)


def write_parts(
    spark: NodeSpark,
    parts: Sequence[ReadablePart],
    write: PartWriter,
    *,
    shape: Callable[[pa.RecordBatch], pa.Table],
    group: JobGroup | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    workers: Sequence[ScanWorker] = (),
) -> list[Receipt]:
    """Write each part to a file of the sink; one receipt of each.

    Args:
        spark: started or not; waits for it.
        shape: what is read -> rows of the sink; pickles.
        group: name for :meth:`NodeSpark.cancel`.
        on_progress: takes rows and bytes of all parts now and then.
        workers: as of :func:`run_scan`.

    Raises:
        ChangefeedError: of the first part that failed; CF2201 all workers were lost; CF4002.
    """
    if not parts:
        return []
    with spark.use(group) as session:
        host = driver_host(session)
        with Listener(on_progress or (lambda rows, size: None), host) as tell:
            work = _SinkFile(write, shape, tell)
            if workers:
                done = _divided(workers, parts, work)
            else:
                done = _tasks(session, host, parts, work)
    return [Receipt(one.part, one.rows, one.bytes, one.staged) for one in done]


@dataclass
class _PartFile:
    """Writes the rows of a part to a file, in the process that is called; returns its name."""

    folder: str
    place: StagingPlace
    schema: pa.Schema
    shape: Callable[[pa.RecordBatch], pa.Table]
    tell: Callable[[int, int, int], None]

    def __call__(self, number: int, part: ReadablePart) -> str:
        # A worker that counts as lost may still write: each attempt has a file of its own.
        name = f"{self.folder}/{number:08d}-{uuid.uuid4().hex}.parquet"
        files = ArrowFiles(self.place)
        files.make(self.folder)
        with (
            files.create(name) as out,
            pq.ParquetWriter(
                out,
                self.schema,
                compression="zstd",
                compression_level=1,
                use_dictionary=False,
                write_page_checksum=True,
            ) as writer,
        ):
            for table in _shaped(number, part, self.shape, self.tell):
                writer.write_table(table)
        return name


@contextmanager
def row_frame(
    spark: NodeSpark,
    parts: Sequence[ReadablePart],
    *,
    schema: TableSchema,
    shape: Callable[[pa.RecordBatch], pa.Table],
    group: JobGroup | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Iterator[DataFrame]:
    """The rows of all parts as a lazy DataFrame, one partition each, while the block lasts.

    Args:
        spark: started or not; waits for it.
        parts: what is read when an action runs.
        schema: the shape of the rows: the DataFrame's is ``schema.log_schema()``.
        shape: what is read -> rows of that schema; pickles.
        group: name for :meth:`NodeSpark.cancel` of the actions of this thread.
        on_progress: takes rows and bytes of all parts now and then.

    Raises:
        ChangefeedError: what an action in the block met: of a part's ``read``, or CF4002.
    """
    with spark.use(group) as session:
        host = driver_host(session)
        with (
            Listener(on_progress or (lambda rows, size: None), host) as tell,
            sealed(_RowReader(parts, shape, tell), host) as task,
        ):
            # No part, no row: a range must have a partition all the same.
            numbers = session.range(len(parts), numPartitions=max(1, len(parts)))
            yield numbers.mapInArrow(task, spark_schema(schema.log_schema()))


@contextmanager
def stored_frame(
    spark: NodeSpark,
    parts: Sequence[ReadablePart],
    *,
    schema: TableSchema,
    shape: Callable[[pa.RecordBatch], pa.Table],
    workers: Sequence[ScanWorker],
    folder: Path,
    release: Callable[[], None] = lambda: None,
    group: JobGroup | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Iterator[DataFrame]:
    """As :func:`row_frame`, of parts that only ``workers`` can read: once the block begins, they
    have read everything.

    Args:
        folder: for their files, if there is no staging place.
        release: called when they have read everything.

    Raises:
        ChangefeedError: of the first part that failed; CF2201 all workers were lost; CF4002.
    """
    form = schema.log_schema()
    with spark.shared_folder(folder) as name, spark.use(group) as session:
        host = driver_host(session)
        with Listener(on_progress or (lambda rows, size: None), host) as tell:
            work = _PartFile(name, spark.shared_place, form, shape, tell)
            names = _divided(workers, parts, work)
        release()
        columns = spark_schema(form)
        if names:
            yield session.read.schema(columns).parquet(*names)
        else:
            yield session.createDataFrame([], columns)
