"""Targets that keep older versions: every change (``append``) or the time of each (``scd2``).

Their form is :mod:`sinks.history`'s. A scan makes a version of ``scd2`` only of rows that differ
from the current one.
"""

from __future__ import annotations

from changefeed.core.clock import Timestamp
from changefeed.options import History
from sinks.history import (
    COMMITTED_AT,
    IS_CURRENT,
    OPERATION,
    ORDER,
    READ,
    TRUNCATE,
    VALID_FROM,
    VALID_TO,
)
from sinks.warehouse.merge import typed, unapplied
from sinks.warehouse.staging import SEQUENCE, Shape, before_name
from sinks.warehouse.tables import Staged, Table


def append(table: Table, staged: Staged) -> list[str]:
    """Every change becomes a row."""
    d, shape = table.d, staged.shape
    q = d.quote
    deleted = f"s.{q(OPERATION)} = 'DELETE'"
    values = []
    for i, column in enumerate(shape.columns):
        source = f"s.{q(column.name)}"
        if shape.keyless and i in shape.before:
            source = f"CASE WHEN {deleted} THEN s.{q(before_name(column.name))} ELSE {source} END"
        values.append(d.rule(column, key=not shape.keyless and i in shape.schema.key).of(source))
    values += [f"s.{q(name)}" for name in (SEQUENCE, ORDER, OPERATION)]
    values.append(d.instant(f"s.{q(SEQUENCE)}"))
    names = [*shape.names, table.sequence, ORDER, OPERATION, COMMITTED_AT]
    return [
        f"INSERT INTO {table.name} ({', '.join(map(q, names))}) SELECT {', '.join(values)} "
        f"FROM {staged.staging} AS s WHERE {staged.where(d)} AND {unapplied(table, staged)}"
    ]


def begin_scan(table: Table) -> list[str]:
    """Rows of a scan that broke off go; those of whole scans stay."""
    if table.keeping.history is not History.APPEND:
        return []
    q = table.d.quote
    return [
        f"DELETE FROM {table.name} WHERE {q(OPERATION)} = '{READ}' "
        f"AND {q(table.sequence)} > {table.applied.value('scanned')}"
    ]


def versions(table: Table, staged: Staged) -> list[str]:
    """Every change ends a version and, unless it is a delete, begins one."""
    d, shape = table.d, staged.shape
    q = d.quote
    made = f"_versions_{staged.batch}"
    same = d.same(shape.key, "t", "v")
    begins = d.instant(f"v.{q(SEQUENCE)}")
    first = f"_first_{staged.batch}"
    key = ", ".join(map(q, shape.key))
    closed = {VALID_TO: begins, IS_CURRENT: d.false}
    older = f"{same} AND t.{q(IS_CURRENT)} AND v.{q(SEQUENCE)} > t.{q(table.sequence)}"
    names = [*shape.names, table.sequence, VALID_FROM, VALID_TO, IS_CURRENT]
    row = ", ".join(f"v.{q(n)}" for n in shape.names)
    ends = d.instant(f"v.{q('_next')}")
    statements = [
        d.temporary(made, _versions(table, staged)),
        d.temporary(
            first,
            f"SELECT {key}, min({q(SEQUENCE)}) AS {q(SEQUENCE)} FROM {q(made)} GROUP BY {key}",
        ),
        d.update_joined(table.name, q(first), "v", closed, older),
        d.drop_temporary(first),
        f"INSERT INTO {table.name} ({', '.join(map(q, names))}) SELECT {row}, v.{q(SEQUENCE)}, "
        f"{begins}, CASE WHEN v.{q('_next')} IS NULL THEN NULL ELSE {ends} END, "
        f"v.{q('_next')} IS NULL FROM {q(made)} AS v WHERE v.{q(OPERATION)} <> 'DELETE'",
        d.drop_temporary(made),
    ]
    if staged.scan:
        statements.append(_seen(table, staged))
    return statements


def _versions(table: Table, staged: Staged) -> str:
    """SELECT of one row per key and version, with the version that follows."""
    d, shape = table.d, staged.shape
    q = d.quote
    key = ", ".join(map(q, shape.key))
    row = ", ".join(map(q, shape.names))
    last = f"row_number() OVER (PARTITION BY {key}, {q(SEQUENCE)} ORDER BY {q(ORDER)} DESC)"
    following = f"lead({q(SEQUENCE)}) OVER (PARTITION BY {key} ORDER BY {q(SEQUENCE)})"
    sql = (
        f"SELECT {row}, {q(SEQUENCE)}, {q(OPERATION)}, {following} AS {q('_next')} FROM "
        f"(SELECT {row}, {q(SEQUENCE)}, {q(OPERATION)}, {last} AS {q('_rank')} "
        f"FROM ({typed(table, staged)}) AS c) AS r WHERE r.{q('_rank')} = 1"
    )
    if not staged.scan:
        return sql
    known = (
        f"SELECT 1 FROM {table.name} AS t WHERE t.{q(IS_CURRENT)} "
        f"AND {d.same(shape.key, 't', 'x')} AND {d.same_row(shape.names, 't', 'x')}"
    )
    return f"SELECT x.* FROM ({sql}) AS x WHERE NOT EXISTS ({known})"


def _seen(table: Table, staged: Staged) -> str:
    """Current rows that the scan found as they are: they are of its version now."""
    d, shape = table.d, staged.shape
    q = d.quote
    found = f"SELECT 1 FROM ({typed(table, staged)}) AS x WHERE {d.same(shape.key, 't', 'x')}"
    number = q(table.sequence)
    return (
        f"UPDATE {table.name} AS t SET {number} = {staged.top[0]} WHERE t.{q(IS_CURRENT)} "
        f"AND t.{number} < {staged.top[0]} AND EXISTS ({found})"
    )


def end_scan(table: Table, shape: Shape, at: Timestamp) -> list[str]:
    """Versions that the scan did not find have ended; ``append`` knows no such change."""
    if table.keeping.history is History.APPEND:
        return []
    d = table.d
    q = d.quote
    return [
        f"UPDATE {table.name} SET {q(VALID_TO)} = {d.instant(str(at.version))}, "
        f"{q(IS_CURRENT)} = {d.false} WHERE {q(IS_CURRENT)} AND {q(table.sequence)} < {at.version}"
    ]


def truncate(table: Table, shape: Shape, at: Timestamp) -> list[str]:
    """All versions have ended; ``append`` gets one row that says so."""
    d = table.d
    q = d.quote
    instant = d.instant(str(at.version))
    if table.keeping.history is History.APPEND:
        names = ", ".join(map(q, (table.sequence, OPERATION, COMMITTED_AT)))
        return [
            f"INSERT INTO {table.name} ({names}) SELECT {at.version}, '{TRUNCATE}', {instant} "
            "FROM (SELECT 1 AS one) AS o"
        ]
    return [
        f"UPDATE {table.name} SET {q(VALID_TO)} = {instant}, {q(IS_CURRENT)} = {d.false} "
        f"WHERE {q(IS_CURRENT)}"
    ]
