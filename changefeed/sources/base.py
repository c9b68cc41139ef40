"""What a source is: the protocol between feeds and a kind of database.

Two classes. A :class:`Source` is the database: it names and describes tables, finds problems, and
gives a consistent image of tables (:class:`Snapshot`). An :class:`Attachment` is what one state
holds at that database so that no change is lost (PostgreSQL: a replication slot and a publication;
MySQL: a start position and a list of tables), and reads the database's log (:class:`Stream`). What
it holds is its own business: the state stores the attachment's *memo*, some JSON, and never looks
inside.

The order of calls for a feed is

    describe -> attach -> check -> capture -> [snapshot -> parts -> read*] and stream, at once

* Every change that commits after :meth:`Attachment.capture` returned, and its memo was saved,
  reaches the stream.
* A snapshot that is opened after ``capture`` shows exactly what committed at or below its
  ``position``; the stream carries the rest.

A source owns no progress: the change log does. Methods with a body are optional: the body is what
a source does that has nothing better.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from changefeed.core.errors import ChangefeedError, Code, Span
from changefeed.core.events import Flush, Frontier, Position
from changefeed.core.partition import Partition
from changefeed.core.schema import TableName, TableSchema

if TYPE_CHECKING:
    import pyarrow as pa

#: How many bytes of table one scan part should hold.
DEFAULT_PART_BYTES = 64 << 20

#: What an attachment must know again after a restart: JSON, a few kilobytes at most, no secrets.
Memo = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Watch:
    """A table somebody asks for, before it is known to exist.

    Attributes:
        name: as written.
        schema: as written, or None: the source's own search rule applies.
        diff: before images of all columns are wanted.
        span: where in the statement, for errors.
    """

    name: str
    schema: str | None = None
    diff: bool = False
    span: Span | None = None

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}" if self.schema else self.name


@dataclass(frozen=True, slots=True)
class TableInfo:
    """One row of SHOW TABLES.

    Attributes:
        name: the table.
        key: names of the key columns; empty when the table has no key.
        identity: what old rows carry, in the source's own words.
        rows_estimate: rows by the source's statistics, never counted.
        bytes: size on disk with large values, without indexes.
        kind: ``table`` or ``partitioned table``.
        note: what CREATE CHANGEFEED would refuse, and the statement that changes that; empty
            where nothing is wrong.
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
    """What :meth:`Attachment.capture` did.

    Attributes:
        problems: the tables that could not be captured, each with its reason; the others are
            captured all the same.
        altered: tables of which changes may be missing, because somebody else had changed what
            makes the source send them, and what was changed.
    """

    problems: Mapping[TableName, ChangefeedError] = field(default_factory=dict)
    altered: Mapping[TableName, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Handover:
    """Where another reader of the source's log stopped.

    Attributes:
        position: every change that commits at or below it was delivered by that reader; some of
            those above may have been.
        memo: of an attachment whose log begins there, where nothing is held yet.
        notices: sentences for the person who takes over, of what stays behind.
    """

    position: Position
    memo: Memo
    notices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TableLocations:
    """Where tables are at one moment.

    Attributes:
        ids: the present table id of each name asked for; a name that stands for nothing is absent.
        names: the present name of each table id asked for; a table that is gone is absent.
        unsafe: ids of tables whose users could not change rows while they are captured.
    """

    ids: Mapping[TableName, int]
    names: Mapping[int, TableName]
    unsafe: frozenset[int] = frozenset()


def _as_sent(schema: TableSchema) -> TableSchema:
    """The shape that the source has for its rows."""
    return schema


@dataclass(frozen=True, slots=True)
class StreamRequest:
    """What a stream is given.

    Attributes:
        start: the stream carries every change after ``start.position``. ``start.history`` is what
            the source wrote into the frontier of the flush before (empty at the begin of a log).
            Sequence numbers go on from ``start.seq``, log timestamps are above ``start.at``.
        identity: what :meth:`Source.identity` said when the log began; empty: not known.
        memo: gives the memo as it is saved now; cheap. A source that filters tables by itself
            keeps them in its memo, and asks *after* it received what it is about to decode:
            capture() may have returned between.
        intern: gives a schema its version number.
        latest: the last shape of a table that all its feeds know; None when it was never seen.
        names: the names by which readers of the log may know a table, by its id: where rows come
            under another name, each of these is told of it.
        logged: the shape in which rows of a table go into the change log, given the one that the
            source has for them. It may promise whole old rows where the source sends only their
            key: whoever made the request fills them in. The same for the life of the stream.
        spool: a folder for large transactions; what an earlier process left there is rubbish.
        folder: a folder that lives as long as the change log, for what must outlive a restart
            (a history of schemas). Its writes must be durable before the flush that needs them.
    """

    start: Frontier
    identity: str
    memo: Callable[[], Memo]
    intern: Callable[[TableSchema], TableSchema]
    latest: Callable[[TableName], TableSchema | None]
    names: Callable[[int], Collection[TableName]]
    spool: Path
    folder: Path
    logged: Callable[[TableSchema], TableSchema] = _as_sent


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """A partition and how large it is: rows by the source's statistics, bytes on its disk."""

    partition: Partition
    rows_estimate: int
    bytes: int


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Rows whose key is in ``[low, high)``; a prefix of the key columns; None is open.

    Values are written as in the statement and read by the source as the column's type. Text
    compares by code point, whatever collation the source would use.
    """

    low: tuple[str, ...] | None = None
    high: tuple[str, ...] | None = None


class ScanPart(Protocol):
    """A piece of one table under a snapshot: small, picklable, read in any process (or, where
    :attr:`Source.parts_travel` is false, in the one that opened the snapshot)."""

    @property
    def table(self) -> TableSchema:
        """Which table, and the schema its rows come in."""
        ...

    @property
    def rows_estimate(self) -> int:
        """About how many rows."""
        ...

    @property
    def bytes_estimate(self) -> int:
        """About how many bytes on the source's disk."""
        ...

    def read(self) -> Iterator[pa.RecordBatch]:
        """The rows as batches of columns ``a0..an`` in log form, in bounded memory.

        Raises:
            ChangefeedError: CF2201 when the snapshot is gone or the table was rewritten (the
                table's scan must start again under a new snapshot), CF2202 when it can never
                be read.
        """
        ...


class Snapshot(Protocol):
    """A consistent image of the source, held open until closed."""

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
        keys: KeyRange | None = None,
        partition: Partition | None = None,
    ) -> Sequence[ScanPart]:
        """Pieces that together are the table, each row in exactly one.

        ``columns`` (positions) leaves the others null; the key is always read. Of a
        ``partition`` only its rows are read; one that has other bounds now is CF1303.
        """
        ...

    def close(self) -> None:
        """Let go of the image at the source. Idempotent."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class Stream(Protocol):
    """The source's log from a frontier on, decoded.

    An idle source gives an empty flush with a rising frontier about every second. A flush that
    completes a transaction has a frontier; a transaction too large for memory comes in several
    flushes of which the last alone has one.
    """

    def __iter__(self) -> Iterator[Flush]: ...

    def acknowledge(self, position: Position) -> None:
        """Everything up to ``position`` is durable with us: the source may forget it."""
        ...

    def hasten(self) -> None:
        """Somebody waits for the frontier of an idle source: give it now instead of with the next
        heartbeat. Safe from any thread, at any time."""
        ...

    def close(self) -> None:
        """End the iteration soon; safe from any thread."""
        ...


class StreamFallback(ChangefeedError):
    """A stream broke, but its source knows another way to read the same changes.

    A stream of the same attachment from the last durable frontier takes that way.
    """


class Attachment(ABC):
    """What one state holds at one source. Thread-safe. Connects when first needed."""

    @property
    @abstractmethod
    def memo(self) -> Memo:
        """What :meth:`Source.attach` needs to find again what is held. It is saved after
        each :meth:`capture`, before anything relies on it."""

    @property
    @abstractmethod
    def holds(self) -> str:
        """What is (or will be) held, for people: ``slot X, publication X``. No secrets."""

    @abstractmethod
    def check(self, watches: Sequence[Watch]) -> list[ChangefeedError]:
        """Every problem of the server and of these tables at once, nothing changed; an empty list
        means that :meth:`capture` would work."""

    def check_tables(self, watches: Sequence[Watch]) -> list[list[ChangefeedError]]:
        """The problems of each table that :meth:`check` would find, in order, without those of
        the server. A source that does not tell them apart finds none: ``capture`` will."""
        return [[] for _ in watches]

    @abstractmethod
    def capture(self, tables: Sequence[TableName], *, resume: bool) -> CaptureResult:
        """Make the source keep its log for us, for exactly ``tables``. Idempotent.

        Args:
            tables: all tables of all feeds of the state at this source.
            resume: a change log exists: what we hold must be there already.

        Raises:
            ChangefeedError: CF2102 on ``resume`` the source no longer keeps the log for us.
        """

    def altered(self, tables: Collection[int]) -> Mapping[int, str]:
        """Which of ``tables`` (by table id) may have missed changes because somebody else changed
        what makes the source send them, and why. Cheap: asked every few seconds.

        Raises:
            ChangefeedError: CF2102 nothing makes the source send them any longer.
        """
        return {}

    @abstractmethod
    def start(self) -> tuple[Position, str]:
        """Where a new change log begins, and its :attr:`Frontier.history`: at or before what was
        committed when the first :meth:`capture` returned.

        Raises:
            ChangefeedError: CF2102 nothing is held.
        """

    @abstractmethod
    def stream(self, request: StreamRequest) -> Stream:
        """The changes after ``request.start``.

        Raises:
            ChangefeedError: CF2104 this is another database than ``request.identity``.
        """

    @abstractmethod
    def release(self) -> None:
        """Remove everything that :meth:`capture` made at the source. Idempotent."""


class Source(ABC):
    """A database that changes can be read from. Thread-safe; connects when first needed.

    A subclass is made with ``(name, uri)``: the name of the external connection and its URI.
    """

    name: str

    #: Parts of a snapshot can be read in any process while it is open. Else a scan never uses
    #: Spark's workers: they read nothing.
    parts_travel: bool = True

    #: Changes can be completed from row images beside the change log (``row_images = 'store'``):
    #: the source's streams heed :attr:`StreamRequest.logged`.
    takes_row_images: bool = False

    # -- what every source has ------------------------------------------------------------

    @abstractmethod
    def identity(self) -> str:
        """Which database this is: another value later means that it was replaced. A copy that is
        promoted in its place and goes on with its log has the same."""

    @abstractmethod
    def attach(self, owner: str, memo: Memo | None) -> Attachment:
        """What a state holds here, or will hold. Does not connect, changes nothing.

        Args:
            owner: six letters and digits of the state: part of the names of what we make.
            memo: as saved; None when nothing is held yet.
        """

    @abstractmethod
    def tables(self) -> list[TableInfo]:
        """The tables that can be watched, by name."""

    @abstractmethod
    def describe(self, schema: str | None, name: str) -> TableSchema:
        """The present shape of one table, version 0.

        Raises:
            ChangefeedError: CF1101 no such table (with a suggestion), CF1302 not watchable.
        """

    @abstractmethod
    def matching(self, schema: str | None, patterns: Sequence[str] = ()) -> list[TableName]:
        """The watchable tables of a schema (None: of the database), narrowed by globs.

        Raises:
            ChangefeedError: CF1101 no such schema.
        """

    @abstractmethod
    def current_position(self) -> Position:
        """A place in the log above everything that had committed when this was called, and that
        the stream's frontier reaches soon, on an idle source too."""

    @abstractmethod
    def snapshot(self, tables: Sequence[TableSchema] = ()) -> Snapshot:
        """A consistent image. ``tables``: what will be read, where a source must know before.

        Raises:
            ChangefeedError: CF2005 when the source could not give one now.
        """

    # -- what a source may have -----------------------------------------------------------

    @property
    def database(self) -> str:
        """What ``full_table_name`` calls the database, whatever the connection is called."""
        return self.name

    def locate(self, tables: Sequence[TableName], ids: Sequence[int]) -> TableLocations | None:
        """Where tables are now, by name and by :attr:`TableSchema.table_id`. Cheap: asked every
        few seconds. None: the tables of this source have no ids that outlive a rename."""
        return None

    def describe_tables(self, tables: Sequence[TableName]) -> dict[TableName, TableSchema]:
        """The present shapes; a table that is gone or cannot be watched is left out."""
        found = {}
        for table in tables:
            try:
                found[table] = self.describe(table.schema, table.name)
            except ChangefeedError as error:
                if error.code not in (Code.NAME_UNKNOWN, Code.TARGET_NOT_WATCHABLE):
                    raise
        return found

    def warnings(self, watches: Sequence[Watch] = ()) -> list[str]:
        """Sentences for the person who makes a feed: what does not hinder it, but matters."""
        return []

    def handover(
        self, offset: Mapping[str, Any], tables: Sequence[TableName], *, fresh: bool
    ) -> Handover:
        """Where a Debezium connector with this offset stopped. Changes nothing.

        Args:
            offset: as Kafka Connect stores it.
            tables: what the connector captured.
            fresh: nothing is held yet, so the change log is to begin at the offset.

        Raises:
            ChangefeedError: CF1303 the offset is none of this kind of source, or the log cannot
                be taken over from there.
        """
        raise ChangefeedError(Code.NOT_SUPPORTED, f"source {self.name} takes over no connector")

    def messages(self) -> TableSchema:
        """What its logical messages look like as rows of a table, version 0: with the columns of
        :mod:`changefeed.core.logical_messages`, numbered, each message a row that is inserted. The
        table's name is one that no table can have; :meth:`Attachment.capture` is given it among the
        tables where a feed wants messages.

        Raises:
            ChangefeedError: CF1303 this source has none.
        """
        raise ChangefeedError(
            Code.NOT_SUPPORTED,
            f"source {self.name} has no logical messages",
            hint="make a table for them (an outbox), insert into it, and watch that table.",
        )

    def range_problem(self, table: TableSchema, keys: KeyRange) -> ChangefeedError | None:
        """Why no row can be in the range: a bound that is no value of its column, or bounds in
        the wrong order."""
        return None

    def partitions(self, table: TableSchema) -> list[str]:
        """The names of a table's partitions, at every level; none of a plain table."""
        return []

    def partition(self, table: TableSchema, name: str) -> PartitionInfo:
        """One partition of a table, at any level.

        Raises:
            ChangefeedError: CF1101 there is none of that name, CF1303 its rows cannot be told
                from those of others, or no partition can be watched at this source.
        """
        raise ChangefeedError(Code.NOT_SUPPORTED, f"source {self.name} has no partitions to watch")
