"""Values that the source did not send and that nobody can look up any more: marked, not invented.

A source may leave a large value (PostgreSQL: TOAST) out of a change that did not touch it. Where
the value as of the change is not known, the log has NULL and names the column in ``missing``. A
message says so with a placeholder in the place of the value, for NULL and later values are values
of their own.
"""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.compute as pc

from changefeed.core.errors import ChangefeedError
from changefeed.core.schema import Column, Form
from changefeed.core.shapes import Envelope
from changefeed.encoding.debezium.fields import Way, field_of
from changefeed.encoding.plan import MessagePlan

#: What stands in the place of an unsent value.
UNSENT = "__changefeed_unsent__"
#: The same in Debezium's envelope.
UNAVAILABLE = "__debezium_unavailable_value"


def mark_unsent(table: pa.Table, plan: MessagePlan) -> tuple[pa.Table, frozenset[str]]:
    """The rows with placeholders, and the columns (``a3``) that have some.

    Raises:
        ChangefeedError: CF4001 the column's type has no room for a placeholder.
    """
    missing = table["missing"]
    if missing.null_count == len(missing):
        return table, frozenset()
    encoded = missing.combine_chunks().dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    named = [frozenset(json.loads(text)) for text in encoded.dictionary.to_pylist()]
    touched = set()
    for i, column in enumerate(plan.schema.columns):
        name = f"a{i}"
        if name not in plan.inputs or not any(column.name in names for names in named):
            continue
        hits = pa.array([column.name in names for names in named])
        mask = pc.fill_null(hits.take(encoded.indices), False)
        marked = pc.if_else(mask, _placeholder(column, plan), table[name])
        table = table.set_column(table.schema.get_field_index(name), name, marked)
        touched.add(name)
    return table, frozenset(touched)


def _placeholder(column: Column, plan: MessagePlan) -> str:
    """The placeholder as a value of the log."""
    debezium = plan.envelope is Envelope.DEBEZIUM
    text = UNAVAILABLE if debezium else UNSENT
    if column.physical != "string" or (debezium and not _holds_text(column)):
        raise ChangefeedError(
            "CF4001",
            f"a value of column {column.name} of {plan.schema.table} was not sent, and its type "
            "has no room to say so",
            hint=f"ALTER TABLE {plan.schema.table.schema}.{plan.schema.table.name} REPLICA "
            "IDENTITY FULL; at the source sends every value.",
        )
    if column.logical == "bytes":
        return "\\x" + text.encode().hex()
    if column.form is Form.TEXT:
        return text
    if debezium and column.logical == "json":
        return text  # there it is a string
    token = json.dumps(text)
    return f"[{token}]" if column.logical.startswith("array<") else token


def _holds_text(column: Column) -> bool:
    """Debezium's messages have a text or bytes of the column, or an array of texts."""
    field = field_of(column)
    return (field.items or field).way is Way.TEXT or field.way is Way.BYTES
