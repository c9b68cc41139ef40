"""The SQLSTATE of a login that a server refused, for who speaks to a server by libpq.

libpq hands out the text of such an error alone, in the language of the server's ``lc_messages``.
What it cannot be asked for it writes into a trace, so a refusal in words that are not understood is
asked for a second time, with one. Nothing of it leaves the process: a trace has the password.

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
#: Longest wait for the answer, as in the first try where the URI says nothing else.
_SECONDS = 10
#: What a login that goes on waits for (``PostgresPollingStatusType``).
_READING, _WRITING = 1, 2


class LoginAttempt(Protocol):
    """A login that has begun: ``psycopg.pq.PGconn``."""

    @property
    def socket(self) -> int:
        """Its file descriptor."""
        ...

    def connect_poll(self) -> int:
        """Go on; what it waits for now."""
        ...

    def trace(self, fileno: int) -> None:
        """Write what is sent and received to a file."""
        ...

    def untrace(self) -> None:
        """No more."""
        ...

    def finish(self) -> None:
        """Close it."""
        ...


def sent_by_server(text: str) -> bool:
    """The text of an error of libpq repeats what a server said."""
    return _SENT.search(text) is not None


def state_of_refusal(begin: Callable[[], LoginAttempt]) -> str | None:
    """The SQLSTATE with which the server refuses a login; None: it does not, or libpq does not
    tell. What ``begin`` and the attempt raise comes out."""
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
    """Go on with a login until it ends, however it does."""
    while True:
        status = attempt.connect_poll()
        if status not in (_READING, _WRITING):
            return
        waiting = select.poll()
        waiting.register(attempt.socket, select.POLLIN if status == _READING else select.POLLOUT)
        if not waiting.poll(_SECONDS * 1000):
            return
