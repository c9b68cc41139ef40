"""VERIFY CHANGEFEED: are source and target equal, and which rows are not?"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from changefeed.catalog import Catalog, Job
from changefeed.catalog.model import TableProgress, TableState
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.schema import TableName
from changefeed.statements.brief import written_name
from changefeed.statements.context import Context, Result, handles
from changefeed.statements.health import rows_differ
from changefeed.statements.inquiry import NodeInquiry, error_members, error_of
from changefeed.statements.sync import sync_feed
from changefeed.statements.tables import named_table, paused_error
from changefeed.statements.values import Cell
from grammar import nodes
from sinks.registry import capabilities, scheme_of

if TYPE_CHECKING:
    from changefeed.verify.table import TableOutcome
    from sinks.base import Difference

COLUMNS = ("table", "key", "difference", "source", "target")


@handles(nodes.Verify)
def verify(statement: nodes.Verify, context: Context) -> Result:
    """VERIFY CHANGEFEED f [TABLE t] [REPAIR].

    In a process without Spark a node compares what needs it: lake tables, results of CDC queries.
    Rows that differ make :attr:`Result.failure`, so that a script hears of them.

    Raises:
        ChangefeedError: CF1303 the feed cannot be verified, CF1301 it stands still, CF1101; the
            source or the sink failed; CF4003 no node runs that could compare.
    """
    # Loaded on use: it brings Arrow.
    from changefeed.verify.table import TableVerifier

    job = context.job(statement.feed)
    if context.host.spark_elsewhere and _needs_spark(job, context):
        return result_of(NodeInquiry(context.catalog).verify(statement))
    tables, paused = _tables(statement, job, context)
    if paused and not tables:
        raise paused[0]

    def delivered() -> None:
        sync_feed(nodes.Sync(statement.feed), context, but_paused=True)

    verifier = TableVerifier(
        context.catalog,
        job,
        context.source(job.source),
        delivered,
        context.host.spark_with,
        context.host.query_sessions,
        lambda _: context.require_client(),
    )
    delivered()
    outcomes, skipped = [], paused
    for table in tables:
        try:
            outcomes.append(verifier.verify(table))
        except ChangefeedError as error:
            if statement.table is not None or error.code is not Code.NOT_SUPPORTED:
                raise
            skipped.append(error)
    if skipped and not outcomes:
        # A script must not take it for a comparison that found both sides equal.
        raise skipped[0]
    notices = [f"{error.message}: it was left out" for error in skipped]
    notices += [said for outcome in outcomes for said in _said(outcome)]
    wrong = [outcome for outcome in outcomes if outcome.differences]
    left = wrong
    if statement.repair and wrong:
        ask_for_repair(context.catalog, job, wrong, by=context.session.user)
        context.host.wake()
        delivered()
        left = [again for o in wrong if (again := verifier.verify(o.table)).differences]
        notices += [f"{repaired(o)}: {after(o, left)}" for o in wrong]
    elif wrong:
        notices.append(f"VERIFY CHANGEFEED {job.name} REPAIR makes them equal")
    letters = _letters(job, context) if wrong else {}
    rows: list[tuple[Cell, ...]] = [
        (
            written_name(o.table.table),
            d.key,
            _kind(d, letters.get(o.table.table)),
            d.source,
            d.target,
        )
        for o in wrong
        for d in o.differences
    ]
    return Result(
        columns=COLUMNS,
        rows=rows,
        notices=notices,
        tag="VERIFY CHANGEFEED",
        failure=_failure(job, left, repaired=statement.repair) if left else None,
    )


def _letters(job: Job, context: Context) -> dict[TableName, dict[tuple[str, ...], int]]:
    """The last dead letter of each row, by the texts of its key."""
    found: dict[TableName, dict[tuple[str, ...], int]] = {}
    for letter in context.catalog.dead_letters(job.id):
        if not letter.keyless:
            key = tuple(map(_key_text, json.loads(letter.key)))
            found.setdefault(letter.table, {})[key] = letter.id
    return found


def _kind(difference: Difference, letters: Mapping[tuple[str, ...], int] | None) -> str:
    """``missing (dead letter 7)`` where the row was refused."""
    if letters is None or not difference.values:
        return difference.kind
    letter = letters.get(tuple(map(_key_text, difference.values)))
    return difference.kind if letter is None else f"{difference.kind} (dead letter {letter})"


def _key_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _needs_spark(job: Job, context: Context) -> bool:
    if job.is_query or job.sink_uri is None:
        return job.is_query
    scheme = scheme_of(context.catalog.resolve_uri(job.sink_uri))
    return bool(capabilities(scheme).spark_packs)


def _tables(
    statement: nodes.Verify, job: Job, context: Context
) -> tuple[list[TableProgress], list[ChangefeedError]]:
    """The tables to compare, and why others are left out: their targets are behind on purpose.

    Raises:
        ChangefeedError: CF1101; CF1301, the one that is named is paused.
    """
    tables = context.catalog.tables(job.id)
    if statement.table is not None:
        tables = [named_table(statement.table, job, tables)]
    paused = [paused_error(job, t, statement.feed) for t in tables if t.state is TableState.PAUSED]
    if statement.table is not None and paused:
        raise paused[0]
    return [t for t in tables if t.state is not TableState.PAUSED], paused


def _said(outcome: TableOutcome) -> Iterator[str]:
    count = len(outcome.differences)
    said = f"{written_name(outcome.table.table)}: {found_rows(outcome) if count else 'equal'}"
    if outcome.changing:
        said += f"; {outcome.changing} rows change too often to be compared"
    yield said
    if count and outcome.lookups:
        yield (
            f"look-up {', '.join(outcome.lookups)} was read for the comparison: a row that was "
            "delivered with another version of it differs until it is delivered again"
        )


def found_rows(outcome: TableOutcome) -> str:
    """``2 rows differ``, ``more than 1,000 rows differ``."""
    found = rows_differ(len(outcome.differences))
    return f"more than {found}" if outcome.more else found


def ask_for_repair(
    catalog: Catalog, job: Job, wrong: Sequence[TableOutcome], *, by: str = ""
) -> None:
    """Let the feed deliver rows that differ again: single ones, or all of their table; ``by`` is
    the user who asks."""
    catalog.alter_job(
        job.id,
        rescan={o.table.table: 0 for o in wrong if o.repair is None},
        repair={o.table.table: o.repair for o in wrong if o.repair is not None},
        by=by,
    )


def repaired(outcome: TableOutcome) -> str:
    """What was done about the rows that differ."""
    name, count = written_name(outcome.table.table), len(outcome.differences)
    if outcome.repair is None:
        return f"{name} was read again as a whole, because {outcome.why_rescan}"
    return f"{name}: {'1 row was' if count == 1 else f'{count} rows were'} repaired by key"


def after(outcome: TableOutcome, left: Sequence[TableOutcome]) -> str:
    """What became of rows that were repaired; ``left``: what a comparison found after it."""
    still = next((o for o in left if o.table.table == outcome.table.table), None)
    return "equal now" if still is None else f"rows that still differ: {len(still.differences)}"


def _failure(job: Job, left: list[TableOutcome], *, repaired: bool) -> ChangefeedError:
    names = ", ".join(written_name(o.table.table) for o in left)
    return ChangefeedError(
        Code.TARGET_DIFFERS,
        f'the target of changefeed "{job.name}" differs from the source in {names}',
        hint=f"ALTER CHANGEFEED {job.name} RESCAN a table reads all of its rows again."
        if repaired
        else f"VERIFY CHANGEFEED {job.name} REPAIR makes them equal.",
    )


def result_text(result: Result) -> str:
    """What VERIFY found, as an answer: the inverse of :func:`result_of`."""
    failure = None if result.failure is None else error_members(result.failure)
    return json.dumps(
        {
            "columns": result.columns,
            "rows": result.rows,
            "notices": result.notices,
            "tag": result.tag,
            "failure": failure,
        }
    )


def result_of(text: str) -> Result:
    """What VERIFY found, from an answer of :func:`result_text`."""
    data: dict[str, Any] = json.loads(text)
    return Result(
        columns=tuple(data["columns"]),
        rows=[tuple(row) for row in data["rows"]],
        notices=data["notices"],
        tag=data["tag"],
        failure=None if data["failure"] is None else error_of(data["failure"]),
    )
