"""The syntax nodes: one frozen dataclass per statement.

``span`` (offsets into the statement's text) is not part of equality, so that a parsed
statement equals its printed and re-parsed self.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import StrEnum


class SyntaxNode:
    """What all nodes have, once for all: made for each class by ``dataclass``, equality and text
    of the nodes took a twentieth of the time of a statement from the command line."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._compared() == other._compared()

    def __hash__(self) -> int:
        return hash(self._compared())

    def __repr__(self) -> str:
        shown = (f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if f.repr)  # type: ignore[arg-type]
        return f"{type(self).__name__}({', '.join(shown)})"

    def _compared(self) -> tuple[object, ...]:
        return tuple(getattr(self, f.name) for f in fields(self) if f.compare)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Span(SyntaxNode):
    """Offsets in characters into the text of one statement; ``end`` is exclusive."""

    start: int
    end: int


def _span() -> Span | None:
    return field(default=None, compare=False, repr=False, kw_only=True)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Name(SyntaxNode):
    """An identifier as it counts: folded to lower case unless it was quoted."""

    text: str
    span: Span | None = _span()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class QualifiedName(SyntaxNode):
    """``[source.][schema.]name``: one to three parts."""

    parts: tuple[str, ...]
    span: Span | None = _span()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Literal(SyntaxNode):
    """A value as its text without quotes.

    ``kind`` is ``string``, ``number`` or ``word`` (a bare word, ``10s``, ``TRUE``).
    """

    text: str
    kind: str = "string"
    span: Span | None = _span()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Option(SyntaxNode):
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


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class LookupJoin(SyntaxNode):
    """``[LEFT] JOIN table AS alias ON t.column = alias.column [AND ..]``.

    ``parts`` name a table as Spark does: ``('parquet', '/path')`` or a table of its catalog.
    ``keys`` are pairs of a column of the feed's table and one of the look-up. ``spans`` are the
    places of the look-up's name and of each pair.
    """

    parts: tuple[str, ...]
    alias: str
    keys: tuple[tuple[str, str], ...]
    left: bool = False
    spans: tuple[Span, ...] = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Query(SyntaxNode):
    """What a CDC query asks of its table: ``SELECT items FROM t AS alias JOIN .. WHERE where
    GROUP BY group``.

    ``items``, ``where`` and ``group`` are expressions of Spark SQL on one line, empty for none.
    ``spans`` are the places of their tokens in the statement, in that order.
    """

    items: str
    alias: str | None = None
    where: str = ""
    group: str = ""
    joins: tuple[LookupJoin, ...] = ()
    spans: tuple[Span, ...] = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class TableTarget(SyntaxNode):
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


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class SchemaTarget(SyntaxNode):
    """``SCHEMA s [INCLUDE|EXCLUDE TABLES pattern, ..]``.

    Patterns are globs as :mod:`fnmatch` reads them, case-sensitive; one without a dot is
    matched with the table's name alone, one with a dot with ``schema.table``.
    """

    name: QualifiedName
    filter: Filter | None = None
    patterns: tuple[str, ...] = ()
    span: Span | None = _span()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class DatabaseTarget(SyntaxNode):
    """``DATABASE d [INCLUDE|EXCLUDE TABLES pattern, ..]``: a connection or its database."""

    name: QualifiedName
    filter: Filter | None = None
    patterns: tuple[str, ...] = ()
    span: Span | None = _span()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class MessagesTarget(SyntaxNode):
    """``MESSAGES PREFIX 'pattern', .. [AS topic]``: logical messages of the source.

    Patterns are globs as :mod:`fnmatch` reads them, compared with the whole prefix.
    """

    prefixes: tuple[str, ...]
    topic: str | None = None
    span: Span | None = _span()

    @property
    def name(self) -> QualifiedName:
        """As the target of a feed that is named; a source has one of them."""
        return QualifiedName(("messages",), span=self.span)


FeedTarget = TableTarget | SchemaTarget | DatabaseTarget | MessagesTarget


class Statement(SyntaxNode):
    """Base of all statements.

    A rule of the grammar that has no method in :mod:`grammar.build` makes the statement of its
    name, with the parts of the rule as its fields; a statement that :mod:`grammar.printer` does not
    mention is printed as the words of its name and its fields.
    """

    __slots__ = ()


class Inquiry(Statement):
    """Base of the statements that change nothing, and for which nothing waits for a node."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class CreateConnection(Statement):
    name: str
    uri: Literal
    if_not_exists: bool = False
    options: tuple[Option, ...] = ()
    span: Span | None = _span()
    name_span: Span | None = _span()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class AlterConnection(Statement):
    name: str
    uri: Literal
    options: tuple[Option, ...] = ()
    if_exists: bool = False
    span: Span | None = _span()
    name_span: Span | None = _span()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class DropConnection(Statement):
    name: str
    if_exists: bool = False
    span: Span | None = _span()
    name_span: Span | None = _span()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class CheckConnection(Inquiry):
    """``CHECK EXTERNAL CONNECTION``: of a name, or of a URI that need not have one."""

    name: str | None = None
    uri: Literal | None = None
    span: Span | None = _span()
    name_span: Span | None = _span()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Use(Inquiry):
    name: str
    span: Span | None = _span()
    name_span: Span | None = _span()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class CreateChangefeed(Statement):
    """``sink`` None is a sinkless feed: its rows stream to the client.

    ``CREATE CHANGEFEED .. AS SELECT`` has one target, which holds the query.
    """

    targets: tuple[FeedTarget, ...]
    name: str | None = None
    source: str | None = None
    sink: Literal | None = None
    options: tuple[Option, ...] = ()
    if_not_exists: bool = False
    or_replace: bool = False
    span: Span | None = _span()
    name_span: Span | None = _span()
    source_span: Span | None = _span()

    @property
    def query(self) -> Query | None:
        """The SELECT, where the statement has one."""
        first = self.targets[0]
        return first.query if isinstance(first, TableTarget) else None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class CreateDataset(Statement):
    """``CREATE CHANGEFEED .. FOR DATASET 'location' KEY (..) [EXCEPT (..)]``.

    ``keys`` and ``ignored`` are columns of the extract; ``options`` has those of the feed, too.
    """

    location: Literal
    keys: tuple[Name, ...]
    ignored: tuple[Name, ...] = ()
    name: str | None = None
    sink: Literal | None = None
    options: tuple[Option, ...] = ()
    if_not_exists: bool = False
    or_replace: bool = False
    span: Span | None = _span()
    name_span: Span | None = _span()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class CreateFunction(Statement):
    """``CREATE FUNCTION name (argument type, ..) RETURNS type AS 'module:function'``."""

    name: str
    arguments: tuple[tuple[Name, str], ...]
    returns: str
    reference: Literal
    path: Literal | None = None
    if_not_exists: bool = False
    span: Span | None = _span()
    name_span: Span | None = _span()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class DropFunction(Statement):
    name: str
    if_exists: bool = False
    span: Span | None = _span()
    name_span: Span | None = _span()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ShowFunctions(Inquiry):
    span: Span | None = _span()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class CreateUser(Statement):
    name: str
    options: tuple[Option, ...] = ()
    span: Span | None = _span()
    name_span: Span | None = _span()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class AlterUser(Statement):
    name: str
    options: tuple[Option, ...]
    span: Span | None = _span()
    name_span: Span | None = _span()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class DropUser(Statement):
    name: str
    if_exists: bool = False
    span: Span | None = _span()
    name_span: Span | None = _span()


class GrantKind(StrEnum):
    """What a right is on; a role is on nothing."""

    ROLE = "role"
    TABLE = "table"
    SCHEMA = "schema"
    CONNECTION = "connection"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Grant(Statement):
    """``GRANT role | right ON names TO users``; ``names`` of a role is the role."""

    kind: GrantKind
    names: tuple[QualifiedName, ...]
    users: tuple[Name, ...]
    span: Span | None = _span()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Revoke(Statement):
    """``REVOKE role | right ON names FROM users``; see :class:`Grant`."""

    kind: GrantKind
    names: tuple[QualifiedName, ...]
    users: tuple[Name, ...]
    span: Span | None = _span()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class AlterStateRotateKey(Statement):
    span: Span | None = _span()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ShowUsers(Inquiry):
    span: Span | None = _span()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ShowGrants(Inquiry):
    name: str | None = None
    span: Span | None = _span()
    name_span: Span | None = _span()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ShowAudit(Inquiry):
    span: Span | None = _span()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ShowNodes(Inquiry):
    span: Span | None = _span()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ShowSpark(Inquiry):
    span: Span | None = _span()


class CdcRecord(StrEnum):
    """``record =`` of YugabyteDB's CREATE CDC."""

    AFTER = "after"
    CHANGE = "change"
    ALL = "all"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class CreateCdc(Statement):
    """YugabyteDB's ``CREATE CDC FOR t INTO KAFKA|ELASTICSEARCH WITH ..``."""

    table: QualifiedName
    kind: str
    options: tuple[Option, ...] = ()
    if_not_exists: bool = False
    span: Span | None = _span()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class DropCdc(Statement):
    table: QualifiedName
    if_exists: bool = False
    span: Span | None = _span()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class AlterAdd(SyntaxNode):
    """``ADD target, .. [WITH option, ..]``."""

    targets: tuple[FeedTarget, ...]
    options: tuple[Option, ...] = ()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class AlterDrop(SyntaxNode):
    targets: tuple[FeedTarget, ...]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class AlterSet(SyntaxNode):
    options: tuple[Option, ...]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class AlterUnset(SyntaxNode):
    names: tuple[Name, ...]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class AlterInto(SyntaxNode):
    sink: Literal


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class AlterRescan(SyntaxNode):
    """``RESCAN [table, ..]``; no table means all tables of the feed."""

    tables: tuple[QualifiedName, ...] = ()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class AlterFilter(SyntaxNode):
    """``SET INCLUDE|EXCLUDE TABLES pattern, ..``; without patterns it is ``UNSET``."""

    filter: Filter
    patterns: tuple[str, ...] = ()
    span: Span | None = _span()


AlterAction = AlterAdd | AlterDrop | AlterSet | AlterUnset | AlterInto | AlterRescan | AlterFilter


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class FeedRef(SyntaxNode):
    """A feed by name, or a job by number (CockroachDB's ``JOB 17``): one of the two is set. Of a
    schedule, too, whose number is its own."""

    name: str | None = None
    job_id: int | None = None
    span: Span | None = _span()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class AlterChangefeed(Statement):
    feed: FeedRef
    actions: tuple[AlterAction, ...]
    if_exists: bool = False
    span: Span | None = _span()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class RenameChangefeed(Statement):
    feed: FeedRef
    new_name: str
    if_exists: bool = False
    span: Span | None = _span()
    name_span: Span | None = _span()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ChangeOwner(Statement):
    """``ALTER CHANGEFEED f OWNER TO user``."""

    feed: FeedRef
    user: str
    if_exists: bool = False
    span: Span | None = _span()
    name_span: Span | None = _span()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class SkipTransaction(Statement):
    """``ALTER CHANGEFEED f SKIP TRANSACTION 'timestamp'``."""

    feed: FeedRef
    transaction: Literal
    if_exists: bool = False
    span: Span | None = _span()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class PauseChangefeed(Statement):
    """``feeds`` empty means ALL CHANGEFEEDS."""

    feeds: tuple[FeedRef, ...]
    if_exists: bool = False
    span: Span | None = _span()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ResumeChangefeed(Statement):
    """``feeds`` empty means ALL CHANGEFEEDS."""

    feeds: tuple[FeedRef, ...]
    if_exists: bool = False
    span: Span | None = _span()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class PauseTables(Statement):
    """``PAUSE CHANGEFEED f TABLE t, ..``"""

    feed: FeedRef
    tables: tuple[QualifiedName, ...]
    if_exists: bool = False
    span: Span | None = _span()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ResumeTables(Statement):
    """``RESUME CHANGEFEED f TABLE t, ..``"""

    feed: FeedRef
    tables: tuple[QualifiedName, ...]
    if_exists: bool = False
    span: Span | None = _span()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class DropChangefeed(Statement):
    """Also ``CANCEL JOB``. ``feeds`` empty means ALL CHANGEFEEDS."""

    feeds: tuple[FeedRef, ...]
    if_exists: bool = False
    span: Span | None = _span()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class CreateSchedule(Statement):
    """``CREATE SCHEDULE .. FOR CHANGEFEED .. RECURRING 'cron'``; ``statement`` makes the feed of a
    run, and has no name."""

    statement: CreateChangefeed
    recurring: Literal
    name: str | None = None
    options: tuple[Option, ...] = ()
    if_not_exists: bool = False
    or_replace: bool = False
    span: Span | None = _span()
    name_span: Span | None = _span()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class PauseSchedule(Statement):
    schedules: tuple[FeedRef, ...]
    span: Span | None = _span()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ResumeSchedule(Statement):
    schedules: tuple[FeedRef, ...]
    span: Span | None = _span()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class DropSchedule(Statement):
    if_exists: bool = False
    schedules: tuple[FeedRef, ...] = ()
    span: Span | None = _span()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ShowSchedules(Inquiry):
    """``which`` is None for all, ``running`` or ``paused``."""

    which: str | None = None
    span: Span | None = _span()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ShowSchedule(Inquiry):
    schedule: FeedRef
    span: Span | None = _span()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ShowCreateSchedule(Inquiry):
    schedule: FeedRef
    span: Span | None = _span()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ShowConnections(Inquiry):
    """``name`` None means every connection."""

    name: str | None = None
    span: Span | None = _span()
    name_span: Span | None = _span()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ShowTables(Inquiry):
    source: str | None = None
    span: Span | None = _span()
    source_span: Span | None = _span()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Ordering(SyntaxNode):
    column: str
    descending: bool = False
    span: Span | None = _span()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Condition(SyntaxNode):
    """``column op literal``.

    ``operator`` is one of ``= <> < <= > >= LIKE IN``, or ``NULL``, which has no value; IN may have
    several. ``negated`` is the NOT of ``NOT LIKE``, ``NOT IN`` and ``IS NOT NULL``.
    """

    column: str
    operator: str
    values: tuple[Literal, ...] = ()
    negated: bool = False
    span: Span | None = _span()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Conjunction(SyntaxNode):
    """``test AND test ..``"""

    tests: tuple[Test, ...]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Disjunction(SyntaxNode):
    """``test OR test ..``"""

    tests: tuple[Test, ...]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Negation(SyntaxNode):
    """``NOT test``"""

    test: Test


Test = Condition | Conjunction | Disjunction | Negation


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ShowWhere(Inquiry):
    """A SHOW with ``WHERE``, ``ORDER BY`` or ``LIMIT``, over the rows of ``statement``."""

    statement: Inquiry
    where: Test | None = None
    order_by: tuple[Ordering, ...] = ()
    limit: int | None = None
    span: Span | None = _span()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ShowChangefeeds(Inquiry):
    """``SHOW CHANGEFEEDS`` and ``SHOW CHANGEFEED JOBS``."""

    span: Span | None = _span()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ShowChangefeed(Inquiry):
    """``aspect`` is None, ``tables``, ``errors``, ``events``, ``jobs``, ``lineage`` or
    ``dead_letters``."""

    feed: FeedRef
    aspect: str | None = None
    span: Span | None = _span()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ShowCreateChangefeed(Inquiry):
    feed: FeedRef
    span: Span | None = _span()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ShowCreateConnection(Inquiry):
    name: str
    span: Span | None = _span()
    name_span: Span | None = _span()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ShowCreateAll(Inquiry):
    """``aspect`` is None for everything, ``connections``, ``changefeeds`` or ``schedules``."""

    aspect: str | None = None
    span: Span | None = _span()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ShowCdc(Inquiry):
    """YugabyteDB's tables of its streams; ``aspect`` is ``streams`` or ``subscribers``."""

    aspect: str
    span: Span | None = _span()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ShowJobs(Inquiry):
    span: Span | None = _span()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ShowJob(Inquiry):
    """``SHOW JOB [WHEN COMPLETE] id``."""

    job: FeedRef
    when_complete: bool = False
    span: Span | None = _span()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Explain(Inquiry):
    """``EXPLAIN`` of a statement that makes or alters something; changes nothing."""

    statement: CreateChangefeed | CreateDataset | CreateCdc | CreateSchedule | AlterChangefeed
    span: Span | None = _span()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ExplainAnalyze(Statement):
    """``EXPLAIN ANALYZE [(DURATION '10s')] CREATE CHANGEFEED ..``; runs a feed for so long."""

    statement: CreateChangefeed | CreateDataset | CreateCdc
    duration: Literal | None = None
    span: Span | None = _span()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Validate(Inquiry):
    """``VALIDATE`` of a statement, or of a feed that is there (``VALIDATE CHANGEFEED f``); changes
    nothing."""

    statement: (
        CreateChangefeed | CreateDataset | CreateCdc | CreateSchedule | AlterChangefeed | FeedRef
    )
    span: Span | None = _span()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Sync(Statement):
    """``SYNC CHANGEFEED f [TIMEOUT '5m']``."""

    feed: FeedRef
    timeout: Literal | None = None
    span: Span | None = _span()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class SyncAll(Statement):
    """``SYNC ALL CHANGEFEEDS [TIMEOUT '5m']``."""

    timeout: Literal | None = None
    span: Span | None = _span()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Verify(Statement):
    """``VERIFY CHANGEFEED f [TABLE t] [REPAIR]``; no table means all tables of the feed."""

    feed: FeedRef
    table: QualifiedName | None = None
    repair: bool = False
    span: Span | None = _span()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class RetryDeadLetters(Statement):
    """``RETRY CHANGEFEED f DEAD LETTERS [n, ...]``; no number means all."""

    feed: FeedRef
    letters: tuple[int, ...] = ()
    span: Span | None = _span()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class DiscardDeadLetters(Statement):
    """``DISCARD CHANGEFEED f DEAD LETTERS [n, ...]``; no number means all."""

    feed: FeedRef
    letters: tuple[int, ...] = ()
    span: Span | None = _span()
