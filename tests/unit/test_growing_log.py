"""Whether a change log goes on, as the node sees it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from changefeed.capture.growing_log import GrowingLog
from changefeed.core.clock import ManualClock, Timestamp, Waitable
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.events import Frontier
from changefeed.log import LogSettings, LogWriter
from tests.helpers.log_samples import flush
from tests.helpers.waiting import until


class Reader:
    """A log of which the node has not seen the last flush."""

    def __init__(self) -> None:
        self.frontier = Frontier(Timestamp(1), "1")

    def refresh(self) -> Frontier:
        self.frontier = Frontier(Timestamp(2), "2")
        return self.frontier


class Clock(ManualClock):
    """Takes a step of the story at each wait."""

    def __init__(self, *steps: Callable[[], None]) -> None:
        super().__init__()
        self._steps = iter(steps)

    def wait(self, waitable: Waitable, seconds: float) -> bool:
        next(self._steps)()
        return super().wait(waitable, seconds)


def test_what_an_earlier_capture_wrote_does_not_show_that_the_log_goes_on(tmp_path: Path) -> None:
    gone = ChangefeedError("CF2103", "the source was replaced")
    told: list[GrowingLog] = []
    clock = Clock(lambda: told[0].refresh(), lambda: told[0].fail(gone))
    log = GrowingLog("shop", tmp_path, clock)
    told.append(log)
    cast(Any, log)._reader = Reader()
    assert log.why_lost(threading.Event()) is gone


def test_a_log_that_cannot_be_opened_for_a_while_is_followed_again(tmp_path: Path) -> None:
    """The thread that follows it says what is wrong, and outlives it."""
    with LogWriter(tmp_path, LogSettings()) as writer:
        writer.append(flush([], Timestamp(1000), 1))
        log = GrowingLog("shop", tmp_path)
        assert log.frontier is not None and log.frontier.at == Timestamp(1000)
        log.fail(ChangefeedError(Code.LOG_DAMAGED, "damaged"))
        (tmp_path / "LEDGER").rename(tmp_path / "elsewhere")
        log.retry()  # the reader that was open is left
        log.follow()
        until(lambda: log.error is not None, "it says that the log is damaged")
        assert log.error is not None and log.error.code is Code.LOG_DAMAGED
        (tmp_path / "elsewhere").rename(tmp_path / "LEDGER")
        writer.append(flush([], Timestamp(2000), 2))
        until(lambda: log.error is None, "it reads the log again")
        frontier = log.wait_beyond(Timestamp(1000), 10)
        assert frontier is not None and frontier.at == Timestamp(2000)
        log.close()


def test_a_log_says_since_when_it_stands_still(tmp_path: Path) -> None:
    """The process that writes it sends nothing, or another process writes it."""
    clock = ManualClock()
    with LogWriter(tmp_path, LogSettings()) as writer:
        began, log = clock.now(), GrowingLog("shop", tmp_path, clock)
        clock.advance(31)
        assert log.silent_since(30) == began
        writer.append(flush([], Timestamp(1000), 1))
        log.refresh()
        assert log.silent_since(30) is None
        grew = clock.now()
        for _ in range(2):
            clock.advance(20)
            log.refresh()
        assert log.silent_since(30) == grew
        log.close()
        log.release()
