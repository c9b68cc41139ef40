"""Unexpected exceptions: named by class and place, counted, and not retried for ever.

A :class:`ChangefeedError` is an error that a user can get. Any other exception is a bug in
changefeed. The work is retried a few times, because the cause may be a temporary state of the
machine; if the exception repeats, the table or feed concerned stops.

The text of such an exception may contain row values, so neither an error nor the log repeats it.
"""

from __future__ import annotations

import threading
import traceback
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from changefeed.core.clock import SYSTEM_CLOCK, Clock
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.telemetry import log

#: This many of the same kind within :data:`SPAN_SECONDS` are no accident.
LIMIT = 6
SPAN_SECONDS = 3600.0

_OURS = ("changefeed", "sinks", "grammar", "shell")


def raised_at(failure: BaseException) -> str:
    """``module:line`` of the innermost frame in changefeed's code, else of the innermost frame."""
    found = ""
    for frame, line in traceback.walk_tb(failure.__traceback__):
        module = str(frame.f_globals.get("__name__", "?"))
        if module.partition(".")[0] in _OURS or not found:
            found = f"{module}:{line}"
    return found or "an unknown place"


def log_failure(doing: str, failure: BaseException) -> None:
    """Write the traceback to the log, without the exception's own text."""
    log.error("%s: %s\n%s", doing, _classes(failure), _frames(failure.__traceback__))


def _classes(failure: BaseException) -> str:
    names = [type(failure).__name__]
    while (cause := failure.__cause__ or failure.__context__) is not None and len(names) < 5:
        names.append(type(cause).__name__)
        failure = cause
    return " from ".join(names)


def _frames(trace: TracebackType | None) -> str:
    return "".join(traceback.format_tb(trace)).rstrip()


class FailureCounter:
    """Turns unexpected exceptions into errors; repeated ones become final. Thread-safe."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._seen: dict[tuple[str, str, str], deque[float]] = {}
        self._lock = threading.Lock()

    def error(self, doing: str, failure: BaseException, about: str = "") -> ChangefeedError:
        """Count, log and name a failure.

        Args:
            doing: what the code was doing, for the log.
            failure: the exception.
            about: the table or feed concerned, if known.

        Returns:
            CF9001, which is retried, or CF9002 when the same failure has happened :data:`LIMIT`
            times within :data:`SPAN_SECONDS`.
        """
        kind, place = type(failure).__name__, raised_at(failure)
        log_failure(doing, failure)
        now = self._clock.monotonic()
        with self._lock:
            times = self._seen.setdefault((kind, place, about), deque(maxlen=LIMIT))
            times.append(now)
            repeats = len(times) == LIMIT and now - times[0] <= SPAN_SECONDS
        message = f"internal error: {kind} at {place}"
        return ChangefeedError(
            Code.INTERNAL_ERROR_REPEATS if repeats else Code.INTERNAL_ERROR, message
        )

    @contextmanager
    def survived(self, doing: str) -> Iterator[None]:
        """Log what the block raises: for a thread that must go on and has no caller to report to.

        What cannot be saved because the state cannot be reached is saved in a later turn.
        """
        try:
            yield
        except ChangefeedError as error:
            log.warning("%s: %s %s", doing, error.code.number, error.message)
        except Exception as failure:
            self.error(doing, failure)

    def clear(self) -> None:
        """Reset the counts, because a person asked for a retry."""
        with self._lock:
            self._seen.clear()
