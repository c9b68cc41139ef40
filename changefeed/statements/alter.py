"""ALTER CHANGEFEED and RENAME."""

from __future__ import annotations

from collections.abc import Mapping

from changefeed.catalog import DesiredStatus, Job, Status
from changefeed.core.errors import LOG_LOST, ChangefeedError
from changefeed.core.uri import sink_location
from changefeed.options import Options, to_span
from changefeed.plan.alter import AlterPlan, plan_alter
from changefeed.statements.context import Context, Result, handles
from changefeed.statements.create import FEED_COLUMNS, is_captured, source_waits
from changefeed.statements.notices import no_node, not_taken_yet, source_warnings, topic_notices
from changefeed.statements.tables import scans_of_paused
from grammar import nodes

ALTERED_COLUMNS = ("job_id", "job_description")


@handles(nodes.AlterChangefeed)
def alter(statement: nodes.AlterChangefeed, context: Context) -> Result:
    """ALTER CHANGEFEED: all actions or none, while the feed runs or is paused."""
    known, skipped = context.existing((statement.feed,), statement.if_exists)
    if not known:
        return Result("done", notices=skipped, tag="ALTER CHANGEFEED")
    job = context.job(statement.feed)
    plan = plan_alter(statement, job, context.surroundings(making=True, of=job))
    more = [stage.schema.table for stage in plan.add]
    warnings = source_warnings(job.source, more, context, server=False)
    log_is_lost = bool(plan.rescan) and _log_is_lost(job, context)
    altered = context.catalog.alter_job(
        job.id,
        sink_uri=plan.sink_uri,
        targets=plan.targets,
        options=plan.options.to_dict(),
        statement=plan.statement,
        add=[stage.progress for stage in plan.add],
        drop=plan.drop,
        topics=plan.topics,
        renamed=plan.renamed,
        rescan=plan.rescan,
        begin=plan.begin,
        renew_log=log_is_lost,
        generation=job.generation,
        noted=changes(job, plan),
        by=context.session.user,
    )
    rescans = _others_of_the_log(job, context) if log_is_lost else []
    if plan.rescan:
        # A feed that failed goes on with its RESCAN.
        rescans += go_on(job, context)
        rescans += scans_of_paused(job, plan.rescan, context)
    elif job.status is Status.FAILED:
        rescans.append(
            f'changefeed "{job.name}" has failed: RESUME CHANGEFEED {job.name} continues it'
        )
    context.host.wake()
    late: list[str] = []
    if plan.add and altered.status.active and context.host.node_running():
        added = {stage.schema.table: stage.schema.table_id for stage in plan.add}

        def settled() -> bool:
            return is_captured(job, added, context) or source_waits(job, context)

        context.wait(settled, context.timings.answer)
        if not is_captured(job, added, context):
            error = context.catalog.source_state(job.source).error
            why = f": {error}" if error else ""
            late.append(f"the source does not send the added tables yet{why}")
    late = late or not_taken_yet(altered, context)
    sink_uri = context.catalog.resolve_uri(plan.sink_uri or "")
    topics = tuple(dict.fromkeys([*(s.progress.topic for s in plan.add), *plan.topics.values()]))
    return Result(
        "rows",
        ALTERED_COLUMNS,
        [(altered.id, altered.statement)],
        [*plan.notices, *rescans, *warnings, *topic_notices(topics, sink_uri), *late],
        job_id=altered.id,
        name=altered.name,
        tag="ALTER CHANGEFEED",
    )


def changes(job: Job, plan: AlterPlan) -> list[str]:
    """Options and address before and after, without secrets."""
    said = option_changes(job.options, plan.options.to_dict())
    if plan.begin is not None:
        said.append(f"cursor set from {job.high_water} to {plan.begin}")
    return said + address_changes(job.sink_uri or "", plan.sink_uri or job.sink_uri or "")


def option_changes(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """Options before and after, as they are stored, without secrets."""
    shown, then = (Options.from_dict(each).display() for each in (old, new))
    return [
        f"{name} {changed(shown.get(name), then.get(name))}"
        for name in sorted({*old, *new})
        if old.get(name) != new.get(name)
    ]


def address_changes(old: str, new: str) -> list[str]:
    """A sink's URI before and after, without secrets; nothing if it is the same."""
    if old == new:
        return []
    return [f"address {changed(sink_location(old), sink_location(new))}"]


def changed(before: str | None, after: str | None) -> str:
    """``from '10s' to '5s'``; a flag has no value."""
    if before is None:
        return f"set to '{after}'" if after else "set"
    if after is None:
        return f"unset, was '{before}'" if before else "unset"
    if before == after:
        return f"changed in what is secret of '{after}'"
    return f"from '{before}' to '{after}'"


def _log_is_lost(job: Job, context: Context) -> bool:
    """``job`` as it was before the statement, or its source, has met a log that cannot go on."""
    codes = {job.error_code, context.catalog.source_state(job.source).error_code}
    return bool(codes & LOG_LOST)


def _others_of_the_log(job: Job, context: Context) -> list[str]:
    """Who else needs to know of a new change log."""
    others = [j.name for j in context.catalog.source_jobs(job.source) if j.id != job.id]
    if not others:
        return []
    return [
        f"a new change log of source {job.source} begins unless the old one can go on; its other "
        f"feeds then need a RESCAN, too: {', '.join(others)}"
    ]


def go_on(job: Job, context: Context, what: str = "rescan") -> list[str]:
    """Let a feed that failed go on; say where one that stands still does not. The statement has
    raised its generation: the feed may have failed until then, and no longer fails after it."""
    job = context.catalog.job(job.id)
    if job.status is Status.FAILED and job.wanted is DesiredStatus.RUNNING:
        context.catalog.transition(job.id, Status.STARTING, reason=f"waits for its {what}")
    elif job.status is Status.PAUSED or job.wanted is DesiredStatus.PAUSED:
        return [f'changefeed "{job.name}" is paused: the {what} begins with RESUME']
    return no_node(context)


@handles(nodes.RenameChangefeed)
def rename(statement: nodes.RenameChangefeed, context: Context) -> Result:
    """ALTER CHANGEFEED f RENAME TO g."""
    known, skipped = context.existing((statement.feed,), statement.if_exists)
    if not known:
        return Result("done", notices=skipped, tag="ALTER CHANGEFEED")
    job = context.job(statement.feed)
    try:
        renamed = context.catalog.rename_job(job.id, statement.new_name, by=context.session.user)
    except ChangefeedError as error:
        error.span = error.span or to_span(statement.name_span)
        raise
    return Result("rows", FEED_COLUMNS, [(renamed.id, renamed.name)], tag="ALTER CHANGEFEED")
