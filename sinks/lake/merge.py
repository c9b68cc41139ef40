"""The SQL of one round for one table: staged rows as a source, and the MERGE that takes them.

Every statement is guarded by the row's version: a row that is newer in the target stays. A
round that is applied twice so changes nothing, besides being skipped as a whole by the
version the table has recorded.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from changefeed.core.schema import Column, TableSchema
from changefeed.core.spark_sql import literal, quoted
from changefeed.core.types import LogicalType
from changefeed.options import History
from sinks.lake.staging import MISSING, OPERATION, ORDER, SEQ, VERSION
from sinks.lake.types import spark_type, typed
from sinks.merged import history as past
from sinks.merged.history import IS_CURRENT, READ, TRUNCATE, VALID_FROM, VALID_TO
from sinks.merged.policy import Removal, TablePolicy

#: By staged key column the smallest and the largest key of a round.
Bounds = Mapping[str, tuple[object, object]]

#: What a soft-deleted row is marked in, by format: Iceberg has a use of its own for _deleted.
DELETED = {"delta": "_deleted", "iceberg": "_is_deleted"}
#: The number of a row among equal ones, where the table has no key.
NUMBER = "_occurrence"


def own_columns(policy: TablePolicy, *, keyless: bool) -> tuple[tuple[str, str], ...]:
    """Name and type of every column that is ours."""
    found = [(name, spark_type(LogicalType(kind))) for name, kind in policy.own_columns().items()]
    if keyless and policy.history is History.OFF:
        found.insert(1, (NUMBER, "bigint"))
    return tuple(found)


def word_of(operation: str) -> str:
    """SQL for what ``_operation`` says of an operation of the log."""
    cases = [f"WHEN {literal(code)} THEN {literal(word)}" for code, word in past.OPERATIONS.items()]
    return f"CASE {operation} {' '.join(cases)} END"


def truncation(target: str, policy: TablePolicy, at: int, seq: int) -> str:
    """The row that says of a table that keeps all changes that the source's was emptied."""
    own = {
        policy.sequence: str(at),
        past.OPERATION: literal(TRUNCATE),
        past.ORDER: str(seq),
        past.COMMITTED_AT: moment(str(at)),
    }
    columns = ", ".join(map(quoted, own))
    return f"INSERT INTO {target} ({columns}) VALUES ({', '.join(own.values())})"


def broken_scans(target: str, policy: TablePolicy, scanned: int) -> str:
    """Of a table that keeps all changes the rows of scans after the last whole one go."""
    return (
        f"DELETE FROM {target} WHERE {quoted(past.OPERATION)} = {literal(READ)} "
        f"AND {quoted(policy.sequence)} > {scanned}"
    )


def moment(version: str) -> str:
    """SQL for the time a version stands for, as a timestamp in microseconds."""
    return f"timestamp_micros({version} DIV 1000)"


# ------------------------------------------------------------------------------- source


def source(
    schema: TableSchema,
    policy: TablePolicy,
    view: str,
    *,
    also: Sequence[str] = (),
    missing: Collection[int] = (),
) -> str:
    """The staged rows with typed columns ``c0..cn``, ``_op`` and ``_v``; with ``_missing`` where
    values are."""
    variants = policy.variants(schema)
    columns = [
        f"{typed(c, f'c{i}', variant=i in variants)} AS c{i}" for i, c in enumerate(schema.columns)
    ]
    own = [OPERATION, VERSION, *also, *([MISSING] if missing else [])]
    return f"SELECT {', '.join([*own, *columns])} FROM {view}"


def _unsent(place: int, alias: str) -> str:
    """SQL: the round does not have the value of the row's column, which is the target's."""
    return f"coalesce({alias}.{MISSING}, '') LIKE '%,{place},%'"


def carried(
    target: str,
    schema: TableSchema,
    policy: TablePolicy,
    rows: str,
    missing: Collection[int],
    bounds: Bounds | None = None,
) -> str:
    """``rows`` of a table that keeps its past: a value that the round does not have is that of the
    target's last version."""
    values = [
        f"if({_unsent(i, 'changed')}, target.c{i}, changed.c{i}) AS c{i}"
        if i in missing
        else f"changed.c{i}"
        for i in range(len(schema.columns))
    ]
    keys = [f"c{i}" for i in schema.key]
    asked = f"SELECT {', '.join(keys)} FROM ({rows}) WHERE {MISSING} IS NOT NULL"
    same = " AND ".join(f"changed.{key} = target.{key}" for key in keys)
    own = ", ".join(f"changed.{name}" for name in (OPERATION, VERSION, SEQ, ORDER))
    return (
        f"SELECT {own}, {', '.join(values)} FROM ({rows}) AS changed "
        f"LEFT JOIN ({_last_versions(target, schema, policy, asked, bounds or {})}) AS target "
        f"ON {same}"
    )


def _last_versions(
    target: str, schema: TableSchema, policy: TablePolicy, asked: str, bounds: Bounds
) -> str:
    """The last version that the target has of the keys ``asked`` selects, unless that is a delete:
    ``c0..cn``."""
    row = ", ".join(f"target.{quoted(c.name)} AS c{i}" for i, c in enumerate(schema.columns))
    some = (
        f"FROM {target} AS target LEFT SEMI JOIN ({asked}) AS changed "
        f"ON {_matching(schema, bounds)}"
    )
    if policy.history is History.SCD2:
        return f"SELECT {row} {some} WHERE target.{quoted(IS_CURRENT)}"
    # A scan sees all changes of its version.
    operation = f"target.{quoted(past.OPERATION)}"
    sequence, order = quoted(policy.sequence), quoted(past.ORDER)
    place = f"struct(target.{sequence}, {operation} = {literal(READ)}, target.{order})"
    key = ", ".join(f"target.{quoted(schema.columns[i].name)}" for i in schema.key)
    latest = f"max_by(struct({operation} AS op, {row}), {place}) AS latest"
    listed = ", ".join(f"latest.c{i}" for i in range(len(schema.columns)))
    return (
        f"SELECT {listed} FROM (SELECT {latest} {some} GROUP BY {key}) WHERE latest.op <> 'DELETE'"
    )


# ------------------------------------------------------------------------------- statements


def merge(
    target: str,
    schema: TableSchema,
    policy: TablePolicy,
    rows: str,
    *,
    bounds: Bounds | None = None,
    missing: Collection[int] = (),
) -> str:
    """One MERGE of ``rows`` (a query) into a table that holds the last state of each row.

    Args:
        bounds: by staged key column the smallest and largest key, so that files without any
            of them are not read.
        missing: places of columns whose value some rows lack.
    """
    sequence = f"target.{quoted(policy.sequence)}"
    newer = f"(changed.{VERSION} >= {sequence} OR {sequence} IS NULL)"
    values = {
        c.name: _kept(i, c, policy) if i in missing else f"changed.c{i}"
        for i, c in enumerate(schema.columns)
    }
    own = {policy.sequence: f"changed.{VERSION}"}
    is_gone = f"changed.{OPERATION} = 'd'"
    if policy.soft:
        own[policy.deleted] = "false"
        number = f"{quoted(policy.sequence)} = changed.{VERSION}"
        gone = f"UPDATE SET {quoted(policy.deleted)} = true, {number}"
    else:
        gone = "DELETE"
    sets = [f"{quoted(name)} = {value}" for name, value in (values | own).items()]
    inserted = {c.name: f"changed.c{i}" for i, c in enumerate(schema.columns)} | own
    return (
        f"MERGE INTO {target} AS target USING ({rows}) AS changed "
        f"ON {_matching(schema, bounds or {})} "
        f"WHEN MATCHED AND {is_gone} AND {newer} THEN {gone} "
        f"WHEN MATCHED AND NOT {is_gone} AND {newer} THEN UPDATE SET {', '.join(sets)} "
        f"WHEN NOT MATCHED AND NOT {is_gone} THEN INSERT "
        f"({', '.join(map(quoted, inserted))}) VALUES ({', '.join(inserted.values())})"
    )


def _kept(place: int, column: Column, policy: TablePolicy) -> str:
    there = f"target.{quoted(column.name)}"
    if policy.soft:  # of a row that is deleted nothing stays: another has its key now
        there = f"if(coalesce(target.{quoted(policy.deleted)}, false), NULL, {there})"
    return f"if({_unsent(place, 'changed')}, {there}, changed.c{place})"


def _matching(schema: TableSchema, bounds: Bounds) -> str:
    parts = [
        f"target.{quoted(schema.columns[number].name)} = changed.c{number}" for number in schema.key
    ]
    return " AND ".join(parts + within(schema, bounds))


def within(schema: TableSchema, bounds: Bounds) -> list[str]:
    """What is true of each row of ``target`` whose key lies in ``bounds`` (by staged column)."""
    parts = []
    for number in schema.key:
        if f"c{number}" in bounds:
            column = f"target.{quoted(schema.columns[number].name)}"
            low, high = bounds[f"c{number}"]
            parts += [f"{column} >= {_bound(low)}", f"{column} <= {_bound(high)}"]
    return parts


def _bound(value: object) -> str:
    return literal(value) if isinstance(value, str) else str(value)


def comparable(column: Column) -> bool:
    """The bounds of a column's log values are bounds of its typed values."""
    return column.physical != "string" or spark_type(column.logical) == "string"


def append(target: str, schema: TableSchema, policy: TablePolicy, rows: str) -> str:
    """Every row of ``rows`` (a query) as a row of a table that keeps all changes."""
    names = [c.name for c in schema.columns]
    own = {
        policy.sequence: VERSION,
        past.OPERATION: word_of(OPERATION),
        past.ORDER: SEQ,
        past.COMMITTED_AT: moment(VERSION),
    }
    columns = ", ".join(map(quoted, [*names, *own]))
    values = ", ".join([*(f"c{i}" for i in range(len(names))), *own.values()])
    return f"INSERT INTO {target} ({columns}) SELECT {values} FROM ({rows})"


def versions(
    target: str,
    schema: TableSchema,
    policy: TablePolicy,
    rows: str,
    bounds: Bounds | None = None,
) -> str:
    """One MERGE that closes the current version of each changed key and adds the new ones, out of
    ``rows``, a query with the last change of each key and transaction.

    Each key has one row that may match, its first change, which ends what was current; and
    for every version a row that matches nothing and is inserted.
    """
    keys = [f"c{i}" for i in schema.key]
    names = [c.name for c in schema.columns]
    window = f"(PARTITION BY {', '.join(keys)} ORDER BY {VERSION}, {ORDER})"
    then = f"lead({OPERATION}) OVER {window} AS _then, " if policy.soft else ""
    ordered = (
        f"SELECT *, lead({VERSION}) OVER {window} AS _next, {then}"
        f"row_number() OVER {window} AS _nth FROM ({rows})"
    )
    # Two rows out of one, so that the staged rows are read and sorted once.
    closing = (
        f"SELECT *, explode(if(_nth = 1, array(true, false), array(false))) AS _closes "
        f"FROM ({ordered})"
    )
    columns = {name: f"changed.c{i}" for i, name in enumerate(names)}
    columns |= {
        policy.sequence: f"changed.{VERSION}",
        VALID_FROM: moment(f"changed.{VERSION}"),
        VALID_TO: moment("changed._next"),
        IS_CURRENT: "changed._next IS NULL",
    }
    if policy.soft:
        columns[policy.deleted] = "changed._then <=> 'd'"
    current, sequence = f"target.{quoted(IS_CURRENT)}", f"target.{quoted(policy.sequence)}"
    ends = f"changed._closes AND {current} AND {sequence} < changed.{VERSION}"
    ended = {VALID_TO: moment(f"changed.{VERSION}"), IS_CURRENT: "false"}
    if policy.soft:
        ended[policy.deleted] = f"changed.{OPERATION} = 'd'"
    sets = ", ".join(f"{quoted(name)} = {value}" for name, value in ended.items())
    return (
        f"MERGE INTO {target} AS target USING ({closing}) AS changed "
        f"ON {ends} AND {_matching(schema, bounds or {})} "
        f"WHEN MATCHED AND changed._closes THEN UPDATE SET {sets} "
        f"WHEN NOT MATCHED AND NOT changed._closes AND changed.{OPERATION} <> 'd' THEN INSERT "
        f"({', '.join(map(quoted, columns))}) VALUES ({', '.join(columns.values())})"
    )


def counted(target: str, schema: TableSchema, policy: TablePolicy, view: str) -> str:
    """One MERGE into a table whose rows have no key: equal rows are numbered from 1, and as
    many are added behind or taken from the end as the changes say in sum."""
    names = [quoted(c.name) for c in schema.columns]
    columns = [f"c{i}" for i in range(len(names))]
    pairs = [f"target.{name} <=> net.{c}" for name, c in zip(names, columns, strict=True)]
    same = " AND ".join(pairs)
    count = f"sum(CASE {OPERATION} WHEN 'd' THEN -1 WHEN 'u' THEN 0 ELSE 1 END)"
    net = (
        f"SELECT {', '.join(columns)}, max({VERSION}) AS {VERSION}, {count} AS _change "
        f"FROM ({source(schema, policy, view)}) GROUP BY {', '.join(columns)} HAVING {count} <> 0"
    )
    present = (
        f"SELECT {', '.join(names)}, max({quoted(NUMBER)}) AS _copies FROM {target} AS target "
        f"LEFT SEMI JOIN ({net}) AS net ON {same} GROUP BY {', '.join(names)}"
    )
    with_copies = (
        f"SELECT net.*, coalesce(target._copies, 0) AS _copies FROM ({net}) AS net "
        f"LEFT JOIN ({present}) AS target ON {same}"
    )
    # No number of a row is below 1, and a sequence from 1 to 0 would run backwards.
    left = "greatest(_copies + _change, 0)"
    numbers = (
        "if(_change > 0, sequence(_copies + 1, _copies + _change), "
        f"if(_copies > {left}, sequence({left} + 1, _copies), array()))"
    )
    rows = f"SELECT *, explode({numbers}) AS _number FROM ({with_copies})"
    inserted = dict(zip(names, (f"net.{c}" for c in columns), strict=True))
    inserted |= {quoted(policy.sequence): f"net.{VERSION}", quoted(NUMBER): "net._number"}
    return (
        f"MERGE INTO {target} AS target USING ({rows}) AS net "
        f"ON target.{quoted(NUMBER)} = net._number AND {same} "
        f"WHEN MATCHED AND net._change < 0 THEN DELETE "
        f"WHEN NOT MATCHED AND net._change > 0 THEN INSERT "
        f"({', '.join(inserted)}) VALUES ({', '.join(inserted.values())})"
    )


def numbered(schema: TableSchema, policy: TablePolicy, view: str) -> str:
    """The rows of a scan of a table without a key, equal ones numbered."""
    columns = ", ".join(f"c{i}" for i in range(len(schema.columns)))
    names = [f"c{i} AS {quoted(c.name)}" for i, c in enumerate(schema.columns)]
    return (
        f"SELECT {', '.join(names)}, _newest AS {quoted(policy.sequence)}, "
        f"explode(sequence(1L, _copies)) AS {quoted(NUMBER)} FROM (SELECT {columns}, "
        f"max({VERSION}) AS _newest, count(*) AS _copies FROM ({source(schema, policy, view)}) "
        f"GROUP BY {columns})"
    )


def scanned_versions(
    target: str,
    schema: TableSchema,
    policy: TablePolicy,
    rows: str,
    bounds: Bounds | None = None,
) -> str:
    """One MERGE of scan rows into a table of versions. A row that is as its current version makes
    that one the scan's; one that differs ends it and begins another."""
    sequence, current = quoted(policy.sequence), quoted(IS_CURRENT)
    names = [quoted(c.name) for c in schema.columns]
    same = " AND ".join(f"target.{names[i]} = found.c{i}" for i in schema.key)
    variants = policy.variants(schema)
    others = [
        f"to_json(target.{name}) <=> to_json(found.c{i})"
        if i in variants
        else f"target.{name} <=> found.c{i}"
        for i, name in enumerate(names)
        if i not in schema.key
    ]
    known = " AND ".join([f"target.{current}", *within(schema, bounds or {})])
    # A row that matches, for the current version of its key, and one that does not, for its own.
    matching = (
        f"CASE WHEN target.{current} IS NULL THEN array(false) "
        f"WHEN target.{sequence} > found.{VERSION} THEN array() "
        f"WHEN {' AND '.join(others) or 'true'} THEN array(true) ELSE array(true, false) END"
    )
    compared = (
        f"SELECT *, size(_matching) = 2 AS _ends, explode(_matching) AS _matches FROM "
        f"(SELECT found.*, {matching} AS _matching FROM ({rows}) AS found "
        f"LEFT JOIN (SELECT * FROM {target} AS target WHERE {known}) AS target ON {same})"
    )
    ended = {VALID_TO: moment(f"changed.{VERSION}"), IS_CURRENT: "false"}
    sets = ", ".join(f"{quoted(name)} = {value}" for name, value in ended.items())
    columns = {c.name: f"changed.c{i}" for i, c in enumerate(schema.columns)}
    columns |= first_version(policy, f"changed.{VERSION}")
    return (
        f"MERGE INTO {target} AS target USING ({compared}) AS changed "
        f"ON changed._matches AND target.{current} AND {_matching(schema, bounds or {})} "
        f"WHEN MATCHED AND changed._ends THEN UPDATE SET {sets} "
        f"WHEN MATCHED THEN UPDATE SET {sequence} = changed.{VERSION} "
        f"WHEN NOT MATCHED AND NOT changed._matches THEN INSERT "
        f"({', '.join(map(quoted, columns))}) VALUES ({', '.join(columns.values())})"
    )


def first_version(policy: TablePolicy, version: str) -> dict[str, str]:
    """Our columns of a row that comes from a scan: name to SQL."""
    own = {policy.sequence: version}
    if policy.history is History.APPEND:
        own |= {
            past.OPERATION: literal(READ),
            past.ORDER: "0L",
            past.COMMITTED_AT: moment(version),
        }
    elif policy.history is History.SCD2:
        own |= {
            VALID_FROM: moment(version),
            VALID_TO: "cast(NULL AS timestamp)",
            IS_CURRENT: "true",
        }
    if policy.soft and policy.history is not History.APPEND:
        own[policy.deleted] = "false"
    return own


def remove(target: str, policy: TablePolicy, condition: str, at: int) -> str:
    """What happens to rows that ``condition`` names, at version ``at``: gone, marked, or ended.

    A table that keeps every change loses nothing.
    """
    if policy.removal is Removal.END:
        sets = f"{quoted(VALID_TO)} = {moment(str(at))}, {quoted(IS_CURRENT)} = false"
        if policy.soft:
            sets += f", {quoted(policy.deleted)} = true"
        return f"UPDATE {target} SET {sets} WHERE {quoted(IS_CURRENT)} AND {condition}"
    if policy.removal is Removal.MARK:
        sets = f"{quoted(policy.deleted)} = true, {quoted(policy.sequence)} = {at}"
        return f"UPDATE {target} SET {sets} WHERE NOT {quoted(policy.deleted)} AND {condition}"
    return f"DELETE FROM {target} WHERE {condition}"
