"""Where the values of a row image lie: widths of the types, and columns in groups.

A row image is a bitmap of nulls and then the values that are not null, one behind the other.
Between two columns of variable length all widths are known, so a decoder has to *look* at a row
only where such a column begins: it remembers these anchors, and computes the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from changefeed.sources.mysql.binlog import misfit
from changefeed.sources.mysql.tablemap import ColumnShape, ColumnType, TableShape

_FIXED = {
    ColumnType.TINY: 1, ColumnType.SHORT: 2, ColumnType.INT24: 3, ColumnType.LONG: 4,
    ColumnType.LONGLONG: 8, ColumnType.FLOAT: 4, ColumnType.DOUBLE: 8, ColumnType.YEAR: 1,
    ColumnType.DATE: 3, ColumnType.NEWDATE: 3, ColumnType.TIME: 3,
    ColumnType.TIMESTAMP: 4, ColumnType.DATETIME: 8, ColumnType.NULL: 0,
}  # fmt: skip
_LENGTH_BY_SIZE = frozenset(
    {
        ColumnType.VARCHAR, ColumnType.VAR_STRING, ColumnType.STRING,
        ColumnType.MARIA_VARCHAR_COMPRESSED,
    }
)  # fmt: skip
_LENGTH_GIVEN = frozenset(
    {
        ColumnType.BLOB, ColumnType.JSON, ColumnType.GEOMETRY, ColumnType.VECTOR,
        ColumnType.MARIA_BLOB_COMPRESSED,
    }
)  # fmt: skip
#: Bytes of so many decimal digits.
DIGIT_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)


@dataclass(frozen=True, slots=True)
class FieldLayout:
    """One column: its position, and ``width`` bytes, or ``-width`` bytes of a length before it."""

    ordinal: int
    width: int
    nullable: bool

    @property
    def variable(self) -> bool:
        """The value says how long it is."""
        return self.width < 0


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns of a table, in groups: each but the last one ends with a variable column."""

    columns: int
    null_bytes: int
    groups: tuple[tuple[FieldLayout, ...], ...]


def fraction_bytes(digits: int) -> int:
    if digits > 6:
        raise misfit("a time with more than six digits behind the second")
    return (digits + 1) // 2


def decimal_bytes(precision: int, scale: int) -> int:
    whole = precision - scale
    if not 0 < precision <= 65 or whole < 0 or scale > 38:
        raise misfit(f"a decimal({precision},{scale})")
    left, right = divmod(whole, 9), divmod(scale, 9)
    return (left[0] + right[0]) * 4 + DIGIT_BYTES[left[1]] + DIGIT_BYTES[right[1]]


def width_of(column: ColumnShape) -> int:
    """Bytes of a column's values; negative: of the length before each."""
    wire, meta = column.wire, column.meta
    if wire in _FIXED:
        return _FIXED[wire]
    if wire in _LENGTH_BY_SIZE:
        return -1 if meta < 256 else -2
    if wire in _LENGTH_GIVEN:
        if not 1 <= meta <= 4:
            raise misfit(f"a length of {meta} bytes")
        return -meta
    if wire in (ColumnType.ENUM, ColumnType.SET):
        if not 1 <= meta <= 8:
            raise misfit(f"an ENUM or SET of {meta} bytes")
        return meta
    if wire is ColumnType.NEWDECIMAL:
        return decimal_bytes(meta >> 8, meta & 0xFF)
    if wire is ColumnType.BIT:
        bits = (meta >> 8) * 8 + (meta & 0xFF)
        if not 0 < bits <= 64:
            raise misfit(f"a bit({bits})")
        return (bits + 7) // 8
    seconds = {ColumnType.TIMESTAMP2: 4, ColumnType.DATETIME2: 5, ColumnType.TIME2: 3}.get(wire)
    if seconds is None:
        raise misfit(f"a column of type {wire.name}, which cannot be read")
    return seconds + fraction_bytes(meta)


@lru_cache(maxsize=1024)
def layout_of(shape: TableShape) -> Layout:
    groups: list[tuple[FieldLayout, ...]] = []
    group: list[FieldLayout] = []
    for ordinal, column in enumerate(shape.stored):
        # The bitmap counts, whatever the table's map says of nulls.
        group.append(FieldLayout(ordinal, width_of(column), column.nullable))
        if group[-1].variable:
            groups.append(tuple(group))
            group = []
    groups.append(tuple(group))
    count = len(shape.stored)
    return Layout(count, (count + 7) // 8, tuple(groups))
