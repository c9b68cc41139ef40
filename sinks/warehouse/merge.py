"""Changes of a table with a key: the diff of a batch and its MERGE.

In the log a changed key is a delete of the old key and an insert of the new one, so the latest
change of each key, which alone is staged (:mod:`sinks.merged.fold`), is what the key is now;
chains (0 to 1 to 2), swaps and reused keys need no more. Applied twice, the same rows result: the
target's key is never updated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sinks.merged.history import OPERATION, ORDER
from sinks.merged.policy import DELETED, MergeMode
from sinks.warehouse.dialect import Dialect, Merge
from sinks.warehouse.staging import MISSING, SEQUENCE
from sinks.warehouse.tables import StagedRows, TargetTable

_KEEP = "_keep_"


def merge(table: TargetTable, staged: StagedRows) -> list[str]:
    """Statements that apply a staged batch to a target that has one row per key."""
    policy, shape, d = table.policy, staged.shape, table.d
    number = f"d.{d.quote(SEQUENCE)}"
    side = table.has_side(shape.schema)
    gone = {DELETED: d.true} | ({policy.sequence: number} if policy.sequence else {})
    main = Merge(
        table=table.name,
        query=diff(table, staged),
        key=shape.key,
        values=(*shape.names, policy.sequence) if policy.sequence else shape.names,
        guard=policy.sequence,
        gone=gone if policy.soft else None,
        back={DELETED: d.false} if policy.soft else {},
        keep={shape.names[i]: f"{_KEEP}{i}" for i in sorted(staged.missing)},
        name=f"_diff_{staged.batch}",
    )
    statements = d.merge(main)
    if side:
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
        statements += d.merge(numbers)
    return statements


def diff(table: TargetTable, staged: StagedRows) -> str:
    """SELECT of the changes that were not applied yet, in the target's types: one of each key."""
    d = table.d
    q = d.quote
    listed = [
        f"CASE WHEN {unsent(d, i)} THEN 1 ELSE 0 END AS {q(f'{_KEEP}{i}')}"
        for i in sorted(staged.missing)
    ]
    if table.policy.sequence not in ("", SEQUENCE):
        listed.append(f"s.{q(SEQUENCE)} AS {q(table.policy.sequence)}")
    sql = typed(table, staged, listed)
    if table.has_side(staged.shape.schema):
        key = {
            c.name: d.rule(c, key=True).of(f"s.{q(c.name)}")
            for c in staged.shape.schema.key_columns
        }
        same = " AND ".join(f"n.{q(name)} = {value}" for name, value in key.items())
        sql += (
            f" AND NOT EXISTS (SELECT 1 FROM {table.side} AS n WHERE {same}"
            f" AND n.{q(SEQUENCE)} > s.{q(SEQUENCE)})"
        )
    return sql


def typed(table: TargetTable, staged: StagedRows, also: Sequence[str] = ()) -> str:
    """SELECT of the batch's rows that were not applied yet, in the target's types. More conditions
    on ``s``, a staged row, may follow."""
    d, shape = table.d, staged.shape
    q = d.quote
    columns = [
        f"{d.rule(c, key=i in shape.schema.key).of(f's.{q(c.name)}')} AS {q(c.name)}"
        for i, c in enumerate(shape.columns)
    ]
    columns += [f"s.{q(name)}" for name in (SEQUENCE, ORDER, OPERATION, MISSING)]
    return (
        f"SELECT {', '.join([*columns, *also])} FROM {staged.staging} AS s "
        f"WHERE {staged.where(d)} AND {unapplied(table, staged)}{_last(table, staged)}"
    )


def _last(table: TargetTable, staged: StagedRows) -> str:
    """SQL: no later row has the key in another text, of which only the target knows that it is the
    same; with versions, no later one of the transaction."""
    d, shape = table.d, staged.shape
    mode = table.policy.mode(shape.schema)
    if mode not in (MergeMode.MERGE, MergeMode.VERSIONS) or not shape.many_texts(d):
        return ""
    rules = {d.quote(c.name): d.rule(c, key=True) for c in shape.schema.key_columns}
    same = [f"{rule.of(f'l.{name}')} = {rule.of(f's.{name}')}" for name, rule in rules.items()]
    number, order = d.quote(SEQUENCE), d.quote(ORDER)
    later = f"l.{number} = s.{number} AND l.{order} > s.{order}"
    if mode is MergeMode.MERGE:
        later = f"(l.{number} > s.{number} OR {later})"
    return (
        f" AND NOT EXISTS (SELECT 1 FROM {staged.staging} AS l WHERE {staged.where(d, 'l')} "
        f"AND {' AND '.join(same)} AND {later})"
    )


def unapplied(table: TargetTable, staged: StagedRows, alias: str = "s") -> str:
    """SQL: the row was not applied. Rows of a scan are, once changes above the scan were."""
    q = table.d.quote
    number = f"{alias}.{q(SEQUENCE)}"
    if staged.scan:
        return f"{number} >= {table.applied.value('version')}"
    return table.applied.above(number, f"{alias}.{q(ORDER)}")


def unsent(d: Dialect, place: int, alias: str = "s") -> str:
    """SQL: the round does not have the value of the row's column, which is the target's."""
    return f"coalesce({alias}.{d.quote(MISSING)}, '') LIKE '%,{place},%'"
