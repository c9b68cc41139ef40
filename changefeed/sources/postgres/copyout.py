"""COPY ... TO STDOUT read in blocks, without a step of Python for each row.

libpq hands out a COPY row by row. For a wide scan that is most of its cost, so on a session
without encryption the bytes are read from the session's own socket instead: libpq is idle
then and holds nothing back. What the server sends looks like this,

    H ... | d <length> row\\n | d <length> row\\n | ... | c | C ... | Z

each row behind five bytes: ``d`` and a length. The text of a value never holds a zero byte
(PostgreSQL has none in text), while a length below 16 MB begins with one: ``d\\0`` marks the rows.
That the marks are the rows is proved by their lengths, each leading to the next; where the
proof fails (a longer row) the lengths are followed one by one. The five bytes are then
overwritten so that they read as one more, unused column of CSV: nothing is moved or copied.

With encryption, rows come through psycopg and are joined.
"""

from __future__ import annotations

import os
import select
import socket
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import psycopg
import pyarrow as pa
import pyarrow.csv as pa_csv
from psycopg import errors, sql

from changefeed.core.errors import ChangefeedError, Code
from changefeed.sources.postgres.connect import PsycopgConnection, is_plain
from changefeed.sources.postgres.garbage import LONGEST_MESSAGE

Bytes = npt.NDArray[np.uint8]
Places = npt.NDArray[np.intp]

#: What psycopg hands out of a COPY: each piece is one whole row.
Piece = bytes | bytearray | memoryview

#: A block of CSV that is turned into one batch. A longer row makes a longer block.
BLOCK_BYTES = 6 << 20

#: What the kernel may hold for us: the server runs ahead while a block is parsed.
RECEIVE_BUFFER = 4 << 20

_HEADER = 5
_ROW = ord("d")


@dataclass(frozen=True, slots=True)
class CopyBlock:
    """Whole rows of CSV. ``marked``: each row begins with one column that is none of its own.

    ``text`` may be overwritten when the next block is asked for.
    """

    text: bytes | memoryview
    marked: bool = False


def copy_out(
    connection: PsycopgConnection, statement: sql.Composed, size: int = BLOCK_BYTES
) -> Iterator[CopyBlock]:
    """The rows of a COPY in blocks of about ``size`` bytes. Close the session on any error.

    Raises:
        psycopg.Error: with the server's SQLSTATE, or an OperationalError when it went away.
    """
    if is_plain(connection):
        yield from _SocketCopy(connection).run(statement.as_string(connection), size)
    else:
        with connection.cursor() as cursor, cursor.copy(statement) as copy:
            for text in joined(copy, size):
                yield CopyBlock(text)


def joined(rows: Iterable[Piece], size: int = BLOCK_BYTES) -> Iterator[bytes]:
    """Join rows to blocks of about ``size`` bytes, so that memory stays bounded."""
    block: list[Piece] = []
    length = 0
    for row in rows:
        block.append(row)
        length += len(row)
        if length >= size:
            yield b"".join(block)
            block, length = [], 0
    if block:
        yield b"".join(block)


class _SocketCopy:
    def __init__(self, connection: PsycopgConnection) -> None:
        self._descriptor = connection.pgconn.socket
        self._data: Bytes = np.empty(0, np.uint8)
        self._filled = 0
        self._done = False
        self._failure: psycopg.Error | None = None

    def run(self, statement: str, size: int) -> Iterator[CopyBlock]:
        """Send the statement; blocks of rows until the session is ready again."""
        self._data = np.empty(size + size // 4, np.uint8)
        # A duplicate: the session keeps its descriptor when this one is closed.
        with socket.socket(fileno=os.dup(self._descriptor)) as sock:
            _enlarge(sock)
            body = statement.encode() + b"\0"
            _send(sock, b"Q" + struct.pack(">i", len(body) + 4) + body)
            while not self._done:
                self._receive(sock, size)
                complete = self._ends()
                end = self._skip_others()
                rows, end = find_rows(self._data[: self._filled], end)
                if len(rows):
                    blank(self._data, rows)
                    yield CopyBlock(self._data.data[int(rows[0]) : end], marked=True)
                self._keep_from(end)
                if complete and not self._done:
                    raise psycopg.OperationalError("the server sent rows that do not add up")
        if self._failure is not None:
            raise self._failure

    def _receive(self, sock: socket.socket, size: int) -> None:
        """Fill the buffer, or read to the end of the answer."""
        # At most twice what is here: a length that is garbage does not make us take gigabytes.
        first = min(self._first_length(), 2 * max(self._filled, size))
        wanted = max(size, first, self._filled + 1)
        if wanted > len(self._data):
            grown = np.empty(wanted + size // 4, np.uint8)
            grown[: self._filled] = self._data[: self._filled]
            self._data = grown
        view = self._data.data
        while self._filled < wanted and not self._ends():
            try:
                count = sock.recv_into(view[self._filled :])
            except BlockingIOError:
                _wait(sock, select.POLLIN)
                continue
            except OSError as error:
                raise psycopg.OperationalError(f"the connection broke: {error}") from error
            if count == 0:
                raise psycopg.OperationalError("the server closed the connection")
            self._filled += count

    def _first_length(self) -> int:
        """Bytes of the message that the buffer begins with, as far as it says."""
        if self._filled < _HEADER:
            return 0
        length = int.from_bytes(self._data[1:_HEADER].tobytes())
        if not 4 <= length <= LONGEST_MESSAGE:
            raise psycopg.OperationalError(f"the server sent a message of {length} bytes")
        return 1 + length

    def _ends(self) -> bool:
        """The last six bytes are ReadyForQuery: no row can look like that."""
        tail = self._data[max(0, self._filled - 6) : max(0, self._filled - 1)]
        return tail.tobytes() == b"Z\0\0\0\5"

    def _skip_others(self, place: int = 0) -> int:
        """Take messages that are no rows; where the first row, or what is incomplete, begins."""
        data = self._data
        while place + _HEADER <= self._filled and data[place] != _ROW:
            following = place + 1 + int.from_bytes(data[place + 1 : place + _HEADER].tobytes())
            if following > self._filled:
                break
            self._take(chr(data[place]), data[place + _HEADER : following].tobytes())
            place = following
        return place

    def _take(self, kind: str, body: bytes) -> None:
        if kind == "E" and self._failure is None:
            self._failure = server_failure(body)
        elif kind == "Z":
            self._done = True

    def _keep_from(self, end: int) -> None:
        """Move what is not used up to the front, and take what follows the last row."""
        end = self._skip_others(end)
        rest = self._filled - end
        self._data[:rest] = self._data[end : self._filled].copy()
        self._filled = rest


def _enlarge(sock: socket.socket) -> None:
    if sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) < RECEIVE_BUFFER:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)


def _send(sock: socket.socket, message: bytes) -> None:
    view = memoryview(message)
    while view:
        try:
            view = view[sock.send(view) :]
        except BlockingIOError:
            _wait(sock, select.POLLOUT)
        except OSError as error:
            raise psycopg.OperationalError(f"the connection broke: {error}") from error


def _wait(sock: socket.socket, events: int) -> None:
    # Not select(): that knows no descriptor above 1023.
    poll = select.poll()
    poll.register(sock.fileno(), events)
    poll.poll()


def server_failure(body: bytes) -> psycopg.Error:
    """An ErrorResponse as the exception psycopg has for its SQLSTATE."""
    parts = body.split(b"\0")
    fields = {part[:1]: part[1:].decode(errors="replace") for part in parts if part}
    message = fields.get(b"M", "no reason given")
    try:
        return errors.lookup(fields.get(b"C", ""))(message)
    except KeyError:
        return psycopg.DatabaseError(message)


# ------------------------------------------------------------------------- rows


def find_rows(data: Bytes, start: int) -> tuple[Places, int]:
    """Where the complete rows from ``start`` on have their five bytes, and where they end."""
    found = _by_marks(data, start)
    return found if found is not None else _by_lengths(data, start)


def _by_marks(data: Bytes, start: int) -> tuple[Places, int] | None:
    """All rows at once, or None where the marks do not prove to be the rows."""
    zeros = np.flatnonzero(data[start + 1 :] == 0) + (start + 1)
    marks = zeros[data[zeros - 1] == _ROW] - 1
    marks = marks[marks + _HEADER <= len(data)]
    if not len(marks):
        return None
    following = marks + 1 + _lengths(data, marks)
    if marks[0] != start or not np.array_equal(marks[1:], following[:-1]):
        return None
    if following[-1] > len(data):
        return marks[:-1], int(marks[-1])
    return marks, int(following[-1])


def _lengths(data: Bytes, marks: Places) -> Places:
    total = np.zeros(len(marks), np.intp)
    for i in range(1, _HEADER):
        total = (total << 8) | data[marks + i]
    return total


def _by_lengths(data: Bytes, start: int) -> tuple[Places, int]:
    """The same, one by one."""
    view = data.data
    places: list[int] = []
    place = start
    while place + _HEADER <= len(data) and view[place] == _ROW:
        following = place + 1 + int.from_bytes(view[place + 1 : place + _HEADER])
        if following > len(data):
            break
        places.append(place)
        place = following
    return np.array(places, np.intp), place


def blank(data: Bytes, rows: Places) -> None:
    """Make the five bytes before each row a column of CSV."""
    for i in range(_HEADER - 1):
        data[rows + i] = ord("-")
    data[rows + _HEADER - 1] = ord(",")


def parse_csv(block: CopyBlock, columns: int) -> list[pa.StringArray]:
    """CSV without a header as string columns; NULL and '' stay apart.

    PostgreSQL writes NULL as nothing and the empty string as ``""``. A row of one NULL is an
    empty line, which is a row all the same.

    Raises:
        ChangefeedError: CF2202 the text is not UTF-8 (a SQL_ASCII database holds what it likes).
    """
    names = [str(i) for i in range(columns)]
    present = ["mark", *names] if block.marked else names
    try:
        table = pa_csv.read_csv(
            pa.BufferReader(pa.py_buffer(block.text)),
            read_options=pa_csv.ReadOptions(
                column_names=present, block_size=len(block.text) + 1, use_threads=False
            ),
            parse_options=pa_csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
            convert_options=pa_csv.ConvertOptions(
                include_columns=names,
                column_types=dict.fromkeys(names, pa.string()),
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
    except pa.ArrowInvalid as error:
        raise ChangefeedError(
            Code.TABLE_NOT_SCANNABLE,
            "the table holds text that is not valid UTF-8",
            hint="the database's encoding is SQL_ASCII or its text was damaged: repair the rows.",
        ) from error
    return [column.combine_chunks() for column in table.columns]
