"""Change rows into messages: a few without a Spark job, many with one.

Both ways run the same expressions (:mod:`changefeed.spark.envelope`) and yield rows of
:data:`changefeed.events.MESSAGE_SCHEMA`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from changefeed.formats.columns import as_messages, message_schema
from changefeed.schema import Form
from changefeed.shapes import Deletes, Envelope, Format
from changefeed.spark.plan import MessagePlan
from changefeed.spark.text import clean_columns

if TYPE_CHECKING:
    from changefeed.spark.fold import Prepared
    from changefeed.spark.segment import Segment
    from changefeed.spark.session import SparkEngine

#: Up to this many rows :func:`encode_small` is faster than a job, which costs 100 ms of CPU
#: and 60 to 80 ms of time whatever its size. See benchmarks/encode.py.
SMALL_ROWS = 5_000

#: A table of more bytes than this does not become part of a plan.
SMALL_BYTES = 32 * 2**20


def encode_small(
    engine: SparkEngine,
    table: pa.Table,
    plan: MessagePlan,
    clean: frozenset[str] | None = None,
    *,
    now_ns: int | None = None,
) -> pa.Table:
    """The messages of a few rows, in their order, without starting a Spark job.

    Args:
        engine: started or not; waits for it.
        table: rows of the log's schema.
        plan: what the messages look like.
        clean: columns whose text needs no escaping; None has a look.
        now_ns: time for the enriched envelope's ``ts_ns``; None is the machine's clock.

    Raises:
        ChangefeedError: CF4001 a value cannot be encoded, CF4002 Spark failed.
    """
    table = _wanted(table, plan)
    limit = _rows_per_fold(table)
    slices = [table.slice(start, limit) for start in range(0, table.num_rows, limit)]
    if not slices:
        return message_schema(plan).empty_table()
    return pa.concat_tables(_fold(engine, part, plan, clean, now_ns) for part in slices)


def _wanted(table: pa.Table, plan: MessagePlan) -> pa.Table:
    """Without the rows that are no messages; the key range is left to the JVM."""
    if plan.collapse:
        table = table.filter(table["last"])
    if plan.deletes is not Deletes.YES:
        is_delete = pc.equal(table["op"], "d")
        table = table.filter(is_delete if plan.deletes is Deletes.ONLY else pc.invert(is_delete))
    return table


def _rows_per_fold(table: pa.Table) -> int:
    if not table.num_rows:
        return SMALL_ROWS
    average = max(1, int(table.nbytes) // int(table.num_rows))
    return max(1, min(SMALL_ROWS, SMALL_BYTES // average))


def _fold(
    engine: SparkEngine,
    table: pa.Table,
    plan: MessagePlan,
    clean: frozenset[str] | None,
    now_ns: int | None,
) -> pa.Table:
    texts = text_inputs(plan)
    # Two variants of a plan, not one for each set of clean columns: building one costs more
    # than escaping saves on so few rows.
    all_clean = texts <= (clean_columns(table, texts) if clean is None else clean)
    with engine.use() as session:
        from changefeed.spark.fold import run

        prepared = engine.kept(
            (plan, "small", all_clean), lambda: _prepare(engine, plan, all_clean)
        )
        out = run(session, prepared, _inputs(table, prepared.inputs, now_ns), engine.scratch)
    if plan.key_from or plan.key_to:
        table = table.take(out["row"])
    schema = message_schema(plan)
    made = {name: out[name] for name in ("key", "value", "headers")}
    columns = [made[name] if name in made else table[name] for name in schema.names]
    rows = pa.table(columns, names=schema.names).combine_chunks().to_batches()
    return pa.Table.from_batches([as_messages(batch, schema) for batch in rows], schema)


def encode_big(
    engine: SparkEngine,
    table: pa.Table,
    plan: MessagePlan,
    clean: frozenset[str] | None = None,
    *,
    now_ns: int | None = None,
    group: str | None = None,
) -> pa.Table:
    """The messages of many rows in memory, in their order, by one Spark job on all cores.

    Arguments and errors are those of :func:`encode_small`; ``group`` is a name for
    :meth:`SparkEngine.cancel`. Costs about the messages' size in memory, twice.
    """
    if not table.num_rows:
        return message_schema(plan).empty_table()
    if clean is None:
        clean = clean_columns(table, text_inputs(plan))
    with engine.use(group) as session:
        from changefeed.spark.rows import from_table, messages

        with from_table(session, table, plan, engine.scratch, engine.cores) as rows:
            found = messages(rows, plan, clean, now_ns=now_ns).toArrow()
    return _ordered(found, plan)


def encode_files(
    engine: SparkEngine,
    segments: Sequence[Segment],
    plan: MessagePlan,
    clean: frozenset[str] = frozenset(),
    *,
    now_ns: int | None = None,
    group: str | None = None,
) -> pa.Table:
    """The messages of rows in files of the log, in the order of ``seq``; one Spark job."""
    if not segments:
        return message_schema(plan).empty_table()
    with engine.use(group) as session:
        from changefeed.spark.rows import from_segments, messages

        rows = from_segments(session, segments, plan)
        found = messages(rows, plan, clean, now_ns=now_ns).toArrow()
    return _ordered(found, plan)


def _ordered(found: pa.Table, plan: MessagePlan) -> pa.Table:
    """Rows by ``seq``. Spark keeps the order inside a task, not the order of tasks."""
    batches = [batch for batch in found.to_batches() if batch.num_rows]
    batches.sort(key=lambda batch: batch.column("seq")[0].as_py())
    schema = message_schema(plan)
    table = pa.Table.from_batches([as_messages(batch, schema) for batch in batches], schema)
    seq = table["seq"].to_numpy()
    if (seq[1:] < seq[:-1]).any():
        table = table.sort_by("seq")
    return table


def text_inputs(plan: MessagePlan) -> frozenset[str]:
    """The log columns among a plan's inputs that JSON may have to escape."""
    if plan.format is not Format.JSON:
        return frozenset()
    columns = plan.schema.columns
    return frozenset(n for n in plan.inputs if columns[int(n[1:])].form is Form.TEXT)


def _prepare(engine: SparkEngine, plan: MessagePlan, all_clean: bool) -> Prepared:
    from pyspark.sql import functions as F

    from changefeed.spark.envelope import expressions, key_range
    from changefeed.spark.fold import prepare
    from changefeed.spark.sides import NOW

    made = expressions(plan, text_inputs(plan) if all_clean else frozenset())
    log = plan.schema.log_schema()
    names = ["op", "wall", "logical", *plan.inputs]
    inputs = [pa.field("row", pa.int32()), *(pa.field(n, log.field(n).type) for n in names)]
    if plan.envelope is Envelope.ENRICHED:
        inputs.append(pa.field(NOW, pa.int64()))
    columns = [
        F.col("row"),
        made.key.alias("key"),
        made.value.alias("value"),
        made.headers.alias("headers"),
    ]
    ranges = key_range(plan, deletes=plan.deletes is not Deletes.NO)
    where = ranges[0] & ranges[1] if len(ranges) == 2 else ranges[0] if ranges else None
    return prepare(engine.session(), pa.schema(inputs), columns, where)


def _inputs(table: pa.Table, schema: pa.Schema, now_ns: int | None) -> pa.Table:
    rows = table.num_rows
    made = {
        "row": lambda: pa.array(range(rows), pa.int32()),
        "now": lambda: pa.repeat(pa.scalar(now_ns or time.time_ns(), pa.int64()), rows),
    }
    columns = [made[n]() if n in made else table[n] for n in schema.names]
    return pa.table(columns, schema=schema)
