"""BigQuery's SQL (GoogleSQL), as text.

Limits are those of https://cloud.google.com/bigquery/docs/reference/standard-sql/data-types and
https://cloud.google.com/bigquery/docs/schemas#column_names, read in November 2026.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import ClassVar

from changefeed.core.sql import escaped
from changefeed.core.types import Kind
from sinks.merged.values import decimal_pattern
from sinks.warehouse.dialect import COMMON_ERA, Dialect, TypeRule

#: Digits before and behind the point.
_NUMERIC, _BIGNUMERIC = (29, 9), (38, 38)

#: Types a table can be clustered by; no others are looked up by a key anyway.
_CLUSTERS = re.compile(r"(?:INT64|STRING|BOOL|DATE|DATETIME|TIMESTAMP|(?:BIG)?NUMERIC)\b")
_MOST_CLUSTERS = 4

#: One staging partition a day. A table may have 10,000 of them: until 2053.
_DAY_US = 86_400_000_000
_FIRST_DAY = 20_454 * _DAY_US  # 2026-01-01
_LAST_DAY = _FIRST_DAY + 9_990 * _DAY_US

#: What no column or table name may hold, and column names that are taken.
_FORBIDDEN = re.compile(r'[!"$()*,./;?@\[\\\]^`{}~\x00-\x1f\x7f]')
_TAKEN = re.compile(
    r"_(?=TABLE_|FILE_|PARTITION|ROW_TIMESTAMP|_ROOT__|COLIDENTIFIER|CHANGE_SEQUENCE|CHANGE_TYPE)",
    re.IGNORECASE,
)
_ESCAPED = re.compile(r"_u([0-9a-f]{4})_")


def escape_name(name: str) -> str:
    """``name`` as BigQuery can spell it: what is forbidden becomes ``_uXXXX_``.

    What already looks so is escaped itself: different names stay different, and
    :func:`plain_name` is the inverse.
    """
    escaped = _ESCAPED.sub(lambda m: f"_u005f_{m[0][1:]}", name)
    escaped = _FORBIDDEN.sub(lambda m: f"_u{ord(m[0]):04x}_", escaped)
    taken = _TAKEN.match(escaped)
    return f"_u005f_{escaped[1:]}" if taken else escaped


def plain_name(name: str) -> str:
    """The inverse of :func:`escape_name`."""
    return _ESCAPED.sub(lambda m: chr(int(m[1], 16)), name)


class BigQueryDialect(Dialect):
    """GoogleSQL. Columns of types BigQuery has no equal of are texts as the source prints them."""

    name = "BigQuery"
    max_name = 300
    folds_case = True
    transactional_ddl = False
    staging_types: ClassVar[Mapping[str, str]] = {
        "bool": "BOOL",
        "int16": "INT64",
        "int32": "INT64",
        "int64": "INT64",
        "string": "STRING",
    }
    key_text = "STRING"
    # A key is compared and sorted into partitions, which these cannot be.
    key_rules: ClassVar[Mapping[str, TypeRule]] = dict.fromkeys(
        ("JSON", "FLOAT64"), TypeRule("STRING")
    )
    most_key_columns = 16
    types: ClassVar[Mapping[Kind, TypeRule]] = {
        Kind.BOOL: TypeRule("BOOL"),
        Kind.INT16: TypeRule("INT64"),
        Kind.INT32: TypeRule("INT64"),
        Kind.INT64: TypeRule("INT64"),
        Kind.FLOAT32: TypeRule("FLOAT64", "CAST({x} AS FLOAT64)"),
        Kind.FLOAT64: TypeRule("FLOAT64", "CAST({x} AS FLOAT64)"),
        Kind.DECIMAL: TypeRule(
            "BIGNUMERIC", "CAST({x} AS BIGNUMERIC)", decimal_pattern(*_BIGNUMERIC)
        ),
        Kind.TEXT: TypeRule("STRING"),
        Kind.BYTES: TypeRule("BYTES", "FROM_HEX(SUBSTR({x}, 3))"),
        Kind.DATE: TypeRule("DATE", "CAST({x} AS DATE)", r"[0-9]{4}-[0-9]{2}-[0-9]{2}"),
        Kind.TIME: TypeRule("TIME", "CAST({x} AS TIME)", r"(?:[01][0-9]|2[0-3]):.*"),
        Kind.TIMETZ: TypeRule("STRING"),
        Kind.TIMESTAMP: TypeRule("DATETIME", "CAST({x} AS DATETIME)", COMMON_ERA),
        Kind.TIMESTAMPTZ: TypeRule("TIMESTAMP", "CAST({x} AS TIMESTAMP)", COMMON_ERA),
        Kind.INTERVAL: TypeRule("STRING"),
        Kind.JSON: TypeRule("JSON", "PARSE_JSON({x}, wide_number_mode=>'round')"),
        Kind.UUID: TypeRule("STRING"),
        Kind.OTHER: TypeRule("STRING"),
    }

    # ------------------------------------------------------------------ names and types

    def quote(self, name: str) -> str:
        return f"`{escape_name(name)}`"

    def literal(self, text: str) -> str:
        return escaped(text).replace("\n", "\\n").replace("\r", "\\r")

    def decimal(self, precision: int, scale: int) -> TypeRule:
        for name, (whole, part) in (("NUMERIC", _NUMERIC), ("BIGNUMERIC", _BIGNUMERIC)):
            if scale <= part and precision - scale <= whole:
                # The parameters belong to the column: CAST takes none.
                declared = f"{name}({precision},{scale})" if scale else f"{name}({precision})"
                accepts = decimal_pattern(precision - scale, scale)
                return TypeRule(declared, f"CAST({{x}} AS {name})", accepts)
        return self.types[Kind.OTHER]

    # ------------------------------------------------------------------ expressions

    def same_row(self, columns: Sequence[str], left: str, right: str) -> str:
        """JSON cannot be compared, and a join needs an equality: the rows as JSON text."""
        return f"{self._row_text(columns, left)} = {self._row_text(columns, right)}"

    def _row_text(self, columns: Sequence[str], source: str) -> str:
        return f"TO_JSON_STRING(STRUCT({self.listed(columns, source)}))"

    def distinct(self, columns: Sequence[str], source: str) -> tuple[str, str]:
        """JSON cannot be grouped either."""
        q = self.quote
        listed = ", ".join(f"ANY_VALUE({source}.{q(c)}) AS {q(c)}" for c in columns)
        return listed, self._row_text(columns, source)

    def copies(self, count: str) -> str:
        return f"CROSS JOIN UNNEST(GENERATE_ARRAY(1, CAST({count} AS INT64))) AS _copy"

    def instant(self, version: str) -> str:
        return f"TIMESTAMP_MICROS(DIV({version}, 1000))"

    # ------------------------------------------------------------------ definitions

    def create_table(self, table: str, columns: Mapping[str, str], key: Sequence[str] = ()) -> str:
        """The key is declared (not enforced), with what a MERGE finds rows by."""
        lines = [
            f"{self.quote(name)} {sql}{' NOT NULL' if name in key else ''}"
            for name, sql in columns.items()
        ]
        if key:
            lines.append(f"PRIMARY KEY ({self.listed(key)}) NOT ENFORCED")
        clusters = [c for c in key if _CLUSTERS.match(columns[c])][:_MOST_CLUSTERS]
        ending = f" CLUSTER BY {self.listed(clusters)}" if clusters else ""
        return f"CREATE TABLE IF NOT EXISTS {table} ({', '.join(lines)}){ending}"

    def create_staging(self, table: str, columns: Mapping[str, str]) -> str:
        days = f"GENERATE_ARRAY({_FIRST_DAY}, {_LAST_DAY}, {_DAY_US})"
        batch, sequence = map(self.quote, list(columns)[:2])
        plain = super().create_table(table, columns)
        return f"{plain} PARTITION BY RANGE_BUCKET({batch}, {days}) CLUSTER BY {sequence}"

    def add_column(self, table: str, name: str, sql: str) -> str:
        return f"ALTER TABLE {table} ADD COLUMN IF NOT EXISTS {self.quote(name)} {sql}"

    # ------------------------------------------------------------------ applying changes

    def delete_joined(self, table: str, source: str, alias: str, on: str) -> str:
        return (
            f"DELETE FROM {table} AS target "
            f"WHERE EXISTS (SELECT 1 FROM {source} AS {alias} WHERE {on})"
        )
