"""Protobuf made by Arrow, read by Google's runtime with the type that its ``.proto`` text says,
equals a plain Python model, whatever is in the rows."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from changefeed.core.errors import ChangefeedError
from changefeed.core.formats import Format
from changefeed.core.schema import TableSchema
from changefeed.core.shapes import Envelope
from changefeed.encoding.encode import encode_messages
from changefeed.encoding.plan import MessagePlan
from changefeed.encoding.protobuf.schema import NUMBERS, key_proto, value_proto
from changefeed.encoding.record_shape import META
from tests.helpers.avro_model import column, key_of, moment, value_of
from tests.helpers.message_model import Row, change, is_message, log_table, table
from tests.helpers.proto_reader import message_class
from tests.properties.test_messages_avro import EXAMPLES, NOW, QUIET, plans, rows_of, schemas


@st.composite
def cases(draw: st.DrawFn) -> tuple[MessagePlan, list[Row]]:
    """Those of Avro, with columns whose numbers have gaps and an order of their own."""
    schema = draw(schemas())
    if draw(st.booleans()):
        schema = _numbered(draw, schema)
    source = draw(st.none() | st.just((("changefeed_sink", "kafka"), ("job_id", "7"))))
    plan = replace(draw(plans(schema)), format=Format.PROTOBUF, source=source)
    return plan, draw(rows_of(schema))


def _numbered(draw: st.DrawFn, schema: TableSchema) -> TableSchema:
    count = len(schema.columns)
    numbers = draw(st.lists(st.integers(1, 1600), min_size=count, max_size=count, unique=True))
    columns = [replace(c, column_id=n) for c, n in zip(schema.columns, numbers, strict=True)]
    return replace(schema, columns=tuple(columns))


def _typed(logical: str, value: Any) -> Any:
    """A value of the log as the fields hold it; moments are seconds and nanoseconds."""
    if value is None:
        return None
    if not logical.startswith("array<"):
        return _scalar(logical, value)
    element = logical[6:-1]
    if element == "json":
        return value
    items = json.loads(value, parse_float=str, parse_int=str)
    return [None if item is None else _scalar(element, item) for item in items]


def _scalar(logical: str, value: Any) -> Any:
    if logical == "bool":
        return value
    if logical in ("int16", "int32", "int64"):
        return int(value)
    if logical.startswith(("float", "decimal")):
        text = value.strip('"')
        return text if logical.startswith("decimal") else _float(logical, text)
    if logical == "bytes":
        return bytes.fromhex(value[2:])
    if logical in ("timestamp", "timestamptz"):
        seconds, micros = divmod(moment(value), 1_000_000)
        return seconds, micros * 1_000
    return value


def _float(logical: str, text: str) -> float:
    return float(np.float32(text)) if logical == "float32" else float(text)


def _plain(message: Any) -> Any:
    """A message as a dict of what is in it, by number; an array as a list."""
    descriptor = message.DESCRIPTOR
    if descriptor.full_name == "google.protobuf.Timestamp":
        return message.seconds, message.nanos
    if descriptor.name.endswith("_array"):
        return [_plain(item).get(1) for item in message.items]
    return {
        field.number: value if field.message_type is None else _plain(value)
        for field, value in message.ListFields()
    }


#: Members that hold columns.
ROWS = ("before", "after", "record", "key")


def _members(plan: MessagePlan, value: Any) -> Any:
    """Members of ours, and what is in them, by the numbers they have; a NULL is not there."""
    out = {}
    for name, part in value.items():
        if part is not None:
            if isinstance(part, dict):
                part = _columns(plan, part) if name in ROWS else _members(plan, part)
            out[NUMBERS[name]] = part
    return out


def _columns(plan: MessagePlan, row: dict[str, Any]) -> dict[int, Any]:
    """The columns of a row by their numbers."""
    columns = plan.schema.columns
    numbers = {c.name: c.column_id or n for n, c in enumerate(columns, 1)}
    return {numbers[name]: value for name, value in row.items() if value is not None}


def _equal(value: Any) -> Any:
    """NaN as something equal to itself."""
    if isinstance(value, dict):
        return {name: _equal(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_equal(part) for part in value]
    return "NaN" if isinstance(value, float) and value != value else value


def _read(data: bytes, kind: Any, schema_id: int | None) -> Any:
    if schema_id is not None:
        assert data[:6] == b"\0" + schema_id.to_bytes(4, "big") + b"\0"
        data = data[6:]
    message = kind()
    assert message.ParseFromString(data) == len(data)
    assert message.ByteSize() == len(data), "Google's runtime writes it shorter"
    message.DiscardUnknownFields()
    assert message.ByteSize() == len(data), "a field is not in the type"
    return _equal(_plain(message))


def _value(plan: MessagePlan, row: Row) -> Any:
    wanted = value_of(plan, row, NOW, _typed)
    if wanted is None:
        return None
    if plan.envelope is Envelope.ROW:
        # A column may be called as our own member is; that comes first.
        columns = _columns(plan, {n: v for n, v in wanted.items() if n != META})
        meta = {META: wanted[META]} if META in wanted else {}
        return _equal(columns | _members(plan, meta))
    if plan.envelope is Envelope.ENRICHED and plan.source is not None:
        wanted["source"] = {**dict(plan.source), "schema_name": "public", "table_name": "t"}
        stamp = f"{row['wall']}.{row['logical']:010d}"
        if plan.updated:
            wanted["source"] |= {"ts_hlc": stamp, "ts_ns": row["wall"]}
        if plan.mvcc_timestamp:
            wanted["source"]["mvcc_timestamp"] = stamp
    return _equal(_members(plan, wanted))


@given(cases())
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=QUIET)
def test_protobuf_messages_equal_the_model(case: tuple[MessagePlan, list[Row]]) -> None:
    plan, rows = case
    made = encode_messages(log_table(plan.schema, rows), plan, now_ns=NOW).to_pylist()
    wanted = [row for row in rows if is_message(plan, row)]
    assert [m["seq"] for m in made] == [row["seq"] for row in wanted]
    ids = plan.registered
    keys = message_class(key_proto(plan))
    text = value_proto(plan)
    values = None if text is None else message_class(text)
    for message, row in zip(made, wanted, strict=True):
        key = _read(message["key"], keys, None if ids is None else ids.key)
        assert key == _equal(_columns(plan, key_of(plan, row, _typed)))
        if message["value"] is None:
            assert _value(plan, row) is None
        else:
            found = _read(message["value"], values, None if ids is None else ids.value)
            assert found == _value(plan, row)


@pytest.mark.parametrize(
    ("kind", "value", "found"),
    [
        ("integer", -(2**31), -(2**31)),
        ("bigint", 2**63 - 1, 2**63 - 1),
        ("bigint", -(2**63), -(2**63)),
        ("boolean", False, False),
        ("text", "", ""),
        ("bytea", "\\x", b""),
        ("integer", 0, 0),
        # Rounded to a double first, it would be the float above.
        ("real", "1.00000005960464477540", 1.0000001192092896),
        ("real", "3.4028235e+38", float(np.float32(3.4028235e38))),
        ("double precision", "-0", -0.0),
        ("timestamp with time zone", "1970-01-01T00:00:00Z", (0, 0)),
        ("timestamp with time zone", "1969-12-31T23:59:59.999999Z", (-1, 999_999_000)),
        ("timestamp with time zone", "infinity", (9_223_372_036_825, 200_000_000)),
        ("timestamp with time zone", "-infinity", (-9_223_372_036_833, 600_000_000)),
        ("timestamp without time zone", "0001-01-01T00:00:00 BC", (-62_167_219_200, 0)),
        ("integer[]", "[]", []),
        ("integer[]", "[null,0]", [None, 0]),
        ("text[]", "[]", []),
        ("bytea[]", "[]", []),
        ("numeric[]", "[]", []),
        ("boolean[]", "[null]", [None]),
        ("text[]", '["",null]', ["", None]),
    ],
)
def test_extremes(kind: str, value: Any, found: Any) -> None:
    schema = table([column("id", "integer"), column("v", kind)])
    plan = MessagePlan(schema, "t", format=Format.PROTOBUF)
    made = encode_messages(log_table(schema, [change("c", [1, value])]), plan).to_pylist()
    text = value_proto(plan)
    assert text is not None
    after = _read(made[0]["value"], message_class(text), None)[NUMBERS["after"]]
    assert after == {1: 1, 2: found}
    assert str(after[2]) == str(found)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("timestamp without time zone", "294276-12-31T00:00:00"),
        ("integer[]", "[[1,2],[3,4]]"),
        ("text[]", '[["a"]]'),
        ("real", "north"),
    ],
)
def test_a_value_that_does_not_fit_is_an_error_that_names_the_column(kind: str, value: str) -> None:
    schema = table([column("id", "integer"), column("odd one", kind)])
    rows = log_table(schema, [change("c", [1, value])])
    with pytest.raises(ChangefeedError) as caught:
        encode_messages(rows, MessagePlan(schema, "t", format=Format.PROTOBUF))
    assert caught.value.code.number == "CF4001"
    assert "odd one" in caught.value.message
    assert value not in f"{caught.value.message} {caught.value.detail}"
