"""The pgoutput protocol: finding the edges of messages, and reading the small ones.

The receive buffer holds raw protocol messages, each a CopyData frame:

    'd' length(4) 'w' start(8) end(8) sent(8) tag ...      a pgoutput message
    'd' length(4) 'k' end(8) sent(8) reply(1)              a keepalive

:meth:`Inbox.scan` walks them once, remembers where each row message (insert, update, delete)
lies and notes everything else as a mark between rows. Inside of rows nothing is looked at
here: that is done for many rows at once in :mod:`.columns`.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from changefeed.core.errors import ChangefeedError, Code
from changefeed.sources.decoded.spans import PADDING, Bytes
from changefeed.sources.postgres.garbage import LONGEST_MESSAGE, garbage, readable

BEGIN, COMMIT = ord("B"), ord("C")
INSERT, UPDATE, DELETE, TRUNCATE = ord("I"), ord("U"), ord("D"), ord("T")
RELATION, TYPE, ORIGIN, MESSAGE = ord("R"), ord("Y"), ord("O"), ord("M")
STREAM_START, STREAM_STOP = ord("S"), ord("E")
STREAM_COMMIT, STREAM_ABORT = ord("c"), ord("A")
KEEPALIVE = ord("k")

#: Flag of a logical message that is part of a transaction.
TRANSACTIONAL = 1

#: What stands before a tuple: the new row, the old key, the old row.
NEW, OLD_KEY, OLD_ROW = ord("N"), ord("K"), ord("O")
#: What stands before a value of a tuple.
NULL, UNCHANGED, AS_TEXT = ord("n"), ord("u"), ord("t")

#: From the first byte of a frame to the tag of its pgoutput message.
TAG_OFFSET = 30

#: Nanoseconds from 1970-01-01 to 2000-01-01, where PostgreSQL's microseconds start.
EPOCH_NS = 946_684_800 * 1_000_000_000

_FRAME = struct.Struct(">BIB24xB")
_WAL_DATA = ord("w")
_COPY_DATA = ord("d")
_FIRST_CAPACITY = 1 << 20
#: The least a frame counts, its own four bytes included: a keepalive, a pgoutput message.
_SHORTEST_KEEPALIVE, _SHORTEST_DATA = 22, 30
#: A notice, a changed setting, a notification may come at any time and mean nothing here.
_ASIDE = frozenset(b"NSA")
#: The end of COPY, and what follows it when the server shuts down in an orderly way.
_END = frozenset(b"cCZ")
_ROW_TAGS = frozenset({INSERT, UPDATE, DELETE})


class ServerFailed(ChangefeedError):
    """The server ended the stream with an error of its own.

    ``in_decoding``: it failed at its own work (an internal error, SQLSTATE class XX), not because
    a person ended it, a resource ran out or a right is missing.
    """

    def __init__(self, error: ChangefeedError, state: str) -> None:
        super().__init__(error.code.number, error.message, detail=error.detail, hint=error.hint)
        self.in_decoding = state.startswith("XX")


@dataclass(frozen=True, slots=True)
class StreamMark:
    """A message that is not a row: after ``rows`` row messages, its tag at ``place``."""

    rows: int
    tag: int
    place: int


@dataclass(frozen=True, slots=True)
class Cut:
    """How far a buffer can be decoded: bytes, rows and marks before it."""

    place: int
    rows: int
    marks: int


class Inbox:
    """The receive buffer and what :meth:`scan` found in it.

    Attributes:
        data: the buffer; ``data[:filled]`` was received, ``data[:place]`` scanned.
        rows: places of the tags of row messages, in order.
        marks: everything between them.
        reply_wanted: a keepalive asked for an answer since the flag was last cleared.
        inside_stream: the scan ended between Stream Start and Stream Stop.
        logical: which of ``rows`` are logical messages. One outside of any transaction has a mark
            behind it, too.
    """

    def __init__(self, limit: int, *, logical: bool = False, kept: bool = False) -> None:
        """
        Args:
            limit: bytes at which the inbox counts as full; a larger message still fits.
            logical: logical messages are taken; else they are passed over.
            kept: what comes is of one transaction.
        """
        self.limit = limit
        self.logical: list[int] = []
        self._takes_logical = logical
        self._kept = kept
        self.data = bytearray(min(limit, _FIRST_CAPACITY) + PADDING)
        self.filled = 0
        self.place = 0
        self.rows: list[int] = []
        self.marks: list[StreamMark] = []
        self.reply_wanted = False
        self.inside_stream = False
        self._open: Cut | None = None

    @property
    def full(self) -> bool:
        """No more should be received before something was taken out."""
        return self.place >= self.limit

    def fill(self, receive: Callable[[memoryview], int]) -> int:
        """Let ``receive`` write behind what is there; how many bytes came."""
        free = len(self.data) - PADDING - self.filled
        if free < len(self.data) // 4:
            self._grow(self._wanted())
        with memoryview(self.data) as view:
            count = receive(view[self.filled : len(self.data) - PADDING])
        self.filled += count
        return count

    def bytes(self) -> Bytes:
        """The buffer as numpy bytes, valid until the next :meth:`fill` or :meth:`drop`."""
        return np.frombuffer(self.data, np.uint8)

    def scan(self) -> None:
        """Find the messages received since the last scan.

        Raises:
            ChangefeedError: CF2105 for what cannot be in a stream, the server's own error.
        """
        data, place, filled = self.data, self.place, self.filled
        unpack, add_row = _FRAME.unpack_from, self.rows.append
        inside, row_tags = self.inside_stream, _ROW_TAGS
        while place + 5 <= filled:
            kind, length, inner, tag = unpack(data, place)
            following = place + 1 + length
            if following > filled:
                if length > LONGEST_MESSAGE:
                    raise garbage(f"a message of {length} bytes")
                break
            if kind != _COPY_DATA:
                if length < 4:
                    raise garbage(f"a message of {length} bytes")
                if kind not in _ASIDE:
                    self.place = place
                    raise _not_copy_data(kind, data[place + 5 : following])
            elif inner == _WAL_DATA:
                if length < _SHORTEST_DATA:
                    raise garbage(f"a message of {length} bytes")
                if inside:
                    if tag == STREAM_STOP:
                        inside = False
                        self._mark(tag, place + TAG_OFFSET)
                elif tag in row_tags:
                    add_row(place + TAG_OFFSET)
                elif tag == MESSAGE:
                    self._take_logical(place + TAG_OFFSET)
                else:
                    inside = tag == STREAM_START
                    self._note(tag, place)
            elif inner == KEEPALIVE:
                if length < _SHORTEST_KEEPALIVE:
                    raise garbage(f"a keepalive of {length} bytes")
                self.reply_wanted |= bool(data[place + 22])
                if not inside:
                    self._mark(KEEPALIVE, place + 5)
            else:
                raise ChangefeedError(
                    Code.UNEXPECTED_MESSAGE, f"unknown replication message {chr(inner)!r}"
                )
            place = following
        self.place = place
        self.inside_stream = inside

    def has_table_rows(self, first: int, upto: int) -> bool:
        """Some of these rows are of a table."""
        return upto - first > self.logical_between(first, upto)

    def logical_between(self, first: int, upto: int) -> int:
        """How many of these rows are logical messages."""
        if not self.logical:
            return 0
        return bisect_left(self.logical, upto) - bisect_left(self.logical, first)

    def cut(self, everything: bool = False) -> Cut:
        """Where to cut: before the transaction that is still open, or behind all scanned."""
        if self._open is not None and not everything:
            return self._open
        return Cut(self.place, len(self.rows), len(self.marks))

    def drop(self, cut: Cut) -> None:
        """Forget what lies before ``cut``; the rest moves to the front."""
        shift = cut.place
        if not shift:
            return  # a large transaction is still arriving: do not copy it again and again
        rest = self.filled - shift
        if rest:
            with memoryview(self.data) as view:
                view[:rest] = bytes(view[shift : self.filled])
        self.filled = rest
        self.place -= shift
        self.rows = [place - shift for place in self.rows[cut.rows :]]
        if self.logical:
            self.logical = [row - cut.rows for row in self.logical if row >= cut.rows]
        self.marks = [
            StreamMark(mark.rows - cut.rows, mark.tag, mark.place - shift)
            for mark in self.marks[cut.marks :]
        ]
        behind = self._open is not None and cut.place <= self._open.place
        self._open = Cut(0, 0, 0) if behind else None

    def _mark(self, tag: int, place: int) -> None:
        self.marks.append(StreamMark(len(self.rows), tag, place))

    def _take_logical(self, place: int) -> None:
        if not self._takes_logical:
            return
        self.logical.append(len(self.rows))
        self.rows.append(place)
        if not self._kept and not self.data[place + 1] & TRANSACTIONAL:
            self._mark(MESSAGE, place)

    def _note(self, tag: int, frame: int) -> None:
        if tag == BEGIN:
            self._open = Cut(frame, len(self.rows), len(self.marks))
        elif tag == COMMIT:
            self._open = None
        self._mark(tag, frame + TAG_OFFSET)

    def _wanted(self) -> int:
        """Capacity for what is here and more: twice as much, or the message now arriving.

        A message says how long it is before it is there. Memory for it is at most twice what
        was received: a length that is garbage does not make us take gigabytes.
        """
        needed = self.filled
        if self.filled - self.place >= 5:
            needed = self.place + 1 + int.from_bytes(self.data[self.place + 1 : self.place + 5])
        needed = min(needed, max(2 * self.filled, self.limit))
        return max(min(2 * len(self.data), self.limit * 2), needed + _FIRST_CAPACITY)

    def _grow(self, capacity: int) -> None:
        if capacity + PADDING > len(self.data):
            self.data = self.data[: self.filled] + bytearray(capacity + PADDING - self.filled)


def _not_copy_data(kind: int, body: bytearray) -> ChangefeedError:
    from changefeed.sources.postgres.wire import error_fields, server_error

    if kind == ord("E"):
        fields = error_fields(bytes(body))
        error = server_error(fields, "read the replication stream")
        return ServerFailed(error, fields.get("C", ""))
    if kind in _END:
        return ChangefeedError(Code.STREAM_BROKE, "the server ended the replication stream")
    return ChangefeedError(
        Code.UNEXPECTED_MESSAGE, f"unexpected protocol message {chr(kind)!r} in the stream"
    )


# ------------------------------------------------------------------------ small messages


@dataclass(frozen=True, slots=True)
class Begin:
    """Begin: the LSN of the transaction's commit record, its commit time, its number."""

    lsn: int
    commit_us: int
    xid: int


@dataclass(frozen=True, slots=True)
class Commit:
    """Commit: LSN of the commit record and of its end; a stream is read on from the end."""

    lsn: int
    end: int
    commit_us: int


@dataclass(frozen=True, slots=True)
class Keepalive:
    """The server's log has been read up to ``lsn``."""

    lsn: int
    reply: bool


@dataclass(frozen=True, slots=True)
class WireColumn:
    """A column of a Relation message. ``flagged``: part of what old rows carry."""

    name: str
    type_oid: int
    typmod: int
    flagged: bool


@dataclass(frozen=True, slots=True)
class RelationMessage:
    """A table as the transaction saw it. ``identity`` is ``relreplident``."""

    oid: int
    schema: str
    name: str
    identity: str
    columns: tuple[WireColumn, ...]


_BEGIN = struct.Struct(">QqI")
_COMMIT = struct.Struct(">BQQq")
_KEEPALIVE = struct.Struct(">QqB")
_XID = struct.Struct(">I")
_LSN = struct.Struct(">Q")
_TWO_XIDS = struct.Struct(">II")
_COUNT = struct.Struct(">IB")
#: Times are kept in nanoseconds since 1970 as signed 64 bits: up to the year 2262.
_LAST_MICROSECOND = (2**63 - 1) // 1000


def _micros(since_2000: int) -> int:
    micros = since_2000 + EPOCH_NS // 1000
    if abs(micros) > _LAST_MICROSECOND:
        raise garbage("a time outside of the years 1678 to 2262")
    return micros


def _unpack(form: struct.Struct, data: bytearray, place: int, end: int) -> tuple[int, ...]:
    """Numbers of a message that ends at ``end``."""
    if place + form.size > end:
        raise garbage("a message that ends before its fields do")
    return form.unpack_from(data, place)


def read_begin(data: bytearray, tag: int) -> Begin:
    """``tag``: place of the message's tag, here and below.

    Raises:
        ChangefeedError: CF2105 the message is too short or a value is out of range; here and
            below.
    """
    lsn, time, xid = _unpack(_BEGIN, data, tag + 1, frame_end(data, tag))
    return Begin(lsn, _micros(time), xid)


def read_commit(data: bytearray, tag: int, *, streamed: bool = False) -> Commit:
    """Commit, or a Stream Commit, where the transaction's number comes first."""
    place = tag + (5 if streamed else 1)
    _, lsn, end, time = _unpack(_COMMIT, data, place, frame_end(data, tag))
    return Commit(lsn, end, _micros(time))


def read_keepalive(data: bytearray, tag: int) -> Keepalive:
    """Primary keepalive; :meth:`Inbox.scan` has seen that it is long enough."""
    lsn, _, reply = _KEEPALIVE.unpack_from(data, tag + 1)
    return Keepalive(lsn, bool(reply))


def read_xid(data: bytearray, tag: int) -> int:
    """The transaction number right behind the tag (Stream Start, Stream Commit, a row)."""
    return _unpack(_XID, data, tag + 1, frame_end(data, tag))[0]


def read_abort(data: bytearray, tag: int) -> tuple[int, int]:
    """Stream Abort: the transaction, and the part of it (or all) that was rolled back."""
    transaction, part = _unpack(_TWO_XIDS, data, tag + 1, frame_end(data, tag))
    return transaction, part


def read_message_lsn(data: bytearray, tag: int) -> int:
    """The end of the record of a logical message that is not part of a streamed transaction."""
    return _unpack(_LSN, data, tag + 2, frame_end(data, tag))[0]


def frame_end(data: bytearray, tag: int) -> int:
    """Where the frame with this tag ends."""
    length = tag - TAG_OFFSET + 1
    return length + int.from_bytes(data[length : length + 4])


def relation_body(data: bytearray, tag: int, streamed: bool) -> bytes:
    """The bytes of a Relation message behind the tag (and the transaction number)."""
    body = bytes(data[tag + (5 if streamed else 1) : frame_end(data, tag)])
    if len(body) < _XID.size:
        raise garbage("a message that ends before its fields do")
    return body


def read_relation(body: bytes) -> RelationMessage:
    with readable("a description of a table"):
        return _relation(body)


def read_relation_name(body: bytes) -> tuple[str, str]:
    """Schema and name of the table of a Relation message."""
    with readable("the name of a table"):
        schema, name, _ = _relation_name(body)
        return schema, name


def _relation_name(body: bytes) -> tuple[str, str, int]:
    schema, place = _string(body, 4)
    name, place = _string(body, place)
    # pgoutput leaves the schema's name empty for pg_catalog.
    return schema or "pg_catalog", name, place


def _relation(body: bytes) -> RelationMessage:
    (oid,) = struct.unpack_from(">I", body)
    schema, name, place = _relation_name(body)
    identity, count = struct.unpack_from(">cH", body, place)
    if identity not in b"dfin":
        raise ValueError("unknown replica identity")
    place += 3
    columns = []
    for _ in range(count):
        flags = body[place]
        column, place = _string(body, place + 1)
        type_oid, typmod = struct.unpack_from(">Ii", body, place)
        place += 8
        columns.append(WireColumn(column, type_oid, typmod, bool(flags & 1)))
    if len({column.name for column in columns}) != count:
        raise ValueError("a column name comes twice")
    return RelationMessage(oid, schema, name, identity.decode(), tuple(columns))


def read_truncate(data: bytearray, tag: int, streamed: bool) -> list[int]:
    place, end = tag + (5 if streamed else 1), frame_end(data, tag)
    count, _ = _unpack(_COUNT, data, place, end)
    if place + _COUNT.size + 4 * count != end:
        raise garbage(f"a TRUNCATE of {count} tables that does not name as many")
    return list(struct.unpack_from(f">{count}I", data, place + _COUNT.size))


def _string(body: bytes, place: int) -> tuple[str, int]:
    end = body.index(0, place)
    return body[place:end].decode(), end + 1
