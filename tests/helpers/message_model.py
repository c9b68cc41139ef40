"""What messages must look like, said again in plain Python: the oracle of the tests.

Shares nothing with :mod:`changefeed.encoding` but the plan. A row is a dict of log columns
(``op``, ``wall``, ``a0``, ``b0``, ...), as ``pa.Table.to_pylist`` gives it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from changefeed.core.schema import BeforeImage, Column, TableName, TableSchema
from changefeed.core.shapes import Deletes, Envelope
from changefeed.core.types import Form, Kind, LogicalType
from changefeed.encoding.plan import MessagePlan

Row = dict[str, Any]

KINDS: dict[str, str] = {
    "bool": "bool",
    "int2": "int16",
    "int4": "int32",
    "int8": "int64",
    "numeric": "decimal",
    "jsonb": "json",
    "text": "text",
}


def column(name: str, kind: str, nullable: bool = True) -> Column:
    """A column of one of :data:`KINDS`."""
    return Column(name, kind, LogicalType.parse(KINDS[kind]), nullable)


def table(
    columns: Sequence[Column],
    key: Sequence[int] = (0,),
    before_image: BeforeImage = BeforeImage.KEY,
    keyless: bool = False,
) -> TableSchema:
    """A table ``shop.public.t``."""
    return TableSchema(
        TableName("shop", "public", "t"), tuple(columns), tuple(key), before_image, keyless
    )


def change(op: str, after: Sequence[Any] | None, before: Row | None = None, **meta: Any) -> Row:
    """A row of the log. ``before`` maps positions as text (``"0"``) to values."""
    row: Row = {
        "op": op, "wall": 1_536_242_855_577_149_065, "logical": 0, "seq": 1, "ord": 0,
        "xid": 7, "commit_us": 1, "last": True, "missing": None,
    }  # fmt: skip
    row |= meta
    row |= {f"a{i}": value for i, value in enumerate(after or ())}
    row |= {f"b{i}": value for i, value in (before or {}).items()}
    return row


def log_table(schema: TableSchema, rows: Sequence[Row]) -> pa.Table:
    """Rows as the change log gives them."""
    return pa.Table.from_pylist(list(rows), schema=schema.log_schema())


_SHORT = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", '"': '\\"', "\\": "\\\\"}


def json_string(text: str) -> str:
    """RFC 8259, section 7, escaping what must be and nothing else."""
    return '"' + "".join(_SHORT.get(c) or _control(c) for c in text) + '"'


def _control(character: str) -> str:
    return f"\\u00{ord(character):02X}" if ord(character) < 32 else character


def json_value(plan: MessagePlan, i: int, value: Any) -> str:
    """The JSON token of one log value."""
    shape = plan.schema.columns[i]
    if value is None:
        return "null"
    if shape.form is Form.NATIVE:
        return str(value).lower()
    if shape.form is Form.TEXT:
        return json_string(value)
    if plan.json_null_as_object and shape.kind is Kind.JSON and value.strip(" ") == "null":
        return '{"__crdb_json_null__": true}'
    return str(value)


def _pairs(pairs: Sequence[tuple[str, str]]) -> str:
    return "{" + ", ".join(f"{json_string(name)}: {value}" for name, value in pairs) + "}"


def _object(plan: MessagePlan, row: Row, side: str, columns: Sequence[int]) -> str:
    names = plan.schema.columns
    return _pairs([(names[i].name, json_value(plan, i, row.get(f"{side}{i}"))) for i in columns])


def shown_columns(plan: MessagePlan) -> list[int]:
    """Positions of the value's columns."""
    out = []
    for i, shape in enumerate(plan.schema.columns):
        wanted = plan.projection is None or shape.name in plan.projection or i in plan.schema.key
        if wanted and shape.name != plan.headers_column:
            out.append(i)
    return out


def is_message(plan: MessagePlan, row: Row) -> bool:
    """The row becomes a message (key ranges are not modelled)."""
    if plan.collapse and not row["last"]:
        return False
    delete = bool(row["op"] == "d")
    return {Deletes.YES: True, Deletes.NO: not delete, Deletes.ONLY: delete}[plan.deletes]


def key_of(plan: MessagePlan, row: Row) -> str:
    """The message key."""
    side = "b" if row["op"] == "d" else "a"
    names = [c.name for c in plan.schema.columns]
    columns = list(plan.schema.key) if plan.key_column is None else [names.index(plan.key_column)]
    if plan.envelope is Envelope.ENRICHED:
        return _object(plan, row, side, columns)
    return "[" + ", ".join(json_value(plan, i, row.get(f"{side}{i}")) for i in columns) + "]"


def _stamp(row: Row) -> str:
    return f'"{row["wall"]}.{row["logical"]:010d}"'


def _before(plan: MessagePlan, row: Row) -> str:
    known = [i for i in shown_columns(plan) if i in plan.schema.before_ordinals]
    there = row["op"] == "d" or any(row.get(f"b{i}") is not None for i in plan.schema.key)
    return _object(plan, row, "b", known) if there else "null"


def _unchanged(plan: MessagePlan, row: Row, i: int) -> bool:
    there = any(row.get(f"b{k}") is not None for k in plan.schema.key)
    known = i in plan.schema.before_ordinals
    return there and known and row.get(f"a{i}") == row.get(f"b{i}")


def value_of(plan: MessagePlan, row: Row, now_ns: int) -> str | None:
    """The message value."""
    delete = row["op"] == "d"
    meta: dict[str, str] = {}
    if plan.updated:
        meta["updated"] = _stamp(row)
    if plan.mvcc_timestamp:
        meta["mvcc_timestamp"] = _stamp(row)
    if plan.topic_in_value:
        meta["topic"] = json_string(plan.topic)
    columns = shown_columns(plan)
    rows_alone = (Envelope.ROW, Envelope.CHANGED)
    if plan.envelope is Envelope.KEY_ONLY or (plan.envelope in rows_alone and delete):
        return None
    if plan.envelope is Envelope.CHANGED:
        columns = [i for i in columns if not _unchanged(plan, row, i)]
    if plan.envelope in (*rows_alone, Envelope.BARE):
        if plan.envelope is Envelope.BARE:
            meta["key"] = key_of(plan, row)
        first = [("__crdb__", _pairs(sorted(meta.items())))] if meta else []
        rest = []
        for i in columns:
            value = row.get(f"b{i}" if delete else f"a{i}")
            hidden = delete and i not in plan.schema.key
            rest.append(
                (plan.schema.columns[i].name, json_value(plan, i, None if hidden else value))
            )
        return _pairs(first + rest)
    if plan.key_in_value:
        meta["key"] = key_of(plan, row)
    meta["after"] = "null" if delete else _object(plan, row, "a", columns)
    if plan.diff:
        meta["before"] = _before(plan, row)
    if plan.envelope is Envelope.ENRICHED:
        # Timestamps of the enriched envelope are members of its source.
        meta.pop("updated", None)
        meta.pop("mvcc_timestamp", None)
        meta["op"] = {"d": '"d"', "u": '"u"'}.get(row["op"], '"c"')
        meta["ts_ns"] = str(now_ns)
    return _pairs(sorted(meta.items()))


def messages(plan: MessagePlan, rows: Sequence[Row], now_ns: int = 0) -> list[Row]:
    """Key, value and metadata of all messages, in the rows' order."""
    out = []
    for row in rows:
        if is_message(plan, row):
            value = value_of(plan, row, now_ns)
            out.append(
                {
                    "key": key_of(plan, row).encode(),
                    "value": None if value is None else value.encode(),
                    **{name: row[name] for name in ("wall", "logical", "seq", "op")},
                }
            )
    return out
