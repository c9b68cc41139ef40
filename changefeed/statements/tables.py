"""The tables of a feed that a statement names, and those that are paused by themselves."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from changefeed.catalog import Job, TableProgress, TableState
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.schema import TableName
from changefeed.options import to_span
from changefeed.statements.brief import written_name
from changefeed.statements.context import Context
from grammar import nodes
from grammar.printer import name as name_sql
from grammar.spelling import did_you_mean


def named_table(
    name: nodes.QualifiedName, job: Job, tables: Sequence[TableProgress]
) -> TableProgress:
    """The one of the feed's tables that a statement names.

    Raises:
        ChangefeedError: CF1101.
    """
    parts = name.parts
    found = [
        t for t in tables if (t.table.source, t.table.schema, t.table.name)[-len(parts) :] == parts
    ]
    if len(found) == 1:
        return found[0]
    written = ".".join(parts)
    names = ", ".join(written_name(t.table) for t in (found or tables))
    near = did_you_mean(parts[-1], [t.table.name for t in tables])
    meant = f'did you mean "{near}"? ' if near else ""
    raise ChangefeedError(
        Code.NAME_UNKNOWN,
        f'table "{written}" is one of {names}'
        if found
        else f'changefeed "{job.name}" has no table "{written}"',
        hint="" if found else f"{meant}its tables are: {names}.",
        span=to_span(name.span),
    )


def paused_tables(job: Job, context: Context) -> list[TableProgress]:
    """Tables of the feed that are paused by themselves."""
    return [t for t in context.catalog.tables(job.id) if t.state is TableState.PAUSED]


def resume_sql(job: Job, paused: Sequence[TableProgress]) -> str:
    """What continues these tables."""
    names = ", ".join(written_name(t.table) for t in paused)
    return f"RESUME CHANGEFEED {name_sql(job.name)} TABLE {names}"


def scans_of_paused(job: Job, owed: Collection[TableName], context: Context) -> list[str]:
    """When the scans of tables begin that are paused."""
    paused = [table for table in paused_tables(job, context) if table.table in owed]
    return [f"the scan of what is paused begins with {resume_sql(job, paused)}"] if paused else []


def paused_error(job: Job, table: TableProgress, ref: nodes.FeedRef) -> ChangefeedError:
    """CF1301 of a statement that needs what the feed does not deliver for now."""
    return ChangefeedError(
        Code.WRONG_JOB_STATE,
        f"{written_name(table.table)} is paused",
        hint=f"{resume_sql(job, [table])} continues it.",
        span=to_span(ref.span),
    )
