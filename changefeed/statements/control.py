"""PAUSE, RESUME and DROP.

A statement changes the job table; the node does the rest. Where a node runs, the statement
waits (not forever) until what it asked for is so; where none runs, it does what can be done
without one, and says what waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from changefeed.catalog import DesiredStatus, Job, Status, TableState
from changefeed.core.errors import ChangefeedError, Code
from changefeed.options import to_span
from changefeed.plan import cdc
from changefeed.statements.brief import written_name
from changefeed.statements.context import Context, Result, handles
from changefeed.statements.notices import no_node, not_taken_yet
from changefeed.statements.release import leave_source
from changefeed.statements.tables import paused_tables, resume_sql
from changefeed.statements.values import Cell
from grammar import nodes

STATUS_COLUMNS = ("job_id", "name", "status")


@handles(nodes.PauseChangefeed)
def pause(statement: nodes.PauseChangefeed, context: Context) -> Result:
    """PAUSE: stop delivery, keep the place. ALL means those that are under way."""
    refs, notices = context.existing(statement.feeds, statement.if_exists)
    if statement.feeds and not refs:
        return Result("done", notices=notices, tag="PAUSE CHANGEFEED")
    jobs = context.jobs(refs)
    if not refs:
        jobs = [job for job in jobs if job.status.active]
    for job in jobs:
        if job.status in (Status.SUCCEEDED, Status.FAILED, Status.DROPPED):
            raise _wrong_state(job, "paused", statement.feeds)
    for job in jobs:
        if job.status is Status.PAUSED and job.wanted is DesiredStatus.PAUSED:
            notices.append(f'changefeed "{job.name}" is paused already')
        context.catalog.request(job.id, DesiredStatus.PAUSED)
    context.host.wake()
    notices += until_paused(jobs, context)
    return _statuses(jobs, notices, context, "PAUSE")


def until_paused(jobs: Sequence[Job], context: Context) -> list[str]:
    """Wait until feeds that are to be paused are; what to say if they are not yet."""
    notices = []
    for job in jobs:
        notices += _until(job, context, _pause_here, "pause", lambda now: not now.status.active)
    return notices


def _pause_here(job: Job, context: Context) -> None:
    now = context.catalog.job(job.id)
    if now.status.active:
        context.catalog.stands_still(job.id)


@handles(nodes.ResumeChangefeed)
def resume(statement: nodes.ResumeChangefeed, context: Context) -> Result:
    """RESUME: go on from where it stopped; failed tables of a running feed try again."""
    refs, notices = context.existing(statement.feeds, statement.if_exists)
    if statement.feeds and not refs:
        return Result("done", notices=notices, tag="RESUME CHANGEFEED")
    jobs = context.jobs(refs)
    if not refs:
        jobs = [job for job in jobs if job.status in (Status.PAUSED, Status.FAILED)]
    for job in jobs:
        if not _can_resume(job, context):
            raise _not_paused(job, statement.feeds, context)
    for job in jobs:
        _resume_one(job, context)
        if paused := paused_tables(job, context):
            names = ", ".join(written_name(table.table) for table in paused)
            stays = "stays" if len(paused) == 1 else "stay"
            notices.append(f"{names} {stays} paused: {resume_sql(job, paused)}")
    context.host.wake()
    if context.host.node_running():
        for job in jobs:
            context.wait(partial(_taken_up, job, context), context.timings.resume)
            # One that only retries tables is under way already.
            notices += not_taken_yet(context.catalog.job(job.id), context)
    elif jobs:
        notices += no_node(context)
    return _statuses(jobs, notices, context, "RESUME")


def _can_resume(job: Job, context: Context) -> bool:
    """It stands still, is about to, or has a table that does."""
    if job.status.finished:
        return False
    if not job.status.active or job.wanted is not DesiredStatus.RUNNING:
        return True
    return any(table.state is TableState.FAILED for table in context.catalog.tables(job.id))


def _taken_up(job: Job, context: Context) -> bool:
    return context.catalog.job(job.id).status is not Status.STARTING


def _resume_one(job: Job, context: Context) -> None:
    catalog = context.catalog
    if context.session.bound is None:
        catalog.adopt(job.id)
    if (lacking := catalog.hindrance(job.id)) is not None:
        raise lacking
    catalog.retry_tables(job.id)
    # First what is wanted: a node that saw the job pending would pause it again.
    catalog.request(job.id, DesiredStatus.RUNNING)
    if job.status in (Status.PAUSED, Status.FAILED):
        catalog.transition(job.id, Status.STARTING, reason="resumed, waits for a node")


def _span_of(job: Job, refs: tuple[nodes.FeedRef, ...]) -> nodes.Span | None:
    return next((r.span for r in refs if r.name == job.name or r.job_id == job.id), None)


def _wrong_state(job: Job, what: str, refs: tuple[nodes.FeedRef, ...]) -> ChangefeedError:
    return ChangefeedError(
        Code.WRONG_JOB_STATE,
        f'changefeed "{job.name}" is {job.status} and cannot be {what}',
        hint=_after(job),
        span=to_span(_span_of(job, refs)),
    )


def _after(job: Job) -> str:
    """What can be done with a feed that is over, or has failed."""
    if job.status is Status.FAILED:
        return f"RESUME CHANGEFEED {job.name} tries again; DROP CHANGEFEED {job.name} ends it."
    return ""


def _not_paused(job: Job, refs: tuple[nodes.FeedRef, ...], context: Context) -> ChangefeedError:
    paused = paused_tables(job, context)
    return ChangefeedError(
        Code.WRONG_JOB_STATE,
        # As SHOW CHANGEFEEDS calls it: a feed that no node runs is stopped.
        f'changefeed "{job.name}" is not paused: it is {context.health(job).status}',
        hint=f"{resume_sql(job, paused)} continues what is paused of it."
        if paused
        else f"SHOW CHANGEFEED {job.name} says more.",
        span=to_span(_span_of(job, refs)),
    )


@handles(nodes.DropChangefeed)
def drop(statement: nodes.DropChangefeed, context: Context) -> Result:
    """DROP: end feeds for good; with its last feed, what we hold at a source goes too."""
    refs, notices = context.existing(statement.feeds, statement.if_exists)
    if statement.feeds and not refs:
        return Result("done", notices=notices, tag="DROP CHANGEFEED")
    jobs = context.jobs(refs)
    for job in jobs:
        if job.status is Status.DROPPED:
            raise _wrong_state(job, "dropped again", refs)
    for job in jobs:
        context.catalog.request(job.id, DesiredStatus.DROPPED)
    context.host.wake()
    for job in jobs:
        notices += _until(
            job, context, _drop_here, "drop", lambda now: now.status is Status.DROPPED
        )
    for source in sorted({job.source for job in jobs}):
        notices += leave_source(source, context)
    return _statuses(jobs, notices, context, "DROP")


@handles(nodes.DropCdc)
def drop_cdc(statement: nodes.DropCdc, context: Context) -> Result:
    """YugabyteDB's DROP CDC."""
    ref = nodes.FeedRef(name=cdc.feed_name(statement.table), span=statement.table.span)
    if context.catalog.find_job(ref.name or "") is None:
        table = ".".join(statement.table.parts)
        if statement.if_exists:
            notice = f"there is no CDC for {table}, skipping"
            return Result("done", notices=[notice], tag="DROP CHANGEFEED")
        raise ChangefeedError(
            Code.NAME_UNKNOWN,
            f"there is no CDC for {table}",
            hint="SHOW CHANGEFEEDS lists the feeds; DROP CHANGEFEED drops those of other names.",
            span=to_span(statement.table.span),
        )
    return drop(nodes.DropChangefeed((ref,)), context)


def _drop_here(job: Job, context: Context) -> None:
    context.catalog.delete_job(job.id)


def undo(job: Job, context: Context) -> None:
    """A statement that failed leaves no job; the node stops what it began."""
    context.catalog.request(job.id, DesiredStatus.DROPPED)
    context.host.wake()
    for _ in _until(job, context, _drop_here, "drop", lambda now: now.status is Status.DROPPED):
        context.catalog.delete_job(job.id)


def _until(
    job: Job,
    context: Context,
    alone: Callable[[Job, Context], None],
    verb: str,
    reached: Callable[[Job], bool],
) -> list[str]:
    """Wait for the node to do it, or do it here where none runs; what to say if neither."""
    if not context.host.node_running():
        alone(job, context)
        return []

    def done() -> bool:
        now = context.catalog.find_job(job.id)
        return now is None or reached(now)

    if context.wait(done, context.timings.answer):
        return []
    return [f'the node was asked to {verb} "{job.name}" and has not done it yet']


def _statuses(jobs: list[Job], notices: list[str], context: Context, verb: str) -> Result:
    rows: list[tuple[Cell, ...]] = []
    node = context.host.node_running()
    for job in jobs:
        now = context.catalog.find_job(job.id)
        status = context.health(now, node=node).status if now else str(Status.DROPPED)
        rows.append((job.id, job.name, status))
    return Result("rows", STATUS_COLUMNS, rows, notices, tag=f"{verb} CHANGEFEED")
