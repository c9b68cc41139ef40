"""Changes of a table's shape as changes of the target, and which of them it can follow.

Columns are matched by the source's stable number, so a rename is one and not a drop and an add.

=================== ====================================================================
at the source       at the target
=================== ====================================================================
ADD COLUMN          the same; older rows have no value until a backfill brings them
RENAME COLUMN       the same
wider type          the same (:data:`WIDER`)
integer to text     the same where the target's ALTER can
DROP NOT NULL       nothing: only key columns are NOT NULL in a target
DROP COLUMN         the column stays as it is; new rows have no value in it
anything else       CF5006: the table stops, with the reason
=================== ====================================================================

A column that was dropped and stands in the way of a new one is moved aside: it is called
``_dropped_<n>_<name>`` from then on, with the number of the column that it made room for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import count

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.events import SchemaChange
from changefeed.core.schema import Column, TableSchema
from changefeed.core.types import INTEGERS, Kind, LogicalType
from sinks.warehouse.dialect import Dialect
from sinks.warehouse.tables import TargetTable

_DROPPED = "_dropped_"

#: Kinds that hold all values of a kind, a decimal without declared digits.
WIDER: Mapping[Kind, frozenset[Kind]] = {
    Kind.INT16: frozenset({Kind.INT32, Kind.INT64, Kind.DECIMAL}),
    Kind.INT32: frozenset({Kind.INT64, Kind.FLOAT64, Kind.DECIMAL}),
    Kind.INT64: frozenset({Kind.DECIMAL}),
    Kind.FLOAT32: frozenset({Kind.FLOAT64}),
    Kind.DATE: frozenset({Kind.TIMESTAMP}),
}


@dataclass(frozen=True, slots=True)
class EvolutionStep:
    """One step at the target. ``old`` is the name that a renamed column had."""

    kind: str
    column: str
    sql: str
    old: str = ""


def changes(
    table: TargetTable, event: SchemaChange, present: Mapping[str, str]
) -> list[EvolutionStep]:
    """What the target needs to have the new shape; ``present`` are its columns now.

    Raises:
        ChangefeedError: CF5006, the target cannot follow.
    """
    old, new, d = event.old, event.new, table.d
    _same_key(table, event)
    table.check(new)
    live = set(present)
    found: list[EvolutionStep] = []
    renames, adds, types = [], [], []
    for i, column in enumerate(new.columns):
        was = event.was(column)
        if was is None:
            adds.append(column)
            continue
        if was.name != column.name and was.name in live:
            renames.append((was, column))
        types.append((was, column, not new.keyless and i in new.key))
    kept = live - {c.name for c in old.columns} - set(table.extra())
    wanted = [c for _, c in renames] + adds
    dropped = {column.name for column in event.dropped}
    found += _aside(table, kept | dropped, wanted, live)
    found += _rename(table, renames, live)
    for column in adds:
        if column.name not in live:
            sql = d.add_column(table.name, column.name, d.rule(column).sql)
            found.append(EvolutionStep("add", column.name, sql))
    for was, column, key in types:
        found += _retype(table, was, column, key)
    return found


def _same_key(table: TargetTable, event: SchemaChange) -> None:
    old, new = event.old, event.new
    if old.keyless != new.keyless:
        what = "the table lost its key" if new.keyless else "the table got a key"
        raise refused(table, new, what)
    if old.keyless:
        return
    if not event.same_key:
        raise refused(table, new, "the key of the table changed")


def aside_name(table: TargetTable, column: Column) -> str:
    """What a column is called that made room for this one."""
    return table.d.fit(f"{_DROPPED}{column.column_id}_{column.name}")


def _aside(
    table: TargetTable, kept: set[str], wanted: list[Column], live: set[str]
) -> list[EvolutionStep]:
    """Columns that stayed after a drop make room for new ones of their name.

    The name they get holds the number of the new column: when a broken run is repeated, it
    shows that this was done.
    """
    d, found = table.d, []
    for column in wanted:
        aside = aside_name(table, column)
        if not column.column_id:  # it may be the second one of this name that is dropped
            aside = next(
                name
                for number in count()
                if (name := d.fit(f"{_DROPPED}{number}_{column.name}")) not in live
            )
        if column.name in kept and column.name in live and aside not in live:
            sql = d.rename_column(table.name, column.name, aside)
            found.append(EvolutionStep("aside", aside, sql, column.name))
            live.discard(column.name)
            live.add(aside)
    return found


def _rename(
    table: TargetTable, renames: list[tuple[Column, Column]], live: set[str]
) -> list[EvolutionStep]:
    """Renames in an order in which no two columns have one name at a time; a swap goes by a
    third name. A name blocks while another rename still holds it, and not when a broken run left
    it: that would never become free."""
    d, found, left = table.d, [], list(renames)
    while left:
        held = {was.name for was, _ in left}
        free = next((pair for pair in left if pair[1].name not in held), None)
        if free is None:
            was, column = left[0]
            middle = d.fit(f"_renamed_{was.name}")
            sql = d.rename_column(table.name, was.name, middle)
            found.append(EvolutionStep("rename", middle, sql, was.name))
            live.discard(was.name)
            live.add(middle)
            left[0] = (replace(was, name=middle), column)
            continue
        was, column = free
        left.remove(free)
        sql = d.rename_column(table.name, was.name, column.name)
        found.append(EvolutionStep("rename", column.name, sql, was.name))
        live.discard(was.name)
        live.add(column.name)
    return found


def _retype(table: TargetTable, was: Column, column: Column, key: bool) -> list[EvolutionStep]:
    d = table.d
    old, new = d.rule(was, key=key).sql, d.rule(column, key=key).sql
    if old == new:
        return []
    if not widens(was.logical, column.logical) and (key or not _as_text(d, was, column)):
        why = f"column {column.name} changed from {was.type_name} to {column.type_name}"
        raise refused(table, None, f"{why}, which is not wider")
    sql = d.widen_column(table.name, column.name, new)
    return [EvolutionStep("widen", column.name, sql)]


def _as_text(d: Dialect, was: Column, column: Column) -> bool:
    """A number without a point becomes a text, and the target writes it as the source does."""
    return d.widens_to_text and was.kind in INTEGERS and column.kind is Kind.TEXT


def widens(old: LogicalType, new: LogicalType) -> bool:
    """Every value of the one logical type is one of the other."""
    if new.kind in WIDER.get(old.kind, ()):
        return not new.precision
    if not old.precision or new.kind is not Kind.DECIMAL:
        return False
    whole = old.precision - old.scale <= new.precision - new.scale
    return not new.precision or (whole and old.scale <= new.scale)


def refused(table: TargetTable, schema: TableSchema | None, why: str) -> ChangefeedError:
    """The target cannot follow."""
    name = f"{schema.table}: " if schema else ""
    return ChangefeedError(
        Code.SINK_CANNOT_TAKE_TABLE,
        f"{name}the target cannot follow a schema change of the table: {why}",
        detail=f"target {table.topic}",
        hint=f"ALTER CHANGEFEED .. DROP the table, drop {table.topic} at the target, then ALTER "
        "CHANGEFEED .. ADD the table: a RESCAN alone does not change columns.",
    )
