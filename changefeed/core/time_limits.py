"""Limits the total time of a request, in addition to the time that a server may be silent.

HTTP clients limit the wait for the next bytes. A server that sends one byte per second never
reaches that limit, and would block its feed for ever. Here a thread says how long its request
may take (:func:`within`); connections that were prepared (:func:`limit_httpx`,
:func:`limit_connections`, :func:`limit_pools`, :func:`limit_requests`) wait no longer than what
is left of that, and fail with the time-out of their own library. For libraries with their own
threads the connections are limited instead (:func:`end_answers`).

Nothing here imports an HTTP library.
"""

from __future__ import annotations

import functools
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

#: The longest time of a request, as a multiple of the time that its server may be silent;
PATIENCE = 10.0
#: it is a second longer for each time this many bytes that the request sends.
SLOWEST = 65_536
#: The shortest wait, seconds, when no time is left: 0 would mean not to wait at all.
_LEAST = 0.001

_of_thread = threading.local()


@contextmanager
def within(idle: float, size: int = 0, patience: float = PATIENCE) -> Iterator[None]:
    """One request of this thread, with ``size`` bytes to send.

    Args:
        idle: seconds the server may be silent.
        patience: the total time, as a multiple of ``idle``.
    """
    before = getattr(_of_thread, "deadline", None)
    ours = time.monotonic() + patience * idle + size / SLOWEST
    _of_thread.deadline = ours if before is None else min(before, ours)
    try:
        yield
    finally:
        _of_thread.deadline = before


def limited(timeout: float | None) -> float | None:
    """A wait of ``timeout`` seconds (None: for ever), as far as this thread's request has time."""
    deadline: float | None = getattr(_of_thread, "deadline", None)
    return timeout if deadline is None else _until(deadline, timeout)


def _until(deadline: float, timeout: float | None) -> float:
    left = max(deadline - time.monotonic(), _LEAST)
    return left if timeout is None else min(timeout, left)


# ---------------------------------------------------------------------------------- httpx


def limit_httpx(client: Any) -> None:
    """Make an ``httpx.Client`` obey :func:`within`.

    httpx has no public way to its connections: should a later version keep its pool elsewhere, the
    client stays as it is (and the test of this fails).
    """
    for transport in (client._transport, *client._mounts.values()):
        pool = getattr(transport, "_pool", None)
        backend = getattr(pool, "_network_backend", None)
        if pool is not None and backend is not None:
            pool._network_backend = _Backend(backend)


class _Backend:
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
    """A urllib3 connection class, plain or TLS, that obeys :func:`within`."""

    def connect(self: Any) -> None:
        connection.connect(self)
        _limit_socket(self.sock, limited)

    return type(connection.__name__, (connection,), {"connect": connect})


def end_answers(connection: type[Any], idle: float, patience: float = PATIENCE) -> type[Any]:
    """A urllib3 connection class each of whose answers ends, in whatever thread it is read: for
    libraries that make their connections, and threads, themselves.

    Args:
        idle: seconds the server may be silent.
        patience: the longest time of an answer, as a multiple of ``idle``.
    """

    def left(self: Any, timeout: float | None) -> float | None:
        ends: float | None = getattr(self, "_ends", None)
        return timeout if ends is None else _until(ends, timeout)

    def connect(self: Any) -> None:
        connection.connect(self)
        _limit_socket(self.sock, functools.partial(left, self))

    def getresponse(self: Any, *given: Any, **named: Any) -> Any:
        self._ends = time.monotonic() + patience * idle
        return connection.getresponse(self, *given, **named)

    return type(
        connection.__name__, (connection,), {"connect": connect, "getresponse": getresponse}
    )


def limit_pools(manager: Any) -> None:
    """Make all connections of a urllib3 ``PoolManager`` obey :func:`within`."""
    manager.pool_classes_by_scheme = {
        name: type(pool.__name__, (pool,), {"ConnectionCls": limit_connections(pool.ConnectionCls)})
        for name, pool in manager.pool_classes_by_scheme.items()
    }


def limit_requests(session: Any, idle: float, patience: float = PATIENCE) -> None:
    """Make all requests of a ``requests.Session`` end, and its answers be read, :func:`within`.

    Args:
        idle: seconds the server may be silent.
        patience: the longest time of a request, as a multiple of ``idle``.
    """
    for adapter in {id(found): found for found in session.adapters.values()}.values():
        limit_pools(adapter.poolmanager)
        adapter.proxy_manager_for = _limited_proxies(adapter)
    ask = session.request

    def request(method: str, url: str, data: Any = None, **others: Any) -> Any:
        size = len(data) if isinstance(data, str | bytes) else 0
        with within(idle, size, patience):
            return ask(method, url, data=data, **others)

    session.request = request


def _limited_proxies(adapter: Any) -> Callable[..., Any]:
    make = adapter.proxy_manager_for

    def proxy_manager_for(proxy: str, **others: Any) -> Any:
        known = proxy in adapter.proxy_manager
        manager = make(proxy, **others)
        if not known:
            limit_pools(manager)
        return manager

    return proxy_manager_for


#: Shortens a wait to the time that is left.
_Limit = Callable[[float | None], float | None]


def _limit_socket(sock: Any, limit: _Limit) -> None:
    # A socket is what it wraps: another object around it would have to be one in every respect.
    if type(sock) is socket.socket or type(sock) is ssl.SSLSocket:
        sock.__class__ = _reading(type(sock), limit)
    elif type(getattr(sock, "socket", None)) is socket.socket:
        # pyOpenSSL's: it waits for as long as the socket inside says.
        sock.socket.__class__ = _asked(limit)


def _reading(kind: type[Any], limit: _Limit) -> type[Any]:
    def recv_into(self: Any, *arguments: Any) -> int:
        idle = self.gettimeout()
        self.settimeout(limit(idle))
        try:
            found: int = kind.recv_into(self, *arguments)
            return found
        finally:
            self.settimeout(idle)

    return type(kind.__name__, (kind,), {"__slots__": (), "recv_into": recv_into})


def _asked(limit: _Limit) -> type[Any]:
    def gettimeout(self: Any) -> float | None:
        return limit(socket.socket.gettimeout(self))

    return type("socket", (socket.socket,), {"__slots__": (), "gettimeout": gettimeout})
