"""External connections, USE and SHOW TABLES."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from changefeed.attachments import remove_log
from changefeed.catalog import Connection, external_name
from changefeed.core.errors import ChangefeedError, Code, Problems, Span, raise_all
from changefeed.core.state import StateLayout
from changefeed.core.uri import sink_location
from changefeed.images.states import StoreState, store_status
from changefeed.images.wanted import wanted_images
from changefeed.options import Options, to_span
from changefeed.plan.check import COLUMNS as CHECK_COLUMNS
from changefeed.plan.check import CONNECTION, problem_rows
from changefeed.plan.names import find_source, scheme_of, source_connections, unknown_name
from changefeed.plan.own_options import wants_check
from changefeed.plan.sink_resolution import ResolvedSink, check_sink, find_sink
from changefeed.sources.base import TableInfo
from changefeed.sources.registry import open_source
from changefeed.sources.registry import schemes as source_schemes
from changefeed.statements import brief
from changefeed.statements.context import Context, Result, handles
from changefeed.statements.release import forget_source
from changefeed.statements.times import date
from changefeed.statements.values import Cell, Estimate, Names, Size
from grammar import foreign, nodes
from grammar.printer import name as name_sql
from grammar.spelling import did_you_mean
from sinks.registry import capabilities, entry, topic_namer
from sinks.registry import check as check_sink_uri
from sinks.registry import scheme_of as sink_scheme
from sinks.registry import schemes as sink_schemes

CONNECTION_COLUMNS = ("name", "uri", "used_by", "created")
TABLE_COLUMNS = ("table", "key", "replica_identity", "rows", "size", "kind", "watched_by")


@handles(nodes.CreateConnection)
def create_connection(statement: nodes.CreateConnection, context: Context) -> Result:
    """CREATE EXTERNAL CONNECTION: the URI is read, and the server tried, before it is stored."""
    tried = wants_check(statement.options, text=context.text)
    is_source = _check_uri(statement.uri, tried=tried)
    there = statement.name in {c.name for c in context.catalog.connections()}
    overlooked = _try_stored(statement, is_source, context) if tried and not there else []
    try:
        made = context.catalog.create_connection(
            statement.name, statement.uri.text, statement.if_not_exists
        )
    except ChangefeedError as error:
        error.span = error.span or to_span(statement.name_span)
        raise
    notices = overlooked
    if not made:
        notices = [f'external connection "{statement.name}" already exists, skipping']
    elif is_source and context.session.source is not None:
        notices.append(
            f"table names without a source are still those of {context.session.source}: "
            f"USE {name_sql(statement.name)} changes that"
        )
    return Result("done", notices=notices, tag="CREATE EXTERNAL CONNECTION")


@handles(nodes.AlterConnection)
def alter_connection(statement: nodes.AlterConnection, context: Context) -> Result:
    """ALTER EXTERNAL CONNECTION: feeds that use it reconnect."""
    tried = wants_check(statement.options, text=context.text)
    is_source = _check_uri(statement.uri, tried=tried)
    if statement.if_exists and statement.name not in {
        c.name for c in context.catalog.connections()
    }:
        skipped = f'external connection "{statement.name}" does not exist, skipping'
        return Result("done", notices=[skipped], tag="ALTER EXTERNAL CONNECTION")
    old = existing_connection(statement.name, statement.name_span, context)
    users = [job.name for job in context.catalog.source_jobs(statement.name)]
    if users and scheme_of(old.uri) != scheme_of(statement.uri.text):
        raise ChangefeedError(
            Code.NOT_SUPPORTED,
            f'external connection "{statement.name}" is the source of {", ".join(users)}: '
            "it cannot become another kind",
            hint="CREATE another connection.",
            span=to_span(statement.uri.span),
        )
    _check_users(statement.name, statement.uri, context)
    overlooked = _try_stored(statement, is_source, context) if tried else []
    context.catalog.alter_connection(statement.name, statement.uri.text)
    context.host.wake()
    return Result("done", notices=overlooked, tag="ALTER EXTERNAL CONNECTION")


@handles(nodes.DropConnection)
def drop_connection(statement: nodes.DropConnection, context: Context) -> Result:
    """DROP EXTERNAL CONNECTION."""
    if not statement.if_exists:
        existing_connection(statement.name, statement.name_span, context)
    left = _leave_source(statement.name, context)
    dropped = context.catalog.drop_connection(statement.name, statement.if_exists)
    if context.session.source == statement.name:
        context.session.source = None
    notices = (
        left if dropped else [f'external connection "{statement.name}" does not exist, skipping']
    )
    return Result("done", notices=notices, tag="DROP EXTERNAL CONNECTION")


def _leave_source(name: str, context: Context) -> list[str]:
    """Without its connection nobody can remove what we made at a source: now or never."""
    state = context.catalog.source_state(name)
    if not state.updated or context.catalog.source_jobs(name):
        return []
    if not forget_source(name, context):
        return []
    remove_log(context.catalog, name)
    context.catalog.forget_source(name)
    return [f"source {name} still keeps its log for {state.holds}: remove it there"]


@handles(nodes.CheckConnection)
def check_connection(statement: nodes.CheckConnection, context: Context) -> Result:
    """CHECK EXTERNAL CONNECTION: every problem as a row; nothing is made or changed."""
    name, uri = statement.name, statement.uri
    if uri is not None:
        name = external_name(uri.text)
    if name is not None:
        span = statement.name_span if uri is None else uri.span
        uri = nodes.Literal(existing_connection(name, span, context).uri, span=span)
    if uri is None:
        raise AssertionError("a connection is named, or given as a URI")
    problems: Sequence[ChangefeedError] = ()
    overlooked: list[str] = []
    try:
        is_source = _check_uri(uri, tried=True)
        problems, overlooked = _try(name or "", uri, is_source, context)
    except ChangefeedError as error:
        problems = error.problems if isinstance(error, Problems) else [error]
    rows: list[tuple[Cell, ...]] = []
    if not problems:
        reached = f"{name or sink_location(uri.text)} was reached, and lets changefeed in"
        rows.append(("ok", "", CONNECTION, name or "", reached, ""))
    rows += problem_rows(None, problems, overlooked, context.text, statement, name or "")
    return Result(
        "rows",
        CHECK_COLUMNS,
        rows,
        failure=problems[0] if problems else None,
        brief=brief.checks(CHECK_COLUMNS, rows),
    )


@handles(nodes.ShowConnections)
def show_connections(statement: nodes.ShowConnections, context: Context) -> Result:
    """SHOW EXTERNAL CONNECTIONS: URIs without secrets."""
    shown = context.catalog.connections()
    if statement.name is not None:
        shown = [existing_connection(statement.name, statement.name_span, context)]
    used: dict[str, list[str]] = {}
    for job in context.catalog.jobs():
        for name in context.catalog.connections_of(job):
            used.setdefault(name, []).append(job.name)
    for schedule in context.catalog.schedules():
        for name in context.catalog.connections_of(schedule):
            used.setdefault(name, []).append(f"schedule {schedule.name}")
    rows = [(c.name, c.redacted, Names(used.get(c.name, ())), date(c.created)) for c in shown]
    return Result(columns=CONNECTION_COLUMNS, rows=list(rows))


@handles(nodes.Use)
def use(statement: nodes.Use, context: Context) -> Result:
    """USE: what unqualified names belong to, for the rest of the session."""
    context.session.source = find_source(context.catalog, statement.name, statement.name_span).name
    return Result("done", tag="USE")


@handles(nodes.ShowTables)
def show_tables(statement: nodes.ShowTables, context: Context) -> Result:
    """SHOW TABLES: what can be watched at a source, asked now."""
    name = _source_name(statement, context)
    watched = context.catalog.watched(name)
    infos = context.source(name).tables()
    stored = wanted_images(context.catalog, name)()
    stores = StateLayout(Path(context.catalog.directory)).images(name)
    rows = [
        (
            brief.written_name(info.name),
            Names(info.key),
            _before(info, stores) if info.name in stored else info.identity,
            Estimate(info.rows_estimate),
            Size(info.bytes),
            info.kind,
            Names(watched.get(info.name, ())),
        )
        for info in infos
    ]
    return Result(columns=TABLE_COLUMNS, rows=list(rows), brief=brief.source_tables(infos, watched))


def _before(info: TableInfo, stores: Path) -> str:
    """What old rows carry in the log of a table that a feed wants row images of."""
    match store_status(stores, info.name).state:
        case StoreState.NOT_NEEDED:
            return info.identity
        case StoreState.LIVE:
            return f"{info.identity}, row images"
        case StoreState.BROKEN:
            return f"{info.identity}, row images lost"
        case _:
            return f"{info.identity}, row images to come"


def _source_name(statement: nodes.ShowTables, context: Context) -> str:
    name = statement.source or context.session.source_in(context.catalog)
    if name is not None:
        return find_source(context.catalog, name, statement.source_span).name
    known = source_connections(context.catalog)
    names = ", ".join(c.name for c in known)
    hint = (
        f"SHOW TABLES FROM {known[0].name}, or USE one of: {names}."
        if known
        else (
            "CREATE EXTERNAL CONNECTION shop AS 'postgresql://user:password@host/database'; first."
        )
    )
    what = "no source is selected, and there are several" if known else "there is no source yet"
    raise ChangefeedError(Code.NAME_UNKNOWN, what, hint=hint)


def _try_stored(
    statement: nodes.CreateConnection | nodes.AlterConnection, is_source: bool, context: Context
) -> list[str]:
    """Try what is about to be stored; what was not looked at there.

    Raises:
        ChangefeedError: every problem found.
    """
    problems, overlooked = _try(statement.name, statement.uri, is_source, context)
    for problem in problems:
        skip = "WITH check = 'no' stores the connection without trying the server."
        problem.hint = f"{problem.hint.removesuffix('.')}. {skip}" if problem.hint else skip
    raise_all([problem.located(context.text) for problem in problems])
    return overlooked


def _try(
    name: str, uri: nodes.Literal, is_source: bool, context: Context
) -> tuple[Sequence[ChangefeedError], list[str]]:
    """Reach the server and log in, as VALIDATE does: every problem, and what was not looked at."""
    span = to_span(uri.span)
    overlooked: list[str] = []
    problems: Sequence[ChangefeedError] = []
    if is_source:
        try:
            source = context.open_source(name, uri.text)
            source.identity()
            # Where the log is read from a standby, this asks the primary.
            source.locate((), ())
        except ChangefeedError as error:
            problems = [error]
    else:
        sink = find_sink(context.catalog, uri.text, span)
        problems, overlooked = context.probe(sink, {}, ())
    for problem in problems:
        problem.span = problem.span or span
    return problems, overlooked


def _check_uri(uri: nodes.Literal, *, tried: bool) -> bool:
    """Every parameter of the URI is one of a source or a sink that there is; whether it is that of
    a source.

    Raises:
        ChangefeedError: every problem found.
    """
    scheme = scheme_of(uri.text)
    known = [*source_schemes(), *sink_schemes()]
    span: Span | None = to_span(uri.span)
    if scheme in source_schemes():
        return _is_source_uri(uri.text, scheme, span)
    if scheme in known:
        # A package that is missing here may be there where the feeds run.
        passed = () if tried else (Code.SINK_NEEDS_EXTRA,)
        problems = [p for p in check_sink_uri(uri.text) if p.code not in passed]
        for problem in problems:
            problem.span = problem.span or span
        raise_all(problems)
        return False
    if not scheme or len(scheme) > 30:
        raise ChangefeedError(
            Code.INVALID_URI,
            "no scheme found for the URI of the connection",
            hint="write it as scheme://user:password@host/name.",
            span=span,
        )
    near = did_you_mean(scheme, known)
    hint = f'did you mean "{near}://"? ' if near else ""
    raise ChangefeedError(
        Code.INVALID_URI,
        f"no source and no sink has the scheme {scheme}",
        hint=foreign.scheme(scheme) or f"{hint}known are: {', '.join(dict.fromkeys(known))}.",
        span=span,
    )


def _is_source_uri(uri: str, scheme: str, span: Span | None) -> bool:
    """Whether it is that of a source, or of a sink of the same scheme; it can be read as one."""
    try:
        open_source("", uri)
    except ChangefeedError as error:
        as_sink = scheme in sink_schemes() and not check_sink_uri(uri)
        if as_sink and error.code is Code.UNKNOWN_PARAMETER:
            return False  # a parameter of the sink's own
        error.span = error.span or span
        raise
    return True


def _check_users(name: str, uri: nodes.Literal, context: Context) -> None:
    """Feeds that write to the connection can go on with the new URI, where they are.

    Raises:
        ChangefeedError: an option of a feed does not fit, or its topics would have other names:
            these are fixed when a feed is made.
    """
    for job in context.catalog.jobs():
        if job.sink_uri is None or external_name(job.sink_uri) != name:
            continue
        old = find_sink(context.catalog, job.sink_uri, None)
        # What the feed's own text adds to the connection's URI stays.
        real = context.catalog.resolve_uri(job.sink_uri, {name: uri.text})
        scheme = sink_scheme(real)
        new = ResolvedSink(job.sink_uri, real, scheme, capabilities(scheme), to_span(uri.span))
        options = Options.from_dict(job.options, abilities=old.capabilities)
        problems = check_sink(new, options)
        if problems:
            first = problems[0]
            first.detail = first.detail or f'changefeed "{job.name}" writes to it'
            raise first
        names = [table.table.name for table in context.catalog.tables(job.id)]
        was, will = (topic_namer(sink.real, options) for sink in (old, new))
        moved = next((n for n in names if was(n) != will(n)), None)
        if moved is not None:
            raise ChangefeedError(
                Code.NOT_SUPPORTED,
                f'external connection "{name}" is the sink of {job.name}, whose '
                f"{entry(old.scheme).target} {was(moved)} would become {will(moved)}: targets keep "
                "their names",
                hint="CREATE another connection, then ALTER CHANGEFEED "
                f"{job.name} SET sink = 'external://..'.",
                span=to_span(uri.span),
            )


def existing_connection(name: str, span: nodes.Span | None, context: Context) -> Connection:
    """The connection of a name.

    Raises:
        ChangefeedError: CF1101 with the nearest name.
    """
    known = {c.name: c for c in context.catalog.connections()}
    if name in known:
        return known[name]
    listed = "SHOW EXTERNAL CONNECTIONS lists them."
    raise unknown_name("external connection", name, known, listed, span)
