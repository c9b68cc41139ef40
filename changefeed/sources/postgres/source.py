"""PostgreSQL behind the protocol of a source: each method is one idea of another module."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from psycopg import conninfo

from changefeed.core.errors import ChangefeedError, Code, raise_all
from changefeed.core.events import Position
from changefeed.core.schema import KeyRange, TableName, TableSchema
from changefeed.sources.base import (
    Handover,
    Memo,
    PartitionInfo,
    Source,
    TableInfo,
    TableLocations,
    Watch,
)
from changefeed.sources.postgres import (
    checks,
    ddl_events,
    given,
    introspect,
    partitions,
    server,
    standby,
)
from changefeed.sources.postgres.address import Address
from changefeed.sources.postgres.attachment import PostgresAttachment, SetupPatience
from changefeed.sources.postgres.connect import Sessions, connection_info
from changefeed.sources.postgres.details import read_details
from changefeed.sources.postgres.handover import handover
from changefeed.sources.postgres.logical_messages import FIRST_VERSION, messages_schema
from changefeed.sources.postgres.snapshot import (
    PostgresSnapshot,
    key_after,
    range_columns,
    reads_keys,
)
from changefeed.sources.postgres.types import TableDetails
from changefeed.sources.postgres.visibility import read_unseen


class PostgresSource(Source):
    """One database of a PostgreSQL server, or of a primary and the standby that is read.

    Thread-safe; connects when first needed. ``sessions`` are at the server that is written to,
    ``readers`` at the one whose log is read.
    """

    parameters = Address.parameters()
    takes_row_images = True

    def __init__(self, name: str, uri: str) -> None:
        """``uri`` is libpq's, with its parameters and ours (:class:`Address`).

        Raises:
            ChangefeedError: CF1201, CF1202, CF1207 the URI cannot be read.
        """
        self.name = name
        self.address = Address.read(uri)
        self.sessions = Sessions(self.address.primary)
        self.readers = Sessions(self.address.reader) if self.address.apart else self.sessions
        self.patience = SetupPatience()

    def __repr__(self) -> str:
        return f"PostgresSource({self.name!r})"

    @property
    def database(self) -> str:
        given = conninfo.conninfo_to_dict(connection_info(self.address.reader))
        return str(given.get("dbname") or given.get("user") or self.name)

    def range_problem(self, table: TableSchema, keys: KeyRange) -> ChangefeedError | None:
        with self.sessions.session("check a range of keys") as connection:
            return checks.range_problem(connection, table, keys)

    def reads_keys(self, table: TableSchema) -> bool:
        return reads_keys(table)

    def range_columns(self, table: TableSchema) -> int:
        return range_columns(table)

    def key_after(
        self, table: TableSchema, low: tuple[str, ...] | None, rows: int
    ) -> tuple[str, ...] | None:
        with self.readers.session("look for the end of a part") as connection:
            return key_after(connection, table, low, rows)

    def close(self) -> None:
        """Close idle sessions; the object stays usable."""
        self.sessions.close()
        self.readers.close()

    # -- what is there --------------------------------------------------------------------

    def warnings(self, watches: Sequence[Watch] = ()) -> list[str]:
        """What does not hinder a feed but deserves a notice."""
        notices = [ddl_events.NOTICE] if self.address.ddl_events else []
        with self.sessions.session("look at the server's settings") as connection:
            if not self.address.apart:
                return [*notices, *checks.warnings(connection, watches)]
            with self.readers.session("look at the standby's settings") as reader:
                found = checks.warnings(connection, watches, reader)
                return [*notices, *found, *standby.warnings(connection, reader)]

    def tables(self) -> list[TableInfo]:
        with self.sessions.session("list tables") as connection:
            return introspect.table_list(connection, self.name)

    def locate(self, tables: Sequence[TableName], ids: Sequence[int]) -> TableLocations:
        """See :class:`changefeed.sources.base.Source`. A table id is an oid."""
        with self.sessions.session("look for tables") as connection:
            found = introspect.locate(connection, self.name, tables, ids)
            unsafe = checks.unsafe(connection, sorted({*found.ids.values(), *found.names}))
        return replace(found, unsafe=unsafe)

    def describe(self, schema: str | None, name: str) -> TableSchema:
        return self.describe_all([Watch(name=name, schema=schema)])[0]

    def messages(self) -> TableSchema:
        with self.sessions.session("look at the server's version") as connection:
            version = connection.info.server_version
        if version < FIRST_VERSION:
            raise ChangefeedError(
                Code.NOT_SUPPORTED,
                f"source {self.name} is PostgreSQL {version // 10_000}: logical messages can be "
                f"read from version {FIRST_VERSION // 10_000} on",
            )
        return messages_schema(self.name)

    def partition(self, table: TableSchema, name: str) -> PartitionInfo:
        with self.sessions.session("look at a partition") as connection:
            return partitions.find(connection, table, name)

    def partitions(self, table: TableSchema) -> list[str]:
        with self.sessions.session("list partitions") as connection:
            return partitions.names(connection, table)

    def describe_all(self, watches: Sequence[Watch]) -> list[TableSchema]:
        """Shapes of many tables at once, in order.

        Raises:
            ChangefeedError: CF1101 or CF1302 for each name that is no table to watch.
        """
        with self.sessions.session("describe tables") as connection:
            schemas, problems = introspect.describe(
                connection, self.name, watches, self.address.publication
            )
        raise_all(problems)
        return [schemas[place] for place in range(len(watches))]

    def describe_tables(self, tables: Sequence[TableName]) -> dict[TableName, TableSchema]:
        watches = [Watch(name=table.name, schema=table.schema) for table in tables]
        with self.sessions.session("describe tables") as connection:
            schemas, _ = introspect.describe(
                connection, self.name, watches, self.address.publication
            )
        return {tables[place]: schema for place, schema in schemas.items()}

    def describe_oids(self, oids: Iterable[int]) -> dict[int, TableDetails]:
        """What the catalog knows now of tables in the stream; dropped ones are left out."""
        with self.readers.session("describe tables") as connection:
            return read_details(connection, oids, self.address.publication)

    def unseen(self, xids: Collection[int]) -> set[int]:
        """Those of the transactions in the stream that a session does not see yet."""
        with self.readers.session("look for transactions") as connection:
            return read_unseen(connection, xids)

    def matching(self, schema: str | None, patterns: Sequence[str] = ()) -> list[TableName]:
        with self.sessions.session("list tables") as connection:
            names = introspect.matching(connection, self.name, schema, patterns)
            publication = self.address.publication
            if not publication:
                return names
            ids = introspect.locate(connection, self.name, names, []).ids
            found = given.look(connection, publication, ids.values())
            if found is None:
                return names
            return [n for n in names if n in ids and found.tables[ids[n]].covered]

    # -- the database and its log ---------------------------------------------------------

    def identity(self) -> str:
        """``<system identifier>/<database oid>``; see :class:`changefeed.sources.base.Source`."""
        with self.readers.session("identify the database") as connection:
            return server.system_id(connection)

    def current_position(self) -> Position:
        """See :class:`changefeed.sources.base.Source`. A position is an LSN as 16 hex digits."""
        with self.sessions.session("ask for the current position") as connection:
            return server.current_position(connection)

    def server_time(self) -> int:
        with self.sessions.session("ask for the time") as connection:
            return server.server_time(connection)

    def handover(
        self, offset: Mapping[str, Any], tables: Sequence[TableName], *, fresh: bool
    ) -> Handover:
        """See :class:`changefeed.sources.base.Source`. What the connector's configuration calls
        ``slot.name`` and ``publication.name`` may stand next to the offset."""
        if self.address.publication:
            raise ChangefeedError(
                Code.NOT_SUPPORTED,
                "a connector's slot cannot be taken over by a connection with the parameter "
                "publication",
                hint="take publication and slot out of the connection, or leave cursor out for an "
                "initial scan.",
            )
        if self.address.apart:
            raise ChangefeedError(
                Code.NOT_SUPPORTED,
                "a connector's slot cannot be taken over by a connection with read_from: slots "
                "are not copied from one server to another",
                hint="take read_from out of the connection, or leave cursor out for an initial "
                "scan.",
            )
        with self.sessions.session("look at the connector's slot") as connection:
            return handover(connection, offset, tables, fresh=fresh)

    def snapshot(self, tables: Sequence[TableSchema] = ()) -> PostgresSnapshot:
        address = self.address
        return PostgresSnapshot(
            address.reader,
            self.name,
            primary=address.primary if address.apart else None,
            publication=address.publication,
            on_wait=self._note_wait,
        )

    def _note_wait(self, what: str) -> None:
        self.waits_for = what

    def attach(self, owner: str, memo: Memo | None) -> PostgresAttachment:
        """See :class:`changefeed.sources.base.Source`: a replication slot and a publication."""
        return PostgresAttachment(self, owner, memo)
