"""Typed rows are those that the messages of the same feed would tell, and no others."""

from __future__ import annotations

import pickle
import random
from dataclasses import replace

import pyarrow as pa
import pytest

from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError
from changefeed.core.schema import BeforeImage, Column, TableSchema
from changefeed.core.shapes import Deletes
from changefeed.core.types import LogicalType
from changefeed.encoding.encode import encode_messages
from changefeed.encoding.plan import MessagePlan
from changefeed.encoding.typed_rows import RowPlan
from tests.helpers import message_model as model

KEYS: dict[str, tuple[Column, list[object], list[str]]] = {
    "int": (
        Column("k", "int8", LogicalType.parse("int64"), False, 1),
        [-(2**63), -1, 0, 7, 41, 2**63 - 1],
        ["-1", "7", "8"],
    ),
    "bool": (
        Column("k", "bool", LogicalType.parse("bool"), False, 1),
        [True, False],
        ["false", "true"],
    ),
    "decimal": (
        Column("k", "numeric", LogicalType.parse("decimal"), False, 1),
        ["-10.5", "-2", "0", "1.50", "1.5", "10", "9", '"NaN"', "123456789012345678.000000001"],
        ["-2.0", "1.5", "10"],
    ),
    "text": (
        Column("k", "text", LogicalType.parse("text"), False, 1),
        ["", "a", "B", "b", "ä", "z", "zz", "\U0001f600", "\uffff"],
        ["a", "b", "z", "\U0001f600"],
    ),
    "timestamptz": (
        Column("k", "timestamptz", LogicalType.parse("timestamptz"), False, 1),
        ["2024-01-01T00:00:03Z", "2024-01-01T00:00:03.5Z", "2024-01-01T00:00:04Z"],
        ["2024-01-01T00:00:03Z", "2024-01-01T00:00:03.5Z", "2024-01-01T00:00:04Z"],
    ),
}


def shape(key: Column, identity: BeforeImage = BeforeImage.KEY) -> TableSchema:
    """A table of the key, a second key column and two more."""
    others = [
        model.column("x", "text"),
        model.column("n", "int4", False),
        model.column("y", "int4"),
    ]
    return replace(
        model.table([others[0], key, others[1], others[2]], (1, 2)), before_image=identity
    )


def log_of(schema: TableSchema, values: list[object], count: int, seed: int) -> pa.Table:
    """Changes of every kind, in random order."""
    chance = random.Random(seed)
    rows = []
    for seq in range(count):
        op, key, n = chance.choice("cud"), chance.choice(values), chance.randint(0, 3)
        before = {"1": key, "2": n}
        if schema.before_image is BeforeImage.FULL:
            before |= {"0": "old", "3": 1}
        after = None if op == "d" else [f"x{seq}", key, n, seq]
        row = model.change(op, after, before if op != "c" else None, seq=seq)
        rows.append(row | {"last": chance.random() < 0.8})
    return pa.Table.from_pylist(rows, schema=schema.log_schema())


@pytest.mark.parametrize("deletes", [Deletes.YES, Deletes.NO, Deletes.ONLY])
@pytest.mark.parametrize("kind", KEYS)
def test_the_same_rows_as_the_messages(kind: str, deletes: Deletes) -> None:
    key, values, bounds = KEYS[kind]
    schema = shape(key)
    table = log_of(schema, values, 150, seed=len(kind))
    for low, high in [
        ((bounds[0],), ()),
        ((), (bounds[-1],)),
        ((bounds[0], "1"), (bounds[-1], "2")),
    ]:
        plan = MessagePlan(schema, "t", key_from=low, key_to=high, deletes=deletes)
        told = encode_messages(table, plan)["seq"].to_pylist()
        assert RowPlan(plan).rows(table)["seq"].to_pylist() == told
        assert 0 < len(told) < table.num_rows


@pytest.mark.parametrize("identity", [BeforeImage.KEY, BeforeImage.FULL])
def test_only_the_wanted_columns(identity: BeforeImage) -> None:
    key, values, _ = KEYS["int"]
    schema = shape(key, identity)
    table = log_of(schema, values, 40, seed=1)
    plan: RowPlan = pickle.loads(pickle.dumps(RowPlan(MessagePlan(schema, "t", projection=("y",)))))
    seen = plan.schema
    assert [c.name for c in seen.columns] == ["k", "n", "y"]
    assert seen.key == (0, 1)
    rows = plan.rows(table)
    assert rows.schema == seen.log_schema()
    whole = RowPlan(MessagePlan(schema, "t")).rows(table)
    assert whole.schema == schema.log_schema()
    for new, old in [("a0", "a1"), ("a1", "a2"), ("a2", "a3"), ("b0", "b1"), ("b1", "b2")]:
        assert rows[new].to_pylist() == whole[old].to_pylist()
    if identity is BeforeImage.FULL:
        assert rows["b2"].to_pylist() == whole["b3"].to_pylist()


def test_superseded_rows_stay_where_one_may_know_what_the_last_lacks() -> None:
    key, values, _ = KEYS["int"]
    schema = shape(key)
    table = log_of(schema, values, 30, seed=2)
    plan = RowPlan(MessagePlan(schema, "t"))
    assert all(plan.rows(table)["last"].to_pylist())
    missing = pa.array(['["x"]'] + [None] * (table.num_rows - 1), pa.string())
    lacking = table.set_column(table.schema.get_field_index("missing"), "missing", missing)
    assert plan.rows(lacking).num_rows == table.num_rows
    assert plan.rows(table, superseded=True).num_rows == table.num_rows


def test_what_a_scan_reads() -> None:
    key, _, _ = KEYS["int"]
    schema = shape(key)
    read = pa.record_batch(
        [
            ["x", "y"],
            pa.array([1, 9], pa.int64()),
            pa.array([0, 0], pa.int32()),
            pa.array([5, None], pa.int32()),
        ],
        names=["a0", "a1", "a2", "a3"],
    )
    plan = RowPlan(MessagePlan(schema, "t", projection=("y",), key_to=("9",)))
    rows = plan.scanned(read, Timestamp(77, 3))
    assert rows.schema == plan.schema.log_schema()
    [row] = rows.to_pylist()
    assert (row["op"], row["wall"], row["logical"], row["last"]) == ("r", 77, 3, True)
    assert (row["a0"], row["a1"], row["a2"], row["b0"]) == (1, 0, 5, None)


def test_a_key_without_an_order_is_refused() -> None:
    key = Column("k", "jsonb", LogicalType.parse("json"), False, 1)
    table = log_of(shape(key), ["{}"], 5, seed=3)
    with pytest.raises(ChangefeedError) as refused:
        RowPlan(MessagePlan(shape(key), "t", key_from=("{}",))).rows(table)
    assert refused.value.code.number == "CF1302"
