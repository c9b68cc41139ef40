"""Avro and Parquet made by Arrow equal a plain Python model, whatever is in the rows; Avro is read
by fastavro."""

from __future__ import annotations

import copy
import io
import json
import os
from dataclasses import replace
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from changefeed.core.errors import ChangefeedError
from changefeed.core.formats import Format
from changefeed.core.schema import BeforeImage, TableSchema
from changefeed.core.shapes import Deletes, Envelope
from changefeed.encoding.arrow_schema import parquet_rows
from changefeed.encoding.avro.schema import key_schema, value_schema
from changefeed.encoding.binary_format import identifier
from changefeed.encoding.encode import encode_messages
from changefeed.encoding.plan import MessagePlan, SchemaIds
from tests.helpers.avro_model import KINDS, column, key_of, value_of
from tests.helpers.message_model import Row, _before, change, is_message, log_table, table

EXAMPLES = int(os.environ.get("CHANGEFEED_TEST_EXAMPLES", "200"))
NOW = 1_700_000_000_123_456_789
NAMES = st.sampled_from(["a", "A", "a.b", "`a`", 'q"uote', "ü", "1st", "$1", "f0", "op", "updated"])
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)

#: Those that Avro has.
ENVELOPES = [e for e in Envelope if e not in (Envelope.CHANGED, Envelope.DEBEZIUM)]


def _ints(bits: int) -> st.SearchStrategy[int]:
    return st.integers(min_value=-(2 ** (bits - 1)), max_value=2 ** (bits - 1) - 1)


def _fixed(digits: int, scale: int) -> st.SearchStrategy[str]:
    most = 10**digits - 1
    return st.integers(-most, most).map(lambda n: f"{Decimal(n).scaleb(-scale):f}")


NOT_NUMBERS = st.sampled_from(['"NaN"', '"Infinity"', '"-Infinity"'])
FLOATS = st.floats(allow_nan=False, allow_infinity=False).map(repr) | NOT_NUMBERS
NUMERICS = _fixed(60, 20) | NOT_NUMBERS
CLOCKS = st.builds(
    lambda h, m, s, us: f"{h:02d}:{m:02d}:{s:02d}" + (f".{us:06d}".rstrip("0") if us else ""),
    *(st.integers(0, most) for most in (23, 59, 59, 999_999)),
)
TIMES = CLOCKS | st.just("24:00:00")


@st.composite
def days(draw: st.DrawFn, last: int) -> str:
    year = draw(st.integers(-4711, last) | st.integers(1900, 2100))
    day = f"{draw(st.integers(1, 12)):02d}-{draw(st.integers(1, 28)):02d}"
    return f"{year:04d}-{day}" if year > 0 else f"{1 - year:04d}-{day} BC"


INFINITE = st.sampled_from(["infinity", "-infinity"])
DATES = days(5_874_000) | INFINITE


def _moments(zone: str) -> st.SearchStrategy[str]:
    def made(day: str, clock: str) -> str:
        date, _, era = day.partition(" ")
        return f"{date}T{clock}{'+00' if zone else ''} BC" if era else f"{date}T{clock}{zone}"

    return st.builds(made, days(294_000), CLOCKS) | INFINITE


def _arrays(elements: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    tokens = st.lists(st.just("null") | elements, max_size=4)
    return tokens.map(lambda items: f"[{','.join(items)}]")


def _quoted(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return values.map(lambda text: json.dumps(text, ensure_ascii=False))


BYTES = st.binary(max_size=6).map(lambda data: "\\x" + data.hex())
JSON = st.sampled_from(["{}", "null", '"x"', "[1, 2.50]", '{"b": 1, "a": [null]}'])

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "smallint": _ints(16),
    "integer": _ints(32),
    "bigint": _ints(64),
    "real": st.floats(width=32, allow_nan=False, allow_infinity=False).map(repr) | NOT_NUMBERS,
    "double precision": FLOATS,
    "numeric": NUMERICS,
    "numeric(20,4)": _fixed(20, 4) | st.just('"NaN"'),
    "numeric(50,2)": _fixed(50, 2),
    "numeric(3,-2)": st.integers(-999, 999).map(lambda n: str(n * 100)),
    "numeric(2,5)": _fixed(2, 5),
    "text": TEXTS,
    "bytea": BYTES,
    "uuid": st.uuids().map(str),
    "jsonb": JSON,
    "date": DATES,
    "time without time zone": TIMES,
    "time with time zone": CLOCKS.map(lambda text: text + "+02"),
    "timestamp without time zone": _moments(""),
    "timestamp with time zone": _moments("Z"),
    "interval": st.just("1 mon 2 days 03:04:05"),
    "inet": st.just("10.0.0.1"),
    "integer[]": _arrays(_ints(32).map(str)),
    "numeric[]": _arrays(NUMERICS),
    "double precision[]": _arrays(FLOATS),
    "boolean[]": _arrays(st.sampled_from(["true", "false"])),
    "text[]": _arrays(_quoted(TEXTS)),
    "date[]": _arrays(_quoted(DATES)),
    "bytea[]": _arrays(_quoted(BYTES)),
    "jsonb[]": _arrays(JSON),
}


@st.composite
def schemas(draw: st.DrawFn) -> TableSchema:
    names = draw(st.lists(NAMES, min_size=1, max_size=6, unique=True))
    columns = [column(name, draw(st.sampled_from(sorted(KINDS)))) for name in names]
    keyless = draw(st.booleans()) and draw(st.booleans())
    key = range(len(columns)) if keyless else [draw(st.integers(0, len(columns) - 1))]
    identity = BeforeImage.FULL if keyless else draw(st.sampled_from([*BeforeImage]))
    return table(columns, tuple(key), identity, keyless)


@st.composite
def plans(draw: st.DrawFn, schema: TableSchema) -> MessagePlan:
    names = [c.name for c in schema.columns]
    flags = st.booleans()
    return MessagePlan(
        schema,
        topic=draw(NAMES),
        format=Format.AVRO,
        envelope=draw(st.sampled_from(ENVELOPES)),
        diff=draw(flags),
        updated=draw(flags),
        mvcc_timestamp=draw(flags),
        key_in_value=draw(flags),
        topic_in_value=draw(flags),
        projection=draw(st.none() | st.lists(st.sampled_from(names), max_size=3).map(tuple)),
        deletes=draw(st.sampled_from([Deletes.YES, Deletes.NO, Deletes.ONLY])),
        collapse=draw(flags),
        registered=draw(st.none() | st.just(SchemaIds(7, 2**31 - 1))),
        avro_namespace=draw(st.sampled_from(["", "super"])),
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
        wall, logical = draw(st.integers(0, 2**63 - 1)), draw(st.integers(0, 2**31 - 1))
        after = None if op == "d" else values
        last = draw(st.booleans())
        rows.append(change(op, after, before, seq=seq, wall=wall, logical=logical, last=last))
    return rows


def _value(schema: TableSchema, i: int) -> st.SearchStrategy[Any]:
    values = VALUES[schema.columns[i].type_name]
    return values if i in schema.key and not schema.keyless else st.none() | values


@st.composite
def cases(draw: st.DrawFn) -> tuple[MessagePlan, list[Row]]:
    schema = draw(schemas())
    return draw(plans(schema)), draw(rows_of(schema))


def _plain(schema: Any) -> Any:
    """The schema with moments as the numbers they are: Python's years end at 9999."""
    if isinstance(schema, list):
        return [_plain(branch) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    plain = {name: _plain(part) for name, part in schema.items() if name != "__crdb__"}
    if plain.get("logicalType", "decimal") != "decimal":
        del plain["logicalType"]
    return plain


def _read(datum: bytes | None, schema: Any, schema_id: int | None) -> Any:
    if datum is None:
        return None
    if schema_id is not None:
        assert datum[:5] == b"\0" + schema_id.to_bytes(4, "big")
        datum = datum[5:]
    stream = io.BytesIO(datum)
    read = fastavro.schemaless_reader(stream, fastavro.parse_schema(_plain(schema)), None)
    assert not stream.read(), "bytes are left over"
    return read


def _escaped(value: Any, *, columns: bool = True) -> Any:
    if isinstance(value, dict):
        return {identifier(name): _escaped(part) for name, part in value.items()}
    return value


def _nan_is_nan(value: Any) -> Any:
    """NaN as something that equals itself."""
    if isinstance(value, dict):
        return {name: _nan_is_nan(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_nan_is_nan(part) for part in value]
    return "NaN" if isinstance(value, float) and value != value else value


def _check(plan: MessagePlan, rows: list[Row], made: list[Row]) -> None:
    ids = plan.registered
    keys, values = key_schema(plan), value_schema(plan)
    wanted = [row for row in rows if is_message(plan, row)]
    assert [m["seq"] for m in made] == [row["seq"] for row in wanted]
    for message, row in zip(made, wanted, strict=True):
        key = _read(message["key"], copy.deepcopy(keys), None if ids is None else ids.key)
        assert _nan_is_nan(key) == _escaped(_nan_is_nan(key_of(plan, row)))
        value = _read(message["value"], copy.deepcopy(values), None if ids is None else ids.value)
        assert _nan_is_nan(value) == _escaped(_nan_is_nan(value_of(plan, row, NOW)))


QUIET = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


@given(cases())
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=QUIET)
def test_avro_messages_equal_the_model(case: tuple[MessagePlan, list[Row]]) -> None:
    plan, rows = case
    made = encode_messages(log_table(plan.schema, rows), plan, now_ns=NOW)
    _check(plan, rows, made.to_pylist())


@st.composite
def parquet_cases(draw: st.DrawFn) -> tuple[MessagePlan, list[Row]]:
    schema = draw(schemas())
    flags = st.booleans()
    plan = MessagePlan(
        schema,
        topic="t",
        format=Format.PARQUET,
        envelope=draw(st.sampled_from([Envelope.WRAPPED, Envelope.BARE])),
        diff=draw(flags),
        updated=draw(flags),
        mvcc_timestamp=draw(flags),
        deletes=draw(st.sampled_from([Deletes.YES, Deletes.NO, Deletes.ONLY])),
    )
    return plan, draw(rows_of(schema))


def _has_nan(plan: MessagePlan, rows: list[Row]) -> bool:
    """A decimal column is no number somewhere: Parquet refuses it."""
    decimals = [
        i
        for i, c in enumerate(plan.schema.columns)
        if c.logical.precision and c.type_name != "numeric(50,2)"
    ]
    texts = (str(row.get(f"{side}{i}")) for row in rows for side in "ab" for i in decimals)
    return any(text.startswith('"') for text in texts)


@given(parquet_cases())
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=QUIET)
def test_parquet_rows_equal_the_model(case: tuple[MessagePlan, list[Row]]) -> None:
    plan, rows = case
    if _has_nan(plan, rows):
        return
    made = encode_messages(log_table(plan.schema, rows), plan, now_ns=NOW)
    wanted = [row for row in rows if is_message(plan, row)]
    assert made.num_rows == len(wanted)
    for batch in made.to_batches():
        columns = _numbered(pa.Table.from_batches([parquet_rows(batch)]))
        for row, found in zip(wanted, columns.to_pylist(), strict=True):
            assert _nan_is_nan(found) == _nan_is_nan(_parquet_row(plan, row))


def _numbered(table: pa.Table) -> pa.Table:
    """Moments as the numbers they are: Python's years end at 9999."""
    return pa.table(
        [_number(table[name].combine_chunks()) for name in table.column_names],
        names=table.column_names,
    )


def _number(column: pa.Array) -> pa.Array:
    if pa.types.is_date32(column.type):
        return column.cast(pa.int32())
    if pa.types.is_temporal(column.type):
        return column.cast(pa.int64())
    if pa.types.is_list(column.type) and pa.types.is_date32(column.type.value_type):
        return column.cast(pa.list_(pa.int32()))
    return column


def _parquet_row(plan: MessagePlan, row: Row) -> dict[str, Any]:
    """The row with the columns of ours, as a file has them."""
    delete = row["op"] == "d"
    bare = replace(plan, envelope=Envelope.BARE, format=Format.AVRO)
    value = value_of(bare, row, NOW)
    assert value is not None
    record: dict[str, Any] = value.pop("record")
    meta = {"event_type": {"d": "d", "u": "u"}.get(row["op"], "c"), **value}
    if plan.shows_before:
        there = delete or any(row.get(f"b{i}") is not None for i in plan.schema.key)
        meta["diff"] = _before(replace(plan, format=Format.JSON), row) if there else None
    return record | {f"__crdb__{name}": shown for name, shown in meta.items()}


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("timestamp without time zone", "294276-12-31T00:00:00"),
        ("integer[]", "[[1,2],[3,4]]"),
        ("text[]", '[["a"]]'),
    ],
)
def test_a_value_that_does_not_fit_is_an_error_that_names_the_column(kind: str, value: str) -> None:
    schema = table([column("id", "integer"), column("odd one", kind)])
    plan = MessagePlan(schema, "t", format=Format.AVRO)
    rows = log_table(schema, [change("c", [1, value])])
    with pytest.raises(ChangefeedError) as caught:
        encode_messages(rows, plan)
    assert caught.value.code.number == "CF4001"
    assert "odd one" in caught.value.message
    assert value not in f"{caught.value.message} {caught.value.detail}"


def test_parquet_refuses_nan_in_a_decimal() -> None:
    schema = table([column("id", "integer"), column("odd one", "numeric(20,4)")])
    rows = log_table(schema, [change("c", [1, '"NaN"'])])
    with pytest.raises(ChangefeedError, match="column odd one holds NaN"):
        encode_messages(rows, MessagePlan(schema, "t", format=Format.PARQUET))
