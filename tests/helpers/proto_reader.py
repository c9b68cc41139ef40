"""A reader of the ``.proto`` files that feeds write, for Google's runtime: no compiler is needed.

It knows as much of the language (https://protobuf.dev/reference/protobuf/proto3-spec/) as our
files use and stops at anything else.
"""

from __future__ import annotations

import re
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

_TOKEN = re.compile(r"//[^\n]*|\s+|(\"[^\"]*\"|[\w.]+|[{}=;])")
_FIELD = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "bool": _FIELD.TYPE_BOOL,
    "int32": _FIELD.TYPE_INT32,
    "int64": _FIELD.TYPE_INT64,
    "float": _FIELD.TYPE_FLOAT,
    "double": _FIELD.TYPE_DOUBLE,
    "string": _FIELD.TYPE_STRING,
    "bytes": _FIELD.TYPE_BYTES,
}


def file_of(text: str) -> Any:
    """The ``FileDescriptorProto`` of a file."""
    return _Reader(text).file()


def message_class(text: str) -> Any:
    """The class of the first message of a file, in a pool of its own."""
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    file = file_of(text)
    pool.Add(file)
    first = file.message_type[0].name
    name = f"{file.package}.{first}" if file.package else first
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


class _Reader:
    def __init__(self, text: str) -> None:
        self._tokens: list[str] = []
        place = 0
        while place < len(text):
            match = _TOKEN.match(text, place)
            if match is None:
                raise ValueError(f"not a token: {text[place : place + 20]!r}")
            if match[1]:
                self._tokens.append(match[1])
            place = match.end()
        self._file = descriptor_pb2.FileDescriptorProto(name="feed.proto", syntax="proto3")

    def file(self) -> Any:
        self._take("syntax", "=", '"proto3"', ";")
        while self._tokens:
            word = self._next()
            if word == "package":
                self._file.package = self._next()
                self._take(";")
            elif word == "import":
                self._file.dependency.append(self._next().strip('"'))
                self._take(";")
            elif word == "message":
                self._message(self._file.message_type.add(), "")
            else:
                raise ValueError(f"unexpected: {word}")
        return self._file

    def _next(self) -> str:
        return self._tokens.pop(0)

    def _take(self, *wanted: str) -> None:
        for word in wanted:
            found = self._next()
            if found != word:
                raise ValueError(f"{word} expected, {found} found")

    def _message(self, made: Any, outer: str) -> None:
        made.name = self._next()
        place = f"{outer}.{made.name}"
        self._take("{")
        while (word := self._next()) != "}":
            if word == "message":
                self._message(made.nested_type.add(), place)
            else:
                self._field(made, place, word)

    def _field(self, made: Any, place: str, word: str) -> None:
        field = made.field.add()
        field.label = _FIELD.LABEL_REPEATED if word == "repeated" else _FIELD.LABEL_OPTIONAL
        kind = self._next() if word in ("repeated", "optional") else word
        field.name = self._next()
        self._take("=")
        field.number = int(self._next())
        self._take(";")
        if kind in _SCALARS:
            field.type = _SCALARS[kind]
        else:
            field.type = _FIELD.TYPE_MESSAGE
            field.type_name = self._resolved(kind, place, made)
        if word == "optional":
            # Presence is written as a group of one (Field Presence, descriptors of proto3).
            field.proto3_optional = True
            field.oneof_index = len(made.oneof_decl)
            made.oneof_decl.add(name=f"X_{len(made.oneof_decl)}_of_presence")

    def _resolved(self, kind: str, place: str, made: Any) -> str:
        package = f".{self._file.package}" if self._file.package else ""
        if kind.lstrip(".").startswith("google.protobuf."):
            return f".{kind.lstrip('.')}"
        nested = any(inner.name == kind for inner in made.nested_type)
        return f"{package}{place}.{kind}" if nested else f"{package}.{kind}"
