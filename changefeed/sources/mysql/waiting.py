"""Row events that wait until their transactions are complete, and their rows decoded together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from changefeed.core.errors import ChangefeedError
from changefeed.core.internal_errors import raised_at
from changefeed.core.schema import TableName, TableSchema
from changefeed.sources.decoded.rows import DecodedRows
from changefeed.sources.decoded.spans import Places
from changefeed.sources.decoded.stored import StoredRows
from changefeed.sources.mysql.binlog import Misfit
from changefeed.sources.mysql.decode import (
    SMALL_BYTES,
    PartialImages,
    PartialRows,
    RowEvents,
    decode,
)
from changefeed.sources.mysql.tablemap import Charsets, TableShape
from changefeed.sources.mysql.walk import PADDING


@dataclass(frozen=True, slots=True)
class WatchedTable:
    """A table that is watched, in the shape of one table map.

    Attributes:
        shape: how the binlog has its rows.
        schema: how the log has them.
        heads: see :func:`changefeed.sources.mysql.decode.find_rows`.
        partial: which columns the rows have; None: all.
        parts: this table with rows that have only some columns: by operation, columns, and which
            defaults fill them.
        problem: why its rows cannot be read; none of them is.
    """

    shape: TableShape
    schema: TableSchema
    heads: dict[int, bytes] = field(default_factory=dict)
    partial: PartialRows | None = None
    parts: dict[tuple[int, PartialImages, str], WatchedTable] = field(default_factory=dict)
    problem: str = ""

    def with_schema(self, schema: TableSchema) -> WatchedTable:
        """The same rows in another version of the table."""
        return replace(self, schema=schema, parts={})


def unreadable(schema: TableSchema, problem: str) -> WatchedTable:
    """A table whose rows cannot be read."""
    return WatchedTable(TableShape("", "", ()), schema, problem=problem)


class LostRows(NamedTuple):
    """Rows of a table that cannot be read: the last of their events, and why."""

    schema: TableSchema
    event: int
    problem: str


class DecodedEvents(NamedTuple):
    """Rows of events that waited.

    Attributes:
        parts: by table.
        rows: how many there are.
        first: for each event the number of its first row.
        lost: tables of which there are none, because some could not be read.
    """

    parts: list[StoredRows]
    rows: int
    first: Places
    lost: list[LostRows]


class PendingEvents:
    """Row events that wait to be decoded, with their rows in one buffer."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.tables: list[WatchedTable] = []
        self.numbers: dict[int, int] = {}
        self.table: list[int] = []
        self.operation: list[int] = []
        self.starts: list[int] = []
        self.ends: list[int] = []

    def __len__(self) -> int:
        return len(self.starts)

    def add(
        self, table: WatchedTable, operation: int, data: bytes | bytearray, start: int, end: int
    ) -> None:
        """The rows of one event."""
        number = self.numbers.get(id(table))
        if number is None:
            number = self.numbers[id(table)] = len(self.tables)
            self.tables.append(table)
        self.starts.append(len(self.data))
        self.data += data[start:end]
        self.ends.append(len(self.data))
        self.table.append(number)
        self.operation.append(operation)

    def split(self, first: int) -> PendingEvents:
        """Take out the events from ``first`` on."""
        tail = PendingEvents()
        for i in range(first, len(self)):
            table = self.tables[self.table[i]]
            tail.add(table, self.operation[i], self.data, self.starts[i], self.ends[i])
        if first < len(self):
            del self.data[self.starts[first] :]
        for column in (self.table, self.operation, self.starts, self.ends):
            del column[first:]
        return tail

    def schemas(self, first: int = 0) -> list[TableSchema]:
        """Of the tables with events from ``first`` on."""
        return [self.tables[number].schema for number in dict.fromkeys(self.table[first:])]

    def adopt(self, schema: TableSchema, first: int) -> None:
        """Let the rows of a table, from the event ``first`` on, have this version of it."""
        taken: dict[int, int] = {}
        for i in range(first, len(self)):
            table = self.tables[self.table[i]]
            if table.schema.table != schema.table or table.schema is schema:
                continue
            if self.table[i] not in taken:
                taken[self.table[i]] = len(self.tables)
                # It is known by its number alone: no event to come is of it.
                self.tables.append(table.with_schema(schema))
            self.table[i] = taken[self.table[i]]

    def lose(self, schema: TableSchema, problem: str) -> None:
        """One event whose rows cannot be read."""
        self.add(unreadable(schema, problem), 0, b"", 0, 0)

    def decoded(self, charsets: Charsets, small: int = SMALL_BYTES) -> DecodedEvents:
        """The rows of all events. What is wrong with the rows of one table is no matter of the
        others."""
        self.data.extend(bytes(PADDING))
        table = np.array(self.table, np.intp)
        operation = np.array(self.operation, np.intp)
        starts, ends = np.array(self.starts, np.intp), np.array(self.ends, np.intp)
        width = np.zeros(len(starts) + 1, np.intp)
        found: dict[TableName, list[tuple[TableSchema, DecodedRows]]] = {}
        problems: dict[TableName, str] = {}
        last: dict[TableName, int] = {}
        for number, described in enumerate(self.tables):
            at = np.flatnonzero(table == number)
            if not len(at):
                continue
            schema, name = described.schema, described.schema.table
            last[name] = max(int(at[-1]), last.get(name, 0))
            if described.problem:
                problems.setdefault(name, described.problem)
            if name in problems:
                continue
            events = RowEvents(at, operation[at], starts[at], ends[at])
            try:
                rows = decode(
                    self.data, events, described.shape, schema, charsets,
                    partial=described.partial, small=small,
                )  # fmt: skip
            except MemoryError:
                raise
            except Exception as failure:  # whatever it is, the other tables go on
                problems[name] = problem_of(failure)
                continue
            versions = found.setdefault(name, [])
            versions.append((schema, rows))
            if versions[0][0] is not schema:
                problems[name] = "the table changes its shape within a transaction"
        lost = [
            LostRows(next(t.schema for t in self.tables if t.schema.table == name), last[name], why)
            for name, why in problems.items()
        ]
        decoded = []
        for name, versions in found.items():
            for schema, rows in versions if name not in problems else ():
                counts = np.bincount(rows.message, minlength=len(starts))
                width[:-1] += counts
                decoded.append((schema, rows, counts))
        first = np.cumsum(width) - width
        parts = []
        for schema, rows, counts in decoded:
            # Rows of other tables before an event move the numbers of its rows on.
            shift = first[:-1] - (np.cumsum(counts) - counts)
            places = np.arange(len(rows)) + shift[rows.message]
            parts.append(StoredRows(schema, rows, places.astype(np.int64)))
        return DecodedEvents(_together(parts), int(width.sum()), first, lost)


def problem_of(failure: Exception) -> str:
    """Why rows cannot be read, in words for users."""
    if isinstance(failure, Misfit):
        return f"its rows cannot be read: {failure.what}"
    if not isinstance(failure, ChangefeedError):
        return f"its rows cannot be read: {type(failure).__name__} at {raised_at(failure)}"
    own = failure.hint != failure.code.hint
    return f"{failure.message}; {failure.hint}" if own else failure.message


def _together(parts: list[StoredRows]) -> list[StoredRows]:
    """Parts of one table under several table numbers (it was opened again) as one: the writes of
    a key must be seen together."""
    names = [part.schema.table for part in parts]
    if len(set(names)) == len(names):
        return parts
    found: dict[TableName, list[StoredRows]] = {}
    for part in parts:
        found.setdefault(part.schema.table, []).append(part)
    return [some[0] if len(some) == 1 else _merged(some) for some in found.values()]


def _merged(parts: list[StoredRows]) -> StoredRows:
    schema = parts[0].schema
    number = np.concatenate([part.number for part in parts])
    order = np.argsort(number, kind="stable")
    at = pa.array(order)
    all_rows = [part.rows for part in parts]

    def columns(of: Callable[[DecodedRows], list[pa.Array]]) -> list[pa.Array]:
        pieces = zip(*(of(rows) for rows in all_rows), strict=True)
        return [pa.concat_arrays(list(some)).take(at) for some in pieces]

    unsent = sorted({column for rows in all_rows for column in rows.unchanged})
    merged = DecodedRows(
        np.concatenate([rows.message for rows in all_rows])[order],
        np.concatenate([rows.op for rows in all_rows])[order],
        columns(lambda rows: rows.after),
        columns(lambda rows: rows.before),
        columns(lambda rows: rows.key),
        {
            column: np.concatenate(
                [rows.unchanged.get(column, np.zeros(len(rows), np.bool_)) for rows in all_rows]
            )[order]
            for column in unsent
        },
    )
    return StoredRows(schema, merged, number[order])
