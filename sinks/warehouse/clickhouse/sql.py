"""ClickHouse's SQL, as text: names, types and definitions.

Ranges are those of https://clickhouse.com/docs/sql-reference/data-types, read in November 2026:
``Date32`` and ``DateTime64(6)`` hold the years 1900 to 2299 and would silently take the nearest
value for others, so others are refused before they are loaded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from changefeed.core.schema import Column
from changefeed.core.sql import escaped
from changefeed.core.types import Kind
from sinks.merged.values import decimal_pattern
from sinks.warehouse.dialect import Dialect, TypeRule

#: A number without declared digits: 38 before and 38 behind the point.
_WHOLE, _SCALE = 38, 38
_FREE = f"Decimal({_WHOLE + _SCALE}, {_SCALE})"
_INSTANT = "DateTime64(6, 'UTC')"
_YEARS = r"(?:19|2[0-2])[0-9]{2}-"


def _cast(sql: str, expression: str = "{x}") -> str:
    return f"CAST({expression} AS Nullable({sql}))"


_MOMENT = _cast(_INSTANT, "replaceOne(replaceOne({x}, 'T', ' '), 'Z', '')")


class ClickHouseDialect(Dialect):
    """ClickHouse. All columns but those of a sorting key are Nullable.

    JSON and arrays are texts: an ``Array`` is never NULL itself, and ``JSON`` would change numbers.
    """

    name = "ClickHouse"
    transactional_ddl = False
    keeps_key = True
    max_name = 127
    max_precision = _WHOLE + _SCALE
    key_text = "String"
    # -0 and 0 are equal where rows are sorted and compared, and differ where they are grouped.
    key_rules: ClassVar[Mapping[str, TypeRule]] = {
        sql: TypeRule(sql, _cast(sql, f"({_cast(sql)} + 0)")) for sql in ("Float32", "Float64")
    }
    true, false = "true", "false"
    staging_types: ClassVar[Mapping[str, str]] = {
        "bool": "Bool",
        "int16": "Int16",
        "int32": "Int32",
        "int64": "Int64",
        "string": "String",
    }
    types: ClassVar[Mapping[Kind, TypeRule]] = {
        Kind.BOOL: TypeRule("Bool"),
        Kind.INT16: TypeRule("Int16"),
        Kind.INT32: TypeRule("Int32"),
        Kind.INT64: TypeRule("Int64"),
        Kind.FLOAT32: TypeRule("Float32", _cast("Float32")),
        Kind.FLOAT64: TypeRule("Float64", _cast("Float64")),
        Kind.DECIMAL: TypeRule(_FREE, _cast(_FREE), decimal_pattern(_WHOLE, _SCALE)),
        Kind.TEXT: TypeRule("String"),
        Kind.BYTES: TypeRule("String", "unhex(substring({x}, 3))"),
        Kind.DATE: TypeRule("Date32", _cast("Date32"), _YEARS + "[0-9]{2}-[0-9]{2}"),
        Kind.TIME: TypeRule("String"),
        Kind.TIMETZ: TypeRule("String"),
        Kind.TIMESTAMP: TypeRule(_INSTANT, _MOMENT, _YEARS + ".*[^C]"),
        Kind.TIMESTAMPTZ: TypeRule(_INSTANT, _MOMENT, _YEARS + ".*[^C]"),
        Kind.INTERVAL: TypeRule("String"),
        Kind.JSON: TypeRule("String"),
        Kind.UUID: TypeRule("UUID", _cast("UUID")),
        Kind.OTHER: TypeRule("String"),
    }

    outer_joins = " SETTINGS join_use_nulls = 1"

    # ------------------------------------------------------------------ names and types

    def quote(self, name: str) -> str:
        return escaped(name, "`")

    def literal(self, text: str) -> str:
        return escaped(text)

    def decimal(self, precision: int, scale: int) -> TypeRule:
        if precision > self.max_precision:
            return self.types[Kind.OTHER]
        sql = f"Decimal({precision}, {scale})"
        return TypeRule(sql, _cast(sql), decimal_pattern(precision - scale, scale))

    def ordered(self, expression: str, column: Column) -> str:
        return f"toString({expression})" if column.kind is Kind.UUID else expression

    def text_of(self, expression: str, rule: TypeRule) -> str:
        if rule is self.types[Kind.BYTES]:
            return f"concat('\\\\x', lower(hex({expression})))"
        return f"toString({expression})"

    def instant(self, version: str) -> str:
        return f"fromUnixTimestamp64Micro(intDiv(toInt64({version}), 1000), 'UTC')"

    # ------------------------------------------------------------------ definitions

    def create_schema(self, schema: str) -> str:
        return f"CREATE DATABASE IF NOT EXISTS {self.quote(schema)}"

    def create_table(self, table: str, columns: Mapping[str, str], key: Sequence[str] = ()) -> str:
        return self.sorted_table(table, columns, "MergeTree", key)

    def sorted_table(
        self,
        table: str,
        columns: Mapping[str, str],
        engine: str,
        order: Sequence[str],
        present: Sequence[str] = (),
    ) -> str:
        """A table of a MergeTree engine. Columns of its order, and those ``present``, are never
        NULL."""
        lines = ", ".join(
            f"{self.quote(name)} {sql if name in order or name in present else _nullable(sql)}"
            for name, sql in columns.items()
        )
        listed = ", ".join(map(self.quote, order))
        return f"CREATE TABLE IF NOT EXISTS {table} ({lines}) ENGINE = {engine} ORDER BY ({listed})"

    def create_staging(self, table: str, columns: Mapping[str, str]) -> str:
        """A batch is a partition, which goes as a whole."""
        first = tuple(columns)[:2]
        engine = f"MergeTree PARTITION BY {self.quote(first[0])}"
        return self.sorted_table(table, columns, engine, first)

    def add_column(self, table: str, name: str, sql: str) -> str:
        return f"ALTER TABLE {table} ADD COLUMN IF NOT EXISTS {self.quote(name)} {_nullable(sql)}"

    def widen_column(self, table: str, name: str, sql: str) -> str:
        return f"ALTER TABLE {table} MODIFY COLUMN {self.quote(name)} {_nullable(sql)}"


def _nullable(sql: str) -> str:
    return f"Nullable({sql})"
