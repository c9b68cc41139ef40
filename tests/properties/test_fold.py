"""What is left of a round, as a store is to load it, against a dictionary in plain Python."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from changefeed_testing.sinks.rows import table_of
from sinks.merged.applied import AppliedVersion
from sinks.merged.history import OPERATION, OPERATIONS, ORDER
from sinks.merged.policy import MergeMode, TablePolicy
from sinks.warehouse.duckdb import DuckDB
from sinks.warehouse.pending import PendingRows
from sinks.warehouse.staging import MISSING, SEQUENCE, TargetShape
from sinks.warehouse.strategy import Strategy

SCHEMA = table_of("t", key=("no", "id"), id="int32", no="decimal", b="text", c="int32")
SHAPE = TargetShape(SCHEMA, "t")
VALUES = ("b", "c")
MODES = (MergeMode.MERGE, MergeMode.VERSIONS, MergeMode.APPEND)
#: Instead of a value: that of the target stays.
TARGETS = "of the target"

Key = tuple[Decimal, int]
#: Operation, version, number, and the values of ``b`` and ``c``.
Row = tuple[str, int, int, tuple[object, ...]]


@dataclass(frozen=True)
class Change:
    """A row of the log; ``version`` and ``seq`` are given by the place in the round."""

    op: str
    id: int
    no: str
    b: str | None
    c: int | None
    missing: tuple[str, ...]

    @property
    def key(self) -> Key:
        return Decimal(self.no), self.id


@st.composite
def changes(draw: st.DrawFn) -> Change:
    op = draw(st.sampled_from("ccuuud"))
    unsent = draw(st.sets(st.sampled_from(VALUES)))
    return Change(
        op,
        draw(st.integers(1, 2)),
        draw(st.sampled_from(["1", "1.0", "1.00", "0", "-0.0", "10"])),
        None if op == "d" or "b" in unsent else draw(st.sampled_from([None, "", "x", "y"])),
        None if op == "d" or "c" in unsent else draw(st.sampled_from([None, 0, 7])),
        tuple(sorted(unsent)),
    )


#: Batches of transactions of changes.
rounds = st.lists(
    st.lists(st.lists(changes(), min_size=1, max_size=4), min_size=1, max_size=4),
    min_size=1,
    max_size=4,
)


def log_rows(batch: list[tuple[int, int, Change]]) -> pa.Table:
    rows: list[dict[str, Any]] = []
    for version, seq, change in batch:
        row: dict[str, Any] = {
            **{"op": change.op, "wall": version, "logical": 0, "seq": seq, "ord": seq},
            "missing": json.dumps(change.missing) if change.missing else None,
        }
        side = "b" if change.op == "d" else "a"
        row |= {f"{side}0": change.id, f"{side}1": change.no}
        row |= {"a2": change.b, "a3": change.c}
        rows.append(row)
    return pa.Table.from_pylist(rows, SCHEMA.log_schema())


def expected(log: list[tuple[int, int, Change]], mode: MergeMode) -> list[tuple[Key, Row]]:
    """The rows that stay, in the order of the log."""
    kept: dict[object, tuple[Key, Row]] = {}
    known: dict[Key, dict[str, object]] = {}
    last: dict[Key, int] = {}
    for version, seq, change in log:
        key = change.key
        before = known.setdefault(key, dict.fromkeys(VALUES, TARGETS))
        begins = change.op == "c" and last.get(key) != version
        after: dict[str, object] = {"b": change.b, "c": change.c}
        if change.op != "d" and (mode is MergeMode.MERGE or not begins):
            after |= {name: before[name] for name in change.missing}
        known[key], last[key] = after, version
        place = {MergeMode.MERGE: key, MergeMode.VERSIONS: (key, version)}.get(mode, seq)
        kept.pop(place, None)
        kept[place] = key, (OPERATIONS[change.op], version, seq, (after["b"], after["c"]))
    return list(kept.values())


def found(table: pa.Table) -> list[tuple[Key, Row]]:
    listed = []
    for row in table.to_pylist():
        lacking = [int(i) for i in (row[MISSING] or "").split(",") if i]
        names = [SHAPE.names[i] for i in lacking]
        values = tuple(TARGETS if name in names else row[name] for name in VALUES)
        assert all(row[name] is None for name in names)
        key = Decimal(row["no"]), row["id"]
        listed.append((key, (row[OPERATION], row[SEQUENCE], row[ORDER], values)))
    return listed


@settings(max_examples=100, deadline=None)
@given(rounds, st.sampled_from(MODES), st.integers(1, 6), st.sets(st.integers(0, 3)))
def test_a_store_gets_what_is_left_of_a_round(
    batches: list[list[list[Change]]], mode: MergeMode, rows: int, spilled: set[int]
) -> None:
    """Whatever batches the round came in, which of them went to files, and in what loads it goes
    to the target."""
    warehouse = DuckDB("unused")
    strategy = Strategy()
    applied = strategy.applied(warehouse, "job", "shop.public.t")
    table = strategy.table(warehouse, "t", TablePolicy(), applied)
    pending = PendingRows(table, SHAPE, False, 1, mode)
    log: list[tuple[int, int, Change]] = []
    version = 0
    with tempfile.TemporaryDirectory() as folder:
        for number, transactions in enumerate(batches):
            batch: list[tuple[int, int, Change]] = []
            for transaction in transactions:
                version += 1
                batch += [
                    (version, len(log) + len(batch) + nth, change)
                    for nth, change in enumerate(transaction)
                ]
            log += batch
            pending.add(log_rows(batch), warehouse.dialect)
            if number in spilled:
                pending.spill(folder)
        loads = list(pending.to_load(rows, 1 << 30))
    assert all(0 < load.num_rows <= rows for load in loads)
    listed = found(pa.concat_tables(loads))
    wanted = expected(log, mode)
    if mode is MergeMode.MERGE:  # sorted by key, as it is staged
        listed, wanted = sorted(listed, key=_key), sorted(wanted, key=_key)
    assert listed == wanted
    assert pending.top == AppliedVersion(version, log[-1][1])
    unknown = {i for _, row in wanted for i, v in enumerate(row[3], 2) if v == TARGETS}
    assert pending.missing == unknown


def _key(row: tuple[Key, Row]) -> Key:
    return row[0]
