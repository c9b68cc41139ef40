"""The log of a node: one logger, written to the state's ``node.log``.

Messages contain names, positions and counts, but never row values or a URI with its secrets.
"""

from __future__ import annotations

import logging
import logging.handlers
import sys
from pathlib import Path

#: The logger of all of changefeed. Silent until :func:`log_to` gives it a file.
log = logging.getLogger("changefeed")
log.addHandler(logging.NullHandler())
log.propagate = False

LOG_BYTES = 4 << 20
LOG_FILES = 3


class _LogFile(logging.handlers.RotatingFileHandler):
    """A log file. When it cannot be written, one line on standard error reports it."""

    _failing = False
    _cause: BaseException | None = None

    def emit(self, record: logging.LogRecord) -> None:
        before, self._failing = self._failing, False
        super().emit(record)
        if self._failing and not before:
            print(f"{self.baseFilename} cannot be written: {self._cause}", file=sys.stderr)

    def handleError(self, record: logging.LogRecord) -> None:
        self._failing, self._cause = True, sys.exc_info()[1]


def log_to(path: Path, level: int = logging.INFO) -> logging.Handler:
    """Write the node's log to ``path`` (rotated by size); returns the handler to remove."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = _LogFile(path, maxBytes=LOG_BYTES, backupCount=LOG_FILES, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(threadName)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(level)
    return handler
