"""Whose the tables at a warehouse are: marks in the bookkeeping, and what stands without one.

The mark of a target is its row in the table of :mod:`.applied`. Tables beside a target (staging,
scan, sequence) have no row of their own: they are known by their columns, and by no row being
theirs. Nothing here changes anything.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from changefeed.core.errors import ChangefeedError
from changefeed.core.schema import TableSchema
from changefeed.options import ExistingTarget
from sinks import ownership
from sinks.base import SinkContext, Target
from sinks.ownership import Claim, Owner
from sinks.warehouse.dialect import Warehouse
from sinks.warehouse.staging import META, SEQUENCE
from sinks.warehouse.strategy import Strategy
from sinks.warehouse.tables import TargetTable


@dataclass(frozen=True, slots=True)
class TargetContent:
    """What a feed found at its target.

    Attributes:
        claim: what it may do with it.
        progress: ``version, seq, scanned`` of its own mark; None where it has to be made.
        stale: ids of marks that are to go when it is made.
    """

    claim: Claim
    progress: tuple[int, int, int] | None
    stale: tuple[str, ...] = ()


class Targets:
    """Looks at the tables of one feed at one warehouse."""

    def __init__(self, warehouse: Warehouse, strategy: Strategy, policy: ExistingTarget) -> None:
        self._warehouse = warehouse
        self._strategy = strategy
        self._existing = policy
        self._identity: str | None = None
        #: The bookkeeping is there.
        self.booked = False

    def look(
        self, table: TargetTable, target: Target, schema: TableSchema, context: SinkContext
    ) -> TargetContent:
        """What the feed may do with its target.

        Raises:
            ChangefeedError: CF5008, it belongs to another feed or program, or is the source table.
        """
        what = self.words(target.topic)
        self._refuse_source(target, context, what)
        own = Owner.of(context, target)
        rows = self._marks(table, target.topic)
        self._refuse_beside(own, rows, target.topic, context, what)
        mine = [row for row in rows if row[0] == table.applied.id]
        place = self._strategy.place(target.topic)
        present = self._warehouse.columns(self._warehouse.dialect.fit(place))
        at_target = [row for row in rows if self._same(str(row[2]), target.topic)]
        owners = {
            str(row[0]): own
            if row[0] == table.applied.id
            else Owner.parse(str(row[0]), str(row[1]))
            for row in at_target
        }
        found = ownership.claim(
            own,
            list(owners.values()),
            feeds=ownership.living(context),
            policy=self._existing,
            exists=bool(present),
            holds_rows=lambda: bool(self._warehouse.query(f"SELECT 1 FROM {table.name} LIMIT 1")),
            what=what,
            usable=self._kept_alike(table, schema, present),
        )
        if found is Claim.MERGE:
            self._can_merge(table, schema)
        stale = tuple(str(row[0]) for row in (*at_target, *mine))
        if mine and mine[0] in at_target and (found is Claim.OURS or not present):
            version, seq, scanned = (int(str(value or 0)) for value in mine[0][3:6])
            stale = tuple(each for each in stale if each != table.applied.id)
            return TargetContent(Claim.OURS, (version, seq, scanned), stale)
        return TargetContent(found, None, tuple(dict.fromkeys(stale)))

    def words(self, name: str) -> str:
        """A table of the warehouse, for messages."""
        prefix = f"{self._warehouse.schema}." if self._warehouse.schema else ""
        return f"table {prefix}{name} of {self._warehouse.place}"

    def beside(
        self, table: TargetTable, name: str, known: Collection[str], source: str
    ) -> dict[str, str]:
        """The columns of a table beside a target, which is made, emptied or dropped next; none
        where it is not there.

        Args:
            table: the target.
            name: of the table beside it, unquoted.
            known: columns that such a table has.
            source: the source table, for the message.

        Raises:
            ChangefeedError: CF5008, the table of that name is not this sink's.
        """
        fitted = self._warehouse.dialect.fit(name)
        present = self._warehouse.columns(fitted)
        if present and not self._like_ours(table, fitted, present, known):
            raise ownership.occupied(source, self.words(fitted), f"target {table.topic}")
        return present

    def is_ours(self, table: TargetTable, name: str, known: Collection[str]) -> bool:
        """A table beside a target is there, and was made by this sink."""
        fitted = self._warehouse.dialect.fit(name)
        present = self._warehouse.columns(fitted)
        return bool(present) and self._like_ours(table, fitted, present, known)

    def _like_ours(
        self, table: TargetTable, name: str, present: Collection[str], known: Collection[str]
    ) -> bool:
        names = {column.casefold() for column in present}
        marks = self._marks(table, name)
        return all(column.casefold() in names for column in known) and not any(
            self._same(str(row[2]), name) for row in marks
        )

    # ------------------------------------------------------------------ parts

    def _marks(self, table: TargetTable, topic: str) -> list[tuple[object, ...]]:
        if not self.booked:
            return []
        return self._warehouse.query(table.applied.marks([topic, *self._strategy.bases(topic)]))

    def _same(self, one: str, other: str) -> bool:
        d = self._warehouse.dialect
        return d.canonical(one) == d.canonical(other)

    def _refuse_source(self, target: Target, context: SinkContext, what: str) -> None:
        here = target.table.schema == self._warehouse.schema
        if not context.source or not here or not self._same(target.table.name, target.topic):
            return
        if self._identity is None:
            self._identity = self._warehouse.identity()
        if self._identity == context.source:
            raise ownership.is_source(str(target.table), what)

    def _refuse_beside(
        self,
        own: Owner,
        rows: Sequence[tuple[object, ...]],
        topic: str,
        context: SinkContext,
        what: str,
    ) -> None:
        """The name is that of a table which stands beside another target."""
        for row in rows:
            other = str(row[2])
            if self._same(other, topic):
                continue
            mark = Owner.parse(str(row[0]), str(row[1]))
            if any(self._same(name, topic) for name in self._strategy.beside(other)):
                raise ownership.taken(own, mark, what)

    def _kept_alike(
        self, table: TargetTable, schema: TableSchema, present: Collection[str]
    ) -> bool:
        """The target was kept in the way that this feed keeps it."""
        if not present:
            return True
        if table.has_side(schema):
            side = self._strategy.side(table.topic)
            return bool(self._warehouse.columns(self._warehouse.dialect.fit(side)))
        number = self._strategy.number(table, schema)
        return not number or number.casefold() in {name.casefold() for name in present}

    def _can_merge(self, table: TargetTable, schema: TableSchema) -> None:
        if not self._strategy.merges:
            raise ChangefeedError(
                ownership.NOT_OURS,
                f"{schema.table}: {self._warehouse.dialect.name} cannot keep rows that are not the "
                f"feed's in {self.words(self._strategy.place(table.topic))}",
                hint="existing_target = 'replace' deletes them first; FOR table AS name chooses "
                "another target.",
            )
        table.policy.require_shareable(schema, self.words(table.topic))


#: Columns by which a staging table is known, and a table of a scan or of sequence numbers.
STAGING_COLUMNS: tuple[str, ...] = tuple(META)
NUMBERED_COLUMNS: tuple[str, ...] = (SEQUENCE,)
