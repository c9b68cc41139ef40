"""The language's golden files: parse and print, errors, completion, help, options."""

from __future__ import annotations

import dataclasses
import re
from enum import Enum
from pathlib import Path

import pytest

from changefeed.core import error_docs, parameter_docs
from changefeed.core.clock import ManualClock
from changefeed.core.errors import ChangefeedError, Code, Problems
from changefeed.core.shapes import Envelope
from changefeed.options import OPTIONS, Options, parse_options
from changefeed.options import docs as option_docs
from changefeed.sources import registry as sources
from grammar import help as grammar_help
from grammar.help import help_for
from grammar.nodes import CreateChangefeed
from grammar.parser import parse
from grammar.printer import to_sql
from grammar.problems import SyntaxProblem, point
from grammar.split import split
from grammar.suggest import complete
from shell.cli import cli
from sinks import registry
from sinks.registry import capabilities, takers
from tests.golden import message_page, runner

DOCS = Path(__file__).parents[2] / "docs"
#: 2023-11-14 22:13:20 UTC.
NOW = 1_700_000_000_000_000_000


def parsed(text: str) -> str:
    """Printed and as a tree; the print must parse to the same tree and print as itself."""
    node = parse(text)
    printed = to_sql(node)
    again = parse(printed)
    assert again == node
    assert to_sql(again) == printed
    return f"{printed}\n=>\n{tree(node)}"


def tree(value: object) -> str:
    """A node as it would be written in Python, without what it has by default."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(tree, value))}]"
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return f"{value!s}" if isinstance(value, Enum) else repr(value)
    members = [
        f"{field.name}={tree(member)}"
        for field in dataclasses.fields(value)
        if field.compare and (member := getattr(value, field.name)) != field.default
    ]
    return f"{type(value).__name__}({', '.join(members)})"


def refused(text: str) -> str:
    """The error, as a person sees it."""
    with pytest.raises(SyntaxProblem) as caught:
        parse(text)
    problem = caught.value
    lines = [f"ERROR: {problem.message}", point(text, problem.span)]
    if problem.expected:
        lines.append(f"EXPECTED: {', '.join(problem.expected)}")
    if problem.hint:
        lines.append(f"HINT: {problem.hint}")
    return "\n".join(lines)


def completed(text: str) -> str:
    """What fits at the ``@``."""
    cursor = text.index("@")
    found = complete(text[:cursor] + text[cursor + 1 :], cursor)
    rows = {
        "kinds": " ".join(sorted(found.kinds)),
        "words": " ".join(found.words),
        "prefix": found.prefix,
        "quote": found.quote,
        "option": found.option or "",
        "sink": found.sink or "",
        "path": ".".join(found.path),
        "table": ".".join(found.table),
        "source": found.source or "",
        "feed": found.feed or "",
        "given": " ".join(sorted(found.given)),
    }
    shown = [f"{name}: {value}" for name, value in rows.items() if value]
    return "\n".join(shown) or "nothing"


def helped(words: str) -> str:
    """The topic the words find."""
    topic = help_for(words)
    if topic is None:
        return "no help"
    parts = (topic.name, f"category: {topic.category}", topic.syntax, topic.text, topic.example)
    return "\n".join([*parts, f"see also: {', '.join(topic.see_also)}"])


def checked(text: str) -> str:
    """``scheme: option list`` -> what the options say, or every error with its caret."""
    scheme, _, written = text.partition(": ")
    statement = f"CREATE CHANGEFEED FOR t WITH {written}"
    node = parse(statement)
    assert isinstance(node, CreateChangefeed)
    try:
        options = parse_options(
            node.options,
            scheme=scheme if scheme != "sinkless" else "",
            capabilities=capabilities(scheme),
            takers=takers,
            text=statement,
            clock=ManualClock(NOW),
        )
    except ChangefeedError as error:
        problems = error.problems if isinstance(error, Problems) else [error]
        return "\n".join(_problem(problem, statement) for problem in problems)
    assert Options.from_dict(options.to_dict(), abilities=capabilities(scheme)) == options
    effective = {name: value for name, value in options.items() if value != OPTIONS[name].default}
    lines = [f"{name} = {_shown(value)}" for name, value in effective.items()]
    return "\n".join([*lines, *(f"NOTE: {note}" for note in options.notes)]) or "defaults"


def _shown(value: object) -> str:
    return " ".join(sorted(value)) if isinstance(value, frozenset) else str(value)


def _problem(problem: ChangefeedError, statement: str) -> str:
    lines = [f"ERROR {problem.code.number}: {problem.message}"]
    if problem.span:
        _, caret = point(statement, problem.span).split("\n")
        lines += [statement, caret[len("LINE 1: ") :]]
    if problem.detail:
        lines.append(f"DETAIL: {problem.detail}")
    if problem.hint:
        lines.append(f"HINT: {problem.hint}")
    return "\n".join(lines)


@pytest.mark.parametrize("file", runner.files("parse"))
def test_parse(file: Path, rewrite: bool) -> None:
    runner.run(file, parsed, rewrite=rewrite)


@pytest.mark.parametrize("file", runner.files("errors"))
def test_errors(file: Path, rewrite: bool) -> None:
    runner.run(file, refused, rewrite=rewrite)


@pytest.mark.parametrize("file", runner.files("complete"))
def test_complete(file: Path, rewrite: bool) -> None:
    runner.run(file, completed, rewrite=rewrite)


@pytest.mark.parametrize("file", runner.files("help"))
def test_help(file: Path, rewrite: bool) -> None:
    runner.run(file, helped, rewrite=rewrite)


@pytest.mark.parametrize("file", runner.files("options"))
def test_options(file: Path, rewrite: bool) -> None:
    runner.run(file, checked, rewrite=rewrite)


def test_the_page_of_options_is_the_table(rewrite: bool) -> None:
    page = DOCS / "options.md"
    if rewrite:
        page.write_text(option_docs.markdown(takers), "utf-8")
    assert page.read_text("utf-8") == option_docs.markdown(takers)


def test_the_page_of_parameters_is_what_the_sinks_declare(rewrite: bool) -> None:
    homes = {
        scheme: registry.entry(scheme).location
        for scheme in registry.schemes()
        if scheme in registry.BUILT_IN
    }
    page, made = "sink-parameters.md", parameter_docs.markdown("sink", homes, registry.parameters)
    check_page(DOCS / page, made, rewrite)


def test_the_page_of_parameters_is_what_the_sources_declare(rewrite: bool) -> None:
    homes = {s: home for s, home in sources.SOURCES.items() if not s.startswith("debezium-")}
    made = parameter_docs.markdown("source", homes, sources.parameters)
    check_page(DOCS / "source-parameters.md", made, rewrite)


def check_page(page: Path, made: str, rewrite: bool) -> None:
    if rewrite:
        page.write_text(made, "utf-8")
    assert page.read_text("utf-8") == made


def test_the_page_of_errors_is_the_table(rewrite: bool) -> None:
    page = DOCS / "errors.md"
    if rewrite:
        page.write_text(error_docs.markdown(), "utf-8")
    assert page.read_text("utf-8") == error_docs.markdown()


def test_the_page_of_messages_is_what_the_encoder_writes(rewrite: bool) -> None:
    page = DOCS / "messages.md"
    made = message_page.filled(page.read_text("utf-8"))
    if rewrite:
        page.write_text(made, "utf-8")
    assert page.read_text("utf-8") == made


def test_the_page_of_messages_has_every_envelope_and_change() -> None:
    page = (DOCS / "messages.md").read_text("utf-8")
    for envelope in Envelope:
        (section,) = re.findall(rf"^## {envelope}\n(.*?)^## ", page, re.DOTALL | re.MULTILINE)
        for name, _ in message_page.CHANGES:
            assert re.search(rf"^{name} +[\[{{]", section, re.MULTILINE), f"{envelope}: no {name}"
        assert re.search(rf"^\| `{envelope}` \| `{{.*resolved.*truncate", page, re.MULTILINE)


MADE = "<!-- From here on made from grammar/changefeed.lark: pytest tests/golden --rewrite -->\n\n"


def test_the_page_of_statements_is_the_grammar(rewrite: bool) -> None:
    page = DOCS / "language.md"
    prose, mark, reference = page.read_text("utf-8").partition(MADE)
    assert mark, "the page has lost its mark"
    if rewrite:
        reference = grammar_help.markdown()
        page.write_text(prose + mark + reference, "utf-8")
    assert reference == grammar_help.markdown()


def test_hints_name_flags_that_there_are() -> None:
    there = {flag for command in cli.commands.values() for p in command.params for flag in p.opts}
    named = {flag for code in Code for flag in re.findall(r"--[\w-]+", code.hint)}
    assert named and named <= there, named - there


def test_the_statements_of_the_prose_parse() -> None:
    prose = (DOCS / "language.md").read_text("utf-8").partition(MADE)[0]
    blocks = re.findall(r"```sql\n(.*?)```", prose, re.DOTALL)
    statements = [piece for block in blocks for piece in split(block)]
    assert len(statements) > 10
    for piece in statements:
        assert piece.complete
        parse(piece.text)
