"""What a server that speaks another language says of a login is known by its SQLSTATE."""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from psycopg import pq

from changefeed.core.errors import Action, ChangefeedError
from changefeed.sources.postgres.connect import connect, connect_replication

SECRET = 'geheim" C "00000'
#: The trace of a login is told by libpq 18.
TRACES = pq.version() >= 180000

pytestmark = pytest.mark.skipif(not TRACES, reason="libpq before 18 does not trace logins")


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


@pytest.mark.parametrize(
    ("state", "text", "code", "action"),
    [
        ("28P01", "Passwort-Authentifizierung für Benutzer »x« fehlgeschlagen", "CF2002", "stop"),
        ("28000", "ロール\"x\"はログインが許可されません C \"57P03\"", "CF2002", "stop"),
        ("3D000", "la base de données « d » n'existe pas", "CF2002", "stop"),
        ("42501", "keine Berechtigung", "CF2004", "user"),
        ("57P03", "das Datenbanksystem startet", "CF2001", "retry"),
        ("53300", "désolé, trop de clients sont déjà connectés", "CF2005", "retry"),
    ],
)  # fmt: skip
def test_a_refusal_in_another_language_has_the_code_of_its_sqlstate(
    state: str, text: str, code: str, action: str
) -> None:
    with refusing(error(state, text)) as (server, uri):
        for open_ in (connect, connect_replication):
            with pytest.raises(ChangefeedError) as caught:
                open_(uri)
            found = caught.value
            assert (found.code.number, found.action) == (code, Action(action))
            assert found.detail == f"SQLSTATE {state}" and text in found.message
            assert SECRET not in repr((found.message, found.detail, found.hint))
        assert server.logins == 4, "each is asked for once more"
        assert not traces(), "a trace has the password"


def test_words_that_are_understood_are_not_asked_for_again() -> None:
    """A server may count the logins that it refuses."""
    answer = error("28P01", 'password authentication failed for user "x"')
    with refusing(answer) as (server, uri), pytest.raises(ChangefeedError) as caught:
        connect(uri)
    assert caught.value.code.number == "CF2002" and server.logins == 1


def test_a_server_that_is_away_is_not_asked_twice() -> None:
    """Only what a server said can be told in another way."""
    with refusing(b"") as (server, uri), pytest.raises(ChangefeedError) as caught:
        connect(uri)
    assert caught.value.code.number == "CF2001" and server.logins == 1
