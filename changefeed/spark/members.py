"""A tree of members (:mod:`changefeed.formats.shape`) filled with expressions of the JVM."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import Column as Expression
from pyspark.sql import functions as F

from changefeed.formats.shape import Leaf, Origin, Record, Side
from changefeed.schema import Column
from changefeed.spark.sides import NOW, Rows, before_json, commit_time, upsert_op
from changefeed.spark.tokens import joined
from changefeed.spark.typed import Finish, typed_value


class Members:
    """Fills trees for the rows of one plan; ``finish`` is that of :func:`typed_value`."""

    def __init__(self, rows: Rows, finish: Finish) -> None:
        self._rows = rows
        self._finish = finish

    def struct(self, record: Record, names: Callable[[int], str]) -> Expression:
        """The record as a struct, NULL where its side of the row is not there.

        ``names`` calls the fields by their place.
        """
        made = F.struct(
            *(
                self._member(member, record.side, names).alias(names(i))
                for i, (_, member) in enumerate(record.members)
            )
        )
        there = self._there(record.side)
        return made if there is None else F.when(there, made)

    def _member(self, member: Leaf | Record, side: Side, names: Callable[[int], str]) -> Expression:
        if isinstance(member, Record):
            return self.struct(member, names)
        if member.origin is Origin.COLUMN:
            return self._column(member, side)
        if member.origin is Origin.CONSTANT:
            return F.lit(member.text)
        return _ORIGINS[member.origin](self._rows)

    def _there(self, side: Side) -> Expression | None:
        deletes = self._rows.deletes
        if side is Side.AFTER and deletes:
            return F.col("op") != "d"
        if side is not Side.BEFORE:
            return None
        before = self._rows.had_before()
        return before | (F.col("op") == "d") if deletes else before

    def _column(self, leaf: Leaf, side: Side) -> Expression:
        i = leaf.ordinal
        if side in (Side.AFTER, Side.BEFORE):
            return self._value("a" if side is Side.AFTER else "b", leaf)
        # Of a delete only the key is known for sure.
        known = side is Side.KEY or i in self._rows.plan.schema.key
        return self._rows.choose(self._value("a", leaf), self._value("b" if known else "", leaf))

    def _value(self, side: str, leaf: Leaf) -> Expression:
        column = self._rows.plan.schema.columns[leaf.ordinal]
        there = side == "a" or (side == "b" and leaf.ordinal in self._rows.known)
        value = F.col(f"{side}{leaf.ordinal}") if there else _nothing(column)
        return typed_value(leaf.type, value, column.name, self._finish)


#: Arrow's name of a column's type in the log -> Spark's.
_LOGGED = {"bool": "boolean", "int16": "smallint", "int32": "int", "int64": "bigint"}


def _nothing(column: Column) -> Expression:
    return F.lit(None).cast(_LOGGED.get(column.physical, "string"))


def _op(rows: Rows) -> Expression:
    return rows.choose(upsert_op(), F.lit("d"))


def _before_json(rows: Rows) -> Expression:
    shown = rows.choose(joined(before_json(rows, "a")), joined(before_json(rows, "b")))
    return F.when(shown != "null", shown)


_ORIGINS: dict[Origin, Callable[[Rows], Expression]] = {
    Origin.STAMP: lambda rows: commit_time(),
    Origin.OP: _op,
    Origin.NOW: lambda rows: F.col(NOW).cast("long"),
    Origin.WALL: lambda rows: F.col("wall").cast("long"),
    Origin.BEFORE_JSON: _before_json,
}
