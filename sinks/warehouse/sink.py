"""The sink all SQL warehouses share: stages typed rows, merges them, remembers how far it is.

``write`` gathers rows; ``commit`` loads what is left of them into staging tables and applies that
in one atomic run, with the bookkeeping of :mod:`.applied`. So readers see whole rounds
of the feed, and a round that comes again changes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import pyarrow as pa

from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.events import Resolved, SchemaChange, Truncate
from changefeed.core.schema import TableSchema
from changefeed.options import Feature
from sinks.base import (
    Capabilities,
    Difference,
    Epoch,
    Receipt,
    SinkContext,
    Target,
)
from sinks.merged.pace import IntervalPace
from sinks.merged.policy import ScanEnd, TablePolicy
from sinks.merged.values import refused_value, unfit
from sinks.ownership import Claim
from sinks.warehouse import applied as bookkeeping
from sinks.warehouse.compare import Comparison, held
from sinks.warehouse.database_sink import DatabaseSink
from sinks.warehouse.dialect import SqlStatement, Warehouse
from sinks.warehouse.feed_tables import FeedTables, KnownTable
from sinks.warehouse.owning import (
    NUMBERED_COLUMNS,
    STAGING_COLUMNS,
    TargetContent,
)
from sinks.warehouse.pending import PendingRows, new_batch
from sinks.warehouse.staging import BATCH, META, TargetShape, fits, kept_as
from sinks.warehouse.strategy import Strategy
from sinks.warehouse.tables import TargetTable, scan_name, staging_name

log = logging.getLogger("changefeed.sinks.warehouse")

#: Codes of what a database does not take.
REFUSALS = (Code.SINK_CANNOT_TAKE_TABLE, Code.SINK_REFUSED_DATA)

#: Rows in staging of a process that died are removed after so long.
_STALE_US = 3_600_000_000


class SQLTables(FeedTables):
    """Tables of a warehouse whose bookkeeping is kept by statements."""

    def take(
        self, table: TargetTable, target: Target, schema: TableSchema, content: TargetContent
    ) -> None:
        statements = []
        if content.stale:
            statements.append(table.applied.forget_others(content.stale))
        if content.claim is Claim.REPLACE:
            log.warning("existing_target = 'replace': the rows of %s go", target.topic)
            statements += self.strategy.empty(table)
        statements.append(table.applied.insert(self.context.feed, target.topic))
        self.run([SqlStatement(sql, target.topic) for sql in statements])

    def make(self, known: KnownTable, shape: TargetShape) -> None:
        table = known.table
        made = [*self.strategy.create(table, shape.schema), table.applied.reset()]
        self.define(made, shape.topic)


class WarehouseSink(DatabaseSink):
    """Keeps tables of a SQL warehouse equal to the source's. Used by one thread at a time."""

    capabilities: ClassVar[Capabilities] = replace(
        DatabaseSink.capabilities,
        features=DatabaseSink.capabilities.features
        | {Feature.HISTORY, Feature.COMPARISON, Feature.DEAD_LETTERS},
        compares_parts=True,
        repairs=True,
    )
    #: How the feed's tables are found and made.
    tables: ClassVar[type[SQLTables]] = SQLTables

    def __init__(
        self,
        warehouse: Warehouse,
        options: Mapping[str, object] | None = None,
        strategy: Strategy | None = None,
    ) -> None:
        policy = TablePolicy.read(options or {})
        super().__init__(policy, self.tables(warehouse, strategy or Strategy(), policy))

    def apply(self, epoch: Epoch, receipts: Sequence[Receipt]) -> bool:
        if not self._pending:
            self._tables.warehouse.rest()
            return False
        self._tables.connect()
        for pending in self._pending:
            self._load(pending)
        statements = [s for pending in self._pending for s in self._applying(pending)]
        try:
            self._tables.run(statements)
        except ChangefeedError as error:
            raise self._with_column(error) from None
        for pending in self._pending:
            known = self._tables.known(pending.table.topic)
            if known is not None and not pending.scan:
                known.applied = known.applied.latest(pending.top)
        self._pending.clear()
        self._tables.warehouse.rest()
        return True

    def _with_column(self, error: ChangefeedError) -> ChangefeedError:
        """Of a refused value, in which column it is: the database itself names none of a cast. One
        that is refused where the staged values alone are cast, without the target, is of a row."""
        if error.code is not Code.SINK_CANNOT_TAKE_TABLE:
            return error
        warehouse = self._tables.warehouse
        d = warehouse.dialect
        for pending in (p for p in self._pending if p.table.topic == error.target):
            staged, shape = pending.staged(warehouse), pending.shape
            rows = f"{staged.staging} AS staged WHERE {staged.where(d)}"
            for column, rule in zip(shape.columns, shape.rules(d), strict=True):
                value = rule.of(d.quote(column.name))
                try:
                    warehouse.query(f"SELECT count({value}) FROM {rows}")
                except ChangefeedError as found:
                    if found.code not in REFUSALS or not self._readable(column.name, rows):
                        return error
                    why = unfit(kept_as(rule, d))
                    return refused_value(shape.schema, shape.topic, column, why, str(found.detail))
        return error

    def _readable(self, name: str, rows: str) -> bool:
        """Whether the staged column itself can be read."""
        warehouse = self._tables.warehouse
        try:
            warehouse.query(f"SELECT count({warehouse.dialect.quote(name)}) FROM {rows}")
        except ChangefeedError:
            return False
        return True

    def abort(self, epoch: Epoch, receipts: Sequence[Receipt]) -> None:
        left, self._pending = self._pending, []
        loaded = [p for p in left if p.loads]
        self._tables.forget()
        if not loaded:
            self._tables.warehouse.rest()
            return
        d, name = self._tables.warehouse.dialect, self._tables.warehouse.name
        try:
            self._tables.connect()
            gone = [self._tables.strategy.unstage(d, name(p.staging), p.batch) for p in loaded]
            self._tables.run([SqlStatement(sql) for sql in gone])
        except ChangefeedError as error:
            # They carry a batch number nobody asks for, and are removed when they are old.
            log.debug("staged rows of an aborted round stay for now: %s", error.message)
        self._tables.warehouse.rest()

    def resolved(self, event: Resolved, payload: bytes) -> None:
        """Records the feed's resolved timestamp in the bookkeeping table."""
        self._tables.connect()
        ids = [self._tables.names(target).applied.id for target in self._opened.targets]
        if ids:
            sql = self._tables.strategy.resolved(self._tables.warehouse, ids, str(event.at))
            self._tables.run([SqlStatement(sql)])
        self._tables.warehouse.rest()

    def truncate_table(self, known: KnownTable, shape: TargetShape, event: Truncate) -> None:
        """TRUNCATE, and that it is applied."""
        table = known.table
        statements = self._tables.strategy.begin(table, self._opened.node)
        statements += self._tables.strategy.truncate(table, shape, event.at, event.seq)
        statements.append(table.applied.advance(event.at.version, event.seq))
        self._tables.run([SqlStatement(sql, table.topic) for sql in statements])

    def change_shape(self, known: KnownTable, event: SchemaChange) -> None:
        """The change of shape, and that it is applied."""
        table = known.table
        present = self._tables.present(table.topic)
        if not present:  # its first scan has not begun
            self._tables.prepare(known, TargetShape(event.new, table.topic), scan=False)
        steps = self._tables.strategy.begin(table, self._opened.node)
        steps += self._tables.strategy.evolve(table, event, present) if present else []
        steps.append(table.applied.advance(event.at.version, event.seq))
        self._tables.define(steps, table.topic)

    def finish_scan(
        self, target: Target, schema: TableSchema, at: Timestamp, ends: ScanEnd
    ) -> None:
        """Rows that the scan did not find go, as a delete of them would have had it."""
        shape = TargetShape(schema, target.topic)
        table = self._tables.find(target, schema).table
        statements = self._tables.strategy.begin(table, self._opened.node)
        if ends is not ScanEnd.NOTHING:
            statements += self._tables.strategy.end_scan(table, shape, at)
        statements.append(table.applied.advance(at.version, bookkeeping.LAST))
        statements.append(table.applied.scanned(at.version))
        self._tables.run([SqlStatement(sql, table.topic) for sql in statements])
        self._tables.forget_table(target.topic)

    def compare(
        self,
        context: SinkContext,
        target: Target,
        schema: TableSchema,
        rows: Iterable[pa.Table],
        limit: int,
    ) -> list[Difference]:
        """How the target differs from the source (:meth:`sinks.base.Sink.compare`)."""
        table = held(
            self._tables.warehouse, self.clock, lambda: self._tables.names(target, context)
        )
        return Comparison(
            self._tables.warehouse,
            table,
            TargetShape(schema, target.topic),
            self._tables.strategy.readable(table),
            self.clock,
            target.part,
        ).run(rows, limit)

    def dropped(self, target: Target) -> None:
        """The target goes too with ``on_drop = 'drop'``; else only what is ours goes."""
        with self.resting():
            self._tables.connect()
            table = self._tables.names(target)
            self._tables.forget_table(target.topic)
            if not self._tables.query(table.applied.read()):
                return  # nothing there carries the feed's mark
            d = table.d
            gone = []
            if self._tables.targets.is_ours(table, staging_name(target.topic), STAGING_COLUMNS):
                gone.append(d.drop_table(table.staging))
            if self._tables.targets.is_ours(table, scan_name(target.topic), NUMBERED_COLUMNS):
                gone.append(d.drop_table(table.scan))
            if self._policy.drop:
                gone += self._tables.strategy.drop(table)
            self._tables.define(gone, target.topic)
            if self._policy.drop:
                self._tables.run([SqlStatement(table.applied.forget(), target.topic)])

    def begin_scan(
        self, target: Target, schema: TableSchema, version: int, *, after: int | None
    ) -> None:
        known, shape = self._tables.find(target, schema), TargetShape(schema, target.topic)
        self._tables.prepare(known, shape, scan=True)
        table = known.table
        if after is not None:
            gone = self._tables.strategy.forget_scans(table, after)
            self._tables.run([SqlStatement(sql, shape.topic) for sql in gone])
        gathering = self._tables.strategy.gathers(table, shape)
        if gathering:
            self._tables.beside(table, shape, scan_name(shape.topic), NUMBERED_COLUMNS)
            self._tables.define(gathering, shape.topic)

    def begin_rows(self, known: KnownTable, shape: TargetShape) -> str:
        """The staging table, made when it is not there or has another shape."""
        mark = shape.schema.fingerprint()
        staging = known.staging.get(mark)
        if staging is None:
            staging = known.staging[mark] = self._make_staging(known, shape)
        return staging

    def _make_staging(self, known: KnownTable, shape: TargetShape) -> str:
        warehouse = self._tables.warehouse
        d = warehouse.dialect
        name = staging_name(shape.topic)
        if any(p.table.topic == shape.topic for p in self._pending):
            name += f"_{shape.schema.fingerprint()[:6]}"  # rows of another shape are waiting there
        name = d.fit(name)
        wanted = shape.staging_columns(d)
        present = self._tables.beside(known.table, shape, name, STAGING_COLUMNS)
        create = d.create_staging(warehouse.name(name), wanted)
        stale = new_batch(self.clock) - _STALE_US
        if not present:
            self._tables.define([create], shape.topic)
        elif not fits(present, wanted):
            self._tables.define([d.drop_table(warehouse.name(name)), create], shape.topic)
        else:
            sql = f"DELETE FROM {warehouse.name(name)} WHERE {d.quote(BATCH)} < {stale}"
            self._tables.run([SqlStatement(sql, shape.topic)])
        return name

    # ------------------------------------------------------------------ rows

    def load(self, pending: PendingRows) -> None:
        """Rows that a later one may fold away wait for the commit, in files where they are many."""
        if not pending.folds:
            self._load(pending)
        elif pending.buffered >= self.load_bytes and self._opened.scratch:
            pending.spill(self._opened.scratch)

    def _load(self, pending: PendingRows) -> None:
        for rows in pending.to_load(self.load_rows, self.load_bytes):
            try:
                self._load_rows(pending, rows)
            except ChangefeedError as error:
                raise self._of_load(error, pending, rows) from None
            pending.rows += rows.num_rows
            pending.loads += 1
        pending.clear()

    def _load_rows(self, pending: PendingRows, rows: pa.Table) -> None:
        with self._tables.errors():
            load_id = pending.load_id(self._opened.node)
            self._tables.warehouse.load(pending.staging, rows, load_id)

    def _of_load(
        self, error: ChangefeedError, pending: PendingRows, rows: pa.Table
    ) -> ChangefeedError:
        """A refused load is about its table: about a row of it, if a row without values is taken.
        The error of a load names no row."""
        if error.code not in REFUSALS:
            return error
        error.target = pending.table.topic
        if not error.about_row:
            pending.loads += 1  # another load, which is removed by ``abort``
            bare = [
                one if name in META else pa.nulls(1, one.type)
                for name, one in zip(rows.column_names, rows.slice(0, 1).columns, strict=True)
            ]
            try:
                self._load_rows(pending, pa.table(bare, names=rows.column_names))
            except ChangefeedError:
                return error
            error.about_row = True
        return error

    def _applying(self, pending: PendingRows) -> list[SqlStatement]:
        table, d = pending.table, self._tables.warehouse.dialect
        staged = pending.staged(self._tables.warehouse)
        where = f"{d.quote(BATCH)} = {staged.batch}"
        found = self._tables.query(f"SELECT count(*) FROM {staged.staging} WHERE {where}")
        if int(str(found[0][0])) != staged.rows:
            raise ChangefeedError(
                Code.SINK_UNREACHABLE,
                f"staged rows of {table.topic} are gone",
                detail=f"{found[0][0]} of {staged.rows} rows",
            )
        statements = self._tables.strategy.begin(table, self._opened.node)
        statements += self._tables.strategy.apply(table, staged)
        if not staged.scan:
            statements.append(table.applied.advance(staged.top.version, staged.top.seq or 0))
        statements.append(self._tables.strategy.unstage(d, staged.staging, staged.batch))
        return [SqlStatement(sql, table.topic) for sql in statements]


# ------------------------------------------------------------------------------- rounds that cost


class PacedSink(WarehouseSink):
    """The sink of a warehouse whose every job costs money or counts against a quota: its rounds are
    at least ``interval`` seconds apart; changes gather in the change log meanwhile."""

    def __init__(
        self, warehouse: Warehouse, options: Mapping[str, object] | None, interval: float
    ) -> None:
        super().__init__(warehouse, options)
        self.pace = IntervalPace(interval)
        self._interval = interval
        self._stated: float | None = None

    def resolved(self, event: Resolved, payload: bytes) -> None:
        """Like the base class, but at most once per round: a later timestamp is enough."""
        now = self.clock.monotonic()
        if self._stated is not None and now - self._stated < self._interval:
            return
        super().resolved(event, payload)
        self._stated = now
