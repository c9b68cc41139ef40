"""Completion in the shell: the grammar's kinds filled with names, options and values."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from prompt_toolkit.completion import CompleteEvent, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.formatted_text import fragment_list_to_text, to_formatted_text

from shell.repl.complete import ShellCompleter, quoted
from shell.repl.highlight import fragments
from shell.repl.history import History, holds_secret
from shell.repl.names import Names


class Known:
    """A source with three tables in two schemas."""

    def connections(self) -> list[str]:
        return ["lake", "shop"]

    def feeds(self) -> list[str]:
        return ["orders_feed", "Other"]

    def tables(self, source: str | None = None) -> list[tuple[str, str]]:
        if source == "lake":
            return []
        return [("public", "orders"), ("public", "order_items"), ("sales", "Deals")]

    def columns(self, table: tuple[str, ...], source: str | None = None) -> list[tuple[str, str]]:
        return [("id", "bigint"), ("total", "numeric(12,2)")] if table[-1] == "orders" else []


def found(text: str) -> list[Completion]:
    document = Document(text, len(text))
    return list(ShellCompleter(Known()).get_completions(document, CompleteEvent()))


def after(text: str) -> list[str]:
    """The whole text for each completion."""
    return [text[: len(text) + c.start_position] + c.text for c in found(text)]


def meta(text: str, choice: str) -> str:
    completion = next(c for c in found(text) if c.text == choice)
    return fragment_list_to_text(to_formatted_text(completion.display_meta))


def test_keywords() -> None:
    assert after("sh") == ["SHOW"]
    assert after("PAUSE CHANGEFEED orders_feed") == []


def test_tables_schemas_and_connections() -> None:
    text = "CREATE CHANGEFEED FOR ord"
    assert set(after(text)) == {
        "CREATE CHANGEFEED FOR orders",
        "CREATE CHANGEFEED FOR order_items",
    }
    every = {c.text for c in found("CREATE CHANGEFEED FOR ")}
    assert {"orders", '"Deals"', "public", "sales", "shop"} <= every
    assert after("CREATE CHANGEFEED FOR sales.") == ['CREATE CHANGEFEED FOR sales."Deals"']
    assert after("CREATE CHANGEFEED FOR shop.public.orders, shop.sales.") == [
        'CREATE CHANGEFEED FOR shop.public.orders, shop.sales."Deals"'
    ]
    assert after('CREATE CHANGEFEED FOR "De') == ['CREATE CHANGEFEED FOR "Deals"']


def test_columns_of_that_table() -> None:
    assert [c.text for c in found("CREATE CHANGEFEED FOR orders (")] == ["id", "total"]
    assert meta("CREATE CHANGEFEED FOR orders (", "total") == "numeric(12,2)"


def test_options_of_that_very_sink() -> None:
    head = "CREATE CHANGEFEED FOR orders INTO '{}' WITH "
    kafka = {c.text for c in found(head.format("kafka://h"))}
    files = {c.text for c in found(head.format("file:///d"))}
    assert "kafka_sink_config" in kafka - files
    assert "resolved" in kafka & files
    assert "Emits resolved timestamps" in meta(head.format("kafka://h"), "resolved")
    assert "diff" not in {c.text for c in found(head.format("kafka://h") + "diff, ")}


def test_option_values() -> None:
    text = "CREATE CHANGEFEED FOR t WITH envelope = "
    assert "'wrapped'" in [c.text for c in found(text)]
    assert meta(text, "'wrapped'") == "default"
    assert after(f"{text}'key_") == [f"{text}'key_only'"]
    assert after("CREATE CHANGEFEED FOR t WITH resolved = ") == [
        "CREATE CHANGEFEED FOR t WITH resolved = '10s'"
    ]


def test_uris() -> None:
    assert after("CREATE CHANGEFEED FOR t INTO 'kaf") == ["CREATE CHANGEFEED FOR t INTO 'kafka://"]
    assert "'external://lake'" in [c.text for c in found("CREATE CHANGEFEED FOR t INTO ")]
    assert after("CREATE EXTERNAL CONNECTION c AS 'postgresq") == [
        "CREATE EXTERNAL CONNECTION c AS 'postgresql://"
    ]


def test_feeds_are_quoted_where_they_must_be() -> None:
    assert {c.text for c in found("PAUSE CHANGEFEED ")} >= {"orders_feed", '"Other"'}
    assert quoted('a"b') == '"a""b"'


def test_columns_of_the_listing() -> None:
    head = "SHOW CHANGEFEEDS WHERE"
    assert after(f"{head} sta") == [f"{head} status", f"{head} started"]


def test_local_commands(tmp_path: Path) -> None:
    assert after("\\ti") == ["\\timing"]
    assert meta("\\", "\\q") == "leave"
    assert after("\\h show jo") == ["\\h SHOW JOBS"]
    assert after("\\set form") == ["\\set format"]
    assert after("\\set format js") == ["\\set format json", "\\set format jsonl"]
    assert after("\\watch 5 SHOW JO") == ["\\watch 5 SHOW JOBS"]
    assert after("\\d order_") == ["\\d order_items"]
    (tmp_path / "feeds.sql").touch()
    (tmp_path / "other.txt").touch()
    (tmp_path / "sub").mkdir()
    assert after(f"\\i {tmp_path}/") == [f"\\i {tmp_path}/feeds.sql", f"\\i {tmp_path}/sub/"]
    assert after("\\nothing x") == []


@pytest.mark.parametrize("text", ["-- comment ", "SHOW /* open ", "GARBAGE here ", "'open"])
def test_nothing_fits_there(text: str) -> None:
    assert found(text) == []


@pytest.mark.parametrize(
    "text", ["", "SELECT 'a\nb' -- c\n; x", '"open', "create changefeed /* a", "\\h show", "a;;b"]
)
def test_highlighting_keeps_the_text(text: str) -> None:
    assert fragment_list_to_text(fragments(text)) == text


def test_highlighting_knows_kinds() -> None:
    kinds = {text: style for style, text, *_ in fragments("pause 'x' -- y")}
    assert kinds["pause"] == "class:keyword"
    assert kinds["'x'"] == "class:string"
    assert kinds["-- y"] == "class:comment"


SECRETS = [
    "CREATE EXTERNAL CONNECTION a AS 'file:///a';",
    "alter  external\nconnection a as 'x'",
    "CREATE CHANGEFEED FOR t INTO 'kafka://h?sasl_password=abc'",
    "CREATE CHANGEFEED FOR t INTO 'experimental-sql:///postgresql://u:pw@h/d'",
]


@pytest.mark.parametrize("text", SECRETS)
def test_secrets_are_not_written_to_history(text: str, tmp_path: Path) -> None:
    history = History(tmp_path / "deep" / "history")
    history.append_string("SHOW JOBS;")
    history.append_string(text)
    assert holds_secret(text)
    assert list(History(tmp_path / "deep" / "history").load_history_strings()) == ["SHOW JOBS;"]
    assert history.get_strings()[-1] == text
    assert (tmp_path / "deep" / "history").stat().st_mode & 0o077 == 0


class SlowBackend:
    """A backend whose source answers when it is let."""

    opened = True

    def __init__(self) -> None:
        self.let = threading.Event()
        self.engine = self
        self.session = None

    def connections(self) -> list[str]:
        assert self.let.wait(20)
        return ["shop"]


def test_a_name_is_read_in_the_background() -> None:
    backend, known = SlowBackend(), threading.Event()
    names = Names(backend, changed=known.set)  # type: ignore[arg-type]
    assert names.connections() == []
    backend.let.set()
    assert known.wait(20)
    assert names.connections() == ["shop"]
    names.forget()
    assert names.connections() == ["shop"]
