"""Who delivers a round, and what is left for whom."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from changefeed.catalog.model import TableProgress, TableState
from changefeed.core.clock import ManualClock, Timestamp
from changefeed.core.events import Frontier, SchemaChange
from changefeed.core.schema import TableName, TableSchema
from changefeed.core.timings import Timings
from changefeed.feeds.backlog import BacklogResult
from changefeed.feeds.rounds import Deliverers, Rounds
from changefeed.options import Options

T = TableName("shop", "public", "t")
BEGIN, END = Timestamp(10), Timestamp(20)


class World:
    """A feed that is behind, a Spark job that answers ``done``, and a driver that delivers."""

    def __init__(
        self, done: BacklogResult, *, pace: float = 0.0, timings: Timings | None = None
    ) -> None:
        self.done = done
        self.delivered: list[Timestamp] = []
        self.windows: list[Timestamp] = []
        self.commits = 0
        table = TableProgress(T, "t", state=TableState.RUNNING, scan_wanted=False, done_upto=BEGIN)
        self.feed = SimpleNamespace(
            job=SimpleNamespace(id=1, name="f", end_time=None),
            options=Options.from_dict({}),
            tables={T: table},
            in_state=lambda *states: [table],
            keep_only=lambda names: None,
            query=None,
        )
        scanning = SimpleNamespace(holds=lambda table: False, at=None)
        catalog = SimpleNamespace(version=lambda: 1, tables=lambda job: [table])
        change_log = SimpleNamespace(
            frontier=Frontier(END, "1"), wait_beyond=lambda at, seconds: self.waits.append(at)
        )
        self.source_runtime = SimpleNamespace(log=change_log)
        self.waits: list[Timestamp] = []
        self.rename: SchemaChange | None = None
        self.followed: list[tuple[object, ...]] = []
        delivery = SimpleNamespace(deliver=self._driver)
        backlog = SimpleNamespace(deliver=lambda *args, **named: self.done)
        windows = SimpleNamespace(deliver=self._windows)
        self.clock = ManualClock()
        self.interrupted = False
        self.rounds = Rounds(
            cast(Any, catalog),
            cast(Any, self.source_runtime),
            cast(Any, SimpleNamespace(pulled=False, pace=pace)),
            cast(Any, scanning),
            Deliverers(cast(Any, delivery), cast(Any, backlog), cast(Any, windows)),
            renames=cast(Any, SimpleNamespace(follow=self._follow)),
            clock=self.clock,
            timings=timings or Timings(),
            committed=self._committed,
            interrupted=lambda: self.interrupted,
        )

    def _driver(self, feed: object, bounds: object, upto: Timestamp, **named: Any) -> int:
        self.delivered.append(upto)
        if self.rename is not None:
            named["on_rename"](self.rename)
        return 3

    def _follow(self, *told: object) -> None:
        self.followed.append(told[1:])

    def _windows(
        self, feed: object, query: object, bounds: object, upto: Timestamp, **_: object
    ) -> int:
        self.windows.append(upto)
        return 0

    def _committed(self) -> None:
        self.commits += 1

    def turn(self) -> bool:
        return self.rounds.turn(cast(Any, self.feed))


@pytest.mark.parametrize("rows", [0, 5])
def test_what_spark_delivered_is_not_read_again(rows: int) -> None:
    """A range may hold no row that the feed takes: it is delivered all the same."""
    world = World(BacklogResult(rows, moved=True))
    assert world.turn() is (rows > 0)
    assert world.delivered == [] and world.commits == 1
    world.rounds.wait()
    # There may be more behind the range; after rows the next round waits for its time.
    assert world.waits == ([Timestamp.ZERO, Timestamp.MAX] if rows else [Timestamp.ZERO])


def test_what_spark_leaves_is_delivered_by_the_driver() -> None:
    world = World(BacklogResult())
    assert world.turn() and world.delivered == [END]


def test_the_driver_goes_as_far_as_spark_says() -> None:
    world = World(BacklogResult(node_upto=Timestamp(15)))
    assert world.turn() and world.delivered == [Timestamp(15)]


def test_the_log_is_waited_for_before_the_pause_between_rounds() -> None:
    """A change that comes after the pause then wakes the feed's thread once, not twice."""
    world = World(BacklogResult())
    assert world.turn()
    world.rounds.wait()
    assert world.waits == [END, Timestamp.MAX]
    world.clock.advance(Timings().gather)
    world.rounds.wait()
    assert world.waits[2:] == [END]


@pytest.mark.parametrize(("longest", "rests"), [(60.0, 5.0), (0.5, 0.5)])
def test_a_feed_rests_as_its_sink_asks_and_no_longer_than_it_may(
    longest: float, rests: float
) -> None:
    world = World(BacklogResult(), pace=5.0, timings=Timings(rest_longest=longest))
    assert world.turn()
    world.clock.advance(rests - 0.1)
    assert not world.turn()
    world.clock.advance(0.2)
    assert world.turn()


def test_rows_that_an_interruption_left_are_not_waited_for() -> None:
    world = World(BacklogResult())
    world.interrupted = True
    world.turn()
    world.rounds.wait()
    assert world.waits[0] == Timestamp.ZERO


def test_a_query_that_groups_is_delivered_by_windows_alone() -> None:
    world = World(BacklogResult(5, moved=True))
    world.feed.query = SimpleNamespace(grouped=True)
    assert not world.turn()
    assert world.windows == [END] and world.delivered == [] and world.commits == 0


def test_what_comes_under_another_name_is_not_waited_for() -> None:
    world = World(BacklogResult())
    old = TableSchema(T, (), ())
    now = replace(T, name="u")
    world.rename = SchemaChange(old, replace(old, table=now), Timestamp(15), 3)
    assert world.turn()
    assert world.followed == [(T, now, Timestamp(15))]
    world.rounds.wait()
    assert world.waits[0] == Timestamp.ZERO
