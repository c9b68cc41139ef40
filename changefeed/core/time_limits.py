"""Limits the total time of an answer, in addition to the time that a server may be silent.

HTTP clients limit the wait for the next bytes. A server that sends one byte per second never
reaches that limit, and would block its feed for ever. Connections that were prepared here
(:func:`limit_httpx`, :func:`limit_connections`, :func:`limit_pools`, :func:`limit_requests`) wait
no longer than what is left of the time of their answer, in whatever thread it is read, and fail
with the time-out of their own library.

Nothing here imports an HTTP library.
"""

from __future__ import annotations

import functools
import math
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any

#: The longest time of an answer, as a multiple of the time that its server may be silent;
PATIENCE = 10.0
#: where it counts from the begin of a request, it is a second longer for each time this many bytes
#: that the request sends.
SLOWEST = 65_536
#: The shortest wait, seconds, when no time is left: 0 would mean not to wait at all.
_LEAST = 0.001


def _until(ends: float, timeout: float | None) -> float | None:
    """A wait of ``timeout`` seconds (None: for ever), as far as there is time."""
    if ends == math.inf:
        return timeout
    left = max(ends - time.monotonic(), _LEAST)
    return left if timeout is None else min(timeout, left)


# ---------------------------------------------------------------------------------- httpx


def limit_httpx(client: Any, idle: float, patience: float = PATIENCE) -> None:
    """Let each request of an ``httpx.Client`` end.

    httpx has no public way to its connections: should a later version keep its pool elsewhere, the
    client stays as it is (and the test of this fails).

    Args:
        idle: seconds the server may be silent.
        patience: the longest time of a request, as a multiple of ``idle``.
    """
    for transport in (client._transport, *client._mounts.values()):
        pool = getattr(transport, "_pool", None)
        backend = getattr(pool, "_network_backend", None)
        if pool is not None and backend is not None:
            pool._network_backend = _Backend(backend, idle * patience)


class _Backend:
    def __init__(self, backend: Any, seconds: float) -> None:
        self._backend = backend
        self._seconds = seconds

    def connect_tcp(self, *given: Any, **named: Any) -> _Stream:
        return _Stream(self._backend.connect_tcp(*given, **named), self._seconds)

    def connect_unix_socket(self, *given: Any, **named: Any) -> _Stream:
        return _Stream(self._backend.connect_unix_socket(*given, **named), self._seconds)

    def sleep(self, seconds: float) -> None:
        self._backend.sleep(seconds)


class _Stream:
    """A request begins where something is written after an answer was read."""

    def __init__(self, stream: Any, seconds: float) -> None:
        self._stream = stream
        self._seconds = seconds
        self._ends = math.inf
        self._reads = True

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        self._reads = True
        found: bytes = self._stream.read(max_bytes, _until(self._ends, timeout))
        return found

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        if self._reads:
            self._reads, self._ends = False, time.monotonic() + self._seconds
        self._ends += len(buffer) / SLOWEST
        self._stream.write(buffer, _until(self._ends, timeout))

    def start_tls(self, *given: Any, **named: Any) -> _Stream:
        return _Stream(self._stream.start_tls(*given, **named), self._seconds)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)

    def close(self) -> None:
        self._stream.close()


# -------------------------------------------------------------------------------- urllib3


def limit_connections(connection: type[Any], idle: float, patience: float) -> type[Any]:
    """A urllib3 connection class, plain or TLS, each of whose answers ends.

    Args:
        idle: seconds the server may be silent.
        patience: the longest time of an answer, as a multiple of ``idle``.
    """

    def left(self: Any, timeout: float | None) -> float | None:
        return _until(getattr(self, "_ends", math.inf), timeout)

    def connect(self: Any) -> None:
        connection.connect(self)
        _limit_socket(self.sock, functools.partial(left, self))

    def getresponse(self: Any, *given: Any, **named: Any) -> Any:
        self._ends = time.monotonic() + patience * idle
        return connection.getresponse(self, *given, **named)

    return type(
        connection.__name__, (connection,), {"connect": connect, "getresponse": getresponse}
    )


def limit_pools(manager: Any, idle: float, patience: float) -> None:
    """Let every answer to a urllib3 ``PoolManager`` end; see :func:`limit_connections`."""

    def limited(pool: type[Any]) -> type[Any]:
        made = limit_connections(pool.ConnectionCls, idle, patience)
        return type(pool.__name__, (pool,), {"ConnectionCls": made})

    # A new table: the manager's is that of all managers.
    known = manager.pool_classes_by_scheme
    manager.pool_classes_by_scheme = {scheme: limited(pool) for scheme, pool in known.items()}


def limit_requests(session: Any, idle: float, patience: float) -> None:
    """Let every answer to a ``requests.Session`` end, also through a proxy."""
    for adapter in {id(found): found for found in session.adapters.values()}.values():
        limit_pools(adapter.poolmanager, idle, patience)
        adapter.proxy_manager_for = _limited_proxies(adapter, idle, patience)


def _limited_proxies(adapter: Any, idle: float, patience: float) -> Callable[..., Any]:
    make = adapter.proxy_manager_for

    def proxy_manager_for(proxy: str, **others: Any) -> Any:
        known = proxy in adapter.proxy_manager
        manager = make(proxy, **others)
        if not known:
            limit_pools(manager, idle, patience)
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
