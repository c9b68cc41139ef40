"""MySQL's binary JSON -> the text that ``SELECT`` prints.

Objects have their keys in the order of the binary form (shorter ones first), numbers and times
their own spelling. Every offset is checked against the value it lies in, and nesting is limited
as in the server.
"""

from __future__ import annotations

import base64
import decimal
import json
import math
import struct
from collections.abc import Callable

from changefeed.sources.mysql.binlog import misfit
from changefeed.sources.mysql.decimals import decimal_text
from changefeed.sources.mysql.tablemap import ColumnType

_SMALL_OBJECT, _LARGE_OBJECT, _SMALL_ARRAY, _LARGE_ARRAY = 0, 1, 2, 3
_LITERAL, _INT16, _UINT16, _INT32, _UINT32, _INT64, _UINT64 = 4, 5, 6, 7, 8, 9, 10
_DOUBLE, _STRING, _OPAQUE = 11, 12, 15
_LITERALS = {0: "null", 1: "true", 2: "false"}
_NUMBERS = {
    _INT16: "<h", _UINT16: "<H", _INT32: "<i", _UINT32: "<I", _INT64: "<q", _UINT64: "<Q",
}  # fmt: skip
#: The server's own limit.
_DEPTH = 100


def json_text(data: bytes) -> str:
    """The value as text. No bytes at all are ``null``: the server writes so where a NULL was made
    NOT NULL."""
    if not data:
        return "null"
    return _value(data[0], data[1:], 0)


def _value(kind: int, data: bytes, depth: int) -> str:
    if kind <= _LARGE_ARRAY:
        return _container(kind, data, depth)
    if kind == _LITERAL:
        return _literal(data[:1])
    if kind in _NUMBERS:
        return str(_unpack(_NUMBERS[kind], data))
    if kind == _DOUBLE:
        return double_text(_unpack("<d", data))
    if kind == _STRING:
        return quoted(_counted(data).decode("utf-8", "replace"))
    if kind == _OPAQUE and data:
        return _opaque(data[0], _counted(data[1:]))
    raise misfit(f"a JSON value of unknown type {kind}")


def _unpack(form: str, data: bytes) -> float:
    try:
        value: float = struct.unpack_from(form, data)[0]
    except struct.error:
        raise misfit("a JSON value that is cut off") from None
    return value


def _literal(data: bytes) -> str:
    try:
        return _LITERALS[data[0]]
    except (IndexError, KeyError):
        raise misfit("a JSON literal that is none") from None


def double_text(value: float) -> str:
    """The shortest digits that read back the same, as the server prints them: with an exponent
    where the point is more than fifteen digits away."""
    if not math.isfinite(value):
        raise misfit("a JSON number that is none")
    sign, digits, exponent = decimal.Decimal(repr(value)).normalize().as_tuple()
    figures, minus = "".join(map(str, digits)), "-" if sign else ""
    point = len(figures) + int(exponent)
    if not value:
        return f"{minus}0.0"
    if not -14 <= point <= 15:
        rest = f".{figures[1:]}" if len(figures) > 1 else ""
        return f"{minus}{figures[0]}{rest}e{point - 1}"
    if point <= 0:
        return f"{minus}0.{'0' * -point}{figures}"
    whole = figures[:point].ljust(point, "0")
    return f"{minus}{whole}.{figures[point:] or '0'}"


def quoted(text: str) -> str:
    """A JSON string; characters beyond ASCII as they are."""
    return json.dumps(text, ensure_ascii=False)


def _counted(data: bytes) -> bytes:
    length = 0
    for offset in range(min(5, len(data))):
        byte = data[offset]
        length |= (byte & 0x7F) << (7 * offset)
        if byte < 0x80:
            found = data[offset + 1 : offset + 1 + length]
            if len(found) != length:
                break
            return found
    raise misfit("a JSON text that is cut off")


class _Container:
    def __init__(self, kind: int, data: bytes) -> None:
        self.object = kind in (_SMALL_OBJECT, _LARGE_OBJECT)
        self.size = 4 if kind in (_LARGE_OBJECT, _LARGE_ARRAY) else 2
        self.data = data
        self.count, self.length = self.number(0), self.number(self.size)
        if self.length > len(data):
            raise misfit("a JSON container that is cut off")
        self.keys_at = 2 * self.size
        self.values_at = self.keys_at + (self.count * (self.size + 2) if self.object else 0)
        if self.values_at + self.count * (1 + self.size) > self.length:
            raise misfit("a JSON container with more than it holds")

    def number(self, offset: int) -> int:
        found = self.data[offset : offset + self.size]
        if len(found) != self.size:
            raise misfit("a JSON container that is cut off")
        return int.from_bytes(found, "little")

    def key(self, number: int) -> str:
        entry = self.keys_at + number * (self.size + 2)
        start = self.number(entry)
        length = int.from_bytes(self.data[entry + self.size : entry + self.size + 2], "little")
        if start + length > self.length:
            raise misfit("a JSON key that is cut off")
        return self.data[start : start + length].decode("utf-8", "replace")

    def value(self, number: int, depth: int) -> str:
        entry = self.values_at + number * (1 + self.size)
        kind = self.data[entry]
        inlined = kind in (_LITERAL, _INT16, _UINT16) or (
            self.size == 4 and kind in (_INT32, _UINT32)
        )
        if inlined:
            return _value(kind, self.data[entry + 1 : entry + 1 + self.size], depth)
        start = self.number(entry + 1)
        if not self.values_at < start < self.length:
            raise misfit("a JSON value outside of its container")
        return _value(kind, self.data[start : self.length], depth)


def _container(kind: int, data: bytes, depth: int) -> str:
    if depth >= _DEPTH:
        raise misfit("a JSON value that is nested too deep")
    held = _Container(kind, data)
    values = (held.value(number, depth + 1) for number in range(held.count))
    if not held.object:
        return "[" + ", ".join(values) + "]"
    pairs = (f"{quoted(held.key(number))}: {text}" for number, text in enumerate(values))
    return "{" + ", ".join(pairs) + "}"


# ------------------------------------------------------------------ values that JSON has not


def _opaque(kind: int, data: bytes) -> str:
    reader = _OPAQUES.get(kind)
    if reader is not None:
        return reader(data)
    return quoted(f"base64:type{kind}:{base64.b64encode(data).decode()}")


def _decimal(data: bytes) -> str:
    if len(data) < 2:
        raise misfit("a JSON decimal that is cut off")
    return decimal_text(data[2:], data[0], data[1])


def _packed(data: bytes) -> tuple[int, int, bool]:
    whole = int(_unpack("<q", data))
    magnitude = abs(whole)
    return magnitude >> 24, magnitude & 0xFFFFFF, whole < 0


def _time(data: bytes) -> str:
    upper, micros, negative = _packed(data)
    hours, minutes, seconds = upper >> 12 & 0x3FF, upper >> 6 & 0x3F, upper & 0x3F
    sign = "-" if negative else ""
    return quoted(f"{sign}{hours:02d}:{minutes:02d}:{seconds:02d}.{micros:06d}")


def _date_parts(upper: int) -> str:
    day, months = upper >> 17 & 0x1F, upper >> 22
    return f"{months // 13:04d}-{months % 13:02d}-{day:02d}"


def _date(data: bytes) -> str:
    return quoted(_date_parts(_packed(data)[0]))


def _datetime(data: bytes) -> str:
    upper, micros, _ = _packed(data)
    hours, minutes, seconds = upper >> 12 & 0x1F, upper >> 6 & 0x3F, upper & 0x3F
    clock = f"{hours:02d}:{minutes:02d}:{seconds:02d}.{micros:06d}"
    return quoted(f"{_date_parts(upper)} {clock}")


_OPAQUES: dict[int, Callable[[bytes], str]] = {
    ColumnType.NEWDECIMAL: _decimal,
    ColumnType.TIME: _time,
    ColumnType.DATE: _date,
    ColumnType.DATETIME: _datetime,
    ColumnType.TIMESTAMP: _datetime,
}
