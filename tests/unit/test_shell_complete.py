"""Completion in the shell: the grammar's kinds filled with names, options and values."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any, cast

import pytest
from prompt_toolkit.completion import CompleteEvent, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.formatted_text import fragment_list_to_text, to_formatted_text

from changefeed.api import FeedFacts, KnownNames
from changefeed.options import OPTIONS
from changefeed.options.docs import MEANINGS
from changefeed.options.row import OptionRow
from grammar.split import is_complete, split
from shell.repl.complete import ShellCompleter
from shell.repl.highlight import fragments
from shell.repl.names import NameCache
from shell.repl.prompt import PromptHistory, holds_secret


class Known:
    """A source with three tables in two schemas."""

    def connections(self) -> list[str]:
        return ["lake", "shop"]

    def schemes(self) -> dict[str, str]:
        return {"lake": "file", "shop": "postgresql"}

    def functions(self) -> dict[str, str]:
        return {"bucket": "bucket(id bigint) int"}

    def schedules(self) -> dict[str, str]:
        return {"nightly": "@daily"}

    def feeds(self) -> tuple[FeedFacts, ...]:
        return (
            FeedFacts(
                1,
                "orders_feed",
                "running",
                "file",
                ("resolved", "initial_scan"),
                (("public", "orders"), ("sales", "Deals")),
            ),
            FeedFacts(2, "Other", "paused", "kafka", ("diff",), (("public", "order_items"),)),
        )

    def partitions(self, table: tuple[str, ...], source: str | None = None) -> list[str]:
        return ["orders_2026"] if table[-1] == "orders" else []

    def tables(self, source: str | None = None) -> list[tuple[str, str]]:
        if source == "lake":
            return []
        return [("public", "orders"), ("public", "order_items"), ("sales", "Deals")]

    def columns(self, table: tuple[str, ...], source: str | None = None) -> list[tuple[str, str]]:
        return [("id", "bigint"), ("total", "numeric(12,2)")] if table[-1] == "orders" else []


def found(text: str) -> list[Completion]:
    document = Document(text, len(text))
    return list(ShellCompleter(cast(NameCache, Known())).get_completions(document, CompleteEvent()))


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
    assert {"orders", 'sales."Deals"', "public", "sales", "shop"} <= every
    # One of another schema brings it along: by its own name it would not be found.
    assert after("CREATE CHANGEFEED FOR dea") == ['CREATE CHANGEFEED FOR sales."Deals"']
    assert after("CREATE CHANGEFEED FOR sales.") == ['CREATE CHANGEFEED FOR sales."Deals"']
    assert after("CREATE CHANGEFEED FOR shop.public.orders, shop.sales.") == [
        'CREATE CHANGEFEED FOR shop.public.orders, shop.sales."Deals"'
    ]
    assert after('CREATE CHANGEFEED FOR sales."De') == ['CREATE CHANGEFEED FOR sales."Deals"']


def test_letters_in_their_order_find_a_name_that_nothing_begins_with() -> None:
    assert after("CREATE CHANGEFEED FOR itm") == ["CREATE CHANGEFEED FOR order_items"]
    assert after("CREATE CHANGEFEED FOR zq") == []


def test_partitions() -> None:
    text = "CREATE CHANGEFEED FOR orders PARTITION "
    assert after(text) == [f"{text}orders_2026"]


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
    assert meta(text, "'wrapped'").endswith(", default")
    assert after(f"{text}'key_") == [f"{text}'key_only'"]
    assert after("CREATE CHANGEFEED FOR t WITH resolved = ") == [
        "CREATE CHANGEFEED FOR t WITH resolved = '10s'"
    ]


def test_columns_are_the_values_of_options_that_name_one() -> None:
    head = "CREATE CHANGEFEED FOR t, orders INTO 'delta:///x' WITH"
    for option in ("key_column", "partition_by"):
        assert after(f"{head} {option} = ") == [
            f"{head} {option} = 'id'",
            f"{head} {option} = 'total'",
        ]
    assert [c.text for c in found("CREATE CHANGEFEED FOR t WITH key_column = ")] == []


def test_values_have_meanings_and_fit_the_sink() -> None:
    head = "CREATE CHANGEFEED FOR t INTO '{}' WITH format = "
    kafka = {c.text for c in found(head.format("kafka://h"))}
    assert kafka == {"'json'", "'avro'", "'protobuf'"}
    assert "'parquet'" in {c.text for c in found(head.format("external://lake"))}
    assert meta("CREATE CHANGEFEED FOR t WITH envelope = ", "'wrapped'").endswith(", default")


def test_every_value_of_a_choice_has_a_meaning() -> None:
    for name, meanings in MEANINGS.items():
        assert set(meanings) == set(OPTIONS[name].values), name


@pytest.mark.parametrize("row", OPTIONS.values(), ids=lambda row: row.name)
def test_an_offered_value_is_one_literal(row: OptionRow[Any]) -> None:
    head = f"CREATE CHANGEFEED f FOR orders WITH {row.name} = "
    for completion in found(head):
        assert is_complete(f"{head}{completion.text};")
        assert [piece.text for piece in split(f"{head}{completion.text};")] == [
            f"{head}{completion.text}"
        ]
        assert re.fullmatch(r"'(?:[^']|'')*'", completion.text), completion.text


def test_parameters_of_a_uri() -> None:
    head = "CREATE CHANGEFEED FOR t INTO 'kafka://h:9092?"
    offered = after(f"{head}topic_")
    assert offered == [f"{head}topic_prefix=", f"{head}topic_name=", f"{head}topic_partitions="]
    assert after(f"{head}topic_prefix=a&topic_n") == [f"{head}topic_prefix=a&topic_name="]
    assert after(f"{head}topic_prefix=") == []
    assert after(f"{head}a=b&sasl_mechanism=PL") == [f"{head}a=b&sasl_mechanism=PLAIN"]
    (password,) = found(f"{head}sasl_pass")
    assert password.display_meta_text == "The user's password."
    assert after("CREATE CHANGEFEED FOR t INTO 'nosuch://h?") == []


def test_parameters_of_a_connection_are_those_of_the_source_and_of_the_sink() -> None:
    head = "CREATE EXTERNAL CONNECTION c AS 'postgresql://h/d?"
    assert after(f"{head}slo") == [f"{head}slot="]
    assert after(f"{head}sche") == [f"{head}schema="]
    assert after(f"{head}sslmod") == [f"{head}sslmode="]
    head = "CREATE EXTERNAL CONNECTION c AS 'mysql://h/d?"
    assert after(f"{head}ssl_mode=verify_c") == [f"{head}ssl_mode=verify_ca"]
    sink = after("CREATE CHANGEFEED FOR t INTO 'postgresql://h/d?")
    assert sink and not any(offered.endswith("slot=") for offered in sink)


def test_paths_in_a_uri(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "shop.duckdb").touch()
    head = "CREATE CHANGEFEED FOR t INTO '"
    assert after(f"{head}file://{tmp_path}/") == [f"{head}file://{tmp_path}/out/"]
    assert after(f"{head}duckdb://{tmp_path}/s") == [f"{head}duckdb://{tmp_path}/shop.duckdb"]
    assert after(f"CREATE EXTERNAL CONNECTION c AS 'file://{tmp_path}/o") == [
        f"CREATE EXTERNAL CONNECTION c AS 'file://{tmp_path}/out/"
    ]


def test_alter_knows_its_feed() -> None:
    head = "ALTER CHANGEFEED orders_feed"
    assert "kafka_sink_config" not in {c.text for c in found(f"{head} SET ")}
    assert "initial_scan" not in {c.text for c in found(f"{head} SET ")}, "it cannot be altered"
    assert {c.text for c in found(f"{head} UNSET ")} - {"INCLUDE", "EXCLUDE"} == {"resolved"}
    assert {c.text for c in found(f"{head} DROP ")} - {
        "TABLE",
        "SCHEMA",
        "DATABASE",
        "MESSAGES",
    } == {
        "orders",
        'sales."Deals"',
    }
    assert {c.text for c in found(f"{head} SET format = ")} >= {"'csv'", "'parquet'"}


def test_feeds_that_the_statement_can_mean() -> None:
    assert [c.text for c in found("PAUSE CHANGEFEED ")] == ["IF", "orders_feed"]
    assert [c.text for c in found("RESUME CHANGEFEED ")] == ["IF", '"Other"']
    assert [c.text for c in found("DROP CHANGEFEED orders_feed, ")] == ['"Other"']
    assert meta("PAUSE JOB ", "1") == "orders_feed, running"


def test_values_of_the_listing() -> None:
    head = "SHOW CHANGEFEEDS WHERE status = "
    assert {"'running'", "'degraded'", "'stopped'"} <= {c.text for c in found(head)}
    assert "TRUE" not in {c.text for c in found(head)}
    assert after(f"{head}'deg") == [f"{head}'degraded'"]


def test_no_menu_opens_by_itself_after_a_finished_statement() -> None:
    document = Document("SHOW JOBS; ", 11)
    complete = ShellCompleter(cast(NameCache, Known())).get_completions
    assert list(complete(document, CompleteEvent(text_inserted=True))) == []
    assert len(list(complete(document, CompleteEvent(completion_requested=True)))) > 5


def test_uris() -> None:
    assert after("CREATE CHANGEFEED FOR t INTO 'kaf") == ["CREATE CHANGEFEED FOR t INTO 'kafka://"]
    assert "'external://lake'" in [c.text for c in found("CREATE CHANGEFEED FOR t INTO ")]
    assert after("CREATE EXTERNAL CONNECTION c AS 'postgresq") == [
        "CREATE EXTERNAL CONNECTION c AS 'postgresql://"
    ]


def test_feeds_are_quoted_where_they_must_be() -> None:
    assert {c.text for c in found("SHOW CHANGEFEED ")} >= {"orders_feed", '"Other"'}


def test_columns_of_the_listing() -> None:
    head = "SHOW CHANGEFEEDS WHERE"
    assert after(f"{head} sta") == [f"{head} status", f"{head} started"]
    assert [c.text for c in found("SHOW CHANGEFEED orders_feed EVENTS WHERE co")] == ["code"]
    assert [c.text for c in found("SHOW AUDIT WHERE or")] == ["origin"]
    assert [c.text for c in found("SHOW USERS ORDER BY ex")] == ["expires"]
    assert "watched_by" in [c.text for c in found("SHOW TABLES FROM shop ORDER BY ")]


def test_local_commands(tmp_path: Path) -> None:
    assert after("\\ti") == ["\\timing"]
    assert meta("\\", "\\q") == "leave"
    assert after("\\h show jo") == ["\\h SHOW JOBS"]
    assert after("\\set form") == ["\\set format"]
    assert after("\\set format js") == ["\\set format json", "\\set format jsonl"]
    assert after("\\watch 5 SHOW NOD") == ["\\watch 5 SHOW NODES"]
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
    history = PromptHistory(tmp_path / "deep" / "history")
    history.append_string("SHOW JOBS;")
    history.append_string(text)
    assert holds_secret(text)
    assert list(PromptHistory(tmp_path / "deep" / "history").load_history_strings()) == [
        "SHOW JOBS;"
    ]
    assert history.get_strings()[-1] == text
    assert (tmp_path / "deep" / "history").stat().st_mode & 0o077 == 0


class SlowBackend:
    """A backend whose source answers when it is let."""

    opened = True

    def __init__(self) -> None:
        self.let = threading.Event()
        self.facts = self
        self.session = None

    def names(self) -> KnownNames:
        assert self.let.wait(20)
        return KnownNames({"shop": "postgresql"})


def test_a_name_is_read_in_the_background() -> None:
    backend, known = SlowBackend(), threading.Event()
    names = NameCache(backend, changed=known.set)  # type: ignore[arg-type]
    assert names.connections() == []
    backend.let.set()
    assert known.wait(20)
    assert names.connections() == ["shop"]
    names.forget()
    assert names.connections() == ["shop"]


def test_schedules() -> None:
    assert after("PAUSE SCHEDULE n") == ["PAUSE SCHEDULE nightly"]
    begun = "CREATE SCHEDULE s FOR CHANGEFEED orders INTO 'null://' RECURRING "
    assert f"{begun}'@hourly'" in after(f"{begun}'@h")
    assert meta(f"{begun}'@d", "@daily'") == "0 0 * * *"
    options = f"{begun}'@daily' WITH SCHEDULE OPTIONS "
    assert after(f"{options}on_p") == [f"{options}on_previous_running"]
    assert after(f"{options}on_previous_running = 'sk") == [
        f"{options}on_previous_running = 'skip'"
    ]
    assert [c.text for c in found("SHOW SCHEDULES WHERE last_")] == ["last_run"]


def test_functions_and_the_options_of_extracts() -> None:
    assert "bucket" in [c.text for c in found("DROP FUNCTION ")]
    options = [c.text for c in found("CREATE CHANGEFEED FOR DATASET '/x' KEY (a) WITH ")]
    assert {"effective_date", "every", "updated"} <= set(options)
    given = [c.text for c in found("CREATE CHANGEFEED FOR DATASET '/x' KEY (a) WITH hash = ")]
    assert given == ["'xxhash'", "'md5'"]
