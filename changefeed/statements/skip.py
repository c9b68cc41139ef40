"""ALTER CHANGEFEED f SKIP TRANSACTION: continue after the transaction of a row that was refused."""

from __future__ import annotations

from collections.abc import Sequence

from changefeed.catalog import TableProgress, TableState
from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError, Code
from changefeed.options import to_span
from changefeed.statements.alter import go_on
from changefeed.statements.brief import written_name
from changefeed.statements.context import Context, Result, handles
from changefeed.statements.notices import not_taken_yet
from grammar import nodes

COLUMNS = ("table", "transaction")


@handles(nodes.SkipTransaction)
def skip(statement: nodes.SkipTransaction, context: Context) -> Result:
    """Only a transaction that SHOW CHANGEFEED f TABLES names, in the tables that failed at it."""
    known, skipped = context.existing((statement.feed,), statement.if_exists)
    if not known:
        return Result("done", notices=skipped, tag="ALTER CHANGEFEED")
    job = context.job(statement.feed)
    failed = [t for t in context.catalog.tables(job.id) if t.state is TableState.FAILED]
    at = next((t.refused for t in failed if str(t.refused) == statement.transaction.text), None)
    if at is None:
        raise _not_failed_at(statement, job.name, failed)
    gone = context.catalog.retry_tables(job.id, skip=at, by=context.session.user)
    notices = go_on(job, context, "delivery of what follows")
    context.host.wake()
    notices += not_taken_yet(context.catalog.job(job.id), context)
    return Result(
        "rows",
        COLUMNS,
        [(written_name(table), str(at)) for table in gone],
        notices,
        tag="ALTER CHANGEFEED",
    )


def _not_failed_at(
    statement: nodes.SkipTransaction, feed: str, failed: Sequence[TableProgress]
) -> ChangefeedError:
    """CF1301, with the transactions that can be skipped."""
    at: dict[Timestamp, list[str]] = {}
    for table in failed:
        if table.refused is not None:
            at.setdefault(table.refused, []).append(written_name(table.table))
    can = "; ".join(f"{', '.join(names)} at {one}" for one, names in at.items())
    unknown = [written_name(t.table) for t in failed if t.refused is None]
    if at:
        hint = f"its tables failed: {can}."
    elif unknown:
        hint = (
            f"{', '.join(unknown)} failed at no row of a transaction, or engine, delivery = "
            "'exactly_once' or transaction_metadata keep it from being found: see SHOW CHANGEFEED "
            f"{feed} TABLES."
        )
    else:
        hint = "no table of it has failed."
    return ChangefeedError(
        Code.WRONG_JOB_STATE,
        f'no table of changefeed "{feed}" failed at the transaction {statement.transaction.text!r}',
        hint=hint,
        span=to_span(statement.transaction.span),
    )
