"""``clickhouse://user:password@host/database``: what the URI of a ClickHouse sink says.

How rows are kept is :mod:`.keeping`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, cast

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.settings import FileTls, Parameter, Settings, group
from changefeed.core.uri import invalid_uri
from sinks.base import SinkContext, Target
from sinks.ownership import NOT_OURS, occupied
from sinks.warehouse.clickhouse.keeping import ROWS, ClickHouseStrategy, engine_of, same_engine
from sinks.warehouse.sink import SQLTables, WarehouseSink
from sinks.warehouse.staging import TargetShape
from sinks.warehouse.tables import TargetTable

if TYPE_CHECKING:
    from sinks.warehouse.clickhouse.client import ClickHouse

_PLAIN, _TLS = 8123, 8443


class ClickHouseTables(SQLTables):
    """Tables of ClickHouse, each with a view for its readers."""

    @property
    def server(self) -> ClickHouse:
        """The client of the server."""
        return cast("ClickHouse", self.warehouse)

    def check_target(self, context: SinkContext, target: Target) -> None:
        if target.schema is not None:
            self.inspect(self.names(target, context), TargetShape(target.schema, target.topic))
        super().check_target(context, target)

    def inspect(self, table: TargetTable, shape: TargetShape) -> None:
        """Nobody's table is replaced by the view, and rows of another way of keeping (the feed had
        another ``history``) are not mixed with these: by another key they would be lost."""
        engine = self.server.engine(shape.topic)
        if engine == "View" and not self.server.view_reads(shape.topic, ROWS + shape.topic):
            raise occupied(
                str(shape.schema.table),
                f"the view {self.server.schema}.{shape.topic}",
                "the view of that name that this sink makes",
            )
        if engine not in ("", "View"):
            raise ChangefeedError(
                NOT_OURS,
                f"{shape.schema.table}: {shape.topic} is a table already, and this sink would make "
                "a view of that name",
                detail=f"{self.server.place}, engine {engine}",
                hint=f"rename it (to {ROWS}{shape.topic} when its columns and engine are those "
                "that the sink would give it), or give the feed another database.",
            )
        place = ROWS + shape.topic
        engine, order = engine_of(table, shape.schema)
        there = self.server.engine(place)
        if there and not (same_engine(there, engine) and self.server.order(place) == set(order)):
            raise ChangefeedError(
                Code.SINK_CANNOT_TAKE_TABLE,
                f"{shape.schema.table}: {place} has another engine or another key than this feed "
                "needs",
                detail=f"{self.server.place}: wanted {engine} ORDER BY ({', '.join(order)})",
                hint="drop or rename the table, or give the feed another database.",
            )


@dataclass(frozen=True, kw_only=True)
class ClickHouseSettings(Settings):
    """``clickhouse://user:password@host:8123/database``."""

    tls: FileTls = group(FileTls)

    def check(self) -> Iterator[ChangefeedError]:
        if not self.uri.host or not self.uri.database or "/" in self.uri.database:
            yield invalid_uri(
                "a ClickHouse sink is a server and a database",
                "write clickhouse://user:password@host:8123/database",
            )


class ClickHouseSink(WarehouseSink):
    """Tables of a ClickHouse database."""

    tables: ClassVar[type[SQLTables]] = ClickHouseTables
    parameters: ClassVar[tuple[Parameter, ...]] = ClickHouseSettings.parameters()

    def __init__(self, uri: str, options: Mapping[str, object] | None = None) -> None:
        settings = ClickHouseSettings.read(uri)
        # The client library takes a moment to import: only a sink of this kind needs it.
        from sinks.warehouse.clickhouse.client import Address, ClickHouse

        place, tls = settings.uri, settings.tls
        port = place.port or (_TLS if tls.wanted else _PLAIN)
        login = place.user or "default", place.password or ""
        address = Address(place.host, port, *login, tls.wanted, tls.ca_cert_file)
        self.server = ClickHouse(address, place.database)
        super().__init__(self.server, options, ClickHouseStrategy())
