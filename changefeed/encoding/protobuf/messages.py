"""Protobuf keys and values: fills the tree of :mod:`changefeed.encoding.record_shape`."""

from __future__ import annotations

import pyarrow as pa

from changefeed.encoding.binary_record import Filler
from changefeed.encoding.byte_columns import Piece
from changefeed.encoding.protobuf.schema import (
    NUMBERS,
    WireType,
    column_number,
    message_header,
    tag,
    text_field,
)
from changefeed.encoding.protobuf.values import field_pieces, message, numbers, texts
from changefeed.encoding.record_shape import Leaf
from changefeed.encoding.registry_header import varint


class ProtobufMessages(Filler):
    """Every member is a field with its number; one that is NULL is left out."""

    ABSENT = b""

    def head(self, schema_id: int) -> bytes:
        return message_header(schema_id)

    def record(self, name: str, pieces: list[Piece]) -> list[Piece]:
        return message(NUMBERS[name], pieces, self._rows.count)

    def column(self, leaf: Leaf, values: pa.Array) -> list[Piece]:
        schema = self._rows.plan.schema
        number = column_number(schema, leaf.ordinal)
        return field_pieces(leaf.type, number, values, schema.columns[leaf.ordinal].name)

    def constant(self, name: str, value: str | int) -> bytes:
        number = NUMBERS[name]
        if isinstance(value, str):
            return text_field(number, value)
        return tag(number, WireType.VARINT) + varint(value)

    def texts(self, name: str, values: pa.Array) -> list[Piece]:
        return texts(NUMBERS[name], values)

    def numbers(self, name: str, values: pa.Array) -> list[Piece]:
        return numbers(NUMBERS[name], values)
