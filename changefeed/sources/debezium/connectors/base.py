"""What a connector of Debezium needs and gives: settings, positions in its log, descriptions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.events import Position
from changefeed.core.schema import BeforeImage, Column, TableName, TableSchema
from changefeed.core.types import LogicalType
from changefeed.sources.base import Watch
from changefeed.sources.debezium.address import Address, parse
from changefeed.sources.debezium.frames import Offset
from changefeed.sources.debezium.sessions import CatalogSession

#: The name of the engine and the prefix of its topics: part of what it stores.
PREFIX = "changefeed"


@dataclass(frozen=True, slots=True)
class TableDescription:
    """A table as its database describes it: columns, names of the key, what old rows hold."""

    columns: tuple[Column, ...]
    key: tuple[str, ...]
    image: BeforeImage = BeforeImage.FULL


@dataclass(frozen=True, slots=True)
class Driver:
    """A JDBC driver: its class, and its URL with ``{host}``, ``{port}`` and ``{database}``."""

    name: str
    url: str
    properties: Mapping[str, str] = field(default_factory=dict)


class Connector(ABC):
    """One kind of database, read through one connector."""

    #: Scheme of the URI; class of Debezium; jar packs in addition to Debezium's own; TCP port.
    scheme: str
    connector_class: str
    packs: tuple[str, ...]
    port: int
    #: The driver by which the database is asked; see :meth:`opening`.
    driver: Driver

    #: The URI names the database; else it may leave it out.
    needs_database = True
    #: A time of day may have more than 24 hours, and a sign.
    long_times = False
    #: TRUNCATE ends the transaction that is open, and has none of its own.
    truncate_commits = False
    #: Debezium needs the history of all definitions to read rows.
    keeps_history = True
    #: Debezium goes on at an offset; else the database keeps the position, and sends again what
    #: comes after the last acknowledged one.
    resumes_by_offset = True
    #: A later position in the log shows the end of a transaction, too.
    ends_by_position = False
    #: Fields of an offset by which the rows of one commit differ from those of another, where
    #: Debezium does not mark the ends of all transactions.
    commit_fields: tuple[str, ...] = ()

    def __init__(self, address: Address) -> None:
        self.address = address

    # -- settings --------------------------------------------------------------------

    @classmethod
    def of(cls, uri: str) -> Self:
        """The connector of a source's URI.

        Raises:
            ChangefeedError: CF1201, CF1202, CF1207 the URI cannot be read.
        """
        address = parse(uri, cls.port)
        if cls.needs_database and not address.database:
            raise ChangefeedError(
                Code.INVALID_URI,
                f"the URI of a source {address.scheme}:// names a database",
                hint=f"write it as {address.scheme}://user:password@host:{cls.port}/database",
            )
        return cls(address)

    def opening(self) -> dict[str, Any]:
        """The command that lets the JVM connect to the database."""
        address, driver = self.address, self.driver
        return {
            "client": "changefeed.Jdbc",
            "driver": driver.name,
            "url": driver.url.format(
                host=address.host, port=address.port, database=address.database
            ),
            "properties": {
                "user": address.user,
                "password": address.password,
                **driver.properties,
                **address.driver_properties,
            },
            "timeout": address.connect_timeout,
        }

    def login(self) -> dict[str, str]:
        """Debezium's properties that say where the database is and who logs in."""
        address = self.address
        return {
            "database.hostname": address.host,
            "database.port": str(address.port),
            "database.user": address.user,
            "database.password": address.password,
        }

    def streaming(self, memo: Mapping[str, Any]) -> dict[str, str]:
        """Properties of the connector that streams."""
        return {}

    def scanning(self, tables: Sequence[TableName]) -> dict[str, str]:
        """Properties of the connector that reads tables once."""
        return {"snapshot.mode": "initial_only", "table.include.list": _regexes(tables)}

    def scanned(self, session: CatalogSession, properties: Mapping[str, str]) -> None:  # noqa: B027
        """Remove what the connector that read tables once has left."""

    def table_of(self, source: Mapping[str, Any]) -> tuple[str, str]:
        """Schema and name of the table that a row is from."""
        return str(source["schema"]), str(source["table"])

    # -- positions -------------------------------------------------------------------

    @abstractmethod
    def position(self, offset: Mapping[str, Any]) -> Position:
        """The position that an offset outside of a transaction stands for; empty where it says
        nothing of what was read."""

    def scan_position(self, offset: Mapping[str, Any]) -> Position:
        """The position of the image that a row of a snapshot is from, by the row's offset."""
        return self.position(offset)

    @abstractmethod
    def commit_position(self, source: Mapping[str, Any], offset: Mapping[str, Any]) -> Position:
        """The position of a transaction, by its last row and the offset of its end."""

    @abstractmethod
    def current(self, session: CatalogSession) -> Position:
        """See :meth:`changefeed.sources.base.Source.current_position`."""

    @abstractmethod
    def identity(self, session: CatalogSession) -> str:
        """Which database this is."""

    def transaction_id(self, source: Mapping[str, Any]) -> int:
        """A number of the transaction of a row; 0 where there is none."""
        return 0

    # -- what is held ----------------------------------------------------------------

    #: Something is made at the database that must be removed.
    leaves_something = False

    def memo(self, owner: str) -> dict[str, Any]:
        """What the connector keeps in the memo; ``owner`` is the state's and the source's name."""
        return {}

    @abstractmethod
    def begin(
        self, session: CatalogSession, memo: Mapping[str, Any]
    ) -> tuple[Position, Offset | None]:
        """Where a new log begins, after :meth:`hold`."""

    def hold(  # noqa: B027
        self, session: CatalogSession, memo: Mapping[str, Any], tables: Sequence[TableName]
    ) -> None:
        """Make the database send the tables, where it does not by itself. Idempotent."""

    def still_held(self, session: CatalogSession, memo: Mapping[str, Any]) -> bool:
        """What makes the database keep its log is there."""
        return True

    def release(self, session: CatalogSession, memo: Mapping[str, Any]) -> None:  # noqa: B027
        """Remove what :meth:`hold` made. Idempotent."""

    def holds(self, memo: Mapping[str, Any]) -> str:
        """What is held, for people."""
        return "a place in the log of the database"

    # -- tables ----------------------------------------------------------------------

    @abstractmethod
    def tables(self, session: CatalogSession) -> list[tuple[str, str]]:
        """Schema and name of every table that could be watched."""

    @abstractmethod
    def described(self, session: CatalogSession, schema: str, name: str) -> TableDescription | None:
        """A table as it is now; None when there is none."""

    def sizes(self, session: CatalogSession) -> Mapping[tuple[str, str], tuple[int, int]]:
        """Estimates of rows and bytes by table, where the database has them."""
        return {}

    @abstractmethod
    def default_schema(self, session: CatalogSession) -> str:
        """The schema of names without one."""

    def server_problems(self, session: CatalogSession) -> list[ChangefeedError]:
        """Why nothing can be captured from this server."""
        return []

    def table_problems(
        self, session: CatalogSession, table: TableSchema, watch: Watch
    ) -> list[ChangefeedError]:
        """Why a table that is there cannot be captured."""
        return []


def _regexes(tables: Sequence[TableName]) -> str:
    return ",".join(escaped(f"{table.schema}.{table.name}") for table in tables)


def escaped(name: str) -> str:
    """A regular expression for exactly this name, as Debezium's lists take it."""
    special = "\\.[]{}()*+-?^$|/"
    escapes = "".join(f"\\{letter}" if letter in special else letter for letter in name)
    return escapes.replace(",", "\\,")


#: java.sql.Types -> neutral type.
_LOGICAL = {
    -7: "bool",
    16: "bool",
    -6: "int16",
    5: "int16",
    4: "int32",
    -5: "int64",
    7: "float32",
    6: "float64",
    8: "float64",
    -2: "bytes",
    -3: "bytes",
    -4: "bytes",
    2004: "bytes",
    91: "date",
    92: "time",
    93: "timestamp",
    2013: "timetz",
    2014: "timestamptz",
}
_NUMERIC = (2, 3)


class DescribedByDriver(Connector):
    """A connector that describes tables by what the driver says."""

    #: Neutral types by the driver's name of the type; any other type goes by its number.
    names: Mapping[str, str]

    def catalog(self) -> str | None:
        """What the driver calls a catalog: the database, where one connection sees several."""
        return None

    def described(self, session: CatalogSession, schema: str, name: str) -> TableDescription | None:
        described = session.columns(self.catalog(), schema, name)
        if not described["columns"]:
            return None
        columns = tuple(_column(column, self.names) for column in described["columns"])
        return TableDescription(columns, tuple(described["key"]))


def _column(described: Mapping[str, Any], names: Mapping[str, str]) -> Column:
    type_name = str(described["type_name"]).lower()
    size, digits = described["size"], described["digits"]
    plain = type_name.partition("(")[0].removesuffix(" identity")
    if plain in names:
        logical = names[plain]
    elif described["type"] in _NUMERIC:
        logical = "decimal" if digits is None or not size else f"decimal({size},{digits})"
    else:
        logical = _LOGICAL.get(described["type"], "text")
    return Column(
        described["name"], type_name, LogicalType.parse(logical), bool(described["nullable"])
    )
