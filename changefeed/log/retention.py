"""Which history may be dropped. This module decides; the writer drops.

Age and size determine what should be dropped. What the slowest feed that may go on still needs is
kept, up to ``max_age``: a feed that is further behind fails with CF3002, so that it cannot fill the
disk.

Ages are counted in the log's time (:class:`changefeed.log.ledger.LogTime`), not by the timestamps
of the rows. Those come from the source, whose clock may differ; and any clock may be set forward by
days, although feeds still need history that is only minutes old.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from changefeed.core.clock import Timestamp
from changefeed.log.frame import stamp_of
from changefeed.log.ledger import Garbage, SealedJournal
from changefeed.log.settings import LogSettings


@dataclass(frozen=True, slots=True)
class UpkeepResult:
    """What one call of ``maintain`` did.

    Attributes:
        rolled: the live journal was closed.
        dropped: journals dropped because of age or size.
        merged: journals that went into merged ones.
        removed: bytes removed from disk.
    """

    rolled: bool
    dropped: int
    merged: int
    removed: int


def dated(
    sealed: tuple[SealedJournal, ...], *, last: int | None, now: int
) -> tuple[SealedJournal, ...]:
    """The journals, each with the time from which its age counts.

    A journal without that time was sealed after the ``last`` upkeep and before ``now``. Its last
    timestamp is taken for the time, limited to this range: the source's clock may differ.
    """
    return tuple(
        journal
        if journal.since is not None
        else replace(journal, since=min(now, max(journal.upto[0], last or 0)))
        for journal in sealed
    )


def expendable(
    sealed: tuple[SealedJournal, ...],
    settings: LogSettings,
    *,
    now: int,
    keep_from: Timestamp | None,
    excess: int,
) -> int:
    """How many of the oldest journals may be dropped.

    Args:
        now: the log's time.
        excess: bytes that should be dropped even before ``gc_ttl``, as far as no feed needs them.
    """
    aged = now - int(settings.gc_ttl * 1e9)
    expired = now - int(settings.protection * 1e9)
    floor = stamp_of(keep_from) if keep_from is not None else None
    for count, journal in enumerate(sealed):
        needed = floor is not None and journal.upto > floor
        since = now if journal.since is None else journal.since
        if since >= expired and (needed or (since >= aged and excess <= 0)):
            return count
        excess -= journal.bytes
    return len(sealed)


def swept(
    garbage: tuple[Garbage, ...], settings: LogSettings, *, now: int, pressed: bool
) -> tuple[Garbage, ...]:
    """The files to remove now: those whose grace period is over, or all if there is no room."""
    limit = now - int(settings.grace * 1e9)
    return tuple(g for g in garbage if pressed or g.since <= limit)
