"""Versions of table shapes, numbered through the whole state."""

from __future__ import annotations

import threading

from sqlalchemy import insert, select

from changefeed.catalog import tables
from changefeed.catalog.database import Database
from changefeed.catalog.store import Store
from changefeed.core.clock import Clock
from changefeed.core.errors import ChangefeedError
from changefeed.core.schema import TableName, TableSchema

_table = tables.table_schema


class Schemas(Store):
    """Part of :class:`changefeed.catalog.Catalog`. A version once given never changes."""

    def __init__(self, database: Database, clock: Clock) -> None:
        super().__init__(database, clock)
        self._schemas: dict[int, TableSchema] = {}
        self._schemas_lock = threading.Lock()

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
                .where(
                    _table.c.source == name.source,
                    _table.c.schema == name.schema,
                    _table.c.name == name.name,
                )
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
                "CF3001",
                f"schema version {version} is not in the state",
                hint="log and state must be kept, copied and restored together.",
            )
        found = TableSchema.from_json(body, version)
        with self._schemas_lock:
            self._schemas[version] = found
        return found

    def latest_schema(self, table: TableName) -> TableSchema | None:
        """The newest known shape of a table, None when it was never seen."""
        with self._database.read() as transaction:
            row = transaction.execute(
                select(_table.c.body, _table.c.version)
                .where(
                    _table.c.source == table.source,
                    _table.c.schema == table.schema,
                    _table.c.name == table.name,
                )
                .order_by(_table.c.version.desc())
                .limit(1)
            ).one_or_none()
        return TableSchema.from_json(row.body, row.version) if row else None
