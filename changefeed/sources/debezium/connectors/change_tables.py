"""SQL Server and Db2: changes come from tables that a capture job of the database fills.

A position is the LSN of a commit as the change tables have it. What has committed and was not
harvested yet has none: the log of these databases is what the job has written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.events import Position
from changefeed.core.schema import TableName, TableSchema
from changefeed.core.sql import literal
from changefeed.sources.base import Watch
from changefeed.sources.debezium.connectors.base import PREFIX, DescribedByDriver, Driver
from changefeed.sources.debezium.frames import Offset
from changefeed.sources.debezium.sessions import CatalogSession


def position_of(lsn: str) -> Position:
    """An LSN as text that sorts: hexadecimal digits of equal number."""
    return lsn.replace(":", "").lower().removeprefix("0x")


class _ChangeTables(DescribedByDriver):
    ends_by_position = True
    #: Where the change tables end, in hexadecimal digits.
    newest: str

    def position(self, offset: Mapping[str, Any]) -> Position:
        return position_of(str(offset["commit_lsn"]))

    def commit_position(self, source: Mapping[str, Any], offset: Mapping[str, Any]) -> Position:
        return position_of(str(source["commit_lsn"]))

    def current(self, session: CatalogSession) -> Position:
        found = session.value(self.newest)
        if not found:
            raise self._no_job()
        return position_of(found)

    def _no_job(self) -> ChangefeedError:
        return ChangefeedError(
            Code.SOURCE_NOT_SET_UP,
            "the database captures no changes: its change tables have no place yet",
            hint=f"enable change data capture and start its job: {self.setup}",
        )

    #: The statements that make the database capture, for hints.
    setup: str

    def begin(
        self, session: CatalogSession, memo: Mapping[str, Any]
    ) -> tuple[Position, Offset | None]:
        position = self.current(session)
        offset = {"commit_lsn": position, "change_lsn": None, "event_serial_no": 0}
        return position, (self.partition(), offset)

    def partition(self) -> dict[str, str]:
        """What Debezium's offsets belong to."""
        return {"server": PREFIX}


class SQLServer(_ChangeTables):
    """SQL Server, by its change tables."""

    scheme = "sqlserver"
    connector_class = "io.debezium.connector.sqlserver.SqlServerConnector"
    packs = ("debezium-sqlserver",)
    port = 1433
    driver = Driver(
        "com.microsoft.sqlserver.jdbc.SQLServerDriver",
        "jdbc:sqlserver://{host}:{port};databaseName={database}",
    )
    newest = "SELECT CONVERT(varchar(50), sys.fn_cdc_get_max_lsn(), 2)"
    setup = "EXEC sys.sp_cdc_enable_db; then start SQL Server Agent."

    names: Mapping[str, str] = {
        "bit": "bool",
        "tinyint": "int16",
        "real": "float32",
        "float": "float64",
        "money": "decimal(19,4)",
        "smallmoney": "decimal(10,4)",
        "datetimeoffset": "timestamptz",
        "datetime": "timestamp",
        "datetime2": "timestamp",
        "smalldatetime": "timestamp",
        "time": "time",
        "date": "date",
        "uniqueidentifier": "text",
        "xml": "text",
        "timestamp": "bytes",
        "rowversion": "bytes",
    }

    def login(self) -> dict[str, str]:
        return {**super().login(), "database.names": self.address.database}

    def scanning(self, tables: Sequence[TableName]) -> dict[str, str]:
        return {**super().scanning(tables), "snapshot.isolation.mode": "snapshot"}

    def partition(self) -> dict[str, str]:
        return {**super().partition(), "database": self.address.database}

    def identity(self, session: CatalogSession) -> str:
        return session.value(
            "SELECT CONVERT(varchar(36), family_guid) FROM sys.database_recovery_status"
            " WHERE database_id = DB_ID()"
        )

    def tables(self, session: CatalogSession) -> list[tuple[str, str]]:
        return session.names(
            "SELECT s.name, t.name FROM sys.tables t JOIN sys.schemas s"
            " ON s.schema_id = t.schema_id WHERE t.is_ms_shipped = 0 AND s.name <> 'cdc'"
        )

    def catalog(self) -> str | None:
        return self.address.database

    def default_schema(self, session: CatalogSession) -> str:
        return session.value("SELECT SCHEMA_NAME()")

    def server_problems(self, session: CatalogSession) -> list[ChangefeedError]:
        enabled = session.value("SELECT is_cdc_enabled FROM sys.databases WHERE name = DB_NAME()")
        if enabled in ("1", "true"):
            return []
        return [
            ChangefeedError(
                Code.SOURCE_NOT_SET_UP,
                "change data capture is not enabled for the database",
                hint=self.setup,
            )
        ]

    def table_problems(
        self, session: CatalogSession, table: TableSchema, watch: Watch
    ) -> list[ChangefeedError]:
        name = table.table
        tracked = session.value(
            "SELECT t.is_tracked_by_cdc FROM sys.tables t JOIN sys.schemas s"
            f" ON s.schema_id = t.schema_id WHERE s.name = {literal(name.schema)}"
            f" AND t.name = {literal(name.name)}"
        )
        if tracked in ("1", "true"):
            return []
        return [
            ChangefeedError(
                Code.SOURCE_NOT_SET_UP,
                f"the database does not capture table {name}",
                hint=f"EXEC sys.sp_cdc_enable_table @source_schema = N{literal(name.schema)},"
                f" @source_name = N{literal(name.name)}, @role_name = NULL;",
            )
        ]


class Db2(_ChangeTables):
    """Db2 for Linux, UNIX and Windows, by its ASN change tables."""

    scheme = "db2"
    connector_class = "io.debezium.connector.db2.Db2Connector"
    packs = ("debezium-db2",)
    port = 50000
    driver = Driver("com.ibm.db2.jcc.DB2Driver", "jdbc:db2://{host}:{port}/{database}")
    newest = (
        "SELECT HEX(MAX(t.SYNCHPOINT)) FROM (SELECT CD_NEW_SYNCHPOINT AS SYNCHPOINT"
        " FROM ASNCDC.IBMSNAP_REGISTER UNION ALL"
        " SELECT SYNCHPOINT FROM ASNCDC.IBMSNAP_REGISTER) t"
    )
    setup = "VALUES ASNCDC.ASNCDCSERVICES('start', 'asncdc');"

    names: Mapping[str, str] = {
        "decfloat": "decimal",
        "xml": "text",
        "real": "float32",
        "double": "float64",
    }

    def login(self) -> dict[str, str]:
        return {**super().login(), "database.dbname": self.address.database}

    def identity(self, session: CatalogSession) -> str:
        return session.value("SELECT CURRENT SERVER FROM SYSIBM.SYSDUMMY1") + f"@{self.address}"

    def tables(self, session: CatalogSession) -> list[tuple[str, str]]:
        return session.names(
            "SELECT RTRIM(TABSCHEMA), TABNAME FROM SYSCAT.TABLES WHERE TYPE = 'T'"
            " AND TABSCHEMA NOT LIKE 'SYS%' AND TABSCHEMA <> 'ASNCDC'"
        )

    def default_schema(self, session: CatalogSession) -> str:
        return session.value("SELECT RTRIM(CURRENT SCHEMA) FROM SYSIBM.SYSDUMMY1")

    def table_problems(
        self, session: CatalogSession, table: TableSchema, watch: Watch
    ) -> list[ChangefeedError]:
        name = table.table
        if session.rows(
            f"SELECT 1 FROM ASNCDC.IBMSNAP_REGISTER WHERE SOURCE_OWNER = {literal(name.schema)}"
            f" AND SOURCE_TABLE = {literal(name.name)}"
        ):
            return []
        return [
            ChangefeedError(
                Code.SOURCE_NOT_SET_UP,
                f"the database does not capture table {name}",
                hint=f"CALL ASNCDC.ADDTABLE({literal(name.schema)}, {literal(name.name)});",
            )
        ]
