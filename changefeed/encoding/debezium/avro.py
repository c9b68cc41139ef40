"""Debezium's messages in Avro, as Kafka Connect's Avro converters write them: a member that may be
missing is a union with ``null``, one that may not is the type itself, and the types of Connect keep
their names (``connect.name``).

The records are named after the topic, ``orders.Key``, ``orders.Value`` and ``orders.Envelope``,
with ``avro_schema_prefix`` before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.core.types import LogicalType
from changefeed.encoding.avro.schema import long_bytes
from changefeed.encoding.avro.values import NULL, THERE, doubles, listed, numbers, strings, truths
from changefeed.encoding.binary_format import header, identifier, namespace
from changefeed.encoding.byte_columns import Piece, fixed, joined, validity
from changefeed.encoding.debezium import schemas
from changefeed.encoding.debezium.connect_values import (
    connect_values,
    fitting,
    items,
    scales,
)
from changefeed.encoding.debezium.fields import ConnectType, Conversion, field_of
from changefeed.encoding.debezium.messages import Messages
from changefeed.encoding.plan import MessagePlan

Schema = dict[str, Any]


# ------------------------------------------------------------------------------- schemas


def key_schema(plan: MessagePlan) -> Schema:
    """The Avro schema of a message key."""
    return _Translation().record(schemas.key_schema(plan, _base(plan)))


def value_schema(plan: MessagePlan) -> Schema:
    """The Avro schema of a message value."""
    return _Translation().record(schemas.value_schema(plan, _base(plan)))


def _base(plan: MessagePlan) -> str:
    """The prefix of the names of all records."""
    outer = namespace(plan.avro_namespace)
    own = ".".join(identifier(part) for part in (plan.avro_name or plan.topic).split("."))
    return f"{outer}.{own}" if outer else own


class _Translation:
    """Translates Connect's schemas to Avro's; a record that occurs again is only named."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def record(self, schema: Schema) -> Schema:
        """``schema`` is a struct that was not written yet."""
        name = schema["name"]
        self._known.add(name)
        space, _, own = name.rpartition(".")
        fields = [self._field(field) for field in schema["fields"]]
        made: Schema = {"type": "record", "name": own, "namespace": space, "fields": fields}
        return made | _connect(schema)

    def _field(self, field: Schema) -> Schema:
        kind = self._type(field)
        name = identifier(field["field"])
        if field["optional"]:
            return {"name": name, "type": ["null", kind], "default": None}
        return {"name": name, "type": kind}

    def _type(self, schema: Schema) -> Any:
        if schema["type"] == "struct":
            return schema["name"] if schema["name"] in self._known else self.record(schema)
        if schema["type"] == "array":
            return {"type": "array", "items": ["null", self._type(schema["items"])]}
        plain = _PRIMITIVE[schema["type"]]
        more = _connect(schema)
        if schema["type"] == "int16":
            more["connect.type"] = "int16"
        if schema.get("name") == "org.apache.kafka.connect.data.Decimal":
            digits = schema["parameters"]
            more |= {
                "logicalType": "decimal",
                "scale": int(digits["scale"]),
                "precision": int(digits["connect.decimal.precision"]),
            }
        return {"type": plain, **more} if more else plain


_PRIMITIVE = {
    **{name: name for name in ("boolean", "float", "double", "string", "bytes")},
    "int16": "int",
    "int32": "int",
    "int64": "long",
}


def _connect(schema: Schema) -> Schema:
    made: Schema = {}
    if "version" in schema:
        made["connect.version"] = schema["version"]
    if "parameters" in schema:
        made["connect.parameters"] = schema["parameters"]
    if "name" in schema:
        made["connect.name"] = schema["name"]
    return made


# ------------------------------------------------------------------------------- messages


class DebeziumAvroMessages(Messages[Piece]):
    """Keys and values as Avro's bytes, in Confluent's wire format where there is a registry."""

    def keys(self) -> pa.Array:
        ids = self.plan.registered
        head = header(ids.key) if ids else b""
        key = self.plan.message_key
        return self.rows.choose(lambda side: self._join([head, *self._members(side, key)]))

    def values(self) -> pa.Array:
        ids = self.plan.registered
        head = header(ids.value) if ids else b""
        return self.rows.choose(lambda side: self._join([head, *self._envelope(side)]))

    def _join(self, pieces: list[Piece]) -> pa.Array:
        return joined(pieces, self.rows.count)

    def _members(self, side: str, columns: Sequence[int]) -> list[Piece]:
        return [piece for i in columns for piece in self.member(side, i)]

    def _envelope(self, side: str) -> list[Piece]:
        rows, now = self.rows, self.rows.now_ns
        after = [NULL] if side == "b" else [THERE, *self._members("a", self.plan.columns)]
        op: list[Piece] = [_text("d")] if side == "b" else _required(strings(rows.column("op")))
        times = (now // 1_000_000, now // 1_000, now)
        ends = [THERE + long_bytes(time) for time in times]
        return [*self._before(side), *after, *self._source(), NULL, *op, *ends]

    def _before(self, side: str) -> list[Piece]:
        there = self.shows_before(side)
        if there is None:
            return [NULL]
        image: list[Piece] = [THERE, *self._members("b", self.plan.columns)]
        if isinstance(there, bool):
            return image
        return [pc.if_else(there, self._join(image), pa.scalar(NULL, pa.binary()))]

    def _source(self) -> list[Piece]:
        rows, source = self.rows, self.source
        micros = rows.column("commit_us")
        xid = [NULL] if rows.scan else numbers(rows.column("xid"))
        sequence = pc.binary_join_element_wise(
            '[null,"', rows.column("seq").cast(pa.string()), '"]', pa.scalar("", pa.string())
        )
        schema = [] if source.schema is None else [_text(source.schema)]
        return [
            *(_text(text) for text in (source.version, source.connector, source.name)),
            *_required(numbers(pc.divide(micros, 1_000))),
            THERE + _text(source.snapshot),
            _text(source.database),
            *strings(sequence),
            *numbers(micros),
            *numbers(pc.multiply(micros, 1_000)),
            *schema,
            _text(source.table),
            *xid,
        ]

    # -- columns ----------------------------------------------------------------------------

    def unknown(self, i: int) -> list[Piece]:
        column = self.plan.schema.columns[i]
        return [NULL if column.nullable else _zero(field_of(column))]

    def known(self, i: int, values: pa.Array) -> list[Piece]:
        column = self.plan.schema.columns[i]
        with fitting(column.name):
            made = _union(field_of(column), column.logical, values, column.name)
        if column.nullable:
            return made
        there = _required(made)
        if not values.null_count:
            return there
        whole = joined(there, len(values))
        zero = pa.scalar(_zero(field_of(column)), pa.binary())
        return [pc.if_else(values.is_valid(), whole, zero)]


def _text(text: str) -> bytes:
    data = text.encode()
    return long_bytes(len(data)) + data


def _required(pieces: list[Piece]) -> list[Piece]:
    """The values without the branch of their union; none may be NULL."""
    first, *rest = pieces
    return [pc.binary_replace_slice(first, 0, 1, b""), *rest]


def _union(field: ConnectType, logical: LogicalType, values: pa.Array, name: str) -> list[Piece]:
    if field.items is not None and logical.element is not None:
        lists = items(logical.element, values, name)
        elements = _union(field.items, logical.element, lists.values, name)
        return listed(lists, joined(elements, len(lists.values)))
    found = connect_values(field, values, name)
    if field.way is Conversion.SCALED:
        # A record: the scale takes the branch, the digits have none.
        digits = joined(_required(strings(found)), len(found))
        there = found.is_valid()
        empty = pa.scalar(b"", pa.binary())
        return [*numbers(scales(values)), pc.if_else(there, digits, empty)]
    if field.type == "boolean":
        return truths(found.cast(pa.bool_()))
    if field.type == "double":
        return doubles(_number(found, pa.float64()))
    if field.type == "float":
        data = pc.fill_null(_number(found, pa.float32()), 0.0).to_numpy(zero_copy_only=False)
        bits = data.astype("<f4").view(np.uint8).reshape(-1, 4)
        return [fixed(THERE, bits, validity(found), NULL)]
    if field.type in ("string", "bytes"):
        return strings(found)
    return numbers(found.cast(pa.int64()))  # an array's elements are texts


def _number(values: pa.Array, kind: pa.DataType) -> pa.Array:
    return pc.utf8_trim(values, '"').cast(kind)


def _zero(field: ConnectType) -> bytes:
    """:attr:`ConnectType.zero` in Avro."""
    if field.way is Conversion.ZONED:
        return _text("1970-01-01T00:00:00Z")
    if field.way is Conversion.ZONED_TIME:
        return _text("00:00:00Z")
    if field.way is Conversion.UNSCALED:
        return _text("\0")
    if field.way is Conversion.SCALED:
        return long_bytes(0) + _text("\0")
    return bytes({"double": 8, "float": 4}.get(field.type, 1))
