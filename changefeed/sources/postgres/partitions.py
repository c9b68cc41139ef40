"""One partition of a partitioned table: its bounds as conditions on columns of the table.

The catalog keeps a bound as an expression tree; ``pg_get_expr`` prints it as in CREATE TABLE
(https://www.postgresql.org/docs/current/sql-createtable.html, partition_bound_spec), values as
the session prints them, so they become log values like any others::

    FOR VALUES FROM ('2026-01-01', MINVALUE) TO ('2026-02-01', MINVALUE)
    FOR VALUES IN ('new', 'paid', NULL)

What cannot be known from a row of the stream is refused: a HASH partition, a DEFAULT one (what
it holds changes with every partition made), and an order we do not have (texts of a collation
other than C, enums).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.partition import KeyInterval, Members, Partition, PartitionCondition
from changefeed.core.schema import Column, TableSchema
from changefeed.core.types import FLOATS, ORDERED, Kind
from changefeed.sources.base import PartitionInfo
from changefeed.sources.postgres.connect import PsycopgConnection
from changefeed.sources.postgres.values import text_value

_TREE = """
    SELECT l.oid::int8, l.relname, n.nspname = %(schema)s
    FROM pg_catalog.pg_partition_tree(%(oid)s::oid) t
    JOIN pg_catalog.pg_class l ON l.oid = t.relid
    JOIN pg_catalog.pg_namespace n ON n.oid = l.relnamespace
    WHERE t.level > 0
    ORDER BY 3 DESC, 2
"""

# Each level from the partition up: its bound, and what its parent is partitioned by. Column
# numbers differ between parent and root, names do not.
_LEVELS = """
    SELECT child.relname, pg_catalog.pg_get_expr(child.relpartbound, child.oid),
           p.partstrat::text,
           ARRAY(SELECT a.attname::text
                 FROM unnest(p.partattrs::int2[]) WITH ORDINALITY AS k(number, place)
                 LEFT JOIN pg_catalog.pg_attribute a
                   ON a.attrelid = p.partrelid AND a.attnum = k.number AND k.number > 0
                 ORDER BY k.place),
           ARRAY(SELECT coalesce(CASE WHEN co.collname = 'default' THEN d.datcollate
                                      ELSE co.collname::text END IN ('C', 'POSIX'), true)
                 FROM unnest(p.partcollation::oid[]) WITH ORDINALITY AS k(coll, place)
                 LEFT JOIN pg_catalog.pg_collation co ON co.oid = k.coll
                 ORDER BY k.place),
           (SELECT bool_and(o.opcdefault) FROM unnest(p.partclass::oid[]) AS k(opclass)
            JOIN pg_catalog.pg_opclass o ON o.oid = k.opclass)
           AND NOT EXISTS (SELECT 1 FROM unnest(p.partcollation::oid[]) AS k(coll)
            JOIN pg_catalog.pg_collation co ON co.oid = k.coll
            WHERE NOT co.collisdeterministic)
    FROM pg_catalog.pg_partition_ancestors(%s::oid) WITH ORDINALITY AS up(relid, level)
    JOIN pg_catalog.pg_class child ON child.oid = up.relid
    JOIN pg_catalog.pg_inherits i ON i.inhrelid = child.oid
    JOIN pg_catalog.pg_partitioned_table p ON p.partrelid = i.inhparent
    JOIN pg_catalog.pg_database d ON d.datname = current_database()
    WHERE child.relispartition
    ORDER BY up.level DESC
"""

# Statistics are of the last ANALYZE; a leaf that was never analysed counts as no rows.
_SIZE = """
    SELECT coalesce(sum(greatest(l.reltuples, 0)), 0)::int8,
           coalesce(sum(pg_catalog.pg_table_size(l.oid)), 0)::int8
    FROM pg_catalog.pg_partition_tree(%s::oid) t
    JOIN pg_catalog.pg_class l ON l.oid = t.relid
    WHERE t.isleaf
"""


def find(connection: PsycopgConnection, table: TableSchema, name: str) -> PartitionInfo:
    """The partition ``name`` of ``table``, at any level below it.

    Raises:
        ChangefeedError: CF1101 there is none (with a suggestion), CF1303 its rows cannot be
            distinguished from those of others.
    """
    oid = oid_of(connection, table, name)
    rows, size = connection.execute(_SIZE, [oid]).fetchone() or (0, 0)
    return PartitionInfo(read(connection, table, oid, name), rows, size)


def names(connection: PsycopgConnection, table: TableSchema) -> list[str]:
    """The partitions of a table at every level below it; none of a table without partitions."""
    asked = {"oid": table.table_id, "schema": table.table.schema}
    return [str(name) for _, name, _ in connection.execute(_TREE, asked).fetchall()]


def oid_of(connection: PsycopgConnection, table: TableSchema, name: str) -> int:
    """Which relation the partition is.

    Raises:
        ChangefeedError: CF1101 there is none.
    """
    below = connection.execute(
        _TREE, {"oid": table.table_id, "schema": table.table.schema}
    ).fetchall()
    for oid, found, _ in below:
        if found == name:
            return int(oid)
    shown = f"{table.table.schema}.{table.table.name}"
    if not below:
        raise ChangefeedError(
            Code.NAME_UNKNOWN,
            f"table {shown} has no partitions",
            hint="watch the whole table, or a range of its key with VALUES FROM .. TO ..",
        )
    names = [found for _, found, _ in below]
    near = difflib.get_close_matches(name, names, n=1)
    raise ChangefeedError(
        Code.NAME_UNKNOWN,
        f'table {shown} has no partition "{name}"',
        hint=f'did you mean "{near[0]}"?' if near else f"it has: {', '.join(names[:20])}.",
    )


def read(connection: PsycopgConnection, table: TableSchema, oid: int, name: str) -> Partition:
    """What the rows of the partition ``oid`` have in common.

    Raises:
        ChangefeedError: CF1303 their columns do not say it.
    """
    columns = {column.name: column for column in table.columns}
    conditions: list[PartitionCondition] = []
    for child, bound, strategy, names, plain, usual in connection.execute(_LEVELS, [oid]):
        level = _Level(child, bound, tuple(columns.get(n) for n in names), tuple(plain))
        if not usual:
            raise level.refused("its collation or operator class has an order of its own")
        conditions += level.conditions(strategy)
    return Partition(name, tuple(conditions))


@dataclass(frozen=True, slots=True)
class _Level:
    """One bound. ``columns``: what its parent is partitioned by, None for an expression;
    ``plain``: whether that column's texts are in the order of their bytes."""

    name: str
    bound: str
    columns: tuple[Column | None, ...]
    plain: tuple[bool, ...]

    def refused(self, reason: str) -> ChangefeedError:
        return ChangefeedError(
            Code.NOT_SUPPORTED,
            f"partition {self.name} cannot be watched by itself: {reason}",
            detail=self.bound,
            hint="watch the whole table, or a range of its key with VALUES FROM .. TO ..",
        )

    def conditions(self, strategy: str) -> list[PartitionCondition]:
        if self.bound == "DEFAULT":
            raise self.refused("what a DEFAULT partition holds changes with the others")
        columns = [column for column in self.columns if column is not None]
        if len(columns) < len(self.columns):
            raise self.refused("its table is partitioned by an expression")
        if strategy == "l":
            return [self._members(columns[0])]
        if strategy == "r":
            return [self._interval(columns)]
        raise self.refused("a row does not show its HASH partition")

    def _members(self, column: Column) -> Members:
        if column.kind in FLOATS:
            raise self.refused(f"values of type {column.type_name} are not compared here")
        (texts,) = _tuples(self.bound)
        return Members(
            column.column_id, tuple(None if t is None else _value(column, t) for t in texts)
        )

    def _interval(self, columns: Sequence[Column]) -> KeyInterval:
        for column, plain in zip(columns, self.plain, strict=True):
            if column.kind not in ORDERED or (column.kind is Kind.TEXT and not _byte_order(column)):
                raise self.refused(f"values of type {column.type_name} are not ordered here")
            if column.kind is Kind.TEXT and not plain:
                raise self.refused(f"texts of {column.name} have another collation than C")
        low, high = (_prefix(columns, texts) for texts in _tuples(self.bound))
        return KeyInterval(
            tuple(column.column_id for column in columns),
            low[0],
            high[0],
            low_excluded=low[1] == "MAXVALUE",
            high_included=high[1] == "MAXVALUE",
        )


def _byte_order(column: Column) -> bool:
    """Text itself: an enum sorts by its declaration, citext without case."""
    return column.type_name.partition("(")[0] in ("text", "character varying")


_END = ("MINVALUE", "MAXVALUE")
_LIST = re.compile(r"\(((?:[^()']|'(?:[^']|'')*')*)\)")
_ITEM = re.compile(r"'((?:[^']|'')*)'|([^\s,()']+)")


@dataclass(frozen=True, slots=True)
class _Word:
    """A bare word of a bound: a number, ``true``, ``MINVALUE``."""

    text: str


def _tuples(bound: str) -> list[list[str | _Word | None]]:
    """The lists of a bound; None is NULL.

    >>> _tuples("FOR VALUES FROM ('it''s', MINVALUE) TO (7, NULL)")
    [["it's", _Word(text='MINVALUE')], [_Word(text='7'), None]]
    """
    return [
        [
            None if word == "NULL" else (_Word(word) if word else quoted.replace("''", "'"))
            for quoted, word in _ITEM.findall(inner)
        ]
        for inner in _LIST.findall(bound)
    ]


def _prefix(
    columns: Sequence[Column], texts: Sequence[str | _Word | None]
) -> tuple[tuple[str, ...], str]:
    """The values before the first MINVALUE or MAXVALUE, and which of them it is (or nothing)."""
    values: list[str] = []
    for column, text in zip(columns, texts, strict=True):
        if isinstance(text, _Word) and text.text in _END:
            return tuple(values), text.text
        if text is not None:
            values.append(_value(column, text))
    return tuple(values), ""


def _value(column: Column, text: str | _Word) -> str:
    plain = text.text if isinstance(text, _Word) else text
    if column.physical == "bool":
        return "true" if plain in ("t", "true") else "false"
    return str(text_value(column, plain))
