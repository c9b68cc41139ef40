"""Client libraries that say the same thing several times a second, said once."""

from __future__ import annotations

import logging
import re
import threading

from changefeed.core.clock import SYSTEM_CLOCK, Clock

#: A line that came once is not repeated for so long, seconds.
QUIET_SECONDS = 60.0
_NUMBERS = re.compile(r"\d+")


class LimitRepeats(logging.Filter):
    """Lets a line through, and those that differ from it in numbers only not for a while; the
    next that is let through says how many were left out. For what a client library says of a
    server that is away, several times a second.
    """

    _KEPT = 1000

    def __init__(self, seconds: float = QUIET_SECONDS, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__()
        self._seconds = seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: dict[tuple[int, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is to be written."""
        text = record.getMessage()
        key = (record.levelno, _NUMBERS.sub("0", text))
        now = self._clock.monotonic()
        with self._lock:
            until, left_out = self._seen.get(key, (0.0, 0))
            if now < until:
                self._seen[key] = (until, left_out + 1)
                return False
            if len(self._seen) >= self._KEPT:
                self._seen.clear()
            self._seen[key] = (now + self._seconds, 0)
        if left_out:
            record.msg, record.args = f"{text} (and {left_out} times before)", ()
        return True
