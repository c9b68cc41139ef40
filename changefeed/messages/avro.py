"""Avro keys and values: the tree of :mod:`changefeed.formats.shape` filled with bytes."""

from __future__ import annotations

import pyarrow as pa

from changefeed.formats.avro import long_bytes
from changefeed.formats.shape import Leaf, key_shape, value_shape
from changefeed.formats.wire import header
from changefeed.messages.avro_values import NULL, THERE, constant, numbers, strings, union_pieces
from changefeed.messages.pieces import Piece
from changefeed.messages.sides import Rows
from changefeed.messages.tree import Filler


def avro_keys(rows: Rows) -> pa.Array:
    """The keys in Confluent's wire format, or bare datums without a registry."""
    ids = rows.plan.registered
    return _Datums(rows).messages(key_shape(rows.plan), header(ids.key) if ids else b"")


def avro_values(rows: Rows) -> pa.Array:
    """The values, likewise; null where there is none (tombstones)."""
    shape = value_shape(rows.plan)
    if shape is None:
        return pa.nulls(rows.count, pa.binary())
    ids = rows.plan.registered
    return _Datums(rows).messages(shape, header(ids.value) if ids else b"")


class _Datums(Filler):
    """Every member is a union; its place in the record says which it is."""

    ABSENT = NULL

    def record(self, name: str, pieces: list[Piece]) -> list[Piece]:
        return [THERE, *pieces]

    def column(self, leaf: Leaf, values: pa.Array) -> list[Piece]:
        name = self._rows.plan.schema.columns[leaf.ordinal].name
        return union_pieces(leaf.type, values, name)

    def constant(self, name: str, value: str | int) -> bytes:
        return constant(value) if isinstance(value, str) else THERE + long_bytes(value)

    def texts(self, name: str, values: pa.Array) -> list[Piece]:
        return strings(values)

    def numbers(self, name: str, values: pa.Array) -> list[Piece]:
        return numbers(values)
