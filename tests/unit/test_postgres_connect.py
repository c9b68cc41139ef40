"""Sources by scheme, connection strings, and what an error may say."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import psycopg
import pytest

from changefeed.core.errors import Action, ChangefeedError
from changefeed.sources.base import Source
from changefeed.sources.postgres.connect import connection_info, translate
from changefeed.sources.registry import open_source, schemes

SECRET = "s3cr3t-pw"


def test_both_spellings_of_the_scheme_open_a_source() -> None:
    for scheme in ("postgresql", "postgres", "POSTGRES"):
        source = open_source("shop", f"{scheme}://u@127.0.0.1:1/db")
        assert isinstance(source, Source)
        assert source.name == "shop"
    assert {"postgres", "postgresql"} <= set(schemes())


def test_an_unknown_scheme_is_named_with_the_nearest_that_exists() -> None:
    with pytest.raises(ChangefeedError) as caught:
        open_source("shop", f"postgrsql://u:{SECRET}@h/db")
    assert caught.value.code.number == "CF1201"
    assert "postgrsql" in caught.value.message
    assert "did you mean 'postgresql'?" in caught.value.hint
    assert SECRET not in caught.value.message + caught.value.hint


@pytest.mark.parametrize("uri", ["", "shop", f"u:{SECRET}@host/db", "://h/db"])
def test_a_uri_without_scheme_is_refused_without_repeating_it(uri: str) -> None:
    with pytest.raises(ChangefeedError) as caught:
        open_source("shop", uri)
    assert caught.value.code.number == "CF1201"
    assert caught.value.message == "no scheme found for the URI of connection 'shop'"
    assert SECRET not in caught.value.hint


def test_an_unknown_parameter_is_named() -> None:
    with pytest.raises(ChangefeedError) as caught:
        connection_info(f"postgresql://u:{SECRET}@h/db?sslmod=require")
    assert caught.value.code.number == "CF1202"
    assert "'sslmod'" in caught.value.message
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    "uri", [f"postgresql://u:{SECRET}%zz@h/db", f"postgresql://u:{SECRET}@[::1/db"]
)
def test_a_malformed_uri_never_shows_its_password(uri: str) -> None:
    with pytest.raises(ChangefeedError) as caught:
        connection_info(uri)
    assert caught.value.code.number == "CF1201"
    assert SECRET not in f"{caught.value.message} {caught.value.hint} {caught.value.detail}"
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_the_uri_wins_over_our_defaults_and_changes_win_over_the_uri() -> None:
    info = psycopg.conninfo.conninfo_to_dict(
        connection_info(
            "postgresql://u@h/db?connect_timeout=3&replication=true", replication="database"
        )
    )
    assert info["connect_timeout"] == "3"
    assert info["replication"] == "database"
    assert info["application_name"] == "changefeed"


def _parts(uri: str) -> Mapping[str, object]:
    return psycopg.conninfo.conninfo_to_dict(connection_info(uri))


def test_the_environment_wins_over_our_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGGSSENCMODE", "require")
    assert "gssencmode" not in _parts("postgresql://u@h/db")
    assert _parts("postgresql://u@h/db?gssencmode=prefer")["gssencmode"] == "prefer"
    monkeypatch.delenv("PGGSSENCMODE")
    assert _parts("postgresql://u@h/db")["gssencmode"] == "disable"


SERVICES = f"""
[shop]
host=one.example,two.example
port=6000
user=feeds
password={SECRET}
connect_timeout=33
gssencmode=require
target_session_attrs=read-write
"""


@pytest.fixture
def services(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "services"
    file.write_text(SERVICES)
    monkeypatch.setenv("PGSERVICEFILE", str(file))
    return file


@pytest.mark.parametrize("by_environment", [False, True])
def test_a_service_fills_what_the_uri_leaves_open(
    services: Path, monkeypatch: pytest.MonkeyPatch, by_environment: bool
) -> None:
    # Both would win over the service if psycopg were left to look for hosts by itself.
    monkeypatch.setenv("PGHOST", "other.example")
    monkeypatch.setenv("PGSSLMODE", "disable")
    if by_environment:
        monkeypatch.setenv("PGSERVICE", "shop")
        found = _parts("postgresql:///orders?connect_timeout=4")
    else:
        found = _parts("postgresql:///orders?service=shop&connect_timeout=4")
    wanted = {
        "host": "one.example,two.example", "port": "6000", "user": "feeds", "password": SECRET,
        "connect_timeout": "4", "gssencmode": "require", "target_session_attrs": "read-write",
        "dbname": "orders", "sslmode": "disable", "keepalives_idle": "30",
    }  # fmt: skip
    assert {name: found[name] for name in wanted} == wanted
    assert "service" not in found


def test_a_user_of_the_uri_names_the_database_as_ever(services: Path) -> None:
    found = _parts("postgresql://someone@?service=shop")
    assert (found["user"], found["dbname"]) == ("someone", "someone")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (SERVICES, 'service "none" not found'),
        (f"[none]\npassword {SECRET}\n", "syntax error in service file"),
        (f"[none]\nnonsense={SECRET}\n", "syntax error in service file"),
    ],
)
def test_a_service_that_cannot_be_read_is_an_error_of_the_uri(
    services: Path, text: str, words: str
) -> None:
    services.write_text(text)
    with pytest.raises(ChangefeedError, match=words) as caught:
        connection_info("postgresql:///?service=none")
    assert caught.value.code.number == "CF1207" and "PGSERVICEFILE" in caught.value.hint
    assert SECRET not in f"{caught.value.message} {caught.value.hint} {caught.value.detail}"
    # The source is still known: what is stored can be looked at and altered.
    assert open_source("shop", "postgresql:///?service=none").name == "shop"


def test_a_source_does_not_show_its_uri() -> None:
    assert SECRET not in repr(open_source("shop", f"postgresql://u:{SECRET}@h/db"))


@pytest.mark.parametrize(
    ("error", "code", "action"),
    [
        (psycopg.errors.InsufficientPrivilege("no"), "CF2004", Action.USER),
        (psycopg.errors.TooManyConnections("full"), "CF2005", Action.RETRY),
        (psycopg.errors.LockNotAvailable("locked"), "CF2005", Action.RETRY),
        (psycopg.errors.AdminShutdown("bye"), "CF2001", Action.RETRY),
        (psycopg.errors.InvalidPassword("no"), "CF2002", Action.STOP),
        (psycopg.OperationalError("connection refused"), "CF2001", Action.RETRY),
        (
            psycopg.OperationalError('FATAL:  password authentication failed for user "u"'),
            "CF2002",
            Action.STOP,
        ),
        (psycopg.errors.SyntaxError("bad"), "CF2003", Action.USER),
        (
            psycopg.OperationalError(
                'authentication method requirement "scram-sha-256" failed: server requested a'
                " cleartext password"
            ),
            "CF2002",
            Action.STOP,
        ),
        (
            psycopg.OperationalError("connection is bad: GSSAPI encryption required but no"),
            "CF2002",
            Action.STOP,
        ),
        (
            psycopg.OperationalError('root certificate file "/a" does not exist'),
            "CF1207",
            Action.USER,
        ),
        (
            psycopg.OperationalError("FATAL:  must be superuser or replication role to start"),
            "CF2004",
            Action.USER,
        ),
        (
            psycopg.OperationalError("expected authentication request from server, but received H"),
            "CF2001",
            Action.RETRY,
        ),
    ],
)
def test_errors_of_the_driver_get_our_codes(
    error: psycopg.Error, code: str, action: Action
) -> None:
    known = translate(error, "do it")
    assert (known.code.number, known.action) == (code, action)
    assert known.message.startswith("cannot do it: ")


def test_a_database_that_is_not_there_is_not_a_wrong_password() -> None:
    where = 'connection failed: connection to server at "h", port 1 failed: '
    error = psycopg.OperationalError(f'{where}FATAL:  database "nodb" does not exist')
    known = translate(error, "connect")
    assert 'database "nodb" does not exist' in known.message
    assert "name of the database" in known.hint and "password" not in known.hint
