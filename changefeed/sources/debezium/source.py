"""A database that Debezium reads, behind the protocol of a source."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from fnmatch import fnmatchcase

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.events import Position
from changefeed.core.schema import KeyRange, TableName, TableSchema
from changefeed.sources.base import Memo, Snapshot, Source, TableInfo, Watch
from changefeed.sources.debezium.address import Address
from changefeed.sources.debezium.attachment import DoorAttachment
from changefeed.sources.debezium.connectors import CONNECTORS
from changefeed.sources.debezium.connectors.base import TableDescription
from changefeed.sources.debezium.sessions import CatalogSession, Sessions
from changefeed.sources.debezium.snapshot import DoorSnapshot, range_problem


class DebeziumSource(Source):
    """A database behind one of Debezium's connectors. Thread-safe; connects when first needed."""

    #: The rows of a snapshot are files of the process that took it.
    parts_travel = False
    parameters = Address.parameters()

    def __init__(self, name: str, uri: str) -> None:
        """``uri``: see :mod:`changefeed.sources.debezium.address`.

        Raises:
            ChangefeedError: CF1201, CF1202, CF1207 the URI cannot be read.
        """
        self.name = name
        kind = CONNECTORS[uri.partition("://")[0].lower()]
        self.connector = kind.of(uri)
        self.sessions = Sessions(kind.packs, self.connector.opening())

    def __repr__(self) -> str:
        return f"DebeziumSource({self.name!r})"

    def close(self) -> None:
        """End the JVM that answers questions; the object stays usable."""
        self.sessions.close()

    @property
    def database(self) -> str:
        return self.connector.address.database or self.name

    def identity(self) -> str:
        return str(self.sessions.ask(self.connector.identity))

    def attach(self, owner: str, memo: Memo | None) -> DoorAttachment:
        return DoorAttachment(self, owner, memo)

    def tables(self) -> list[TableInfo]:
        def find(session: CatalogSession) -> list[TableInfo]:
            sizes = self.connector.sizes(session)
            found = []
            for schema, name in sorted(self.connector.tables(session)):
                described = self.connector.described(session, schema, name)
                if described is not None:
                    rows, size = sizes.get((schema, name), (0, 0))
                    found.append(
                        TableInfo(
                            name=TableName(self.name, schema, name),
                            key=described.key,
                            identity=str(described.image),
                            rows_estimate=rows,
                            bytes=size,
                            kind="table",
                        )
                    )
            return found

        listed: list[TableInfo] = self.sessions.ask(find)
        return listed

    def described(self, session: CatalogSession, watch: Watch) -> TableSchema:
        """A table as it is now.

        Raises:
            ChangefeedError: CF1101 there is none, CF1302 it has no columns that can be read.
        """
        schema = watch.schema or self.connector.default_schema(session)
        if not schema:
            raise ChangefeedError(
                Code.NAME_UNKNOWN,
                f'table "{watch.name}" has no schema',
                span=watch.span,
                hint=f"write schema.{watch.name}, or put the database into the connection's URI.",
            )
        found = self.connector.described(session, schema, watch.name)
        if found is None:
            raise self._no_table(session, schema, watch)
        return self._schema(TableName(self.name, schema, watch.name), found)

    def _schema(self, name: TableName, found: TableDescription) -> TableSchema:
        places = {column.name: place for place, column in enumerate(found.columns)}
        key = tuple(places[part] for part in found.key)
        return TableSchema(
            table=name,
            columns=found.columns,
            key=key or tuple(range(len(found.columns))),
            before_image=found.image,
            keyless=not key,
        )

    def _no_table(self, session: CatalogSession, schema: str, watch: Watch) -> ChangefeedError:
        known = self.connector.tables(session)
        near = difflib.get_close_matches(watch.name, [n for s, n in known if s == schema], n=1)
        hint = f'did you mean "{near[0]}"?' if near else ""
        if not near and not any(s == schema for s, _ in known):
            hint = f'there is no schema "{schema}" with tables.'
        return ChangefeedError(
            Code.NAME_UNKNOWN,
            f'table "{schema}.{watch.name}" does not exist',
            span=watch.span,
            hint=hint,
        )

    def describe(self, schema: str | None, name: str) -> TableSchema:
        watch = Watch(name=name, schema=schema)
        found: TableSchema = self.sessions.ask(lambda session: self.described(session, watch))
        return found

    def describe_tables(self, tables: Sequence[TableName]) -> dict[TableName, TableSchema]:
        def find(session: CatalogSession) -> dict[TableName, TableSchema]:
            found = {}
            for table in tables:
                try:
                    found[table] = self.described(session, Watch(table.name, table.schema))
                except ChangefeedError as error:
                    if error.code not in (Code.NAME_UNKNOWN, Code.TARGET_NOT_WATCHABLE):
                        raise
            return found

        shapes: dict[TableName, TableSchema] = self.sessions.ask(find)
        return shapes

    def matching(self, schema: str | None, patterns: Sequence[str] = ()) -> list[TableName]:
        def find(session: CatalogSession) -> list[tuple[str, str]]:
            return self.connector.tables(session)

        known: list[tuple[str, str]] = self.sessions.ask(find)
        if schema is not None:
            known = [(s, n) for s, n in known if s == schema]
            if not known:
                raise ChangefeedError(
                    Code.NAME_UNKNOWN, f'schema "{schema}" does not exist or has no tables'
                )
        return sorted(
            TableName(self.name, s, n)
            for s, n in known
            if not patterns
            or any(fnmatchcase(text, p) for text in (n, f"{s}.{n}") for p in patterns)
        )

    def current_position(self) -> Position:
        return str(self.sessions.ask(self.connector.current))

    def range_problem(self, table: TableSchema, keys: KeyRange) -> ChangefeedError | None:
        return range_problem(table, keys)

    def snapshot(self, tables: Sequence[TableSchema] = ()) -> Snapshot:
        before = self.current_position()
        return DoorSnapshot(self.connector, self.name, tables, before, self.sessions)
