"""Events of a binlog as MariaDB writes them, made of their parts."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from changefeed.sources.mysql.binlog import HEADER, HEADER_SIZE, EventType
from changefeed.sources.mysql.tablemap import ColumnType
from changefeed.sources.mysql.wire import EventBytes

DATABASE, UTF8 = "shop", 45


def event(kind: int, body: bytes, seconds: int = 1_700_000_000, flags: int = 0) -> EventBytes:
    """With its checksum, as an inbox returns it."""
    size = HEADER_SIZE + len(body) + 4
    data = HEADER.pack(seconds, kind, 1, size, 0, flags) + body
    return bytearray(data + struct.pack("<I", zlib.crc32(data))), 0, size


def description() -> EventBytes:
    """The first event of a file: the others have checksums."""
    body = struct.pack("<H", 4) + b"11.4.5-MariaDB".ljust(50, b"\0") + bytes(4) + b"\x13"
    return event(EventType.FORMAT_DESCRIPTION, body + bytes(40) + b"\x01")


def gtid(number: int, seconds: int) -> EventBytes:
    """The begin of a transaction that an XID ends."""
    return event(EventType.MARIA_GTID, struct.pack("<QIB", number, 0, 0) + bytes(6), seconds)


def xid(seconds: int) -> EventBytes:
    """The end of one."""
    return event(EventType.XID, struct.pack("<Q", 1), seconds)


def query(text: str, *, loads: bool = False) -> EventBytes:
    """A statement; ``loads``: LOAD DATA, as a session writes it that writes no rows."""
    name = DATABASE.encode()
    extra = bytes(13) if loads else b""
    body = struct.pack("<IIBHH", 1, 0, len(name), 0, 0) + extra + name + b"\0" + text.encode()
    return event(EventType.EXECUTE_LOAD_QUERY if loads else EventType.QUERY, body)


@dataclass(frozen=True)
class WrittenColumn:
    """A column of a table's description; ``meta`` as the event has it."""

    name: str
    wire: int
    meta: bytes = b""


ID = WrittenColumn("id", ColumnType.LONG)
NUMBER = WrittenColumn("v", ColumnType.LONG)
TEXT = WrittenColumn("s", ColumnType.VARCHAR, struct.pack("<H", 80))
COMPRESSED = WrittenColumn("s", ColumnType.MARIA_VARCHAR_COMPRESSED, struct.pack("<H", 81))
HASH = WrittenColumn("DB_ROW_HASH_1", ColumnType.LONGLONG)


def _field(kind: int, content: bytes) -> bytes:
    return bytes([kind, len(content)]) + content


def table_map(number: int, name: str, columns: Sequence[WrittenColumn]) -> bytes:
    """The body of a table's description with the first column as its key; all others may be
    NULL."""
    database = DATABASE.encode()
    metas = b"".join(column.meta for column in columns)
    nulls = ((1 << len(columns)) - 2).to_bytes((len(columns) + 7) // 8, "little")
    signs = "".join("1" if column is HASH else "0" for column in columns)
    names = b"".join(bytes([len(c.name)]) + c.name.encode() for c in columns)
    return b"".join(
        [
            number.to_bytes(6, "little") + b"\1\0",
            bytes([len(database)]) + database + b"\0",
            bytes([len(name)]) + name.encode() + b"\0",
            bytes([len(columns), *(column.wire for column in columns)]),
            bytes([len(metas)]) + metas + nulls,
            _field(1, int(signs.replace("-", "").ljust(8, "0"), 2).to_bytes(1, "big")),
            _field(2, bytes([UTF8])),
            _field(4, names),
            _field(8, b"\0"),
        ]
    )


def image(columns: Sequence[WrittenColumn], values: Sequence[object]) -> bytes:
    """A whole row; bytes are written as they are, behind their length."""
    nulls, parts = 0, []
    for place, (column, value) in enumerate(zip(columns, values, strict=True)):
        if value is None:
            nulls |= 1 << place
        elif isinstance(value, int):
            parts.append(struct.pack("<q" if column is HASH else "<i", value))
        else:
            text = value.encode() if isinstance(value, str) else bytes(value)  # type: ignore[call-overload]
            parts.append(bytes([len(text)]) + text)
    return nulls.to_bytes((len(columns) + 7) // 8, "little") + b"".join(parts)


def rows(number: int, columns: int, kind: int, images: bytes) -> bytes:
    """The body of a row event whose images are whole; the kind is of the first version."""
    bitmap = ((1 << columns) - 1).to_bytes((columns + 7) // 8, "little")
    twice = 2 if kind == EventType.UPDATE_ROWS_V1 else 1
    return number.to_bytes(6, "little") + b"\1\0" + bytes([columns]) + bitmap * twice + images
