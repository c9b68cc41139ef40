"""Values that the source did not send and that can no longer be looked up: marked, not invented.

A source may leave a large value (PostgreSQL: TOAST) out of a change that did not touch it. Where
the value as of the change is not known, the log has NULL and names the column in ``missing``. A
message then has a placeholder instead of the value, or no such member, because NULL and later
values would be wrong.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Sequence
from datetime import date, timedelta

import pyarrow as pa
import pyarrow.compute as pc

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.formats import TRAITS
from changefeed.core.schema import Column, TableSchema
from changefeed.core.shapes import Envelope, Unsent
from changefeed.core.types import Form, Kind
from changefeed.encoding.debezium.fields import UUID_NAME, Conversion, field_of
from changefeed.encoding.plan import MessagePlan

#: The placeholder of an unsent value.
UNSENT = "__changefeed_unsent__"
#: The same in Debezium's envelope.
UNAVAILABLE = "__debezium_unavailable_value"

_EPOCH = date(1970, 1, 1)


def unsent_name(i: int) -> str:
    """The boolean column that marks the rows in which column ``i`` is to be left out."""
    return f"unsent{i}"


def marked_name(i: int) -> str:
    """The boolean column that marks the rows in which column ``i`` is a placeholder, for columns
    whose type in the log has no room for one."""
    return f"marked{i}"


def settle_unsent(table: pa.Table, plan: MessagePlan) -> tuple[pa.Table, frozenset[str]]:
    """The rows with placeholders, and the columns (``a3``) that have some.

    Where the plan omits values, the rows get columns :func:`unsent_name`; where a number becomes a
    text of JSON, columns :func:`marked_name`.

    Raises:
        ChangefeedError: CF4001 the plan wants no message without a value; the message's key or
            headers are not known; the column's type has no room for a placeholder.
    """
    missing = table["missing"]
    if missing.null_count == len(missing):
        return table, frozenset()
    encoded = missing.combine_chunks().dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    named = [frozenset(json.loads(text)) for text in encoded.dictionary.to_pylist()]
    touched = set()
    omits = plan.unsent is Unsent.OMIT and TRAITS[plan.format].text
    for i, column in enumerate(plan.schema.columns):
        name = f"a{i}"
        if name not in plan.inputs or not any(column.name in names for names in named):
            continue
        if plan.unsent is Unsent.FAIL:
            raise not_sent(plan.schema, column, "unsent_values = 'fail'")
        if i in plan.message_key:
            raise not_sent(plan.schema, column, "it is the key of the message")
        if i == plan.headers_ordinal:
            raise not_sent(plan.schema, column, "it is the headers of the message")
        hits = pa.array([column.name in names for names in named])
        mask = pc.fill_null(hits.take(encoded.indices), False)
        if omits:
            table = table.append_column(unsent_name(i), mask)
            continue
        if column.physical != "string" and _in_json(plan):
            table = table.append_column(marked_name(i), mask)
            continue
        marked = pc.if_else(mask, _placeholder(column, plan), table[name])
        table = table.set_column(table.schema.get_field_index(name), name, marked)
        touched.add(name)
    return table, frozenset(touched)


def _in_json(plan: MessagePlan) -> bool:
    """Whether the messages can have a text in place of a value of any type."""
    return TRAITS[plan.format].text and plan.envelope is not Envelope.DEBEZIUM


def refuse_unsent(table: pa.Table, plan: MessagePlan) -> None:
    """For rows that become no messages: raise where the plan wants none without a value.

    Raises:
        ChangefeedError: CF4001.
    """
    missing = table["missing"]
    if plan.unsent is not Unsent.FAIL or missing.null_count == len(missing):
        return
    names = {name for text in pc.unique(missing).to_pylist() if text for name in json.loads(text)}
    for i in plan.columns:
        if plan.schema.columns[i].name in names:
            raise not_sent(plan.schema, plan.schema.columns[i], "unsent_values = 'fail'")


def not_sent(schema: TableSchema, column: Column, why: str) -> ChangefeedError:
    """The error of a change without a value of ``column``; ``why`` that stops the table."""
    table = schema.table
    return ChangefeedError(
        Code.VALUE_NOT_ENCODABLE,
        f"a value of column {column.name} of {table} was not sent, and {why}",
        hint=f"ALTER TABLE {table.schema}.{table.name} REPLICA IDENTITY FULL; at the source "
        "(MySQL: binlog_row_image = FULL) sends every value; row_images = 'store' has it.",
    )


def _placeholder(column: Column, plan: MessagePlan) -> str:
    """The placeholder as a value of the log.

    Raises:
        ChangefeedError: CF4001 the column's type in the messages has no room for it.
    """
    if plan.envelope is Envelope.DEBEZIUM:
        found = _of_debezium(column)
    elif TRAITS[plan.format].text:
        found = _of_text(column, UNSENT)
    else:
        found = _of_typed(column, decimals=TRAITS[plan.format].schemas)
    if found is None or column.physical != "string":
        raise not_sent(plan.schema, column, "its type has no room to say so")
    return found


def _of_text(column: Column, text: str) -> str:
    if column.kind is Kind.BYTES:
        return _hex(text)
    if column.form is Form.TEXT:
        return text
    token = json.dumps(text)
    return f"[{token}]" if column.kind is Kind.ARRAY else token


def _of_typed(column: Column, *, decimals: bool) -> str | None:
    """``decimals``: whether a decimal may be a text in the format."""
    typed = column.logical.typed
    if typed.element is not None:
        if typed.element.kind is Kind.BYTES:
            return _array([_hex(UNSENT)])
        return _of_text(column, UNSENT) if typed.element.is_text else None
    room = typed.is_text or typed.kind is Kind.BYTES or (typed.precision and decimals)
    return _of_text(column, UNSENT) if room else None


def _of_debezium(column: Column) -> str | None:
    """As Debezium's connector has it: in an array of numbers the codes of the letters."""
    field = field_of(column)
    if field.items is None:
        if field.way is Conversion.BYTES:
            return _hex(UNAVAILABLE)
        # json is a string there.
        return UNAVAILABLE if field.way is Conversion.TEXT else None
    letters = UNAVAILABLE.encode()
    if field.items.name == UUID_NAME:
        digest = hashlib.md5(letters, usedforsecurity=False).digest()
        return _array([str(uuid.UUID(bytes=digest, version=3))])
    if field.items.way is Conversion.TEXT:
        return _array([UNAVAILABLE])
    if field.items.way is Conversion.BYTES:
        return _array([_hex(UNAVAILABLE)])
    if field.items.way is Conversion.DAYS:
        return _array([str(_EPOCH + timedelta(days=code)) for code in letters])
    if field.items.way is Conversion.AS_IS and field.items.type in ("int32", "int64"):
        return _array(list(letters))
    return None


def _hex(text: str) -> str:
    return "\\x" + text.encode().hex()


def _array(elements: Sequence[int | str]) -> str:
    return json.dumps(elements, separators=(",", ":"))
