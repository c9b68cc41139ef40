"""EXPLAIN of a CREATE, VALIDATE of a CREATE, an ALTER or a feed: nothing is made or changed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from changefeed.attachments import attachment
from changefeed.catalog import Job, Schedule, Status, TableState
from changefeed.core.errors import ChangefeedError, Code, Problems, raise_all
from changefeed.core.figures import duration_text
from changefeed.options import GC_TTL, Options, to_span
from changefeed.plan import cdc
from changefeed.plan.alter import plan_alter
from changefeed.plan.build import check_create, check_living, distinct, plan_create
from changefeed.plan.check import COLUMNS as CHECK_COLUMNS
from changefeed.plan.check import CONNECTION, problem_rows
from changefeed.plan.context import PlanContext
from changefeed.plan.names import choose_source
from changefeed.plan.replace import replacement
from changefeed.plan.stages import EXPLAIN_COLUMNS, FeedPlan, explain_rows
from changefeed.statements import brief, datasets, schedules
from changefeed.statements.alter import changes
from changefeed.statements.context import Context, Result, handles
from changefeed.statements.create import replaced
from changefeed.statements.notices import source_warnings
from changefeed.statements.show import create_sql
from changefeed.statements.values import Cell
from grammar import nodes

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


@handles(nodes.Explain)
def explain(statement: nodes.Explain, context: Context) -> Result:
    """EXPLAIN CREATE CHANGEFEED or SCHEDULE: the stages; of an ALTER, and of CREATE OR REPLACE of
    what is there, what changes. Creates and changes nothing."""
    asked = statement.statement
    if isinstance(asked, nodes.CreateSchedule):
        return _explain_schedule(asked, context)
    if isinstance(asked, nodes.AlterChangefeed):
        return _explain_alter(asked, context)
    job = _replaced(asked, context)
    if job is not None:
        return _explain_replacement(_of_feed(asked, context), job, context)
    plain, dataset = _plain(asked, context)
    given = None if dataset is None else dataset.connection
    plan = plan_create(plain, replace(context.surroundings(), given=given))
    rows: list[tuple[Cell, ...]] = [*explain_rows(plan)]
    if dataset is not None:
        rows[:0] = datasets.explained(dataset.definition)
    return Result("rows", EXPLAIN_COLUMNS, rows, list(plan.notices))


def _explain_schedule(statement: nodes.CreateSchedule, context: Context) -> Result:
    """When runs are, and the feed of each; of a schedule that is replaced what changes."""
    there = schedules.schedule_there(statement, context)
    if there is not None and statement.or_replace:
        planned, plan, notices = schedules.plan_schedule(statement, context, there)
        rows: list[tuple[Cell, ...]] = [*schedules.differences(there, planned)]
        if rows:
            return Result("rows", EXPLAIN_COLUMNS, rows, [*plan.notices, *notices])
        same = f'schedule "{there.name}" is as the statement says'
        return Result("rows", EXPLAIN_COLUMNS, [("nothing", same)])
    raise_all(_taken(statement, there))
    planned, plan, notices = schedules.plan_schedule(statement, context)
    runs = schedules.next_runs(planned.recurring, planned.due, context.clock.now().wall)
    rows = [("schedule", runs), *explain_rows(plan)]
    return Result("rows", EXPLAIN_COLUMNS, rows, [*plan.notices, *notices])


def _taken(statement: nodes.CreateSchedule, there: Schedule | None) -> list[ChangefeedError]:
    """CF1102 if a new schedule has the name of another one."""
    if there is None or statement.or_replace or statement.if_not_exists:
        return []
    message, span = f'schedule "{there.name}" already exists', to_span(statement.name_span)
    return [ChangefeedError(Code.NAME_TAKEN, message, span=span)]


def _replaced(statement: Made, context: Context) -> Job | None:
    """The feed that is there, of CREATE OR REPLACE."""
    if isinstance(statement, nodes.CreateCdc) or not statement.or_replace:
        return None
    return replaced(statement, context)


def _of_feed(statement: Made, context: Context) -> nodes.CreateChangefeed:
    """A CREATE OR REPLACE of a feed that is there, without what defines a dataset."""
    if isinstance(statement, nodes.CreateDataset):
        return datasets.replacing(statement, context)
    return _plain(statement, context)[0]


def _explain_replacement(statement: nodes.CreateChangefeed, job: Job, context: Context) -> Result:
    """What CREATE OR REPLACE would change, one row for each part."""
    around = context.surroundings(making=True, of=job)
    alteration = replacement(statement, job, around)
    if alteration is None:
        return _as_it_is(job)
    return _alteration(alteration, job, around)


def _explain_alter(asked: nodes.AlterChangefeed, context: Context) -> Result:
    known, skipped = context.existing((asked.feed,), asked.if_exists)
    if not known:
        return Result("rows", EXPLAIN_COLUMNS, [("nothing", skipped[0])])
    job = context.job(asked.feed)
    return _alteration(asked, job, context.surroundings(of=job))


def _alteration(alteration: nodes.AlterChangefeed, job: Job, around: PlanContext) -> Result:
    """A row for each part of an ALTER."""
    plan = plan_alter(alteration, job, around)
    rows: list[tuple[Cell, ...]] = []
    rows += [("drop", target) for target in job.targets if target not in plan.targets]
    rows += [("add", target) for target in plan.targets if target not in job.targets]
    rows += [("change", text) for text in changes(job, plan)]
    scanned = [stage.schema.table for stage in plan.add if stage.progress.scan_wanted]
    scanned += plan.rescan
    rows += [("scan", str(table)) for table in scanned]
    rows += [("leave", str(table)) for table in plan.drop if table not in scanned]
    return Result("rows", EXPLAIN_COLUMNS, rows, list(plan.notices)) if rows else _as_it_is(job)


def _as_it_is(job: Job) -> Result:
    same = f'changefeed "{job.name}" is as the statement says'
    return Result("rows", EXPLAIN_COLUMNS, [("nothing", same)])


@handles(nodes.Validate)
def validate(statement: nodes.Validate, context: Context) -> Result:
    """VALIDATE: every problem of a statement, or of a feed that is there, as a row; nothing is made
    or changed."""
    asked = statement.statement
    if isinstance(asked, nodes.FeedRef):
        return _validate_feed(asked, context)
    if isinstance(asked, nodes.AlterChangefeed):
        return _validate_alter(asked, context)
    if isinstance(asked, nodes.CreateSchedule):
        return _validate_schedule(asked, context)
    job = _replaced(asked, context)
    if job is not None:
        return _validate_replacement(asked, job, context)
    rows: list[tuple[Cell, ...]] = []
    try:
        plain, dataset = _plain(asked, context)
    except ChangefeedError as error:
        rows += problem_rows(None, _problems(error), (), context.text, asked)
        return _checked(rows, error)
    given = None if dataset is None else dataset.connection
    around = replace(context.surroundings(probing=True), given=given)
    plan, problems = check_create(plain, around)
    if dataset is not None:
        try:
            datasets.check_tables(dataset, asked.options, context)
        except ChangefeedError as error:
            problems = [*problems, error]
    # A dataset's connection does not exist yet, and datasets have no warnings.
    warnings = _source_warnings(plan, context) if plan is not None and dataset is None else []
    written = plain if dataset is None else asked
    read_from = _read_from(plain, context)
    rows += problem_rows(plan, problems, warnings, context.text, written, read_from)
    return _checked(rows, problems[0] if problems else None)


def _validate_schedule(asked: nodes.CreateSchedule, context: Context) -> Result:
    """The times, and the feed of a run as one that is made by itself."""
    problems: list[ChangefeedError] = []
    runs, feed, plan = "", asked.statement, None
    try:
        there = schedules.schedule_there(asked, context)
        problems += _taken(asked, there)
        if there is not None and asked.or_replace:
            feed = schedules.with_secrets(asked, there)
    except ChangefeedError as error:
        problems.append(error)
    try:
        first, _ = schedules.times(asked, context)
        runs = schedules.next_runs(asked.recurring.text, first, context.clock.now().wall)
    except ChangefeedError as error:
        problems += _problems(error)
    try:
        feed, _ = schedules.export(feed)
        plan, found = check_create(feed, context.surroundings(probing=True))
        problems += found
    except ChangefeedError as error:
        problems.append(error)
    warnings = [] if plan is None else _source_warnings(plan, context)
    rows: list[tuple[Cell, ...]] = []
    read_from = _read_from(feed, context)
    rows += problem_rows(plan, problems, warnings, context.text, asked, read_from)
    if not problems:
        rows.insert(1, ("ok", "", "", "", runs, ""))
    return _checked(rows, problems[0] if problems else None)


def _source_warnings(plan: FeedPlan, context: Context) -> list[str]:
    tables = [stage.schema.table for stage in plan.tables]
    return source_warnings(plan.source.source, tables, context)


def _validate_alter(asked: nodes.AlterChangefeed, context: Context) -> Result:
    rows: list[tuple[Cell, ...]] = []
    known, skipped = context.existing((asked.feed,), asked.if_exists)
    if not known:
        return _checked([("ok", "", "", "", skipped[0], "")], None)
    try:
        job = context.job(asked.feed)
        plan = plan_alter(asked, job, context.surroundings(probing=True, of=job))
        added = [stage.schema.table for stage in plan.add]
        warnings = source_warnings(job.source, added, context, server=False)
    except ChangefeedError as error:
        rows += problem_rows(None, _problems(error), (), context.text, asked)
        return _checked(rows, error)
    rows.append(("ok", "", "", "", f"{job.name} can be altered", ""))
    rows += problem_rows(None, (), [*plan.notices, *warnings], context.text, asked)
    return _checked(rows, None)


def _validate_replacement(asked: Made, job: Job, context: Context) -> Result:
    try:
        feed = _of_feed(asked, context)
        alteration = replacement(feed, job, context.surroundings(probing=True, of=job))
    except ChangefeedError as error:
        rows: list[tuple[Cell, ...]] = []
        rows += problem_rows(None, _problems(error), (), context.text, asked)
        return _checked(rows, error)
    if alteration is None:
        same = f'changefeed "{job.name}" is as the statement says'
        return _checked([("ok", "", "", "", same, "")], None)
    return _validate_alter(alteration, context)


def _validate_feed(asked: nodes.FeedRef, context: Context) -> Result:
    """A feed that is there, whether it runs or not: what it failed with, its options, its tables,
    its source with the log that it keeps for the feed, and its target."""
    job = context.job(asked)
    text = create_sql(job)
    if job.status is Status.SUCCEEDED:
        raise ChangefeedError(
            Code.WRONG_JOB_STATE,
            f"job {job.id} has succeeded: it needs nothing any more",
            span=to_span(asked.span),
        )
    tables = [progress.table for progress in context.catalog.tables(job.id)]
    # Nothing is asked that the feed does not have already: its owner's rights do not matter.
    around = replace(context.surroundings(probing=True), text=text, rights=None)
    living, problems, warnings = check_living(job, around)
    kept: list[str] = []
    try:
        source = context.source(job.source)
        if context.catalog.source_state(job.source).identity:
            held = attachment(context.catalog, source)
            kept = held.headroom(context.frontier(job.source))
        warnings = [*warnings, *source_warnings(job.source, tables, context)]
    except ChangefeedError as error:
        problems.append(error)
    problems = distinct([*_failures(job, context), *problems])
    rows: list[tuple[Cell, ...]] = []
    health = context.health(job)
    if health.troubled:
        warnings.insert(0, f"{job.name} is {health.status}: {health.reason}")
    elif not problems:
        rows.append(("ok", "", "", "", f"{job.name} is {health.status}, and nothing is wrong", ""))
    rows += problem_rows(None, problems, (), text, living, job.source)
    rows += [("warning", "", "", "", warning, "") for warning in dict.fromkeys(warnings)]
    rows += [("ok", "", CONNECTION, job.source, sentence, "") for sentence in kept]
    if health.upto is not None:
        late = max(0.0, (context.clock.now().wall - health.upto.wall) / 1e9)
        ttl = Options.from_dict(job.options)[GC_TTL]
        words = f"it is {duration_text(late)} behind, and may be {duration_text(ttl)} (gc_ttl)"
        rows.append(("warning" if late > ttl / 2 else "ok", "", "", "", words, ""))
    return _checked(rows, problems[0] if problems else None)


def _failures(job: Job, context: Context) -> Iterator[ChangefeedError]:
    """What the feed, or tables of it, have failed with, or wait for."""
    if (lacking := context.catalog.hindrance(job.id)) is not None:
        yield lacking
    if job.error:
        code = Code.stored(job.error_code) or Code.INTERNAL_ERROR
        yield ChangefeedError(code, job.error, hint=job.hint or "")
    for table in context.catalog.tables(job.id):
        if table.state is TableState.FAILED:
            code = Code.stored(table.error_code) or Code.INTERNAL_ERROR
            said = f"{brief.written_name(table.table)}: {table.error}"
            yield ChangefeedError(code, said, hint=brief.with_names(table.hint, job, table))


def _problems(error: ChangefeedError) -> list[ChangefeedError]:
    return error.problems if isinstance(error, Problems) else [error]


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
            context.session.source_in(context.catalog),
        ).name
    except ChangefeedError:
        return ""
