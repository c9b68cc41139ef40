"""The base classes of sources: the protocol between feeds and a kind of database.

There are two classes. A :class:`Source` is the database: it names and describes tables, finds
problems, and gives a consistent image of tables (:class:`Snapshot`). An :class:`Attachment` is what
one state holds at that database so that no change is lost, and reads the database's log
(:class:`Stream`). For PostgreSQL it is a replication slot and a publication, for MySQL a start
position and a list of tables. Only the attachment interprets it: the state stores the attachment's
*memo*, which is JSON, and does not read it.

The order of calls for a feed is

    describe -> attach -> check -> capture -> [snapshot -> parts -> read*] and stream, at once

* Every change that commits after :meth:`Attachment.capture` returned, and its memo was saved,
  reaches the stream.
* A snapshot that is opened after ``capture`` shows exactly what committed at or below its
  ``position``; the stream carries the rest.

The change log keeps the progress, not the source. Methods with a body are optional: the body is the
default for sources that do not override them.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

from changefeed.core.errors import ChangefeedError, Code, Span
from changefeed.core.events import Flush, Frontier, Position
from changefeed.core.partition import Partition
from changefeed.core.schema import Column, KeyRange, RowKey, TableName, TableSchema
from changefeed.core.settings import Parameter
from changefeed.core.unread import PartRange

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

#: How many bytes of a table one scan part should hold.
DEFAULT_PART_BYTES = 64 << 20

#: What an attachment needs after a restart: JSON, a few kilobytes at most, without secrets.
Memo = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Watch:
    """A table that a statement names; it may not exist.

    Attributes:
        name: as written.
        schema: as written; None: the source's own search rule applies.
        diff: the feed needs before images of all columns.
        whole: a message replaces the row at the target, so it needs the values of all columns.
        span: the place in the statement, for errors.
    """

    name: str
    schema: str | None = None
    diff: bool = False
    span: Span | None = None
    whole: bool = False

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}" if self.schema else self.name


@dataclass(frozen=True, slots=True)
class TableInfo:
    """One row of SHOW TABLES.

    Attributes:
        name: the table.
        key: names of the key columns; empty when the table has no key.
        identity: the columns that the source logs of old rows, in the source's own terms.
        rows_estimate: number of rows by the source's statistics, never counted.
        bytes: size on disk with large values, without indexes.
        kind: ``table`` or ``partitioned table``.
        note: why CREATE CHANGEFEED would refuse the table, and the statement that mends it; empty
            if there is no problem.
    """

    name: TableName
    key: tuple[str, ...]
    identity: str
    rows_estimate: int
    bytes: int
    kind: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class CaptureResult:
    """The result of :meth:`Attachment.capture`.

    Attributes:
        problems: the tables that could not be captured, each with its reason; the others are
            captured.
        altered: tables whose changes may be missing, because others had changed what makes
            the source send them, and what was changed.
    """

    problems: Mapping[TableName, ChangefeedError] = field(default_factory=dict)
    altered: Mapping[TableName, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Handover:
    """Where another reader of the source's log stopped.

    Attributes:
        position: the other reader delivered every change that commits at or below it, and possibly
            some changes above it.
        memo: of an attachment whose log begins at the position, if nothing is held yet.
        notices: sentences for the user about what remains of the other reader.
    """

    position: Position
    memo: Memo
    notices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TableLocations:
    """The names and ids of tables at one moment.

    Attributes:
        ids: the present table id of each requested name; a name without a table is absent.
        names: the present name of each requested table id; a dropped table is absent.
        unsafe: ids of tables whose users could not change rows while the tables are captured.
    """

    ids: Mapping[TableName, int]
    names: Mapping[int, TableName]
    unsafe: frozenset[int] = frozenset()


def as_sent(schema: TableSchema) -> TableSchema:
    """The shape that the source has for its rows."""
    return schema


@dataclass(frozen=True, slots=True)
class StreamRequest:
    """The arguments of a stream.

    Attributes:
        start: the stream carries every change after ``start.position``. ``start.history`` is what
            the source wrote into the frontier of the flush before (empty at the beginning of a
            log). Sequence numbers continue from ``start.seq``; log timestamps are above
            ``start.at``.
        identity: what :meth:`Source.identity` returned when the log began; empty: not known.
        memo: returns the memo as it is saved now; cheap. A source that filters tables itself
            keeps them in its memo. It calls this *after* it received the bytes that it is about to
            decode, because ``capture`` may have returned in the meantime.
        intern: gives a schema its version number.
        latest: the last shape of a table that all its feeds know; None if it was never seen.
        names: the names by which readers of the log may know a table, by its id. If rows begin to
            come under another name, readers of each of these names learn it.
        logged: the shape in which rows of a table go into the change log, given the one that the
            source has for them. It may promise whole old rows although the source sends only their
            key: the caller of the stream then adds the rest. It does not change while the stream
            runs.
        spool: a folder for large transactions; the stream may remove what an earlier process left.
        folder: a folder that is kept as long as the change log, for data that must survive a
            restart (a history of schemas). Its writes must be durable before the flush that needs
            them.
        term: the token of the lease under which the node reads, where several nodes can: a reader
            with a lower one has lost its lease, and its session is to be ended. 0: there is one
            node only.
    """

    start: Frontier
    identity: str
    memo: Callable[[], Memo]
    intern: Callable[[TableSchema], TableSchema]
    latest: Callable[[TableName], TableSchema | None]
    names: Callable[[int], Collection[TableName]]
    spool: Path
    folder: Path
    logged: Callable[[TableSchema], TableSchema] = as_sent
    term: int = 0


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """A partition and its size: rows by the source's statistics, bytes on the source's disk."""

    partition: Partition
    rows_estimate: int
    bytes: int


#: Parts of a table of which each bound takes a look at all of it: :meth:`Source.key_after`.
WHOLE_LOOKS = 8


def leading(
    key: Sequence[Column], by_index: Callable[[Column], bool], known: Callable[[Column], bool]
) -> int:
    """How many of the first columns of a key have an order for ranges: one that the index of the
    key has, too, or, where not even the first one has, one that is ``known``."""
    alike = by_index if by_index(key[0]) else known
    return sum(1 for _ in itertools.takewhile(alike, key))


@dataclass(frozen=True, slots=True)
class KeySet:
    """Rows with one of these keys, as far as they are there; at least one key."""

    keys: tuple[RowKey, ...]


def range_of(keys: KeyRange | KeySet | None) -> KeyRange | None:
    """The keys of a snapshot's parts at a source of which no table :meth:`Source.reads_keys`."""
    if isinstance(keys, KeySet):
        raise AssertionError("rows were asked for by key, which this source does not read")
    return keys


class ScanWorker(Protocol):
    """A process, of Spark for example, that stays until a scan has ended."""

    @property
    def lost(self) -> bool:
        """Nothing can be called there any longer."""
        ...

    def call(self, function: Callable[[ExitStack], T]) -> T:
        """Call a picklable function there, and return what it returns. It takes a stack whose
        callbacks run when the process is dismissed.

        Raises:
            ChangefeedError: what the function raised; CF2201, the worker was lost.
        """
        ...


class ScanPart(Protocol):
    """A piece of one table under a snapshot: small, picklable, read in any process (or, where
    :attr:`Source.parts_travel` is false, in the one that opened the snapshot and in the snapshot's
    workers)."""

    @property
    def table(self) -> TableSchema:
        """The table, as the schema of the rows."""
        ...

    @property
    def rows_estimate(self) -> int:
        """The approximate number of rows."""
        ...

    @property
    def bytes_estimate(self) -> int:
        """The approximate number of bytes on the source's disk."""
        ...

    def read(self) -> Iterator[pa.RecordBatch]:
        """The rows as batches of columns ``a0..an`` in log form, in bounded memory.

        Raises:
            ChangefeedError: CF2201, the snapshot has ended or the table was rewritten (the table's
                scan must start again under a new snapshot); CF2202, the rows can never be read.
        """
        ...


class Snapshot(Protocol):
    """A consistent image of the source, held open until closed.

    Attributes:
        workers: those given to :meth:`Source.snapshot_in` that hold it, too.
    """

    workers: Sequence[ScanWorker] = ()

    @property
    def position(self) -> Position:
        """The image shows what committed at or below this place in the log."""
        ...

    def parts(
        self,
        table: TableSchema,
        target_bytes: int = DEFAULT_PART_BYTES,
        *,
        columns: Sequence[int] | None = None,
        keys: KeyRange | KeySet | None = None,
        partition: Partition | None = None,
    ) -> Sequence[ScanPart]:
        """Parts that together are the table, each row in exactly one.

        With ``columns`` (positions) all others are null; the key is always read. With a
        ``partition`` only its rows are read; CF1303 if its bounds have changed. A :class:`KeySet`
        is given only for tables of :meth:`Source.reads_keys`.
        """
        ...

    def part_range(self, part: ScanPart) -> PartRange | None:
        """Where the rows of a part are, for :meth:`rest` of a later image; None: a scan of its
        table cannot go on under a later image."""
        return None

    def rest(
        self,
        table: TableSchema,
        places: Collection[str],
        left: Sequence[PartRange],
        target_bytes: int = DEFAULT_PART_BYTES,
        *,
        keys: KeyRange | None = None,
        partition: Partition | None = None,
    ) -> Sequence[ScanPart] | None:
        """The parts that a scan still has to read of a table, in the order of their places.

        Each row of this image is in one of these parts, or the stream has shown it since the
        earlier image (as an inserted or updated row), or it was in a part of the earlier image that
        is not ``left`` and is unchanged. None if that cannot be said: of a table whose rows moved
        without a change, for example.

        Args:
            places: all places of the earlier image's parts (:meth:`part_range`).
            left: the ranges of them that were not read.
            target_bytes, keys, partition: as of :meth:`parts`.
        """
        return None

    def close(self) -> None:
        """Release the image at the source. Idempotent."""
        ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Stream(Protocol):
    """The source's log from a frontier on, decoded.

    An idle source sends an empty flush with a rising frontier about every second. A flush that
    completes a transaction has a frontier; a transaction too large for memory comes in several
    flushes, of which only the last has one.
    """

    def __iter__(self) -> Iterator[Flush]: ...

    def acknowledge(self, position: Position) -> None:
        """Tell the source that everything up to ``position`` is durable in the change log, so that
        the source may discard it."""
        ...

    def hasten(self) -> None:
        """Send the frontier of an idle source now instead of with the next heartbeat, because a
        caller waits for it. Safe from any thread, at any time."""
        ...

    def close(self) -> None:
        """End the iteration soon; safe from any thread."""
        ...


class StreamFallback(ChangefeedError):
    """A stream failed, but the source can read the same changes in another way.

    A new stream of the same attachment, from the last durable frontier, reads them in that way.
    """


class Attachment(ABC):
    """What one state holds at one source. Thread-safe. Connects when first needed."""

    @property
    @abstractmethod
    def memo(self) -> Memo:
        """What :meth:`Source.attach` needs after a restart to find what is held. It is saved after
        each :meth:`capture`, before anything relies on it."""

    @property
    @abstractmethod
    def holds(self) -> str:
        """What is (or will be) held, as text for users: ``slot X, publication X``. Empty for
        nothing. No secrets."""

    @abstractmethod
    def check(self, watches: Sequence[Watch]) -> list[ChangefeedError]:
        """All problems of the server and of these tables. Changes nothing. An empty list means that
        :meth:`capture` would succeed."""

    def check_tables(self, watches: Sequence[Watch]) -> list[list[ChangefeedError]]:
        """The problems of each table that :meth:`check` would find, in the order of ``watches``,
        without those of the server. A source that cannot separate the two returns none;
        :meth:`capture` then finds them."""
        return [[] for _ in watches]

    @abstractmethod
    def capture(self, tables: Sequence[TableName], *, resume: bool) -> CaptureResult:
        """Make the source keep its log for this state, for exactly ``tables``. Idempotent.

        Args:
            tables: all tables of all feeds of the state at this source.
            resume: a change log exists, so the source must hold the attachment already.

        Raises:
            ChangefeedError: CF2102, on ``resume``: the source no longer keeps the log.
        """

    def altered(self, tables: Collection[int]) -> Mapping[int, str]:
        """Which of ``tables`` (by table id) may lack changes because others changed what
        makes the source send them, and why. Cheap: called every few seconds.

        Raises:
            ChangefeedError: CF2102, nothing makes the source send them any longer.
        """
        return {}

    def headroom(self, read: Frontier | None) -> list[str]:
        """How much longer the source keeps what the change log, which reaches ``read``, does not
        have yet: sentences for the user. None where it cannot be asked. Changes nothing.

        Raises:
            ChangefeedError: CF2102, the source no longer keeps it.
        """
        return []

    @abstractmethod
    def start(self) -> tuple[Position, str]:
        """The position where a new change log begins, and its :attr:`Frontier.history`: at or
        before what had committed when the first :meth:`capture` returned.

        Raises:
            ChangefeedError: CF2102, nothing is held.
        """

    @abstractmethod
    def stream(self, request: StreamRequest) -> Stream:
        """The changes after ``request.start``.

        Raises:
            ChangefeedError: CF2104, this is another database than ``request.identity``.
        """

    @abstractmethod
    def release(self) -> None:
        """Remove everything that :meth:`capture` made at the source. Idempotent."""


class Source(ABC):
    """A database that changes can be read from. Thread-safe; connects when first needed.

    A subclass is made with ``(name, uri)``: the name of the external connection and its URI.
    """

    name: str

    #: Parts of a snapshot can be read in any process while it is open.
    parts_travel: bool = True

    #: Workers that are there when a snapshot is taken can hold it, too, and read its parts
    #: (:meth:`snapshot_in`). Where neither is so, a scan does not use Spark's workers.
    takes_workers: bool = False

    #: The parameters that its URIs take (:class:`changefeed.core.settings.Settings`).
    parameters: tuple[Parameter, ...] = ()

    #: Changes can be completed from row images next to the change log (``row_images = 'store'``):
    #: the source's streams use :attr:`StreamRequest.logged`.
    takes_row_images: bool = False

    #: What a snapshot that is being taken waits for, in words for users; empty where that is not
    #: known.
    waits_for: str = ""

    #: The log of a source whose tables have no ids shows a rename this long after it at the latest,
    #: by the log's own time, in ns.
    rename_delay_ns: int = 0

    # -- what every source has ------------------------------------------------------------

    @abstractmethod
    def identity(self) -> str:
        """An identifier of the database; another value later means that the database was replaced.
        A replica that is promoted and continues the same log has the same identifier."""

    @abstractmethod
    def attach(self, owner: str, memo: Memo | None) -> Attachment:
        """What a state holds at this source, or will hold. Does not connect, changes nothing.

        Args:
            owner: six letters and digits of the state, for names of what the attachment creates.
            memo: as saved; None if nothing is held yet.
        """

    @abstractmethod
    def tables(self) -> list[TableInfo]:
        """The tables that can be watched, by name."""

    def reads_keys(self, table: TableSchema) -> bool:
        """Whether rows of the table, which has a key, can be read by :class:`KeySet`: the log's
        values of its key columns are what the source finds them by."""
        return False

    @abstractmethod
    def describe(self, schema: str | None, name: str) -> TableSchema:
        """The present shape of one table, version 0.

        Raises:
            ChangefeedError: CF1101, no such table (with a suggestion); CF1302, not watchable.
        """

    @abstractmethod
    def matching(self, schema: str | None, patterns: Sequence[str] = ()) -> list[TableName]:
        """The tables of a schema (None: of the database) that can be watched and match the globs.

        Raises:
            ChangefeedError: CF1101, no such schema.
        """

    @abstractmethod
    def current_position(self) -> Position:
        """A position above everything that had committed before the call. The stream's frontier
        reaches it soon, even on an idle source."""

    @abstractmethod
    def snapshot(self, tables: Sequence[TableSchema] = ()) -> Snapshot:
        """A consistent image. ``tables``: what will be read, for sources that must know beforehand.

        Raises:
            ChangefeedError: CF2005, the source could not give one now.
        """

    # -- what a source may have -----------------------------------------------------------

    def server_time(self) -> int | None:
        """The time, ns, by the clock of the server that stamps commits; None: it does not say."""
        return None

    def snapshot_in(self, tables: Sequence[TableSchema], workers: Sequence[ScanWorker]) -> Snapshot:
        """As :meth:`snapshot`; the workers hold the image, too, until they are dismissed, if
        :attr:`takes_workers`. Others may be left out: see :attr:`Snapshot.workers`."""
        return self.snapshot(tables)

    @property
    def database(self) -> str:
        """The name of the database in ``full_table_name``, independent of the connection's name."""
        return self.name

    def locate(self, tables: Sequence[TableName], ids: Sequence[int]) -> TableLocations | None:
        """The present ids and names of tables, by name and by :attr:`TableSchema.table_id`. Cheap:
        called every few seconds. None: tables of this source have no ids that survive a rename."""
        return None

    def describe_tables(self, tables: Sequence[TableName]) -> dict[TableName, TableSchema]:
        """The present shapes, without tables that are dropped or cannot be watched."""
        found = {}
        for table in tables:
            try:
                found[table] = self.describe(table.schema, table.name)
            except ChangefeedError as error:
                if error.code not in (Code.NAME_UNKNOWN, Code.TARGET_NOT_WATCHABLE):
                    raise
        return found

    def warnings(self, watches: Sequence[Watch] = ()) -> list[str]:
        """Sentences for the user who creates a feed, about problems that do not prevent it."""
        return []

    def handover(
        self, offset: Mapping[str, Any], tables: Sequence[TableName], *, fresh: bool
    ) -> Handover:
        """Where a Debezium connector with this offset stopped. Changes nothing.

        Args:
            offset: as Kafka Connect stores it.
            tables: the tables that the connector captured.
            fresh: nothing is held yet, so the change log begins at the offset.

        Raises:
            ChangefeedError: CF1303, the offset is not of this kind of source, or the log cannot be
                read from there.
        """
        raise ChangefeedError(Code.NOT_SUPPORTED, f"source {self.name} takes over no connector")

    def messages(self) -> TableSchema:
        """The shape of logical messages as rows of a table, version 0. It has the columns of
        :mod:`changefeed.core.logical_messages`, numbered; each message is an inserted row. No real
        table can have its name. If a feed wants messages, :meth:`Attachment.capture` gets this name
        among the tables.

        Raises:
            ChangefeedError: CF1303, this source has no logical messages.
        """
        raise ChangefeedError(
            Code.NOT_SUPPORTED,
            f"source {self.name} has no logical messages",
            hint="make a table for them (an outbox), insert into it, and watch that table.",
        )

    def range_problem(self, table: TableSchema, keys: KeyRange) -> ChangefeedError | None:
        """Why the range cannot have a row: a bound is not a value of its column, or the bounds are
        in the wrong order. None if it can."""
        return None

    def range_columns(self, table: TableSchema) -> int:
        """How many of the first columns of a table's key the bounds of :meth:`key_after` have; 0:
        it says none of this table, which has a key."""
        return 0

    def key_after(
        self, table: TableSchema, low: tuple[str, ...] | None, rows: int
    ) -> tuple[str, ...] | None:
        """The key, as the log has it, above about ``rows`` rows from ``low`` (None: the least key)
        on: so much of it as :meth:`range_columns` says, as a bound of a :class:`KeyRange`. Above
        ``low``; None if there are no more rows. A source that must look at the whole table for a
        bound takes :data:`WHOLE_LOOKS` parts at most."""
        raise AssertionError(f"source {self.name} gives no ranges of keys")

    def partitions(self, table: TableSchema) -> list[str]:
        """The names of a table's partitions at every level; empty for an ordinary table."""
        return []

    def partition(self, table: TableSchema, name: str) -> PartitionInfo:
        """One partition of a table, at any level.

        Raises:
            ChangefeedError: CF1101, there is none of that name; CF1303, its rows cannot be
                distinguished from those of others, or partitions cannot be watched at this source.
        """
        raise ChangefeedError(Code.NOT_SUPPORTED, f"source {self.name} has no partitions to watch")
