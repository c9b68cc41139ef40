"""How long a feed retries, and how long it waits between two attempts."""

from __future__ import annotations

import random

from changefeed.core.clock import Clock, SystemClock
from changefeed.core.timings import Timings


class RetryClock:
    """Exponential back-off with jitter, and the time since the first failure."""

    def __init__(self, clock: Clock | None = None, timings: Timings | None = None) -> None:
        self._clock = clock or SystemClock()
        self._timings = timings or Timings()
        self.attempt = 0
        self._since: float | None = None

    def reset(self) -> None:
        """Begin again with short pauses, because something was delivered."""
        self.attempt = 0
        self._since = None

    def allows(self, budget: float) -> bool:
        """Whether another attempt is within ``budget`` seconds of the first failure."""
        if self._since is None:
            self._since = self._clock.monotonic()
        return budget > 0 and self._clock.monotonic() - self._since <= budget

    def next_pause(self) -> float:
        """Seconds to wait before the next attempt."""
        # A bounded exponent: no float holds 2**1024, and an outage of nine hours has that many
        # attempts.
        pause = self._timings.retry_first * 2.0 ** min(self.attempt, 30)
        self.attempt += 1
        return min(pause, self._timings.retry_longest) * random.uniform(0.75, 1.25)
