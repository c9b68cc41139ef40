"""The INSERTs of :mod:`.keeping`: what they insert is rows of a version.

A batch is one statement, out of its staging table: the latest change of each key, the count of
each distinct row, a version of each change.
"""

from __future__ import annotations

from collections.abc import Sequence

from changefeed.options import History
from sinks.merged.history import COMMITTED_AT, OPERATION, ORDER, READ
from sinks.merged.policy import DELETED
from sinks.warehouse.applied import LAST
from sinks.warehouse.dialect import Dialect
from sinks.warehouse.merge import unapplied, unsent
from sinks.warehouse.staging import BEFORE, MISSING, SEQUENCE, TargetShape, staged_name
from sinks.warehouse.tables import StagedRows, TargetTable

IS_DELETED, ROW, COPIES, GONE, SEEN = "_is_deleted", "_row", "_copies", "_gone", "_seen"
NEXT, CURRENT, SEEN_LAST, COPY = "_next", "_current", "_last", "_copy"
_ENDED, _ONE = "_ended", "_one"
#: Names that columns of a source may not have.
OURS = frozenset(
    {IS_DELETED, ROW, COPIES, GONE, SEEN, NEXT, CURRENT, SEEN_LAST, COPY, _ENDED, _ONE}
)

# ------------------------------------------------------------------------------ one row per key


def upsert(table: TargetTable, staged: StagedRows) -> str:
    """The changes of a batch, one of each key, as rows of their versions."""
    d, shape, soft = table.d, staged.shape, table.policy.soft
    q = d.quote
    gone = f"s.{q(OPERATION)} = 'DELETE'"
    key = _key(table, shape)
    values = list(_typed(table, shape, "s"))
    for i, name in enumerate(shape.names):
        there = f"t.{q(name)}"
        if name in key:
            continue
        if i in staged.missing:  # of a row that is deleted nothing stays: another has its key now
            live = f"if(t.{q(DELETED)}, NULL, {there})" if soft else there
            values[i] = f"if({unsent(d, i)}, {live}, {values[i]})"
        if soft:
            values[i] = f"if({gone}, {there}, {values[i]})"
    names = [*shape.names, SEQUENCE, IS_DELETED]
    values += [f"s.{q(SEQUENCE)}", "0" if soft else gone]
    if soft:
        names.append(DELETED)
        values.append(gone)
    rows = f"{staged.staging} AS s"
    where = f"{staged.where(d)} AND {unapplied(table, staged)}"
    if soft or staged.missing:
        unkept = [shape.names[i] for i in sorted(staged.missing)]
        wanted = [*shape.names, DELETED] if soft else [*shape.key, *unkept]
        same = " AND ".join(f"{value} = t.{q(name)}" for name, value in key.items())
        rows += f" LEFT JOIN ({_present(table, staged, wanted)}) AS t ON {same}"
    if soft:
        where += f" AND NOT ({gone} AND t.{q(SEQUENCE)} = 0)"
    return (
        f"INSERT INTO {table.name} ({', '.join(map(q, names))}) SELECT {', '.join(values)} "
        f"FROM {rows} WHERE {where}"
    )


def _present(table: TargetTable, staged: StagedRows, names: Sequence[str]) -> str:
    """SELECT of the rows that the target has of the keys of a batch."""
    d, shape = table.d, staged.shape
    q = d.quote
    key = ", ".join(map(q, shape.key))
    asked = ", ".join(_key(table, shape).values())
    return (
        f"SELECT {', '.join(map(q, (*names, SEQUENCE)))} FROM {table.name} FINAL WHERE ({key}) IN "
        f"(SELECT {asked} FROM {staged.staging} AS s WHERE {staged.where(d)})"
    )


def _key(table: TargetTable, shape: TargetShape) -> dict[str, str]:
    """Key column -> its value as it is kept, of a staged row."""
    d = table.d
    return {
        c.name: d.rule(c, key=True).of(f"s.{d.quote(c.name)}") for c in shape.schema.key_columns
    }


def end_rows(table: TargetTable, shape: TargetShape, version: int, where: str) -> str:
    """Rows end at a version: marked for readers, or for the engine."""
    q = table.d.quote
    if table.policy.soft:
        ended = f"{version} AS {q(SEQUENCE)}, true AS {q(DELETED)}"
        return (
            f"INSERT INTO {table.name} SELECT * REPLACE ({ended}) FROM {table.name} AS t "
            f"FINAL WHERE {where} AND NOT ifNull(t.{q(DELETED)}, false)"
        )
    names, key = (*shape.key, SEQUENCE, IS_DELETED), ", ".join(map(q, shape.key))
    return (
        f"INSERT INTO {table.name} ({', '.join(map(q, names))}) SELECT {key}, {version}, 1 "
        f"FROM {table.name} AS t FINAL WHERE {where}"
    )


# ------------------------------------------------------------------------------- no key


def _digest(d: Dialect, names: Sequence[str], prefix: str = "") -> str:
    """What tells rows apart, of a staged row: there every value is a text or a number."""
    listed = ", ".join(f"s.{d.quote(staged_name(name, prefix))}" for name in names)
    return f"sipHash128(toJSONString(tuple({listed})))"


def _counted(table: TargetTable) -> list[str]:
    return [ROW, COPIES, SEQUENCE, ORDER]


def count(table: TargetTable, staged: StagedRows) -> str:
    """Each distinct row of the batch with the copies there are of it now."""
    d, shape = table.d, staged.shape
    q = d.quote
    sides = (
        f"{_side(table, staged, '', 1, ('INSERT', 'UPDATE'))} UNION ALL "
        f"{_side(table, staged, BEFORE, -1, ('DELETE', 'UPDATE'))}"
    )
    known = (
        f"SELECT {', '.join(map(q, _counted(table)))} FROM {table.name} FINAL "
        f"WHERE {q(ROW)} IN (SELECT {q(ROW)} FROM ({sides}))"
    )
    row = ", ".join(f"any(c.{q(name)}) AS {q(name)}" for name in shape.names)
    summed = (
        f"SELECT {row}, c.{q(ROW)} AS {q(ROW)}, any(t.{q(COPIES)}) + sum(c.{q(_ONE)}) AS "
        f"{q(COPIES)}, max((c.{q(SEQUENCE)}, c.{q(ORDER)})) AS {q(SEEN_LAST)} FROM ({sides}) AS c "
        f"LEFT JOIN ({known}) AS t ON c.{q(ROW)} = t.{q(ROW)} "
        f"WHERE (c.{q(SEQUENCE)}, c.{q(ORDER)}) > (t.{q(SEQUENCE)}, t.{q(ORDER)}) "
        f"GROUP BY c.{q(ROW)}"
    )
    last = [f"tupleElement(n.{q(SEEN_LAST)}, {place})" for place in (1, 2)]
    values = [*_typed(table, shape, "n"), f"n.{q(ROW)}", f"n.{q(COPIES)}", *last]
    names = [*shape.names, *_counted(table)]
    return (
        f"INSERT INTO {table.name} ({', '.join(map(q, names))}) "
        f"SELECT {', '.join(values)} FROM ({summed}) AS n"
    )


def _side(
    table: TargetTable, staged: StagedRows, prefix: str, one: int, operations: Sequence[str]
) -> str:
    """SELECT of the rows that came (the row after), or of those that went (the row before)."""
    d, names = table.d, staged.shape.names
    q = d.quote
    listed = [f"s.{q(staged_name(name, prefix))} AS {q(name)}" for name in names]
    listed += [f"{_digest(d, names, prefix)} AS {q(ROW)}", f"{one} AS {q(_ONE)}"]
    listed += [f"s.{q(name)} AS {q(name)}" for name in (SEQUENCE, ORDER)]
    return (
        f"SELECT {', '.join(listed)} FROM {staged.staging} AS s WHERE {staged.where(d)} AND "
        f"s.{q(OPERATION)} IN ({', '.join(map(d.literal, operations))}) AND "
        f"{unapplied(table, staged)}"
    )


def _typed(table: TargetTable, shape: TargetShape, alias: str) -> list[str]:
    d, keys = table.d, () if shape.keyless else shape.schema.key
    return [
        d.rule(c, key=i in keys).of(f"{alias}.{d.quote(c.name)}")
        for i, c in enumerate(shape.columns)
    ]


def no_copies(table: TargetTable, version: int, seq: int, where: str) -> str:
    q = table.d.quote
    ended = f"0 AS {q(COPIES)}, {version} AS {q(SEQUENCE)}, {seq} AS {q(ORDER)}"
    return (
        f"INSERT INTO {table.name} SELECT * REPLACE ({ended}) FROM {table.name} AS t "
        f"FINAL WHERE {where} AND t.{q(COPIES)} <> 0"
    )


def replace_rows(table: TargetTable, shape: TargetShape, version: int) -> str:
    """The copies are those that the scan found."""
    d = table.d
    q = d.quote
    digest = _digest(d, shape.names)
    row = ", ".join(f"any(s.{q(name)}) AS {q(name)}" for name in shape.names)
    found = (
        f"SELECT {row}, {digest} AS {q(ROW)}, count() AS {q(COPIES)} FROM {table.scan} AS s "
        f"GROUP BY {digest}"
    )
    names = [*shape.names, *_counted(table)]
    values = [*_typed(table, shape, "n"), f"n.{q(ROW)}", f"toInt64(n.{q(COPIES)})"]
    left = [*(f"t.{q(name)}" for name in shape.names), f"t.{q(ROW)}", "toInt64(0)"]
    at = f"toInt64({version}), toInt64({LAST})"
    return (
        f"INSERT INTO {table.name} ({', '.join(map(q, names))}) "
        f"SELECT {', '.join(values)}, {at} FROM ({found}) AS n UNION ALL "
        f"SELECT {', '.join(left)}, {at} FROM {table.name} AS t FINAL WHERE t.{q(COPIES)} <> 0 "
        f"AND t.{q(SEQUENCE)} <= {version} "
        f"AND t.{q(ROW)} NOT IN (SELECT {digest} FROM {table.scan} AS s)"
    )


# ------------------------------------------------------------------------------- history


def append(table: TargetTable, staged: StagedRows) -> str:
    d, shape = table.d, staged.shape
    q = d.quote
    names = [*shape.names, SEQUENCE, ORDER, OPERATION, COMMITTED_AT, ROW]
    own = [f"s.{q(name)}" for name in (SEQUENCE, ORDER, OPERATION)]
    own.append(d.instant(f"s.{q(SEQUENCE)}"))
    into = f"INSERT INTO {table.name} ({', '.join(map(q, names))})"
    values, rows = _carried(table, staged)
    return f"{into} SELECT {', '.join([*values, *own, _digest(d, shape.key)])} FROM {rows}"


def _carried(table: TargetTable, staged: StagedRows) -> tuple[list[str], str]:
    """The typed columns of a batch's rows ``s``, and the FROM clause. A value that the round does
    not have is that of the target's last version."""
    d, shape = table.d, staged.shape
    q = d.quote
    values, rows = _typed(table, shape, "s"), f"{staged.staging} AS s"
    for i in staged.missing:
        values[i] = f"if({unsent(d, i)}, t.{q(shape.names[i])}, {values[i]})"
    if staged.missing:
        same = [f"{value} = t.{q(name)}" for name, value in _key(table, shape).items()]
        rows += f" LEFT JOIN ({_before(table, staged)}) AS t ON {' AND '.join(same)}"
    return values, f"{rows} WHERE {staged.where(d)} AND {unapplied(table, staged)}"


def _before(table: TargetTable, staged: StagedRows) -> str:
    """SELECT of what the target has last of the keys of which the batch lacks values, unless that
    is a delete."""
    d, shape = table.d, staged.shape
    q = d.quote
    key = ", ".join(map(q, shape.key))
    asked = (
        f"({key}) IN (SELECT {', '.join(_key(table, shape).values())} FROM {staged.staging} AS s "
        f"WHERE {staged.where(d)} AND isNotNull(s.{q(MISSING)}))"
    )
    if table.policy.history is History.SCD2:
        return f"{_current(table, shape)} AND {asked}"
    # A scan sees all changes of its version.
    place = f"({q(SEQUENCE)}, {q(OPERATION)} = '{READ}', {q(ORDER)})"
    listed = [
        f"tupleElement(argMax(tuple({q(name)}), {place}), 1) AS {q(f'{name}_')}"
        for i, name in enumerate(shape.names)
        if i not in shape.schema.key
    ]
    listed.append(f"argMax({q(OPERATION)}, {place}) AS {q(_ENDED)}")
    latest = (
        f"SELECT {key}, {', '.join(listed)} FROM {table.name} FINAL WHERE {asked} GROUP BY {key}"
    )
    names = ", ".join(
        q(name) if i in shape.schema.key else f"{q(f'{name}_')} AS {q(name)}"
        for i, name in enumerate(shape.names)
    )
    return f"SELECT {names} FROM ({latest}) WHERE {q(_ENDED)} <> 'DELETE'"


def versions(table: TargetTable, staged: StagedRows) -> str:
    """One version per key and transaction."""
    d = table.d
    q = d.quote
    values, rows = _carried(table, staged)
    names = [*staged.shape.names, SEQUENCE, GONE, SEEN]
    values += [f"s.{q(SEQUENCE)}", f"s.{q(OPERATION)} = 'DELETE'", "0"]
    return (
        f"INSERT INTO {table.name} ({', '.join(map(q, names))}) SELECT {', '.join(values)} "
        f"FROM {rows}"
    )


def scanned_versions(table: TargetTable, staged: StagedRows) -> str:
    """Rows of a scan: a version of those that differ from the current one, else a mark."""
    d, shape = table.d, staged.shape
    q = d.quote
    equal = " AND ".join(
        f"ifNull(x.{q(n)} = t.{q(n)}, isNull(x.{q(n)}) AND isNull(t.{q(n)}))" for n in shape.names
    )
    typed = ", ".join(
        f"{value} AS {q(c.name)}"
        for value, c in zip(_typed(table, shape, "s"), shape.columns, strict=True)
    )
    rows = (
        f"SELECT {typed}, s.{q(SEQUENCE)} AS {q(SEQUENCE)} FROM {staged.staging} AS s "
        f"WHERE {staged.where(d)} AND {unapplied(table, staged)}"
    )
    asked = ", ".join(_key(table, shape).values())
    key = ", ".join(map(q, shape.key))
    current = (
        f"{_current(table, shape)} AND ({key}) IN "
        f"(SELECT {asked} FROM {staged.staging} AS s WHERE {staged.where(d)})"
    )
    listed = ", ".join(f"x.{q(name)}" for name in (*shape.names, SEQUENCE))
    names = [*shape.names, SEQUENCE, GONE, SEEN]
    return (
        f"INSERT INTO {table.name} ({', '.join(map(q, names))}) "
        f"SELECT {listed}, 0, t.{q(SEQUENCE)} <> 0 AND {equal} FROM ({rows}) AS x "
        f"LEFT JOIN ({current}) AS t ON {d.same(shape.key, 'x', 't')}"
    )


def _current(table: TargetTable, shape: TargetShape) -> str:
    """SELECT of the current versions; more conditions may follow."""
    q = table.d.quote
    key = ", ".join(map(q, shape.key))
    newest = (
        f"SELECT {key}, max({q(SEQUENCE)}) FROM {table.name} FINAL "
        f"WHERE {q(SEEN)} = 0 GROUP BY {key}"
    )
    return (
        f"SELECT {', '.join(map(q, (*shape.names, SEQUENCE)))} FROM {table.name} FINAL "
        f"WHERE {q(SEEN)} = 0 AND {q(GONE)} = 0 AND ({key}, {q(SEQUENCE)}) IN ({newest})"
    )


def end_versions(table: TargetTable, shape: TargetShape, version: int, where: str) -> str:
    """Current versions end. ``where`` is about ``c``: a key with the number of its current version
    and that at which it was seen last."""
    q = table.d.quote
    key = ", ".join(map(q, shape.key))
    current = (
        f"SELECT {key}, maxIf({q(SEQUENCE)}, {q(SEEN)} = 0) AS {q(CURRENT)}, "
        f"max({q(SEQUENCE)}) AS {q(SEEN_LAST)}, "
        f"argMaxIf({q(GONE)}, {q(SEQUENCE)}, {q(SEEN)} = 0) AS {q(_ENDED)} "
        f"FROM {table.name} FINAL GROUP BY {key}"
    )
    names = ", ".join(map(q, (*shape.key, SEQUENCE, GONE, SEEN)))
    listed = ", ".join(f"c.{q(name)}" for name in shape.key)
    return (
        f"INSERT INTO {table.name} ({names}) SELECT {listed}, {version}, 1, 0 "
        f"FROM ({current}) AS c WHERE c.{q(_ENDED)} = 0 AND {where}"
    )
