"""Numbers printed as texts of equal width, many at a time: a matrix of characters, a row each.

The digits of a number are looked up two and four at a time and written as one machine word: a
column of the matrix costs less than a nanosecond a row.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from changefeed.sources.decoded.spans import PADDING, Spans, gather
from changefeed.sources.mysql.walk import Bytes, Mask

Numbers = npt.NDArray[np.uint32]
_ZERO = ord("0")
_TWO = np.frombuffer(b"".join(b"%02d" % n for n in range(100)), np.uint16)
_FOUR = np.frombuffer(b"".join(b"%04d" % n for n in range(10_000)), np.uint32)


class Characters:
    """The matrix: filled by columns, and then an Arrow array."""

    def __init__(self, count: int, template: str) -> None:
        """``template``: what each row is, but for what is written over it."""
        self._count, self._width = count, len(template)
        self._flat: Bytes = np.empty(count * self._width + PADDING, np.uint8)
        self._matrix = self._flat[:-PADDING].reshape(count, self._width)
        self._matrix[:] = np.frombuffer(template.encode("ascii"), np.uint8)

    def digits(self, at: int, width: int, numbers: Numbers) -> None:
        """The last ``width`` digits of each number, from column ``at`` on."""
        place = at + width
        while width > 4:
            high = numbers // np.uint32(10_000)
            place, width = place - 4, width - 4
            self._four(place, numbers - high * np.uint32(10_000))
            numbers = high
        if width == 4:
            self._four(at, numbers % np.uint32(10_000))
            return
        if width >= 2:
            high = numbers // np.uint32(100)
            pairs = _TWO.take(numbers - high * np.uint32(100))
            self._matrix[:, place - 2 : place].view(np.uint16)[:, 0] = pairs
            place, width, numbers = place - 2, width - 2, high
        if width:
            tens = numbers // np.uint32(10)
            self._matrix[:, place - 1] = numbers - tens * np.uint32(10) + np.uint32(_ZERO)

    def _four(self, at: int, numbers: Numbers) -> None:
        self._matrix[:, at : at + 4].view(np.uint32)[:, 0] = _FOUR.take(numbers)

    def words(self, at: int, values: npt.NDArray[np.unsignedinteger]) -> None:
        """Characters that are looked up elsewhere, as numbers of their bytes."""
        size = values.itemsize
        self._matrix[:, at : at + size].view(values.dtype)[:, 0] = values

    def leading_zeros(self, at: int, count: int) -> npt.NDArray[np.intp]:
        """How many of the ``count`` columns from ``at`` on are zeros before another digit."""
        found = np.zeros(self._count, np.intp)
        zero = np.ones(self._count, np.bool_)
        for column in range(at, at + count):
            zero &= self._matrix[:, column] == _ZERO
            if not zero.any():
                break
            found += zero
        return found

    def whole(self, valid: Mask | None) -> pa.StringArray:
        """The rows as texts; null where not ``valid``."""
        offsets = np.arange(self._count + 1, dtype=np.int32) * np.int32(self._width)
        bits = None if valid is None else pa.array(valid).buffers()[1]
        return pa.StringArray.from_buffers(
            self._count, pa.py_buffer(offsets), pa.py_buffer(self._flat), bits
        )

    def signed(
        self, first: npt.NDArray[np.intp], negative: Mask, valid: Mask | None
    ) -> pa.StringArray:
        """The rows from a column each on as texts, with a minus before those that are negative;
        null where not ``valid``."""
        ends = np.arange(1, self._count + 1) * self._width
        starts = ends - self._width + first
        if negative.any():
            starts = starts - negative
            self._flat[starts[negative]] = ord("-")
        return gather(Spans(self._flat, starts, ends, valid))
