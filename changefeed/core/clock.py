"""Time: hybrid logical timestamps and the clocks that make them.

A :class:`Timestamp` is wall nanoseconds and a logical counter, written
``1536242855577149065.0000000000`` as CockroachDB writes it. It is never a
float: nanoseconds since 1970 do not fit in 53 bits.
"""

from __future__ import annotations

import datetime as dt
import re
import time
from dataclasses import dataclass
from functools import total_ordering
from typing import ClassVar, Final, Protocol

_DECIMAL = re.compile(r"(\d{1,19})(?:\.(\d{1,10}))?\Z")

#: How many digits the logical counter has when it is written.
LOGICAL_DIGITS = 10


@total_ordering
@dataclass(frozen=True, slots=True)
class Timestamp:
    """A hybrid logical clock reading: ``wall`` ns since the epoch, then ``logical``."""

    wall: int
    logical: int = 0

    ZERO: ClassVar[Timestamp]
    MAX: ClassVar[Timestamp]

    def __lt__(self, other: object) -> bool:
        if not isinstance(other, Timestamp):
            return NotImplemented
        return (self.wall, self.logical) < (other.wall, other.logical)

    def __str__(self) -> str:
        return f"{self.wall}.{self.logical:0{LOGICAL_DIGITS}d}"

    def next(self) -> Timestamp:
        """The smallest timestamp above this one."""
        return Timestamp(self.wall, self.logical + 1)

    def previous(self) -> Timestamp:
        """The largest timestamp of the same kind below this one (wall - 1 ns when logical is 0)."""
        if self.logical:
            return Timestamp(self.wall, self.logical - 1)
        return Timestamp(self.wall - 1, 0)

    def at_least(self, wall: int) -> Timestamp:
        """The timestamp of an event that follows this one and happened at ``wall`` ns.

        This is the clock rule of the whole system: ``max(wall, last + 1 logical)``. Wall time
        counts as later only if it is above :attr:`version`, so that the version increases, too.
        """
        return Timestamp(wall, 0) if wall > self.version else self.next()

    @property
    def version(self) -> int:
        """``wall + logical``: one integer that increases with every timestamp of a log.

        Targets that order rows by a single number (document versions, ``_sequence_num``) use it.
        It stays valid with a new log, because it is a time.
        """
        return self.wall + self.logical

    def datetime(self) -> dt.datetime:
        """UTC date and time, cut to microseconds."""
        return dt.datetime.fromtimestamp(self.wall // 1_000_000_000, dt.UTC).replace(
            microsecond=self.wall // 1_000 % 1_000_000
        )

    def time_of_day(self) -> str:
        """The time of day for people: ``21:24:52 UTC``."""
        return f"{self.datetime():%H:%M:%S} UTC"

    def file_stamp(self) -> str:
        """``YYYYMMDDHHMMSSNNNNNNNNNLLLLLLLLLL``: sorts as text in time order."""
        moment = self.datetime()
        nanos = self.wall % 1_000_000_000
        return f"{moment:%Y%m%d%H%M%S}{nanos:09d}{self.logical:0{LOGICAL_DIGITS}d}"

    @classmethod
    def parse(cls, text: str) -> Timestamp:
        """Read the written form, or a plain integer of nanoseconds.

        Raises:
            ValueError: ``text`` is neither.
        """
        match = _DECIMAL.match(text.strip())
        if not match:
            raise ValueError(f"not a timestamp: {text!r}")
        logical = (match[2] or "0").ljust(LOGICAL_DIGITS, "0") if match[2] else "0"
        return cls(int(match[1]), int(logical))

    @classmethod
    def from_datetime(cls, moment: dt.datetime) -> Timestamp:
        """The timestamp of a moment; a naive one is taken as UTC."""
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=dt.UTC)
        delta = moment - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
        micros = (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds
        return cls(micros * 1_000)


Timestamp.ZERO = Timestamp(0)
Timestamp.MAX = Timestamp(2**63 - 1, 2**31 - 1)


class Waitable(Protocol):
    """An event or a condition, of :mod:`threading`; a condition is held by who waits for it."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for it, at most ``timeout`` seconds; whether it came."""
        ...


class Clock(Protocol):
    """The source of time; all code that waits or makes timestamps takes a clock."""

    def now(self) -> Timestamp:
        """Wall time as a timestamp with logical 0."""
        ...

    def monotonic(self) -> float:
        """Seconds of a clock that never steps back."""
        ...

    def wait(self, waitable: Waitable, seconds: float) -> bool:
        """Wait for an event or a condition, at most ``seconds`` of this clock.

        Returns whether it came in time.
        """
        ...

    def sleep(self, seconds: float) -> None:
        """Let ``seconds`` of this clock pass."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> Timestamp:
        return Timestamp(time.time_ns())

    def monotonic(self) -> float:
        return time.monotonic()

    def wait(self, waitable: Waitable, seconds: float) -> bool:
        return waitable.wait(seconds)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


#: The default clock of everything that takes one.
SYSTEM_CLOCK: Final = SystemClock()


class ManualClock:
    """A clock that tests advance."""

    def __init__(self, wall: int = 1_000_000_000) -> None:
        self.wall = wall

    def now(self) -> Timestamp:
        return Timestamp(self.wall)

    def monotonic(self) -> float:
        return self.wall / 1e9

    def wait(self, waitable: Waitable, seconds: float) -> bool:
        """Let the timeout pass at once, unless the event has already happened."""
        came = waitable.wait(0)
        if not came:
            self.advance(seconds)
        return came

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Move the clock forward."""
        self.wall += int(seconds * 1e9)
