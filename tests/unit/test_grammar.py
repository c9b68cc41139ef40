"""The parts of the grammar that golden files do not show: cache, spans, words, splitting."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from grammar import nodes, parser
from grammar.help import help_for, topics
from grammar.nodes import Literal, Option, Span
from grammar.parser import grammar_text, parse
from grammar.printer import to_sql
from grammar.problems import WORDS, SyntaxProblem, in_words, keyword, point
from grammar.spelling import did_you_mean
from grammar.split import StatementText, is_complete, split
from grammar.suggest import KINDS, complete

ALL_TERMINALS = frozenset(re.findall(r"^(_?[A-Z][A-Z_]*)(?:\.\d)?:", grammar_text(), re.MULTILINE))


@pytest.fixture
def cache_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache folder, and no tables in memory before or after."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    parser.tables.cache_clear()
    yield tmp_path / "changefeed"
    parser.tables.cache_clear()


# ------------------------------------------------------------------------------- tables


def test_the_tables_are_kept(cache_home: Path) -> None:
    parse("SHOW JOBS")
    [kept] = cache_home.iterdir()
    written = kept.stat().st_mtime_ns
    parser.tables.cache_clear()
    assert parse("SHOW JOBS") == nodes.ShowJobs()
    assert kept.stat().st_mtime_ns == written
    assert cache_home.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("damage", [b"", b"garbage", b"\x80\x04N."])
def test_a_damaged_cache_is_built_again(cache_home: Path, damage: bytes) -> None:
    parse("SHOW JOBS")
    [kept] = cache_home.iterdir()
    kept.write_bytes(damage)
    parser.tables.cache_clear()
    assert parse("SHOW JOBS") == nodes.ShowJobs()
    assert len(kept.read_bytes()) > 50_000


def test_a_cut_cache_is_built_again(cache_home: Path) -> None:
    parse("SHOW JOBS")
    [kept] = cache_home.iterdir()
    whole = kept.read_bytes()
    for size in (1, len(whole) // 2, len(whole) - 1):
        kept.write_bytes(whole[:size])
        parser.tables.cache_clear()
        assert parse("SHOW JOBS") == nodes.ShowJobs()


def test_a_cache_that_others_may_write_is_not_read(cache_home: Path) -> None:
    parse("SHOW JOBS")
    [kept] = cache_home.iterdir()
    kept.write_bytes(b"cos\nsystem\n(S'exit 1'\ntR.")
    kept.chmod(0o666)
    parser.tables.cache_clear()
    assert parse("SHOW JOBS") == nodes.ShowJobs()


def test_without_a_cache_folder(cache_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocker = cache_home.parent / "file"
    blocker.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocker))
    assert parse("SHOW JOBS") == nodes.ShowJobs()


def test_processes_that_start_together(cache_home: Path) -> None:
    code = "from grammar.parser import parse; print(type(parse('SHOW JOBS')).__name__)"

    def run(_: int) -> str:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
        return done.stdout.decode().strip()

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(run, range(4))) == ["ShowJobs"] * 4
    assert len(list(cache_home.iterdir())) == 1


# ------------------------------------------------------------------------------- words


def test_every_terminal_is_a_keyword_or_has_words() -> None:
    for name in ALL_TERMINALS:
        word = keyword(name)
        if word is None:
            assert name in WORDS
        else:
            assert re.fullmatch(r"[A-Z]+", word), name
    assert set(KINDS) <= ALL_TERMINALS
    assert set(WORDS) <= ALL_TERMINALS | {"$END"}


def test_kinds_come_before_keywords() -> None:
    assert in_words(["_WITH", "_COMMA", "$END", "TABLE_PART"]) == (
        "a table name",
        "WITH",
        '","',
        "end of statement",
    )


@pytest.mark.parametrize(
    ("word", "candidates", "meant"),
    [
        ("CRAETE", ["CREATE", "CANCEL"], "CREATE"),
        ("formt", ["format", "diff"], "format"),
        ("FORMAT", ["format"], "format"),
        ("xyz", ["format"], None),
        ("x", [], None),
    ],
)
def test_did_you_mean(word: str, candidates: list[str], meant: str | None) -> None:
    assert did_you_mean(word, candidates) == meant


# ------------------------------------------------------------------------------- spans


def spanned(text: str, span: Span | None) -> str:
    assert span is not None
    return text[span.start : span.end]


def test_spans_point_into_the_statement() -> None:
    text = (
        "/* é */ CREATE CHANGEFEED Feed FOR a.B (x), SCHEMA s FROM shop "
        "INTO 'k://h' WITH diff, Format = json ;"
    )
    node = parse(text)
    assert isinstance(node, nodes.CreateChangefeed)
    assert spanned(text, node.span).startswith("CREATE CHANGEFEED")
    assert spanned(text, node.span).endswith("json")
    assert spanned(text, node.name_span) == "Feed"
    assert spanned(text, node.source_span) == "shop"
    assert [spanned(text, target.span) for target in node.targets] == ["a.B (x)", "SCHEMA s"]
    assert [spanned(text, target.name.span) for target in node.targets] == ["a.B", "s"]
    assert node.sink is not None
    assert spanned(text, node.sink.span) == "'k://h'"
    flag, choice = node.options
    assert (spanned(text, flag.span), spanned(text, choice.span)) == ("diff", "Format")
    assert choice.value is not None
    assert spanned(text, choice.value.span) == "json"


def test_spans_are_no_part_of_equality() -> None:
    assert parse("USE  shop") == parse("use shop")
    assert repr(parse("USE shop")) == "Use(name='shop')"


def test_spans_of_references_and_conditions() -> None:
    text = "PAUSE CHANGEFEED a, 17"
    node = parse(text)
    assert isinstance(node, nodes.PauseChangefeed)
    assert [spanned(text, feed.span) for feed in node.feeds] == ["a", "17"]
    text = "SHOW CHANGEFEEDS WHERE lag > 1 ORDER BY name"
    listing = parse(text)
    assert isinstance(listing, nodes.ShowWhere) and isinstance(listing.where, nodes.Condition)
    assert spanned(text, listing.where.span) == "lag"
    assert spanned(text, listing.order_by[0].span) == "name"


# ------------------------------------------------------------------------------- printing


def test_the_redaction_hooks_see_uris_and_options() -> None:
    node = parse("CREATE CHANGEFEED FOR t INTO 'kafka://u:pw@h' WITH diff, a = b, c = 'd'")
    printed = to_sql(
        node,
        redact=lambda uri: uri.replace("pw", "*"),
        redact_option=lambda name, value: "hidden" if name == "a" else value,
    )
    assert printed == (
        "CREATE CHANGEFEED FOR t INTO 'kafka://u:*@h' WITH diff, a = 'hidden', c = 'd'"
    )
    connection = to_sql(parse("CREATE EXTERNAL CONNECTION c AS 'pw'"), redact=lambda uri: "x")
    assert connection == "CREATE EXTERNAL CONNECTION c AS 'x'"


def test_parts_of_statements_print_too() -> None:
    node = parse("CREATE CHANGEFEED FOR a.b (c) AS d")
    assert isinstance(node, nodes.CreateChangefeed)
    assert to_sql(node.targets[0]) == "a.b (c) AS d"
    assert to_sql(Option("resolved", Literal("10s"))) == "resolved = '10s'"


def test_what_is_no_statement_does_not_print() -> None:
    with pytest.raises(TypeError, match="not a statement: Statement"):
        to_sql(nodes.Statement())


# ------------------------------------------------------------------------------- splitting


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("", []),
        (" ;; -- nothing\n/* ; */ ;", []),
        ("a", [StatementText("a", 0, False)]),
        ("a;", [StatementText("a", 0, True)]),
        (" a ; b", [StatementText("a", 1, True), StatementText("b", 5, False)]),
        (
            "-- c;\na ';' \";\" /* ; /* ; */ */ b;",
            [StatementText("a ';' \";\" /* ; /* ; */ */ b", 6, True)],
        ),
        (
            "a 'it''s; fine'; b",
            [StatementText("a 'it''s; fine'", 0, True), StatementText("b", 17, False)],
        ),
        ("a 'open; b", [StatementText("a 'open; b", 0, False)]),
        ("/* open; b", [StatementText("/* open; b", 0, False)]),
        ("a; -- done", [StatementText("a", 0, True)]),
    ],
)
def test_split(text: str, pieces: list[StatementText]) -> None:
    assert split(text) == pieces


@pytest.mark.parametrize(
    ("text", "complete"),
    [
        ("", True),
        ("SHOW JOBS", False),
        ("SHOW JOBS;", True),
        ("SHOW JOBS; -- x", True),
        ("SHOW JOBS; USE", False),
        ("SHOW ';", False),
        ("SHOW JOBS; /* open", False),
        ('SHOW JOBS; "', False),
        ("a -- ;", False),
    ],
)
def test_is_complete(text: str, complete: bool) -> None:
    assert is_complete(text) is complete


# ------------------------------------------------------------------------------- problems


def test_point_masks_without_moving_the_caret() -> None:
    text = "USE 'pw' x"
    shown = point(text, Span(9, 10), mask=lambda line: line.replace("pw", "**"))
    assert shown == "LINE 1: USE '**' x\n                 ^"


def test_a_problem_never_repeats_what_is_quoted() -> None:
    for text in ("USE 's3cret'", 'SHOW "s3cret"', "CREATE CHANGEFEED FOR t 's3cret'"):
        with pytest.raises(SyntaxProblem) as caught:
            parse(text)
        assert "s3cret" not in caught.value.message + caught.value.hint


# ------------------------------------------------------------------------------- help


def test_every_example_parses() -> None:
    for topic in topics():
        parse(topic.example)


def test_topics_name_each_other() -> None:
    names = {topic.name for topic in topics()}
    for topic in topics():
        assert set(topic.see_also) <= names, topic.name
        assert topic.name not in topic.see_also
        assert topic.text.endswith(".")
        assert help_for(topic.name) is topic


def test_every_statement_has_help() -> None:
    rules = grammar_text().partition("_statement:")[2].partition("// ----")[0]
    rules = re.sub(r"//.*|(?m:^listing:.*)", "", rules).replace("_shown:", "")
    named = {name for name in re.findall(r"[a-z_]+", rules)}
    documented = {topic.rule for topic in topics()}
    # These stand in the help of the statement they belong to.
    belonging = {
        "rename_changefeed",
        "change_owner",
        "show_create_connection",
        "show_job",
        "sync_all",
    }
    belonging |= {"create_scheduled_query", "show_schedule"}
    assert named - documented - {"listing"} == belonging


def test_completion_takes_the_end_of_the_text_as_cursor() -> None:
    assert complete("SHOW J") == complete("SHOW J;", 6)
