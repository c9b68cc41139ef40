"""How long a sink waits between two rounds: in proportion to the duration of a round."""

from __future__ import annotations

from typing import Protocol


class Pace(Protocol):
    """Adapts the seconds between two rounds to the duration of rounds."""

    @property
    def seconds(self) -> float:
        """Seconds between the last round and the next one."""
        ...

    def after(self, took: float) -> None:
        """A round has taken so many seconds."""
        ...


class ShorterPace:
    """Waits a multiple of the shorter of the last two rounds, within bounds, so that one slow round
    changes nothing. The first round does not count: it loads and compiles what the others run.

    Args:
        least, most: bounds, in seconds.
        times: the factor.
    """

    def __init__(self, least: float, most: float, times: float) -> None:
        self.seconds = least
        self._least, self._most, self._times = least, most, times
        self._cold = True
        self._last: float | None = None

    def after(self, took: float) -> None:
        """A round has taken so many seconds."""
        if self._cold:
            self._cold = False
            return
        usual = took if self._last is None else min(took, self._last)
        self.seconds = min(self._most, max(self._least, self._times * usual))
        self._last = took


class SlowDecline:
    """Waits a multiple of the last round, within bounds. The wait grows to that value at once, but
    declines only half of the way to it after each round.

    Args:
        least, most: bounds, in seconds.
        times: the factor.
    """

    def __init__(self, least: float, most: float, times: float) -> None:
        self.seconds = least
        self._least, self._most, self._times = least, most, times

    def after(self, took: float) -> None:
        """A round has taken so many seconds."""
        wanted = min(self._most, max(self._least, took * self._times))
        self.seconds = wanted if wanted > self.seconds else (self.seconds + wanted) / 2


class IntervalPace:
    """Waits a fixed interval, or as long as the last round if that took longer."""

    def __init__(self, seconds: float) -> None:
        self.seconds = self._least = seconds

    def after(self, took: float) -> None:
        """A round has taken so many seconds."""
        self.seconds = max(self._least, took)
