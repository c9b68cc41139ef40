"""Arrow columns as Avro's binary form (Avro specification, Binary Encoding), whole columns at a
time.

A column becomes one or two parts whose bytes stand beside each other in a message; a value of
a union ``[null, type]`` starts with its branch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.formats.avro import long_bytes
from changefeed.formats.types import Kind, Typed
from changefeed.messages.typed import list_items, not_numbers, typed_values

#: Bytes of every row, or one binary value for each row.
Piece: TypeAlias = bytes | pa.Array

_Bytes: TypeAlias = npt.NDArray[np.uint8]
_Mask: TypeAlias = npt.NDArray[np.bool_]

NULL, THERE, SECOND = b"\x00", b"\x02", b"\x04"
"""Branches of a union: none of it, the type after ``null``, the one after that."""


def joined(pieces: list[Piece], rows: int) -> pa.Array:
    """The pieces beside each other, for ``rows`` rows."""
    merged: list[Piece] = []
    for piece in pieces:
        last = merged[-1] if merged else None
        if isinstance(piece, bytes) and isinstance(last, bytes):
            merged[-1] = last + piece
        else:
            merged.append(piece)
    if not merged:
        return pa.repeat(pa.scalar(b"", pa.binary()), rows)
    if len(merged) == 1:
        only = merged[0]
        return pa.repeat(pa.scalar(only, pa.binary()), rows) if isinstance(only, bytes) else only
    parts = [pa.scalar(p, pa.binary()) if isinstance(p, bytes) else p for p in merged]
    return pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.binary()))


def constant(text: str) -> bytes:
    """A string that is there, in its union."""
    data = text.encode()
    return THERE + long_bytes(len(data)) + data


def union_pieces(kind: Typed, values: pa.Array, column: str) -> list[Piece]:
    """Values of the log as values of the union of ``null`` and ``kind``.

    Raises:
        ChangefeedError: CF4001, a value does not fit.
    """
    if kind.element is not None:
        return _array(kind.element, values, column)
    made = typed_values(kind, values, column)
    if kind.kind is Kind.DECIMAL:
        return _decimals(made, not_numbers(values))
    return _PIECES[kind.kind](made)


def numbers(values: pa.Array) -> list[Piece]:
    """Integers."""
    valid = _valid(values)
    filled = pc.fill_null(values, 0) if values.null_count else values
    return [_branched(filled.cast(pa.int64()).to_numpy(zero_copy_only=False), valid)]


def strings(values: pa.Array) -> list[Piece]:
    """Texts or bytes: how long, then the bytes."""
    data = values.cast(pa.binary())
    sizes = pc.fill_null(pc.binary_length(data), 0).cast(pa.int64())
    head = _branched(sizes.to_numpy(zero_copy_only=False), _valid(values))
    return [head, pc.fill_null(data, b"") if data.null_count else data]


def _booleans(values: pa.Array) -> list[Piece]:
    bits = pc.fill_null(values, False).to_numpy(zero_copy_only=False)
    table = np.empty((len(bits), 2), dtype=np.uint8)
    table[:, 0] = THERE[0]
    table[:, 1] = bits
    return [_packed(table, _sizes(2, _valid(values), len(bits)), _valid(values))]


def _doubles(values: pa.Array) -> list[Piece]:
    filled = pc.fill_null(values, 0.0).to_numpy(zero_copy_only=False)
    table = np.empty((len(filled), 9), dtype=np.uint8)
    table[:, 0] = THERE[0]
    table[:, 1:] = filled.astype("<f8").view(np.uint8).reshape(-1, 8)
    return [_packed(table, _sizes(9, _valid(values), len(filled)), _valid(values))]


_PIECES: dict[Kind, Callable[[pa.Array], list[Piece]]] = {
    Kind.BOOL: _booleans,
    Kind.INT: numbers,
    Kind.DOUBLE: _doubles,
    Kind.STRING: strings,
    Kind.BYTES: strings,
    Kind.DATE: numbers,
    Kind.TIME: numbers,
    Kind.TIMESTAMP: numbers,
    Kind.TIMESTAMPTZ: numbers,
}


# ------------------------------------------------------------------------------- decimals


def _decimals(values: pa.Array, odd: pa.Array | None) -> list[Piece]:
    """The unscaled number in two's complement, big-endian, as few bytes as it takes."""
    rows = len(values)
    raw = values.buffers()[1]
    little = np.frombuffer(raw, np.uint8, rows * 16, values.offset * 16).reshape(-1, 16)
    width = 8 if values.type.precision <= 18 else 16
    big = little[:, :width][:, ::-1]
    valid = _valid(values)
    if valid is not None:
        big = np.where(valid[:, None], big, 0).astype(np.uint8)
    sign = (big[:, :1] >> 7) * np.uint8(0xFF)
    # A byte is not needed when it repeats the sign and so does the top bit of the next one.
    spare = (big[:, :-1] == sign) & ((big[:, 1:] >> 7) * np.uint8(0xFF) == sign)
    kept = width - np.logical_and.accumulate(spare, axis=1).sum(axis=1)
    table = np.empty((rows, 2 + width), dtype=np.uint8)
    table[:, 0] = THERE[0]
    table[:, 1] = 2 * kept
    table[:, 2:] = big
    mask = np.ones(table.shape, dtype=bool)
    mask[:, 2:] = np.arange(width) >= (width - kept)[:, None]
    made = _masked(table, mask, valid)
    if odd is None:
        return [made]
    head, body = strings(odd)
    text = pc.binary_replace_slice(head, 0, 1, SECOND)
    whole = pc.binary_join_element_wise(text, body, pa.scalar(b"", pa.binary()))
    return [pc.if_else(odd.is_valid(), whole, made)]


# ------------------------------------------------------------------------------- arrays


def _array(element: Typed, values: pa.Array, column: str) -> list[Piece]:
    """One block of all elements, then the end; of an empty one the end alone."""
    lists = list_items(element, values, column)
    items = joined(union_pieces(element, lists.values, column), len(lists.values))
    places = np.frombuffer(lists.buffers()[1], np.int32, len(lists) + 1)
    valid, counts = _valid(lists), np.diff(places).astype(np.int64)
    head = _branched(counts, valid)
    # The elements of a row lie beside each other, so a row's are a stretch of them.
    starts = np.frombuffer(items.buffers()[1], np.int32, len(items) + 1, items.offset * 4)
    body = pa.BinaryArray.from_buffers(
        pa.binary(), len(lists), [None, pa.py_buffer(starts[places]), items.buffers()[2]]
    )
    end = _lengthened(np.zeros((len(lists), 1), np.uint8), (counts > 0).astype(np.int64))
    return [head, body, end]


# ------------------------------------------------------------------------------- building


def _valid(values: pa.Array) -> _Mask | None:
    """Which values are there; None when all are."""
    if not values.null_count:
        return None
    valid: _Mask = values.is_valid().to_numpy(zero_copy_only=False)
    return valid


def _sizes(size: int, valid: _Mask | None, rows: int) -> npt.NDArray[np.int64]:
    return np.full(rows, size, np.int64) if valid is None else np.where(valid, size, 1)


def _branched(values: npt.NDArray[np.int64], valid: _Mask | None) -> pa.Array:
    """Each number after the branch that it is there; NULL is its branch alone."""
    zigzag = ((values << 1) ^ (values >> 63)).view(np.uint64)
    most = int(zigzag.max(initial=0))
    width = max(1, -(-most.bit_length() // 7))
    table = np.empty((len(values), 1 + width), dtype=np.uint8)
    table[:, 0] = THERE[0]
    sizes = np.full(len(values), 2, np.int64)
    rest = zigzag
    for place in range(1, width + 1):
        low = (rest & np.uint64(0x7F)).astype(np.uint8)
        rest = rest >> np.uint64(7)
        more = rest > 0
        table[:, place] = low | (more.astype(np.uint8) << 7)
        sizes += more
    return _packed(table, sizes if valid is None else np.where(valid, sizes, 1), valid)


def _packed(table: _Bytes, sizes: npt.NDArray[np.int64], valid: _Mask | None) -> pa.Array:
    if valid is not None:
        table[~valid, 0] = NULL[0]
    return _lengthened(table, sizes)


def _lengthened(table: _Bytes, sizes: npt.NDArray[np.int64]) -> pa.Array:
    """The first ``sizes`` bytes of each row of ``table``."""
    if len(sizes) and (sizes == table.shape[1]).all():
        data = np.ascontiguousarray(table)
    else:
        data = table[np.arange(table.shape[1]) < sizes[:, None]]
    return _binary(data, sizes)


def _masked(table: _Bytes, mask: _Mask, valid: _Mask | None) -> pa.Array:
    """The bytes of each row that ``mask`` marks; the branch of NULL where it is not valid."""
    if valid is not None:
        mask[~valid, 1:] = False
        table[~valid, 0] = NULL[0]
    return _binary(table[mask], mask.sum(axis=1))


def _binary(data: _Bytes, sizes: npt.NDArray[np.int64]) -> pa.Array:
    offsets = np.zeros(len(sizes) + 1, dtype=np.int32)
    np.cumsum(sizes, out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.BinaryArray.from_buffers(pa.binary(), len(sizes), buffers)
