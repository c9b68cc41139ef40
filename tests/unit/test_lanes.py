"""A backlog in lanes: what each delivers, in which order, and who may write."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError
from changefeed.core.events import ChangeBatch, Truncate
from changefeed.core.proofs import FileProof
from changefeed.core.shapes import Deletes
from changefeed.encoding.plan import MessagePlan
from changefeed.feeds.lanes import DeliveryForm, LaneDelivery, lane_of
from changefeed.feeds.staged_lanes import StagedLanes, write_lanes
from changefeed.log import LogReader, LogSettings, LogWriter
from changefeed.scan.admission import WorkerAdmission
from sinks.base import Batch, CommitPace, Durability, Epoch, Receipt, Sink, SinkContext, Target
from tests.helpers.log_samples import Row, batch, flush, narrow
from tests.helpers.waiting import until

A, B = narrow("a"), narrow("b")
LANES = 3
BEGIN, END = Timestamp(1000), Timestamp(1600)


@dataclass
class Written:
    """A sink that writes down what it is told."""

    gate: WorkerAdmission
    promise: Durability = Durability.DURABLE
    error: ChangefeedError | None = None
    pace: CommitPace = field(default_factory=CommitPace)
    calls: list[str] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)
    committed: list[Receipt] = field(default_factory=list)

    def _told(self, what: str) -> None:
        assert set(self.gate.inside) == {os.getpid()}, "nobody writes who did not come in"
        self.calls.append(what)

    def open(self, context: SinkContext) -> None:
        self._told("open")

    def pacing(self) -> CommitPace:
        return self.pace

    def write(self, batch: Batch) -> Receipt:
        self._told("write")
        if self.error is not None:
            raise self.error
        self.batches.append(batch)
        return Receipt(batch.partition, batch.rows.num_rows, 7 * batch.rows.num_rows)

    def commit(self, epoch: Epoch, receipts: Sequence[Receipt]) -> Durability:
        self._told("commit")
        assert len({r.partition for r in receipts}) == 1, "a lane is a partition"
        self.committed += receipts
        return self.promise

    def close(self) -> None:
        self._told("close")


@pytest.fixture
def gate() -> Iterator[WorkerAdmission]:
    made = WorkerAdmission()
    yield made
    made.close()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LogWriter]:
    """Two tables with a row each at every instant from 1001 to 1600, the same 40 keys again and
    again."""
    with LogWriter(tmp_path, LogSettings(grace=0.0)) as made:
        made.append(flush([], BEGIN, 1))
        for first in range(1001, 1601, 100):
            walls = range(first, first + 100)
            events = [batch(s, [Row(Timestamp(w), w) for w in walls]) for s in (A, B)]
            made.append(flush([_keyed(e) for e in events], Timestamp(first + 99), first))
        yield made


def _keyed(events: ChangeBatch) -> ChangeBatch:
    """With the keys 0 to 39."""
    rows = events.rows
    keys = pa.array([seq % 40 for seq in rows["seq"].to_pylist()], pa.int64())
    return replace(events, rows=rows.set_column(rows.schema.get_field_index("a0"), "a0", keys))


def lanes(folder: Path, gate: WorkerAdmission, sink: Written, **given: Any) -> LaneDelivery:
    plan = MessagePlan(A, topic="t", deletes=given.pop("deletes", Deletes.YES))
    values: dict[str, Any] = {
        "count": LANES,
        "log": folder,
        "bounds": {A.table: BEGIN, B.table: Timestamp(1500)},
        "upto": END,
        "slice_bytes": 4_000,
        "versions": {
            schema: DeliveryForm(replace(plan, schema=schema), schema, Target(schema.table, "t"))
            for schema in (A, B)
        },
        "feed": "f",
        "epoch": Epoch(1, END),
        "context": cast(SinkContext, None),
        "sink": cast(Sink, sink),
        "ticket": gate.ticket(),
    }
    return LaneDelivery(**values | given)


def test_keys_of_two_columns_use_all_lanes() -> None:
    """Also those in which one column rises as the other falls."""
    schema = replace(A, key=(0, 1))
    rows = pa.table({"op": ["c"] * 60, "a0": range(60), "a1": range(60, 0, -1)})
    assert set(lane_of(rows, schema, LANES).tolist()) == set(range(LANES))


def _note(progress: list[tuple[int, int]], rows: int, size: int) -> None:
    progress.append((rows, size))


def test_lanes_deliver_each_row_once_and_each_key_in_one_lane(
    log: LogWriter, gate: WorkerAdmission, tmp_path: Path
) -> None:
    lane_of_key: dict[tuple[str, bytes], set[int]] = defaultdict(set)
    walls: dict[str, list[int]] = defaultdict(list)
    for number in range(LANES):
        sink = Written(gate)
        progress: list[tuple[int, int]] = []
        done = lanes(tmp_path, gate, sink)(number, partial(_note, progress))
        until(lambda: not gate.inside)
        assert (sink.calls[0], sink.calls[-2:]) == ("open", ["commit", "close"])
        assert sink.calls.count("commit") > 2, "a slice is durable before the next is read"
        counted: dict[str, int] = defaultdict(int)
        of_key: dict[tuple[str, bytes], list[int]] = defaultdict(list)
        for written in sink.batches:
            table = written.target.table.name
            assert written.rows.num_rows > 0
            counted[table] += written.rows.num_rows
            walls[table] += written.rows["wall"].to_pylist()
            for key, wall in zip(
                written.rows["key"].to_pylist(), written.rows["wall"].to_pylist(), strict=True
            ):
                of_key[table, key].append(wall)
                lane_of_key[table, key].add(number)
        assert all(found == sorted(found) for found in of_key.values()), "in the log's order"
        assert [(d.item, d.rows, d.bytes) for d in done] == [
            (0, counted["a"], 7 * counted["a"]),
            (1, counted["b"], 7 * counted["b"]),
        ]
        assert sum(r.rows for r in sink.committed) == sum(counted.values())
        assert progress[-1] == (sum(counted.values()), 7 * sum(counted.values()))
    assert sorted(walls["a"]) == list(range(1001, 1601))
    assert sorted(walls["b"]) == list(range(1501, 1601)), "each table above its own bound"
    assert len(lane_of_key) == 80 and all(len(found) == 1 for found in lane_of_key.values())


def test_a_lane_of_files_commits_when_they_are_large_enough(
    log: LogWriter, gate: WorkerAdmission, tmp_path: Path
) -> None:
    """And names its number and the beginning of the range, which are the same in every attempt."""
    sink = Written(gate, pace=CommitPace(bytes=1_000))
    done = lanes(tmp_path, gate, sink)(1, lambda rows, size: None)
    whole = sum(d.bytes for d in done)
    assert sum(r.bytes for r in sink.committed) == whole
    assert 1 < sink.calls.count("commit") <= whole // 1_000 + 1
    assert sink.calls[-2:] == ["commit", "close"]
    named = {(b.target.table.name, b.partition, b.after) for b in sink.batches}
    assert named == {("a", 1, BEGIN), ("b", 1, Timestamp(1500))}


def test_a_lane_out_of_a_file_delivers_what_it_delivers_out_of_the_log(
    log: LogWriter, gate: WorkerAdmission, tmp_path: Path
) -> None:
    """The same batches, commits and counts: only where the rows come from differs."""
    folder = tmp_path / "staged"
    folder.mkdir()
    with LogReader(tmp_path) as reader:
        paths = write_lanes(lanes(tmp_path, gate, Written(gate)), reader, folder)
    assert len(paths) == LANES
    for number, path in enumerate(paths):
        sinks = Written(gate), Written(gate)
        expected = lanes(tmp_path, gate, sinks[0])(number, lambda rows, size: None)
        until(lambda: not gate.inside)
        staged = lanes(tmp_path / "unseen", gate, sinks[1])
        content = pa.py_buffer(path.read_bytes())
        proofs = tuple(FileProof.of(path) for path in paths)
        delivery = StagedLanes(staged, proofs)
        assert delivery(number, content, lambda rows, size: None) == expected
        until(lambda: not gate.inside)
        assert sinks[1].calls == sinks[0].calls
        assert sinks[1].committed == sinks[0].committed
        other = pa.py_buffer(paths[number - 1].read_bytes())
        for wrong in (content.slice(0, content.size - 1), content.slice(0, 0), other):
            with pytest.raises(ChangefeedError, match=f"lane {number} is damaged") as error:
                delivery(number, wrong, lambda rows, size: None)
            assert error.value.code.number == "CF4002"
        assert sinks[1].calls == sinks[0].calls, "nothing of it is delivered"
        for ours, theirs in zip(sinks[1].batches, sinks[0].batches, strict=True):
            assert ours.rows.equals(theirs.rows)
            assert (ours.target, ours.schema, ours.after) == (
                theirs.target,
                theirs.schema,
                theirs.after,
            )


def test_a_log_that_a_worker_may_not_read_is_an_error(
    log: LogWriter, gate: WorkerAdmission, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*given: object, **named: object) -> LogReader:
        raise PermissionError("HEAD")

    monkeypatch.setattr("changefeed.feeds.lanes.LogReader", refused)
    with pytest.raises(ChangefeedError, match="may not read the change log") as caught:
        lanes(tmp_path, gate, Written(gate))(0, lambda rows, size: None)
    assert caught.value.code.number == "CF3001"
    assert "--staging" in caught.value.hint


def test_a_lane_without_rows_commits_nothing(
    log: LogWriter, gate: WorkerAdmission, tmp_path: Path
) -> None:
    sink = Written(gate)
    progress: list[tuple[int, int]] = []
    work = lanes(tmp_path, gate, sink, count=1 << 30)
    assert work(1, partial(_note, progress)) == []
    assert (sink.calls, progress) == (["open", "close"], [])
    none = lanes(tmp_path, gate, sink := Written(gate), count=1, deletes=Deletes.ONLY)
    assert none(0, partial(_note, progress)) == []
    assert (sink.calls, progress) == (["open", "close"], []), "no row of it is a message"


def test_a_log_that_a_worker_sees_less_of_is_an_error(
    log: LogWriter, gate: WorkerAdmission, tmp_path: Path
) -> None:
    """A stale view of a network file system must not look like a delivered backlog."""
    sink = Written(gate)
    with pytest.raises(ChangefeedError, match=r"ends at 1600\.0000000000 for a Spark") as caught:
        lanes(tmp_path, gate, sink, upto=END.next())(0, lambda rows, size: None)
    assert caught.value.code.number == "CF3001"
    assert sink.calls == ["open", "close"]
    with pytest.raises(ChangefeedError, match="ends at nothing for a Spark"):
        lanes(tmp_path / "other", gate, sink)(0, lambda rows, size: None)


def test_a_range_with_a_control_event_is_not_delivered(
    log: LogWriter, gate: WorkerAdmission, tmp_path: Path
) -> None:
    at = Timestamp(1700)
    log.append(flush([Truncate(A, at, 1700)], at, 1700))
    with pytest.raises(ChangefeedError, match="a control event of") as caught:
        lanes(tmp_path, gate, Written(gate), upto=at)(0, lambda rows, size: None)
    assert caught.value.code.number == "CF9001"


def test_a_sink_has_to_promise_durability(
    log: LogWriter, gate: WorkerAdmission, tmp_path: Path
) -> None:
    less = next(d for d in Durability if d is not Durability.DURABLE)
    sink = Written(gate, promise=less)
    with pytest.raises(ChangefeedError) as caught:
        lanes(tmp_path, gate, sink)(0, lambda rows, size: pytest.fail("nothing is durable"))
    assert caught.value.code.number == "CF5004"
    assert sink.calls[-1] == "close"


def test_a_lane_that_fails_closes_its_sink_and_leaves(
    log: LogWriter, gate: WorkerAdmission, tmp_path: Path
) -> None:
    refused = ChangefeedError("CF5003", "refused")
    sink = Written(gate, error=refused)
    with pytest.raises(ChangefeedError) as caught:
        lanes(tmp_path, gate, sink)(0, lambda rows, size: None)
    assert caught.value is refused
    assert sink.calls == ["open", "write", "close"]
    until(lambda: not gate.inside)


def test_a_lane_of_a_delivery_that_is_over_writes_nothing(
    log: LogWriter, gate: WorkerAdmission, tmp_path: Path
) -> None:
    """A cancelled job's workers end later than the job does for the driver."""
    sink = Written(gate)
    work = lanes(tmp_path, gate, sink)
    gate.close()
    with pytest.raises(ChangefeedError) as caught:
        work(0, lambda rows, size: None)
    assert caught.value.code.number == "CF2201"
    assert sink.calls == []
