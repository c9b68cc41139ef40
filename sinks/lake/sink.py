"""``delta://`` and ``iceberg://``: tables that Spark's MERGE keeps equal to the source.

Rows are staged as files in the feed's own directory; a commit is one MERGE a table. What a
table is complete to stands in the same commit as the rows, so whatever comes again after a
crash is known and left out.
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError
from changefeed.core.events import Resolved, SchemaChange, Truncate
from changefeed.core.parameters import Parameter
from changefeed.core.schema import TableSchema
from changefeed.options import (
    DELETES,
    EXPIRE,
    HISTORY,
    ON_DROP,
    OPTIMIZE,
    SEQUENCE_COLUMN,
    Deletes,
    ExistingTarget,
    Feature,
    History,
    OnDrop,
)
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
    SparkAccess,
    Target,
)
from sinks.lake import delta, hdfs, iceberg, merge
from sinks.lake.applied import Applied
from sinks.lake.compare import LakeComparison, staged_source
from sinks.lake.failure import told
from sinks.lake.place import PARAMETERS, place_of
from sinks.lake.staging import OPERATION, VERSION, Staged, bounds, read, settled, stage
from sinks.lake.table import OWNER, LakeTable, Rows, known_as
from sinks.lake.upkeep import Upkeep
from sinks.naming import kafka_topic_name
from sinks.ownership import NOT_OURS, Claim, Owner, claim, living, policy_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

#: Between two merges pass at least so many times the seconds that one takes.
REST = 1.0
#: Seconds between two merges, least and most.
PACES = (1.0, 30.0)
#: Rows of a scan that are appended at a time.
ROUND_ROWS = 2_000_000
#: Of a backlog a round takes what fits, because a merge looks through the table whatever it
#: brings: rows, bytes of their keys (which are held in memory), bytes of staged files.
MOST_ROWS, MOST_KEY_BYTES, MOST_BYTES = 10_000_000, 96 << 20, 1 << 30
#: The longest name of a table.
NAME_LIMIT = 200
#: Table with the resolved timestamp of each feed.
RESOLVED_TABLE = "_changefeed_resolved"
#: Temporary view of staged rows, in a session that one thread at a time uses.
VIEW = "changefeed_rows"


class LakeSink(Sink):
    """The tables of one feed at one place. One thread at a time uses an object."""

    capabilities: ClassVar[Capabilities]
    parameters: ClassVar[tuple[Parameter, ...]] = PARAMETERS

    def __init__(self, uri: str, options: Mapping[str, object] | None = None) -> None:
        """Check the URI and the options; nothing is connected.

        Raises:
            ChangefeedError: CF1201, CF1202, CF1206, CF1207.
        """
        self._options = dict(options or {})
        self._place = place_of(uri)
        self._layout = _layout(self._options, self._place.format)
        self.pace = PACES[0]
        self._merges: list[float] = []
        self._context: SinkContext | None = None
        self._session: SparkSession | None = None
        self._base: SparkSession | None = None
        self._tables: dict[str, LakeTable] = {}
        self._floors: dict[str, Applied] = {}
        self._scans: dict[str, Timestamp] = {}
        self._shapes: dict[str, str] = {}
        self._new: set[str] = set()
        self._owned: dict[str, Owner] = {}
        self._staged: dict[str, Staged] = {}
        self._numbers = itertools.count(1)
        self._upkeep = Upkeep(_seconds(self._options, OPTIMIZE), _seconds(self._options, EXPIRE))

    def topic(self, name: str) -> str:
        """The name of a table's target: characters a directory may have trouble with become
        ``_uXXXX_``."""
        return kafka_topic_name(name, NAME_LIMIT)

    def claims(self, topic: str) -> tuple[str, ...]:
        """See :meth:`sinks.base.Sink.claims`: many catalogs of Iceberg's fold case."""
        return (topic.casefold() if self._place.format == "iceberg" else topic,)

    def reserved(self) -> tuple[str, ...]:
        """See :meth:`sinks.base.Sink.reserved`."""
        return (RESOLVED_TABLE,)

    # -- the order of calls -----------------------------------------------------------------

    def open(self, context: SinkContext) -> None:
        """See :class:`sinks.base.Sink`.

        Raises:
            ChangefeedError: CF5001, the place cannot be reached; CF4003, jars are missing.
        """
        if context.spark is None or not context.scratch:
            raise ChangefeedError("CF1303", "tables of a lake are written by the node's Spark")
        self._context = context
        self._options |= context.options
        Path(context.scratch).mkdir(parents=True, exist_ok=True)
        # A scan that broke off comes again as a whole, and at the same timestamp where nothing
        # was committed since: what is there of it is then old.
        self._scans.clear()
        self._new.clear()
        with self._working() as session:
            hdfs.reach(session, self._place)
            for target in context.targets:
                self._table(session, target)

    def check(self, context: SinkContext) -> list[ChangefeedError]:
        """See :meth:`sinks.base.Sink.check`: without Spark, as far as that goes."""
        from sinks.lake import look

        keyless = []
        for target in context.targets:
            try:
                if target.schema is not None:
                    self._check_key(target.schema)
            except ChangefeedError as error:
                keyless.append(error)
        return keyless + look.problems(self._place, self._layout, context, policy_of(self._options))

    def pacing(self) -> Pacing:
        """As the last rounds took; none of a backlog once the round has enough bytes."""
        staged = self._staged.values()
        keys, size = sum(file.keys.nbytes for file in staged), sum(file.bytes for file in staged)
        full = keys >= MOST_KEY_BYTES or size >= MOST_BYTES
        return Pacing(self.pace, 0 if full else MOST_ROWS)

    def overlooked(self) -> str:
        """See :meth:`sinks.base.Sink.overlooked`."""
        from sinks.lake import look

        return look.overlooked(self._place)

    def write(self, batch: Batch) -> Receipt:
        """Stage the rows that the target does not have."""
        self._check_key(batch.schema)
        after = Applied() if batch.scan else self._floor(batch.target, batch.schema)
        path = self._scratch / f"{batch.epoch.number:012d}-{next(self._numbers):08d}.parquet"
        staged = stage(batch, path, after=after, history=self._layout.history)
        if staged is None:
            return Receipt(batch.partition, batch.rows.num_rows, 0)
        self._staged[staged.path] = staged
        return Receipt(batch.partition, batch.rows.num_rows, staged.bytes, (staged.path,))

    def commit(self, epoch: Epoch, receipts: Sequence[Receipt]) -> Delivery:
        """Merge what was staged, table by table."""
        paths = [path for receipt in receipts for path in receipt.staged]
        groups: dict[tuple[str, str], list[Staged]] = {}
        for path in paths:
            staged = self._staged.pop(path)
            shape = staged.schema.fingerprint()
            groups.setdefault((staged.target.topic, shape), []).append(staged)
        started = time.monotonic()
        try:
            for (topic, shape), files in groups.items():
                more = any(other == topic and s != shape for other, s in list(groups))
                self._commit_table(epoch, files, part=more)
        finally:
            _remove(paths)
        if groups:
            self._rest(time.monotonic() - started)
        return Delivery.DURABLE

    def _rest(self, took: float) -> None:
        """Set the pace by the shorter of the last two merges: now and then a commit of Delta's sums
        up its log, too, and takes several times as long."""
        least, most = PACES
        # The first merge loads and compiles what the others run: it says nothing of them.
        if self._merges:
            usual = took if len(self._merges) < 2 else min(took, self._merges[-1])
            self.pace = min(most, max(least, REST * usual))
        self._merges = [*self._merges[-1:], took]

    def abort(self, epoch: Epoch, receipts: Sequence[Receipt]) -> None:
        """Forget what is staged."""
        _remove(self._staged)
        self._staged.clear()

    def resolved(self, mark: Resolved, payload: bytes) -> None:
        """State it in a table of its own; each commit of a table says its own timestamp."""
        context = self._opened
        with self._working() as session:
            table = self._lake_table(session, RESOLVED_TABLE)
            if RESOLVED_TABLE not in self._shapes:
                if table.exists():
                    _check_resolved_table(table, self._place.shown)
                else:
                    table.create(
                        {"feed": "string", "resolved": "string", "resolved_at": "timestamp"}, {}
                    )
                self._shapes[RESOLVED_TABLE] = ""
            at = merge.moment(str(mark.at.wall))
            row = (
                f"SELECT {merge.literal(context.feed)} AS feed, "
                f"{merge.literal(str(mark.at))} AS resolved, {at} AS resolved_at"
            )
            table.run(
                f"MERGE INTO {table.ident} AS t USING ({row}) AS s ON t.feed = s.feed "
                "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
            )

    def truncate(self, event: Truncate, target: Target, payload: bytes) -> None:
        """Every row there is goes, is marked, or is ended."""
        place = Applied(event.at.version, event.seq)
        if self._floor(target, event.schema).covers(place):
            return
        with self._writing(target, event.schema) as lake:
            sequence = merge.quote(self._layout.sequence)
            if self._layout.history == "append":
                statement = merge.truncation(lake.ident, self._layout, event.at.version)
            else:
                condition = f"{sequence} <= {event.at.version}"
                if policy_of(self._options) is not ExistingTarget.MERGE:
                    condition = f"({condition} OR {sequence} IS NULL)"
                statement = merge.remove(lake.ident, self._layout, condition, event.at.version)
            with lake.commit_notes(self._opened.feed, applied=place):
                lake.run(statement)
        self._floors[target.topic] = place

    def close(self) -> None:
        """Forget the session and what is staged."""
        self._forget()
        _remove(self._staged)
        self._staged.clear()
        self._context = None

    # -- what a sink may do besides -----------------------------------------------------------

    def evolve(self, event: SchemaChange, target: Target) -> None:
        """See :meth:`sinks.base.Sink.evolve`."""
        place = event.at.version, event.seq
        if self._floor(target, event.old).covers(Applied(*place)):
            return
        self._check_key(event.new)
        with self._working(target) as session:
            lake = self._table(session, target)
            owner = self._own(lake, target, event.old)
            if not lake.exists() or lake.shape() < place:
                lake.evolve(event.old, event.new)
                lake.ensure(event.new, owner)
                lake.set_shape(*place)
        self._forget_table(target)

    def end_scan(self, target: Target, schema: TableSchema, at: Timestamp) -> None:
        """See :meth:`sinks.base.Sink.end_scan`."""
        self._check_key(schema)
        with self._writing(target, schema) as lake:
            if self._layout.history == "append":
                with lake.commit_notes(self._opened.feed, at):
                    lake.run(
                        merge.broken_scans(lake.ident, self._layout, lake.scanned(), at.version)
                    )
                lake.set_scanned(at.version)
                return
            if target.topic in self._new:
                return
            condition = f"{merge.quote(self._layout.sequence)} < {at.version}"
            with lake.commit_notes(self._opened.feed, at):
                lake.run(merge.remove(lake.ident, self._layout, condition, at.version))

    def dropped(self, target: Target) -> None:
        """See :meth:`sinks.base.Sink.dropped`."""
        if self._options.get(ON_DROP.name) != OnDrop.DROP:
            return
        with self._working(target) as session:
            lake = self._table(session, target)
            own = Owner.of(self._opened, target)
            if lake.exists() and any(mark.same(own) for mark in known_as(own, lake.marks())):
                lake.drop()
        self._forget_table(target)

    def write_scan(
        self, rows: DataFrame, epoch: Epoch, target: Target, schema: TableSchema
    ) -> Receipt:
        """See :meth:`sinks.base.Sink.write_scan`: into an empty table rows go as they come."""
        self._check_key(schema)
        with self._writing(target, schema) as lake:
            if lake.empty() and not (schema.keyless and self._layout.history == "off"):
                self._new.add(target.topic)
                count = self._append_scan(lake, _staged_form(rows, schema), epoch, schema)
            else:
                # A MERGE reads its source more than once.
                path = self._scratch / f"scan-{epoch.number:012d}-{next(self._numbers):08d}"
                try:
                    _staged_form(rows, schema).write.parquet(str(path))
                    staged = lake.session.read.parquet(str(path))
                    count = staged.count()
                    self._load(lake, staged, epoch, target, schema)
                finally:
                    shutil.rmtree(path, ignore_errors=True)
        return Receipt(0, count, 0)

    def compare(
        self,
        context: SinkContext,
        target: Target,
        schema: TableSchema,
        rows: Iterable[pa.Table],
        limit: int,
    ) -> list[Difference]:
        """See :meth:`sinks.base.Sink.compare`."""
        self._context = context
        with staged_source(rows, schema, context.scratch) as staged, self._working(target) as s:
            return LakeComparison(self._table(s, target), self._layout, schema).run(staged, limit)

    # -- one table --------------------------------------------------------------------------

    def _commit_table(self, epoch: Epoch, files: Sequence[Staged], *, part: bool) -> None:
        """One commit of one table; ``part``: there are more of this round."""
        target, schema = files[0].target, files[0].schema
        if self._layout.history == "off":
            files = settled(files)
        with self._writing(target, schema) as lake:
            frame = read(lake.session, files)
            if files[0].scan:
                self._load(lake, frame, epoch, target, schema)
                return
            frame.createOrReplaceTempView(VIEW)
            version, seq = max(file.last for file in files)
            # A transaction that alters its table in its middle is cut there.
            whole = not part and epoch.upto.version >= version
            applied = Applied(epoch.upto.version) if whole else Applied(version, seq)
            upto = epoch.upto if whole else None
            with lake.commit_notes(self._opened.feed, upto, applied):
                if not self._upserted(lake, schema, files):
                    rows = sum(file.rows for file in files)
                    lake.run(self._statement(lake, schema, files), rows)
            self._upkeep.after_commit(lake)
        self._floors[target.topic] = applied

    def _upserted(self, lake: LakeTable, schema: TableSchema, files: Sequence[Staged]) -> bool:
        """Whether the table took the rows by a way of its own."""
        plain = self._layout.history == "off" and not self._layout.soft and not schema.keyless
        if not plain or any(file.incomplete for file in files):
            return False
        return lake.upsert(
            Rows(
                lake.session.sql(merge.source(schema, VIEW)),
                schema,
                sum(file.rows for file in files),
                sum(file.keys.nbytes for file in files),
                _limits(schema, files),
            )
        )

    def _statement(self, lake: LakeTable, schema: TableSchema, files: Sequence[Staged]) -> str:
        layout, limits = self._layout, _limits(schema, files)
        if layout.history == "append":
            return merge.append(lake.ident, schema, layout, VIEW)
        if schema.keyless:
            return merge.counted(lake.ident, schema, layout, VIEW)
        if layout.history == "scd2":
            return merge.versions(lake.ident, schema, layout, VIEW, limits)
        folded = any(file.incomplete for file in files)
        rows = merge.folded_source(schema, VIEW) if folded else merge.source(schema, VIEW)
        return merge.merge(lake.ident, schema, layout, rows, bounds=limits, folded=folded)

    def _load(
        self, lake: LakeTable, rows: DataFrame, epoch: Epoch, target: Target, schema: TableSchema
    ) -> None:
        """Rows of a scan, which may be read more than once."""
        if schema.keyless and self._layout.history == "off":
            self._load_counted(lake, rows, epoch, target, schema)
        elif lake.empty():
            self._new.add(target.topic)
            self._append_scan(lake, rows, epoch, schema)
        else:
            self._merge_scan(lake, rows, epoch, schema)

    def _load_counted(
        self, lake: LakeTable, rows: DataFrame, epoch: Epoch, target: Target, schema: TableSchema
    ) -> None:
        """Nothing tells a row of an earlier scan from an equal one of this: the first rows of a
        scan replace what is there, which is older as a whole."""
        rows.createOrReplaceTempView(VIEW)
        with lake.commit_notes(self._opened.feed, epoch.upto):
            if self._scans.get(target.topic) == epoch.upto:
                lake.run(merge.counted(lake.ident, schema, self._layout, VIEW))
            else:
                lake.replace(merge.numbered(schema, self._layout, VIEW))
        self._scans[target.topic] = epoch.upto

    def _append_scan(
        self, lake: LakeTable, rows: DataFrame, epoch: Epoch, schema: TableSchema
    ) -> int:
        from pyspark.sql import Observation
        from pyspark.sql import functions as F

        seen = Observation()
        rows = _moved(rows, lake.session).observe(seen, F.count(F.lit(1)).alias("rows"))
        rows.createOrReplaceTempView(VIEW)
        own = merge.first_version(self._layout, VERSION)
        listed = [f"c{i} AS {merge.quote(c.name)}" for i, c in enumerate(schema.columns)]
        listed += [f"{value} AS {merge.quote(name)}" for name, value in own.items()]
        query = f"SELECT {', '.join(listed)} FROM ({merge.source(schema, VIEW)})"
        with lake.commit_notes(self._opened.feed, epoch.upto):
            lake.append(lake.session.sql(query))
        return int(seen.get["rows"])

    def _merge_scan(
        self, lake: LakeTable, rows: DataFrame, epoch: Epoch, schema: TableSchema
    ) -> None:
        rows.createOrReplaceTempView(VIEW)
        source = merge.source(schema, VIEW)
        layout = self._layout
        if layout.history == "append":
            self._append_scan(lake, rows, epoch, schema)
            return
        if layout.history == "scd2":
            statement = merge.scanned_versions(lake.ident, schema, layout, source)
        else:
            statement = merge.merge(lake.ident, schema, layout, source)
        with lake.commit_notes(self._opened.feed, epoch.upto):
            lake.run(statement)

    # -- what is known of tables ------------------------------------------------------------

    def _floor(self, target: Target, schema: TableSchema) -> Applied:
        """Up to where the target has every change.

        Raises:
            ChangefeedError: CF5008, it belongs to somebody else.
        """
        if target.topic not in self._floors:
            with self._working(target) as session:
                lake = self._table(session, target)
                there = lake.exists()
                if there:
                    self._own(lake, target, schema)
                self._floors[target.topic] = lake.floor() if there else Applied()
        return self._floors[target.topic]

    def _table(self, session: SparkSession, target: Target) -> LakeTable:
        return self._lake_table(session, target.topic)

    def _lake_table(self, session: SparkSession, name: str) -> LakeTable:
        found = self._tables.get(name)
        if found is None:
            kind = delta.DeltaTable if self._place.format == "delta" else iceberg.IcebergTable
            found = kind(session, self._place, name, self._layout, self._options)
            self._tables[name] = found
        return found

    @contextmanager
    def _writing(self, target: Target, schema: TableSchema) -> Iterator[LakeTable]:
        """The table, in the shape of ``schema``; what it knew is asked again after a failure."""
        try:
            with self._working(target) as session:
                lake = self._table(session, target)
                owner = self._own(lake, target, schema)
                if self._shapes.get(target.topic) != schema.fingerprint():
                    lake.ensure(schema, owner)
                    self._shapes[target.topic] = schema.fingerprint()
                yield lake
        except BaseException:
            self._forget_table(target)
            raise

    def _own(self, lake: LakeTable, target: Target, schema: TableSchema) -> Owner:
        """The table may be written to by this feed; it carries the feed's mark, or gets it.

        Raises:
            ChangefeedError: CF5008, it belongs to somebody else.
        """
        context = self._opened
        owner = Owner.of(context, target)
        if self._owned.get(target.topic) == owner:
            return owner
        exists = lake.exists()
        marks = known_as(owner, lake.marks()) if exists else []
        found = claim(
            owner,
            marks,
            feeds=living(context),
            policy=policy_of(self._options),
            exists=exists,
            holds_rows=lambda: not lake.empty(),
            what=f"table {target.topic} of {self._place.shown}",
            usable=not marks or self._layout.sequence in lake.columns(),
        )
        if found is Claim.MERGE:
            self._check_shared(schema)
        if found is Claim.REPLACE:
            lake.delete_all()
        if exists and lake.setting(OWNER) != owner.text:
            lake.set_owner(owner)
        self._owned[target.topic] = owner
        return owner

    def _check_shared(self, schema: TableSchema) -> None:
        if schema.keyless and self._layout.history == "off":
            raise ChangefeedError(
                NOT_OURS,
                f"{schema.table}: existing_target = 'merge' needs a key, to tell its rows from "
                "those that are there",
                hint="add a primary key at the source, or take another target by "
                "FOR table AS name.",
            )

    def _forget_table(self, target: Target) -> None:
        self._owned.pop(target.topic, None)
        self._floors.pop(target.topic, None)
        self._shapes.pop(target.topic, None)
        self._scans.pop(target.topic, None)
        self._new.discard(target.topic)

    def _check_key(self, schema: TableSchema) -> None:
        soft = self._layout.soft and self._layout.history == "off"
        if schema.keyless and (soft or self._layout.history == "scd2"):
            raise ChangefeedError(
                "CF5003",
                f"table {schema.table} has no key, so a row cannot be marked or ended",
                hint="add a primary key at the source, leave out deletes = 'soft' and "
                "history = 'scd2', or keep every change with history = 'append'.",
            )

    # -- Spark ------------------------------------------------------------------------------

    @contextmanager
    def _working(self, target: Target | None = None) -> Iterator[SparkSession]:
        """A session of our own for one piece of work, in a pool of the feed's own."""
        name = target.topic if target else ""
        with self._spark.use(packs=self._place.packs) as base:
            context = base.sparkContext
            context.setLocalProperty("spark.scheduler.pool", f"lake-{self._opened.job_id}")
            try:
                with _active(self._own_session(base)) as session:
                    yield session
            except ChangefeedError as error:
                error.target = error.target or name
                raise
            except Exception as failure:
                found = told(failure, name, self._place.shown)
                if found is None:
                    raise
                found.target = name
                raise found from failure
            finally:
                with contextlib.suppress(Exception):  # where the JVM is gone, so is the pool
                    context.setLocalProperty("spark.scheduler.pool", None)  # type: ignore[arg-type]

    def _own_session(self, base: SparkSession) -> SparkSession:
        """Settings of a commit are settings of a session, so each sink object has its own."""
        if self._session is None or self._base is not base:
            self._forget()
            session = base.newSession()
            known = delta.SETTINGS if self._place.format == "delta" else {}
            own = iceberg.settings(self._place) if self._place.format == "iceberg" else {}
            if self._place.format == "delta":
                own = dict(self._place.settings)
            for name, value in {**known, **own}.items():
                session.conf.set(name, value)
            self._session, self._base = session, base
        return self._session

    def _forget(self) -> None:
        self._session = self._base = None
        self._tables.clear()
        self._owned.clear()
        self._floors.clear()
        self._shapes.clear()

    @property
    def _opened(self) -> SinkContext:
        if self._context is None:
            raise RuntimeError("the sink is not open")
        return self._context

    @property
    def _spark(self) -> SparkAccess:
        spark = self._opened.spark
        if spark is None:
            raise RuntimeError("the sink was opened without Spark")
        return spark

    @property
    def _scratch(self) -> Path:
        return Path(self._opened.scratch)


def _check_resolved_table(table: LakeTable, place: str) -> None:
    """The table of resolved timestamps is ours."""
    if {"feed", "resolved", "resolved_at"} - set(table.columns()):
        raise ChangefeedError(
            "CF5003",
            f"table {table.name} of {place} is in the way of the sink's bookkeeping, and was not "
            "made by a changefeed",
            detail="it was left as it is",
            hint="rename it, or give the sink another place.",
        )


def _able(pack: str) -> Capabilities:
    return Capabilities(
        accepts=Accepts.ROWS,
        exactly_once=True,
        pacing=Pacing(PACES[0], ROUND_ROWS),
        spark_packs=(pack,),
        owns_targets=True,
        features=frozenset(
            {
                Feature.MERGED_TABLES,
                Feature.HISTORY,
                Feature.EXISTING_TARGETS,
                Feature.FILE_LAYOUT,
                Feature.FILE_UPKEEP,
            }
        ),
        evolves=True,
        ends_scans=True,
        scans_by_spark=True,
        compares=True,
    )


class DeltaSink(LakeSink):
    """``delta://``"""

    capabilities: ClassVar[Capabilities] = _able("delta")


class IcebergSink(LakeSink):
    """``iceberg://``"""

    capabilities: ClassVar[Capabilities] = _able("iceberg")


@contextmanager
def _active(session: SparkSession) -> Iterator[SparkSession]:
    """The session is also what Java code of this thread takes for its own: Delta reads settings
    of the active one."""
    java: Any = session.sparkContext._jvm
    sessions = java.org.apache.spark.sql.classic.SparkSession
    before = sessions.getActiveSession()
    sessions.setActiveSession(session._jsparkSession)
    try:
        yield session
    finally:
        with contextlib.suppress(Exception):  # where the JVM is gone, so is the thread's session
            if before.isDefined():
                sessions.setActiveSession(before.get())
            else:
                sessions.clearActiveSession()


def _layout(options: Mapping[str, object], table_format: str) -> merge.Layout:
    sequence = str(options.get(SEQUENCE_COLUMN.name) or SEQUENCE_COLUMN.default)
    if sequence == "none":
        raise ChangefeedError(
            "CF1206",
            "tables of a lake keep the version of a row in a column: sequence_column cannot be "
            "none",
            hint="leave the option out, or name the column.",
        )
    soft = options.get(DELETES.name) == Deletes.SOFT
    history = str(options.get(HISTORY.name) or History.OFF)
    return merge.Layout(sequence, soft, history, merge.DELETED[table_format])


def _seconds(options: Mapping[str, object], row: object) -> float | None:
    value = options.get(getattr(row, "name", ""))
    return float(value) if isinstance(value, int | float) else None


def _limits(schema: TableSchema, files: Sequence[Staged]) -> dict[str, tuple[object, object]]:
    found = {}
    for number in schema.key:
        limit = bounds(files, f"c{number}")
        if limit is not None and merge.comparable(schema.columns[number]):
            found[f"c{number}"] = limit
    return found


def _staged_form(rows: DataFrame, schema: TableSchema) -> DataFrame:
    """Rows of a scan (``log_schema``) as staged rows, lazily."""
    from pyspark.sql import functions as F

    version = F.col("wall") + F.col("logical")
    return rows.select(
        F.col("op").alias(OPERATION),
        version.alias(VERSION),
        *(F.col(f"a{i}").alias(f"c{i}") for i in range(len(schema.columns))),
    )


def _moved(rows: DataFrame, session: SparkSession) -> DataFrame:
    """The same query in another session of the same context."""
    from pyspark.sql import DataFrame

    if rows.sparkSession is session:
        return rows
    java: Any = session.sparkContext._jvm
    datasets = java.org.apache.spark.sql.classic.Dataset
    plan = rows._jdf.queryExecution().logical()
    return DataFrame(datasets.ofRows(session._jsparkSession, plan), session)


def _remove(paths: object) -> None:
    for path in list(paths):  # type: ignore[call-overload]
        with contextlib.suppress(OSError):
            Path(path).unlink()
