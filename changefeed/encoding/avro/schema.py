"""Avro schemas of messages, named and shaped as CockroachDB's are.

Every member is a union with ``null`` first and ``null`` as default, so adding and dropping
columns is compatible both ways. ``NaN`` of a ``numeric(p,s)``, which Avro's decimal cannot be,
is the string branch of its union.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.extras import needs_package
from changefeed.core.schema import TableName
from changefeed.core.shapes import Envelope
from changefeed.core.types import Kind, LogicalType
from changefeed.encoding.binary_format import identifier, namespace, varint
from changefeed.encoding.plan import MessagePlan
from changefeed.encoding.record_shape import META, Leaf, Record, key_shape, value_shape

Schema = dict[str, Any]

#: Key of the parsed schema in the metadata of the ``value`` column of messages that carry no
#: schema id: bare datums for an Avro object container.
SCHEMA_KEY = b"avro.schema"

#: A type that has none here is a ``string``.
_TYPES: dict[Kind, Any] = {
    Kind.BOOL: "boolean",
    Kind.INT16: "long",
    Kind.INT32: "long",
    Kind.INT64: "long",
    Kind.FLOAT32: "double",
    Kind.FLOAT64: "double",
    Kind.BYTES: "bytes",
    Kind.DATE: {"type": "int", "logicalType": "date"},
    Kind.TIME: {"type": "long", "logicalType": "time-micros"},
    Kind.TIMESTAMP: {"type": "long", "logicalType": "timestamp-micros"},
    Kind.TIMESTAMPTZ: {"type": "long", "logicalType": "timestamp-micros"},
}


def key_schema(plan: MessagePlan) -> Schema:
    """The schema of a message key, for readers."""
    return _Names(plan).record(key_shape(plan), outermost=True)


def value_schema(plan: MessagePlan) -> Schema | None:
    """The schema of a message value, for readers; None where messages have no value."""
    shape = value_shape(plan)
    return None if shape is None else _Names(plan).record(shape, outermost=True)


def schema_text(schema: Schema) -> str:
    """A schema as text for registries and files, checked against the specification.

    Raises:
        ChangefeedError: CF5005, the extra ``avro`` is not installed.
        fastavro.schema.SchemaParseException: the specification does not allow the schema, for
            example two records of one name.
    """
    text = json.dumps(schema)
    _parsed(text)
    return text


@lru_cache(maxsize=512)
def _parsed(text: str) -> object:
    fastavro = _fastavro()
    # Once for each schema: chunks of a plan ask for its text again and again.
    return fastavro.parse_schema(json.loads(text))


def _fastavro() -> Any:
    # Of an extra, which feeds of other formats do not need.
    try:
        import fastavro
    except ImportError:
        raise needs_package("format = 'avro'", "fastavro", "avro") from None
    return fastavro


class _Names:
    def __init__(self, plan: MessagePlan) -> None:
        self._base = identifier(plan.avro_name or plan.topic)
        self._namespace = namespace(plan.avro_namespace)
        self._table = plan.schema.table.name

    def record(self, record: Record, *, outermost: bool = False) -> Schema:
        fields, taken = [], dict[str, str]()
        for name, member in record.members:
            escaped = identifier(name)
            if escaped in taken:
                raise ChangefeedError(
                    Code.TARGET_NOT_WATCHABLE,
                    f"columns {taken[escaped]} and {name} of {self._table} have the same name "
                    "in Avro",
                    hint="leave one of them out with a column list.",
                )
            taken[escaped] = name
            fields.append(self._field(escaped, member))
        made: Schema = {"type": "record", "name": self._base + record.suffix, "fields": fields}
        if outermost and self._namespace:
            made["namespace"] = self._namespace
        return made

    def _field(self, name: str, member: Leaf | Record) -> Schema:
        if isinstance(member, Record):
            return {"name": name, "type": ["null", self.record(member)], "default": None}
        made: Schema = {"name": name, "type": union(member.type), "default": None}
        return made | ({META: member.note} if member.note else {})


def union(of: LogicalType) -> list[Any]:
    """The union of ``null`` and the type; a decimal may be a string too (NaN)."""
    if of.precision:
        digits = {"precision": of.precision, "scale": of.scale}
        return ["null", {"type": "bytes", "logicalType": "decimal", **digits}, "string"]
    if of.element is not None:
        return ["null", {"type": "array", "items": union(of.element)}]
    return ["null", _TYPES.get(of.kind, "string")]


# ------------------------------------------------------------------------------- control messages


def control_schema(envelope: Envelope, name: str, prefix: str, member: str) -> Schema:
    """The schema of a value that is no row; ``member`` is ``resolved`` or ``truncate``.

    It has the name of the values' schema in the same subject, so that each can be read as the
    other. ``name`` is what stands in :attr:`MessagePlan.avro_name` or the topic.
    """
    base = identifier(name)
    names = ["table", member] if member == "truncate" else [member]
    texts = [{"name": n, "type": ["null", "string"], "default": None} for n in names]
    if envelope is Envelope.ROW:
        inner = {"type": "record", "name": f"{base}_crdb", "fields": texts}
        field = {"name": META, "type": ["null", inner], "default": None}
        made: Schema = {"type": "record", "name": base, "fields": [field]}
    else:
        made = {"type": "record", "name": f"{base}_envelope", "fields": texts}
    outer = namespace(prefix)
    return made | ({"namespace": outer} if outer else {})


def control(
    schema: Schema, envelope: Envelope, member: str, at: Timestamp, table: TableName | None = None
) -> bytes:
    """The datum of a control message in its :func:`control_schema`; ``table`` is the one that was
    truncated."""
    named = {} if table is None else {"table": str(table)}
    value: Mapping[str, object] = {**named, member: str(at)}
    fastavro = _fastavro()
    out = io.BytesIO()
    fastavro.schemaless_writer(
        out, schema, {META: value} if envelope is Envelope.ROW else dict(value)
    )
    return out.getvalue()


def long_bytes(number: int) -> bytes:
    """A number as Avro writes it: zigzag, seven bits a byte."""
    return varint((number << 1) ^ (number >> 63))
