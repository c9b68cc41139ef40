"""``redshift://user:password@cluster:5439/database?schema=name``: Amazon Redshift.

**Written from Redshift's documentation and never run against it**: there is no server of it to be
had for tests. The statements are golden texts, and the strategy (delete and insert in one
transaction, rows loaded by INSERT) passes the list of merging sinks on PostgreSQL, whose protocol
Redshift speaks. What is kept to: MERGE takes no subquery as its source and no conditions, DELETE
no alias, ``first_value`` needs a frame.

A table without a key is refused: there is no way to repeat a row a number of times.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.settings import Parameter, ParameterKind, Settings, setting
from changefeed.core.types import Kind, LogicalType
from changefeed.core.uri import invalid_uri, without
from sinks.merged.values import decimal_pattern
from sinks.warehouse.dialect import (
    COMMON_ERA,
    Dialect,
    SqlStatement,
    TypeRule,
)
from sinks.warehouse.postgresql import PostgreSQL, PostgreSQLDialect
from sinks.warehouse.rows import packets
from sinks.warehouse.sink import WarehouseSink

#: Bytes of the longest VARCHAR; a statement may have 16 MB.
_TEXT = "VARCHAR(65535)"
_FREE = "DECIMAL(38,18)"
_LONGEST = 65535
#: In comparisons of texts blanks at the end do not count: keys that have some could become one.
_KEY = TypeRule(_TEXT, accepts=r"(?s)(?:.*[^ ])?", longest=_LONGEST)
#: The target's alias before a column, or a quoted name or literal, which is left as it is.
_ALIAS = re.compile(r'"(?:[^"]|"")*"|\'(?:[^\']|\'\')*\'|\b(target\.)(?=")')


class RedshiftDialect(PostgreSQLDialect):
    """Redshift's SQL, as text."""

    name = "Redshift"
    folds_case = True
    keeps_key = False
    merges = False
    widens_to_text = False
    counts = False
    max_name = 127
    max_precision = 38
    key_text = "VARCHAR(512)"
    key_rules: ClassVar[Mapping[str, TypeRule]] = dict.fromkeys((_TEXT, "SUPER"), _KEY)
    staging_types: ClassVar[Mapping[str, str]] = {
        "bool": "BOOLEAN",
        "int16": "SMALLINT",
        "int32": "INTEGER",
        "int64": "BIGINT",
        "string": _TEXT,
    }
    types: ClassVar[Mapping[Kind, TypeRule]] = {
        Kind.BOOL: TypeRule("BOOLEAN"),
        Kind.INT16: TypeRule("SMALLINT"),
        Kind.INT32: TypeRule("INTEGER"),
        Kind.INT64: TypeRule("BIGINT"),
        Kind.FLOAT32: TypeRule("REAL", "CAST({x} AS REAL)"),
        Kind.FLOAT64: TypeRule("DOUBLE PRECISION", "CAST({x} AS DOUBLE PRECISION)"),
        Kind.DECIMAL: TypeRule(_FREE, f"CAST({{x}} AS {_FREE})", decimal_pattern(20, 18)),
        Kind.TEXT: TypeRule(_TEXT, longest=_LONGEST),
        Kind.BYTES: TypeRule("VARBYTE(65535)", "from_hex(substring({x}, 3))", longest=_LONGEST),
        Kind.DATE: TypeRule("DATE", "CAST({x} AS DATE)", COMMON_ERA),
        Kind.TIME: TypeRule("TIME", "CAST({x} AS TIME)"),
        Kind.TIMETZ: TypeRule("TIMETZ", "CAST({x} AS TIMETZ)"),
        Kind.TIMESTAMP: TypeRule("TIMESTAMP", "CAST({x} AS TIMESTAMP)", COMMON_ERA),
        Kind.TIMESTAMPTZ: TypeRule("TIMESTAMPTZ", "CAST({x} AS TIMESTAMPTZ)", COMMON_ERA),
        Kind.INTERVAL: TypeRule("VARCHAR(128)"),
        Kind.JSON: TypeRule("SUPER", "json_parse({x})", longest=_LONGEST),
        Kind.UUID: TypeRule("VARCHAR(36)"),
        Kind.OTHER: TypeRule(_TEXT, longest=_LONGEST),
    }

    def decimal(self, precision: int, scale: int) -> TypeRule:
        return self.types[Kind.OTHER] if scale > 37 else Dialect.decimal(self, precision, scale)

    def array(self, element: LogicalType) -> TypeRule:
        return self.types[Kind.JSON]

    def instant(self, version: str) -> str:
        return f"timestamptz 'epoch' + ({version} / 1000) * interval '1 microsecond'"

    def create_staging(self, table: str, columns: Mapping[str, str]) -> str:
        return f"{self.create_table(table, columns)} BACKUP NO SORTKEY (_batch_id, _sequence_num)"

    def widen_column(self, table: str, name: str, sql: str) -> str:
        raise ChangefeedError(
            Code.SINK_CANNOT_TAKE_TABLE,
            f"Redshift cannot give column {name} a wider type",
            detail=f"target {table}",
            hint="it only lengthens VARCHAR: create the target again.",
        )

    def delete_joined(self, table: str, source: str, alias: str, on: str) -> str:
        # The target has no alias in DELETE.
        named = _ALIAS.sub(lambda found: f"{table}." if found[1] else found[0], on)
        return f"DELETE FROM {table} USING {source} AS {alias} WHERE {named}"


class Redshift(PostgreSQL):
    """Rows are loaded by INSERT: COPY reads from S3 alone."""

    def __init__(self, uri: str, schema: str, place: str) -> None:
        super().__init__(uri, schema, place)
        self.dialect = RedshiftDialect()

    def _is_called(self, table: str) -> str:
        return f"lower(c.relname) = lower({self.dialect.literal(table)})"

    def folding(self, table: str) -> Mapping[str, str]:
        return self.probed_folding(table)

    def identity(self) -> str:
        return ""

    def load(self, table: str, rows: pa.Table, load_id: str) -> None:
        names = ", ".join(map(self.dialect.quote, rows.column_names))
        head = f"INSERT INTO {self.name(table)} ({names}) VALUES "
        # Backslashes in a literal stand for themselves, as in standard_conforming_strings.
        self.run([SqlStatement(head + values, table) for values in packets(rows)])


@dataclass(frozen=True, kw_only=True)
class RedshiftSettings(Settings):
    """``redshift://user:password@cluster:5439/database``."""

    schema: str = setting("public", "The schema of the tables.")
    sslmode: str | None = setting(
        None,
        "libpq's parameter.",
        values=("disable", "prefer", "require", "verify-ca", "verify-full"),
        shown="libpq's",
    )
    sslrootcert: str = setting("", "libpq's parameter.", ParameterKind.PATH)

    def check(self) -> Iterator[ChangefeedError]:
        if not self.uri.host or not self.uri.database:
            yield invalid_uri(
                "a Redshift sink names a cluster and a database",
                "write redshift://user:password@cluster:5439/database?schema=name",
            )


class RedshiftSink(WarehouseSink):
    """Tables of a Redshift database."""

    parameters: ClassVar[tuple[Parameter, ...]] = RedshiftSettings.parameters()

    def __init__(self, uri: str, options: Mapping[str, object] | None = None) -> None:
        settings = RedshiftSettings.read(uri)
        parts = settings.uri
        address = for_libpq(uri, parts.port or 5439)
        place = f"Redshift {parts.host}/{parts.database}"
        super().__init__(Redshift(address, settings.schema or "public", place), options)


def for_libpq(uri: str, port: int) -> str:
    """The URI as PostgreSQL's client library reads it."""
    address, mark, query = without(uri, {"schema"}).partition("?")
    rest = address.partition("://")[2]
    authority, _, database = rest.partition("/")
    if not re.search(r":\d+\Z", authority):
        authority += f":{port}"
    return f"postgresql://{authority}/{database}{mark}{query}"
