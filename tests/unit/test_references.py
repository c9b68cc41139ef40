"""Secrets by reference: where they may be, what is read, and what errors say of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import psutil
import pytest

from changefeed.core.errors import Action, ChangefeedError, Code
from changefeed.core.references import (
    LONGEST,
    refused_login,
    resolved_options,
    resolved_text,
    resolved_uri,
)
from changefeed.core.secret_names import is_secret
from changefeed.core.uri import redact, sink_location, split_uri
from changefeed.options import is_hidden
from changefeed.sources import registry as source_registry
from changefeed.sources.registry import open_source
from sinks import registry
from sinks.files.sink import FilesSink
from tests.helpers.waiting import until

#: What a URI could trip over.
SECRET = "p@s/s:w?r&d#%41 ${env:OTHER}"


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mapping[str, str]:
    """A secret in each kind of place; its reference by kind."""
    monkeypatch.setenv("CF_TEST_SECRET", SECRET)
    (tmp_path / "secret").write_text(f"{SECRET}\n")
    return {
        "env": "${env:CF_TEST_SECRET}",
        "file": f"${{file:{tmp_path}/secret}}",
        "exec": f"${{exec:cat '{tmp_path}/secret'}}",
    }


@pytest.mark.parametrize("kind", ["env", "file", "exec"])
def test_a_reference_stands_for_the_secret_alone(kind: str, places: Mapping[str, str]) -> None:
    uri = f"kafka://u:{places[kind]}@h:9092/?topic_prefix=x&sasl_password={places[kind]}"
    parts = split_uri(resolved_uri(uri))
    assert (parts.user, parts.password, str(parts.hosts[0])) == ("u", SECRET, "h:9092")
    assert parts.parameters == (("topic_prefix", "x"), ("sasl_password", SECRET))
    # Before it is read, the reference itself is the password.
    assert split_uri(uri).password == places[kind]


@pytest.mark.parametrize("kind", ["env", "file", "exec"])
def test_listings_hide_a_reference_as_they_hide_a_secret(
    kind: str, places: Mapping[str, str]
) -> None:
    uri = f"kafka://u:{places[kind]}@h:9092/?topic_prefix=x&sasl_password={places[kind]}"
    hidden = "kafka://u:redacted@h:9092/?topic_prefix=x&sasl_password=redacted"
    assert redact(uri) == sink_location(uri) == hidden


def test_a_reference_that_was_percent_encoded_is_one(places: Mapping[str, str]) -> None:
    encoded = quote(places["file"], safe="")
    assert split_uri(resolved_uri(f"kafka://u:{encoded}@h")).password == SECRET


def test_a_uri_inside_a_uri(places: Mapping[str, str]) -> None:
    inner = f"https://u:{places['file']}@r:8081"
    for written in (inner, quote(inner, safe="")):
        outer = resolved_uri(f"kafka://h?confluent_schema_registry={written}")
        (found,) = split_uri(outer).parameters
        assert split_uri(found[1]).password == SECRET
    nested = resolved_uri(f"experimental-sql:///postgresql://u:{places['file']}@h/d")
    assert split_uri(nested.partition(":///")[2]).password == SECRET


def test_the_path_of_a_webhook_is_a_secret(places: Mapping[str, str]) -> None:
    found = resolved_uri(f"webhook-https://h/services/{places['env']}")
    assert split_uri(found).path == f"/services/{SECRET}"


@pytest.mark.parametrize(
    "uri",
    [
        "kafka://${env:CF_TEST_SECRET}",
        "kafka://${env:CF_TEST_SECRET}:9092",
        "file:///${env:CF_TEST_SECRET}",
        "kafka://h?topic_prefix=${env:CF_TEST_SECRET}",
        "kafka://h?${env:CF_TEST_SECRET}=x",
    ],
)
def test_what_would_be_shown_is_not_read(uri: str) -> None:
    with pytest.raises(ChangefeedError, match="stands where the URI has no secret") as caught:
        resolved_uri(uri)
    assert caught.value.code is Code.INVALID_URI


def test_options_that_are_secrets(places: Mapping[str, str]) -> None:
    options: dict[str, Any] = {
        "webhook_auth_header": "Bearer ${env:CF_TEST_SECRET}",
        "extra_headers": (("authorization", places["env"]), ("origin", "shop")),
        "confluent_schema_registry": f"http://u:{places['file']}@r",
        "topic_prefix": "${env:CF_TEST_SECRET}",
        "diff": True,
    }
    found = resolved_options(options, is_hidden)
    assert found["webhook_auth_header"] == f"Bearer {SECRET}"
    assert found["extra_headers"] == (("authorization", SECRET), ("origin", "shop"))
    assert split_uri(found["confluent_schema_registry"]).password == SECRET
    # No secret by its name: it would be shown.
    assert found["topic_prefix"] == "${env:CF_TEST_SECRET}"
    assert found["diff"] is True
    plain = {"webhook_auth_header": "Bearer x", "diff": True}
    assert resolved_options(plain, is_hidden) is plain


def test_every_opening_reads_again(tmp_path: Path) -> None:
    place = tmp_path / "rotated"
    found = []
    for password in ("old", "new"):
        place.write_text(password)
        sink = registry.open_sink(f"http://u:${{file:{place}}}@h/feeds")
        assert isinstance(sink, FilesSink)
        found.append(sink.settings.uri.password)
    assert found == ["old", "new"]


@pytest.mark.parametrize(
    ("reference", "why"),
    [
        ("${env:CF_TEST_NONE}", "no such variable"),
        ("${file:/nowhere/cf}", "No such file or directory"),
        ("${file:relative}", "the path is not absolute"),
        ("${file:/dev/null}", "it is empty"),
        ("${file:/dev/zero}", f"it is longer than {LONGEST} bytes"),
        ("${exec:}", "there is no command"),
        ("${exec:sh -c 'x}", "a quote of the command is not closed"),
        ("${exec:/nowhere/cf token-Zq9}", "No such file or directory"),
        ("${exec:sh -c 'echo Zq9; echo Zq9 >&2; exit 7'}", "ended with status 7"),
        (r"${exec:printf '\377Zq9'}", "it is not UTF-8 text"),
    ],
)
def test_an_error_says_which_and_why_and_no_content(reference: str, why: str) -> None:
    with pytest.raises(ChangefeedError) as caught:
        resolved_text(reference)
    error = caught.value
    assert error.code is Code.SECRET_UNREADABLE
    assert why in error.message
    assert "Zq9" not in f"{error.message}{error.detail}{error.hint}{error!r}"
    kind = reference[:6]
    assert kind in error.message
    assert (error.hint == "write the whole path, from /.") == ("relative" in reference)


@pytest.mark.parametrize("resolve", [resolved_text, resolved_uri])
def test_a_reference_of_no_kind_is_no_password(resolve: Callable[[str], str]) -> None:
    with pytest.raises(ChangefeedError) as caught:
        resolve("postgresql://app:${vault:Zq9}@db/shop")
    assert caught.value.code is Code.SECRET_UNREADABLE
    assert "kinds are env, file and exec" in caught.value.hint
    assert "Zq9" not in f"{caught.value!r}{caught.value.message}"
    assert resolved_uri("postgresql://app:%24%7Bvault:Zq9%7D@db/shop").startswith("postgresql")
    assert resolved_text("a ${SHELL} of ${0:x}") == "a ${SHELL} of ${0:x}"


def test_a_command_has_a_time_limit_with_all_that_it_started(tmp_path: Path) -> None:
    started = tmp_path / "started"
    # The second one holds the output open after the first was killed.
    command = f"sh -c 'sleep 600 & echo $! >{started}; echo Zq9; sleep 600'"
    with pytest.raises(ChangefeedError, match=r"took longer than 0\.5 seconds") as caught:
        resolved_text(f"${{exec:{command}}}", patience=0.5)
    assert "Zq9" not in f"{caught.value.message}{caught.value.detail}"
    number = int(started.read_text())
    until(lambda: not psutil.pid_exists(number) or psutil.Process(number).status() == "zombie")


def _secret_places() -> Iterator[tuple[str, str]]:
    """Each hidden parameter of each sink and each source, in a URI with {} in its place."""
    for kind in (registry, source_registry):
        for scheme in kind.schemes():
            for parameter in kind.parameters(scheme):
                if is_secret(parameter.name):
                    yield f"{scheme}/{parameter.name}", f"{scheme}://h/x?{parameter.name}={{}}"
            yield f"{scheme}/password", f"{scheme}://u:{{}}@h/x"


@pytest.mark.parametrize("uri", [pytest.param(uri, id=name) for name, uri in _secret_places()])
def test_each_secret_of_each_sink_and_source(uri: str, places: Mapping[str, str]) -> None:
    """It takes a reference, and nothing that is shown has the secret or the reference."""
    for reference in places.values():
        stated = uri.format(reference)
        found = resolved_uri(stated)
        values = [split_uri(found).password, *(value for _, value in split_uri(found).parameters)]
        assert SECRET in values
        for shown in (redact(stated), redact(found), sink_location(stated), sink_location(found)):
            assert "redacted" in shown
            assert not any(word in unquote(shown) for word in (SECRET, "${", "CF_TEST", "secret}"))


def test_a_check_tells_of_a_missing_reference() -> None:
    uri = "kafka://h?sasl_enabled=true&sasl_user=u&sasl_password=${env:CF_TEST_NONE}"
    (problem,) = registry.check(uri, {})
    assert "${env:CF_TEST_NONE} cannot be read" in problem.message
    with pytest.raises(ChangefeedError, match=r"\$\{env:CF_TEST_NONE\} cannot be read"):
        open_source("shop", "postgresql://u:${env:CF_TEST_NONE}@h/d")


def test_a_refused_login_is_tried_again_where_the_secret_may_be_replaced() -> None:
    error = ChangefeedError(Code.SOURCE_REFUSED_LOGIN, "password authentication failed")
    assert refused_login(error, lambda: ["postgresql://u:p@h/d"]) is error
    other = refused_login(error, lambda: ["postgresql://u:${env:P}@h/d"])
    assert (other.action, other.message) == (Action.RETRY, error.message)
    broke = ChangefeedError(Code.STREAM_BROKE, "gone")

    def unreachable() -> list[str]:
        raise ChangefeedError(Code.STATE_UNREACHABLE, "the state is away")

    assert refused_login(broke, unreachable) is broke
