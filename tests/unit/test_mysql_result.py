"""Rows of a text answer: columns as the server sent them, whatever they hold."""

from __future__ import annotations

import io
import random
import struct
from collections.abc import Sequence

import pyarrow as pa
import pytest

from changefeed.core.errors import ChangefeedError
from changefeed.sources.mysql import result
from changefeed.sources.mysql.result import ServerError, read_rows

Row = Sequence[bytes | None]
_LIMIT = 0xFFFFFF
_OVER = b"\xfe\x00\x00\x02\x00"


def value(data: bytes | None) -> bytes:
    """A value behind its length."""
    if data is None:
        return b"\xfb"
    size = len(data)
    if size < 0xFB:
        return bytes([size]) + data
    if size < 1 << 16:
        return b"\xfc" + struct.pack("<H", size) + data
    if size < 1 << 24:
        return b"\xfd" + struct.pack("<I", size)[:3] + data
    return b"\xfe" + struct.pack("<Q", size) + data


def packets(payloads: Sequence[bytes], count: int = 3) -> bytes:
    """Payloads with their headers; a long one goes on in further packets."""
    out = bytearray()
    for payload in payloads:
        rest = payload
        while True:
            part, rest = rest[:_LIMIT], rest[_LIMIT:]
            out += struct.pack("<I", len(part))[:3] + bytes([count % 256]) + part
            count += 1
            if len(part) < _LIMIT:
                break
    return bytes(out)


def answer(rows: Sequence[Row], end: bytes = _OVER) -> bytes:
    return packets([*(b"".join(map(value, row)) for row in rows), end])


class Pieces(io.RawIOBase):
    """Bytes as a socket gives them: in pieces of any size."""

    def __init__(self, data: bytes, most: int) -> None:
        self._data, self._place, self._most = data, 0, most
        self._random = random.Random(most)

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override]
        size = min(len(buffer), self._random.randint(1, self._most))
        piece = self._data[self._place : self._place + size]
        buffer[: len(piece)] = piece
        self._place += len(piece)
        return len(piece)


def read(data: bytes, columns: int, *, size: int = 1 << 14, most: int = 5000) -> list[Row]:
    rows: list[Row] = []
    for block in read_rows(Pieces(data, most), columns, size):
        rows += zip(*(column.gather(pa.binary()).to_pylist() for column in block), strict=True)
    return rows


def some(numbers: random.Random, *, zeros: bool) -> bytes | None:
    """A value of any length, seldom NULL."""
    if numbers.random() < 0.1:
        return None
    size = numbers.choice((0, 1, 7, 30, 250, 251, 300))
    return bytes(numbers.choices(range(4) if zeros else range(256), k=size))


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("columns", [1, 3, 40])
def test_rows_come_as_they_were_sent(columns: int, zeros: bool) -> None:
    numbers = random.Random(columns)
    rows = [tuple(some(numbers, zeros=zeros) for _ in range(columns)) for _ in range(1000)]

    assert read(answer(rows), columns) == rows


def test_many_short_rows_are_found_without_following_each(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [(b"%d" % i, b"name %d" % i, None, b"0" * (i % 50)) for i in range(20_000)]
    followed: list[int] = []
    follow = result._followed

    def counting(data: result.Bytes, filled: int, place: int = 0) -> object:
        found = follow(data, filled, place)
        followed.append(len(found[0]))
        return found

    monkeypatch.setattr(result, "_followed", counting)

    assert read(answer(rows), 4, size=1 << 18, most=1 << 17) == rows
    assert sum(followed) < len(rows) / 100


@pytest.mark.parametrize("size", [65_535, 65_536, 200_000, _LIMIT - 4, _LIMIT - 5, _LIMIT + 7])
def test_long_rows(size: int) -> None:
    rows: list[Row] = [(b"1", b"a"), (b"x" * size, None), (b"2", b"b" * 300)]

    assert read(answer(rows), 2, most=1 << 20) == rows


def test_no_rows() -> None:
    assert read(answer([]), 2) == []


def test_an_error_in_the_middle_is_raised_with_its_words() -> None:
    error = b"\xff" + struct.pack("<H", 1412) + b"#HY000Table definition has changed"
    with pytest.raises(ServerError) as raised:
        read(answer([(b"1",)] * 10, error), 1)

    assert raised.value.args == (1412, "Table definition has changed")


def test_an_error_whose_number_holds_its_mark() -> None:
    error = b"\xff" + struct.pack("<H", 0x04FF) + b"#HY000no"
    with pytest.raises(ServerError):
        read(answer([(b"1",)], error), 1)


def test_a_connection_that_ends_is_no_end_of_the_answer() -> None:
    whole = answer([(b"1",)] * 10)
    with pytest.raises(ConnectionResetError):
        read(whole[:-3], 1)


@pytest.mark.parametrize(
    "payload",
    [
        b"\x05abc",  # longer than its row
        b"\x01a\x01b",  # more values than columns
        b"\xfd\xff\xff\xff",  # far outside
        b"\xfe" + b"\xff" * 8,  # a length that is negative
        b"",
    ],
)
def test_lengths_that_lie_are_an_error(payload: bytes) -> None:
    with pytest.raises(ChangefeedError, match="cannot be read"):
        read(packets([payload, _OVER]), 1)
