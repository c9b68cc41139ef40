"""Avro keys and values: the tree of :mod:`changefeed.formats.shape` filled with bytes."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from changefeed.formats.avro import header, long_bytes
from changefeed.formats.shape import Leaf, Origin, Record, Side, key_shape, value_shape
from changefeed.messages.pieces import (
    NULL,
    THERE,
    Piece,
    constant,
    joined,
    numbers,
    strings,
    union_pieces,
)
from changefeed.messages.sides import Rows
from changefeed.messages.tokens import joined as joined_text


def avro_keys(rows: Rows) -> pa.Array:
    """The keys in Confluent's wire format, or bare datums without a registry."""
    ids = rows.plan.registered
    return _Messages(rows).datums(key_shape(rows.plan), ids.key if ids else None)


def avro_values(rows: Rows) -> pa.Array:
    """The values, likewise; null where there is none (tombstones)."""
    shape = value_shape(rows.plan)
    if shape is None:
        return pa.nulls(rows.count, pa.binary())
    ids = rows.plan.registered
    return _Messages(rows).datums(shape, ids.value if ids else None)


class _Messages:
    """Rows whose columns are encoded once, however often they are shown."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._made: dict[str, list[Piece]] = {}

    def datums(self, shape: Record, schema_id: int | None) -> pa.Array:
        head = b"" if schema_id is None else header(schema_id)

        def made(side: str) -> pa.Array:
            if shape.side is Side.AFTER and side == "b":
                return pa.nulls(self._rows.count, pa.binary())
            return joined([head, *self._record(shape, side)], self._rows.count)

        return self._rows.choose(made)

    def _record(self, record: Record, side: str) -> list[Piece]:
        pieces: list[Piece] = []
        for _, member in record.members:
            if isinstance(member, Record):
                pieces += self._nested(member, side)
            else:
                pieces += self._leaf(member, record.side, side)
        return pieces

    def _nested(self, record: Record, side: str) -> list[Piece]:
        if record.side is Side.AFTER and side == "b":
            return [NULL]
        there: list[Piece] = [THERE]
        if record.side is not Side.BEFORE or side == "b":
            return [*there, *self._record(record, side)]
        known = self._rows.had_before
        if not pc.any(known).as_py():
            return [NULL]
        whole = joined([*there, *self._record(record, side)], self._rows.count)
        return [pc.if_else(known, whole, pa.scalar(NULL, pa.binary()))]

    def _leaf(self, leaf: Leaf, of: Side, side: str) -> list[Piece]:
        if leaf.origin is not Origin.COLUMN:
            return self._other(leaf, side)
        if of in (Side.AFTER, Side.BEFORE):
            return self._column(leaf, "a" if of is Side.AFTER else "b")
        # Of a delete only the key is known for sure.
        known = of is Side.KEY or side == "a" or leaf.ordinal in self._rows.plan.schema.key
        return self._column(leaf, side) if known else [NULL]

    def _column(self, leaf: Leaf, side: str) -> list[Piece]:
        i = leaf.ordinal
        if side == "b" and i not in self._rows.known:
            return [NULL]
        name = f"{side}{i}"
        if name not in self._made:
            column = self._rows.plan.schema.columns[i].name
            self._made[name] = union_pieces(leaf.type, self._rows.column(name), column)
        return self._made[name]

    def _other(self, leaf: Leaf, side: str) -> list[Piece]:
        rows = self._rows
        if leaf.origin is Origin.CONSTANT:
            return [constant(leaf.text)]
        if leaf.origin is Origin.NOW:
            return [THERE + long_bytes(rows.now_ns)]
        if leaf.origin is Origin.OP and side == "b":
            return [constant("d")]
        name = leaf.origin.value
        if name not in self._made:
            if leaf.origin is Origin.WALL:
                self._made[name] = numbers(rows.column("wall"))
            elif leaf.origin is Origin.OP:
                self._made[name] = strings(rows.operation)
            else:
                self._made[name] = strings(joined_text(rows.commit_time, rows.count))
        return self._made[name]
