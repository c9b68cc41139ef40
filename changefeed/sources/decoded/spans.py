"""Texts where they lie in a buffer, and Arrow arrays of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Bytes = npt.NDArray[np.uint8]
Places = npt.NDArray[np.intp]
Mask = npt.NDArray[np.bool_]

#: How many bytes behind the last value may be read (never used) by the vectorised checks.
PADDING = 64


@dataclass(frozen=True, slots=True)
class Spans:
    """Texts of one column where they lie in a buffer: ``data[starts[i]:ends[i]]``.

    Where ``valid`` is false (null) the span is empty and lies anywhere in the buffer. The
    buffer is less than 2 GB long and goes on for :data:`PADDING` bytes behind the last end.
    """

    data: Bytes
    starts: Places
    ends: Places
    valid: Mask | None = None

    def __len__(self) -> int:
        return len(self.starts)


@lru_cache(maxsize=64)
def _even(count: int) -> Places:
    return np.arange(0, 2 * count, 2, dtype=np.int32).astype(np.intp)


def gather(spans: Spans) -> pa.StringArray:
    """The texts as one Arrow array of their own.

    The spans and the gaps between them are read as one Arrow array over the whole buffer, and
    every second element is taken: the copy runs in Arrow, not in Python. Arrow looks at the
    offsets of elements it takes and at the first and the last one, so a gap may be negative
    (spans out of order), but the whole may not.
    """
    count = len(spans)
    if not count:
        return pa.array([], pa.string())
    offsets = np.empty(2 * count + 1, dtype=np.int32)
    offsets[0:-1:2] = spans.starts
    offsets[1:-1:2] = spans.ends
    offsets[-1] = max(offsets[0], offsets[-2])
    laid_out = pa.StringArray.from_buffers(
        2 * count, pa.py_buffer(offsets), pa.py_buffer(spans.data)
    )
    mask = None if spans.valid is None else ~spans.valid
    return laid_out.take(pa.array(_even(count), mask=mask))


def spans_of(values: pa.Array) -> Spans:
    """The spans of an Arrow string array, without copying."""
    if pa.types.is_large_string(values.type):
        values = values.cast(pa.string())
    _, offsets_buffer, data_buffer = values.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32, len(values) + 1, values.offset * 4)
    places = offsets.astype(np.intp)
    # Arrow pads its buffers to 64 bytes, but buffers that came from elsewhere may end sharp.
    data = np.frombuffer(data_buffer, np.uint8) if data_buffer else np.empty(0, np.uint8)
    if len(data) < places[-1] + PADDING:
        padded = np.zeros(int(places[-1]) + PADDING, np.uint8)
        padded[: places[-1]] = data[: places[-1]]
        data = padded
    valid = None if not values.null_count else values.is_valid().to_numpy(zero_copy_only=False)
    return Spans(data, places[:-1], places[1:], valid)
