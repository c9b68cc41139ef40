"""Ranges of keys: what a feed watches of a table, and how a table is cut for parallel reading."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.schema import Column, KeyRange, TableSchema
from changefeed.core.sql import quoted
from changefeed.core.types import DATES, FLOATS, INTEGERS, Kind
from changefeed.sources.base import WHOLE_LOOKS, KeySet, leading
from changefeed.sources.mysql.session import MySQLSession, literal
from changefeed.sources.mysql.types import UNSIGNED_LONG

#: A table is never cut into more parts than this.
MOST_PARTS = 1_000

_ALL = KeyRange()

#: A row takes at least so many bytes, with what InnoDB adds to each.
_LEAST_ROW = 32


def split(
    session: MySQLSession, table: TableSchema, rows: int, size: int, target_bytes: int
) -> list[tuple[str, ...]]:
    """Bounds of the key that cut a table into parts, in order.

    Only whole numbers are cut: evenly between the smallest and the largest, so that gaps make
    parts of different sizes. Every other table is one part.
    """
    # The server knows the rows of now, but the size of its last ANALYZE.
    size = max(size, rows * _LEAST_ROW)
    wanted = min(MOST_PARTS, -(-size // max(target_bytes, 1)))
    first = table.columns[table.key[0]]
    if table.keyless or wanted < 2 or not _is_whole(first):
        return []
    name = quoted(first.name)
    place = f"{quoted(table.table.schema)}.{quoted(table.table.name)}"
    low, high = session.rows(f"SELECT min({name}), max({name}) FROM {place}")[0]
    if low is None:
        return []
    low, high = int(low), int(high)
    # Twice as many as asked for: gaps in the keys leave some nearly empty.
    count = min(2 * wanted, MOST_PARTS, high - low + 1)
    bounds = sorted({low + (high - low + 1) * i // count for i in range(1, count)})
    return [(str(bound),) for bound in bounds]


def between(bounds: Sequence[tuple[str, ...]], limits: KeyRange = _ALL) -> list[KeyRange]:
    """The ranges between bounds of :func:`split`, as far as they are within the limits, whose
    bounds are of this kind, too."""
    low, high = ((int(at[0]) if at else None) for at in (limits.low, limits.high))
    inside = [
        bound
        for bound in bounds
        if (low is None or int(bound[0]) > low) and (high is None or int(bound[0]) < high)
    ]
    edges = [limits.low, *inside, limits.high]
    return [KeyRange(*pair) for pair in itertools.pairwise(edges)]


def cut(table: TableSchema, keys: KeyRange) -> str:
    """The condition of a range of :func:`between`, of which the index of the key makes use."""
    name = quoted(table.columns[table.key[0]].name)
    return " AND ".join(
        f"{name} {operator} {bound[0]}"
        for operator, bound in ((">=", keys.low), ("<", keys.high))
        if bound
    )


def _is_whole(column: Column) -> bool:
    return column.kind in INTEGERS or column.logical == UNSIGNED_LONG


def _by_index(column: Column) -> bool:
    return _is_whole(column) or column.kind is Kind.DATE


def range_columns(table: TableSchema) -> int:
    """See :meth:`changefeed.sources.base.Source.range_columns`."""
    return leading(
        table.key_columns, _by_index, lambda c: _by_index(c) or c.kind in (Kind.TEXT, Kind.UUID)
    )


def key_after(
    session: MySQLSession, table: TableSchema, low: tuple[str, ...] | None, rows: int
) -> tuple[str, ...] | None:
    """See :meth:`changefeed.sources.base.Source.key_after`."""
    columns = table.key_columns[: range_columns(table)]
    name = table.table
    if not _by_index(columns[0]):
        known = session.value(
            "SELECT TABLE_ROWS FROM information_schema.TABLES "
            f"WHERE TABLE_SCHEMA = {literal(name.schema)} AND TABLE_NAME = {literal(name.name)}"
        )
        rows = max(rows, int(known or 0) // WHOLE_LOOKS)
    listed = ", ".join(quoted(c.name) for c in columns)
    order = ", ".join(map(_comparable, columns))

    def look(where: str, offset: int) -> tuple[str, ...] | None:
        found = session.rows(
            f"SELECT {listed} FROM {quoted(name.schema)}.{quoted(name.name)} WHERE {where} "
            f"ORDER BY {order} LIMIT {offset}, 1"
        )
        return tuple(map(str, found[0])) if found else None

    at = look(in_range(table, KeyRange(low)) or "TRUE", rows)
    if at is None or at != low:
        return at
    # So many rows have these values.
    same = " AND ".join(
        f"{_comparable(c)} = {_value(c, text)}" for c, text in zip(columns, low, strict=True)
    )
    return look(f"{in_range(table, KeyRange(low))} AND NOT ({same})", 0)


def in_range(table: TableSchema, keys: KeyRange | None) -> str:
    """The condition of a range of keys; empty for all rows."""
    if keys is None:
        return ""
    columns = table.key_columns
    return keys.sql([_comparable(c) for c in columns], lambda i, text: _value(columns[i], text))


#: Types whose values in the log are what :func:`one_of` finds the rows by.
_FOUND_BY_VALUE = INTEGERS | {Kind.TEXT, Kind.UUID, Kind.DATE}


def reads_keys(table: TableSchema) -> bool:
    """See :meth:`changefeed.sources.base.Source.reads_keys`."""
    return not table.keyless and all(c.kind in _FOUND_BY_VALUE for c in table.key_columns)


def one_of(table: TableSchema, keys: KeySet) -> str:
    """The condition of a set of keys. Numbers and dates are found by the index; text compares by
    code point, for which the server reads the whole table."""
    columns = [(c, _comparable(c)) for c in table.key_columns]
    rows = [
        " AND ".join(
            f"{term} = {value if isinstance(value, int) else _value(column, str(value))}"
            for (column, term), value in zip(columns, key, strict=True)
        )
        for key in keys.keys
    ]
    return "(" + " OR ".join(f"({row})" for row in rows) + ")"


def _comparable(column: Column) -> str:
    """Text compares by code point, as the feed compares the keys of changes."""
    name = quoted(column.name)
    if column.kind in (Kind.TEXT, Kind.OTHER, Kind.UUID):
        return f"CAST(CONVERT({name} USING utf8mb4) AS BINARY)"
    return name


def _value(column: Column, text: str) -> str:
    if column.kind in (Kind.TEXT, Kind.OTHER, Kind.UUID):
        return f"CAST({literal(text)} AS BINARY)"
    if column.kind in INTEGERS or column.logical.precision:
        return f"CAST({literal(text)} AS DECIMAL(65,30))"
    if column.kind is Kind.BYTES:
        return f"UNHEX({literal(text.removeprefix(chr(92) + 'x'))})"
    if column.kind is Kind.BOOL:
        return "1" if text.lower() in ("t", "true", "1") else "0"
    if column.kind in DATES:
        return literal(text.replace("T", " ").removesuffix("Z"))
    return literal(text)


def range_problem(
    session: MySQLSession, table: TableSchema, keys: KeyRange
) -> ChangefeedError | None:
    """Why no row can have a key in the range: a bound that is no value, or the wrong order."""
    columns = table.key_columns
    for side, bound in (("FROM", keys.low), ("TO", keys.high)):
        for column, text in zip(columns, bound or (), strict=False):
            if not _is_value(session, column, text):
                return ChangefeedError(
                    Code.TARGET_NOT_WATCHABLE,
                    f"VALUES {side} ({text}) cannot be: {text} is no value of column "
                    f"{column.name}, which is {column.type_name}",
                )
    if keys.low is None or keys.high is None:
        return None
    shared = min(len(keys.low), len(keys.high))
    low, high = (
        ", ".join(_value(c, text) for c, text in zip(columns, bound[:shared], strict=False))
        for bound in (keys.low, keys.high)
    )
    below, equal = session.rows(f"SELECT ROW({low}) < ROW({high}), ROW({low}) = ROW({high})")[0]
    if below or (equal and len(keys.high) > len(keys.low)):
        return None
    return ChangefeedError(
        Code.TARGET_NOT_WATCHABLE,
        f"VALUES FROM ({', '.join(keys.low)}) TO ({', '.join(keys.high)}) holds no key: "
        "the first bound must be below the second, which is not part of the range",
    )


_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?")


def _is_value(session: MySQLSession, column: Column, text: str) -> bool:
    if _is_whole(column):
        return bool(_NUMBER.fullmatch(text)) and "." not in text
    if column.logical.precision or column.kind in FLOATS:
        return bool(_NUMBER.fullmatch(text))
    if column.kind in DATES:
        return session.value(f"SELECT CAST({_value(column, text)} AS DATETIME)") is not None
    return True
