"""Connection parameters, server errors, what reads the stream: without a server."""

from __future__ import annotations

import socket
import struct
import threading
from pathlib import Path
from typing import cast

import pytest
from psycopg import pq

from changefeed.core.errors import ChangefeedError
from changefeed.sources.postgres.connect import connection_info
from changefeed.sources.postgres.lsn import format_lsn, lsn_of, parse_lsn, position_of
from changefeed.sources.postgres.transport import EncryptedStream, Transport
from changefeed.sources.postgres.wire import ReplicationConnection, server_error


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("PGHOST", "PGPORT", "PGUSER", "PGPASSWORD", "PGDATABASE", "PGSSLMODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.mark.parametrize(
    "uri", ["postgresql://u:s3cret@h:port/db", "postgresql://u:s3cret@h/db?nonsense=1", "x s3cret"]
)
def test_bad_uri_never_shows_the_password(uri: str) -> None:
    with pytest.raises(ChangefeedError) as caught:
        connection_info(uri)
    error = caught.value
    assert error.code.number in ("CF1201", "CF1202", "CF1207")
    assert "s3cret" not in f"{error.message}{error.detail}{error.hint}"


def test_server_that_is_not_there() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        with pytest.raises(ChangefeedError) as caught:
            ReplicationConnection(f"postgresql://u:s3cret@127.0.0.1:{port}/db")
    assert caught.value.code.number == "CF2001" and "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("state", "message", "code"),
    [
        ("28P01", "password authentication failed", "CF2002"),
        ("3D000", "no such database", "CF2002"),
        ("42501", "permission denied", "CF2004"),
        ("42704", 'replication slot "x" does not exist', "CF2102"),
        ("55000", 'can no longer get changes from replication slot "x"', "CF2102"),
        ("58P01", "requested WAL segment has already been removed", "CF2102"),
        ("55006", 'replication slot "x" is active for PID 1', "CF2101"),
        ("57P01", "terminating connection", "CF2101"),
        ("53300", "too many connections", "CF2001"),
        ("42704", 'publication "x" does not exist', "CF2102"),
        ("42704", "Replikationsslot »x« existiert nicht", "CF2102"),
        ("55000", "kann keine Änderungen mehr aus Replikationsslot »x« lesen", "CF2102"),
        ("55000", "logische Dekodierung erfordert wal_level >= logical", "CF2101"),
        ("XX000", "internal", "CF2101"),
    ],
)
def test_server_errors(state: str, message: str, code: str) -> None:
    error = server_error({"C": state, "M": message, "D": "row values"}, "do it")
    assert error.code.number == code and message in error.message
    assert "row values" not in f"{error.message}{error.detail}{error.hint}"


def test_positions() -> None:
    assert parse_lsn("16/B374D848") == 0x16B374D848
    assert format_lsn(0x16B374D848) == "16/B374D848"
    assert position_of(parse_lsn("F/0")) < position_of(parse_lsn("10/0"))
    assert lsn_of(position_of(77)) == 77 and lsn_of("") == 0
    with pytest.raises(ValueError, match="LSN"):
        parse_lsn("nonsense")


def test_transport_closed_while_waiting() -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    transport = Transport(ours)
    ended = threading.Event()

    def wait() -> None:
        with pytest.raises(ConnectionAbortedError):
            transport.wait(30)
        ended.set()

    thread = threading.Thread(target=wait)
    thread.start()
    transport.close(b"bye")
    assert ended.wait(10)
    thread.join()
    assert theirs.recv(10) == b"bye" and theirs.recv(10) == b""
    transport.close()
    transport.wake()
    theirs.close()


@pytest.mark.parametrize(
    "answer",
    [
        b"R\xff\xff\xff\xff",
        b"R\x7f\xff\xff\xff",
        b"R\0\0\0\0",
        b"R\0\0\0\x04",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"S\0\0\0\x08name",
    ],
)
def test_garbage_of_a_server_is_an_error_of_the_source(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            peer, _ = server.accept()
            with peer:
                peer.recv(65_536)
                peer.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        port = server.getsockname()[1]
        with pytest.raises(ChangefeedError) as caught:
            ReplicationConnection(
                f"postgresql://u:p@127.0.0.1:{port}/d?sslmode=disable&connect_timeout=20"
            )
        thread.join()
    assert caught.value.code.number == "CF2001"
    assert "another program may listen there" in caught.value.hint or "closed" in str(caught.value)


# ------------------------------------------------------------------- messages from libpq


class _Session:
    """As much of libpq's connection as the stream uses. Each piece is what one read brings."""

    def __init__(self, *pieces: list[bytes]) -> None:
        self._coming = list(pieces)
        self._here: list[bytes] = []
        self._ended = False

    def consume_input(self) -> None:
        self._here += self._coming.pop(0) if self._coming else []

    def get_copy_data(self, _: int) -> tuple[int, memoryview]:
        if not self._here:
            assert not self._ended, "libpq is not asked again"
            self._ended = not self._coming
            return (-1 if self._ended else 0), memoryview(b"")
        data = self._here.pop(0)
        return len(data), memoryview(data)

    def get_result(self) -> None:
        return None


def _frames(*bodies: bytes) -> bytes:
    return b"".join(b"d" + struct.pack(">i", len(body) + 4) + body for body in bodies)


@pytest.mark.parametrize("room", [6, 7, 13, 1000])
def test_messages_of_libpq_are_the_bytes_of_the_protocol(room: int) -> None:
    session = _Session([b"one", b"two" * 5], [], [b"3" * 40], [b"four"])
    stream = EncryptedStream(cast(pq.abc.PGconn, session))
    view, found = memoryview(bytearray(room)), b""
    with pytest.raises(ConnectionResetError):
        while True:
            found += view[: stream.receive_into(view)]
    assert found == _frames(b"one", b"two" * 5, b"3" * 40, b"four") + b"c\0\0\0\4"
