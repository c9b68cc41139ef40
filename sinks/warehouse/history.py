"""Targets that keep older versions: every change (``append``) or the time of each (``scd2``).

Their form is :mod:`sinks.merged.history`'s. The aliases in SQL are those of :mod:`.merge`.
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
from sinks.warehouse.merge import typed, unsent
from sinks.warehouse.staging import MISSING, SEQUENCE
from sinks.warehouse.tables import StagedRows, TargetTable

#: Columns of a batch's versions: the place in its key, the version that follows, and what that does
#: (names that the sink keeps anyway).
_RANK, _NEXT, _THEN = "_rank", "_next", "_change"


def append(table: TargetTable, staged: StagedRows) -> list[str]:
    """Every change becomes a row."""
    d, names = table.d, staged.shape.names
    columns = d.listed((*names, table.sequence, ORDER, OPERATION, COMMITTED_AT))
    values = d.listed((*names, SEQUENCE, ORDER, OPERATION), "changed")
    at = d.instant(f"changed.{d.quote(SEQUENCE)}")
    rows = _carried(table, staged)
    return [f"INSERT INTO {table.name} ({columns}) SELECT {values}, {at} FROM ({rows}) AS changed"]


def _carried(table: TargetTable, staged: StagedRows) -> str:
    """SELECT of a batch as :func:`~sinks.warehouse.merge.typed` has it, but a value that the round
    does not have is that of the target's last version."""
    d, shape = table.d, staged.shape
    rows = typed(table, staged)
    if not staged.missing:
        return rows
    names = (*shape.names, SEQUENCE, ORDER, OPERATION)
    values = [f"changed.{d.quote(name)}" for name in names]
    for i in staged.missing:
        name = d.quote(shape.names[i])
        values[i] = (
            f"CASE WHEN {unsent(d, i, 'changed')} THEN target.{name} ELSE changed.{name} END "
            f"AS {name}"
        )
    return (
        f"SELECT {', '.join(values)} FROM ({rows}) AS changed "
        f"LEFT JOIN ({_last_versions(table, staged)}) AS target "
        f"ON {d.same(shape.key, 'changed', 'target')}"
    )


def _last_versions(table: TargetTable, staged: StagedRows) -> str:
    """SELECT of what the target has last of the keys of which the batch lacks values, unless that
    is a delete."""
    d, shape = table.d, staged.shape
    q = d.quote
    row = d.listed(shape.names, "target")
    lacking = (
        f"EXISTS (SELECT 1 FROM ({typed(table, staged)}) AS lacking "
        f"WHERE lacking.{q(MISSING)} IS NOT NULL AND {d.same(shape.key, 'lacking', 'target')})"
    )
    if table.policy.history is History.SCD2:
        current = f"target.{q(IS_CURRENT)} AND {lacking}"
        return f"SELECT {row} FROM {table.name} AS target WHERE {current}"
    # A scan sees all changes of its version.
    scanned = f"CASE WHEN target.{q(OPERATION)} = '{READ}' THEN 1 ELSE 0 END"
    latest = f"target.{q(table.sequence)} DESC, {scanned} DESC, target.{q(ORDER)} DESC"
    window = f"OVER (PARTITION BY {d.listed(shape.key, 'target')} ORDER BY {latest})"
    ranked = (
        f"SELECT {row}, target.{q(OPERATION)}, row_number() {window} AS {q(_RANK)} "
        f"FROM {table.name} AS target WHERE {lacking}"
    )
    return (
        f"SELECT {d.listed(shape.names, 'ranked')} FROM ({ranked}) AS ranked "
        f"WHERE ranked.{q(_RANK)} = 1 AND ranked.{q(OPERATION)} <> 'DELETE'"
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
    d, shape, soft = table.d, staged.shape, table.policy.soft
    q = d.quote
    made = f"_versions_{staged.batch}"
    number, following = f"changed.{q(SEQUENCE)}", f"changed.{q(_NEXT)}"
    begins, ends = d.instant(number), d.instant(following)
    closed = {VALID_TO: begins, IS_CURRENT: d.false}
    if soft:
        closed[DELETED] = _is(d, f"changed.{q(OPERATION)} = 'DELETE'")
    older = (
        f"{d.same(shape.key, 'target', 'changed')} AND target.{q(IS_CURRENT)} "
        f"AND {number} > target.{q(table.sequence)} AND changed.{q(_RANK)} = 1"
    )
    added = {
        **{name: f"changed.{q(name)}" for name in shape.names},
        table.sequence: number,
        VALID_FROM: begins,
        VALID_TO: f"CASE WHEN {following} IS NULL THEN NULL ELSE {ends} END",
        IS_CURRENT: f"{following} IS NULL",
    }
    if soft:
        added[DELETED] = _is(d, f"changed.{q(_THEN)} = 'DELETE'")
    statements = [
        d.temporary(made, _versions(table, staged)),
        d.update_joined(table.name, q(made), "changed", closed, older),
        f"INSERT INTO {table.name} ({d.listed(added)}) SELECT {', '.join(added.values())} "
        f"FROM {q(made)} AS changed WHERE changed.{q(OPERATION)} <> 'DELETE'",
        d.drop_temporary(made),
    ]
    if staged.scan:
        statements.append(_seen(table, staged))
    return statements


def _is(d: Dialect, condition: str) -> str:
    """A truth value that is false where the condition is unknown."""
    return f"CASE WHEN {condition} THEN {d.true} ELSE {d.false} END"


def _versions(table: TargetTable, staged: StagedRows) -> str:
    """SELECT of one row per key and version, with its place in the key, the version that follows
    and, with deletes that mark, what that does."""
    d, shape = table.d, staged.shape
    q = d.quote
    window = f"OVER (PARTITION BY {d.listed(shape.key)} ORDER BY {q(SEQUENCE)})"
    ranked = (
        f"SELECT {d.listed((*shape.names, SEQUENCE, OPERATION))}, "
        f"row_number() {window} AS {q(_RANK)}, lead({q(SEQUENCE)}) {window} AS {q(_NEXT)}"
    )
    if table.policy.soft:
        ranked += f", lead({q(OPERATION)}) {window} AS {q(_THEN)}"
    ranked += f" FROM ({_carried(table, staged)}) AS changed"
    if not staged.scan:
        return ranked
    known = (
        f"SELECT 1 FROM {table.name} AS target WHERE target.{q(IS_CURRENT)} "
        f"AND {d.same(shape.key, 'target', 'found')} "
        f"AND {d.same_row(shape.names, 'target', 'found')}"
    )
    return f"SELECT found.* FROM ({ranked}) AS found WHERE NOT EXISTS ({known})"


def _seen(table: TargetTable, staged: StagedRows) -> str:
    """Current rows that the scan found as they are: they are of its version now."""
    d, version = table.d, staged.top.version
    same = d.same(staged.shape.key, "found", "target")
    number = d.quote(table.sequence)
    return (
        f"UPDATE {table.name} AS target SET {number} = {version} "
        f"WHERE target.{d.quote(IS_CURRENT)} AND target.{number} < {version} "
        f"AND EXISTS (SELECT 1 FROM ({typed(table, staged)}) AS found WHERE {same})"
    )


def end_older(table: TargetTable, at: Timestamp) -> list[str]:
    """Versions that the scan of that instant did not find have ended."""
    older = f" AND {table.d.quote(table.sequence)} < {at.version}"
    return [sql + older for sql in end_all(table, at)]


def record_truncation(table: TargetTable, at: Timestamp, seq: int) -> list[str]:
    """The row that says of a table that keeps all changes that the source's was emptied."""
    d = table.d
    return [
        f"INSERT INTO {table.name} ({d.listed((table.sequence, ORDER, OPERATION, COMMITTED_AT))}) "
        f"SELECT {at.version}, {seq}, '{TRUNCATE}', {d.instant(str(at.version))} "
        "FROM (SELECT 1 AS one) AS o"
    ]


def end_all(table: TargetTable, at: Timestamp) -> list[str]:
    """All versions have ended; more conditions may follow."""
    d = table.d
    sets = {VALID_TO: d.instant(str(at.version)), IS_CURRENT: d.false}
    if table.policy.soft:
        sets[DELETED] = d.true
    return [f"UPDATE {table.name} SET {d.assigned(sets)} WHERE {d.quote(IS_CURRENT)}"]
