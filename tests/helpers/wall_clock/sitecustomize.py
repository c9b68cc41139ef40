"""A wall clock for one machine of a test: that of this machine, shifted by what a file says.

Python imports this module when it starts, where its folder is in ``PYTHONPATH``, so it holds for a
node and the processes that the node starts. Whoever writes the file sets the clock at once.
"""

from __future__ import annotations

import mmap
import os
import time

#: Names the file: nanoseconds, 8 bytes, little-endian.
VARIABLE = "CHANGEFEED_TEST_CLOCK"


def _set_up(path: str) -> None:
    with open(path, "rb") as file:
        shift = mmap.mmap(file.fileno(), 8, prot=mmap.PROT_READ)
    machine = time.time_ns

    def time_ns() -> int:
        return machine() + int.from_bytes(shift[:8], "little", signed=True)

    time.time_ns = time_ns
    time.time = lambda: time_ns() / 1e9


if VARIABLE in os.environ:
    _set_up(os.environ[VARIABLE])
