"""Versions of table shapes, numbered through the whole state."""

from __future__ import annotations

import threading
from collections.abc import Collection

from sqlalchemy import Select, func, insert, select, update

from changefeed.catalog import tables
from changefeed.catalog.database import CatalogPart, Database, named
from changefeed.catalog.model import Status, TableState
from changefeed.core.clock import Clock
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.schema import TableName, TableSchema

_table = tables.table_schema
_progress = tables.job_table


class Schemas(CatalogPart):
    """Part of :class:`changefeed.catalog.Catalog`. A version once given never changes."""

    def __init__(self, database: Database, clock: Clock | None = None) -> None:
        super().__init__(database, clock)
        self._schemas: dict[int, TableSchema] = {}
        self._schemas_lock = threading.Lock()

    def schema_seen(self, version: int) -> int:
        """When a version was first seen, ns; 0 of a version that is not stored."""
        with self._database.read() as connection:
            row = connection.execute(
                select(_table.c.created).where(_table.c.version == version)
            ).one_or_none()
        return int(row.created) if row else 0

    def intern_schema(self, schema: TableSchema) -> TableSchema:
        """The same shape with its version.

        The latest version of the table when it has this fingerprint, else a new, higher one:
        a shape that comes back after another one is a new version, so that versions follow
        the log's order.
        """
        fingerprint = schema.fingerprint()
        name = schema.table
        with self._database.write(notify=False) as transaction:
            latest = transaction.execute(
                select(_table.c.version, _table.c.fingerprint)
                .where(named(_table, schema.table))
                .order_by(_table.c.version.desc())
                .limit(1)
            ).one_or_none()
            if latest and latest.fingerprint == fingerprint:
                return schema.with_version(latest.version)
            result = transaction.execute(
                insert(_table)
                .values(
                    source=name.source,
                    schema=name.schema,
                    name=name.name,
                    fingerprint=fingerprint,
                    body=schema.to_json(),
                    created=self._now(),
                    announced=False,
                )
                .returning(_table.c.version)
            )
            return schema.with_version(int(result.scalar_one()))

    def schema(self, version: int) -> TableSchema:
        """The shape with this number.

        Raises:
            ChangefeedError: CF3001 no such version: log and state do not belong together.
        """
        with self._schemas_lock:
            known = self._schemas.get(version)
        if known:
            return known
        with self._database.read() as transaction:
            body = transaction.execute(
                select(_table.c.body).where(_table.c.version == version)
            ).scalar_one_or_none()
        if body is None:
            raise ChangefeedError(
                Code.LOG_DAMAGED,
                f"schema version {version} is not in the state",
                hint="log and state must be kept, copied and restored together.",
            )
        found = TableSchema.from_json(body, version)
        with self._schemas_lock:
            self._schemas[version] = found
        return found

    def announce_schemas(self, versions: Collection[int]) -> None:
        """The change log has rows of these versions, and the changes of schema before them."""
        with self._database.write(notify=False) as transaction:
            transaction.execute(
                update(_table)
                .where(_table.c.version.in_(versions), _table.c.announced.is_(False))
                .values(announced=True)
            )

    def announced_schema(self, table: TableName) -> TableSchema | None:
        """The newest shape of a table that all its feeds know; None when it was never seen.

        A feed knows what the change log announced, and the shape that its own scan read. A scan
        of another feed, or a VERIFY, may have met a newer one that the log has no row of yet: the
        log must still announce it to the feeds that were there before.
        """
        with self._database.read() as transaction:
            versions = select(func.max(_table.c.version)).where(named(_table, table))
            announced: int | None = transaction.scalar(versions.where(_table.c.announced))
            scanned = [int(row[0]) for row in transaction.execute(_scanned(table))]
            known = max(announced or 0, min(scanned, default=0))
            if not known:
                # No row was ever read: one that scanned nothing knows nothing.
                known = min(filter(None, scanned), default=0)
            if not known:
                newest: int | None = transaction.scalar(versions)
                known = newest or 0
        return self.schema(known) if known else None


def _scanned(table: TableName) -> Select[int]:
    """The versions that the feeds of a table read when they scanned it; 0 for a feed without a
    scan."""
    ended = (Status.DROPPED.value, Status.SUCCEEDED.value)
    began = (
        (_progress.c.schema_version > 0)
        | _progress.c.done_upto.is_not(None)
        | (_progress.c.state == TableState.RUNNING.value)
    )
    return (
        select(_progress.c.schema_version)
        .join(tables.job, tables.job.c.id == _progress.c.job_id)
        .where(
            named(_progress, table),
            began,
            tables.job.c.status.not_in(ended),
        )
    )
