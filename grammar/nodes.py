"""The syntax nodes: one frozen dataclass per statement.

``span`` (offsets into the statement's text) is not part of equality, so that a parsed
statement equals its printed and re-parsed self.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Span:
    """Offsets in characters into the text of one statement; ``end`` is exclusive."""

    start: int
    end: int


def _span() -> Span | None:
    return field(default=None, compare=False, repr=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Name:
    """An identifier as it counts: folded to lower case unless it was quoted."""

    text: str
    span: Span | None = _span()


@dataclass(frozen=True, slots=True)
class QualifiedName:
    """``[source.][schema.]name``: one to three parts."""

    parts: tuple[str, ...]
    span: Span | None = _span()


@dataclass(frozen=True, slots=True)
class Literal:
    """A value as its text without quotes.

    ``kind`` is ``string``, ``number`` or ``word`` (a bare word, ``10s``, ``TRUE``).
    """

    text: str
    kind: str = "string"
    span: Span | None = _span()


@dataclass(frozen=True, slots=True)
class Option:
    """``name [= value]`` of a WITH or SET list; a flag has no value.

    ``span`` is the name's; the value has its own.
    """

    name: str
    value: Literal | None = None
    span: Span | None = _span()


class Filter(StrEnum):
    """How a SCHEMA or DATABASE target narrows its tables."""

    INCLUDE = "include"
    EXCLUDE = "exclude"


@dataclass(frozen=True, slots=True)
class Query:
    """What a CDC query asks of its table: ``SELECT items FROM t AS alias WHERE where``.

    ``items`` and ``where`` are expressions of Spark SQL on one line, ``where`` empty for none.
    ``spans`` are the places of their tokens in the statement, those of ``items`` first.
    """

    items: str
    alias: str | None = None
    where: str = ""
    spans: tuple[Span, ...] = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class TableTarget:
    """``[TABLE] name [(col, ..)] [VALUES FROM (..) TO (..)] [PARTITION p] [AS topic]``.

    With ``query`` it is the table of ``CREATE CHANGEFEED .. AS SELECT``, which has none of the
    other clauses.
    """

    name: QualifiedName
    columns: tuple[str, ...] = ()
    values_from: tuple[Literal, ...] = ()
    values_to: tuple[Literal, ...] = ()
    partition: str | None = None
    topic: str | None = None
    query: Query | None = None
    span: Span | None = _span()


@dataclass(frozen=True, slots=True)
class SchemaTarget:
    """``SCHEMA s [INCLUDE|EXCLUDE TABLES pattern, ..]``.

    Patterns are globs as :mod:`fnmatch` reads them, case-sensitive; one without a dot is
    matched with the table's name alone, one with a dot with ``schema.table``.
    """

    name: QualifiedName
    filter: Filter | None = None
    patterns: tuple[str, ...] = ()
    span: Span | None = _span()


@dataclass(frozen=True, slots=True)
class DatabaseTarget:
    """``DATABASE d [INCLUDE|EXCLUDE TABLES pattern, ..]``: a connection or its database."""

    name: QualifiedName
    filter: Filter | None = None
    patterns: tuple[str, ...] = ()
    span: Span | None = _span()


Target = TableTarget | SchemaTarget | DatabaseTarget


class Statement:
    """Base of all statements."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class CreateConnection(Statement):
    name: str
    uri: Literal
    if_not_exists: bool = False
    span: Span | None = _span()
    name_span: Span | None = _span()


@dataclass(frozen=True, slots=True)
class AlterConnection(Statement):
    name: str
    uri: Literal
    span: Span | None = _span()
    name_span: Span | None = _span()


@dataclass(frozen=True, slots=True)
class DropConnection(Statement):
    name: str
    if_exists: bool = False
    span: Span | None = _span()
    name_span: Span | None = _span()


@dataclass(frozen=True, slots=True)
class Use(Statement):
    name: str
    span: Span | None = _span()
    name_span: Span | None = _span()


@dataclass(frozen=True, slots=True)
class CreateChangefeed(Statement):
    """``sink`` None is a sinkless feed: its rows stream to the client.

    ``CREATE CHANGEFEED .. AS SELECT`` has one target, which holds the query.
    """

    targets: tuple[Target, ...]
    name: str | None = None
    source: str | None = None
    sink: Literal | None = None
    options: tuple[Option, ...] = ()
    if_not_exists: bool = False
    span: Span | None = _span()
    name_span: Span | None = _span()
    source_span: Span | None = _span()

    @property
    def query(self) -> Query | None:
        """The SELECT, where the statement has one."""
        first = self.targets[0]
        return first.query if isinstance(first, TableTarget) else None


class Record(StrEnum):
    """``record =`` of YugabyteDB's CREATE CDC."""

    AFTER = "after"
    CHANGE = "change"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class CreateCdc(Statement):
    """YugabyteDB's ``CREATE CDC FOR t INTO KAFKA|ELASTICSEARCH WITH ..``."""

    table: QualifiedName
    kind: str
    options: tuple[Option, ...] = ()
    span: Span | None = _span()


@dataclass(frozen=True, slots=True)
class DropCdc(Statement):
    table: QualifiedName
    span: Span | None = _span()


@dataclass(frozen=True, slots=True)
class AlterAdd:
    """``ADD target, .. [WITH option, ..]``."""

    targets: tuple[Target, ...]
    options: tuple[Option, ...] = ()


@dataclass(frozen=True, slots=True)
class AlterDrop:
    targets: tuple[Target, ...]


@dataclass(frozen=True, slots=True)
class AlterSet:
    options: tuple[Option, ...]


@dataclass(frozen=True, slots=True)
class AlterUnset:
    names: tuple[Name, ...]


@dataclass(frozen=True, slots=True)
class AlterInto:
    sink: Literal


@dataclass(frozen=True, slots=True)
class AlterRescan:
    """``RESCAN [table, ..]``; no table means all tables of the feed."""

    tables: tuple[QualifiedName, ...] = ()


AlterAction = AlterAdd | AlterDrop | AlterSet | AlterUnset | AlterInto | AlterRescan


@dataclass(frozen=True, slots=True)
class FeedRef:
    """A feed by name, or a job by number (CockroachDB's ``JOB 17``): one of the two is set."""

    name: str | None = None
    job_id: int | None = None
    span: Span | None = _span()


@dataclass(frozen=True, slots=True)
class AlterChangefeed(Statement):
    feed: FeedRef
    actions: tuple[AlterAction, ...]
    span: Span | None = _span()


@dataclass(frozen=True, slots=True)
class RenameChangefeed(Statement):
    feed: FeedRef
    new_name: str
    span: Span | None = _span()
    name_span: Span | None = _span()


@dataclass(frozen=True, slots=True)
class PauseChangefeed(Statement):
    """``feeds`` empty means ALL CHANGEFEEDS."""

    feeds: tuple[FeedRef, ...]
    span: Span | None = _span()


@dataclass(frozen=True, slots=True)
class ResumeChangefeed(Statement):
    """``feeds`` empty means ALL CHANGEFEEDS."""

    feeds: tuple[FeedRef, ...]
    span: Span | None = _span()


@dataclass(frozen=True, slots=True)
class DropChangefeed(Statement):
    """Also ``CANCEL JOB``. ``feeds`` empty means ALL CHANGEFEEDS."""

    feeds: tuple[FeedRef, ...]
    if_exists: bool = False
    span: Span | None = _span()


@dataclass(frozen=True, slots=True)
class ShowConnections(Statement):
    span: Span | None = _span()


@dataclass(frozen=True, slots=True)
class ShowTables(Statement):
    source: str | None = None
    span: Span | None = _span()
    source_span: Span | None = _span()


@dataclass(frozen=True, slots=True)
class Ordering:
    column: str
    descending: bool = False
    span: Span | None = _span()


@dataclass(frozen=True, slots=True)
class Condition:
    """``column op literal``.

    ``operator`` is one of ``= <> < <= > >= LIKE``, or ``IS NULL`` or ``IS NOT NULL``, which
    have no value.
    """

    column: str
    operator: str
    value: Literal | None = None
    span: Span | None = _span()


@dataclass(frozen=True, slots=True)
class ShowChangefeeds(Statement):
    """``SHOW CHANGEFEEDS`` and ``SHOW CHANGEFEED JOBS``; conditions are joined by AND."""

    where: tuple[Condition, ...] = ()
    order_by: tuple[Ordering, ...] = ()
    limit: int | None = None
    span: Span | None = _span()


@dataclass(frozen=True, slots=True)
class ShowChangefeed(Statement):
    """``aspect`` is None, ``tables`` or ``errors``."""

    feed: FeedRef
    aspect: str | None = None
    span: Span | None = _span()


@dataclass(frozen=True, slots=True)
class ShowCreateChangefeed(Statement):
    feed: FeedRef
    span: Span | None = _span()


@dataclass(frozen=True, slots=True)
class ShowJobs(Statement):
    span: Span | None = _span()


@dataclass(frozen=True, slots=True)
class Explain(Statement):
    """``EXPLAIN CREATE CHANGEFEED ..``; creates nothing."""

    statement: CreateChangefeed | CreateCdc
    span: Span | None = _span()


@dataclass(frozen=True, slots=True)
class Validate(Statement):
    """``VALIDATE CREATE CHANGEFEED ..``; creates nothing."""

    statement: CreateChangefeed | CreateCdc
    span: Span | None = _span()


@dataclass(frozen=True, slots=True)
class Sync(Statement):
    """``SYNC CHANGEFEED f [TIMEOUT '5m']``."""

    feed: FeedRef
    timeout: Literal | None = None
    span: Span | None = _span()


@dataclass(frozen=True, slots=True)
class Verify(Statement):
    """``VERIFY CHANGEFEED f [TABLE t] [REPAIR]``; no table means all tables of the feed."""

    feed: FeedRef
    table: QualifiedName | None = None
    repair: bool = False
    span: Span | None = _span()
