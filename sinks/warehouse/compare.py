"""How a target table differs from the source: both sides compared by the warehouse itself.

The source's rows are loaded into a table beside the target and go through the very expressions
that a merge uses, so each value is compared in the target's type: what a merge would have written
is equal. The table is of this comparison alone and is dropped at its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar
from uuid import uuid4

import pyarrow as pa

from changefeed.core.clock import SYSTEM_CLOCK, Clock
from changefeed.core.errors import Action, ChangefeedError
from changefeed.core.schema import KeyRange
from changefeed.options import History
from sinks.base import Difference
from sinks.differences import DifferenceText, unequal_counts
from sinks.merged.history import IS_CURRENT
from sinks.warehouse.dialect import SqlStatement, Warehouse
from sinks.warehouse.staging import TargetShape, check_values
from sinks.warehouse.strategy import is_deleted, ours
from sinks.warehouse.tables import TargetTable

#: How long another program may hold the target (a file) before the comparison gives up, seconds.
PATIENCE = 60.0
_PAUSE = 0.25
_BATCH = 1

T = TypeVar("T")


def held(warehouse: Warehouse, clock: Clock, work: Callable[[], T]) -> T:
    """Do something while the target is held, and let go of it: the feed needs it, too.

    Raises:
        ChangefeedError: CF5001, the target is away, or in another program's hands for longer than
            :data:`PATIENCE`.
    """
    deadline = clock.monotonic() + PATIENCE
    while True:
        try:
            warehouse.connect(make=False)
            break
        except ChangefeedError as error:
            if error.action is not Action.RETRY or clock.monotonic() > deadline:
                raise
            clock.sleep(_PAUSE)
    try:
        return work()
    finally:
        warehouse.rest()


class Comparison:
    """Compares one target table with rows of the source."""

    def __init__(
        self,
        warehouse: Warehouse,
        table: TargetTable,
        shape: TargetShape,
        readable: str,
        clock: Clock = SYSTEM_CLOCK,
        part: KeyRange | None = None,
    ) -> None:
        """
        Args:
            warehouse, table, shape: the target.
            readable: the finished name of the table or view that shows its rows.
            clock: for how long another program may hold the target.
            part: the rows that are compared; None: all.

        Raises:
            ChangefeedError: CF1303 the target cannot be compared.
        """
        table.policy.require_comparable(shape.schema)
        self._warehouse = warehouse
        self._clock = clock
        self._table = table
        self._shape = shape
        self._readable = readable
        self._part = part
        self._text = DifferenceText(shape.schema)
        #: Of this comparison alone: nobody else's table can have the name.
        self._name = f"_verify_{uuid4().hex}"

    def run(self, rows: Iterable[pa.Table], limit: int) -> list[Difference]:
        """The differences, at most ``limit``."""
        self._held(self._make)
        try:
            for batch in rows:
                self._load(batch)
            return self._held(lambda: self._differences(limit))
        finally:
            self._held(self._drop)

    # ------------------------------------------------------------------ the source's rows

    def _make(self) -> None:
        d = self._warehouse.dialect
        name = self._warehouse.name(self._name)
        create = d.create_staging(name, self._shape.staging_columns(d))
        self._warehouse.run([SqlStatement(create, self._shape.topic)])

    def _drop(self) -> None:
        gone = self._warehouse.dialect.drop_table(self._warehouse.name(self._name))
        self._warehouse.run([SqlStatement(gone, self._shape.topic)])

    def _load(self, batch: pa.Table) -> None:
        staged = self._shape.staged(batch, _BATCH)
        check_values(self._shape, staged, self._warehouse.dialect)
        if staged.num_rows:
            self._held(lambda: self._warehouse.load(self._name, staged, uuid4().hex))

    def _held(self, work: Callable[[], T]) -> T:
        return held(self._warehouse, self._clock, work)

    # ------------------------------------------------------------------ comparing

    def _differences(self, limit: int) -> list[Difference]:
        if self._shape.keyless:
            return self._counted_differences(limit)
        found = [self._difference(row) for row in self._query(self._wanting(limit))]
        if len(found) < limit:
            extra = self._query(self._extra(limit - len(found)))
            found += [self._text.extra(row) for row in extra]
        return found

    def _difference(self, row: Sequence[object]) -> Difference:
        count = len(self._shape.names)
        missing, source, target = row[0], row[1 : count + 1], row[count + 1 :]
        return self._text.missing(source) if missing else self._text.changed(source, target)

    def _source(self) -> str:
        """SELECT of the source's rows in the target's types."""
        d, shape = self._warehouse.dialect, self._shape
        columns = [
            d.rule(c, key=not shape.keyless and i in shape.schema.key).of(f"s.{d.quote(c.name)}")
            + f" AS {d.quote(c.name)}"
            for i, c in enumerate(shape.columns)
        ]
        return f"(SELECT {', '.join(columns)} FROM {self._warehouse.name(self._name)} AS s)"

    def _target(self) -> str:
        """SELECT of the feed's rows that are in the target now."""
        d, table, policy = self._warehouse.dialect, self._table, self._table.policy
        sql = f"SELECT {', '.join(map(d.quote, self._shape.names))} FROM {self._readable}"
        sql += f" WHERE {ours(table, self._shape)}"
        if policy.history is History.SCD2:
            sql += f" AND {d.quote(IS_CURRENT)}"
        elif policy.soft:
            sql += f" AND NOT {is_deleted(table)}"
        among = "" if self._part is None else self._among(self._part)
        return f"({sql} AND {among})" if among else f"({sql})"

    def _among(self, part: KeyRange) -> str:
        """The condition of a part of the target; text is compared by code point."""
        d, columns = self._warehouse.dialect, self._shape.schema.key_columns

        def value(place: int, text: str) -> str:
            column = columns[place]
            staged = d.literal(text) if column.physical == "string" else text
            return d.ordered(d.rule(column, key=True).of(staged), column)

        names = zip(map(d.quote, self._shape.key), columns, strict=True)
        return part.sql([d.ordered(name, column) for name, column in names], value)

    def _wanting(self, limit: int) -> str:
        """Rows of the source that the target lacks or has otherwise."""
        d, shape = self._warehouse.dialect, self._shape
        first = d.quote(shape.key[0])
        rest = [name for name in shape.names if name not in shape.key]
        differ = f" OR NOT ({d.same_row(rest, 'd', 't')})" if rest else ""
        lacks = f"t.{first} IS NULL"
        listed = [f"CASE WHEN {lacks} THEN 1 ELSE 0 END", *self._texts("d"), *self._texts("t")]
        return (
            f"SELECT {', '.join(listed)} FROM {self._source()} AS d "
            f"LEFT JOIN {self._target()} AS t ON {d.same(shape.key, 'd', 't')} "
            f"WHERE {lacks}{differ} ORDER BY {self._by_key('d')} LIMIT {limit}"
        )

    def _extra(self, limit: int) -> str:
        """Rows of the target that the source lacks."""
        d, shape = self._warehouse.dialect, self._shape
        return (
            f"SELECT {', '.join(self._texts('t'))} FROM {self._target()} AS t "
            f"LEFT JOIN {self._source()} AS d ON {d.same(shape.key, 'd', 't')} "
            f"WHERE d.{d.quote(shape.key[0])} IS NULL ORDER BY {self._by_key('t')} LIMIT {limit}"
        )

    def _query(self, sql: str) -> Sequence[Sequence[object]]:
        return self._warehouse.query(sql + self._warehouse.dialect.outer_joins)

    def _counted_differences(self, limit: int) -> list[Difference]:
        """Equal rows of a table without a key are counted on both sides."""
        d, names = self._warehouse.dialect, self._shape.names
        columns, distinct = list(map(d.quote, names)), d.distinct(names, "b")
        texts = self._texts("l")
        sql = unequal_counts(self._source(), self._target(), columns, distinct, texts, limit)
        rows = self._warehouse.query(sql)
        return [self._text.count(row[2:], int(str(row[0])), int(str(row[1]))) for row in rows]

    # ------------------------------------------------------------------ parts of queries

    def _texts(self, alias: str) -> list[str]:
        d, shape = self._warehouse.dialect, self._shape
        keys = () if shape.keyless else shape.schema.key
        return [
            d.text_of(f"{alias}.{d.quote(c.name)}", d.rule(c, key=i in keys))
            for i, c in enumerate(shape.columns)
        ]

    def _by_key(self, alias: str) -> str:
        return ", ".join(f"{alias}.{self._warehouse.dialect.quote(c)}" for c in self._shape.key)
