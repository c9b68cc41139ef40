"""Debezium's connector for PostgreSQL: a stand-in that the door is tested with.

The database keeps the position: the slot stands at what the change log has, so Debezium gets no
offset, and transactions that come again are dropped by their position.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.events import Position
from changefeed.core.schema import BeforeImage, Column, TableName, TableSchema
from changefeed.core.sql import literal, quoted
from changefeed.core.types import LogicalType
from changefeed.sources.base import Watch
from changefeed.sources.debezium.connectors.base import Connector, Driver, TableDescription
from changefeed.sources.debezium.frames import Offset
from changefeed.sources.debezium.sessions import CatalogSession

_LOGICAL = {
    "bool": "bool",
    "int2": "int16",
    "int4": "int32",
    "int8": "int64",
    "oid": "int64",
    "float4": "float32",
    "float8": "float64",
    "numeric": "decimal",
    "money": "decimal",
    "bytea": "bytes",
    "bit": "bytes",
    "varbit": "bytes",
    "date": "date",
    "time": "time",
    "timetz": "timetz",
    "timestamp": "timestamp",
    "timestamptz": "timestamptz",
    "interval": "interval",
    "uuid": "uuid",
    "json": "json",
    "jsonb": "json",
    "hstore": "json",
    "point": "bytes",
    "geometry": "bytes",
    "geography": "bytes",
}
_DECIMAL = re.compile(r"numeric\((\d+),(-?\d+)\)")


def position_of(lsn: int) -> Position:
    """A byte of the log as text that sorts."""
    return f"{lsn:016X}"


class PostgreSQL(Connector):
    """PostgreSQL."""

    scheme = "debezium-postgresql"
    connector_class = "io.debezium.connector.postgresql.PostgresConnector"
    packs = ("debezium-postgresql",)
    port = 5432
    driver = Driver("org.postgresql.Driver", "jdbc:postgresql://{host}:{port}/{database}")
    keeps_history = False
    resumes_by_offset = False
    leaves_something = True

    def login(self) -> dict[str, str]:
        return {
            **super().login(),
            "plugin.name": "pgoutput",
            "database.dbname": self.address.database,
            "publication.autocreate.mode": "disabled",
            "include.unknown.datatypes": "true",
            "hstore.handling.mode": "json",
        }

    def memo(self, owner: str) -> dict[str, Any]:
        return {"slot": f"changefeed_door_{sha256(owner.encode()).hexdigest()[:12]}"}

    def streaming(self, memo: Mapping[str, Any]) -> dict[str, str]:
        return {"slot.name": str(memo["slot"]), "publication.name": str(memo["slot"])}

    def scanning(self, tables: Sequence[TableName]) -> dict[str, str]:
        # The image is that of a new slot, whose position is exact.
        name = f"changefeed_scan_{secrets.token_hex(6)}"
        return {
            **super().scanning(tables),
            "snapshot.mode": "initial",
            "publication.autocreate.mode": "no_tables",
            "slot.name": name,
            "publication.name": name,
        }

    def scanned(self, session: CatalogSession, properties: Mapping[str, str]) -> None:
        _drop_slot(session, properties["slot.name"])
        session.rows(f"DROP PUBLICATION IF EXISTS {properties['publication.name']}")

    def position(self, offset: Mapping[str, Any]) -> Position:
        # "lsn" alone is where the log ended when the engine began, not what it has read.
        return position_of(int(offset["lsn_commit"])) if "lsn_commit" in offset else ""

    def scan_position(self, offset: Mapping[str, Any]) -> Position:
        return position_of(int(offset["lsn"]))

    def commit_position(self, source: Mapping[str, Any], offset: Mapping[str, Any]) -> Position:
        return self.position(offset)

    def transaction_id(self, source: Mapping[str, Any]) -> int:
        return int(source.get("txId") or 0)

    def current(self, session: CatalogSession) -> Position:
        lsn = session.value("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn")
        # What an idle stream is to reach: a message behind that position.
        session.rows("SELECT pg_logical_emit_message(false, 'changefeed', '')")
        return position_of(int(lsn))

    def identity(self, session: CatalogSession) -> str:
        return session.value(
            "SELECT system_identifier || '/' || (SELECT oid FROM pg_database"
            " WHERE datname = current_database()) FROM pg_control_system()"
        )

    # -- what is held ----------------------------------------------------------------

    def hold(
        self, session: CatalogSession, memo: Mapping[str, Any], tables: Sequence[TableName]
    ) -> None:
        name = str(memo["slot"])
        listed = ", ".join(f"{quoted(t.schema)}.{quoted(t.name)}" for t in tables)
        if not session.rows(f"SELECT 1 FROM pg_publication WHERE pubname = {literal(name)}"):
            session.rows(f"CREATE PUBLICATION {name}" + (f" FOR TABLE {listed}" if tables else ""))
        elif tables:
            session.rows(f"ALTER PUBLICATION {name} SET TABLE {listed}")
        if not self._slot(session, name):
            session.rows(f"SELECT pg_create_logical_replication_slot({literal(name)}, 'pgoutput')")

    @staticmethod
    def _slot(session: CatalogSession, name: str) -> list[list[str | None]]:
        return session.rows(
            "SELECT confirmed_flush_lsn - '0/0'::pg_lsn, wal_status FROM pg_replication_slots"
            f" WHERE slot_name = {literal(name)}"
        )

    def begin(
        self, session: CatalogSession, memo: Mapping[str, Any]
    ) -> tuple[Position, Offset | None]:
        [(lsn, _)] = self._slot(session, str(memo["slot"]))
        return position_of(int(lsn or 0)), None

    def still_held(self, session: CatalogSession, memo: Mapping[str, Any]) -> bool:
        found = self._slot(session, str(memo["slot"]))
        return bool(found) and found[0][1] != "lost"

    def release(self, session: CatalogSession, memo: Mapping[str, Any]) -> None:
        name = str(memo["slot"])
        _drop_slot(session, name)
        session.rows(f"DROP PUBLICATION IF EXISTS {name}")

    def holds(self, memo: Mapping[str, Any]) -> str:
        return f"slot {memo['slot']}, publication {memo['slot']}"

    # -- tables ----------------------------------------------------------------------

    def tables(self, session: CatalogSession) -> list[tuple[str, str]]:
        return session.names(
            "SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n"
            " ON n.oid = c.relnamespace WHERE c.relkind = 'r' AND c.relpersistence = 'p'"
            " AND n.nspname <> 'information_schema' AND n.nspname NOT LIKE 'pg\\_%'"
        )

    def sizes(self, session: CatalogSession) -> Mapping[tuple[str, str], tuple[int, int]]:
        rows = session.rows(
            "SELECT n.nspname, c.relname, GREATEST(c.reltuples, 0)::bigint,"
            " pg_relation_size(c.oid) FROM pg_class c JOIN pg_namespace n"
            " ON n.oid = c.relnamespace WHERE c.relkind = 'r'"
        )
        return {(str(s), str(n)): (int(count or 0), int(size or 0)) for s, n, count, size in rows}

    def described(self, session: CatalogSession, schema: str, name: str) -> TableDescription | None:
        where = f"n.nspname = {literal(schema)} AND c.relname = {literal(name)} AND c.relkind = 'r'"
        rows = session.rows(
            "SELECT a.attname, t.typname, format_type(a.atttypid, a.atttypmod), a.attnotnull,"
            " t.typtype, t.typcategory, c.relreplident, (SELECT e.typname FROM pg_type e"
            " WHERE e.oid = t.typelem), format_type(t.typelem, a.atttypmod) FROM pg_class c"
            " JOIN pg_namespace n ON n.oid = c.relnamespace"
            " JOIN pg_attribute a ON a.attrelid = c.oid JOIN pg_type t ON t.oid = a.atttypid"
            f" WHERE {where} AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum"
        )
        if not rows:
            return None
        key = session.rows(
            "SELECT a.attname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
            " JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary"
            " JOIN unnest(i.indkey) WITH ORDINALITY k(attnum, place) ON true"
            " JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.attnum"
            f" WHERE {where} ORDER BY k.place"
        )
        image = BeforeImage.FULL if rows[0][6] == "f" else BeforeImage.KEY
        return TableDescription(tuple(map(_column, rows)), tuple(str(row[0]) for row in key), image)

    def default_schema(self, session: CatalogSession) -> str:
        return session.value("SELECT current_schema()")

    def server_problems(self, session: CatalogSession) -> list[ChangefeedError]:
        if session.value("SHOW wal_level") == "logical":
            return []
        return [
            ChangefeedError(
                Code.SOURCE_NOT_SET_UP,
                "wal_level of the server is not logical",
                hint="ALTER SYSTEM SET wal_level = 'logical'; then restart the server.",
            )
        ]

    def table_problems(
        self, session: CatalogSession, table: TableSchema, watch: Watch
    ) -> list[ChangefeedError]:
        if table.before_image is BeforeImage.FULL or not (table.keyless or watch.diff):
            return []
        name = f"{quoted(table.table.schema)}.{quoted(table.table.name)}"
        return [
            ChangefeedError(
                Code.SOURCE_NOT_SET_UP,
                f"the database does not log old rows of {table.table}",
                hint=f"ALTER TABLE {name} REPLICA IDENTITY FULL;",
            )
        ]


def _column(row: list[str | None]) -> Column:
    name, kind, declared, required, _, _, _, element, of_element = (value or "" for value in row)
    if kind.startswith("_") and element:
        logical = f"array<{_logical(element, of_element)}>"
    else:
        logical = _logical(kind, declared)
    return Column(name, declared, LogicalType.parse(logical), required not in ("t", "true"))


def _logical(kind: str, declared: str) -> str:
    if found := _DECIMAL.fullmatch(declared):
        return f"decimal({found[1]},{found[2]})"
    if declared == "bit(1)":
        return "bool"
    return _LOGICAL.get(kind, "text")


def _drop_slot(session: CatalogSession, name: str) -> None:
    where = f"slot_name = {literal(name)}"
    session.rows(
        "DO $$ BEGIN FOR i IN 1..100 LOOP"
        f" PERFORM pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE {where}"
        " AND active_pid IS NOT NULL;"
        f" EXIT WHEN NOT EXISTS (SELECT 1 FROM pg_replication_slots WHERE {where}"
        " AND active_pid IS NOT NULL);"
        " PERFORM pg_sleep(0.05); END LOOP; END $$"
    )
    session.rows(
        f"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE {where}"
    )
