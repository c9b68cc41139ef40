"""Rights on single tables, schemas and connections, and what becomes of feeds whose owner lost one.

A feed that a user without the role admin made is bound by its owner's rights: no step of it from a
pause or a failure to work is taken while one is missing. Other feeds belong to the admins.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from sqlalchemy import ColumnElement, Row, and_, delete, insert, select, update
from sqlalchemy import Connection as Transaction

from changefeed.catalog import tables
from changefeed.catalog.connections import external_name
from changefeed.catalog.database import CatalogPart
from changefeed.catalog.history import record
from changefeed.catalog.model import DesiredStatus, Status
from changefeed.catalog.rows import OwnerRights, UserRight
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.schema import TableName
from grammar.printer import name as name_sql

#: The owner of a feed whose owner was dropped: no user has this name.
GONE = ""
#: The role that needs no right.
ADMIN = "admin"

_grant = tables.grant
_job = tables.job
#: The schema of a target as the state keeps its text.
_SCHEMA = re.compile(r'SCHEMA (?:"((?:[^"]|"")+)"|([\w$]+))')


class Grants(CatalogPart):
    """Part of :class:`changefeed.catalog.Catalog`."""

    def grant(self, grants: Iterable[UserRight]) -> None:
        """Give rights; those that are there stay."""
        with self._database.write() as transaction:
            for given in grants:
                if transaction.execute(select(_grant).where(_is(given))).one_or_none() is None:
                    transaction.execute(insert(_grant).values(**_key(given), granted=self._now()))

    def revoke(self, grants: Iterable[UserRight]) -> list[int]:
        """Take rights away; returns the feeds that end by that, which their node pauses."""
        with self._database.write() as transaction:
            users = set()
            for taken in grants:
                transaction.execute(delete(_grant).where(_is(taken)))
                users.add(taken.user)
            return [n for user in sorted(users) for n in end_feeds(transaction, user, self._now())]

    def grants(self, user: str | None = None) -> list[UserRight]:
        """The rights of a user, or of all, by user."""
        query = select(_grant).order_by(*_grant.primary_key.columns)
        with self._database.read() as transaction:
            rows = transaction.execute(
                query if user is None else query.where(_grant.c.user == user)
            )
            return [UserRight(r.user, r.source, r.schema, r.name, r.granted) for r in rows]

    def owner_rights(self, owner: str | None) -> OwnerRights | None:
        """What bounds the feeds of an owner; None: nothing does."""
        with self._database.read() as transaction:
            return _rights(transaction, owner)

    def hindrance(self, job_id: int) -> ChangefeedError | None:
        """The right that the owner of a feed lacks for it; None: it may run."""
        with self._database.read() as transaction:
            row = transaction.execute(select(_job).where(_job.c.id == job_id)).one_or_none()
            return None if row is None else lacking(transaction, row)

    def adopt(self, job_id: int) -> bool:
        """Give a feed whose owner was dropped to the admins; False: it has another owner, or is
        theirs already."""
        orphan = (_job.c.id == job_id) & (_job.c.owner == GONE)
        with self._database.write() as transaction:
            adopted = update(_job).where(orphan).values(owner=None)
            return transaction.execute(adopted).rowcount > 0


def lacking(transaction: Transaction, job: Row[Any]) -> ChangefeedError | None:
    """See :meth:`Grants.hindrance`, of the row of a job."""
    if job.owner == GONE:
        return ChangefeedError(
            Code.RIGHT_MISSING,
            f'the user who owned changefeed "{job.name}" was dropped',
            hint="another user can begin a stream of the same rows."
            if job.sinkless
            else f"RESUME CHANGEFEED {name_sql(job.name)} by an admin makes it a feed of the "
            f"admins, and ALTER CHANGEFEED {name_sql(job.name)} OWNER TO user that user's.",
        )
    rights = _rights(transaction, job.owner)
    if rights is None:
        return None
    sink = external_name(job.sink_uri or "")
    found = [rights.connection_error(name) for name in (job.source, sink) if name is not None]
    for target in job.targets:
        if schema := _SCHEMA.match(target):
            name = schema[2] or schema[1].replace('""', '"')
            found.append(rights.schema_error(job.source, name))
    row = tables.job_table.c
    columns = select(row.source, row.schema, row.name, row.joined).where(row.job_id == job.id)
    for table in transaction.execute(columns.order_by(row.schema, row.name)):
        if table.joined:
            found.append(rights.schema_error(table.source, table.schema))
        else:
            found.append(rights.table_error(TableName(table.source, table.schema, table.name)))
    if any(target.startswith("DATABASE ") for target in job.targets):
        found.append(rights.role_error("a DATABASE target"))
    return next(filter(None, found), None)


def require_lawful(transaction: Transaction, job: Row[Any]) -> None:
    """Raise if the owner of a feed lacks a right for it.

    Raises:
        ChangefeedError: CF1403.
    """
    if (error := lacking(transaction, job)) is not None:
        raise error


def end_feeds(transaction: Transaction, user: str, now: int) -> list[int]:
    """Let the feeds of a user that he may no longer have be paused; returns them."""
    over = (Status.SUCCEEDED.value, Status.DROPPED.value)
    owned = select(_job).where(_job.c.owner == user, _job.c.status.not_in(over))
    ended = []
    for job in transaction.execute(owned.order_by(_job.c.id)).all():
        error = lacking(transaction, job)
        if error is None or job.wanted is DesiredStatus.DROPPED:
            continue
        wanted = {"wanted": DesiredStatus.PAUSED.value, "modified": now}
        transaction.execute(update(_job).where(_job.c.id == job.id).values(wanted))
        record(transaction, now, job.id, "notice", error.message, code=error.code.number)
        ended.append(int(job.id))
    return ended


def forget_owner(transaction: Transaction, user: str, now: int) -> list[int]:
    """Remove the rights of a user who is dropped; his feeds are paused and have no owner. Returns
    them."""
    transaction.execute(delete(_grant).where(_grant.c.user == user))
    transaction.execute(update(_job).where(_job.c.owner == user).values(owner=GONE))
    return end_feeds(transaction, GONE, now)


def _rights(transaction: Transaction, owner: str | None) -> OwnerRights | None:
    if owner is None:
        return None
    role = select(tables.user.c.role).where(tables.user.c.name == owner)
    if transaction.execute(role).scalar_one_or_none() == ADMIN:
        return None
    rows = transaction.execute(select(_grant).where(_grant.c.user == owner))
    return OwnerRights(owner, frozenset((row.source, row.schema, row.name) for row in rows))


def _key(grant: UserRight) -> dict[str, str]:
    return {
        "user": grant.user,
        "source": grant.source,
        "schema": grant.schema,
        "name": grant.name,
    }


def _is(grant: UserRight) -> ColumnElement[bool]:
    return and_(*(_grant.c[column] == value for column, value in _key(grant).items()))
