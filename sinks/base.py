"""What a sink is: the base class, and the types that cross it.

A sink gets finished messages in Arrow batches and owns nothing else: no progress, no
retries (the feed that uses it does them), no encoding. The order of calls is

    open -> (write* -> commit -> [resolved])* -> close

* ``write`` may run on the driver or in a Spark executor, in several processes at once for
  different batches; the same ``(feed, epoch, partition)`` may come again after a crash.
* ``commit`` returns only when everything its receipts stand for is :attr:`Durability.DURABLE`
  in the target, or raises.
* ``resolved`` comes only after the progress it states is durable in the job table.
* After an exception from ``write`` or ``commit`` the same rows come again, in the same order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.events import ClientRow, Resolved, SchemaChange, Truncate
from changefeed.core.parameters import Parameter
from changefeed.core.schema import TableName, TableSchema
from changefeed.options import Feature, OptionRow

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


class Accepts(StrEnum):
    """What the batches of a sink hold."""

    MESSAGES = "messages"
    """Rows of :data:`changefeed.core.arrow.MESSAGE_SCHEMA`: key and value as finished bytes."""
    ROWS = "rows"
    """Rows of the table's log schema: for sinks that merge typed columns."""


@dataclass(frozen=True, slots=True)
class CommitPace:
    """How often a sink wants to commit.

    Attributes:
        seconds: between two commits (files, merges): changes gather in the change log meanwhile. 0
            is as soon as there is data.
        rows: a backlog is committed in rounds of about so many rows; 0 is after every slice of the
            log. For sinks whose commit costs much whatever it holds (merges).
    """

    seconds: float = 0.0
    rows: int = 0


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a sink can do. The planner refuses options that need more.

    Attributes:
        accepts: messages or typed rows.
        formats: values of ``format`` it takes, the default first.
        envelopes: values of ``envelope`` it takes, the default first; empty means all.
        executor: ``write`` may run in a Spark executor (the sink object pickles before ``open``).
        lanes: several objects of it may write changes at the same time, each those of other keys,
            as long as each key has one writer.
        key_in_value: the value must hold the key, because there is no separate key.
        topic_in_value: the value must hold the topic, where the envelope has a place for it.
        exactly_once: it has a way to make a repeated batch harmless.
        keeps_progress: it commits the feed's progress together with the data.
        resolved: it can carry resolved timestamps.
        compressions: values of ``compression`` it takes.
        max_message_bytes: larger messages are refused before they are sent; 0 is no limit.
        pacing: how often it wants to commit, unless the object says otherwise
            (:meth:`Sink.pacing`).
        spark_packs: what the Spark session must have loaded (``changefeed.spark.packs``).
        resolved_by_topic: a resolved timestamp goes to the topics of ``SinkContext.targets`` and
            to nothing else. Without it a mark covers all tables, so it waits for one that failed.
        shared_topics: several feeds may write to one topic (file label, ...), whose readers then
            get the messages of all of them: worth a notice.
        owns_targets: it keeps one target per source table, which two tables cannot share.
        evolves: its targets follow changes of a table's shape.
        ends_scans: it can tell rows which a scan did not find. Without it the sink only adds
            messages.
        scans_by_spark: a large scan reaches it as a DataFrame.
        compares: its target can be compared with the source.
        features: what options are about; a sink takes the options of its features.
        options: options of its own, made by :func:`changefeed.options.own_option`.
        state_database: it is told the URL of the state database, with its password
            (:attr:`SinkContext.state_database`).
        pulled: its consumer reads the changes from the change log; the feed delivers scans only.
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
    compares: bool = False
    pulled: bool = False
    features: frozenset[Feature] = frozenset()
    options: tuple[OptionRow[Any], ...] = ()
    state_database: bool = False

    @property
    def takes_rows(self) -> bool:
        """The sink takes typed rows, not messages."""
        return self.accepts is Accepts.ROWS


class Durability(StrEnum):
    """How far a commit got. Progress moves on DURABLE only."""

    ACCEPTED = "accepted"
    DURABLE = "durable"


def require_durable(got: Durability) -> None:
    """Refuse a commit that promises less.

    Raises:
        ChangefeedError: CF5004.
    """
    if got is not Durability.DURABLE:
        raise ChangefeedError(Code.SINK_BUSY, "the sink did not make the data durable")


@dataclass(frozen=True, slots=True)
class Target:
    """One table of a feed as the sink sees it. ``topic`` is the finished, escaped name.
    ``schema`` is what the feed would deliver of it, for :meth:`Sink.check` alone."""

    table: TableName
    topic: str
    schema: TableSchema | None = field(default=None, compare=False, repr=False)


class SparkAccess(Protocol):
    """The node's Spark, for sinks that merge with it."""

    def use(
        self, group: str | None = None, *, packs: Sequence[str] = ()
    ) -> AbstractContextManager[SparkSession]:
        """The session for one piece of work; failures come out as ChangefeedError.

        Name the packs that extend Spark SQL (``delta``, ``iceberg``) to get the session that
        knows them: it has settings and temporary views of its own.
        """
        ...

    def shared(self, paths: Sequence[str]) -> AbstractContextManager[Sequence[str]]:
        """Files of this machine by the names under which Spark's executors read them, in the same
        order, while the block lasts: copies in the node's staging place, if it has one.

        Raises:
            ChangefeedError: CF4002, the staging place cannot be written.
        """
        ...

    def shared_folder(self, folder: Path) -> AbstractContextManager[str]:
        """The name of a folder that executors may make, write and read; removed at the end.

        Args:
            folder: what it is if the node has no staging place.
        """
        ...


@dataclass(frozen=True, slots=True)
class SinkContext:
    """What a sink may know when it opens.

    Attributes:
        feed: name of the feed, for the target's own logs and client ids.
        job_id: number of the feed's job.
        targets: tables of the feed now; ``open`` is called again when they change.
        options: the feed's WITH options by name, validated and typed.
        node: a short unique id of this process run (part of file names).
        resolved: the feed emits resolved timestamps.
        spark: Spark of the node, None in executors and where there is none. Not pickled.
        scratch: a directory for staged files, of this sink object alone; emptied before the
            object's first ``open``, removed when the feed ends. Empty text where there is none.
        state: id of the state the job is in; with ``job_id`` it names the feed in the world.
        scan: this sink object takes the rows of the feed's scan, while another one of the same
            feed takes its changes.
        unfinished: with ``scan``, of each table whose scan is not the first try: from which
            instant on scans of it do not count as whole for the feed, whether the sink ended
            them or not. The run may have died, more than once, before it had saved that.
        feeds: the state's jobs that were not dropped and have not ended, by number, each with
            the name of a table that it has: the target of that table is theirs.
        source: the source's own identity as the state has it (for PostgreSQL its system
            identifier and the number of the database), so that a sink can tell that the
            target is the source; empty where it is not known.
        state_database: URL of the state database, with its password, for a sink that declares
            ``Capabilities.state_database``; else empty.
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


@dataclass(frozen=True, slots=True)
class Epoch:
    """One delivery round of a feed: ``number`` rises by one; ``upto`` is where it ends.

    A ``write`` cannot know that yet: it has how far the round may come at most. In ``commit``
    everything at or below ``upto`` of every table that has rows in the round is in it, or was
    before; of some tables more may be.
    """

    number: int
    upto: Timestamp


@dataclass(frozen=True, slots=True)
class Batch:
    """The unit a sink may see twice: rows of one table and one schema version, in order.

    ``rows`` is a pyarrow Table or RecordBatch in the schema :class:`Accepts` names.
    ``scan`` is true for rows of the initial scan (each key at most once, any order).
    ``frontier`` is the timestamp at or below which the feed had everything delivered before
    this batch: no row of this or a later epoch is at or below it (scan rows excepted).
    """

    feed: str
    epoch: Epoch
    partition: int
    target: Target
    schema: TableSchema
    rows: pa.Table | pa.RecordBatch
    frontier: Timestamp = Timestamp.ZERO
    scan: bool = False


@dataclass(frozen=True, slots=True)
class Receipt:
    """Small, picklable, and enough to commit or abort a written batch.

    ``staged`` is the sink's own: temporary file names, transaction ids.
    """

    partition: int
    rows: int
    bytes: int
    staged: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Difference:
    """A row that source and target do not have alike.

    Attributes:
        kind: ``missing`` (the target lacks it), ``extra`` (the source does), ``changed``.
        key: values of the key as a JSON array.
        source, target: the row as a JSON object of texts, of a changed row the columns that
            differ; None where there is no such row.
    """

    kind: str
    key: str
    source: str | None
    target: str | None


@dataclass(frozen=True, slots=True)
class ScanFiles:
    """A whole table as a scan read it, for a consumer that reads files.

    Attributes:
        at: the instant the rows are of.
        schema: their shape; the rows have ``schema.log_schema()``.
        files: paths of Arrow IPC files; together they hold each row once.
        rows: how many rows they hold.
    """

    at: Timestamp
    schema: TableSchema
    files: tuple[str, ...]
    rows: int


@dataclass(frozen=True, slots=True)
class ConsumerPlace:
    """How far the consumer of a :class:`LogConsumer` sink is; nothing in it ever goes back.

    Attributes:
        committed: it has done with everything at or below; None: with nothing yet.
        idle: between ``committed`` and here the log has nothing for it.
        planned: it may have begun to work on what is up to here.
    """

    committed: Timestamp | None = None
    idle: Timestamp | None = None
    planned: Timestamp | None = None

    @property
    def needs_above(self) -> Timestamp | None:
        """What is at or below it need not be kept for the consumer."""
        known = [at for at in (self.committed, self.idle) if at is not None]
        return max(known) if self.committed is not None else None


class LogConsumer(Protocol):
    """The consumer's side of a sink whose consumer reads the changes from the change log itself.

    The feed hands over scans only. Its progress is what the consumer has committed, so the log
    keeps what the consumer still needs. A consumer in another process makes a sink object of its
    own from the same URI, which it does not open.
    """

    def belongs(self, state: str, job_id: int) -> bool:
        """The feed of that number has opened it: what is there is not another feed's."""
        ...

    def consumer(self) -> ConsumerPlace:
        """How far the consumer is."""
        ...

    def move(self, place: ConsumerPlace) -> None:
        """The consumer says how far it is. Durable on return."""
        ...

    def occupy(self, seconds: float) -> None:
        """Be the one consumer until :meth:`leave` or the end of the process.

        Raises:
            ChangefeedError: CF1301, there is another one, and it stays for ``seconds``.
        """
        ...

    def leave(self) -> None:
        """Let another consumer in."""
        ...

    def scanned(self) -> ScanFiles | None:
        """The table's last whole scan; None before there is one, and once it was consumed."""
        ...


#: Methods that feeds call where :class:`Capabilities` declare them, and nowhere else.
DECLARED: dict[str, tuple[str, ...]] = {
    "owns_targets": ("claims", "reserved"),
    "evolves": ("evolve",),
    "ends_scans": ("end_scan",),
    "scans_by_spark": ("write_scan",),
    "keeps_progress": ("commit_with", "progress"),
    "compares": ("compare",),
    "pulled": ("pull",),
}


class Sink(ABC):
    """A target of changefeeds; see the module's text for the order of calls.

    Seven methods are every sink's. What else a sink can do it declares in :attr:`capabilities`,
    with the methods that belong to it; a class that declares what it has no method for, or has the
    method and does not declare it, cannot be defined. A URI and the feed's options make an object.
    """

    capabilities: ClassVar[Capabilities]
    """What it can do."""
    parameters: ClassVar[tuple[Parameter, ...]] = ()
    """What its URIs take."""

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
        """Connect, check rights, make what is missing. Idempotent; may be called again."""

    @abstractmethod
    def write(self, batch: Batch) -> Receipt:
        """Take the rows in order. May return before they are durable."""

    @abstractmethod
    def commit(self, epoch: Epoch, receipts: Sequence[Receipt]) -> Durability:
        """Return DURABLE once all written batches of the epoch are safe in the target."""

    @abstractmethod
    def abort(self, epoch: Epoch, receipts: Sequence[Receipt]) -> None:
        """Forget what was written since the last commit, where that is possible."""

    @abstractmethod
    def resolved(self, mark: Resolved, payload: bytes) -> None:
        """Carry a resolved timestamp to every partition of every topic; durable on return.

        ``payload`` is the finished message value, but for the topics of ``mark.payloads``.
        """

    @abstractmethod
    def truncate(self, event: Truncate, target: Target, payload: bytes) -> None:
        """Carry a TRUNCATE of one table, after everything before it is durable."""

    @abstractmethod
    def close(self) -> None:
        """Release everything. Promises nothing about what is in flight."""

    # ---------------------------------------------------------------- with a default

    def interrupt(self) -> None:  # noqa: B027  a sink whose waits are short needs none
        """The feed is wanted to end: a call that waits for a server that does not answer gives up
        soon, with a ChangefeedError. Called from another thread, at any time after the sink
        was made; the object is closed then, and another one opened if the feed goes on.
        """

    def topic(self, name: str) -> str:
        """How the target of a table (or topic alias) is called. Nothing is connected."""
        return name

    def pacing(self) -> CommitPace:
        """How often the sink wants to commit now; asked between rounds, and in a backlog after each
        slice of the log."""
        return self.capabilities.pacing

    def check(self, context: SinkContext) -> list[ChangefeedError]:
        """Connect, and say everything that would hinder a feed: reach, login, rights, targets
        that cannot be made. For VALIDATE, on a sink that was not opened and is closed
        afterwards. Nothing is made at the target. ``context.targets`` may be empty: the
        tables are not known; where they are, each has its schema.
        """
        return []

    def overlooked(self) -> str:
        """What :meth:`check` does not look at, as a sentence for VALIDATE; empty when that is
        nothing. Nothing is connected for this."""
        return ""

    def dropped(self, target: Target) -> None:
        """The table is gone at the source; everything of it was committed. Idempotent."""
        return

    # ---------------------------------------------------------------- owns_targets

    def claims(self, topic: str) -> tuple[str, ...]:
        """The names that the target of a topic takes, its own first, then those of what the sink
        keeps beside it. Names that are one name in the target (by case, by length) are equal.
        Nothing is connected."""
        raise _undeclared(self, "owns_targets")

    def reserved(self) -> tuple[str, ...]:
        """Names, in the same form, that the sink keeps for itself at the place."""
        raise _undeclared(self, "owns_targets")

    # ---------------------------------------------------------------- evolves

    def evolve(self, event: SchemaChange, target: Target) -> None:
        """Give the target the new shape; everything before it was committed. Idempotent.

        The rows that follow may have the very timestamp of ``event``, as after a truncation.
        ``event`` has the columns the feed delivers. After a crash rows of the old shape may come
        once more, followed by the same event.

        Raises:
            ChangefeedError: CF5006, this table cannot follow (said with the reason); the
                others go on.
        """
        raise _undeclared(self, "evolves")

    # ---------------------------------------------------------------- ends_scans

    def end_scan(self, target: Target, schema: TableSchema, at: Timestamp) -> None:
        """The whole table as it was at ``at`` was written and committed (rows of the scan have
        that timestamp): what the target has of an older version, from a scan that broke off,
        no longer exists at the source and goes. Idempotent. Called by the sink object of the
        scan, before the table counts as scanned. Where deletes are not delivered it is called
        only for tables that keep every change (``history = 'append'``), and for tables without
        a key in sinks of rows, which may gather a scan beside the target.
        """
        raise _undeclared(self, "ends_scans")

    # ---------------------------------------------------------------- scans_by_spark

    def write_scan(
        self, rows: DataFrame, epoch: Epoch, target: Target, schema: TableSchema
    ) -> Receipt:
        """Write rows of a scan; durable on return. For sinks of :attr:`Accepts.ROWS`.

        ``rows`` is lazy, in the schema ``schema.log_schema()`` (``op`` is ``r``, ``b*`` null),
        each key once; it reads the source when an action runs, so run one action only. The
        same rows may come again. Run the action in the calling thread: the feed cancels the
        jobs of this thread when the scan is cancelled, and waits for their end.
        """
        raise _undeclared(self, "scans_by_spark")

    # ---------------------------------------------------------------- keeps_progress

    def commit_with(
        self, epoch: Epoch, receipts: Sequence[Receipt], progress: Mapping[str, Timestamp]
    ) -> Durability:
        """:meth:`commit`, and the places hold from now on, in one atomic step.

        With ``delivery = 'exactly_once'`` the feed goes on from what the sink says, so no row that
        was committed comes again. Marks (resolved, truncate) may.

        Progress is a set of named places. The names are the feed's own and mean nothing to the
        sink; a name that a call does not have keeps its place. ``<table>`` is how far the table's
        changes are delivered. ``<table>#scan`` is the instant of its last whole scan: with
        exactly_once the rows of one table's scan are written by one sink object (that with
        ``SinkContext.scan``) and committed by one call that says so, however many they are.

        ``receipts`` may be empty. Without receipts and progress nothing is asked.
        """
        raise _undeclared(self, "keeps_progress")

    def progress(self) -> Mapping[str, Timestamp]:
        """What the ``commit_with`` of this feed (any process; of the sink objects for changes and
        for scans together) stated, each name as of its last call. Asked after ``open``, before
        anything is written.

        Answers only when no ``commit_with`` of an earlier object can still become true.
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
        """Compare the rows of a table, which has a key, with what the target holds of it.

        ``rows`` are those of the source, each key once: in the schema ``schema.log_schema()``, or
        as messages where the sink takes those (without what tells when and why they were made).
        The target is looked at only after the last of them: while they come, the feed may need it.
        At most ``limit`` differences are returned, missing and changed rows before those too
        many, by key. Called on a sink object that was not opened; it is closed afterwards.
        Nothing of the feed is changed.

        Raises:
            ChangefeedError: CF1303 a target that is kept so (with its history) cannot be compared.
        """
        raise _undeclared(self, "compares")

    # ---------------------------------------------------------------- pulled

    def pull(self) -> LogConsumer:
        """The side of the consumer."""
        raise _undeclared(self, "pulled")


def _undeclared(sink: Sink, capability: str) -> AssertionError:
    return AssertionError(f"{type(sink).__name__} does not declare {capability}")


class ClientSink(Sink):
    """The sink of a feed without INTO, whose rows go to a client in this process."""

    @abstractmethod
    def take(self, timeout: float | None) -> ClientRow | None:
        """The next row; None after ``timeout`` seconds or at the end."""

    @property
    @abstractmethod
    def ended(self) -> bool:
        """The feed is over and every row was taken."""

    @abstractmethod
    def leave(self) -> None:
        """The client goes away."""
