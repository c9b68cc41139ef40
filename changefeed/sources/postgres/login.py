"""Logins through libpq, and the SQLSTATE of one that the server refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
from psycopg import pq

from changefeed.core.login_states import sent_by_server, state_of_refusal


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
        if error.sqlstate is None and sent_by_server(text) and not understood(text):
            error.sqlstate = _state_of_refusal(info)
        raise


def _state_of_refusal(info: str) -> str | None:
    try:
        return state_of_refusal(lambda: pq.PGconn.connect_start(info.encode()))
    except psycopg.Error:
        return None  # the error of the first try says enough
