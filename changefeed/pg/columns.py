"""The columns of what statements answer, known before they run: a client may ask for them first,
and a statement that changes something must not run for that."""

from __future__ import annotations

from collections.abc import Sequence

from changefeed.plan.check import COLUMNS as CHECK_COLUMNS
from changefeed.plan.stages import EXPLAIN_COLUMNS
from changefeed.statements import (
    alter,
    connections,
    control,
    create,
    dead_letters,
    functions,
    grants,
    lineage,
    listing,
    measure,
    pause,
    schedules,
    show,
    skip,
    spark_jobs,
    sync,
    users,
    verify,
)
from grammar import nodes

#: Rows of a feed without a sink.
STREAM = ("table", "key", "value")

_COLUMNS: dict[type[nodes.Statement], Sequence[str]] = {
    nodes.AlterChangefeed: alter.ALTERED_COLUMNS,
    nodes.CreateCdc: create.FEED_COLUMNS,
    nodes.CreateSchedule: schedules.MADE_COLUMNS,
    nodes.CreateUser: users.TOKEN_COLUMNS,
    nodes.DiscardDeadLetters: dead_letters.STATEMENT_COLUMNS,
    nodes.DropChangefeed: control.STATUS_COLUMNS,
    nodes.ExplainAnalyze: measure.COLUMNS,
    nodes.ChangeOwner: create.FEED_COLUMNS,
    nodes.PauseChangefeed: control.STATUS_COLUMNS,
    nodes.PauseTables: pause.COLUMNS,
    nodes.RenameChangefeed: create.FEED_COLUMNS,
    nodes.ResumeChangefeed: control.STATUS_COLUMNS,
    nodes.ResumeTables: pause.COLUMNS,
    nodes.RetryDeadLetters: dead_letters.STATEMENT_COLUMNS,
    nodes.SkipTransaction: skip.COLUMNS,
    nodes.Sync: sync.SYNC_COLUMNS,
    nodes.SyncAll: sync.SYNC_COLUMNS,
    nodes.Verify: verify.COLUMNS,
    # Inquiries that ask a server are not run twice.
    nodes.CheckConnection: CHECK_COLUMNS,
    nodes.Explain: EXPLAIN_COLUMNS,
    nodes.ShowAudit: users.AUDIT_COLUMNS,
    nodes.ShowChangefeeds: listing.COLUMNS,
    nodes.ShowConnections: connections.CONNECTION_COLUMNS,
    nodes.ShowFunctions: functions.COLUMNS,
    nodes.ShowCreateAll: ("kind", *show.CREATE_COLUMNS),
    nodes.ShowCreateChangefeed: show.CREATE_COLUMNS,
    nodes.ShowCreateConnection: show.CREATE_COLUMNS,
    nodes.ShowCreateSchedule: show.CREATE_COLUMNS,
    nodes.ShowGrants: grants.COLUMNS,
    nodes.ShowJob: show.JOB_COLUMNS,
    nodes.ShowJobs: show.JOB_COLUMNS,
    nodes.ShowNodes: listing.NODE_COLUMNS,
    nodes.ShowSchedule: schedules.DETAIL_COLUMNS,
    nodes.ShowSchedules: schedules.COLUMNS,
    nodes.ShowTables: connections.TABLE_COLUMNS,
    nodes.ShowUsers: users.COLUMNS,
    nodes.Validate: CHECK_COLUMNS,
}


#: Of SHOW CHANGEFEED, whose feed may be a parameter.
_ASPECTS: dict[str | None, Sequence[str]] = {
    None: show.DETAIL_COLUMNS,
    "tables": show.TABLE_COLUMNS,
    "errors": show.ERROR_COLUMNS,
    "events": show.EVENT_COLUMNS,
    "dead_letters": dead_letters.COLUMNS,
    "jobs": spark_jobs.COLUMNS,
    "lineage": lineage.COLUMNS,
}


def columns_of(statement: nodes.Statement) -> Sequence[str] | None:
    """Names of the columns; none where the statement answers no rows. None: an inquiry that has to
    be run to know them."""
    match statement:
        case nodes.ShowWhere(statement=inner):
            return columns_of(inner)
        case nodes.ShowChangefeed(aspect=aspect):
            return _ASPECTS[aspect]
        case nodes.CreateChangefeed() | nodes.CreateDataset():
            return STREAM if statement.sink is None else create.FEED_COLUMNS
        case nodes.AlterUser(options=options):
            new = any(option.name == "token" for option in options)
            return users.TOKEN_COLUMNS if new else ()
    known = _COLUMNS.get(type(statement))
    return () if known is None and not isinstance(statement, nodes.Inquiry) else known
