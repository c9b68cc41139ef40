"""Fills the tree of :mod:`changefeed.encoding.record_shape` with bytes, in any binary format."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from changefeed.encoding.byte_columns import Piece, joined
from changefeed.encoding.images import TokenRows
from changefeed.encoding.json_tokens import joined as joined_text
from changefeed.encoding.record_shape import Leaf, LeafOrigin, Record, Side, key_shape, value_shape


class Filler(ABC):
    """Rows whose columns are encoded once, however often messages show them.

    A format says how each kind of member is written; ``name`` is the member's name for readers.
    """

    #: The bytes of a member that is NULL.
    ABSENT: ClassVar[bytes]

    def __init__(self, rows: TokenRows) -> None:
        self._rows = rows
        self._made: dict[str, list[Piece]] = {}

    # -- what a format says -----------------------------------------------------------------

    @abstractmethod
    def head(self, schema_id: int) -> bytes:
        """What begins a message in Confluent's wire format."""

    @abstractmethod
    def record(self, name: str, pieces: list[Piece]) -> list[Piece]:
        """A record that is not NULL, made of the bytes of its members."""

    @abstractmethod
    def column(self, leaf: Leaf, values: pa.Array) -> list[Piece]:
        """A column of the log.

        Raises:
            ChangefeedError: CF4001, a value does not fit.
        """

    @abstractmethod
    def constant(self, name: str, value: str | int) -> bytes:
        """The same text or number of every row."""

    @abstractmethod
    def texts(self, name: str, values: pa.Array) -> list[Piece]:
        """A text of each row."""

    @abstractmethod
    def numbers(self, name: str, values: pa.Array) -> list[Piece]:
        """A number of each row."""

    # -- messages ---------------------------------------------------------------------------

    def keys(self) -> pa.Array:
        """The keys in Confluent's wire format, or bare messages without a registry."""
        ids = self._rows.plan.registered
        return self._messages(key_shape(self._rows.plan), self.head(ids.key) if ids else b"")

    def values(self) -> pa.Array:
        """The values in the same form; null for a tombstone."""
        shape, ids = value_shape(self._rows.plan), self._rows.plan.registered
        if shape is None:
            return pa.nulls(self._rows.count, pa.binary())
        return self._messages(shape, self.head(ids.value) if ids else b"")

    # -- the tree ---------------------------------------------------------------------------

    def _messages(self, shape: Record, head: bytes) -> pa.Array:
        def made(side: str) -> pa.Array:
            if shape.side is Side.AFTER and side == "b":
                return pa.nulls(self._rows.count, pa.binary())
            return joined([head, *self._members(shape, side)], self._rows.count)

        return self._rows.choose(made)

    def _members(self, record: Record, side: str) -> list[Piece]:
        pieces: list[Piece] = []
        for name, member in record.members:
            if isinstance(member, Record):
                pieces += self._nested(name, member, side)
            else:
                pieces += self._leaf(name, member, record.side, side)
        return pieces

    def _nested(self, name: str, record: Record, side: str) -> list[Piece]:
        if record.side is Side.AFTER and side == "b":
            return [self.ABSENT]
        if record.side is not Side.BEFORE or side == "b":
            return self.record(name, self._members(record, side))
        known = self._rows.had_before
        if not pc.any(known).as_py():
            return [self.ABSENT]
        whole = joined(self.record(name, self._members(record, side)), self._rows.count)
        return [pc.if_else(known, whole, pa.scalar(self.ABSENT, pa.binary()))]

    def _leaf(self, name: str, leaf: Leaf, of: Side, side: str) -> list[Piece]:
        if leaf.origin is not LeafOrigin.COLUMN:
            return self._other(name, leaf, side)
        if of in (Side.AFTER, Side.BEFORE):
            return self._column(leaf, "a" if of is Side.AFTER else "b")
        # Of a deleted row only the key is certain.
        plan = self._rows.plan
        known = of is Side.KEY or side == "a" or leaf.ordinal in plan.schema.key
        known = known or plan.whole_deletes
        return self._column(leaf, side) if known else [self.ABSENT]

    def _column(self, leaf: Leaf, side: str) -> list[Piece]:
        i = leaf.ordinal
        if side == "b" and i not in self._rows.known:
            return [self.ABSENT]
        place = f"{side}{i}"
        if place not in self._made:
            self._made[place] = self.column(leaf, self._rows.column(place))
        return self._made[place]

    def _other(self, name: str, leaf: Leaf, side: str) -> list[Piece]:
        rows = self._rows
        if leaf.origin is LeafOrigin.CONSTANT:
            return [self.constant(name, leaf.text)]
        if leaf.origin is LeafOrigin.NOW:
            return [self.constant(name, rows.now_ns)]
        if leaf.origin is LeafOrigin.WALL:
            return self.numbers(name, rows.column("wall"))
        if leaf.origin is LeafOrigin.OP:
            return [self.constant(name, "d")] if side == "b" else self.texts(name, rows.operation)
        return self.texts(name, self._stamps)

    @cached_property
    def _stamps(self) -> pa.Array:
        return joined_text(self._rows.commit_time, self._rows.count)
