"""VALIDATE: every problem of a statement as a table, or one row that says there is none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from changefeed.core.errors import Action, ChangefeedError
from changefeed.core.uri import sink_location
from changefeed.plan.stages import FeedPlan
from grammar import nodes

#: Columns of VALIDATE's answer.
COLUMNS = ("severity", "code", "place", "where", "problem", "hint")

Row = tuple[str, str, str, str, str, str]

#: Statements that VALIDATE checks.
Checked = (
    nodes.CreateChangefeed
    | nodes.CreateDataset
    | nodes.CreateCdc
    | nodes.CreateSchedule
    | nodes.AlterChangefeed
    | nodes.CheckConnection
)

#: A problem with a longer part of the statement concerns all of it.
_LONGEST = 40

#: The values of ``place``: what a problem concerns.
CONNECTION, TABLE, QUERY, SINK, OPTION, STATEMENT = (
    "connection",
    "table",
    "query",
    "sink",
    "option",
    "statement",
)


@dataclass(frozen=True, slots=True)
class StatementPart:
    """A part of the statement: its kind, its name, and its place."""

    kind: str
    name: str
    start: int
    end: int


def problem_rows(
    plan: FeedPlan | None,
    problems: Sequence[ChangefeedError],
    warnings: Sequence[str],
    text: str,
    statement: Checked,
    source: str = "",
) -> list[Row]:
    """Errors in the order of the text, then warnings; ``ok`` if a plan has no error.

    ``statement`` is the parsed ``text``: a problem's place is a part of it. ``source`` is the
    connection that it reads from, if that is known.
    """
    places = list(_places(statement))
    # Where FROM does not name it; it has no place in the text.
    places.append(StatementPart(CONNECTION, source, -1, -1))
    rows = [_row(problem, text, places) for problem in problems]
    notices = (*(plan.notices if plan else ()), *warnings)
    rows += [("warning", "", "", "", notice, "") for notice in notices]
    if not problems and plan is not None:
        count = len(plan.tables)
        tables = f"{count} {'table' if count == 1 else 'tables'}"
        sink = plan.sink.shown_uri or "this client"
        rows.insert(0, ("ok", "", "", "", f"{tables} of {plan.source.source} to {sink}", ""))
    return rows


def _row(problem: ChangefeedError, text: str, places: Sequence[StatementPart]) -> Row:
    message = f"{problem.message} ({problem.detail})" if problem.detail else problem.message
    place, where = _where(problem, text, places)
    return ("error", problem.code.number, place, where, message, problem.hint)


def _places(statement: Checked) -> Iterator[StatementPart]:
    """The parts that a problem can concern, smaller ones before those around them.

    The sink's URI is shown without secrets and parameters.
    """
    if isinstance(statement, nodes.CheckConnection):
        if statement.name_span is not None:
            yield _named(CONNECTION, statement.name or "", statement.name_span)
        if statement.uri is not None:
            yield from _sink(statement.uri)
        return
    if isinstance(statement, nodes.AlterChangefeed):
        for action in statement.actions:
            if isinstance(action, nodes.AlterSet | nodes.AlterAdd):
                yield from _options(action.options)
            if isinstance(action, nodes.AlterAdd | nodes.AlterDrop):
                yield from _tables(action.targets)
            if isinstance(action, nodes.AlterInto):
                yield from _sink(action.sink)
        return
    yield from _options(statement.options)
    if isinstance(statement, nodes.CreateSchedule):
        if statement.recurring.span is not None:
            yield _named(OPTION, "RECURRING", statement.recurring.span)
        yield from _places(statement.statement)
        return
    if isinstance(statement, nodes.CreateCdc):
        if statement.table.span is not None:
            yield _named(TABLE, ".".join(statement.table.parts), statement.table.span)
        return
    if statement.sink is not None:
        yield from _sink(statement.sink)
    if isinstance(statement, nodes.CreateDataset):
        for column in (*statement.keys, *statement.ignored):
            if column.span is not None:
                yield _named(TABLE, column.text, column.span)
        if statement.location.span is not None:
            yield _named(TABLE, "", statement.location.span)
        return
    if statement.source_span is not None:
        yield _named(CONNECTION, statement.source or "", statement.source_span)
    yield from _tables(statement.targets)


def _options(options: Sequence[nodes.Option]) -> Iterator[StatementPart]:
    for option in options:
        first = option.span
        last = option.value.span if option.value is not None and option.value.span else first
        if first is not None and last is not None:
            yield StatementPart(OPTION, option.name, first.start, last.end)


def _sink(sink: nodes.Literal) -> Iterator[StatementPart]:
    if sink.span is not None:
        shown = sink_location(sink.text).partition("?")[0]
        yield _named(SINK, shown, sink.span)


def _tables(targets: Sequence[nodes.FeedTarget]) -> Iterator[StatementPart]:
    for target in targets:
        query = target.query if isinstance(target, nodes.TableTarget) else None
        for span in query.spans if query is not None else ():
            yield _named(QUERY, "", span)
        for around in (target.name.span, target.span):
            if around is not None:
                yield _named(TABLE, "", around)


def _named(kind: str, name: str, span: nodes.Span) -> StatementPart:
    return StatementPart(kind, name, span.start, span.end)


def _where(problem: ChangefeedError, text: str, places: Sequence[StatementPart]) -> tuple[str, str]:
    span = problem.span
    if span is not None and text:
        for place in places:
            if place.start <= span.start and span.end <= place.end:
                return place.kind, place.name or text[span.start : span.end].strip()
        words = text[span.start : span.end].strip()
        return STATEMENT, words if len(words) <= _LONGEST else ""
    if problem.code.is_of_source:
        return CONNECTION, next((p.name for p in places if p.kind == CONNECTION), "")
    if problem.code.is_of_sink:
        return SINK, next((p.name for p in places if p.kind == SINK), "")
    return (STATEMENT, "") if problem.action is Action.USER else ("", "")
