"""Functions that run beside the data, in Spark's Python workers, and what they send back.

Arrow batches go in and out; nothing runs per row. A ChangefeedError raised there comes back
as itself (:mod:`changefeed.spark.failure`). Spark tries a failed task again, so a function
may meet the same rows twice, never miss any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa
from pyspark.sql import functions as F

from changefeed.errors import ChangefeedError
from changefeed.formats.columns import as_messages, message_schema
from changefeed.spark.failure import pack

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from changefeed.spark.plan import MessagePlan
    from changefeed.spark.session import SparkEngine


class Deliver(Protocol):
    """What takes the finished messages of one part; must pickle.

    Called once for a part (again when its task is tried again) with batches of the
    plan's :func:`~changefeed.formats.columns.message_schema`; returns rows and bytes, durably
    delivered.
    ``close`` is called in the same process after the last part.
    """

    def __call__(self, part: int, batches: Iterator[pa.RecordBatch]) -> tuple[int, int]: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Delivered:
    """What became of one part."""

    part: int
    rows: int
    bytes: int


RECEIPT = pa.schema([("part", pa.int32()), ("rows", pa.int64()), ("bytes", pa.int64())])
RECEIPT_DDL = "part int, rows bigint, bytes bigint"


class Deliverer:
    """Hands the messages of a task to ``deliver``; the task's number is the part's."""

    def __init__(
        self,
        deliver: Deliver,
        schema: pa.Schema,
        tell: Callable[[int, int, int], None] | None = None,
    ) -> None:
        self._deliver = deliver
        self._schema = schema
        self._tell = tell

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        part = context.partitionId() if context is not None else 0
        with errors_packed():
            try:
                rows, size = self._deliver(part, self._counted(part, batches))
            finally:
                self._deliver.close()
        yield pa.record_batch([[part], [rows], [size]], schema=RECEIPT)

    def _counted(self, part: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = size = 0
        for batch in batches:
            made = as_messages(batch, self._schema)
            yield made
            rows += made.num_rows
            size += made.nbytes
            if self._tell is not None:
                self._tell(part, rows, size)


@contextmanager
def errors_packed() -> Iterator[None]:
    """Raise a ChangefeedError in the form that survives the way through Spark."""
    try:
        yield
    except ChangefeedError as error:
        raise RuntimeError(pack(error)) from error


def deliver_on_executors(
    engine: SparkEngine,
    frame: DataFrame,
    plan: MessagePlan,
    deliver: Deliver,
    *,
    ordered: bool = True,
    group: str | None = None,
) -> list[Delivered]:
    """Deliver the messages of ``frame`` from the workers, in parallel.

    Args:
        engine: whose session made ``frame``.
        frame: see :func:`changefeed.spark.rows.messages`.
        plan: what the messages are made by.
        deliver: runs in the workers.
        ordered: rows of one key go to one task, in the order of ``seq`` (a shuffle). Without
            it each partition of ``frame`` is delivered as it is.
        group: name for :meth:`SparkEngine.cancel`.

    Raises:
        ChangefeedError: what ``deliver`` raised, or CF4002.
    """
    if ordered:
        frame = frame.repartition(engine.cores, "key").sortWithinPartitions(F.col("seq"))
    with engine.use(group):
        receipts = frame.mapInArrow(Deliverer(deliver, message_schema(plan)), RECEIPT_DDL).collect()
    return [Delivered(r["part"], r["rows"], r["bytes"]) for r in receipts]
