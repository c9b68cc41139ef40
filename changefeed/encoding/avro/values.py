"""Arrow columns as Avro's binary form (Avro specification, Binary Encoding), whole columns at a
time.

A column becomes one or two pieces whose bytes follow each other in a message; a value of a union
``[null, type]`` starts with its branch.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.core.types import FLOATS, Kind, LogicalType
from changefeed.encoding.avro.schema import long_bytes
from changefeed.encoding.byte_columns import (
    Mask,
    Piece,
    binary,
    fixed,
    gathered,
    integers,
    joined,
    lengthened,
    lengths,
    validity,
    varints,
)
from changefeed.encoding.typed_values import list_items, not_numbers, typed_values

NULL, THERE, SECOND = b"\x00", b"\x02", b"\x04"
"""Branches of a union: ``null``, the type after it, and the type after that."""


def constant(text: str) -> bytes:
    """A text that is not NULL, in its union."""
    data = text.encode()
    return THERE + long_bytes(len(data)) + data


def union_pieces(of: LogicalType, values: pa.Array, column: str) -> list[Piece]:
    """Values of the log as values of the union of ``null`` and their type.

    Raises:
        ChangefeedError: CF4001, a value does not fit.
    """
    if of.element is not None:
        return _array(of.element, values, column)
    made = typed_values(of, values, column)
    if of.precision:
        return _decimals(made, not_numbers(values))
    if of.is_text or of.kind is Kind.BYTES:
        return strings(made)
    if of.kind is Kind.BOOL:
        return truths(made)
    return doubles(made) if of.kind in FLOATS else numbers(made)


def numbers(values: pa.Array) -> list[Piece]:
    """Integers in their union with ``null``."""
    return [_branched(integers(values), validity(values))]


def strings(values: pa.Array) -> list[Piece]:
    """Texts or bytes in their union with ``null``: the length, then the bytes."""
    data = values.cast(pa.binary())
    head = _branched(lengths(data), validity(values))
    return [head, pc.fill_null(data, b"") if data.null_count else data]


def truths(values: pa.Array) -> list[Piece]:
    """Booleans in their union with ``null``."""
    bits = pc.fill_null(values, False).to_numpy(zero_copy_only=False)
    return [fixed(THERE, bits.astype(np.uint8)[:, None], validity(values), NULL)]


def doubles(values: pa.Array) -> list[Piece]:
    """Floating point numbers of 64 bits in their union with ``null``."""
    filled = pc.fill_null(values, 0.0).to_numpy(zero_copy_only=False)
    data = filled.astype("<f8").view(np.uint8).reshape(-1, 8)
    return [fixed(THERE, data, validity(values), NULL)]


def _branched(values: npt.NDArray[np.int64], valid: Mask | None) -> pa.Array:
    """Zigzag numbers, each after the branch of its type; NULL is its branch alone."""
    zigzag = ((values << 1) ^ (values >> 63)).view(np.uint64)
    return varints(THERE, zigzag, valid, NULL)


# ------------------------------------------------------------------------------- decimals


def _decimals(values: pa.Array, odd: pa.Array | None) -> list[Piece]:
    """The unscaled number in two's complement, big-endian, in as few bytes as possible."""
    rows = len(values)
    raw = values.buffers()[1]
    little = np.frombuffer(raw, np.uint8, rows * 16, values.offset * 16).reshape(-1, 16)
    width = 8 if values.type.precision <= 18 else 16
    big = little[:, :width][:, ::-1]
    valid = validity(values)
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
    if valid is not None:
        mask[~valid, 1:] = False
        table[~valid, 0] = NULL[0]
    made = binary(table[mask], mask.sum(axis=1))
    if odd is None:
        return [made]
    head, body = strings(odd)
    text = pc.binary_replace_slice(head, 0, 1, SECOND)
    whole = pc.binary_join_element_wise(text, body, pa.scalar(b"", pa.binary()))
    return [pc.if_else(odd.is_valid(), whole, made)]


# ------------------------------------------------------------------------------- arrays


def _array(element: LogicalType, values: pa.Array, column: str) -> list[Piece]:
    lists = list_items(element, values, column)
    return listed(lists, joined(union_pieces(element, lists.values, column), len(lists.values)))


def listed(lists: pa.ListArray, items: pa.Array) -> list[Piece]:
    """Arrays of ``items``: one block with all elements, then the end; an empty array is only the
    end."""
    places = np.frombuffer(lists.buffers()[1], np.int32, len(lists) + 1)
    counts = np.diff(places).astype(np.int64)
    head = _branched(counts, validity(lists))
    end = lengthened(np.zeros((len(lists), 1), np.uint8), (counts > 0).astype(np.int64), None)
    return [head, gathered(lists, items), end]
