"""Few rows, one value at a time, in plain Python: what :mod:`.walk` and :mod:`.columns` do.

Below some dozen rows the fixed cost of numpy is more than a loop. This decoder shares no code
with the other on purpose: each is the other's proof.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import struct
import uuid
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.schema import Column, TableSchema
from changefeed.core.types import Kind
from changefeed.sources.mysql.binlog import Misfit, column_unpacked, misfit
from changefeed.sources.mysql.decimals import decimal_text
from changefeed.sources.mysql.json_binary import json_text
from changefeed.sources.mysql.layout import width_of
from changefeed.sources.mysql.tablemap import Charsets, ColumnShape, ColumnType, TableShape, decoded

Row = list[Any]
#: Makes a log value of the bytes of one.
ValueReader = Callable[[bytes], Any]


class RowReader:
    """Reads rows of one table in one shape."""

    def __init__(self, shape: TableShape, schema: TableSchema, charsets: Charsets) -> None:
        self._names = [column.name for column in schema.columns]
        readers: list[ValueReader | None] = [
            reader_of(column, target, charsets)
            for column, target in zip(shape.columns, schema.columns, strict=True)
        ]
        readers += [None] * len(shape.hidden)
        #: Of each stored column the width, and what reads it; None: it is hidden.
        self._columns = list(zip(map(width_of, shape.stored), readers, strict=True))
        self._nulls = (len(self._columns) + 7) // 8

    def read(self, data: bytes | bytearray, start: int, end: int) -> list[Row]:
        """The row images of one event.

        Raises:
            ChangefeedError: CF2105 the rows do not fill their event.
        """
        rows, offset = [], start
        while offset < end:
            row, offset = self.row(data, offset, end)
            rows.append(row)
        return rows

    def row(self, data: bytes | bytearray, offset: int, end: int) -> tuple[Row, int]:
        """One image, and where it ends.

        Raises:
            ChangefeedError: CF2105 it ends behind its event.
        """
        bitmap = data[offset : offset + self._nulls]
        nulls = int.from_bytes(bitmap, "little")
        offset += len(bitmap)
        row: Row = []
        for number, (width, read) in enumerate(self._columns):
            if nulls >> number & 1:
                if read is not None:
                    row.append(None)
                continue
            if width < 0:
                size = int.from_bytes(data[offset : offset - width], "little")
                offset -= width
            else:
                size = width
            upto = offset + size
            if upto > end:
                raise misfit("a row ends behind its event")
            if read is not None:
                try:
                    row.append(read(bytes(data[offset:upto])))
                except Misfit as error:
                    raise error.of_column(self._names[number]) from None
            offset = upto
        return row, offset


def reader_of(shape: ColumnShape, column: Column, charsets: Charsets) -> ValueReader:
    """How a value of the column is read."""
    make = _MAKERS.get(shape.wire)
    if make is None:
        raise misfit(f"type {shape.wire.name}, which cannot be read").of_column(column.name)
    return make(shape, column, charsets)


Maker = Callable[[ColumnShape, Column, Charsets], ValueReader]


def _integer(shape: ColumnShape, column: Column, charsets: Charsets) -> ValueReader:
    signed, text = not shape.unsigned, column.physical == "string"

    def read(data: bytes) -> Any:
        value = int.from_bytes(data, "little", signed=signed)
        return str(value) if text else value

    return read


def _float(shape: ColumnShape, column: Column, charsets: Charsets) -> ValueReader:
    kind = pa.float32() if shape.wire is ColumnType.FLOAT else pa.float64()
    form = "<f" if shape.wire is ColumnType.FLOAT else "<d"

    @lru_cache(maxsize=512)
    def read(data: bytes) -> Any:
        value = struct.unpack(form, data)[0]
        if value != value or value in (float("inf"), float("-inf")):
            raise misfit("a floating-point number that MySQL does not have")
        # Arrow prints numbers in the one way that the log has.
        return pa.scalar(value, kind).cast(pa.string()).as_py()

    return read


def _year(shape: ColumnShape, column: Column, charsets: Charsets) -> ValueReader:
    return lambda data: data[0] + 1900 if data[0] else 0


def _decimal(shape: ColumnShape, column: Column, charsets: Charsets) -> ValueReader:
    return lambda data: decimal_text(data, shape.meta >> 8, shape.meta & 0xFF)


def _date(shape: ColumnShape, column: Column, charsets: Charsets) -> ValueReader:
    def read(data: bytes) -> Any:
        packed = int.from_bytes(data, "little")
        return _calendar(packed >> 9, packed >> 5 & 15, packed & 31)

    return read


def _calendar(year: int, month: int, day: int) -> str | None:
    return f"{year:04d}-{month:02d}-{day:02d}" if year > 0 and month and day else None


def _fraction(data: bytes, digits: int) -> str:
    if not digits:
        return ""
    size = (digits + 1) // 2
    return "." + f"{int.from_bytes(data, 'big') * 10 ** (6 - 2 * size) % 10**6:06d}"[:digits]


def _datetime2(shape: ColumnShape, column: Column, charsets: Charsets) -> ValueReader:
    def read(data: bytes) -> Any:
        packed = int.from_bytes(data[:5], "big") - (1 << 39)
        date = packed >> 17
        day = _calendar((date >> 5) // 13, (date >> 5) % 13, date & 31)
        if day is None:
            return None
        clock = f"{packed >> 12 & 31:02d}:{packed >> 6 & 63:02d}:{packed & 63:02d}"
        return f"{day}T{clock}{_fraction(data[5:], shape.meta)}"

    return read


def _datetime(shape: ColumnShape, column: Column, charsets: Charsets) -> ValueReader:
    def read(data: bytes) -> Any:
        text = f"{int.from_bytes(data, 'little'):014d}"
        day = _calendar(int(text[:-10]), int(text[-10:-8]), int(text[-8:-6]))
        return day and f"{day}T{text[-6:-4]}:{text[-4:-2]}:{text[-2:]}"

    return read


def _timestamp(shape: ColumnShape, column: Column, charsets: Charsets) -> ValueReader:
    order: Any = "big" if shape.wire is ColumnType.TIMESTAMP2 else "little"

    def read(data: bytes) -> Any:
        if not any(data):
            return None
        seconds = int.from_bytes(data[:4], order)
        moment = dt.datetime(1970, 1, 1) + dt.timedelta(seconds=seconds)
        return f"{moment:%Y-%m-%dT%H:%M:%S}{_fraction(data[4:], shape.meta)}Z"

    return read


def _time2(shape: ColumnShape, column: Column, charsets: Charsets) -> ValueReader:
    def read(data: bytes) -> Any:
        size = len(data) - 3
        packed = int.from_bytes(data, "big") - (1 << (8 * len(data) - 1))
        sign = "-" if packed < 0 else ""
        whole = abs(packed)
        clock = whole >> 8 * size
        hours = clock >> 12 & 0x3FF
        fraction = (whole & ((1 << 8 * size) - 1)).to_bytes(size, "big")
        text = f"{sign}{hours:02d}:{clock >> 6 & 63:02d}:{clock & 63:02d}"
        return text + _fraction(fraction, shape.meta)

    return read


def _time(shape: ColumnShape, column: Column, charsets: Charsets) -> ValueReader:
    def read(data: bytes) -> Any:
        value = int.from_bytes(data, "little", signed=True)
        sign, whole = ("-", -value) if value < 0 else ("", value)
        return f"{sign}{whole // 10000:02d}:{whole // 100 % 100:02d}:{whole % 100:02d}"

    return read


def _text(shape: ColumnShape, column: Column, charsets: Charsets) -> ValueReader:
    if column.kind is Kind.BYTES:
        return _bytes(shape, column, charsets)
    if shape.wire is ColumnType.STRING:
        special = {"uuid": uuid_text, "inet6": inet6_text, "inet4": inet4_text}
        if column.type_name in special:
            return special[column.type_name]
    as_json = column.kind is Kind.JSON

    def read(data: bytes) -> Any:
        text = decoded(data, shape.collation, charsets)
        return text.replace("\r", " ").replace("\n", " ") if as_json else text

    return read


def _compressed(shape: ColumnShape, column: Column, charsets: Charsets) -> ValueReader:
    read = _text(shape, column, charsets)
    return lambda data: read(column_unpacked(data))


def _bytes(shape: ColumnShape, column: Column, charsets: Charsets) -> ValueReader:
    width = shape.meta if shape.wire is ColumnType.STRING else 0
    return lambda data: "\\x" + data.ljust(width, b"\0").hex()


def _json(shape: ColumnShape, column: Column, charsets: Charsets) -> ValueReader:
    return json_text


def _bit(shape: ColumnShape, column: Column, charsets: Charsets) -> ValueReader:
    if column.physical == "bool":
        return lambda data: bool(data[0] & 1)
    return lambda data: "\\x" + data.hex()


def _enum(shape: ColumnShape, column: Column, charsets: Charsets) -> ValueReader:
    names = [decoded(value, shape.collation, charsets) for value in shape.values]

    def read(data: bytes) -> Any:
        index = int.from_bytes(data, "little")
        if index > len(names):
            raise misfit("an ENUM value that its column does not have")
        return names[index - 1] if index else ""

    return read


def _set(shape: ColumnShape, column: Column, charsets: Charsets) -> ValueReader:
    names = [decoded(value, shape.collation, charsets) for value in shape.values]

    def read(data: bytes) -> Any:
        members = int.from_bytes(data, "little")
        if members >> len(names):
            raise misfit("a SET value that its column does not have")
        return ",".join(name for bit, name in enumerate(names) if members >> bit & 1)

    return read


def uuid_text(data: bytes) -> str:
    """MariaDB's UUID. Those of versions 1 to 5 are stored with their last part first, so that an
    index has them by node and time; the first bit of byte 6 (where such a one has its variant)
    distinguishes them from those that are stored as they are."""
    data = data.ljust(16, b"\0")[:16]
    if data[6] & 0x80:
        data = data[12:16] + data[10:12] + data[8:10] + data[6:8] + data[:6]
    return str(uuid.UUID(bytes=data))


def inet4_text(data: bytes) -> str:
    return str(ipaddress.IPv4Address(data.ljust(4, b"\0")[:4]))


def inet6_text(data: bytes) -> str:
    """MariaDB's INET6, as the server prints it: an embedded IPv4 address in its own way."""
    data = data.ljust(16, b"\0")[:16]
    if data[:12] == bytes(10) + b"\xff\xff":
        return f"::ffff:{inet4_text(data[12:])}"
    if data[:12] == bytes(12) and any(data[12:14]):
        return f"::{inet4_text(data[12:])}"
    return str(ipaddress.IPv6Address(data))


_MAKERS: dict[ColumnType, Maker] = {
    **dict.fromkeys(
        (ColumnType.TINY, ColumnType.SHORT, ColumnType.INT24, ColumnType.LONG, ColumnType.LONGLONG),
        _integer,
    ),
    **dict.fromkeys((ColumnType.FLOAT, ColumnType.DOUBLE), _float),
    **dict.fromkeys((ColumnType.DATE, ColumnType.NEWDATE), _date),
    **dict.fromkeys((ColumnType.TIMESTAMP, ColumnType.TIMESTAMP2), _timestamp),
    **dict.fromkeys(
        (ColumnType.VARCHAR, ColumnType.VAR_STRING, ColumnType.STRING, ColumnType.BLOB), _text
    ),
    **dict.fromkeys((ColumnType.GEOMETRY, ColumnType.VECTOR), _bytes),
    **dict.fromkeys(
        (ColumnType.MARIA_VARCHAR_COMPRESSED, ColumnType.MARIA_BLOB_COMPRESSED), _compressed
    ),
    ColumnType.YEAR: _year,
    ColumnType.NEWDECIMAL: _decimal,
    ColumnType.TIME: _time,
    ColumnType.TIME2: _time2,
    ColumnType.DATETIME: _datetime,
    ColumnType.DATETIME2: _datetime2,
    ColumnType.JSON: _json,
    ColumnType.BIT: _bit,
    ColumnType.ENUM: _enum,
    ColumnType.SET: _set,
    ColumnType.NULL: lambda shape, column, charsets: lambda data: None,
}


def arrays(rows: Sequence[Row], schema: TableSchema) -> list[pa.Array]:
    """Rows as columns of the log.

    Raises:
        ChangefeedError: CF2105 a value does not fit its column.
    """
    found = []
    for number, column in enumerate(schema.columns):
        try:
            found.append(pa.array([row[number] for row in rows], column.arrow))
        except (pa.ArrowException, OverflowError):
            raise ChangefeedError(
                Code.UNEXPECTED_MESSAGE,
                f"a value of column {column.name!r} of {schema.table} is not of its type",
            ) from None
    return found
