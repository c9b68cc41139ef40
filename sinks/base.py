"""The base class of sinks, and the types of its methods.

A sink gets finished messages in Arrow batches and delivers them. Progress, retries and encoding
are the business of the feed that uses the sink. The order of calls is

    open -> (write* -> commit -> [resolved])* -> close

* ``write`` may run on the driver or in a Spark executor, in several processes at once for
  different batches; the same ``(feed, epoch, partition)`` may be written again after a crash.
* ``commit`` returns only when everything that its receipts stand for is
  :attr:`Durability.DURABLE` in the target; otherwise it raises.
* ``resolved`` is called only after the progress that it states is durable in the job table.
* After an exception from ``write`` or ``commit`` the same rows are written again, in the same
  order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.events import ClientRow, Ddl, Resolved, SchemaChange, Truncate
from changefeed.core.proofs import FileProof
from changefeed.core.schema import KeyRange, TableName, TableSchema
from changefeed.core.settings import Parameter
from changefeed.options import Feature, OptionRow

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


class Accepts(StrEnum):
    """The kind of rows in the batches of a sink."""

    MESSAGES = "messages"
    """Rows of :data:`changefeed.core.arrow.MESSAGE_SCHEMA`: key and value as finished bytes."""
    ROWS = "rows"
    """Rows of the table's log schema: for sinks that merge typed columns."""


@dataclass(frozen=True, slots=True)
class CommitPace:
    """How often a sink wants to commit.

    Attributes:
        seconds: time between two commits (files, merges), during which changes wait in the change
            log; 0: commit as soon as there is data.
        rows: a backlog is committed in rounds of about this many rows; 0: after every slice of the
            log. For sinks whose commits are expensive whatever their size (merges).
        bytes: changes of about this size end the pause between two commits; 0: no size does.
    """

    seconds: float = 0.0
    rows: int = 0
    bytes: int = 0


class PartPlace(StrEnum):
    """Where tasks of Spark write the files of which a sink loads a large scan."""

    NONE = ""
    """Nowhere: the sink loads none."""
    FOLDER = "folder"
    """A directory of the node, which executors must have by the same path."""
    OWN = "own"
    """A place of the sink that executors reach as the node does."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a sink can do. The planner refuses options that need more.

    Attributes:
        accepts: messages or typed rows.
        formats: values of ``format`` it takes, the default first.
        envelopes: values of ``envelope`` it takes, the default first; empty means all.
        executor: ``write`` may run in a Spark executor (the object can be pickled before ``open``).
        lanes: several objects of the sink may write changes at the same time, each those of its
            own keys: each key has one writer.
        key_in_value: the value must hold the key, because there is no separate key.
        topic_in_value: the value must hold the topic, if the envelope has a place for it.
        exactly_once: it can make a repeated batch harmless.
        keeps_progress: it commits the feed's progress together with the data.
        resolved: it can carry resolved timestamps.
        compressions: values of ``compression`` it takes.
        max_message_bytes: larger messages are refused before they are sent; 0 is no limit.
        pacing: how often it wants to commit, unless the object says otherwise
            (:meth:`Sink.pacing`).
        spark_packs: what the Spark session must have loaded (``changefeed.spark.packs``).
        resolved_by_topic: a resolved timestamp goes to the topics of ``SinkContext.targets`` only.
            Otherwise it covers all tables, so a table that failed holds it back.
        shared_topics: several feeds may write to one topic (file label, ...), whose readers then
            get the messages of all of them; the user gets a notice about it.
        owns_targets: it keeps one target per source table, which two tables cannot share.
        evolves: its targets follow changes of a table's shape.
        ends_scans: it can find the rows of the target that a scan did not find. A sink without this
            only adds messages.
        scans_by_spark: a large scan reaches it as a DataFrame.
        loads_parts: a large scan reaches it as files that tasks of Spark write; where these are.
        compares_parts: where its target can be compared with the source, so can the rows of a range
            of keys alone (:attr:`Target.part`).
        repairs: single rows of a table may come again as rows of a scan (:attr:`Batch.scan`), among
            them deletes (``op`` is ``d``), without the end of a scan.
        features: groups of options; a sink takes the options of its features.
        options: options of its own, made by :func:`changefeed.options.own_option`.
        state_database: it is told the URL of the state database, with its password
            (:attr:`SinkContext.state_database`).
        pulled: its consumer reads the changes from the change log; the feed delivers only scans.
        continues_scans: a scan of a table with a key may go on after an interruption. Its rows are
            as of several instants then, with changes between them, and :meth:`Sink.end_scan` gets
            the first of these. Not done while the sink keeps the past or the feed's progress.
        rewinds: a feed may be set back or forward (``ALTER .. SET cursor``): changes that it has
            had come again, or some never come.
    """

    accepts: Accepts = Accepts.MESSAGES
    formats: tuple[str, ...] = ("json",)
    envelopes: tuple[str, ...] = ()
    executor: bool = False
    lanes: bool = False
    key_in_value: bool = False
    topic_in_value: bool = False
    exactly_once: bool = False
    resolved: bool = True
    compressions: tuple[str, ...] = ("none",)
    max_message_bytes: int = 0
    keeps_progress: bool = False
    pacing: CommitPace = CommitPace()
    spark_packs: tuple[str, ...] = ()
    resolved_by_topic: bool = False
    shared_topics: bool = False
    owns_targets: bool = False
    evolves: bool = False
    ends_scans: bool = False
    scans_by_spark: bool = False
    loads_parts: PartPlace = PartPlace.NONE
    compares_parts: bool = False
    repairs: bool = False
    pulled: bool = False
    continues_scans: bool = False
    rewinds: bool = False
    features: frozenset[Feature] = frozenset()
    options: tuple[OptionRow[Any], ...] = ()
    state_database: bool = False

    @property
    def compares(self) -> bool:
        """Whether its target can be compared with the source."""
        return Feature.COMPARISON in self.features

    @property
    def takes_rows(self) -> bool:
        """Whether the sink takes typed rows, not messages."""
        return self.accepts is Accepts.ROWS

    @property
    def replaces_rows(self) -> bool:
        """Whether a message takes the place of the row that the target has, with all its values."""
        return self.owns_targets and not self.takes_rows


class Durability(StrEnum):
    """How durable committed rows are. Only DURABLE advances a feed's progress."""

    ACCEPTED = "accepted"
    DURABLE = "durable"


def require_durable(got: Durability) -> None:
    """Refuse a commit that is less than durable.

    Raises:
        ChangefeedError: CF5004.
    """
    if got is not Durability.DURABLE:
        raise ChangefeedError(Code.SINK_BUSY, "the sink did not make the data durable")


@dataclass(frozen=True, slots=True)
class Target:
    """One table of a feed as the sink sees it. ``topic`` is the final, escaped name.
    ``schema`` is the shape that the feed would deliver; only :meth:`Sink.check` gets it. With
    ``part``, which :meth:`Sink.compare` may get, only those rows are meant
    (:attr:`Capabilities.compares_parts`)."""

    table: TableName
    topic: str
    schema: TableSchema | None = field(default=None, compare=False, repr=False)
    part: KeyRange | None = field(default=None, compare=False)


class SparkAccess(Protocol):
    """The node's Spark, for sinks that merge with it."""

    def use(
        self, group: str | None = None, *, packs: Sequence[str] = ()
    ) -> AbstractContextManager[SparkSession]:
        """The session for one piece of work; failures are raised as ChangefeedError.

        Name the packs that extend Spark SQL (``delta``, ``iceberg``) to get the session that has
        loaded them, which has its own settings and temporary views.
        """
        ...

    def shared(self, paths: Sequence[str]) -> AbstractContextManager[Sequence[str]]:
        """The names under which Spark's executors can read files of this machine, in the same
        order, during the block. They are copies in the node's staging place, if it has one.

        Raises:
            ChangefeedError: CF4002, the staging place cannot be written.
        """
        ...

    def shared_folder(self, folder: Path) -> AbstractContextManager[str]:
        """The name of a folder that executors may make, write and read; removed after the block.

        Args:
            folder: the folder to use if the node has no staging place.
        """
        ...


@dataclass(frozen=True, slots=True)
class SinkContext:
    """What a sink may know when it opens.

    Attributes:
        feed: name of the feed, for the target's own logs and client ids.
        job_id: number of the feed's job.
        targets: present tables of the feed; ``open`` is called again when they change.
        options: the feed's WITH options by name, validated and typed.
        node: a short unique id of this process run (part of file names).
        resolved: the feed emits resolved timestamps.
        spark: Spark of the node; None in executors and if the node has none. Not pickled.
        scratch: a directory for staged files that only this sink object uses; emptied before the
            object's first ``open``, removed when the feed ends. Empty text if there is none.
        state: id of the state that has the job; with ``job_id`` it identifies the feed globally.
        scan: this sink object takes the rows of the feed's scan, while another one of the same
            feed takes its changes.
        unfinished: with ``scan``, for each table whose scan was tried before: the instant from
            which on the feed counts no scan of it as whole, even one that the sink ended. The run
            may have died, more than once, before it could save the end of a scan.
        feeds: the state's jobs that were not dropped and have not ended, by number, each with
            the name of a table of the job, which owns the target of that table.
        source: the source's own identity as the state has it (for PostgreSQL its system
            identifier and the number of the database), so that a sink can detect that the
            target is the source; empty if unknown.
        state_database: URL of the state database, with its password, for a sink that declares
            ``Capabilities.state_database``; else empty.
        read: :meth:`Sink.compare` calls it with the bytes of the target's rows that it has read
            since the last call, unless the target itself compares them. It may take its time, so
            that the target is not hurried, and raises an error if the comparison is to end.
    """

    feed: str
    job_id: int
    targets: tuple[Target, ...]
    options: Mapping[str, object] = field(default_factory=dict)
    node: str = "0"
    resolved: bool = False
    spark: SparkAccess | None = field(default=None, compare=False, repr=False)
    scratch: str = ""
    state: str = ""
    scan: bool = False
    unfinished: Mapping[TableName, Timestamp] = field(default_factory=dict)
    feeds: frozenset[tuple[int, str]] = frozenset()
    source: str = ""
    state_database: str = field(default="", compare=False, repr=False)
    read: Callable[[int], object] = field(default=int, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Epoch:
    """One delivery round of a feed: ``number`` rises by one; ``upto`` is where the round ends.

    In a ``write``, where the end is not known yet, ``upto`` is the farthest that the round may
    reach. In ``commit``, this round and the earlier ones have everything at or below ``upto`` of
    every table that has rows in the round; of some tables they may have more.
    """

    number: int
    upto: Timestamp


@dataclass(frozen=True, slots=True)
class Batch:
    """The unit that a sink may get twice: rows of one table and one schema version, in order.

    ``rows`` is a pyarrow Table or RecordBatch in the schema that :class:`Accepts` names.
    ``scan`` is true for rows of a scan (each key at most once, any order). In a sink with
    :attr:`Capabilities.repairs` some of these may be deletes.
    ``after`` is the timestamp up to which the feed had delivered everything before this
    batch: every row of this and later epochs is above it, except rows of scans.
    """

    feed: str
    epoch: Epoch
    partition: int
    target: Target
    schema: TableSchema
    rows: pa.Table | pa.RecordBatch
    after: Timestamp = Timestamp.ZERO
    scan: bool = False


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a sink needs to commit or abort a written batch; small and picklable.

    Only the sink reads ``staged``: temporary file names, transaction ids.
    """

    partition: int
    rows: int
    bytes: int
    staged: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Difference:
    """A row that differs between source and target.

    Attributes:
        kind: ``missing`` (the target lacks it), ``extra`` (the source lacks it), ``changed``.
        key: values of the key as a JSON array.
        source, target: the row as a JSON object of texts; for a changed row only the columns that
            differ; None if there is no such row.
        values: the values of the key as they are, in the order of the table's key; a whole number
            or a boolean may be its text. Empty where one of them is something else than a text, a
            whole number or a boolean, or is not known.
    """

    kind: str
    key: str
    source: str | None
    target: str | None
    values: tuple[str | int | bool, ...] = ()


@dataclass(frozen=True, slots=True)
class ScanFiles:
    """A whole table as a scan read it, for a consumer that reads files.

    Attributes:
        at: the instant of the scan's snapshot.
        schema: shape of the table; the rows are in ``schema.log_schema()``.
        files: paths of Arrow IPC files; together they hold each row once.
        proofs: of the files, in the same order.
        rows: number of rows in all files.
    """

    at: Timestamp
    schema: TableSchema
    files: tuple[str, ...]
    proofs: tuple[FileProof, ...]
    rows: int


@dataclass(frozen=True, slots=True)
class ConsumerProgress:
    """The progress of the consumer of a :class:`LogConsumer` sink; no attribute ever goes back.

    Attributes:
        committed: the consumer has finished with everything at or below; None: with nothing yet.
        idle: the log has nothing for the consumer between ``committed`` and here.
        planned: the consumer may have begun to work on changes up to here.
    """

    committed: Timestamp | None = None
    idle: Timestamp | None = None
    planned: Timestamp | None = None

    @property
    def needs_above(self) -> Timestamp | None:
        """The consumer no longer needs changes at or below this timestamp."""
        known = [at for at in (self.committed, self.idle) if at is not None]
        return max(known) if self.committed is not None else None


class LogConsumer(Protocol):
    """The consumer's side of a sink whose consumer reads the changes from the change log itself.

    The feed hands over only scans. The feed's progress is what the consumer has committed, so the
    log keeps what the consumer still needs. A consumer in another process makes its own sink object
    from the same URI, and does not open it.
    """

    def belongs(self, state: str, job_id: int) -> bool:
        """Whether the feed of this job has opened the sink before, so that the contents are its."""
        ...

    def consumer(self) -> ConsumerProgress:
        """The consumer's progress."""
        ...

    def move(self, progress: ConsumerProgress) -> None:
        """Save the consumer's progress. Durable on return."""
        ...

    def occupy(self, seconds: float) -> None:
        """Become the only consumer until :meth:`leave` or the end of the process.

        Raises:
            ChangefeedError: CF1301, another consumer did not leave within ``seconds``.
        """
        ...

    def leave(self) -> None:
        """Stop being the only consumer, so that another one can start."""
        ...

    def scanned(self) -> ScanFiles | None:
        """The table's last whole scan; None before the first one, and after it was consumed."""
        ...

    def verify(self) -> Iterator[tuple[Path, int, ChangefeedError | None]]:
        """Compare everything that is stored with its checksums; nothing is changed, and both sides
        may be at work: the path, the bytes and the damage of each file."""
        ...


#: Methods that feeds call only if the :class:`Capabilities` declare them.
DECLARED: dict[str, tuple[str, ...]] = {
    "owns_targets": ("claims", "reserved"),
    "evolves": ("evolve",),
    "ends_scans": ("end_scan",),
    "scans_by_spark": ("write_scan",),
    "loads_parts": ("write_parts",),
    "keeps_progress": ("commit_with", "progress"),
    "compares": ("compare",),
    "pulled": ("pull",),
}


#: Writes the rows of a part of a scan, in the log's schema, to a file of the sink, in the process
#: that is called; pickles. Takes the number of the part.
PartWriter = Callable[[int, Iterator["pa.Table"]], Receipt]


class Sink(ABC):
    """A sink of changefeeds; the module's docstring has the order of calls.

    Every sink has seven methods. A sink declares in :attr:`capabilities` what else it can do, and
    has the methods that belong to each capability; a class that has only one of the two cannot be
    defined. An object is made of a URI and the feed's options.
    """

    capabilities: ClassVar[Capabilities]
    """What the sink can do."""
    parameters: ClassVar[tuple[Parameter, ...]] = ()
    """The parameters that its URIs take."""

    def __init_subclass__(cls, **given: object) -> None:
        super().__init_subclass__(**given)
        declared: Capabilities | None = getattr(cls, "capabilities", None)
        if declared is None:
            return
        for capability, methods in DECLARED.items():
            for method in methods:
                has = getattr(cls, method) is not getattr(Sink, method)
                if getattr(declared, capability) and not has:
                    raise TypeError(f"{cls.__name__} declares {capability} and has no {method}")
                if method in vars(cls) and not getattr(declared, capability):
                    raise TypeError(
                        f"{cls.__name__} has {method} and does not declare {capability}"
                    )

    # ---------------------------------------------------------------- every sink

    @abstractmethod
    def open(self, context: SinkContext) -> None:
        """Connect, check rights, create what is missing. Idempotent; may be called again."""

    @abstractmethod
    def write(self, batch: Batch) -> Receipt:
        """Take the rows in order. May return before they are durable."""

    @abstractmethod
    def commit(self, epoch: Epoch, receipts: Sequence[Receipt]) -> Durability:
        """Return DURABLE once all written batches of the epoch are durable in the target."""

    @abstractmethod
    def abort(self, epoch: Epoch, receipts: Sequence[Receipt]) -> None:
        """Discard what was written since the last commit, if that is possible."""

    @abstractmethod
    def resolved(self, event: Resolved, payload: bytes) -> None:
        """Deliver a resolved timestamp to every partition of every topic; durable on return.

        ``payload`` is the finished message value, except for the topics in ``event.payloads``.
        """

    @abstractmethod
    def truncate(self, event: Truncate, target: Target, payload: bytes) -> None:
        """Deliver a TRUNCATE of one table, after everything before it is durable."""

    @abstractmethod
    def close(self) -> None:
        """Release all resources. Rows that are not committed may be lost."""

    # ---------------------------------------------------------------- with a default

    def interrupt(self) -> None:  # noqa: B027  a sink whose waits are short needs none
        """Make calls end soon, because the feed is to end: a call that waits for a server that does
        not answer raises a ChangefeedError. Called from another thread, at any time after the
        object was made. The object is then closed; if the feed goes on, it opens a new one.
        """

    def unanswered(self) -> str:
        """Why requests of this object fail or are tried again, from the first failure until one
        succeeds: one clause without secrets and row values, empty while there is none. Called from
        another thread, at any time after the object was made; returns at once."""
        return ""

    def examine(self, batch: Batch) -> None:  # noqa: B027  a sink may know of it at the target only
        """Raise what :meth:`write` would raise of rows that are refused for themselves
        (``ChangefeedError.about_row``), as far as it is known without handing them over. Takes no
        row. Called to find the rows of a batch that was refused."""

    def topic(self, name: str) -> str:
        """The name of the target of a table (or topic alias). Does not connect."""
        return name

    def pacing(self) -> CommitPace:
        """How often the sink wants to commit now. Called between rounds, and in a backlog after
        each slice of the log."""
        return self.capabilities.pacing

    def files_a_day(self, tables: int) -> tuple[int, int] | None:
        """How many files with rows of so many tables and how many resolved timestamps this makes
        a day at most, as long as no file is filled before its time; None: it makes no files, or
        one at every commit. Does not connect."""
        return None

    def check(self, context: SinkContext) -> list[ChangefeedError]:
        """Connect, and return every problem that would stop a feed: the connection, the login,
        missing rights, targets that cannot be created. VALIDATE calls it on a sink that was not
        opened, and closes the sink afterwards. Creates nothing at the target. ``context.targets``
        is empty if the tables are not known; otherwise each has its schema.
        """
        return []

    def overlooked(self) -> str:
        """What :meth:`check` does not examine, as a sentence for VALIDATE; empty if it examines
        everything. Does not connect."""
        return ""

    def holds_target(self, target: Target) -> bool:
        """Whether the target of a table is still there, so that an interrupted scan can go on
        (:attr:`Capabilities.continues_scans`) and need not fill another one. Called on an opened
        object. Only for sinks that own their targets."""
        return True

    def tell_ddl(self, event: Ddl, target: Target) -> None:
        """Called for a statement that defined a table at the source, after everything before it was
        committed and before anything behind it is written. What it changed comes by itself, as a
        truncation, a schema change or rows. May be called again for the same statement; durable on
        return."""
        return

    def dropped(self, target: Target) -> None:
        """Called when a table was dropped at the source, after all its rows and changes were
        committed. Idempotent."""
        return

    # ---------------------------------------------------------------- owns_targets

    def claims(self, topic: str) -> tuple[str, ...]:
        """The names that the target of a topic occupies: first its own, then the names of what the
        sink keeps beside it. Names that the target does not distinguish (by case, by length) are
        returned as equal texts. Does not connect."""
        raise _undeclared(self, "owns_targets")

    def reserved(self) -> tuple[str, ...]:
        """Names, in the form of :meth:`claims`, that the sink reserves for itself at the target."""
        raise _undeclared(self, "owns_targets")

    # ---------------------------------------------------------------- evolves

    def evolve(self, event: SchemaChange, target: Target) -> None:
        """Give the target the new shape, after everything before it was committed. Idempotent.

        The rows that follow may have the same timestamp as ``event``, as after a truncation.
        ``event`` has the columns that the feed delivers. After a crash, rows of the old shape may
        be written again, followed by the same event.

        Raises:
            ChangefeedError: CF5006, this target cannot take the new shape (with the reason); the
                other tables go on.
        """
        raise _undeclared(self, "evolves")

    # ---------------------------------------------------------------- ends_scans

    def end_scan(self, target: Target, schema: TableSchema, at: Timestamp) -> None:
        """Remove rows that a scan did not find. The whole table as of ``at``, the timestamp of the
        scan's rows, was written and committed (of a scan that went on after an interruption: as of
        ``at`` or later, :attr:`Capabilities.continues_scans`). Rows of an older version, from a
        scan that broke off, no longer exist at the source. Idempotent. Called on the sink object of
        the scan, before the table counts as scanned. If the feed delivers no deletes, it is called
        only for tables that keep every change (``history = 'append'``), and for tables without a
        key in sinks of typed rows, which may gather a scan beside the target.
        """
        raise _undeclared(self, "ends_scans")

    # ---------------------------------------------------------------- scans_by_spark

    def write_scan(
        self, rows: DataFrame, epoch: Epoch, target: Target, schema: TableSchema
    ) -> Receipt:
        """Write rows of a scan; durable on return. For sinks of :attr:`Accepts.ROWS`.

        ``rows`` is lazy, in the schema ``schema.log_schema()`` (``op`` is ``r``, ``b*`` null), with
        each key once. Every action on it reads the source, so run only one. A large table comes in
        several calls, if the scan can go on. The same rows may be given again after a failure. Run
        the action in the calling thread: when the scan is cancelled, the feed cancels the jobs of
        this thread and waits for their end.
        """
        raise _undeclared(self, "scans_by_spark")

    # ---------------------------------------------------------------- loads_parts

    def write_parts(
        self,
        written: Callable[[PartWriter], Sequence[Receipt]],
        epoch: Epoch,
        target: Target,
        schema: TableSchema,
    ) -> Receipt:
        """Load rows of a scan out of files; durable on return. For sinks of :attr:`Accepts.ROWS`.

        Call ``written`` once, in the calling thread, with what writes the rows of a part, each key
        once, to a file. It runs that in tasks of Spark, and returns one receipt of each part. A
        part may be written several times, also at the same time, so each call writes a file of
        its own. Load only files with a receipt, and remove all of them before the return, or before
        the next call after a crash. A large table comes in several calls, if the scan can go on;
        the same rows may come again after a failure.
        """
        raise _undeclared(self, "loads_parts")

    # ---------------------------------------------------------------- keeps_progress

    def commit_with(
        self, epoch: Epoch, receipts: Sequence[Receipt], progress: Mapping[str, Timestamp]
    ) -> Durability:
        """:meth:`commit`, and save the feed's progress in the same atomic step.

        With ``delivery = 'exactly_once'`` the feed goes on from the progress that the sink returns,
        so a committed row is never written again. Control messages (resolved, truncate) may be
        repeated.

        Progress is a set of named timestamps. Only the feed interprets the names; a name that a
        call does not mention keeps its timestamp. ``<table>`` is how far the table's changes are
        delivered. ``<table>#scan`` is the instant of its last whole scan: with exactly_once, one
        sink object (that with ``SinkContext.scan``) writes all rows of one table's scan, and one
        call with this name commits them, however many they are.

        ``receipts`` may be empty. A call without receipts and progress does nothing.
        """
        raise _undeclared(self, "keeps_progress")

    def progress(self) -> Mapping[str, Timestamp]:
        """The progress that ``commit_with`` saved for this feed, each name as of its last call: by
        any process, by the sink objects for changes and for scans together. Called after ``open``,
        before anything is written.

        Returns only when no ``commit_with`` of an earlier object can still take effect.
        """
        raise _undeclared(self, "keeps_progress")

    # ---------------------------------------------------------------- compares

    def compare(
        self,
        context: SinkContext,
        target: Target,
        schema: TableSchema,
        rows: Iterable[pa.Table],
        limit: int,
    ) -> list[Difference]:
        """Compare the rows of a table with a key with the rows of its target.

        ``rows`` are those of the source, each key once: in the schema ``schema.log_schema()``, or
        as messages if the sink takes messages (without the members that say when and why a message
        was made). Read the target only after the last of them: until then the feed may need it.
        At most ``limit`` differences are returned, ordered by key, missing and changed rows before
        extra rows. Called on a sink object that was not opened; it is closed afterwards. Changes
        nothing of the feed.

        Raises:
            ChangefeedError: CF1303, a target of this kind (with its history) cannot be compared.
        """
        raise _undeclared(self, "compares")

    # ---------------------------------------------------------------- pulled

    def pull(self) -> LogConsumer:
        """The consumer's side of this sink."""
        raise _undeclared(self, "pulled")


def _undeclared(sink: Sink, capability: str) -> AssertionError:
    return AssertionError(f"{type(sink).__name__} does not declare {capability}")


class ClientSink(Sink):
    """The sink of a feed without INTO, whose rows go to a client in this process."""

    @abstractmethod
    def take(self, timeout: float | None) -> ClientRow | None:
        """The next row; None after ``timeout`` seconds or at the end of the feed."""

    @property
    @abstractmethod
    def ended(self) -> bool:
        """Whether the feed has ended and every row was taken."""

    @abstractmethod
    def leave(self) -> None:
        """Called when the client needs no further rows."""
