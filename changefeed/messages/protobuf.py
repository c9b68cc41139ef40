"""Protobuf keys and values: the tree of :mod:`changefeed.formats.shape` filled with bytes."""

from __future__ import annotations

import pyarrow as pa

from changefeed.formats.protobuf import (
    NUMBERS,
    Wire,
    column_number,
    message_header,
    tag,
    text_field,
)
from changefeed.formats.shape import Leaf, key_shape, value_shape
from changefeed.formats.wire import varint
from changefeed.messages.pieces import Piece
from changefeed.messages.protobuf_values import field_pieces, message, numbers, texts
from changefeed.messages.sides import Rows
from changefeed.messages.tree import Filler


def protobuf_keys(rows: Rows) -> pa.Array:
    """The keys in Confluent's wire format, or bare messages without a registry."""
    ids = rows.plan.registered
    return _Fields(rows).messages(key_shape(rows.plan), message_header(ids.key) if ids else b"")


def protobuf_values(rows: Rows) -> pa.Array:
    """The values, likewise; null where there is none (tombstones)."""
    shape = value_shape(rows.plan)
    if shape is None:
        return pa.nulls(rows.count, pa.binary())
    ids = rows.plan.registered
    return _Fields(rows).messages(shape, message_header(ids.value) if ids else b"")


class _Fields(Filler):
    """Every member is a field with its number; one that is NULL is left out."""

    ABSENT = b""

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
        return tag(number, Wire.VARINT) + varint(value)

    def texts(self, name: str, values: pa.Array) -> list[Piece]:
        return texts(NUMBERS[name], values)

    def numbers(self, name: str, values: pa.Array) -> list[Piece]:
        return numbers(NUMBERS[name], values)
