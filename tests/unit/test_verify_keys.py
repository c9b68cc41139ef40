"""Which keys of rows that differ are sure enough to repair the rows one by one, and what is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from changefeed.catalog.model import RowRepair, TableProgress
from changefeed.core.partition import Members, Partition
from changefeed.core.schema import TableName
from changefeed.options import History
from changefeed.scan.repair import why_rescan
from changefeed.verify.keys import repair_of
from changefeed_testing.sinks.rows import table_of
from sinks.base import Accepts, Capabilities, Difference


def differing(kind: str, *values: str | int | bool) -> Difference:
    return Difference(kind, "[]", None, None, values)


def test_rows_are_told_apart_by_whether_the_source_has_them() -> None:
    key = table_of("t", key=("a", "b"), a="int64", b="text").key_columns
    found = repair_of(
        key,
        [
            differing("missing", "1", "x"),
            differing("extra", 2, "y"),
            differing("changed", -3, "é\\"),
        ],
    )
    assert found == RowRepair(((1, "x"), (-3, "é\\")), ((2, "y"),))
    assert RowRepair.from_json(found.to_json()) == found


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("int16", "32767", 32767),
        ("int16", -32768, -32768),
        ("int64", "-9223372036854775808", -(1 << 63)),
        ("bool", True, True),
        ("bool", "false", False),
        ("text", "", ""),
        ("uuid", "00000000-0000-0000-0000-00000000000a", "00000000-0000-0000-0000-00000000000a"),
        ("date", "2024-02-29", "2024-02-29"),
    ],
)
def test_a_value_is_as_the_log_has_it(
    kind: str, value: str | int | bool, expected: str | int | bool
) -> None:
    key = table_of("t", key=("a",), a=kind).key_columns
    found = repair_of(key, [differing("extra", value)])
    assert found == RowRepair(extra=((expected,),))
    assert [type(key[0]) for key in RowRepair().joined(found).extra] == [type(expected)]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("int16", "32768"),
        ("int64", "9223372036854775808"),
        ("int32", "1.0"),
        ("int32", "01"),
        ("int32", "x"),
        ("int32", True),
        ("int64", "9" * 5_000),
        ("bool", "t"),
        ("bool", 1),
        ("text", 5),
        ("text", "zero\0byte"),
        ("text", "\ud800"),
        ("uuid", "00000000-0000-0000-0000-00000000000A"),
        ("uuid", "x"),
        ("date", 19_000),
        ("date", "2023-02-29"),
        ("date", "infinity"),
        ("decimal", "1.50"),
        ("timestamptz", "2024-03-31 01:02:03Z"),
    ],
)
def test_a_value_in_doubt_is_no_key(kind: str, value: str | int | bool) -> None:
    key = table_of("t", key=("a",), a=kind).key_columns
    assert repair_of(key, [differing("extra", value)]) is None


def test_a_key_that_is_not_known_is_none() -> None:
    key = table_of("t", key=("a", "b"), a="int64", b="text").key_columns
    assert repair_of(key, [differing("missing")]) is None
    assert repair_of(key, [differing("missing", 1, "x"), differing("missing", 1)]) is None


class Plan:
    transactions = False


class Source:
    found = True

    def reads_keys(self, schema: object) -> bool:
        return self.found


ROWS = Capabilities(accepts=Accepts.ROWS, repairs=True)


def asked(**given: Any) -> str:
    """What :func:`why_rescan` says of a table that can be repaired, but for what is given."""
    schema = given.pop("schema", table_of("t", key=("a",), a="int32"))
    table = replace(TableProgress(TableName("shop", "public", "t"), "t"), **given.pop("of", {}))
    plan = given.pop("plan", Plan())
    usual: dict[str, Any] = {
        "source": Source(),
        "sink": ROWS,
        "history": History.OFF,
        "has_query": False,
    }
    return why_rescan(table, schema, cast(Any, plan), **(usual | given))


def test_why_a_table_is_read_again() -> None:
    assert not asked()
    assert not asked(sink=Capabilities(repairs=True), history=History.SCD2), "of messages"
    assert "no key" in asked(schema=table_of("t", a="int32"))
    assert "a query" in asked(has_query=True)
    part = Partition("p", (Members(1, ("x",)),))
    for of in ({"values_from": ("1",)}, {"values_to": ("1",)}, {"partition": part}):
        assert "a part of it" in asked(of=of)
    assert "single rows" in asked(sink=Capabilities())
    assert "history = 'scd2'" in asked(history=History.SCD2)
    plan, source = Plan(), Source()
    plan.transactions, source.found = True, False
    assert "transactions" in asked(plan=plan)
    assert "the source does not find" in asked(source=source)
