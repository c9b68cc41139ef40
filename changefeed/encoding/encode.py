"""Rows of the log into rows of :data:`changefeed.core.arrow.MESSAGE_SCHEMA`."""

from __future__ import annotations

import time

import pyarrow as pa
import pyarrow.compute as pc

from changefeed.core.formats import TRAITS
from changefeed.core.logical_messages import BYTES, CONTENT
from changefeed.core.shapes import Envelope
from changefeed.core.types import Form
from changefeed.encoding.debezium.messages import with_tombstones
from changefeed.encoding.formats import FORMATS, message_schema
from changefeed.encoding.images import TokenRows
from changefeed.encoding.json_envelope import headers
from changefeed.encoding.json_tokens import clean_columns
from changefeed.encoding.plan import MessagePlan
from changefeed.encoding.select import wanted_rows
from changefeed.encoding.transactions import TransactionOrders
from changefeed.encoding.typed_values import typed_values
from changefeed.encoding.unsent import settle_unsent

#: Rows and bytes encoded at once: small enough for the processor's caches, and so that the
#: text of all messages stays far below the 2 GiB an Arrow array can hold.
STRETCH_ROWS = 16_384
STRETCH_BYTES = 64 << 20


def encode_messages(
    table: pa.Table | pa.RecordBatch,
    plan: MessagePlan,
    clean: frozenset[str] | None = None,
    *,
    now_ns: int | None = None,
    scan: bool = False,
    orders: TransactionOrders | None = None,
) -> pa.Table:
    """The messages of rows, in their order.

    Args:
        table: rows of the log's schema, the plan's ``inputs`` among its columns.
        plan: what the messages look like.
        clean: columns whose text needs no escaping; None: find out.
        now_ns: time for the enriched envelope's ``ts_ns``; None is the machine's clock.
        scan: the rows were read by a scan.
        orders: the places of changes in their transactions, for a plan that shows them.

    Raises:
        ChangefeedError: CF4001 a value cannot be encoded, CF1302 the key cannot be compared.
    """
    if isinstance(table, pa.RecordBatch):
        table = pa.Table.from_batches([table])
    table = wanted_rows(table, plan, scan=scan)
    if plan.transactions and not scan:
        if orders is None:
            raise AssertionError("changes were not numbered in their transactions")
        table = orders.with_orders(table)
    if not scan:
        table, touched = settle_unsent(table, plan)
        clean = clean if clean is None else clean - touched
    now = now_ns or time.time_ns()
    schema = message_schema(plan)
    made = [
        _encode(batch, plan, schema, clean, now, scan)
        for stretch in _stretches(table)
        for batch in stretch.combine_chunks().to_batches()
    ]
    return pa.Table.from_batches(made, schema)


def _stretches(table: pa.Table) -> list[pa.Table]:
    if not table.num_rows:
        return []
    average = max(1, table.nbytes // table.num_rows)
    step = max(1, min(STRETCH_ROWS, STRETCH_BYTES // average))
    return [table.slice(start, step) for start in range(0, table.num_rows, step)]


def _encode(
    batch: pa.RecordBatch,
    plan: MessagePlan,
    schema: pa.Schema,
    clean: frozenset[str] | None,
    now_ns: int,
    scan: bool,
) -> pa.RecordBatch:
    if clean is None:
        clean = clean_columns(batch, text_inputs(plan))
    rows = TokenRows(plan, batch, clean, now_ns, scan=scan)
    key, value = FORMATS[plan.format].messages(rows)
    if plan.content:
        value = _contents(batch, plan)
    made = {"key": key, "value": value, "headers": headers(rows)}
    columns = [
        made[field.name].cast(field.type) if field.name in made else batch.column(field.name)
        for field in schema
    ]
    messages = pa.RecordBatch.from_arrays(columns, schema=schema)
    ends = plan.envelope is Envelope.DEBEZIUM and not plan.schema.keyless
    return with_tombstones(messages) if ends else messages


def _contents(batch: pa.RecordBatch, plan: MessagePlan) -> pa.Array:
    """The contents of logical messages, byte for byte as the application wrote them."""
    text = batch.column(f"a{plan.ordinal(CONTENT)}").cast(pa.binary())
    if not text.null_count:
        return text
    place = plan.ordinal(BYTES)
    values = batch.column(f"a{place}")
    return pc.coalesce(text, typed_values(plan.schema.columns[place].logical.typed, values, BYTES))


def text_inputs(plan: MessagePlan) -> frozenset[str]:
    """The log columns among a plan's inputs that JSON may have to escape."""
    if not TRAITS[plan.format].text or plan.envelope is Envelope.DEBEZIUM:
        return frozenset()  # Debezium's tokens find out themselves
    columns = plan.schema.columns
    return frozenset(n for n in plan.inputs if columns[int(n[1:])].form is Form.TEXT)
