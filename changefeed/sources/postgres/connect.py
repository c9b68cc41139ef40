"""Connections to a PostgreSQL server, and its errors in our words.

Every session has the same output settings (:data:`SESSION`): the text of a value must be the
same whether it comes from the replication stream, an initial scan or a lookup by key.
"""

from __future__ import annotations

import difflib
import os
import re
import select
import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import conninfo, pq

from changefeed.core.errors import ChangefeedError

Connection = psycopg.Connection[tuple[Any, ...]]

#: How values are printed. Every session that reads values must set all of these.
SESSION: Mapping[str, str] = {
    "TimeZone": "UTC",
    "DateStyle": "ISO, MDY",
    "IntervalStyle": "postgres",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    "xmlbinary": "base64",
    "lc_monetary": "C",
    "client_encoding": "UTF8",
    # regclass values and the names of types come qualified, whatever the role's own path.
    "search_path": "",
}

#: A setting of our own that keeps the role's search path (as a ``name[]``) in the session.
SEARCH_PATH = "changefeed.search_path"

#: How our sessions behave: nothing ends them by time but we ourselves; a row-level policy
#: raises instead of hiding rows.
BEHAVIOUR: Mapping[str, str] = {
    "statement_timeout": "0",
    "lock_timeout": "30s",
    "idle_in_transaction_session_timeout": "0",
    "row_security": "off",
}

#: Settings by the major version that brought them.
_NEWER: tuple[tuple[int, str, str], ...] = (
    (14, "idle_session_timeout", "0"),
    (17, "transaction_timeout", "0"),
)

#: Connection parameters that apply unless the URI says otherwise. Keepalives find a peer that
#: vanished without a word within about a minute.
_DEFAULTS: Mapping[str, str] = {
    "connect_timeout": "10",
    "application_name": "changefeed",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    # TLS is what encrypts; the replication protocol client has no GSSAPI either.
    "gssencmode": "disable",
}


def connection_info(uri: str, **changes: str) -> str:
    """The URI as a libpq connection string with our defaults; ``changes`` win over the URI.

    Raises:
        ChangefeedError: CF1201/CF1202; the message never repeats the URI.
    """
    try:
        given = conninfo.conninfo_to_dict(uri)
    except psycopg.ProgrammingError as error:
        unknown = re.search(r'invalid URI query parameter: "(\w+)"', str(error))
        if unknown:
            near = difflib.get_close_matches(unknown[1][:64], _parameters(), n=1)
            listed = "parameters are those of libpq: sslmode, sslrootcert, connect_timeout, ..."
            raise ChangefeedError(
                "CF1202",
                f"unknown parameter {unknown[1]!r} in the URI of a PostgreSQL source",
                hint=f'did you mean "{near[0]}"?' if near else listed,
            ) from None
        # libpq repeats the text it could not read, which may hold the password.
        raise _malformed("the URI of a PostgreSQL source is malformed") from None
    if "@" in str(given.get("host", "")):
        # libpq ends the password at the first @ and takes the rest for a host.
        raise _malformed("the URI of a PostgreSQL source has more than one @ before its host")
    ports = str(given.get("port", "")).split(",")
    if not all(port == "" or (port.isascii() and port.isdecimal()) for port in ports):
        raise _malformed("the port in the URI of a PostgreSQL source is not a number")
    _refuse_ignored(given)
    # Also for replication connections, which take no settings later: a database in another
    # encoding, or in none (SQL_ASCII), would have psycopg hand out bytes or garbled names.
    fixed = {"client_encoding": "UTF8"}
    return conninfo.make_conninfo("", **{**_DEFAULTS, **given, **fixed, **changes})


#: Parameters that restrict whom we talk to and how, which the replication connection does not
#: know, with the values that ask for nothing. Ignored by one connection of two, they would
#: protect nothing.
_IGNORED: Mapping[str, frozenset[str]] = {
    "gssencmode": frozenset({"disable", "prefer"}),
    "requirepeer": frozenset(),
    "service": frozenset(),
    "sslcertmode": frozenset({"allow"}),
    "sslcrl": frozenset(),
    "sslcrldir": frozenset(),
}


def _refuse_ignored(given: Mapping[str, Any]) -> None:
    for name, harmless in _IGNORED.items():
        value = given.get(name)
        if value and value not in harmless:
            raise ChangefeedError(
                "CF1207",
                f"parameter {name} of a PostgreSQL source is not supported: the replication"
                " connection cannot honour it",
                hint=f"take {name} out of the URI; sslmode=verify-full, sslrootcert,"
                " channel_binding and require_auth hold for every connection.",
            )


def _malformed(message: str) -> ChangefeedError:
    return ChangefeedError(
        "CF1201",
        message,
        hint="write postgresql://user:password@host:5432/database; "
        "@ : / ? # % in a password are written %40 %3A %2F %3F %23 %25.",
    )


def _parameters() -> list[str]:
    """What libpq takes."""
    return [option.keyword.decode() for option in pq.Conninfo.get_defaults()]


def connect(uri: str, *, autocommit: bool = True, **changes: str) -> Connection:
    """A session with :data:`SESSION` and :data:`BEHAVIOUR`.

    Raises:
        ChangefeedError: CF1201, CF1202, CF2001, CF2002, CF2003.
    """
    with source_errors("connect"):
        connection = psycopg.connect(connection_info(uri, **changes), autocommit=True)
        try:
            apply_settings(connection)
            connection.autocommit = autocommit
        except BaseException:
            connection.close()
            raise
    return connection


def apply_settings(connection: Connection) -> None:
    """Give a fresh session our settings, in one round trip."""
    major = connection.info.server_version // 10_000
    settings = {**SESSION, **BEHAVIOUR}
    settings.update({name: value for since, name, value in _NEWER if major >= since})
    calls = [f"pg_catalog.set_config('{k}', '{v}', false)" for k, v in settings.items()]
    # Evaluated first: the path that unqualified names were meant to be looked up on.
    path = "pg_catalog.current_schemas(false)::text"
    calls.insert(0, f"pg_catalog.set_config('{SEARCH_PATH}', {path}, false)")
    connection.execute(f"SELECT {', '.join(calls)}")


def connect_replication(uri: str) -> psycopg.Connection[tuple[Any, ...]]:
    """A logical replication session (simple query protocol only: use a ``ClientCursor``).

    Raises:
        ChangefeedError: as :func:`connect`.
    """
    with source_errors("open a replication connection"):
        return psycopg.connect(
            connection_info(uri, replication="database"),
            autocommit=True,
            cursor_factory=psycopg.ClientCursor,
        )


class Sessions:
    """A few open sessions of one source that its threads take turns with.

    A session that the server ended while it lay here is found out and replaced; one whose
    use raised is closed, so that no state leaks to the next user.
    """

    def __init__(self, uri: str, keep: int = 2) -> None:
        self._uri = uri
        self._keep = keep
        self._idle: list[Connection] = []
        self._lock = threading.Lock()
        weakref.finalize(self, _close_all, self._idle, os.getpid())

    @contextmanager
    def session(self, doing: str) -> Iterator[Connection]:
        """A session in autocommit mode; errors come out as :class:`ChangefeedError`."""
        connection = self._take() or connect(self._uri)
        try:
            with source_errors(doing):
                yield connection
        except BaseException:
            connection.close()
            raise
        with self._lock:
            if len(self._idle) < self._keep:
                self._idle.append(connection)
                return
        connection.close()

    def _take(self) -> Connection | None:
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection = self._idle.pop()
            if is_quiet(connection):
                return connection
            connection.close()

    def close(self) -> None:
        """Close what is idle; the object stays usable."""
        with self._lock:
            _close_all(self._idle, os.getpid())


def _close_all(connections: list[Connection], pid: int) -> None:
    """Close and empty the list; in a forked process the sockets are still the parent's."""
    if pid == os.getpid():
        while connections:
            connections.pop().close()


def is_quiet(connection: Connection) -> bool:
    """An idle session that is still there: open, and with nothing (an end of file) to read."""
    if connection.closed or connection.pgconn.status != pq.ConnStatus.OK:
        return False
    try:
        poll = select.poll()
        poll.register(connection.pgconn.socket, select.POLLIN | select.POLLHUP | select.POLLERR)
        return not poll.poll(0)
    except (OSError, psycopg.OperationalError):
        return False


# ------------------------------------------------------------------------------ errors

#: SQLSTATE, or its class, to code. The longer match wins.
_STATES: Mapping[str, str] = {
    "08": "CF2001",
    "28": "CF2002",
    "3D000": "CF2002",
    "42501": "CF2004",
    "53": "CF2005",
    "55006": "CF2005",
    "55P03": "CF2005",
    "57014": "CF2005",
    "40": "CF2005",
    "57P": "CF2001",
}

#: libpq gives no SQLSTATE for a refused connection, only the server's text.
_NO_DATABASE = re.compile(r'database "[^"]*" does not exist')
_NO_DATABASE_HINT = "check the name of the database in the URI; psql -l lists those of the server."
_REFUSED = re.compile(
    r"password authentication failed|authentication failed|no password supplied|no pg_hba\.conf"
    r"|pg_hba\.conf rejects|role .* does not exist|not permitted to log in|database .* does not"
    r" exist|must be superuser or replication|permission denied to start WAL sender"
    r"|certificate (verify|required)|server does not support SSL",
    re.IGNORECASE,
)


@contextmanager
def source_errors(doing: str) -> Iterator[None]:
    """Turn psycopg's exceptions into :class:`ChangefeedError`; ``doing`` ends "cannot ...".

    Only the server's primary message is passed on: its detail may hold row values.
    """
    try:
        yield
    except psycopg.Error as error:
        raise translate(error, doing) from error


def translate(error: psycopg.Error, doing: str) -> ChangefeedError:
    """The error in our words; the caller chains the cause."""
    message = _message(error)
    state = error.sqlstate or ""
    code = _STATES.get(state) or _STATES.get(state[:3]) or _STATES.get(state[:2])
    if code is None:
        lost = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
        code = "CF2001" if lost else "CF2003"
        if lost and not state and _REFUSED.search(message):
            code = "CF2002"
    detail = f"SQLSTATE {state}" if state else ""
    hint = _NO_DATABASE_HINT if _NO_DATABASE.search(message) else ""
    return ChangefeedError(code, f"cannot {doing}: {message}", detail=detail, hint=hint)


def _message(error: psycopg.Error) -> str:
    """One line, without the detail and context lines of the server."""
    if error.diag.message_primary:
        return error.diag.message_primary
    text = str(error).strip()
    # "connection failed: connection to server at ..., port 5432 failed: FATAL:  ..."
    text = re.sub(r"^connection failed: ", "", text)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0] if lines else "no reason given"
