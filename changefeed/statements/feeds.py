"""Making, altering, pausing, resuming and dropping feeds.

A statement changes the job table; the node does the rest. Where a node runs, the statement
waits (not forever) until what it asked for is so; where none runs, it does what can be done
without one, and says what waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from changefeed.attachments import capture_tables, release
from changefeed.catalog import DesiredStatus, Job, SourceState, Status
from changefeed.core.errors import LOG_LOST, ChangefeedError, Code, raise_all
from changefeed.core.schema import TableName
from changefeed.options import to_span
from changefeed.plan import cdc
from changefeed.plan.alter import plan_alter
from changefeed.plan.build import check_create, plan_create
from changefeed.plan.check import COLUMNS as CHECK_COLUMNS
from changefeed.plan.check import problem_rows
from changefeed.plan.explain import COLUMNS as EXPLAIN_COLUMNS
from changefeed.plan.explain import explain_rows
from changefeed.plan.names import choose_source
from changefeed.plan.stages import FeedPlan, TableStage
from changefeed.sources.base import Watch
from changefeed.statements import brief, datasets
from changefeed.statements.context import Context, Result
from changefeed.statements.values import Cell
from grammar import nodes

#: A CREATE gives a NOTICE each for this many topics.
SHOWN_TOPICS = 20

FEED_COLUMNS = ("job_id", "name")
STATUS_COLUMNS = ("job_id", "name", "status")


# ------------------------------------------------------------------------------- CREATE


def create(statement: nodes.CreateChangefeed, context: Context) -> Result:
    """CREATE CHANGEFEED: plan, store, and wait until the source sends the tables."""
    existing = context.catalog.find_job(statement.name) if statement.name else None
    if existing is not None and statement.if_not_exists:
        notice = f'changefeed "{existing.name}" already exists, skipping'
        return Result(
            "rows",
            FEED_COLUMNS,
            [(existing.id, existing.name)],
            [notice],
            job_id=existing.id,
            name=existing.name,
            tag="CREATE CHANGEFEED",
        )
    plan = plan_create(statement, context.surroundings(making=True))
    warnings = _source_warnings(plan.source.source, plan.tables, context, server=plan.source.fresh)
    if plan.sinkless:
        rows = context.host.start_sinkless(plan)
        return Result(
            "stream",
            ("table", "key", "value"),
            notices=[*plan.notices, *warnings],
            stream=_texts(rows, lambda: _leave(plan.source.source, context)),
            tag="CREATE CHANGEFEED",
        )
    job, late = _store(plan, statement, context)
    return Result(
        "rows",
        FEED_COLUMNS,
        [(job.id, job.name)],
        [
            *plan.notices,
            *warnings,
            *_topic_notices(plan.sink.topics),
            *late,
            *_no_node(context),
        ],
        job_id=job.id,
        name=job.name,
        tag="CREATE CHANGEFEED",
    )


def _store(
    plan: FeedPlan, statement: nodes.CreateChangefeed, context: Context
) -> tuple[Job, list[str]]:
    catalog = context.catalog
    try:
        # Before anything is made at the source: a node would remove what no job needs.
        job = catalog.create_job(plan.spec())
    except ChangefeedError as error:
        error.span = error.span or to_span(statement.name_span)
        raise
    if not context.host.node_running() and plan.start is not None:
        # Nobody will make the source send them soon, and this feed owes every change from now on.
        try:
            _prepare_here(plan, context)
        except BaseException:
            _undo(job, context)
            forget_source(job.source, context)
            raise
    context.host.wake()
    notices = _await_capture(job, plan, context) if context.host.node_running() else []
    return job, notices


def _prepare_here(plan: FeedPlan, context: Context) -> None:
    """Make the source send the tables without a node.

    Raises:
        ChangefeedError: the source refuses, be it one of the tables.
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
        captured = _captured(job, tables, context)
        return captured or _source_waits(job, context) or not catalog.job(job.id).status.active

    if context.wait(settled, context.timings.answer) and _captured(job, tables, context):
        return []
    now = catalog.job(job.id)
    if now.status is Status.FAILED and now.started is None:
        _undo(job, context)
        code = Code.stored(now.error_code) or Code.SOURCE_NOT_SET_UP
        raise ChangefeedError(code, now.error or now.reason, hint=now.hint or "")
    if not now.status.active:
        return []
    error = catalog.source_state(job.source).error
    why = f": {error}" if error else ""
    late = f"the source does not send the tables yet{why}"
    if plan.start is not None:
        _undo(job, context)
        raise ChangefeedError(
            "CF1304",
            late,
            detail="without an initial scan the feed would miss changes",
            hint="look at the source and try again.",
        )
    return [f"{late}; the feed begins when it does"]


def _source_waits(job: Job, context: Context) -> bool:
    """The source waits for a transaction or a lock of somebody else: that may take long."""
    return context.catalog.source_state(job.source).error_code == Code.SOURCE_BUSY


def _captured(job: Job, tables: Mapping[TableName, int], context: Context) -> bool:
    """The source sends the tables: these, not others of their names."""
    captured = context.catalog.captured_table_ids(job.source)
    return all(
        table in captured and (0 in (table_id, captured[table]) or captured[table] == table_id)
        for table, table_id in tables.items()
    )


def _undo(job: Job, context: Context) -> None:
    """A statement that failed leaves no job; the node stops what it began."""
    context.catalog.request(job.id, DesiredStatus.DROPPED)
    context.host.wake()
    for _ in _until(job, context, _drop_here, "drop", lambda now: now.status is Status.DROPPED):
        context.catalog.delete_job(job.id)


def _topic_notices(topics: tuple[str, ...]) -> Iterator[str]:
    for topic in topics[:SHOWN_TOPICS]:
        yield f"changefeed will emit to topic {topic}"
    if len(topics) > SHOWN_TOPICS:
        yield f"changefeed will emit to {len(topics) - SHOWN_TOPICS} topics more"


def _no_node(context: Context) -> list[str]:
    if context.host.node_running():
        return []
    return ["no node runs for this state: the feed waits for one (changefeed start)"]


def _texts(
    rows: Iterator[tuple[str | None, bytes | None, bytes | None]], afterwards: Callable[[], object]
) -> Iterator[tuple[str | None, str | None, str | None]]:
    """The rows of a sinkless feed as text.

    Closing this closes the feed, then calls ``afterwards``: where it was the last feed of its
    source, nothing of ours may stay behind and hold the source's log.
    """
    try:
        for table, key, value in rows:
            yield table, _decoded(key), _decoded(value)
    finally:
        close: Callable[[], None] | None = getattr(rows, "close", None)
        if close is not None:
            close()
        afterwards()


def _decoded(data: bytes | None) -> str | None:
    return None if data is None else data.decode(errors="backslashreplace")


def create_dataset(statement: nodes.CreateDataset, context: Context) -> Result:
    """CREATE CHANGEFEED FOR DATASET."""
    known = context.catalog.find_job(statement.name) if statement.name else None
    if known is not None and statement.if_not_exists:
        return create(nodes.CreateChangefeed((), known.name, if_not_exists=True), context)
    if known is not None:
        raise ChangefeedError(
            "CF1102",
            f'changefeed "{known.name}" already exists',
            span=to_span(statement.name_span),
        )
    made = datasets.translate(statement, context)
    before = datasets.keep_connection(made, context)
    try:
        return create(made.statement, context)
    except BaseException:
        datasets.restore_connection(made, before, context)
        raise


def create_cdc(statement: nodes.CreateCdc, context: Context) -> Result:
    """YugabyteDB's CREATE CDC."""
    return create(cdc.translate(statement, context.text), context)


def drop_cdc(statement: nodes.DropCdc, context: Context) -> Result:
    """YugabyteDB's DROP CDC."""
    ref = nodes.FeedRef(name=cdc.feed_name(statement.table), span=statement.table.span)
    if context.catalog.find_job(ref.name or "") is None:
        table = ".".join(statement.table.parts)
        raise ChangefeedError(
            "CF1101",
            f"there is no CDC for {table}",
            hint="SHOW CHANGEFEEDS lists the feeds; DROP CHANGEFEED drops those of other names.",
            span=to_span(statement.table.span),
        )
    return drop(nodes.DropChangefeed((ref,)), context)


# ---------------------------------------------------------------------- EXPLAIN, VALIDATE


Made = nodes.CreateChangefeed | nodes.CreateDataset | nodes.CreateCdc


def _plain(
    statement: Made, context: Context
) -> tuple[nodes.CreateChangefeed, datasets.DatasetPlan | None]:
    """The statement as an ordinary one, and the dataset that it defines."""
    if isinstance(statement, nodes.CreateDataset):
        made = datasets.translate(statement, context)
        return made.statement, made
    if isinstance(statement, nodes.CreateCdc):
        return cdc.translate(statement, context.text), None
    return statement, None


def explain(statement: nodes.Explain, context: Context) -> Result:
    """EXPLAIN CREATE CHANGEFEED: the stages; creates nothing."""
    plain, dataset = _plain(statement.statement, context)
    given = None if dataset is None else dataset.connection
    plan = plan_create(plain, replace(context.surroundings(), given=given))
    rows: list[tuple[Cell, ...]] = [*explain_rows(plan)]
    if dataset is not None:
        rows[:0] = datasets.explained(dataset.definition)
    return Result("rows", EXPLAIN_COLUMNS, rows, list(plan.notices))


def validate(statement: nodes.Validate, context: Context) -> Result:
    """VALIDATE CREATE CHANGEFEED: every problem as a row; creates nothing."""
    rows: list[tuple[Cell, ...]] = []
    try:
        plain, dataset = _plain(statement.statement, context)
    except ChangefeedError as error:
        rows += problem_rows(
            None, getattr(error, "problems", [error]), (), context.text, statement.statement
        )
        return _checked(rows, error)
    given = None if dataset is None else dataset.connection
    around = replace(context.surroundings(probing=True), given=given)
    plan, problems = check_create(plain, around)
    warnings = _source_warnings(plan.source.source, plan.tables, context) if plan else []
    rows += problem_rows(plan, problems, warnings, context.text, plain, _read_from(plain, context))
    return _checked(rows, problems[0] if problems else None)


def _checked(rows: list[tuple[Cell, ...]], failure: ChangefeedError | None) -> Result:
    shown = brief.checks(CHECK_COLUMNS, rows)
    return Result("rows", CHECK_COLUMNS, rows, failure=failure, brief=shown)


def _read_from(statement: nodes.CreateChangefeed, context: Context) -> str:
    """The connection of a statement; empty where it is one of its problems."""
    try:
        return choose_source(
            context.catalog,
            statement.targets,
            statement.source,
            statement.source_span,
            context.session.source,
        ).name
    except ChangefeedError:
        return ""


def _source_warnings(
    name: str, stages: Sequence[TableStage], context: Context, *, server: bool = True
) -> list[str]:
    """What the source finds worth a word; not every kind of source has such a check.

    ``server`` is false where what it says of itself was said before, with its first feed.
    """
    source = context.source(name)
    tables = [stage.schema.table for stage in stages]
    words = source.warnings([Watch(table.name, table.schema) for table in tables])
    said = set() if server else set(source.warnings())
    return [word for word in words if word not in said]


# ------------------------------------------------------------------------ ALTER, RENAME


def alter(statement: nodes.AlterChangefeed, context: Context) -> Result:
    """ALTER CHANGEFEED: all actions or none, while the feed runs or is paused."""
    job = context.job(statement.feed)
    plan = plan_alter(statement, job, context.surroundings(making=True))
    warnings = _source_warnings(job.source, plan.add, context, server=False)
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
        rescan=plan.rescan,
        renew_log=log_is_lost,
        generation=job.generation,
    )
    rescans = _others_of_the_log(job, context) if log_is_lost else []
    if plan.rescan:
        # A feed that failed goes on with its RESCAN.
        rescans += _go_on(job, context)
    context.host.wake()
    late: list[str] = []
    if plan.add and altered.status.active and context.host.node_running():
        added = {stage.schema.table: stage.schema.table_id for stage in plan.add}

        def settled() -> bool:
            return _captured(job, added, context) or _source_waits(job, context)

        context.wait(settled, context.timings.answer)
        if not _captured(job, added, context):
            error = context.catalog.source_state(job.source).error
            why = f": {error}" if error else ""
            late.append(f"the source does not send the added tables yet{why}")
    topics = tuple(dict.fromkeys([*(s.progress.topic for s in plan.add), *plan.topics.values()]))
    return Result(
        "rows",
        ("job_id", "job_description"),
        [(altered.id, altered.statement)],
        [*plan.notices, *rescans, *warnings, *_topic_notices(topics), *late],
        job_id=altered.id,
        name=altered.name,
        tag="ALTER CHANGEFEED",
    )


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


def _go_on(job: Job, context: Context) -> list[str]:
    """Let a feed that failed go on; say where one that stands still does not."""
    if job.status is Status.FAILED and job.wanted is DesiredStatus.RUNNING:
        context.catalog.transition(job.id, Status.PENDING, reason="is to be rescanned")
    elif job.status is Status.PAUSED or job.wanted is DesiredStatus.PAUSED:
        return [f'changefeed "{job.name}" is paused: the rescan begins with RESUME']
    return _no_node(context)


def rename(statement: nodes.RenameChangefeed, context: Context) -> Result:
    """ALTER CHANGEFEED f RENAME TO g."""
    job = context.job(statement.feed)
    try:
        renamed = context.catalog.rename_job(job.id, statement.new_name)
    except ChangefeedError as error:
        error.span = error.span or to_span(statement.name_span)
        raise
    return Result("rows", FEED_COLUMNS, [(renamed.id, renamed.name)], tag="ALTER CHANGEFEED")


# --------------------------------------------------------------------------- PAUSE, RESUME


def pause(statement: nodes.PauseChangefeed, context: Context) -> Result:
    """PAUSE: stop delivery, keep the place. ALL means those that are under way."""
    jobs = context.jobs(statement.feeds)
    if not statement.feeds:
        jobs = [job for job in jobs if job.status.active]
    notices = []
    for job in jobs:
        if job.status in (Status.SUCCEEDED, Status.FAILED, Status.DROPPED):
            raise _wrong_state(job, "paused", statement.feeds)
    for job in jobs:
        if job.status is Status.PAUSED and job.wanted is DesiredStatus.PAUSED:
            notices.append(f'changefeed "{job.name}" is paused already')
        context.catalog.request(job.id, DesiredStatus.PAUSED)
    context.host.wake()
    for job in jobs:
        notices += _until(job, context, _pause_here, "pause", lambda now: not now.status.active)
    return _statuses(jobs, notices, context, "PAUSE")


def _pause_here(job: Job, context: Context) -> None:
    now = context.catalog.job(job.id)
    if now.status.active:
        context.catalog.transition(job.id, Status.PAUSED, reason="paused by the user")


def resume(statement: nodes.ResumeChangefeed, context: Context) -> Result:
    """RESUME: go on from where it stopped; failed tables of a running feed try again."""
    jobs = context.jobs(statement.feeds)
    if not statement.feeds:
        jobs = [job for job in jobs if job.status in (Status.PAUSED, Status.FAILED)]
    for job in jobs:
        if not _can_resume(job, context):
            raise _not_paused(job, statement.feeds, context)
    for job in jobs:
        _resume_one(job, context)
    context.host.wake()
    notices: list[str] = []
    if context.host.node_running():
        for job in jobs:
            # A feed that only retries tables is under way already.
            context.wait(partial(_taken_up, job, context), context.timings.resume)
    elif jobs:
        notices += _no_node(context)
    return _statuses(jobs, notices, context, "RESUME")


def _can_resume(job: Job, context: Context) -> bool:
    """It stands still, is about to, or has a table that does."""
    if job.status.finished:
        return False
    if not job.status.active or job.wanted is not DesiredStatus.RUNNING:
        return True
    return any(table.error is not None for table in context.catalog.tables(job.id))


def _taken_up(job: Job, context: Context) -> bool:
    return context.catalog.job(job.id).status is not Status.PENDING


def _resume_one(job: Job, context: Context) -> None:
    catalog = context.catalog
    catalog.retry_tables(job.id)
    # First what is wanted: a node that saw the job pending would pause it again.
    catalog.request(job.id, DesiredStatus.RUNNING)
    if job.status in (Status.PAUSED, Status.FAILED):
        catalog.transition(job.id, Status.PENDING, reason="resumed, waits for a node")


def _span_of(job: Job, refs: tuple[nodes.FeedRef, ...]) -> nodes.Span | None:
    return next((r.span for r in refs if r.name == job.name or r.job_id == job.id), None)


def _wrong_state(job: Job, what: str, refs: tuple[nodes.FeedRef, ...]) -> ChangefeedError:
    return ChangefeedError(
        "CF1301",
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
    return ChangefeedError(
        "CF1301",
        # As SHOW CHANGEFEEDS calls it: a feed that no node runs is stopped.
        f'changefeed "{job.name}" is not paused: it is {context.health(job).status}',
        hint=f"SHOW CHANGEFEED {job.name} says more.",
        span=to_span(_span_of(job, refs)),
    )


# ----------------------------------------------------------------------------------- DROP


def drop(statement: nodes.DropChangefeed, context: Context) -> Result:
    """DROP: end feeds for good; with its last feed, what we hold at a source goes too."""
    refs = statement.feeds
    notices = []
    if statement.if_exists:
        known = [ref for ref in refs if context.catalog.find_job(_key(ref)) is not None]
        notices += [
            f'changefeed "{_key(ref)}" does not exist, skipping' for ref in refs if ref not in known
        ]
        refs = tuple(known)
        if not refs:
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
        notices += _leave(source, context)
    return _statuses(jobs, notices, context, "DROP")


def _key(ref: nodes.FeedRef) -> str | int:
    if ref.name is not None:
        return ref.name
    return -1 if ref.job_id is None else ref.job_id


def _drop_here(job: Job, context: Context) -> None:
    context.catalog.delete_job(job.id)


def _leave(name: str, context: Context) -> list[str]:
    """:func:`forget_source`; with it goes the connection that FOR DATASET made."""
    notices = forget_source(name, context)
    if not notices:
        datasets.forget_connection(name, context)
    return notices


def forget_source(name: str, context: Context) -> list[str]:
    """Once no feed needs a source, nothing of ours stays there; a node does it by itself."""
    catalog = context.catalog

    def gone() -> bool:
        state = catalog.source_state(name)
        return not state.updated or bool(catalog.source_jobs(name))

    if context.host.node_running():
        if context.wait(gone, context.timings.answer):
            return []
        return [_left_behind(catalog.source_state(name))]
    if gone():
        return []
    state = catalog.source_state(name)
    try:
        release(catalog, context.source(name))
    except ChangefeedError as error:
        catalog.save_source_state(name, error=error.message, error_code=error.code.number)
        return [f"{_left_behind(state)}: {error.message}"]
    except OSError as error:
        return [f"cannot remove the change log of {name}: {error.strerror}"]
    return []


def _left_behind(state: SourceState) -> str:
    return (
        f"source {state.name} still keeps its log for {state.holds}; "
        "the next node removes it as soon as it can reach the source"
    )


# ------------------------------------------------------------------------------- together


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
