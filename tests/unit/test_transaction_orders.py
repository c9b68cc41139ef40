"""Places of changes in their transactions, and the begin and the end of these as messages."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from changefeed.core.clock import Timestamp
from changefeed.core.schema import TableName
from changefeed.core.shapes import Envelope
from changefeed.encoding.encode import encode_messages
from changefeed.encoding.plan import MessagePlan
from changefeed.encoding.transactions import TransactionOrders, boundary_messages
from tests.helpers.message_model import change, column, log_table, table

A, B = (TableName("shop", "public", name) for name in "ab")
SHAPE = table([column("id", "int4")])


def rows(*changes: tuple[int, int]) -> pa.Table:
    """Changes given as instant and sequence number."""
    return log_table(
        SHAPE,
        [
            change("c", [seq], wall=at, seq=seq, xid=at * 10, commit_us=at * 1_000)
            for at, seq in changes
        ],
    )


def numbered(*parts: tuple[TableName, pa.Table]) -> TransactionOrders:
    orders = TransactionOrders()
    for name, part in parts:
        orders.add(name, part)
    orders.number()
    return orders


def places(orders: TransactionOrders, part: pa.Table) -> list[tuple[int, int]]:
    made = orders.with_orders(part)
    return list(
        zip(made["total_order"].to_pylist(), made["data_collection_order"].to_pylist(), strict=True)
    )


def test_changes_are_numbered_across_the_tables_of_a_transaction() -> None:
    of_a, of_b = rows((1, 1), (1, 4), (2, 6)), rows((1, 2), (1, 3), (2, 5))
    orders = numbered((A, of_a), (B, of_b))
    assert places(orders, of_a) == [(1, 1), (4, 2), (2, 1)]
    assert places(orders, of_b) == [(2, 1), (3, 2), (1, 1)]
    first, second = orders.transactions
    assert (first.xid, first.at, first.counts) == (10, Timestamp(1), ((A, 2), (B, 2)))
    assert (second.xid, second.counts) == (20, ((B, 1), (A, 1)))


def test_parts_of_a_table_are_one() -> None:
    one, two = rows((1, 1), (1, 2)), rows((1, 3))
    assert places(numbered((A, one), (A, two)), two) == [(3, 3)]


def test_a_change_that_was_not_counted_is_a_fault() -> None:
    with pytest.raises(AssertionError, match="not numbered"):
        numbered((A, rows((1, 1)))).with_orders(rows((1, 2)))
    with pytest.raises(AssertionError, match="not numbered"):
        encode_messages(rows((1, 1)), MessagePlan(SHAPE, "a", transactions=True))


@given(st.lists(st.tuples(st.integers(1, 4), st.sampled_from([A, B])), max_size=30), st.data())
def test_the_numbers_are_those_of_counting_by_hand(
    changes: list[tuple[int, TableName]], data: st.DataObject
) -> None:
    changes.sort(key=lambda c: c[0])
    totals: dict[int, int] = defaultdict(int)
    owns: dict[tuple[int, TableName], int] = defaultdict(int)
    wanted: dict[TableName, list[tuple[int, int]]] = {A: [], B: []}
    parts: dict[TableName, list[tuple[int, int]]] = {A: [], B: []}
    for seq, (at, name) in enumerate(changes):
        totals[at] += 1
        owns[at, name] += 1
        wanted[name].append((totals[at], owns[at, name]))
        parts[name].append((at, seq))
    cut = data.draw(st.integers(0, len(parts[A])))
    orders = numbered((A, rows(*parts[A][:cut])), (B, rows(*parts[B])), (A, rows(*parts[A][cut:])))
    for name in (A, B):
        assert places(orders, rows(*parts[name])) == wanted[name]
    found = {t.at.wall: (sum(n for _, n in t.counts), dict(t.counts)) for t in orders.transactions}
    assert found == {
        at: (total, {name: owns[at, name] for name in (A, B) if owns[at, name]})
        for at, total in totals.items()
    }


def texts(messages: pa.Table) -> list[tuple[Any, Any]]:
    return [(json.loads(m["key"]), json.loads(m["value"])) for m in messages.to_pylist()]


def test_begin_and_end() -> None:
    orders = numbered((A, rows((1, 5))), (B, rows((1, 6))))
    made = boundary_messages(orders.transactions, debezium=False, schemas_enabled=False)
    key = {"id": "10:1.0000000000"}
    counts = [
        {"data_collection": "public.a", "event_count": 1},
        {"data_collection": "public.b", "event_count": 1},
    ]
    begin = {"status": "BEGIN", **key, "event_count": None, "data_collections": None, "ts_ms": 1}
    end = {"status": "END", **key, "event_count": 2, "data_collections": counts, "ts_ms": 1}
    assert texts(made) == [(key, begin), (key, end)]
    assert made["seq"].to_pylist() == [4, 6]
    assert made["value"][0].as_py().startswith(b'{"status": "BEGIN", "id"')


def test_a_transaction_of_one_change_has_two_messages_that_differ_in_their_place() -> None:
    orders = numbered((A, rows((1, 5))))
    made = boundary_messages(orders.transactions, debezium=True, schemas_enabled=True)
    assert len(set(made["seq"].to_pylist())) == 2
    (_, begin), (_, end) = texts(made)
    assert begin["schema"] == end["schema"]
    assert begin["schema"]["name"] == "io.debezium.connector.common.TransactionMetadataValue"
    assert end["payload"]["event_count"] == 1


def test_a_source_without_numbers_of_transactions_has_their_timestamps() -> None:
    part = log_table(SHAPE, [change("c", [1], wall=7, seq=1, xid=0)])
    orders = numbered((A, part))
    (key, _), _ = texts(
        boundary_messages(orders.transactions, debezium=False, schemas_enabled=False)
    )
    assert key == {"id": "7.0000000000"}
    made = encode_messages(part, MessagePlan(SHAPE, "a", transactions=True), orders=orders)
    assert json.loads(made["value"][0].as_py())["transaction"]["id"] == key["id"]


def values(envelope: Envelope, changes: Sequence[dict[str, Any]]) -> list[Any]:
    part = log_table(SHAPE, changes)
    plan = MessagePlan(SHAPE, "a", envelope, transactions=True)
    made = encode_messages(part, plan, orders=numbered((A, part)), now_ns=5)
    return [json.loads(v) if v else None for v in made["value"].to_pylist()]


def test_every_envelope_with_a_value_has_a_place_for_it() -> None:
    here = {"id": "7:9.0000000001", "total_order": 1, "data_collection_order": 1}
    one = change("c", [1], wall=9, logical=1)
    for envelope in (Envelope.WRAPPED, Envelope.ENRICHED, Envelope.DEBEZIUM):
        assert values(envelope, [one])[0]["transaction"] == here, envelope
    for envelope in (Envelope.BARE, Envelope.ROW, Envelope.CHANGED):
        assert values(envelope, [one])[0]["__crdb__"]["transaction"] == here, envelope


def test_a_delete_has_a_place_and_its_tombstone_has_none() -> None:
    changes = [change("c", [1], seq=1), change("d", None, {"0": 1}, seq=2)]
    _, delete, tombstone = values(Envelope.DEBEZIUM, changes)
    assert delete["transaction"]["total_order"] == 2
    assert tombstone is None


def test_a_row_of_a_scan_is_of_no_transaction() -> None:
    plan = MessagePlan(SHAPE, "a", transactions=True)
    made = encode_messages(log_table(SHAPE, [change("r", [1], xid=0)]), plan, scan=True)
    assert json.loads(made["value"][0].as_py()) == {"after": {"id": 1}, "transaction": None}
