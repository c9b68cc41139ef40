"""PAUSE and RESUME of tables of a feed, which delivers its others meanwhile."""

from __future__ import annotations

from collections.abc import Sequence

from changefeed.catalog import DesiredStatus, Job, TableProgress, TableState
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.schema import TableName
from changefeed.options import RESOLVED, to_span
from changefeed.statements.alter import go_on
from changefeed.statements.brief import written_name
from changefeed.statements.context import Context, Result, handles
from changefeed.statements.control import STATUS_COLUMNS
from changefeed.statements.notices import not_taken_yet
from changefeed.statements.tables import named_table, paused_tables, resume_sql
from changefeed.statements.values import Names
from grammar import nodes
from grammar.printer import name as name_sql
from sinks.registry import capabilities, scheme_of

COLUMNS = (*STATUS_COLUMNS, "paused_tables")


@handles(nodes.PauseTables)
def pause_tables(statement: nodes.PauseTables, context: Context) -> Result:
    """PAUSE CHANGEFEED f TABLE t, ..: the feed goes on with its other tables."""
    known, notices = context.existing((statement.feed,), statement.if_exists)
    if not known:
        return Result("done", notices=notices, tag="PAUSE CHANGEFEED")
    job = context.job(statement.feed)
    _refuse_ended(job, "paused", statement.feed)
    every = context.catalog.tables(job.id)
    chosen = _chosen(statement.tables, job, every)
    for name, table in chosen:
        if table.state is TableState.FAILED:
            raise ChangefeedError(
                Code.WRONG_JOB_STATE,
                f"{written_name(table.table)} has failed and cannot be paused",
                hint=f"{resume_sql(job, [table])} tries it again.",
                span=to_span(name.span),
            )
        if table.state is TableState.PAUSED:
            notices.append(f"{written_name(table.table)} is paused already")
    fresh = [table for _, table in chosen if table.state is not TableState.PAUSED]
    gone = {table.table for table in fresh}
    if fresh and all(t.state.stands or t.table in gone for t in every):
        raise ChangefeedError(
            Code.WRONG_JOB_STATE,
            f'changefeed "{job.name}" delivers no other table',
            hint=f"PAUSE CHANGEFEED {name_sql(job.name)} pauses the feed.",
            span=to_span(statement.tables[0].span),
        )
    if fresh:
        context.catalog.pause_tables(job.id, gone, by=context.session.user)
        context.host.wake()
        notices += not_taken_yet(context.catalog.job(job.id), context)
        notices += _waiting(job, gone, context)
    return _status(job, notices, context, "PAUSE")


@handles(nodes.ResumeTables)
def resume_tables(statement: nodes.ResumeTables, context: Context) -> Result:
    """RESUME CHANGEFEED f TABLE t, ..: each from where it stopped; a failed one tries again."""
    known, notices = context.existing((statement.feed,), statement.if_exists)
    if not known:
        return Result("done", notices=notices, tag="RESUME CHANGEFEED")
    job = context.job(statement.feed)
    _refuse_ended(job, "resumed", statement.feed)
    chosen = _chosen(statement.tables, job, context.catalog.tables(job.id))
    for name, table in chosen:
        if not table.state.stands:
            raise ChangefeedError(
                Code.WRONG_JOB_STATE,
                f"{written_name(table.table)} is not paused: it is {table.state}",
                hint=f"RESUME CHANGEFEED {name_sql(job.name)} continues a feed that is paused."
                if job.wanted is DesiredStatus.PAUSED
                else f"SHOW CHANGEFEED {name_sql(job.name)} TABLES says more.",
                span=to_span(name.span),
            )
    names = [table.table for _, table in chosen]
    context.catalog.resume_tables(job.id, names, by=context.session.user)
    notices += go_on(job, context, "delivery of these tables")
    context.host.wake()
    notices += not_taken_yet(context.catalog.job(job.id), context)
    return _status(job, notices, context, "RESUME")


_Chosen = Sequence[tuple[nodes.QualifiedName, TableProgress]]


def _chosen(
    names: Sequence[nodes.QualifiedName], job: Job, tables: Sequence[TableProgress]
) -> _Chosen:
    found = ((name, named_table(name, job, tables)) for name in names)
    return list({table.table: (name, table) for name, table in found}.values())


def _refuse_ended(job: Job, what: str, ref: nodes.FeedRef) -> None:
    if job.status.finished:
        raise ChangefeedError(
            Code.WRONG_JOB_STATE,
            f'changefeed "{job.name}" is {job.status}: its tables cannot be {what}',
            span=to_span(ref.span),
        )


def _waiting(job: Job, gone: set[TableName], context: Context) -> list[str]:
    """Which resolved timestamps the paused tables hold back."""
    if job.options.get(RESOLVED.name) is None or job.sink_uri is None:
        return []
    tables = context.catalog.tables(job.id)
    topics = {table.topic for table in tables if table.table in gone}
    shared = topics & {table.topic for table in tables if not table.state.stands}
    able = capabilities(scheme_of(context.catalog.resolve_uri(job.sink_uri)))
    if able.resolved_by_topic and not shared:
        whose = ", ".join(sorted(topics))
        return [f"no resolved timestamps go to {whose} while the table is paused"]
    return ["resolved timestamps wait: none passes the place of a paused table"]


def _status(job: Job, notices: list[str], context: Context, verb: str) -> Result:
    now = context.catalog.job(job.id)
    paused = Names(written_name(table.table) for table in paused_tables(job, context))
    row = (job.id, job.name, context.health(now).status, paused)
    return Result("rows", COLUMNS, [row], notices, tag=f"{verb} CHANGEFEED")
