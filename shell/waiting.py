"""Something that turns while a statement takes its time, on standard error."""

from __future__ import annotations

import itertools
import shutil
import threading
import time
from types import TracebackType
from typing import Self, TextIO

from shell.render.widths import clip

#: Nothing is drawn for what answers within this many seconds.
PATIENCE = 0.5

#: Seconds between two frames.
EVERY = 0.1

_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


class WaitIndicator:
    """Draws a frame, a text and the elapsed seconds over one line until the block ends.

    On a terminal only; the line is gone afterwards.
    """

    def __init__(self, stream: TextIO, text: str, *, shown: bool = True) -> None:
        """``shown`` switches it off."""
        self._stream = stream
        self._text = text
        self._done = threading.Event()
        self._drawn = False
        self._thread: threading.Thread | None = None
        if shown and stream.isatty():
            self._thread = threading.Thread(target=self._turn, name="shell-waiting", daemon=True)

    def __enter__(self) -> Self:
        if self._thread is not None:
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
