"""Avro keys and values: the tree of :mod:`changefeed.encoding.record_shape` filled with bytes."""

from __future__ import annotations

import pyarrow as pa

from changefeed.encoding.avro.schema import long_bytes
from changefeed.encoding.avro.values import NULL, THERE, constant, numbers, strings, union_pieces
from changefeed.encoding.binary_record import Filler
from changefeed.encoding.byte_columns import Piece
from changefeed.encoding.record_shape import Leaf
from changefeed.encoding.registry_header import header


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
