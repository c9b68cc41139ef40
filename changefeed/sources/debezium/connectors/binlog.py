"""Debezium's connectors for MariaDB and MySQL: stand-ins that the door is tested with."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.events import Position
from changefeed.core.schema import Column, TableName
from changefeed.core.types import LogicalType
from changefeed.sources.debezium.connectors.base import PREFIX, Connector, Driver, TableDescription
from changefeed.sources.debezium.frames import Offset
from changefeed.sources.debezium.sessions import CatalogSession

_SYSTEM = ("information_schema", "mysql", "performance_schema", "sys")
#: DATA_TYPE -> neutral type, where Debezium's connector sends it so.
_LOGICAL = {
    "tinyint": "int16",
    "smallint": "int16",
    "mediumint": "int32",
    "int": "int32",
    "bigint": "int64",
    "float": "float32",
    "double": "float64",
    "year": "int32",
    "date": "date",
    "time": "interval",
    "datetime": "timestamp",
    "timestamp": "timestamptz",
    "json": "json",
    "binary": "bytes",
    "varbinary": "bytes",
    "tinyblob": "bytes",
    "blob": "bytes",
    "mediumblob": "bytes",
    "longblob": "bytes",
}
_UNSIGNED = {"smallint": "int32", "int": "int64", "bigint": "decimal(20,0)"}
_GEOMETRY = frozenset(
    {
        *("geometry", "point", "linestring", "polygon", "geometrycollection"),
        *("multipoint", "multilinestring", "multipolygon", "geomcollection"),
    }
)
_FILE = re.compile(r"\.(\d+)$")


def position_of(file: str, offset: int) -> Position:
    """A file of the binlog and an offset in it, as text that sorts."""
    found = _FILE.search(file)
    if found is None:
        raise ChangefeedError(
            Code.UNEXPECTED_MESSAGE, "a binlog file without a number", detail=file[:100]
        )
    return f"{int(found[1]):010d}.{offset:014d}"


def text(value: str) -> str:
    """A text as SQL writes it, whatever a backslash means to the server."""
    return f"CONVERT(0x{value.encode().hex()} USING utf8mb4)" if value else "''"


class _Binlog(Connector):
    port = 3306
    needs_database = False
    long_times = True
    truncate_commits = True

    def login(self) -> dict[str, str]:
        properties = {
            **super().login(),
            # The server's heartbeats come at 0.8 of the interval. A reader that connected again by
            # itself, as it does where we were slow, would read rows twice.
            "connect.keep.alive": "false",
            "connect.keep.alive.interval.ms": "1000",
            "inconsistent.schema.handling.mode": "warn",
            "enable.time.adjuster": "false",
        }
        if self.address.database:
            properties["database.include.list"] = re.escape(self.address.database)
        return properties

    def streaming(self, memo: Mapping[str, Any]) -> dict[str, str]:
        # Definitions alone are read at the begin: no lock is needed for them.
        return {"database.server.id": str(memo["server_id"]), "snapshot.locking.mode": "none"}

    def scanning(self, tables: Sequence[TableName]) -> dict[str, str]:
        # It registers as no reader, but must have an id.
        return {**super().scanning(tables), "database.server.id": "1073741823"}

    def memo(self, owner: str) -> dict[str, Any]:
        digest = sha256(f"door/{owner}".encode()).digest()
        # Above the ids that people give to servers.
        return {"server_id": 0x40000000 + int.from_bytes(digest[:4], "big") % 0x3FFFFFFF}

    def table_of(self, source: Mapping[str, Any]) -> tuple[str, str]:
        return str(source["db"]), str(source["table"])

    def position(self, offset: Mapping[str, Any]) -> Position:
        return position_of(offset["file"], int(offset["pos"]))

    def commit_position(self, source: Mapping[str, Any], offset: Mapping[str, Any]) -> Position:
        # Where it begins, and the log ended before it: one byte more is inside of it.
        return position_of(source["file"], int(source["pos"]) + 1)

    def _end(self, session: CatalogSession) -> tuple[str, int, str]:
        for sql in ("SHOW MASTER STATUS", "SHOW BINARY LOG STATUS"):
            try:
                rows = session.rows(sql)
            except ChangefeedError as error:
                if error.code is not Code.STREAM_BROKE:  # a word that this server does not know
                    raise
                continue
            if rows:
                row = rows[0]
                return str(row[0]), int(row[1] or 0), str(row[4] or "") if len(row) > 4 else ""
        raise ChangefeedError(
            Code.SOURCE_NOT_SET_UP,
            "the server writes no binlog",
            hint="set log_bin in the server's configuration, then restart it.",
        )

    def current(self, session: CatalogSession) -> Position:
        file, offset, _ = self._end(session)
        return position_of(file, offset)

    def begin(
        self, session: CatalogSession, memo: Mapping[str, Any]
    ) -> tuple[Position, Offset | None]:
        file, offset, gtids = self._end(session)
        offsets = {"file": file, "pos": offset}
        if gtids := self._gtids(session, file, offset, gtids):
            offsets["gtids"] = gtids.replace("\n", "")
        return position_of(file, offset), ({"server": PREFIX}, offsets)

    def _gtids(self, session: CatalogSession, file: str, offset: int, executed: str) -> str:
        return executed

    def tables(self, session: CatalogSession) -> list[tuple[str, str]]:
        hidden = ", ".join(map(text, _SYSTEM))
        only = f" AND TABLE_SCHEMA = {text(self.address.database)}" if self.address.database else ""
        return session.names(
            "SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES"
            f" WHERE TABLE_TYPE = 'BASE TABLE' AND TABLE_SCHEMA NOT IN ({hidden}){only}"
        )

    def sizes(self, session: CatalogSession) -> Mapping[tuple[str, str], tuple[int, int]]:
        rows = session.rows(
            "SELECT TABLE_SCHEMA, TABLE_NAME, TABLE_ROWS, DATA_LENGTH"
            " FROM information_schema.TABLES"
            " WHERE TABLE_TYPE = 'BASE TABLE'"
        )
        return {(str(s), str(n)): (int(count or 0), int(size or 0)) for s, n, count, size in rows}

    def described(self, session: CatalogSession, schema: str, name: str) -> TableDescription | None:
        where = f"TABLE_SCHEMA = {text(schema)} AND TABLE_NAME = {text(name)}"
        columns = session.rows(
            "SELECT COLUMN_NAME, DATA_TYPE, COLUMN_TYPE, IS_NULLABLE, NUMERIC_PRECISION,"
            f" NUMERIC_SCALE FROM information_schema.COLUMNS WHERE {where}"
            " ORDER BY ORDINAL_POSITION"
        )
        if not columns:
            return None
        key = session.rows(
            f"SELECT COLUMN_NAME FROM information_schema.STATISTICS WHERE {where}"
            " AND INDEX_NAME = 'PRIMARY' ORDER BY SEQ_IN_INDEX"
        )
        return TableDescription(
            tuple(map(self._column, columns)), tuple(str(row[0]) for row in key)
        )

    def _column(self, row: list[str | None]) -> Column:
        name, data_type, type_name, nullable, precision, scale = (value or "" for value in row)
        logical = self.logical(data_type.lower(), type_name.lower())
        if data_type == "decimal":
            logical = f"decimal({precision},{scale})"
        return Column(name, type_name, LogicalType.parse(logical), nullable == "YES")

    def logical(self, data_type: str, type_name: str) -> str:
        """The neutral type of a column."""
        if data_type == "bit":
            return "bool" if type_name == "bit(1)" else "bytes"
        if data_type in _GEOMETRY:
            return "bytes"
        if "unsigned" in type_name or "zerofill" in type_name:
            return _UNSIGNED.get(data_type, _LOGICAL.get(data_type, "text"))
        return _LOGICAL.get(data_type, "text")

    def default_schema(self, session: CatalogSession) -> str:
        return self.address.database

    def server_problems(self, session: CatalogSession) -> list[ChangefeedError]:
        wanted = {"log_bin": "ON", "binlog_format": "ROW", "binlog_row_image": "FULL"}
        rows = session.rows(
            "SHOW GLOBAL VARIABLES WHERE Variable_name IN"
            " ('log_bin', 'binlog_format', 'binlog_row_image')"
        )
        known = {str(name): str(value).upper() for name, value in rows}
        return [
            ChangefeedError(
                Code.SOURCE_NOT_SET_UP,
                f"{name} of the server is {known.get(name, 'unknown')}, and must be {value}",
                hint=f"set {name} = {value} in the server's configuration, then restart it.",
            )
            for name, value in wanted.items()
            if known.get(name) != value
        ]

    def holds(self, memo: Mapping[str, Any]) -> str:
        return f"a binlog reader with server_id {memo['server_id']}"


class MariaDB(_Binlog):
    """MariaDB."""

    scheme = "debezium-mariadb"
    connector_class = "io.debezium.connector.mariadb.MariaDbConnector"
    packs = ("debezium-mysql", "debezium-mariadb")
    driver = Driver(
        "org.mariadb.jdbc.Driver",
        "jdbc:mariadb://{host}:{port}/{database}",
        {"permitMysqlScheme": "true", "allowPublicKeyRetrieval": "true"},
    )

    def _gtids(self, session: CatalogSession, file: str, offset: int, executed: str) -> str:
        return session.value(f"SELECT BINLOG_GTID_POS({text(file)}, {offset})")

    def identity(self, session: CatalogSession) -> str:
        row = session.rows("SHOW GLOBAL VARIABLES LIKE 'server_uid'")
        return str(row[0][1]) if row else str(self.address)


class MySQL(_Binlog):
    """MySQL."""

    scheme = "debezium-mysql"
    connector_class = "io.debezium.connector.mysql.MySqlConnector"
    packs = ("debezium-mysql",)
    driver = Driver(
        "com.mysql.cj.jdbc.Driver",
        "jdbc:mysql://{host}:{port}/{database}",
        {"allowPublicKeyRetrieval": "true", "sslMode": "PREFERRED"},
    )

    def identity(self, session: CatalogSession) -> str:
        return session.value("SELECT @@global.server_uuid")
