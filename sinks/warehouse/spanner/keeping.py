"""How Spanner keeps a table: rows by mutations, in transactions that know how far the table is.

Spanner has no MERGE and no load jobs, and a commit takes 80,000 mutations. So nothing is staged:
a transaction reads the row of ``changefeed_applied`` and the numbers that the target's rows have,
and writes what is newer and how far it is now. The row is what keeps a replay from undoing a
delete: changes at or below it are not looked at again.

A table without a key gets one: ``_row``, a digest of the row, and ``_copy``, which counts
equal rows from 0 without a gap. As many copies as a batch brought more than it took are added at
the end, or the last ones go. A scan writes its copies from 0 on, and what it did not reach goes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from changefeed.core.events import SchemaChange
from changefeed.core.schema import TableSchema
from sinks.merged.applied import AppliedVersion
from sinks.merged.history import OPERATION, ORDER
from sinks.merged.policy import DELETED, MergeMode, TablePolicy
from sinks.warehouse import applied as bookkeeping
from sinks.warehouse import evolution
from sinks.warehouse.applied import AppliedRow
from sinks.warehouse.dialect import Warehouse
from sinks.warehouse.spanner.rows import Key, RowWire, Value, digests
from sinks.warehouse.spanner.sql import SpannerDialect
from sinks.warehouse.staging import MISSING, SEQUENCE
from sinks.warehouse.strategy import Strategy
from sinks.warehouse.tables import TargetTable

if TYPE_CHECKING:
    from sinks.warehouse.spanner.client import SpannerTransaction

FACTS = "changefeed_applied"
"""The table that says how far each table is."""
_SIDE = "changefeed_sequence_"
ROW, COPY = "_row", "_copy"

#: Names that Spanner takes, of columns and, but for an underscore first, of tables:
#: https://cloud.google.com/spanner/docs/reference/standard-sql/data-definition-language#naming
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_ALLOWED = "a name consists of ASCII letters, digits and underscores"

_PROGRESS = ("version", "seq", "scanned")


def side_of(topic: str) -> str:
    """The table that keeps the numbers of a target without a column for them."""
    return SpannerDialect().fit(f"{_SIDE}{topic}")


# ------------------------------------------------------------------------------- definitions


class _AppliedRows(AppliedRow):
    """All rows: there is one a table, and who asks takes those that it means."""

    def marks(self, topics: Sequence[str]) -> str:
        names = ("id", "feed", "table_name", *_PROGRESS)
        return f"SELECT {', '.join(map(self.d.quote, names))} FROM {self.table}"


class SpannerStrategy(Strategy):
    """The definitions; what changes rows is below, and no SQL."""

    def table(
        self, warehouse: Warehouse, topic: str, policy: TablePolicy, applied: AppliedRow
    ) -> TargetTable:
        plain = super().table(warehouse, topic, policy, applied)
        return replace(plain, side=warehouse.name(side_of(topic)))

    merges = False

    def side(self, topic: str) -> str:
        return f"{_SIDE}{topic}"

    def beside(self, topic: str) -> tuple[str, ...]:
        return (self.side(topic),)

    @property
    def bookkeeping_names(self) -> tuple[str, ...]:
        return (FACTS,)

    def applied(self, warehouse: Warehouse, job: str, name: str) -> AppliedRow:
        return _AppliedRows(warehouse.dialect, warehouse.name(FACTS), job, name)

    def bookkeeping(self, warehouse: Warehouse) -> list[str]:
        d = warehouse.dialect
        return [d.create_table(warehouse.name(FACTS), bookkeeping.columns(d), ("id",))]

    def check(self, table: TargetTable, schema: TableSchema) -> None:
        super().check(table, schema)
        if not _NAME.fullmatch(table.topic):
            why = f"Spanner allows no table {table.topic}: {_ALLOWED}"
            raise table.refused(schema, why)
        ours = {name.casefold() for name in (*table.extra(), ROW, COPY)}
        for column in schema.columns:
            if column.name.casefold() in ours:
                why = f"the column name {column.name} is used by the sink itself"
                raise table.refused(schema, why)
            if not _NAME.fullmatch(column.name):
                why = f"Spanner allows no column {column.name}: {_ALLOWED}"
                raise table.refused(schema, why)
        if schema.keyless and not table.policy.sequence:
            why = "sequence_column = 'none' needs a table with a key in Spanner"
            raise table.refused(schema, why)

    def columns(self, table: TargetTable, schema: TableSchema) -> dict[str, str]:
        found = table.columns(schema)
        return {ROW: "STRING(32)", COPY: "INT64"} | found if schema.keyless else found

    def create(self, table: TargetTable, schema: TableSchema) -> list[str]:
        made = table.d.create_table(table.name, self.columns(table, schema), key_of(schema))
        if not table.has_side(schema):
            return [made]
        return [table.d.drop_table(table.side), create_side(table, schema), made]

    def settle(self, table: TargetTable, schema: TableSchema) -> list[str]:
        """Nothing: a definition takes seconds, so the sink looks before."""
        return []


def create_side(table: TargetTable, schema: TableSchema) -> str:
    """Definition of the table that keeps the numbers."""
    return table.d.create_table(table.side, table.side_columns(schema), key_of(schema))


def key_of(schema: TableSchema) -> tuple[str, ...]:
    """Columns of the target's primary key."""
    return (ROW, COPY) if schema.keyless else tuple(c.name for c in schema.key_columns)


def spelled(names: Iterable[str], present: Mapping[str, str]) -> dict[str, str]:
    """A target's columns by these names where they differ only in case, which to Spanner are one;
    of two wanted names that are one, the later counts."""
    ours = {name.casefold(): name for name in names}
    return {ours.get(name.casefold(), name): kind for name, kind in present.items()}


def to_follow(
    table: TargetTable, event: SchemaChange, present: Mapping[str, str]
) -> dict[str, str]:
    """A target's columns, in their order there, as a change of shape is to find them.

    A column moved aside (:func:`.evolution.aside_name`) that stands behind the one it has its
    values from is not done: an earlier attempt broke off before that one was dropped. When it was,
    the new column of its name stands behind.
    """
    names = [c.name for c in (*event.new.columns, *event.old.columns)]
    found = spelled((*table.extra(), *names), present)
    places = {name: place for place, name in enumerate(found)}
    for column in event.new.columns:
        aside = evolution.aside_name(table, column)
        if places.get(column.name, len(places)) < places.get(aside, -1):
            del found[aside]
    return found


def refuse_exchange(table: TargetTable, event: SchemaChange) -> None:
    """Names that go from one column to another in one change of shape. A column is renamed in
    steps here, and a repeated change could not know which columns already have their new name.

    Raises:
        ChangefeedError: CF5006.
    """
    old: dict[object, str] = {c.ref: c.name for c in event.old.columns}
    pairs = [(event.was(c), c.name) for c in event.new.columns]
    new: dict[object, str] = {(was.ref if was else (name,)): name for was, name in pairs}
    taken = {
        name.casefold(): name
        for number, name in new.items()
        if old.get(number, "").casefold() != name.casefold()
    }
    for number, name in old.items():
        found = taken.get(name.casefold())
        if found is None:
            continue
        if number in new:
            why = f"column {name} has another name, and another column has that name, at once"
            raise evolution.refused(table, event.new, why)
        if found != name:
            why = f"column {name} was dropped, and the new {found} differs from it only in case"
            raise evolution.refused(table, event.new, why)


def refuse_change(table: TargetTable, schema: TableSchema, change: evolution.EvolutionStep) -> None:
    """What Spanner cannot alter.

    Raises:
        ChangefeedError: CF5006.
    """
    if change.kind == "widen":
        why = f"Spanner cannot change the type of a column ({change.column})"
        raise evolution.refused(table, schema, why)
    keys = () if schema.keyless else tuple(c.name for c in schema.key_columns)
    if change.old in keys:
        why = f"Spanner cannot rename the column {change.old}, which is part of the key"
        raise evolution.refused(table, schema, why)


# ------------------------------------------------------------------------------- how far it is


def read_progress(transaction: SpannerTransaction, id: str) -> AppliedVersion | None:
    """How far a table is; None where that is new. Whoever else reads it to write waits."""
    for row in transaction.read(FACTS, _PROGRESS, [(id,)]):
        version, seq, _ = (int(str(value or 0)) for value in row)
        return AppliedVersion(version, seq)
    return None


def reset(transaction: SpannerTransaction, id: str) -> None:
    """The target is new and empty: nothing was applied to it."""
    transaction.update(FACTS, ("id", *_PROGRESS), [(id, "0", "0", "0")])


def advance(transaction: SpannerTransaction, id: str, node: str, applied: AppliedVersion) -> None:
    """Everything up to this change is applied."""
    values: tuple[Value, ...] = (id, str(applied.version), str(applied.seq or 0), node)
    transaction.update(FACTS, ("id", "version", "seq", "node"), [values])


# ------------------------------------------------------------------------------ one row per key


@dataclass(frozen=True)
class TransactionRows:
    """Rows of one table that go into a transaction.

    Attributes:
        table: their target.
        wire: how they travel.
        rows: as staged (:mod:`.staging`), in the order of the log.
        scan: they are of a scan.
    """

    table: TargetTable
    wire: RowWire
    rows: pa.Table
    scan: bool

    def unapplied(self, applied: AppliedVersion) -> TransactionRows:
        """Without those that were applied. Rows of a scan are, once changes above it were."""
        version = self.rows[SEQUENCE]
        if self.scan:
            later = pc.greater_equal(version, applied.version)
        else:
            same = pc.equal(version, applied.version)
            after = pc.greater(self.rows[ORDER], applied.seq or 0)
            later = pc.or_(pc.greater(version, applied.version), pc.and_(same, after))
        return replace(self, rows=self.rows.filter(later))


def apply(transaction: SpannerTransaction, rows: TransactionRows) -> None:
    """Rows become part of the target."""
    if not rows.rows.num_rows:
        return
    if not rows.wire.shape.keyless:
        _merge(transaction, rows)
    elif rows.scan:
        _gather(transaction, rows)
    else:
        _count(transaction, rows)


def most_cells(table: TargetTable, schema: TableSchema) -> int:
    """Mutations that one change is at most."""
    columns = len(schema.columns) + len(table.extra())
    if schema.keyless:
        return columns + 3
    return columns + (len(schema.key) + 1 if table.has_side(schema) else 0)


def _merge(transaction: SpannerTransaction, batch: TransactionRows) -> None:
    table, wire = batch.table, batch.wire
    shape, policy = wire.shape, table.policy
    rows = shape.taken(batch.rows, shape.folded(batch.rows, MergeMode.MERGE, table.d))
    values = wire.columns(rows)
    place = {name: i for i, name in enumerate(shape.names)}
    keys: list[Key] = list(zip(*(values[place[name]] for name in shape.key), strict=True))
    numbers: list[int] = rows[SEQUENCE].to_pylist()
    gone: list[bool] = pc.equal(rows[OPERATION], "DELETE").to_pylist()
    unsent: list[str | None] = rows[MISSING].to_pylist()
    stored = _stored(transaction, batch, keys)
    ended = _ended(transaction, batch, [k for k, lacks in zip(keys, unsent, strict=True) if lacks])
    there = set(stored) if not table.has_side(shape.schema) else None
    if policy.soft and there is None:
        there = {wire.canonical(k) for k in transaction.read(table.topic, shape.key, keys)}
    names = [*shape.names]
    if policy.sequence:
        names.append(policy.sequence)
        values.append([str(number) for number in numbers])
    if policy.soft:
        names.append(DELETED)
        values.append([False] * len(keys))
    made = list(zip(*values, strict=True))
    written: dict[str | None, list[int]] = {}
    deleted: list[int] = []
    for i, key in enumerate(keys):
        if stored.get(key, 0) > numbers[i]:
            continue
        if gone[i]:
            deleted.append(i)
        else:
            written.setdefault(None if key in ended else unsent[i], []).append(i)
    for missing, found in written.items():
        _upsert(transaction, batch, names, missing, [made[i] for i in found])
    if policy.soft and there is not None:
        deleted = [i for i in deleted if keys[i] in there]
        _mark(transaction, batch, [(keys[i], numbers[i]) for i in deleted])
    else:
        transaction.delete(table.topic, [keys[i] for i in deleted])
    if table.has_side(shape.schema):
        kept = [i for found in written.values() for i in found]
        if policy.soft:
            kept += deleted
        else:
            transaction.delete(side_of(table.topic), [keys[i] for i in deleted])
        side = [(*keys[i], str(numbers[i])) for i in kept]
        transaction.upsert(side_of(table.topic), (*shape.key, SEQUENCE), side)


def _ended(
    transaction: SpannerTransaction, batch: TransactionRows, keys: Sequence[Key]
) -> set[Key]:
    """Keys whose row is marked as deleted: nothing of it stays where another has the key now."""
    if not keys or not batch.table.policy.soft:
        return set()
    shape = batch.wire.shape
    rows = transaction.read(batch.table.topic, (*shape.key, DELETED), keys)
    return {batch.wire.canonical(row[:-1]) for row in rows if row[-1]}


def _stored(
    transaction: SpannerTransaction, batch: TransactionRows, keys: Sequence[Key]
) -> dict[Key, int]:
    table, shape = batch.table, batch.wire.shape
    side = table.has_side(shape.schema)
    place = side_of(table.topic) if side else table.topic
    number = SEQUENCE if side else table.policy.sequence
    found = transaction.read(place, (*shape.key, number), keys)
    return {batch.wire.canonical(row[:-1]): int(str(row[-1] or 0)) for row in found}


def _upsert(
    transaction: SpannerTransaction,
    batch: TransactionRows,
    names: Sequence[str],
    missing: str | None,
    rows: Sequence[tuple[Value, ...]],
) -> None:
    """Rows without the columns that the source did not send: those keep what they have."""
    left = {int(i) for i in (missing or "").split(",") if i} - set(batch.wire.shape.schema.key)
    if left:
        kept = [i for i in range(len(names)) if i not in left]
        names = [names[i] for i in kept]
        rows = [tuple(row[i] for i in kept) for row in rows]
    transaction.upsert(batch.table.topic, names, rows)


def _mark(
    transaction: SpannerTransaction, batch: TransactionRows, gone: Sequence[tuple[Key, int]]
) -> None:
    table, key = batch.table, batch.wire.shape.key
    if table.policy.sequence:
        columns: tuple[str, ...] = (*key, DELETED, table.policy.sequence)
        rows: list[tuple[Value, ...]] = [(*k, True, str(number)) for k, number in gone]
    else:
        columns, rows = (*key, DELETED), [(*k, True) for k, _ in gone]
    transaction.upsert(table.topic, columns, rows)


# ------------------------------------------------------------------------------- no key


def _count(transaction: SpannerTransaction, batch: TransactionRows) -> None:
    # An UPDATE left the row as it was.
    moved = replace(batch, rows=batch.rows.filter(pc.not_equal(batch.rows[OPERATION], "UPDATE")))
    net: Counter[str] = Counter()
    came: dict[str, tuple[Value, ...]] = {}
    gone_rows = pc.equal(moved.rows[OPERATION], "DELETE").to_pylist()
    for mark, row, is_gone in zip(*_distinct(moved), gone_rows, strict=True):
        net[mark] += -1 if is_gone else 1
        if not is_gone:
            came[mark] = row
    changed = [mark for mark, count in net.items() if count]
    copies = _copies(transaction, batch.table, changed)
    added: list[tuple[Value, ...]] = []
    gone: list[Key] = []
    for mark in changed:
        there, wanted = copies.get(mark, 0), copies.get(mark, 0) + net[mark]
        added += ((mark, str(copy), *came[mark]) for copy in range(there, wanted))
        gone += ((mark, str(copy)) for copy in range(max(wanted, 0), there))
    transaction.upsert(batch.table.topic, _names(batch), added)
    transaction.delete(batch.table.topic, gone)


def _gather(transaction: SpannerTransaction, batch: TransactionRows) -> None:
    """Each row of a scan is the next copy of this scan."""
    marks, values = _distinct(batch)
    version = batch.rows[SEQUENCE][0].as_py()
    copies = Counter(_copies(transaction, batch.table, list(set(marks)), version))
    rows: list[tuple[Value, ...]] = []
    for mark, row in zip(marks, values, strict=True):
        rows.append((mark, str(copies[mark]), *row))
        copies[mark] += 1
    transaction.upsert(batch.table.topic, _names(batch), rows)


def _names(batch: TransactionRows) -> list[str]:
    return [ROW, COPY, *batch.wire.shape.names, batch.table.sequence]


def _distinct(batch: TransactionRows) -> tuple[list[str], list[tuple[Value, ...]]]:
    values = batch.wire.columns(batch.rows)
    marks = digests(batch.wire.shape.columns, values)
    numbers = [str(number) for number in batch.rows[SEQUENCE].to_pylist()]
    return marks, list(zip(*values, numbers, strict=True))


def _copies(
    transaction: SpannerTransaction,
    table: TargetTable,
    marks: Sequence[str],
    version: int | None = None,
) -> Mapping[str, int]:
    """How many copies of these rows there are; of a scan's version: how many it wrote already."""
    if not marks:
        return {}
    q = table.d.quote
    only = "" if version is None else f" AND {q(table.sequence)} = {version}"
    sql = (
        f"SELECT {q(ROW)}, COUNT(*) AS n FROM {table.name} WHERE {q(ROW)} IN UNNEST(@rows){only} "
        f"GROUP BY {q(ROW)}"
    )
    return {str(mark): int(str(n)) for mark, n in transaction.query(sql, {"rows": marks})}


# ------------------------------------------------------------------------------- whole tables


def end_all(table: TargetTable, version: int, older: str) -> str:
    """Rows whose number is ``older`` (``<`` or ``<=``) than a version go, or are marked."""
    q = table.d.quote
    number = q(table.sequence)
    where = f"{_number(number)} {older} {version}"
    if not table.policy.soft:
        return f"DELETE FROM {table.name} WHERE {where}"
    sets = f"{q(DELETED)} = TRUE, {number} = {version}"
    return f"UPDATE {table.name} SET {sets} WHERE {q(DELETED)} IS NOT TRUE AND {where}"


def not_scanned(table: TargetTable, key: Sequence[str], version: int, most: int) -> str:
    """SELECT of keys that a scan did not find, where a table beside has the numbers."""
    d = table.d
    older = f"{_number(f'beside.{d.quote(SEQUENCE)}')} < {version}"
    live = f"target.{d.quote(DELETED)} IS NOT TRUE AND " if table.policy.soft else ""
    return (
        f"SELECT {d.listed(key, 'target')} FROM {table.name} AS target "
        f"LEFT JOIN {table.side} AS beside ON {d.same(key, 'target', 'beside')} "
        f"WHERE {live}{older} LIMIT {most}"
    )


def _number(sql: str) -> str:
    """A row without a number is older than any that has one."""
    return f"COALESCE({sql}, -1)"


def end_rows(
    transaction: SpannerTransaction,
    table: TargetTable,
    names: Sequence[str],
    keys: Sequence[Key],
    version: int,
) -> None:
    """Rows of these keys go, or are marked, and their numbers with them."""
    side = side_of(table.topic)
    if not table.policy.soft:
        transaction.delete(table.topic, keys)
        transaction.delete(side, keys)
        return
    transaction.update(table.topic, (*names, DELETED), [(*key, True) for key in keys])
    transaction.upsert(side, (*names, SEQUENCE), [(*key, str(version)) for key in keys])


def not_of_this_scan(table: TargetTable, version: int) -> str:
    """Rows that have a scan's number without it: of the change that it follows, or of an attempt
    of it that broke off. One less makes the difference."""
    number = table.d.quote(table.sequence)
    return f"UPDATE {table.name} SET {number} = {version - 1} WHERE {number} = {version}"


def copy_column(table: TargetTable, old: str, new: str) -> str:
    """A column that takes another's place gets its values, instead of what an earlier attempt may
    have left there."""
    q = table.d.quote
    return (
        f"UPDATE {table.name} SET {q(new)} = {q(old)} "
        f"WHERE {q(old)} IS NOT NULL OR {q(new)} IS NOT NULL"
    )
