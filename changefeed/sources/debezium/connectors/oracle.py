"""Oracle Database, by LogMiner: a position is the SCN of a commit."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.events import Position
from changefeed.core.schema import TableSchema
from changefeed.core.sql import literal
from changefeed.sources.base import Watch
from changefeed.sources.debezium.connectors.base import PREFIX, DescribedByDriver, Driver
from changefeed.sources.debezium.frames import Offset
from changefeed.sources.debezium.sessions import CatalogSession

#: The SCN in front of each part of what Debezium calls ``commit_scn``: one of every redo thread.
_SCN = re.compile(r"(?:^|,)(\d+)")


def position_of(scn: int) -> Position:
    """An SCN as text that sorts."""
    return f"{scn:020d}"


class Oracle(DescribedByDriver):
    """Oracle Database."""

    scheme = "oracle"
    connector_class = "io.debezium.connector.oracle.OracleConnector"
    packs = ("debezium-oracle",)
    port = 1521
    driver = Driver("oracle.jdbc.OracleDriver", "jdbc:oracle:thin:@//{host}:{port}/{database}")
    truncate_commits = True

    names: Mapping[str, str] = {
        "binary_float": "float32",
        "binary_double": "float64",
        "float": "decimal",
        "date": "timestamp",
        "raw": "bytes",
        "blob": "bytes",
        "clob": "text",
        "nclob": "text",
    }

    def login(self) -> dict[str, str]:
        return {
            **super().login(),
            "database.dbname": self.address.database,
            "lob.enabled": "true",
        }

    def position(self, offset: Mapping[str, Any]) -> Position:
        known = [int(n) for n in _SCN.findall(str(offset.get("commit_scn") or ""))]
        return position_of(max([*known, int(offset.get("scn") or 0)]))

    def commit_position(self, source: Mapping[str, Any], offset: Mapping[str, Any]) -> Position:
        known = [int(n) for n in _SCN.findall(str(source.get("commit_scn") or ""))]
        return position_of(max(known)) if known else self.position(offset)

    def current(self, session: CatalogSession) -> Position:
        return position_of(int(session.value("SELECT CURRENT_SCN FROM V$DATABASE")))

    def identity(self, session: CatalogSession) -> str:
        return session.value("SELECT DBID || '/' || RESETLOGS_CHANGE# FROM V$DATABASE")

    def begin(
        self, session: CatalogSession, memo: Mapping[str, Any]
    ) -> tuple[Position, Offset | None]:
        scn = int(session.value("SELECT CURRENT_SCN FROM V$DATABASE"))
        # Transactions that are open began before: their first rows are in the log there.
        oldest = session.value("SELECT MIN(START_SCN) FROM V$TRANSACTION WHERE START_SCN > 0")
        start = min(scn, int(oldest)) if oldest else scn
        return position_of(scn), ({"server": PREFIX}, {"scn": str(start), "commit_scn": str(scn)})

    def tables(self, session: CatalogSession) -> list[tuple[str, str]]:
        return session.names(
            "SELECT t.OWNER, t.TABLE_NAME FROM ALL_TABLES t JOIN ALL_USERS u"
            " ON u.USERNAME = t.OWNER WHERE u.ORACLE_MAINTAINED = 'N' AND t.TEMPORARY = 'N'"
        )

    def default_schema(self, session: CatalogSession) -> str:
        return session.value("SELECT SYS_CONTEXT('USERENV', 'CURRENT_SCHEMA') FROM DUAL")

    def server_problems(self, session: CatalogSession) -> list[ChangefeedError]:
        [(mode, supplemental)] = session.rows(
            "SELECT LOG_MODE, SUPPLEMENTAL_LOG_DATA_MIN FROM V$DATABASE"
        )
        found = []
        if mode != "ARCHIVELOG":
            found.append(
                ChangefeedError(
                    Code.SOURCE_NOT_SET_UP,
                    "the database does not archive its redo log",
                    hint="ALTER DATABASE ARCHIVELOG; on the mounted, not open, database.",
                )
            )
        if supplemental == "NO":
            found.append(
                ChangefeedError(
                    Code.SOURCE_NOT_SET_UP,
                    "the database has no supplemental logging",
                    hint="ALTER DATABASE ADD SUPPLEMENTAL LOG DATA;",
                )
            )
        return found

    def table_problems(
        self, session: CatalogSession, table: TableSchema, watch: Watch
    ) -> list[ChangefeedError]:
        name = table.table
        if session.rows(
            "SELECT 1 FROM ALL_LOG_GROUPS WHERE LOG_GROUP_TYPE = 'ALL COLUMN LOGGING'"
            f" AND OWNER = {literal(name.schema)} AND TABLE_NAME = {literal(name.name)}"
        ) or session.rows("SELECT 1 FROM V$DATABASE WHERE SUPPLEMENTAL_LOG_DATA_ALL = 'YES'"):
            return []
        quoted = ".".join('"' + part + '"' for part in (name.schema, name.name))
        return [
            ChangefeedError(
                Code.SOURCE_NOT_SET_UP,
                f"the database does not log whole rows of {name}",
                hint=f"ALTER TABLE {quoted} ADD SUPPLEMENTAL LOG DATA (ALL) COLUMNS;",
            )
        ]
