"""Spanner's SQL (GoogleSQL), as text: names, types, definitions and what is not a mutation.

Limits are those of https://cloud.google.com/spanner/quotas, and what can be altered that of
https://cloud.google.com/spanner/docs/schema-updates, read in November 2026: no column of a table
can be renamed, and none gets another type. A table's name, unlike a column's, begins with a letter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from changefeed.core.sql import escaped
from changefeed.core.types import Kind
from sinks.merged.values import decimal_pattern
from sinks.warehouse.dialect import COMMON_ERA, Dialect, TypeRule

#: Digits of NUMERIC before and behind the point.
_WHOLE, _SCALE = 29, 9
#: Bytes of a cell, and of a row's whole key.
_CELL, _KEY = 10 << 20, 8 << 10
#: Characters of STRING(MAX). Texts are measured in bytes here, so one that is not ASCII may be
#: refused that Spanner would take, but none is sent that it would not.
_CHARACTERS = 2_621_440
_TEXT = TypeRule("STRING(MAX)", longest=_CHARACTERS)


class SpannerDialect(Dialect):
    """GoogleSQL of Spanner. ``TypeRule.cast`` is not used: values travel as mutations
    (:mod:`.rows`)."""

    name = "Spanner"
    max_name = 128
    folds_case = True
    transactional_ddl = False
    keeps_key = True
    staging_types: ClassVar[Mapping[str, str]] = {
        "bool": "BOOL",
        "int16": "INT64",
        "int32": "INT64",
        "int64": "INT64",
        "string": "STRING(MAX)",
    }
    key_text = "STRING(MAX)"
    # JSON is no key, and a key has a length.
    key_rules: ClassVar[Mapping[str, TypeRule]] = {
        "JSON": TypeRule("STRING(MAX)", longest=_KEY),
        "STRING(MAX)": TypeRule("STRING(MAX)", longest=_KEY),
        "BYTES(MAX)": TypeRule("BYTES(MAX)", longest=2 * _KEY),
    }
    most_key_columns = 16
    types: ClassVar[Mapping[Kind, TypeRule]] = {
        Kind.BOOL: TypeRule("BOOL"),
        Kind.INT16: TypeRule("INT64"),
        Kind.INT32: TypeRule("INT64"),
        Kind.INT64: TypeRule("INT64"),
        Kind.FLOAT32: TypeRule("FLOAT64"),
        Kind.FLOAT64: TypeRule("FLOAT64"),
        Kind.DECIMAL: TypeRule("NUMERIC", accepts=decimal_pattern(_WHOLE, _SCALE)),
        Kind.TEXT: _TEXT,
        Kind.BYTES: TypeRule("BYTES(MAX)", longest=2 * _CELL + 2),
        Kind.DATE: TypeRule("DATE", accepts=r"[0-9]{4}-[0-9]{2}-[0-9]{2}"),
        Kind.TIME: _TEXT,
        Kind.TIMETZ: _TEXT,
        Kind.TIMESTAMP: TypeRule("TIMESTAMP", accepts=COMMON_ERA),
        Kind.TIMESTAMPTZ: TypeRule("TIMESTAMP", accepts=COMMON_ERA),
        Kind.INTERVAL: _TEXT,
        Kind.JSON: TypeRule("JSON", longest=_CELL),
        Kind.UUID: TypeRule("STRING(36)"),
        Kind.OTHER: _TEXT,
    }

    # ------------------------------------------------------------------ names and types

    def quote(self, name: str) -> str:
        return escaped(name, "`")

    def literal(self, text: str) -> str:
        return escaped(text).replace("\n", "\\n").replace("\r", "\\r")

    def decimal(self, precision: int, scale: int) -> TypeRule:
        """NUMERIC takes no digits of its own: what the column declares is checked before."""
        if scale > _SCALE or precision - scale > _WHOLE:
            return self.types[Kind.OTHER]
        return TypeRule("NUMERIC", accepts=decimal_pattern(precision - scale, scale))

    # ------------------------------------------------------------------ definitions

    def create_table(self, table: str, columns: Mapping[str, str], key: Sequence[str] = ()) -> str:
        lines = ", ".join(
            f"{self.quote(name)} {sql}{' NOT NULL' if name in key else ''}"
            for name, sql in columns.items()
        )
        listed = ", ".join(map(self.quote, key))
        return f"CREATE TABLE IF NOT EXISTS {table} ({lines}) PRIMARY KEY ({listed})"

    def add_column(self, table: str, name: str, sql: str) -> str:
        return f"ALTER TABLE {table} ADD COLUMN IF NOT EXISTS {self.quote(name)} {sql}"

    def drop_column(self, table: str, name: str) -> str:
        """Drop a column that is no part of the key."""
        return f"ALTER TABLE {table} DROP COLUMN {self.quote(name)}"

    # ------------------------------------------------------------------ looks

    #: SELECT of the database's dialect, which both dialects understand.
    dialect_of: ClassVar[str] = (
        "SELECT OPTION_VALUE FROM INFORMATION_SCHEMA.DATABASE_OPTIONS "
        "WHERE OPTION_NAME = 'database_dialect'"
    )

    def columns_of(self, table: str) -> str:
        """SELECT of a table's name as it was defined, and the names and types of its columns, in
        order. Names of tables are one in any case, but here they are texts."""
        return (
            "SELECT TABLE_NAME, COLUMN_NAME, SPANNER_TYPE FROM INFORMATION_SCHEMA.COLUMNS "
            f"WHERE TABLE_SCHEMA = '' AND LOWER(TABLE_NAME) = LOWER({self.literal(table)}) "
            "ORDER BY ORDINAL_POSITION"
        )

    def key_of(self, table: str) -> str:
        """SELECT of a table's name as it was defined, and the columns of its primary key, in
        order."""
        return (
            "SELECT TABLE_NAME, COLUMN_NAME FROM INFORMATION_SCHEMA.INDEX_COLUMNS "
            f"WHERE TABLE_SCHEMA = '' AND LOWER(TABLE_NAME) = LOWER({self.literal(table)}) "
            "AND INDEX_NAME = 'PRIMARY_KEY' ORDER BY ORDINAL_POSITION"
        )
