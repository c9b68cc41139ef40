"""Rows of a text answer as columns, without a step of Python for each row.

The server sends each row as a packet: three bytes of length, one that counts packets, then each
value behind its own length (``fb`` is NULL). Where packets begin is found for a whole block at
once: a header of a row below 64 KB has a zero as its third byte, its length leads to the next
header, and that one counts one more. What these rules leave over is proved by following the
lengths from the first to the last; where the proof fails (a longer row), the lengths are followed
one by one. Values are then found column by column in all rows at the same time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from changefeed.core.errors import ChangefeedError, Code

Bytes = npt.NDArray[np.uint8]
Offsets = npt.NDArray[np.intp]
Mask = npt.NDArray[np.bool_]

#: How many bytes are decoded at a time, unless a single row is longer.
BLOCK_BYTES = 4 << 20
#: The longest row that is read: the most that ``max_allowed_packet`` can be, and its headers.
LONGEST_ROW = (1 << 30) + (1 << 16)

_HEADER = 4
_FULL_PACKET = 0xFFFFFF
_NULL, _TWO, _THREE, _EIGHT = 0xFB, 0xFC, 0xFD, 0xFE
#: Bytes behind the last row that may be looked at (never used).
_SLACK = 16


class Readable(Protocol):
    """What bytes are read from."""

    def readinto(self, buffer: memoryview, /) -> int:
        """Fill a part of ``buffer``, as soon as there is anything; 0 at the end."""
        ...


class ServerError(Exception):
    """An error that the server sent in the place of a row."""

    def __init__(self, number: int, words: str) -> None:
        super().__init__(number, words)


@dataclass(frozen=True, slots=True)
class Values:
    """One column of a block: ``data[starts[i]:ends[i]]``, empty where ``valid`` is false."""

    data: Bytes
    starts: Offsets
    ends: Offsets
    valid: Mask | None

    def gather(self, kind: pa.DataType) -> pa.Array:
        """The values as an Arrow array of ``string`` or ``binary`` of their own."""
        count = len(self.starts)
        # Values and the gaps between them are one array; every second element is taken.
        offsets = np.empty(2 * count + 1, np.int32)
        offsets[0:-1:2] = self.starts
        offsets[1:-1:2] = self.ends
        offsets[-1] = max(offsets[0], offsets[-2]) if count else 0
        laid_out = pa.Array.from_buffers(
            kind, 2 * count, [None, pa.py_buffer(offsets), pa.py_buffer(self.data)]
        )
        wanted = np.arange(0, 2 * count, 2, dtype=np.int32)
        mask = None if self.valid is None else ~self.valid
        return laid_out.take(pa.array(wanted, mask=mask))


def read_rows(reader: Readable, columns: int, size: int = BLOCK_BYTES) -> Iterator[list[Values]]:
    """The rows of an answer in blocks of about ``size`` bytes, each a list of its columns.

    Raises:
        ServerError: the server broke the answer off.
        ChangefeedError: CF2105 this is no answer of a MySQL server.
        OSError: the connection is gone.
    """
    buffer, filled, wanted = bytearray(size), 0, size - size // 8
    while True:
        if filled < wanted and not _ends_here(buffer, filled):
            filled = _fill(reader, buffer, filled)
            continue
        data: Bytes = np.frombuffer(buffer, np.uint8)
        starts, ends, used = _packets(data, filled)
        over = bool(len(starts)) and _is_last(data, int(starts[-1]), int(ends[-1]))
        if over:
            starts, ends = starts[:-1], ends[:-1]
        if len(starts):
            yield _columns(data, starts, ends, columns)
        if over:
            return
        del data
        if not used:
            whole = _joined(buffer, filled)
            if whole is None:
                wanted = _longer(buffer, filled)
                filled = _fill(reader, buffer, filled)
                continue
            row, used = whole
            yield _columns(row, np.array([0]), np.array([len(row) - _SLACK]), columns)
        # Arrow may still hold the block: what is left moves to a buffer of its own.
        with memoryview(buffer) as view:
            rest = bytes(view[used:filled])
        filled, wanted = len(rest), size - size // 8
        buffer = bytearray(max(size, 2 * filled))
        buffer[:filled] = rest


def _fill(reader: Readable, buffer: bytearray, filled: int) -> int:
    """Read what there is into the free part of the buffer, and how much is filled then."""
    if filled + _SLACK >= len(buffer):
        if len(buffer) > LONGEST_ROW:
            raise _garbled("a row is longer than a server may send")
        buffer.extend(bytes(len(buffer)))
    with memoryview(buffer) as view:
        got = reader.readinto(view[filled : len(buffer) - _SLACK])
    if not got:
        raise ConnectionResetError("the server closed the connection")
    return filled + got


def _longer(buffer: bytearray, filled: int) -> int:
    """How many bytes the row at the begin takes at least, which is not all there."""
    offset = 0
    while offset + _HEADER <= filled:
        length = int.from_bytes(buffer[offset : offset + 3], "little")
        offset += _HEADER + length
        if length != _FULL_PACKET:
            break
    return max(offset, filled + 1)


def _garbled(why: str) -> ChangefeedError:
    return ChangefeedError(Code.UNEXPECTED_MESSAGE, f"the server's answer cannot be read: {why}")


def _ends_here(buffer: bytearray, filled: int) -> bool:
    """Whether the last bytes are a packet that ends an answer, or look so."""
    if (
        filled >= 9
        and buffer[filled - 9 : filled - 6] == b"\5\0\0"
        and buffer[filled - 5] == _EIGHT
    ):
        return True
    offset = filled
    least = max(_HEADER - 1, filled - 2048)
    while (offset := buffer.rfind(b"\xff", least, offset)) >= _HEADER:
        if int.from_bytes(buffer[offset - 4 : offset - 1], "little") == filled - offset:
            return True
    return False


def _is_last(data: Bytes, start: int, end: int) -> bool:
    """Whether a packet ends the answer.

    Raises:
        ServerError: it is an error.
    """
    if start == end:
        raise _garbled("an empty row")
    if data[start] == 0xFF:
        body = data[start:end].tobytes()
        words = body[3:].decode("utf-8", "replace")
        words = words[6:] if words.startswith("#") else words
        raise ServerError(int.from_bytes(body[1:3], "little"), words)
    return bool(data[start] == _EIGHT and end - start < 9)


def _joined(buffer: bytearray, filled: int) -> tuple[Bytes, int] | None:
    """A row that takes several packets, as one piece of bytes (with slack), and the bytes of its
    packets; None while it is not all there."""
    parts, offset = [], 0
    while offset + _HEADER <= filled:
        length = int.from_bytes(buffer[offset : offset + 3], "little")
        after = offset + _HEADER + length
        if after > filled:
            return None
        parts.append(bytes(buffer[offset + _HEADER : after]))
        offset = after
        if length != _FULL_PACKET:
            whole = b"".join([*parts, bytes(_SLACK)])
            return np.frombuffer(whole, np.uint8), offset
    return None


def _packets(data: Bytes, filled: int) -> tuple[Offsets, Offsets, int]:
    """Where the complete packets' payloads begin and end, and how many bytes they take."""
    found = _guessed(data, filled)
    return found if found is not None else _followed(data, filled)


def _guessed(data: Bytes, filled: int) -> tuple[Offsets, Offsets, int] | None:
    """All packets at once; None where they cannot be proved to be the packets."""
    heads = np.flatnonzero(data[2 : filled - 1] == 0)
    following = heads + _HEADER + (data[heads] | data[heads + 1].astype(np.intp) << 8)
    inside = following + _HEADER <= filled
    heads, following = heads[inside], following[inside]
    sound = data[following + 2] == 0
    sound &= data[following + 3] == data[heads + 3] + np.uint8(1)
    heads, following = heads[sound], following[sound]
    if not len(heads) or heads[0] != 0:
        return None
    # What no other header leads to is a zero inside a row.
    kept = np.isin(heads, following)
    kept[0] = True
    heads, following = heads[kept], following[kept]
    if not np.array_equal(following[:-1], heads[1:]):
        return None
    # The last packets have no successor that could confirm them.
    starts, ends, used = _followed(data, filled, int(following[-1]))
    starts = np.concatenate((heads + _HEADER, starts))
    return starts, np.concatenate((following, ends)), used


def _followed(data: Bytes, filled: int, offset: int = 0) -> tuple[Offsets, Offsets, int]:
    """The same one by one, from ``offset`` on; a row of several packets ends it."""
    starts, ends = [], []
    view = data.data
    while offset + _HEADER <= filled:
        length = view[offset] | view[offset + 1] << 8 | view[offset + 2] << 16
        after = offset + _HEADER + length
        if after > filled or length == _FULL_PACKET:
            break
        starts.append(offset + _HEADER)
        ends.append(after)
        offset = after
    return np.array(starts, np.intp), np.array(ends, np.intp), offset


def _columns(data: Bytes, starts: Offsets, ends: Offsets, columns: int) -> list[Values]:
    found = []
    offset, last = starts, len(data) - _SLACK
    for _ in range(columns):
        if int(offset.max()) > last:
            raise _garbled("a value lies outside its row")
        values, offset = _column(data, offset)
        if (offset > ends).any() or (values.starts > values.ends).any():
            raise _garbled("a value is longer than its row")
        found.append(values)
    if not np.array_equal(offset, ends):
        raise _garbled("a row has more values than columns")
    return found


def _column(data: Bytes, offset: Offsets) -> tuple[Values, Offsets]:
    """The values that begin at ``offset``, and where the ones behind them begin."""
    first = data[offset]
    starts = offset + 1
    lengths = first.astype(np.intp)
    if (first < _NULL).all():
        return Values(data, starts, starts + lengths, None), starts + lengths
    lengths[first == _NULL] = 0
    for mark, width in ((_TWO, 2), (_THREE, 3), (_EIGHT, 8)):
        rows = np.flatnonzero(first == mark)
        if len(rows):
            spread = offset[rows, None] + np.arange(1, width + 1)
            powers = np.left_shift(np.intp(1), 8 * np.arange(min(width, 7), dtype=np.intp))
            lengths[rows] = data[spread][:, : len(powers)].astype(np.intp) @ powers
            starts[rows] += width
    if (first == 0xFF).any():
        raise _garbled("a value has no length")
    valid = first != _NULL
    ends = starts + lengths
    return Values(data, starts, ends, None if valid.all() else valid), ends
