"""What a server that speaks another language says of a login is known by its SQLSTATE."""

from __future__ import annotations

import pytest

from changefeed.core.errors import Action, ChangefeedError
from changefeed.sources.postgres.connect import connect, connect_replication
from sinks.warehouse.postgresql import PostgreSQL
from tests.helpers.refused_logins import SECRET, TRACES, error, refusing, traces

pytestmark = pytest.mark.skipif(not TRACES, reason="libpq before 18 does not trace logins")


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


@pytest.mark.parametrize(
    ("state", "text", "code", "action"),
    [
        ("28P01", "Passwort-Authentifizierung für Benutzer »x« fehlgeschlagen", "CF5002", "stop"),
        ("3D000", "la base de données « d » n'existe pas", "CF5002", "stop"),
        ("42501", "keine Berechtigung", "CF5002", "stop"),
        ("57P03", "das Datenbanksystem startet", "CF5001", "retry"),
        ("53300", "désolé, trop de clients sont déjà connectés", "CF5004", "retry"),
    ],
)
def test_a_sink_knows_a_refusal_by_its_sqlstate_too(
    state: str, text: str, code: str, action: str
) -> None:
    with refusing(error(state, text)) as (server, uri):
        with pytest.raises(ChangefeedError) as caught:
            PostgreSQL(uri, "public", "PostgreSQL here").connect()
        found = caught.value
        assert (found.code.number, found.action) == (code, Action(action))
        assert f"SQLSTATE {state}" in found.detail
        assert SECRET not in repr((found.message, found.detail, found.hint))
        assert server.logins == 2, "it is asked for once more"
        assert not traces(), "a trace has the password"


def test_a_sink_asks_once_where_the_words_are_understood() -> None:
    answer = error("28P01", 'password authentication failed for user "x"')
    with refusing(answer) as (server, uri), pytest.raises(ChangefeedError) as caught:
        PostgreSQL(uri, "public", "PostgreSQL here").connect()
    assert caught.value.code.number == "CF5002" and server.logins == 1
