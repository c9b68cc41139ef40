"""A message as EXPLAIN shows it: the real shape with made-up values.

The members and their order are those of :mod:`changefeed.encoding.json_envelope`, which makes the
real ones; a test compares the two.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from changefeed.core.formats import TRAITS
from changefeed.core.schema import Column, Form
from changefeed.core.shapes import Envelope
from changefeed.encoding.debezium.fields import Conversion, field_of
from changefeed.encoding.plan import MessagePlan
from changefeed.encoding.record_shape import Leaf, LeafOrigin, Record, key_shape, value_shape

#: Made-up values by logical type, as JSON.
_VALUES = {
    "bool": "true",
    "float32": "1.5",
    "float64": "1.5",
    "decimal": "1.50",
    "bytes": '"\\\\x01"',
    "date": '"2024-03-31"',
    "time": '"01:02:03"',
    "timetz": '"01:02:03+00"',
    "timestamp": '"2024-03-31T01:02:03.5"',
    "timestamptz": '"2024-03-31T01:02:03.5Z"',
    "interval": '"1 day"',
    "json": "{}",
    "uuid": '"6a2f4c1e-0d5b-4f0e-9a57-0c1f5f1f0c11"',
}

#: When the example's change was committed and encoded, in nanoseconds.
_NOW = 1536242855577149065
_WHEN = f'"{_NOW}.0000000000"'
_TRANSACTION = f'{{"id": "571:{_WHEN[1:]}, "total_order": 1, "data_collection_order": 1}}'

#: Rows with more columns are cut with dots: the shape is what matters.
SHOWN_COLUMNS = 6


def example(plan: MessagePlan) -> tuple[str, str]:
    """Key and value of an update."""
    traits = TRAITS[plan.format]
    if plan.content:
        return _key(plan), "the content of the message"
    if traits.line:
        tokens = [_value(plan.schema.columns[i]) for i in plan.columns]
        # None of the texts has a comma or a quotation mark, so none is quoted.
        return "", ",".join(json.loads(t) if t[0] == '"' else t for t in tokens)
    if plan.envelope is not Envelope.DEBEZIUM and not traits.text:
        key = _key(plan) if traits.row_alone else _members(plan, key_shape(plan))
        shape = value_shape(plan)
        return key, "" if shape is None else _members(plan, shape)
    return _key(plan), _SHAPES[plan.envelope](plan)


def _members(plan: MessagePlan, record: Record) -> str:
    """A typed message as JSON: its members in their order, without its names of types."""
    columns = [n for n, (_, m) in enumerate(record.members) if _is_column(m)]
    cut = set(columns[SHOWN_COLUMNS:])
    shown = [
        (name, _member(plan, member))
        for n, (name, member) in enumerate(record.members)
        if n not in cut
    ]
    return _object([*shown, ("...", "...")] if cut else shown)


def _is_column(member: Leaf | Record) -> bool:
    return isinstance(member, Leaf) and member.origin is LeafOrigin.COLUMN


def _member(plan: MessagePlan, member: Leaf | Record) -> str:
    if isinstance(member, Record):
        return _members(plan, member)
    if member.origin is LeafOrigin.COLUMN:
        return _value(plan.schema.columns[member.ordinal])
    return _ORIGINS.get(member.origin) or json.dumps(member.text)


#: Values of members that are no columns.
_ORIGINS = {
    LeafOrigin.STAMP: _WHEN,
    LeafOrigin.OP: '"u"',
    LeafOrigin.NOW: str(_NOW),
    LeafOrigin.WALL: str(_NOW),
    LeafOrigin.BEFORE_JSON: '"{...}"',
}


def _value(column: Column) -> str:
    kind = column.logical.partition("(")[0]
    if column.form is Form.NATIVE and kind != "bool":
        return "1"
    if kind.startswith("array"):
        return "[]"
    known = _VALUES.get(kind)
    if known is not None:
        return known
    return "1" if column.form is Form.RAW else '"x"'


def _object(members: Iterable[tuple[str, str]], *, spaced: bool = True) -> str:
    """``spaced``: as CockroachDB writes it; Debezium does without."""
    comma, colon = (", ", ": ") if spaced else (",", ":")
    return "{" + comma.join(f'"{name}"{colon}{value}' for name, value in members) + "}"


def _columns(plan: MessagePlan, columns: Iterable[int]) -> list[tuple[str, str]]:
    value = _debezium_value if plan.envelope is Envelope.DEBEZIUM else _value
    every = [(plan.schema.columns[i].name, value(plan.schema.columns[i])) for i in columns]
    if len(every) <= SHOWN_COLUMNS:
        return every
    return [*every[:SHOWN_COLUMNS], ("...", "...")]


def _key(plan: MessagePlan) -> str:
    if plan.envelope is Envelope.DEBEZIUM:
        return _with_schema(plan, _columns(plan, plan.message_key))
    if plan.key_is_object:
        return _object(_columns(plan, plan.message_key))
    return "[" + ", ".join(_value(plan.schema.columns[i]) for i in plan.message_key) + "]"


def _times(plan: MessagePlan) -> dict[str, str]:
    wanted = {"updated": plan.updated, "mvcc_timestamp": plan.mvcc_timestamp}
    return {name: _WHEN for name, shown in wanted.items() if shown}


def _topic(plan: MessagePlan) -> dict[str, str]:
    return {"topic": f'"{plan.topic}"'} if plan.topic_in_value else {}


def _transaction(plan: MessagePlan) -> dict[str, str]:
    return {"transaction": _TRANSACTION} if plan.transactions else {}


def _around(plan: MessagePlan) -> dict[str, str]:
    after = _object(_columns(plan, plan.columns))
    members = {"after": after, **_topic(plan), **_transaction(plan)}
    if plan.shows_before:
        members["before"] = _object(_columns(plan, plan.before_columns))
    if plan.key_in_value:
        members["key"] = _key(plan)
    return members


def _wrapped(plan: MessagePlan) -> str:
    return _object(sorted((_around(plan) | _times(plan)).items()))


def _enriched(plan: MessagePlan) -> str:
    members = _around(plan) | {"op": '"u"', "ts_ns": str(_NOW)}
    if plan.source is not None:
        members["source"] = "{...}"
    return _object(sorted(members.items()))


#: Made-up values of Debezium's messages, by how they are made.
_DEBEZIUM_VALUES = {
    Conversion.LONG: "1",
    Conversion.BYTES: '"AQ=="',
    Conversion.BITS: '"AQ=="',
    Conversion.BIT: "true",
    Conversion.DIGITS: '"AQ=="',
    Conversion.UNSCALED: '"AJY="',
    Conversion.SCALED: '{"scale":2,"value":"AJY="}',
    Conversion.DAYS: "19813",
    Conversion.TIME: "3723000",
    Conversion.MOMENT: "1711846923500",
    Conversion.ZONED_TIME: '"01:02:03Z"',
    Conversion.ZONED: '"2024-03-31T01:02:03.500000Z"',
    Conversion.DURATION: "86400000000",
    Conversion.CLOCK: "3723000000",
    Conversion.ARRAY: "[]",
}


def _debezium_value(column: Column) -> str:
    field = field_of(column)
    if field.way is Conversion.TEXT and column.logical == "json":
        return '"{}"'
    return _DEBEZIUM_VALUES.get(field.way) or _value(column)


def _debezium(plan: MessagePlan) -> str:
    row = _object(_columns(plan, plan.columns), spaced=False)
    transaction = _TRANSACTION.replace(": ", ":").replace(", ", ",")
    members = {
        "before": row if plan.shows_before else "null",
        "after": row,
        "source": "{...}",
        "transaction": transaction if plan.transactions else "null",
        "op": '"u"',
        "ts_ms": str(_NOW // 1_000_000),
        "ts_us": str(_NOW // 1_000),
        "ts_ns": str(_NOW),
    }
    return _with_schema(plan, members.items())


def _with_schema(plan: MessagePlan, members: Iterable[tuple[str, str]]) -> str:
    """A key or value of Debezium's envelope; its schema is only hinted at."""
    payload = _object(members, spaced=False)
    if not plan.schemas_enabled:
        return payload
    return _object([("schema", "{...}"), ("payload", payload)], spaced=False)


def _flat(plan: MessagePlan, meta: dict[str, str], columns: Iterable[int] | None = None) -> str:
    row = _columns(plan, plan.columns if columns is None else columns)
    return _object([("__crdb__", _object(sorted(meta.items()))), *row] if meta else row)


def _row(plan: MessagePlan) -> str:
    return _flat(plan, _times(plan) | _topic(plan) | _transaction(plan))


def _changed(plan: MessagePlan) -> str:
    """Every column got another value, but those of the key."""
    meta = _times(plan) | _topic(plan) | _transaction(plan)
    return _flat(plan, meta, [i for i in plan.columns if i not in plan.schema.key])


def _bare(plan: MessagePlan) -> str:
    meta = {"key": _key(plan)} | _times(plan) | _topic(plan)
    return _flat(plan, meta | _transaction(plan))


def _nothing(_plan: MessagePlan) -> str:
    return ""


_SHAPES = {
    Envelope.WRAPPED: _wrapped,
    Envelope.ENRICHED: _enriched,
    Envelope.DEBEZIUM: _debezium,
    Envelope.ROW: _row,
    Envelope.BARE: _bare,
    Envelope.CHANGED: _changed,
    Envelope.KEY_ONLY: _nothing,
}
