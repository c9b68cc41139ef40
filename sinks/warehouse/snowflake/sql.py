"""Snowflake's SQL, as text.

A name in lower case is written in upper case, because that is what Snowflake makes of a name
without quotes: ``orders`` of the source is ``select .. from orders`` there. A name of mixed case
is kept as it is; one that is all in upper case at the source becomes lower case, so that
different names stay different.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar

from changefeed.core.types import Kind
from sinks.merged.values import decimal_pattern
from sinks.warehouse.dialect import COMMON_ERA, Dialect, TypeRule

_LOWER, _UPPER = re.compile(r"[a-z_][a-z0-9_$]*"), re.compile(r"[A-Z_][A-Z0-9_$]*")

#: A number without declared digits: 20 before and 18 behind the point.
_WHOLE, _SCALE = 20, 18
_FREE = f"NUMBER({_WHOLE + _SCALE},{_SCALE})"
_MOST_SCALE = 37

#: What :meth:`SnowflakeDialect.temporary` begins with.
TEMPORARY, DROP = "CREATE OR REPLACE TEMPORARY TABLE ", "DROP TABLE IF EXISTS "


def folded(name: str) -> str:
    """``name`` as it is called in Snowflake; its own inverse."""
    if _LOWER.fullmatch(name):
        return name.upper()
    return name.lower() if _UPPER.fullmatch(name) else name


class SnowflakeDialect(Dialect):
    """Snowflake. JSON and arrays are VARIANT; what it has no type for is text."""

    name = "Snowflake"
    max_name = 255
    folds_case = False
    transactional_ddl = False
    staging_types: ClassVar[Mapping[str, str]] = {**Dialect.staging_types, "string": "VARCHAR"}
    key_text = "VARCHAR"
    # A VARIANT is equal to another one by its value, and some of them to none.
    key_rules: ClassVar[Mapping[str, TypeRule]] = {"VARIANT": TypeRule("VARCHAR")}
    types: ClassVar[Mapping[Kind, TypeRule]] = {
        Kind.BOOL: TypeRule("BOOLEAN"),
        Kind.INT16: TypeRule("SMALLINT"),
        Kind.INT32: TypeRule("INTEGER"),
        Kind.INT64: TypeRule("BIGINT"),
        Kind.FLOAT32: TypeRule("FLOAT", "CAST(REPLACE({x}, 'Infinity', 'inf') AS FLOAT)"),
        Kind.FLOAT64: TypeRule("FLOAT", "CAST(REPLACE({x}, 'Infinity', 'inf') AS FLOAT)"),
        Kind.DECIMAL: TypeRule(_FREE, f"CAST({{x}} AS {_FREE})", decimal_pattern(_WHOLE, _SCALE)),
        Kind.TEXT: TypeRule("VARCHAR"),
        Kind.BYTES: TypeRule("BINARY", "TO_BINARY(SUBSTR({x}, 3), 'HEX')"),
        Kind.DATE: TypeRule("DATE", "CAST({x} AS DATE)", r"[0-9]{4}-[0-9]{2}-[0-9]{2}"),
        Kind.TIME: TypeRule("TIME(6)", "CAST({x} AS TIME(6))", r"(?:[01][0-9]|2[0-3]):.*"),
        Kind.TIMETZ: TypeRule("VARCHAR"),
        Kind.TIMESTAMP: TypeRule("TIMESTAMP_NTZ(6)", "CAST({x} AS TIMESTAMP_NTZ(6))", COMMON_ERA),
        Kind.TIMESTAMPTZ: TypeRule("TIMESTAMP_TZ(6)", "CAST({x} AS TIMESTAMP_TZ(6))", COMMON_ERA),
        Kind.INTERVAL: TypeRule("VARCHAR"),
        Kind.JSON: TypeRule("VARIANT", "PARSE_JSON({x})"),
        Kind.UUID: TypeRule("VARCHAR"),
        Kind.OTHER: TypeRule("VARCHAR"),
    }

    # ------------------------------------------------------------------ names and types

    def quote(self, name: str) -> str:
        return super().quote(folded(name))

    def literal(self, text: str) -> str:
        return super().literal(text.replace("\\", "\\\\"))

    def decimal(self, precision: int, scale: int) -> TypeRule:
        if precision > self.max_precision or scale > _MOST_SCALE:
            return self.types[Kind.OTHER]
        sql = f"NUMBER({precision},{scale})"
        accepts = decimal_pattern(precision - scale, scale)
        return TypeRule(sql, f"CAST({{x}} AS {sql})", accepts)

    # ------------------------------------------------------------------ expressions

    def copies(self, count: str) -> str:
        numbers = f"ARRAY_GENERATE_RANGE(0, CAST({count} AS INTEGER))"
        return f", LATERAL FLATTEN(INPUT => {numbers}) AS _copy"

    def instant(self, version: str) -> str:
        return f"TO_TIMESTAMP_TZ(FLOOR({version} / 1000), 6)"

    # ------------------------------------------------------------------ definitions

    def temporary(self, table: str, query: str) -> str:
        return f"{TEMPORARY}{self.quote(table)} AS {query}"

    def drop_temporary(self, table: str) -> str:
        return f"{DROP}{self.quote(table)}"

    def add_column(self, table: str, name: str, sql: str) -> str:
        return f"ALTER TABLE {table} ADD COLUMN IF NOT EXISTS {self.quote(name)} {sql}"

    # ------------------------------------------------------------------ applying changes

    def update_joined(
        self, table: str, source: str, alias: str, sets: Mapping[str, str], on: str
    ) -> str:
        return f"UPDATE {table} target SET {self.assigned(sets)} FROM {source} {alias} WHERE {on}"

    def delete_joined(self, table: str, source: str, alias: str, on: str) -> str:
        return f"DELETE FROM {table} target USING {source} {alias} WHERE {on}"
