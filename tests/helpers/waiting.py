"""Waiting for what other threads, processes and servers do."""

from __future__ import annotations

import time
from collections.abc import Callable

#: Spark's start and a first scan on a busy machine of two cores, in seconds.
PATIENCE = 150.0


def until(
    condition: Callable[[], object], what: str = "the condition", seconds: float = PATIENCE
) -> None:
    """Wait until a condition is true; fail, naming ``what``, when it does not come true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.02)
