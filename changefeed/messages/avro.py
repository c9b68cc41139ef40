"""Avro keys and values: the tree of :mod:`changefeed.formats.shape` filled with bytes."""

from __future__ import annotations

import pyarrow as pa

from changefeed.formats.avro import long_bytes
from changefeed.formats.shape import Leaf
from changefeed.formats.wire import header
from changefeed.messages.avro_values import NULL, THERE, constant, numbers, strings, union_pieces
from changefeed.messages.pieces import Piece
from changefeed.messages.tree import Filler


class AvroMessages(Filler):
    """Every member is a union; its place in the record says which it is."""

    ABSENT = NULL

    def head(self, schema_id: int) -> bytes:
        return header(schema_id)

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
