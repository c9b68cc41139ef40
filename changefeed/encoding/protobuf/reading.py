"""Protobuf messages read back by Google's runtime, one by one, to compare a topic with its source.

The types are read from the text of a ``.proto`` file as :mod:`.schema` writes it: records of
scalars, moments, and arrays. What another program registered may have more, and is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.extras import needs_package
from changefeed.encoding.binary_format import Read, reader_of_registered
from changefeed.encoding.protobuf.schema import message_header

_SCALARS = frozenset({"bool", "int32", "int64", "double", "float", "string", "bytes"})
_MOMENT = "google.protobuf.Timestamp"
#: One step through a file: what is passed over, the begin and end of a type, or a field.
_STEP = re.compile(
    r"""\s+ | ; | //[^\n]* | /\*.*?\*/ | (?:syntax|import|option|reserved)\b[^;]*;
    | package\s+(?P<package>[\w.]+)\s*; | message\s+(?P<message>\w+)\s*\{ | (?P<end>\})
    | (?:(?P<label>optional|repeated)\s+)? \.?(?P<type>[\w.]+)\s+(?P<name>\w+)\s*=\s*
      (?P<number>\d+)\s*(?:\[[^\]]*\]\s*)?;""",
    re.DOTALL | re.VERBOSE,
)


def reader_of(text: str) -> Read:
    """A function that reads messages of a file's first type, without a header: members by name,
    NULL for those that a message does not have.

    Raises:
        ChangefeedError: CF1303 the text is no file as the feed writes it; CF5005 where protobuf's
            runtime is not installed.
    """
    kind = _message_class(text)

    def read(data: bytes) -> Any:
        from google.protobuf.message import DecodeError

        try:
            return _record(kind.FromString(data))
        except (DecodeError, ValueError) as error:  # ValueError: a field that has no NULL
            raise _unreadable(type(error).__name__) from error

    return read


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
    return tuple(_message_class(text).DESCRIPTOR.fields_by_name)


def _message_class(text: str) -> Any:
    """The class of a file's first type."""
    try:
        from google.protobuf import descriptor_pool, message_factory, timestamp_pb2
    except ImportError:
        raise needs_package(
            "reading protobuf messages back", "google.protobuf", "protobuf"
        ) from None
    file = _file(text)
    if not file.message_type:
        raise _unreadable("no type in its schema")
    # A pool of its own: versions of a table have the same names.
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    try:
        pool.Add(file)
    except TypeError as error:
        raise _unreadable("a type in its schema is unknown") from error
    name = ".".join(filter(None, (file.package, file.message_type[0].name)))
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def _file(text: str) -> Any:
    """The text as a ``FileDescriptorProto``."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    file = FileDescriptorProto(name="feed.proto", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    types: list[Any] = []  # those that the place is in, the innermost last
    place = 0
    while place < len(text):
        step = _STEP.match(text, place)
        if step is None:
            raise _unreadable(f"{text[place:].split(maxsplit=1)[0]} in its schema")
        place = step.end()
        if step["package"]:
            file.package = step["package"]
        elif step["message"]:
            made = types[-1].nested_type if types else file.message_type
            types.append(made.add(name=step["message"]))
        elif step["end"] and types:
            types.pop()
        elif step["type"] and types:
            _add_field(types[-1], step)
        elif step["end"] or step["type"]:
            raise _unreadable(f"{step[0]} in its schema")
    if types:
        raise _unreadable("its schema ends too soon")
    return file


def _add_field(message: Any, step: re.Match[str]) -> None:
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto

    label = "LABEL_REPEATED" if step["label"] == "repeated" else "LABEL_OPTIONAL"
    field = message.field.add(name=step["name"], number=int(step["number"]), label=label)
    kind = step["type"]
    if kind in _SCALARS:
        field.type = FieldDescriptorProto.Type.Value(f"TYPE_{kind.upper()}")
    else:
        field.type = FieldDescriptorProto.TYPE_MESSAGE
        field.type_name = f".{kind}" if kind == _MOMENT else kind
    if step["label"] == "optional":
        # Presence is written as a group of one (Field Presence, descriptors of proto3).
        field.proto3_optional = True
        field.oneof_index = len(message.oneof_decl)
        message.oneof_decl.add(name=f"_{field.name}")


def _record(message: Any) -> Any:
    from google.protobuf.unknown_fields import UnknownFieldSet

    kind = message.DESCRIPTOR
    if kind.full_name == _MOMENT:
        return message.seconds * 1_000_000 + message.nanos // 1_000
    for unknown in UnknownFieldSet(message):
        # Others are columns that are gone, or of a type that came later.
        if (field := kind.fields_by_number.get(unknown.field_number)) is not None:
            raise _unreadable(f"{field.name} has another type")
    if kind.nested_types and [*kind.fields_by_name] == ["items"]:  # the elements of an array
        return [_member(element, "value") for element in message.items]
    return {name: _member(message, name) for name in kind.fields_by_name}


def _member(message: Any, name: str) -> Any:
    if not message.HasField(name):
        return None
    value = getattr(message, name)
    return _record(value) if hasattr(value, "DESCRIPTOR") else value


def _unreadable(why: str) -> ChangefeedError:
    return ChangefeedError(
        Code.NOT_SUPPORTED,
        "a message cannot be verified: it is not in the protobuf that the feed writes",
        detail=why,
        hint="another program may have written there.",
    )
