"""The sink of a database's tables: what is alike however rows are written.

It gathers rows until they are worth a load, and leaves tables to :mod:`.feed_tables`. SQL
warehouses (:mod:`.sink`) load rows into staging tables and merge them; Spanner
(:mod:`.spanner.sink`) writes them by mutations.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import pyarrow as pa

from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError
from changefeed.core.events import SchemaChange, Truncate
from changefeed.core.schema import TableSchema
from changefeed.options import Feature
from sinks.base import Accepts, Batch, Capabilities, CommitPace, Receipt, SinkContext, Target
from sinks.merged.applied import AppliedVersion
from sinks.merged.pace import SlowDecline
from sinks.merged.policy import TablePolicy
from sinks.merged.sink import TableSink
from sinks.warehouse.feed_tables import FeedTables, KnownTable
from sinks.warehouse.pending import PendingRows, new_batch
from sinks.warehouse.staging import TargetShape, check_values

#: Rows and bytes gathered before they are loaded: a load costs much whatever it holds.
LOAD_ROWS = 200_000
LOAD_BYTES = 64 << 20
#: Seconds between merges: never less than the first, never more than the second, and so long
#: that merging takes about a fifth of the time.
PACE, SLOWEST, SHARE = 5.0, 60.0, 5.0


class DatabaseSink(TableSink):
    """Keeps tables of a database equal to the source's. Used by one thread at a time."""

    capabilities: ClassVar[Capabilities] = Capabilities(
        accepts=Accepts.ROWS,
        exactly_once=True,
        pacing=CommitPace(PACE, 500_000),
        resolved_by_topic=True,
        owns_targets=True,
        features=frozenset({Feature.MERGED_TABLES, Feature.EXISTING_TARGETS}),
        evolves=True,
        ends_scans=True,
        continues_scans=True,
    )

    #: Rows and bytes gathered before they are loaded.
    load_rows: int = LOAD_ROWS
    load_bytes: int = LOAD_BYTES

    def __init__(self, policy: TablePolicy, tables: FeedTables) -> None:
        super().__init__(policy, SlowDecline(PACE, SLOWEST, SHARE))
        self._tables = tables
        self._pending: list[PendingRows] = []

    # ------------------------------------------------------------- what a way of writing fills in

    @abstractmethod
    def begin_rows(self, known: KnownTable, shape: TargetShape) -> str:
        """Rows of this shape begin to gather. Returns the staging table, or nothing."""

    @abstractmethod
    def load(self, pending: PendingRows) -> None:
        """Rows that were gathered leave the memory, where that is possible."""

    @abstractmethod
    def truncate_table(self, known: KnownTable, shape: TargetShape, event: Truncate) -> None:
        """TRUNCATE, and that it is applied."""

    @abstractmethod
    def change_shape(self, known: KnownTable, event: SchemaChange) -> None:
        """The change of shape, and that it is applied."""

    # ------------------------------------------------------------- every sink

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._tables.warehouse.place})"

    def topic(self, name: str) -> str:
        """The target table of a source table: its name; dots become underscores."""
        return self._tables.warehouse.dialect.fit(name.replace(".", "_"))

    def open(self, context: SinkContext) -> None:
        self._context = context
        self._begun.clear()
        self._tables.open(context)
        self._tables.warehouse.rest()

    def check(self, context: SinkContext) -> list[ChangefeedError]:
        """See :meth:`.feed_tables.FeedTables.check`."""
        return self._tables.check(context)

    def claims(self, topic: str) -> tuple[str, ...]:
        """See :meth:`sinks.base.Sink.claims`."""
        d, strategy = self._tables.warehouse.dialect, self._tables.strategy
        names = (topic, strategy.place(topic), *strategy.beside(topic))
        return tuple(dict.fromkeys(map(d.canonical, names)))

    def reserved(self) -> tuple[str, ...]:
        """See :meth:`sinks.base.Sink.claims`."""
        d = self._tables.warehouse.dialect
        return tuple(map(d.canonical, self._tables.strategy.bookkeeping_names))

    def close(self) -> None:
        self._pending = []
        self._tables.forget()
        self._tables.warehouse.close()

    # ------------------------------------------------------------- between two rounds

    @contextmanager
    def resting(self) -> Iterator[None]:
        """A step outside a round: however it ends, nothing is left open that others wait for."""
        try:
            yield
        finally:
            self._tables.warehouse.rest()

    def truncate(self, event: Truncate, target: Target, payload: bytes) -> None:
        """See :meth:`sinks.merged.sink.TableSink.truncate`."""
        with self.resting():
            super().truncate(event, target, payload)

    def evolve(self, event: SchemaChange, target: Target) -> None:
        """See :meth:`sinks.base.Sink.evolve`."""
        with self.resting():
            super().evolve(event, target)

    def end_scan(self, target: Target, schema: TableSchema, at: Timestamp) -> None:
        """See :meth:`sinks.base.Sink.end_scan`."""
        with self.resting():
            super().end_scan(target, schema, at)

    def holds_target(self, target: Target) -> bool:
        """Whether the table is there (:meth:`sinks.base.Sink.holds_target`)."""
        with self.resting():
            self._tables.connect()
            return bool(self._tables.present(target.topic))

    # ------------------------------------------------------------- every store

    def applied(self, target: Target, schema: TableSchema) -> AppliedVersion:
        self._tables.connect()
        return self._tables.find(target, schema).applied

    def scanned(self, target: Target, schema: TableSchema) -> int:
        self._tables.connect()
        return self._tables.find(target, schema).scanned

    def stage(self, batch: Batch, rows: pa.Table) -> Receipt:
        """Gathers rows; a value that the target cannot hold is refused here."""
        receipt = Receipt(batch.partition, batch.rows.num_rows, batch.rows.nbytes)
        if rows.num_rows == 0:
            return receipt
        pending = self.pending_rows(batch.target, batch.schema, scan=batch.scan)
        pending.add(rows, self._tables.warehouse.dialect)
        gathered = sum(table.num_rows for table in pending.buffer)
        if gathered >= self.load_rows or pending.buffered >= self.load_bytes:
            self.load(pending)
        return receipt

    def require_values(self, batch: Batch, rows: pa.Table) -> None:
        shape = TargetShape(batch.schema, batch.target.topic)
        check_values(shape, shape.staged(rows, 0), self._tables.warehouse.dialect)

    def pending_rows(self, target: Target, schema: TableSchema, *, scan: bool) -> PendingRows:
        """Rows of a table that gather for the next commit, after its target was made ready."""
        self._tables.connect()
        known, shape = self._tables.find(target, schema), TargetShape(schema, target.topic)
        self._tables.prepare(known, shape, scan=scan)
        for pending in self._pending:
            same = pending.table.topic == shape.topic and pending.scan == scan
            if same and pending.shape.schema == shape.schema:
                return pending
        staging = self.begin_rows(known, shape)
        mode = self._policy.mode(shape.schema)
        pending = PendingRows(known.table, shape, scan, new_batch(self.clock), mode, staging)
        self._pending.append(pending)
        return pending

    def empty(self, event: Truncate, target: Target) -> None:
        known = self._tables.find(target, event.schema)
        shape = TargetShape(event.schema, target.topic)
        self._tables.prepare(known, shape, scan=False)
        self.truncate_table(known, shape, event)
        known.applied = AppliedVersion(event.at.version, event.seq)

    def reshape(self, event: SchemaChange, target: Target) -> None:
        known = self._tables.find(target, event.old)
        self.change_shape(known, event)
        known.applied = AppliedVersion(event.at.version, event.seq)
        known.ready.clear()
        known.staging.clear()
