"""What a source is: the protocol, and the types that cross it.

A source names tables, says what hinders a changefeed, makes what it needs at the database,
reads a consistent image of tables in parts (:class:`Snapshot`) and follows the log
(:class:`Stream`). It owns no progress: the change log does.

The order of calls for a feed is

    check -> describe -> prepare -> [snapshot -> parts -> read_part*] and stream, at once

* Every change that commits after :meth:`Source.prepare` returned reaches the stream.
* A snapshot that is opened after ``prepare`` shows exactly what committed at or below its
  ``position``; the stream carries the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self, runtime_checkable

import pyarrow as pa

from changefeed.core.errors import ChangefeedError, Span
from changefeed.core.events import Flush, Frontier, Position
from changefeed.core.partition import Partition
from changefeed.core.schema import Identity, TableName, TableSchema

#: How many bytes of table one scan part should hold.
DEFAULT_PART_BYTES = 64 << 20


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
        identity: what old rows carry.
        rows_estimate: rows by the source's statistics, never counted.
        bytes: size on disk with large values, without indexes.
        in_publication: its changes are being captured by the asker.
        kind: ``table`` or ``partitioned table``.
    """

    name: TableName
    key: tuple[str, ...]
    identity: Identity
    rows_estimate: int
    bytes: int
    in_publication: bool
    kind: str


@dataclass(frozen=True, slots=True)
class Prepared:
    """What :meth:`Source.prepare` did.

    ``problems`` names the wanted tables that could not be captured, each with its reason;
    the others are captured all the same. ``altered`` names tables of which changes may be missing,
    because somebody else had changed what makes the source send them, and what was changed.
    """

    slot_created: bool = False
    added: tuple[TableName, ...] = ()
    removed: tuple[TableName, ...] = ()
    problems: Mapping[TableName, ChangefeedError] = field(default_factory=dict)
    altered: Mapping[TableName, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sighting:
    """Where tables are at one moment.

    Attributes:
        numbers: what each name asked for stands for now; one that stands for nothing is absent.
        names: the present name of each number asked for; one that is gone is absent.
        unsafe: numbers of tables whose users could not change rows while they are captured.
    """

    numbers: Mapping[TableName, int]
    names: Mapping[int, TableName]
    unsafe: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class SlotState:
    """What the source says about our place in its log.

    Attributes:
        exists: false when there is none (all else is empty then).
        confirmed: everything up to here was acknowledged by us.
        restart: the oldest part of its log that the source keeps for us.
        status: ``reserved``, ``extended``, ``unreserved`` (in danger) or ``lost``; empty when
            the source does not say.
        active_pid: the server process that serves it now.
        retained_bytes: how much log the source keeps because of us.
        safe_bytes: how much more may be written before the slot can be lost; None: no limit.
        reason: why it was invalidated, in the source's words.
    """

    exists: bool
    plugin: str = ""
    database: str = ""
    confirmed: Position = ""
    restart: Position = ""
    status: str = ""
    active_pid: int | None = None
    retained_bytes: int = 0
    safe_bytes: int | None = None
    reason: str = ""

    @property
    def lost(self) -> bool:
        """The source threw away log that we still need."""
        return self.status == "lost"


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
    """A piece of one table under a snapshot: small, picklable, read in any process."""

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

    def rows_estimate(self, table: TableSchema) -> int:
        """About how many rows the table has."""
        ...

    def alive(self) -> bool:
        """False once the source has dropped the image: parts not yet begun will fail."""
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
    """The source's log from a frontier on, decoded."""

    def __iter__(self) -> Iterator[Flush]: ...

    def acknowledge(self, position: Position) -> None:
        """Everything up to ``position`` is durable with us: the source may forget it."""
        ...

    def close(self) -> None:
        """End the iteration soon; safe from any thread."""
        ...


class StreamFallback(ChangefeedError):
    """A stream broke, but its source knows another way to read the same changes.

    A stream of the same source from the last durable frontier takes that way.
    """


@runtime_checkable
class NumbersTables(Protocol):
    """Optional: a source whose tables have numbers that outlive a rename and are never reused."""

    def sight(self, tables: Sequence[TableName], numbers: Sequence[int]) -> Sighting:
        """Look where tables are, by name and by number
        (:attr:`~changefeed.core.schema.TableSchema.oid`). Cheap: asked every few seconds.
        """
        ...


@runtime_checkable
class DescribesTables(Protocol):
    """Optional: a source that can describe many tables in one go."""

    def describe_tables(self, tables: Sequence[TableName]) -> dict[TableName, TableSchema]:
        """The present shapes; a table that is gone or cannot be watched is left out."""
        ...


@runtime_checkable
class ChecksTables(Protocol):
    """Optional: a source that can check tables one by one, without looking at the server."""

    def table_problems(
        self, watches: Sequence[Watch], *, publication: str | None = None
    ) -> list[list[ChangefeedError]]:
        """The problems of each table that :meth:`Source.check` would find, in order."""
        ...


@runtime_checkable
class NamesDatabase(Protocol):
    """Optional: a source that is one database with a name of its own."""

    @property
    def database(self) -> str:
        """The name of the database, whatever the connection to it is called."""
        ...


def database_of(source: Source) -> str:
    """What ``full_table_name`` calls the database; the connection's name where it has none."""
    return source.database if isinstance(source, NamesDatabase) else source.name


@runtime_checkable
class ChecksRanges(Protocol):
    """Optional: a source that can tell whether a key range can hold a row."""

    def range_problem(self, table: TableSchema, keys: KeyRange) -> ChangefeedError | None:
        """Why no row can be in the range: a bound that is no value of its column, or bounds in
        the wrong order."""
        ...


@runtime_checkable
class WatchesPublication(Protocol):
    """Optional: a source where somebody else can change what makes it send our tables."""

    def altered(self, publication: str, tables: Collection[int]) -> Mapping[int, str]:
        """Which of ``tables`` (by number, sent by :meth:`Source.prepare`'s word) may have missed
        changes since, and why. Cheap: asked every few seconds.

        Raises:
            ChangefeedError: CF2102 nothing makes the source send them any longer.
        """
        ...


@runtime_checkable
class Partitions(Protocol):
    """Optional: a source whose tables have partitions that a feed may watch by themselves."""

    def partitions(self, table: TableSchema) -> list[str]:
        """The names of a table's partitions, at every level; none of a plain table."""
        ...

    def partition(self, table: TableSchema, name: str) -> PartitionInfo:
        """One partition of a table, at any level.

        Raises:
            ChangefeedError: CF1101 there is none of that name, CF1303 its rows cannot be told
                from those of others.
        """
        ...


@runtime_checkable
class Warns(Protocol):
    """Optional: a source with something to say about a feed that can be made all the same."""

    def warnings(self, watches: Sequence[Watch] = ()) -> list[str]:
        """Sentences for the person who makes the feed."""
        ...


@runtime_checkable
class Source(Protocol):
    """A database that changes can be read from. Thread-safe."""

    name: str

    def check(
        self,
        watches: Sequence[Watch],
        *,
        slot: str | None = None,
        publication: str | None = None,
    ) -> list[ChangefeedError]:
        """Every problem at once, nothing changed; an empty list means a feed can be made."""
        ...

    def tables(self, publication: str | None = None) -> list[TableInfo]:
        """The tables that can be watched, by name."""
        ...

    def describe(self, schema: str | None, name: str) -> TableSchema:
        """The present shape of one table, version 0.

        Raises:
            ChangefeedError: CF1101 no such table (with a suggestion), CF1302 not watchable.
        """
        ...

    def matching(self, schema: str | None, patterns: Sequence[str] = ()) -> list[TableName]:
        """The watchable tables of a schema (None: of the database), narrowed by globs."""
        ...

    def prepare(
        self,
        *,
        slot: str,
        publication: str,
        tables: Sequence[TableName],
        expect_slot: bool = False,
    ) -> Prepared:
        """Make the source keep its log for us, for exactly ``tables``. Idempotent.

        Raises:
            ChangefeedError: CF2102 when ``expect_slot`` and the slot is gone or lost.
        """
        ...

    def forget(self, *, slot: str, publication: str) -> None:
        """Remove everything that :meth:`prepare` made. Idempotent."""
        ...

    def system_id(self) -> str:
        """Which database this is: another one later means it was replaced."""
        ...

    def current_position(self) -> Position:
        """A place in the log above everything that had committed when this was called."""
        ...

    def slot_state(self, slot: str) -> SlotState:
        """What the source keeps for us."""
        ...

    def slot_position(self, slot: str) -> Position:
        """Where a stream from the slot starts.

        Raises:
            ChangefeedError: CF2102 when there is no such slot.
        """
        ...

    def snapshot(self, tables: Sequence[TableSchema] = ()) -> Snapshot:
        """A consistent image. ``tables``: what will be read, where a source must know before.

        Raises:
            ChangefeedError: CF2005 when the source could not give one now.
        """
        ...

    def stream(
        self,
        *,
        slot: str,
        publication: str,
        start: Frontier,
        system_id: str,
        intern: Callable[[TableSchema], TableSchema],
        spool: Path,
        latest: Callable[[TableName], TableSchema | None] | None = None,
    ) -> Stream:
        """The changes after ``start``.

        Args:
            system_id: what :meth:`system_id` said when the slot was made; empty: not known.
            intern: gives a schema its version number.
            spool: a folder of its own for large transactions.
            latest: the last shape that all feeds of a table know, to see what changed since.

        Raises:
            ChangefeedError: CF2104 this is another database than ``system_id``.
        """
        ...
