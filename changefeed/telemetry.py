"""What the engine says about itself: one logger, written to the state's ``node.log``.

Messages hold names, positions and counts; never row values, never a URI with its secrets.
"""

from __future__ import annotations

import logging
import logging.handlers
import re
import threading
import time
from pathlib import Path

#: The engine's logger. Silent until :func:`log_to` gives it a file.
log = logging.getLogger("changefeed")
log.addHandler(logging.NullHandler())
log.propagate = False

#: A line that came once is not repeated for so long, seconds.
QUIET_SECONDS = 60.0
_NUMBERS = re.compile(r"\d+")


class LimitRepeats(logging.Filter):
    """Lets a line through, and those that differ from it in numbers only not for a while; the
    next that is let through says how many were left out. For what a client library says of a
    server that is away, several times a second.
    """

    _KEPT = 1000

    def __init__(self, seconds: float = QUIET_SECONDS) -> None:
        super().__init__()
        self._seconds = seconds
        self._lock = threading.Lock()
        self._seen: dict[tuple[int, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is to be written."""
        text = record.getMessage()
        key = (record.levelno, _NUMBERS.sub("0", text))
        now = time.monotonic()
        with self._lock:
            until, left_out = self._seen.get(key, (0.0, 0))
            if now < until:
                self._seen[key] = (until, left_out + 1)
                return False
            if len(self._seen) >= self._KEPT:
                self._seen.clear()
            self._seen[key] = (now + self._seconds, 0)
        if left_out:
            record.msg, record.args = f"{text} (and {left_out} times before)", ()
        return True


LOG_BYTES = 4 << 20
LOG_FILES = 3


def log_to(path: Path, level: int = logging.INFO) -> logging.Handler:
    """Write the engine's log to ``path`` (rotated by size); returns the handler to remove."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = logging.handlers.RotatingFileHandler(
        path, maxBytes=LOG_BYTES, backupCount=LOG_FILES, encoding="utf-8"
    )
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(threadName)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(level)
    return handler
