"""Staged values as the values that Spark would write, in Arrow; and their statistics."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from changefeed.core.errors import ChangefeedError
from changefeed.core.schema import Column
from changefeed.core.types import LogicalType
from changefeed.encoding.typed_values import (
    list_items,
    lists_of,
    not_numbers,
    printed,
    single_floats,
    typed_values,
)
from sinks.lake.types import spark_type

_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)\Z")
_TYPES = {
    "long": pa.int64(),
    "integer": pa.int32(),
    "short": pa.int16(),
    "byte": pa.int8(),
    "string": pa.string(),
    "boolean": pa.bool_(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "binary": pa.binary(),
}
#: What Delta calls types that have another name in SQL.
_DELTA_NAMES = {"bigint": "long", "int": "integer", "smallint": "short"}
#: Days and microseconds of 1900 and of 10000. Spark reads older ones by rules that depend on their
#: writer, and refuses later ones.
_DAYS = (-25_567, 2_932_897)
_MICROS = tuple(days * 86_400_000_000 for days in _DAYS)
#: The log has statistics of so many columns (Delta's own default), and of texts up to this length.
_WITH_STATISTICS, _LONGEST = 32, 32


class UnsupportedCase(Exception):
    """Only Spark can do it: it has rules of its own for a value, a type or rows of one key."""


def delta_type(name: str) -> object:
    """How the table's schema writes a type of SQL."""
    if name.startswith("array<"):
        element = delta_type(name[len("array<") : -1])
        return {"type": "array", "elementType": element, "containsNull": True}
    return _DELTA_NAMES.get(name, name)


def arrow_type(name: object) -> pa.DataType:
    """The type of a column whose type is so written in the table's schema.

    Raises:
        UnsupportedCase
    """
    if isinstance(name, dict) and name.get("type") == "array":
        return pa.list_(pa.field("element", arrow_type(name["elementType"])))
    found = _TYPES.get(name) if isinstance(name, str) else None
    if found is None:
        decimal = _DECIMAL.match(str(name))
        if decimal is None:
            raise UnsupportedCase(f"a column of type {name}")
        found = pa.decimal128(int(decimal[1]), int(decimal[2]))
    return found


def table_values(column: Column, staged: pa.Array, kind: pa.DataType) -> pa.Array:
    """Turn staged values of a column into values of the table's type.

    Raises:
        UnsupportedCase: a value does not fit, or Spark has rules of its own for it.
    """
    try:
        return _typed(column.logical, staged, column.name).cast(kind)
    except (ChangefeedError, pa.ArrowInvalid, pa.ArrowNotImplementedError) as failure:
        raise UnsupportedCase(f"a value of column {column.name}") from failure


def _typed(of: LogicalType, staged: pa.Array, name: str) -> pa.Array:
    wanted = spark_type(of)
    if of.items is not None:
        items = list_items(of.items, staged, name)
        return lists_of(items, _typed(of.items, items.values, name))
    if wanted == "string":
        return printed(of, staged)
    if wanted == "float":
        return single_floats(staged, name)
    if wanted.startswith("decimal") and not_numbers(staged) is not None:
        raise UnsupportedCase("a decimal that is no number")
    found = typed_values(of, staged, name)
    if wanted == "date":
        return _within(found, _DAYS).cast(pa.int32()).cast(pa.date32())
    if wanted in ("timestamp", "timestamp_ntz"):
        zone = "UTC" if wanted == "timestamp" else None
        return _within(found, _MICROS).cast(pa.timestamp("us", tz=zone))
    return found


def _within(numbers: pa.Array, bounds: tuple[int, ...]) -> pa.Array:
    found = pc.min_max(numbers).as_py()
    if found["min"] is not None and not (bounds[0] <= found["min"] and found["max"] < bounds[1]):
        raise UnsupportedCase("a date or time")
    return numbers


def statistics(rows: pa.Table) -> Mapping[str, Any]:
    """The statistics of a file with these rows (Delta's protocol, *Per-file Statistics*)."""
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for name in rows.column_names[:_WITH_STATISTICS]:
        column, kind = rows[name], rows.schema.field(name).type
        nulls[name] = column.null_count
        ordered = pa.types.is_integer(kind) or pa.types.is_date32(kind) or pa.types.is_string(kind)
        if not ordered or column.null_count == len(column):
            continue
        found = pc.min_max(column).as_py()
        ends = [found["min"], found["max"]]
        if pa.types.is_date32(kind):
            ends = [end.isoformat() for end in ends]
        if pa.types.is_string(kind) and max(map(len, ends)) > _LONGEST:
            continue
        least[name], most[name] = ends
    return {
        "numRecords": len(rows),
        "minValues": least,
        "maxValues": most,
        "nullCount": nulls,
        "tightBounds": True,
    }
