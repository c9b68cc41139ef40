"""The binlog connection: packets of a server that sends its log.

PyMySQL makes the connection (handshake, TLS, every way to log in). After the command that asks
for the log the server sends packets without end, and they are read here: PyMySQL would make a
Python object of each. Whatever a packet claims of its length, memory grows only with bytes that
have arrived, and only up to :data:`MAX_EVENT`.
"""

from __future__ import annotations

import select
import socket
import ssl
import struct
from collections.abc import Callable
from typing import Any

from changefeed.core.errors import ChangefeedError, Code
from changefeed.sources.mysql.gtid import GtidSet

_REGISTER, _DUMP, _DUMP_GTID = 0x15, 0x12, 0x1E
#: A packet of this length is continued by the next one.
_FULL = 0xFFFFFF
#: No server sends a larger event: the limit of ``max_allowed_packet``.
MAX_EVENT = 1 << 30
_BLOCK = 1 << 20
_OK, _ERROR, _EOF = 0x00, 0xFF, 0xFE

#: An event lies in ``data[start:end]``, header first.
EventBytes = tuple[bytes | bytearray, int, int]
#: What a packet holds lies in ``data[start:end]``: a status byte, and then an event.
Packet = tuple[bytes | bytearray, int, int]


class BinlogConnection:
    """A logged-in connection that is used for nothing but the log. Close it when done."""

    def __init__(self, connection: Any) -> None:
        """``connection``: of PyMySQL, without an answer waiting to be read."""
        self._connection = connection
        # PyMySQL gives its socket to nobody, and has no reader of its own for the log.
        self._socket: socket.socket = connection._sock
        self._closed = False

    def register(self, server_id: int) -> None:
        """Appear in SHOW REPLICAS.

        Raises:
            ChangefeedError: CF2004 the user may not read the log.
        """
        names = b"\x00\x00\x00"  # host, user and password: none
        self._send(_REGISTER, struct.pack("<I", server_id) + names + struct.pack("<HII", 0, 0, 0))
        try:
            self._connection._read_ok_packet()
        except OSError as error:
            raise _broken(error) from error
        except Exception as error:  # PyMySQL's errors, without importing it here
            number, text = (*error.args, "")[:2] if error.args else (0, "")
            raise refusal(number if isinstance(number, int) else 0, str(text)) from None

    def dump(self, server_id: int, file: str, offset: int) -> None:
        """Ask for the log from an offset in a file on; in a MariaDB session that has set
        ``@slave_connect_state`` the offset is ignored."""
        if offset > 0xFFFFFFFF:
            raise ChangefeedError(
                Code.SOURCE_NOT_SET_UP, "a binlog file above 4 GB cannot be read by position"
            )
        self._send(_DUMP, struct.pack("<IHI", offset, 0, server_id) + file.encode())
        self._socket.setblocking(False)

    def dump_gtid(self, server_id: int, known: GtidSet) -> None:
        """Ask for every transaction that is not in ``known``."""
        encoded = known.encoded()
        # Flag 4: the set counts, not the offset.
        head = struct.pack("<HIIQI", 4, server_id, 0, 4, len(encoded))
        self._send(_DUMP_GTID, head + encoded)
        self._socket.setblocking(False)

    def _send(self, command: int, payload: bytes) -> None:
        try:
            self._connection._execute_command(command, payload)
        except Exception as error:
            raise _broken(error) from error

    def receive_into(self, view: memoryview) -> int:
        """What is there, without waiting; 0 when nothing is.

        Raises:
            ChangefeedError: CF2101 the server ended the connection.
        """
        try:
            count = self._socket.recv_into(view)
        except (BlockingIOError, ssl.SSLWantReadError):
            return 0
        except (OSError, ValueError) as error:
            raise _broken(error) from error
        if not count:
            raise ChangefeedError(
                Code.STREAM_BROKE, "the MySQL server closed the binlog connection"
            )
        return count

    def wait(self, seconds: float) -> None:
        """Until something arrives, at most so long."""
        if isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
            return
        try:
            select.select([self._socket], [], [], seconds)
        except (OSError, ValueError) as error:
            raise _broken(error) from error

    def close(self) -> None:
        """End the connection; a reader in another thread meets CF2101."""
        if not self._closed:
            self._closed = True
            try:
                self._socket.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # the server was faster
            self._connection._force_close()


def _broken(error: Exception) -> ChangefeedError:
    words = getattr(error, "strerror", None) or type(error).__name__
    return ChangefeedError(Code.STREAM_BROKE, "the binlog connection broke", detail=str(words))


class Inbox:
    """Bytes as they come -> events."""

    def __init__(self, size: int = _BLOCK) -> None:
        self._buffer = bytearray(size)
        self._start = self._end = 0
        self._sequence: int | None = None
        self._pieces: list[bytes] = []
        self._gathered = 0

    def fill(self, receive: Callable[[memoryview], int]) -> int:
        """Take what ``receive`` has, into the room that is left; how much it was."""
        self._make_room()
        with memoryview(self._buffer) as view:
            count = receive(view[self._end :])
        self._end += count
        return count

    def _make_room(self) -> None:
        """Move what is left to the front; grow only when one packet fills the buffer."""
        left = self._end - self._start
        if self._start:
            self._buffer[:left] = self._buffer[self._start : self._end]
            self._start, self._end = 0, left
        if left == len(self._buffer):
            self._buffer.extend(bytes(min(left, _FULL + 4 + _BLOCK - left)))

    def packets(self) -> list[Packet]:
        """Complete packets, in their order; each is good until the next :meth:`fill`. Empty where
        there are none: call it until then.

        Raises:
            ChangefeedError: CF2105 for packets out of order, after those before were taken.
        """
        buffer, end = self._buffer, self._end
        offset, sequence = self._start, self._sequence
        found: list[Packet] = []
        while end - offset >= 4:
            length = buffer[offset] | buffer[offset + 1] << 8 | buffer[offset + 2] << 16
            upto = offset + 4 + length
            if upto > end:
                break
            number = buffer[offset + 3]
            if sequence is not None and number != (sequence + 1) & 0xFF:
                if found:
                    break
                raise ChangefeedError(
                    Code.UNEXPECTED_MESSAGE, "packets of the binlog are out of order"
                )
            if self._pieces or length == _FULL:
                if found:
                    break
                whole = self._join(offset + 4, upto, complete=length < _FULL)
                if whole is not None:
                    found.append((whole, 0, len(whole)))
            else:
                found.append((buffer, offset + 4, upto))
            sequence, offset = number, upto
        self._start, self._sequence = offset, sequence
        return found

    def _join(self, start: int, end: int, *, complete: bool) -> bytes | None:
        """Gather the parts of a packet of 16 MB and more; the whole with its last one."""
        self._pieces.append(bytes(self._buffer[start:end]))
        self._gathered += end - start
        if self._gathered > MAX_EVENT:
            raise ChangefeedError(Code.UNEXPECTED_MESSAGE, "a binlog event above 1 GB")
        if not complete:
            return None
        whole = b"".join(self._pieces)
        self._pieces, self._gathered = [], 0
        return whole


def event_of(packet: Packet) -> EventBytes:
    """The event of a packet.

    Raises:
        ChangefeedError: what the server says (:func:`refusal`), or CF2105 for no event.
    """
    data, start, end = packet
    kind = data[start] if end > start else -1
    if kind == _OK:
        return data, start + 1, end
    if kind == _ERROR and end - start >= 3:
        number = data[start + 1] | data[start + 2] << 8
        text = bytes(data[start + 3 : end])
        if text.startswith(b"#"):
            text = text[6:]
        raise refusal(number, text.decode("utf-8", "replace")[:1000])
    if kind == _EOF and end - start < 9:
        raise ChangefeedError(Code.STREAM_BROKE, "the MySQL server ended the binlog")
    raise ChangefeedError(Code.UNEXPECTED_MESSAGE, "a packet of the binlog that is no event")


#: What error 1236 says, in lower case, and what it means for us. The number stands for any failure
#: to send the binlog; only the text says which one, and servers do not translate.
_FATAL = (
    (
        ("purged", "could not find first log file", "could not find gtid state"),
        Code.SOURCE_LOG_GONE,
        "the MySQL server has purged the binlog that was not read yet",
    ),
    (
        (
            "more gtids than", "not in the master's binlog", "diverged",
            "position > file size", "impossible position", "not in the source's binlog",
        ),
        Code.SOURCE_LOG_REPLACED,
        "the binlog of the MySQL server is not the one that was read",
    ),
)  # fmt: skip


def refusal(number: int, text: str) -> ChangefeedError:
    """What an error of the server on the binlog connection means."""
    lower = text.lower()
    if "same server_uuid/server_id" in lower or "same server_id" in lower:
        return ChangefeedError(
            Code.SOURCE_READ_BY_RIVAL,
            "another reader of the binlog came with the server id of this one, which is made from "
            "the state: the server ended this one",
            detail=text,
            hint="two nodes run copies of one state: it was copied, or restored from a backup, "
            "while its first node still runs. Stop one of them, and RESUME the feeds of the other, "
            "which goes on where it was. To run both, create the feeds in a new state. If it is "
            "another program, choose another id: server_id= in the URI.",
        )
    if number == 1236:
        for phrases, code, message in _FATAL:
            if any(phrase in lower for phrase in phrases):
                return ChangefeedError(code, message, detail=text)
    if number in (1045, 1227):
        return ChangefeedError(
            Code.SOURCE_PERMISSION_MISSING,
            "the user may not read the binlog",
            detail=text,
        )
    return ChangefeedError(
        Code.STREAM_BROKE, "the MySQL server ended the binlog", detail=f"error {number}: {text}"
    )
