"""Targets of a statement -> tables of the source.

A SCHEMA or DATABASE target means the tables that match now and those created later: the job keeps
the target's text, and :func:`matching` is called again while the feed runs.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace

from changefeed.catalog.model import Job, TableProgress
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.schema import TableName, TableSchema
from changefeed.options import to_span
from changefeed.query.model import CompiledQuery
from changefeed.sources.base import PartitionInfo, Source, Watch
from grammar import nodes
from grammar.parser import parse
from grammar.printer import to_sql

#: Errors of the source as a whole, after which asking for the next table is useless.
_WHOLE_SOURCE = (Code.SOURCE_UNREACHABLE, Code.SOURCE_REFUSED_LOGIN)


@dataclass(frozen=True, slots=True)
class TableRequest:
    """A table that a statement asks for.

    ``joined``: it matched a pattern. ``fallback``: ``a.t`` may mean table t of source a.
    """

    target: nodes.FeedTarget
    watch: Watch
    joined: bool = False
    fallback: Watch | None = None


@dataclass(frozen=True, slots=True)
class ResolvedTarget:
    """A table that exists, and the query over it if there is one."""

    target: nodes.FeedTarget
    schema: TableSchema
    joined: bool
    partition: PartitionInfo | None = None
    query: CompiledQuery | None = None

    @property
    def messages(self) -> bool:
        """Whether it is the source's logical messages instead of a table."""
        return isinstance(self.target, nodes.MessagesTarget)

    @property
    def delivered(self) -> TableSchema:
        """The shape of what the feed delivers: of a query, its result."""
        return self.schema if self.query is None else self.query.schema


def target_text(target: nodes.FeedTarget) -> str:
    """The canonical SQL of a target, as the job stores it."""
    return to_sql(target)


def parse_targets(texts: Sequence[str]) -> tuple[nodes.FeedTarget, ...]:
    """The inverse of :func:`target_text`, for the texts of one job."""
    targets: list[nodes.FeedTarget] = []
    for text in texts:
        # One at a time: a list of patterns would swallow the table after it.
        word = "AS" if text.startswith("SELECT ") else "FOR"
        statement = parse(f"CREATE CHANGEFEED {word} {text}")
        if not isinstance(statement, nodes.CreateChangefeed):
            raise AssertionError("a target makes a CREATE CHANGEFEED")
        targets += statement.targets
    return tuple(targets)


def query_of(job: Job) -> nodes.Query | None:
    """The CDC query of a job; None of a job of whole tables."""
    if not job.is_query:
        return None
    (target,) = parse_targets(job.targets)
    if not isinstance(target, nodes.TableTarget) or target.query is None:
        raise AssertionError("the target of a query is a table with a query")
    return target.query


def qualified(
    target: nodes.FeedTarget, source: str, table: TableName | None = None
) -> nodes.FeedTarget:
    """The target with its full name, which means the same in every session."""
    name = target.name
    if isinstance(target, nodes.TableTarget) and table is not None:
        parts: tuple[str, ...] = (table.schema, table.name)
        if target.query is not None:
            parts = (source, *parts)  # a query has no FROM of its own for the source
    elif isinstance(target, nodes.SchemaTarget):
        parts = name.parts[-1:]
    elif isinstance(target, nodes.DatabaseTarget):
        parts = (source,)
    else:
        parts = name.parts
    return _renamed(target, nodes.QualifiedName(parts, span=name.span))


def _renamed(target: nodes.FeedTarget, name: nodes.QualifiedName) -> nodes.FeedTarget:
    match target:
        case nodes.TableTarget():
            return replace(target, name=name)
        case nodes.SchemaTarget():
            return nodes.SchemaTarget(name, target.filter, target.patterns, span=target.span)
        case nodes.DatabaseTarget():
            return nodes.DatabaseTarget(name, target.filter, target.patterns, span=target.span)
        case nodes.MessagesTarget():
            return target


def rename_hindrance(
    now: TableName,
    tables: Container[TableName],
    *,
    query: bool,
    pulled: bool,
    lacks: ChangefeedError | None = None,
) -> str:
    """Why a feed cannot continue with one of its ``tables`` whose name at the source is now
    ``now``; empty: it can.

    Args:
        query: the feed is a CDC query.
        pulled: its consumer reads the rows from the log itself.
        lacks: the right on that name that its owner lacks.
    """
    if lacks is not None:
        return lacks.message
    if query:
        return "a CDC query does not follow"
    if pulled:
        return "a feed that a reader takes from the log does not follow"
    if now in tables:
        return "the feed has a table of that name"
    return ""


def renamed_targets(
    texts: Sequence[str],
    table: TableProgress,
    now: TableName,
    topic_of: Callable[[str], str] | None,
) -> tuple[str, ...]:
    """The targets of a job after one of its tables was renamed; the table keeps its topic.

    ``topic_of`` finishes the name that ``AS`` gives; None for a feed without topics.
    """
    targets = []
    for target in parse_targets(texts):
        if isinstance(target, nodes.TableTarget) and target.name.parts[-2:] == (
            table.table.schema,
            table.table.name,
        ):
            name = nodes.QualifiedName((now.schema, now.name), span=target.name.span)
            target = replace(target, name=name, topic=target.topic or _kept_topic(table, topic_of))
        targets.append(target)
    return tuple(map(target_text, targets))


def _kept_topic(table: TableProgress, topic_of: Callable[[str], str] | None) -> str | None:
    """The name that ``AS`` needs for the topic that the table has without it."""
    if topic_of is None:
        return None
    known = table.known_as
    names = (known.name, f"{known.schema}_{known.name}", table.topic)
    return next((name for name in names if topic_of(name) == table.topic), table.topic)


def matching(target: nodes.SchemaTarget | nodes.DatabaseTarget, source: Source) -> list[TableName]:
    """The tables a pattern target means now, by name."""
    schema = target.name.parts[-1] if isinstance(target, nodes.SchemaTarget) else None
    if target.filter is nodes.Filter.INCLUDE:
        return source.matching(schema, target.patterns)
    every = source.matching(schema)
    if target.filter is nodes.Filter.EXCLUDE:
        out = set(source.matching(schema, target.patterns))
        return [name for name in every if name not in out]
    return every


def wishes(
    targets: Sequence[nodes.FeedTarget], source: Source, *, diff: bool
) -> tuple[list[TableRequest], list[ChangefeedError]]:
    """The tables that targets ask for; a pattern without tables is a problem.

    Logical messages are no table, see :func:`look_up_messages`.
    """
    found: list[TableRequest] = []
    problems: list[ChangefeedError] = []
    for target in targets:
        if isinstance(target, nodes.TableTarget):
            found.append(_table_wish(target, source.name, diff))
            continue
        if isinstance(target, nodes.MessagesTarget):
            continue
        try:
            names = matching(target, source)
        except ChangefeedError as error:
            if error.code in _WHOLE_SOURCE:
                raise
            error.span = error.span or to_span(target.name.span or target.span)
            problems.append(error)
            continue
        if not names:
            problems.append(_matches_nothing(target))
        for name in names:
            watch = Watch(name.name, name.schema, diff, to_span(target.span))
            found.append(TableRequest(target, watch, joined=True))
    return found, problems


def _table_wish(target: nodes.TableTarget, source: str, diff: bool) -> TableRequest:
    parts = target.name.parts
    span = to_span(target.name.span or target.span)
    schema = parts[-2] if len(parts) > 1 else None
    watch = Watch(parts[-1], schema, diff, span)
    other = Watch(parts[-1], None, diff, span) if schema == source and len(parts) == 2 else None
    return TableRequest(target, watch, fallback=other)


def _matches_nothing(target: nodes.SchemaTarget | nodes.DatabaseTarget) -> ChangefeedError:
    return ChangefeedError(
        Code.TARGET_NOT_WATCHABLE,
        f"no table matches {target_text(target)}",
        hint="SHOW TABLES lists what can be watched.",
        span=to_span(target.span),
    )


def look_up(
    asked: Sequence[TableRequest], source: Source
) -> tuple[list[ResolvedTarget], list[ChangefeedError]]:
    """The shapes of the requested tables, each table once; a table named twice is a problem.

    A table with a target of its own counts before a pattern that matches it; of two patterns the
    first counts.
    """
    found: dict[TableName, ResolvedTarget] = {}
    problems: list[ChangefeedError] = []
    # Tables with a target of their own first: they win over patterns.
    for wish in sorted(asked, key=lambda wish: wish.joined):
        try:
            schema = _describe(wish, source)
            part = _partition(wish, schema, source)
        except ChangefeedError as error:
            if error.code in _WHOLE_SOURCE:
                raise
            error.span = error.span or wish.watch.span
            problems.append(error)
            continue
        known = found.get(schema.table)
        if known is None:
            found[schema.table] = ResolvedTarget(wish.target, schema, wish.joined, part)
        elif not wish.joined:
            problems.append(_duplicate(schema.table, wish))
    order = {id(wish.target): place for place, wish in enumerate(asked)}
    return sorted(found.values(), key=lambda f: order[id(f.target)]), problems


def look_up_messages(
    targets: Sequence[nodes.FeedTarget], source: Source
) -> tuple[list[ResolvedTarget], list[ChangefeedError]]:
    """The target that asks for logical messages, if there is one; a second one is a problem."""
    asked = [target for target in targets if isinstance(target, nodes.MessagesTarget)]
    if not asked:
        return [], []
    first, problems = asked[0], [second_messages(other) for other in asked[1:]]
    try:
        schema = source.messages()
    except ChangefeedError as error:
        if error.code in _WHOLE_SOURCE:
            raise
        error.span = error.span or to_span(first.span)
        return [], [error, *problems]
    return [ResolvedTarget(first, schema, joined=False)], problems


def second_messages(target: nodes.MessagesTarget) -> ChangefeedError:
    """The problem of a second target of logical messages."""
    return ChangefeedError(
        Code.TARGET_NOT_WATCHABLE,
        "a changefeed can have only one MESSAGES target",
        hint="name all prefixes in one target, or make another changefeed for another topic.",
        span=to_span(target.span),
    )


def _describe(wish: TableRequest, source: Source) -> TableSchema:
    try:
        return source.describe(wish.watch.schema, wish.watch.name)
    except ChangefeedError as error:
        if wish.fallback is None or error.code is not Code.NAME_UNKNOWN:
            raise
    return source.describe(wish.fallback.schema, wish.fallback.name)


def _partition(wish: TableRequest, schema: TableSchema, source: Source) -> PartitionInfo | None:
    name = wish.target.partition if isinstance(wish.target, nodes.TableTarget) else None
    if name is None:
        return None
    return source.partition(schema, name)


def _duplicate(table: TableName, wish: TableRequest) -> ChangefeedError:
    name = table.name
    return ChangefeedError(
        Code.TARGET_NOT_WATCHABLE,
        f"CHANGEFEED targets TABLE {name} and TABLE {name} are duplicates",
        hint="name each table once.",
        span=wish.watch.span,
    )
