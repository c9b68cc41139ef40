"""How many bytes of a change log lie above a timestamp.

Bytes count as they were written: what compaction saves later does not show. It is known as of the
marks only, :data:`STEP` bytes or one flush apart, and never told too low.
"""

from __future__ import annotations

from bisect import bisect_right

from changefeed.log.rows import Stamp

#: Marks closer together than this become one.
STEP = 1 << 20


class Growth:
    """Marks of a log: up to which timestamp it had how many bytes. Not thread-safe."""

    def __init__(self) -> None:
        self._upto: list[Stamp] = []
        self._totals: list[int] = []
        self._base = 0

    @property
    def total(self) -> int:
        """The bytes of everything that was ever complete."""
        return self._totals[-1] if self._totals else self._base

    def reach(self, upto: Stamp, total: int) -> None:
        """The log is complete up to ``upto`` with ``total`` bytes."""
        before = self._totals[-2] if len(self._totals) > 1 else self._base
        if self._totals and total - before <= STEP:
            self._upto[-1], self._totals[-1] = upto, total
        else:
            self._upto.append(upto)
            self._totals.append(total)

    def above(self, at: Stamp) -> int:
        """Bytes that hold what is above ``at``; whole marks only."""
        known = bisect_right(self._upto, at)
        return self.total - (self._totals[known - 1] if known else self._base)

    def forget(self, upto: Stamp) -> None:
        """The log no longer has anything up to here."""
        gone = bisect_right(self._upto, upto)
        if gone:
            self._base = self._totals[gone - 1]
            del self._upto[:gone], self._totals[:gone]
