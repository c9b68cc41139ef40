"""A copy of tables, made of what a source delivers: rows of a scan, then changes of the log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from changefeed.core.clock import Timestamp
from changefeed.core.events import ChangeBatch, Truncate
from changefeed.core.schema import KeyRange, TableSchema
from changefeed.sources.base import KeySet, Snapshot
from changefeed_testing.sources.reader import State

#: A row as column names and log values.
Row = Mapping[str, Any]


def scan(
    snapshot: Snapshot,
    schema: TableSchema,
    *,
    part_bytes: int = 64 << 20,
    keys: KeyRange | KeySet | None = None,
) -> list[dict[str, Any]]:
    """All rows of a table under a snapshot."""
    found: list[dict[str, Any]] = []
    for part in snapshot.parts(schema, part_bytes, keys=keys):
        for batch in part.read():
            assert batch.schema.names == [f"a{i}" for i in range(len(schema.columns))]
            found += rows_of(batch, schema)
    return found


def rows_of(batch: pa.RecordBatch, schema: TableSchema) -> list[dict[str, Any]]:
    """The rows of a batch of a scan."""
    columns = [values.to_pylist() for values in batch.columns]
    names = [column.name for column in schema.columns]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


class Copy:
    """One table: rows by key, or the number of equal rows if the table has no key."""

    def __init__(self, schema: TableSchema, rows: Iterable[Row] = ()) -> None:
        self._key = [column.name for column in schema.key_columns]
        self._keyless = schema.keyless
        self._table = schema.table
        self._rows: Counter[tuple[Any, ...]] = Counter()
        self._values: dict[tuple[Any, ...], Row] = {}
        self.put(rows)

    def put(self, rows: Iterable[Row]) -> None:
        """Take rows of a scan."""
        for row in rows:
            self._put(row)

    def apply(self, state: State, after: Timestamp) -> None:
        """Apply the changes of the table above ``after``."""
        changes = iter(state.logged(self._table.name))
        truncated = [
            event
            for event in state.events
            if isinstance(event, Truncate) and event.schema.table == self._table
        ]
        steps: list[tuple[int, Any]] = [(event.seq, event) for event in truncated]
        steps += [(change.seq, change) for change in changes]
        for _, step in sorted(steps, key=lambda each: each[0]):
            if step.at <= after:
                continue
            if isinstance(step, Truncate):
                self._rows.clear()
                self._values.clear()
                continue
            if step.op == "d" or (step.op == "u" and self._keyless):
                self._remove(step.before)
            if step.op != "d":
                self._put(step.after)

    def rows(self) -> list[Row]:
        """All rows, each as often as the table has it, sorted."""
        found = [self._values[key] for key, count in self._rows.items() for _ in range(count)]
        return sorted(found, key=repr)

    def _place(self, row: Row) -> tuple[Any, ...]:
        return tuple(row[name] for name in self._key)

    def _put(self, row: Row) -> None:
        place = self._place(row)
        self._rows[place] = self._rows[place] + 1 if self._keyless else 1
        self._values[place] = dict(row)

    def _remove(self, row: Row) -> None:
        place = self._place(row)
        assert not self._keyless or self._rows[place], f"{row} was not in the table"
        self._rows[place] -= 1
        if self._rows[place] <= 0:
            del self._rows[place]


def at_or_below(state: State, position: str) -> Timestamp:
    """The log timestamp of a place in the source's log."""
    known = [at for at, place in state.positions().items() if place <= position]
    return max(known, default=Timestamp.ZERO)


def batches(state: State, table: str) -> list[ChangeBatch]:
    """The batches of one table."""
    return [
        event
        for event in state.events
        if isinstance(event, ChangeBatch) and event.schema.table.name == table
    ]
