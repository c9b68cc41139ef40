"""Sinks whose rows are delivered by tasks of Spark, as those of a scan and of a backlog are.

A feed's marks come from the node, and its rows, where a job delivers them, from sink objects that
are pickled unopened, and opened, written, committed and closed by a task. :class:`SparkSink` is
such a feed's sink: everything but the rows goes to the object of this process. Workers import this
module.
"""

from __future__ import annotations

import itertools
import os
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from changefeed.encoding.plan import MessagePlan
from changefeed.feeds.chunks import Watermark
from changefeed.feeds.lanes import DeliveryForm, LaneDelivery, LaneRows
from changefeed.scan.admission import WriteBarrier
from changefeed.scan.table import WorkerDelivery
from changefeed.spark.executors import Deliverer
from changefeed.spark.session import NodeSpark
from changefeed.spark.tasks import Task, TaskResult, run_tasks
from changefeed_testing.sinks.conformance import Harness
from changefeed_testing.sinks.faulty import FaultySink
from sinks.base import Batch, Durability, Epoch, Receipt, Sink, SinkContext

#: How many tasks share the rows of a write.
TASKS = 2
#: Seconds that a stalled task waits for the test.
_PATIENCE = 60

_numbers = itertools.count(1)


@dataclass(frozen=True)
class Trouble:
    """What happens to each task between the first half of its rows and the second.

    Attributes:
        kind: ``die``: its process ends, at the first attempt; ``stall``: it waits for the test.
        folder: where the tasks leave notes: ``NUMBER`` has a byte for each attempt, and a task
            that stalls goes on when there is a file ``go``.
    """

    kind: str
    folder: Path

    def meet(self, number: int) -> None:
        """Called by task ``number`` when the first half of its rows is written."""
        file = self.folder / str(number)
        with file.open("ab") as out:
            out.write(b"x")
        if self.kind == "die" and file.stat().st_size == 1:
            os._exit(9)
        until = time.monotonic() + _PATIENCE
        while (
            self.kind == "stall" and not (self.folder / "go").exists() and time.monotonic() < until
        ):
            time.sleep(0.02)

    @property
    def attempts(self) -> list[int]:
        """How often each task that met it was tried."""
        return [file.stat().st_size for file in self.folder.iterdir() if file.name != "go"]


@dataclass(frozen=True)
class Part:
    """The messages of one task: two halves, so that something can happen between them."""

    messages: pa.Table
    trouble: Trouble | None

    def halves(self, number: int) -> Iterator[pa.Table]:
        """The messages in order; see :class:`Trouble`."""
        half = (self.messages.num_rows + 1) // 2
        if half:
            yield self.messages.slice(0, half)
            if self.trouble is not None:
                self.trouble.meet(number)
        if self.messages.num_rows > half:
            yield self.messages.slice(half)


def split(messages: pa.Table, trouble: Trouble | None) -> list[Part]:
    """A part for each task; all messages of a key are in one of them, in their order."""
    tasks = [zlib.crc32(key) % TASKS for key in messages["key"].to_pylist()]
    return [
        Part(messages.filter(pa.array([task == number for task in tasks])), trouble)
        for number in range(TASKS)
    ]


# ------------------------------------------------------------------------------- two ways


@dataclass
class ScanTask:
    """What a task of a scan does, with finished messages in place of those of rows it reads."""

    parts: Sequence[Part]
    delivery: WorkerDelivery

    def __call__(self, number: int, report: Callable[[int, int], None]) -> list[TaskResult]:
        """Deliver a part; see :class:`changefeed.spark.tasks.Task`."""
        batches = (
            batch for rows in self.parts[number].halves(number) for batch in rows.to_batches()
        )
        done = Deliverer(self.delivery)(number, batches)
        return [TaskResult(0, done.rows, done.bytes)]


@dataclass(kw_only=True)
class LaneTask(LaneDelivery):
    """What a task of a backlog does, with finished messages in place of those of a log's rows."""

    parts: Sequence[Part]

    def __call__(self, number: int, report: Callable[[int, int], None]) -> list[TaskResult]:
        """Deliver a part; see :class:`changefeed.spark.tasks.Task`."""
        return self.deliver(number, self._given(number), report)

    def _given(self, number: int) -> Iterator[LaneRows | Watermark]:
        ((schema, _),) = self.versions.items()
        for rows in self.parts[number].halves(number):
            yield LaneRows(rows, schema, frozenset())
        yield Watermark((schema.table,), self.upto)

    def messages(self, part: LaneRows) -> pa.Table:
        """They are finished."""
        return part.rows


#: Makes the task for a batch in parts, of an unopened sink, its context and a barrier's ticket.
Way = Callable[..., Task]


def as_scan(
    batch: Batch, parts: Sequence[Part], sink: Sink, context: SinkContext, ticket: Any
) -> Task:
    """A job as that of a scan."""
    delivery = WorkerDelivery(
        sink=sink,
        context=replace(context, scan=True),
        feed=batch.feed,
        epoch=batch.epoch,
        target=batch.target,
        schema=batch.schema,
        ticket=ticket,
    )
    return ScanTask(parts, delivery)


def as_lanes(
    batch: Batch, parts: Sequence[Part], sink: Sink, context: SinkContext, ticket: Any
) -> Task:
    """A job as that of a backlog."""
    schema, target = batch.schema, batch.target
    return LaneTask(
        count=len(parts),
        log=Path(),
        bounds={schema.table: batch.after},
        upto=batch.epoch.upto,
        slice_bytes=0,
        versions={schema: DeliveryForm(MessagePlan(schema, target.topic), schema, target)},
        feed=batch.feed,
        epoch=batch.epoch,
        context=context,
        sink=sink,
        ticket=ticket,
        parts=parts,
    )


# ------------------------------------------------------------------------------- the sink


class SparkSink(FaultySink):
    """A sink whose rows are written by jobs of Spark; they are durable when ``write`` returns.

    Attributes:
        trouble: what the tasks of the next writes meet.
        group: the Spark group of its jobs. :meth:`give_up` uses it up.
    """

    def __new__(cls, inner: Sink, *rest: object) -> SparkSink:
        made = super().__new__(cls, inner)
        assert isinstance(made, SparkSink)
        return made

    def __init__(self, inner: Sink, make: Callable[[], Sink], spark: NodeSpark, way: Way) -> None:
        """``make`` makes sinks for the tasks, of the same target as ``inner``."""
        super().__init__(inner)
        self.trouble: Trouble | None = None
        self.group = f"conformance {next(_numbers)}"
        self._make, self._spark, self._way = make, spark, way
        self._context: SinkContext | None = None
        self._barrier = WriteBarrier()

    def open(self, context: SinkContext) -> None:
        super().open(context)
        self._context = context

    def write(self, batch: Batch) -> Receipt:
        assert self._context is not None
        ticket = self._barrier.ticket(self._spark.address(), here=self._spark.local)
        parts = split(batch.rows, self.trouble)
        task = self._way(batch, parts, self._make(), self._context, ticket)
        done = run_tasks(
            self._spark, task, len(parts), group=self.group, on_progress=lambda rows, size: None
        )
        return Receipt(batch.partition, sum(d.rows for d in done), sum(d.bytes for d in done))

    def commit(self, epoch: Epoch, receipts: Sequence[Receipt]) -> Durability:
        # What tasks delivered, they committed.
        return Durability.DURABLE if receipts else super().commit(epoch, receipts)

    def abort(self, epoch: Epoch, receipts: Sequence[Receipt]) -> None:
        super().abort(epoch, ())

    def give_up(self) -> None:
        """Cancel the jobs, from another thread than that of ``write``, and go on with others.

        When it returns no task of them writes any more.
        """
        self._spark.cancel(self.group)
        self._barrier.close()
        self._barrier = WriteBarrier()
        self.group = f"conformance {next(_numbers)}"

    def close(self) -> None:
        self._barrier.close()
        super().close()


class SparkHarness:
    """A harness of the list of sinks whose sinks are :class:`SparkSink`."""

    def __init__(self, inner: Harness, spark: NodeSpark, way: Way) -> None:
        self._inner, self._spark, self._way = inner, spark, way
        self.never = inner.never

    def sink(self) -> SparkSink:
        """A new sink on the target."""
        return SparkSink(self._inner.sink(), self._inner.sink, self._spark, self._way)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
