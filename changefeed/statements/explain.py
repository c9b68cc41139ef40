"""EXPLAIN of a CREATE, VALIDATE of a CREATE or ALTER: nothing is made or changed."""

from __future__ import annotations

from dataclasses import replace

from changefeed.core.errors import ChangefeedError, Problems
from changefeed.plan import cdc
from changefeed.plan.alter import plan_alter
from changefeed.plan.build import check_create, plan_create
from changefeed.plan.check import COLUMNS as CHECK_COLUMNS
from changefeed.plan.check import problem_rows
from changefeed.plan.explain import COLUMNS as EXPLAIN_COLUMNS
from changefeed.plan.explain import explain_rows
from changefeed.plan.names import choose_source
from changefeed.statements import brief, datasets
from changefeed.statements.context import Context, Result
from changefeed.statements.notices import source_warnings
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
    """VALIDATE: every problem of a statement as a row; nothing is made or changed."""
    asked = statement.statement
    if isinstance(asked, nodes.AlterChangefeed):
        return _validate_alter(asked, context)
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
    warnings = (
        source_warnings(plan.source.source, plan.tables, context)
        if plan is not None and dataset is None
        else []
    )
    written = plain if dataset is None else asked
    read_from = _read_from(plain, context)
    rows += problem_rows(plan, problems, warnings, context.text, written, read_from)
    return _checked(rows, problems[0] if problems else None)


def _validate_alter(asked: nodes.AlterChangefeed, context: Context) -> Result:
    """The same of ALTER CHANGEFEED."""
    rows: list[tuple[Cell, ...]] = []
    try:
        job = context.job(asked.feed)
        plan = plan_alter(asked, job, context.surroundings(probing=True))
        warnings = source_warnings(job.source, plan.add, context, server=False)
    except ChangefeedError as error:
        rows += problem_rows(None, _problems(error), (), context.text, asked)
        return _checked(rows, error)
    rows.append(("ok", "", "", "", f"{job.name} can be altered", ""))
    rows += problem_rows(None, (), [*plan.notices, *warnings], context.text, asked)
    return _checked(rows, None)


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
            context.session.source,
        ).name
    except ChangefeedError:
        return ""
