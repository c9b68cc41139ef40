"""What a stream gives out: rows and events with their timestamps, numbers and positions.

They gather until a flush takes them. A commit gets ``last.at_least(commit time)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from changefeed.core.clock import Timestamp
from changefeed.core.events import (
    ChangeBatch,
    Commits,
    Ddl,
    Event,
    Flush,
    Frontier,
    Position,
    SchemaChange,
    Truncate,
)
from changefeed.core.schema import TableName, TableSchema
from changefeed.sources.decoded.rows import Operations
from changefeed.sources.decoded.spans import Places
from changefeed.sources.decoded.superseded import CollapsedRows


class RowCommit(Protocol):
    """What rows carry of their transaction."""

    @property
    def at(self) -> Timestamp:
        """Its timestamp in the log."""
        ...

    @property
    def xid(self) -> int:
        """Its number at the source."""
        ...

    @property
    def commit_us(self) -> int:
        """When it committed, in microseconds since 1970."""
        ...


class LogCommit(NamedTuple):
    """A transaction that is complete: what its rows carry, and the position behind it."""

    at: Timestamp
    xid: int
    commit_us: int
    position: Position


@dataclass(frozen=True, slots=True)
class ShapeChange:
    """A table has another shape, other values or other rows than before, or another name.

    ``others``: the shapes that readers of the log have of the table under names other than that of
    ``old``. The rest is as :class:`~changefeed.core.events.SchemaChange` describes it.
    """

    old: TableSchema
    new: TableSchema
    rewritten: bool
    others: tuple[TableSchema, ...] = ()
    moved: bool = False
    why: str = ""
    renamed: tuple[tuple[str, str], ...] = ()

    def event(self, at: Timestamp, seq: int, old: TableSchema | None = None) -> SchemaChange:
        """The event for readers that have the shape ``old``; None: :attr:`old`."""
        return SchemaChange(
            old or self.old,
            self.new,
            at,
            seq,
            self.rewritten,
            moved=self.moved,
            why=self.why,
            renamed=self.renamed,
        )


class FlushBuilder:
    """Gathers rows and events in the order of the log."""

    def __init__(self, start: Frontier) -> None:
        """``start``: everything up to there was given out before."""
        #: The newest timestamp given out, and the last number.
        self.last = start.at
        self.seq = start.seq
        self._events: list[Event] = []
        self._commits: list[LogCommit] = []
        #: The Arrow schema of each table, with the schema that it was made of.
        self._log_schemas: dict[TableName, tuple[TableSchema, pa.Schema]] = {}

    def reach(self, commit_us: int) -> None:
        """The transaction that is read next in commit order committed then."""
        self.last = self.last.at_least(commit_us * 1000)

    def pass_time(self, at_ns: int) -> None:
        """Everything that was committed at that time was read: nothing at or below it follows."""
        if at_ns > self.last.version:
            self.last = Timestamp(at_ns)

    def add_commit(self, commit: LogCommit) -> None:
        """Let the next flush report a commit."""
        self._commits.append(commit)

    def add(self, event: Event) -> None:
        """An event that has its number."""
        self._events.append(event)

    def change(self, change: ShapeChange, at: Timestamp) -> None:
        """A table looks different from here on."""
        for old in (change.old, *change.others):
            self.seq += 1
            self._events.append(change.event(at, self.seq, old))

    def define(
        self, table: TableName, kind: str, statement: str, position: Position, at: Timestamp
    ) -> None:
        """A statement of DDL of this kind defined a table."""
        self.seq += 1
        self._events.append(Ddl(table, kind, statement, position, at, self.seq))

    def truncate(self, schema: TableSchema, at: Timestamp) -> None:
        """A transaction removed all rows of a table."""
        self.seq += 1
        self._events.append(Truncate(schema, at, self.seq))

    def unreadable(self, schema: TableSchema, why: str, at: Timestamp) -> None:
        """A transaction changed rows of a table, and they cannot be read. ``why`` is for users."""
        self.seq += 1
        self._events.append(
            SchemaChange(schema, schema, at, self.seq, rewritten=True, unreadable=True, why=why)
        )

    def rows(
        self,
        schema: TableSchema,
        after: Sequence[pa.Array],
        marked: CollapsedRows,
        commits: Sequence[RowCommit],
        *,
        of: Places,
        number: Places,
        ordinal: Places,
        missing: pa.Array | None = None,
    ) -> None:
        """Rows of one table. The caller adds the numbers that they take to :attr:`seq`.

        Args:
            after: the images after, column by column.
            marked: what the rows did, and the images before.
            commits: the transactions of the rows.
            of: for each row, the place of its transaction in ``commits``.
            number: of each row, from 0 for the one behind :attr:`seq`.
            ordinal: of each row in its transaction.
            missing: names of columns that the source did not send, by row; None: it sent all.
        """
        walls = np.array([commit.at.wall for commit in commits], np.int64)
        logicals = np.array([commit.at.logical for commit in commits], np.int32)
        xids = np.array([commit.xid for commit in commits], np.int64)
        micros = np.array([commit.commit_us for commit in commits], np.int64)
        arrays = [
            _letters(marked.op),
            pa.array(walls[of]),
            pa.array(logicals[of]),
            pa.array((number + (self.seq + 1)).astype(np.int64)),
            pa.array(ordinal.astype(np.int32)),
            pa.array(xids[of]),
            pa.array(micros[of]),
            marked.last_column(),
            pa.nulls(len(of), pa.string()) if missing is None else missing,
            *after,
            *marked.before,
        ]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._log_schema(schema))
        self._events.append(ChangeBatch(schema, batch))

    def _log_schema(self, schema: TableSchema) -> pa.Schema:
        known = self._log_schemas.get(schema.table)
        if known is None or known[0] is not schema:
            known = (schema, schema.log_schema())
            self._log_schemas[schema.table] = known
        return known[1]

    def flush(self, frontier: Frontier | None) -> tuple[Flush, ...]:
        """A flush of all that has gathered; none if nothing has."""
        if not self._events and not self._commits:
            return ()
        commits = Commits(
            [commit.at.wall for commit in self._commits],
            [commit.at.logical for commit in self._commits],
            [commit.position for commit in self._commits],
            [commit.xid for commit in self._commits],
        )
        made = Flush(tuple(self._events), frontier, commits)
        self._events, self._commits = [], []
        return (made,)


def _letters(op: Operations) -> pa.Array:
    offsets = np.arange(len(op) + 1, dtype=np.int32)
    return pa.StringArray.from_buffers(len(op), pa.py_buffer(offsets), pa.py_buffer(op))
