"""Whether a change log goes on, as the node sees it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from changefeed.capture.growing_log import GrowingLog
from changefeed.core.clock import ManualClock, Timestamp, Waitable
from changefeed.core.errors import ChangefeedError
from changefeed.core.events import Frontier


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
