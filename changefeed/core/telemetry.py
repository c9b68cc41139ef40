"""The log of a node: one logger, written to the state's ``node.log``, as text or as JSON.

Messages contain names, positions and counts, but never row values or a URI with its secrets.
"""

from __future__ import annotations

import json
import logging
import logging.handlers
import re
import sys
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

#: The logger of all of changefeed. Silent until :func:`log_to` gives it a file.
log = logging.getLogger("changefeed")
log.addHandler(logging.NullHandler())
log.propagate = False

LOG_BYTES = 4 << 20
LOG_FILES = 3

_TEXT = "%(asctime)s %(levelname)s %(threadName)s %(message)s"

#: A placeholder of a message with the word before it, which says whose name the argument is.
_NAMED = re.compile(r"(?:(feed|table|source|capture of|log of) )?%[-#+ 0-9.]*[a-zA-Z]")
_FIELDS = {"capture of": "source", "log of": "source"}
_CODE = re.compile(r"\bCF\d{4}\b")


class LogFormat(StrEnum):
    """How the lines of a log are written."""

    TEXT = "text"
    JSON = "json"

    def formatter(self, text: str = _TEXT) -> logging.Formatter:
        """The formatter of a handler; ``text`` is the form of a line of text."""
        return JsonLines() if self is LogFormat.JSON else logging.Formatter(text)


class JsonLines(logging.Formatter):
    """One JSON object a line: time (UTC), level, logger, thread, message, and feed, table, source
    and code where the message names them. The message is that of the text form, so neither has
    what the other leaves out.
    """

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record; a line break in a message does not end it."""
        message = record.getMessage()
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds")
        line: dict[str, Any] = {
            "time": at.replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "thread": record.threadName,
            **_names(record),
        }
        if (code := _CODE.search(message)) is not None:
            line["code"] = code[0]
        line["message"] = message
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def _names(record: logging.LogRecord) -> dict[str, str]:
    if not isinstance(record.args, tuple):
        return {}
    words = (found[1] for found in _NAMED.finditer(str(record.msg).replace("%%", "")))
    named = zip(words, record.args, strict=False)
    return {_FIELDS.get(word, word): str(value) for word, value in named if word}


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


def log_to(
    path: Path, level: int = logging.INFO, form: LogFormat = LogFormat.TEXT
) -> logging.Handler:
    """Write the node's log to ``path`` (rotated by size); returns the handler to remove."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = _LogFile(path, maxBytes=LOG_BYTES, backupCount=LOG_FILES, encoding="utf-8")
    handler.setFormatter(form.formatter())
    log.addHandler(handler)
    log.setLevel(level)
    return handler
