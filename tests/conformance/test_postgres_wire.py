"""Logging in to a real server: every method, TLS by sslmode, what is refused and how it reads."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from changefeed.core.errors import ChangefeedError
from changefeed.sources.postgres.connect import SESSION, connect
from changefeed.sources.postgres.pgoutput import Inbox, ServerFailed
from changefeed.sources.postgres.wire import ReplicationConnection
from tests.helpers.postgres_tail import prepare, tailing
from tests.helpers.waiting import until
from tests.services.certificates import write_certificates, write_revocations
from tests.services.postgres import Database, PostgresCluster

pytestmark = pytest.mark.postgres

_PASSWORD = "s3cr:t/p@ss w\u00f6rd"
_QUOTED = "s3cr%3At%2Fp%40ss%20w%C3%B6rd"


@pytest.fixture
def secured(own_postgres: PostgresCluster, tmp_path: Path) -> PostgresCluster:
    """A server with a role for each method, and TLS."""
    for method in ("scram", "md5", "plain", "trusted"):
        encryption = "md5" if method == "md5" else "scram-sha-256"
        own_postgres.execute(
            f"set password_encryption = '{encryption}';"
            f"create role {method} login replication superuser password '{_PASSWORD}'"
        )
    own_postgres.execute("create role alice login replication; create role bob login")
    folder = write_certificates(tmp_path / "pki")
    for name in ("ca.pem", "server.pem", "server.key"):
        target = own_postgres.data / name
        shutil.copy(folder / name, target)
        owner = own_postgres.data.stat()
        os.chown(target, owner.st_uid, owner.st_gid)
        target.chmod(0o600)
    with psycopg.connect(own_postgres.uri("postgres"), autocommit=True) as connection:
        for setting, value in [
            ("ssl_cert_file", "server.pem"), ("ssl_key_file", "server.key"),
            ("ssl_ca_file", "ca.pem"), ("ssl", "on"),
        ]:  # fmt: skip
            connection.execute(f"alter system set {setting} = '{value}'")
    own_postgres.set_hba(
        "host all scram 127.0.0.1/32 scram-sha-256",
        "host all md5 127.0.0.1/32 md5",
        "host all plain 127.0.0.1/32 password",
        "host all trusted 127.0.0.1/32 trust",
        "hostssl all alice 127.0.0.1/32 cert",
        "hostnossl all bob 127.0.0.1/32 reject",
    )
    return own_postgres


def _uri(server: PostgresCluster, user: str, password: str = "", **parameters: str) -> str:
    address = server.uri("postgres").rpartition("@")[2]
    secret = f":{password}" if password else ""
    query = "&".join(f"{name}={value}" for name, value in parameters.items())
    return f"postgresql://{user}{secret}@{address}{'?' if query else ''}{query}"


def _tls(connection: ReplicationConnection) -> bool:
    [(secure,)] = connection.query("select ssl from pg_stat_ssl where pid = pg_backend_pid()")
    return secure == "t"


@pytest.mark.parametrize("user", ["scram", "md5", "plain", "trusted"])
def test_methods(secured: PostgresCluster, user: str) -> None:
    for mode in ("disable", "prefer", "require"):
        uri = _uri(secured, user, _QUOTED, sslmode=mode)
        with ReplicationConnection(uri) as connection:
            assert connection.query("select current_user") == [(user,)]
            assert _tls(connection) == (mode != "disable")
    if user != "trusted":
        for uri in (_uri(secured, user, "wrong-pass"), _uri(secured, user)):
            with pytest.raises(ChangefeedError) as caught:
                ReplicationConnection(uri)
            assert caught.value.code.number == "CF2002"
            assert "wrong-pass" not in f"{caught.value.message} {caught.value.detail}"


def test_tls_modes(secured: PostgresCluster, tmp_path: Path) -> None:
    pki = tmp_path / "pki"
    authority = str(pki / "ca.pem")
    other = write_certificates(tmp_path / "other") / "ca.pem"
    for mode in ("require", "verify-ca", "verify-full"):
        with ReplicationConnection(
            _uri(secured, "trusted", sslmode=mode, sslrootcert=authority)
        ) as connection:
            assert _tls(connection)
        with pytest.raises(ChangefeedError) as caught:
            ReplicationConnection(_uri(secured, "trusted", sslmode=mode, sslrootcert=str(other)))
        assert caught.value.code.number == "CF2002" and "certificate" in caught.value.message
    with pytest.raises(ChangefeedError) as caught:
        ReplicationConnection(
            _uri(secured, "trusted", sslmode="verify-full", sslrootcert=str(tmp_path / "none"))
        )
    assert caught.value.code.number == "CF1207"
    client = {"sslcert": str(pki / "client.pem"), "sslkey": str(pki / "client.key")}
    with ReplicationConnection(_uri(secured, "alice", sslmode="require", **client)) as connection:
        assert connection.query("select current_user") == [("alice",)]
    with ReplicationConnection(
        _uri(secured, "scram", _QUOTED, sslmode="require", channel_binding="require")
    ) as connection:
        assert _tls(connection)
    with pytest.raises(ChangefeedError) as caught:
        ReplicationConnection(
            _uri(secured, "scram", _QUOTED, sslmode="disable", channel_binding="require")
        )
    assert caught.value.code.number == "CF2002"


def test_role_without_replication(secured: PostgresCluster) -> None:
    with pytest.raises(ChangefeedError) as caught:
        ReplicationConnection(_uri(secured, "bob", sslmode="require"))
    assert caught.value.code.number == "CF2004"


def test_no_such_database(postgres: Database) -> None:
    with pytest.raises(ChangefeedError) as caught:
        ReplicationConnection(postgres.uri + "_none")
    assert caught.value.code.number == "CF2002"


def test_server_without_tls(postgres: Database) -> None:
    with ReplicationConnection(f"{postgres.uri}?sslmode=prefer") as connection:
        assert not _tls(connection)
    with pytest.raises(ChangefeedError) as caught:
        ReplicationConnection(f"{postgres.uri}?sslmode=require")
    assert caught.value.code.number == "CF2002"


@pytest.mark.parametrize("postgres", [14, 18], indirect=True)
def test_session_prints_values_as_every_other_session(postgres: Database) -> None:
    with ReplicationConnection(postgres.uri) as connection:
        for name, value in SESSION.items():
            assert connection.query(f"show {name}") == [(value or '""',)] or value == ""
        assert connection.server_version // 10_000 in (14, 18)
        assert connection.query("show lock_timeout") == [("0",)]


def test_errors_of_commands(postgres: Database) -> None:
    with ReplicationConnection(postgres.uri) as connection:
        with pytest.raises(ChangefeedError) as caught:
            connection.start_replication("none", 0, {"proto_version": "1"})
        assert caught.value.code.number == "CF2102"
        connection.create_slot("one")
        with pytest.raises(ChangefeedError) as caught:
            connection.create_slot("one")
        assert caught.value.code.number == "CF2003"
        connection.drop_slot("one")
        assert connection.query("select 1, null") == [("1", None)]


def test_several_hosts(postgres: Database) -> None:
    address = postgres.uri.rpartition("@")[2].partition("/")[0]
    uri = postgres.uri.replace(address, f"127.0.0.1:1,{address}")
    with ReplicationConnection(uri) as connection:
        assert connection.identify_system().database == postgres.name


def test_close_wakes_a_waiting_thread(postgres: Database) -> None:
    connection = ReplicationConnection(postgres.uri)
    errors: list[str] = []
    waiting = threading.Event()

    def wait() -> None:
        waiting.set()
        try:
            connection.wait(30)
        except ChangefeedError as error:
            errors.append(error.code.number)

    thread = threading.Thread(target=wait)
    thread.start()
    waiting.wait(10)
    connection.close()
    connection.close()
    thread.join(10)
    assert not thread.is_alive() and errors == ["CF2101"]
    with pytest.raises(ChangefeedError):
        connection.query("select 1")


# ------------------------------------------------------------- what libpq does for both sessions


@pytest.mark.parametrize("required", ["scram-sha-256", "!password,!md5,!none"])
def test_require_auth_holds_for_the_stream(secured: PostgresCluster, required: str) -> None:
    with ReplicationConnection(_uri(secured, "scram", _QUOTED, require_auth=required)) as session:
        assert session.query("select current_user") == [("scram",)]
    for user in ("plain", "md5", "trusted"):
        with pytest.raises(ChangefeedError, match="authentication method requirement") as caught:
            ReplicationConnection(_uri(secured, user, _QUOTED, require_auth=required))
        assert caught.value.code.number == "CF2002" and "require_auth" in caught.value.hint


def test_a_service_and_a_password_file(
    secured: PostgresCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, port = secured.uri("postgres").rpartition("@")[2].partition("/")[0].split(":")
    passwords, services = tmp_path / "passwords", tmp_path / "services"
    word = _PASSWORD.replace(":", "\\:")
    passwords.write_text(f"{host}:{port}:postgres:scram:{word}\n")
    passwords.chmod(0o600)
    services.write_text(
        f"[shop]\nhost={host}\nport={port}\nuser=scram\ndbname=postgres\npassfile={passwords}\n"
        "sslmode=require\n"
    )
    monkeypatch.setenv("PGSERVICEFILE", str(services))
    with ReplicationConnection("postgresql:///?service=shop") as connection:
        assert connection.query("select current_user") == [("scram",)] and _tls(connection)
    with connect("postgresql:///?service=shop") as session:
        assert session.info.user == "scram"


def test_a_revoked_certificate_is_refused(secured: PostgresCluster, tmp_path: Path) -> None:
    pki = tmp_path / "pki"
    checked = {"sslmode": "verify-full", "sslrootcert": str(pki / "ca.pem")}
    for revoked in (False, True):
        crl = write_revocations(pki, tmp_path / "list.pem", revoked=revoked)
        uri = _uri(secured, "trusted", sslcrl=str(crl), **checked)
        if not revoked:
            with ReplicationConnection(uri) as connection:
                assert _tls(connection)
            continue
        for open_ in (ReplicationConnection, connect):
            with pytest.raises(ChangefeedError, match="certificate") as caught:
                open_(uri)
            assert caught.value.code.number == "CF2002" and "sslcrl" in caught.value.hint


def test_gssapi_without_a_ticket_says_what_is_missing(postgres: Database) -> None:
    uri = f"{postgres.uri}?gssencmode=require&sslmode=disable"
    with pytest.raises(ChangefeedError) as caught:
        ReplicationConnection(uri)
    assert caught.value.code.number == "CF2002" and "kinit" in caught.value.hint
    # Asked for, and not used: the bytes on the socket are still the protocol's own.
    with ReplicationConnection(uri.replace("require", "prefer")) as connection:
        assert connection.plain


def test_the_wanted_kind_of_server_is_looked_for(postgres: Database) -> None:
    address = postgres.uri.rpartition("@")[2].partition("/")[0]
    uri = postgres.uri.replace(address, f"127.0.0.1:1,{address}")
    with ReplicationConnection(f"{uri}?target_session_attrs=primary") as connection:
        assert connection.identify_system().database == postgres.name
    with pytest.raises(ChangefeedError, match="standby") as caught:
        ReplicationConnection(f"{uri}?target_session_attrs=standby")
    assert caught.value.code.number == "CF2001"


# ------------------------------------------------------------------------- the stream over TLS


@pytest.fixture
def encrypted(secured: PostgresCluster) -> Iterator[Database]:
    with secured.database() as database:
        database.uri += "?sslmode=require"
        yield database


def test_the_stream_over_tls_brings_what_the_socket_does(
    encrypted: Database, tmp_path: Path
) -> None:
    # A value larger than the buffer that the stream is read into, and many small ones.
    encrypted.execute("create table t (id int primary key, a text)")
    prepare(encrypted)
    with tailing(encrypted, tmp_path) as tail:
        encrypted.execute("insert into t values (0, repeat('x', 5000000))")
        encrypted.execute("insert into t select i, 'row ' || i from generate_series(1, 20000) i")
        encrypted.execute("delete from t where id = 0")
        tail.catch_up()
    changes = tail.changes()
    assert [c.op for c in changes] == ["c"] * 20_001 + ["d"]
    assert changes[0].after == {"id": 0, "a": "x" * 5_000_000}
    assert [c.after for c in changes[1:-1]] == [
        {"id": i, "a": f"row {i}"} for i in range(1, 20_001)
    ]


def test_a_stream_over_tls_ends_with_the_words_of_the_server(encrypted: Database) -> None:
    with ReplicationConnection(encrypted.uri) as connection:
        assert not connection.plain
        with pytest.raises(ChangefeedError) as caught:
            connection.start_replication("none", 0, {"proto_version": "1"})
        assert caught.value.code.number == "CF2102"
        connection.create_slot("one")
        encrypted.execute("create publication p")
        options = {"proto_version": "1", "publication_names": "p"}
        connection.start_replication("one", 0, options)
        connection.send_status(0, reply=True)
        inbox = Inbox(1 << 20)
        while not inbox.marks:
            connection.wait(10)
            inbox.fill(connection.receive_into)
            inbox.scan()
        encrypted.execute(
            "select pg_terminate_backend(active_pid) from pg_replication_slots"
            " where slot_name = 'one'"
        )
        with pytest.raises(ServerFailed, match="terminating connection") as failed:
            while True:
                connection.wait(10)
                inbox.fill(connection.receive_into)
                inbox.scan()
        assert failed.value.code.number == "CF2101"


def test_a_closed_stream_over_tls_lets_its_slot_go(encrypted: Database) -> None:
    encrypted.execute("create publication p")
    for _ in range(3):
        with ReplicationConnection(encrypted.uri) as connection:
            if not connection.query("select 1 from pg_replication_slots where slot_name = 'two'"):
                connection.create_slot("two")
            options = {"proto_version": "1", "publication_names": "p"}
            connection.start_replication("two", 0, options)
        until(
            lambda: (
                encrypted.execute(
                    "select active_pid from pg_replication_slots where slot_name = 'two'"
                )
                == [(None,)]
            )
        )


def test_closing_ends_a_command_that_waits(postgres: Database) -> None:
    """Creating a slot waits for every transaction that is open."""
    with psycopg.connect(postgres.uri) as open_transaction:
        open_transaction.execute("create table held (id int)")
        connection = ReplicationConnection(postgres.uri)
        errors: list[str] = []

        def create() -> None:
            try:
                connection.create_slot("three", temporary=True)
            except ChangefeedError as error:
                errors.append(error.code.number)

        thread = threading.Thread(target=create)
        thread.start()
        until(
            lambda: (
                postgres.execute(
                    "select 1 from pg_stat_activity where query like 'CREATE_REPL%three%'"
                )
                != []
            )
        )
        connection.close()
        thread.join(10)
        assert not thread.is_alive() and errors == ["CF2101"]


def test_what_a_stream_asks_of_a_connection_that_was_closed(postgres: Database) -> None:
    """A stream that is closed while it begins ends with our error, which it expects then."""
    with ReplicationConnection(postgres.uri) as connection:
        version = connection.server_version
        connection.close()
        assert connection.server_version == version >= 140_000
        for ask in (
            lambda: connection.query("select 1"),
            lambda: connection.start_replication("s", 0, {}),
        ):
            with pytest.raises(ChangefeedError) as caught:
                ask()
            assert caught.value.code.number == "CF2101"
