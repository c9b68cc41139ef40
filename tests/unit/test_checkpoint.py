"""When progress is saved, and that resolved never runs ahead of what was saved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import pytest

from changefeed.core.clock import ManualClock, Timestamp
from changefeed.core.timings import Timings
from changefeed.feeds.checkpoint import OFFER_SECONDS, Checkpoint
from changefeed.feeds.feed import Feed
from changefeed.feeds.sink_session import SinkSession
from changefeed.options import MIN_CHECKPOINT_FREQUENCY, RESOLVED

TIMINGS = Timings()


class Bench:
    """A feed and a sink that write down what happens, on a clock that stands still."""

    resolves = True
    resolves_by_topic = False

    def __init__(self, resolved: float | None = 10.0, *, with_others: bool = False) -> None:
        self.clock = ManualClock(1000 * 10**9)
        self.options: Mapping[Any, Any] = {RESOLVED: resolved, MIN_CHECKPOINT_FREQUENCY: 30.0}
        self.done: list[str] = []
        self.high: Timestamp | None = Timestamp(5)
        self.changed = False
        self.joining = False
        self.checkpoint = Checkpoint(
            cast(SinkSession, self._SinkSession(self)),
            lambda: self.joining,
            self.clock,
            TIMINGS,
            with_others=with_others,
        )
        self.saved_with_others: Timestamp | None = None

    class _SinkSession:
        def __init__(self, bench: Bench) -> None:
            self._bench = bench
            self.resolves_by_topic = False

        @property
        def resolves(self) -> bool:
            return self._bench.resolves

        def resolved(self, at: Timestamp) -> None:
            self._bench.done.append(f"resolved {at.wall}")

    def save(self) -> None:
        self.done.append("save")
        self.changed = False

    def offer_high_water(self, *, soon: bool) -> Timestamp | None:
        self.done.append("offer soon" if soon else "offer")
        return self.high

    def resolved(self, *, by_topic: bool) -> Timestamp | None:
        return self.high

    def high_water(self) -> Timestamp | None:
        return self.high

    def turn(self, after: float = 0.0, *, moved: bool = False) -> list[str]:
        """What a turn ``after`` so many seconds does."""
        self.clock.advance(after)
        self.done.clear()
        self.changed = self.changed or moved
        self.checkpoint.turn(cast(Feed, self))
        return list(self.done)

    def last(self) -> list[str]:
        self.done.clear()
        self.checkpoint.last(cast(Feed, self))
        return list(self.done)


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    assert bench.turn() == ["save", "resolved 5"]
    return bench


@pytest.fixture
def plain() -> Bench:
    """A feed without resolved timestamps."""
    bench = Bench(resolved=None)
    assert bench.turn() == ["save"]
    return bench


def test_resolved_comes_after_its_save_and_not_before_its_time(bench: Bench) -> None:
    bench.high = Timestamp(6)
    assert "resolved 6" not in bench.turn(9.5, moved=True)
    assert bench.turn(0.5) == ["save", "resolved 6"]
    assert bench.checkpoint.resolved == Timestamp(6)


def test_the_same_instant_is_resolved_once(bench: Bench) -> None:
    assert bench.turn(60) == ["save"]
    assert bench.last() == ["save"]


def test_resolved_never_goes_back(bench: Bench) -> None:
    bench.high = Timestamp(4)
    assert bench.turn(60) == ["save"]
    assert bench.checkpoint.resolved == Timestamp(5)


def test_what_is_not_known_is_not_resolved(bench: Bench) -> None:
    bench.high = None
    assert bench.turn(60) == ["save"]
    assert bench.last() == ["save"]


def test_a_sink_that_carries_no_marks_gets_none(bench: Bench) -> None:
    bench.high, bench.resolves = Timestamp(6), False
    assert bench.turn(60) == ["save"]
    assert bench.last() == ["save"]


def test_a_table_that_joins_holds_resolved_back(bench: Bench) -> None:
    bench.high, bench.joining = Timestamp(6), True
    assert bench.turn(60) == ["save"]
    bench.joining = False
    assert bench.turn(60) == ["save", "resolved 6"]


def test_a_feed_that_delivers_is_saved_each_second(plain: Bench) -> None:
    assert plain.turn(TIMINGS.save - 0.01, moved=True) == []
    assert plain.turn(0.01, moved=True) == ["save"]
    assert plain.turn(TIMINGS.save - 0.01, moved=True) == []
    assert plain.turn(0.01) == ["save"]


def test_a_feed_that_watches_time_pass_is_saved_less_often(plain: Bench) -> None:
    assert plain.turn(TIMINGS.save_idle - 0.01) == []
    assert plain.turn(0.01) == ["save"]


def test_the_option_can_ask_for_more(plain: Bench) -> None:
    plain.options = {RESOLVED: None, MIN_CHECKPOINT_FREQUENCY: 0.25}
    assert plain.turn(0.24, moved=True) == []
    assert plain.turn(0.01, moved=True) == ["save"]


def test_who_wants_a_save_gets_one(plain: Bench) -> None:
    plain.checkpoint.want()
    assert plain.turn() == ["save"]
    assert plain.turn() == [], "asked once, saved once"


def test_who_waits_for_a_point_gets_a_save_when_it_is_reached(plain: Bench) -> None:
    """SYNC waits for the end of a backlog, and asks less and less often."""
    plain.checkpoint.want(Timestamp(7))
    assert plain.turn(moved=True) == ["save"]
    assert plain.turn(moved=True) == [], "not reached"
    plain.high = Timestamp(8)
    assert plain.turn() == ["save"]
    assert plain.turn() == []


def test_the_end_is_saved_and_resolved(bench: Bench, plain: Bench) -> None:
    bench.high = Timestamp(7)
    assert bench.last() == ["save", "resolved 7"]
    assert plain.last() == ["save"]


def test_a_feed_at_rest_is_saved_with_the_others_and_resolved_after_that() -> None:
    bench = Bench(with_others=True)
    assert bench.turn() == ["offer"]
    assert bench.turn(0.1) == [], "not written yet"
    bench.saved_with_others, bench.high = Timestamp(5), Timestamp(9)
    assert bench.turn(0.1) == ["resolved 5"], "no more than what was written"
    assert bench.turn(OFFER_SECONDS) == ["offer"]
    assert bench.turn(10) == ["offer"]
    bench.saved_with_others = Timestamp(8)
    assert bench.turn(0.1) == [], "an earlier offer is not the one that is due"
    bench.saved_with_others = Timestamp(9)
    assert bench.turn(0.1) == ["resolved 9"]
    bench.checkpoint.want()
    assert bench.turn() == ["offer soon"]


def test_a_feed_that_delivers_does_not_wait_for_the_others() -> None:
    bench = Bench(with_others=True)
    assert bench.turn() == ["offer"]
    assert bench.turn(0.1, moved=True) == ["save", "resolved 5"]
    bench.high = Timestamp(7)
    assert bench.turn(10, moved=True) == ["save", "resolved 7"]
    bench.options = {RESOLVED: 1.0, MIN_CHECKPOINT_FREQUENCY: 30.0}
    bench.high = Timestamp(8)
    assert bench.turn(1) == ["save", "resolved 8"], "it may be late by a second, not by two"
