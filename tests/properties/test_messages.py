"""Messages equal those of a plain Python model, whatever is in the rows."""

from __future__ import annotations

import json
import os
from decimal import Decimal
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from changefeed.core.schema import BeforeImage, TableSchema
from changefeed.core.shapes import Deletes, Envelope
from changefeed.encoding.encode import encode_messages
from changefeed.encoding.plan import MessagePlan
from tests.helpers.message_model import (
    KINDS,
    Row,
    change,
    column,
    json_string,
    log_table,
    messages,
    table,
)

EXAMPLES = int(os.environ.get("CHANGEFEED_TEST_EXAMPLES", "200"))
NOW = 1_700_000_000_123_456_789

TEXTS = st.one_of(
    st.text(max_size=12),
    st.text(st.sampled_from('"\\\b\f\n\r\t\x00\x01\x1f\x7f \u2028\u2029é😀[]{},'), max_size=12),
)
NAMES = st.one_of(
    st.sampled_from(["a", "A", "a.b", "`a`", 'q"uote', "back\\slash", "new\nline", "ü", "", "$1"]),
    st.text(min_size=1, max_size=8),
)
DECIMALS = st.one_of(
    st.sampled_from(["1.50", "0", "-0.0", "1e+10", "0.1", '"NaN"', '"Infinity"', '"-Infinity"']),
    st.decimals(allow_nan=False, allow_infinity=False, places=10).map(lambda d: f"{d:f}"),
    st.integers(min_value=10**60, max_value=10**70).map(str),
)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=5,
).map(lambda value: json.dumps(value, ensure_ascii=False))


def _ints(bits: int) -> st.SearchStrategy[int]:
    return st.integers(min_value=-(2 ** (bits - 1)), max_value=2 ** (bits - 1) - 1)


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    "int2": _ints(16),
    "int4": _ints(32),
    "int8": _ints(64),
    "numeric": DECIMALS,
    "jsonb": JSON,
    "text": TEXTS,
}


@st.composite
def schemas(draw: st.DrawFn) -> TableSchema:
    names = draw(st.lists(NAMES, min_size=1, max_size=6, unique=True))
    columns = [column(name, draw(st.sampled_from(sorted(KINDS)))) for name in names]
    keyless = draw(st.booleans()) and draw(st.booleans())
    order = draw(st.permutations(range(len(columns))))
    key = range(len(columns)) if keyless else order[: draw(st.integers(1, min(3, len(order))))]
    identity = BeforeImage.FULL if keyless else draw(st.sampled_from([*BeforeImage]))
    return table(columns, tuple(key), identity, keyless)


@st.composite
def plans(draw: st.DrawFn, schema: TableSchema) -> MessagePlan:
    names = [c.name for c in schema.columns]
    flags = st.booleans()
    return MessagePlan(
        schema,
        topic=draw(NAMES),
        envelope=draw(st.sampled_from([e for e in Envelope if e is not Envelope.DEBEZIUM])),
        diff=draw(flags),
        updated=draw(flags),
        mvcc_timestamp=draw(flags),
        key_in_value=draw(flags),
        topic_in_value=draw(flags),
        projection=draw(st.none() | st.lists(st.sampled_from(names), max_size=3).map(tuple)),
        deletes=draw(st.sampled_from([Deletes.YES, Deletes.NO, Deletes.ONLY])),
        collapse=draw(flags),
        key_column=draw(st.none() | st.sampled_from(names)),
        json_null_as_object=draw(flags),
    )


@st.composite
def rows_of(draw: st.DrawFn, schema: TableSchema) -> list[Row]:
    rows = []
    for seq in range(draw(st.integers(0, 12))):
        op = draw(st.sampled_from("cudr"))
        values = [draw(_value(schema, i)) for i in range(len(schema.columns))]
        before: Row = {}
        if op == "d" or (op == "u" and draw(st.booleans())):
            before = {str(i): draw(_value(schema, i)) for i in schema.before_ordinals}
        rows.append(
            change(
                op,
                None if op == "d" else values,
                before,
                seq=seq,
                wall=draw(st.integers(0, 2**63 - 1)),
                logical=draw(st.integers(0, 2**31 - 1)),
                last=draw(st.booleans()),
            )
        )
    return rows


def _value(schema: TableSchema, i: int) -> st.SearchStrategy[Any]:
    values = VALUES[schema.columns[i].type_name]
    return values if i in schema.key and not schema.keyless else st.none() | values


@st.composite
def cases(draw: st.DrawFn) -> tuple[MessagePlan, list[Row]]:
    schema = draw(schemas())
    return draw(plans(schema)), draw(rows_of(schema))


@given(cases())
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_messages_equal_the_model(case: tuple[MessagePlan, list[Row]]) -> None:
    plan, rows = case
    made = encode_messages(log_table(plan.schema, rows), plan, now_ns=NOW)
    assert made.drop_columns(["headers"]).to_pylist() == messages(plan, rows, NOW)
    assert made["headers"].null_count == made.num_rows


@given(cases())
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_messages_are_json_with_every_digit(case: tuple[MessagePlan, list[Row]]) -> None:
    plan, rows = case
    made = encode_messages(log_table(plan.schema, rows), plan, now_ns=NOW)
    for message in made.to_pylist():
        json.loads(message["key"])
        if message["value"] is None or plan.envelope is not Envelope.WRAPPED:
            continue
        row = next(r for r in rows if r["seq"] == message["seq"])
        # str() of a number token is the token: parse_float and parse_int give it as it is.
        value = json.loads(message["value"], parse_float=Digits, parse_int=Digits)
        for i in plan.columns if value["after"] is not None else ():
            stored, shown = row[f"a{i}"], value["after"][plan.schema.columns[i].name]
            if plan.schema.columns[i].type_name == "numeric" and stored is not None:
                assert stored in (shown, json_string(str(shown)))
            elif plan.schema.columns[i].type_name.startswith("int") and stored is not None:
                assert int(Decimal(shown)) == stored
            elif plan.schema.columns[i].type_name == "text":
                assert shown == stored


class Digits(str):
    """A number token of JSON as its characters."""

    __slots__ = ()
