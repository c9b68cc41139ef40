"""Windows of a feed one after the other: what is written, and how far progress goes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError
from changefeed.core.events import SchemaChange, Truncate
from changefeed.core.schema import TableName, TableSchema
from changefeed.core.table_errors import TableError
from changefeed.feeds.windows import WindowDelivery
from changefeed.log import LogPiece
from changefeed.options import Options
from changefeed.query.window_rows import SEQ
from changefeed.query.windows import WINDOW, through, windows_of
from sinks.base import Batch, Epoch, Receipt
from tests.unit.test_jobs_delivery import MadePiece, rows_of, shape

T = TableName("shop", "public", "a")
SECOND = 1_000_000_000
#: Everything before the tenth second is delivered.
BEGIN = through(10 * SECOND)


@dataclass(frozen=True)
class Walls:
    """The rows of a piece: one for each time."""

    walls: tuple[int, ...]

    def find(self, piece: LogPiece) -> pa.Table:
        fixed = {"op": "c", "logical": 0, "ord": 0, "xid": 1, "commit_us": 0, "last": True}
        rows = [fixed | {"wall": w, "seq": w // 1_000_000, "a0": 1} for w in self.walls]
        return pa.Table.from_pylist(rows, schema=piece.schema.log_schema())


def commits(*seconds: float, schema: TableSchema | None = None) -> LogPiece:
    """A change at each of these times."""
    walls = tuple(int(at * SECOND) for at in seconds)
    made = replace(
        rows_of(T, *range(len(walls))),
        schema=schema or shape(T),
        first=Timestamp(walls[0]),
        last=Timestamp(walls[-1]),
        first_seq=walls[0] // 1_000_000,
        last_seq=walls[-1] // 1_000_000,
        _finder=Walls(walls),
    )
    assert isinstance(made, MadePiece)
    return made


class World:
    """A log in slices, a query that counts, and a sink that keeps what it gets.

    ``slices``: where each ends (seconds), and what is in it; the last one ends the log.
    """

    def __init__(self, *slices: tuple[float, list[Any]], end_time: float | None = None) -> None:
        self.slices = list(slices)
        self.read: list[Timestamp] = []
        self.groups: list[tuple[int, int]] = []
        self.places: list[float] = []
        self.delivered_before: list[Timestamp] = []
        self.last_seqs: list[int] = []
        self.done: list[str] = []
        self.fails = False
        self.stop = False
        self.table = SimpleNamespace(done_upto=BEGIN)
        end = None if end_time is None else Timestamp(int(end_time * SECOND))
        self.feed = SimpleNamespace(
            tables={T: self.table},
            job=SimpleNamespace(end_time=end, name="f"),
            options=Options.from_dict({}),
            recognise=lambda schema: None,
            advance=self._advance,
            row_plan=lambda schema: SimpleNamespace(schema=schema, rows=lambda rows: rows),
            target=lambda table: SimpleNamespace(table=table),
            count=lambda *counted: None,
            record_event=lambda kind, *told: self.done.append(kind),
        )
        self.query = SimpleNamespace(
            window_length=SECOND, window_batch=self._batch, groups=self._groups
        )
        self.sink_session = SimpleNamespace(
            takes_rows=True,
            write=self._write,
            commit=self._commit,
            abort=lambda epoch, receipts: self.done.append("abort"),
            evolve=lambda event: self.done.append("evolve"),
        )

    oldest = Timestamp.ZERO

    def slice(
        self, bounds: Mapping[TableName, Timestamp], upto: Timestamp, max_rows: int, max_bytes: int
    ) -> Any:
        self.read.append(bounds[T])
        end, events = self.slices.pop(0)
        controls = [e for e in events if not isinstance(e, LogPiece)]
        known = min(Timestamp(int(end * SECOND)), upto) if self.slices else upto
        return SimpleNamespace(upto=known, events=events, control_events=controls)

    def deliver(self, upto: float, window_bytes: int = 1 << 20) -> int:
        delivery = WindowDelivery(self, cast(Any, self.sink_session), None, window_bytes)
        return delivery.deliver(
            cast(Any, self.feed),
            cast(Any, self.query),
            {T: self.table.done_upto},
            Timestamp(int(upto * SECOND)),
            after_commit=lambda: self.places.append(self._place()),
            interrupted=lambda: self.stop,
        )

    def _place(self) -> float:
        return float(self.table.done_upto.wall + 1) / SECOND

    def _advance(self, names: list[TableName], upto: Timestamp) -> None:
        assert names == [T] and upto > self.table.done_upto
        self.table.done_upto = upto

    def _batch(self, schema: TableSchema, rows: pa.Table) -> pa.Table:
        window = windows_of(rows["wall"].combine_chunks(), SECOND)
        key = schema.columns[0].name
        return pa.table({key: rows["a0"], WINDOW: window, SEQ: rows["seq"]})

    def _groups(self, schema: TableSchema, batch: pa.Table, last_seq: int) -> pa.Table:
        assert SEQ not in batch.column_names
        self.last_seqs.append(last_seq)
        counts: dict[int, int] = {}
        for window in batch[WINDOW].to_pylist():
            start = int(window["start"].timestamp())
            counts[start] = counts.get(start, 0) + 1
        return pa.table({"start": list(counts), "n": list(counts.values())})

    def _write(self, batch: Batch) -> Receipt:
        self.done.append("write")
        self.delivered_before.append(batch.after)
        self.groups += zip(*batch.rows.to_pydict().values(), strict=True)
        return Receipt(batch.partition, batch.rows.num_rows, 1)

    def _commit(
        self, epoch: Epoch, receipts: object, tables: object, progress: Mapping[Any, Timestamp]
    ) -> None:
        if self.fails:
            raise ChangefeedError("CF5001", "away")
        assert progress == {T: epoch.upto}


def test_nothing_is_read_before_a_window_is_whole() -> None:
    world = World()
    assert world.deliver(10.999) == 0
    assert world.read == [] and world.places == []


def test_whole_windows_are_told_once_and_the_open_one_is_read_again() -> None:
    world = World((13.5, [commits(10.1, 10.9, 11.5, 13.0)]))
    assert world.deliver(13.5) == 2
    assert world.groups == [(10, 2), (11, 1)]
    assert world.places == [13.0] and world.last_seqs == [11_500]
    world.slices = [(14.2, [commits(13.0, 13.9, 14.1)])]
    assert world.deliver(14.2) == 1
    assert world.read == [BEGIN, through(13 * SECOND)]
    assert world.groups[2:] == [(13, 2)] and world.places == [13.0, 14.0]
    assert world.delivered_before == [BEGIN, through(13 * SECOND)]


def test_a_window_of_several_slices_is_one() -> None:
    world = World(
        (10.3, [commits(10.1, 10.2)]),
        (10.8, [commits(10.4)]),
        (11.2, [commits(10.9, 11.1)]),
        (13, []),
    )
    assert world.deliver(13) == 2
    assert world.groups == [(10, 4), (11, 1)]
    assert world.places == [11.0, 13.0]


def test_windows_without_changes_are_passed_by() -> None:
    world = World((20, []))
    assert world.deliver(20) == 0
    assert world.places == [20.0] and world.done == []


def test_the_window_in_which_a_feed_began_is_left_out() -> None:
    world = World((13, [commits(11.1, 12.2)]))
    world.table.done_upto = Timestamp(int(10.4 * SECOND))
    assert world.deliver(13) == 2
    assert world.read == [through(11 * SECOND)]
    assert world.groups == [(11, 1), (12, 1)]


def test_what_the_sink_does_not_take_is_no_progress() -> None:
    world = World((12, [commits(10.1)]))
    world.fails = True
    with pytest.raises(ChangefeedError, match="away"):
        world.deliver(12)
    assert world.table.done_upto == BEGIN and world.done == ["write", "abort"]
    world.fails, world.slices = False, [(12, [commits(10.1)])]
    assert world.deliver(12) == 1
    assert world.groups == [(10, 1), (10, 1)] and world.places == [12.0]


def test_who_is_wanted_for_something_else_stops_at_the_end_of_a_window() -> None:
    world = World((11.5, [commits(10.1, 11.2)]), (14, [commits(12.1)]))
    world.stop = True
    assert world.deliver(14) == 1
    assert world.groups == [(10, 1)] and world.places == [11.0]


def test_a_feed_that_ends_leaves_out_the_window_of_its_end() -> None:
    world = World((12.5, [commits(10.1, 12.2)]), end_time=12.5)
    assert world.deliver(12.5) == 1
    assert world.groups == [(10, 1)]
    assert world.table.done_upto == Timestamp(int(12.5 * SECOND))


def test_a_window_that_does_not_fit_into_memory_stops_the_table() -> None:
    world = World((10.5, [commits(*(10 + i / 1000 for i in range(100)))]), (12, []))
    with pytest.raises(TableError, match="one window need more than") as caught:
        world.deliver(12, window_bytes=1_000)
    assert "shorter windows" in caught.value.error.hint
    assert world.table.done_upto == BEGIN


def test_a_change_of_shape_comes_between_the_windows_before_and_the_window_it_is_in() -> None:
    """The window that is open then is evaluated by the new shape, with its rows from before."""
    old = shape(T)
    new = replace(old, version=2, columns=(replace(old.columns[0], nullable=True),))
    event = SchemaChange(old, new, Timestamp(int(11.5 * SECOND)), 11_500)
    world = World((13, [commits(10.1, 11.2), event, commits(11.7, schema=new)]))
    assert world.deliver(13) == 2
    assert world.done == ["write", "schema", "evolve", "write"]
    assert world.groups == [(10, 1), (11, 2)] and world.places == [11.0, 13.0]


def test_a_column_that_changes_its_type_within_a_window_stops_the_table() -> None:
    old = shape(T)
    new = replace(old, version=2, columns=(replace(old.columns[0], name="other"),))
    event = SchemaChange(old, new, Timestamp(int(10.5 * SECOND)), 10_500)
    world = World((13, [commits(10.1), event, commits(10.7, schema=new)]))
    with pytest.raises(TableError, match="another type within a window"):
        world.deliver(13)
    assert world.table.done_upto == BEGIN and world.groups == []


def test_a_truncate_empties_nothing() -> None:
    event = Truncate(shape(T), Timestamp(int(10.5 * SECOND)), 10_500)
    world = World((12, [commits(10.1), event, commits(10.7)]))
    assert world.deliver(12) == 1
    assert world.done == ["truncate", "write"] and world.groups == [(10, 2)]


def test_a_table_that_is_renamed_fails_after_the_windows_before() -> None:
    old = shape(T)
    new = replace(old, table=TableName("shop", "public", "z"))
    event = SchemaChange(old, new, Timestamp(int(11.5 * SECOND)), 11_500)
    world = World((13, [commits(10.1, 11.2), event]))
    with pytest.raises(TableError, match="was renamed to"):
        world.deliver(13)
    assert world.groups == [(10, 1)] and world.places == [11.0]
