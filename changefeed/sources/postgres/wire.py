"""A walsender session: replication commands, and the stream that follows them.

libpq logs in, as for every other session (:mod:`.connect`), and runs the commands. The stream is
read from the session's socket, or from libpq where the connection is encrypted
(:mod:`.transport`).
"""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self, TypeVar

import psycopg
from psycopg import pq

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.events import Position
from changefeed.core.sql import literal, quoted
from changefeed.sources.postgres.connect import (
    apply_settings,
    connect_replication,
    is_plain,
    source_errors,
)
from changefeed.sources.postgres.garbage import readable
from changefeed.sources.postgres.lsn import format_lsn, parse_lsn, position_of
from changefeed.sources.postgres.transport import RECEIVE_BUFFER, EncryptedStream, Transport

#: Seconds between 1970-01-01 and 2000-01-01, where PostgreSQL's clock starts.
EPOCH_SECONDS = 946_684_800

#: The answer to START_REPLICATION is short; the stream is not read so.
_LONGEST_ANSWER = 1 << 20
_CANCELLED = "the connection was closed on our side"
#: Statements of a walsender session wait for locks as long as it takes: creating a slot waits for
#: every transaction that is open.
_WAITING = {"lock_timeout": "0"}

Row = tuple[str | None, ...]
T = TypeVar("T")


# ------------------------------------------------------------------------- server errors

#: SQLSTATE (whole, then the first three, then two characters) -> code.
_STATES: Mapping[str, str] = {
    "28": Code.SOURCE_REFUSED_LOGIN,
    "3D000": Code.SOURCE_REFUSED_LOGIN,
    "42501": Code.SOURCE_PERMISSION_MISSING,
    "53": Code.SOURCE_UNREACHABLE,
    "57P": Code.STREAM_BROKE,
    "55000": Code.SOURCE_LOG_GONE,  # the slot was invalidated
    "55006": Code.STREAM_BROKE,  # the slot is still held by a connection that is just ending
    # The slot is gone; or the publication is, and what was written without it can never be decoded.
    "42704": Code.SOURCE_LOG_GONE,
    "58P01": Code.SOURCE_LOG_GONE,  # the log we need was removed
    "0A000": Code.SOURCE_NOT_SET_UP,
    "42": Code.SOURCE_NOT_SET_UP,
    "22023": Code.SOURCE_NOT_SET_UP,
    # A database of encoding SQL_ASCII holds bytes that are not UTF-8.
    "22021": Code.VALUE_NOT_ENCODABLE,
    "22P05": Code.VALUE_NOT_ENCODABLE,
}


def server_error(fields: Mapping[str, str], doing: str) -> ChangefeedError:
    """A server's error message in our words; its detail may hold row values and stays out."""
    state = fields.get("C", "")
    message = fields.get("M", "no reason given")
    code = (
        _STATES.get(state) or _STATES.get(state[:3]) or _STATES.get(state[:2]) or Code.STREAM_BROKE
    )
    if state == "55000" and "wal_level" in message:  # a name, the same in every language
        code = Code.STREAM_BROKE
    return ChangefeedError(code, f"cannot {doing}: {message}", detail=f"SQLSTATE {state}")


def error_fields(body: bytes | memoryview) -> dict[str, str]:
    """The fields of an ErrorResponse or NoticeResponse by their letters."""
    parts = bytes(body).split(b"\0")
    return {
        part[:1].decode(errors="replace"): part[1:].decode(errors="replace")
        for part in parts
        if part
    }


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

    Attributes:
        plain: nothing encrypts the connection.
        server_version: as libpq counts: 160015 for 16.15.

    Closing from another thread ends whatever waits here with CF2101.

    Raises:
        ChangefeedError: CF1201, CF1202, CF1207, CF2001, CF2002, CF2004.
    """

    def __init__(self, uri: str) -> None:
        self._session = connect_replication(uri)
        try:
            with source_errors("open a replication connection"):
                apply_settings(self._session, **_WAITING)
                self.plain = is_plain(self._session)
                # Read now: psycopg answers nothing about a session that was closed meanwhile.
                self.server_version = self._session.pgconn.server_version
            sock = socket.socket(fileno=os.dup(self._session.pgconn.socket))
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
            self._transport = Transport(sock)
        except BaseException:
            self._session.close()
            raise
        self._local = sock.family == socket.AF_UNIX
        self._inbox = bytearray()
        self._closing = False
        self._streaming = False
        self._command = threading.Lock()

    # -------------------------------------------------------------------------- facts

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
        with self._command:
            self._check_open()
            try:
                result = self._session.execute(sql.encode()).pgresult
            except psycopg.Error as error:
                raise self._failed(error) from error
        if result is None or result.status != pq.ExecStatus.TUPLES_OK:
            return []
        columns = range(result.nfields)
        with readable("an answer"):
            return [
                tuple(_text(result.get_value(row, column)) for column in columns)
                for row in range(result.ntuples)
            ]

    def _failed(self, error: psycopg.Error) -> ChangefeedError:
        """A command's error, by its SQLSTATE; without one the connection is lost."""
        if self._closing:
            return ChangefeedError(Code.STREAM_BROKE, _CANCELLED)
        if error.sqlstate is None:
            reason = str(error).strip().partition("\n")[0]
            return ChangefeedError(
                Code.STREAM_BROKE, f"the connection to the source broke: {reason}"
            )
        fields = {"C": error.sqlstate, "M": error.diag.message_primary or "no reason given"}
        return server_error(fields, "run a command on the source")

    def identify_system(self) -> SystemIdentity:
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
        command = f"CREATE_REPLICATION_SLOT {quoted(name)} {kept}LOGICAL {quoted(plugin)} {option}"
        with readable("an answer to CREATE_REPLICATION_SLOT"):
            [row] = self.query(command)
            return CreatedSlot(
                row[0] or name, position_of(parse_lsn(row[1] or "0/0")), row[2] or None
            )

    def drop_slot(self, name: str, *, wait: bool = True) -> None:
        """DROP_REPLICATION_SLOT; ``wait`` until its present reader leaves."""
        self.query(f"DROP_REPLICATION_SLOT {quoted(name)}{' WAIT' if wait else ''}")

    def start_replication(self, slot: str, lsn: int, options: Mapping[str, str]) -> None:
        """START_REPLICATION ... LOGICAL: from here on only :meth:`receive_into` reads.

        Raises:
            ChangefeedError: CF2102 no such slot, or the server threw away what it needs.
        """
        shown = ", ".join(f"{quoted(k)} {literal(v)}" for k, v in options.items())
        command = f"START_REPLICATION SLOT {quoted(slot)} LOGICAL {format_lsn(lsn)} ({shown})"
        with self._command:
            self._check_open()
            begin = self._begin if self.plain else self._begin_encrypted
            fields = begin(command.encode())
            if fields is not None:
                raise server_error(fields, f"follow replication slot {slot!r}")
            self._streaming = True

    def _begin(self, command: bytes) -> dict[str, str] | None:
        """Ask for the stream on the socket, past libpq, which is idle and holds nothing back.

        Returns: the fields of the server's error, None when the stream begins.
        """
        self._send(b"Q", command + b"\0")
        failed: dict[str, str] | None = None
        while True:
            kind, body = self._message()
            if kind == b"W":
                return None
            if kind == b"E":
                failed = error_fields(body)
            elif kind == b"Z" and failed is not None:
                return failed

    def _begin_encrypted(self, command: bytes) -> dict[str, str] | None:
        """Ask for the stream by libpq."""
        connection = self._session.pgconn
        try:
            result = connection.exec_(command)
        except psycopg.Error as error:
            raise self._failed(error) from error
        if result.status == pq.ExecStatus.COPY_BOTH:
            self._transport.read_from(EncryptedStream(connection))
            return None
        state = result.error_field(pq.DiagnosticField.SQLSTATE)
        if state is None:
            raise self._failed(psycopg.OperationalError(result.get_error_message()))
        message = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b""
        return {"C": state.decode(), "M": message.decode(errors="replace")}

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
        if not self._command.acquire(blocking=False):
            # A command waits for the server, which may take its time.
            self._transport.interrupt()
            self._command.acquire()
        try:
            # CopyDone, and what libpq says last: the server lets the slot go at once.
            farewell = struct.pack(">ci", b"c", 4) if self._streaming else b""
            self._transport.close(farewell)
            self._session.close()
        finally:
            self._command.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # ------------------------------------------------------------------------ messages

    def _check_open(self) -> None:
        if self._closing:
            raise ChangefeedError(Code.STREAM_BROKE, _CANCELLED)

    def _send(self, kind: bytes, body: bytes) -> None:
        message = kind + struct.pack(">i", len(body) + 4) + body
        self._guarded(lambda: self._transport.send(message))

    def _message(self) -> tuple[bytes, bytes]:
        while len(self._inbox) < 5 or len(self._inbox) < _needed(self._inbox):
            self._fill()
            if len(self._inbox) >= 5 and not 5 <= _needed(self._inbox) <= _LONGEST_ANSWER:
                raise _garbage()
        size = _needed(self._inbox)
        kind, body = bytes(self._inbox[:1]), bytes(self._inbox[5:size])
        del self._inbox[:size]
        return kind, body

    def _fill(self) -> None:
        chunk = memoryview(bytearray(65_536))
        while not (count := self._guarded(lambda: self._transport.receive_into(chunk))):
            self._guarded(lambda: self._transport.wait(None))
        self._inbox += chunk[:count]

    def _guarded(self, action: Callable[[], T]) -> T:
        """Errors of the socket in our words."""
        try:
            return action()
        except (OSError, ValueError) as error:
            if self._closing:
                raise ChangefeedError(Code.STREAM_BROKE, _CANCELLED) from None
            reason = str(error) or type(error).__name__
            raise ChangefeedError(
                Code.STREAM_BROKE, f"the connection to the source broke: {reason}"
            ) from None


# ---------------------------------------------------------------------- protocol pieces


def _garbage() -> ChangefeedError:
    return ChangefeedError(
        Code.SOURCE_UNREACHABLE,
        "the server does not speak the PostgreSQL protocol",
        hint="check host and port: another program may listen there.",
    )


def _needed(inbox: bytearray) -> int:
    return int.from_bytes(inbox[1:5], "big") + 1


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()
