"""Protobuf messages read back, one by one, to compare a topic with its source.

The types are read from the text of a ``.proto`` file as :mod:`.schema` writes it: records of
scalars, moments, and arrays. What another program registered may have more, and is refused.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from changefeed.core.errors import ChangefeedError, Code
from changefeed.encoding.binary_format import Read, reader_of_registered
from changefeed.encoding.protobuf.schema import PROTO_KEY, WireType, message_header

__all__ = ["PROTO_KEY", "Read", "member_names", "reader_by_id", "reader_of"]

_TOKENS = re.compile(r"""//[^\n]*|/\*.*?\*/|\s+|("[^"]*"|[\w.]+|[{}=;\[\],<>()-])""", re.DOTALL)
_WIRES = {
    "bool": WireType.VARINT,
    "int32": WireType.VARINT,
    "int64": WireType.VARINT,
    "double": WireType.FIXED64,
    "float": WireType.FIXED32,
    "string": WireType.LENGTH,
    "bytes": WireType.LENGTH,
}
_MOMENT = "google.protobuf.Timestamp"
_LONGEST_VARINT = 10


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    type: str
    repeated: bool


@dataclass(slots=True)
class _Message:
    fields: dict[int, _Field] = field(default_factory=dict)
    inner: dict[str, _Message] = field(default_factory=dict)

    @property
    def is_array(self) -> bool:
        """Whether the message only wraps the elements of an array."""
        return bool(self.inner) and [f.name for f in self.fields.values()] == ["items"]


def reader_of(text: str) -> Read:
    """A function that reads messages of a file's first type, without a header: members by name,
    NULL for those that a message does not have.

    Raises:
        ChangefeedError: CF1303 the text is no file as the feed writes it.
    """
    types = _types(text)
    first = next(iter(types.values()))
    return lambda message: _record(message, first, types)


def reader_by_id(text_of: Callable[[int], str]) -> Read:
    """A function that reads messages that begin with the id of their schema in a registry.

    ``text_of`` is called once for each schema.

    Raises:
        ChangefeedError: CF1303 by the reader: a message that has no such beginning, or is not in
            its schema.
    """
    return reader_of_registered(
        message_header,
        lambda found: reader_of(text_of(found)),
        lambda: _unreadable("no schema's id before it"),
    )


def member_names(text: str) -> tuple[str, ...]:
    """The names of the members of a file's first type."""
    return tuple(f.name for f in next(iter(_types(text).values())).fields.values())


# ------------------------------------------------------------------------------- types


def _types(text: str) -> dict[str, _Message]:
    found = _Parser(text).file()
    if not found:
        raise _unreadable("no type in its schema")
    return found


class _Parser:
    """Reads the text of a file; skips what is not needed up to the next semicolon."""

    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)

    def file(self) -> dict[str, _Message]:
        found: dict[str, _Message] = {}
        for token in self._tokens:
            if token == "message":
                name = self._next()
                found[name] = self._message()
            elif token in ("syntax", "package", "import", "option"):
                self._pass()
            elif token != ";":
                raise _unreadable(f"{token} in its schema")
        return found

    def _message(self) -> _Message:
        made = _Message()
        self._expect("{")
        for token in self._tokens:
            if token == "}":
                return made
            if token == "message":
                name = self._next()
                made.inner[name] = self._message()
            elif token in ("option", "reserved"):
                self._pass()
            else:
                labelled = token in ("optional", "repeated")
                kind = (self._next() if labelled else token).removeprefix(".")
                name = self._next()
                self._expect("=")
                number = self._next()
                if not number.isdecimal():
                    raise _unreadable(f"{kind} {name} in its schema")
                self._pass()
                made.fields[int(number)] = _Field(name, kind, token == "repeated")
        raise _unreadable("its schema ends too soon")

    def _next(self) -> str:
        token = next(self._tokens, None)
        if token is None:
            raise _unreadable("its schema ends too soon")
        return token

    def _expect(self, wanted: str) -> None:
        token = self._next()
        if token != wanted:
            raise _unreadable(f"{token} in its schema")

    def _pass(self) -> None:
        while self._next() != ";":
            pass


def _tokens(text: str) -> Iterator[str]:
    place = 0
    while place < len(text):
        found = _TOKENS.match(text, place)
        if found is None:
            raise _unreadable("its schema is no .proto file")
        place = found.end()
        if found[1]:
            yield found[1]


# ------------------------------------------------------------------------------- messages


def _record(data: bytes, message: _Message, types: Mapping[str, _Message]) -> Any:
    known = {**types, **message.inner}
    found: dict[str, Any] = {f.name: [] if f.repeated else None for f in message.fields.values()}
    for number, wire, raw in _fields(data):
        declared = message.fields.get(number)
        if declared is None:
            continue  # a column that is gone, or of a type that came later
        value = _value(declared, wire, raw, known)
        if declared.repeated:
            found[declared.name].append(value)
        else:
            found[declared.name] = value
    if message.is_array:
        return [item["value"] for item in found["items"]]
    return found


def _value(declared: _Field, wire: int, raw: Any, types: Mapping[str, _Message]) -> Any:
    kind = declared.type
    if wire != _WIRES.get(kind, WireType.LENGTH):
        raise _unreadable(f"{declared.name} is no {kind}")
    if kind in ("int32", "int64"):
        return raw - (1 << 64) if raw >> 63 else raw
    if kind == "bool":
        return bool(raw)
    if kind == "double":
        return struct.unpack("<d", raw)[0]
    if kind == "float":
        return struct.unpack("<f", raw)[0]
    if kind == "string":
        return bytes(raw).decode(errors="replace")
    if kind == "bytes":
        return bytes(raw)
    if kind == _MOMENT:
        parts = {number: part for number, wire, part in _fields(raw) if wire == WireType.VARINT}
        seconds = parts.get(1, 0)
        seconds -= 1 << 64 if seconds >> 63 else 0
        return seconds * 1_000_000 + parts.get(2, 0) // 1_000
    if kind not in types:
        raise _unreadable(f"type {kind} in its schema")
    return _record(raw, types[kind], types)


def _fields(data: bytes) -> Iterator[tuple[int, int, Any]]:
    """Number, wire type and value (a number or bytes) of each field."""
    place = 0
    while place < len(data):
        tag, place = _varint(data, place)
        number, wire = tag >> 3, tag & 7
        if wire == WireType.VARINT:
            value: Any
            value, place = _varint(data, place)
        else:
            if wire == WireType.LENGTH:
                size, place = _varint(data, place)
            elif wire in (WireType.FIXED32, WireType.FIXED64):
                size = 4 if wire == WireType.FIXED32 else 8
            else:
                raise _unreadable(f"wire type {wire}")
            value = data[place : place + size]
            place += size
            if place > len(data):
                raise _unreadable("it ends too soon")
        yield number, wire, value


def _varint(data: bytes, place: int) -> tuple[int, int]:
    number = 0
    for i, byte in enumerate(data[place : place + _LONGEST_VARINT]):
        number |= (byte & 0x7F) << 7 * i
        if byte < 0x80:
            return number & (1 << 64) - 1, place + i + 1
    raise _unreadable("a number in it does not end")


def _unreadable(why: str) -> ChangefeedError:
    return ChangefeedError(
        Code.NOT_SUPPORTED,
        "a message cannot be verified: it is not in the protobuf that the feed writes",
        detail=why,
        hint="another program may have written there.",
    )
