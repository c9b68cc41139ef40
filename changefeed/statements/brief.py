"""Listings for people: the few columns that matter, in the order in which one looks at them.

Programs get every column; a person on a terminal gets these, and the rest by ``\\x``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from changefeed.catalog import Job, Status, TableProgress, TableState
from changefeed.core.schema import TableName
from changefeed.sources.base import TableInfo
from changefeed.statements.health import (
    DEGRADED,
    TROUBLE,
    Health,
    paused_text,
    refused_rows,
    waits_of,
)
from changefeed.statements.times import ago, readable
from changefeed.statements.values import Cell, Estimate, Names, Rate, ShownText, Size
from grammar.printer import name as name_sql

#: Tables that are named in a row; more are counted.
_NAMED = 3


@dataclass(frozen=True, eq=False)
class Brief:
    """What a person sees of a result, in place of its columns. ``make`` makes the rows, which
    programs do not ask for."""

    columns: tuple[str, ...]
    make: Callable[[], list[tuple[Cell, ...]]] = field(repr=False)

    @cached_property
    def rows(self) -> list[tuple[Cell, ...]]:
        """The rows, one for each of the result."""
        return self.make()


@dataclass(frozen=True, slots=True)
class Section:
    """Facts that belong together, as (what it is, the value)."""

    title: str
    facts: Sequence[tuple[str, Cell]]


@dataclass(frozen=True, slots=True)
class FeedSnapshot:
    """A feed as it was when a listing looked at it."""

    job: Job
    tables: Sequence[TableProgress]
    health: Health
    #: The node that runs it.
    node: str | None


def feeds(looks: Sequence[FeedSnapshot], now: int) -> Brief:
    """SHOW CHANGEFEEDS: state and lag first, then from where to where, and why where it matters."""
    columns = ("name", "status", "lag", "rows/s", "tables", "sink", "why")
    return Brief(columns, lambda: [_feed(look, now) for look in looks])


def _feed(look: FeedSnapshot, now: int) -> tuple[Cell, ...]:
    job = look.job
    return (
        job.name,
        status(look, now),
        look.health.lag,
        Rate(round(job.rows_per_second, 1)) if look.health.moves else None,
        tables(look.tables),
        sink(job),
        why(look, now),
    )


def status(look: FeedSnapshot, now: int) -> str:
    """The status with what belongs to it: since when it failed, how many tables did."""
    shown = look.health.status
    if shown == DEGRADED:
        failed = sum(table.state is TableState.FAILED for table in look.tables)
        return f"{shown}: {failed} of {len(look.tables)} tables" if failed else shown
    if look.job.finished is not None:
        return f"{shown} {ago(look.job.finished, now)}"
    return shown


def tables(every: Sequence[TableProgress]) -> str:
    """``orders, items!``: those that failed carry a mark and come first."""
    failed = [table for table in every if table.state is TableState.FAILED]
    others = [table for table in every if table.state is not TableState.FAILED]
    names = [f"{short_name(t)}!" for t in failed] + [short_name(t) for t in others]
    if len(names) <= _NAMED:
        return ", ".join(names)
    return f"{', '.join(names[: _NAMED - 1])} and {len(names) - _NAMED + 1} more"


def short_name(table: TableProgress) -> str:
    """The name of a table, with its schema where that is not the usual one."""
    name = table.table
    return name.name if name.schema == "public" else f"{name.schema}.{name.name}"


def written_name(table: TableName) -> str:
    """``schema.table`` as a statement takes it, in quotes where the language needs them."""
    return f"{name_sql(table.schema)}.{name_sql(table.name)}"


def sink(job: Job) -> str:
    """Where it goes, without the parameters."""
    return job.redacted_sink_uri.partition("?")[0] or "this session"


def why(look: FeedSnapshot, now: int) -> str | None:
    """The reason of whatever is not plain running, and the next step where one is known."""
    job, shown = look.job, look.health
    if shown.status == Status.RUNNING:
        said = (
            waits_of(job) or shown.gathers,
            paused_text(look.tables),
            refused_rows(job, shown.letters),
        )
        return "; ".join(filter(None, said)) or None
    reason = readable(shown.reason, now).words
    if shown.status in TROUBLE and job.hint and shown.status == str(job.status):
        return f"{reason}; {with_names(job.hint, job)}"
    return reason


def with_names(hint: str, job: Job, table: TableProgress | None = None) -> str:
    """A hint as it is typed for this feed, and for this table where it is about one.

    The hints of the codes say ``ALTER CHANGEFEED .. RESCAN the table``.
    """
    said = hint.replace("CHANGEFEED ..", f"CHANGEFEED {name_sql(job.name)}")
    if table is None:
        return said
    name = written_name(table.table)
    return re.sub(r"\b(RESCAN|DROP) the table\b", lambda found: f"{found[1]} {name}", said)


#: What SHOW CHANGEFEED f shows a person: title -> (what it is, column).
_SECTIONS: dict[str, tuple[tuple[str, str], ...]] = {
    "state": (
        ("status", "status"),
        ("reason", "running_status"),
        ("wanted", "wanted"),
        ("error", "error"),
        ("what next", "hint"),
    ),
    "position": (
        ("lag", "lag"),
        ("complete up to", "high_water_timestamp"),
        ("initial scan", "scan_progress"),
        ("slo", "slo"),
        ("proved", "proved"),
        ("rows/s", "rows_per_second"),
        ("bytes/s", "bytes_per_second"),
        ("rows so far", "emitted_rows"),
        ("bytes so far", "emitted_bytes"),
        ("last Spark job", "last_spark_job"),
    ),
    "source": (
        ("connection", "source"),
        ("tables", "full_table_names"),
        ("table states", "table_states"),
        ("held there", "source_holds"),
        ("error", "source_error"),
    ),
    "sink": (
        ("to", "sink_uri"),
        ("topics", "topics"),
        ("format", "format"),
        ("a file", "files"),
        ("options", "options"),
        ("cursor", "cursor"),
        ("end time", "end_time"),
    ),
    "job": (
        ("id", "job_id"),
        ("created", "created"),
        ("started", "started"),
        ("modified", "modified"),
        ("finished", "finished"),
        ("node", "node"),
        ("owner", "owner"),
        ("stays there", "stays"),
    ),
}


def detail(look: FeedSnapshot, columns: Mapping[str, Cell]) -> tuple[Section, ...]:
    """SHOW CHANGEFEED f in groups, without what has no value or says the status again."""
    sections = []
    for title, facts in _SECTIONS.items():
        cells = ((words, name, _cell(name, columns)) for words, name in facts)
        found = [(words, cell) for words, name, cell in cells if _worth(name, cell, columns)]
        heading = f"{look.job.name}: {title}" if title == "state" else title
        if found:
            sections.append(Section(heading, found))
    return tuple(sections)


def _cell(name: str, columns: Mapping[str, Cell]) -> Cell:
    """A column's value, without the options that are instants: these have columns of their own, as
    times of day."""
    value = columns[name]
    if name == "options" and isinstance(value, Names):
        return Names(text for text in value if not text.startswith(("cursor = ", "end_time = ")))
    return value


def _worth(name: str, value: Cell, columns: Mapping[str, Cell]) -> bool:
    if name == "running_status":
        # Of a running feed it is the status and the timestamp that stands below.
        return columns["status"] != str(Status.RUNNING)
    if name == "wanted":
        return value != columns["status"]
    if name == "error":
        return bool(value) and str(value) not in str(columns["running_status"])
    return value is not None and str(value) != ""


def feed_tables(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> Brief:
    """SHOW CHANGEFEED f TABLES: how far each table is, and why it is not running."""
    found = [dict(zip(columns, row, strict=True)) for row in rows]
    return Brief(
        ("table", "state", "lag", "complete_up_to", "rows", "topic", "why"),
        lambda: [
            (
                row["table"],
                row["state"],
                row["lag"],
                row["done_upto"],
                row["emitted_rows"],
                row["topic"],
                _joined(row["error"] or row["scan"], row["hint"]),
            )
            for row in found
        ],
    )


def counted(columns: Sequence[str], rows: Sequence[Sequence[Cell]], text: str) -> Brief:
    """Events: what happened several times says in its ``text`` how often, and when last."""
    shown = len(columns) - 2  # times and last
    place = columns.index(text)
    found = []
    for *row, times, last in rows:
        if times != 1:
            row[place] = f"{_words(row[place])} ({times} times, last at {_words(last)})"
        found.append(tuple(row))
    return Brief(tuple(columns[:shown]), lambda: found)


def _words(cell: Cell) -> str:
    return cell.words if isinstance(cell, ShownText) else str(cell)


def checks(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> Brief:
    """VALIDATE: where each problem is, and what it is with what to do about it."""
    found = [dict(zip(columns, row, strict=True)) for row in rows]
    return Brief(
        ("severity", "code", "place", "where", "problem"),
        lambda: [
            (
                row["severity"],
                row["code"],
                row["place"],
                row["where"],
                _joined(row["problem"], row["hint"]),
            )
            for row in found
        ],
    )


def _joined(problem: Cell, hint: Cell) -> str | None:
    if not problem:
        return _words(hint) if hint else None
    return f"{_words(problem)}  HINT: {hint}" if hint else _words(problem)


def source_tables(infos: Sequence[TableInfo], watched: Mapping[TableName, Sequence[str]]) -> Brief:
    """SHOW TABLES: what each table is, who watches it, and what CREATE CHANGEFEED would refuse."""
    columns = ("table", "key", "rows", "size", "watched_by", "note")
    return Brief(
        columns,
        lambda: [
            (
                written_name(info.name),
                Names(info.key),
                Estimate(info.rows_estimate),
                Size(info.bytes),
                Names(watched.get(info.name, ())),
                _table_note(info),
            )
            for info in infos
        ],
    )


def _table_note(info: TableInfo) -> str | None:
    notes = [] if info.kind == "table" else [info.kind]
    notes += [info.note] if info.note else []
    return "; ".join(notes) or None


def jobs(looks: Sequence[FeedSnapshot], now: int) -> Brief:
    """SHOW JOBS: the same for every job there was."""
    columns = ("job_id", "name", "status", "created", "sink", "why")
    return Brief(
        columns,
        lambda: [
            (
                look.job.id,
                look.job.name,
                status(look, now),
                ago(look.job.created, now),
                sink(look.job),
                why(look, now),
            )
            for look in looks
        ],
    )
