"""A PostgreSQL server that refuses every login, in whatever words."""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from psycopg import pq

SECRET = 'geheim" C "00000'
#: The trace of a login is told by libpq 18.
TRACES = pq.version() >= 180000


def error(state: str, text: str) -> bytes:
    """An ErrorResponse."""
    fields = {"S": "FATAL", "V": "FATAL", "C": state, "M": text}
    body = b"".join(f"{kind}{value}\0".encode() for kind, value in fields.items()) + b"\0"
    return b"E" + struct.pack("!i", len(body) + 4) + body


class Refusing:
    """A server that asks for a password in clear text and then answers."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self.logins = 0

    def serve(self, listening: socket.socket) -> None:
        while True:
            try:
                client, _ = listening.accept()
            except OSError:
                return
            with client:
                self._login(client)

    def _login(self, client: socket.socket) -> None:
        while True:
            length, code = struct.unpack("!ii", client.recv(8, socket.MSG_WAITALL))
            if code == 196608:
                break
            client.sendall(b"N")  # neither TLS nor GSSAPI
        client.recv(length - 8, socket.MSG_WAITALL)
        client.sendall(b"R" + struct.pack("!ii", 8, 3))
        assert SECRET.encode() in client.recv(1000)
        self.logins += 1
        client.sendall(self._answer)


@contextmanager
def refusing(answer: bytes) -> Iterator[tuple[Refusing, str]]:
    """The server and its URI."""
    server = Refusing(answer)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=server.serve, args=(listening,), daemon=True).start()
        password = SECRET.replace('"', "%22").replace(" ", "%20")
        port = listening.getsockname()[1]
        yield server, f"postgresql://x:{password}@127.0.0.1:{port}/d?sslmode=prefer"
        listening.shutdown(socket.SHUT_RDWR)


def traces() -> list[str]:
    """Files of this process that hold a trace."""
    found = []
    for opened in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # that of the folder itself, which is closed by now
            found.append(os.readlink(opened))
    return [name for name in found if "changefeed-login" in name]
