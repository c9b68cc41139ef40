"""Events of the binlog: their headers, and the bodies of all that are not rows.

Nothing here believes a length: every read ends inside the event, or is CF2105.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from changefeed.core.errors import ChangefeedError, Code

if TYPE_CHECKING:
    from changefeed.sources.mysql.wire import EventBytes

HEADER = struct.Struct("<IBIIIH")
HEADER_SIZE = HEADER.size
CHECKSUM_SIZE = 4
#: The CRC32 of any bytes that their own CRC32 follows, low byte first.
WITH_ITS_CRC = 0x2144DF1C
#: Compressed events unpack to no more than this.
MAX_UNPACKED = 1 << 30


class EventType(IntEnum):
    """Types of events that mean something to a reader."""

    QUERY = 2
    STOP = 3
    ROTATE = 4
    FORMAT_DESCRIPTION = 15
    XID = 16
    EXECUTE_LOAD_QUERY = 18
    TABLE_MAP = 19
    WRITE_ROWS_V1 = 23
    UPDATE_ROWS_V1 = 24
    DELETE_ROWS_V1 = 25
    INCIDENT = 26
    HEARTBEAT = 27
    WRITE_ROWS = 30
    UPDATE_ROWS = 31
    DELETE_ROWS = 32
    GTID = 33
    ANONYMOUS_GTID = 34
    XA_PREPARE = 38
    PARTIAL_UPDATE_ROWS = 39
    TRANSACTION_PAYLOAD = 40
    HEARTBEAT_V2 = 41
    GTID_TAGGED = 42
    MARIA_GTID = 162
    MARIA_START_ENCRYPTION = 164
    MARIA_QUERY_COMPRESSED = 165
    MARIA_WRITE_ROWS_COMPRESSED_V1 = 166
    MARIA_UPDATE_ROWS_COMPRESSED_V1 = 167
    MARIA_DELETE_ROWS_COMPRESSED_V1 = 168
    MARIA_WRITE_ROWS_COMPRESSED = 169
    MARIA_UPDATE_ROWS_COMPRESSED = 170
    MARIA_DELETE_ROWS_COMPRESSED = 171


#: Types without meaning for a reader of rows: what replicas of statements need, files of LOAD DATA,
#: statements next to their rows, checkpoints, and messages between members of a group.
MEANINGLESS = frozenset(
    {1, 3, 5, 7, 8, 9, 10, 11, 12, 13, 14, 17, 28, 29, 35, 36, 37, 160, 161, 163, 164}
)

#: Flags of a header: made by the server for this connection, not part of the log; a reader that
#: does not know the type may leave the event out.
ARTIFICIAL, IGNORABLE = 0x20, 0x80


class Header(NamedTuple):
    """What every event begins with. ``end`` is the offset behind it in the server's file."""

    seconds: int
    kind: int
    server_id: int
    size: int
    end: int
    flags: int


class Misfit(ChangefeedError):
    """CF2105 for bytes that are not what they should be; ``what`` they are."""

    def __init__(self, what: str) -> None:
        super().__init__(Code.UNEXPECTED_MESSAGE, f"a binlog event that cannot be: {what}")
        self.what = what

    def of_column(self, name: str) -> Misfit:
        """The same, with the name of the column whose value it is."""
        return Misfit(f"column {name!r}: {self.what}")


def misfit(what: str) -> Misfit:
    """CF2105 for bytes that are not what they should be."""
    return Misfit(what)


class ByteReader:
    """Reads numbers and bytes one after the other; never beyond the end."""

    __slots__ = ("data", "end", "offset")

    def __init__(self, data: bytes | bytearray, start: int, end: int) -> None:
        self.data, self.offset, self.end = data, start, end

    @property
    def left(self) -> int:
        return self.end - self.offset

    def take(self, count: int) -> bytes:
        upto = self.offset + count
        if count < 0 or upto > self.end:
            raise misfit("it ends too early")
        taken = bytes(self.data[self.offset : upto])
        self.offset = upto
        return taken

    def number(self, size: int) -> int:
        """An unsigned number, low byte first."""
        return int.from_bytes(self.take(size), "little")

    def packed(self) -> int:
        """A number of MySQL's variable length."""
        first = self.number(1)
        if first < 251:
            return first
        if first == 252:
            return self.number(2)
        if first == 253:
            return self.number(3)
        if first == 254:
            return self.number(8)
        raise misfit("a length that is none")

    def text(self, count: int) -> str:
        return self.take(count).decode("utf-8", "replace")


def read_header(raw: EventBytes) -> Header:
    data, start, end = raw
    if end - start < HEADER_SIZE:
        raise misfit("it is shorter than its header")
    header = Header(*HEADER.unpack_from(data, start))
    if header.size != end - start:
        raise misfit("its length is not that of its packet")
    return header


def read_seconds(raw: EventBytes) -> int:
    """When an event was written, in seconds since 1970."""
    data, start, _ = raw
    return int.from_bytes(data[start : start + 4], "little")


def is_whole(data: bytes | bytearray, start: int, end: int) -> bool:
    """Whether the CRC32 at the end of an event matches it."""
    # A copy of a few kilobytes costs less than a view.
    return zlib.crc32(data[start:end]) == WITH_ITS_CRC


def strip_checksum(raw: EventBytes) -> EventBytes:
    """The event without its CRC32.

    Raises:
        ChangefeedError: CF2101 it does not match: the bytes changed on their way.
    """
    data, start, end = raw
    if end - start < HEADER_SIZE + CHECKSUM_SIZE or not is_whole(data, start, end):
        raise ChangefeedError(
            Code.STREAM_BROKE, "a binlog event's checksum does not match its bytes"
        )
    return data, start, end - CHECKSUM_SIZE


def without_guessed_checksum(raw: EventBytes) -> EventBytes:
    """The same for events that come before the server said whether it adds checksums."""
    data, start, end = raw
    if end - start >= HEADER_SIZE + CHECKSUM_SIZE and is_whole(data, start, end):
        return data, start, end - CHECKSUM_SIZE
    return raw


def body(raw: EventBytes) -> ByteReader:
    data, start, end = raw
    return ByteReader(data, start + HEADER_SIZE, end)


def read_format(raw: EventBytes) -> bool:
    """Whether the events that follow carry a CRC32.

    Raises:
        ChangefeedError: CF2105 another version of the log's format than 4.
    """
    cursor = body(raw)
    version = cursor.number(2)
    server = cursor.take(50).rstrip(b"\0").decode("ascii", "replace")
    if version != 4:
        raise misfit(f"format {version} of server {server!r}, where 4 was expected")
    cursor.take(4 + 1)
    if cursor.left < 1 + CHECKSUM_SIZE:
        return False
    data, _, end = raw
    return data[end - CHECKSUM_SIZE - 1] == 1


def read_rotate(raw: EventBytes) -> tuple[str, int]:
    """The file that follows, and the offset in it."""
    cursor = body(raw)
    offset = cursor.number(8)
    return cursor.text(cursor.left), offset


_GTID = struct.Struct("<B16sQ")


class MysqlGtid(NamedTuple):
    """The begin of a MySQL transaction.

    Attributes:
        server, number: its GTID; the number is 0 for an anonymous one.
        commit_us: when it committed where it was made, microseconds since 1970; 0 before 8.0.
    """

    server: bytes
    number: int
    commit_us: int


def read_gtid(raw: EventBytes) -> MysqlGtid:
    data, start, end = raw
    start += HEADER_SIZE
    if end - start < _GTID.size:
        raise misfit("it ends too early")
    _, server, number = _GTID.unpack_from(data, start)
    commit_us = 0
    # Type 2 is followed by two numbers of the parallel applier, then times.
    times = start + _GTID.size + 1 + 16
    if end - times >= 7 and data[start + _GTID.size] == 2:
        commit_us = int.from_bytes(data[times : times + 7], "little")
        if commit_us >> 55:  # it was made elsewhere, at the time that follows
            if end - times < 14:
                raise misfit("it ends too early")
            commit_us = int.from_bytes(data[times + 7 : times + 14], "little")
    return MysqlGtid(server, number, commit_us)


class MariaEvent(NamedTuple):
    """The begin of a MariaDB transaction. ``xid`` names an XA transaction, or is empty."""

    domain: int
    server: int
    number: int
    alone: bool
    prepares: bool
    completes: bool
    xid: str


_ALONE, _GROUPED, _PREPARES, _COMPLETES = 1, 2, 64, 128
_MARIA_GTID = struct.Struct("<QIB")


def read_maria_gtid(raw: EventBytes, server: int) -> MariaEvent:
    """A MariaDB GTID event; the server's number is in the header."""
    data, start, end = raw
    start += HEADER_SIZE
    if end - start < _MARIA_GTID.size:
        raise misfit("it ends too early")
    number, domain, flags = _MARIA_GTID.unpack_from(data, start)
    prepares, completes, xid = bool(flags & _PREPARES), bool(flags & _COMPLETES), ""
    if prepares or completes:
        cursor = ByteReader(data, start + _MARIA_GTID.size, end)
        if flags & _GROUPED:
            cursor.take(8)
        form = _signed(cursor)
        first, second = cursor.number(1), cursor.number(1)
        xid = xa_name(cursor.take(first), cursor.take(second), form)
    return MariaEvent(domain, server, number, bool(flags & _ALONE), prepares, completes, xid)


def _signed(cursor: ByteReader) -> int:
    return int.from_bytes(cursor.take(4), "little", signed=True)


def xa_name(first: bytes, second: bytes, form: int) -> str:
    """The three parts of an XA transaction's id as a name for a folder."""
    return f"{first.hex()}-{second.hex()}-{form}"


def read_xa_prepare(raw: EventBytes) -> tuple[bool, str]:
    """Whether the transaction commits at once, and its XA name."""
    cursor = body(raw)
    one_phase = cursor.number(1) != 0
    form, first, second = _signed(cursor), cursor.number(4), cursor.number(4)
    return one_phase, xa_name(cursor.take(first), cursor.take(second), form)


@dataclass(frozen=True, slots=True)
class QueryEvent:
    """A statement in the log.

    Attributes:
        database: the one that it ran in.
        text: as it was written.
        strict: its session refused to change values that do not fit (``STRICT_TRANS_TABLES`` or
            ``STRICT_ALL_TABLES`` in its sql_mode).
    """

    database: str
    text: str
    strict: bool = False


#: Of sql_mode: STRICT_TRANS_TABLES and STRICT_ALL_TABLES.
_STRICT = 3 << 21


def read_query(raw: EventBytes, *, compressed: bool = False, loads: bool = False) -> QueryEvent:
    """A QUERY event; MariaDB compresses its statement. ``loads``: an EXECUTE_LOAD_QUERY, which
    says where its file is."""
    cursor = body(raw)
    cursor.take(8)
    database, _, variables = cursor.number(1), cursor.number(2), cursor.number(2)
    settings = cursor.take(variables)
    cursor.take(13 if loads else 0)
    name = cursor.text(database)
    cursor.take(1)
    statement = cursor.take(cursor.left)
    if compressed:
        statement = maria_unpacked(statement)
    return QueryEvent(name, statement.decode("utf-8", "replace"), _is_strict(settings))


def _is_strict(settings: bytes) -> bool:
    """By the sql_mode, which comes second among the settings of a session, behind its flags."""
    if len(settings) < 14 or settings[0] != 0 or settings[5] != 1:
        return False
    return bool(int.from_bytes(settings[6:14], "little") & _STRICT)


def is_begin(raw: EventBytes) -> bool:
    """A QUERY event that says BEGIN and nothing else: every MySQL transaction has one."""
    data, start, end = raw
    head = start + HEADER_SIZE
    if end - head < 13 + 6 or data[end - 6 : end] != b"\0BEGIN":
        return False
    # Behind the fixed part: variables, the database and its zero.
    variables = data[head + 11] | data[head + 12] << 8
    return head + 13 + variables + data[head + 8] + 6 == end


def maria_unpacked(data: bytes) -> bytes:
    """What MariaDB compressed: a byte with the algorithm and the length's length, the length,
    zlib."""
    cursor = ByteReader(data, 0, len(data))
    first = cursor.number(1)
    if first & 0xF0 != 0x80:
        raise misfit("compressed in a way that is not known")
    length = int.from_bytes(cursor.take(first & 7), "big")
    return _inflated(cursor.take(cursor.left), length)


def column_unpacked(data: bytes) -> bytes:
    """A value of MariaDB's COMPRESSED column: nothing, or a byte and what it describes: zero, then
    the value; or the algorithm, whether zlib's own frame is left out, and the length's length, then
    the length and the packed value."""
    if not data or not data[0]:
        return data[1:]
    first = data[0]
    if first & 0xF0 != 0x80:
        raise misfit("compressed in a way that is not known")
    cursor = ByteReader(data, 1, len(data))
    length = int.from_bytes(cursor.take(first & 7), "big")
    window = -zlib.MAX_WBITS if first & 8 else zlib.MAX_WBITS
    return _inflated(cursor.take(cursor.left), length, window)


def _inflated(data: bytes, length: int, window: int = zlib.MAX_WBITS) -> bytes:
    if length > MAX_UNPACKED:
        raise misfit("it unpacks to more than 1 GB")
    unpacking = zlib.decompressobj(window)
    try:
        unpacked = unpacking.decompress(data, length + 1)
    except zlib.error:
        raise misfit("it cannot be unpacked") from None
    if len(unpacked) != length or unpacking.unconsumed_tail:
        raise misfit("it unpacks to another length than it says")
    return unpacked


_PAYLOAD_END, _PAYLOAD_SIZE, _PAYLOAD_TYPE, _PAYLOAD_UNPACKED = 0, 1, 2, 3
_ZSTD, _PLAIN = 0, 255


def read_payload(raw: EventBytes) -> Iterator[EventBytes]:
    """The events inside a TRANSACTION_PAYLOAD event. They have no checksums of their own."""
    cursor = body(raw)
    size = length = 0
    algorithm = _PLAIN
    while (field := cursor.packed()) != _PAYLOAD_END:
        value = ByteReader(data := cursor.take(cursor.packed()), 0, len(data))
        if field == _PAYLOAD_SIZE:
            size = value.packed()
        elif field == _PAYLOAD_TYPE:
            algorithm = value.packed()
        elif field == _PAYLOAD_UNPACKED:
            length = value.packed()
    packed = cursor.take(size)
    if algorithm == _ZSTD:
        packed = _unpacked_zstd(packed, length)
    elif algorithm != _PLAIN:
        raise misfit(f"compressed in a way that is not known ({algorithm})")
    start = 0
    while start < len(packed):
        if len(packed) - start < HEADER_SIZE:
            raise misfit("a transaction's events are cut off")
        end = start + HEADER.unpack_from(packed, start)[3]
        if not start + HEADER_SIZE <= end <= len(packed):
            raise misfit("a transaction's events are cut off")
        yield packed, start, end
        start = end


def _unpacked_zstd(data: bytes, length: int) -> bytes:
    import pyarrow as pa

    if length > MAX_UNPACKED:
        raise misfit("it unpacks to more than 1 GB")
    try:
        # A stream: the server may use several frames, and what it says of the length is not
        # believed before the bytes are there.
        with pa.input_stream(pa.BufferReader(data), compression="zstd") as stream:
            unpacked: bytes = stream.read(length + 1)
    except (OSError, pa.ArrowException):
        raise misfit("it cannot be unpacked") from None
    if len(unpacked) != length:
        raise misfit("it unpacks to another length than it says")
    return unpacked
