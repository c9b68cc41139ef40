"""How late the rows of a feed were, in a few numbers that its job keeps.

The delay of a row is the time from its commit until it was durable in the sink. The numbers are
bounded: a count for each of :data:`BOUNDS`, for each of the last 24 hours and of the last 7 days.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace

#: Upper bounds of the counts, seconds; one more count has what is later than all of them.
BOUNDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 21600.0, 86400.0)

#: The times over which an :class:`Slo` is judged.
WINDOWS = ("24h", "7d")

_HOUR, _DAY = 3600 * 10**9, 86_400 * 10**9
_HOURS, _DAYS = 24, 7

#: Rows and those of them that were in time, by number of the hour or day since 1970.
_Kept = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class Slo:
    """What ``slo = '99% within 5m'`` promises.

    Attributes:
        share: of the rows, above 0 and below 1.
        within: seconds.
    """

    share: float
    within: float

    def burnt(self, kept: float) -> float:
        """The part of the rows that may be late which were: 1 when the budget is used up."""
        return (1 - kept) / (1 - self.share)


@dataclass(frozen=True, slots=True)
class Delays:
    """The delays of a feed's rows; repeats after a crash count again.

    Attributes:
        counts: rows in each bucket of :data:`BOUNDS`; empty: none yet.
        seconds: the sum of all delays.
        within: what is in time in ``hours`` and ``days``, seconds; 0: nothing is counted there.
        hours, days: rows, and rows in time, of the last hours and days.
        waits: since when and until when the feed lets changes gather on purpose, ns; 0: it did not.
    """

    counts: tuple[int, ...] = ()
    seconds: float = 0.0
    within: float = 0.0
    hours: _Kept = ()
    days: _Kept = ()
    waits: tuple[int, int] = (0, 0)

    def against(self, slo: Slo, now: int) -> Iterator[tuple[str, float | None, float | None]]:
        """For each of :data:`WINDOWS` the share of the rows that were in time, and the part of the
        budget of ``slo`` that is burnt; None where there were no rows."""
        for window, kept in zip(WINDOWS, self.judged(slo.within).kept(now), strict=True):
            yield window, kept, None if kept is None else slo.burnt(kept)

    @property
    def rows(self) -> int:
        """All rows that were counted."""
        return sum(self.counts)

    def judged(self, within: float) -> Delays:
        """The same, to count rows as in time up to ``within``; another bound begins at zero."""
        if within == self.within:
            return self
        return replace(self, within=within, hours=(), days=())

    def add(self, now: int, counts: Sequence[int], seconds: float, kept: int) -> Delays:
        """Count rows that are durable since ``now`` (ns).

        Args:
            counts: one for each bucket.
            seconds: the sum of their delays.
            kept: how many of them are in time.
        """
        old, rows = self.counts or (0,) * len(counts), sum(counts)
        hours, days = self.hours, self.days
        if self.within:
            hours = _added(hours, now // _HOUR, _HOURS, rows, kept)
            days = _added(days, now // _DAY, _DAYS, rows, kept)
        return replace(
            self,
            counts=tuple(a + b for a, b in zip(old, counts, strict=True)),
            seconds=self.seconds + seconds,
            hours=hours,
            days=days,
        )

    def kept(self, now: int) -> tuple[float | None, float | None]:
        """The share of the rows in time over the last 24 hours and over the last 7 days, the
        present hour and day being one of them; None where no row was delivered."""
        return _share(self.hours, now // _HOUR - _HOURS), _share(self.days, now // _DAY - _DAYS)

    def waited(self, now: int, since: int) -> int:
        """How much of the time from ``since`` until ``now`` was a wait on purpose, ns."""
        began, until = self.waits
        return max(0, min(now, until) - max(began, since))

    def to_text(self) -> str:
        """The column value; :meth:`from_text` reads it."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Delays:
        known = json.loads(text)
        for name in ("hours", "days"):
            known[name] = tuple(tuple(row) for row in known[name])
        return cls(**known | {name: tuple(known[name]) for name in ("counts", "waits")})


def _added(rows: _Kept, number: int, most: int, more: int, kept: int) -> _Kept:
    known = {n: (all_, good) for n, all_, good in rows if n > number - most}
    all_, good = known.get(number, (0, 0))
    known[number] = all_ + more, good + kept
    return tuple((n, *known[n]) for n in sorted(known))


def _share(rows: _Kept, after: int) -> float | None:
    within = [(all_, good) for number, all_, good in rows if number > after]
    total = sum(all_ for all_, _ in within)
    return sum(good for _, good in within) / total if total else None
