"""Ranges of keys, applied to rows that Debezium has read: it reads whole tables."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.schema import Column, KeyRange, TableSchema
from changefeed.core.types import INTEGERS, Kind

_SORTED_TEXT = (Kind.TEXT, Kind.UUID, Kind.DATE)


def range_problem(table: TableSchema, keys: KeyRange) -> ChangefeedError | None:
    """Why no row can be in the range."""
    for bound in (keys.low, keys.high):
        for column, value in zip(table.key_columns, bound or (), strict=False):
            if column.kind in _SORTED_TEXT:
                continue
            if column.kind not in INTEGERS:
                return ChangefeedError(
                    Code.NOT_SUPPORTED,
                    f"a range of keys cannot be of column {column.name}, a {column.logical}",
                    hint="columns of whole numbers, text, dates and UUIDs can have one.",
                )
            try:
                int(value)
            except ValueError:
                return ChangefeedError(
                    Code.NOT_SUPPORTED, f"a bound of column {column.name} is no whole number"
                )
    if keys.low and keys.high:
        low, high = _values(table, keys.low), _values(table, keys.high)
        if len(low) == len(high) and low >= high:
            return ChangefeedError(
                Code.NOT_SUPPORTED, "the range of keys is empty: FROM is not below TO"
            )
    return None


def _values(table: TableSchema, bound: tuple[str, ...]) -> list[int | str]:
    return [_value(column, text) for column, text in zip(table.key_columns, bound, strict=False)]


def _value(column: Column, text: str) -> int | str:
    return int(text) if column.kind in INTEGERS else text


def in_range(table: TableSchema, keys: KeyRange, batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows whose key is in ``[low, high)``."""
    for bound, above in ((keys.low, True), (keys.high, False)):
        if bound:
            batch = batch.filter(_beyond(table, bound, batch, above=above))
    return batch


def _beyond(
    table: TableSchema, bound: tuple[str, ...], batch: pa.RecordBatch, *, above: bool
) -> pa.Array:
    """Rows at or above a bound, or below it, column by column."""
    beyond = pa.array(np.zeros(batch.num_rows, np.bool_))
    same = pa.array(np.ones(batch.num_rows, np.bool_))
    for place, text in zip(table.key, bound, strict=False):
        values = batch.column(place)
        value = pa.scalar(_value(table.columns[place], text), values.type)
        compare = pc.greater if above else pc.less
        beyond = pc.or_(beyond, pc.and_(same, compare(values, value)))
        same = pc.and_(same, pc.equal(values, value))
    return pc.or_(beyond, same) if above else beyond
