"""Rows and bytes per second of a feed, from two windows of counts kept in its row.

The current window and the one before it: the figure moves smoothly, and falls to zero by
itself when nothing is saved, because the reader's clock moves on.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

#: Length of a window, ns.
WINDOW = 5_000_000_000


@dataclass(frozen=True, slots=True)
class RateWindow:
    """Counts of window ``number`` (wall time // :data:`WINDOW`) and of the one before."""

    number: int = 0
    rows: int = 0
    bytes: int = 0
    rows_before: int = 0
    bytes_before: int = 0

    def add(self, now: int, rows: int, size: int) -> RateWindow:
        """The counts with ``rows`` and ``size`` bytes more at ``now`` ns."""
        at = self._moved(now)
        return RateWindow(
            at.number, at.rows + rows, at.bytes + size, at.rows_before, at.bytes_before
        )

    def per_second(self, now: int) -> tuple[float, float]:
        """Rows and bytes per second over the last window's length before ``now``."""
        at = self._moved(now)
        passed = (now % WINDOW) / WINDOW
        seconds = WINDOW / 1e9
        return (
            (at.rows + at.rows_before * (1 - passed)) / seconds,
            (at.bytes + at.bytes_before * (1 - passed)) / seconds,
        )

    def _moved(self, now: int) -> RateWindow:
        number = now // WINDOW
        if number <= self.number:
            return self
        if number == self.number + 1:
            return RateWindow(number, 0, 0, self.rows, self.bytes)
        return RateWindow(number)

    def to_text(self) -> str:
        """The column value."""
        return json.dumps([self.number, self.rows, self.bytes, self.rows_before, self.bytes_before])

    @classmethod
    def from_text(cls, text: str) -> RateWindow:
        """The inverse of :meth:`to_text`."""
        return cls(*json.loads(text))
