"""A frame that turns on standard error while a statement takes its time."""

from __future__ import annotations

import itertools
import shutil
import sys
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Self, TextIO

from shell.render.widths import clip

#: Nothing is drawn for what answers within this many seconds.
PATIENCE = 0.5

#: Seconds between two frames.
EVERY = 0.1

_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


@contextmanager
def quiet_keys() -> Iterator[None]:
    """Within the block the terminal does not echo what is typed ahead: it would stand in the middle
    of what is drawn. It is kept for the next prompt; Ctrl-C works as always."""
    try:
        terminal = sys.stdin.fileno()
        before = termios.tcgetattr(terminal)
    except (termios.error, OSError, ValueError):  # standard input is no terminal
        yield
        return
    silent = [*before]
    silent[3] = before[3] & ~termios.ECHO
    # At once and without a flush: what was typed already is kept.
    termios.tcsetattr(terminal, termios.TCSANOW, silent)
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSANOW, before)


class WaitIndicator:
    """Draws a frame, a text and the elapsed seconds over one line until the block ends.

    On a terminal only; the line is gone afterwards.
    """

    def __init__(self, stream: TextIO, text: str, *, shown: bool = True) -> None:
        """``shown``: false draws nothing."""
        self._stream = stream
        self._text = text
        self._done = threading.Event()
        self._drawn = False
        self._thread: threading.Thread | None = None
        self._quiet = ExitStack()
        if shown and stream.isatty():
            self._thread = threading.Thread(target=self._turn, name="shell-waiting", daemon=True)

    def __enter__(self) -> Self:
        if self._thread is not None:
            self._quiet.enter_context(quiet_keys())
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join()
        if self._drawn:
            self._write("")
        self._quiet.close()

    def _turn(self) -> None:
        begun = time.monotonic()
        if self._done.wait(PATIENCE):
            return
        for frame in itertools.cycle(_FRAMES):
            self._drawn = True
            self._write(f"{frame} {self._text}  {time.monotonic() - begun:.0f}s")
            if self._done.wait(EVERY):
                return

    def _write(self, text: str) -> None:
        self._stream.write("\r\x1b[2K" + clip(text, shutil.get_terminal_size().columns - 1))
        self._stream.flush()
