"""EXPLAIN and VALIDATE of a CREATE: nothing is made."""

from __future__ import annotations

from dataclasses import replace

from changefeed.core.errors import ChangefeedError
from changefeed.plan import cdc
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
    if dataset is not None:
        try:
            datasets.check_tables(dataset, statement.statement.options, context)
        except ChangefeedError as error:
            problems = [*problems, error]
    # A dataset's connection does not exist yet, and datasets have no warnings.
    warnings = (
        source_warnings(plan.source.source, plan.tables, context)
        if plan is not None and dataset is None
        else []
    )
    written = plain if dataset is None else statement.statement
    read_from = _read_from(plain, context)
    rows += problem_rows(plan, problems, warnings, context.text, written, read_from)
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
