"""Who may run which statement: one row a class of statements, decided on what was parsed."""

from __future__ import annotations

from enum import StrEnum

from changefeed.core.errors import ChangefeedError, Code
from grammar import nodes


class Role(StrEnum):
    """What a user of the HTTP API may do; each has the rights of those before it."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"

    def covers(self, least: Role) -> bool:
        """Whether it has the rights of ``least``."""
        every = list(Role)
        return every.index(self) >= every.index(least)


_V, _O, _A = Role.VIEWER, Role.OPERATOR, Role.ADMIN

#: The least role that may run a statement.
LEAST: dict[type[nodes.Statement], Role] = {
    nodes.AlterChangefeed: _A,
    nodes.AlterConnection: _A,
    nodes.AlterUser: _A,
    nodes.CheckConnection: _O,
    nodes.CreateCdc: _A,
    nodes.CreateChangefeed: _A,
    nodes.CreateConnection: _A,
    nodes.CreateDataset: _A,
    nodes.CreateFunction: _A,
    nodes.CreateSchedule: _A,
    nodes.CreateUser: _A,
    nodes.DiscardDeadLetters: _A,
    nodes.DropCdc: _A,
    nodes.DropChangefeed: _A,
    nodes.DropConnection: _A,
    nodes.DropFunction: _A,
    nodes.DropSchedule: _A,
    nodes.DropUser: _A,
    nodes.Explain: _O,
    nodes.PauseChangefeed: _O,
    nodes.PauseSchedule: _O,
    nodes.PauseTables: _O,
    nodes.RenameChangefeed: _A,
    nodes.ResumeChangefeed: _O,
    nodes.ResumeSchedule: _O,
    nodes.ResumeTables: _O,
    nodes.RetryDeadLetters: _O,
    nodes.AlterStateRotateKey: _A,
    nodes.ShowAudit: _A,
    nodes.SkipTransaction: _A,
    nodes.ShowCdc: _V,
    nodes.ShowChangefeed: _V,
    nodes.ShowChangefeeds: _V,
    nodes.ShowConnections: _V,
    nodes.ShowCreateAll: _V,
    nodes.ShowCreateChangefeed: _V,
    nodes.ShowCreateConnection: _V,
    nodes.ShowCreateSchedule: _V,
    nodes.ShowFunctions: _V,
    nodes.ShowJob: _V,
    nodes.ShowJobs: _V,
    nodes.ShowNodes: _V,
    nodes.ShowSchedule: _V,
    nodes.ShowSchedules: _V,
    nodes.ShowSpark: _V,
    nodes.ShowTables: _V,
    nodes.ShowUsers: _A,
    nodes.ShowWhere: _V,
    nodes.Sync: _O,
    nodes.SyncAll: _O,
    nodes.Use: _V,
    nodes.Validate: _O,
    nodes.Verify: _O,
}


def least(statement: nodes.Statement) -> Role:
    """The least role that may run this statement.

    A RESCAN is an ALTER CHANGEFEED that changes nothing of the feed. EXPLAIN and VALIDATE reach the
    same servers as the statement that they look at, and need its role.
    """
    match statement:
        case nodes.AlterChangefeed(actions=actions):
            only = all(isinstance(action, nodes.AlterRescan) for action in actions)
            return _O if only else LEAST[type(statement)]
        case nodes.Explain(statement=inner) | nodes.Validate(statement=inner):
            return least(inner) if isinstance(inner, nodes.Statement) else LEAST[type(statement)]
        case nodes.ShowWhere(statement=inner):
            return least(inner)
    return LEAST[type(statement)]


def require_role(role: Role | None, who: str, statement: nodes.Statement) -> None:
    """Refuse a statement that the role does not cover. None covers everything: the client owns the
    state.

    Raises:
        ChangefeedError: CF1403.
    """
    needed = least(statement)
    if role is not None and not role.covers(needed):
        raise ChangefeedError(
            Code.RIGHT_MISSING,
            f"the statement needs the role {needed}, and {who} has the role {role}",
            hint=f"an admin can give another role: ALTER USER {who} WITH role = '{needed}'.",
        )
