"""The PostgreSQL protocol as replication needs it, on a plain socket.

libpq hands out one row per call and copies it; here the kernel writes the stream straight into
the buffer it is decoded in. Only what a walsender understands is spoken: startup, the simple
query protocol, COPY BOTH.

The URI is read by libpq's own parser (through psycopg), so every spelling that works there
works here; several hosts are tried in order; ``.pgpass`` and ``PG*`` variables count.
"""

from __future__ import annotations

import getpass
import os
import re
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from psycopg import pq

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.events import Position
from changefeed.sources.postgres import tls
from changefeed.sources.postgres.auth import Authenticator
from changefeed.sources.postgres.connect import SESSION, connect, connection_info
from changefeed.sources.postgres.garbage import readable
from changefeed.sources.postgres.lsn import format_lsn, parse_lsn, position_of

#: What the kernel may hold for us. On a small buffer the walsender stops and starts with every
#: few messages; 4 MB lets it run ahead while a batch is decoded.
RECEIVE_BUFFER = 4 << 20

#: Seconds between 1970-01-01 and 2000-01-01, where PostgreSQL's clock starts.
EPOCH_SECONDS = 946_684_800

_PROTOCOL = 196_608  # 3.0
_SSL_REQUEST = 80_877_103
#: Answers to commands are short; a timeline's history is the longest. The stream is not read so.
_LONGEST_ANSWER = 64 << 20
_CANCELLED = "the connection was closed on our side"

Row = tuple[str | None, ...]
T = TypeVar("T")


# ------------------------------------------------------------------------- server errors

#: SQLSTATE (whole, then the first three, then two characters) -> code.
_STATES: Mapping[str, str] = {
    "28": "CF2002",
    "3D000": "CF2002",
    "42501": "CF2004",
    "53": "CF2001",
    "57P": "CF2101",
    "55006": "CF2101",  # the slot is still held by a connection that is just ending
    "58P01": "CF2102",  # the log we need was removed
    "0A000": "CF2003",
    "42": "CF2003",
    "22023": "CF2003",
    "22021": "CF4001",  # a database of encoding SQL_ASCII holds bytes that are not UTF-8
    "22P05": "CF4001",
}


def server_error(fields: Mapping[str, str], doing: str) -> ChangefeedError:
    """A server's error message in our words; its detail may hold row values and stays out."""
    state = fields.get("C", "")
    message = fields.get("M", "no reason given")
    code = _STATES.get(state) or _STATES.get(state[:3]) or _STATES.get(state[:2]) or "CF2101"
    if "replication slot" in message and (
        state == "42704" or "can no longer" in message or "lost" in message or state == "55000"
    ):
        code = "CF2102"
    if state == "42704" and message.startswith("publication "):
        code = "CF2102"  # what was written without it can never be decoded
    return ChangefeedError(code, f"cannot {doing}: {message}", detail=f"SQLSTATE {state}")


def error_fields(body: bytes | memoryview) -> dict[str, str]:
    """The fields of an ErrorResponse or NoticeResponse by their letters."""
    parts = bytes(body).split(b"\0")
    return {
        part[:1].decode(errors="replace"): part[1:].decode(errors="replace")
        for part in parts
        if part
    }


# --------------------------------------------------------------------------- parameters


def parameters_of(uri: str) -> dict[str, str]:
    """All connection parameters: of the URI, else of the environment, else libpq's defaults.

    Raises:
        ChangefeedError: CF1201/CF1202; the message never repeats the URI.
    """
    found = {
        option.keyword.decode(): option.val.decode()
        for option in pq.Conninfo.get_defaults()
        if option.val is not None
    }
    for option in pq.Conninfo.parse(connection_info(uri).encode()):
        if option.val is not None:
            found[option.keyword.decode()] = option.val.decode()
    found.setdefault("user", _system_user())
    found.setdefault("dbname", found["user"])
    return found


def split_binary(uri: str) -> tuple[str, bool]:
    """Take our own parameter ``binary`` out of a URI: the rest is libpq's.

    Raises:
        ChangefeedError: CF1207 its value is neither true nor false.
    """
    head, mark, query = uri.partition("?")
    ours: list[str] = []
    theirs: list[str] = []
    for part in query.split("&") if mark else ():
        (ours if part.partition("=")[0] == "binary" else theirs).append(part)
    values = {
        "true": True,
        "on": True,
        "1": True,
        "": True,
        "false": False,
        "off": False,
        "0": False,
    }
    chosen = False
    for part in ours:
        word = part.partition("=")[2].lower()
        if word not in values:
            raise ChangefeedError("CF1207", "parameter binary of a source is true or false")
        chosen = values[word]
    return head + ("?" + "&".join(theirs) if theirs else ""), chosen


def _system_user() -> str:
    return getpass.getuser()


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One address to try. ``host`` names it (certificates, .pgpass), ``address`` is dialled."""

    host: str
    address: str
    port: int

    @property
    def local(self) -> bool:
        """A unix socket's folder instead of a host."""
        return self.address.startswith(("/", "@"))

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def endpoints(parameters: Mapping[str, str]) -> list[Endpoint]:
    """The hosts of the URI in order; without any, the local socket or else localhost.

    Raises:
        ChangefeedError: CF1207 a port is not a number.
    """
    hosts = parameters.get("host", "").split(",")
    addresses = parameters.get("hostaddr", "").split(",")
    ports = (parameters.get("port") or "5432").split(",")
    found = []
    for i in range(max(len(hosts), len(addresses))):
        host = hosts[i] if i < len(hosts) else ""
        address = addresses[i] if i < len(addresses) else ""
        port = ports[i] if i < len(ports) else ports[-1]
        host = host or address or _default_host()
        if port and not port.isdecimal():
            raise ChangefeedError("CF1207", "the port of a PostgreSQL source is not a number")
        found.append(Endpoint(host, address or host, int(port or 5432)))
    return found


def _default_host() -> str:
    for folder in ("/var/run/postgresql", "/tmp"):
        if list(Path(folder).glob(".s.PGSQL.*")):
            return folder
    return "localhost"


def _password(parameters: Mapping[str, str], endpoint: Endpoint) -> str | None:
    if "password" in parameters:
        return parameters["password"]
    path = Path(parameters.get("passfile") or "~/.pgpass").expanduser()
    try:
        if path.stat().st_mode & 0o077:
            return None  # as libpq: a file that others can read is not looked at
        lines = path.read_text().splitlines()
    except OSError:
        return None
    host = "localhost" if endpoint.local else endpoint.host
    wanted = (host, str(endpoint.port), parameters["dbname"], parameters["user"])
    for line in lines:
        parts = [re.sub(r"\\(.)", r"\1", p) for p in re.split(r"(?<!\\):", line.strip())]
        if len(parts) == 5 and all(p in ("*", w) for p, w in zip(parts[:4], wanted, strict=True)):
            return parts[4]
    return None


# --------------------------------------------------------------------------- the socket


class Transport:
    """A non-blocking socket, with or without TLS, that another thread may wake or write to.

    One lock serialises reads and writes: an OpenSSL connection allows only one at a time.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._use = threading.Lock()
        self._waiting = threading.Lock()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._closing = False
        self._closed = False
        sock.setblocking(False)
        self._poll = select.poll()
        self._poll.register(sock.fileno(), select.POLLIN)
        self._poll.register(self._wake_read, select.POLLIN)

    @property
    def tls(self) -> ssl.SSLSocket | None:
        """The TLS socket, None on a plain one."""
        return self._sock if isinstance(self._sock, ssl.SSLSocket) else None

    def receive_into(self, view: memoryview) -> int:
        """Read what is there; 0 when there is nothing.

        Raises:
            OSError: the other side or we closed, or the connection broke.
        """
        with self._use:
            self._check_open()
            try:
                count = self._sock.recv_into(view)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return 0
        if count == 0:
            raise ConnectionResetError("the server closed the connection")
        return count

    def send(self, data: bytes, timeout: float = 30.0) -> None:
        """Write all of ``data``; a peer that takes nothing for ``timeout`` seconds is gone."""
        view = memoryview(data)
        deadline = time.monotonic() + timeout
        with self._use:
            if self._closed:
                raise ConnectionAbortedError("closed")
            while view:
                try:
                    view = view[self._sock.send(view) :]
                except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
                    left = deadline - time.monotonic()
                    if left <= 0:
                        raise TimeoutError("the server takes no data") from None
                    select.select([], [self._sock], [], min(left, 1.0))

    def wait(self, seconds: float | None) -> bool:
        """Wait for something to read; False after ``seconds`` or when woken."""
        with self._waiting:
            self._check_open()
            tls_socket = self.tls
            if tls_socket is not None and tls_socket.pending():
                return True
            ready = self._poll.poll(None if seconds is None else max(0.0, seconds) * 1000)
            self._check_open()
            if any(descriptor == self._wake_read for descriptor, _ in ready):
                os.read(self._wake_read, 4096)
                return False
            return bool(ready)

    def wake(self) -> None:
        """Make a thread in :meth:`wait` return. Safe from any thread and after close."""
        with self._use:
            if not self._closed:
                try:
                    os.write(self._wake_write, b"!")
                except BlockingIOError:
                    return  # the pipe is full of wake-ups already

    def close(self, farewell: bytes = b"") -> None:
        """Close the socket after a last word. Idempotent; a thread in :meth:`wait` leaves first:
        a descriptor closed under poll may by then be somebody else's."""
        self._closing = True
        self.wake()
        with self._waiting:
            if self._closed:
                return
            try:
                if farewell:
                    self.send(farewell, 1.0)
            except OSError:
                farewell = b""  # the other side is gone already
            with self._use:
                self._closed = True
                self._sock.close()
                os.close(self._wake_read)
                os.close(self._wake_write)

    def _check_open(self) -> None:
        if self._closing:
            raise ConnectionAbortedError("closed")


def _dial(endpoint: Endpoint, parameters: Mapping[str, str], timeout: float) -> socket.socket:
    if endpoint.local:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(timeout)
        try:
            sock.connect(f"{endpoint.address}/.s.PGSQL.{endpoint.port}")
        except BaseException:
            sock.close()
            raise
        return sock
    sock = socket.create_connection((endpoint.address, endpoint.port), timeout)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if parameters.get("keepalives", "1") != "0":
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, option in _KEEPALIVES.items():
            if name in parameters and hasattr(socket, option):
                value = int(parameters[name])
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    return sock


_KEEPALIVES = {
    "keepalives_idle": "TCP_KEEPIDLE",
    "keepalives_interval": "TCP_KEEPINTVL",
    "keepalives_count": "TCP_KEEPCNT",
    "tcp_user_timeout": "TCP_USER_TIMEOUT",
}


def _secure(
    sock: socket.socket, endpoint: Endpoint, parameters: Mapping[str, str]
) -> socket.socket:
    """Turn the connection into a TLS one, or give it back as it is where that is allowed."""
    mode = parameters.get("sslmode", "prefer")
    made = tls.context(parameters)
    if parameters.get("sslnegotiation") != "direct":
        sock.sendall(struct.pack(">ii", 8, _SSL_REQUEST))
        answer = sock.recv(1)
        if answer != b"S":
            if mode in ("allow", "prefer"):
                return sock
            raise ChangefeedError(
                "CF2002", f"the server at {endpoint} does not support TLS (sslmode={mode})"
            )
    named = parameters.get("sslsni", "1") != "0" or made.check_hostname
    try:
        return made.wrap_socket(sock, server_hostname=endpoint.host if named else None)
    except ssl.SSLCertVerificationError as error:
        raise ChangefeedError(
            "CF2002",
            f"the certificate of the server at {endpoint} was not accepted: {error.verify_message}",
            hint="check sslrootcert, and that the host in the URI is the one in the certificate.",
        ) from None


# ----------------------------------------------------------------------- the connection


@dataclass(frozen=True, slots=True)
class SystemIdentity:
    """Which server and database this is, and how far its log is flushed."""

    system_id: str
    timeline: int
    position: Position
    database: str


@dataclass(frozen=True, slots=True)
class CreatedSlot:
    """A new slot: the stream starts at ``consistent_point``, which ``snapshot`` shows."""

    name: str
    consistent_point: Position
    snapshot: str | None


class ReplicationConnection:
    """A walsender session of one database.

    Closing from another thread ends whatever waits here with CF2101.

    Raises:
        ChangefeedError: CF1201, CF1202, CF1207, CF2001, CF2002, CF2004.
    """

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._parameters = parameters_of(uri)
        self._settings: dict[str, str] = {}
        self._inbox = bytearray()
        self._closing = False
        self._local = False
        self._transport = self._connect()
        self._apply_newer_settings()

    # -------------------------------------------------------------------------- facts

    @property
    def server_version(self) -> int:
        """As libpq counts: 160015 for 16.15."""
        match = re.match(r"(\d+)(?:\.(\d+))?", self._settings.get("server_version", ""))
        return int(match[1]) * 10_000 + int(match[2] or 0) if match else 0

    @property
    def settings(self) -> Mapping[str, str]:
        """What the server reported about itself (``server_encoding``, ...)."""
        return self._settings

    @property
    def may_nap(self) -> bool:
        """Waiting for more bytes saves work. Not on a unix socket: there the server sends
        each message by itself into a small buffer, and a nap only starves it."""
        return not self._local

    # ----------------------------------------------------------------------- commands

    def query(self, sql: str) -> list[Row]:
        """Run one simple query; the rows as text.

        Raises:
            ChangefeedError: by the server's SQLSTATE.
        """
        self._send(b"Q", sql.encode() + b"\0")
        rows: list[Row] = []
        failed: ChangefeedError | None = None
        while True:
            kind, body = self._message(None)
            if kind == b"D":
                rows.append(_data_row(body))
            elif kind == b"E":
                failed = server_error(error_fields(body), "run a command on the source")
            elif kind == b"Z":
                if failed:
                    raise failed
                return rows

    def identify_system(self) -> SystemIdentity:
        """IDENTIFY_SYSTEM."""
        with readable("an answer to IDENTIFY_SYSTEM"):
            [(system, timeline, position, database)] = self.query("IDENTIFY_SYSTEM")
            return SystemIdentity(
                system or "",
                int(timeline or 0),
                position_of(parse_lsn(position or "0/0")),
                database or "",
            )

    def timeline_history(self, timeline: int) -> str | None:
        """TIMELINE_HISTORY: where a timeline and its ancestors left the one before.

        None where the server has no such file (the first timeline has none).

        Raises:
            ChangefeedError: CF2101 the connection broke, ...
        """
        if timeline < 2:
            return None
        with readable("an answer to TIMELINE_HISTORY"):
            [(_, text)] = self.query(f"TIMELINE_HISTORY {timeline}")
            return text

    def create_slot(
        self,
        name: str,
        *,
        temporary: bool = False,
        snapshot: str = "nothing",
        plugin: str = "pgoutput",
    ) -> CreatedSlot:
        """CREATE_REPLICATION_SLOT ... LOGICAL.

        Args:
            snapshot: ``export`` (the name is good until the next command here), ``use`` or
                ``nothing``.

        Raises:
            ChangefeedError: CF2003 (too many slots, wal_level), CF2004, ...
        """
        kept = "TEMPORARY " if temporary else ""
        if self.server_version >= 150_000:
            option = f"(SNAPSHOT '{snapshot}')"
        else:
            option = {
                "export": "EXPORT_SNAPSHOT",
                "use": "USE_SNAPSHOT",
                "nothing": "NOEXPORT_SNAPSHOT",
            }[snapshot]
        command = (
            f"CREATE_REPLICATION_SLOT {identifier(name)} {kept}LOGICAL {identifier(plugin)}"
            f" {option}"
        )
        with readable("an answer to CREATE_REPLICATION_SLOT"):
            [row] = self.query(command)
            return CreatedSlot(
                row[0] or name, position_of(parse_lsn(row[1] or "0/0")), row[2] or None
            )

    def drop_slot(self, name: str, *, wait: bool = True) -> None:
        """DROP_REPLICATION_SLOT; ``wait`` for whoever holds it to leave."""
        self.query(f"DROP_REPLICATION_SLOT {identifier(name)}{' WAIT' if wait else ''}")

    def start_replication(self, slot: str, lsn: int, options: Mapping[str, str]) -> None:
        """START_REPLICATION ... LOGICAL: from here on only :meth:`receive_into` reads.

        Raises:
            ChangefeedError: CF2102 no such slot, or the server threw away what it needs.
        """
        shown = ", ".join(f"{identifier(k)} {literal(v)}" for k, v in options.items())
        command = f"START_REPLICATION SLOT {identifier(slot)} LOGICAL {format_lsn(lsn)} ({shown})"
        self._send(b"Q", command.encode() + b"\0")
        failed: ChangefeedError | None = None
        while True:
            kind, body = self._message(None)
            if kind == b"W":
                return
            if kind == b"E":
                failed = server_error(error_fields(body), f"follow replication slot {slot!r}")
            elif kind == b"Z" and failed:
                raise failed

    # ----------------------------------------------------------------------- streaming

    def receive_into(self, view: memoryview) -> int:
        """Raw protocol bytes that are there now; 0 for none.

        Raises:
            ChangefeedError: CF2101 the connection broke or was closed.
        """
        if self._inbox:
            count = min(len(view), len(self._inbox))
            view[:count] = self._inbox[:count]
            del self._inbox[:count]
            return count
        return self._guarded(lambda: self._transport.receive_into(view))

    def wait(self, seconds: float | None) -> bool:
        """Wait for bytes; False when none came in ``seconds`` or :meth:`wake` was called."""
        if self._inbox:
            return True
        return self._guarded(lambda: self._transport.wait(seconds))

    def wake(self) -> None:
        """Make :meth:`wait` return. Safe from any thread."""
        self._transport.wake()

    def send_status(self, lsn: int, *, reply: bool = False) -> None:
        """Standby status update: everything up to ``lsn`` is durable with us.

        ``reply`` asks for a keepalive at once. Safe from any thread.
        """
        now = time.time_ns() // 1000 - EPOCH_SECONDS * 1_000_000
        body = struct.pack(">cQQQqB", b"r", lsn, lsn, lsn, now, reply)
        self._send(b"d", body)

    def close(self) -> None:
        """End the session and any stream in it. Idempotent, safe from any thread."""
        self._closing = True
        # CopyDone and Terminate: the server lets the slot go at once.
        self._transport.close(struct.pack(">ci", b"c", 4) + struct.pack(">ci", b"X", 4))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # ------------------------------------------------------------------------- startup

    def _connect(self) -> Transport:
        """The first endpoint that lets us in."""
        failures: list[ChangefeedError] = []
        mode = self._parameters.get("sslmode", "prefer")
        if mode not in tls.MODES:
            raise ChangefeedError("CF1207", f"unknown sslmode {mode!r}")
        for endpoint in self._endpoints():
            tries = (False,) if endpoint.local else tls.attempts(mode)
            for secure in tries:
                try:
                    return self._open(endpoint, secure)
                except ChangefeedError as error:
                    failures.append(error)
        raise failures[0]

    def _endpoints(self) -> list[Endpoint]:
        """All that may be tried; where the kind of server matters, the one that libpq picks."""
        every = endpoints(self._parameters)
        wanted = self._parameters.get("target_session_attrs", "any")
        if len(every) == 1 or wanted == "any":
            return every
        with connect(self._uri) as session:
            info = session.info
            return [Endpoint(info.host, info.hostaddr or info.host, info.port)]

    def _open(self, endpoint: Endpoint, secure: bool) -> Transport:
        timeout = float(self._parameters.get("connect_timeout") or 10) or 3600.0
        sock: socket.socket | None = None
        try:
            sock = _dial(endpoint, self._parameters, timeout)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
            if secure:
                sock = _secure(sock, endpoint, self._parameters)
        except (OSError, ChangefeedError) as error:
            if sock is not None:
                sock.close()
            if isinstance(error, ChangefeedError):
                raise
            reason = error.strerror or str(error) or type(error).__name__
            raise ChangefeedError(
                "CF2001", f"cannot reach the server at {endpoint}: {reason}"
            ) from None
        self._transport = Transport(sock)
        self._local = endpoint.local
        self._settings.clear()
        self._inbox.clear()
        try:
            self._log_in(endpoint, time.monotonic() + timeout)
        except BaseException:
            self._transport.close()
            raise
        return self._transport

    def _log_in(self, endpoint: Endpoint, deadline: float) -> None:
        self._transport.send(_startup(self._parameters))
        login = Authenticator(
            self._parameters["user"],
            _password(self._parameters, endpoint),
            tls=self._transport.tls,
            channel_binding=self._parameters.get("channel_binding", "prefer"),
            require_auth=self._parameters.get("require_auth", ""),
        )
        while True:
            kind, body = self._message(deadline)
            if kind == b"R":
                _, answer = login.answer(body)
                if answer:
                    self._send(b"p", answer)
            elif kind == b"E":
                error = server_error(error_fields(body), f"log in at {endpoint}")
                if error.code is Code.STREAM_BROKE:
                    error = ChangefeedError("CF2001", error.message, detail=error.detail)
                raise error
            elif kind == b"Z":
                return

    def _apply_newer_settings(self) -> None:
        """Time limits that would end us, by the version that brought them."""
        for since, name in ((140_000, "idle_session_timeout"), (170_000, "transaction_timeout")):
            if self.server_version >= since:
                try:
                    self.query(f"SET {name} = 0")
                except BaseException:
                    self.close()
                    raise

    # ------------------------------------------------------------------------ messages

    def _send(self, kind: bytes, body: bytes) -> None:
        message = kind + struct.pack(">i", len(body) + 4) + body
        self._guarded(lambda: self._transport.send(message))

    def _message(self, deadline: float | None) -> tuple[bytes, bytes]:
        """The next message; ParameterStatus and notices are taken care of here."""
        while True:
            while len(self._inbox) < 5 or len(self._inbox) < _needed(self._inbox):
                self._fill(deadline)
                if len(self._inbox) >= 5 and not 5 <= _needed(self._inbox) <= _LONGEST_ANSWER:
                    raise _garbage()
            size = _needed(self._inbox)
            kind, body = bytes(self._inbox[:1]), bytes(self._inbox[5:size])
            del self._inbox[:size]
            if kind == b"S":
                name, zero, value = body.partition(b"\0")
                if not zero:
                    raise _garbage()
                shown = value.rstrip(b"\0").decode(errors="replace")
                self._settings[name.decode(errors="replace")] = shown
            elif kind not in (b"N", b"A", b"K"):
                return kind, body

    def _fill(self, deadline: float | None) -> None:
        chunk = memoryview(bytearray(65_536))
        while True:
            count = self._guarded(lambda: self._transport.receive_into(chunk))
            if count:
                self._inbox += chunk[:count]
                return
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise ChangefeedError("CF2001", "the server did not answer in time")
            self._guarded(partial(self._transport.wait, left))

    def _guarded(self, action: Callable[[], T]) -> T:
        """Errors of the socket in our words."""
        try:
            return action()
        except (OSError, ValueError) as error:
            if self._closing:
                raise ChangefeedError("CF2101", _CANCELLED) from None
            reason = str(error) or type(error).__name__
            raise ChangefeedError(
                "CF2101", f"the connection to the source broke: {reason}"
            ) from None


# ---------------------------------------------------------------------- protocol pieces


def _startup(parameters: Mapping[str, str]) -> bytes:
    """The startup packet. Our settings are parameters of it: they win over ``options``."""
    fields = {
        "user": parameters["user"],
        "database": parameters["dbname"],
        "replication": "database",
        **{k: parameters[k] for k in ("application_name", "options") if parameters.get(k)},
        **SESSION,
        "statement_timeout": "0",
        "idle_in_transaction_session_timeout": "0",
    }
    body = b"".join(f"{k}\0{v}\0".encode() for k, v in fields.items()) + b"\0"
    return struct.pack(">ii", len(body) + 8, _PROTOCOL) + body


def _garbage() -> ChangefeedError:
    return ChangefeedError(
        "CF2001",
        "the server does not speak the PostgreSQL protocol",
        hint="check host and port: another program may listen there.",
    )


def _needed(inbox: bytearray) -> int:
    """Length of the first message with its kind byte."""
    return int.from_bytes(inbox[1:5], "big") + 1


def _data_row(body: bytes) -> Row:
    try:
        return _values(body)
    except (struct.error, ValueError):
        raise _garbage() from None


def _values(body: bytes) -> Row:
    (count,) = struct.unpack_from(">h", body)
    place = 2
    values: list[str | None] = []
    for _ in range(count):
        (size,) = struct.unpack_from(">i", body, place)
        place += 4
        values.append(None if size < 0 else body[place : place + size].decode())
        place += max(size, 0)
    return tuple(values)


def identifier(name: str) -> str:
    """A quoted identifier."""
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


def literal(value: str) -> str:
    """A quoted string of the replication grammar."""
    doubled = value.replace("'", "''")
    return f"'{doubled}'"
