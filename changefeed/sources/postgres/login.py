"""Logins through libpq, and the SQLSTATE of one that the server refused.

libpq hands out the text of such an error alone, in the language of the server's ``lc_messages``.
What it cannot be asked for it writes into a trace, so a refusal in words that we do not know is
asked for a second time, with one. Nothing of it leaves the process: a trace has the password.
"""

from __future__ import annotations

import os
import re
import select
from collections.abc import Callable
from typing import Any

import psycopg
from psycopg import pq

#: A text that a server sent: libpq writes its severity, a colon and two blanks before it.
_SENT = re.compile(r"failed: [^\s:]+:  ")
#: The error of a server in a trace of libpq 18 or newer.
_ERROR = re.compile(rb'\tErrorResponse\t S "[^"\n]*" V "[A-Z]+" C "([0-9A-Z]{5})"')
#: Longest wait for the answer, as in the first try where the URI says nothing else.
_SECONDS = 10


def login(
    info: str, understood: Callable[[str], bool], **how: Any
) -> psycopg.Connection[tuple[Any, ...]]:
    """A connection. ``understood``: the text of an error says enough without its SQLSTATE.

    Raises:
        psycopg.Error: with the server's SQLSTATE where it refused in words not understood.
    """
    try:
        return psycopg.connect(info, autocommit=True, **how)
    except psycopg.OperationalError as error:
        text = str(error)
        if error.sqlstate is None and _SENT.search(text) and not understood(text):
            error.sqlstate = _state_of_refusal(info)
        raise


def _state_of_refusal(info: str) -> str | None:
    """The SQLSTATE with which the server refuses a login; None: it does not, or libpq does not
    tell."""
    if not hasattr(os, "memfd_create"):
        return None
    trace = os.memfd_create("changefeed-login")
    try:
        connection = pq.PGconn.connect_start(info.encode())
        try:
            connection.trace(trace)
            _poll(connection)
            connection.untrace()
        finally:
            connection.finish()
        os.lseek(trace, 0, os.SEEK_SET)
        found = _ERROR.findall(os.read(trace, 1 << 20))
    except psycopg.Error:
        return None  # the error of the first try says enough
    finally:
        os.close(trace)
    return found[-1].decode() if found else None


def _poll(connection: pq.abc.PGconn) -> None:
    """Go on with a login until it ends, however it does."""
    while True:
        status = connection.connect_poll()
        if status not in (pq.PollingStatus.READING, pq.PollingStatus.WRITING):
            return
        waiting = select.poll()
        reading = status == pq.PollingStatus.READING
        waiting.register(connection.socket, select.POLLIN if reading else select.POLLOUT)
        if not waiting.poll(_SECONDS * 1000):
            return
