"""What all sinks of merged tables decide alike, on a store that writes down what it is told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar

import pyarrow as pa
import pytest

from changefeed.core.clock import ManualClock, Timestamp
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.events import Resolved, SchemaChange, Truncate
from changefeed.core.schema import TableSchema
from changefeed.options import ExistingTarget, History
from changefeed_testing.sinks.rows import table_of
from sinks.base import Accepts, Batch, Capabilities, Durability, Epoch, Receipt, SinkContext, Target
from sinks.merged.applied import AppliedVersion
from sinks.merged.pace import IntervalPace, ShorterPace, SlowDecline
from sinks.merged.policy import MergeMode, Removal, ScanEnd, TablePolicy
from sinks.merged.rows import key_value, last_of, unapplied, versions_of
from sinks.merged.sink import TableSink

KEYED = table_of("t", key=("a",), a="int32", b="text")
KEYLESS = table_of("v", a="int32", b="text")
TARGET = Target(KEYED.table, "t")
APPEND = TablePolicy(history=History.APPEND)


class WrittenDown(TableSink):
    """A store that knows what it is given and does nothing."""

    capabilities: ClassVar[Capabilities] = Capabilities(
        accepts=Accepts.ROWS, evolves=True, ends_scans=True
    )

    def __init__(
        self,
        policy: TablePolicy = APPEND,
        done: int = 0,
        scanned: int = 0,
        unfinished: int | None = None,
    ) -> None:
        super().__init__(policy, IntervalPace(0))
        owed = {} if unfinished is None else {TARGET.table: Timestamp(unfinished)}
        self._context = SinkContext("f", 1, (TARGET,), unfinished=owed)
        self.done, self.whole = AppliedVersion(done, 5), scanned
        self.told: list[object] = []
        self.clock, self.takes = ManualClock(), 0.0

    def applied(self, target: Target, schema: TableSchema) -> AppliedVersion:
        return self.done

    def scanned(self, target: Target, schema: TableSchema) -> int:
        return self.whole

    def stage(self, batch: Batch, rows: pa.Table) -> Receipt:
        self.told.append(("stage", rows["seq"].to_pylist()))
        return Receipt(batch.partition, rows.num_rows, 0)

    def require_values(self, batch: Batch, rows: pa.Table) -> None:
        self.told.append(("examine", rows["seq"].to_pylist()))

    def begin_scan(
        self, target: Target, schema: TableSchema, version: int, *, after: int | None
    ) -> None:
        self.told.append(("begin", version, after))

    def finish_scan(
        self, target: Target, schema: TableSchema, at: Timestamp, ends: ScanEnd
    ) -> None:
        self.told.append(("finish", at.version, ends))

    def empty(self, event: Truncate, target: Target) -> None:
        self.told.append("empty")

    def reshape(self, event: SchemaChange, target: Target) -> None:
        self.told.append("reshape")

    def open(self, context: SinkContext) -> None:
        raise NotImplementedError

    def apply(self, epoch: Epoch, receipts: Sequence[Receipt]) -> bool:
        self.told.append("apply")
        self.clock.sleep(self.takes)
        return bool(receipts)

    def abort(self, epoch: Epoch, receipts: Sequence[Receipt]) -> None:
        raise NotImplementedError

    def resolved(self, event: Resolved, payload: bytes) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


def rows(*places: tuple[int, int], op: str = "c") -> pa.Table:
    made = [
        {"op": op, "wall": version, "logical": 0, "seq": seq, "ord": 0, "xid": 1, "commit_us": 0,
         "last": True, "missing": None, "a0": seq, "a1": "after", "b0": -seq}
        for version, seq in places
    ]  # fmt: skip
    return pa.Table.from_pylist(made, schema=KEYED.log_schema())


NAMELESS = rows((7, 1)).set_column(9, "a0", pa.array([None], pa.int32()))


def batch(made: pa.Table, *, scan: bool = False, at: int = 9) -> Batch:
    return Batch("f", Epoch(1, Timestamp(at)), 0, TARGET, KEYED, made, scan=scan)


# ------------------------------------------------------------------------------- rows


@pytest.mark.parametrize(
    ("applied", "left"),
    [
        (AppliedVersion(), [1, 2, 3]),
        (AppliedVersion(5), [2, 3]),
        (AppliedVersion(5, 0), [1, 2, 3]),
        (AppliedVersion(6, 2), [3]),
        (AppliedVersion(6), []),
    ],
    ids=str,
)
def test_changes_that_a_target_has_are_left_out(applied: AppliedVersion, left: list[int]) -> None:
    assert unapplied(rows((5, 1), (6, 2), (6, 3)), applied)["seq"].to_pylist() == left


def test_a_version_counts_the_logical_part_of_a_timestamp() -> None:
    made = rows((5, 1)).to_pylist()[0] | {"logical": 2}
    assert versions_of(pa.Table.from_pylist([made], schema=KEYED.log_schema())).to_pylist() == [7]


def test_a_deleted_row_has_the_key_that_it_had() -> None:
    both = pa.concat_tables([rows((5, 1)), rows((6, 2), op="d")])
    assert key_value(both, 0).to_pylist() == [1, -2]


def test_the_last_change_of_some() -> None:
    assert last_of(pa.chunked_array([[5, 6, 6]]), pa.chunked_array([[1, 2, 3]])) == (
        AppliedVersion(6, 3)
    )


# ------------------------------------------------------------------------------- steps


def test_a_batch_is_staged_without_what_the_target_has() -> None:
    sink = WrittenDown(done=6)
    sink.write(batch(rows((5, 4), (6, 5), (6, 6), (7, 7)).to_batches()[0]))
    assert sink.told == [("stage", [6, 7])]


def test_a_row_whose_key_has_no_value_is_refused() -> None:
    """It could not be found again, and would be inserted at every change."""
    for sink in (WrittenDown(TablePolicy()), WrittenDown(TablePolicy(history=History.SCD2))):
        with pytest.raises(
            ChangefeedError, match="column a is in the key, and has no value"
        ) as told:
            sink.write(batch(pa.concat_tables([rows((6, 1)), NAMELESS])))
        assert (told.value.code, told.value.target) == (Code.SINK_CANNOT_TAKE_TABLE, "t")
        assert "1 of 2 rows" in told.value.detail
        sink.write(batch(NAMELESS.set_column(0, "op", pa.array(["d"]))))
        assert sink.told == [("stage", [1])]
    WrittenDown(APPEND).write(batch(NAMELESS))


def test_rows_are_examined_without_a_step_at_the_target() -> None:
    """What the target has already was taken, and is not looked at again."""
    sink = WrittenDown(TablePolicy(), done=6)
    sink.examine(batch(rows((5, 4), (6, 6), (7, 7))))
    sink.examine(batch(rows((5, 4)), scan=True))
    with pytest.raises(ChangefeedError, match="has no value"):
        sink.examine(batch(pa.concat_tables([rows((6, 6)), NAMELESS])))
    assert sink.told == [("examine", [6, 7]), ("examine", [4])]


def test_events_are_followed_once() -> None:
    sink = WrittenDown(done=6)
    for version, seq in ((5, 9), (6, 5)):
        sink.truncate(Truncate(KEYED, Timestamp(version), seq), TARGET, b"")
        sink.evolve(SchemaChange(KEYED, KEYED, Timestamp(version), seq), TARGET)
    assert sink.told == []
    sink.truncate(Truncate(KEYED, Timestamp(6), 6), TARGET, b"")
    sink.evolve(SchemaChange(KEYED, KEYED, Timestamp(7), 1), TARGET)
    assert sink.told == ["empty", "reshape"]


def test_a_scan_begins_once_with_its_first_row() -> None:
    sink = WrittenDown()
    sink.write(batch(rows(), scan=True))
    assert sink.told == [("stage", [])]
    for _ in range(2):
        sink.write(batch(rows((9, 1)), scan=True))
    sink.end_scan(TARGET, KEYED, Timestamp(9))
    assert sink.told[1:] == [
        ("begin", 9, 0),
        ("stage", [1]),
        ("stage", [1]),
        ("finish", 9, ScanEnd.NOTHING),
    ]


def test_an_empty_scan_begins_with_its_end() -> None:
    sink = WrittenDown(TablePolicy())
    sink.end_scan(TARGET, KEYED, Timestamp(9))
    assert sink.told == [("begin", 9, None), ("finish", 9, ScanEnd.OLDER)]


def test_a_scan_ends_once() -> None:
    sink = WrittenDown(scanned=9)
    sink.end_scan(TARGET, KEYED, Timestamp(9))
    assert sink.told == []
    sink.end_scan(TARGET, KEYED, Timestamp(10))
    assert sink.told == [("begin", 10, 9), ("finish", 10, ScanEnd.NOTHING)]


@pytest.mark.parametrize(
    ("scanned", "unfinished", "after", "staged"),
    [
        (8, None, 8, [1]),
        (8, 9, 8, [1]),
        (8, 8, 7, [1]),
        (8, 5, 4, [1]),
        (9, 9, 8, [1]),
        (9, None, 9, []),
    ],
)
def test_a_scan_comes_again_that_the_feed_does_not_know_to_be_whole(
    scanned: int, unfinished: int | None, after: int, staged: list[int]
) -> None:
    """Its rows go, or where it is of the same instant and nobody says so, those of now."""
    sink = WrittenDown(scanned=scanned, unfinished=unfinished)
    sink.write(batch(rows((9, 1)), scan=True))
    assert sink.told == [("begin", 9, after), ("stage", staged)]


# ------------------------------------------------------------------------------- policies


@pytest.mark.parametrize(
    ("policy", "schema", "mode", "removal", "end"),
    [
        (TablePolicy(), KEYED, MergeMode.MERGE, Removal.DELETE, ScanEnd.OLDER),
        (TablePolicy(retains=True), KEYED, MergeMode.MERGE, Removal.DELETE, ScanEnd.NOTHING),
        (TablePolicy(), KEYLESS, MergeMode.COUNT, Removal.DELETE, ScanEnd.REPLACED),
        (TablePolicy(retains=True), KEYLESS, MergeMode.COUNT, Removal.DELETE, ScanEnd.REPLACED),
        (TablePolicy(soft=True), KEYED, MergeMode.MERGE, Removal.MARK, ScanEnd.OLDER),
        (TablePolicy(history=History.SCD2), KEYED, MergeMode.VERSIONS, Removal.END, ScanEnd.OLDER),
        (TablePolicy(soft=True, history=History.SCD2), KEYED, MergeMode.VERSIONS, Removal.END,
         ScanEnd.OLDER),
        (APPEND, KEYLESS, MergeMode.APPEND, Removal.RECORD, ScanEnd.NOTHING),
        (TablePolicy(soft=True, history=History.APPEND), KEYED, MergeMode.APPEND, Removal.RECORD,
         ScanEnd.NOTHING),
    ],
)  # fmt: skip
def test_what_follows_from_the_options(
    policy: TablePolicy, schema: TableSchema, mode: MergeMode, removal: Removal, end: ScanEnd
) -> None:
    assert (policy.mode(schema), policy.removal, policy.scan_end(schema)) == (mode, removal, end)
    assert policy.needs_key == (removal in (Removal.MARK, Removal.END))
    if mode is MergeMode.COUNT:
        with pytest.raises(
            ChangefeedError, match="to distinguish its rows from those of table v"
        ) as found:
            policy.require_shareable(schema, "table v")
        assert found.value.code is Code.TARGET_NOT_OURS
    else:
        policy.require_shareable(schema, "table v")


@pytest.mark.parametrize(
    ("policy", "option"),
    [
        (TablePolicy(soft=True), "deletes = 'soft'"),
        (TablePolicy(history=History.SCD2), "history = 'scd2'"),
    ],
)
def test_no_step_keeps_a_table_without_the_key_that_the_options_need(
    policy: TablePolicy, option: str
) -> None:
    sink, at = WrittenDown(policy), Timestamp(9)
    steps: list[Callable[[], object]] = [
        lambda: sink.write(replace(batch(rows((5, 1))), schema=KEYLESS)),
        lambda: sink.write(replace(batch(rows((5, 1)), scan=True), schema=KEYLESS)),
        lambda: sink.truncate(Truncate(KEYLESS, at, 1), TARGET, b""),
        lambda: sink.evolve(SchemaChange(KEYED, KEYLESS, at, 1), TARGET),
        lambda: sink.end_scan(TARGET, KEYLESS, at),
    ]
    for step in steps:
        with pytest.raises(ChangefeedError, match=f"{option} needs a table with a key") as found:
            step()
        assert found.value.code is Code.SINK_CANNOT_TAKE_TABLE
    assert sink.told == []


@pytest.mark.parametrize(("receipts", "due"), [((), 0), ((Receipt(0, 1, 1),), 7)])
def test_a_round_with_rows_says_when_the_next_is_due(
    receipts: Sequence[Receipt], due: float
) -> None:
    sink = WrittenDown()
    sink.takes = 7
    assert sink.commit(Epoch(1, Timestamp(9)), receipts) is Durability.DURABLE
    assert sink.told == ["apply"]
    assert sink.pacing().seconds == due


def test_options_are_read_typed_or_as_texts() -> None:
    assert TablePolicy.read({}) == TablePolicy()
    texts = {
        "sequence_column": "none",
        "deletes": "no",
        "history": "scd2",
        "on_drop": "drop",
        "existing_target": "merge",
    }
    found = TablePolicy.read(texts, deleted="_is_deleted")
    assert found == TablePolicy(
        "", False, History.SCD2, "_is_deleted", True, ExistingTarget.MERGE, True
    )
    assert found.shared
    assert next(iter(found.own_columns())) == "_sequence_num", "history always has a version"
    assert TablePolicy(sequence="").own_columns() == {}


# ------------------------------------------------------------------------------- pacing


def test_paces() -> None:
    steady, falling, fixed = ShorterPace(1, 30, 1), SlowDecline(5, 60, 5), IntervalPace(10)
    for took in (40.0, 20.0, 30.0):
        steady.after(took)
        falling.after(took)
        fixed.after(took)
    assert (steady.seconds, falling.seconds, fixed.seconds) == (20.0, 60.0, 30.0)
    for pace in (steady, falling, fixed):
        pace.after(0.1)
    assert (steady.seconds, falling.seconds, fixed.seconds) == (1.0, 32.5, 10.0)
