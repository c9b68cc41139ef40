"""Text of a value -> log form: by column and by value, usual and rare forms mixed."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from changefeed.core.schema import Column
from changefeed.core.types import Kind, LogicalType
from changefeed.sources.postgres.types import BUILTIN, TypeInfo, column_of, spelled
from changefeed.sources.postgres.values import array_json, text_column, text_value


def _column(logical: str) -> Column:
    return Column("x", "t", LogicalType.parse(logical))


_CASES: list[tuple[str, list[tuple[str, str]]]] = [
    ("timestamptz", [
        ("2024-01-02 03:04:05.1+00", "2024-01-02T03:04:05.1Z"),
        ("2024-01-02 03:04:05+00", "2024-01-02T03:04:05Z"),
        ("infinity", "infinity"),
        ("-infinity", "-infinity"),
        ("0044-03-15 00:00:00+00 BC", "0044-03-15T00:00:00+00 BC"),
        ("12024-01-01 00:00:00+00", "12024-01-01T00:00:00Z"),
    ]),
    ("timestamp", [
        ("2024-01-02 03:04:05.123456", "2024-01-02T03:04:05.123456"),
        ("infinity", "infinity"),
        ("0044-03-15 00:00:00 BC", "0044-03-15T00:00:00 BC"),
    ]),
    ("decimal(12,2)", [
        ("1.50", "1.50"), ("NaN", '"NaN"'), ("-Infinity", '"-Infinity"'), ("-7", "-7"),
    ]),
    ("float64", [("0.1", "0.1"), ("1e+10", "1e+10"), ("Infinity", '"Infinity"')]),
    ("json", [('{"a": 1}', '{"a": 1}'), ('{"a":\r\n1}', '{"a":  1}')]),
    ("array<int64>", [
        ("{1,NULL,-3}", "[1,null,-3]"), ("{}", "[]"), ("{{1},{2}}", "[[1],[2]]"),
        ("[0:1]={5,6}", '"[0:1]={5,6}"'),
    ]),
    ("array<decimal(5,1)>", [("{1.5,NaN,NULL}", '[1.5,"NaN",null]'), ("{2.0}", "[2.0]")]),
    ("array<bool>", [("{t,f,NULL}", "[true,false,null]"), ("[2:2]={t}", '"[2:2]={t}"')]),
    ("array<text>", [
        ("{a,b}", '["a","b"]'), ("{}", "[]"), ('{"a b","c,d","{e}"}', '["a b","c,d","{e}"]'),
        (r'{"q\"uo","b\\s"}', r'["q\"uo","b\\s"]'), ('{NULL,"NULL"}', '[null,"NULL"]'),
        ("{{a,b},{c,d}}", '[["a","b"],["c","d"]]'), ('{"",z}', '["","z"]'),
        ('{"x\ny"}', '["x\\ny"]'),
        (r'[2:2]={"\""}', r'"[2:2]={\"\\\"\"}"'), ("{\u00e4\U0001f600}", '["\u00e4\U0001f600"]'),
    ]),
    ("array<uuid>", [("{a0eebc99-9c0b,b}", '["a0eebc99-9c0b","b"]')]),
    ("array<bytes>", [(r'{"\\xde"}', r'["\\xde"]')]),
    ("array<json>", [(r'{"{\"a\": [1]}",NULL,5}', '[{"a": [1]},null,5]')]),
    ("array<timestamptz>", [
        ('{"2024-01-02 03:04:05+00",infinity}', '["2024-01-02T03:04:05Z","infinity"]'),
    ]),
    ("text", [("anything 'at' all", "anything 'at' all"), ("", "")]),
]  # fmt: skip


@pytest.mark.parametrize(("logical", "pairs"), _CASES, ids=[name for name, _ in _CASES])
def test_rules(logical: str, pairs: list[tuple[str, str]]) -> None:
    """Each value alone, all together, and with nulls between."""
    column = _column(logical)
    for text, expected in pairs:
        assert text_value(column, text) == expected
        assert text_column(column, pa.array([text])).to_pylist() == [expected]
        mixed = text_column(column, pa.array([None, text, None, pairs[0][0]]))
        assert mixed.to_pylist() == [None, expected, None, pairs[0][1]]
    together = text_column(column, pa.array([text for text, _ in pairs] * 2))
    together.validate(full=True)
    assert together.to_pylist() == [expected for _, expected in pairs] * 2
    assert text_column(column, pa.array([], pa.string())).type == column.arrow
    assert text_column(column, pa.array([None, None], pa.string())).null_count == 2


def test_the_given_array_is_never_changed() -> None:
    """What comes in may be shared: only our own copies are written to."""
    for logical, pairs in _CASES:
        texts = [text for text, _ in pairs]
        values = pa.array(texts)
        text_column(_column(logical), values)
        assert values.to_pylist() == texts


def test_native_values() -> None:
    whole = text_column(_column("int64"), pa.array(["-9223372036854775808", None, "7"]))
    assert whole.equals(pa.array([-(2**63), None, 7], pa.int64()))
    small = text_column(_column("int16"), pa.array(["-32768"]))
    assert small.equals(pa.array([-32768], pa.int16()))
    truth = text_column(_column("bool"), pa.array(["t", None, "f"]))
    assert truth.equals(pa.array([True, None, False]))
    with pytest.raises(pa.ArrowInvalid):
        text_column(_column("int16"), pa.array(["70000"]))


_ELEMENTS = st.none() | st.text(st.characters(codec="utf-8", exclude_characters="\0"))


def _literal(values: list[str | None]) -> str:
    """An array literal as array_out writes it."""

    def one(value: str | None) -> str:
        if value is None:
            return "NULL"
        special = (
            not value or value.upper() == "NULL" or any(c in '{},"\\ \t\n\r\v\f' for c in value)
        )
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"' if special else value

    return "{" + ",".join(map(one, values)) + "}"


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(_ELEMENTS, max_size=4), min_size=1, max_size=6))
def test_text_arrays(arrays: list[list[str | None]]) -> None:
    texts = [_literal(array) for array in arrays]
    column = _column("array<text>")
    by_column = text_column(column, pa.array(texts)).to_pylist()
    assert by_column == [text_value(column, text) for text in texts]
    assert [json.loads(value) for value in by_column] == arrays


def test_deep_array() -> None:
    assert array_json("{{{1,2}},{{NULL,4}}}", Kind.INT32) == "[[[1,2]],[[null,4]]]"


# ---------------------------------------------------------------------------------- types


def test_domains_and_arrays_are_followed() -> None:
    types = {
        **BUILTIN,
        9001: TypeInfo(9001, "price", "public", "d", base=1700, base_typmod=786438),
        9002: TypeInfo(9002, "_price", "public", element=9001),
        9003: TypeInfo(9003, "mood", "public", "e"),
        9004: TypeInfo(9004, "prices", "public", "d", base=9002),
        9005: TypeInfo(9005, "citext", "anywhere"),
        9006: TypeInfo(9006, "geometry", "public", delimiter=":"),
        9007: TypeInfo(9007, "_geometry", "public", element=9006),
    }
    found = {oid: column_of("c", oid, -1, types) for oid in range(9001, 9008)}
    price = LogicalType(Kind.DECIMAL, 12, 2)
    assert found[9001].logical == price
    assert found[9002].logical == found[9004].logical == LogicalType(Kind.ARRAY, element=price)
    assert found[9003].logical == found[9005].logical == LogicalType(Kind.TEXT)
    assert found[9007].kind is column_of("c", 424242, -1, {}).kind is Kind.OTHER


@pytest.mark.parametrize(
    ("oid", "typmod", "text"),
    [
        (1043, 14, "character varying(10)"), (1042, 5, "character(1)"), (23, -1, "integer"),
        (1700, 786438, "numeric(12,2)"), (1700, 4 + (5 << 16) + 0x7FE, "numeric(5,-2)"),
        (1184, 3, "timestamp(3) with time zone"), (1560, 8, "bit(8)"), (1015, -1,
        "character varying[]"), (18, -1, '"char"'),
    ],
)  # fmt: skip
def test_types_are_spelled_as_the_server_does(oid: int, typmod: int, text: str) -> None:
    assert spelled(oid, typmod, {}) == text
