"""Connection parameters, server errors, authentication answers: without a server."""

from __future__ import annotations

import hashlib
import socket
import struct
import threading
from pathlib import Path

import pytest

from changefeed.core.errors import ChangefeedError
from changefeed.sources.postgres import tls
from changefeed.sources.postgres.auth import Authenticator
from changefeed.sources.postgres.lsn import format_lsn, lsn_of, parse_lsn, position_of
from changefeed.sources.postgres.wire import (
    Endpoint,
    ReplicationConnection,
    Transport,
    endpoints,
    parameters_of,
    server_error,
    split_binary,
)


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("PGHOST", "PGPORT", "PGUSER", "PGPASSWORD", "PGDATABASE", "PGSSLMODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


def test_uri_is_read_as_libpq_reads_it() -> None:
    found = parameters_of("postgresql://u%40x:p%3Aw@db.example:6432/shop?sslmode=require")
    wanted = {"user": "u@x", "password": "p:w", "host": "db.example", "port": "6432",
              "dbname": "shop", "sslmode": "require"}  # fmt: skip
    assert {name: found[name] for name in wanted} == wanted
    socketed = parameters_of("postgresql://postgres@/db?host=/tmp/sock")
    [endpoint] = endpoints(socketed)
    assert endpoint.local and endpoint.address == "/tmp/sock" and endpoint.port == 5432


def test_binary_is_our_own_parameter() -> None:
    assert split_binary("postgresql://h/d") == ("postgresql://h/d", False)
    assert split_binary("postgresql://h/d?binary=true") == ("postgresql://h/d", True)
    both = "postgresql://h/d?sslmode=require&binary=false&connect_timeout=3"
    assert split_binary(both) == ("postgresql://h/d?sslmode=require&connect_timeout=3", False)
    with pytest.raises(ChangefeedError) as caught:
        split_binary("postgresql://h/d?binary=maybe")
    assert caught.value.code.number == "CF1207"


def test_environment_and_several_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGUSER", "someone")
    monkeypatch.setenv("PGPORT", "7000")
    found = parameters_of("postgresql://one,two:6000/db")
    assert found["user"] == "someone"
    assert endpoints(parameters_of("postgresql://one:1,two:2/db")) == [
        Endpoint("one", "one", 1),
        Endpoint("two", "two", 2),
    ]
    [dialled] = endpoints(parameters_of("postgresql://name/db?hostaddr=10.0.0.1"))
    assert (dialled.host, dialled.address) == ("name", "10.0.0.1")


@pytest.mark.parametrize(
    "uri", ["postgresql://u:s3cret@h:port/db", "postgresql://u:s3cret@h/db?nonsense=1", "x s3cret"]
)
def test_bad_uri_never_shows_the_password(uri: str) -> None:
    with pytest.raises(ChangefeedError) as caught:
        endpoints(parameters_of(uri))
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
        ("XX000", "internal", "CF2101"),
    ],
)
def test_server_errors(state: str, message: str, code: str) -> None:
    error = server_error({"C": state, "M": message, "D": "row values"}, "do it")
    assert error.code.number == code and message in error.message
    assert "row values" not in f"{error.message}{error.detail}{error.hint}"


def test_md5_answer() -> None:
    login = Authenticator("bob", "pw")
    done, answer = login.answer(struct.pack(">i", 5) + b"salt")
    inner = hashlib.md5(b"pwbob").hexdigest()
    assert not done
    assert answer == b"md5" + hashlib.md5(inner.encode() + b"salt").hexdigest().encode() + b"\0"


def test_foreign_methods_are_named() -> None:
    with pytest.raises(ChangefeedError, match="GSSAPI"):
        Authenticator("u", "p").answer(struct.pack(">i", 7))
    with pytest.raises(ChangefeedError, match="no"):
        Authenticator("u", None).answer(struct.pack(">i", 3))


def test_pgpass(tmp_path: Path) -> None:
    from changefeed.sources.postgres.wire import _password

    file = tmp_path / ".pgpass"
    file.write_text("# comment\nother:*:*:*:no\nh\\:1:5432:*:u:pa\\:ss\n*:*:db:*:any\n")
    file.chmod(0o600)
    parameters = {"dbname": "db", "user": "u", "passfile": str(file)}
    assert _password(parameters, Endpoint("h:1", "h:1", 5432)) == "pa:ss"
    assert _password(parameters, Endpoint("x", "x", 1)) == "any"
    assert _password({**parameters, "dbname": "none"}, Endpoint("x", "x", 1)) is None
    file.chmod(0o644)
    assert _password(parameters, Endpoint("x", "x", 1)) is None


def test_tls_parameters() -> None:
    assert tls.attempts("allow") == (False, True) and tls.attempts("prefer") == (True, False)
    assert tls.context({"sslmode": "require"}).verify_mode.name == "CERT_NONE"
    assert tls.context({"sslmode": "verify-full", "sslrootcert": "system"}).check_hostname
    for parameters in (
        {"sslmode": "verify-ca"},
        {"sslmode": "verify-full", "sslrootcert": "/nowhere"},
        {"sslcert": "/nowhere"},
        {"ssl_min_protocol_version": "SSLv2"},
    ):
        with pytest.raises(ChangefeedError) as caught:
            tls.context(parameters)
        assert caught.value.code.number == "CF1207"


def test_positions() -> None:
    assert parse_lsn("16/B374D848") == 0x16B374D848
    assert format_lsn(0x16B374D848) == "16/B374D848"
    assert position_of(parse_lsn("F/0")) < position_of(parse_lsn("10/0"))
    assert lsn_of(position_of(77)) == 77 and lsn_of("") == 0
    with pytest.raises(ValueError, match="LSN"):
        parse_lsn("nonsense")


def test_transport_closed_while_waiting() -> None:
    ours, theirs = socket.socketpair()
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


# ---------------------------------------------------------------------------- protection


@pytest.mark.parametrize(
    ("required", "code", "fits"),
    [
        ("scram-sha-256", 3, False),
        ("scram-sha-256", 5, False),
        ("scram-sha-256", 0, False),
        ("scram-sha-256,md5", 5, True),
        ("!password", 3, False),
        ("!password,!none", 5, True),
        ("none", 0, True),
        ("", 3, True),
    ],
)
def test_require_auth_holds_before_the_password_is_sent(
    required: str, code: int, fits: bool
) -> None:
    login = Authenticator("u", "s3cret", require_auth=required)
    message = struct.pack(">i", code) + b"salt"
    if fits:
        login.answer(message)
        return
    with pytest.raises(ChangefeedError, match="require_auth forbids") as caught:
        login.answer(message)
    assert caught.value.code.number == "CF2002"


@pytest.mark.parametrize(
    "parameter",
    ["sslcrl=/a", "sslcrldir=/a", "gssencmode=require", "requirepeer=x", "service=x"],
)
def test_a_protection_that_replication_would_ignore_is_refused(parameter: str) -> None:
    with pytest.raises(ChangefeedError, match=parameter.partition("=")[0]) as caught:
        parameters_of(f"postgresql://u@h/d?{parameter}")
    assert caught.value.code.number == "CF1207"


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
    assert "does not speak the PostgreSQL protocol" in caught.value.message
