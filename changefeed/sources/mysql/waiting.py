"""Row events that wait until their transactions are complete, and their rows decoded together."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from changefeed.core.schema import TableName, TableSchema
from changefeed.sources.decoded.rows import DecodedRows
from changefeed.sources.decoded.spans import Places
from changefeed.sources.decoded.stored import StoredRows
from changefeed.sources.mysql.binlog import misfit
from changefeed.sources.mysql.decode import SMALL_BYTES, RowEvents, decode
from changefeed.sources.mysql.tablemap import Charsets, TableShape
from changefeed.sources.mysql.walk import PADDING


@dataclass(frozen=True, slots=True)
class WatchedTable:
    """A table that is watched, in the shape of one table map."""

    shape: TableShape
    schema: TableSchema
    heads: dict[int, bytes] = field(default_factory=dict)


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

    def decoded(
        self, charsets: Charsets, small: int = SMALL_BYTES
    ) -> tuple[list[StoredRows], int, Places]:
        """The rows by table, how many there are, and for each event the number of its first."""
        self.data.extend(bytes(PADDING))
        table = np.array(self.table, np.intp)
        operation = np.array(self.operation, np.intp)
        starts, ends = np.array(self.starts, np.intp), np.array(self.ends, np.intp)
        width = np.zeros(len(starts) + 1, np.intp)
        decoded = []
        for number, described in enumerate(self.tables):
            at = np.flatnonzero(table == number)
            if not len(at):
                continue
            events = RowEvents(at, operation[at], starts[at], ends[at])
            rows = decode(
                self.data, events, described.shape, described.schema, charsets,
                small=small,
            )  # fmt: skip
            width[:-1] += np.bincount(rows.message, minlength=len(starts))
            decoded.append((described.schema, rows))
        first = np.cumsum(width) - width
        parts = []
        for schema, rows in decoded:
            message = rows.message
            within = np.arange(len(message)) - np.searchsorted(message, message)
            parts.append(StoredRows(schema, rows, (first[message] + within).astype(np.int64)))
        return _together(parts), int(width.sum()), first


def _together(parts: list[StoredRows]) -> list[StoredRows]:
    """Parts of one table under several table numbers (it was opened again) as one: the writes of
    a key must be seen together."""
    names = [part.schema.table for part in parts]
    if len(set(names)) == len(names):
        return parts
    found: dict[TableName, StoredRows] = {}
    for part in parts:
        known = found.get(part.schema.table)
        found[part.schema.table] = part if known is None else _merged(known, part)
    return list(found.values())


def _merged(one: StoredRows, other: StoredRows) -> StoredRows:
    if one.schema is not other.schema:
        raise misfit("a table that changes its shape within a transaction")
    number = np.concatenate([one.number, other.number])
    order = np.argsort(number, kind="stable")
    at = pa.array(order)

    def column(a: pa.Array, b: pa.Array) -> pa.Array:
        return pa.concat_arrays([a, b]).take(at)

    a, b = one.rows, other.rows
    rows = DecodedRows(
        np.concatenate([a.message, b.message])[order],
        np.concatenate([a.op, b.op])[order],
        [column(x, y) for x, y in zip(a.after, b.after, strict=True)],
        [column(x, y) for x, y in zip(a.before, b.before, strict=True)],
        [column(x, y) for x, y in zip(a.key, b.key, strict=True)],
    )
    return StoredRows(other.schema, rows, number[order])
