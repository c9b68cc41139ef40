"""The sink all SQL warehouses share: stages typed rows, merges them, remembers how far it is.

``write`` gathers rows and loads them into staging tables; ``commit`` applies everything that was
written in one atomic run, with the bookkeeping of :mod:`.applied`. So readers see whole rounds
of the feed, and a round that comes again changes nothing.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import pyarrow as pa

from changefeed.core.clock import Clock, Timestamp
from changefeed.core.errors import Action, ChangefeedError
from changefeed.core.events import Resolved, SchemaChange, Truncate
from changefeed.core.schema import TableSchema
from changefeed.options import Feature
from sinks.base import (
    Accepts,
    Batch,
    Capabilities,
    CommitPace,
    Difference,
    Epoch,
    Receipt,
    SinkContext,
    Target,
)
from sinks.merged.applied import NOTHING_APPLIED, AppliedVersion
from sinks.merged.history import ORDER
from sinks.merged.pace import SlowToFall
from sinks.merged.policy import ScanEnd, TablePolicy
from sinks.merged.rows import last_of
from sinks.merged.sink import TableSink
from sinks.ownership import Claim, no_bookkeeping
from sinks.warehouse import applied as bookkeeping
from sinks.warehouse.compare import Comparison, held
from sinks.warehouse.dialect import Statement, Warehouse
from sinks.warehouse.owning import (
    NUMBERED_COLUMNS,
    STAGING_COLUMNS,
    TargetContent,
    Targets,
)
from sinks.warehouse.staging import BATCH, SEQUENCE, TargetShape, check_values
from sinks.warehouse.strategy import Strategy
from sinks.warehouse.tables import StagedRows, Table, scan_name, staging_name

log = logging.getLogger("changefeed.sinks.warehouse")

#: Rows and bytes gathered before they are loaded: a load costs much whatever it holds.
LOAD_ROWS = 200_000
LOAD_BYTES = 64 << 20
#: Seconds between merges: never less than the first, never more than the second, and so long
#: that merging takes about a fifth of the time.
PACE, SLOWEST, SHARE = 5.0, 60.0, 5.0
#: Rows in staging of a process that died are removed after so long.
_STALE_US = 3_600_000_000


@dataclass
class _PendingRows:
    """Rows of one table and shape since the last commit."""

    table: Table
    shape: TargetShape
    scan: bool
    batch: int
    staging: str
    rows: int = 0
    loads: int = 0
    missing: frozenset[int] = frozenset()
    top: AppliedVersion = NOTHING_APPLIED
    buffer: list[pa.Table] = field(default_factory=list)
    buffered: int = 0

    def staged(self, warehouse: Warehouse) -> StagedRows:
        return StagedRows(
            shape=self.shape,
            batch=self.batch,
            staging=warehouse.name(self.staging),
            rows=self.rows,
            scan=self.scan,
            missing=self.missing,
            top=self.top,
        )


@dataclass
class _TableKnowledge:
    """What is known of a table since the last error."""

    table: Table
    applied: AppliedVersion
    scanned: int
    ready: set[str] = field(default_factory=set)
    staging: dict[str, str] = field(default_factory=dict)


class WarehouseSink(TableSink):
    """Keeps tables of a SQL warehouse equal to the source's. Used by one thread at a time."""

    capabilities: ClassVar[Capabilities] = Capabilities(
        accepts=Accepts.ROWS,
        exactly_once=True,
        pacing=CommitPace(PACE, 500_000),
        resolved_by_topic=True,
        owns_targets=True,
        features=frozenset({Feature.MERGED_TABLES, Feature.HISTORY, Feature.EXISTING_TARGETS}),
        evolves=True,
        ends_scans=True,
        compares=True,
    )

    #: Rows gathered before they are loaded.
    load_rows: int = LOAD_ROWS

    def __init__(
        self,
        warehouse: Warehouse,
        options: Mapping[str, object] | None = None,
        strategy: Strategy | None = None,
    ) -> None:
        super().__init__(TablePolicy.read(options or {}), SlowToFall(PACE, SLOWEST, SHARE))
        self._warehouse = warehouse
        self._strategy = strategy or Strategy()
        self._known: dict[str, _TableKnowledge] = {}
        self._pending: list[_PendingRows] = []
        self._prepared = False

    @cached_property
    def _targets(self) -> Targets:
        return Targets(self._warehouse, self._strategy, self._policy.existing)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._warehouse.place})"

    def topic(self, name: str) -> str:
        """The target table of a source table: its name; dots become underscores."""
        return self._warehouse.dialect.fit(name.replace(".", "_"))

    # ------------------------------------------------------------------ the order of calls

    def open(self, context: SinkContext) -> None:
        self._context = context
        self._forget()
        self._begun.clear()
        self._connect()
        self._warehouse.rest()

    def check(self, context: SinkContext) -> list[ChangefeedError]:
        """Reach, login, and whose the targets are. Nothing is made: where the warehouse cannot be
        asked for the right to make tables, a lack of it shows with the feed."""
        try:
            self._warehouse.connect(make=False)
            if not self._warehouse.there():
                return []
            self._warehouse.check_rights()
            self._targets.booked = bool(self._look_at_bookkeeping())
        except ChangefeedError as error:
            return [error]
        found = []
        for target in context.targets:
            try:
                self._check_target(context, target)
            except ChangefeedError as error:
                found.append(error)
                if error.action is Action.RETRY:
                    break
        return found

    def _check_target(self, context: SinkContext, target: Target) -> None:
        """Raises what stands in the way of one table."""
        if target.schema is None:
            return
        table = self._names(target, context)
        self._strategy.check(table, target.schema)
        self._targets.look(table, target, target.schema, context)

    def claims(self, topic: str) -> tuple[str, ...]:
        """See :meth:`sinks.base.Sink.claims`."""
        d, strategy = self._warehouse.dialect, self._strategy
        names = (topic, strategy.place(topic), *strategy.beside(topic))
        return tuple(dict.fromkeys(map(d.canonical, names)))

    def reserved(self) -> tuple[str, ...]:
        """See :meth:`sinks.base.Sink.claims`."""
        return tuple(map(self._warehouse.dialect.canonical, self._strategy.bookkeeping_names))

    def applied(self, target: Target, schema: TableSchema) -> AppliedVersion:
        self._connect()
        return self._table(target, schema).applied

    def scanned(self, target: Target, schema: TableSchema) -> int:
        self._connect()
        return self._table(target, schema).scanned

    def stage(self, batch: Batch, rows: pa.Table) -> Receipt:
        """Gathers rows; a value that the target cannot hold is refused here."""
        receipt = Receipt(batch.partition, batch.rows.num_rows, batch.rows.nbytes)
        if rows.num_rows == 0:
            return receipt
        self._connect()
        known = self._table(batch.target, batch.schema)
        shape = TargetShape(batch.schema, batch.target.topic)
        self._prepare(known, shape, scan=batch.scan)
        pending = self._gather(known, shape, batch.scan)
        staged = shape.staged(rows, pending.batch)
        check_values(shape, staged, self._warehouse.dialect)
        pending.missing |= shape.missing(staged)
        pending.top = pending.top.latest(last_of(staged[SEQUENCE], staged[ORDER]))
        pending.rows += staged.num_rows
        pending.buffer.append(staged)
        pending.buffered += staged.nbytes
        gathered = sum(table.num_rows for table in pending.buffer)
        if gathered >= self.load_rows or pending.buffered >= LOAD_BYTES:
            self._load(pending)
        return receipt

    def apply(self, epoch: Epoch, receipts: Sequence[Receipt]) -> bool:
        if not self._pending:
            self._warehouse.rest()
            return False
        self._connect()
        for pending in self._pending:
            self._load(pending)
        self._run([s for pending in self._pending for s in self._applying(pending)])
        for pending in self._pending:
            known = self._known.get(pending.table.topic)
            if known is not None and not pending.scan:
                known.applied = known.applied.latest(pending.top)
        self._pending.clear()
        self._warehouse.rest()
        return True

    def abort(self, epoch: Epoch, receipts: Sequence[Receipt]) -> None:
        left, self._pending = self._pending, []
        loaded = [p for p in left if p.loads]
        self._forget()
        if not loaded:
            return
        d, name = self._warehouse.dialect, self._warehouse.name
        try:
            self._connect()
            gone = [self._strategy.unstage(d, name(p.staging), p.batch) for p in loaded]
            self._run([Statement(sql) for sql in gone])
            self._warehouse.rest()
        except ChangefeedError as error:
            # They carry a batch number nobody asks for, and are removed when they are old.
            log.debug("staged rows of an aborted round stay for now: %s", error.message)

    def resolved(self, mark: Resolved, payload: bytes) -> None:
        """Records the feed's resolved timestamp in the bookkeeping table."""
        self._connect()
        ids = [self._names(target).applied.id for target in self._opened.targets]
        if ids:
            sql = self._strategy.resolved(self._warehouse, ids, str(mark.at))
            self._run([Statement(sql)])
        self._warehouse.rest()

    def empty(self, event: Truncate, target: Target) -> None:
        known = self._table(target, event.schema)
        shape = TargetShape(event.schema, target.topic)
        self._prepare(known, shape, scan=False)
        self._truncate(known, shape, event)
        known.applied = AppliedVersion(event.at.version, event.seq)

    def _truncate(self, known: _TableKnowledge, shape: TargetShape, event: Truncate) -> None:
        """TRUNCATE, and that it is applied."""
        table = known.table
        statements = self._strategy.begin(table, self._node)
        statements += self._strategy.truncate(table, shape, event.at, event.seq)
        statements.append(table.applied.advance(event.at.version, event.seq))
        self._run([Statement(sql, table.topic) for sql in statements])
        self._warehouse.rest()

    def close(self) -> None:
        self._pending = []
        self._forget()
        self._warehouse.close()

    # ------------------------------------------------------------------ optional protocols

    def reshape(self, event: SchemaChange, target: Target) -> None:
        known = self._table(target, event.old)
        self._evolve(known, event)
        known.applied = AppliedVersion(event.at.version, event.seq)
        known.ready.clear()
        known.staging.clear()

    def _evolve(self, known: _TableKnowledge, event: SchemaChange) -> None:
        """The change of shape, and that it is applied."""
        table, warehouse = known.table, self._warehouse
        present = warehouse.columns(warehouse.dialect.fit(self._strategy.place(table.topic)))
        steps = self._strategy.begin(table, self._node)
        steps += self._strategy.evolve(table, event, present) if present else []
        steps.append(table.applied.advance(event.at.version, event.seq))
        self._define(steps, table.topic)
        warehouse.rest()

    def finish_scan(
        self, target: Target, schema: TableSchema, at: Timestamp, ends: ScanEnd
    ) -> None:
        """Rows that the scan did not find go, as a delete of them would have had it."""
        shape = TargetShape(schema, target.topic)
        table = self._table(target, schema).table
        statements = self._strategy.begin(table, self._node)
        if ends is not ScanEnd.NOTHING:
            statements += self._strategy.end_scan(table, shape, at)
        statements.append(table.applied.advance(at.version, bookkeeping.LAST))
        statements.append(table.applied.scanned(at.version))
        self._run([Statement(sql, table.topic) for sql in statements])
        self._known.pop(target.topic, None)
        self._warehouse.rest()

    def compare(
        self,
        context: SinkContext,
        target: Target,
        schema: TableSchema,
        rows: Iterable[pa.Table],
        limit: int,
    ) -> list[Difference]:
        """How the target differs from the source (:meth:`sinks.base.Sink.compare`)."""
        table = held(self._warehouse, self.clock, lambda: self._names(target, context))
        return Comparison(
            self._warehouse,
            table,
            TargetShape(schema, target.topic),
            self._strategy.readable(table),
            self.clock,
        ).run(rows, limit)

    def dropped(self, target: Target) -> None:
        """The target goes too with ``on_drop = 'drop'``; else only what is ours goes."""
        self._connect()
        table = self._names(target)
        self._known.pop(target.topic, None)
        if not self._query(table.applied.read()):
            return  # nothing there carries the feed's mark
        d = table.d
        gone = []
        if self._targets.is_ours(table, staging_name(target.topic), STAGING_COLUMNS):
            gone.append(d.drop_table(table.staging))
        if self._targets.is_ours(table, scan_name(target.topic), NUMBERED_COLUMNS):
            gone.append(d.drop_table(table.scan))
        if self._policy.drop:
            gone += self._strategy.drop(table)
        self._define(gone, target.topic)
        if self._policy.drop:
            self._run([Statement(table.applied.forget(), target.topic)])
        self._warehouse.rest()

    # ------------------------------------------------------------------ tables

    @property
    def _node(self) -> str:
        return self._opened.node

    def _connect(self) -> None:
        warehouse = self._warehouse
        try:
            warehouse.connect()
            if not self._prepared:
                if not self._look_at_bookkeeping():
                    self._define(self._strategy.bookkeeping(warehouse), "")
                self._targets.booked = self._prepared = True
        except ChangefeedError:
            self._forget()
            raise

    def _look_at_bookkeeping(self) -> dict[str, str]:
        """Its columns; none where there is none yet.

        Raises:
            ChangefeedError: CF5003, something else has its name.
        """
        name = self._strategy.bookkeeping_names[0]
        present = self._warehouse.columns(name)
        lacking = {"id", "table_name", "version"} - {column.casefold() for column in present}
        if present and lacking:
            raise no_bookkeeping(self._targets.words(name), "schema or database")
        return present

    def _names(self, target: Target, context: SinkContext | None = None) -> Table:
        opened = context or self._opened
        job = f"{opened.state}/{opened.job_id}"
        applied = self._strategy.applied(self._warehouse, job, str(target.table))
        return self._strategy.table(self._warehouse, target.topic, self._policy, applied)

    def _table(self, target: Target, schema: TableSchema) -> _TableKnowledge:
        """The table and how far it is. A target that is not this feed's yet is marked.

        Raises:
            ChangefeedError: CF5008, it belongs to somebody else.
        """
        known = self._known.get(target.topic)
        if known is not None and known.table.source == str(target.table):
            return known
        table = self._names(target)
        self._strategy.check(table, schema)
        with self._errors():
            holding = self._targets.look(table, target, schema, self._opened)
        if holding.progress is None:
            self._take(table, target, schema, holding)
        version, seq, scanned = holding.progress or (0, 0, 0)
        applied = AppliedVersion(version, seq)
        known = self._known[target.topic] = _TableKnowledge(table, applied, scanned)
        return known

    def _take(
        self, table: Table, target: Target, schema: TableSchema, holding: TargetContent
    ) -> None:
        """The target gets the feed's mark."""
        statements = []
        if holding.stale:
            statements.append(table.applied.forget_others(holding.stale))
        if holding.claim is Claim.REPLACE:
            log.warning("existing_target = 'replace': the rows of %s go", target.topic)
            statements += self._strategy.empty(table)
        statements.append(table.applied.insert(self._opened.feed, target.topic))
        self._run([Statement(sql, target.topic) for sql in statements])

    def _prepare(self, known: _TableKnowledge, shape: TargetShape, *, scan: bool) -> None:
        """The target, and what stands beside it, exist and have every column of the shape."""
        mark = shape.schema.fingerprint()
        if mark in known.ready:
            return
        table, warehouse, strategy = known.table, self._warehouse, self._strategy
        strategy.check(table, shape.schema)
        self._look(table, shape)
        if strategy.has_side(table, shape.schema):
            self._beside(table, shape, strategy.side(shape.topic), NUMBERED_COLUMNS)
        present = warehouse.columns(warehouse.dialect.fit(strategy.place(shape.topic)))
        if present:
            self._complete(known, shape, present)
        else:
            if not scan and (known.applied.version or known.scanned):
                raise ChangefeedError(
                    "CF5006",
                    f"{shape.schema.table}: its target table {shape.topic} is gone",
                    detail=f"{warehouse.place}",
                    hint="ALTER CHANGEFEED .. DROP the table and ADD it again, so that it is "
                    "scanned again.",
                    target=shape.topic,
                )
            self._make(known, shape)
            known.applied, known.scanned = NOTHING_APPLIED, 0
        beside = strategy.settle(table, shape.schema)
        if beside:
            self._define(beside, shape.topic)
        known.ready.add(mark)

    def _make(self, known: _TableKnowledge, shape: TargetShape) -> None:
        """A new, empty target."""
        table = known.table
        made = [*self._strategy.create(table, shape.schema), table.applied.reset()]
        self._define(made, shape.topic)

    def _look(self, table: Table, shape: TargetShape) -> None:
        """What a subclass has to see before a target is made or taken. Raises CF5006 to refuse."""

    def _complete(
        self, known: _TableKnowledge, shape: TargetShape, present: Mapping[str, str]
    ) -> None:
        """A target that was there gets the columns it lacks; it must have the key's."""
        table = known.table
        wanted = self._strategy.columns(table, shape.schema)
        lacking = [name for name in wanted if name not in present]
        keys = [] if shape.keyless else [name for name in lacking if name in shape.key]
        if keys:
            raise ChangefeedError(
                "CF5006",
                f"{shape.schema.table}: the target table {shape.topic} has no column {keys[0]}, "
                "which is part of the key",
                hint="drop or rename the target table, or give the feed another schema.",
            )
        add = [table.d.add_column(table.name, name, wanted[name]) for name in lacking]
        if add:
            self._define(add, shape.topic)

    def begin_scan(
        self, target: Target, schema: TableSchema, version: int, *, after: int | None
    ) -> None:
        known, shape = self._table(target, schema), TargetShape(schema, target.topic)
        self._prepare(known, shape, scan=True)
        table = known.table
        if after is not None:
            gone = self._strategy.forget_scans(table, after)
            self._run([Statement(sql, shape.topic) for sql in gone])
        gathering = self._strategy.gathers(table, shape)
        if gathering:
            self._beside(table, shape, scan_name(shape.topic), NUMBERED_COLUMNS)
            self._define(gathering, shape.topic)

    def _gather(self, known: _TableKnowledge, shape: TargetShape, scan: bool) -> _PendingRows:
        """Where rows of this table and shape gather; the staging table is made when it is not
        there or has another shape."""
        for pending in self._pending:
            same = pending.table.topic == shape.topic and pending.scan == scan
            if same and pending.shape.schema == shape.schema:
                return pending
        mark = shape.schema.fingerprint()
        staging = known.staging.get(mark)
        if staging is None:
            staging = known.staging[mark] = self._make_staging(known, shape)
        pending = _PendingRows(known.table, shape, scan, _new_batch(self.clock), staging)
        self._pending.append(pending)
        return pending

    def _make_staging(self, known: _TableKnowledge, shape: TargetShape) -> str:
        warehouse = self._warehouse
        d = warehouse.dialect
        name = staging_name(shape.topic)
        if any(p.table.topic == shape.topic for p in self._pending):
            name += f"_{shape.schema.fingerprint()[:6]}"  # rows of another shape are waiting there
        name = d.fit(name)
        wanted = shape.staging_columns(d)
        present = self._beside(known.table, shape, name, STAGING_COLUMNS)
        create = d.create_staging(warehouse.name(name), wanted)
        stale = _new_batch(self.clock) - _STALE_US
        if not present:
            self._define([create], shape.topic)
        elif list(present) != list(wanted):
            self._define([d.drop_table(warehouse.name(name)), create], shape.topic)
        else:
            sql = f"DELETE FROM {warehouse.name(name)} WHERE {d.quote(BATCH)} < {stale}"
            self._run([Statement(sql, shape.topic)])
        return name

    def _beside(
        self, table: Table, shape: TargetShape, name: str, known: Sequence[str]
    ) -> dict[str, str]:
        """The columns of a table beside the target; none where it is not there.

        Raises:
            ChangefeedError: CF5008, it is somebody else's.
        """
        with self._errors():
            return self._targets.beside(table, name, known, str(shape.schema.table))

    # ------------------------------------------------------------------ rows

    def _load(self, pending: _PendingRows) -> None:
        if not pending.buffer:
            return
        rows = pa.concat_tables(pending.buffer)
        with self._errors():
            load_id = f"{self._node}_{pending.batch}_{pending.loads}"
            self._warehouse.load(pending.staging, rows, load_id)
        pending.loads += 1
        pending.buffer, pending.buffered = [], 0

    def _applying(self, pending: _PendingRows) -> list[Statement]:
        table, d = pending.table, self._warehouse.dialect
        staged = pending.staged(self._warehouse)
        where = f"{d.quote(BATCH)} = {staged.batch}"
        found = self._query(f"SELECT count(*) FROM {staged.staging} WHERE {where}")
        if int(str(found[0][0])) != staged.rows:
            raise ChangefeedError(
                "CF5001",
                f"staged rows of {table.topic} are gone",
                detail=f"{found[0][0]} of {staged.rows} rows",
            )
        statements = self._strategy.begin(table, self._node)
        statements += self._strategy.apply(table, staged)
        if not staged.scan:
            statements.append(table.applied.advance(staged.top.version, staged.top.seq or 0))
        statements.append(self._strategy.unstage(d, staged.staging, staged.batch))
        return [Statement(sql, table.topic) for sql in statements]

    # ------------------------------------------------------------------ statements

    def _define(self, statements: Sequence[str], topic: str) -> None:
        """Run definitions: together where they are transactional."""
        made = [Statement(sql, topic) for sql in statements]
        if self._warehouse.dialect.transactional_ddl:
            self._run(made)
        else:
            for one in made:
                self._run([one])

    def _run(self, statements: Sequence[Statement]) -> None:
        with self._errors():
            self._warehouse.run(statements)

    def _query(self, sql: str) -> list[tuple[object, ...]]:
        with self._errors():
            return self._warehouse.query(sql)

    def _errors(self) -> _ForgetOnError:
        return _ForgetOnError(self)

    def _forget(self) -> None:
        """Look at everything again: after an error nothing is sure."""
        self._known.clear()
        self._prepared = False


class _ForgetOnError:
    """Discards what the sink has cached about its target after an error of the target."""

    def __init__(self, sink: WarehouseSink) -> None:
        self._sink = sink

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ChangefeedError) and error.action is Action.RETRY:
            self._sink._forget()


_last_batch = 0
_batch_lock = threading.Lock()


def _new_batch(clock: Clock) -> int:
    """Microseconds since 1970, never twice in a process."""
    global _last_batch
    with _batch_lock:
        _last_batch = max(_last_batch + 1, clock.now().wall // 1_000)
        return _last_batch
