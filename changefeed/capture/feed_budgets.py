"""The limits of disk space, and what happens to the feeds that reach one.

``max_disk`` limits a feed: the part of the change log that it has not delivered yet, and the rows
that are staged for its sink. ``--max-disk`` limits the change log of a source, which all its feeds
share. A feed that is to blame loses its claim on the log, so that the others go on:

* Above its ``max_disk``: a paused or failed feed at once, one that works when what it has on disk
  did not become less for ten minutes (:attr:`changefeed.core.timings.Timings.over_limit`).
* When the log has reached its budget, and dropping what nobody needs was not enough: the feed for
  which the log keeps the most, one after another, under the same condition. Of one that is paused
  or failed that must be a tenth of the budget at least; of one that works more than half, while at
  least half of the feeds need less. Otherwise reading stops until they have delivered.

A claim ends by ``failed`` with CF3006, and only then the log drops changes: the feed of a paused or
failed job is ended here, one that works by its node. With ``on_max_disk = 'wait'`` a feed keeps its
claim, and reading stops for all feeds of the source until half of it is delivered.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from changefeed.catalog import Catalog, LogClaim
from changefeed.catalog.database import CachedRead
from changefeed.catalog.model import DesiredStatus, Job
from changefeed.core.clock import Clock, SystemClock, Timestamp
from changefeed.core.errors import Action, ChangefeedError
from changefeed.core.figures import duration_text, size_text
from changefeed.core.timings import Timings
from changefeed.log import LogWriter
from changefeed.options import MAX_DISK, ON_MAX_DISK, OnMaxDisk, Options


class OverLimit(NamedTuple):
    """A feed that works, and is above a limit.

    Attributes:
        why: a sentence with the limit, for SHOW CHANGEFEEDS.
        ends: the node is to end the feed.
    """

    job_id: int
    why: str
    ends: bool


@dataclass(frozen=True, slots=True)
class _Limits:
    jobs: dict[int, Job]
    sizes: dict[int, int]
    waits: frozenset[int]


@dataclass(frozen=True, slots=True)
class _Demand:
    """What is on disk for a claim: ``kept`` bytes of the log, ``staged`` bytes for the sink."""

    claim: LogClaim
    job: Job
    limit: int | None
    waits: bool
    kept: int
    staged: int

    @property
    def size(self) -> int:
        return self.kept + self.staged

    @property
    def works(self) -> bool:
        return self.job.status.active and not self.claim.standing_tables

    @property
    def whose(self) -> str:
        tables = "the failed and paused tables of " if self.claim.standing_tables else ""
        return f"{tables}feed {self.job.name}"

    def does(self, one: str, several: str) -> str:
        """The claim as the subject of a sentence, with the form of the verb."""
        return f"{self.whose} {several if self.claim.standing_tables else one}"


@dataclass(frozen=True, slots=True)
class _Excess:
    """When a claim was found above a limit, or last became smaller, and its size then."""

    since: float
    size: int


class FeedBudgets:
    """Says whether capture must wait, and ends claims of feeds. Not thread-safe."""

    def __init__(
        self,
        catalog: Catalog,
        source: str,
        log: LogWriter,
        scratch: Callable[[int], Path],
        clock: Clock | None = None,
        timings: Timings | None = None,
        tell: Callable[[tuple[OverLimit, ...]], None] = lambda over: None,
    ) -> None:
        """
        Args:
            log: the change log of the source.
            scratch: where the sinks of a job stage rows.
            tell: called with all feeds that work and are above a limit when they are others, or
                there is something else to say of them.
        """
        self._catalog = catalog
        self._source = source
        self._log = log
        self._scratch = scratch
        self._clock = clock or SystemClock()
        self._timings = timings or Timings()
        self._tell = tell
        self._limits = CachedRead(catalog.version, self._read_limits)
        self._needs: list[_Demand] = []
        self._marks: dict[LogClaim, _Excess] = {}
        self._reported: tuple[OverLimit, ...] | None = None
        self._looked = float("-inf")
        #: The feed for which capture waits.
        self._waits_for: int | None = None

    def held_up(self, full: bool) -> str:
        """Why nothing may be read for now, in a sentence; empty if nothing is in the way.

        Args:
            full: the log has no room, although what nobody needs was dropped.
        """
        now = self._clock.monotonic()
        if now - self._looked >= self._timings.budgets:
            self._look(now, full)
        waits = self._first_waiting()
        if waits is not None and self._looked != now:
            # It may have delivered since.
            self._look(now, full)
            waits = self._first_waiting()
        self._waits_for = waits.job.id if waits is not None else None
        if full:
            return self._why_full()
        if waits is None:
            return ""
        return f"{_above_own_limit(waits)}; nothing is read until half of it is delivered"

    def _why_full(self) -> str:
        budget = self._log.settings.disk_budget
        if budget is None or self._log.bytes < budget:
            return "the disk of the change log has no room left but its reserve"
        unfinished = size_text(self._log.unfinished)
        if self._log.fixed >= budget:
            return (
                f"a transaction does not fit into the disk budget of the change log: it takes "
                f"{unfinished} so far, --max-disk allows {size_text(budget)}, and waiting frees "
                "nothing. Start the node with a larger --max-disk; no change is lost"
            )
        text = _budget_reached(budget)
        if self._log.unfinished:
            text += f"; {unfinished} of it is a transaction that has not ended"
        if self._needs:
            # Without its size: each new text is written for every feed.
            largest = max(self._needs, key=_kept)
            text += f"; {largest.does('needs', 'need')} the most of it"
        return text

    def _first_waiting(self) -> _Demand | None:
        for need in self._needs:
            # Wait until half of it is free, or reading would stop and start at every commit.
            part = 2 if need.job.id == self._waits_for else 1
            if need.waits and need.limit is not None:
                size = self._log.above(need.claim.above) + need.staged
                if size > need.limit // part:
                    return need
        return None

    # -- claims -------------------------------------------------------------------------------

    def _look(self, now: float, full: bool) -> None:
        self._looked = now
        try:
            self._needs = self._read_needs(full)
            self._judge(now, full)
        except ChangefeedError as error:
            # The state does not answer: use what is known of the feeds until it does.
            if error.action is not Action.RETRY:
                raise

    def _judge(self, now: float, full: bool) -> None:
        marks: dict[LogClaim, _Excess] = {}
        over: list[OverLimit] = []
        for need, why in self._blamed(full):
            key = need.claim._replace(above=Timestamp.ZERO)
            mark = self._marks.get(key)
            if mark is None or need.size < mark.size:
                mark = _Excess(now, need.size)
            ends = not need.works or now - mark.since >= self._timings.over_limit
            if ends:
                # A feed that is resumed has its time again.
                mark = _Excess(now, need.size)
            marks[key] = mark
            if need.works:
                over.append(OverLimit(need.job.id, self._said(need, why, ends), ends))
            else:
                self._catalog.end_claim(need.claim, self._said(need, why, ends))
        self._marks = marks
        if self._reported != tuple(over):
            self._reported = tuple(over)
            self._tell(self._reported)

    def _blamed(self, full: bool) -> list[tuple[_Demand, str]]:
        """The claims above a limit that may end for it, each with a sentence about the limit."""
        found = [
            (need, _above_own_limit(need))
            for need in self._needs
            if not need.waits and need.limit is not None and need.size > need.limit
        ]
        budget = self._log.settings.disk_budget
        if not full or budget is None or not self._needs:
            return found
        if self._log.bytes < budget or self._log.fixed >= budget:
            return found  # to drop what feeds need would not make room
        most = max(self._needs, key=_kept)
        behind = sum(need.kept > budget // 2 for need in self._needs)
        alone = most.kept > budget // 2 and 2 * behind <= len(self._needs)
        big = alone if most.works else most.kept >= budget // 10
        if big and not most.waits and all(need is not most for need, _ in found):
            kept = size_text(most.kept)
            found.append((most, f"{_budget_reached(budget)} and keeps {kept} for {most.whose}"))
        return found

    def _said(self, need: _Demand, why: str, ends: bool) -> str:
        grace = duration_text(self._timings.over_limit)
        if not ends:
            return f"{why}; the feed fails unless this becomes less within {grace}"
        if need.works:
            cause = f"did not become less for {grace}"
        elif need.claim.standing_tables:
            cause = "is for tables that have failed or are paused"
        elif need.job.error_code:
            cause = f"is for a feed that is {need.job.status} ({need.job.error_code})"
        else:
            cause = f"is for a feed that is {need.job.status}"
        return f"{why}; this {cause}, so the change log no longer keeps changes for it"

    # -- what the state knows -----------------------------------------------------------------

    def _read_needs(self, full: bool) -> list[_Demand]:
        limits = self._limits()
        # Few feeds have a limit: without one, nobody's progress is read.
        claims = self._catalog.claims(self._source) if limits.sizes or full else []
        return [
            _Demand(
                claim,
                limits.jobs[claim.job_id],
                limit := limits.sizes.get(claim.job_id),
                claim.job_id in limits.waits,
                self._log.above(claim.above),
                0 if limit is None else _bytes_in(self._scratch(claim.job_id)),
            )
            for claim in claims
            if claim.job_id in limits.jobs
        ]

    def _read_limits(self) -> _Limits:
        jobs = {
            job.id: job
            for job in self._catalog.source_jobs(self._source)
            if job.wanted is not DesiredStatus.DROPPED
        }
        options = {job.id: Options.from_dict(job.options) for job in jobs.values()}
        return _Limits(
            jobs,
            {i: size for i, o in options.items() if (size := o[MAX_DISK]) is not None},
            frozenset(i for i, o in options.items() if o[ON_MAX_DISK] is OnMaxDisk.WAIT),
        )


def _kept(need: _Demand) -> tuple[int, bool]:
    """Sorts by the bytes kept; of equal ones, one that does not work comes last."""
    return need.kept, not need.works


def _budget_reached(budget: int) -> str:
    return f"the change log reached its disk budget of {size_text(budget)} (--max-disk)"


def _above_own_limit(need: _Demand) -> str:
    return (
        f"{need.does('has', 'have')} {size_text(need.size)} on disk, of the change log and staged, "
        f"and its max_disk is {need.job.options[MAX_DISK.name]}"
    )


def _bytes_in(folder: Path) -> int:
    """The bytes of the files in a folder; files come and go meanwhile."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(place, name)).st_size
            except FileNotFoundError:
                continue  # committed
    return total
