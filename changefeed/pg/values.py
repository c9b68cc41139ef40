"""Cells as values of PostgreSQL's types, in text and in binary, and parameters back.

A column has its type by its name, the same in every listing, so that a client knows the types of a
result before its first row, and of one without rows.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from changefeed.api import Cell
from changefeed.pg.messages import PgError
from changefeed.statements.values import COLUMN_KINDS, ColumnKind

BOOL, INT8, INT2, INT4, TEXT, OID = 16, 20, 21, 23, 25, 26
FLOAT4, FLOAT8, UNKNOWN, VARCHAR, TIMESTAMPTZ, NUMERIC = 700, 701, 705, 1043, 1184, 1700
TEXTS = 1009
#: Types of arrays, with those of their elements.
ARRAYS = {1005: INT2, 1007: INT4, 1016: INT8, TEXTS: TEXT, 1015: VARCHAR}

_INTS = {INT2: "!h", INT4: "!i", INT8: "!q", OID: "!I"}
_FLOATS = {FLOAT4: "!f", FLOAT8: "!d"}
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)

#: A value as views keep it: what SQLite knows, a list as JSON.
Value = str | int | float | None

_OIDS = {
    ColumnKind.INTEGER: INT8,
    ColumnKind.NUMBER: FLOAT8,
    ColumnKind.MOMENT: TIMESTAMPTZ,
    ColumnKind.LIST: TEXTS,
}

#: Columns that hold something else than text, by name.
TYPES: dict[str, int] = {name: _OIDS[kind] for name, kind in COLUMN_KINDS.items()}


@dataclass(frozen=True, slots=True)
class PgColumn:
    """A column of a result."""

    name: str
    oid: int = TEXT

    @classmethod
    def named(cls, name: str) -> PgColumn:
        """With the type that listings have under this name."""
        return cls(name, TYPES.get(name, TEXT))


def stored(cell: Cell) -> Value:
    """A cell as a view keeps it: figures as numbers, a list as JSON."""
    if isinstance(cell, tuple):
        return json.dumps(list(cell), ensure_ascii=False)
    if isinstance(cell, float):
        return int(cell) if cell.is_integer() else float(cell)
    return cell if cell is None or isinstance(cell, int) else str(cell)


def encoders(columns: Sequence[PgColumn], formats: Sequence[int]) -> list[Callable[[Value], bytes]]:
    """For each column what makes the bytes of its values, other than NULL."""
    made: list[Callable[[Value], bytes]] = []
    for column, binary in zip(columns, formats, strict=True):
        made.append(_binary(column) if binary else _TEXTS.get(column.oid, _plain))
    return made


def _plain(value: Value) -> bytes:
    return str(value).encode(errors="replace")


def _bool(value: Value) -> bytes:
    return b"t" if _true(value) else b"f"


def _true(value: Value) -> bool:
    return value in (1, "1", "t", "true", True)


def _moment_text(value: Value) -> bytes:
    return f"{value}+00".encode()


def _list_text(value: Value) -> bytes:
    quoted = (
        '"' + each.replace("\\", "\\\\").replace('"', '\\"') + '"'
        for each in json.loads(str(value))
    )
    return ("{" + ",".join(quoted) + "}").encode(errors="replace")


_TEXTS: dict[int, Callable[[Value], bytes]] = {
    BOOL: _bool,
    TIMESTAMPTZ: _moment_text,
    TEXTS: _list_text,
    **dict.fromkeys((INT2, INT4, INT8), lambda value: str(_whole(value)).encode()),
}


def _whole(value: Value) -> int | Value:
    return round(value) if isinstance(value, float) else value


def _binary(column: PgColumn) -> Callable[[Value], bytes]:
    def encode(value: Value) -> bytes:
        try:
            return _binary_value(column.oid, value)
        except (ValueError, TypeError, struct.error):
            what = f'column "{column.name}" has a value that is not of its type'
            raise PgError("22P02", what, hint="ask for it as text.") from None

    return encode


def _binary_value(oid: int, value: Value) -> bytes:
    if oid in _INTS:
        return struct.pack(_INTS[oid], round(float(value)) if isinstance(value, float) else value)
    if oid in _FLOATS:
        return struct.pack(_FLOATS[oid], float(value or 0))
    if oid == BOOL:
        return b"\1" if _true(value) else b"\0"
    if oid == TIMESTAMPTZ:
        since = datetime.fromisoformat(str(value)).replace(tzinfo=UTC) - _EPOCH
        return struct.pack("!q", since // timedelta(microseconds=1))
    if oid == TEXTS:
        each = [text.encode(errors="replace") for text in json.loads(str(value))]
        head = struct.pack("!iii", 1 if each else 0, 0, TEXT)
        dimension = struct.pack("!ii", len(each), 1) if each else b""
        return head + dimension + b"".join(struct.pack("!i", len(e)) + e for e in each)
    return _plain(value)


def _binary_array(data: bytes) -> list[Value]:
    """Of one dimension."""
    dimensions, _, element = struct.unpack_from("!iii", data)
    found: list[Value] = []
    at = 20
    if dimensions not in (0, 1) or element not in ARRAYS.values():
        raise ValueError
    while dimensions and at < len(data):
        (length,) = struct.unpack_from("!i", data, at)
        end = at + 4 + max(length, 0)
        if end > len(data):
            raise ValueError
        found.append(None if length < 0 else parameter(data[at + 4 : end], element, 1))
        at = end
    return found


_ELEMENT = re.compile(r'"((?:[^"\\]|\\.)*)"|([^,{}"\\]+)', re.S)


def _text_array(text: str, oid: int) -> list[Value]:
    """``{a,"b c",NULL}``, of one dimension."""
    found: list[Value] = []
    for quoted, bare in _ELEMENT.findall(text):
        if bare.upper() == "NULL":
            found.append(None)
            continue
        value = bare or re.sub(r"\\(.)", r"\1", quoted, flags=re.S)
        found.append(parameter(value.encode(), ARRAYS[oid], 0))
    return found


def parameter(data: bytes | None, oid: int, binary: int) -> Value:
    """The value of a parameter.

    Raises:
        PgError: it is not of its type.
    """
    if data is None:
        return None
    try:
        if binary and oid in _INTS:
            return int(struct.unpack(_INTS[oid], data)[0])
        if binary and oid in _FLOATS:
            return float(struct.unpack(_FLOATS[oid], data)[0])
        if binary and oid == BOOL:
            return int(data != b"\0")
        if binary and oid == TIMESTAMPTZ:
            moment = _EPOCH + timedelta(microseconds=struct.unpack("!q", data)[0])
            return f"{moment:%Y-%m-%d %H:%M:%S.%f}"
        if oid in ARRAYS:
            return json.dumps(_binary_array(data) if binary else _text_array(data.decode(), oid))
        if binary and oid not in (0, TEXT, VARCHAR, UNKNOWN):
            raise PgError("0A000", f"a parameter of type {oid} is read as text only")
        text = data.decode()
        if oid in _INTS:
            return int(text)
        if oid in _FLOATS or oid == NUMERIC:
            return float(text)
        if oid == BOOL:
            return int(text.strip().lower() in ("t", "true", "1", "on", "yes", "y"))
    except (ValueError, struct.error, OverflowError):
        raise PgError("22P02", "a parameter is not a value of its type") from None
    return text
