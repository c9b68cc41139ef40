"""Changes of a table without a key: all columns stand in for it, and duplicates count.

A batch is a number for each distinct row: how many copies came less how many went (the log has a
changed row as a delete and an insert). Rows that only came are inserted. Of a row that went, all
copies are deleted and as many as are left are inserted again, because copies of a row are equal in
everything. What guards a replay is the applied position alone.

A scan cannot be guarded row by row, so its rows gather in ``_scan_<table>`` and take the
target's place in one step when the scan has ended.
"""

from __future__ import annotations

from sinks.merged.history import OPERATION
from sinks.warehouse.dialect import Dialect
from sinks.warehouse.merge import unapplied
from sinks.warehouse.staging import SEQUENCE, TargetShape
from sinks.warehouse.tables import StagedRows, TargetTable


def count_merge(table: TargetTable, staged: StagedRows) -> list[str]:
    """Statements that apply a staged batch of changes."""
    d, shape = table.d, staged.shape
    q = d.quote
    net, left = f"_net_{staged.batch}", f"_left_{staged.batch}"
    same = d.same_row(shape.names, "target", "net")
    change, copies = f"net.{q('_change')}", f"present.{q('_copies')}"
    names = _columns(table, shape)
    number = [SEQUENCE] if table.policy.sequence else []
    values = d.listed([*shape.names, *number], "net")
    into = f"INSERT INTO {table.name} ({d.listed(names)}) SELECT {values} FROM {q(net)} AS net"
    return [
        d.temporary(net, _net(table, staged)),
        d.temporary(
            left,
            f"SELECT net.{q('_row')}, count(*) AS {q('_copies')} FROM {q(net)} AS net "
            f"JOIN {table.name} AS target ON {same} WHERE {change} < 0 GROUP BY net.{q('_row')}",
        ),
        d.delete_joined(table.name, q(net), "net", f"{same} AND {change} < 0"),
        f"{into} {d.copies(change)} WHERE {change} > 0",
        f"{into} JOIN {q(left)} AS present ON present.{q('_row')} = net.{q('_row')} "
        f"{d.copies(f'{copies} + {change}')} WHERE {copies} + {change} > 0",
        d.drop_temporary(left),
        d.drop_temporary(net),
    ]


def _net(table: TargetTable, staged: StagedRows) -> str:
    """SELECT of each distinct row with ``_change``, copies that came less those that went."""
    d, shape = table.d, staged.shape
    q = d.quote
    one_row, equal_rows = d.distinct(shape.names, "moved")
    moved = (
        f"SELECT {_typed(d, shape)}, {one_copy(d)} AS {q('_one')}, staged.{q(SEQUENCE)} "
        f"FROM {staged.staging} AS staged WHERE {staged.where(d)} AND {unapplied(table, staged)}"
    )
    summed = (
        f"SELECT {one_row}, sum({q('_one')}) AS {q('_change')}, max({q(SEQUENCE)}) AS "
        f"{q(SEQUENCE)} FROM ({moved}) AS moved GROUP BY {equal_rows}"
    )
    return (
        f"SELECT {d.listed([*shape.names, '_change', SEQUENCE])}, "
        f"row_number() OVER (ORDER BY {q(SEQUENCE)}) AS {q('_row')} "
        f"FROM ({summed}) AS summed WHERE {q('_change')} <> 0"
    )


def one_copy(d: Dialect) -> str:
    """SQL: how many copies of a ``staged`` row came. An UPDATE left the row as it was."""
    operation = f"staged.{d.quote(OPERATION)}"
    return f"CASE {operation} WHEN 'DELETE' THEN -1 WHEN 'UPDATE' THEN 0 ELSE 1 END"


def _typed(d: Dialect, shape: TargetShape) -> str:
    return ", ".join(f"{sql} AS {d.quote(c)}" for c, sql in shape.typed(d, "staged").items())


def _columns(table: TargetTable, shape: TargetShape) -> list[str]:
    return [*shape.names, *filter(None, [table.policy.sequence])]


def scan_columns(d: Dialect, shape: TargetShape) -> dict[str, str]:
    """Columns of ``_scan_<table>``: log form, as in staging."""
    found = {c.name: d.staging_types[c.physical] for c in shape.columns}
    return found | {SEQUENCE: d.staging_types["int64"]}


def gather(table: TargetTable, staged: StagedRows) -> list[str]:
    """A batch of a scan joins those before it."""
    d = table.d
    names = d.listed(scan_columns(d, staged.shape))
    return [
        f"INSERT INTO {table.scan} ({names}) SELECT {names} FROM {staged.staging} AS staged "
        f"WHERE {staged.where(d)}"
    ]


def replace_rows(table: TargetTable, shape: TargetShape) -> list[str]:
    """The gathered scan becomes the table."""
    d = table.d
    number = f", staged.{d.quote(SEQUENCE)}" if table.policy.sequence else ""
    return [
        f"DELETE FROM {table.name} WHERE 1 = 1",
        f"INSERT INTO {table.name} ({d.listed(_columns(table, shape))}) "
        f"SELECT {_typed(d, shape)}{number} FROM {table.scan} AS staged",
        f"DELETE FROM {table.scan} WHERE 1 = 1",
    ]
