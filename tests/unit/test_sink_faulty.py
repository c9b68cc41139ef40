"""The wrapper that fails a sink on purpose."""

from __future__ import annotations

import threading

import pytest

from changefeed.core.errors import ChangefeedError
from changefeed_testing.sinks.faulty import FailAfter, FaultySink, Hold, Reject, Slow
from changefeed_testing.sinks.feed import FeedDouble, put
from sinks.base import Sink
from sinks.null.sink import NullSink


@pytest.fixture
def sink() -> FaultySink:
    return FaultySink(NullSink())


@pytest.fixture
def feed(sink: FaultySink) -> FeedDouble:
    feed = FeedDouble({"t": "t"})
    feed.open(sink)
    return feed


def test_transparent_without_faults(sink: FaultySink, feed: FeedDouble) -> None:
    feed.deliver(sink, [put(1, "x", 1)])
    feed.resolve(sink)
    assert sink.calls == ["open", "write", "commit", "resolved"]
    assert sink.rows == 1
    assert isinstance(sink, Sink)


def test_rejected_calls_do_not_reach_the_sink(sink: FaultySink, feed: FeedDouble) -> None:
    sink.fail("write", Reject())
    with pytest.raises(ChangefeedError):
        feed.deliver(sink, [put(1, "x", 1)])
    assert sink.rows == 0
    assert sink.spent


def test_lost_answers_do_reach_it(sink: FaultySink, feed: FeedDouble) -> None:
    sink.fail("write", FailAfter(ChangefeedError("CF5004", "busy")))
    with pytest.raises(ChangefeedError, match="busy"):
        feed.deliver(sink, [put(1, "x", 1)])
    assert sink.rows == 1


def test_held_calls_wait_for_the_test(sink: FaultySink, feed: FeedDouble) -> None:
    hold = Hold()
    sink.fail("resolved", hold)
    thread = threading.Thread(target=feed.resolve, args=(sink,))
    thread.start()
    assert hold.entered.wait(10)
    assert sink.marks == 1
    assert thread.is_alive()
    hold.release.set()
    thread.join(10)
    assert not thread.is_alive()


def test_slow_calls_wait_first(sink: FaultySink, feed: FeedDouble) -> None:
    waits: list[float] = []
    sink.fail("commit", Slow(2.5, waits.append))
    feed.deliver(sink, [put(1, "x", 1)])
    assert waits == [2.5]


def test_capabilities_are_the_inner_ones_but_for_executors(sink: FaultySink) -> None:
    assert NullSink.capabilities.executor
    assert not sink.capabilities.executor
    assert sink.capabilities.formats == NullSink.capabilities.formats


def test_unknown_calls_are_refused(sink: FaultySink) -> None:
    with pytest.raises(ValueError, match="no call flush"):
        sink.fail("flush", Reject())
