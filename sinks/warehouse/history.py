"""Targets that keep older versions: every change (``append``) or the time of each (``scd2``).

Their form is :mod:`sinks.merged.history`'s.
"""

from __future__ import annotations

from changefeed.core.clock import Timestamp
from changefeed.options import History
from sinks.merged.history import (
    COMMITTED_AT,
    IS_CURRENT,
    OPERATION,
    ORDER,
    READ,
    TRUNCATE,
    VALID_FROM,
    VALID_TO,
)
from sinks.merged.policy import DELETED
from sinks.warehouse.dialect import Dialect
from sinks.warehouse.merge import typed, unapplied, unsent
from sinks.warehouse.staging import MISSING, SEQUENCE, before_name
from sinks.warehouse.tables import StagedRows, TargetTable

#: Column of a batch's versions: the operation of the next one (a name that the sink keeps anyway).
_THEN = "_change"


def append(table: TargetTable, staged: StagedRows) -> list[str]:
    """Every change becomes a row."""
    d, shape = table.d, staged.shape
    q = d.quote
    names = [*shape.names, table.sequence, ORDER, OPERATION, COMMITTED_AT]
    into = f"INSERT INTO {table.name} ({', '.join(map(q, names))})"
    if staged.missing:
        listed = [f"v.{q(name)}" for name in (*shape.names, SEQUENCE, ORDER, OPERATION)]
        listed.append(d.instant(f"v.{q(SEQUENCE)}"))
        return [f"{into} SELECT {', '.join(listed)} FROM ({carried(table, staged)}) AS v"]
    deleted = f"s.{q(OPERATION)} = 'DELETE'"
    values = []
    for i, column in enumerate(shape.columns):
        source = f"s.{q(column.name)}"
        if shape.keyless and i in shape.before:
            source = f"CASE WHEN {deleted} THEN s.{q(before_name(column.name))} ELSE {source} END"
        values.append(d.rule(column, key=not shape.keyless and i in shape.schema.key).of(source))
    values += [f"s.{q(name)}" for name in (SEQUENCE, ORDER, OPERATION)]
    values.append(d.instant(f"s.{q(SEQUENCE)}"))
    return [
        f"{into} SELECT {', '.join(values)} "
        f"FROM {staged.staging} AS s WHERE {staged.where(d)} AND {unapplied(table, staged)}"
    ]


def carried(table: TargetTable, staged: StagedRows) -> str:
    """SELECT of a batch as :func:`~sinks.warehouse.merge.typed` has it, but a value that the round
    does not have is that of the target's last version."""
    d, shape = table.d, staged.shape
    q = d.quote
    if not staged.missing:
        return typed(table, staged)
    listed = [
        f"CASE WHEN {unsent(d, i, 'g')} THEN t.{q(name)} ELSE g.{q(name)} END AS {q(name)}"
        if i in staged.missing
        else f"g.{q(name)}"
        for i, name in enumerate((*shape.names, SEQUENCE, ORDER, OPERATION))
    ]
    return (
        f"SELECT {', '.join(listed)} FROM ({typed(table, staged)}) AS g "
        f"LEFT JOIN ({_before(table, staged)}) AS t ON {d.same(shape.key, 'g', 't')}"
    )


def _before(table: TargetTable, staged: StagedRows) -> str:
    """SELECT of what the target has last of the keys of which the batch lacks values, unless that
    is a delete."""
    d, shape = table.d, staged.shape
    q = d.quote
    key = ", ".join(f"t.{q(name)}" for name in shape.key)
    row = ", ".join(f"t.{q(name)}" for name in shape.names)
    lacking = (
        f"EXISTS (SELECT 1 FROM ({typed(table, staged)}) AS c "
        f"WHERE c.{q(MISSING)} IS NOT NULL AND {d.same(shape.key, 'c', 't')})"
    )
    if table.policy.history is History.SCD2:
        return f"SELECT {row} FROM {table.name} AS t WHERE t.{q(IS_CURRENT)} AND {lacking}"
    # A scan sees all changes of its version.
    scanned = f"CASE WHEN t.{q(OPERATION)} = '{READ}' THEN 1 ELSE 0 END"
    latest = f"t.{q(table.sequence)} DESC, {scanned} DESC, t.{q(ORDER)} DESC"
    number = f"row_number() OVER (PARTITION BY {key} ORDER BY {latest}) AS {q('_rank')}"
    ranked = f"SELECT {row}, t.{q(OPERATION)}, {number} FROM {table.name} AS t WHERE {lacking}"
    listed = ", ".join(f"l.{q(name)}" for name in shape.names)
    return (
        f"SELECT {listed} FROM ({ranked}) AS l "
        f"WHERE l.{q('_rank')} = 1 AND l.{q(OPERATION)} <> 'DELETE'"
    )


def forget_scans(table: TargetTable, after: int) -> list[str]:
    """Rows of scans of later versions go."""
    q = table.d.quote
    return [
        f"DELETE FROM {table.name} WHERE {q(OPERATION)} = '{READ}' "
        f"AND {q(table.sequence)} > {after}"
    ]


def versions(table: TargetTable, staged: StagedRows) -> list[str]:
    """Every change ends a version and, unless it is a delete, begins one."""
    d, shape = table.d, staged.shape
    q = d.quote
    made = f"_versions_{staged.batch}"
    same = d.same(shape.key, "t", "v")
    begins = d.instant(f"v.{q(SEQUENCE)}")
    closed = {VALID_TO: begins, IS_CURRENT: d.false}
    soft = table.policy.soft
    if soft:
        closed[DELETED] = _is(d, f"v.{q(OPERATION)} = 'DELETE'")
    older = f"{same} AND t.{q(IS_CURRENT)} AND v.{q(SEQUENCE)} > t.{q(table.sequence)}"
    older += f" AND v.{q('_rank')} = 1"
    names = [*shape.names, table.sequence, VALID_FROM, VALID_TO, IS_CURRENT]
    names += [DELETED] if soft else []
    marked = ", " + _is(d, f"v.{q(_THEN)} = 'DELETE'") if soft else ""
    row = ", ".join(f"v.{q(n)}" for n in shape.names)
    ends = d.instant(f"v.{q('_next')}")
    statements = [
        d.temporary(made, _versions(table, staged)),
        d.update_joined(table.name, q(made), "v", closed, older),
        f"INSERT INTO {table.name} ({', '.join(map(q, names))}) SELECT {row}, v.{q(SEQUENCE)}, "
        f"{begins}, CASE WHEN v.{q('_next')} IS NULL THEN NULL ELSE {ends} END, "
        f"v.{q('_next')} IS NULL{marked} FROM {q(made)} AS v WHERE v.{q(OPERATION)} <> 'DELETE'",
        d.drop_temporary(made),
    ]
    if staged.scan:
        statements.append(_seen(table, staged))
    return statements


def _is(d: Dialect, condition: str) -> str:
    """A truth value that is false where the condition is unknown."""
    return f"CASE WHEN {condition} THEN {d.true} ELSE {d.false} END"


def _versions(table: TargetTable, staged: StagedRows) -> str:
    """SELECT of one row per key and version, with ``_rank`` in its key, the version that follows
    and, with deletes that mark, what that does."""
    d, shape = table.d, staged.shape
    q = d.quote
    row = ", ".join(map(q, (*shape.names, SEQUENCE, OPERATION)))
    window = f"OVER (PARTITION BY {', '.join(map(q, shape.key))} ORDER BY {q(SEQUENCE)})"
    ranked = f"row_number() {window} AS {q('_rank')}, lead({q(SEQUENCE)}) {window} AS {q('_next')}"
    if table.policy.soft:
        ranked += f", lead({q(OPERATION)}) {window} AS {q(_THEN)}"
    sql = f"SELECT {row}, {ranked} FROM ({carried(table, staged)}) AS r"
    if not staged.scan:
        return sql
    known = (
        f"SELECT 1 FROM {table.name} AS t WHERE t.{q(IS_CURRENT)} "
        f"AND {d.same(shape.key, 't', 'x')} AND {d.same_row(shape.names, 't', 'x')}"
    )
    return f"SELECT x.* FROM ({sql}) AS x WHERE NOT EXISTS ({known})"


def _seen(table: TargetTable, staged: StagedRows) -> str:
    """Current rows that the scan found as they are: they are of its version now."""
    d, shape = table.d, staged.shape
    q = d.quote
    found = f"SELECT 1 FROM ({typed(table, staged)}) AS x WHERE {d.same(shape.key, 't', 'x')}"
    number = q(table.sequence)
    return (
        f"UPDATE {table.name} AS t SET {number} = {staged.top.version} WHERE t.{q(IS_CURRENT)} "
        f"AND t.{number} < {staged.top.version} AND EXISTS ({found})"
    )


def end_older(table: TargetTable, at: Timestamp) -> list[str]:
    """Versions that the scan of that instant did not find have ended."""
    d = table.d
    q = d.quote
    return [
        f"UPDATE {table.name} SET {q(VALID_TO)} = {d.instant(str(at.version))}, "
        f"{q(IS_CURRENT)} = {d.false}{_marked(table)} "
        f"WHERE {q(IS_CURRENT)} AND {q(table.sequence)} < {at.version}"
    ]


def record_truncation(table: TargetTable, at: Timestamp, seq: int) -> list[str]:
    """The row that says of a table that keeps all changes that the source's was emptied."""
    names = ", ".join(map(table.d.quote, (table.sequence, ORDER, OPERATION, COMMITTED_AT)))
    return [
        f"INSERT INTO {table.name} ({names}) SELECT {at.version}, {seq}, '{TRUNCATE}', "
        f"{table.d.instant(str(at.version))} FROM (SELECT 1 AS one) AS o"
    ]


def end_all(table: TargetTable, at: Timestamp) -> list[str]:
    """All versions have ended."""
    d = table.d
    q = d.quote
    return [
        f"UPDATE {table.name} SET {q(VALID_TO)} = {d.instant(str(at.version))}, "
        f"{q(IS_CURRENT)} = {d.false}{_marked(table)} WHERE {q(IS_CURRENT)}"
    ]


def _marked(table: TargetTable) -> str:
    """What an UPDATE sets besides where a version ends because its row is gone."""
    return f", {table.d.quote(DELETED)} = {table.d.true}" if table.policy.soft else ""
