"""Protobuf message types of a plan's messages, as the text of a ``.proto`` file (proto3).

A column's field number is the source's number of the column, which no rename and no other column
ever gets; members that are no columns have the numbers of :data:`NUMBERS`. So every version of a
table can be read with the type of every other. A member that is not in a message is NULL, and
columns are ``optional`` so that 0 and the empty text are written.

Sources: https://protobuf.dev/reference/protobuf/proto3-spec/ (the text),
https://protobuf.dev/programming-guides/encoding/ (the bytes), and for the registries' header
https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/index.html#wire-format
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import IntEnum

from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.schema import TableName, TableSchema
from changefeed.core.shapes import Envelope
from changefeed.core.types import Kind, LogicalType
from changefeed.encoding.binary_format import header, identifier, namespace, varint
from changefeed.encoding.plan import MessagePlan
from changefeed.encoding.record_shape import META, Leaf, LeafOrigin, Record, key_shape, value_shape

#: Key of the ``.proto`` text in the metadata of the ``value`` column of messages that carry no
#: schema id.
PROTO_KEY = b"protobuf.schema"

#: Field numbers of members that are no columns, the same in every message that has them.
#: :data:`META` stands among columns in the envelope ``row``: below the numbers that protobuf
#: keeps for itself (19000 to 19999), above those that columns get.
NUMBERS = {
    "before": 1,
    "after": 2,
    "record": 3,
    "op": 4,
    "source": 5,
    "ts_ns": 6,
    "updated": 7,
    "mvcc_timestamp": 8,
    "key": 9,
    "topic": 10,
    "ts_hlc": 11,
    "table": 13,
    "resolved": 14,
    "truncate": 15,
    "changefeed_sink": 16,
    "job_id": 17,
    "schema_name": 18,
    "source_name": 19,
    "table_name": 20,
    "database_name": 21,
    META: 18_999,
}

#: The fields of a value that is no row: all rows up to a time were sent, or a table was emptied.
CONTROL_FIELDS = ("table", "resolved", "truncate")

#: Fields of an array's message and of its elements' messages.
ITEMS, VALUE = 1, 1


class WireType(IntEnum):
    """How many bytes follow a field's tag (Encoding, Message Structure)."""

    VARINT = 0
    FIXED64 = 1
    LENGTH = 2
    FIXED32 = 5


_MOMENT = "google.protobuf.Timestamp"
_IMPORT = "google/protobuf/timestamp.proto"
#: All else is the source's text: protobuf has no decimal, no date and no time of day.
_SCALARS = {
    Kind.BOOL: "bool",
    Kind.INT16: "int32",
    Kind.INT32: "int32",
    Kind.INT64: "int64",
    Kind.FLOAT32: "float",
    Kind.FLOAT64: "double",
    Kind.BYTES: "bytes",
    Kind.TIMESTAMP: _MOMENT,
    Kind.TIMESTAMPTZ: _MOMENT,
}


def column_number(schema: TableSchema, ordinal: int) -> int:
    """The field number of a column.

    A source without numbers of its own has positions, and then only columns added at the end
    keep the others' numbers.

    Raises:
        ChangefeedError: CF1302, the number is beyond those that columns may have.
    """
    column = schema.columns[ordinal]
    numbered = all(other.column_id > 0 for other in schema.columns)
    number = column.column_id if numbered else ordinal + 1
    if number >= NUMBERS[META]:
        raise ChangefeedError(
            Code.TARGET_NOT_WATCHABLE,
            f"column {column.name} of {schema.table.name} has the number {number}, and fields of "
            f"columns are below {NUMBERS[META]} in protobuf",
            hint="leave it out with a column list, or use another format.",
        )
    return number


def tag(number: int, wire: WireType) -> bytes:
    """The bytes before a field's value: its number and wire type."""
    return varint(number << 3 | wire)


def text_field(number: int, text: str) -> bytes:
    """A field with a text: tag, length and bytes."""
    data = text.encode()
    return tag(number, WireType.LENGTH) + varint(len(data)) + data


def message_header(schema_id: int) -> bytes:
    """The beginning of a message in Confluent's wire format: the schema's id, then the position of
    the message in its file. changefeed uses the first message, which is written as one zero byte.
    """
    return header(schema_id) + b"\0"


# ------------------------------------------------------------------------------- the text


def key_proto(plan: MessagePlan) -> str:
    """The file whose first message is the type of a message key."""
    file = _File(plan.avro_name or plan.topic, plan.avro_namespace, "_key")
    file.add_record(f"{file.base}_key", key_shape(plan), plan.schema)
    return file.text()


def value_proto(plan: MessagePlan) -> str | None:
    """The file whose first message is the type of a message value; None where there is none."""
    shape = value_shape(plan)
    if shape is None:
        return None
    file = _File(plan.avro_name or plan.topic, plan.avro_namespace)
    file.add_value(shape, plan)
    return file.text()


def control_proto(envelope: Envelope, name: str, prefix: str) -> str:
    """The file whose first message is the type of control messages.

    It has the name and the numbers of the values' type, so that each can be read as the other.
    ``name`` is what stands in :attr:`MessagePlan.avro_name` or the topic.
    """
    file = _File(name, prefix)
    if envelope is Envelope.ROW:
        file.add(f"{file.base}_row", [file.meta()])
        file.add(f"{file.base}_crdb", _control_fields())
    else:
        file.add(f"{file.base}_envelope", _control_fields())
    return file.text()


def control(
    envelope: Envelope, member: str, at: Timestamp, table: TableName | None = None
) -> bytes:
    """The value of a control message; ``member`` is ``resolved``, or ``truncate`` of ``table``."""
    named = b"" if table is None else text_field(NUMBERS["table"], str(table))
    field = named + text_field(NUMBERS[member], str(at))
    if envelope is not Envelope.ROW:
        return field
    return tag(NUMBERS[META], WireType.LENGTH) + varint(len(field)) + field


@dataclass(frozen=True, slots=True)
class _Field:
    """A line of a message; ``label`` is ``optional`` or empty."""

    name: str
    type: str
    number: int
    label: str = ""
    note: str = ""

    def line(self) -> str:
        words = [self.label] if self.label else []
        words += [self.type, self.name, "=", str(self.number)]
        # A comment ends with its line, and a column's name may have one.
        note = f" // {' '.join(self.note.split())}" if self.note else ""
        return f"  {' '.join(words)};{note}"


def _control_fields() -> list[_Field]:
    return [_Field(name, "string", NUMBERS[name], "optional") for name in CONTROL_FIELDS]


class _File:
    """The messages of one file; registries and readers use the first one.

    Each name ends with a suffix, so that none is a keyword, and begins with the name of the topic
    or table, so that one program can have the types of many topics.
    """

    def __init__(self, name: str, prefix: str, part: str = "") -> None:
        self.base = identifier(name)
        self._package = namespace(prefix)
        self._arrays = self.base + part
        self._messages: dict[str, dict[int, _Field]] = {}
        self._elements: dict[str, str] = {}
        self._has_moments = False

    def add_value(self, shape: Record, plan: MessagePlan) -> None:
        if plan.envelope is Envelope.ROW:
            self.add_record(f"{self.base}_row", shape, plan.schema)
            self.add(f"{self.base}_row", [self.meta()])
            self.add(f"{self.base}_crdb", _control_fields())
        else:
            self.add_record(f"{self.base}_envelope", shape, plan.schema)
            self.add(f"{self.base}_envelope", _control_fields())

    def meta(self) -> _Field:
        return _Field(META, f"{self.base}_crdb", NUMBERS[META])

    def add_record(self, name: str, record: Record, schema: TableSchema) -> None:
        self.add(name, [])  # before those of its members
        for member_name, member in record.members:
            self.add(name, [self._field(member_name, member, schema)])

    def add(self, name: str, fields: Iterable[_Field]) -> None:
        """``before`` and ``after`` have one type, which has the columns of both."""
        known = self._messages.setdefault(name, {})
        for field in fields:
            known.setdefault(field.number, field)

    def _field(self, name: str, member: Leaf | Record, schema: TableSchema) -> _Field:
        if isinstance(member, Record):
            type_name = f"{self.base}_{_TYPES.get(member.suffix, member.suffix[1:])}"
            self.add_record(type_name, member, schema)
            return _Field(identifier(name), type_name, NUMBERS[name])
        is_column = member.origin is LeafOrigin.COLUMN
        number = column_number(schema, member.ordinal) if is_column else NUMBERS[name]
        if member.type.element is not None:
            type_name, label = self._array(member.type.element), ""
        else:
            type_name, label = self._scalar(member.type.kind)
        return _Field(identifier(name), type_name, number, label, member.note)

    def _scalar(self, kind: Kind) -> tuple[str, str]:
        """The type name and label of a value that may be NULL: messages may be NULL without a
        label."""
        name = _SCALARS.get(kind, "string")
        if name != _MOMENT:
            return name, "optional"
        self._has_moments = True
        # Without the dot the name would mean a package ``google`` of the user's.
        return ("." + name if "google" in self._package.split(".") else name), ""

    def _array(self, element: LogicalType) -> str:
        """Elements are messages of their own, because ``repeated`` has no NULL."""
        short = _SCALARS.get(element.kind, "string").rpartition(".")[2].lower()
        name = f"{self._arrays}_{short}_array"
        type_name, label = self._scalar(element.kind)
        self._elements[name] = f"{label} {type_name}".strip()
        return name

    def text(self) -> str:
        head = ['syntax = "proto3";']
        if self._package:
            head += [f"package {self._package};"]
        body = [line for name in self._messages for line in self._message(name)]
        for name, element in sorted(self._elements.items()):
            body += ["", f"message {name} {{", "  message element {"]
            body += [f"    {element} value = {VALUE};", "  }"]
            body += [f"  repeated element items = {ITEMS};", "}"]
        if self._has_moments:
            head += ["", f'import "{_IMPORT}";']
        return "\n".join([*head, *body, ""])

    def _message(self, name: str) -> list[str]:
        lines = [field.line() for field in _distinct(self._messages[name].values())]
        return ["", f"message {name} {{", *lines, "}"]


#: Names of messages by the suffix that their records have in Avro.
_TYPES = {"": "row", "_before": "row", "_key": "envelope_key"}


def _distinct(fields: Collection[_Field]) -> Iterator[_Field]:
    """The fields by number, under names that all of protobuf's compilers accept together.

    To some compilers ``user_id``, ``userId`` and ``userid`` are the same name in JSON, which is an
    error. The lowest number keeps the name, others get their number added; members that are no
    columns always keep theirs.
    """
    taken, named = set[str](), dict[int, str]()
    for field in sorted(fields, key=lambda field: (bool(field.note), field.number)):
        name = field.name
        while (alike := name.replace("_", "").lower()) in taken:
            name += f"_n{field.number}"
        taken.add(alike)
        named[field.number] = name
    for field in sorted(fields, key=lambda field: field.number):
        yield replace(field, name=named[field.number])
