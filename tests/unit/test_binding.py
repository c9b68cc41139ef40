"""Values for the parameters of a statement: each is one token, wherever it stands."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from changefeed.api import parsed_statement
from changefeed.core.errors import ChangefeedError
from grammar import nodes
from grammar.binding import bind, placeholders
from grammar.parser import parse
from grammar.problems import SyntaxProblem
from tests.golden.world import World

HOSTILE = ["'; DROP CHANGEFEED f; --", '"', "\\", "a'b\"c", "$1", "/*", "\n", "🙂", "x\0y", "'"]


@pytest.mark.parametrize("value", HOSTILE)
def test_a_hostile_value_stays_one_value(value: str) -> None:
    shown = parsed_statement("SHOW CHANGEFEEDS WHERE name = $1 AND source = $2", [value, "'"])
    assert isinstance(shown, nodes.ShowWhere) and isinstance(shown.where, nodes.Conjunction)
    one, other = shown.where.tests
    assert isinstance(one, nodes.Condition) and one.values[0].text == value
    assert isinstance(other, nodes.Condition) and other.values[0].text == "'"
    paused = parsed_statement("PAUSE CHANGEFEED $1, g", [value])
    assert isinstance(paused, nodes.PauseChangefeed)
    assert [feed.name for feed in paused.feeds] == [value, "g"]


@settings(max_examples=25)
@given(st.text(min_size=1), st.text())
def test_any_text_is_a_name_or_a_string(name: str, uri: str) -> None:
    made = parsed_statement(
        "CREATE CHANGEFEED $1 FOR TABLE $2.$3 INTO $4 WITH resolved = $5, key_column = $6",
        [name, "Public", name, uri, "10s", uri],
    )
    assert isinstance(made, nodes.CreateChangefeed) and made.sink is not None
    (target,) = made.targets
    assert isinstance(target, nodes.TableTarget)
    assert (made.name, target.name.parts) == (name, ("Public", name))
    assert made.sink.text == uri and made.options[1].value is not None
    assert made.options[1].value.text == uri


def test_numbers_and_truth() -> None:
    shown = parsed_statement("SHOW JOBS WHERE job_id IN ($1, $2) LIMIT $3", [7, -1.5, 3])
    assert isinstance(shown, nodes.ShowWhere) and isinstance(shown.where, nodes.Condition)
    assert [(v.text, v.kind) for v in shown.where.values] == [("7", "number"), ("-1.5", "number")]
    assert shown.limit == 3
    made = parsed_statement("CREATE CHANGEFEED FOR t INTO 'k://k' WITH diff = $1", [True])
    assert isinstance(made, nodes.CreateChangefeed) and made.options[0].value is not None
    assert made.options[0].value.text == "true"
    shown = parsed_statement("SHOW JOBS WHERE name = $1", [float("inf")])
    assert isinstance(shown, nodes.ShowWhere) and isinstance(shown.where, nodes.Condition)
    assert shown.where.values[0].kind == "string", "inf is a word of the language, not a number"


def test_what_is_no_parameter() -> None:
    text = """SHOW CHANGEFEED orders$1 -- $2\n/* $3 */"""
    assert placeholders(text) == [] and placeholders("WHERE a = '$1' AND \"$2\" = $3") == [3]
    assert placeholders("x$1 $1$ $01 $10") == [10]
    assert parse(bind(text, ()).text) == parse("SHOW CHANGEFEED orders$1")


@pytest.mark.parametrize(
    ("text", "values", "wrong"),
    [
        ("SHOW JOBS LIMIT $1", [], "has 1 parameters, and 0 values are given"),
        ("SHOW JOBS", [1], "has 0 parameters, and 1 values are given"),
        ("CREATE CHANGEFEED INTO 'k://k' AS SELECT * FROM t WHERE a = $1", ["\\"], "in the SELECT"),
        ("EXPLAIN CREATE CHANGEFEED AS SELECT $1 FROM t", ["\\"], "in the SELECT of a CDC query"),
    ],
)
def test_parameters_that_cannot_be_given(text: str, values: list[str | int], wrong: str) -> None:
    with pytest.raises(SyntaxProblem, match=wrong.replace("(", "\\(")):
        bind(text, values)


def test_an_error_points_into_the_statement_as_it_was_written(tmp_path: Path) -> None:
    with closing(World(tmp_path)) as world:
        world.shop()
        check_places(world)


def check_places(world: World) -> None:
    text = "SHOW CHANGEFEEDS WHERE name = $1 AND nothing = $2 AND other = 1"
    with pytest.raises(ChangefeedError) as caught:
        world.interpreter.execute(text, world.session, ["a long name", "x"])
    error = caught.value
    assert error.span is not None and error.text is not None
    assert error.text[error.span.start : error.span.end] == "nothing"
    text = "CREATE CHANGEFEED $1 FOR $2 INTO 'kafka://k:9092'"
    with pytest.raises(ChangefeedError) as caught:
        world.interpreter.execute(text, world.session, ["f", "ordres"])
    error = caught.value
    assert error.span is not None and text[error.span.start : error.span.end] == "$2"
    with pytest.raises(ChangefeedError) as caught:
        parsed_statement("SHOW JOBS LIMIT $1 $2", [1, "a secret"])
    error = caught.value
    assert error.code == "CF1001" and error.span is not None and error.span.start == 19
    assert "a secret" not in f"{error} {error.hint} {error.detail} {error.text}"
