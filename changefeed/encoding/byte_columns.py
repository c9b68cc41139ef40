"""Binary messages are made by joining the bytes of whole columns.

A value of a message is one or more pieces: bytes that every row has, or an Arrow array with the
bytes of each row. :mod:`~changefeed.encoding.avro.values` and
:mod:`~changefeed.encoding.protobuf.values` know what the bytes mean.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

#: Bytes of every row, or one binary value for each row.
Piece: TypeAlias = bytes | pa.Array

Bytes: TypeAlias = npt.NDArray[np.uint8]
Mask: TypeAlias = npt.NDArray[np.bool_]
Sizes: TypeAlias = npt.NDArray[np.int64]


def joined(pieces: list[Piece], rows: int) -> pa.Array:
    """The concatenation of the pieces, for ``rows`` rows."""
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


def validity(values: pa.Array) -> Mask | None:
    """Which values are not NULL; None if none is NULL."""
    if not values.null_count:
        return None
    valid: Mask = values.is_valid().to_numpy(zero_copy_only=False)
    return valid


def integers(values: pa.Array) -> Sizes:
    """Integers as 64 bits, 0 for NULL."""
    filled = pc.fill_null(values, 0) if values.null_count else values
    made: Sizes = filled.cast(pa.int64()).to_numpy(zero_copy_only=False)
    return made


def lengths(values: pa.Array) -> Sizes:
    """How many bytes each value of type ``binary`` has, 0 for NULL."""
    if values.null_count:
        return integers(pc.binary_length(values))
    places = np.frombuffer(values.buffers()[1], np.int32, len(values) + 1, values.offset * 4)
    made: Sizes = np.diff(places).astype(np.int64)
    return made


def varints(
    head: bytes, values: npt.NDArray[np.uint64], valid: Mask | None, absent: bytes = b""
) -> pa.Array:
    """``head`` and the number in seven bits a byte; ``absent`` where it is not valid."""
    most = int(values.max(initial=0))
    width = max(1, -(-most.bit_length() // 7))
    table = headed(head, width, len(values))
    sizes = np.full(len(values), len(head) + 1, np.int64)
    rest = values
    for place in range(len(head), len(head) + width):
        low = (rest & np.uint64(0x7F)).astype(np.uint8)
        rest = rest >> np.uint64(7)
        more = rest > 0
        table[:, place] = low | (more.astype(np.uint8) << 7)
        sizes += more
    return lengthened(table, sizes, valid, absent)


def fixed(head: bytes, data: Bytes, valid: Mask | None, absent: bytes = b"") -> pa.Array:
    """``head`` and a row of ``data``; ``absent`` where it is not valid."""
    table = headed(head, data.shape[1], len(data))
    table[:, len(head) :] = data
    return lengthened(table, np.full(len(data), table.shape[1], np.int64), valid, absent)


def headed(head: bytes, width: int, rows: int) -> Bytes:
    """A table whose rows begin with ``head``; ``width`` bytes of each are still to be filled."""
    table = np.empty((rows, len(head) + width), dtype=np.uint8)
    table[:, : len(head)] = np.frombuffer(head, np.uint8)
    return table


def lengthened(table: Bytes, sizes: Sizes, valid: Mask | None, absent: bytes = b"") -> pa.Array:
    """The first ``sizes`` bytes of each row of ``table``, ``absent`` where it is not valid."""
    if valid is not None:
        sizes = np.where(valid, sizes, len(absent))
        table[~valid, : len(absent)] = np.frombuffer(absent, np.uint8)
    if len(sizes) and (sizes == table.shape[1]).all():
        data = np.ascontiguousarray(table)
    else:
        data = table[np.arange(table.shape[1]) < sizes[:, None]]
    return binary(data, sizes)


def binary(data: Bytes, sizes: Sizes) -> pa.Array:
    """The bytes of all rows cut into values of these sizes."""
    offsets = np.zeros(len(sizes) + 1, dtype=np.int32)
    np.cumsum(sizes, out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.BinaryArray.from_buffers(pa.binary(), len(sizes), buffers)


def gathered(lists: pa.ListArray, items: pa.Array) -> pa.Array:
    """The bytes of all elements of each list, without a copy; nothing for NULL.

    ``items`` are the bytes of the elements of all lists, in order: those of one list are
    contiguous.
    """
    places = np.frombuffer(lists.buffers()[1], np.int32, len(lists) + 1)
    starts = np.frombuffer(items.buffers()[1], np.int32, len(items) + 1, items.offset * 4)
    return pa.BinaryArray.from_buffers(
        pa.binary(), len(lists), [None, pa.py_buffer(starts[places]), items.buffers()[2]]
    )
