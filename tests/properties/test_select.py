"""Ranges of keys and conditions of partitions against comparisons of plain Python values."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from changefeed.core.errors import ChangefeedError
from changefeed.core.partition import KeyInterval, Members, PartitionCondition
from changefeed.core.schema import BeforeImage, Column, TableSchema
from changefeed.core.shapes import Deletes
from changefeed.core.types import LogicalType
from changefeed.encoding.plan import MessagePlan
from changefeed.encoding.select import wanted_rows
from tests.helpers.message_model import Row, change, log_table, table


@dataclass(frozen=True)
class Value:
    """A value of a column: what Python compares, what the log has, and a bound that means it."""

    compared: Any
    logged: Any
    text: str


def _integers(greatest: int) -> list[Value]:
    return [Value(n, n, str(n)) for n in (-greatest - 1, -1, 0, 9, 10, greatest)]


def _texts(*found: str) -> list[Value]:
    return [Value(text, text, text) for text in found]


def _numbers() -> list[Value]:
    """NaN is above infinity, as in PostgreSQL; 1 and 1.0 are one number."""
    texts = ["-12345678901234567890123456789012345678", "-0.5", "0", "0.0", "1", "1.00", "9", "10"]
    texts += ["12345678901234567890123456789012345678.0000000000000000000000000000000000001"]
    beyond = [('"-Infinity"', -1, Decimal(0)), ('"Infinity"', 1, Decimal(0))]
    beyond += [('"NaN"', 2, Decimal(0))]
    return [Value((0, Decimal(t)), t, t) for t in texts] + [
        Value((n, zero), text, text) for text, n, zero in beyond
    ]


def _dates(time: str = "") -> list[Value]:
    days = ["0001-01-01", "1999-12-31", "9999-12-31", "10000-01-01", "10000-02-01"]
    days += ["99999-01-01", "100000-01-01", "294276-12-31", "5874897-12-31"]
    found = [Value((0, *map(int, d.split("-"))), d + time, d + time) for d in days]
    return [
        Value((-1,), "-infinity", "-infinity"),
        *found,
        Value((1,), "infinity", "infinity"),
    ]


def _instants(zone: str) -> list[Value]:
    """A fraction of a second is above the whole second, and a second later is above both."""
    begin = dt.datetime(2024, 2, 29, 23, 59, 58)
    found = []
    for micros in (0, 1, 500_000, 1_000_000, 2_000_000, 2_100_000):
        moment = begin + dt.timedelta(microseconds=micros)
        text = moment.isoformat().rstrip("0") if micros % 1_000_000 else moment.isoformat()
        found.append(Value((0, 2024, micros), text + zone, text + zone))
    return found


KINDS: dict[str, tuple[Column, list[Value]]] = {
    "int16": (Column("", "smallint", LogicalType.parse("int16"), True), _integers(2**15 - 1)),
    "int64": (Column("", "bigint", LogicalType.parse("int64"), True), _integers(2**63 - 1)),
    "bool": (
        Column("", "boolean", LogicalType.parse("bool"), True),
        [Value(text[0] == "t", text[0] == "t", text) for text in ("f", "false", "t", "true")],
    ),
    "text": (
        Column("", "text", LogicalType.parse("text"), True),
        _texts("", " ", "10", "9", "A", "Z", "a", "é", "z", "\uffff", "😀"),
    ),
    "uuid": (
        Column("", "uuid", LogicalType.parse("uuid"), True),
        _texts("00000000-0000-0000-0000-000000000009", "a0000000-0000-0000-0000-000000000000"),
    ),
    "decimal": (Column("", "numeric", LogicalType.parse("decimal"), True), _numbers()),
    "date": (Column("", "date", LogicalType.parse("date"), True), _dates()),
    "timestamp": (
        Column("", "timestamp", LogicalType.parse("timestamp"), True),
        _dates("T00:00:00") + _instants(""),
    ),
    "timestamptz": (
        Column("", "timestamptz", LogicalType.parse("timestamptz"), True),
        _dates("T00:00:00Z") + _instants("Z"),
    ),
}


def schema_of(kinds: Sequence[str]) -> TableSchema:
    columns = [
        replace(KINDS[kind][0], name=f"c{n}", column_id=11 + n) for n, kind in enumerate(kinds)
    ]
    return table(columns, range(len(kinds)), BeforeImage.FULL)


@st.composite
def cases(draw: st.DrawFn, nulls: bool) -> tuple[TableSchema, list[str], list[list[Value | None]]]:
    kinds = draw(st.lists(st.sampled_from(list(KINDS)), min_size=1, max_size=3))
    values = [st.sampled_from(KINDS[kind][1]) for kind in kinds]
    row = st.tuples(*(st.none() | value if nulls else value for value in values))
    return schema_of(kinds), kinds, [list(r) for r in draw(st.lists(row, max_size=10))]


def logged(rows: Sequence[Sequence[Value | None]], schema: TableSchema) -> list[Row]:
    """Every other row is deleted: its values are those before the change."""
    found = []
    for seq, row in enumerate(rows):
        values = [None if value is None else value.logged for value in row]
        if seq % 2:
            before = {str(i): value for i, value in enumerate(values)}
            found.append(change("d", None, before, seq=seq))
        else:
            found.append(change("u", values, seq=seq))
    return found


def bounds(data: st.DataObject, kinds: Sequence[str]) -> list[Value]:
    count = data.draw(st.integers(0, len(kinds)))
    return [data.draw(st.sampled_from(KINDS[kind][1])) for kind in kinds[:count]]


def compared(values: Sequence[Value]) -> list[Any]:
    return [value.compared for value in values]


def texts(values: Sequence[Value]) -> tuple[str, ...]:
    return tuple(value.text for value in values)


def chosen(plan: MessagePlan, rows: Sequence[Sequence[Value | None]]) -> list[int]:
    """Numbers of the rows that become messages: as changes, and as rows of a scan alike."""
    stored = log_table(plan.schema, logged(rows, plan.schema))
    found: list[int] = wanted_rows(stored, plan)["seq"].to_pylist()
    values = [
        change("r", [v.logged if v else None for v in row], seq=n) for n, row in enumerate(rows)
    ]
    kept = [name for name in stored.column_names if name == "seq" or name.startswith("a")]
    scanned = wanted_rows(log_table(plan.schema, values).select(kept), plan, scan=True)
    assert scanned["seq"].to_pylist() == found
    return found


@settings(deadline=None)
@given(st.data())
def test_a_range_of_keys_has_its_begin_and_not_its_end(data: st.DataObject) -> None:
    schema, kinds, rows = data.draw(cases(nulls=False))
    low, high = bounds(data, kinds), bounds(data, kinds)
    plan = MessagePlan(schema, topic="t", key_from=texts(low), key_to=texts(high))
    expected = []
    for number, row in enumerate(rows):
        values = [value.compared for value in row if value is not None]
        above = values[: len(low)] >= compared(low)
        below = not high or values[: len(high)] < compared(high)
        if above and below:
            expected.append(number)
    assert chosen(plan, rows) == expected


@settings(deadline=None)
@given(st.data())
def test_an_interval_of_a_partition(data: st.DataObject) -> None:
    """Its columns stand in an order of their own; a row with a NULL in one is in none."""
    schema, kinds, rows = data.draw(cases(nulls=True))
    order = data.draw(st.permutations(range(len(kinds))))
    ordered = [kinds[i] for i in order]
    low, high = bounds(data, ordered), bounds(data, ordered)
    excluded, included = data.draw(st.booleans()), data.draw(st.booleans())
    interval = KeyInterval(
        tuple(11 + i for i in order), texts(low), texts(high), excluded, included
    )
    expected = []
    for number, row in enumerate(rows):
        found = [row[i] for i in order]
        values = [value.compared for value in found if value is not None]
        if len(values) < len(found):
            continue
        head, tail = values[: len(low)], values[: len(high)]
        above = head > compared(low) if excluded and low else head >= compared(low)
        below = tail <= compared(high) if included or not high else tail < compared(high)
        if above and below:
            expected.append(number)
    assert chosen(_within(schema, interval), rows) == expected


@settings(deadline=None)
@given(st.data())
def test_the_members_of_a_partition(data: st.DataObject) -> None:
    schema, kinds, rows = data.draw(cases(nulls=True))
    place = data.draw(st.integers(0, len(kinds) - 1))
    member = st.none() | st.sampled_from(KINDS[kinds[place]][1])
    members = data.draw(st.lists(member, min_size=1, max_size=3))
    condition = Members(11 + place, tuple(m.text if m else None for m in members))
    wanted = [m.compared if m else None for m in members]
    found = [row[place] for row in rows]
    expected = [n for n, v in enumerate(found) if (v.compared if v else None) in wanted]
    assert chosen(_within(schema, condition), rows) == expected


def _within(schema: TableSchema, condition: PartitionCondition) -> MessagePlan:
    return MessagePlan(schema, topic="t", within=(condition,))


@pytest.mark.parametrize(
    ("deletes", "collapse", "expected"),
    [
        (Deletes.YES, False, [0, 1, 2, 3]),
        (Deletes.NO, False, [0, 2]),
        (Deletes.ONLY, False, [1, 3]),
        (Deletes.YES, True, [2, 3]),
        (Deletes.ONLY, True, [3]),
    ],
)
def test_kinds_of_changes(deletes: Deletes, collapse: bool, expected: list[int]) -> None:
    schema = schema_of(["int64"])
    rows = logged([[value] for value in _integers(99)[:4]], schema)
    rows = [row | {"last": n > 1} for n, row in enumerate(rows)]
    plan = MessagePlan(schema, topic="t", deletes=deletes, collapse=collapse)
    stored = log_table(schema, rows)
    assert wanted_rows(stored, plan)["seq"].to_pylist() == expected
    assert wanted_rows(stored, plan, scan=True).num_rows == 4, "of a scan there is nothing else"


@pytest.mark.parametrize(
    ("kind", "value", "code"),
    [
        ("date", "0044-03-15 BC", "CF4001"),
        ("timestamptz", "0044-03-15T00:00:00Z BC", "CF4001"),
        ("decimal", "9" * 39, "CF4001"),
        ("decimal", "0." + "0" * 37 + "1", "CF4001"),
    ],
)
def test_a_value_without_an_order_stops_the_table(kind: str, value: str, code: str) -> None:
    """It is never taken for one inside or outside."""
    schema = schema_of([kind])
    least = texts(KINDS[kind][1][1:2])
    stored = log_table(schema, [change("c", [v]) for v in (None, value, None)])
    with pytest.raises(ChangefeedError) as caught:
        wanted_rows(stored, MessagePlan(schema, topic="t", key_from=least))
    assert caught.value.code.number == code and "c0" in str(caught.value)


@pytest.mark.parametrize("kind", list(KINDS))
def test_every_value_of_a_kind_against_every_bound(kind: str) -> None:
    """The properties draw some of them; an order has to hold for all."""
    schema, values = schema_of([kind]), KINDS[kind][1]
    for bound in values:
        plan = MessagePlan(schema, topic="t", key_from=(bound.text,))
        beyond = [n for n, value in enumerate(values) if value.compared >= bound.compared]
        assert chosen(plan, [[value] for value in values]) == beyond, bound.text


def test_a_numeric_key_may_have_37_digits_behind_the_point() -> None:
    least = "0." + "0" * 36 + "1"
    plan = MessagePlan(schema_of(["decimal"]), topic="t", key_from=("0",), key_to=(least,))
    stored = log_table(
        plan.schema, [change("c", [value], seq=n) for n, value in enumerate(("0", least))]
    )
    assert wanted_rows(stored, plan)["seq"].to_pylist() == [0]


def test_the_error_says_how_many_digits_can_be_compared() -> None:
    schema = schema_of(["decimal"])
    plan = MessagePlan(schema, topic="t", key_from=("0",))
    most = "9" * 38 + "." + "9" * 37
    assert wanted_rows(log_table(schema, [change("c", [most])]), plan).num_rows == 1
    with pytest.raises(ChangefeedError) as caught:
        wanted_rows(log_table(schema, [change("c", [most + "9"])]), plan)
    assert caught.value.detail == "up to 38 before the point and 37 after it"


def test_a_numeric_range_may_have_no_row_of_a_chunk() -> None:
    """Those that its begin leaves out are none for its end to look at."""
    schema = schema_of(["decimal"])
    plan = MessagePlan(schema, topic="t", key_from=("10",), key_to=("20",))
    assert wanted_rows(log_table(schema, [change("c", ["9"])]), plan).num_rows == 0
    assert wanted_rows(log_table(schema, []), plan).num_rows == 0


def test_a_key_whose_type_has_no_order_has_no_ranges() -> None:
    column = Column("c", "jsonb", LogicalType.parse("json"), True)
    schema = table([column], (0,), BeforeImage.FULL)
    stored = log_table(schema, [change("c", ["{}"])])
    with pytest.raises(ChangefeedError, match="type jsonb") as caught:
        wanted_rows(stored, MessagePlan(schema, topic="t", key_from=("1",)))
    assert caught.value.code.number == "CF1302"
