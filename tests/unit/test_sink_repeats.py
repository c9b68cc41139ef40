"""Lines of client libraries that come again and again."""

from __future__ import annotations

import logging

from changefeed.core.clock import ManualClock
from sinks.repeats import LimitRepeats


def lines(limit: LimitRepeats, *texts: str) -> list[str]:
    """What of the texts gets through."""
    found = []
    for text in texts:
        record = logging.LogRecord("x", logging.ERROR, "", 0, "%s", (text,), None)
        if limit.filter(record):
            found.append(record.getMessage())
    return found


def test_lines_that_differ_in_numbers_come_once() -> None:
    limit = LimitRepeats(seconds=3600)
    said = lines(limit, "refused after 3ms", "refused after 41ms", "refused after 5s", "refused")
    assert said == ["refused after 3ms", "refused after 5s", "refused"]


def test_a_line_comes_again_later_and_says_how_often_it_came() -> None:
    clock = ManualClock()
    limit = LimitRepeats(seconds=60, clock=clock)
    assert lines(limit, "away 1", "away 2") == ["away 1"]
    clock.advance(59)
    assert lines(limit, "away 3") == []
    clock.advance(2)
    assert lines(limit, "away 4", "away 5") == ["away 4 (and 2 times before)"]


def test_what_is_remembered_is_bounded() -> None:
    limit = LimitRepeats(seconds=3600)
    for number in range(3 * limit._KEPT):
        lines(limit, "line " + "x" * number)
    assert len(limit._seen) <= limit._KEPT
