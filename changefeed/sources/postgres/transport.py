"""The bytes of a replication stream, from a connection that libpq made.

Where nothing encrypts the connection, the kernel writes them straight into the buffer that they
are decoded in: libpq would hand out one message per call and copy each twice. TLS and GSSAPI are
libpq's own affair, so there the messages are taken from libpq and get their five bytes back: what
comes out is the same (docs/decisions/postgresql-client.md has the cost of both).
"""

from __future__ import annotations

import os
import select
import socket
import struct
import threading
import time
from typing import Protocol

import psycopg
from psycopg import pq

#: What the kernel may hold for us. On a small buffer the walsender stops and starts with every
#: few messages; 4 MB lets it run ahead while a batch is decoded.
RECEIVE_BUFFER = 4 << 20

_FRAME = struct.Struct(">cI")
#: The fields of an error that are passed on; see "Error and Notice Message Fields".
_FIELDS = (
    pq.DiagnosticField.SEVERITY,
    pq.DiagnosticField.SQLSTATE,
    pq.DiagnosticField.MESSAGE_PRIMARY,
)


class ByteStream(Protocol):
    """Where a transport reads and writes. Called by one thread at a time; never waits."""

    def receive_into(self, view: memoryview) -> int:
        """Protocol bytes that are there; 0 for none. OSError when the connection broke."""

    def pending(self) -> bool:
        """Bytes are there that the socket does not show."""

    def send(self, body: memoryview) -> int:
        """Send (a part of) CopyData messages, as protocol bytes; how many bytes were taken."""


class PlainStream:
    """The socket itself."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def receive_into(self, view: memoryview) -> int:
        try:
            count = self._sock.recv_into(view)
        except BlockingIOError:
            return 0
        if count == 0:
            raise ConnectionResetError("the server closed the connection")
        return count

    def pending(self) -> bool:
        return False

    def send(self, body: memoryview) -> int:
        try:
            return self._sock.send(body)
        except BlockingIOError:
            return 0


class EncryptedStream:
    """The messages that libpq decrypts, as the bytes they were before."""

    def __init__(self, connection: pq.abc.PGconn) -> None:
        """``connection``: in COPY BOTH mode."""
        self._connection = connection
        self._rest = memoryview(b"")
        self._ended = False

    def receive_into(self, view: memoryview) -> int:
        try:
            return self._take(view)
        except psycopg.Error as error:
            raise ConnectionResetError(_first_line(error)) from error

    def _take(self, view: memoryview) -> int:
        place = min(len(view), len(self._rest))
        view[:place] = self._rest[:place]
        self._rest = self._rest[place:]
        if self._ended and not place:
            raise ConnectionResetError("the server closed the connection")
        if self._rest or self._ended:
            return place
        get, pack = self._connection.get_copy_data, _FRAME.pack_into
        room, fresh = len(view), False
        while place < room:
            size, data = get(1)
            if size > 0:
                fresh, following = False, place + _FRAME.size + size
                if following > room:
                    self._rest = memoryview(_FRAME.pack(b"d", size + 4) + data)
                    return place or self._take(view)
                pack(view, place, b"d", size + 4)
                view[place + _FRAME.size : following] = data
                place = following
            elif size < 0:
                self._rest, self._ended = memoryview(self._end()), True
                return place or self._take(view)
            elif fresh:
                break
            else:
                self._connection.consume_input()
                fresh = True
        return place

    def _end(self) -> bytes:
        """What ends the stream, as the server sent it: its error, or the end of COPY."""
        result = self._connection.get_result()
        if result is None or result.status != pq.ExecStatus.FATAL_ERROR:
            return struct.pack(">ci", b"c", 4)
        known = [(field, result.error_field(field)) for field in _FIELDS]
        if not known[1][1]:
            raise ConnectionResetError(result.get_error_message().partition("\n")[0])
        body = b"".join(bytes([field]) + text + b"\0" for field, text in known if text) + b"\0"
        return struct.pack(">ci", b"E", len(body) + 4) + body

    def pending(self) -> bool:
        return bool(self._rest)

    def send(self, body: memoryview) -> int:
        """See :class:`ByteStream`. ``body`` is one CopyData or CopyDone: taken whole or not."""
        try:
            if body[0] == ord("c"):
                taken = self._connection.put_copy_end()
            else:
                taken = self._connection.put_copy_data(body[_FRAME.size :])
            # What the socket does not take now goes out when the next bytes are read.
            self._connection.flush()
        except psycopg.Error as error:
            raise ConnectionResetError(_first_line(error)) from error
        return len(body) if taken else 0


def _first_line(error: psycopg.Error) -> str:
    return str(error).strip().partition("\n")[0] or "the connection is lost"


class Transport:
    """A stream that another thread may wake, write to or close.

    One lock serialises reads and writes: neither libpq nor OpenSSL takes two at a time.
    """

    def __init__(self, sock: socket.socket) -> None:
        """``sock``: not blocking; closed with the transport."""
        self._sock = sock
        self._stream: ByteStream = PlainStream(sock)
        self._use = threading.Lock()
        self._waiting = threading.Lock()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._closing = False
        self._closed = False
        self._poll = select.poll()
        self._poll.register(sock.fileno(), select.POLLIN)
        self._poll.register(self._wake_read, select.POLLIN)

    def read_from(self, stream: ByteStream) -> None:
        """Leave the bare socket."""
        self._stream = stream

    def receive_into(self, view: memoryview) -> int:
        """Read what is there; 0 when there is nothing.

        Raises:
            OSError: the other side or we closed, or the connection broke.
        """
        with self._use:
            self._check_open()
            return self._stream.receive_into(view)

    def send(self, data: bytes, timeout: float = 30.0) -> None:
        """Write all of ``data``; a peer that takes nothing for ``timeout`` seconds is gone."""
        view = memoryview(data)
        deadline = time.monotonic() + timeout
        poll = select.poll()
        with self._use:
            if self._closed:
                raise ConnectionAbortedError("closed")
            while view:
                sent = self._stream.send(view)
                view = view[sent:]
                if not sent:
                    left = deadline - time.monotonic()
                    if left <= 0:
                        raise TimeoutError("the server takes no data")
                    poll.register(self._sock.fileno(), select.POLLOUT)
                    poll.poll(min(left, 1.0) * 1000)

    def wait(self, seconds: float | None) -> bool:
        """Wait for something to read; False after ``seconds`` or when woken."""
        with self._waiting:
            self._check_open()
            if self._stream.pending():
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

    def interrupt(self) -> None:
        """End the connection while another thread waits for libpq."""
        with self._use:
            if not self._closed:
                try:
                    self._sock.shutdown(socket.SHUT_RDWR)
                except OSError:
                    return  # it has ended already

    def close(self, farewell: bytes = b"") -> None:
        """Close the socket after a last word. Idempotent; a thread in :meth:`wait` leaves first:
        a descriptor closed under poll may by then be another's."""
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
