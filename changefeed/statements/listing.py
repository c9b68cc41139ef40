"""SHOW CHANGEFEEDS: one row per feed, with WHERE, ORDER BY and LIMIT on typed values."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cmp_to_key
from typing import Any

from changefeed.catalog import Job, TableProgress
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.quantities import parse_duration, parse_size
from changefeed.drain import node_duties
from changefeed.options import to_span
from changefeed.statements import brief
from changefeed.statements.brief import FeedSnapshot
from changefeed.statements.context import Context, Result, handles
from changefeed.statements.times import date, instant, moment
from changefeed.statements.values import Cell, Names, Rate, Seconds, Size
from grammar import nodes
from grammar.spelling import did_you_mean

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
)

Row = tuple[Cell, ...]


@handles(nodes.ShowChangefeeds)
def show_changefeeds(statement: nodes.ShowChangefeeds, context: Context) -> Result:
    """SHOW CHANGEFEEDS [WHERE ..] [ORDER BY ..] [LIMIT n]."""
    now = context.clock.now().wall
    looks = {job.id: look for job, look in looks_at(context.catalog.jobs(), context)}
    rows = select([feed_row(look, now) for look in looks.values()], COLUMNS, statement)
    chosen = [looks[int(row[0])] for row in rows if isinstance(row[0], int)]
    return Result(columns=COLUMNS, rows=rows, brief=brief.feeds(chosen, now))


def looks_at(jobs: Iterable[Job], context: Context) -> Iterator[tuple[Job, FeedSnapshot]]:
    """Each job with its tables and its state."""
    node = context.host.node_running()
    for job in jobs:
        tables = context.catalog.tables(job.id)
        yield job, FeedSnapshot(job, tables, context.health(job, tables, node))


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
        instant(job.high_water, now),
        error_text(job, tables),
        job.redacted_sink_uri or None,
        Names(str(table.table) for table in tables),
        Names(dict.fromkeys(table.topic for table in tables)),
        job.options.get("format", "json"),
        moment(job.created, now),
        moment(job.started, now),
        moment(job.finished, now),
        moment(job.modified, now),
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


def select(
    rows: Sequence[Row], columns: Sequence[str], statement: nodes.ShowChangefeeds
) -> list[Row]:
    """The rows that the statement asks for, in its order.

    Raises:
        ChangefeedError: CF1101 no such column, CF1204 a value that the column cannot have.
    """
    tests = [_test(condition, columns) for condition in statement.where]
    kept = [row for row in rows if all(test(row) for test in tests)]
    for ordering in reversed(statement.order_by):
        place = _place(ordering.column, columns, ordering.span)
        kept.sort(key=_key(place), reverse=ordering.descending)
        # NULL comes last either way.
        kept.sort(key=lambda row: row[place] is None)
    return kept if statement.limit is None else kept[: statement.limit]


def _key(place: int) -> Callable[[Row], Any]:
    return cmp_to_key(lambda a, b: _compare(a[place], b[place]))


def _compare(one: Cell, other: Cell) -> int:
    if one is None or other is None:
        return 0
    if isinstance(one, str) or isinstance(other, str):
        one, other = str(one), str(other)
    return (one > other) - (one < other)  # type: ignore[operator]


def _place(column: str, columns: Sequence[str], span: nodes.Span | None) -> int:
    if column in columns:
        return columns.index(column)
    near = did_you_mean(column, columns)
    raise ChangefeedError(
        Code.NAME_UNKNOWN,
        f'column "{column}" does not exist',
        hint=f'did you mean "{near}"?' if near else f"columns are: {', '.join(columns)}.",
        span=to_span(span),
    )


_COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def _test(condition: nodes.Condition, columns: Sequence[str]) -> Callable[[Row], bool]:
    place = _place(condition.column, columns, condition.span)
    sign = condition.operator.upper()
    if sign == "IS NULL":
        return lambda row: row[place] is None
    if sign == "IS NOT NULL":
        return lambda row: row[place] is not None
    if condition.value is None:
        raise AssertionError("only IS NULL has no value")
    text, span = condition.value.text, condition.value.span or condition.span
    if sign == "LIKE":
        pattern = _like(text)
        return lambda row: any(pattern.fullmatch(word) for word in _words(row[place]))
    compare = _COMPARISONS[sign]

    def test(row: Row) -> bool:
        cell = row[place]
        if cell is None:
            return False
        if isinstance(cell, Names):
            # A list equals a text that is one of it.
            return any(compare(_compare(word, text), 0) for word in cell or ("",))
        return compare(_compare(cell, _typed(text, cell, condition.column, span)), 0)

    return test


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
            each.node.host.partition(" ")[0],
            each.node.pid,
            each.node.version,
            each.status,
            Names(each.sources),
            Names(each.feeds),
            date(each.node.started),
            each.waits_for,
        )
        for each in node_duties(context.catalog)
    ]
    columns = (
        "node",
        "host",
        "pid",
        "version",
        "status",
        "captures",
        "feeds",
        "started",
        "waits_for",
    )
    return Result(columns=columns, rows=list(rows))
