"""Bytes of values in MySQL's row events: the decoder by columns reads them as the one by values."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from changefeed.core.schema import BeforeImage, TableName, TableSchema
from changefeed.sources.mysql.columns import AT_ONCE
from changefeed.sources.mysql.decode import INSERT, RowEvents, decode
from changefeed.sources.mysql.layout import width_of
from changefeed.sources.mysql.tablemap import ColumnShape, ColumnType, TableShape
from changefeed.sources.mysql.types import ColumnInfo, column_of
from changefeed.sources.mysql.walk import PADDING

Described = tuple[ColumnShape, str]


def described(wire: ColumnType, meta: int, text: str) -> Described:
    return ColumnShape("c", wire, meta, True), text


def a_decimal(digits: tuple[int, int]) -> Described:
    whole, scale = digits
    precision = max(whole + scale, 1)
    return described(ColumnType.NEWDECIMAL, precision << 8 | scale, f"decimal({precision},{scale})")


@st.composite
def columns(draw: st.DrawFn) -> Described:
    """A type that is printed, in every size."""
    kind = draw(st.sampled_from(["decimal", "datetime", "timestamp", "time", "date", "bit"]))
    if kind == "decimal":
        return a_decimal(draw(st.tuples(st.integers(0, 35), st.integers(0, 30))))
    if kind == "date":
        return described(ColumnType.DATE, 0, "date")
    if kind == "bit":
        bits = draw(st.integers(2, 64))
        return described(ColumnType.BIT, bits // 8 << 8 | bits % 8, f"bit({bits})")
    digits = draw(st.integers(0, 6))
    return described(ColumnType[f"{kind.upper()}2"], digits, f"{kind}({digits})")


def possible(shape: ColumnShape, data: bytes) -> bytes:
    """The bytes without a year of five digits, of which a text has no place for the first."""
    if shape.wire is ColumnType.DATE:
        return (int.from_bytes(data, "little") % (10_000 << 9)).to_bytes(3, "little")
    if shape.wire is ColumnType.DATETIME2 and data[0] >= 0x80:
        whole = int.from_bytes(data[:5], "big")
        limit = (10_000 * 13) << 22
        return ((whole - (1 << 39)) % limit + (1 << 39)).to_bytes(5, "big") + data[5:]
    return data


@settings(deadline=None, max_examples=300)
@given(st.data(), columns())
def test_both_decoders_read_any_bytes_alike(data: st.DataObject, column: Described) -> None:
    shape, text = column
    width = width_of(shape)
    values = data.draw(
        st.lists(
            st.none() | st.just(bytes(width)) | st.binary(min_size=width, max_size=width),
            min_size=1,
            max_size=12,
        )
    )
    rows = [b"\1" if v is None else b"\0" + possible(shape, v) for v in values]
    one_by_one, by_columns = (read(shape, text, rows, small) for small in (10**9, 0))
    assert by_columns == one_by_one
    more = AT_ONCE // len(rows) + 1
    assert read(shape, text, rows * more, 0) == one_by_one * more


def read(shape: ColumnShape, text: str, rows: list[bytes], small: int) -> list[Any]:
    schema = TableSchema(
        TableName("shop", "shop", "t"), (column_of(ColumnInfo("c", text)),), (),
        BeforeImage.KEY, True,
    )  # fmt: skip
    ends = np.cumsum([len(row) for row in rows])
    starts = ends - [len(row) for row in rows]
    events = RowEvents(np.arange(len(rows)), np.full(len(rows), INSERT), starts, ends)
    data = bytearray(b"".join(rows) + bytes(PADDING))
    found = decode(
        data, events, TableShape("shop", "t", (shape,)), schema, cast(Any, None), small=small
    )
    values: list[Any] = found.after[0].to_pylist()
    return values
