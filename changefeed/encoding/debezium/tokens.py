"""Values of the log as the JSON tokens of Debezium's messages, a column at a time.

They are what Kafka Connect's ``JsonConverter`` writes for the values that Debezium's connectors
give it: bytes in base64, decimals as the bytes of their digits, moments as numbers.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.core.schema import Column
from changefeed.core.types import LogicalType
from changefeed.encoding.byte_columns import lengths
from changefeed.encoding.debezium.connect_values import (
    connect_values,
    fitting,
    items,
    joined,
    scales,
)
from changefeed.encoding.debezium.fields import ConnectType, Conversion
from changefeed.encoding.json_tokens import escaped

_NULL = "null"
_ALPHABET = np.frombuffer(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8
)
_PADDING = ord("=")


def tokens(field: ConnectType, column: Column, values: pa.Array) -> pa.Array:
    """The tokens of a column of the log; for NULL ``null``, or zero where the column is NOT NULL.

    Raises:
        ChangefeedError: CF4001, a value does not fit.
    """
    with fitting(column.name):
        made = _token(field, column.logical, values, column.name)
    null = _NULL if column.nullable else field.zero
    return pc.fill_null(made, null) if made.null_count else made


def _token(field: ConnectType, logical: LogicalType, values: pa.Array, name: str) -> pa.Array:
    if field.items is not None and logical.element is not None:
        return _array(field.items, logical.element, values, name)
    found = connect_values(field, values, name)
    if field.way is Conversion.SCALED:
        scale = scales(values).cast(pa.string())
        return joined('{"scale":', scale, ',"value":"', base64(found), '"}')
    if pa.types.is_binary(found.type):
        return joined('"', base64(found), '"')
    if field.type == "string":
        return joined('"', escaped(found), '"')
    return found.cast(pa.string())


#: Arrays that are the same characters in the log and in the message.
_SAME = (Conversion.AS_IS, Conversion.TEXT)


def _array(element: ConnectType, logical: LogicalType, values: pa.Array, name: str) -> pa.Array:
    if element.way in _SAME:
        return values
    lists = items(logical, values, name)
    made = pc.fill_null(_token(element, logical, lists.values, name), _NULL)
    mask = lists.is_null() if lists.null_count else None
    texts = pa.ListArray.from_arrays(lists.offsets, made, mask=mask)
    return joined("[", pc.binary_join(texts, ","), "]")


def base64(values: pa.Array) -> pa.Array:
    """Values of type ``binary`` in base64 (RFC 4648, section 4); NULL stays NULL.

    >>> base64(pa.array([b"", b"f", b"foobar"], pa.binary())).to_pylist()
    ['', 'Zg==', 'Zm9vYmFy']
    """
    filled = pc.fill_null(values, b"") if values.null_count else values
    sizes = lengths(filled)
    groups = -(-sizes // 3)
    starts = _starts(groups * 3)
    padded = np.zeros(int(groups.sum()) * 3, dtype=np.uint8)
    padded[np.arange(int(sizes.sum())) + np.repeat(starts - _starts(sizes), sizes)] = _data(filled)
    triples = padded.reshape(-1, 3).astype(np.uint32)
    bits = (triples[:, 0] << 16) | (triples[:, 1] << 8) | triples[:, 2]
    codes = np.empty((len(bits), 4), dtype=np.uint8)
    for place, shift in enumerate((18, 12, 6, 0)):
        codes[:, place] = _ALPHABET[(bits >> shift) & 63]
    last = np.cumsum(groups) - 1
    codes[last[sizes % 3 == 1], 2:] = _PADDING
    codes[last[sizes % 3 == 2], 3] = _PADDING
    ends = np.zeros(len(values) + 1, dtype=np.int32)
    ends[1:] = np.cumsum(groups * 4)
    made = pa.StringArray.from_buffers(len(values), pa.py_buffer(ends), pa.py_buffer(codes))
    return pc.if_else(values.is_valid(), made, None) if values.null_count else made


def _starts(
    sizes: np.ndarray[tuple[int], np.dtype[np.int64]],
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.cumsum(sizes) - sizes


def _data(values: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """The bytes of all values, none of which is NULL."""
    _, offsets, data = values.buffers()
    bounds = np.frombuffer(offsets, np.int32, len(values) + 1, values.offset * 4)
    return np.frombuffer(data or b"", np.uint8)[bounds[0] : bounds[-1]]
