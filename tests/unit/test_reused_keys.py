"""``deletes = 'no'``: a row that took over the key of a deleted one does not get its values."""

from __future__ import annotations

import pyarrow as pa
import pytest

from changefeed.core.errors import ChangefeedError
from changefeed.core.shapes import Deletes, Unsent
from changefeed.encoding.plan import MessagePlan
from changefeed.encoding.reused_keys import end_unsent
from changefeed.encoding.typed_rows import RowPlan
from changefeed_testing.sinks.rows import RowChange, SourceDouble, delete, insert, table_of, update

SCHEMA = table_of("t", key=("k", "a"), a="int32", b="text", k="text", c="text")
PLAN = RowPlan(MessagePlan(SCHEMA, "t", deletes=Deletes.NO))
#: Rows 1 to 4, as the target has them.
KEPT: dict[int, str | None] = {a: f"of {a}" for a in range(1, 5)}

U = ["c"]  # what the source does not send


def row(a: int, **more: object) -> RowChange:
    return insert("t", a=a, b="x", k="k", **more)


def log(*transactions: tuple[RowChange, ...]) -> pa.Table:
    """What happened after rows 1 to 4 were there."""
    source = SourceDouble(SCHEMA)
    source.commit(*(row(a, c=c) for a, c in KEPT.items()))
    begun = len(source.log)
    for changes in transactions:
        source.commit(*changes)
    rows = [entry.row for entry in source.log[begun:]]
    return pa.Table.from_pylist(rows, schema=SCHEMA.log_schema())


def delivered(rows: pa.Table) -> dict[int, str | None]:
    """``c`` by ``a`` in a target that keeps what is unsent."""
    there = dict(KEPT)
    for one in rows.to_pylist():
        if one["op"] == "d":
            raise AssertionError("a delete is delivered")
        if one["missing"] is None:
            there[one["a0"]] = one["a3"]
        else:
            assert one["a3"] is None and one["a0"] in there, "nothing is kept of no row"
    return there


CASES: dict[str, tuple[list[tuple[RowChange, ...]], dict[int, str | None]]] = {
    "nothing of it is reused": (
        [(update("t", {"a": 1}, U, b="y"), delete("t", a=2))],
        {},
    ),
    "deleted in a transaction before": (
        [(delete("t", a=1),), (update("t", {"a": 2}, U, a=1),)],
        {1: None},
    ),
    "deleted in the same transaction": (
        [(delete("t", a=1), update("t", {"a": 2}, U, a=1))],
        {1: None},
    ),
    "and changed again": (
        [(delete("t", a=1), update("t", {"a": 2}, U, a=1), update("t", {"a": 1}, U, b="y"))],
        {1: None},
    ),
    "and sent then": (
        [(update("t", {"a": 2}, U, a=5),), (update("t", {"a": 5}, c="sent"),)],
        {5: "sent"},
    ),
    "a chain of keys": (
        [(delete("t", a=3), update("t", {"a": 2}, U, a=3), update("t", {"a": 1}, U, a=2))],
        {3: None, 2: None},
    ),
    "a swap": (
        [(update("t", {"a": 1}, U, a=9), update("t", {"a": 2}, U, a=1),
          update("t", {"a": 9}, U, a=2))],
        {1: None, 2: None, 9: None},
    ),
    "an insert that its own transaction updates is sent": (
        [(row(7, c="own"), delete("t", a=3), update("t", {"a": 7}, U, b="y"))],
        {7: "own"},
    ),
    "there and back": (
        [(update("t", {"a": 1}, U, a=6), update("t", {"a": 6}, U, a=1))],
        {1: None, 6: None},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_an_unsent_value_is_never_that_of_a_deleted_row(case: str) -> None:
    transactions, changed = CASES[case]
    assert delivered(PLAN.rows(log(*transactions))) == KEPT | changed


def test_an_insert_of_a_chunk_before_goes_on() -> None:
    """A large transaction is cut: what updates its insert has the operation of an insert."""
    table = log((row(7, c="own"), delete("t", a=3), update("t", {"a": 7}, U, b="y")))
    assert table["op"].to_pylist() == ["c", "d", "c"]
    assert PLAN.rows(table.slice(2))["missing"].to_pylist() == ['["c"]']


def test_rows_that_lack_nothing_stay_as_they_are() -> None:
    table = log((update("t", {"a": 1}, b="y"), delete("t", a=2), update("t", {"a": 3}, a=2)))
    assert PLAN.rows(table)["a0"].to_pylist() == [1, 2]
    assert end_unsent(table, PLAN.plan) is table


def test_a_feed_that_takes_no_unsent_value_still_stops() -> None:
    plan = RowPlan(MessagePlan(SCHEMA, "t", deletes=Deletes.NO, unsent=Unsent.FAIL))
    with pytest.raises(ChangefeedError, match="column c of shop"):
        plan.rows(log((delete("t", a=1), update("t", {"a": 2}, U, a=1))))
    with_deletes = RowPlan(MessagePlan(SCHEMA, "t"))
    rows = with_deletes.rows(log((delete("t", a=1),), (update("t", {"a": 2}, U, a=1),)))
    assert rows["missing"].to_pylist() == [None, None, '["c"]'], "a target that hears of deletes"
