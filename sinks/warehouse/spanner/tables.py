"""The tables of a feed at Spanner: their marks, and what a target must be like."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar, cast

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.schema import TableSchema
from sinks.base import Target
from sinks.merged.applied import AppliedVersion
from sinks.ownership import Claim
from sinks.warehouse.dialect import SqlStatement
from sinks.warehouse.feed_tables import FeedTables, KnownTable
from sinks.warehouse.owning import TargetContent
from sinks.warehouse.spanner import keeping
from sinks.warehouse.spanner.keeping import FACTS
from sinks.warehouse.staging import TargetShape
from sinks.warehouse.tables import TargetTable

if TYPE_CHECKING:
    from sinks.warehouse.spanner.client import Spanner, SpannerTransaction


Result = TypeVar("Result")


class SpannerTables(FeedTables):
    """Tables of a Spanner database, whose bookkeeping is written in transactions."""

    @property
    def server(self) -> Spanner:
        """The client of the database."""
        return cast("Spanner", self.warehouse)

    def make_bookkeeping(self) -> None:
        """See the base class.

        Raises:
            ChangefeedError: CF5002, the database has the PostgreSQL dialect.
        """
        self.server.check_dialect()
        super().make_bookkeeping()

    def transact(self, work: Callable[[SpannerTransaction], Result], *topics: str) -> Result:
        """See :meth:`.client.Spanner.transact`; after an error everything is looked at again."""
        with self.errors():
            return self.server.transact(work, *topics)

    def change_all(self, sql: str, topic: str) -> None:
        """See :meth:`.client.Spanner.change_all`; after an error everything is looked at again."""
        with self.errors():
            self.server.change_all(sql, topic)

    def progress(self, transaction: SpannerTransaction, table: TargetTable) -> AppliedVersion:
        """How far a table is.

        Raises:
            ChangefeedError: CF5001, its row is gone.
        """
        found = keeping.read_progress(transaction, table.applied.id)
        if found is None:
            raise ChangefeedError(
                Code.SINK_UNREACHABLE,
                f"{self.server.place} lost its progress of table {table.topic}",
            )
        return found

    def take(
        self, table: TargetTable, target: Target, schema: TableSchema, content: TargetContent
    ) -> None:
        row, feed = table.applied.id, self.context.feed
        if content.claim is Claim.REPLACE:
            self.change_all(f"DELETE FROM {table.name} WHERE TRUE", target.topic)

        def work(transaction: SpannerTransaction) -> None:
            stale = [(each,) for each in content.stale if each != row]
            if stale:
                transaction.delete(FACTS, stale)
            columns = ("id", "feed", "table_name", "version", "seq", "scanned")
            transaction.upsert(FACTS, columns, [(row, feed, target.topic, "0", "0", "0")])

        self.transact(work, target.topic)

    def make(self, known: KnownTable, shape: TargetShape) -> None:
        table = known.table
        self.define(self.strategy.create(table, shape.schema), shape.topic)
        self.transact(lambda transaction: keeping.reset(transaction, table.applied.id), shape.topic)

    def inspect(self, table: TargetTable, shape: TargetShape) -> None:
        """A table of that name has the key that rows are found by."""
        found, wanted = self.server.key(shape.topic), keeping.key_of(shape.schema)
        if not found:
            return
        if [name.casefold() for name in found] != [name.casefold() for name in wanted]:
            raise ChangefeedError(
                Code.SINK_CANNOT_TAKE_TABLE,
                f"{shape.schema.table}: the target table {shape.topic} has another primary key "
                "than this feed needs",
                detail=f"{self.server.place}: wanted ({', '.join(wanted)})",
                hint="drop or rename the target table, or give the feed another database.",
            )
        if table.has_side(shape.schema) and not self.server.columns(keeping.side_of(shape.topic)):
            self.define([keeping.create_side(table, shape.schema)], shape.topic)

    def complete(self, known: KnownTable, shape: TargetShape, present: Mapping[str, str]) -> None:
        names = self.strategy.columns(known.table, shape.schema)
        super().complete(known, shape, keeping.spelled(names, present))

    def define(self, statements: Sequence[str], topic: str) -> None:
        with self.errors():
            self.server.run([SqlStatement(sql, topic) for sql in statements])
