"""A proxy that spoils connections and answers."""

from __future__ import annotations

import contextlib
import math
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_REQUEST = re.compile(rb"(?:GET|HEAD|PUT|POST|DELETE) /")
_CLOSE = b"Connection: close\r\nContent-Length: 0\r\n\r\n"


class Proxy:
    """Hands connections on to a port, or spoils them.

    Attributes:
        mode: ``pass``; ``cut`` ends connections after ``after`` bytes of the request; a number
            of three digits answers every request with that status.
        spoiled: connections that were.
        allowed: requests that still pass while the mode is ``pass``; those after them get 409.
    """

    def __init__(self, target: int) -> None:
        self._target = target
        self.mode = "pass"
        self.after = 0
        self.spoiled = 0
        self.allowed: float = math.inf
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port: int = self._listener.getsockname()[1]
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        """Stop listening."""
        self._listener.close()
        self._drop()

    @contextmanager
    def spoiling(self, mode: str, after: int = 0) -> Iterator[None]:
        """Another mode inside the block; connections that are open end."""
        self.mode, self.after = mode, after
        self._drop()
        yield
        self.mode = "pass"
        self._drop()

    @contextmanager
    def refusing_after(self, requests: int) -> Iterator[None]:
        """So many requests pass inside the block, then none: as when a process ends there."""
        self.allowed = requests
        yield
        self.allowed = math.inf

    def _drop(self) -> None:
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._handle, args=(client,), daemon=True).start()

    def _handle(self, client: socket.socket) -> None:
        self._open.add(client)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with client, contextlib.suppress(OSError):
            if self.mode == "pass":
                self._pass(client)
            elif self.mode == "cut":
                self.spoiled += 1
                if self.after:
                    self._pass(client, self.after)
            else:
                self.spoiled += 1
                _read(client, 1)
                client.sendall(f"HTTP/1.1 {self.mode} Spoiled\r\n".encode() + _CLOSE)
        self._open.discard(client)

    def _pass(self, client: socket.socket, limit: float = math.inf) -> None:
        """Hand on, up to ``limit`` bytes of requests."""
        left = [limit]

        def ends(data: bytes) -> bool:
            left[0] -= len(data)
            return left[0] <= 0 or self._refuses(data, client)

        with socket.create_connection(("127.0.0.1", self._target)) as server:
            self._open.add(server)
            server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            back = threading.Thread(target=_pump, args=(server, client), daemon=True)
            back.start()
            _pump(client, server, ends)
            back.join()
            self._open.discard(server)

    def _refuses(self, data: bytes, client: socket.socket) -> bool:
        """Whether a request begins here that is one too many; then it was answered."""
        if not _REQUEST.match(data):
            return False
        self.allowed -= 1
        if self.allowed >= 0:
            return False
        self.spoiled += 1
        client.sendall(b"HTTP/1.1 409 Spoiled\r\n" + _CLOSE)
        return True


def _read(source: socket.socket, amount: int) -> None:
    while amount > 0 and (data := source.recv(65536)):
        amount -= len(data)


def _pump(
    source: socket.socket, sink: socket.socket, ends: Callable[[bytes], bool] = lambda data: False
) -> None:
    with contextlib.suppress(OSError):
        while (data := source.recv(65536)) and not ends(data):
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
