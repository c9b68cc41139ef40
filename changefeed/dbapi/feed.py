"""How far a feed is, and what decides whether a wait for it goes on."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from changefeed.core.clock import Clock, Timestamp
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.figures import duration_text
from changefeed.dbapi.errors import ProgrammingError, error_of
from changefeed.dbapi.values import Description
from changefeed.options.types import parse_moment
from changefeed.statements.sync import SYNC_COLUMNS
from grammar.printer import name as quoted_name

#: What ``wait_until`` takes.
Moment = str | int | dt.datetime | Timestamp

#: Seconds between two looks at a feed, the first and the longest.
_FIRST, _LONGEST = 0.05, 1.0

#: A feed in one of these will never get there by itself.
_STUCK = frozenset({"paused", "failed", "succeeded", "stopped", "degraded"})

STATUS = "SHOW CHANGEFEEDS WHERE name = :1"


@dataclass(frozen=True, slots=True)
class FeedProgress:
    """How a feed is, and how far.

    Attributes:
        status: as SHOW CHANGEFEEDS has it: ``running``, ``paused``, ..
        reason: why, in words.
        resolved: every change at or below it is delivered; None before the first.
        error: what failed, the feed or one of its tables.
    """

    status: str
    reason: str | None
    resolved: Timestamp | None
    error: str | None


def status_of(
    name: str, columns: Sequence[Description] | None, found: Sequence[Any] | None
) -> FeedProgress:
    """The row that :data:`STATUS` answered.

    Raises:
        ProgrammingError: CF1101, there is no such feed.
    """
    if found is None:
        raise error_of(
            ChangefeedError(
                Code.NAME_UNKNOWN,
                f'changefeed "{name}" does not exist',
                hint="SHOW CHANGEFEEDS lists them.",
            )
        )
    row = dict(zip((column[0] for column in columns or ()), found, strict=True))
    resolved = row["high_water_timestamp"]
    return FeedProgress(
        row["status"],
        row["running_status"],
        None if resolved is None else Timestamp.parse(resolved),
        row["error"],
    )


def sync_of(name: str, timeout: float | None) -> tuple[str, tuple[str, ...]]:
    """The statement that waits for what is committed now, and its parameters."""
    if timeout is None:
        return "SYNC CHANGEFEED :1", (name,)
    return "SYNC CHANGEFEED :1 TIMEOUT :2", (name, f"{max(1, round(timeout * 1000))}ms")


def synced_to(row: Sequence[Any] | None) -> Timestamp:
    """The row that it answers."""
    return Timestamp.parse(row[SYNC_COLUMNS.index("synced_to")]) if row else Timestamp.ZERO


def upto_of(moment: Moment, clock: Clock) -> Timestamp:
    """
    Raises:
        ProgrammingError: it is no moment.
    """
    if isinstance(moment, Timestamp):
        return moment
    if isinstance(moment, dt.datetime):
        return Timestamp.from_datetime(moment)
    try:
        return parse_moment(str(moment), clock.now())
    except ValueError as error:
        raise ProgrammingError(str(error), hint="write 'now', or a date and time.") from None


class ResolvedWait:
    """One wait for a resolved timestamp: what to do with each status."""

    def __init__(self, name: str, upto: Timestamp, timeout: float | None, clock: Clock) -> None:
        self.name = name
        self.upto = upto
        self.resolved = Timestamp.ZERO
        self._clock = clock
        self._seconds = inf if timeout is None else timeout
        self._deadline = clock.monotonic() + self._seconds

    def pauses(self) -> Iterator[float]:
        """How long to wait after each look; without end."""
        pause = _FIRST
        while True:
            yield max(0.0, min(pause, self._deadline - self._clock.monotonic()))
            pause = min(2 * pause, _LONGEST)

    def reached(self, seen: FeedProgress) -> bool:
        """Whether the feed is far enough.

        Raises:
            OperationalError: it will not get there, or not in time.
        """
        self.resolved = seen.resolved or Timestamp.ZERO
        if self.resolved >= self.upto:
            return True
        shown = quoted_name(self.name)
        if seen.status in _STUCK and (seen.status != "degraded" or seen.error):
            raise error_of(
                ChangefeedError(
                    Code.WRONG_JOB_STATE,
                    f'changefeed "{self.name}" is {seen.status}, before {self.upto}',
                    detail=seen.error or seen.reason or "",
                    hint=f"RESUME CHANGEFEED {shown} continues it."
                    if seen.status == "paused"
                    else f"SHOW CHANGEFEED {shown} says what to do.",
                )
            )
        if self._clock.monotonic() >= self._deadline:
            raise error_of(
                ChangefeedError(
                    Code.TIMED_OUT,
                    f'changefeed "{self.name}" did not reach {self.upto} within '
                    f"{duration_text(self._seconds)}: it is {seen.status}, at "
                    f"{seen.resolved or 'no timestamp'}",
                    detail=seen.error or seen.reason or "",
                    hint=f"wait again, or see SHOW CHANGEFEED {shown} for what blocks it.",
                )
            )
        return False
