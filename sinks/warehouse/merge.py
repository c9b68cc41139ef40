"""Changes of a table with a key: the diff of a batch and its MERGE.

The log tells a changed key as a delete of the old key and an insert of the new one, so the
latest change of each key by itself is what the key is now; chains (0 to 1 to 2), swaps and
reused keys need no more. Applied twice, the same rows result: the target's key is never updated.
"""

from __future__ import annotations

from dataclasses import replace

from sinks.merged.history import OPERATION, ORDER
from sinks.merged.policy import DELETED
from sinks.warehouse.dialect import Dialect, Merge
from sinks.warehouse.staging import MISSING, SEQUENCE
from sinks.warehouse.tables import StagedRows, TargetTable

_KEEP = "_keep_"
_NTH = "_keep_nth"


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
        keep={shape.names[i]: f"{_KEEP}{i}" for i in _missing(staged)},
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
    """SELECT of the latest change of each key that was not applied yet, in the target's types."""
    d, shape = table.d, staged.shape
    q = d.quote
    key = ", ".join(map(q, shape.key))
    known = _missing(staged)
    columns = [q(name) for i, name in enumerate(shape.names) if i not in known]
    for i in known:
        columns += _latest_known(d, staged, i)
    latest = f"row_number() OVER (PARTITION BY {key} ORDER BY {q(SEQUENCE)} DESC, {q(ORDER)} DESC)"
    ranked = (
        f"SELECT {', '.join(columns)}, {q(SEQUENCE)}, {q(OPERATION)}, {latest} AS {q('_rank')} "
        f"FROM ({typed(table, staged)}) AS c"
    )
    names = [*shape.names, SEQUENCE, OPERATION, *(f"{_KEEP}{i}" for i in known)]
    listed = ", ".join(f"r.{q(n)}" for n in names)
    if table.policy.sequence not in ("", SEQUENCE):
        listed += f", r.{q(SEQUENCE)} AS {q(table.policy.sequence)}"
    sql = f"SELECT {listed} FROM ({ranked}) AS r WHERE r.{q('_rank')} = 1"
    if table.has_side(shape.schema):
        sql += (
            f" AND NOT EXISTS (SELECT 1 FROM {table.side} AS n WHERE {d.same(shape.key, 'n', 'r')}"
            f" AND n.{q(SEQUENCE)} > r.{q(SEQUENCE)})"
        )
    return sql


def typed(table: TargetTable, staged: StagedRows) -> str:
    """SELECT of the batch's rows that were not applied yet, in the target's types."""
    d, shape = table.d, staged.shape
    q = d.quote
    columns = [
        f"{d.rule(c, key=i in shape.schema.key).of(f's.{q(c.name)}')} AS {q(c.name)}"
        for i, c in enumerate(shape.columns)
    ]
    columns += [f"s.{q(name)}" for name in (SEQUENCE, ORDER, OPERATION, MISSING)]
    return (
        f"SELECT {', '.join(columns)} FROM {staged.staging} AS s "
        f"WHERE {staged.where(d)} AND {unapplied(table, staged)}"
    )


def unapplied(table: TargetTable, staged: StagedRows, alias: str = "s") -> str:
    """SQL: the row was not applied. Rows of a scan are, once changes above the scan were."""
    q = table.d.quote
    number = f"{alias}.{q(SEQUENCE)}"
    if staged.scan:
        return f"{number} >= {table.applied.value('version')}"
    return table.applied.above(number, f"{alias}.{q(ORDER)}")


def _missing(staged: StagedRows) -> list[int]:
    """Places of the columns that need care: unknown in some row and not of the key."""
    return sorted(staged.missing - set(staged.shape.schema.key))


def unsent(d: Dialect, staged: StagedRows) -> dict[int, str]:
    """Places of the columns that a row of :func:`numbered` may lack, and SQL: its value is that of
    the row before. An insert that begins what a transaction did to its key lacks values where it
    is a changed key; what was there before has another key."""
    q = d.quote
    goes_on = f"({q(OPERATION)} = 'UPDATE' OR ({q(OPERATION)} = 'INSERT' AND {q(_NTH)} > 1))"
    return {i: f"{goes_on} AND coalesce({q(MISSING)}, '') LIKE '%,{i},%'" for i in _missing(staged)}


def numbered(table: TargetTable, staged: StagedRows, rows: str) -> str:
    """SELECT of ``rows`` (as of :func:`typed`), those of a key and transaction counted from 1. The
    last one of them has the operation of the whole transaction."""
    q = table.d.quote
    key = ", ".join(map(q, staged.shape.key))
    nth = f"row_number() OVER (PARTITION BY {key}, {q(SEQUENCE)} ORDER BY {q(ORDER)})"
    return f"SELECT n.*, {nth} AS {q(_NTH)} FROM ({rows}) AS n"


def _latest_known(d: Dialect, staged: StagedRows, place: int) -> list[str]:
    """The last value of a column that the source did send in this batch, and whether there is
    none, so that the target's value stays. A delete ends what was known of its key: a row that
    comes after it, by a changed key, has nothing to do with the one before."""
    q, shape = d.quote, staged.shape
    name = q(shape.names[place])
    unknown = (
        f"CASE WHEN {q(OPERATION)} <> 'DELETE' AND coalesce({q(MISSING)}, '') LIKE '%,{place},%' "
        "THEN 1 ELSE 0 END"
    )
    key = ", ".join(map(q, shape.key))
    order = f"{unknown}, {q(SEQUENCE)} DESC, {q(ORDER)} DESC"
    return [
        f"first_value({name}) OVER (PARTITION BY {key} ORDER BY {order} "
        f"ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS {name}",
        f"min({unknown}) OVER (PARTITION BY {key}) AS {q(f'{_KEEP}{place}')}",
    ]
