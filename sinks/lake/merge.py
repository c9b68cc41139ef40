"""The SQL of one round for one table: staged rows as a source, and the MERGE that takes them.

Every statement is guarded by the row's version: a row that is newer in the target stays. A
round that is applied twice so changes nothing, besides being skipped as a whole by the
version the table has recorded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from changefeed.core.schema import Column, TableSchema
from changefeed.core.spark_sql import literal, quoted
from changefeed.core.types import FLOATS, LogicalType
from changefeed.options import History
from sinks.lake.staging import MISSING, OPERATION, ORDER, SEQ, VERSION
from sinks.lake.types import spark_type, typed
from sinks.merged import history as past
from sinks.merged.fold import NEGATIVE_ZERO
from sinks.merged.history import IS_CURRENT, READ, TRUNCATE, VALID_FROM, VALID_TO
from sinks.merged.policy import Removal, TablePolicy

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


def source(schema: TableSchema, view: str, *, also: Sequence[str] = ()) -> str:
    """The staged rows with typed columns ``c0..cn``, ``_op`` and ``_v``."""
    columns = [f"{typed(c, f'c{i}')} AS c{i}" for i, c in enumerate(schema.columns)]
    return f"SELECT {', '.join([OPERATION, VERSION, *also, *columns])} FROM {view}"


def folded_source(schema: TableSchema, view: str) -> str:
    """The same where values are missing: the last row of each key, and of each column the last
    value that is known, with ``k<i>`` saying whether there is one. A delete ends what was known of
    its key: a row that comes after it, by a changed key, has nothing to do with the one before."""
    keys = {f"c{i}": _compared(schema.columns[i], f"c{i}") for i in schema.key}
    place = f"struct({VERSION}, {ORDER})"
    picked = [c if c == same else f"max_by({c}, {place}) AS {c}" for c, same in keys.items()]
    picked += [f"max_by({OPERATION}, {place}) AS {OPERATION}", f"max({VERSION}) AS {VERSION}"]
    for i, column in enumerate(schema.columns):
        if f"c{i}" in keys:
            continue
        known = (
            f"({OPERATION} = 'd' OR NOT coalesce(array_contains("
            f"from_json({MISSING}, 'array<string>'), {literal(column.name)}), false))"
        )
        picked.append(f"max_by(c{i}, {place}) FILTER (WHERE {known}) AS c{i}")
        picked.append(f"bool_or({known}) AS k{i}")
    inner = f"SELECT {', '.join(picked)} FROM {view} GROUP BY {', '.join(keys.values())}"
    flags = [f"k{i}" for i in range(len(schema.columns)) if i not in schema.key]
    return source(schema, f"({inner})", also=flags)


def _compared(column: Column, text: str) -> str:
    """SQL for the logged ``text`` of a key that is the same for values that are equal."""
    if column.logical.innermost.kind not in FLOATS:
        return text
    return f"regexp_replace({text}, {literal(NEGATIVE_ZERO)}, '0$1')"


def carried_source(
    target: str,
    schema: TableSchema,
    policy: TablePolicy,
    view: str,
    bounds: Mapping[str, tuple[object, object]] | None = None,
) -> str:
    """The staged rows of a table that keeps its past, where values are missing: one that the source
    did not send is that of the version before, of the round, else of the target.

    A key that has changed is an insert that begins what its transaction did to the key: what was
    there before has another key, and the value is not known.
    """
    keys = [f"c{i}" for i in schema.key]
    window = (
        f"(PARTITION BY {', '.join(f's.{key}' for key in keys)} ORDER BY {VERSION}, {SEQ} "
        "ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)"
    )
    values = []
    for i, column in enumerate(schema.columns):
        if i in schema.key:
            values.append(f"s.c{i}")
            continue
        lacks = (
            f"({OPERATION} = 'u' OR {OPERATION} <> 'd' AND _nth > 1) AND coalesce(array_contains("
            f"from_json({MISSING}, 'array<string>'), {literal(column.name)}), false)"
        )
        # In a struct, because a value that is known may be NULL.
        known = f"last_value(if({lacks}, NULL, struct(s.c{i} AS v))) IGNORE NULLS OVER {window}"
        values.append(f"coalesce({known}, struct(t.c{i} AS v)).v AS c{i}")
    rows = source(schema, view, also=(SEQ, ORDER, MISSING))
    asked = f"SELECT {', '.join(keys)} FROM ({rows}) WHERE {MISSING} IS NOT NULL"
    same = " AND ".join(f"s.{key} = t.{key}" for key in keys)
    nth = f"row_number() OVER (PARTITION BY {', '.join(keys)}, {VERSION} ORDER BY {SEQ}) AS _nth"
    numbered = f"SELECT *, {nth} FROM ({rows})"
    before = _before(target, schema, policy, asked, bounds or {})
    return (
        f"SELECT s.{OPERATION}, s.{VERSION}, s.{SEQ}, s.{ORDER}, {', '.join(values)} "
        f"FROM ({numbered}) AS s LEFT JOIN ({before}) AS t ON {same}"
    )


def _before(
    target: str,
    schema: TableSchema,
    policy: TablePolicy,
    asked: str,
    bounds: Mapping[str, tuple[object, object]],
) -> str:
    """The last version that the target has of the keys ``asked`` selects, unless that is a delete:
    ``c0..cn``."""
    row = ", ".join(f"t.{quoted(c.name)} AS c{i}" for i, c in enumerate(schema.columns))
    some = f"FROM {target} AS t LEFT SEMI JOIN ({asked}) AS s ON {_matching(schema, bounds)}"
    if policy.history is History.SCD2:
        return f"SELECT {row} {some} WHERE t.{quoted(IS_CURRENT)}"
    # A scan sees all changes of its version.
    operation = f"t.{quoted(past.OPERATION)}"
    sequence, order = quoted(policy.sequence), quoted(past.ORDER)
    place = f"struct(t.{sequence}, {operation} = {literal(READ)}, t.{order})"
    key = ", ".join(f"t.{quoted(schema.columns[i].name)}" for i in schema.key)
    latest = f"max_by(struct({operation} AS op, {row}), {place}) AS l"
    listed = ", ".join(f"l.c{i}" for i in range(len(schema.columns)))
    return f"SELECT {listed} FROM (SELECT {latest} {some} GROUP BY {key}) WHERE l.op <> 'DELETE'"


# ------------------------------------------------------------------------------- statements


def merge(
    target: str,
    schema: TableSchema,
    policy: TablePolicy,
    rows: str,
    *,
    bounds: Mapping[str, tuple[object, object]] | None = None,
    folded: bool = False,
) -> str:
    """One MERGE of ``rows`` (a query) into a table that holds the last state of each row.

    Args:
        bounds: by staged key column the smallest and largest key, so that files without any
            of them are not read.
        folded: ``rows`` is a :func:`folded_source`.
    """
    sequence = f"t.{quoted(policy.sequence)}"
    newer = f"(s.{VERSION} >= {sequence} OR {sequence} IS NULL)"
    values = {c.name: _value(schema, i, policy, folded) for i, c in enumerate(schema.columns)}
    own = {policy.sequence: f"s.{VERSION}"}
    if policy.soft:
        own[policy.deleted] = "false"
        gone = (
            f"UPDATE SET {quoted(policy.deleted)} = true, {quoted(policy.sequence)} = s.{VERSION}"
        )
    else:
        gone = "DELETE"
    sets = [f"{quoted(name)} = {value}" for name, value in (values | own).items()]
    inserted = {c.name: f"s.c{i}" for i, c in enumerate(schema.columns)} | own
    return (
        f"MERGE INTO {target} AS t USING ({rows}) AS s ON {_matching(schema, bounds or {})} "
        f"WHEN MATCHED AND s.{OPERATION} = 'd' AND {newer} THEN {gone} "
        f"WHEN MATCHED AND s.{OPERATION} <> 'd' AND {newer} THEN UPDATE SET {', '.join(sets)} "
        f"WHEN NOT MATCHED AND s.{OPERATION} <> 'd' THEN INSERT "
        f"({', '.join(map(quoted, inserted))}) VALUES ({', '.join(inserted.values())})"
    )


def _value(schema: TableSchema, number: int, policy: TablePolicy, folded: bool) -> str:
    if not folded or number in schema.key:
        return f"s.c{number}"
    there = f"t.{quoted(schema.columns[number].name)}"
    if policy.soft:  # of a row that is deleted nothing stays: another has its key now
        there = f"if(coalesce(t.{quoted(policy.deleted)}, false), NULL, {there})"
    return f"if(s.k{number}, s.c{number}, {there})"


def _matching(schema: TableSchema, bounds: Mapping[str, tuple[object, object]]) -> str:
    parts = [f"t.{quoted(schema.columns[number].name)} = s.c{number}" for number in schema.key]
    return " AND ".join(parts + within(schema, bounds))


def within(schema: TableSchema, bounds: Mapping[str, tuple[object, object]]) -> list[str]:
    """What is true of each row of target ``t`` whose key lies in ``bounds`` (by staged column)."""
    parts = []
    for number in schema.key:
        if f"c{number}" in bounds:
            column = f"t.{quoted(schema.columns[number].name)}"
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
    bounds: Mapping[str, tuple[object, object]] | None = None,
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
        f"SELECT *, lead({VERSION}) OVER {window} AS _next, {then}row_number() OVER {window} AS _n "
        f"FROM ({rows})"
    )
    # Two rows out of one, so that the staged rows are read and sorted once.
    closing = (
        f"SELECT *, explode(if(_n = 1, array(true, false), array(false))) AS _closes "
        f"FROM ({ordered})"
    )
    columns = {name: f"s.c{i}" for i, name in enumerate(names)}
    columns |= {
        policy.sequence: f"s.{VERSION}",
        VALID_FROM: moment(f"s.{VERSION}"),
        VALID_TO: moment("s._next"),
        IS_CURRENT: "s._next IS NULL",
    }
    if policy.soft:
        columns[policy.deleted] = "s._then <=> 'd'"
    current, sequence = f"t.{quoted(IS_CURRENT)}", f"t.{quoted(policy.sequence)}"
    ends = f"s._closes AND {current} AND {sequence} < s.{VERSION}"
    ended = {VALID_TO: moment(f"s.{VERSION}"), IS_CURRENT: "false"}
    if policy.soft:
        ended[policy.deleted] = f"s.{OPERATION} = 'd'"
    sets = ", ".join(f"{quoted(name)} = {value}" for name, value in ended.items())
    return (
        f"MERGE INTO {target} AS t USING ({closing}) AS s "
        f"ON {ends} AND {_matching(schema, bounds or {})} "
        f"WHEN MATCHED AND s._closes THEN UPDATE SET {sets} "
        f"WHEN NOT MATCHED AND NOT s._closes AND s.{OPERATION} <> 'd' THEN INSERT "
        f"({', '.join(map(quoted, columns))}) VALUES ({', '.join(columns.values())})"
    )


def last_of_each(schema: TableSchema, rows: str) -> str:
    """Of ``rows`` the last change of each key and transaction."""
    keys = ", ".join(f"c{i}" for i in schema.key)
    last = f"row_number() OVER (PARTITION BY {keys}, {VERSION} ORDER BY {SEQ} DESC)"
    return f"SELECT * FROM (SELECT *, {last} AS _rank FROM ({rows})) WHERE _rank = 1"


def counted(target: str, schema: TableSchema, policy: TablePolicy, view: str) -> str:
    """One MERGE into a table whose rows have no key: equal rows are numbered from 1, and as
    many are added behind or taken from the end as the changes say in sum."""
    names = [quoted(c.name) for c in schema.columns]
    columns = [f"c{i}" for i in range(len(names))]
    same = [f"t.{name} <=> s.{c}" for name, c in zip(names, columns, strict=True)]
    count = f"sum(CASE {OPERATION} WHEN 'd' THEN -1 WHEN 'u' THEN 0 ELSE 1 END)"
    changed = (
        f"SELECT {', '.join(columns)}, max({VERSION}) AS {VERSION}, {count} AS _n "
        f"FROM ({source(schema, view)}) GROUP BY {', '.join(columns)} HAVING {count} <> 0"
    )
    present = (
        f"SELECT {', '.join(names)}, max({quoted(NUMBER)}) AS _m FROM {target} AS t "
        f"LEFT SEMI JOIN ({changed}) AS s ON {' AND '.join(same)} GROUP BY {', '.join(names)}"
    )
    # No number of a row is below 1, and a sequence from 1 to 0 would run backwards.
    numbers = (
        "if(_n > 0, sequence(_m + 1, _m + _n), "
        "if(_m > greatest(_m + _n, 0), sequence(greatest(_m + _n, 0) + 1, _m), array()))"
    )
    rows = (
        f"SELECT *, explode({numbers}) AS _o FROM (SELECT s.*, coalesce(t._m, 0) AS _m "
        f"FROM ({changed}) AS s LEFT JOIN ({present}) AS t ON {' AND '.join(same)})"
    )
    inserted = dict(zip(names, (f"s.{c}" for c in columns), strict=True))
    inserted |= {quoted(policy.sequence): f"s.{VERSION}", quoted(NUMBER): "s._o"}
    return (
        f"MERGE INTO {target} AS t USING ({rows}) AS s "
        f"ON t.{quoted(NUMBER)} = s._o AND {' AND '.join(same)} "
        f"WHEN MATCHED AND s._n < 0 THEN DELETE "
        f"WHEN NOT MATCHED AND s._n > 0 THEN INSERT "
        f"({', '.join(inserted)}) VALUES ({', '.join(inserted.values())})"
    )


def numbered(schema: TableSchema, policy: TablePolicy, view: str) -> str:
    """The rows of a scan of a table without a key, equal ones numbered."""
    columns = ", ".join(f"c{i}" for i in range(len(schema.columns)))
    names = [f"c{i} AS {quoted(c.name)}" for i, c in enumerate(schema.columns)]
    return (
        f"SELECT {', '.join(names)}, _s AS {quoted(policy.sequence)}, "
        f"explode(sequence(1L, _n)) AS {quoted(NUMBER)} FROM (SELECT {columns}, "
        f"max({VERSION}) AS _s, count(*) AS _n FROM ({source(schema, view)}) GROUP BY {columns})"
    )


def scanned_versions(
    target: str,
    schema: TableSchema,
    policy: TablePolicy,
    rows: str,
    bounds: Mapping[str, tuple[object, object]] | None = None,
) -> str:
    """One MERGE of scan rows into a table of versions. A row that is as its current version makes
    that one the scan's; one that differs ends it and begins another."""
    sequence, current = quoted(policy.sequence), quoted(IS_CURRENT)
    names = [quoted(c.name) for c in schema.columns]
    same = " AND ".join(f"t.{names[i]} = x.c{i}" for i in schema.key)
    others = [f"t.{name} <=> x.c{i}" for i, name in enumerate(names) if i not in schema.key]
    known = " AND ".join([f"t.{current}", *within(schema, bounds or {})])
    # A row that matches, for the current version of its key, and one that does not, for its own.
    matching = (
        f"CASE WHEN t.{current} IS NULL THEN array(false) "
        f"WHEN t.{sequence} > x.{VERSION} THEN array() "
        f"WHEN {' AND '.join(others) or 'true'} THEN array(true) ELSE array(true, false) END"
    )
    compared = (
        f"SELECT *, size(_matching) = 2 AS _ends, explode(_matching) AS _matches FROM "
        f"(SELECT x.*, {matching} AS _matching FROM ({rows}) AS x "
        f"LEFT JOIN (SELECT * FROM {target} AS t WHERE {known}) AS t ON {same})"
    )
    ended = {VALID_TO: moment(f"s.{VERSION}"), IS_CURRENT: "false"}
    sets = ", ".join(f"{quoted(name)} = {value}" for name, value in ended.items())
    columns = {c.name: f"s.c{i}" for i, c in enumerate(schema.columns)}
    columns |= first_version(policy, f"s.{VERSION}")
    return (
        f"MERGE INTO {target} AS t USING ({compared}) AS s "
        f"ON s._matches AND t.{current} AND {_matching(schema, bounds or {})} "
        f"WHEN MATCHED AND s._ends THEN UPDATE SET {sets} "
        f"WHEN MATCHED THEN UPDATE SET {sequence} = s.{VERSION} "
        f"WHEN NOT MATCHED AND NOT s._matches THEN INSERT "
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
