"""Executes statements: a statement in, a :class:`Result` out. The shell, tests and servers use
it.

::

    catalog = Catalog.open("state")
    interpreter = Interpreter(catalog, host=node)
    session = Session()
    interpreter.execute("USE shop", session)
    result = interpreter.execute("SHOW CHANGEFEEDS", session)

Every error for a user is a :class:`~changefeed.core.errors.ChangefeedError` with its position in
the text. Thread-safe as long as each client has its own :class:`Session`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from changefeed.catalog import Catalog, Job, Status
from changefeed.catalog.sealing import STATE_KEY_VARIABLE, require_reference
from changefeed.core.clock import Clock, SystemClock
from changefeed.core.errors import ChangefeedError, Code, Problems, Span
from changefeed.core.events import ClientRow, StreamRow
from changefeed.core.recurring import SHORT as SCHEDULE_TIMES
from changefeed.core.references import has_references
from changefeed.core.settings import Parameter
from changefeed.core.telemetry import log
from changefeed.core.timings import Timings
from changefeed.options import hide_masked, mask_statement
from changefeed.plan.dataset_options import DATASET_OPTIONS
from changefeed.plan.names import find_source, scheme_of, source_connections
from changefeed.plan.own_options import CONNECTION_OPTIONS, SCHEDULE_OPTIONS, USER_OPTIONS
from changefeed.plan.sink_resolution import Probe, probe_of
from changefeed.plan.stages import FeedPlan
from changefeed.sources.base import Source
from changefeed.sources.registry import open_source as open_registered
from changefeed.sources.registry import parameters as source_parameters
from changefeed.sources.registry import schemes as source_schemes
from changefeed.statements import (  # noqa: F401 - each registers what it handles
    alter,
    cdc_views,
    connections,
    control,
    create,
    explain,
    functions,
    grants,
    listing,
    measure,
    pause,
    schedules,
    show,
    skip,
    sync,
    users,
    verify,
)
from changefeed.statements.brief import Brief, Section
from changefeed.statements.context import (
    HANDLERS,
    Context,
    FeedHost,
    LogLookup,
    NoHost,
    Result,
    Session,
    log_lookup_of,
)
from changefeed.statements.health import STATUSES, STOPPED, Health, health
from changefeed.statements.rights import Role, require_rights
from changefeed.statements.times import readable
from changefeed.statements.values import (
    Cell,
    Estimate,
    Names,
    Rate,
    Seconds,
    ShownText,
    Size,
    plain_cell,
)
from grammar import nodes
from grammar.binding import BoundStatement, ParameterValue, bind
from grammar.parser import parse
from grammar.printer import to_sql
from grammar.problems import SyntaxProblem
from grammar.split import split
from sinks.registry import SinkEntry
from sinks.registry import capabilities as sink_capabilities
from sinks.registry import offers as sink_schemes
from sinks.registry import parameters as sink_parameters

__all__ = [
    "STATE_KEY_VARIABLE",
    "require_reference",
    "Brief",
    "Cell",
    "CONNECTION_OPTIONS",
    "DATASET_OPTIONS",
    "Estimate",
    "Section",
    "ClientRow",
    "Interpreter",
    "Parameter",
    "FeedFacts",
    "FeedHost",
    "FeedPlan",
    "Health",
    "KnownNames",
    "LISTING_COLUMNS",
    "Names",
    "NoHost",
    "SinkEntry",
    "PromptFacts",
    "Rate",
    "Result",
    "Role",
    "SCHEDULE_OPTIONS",
    "SCHEDULE_TIMES",
    "STATUSES",
    "Seconds",
    "Session",
    "Size",
    "StreamRow",
    "Summary",
    "USER_OPTIONS",
    "new_connection_name",
    "ShownColumn",
    "ShownTable",
    "ShownText",
    "parsed_statement",
    "plain_cell",
    "readable",
    "sink_capabilities",
    "sink_parameters",
    "sink_schemes",
    "source_parameters",
    "source_schemes",
]

#: Words after SHOW -> the columns for its WHERE and ORDER BY.
LISTING_COLUMNS: dict[str, tuple[str, ...]] = {
    "AUDIT": users.AUDIT_COLUMNS,
    "CDC STREAMS": cdc_views.STREAM_COLUMNS,
    "CDC SUBSCRIBERS": cdc_views.SUBSCRIBER_COLUMNS,
    "CHANGEFEED ERRORS": show.ERROR_COLUMNS,
    "CHANGEFEED EVENTS": show.EVENT_COLUMNS,
    "CHANGEFEED JOBS": listing.COLUMNS,
    "CHANGEFEED TABLES": show.TABLE_COLUMNS,
    "CHANGEFEEDS": listing.COLUMNS,
    "CREATE ALL": ("kind", *show.CREATE_COLUMNS),
    "EXTERNAL CONNECTIONS": connections.CONNECTION_COLUMNS,
    "FUNCTIONS": functions.COLUMNS,
    "GRANTS": grants.COLUMNS,
    "JOBS": show.JOB_COLUMNS,
    "NODES": listing.NODE_COLUMNS,
    "PAUSED SCHEDULES": schedules.COLUMNS,
    "RUNNING SCHEDULES": schedules.COLUMNS,
    "SCHEDULES": schedules.COLUMNS,
    "SCHEDULES FOR CHANGEFEED": schedules.COLUMNS,
    "TABLES": connections.TABLE_COLUMNS,
    "USERS": users.COLUMNS,
}

R = TypeVar("R")

#: How many expected words a syntax error names.
SHOWN_EXPECTED = 8


@dataclass(frozen=True, slots=True)
class Summary:
    """The toolbar's figures.

    ``active`` feeds run, or would run with a node; ``stopped`` ones would run, but no node is
    alive; ``troubled`` counts every feed that needs attention, including stopped ones;
    ``scanning`` maps feeds with a running initial scan to (rows, total); ``node`` says whether a
    node runs the feeds.
    """

    feeds: int
    active: int
    running: int
    stopped: int
    troubled: int
    worst_lag: Seconds | None
    scanning: dict[str, tuple[int, int]]
    node: bool


@dataclass(frozen=True, slots=True)
class FeedFacts:
    """What completion knows of a feed.

    Attributes:
        job_id, name: a statement may use either.
        status: as SHOW CHANGEFEEDS has it.
        scheme: the sink's scheme, for ``external://`` that of the connection; empty for a
        sinkless feed.
        options: the options that are set.
        tables: (schema, name) of each table it watches.
    """

    job_id: int
    name: str
    status: str
    scheme: str
    options: tuple[str, ...]
    tables: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class KnownNames:
    """What completion offers, besides tables and columns.

    Attributes:
        connections: the external connections, with the scheme of each.
        functions: the Python functions of queries, with the signature of each.
        feeds: by job id.
        schedules: the schedules, with the times of each.
        source: the source of unqualified table names before USE chooses one: the only one there is.
        users: the users, for an admin.
    """

    connections: dict[str, str] = field(default_factory=dict)
    functions: dict[str, str] = field(default_factory=dict)
    feeds: tuple[FeedFacts, ...] = ()
    schedules: dict[str, str] = field(default_factory=dict)
    source: str | None = None
    users: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ShownColumn:
    """A column as its source names it; ``key`` is its place in the key, from 1."""

    name: str
    type: str
    nullable: bool
    key: int | None


@dataclass(frozen=True, slots=True)
class ShownTable:
    """A table of a source as a changefeed sees it.

    Attributes:
        name: with source and schema.
        keyless: the table has no key: all columns serve as the key for it.
        before_image: what its old rows have, in words.
    """

    name: str
    columns: tuple[ShownColumn, ...]
    keyless: bool
    before_image: str
    partitions: tuple[str, ...]


class PromptFacts(Protocol):
    """What a prompt reads besides the results of statements: the :class:`Interpreter` of this
    process has it, and so has a node elsewhere (:mod:`changefeed.http.client`). Thread-safe.

    Each may raise a ChangefeedError: the state, the node or the source cannot be asked.
    """

    def names(self) -> KnownNames: ...

    def tables(self, source: str) -> list[tuple[str, str]]:
        """(schema, name) of the tables of a source, asked now."""
        ...

    def table(self, source: str, name: tuple[str, ...]) -> ShownTable:
        """One table of a source, by its name or by its schema and name."""
        ...

    def summary(self) -> Summary: ...


class Interpreter:
    """Executes statements against one state."""

    def __init__(
        self,
        catalog: Catalog,
        clock: Clock | None = None,
        *,
        host: FeedHost | None = None,
        open_source: Callable[[str, str], Source] = open_registered,
        log_lookup: LogLookup | None = None,
        probe: Probe | None = None,
        timings: Timings | None = None,
    ) -> None:
        """
        Args:
            catalog: the state.
            clock: time for ``now``, lags and deadlines.
            host: the node in this process; without one, another process may run a node.
            open_source: connection name and URI -> source.
            log_lookup: finds when the log reached a position of a source; by default in the
            state's logs.
            probe: how VALIDATE checks a target; by default through its sink.
            timings: how long statements wait for the node.
        """
        self.catalog = catalog
        self.clock: Clock = clock or SystemClock()
        self.timings = timings or Timings()
        self.host: FeedHost = host or NoHost(catalog)
        self._open_source = open_source
        self._log_lookup = log_lookup or log_lookup_of(catalog)
        self._probe = probe or probe_of(catalog)
        self._sources: dict[tuple[str, str], Source] = {}

    # -- statements -----------------------------------------------------------------------

    def execute(
        self,
        statement: str | nodes.Statement,
        session: Session,
        parameters: Sequence[ParameterValue] = (),
    ) -> Result:
        """Run one statement; ``parameters`` are the values of ``$1``, ``$2``, .. in its text.

        Raises:
            ChangefeedError: CF1001 if the text is not a statement, or the values do not fit its
                parameters; else the error of the statement. Several problems come together as
                :class:`~changefeed.core.errors.Problems`.
        """
        if isinstance(statement, str) and parameters:
            bound = _bound(statement, parameters)
            with _placed(bound):
                return self.execute(bound.text, session)
        # What errors echo: the same offsets, no secret.
        written = statement if isinstance(statement, str) else to_sql(statement)
        text = mask_statement(written)
        parsed = parsed_statement(statement) if isinstance(statement, str) else statement
        outcome: str | None = "interrupted"
        try:
            require_rights(session.role, session.user, parsed, self.catalog)
            result = HANDLERS[type(parsed)](parsed, self._context(session, text))
            outcome = None
            return result
        except Problems as problems:
            outcome = problems.code.number
            for problem in problems.problems:
                _tie(problem, written, text)
            raise _tie(problems, written, text) from problems.__cause__
        except ChangefeedError as error:
            outcome = error.code.number
            raise _tie(error, written, text) from error.__cause__
        finally:
            if not isinstance(parsed, nodes.Inquiry) or outcome == Code.RIGHT_MISSING:
                self._audit(session, text, outcome)

    def _audit(self, session: Session, text: str, outcome: str | None) -> None:
        if not session.user:  # a node itself, for a statement that is noted where it was made
            return
        try:
            self.catalog.record_audit(session.user, session.origin, text, outcome)
        except ChangefeedError as error:  # the statement's own error says more
            log.error("the audit of a statement cannot be stored: %s", error.message)

    def execute_script(self, text: str, session: Session) -> Iterator[Result]:
        """Run the statements of a text in order; each one runs when the iterator is advanced."""
        for piece in split(text):
            if piece.text.strip():
                yield self.execute(piece.text, session)

    def _context(self, session: Session, text: str) -> Context:
        return Context(
            self.catalog,
            self.clock,
            session,
            self.host,
            self.open_source,
            self._log_lookup,
            self._probe,
            text,
            self.timings,
        )

    def open_source(self, name: str, uri: str) -> Source:
        """The source of a connection, opened once per URI, or each time if it refers to secrets:
        they may have been replaced."""
        if has_references(uri):
            return self._open_source(name, uri)
        known = self._sources.get((name, uri))
        if known is None:
            known = self._sources[name, uri] = self._open_source(name, uri)
        return known

    def use_source(self, session: Session, source: str) -> None:
        """What ``--source`` names: a connection, or a URI that becomes one as by CREATE EXTERNAL
        CONNECTION.

        Raises:
            ChangefeedError: CF1101, no such connection; CF1201, no source has this scheme; the
                errors of the statement.
        """
        if "://" not in source:
            self.execute(nodes.Use(source), session)
            return
        if scheme_of(source) not in source_schemes():
            raise ChangefeedError(
                Code.INVALID_URI,
                "the URI of --source does not belong to a source",
                hint=f"sources are: {', '.join(source_schemes())}.",
            )
        taken = {c.name: c.uri for c in self.catalog.connections()}
        for name, uri in taken.items():
            if uri == source:
                session.source = name
                return
        name = new_connection_name(source, taken)
        try:
            self.execute(nodes.CreateConnection(name, nodes.Literal(source)), session)
        except ChangefeedError as error:
            error.hint = error.hint.replace(
                "WITH check", "CREATE EXTERNAL CONNECTION .. WITH check"
            )
            raise
        session.source = name

    # -- for prompts: names to complete, figures to show ----------------------------------

    def connections(self) -> list[str]:
        """Names of the external connections."""
        return [c.name for c in self.catalog.connections()]

    def source_names(self) -> list[str]:
        """The connections that are sources."""
        return [c.name for c in source_connections(self.catalog)]

    def feeds(self) -> list[str]:
        """Names of the feeds."""
        return [job.name for job in self.catalog.jobs()]

    def names(self) -> KnownNames:
        """See :class:`PromptFacts`."""
        schemes = {c.name: scheme_of(c.uri) for c in self.catalog.connections()}
        feeds = (
            FeedFacts(
                job.id,
                job.name,
                shown.status,
                _sink_scheme(job.sink_uri or "", schemes),
                tuple(job.options),
                tuple((t.table.schema, t.table.name) for t in self.catalog.tables(job.id)),
            )
            for job, shown in self.health()
        )
        functions = {f.name: f.signature for f in self.catalog.functions()}
        recurring = {s.name: s.recurring for s in self.catalog.schedules()}
        source = self.source_name(Session())
        users = tuple(user.name for user in self.catalog.users())
        return KnownNames(schemes, functions, tuple(feeds), recurring, source, users)

    def source_name(self, session: Session) -> str | None:
        """The source of unqualified table names: see :meth:`.context.Session.source_in`."""
        return session.source_in(self.catalog)

    def tables(self, source: str) -> list[tuple[str, str]]:
        """See :class:`PromptFacts`."""
        return [(info.name.schema, info.name.name) for info in self._source(source).tables()]

    def table(self, source: str, name: tuple[str, ...]) -> ShownTable:
        """See :class:`PromptFacts`.

        Raises:
            ChangefeedError: there is no such source or table, or the source cannot be asked.
        """
        asked = self._source(source)
        found = asked.describe(name[-2] if len(name) > 1 else None, name[-1])
        places = {} if found.keyless else {at: place for place, at in enumerate(found.key, 1)}
        columns = (
            ShownColumn(column.name, column.type_name, column.nullable, places.get(at))
            for at, column in enumerate(found.columns)
        )
        return ShownTable(
            str(found.table),
            tuple(columns),
            found.keyless,
            found.before_image.words,
            tuple(asked.partitions(found)),
        )

    def _source(self, name: str) -> Source:
        return self.open_source(name, find_source(self.catalog, name, None).uri)

    def health(self) -> list[tuple[Job, Health]]:
        """The state of each feed as SHOW CHANGEFEEDS has it; by id."""
        failed = self.catalog.troubled_tables()
        node, now = self.host.node_running(), self.clock.now().wall
        letters = self.catalog.dead_letter_counts()
        return [
            (
                job,
                health(
                    job,
                    failed.get(job.id, ()),
                    node=node,
                    now=now,
                    letters=letters.get(job.id, 0),
                    every=False,
                ),
            )
            for job in self.catalog.jobs()
        ]

    def summary(self) -> Summary:
        """Feeds running, feeds in trouble, worst lag, scans under way."""
        feeds = self.health()
        active = [(job, shown) for job, shown in feeds if job.status.active]
        statuses = Counter(shown.status for _, shown in feeds)
        return Summary(
            feeds=len(feeds),
            active=len(active),
            running=statuses[Status.RUNNING] + statuses[Status.SCANNING],
            stopped=statuses[STOPPED],
            troubled=sum(shown.troubled for _, shown in feeds),
            worst_lag=max(
                (shown.lag for _, shown in active if shown.lag is not None), default=None
            ),
            scanning={
                job.name: self._scan(job)
                for job, shown in active
                if job.status is Status.SCANNING and shown.status != STOPPED
            },
            node=self.host.node_running(),
        )

    def _scan(self, job: Job) -> tuple[int, int]:
        tables = [
            t
            for t in self.catalog.tables(job.id)
            if (t.scan_wanted or t.scan_at is not None) and not t.state.stands
        ]
        rows = sum(t.scan_rows for t in tables)
        return rows, max(rows, sum(max(t.scan_rows, t.scan_total) for t in tables))


def _sink_scheme(uri: str, schemes: Mapping[str, str]) -> str:
    scheme, _, rest = uri.partition(":")
    if scheme.lower() != "external":
        return scheme.lower()
    return schemes.get(rest.lstrip("/").partition("?")[0], "")


def parsed_statement(text: str, parameters: Sequence[ParameterValue] = ()) -> nodes.Statement:
    """Parse one statement, with the values of its parameters if there are any.

    Raises:
        ChangefeedError: CF1001 with what was expected.
    """
    if not parameters:
        return _read(text, parse)
    bound = _bound(text, parameters)
    with _placed(bound):
        return bound.statement or _read(bound.text, parse)


def _bound(text: str, parameters: Sequence[ParameterValue]) -> BoundStatement:
    return _read(text, lambda written: bind(written, parameters))


@contextmanager
def _placed(bound: BoundStatement) -> Iterator[None]:
    """Errors point into the statement as it was written, with its parameters."""
    try:
        yield
    except ChangefeedError as error:
        shown = mask_statement(bound.written)
        for each in (*(error.problems if isinstance(error, Problems) else ()), error):
            if each.span is not None:
                each.span = Span(*bound.in_written(each.span.start, each.span.end))
            each.text = shown
        raise


def _read(text: str, reader: Callable[[str], R]) -> R:
    try:
        return reader(text)
    except SyntaxProblem as problem:
        expected = list(problem.expected[:SHOWN_EXPECTED])
        more = ", ..." if len(problem.expected) > SHOWN_EXPECTED else ""
        detail = f"expected {' or '.join(expected)}{more}" if expected else ""
        error = ChangefeedError(
            Code.SYNTAX_ERROR,
            problem.message,
            detail=detail,
            hint=problem.hint,
            span=Span(problem.span.start, problem.span.end),
        )
        raise _tie(error, text, mask_statement(text)) from problem


def _tie(error: ChangefeedError, written: str, shown: str) -> ChangefeedError:
    """The error tied to the redacted statement, with hidden words removed from the error as
    well.
    """
    return hide_masked(error, written, shown).located(shown)


def new_connection_name(uri: str, taken: Container[str]) -> str:
    """A name for a connection made from a URI: its database, with a number if that is taken."""
    name = base = _database_name(uri)
    number = 1
    while name in taken:
        number += 1
        name = f"{base}_{number}"
    return name


def _database_name(uri: str) -> str:
    path = uri.partition("://")[2].partition("?")[0].partition("/")[2]
    name = re.sub(r"[^a-z0-9_]", "_", path.lower()).strip("_")
    return name if name and not name[0].isdigit() else "source"
