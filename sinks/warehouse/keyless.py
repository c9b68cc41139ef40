"""Changes of a table without a key: all columns stand in for it, and duplicates count.

A batch is a number for each distinct row: how many copies came less how many went. Rows that
only came are inserted. Of a row that went, all copies are deleted and as many as are left are
inserted again, because nothing tells one copy from another. What guards a replay is the
applied position alone.

A scan cannot be guarded row by row, so its rows gather in ``_scan_<table>`` and take the
target's place in one step when the scan has ended.
"""

from __future__ import annotations

from changefeed.core.schema import Column
from sinks.merged.history import OPERATION
from sinks.warehouse.dialect import Dialect
from sinks.warehouse.merge import unapplied
from sinks.warehouse.staging import BEFORE, SEQUENCE, TargetShape, staged_name
from sinks.warehouse.tables import StagedRows, TargetTable


def count_merge(table: TargetTable, staged: StagedRows) -> list[str]:
    """Statements that apply a staged batch of changes."""
    d, shape = table.d, staged.shape
    q = d.quote
    net, left = f"_net_{staged.batch}", f"_left_{staged.batch}"
    row = ", ".join(f"n.{q(c)}" for c in shape.names)
    names = [*shape.names, *filter(None, [table.policy.sequence])]
    values = f"{row}, n.{q(SEQUENCE)}" if table.policy.sequence else row
    same = d.same_row(shape.names, "t", "n")
    change, copies = f"n.{q('_change')}", f"l.{q('_copies')}"
    into = f"INSERT INTO {table.name} ({', '.join(map(q, names))})"
    return [
        d.temporary(net, _net(table, staged)),
        d.temporary(
            left,
            f"SELECT n.{q('_row')}, count(*) AS {q('_copies')} FROM {q(net)} AS n "
            f"JOIN {table.name} AS t ON {same} WHERE {change} < 0 GROUP BY n.{q('_row')}",
        ),
        d.delete_joined(table.name, q(net), "n", f"{same} AND {change} < 0"),
        f"{into} SELECT {values} FROM {q(net)} AS n {d.copies(change)} WHERE {change} > 0",
        f"{into} SELECT {values} FROM {q(net)} AS n JOIN {q(left)} AS l "
        f"ON l.{q('_row')} = n.{q('_row')} {d.copies(f'{copies} + {change}')} "
        f"WHERE {copies} + {change} > 0",
        d.drop_temporary(left),
        d.drop_temporary(net),
    ]


def _net(table: TargetTable, staged: StagedRows) -> str:
    """SELECT of each distinct row with ``_change``, copies that came less those that went."""
    d, shape = table.d, staged.shape
    q = d.quote
    row = ", ".join(map(q, shape.names))
    one_row, equal_rows = d.distinct(shape.names, "b")
    both = (
        f"{_side(table, staged, '', 1, ('INSERT', 'UPDATE'))} UNION ALL "
        f"{_side(table, staged, BEFORE, -1, ('DELETE', 'UPDATE'))}"
    )
    return (
        f"SELECT {row}, {q('_change')}, {q(SEQUENCE)}, row_number() OVER (ORDER BY {q(SEQUENCE)}) "
        f"AS {q('_row')} FROM (SELECT {one_row}, sum({q('_one')}) AS {q('_change')}, "
        f"max({q(SEQUENCE)}) AS {q(SEQUENCE)} FROM ({both}) AS b GROUP BY {equal_rows}) AS g "
        f"WHERE {q('_change')} <> 0"
    )


def _side(
    table: TargetTable, staged: StagedRows, prefix: str, one: int, operations: tuple[str, ...]
) -> str:
    d = table.d
    q = d.quote
    listed = ", ".join(map(d.literal, operations))
    return (
        f"SELECT {_cast(d, staged.shape.columns, prefix)}, {one} AS {q('_one')}, "
        f"s.{q(SEQUENCE)} FROM {staged.staging} AS s WHERE {staged.where(d)} "
        f"AND s.{q(OPERATION)} IN ({listed}) AND {unapplied(table, staged)}"
    )


def _cast(d: Dialect, columns: tuple[Column, ...], prefix: str = "") -> str:
    q = d.quote
    return ", ".join(
        f"{d.rule(c).of(f's.{q(staged_name(c.name, prefix))}')} AS {q(c.name)}" for c in columns
    )


def scan_columns(d: Dialect, shape: TargetShape) -> dict[str, str]:
    """Columns of ``_scan_<table>``: log form, as in staging."""
    found = {c.name: d.staging_types[c.physical] for c in shape.columns}
    return found | {SEQUENCE: d.staging_types["int64"]}


def gather(table: TargetTable, staged: StagedRows) -> list[str]:
    """A batch of a scan joins those before it."""
    d = table.d
    names = ", ".join(map(d.quote, scan_columns(d, staged.shape)))
    return [
        f"INSERT INTO {table.scan} ({names}) SELECT {names} FROM {staged.staging} AS s "
        f"WHERE {staged.where(d)}"
    ]


def replace_rows(table: TargetTable, shape: TargetShape) -> list[str]:
    """The gathered scan becomes the table."""
    d = table.d
    q = d.quote
    names = [*shape.names, *filter(None, [table.policy.sequence])]
    number = f", s.{q(SEQUENCE)}" if table.policy.sequence else ""
    return [
        f"DELETE FROM {table.name} WHERE 1 = 1",
        f"INSERT INTO {table.name} ({', '.join(map(q, names))}) "
        f"SELECT {_cast(d, shape.columns)}{number} FROM {table.scan} AS s",
        f"DELETE FROM {table.scan} WHERE 1 = 1",
    ]
