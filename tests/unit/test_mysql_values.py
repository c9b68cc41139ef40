"""Values of single columns in row events, byte for byte as the servers' sources describe them."""

from __future__ import annotations

import ipaddress
import math
import struct
import uuid
from typing import cast

import numpy as np
import pytest

from changefeed.core.errors import ChangefeedError
from changefeed.core.schema import BeforeImage, Column, TableName, TableSchema
from changefeed.core.types import LogicalType
from changefeed.sources.mysql.decode import INSERT, RowEvents, decode
from changefeed.sources.mysql.layout import width_of
from changefeed.sources.mysql.rows import inet6_text, reader_of
from changefeed.sources.mysql.tablemap import Charset, Charsets, ColumnShape, ColumnType, TableShape
from changefeed.sources.mysql.types import ColumnInfo, column_of
from changefeed.sources.mysql.walk import PADDING


def read(wire: ColumnType, data: bytes) -> object:
    """What the value becomes in the log."""
    column = Column("c", "c", LogicalType.parse("text"))
    return reader_of(ColumnShape("c", wire, 0, True), column, cast(Charsets, None))(data)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (20260102030405, "2026-01-02T03:04:05"),
        (99991231235959, "9999-12-31T23:59:59"),
        (10101000000, "0001-01-01T00:00:00"),
        (0, None),
        (505000000, None),  # no year
        (20260005000000, None),  # no month
        (20260500000000, None),
    ],
)
def test_datetime_before_mysql_5_6(number: int, text: str | None) -> None:
    """Fourteen decimal digits in eight bytes; what is no date is NULL, as its time says nothing."""
    assert read(ColumnType.DATETIME, number.to_bytes(8, "little")) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "00:00:00"),
        (10000, "01:00:00"),
        (123456, "12:34:56"),
        (-123456, "-12:34:56"),
        (8385959, "838:59:59"),
        (-8385959, "-838:59:59"),
    ],
)
def test_time_before_mysql_5_6(number: int, text: str) -> None:
    """Decimal digits of hours, minutes and seconds in three bytes, with a sign."""
    assert read(ColumnType.TIME, number.to_bytes(3, "little", signed=True)) == text


@pytest.mark.parametrize(
    "text",
    [
        "::",
        "::1",
        "::100",
        "::1.2.3.4",
        "::1.0.3.4",
        "::ffff:1.2.3.4",
        "2001:db8::1",
        "::fffe:102:304",
    ],
)
def test_inet6_of_mariadb(text: str) -> None:
    """As the server prints it; zeros at the end are not in the log."""
    stored = ipaddress.IPv6Address(text).packed
    assert inet6_text(stored) == text
    assert inet6_text(stored.rstrip(b"\0")) == text


LATIN1 = 8
CHARSETS: Charsets = {LATIN1: Charset("latin1", 1)}


def values(shape: ColumnShape, type_text: str, data: bytes, *, json: bool = False) -> list[object]:
    """What the value becomes in the log, read by itself and read by columns."""
    column = column_of(ColumnInfo("c", type_text, json=json))
    schema = TableSchema(TableName("shop", "shop", "t"), (column,), (), BeforeImage.KEY, True)
    width = width_of(shape)
    length = len(data).to_bytes(-width, "little") if width < 0 else b""
    row = b"\0" + length + data
    one, none = np.zeros(1, np.int64), np.full(1, len(row))
    events = RowEvents(one, np.full(1, INSERT, np.int64), one, none)
    table = TableShape("shop", "t", (shape,))
    buffer = bytearray(row + bytes(PADDING))
    return [
        decode(buffer, events, table, schema, CHARSETS, small=small).after[0][0].as_py()
        for small in (10**9, 0)
    ]


def shaped(
    wire: ColumnType,
    meta: int = 0,
    *,
    unsigned: bool = False,
    collation: int | None = None,
    names: tuple[bytes, ...] = (),
) -> ColumnShape:
    """A column of the binlog."""
    return ColumnShape("c", wire, meta, True, unsigned, collation, names)


def date(year: int, month: int, day: int) -> bytes:
    return (year << 9 | month << 5 | day).to_bytes(3, "little")


def datetime2(year: int, month: int, day: int, clock: tuple[int, int, int]) -> bytes:
    hour, minute, second = clock
    packed = (year * 13 + month) << 22 | day << 17 | hour << 12 | minute << 6 | second
    return (packed + (1 << 39)).to_bytes(5)


def time2(sign: int, hour: int, minute: int, second: int, fraction: int, size: int) -> bytes:
    whole = (hour << 12 | minute << 6 | second) << 8 * size | fraction
    return (sign * whole + (1 << 8 * (3 + size) - 1)).to_bytes(3 + size)


T = ColumnType
ABC = (b"a", "é".encode(), b"c")
UUID = uuid.UUID("11223344-5566-1788-9900-aabbccddeeff")
#: As MariaDB stores one of versions 1 to 5: its last part first.
STORED = UUID.bytes[10:] + UUID.bytes[8:10] + UUID.bytes[6:8] + UUID.bytes[4:6] + UUID.bytes[:4]
NIL = uuid.UUID("11223344-5566-7788-1900-aabbccddeeff")


@pytest.mark.parametrize(
    ("shape", "type_text", "data", "value"),
    [
        (shaped(T.TINY), "tinyint", b"\xff", -1),
        (shaped(T.TINY, unsigned=True), "tinyint unsigned", b"\xff", 255),
        (shaped(T.INT24), "mediumint", b"\x00\x00\x80", -(2**23)),
        (shaped(T.LONG, unsigned=True), "int unsigned", b"\xff\xff\xff\xff", 2**32 - 1),
        (shaped(T.LONGLONG), "bigint", bytes(7) + b"\x80", -(2**63)),
        (shaped(T.LONGLONG, unsigned=True), "bigint unsigned", b"\xff" * 8, str(2**64 - 1)),
        (shaped(T.FLOAT, 4), "float", struct.pack("<f", 0.1), "0.1"),
        (shaped(T.DOUBLE, 8), "double", struct.pack("<d", -2.5e-300), "-2.5e-300"),
        (shaped(T.NEWDECIMAL, 5 << 8 | 2), "decimal(5,2)", b"\x80\x7b\x2d", "123.45"),
        (shaped(T.NEWDECIMAL, 5 << 8 | 2), "decimal(5,2)", b"\x7f\x84\xd2", "-123.45"),
        (shaped(T.YEAR), "year", b"\0", 0),
        (shaped(T.YEAR), "year", b"\1", 1901),
        (shaped(T.YEAR), "year", b"\xff", 2155),
        (shaped(T.DATE), "date", date(2024, 2, 29), "2024-02-29"),
        (shaped(T.NEWDATE), "date", date(1, 1, 1), "0001-01-01"),
        (shaped(T.DATE), "date", date(9999, 12, 31), "9999-12-31"),
        (shaped(T.DATE), "date", date(0, 1, 1), None),
        (shaped(T.DATE), "date", date(2024, 0, 1), None),
        (shaped(T.DATE), "date", date(2024, 1, 0), None),
        (shaped(T.DATETIME2), "datetime", datetime2(2024, 2, 29, (23, 59, 58)),
         "2024-02-29T23:59:58"),
        (shaped(T.DATETIME2), "datetime", datetime2(9999, 12, 31, (1, 2, 3)),
         "9999-12-31T01:02:03"),
        (shaped(T.DATETIME2), "datetime", datetime2(1, 1, 1, (0, 0, 0)), "0001-01-01T00:00:00"),
        (shaped(T.DATETIME2), "datetime", datetime2(0, 0, 0, (0, 0, 0)), None),
        (shaped(T.DATETIME2), "datetime", datetime2(2024, 0, 1, (0, 0, 0)), None),
        (shaped(T.DATETIME2, 1), "datetime(1)", datetime2(2024, 1, 2, (3, 4, 5)) + b"\x5a",
         "2024-01-02T03:04:05.9"),
        (shaped(T.DATETIME2, 2), "datetime(2)", datetime2(2024, 1, 2, (3, 4, 5)) + b"\x09",
         "2024-01-02T03:04:05.09"),
        # No server writes more than 99 here.
        (shaped(T.DATETIME2, 2), "datetime(2)", datetime2(2024, 1, 2, (3, 4, 5)) + b"\xff",
         "2024-01-02T03:04:05.55"),
        (shaped(T.DATETIME2, 3), "datetime(3)",
         datetime2(2024, 1, 2, (3, 4, 5)) + (1230).to_bytes(2), "2024-01-02T03:04:05.123"),
        (shaped(T.DATETIME2, 6), "datetime(6)",
         datetime2(2024, 1, 2, (3, 4, 5)) + (7).to_bytes(3), "2024-01-02T03:04:05.000007"),
        (shaped(T.TIMESTAMP2), "timestamp", bytes(4), None),
        (shaped(T.TIMESTAMP2), "timestamp", (1).to_bytes(4), "1970-01-01T00:00:01Z"),
        (shaped(T.TIMESTAMP2, 6), "timestamp(6)", bytes(4) + (9).to_bytes(3),
         "1970-01-01T00:00:00.000009Z"),
        (shaped(T.TIMESTAMP2), "timestamp", b"\xff" * 4, "2106-02-07T06:28:15Z"),
        (shaped(T.TIMESTAMP), "timestamp", (1_709_251_198).to_bytes(4, "little"),
         "2024-02-29T23:59:58Z"),
        (shaped(T.TIME2), "time", time2(1, 0, 0, 0, 0, 0), "00:00:00"),
        (shaped(T.TIME2), "time", time2(-1, 838, 59, 58, 0, 0), "-838:59:58"),
        (shaped(T.TIME2, 2), "time(2)", time2(-1, 0, 0, 0, 50, 1), "-00:00:00.50"),
        (shaped(T.TIME2, 2), "time(2)", time2(1, 12, 34, 56, 78, 1), "12:34:56.78"),
        (shaped(T.TIME2, 3), "time(3)", time2(-1, 12, 34, 56, 7890, 2), "-12:34:56.789"),
        (shaped(T.TIME2, 6), "time(6)", time2(1, 12, 34, 56, 789, 3), "12:34:56.000789"),
        (shaped(T.TIME), "time", (-8385958).to_bytes(3, "little", signed=True), "-838:59:58"),
        (shaped(T.DATETIME), "datetime", (20240229235958).to_bytes(8, "little"),
         "2024-02-29T23:59:58"),
        (shaped(T.VARCHAR, 10), "varchar(10)", "é".encode(), "é"),
        (shaped(T.VARCHAR, 10, collation=LATIN1), "varchar(10)", b"\xe9", "é"),
        (shaped(T.VARCHAR, 300), "varchar(300)", b"x" * 256, "x" * 256),
        (shaped(T.BLOB, 2), "text", b"a\r\nb", "a\r\nb"),
        (shaped(T.BLOB, 2), "blob", b"\x00\xff", "\\x00ff"),
        (shaped(T.STRING, 4), "binary(4)", b"\x01", "\\x01000000"),
        (shaped(T.VARCHAR, 4), "varbinary(4)", b"\x01", "\\x01"),
        (shaped(T.VARCHAR, 16), "uuid", b"text", "text"),
        (shaped(T.STRING, 16), "uuid", STORED, str(UUID)),
        (shaped(T.STRING, 16), "uuid", NIL.bytes, str(NIL)),
        (shaped(T.STRING, 16), "uuid", b"", str(uuid.UUID(int=0))),
        (shaped(T.STRING, 4), "inet4", bytes([10, 1]), "10.1.0.0"),
        # No server writes longer ones.
        (shaped(T.STRING, 17), "uuid", NIL.bytes + b"x", str(NIL)),
        (shaped(T.STRING, 5), "inet4", bytes([10, 1, 2, 3, 4]), "10.1.2.3"),
        (shaped(T.STRING, 17), "inet6", b"\x20\x01" + bytes(15), "2001::"),
        (shaped(T.STRING, 16), "inet6", b"\x20\x01", "2001::"),
        (shaped(T.GEOMETRY, 4), "point", b"\x0a", "\\x0a"),
        (shaped(T.BIT, 1), "bit(1)", b"\x01", True),
        (shaped(T.BIT, 1), "bit(1)", b"\x00", False),
        (shaped(T.BIT, 1 << 8 | 1), "bit(9)", b"\x01\xfe", "\\x01fe"),
        (shaped(T.ENUM, 1, names=ABC), "enum('a','é','c')", b"\x00", ""),
        (shaped(T.ENUM, 1, names=ABC), "enum('a','é','c')", b"\x01", "a"),
        (shaped(T.ENUM, 2, names=ABC), "enum('a','é','c')", b"\x03\x00", "c"),
        (shaped(T.ENUM, 1, collation=LATIN1, names=(b"\xe9",)), "enum('é')", b"\x01", "é"),
        (shaped(T.SET, 1, names=ABC), "set('a','é','c')", b"\x00", ""),
        (shaped(T.SET, 1, names=ABC), "set('a','é','c')", b"\x06", "é,c"),
        (shaped(T.SET, 8, names=(b"a",) * 64), "set('a')", bytes(7) + b"\x80", "a"),
        (shaped(T.NULL), "int", b"", None),
    ],
)  # fmt: skip
def test_both_decoders_read(shape: ColumnShape, type_text: str, data: bytes, value: object) -> None:
    assert values(shape, type_text, data) == [value, value]


def test_the_json_of_mariadb_is_one_line() -> None:
    shape = shaped(T.BLOB, 4)
    assert values(shape, "longtext", b'{"a":\r\n1}', json=True) == ['{"a":  1}'] * 2


@pytest.mark.parametrize("small", [10**9, 0])
@pytest.mark.parametrize(
    ("shape", "type_text", "data", "message"),
    [
        (shaped(T.FLOAT, 4), "float", struct.pack("<f", math.inf), "does not have"),
        (shaped(T.DOUBLE, 8), "double", struct.pack("<d", -math.inf), "does not have"),
        (shaped(T.DOUBLE, 8), "double", struct.pack("<d", math.nan), "does not have"),
        (shaped(T.ENUM, 1, names=ABC), "enum('a','é','c')", b"\x04", "ENUM value"),
        (shaped(T.SET, 1, names=ABC), "set('a','é','c')", b"\x08", "SET value"),
        (shaped(T.LONG), "tinyint", (2**31 - 1).to_bytes(4, "little"), "not of its type"),
        (shaped(T.VARCHAR, 10), "varchar(10)", b"\x05abc", "behind|ends|outside"),
    ],
)
def test_both_decoders_refuse(
    shape: ColumnShape, type_text: str, data: bytes, message: str, small: int
) -> None:
    """What no server sends."""
    schema = TableSchema(
        TableName("shop", "shop", "t"), (column_of(ColumnInfo("c", type_text)),), (),
        BeforeImage.KEY, True,
    )  # fmt: skip
    row = b"\0" + data
    one = np.zeros(1, np.int64)
    events = RowEvents(one, np.full(1, INSERT, np.int64), one, np.full(1, len(row)))
    table = TableShape("shop", "t", (shape,))
    with pytest.raises(ChangefeedError, match=message) as caught:
        decode(bytearray(row + bytes(PADDING)), events, table, schema, CHARSETS, small=small)
    assert caught.value.code.number == "CF2105"
