"""The grammar against its own printer, splitter and completer, on generated statements."""

from __future__ import annotations

import string
from typing import TypeVar

from hypothesis import given
from hypothesis import strategies as st

from grammar import nodes
from grammar.nodes import FeedRef, Literal, Name, Option, QualifiedName
from grammar.parser import parse
from grammar.printer import to_sql
from grammar.problems import SyntaxProblem, keyword, point
from grammar.split import is_complete, lexemes, split
from grammar.suggest import complete
from tests.unit.test_grammar import ALL_TERMINALS

T = TypeVar("T")

WORDS = sorted({word.lower() for name in ALL_TERMINALS if (word := keyword(name))})

plain = st.text(string.ascii_lowercase + "_", min_size=1, max_size=8)
odd = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=6
)
names = st.one_of(plain, st.sampled_from(WORDS), odd)
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)

strings = st.builds(Literal, texts, st.just("string"))
numbers = st.builds(
    Literal, st.from_regex(r"-?[0-9]{1,5}(\.[0-9]{1,3})?", fullmatch=True), st.just("number")
)
quantities = st.from_regex(r"[0-9]{1,3}(ms|s|m|h|MiB|h30m)", fullmatch=True)
words = st.builds(Literal, st.one_of(plain, st.sampled_from(WORDS), quantities), st.just("word"))
booleans = st.builds(Literal, st.sampled_from(["TRUE", "FALSE"]), st.just("word"))
literals = st.one_of(strings, numbers, booleans)


def tuples(of: st.SearchStrategy[T], least: int = 1) -> st.SearchStrategy[tuple[T, ...]]:
    return st.lists(of, min_size=least, max_size=3).map(lambda items: tuple(items))


option_lists = tuples(st.builds(Option, names, st.none() | strings | numbers | words))
optional_options = st.just(()) | option_lists


def qualified(most: int) -> st.SearchStrategy[QualifiedName]:
    return st.builds(QualifiedName, st.lists(names, min_size=1, max_size=most).map(tuple))


ranges = st.just(((), ())) | st.tuples(tuples(literals), tuples(literals))


@st.composite
def table_targets(draw: st.DrawFn) -> nodes.TableTarget:
    lower, upper = draw(ranges)
    return nodes.TableTarget(
        draw(qualified(3)),
        draw(tuples(names, 0)),
        lower,
        upper,
        draw(st.none() | names),
        draw(st.none() | names),
    )


patterns = st.one_of(
    names, st.from_regex(r"[a-z*?][a-z0-9*?]{0,5}(\.[a-z*]{1,4})?", fullmatch=True), texts
)
filters = st.just((None, ())) | st.tuples(st.sampled_from(nodes.Filter), tuples(patterns))


@st.composite
def group_targets(draw: st.DrawFn) -> nodes.FeedTarget:
    how, which = draw(filters)
    if draw(st.booleans()):
        return nodes.SchemaTarget(draw(qualified(2)), how, which)
    return nodes.DatabaseTarget(draw(qualified(1)), how, which)


target_lists = tuples(table_targets() | group_targets())
refs = st.builds(FeedRef, name=names) | st.builds(FeedRef, job_id=st.integers(0, 10**12))
creates = st.builds(
    nodes.CreateChangefeed,
    target_lists,
    st.none() | names,
    st.none() | names,
    st.none() | strings,
    optional_options,
    st.booleans(),
)
datasets = st.builds(
    nodes.CreateDataset,
    strings,
    tuples(st.builds(Name, names)),
    tuples(st.builds(Name, names), least=0),
    st.none() | names,
    st.none() | strings,
    optional_options,
    st.booleans(),
)
words_plain = st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True).filter(
    lambda word: word not in {"if", "returns"}
)
functions = st.builds(
    nodes.CreateFunction,
    words_plain,
    tuples(st.tuples(st.builds(Name, words_plain), st.sampled_from(["int", "decimal(10,2)"]))),
    st.sampled_from(["string", "char(3)"]),
    strings,
    st.none() | strings,
    st.booleans(),
)
cdcs = st.builds(
    nodes.CreateCdc, qualified(3), st.sampled_from(["kafka", "elasticsearch"]), optional_options
)
schedules = st.builds(
    nodes.CreateSchedule,
    st.builds(
        nodes.CreateChangefeed,
        target_lists,
        st.none(),
        st.none() | names,
        strings,
        optional_options,
    ),
    strings,
    st.none() | names,
    optional_options,
    or_replace=st.booleans(),
)
not_sinks = tuples(
    st.builds(Option, names.filter(lambda name: name != "sink"), st.none() | strings | words)
)
actions = st.one_of(
    st.builds(nodes.AlterAdd, target_lists, optional_options),
    st.builds(nodes.AlterDrop, target_lists),
    st.builds(nodes.AlterSet, not_sinks),
    st.builds(nodes.AlterUnset, tuples(st.builds(Name, names))),
    st.builds(nodes.AlterInto, strings),
    st.builds(nodes.AlterRescan, tuples(qualified(3), least=0)),
    st.builds(nodes.AlterFilter, st.sampled_from(nodes.Filter), tuples(patterns, least=0)),
)
alterations = st.builds(nodes.AlterChangefeed, refs, tuples(actions), st.booleans())
conditions: st.SearchStrategy[nodes.Test] = st.recursive(
    st.one_of(
        st.builds(
            nodes.Condition,
            names,
            st.sampled_from(["=", "<>", "<", "<=", ">", ">="]),
            st.tuples(literals),
        ),
        st.builds(nodes.Condition, names, st.just("LIKE"), st.tuples(strings), st.booleans()),
        st.builds(nodes.Condition, names, st.just("IN"), tuples(literals), st.booleans()),
        st.builds(nodes.Condition, names, st.just("NULL"), st.just(()), st.booleans()),
    ),
    lambda inner: st.one_of(
        st.builds(nodes.Negation, inner),
        st.builds(nodes.Conjunction, st.tuples(inner, inner)),
        st.builds(nodes.Disjunction, st.tuples(inner, inner)),
    ),
    max_leaves=5,
)
listings: st.SearchStrategy[nodes.Inquiry] = st.one_of(
    st.just(nodes.ShowChangefeeds()),
    st.builds(nodes.ShowConnections, st.none() | names),
    st.builds(nodes.ShowTables, st.none() | names),
    st.builds(nodes.ShowChangefeed, refs, st.sampled_from([None, "tables", "errors", "events"])),
    st.builds(nodes.ShowCreateChangefeed, refs),
    st.builds(nodes.ShowCreateConnection, names),
    st.builds(nodes.ShowCreateAll, st.sampled_from([None, "connections", "changefeeds"])),
    st.just(nodes.ShowJobs()),
    st.builds(nodes.ShowJob, st.builds(nodes.FeedRef, job_id=st.integers(0, 9**9)), st.booleans()),
    st.just(nodes.ShowFunctions()),
    st.just(nodes.ShowSpark()),
    st.builds(nodes.ShowCdc, st.sampled_from(["streams", "subscribers"])),
)
users = tuples(st.builds(Name, names))
statements: st.SearchStrategy[nodes.Statement] = st.one_of(
    st.builds(nodes.CreateConnection, names, strings, st.booleans()),
    st.builds(nodes.AlterConnection, names, strings, if_exists=st.booleans()),
    st.builds(nodes.CheckConnection, names),
    st.builds(nodes.Grant, st.just(nodes.GrantKind.TABLE), tuples(qualified(3)), users),
    st.builds(nodes.Revoke, st.just(nodes.GrantKind.SCHEMA), tuples(qualified(2)), users),
    st.builds(nodes.Grant, st.just(nodes.GrantKind.CONNECTION), tuples(qualified(1)), users),
    st.builds(nodes.ShowGrants, st.none() | names),
    st.builds(nodes.DropConnection, names, st.booleans()),
    st.builds(nodes.Use, names),
    creates,
    schedules,
    st.builds(nodes.Explain, creates | datasets | cdcs | schedules),
    st.builds(nodes.CreateChangefeed, target_lists, names, or_replace=st.just(True)),
    st.builds(nodes.Validate, creates | datasets | cdcs),
    cdcs,
    datasets,
    functions,
    st.builds(nodes.DropFunction, words_plain, st.booleans()),
    st.builds(nodes.DropCdc, qualified(3), st.booleans()),
    alterations,
    st.builds(nodes.Explain, alterations),
    st.builds(nodes.RenameChangefeed, refs, names, st.booleans()),
    st.builds(nodes.ChangeOwner, refs, names, st.booleans()),
    st.just(nodes.PauseChangefeed(())),
    st.builds(nodes.PauseChangefeed, tuples(refs), st.booleans()),
    st.builds(nodes.ResumeChangefeed, tuples(refs), st.booleans()),
    tuples(refs).flatmap(
        lambda some: st.builds(nodes.DropChangefeed, st.just(some), st.booleans())
    ),
    st.just(nodes.DropChangefeed(())),
    listings,
    st.builds(
        nodes.ShowWhere,
        listings,
        conditions,
        tuples(st.builds(nodes.Ordering, names, st.booleans()), 0),
        st.none() | st.integers(0, 10**6),
    ),
    st.builds(nodes.ShowWhere, listings, limit=st.integers(0, 10**6)),
    st.builds(nodes.SyncAll, st.none() | strings),
    st.builds(nodes.Sync, refs, st.none() | strings | words),
    st.builds(nodes.Verify, refs, st.none() | qualified(3), st.booleans()),
)


@given(statements)
def test_what_is_printed_parses_to_the_same(statement: nodes.Statement) -> None:
    printed = to_sql(statement)
    assert parse(printed) == statement
    assert parse(printed + " ;") == statement


@given(st.lists(statements, max_size=3))
def test_printed_statements_split_apart(some: list[nodes.Statement]) -> None:
    text = ";\n-- next; \n/* ; ' */".join([*map(to_sql, some), ""])
    pieces = split(text)
    assert [parse(piece.text) for piece in pieces] == some
    assert all(piece.complete for piece in pieces)
    assert is_complete(text)
    for piece in pieces:
        assert text[piece.start : piece.start + len(piece.text)] == piece.text


SOUP = st.lists(
    st.one_of(
        st.sampled_from(sorted(ALL_TERMINALS)).map(lambda name: keyword(name) or name.lower()),
        st.sampled_from(list(",;.()='\"*-/?\n")),
        names,
        st.just("'kafka://h'"),
    ),
    max_size=12,
).map(" ".join)


@given(SOUP | st.text(max_size=30))
def test_any_text_parses_or_has_a_placed_problem(text: str) -> None:
    try:
        statement = parse(text)
    except SyntaxProblem as problem:
        assert 0 <= problem.span.start <= problem.span.end <= len(text)
        assert point(text, problem.span).count("\n") == 1
        assert problem.message
    else:
        assert parse(to_sql(statement)) == statement


@given(SOUP | st.text(max_size=30))
def test_lexemes_lie_in_order_inside_the_text(text: str) -> None:
    end = 0
    for lexeme in lexemes(text):
        assert end <= lexeme.start < lexeme.end <= len(text)
        end = lexeme.end


@given(statements, st.data())
def test_completion_at_any_place_of_a_statement(
    statement: nodes.Statement, data: st.DataObject
) -> None:
    text = to_sql(statement)
    cursor = data.draw(st.integers(0, len(text)))
    found = complete(text, cursor)
    assert text[:cursor].endswith(found.prefix)
    assert all(word.startswith(found.prefix.upper()) for word in found.words)
