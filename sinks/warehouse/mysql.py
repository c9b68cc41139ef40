"""``mysql://user:password@host/database``: MariaDB 10.6 and newer, MySQL 8.0.19 and newer.

There is no MERGE: rows are deleted and inserted in one transaction. Definitions are not
transactional, so each is made so that repeating it harms nothing. Text compares by its bytes,
trailing spaces too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.schema import Column
from changefeed.core.settings import FileTls, Parameter, Settings, group, setting
from changefeed.core.types import Kind
from changefeed.core.uri import Parts, invalid_uri
from sinks.merged.values import decimal_pattern
from sinks.warehouse.dialect import (
    COMMON_ERA,
    Dialect,
    SqlStatement,
    TypeRule,
    Warehouse,
)
from sinks.warehouse.errors import explained
from sinks.warehouse.rows import packets
from sinks.warehouse.sink import WarehouseSink

if TYPE_CHECKING:
    import pymysql

#: The largest DECIMAL, and the digits of a numeric without declared ones.
_DIGITS, _SCALE = 65, 30
_FREE = f"DECIMAL({_DIGITS},{_SCALE})"
#: Bytes of an index, and characters of a text that is part of a key.
_INDEX, _KEY = 3072, 255
_FINITE = r"[-+.0-9eE]*"
_UNHEX = "unhex(substr({x}, 3))"
_MOMENT = "CAST(replace(replace({x}, 'T', ' '), 'Z', '') AS DATETIME(6))"


class MySQLDialect(Dialect):
    """``collation`` compares bytes, without padding; it is called differently by each server.

    The session has ANSI_QUOTES and NO_BACKSLASH_ESCAPES, so names and literals are standard SQL.
    """

    name = "MySQL"
    folds_case = True
    keeps_key = True
    merges = False
    widens_to_text = True
    transactional_ddl = False
    max_name = 64
    max_precision = _DIGITS
    most_key_columns = 16
    key_rules: ClassVar[Mapping[str, TypeRule]] = {
        "LONGTEXT": TypeRule(f"VARCHAR({_KEY})", "{x}", rf"(?s).{{0,{_KEY}}}"),
        "LONGBLOB": TypeRule(f"VARBINARY({_KEY})", _UNHEX, rf"\\x(?:[0-9a-fA-F]{{2}}){{0,{_KEY}}}"),
    }
    staging_types: ClassVar[Mapping[str, str]] = {
        "bool": "BOOLEAN",
        "int16": "SMALLINT",
        "int32": "INTEGER",
        "int64": "BIGINT",
        "string": "LONGTEXT",
    }
    types: ClassVar[Mapping[Kind, TypeRule]] = {
        Kind.BOOL: TypeRule("BOOLEAN"),
        Kind.INT16: TypeRule("SMALLINT"),
        Kind.INT32: TypeRule("INTEGER"),
        Kind.INT64: TypeRule("BIGINT"),
        # FLOAT would not be equal to the same number as a double: rows without a key are compared.
        Kind.FLOAT32: TypeRule("DOUBLE", "CAST({x} AS DOUBLE)", _FINITE),
        Kind.FLOAT64: TypeRule("DOUBLE", "CAST({x} AS DOUBLE)", _FINITE),
        Kind.DECIMAL: TypeRule(
            _FREE, f"CAST({{x}} AS {_FREE})", decimal_pattern(_DIGITS - _SCALE, _SCALE)
        ),
        Kind.TEXT: TypeRule("LONGTEXT"),
        Kind.BYTES: TypeRule("LONGBLOB", _UNHEX),
        Kind.DATE: TypeRule("DATE", "CAST({x} AS DATE)", COMMON_ERA),
        Kind.TIME: TypeRule("TIME(6)", "CAST({x} AS TIME(6))"),
        Kind.TIMETZ: TypeRule("VARCHAR(32)"),
        Kind.TIMESTAMP: TypeRule("DATETIME(6)", _MOMENT, COMMON_ERA),
        Kind.TIMESTAMPTZ: TypeRule("DATETIME(6)", _MOMENT, COMMON_ERA),
        Kind.INTERVAL: TypeRule("VARCHAR(128)"),
        # Text: JSON of MySQL reorders members, and no longer equals what the source sends.
        Kind.JSON: TypeRule("LONGTEXT"),
        Kind.UUID: TypeRule("CHAR(36)"),
        Kind.OTHER: TypeRule("LONGTEXT"),
    }

    def __init__(self, collation: str = "utf8mb4_0900_bin") -> None:
        self.collation = collation

    def unfit_key(self, key: Sequence[Column]) -> str:
        """An index has so many bytes, and a character takes up to four of them."""
        sizes = {c.name: _indexed(self.rule(c, key=True).sql) for c in key}
        if sum(sizes.values()) <= _INDEX:
            return super().unfit_key(key)
        listed = ", ".join(f"{c.name} ({c.type_name}) {sizes[c.name]:,}" for c in key)
        return (
            f"its key needs {sum(sizes.values()):,} bytes in an index, and {self.name} has "
            f"{_INDEX:,}: {listed}"
        )

    def decimal(self, precision: int, scale: int) -> TypeRule:
        return self.types[Kind.OTHER] if scale > _SCALE else super().decimal(precision, scale)

    def ordered(self, expression: str, column: Column) -> str:
        if column.kind not in (Kind.TEXT, Kind.UUID):
            return expression
        return f"CAST(CONVERT({expression} USING utf8mb4) AS BINARY)"

    def same_row(self, columns: Sequence[str], left: str, right: str) -> str:
        return " AND ".join(f"{left}.{self.quote(c)} <=> {right}.{self.quote(c)}" for c in columns)

    def text_of(self, expression: str, rule: TypeRule) -> str:
        if rule.sql.endswith("BLOB") or rule.sql.startswith("VARBINARY"):
            return rf"concat('\x', lower(hex({expression})))"
        return f"CAST({expression} AS CHAR)"

    def copies(self, count: str) -> str:
        ones = f"concat('[1', repeat(',1', {count} - 1), ']')"
        return f"CROSS JOIN JSON_TABLE({ones}, '$[*]' COLUMNS (n INT PATH '$')) AS _copy"

    def instant(self, version: str) -> str:
        return f"(CAST('1970-01-01' AS DATETIME(6)) + INTERVAL ({version} DIV 1000) MICROSECOND)"

    def create_table(self, table: str, columns: Mapping[str, str], key: Sequence[str] = ()) -> str:
        made = super().create_table(table, columns, key)
        return f"{made} CHARACTER SET utf8mb4 COLLATE {self.collation}"

    def temporary(self, table: str, query: str) -> str:
        # Without a storage engine the server's default would do, unless it has no transactions.
        return f"CREATE TEMPORARY TABLE {self.quote(table)} ENGINE = InnoDB AS {query}"

    def drop_temporary(self, table: str) -> str:
        return f"DROP TEMPORARY TABLE {self.quote(table)}"

    def widen_column(self, table: str, name: str, sql: str) -> str:
        return f"ALTER TABLE {table} MODIFY COLUMN {self.quote(name)} {sql}"

    def delete_joined(self, table: str, source: str, alias: str, on: str) -> str:
        return f"DELETE target FROM {table} AS target JOIN {source} AS {alias} ON {on}"

    def update_joined(
        self, table: str, source: str, alias: str, sets: Mapping[str, str], on: str
    ) -> str:
        listed = ", ".join(f"target.{self.quote(c)} = {value}" for c, value in sets.items())
        return f"UPDATE {table} AS target JOIN {source} AS {alias} ON {on} SET {listed}"


def _indexed(sql: str) -> int:
    found = re.fullmatch(r"(VARCHAR|CHAR|VARBINARY|DECIMAL)\((\d+).*\)", sql)
    if found is None:
        return 8
    each = {"VARBINARY": 1.0, "DECIMAL": 0.5}.get(found[1], 4.0)
    return math.ceil(int(found[2]) * each)


class MySQL(Warehouse):
    """One database of a server."""

    def __init__(self, url: Parts, database: str, tls: Mapping[str, object] | None) -> None:
        self.dialect: MySQLDialect = MySQLDialect()
        self.schema = database
        self.place = f"MySQL {url.host}/{database}"
        self._address = {"host": url.host, "port": url.port or 3306}
        self._login = {"user": url.user or "", "password": url.password or ""}
        self._tls = dict(tls or {})
        self._connection: pymysql.Connection[pymysql.cursors.Cursor] | None = None

    def connect(self, *, make: bool = True) -> None:
        import pymysql

        if self._connection is not None and self._connection.open:
            return
        try:
            self._connection = pymysql.connect(
                **self._address,
                **self._login,
                **self._tls,
                charset="utf8mb4",
                autocommit=True,
                connect_timeout=10,
                program_name="changefeed",
            )
        except pymysql.MySQLError as error:
            raise self._ours(error, "") from None
        version = str(self.query("SELECT version()")[0][0])
        maria = "MariaDB" in version
        self.dialect.collation = "utf8mb4_nopad_bin" if maria else "utf8mb4_0900_bin"
        modes = "ANSI_QUOTES,NO_BACKSLASH_ESCAPES,STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION"
        self._execute(f"SET SESSION sql_mode = '{modes}'")
        self._execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        self._execute("SET SESSION time_zone = '+00:00'")
        self._execute(f"SET NAMES utf8mb4 COLLATE {self.dialect.collation}")
        if not self._has_database():
            if not make:
                return
            self._execute(self.dialect.create_schema(self.schema))
        self._execute(f"USE {self.dialect.quote(self.schema)}")

    def identity(self) -> str:
        """The server's own id, as a MySQL source says it; without one, its address."""
        rows = self.query(
            "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('server_uuid', 'server_uid')"
        )
        known = [_text(row[1]) for row in rows if row[1]]
        return known[0] if known else f"{self._address['host']}:{self._address['port']}"

    def _has_database(self) -> bool:
        name = self.dialect.literal(self.schema)
        where = f"WHERE schema_name = {name}"
        return bool(self.query(f"SELECT 1 FROM information_schema.schemata {where}"))

    def run(self, statements: Sequence[SqlStatement]) -> None:
        topic = ""
        connection = self._opened()
        try:
            connection.begin()
            with connection.cursor() as cursor:
                for statement in statements:
                    topic = statement.topic
                    cursor.execute(statement.sql)
            connection.commit()
        except Exception as error:
            raise self._ours(error, topic) from None

    def query(self, sql: str) -> list[tuple[object, ...]]:
        with explained(self._ours), self._opened().cursor() as cursor:
            cursor.execute(sql)
            return list(cursor.fetchall())

    def _execute(self, sql: str) -> None:
        with explained(self._ours), self._opened().cursor() as cursor:
            cursor.execute(sql)

    def columns(self, table: str) -> dict[str, str]:
        text = self.dialect.literal
        rows = self.query(
            "SELECT column_name, column_type FROM information_schema.columns "
            f"WHERE table_schema = {text(self.schema)} AND table_name = {text(table)} "
            "ORDER BY ordinal_position"
        )
        return {str(name): _text(kind) for name, kind in rows}

    def folding(self, table: str) -> Mapping[str, str]:
        text = self.dialect.literal
        rows = self.query(
            "SELECT column_name, data_type, collation_name FROM information_schema.columns "
            f"WHERE table_schema = {text(self.schema)} AND table_name = {text(table)} "
            "AND collation_name IS NOT NULL"
        )
        found = {}
        for name, kind, collation in ([_text(value) for value in row] for row in rows):
            padded = not any(word in collation for word in ("nopad", "_0900_"))
            if padded or not collation.endswith("_bin"):
                found[name] = f"the collation {collation}"
            elif kind.lower() == "char":
                found[name] = "the type CHAR"
        return found

    def load(self, table: str, rows: pa.Table, load_id: str) -> None:
        names = ", ".join(map(self.dialect.quote, rows.column_names))
        head = f"INSERT INTO {self.name(table)} ({names}) VALUES "
        with explained(self._ours):
            connection = self._opened()
            connection.begin()
            with connection.cursor() as cursor:
                for values in packets(rows):
                    cursor.execute(head + values)
            connection.commit()

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and connection.open:
            connection.close()

    def _opened(self) -> pymysql.Connection[pymysql.cursors.Cursor]:
        if self._connection is None:
            raise ChangefeedError(Code.SINK_UNREACHABLE, f"{self.place} is not connected")
        return self._connection

    def _ours(self, error: Exception, topic: str) -> ChangefeedError:
        import pymysql

        # The server takes back what an ended connection has not committed; its temporary
        # tables go with it too.
        self.close()
        if not isinstance(error, pymysql.MySQLError):
            raise error
        number = int(error.args[0]) if error.args and isinstance(error.args[0], int) else 0
        where = f"table {topic} of {self.place}" if topic else self.place
        code, what = _BY_NUMBER.get(number, ("", ""))
        if not code:
            lost = isinstance(error, pymysql.OperationalError) and (number >= 2000 or not number)
            lost = lost or isinstance(error, pymysql.InterfaceError)
            code, what = _LOST if lost else (Code.SINK_REFUSED_DATA, "refused a statement")
        if isinstance(error, pymysql.DataError | pymysql.IntegrityError):
            code, what = _VALUE
        return ChangefeedError(
            code,
            f"{where} {what}",
            detail=f"error {number}",
            target=topic,
            about_row=(code, what) == _VALUE,
        )


_LOST = (Code.SINK_UNREACHABLE, "cannot be reached")
_BUSY = (Code.SINK_BUSY, "is busy")
_LOGIN = (Code.SINK_REFUSED_LOGIN, "refused the login, or does not allow this")
_VALUE = (Code.SINK_CANNOT_TAKE_TABLE, "refused a row")

#: Error number of the server -> what to do.
_BY_NUMBER: Mapping[int, tuple[str, str]] = {
    **dict.fromkeys((1040, 1053, 1152, 1159, 1161, 1290, 1792, 1836), _LOST),
    **dict.fromkeys((1021, 1114, 1205, 1213, 1317, 3024), _BUSY),
    **dict.fromkeys((1044, 1045, 1095, 1130, 1142, 1143, 1227, 1370, 1698), _LOGIN),
    **dict.fromkeys((1048, 1062, 1264, 1265, 1292, 1366, 1406, 1411, 3140, 4025), _VALUE),
}


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


@dataclass(frozen=True, kw_only=True)
class MySQLSettings(Settings):
    """``mysql://user:password@host:3306/database``."""

    schema: str = setting("", "The database, instead of the one in the path.")
    tls: FileTls = group(FileTls)

    @property
    def database(self) -> str:
        """The one that the tables are in."""
        return self.schema or self.uri.database

    def check(self) -> Iterator[ChangefeedError]:
        if not self.database:
            yield invalid_uri(
                "a MySQL sink names a database", "write mysql://user:password@host/database"
            )


class MySQLSink(WarehouseSink):
    """Tables of a MySQL or MariaDB database."""

    parameters: ClassVar[tuple[Parameter, ...]] = MySQLSettings.parameters()

    def __init__(self, uri: str, options: Mapping[str, object] | None = None) -> None:
        settings = MySQLSettings.read(uri)
        tls: dict[str, object] = {}
        if settings.tls.wanted:
            authority = settings.tls.ca_cert_file
            tls = {"ssl_verify_cert": True, "ssl_verify_identity": True, "ssl_ca": authority}
        super().__init__(MySQL(settings.uri, settings.database, tls), options)
