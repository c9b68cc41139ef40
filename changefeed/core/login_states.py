"""The SQLSTATE of a login that a server refused, for clients that connect through libpq.

Of such an error libpq returns only the text, in the language of the server's ``lc_messages``. The
SQLSTATE is in libpq's trace of the connection, so after a refusal whose text is not understood the
login is tried a second time, with a trace. The trace never leaves the process: it has the password.

No client library is imported: the connection comes from the caller.
"""

from __future__ import annotations

import os
import re
import select
from collections.abc import Callable
from typing import Protocol

#: A text that a server sent: libpq writes its severity, a colon and two blanks before it.
_SENT = re.compile(r"failed: [^\s:]+:  ")
#: The error of a server in a trace of libpq 18 or newer.
_ERROR = re.compile(rb'\tErrorResponse\t S "[^"\n]*" V "[A-Z]+" C "([0-9A-Z]{5})"')
#: Longest wait for the answer; the first try waits as long unless the URI sets another time.
_SECONDS = 10
#: What an unfinished login waits for (``PostgresPollingStatusType``).
_READING, _WRITING = 1, 2


class LoginAttempt(Protocol):
    """A login that has started: ``psycopg.pq.PGconn``."""

    @property
    def socket(self) -> int:
        """The file descriptor of the connection."""
        ...

    def connect_poll(self) -> int:
        """Continue the login; returns what it waits for now."""
        ...

    def trace(self, fileno: int) -> None:
        """Start to write what is sent and received to a file."""
        ...

    def untrace(self) -> None:
        """Stop writing to the file."""
        ...

    def finish(self) -> None:
        """Close the connection."""
        ...


def sent_by_server(text: str) -> bool:
    """Whether the text of libpq's error repeats what a server said."""
    return _SENT.search(text) is not None


def state_of_refusal(begin: Callable[[], LoginAttempt]) -> str | None:
    """The SQLSTATE with which the server refuses a login; None if it does not refuse, or libpq
    does not say. Errors of ``begin`` and of the attempt are not caught."""
    if not hasattr(os, "memfd_create"):
        return None
    trace = os.memfd_create("changefeed-login")
    try:
        attempt = begin()
        try:
            attempt.trace(trace)
            _poll(attempt)
            attempt.untrace()
        finally:
            attempt.finish()
        os.lseek(trace, 0, os.SEEK_SET)
        found = _ERROR.findall(os.read(trace, 1 << 20))
    finally:
        os.close(trace)
    return found[-1].decode() if found else None


def _poll(attempt: LoginAttempt) -> None:
    while True:
        status = attempt.connect_poll()
        if status not in (_READING, _WRITING):
            return
        waiting = select.poll()
        waiting.register(attempt.socket, select.POLLIN if status == _READING else select.POLLOUT)
        if not waiting.poll(_SECONDS * 1000):
            return
