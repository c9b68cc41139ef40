"""What a stream of a binlog gives out: rows decoded together, tables that are to be read again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from changefeed.core.events import Flush, Frontier, Position
from changefeed.core.schema import TableName, TableSchema
from changefeed.sources.decoded.flushes import FlushBuilder, LogCommit, ShapeChange
from changefeed.sources.decoded.stored import StoredTransaction
from changefeed.sources.decoded.superseded import collapse
from changefeed.sources.decoded.unsent import fill_from_transaction
from changefeed.sources.mysql.partial_tables import PartialTables, missing_names
from changefeed.sources.mysql.position import BinlogPosition
from changefeed.sources.mysql.renames import Renames
from changefeed.sources.mysql.shapes import Shapes
from changefeed.sources.mysql.waiting import PendingEvents


class BinlogFlushes(FlushBuilder):
    """Gathers rows and events in the order of the binlog."""

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
            renames: learns which of them were announced.
            end: where the server's log ends now.
        """
        super().__init__(start)
        self._read_upto = read_upto
        self._shapes = shapes
        self._renames = renames
        self._end = end
        #: Tables that are to be read again: up to where that has all rows.
        self._read_again: dict[TableName, Position] = {}

    @property
    def frontier(self) -> Frontier:
        """What was read completely so far."""
        return Frontier(self.last, self._read_upto.position, self.seq, self._read_upto.history)

    def committed(self, commit_us: int, xid: int, *, touched: bool) -> LogCommit:
        """A transaction that the position has passed; returns what its rows carry. ``touched``: the
        next flush reports the commit."""
        self.reach(commit_us)
        commit = LogCommit(self.last, xid, commit_us, self._read_upto.position)
        if touched:
            self.add_commit(commit)
        return commit

    def announce(
        self,
        changes: Sequence[ShapeChange],
        definitions: Sequence[tuple[TableName, str, str]],
        commit: LogCommit,
    ) -> None:
        """What a transaction did to tables: what it defined, and which look different."""
        for table, kind, text in definitions:
            self.define(table, kind, text, commit.position, commit.at)
        for change in changes:
            self.change(change, commit.at)
            old, new = change.old.table, change.new.table
            if old != new:
                self._renames.announce(
                    (old.schema, old.name), (new.schema, new.name), commit.position
                )

    def decode(
        self, waiting: PendingEvents, finished: Sequence[tuple[int, LogCommit]], small: int
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
            self.rows(
                part.schema,
                rows.after,
                marked,
                commits,
                of=of,
                number=part.number,
                ordinal=part.number - first_rows[of],
                missing=missing_names(part.schema, rows),
            )
        self.seq += count
        for schema, event, why in lost:
            self.lose(schema, why, commits[transaction[event]])
        self._read_tables_again(partial, commits[-1])

    def lose(self, schema: TableSchema, why: str, commit: LogCommit) -> None:
        """A transaction changed rows of a table, and they cannot be read."""
        named = f"{schema.table.schema}.{schema.table.name}"
        text = f"the binlog has changes of {named} that cannot be read: {why}"
        self.unreadable(schema, text, commit.at)

    def replay(self, stored: StoredTransaction, commit: LogCommit) -> Iterator[Flush]:
        """The rows of a transaction that are on disk: in flushes without a frontier, but for the
        last ones, which the next flush takes together with the commit."""
        ended, self._commits = self._commits, []
        partial = PartialTables(self._shapes)
        for replayed in stored.replay():
            yield from self.flush(None)
            for part in replayed:
                partial.add(part.schema, part.rows.unchanged, part.marked, together=False)
                self.rows(
                    part.schema,
                    part.rows.after,
                    part.marked,
                    [commit],
                    of=np.zeros(len(part.number), np.intp),
                    number=part.number,
                    ordinal=part.number,
                    missing=missing_names(part.schema, part.rows),
                )
        self.seq += stored.rows
        self._read_tables_again(partial, commit)
        self._commits = ended

    def _read_tables_again(self, partial: PartialTables, commit: LogCommit) -> None:
        """Let tables be read again of which the binlog does not have a row: it is not to be found
        in the row before either. A scan that begins from now on has it, whatever came meanwhile."""
        for schema in partial.lacking:
            self.read_again(schema, "", commit)

    def read_again(self, schema: TableSchema, why: str, commit: LogCommit) -> None:
        """Let a table be read again. ``why``: what the binlog does not have of its rows, so that
        some may have come or gone; empty: values of rows that it has."""
        if commit.position > self._read_again.get(schema.table, ""):
            self._read_again[schema.table] = max(self._end(), commit.position)
            again = ShapeChange(schema, schema, rewritten=True, moved=bool(why), why=why)
            self.change(again, commit.at)
