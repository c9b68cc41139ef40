"""``postgresql://user:password@host/database?schema=name`` as a sink: PostgreSQL 12 and newer.

MERGE from PostgreSQL 15 on, delete and insert in one transaction before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa
from pyarrow import csv

from changefeed.core.errors import Action, ChangefeedError, Code
from changefeed.core.login_states import sent_by_server, state_of_refusal
from changefeed.core.schema import Column
from changefeed.core.settings import LIBPQ, Parameter, Settings, setting, several
from changefeed.core.types import Kind, LogicalType
from changefeed.core.uri import ESCAPES, invalid_uri, without
from sinks.warehouse.dialect import (
    Dialect,
    SqlStatement,
    TypeRule,
    Warehouse,
)
from sinks.warehouse.errors import explained
from sinks.warehouse.sink import WarehouseSink

if TYPE_CHECKING:
    import psycopg

_ELEMENTS: Mapping[Kind, str] = {
    Kind.BOOL: "boolean",
    Kind.INT16: "smallint",
    Kind.INT32: "integer",
    Kind.INT64: "bigint",
    Kind.FLOAT32: "real",
    Kind.FLOAT64: "double precision",
    Kind.DECIMAL: "numeric",
    Kind.TEXT: "text",
    Kind.BYTES: "bytea",
    Kind.DATE: "date",
    Kind.TIME: "time",
    Kind.TIMETZ: "timetz",
    Kind.TIMESTAMP: "timestamp",
    Kind.TIMESTAMPTZ: "timestamptz",
    Kind.INTERVAL: "interval",
    Kind.JSON: "jsonb",
    Kind.UUID: "uuid",
    Kind.OTHER: "text",
}


class PostgreSQLDialect(Dialect):
    """Every log form of a PostgreSQL source has its own type."""

    name = "PostgreSQL"
    keeps_key = True
    max_precision = 1000
    key_text = "text"
    widens_to_text = True
    staging_types: ClassVar[Mapping[str, str]] = {
        "bool": "boolean",
        "int16": "smallint",
        "int32": "integer",
        "int64": "bigint",
        "string": "text",
    }
    types: ClassVar[Mapping[Kind, TypeRule]] = {
        kind: TypeRule(sql, f"{{x}}::{sql}") for kind, sql in _ELEMENTS.items()
    }

    def decimal(self, precision: int, scale: int) -> TypeRule:
        sql = f"numeric({precision},{scale})"
        return TypeRule(sql, f"{{x}}::{sql}")

    def array(self, element: LogicalType) -> TypeRule:
        """An array of any number of dimensions."""
        sql = f"{_ELEMENTS.get(element.kind, 'text')}[]"
        made = "json_to_record(json_build_object('v', {x}::json))"
        return TypeRule(sql, f"(SELECT v FROM {made} AS _r(v {sql}))")

    def ordered(self, expression: str, column: Column) -> str:
        return f'{expression} COLLATE "C"' if column.kind is Kind.TEXT else expression

    def same_row(self, columns: Sequence[str], left: str, right: str) -> str:
        # IS NOT DISTINCT FROM cannot be hashed: a join by it would compare all with all.
        def row(alias: str) -> str:
            return f"ROW({self.listed(columns, alias)})::text"

        return f"{row(left)} = {row(right)}"

    def instant(self, version: str) -> str:
        return f"timestamptz 'epoch' + ({version} / 1000) * interval '1 microsecond'"

    def create_staging(self, table: str, columns: Mapping[str, str]) -> str:
        made = self.create_table(table, columns)
        return made.replace("CREATE TABLE", "CREATE UNLOGGED TABLE", 1)

    def widen_column(self, table: str, name: str, sql: str) -> str:
        column = self.quote(name)
        return f"ALTER TABLE {table} ALTER COLUMN {column} TYPE {sql} USING {column}::{sql}"


class PostgreSQL(Warehouse):
    """One schema of one database."""

    def __init__(self, uri: str, schema: str, place: str) -> None:
        """``uri`` is for libpq; it may hold a password and is shown nowhere."""
        self.dialect: PostgreSQLDialect = PostgreSQLDialect()
        self.schema = schema
        self.place = place
        self._uri = uri
        self._connection: psycopg.Connection[tuple[object, ...]] | None = None

    def connect(self, *, make: bool = True) -> None:
        import psycopg

        if self._connection is not None and not self._connection.broken:
            return
        self.close()
        settings = "-c timezone=UTC -c datestyle=ISO -c client_min_messages=warning"
        try:
            info = psycopg.conninfo.make_conninfo(
                self._uri, connect_timeout=10, application_name="changefeed", options=settings
            )
        except psycopg.Error:
            # libpq's text would repeat parts of the URI, which may be parts of the password.
            raise ChangefeedError(
                Code.INVALID_URI,
                f"{self.place}: libpq cannot read the URI",
                hint=ESCAPES,
            ) from None
        try:
            self._connection = psycopg.connect(info, autocommit=True)
        except psycopg.Error as error:
            raise self._refused(error, info) from None
        self._look(self._connection.info.server_version)
        if make and not self._has_schema():
            self.run([SqlStatement(self.dialect.create_schema(self.schema))])

    def _look(self, version: int) -> None:
        self.dialect.merges = type(self.dialect).merges and version >= 150000

    def _has_schema(self) -> bool:
        name = self.dialect.literal(self.schema)
        return bool(self.query(f"SELECT 1 FROM pg_namespace WHERE nspname = {name}"))

    def check_rights(self) -> None:
        """See :meth:`Warehouse.check_rights`: staging tables come and go in the schema."""
        d, schema = self.dialect, self.dialect.literal(self.schema)
        known = self._has_schema()
        may = (
            f"has_schema_privilege({schema}, 'CREATE') AND has_schema_privilege({schema}, 'USAGE')"
            if known
            else "has_database_privilege(current_database(), 'CREATE')"
        )
        ((allowed, role, database),) = self.query(f"SELECT {may}, current_user, current_database()")
        if allowed:
            return
        role, database = d.quote(str(role)), d.quote(str(database))
        if known:
            what = f"tables in schema {d.quote(self.schema)}"
            grant = f"GRANT USAGE, CREATE ON SCHEMA {d.quote(self.schema)} TO {role};"
        else:
            what = f"schema {d.quote(self.schema)}"
            grant = f"GRANT CREATE ON DATABASE {database} TO {role};"
        raise ChangefeedError(
            Code.SINK_REFUSED_LOGIN, f"{self.place}: role {role} may not make {what}", hint=grant
        )

    def run(self, statements: Sequence[SqlStatement]) -> None:
        topic = ""
        connection = self._opened()
        try:
            with connection.transaction(), connection.cursor() as cursor:
                for statement in statements:
                    topic = statement.topic
                    cursor.execute(statement.sql.encode())
        except Exception as error:
            raise self._ours(error, topic) from None

    def query(self, sql: str) -> list[tuple[object, ...]]:
        with explained(self._ours):
            return list(self._opened().execute(sql.encode()).fetchall())

    def _is_called(self, table: str) -> str:
        return f"c.relname = {self.dialect.literal(table)}"

    def identity(self) -> str:
        """System identifier and oid of the database; empty where the login may not see it."""
        try:
            rows = self.query(
                "SELECT system_identifier::text || '/' || (SELECT oid::text FROM pg_database "
                "WHERE datname = current_database()) FROM pg_control_system()"
            )
        except ChangefeedError as error:
            if error.action is Action.RETRY:
                raise
            return ""
        return str(rows[0][0])

    def columns(self, table: str) -> dict[str, str]:
        text = self.dialect.literal
        rows = self.query(
            "SELECT a.attname, format_type(a.atttypid, a.atttypmod) FROM pg_attribute AS a "
            "JOIN pg_class AS c ON c.oid = a.attrelid "
            "JOIN pg_namespace AS n ON n.oid = c.relnamespace "
            f"WHERE n.nspname = {text(self.schema)} AND {self._is_called(table)} "
            "AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum"
        )
        return {str(name): str(kind) for name, kind in rows}

    def folding(self, table: str) -> Mapping[str, str]:
        text = self.dialect.literal
        rows = self.query(
            "SELECT a.attname, CASE WHEN y.typname IN ('citext', 'bpchar') THEN 'the type ' "
            "|| y.typname ELSE 'the collation ' || o.collname END FROM pg_attribute AS a "
            "JOIN pg_class AS c ON c.oid = a.attrelid "
            "JOIN pg_namespace AS n ON n.oid = c.relnamespace "
            "JOIN pg_type AS y ON y.oid = a.atttypid "
            "LEFT JOIN pg_collation AS o ON o.oid = a.attcollation "
            f"WHERE n.nspname = {text(self.schema)} AND {self._is_called(table)} "
            "AND a.attnum > 0 AND NOT a.attisdropped "
            "AND (y.typname IN ('citext', 'bpchar') OR NOT o.collisdeterministic)"
        )
        return {str(name): str(why) for name, why in rows}

    def load(self, table: str, rows: pa.Table, load_id: str) -> None:
        names = ", ".join(map(self.dialect.quote, rows.column_names))
        sql = f"COPY {self.name(table)} ({names}) FROM STDIN (FORMAT csv)"
        options = csv.WriteOptions(include_header=False, quoting_style="needed")
        with (
            explained(self._ours),
            self._opened().cursor() as cursor,
            cursor.copy(sql.encode()) as copy,
        ):
            for batch in rows.to_batches(max_chunksize=20_000):
                data = BytesIO()
                csv.write_csv(batch, data, options)
                copy.write(data.getbuffer())

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _opened(self) -> psycopg.Connection[tuple[object, ...]]:
        if self._connection is None:
            raise ChangefeedError(Code.SINK_UNREACHABLE, f"{self.place} is not connected")
        return self._connection

    def _refused(self, error: psycopg.Error, info: str) -> ChangefeedError:
        """The error of a connection that failed. libpq's text has host and user, no password."""
        text = str(error).strip()
        state = error.sqlstate or ""
        known = any(word in text for word in _NOT_TRIED_AGAIN)
        if not state and not known and sent_by_server(text):
            state = _state_of_refusal(info)
        code, _ = _by_state(state) or (Code.SINK_UNREACHABLE, "")
        if known:
            code = Code.SINK_REFUSED_LOGIN
        reason = type(error).__name__ if code == Code.SINK_UNREACHABLE else text.splitlines()[-1]
        detail = f"{reason} (SQLSTATE {state})" if state else reason
        return ChangefeedError(code, f"{self.place} cannot be reached", detail=detail)

    def _ours(self, error: Exception, topic: str) -> ChangefeedError:
        import psycopg

        if not isinstance(error, psycopg.Error):
            raise error
        where = f"table {topic} of {self.place}" if topic else self.place
        state = error.sqlstate or ""
        code, what = _by_state(state) or (
            (Code.SINK_REFUSED_DATA, "refused a statement")
            if state
            else (Code.SINK_UNREACHABLE, "broke the connection")
        )
        if code == Code.SINK_UNREACHABLE:
            self.close()
        named = {"column": error.diag.column_name, "constraint": error.diag.constraint_name}
        detail = ", ".join(
            [f"SQLSTATE {state}", *(f"{kind} {name}" for kind, name in named.items() if name)]
        )
        if state.startswith(_NAMES_OBJECTS):
            detail = f"{error.diag.message_primary} ({detail})"
        of_row = code == Code.SINK_CANNOT_TAKE_TABLE
        return ChangefeedError(
            code, f"{where} {what}", detail=detail, target=topic, about_row=of_row
        )


def _state_of_refusal(info: str) -> str:
    """The SQLSTATE of a refused login; empty where libpq does not pass it on."""
    import psycopg
    from psycopg import pq

    try:
        return state_of_refusal(lambda: pq.PGconn.connect_start(info.encode())) or ""
    except psycopg.Error:
        return ""  # the error of the first try says enough


def _by_state(state: str) -> tuple[str, str] | None:
    return next((found for start, found in _BY_STATE.items() if state.startswith(start)), None)


#: Texts of refused logins that are understood without a SQLSTATE, which libpq before 18 does not
#: pass on. For other texts, as in another language, a newer libpq is asked for it; that costs a
#: second login, which a server may count.
_NOT_TRIED_AGAIN = ("password authentication failed", "does not exist", "no pg_hba.conf entry")

_NO_RIGHT = "42501"
_TOO_LONG = "54000"
#: SQLSTATE, by its beginning, whose texts name columns, types and other objects, and no value.
_NAMES_OBJECTS = ("42", _TOO_LONG)

#: SQLSTATE, by its beginning -> what to do.
_BY_STATE: Mapping[str, tuple[str, str]] = {
    "08": (Code.SINK_UNREACHABLE, "broke the connection"),
    "57P": (Code.SINK_UNREACHABLE, "is shutting down"),
    "40": (Code.SINK_BUSY, "is busy"),
    "55P03": (Code.SINK_BUSY, "is busy"),
    "57014": (Code.SINK_BUSY, "cancelled a statement"),
    "53": (Code.SINK_BUSY, "has no room"),
    _TOO_LONG: (Code.SINK_CANNOT_TAKE_TABLE, "has no index for a key that is so long"),
    "22": (Code.SINK_CANNOT_TAKE_TABLE, "cannot hold a value"),
    "23": (Code.SINK_CANNOT_TAKE_TABLE, "refused a row"),
    "28": (Code.SINK_REFUSED_LOGIN, "refused the login"),
    "3D": (Code.SINK_REFUSED_LOGIN, "has no such database"),
    _NO_RIGHT: (Code.SINK_REFUSED_LOGIN, "does not allow this"),
}


@dataclass(frozen=True, kw_only=True)
class PostgreSQLSettings(Settings):
    """``postgresql://user:password@host:port/database``."""

    schema: str = setting("public", "The schema of the tables.")
    libpq: Mapping[str, str] = several(*LIBPQ)

    def check(self) -> Iterator[ChangefeedError]:
        if not self.uri.database:
            yield invalid_uri(
                "a PostgreSQL sink names a database",
                "write postgresql://user:password@host/database?schema=name",
            )


class PostgreSQLSink(WarehouseSink):
    """Tables of a PostgreSQL database."""

    parameters: ClassVar[tuple[Parameter, ...]] = PostgreSQLSettings.parameters()

    def __init__(self, uri: str, options: Mapping[str, object] | None = None) -> None:
        settings = PostgreSQLSettings.read(uri)
        place = f"PostgreSQL {settings.uri.host or 'local socket'}/{settings.uri.database}"
        schema = settings.schema or "public"
        super().__init__(PostgreSQL(without(uri, {"schema"}), schema, place), options)
