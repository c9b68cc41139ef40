"""Arrow columns as fields of protobuf messages, whole columns at a time.

https://protobuf.dev/programming-guides/encoding/: a field is its tag, the length where it has
one, and the value. A NULL is no field, so it has no byte.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.core.types import INTEGERS, Kind, LogicalType
from changefeed.encoding.byte_columns import (
    Piece,
    fixed,
    gathered,
    integers,
    joined,
    lengths,
    validity,
    varints,
)
from changefeed.encoding.protobuf.schema import ITEMS, VALUE, WireType, tag
from changefeed.encoding.typed_values import list_items, printed, single_floats, typed_values

_SECOND = 1_000_000


def field_pieces(of: LogicalType, number: int, values: pa.Array, column: str) -> list[Piece]:
    """Values of the log as the field ``number``.

    Raises:
        ChangefeedError: CF4001, a value does not fit.
    """
    kind = of.kind
    if of.element is not None:
        return _array(of.element, number, values, column)
    if kind is Kind.FLOAT32:
        return _floats(number, WireType.FIXED32, single_floats(values, column))
    if kind is Kind.FLOAT64:
        return _floats(number, WireType.FIXED64, typed_values(of, values, column))
    if kind in (Kind.TIMESTAMP, Kind.TIMESTAMPTZ):
        return _moments(number, typed_values(of, values, column))
    if kind is Kind.BYTES:
        return texts(number, typed_values(of, values, column))
    if kind is Kind.BOOL:
        return _booleans(number, typed_values(of, values, column))
    if kind in INTEGERS:
        return numbers(number, typed_values(of, values, column))
    return texts(number, printed(of, values))


def texts(number: int, values: pa.Array) -> list[Piece]:
    """Texts or bytes as the field ``number``."""
    data = values.cast(pa.binary())
    sizes = lengths(data).view(np.uint64)
    head = varints(tag(number, WireType.LENGTH), sizes, validity(data))
    return [head, pc.fill_null(data, b"") if data.null_count else data]


def numbers(number: int, values: pa.Array) -> list[Piece]:
    """Integers as the field ``number``; negative ones of every type have ten bytes."""
    return [
        varints(tag(number, WireType.VARINT), integers(values).view(np.uint64), validity(values))
    ]


def message(number: int, pieces: list[Piece], rows: int) -> list[Piece]:
    """A nested message that every row has, as the field ``number``.

    Its pieces are not joined here: all bytes are joined once, at the top.
    """
    sizes = np.zeros(rows, np.int64)
    for piece in pieces:
        sizes += len(piece) if isinstance(piece, bytes) else lengths(piece)
    return [varints(tag(number, WireType.LENGTH), sizes.view(np.uint64), None), *pieces]


def _booleans(number: int, values: pa.Array) -> list[Piece]:
    bits = pc.fill_null(values, False).to_numpy(zero_copy_only=False)
    data = bits.astype(np.uint8)[:, None]
    return [fixed(tag(number, WireType.VARINT), data, validity(values))]


def _floats(number: int, wire: WireType, values: pa.Array) -> list[Piece]:
    size = 4 if wire is WireType.FIXED32 else 8
    filled = pc.fill_null(values, 0.0).to_numpy(zero_copy_only=False)
    data = filled.astype(f"<f{size}").view(np.uint8).reshape(-1, size)
    return [fixed(tag(number, wire), data, validity(values))]


def _moments(number: int, micros: pa.Array) -> list[Piece]:
    """``google.protobuf.Timestamp``: seconds, and nanoseconds counted from them; no zeros."""
    valid = validity(micros)
    whole = integers(micros)
    seconds = whole // _SECOND
    nanos = (whole - seconds * _SECOND) * 1_000
    first = varints(tag(1, WireType.VARINT), seconds.view(np.uint64), seconds != 0)
    second = varints(tag(2, WireType.VARINT), nanos.view(np.uint64), nanos != 0)
    sizes = (lengths(first) + lengths(second)).view(np.uint64)
    return [varints(tag(number, WireType.LENGTH), sizes, valid), first, second]


def _array(element: LogicalType, number: int, values: pa.Array, column: str) -> list[Piece]:
    """A message that has a message for each element; that of a NULL is empty."""
    lists = list_items(element, values, column)
    count = len(lists.values)
    value = field_pieces(element, VALUE, lists.values, column)
    body = gathered(lists, joined(message(ITEMS, value, count), count))
    head = varints(tag(number, WireType.LENGTH), lengths(body).view(np.uint64), validity(lists))
    return [head, body]
