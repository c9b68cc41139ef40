"""Tables by the description that a JDBC driver gives, for databases without a dialect of ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from changefeed.core.schema import Column
from changefeed.core.types import LogicalType
from changefeed.sources.debezium.connectors.base import Connector, TableDescription
from changefeed.sources.debezium.sessions import CatalogSession

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
        told = session.columns(self.catalog(), schema, name)
        if not told["columns"]:
            return None
        columns = tuple(_column(column, self.names) for column in told["columns"])
        return TableDescription(columns, tuple(told["key"]))


def _column(told: Mapping[str, Any], names: Mapping[str, str]) -> Column:
    type_name = str(told["type_name"]).lower()
    size, digits = told["size"], told["digits"]
    plain = type_name.partition("(")[0].removesuffix(" identity")
    if plain in names:
        logical = names[plain]
    elif told["type"] in _NUMERIC:
        logical = "decimal" if digits is None or not size else f"decimal({size},{digits})"
    else:
        logical = _LOGICAL.get(told["type"], "text")
    return Column(told["name"], type_name, LogicalType.parse(logical), bool(told["nullable"]))
