"""CREATE OR REPLACE of a feed that is there -> the ALTER CHANGEFEED that makes it equal to the
statement."""

from __future__ import annotations

from collections.abc import Sequence

from changefeed.catalog import Connection, Job
from changefeed.core.clock import ManualClock
from changefeed.core.errors import ChangefeedError, Code, raise_all
from changefeed.core.uri import redact
from changefeed.options import CURSOR, END_TIME, Options, parse_options, redact_option, to_span
from changefeed.plan.build import distinct
from changefeed.plan.context import PlanContext
from changefeed.plan.names import choose_source
from changefeed.plan.queries import query_options
from changefeed.plan.sink_resolution import ResolvedSink, find_sink, job_options
from changefeed.plan.tables import definite, find_tables
from changefeed.plan.targets import parse_targets, target_text
from grammar import nodes
from grammar.printer import name as name_sql
from sinks.registry import takers

#: A target of many tables.
_Pattern = nodes.SchemaTarget | nodes.DatabaseTarget


def replacement(
    statement: nodes.CreateChangefeed, job: Job, around: PlanContext
) -> nodes.AlterChangefeed | None:
    """The ALTER that makes ``job`` what the statement describes; None if it is that already.

    Its parts have their places in the statement. A secret that the statement has redacted, as SHOW
    CREATE prints it, is the one that the feed has. A cursor or an end_time relative to now has been
    resolved when the feed was made, and stays.

    Raises:
        ChangefeedError: every problem found: what an ALTER cannot change, and what is wrong with
            the targets and options themselves.
    """
    fixed = _fixed(statement, job, around)
    raise_all([problem.located(around.text) for problem in fixed])
    written = statement.sink.text if statement.sink is not None else ""
    old_sink, old = job_options(around.catalog, job)
    moved = written != job.sink_uri and written != redact(job.sink_uri or "")
    span = statement.sink.span if statement.sink is not None else None
    sink = find_sink(around.catalog, written, to_span(span)) if moved else old_sink
    actions: list[nodes.AlterAction] = []
    if moved and statement.sink is not None:
        actions.append(nodes.AlterInto(statement.sink))
    problems: list[ChangefeedError] = []
    try:
        actions += _options(statement, old, sink, around)
    except ChangefeedError as error:
        problems.append(error)
    try:
        if statement.query is None:
            actions += _targets(statement, job, around)
    except ChangefeedError as error:
        problems.append(error)
    raise_all(distinct(problems))
    feed = nodes.FeedRef(job.name, span=statement.name_span)
    return nodes.AlterChangefeed(feed, tuple(actions), span=statement.span) if actions else None


def _fixed(
    statement: nodes.CreateChangefeed, job: Job, around: PlanContext
) -> list[ChangefeedError]:
    """What belongs to a feed for as long as it lives, and differs."""
    problems = []

    def differs(what: str, span: nodes.Span | None) -> None:
        problems.append(
            ChangefeedError(
                Code.NOT_SUPPORTED,
                f'changefeed "{job.name}" cannot be replaced: {what}',
                hint=f"DROP CHANGEFEED {name_sql(job.name)} first, or give this one another name.",
                span=to_span(span),
            )
        )

    if statement.sink is None:
        differs("a feed without INTO is not stored", statement.name_span)
    connection = _connection(statement, around)
    if connection.name != job.source:
        differs(f"its source is {job.source}, not {connection.name}", statement.source_span)
    elif job.is_query or statement.query is not None:
        # The name of its table is not part of a query.
        asked = [target_text(t) for t in _definite(statement, around)]
        if asked != list(job.targets):
            differs("a CDC query stays as it is", statement.targets[0].span)
    return problems


def _connection(statement: nodes.CreateChangefeed, around: PlanContext) -> Connection:
    return choose_source(
        around.catalog,
        statement.targets,
        statement.source,
        statement.source_span,
        around.session_source,
    )


def _definite(statement: nodes.CreateChangefeed, around: PlanContext) -> list[nodes.FeedTarget]:
    connection = _connection(statement, around)
    source = around.open_source(connection.name, connection.uri)
    found, problems = find_tables(statement.targets, source, diff=False)
    raise_all([problem.located(around.text) for problem in problems])
    return definite(statement.targets, found, source)


def _options(
    statement: nodes.CreateChangefeed, old: Options, sink: ResolvedSink, around: PlanContext
) -> list[nodes.AlterAction]:
    stored = old.to_dict()
    implied = query_options(statement.query, statement.options, sink)
    wanted = parse_options(
        [*statement.options, *implied],
        scheme=sink.scheme,
        capabilities=sink.capabilities,
        takers=takers,
        text=around.text,
        clock=around.clock,
    )
    # One instant later a relative one is another.
    later = parse_options(
        [*statement.options, *implied],
        scheme=sink.scheme,
        clock=ManualClock(around.clock.now().wall + 10**9),
    )
    new, then = wanted.to_dict(), later.to_dict()
    instants = (CURSOR.name, END_TIME.name)
    stays = {name for name in instants if name in stored and new.get(name) != then.get(name)}
    stays |= {
        name
        for name, text in new.items()
        if name in stored and text == redact_option(name, stored[name])
    }
    places = {option.name: option for option in statement.options}
    changed = [n for n, text in new.items() if n not in stays and stored.get(n) != text]
    if CURSOR.name in changed:
        raise ChangefeedError(
            Code.OPTIONS_CONTRADICT,
            'cannot alter option "cursor"',
            hint="ALTER CHANGEFEED f SET cursor = '..' sets a paused feed back or forward.",
            span=to_span(places[CURSOR.name].span),
        )
    gone = [name for name in stored if name not in new]
    actions: list[nodes.AlterAction] = []
    if changed:
        typed = {option.name: option for option in wanted.nodes()}
        actions.append(nodes.AlterSet(tuple(places.get(n, typed[n]) for n in changed)))
    if gone:
        actions.append(
            nodes.AlterUnset(tuple(nodes.Name(n, span=statement.name_span) for n in gone))
        )
    return actions


def _targets(
    statement: nodes.CreateChangefeed, job: Job, around: PlanContext
) -> list[nodes.AlterAction]:
    """A table whose target has changed is read again; a table that an old and a new pattern both
    select is not: the new pattern is added before the old one goes."""
    wanted = _definite(statement, around)
    texts = {target_text(target) for target in wanted}
    added = [target for target in wanted if target_text(target) not in job.targets]
    gone = [t for t in parse_targets(job.targets) if target_text(t) not in texts]
    late = [target for target in gone if isinstance(target, _Pattern) and _covered(target, added)]
    early = [target for target in gone if target not in late]
    parts = (
        nodes.AlterDrop(tuple(early)),
        nodes.AlterAdd(tuple(added)),
        nodes.AlterDrop(tuple(late)),
    )
    return [part for part in parts if part.targets]


def _covered(target: _Pattern, added: Sequence[nodes.FeedTarget]) -> bool:
    return any(type(each) is type(target) and each.name == target.name for each in added)
