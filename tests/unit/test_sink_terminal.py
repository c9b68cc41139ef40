"""Sinkless feeds: back-pressure, and both ways to part."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from changefeed.core.errors import ChangefeedError
from changefeed.core.events import ClientRow
from changefeed_testing.sinks.feed import FeedDouble, at, put
from sinks.terminal import TerminalSink


class Runner:
    """A feed in a thread of its own, so that the test can be the client."""

    def __init__(self, sink: TerminalSink, rows: int) -> None:
        self.error: ChangefeedError | None = None
        self.done = threading.Event()
        self._sink, self._rows = sink, rows
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        feed = FeedDouble({"t": "t"})
        try:
            feed.open(self._sink)
            feed.deliver(self._sink, [put(key, "x", key) for key in range(1, self._rows + 1)])
            feed.resolve(self._sink)
            self._sink.finish()
        except ChangefeedError as error:
            self.error = error
        self.done.set()


@pytest.fixture
def sink() -> Iterator[TerminalSink]:
    sink = TerminalSink(capacity=5)
    yield sink
    sink.leave()


def test_rows_come_in_order_and_end(sink: TerminalSink) -> None:
    runner = Runner(sink, 20)
    rows = list(sink.rows())
    assert [row.key for row in rows] == [*(f"[{n}]".encode() for n in range(1, 21)), None]
    assert rows[0].table == "t"
    assert rows[-1].table is None
    assert rows[-1].value == f'{{"resolved": "{at(20)}"}}'.encode()
    assert runner.done.wait(10)
    assert sink.ended
    assert runner.error is None


def test_a_client_that_does_not_read_holds_the_feed(sink: TerminalSink) -> None:
    runner = Runner(sink, 20)
    first = sink.take(10)
    assert first is not None
    assert not runner.done.wait(0.1)
    assert len(sink._rows) <= 5
    assert len(list(sink.rows())) == 20
    assert runner.done.wait(10)


def test_commit_waits_until_the_last_row_is_dealt_with(sink: TerminalSink) -> None:
    runner = Runner(sink, 1)
    assert sink.take(10) is not None
    assert not runner.done.wait(0.1)
    mark = sink.take(10)
    assert mark is not None
    assert mark.key is None
    assert sink.take(10) is None
    assert runner.done.wait(10)


def test_a_client_that_leaves_ends_the_feed(sink: TerminalSink) -> None:
    runner = Runner(sink, 20)
    assert sink.take(10) is not None
    sink.leave()
    assert runner.done.wait(10)
    assert runner.error is not None
    assert runner.error.code.number == "CF5007"
    assert sink.take(0) is None


def test_the_error_of_the_feed_reaches_the_client(sink: TerminalSink) -> None:
    sink._put(ClientRow("t", b"[1]", b"{}", "c"))
    sink.finish(ChangefeedError("CF2101", "replication stream broke"))
    rows = sink.rows()
    assert next(rows).key == b"[1]"
    with pytest.raises(ChangefeedError, match="replication stream broke"):
        next(rows)


def test_a_row_that_does_not_come_is_waited_for_only_so_long(sink: TerminalSink) -> None:
    assert sink.take(0.01) is None
    assert not sink.ended


def test_abort_takes_back_what_was_not_read(sink: TerminalSink) -> None:
    feed = FeedDouble({"t": "t"})
    epoch = feed.epoch(at(2))
    feed.write(sink, epoch, [put(1, "x", 1), put(2, "x", 2)])
    sink.abort(epoch, ())
    assert sink.take(0) is None
