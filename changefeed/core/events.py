"""What moves from sources to sinks: changes, truncations, schema changes, statements of DDL,
frontiers, messages.

In bulk a change is one row of an Arrow batch (:class:`ChangeBatch`); :class:`Change` is the same
as one Python object, for tests and small tools. All other code works with columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from changefeed.core.clock import Timestamp
from changefeed.core.schema import Column, TableName, TableSchema

if TYPE_CHECKING:
    import pyarrow as pa

#: A place in the source's own log. Opaque to all but its source, except for one promise:
#: positions of one source compare as text in the order of that source's log.
Position = str


@dataclass(frozen=True, slots=True)
class Change:
    """One change of one row. ``before`` and ``after`` map column names to log values."""

    table: TableName
    op: str
    at: Timestamp
    seq: int
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    xid: int = 0
    ordinal: int = 0
    last: bool = True


@dataclass(frozen=True, slots=True)
class ChangeBatch:
    """Rows of one table and schema version in log order.

    ``rows`` has the schema ``schema.log_schema()``.
    """

    schema: TableSchema
    rows: pa.RecordBatch

    def changes(self) -> Iterator[Change]:
        """The batch row by row (slow: for tests and tools)."""
        schema = self.schema
        for row in self.rows.to_pylist():
            after = {c.name: row[f"a{i}"] for i, c in enumerate(schema.columns)}
            before = {schema.columns[i].name: row[f"b{i}"] for i in schema.before_ordinals}
            has_before = row["op"] == "d" or any(v is not None for v in before.values())
            yield Change(
                table=schema.table,
                op=row["op"],
                at=Timestamp(row["wall"], row["logical"]),
                seq=row["seq"],
                before=before if has_before else None,
                after=None if row["op"] == "d" else after,
                xid=row["xid"],
                ordinal=row["ord"],
                last=row["last"],
            )


@dataclass(frozen=True, slots=True)
class Truncate:
    """All rows of ``schema.table`` were removed at ``at``."""

    schema: TableSchema
    at: Timestamp
    seq: int


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """``new`` describes every row of the table from ``at`` on.

    ``rewritten`` is true if existing rows have changed without being sent as changes (a column
    added with a default, a type changed): a copy then needs a backfill. ``moved`` is true if rows
    entered or left the table without being sent as changes (a partition was dropped or attached);
    such a change is ``rewritten``, too. ``unreadable`` is true if changes of the table at ``at``
    could not be read: the table cannot continue without a scan that begins later; such a change is
    ``rewritten``, too. ``why`` says to users what happened at the source in all these cases.
    ``arrived`` is true for a reader of the table's new name: the table has had this name since
    ``at``, and ``old`` is its schema from before. ``renamed`` has the names before and after of
    columns with other names, where the source has no column ids; an empty name after: the column
    was dropped, though another one may have its name.
    """

    old: TableSchema
    new: TableSchema
    at: Timestamp
    seq: int
    rewritten: bool = False
    arrived: bool = False
    moved: bool = False
    unreadable: bool = False
    why: str = ""
    renamed: tuple[tuple[str, str], ...] = ()

    def was(self, column: Column) -> Column | None:
        """The column of ``old`` that a column of ``new`` was; None for an added one."""
        ref = column.ref
        if not column.column_id and self.renamed:
            names = {new: old for old, new in self.renamed}
            if column.name not in names and column.name in names.values():
                return None
            ref = names.get(column.name, column.name)
        return next((c for c in self.old.columns if c.ref == ref), None)

    @property
    def same_key(self) -> bool:
        """Whether the key has the same columns as before; their names may have changed."""
        if self.old.keyless or self.new.keyless:
            return self.old.keyless == self.new.keyless
        return list(self.old.key_columns) == [self.was(c) for c in self.new.key_columns]

    @property
    def dropped(self) -> tuple[Column, ...]:
        """The columns of ``old`` that ``new`` has not."""
        left = {was.ref for was in map(self.was, self.new.columns) if was is not None}
        return tuple(column for column in self.old.columns if column.ref not in left)


@dataclass(frozen=True, slots=True)
class Ddl:
    """A statement that defined a table at the source, as the source logged it.

    It comes before everything that it causes (a :class:`Truncate`, a :class:`SchemaChange`, rows),
    and changes nothing by itself.

    Attributes:
        table: which table; it may be one that no feed watches, or that no longer exists.
        kind: what happened to the table, or to its database: ``CREATE``, ``ALTER``, ``DROP``,
            ``RENAME``, ``TRUNCATE``.
        statement: its text without secrets, cut at :data:`STATEMENT_CHARACTERS`.
        position: where its transaction ends in the source's log.
    """

    table: TableName
    kind: str
    statement: str
    position: Position
    at: Timestamp
    seq: int


#: The longest text of a statement that an event keeps.
STATEMENT_CHARACTERS = 65_536

Event = ChangeBatch | Truncate | SchemaChange | Ddl


@dataclass(frozen=True, slots=True)
class Commits:
    """The transactions that ended in a flush, oldest first (column lists of equal length)."""

    wall: Sequence[int] = ()
    logical: Sequence[int] = ()
    position: Sequence[Position] = ()
    xid: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Frontier:
    """Everything the source committed up to ``position`` is in the log, all at or below ``at``.

    ``seq`` is the last sequence number that was assigned. With ``history`` the source can check
    that its log is still the one that was read; only the source interprets it, and it is empty
    if unknown.
    """

    at: Timestamp
    position: Position
    seq: int = 0
    history: str = ""


@dataclass(frozen=True, slots=True)
class Flush:
    """Everything that capture appends to the log in one durable step.

    ``frontier`` is None while a large transaction is only partly in the log: its rows stay
    invisible to readers until a flush with a frontier completes them.
    """

    events: Sequence[Event]
    frontier: Frontier | None
    commits: Commits = field(default_factory=Commits)


@dataclass(frozen=True, slots=True)
class Resolved:
    """Every change at or below ``at`` that follows repeats one that was already sent.

    ``payloads`` has the message values of topics that need their own: in Avro and protobuf a value
    names a schema that belongs to the topic.
    """

    at: Timestamp
    payloads: Mapping[str, bytes] = field(default_factory=dict)


class ClientRow(NamedTuple):
    """One row of a sinkless feed as its client sees it.

    A resolved timestamp has neither table nor key. ``op`` is that of the change log: ``r`` of a
    scan's row, ``c``, ``u`` or ``d``; ``t`` of a truncation, empty of a resolved timestamp.
    """

    table: str | None
    key: bytes | None
    value: bytes | None
    op: str


#: The same with key and value as text.
StreamRow = tuple[str | None, str | None, str | None, str]
