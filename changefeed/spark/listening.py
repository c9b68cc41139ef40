"""A port of this process that workers connect to, and what both ends need of a connection."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Self

#: How long the other side may be silent before the connection is tried, and between tries.
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))


def keep_alive(connection: socket.socket) -> None:
    """Let the connection end when the other host has gone."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, seconds in _KEEPALIVE:
        connection.setsockopt(socket.IPPROTO_TCP, option, seconds)


def receive(connection: socket.socket, count: int) -> bytes:
    """Receive so many bytes, however many arrive at a time: ``MSG_WAITALL`` has no effect on a
    socket with a timeout.

    Raises:
        OSError: the connection ended before; a timeout passed without a byte.
    """
    content = bytearray()
    while len(content) < count:
        some = connection.recv(count - len(content))
        if not some:
            raise ConnectionError("the connection ended in the middle of a message")
        content += some
    return bytes(content)


class WorkerPort:
    """Accepts connections until :meth:`close`; each is attended in a thread of its own, and closed.

    Args:
        host: the address at which workers reach this process.
        attend: what to do with a connection; it ends when that raises OSError.
        name: of the thread that waits for connections.
    """

    def __init__(self, host: str, attend: Callable[[socket.socket], None], name: str) -> None:
        self._attend = attend
        self._listener = socket.create_server((host, 0))
        self.host = host
        self.number = int(self._listener.getsockname()[1])
        threading.Thread(target=self._serve, name=name, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Accept no more; connections that there are go on."""
        # A thread inside accept() holds the socket open over close(): it has to be woken.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._with, args=(connection,), daemon=True).start()

    def _with(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            self._attend(connection)
