"""Which statements keep a target: the one way of transactional targets, to be overridden.

The sink (:mod:`.sink`) decides when something happens, the dialect how an expression is spelled,
and this in between what is done. A target without transactions brings a subclass
(:mod:`.clickhouse.keeping`). Nothing here talks to a server.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar

from changefeed.core.clock import Timestamp
from changefeed.core.events import SchemaChange
from changefeed.core.schema import TableSchema
from sinks.merged.policy import DELETED, MergeMode, Removal, TablePolicy
from sinks.warehouse import applied as bookkeeping
from sinks.warehouse import evolution, history, keyless
from sinks.warehouse.applied import AppliedRow
from sinks.warehouse.dialect import Dialect, Warehouse
from sinks.warehouse.merge import merge
from sinks.warehouse.staging import BATCH, SEQUENCE, TargetShape
from sinks.warehouse.tables import (
    StagedRows,
    TargetTable,
    scan_name,
    side_name,
    staging_name,
)


class Strategy:
    """Merge what is staged into the target, all of a round in one transaction."""

    #: Rows that are not the feed's can stay in its target.
    merges: ClassVar[bool] = True

    # ------------------------------------------------------------------ names and bookkeeping

    def table(
        self, warehouse: Warehouse, topic: str, policy: TablePolicy, applied: AppliedRow
    ) -> TargetTable:
        """A target table and what belongs to it."""
        return TargetTable.of(warehouse, topic, policy, applied)

    def place(self, topic: str) -> str:
        """The table that holds the rows of a topic, unquoted: its columns are looked at."""
        return topic

    def side(self, topic: str) -> str:
        """The table of a target's sequence numbers, unquoted."""
        return side_name(topic)

    def number(self, table: TargetTable, schema: TableSchema) -> str:
        """The column by which a target of this sink is known; empty where it has none."""
        return table.policy.sequence if schema.keyless else table.sequence

    def beside(self, topic: str) -> tuple[str, ...]:
        """The tables that may stand beside the target of a topic, unquoted."""
        return staging_name(topic), self.side(topic), scan_name(topic)

    def bases(self, topic: str) -> tuple[str, ...]:
        """Topics beside whose target a table of this name would stand."""
        return tuple(
            topic[len(prefix) :]
            for prefix in (name.removesuffix("x") for name in self.beside("x"))
            if topic.startswith(prefix) and topic != prefix
        )

    @property
    def bookkeeping_names(self) -> tuple[str, ...]:
        """The tables of the bookkeeping, unquoted."""
        return (bookkeeping.TABLE,)

    def empty(self, table: TargetTable) -> list[str]:
        """All rows of a target go."""
        return [f"DELETE FROM {table.name} WHERE 1 = 1"]

    def readable(self, table: TargetTable) -> str:
        """The finished name of what shows the target's rows to its readers."""
        return table.name

    def applied(self, warehouse: Warehouse, job: str, name: str) -> AppliedRow:
        """The bookkeeping of one table."""
        return AppliedRow(warehouse.dialect, warehouse.name(bookkeeping.TABLE), job, name)

    def bookkeeping(self, warehouse: Warehouse) -> list[str]:
        """Definitions of the bookkeeping."""
        d = warehouse.dialect
        table = warehouse.name(bookkeeping.TABLE)
        return [d.create_table(table, bookkeeping.columns(d), ("id",))]

    def resolved(self, warehouse: Warehouse, ids: Iterable[str], at: str) -> str:
        """These tables of a feed are complete up to this timestamp."""
        return bookkeeping.resolved(warehouse.dialect, warehouse.name(bookkeeping.TABLE), ids, at)

    # ------------------------------------------------------------------ definitions

    def check(self, table: TargetTable, schema: TableSchema) -> None:
        """The table can be kept as the options say.

        Raises:
            ChangefeedError: CF5006, with the reason.
        """
        table.check(schema)

    def columns(self, table: TargetTable, schema: TableSchema) -> dict[str, str]:
        """Columns of the table that holds the rows, and their SQL types."""
        return table.columns(schema)

    def create(self, table: TargetTable, schema: TableSchema) -> list[str]:
        """Definitions of a target that is not there."""
        columns, key = self.columns(table, schema), table.declared_key(schema)
        made = [table.d.create_table(table.name, columns, key)]
        return [table.d.drop_table(table.side), *made] if table.has_side(schema) else made

    def settle(self, table: TargetTable, schema: TableSchema) -> list[str]:
        """Definitions of what stands beside a target that is there and has all its columns."""
        if not table.has_side(schema):
            return []
        key = tuple(c.name for c in schema.key_columns)
        return [table.d.create_table(table.side, table.side_columns(schema), key)]

    def evolve(
        self, table: TargetTable, event: SchemaChange, present: Mapping[str, str]
    ) -> list[str]:
        """Definitions that give the target the new shape; ``present`` are its columns now.

        Raises:
            ChangefeedError: CF5006, it cannot follow.
        """
        steps = [change.sql for change in evolution.changes(table, event, present)]
        if table.has_side(event.new):
            steps += _evolve_side(table, event)
        return steps

    def drop(self, table: TargetTable) -> list[str]:
        """Definitions that leave nothing of the target."""
        return [table.d.drop_table(table.name), table.d.drop_table(table.side)]

    # ------------------------------------------------------------------ rows

    def begin(self, table: TargetTable, node: str) -> list[str]:
        """First of a run that changes the table."""
        return [table.applied.lock(node)]

    def apply(self, table: TargetTable, staged: StagedRows) -> list[str]:
        """A staged batch becomes part of the target."""
        mode = table.policy.mode(staged.shape.schema)
        if mode is MergeMode.APPEND:
            return history.append(table, staged)
        if mode is MergeMode.VERSIONS:
            return history.versions(table, staged)
        if mode is MergeMode.MERGE:
            return merge(table, staged)
        return keyless.gather(table, staged) if staged.scan else keyless.count_merge(table, staged)

    def unstage(self, d: Dialect, staging: str, batch: int) -> str:
        """A batch leaves its staging table (a finished name)."""
        return f"DELETE FROM {staging} WHERE {d.quote(BATCH)} = {batch}"

    def truncate(
        self, table: TargetTable, shape: TargetShape, at: Timestamp, seq: int
    ) -> list[str]:
        """All rows of the table went at the source."""
        d, removal = table.d, table.policy.removal
        if removal is Removal.RECORD:
            statements = history.record_truncation(table, at, seq)
        elif removal is Removal.END:
            statements = history.end_all(table, at)
        elif removal is Removal.MARK:
            live = f"{ours(table, shape)} AND NOT {is_deleted(table)}"
            statements = [soft_delete_all(table, at.version, live)]
        else:
            statements = [f"DELETE FROM {table.name} WHERE {ours(table, shape)}"]
        if table.has_side(shape.schema):
            number = d.quote(SEQUENCE)
            statements.append(
                f"UPDATE {table.side} SET {number} = {at.version} WHERE 1 = 1"
                if table.policy.soft
                else f"DELETE FROM {table.side} WHERE 1 = 1"
            )
        return statements

    # ------------------------------------------------------------------ scans

    def gathers(self, table: TargetTable, shape: TargetShape) -> list[str]:
        """Definitions of where a scan gathers that cannot go to the target row by row."""
        if table.policy.mode(shape.schema) is not MergeMode.COUNT:
            return []
        columns = keyless.scan_columns(table.d, shape)
        return [table.d.drop_table(table.scan), table.d.create_table(table.scan, columns)]

    def forget_scans(self, table: TargetTable, after: int) -> list[str]:
        """Of a table that keeps all changes the rows of scans of later versions go."""
        return history.forget_scans(table, after)

    def end_scan(self, table: TargetTable, shape: TargetShape, at: Timestamp) -> list[str]:
        """The whole scan was applied: what it did not find goes."""
        if table.policy.removal is Removal.RECORD:
            return []
        if table.policy.removal is Removal.END:
            return history.end_older(table, at)
        if shape.keyless:
            return keyless.replace_rows(table, shape)
        return sweep(table, shape, at.version)


def ours(table: TargetTable, shape: TargetShape) -> str:
    """SQL: the row is the feed's; one that was there before has no sequence number."""
    d = table.d
    if not table.policy.shared:
        return "1 = 1"
    if not table.has_side(shape.schema):
        return f"{d.quote(table.sequence)} IS NOT NULL"
    same = d.same(shape.key, "beside", table.name)
    return f"EXISTS (SELECT 1 FROM {table.side} AS beside WHERE {same})"


def _evolve_side(table: TargetTable, event: SchemaChange) -> list[str]:
    """Key columns of the side table follow those of the target."""
    d, pairs = table.d, zip(event.old.key_columns, event.new.key_columns, strict=True)
    found = []
    for old, new in pairs:
        if old.name != new.name:
            found.append(d.rename_column(table.side, old.name, new.name))
        if d.rule(old, key=True).sql != d.rule(new, key=True).sql:
            found.append(d.widen_column(table.side, new.name, d.rule(new, key=True).sql))
    return found


def sweep(table: TargetTable, shape: TargetShape, version: int) -> list[str]:
    """Rows of an older version than a scan no longer exist at the source.

    A row without a number was not written by the feed: in a shared target it stays, in one of the
    feed's own it was put there by others, and it goes.
    """
    d, shared = table.d, table.policy.shared
    if not table.has_side(shape.schema):
        sequence = d.quote(table.sequence)
        old = f"{sequence} < {version}" if shared else f"coalesce({sequence}, 0) < {version}"
        if table.policy.soft:
            return [soft_delete_all(table, version, f"{old} AND NOT {is_deleted(table)}")]
        return [f"DELETE FROM {table.name} WHERE {old}"]
    number = d.quote(SEQUENCE)
    same = f"SELECT 1 FROM {table.side} AS beside WHERE {d.same(shape.key, 'beside', table.name)}"
    older = f"beside.{number} < {version}"
    match = f"EXISTS ({same} AND {older})" if shared else f"NOT EXISTS ({same} AND NOT {older})"
    statements = (
        [soft_delete_all(table, version, match)]
        if table.policy.soft
        else [f"DELETE FROM {table.name} WHERE {match}"]
    )
    if not table.policy.soft:
        statements.append(f"DELETE FROM {table.side} WHERE {number} < {version}")
    return statements


def is_deleted(table: TargetTable) -> str:
    """SQL: the row is marked as deleted."""
    return f"coalesce({table.d.quote(DELETED)}, {table.d.false})"


def soft_delete_all(table: TargetTable, version: int, where: str = "1 = 1") -> str:
    """Mark rows as deleted."""
    d = table.d
    sets = f"{d.quote(DELETED)} = {d.true}"
    if table.policy.sequence:
        sets += f", {d.quote(table.policy.sequence)} = {version}"
    return f"UPDATE {table.name} SET {sets} WHERE {where}"
