"""Which history may go. Decisions only: the writer carries them out.

Age and bytes say what should go, the slowest feed that may go on says what must stay, and
``max_age`` ends its protection: a feed that is behind that fails with CF3002 rather than
holding the disk for ever.
"""

from __future__ import annotations

from dataclasses import dataclass

from changefeed.core.clock import Timestamp
from changefeed.log.frame import stamp_of
from changefeed.log.ledger import Garbage, Sealed
from changefeed.log.settings import LogSettings


@dataclass(frozen=True, slots=True)
class Upkeep:
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


def expendable(
    sealed: tuple[Sealed, ...],
    settings: LogSettings,
    *,
    now: Timestamp,
    keep_from: Timestamp | None,
    excess: int,
) -> int:
    """How many of the oldest journals may be dropped.

    Args:
        excess: bytes that should go even before their age, as far as no feed needs them.
    """
    aged = now.wall - int(settings.gc_ttl * 1e9)
    expired = now.wall - int(settings.protection * 1e9)
    floor = stamp_of(keep_from) if keep_from is not None else None
    for count, journal in enumerate(sealed):
        needed = floor is not None and journal.upto > floor
        wall = journal.upto[0]
        if wall >= expired and (needed or (wall >= aged and excess <= 0)):
            return count
        excess -= journal.bytes
    return len(sealed)


def swept(
    garbage: tuple[Garbage, ...], settings: LogSettings, *, now: Timestamp, pressed: bool
) -> tuple[Garbage, ...]:
    """The files to remove now: those whose grace is over, all of them when there is no room."""
    limit = now.wall - int(settings.grace * 1e9)
    return tuple(g for g in garbage if pressed or g.since <= limit)
