"""The sink all SQL warehouses share: stages typed rows, merges them, remembers how far it is.

``write`` gathers rows and loads them into staging tables; ``commit`` applies everything that was
written in one atomic run, with the bookkeeping of :mod:`.applied`. So readers see whole rounds
of the feed, and a round that comes again changes nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from changefeed.core.clock import Timestamp
from changefeed.core.errors import Action, ChangefeedError
from changefeed.core.events import Resolved, SchemaChange, Truncate
from changefeed.core.schema import TableSchema
from changefeed.options import ExistingTarget, Feature, History
from sinks.base import (
    Accepts,
    Batch,
    Capabilities,
    Delivery,
    Difference,
    Epoch,
    Pacing,
    Receipt,
    Sink,
    SinkContext,
    Target,
)
from sinks.history import ORDER
from sinks.ownership import Claim, policy_of
from sinks.warehouse import applied as bookkeeping
from sinks.warehouse.compare import Comparison
from sinks.warehouse.dialect import Statement, Warehouse
from sinks.warehouse.owning import (
    NUMBERED_COLUMNS,
    STAGING_COLUMNS,
    Holding,
    Targets,
)
from sinks.warehouse.staging import BATCH, SEQUENCE, Shape, check_values
from sinks.warehouse.strategy import Strategy
from sinks.warehouse.tables import Keeping, Staged, Table, scan_name, staging_name

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
class _Pending:
    """Rows of one table and shape since the last commit."""

    table: Table
    shape: Shape
    scan: bool
    batch: int
    staging: str
    rows: int = 0
    loads: int = 0
    missing: frozenset[int] = frozenset()
    top: tuple[int, int] = (0, 0)
    buffer: list[pa.Table] = field(default_factory=list)
    buffered: int = 0

    def staged(self, warehouse: Warehouse) -> Staged:
        return Staged(
            shape=self.shape,
            batch=self.batch,
            staging=warehouse.name(self.staging),
            rows=self.rows,
            scan=self.scan,
            missing=self.missing,
            top=self.top,
        )


@dataclass
class _Known:
    """What is known of a table since the last error."""

    table: Table
    version: int
    seq: int
    scanned: int
    ready: set[str] = field(default_factory=set)
    staging: dict[str, str] = field(default_factory=dict)


class WarehouseSink(Sink):
    """Keeps tables of a SQL warehouse equal to the source's. Used by one thread at a time."""

    capabilities: ClassVar[Capabilities] = Capabilities(
        accepts=Accepts.ROWS,
        exactly_once=True,
        pacing=Pacing(PACE, 500_000),
        resolved_by_topic=True,
        owns_targets=True,
        features=frozenset({Feature.MERGED_TABLES, Feature.HISTORY, Feature.EXISTING_TARGETS}),
        evolves=True,
        ends_scans=True,
        compares=True,
    )

    def __init__(
        self,
        warehouse: Warehouse,
        options: Mapping[str, object] | None = None,
        strategy: Strategy | None = None,
    ) -> None:
        self.pace = PACE
        self._warehouse = warehouse
        self._strategy = strategy or Strategy()
        self._keeping = read_options(options or {})
        self._context: SinkContext | None = None
        self._known: dict[str, _Known] = {}
        self._pending: list[_Pending] = []
        self._prepared = False
        # A scan that broke begins anew with ``open``: of each topic the version whose rows gather.
        self._scanning: dict[str, int] = {}
        self._policy = policy_of(options or {})

    @cached_property
    def _targets(self) -> Targets:
        return Targets(self._warehouse, self._strategy, self._policy)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._warehouse.place})"

    def pacing(self) -> Pacing:
        """As the last rounds took."""
        return Pacing(self.pace, self.capabilities.pacing.rows)

    def topic(self, name: str) -> str:
        """The target table of a source table: its name; dots become underscores."""
        return self._warehouse.dialect.fit(name.replace(".", "_"))

    # ------------------------------------------------------------------ the order of calls

    def open(self, context: SinkContext) -> None:
        self._context = context
        self._forget()
        self._scanning.clear()
        self._connect()
        self._warehouse.rest()

    def check(self, context: SinkContext) -> list[ChangefeedError]:
        """Reach, login, and whose the targets are; nothing is made, so the right to make tables
        shows with the feed."""
        try:
            self._warehouse.connect(make=False)
            if not self._warehouse.there():
                return []
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

    def write(self, batch: Batch) -> Receipt:
        """Gathers rows; a value that the target cannot hold is refused here."""
        rows = batch.rows
        if isinstance(rows, pa.RecordBatch):
            rows = pa.Table.from_batches([rows])
        receipt = Receipt(batch.partition, rows.num_rows, rows.nbytes)
        self._connect()
        known = self._table(batch.target, batch.schema)
        if not batch.scan:
            rows = _above(rows, known.version, known.seq)
        if rows.num_rows == 0:
            return receipt
        shape = self._shape(known, batch)
        pending = self._gather(known, shape, batch.scan)
        staged = shape.staged(rows, pending.batch)
        check_values(shape, staged, self._warehouse.dialect)
        pending.missing |= shape.missing(staged)
        pending.top = max(pending.top, _top(staged))
        pending.rows += staged.num_rows
        pending.buffer.append(staged)
        pending.buffered += staged.nbytes
        if sum(t.num_rows for t in pending.buffer) >= LOAD_ROWS or pending.buffered >= LOAD_BYTES:
            self._load(pending)
        return receipt

    def commit(self, epoch: Epoch, receipts: Sequence[Receipt]) -> Delivery:
        if not self._pending:
            self._warehouse.rest()
            return Delivery.DURABLE
        began = time.monotonic()
        self._connect()
        for pending in self._pending:
            self._load(pending)
        self._run([s for pending in self._pending for s in self._apply(pending)])
        for pending in self._pending:
            known = self._known.get(pending.table.topic)
            if known is not None and not pending.scan:
                known.version, known.seq = max((known.version, known.seq), pending.top)
        self._pending.clear()
        self._warehouse.rest()
        self._adapt(time.monotonic() - began)
        return Delivery.DURABLE

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
        """States the instant of which all tables of the feed are, beside them."""
        self._connect()
        ids = [self._names(target).applied.id for target in self._opened.targets]
        if ids:
            sql = self._strategy.resolved(self._warehouse, ids, str(mark.at))
            self._run([Statement(sql)])
        self._warehouse.rest()

    def truncate(self, event: Truncate, target: Target, payload: bytes) -> None:
        """All rows go, are marked or ended; replayed, it does nothing."""
        self._connect()
        known = self._table(target, event.schema)
        place = event.at.version, event.seq
        if place <= (known.version, known.seq):
            return
        shape = Shape(event.schema, target.topic)
        self._prepare(known, shape, scan=False)
        self._truncate(known, shape, event)
        known.version, known.seq = place

    def _truncate(self, known: _Known, shape: Shape, event: Truncate) -> None:
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

    def evolve(self, event: SchemaChange, target: Target) -> None:
        """Follow a change of shape; replayed, it does nothing."""
        self._connect()
        known = self._table(target, event.old)
        place = event.at.version, event.seq
        if place <= (known.version, known.seq):
            return
        self._evolve(known, event)
        known.version, known.seq = place
        known.ready.clear()
        known.staging.clear()

    def _evolve(self, known: _Known, event: SchemaChange) -> None:
        """The change of shape, and that it is applied."""
        table, warehouse = known.table, self._warehouse
        present = warehouse.columns(warehouse.dialect.fit(self._strategy.place(table.topic)))
        steps = self._strategy.begin(table, self._node)
        steps += self._strategy.evolve(table, event, present) if present else []
        steps.append(table.applied.advance(event.at.version, event.seq))
        self._define(steps, table.topic)
        warehouse.rest()

    def end_scan(self, target: Target, schema: TableSchema, at: Timestamp) -> None:
        """Rows that the scan did not find go, as a delete of them would have had it."""
        self._connect()
        known = self._table(target, schema)
        if known.scanned >= at.version:
            return
        shape = Shape(schema, target.topic)
        self._prepare(known, shape, scan=True)
        table = known.table
        if self._keeping.history is History.OFF:
            self._begin_scan(known, shape, at.version)  # no row may have come
        statements = self._strategy.begin(table, self._node)
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
        self._warehouse.connect(make=False)
        table = self._names(target, context)
        self._warehouse.rest()
        return Comparison(
            self._warehouse, table, Shape(schema, target.topic), self._strategy.readable(table)
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
        if self._keeping.drop:
            gone += self._strategy.drop(table)
        self._define(gone, target.topic)
        if self._keeping.drop:
            self._run([Statement(table.applied.forget(), target.topic)])
        self._warehouse.rest()

    # ------------------------------------------------------------------ tables

    @property
    def _node(self) -> str:
        return self._opened.node

    @property
    def _opened(self) -> SinkContext:
        if self._context is None:
            raise AssertionError("open comes first")
        return self._context

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
            raise ChangefeedError(
                "CF5003",
                f"{self._targets.words(name)} is in the way of the sink's bookkeeping, and was "
                "not made by a changefeed",
                detail="it was left as it is",
                hint="rename it, or give the sink another schema or database.",
            )
        return present

    def _names(self, target: Target, context: SinkContext | None = None) -> Table:
        opened = context or self._opened
        job = f"{opened.state}/{opened.job_id}"
        applied = self._strategy.applied(self._warehouse, job, str(target.table))
        return self._strategy.table(self._warehouse, target.topic, self._keeping, applied)

    def _table(self, target: Target, schema: TableSchema) -> _Known:
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
        known = self._known[target.topic] = _Known(table, version, seq, scanned)
        return known

    def _take(self, table: Table, target: Target, schema: TableSchema, holding: Holding) -> None:
        """The target gets the feed's mark."""
        statements = []
        if holding.stale:
            statements.append(table.applied.forget_others(holding.stale))
        if holding.claim is Claim.REPLACE:
            log.warning("existing_target = 'replace': the rows of %s go", target.topic)
            statements += self._strategy.empty(table)
        statements.append(table.applied.insert(self._opened.feed, target.topic))
        self._run([Statement(sql, target.topic) for sql in statements])

    def _shape(self, known: _Known, batch: Batch) -> Shape:
        shape = Shape(batch.schema, batch.target.topic)
        self._prepare(known, shape, scan=batch.scan)
        if batch.scan:
            self._begin_scan(known, shape, batch.epoch.upto.version)
        return shape

    def _prepare(self, known: _Known, shape: Shape, *, scan: bool) -> None:
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
            if not scan and (known.version or known.scanned):
                raise ChangefeedError(
                    "CF5006",
                    f"{shape.schema.table}: its target table {shape.topic} is gone",
                    detail=f"{warehouse.place}",
                    hint="ALTER CHANGEFEED .. DROP the table and ADD it again, so that it is "
                    "scanned anew.",
                    target=shape.topic,
                )
            self._make(known, shape)
            known.version = known.seq = known.scanned = 0
        beside = strategy.settle(table, shape.schema)
        if beside:
            self._define(beside, shape.topic)
        known.ready.add(mark)

    def _make(self, known: _Known, shape: Shape) -> None:
        """A new, empty target."""
        table = known.table
        made = [*self._strategy.create(table, shape.schema), table.applied.reset()]
        self._define(made, shape.topic)

    def _look(self, table: Table, shape: Shape) -> None:
        """What a subclass has to see before a target is made or taken. Raises CF5006 to refuse."""

    def _complete(self, known: _Known, shape: Shape, present: Mapping[str, str]) -> None:
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

    def _begin_scan(self, known: _Known, shape: Shape, version: int) -> None:
        """Nothing is left of a scan that broke off, where its rows could not be told from this
        one's; once since ``open``."""
        table = known.table
        if self._scanning.get(shape.topic) == version:
            return
        gone = self._strategy.begin_scan(table, shape)
        if gone:
            self._run([Statement(sql, shape.topic) for sql in gone])
        anew = self._strategy.gathers(table, shape)
        if anew:
            self._beside(table, shape, scan_name(shape.topic), NUMBERED_COLUMNS)
            self._define(anew, shape.topic)
        self._scanning[shape.topic] = version

    def _gather(self, known: _Known, shape: Shape, scan: bool) -> _Pending:
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
        pending = _Pending(known.table, shape, scan, _new_batch(), staging)
        self._pending.append(pending)
        return pending

    def _make_staging(self, known: _Known, shape: Shape) -> str:
        warehouse = self._warehouse
        d = warehouse.dialect
        name = staging_name(shape.topic)
        if any(p.table.topic == shape.topic for p in self._pending):
            name += f"_{shape.schema.fingerprint()[:6]}"  # rows of another shape are waiting there
        name = d.fit(name)
        wanted = shape.staging_columns(d)
        present = self._beside(known.table, shape, name, STAGING_COLUMNS)
        create = d.create_staging(warehouse.name(name), wanted)
        stale = _new_batch() - _STALE_US
        if not present:
            self._define([create], shape.topic)
        elif list(present) != list(wanted):
            self._define([d.drop_table(warehouse.name(name)), create], shape.topic)
        else:
            sql = f"DELETE FROM {warehouse.name(name)} WHERE {d.quote(BATCH)} < {stale}"
            self._run([Statement(sql, shape.topic)])
        return name

    def _beside(
        self, table: Table, shape: Shape, name: str, known: Sequence[str]
    ) -> dict[str, str]:
        """The columns of a table beside the target; none where it is not there.

        Raises:
            ChangefeedError: CF5008, it is somebody else's.
        """
        with self._errors():
            return self._targets.beside(table, name, known, str(shape.schema.table))

    # ------------------------------------------------------------------ rows

    def _load(self, pending: _Pending) -> None:
        if not pending.buffer:
            return
        rows = pa.concat_tables(pending.buffer)
        with self._errors():
            load_id = f"{self._node}_{pending.batch}_{pending.loads}"
            self._warehouse.load(pending.staging, rows, load_id)
        pending.loads += 1
        pending.buffer, pending.buffered = [], 0

    def _apply(self, pending: _Pending) -> list[Statement]:
        table, d = pending.table, self._warehouse.dialect
        staged = pending.staged(self._warehouse)
        where = f"{d.quote(BATCH)} = {staged.batch}"
        found = self._query(f"SELECT count(*) FROM {staged.staging} WHERE {where}")
        if int(str(found[0][0])) != staged.rows:
            raise ChangefeedError(
                "CF5001",
                f"staged rows of {table.topic} are not there any more",
                detail=f"{found[0][0]} of {staged.rows} rows",
            )
        statements = self._strategy.begin(table, self._node)
        statements += self._strategy.apply(table, staged)
        if not staged.scan:
            statements.append(table.applied.advance(*staged.top))
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

    def _errors(self) -> _Forgetting:
        return _Forgetting(self)

    def _forget(self) -> None:
        """Look at everything anew: after an error nothing is sure."""
        self._known.clear()
        self._prepared = False

    def _adapt(self, seconds: float) -> None:
        wanted = min(SLOWEST, max(PACE, seconds * SHARE))
        self.pace = wanted if wanted > self.pace else (self.pace + wanted) / 2


class _Forgetting:
    """After an error of the target what the sink believed of it is not sure any more."""

    def __init__(self, sink: WarehouseSink) -> None:
        self._sink = sink

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ChangefeedError) and error.action is Action.RETRY:
            self._sink._forget()


def read_options(options: Mapping[str, object]) -> Keeping:
    """How the options want tables kept."""

    def text(name: str, default: str) -> str:
        value = options.get(name)
        return default if value is None else str(value)

    sequence = text("sequence_column", SEQUENCE)
    return Keeping(
        soft=text("deletes", "yes") == "soft",
        history=History(text("history", "off")),
        sequence="" if sequence == "none" else sequence,
        drop=text("on_drop", "keep") == "drop",
        shared=policy_of(options) is ExistingTarget.MERGE,
    )


def _above(rows: pa.Table, version: int, seq: int) -> pa.Table:
    """The changes that were not applied yet."""
    if not version:
        return rows
    number = pc.add(rows["wall"], rows["logical"].cast(pa.int64()))
    later = pc.and_(pc.equal(number, version), pc.greater(rows["seq"], seq))
    return rows.filter(pc.or_(pc.greater(number, version), later))


def _top(staged: pa.Table) -> tuple[int, int]:
    version = pc.max(staged[SEQUENCE]).as_py()
    last = staged.filter(pc.equal(staged[SEQUENCE], version))
    return version, pc.max(last[ORDER]).as_py()


_last_batch = 0
_batch_lock = threading.Lock()


def _new_batch() -> int:
    """Microseconds since 1970, never twice in a process."""
    global _last_batch
    with _batch_lock:
        _last_batch = max(_last_batch + 1, time.time_ns() // 1_000)
        return _last_batch
