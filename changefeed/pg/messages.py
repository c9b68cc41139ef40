"""The bytes of PostgreSQL's protocol, version 3: messages read with all lengths checked, and
written."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Mapping, Sequence

from changefeed.core.errors import ChangefeedError, Code

#: The longest message of a client, bytes; and the longest before it has logged in.
LARGEST = 1 << 18
LARGEST_BEFORE_LOGIN = 10_000

SSL_REQUEST = 80877103
GSS_REQUEST = 80877104
CANCEL_REQUEST = 80877102
PROTOCOL_3 = 3 << 16

#: What the number of an error means in SQL; the longest beginning counts.
_SQLSTATES = {
    "CF10": "42601",
    Code.NAME_UNKNOWN: "42704",
    Code.NAME_TAKEN: "42710",
    Code.NAME_NOT_ALLOWED: "42602",
    "CF12": "22023",
    Code.WRONG_JOB_STATE: "55000",
    Code.TARGET_NOT_WATCHABLE: "42809",
    Code.NOT_SUPPORTED: "0A000",
    Code.TIMED_OUT: "57014",
    Code.LOGIN_NEEDED: "28000",
    Code.RIGHT_MISSING: "42501",
    "CF2": "HV000",
    "CF5": "HV000",
    "CF6": "58000",
    "CF9": "XX000",
}


class PgError(Exception):
    """An error of the protocol or of SQL, which has no code of changefeed's.

    Attributes:
        state: the SQLSTATE.
        position: of the character of the query that is wrong, from 1; 0 where it is not known.
        fatal: the connection ends with it.
    """

    def __init__(
        self,
        state: str,
        message: str,
        *,
        detail: str = "",
        hint: str = "",
        position: int = 0,
        fatal: bool = False,
        routine: str = "",
    ) -> None:
        super().__init__(message)
        self.state, self.message, self.detail, self.hint = state, message, detail, hint
        self.position, self.fatal, self.routine = position, fatal, routine

    @classmethod
    def of(cls, error: ChangefeedError, start: int) -> PgError:
        """An error of a statement that begins at the character ``start`` of the query. The code
        stands where PostgreSQL names a routine of its own."""
        number = error.code.number
        known = (number[:length] for length in (6, 4, 3) if number[:length] in _SQLSTATES)
        return cls(
            _SQLSTATES.get(next(known, ""), "55000"),
            error.message,
            detail=error.detail,
            hint=error.hint,
            position=0 if error.span is None else start + error.span.start + 1,
            routine=number,
        )

    def form(self) -> bytes:
        """The ErrorResponse."""
        severity = "FATAL" if self.fatal else "ERROR"
        position = str(self.position or "")
        return _report(
            b"E",
            {
                "S": severity,
                "V": severity,
                "C": self.state,
                "M": self.message,
                "D": self.detail,
                "H": self.hint,
                "P": position,
                "R": self.routine,
            },
        )


def protocol_error(message: str) -> PgError:
    """The client does not speak the protocol: there is no way to go on."""
    return PgError("08P01", message, fatal=True)


def notice(text: str, *, state: str = "00000", severity: str = "NOTICE") -> bytes:
    """A NoticeResponse."""
    return _report(b"N", {"S": severity, "V": severity, "C": state, "M": text})


def _report(kind: bytes, fields: Mapping[str, str]) -> bytes:
    given = (name.encode() + cstring(value) for name, value in fields.items() if value)
    return message(kind, *given, b"\0")


# -------------------------------------------------------------------------------- reading


class Body:
    """What a message holds, read from front to back.

    Each method raises :class:`PgError` where the message ends too early.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, count: int) -> bytes:
        """The next bytes."""
        end = self._at + count
        if count < 0 or end > len(self._data):
            raise protocol_error("a message is shorter than it says")
        found, self._at = self._data[self._at : end], end
        return found

    def int16(self) -> int:
        """A number of two bytes."""
        return int(struct.unpack("!h", self.take(2))[0])

    def int32(self) -> int:
        """A number of four bytes."""
        return int(struct.unpack("!i", self.take(4))[0])

    def text(self) -> str:
        """A text up to its zero byte."""
        end = self._data.find(b"\0", self._at)
        if end < 0:
            raise protocol_error("a text has no end")
        found, self._at = self._data[self._at : end], end + 1
        try:
            return found.decode()
        except UnicodeDecodeError:
            raise PgError("22021", "a text is not UTF-8") from None

    def value(self) -> bytes | None:
        """A value with its length; None for NULL."""
        length = self.int32()
        return None if length == -1 else self.take(length)

    def int16s(self) -> list[int]:
        """A list of numbers with its length."""
        return [self.int16() for _ in range(self.count())]

    def rest(self) -> bytes:
        """Everything that was not read."""
        return self.take(len(self._data) - self._at)

    def count(self) -> int:
        """How many of something follow."""
        number = self.int16()
        if number < 0:
            raise protocol_error("a count is negative")
        return number

    def end(self) -> None:
        """Raise an error unless everything was read."""
        if self._at != len(self._data):
            raise protocol_error("a message is longer than what it says")


async def read_startup(reader: asyncio.StreamReader) -> tuple[int, Body]:
    """The first message of a connection, which has no type: its number, and what follows."""
    length = _length(await reader.readexactly(4), LARGEST_BEFORE_LOGIN, least=8)
    body = Body(await reader.readexactly(length))
    return body.int32(), body


async def read_message(reader: asyncio.StreamReader, largest: int = LARGEST) -> tuple[bytes, Body]:
    """The next message: its type, and what it holds. Takes no more memory than was received."""
    kind = await reader.readexactly(1)
    if not kind.isalpha():
        # A length would be read from anything that is sent by mistake.
        raise protocol_error("there is no message of this type")
    return kind, Body(
        await reader.readexactly(_length(await reader.readexactly(4), largest, least=4))
    )


def _length(data: bytes, largest: int, *, least: int) -> int:
    length = int(struct.unpack("!i", data)[0])
    if not least <= length <= largest:
        raise protocol_error(f"a message has a length from {least} to {largest}, not {length}")
    return length - 4


# -------------------------------------------------------------------------------- writing


def message(kind: bytes, *parts: bytes) -> bytes:
    """One message."""
    body = b"".join(parts)
    return kind + struct.pack("!i", len(body) + 4) + body


def cstring(text: str) -> bytes:
    """A text with its zero byte; one inside is left out, as it would end it."""
    return text.replace("\0", "").encode(errors="replace") + b"\0"


def row_description(columns: Sequence[tuple[str, int]], formats: Sequence[int]) -> bytes:
    """Names and types of the columns of what follows."""
    parts = [struct.pack("!h", len(columns))]
    for (name, oid), form in zip(columns, formats, strict=True):
        size = SIZES.get(oid, -1)
        parts += [cstring(name), struct.pack("!ihihih", 0, 0, oid, size, -1, form)]
    return message(b"T", *parts)


#: Bytes of a binary value, by the type's oid; -1 where it varies.
SIZES = {16: 1, 20: 8, 21: 2, 23: 4, 26: 4, 700: 4, 701: 8, 1184: 8}


def data_row(values: Sequence[bytes | None]) -> bytes:
    """One row."""
    parts = [struct.pack("!h", len(values))]
    for value in values:
        if value is None:
            parts.append(b"\xff\xff\xff\xff")
        else:
            parts += (struct.pack("!i", len(value)), value)
    return message(b"D", *parts)


def complete(tag: str) -> bytes:
    """CommandComplete."""
    return message(b"C", cstring(tag))


def parameter(name: str, value: str) -> bytes:
    """ParameterStatus."""
    return message(b"S", cstring(name), cstring(value))
