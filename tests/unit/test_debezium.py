"""Debezium's messages: what the comparison with Debezium (tests/e2e/test_debezium.py) does not
reach, and whatever numbers and bytes there are."""

from __future__ import annotations

import base64 as python_base64
import json
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError
from changefeed.core.log_form import form_of
from changefeed.core.schema import BeforeImage, Column, TableName, TableSchema
from changefeed.core.shapes import Envelope
from changefeed.encoding.byte_text import base64
from changefeed.encoding.compile import origin_of
from changefeed.encoding.debezium.fields import field_of
from changefeed.encoding.debezium.tokens import tokens, unscaled
from changefeed.encoding.encode import encode_messages
from changefeed.encoding.plan import MessagePlan, mark_payload
from tests.message_model import Row, change, log_table


def column(name: str, logical: str, written: str = "", nullable: bool = True) -> Column:
    physical, form = form_of(logical)
    return Column(name, written or logical, physical, form, logical, nullable)


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
        schema, "t", Envelope.DEBEZIUM, origin=origin_of("postgresql://u:p@h:5432/shop")
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


def test_marks_are_read_by_a_reader_of_schemas() -> None:
    at = Timestamp(7, 0)
    plain = mark_payload(Envelope.DEBEZIUM, "resolved", at)
    assert json.loads(plain) == {"resolved": "7.0000000000"}
    with_schemas = mark_payload(Envelope.DEBEZIUM, "resolved", at, schemas_enabled=True)
    assert json.loads(with_schemas) == {"schema": None, "payload": {"resolved": "7.0000000000"}}


def test_a_database_is_the_schema_where_there_is_no_other() -> None:
    mysql = replace(plan((KEY, TEXT)), origin=origin_of("mysql://h/shop"))
    ((_, _, value),) = sent(mysql, change("c", (1, "x")))
    assert value["source"]["connector"] == "mysql"
    assert value["source"]["db"] == "public"
    assert "schema" not in value["source"]
