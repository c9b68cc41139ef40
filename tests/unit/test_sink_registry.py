"""Schemes, what is said of a wrong URI, and what a listing may load."""

from __future__ import annotations

import importlib.metadata
import inspect
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.secret_names import is_secret
from changefeed.core.settings import Parameter, ParameterKind
from changefeed.core.uri import sink_location
from changefeed.options import Feature, masking
from changefeed.sources import registry as sources
from changefeed_testing.sinks.conformance import CASES
from changefeed_testing.sinks.feed import FeedDouble, at, put
from sinks import registry
from sinks.base import DECLARED
from sinks.null.sink import NullSink


def messages(uri: str) -> list[str]:
    return [f"{error.code.number} {error.message}" for error in registry.check(uri)]


def test_listing_imports_no_sink() -> None:
    code = (
        "import sys; from sinks import registry; registry.schemes(); registry.entry('kafka');"
        "print([m for m in sys.modules if m.startswith(('sinks.k', 'sinks.f', 'confluent'))])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_checking_a_kafka_uri_does_not_load_the_client() -> None:
    code = (
        "import sys; from sinks import registry; registry.capabilities('kafka');"
        "assert registry.check('kafka://h:9092') == []; print('confluent_kafka' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"


@pytest.mark.parametrize("scheme", registry.schemes())
def test_every_scheme_has_a_sink_and_an_example_that_passes(scheme: str) -> None:
    entry = registry.entry(scheme)
    assert entry.summary
    assert registry.capabilities(scheme).formats
    assert messages(entry.example) == []


def test_hidden_schemes_are_not_offered() -> None:
    assert "sinkless" not in registry.schemes()
    assert registry.capabilities("sinkless").executor is False


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("", "CF1201 omit the SINK clause"),
        ("localhost", "CF1201 no scheme found for sink URL"),
        ("kafak://h", "CF1201 unsupported sink: kafak"),
        ("file://host/dir", "CF1201 a file sink needs an absolute path and no host"),
        ("file:///d?partition_format=weekly", "CF1207 param partition_format must be one of "),
        ("file:///d?file_size=big", "CF1207 param file_size must be a size such as 16MB"),
        ("file:///d?x=1", "CF1202 unknown file sink query parameters: [x]"),
        ("null://?x=1", "CF1202 unknown null sink query parameters: [x]"),
        ("experimental-sql:///shop", "CF1201 the sink URI names no database"),
        ("experimental-sql:///nonsense://x", "CF1201 the sink URI is not a database URL"),
    ],
)
def test_wrong_uris(uri: str, expected: str) -> None:
    found = messages(uri)
    assert len(found) == 1
    assert found[0].startswith(expected)


def test_a_misspelt_scheme_gets_a_suggestion() -> None:
    with pytest.raises(ChangefeedError) as caught:
        registry.open_sink("kafak://h")
    assert caught.value.hint == 'did you mean "kafka://"?'


def test_a_missing_package_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = registry.SchemeEntry(
        "sinks.null.sink:NullSink", "x", packages=("no_such_package",), extra="special"
    )
    monkeypatch.setitem(registry.BUILT_IN, "null", entry)
    with pytest.raises(ChangefeedError) as caught:
        registry.open_sink("null://")
    assert caught.value.code.number == "CF5005"
    assert caught.value.hint == "pip install 'changefeed[special]'"
    assert messages("null://") == [f"CF5005 {caught.value.message}"]


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    point = importlib.metadata.EntryPoint(
        "outsider", "sinks.null.sink:NullSink", "changefeed.sinks"
    )
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [point])
    registry._plugins.cache_clear()
    yield
    registry._plugins.cache_clear()


def test_sinks_of_other_packages_join(plugin: None) -> None:
    assert "outsider" in registry.schemes()
    assert isinstance(registry.open_sink("outsider://"), NullSink)


def test_what_a_package_says_of_its_sink_is_listed_and_nothing_of_it_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "shelf_sink-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: shelf-sink\nVersion: 1\nSummary: Shelves of boxes\n")
    (info / "entry_points.txt").write_text(
        "[changefeed.sinks]\nshelf = shelf_sink:ShelfSink [client]\n"
    )
    (tmp_path / "shelf_sink.py").write_text("import shelf_client\n")
    monkeypatch.syspath_prepend(tmp_path)
    registry._plugins.cache_clear()
    try:
        [listed] = [offer for offer in registry.offers() if offer.scheme == "shelf"]
        assert listed.summary == "from shelf-sink: Shelves of boxes"
        assert "shelf_sink" not in sys.modules
        with pytest.raises(ChangefeedError, match="shelf:// needs shelf-sink") as refused:
            registry.capabilities("shelf")
        assert refused.value.hint == "pip install 'shelf-sink[client]'"
    finally:
        registry._plugins.cache_clear()


def test_one_sink_alone_is_told_the_state_database() -> None:
    told = [s for s in registry.BUILT_IN if registry.capabilities(s).state_database]
    assert told == ["experimental-sql"]


def test_what_is_no_sink_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        registry.BUILT_IN, "null", registry.SchemeEntry("sinks.registry:SchemeEntry", "x")
    )
    with pytest.raises(ChangefeedError) as caught:
        registry.capabilities("null")
    assert "which is no sink" in caught.value.message


@pytest.mark.parametrize("declared", DECLARED)
def test_a_sink_declares_what_it_has_methods_for(declared: str) -> None:
    flag: dict[str, Any] = {declared: True}
    if declared == "compares":
        flag = {"features": NullSink.capabilities.features | {Feature.COMPARISON}}
    able = replace(NullSink.capabilities, **flag)
    with pytest.raises(TypeError, match=f"declares {declared} and has no"):
        type("Boaster", (NullSink,), {"capabilities": able})
    methods = {name: lambda self: None for name in DECLARED[declared]}
    with pytest.raises(TypeError, match=f"does not declare {declared}"):
        type("Modest", (NullSink,), methods)
    assert type("Honest", (NullSink,), {"capabilities": able, **methods})("null://").rows == 0
    for name in DECLARED[declared]:
        call = getattr(NullSink(), name)
        with pytest.raises(AssertionError, match=f"NullSink does not declare {declared}"):
            call(*[None] * len(inspect.signature(call).parameters))


@pytest.mark.parametrize(
    "uri",
    [
        "kafka://h?sasl_enabled=true&sasl_user=u&sasl_password=hunter2",
        "confluent-cloud://h?api_key=k&api_secret=hunter2",
        "azure-event-hub://h?shared_access_key_name=n&shared_access_key=hunter2",
        "experimental-sql:///postgresql://app:hunter2@db/shop",
        "experimental-sql:///postgresql://db/shop?password=hunter2",
    ],
)
def test_locations_hide_secrets(uri: str) -> None:
    shown = sink_location(uri)
    assert "hunter2" not in shown
    assert shown.startswith(uri.partition(":")[0])
    assert "hunter2" not in str(registry.check(uri + "&wrong=1"))


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("kafka://h", "shop.public.t"),
        ("kafka://h?topic_prefix=a_", "a_shop.public.t"),
        ("kafka://h?kafka_topic_prefix=a_", "a_shop.public.t"),
        ("kafka://h?topic_name=all&topic_prefix=a_", "a_all"),
        ("file:///d?topic_prefix=a_", "a_shop.public.t"),
        ("null://", "shop.public.t"),
    ],
)
def test_topic_namer(uri: str, expected: str) -> None:
    assert registry.topic_namer(uri)("shop.public.t") == expected


def test_the_guide_names_every_scheme_and_case() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "sink-guide.md").read_text()
    wanted = {f"`{case.name}`" for case in CASES}
    wanted |= {f"{scheme}://" for scheme in registry.schemes()}
    assert [text for text in sorted(wanted) if text not in guide] == []


def _declared() -> list[tuple[str, Parameter]]:
    return [(scheme, one) for scheme in registry.schemes() for one in registry.parameters(scheme)]


def _given(scheme: str, name: str, value: str) -> list[ChangefeedError]:
    """What is said of the scheme's example with one more parameter, or with another value of it."""
    address, _, query = registry.entry(scheme).example.partition("?")
    kept = [part for part in query.split("&") if part and part.partition("=")[0] != name]
    return registry.check(f"{address}?{'&'.join([*kept, f'{name}={value}'])}")


@pytest.mark.parametrize(
    ("scheme", "one"), _declared(), ids=lambda v: v if isinstance(v, str) else v.name
)
def test_a_declared_parameter_is_taken_as_what_it_is_declared(scheme: str, one: Parameter) -> None:
    name = one.name.replace("*", "x")
    assert is_secret(name) == one.secret or one.begins
    about = [error for error in _given(scheme, name, "no%20such!") if name in str(error)]
    assert [error for error in about if error.code is Code.UNKNOWN_PARAMETER] == []
    if one.kind not in (ParameterKind.TEXT, ParameterKind.PATH, ParameterKind.URL):
        assert about, "a value of another kind is refused"
    for value in one.values:
        assert [e for e in _given(scheme, name, value) if "must be one of" in e.message] == []


@pytest.mark.parametrize("scheme", [s for s in registry.schemes() if not s.startswith("webhook")])
def test_an_unknown_parameter_is_an_error_that_lists_what_there_is(scheme: str) -> None:
    if scheme == "experimental-sql":
        return  # what follows is the database's
    (error,) = [e for e in _given(scheme, "qqqq", "1") if e.code is Code.UNKNOWN_PARAMETER]
    names = ", ".join(one.name for one in registry.parameters(scheme))
    assert error.hint == (f"it takes {names}" if names else "it takes none")


SOURCES = {
    "mongodb": "mongodb://u@h/d",
    "mysql": "mysql://u@h/d",
    "postgresql": "postgresql://u@h/d",
    "sqlserver": "sqlserver://u@h/d",
}


@pytest.mark.parametrize(
    ("scheme", "one"),
    [(scheme, one) for scheme in SOURCES for one in sources.parameters(scheme)],
    ids=lambda v: v if isinstance(v, str) else v.name,
)
def test_a_declared_parameter_of_a_source_is_taken(scheme: str, one: Parameter) -> None:
    name, uri = one.name.replace("*", "x"), SOURCES[scheme]
    assert is_secret(name) == one.secret or one.begins
    try:
        sources.open_source("c", f"{uri}?{name}=no%20such!")
        problems: list[ChangefeedError] = []
    except ChangefeedError as error:
        problems = getattr(error, "problems", None) or [error]
    assert [p for p in problems if p.code is Code.UNKNOWN_PARAMETER] == []
    if one.kind not in (ParameterKind.TEXT, ParameterKind.PATH):
        assert [p for p in problems if name in p.message], "a value of another kind is refused"


def test_what_is_shown_of_an_echoed_statement_is_declared_harmless() -> None:
    harmless = {one.name for _, one in _declared() if not one.secret}
    assert sorted(masking._HARMLESS_PARAMETERS - harmless) == []


def test_null_counts() -> None:
    sink = NullSink()
    feed = FeedDouble({"t": "t"})
    feed.open(sink)
    feed.deliver(sink, [put(1, "x", 1), put(2, "x", 1)])
    feed.truncate(sink, "t", at(2))
    feed.resolve(sink)
    sink.close()
    assert (sink.rows, sink.marks) == (2, 2)
    assert sink.bytes > 50


@pytest.mark.parametrize("uri", ["localhost:9092", "10.0.0.1:9092", "broker.example.com:1/"])
def test_an_address_alone_has_no_scheme(uri: str) -> None:
    with pytest.raises(ChangefeedError) as caught:
        registry.scheme_of(uri)
    assert caught.value.code.number == "CF1201"
    assert caught.value.hint == f"write the kind of server in front, for example kafka://{uri}"


@pytest.mark.parametrize("scheme", registry.schemes())
def test_a_sink_that_was_not_opened_can_be_closed(scheme: str) -> None:
    """Feeds close one whose ``open`` failed, however far it came."""
    sink = registry.open_sink(registry.entry(scheme).example)
    sink.close()
    sink.close()
    assert sink.topic("t")


@pytest.mark.parametrize("scheme", ["postgresql", "redshift"])
def test_a_password_that_libpq_cannot_read_is_an_error_of_the_uri(scheme: str) -> None:
    sink = registry.open_sink(f"{scheme}://someone:50%off@127.0.0.1:1/shop")
    with pytest.raises(ChangefeedError) as caught:
        sink.open(FeedDouble({"t": "t"}).context())
    assert caught.value.code is Code.INVALID_URI
    assert "%25" in (caught.value.hint or "")
    assert "50" not in f"{caught.value.message} {caught.value.detail}"
    sink.close()
