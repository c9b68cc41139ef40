"""What a stream gives out: rows and events with their timestamps, numbers and positions.

They are gathered until a flush takes them. A commit gets ``last.at_least(commit time)``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from changefeed.core.clock import Timestamp
from changefeed.core.events import (
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
from changefeed.sources.decoded.log_batches import LogBatches
from changefeed.sources.decoded.stored import StoredTransaction
from changefeed.sources.decoded.superseded import collapse
from changefeed.sources.decoded.unsent import fill_from_transaction
from changefeed.sources.mysql.partial_tables import PartialTables, missing_names
from changefeed.sources.mysql.position import BinlogPosition
from changefeed.sources.mysql.renames import Renames
from changefeed.sources.mysql.shapes import ShapeChange, Shapes
from changefeed.sources.mysql.waiting import PendingEvents


class BinlogCommit(NamedTuple):
    """What the rows of a finished transaction carry."""

    at: Timestamp
    xid: int
    commit_us: int
    position: str


class FlushBuilder:
    """Gathers rows and events in the order of the log."""

    def __init__(
        self,
        start: Frontier,
        read_upto: BinlogPosition,
        shapes: Shapes,
        renames: Renames,
        end: Callable[[], Position],
    ) -> None:
        """
        Args:
            start: everything up to there was given out before.
            read_upto: the position, which the reader of the events moves on.
            shapes: of the source's tables.
            renames: which of them were told.
            end: where the server's log ends now.
        """
        #: The timestamp of the last commit, and the last number.
        self.last = start.at
        self.seq = start.seq
        self._read_upto = read_upto
        self._shapes = shapes
        self._renames = renames
        self._end = end
        self._events: list[Event] = []
        self._commits: list[BinlogCommit] = []
        self._batches = LogBatches()
        #: Tables that are to be read again: up to where that has all rows.
        self._read_again: dict[TableName, Position] = {}

    @property
    def frontier(self) -> Frontier:
        """What was read completely so far."""
        return Frontier(self.last, self._read_upto.position, self.seq, self._read_upto.history)

    def reach(self, commit_us: int) -> None:
        """A transaction that committed then is complete."""
        self.last = self.last.at_least(commit_us * 1000)

    def committed(self, commit_us: int, xid: int, *, touched: bool) -> BinlogCommit:
        """:meth:`reach` for a transaction that the position has passed; returns what its rows
        carry. ``touched``: the next flush tells of the commit."""
        self.reach(commit_us)
        commit = BinlogCommit(self.last, xid, commit_us, self._read_upto.position)
        if touched:
            self._commits.append(commit)
        return commit

    def caught_up(self, now_ns: int) -> BinlogCommit:
        """The source had nothing more at that time, which is later than the last commit."""
        self.last = Timestamp(now_ns)
        return BinlogCommit(self.last, 0, now_ns // 1000, self._read_upto.position)

    def add_commit(self, commit: BinlogCommit) -> None:
        """Let the next flush tell of a commit."""
        self._commits.append(commit)

    def announce(
        self,
        changes: Sequence[ShapeChange],
        definitions: Sequence[tuple[TableName, str, str]],
        commit: BinlogCommit,
    ) -> None:
        """Tell what a transaction did to tables: what it defined, and which look otherwise."""
        for table, kind, text in definitions:
            self.seq += 1
            self._events.append(Ddl(table, kind, text, commit.position, commit.at, self.seq))
        for change in changes:
            self.seq += 1
            self._events.append(
                SchemaChange(
                    change.old,
                    change.new,
                    commit.at,
                    self.seq,
                    change.rewritten,
                    moved=change.moved,
                    why=change.why,
                    renamed=change.renamed,
                )
            )
            old, new = change.old.table, change.new.table
            if old != new:
                self._renames.tell((old.schema, old.name), (new.schema, new.name), commit.position)

    def truncated(self, schema: TableSchema, commit: BinlogCommit) -> None:
        """A transaction removed all rows of a table."""
        self.seq += 1
        self._events.append(Truncate(schema, commit.at, self.seq))

    def rows(
        self, waiting: PendingEvents, finished: Sequence[tuple[int, BinlogCommit]], small: int
    ) -> None:
        """The rows of complete transactions: the number of the first event of each, and its commit.

        Args:
            small: see :func:`changefeed.sources.mysql.decode.decode`.
        """
        firsts = np.array([first for first, _ in finished], np.intp)
        commits = [commit for _, commit in finished]
        parts, count, starts, lost = waiting.decoded(self._shapes.charsets, small)
        first_rows = starts[firsts]
        transaction = np.searchsorted(firsts, np.arange(len(starts)), "right") - 1
        partial = PartialTables(self._shapes)
        for part in parts:
            of = transaction[part.rows.message]
            marked = collapse(part.schema, part.rows, of)
            rows = fill_from_transaction(part.schema, part.rows, of)
            partial.add(part.schema, rows.unchanged, marked, together=True)
            self._events.append(
                self._batches.make(
                    part.schema,
                    rows.after,
                    marked,
                    commits,
                    of=of,
                    number=part.number + self.seq + 1,
                    ordinal=part.number - first_rows[of],
                    missing=missing_names(part.schema, rows),
                )
            )
        self.seq += count
        for schema, event, why in lost:
            self.unreadable(schema, why, commits[transaction[event]])
        self._read_tables_again(partial, commits[-1])

    def unreadable(self, schema: TableSchema, why: str, commit: BinlogCommit) -> None:
        """A transaction changed rows of a table, and they cannot be read."""
        self.seq += 1
        named = f"{schema.table.schema}.{schema.table.name}"
        self._events.append(
            SchemaChange(
                schema,
                schema,
                commit.at,
                self.seq,
                rewritten=True,
                unreadable=True,
                why=f"the binlog has changes of {named} that cannot be read: {why}",
            )
        )

    def replay(self, stored: StoredTransaction, commit: BinlogCommit) -> Iterator[Flush]:
        """The rows of a transaction that are on disk: in flushes without a frontier, but for the
        last ones, which the next flush takes together with the commit."""
        ended, self._commits = self._commits, []
        base = self.seq + 1
        partial = PartialTables(self._shapes)
        for replayed in stored.replay():
            yield from self.flushed(None)
            for part in replayed:
                partial.add(part.schema, part.rows.unchanged, part.marked, together=False)
                batch = self._batches.make(
                    part.schema,
                    part.rows.after,
                    part.marked,
                    [commit],
                    of=np.zeros(len(part.number), np.intp),
                    number=base + part.number,
                    ordinal=part.number,
                    missing=missing_names(part.schema, part.rows),
                )
                self._events.append(batch)
        self.seq += stored.rows
        self._read_tables_again(partial, commit)
        self._commits = ended

    def _read_tables_again(self, partial: PartialTables, commit: BinlogCommit) -> None:
        """Let tables be read again of which the binlog does not have a row: it is not to be found
        in the row before either. A scan that begins from now on has it, whatever came meanwhile."""
        for schema in partial.lacking:
            self.read_again(schema, "", commit)

    def read_again(self, schema: TableSchema, why: str, commit: BinlogCommit) -> None:
        """Let a table be read again. ``why``: what the binlog does not have of its rows, so that
        some may have come or gone; empty: values of rows that it has."""
        if commit.position > self._read_again.get(schema.table, ""):
            self._read_again[schema.table] = max(self._end(), commit.position)
            self.seq += 1
            self._events.append(
                SchemaChange(
                    schema, schema, commit.at, self.seq, rewritten=True, moved=bool(why), why=why
                )
            )

    def flushed(self, frontier: Frontier | None) -> Iterator[Flush]:
        """A flush of all that is there, if there is anything."""
        if self._events or self._commits:
            commits = Commits(
                [commit.at.wall for commit in self._commits],
                [commit.at.logical for commit in self._commits],
                [commit.position for commit in self._commits],
                [commit.xid for commit in self._commits],
            )
            events, self._events, self._commits = tuple(self._events), [], []
            yield Flush(events, frontier, commits)
