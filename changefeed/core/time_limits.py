"""How long a request may take altogether, beside how long a server may be silent.

HTTP clients limit the wait for the next bytes. A server that sends one byte a second never lets
that limit pass, and would hold its feed for ever. Here a thread says how long its request may take
(:func:`within`); connections that were prepared (:func:`limit_httpx`, :func:`limit_connections`)
wait no longer than what is left of that, and fail with the time-out of their own library.

Nothing here imports an HTTP library.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

#: A request may take so many times what its server may be silent,
PATIENCE = 10
#: and a second more for each so many bytes that it sends.
SLOWEST = 65_536
#: What a wait is shortened to when no time is left, seconds: 0 would mean not to wait at all.
_LEAST = 0.001

_of_thread = threading.local()


@contextmanager
def within(idle: float, size: int = 0) -> Iterator[None]:
    """One request of this thread, with ``size`` bytes to send.

    Args:
        idle: seconds the server may be silent.
    """
    before = getattr(_of_thread, "deadline", None)
    ours = time.monotonic() + PATIENCE * idle + size / SLOWEST
    _of_thread.deadline = ours if before is None else min(before, ours)
    try:
        yield
    finally:
        _of_thread.deadline = before


def limited(timeout: float | None) -> float | None:
    """A wait of ``timeout`` seconds (None: for ever), as far as this thread's request has time."""
    deadline: float | None = getattr(_of_thread, "deadline", None)
    if deadline is None:
        return timeout
    left = max(deadline - time.monotonic(), _LEAST)
    return left if timeout is None else min(timeout, left)


# ---------------------------------------------------------------------------------- httpx


def limit_httpx(client: Any) -> None:
    """Make an ``httpx.Client`` heed :func:`within`.

    httpx has no public way to its connections: should a later version keep its pool elsewhere, the
    client stays as it is (and the test of this fails).
    """
    for transport in (client._transport, *client._mounts.values()):
        pool = getattr(transport, "_pool", None)
        backend = getattr(pool, "_network_backend", None)
        if pool is not None and backend is not None:
            pool._network_backend = _Backend(backend)


class _Backend:
    """httpcore's ``NetworkBackend`` around another."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend

    def connect_tcp(
        self, host: str, port: int, timeout: float | None = None, **others: Any
    ) -> _Stream:
        return _Stream(self._backend.connect_tcp(host, port, limited(timeout), **others))

    def connect_unix_socket(
        self, path: str, timeout: float | None = None, **others: Any
    ) -> _Stream:
        return _Stream(self._backend.connect_unix_socket(path, limited(timeout), **others))

    def sleep(self, seconds: float) -> None:
        self._backend.sleep(seconds)


class _Stream:
    """httpcore's ``NetworkStream`` around another."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        found: bytes = self._stream.read(max_bytes, limited(timeout))
        return found

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, limited(timeout))

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> _Stream:
        return _Stream(self._stream.start_tls(ssl_context, server_hostname, limited(timeout)))

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)

    def close(self) -> None:
        self._stream.close()


# -------------------------------------------------------------------------------- urllib3


def limit_connections(connection: type[Any]) -> type[Any]:
    """A urllib3 connection class, plain or TLS, that heeds :func:`within`."""

    def connect(self: Any) -> None:
        connection.connect(self)
        _limit_socket(self.sock)

    return type(connection.__name__, (connection,), {"connect": connect})


def _limit_socket(sock: object) -> None:
    # A socket is what it wraps: another object around it would have to be one in every respect.
    if type(sock) is socket.socket:
        sock.__class__ = _PlainSocket
    elif type(sock) is ssl.SSLSocket:
        sock.__class__ = _TlsSocket


class _PlainSocket(socket.socket):
    __slots__ = ()

    def recv_into(self, *arguments: Any) -> int:
        idle = self.gettimeout()
        self.settimeout(limited(idle))
        try:
            return super().recv_into(*arguments)
        finally:
            self.settimeout(idle)


class _TlsSocket(ssl.SSLSocket):
    __slots__ = ()

    def recv_into(self, *arguments: Any) -> int:
        idle = self.gettimeout()
        self.settimeout(limited(idle))
        try:
            return super().recv_into(*arguments)
        finally:
            self.settimeout(idle)
