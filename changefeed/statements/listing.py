"""SHOW CHANGEFEEDS, one row per feed; and WHERE, ORDER BY and LIMIT of every SHOW, on typed
values."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cmp_to_key
from typing import Any

from changefeed.catalog import Job, TableProgress
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.quantities import parse_duration, parse_size
from changefeed.drain import node_duties
from changefeed.options import to_span
from changefeed.plan.names import unknown_name
from changefeed.statements import brief
from changefeed.statements.brief import Brief, FeedSnapshot
from changefeed.statements.context import HANDLERS, Context, Result, handles
from changefeed.statements.times import date, instant, moment
from changefeed.statements.values import Cell, Names, Rate, Seconds, Size
from grammar import nodes

#: Columns of SHOW CHANGEFEEDS: the important ones first, for narrow terminals.
COLUMNS = (
    "job_id",
    "name",
    "status",
    "running_status",
    "source",
    "lag",
    "rows_per_second",
    "bytes_per_second",
    "high_water_timestamp",
    "error",
    "sink_uri",
    "full_table_names",
    "topics",
    "format",
    "created",
    "started",
    "finished",
    "modified",
    "node",
    "owner",
)
NODE_COLUMNS = (
    "node",
    "host",
    "pid",
    "version",
    "status",
    "captures",
    "feeds",
    "max_feeds",
    "load",
    "started",
    "waits_for",
)

Row = tuple[Cell, ...]


@handles(nodes.ShowChangefeeds)
def show_changefeeds(statement: nodes.ShowChangefeeds, context: Context) -> Result:
    """SHOW CHANGEFEEDS."""
    now = context.clock.now().wall
    looks = looks_at(context.catalog.jobs(), context)
    rows = [feed_row(look, now) for look in looks]
    return Result(columns=COLUMNS, rows=rows, brief=brief.feeds(looks, now))


def looks_at(jobs: Sequence[Job], context: Context) -> list[FeedSnapshot]:
    """Each job with its tables and its state."""
    node = context.host.node_running()
    found = context.catalog.tables_of_jobs([job.id for job in jobs])
    holders = context.catalog.job_holders()
    letters = context.catalog.dead_letter_counts()
    looks = []
    for job in jobs:
        tables = found.get(job.id, [])
        health = context.health(job, tables, node, letters.get(job.id, 0))
        looks.append(FeedSnapshot(job, tables, health, holders.get(job.id)))
    return looks


def feed_row(look: FeedSnapshot, now: int) -> Row:
    """One row of the listing; ``now`` is ns since 1970."""
    job, tables, shown = look.job, look.tables, look.health
    return (
        job.id,
        job.name,
        shown.status,
        shown.reason,
        job.source,
        shown.lag,
        Rate(round(job.rows_per_second, 1)) if shown.moves else None,
        Size(round(job.bytes_per_second)) if shown.moves else None,
        instant(shown.upto, now),
        error_text(job, tables),
        job.redacted_sink_uri or None,
        Names(str(table.table) for table in tables),
        Names(dict.fromkeys(table.topic for table in tables)),
        job.options.get("format", "json"),
        moment(job.created, now),
        moment(job.started, now),
        moment(job.finished, now),
        moment(job.modified, now),
        look.node,
        job.owner or None,
    )


def error_text(job: Job, tables: Sequence[TableProgress]) -> str | None:
    """The job's error, else that of its failed tables."""
    if job.error is not None:
        return job.error
    failed = [f"{t.table.schema}.{t.table.name}: {t.error}" for t in tables if t.error]
    if not failed:
        return None
    more = f" (and {len(failed) - 1} tables more)" if len(failed) > 1 else ""
    return failed[0] + more


# ------------------------------------------------------------------- WHERE, ORDER BY, LIMIT


@handles(nodes.ShowWhere)
def select(statement: nodes.ShowWhere, context: Context) -> Result:
    """A SHOW with WHERE, ORDER BY and LIMIT: the rows that it asks for, in its order.

    Raises:
        ChangefeedError: CF1101 no such column, CF1204 a value that the column cannot have.
    """
    shown = statement.statement
    every: Result = HANDLERS[type(shown)](shown, replace(context, selecting=True))
    kept = _places(every.rows, every.columns, statement)
    whole = every.brief
    people = whole and Brief(whole.columns, lambda: [whole.rows[n] for n in kept])
    return replace(
        every,
        rows=[every.rows[n] for n in kept],
        brief=people,
        sections=every.sections if kept else (),
    )


def _places(rows: Sequence[Row], columns: Sequence[str], statement: nodes.ShowWhere) -> list[int]:
    """Which rows, as indices."""
    test = _test(statement.where, columns) if statement.where is not None else None
    kept = [n for n, row in enumerate(rows) if test is None or test(row)]
    for ordering in reversed(statement.order_by):
        place = _place(ordering.column, columns, ordering.span)
        kept.sort(key=_key(rows, place), reverse=ordering.descending)
        # NULL comes last either way.
        unknown = [n for n in kept if rows[n][place] is None]
        kept = [n for n in kept if rows[n][place] is not None] + unknown
    return kept if statement.limit is None else kept[: statement.limit]


def _key(rows: Sequence[Row], place: int) -> Callable[[int], Any]:
    return cmp_to_key(lambda a, b: _compare(rows[a][place], rows[b][place]))


def _compare(one: Cell, other: Cell) -> int:
    if one is None or other is None:
        return 0
    if isinstance(one, str) or isinstance(other, str):
        one, other = str(one), str(other)
    return (one > other) - (one < other)  # type: ignore[operator]


def _place(column: str, columns: Sequence[str], span: nodes.Span | None) -> int:
    if column in columns:
        return columns.index(column)
    raise unknown_name("column", column, columns, f"columns are: {', '.join(columns)}.", span)


_COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


#: What SQL says of a row: None is unknown, as a comparison with NULL is.
_Verdict = Callable[[Row], bool | None]


def _test(test: nodes.Test, columns: Sequence[str]) -> _Verdict:
    if isinstance(test, nodes.Negation):
        return _negated(_test(test.test, columns))
    if isinstance(test, nodes.Conjunction | nodes.Disjunction):
        parts = [_test(each, columns) for each in test.tests]
        decisive = isinstance(test, nodes.Disjunction)

        def joined(row: Row) -> bool | None:
            verdicts = [part(row) for part in parts]
            return (
                decisive if decisive in verdicts else (None if None in verdicts else not decisive)
            )

        return joined
    return _negated(_condition(test, columns)) if test.negated else _condition(test, columns)


def _negated(verdict: _Verdict) -> _Verdict:
    def negated(row: Row) -> bool | None:
        said = verdict(row)
        return None if said is None else not said

    return negated


def _condition(condition: nodes.Condition, columns: Sequence[str]) -> _Verdict:
    place = _place(condition.column, columns, condition.span)
    if condition.operator == "NULL":
        return lambda row: row[place] is None
    if condition.operator == "LIKE":
        pattern = _like(condition.values[0].text)
        return lambda row: (
            None
            if row[place] is None
            else any(pattern.fullmatch(word) for word in _words(row[place]))
        )
    compare = _COMPARISONS["=" if condition.operator == "IN" else condition.operator]

    def test(row: Row) -> bool | None:
        cell = row[place]
        if cell is None:
            return None
        return any(_holds(compare, cell, value, condition) for value in condition.values)

    return test


def _holds(
    compare: Callable[[int, int], bool],
    cell: Cell,
    value: nodes.Literal,
    condition: nodes.Condition,
) -> bool:
    if isinstance(cell, Names):
        # A list equals a text that is one of it.
        return any(compare(_compare(word, value.text), 0) for word in cell or ("",))
    span = value.span or condition.span
    return compare(_compare(cell, _typed(value.text, cell, condition.column, span)), 0)


def _typed(text: str, cell: Cell, column: str, span: nodes.Span | None) -> Cell:
    """The literal as a value of the cell's kind."""
    if isinstance(cell, str) or cell is None:
        return text
    try:
        return float(text)
    except ValueError:
        pass  # a duration or size in words, or nothing a number can be compared with
    try:
        if isinstance(cell, Seconds):
            return parse_duration(text)
        if isinstance(cell, Size):
            return parse_size(text)
    except ValueError:
        pass  # said below, in one way for all
    raise ChangefeedError(
        Code.INVALID_OPTION_VALUE,
        f"{column} is a number: '{text}' cannot be compared with it",
        span=to_span(span),
    )


def _words(cell: Cell) -> tuple[str, ...]:
    if cell is None:
        return ()
    return tuple(cell) if isinstance(cell, Names) else (str(cell),)


def _like(pattern: str) -> re.Pattern[str]:
    """SQL's LIKE: ``%`` any text, ``_`` one character, backslash escapes."""
    parts: list[str] = []
    characters = iter(pattern)
    for character in characters:
        if character == "\\":
            parts.append(re.escape(next(characters, "\\")))
        else:
            parts.append({"%": ".*", "_": "."}.get(character) or re.escape(character))
    return re.compile("".join(parts), re.DOTALL)


@handles(nodes.ShowNodes)
def show_nodes(statement: nodes.ShowNodes, context: Context) -> Result:
    """SHOW NODES: those that live, oldest first."""
    rows = [
        (
            each.node.id,
            each.node.hostname,
            each.node.pid,
            each.node.version,
            each.status,
            Names(each.sources),
            Names(each.feeds),
            each.node.max_feeds,
            f"{each.node.load:.2f}",
            date(each.node.started),
            each.waits_for,
        )
        for each in node_duties(context.catalog)
    ]
    return Result(columns=NODE_COLUMNS, rows=list(rows))


@handles(nodes.ShowSpark)
def show_spark(statement: nodes.ShowSpark, context: Context) -> Result:
    """SHOW SPARK."""
    found = context.host.spark_report()
    rows: list[Row] = [
        ("status", found.status),
        ("version", found.version or None),
        ("master", found.master),
        ("cores", str(found.cores)),
        ("fast", Names(found.fast) if found.fast else None),
        *(("falls back", clause) for clause in found.instead),
    ]
    return Result(columns=("property", "value"), rows=[row for row in rows if row[1] is not None])
