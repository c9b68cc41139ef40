"""Text that JSON can take as it is, told and made by Arrow, a column at a time."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_MUST_ESCAPE = np.zeros(256, dtype=bool)
_MUST_ESCAPE[:0x20] = True
_MUST_ESCAPE[[0x22, 0x5C]] = True


def is_clean(column: pa.Array | pa.ChunkedArray) -> bool:
    """No value has a character that a JSON string must escape."""
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    return not any(_MUST_ESCAPE[_bytes(chunk)].any() for chunk in chunks)


def clean_columns(table: pa.Table | pa.RecordBatch, names: Iterable[str]) -> frozenset[str]:
    """Those of the text columns ``names`` that are clean."""
    return frozenset(name for name in names if is_clean(table[name]))


def escaped(column: pa.Array) -> pa.Array:
    """The values as JSON writes them inside quotes (RFC 8259, section 7).

    A clean column comes back as it is. Which characters are there is read off the bytes, so
    only those are looked for; other escapes are written ``\\u001F``.
    """
    data = _bytes(column)
    for code in np.unique(data[_MUST_ESCAPE[data]])[::-1]:  # the backslash before all that add some
        column = pc.replace_substring(column, chr(code), _escape(int(code)))
    return column


_SHORT = {
    0x08: "\\b",
    0x09: "\\t",
    0x0A: "\\n",
    0x0C: "\\f",
    0x0D: "\\r",
    0x22: '\\"',
    0x5C: "\\\\",
}


def _escape(code: int) -> str:
    return _SHORT.get(code) or f"\\u{code:04X}"


def _bytes(array: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """The text of all values as one array of bytes (a NULL's are not looked at apart)."""
    _, offsets, data = array.buffers()
    if data is None or len(array) == 0:
        return np.empty(0, dtype=np.uint8)
    width = np.int64 if pa.types.is_large_string(array.type) else np.int32
    bounds = np.frombuffer(offsets, dtype=width)[array.offset : array.offset + len(array) + 1]
    return np.frombuffer(data, dtype=np.uint8)[bounds[0] : bounds[-1]]
