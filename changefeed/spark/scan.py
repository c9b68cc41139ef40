"""Initial scans: parts of a table are read, shaped and delivered by Spark in parallel.

One task a part, and no shuffle::

    part -> read() in a Python worker -> envelope in the JVM -> deliver() in a Python worker

Where a sink cannot run in workers, the messages of a few parts at a time come to the driver
and are delivered there. A part that fails is tried again by Spark: repeats, never a hole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from changefeed.clock import Timestamp
from changefeed.errors import ChangefeedError
from changefeed.formats.columns import as_messages, message_schema
from changefeed.messages.encode import FORMATS, encode_messages
from changefeed.schema import TableSchema
from changefeed.spark.plan import MessagePlan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from changefeed.spark.executors import Deliver, Delivered, Deliverer
    from changefeed.spark.session import SparkEngine


class Part(Protocol):
    """A piece of a table; must pickle. See :class:`changefeed.sources.base.ScanPart`."""

    def read(self) -> Iterator[pa.RecordBatch]:
        """The rows: columns ``a0..an`` in log form."""
        ...


def scan_rows(schema: TableSchema, batch: pa.RecordBatch | pa.Table, at: Timestamp) -> pa.Table:
    """Rows read by a scan (``a0..an``) as rows of the log, read at ``at``."""
    rows = batch.num_rows
    fixed = {
        "op": "r",
        "wall": at.wall,
        "logical": at.logical,
        "seq": 0,
        "ord": 0,
        "xid": 0,
        "commit_us": at.wall // 1_000,
        "last": True,
    }
    columns = []
    for field in schema.log_schema():
        if field.name in batch.schema.names:
            columns.append(batch.column(field.name))
        else:
            columns.append(pa.repeat(pa.scalar(fixed.get(field.name), field.type), rows))
    return pa.table(columns, schema=schema.log_schema())


def run_scan(
    engine: SparkEngine,
    parts: Sequence[Part],
    *,
    plan: MessagePlan,
    at: Timestamp,
    deliver: Deliver,
    on_driver: bool = False,
    group: str | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    stopping: Callable[[], bool] = lambda: False,
) -> list[Delivered]:
    """Read, encode and deliver all parts; returns when everything is delivered.

    Args:
        engine: started or not; waits for it.
        parts: what to read; each is one task and must fit its place in memory only batch by
            batch (``on_driver``: as a whole).
        plan: what the messages look like.
        at: timestamp of all rows.
        deliver: takes the messages of a part; pickles, unless ``on_driver``.
        on_driver: call ``deliver`` in this process.
        group: name for :meth:`SparkEngine.cancel`, which ends the scan.
        on_progress: told rows and bytes of all parts now and then, and at the end.
        stopping: asked when a job failed and before one starts; true ends quietly.

    Raises:
        ChangefeedError: what a part's ``read`` or ``deliver`` raised (after the last attempt),
            CF4001 a value cannot be encoded, CF4002 Spark failed.
    """
    run = _on_driver if on_driver else _on_executors
    delivered: list[Delivered] = []
    try:
        for done in run(engine, parts, plan, at, deliver, group, on_progress, stopping):
            delivered.append(done)
    except ChangefeedError:
        if not stopping():
            raise
    if on_progress is not None:
        on_progress(sum(d.rows for d in delivered), sum(d.bytes for d in delivered))
    return delivered


class _Reader:
    """Reads the part a task is for; the text columns named are made ready for JSON."""

    def __init__(self, parts: Sequence[Part], columns: Sequence[str], texts: frozenset[str]):
        self._parts = parts
        self._columns = columns
        self._texts = texts

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        from changefeed.spark.executors import errors_packed

        with errors_packed():
            for batch in batches:
                for number in batch.column("id").to_pylist():
                    for rows in self._parts[number].read():
                        yield self._shaped(rows, number)

    def _shaped(self, rows: pa.RecordBatch, number: int) -> pa.RecordBatch:
        from changefeed.spark.text import escaped

        columns = {name: rows.column(name) for name in self._columns}
        for name in self._texts:
            columns[name] = escaped(columns[name])
        columns["part"] = pa.repeat(pa.scalar(number, pa.int32()), rows.num_rows)
        return pa.RecordBatch.from_pydict(columns)


class _Chain:
    """Reads the part a task is for, makes its messages and delivers them, all in the worker."""

    def __init__(
        self, parts: Sequence[Part], plan: MessagePlan, at: Timestamp, deliver: Deliverer
    ) -> None:
        self._parts = parts
        self._plan = plan
        self._at = at
        self._deliver = deliver

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        return self._deliver(self._messages(batches))

    def _messages(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column("id").to_pylist():
                for rows in self._parts[number].read():
                    table = scan_rows(self._plan.schema, rows, self._at)
                    yield from encode_messages(table, self._plan, scan=True).to_batches()


class _RowReader:
    """Reads the part a task is for as rows of the log, and says how far it is."""

    def __init__(
        self,
        parts: Sequence[Part],
        shape: Callable[[pa.RecordBatch], pa.Table],
        tell: Callable[[int, int, int], None],
    ):
        self._parts = parts
        self._shape = shape
        self._tell = tell

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        from changefeed.spark.executors import errors_packed

        with errors_packed():
            for batch in batches:
                for number in batch.column("id").to_pylist():
                    yield from self._read(number)

    def _read(self, number: int) -> Iterator[pa.RecordBatch]:
        rows = size = 0
        for read in self._parts[number].read():
            table = self._shape(read)
            yield from table.to_batches()
            rows, size = rows + table.num_rows, size + table.nbytes
            self._tell(number, rows, size)


@contextmanager
def row_frame(
    engine: SparkEngine,
    parts: Sequence[Part],
    *,
    schema: TableSchema,
    shape: Callable[[pa.RecordBatch], pa.Table],
    group: str | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Iterator[DataFrame]:
    """The rows of all parts as a lazy DataFrame, one partition each, while the block lasts.

    Args:
        engine: started or not; waits for it.
        parts: what is read when an action runs.
        schema: the shape of the rows: the DataFrame's is ``schema.log_schema()``.
        shape: what is read -> rows of that schema; pickles.
        group: name for :meth:`SparkEngine.cancel` of the actions of this thread.
        on_progress: told rows and bytes of all parts now and then.

    Raises:
        ChangefeedError: what an action in the block met: of a part's ``read``, or CF4002.
    """
    with engine.use(group) as session:
        from pyspark.sql.pandas.types import from_arrow_schema

        from changefeed.spark.progress import Listener

        host = session.conf.get("spark.driver.host") or "127.0.0.1"
        with Listener(on_progress or (lambda rows, size: None), host) as tell:
            # No part, no row: a range must have a partition all the same.
            numbers = session.range(len(parts), numPartitions=max(1, len(parts)))
            yield numbers.mapInArrow(
                _RowReader(parts, shape, tell), from_arrow_schema(schema.log_schema())
            )


def _frame(
    session: SparkSession, parts: Sequence[Part], plan: MessagePlan, at: Timestamp
) -> DataFrame:
    """The messages of the parts, one partition each, with the part's number."""
    from pyspark.sql import functions as F
    from pyspark.sql.pandas.types import from_arrow_schema

    from changefeed.spark.encode import text_inputs
    from changefeed.spark.rows import messages

    log = plan.schema.log_schema()
    columns = [name for name in plan.inputs if name.startswith("a")]
    # Escaping here is a few passes of Arrow over a batch, and none over a clean one; in the
    # JVM it is a pattern match per value. Keys that are compared must stay as they are.
    compared = {f"a{i}" for i in plan.schema.key} if plan.key_from or plan.key_to else set()
    texts = text_inputs(plan).intersection(columns) - compared
    read = pa.schema([*(log.field(name) for name in columns), pa.field("part", pa.int32())])
    rows = session.range(len(parts), numPartitions=len(parts)).mapInArrow(
        _Reader(parts, columns, texts), from_arrow_schema(read)
    )
    rows = rows.withColumns(
        {
            "op": F.lit("r"),
            "wall": F.lit(at.wall).cast("long"),
            "logical": F.lit(at.logical).cast("int"),
            "seq": F.lit(0).cast("long"),
        }
    )
    return messages(rows, plan, texts, scan=True, also=["part"])


def _on_executors(
    engine: SparkEngine,
    parts: Sequence[Part],
    plan: MessagePlan,
    at: Timestamp,
    deliver: Deliver,
    group: str | None,
    on_progress: Callable[[int, int], None] | None,
    stopping: Callable[[], bool],
) -> Iterator[Delivered]:
    if not parts or stopping():
        return
    with engine.use(group) as session:
        from changefeed.spark.executors import RECEIPT_DDL, Delivered, Deliverer
        from changefeed.spark.progress import Listener

        host = session.conf.get("spark.driver.host") or "127.0.0.1"
        with Listener(on_progress or (lambda rows, size: None), host) as tell:
            deliverer = Deliverer(deliver, message_schema(plan), tell)
            if plan.format in FORMATS:
                numbers = session.range(len(parts), numPartitions=len(parts))
                made = numbers.mapInArrow(_Chain(parts, plan, at, deliverer), RECEIPT_DDL)
            else:
                made = _frame(session, parts, plan, at).mapInArrow(deliverer, RECEIPT_DDL)
            receipts = made.collect()
    for r in receipts:
        yield Delivered(r["part"], r["rows"], r["bytes"])


def _on_driver(
    engine: SparkEngine,
    parts: Sequence[Part],
    plan: MessagePlan,
    at: Timestamp,
    deliver: Deliver,
    group: str | None,
    on_progress: Callable[[int, int], None] | None,
    stopping: Callable[[], bool],
) -> Iterator[Delivered]:
    """As many parts at a time as there are cores: that much is in memory."""
    total = size = 0
    try:
        for first in range(0, len(parts), engine.cores):
            if stopping():
                return
            with engine.use(group) as session:
                from changefeed.spark.executors import Delivered

                chosen = parts[first : first + engine.cores]
                found = _frame(session, chosen, plan, at).toArrow()
            for number, rows in enumerate(_by_part(found, plan, len(chosen)), first):
                done = Delivered(number, *deliver(number, iter(rows)))
                total, size = total + done.rows, size + done.bytes
                if on_progress is not None:
                    on_progress(total, size)
                yield done
    finally:
        deliver.close()


def _by_part(found: pa.Table, plan: MessagePlan, parts: int) -> list[list[pa.RecordBatch]]:
    """The batches of each part: no batch of Spark's spans partitions."""
    schema = message_schema(plan)
    out: list[list[pa.RecordBatch]] = [[] for _ in range(parts)]
    for batch in found.to_batches():
        if batch.num_rows:
            out[batch.column("part")[0].as_py()].append(as_messages(batch, schema))
    return out
