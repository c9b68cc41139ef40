"""Where there is no MERGE: delete the rows of the batch's keys, then insert what they are now.

Both in one transaction, out of a temporary table of the diff. Unknown values are taken from the
target before it loses the row.
"""

from __future__ import annotations

from sinks.merged.history import OPERATION
from sinks.warehouse.dialect import Dialect, Merge
from sinks.warehouse.staging import SEQUENCE


def delete_insert(d: Dialect, m: Merge) -> list[str]:
    """Statements that apply one row per key."""
    q = d.quote
    diff = q(m.name)
    is_row = f"d.{q(OPERATION)} <> 'DELETE'"
    names = [*m.key, *m.changed, *m.back]
    values = [f"d.{q(c)}" for c in (*m.key, *m.changed)] + list(m.back.values())
    same = d.same(m.key, "t", "d")
    older = f" AND coalesce(t.{q(m.guard)}, 0) <= d.{q(SEQUENCE)}" if m.guard else ""
    there = f"SELECT 1 FROM {m.table} AS t WHERE {same}"
    statements = [d.temporary(m.name, _filled(d, m))]
    leave = ""
    if m.gone is not None:
        on = f"{same} AND d.{q(OPERATION)} = 'DELETE'{older}"
        statements.append(d.update_joined(m.table, diff, "d", m.gone, on))
        leave = f" AND {is_row}"
    statements += [
        d.delete_joined(m.table, diff, "d", f"{same}{older}{leave}"),
        f"INSERT INTO {m.table} ({', '.join(map(q, names))}) SELECT {', '.join(values)} "
        f"FROM {diff} AS d WHERE {is_row} AND NOT EXISTS ({there})",
        d.drop_temporary(m.name),
    ]
    return statements


def _filled(d: Dialect, m: Merge) -> str:
    """The diff with the target's value where the source did not send one."""
    if not m.keep:
        return m.query
    q = d.quote
    columns = [f"d.{q(c)}" for c in (*m.key, *m.changed) if c not in m.keep]
    columns += [f"{m.kept(d, c)} AS {q(c)}" for c in m.keep]
    extra = [OPERATION] + ([] if SEQUENCE in m.values else [SEQUENCE])
    columns += [f"d.{q(c)}" for c in extra]
    return (
        f"SELECT {', '.join(columns)} FROM ({m.query}) AS d "
        f"LEFT JOIN {m.table} AS t ON {d.same(m.key, 't', 'd')}"
    )
