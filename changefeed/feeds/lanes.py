"""A backlog in lanes: each key belongs to one lane, and a lane delivers its rows in log order.

So the lanes of a range of the log run at the same time, in as many processes, and no consumer sees
two changes of one row in another order than the log's. A lane reads the whole range and keeps the
rows that are its own: no shuffle, and no row passes through Spark's JVM. What reading costs more
is less than a shuffle of the rows (``docs/decisions/bulk-work.md``).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.capture.growing_log import LogAccess
from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.schema import TableName, TableSchema
from changefeed.encoding.encode import encode_messages
from changefeed.encoding.plan import MessagePlan
from changefeed.feeds.chunks import Chunk, ControlItem, Watermark, items
from changefeed.log import LogReader
from changefeed.scan.admission import Admission, AdmissionTicket, deliver_once
from changefeed.spark.tasks import TaskResult
from sinks.base import Batch, Epoch, Receipt, Sink, SinkContext, Target, require_durable

_Hash = npt.NDArray[np.uint64]

#: Odd numbers that spread neighbouring values (from the golden ratio, as in Knuth's multiplicative
#: hashing, The Art of Computer Programming 6.4).
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_TOP = np.uint64(32)
#: Weights of the bytes of a text, by place: of two texts of the same bytes in another order the
#: hashes differ.
_WEIGHTS = np.array(
    [pow(0x9E3779B97F4A7C15, n, 1 << 64) | 1 for n in range(1, 257)], dtype=np.uint64
)


def lane_of(
    rows: pa.Table, schema: TableSchema, lanes: int, key: Sequence[int] | None = None
) -> npt.NDArray[np.int64]:
    """The lane of each row of a table's log: equal keys have one lane.

    ``key``: positions of the columns of the key; None is the table's.

    A table without a key is one lane as a whole: nothing else keeps equal rows in order.
    """
    if schema.keyless:
        lane = zlib.crc32(str(schema.table).encode()) % lanes
        return np.full(rows.num_rows, lane, dtype=np.int64)
    total = np.zeros(rows.num_rows, dtype=np.uint64)
    # A delete has its key in the row before it, and no row after it.
    gone = pc.equal(rows["op"], "d")
    for ordinal in schema.key if key is None else key:
        column = rows[f"a{ordinal}"]
        if f"b{ordinal}" in rows.schema.names:
            column = pc.if_else(gone, rows[f"b{ordinal}"], column)
        column = column.combine_chunks()
        total = total * _WEIGHTS[0] + _hashed(column)
    mixed = (total * _SPREAD) >> _TOP
    return (mixed % np.uint64(lanes)).astype(np.int64)


def _hashed(column: pa.Array) -> _Hash:
    if pa.types.is_string(column.type):
        return _of_texts(column)
    numbers = column.fill_null(False if pa.types.is_boolean(column.type) else 0)
    return np.asarray(numbers.to_numpy(zero_copy_only=False)).astype(np.int64).view(np.uint64)


def _of_texts(column: pa.Array) -> _Hash:
    _, offsets, data = column.buffers()
    count = len(column)
    hashed = np.zeros(count, dtype=np.uint64)
    if data is None or not count:
        return hashed
    ends = np.frombuffer(offsets, dtype=np.int32)[column.offset : column.offset + count + 1]
    first, last = int(ends[0]), int(ends[-1])
    values = np.frombuffer(data, dtype=np.uint8)[first:last]
    starts = (ends[:-1] - first).astype(np.int64)
    sizes = np.diff(ends).astype(np.int64)
    places = np.arange(last - first, dtype=np.int64) - np.repeat(starts, sizes)
    weighted = (values.astype(np.uint64) + np.uint64(1)) * _WEIGHTS[places & 255]
    full = sizes > 0
    if full.any():
        hashed[full] = np.add.reduceat(weighted, starts[full])
    return hashed


@dataclass(frozen=True, slots=True)
class DeliveryForm:
    """How the rows of one version of a table are delivered.

    Attributes:
        plan: how they become messages, with the ids of a schema registry.
        seen: the shape the sink sees.
        target: the table as the sink sees it.
    """

    plan: MessagePlan
    seen: TableSchema
    target: Target


@dataclass(frozen=True, slots=True)
class LaneRows:
    """Rows of one lane, of one table and version, in order.

    Attributes:
        clean: see :attr:`.chunks.Chunk.clean`.
    """

    rows: pa.Table
    schema: TableSchema
    clean: frozenset[str]


@dataclass
class LaneDelivery:
    """Delivers a range of the log without control events; one lane a call. Pickles with an unopened
    sink.

    Attributes:
        log: directory of the change log.
        bounds: the tables, each with the timestamp above which its changes are wanted.
        slice_bytes: how much of the log is in memory at once.
        versions: how the rows of each version are delivered.
        feed, epoch, context: for the sink.
        ticket: the way in: one attempt of a lane delivers at a time, and none of a delivery that
            is over.
    """

    count: int
    log: Path
    bounds: Mapping[TableName, Timestamp]
    upto: Timestamp
    slice_bytes: int
    versions: Mapping[TableSchema, DeliveryForm]
    feed: str
    epoch: Epoch
    context: SinkContext
    sink: Sink
    ticket: AdmissionTicket

    def __call__(self, number: int, report: Callable[[int, int], None]) -> list[TaskResult]:
        """Deliver lane ``number`` durably; what it delivered of each table, in ``bounds``' order.

        Raises:
            ChangefeedError: the log or the sink failed; CF2201 the delivery is no longer wanted.
        """
        return self.deliver(number, self._of_log(number), report)

    def deliver(
        self, number: int, lane: Iterator[LaneRows | Watermark], report: Callable[[int, int], None]
    ) -> list[TaskResult]:
        """Deliver the rows of lane ``number``; see :meth:`__call__`."""

        def deliver(admission: Admission) -> list[list[int]]:
            delivered = self._deliver(admission, number, lane, report)
            return [[d.item, d.rows, d.bytes] for d in delivered]

        done = deliver_once(self.ticket, number, self.sink, self.context, deliver)
        return [TaskResult(*fields) for fields in done]

    def _deliver(
        self,
        admission: Admission,
        number: int,
        lane: Iterator[LaneRows | Watermark],
        report: Callable[[int, int], None],
    ) -> list[TaskResult]:
        done = {table: TaskResult(item, 0, 0) for item, table in enumerate(self.bounds)}
        receipts: list[Receipt] = []

        def commit() -> None:
            admission.check()
            require_durable(self.sink.commit(self.epoch, receipts))
            receipts.clear()
            report(*_sums(done))

        for item in lane:
            if isinstance(item, Watermark):
                if receipts and sum(r.bytes for r in receipts) >= self.sink.pacing().bytes:
                    commit()
                continue
            admission.check()
            receipt = self._write(item, number)
            if receipt is not None:
                receipts.append(receipt)
                table = item.schema.table
                before = done[table]
                done[table] = TaskResult(
                    before.item, before.rows + receipt.rows, before.bytes + receipt.bytes
                )
        if receipts:
            commit()
        return [d for d in done.values() if d.rows]

    def _of_log(self, number: int) -> Iterator[LaneRows | Watermark]:
        try:
            opened = LogReader(self.log, cache_bytes=0)
        except PermissionError as cause:
            raise _unseen("a Spark worker may not read the change log") from cause
        with opened as log:
            self._check_reach(log)
            for item in self.items(log):
                if isinstance(item, Watermark):
                    yield item
                    continue
                rows = item.load()
                mine = self.split(rows, item.schema) == number
                if mine.any():
                    rows = rows.filter(pa.array(mine))
                    yield LaneRows(rows, item.schema, item.clean)

    def split(self, rows: pa.Table, schema: TableSchema) -> npt.NDArray[np.int64]:
        """The lane of each of the rows."""
        return lane_of(rows, schema, self.count, self.versions[schema].plan.ordered_by)

    def items(self, log: LogAccess) -> Iterator[Chunk | Watermark]:
        """What all lanes together deliver.

        Raises:
            ChangefeedError: the log failed.
        """
        for item in items(log, self.bounds, self.upto, self.slice_bytes):
            if isinstance(item, ControlItem):
                raise ChangefeedError(
                    Code.INTERNAL_ERROR,
                    f"the change log has a control event of {item.table} inside a lane's range",
                )
            if isinstance(item, Chunk | Watermark):
                yield item

    def _check_reach(self, log: LogReader) -> None:
        frontier = log.frontier
        if frontier is None or frontier.at < self.upto:
            raise _unseen(
                f"the change log ends at {frontier.at if frontier else 'nothing'} for a Spark "
                f"worker, and the node has it up to {self.upto}"
            )

    def messages(self, part: LaneRows) -> pa.Table:
        """The messages of rows of a lane, in order."""
        return encode_messages(part.rows, self.versions[part.schema].plan, part.clean)

    def _write(self, part: LaneRows, number: int) -> Receipt | None:
        its = self.versions[part.schema]
        messages = self.messages(part)
        if not messages.num_rows:
            return None
        return self.sink.write(
            Batch(
                feed=self.feed,
                epoch=self.epoch,
                partition=number,
                target=its.target,
                schema=its.seen,
                rows=messages,
                # Not the slice's: all lanes together, and an attempt that reads other slices, name
                # the same beginning.
                after=self.bounds[part.schema.table],
            )
        )


def _sums(done: Mapping[TableName, TaskResult]) -> tuple[int, int]:
    return sum(d.rows for d in done.values()), sum(d.bytes for d in done.values())


def _unseen(message: str) -> ChangefeedError:
    return ChangefeedError(
        Code.LOG_DAMAGED,
        message,
        hint="let all machines see the same files of the state directory, name a place that they "
        "reach with --staging, or set engine = 'driver'.",
    )
