"""Who may run which statement: one row a class of statements, decided on what was parsed.

A user whose role does not cover a statement may run it on feeds of the own, and make feeds if a
right was granted: what these may read and where they may write the planner decides
(:mod:`changefeed.plan.grants`).
"""

from __future__ import annotations

from enum import StrEnum

from changefeed.catalog import Catalog, Job, external_name
from changefeed.core.errors import ChangefeedError, Code
from grammar import nodes
from grammar.printer import name as name_sql


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
    nodes.ExplainAnalyze: _O,
    nodes.ChangeOwner: _A,
    nodes.Grant: _A,
    nodes.PauseChangefeed: _O,
    nodes.PauseSchedule: _O,
    nodes.PauseTables: _O,
    nodes.RenameChangefeed: _A,
    nodes.ResumeChangefeed: _O,
    nodes.ResumeSchedule: _O,
    nodes.ResumeTables: _O,
    nodes.RetryDeadLetters: _O,
    nodes.Revoke: _A,
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
    nodes.ShowGrants: _V,
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


#: What may be done with a feed by the user whose it is.
_OF_OWNERS = (
    nodes.AlterChangefeed,
    nodes.DiscardDeadLetters,
    nodes.DropChangefeed,
    nodes.ChangeOwner,
    nodes.PauseChangefeed,
    nodes.PauseTables,
    nodes.RenameChangefeed,
    nodes.ResumeChangefeed,
    nodes.ResumeTables,
    nodes.RetryDeadLetters,
    nodes.SkipTransaction,
    nodes.Sync,
    nodes.Verify,
)


#: Those that show or deliver rows: not while a right is missing.
_READING = (nodes.RetryDeadLetters, nodes.SkipTransaction, nodes.Verify)


def least(statement: nodes.Statement) -> Role:
    """The least role that may run this statement on any feed and connection.

    A RESCAN is an ALTER CHANGEFEED that changes nothing of the feed. EXPLAIN and VALIDATE reach the
    same servers as the statement that they look at, and need its role; so does CHECK EXTERNAL
    CONNECTION of a URI.
    """
    match statement:
        case nodes.AlterChangefeed(actions=actions):
            only = all(isinstance(action, nodes.AlterRescan) for action in actions)
            return _O if only else LEAST[type(statement)]
        case nodes.CheckConnection(uri=nodes.Literal(text=uri)):
            return LEAST[nodes.CreateConnection if external_name(uri) is None else type(statement)]
        case (
            nodes.Explain(statement=inner)
            | nodes.ExplainAnalyze(statement=inner)
            | nodes.Validate(statement=inner)
        ):
            return least(inner) if isinstance(inner, nodes.Statement) else LEAST[type(statement)]
        case nodes.ShowWhere(statement=inner):
            return least(inner)
    return LEAST[type(statement)]


def require_rights(
    role: Role | None, who: str, statement: nodes.Statement, catalog: Catalog
) -> None:
    """Refuse a statement that neither the role covers nor what was granted to the user. A role of
    None covers everything: the client owns the state.

    Raises:
        ChangefeedError: CF1403.
    """
    needed = least(statement)
    if role is None or role.covers(needed) or _granted(statement, who, catalog):
        return
    raise ChangefeedError(
        Code.RIGHT_MISSING,
        f"the statement needs the role {needed}, and {who} has the role {role}",
        hint=_instead(statement, name_sql(who), needed),
    )


def permits(role: Role | None, who: str, statement: nodes.Statement, catalog: Catalog) -> bool:
    """Whether :func:`require_rights` lets a statement pass."""
    try:
        require_rights(role, who, statement, catalog)
    except ChangefeedError as error:
        if error.code is not Code.RIGHT_MISSING:
            raise
        return False
    return True


def _instead(statement: nodes.Statement, user: str, needed: Role) -> str:
    """What an admin can do."""
    other = f"an admin can give another role: ALTER USER {user} WITH role = '{needed}'"
    looks = nodes.Explain | nodes.ExplainAnalyze | nodes.Validate
    inner = statement.statement if isinstance(statement, looks) else statement
    if isinstance(inner, nodes.CreateChangefeed) and not inner.or_replace:
        return (
            f"{other}; or the right to make feeds of single tables: GRANT CHANGEFEED ON TABLE t TO "
            f"{user}, and GRANT USAGE ON EXTERNAL CONNECTION c TO {user} of source and sink."
        )
    if isinstance(inner, nodes.CheckConnection) and inner.name is not None:
        return f"{other}, or GRANT USAGE ON EXTERNAL CONNECTION {name_sql(inner.name)} TO {user}."
    return f"{other}."


def _granted(statement: nodes.Statement, who: str, catalog: Catalog) -> bool:
    match statement:
        case (
            nodes.Explain(statement=inner)
            | nodes.ExplainAnalyze(statement=inner)
            | nodes.Validate(statement=inner)
        ):
            if isinstance(inner, nodes.FeedRef):
                return _owned(inner, who, catalog) is not None
            return _granted(inner, who, catalog)
        case nodes.CreateChangefeed(name=name):
            if statement.or_replace and name is not None and catalog.find_job(name) is not None:
                return _owned(nodes.FeedRef(name), who, catalog) is not None
            return any(grant.right == "CHANGEFEED" for grant in catalog.grants(who))
        case nodes.CheckConnection():
            name = statement.name if statement.uri is None else external_name(statement.uri.text)
            plain = statement.uri is None or "?" not in statement.uri.text
            grants = catalog.grants(who)
            return plain and any(g.right == "USAGE" and g.source == name for g in grants)
    if not isinstance(statement, _OF_OWNERS):
        return False
    feeds = getattr(statement, "feeds", None) or (getattr(statement, "feed", None),)
    owned = [_owned(feed, who, catalog) for feed in feeds if feed is not None]
    if isinstance(statement, _READING):
        for job in owned:
            if job is not None and (lacking := catalog.hindrance(job.id)) is not None:
                raise lacking
    return bool(owned) and None not in owned


def _owned(feed: nodes.FeedRef, who: str, catalog: Catalog) -> Job | None:
    job = catalog.find_job(feed.name if feed.name is not None else feed.job_id or 0)
    return job if job is not None and who and job.owner == who else None
