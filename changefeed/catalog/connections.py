"""What statements give a name: URIs, so that feeds hold no secrets, and functions of queries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from sqlalchemy import Connection as Transaction
from sqlalchemy import Row, delete, insert, select, update

from changefeed.catalog import tables
from changefeed.catalog.database import CatalogPart
from changefeed.catalog.model import Job, Status
from changefeed.catalog.rows import Connection, Function, Schedule
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.uri import sink_location
from grammar.printer import name as name_sql

#: ``INTO 'external://name'`` points at a connection.
EXTERNAL = "external://"

_table = tables.connection


class Connections(CatalogPart):
    """Part of :class:`changefeed.catalog.Catalog`."""

    def create_connection(self, name: str, uri: str, if_not_exists: bool = False) -> bool:
        """Keep ``uri`` under ``name``; False when it was there and may be.

        Raises:
            ChangefeedError: CF1102 the name is taken.
        """
        with self._database.write() as transaction:
            if _find(transaction, name):
                if if_not_exists:
                    return False
                raise ChangefeedError(
                    Code.NAME_TAKEN, f'external connection "{name}" already exists'
                )
            transaction.execute(insert(_table).values(name=name, uri=uri, created=self._now()))
            return True

    def alter_connection(self, name: str, uri: str) -> None:
        """Point ``name`` somewhere else; feeds that use it plan again.

        Raises:
            ChangefeedError: CF1101 no such connection.
        """
        with self._database.write() as transaction:
            _get(transaction, name)
            transaction.execute(update(_table).where(_table.c.name == name).values(uri=uri))
            for job_id, _ in _users(transaction, name):
                raise_generation = tables.job.c.generation + 1
                transaction.execute(
                    update(tables.job)
                    .where(tables.job.c.id == job_id)
                    .values(generation=raise_generation)
                )

    def drop_connection(self, name: str, if_exists: bool = False) -> bool:
        """Forget ``name``; False when it was not there and need not be.

        Raises:
            ChangefeedError: CF1101 no such connection, CF1301 feeds use it.
        """
        with self._database.write() as transaction:
            if if_exists and not _find(transaction, name):
                return False
            _get(transaction, name)
            feeds = [feed for _, feed in _users(transaction, name)]
            every = transaction.execute(select(tables.schedule)).all()
            schedules = [each.name for each in every if _uses(each, name)]
            if users := [*feeds, *(f"schedule {each}" for each in schedules)]:
                kinds = {"CHANGEFEED": feeds, "SCHEDULE": schedules}
                first = " and ".join(
                    f"DROP {kind} {', '.join(map(name_sql, names))}"
                    for kind, names in kinds.items()
                    if names
                )
                raise ChangefeedError(
                    Code.WRONG_JOB_STATE,
                    f'external connection "{name}" is used by {", ".join(users)}',
                    hint=f"{first} first.",
                )
            # Another connection of the name is granted to nobody.
            transaction.execute(delete(tables.grant).where(tables.grant.c.source == name))
            transaction.execute(delete(_table).where(_table.c.name == name))
            return True

    def connection(self, name: str) -> Connection:
        """The connection called ``name``.

        Raises:
            ChangefeedError: CF1101 no such connection.
        """
        with self._database.read() as transaction:
            return _get(transaction, name)

    def resolve_uri(self, uri: str, instead: Mapping[str, str] | None = None) -> str:
        """The real URI behind ``external://name``; parameters written after the name are added.

        ``instead`` has URIs that connections are about to get.

        Any other URI is returned as it is. The result holds secrets: never show it.

        Raises:
            ChangefeedError: CF1101 no such connection, CF1201 it points at another one.
        """
        name = external_name(uri)
        if name is None:
            return uri
        found = (instead or {}).get(name) or self.connection(name).uri
        if external_name(found) is not None:
            raise ChangefeedError(
                Code.INVALID_URI,
                f'external connection "{name}" points at another external connection',
                hint="give it the URI itself with ALTER EXTERNAL CONNECTION.",
            )
        query = uri.partition("?")[2]
        if not query:
            return found
        return f"{found}{'&' if '?' in found else '?'}{query}"

    def connections_of(self, job: Job | Schedule) -> list[str]:
        """Names of the connections a job, or the runs of a schedule, read from and write to."""
        sink = external_name(job.sink_uri or "")
        return [job.source] if sink is None else [job.source, sink]

    def connections(self) -> list[Connection]:
        """All connections by name."""
        with self._database.read() as transaction:
            rows = transaction.execute(select(_table).order_by(_table.c.name))
            return [_connection(row) for row in rows]


def external_name(uri: str) -> str | None:
    """The name in ``external://name[/][?...]``; None for any other URI."""
    if not uri.lower().startswith(EXTERNAL):
        return None
    return unquote(uri[len(EXTERNAL) :].partition("?")[0].rstrip("/"))


def _connection(row: Row[Any]) -> Connection:
    return Connection(row.name, row.uri, row.created, sink_location(row.uri))


def _find(transaction: Transaction, name: str) -> Connection | None:
    row = transaction.execute(select(_table).where(_table.c.name == name)).one_or_none()
    return _connection(row) if row else None


def _get(transaction: Transaction, name: str) -> Connection:
    found = _find(transaction, name)
    if found is None:
        raise ChangefeedError(
            Code.NAME_UNKNOWN,
            f'external connection "{name}" does not exist',
            hint="SHOW EXTERNAL CONNECTIONS lists them.",
        )
    return found


def _users(transaction: Transaction, name: str) -> list[tuple[int, str]]:
    job = tables.job
    rows = transaction.execute(
        select(job.c.id, job.c.name, job.c.source, job.c.sink_uri)
        .where(job.c.status != Status.DROPPED.value)
        .order_by(job.c.id)
    )
    return [(row.id, row.name) for row in rows if _uses(row, name)]


def _uses(row: Any, name: str) -> bool:
    return bool(row.source == name or external_name(row.sink_uri or "") == name)


class Functions(CatalogPart):
    """Part of :class:`changefeed.catalog.Catalog`."""

    def create_function(self, function: Function, if_not_exists: bool = False) -> bool:
        """Keep a function; False when its name was there and may be.

        Raises:
            ChangefeedError: CF1102 the name is taken.
        """
        with self._database.write() as transaction:
            same = select(tables.function).where(tables.function.c.name == function.name)
            if transaction.execute(same).one_or_none() is not None:
                if if_not_exists:
                    return False
                raise ChangefeedError(Code.NAME_TAKEN, f'function "{function.name}" already exists')
            transaction.execute(
                insert(tables.function).values(
                    name=function.name,
                    arguments=[f"{name} {kind}" for name, kind in function.arguments],
                    returns=function.returns,
                    reference=function.reference,
                    path=function.path,
                    vectorized=function.vectorized,
                    created=self._now(),
                )
            )
            return True

    def drop_function(self, name: str) -> bool:
        """Forget a function; False when it was not there."""
        with self._database.write() as transaction:
            return (
                transaction.execute(
                    delete(tables.function).where(tables.function.c.name == name)
                ).rowcount
                > 0
            )

    def functions(self) -> list[Function]:
        """All functions by name."""
        with self._database.read() as transaction:
            rows = transaction.execute(select(tables.function).order_by(tables.function.c.name))
            return [_function(row) for row in rows]


def _function(row: Row[Any]) -> Function:
    arguments = tuple(tuple(text.rsplit(" ", 1)) for text in row.arguments)
    return Function(
        row.name,
        arguments,
        row.returns,
        row.reference,
        row.path,
        row.vectorized,
        row.created,
    )
