"""How feeds went in the last hours: a few figures of each, kept in the memory of this process.

What a job's row says is only how it is now. A node that serves HTTP looks at every feed of the
state at a steady pace, whichever node runs it; after a restart there are none yet.
"""

from __future__ import annotations

import math
import threading
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from changefeed.catalog import Job
from changefeed.statements.health import Health

#: Seconds between two looks, and how many are kept: six hours.
PACE = 20.0
KEPT = 1080

#: What is kept of a feed at each look, 4 bytes each; a rate is that since the look before.
FIGURES = ("rows_per_second", "bytes_per_second", "lag_seconds")


@dataclass(slots=True)
class _FeedSeries:
    rows: int
    size: int
    figures: tuple[array[float], ...] = field(
        default_factory=lambda: tuple(array("f") for _ in FIGURES)
    )


class Series:
    """The last looks. Thread-safe."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._lock = threading.Lock()
        self._times: array[float] = array("d")
        self._feeds: dict[int, _FeedSeries] = {}

    def look(self, at: float, feeds: Iterable[tuple[Job, Health]]) -> None:
        """Keep how feeds are at an instant (seconds since 1970); others are forgotten."""
        with self._lock:
            since = at - self._times[-1] if self._times else 0.0
            self._times.append(at)
            del self._times[: -self._kept]
            self._feeds = {job.id: self._grown(job, health, since) for job, health in feeds}

    def _grown(self, job: Job, health: Health, since: float) -> _FeedSeries:
        known = self._feeds.get(job.id)
        feed = known or _FeedSeries(job.emitted_rows, job.emitted_bytes)
        rows, size = job.emitted_rows - feed.rows, job.emitted_bytes - feed.size
        per_second = 1 / since if known and since > 0 else math.nan
        lag = math.nan if health.lag is None else float(health.lag)
        for kept, value in zip(
            feed.figures, (rows * per_second, size * per_second, lag), strict=True
        ):
            kept.append(value)
            del kept[: -self._kept]
        feed.rows, feed.size = job.emitted_rows, job.emitted_bytes
        return feed

    def of(self, job_id: int) -> dict[str, Any]:
        """The times of the looks at a feed (``at``) and its :data:`FIGURES`, the oldest first; None
        where there is no figure."""
        with self._lock:
            feed = self._feeds.get(job_id)
            figures = [[] for _ in FIGURES] if feed is None else list(map(_plain, feed.figures))
            times = [round(at, 1) for at in self._times[len(self._times) - len(figures[0]) :]]
        return {"pace": PACE, "at": times, **dict(zip(FIGURES, figures, strict=True))}


def _plain(kept: array[float]) -> list[float | None]:
    return [None if math.isnan(value) else float(f"{value:.4g}") for value in kept]
