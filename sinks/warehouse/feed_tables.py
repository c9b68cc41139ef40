"""The tables of one feed at one database: whose they are, how far, and which columns they have.

Nothing here moves rows. What is known of a table holds until an error of the database: then
everything is looked at again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property

from changefeed.core.errors import Action, ChangefeedError, Code
from changefeed.core.schema import TableSchema
from changefeed.core.types import Kind
from sinks.base import SinkContext, Target
from sinks.merged.applied import NOTHING_APPLIED, AppliedVersion
from sinks.merged.policy import TablePolicy
from sinks.ownership import no_bookkeeping
from sinks.warehouse.dialect import SqlStatement, Warehouse
from sinks.warehouse.owning import NUMBERED_COLUMNS, TargetContent, Targets
from sinks.warehouse.staging import TargetShape
from sinks.warehouse.strategy import Strategy
from sinks.warehouse.tables import TargetTable


@dataclass
class KnownTable:
    """What is known of a table since the last error.

    Attributes:
        table: its names.
        applied: up to where the target has every change.
        scanned: the version of the last whole scan.
        ready: the shapes that it has every column of.
        staging: names of the staging tables, by shape.
    """

    table: TargetTable
    applied: AppliedVersion
    scanned: int
    ready: set[str] = field(default_factory=set)
    staging: dict[str, str] = field(default_factory=dict)


class FeedTables(ABC):
    """Finds, takes and prepares targets. A kind of database says how its bookkeeping is written,
    and may look at a target before it is used."""

    def __init__(self, warehouse: Warehouse, strategy: Strategy, policy: TablePolicy) -> None:
        self.warehouse = warehouse
        self.strategy = strategy
        self._policy = policy
        self._context: SinkContext | None = None
        self._known: dict[str, KnownTable] = {}
        self._prepared = False

    # ------------------------------------------------------------- what a database fills in

    @abstractmethod
    def take(
        self, table: TargetTable, target: Target, schema: TableSchema, content: TargetContent
    ) -> None:
        """The target gets the feed's mark; what it may not keep goes."""

    @abstractmethod
    def make(self, known: KnownTable, shape: TargetShape) -> None:
        """Make a target that is not there; nothing is applied to it."""

    def make_bookkeeping(self) -> None:
        """Make the table of the marks."""
        self.define(self.strategy.bookkeeping(self.warehouse), "")

    def check_target(self, context: SinkContext, target: Target) -> None:
        """What stands in the way of one table, before the feed is made.

        Raises:
            ChangefeedError: that.
        """
        if target.schema is None:
            return
        table = self.names(target, context)
        self.strategy.check(table, target.schema)
        self.targets.look(table, target, target.schema, context)
        self.refuse_folding(table, target.schema)

    def inspect(self, table: TargetTable, shape: TargetShape) -> None:
        """What has to be seen before a target is made or filled.

        Raises:
            ChangefeedError: CF5006 or CF5008, it cannot be kept.
        """
        return None

    def present(self, topic: str) -> dict[str, str]:
        """The columns of a target and their types; empty if it is not there."""
        return self.warehouse.columns(self._fitted(topic))

    def _fitted(self, topic: str) -> str:
        return self.warehouse.dialect.fit(self.strategy.place(topic))

    def refuse_folding(self, table: TargetTable, schema: TableSchema) -> None:
        """In a target, if it is there, different keys are different.

        Raises:
            ChangefeedError: CF5006, a text of the key may be equal to another one.
        """
        declared = table.declared_key(schema)
        # No two texts of a UUID are alike.
        texts = [c.name for c in schema.key_columns if declared and c.kind is not Kind.UUID]
        if not texts:
            return
        key = {name.casefold(): name for name in texts}
        for name, why in self.warehouse.folding(self._fitted(table.topic)).items():
            if column := key.get(name.casefold()):
                raise table.refused(
                    schema,
                    f"column {column} of the target has {why}, by which different texts may be "
                    "equal: two keys would become one row",
                    hint=f"give the column {table.d.key_text} and a collation that compares bytes, "
                    "or name another target by AS.",
                )

    def complete(self, known: KnownTable, shape: TargetShape, present: Mapping[str, str]) -> None:
        """A target that was there gets the columns it lacks; it must have the key's.

        Raises:
            ChangefeedError: CF5006, it has not.
        """
        table = known.table
        wanted = self.strategy.columns(table, shape.schema)
        lacking = [name for name in wanted if name not in present]
        keys = [] if shape.keyless else [name for name in lacking if name in shape.key]
        if keys:
            raise ChangefeedError(
                Code.SINK_CANNOT_TAKE_TABLE,
                f"{shape.schema.table}: the target table {shape.topic} has no column {keys[0]}, "
                "which is part of the key",
                hint="drop or rename the target table, or give the feed another schema.",
            )
        add = [table.d.add_column(table.name, name, wanted[name]) for name in lacking]
        if add:
            self.define(add, shape.topic)

    # ------------------------------------------------------------- connection

    @cached_property
    def targets(self) -> Targets:
        """Whose the tables are."""
        return Targets(self.warehouse, self.strategy, self._policy.existing)

    def open(self, context: SinkContext) -> None:
        """The feed whose tables these are."""
        self._context = context
        self.forget()
        self.connect()

    @property
    def context(self) -> SinkContext:
        """The feed that was opened."""
        if self._context is None:
            raise RuntimeError("the sink is not open")
        return self._context

    def connect(self) -> None:
        """Connect, and make the bookkeeping, unless that is done."""
        try:
            self.warehouse.connect()
            if not self._prepared:
                if not self.look_at_bookkeeping():
                    self.make_bookkeeping()
                self.targets.booked = self._prepared = True
        except ChangefeedError:
            self.forget()
            raise

    def look_at_bookkeeping(self) -> dict[str, str]:
        """Its columns; none where there is none yet.

        Raises:
            ChangefeedError: CF5003, something else has its name.
        """
        name = self.strategy.bookkeeping_names[0]
        present = self.warehouse.columns(name)
        lacking = {"id", "table_name", "version"} - {column.casefold() for column in present}
        if present and lacking:
            raise no_bookkeeping(self.targets.words(name), "schema or database")
        return present

    def check(self, context: SinkContext) -> list[ChangefeedError]:
        """Reach, login, and whose the targets are. Nothing is made: where the warehouse cannot be
        asked for the right to make tables, a lack of it shows with the feed."""
        try:
            self.warehouse.connect(make=False)
            if not self.warehouse.there():
                return []
            self.warehouse.check_rights()
            self.targets.booked = bool(self.look_at_bookkeeping())
        except ChangefeedError as error:
            return [error]
        found = []
        for target in context.targets:
            try:
                self.check_target(context, target)
            except ChangefeedError as error:
                found.append(error)
                if error.action is Action.RETRY:
                    break
        return found

    # ------------------------------------------------------------- tables

    def names(self, target: Target, context: SinkContext | None = None) -> TargetTable:
        """The names of a target and of what belongs to it."""
        opened = context or self.context
        job = f"{opened.state}/{opened.job_id}"
        applied = self.strategy.applied(self.warehouse, job, str(target.table))
        return self.strategy.table(self.warehouse, target.topic, self._policy, applied)

    def find(self, target: Target, schema: TableSchema) -> KnownTable:
        """The table and how far it is. A target that is not this feed's yet is marked.

        Raises:
            ChangefeedError: CF5008, it belongs to another feed or program.
        """
        known = self._known.get(target.topic)
        if known is not None and known.table.source == str(target.table):
            return known
        table = self.names(target)
        self.strategy.check(table, schema)
        with self.errors():
            content = self.targets.look(table, target, schema, self.context)
        if content.progress is None:
            self.take(table, target, schema, content)
        version, seq, scanned = content.progress or (0, 0, 0)
        applied = AppliedVersion(version, seq)
        known = self._known[target.topic] = KnownTable(table, applied, scanned)
        return known

    def known(self, topic: str) -> KnownTable | None:
        """What is known of a target, without asking."""
        return self._known.get(topic)

    def forget_table(self, topic: str) -> None:
        """Look at this target again."""
        self._known.pop(topic, None)

    def forget(self) -> None:
        """Look at everything again: after an error nothing is sure."""
        self._known.clear()
        self._prepared = False

    def prepare(self, known: KnownTable, shape: TargetShape, *, scan: bool) -> None:
        """The target, and what stands beside it, exist and have every column of the shape."""
        mark = shape.schema.fingerprint()
        if mark in known.ready:
            return
        table, warehouse, strategy = known.table, self.warehouse, self.strategy
        strategy.check(table, shape.schema)
        self.inspect(table, shape)
        if table.has_side(shape.schema):
            self.beside(table, shape, strategy.side(shape.topic), NUMBERED_COLUMNS)
        present = self.present(shape.topic)
        if present:
            self.complete(known, shape, present)
        else:
            if not scan and (known.applied.version or known.scanned):
                raise ChangefeedError(
                    Code.SINK_CANNOT_TAKE_TABLE,
                    f"{shape.schema.table}: its target table {shape.topic} is gone",
                    detail=f"{warehouse.place}",
                    hint="ALTER CHANGEFEED .. DROP the table and ADD it again, so that it is "
                    "scanned again.",
                    target=shape.topic,
                )
            self.make(known, shape)
            known.applied, known.scanned = NOTHING_APPLIED, 0
        # A new table, too: it has the default collation of its dataset, account or database.
        self.refuse_folding(table, shape.schema)
        beside = strategy.settle(table, shape.schema)
        if beside:
            self.define(beside, shape.topic)
        known.ready.add(mark)

    def beside(
        self, table: TargetTable, shape: TargetShape, name: str, known: Sequence[str]
    ) -> dict[str, str]:
        """The columns of a table beside the target; none where it is not there.

        Raises:
            ChangefeedError: CF5008, it is not this sink's.
        """
        with self.errors():
            return self.targets.beside(table, name, known, str(shape.schema.table))

    # ------------------------------------------------------------- statements

    def define(self, statements: Sequence[str], topic: str) -> None:
        """Run definitions: together where they are transactional."""
        made = [SqlStatement(sql, topic) for sql in statements]
        if self.warehouse.dialect.transactional_ddl:
            self.run(made)
        else:
            for one in made:
                self.run([one])

    def run(self, statements: Sequence[SqlStatement]) -> None:
        """Run statements, in one transaction where the database has such."""
        with self.errors():
            self.warehouse.run(statements)

    def query(self, sql: str) -> list[tuple[object, ...]]:
        """Rows of a query."""
        with self.errors():
            return self.warehouse.query(sql)

    @contextmanager
    def errors(self) -> Iterator[None]:
        """After an error that is tried again, everything is looked at again."""
        try:
            yield
        except ChangefeedError as error:
            if error.action is Action.RETRY:
                self.forget()
            raise
