"""``max_disk`` limits the disk space of a feed: the part of the change log that it has not
delivered yet, and the rows that are staged for its sink.

All feeds of a source share its log, so one feed cannot be held back alone: when a feed exceeds its
limit, capture stops reading, as it does when the log is full. Nothing is lost.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from changefeed.catalog import Catalog
from changefeed.catalog.cached import CachedRead
from changefeed.catalog.model import DesiredStatus, Job
from changefeed.core.clock import Clock, SystemClock, Timestamp
from changefeed.core.errors import Action, ChangefeedError
from changefeed.core.timings import Timings
from changefeed.options import MAX_DISK, Options


@dataclass(frozen=True, slots=True)
class _Budget:
    job_id: int
    feed: str
    text: str
    size: int
    at: Timestamp
    staged: int


class FeedBudgets:
    """Says whether capture must wait for a feed. Not thread-safe."""

    def __init__(
        self,
        catalog: Catalog,
        source: str,
        above: Callable[[Timestamp], int],
        scratch: Callable[[int], Path],
        clock: Clock | None = None,
        timings: Timings | None = None,
    ) -> None:
        """
        Args:
            above: returns the bytes of the log that are above a timestamp.
            scratch: where the sinks of a job stage rows.
        """
        self._catalog = catalog
        self._source = source
        self._above = above
        self._scratch = scratch
        self._clock = clock or SystemClock()
        self._interval = (timings or Timings()).budgets
        self._limited = CachedRead(catalog.version, self._with_limit)
        self._budgets: list[_Budget] = []
        self._looked = float("-inf")
        #: The feed for which capture waits.
        self._waits_for: int | None = None

    def exceeded(self) -> str:
        """A sentence that names a feed above its limit; empty if there is none."""
        now = self._clock.monotonic()
        if now - self._looked >= self._interval:
            self._look(now)
        over = self._over()
        if over is not None and self._looked != now:
            # It may have delivered since.
            self._look(now)
            over = self._over()
        self._waits_for = over.job_id if over is not None else None
        if over is None:
            return ""
        return (
            f"feed {over.feed} has as much on disk, of the change log and staged, as its max_disk "
            f"of {over.text} allows; nothing is read until half of it is delivered"
        )

    def _over(self) -> _Budget | None:
        for budget in self._budgets:
            # Wait until half of it is free, or reading would stop and start at every commit.
            limit = budget.size // 2 if budget.job_id == self._waits_for else budget.size
            if self._above(budget.at) + budget.staged > limit:
                return budget
        return None

    def _look(self, now: float) -> None:
        self._looked = now
        try:
            self._budgets = self._read()
        except ChangefeedError as error:
            # The state does not answer: use what is known of the feeds until it does.
            if error.action is not Action.RETRY:
                raise

    def _read(self) -> list[_Budget]:
        limited = self._limited()
        # Few feeds have a limit: without one, nobody's progress is read.
        needed = self._catalog.needed_from(self._source) if limited else {}
        return [
            _Budget(
                job.id,
                job.name,
                job.options[MAX_DISK.name],
                size,
                needed[job.id],
                _bytes_in(self._scratch(job.id)),
            )
            for job, size in limited
            if job.id in needed
        ]

    def _with_limit(self) -> list[tuple[Job, int]]:
        return [
            (job, size)
            for job in self._catalog.source_jobs(self._source)
            if (size := Options.from_dict(job.options)[MAX_DISK]) is not None
            and job.wanted is not DesiredStatus.DROPPED
        ]


def _bytes_in(folder: Path) -> int:
    """How much the files in a folder take; they come and go meanwhile."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(place, name)).st_size
            except FileNotFoundError:
                continue  # committed
    return total
