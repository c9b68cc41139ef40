"""Which table a row belongs to: Relation messages and the catalog made into schemas.

A Relation message is true for its moment but knows neither nullability nor the primary key's
order nor what a type is made of; the catalog knows, but as of now. So the message decides names
and types, the catalog adds the rest by column name, and what it no longer knows (a column
renamed since) is taken from the last shape we knew.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from changefeed.core.clock import SYSTEM_CLOCK, Clock
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.schema import Column, TableName, TableSchema
from changefeed.core.types import INTEGERS, Kind
from changefeed.sources.base import as_sent
from changefeed.sources.decoded.flushes import ShapeChange
from changefeed.sources.postgres.details import identity_of
from changefeed.sources.postgres.logical_messages import (
    LOGICAL_OID,
    messages_schema,
    messages_table,
)
from changefeed.sources.postgres.pgoutput import (
    RelationMessage,
    WireColumn,
    read_relation,
    read_relation_name,
)
from changefeed.sources.postgres.storage_changes import StorageWatch
from changefeed.sources.postgres.types import (
    ColumnInfo,
    ReplicaIdentity,
    TableDetails,
    assemble_schema,
    key_names,
    schema_of,
    spelled,
)
from changefeed.sources.postgres.visibility import Visibility

#: Seconds between two looks at a catalog that is behind the stream.
_ASK_AGAIN = 0.02

Describe = Callable[[Sequence[int]], Mapping[int, TableDetails]]
Intern = Callable[[TableSchema], TableSchema]
Latest = Callable[[TableName], TableSchema | None]
Names = Callable[[int], Collection[TableName]]


@dataclass(frozen=True, slots=True)
class UnannouncedChange:
    """A shape that the catalog has and that no message has announced; ``old`` is what is known."""

    old: TableSchema
    made: TableSchema
    details: TableDetails


class Relations:
    """The tables of one stream. Messages are taken as they come, the catalog is asked when the
    first row of a table needs it: many tables are announced and never written."""

    def __init__(
        self,
        source: str,
        describe: Describe,
        intern: Intern,
        latest: Latest | None = None,
        names: Names = lambda oid: (),
        visibility: Visibility | None = None,
        catalog_lag: float = 1.0,
        look_again: float = 0.2,
        clock: Clock = SYSTEM_CLOCK,
        logged: Intern = as_sent,
        storage: StorageWatch | None = None,
    ) -> None:
        """
        Args:
            source: the source's name.
            describe: what the catalog knows of tables by oid.
            intern: gives a shape its version.
            latest: the last shape known of a table, from before this stream.
            names: the names by which readers of the log may know a table.
            visibility: waits for transactions that the catalog does not show yet.
            catalog_lag: seconds the catalog may be behind the stream.
            look_again: seconds between two looks at a table whose newest shape the catalog does
                not show yet.
            clock: for both.
            logged: the shape in which rows go into the log, given the one that they are sent in.
            storage: hears of tables that are read again.
        """
        self._logged = logged
        self._storage = StorageWatch(None) if storage is None else storage
        self._clock = clock
        self._source = source
        self._describe = describe
        self._intern = intern
        self._latest = latest
        self._names = names
        self._visibility = visibility
        self._catalog_lag = catalog_lag
        self._pause = look_again
        #: The transaction that announced a table, while the catalog may not show it.
        self._writers: dict[int, int] = {}
        self._look_again: dict[int, float] = {}
        self._bodies: dict[int, bytes] = {}
        self._schemas: dict[int, TableSchema] = {}
        self._stale: set[int] = set()
        #: Tables whose last message cannot be read, and why.
        self._unreadable: dict[int, ChangefeedError] = {}
        #: What the catalog showed of a table when that was its last known shape.
        self._agreed: dict[int, str] = {}

    @property
    def messages(self) -> TableName:
        """What logical messages are rows of."""
        return messages_table(self._source)

    def named(self, oid: int, schema: str, name: str) -> list[TableName]:
        """By which names readers of the log may know a table that has this name now: more than
        this one if no row has come under it, or none was read."""
        last = self._schemas.get(oid)
        known = self._names(oid) if last is None else [last.table]
        return sorted({TableName(self._source, schema, name), *known})

    def changes(self, body: bytes) -> bool:
        """Whether this message changes a table that rows may wait to be decoded with."""
        known = self._bodies.get(int.from_bytes(body[:4]))
        return known is not None and known != body

    def put(self, body: bytes, xid: int = 0) -> None:
        """Take a Relation message of transaction ``xid``. The same one again means that something
        else about the table may have changed (its key, a NOT NULL): the catalog is asked again."""
        oid = int.from_bytes(body[:4])
        self._bodies[oid] = body
        self._stale.add(oid)
        self._look_again.pop(oid, None)
        if xid:
            self._writers[oid] = xid

    def resolve(self, oids: Iterable[int]) -> dict[int, ShapeChange]:
        """Make :meth:`schema` work for these tables; what changed, by oid.

        Raises:
            ChangefeedError: CF2105 a row came for a table that was never announced.
        """
        now = self._clock.monotonic()
        asked = set(oids)
        if LOGICAL_OID in asked and LOGICAL_OID not in self._schemas:
            self._schemas[LOGICAL_OID] = self._intern(messages_schema(self._source))
        wanted = [
            oid
            for oid in asked
            if oid not in self._schemas
            or (oid in self._stale and now >= self._look_again.get(oid, 0.0))
        ]
        if not wanted:
            return {}
        unknown = [oid for oid in wanted if oid not in self._bodies]
        if unknown:
            raise ChangefeedError(
                Code.UNEXPECTED_MESSAGE, f"a row came for the unannounced table {unknown[0]}"
            )
        messages = self._read(wanted)
        unseen = self._await_writers(wanted)
        details = self._caught_up(messages)
        changes = {}
        for oid, message in messages.items():
            change = self._take(message, details.get(oid))
            if change is not None:
                changes[oid] = change
        for oid in messages:
            if oid in unseen:
                # A key may have changed in it, which the message does not show.
                self._look_again[oid] = self._clock.monotonic() + self._pause
            else:
                self._stale.discard(oid)
                self._writers.pop(oid, None)
                self._look_again.pop(oid, None)
        return changes

    def _read(self, oids: Iterable[int]) -> dict[int, RelationMessage]:
        """The messages that describe these tables. Of one that cannot be read the table keeps the
        shape that it had, and its rows are no rows of that."""
        messages = {}
        for oid in oids:
            try:
                messages[oid] = read_relation(self._bodies[oid])
                self._unreadable.pop(oid, None)
            except ChangefeedError as error:
                name = TableName(self._source, *read_relation_name(self._bodies[oid]))
                if (last := self._last(oid, name)) is None:
                    raise
                self._schemas[oid], self._unreadable[oid] = last, error
        return messages

    def demand_readable(self, oid: int) -> None:
        """Check that rows of a table are as its last message says.

        Raises:
            ChangefeedError: CF2105 that message cannot be read.
        """
        if (error := self._unreadable.get(oid)) is not None:
            raise error

    def _await_writers(self, oids: Iterable[int]) -> set[int]:
        """Wait until the catalog shows what the tables' messages announced; where it does not."""
        writers = {oid: self._writers[oid] for oid in oids if oid in self._writers}
        if self._visibility is None or not writers:
            return set()
        unseen = self._visibility.wait(set(writers.values()))
        return {oid for oid, xid in writers.items() if xid in unseen}

    def _caught_up(self, messages: Mapping[int, RelationMessage]) -> Mapping[int, TableDetails]:
        """What the catalog knows, asked again while it does not know a column that was announced.

        A column that is still unknown after that was renamed or dropped since.
        """
        deadline = self._clock.monotonic() + self._catalog_lag
        while True:
            details = self._describe(list(messages))
            behind = any(self._lacks(m, details.get(oid)) for oid, m in messages.items())
            if not behind or self._clock.monotonic() > deadline:
                return details
            self._clock.sleep(_ASK_AGAIN)

    def _lacks(self, message: RelationMessage, found: TableDetails | None) -> bool:
        """A column of the message is neither in the catalog nor in the shape known before."""
        if found is None:
            return False
        old = self._known(message)
        names = {column.name for column in found.columns}
        names |= {column.name for column in old.columns} if old else set()
        return any(column.name not in names for column in message.columns)

    def schema(self, oid: int) -> TableSchema:
        """The present shape of a table that :meth:`resolve` was called for."""
        return self._schemas[oid]

    def unannounced(self, found: Mapping[int, TableDetails]) -> dict[int, UnannouncedChange]:
        """The tables whose shape in the catalog is another than the last one known, by oid.

        One that has another name, or is another table, by now is not among them.
        """
        different, agreed = {}, {}
        for oid, details in found.items():
            made = self._logged(schema_of(details, self._source))
            if self._agreed.get(oid) != made.fingerprint():
                old = self._last(oid, made.table)
                if old is None or not old.version or old.table != made.table:
                    continue
                if old.table_id not in (0, oid):
                    continue
                if old.fingerprint() != made.fingerprint():
                    different[oid] = UnannouncedChange(old, made, details)
                    continue
            agreed[oid] = made.fingerprint()
        self._agreed = agreed
        return different

    def adopt(self, oid: int, change: UnannouncedChange) -> ShapeChange | None:
        """Take the shape for the table's, unless a message announced one meanwhile."""
        known = self._last(oid, change.made.table)
        if known is None or known.fingerprint() != change.old.fingerprint():
            return None
        new = self._intern(change.made)
        self._schemas[oid] = new
        if oid in self._bodies:
            # The next row is announced again. One that is not has the shape of the last message.
            self._stale.add(oid)
        return ShapeChange(known, new, was_rewritten(known, new, change.details))

    def unchanged(self, details: TableDetails) -> list[ShapeChange]:
        """For each shape in which readers of the log know the table one that keeps it; none if
        nobody knows the table."""
        last = self._schemas.get(details.oid)
        shapes = [last] if last is not None else self._remembered(details)
        return [ShapeChange(shape, shape, rewritten=False) for shape in shapes if shape.version]

    def _remembered(self, details: TableDetails) -> list[TableSchema]:
        now = TableName(self._source, details.schema, details.name)
        if self._latest is None:
            return []
        found = [self._latest(name) for name in sorted({now, *self._names(details.oid)})]
        return [s for s in found if s is not None and s.table_id in (0, details.oid)]

    def emptied(self, oid: int, xid: int) -> None:
        """The stream has the TRUNCATE of a table."""
        self._storage.emptied(oid, xid)

    @property
    def parted(self) -> Collection[int]:
        """Tables with partitions, of whose new rows :meth:`filled` wants to know."""
        return self._storage.parted

    def filled(self, writers: Mapping[int, Iterable[int]]) -> None:
        """The stream has new rows of tables: by oid, of these transactions."""
        self._storage.filled(writers)

    def _last(self, oid: int, name: TableName) -> TableSchema | None:
        old = self._schemas.get(oid)
        if old is None and self._latest is not None:
            old = self._latest(name)
        return old

    def _known(self, message: RelationMessage) -> TableSchema | None:
        return self._last(message.oid, TableName(self._source, message.schema, message.name))

    def _take(self, message: RelationMessage, found: TableDetails | None) -> ShapeChange | None:
        details = found or _no_details(message)
        now = TableName(self._source, message.schema, message.name)
        last = self._schemas.get(message.oid)
        known = [] if last is None else [last]
        if last is None or last.table != now:
            # Renamed, maybe while nobody read.
            known += self._under_other_names(message, details, {now, *(k.table for k in known)})
        if known and known[0].table != now:
            made = self._logged(build_schema(self._source, message, details, known[0]))
            new = self._intern(made)
            self._schemas[message.oid] = new
            return self._change(known[0], new, details, tuple(known[1:]))
        old = self._known(message)
        made = self._logged(build_schema(self._source, message, details, old))
        if old is not None and old.version and old.fingerprint() == made.fingerprint():
            self._schemas[message.oid] = old
            return None
        new = self._intern(made)
        self._schemas[message.oid] = new
        if old is None or old.fingerprint() == new.fingerprint():
            return None
        return self._change(old, new, details)

    def _change(
        self,
        old: TableSchema,
        new: TableSchema,
        details: TableDetails,
        others: tuple[TableSchema, ...] = (),
    ) -> ShapeChange:
        rewritten = was_rewritten(old, new, details)
        moved = rewritten and self._storage.reread(details)
        why = "ALTER TABLE changed stored keys" if moved else ""
        return ShapeChange(old, new, rewritten, others, moved, why)

    def _under_other_names(
        self, message: RelationMessage, details: TableDetails, told: Collection[TableName]
    ) -> list[TableSchema]:
        """The last shapes of a table under the names that others may know it by."""
        found = []
        for name in self._names(message.oid):
            if name in told:
                continue
            shape = None if self._latest is None else self._latest(name)
            if shape is None or shape.table_id != message.oid:
                # No row of it was ever read under that name.
                made = build_schema(self._source, message, details)
                shape = self._intern(replace(made, table=name))
            found.append(shape)
        return found


def _no_details(message: RelationMessage) -> TableDetails:
    """The table was dropped meanwhile: only the message knows it."""
    return TableDetails(
        message.oid, message.schema, message.name, (), (), identity_of(message.identity)
    )


def build_schema(
    source: str,
    message: RelationMessage,
    details: TableDetails,
    old: TableSchema | None = None,
) -> TableSchema:
    """The shape that a Relation message announces."""
    identity = identity_of(message.identity)
    named = {column.name: column for column in details.columns}
    remembered = {column.name: column for column in old.columns} if old else {}
    columns = [
        _column(wire, named.get(wire.name), remembered.get(wire.name), details)
        for wire in message.columns
    ]
    flagged = (
        [] if identity is ReplicaIdentity.FULL else [c.name for c in message.columns if c.flagged]
    )
    key: Sequence[str] = key_names(details, identity, flagged)
    if not details.columns and old is not None and not old.keyless and not flagged:
        key = [column.name for column in old.key_columns]
    here = replace(details, schema=message.schema, name=message.name, oid=message.oid)
    return assemble_schema(here, source, columns, identity, key)


def _column(
    wire: WireColumn, found: ColumnInfo | None, remembered: Column | None, details: TableDetails
) -> ColumnInfo:
    if found and (found.type_oid, found.typmod) == (wire.type_oid, wire.typmod):
        return found
    type_name = spelled(wire.type_oid, wire.typmod, details.types)
    made = ColumnInfo(wire.name, 0, wire.type_oid, wire.typmod, type_name)
    if found:
        return replace(made, number=found.number, not_null=found.not_null)
    if remembered and remembered.type_name == type_name:
        return replace(made, number=remembered.column_id, not_null=not remembered.nullable)
    return made


# ----------------------------------------------------------------------------- rewritten

_LENGTH = re.compile(r"\((\d+)\)\Z")


def was_rewritten(old: TableSchema, new: TableSchema, details: TableDetails) -> bool:
    """Whether rows that were there before may read differently now, unsent.

    True for a column added with a default and for a type that prints values otherwise; a
    wider type of the same spelling (``int`` to ``bigint``, a longer ``varchar``) is not.
    """
    before = {column.ref: column for column in old.columns}
    defaults = {column.name for column in details.columns if column.has_default}
    for column in new.columns:
        known = before.get(column.ref)
        if known is None:
            if column.name in defaults:
                return True
        elif not _reads_the_same(known, column):
            return True
    return False


def _reads_the_same(old: Column, new: Column) -> bool:
    if old.type_name == new.type_name:
        return True
    if "oid" in (old.type_name, new.type_name):
        return False  # has no negative numbers: -1 reads 4294967295
    if old.kind in INTEGERS and new.kind in INTEGERS:
        return old.kind <= new.kind  # int16 < int32 < int64
    if old.logical.precision and new.logical.precision:
        same = old.logical.scale == new.logical.scale
        return same and old.logical.precision <= new.logical.precision
    return old.kind is new.kind is Kind.TEXT and _varying(old) <= _varying(new)


def _varying(column: Column) -> float:
    """How long a text may be; character(n) is padded and equals no other."""
    if column.type_name.startswith("character varying"):
        length = _LENGTH.search(column.type_name)
        return int(length[1]) if length else float("inf")
    return float("inf") if column.type_name == "text" else float("nan")
