"""CREATE CHANGEFEED, FOR DATASET and CREATE CDC.

A statement changes the job table; the node does the rest (:mod:`.control`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from changefeed.attachments import capture_tables
from changefeed.catalog import Job, Status
from changefeed.core.errors import ChangefeedError, Code, raise_all
from changefeed.core.events import ClientRow, StreamRow
from changefeed.core.schema import TableName
from changefeed.options import to_span
from changefeed.plan import cdc
from changefeed.plan.build import plan_create
from changefeed.plan.replace import replacement
from changefeed.plan.stages import FeedPlan
from changefeed.statements import datasets
from changefeed.statements.context import HANDLERS, Context, Result, handles
from changefeed.statements.control import undo
from changefeed.statements.notices import no_node, source_warnings, topic_notices
from changefeed.statements.release import forget_source, leave_source
from grammar import nodes

FEED_COLUMNS = ("job_id", "name")


@handles(nodes.CreateChangefeed)
def create(statement: nodes.CreateChangefeed, context: Context) -> Result:
    """CREATE CHANGEFEED: plan, store, and wait until the source sends the tables."""
    if statement.or_replace and (job := replaced(statement, context)) is not None:
        return _replace(statement, job, context)
    existing = context.catalog.find_job(statement.name) if statement.name else None
    if existing is not None and statement.if_not_exists:
        notice = f'changefeed "{existing.name}" already exists, skipping'
        return _created(existing, [notice])
    plan = plan_create(statement, context.surroundings(making=True))
    watched = [table.schema.table for table in plan.tables]
    name, heard = plan.source.source, context.session.heard
    fresh = plan.source.fresh and name not in heard
    warnings = source_warnings(name, watched, context, server=fresh)
    heard.add(name)
    if plan.sinkless:
        rows = context.host.start_sinkless(plan, context.session.gone)
        return Result(
            "stream",
            ("table", "key", "value"),
            notices=[*plan.notices, *warnings],
            stream=_texts(rows, lambda: leave_source(plan.source.source, context)),
            tag="CREATE CHANGEFEED",
        )
    job, late = _store(plan, statement, context)
    notices = [
        *plan.notices,
        *warnings,
        *topic_notices(plan.sink.topics, plan.sink.real_uri),
        *late,
        *no_node(context),
    ]
    return _created(job, notices)


def _created(job: Job, notices: list[str]) -> Result:
    return Result(
        "rows",
        FEED_COLUMNS,
        [(job.id, job.name)],
        notices,
        job_id=job.id,
        name=job.name,
        tag="CREATE CHANGEFEED",
    )


def replaced(
    statement: nodes.CreateChangefeed | nodes.CreateDataset, context: Context
) -> Job | None:
    """The feed that CREATE OR REPLACE changes; None if it makes a new one.

    Raises:
        ChangefeedError: CF1303 the statement does not name it.
    """
    if statement.name is None:
        raise ChangefeedError(
            Code.NOT_SUPPORTED,
            "CREATE OR REPLACE needs the name of a changefeed",
            hint="write CREATE OR REPLACE CHANGEFEED name FOR ...",
            span=to_span(statement.span),
        )
    return context.catalog.find_job(statement.name)


def _replace(statement: nodes.CreateChangefeed, job: Job, context: Context) -> Result:
    """Alter the feed that is there."""
    notices = [f'changefeed "{job.name}" is as the statement says: nothing was changed']
    alteration = replacement(statement, job, context.surroundings(making=True, of=job))
    if alteration is not None:
        altered: Result = HANDLERS[type(alteration)](alteration, context)
        notices = altered.notices
    return _created(job, notices)


def _store(
    plan: FeedPlan, statement: nodes.CreateChangefeed, context: Context
) -> tuple[Job, list[str]]:
    catalog = context.catalog
    try:
        # Before anything is made at the source: a node would remove what no job needs.
        job = catalog.create_job(plan.spec(), context.session.run)
    except ChangefeedError as error:
        error.span = error.span or to_span(statement.name_span)
        raise
    if not context.host.node_running() and plan.start is not None:
        # Nobody will make the source send them soon, and this feed owes every change from now on.
        try:
            _prepare_here(plan, context)
        except BaseException:
            undo(job, context)
            forget_source(job.source, context)
            raise
    context.host.wake()
    if context.session.run is not None or not context.host.node_running():
        return job, []  # nobody waits for a run, or for what no node does
    return job, _await_capture(job, plan, context)


def _prepare_here(plan: FeedPlan, context: Context) -> None:
    """Make the source send the tables without a node.

    Raises:
        ChangefeedError: the source refuses, for itself or for one of the tables.
    """
    catalog, source = context.catalog, context.source(plan.source.source)
    mine = {table.schema.table for table in plan.tables}
    watched = set(catalog.watched(source.name)) | mine
    prepared = capture_tables(catalog, source, sorted(watched))
    catalog.add_gaps(
        {
            t: f'changes to table "{t.schema}.{t.name}" may be missing: {why}'
            for t, why in prepared.altered.items()
        }
    )
    raise_all([prepared.problems[t] for t in sorted(prepared.problems) if t in mine])


def _await_capture(job: Job, plan: FeedPlan, context: Context) -> list[str]:
    """Wait until every later change of the tables reaches the log; what to say if it is late.

    Raises:
        ChangefeedError: the source refused, or is late with a feed that scans nothing and so
            would miss changes; the job is gone again.
    """
    catalog = context.catalog
    tables = {table.schema.table: table.schema.table_id for table in plan.tables}

    def settled() -> bool:
        captured = is_captured(job, tables, context)
        return captured or source_waits(job, context) or not catalog.job(job.id).status.active

    if context.wait(settled, context.timings.answer) and is_captured(job, tables, context):
        return []
    now = catalog.job(job.id)
    if now.status is Status.FAILED and now.started is None:
        undo(job, context)
        code = Code.stored(now.error_code) or Code.SOURCE_NOT_SET_UP
        raise ChangefeedError(code, now.error or now.reason, hint=now.hint or "")
    if not now.status.active:
        return []
    error = catalog.source_state(job.source).error
    why = f": {error}" if error else ""
    late = f"the source does not send the tables yet{why}"
    if plan.start is not None:
        undo(job, context)
        raise ChangefeedError(
            Code.TIMED_OUT,
            late,
            detail="without an initial scan the feed would miss changes",
            hint="look at the source and try again.",
        )
    return [f"{late}; the feed begins when it does"]


def source_waits(job: Job, context: Context) -> bool:
    """The source waits for another client's transaction or lock, which may take long."""
    return context.catalog.source_state(job.source).error_code == Code.SOURCE_BUSY


def is_captured(job: Job, tables: Mapping[TableName, int], context: Context) -> bool:
    """The source sends the tables: these, not others of their names."""
    captured = context.catalog.captured_table_ids(job.source)
    return all(
        table in captured and (0 in (table_id, captured[table]) or captured[table] == table_id)
        for table, table_id in tables.items()
    )


def _texts(rows: Iterator[ClientRow], afterwards: Callable[[], object]) -> Iterator[StreamRow]:
    """The rows of a sinkless feed as text.

    Closing this closes the feed, then calls ``afterwards``: where it was the last feed of its
    source, nothing of ours may stay behind and hold the source's log.
    """
    try:
        for table, key, value, op in rows:
            yield table, _decoded(key), _decoded(value), op
    finally:
        close: Callable[[], None] | None = getattr(rows, "close", None)
        if close is not None:
            close()
        afterwards()


def _decoded(data: bytes | None) -> str | None:
    return None if data is None else data.decode(errors="backslashreplace")


@handles(nodes.CreateDataset)
def create_dataset(statement: nodes.CreateDataset, context: Context) -> Result:
    """CREATE CHANGEFEED FOR DATASET."""
    known = context.catalog.find_job(statement.name) if statement.name else None
    if statement.or_replace and replaced(statement, context) is not None:
        return create(datasets.replacing(statement, context), context)
    if known is not None and statement.if_not_exists:
        return create(nodes.CreateChangefeed((), known.name, if_not_exists=True), context)
    if known is not None:
        raise ChangefeedError(
            Code.NAME_TAKEN,
            f'changefeed "{known.name}" already exists',
            span=to_span(statement.name_span),
        )
    made = datasets.translate(statement, context)
    datasets.check_tables(made, statement.options, context)
    before = datasets.keep_connection(made, context)
    try:
        return create(made.statement, context)
    except BaseException:
        datasets.restore_connection(made, before, context)
        raise


@handles(nodes.CreateCdc)
def create_cdc(statement: nodes.CreateCdc, context: Context) -> Result:
    """YugabyteDB's CREATE CDC."""
    return create(cdc.translate(statement, context.text), context)
