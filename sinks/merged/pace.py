"""How long a sink rests between two rounds: in proportion to what a round takes."""

from __future__ import annotations

from typing import Protocol


class Pace(Protocol):
    """Seconds between two rounds, which follow what rounds take."""

    @property
    def seconds(self) -> float:
        """Between the last round and the next."""
        ...

    def after(self, took: float) -> None:
        """A round has taken so many seconds."""
        ...


class ShorterPace:
    """So many times what the shorter one of the last two rounds took, within bounds: one slow round
    is taken for an exception. The first says nothing: it loads and compiles what the others run.

    Args:
        least, most: seconds.
        times: so many times as long as a round.
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
    """So many times what the last round took, within bounds: at once where that is longer, half of
    the way where it is shorter.

    Args:
        least, most: seconds.
        times: so many times as long as a round.
    """

    def __init__(self, least: float, most: float, times: float) -> None:
        self.seconds = least
        self._least, self._most, self._times = least, most, times

    def after(self, took: float) -> None:
        """A round has taken so many seconds."""
        wanted = min(self._most, max(self._least, took * self._times))
        self.seconds = wanted if wanted > self.seconds else (self.seconds + wanted) / 2


class IntervalPace:
    """At an interval; a round that takes longer makes it as long."""

    def __init__(self, seconds: float) -> None:
        self.seconds = self._least = seconds

    def after(self, took: float) -> None:
        """A round has taken so many seconds."""
        self.seconds = max(self._least, took)
