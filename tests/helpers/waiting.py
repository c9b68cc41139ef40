"""Waiting for what other threads, processes and servers do."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

#: Spark's start and a first scan on a busy machine of two cores, in seconds.
PATIENCE = 400.0


def until(
    condition: Callable[[], object], what: str = "the condition", seconds: float = PATIENCE
) -> None:
    """Wait until a condition is true; fail, naming ``what``, when it does not come true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.02)


def suspend(pid: int) -> None:
    """Freeze a process, and wait until none of its threads runs: the signal is answered later, and
    a server may answer a request meanwhile."""
    os.kill(pid, signal.SIGSTOP)
    until(lambda: _states(pid) <= {"T", "Z"}, f"process {pid} is frozen", 30.0)


def _states(pid: int) -> set[str]:
    """The states of a process's threads (proc(5))."""
    states = set()
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):
            states.add((thread / "stat").read_text().rpartition(")")[2].split()[0])
    return states
