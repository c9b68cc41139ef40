"""Back-off, the budget, and what is never tried again."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from changefeed.core.clock import ManualClock
from changefeed.core.errors import ChangefeedError
from changefeed_testing.sinks.faulty import FailAfter, FaultySink, Reject
from changefeed_testing.sinks.feed import FeedDouble, put
from changefeed_testing.sinks.retry import Attempt, RetryLoop, RetryPolicy, WaitInterrupted
from sinks.null.sink import NullSink


class Bench:
    """A retry whose waits move a clock instead of taking time."""

    def __init__(self, policy: RetryPolicy, stop_after: int | None = None) -> None:
        self.clock = ManualClock()
        self.attempts: list[Attempt] = []
        self.waits: list[float] = []
        self._stop_after = stop_after
        self.retry = RetryLoop(policy, self.clock, self._wait, self.attempts.append, lambda: 0.5)

    def _wait(self, seconds: float) -> bool:
        self.waits.append(seconds)
        self.clock.advance(seconds)
        return self._stop_after is not None and len(self.waits) >= self._stop_after


def failing(times: int, code: str = "CF5001") -> Callable[[], str]:
    left = iter([ChangefeedError(code, "no")] * times)

    def action() -> str:
        for error in left:
            raise error
        return "done"

    return action


def test_success_reports_nothing() -> None:
    bench = Bench(RetryPolicy())
    assert bench.retry.run(failing(0)) == "done"
    assert bench.attempts == []


def test_waits_double_up_to_the_longest() -> None:
    bench = Bench(RetryPolicy(first=1.0, longest=8.0))
    assert bench.retry.run(failing(6)) == "done"
    assert bench.waits == [0.75, 1.5, 3.0, 6.0, 6.0, 6.0]
    assert [attempt.number for attempt in bench.attempts] == [1, 2, 3, 4, 5, 6]
    assert bench.attempts[2].failing_for == pytest.approx(2.25)


def test_gives_up_when_the_time_is_spent() -> None:
    bench = Bench(RetryPolicy(retry_for=10.0, first=4.0, longest=4.0))
    with pytest.raises(ChangefeedError):
        bench.retry.run(failing(100))
    assert sum(bench.waits) == pytest.approx(10.0)
    assert bench.attempts[-1].again_in is None


def test_zero_budget_is_one_attempt() -> None:
    bench = Bench(RetryPolicy(retry_for=0.0))
    with pytest.raises(ChangefeedError):
        bench.retry.run(failing(1))
    assert bench.waits == []


def test_forever_goes_on() -> None:
    bench = Bench(RetryPolicy(retry_for=math.inf))
    assert bench.retry.run(failing(5_000)) == "done"
    assert bench.clock.monotonic() > 24 * 3600


@pytest.mark.parametrize("code", ["CF5002", "CF5006", "CF1207"])
def test_hopeless_errors_are_not_tried_again(code: str) -> None:
    bench = Bench(RetryPolicy())
    with pytest.raises(ChangefeedError):
        bench.retry.run(failing(1, code))
    assert [attempt.again_in for attempt in bench.attempts] == [None]


def test_other_exceptions_pass_through() -> None:
    def broken() -> None:
        raise ZeroDivisionError

    bench = Bench(RetryPolicy())
    with pytest.raises(ZeroDivisionError):
        bench.retry.run(broken)
    assert bench.attempts == []


def test_a_wait_can_be_interrupted() -> None:
    bench = Bench(RetryPolicy(), stop_after=2)
    with pytest.raises(WaitInterrupted):
        bench.retry.run(failing(10))
    assert len(bench.attempts) == 2


@settings(deadline=None)
@given(attempt=st.integers(1, 10_000), chance=st.floats(0, 1, exclude_max=True))
def test_pauses_stay_between_half_and_whole(attempt: int, chance: float) -> None:
    policy = RetryPolicy()
    pause = policy.pause(attempt, chance)
    whole = min(policy.longest, policy.first * 2.0 ** min(attempt - 1, 60))
    assert whole / 2 <= pause <= whole


def test_an_epoch_is_repeated_from_its_start() -> None:
    sink = FaultySink(NullSink())
    sink.fail("commit", Reject(), FailAfter())
    feed = FeedDouble({"t": "t"})
    feed.open(sink)
    bench = Bench(RetryPolicy())
    bench.retry.run(lambda: feed.deliver(sink, [put(1, "x", 1)]))
    assert sink.spent
    assert sink.calls == ["open", *["write", "commit"] * 3]
    assert len(bench.attempts) == 2
