"""Signals become exceptions at the right moment.

SIGINT cancels what runs; SIGTERM and SIGHUP end the process, cleanly: whatever was started is
stopped on the way out.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from shell.exits import Exit


def end_cleanly() -> None:
    """From now on SIGTERM and SIGHUP raise SystemExit in the main thread."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)


def _end(number: int, frame: FrameType | None) -> NoReturn:
    _ignore()
    raise SystemExit(Exit.TERMINATED)


def _ignore() -> None:
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def no_interrupt() -> Iterator[None]:
    """Within the block SIGINT does nothing: what was started is being stopped, which ends."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def one_interrupt() -> Iterator[None]:
    """Within the block the first SIGINT raises KeyboardInterrupt, the next ones do nothing.

    For work whose end must not be cut short: a second Ctrl-C while a sinkless feed is being
    taken down would leave its job behind.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
