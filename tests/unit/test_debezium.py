"""Debezium's messages: what the comparison with Debezium (tests/e2e/test_debezium.py) does not
reach, and whatever numbers and bytes there are."""

from __future__ import annotations

import base64 as python_base64
import io
import json
from dataclasses import replace
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError
from changefeed.core.formats import Format
from changefeed.core.schema import BeforeImage, Column, TableName, TableSchema
from changefeed.core.shapes import Envelope
from changefeed.core.types import LogicalType
from changefeed.encoding.compile import origin_of
from changefeed.encoding.debezium import avro
from changefeed.encoding.debezium.connect_values import unscaled
from changefeed.encoding.debezium.fields import field_of
from changefeed.encoding.debezium.tokens import base64, tokens
from changefeed.encoding.encode import encode_messages
from changefeed.encoding.plan import MessagePlan, SchemaIds, control_payload
from tests.helpers.message_model import Row, change, log_table


def column(name: str, logical: str, written: str = "", nullable: bool = True) -> Column:
    return Column(name, written or logical, LogicalType.parse(logical), nullable)


def values(logical: str, written: str, *texts: str | None) -> list[Any]:
    """What a reader of JSON gets for values of the log."""
    of = column("c", logical, written)
    made = tokens(field_of(of), of, pa.array(texts, pa.string()))
    return [json.loads(token) for token in made.to_pylist()]


def plan(
    columns: tuple[Column, ...], image: BeforeImage = BeforeImage.FULL, keyless: bool = False
) -> MessagePlan:
    key = tuple(range(len(columns))) if keyless else (0,)
    schema = TableSchema(TableName("shop", "public", "t"), columns, key, image, keyless)
    return MessagePlan(
        schema, "t", Envelope.DEBEZIUM, origin=origin_of("postgresql://u:p@h:5432/shop", "shop")
    )


KEY, TEXT = column("id", "int64", "bigint", nullable=False), column("b", "text")


def sent(of: MessagePlan, *rows: Row, **more: Any) -> list[tuple[str, str | None, Any]]:
    made = encode_messages(log_table(of.schema, rows), of, now_ns=1_500_000, **more).to_pylist()
    return [
        (m["op"], m["key"].decode(), None if m["value"] is None else json.loads(m["value"]))
        for m in made
    ]


@given(st.lists(st.one_of(st.none(), st.binary(max_size=40)), max_size=30), st.integers(0, 5))
def test_base64_of_any_bytes(data: list[bytes | None], start: int) -> None:
    made = base64(pa.array(data, pa.binary()).slice(min(start, len(data))))
    assert made.to_pylist() == [
        None if value is None else python_base64.b64encode(value).decode() for value in data[start:]
    ]


@given(
    st.lists(
        st.one_of(
            st.integers(-(2**70), 2**70), st.integers(-(10**80), 10**80), st.integers(-300, 300)
        ),
        min_size=1,
    )
)
def test_digits_of_any_length_are_the_shortest_number(numbers: list[int]) -> None:
    made = unscaled(pa.array([*map(str, numbers), None])).to_pylist()
    assert made.pop() is None
    assert [int.from_bytes(data, "big", signed=True) for data in made] == numbers
    for data in made:
        assert len(data) == 1 or data[:1] not in (b"\x00", b"\xff") or (data[0] ^ data[1]) & 0x80


def test_moments_at_the_edges() -> None:
    micros = values("timestamp", "timestamp without time zone", "infinity", "1969-12-31T23:59:59.9")
    assert micros == [9223372036825200000, -100_000]
    millis = values("timestamp", "datetime(3)", "1969-12-31T23:59:59.9999", "1970-01-01T00:00:00")
    assert millis == [-1, 0]
    assert values("timestamptz", "timestamp(0) with time zone", "2024-03-31T01:02:03Z") == [
        "2024-03-31T01:02:03Z"
    ]
    assert values("time", "time without time zone", "24:00:00", None) == [86_400_000_000, None]
    assert values("timetz", "time with time zone", "24:00:00+00", "00:00:00+14:30") == [
        "00:00:00Z",
        "09:30:00Z",
    ]


def test_intervals() -> None:
    assert values("interval", "interval", "-1 days +02:00:00", "1 mon", "00:00:00.000001") == [
        -79_200_000_000,
        2_629_800_000_000,
        1,
    ]
    assert values("interval", "time(3)", "-00:00:00.5", "838:59:59") == [
        -500_000,
        3_020_399_000_000,
    ]


@pytest.mark.parametrize("logical", ["decimal", "decimal(12,2)"])
def test_a_decimal_that_is_no_number_is_refused(logical: str) -> None:
    with pytest.raises(ChangefeedError, match="column c holds NaN or infinity") as caught:
        values(logical, "numeric", "1.50", '"NaN"')
    assert caught.value.code == "CF4001"


def test_a_value_that_does_not_fit_is_named() -> None:
    with pytest.raises(ChangefeedError, match="a value of column c does not fit"):
        values("interval", "interval", "P1D")


def test_a_delete_is_followed_by_a_tombstone() -> None:
    found = sent(
        plan((KEY, TEXT)),
        change("c", (1, "x")),
        change("d", None, {"0": 2, "1": "y"}),
        change("u", (3, "z"), {"0": 3, "1": "y"}),
        change("d", None, {"0": 4, "1": None}),
    )
    assert [(op, key, value and value["op"]) for op, key, value in found] == [
        ("c", '{"id":1}', "c"),
        ("d", '{"id":2}', "d"),
        ("d", '{"id":2}', None),
        ("u", '{"id":3}', "u"),
        ("d", '{"id":4}', "d"),
        ("d", '{"id":4}', None),
    ]
    assert found[1][2]["before"] == {"id": 2, "b": "y"}
    assert found[3][2]["before"] == {"id": 3, "b": "y"}


def test_a_table_without_a_key_has_no_tombstones() -> None:
    keyless = plan((KEY, TEXT), keyless=True)
    found = sent(keyless, change("d", None, {"0": 2, "1": "y"}))
    assert [value["op"] for _, _, value in found] == ["d"]


def test_source_and_times() -> None:
    ((_, _, value),) = sent(plan((KEY, TEXT)), change("c", (1, "x"), seq=5, xid=9, commit_us=2_345))
    assert value["source"] == {
        "version": value["source"]["version"],
        "connector": "postgresql",
        "name": "shop",
        "ts_ms": 2,
        "snapshot": "false",
        "db": "shop",
        "sequence": '[null,"5"]',
        "ts_us": 2_345,
        "ts_ns": 2_345_000,
        "schema": "public",
        "table": "t",
        "txId": 9,
    }
    assert (value["ts_ms"], value["ts_us"], value["ts_ns"]) == (1, 1_500, 1_500_000)


def test_rows_of_a_scan_are_a_snapshot() -> None:
    ((_, _, value),) = sent(plan((KEY, TEXT)), change("r", (1, "x")), scan=True)
    assert (value["op"], value["before"], value["source"]["snapshot"]) == ("r", None, "true")
    assert value["source"]["txId"] is None


def test_a_value_that_was_not_sent_has_debezium_s_placeholder() -> None:
    columns = (KEY, TEXT, column("j", "json"), column("l", "bytes"), column("y", "array<text>"))
    row = change("u", (1, None, None, None, None), missing='["b", "j", "l", "y"]')
    ((_, _, value),) = sent(plan(columns, BeforeImage.KEY), row)
    unsent = "__debezium_unavailable_value"
    assert value["after"] == {
        "id": 1,
        "b": unsent,
        "j": unsent,
        "l": python_base64.b64encode(unsent.encode()).decode(),
        "y": [unsent],
    }
    assert value["before"] is None


@pytest.mark.parametrize(
    ("logical", "placeholder"),
    [
        ("array<int32>", list(b"__debezium_unavailable_value")),
        ("array<int64>", list(b"__debezium_unavailable_value")),
        ("array<date>", list(b"__debezium_unavailable_value")),
        ("array<bytes>", ["X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="]),
        # What Java's UUID.nameUUIDFromBytes makes of the placeholder.
        ("array<uuid>", ["b68a35a7-17ad-35b3-af2a-ae46edb4545a"]),
        ("array<json>", "__debezium_unavailable_value"),
    ],
)
def test_an_array_that_was_not_sent_has_debezium_s_placeholder(
    logical: str, placeholder: object
) -> None:
    columns = (KEY, column("v", logical))
    ((_, _, value),) = sent(plan(columns, BeforeImage.KEY), change("u", (1, None), missing='["v"]'))
    assert value["after"] == {"id": 1, "v": placeholder}


@pytest.mark.parametrize("logical", ["array<int16>", "array<float64>", "decimal", "decimal(12,2)"])
def test_a_value_that_was_not_sent_and_has_no_placeholder_is_refused(logical: str) -> None:
    columns = (KEY, column("n", logical))
    with pytest.raises(ChangefeedError, match="a value of column n of") as caught:
        sent(plan(columns, BeforeImage.KEY), change("u", (1, None), missing='["n"]'))
    assert caught.value.code == "CF4001"
    assert "REPLICA IDENTITY FULL" in caught.value.hint


def test_marks_are_read_by_a_reader_of_schemas() -> None:
    at = Timestamp(7, 0)
    plain = control_payload(Envelope.DEBEZIUM, "resolved", at)
    assert json.loads(plain) == {"resolved": "7.0000000000"}
    with_schemas = control_payload(Envelope.DEBEZIUM, "resolved", at, schemas_enabled=True)
    assert json.loads(with_schemas) == {"schema": None, "payload": {"resolved": "7.0000000000"}}


def test_a_database_is_the_schema_where_there_is_no_other() -> None:
    mysql = replace(plan((KEY, TEXT)), origin=origin_of("mysql://h/shop", "shop"))
    ((_, _, value),) = sent(mysql, change("c", (1, "x")))
    assert value["source"]["connector"] == "mysql"
    assert value["source"]["db"] == "public"
    assert "schema" not in value["source"]


# ------------------------------------------------------------------------------- Avro

#: A column of every way a value goes, with values of the log.
EVERY: tuple[tuple[str, str, tuple[Any, ...]], ...] = (
    ("bool", "boolean", (True, False)),
    ("int16", "smallint", (-1, 7)),
    ("int32", "year", (2024, 1999)),
    ("int64", "bigint", (-(2**63), 2**63 - 1)),
    ("float32", "real", ("1.5", "-0.25")),
    ("float64", "double precision", ("1e300", "0.1")),
    ("decimal(12,2)", "numeric(12,2)", ("-12.50", "0.00")),
    ("decimal(20,0)", "bigint unsigned", ("18446744073709551615", "1")),
    ("decimal", "numeric", ("1" * 60 + ".5", "-3")),
    ("text", "text", ('t\u00e4"x', "")),
    ("text", "enum('a','b')", ("a", "b")),
    ("json", "jsonb", ('{"a": 1}', "null")),
    ("bytes", "bytea", ("\\x00ff", "\\x")),
    ("bytes", "bit(12)", ("\\x0502", "\\x0000")),
    ("other", "bit(1)", ("1", "0")),
    ("other", "bit(12)", ("010100000010", "000000000000")),
    ("other", "inet", ("10.0.0.1", "::1")),
    ("uuid", "uuid", ("6a2f4c1e-0d5b-4f0e-9a57-0c1f5f1f0c11",) * 2),
    ("date", "date", ("2024-03-31", "1969-12-31")),
    ("time", "time(2) without time zone", ("01:02:03.25", "00:00:00")),
    ("timetz", "time with time zone", ("01:02:03+02", "00:00:00+00")),
    ("timestamp", "timestamp without time zone", ("2024-03-31T01:02:03.5", "infinity")),
    ("timestamptz", "timestamp with time zone", ("2024-03-31T01:02:03.5Z", "2024-03-31T01:02:03Z")),
    ("interval", "interval", ("1 mon", "-00:00:01")),
    ("interval", "time", ("-838:59:59", "00:00:00")),
    ("array<int32>", "integer[]", ("[1,null,3]", "[]")),
    ("array<text>", "text[]", ('["a",null,"b,c"]', "[]")),
    ("array<decimal(8,2)>", "numeric(8,2)[]", ("[1.50,null]", "[-1.00]")),
    ("array<timestamp>", "timestamp without time zone[]", ('["2024-03-31T01:02:03.5"]', "[]")),
    ("array<float64>", "double precision[]", ("[1.5,null]", "[]")),
)


def of_every_type(nullable: bool, image: BeforeImage) -> tuple[MessagePlan, list[Row]]:
    """Changes of a table that has every type."""
    columns = [
        column(f"c{n}", logical, written, nullable) for n, (logical, written, _) in enumerate(EVERY)
    ]
    of = plan((KEY, *columns), image)
    first, second = ([1, *(values[n] for _, _, values in EVERY)] for n in (0, 1))
    old = dict(zip(map(str, of.schema.before_ordinals), first, strict=False))
    rows = [
        change("c", first),
        change("u", second, old if image is BeforeImage.FULL else {"0": 1}),
        change("d", None, old),
    ]
    rows.append(change("c", [2, *[None] * len(columns)]))
    return of, rows


def as_json(value: Any) -> Any:
    """A datum as JSON has it."""
    if isinstance(value, bytes):
        return python_base64.b64encode(value).decode()
    if isinstance(value, dict):
        return {name: as_json(member) for name, member in value.items()}
    return [as_json(item) for item in value] if isinstance(value, list) else value


def without_logical_types(schema: Any) -> Any:
    """A schema whose decimals a reader leaves as the bytes they are."""
    if isinstance(schema, dict):
        return {n: without_logical_types(s) for n, s in schema.items() if n != "logicalType"}
    return [without_logical_types(s) for s in schema] if isinstance(schema, list) else schema


@pytest.mark.parametrize("image", BeforeImage)
@pytest.mark.parametrize("nullable", [True, False])
def test_avro_holds_what_json_does(nullable: bool, image: BeforeImage) -> None:
    of, rows = of_every_type(nullable, image)
    log = log_table(of.schema, rows)
    texts = encode_messages(log, of, now_ns=5).to_pylist()
    binary = replace(of, format=Format.AVRO, registered=SchemaIds(3, 260))
    found = encode_messages(log, binary, now_ns=5).to_pylist()
    assert len(found) == len(texts) == len(rows) + 1
    key, value = (
        fastavro.parse_schema(without_logical_types(schema))
        for schema in (avro.key_schema(binary), avro.value_schema(binary))
    )
    for got, text in zip(found, texts, strict=True):
        assert got["key"][:5] == b"\0\0\0\0\3"
        read = fastavro.schemaless_reader(io.BytesIO(got["key"][5:]), key, None)
        assert as_json(read) == json.loads(text["key"])
        assert (got["value"] is None) == (text["value"] is None)
        if got["value"] is not None:
            assert got["value"][:5] == b"\0\0\0\1\4"
            stream = io.BytesIO(got["value"][5:])
            assert as_json(fastavro.schemaless_reader(stream, value, None)) == json.loads(
                text["value"]
            )
            assert stream.read() == b""


def test_avro_s_names_are_debezium_s() -> None:
    of = replace(
        plan((KEY, column("n", "decimal(12,2)"), column("at", "date", nullable=False))),
        format=Format.AVRO,
        topic="shop.my-orders",
        avro_namespace="de.",
    )
    assert avro.key_schema(of) == {
        "type": "record",
        "name": "Key",
        "namespace": "de.shop.my_u002d_orders",
        "fields": [{"name": "id", "type": "long"}],
        "connect.name": "de.shop.my_u002d_orders.Key",
    }
    before, after, source, transaction, *_ = avro.value_schema(of)["fields"]
    assert before == {"name": "before", "type": ["null", before["type"][1]], "default": None}
    assert before["type"][1]["fields"] == [
        {"name": "id", "type": "long"},
        {
            "name": "n",
            "type": [
                "null",
                {
                    "type": "bytes",
                    "connect.version": 1,
                    "connect.parameters": {"scale": "2", "connect.decimal.precision": "12"},
                    "connect.name": "org.apache.kafka.connect.data.Decimal",
                    "logicalType": "decimal",
                    "scale": 2,
                    "precision": 12,
                },
            ],
            "default": None,
        },
        {
            "name": "at",
            "type": {
                "type": "int",
                "connect.version": 1,
                "connect.name": "io.debezium.time.Date",
            },
        },
    ]
    assert after["type"] == ["null", "de.shop.my_u002d_orders.Value"]
    assert source["type"]["connect.name"] == "io.debezium.connector.postgresql.Source"
    assert transaction["type"][1]["connect.name"] == "event.block"


def test_a_null_that_must_not_be_is_zero_as_in_debezium() -> None:
    columns = (
        KEY,
        *(
            column(f"c{n}", logical, written, False)
            for n, (logical, written, _) in enumerate(EVERY)
        ),
    )
    ((_, _, value), _) = sent(plan(columns, BeforeImage.KEY), change("d", None, {"0": 1}))
    zeros = {
        "boolean": False,
        "numeric(12,2)": "AA==",
        "numeric": {"scale": 0, "value": "AA=="},
        "timestamp with time zone": "1970-01-01T00:00:00Z",
        "time with time zone": "00:00:00Z",
        "text": "",
        "bigint": 0,
        "integer[]": [],
    }
    for n, (_, written, _) in enumerate(EVERY):
        assert written not in zeros or value["before"][f"c{n}"] == zeros[written], written
