"""The INSERTs of :mod:`.keeping`: what they insert is rows of a version.

A batch is one statement, out of its staging table: the latest change of each key, the count of
each distinct row, a version of each change. In SQL ``staged`` is a row of the staging table, and
``target`` one of the table of rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from changefeed.options import History
from sinks.merged.history import COMMITTED_AT, OPERATION, ORDER, READ
from sinks.merged.policy import DELETED
from sinks.warehouse.applied import LAST
from sinks.warehouse.dialect import Dialect
from sinks.warehouse.keyless import one_copy
from sinks.warehouse.merge import unapplied, unsent
from sinks.warehouse.staging import MISSING, SEQUENCE, TargetShape
from sinks.warehouse.tables import StagedRows, TargetTable

IS_DELETED, ROW, COPIES, GONE, SEEN = "_is_deleted", "_row", "_copies", "_gone", "_seen"
NEXT, CURRENT, SEEN_LAST, COPY = "_next", "_current", "_last", "_copy"
_ENDED, _ONE = "_ended", "_one"
#: Names that columns of a source may not have.
OURS = frozenset(
    {IS_DELETED, ROW, COPIES, GONE, SEEN, NEXT, CURRENT, SEEN_LAST, COPY, _ENDED, _ONE}
)


def _insert(table: TargetTable, values: Mapping[str, str], rows: str) -> str:
    """INSERT of column -> expression; ``rows`` is what follows FROM."""
    columns = table.d.listed(values)
    return f"INSERT INTO {table.name} ({columns}) SELECT {', '.join(values.values())} FROM {rows}"


def _unapplied(table: TargetTable, staged: StagedRows) -> str:
    """What follows FROM for the staged rows that were not applied; a join may come before WHERE."""
    return f"WHERE {staged.where(table.d)} AND {unapplied(table, staged)}"


def _keys(table: TargetTable, staged: StagedRows, lacking: str = "") -> str:
    """SQL: a row has one of the keys of a batch."""
    d, shape = table.d, staged.shape
    wanted = ", ".join(_key(table, shape).values())
    return (
        f"({d.listed(shape.key)}) IN (SELECT {wanted} FROM {staged.staging} AS staged "
        f"WHERE {staged.where(d)}{lacking})"
    )


def _key(table: TargetTable, shape: TargetShape) -> dict[str, str]:
    return shape.typed(table.d, "staged", shape.schema.key)


def _same_key(table: TargetTable, shape: TargetShape) -> str:
    key = _key(table, shape)
    return " AND ".join(f"{value} = target.{table.d.quote(name)}" for name, value in key.items())


# ------------------------------------------------------------------------------ one row per key


def upsert(table: TargetTable, staged: StagedRows) -> str:
    """The changes of a batch, one of each key, as rows of their versions."""
    d, shape, soft = table.d, staged.shape, table.policy.soft
    q = d.quote
    gone = f"staged.{q(OPERATION)} = 'DELETE'"
    values = shape.typed(d, "staged")
    for i, name in enumerate(shape.names):
        if i in shape.schema.key:
            continue
        there = f"target.{q(name)}"
        if i in staged.missing:  # of a row that is deleted nothing stays: another has its key now
            live = f"if(target.{q(DELETED)}, NULL, {there})" if soft else there
            values[name] = f"if({unsent(d, i)}, {live}, {values[name]})"
        if soft:
            values[name] = f"if({gone}, {there}, {values[name]})"
    values[SEQUENCE] = f"staged.{q(SEQUENCE)}"
    values[IS_DELETED] = "0" if soft else gone
    if soft:
        values[DELETED] = gone
    rows = f"{staged.staging} AS staged "
    if soft or staged.missing:
        unkept = [shape.names[i] for i in sorted(staged.missing)]
        wanted = [*shape.names, DELETED] if soft else [*shape.key, *unkept]
        present = (
            f"SELECT {d.listed((*wanted, SEQUENCE))} FROM {table.name} FINAL "
            f"WHERE {_keys(table, staged)}"
        )
        rows += f"LEFT JOIN ({present}) AS target ON {_same_key(table, shape)} "
    rows += _unapplied(table, staged)
    if soft:
        rows += f" AND NOT ({gone} AND target.{q(SEQUENCE)} = 0)"
    return _insert(table, values, rows)


def end_rows(table: TargetTable, shape: TargetShape, version: int, where: str) -> str:
    """Rows end at a version: marked for readers, or for the engine. ``where`` is about
    ``target``."""
    d = table.d
    q = d.quote
    rows = f"{table.name} AS target FINAL WHERE {where}"
    if table.policy.soft:
        ended = f"{version} AS {q(SEQUENCE)}, true AS {q(DELETED)}"
        return (
            f"INSERT INTO {table.name} SELECT * REPLACE ({ended}) FROM {rows} "
            f"AND NOT ifNull(target.{q(DELETED)}, false)"
        )
    key = {name: q(name) for name in shape.key}
    return _insert(table, {**key, SEQUENCE: f"{version}", IS_DELETED: "1"}, rows)


# ------------------------------------------------------------------------------- no key


def _digest(d: Dialect, names: Sequence[str]) -> str:
    """What distinguishes a staged row, where every value is a text or a number."""
    return f"sipHash128(toJSONString(tuple({d.listed(names, 'staged')})))"


def _staged_columns(d: Dialect, names: Sequence[str]) -> str:
    return ", ".join(f"staged.{d.quote(name)} AS {d.quote(name)}" for name in names)


def count(table: TargetTable, staged: StagedRows) -> str:
    """Each distinct row of the batch with the copies there are of it now."""
    d, shape = table.d, staged.shape
    q = d.quote
    moved = (
        f"SELECT {_staged_columns(d, (*shape.names, SEQUENCE, ORDER))}, "
        f"{_digest(d, shape.names)} AS {q(ROW)}, {one_copy(d)} AS {q(_ONE)} "
        f"FROM {staged.staging} AS staged {_unapplied(table, staged)}"
    )
    known = (
        f"SELECT {d.listed((ROW, COPIES, SEQUENCE, ORDER))} FROM {table.name} FINAL "
        f"WHERE {q(ROW)} IN (SELECT {q(ROW)} FROM ({moved}))"
    )
    row = ", ".join(f"any(moved.{q(name)}) AS {q(name)}" for name in shape.names)
    last = d.listed((SEQUENCE, ORDER), "moved")
    net = (
        f"SELECT {row}, moved.{q(ROW)} AS {q(ROW)}, "
        f"any(target.{q(COPIES)}) + sum(moved.{q(_ONE)}) AS {q(COPIES)}, "
        f"max(({last})) AS {q(SEEN_LAST)} FROM ({moved}) AS moved "
        f"LEFT JOIN ({known}) AS target ON moved.{q(ROW)} = target.{q(ROW)} "
        f"WHERE ({last}) > ({d.listed((SEQUENCE, ORDER), 'target')}) GROUP BY moved.{q(ROW)}"
    )
    values = shape.typed(d, "net") | {name: f"net.{q(name)}" for name in (ROW, COPIES)}
    for place, name in enumerate((SEQUENCE, ORDER), 1):
        values[name] = f"tupleElement(net.{q(SEEN_LAST)}, {place})"
    return _insert(table, values, f"({net}) AS net")


def no_copies(table: TargetTable, version: int, seq: int, where: str) -> str:
    """No copy of any row is left; ``where`` is about ``target``."""
    q = table.d.quote
    ended = f"0 AS {q(COPIES)}, {version} AS {q(SEQUENCE)}, {seq} AS {q(ORDER)}"
    return (
        f"INSERT INTO {table.name} SELECT * REPLACE ({ended}) FROM {table.name} AS target "
        f"FINAL WHERE {where} AND target.{q(COPIES)} <> 0"
    )


def replace_rows(table: TargetTable, shape: TargetShape, version: int) -> str:
    """The copies are those that the scan found."""
    d = table.d
    q = d.quote
    digest = _digest(d, shape.names)
    row = ", ".join(f"any(staged.{q(name)}) AS {q(name)}" for name in shape.names)
    found = (
        f"SELECT {row}, {digest} AS {q(ROW)}, count() AS {q(COPIES)} FROM {table.scan} AS staged "
        f"GROUP BY {digest}"
    )
    at = {SEQUENCE: f"toInt64({version})", ORDER: f"toInt64({LAST})"}
    values = shape.typed(d, "found")
    values |= {ROW: f"found.{q(ROW)}", COPIES: f"toInt64(found.{q(COPIES)})"} | at
    left = {name: f"target.{q(name)}" for name in (*shape.names, ROW)}
    left |= {COPIES: "toInt64(0)"} | at
    return (
        f"{_insert(table, values, f'({found}) AS found')} UNION ALL "
        f"SELECT {', '.join(left.values())} FROM {table.name} AS target FINAL "
        f"WHERE target.{q(COPIES)} <> 0 AND target.{q(SEQUENCE)} <= {version} "
        f"AND target.{q(ROW)} NOT IN (SELECT {digest} FROM {table.scan} AS staged)"
    )


# ------------------------------------------------------------------------------- history


def append(table: TargetTable, staged: StagedRows) -> str:
    """Every change is a row."""
    d, shape = table.d, staged.shape
    values, rows = _carried(table, staged)
    values |= {name: f"staged.{d.quote(name)}" for name in (SEQUENCE, ORDER, OPERATION)}
    values[COMMITTED_AT] = d.instant(values[SEQUENCE])
    values[ROW] = _digest(d, shape.key)
    return _insert(table, values, rows)


def _carried(table: TargetTable, staged: StagedRows) -> tuple[dict[str, str], str]:
    """The typed columns of a batch's rows, and what follows FROM. A value that the round does not
    have is that of the target's last version."""
    d, shape = table.d, staged.shape
    values, rows = shape.typed(d, "staged"), f"{staged.staging} AS staged "
    for i in staged.missing:
        name = shape.names[i]
        values[name] = f"if({unsent(d, i)}, target.{d.quote(name)}, {values[name]})"
    if staged.missing:
        before = _last_versions(table, staged)
        rows += f"LEFT JOIN ({before}) AS target ON {_same_key(table, shape)} "
    return values, rows + _unapplied(table, staged)


def _last_versions(table: TargetTable, staged: StagedRows) -> str:
    """SELECT of what the target has last of the keys of which the batch lacks values, unless that
    is a delete."""
    d, shape = table.d, staged.shape
    q = d.quote
    asked = _keys(table, staged, f" AND isNotNull(staged.{q(MISSING)})")
    if table.policy.history is History.SCD2:
        return f"{_current(table, shape)} AND {asked}"
    # A scan sees all changes of its version.
    place = f"({q(SEQUENCE)}, {q(OPERATION)} = '{READ}', {q(ORDER)})"
    # Other names inside, because a condition would mean the aggregate by the column's name.
    inside = {name: f"{name}_" for name in shape.names if name not in shape.key}
    listed = [
        f"tupleElement(argMax(tuple({q(name)}), {place}), 1) AS {q(alias)}"
        for name, alias in inside.items()
    ]
    listed.append(f"argMax({q(OPERATION)}, {place}) AS {q(_ENDED)}")
    key = d.listed(shape.key)
    latest = (
        f"SELECT {key}, {', '.join(listed)} FROM {table.name} FINAL WHERE {asked} GROUP BY {key}"
    )
    names = ", ".join(
        f"{q(inside[name])} AS {q(name)}" if name in inside else q(name) for name in shape.names
    )
    return f"SELECT {names} FROM ({latest}) WHERE {q(_ENDED)} <> 'DELETE'"


def versions(table: TargetTable, staged: StagedRows) -> str:
    """One version per key and transaction."""
    q = table.d.quote
    values, rows = _carried(table, staged)
    values[SEQUENCE] = f"staged.{q(SEQUENCE)}"
    return _insert(table, {**values, GONE: f"staged.{q(OPERATION)} = 'DELETE'", SEEN: "0"}, rows)


def scanned_versions(table: TargetTable, staged: StagedRows) -> str:
    """Rows of a scan: a version of those that differ from the current one, else a mark."""
    d, shape = table.d, staged.shape
    q = d.quote
    equal = " AND ".join(
        f"ifNull(found.{q(name)} = target.{q(name)}, "
        f"isNull(found.{q(name)}) AND isNull(target.{q(name)}))"
        for name in shape.names
    )
    typed = ", ".join(f"{sql} AS {q(name)}" for name, sql in shape.typed(d, "staged").items())
    rows = (
        f"SELECT {typed}, {_staged_columns(d, [SEQUENCE])} FROM {staged.staging} AS staged "
        f"{_unapplied(table, staged)}"
    )
    current = f"{_current(table, shape)} AND {_keys(table, staged)}"
    values = {name: f"found.{q(name)}" for name in (*shape.names, SEQUENCE)}
    values |= {GONE: "0", SEEN: f"target.{q(SEQUENCE)} <> 0 AND {equal}"}
    return _insert(
        table,
        values,
        f"({rows}) AS found LEFT JOIN ({current}) AS target "
        f"ON {d.same(shape.key, 'found', 'target')}",
    )


def _current(table: TargetTable, shape: TargetShape) -> str:
    """SELECT of the current versions; more conditions may follow."""
    d = table.d
    q, key = d.quote, d.listed(shape.key)
    newest = (
        f"SELECT {key}, max({q(SEQUENCE)}) FROM {table.name} FINAL "
        f"WHERE {q(SEEN)} = 0 GROUP BY {key}"
    )
    return (
        f"SELECT {d.listed((*shape.names, SEQUENCE))} FROM {table.name} FINAL "
        f"WHERE {q(SEEN)} = 0 AND {q(GONE)} = 0 AND ({key}, {q(SEQUENCE)}) IN ({newest})"
    )


def end_versions(table: TargetTable, shape: TargetShape, version: int, where: str) -> str:
    """Current versions end. ``where`` is about ``current``: a key with the number of its current
    version and that at which it was seen last."""
    d = table.d
    q, key = d.quote, d.listed(shape.key)
    current = (
        f"SELECT {key}, maxIf({q(SEQUENCE)}, {q(SEEN)} = 0) AS {q(CURRENT)}, "
        f"max({q(SEQUENCE)}) AS {q(SEEN_LAST)}, "
        f"argMaxIf({q(GONE)}, {q(SEQUENCE)}, {q(SEEN)} = 0) AS {q(_ENDED)} "
        f"FROM {table.name} FINAL GROUP BY {key}"
    )
    values = {name: f"current.{q(name)}" for name in shape.key}
    values |= {SEQUENCE: f"{version}", GONE: "1", SEEN: "0"}
    return _insert(
        table, values, f"({current}) AS current WHERE current.{q(_ENDED)} = 0 AND {where}"
    )
