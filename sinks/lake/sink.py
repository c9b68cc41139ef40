"""``delta://`` and ``iceberg://``: tables that Spark's MERGE keeps equal to the source.

The sink stages rows as files in the feed's own directory; a commit is one MERGE per table, or one
that the node makes without Spark (:mod:`sinks.lake.small`). The commit also records up to where the
table is complete, so the sink leaves out what comes again after a crash.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.events import Resolved, SchemaChange, Truncate
from changefeed.core.schema import TableSchema
from changefeed.core.settings import Parameter
from changefeed.core.spark_jobs import JobName
from changefeed.core.spark_sql import literal, quoted
from changefeed.options import EXPIRE, OPTIMIZE, Feature
from changefeed.spark.internals.files import is_of_this_machine
from changefeed.spark.internals.sessions import (
    active,
    another_session,
    named,
    settings_of,
    with_settings,
)
from sinks.base import (
    Accepts,
    Batch,
    Capabilities,
    CommitPace,
    Difference,
    Epoch,
    Receipt,
    SinkContext,
    SparkAccess,
    Target,
)
from sinks.lake import delta, iceberg, merge, rounds
from sinks.lake.compare import LakeComparison, staged_source
from sinks.lake.failure import explained
from sinks.lake.place import LakeSettings, place_of
from sinks.lake.small.rounds import CommitNotes, SmallLimits, SmallRounds
from sinks.lake.small.table_files import TableFiles, files_by_table
from sinks.lake.staging import (
    OPERATION,
    VERSION,
    StagedFile,
    check_values,
    read,
    settled,
    stage,
    staged_table,
)
from sinks.lake.table import LakeTable, as_json, notes_of, reach
from sinks.lake.types import declared, exact
from sinks.lake.upkeep import Upkeep
from sinks.merged.applied import AppliedVersion
from sinks.merged.pace import ShorterPace
from sinks.merged.policy import MergeMode, Removal, ScanEnd, TablePolicy
from sinks.merged.sink import TableSink
from sinks.naming import kafka_topic_name
from sinks.ownership import Claim, Owner, claim, living, no_bookkeeping

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
#: Bytes of staged files whose rows are folded, in memory.
MOST_FOLDED = 128 << 20
#: Of each session: the JSON of a source may have a key twice, and then the last one counts.
_SETTINGS = {"spark.sql.variant.allowDuplicateKeys": "true"}
#: The longest name of a table.
NAME_LIMIT = 200
#: Table with the resolved timestamp of each feed.
RESOLVED_TABLE = "_changefeed_resolved"


@dataclass
class LakeTarget:
    """What a sink knows of one target since the last failure.

    Attributes:
        owner: the feed whose mark the table carries, once the sink has looked.
        floor: up to where the table has every change.
        shape: the fingerprint of a schema all of whose columns the table has.
        scan: the scan whose rows the table has, if it has no key.
        filled: the scan that found the table empty, and since then nothing failed: each of the
            scan's rows is new, and there are no older rows to remove.
        made: the present piece of work created the table, which is empty.
    """

    table: LakeTable
    owner: Owner | None = None
    floor: AppliedVersion | None = None
    shape: str = ""
    scan: Timestamp | None = None
    filled: Timestamp | None = None
    made: bool = False

    def forget(self) -> None:
        """Look at everything again."""
        self.owner = self.floor = self.scan = self.filled = None
        self.shape, self.made = "", False


class LakeSink(TableSink):
    """The tables of one feed at one place. One thread at a time uses an object."""

    capabilities: ClassVar[Capabilities]
    parameters: ClassVar[tuple[Parameter, ...]] = LakeSettings.parameters()
    #: See :data:`sinks.lake.iceberg.SPREAD_ROWS` and ``FILTERED_BYTES``.
    spread_rows: int = iceberg.SPREAD_ROWS
    filtered_bytes: int = iceberg.FILTERED_BYTES
    #: Of Delta tables: which rounds need no job of Spark.
    small: SmallLimits = SmallLimits()

    def __init__(self, uri: str, options: Mapping[str, object] | None = None) -> None:
        """Check the URI and the options; nothing is connected.

        Raises:
            ChangefeedError: CF1201, CF1202, CF1206, CF1207.
        """
        self._options = dict(options or {})
        self._place = place_of(uri)
        # Now and then a commit of Delta's sums up its log, too, and takes several times as long.
        super().__init__(
            _policy(self._options, self._place.format), ShorterPace(*PACES, times=REST)
        )
        self._session: SparkSession | None = None
        self._base: SparkSession | None = None
        self._targets: dict[str, LakeTarget] = {}
        #: Where the tables are, if that is on this machine.
        self._folder: Path | None = None
        #: The files of each table, where the node can write them.
        self._files: Callable[[str], TableFiles] | None = None
        self._few: dict[str, SmallRounds] = {}
        self._staged: dict[str, StagedFile] = {}
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
            raise ChangefeedError(
                Code.NOT_SUPPORTED, "tables of a lake are written by the node's Spark"
            )
        self._context = context
        self._options |= context.options
        Path(context.scratch).mkdir(parents=True, exist_ok=True)
        # A scan that broke off comes again, as a whole or what is left of it, and at the same
        # timestamp where nothing was committed since: what is there of it is then old.
        self._begun.clear()
        for known in self._targets.values():
            known.scan = known.filled = None
        with self._working("open") as session:
            reach(session, self._place)

    def check(self, context: SinkContext) -> list[ChangefeedError]:
        """See :meth:`sinks.base.Sink.check`: without Spark, as far as that goes."""
        from sinks.lake import look

        keyless = []
        for target in context.targets:
            try:
                if target.schema is not None:
                    self._policy.require_key(target.schema)
            except ChangefeedError as error:
                keyless.append(error)
        return keyless + look.problems(self._place, self._policy, context)

    def pacing(self) -> CommitPace:
        """As long as the last rounds took; no rows of a backlog once the round has enough bytes."""
        staged = self._staged.values()
        keys, size = sum(file.keys.nbytes for file in staged), sum(file.bytes for file in staged)
        folded = sum(file.bytes for file in staged if file.incomplete or file.superseded)
        full = keys >= MOST_KEY_BYTES or size >= MOST_BYTES or folded >= MOST_FOLDED
        return CommitPace(self.pace.seconds, 0 if full else MOST_ROWS)

    def overlooked(self) -> str:
        """See :meth:`sinks.base.Sink.overlooked`."""
        from sinks.lake import look

        return look.overlooked(self._place)

    def stage(self, batch: Batch, rows: pa.Table) -> Receipt:
        path = self._scratch / f"{batch.epoch.number:012d}-{next(self._numbers):08d}.parquet"
        batch = replace(batch, rows=rows, schema=self._kept(batch.schema))
        staged = stage(batch, path, history=self._policy.history)
        if staged is None:
            return Receipt(batch.partition, batch.rows.num_rows, 0)
        self._staged[staged.path] = staged
        return Receipt(batch.partition, batch.rows.num_rows, staged.bytes, (staged.path,))

    def require_values(self, batch: Batch, rows: pa.Table) -> None:
        batch = replace(batch, rows=rows, schema=self._kept(batch.schema))
        check_values(batch, staged_table(batch))

    def apply(self, epoch: Epoch, receipts: Sequence[Receipt]) -> bool:
        """Merge the staged rows, table by table."""
        paths = [path for receipt in receipts for path in receipt.staged]
        groups: dict[tuple[str, str], list[StagedFile]] = {}
        for path in paths:
            staged = self._staged.pop(path)
            shape = staged.schema.fingerprint()
            groups.setdefault((staged.target.topic, shape), []).append(staged)
        try:
            for (topic, shape), files in groups.items():
                more = any(other == topic and s != shape for other, s in groups)
                self._commit_table(epoch, files, part=more)
        finally:
            _remove(paths)
        return bool(groups)

    def abort(self, epoch: Epoch, receipts: Sequence[Receipt]) -> None:
        """Forget the staged rows."""
        _remove(self._staged)
        self._staged.clear()

    def resolved(self, event: Resolved, payload: bytes) -> None:
        """Write it into a table of its own; each commit of a table records its own timestamp."""
        context = self._opened
        with self._working("resolved timestamp") as session:
            known = self._known(session, RESOLVED_TABLE)
            table = known.table
            if not known.shape:
                if table.exists():
                    _check_resolved_table(table, self._place.shown)
                else:
                    table.create(
                        {"feed": "string", "resolved": "string", "resolved_at": "timestamp"}, {}
                    )
                known.shape = "resolved"
            at = merge.moment(str(event.at.wall))
            row = (
                f"SELECT {literal(context.feed)} AS feed, "
                f"{literal(str(event.at))} AS resolved, {at} AS resolved_at"
            )
            table.run(
                f"MERGE INTO {table.ident} AS t USING ({row}) AS s ON t.feed = s.feed "
                "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
            )

    def empty(self, event: Truncate, target: Target) -> None:
        applied = AppliedVersion(event.at.version, event.seq)
        with self._writing("truncate", target, event.schema) as known:
            lake = known.table
            sequence = quoted(self._policy.sequence)
            if self._policy.removal is Removal.RECORD:
                place = event.at.version, event.seq
                statement = merge.truncation(lake.ident, self._policy, *place)
            else:
                condition = f"{sequence} <= {event.at.version}"
                if not self._policy.shared:
                    condition = f"({condition} OR {sequence} IS NULL)"
                statement = merge.remove(lake.ident, self._policy, condition, event.at.version)
            with lake.commit_notes(self._opened.feed, applied=applied):
                lake.run(statement)
            known.floor = applied

    def close(self) -> None:
        """Forget the session, the tables and the staged rows."""
        self._session = self._base = None
        for topic in list(self._few):
            self._forget(topic)
        self._targets.clear()
        _remove(self._staged)
        self._staged.clear()
        self._context = None

    # -- what a sink may do besides -----------------------------------------------------------

    def reshape(self, event: SchemaChange, target: Target) -> None:
        place = event.at.version, event.seq
        with self._working("schema change", target) as session:
            known = self._known(session, target.topic)
            lake, owner = known.table, self._own(known, target, event.old)
            if not lake.exists() or lake.shape() < place:
                lake.evolve(event)
                lake.ensure(event.new, owner)
                lake.set_shape(*place)
            self._forget(target.topic)

    def scanned(self, target: Target, schema: TableSchema) -> int:
        if self._policy.removal is not Removal.RECORD:
            return 0  # rows of a scan can be told from others: nothing has to be recorded
        with self._working("look", target) as session:
            lake = self._known(session, target.topic).table
            return lake.scanned() if lake.exists() else 0

    def begin_scan(
        self, target: Target, schema: TableSchema, version: int, *, after: int | None
    ) -> None:
        if after is None:
            return
        with self._writing("begin of scan", target, schema) as known:
            lake = known.table
            if not lake.empty():
                with lake.commit_notes(self._opened.feed):
                    lake.run(merge.broken_scans(lake.ident, self._policy, after))

    def finish_scan(
        self, target: Target, schema: TableSchema, at: Timestamp, ends: ScanEnd
    ) -> None:
        with self._writing("end of scan", target, schema) as known:
            lake = known.table
            if self._policy.removal is Removal.RECORD:
                lake.set_scanned(at.version)
            if ends is ScanEnd.NOTHING or known.filled == at:
                return
            condition = f"{quoted(self._policy.sequence)} < {at.version}"
            with lake.commit_notes(self._opened.feed, at):
                lake.run(merge.remove(lake.ident, self._policy, condition, at.version))

    def holds_target(self, target: Target) -> bool:
        """See :meth:`sinks.base.Sink.holds_target`."""
        with self._working("look", target) as session:
            return self._known(session, target.topic).table.exists()

    def dropped(self, target: Target) -> None:
        """See :meth:`sinks.base.Sink.dropped`."""
        if not self._policy.drop:
            return
        with self._working("drop", target) as session:
            known = self._known(session, target.topic)
            own = Owner.of(self._opened, target)
            if known.table.exists() and any(mark.same(own) for mark in known.table.marks()):
                known.table.drop()
            self._forget(target.topic)

    def write_scan(
        self, rows: DataFrame, epoch: Epoch, target: Target, schema: TableSchema
    ) -> Receipt:
        """See :meth:`sinks.base.Sink.write_scan`: into an empty table rows go as they come."""
        if not self._begin(target, schema, epoch.upto):
            return Receipt(0, rows.count(), 0)
        given, schema = schema, self._kept(schema)
        staged_form = _staged_form(rows, given, schema)
        with self._writing("scan", target, schema) as known:
            lake = known.table
            if self._fills(known, epoch, schema):
                with lake.commit_notes(self._opened.feed, epoch.upto):
                    count = rounds.append_scan(lake, staged_form, schema)
            else:
                # A MERGE reads its source more than once.
                path = self._scratch / f"scan-{epoch.number:012d}-{next(self._numbers):08d}"
                with self._spark.shared_folder(path) as folder:
                    staged_form.write.parquet(folder)
                    staged = lake.session.read.parquet(folder)
                    count = staged.count()
                    self._load(known, staged, epoch, schema, fills=False)
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
        with (
            staged_source(rows, schema, context.scratch) as staged,
            self._working("VERIFY", target, schema) as session,
            self._spark.shared(staged) as names,
        ):
            comparison = LakeComparison(
                self._known(session, target.topic).table, self._policy, schema, target.part
            )
            return comparison.run(names, limit)

    # -- one table --------------------------------------------------------------------------

    def _commit_table(self, epoch: Epoch, files: Sequence[StagedFile], *, part: bool) -> None:
        """Make one commit of one table; ``part``: the round has more of this table."""
        target, schema = files[0].target, files[0].schema
        files = settled(files, self._policy.mode(schema))
        if files[0].scan:
            with self._writing("scan", target, schema) as known:
                fills = self._fills(known, epoch, schema)
                if not self._commit_few(files, epoch.upto, None):
                    few = self._few.get(target.topic)
                    fills = fills and not (few and few.in_doubt)
                    with self._read(known, files) as frame:
                        self._load(known, frame, epoch, schema, fills=fills)
            return
        last = reduce(AppliedVersion.latest, (file.last for file in files))
        # A transaction that alters its table in its middle is cut there.
        whole = not part and epoch.upto.version >= last.version
        applied = AppliedVersion(epoch.upto.version) if whole else last
        upto = epoch.upto if whole else None
        if not self._commit_few(files, upto, applied):
            with (
                self._writing("round", target, schema) as known,
                self._read(known, files) as frame,
                known.table.commit_notes(self._opened.feed, upto, applied),
            ):
                rounds.apply(known.table, frame, schema, files)
                known.floor = applied
        if self._upkeep.due(target.topic):
            with self._writing("upkeep", target, schema) as known:
                self._upkeep.after_commit(known.table)

    @contextmanager
    def _read(self, known: LakeTarget, files: Sequence[StagedFile]) -> Iterator[DataFrame]:
        """The rows of staged files in Spark."""
        with self._spark.shared([file.path for file in files]) as names:
            yield read(known.table.session, files, names)

    def _commit_few(
        self, files: Sequence[StagedFile], upto: Timestamp | None, applied: AppliedVersion | None
    ) -> bool:
        """Commit few rows without Spark; false: only Spark can, or must look at the table first.
        ``applied`` is None for rows of a scan."""
        target, schema = files[0].target, files[0].schema
        known, files_of = self._targets.get(target.topic), self._files
        if (
            files_of is None
            or known is None
            or known.owner is None
            or self._policy.mode(schema) is not MergeMode.MERGE
            or self._policy.soft
            or any(file.incomplete for file in files)
            or sum(file.rows for file in files) > self.small.rows
        ):
            return False
        few = self._few.get(target.topic)
        if few is None:
            few = self._few[target.topic] = SmallRounds(
                files_of(target.topic),
                self._scratch / "keys",
                known.owner,
                self._policy.sequence,
                self.small,
                self.clock,
            )
        notes = as_json(notes_of(self._opened.feed, upto, applied))
        application = None if applied is None else delta.application_of(applied)
        if not few.commit(files, schema, CommitNotes(notes, application)):
            return False
        known.floor = applied or known.floor
        return True

    def _forget(self, topic: str) -> None:
        """Look at a table again; what the sink knows of it may be wrong."""
        if topic in self._targets:
            self._targets[topic].forget()
        self._forget_few(topic)

    def _forget_few(self, topic: str) -> None:
        if topic in self._few:
            self._few.pop(topic).close()

    def _load(
        self, known: LakeTarget, rows: DataFrame, epoch: Epoch, schema: TableSchema, *, fills: bool
    ) -> None:
        """Write rows of a scan, which may be read more than once."""
        lake, counts = known.table, self._policy.mode(schema) is MergeMode.COUNT
        with lake.commit_notes(self._opened.feed, epoch.upto):
            if counts:
                rounds.count_scan(lake, rows, schema, first=known.scan != epoch.upto)
            elif fills:
                rounds.append_scan(lake, rows, schema)
            else:
                rounds.merge_scan(lake, rows, schema)
        if counts:
            known.scan = epoch.upto

    def _fills(self, known: LakeTarget, epoch: Epoch, schema: TableSchema) -> bool:
        """Whether a scan fills a table that was empty when it began: it has each key once. After a
        failure the table may have some of its rows, so the sink merges them."""
        if known.filled != epoch.upto and self._policy.mode(schema) is not MergeMode.COUNT:
            known.filled = epoch.upto if known.made or known.table.empty() else None
        return known.filled == epoch.upto

    # -- what is known of tables ------------------------------------------------------------

    def _kept(self, schema: TableSchema) -> TableSchema:
        """The shape of rows as the feed wants them kept."""
        return declared(schema, self._policy.numbers)

    def applied(self, target: Target, schema: TableSchema) -> AppliedVersion:
        """Up to where the target has every change.

        Raises:
            ChangefeedError: CF5008, it belongs to another feed or program.
        """
        known = self._targets.get(target.topic)
        if known is not None and known.floor is not None:
            return known.floor
        with self._working("look", target) as session:
            known = self._known(session, target.topic)
            there = known.table.exists()
            if there:
                self._own(known, target, schema)
            known.floor = known.table.floor() if there else AppliedVersion()
            return known.floor

    def _known(self, session: SparkSession, name: str) -> LakeTarget:
        """What the sink knows of a table; in a new session of Spark, only what needs no session."""
        found = self._targets.get(name)
        if found is None or found.table.session is not session:
            kind = delta.DeltaTable if self._place.format == "delta" else iceberg.IcebergTable
            table = kind(session, self._place, name, self._policy, self._options)
            if isinstance(table, delta.DeltaTable) and self._folder is not None:
                table.folder, table.clock = self._folder / name, self.clock
            if isinstance(table, iceberg.IcebergTable):
                table.spread_rows = self.spread_rows
                table.filtered_bytes = self.filtered_bytes
            scan, filled = (found.scan, found.filled) if found else (None, None)
            found = self._targets[name] = LakeTarget(table, scan=scan, filled=filled)
        return found

    @contextmanager
    def _writing(self, step: str, target: Target, schema: TableSchema) -> Iterator[LakeTarget]:
        """The table, in the shape of ``schema``; after a failure the sink looks at it again."""
        schema = self._kept(schema)
        try:
            with self._working(step, target, schema) as session:
                known = self._known(session, target.topic)
                owner = self._own(known, target, schema)
                known.made = False
                if known.shape != schema.fingerprint():
                    known.made = known.table.ensure(schema, owner)
                    known.shape = schema.fingerprint()
                    self._forget_few(target.topic)
                yield known
        except BaseException:
            self._forget(target.topic)
            raise

    def _own(self, known: LakeTarget, target: Target, schema: TableSchema) -> Owner:
        """Make sure that this feed may write to the table, which has the feed's mark or gets it.

        Raises:
            ChangefeedError: CF5008, it belongs to another feed or program.
        """
        context, lake = self._opened, known.table
        owner = Owner.of(context, target)
        if known.owner == owner:
            return owner
        exists = lake.exists()
        marks = lake.marks() if exists else []
        what = f"table {target.topic} of {self._place.shown}"
        found = claim(
            owner,
            marks,
            feeds=living(context),
            policy=self._policy.existing,
            exists=exists,
            holds_rows=lambda: not lake.empty(),
            what=what,
            usable=not marks or self._policy.sequence in lake.columns(),
        )
        if found is Claim.MERGE:
            self._policy.require_shareable(schema, what)
        if found is Claim.REPLACE:
            lake.delete_all()
        if exists and not any(mark.same(owner) for mark in marks):
            lake.set_owner(owner)
        known.owner = owner
        return owner

    # -- Spark ------------------------------------------------------------------------------

    @contextmanager
    def _working(
        self, step: str, target: Target | None = None, schema: TableSchema | None = None
    ) -> Iterator[SparkSession]:
        """A session of our own for one piece of work, in a pool of the feed's own; ``step``: what
        Spark's UI calls it; ``schema``: of the rows that it writes."""
        name = target.topic if target else ""
        with self._spark.use(packs=self._place.packs) as base:
            pool = f"lake-{self._opened.job_id}"
            opened = self._opened
            work = JobName(opened.feed, opened.job_id, step, name, opened.state)
            try:
                with named(base, work, pool), active(self._own_session(base)) as session:
                    yield session
            except ChangefeedError as error:
                error.target = error.target or name
                raise
            except Exception as failure:
                columns = [column.name for column in schema.columns] if schema else []
                found = explained(failure, name, self._place.shown, columns)
                if found is None:
                    raise
                found.target = name
                raise found from failure

    def _own_session(self, base: SparkSession) -> SparkSession:
        """Settings of a commit are settings of a session, so each sink object has its own."""
        if self._session is None or self._base is not base:
            if self._place.format == "delta":
                own = delta.SETTINGS | dict(self._place.settings)
            else:
                own = iceberg.settings(self._place)
            self._session = with_settings(another_session(base), _SETTINGS | own)
            self._base = base
            self._folder = self._place.folder if is_of_this_machine(base) else None
            self._files = files_by_table(self._place, self._folder, settings_of(base))
        return self._session

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
    if {"feed", "resolved", "resolved_at"} - set(table.columns()):
        raise no_bookkeeping(f"table {table.name} of {place}", "place")


def _able(pack: str) -> Capabilities:
    return Capabilities(
        accepts=Accepts.ROWS,
        exactly_once=True,
        pacing=CommitPace(PACES[0], ROUND_ROWS),
        spark_packs=(pack,),
        owns_targets=True,
        features=frozenset(
            {
                Feature.MERGED_TABLES,
                Feature.HISTORY,
                Feature.EXISTING_TARGETS,
                Feature.FILE_LAYOUT,
                Feature.FILE_UPKEEP,
                Feature.COMPARISON,
                Feature.DEAD_LETTERS,
            }
        ),
        evolves=True,
        ends_scans=True,
        scans_by_spark=True,
        compares_parts=True,
        repairs=True,
        continues_scans=True,
    )


class DeltaSink(LakeSink):
    """``delta://``"""

    capabilities: ClassVar[Capabilities] = _able("delta")


class IcebergSink(LakeSink):
    """``iceberg://``"""

    capabilities: ClassVar[Capabilities] = _able("iceberg")


def _policy(options: Mapping[str, object], table_format: str) -> TablePolicy:
    policy = TablePolicy.read(options, deleted=merge.DELETED[table_format])
    if not policy.sequence:
        raise ChangefeedError(
            Code.OPTION_DOES_NOT_FIT_SINK,
            "tables of a lake keep the version of a row in a column: sequence_column cannot be "
            "none",
            hint="leave the option out, or name the column.",
        )
    return policy


def _seconds(options: Mapping[str, object], row: object) -> float | None:
    value = options.get(getattr(row, "name", ""))
    return float(value) if isinstance(value, int | float) else None


def _staged_form(rows: DataFrame, given: TableSchema, schema: TableSchema) -> DataFrame:
    """Rows of a scan (``log_schema``) as staged rows, lazily; ``schema``: ``given`` as the table
    keeps it."""
    from pyspark.sql import functions as F

    version = F.col("wall") + F.col("logical")
    values = (exact(given, schema, i, f"a{i}") for i in range(len(schema.columns)))
    return rows.select(
        F.col("op").alias(OPERATION),
        version.alias(VERSION),
        *(F.expr(value).alias(f"c{i}") for i, value in enumerate(values)),
    )


def _remove(paths: Iterable[str]) -> None:
    for path in paths:
        with contextlib.suppress(OSError):
            Path(path).unlink()
