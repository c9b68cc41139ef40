"""Changes of a table with a key: which of a batch still count, and how they are applied.

In the log a changed key is a delete of the old key and an insert of the new one, so the latest
change of each key, which alone is staged (:mod:`sinks.merged.fold`), is what the key is now;
chains (0 to 1 to 2), swaps and reused keys need no more. Applied twice, the same rows result: the
target's key is never updated.

In SQL ``target`` is a row of the target, ``staged`` one of the staging table, and ``changed`` one
of the batch that was not applied yet, in the target's types.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sinks.merged.history import OPERATION, ORDER
from sinks.merged.policy import DELETED, MergeMode
from sinks.warehouse.dialect import Dialect
from sinks.warehouse.staging import MISSING, SEQUENCE
from sinks.warehouse.tables import StagedRows, TargetTable

_KEEP = "_keep_"


@dataclass(frozen=True, slots=True)
class Merge:
    """One row per key, to be applied to a table.

    A row of ``query`` has the columns ``key``, ``values`` and ``_operation`` (``DELETE``, else it
    is the row as it is now), and ``_sequence_num``. Its row in the target is

    * left alone where ``guard`` says that the target's is newer,
    * deleted by a DELETE, or with ``gone`` gets these values instead,
    * else updated or inserted. A column in ``keep`` is updated only where the row's column
      ``keep[column]`` is 0: the source did not send it. Of a row that is marked as deleted
      nothing is kept: another row has its key now.

    Attributes:
        table: the target, finished.
        query: SELECT of the rows.
        key, values: column names; ``values`` includes what the core adds (``_sequence_num``).
        guard: the target's column of the sequence number, a row with a larger one than the
            query's ``_sequence_num`` is left alone; empty where it has none.
        gone: column -> expression over ``changed`` of a soft delete; None deletes.
        back: the column that marks a row as deleted -> the expression that an update or insert
            sets beside its values; empty where no row is marked.
        keep: column -> name of the source column that is 1 where the value is unknown.
        name: for temporary tables.
    """

    table: str
    query: str
    key: tuple[str, ...]
    values: tuple[str, ...]
    guard: str
    gone: Mapping[str, str] | None
    back: Mapping[str, str]
    keep: Mapping[str, str]
    name: str

    @property
    def changed(self) -> tuple[str, ...]:
        """The columns an update sets."""
        return tuple(c for c in self.values if c not in self.key)

    @property
    def inserted(self) -> tuple[str, ...]:
        """The columns an insert sets."""
        return (*self.key, *self.changed, *self.back)

    def row(self, d: Dialect) -> str:
        """The values of a new row."""
        return ", ".join([d.listed((*self.key, *self.changed), "changed"), *self.back.values()])

    def not_newer(self, d: Dialect) -> str:
        """SQL to follow other conditions: the target's row is not newer than the change."""
        if not self.guard:
            return ""
        guard = f"coalesce(target.{d.quote(self.guard)}, 0)"
        return f" AND {guard} <= changed.{d.quote(SEQUENCE)}"

    def kept(self, d: Dialect, column: str) -> str:
        """SQL: what a column of the row is."""
        name = d.quote(column)
        if column not in self.keep:
            return f"changed.{name}"
        there = f"target.{name}"
        for mark in self.back:
            gone = f"coalesce(target.{d.quote(mark)}, {d.false})"
            there = f"CASE WHEN {gone} THEN NULL ELSE {there} END"
        unknown = f"changed.{d.quote(self.keep[column])} = 1"
        return f"CASE WHEN {unknown} THEN {there} ELSE changed.{name} END"


def merge(table: TargetTable, staged: StagedRows) -> list[str]:
    """Statements that apply a staged batch to a target that has one row per key."""
    policy, shape, d = table.policy, staged.shape, table.d
    number = f"changed.{d.quote(SEQUENCE)}"
    gone = {DELETED: d.true} | ({policy.sequence: number} if policy.sequence else {})
    main = Merge(
        table=table.name,
        query=_unapplied_rows(table, staged),
        key=shape.key,
        values=(*shape.names, policy.sequence) if policy.sequence else shape.names,
        guard=policy.sequence,
        gone=gone if policy.soft else None,
        back={DELETED: d.false} if policy.soft else {},
        keep={shape.names[i]: f"{_KEEP}{i}" for i in sorted(staged.missing)},
        name=f"_diff_{staged.batch}",
    )
    if not table.has_side(shape.schema):
        return _statements(d, main)
    numbers = replace(
        main,
        table=table.side,
        values=(*shape.key, SEQUENCE),
        guard=SEQUENCE,
        back={},
        keep={},
        gone={SEQUENCE: number} if policy.soft else None,
        name=f"_side_{staged.batch}",
    )
    return _statements(d, main) + _statements(d, numbers)


def _statements(d: Dialect, merge: Merge) -> list[str]:
    return [_standard_merge(d, merge)] if d.merges else _delete_insert(d, merge)


def _standard_merge(d: Dialect, merge: Merge) -> str:
    """What PostgreSQL 15, DuckDB, BigQuery, Snowflake and Spark understand."""
    newer = merge.not_newer(d)
    is_delete = f"changed.{d.quote(OPERATION)} = 'DELETE'"
    is_row = f"changed.{d.quote(OPERATION)} <> 'DELETE'"
    update = {c: merge.kept(d, c) for c in merge.changed} | dict(merge.back)
    on_delete = "DELETE" if merge.gone is None else f"UPDATE SET {d.assigned(merge.gone)}"
    clauses = [
        f"MERGE INTO {merge.table} AS target USING ({merge.query}) AS changed "
        f"ON {d.same(merge.key, 'target', 'changed')}",
        f"WHEN MATCHED AND {is_delete}{newer} THEN {on_delete}",
    ]
    if update:
        clauses.append(f"WHEN MATCHED AND {is_row}{newer} THEN UPDATE SET {d.assigned(update)}")
    clauses.append(
        f"WHEN NOT MATCHED AND {is_row} THEN INSERT ({d.listed(merge.inserted)}) "
        f"VALUES ({merge.row(d)})"
    )
    return " ".join(clauses)


def _delete_insert(d: Dialect, merge: Merge) -> list[str]:
    """Where there is no MERGE: the rows of the batch's keys are deleted, then inserted as they are
    now, both in one transaction, out of a temporary table. Unknown values are taken from the target
    before it loses the row."""
    changes = d.quote(merge.name)
    same, newer = d.same(merge.key, "target", "changed"), merge.not_newer(d)
    is_row = f"changed.{d.quote(OPERATION)} <> 'DELETE'"
    statements = [d.temporary(merge.name, _filled(d, merge))]
    only = ""
    if merge.gone is not None:
        on = f"{same} AND changed.{d.quote(OPERATION)} = 'DELETE'{newer}"
        statements.append(d.update_joined(merge.table, changes, "changed", merge.gone, on))
        only = f" AND {is_row}"
    there = f"SELECT 1 FROM {merge.table} AS target WHERE {same}"
    return [
        *statements,
        d.delete_joined(merge.table, changes, "changed", f"{same}{newer}{only}"),
        f"INSERT INTO {merge.table} ({d.listed(merge.inserted)}) SELECT {merge.row(d)} "
        f"FROM {changes} AS changed WHERE {is_row} AND NOT EXISTS ({there})",
        d.drop_temporary(merge.name),
    ]


def _filled(d: Dialect, merge: Merge) -> str:
    if not merge.keep:
        return merge.query
    sent = [c for c in (*merge.key, *merge.changed) if c not in merge.keep]
    extra = [OPERATION] if SEQUENCE in merge.values else [OPERATION, SEQUENCE]
    columns = [d.listed(sent, "changed")]
    columns += [f"{merge.kept(d, c)} AS {d.quote(c)}" for c in merge.keep]
    return (
        f"SELECT {', '.join(columns)}, {d.listed(extra, 'changed')} "
        f"FROM ({merge.query}) AS changed LEFT JOIN {merge.table} AS target "
        f"ON {d.same(merge.key, 'target', 'changed')}"
    )


# ------------------------------------------------------------------------------- rows of a batch


def _unapplied_rows(table: TargetTable, staged: StagedRows) -> str:
    """SELECT of the changes that a merge applies: one of each key."""
    d, shape = table.d, staged.shape
    number = f"staged.{d.quote(SEQUENCE)}"
    also = [
        f"CASE WHEN {unsent(d, i)} THEN 1 ELSE 0 END AS {d.quote(f'{_KEEP}{i}')}"
        for i in sorted(staged.missing)
    ]
    if table.policy.sequence not in ("", SEQUENCE):
        also.append(f"{number} AS {d.quote(table.policy.sequence)}")
    rows = typed(table, staged, also)
    if not table.has_side(shape.schema):
        return rows
    key = shape.typed(d, "staged", shape.schema.key)
    same = " AND ".join(f"beside.{d.quote(name)} = {value}" for name, value in key.items())
    return (
        f"{rows} AND NOT EXISTS (SELECT 1 FROM {table.side} AS beside WHERE {same}"
        f" AND beside.{d.quote(SEQUENCE)} > {number})"
    )


def typed(table: TargetTable, staged: StagedRows, also: Sequence[str] = ()) -> str:
    """SELECT of the batch's rows that were not applied yet, in the target's types. More conditions
    on ``staged``, a row, may follow."""
    d = table.d
    values = [f"{sql} AS {d.quote(c)}" for c, sql in staged.shape.typed(d, "staged").items()]
    values.append(d.listed((SEQUENCE, ORDER, OPERATION, MISSING), "staged"))
    return (
        f"SELECT {', '.join([*values, *also])} FROM {staged.staging} AS staged "
        f"WHERE {staged.where(d)} AND {unapplied(table, staged)}{_last(table, staged)}"
    )


def _last(table: TargetTable, staged: StagedRows) -> str:
    """SQL: no later row has the key in another text, of which only the target knows that it is the
    same; with versions, no later one of the transaction."""
    d, shape = table.d, staged.shape
    mode = table.policy.mode(shape.schema)
    if mode not in (MergeMode.MERGE, MergeMode.VERSIONS) or not shape.many_texts(d):
        return ""
    keys, others = (shape.typed(d, alias, shape.schema.key) for alias in ("staged", "later"))
    same = " AND ".join(f"{others[name]} = {value}" for name, value in keys.items())
    number, order = d.quote(SEQUENCE), d.quote(ORDER)
    later = f"later.{number} = staged.{number} AND later.{order} > staged.{order}"
    if mode is MergeMode.MERGE:
        later = f"(later.{number} > staged.{number} OR {later})"
    return (
        f" AND NOT EXISTS (SELECT 1 FROM {staged.staging} AS later "
        f"WHERE {staged.where(d, 'later')} AND {same} AND {later})"
    )


def unapplied(table: TargetTable, staged: StagedRows) -> str:
    """SQL: the row was not applied. Rows of a scan are, once changes above the scan were."""
    number = f"staged.{table.d.quote(SEQUENCE)}"
    if staged.scan:
        return f"{number} >= {table.applied.value('version')}"
    return table.applied.above(number, f"staged.{table.d.quote(ORDER)}")


def unsent(d: Dialect, place: int, alias: str = "staged") -> str:
    """SQL: the round does not have the value of the row's column, which is the target's."""
    return f"coalesce({alias}.{d.quote(MISSING)}, '') LIKE '%,{place},%'"
