"""Which history may go. Decisions only: the writer carries them out.

Age and bytes say what should go, the slowest feed that may go on says what must stay, and
``max_age`` ends its protection: a feed that is behind that fails with CF3002 rather than
holding the disk for ever.

Ages are counted in the log's time (:class:`changefeed.log.ledger.LogTime`), not by the timestamps
of the rows: those are the source's, whose clock may differ, and any clock may be set forward by
days while history is needed that is minutes old.
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

    A journal was sealed after the ``last`` upkeep and before ``now``. Within that its last
    timestamp says when; what that says beyond is another clock's.
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
        excess: bytes that should go even before their age, as far as no feed needs them.
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
    """The files to remove now: those whose grace is over, all of them when there is no room."""
    limit = now - int(settings.grace * 1e9)
    return tuple(g for g in garbage if pressed or g.since <= limit)
