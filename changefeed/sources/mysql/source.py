"""MySQL and MariaDB behind the protocol of a source: each method is one idea of another module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.events import Position
from changefeed.core.schema import KeyRange, TableName, TableSchema
from changefeed.sources.base import Handover, Memo, ScanWorker, Source, TableInfo, Watch
from changefeed.sources.connector_offset import demand_streaming
from changefeed.sources.mysql import advice, coordinates, describe, ranges
from changefeed.sources.mysql.address import Address
from changefeed.sources.mysql.attachment import MySQLAttachment
from changefeed.sources.mysql.coordinates import BinlogCoordinates
from changefeed.sources.mysql.renames import GRACE_NS
from changefeed.sources.mysql.session import MySQLSession, Sessions
from changefeed.sources.mysql.snapshot import MySQLSnapshot, SnapshotPatience


class MySQLSource(Source):
    """A MySQL or MariaDB server. Thread-safe; connects when first needed.

    A database of the server is what other sources call a schema; the one in the URI is that of
    names without one.
    """

    #: A consistent snapshot of MySQL belongs to its session.
    parts_travel = False
    takes_workers = True
    parameters = Address.parameters()
    takes_row_images = True
    rename_delay_ns = GRACE_NS

    def __init__(self, name: str, uri: str) -> None:
        """``uri``: see :mod:`changefeed.sources.mysql.address`.

        Raises:
            ChangefeedError: CF1201, CF1202, CF1207 the URI cannot be read.
        """
        self.name = name
        self.address = Address.read(uri)
        self.sessions = Sessions(self.address)
        self.patience = SnapshotPatience()

    def __repr__(self) -> str:
        return f"MySQLSource({self.name!r})"

    @property
    def database(self) -> str:
        return self.address.database or self.name

    def close(self) -> None:
        """Close idle sessions; the object stays usable."""
        self.sessions.close()

    def identity(self) -> str:
        """See :class:`changefeed.sources.base.Source`: the server's own id.

        A MariaDB that does not report one (before 10.10 none does) is known by its address.
        """
        with self.sessions.session() as session:
            known = coordinates.server_of(session)
        return known if known != "-" else str(self.address)

    def attach(self, owner: str, memo: Memo | None) -> MySQLAttachment:
        return MySQLAttachment(self, owner, memo)

    def tables(self) -> list[TableInfo]:
        with self.sessions.session() as session:
            return describe.table_list(session, self.name, self.address.database)

    def describe(self, schema: str | None, name: str) -> TableSchema:
        found = describe.resolve(Watch(name=name, schema=schema), self.address.database)
        with self.sessions.session() as session:
            return describe.describe(session, self.name, *found)

    def describe_tables(self, tables: Sequence[TableName]) -> dict[TableName, TableSchema]:
        wanted = {(table.schema, table.name): table for table in tables}
        with self.sessions.session() as session:
            found = describe.read_tables(session, list(wanted))
        return {
            wanted[name]: table.schema(self.name)
            for name, table in found.items()
            if describe.refusal(table, Watch(name=table.name)) is None
        }

    def matching(self, schema: str | None, patterns: Sequence[str] = ()) -> list[TableName]:
        with self.sessions.session() as session:
            database = schema or self.address.database or None
            return describe.matching(session, self.name, database, patterns)

    def warnings(self, watches: Sequence[Watch] = ()) -> list[str]:
        with self.sessions.session() as session:
            return advice.warnings(session, self.address.database, watches)

    def reads_keys(self, table: TableSchema) -> bool:
        return ranges.reads_keys(table)

    def range_problem(self, table: TableSchema, keys: KeyRange) -> ChangefeedError | None:
        with self.sessions.session() as session:
            return ranges.range_problem(session, table, keys)

    def range_columns(self, table: TableSchema) -> int:
        return ranges.range_columns(table)

    def key_after(
        self, table: TableSchema, low: tuple[str, ...] | None, rows: int
    ) -> tuple[str, ...] | None:
        with self.sessions.session() as session:
            return ranges.key_after(session, table, low, rows)

    def current_position(self) -> Position:
        with self.sessions.session() as session:
            return coordinates.present(session, coordinates.mode_of(session)).position

    def server_time(self) -> int:
        with self.sessions.session() as session:
            return coordinates.server_time(session)

    def handover(
        self, offset: Mapping[str, Any], tables: Sequence[TableName], *, fresh: bool
    ) -> Handover:
        """See :class:`changefeed.sources.base.Source`. The binlog has every table."""
        with self.sessions.session() as session:
            return handover(session, offset)

    def snapshot(self, tables: Sequence[TableSchema] = ()) -> MySQLSnapshot:
        return self.snapshot_in(tables, ())

    def snapshot_in(
        self, tables: Sequence[TableSchema], workers: Sequence[ScanWorker]
    ) -> MySQLSnapshot:
        with self.sessions.session() as session:
            mode = coordinates.mode_of(session)
        return MySQLSnapshot(self.address, tables, mode, self.patience, workers=workers)


def handover(session: MySQLSession, offset: Mapping[str, Any]) -> Handover:
    """See :meth:`changefeed.sources.base.Source.handover`.

    Within a transaction the offset names the transaction's begin (and counts events and rows,
    which are left alone: the transaction comes again, whole). Source of the names:
    BinlogOffsetContext of Debezium 3.6.
    """
    demand_streaming(offset, "snapshot_completed")
    mode = coordinates.mode_of(session)
    found = _by_gtids(session, offset) if mode == "gtid" else _by_file(session, offset)
    begin = {
        "flavor": session.flavor,
        "mode": mode,
        "start": found.position,
        "history": found.history,
    }
    return Handover(found.position, {"begin": begin})


def _by_gtids(session: MySQLSession, offset: Mapping[str, Any]) -> BinlogCoordinates:
    gtids = offset.get("gtids")
    if not isinstance(gtids, str) or not gtids:
        raise ChangefeedError(
            Code.NOT_SUPPORTED,
            "the offset has no GTIDs, and this server's log is read by them",
            hint="let the connector write an offset with gtids, or leave cursor out.",
        )
    try:
        found = coordinates.of_gtids(session, gtids)
    except ChangefeedError as error:
        raise ChangefeedError(
            Code.NOT_SUPPORTED, f"the GTIDs of the offset cannot be read: {error.message}"
        ) from error
    if not coordinates.has(session, found.history):
        raise ChangefeedError(
            Code.NOT_SUPPORTED,
            "the server does not have the transactions that the connector delivered",
        )
    if not coordinates.reaches(session, found.history):
        raise _purged()
    return found


def _by_file(session: MySQLSession, offset: Mapping[str, Any]) -> BinlogCoordinates:
    file, begin = offset.get("file"), offset.get("pos")
    if not isinstance(file, str) or not isinstance(begin, int) or not file:
        raise ChangefeedError(
            Code.NOT_SUPPORTED,
            "the offset has no binlog file and position: it is not one of a MySQL connector",
            hint="its JSON has file and pos; see the topic of offset.storage.topic.",
        )
    lengths = {str(row[0]): int(row[1]) for row in session.rows("SHOW BINARY LOGS")}
    if file not in lengths:
        raise _purged(f"file {file}")
    if begin > lengths[file]:
        raise ChangefeedError(
            Code.NOT_SUPPORTED, f"binlog file {file} ends before the offset: it is another server's"
        )
    return coordinates.of_file(session, file, begin)


def _purged(what: str = "") -> ChangefeedError:
    return ChangefeedError(
        Code.NOT_SUPPORTED,
        "the server no longer has the binlog behind the offset",
        detail=what,
        hint="leave cursor out for an initial scan.",
    )
