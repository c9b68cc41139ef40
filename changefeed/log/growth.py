"""How many bytes of a change log lie above a timestamp.

Bytes count as they were written, whatever compaction saves later. The number is exact only at the
marks, which are :data:`STEP` bytes or one flush apart; elsewhere it is rounded up to a mark.
"""

from __future__ import annotations

from bisect import bisect_right

from changefeed.log.rows import Stamp

#: Marks closer together than this become one.
STEP = 1 << 20


class Growth:
    """Marks of a log: how many bytes it had up to a timestamp. Not thread-safe."""

    def __init__(self) -> None:
        self._upto: list[Stamp] = []
        self._totals: list[int] = []
        self._base = 0

    @property
    def total(self) -> int:
        """All bytes counted up to the last mark, those of dropped history included."""
        return self._totals[-1] if self._totals else self._base

    def reach(self, upto: Stamp, total: int) -> None:
        """Note that the log is complete up to ``upto``, with ``total`` bytes counted so far."""
        before = self._totals[-2] if len(self._totals) > 1 else self._base
        if self._totals and total - before <= STEP:
            self._upto[-1], self._totals[-1] = upto, total
        else:
            self._upto.append(upto)
            self._totals.append(total)

    def above(self, at: Stamp) -> int:
        """The bytes above ``at``, rounded up to a mark."""
        known = bisect_right(self._upto, at)
        return self.total - (self._totals[known - 1] if known else self._base)

    def forget(self, upto: Stamp) -> None:
        """Note that the log no longer has anything at or below ``upto``."""
        gone = bisect_right(self._upto, upto)
        if gone:
            self._base = self._totals[gone - 1]
            del self._upto[:gone], self._totals[:gone]
