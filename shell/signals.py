"""Signals become exceptions at the right moment.

SIGINT cancels what runs; SIGTERM and SIGHUP end the process, cleanly: whatever was started is
stopped on the way out.
"""

from __future__ import annotations

import os
import select
import signal
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn, TextIO

from shell.exits import Exit

#: How soon the thread that watches a pipe ends with its block, seconds.
_WATCH_SECONDS = 0.5


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


@contextmanager
def while_read(out: TextIO) -> Iterator[None]:
    """Within the block BrokenPipeError comes as soon as ``out`` is a pipe without a reader.

    A write would find out, but a stream of rare rows may have nothing to write for hours, and a
    feed runs for it meanwhile.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or not _is_pipe(out):
        yield
        return

    def gone(number: int, frame: FrameType | None) -> NoReturn:
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        raise BrokenPipeError

    ended, main_thread = threading.Event(), threading.get_ident()

    def watch() -> None:
        pipe = select.poll()
        pipe.register(out.fileno(), 0)  # only what poll() reports unasked: there is no reader
        while not ended.is_set():
            if pipe.poll(_WATCH_SECONDS * 1000) and not ended.is_set():
                # Again and again: Python handles a signal between two of its instructions, so one
                # that comes right before the thread begins to wait does not end the waiting.
                signal.pthread_kill(main_thread, signal.SIGPIPE)
                ended.wait(_WATCH_SECONDS)

    before = signal.signal(signal.SIGPIPE, gone)
    watcher = threading.Thread(target=watch, name="pipe-watch", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        signal.signal(signal.SIGPIPE, before)


def _is_pipe(out: TextIO) -> bool:
    try:
        return stat.S_ISFIFO(os.fstat(out.fileno()).st_mode)
    except (OSError, ValueError):  # a text in memory has no file
        return False
