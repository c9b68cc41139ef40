"""Measures elapsed time, independently of the settings of wall clocks.

A wall clock jumps when a person sets it, when a time server corrects it, or when a virtual machine
is resumed. Data that is deleted after some time must not be deleted because of that.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from pathlib import Path

#: A number that Linux makes at each start of the machine (random(4)).
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class ClockSample:
    """The readings of a machine's clocks at one instant.

    Attributes:
        boot: identifies the boot of the machine, from which ``ticks`` are counted.
        ticks: ns of a clock that cannot be set, and that also runs while the machine sleeps.
        wall: ns since 1970, as the machine's clock is set.
    """

    boot: str
    ticks: int
    wall: int

    def since(self, before: ClockSample) -> int:
        """The ns from ``before`` until now, never below 0: measured if both readings are from
        the same boot, else by the wall clocks."""
        passed = self.ticks - before.ticks if self.boot == before.boot else self.wall - before.wall
        return max(0, passed)

    def leap(self, before: ClockSample) -> int:
        """By how many ns the wall clock was set forward (below 0: back) since ``before``; 0 if
        unknown."""
        if self.boot != before.boot:
            return 0
        return (self.wall - before.wall) - (self.ticks - before.ticks)


def read_clocks() -> ClockSample:
    """The clocks of this machine now."""
    if _MACHINE is None:
        return ClockSample(_PROCESS, time.monotonic_ns(), time.time_ns())
    return ClockSample(_MACHINE, time.clock_gettime_ns(time.CLOCK_BOOTTIME), time.time_ns())


def _machine() -> str | None:
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return None


_MACHINE = _machine()
#: Elsewhere the ticks are those of one process.
_PROCESS = secrets.token_hex(8)
