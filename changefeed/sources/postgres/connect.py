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
from collections.abc import Callable, Collection, Iterator, Mapping, Set
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import conninfo, pq

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.login_states import sent_by_server, state_of_refusal
from changefeed.core.uri import ESCAPES

PsycopgConnection = psycopg.Connection[tuple[Any, ...]]

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

#: Connection parameters that apply unless the URI, its service or the environment says
#: otherwise. A peer that vanished without a word is noticed within about a minute.
_DEFAULTS: Mapping[str, str] = {
    "connect_timeout": "10",
    "application_name": "changefeed",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    # No keepalive is sent while what was sent before is not acknowledged, as a stream's reports.
    "tcp_user_timeout": "30000",
    # The stream is read fastest from a socket that nothing encrypts; TLS or GSSAPI encrypt where
    # they are asked for.
    "gssencmode": "disable",
}


def connection_info(uri: str, **changes: str) -> str:
    """The URI as a libpq connection string, with what its service says and with our defaults;
    ``changes`` win over the URI.

    Raises:
        ChangefeedError: CF1201, CF1202, CF1207 no such service; the message never repeats the URI.
    """
    given = read_uri(uri)
    if service := given.pop("service", None) or os.environ.get("PGSERVICE"):
        given = _of_service(service, given)
    found = {**_without(_DEFAULTS, _environment()), **given}
    # Also for replication connections, which take no settings later: a database in another
    # encoding, or in none (SQL_ASCII), would have psycopg hand out bytes or garbled names.
    fixed = {"client_encoding": "UTF8"}
    return conninfo.make_conninfo("", **{**found, **fixed, **changes})


def _without(values: Mapping[str, str], names: Set[str]) -> dict[str, str]:
    return {name: value for name, value in values.items() if name not in names}


def _environment() -> Set[str]:
    options = pq.Conninfo.get_defaults()
    return {o.keyword.decode() for o in options if o.val is not None and o.val != o.compiled}


#: What libpq says of a service that it cannot read. None of it repeats a value.
_NO_SERVICE = re.compile(
    r"definition of service .* not found|service file .* not found|.* in service file .*"
)


def _of_service(service: str, given: Mapping[str, Any]) -> dict[str, str]:
    """The parameters ``given`` and those that libpq finds for a service.

    Put into the connection string, they go the way of those of a URI: psycopg tries several
    hosts one by one, and our defaults give way to them.

    libpq reports what it found of a connection only. Two that end before they reach a server, each
    by another parameter of its own, together show all.
    """
    found: dict[str, str] = {}
    for own in ({"host": os.devnull, "hostaddr": ""}, {"target_session_attrs": "-"}):
        asked = conninfo.make_conninfo("", **{**given, "service": service, **own})
        attempt = pq.PGconn.connect_start(asked.encode())
        try:
            if failed := _NO_SERVICE.match(attempt.get_error_message()):
                raise _no_service(service, failed[0])
            options = attempt.info
        finally:
            attempt.finish()
        for option in options:
            keyword, value = option.keyword.decode(), option.val
            ours = keyword in _DEFAULTS and value == option.compiled
            if value is not None and not ours and keyword not in own:
                found[keyword] = value.decode()
    found.pop("service", None)
    return found


def _no_service(service: str, reason: str) -> ChangefeedError:
    return ChangefeedError(
        Code.INVALID_PARAMETER,
        f"cannot read the service {service!r} of a PostgreSQL source: {reason}",
        hint="write it into ~/.pg_service.conf, or the file that PGSERVICEFILE names, where every "
        "process that connects finds it: the node, and the workers of Spark.",
    )


def read_uri(uri: str, ours: Collection[str] = ()) -> dict[str, Any]:
    """The parameters in a URI, all of them libpq's; ``ours`` are others that may have been meant.

    Raises:
        ChangefeedError: CF1201/CF1202; the message never repeats the URI.
    """
    try:
        given = conninfo.conninfo_to_dict(uri)
    except psycopg.ProgrammingError as error:
        unknown = re.search(r'invalid URI query parameter: "(\w+)"', str(error))
        if unknown:
            near = difflib.get_close_matches(unknown[1][:64], [*_parameters(), *ours], n=1)
            listed = "parameters are those of libpq: sslmode, sslrootcert, connect_timeout, ..."
            raise ChangefeedError(
                Code.UNKNOWN_PARAMETER,
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
    return given


def _malformed(message: str) -> ChangefeedError:
    return ChangefeedError(
        Code.INVALID_URI,
        message,
        hint=f"write postgresql://user:password@host:5432/database; {ESCAPES}",
    )


def _parameters() -> list[str]:
    return [option.keyword.decode() for option in pq.Conninfo.get_defaults()]


def connect(uri: str, *, autocommit: bool = True, **changes: str) -> PsycopgConnection:
    """A session with :data:`SESSION` and :data:`BEHAVIOUR`.

    Raises:
        ChangefeedError: CF1201, CF1202, CF2001, CF2002, CF2003.
    """
    with source_errors("connect"):
        connection = login(connection_info(uri, **changes), _understood)
        try:
            apply_settings(connection)
            connection.autocommit = autocommit
        except BaseException:
            connection.close()
            raise
    return connection


def apply_settings(connection: PsycopgConnection, **changes: str) -> None:
    """Give a fresh session our settings, in one round trip."""
    major = connection.info.server_version // 10_000
    settings = {**SESSION, **BEHAVIOUR}
    settings.update({name: value for since, name, value in _NEWER if major >= since})
    settings.update(changes)
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
        info = connection_info(uri, replication="database")
        return login(info, _understood, cursor_factory=psycopg.ClientCursor)


def in_recovery(connection: PsycopgConnection) -> bool:
    """Whether the server is a standby, as yet."""
    [standby] = connection.execute("SELECT pg_catalog.pg_is_in_recovery()").fetchone() or (False,)
    return bool(standby)


def is_plain(connection: PsycopgConnection) -> bool:
    """The bytes on the socket are the protocol's own: neither TLS nor GSSAPI encrypts them."""
    if connection.pgconn.ssl_in_use:
        return False
    used = {option.keyword: option.val for option in connection.pgconn.info}
    if used.get(b"gssencmode") == b"disable":
        return True
    row = connection.execute(
        "SELECT encrypted FROM pg_catalog.pg_stat_gssapi WHERE pid = pg_catalog.pg_backend_pid()"
    ).fetchone()
    return row is not None and not row[0]


class LateSession:
    """A session that is opened when it is first needed, and closed with the block. One thread."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._connection: PsycopgConnection | None = None

    def __enter__(self) -> LateSession:
        return self

    def __exit__(self, *_: object) -> None:
        if self._connection is not None:
            self._connection.close()

    def get(self) -> PsycopgConnection:
        """The open session.

        Raises:
            ChangefeedError: CF2001, CF2002 it cannot be opened.
        """
        if self._connection is None:
            self._connection = connect(self._uri)
        return self._connection


class Sessions:
    """A few open sessions of one source that its threads take turns with.

    A session that the server ended while it lay here is found out and replaced; one whose
    use raised is closed, so that no state leaks to the next user.
    """

    def __init__(self, uri: str, keep: int = 2) -> None:
        self._uri = uri
        self._keep = keep
        self._idle: list[PsycopgConnection] = []
        self._lock = threading.Lock()
        weakref.finalize(self, _close_all, self._idle, os.getpid())

    @contextmanager
    def session(self, doing: str) -> Iterator[PsycopgConnection]:
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

    def _take(self) -> PsycopgConnection | None:
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


def _close_all(connections: list[PsycopgConnection], pid: int) -> None:
    """Close and empty the list; in a forked process the sockets are still the parent's."""
    if pid == os.getpid():
        while connections:
            connections.pop().close()


def is_quiet(connection: PsycopgConnection) -> bool:
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
    "08": Code.SOURCE_UNREACHABLE,
    "28": Code.SOURCE_REFUSED_LOGIN,
    "3D000": Code.SOURCE_REFUSED_LOGIN,
    "42501": Code.SOURCE_PERMISSION_MISSING,
    "53": Code.SOURCE_BUSY,
    "55006": Code.SOURCE_BUSY,
    "55P03": Code.SOURCE_BUSY,
    "57014": Code.SOURCE_BUSY,
    "40": Code.SOURCE_BUSY,
    "57P": Code.SOURCE_UNREACHABLE,
}

#: An older libpq gives no SQLSTATE for a refused connection, only the server's text, and what
#: libpq itself finds wrong has none.
_NO_DATABASE = re.compile(r'database "[^"]*" does not exist')
_NO_DATABASE_HINT = "check the name of the database in the URI; psql -l lists those of the server."
_FORBIDDEN = re.compile(
    r"must be superuser or replication|permission denied to start WAL sender"
    r"|permission denied for database",
    re.IGNORECASE,
)
_REFUSED = re.compile(
    r"password authentication failed|authentication failed|no password supplied|no pg_hba\.conf"
    r"|pg_hba\.conf rejects|role .* does not exist|not permitted to log in|database .* does not"
    r" exist|certificate (verify|required|revoked)|does not match host name"
    r"|server does not support SSL|authentication method requirement|channel binding (is )?required"
    r"|requirepeer specifies|GSSAPI|authentication method .* not supported"
    r"|without a valid SSL certificate"
    r"|alert (unknown ca|bad certificate|certificate|handshake failure|protocol version)",
    re.IGNORECASE,
)
_REFUSED_HINT = {
    "certificate verify failed": "check sslrootcert and sslcrl, and that the host in the URI is the"
    " one in the certificate.",
    "does not match host name": "write the host of the certificate into the URI; hostaddr= says"
    " where to find it.",
    "channel binding": "the server must ask for scram-sha-256, over TLS.",
    "GSSAPI": "the process needs a ticket: run kinit for its user, or name a keytab in"
    " KRB5_CLIENT_KTNAME.",
    "authentication method requirement": "change pg_hba.conf at the server, or require_auth in the"
    " URI.",
}
#: A parameter, or a file that one names, that libpq cannot use.
_INVALID = re.compile(
    r"invalid \w+ value|invalid integer value|invalid port number|private key file|weak sslmode"
    r"|root certificate file .* does not exist|could not get home directory"
    r"|could not (read|load|open) (root )?(certificate|private key|SSL|system root)"
    r"|could not match \d+ (port|host)|not compiled in",
    re.IGNORECASE,
)
#: Who answers is no PostgreSQL server.
_FOREIGN = re.compile(
    r"expected authentication request|received invalid (authentication|response)|invalid response"
    r" to|message contents do not agree|lost synchronization|unexpected message from server",
    re.IGNORECASE,
)
_FOREIGN_HINT = "check host and port: another program may listen there."


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
    hint = _NO_DATABASE_HINT if _NO_DATABASE.search(message) else ""
    if code is None:
        lost = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
        code = Code.SOURCE_UNREACHABLE if lost else Code.SOURCE_NOT_SET_UP
        if lost and not state:
            code, said = _of_login(message)
            hint = hint or said
    detail = f"SQLSTATE {state}" if state else ""
    return ChangefeedError(code, f"cannot {doing}: {message}", detail=detail, hint=hint)


#: Code and hint for a text of libpq that says nothing.
_NOT_UNDERSTOOD = (Code.SOURCE_UNREACHABLE, "")


def _understood(message: str) -> bool:
    """Only the text says what is wrong with a connection that could not be made."""
    return _of_login(message) is not _NOT_UNDERSTOOD


def _of_login(message: str) -> tuple[str, str]:
    """Code and hint for what libpq says of a connection that it could not make."""
    if _FORBIDDEN.search(message):
        return Code.SOURCE_PERMISSION_MISSING, ""
    if _FOREIGN.search(message):
        return Code.SOURCE_UNREACHABLE, _FOREIGN_HINT
    if _INVALID.search(message):
        return Code.INVALID_PARAMETER, ""
    if _REFUSED.search(message):
        return Code.SOURCE_REFUSED_LOGIN, next(
            (h for text, h in _REFUSED_HINT.items() if text in message), ""
        )
    return _NOT_UNDERSTOOD


def _message(error: psycopg.Error) -> str:
    """One line, without the detail and context lines of the server."""
    if error.diag.message_primary:
        return error.diag.message_primary
    text = str(error).strip()
    # "connection failed: connection to server at ..., port 5432 failed: FATAL:  ..."
    text = re.sub(r"^connection (failed|is bad): ", "", text)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0] if lines else "no reason given"


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
