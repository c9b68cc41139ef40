"""CREATE CHANGEFEED -> :class:`~changefeed.plan.stages.FeedPlan`.

Planning asks the source and the sink's own checks, changes nothing, and continues after
a problem as far as it can, so that all problems are reported at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from changefeed.attachments import attachment
from changefeed.catalog import Connection, Job
from changefeed.core.clock import Timestamp
from changefeed.core.engines import EngineOption
from changefeed.core.errors import ChangefeedError, Code, Problems, Span, raise_all
from changefeed.core.extras import lacking, spark_lacking
from changefeed.core.formats import TRAITS
from changefeed.core.schema import BeforeImage, TableName, TableSchema
from changefeed.core.uri import sink_location
from changefeed.encoding.compile import (
    NOWHERE,
    names_origin,
    origin_of,
    source_members,
    table_messages,
)
from changefeed.options import (
    CURSOR,
    ENGINE,
    FORMAT,
    INITIAL_SCAN,
    DebeziumOffset,
    InitialScan,
    Options,
    parse_options,
    to_span,
)
from changefeed.plan.context import PlanContext
from changefeed.plan.names import choose_source
from changefeed.plan.queries import (
    key_problems,
    lookup_problems,
    query_notices,
    query_options,
    query_problems,
)
from changefeed.plan.sink_resolution import ResolvedSink, check_sink, find_sink
from changefeed.plan.stages import FeedPlan, SinkStage, SourceStage
from changefeed.plan.tables import (
    check_messages,
    check_range,
    check_row_images,
    check_table,
    cursor_problems,
    definite,
    find_tables,
    named_topic,
    sharing_notices,
    table_notices,
    table_stages,
    watches_of,
)
from changefeed.plan.target_names import clashes, topics_of
from changefeed.plan.targets import ResolvedTarget, parse_targets, target_text
from changefeed.sources.base import Attachment, Handover, Source
from grammar import nodes
from grammar.parser import parse
from grammar.printer import to_sql
from sinks.base import Target
from sinks.registry import takers

T = TypeVar("T")


def plan_create(statement: nodes.CreateChangefeed, around: PlanContext) -> FeedPlan:
    """The plan of a statement.

    Raises:
        ChangefeedError: every problem found, at once.
    """
    plan, problems = check_create(statement, around)
    raise_all(problems)
    if plan is None:
        raise AssertionError("no plan and no problem")
    return plan


def check_create(
    statement: nodes.CreateChangefeed, around: PlanContext
) -> tuple[FeedPlan | None, list[ChangefeedError]]:
    """The plan, if there can be one, and every problem, each tied to the statement's text."""
    planner = Planner(statement, around)
    plan = planner.plan()
    problems = [problem.located(around.text) for problem in distinct(planner.problems)]
    return (None if problems else plan), problems


def check_living(
    job: Job, around: PlanContext
) -> tuple[nodes.CreateChangefeed, list[ChangefeedError], list[str]]:
    """Check a feed that exists: its statement, its problems as it is now, and what was not checked.

    ``around.text`` is the statement as SHOW CREATE has it.
    """
    written = parse(around.text)
    if not isinstance(written, nodes.CreateChangefeed):
        raise AssertionError("a feed is made by CREATE CHANGEFEED")
    real = {option.name: option for option in Options.from_dict(job.options).nodes()}
    sink = None
    if job.sink_uri is not None and written.sink is not None:
        # The text has no secrets; the feed has.
        sink = replace(written.sink, text=job.sink_uri)
    statement = replace(
        written,
        source=job.source,
        sink=sink,
        options=tuple(replace(real[o.name], span=o.span) for o in written.options),
    )
    planner = Planner(statement, around, job)
    planner.plan()
    problems = [problem.located(around.text) for problem in distinct(planner.problems)]
    return statement, problems, planner.overlooked


def missing_extras(options: Options, written: Sequence[nodes.Option]) -> list[ChangefeedError]:
    """What a feed with these options needs that is not installed here; ``written`` has their
    places in the text."""
    traits = TRAITS[options[FORMAT]]
    found = {FORMAT.name: lacking(f"format = '{options[FORMAT]}'", traits.packages, traits.extra)}
    if options[ENGINE] is EngineOption.SPARK:
        found[ENGINE.name] = spark_lacking("engine = 'spark'")
    problems = []
    for name, problem in found.items():
        if problem is not None:
            problem.span = next((to_span(o.span) for o in written if o.name == name), None)
            problems.append(problem)
    return problems


def distinct(problems: Sequence[ChangefeedError]) -> list[ChangefeedError]:
    """The single problems, in the order of the text, without repetitions."""
    flat = [each for p in problems for each in (p.problems if isinstance(p, Problems) else [p])]
    seen: dict[tuple[str, str], ChangefeedError] = {}
    for problem in flat:
        seen.setdefault((problem.code.number, problem.message), problem)
    return sorted(seen.values(), key=lambda p: p.span.start if p.span else -1)


class Planner:
    """Plans one statement; collects problems in :attr:`problems`."""

    def __init__(
        self, statement: nodes.CreateChangefeed, around: PlanContext, living: Job | None = None
    ) -> None:
        """``living`` is the feed that the statement describes, if it exists already."""
        self.statement = statement
        self.around = around
        self.living = living
        self.catalog = around.catalog
        self.problems: list[ChangefeedError] = []
        self.overlooked: list[str] = []

    def plan(self) -> FeedPlan | None:
        """The plan; None (and problems) if too little is known for one."""
        self._check_name()
        connection = self._attempt(self._connection)
        sink = self._attempt(self._sink)
        if self.around.rights is not None:
            self.problems += self.around.rights.option_errors(self.statement.options, sink)
            if self.problems:
                return None  # nothing is asked of a server
        options = self._attempt(lambda: self._options(sink))
        # With the valid options the target can be looked at nevertheless.
        looked = options or (self._right_options(sink) if self.around.probe else None)
        if sink is not None:
            self.problems += check_sink(sink, looked or Options.from_dict({}))
        if options is not None:
            self.problems += missing_extras(options, self.statement.options)
        source = self._attempt(lambda: self._open(connection)) if connection else None
        if connection is None or source is None:
            self._probe(sink, looked, [], "")
            return None
        held = attachment(self.catalog, source)
        found = self._attempt(lambda: self._found(source, held, options, sink))
        self._probe(sink, looked, found or [], source.database)
        if sink is None or options is None or self.problems or self.living is not None:
            return None
        return self._attempt(
            lambda: self._assemble(connection, held, source, sink, options, found or [])
        )

    def _attempt(self, step: Callable[[], T]) -> T | None:
        try:
            return step()
        except ChangefeedError as error:
            self.problems.append(error)
            return None

    def _probe(
        self,
        sink: ResolvedSink | None,
        options: Options | None,
        found: Sequence[ResolvedTarget],
        database: str,
    ) -> None:
        """Look at the target itself, unless it is already clear that it cannot be used."""
        if sink is None or options is None or check_sink(sink, options):
            return
        named = {f.schema.table: named_topic(f.target) for f in found}
        topics = topics_of(named, sink, options, database)
        job = 0
        if self.living is not None:
            job = self.living.id
            topics |= {t.table: t.topic for t in self.catalog.tables(job) if t.table in topics}
        clashing = clashes(topics, sink, options, held={}, catalog=self.catalog, job=job)
        spans = {f.schema.table: to_span(f.target.span) for f in found}
        for table, problem in clashing.items():
            problem.span = spans[table]
            self.problems.append(problem)
        around = self.around
        problems, self.overlooked = look_at_targets(around, sink, options, found, topics, job)
        self.problems += problems

    def _check_name(self) -> None:
        name = self.statement.name
        if (
            self.living is None
            and name is not None
            and self.catalog.find_job(name)
            and not self.statement.if_not_exists
        ):
            self.problems.append(
                ChangefeedError(
                    Code.NAME_TAKEN,
                    f'changefeed "{name}" already exists',
                    span=to_span(self.statement.name_span),
                )
            )

    def _connection(self) -> Connection:
        statement = self.statement
        if self.around.given is not None:
            return self.around.given
        chosen = choose_source(
            self.catalog,
            statement.targets,
            statement.source,
            statement.source_span,
            self.around.session_source,
        )
        if self.around.rights is not None:
            place = statement.targets[0].name.span or statement.targets[0].span
            self.around.rights.require_source(chosen.name, statement.source_span or place)
        return chosen

    def _sink(self) -> ResolvedSink:
        literal = self.statement.sink
        if literal is None:
            return find_sink(self.catalog, None, None)
        if self.around.rights is not None:
            self.around.rights.require_sink(literal)
        return find_sink(self.catalog, literal.text, to_span(literal.span))

    def _right_options(self, sink: ResolvedSink | None) -> Options | None:
        right: list[nodes.Option] = []
        found: Options | None = None
        for node in (None, *self.statement.options):
            tried = [*right, node] if node is not None else right
            try:
                found = self._parsed(tried, sink)
            except ChangefeedError:
                continue
            right = tried
        return found

    def _options(self, sink: ResolvedSink | None) -> Options:
        return self._parsed(self.statement.options, sink)

    def _parsed(self, written: Sequence[nodes.Option], sink: ResolvedSink | None) -> Options:
        return parse_options(
            [*written, *query_options(self.statement.query, written, sink)],
            scheme=sink.scheme if sink else "",
            capabilities=sink.capabilities if sink else None,
            takers=takers,
            text=self.around.text,
            clock=self.around.clock,
        )

    def _open(self, connection: Connection) -> Source:
        return self.around.open_source(connection.name, connection.uri)

    def _found(
        self, source: Source, held: Attachment, options: Options | None, sink: ResolvedSink | None
    ) -> list[ResolvedTarget]:
        diff = bool(options and options.needs_logged_before)
        found, problems = find_tables(self.statement.targets, source, diff=diff)
        self.problems += problems
        if self.around.rights is not None:
            targets = self.statement.targets
            found, missing = self.around.rights.permitted(targets, found, source.name)
            self.problems += missing
            if missing:
                return found
        self.problems += held.check(watches_of(found, options, sink))
        if options is not None:
            self.problems += lookup_problems(self.statement.query, options)
        if self.statement.query is not None:
            found = self._with_query(found, source, options, sink)
        for place in found:
            self.problems += check_table(place.delivered, place.target, options)
            self.problems += check_range(place, source)
        if options is not None:
            self.problems += check_messages(found, options[INITIAL_SCAN])
            self.problems += check_row_images(source, options)
        return found

    def _with_query(
        self,
        found: list[ResolvedTarget],
        source: Source,
        options: Options | None,
        sink: ResolvedSink | None,
    ) -> list[ResolvedTarget]:
        query, compiler = self.statement.query, self.around.compile_query
        if query is None or not found:
            return found
        if compiler is None:
            raise ChangefeedError(
                Code.SPARK_NOT_AVAILABLE,
                "a CDC query needs Spark in this process",
                hint="run the statement in the changefeed shell.",
            )
        schema = found[0].schema
        stored = options is not None and options.stores_images and source.takes_row_images
        if stored and not schema.keyless:
            # The feed begins when changes in the log are completed from row images.
            schema = replace(schema, before_image=BeforeImage.FULL)
        compiled = self._attempt(lambda: compiler(schema, query))
        if compiled is None:
            return []
        self.problems += query_problems(compiled, found[0].target, options)
        if sink is not None:
            self.problems += key_problems(compiled, sink, found[0].target.span)
        return [replace(found[0], query=compiled)]

    def _assemble(
        self,
        connection: Connection,
        held: Attachment,
        source: Source,
        sink: ResolvedSink,
        options: Options,
        found: list[ResolvedTarget],
    ) -> FeedPlan:
        scan, cursor = options[INITIAL_SCAN], options[CURSOR]
        start, handover = None, None
        if scan is InitialScan.NO and cursor is None:
            start = source.current_position()
        if isinstance(cursor, DebeziumOffset):
            handover = self._attempt(lambda: self._handover(cursor, source, options, found))
            start = handover.position if handover else None
        elif cursor is not None:
            self._check_cursor(cursor, options, connection.name, found)
        if start is None and cursor is None and any(f.messages for f in found):
            start = source.current_position()
        tables = table_stages(found, source, sink, options, scan=scan, start=start)
        targets = tuple(
            dict.fromkeys(target_text(t) for t in definite(self.statement.targets, found, source))
        )
        messages = None
        if tables and not self.problems:
            members = source_members(connection.name, self.catalog.next_id(), sink.scheme)
            first = tables[0]
            schema = first.schema if first.query is None else first.query.schema
            shape = None if first.query is None else first.query.shape
            origin = NOWHERE
            if names_origin(options):
                origin = origin_of(connection.uri, source.database)
            messages = table_messages(options, first.progress, schema, members, shape, origin)
        gathers, files, can = 0.0, None, sink.capabilities
        if not self.problems:
            can = sink.able(options)
            gathers, files = sink.files_a_day(options, len({t.progress.topic for t in tables}))
        rights = self.around.rights
        return FeedPlan(
            name=self.statement.name,
            owner=None if rights is None else rights.owner.user,
            if_not_exists=self.statement.if_not_exists,
            source=SourceStage(
                connection.name,
                connection.redacted,
                held.holds,
                fresh=not self.catalog.source_state(connection.name).updated,
                parts_travel=source.parts_travel,
                takes_workers=source.takes_workers,
            ),
            tables=tuple(tables),
            sink=SinkStage(
                uri=sink.written,
                real_uri=sink.real,
                shown_uri=sink.shown,
                scheme=sink.scheme,
                capabilities=can,
                options=options,
                topics=tuple(dict.fromkeys(t.progress.topic for t in tables)),
                gathers=gathers,
                files=files,
            ),
            options=options,
            targets=targets,
            start=start,
            statement=feed_sql(
                self.statement.name, targets, connection.name, sink.written, options
            ),
            messages=messages,
            memo=handover.memo or None if handover else None,
            notices=(
                *options.notes,
                *(handover.notices if handover else ()),
                *table_notices(tables, sink),
                *query_notices(tables, sink),
                *sharing_notices(tables, sink, self.catalog),
                *self.overlooked,
            ),
        )

    def _handover(
        self,
        cursor: DebeziumOffset,
        source: Source,
        options: Options,
        found: Sequence[ResolvedTarget],
    ) -> Handover | None:
        """Where the connector stopped, if the log has that position or can begin there."""
        span = self._cursor_span()
        if options[INITIAL_SCAN] is not InitialScan.NO:
            self.problems.append(_no_scan_of_the_past(options, span))
            return None
        state = self.catalog.source_state(source.name)
        fresh = not state.memo and not state.identity
        tables = [f.schema.table for f in found]
        sent = [f.schema.table for f in found if not f.messages]
        try:
            handover = source.handover(cursor.fields, sent, fresh=fresh)
        except ChangefeedError as error:
            for problem in error.problems if isinstance(error, Problems) else [error]:
                problem.span = problem.span or span
            raise
        captured = self.catalog.captured(source.name)
        for table in tables if not fresh else ():
            if not self.around.log_has(source.name, handover.position, captured.get(table)):
                self.problems.append(
                    ChangefeedError(
                        Code.POSITION_TOO_OLD,
                        f"the change log of source {source.name!r} has not every change of {table} "
                        "since the connector's offset",
                        hint="leave cursor out for an initial scan; or stop the connector only "
                        "when a feed of the table runs, and take the offset it has then.",
                        span=span,
                    )
                )
        return handover

    def _cursor_span(self) -> Span | None:
        return next((to_span(o.span) for o in self.statement.options if o.name == "cursor"), None)

    def _check_cursor(
        self, cursor: Timestamp, options: Options, source: str, found: Sequence[ResolvedTarget]
    ) -> None:
        """The log must go back to the cursor, and a scan of the past is impossible."""
        span = self._cursor_span()
        if options[INITIAL_SCAN] is not InitialScan.NO:
            self.problems.append(_no_scan_of_the_past(options, span))
            return
        hint = "leave cursor out for an initial scan, or take a later one."
        tables = [place.schema.table for place in found]
        self.problems += cursor_problems(cursor, tables, source, self.around, hint, span)


def _no_scan_of_the_past(options: Options, span: Span | None) -> ChangefeedError:
    return ChangefeedError(
        Code.NOT_SUPPORTED,
        f"initial_scan='{options[INITIAL_SCAN]}' cannot be combined with cursor",
        detail="the source cannot be read as it was at an instant in the past",
        hint="leave out one of the two.",
        span=span,
    )


def look_at_targets(
    around: PlanContext,
    sink: ResolvedSink,
    options: Options,
    found: Sequence[ResolvedTarget],
    topics: Mapping[TableName, str],
    job: int = 0,
) -> tuple[list[ChangefeedError], list[str]]:
    """What the target itself objects to, and what was not checked. ``job`` is the number of a feed
    that exists."""
    targets = [Target(f.schema.table, topics[f.schema.table], _shape(f)) for f in found]
    if around.probe is not None:
        return around.probe(sink, options, targets, job)
    if around.guard is None or not targets or sink.owner(options) is None:
        return [], []
    problems, _ = around.guard(sink, options, targets, job)
    # A target that does not answer now is no problem of the feed: it will be retried.
    refusals = (Code.TARGET_NOT_OURS, Code.SINK_CANNOT_TAKE_TABLE)
    return [problem for problem in problems if problem.code in refusals], []


def _shape(place: ResolvedTarget) -> TableSchema:
    """What a feed delivers of a table: its key and the columns that the statement names."""
    whole, named = place.delivered, getattr(place.target, "columns", ())
    if not named:
        return whole
    kept = [i for i, c in enumerate(whole.columns) if c.name in named or i in whole.key]
    return replace(
        whole,
        columns=tuple(whole.columns[i] for i in kept),
        key=tuple(kept.index(i) for i in whole.key),
    )


def feed_sql(
    name: str | None, targets: Sequence[str], source: str, sink_uri: str | None, options: Options
) -> str:
    """The statement that makes a feed, canonical and without secrets."""
    parsed = parse_targets(targets)
    query = any(isinstance(t, nodes.TableTarget) and t.query is not None for t in parsed)
    statement = nodes.CreateChangefeed(
        targets=parsed,
        name=name,
        source=None if query else source,
        sink=None if sink_uri is None else nodes.Literal(sink_uri),
        options=options.nodes(),
    )
    return to_sql(statement, redact=sink_location)
