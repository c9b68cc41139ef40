"""The SQL of one round for one table: staged rows as a source, and the MERGE that takes them.

Every statement is guarded by the row's version: a row that is newer in the target stays. A
round that is applied twice so changes nothing, besides being skipped as a whole by the
version the table has recorded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from changefeed.core.schema import Column, TableSchema
from sinks import history as past
from sinks.history import IS_CURRENT, READ, TRUNCATE, VALID_FROM, VALID_TO
from sinks.lake.staging import MISSING, OPERATION, ORDER, SEQ, VERSION
from sinks.lake.types import spark_type, typed

#: What a soft-deleted row is marked in, by format: Iceberg has a use of its own for _deleted.
DELETED = {"delta": "_deleted", "iceberg": "_is_deleted"}
#: The number of a row among equal ones, where the table has no key.
NUMBER = "_occurrence"


def quote(name: str) -> str:
    """A name as Spark SQL takes any name."""
    return "`" + name.replace("`", "``") + "`"


def literal(text: str) -> str:
    """A text as a literal, without escapes."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


@dataclass(frozen=True, slots=True)
class Layout:
    """What a target table has besides the source's columns.

    Attributes:
        sequence: name of the column with the version of a row.
        soft: a delete marks the row.
        history: ``off``, ``scd2`` or ``append``.
        deleted: name of the column that marks a row as deleted.
    """

    sequence: str = "_sequence_num"
    soft: bool = False
    history: str = "off"
    deleted: str = DELETED["delta"]

    def extra(self, *, keyless: bool = False) -> tuple[tuple[str, str], ...]:
        """Name and type of every column that is ours."""
        own = [(self.sequence, "bigint")]
        if keyless and self.history == "off":
            own.append((NUMBER, "bigint"))
        if self.history == "append":
            own += [
                (past.OPERATION, "string"),
                (past.ORDER, "bigint"),
                (past.COMMITTED_AT, "timestamp"),
            ]
        elif self.history == "scd2":
            own += [(VALID_FROM, "timestamp"), (VALID_TO, "timestamp"), (IS_CURRENT, "boolean")]
        if self.soft and self.history != "append":
            own.append((self.deleted, "boolean"))
        return tuple(own)


def word_of(operation: str) -> str:
    """SQL for what ``_operation`` says of an operation of the log."""
    cases = [f"WHEN {literal(code)} THEN {literal(word)}" for code, word in past.OPERATIONS.items()]
    return f"CASE {operation} {' '.join(cases)} END"


def truncation(target: str, layout: Layout, at: int) -> str:
    """The row that says of a table that keeps all changes that the source's was emptied."""
    own = {
        layout.sequence: str(at),
        past.OPERATION: literal(TRUNCATE),
        past.COMMITTED_AT: moment(str(at)),
    }
    columns = ", ".join(map(quote, own))
    return f"INSERT INTO {target} ({columns}) VALUES ({', '.join(own.values())})"


def broken_scans(target: str, layout: Layout, scanned: int, at: int) -> str:
    """Of a table that keeps all changes the rows of scans between two whole ones go."""
    number = quote(layout.sequence)
    return (
        f"DELETE FROM {target} WHERE {quote(past.OPERATION)} = {literal(READ)} "
        f"AND {number} > {scanned} AND {number} < {at}"
    )


#: What version 0.1 called the columns of ``append``, and its words for their new ones.
OLD_COLUMNS = {"_changed_at": past.COMMITTED_AT, "_ordinal": past.ORDER}
_OLD_WORDS = {**past.OPERATIONS, "t": TRUNCATE}


def reworded(target: str) -> str:
    """The words of a table of version 0.1 become those of now."""
    change = quote(past.OPERATION)
    cases = [f"WHEN {literal(code)} THEN {literal(word)}" for code, word in _OLD_WORDS.items()]
    return (
        f"UPDATE {target} SET {change} = CASE {change} {' '.join(cases)} END "
        f"WHERE {change} IN ({', '.join(map(literal, _OLD_WORDS))})"
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
    value that is known, with ``k<i>`` saying whether there is one."""
    keys = [f"c{i}" for i in schema.key]
    place = f"struct({VERSION}, {ORDER})"
    picked = [f"max_by({OPERATION}, {place}) AS {OPERATION}", f"max({VERSION}) AS {VERSION}"]
    for i, column in enumerate(schema.columns):
        if f"c{i}" in keys:
            continue
        known = (
            f"{OPERATION} <> 'd' AND NOT coalesce(array_contains("
            f"from_json({MISSING}, 'array<string>'), {literal(column.name)}), false)"
        )
        picked.append(f"max_by(c{i}, {place}) FILTER (WHERE {known}) AS c{i}")
        picked.append(f"bool_or({known}) AS k{i}")
    inner = f"SELECT {', '.join(keys + picked)} FROM {view} GROUP BY {', '.join(keys)}"
    flags = [f"k{i}" for i in range(len(schema.columns)) if i not in schema.key]
    return source(schema, f"({inner})", also=flags)


# ------------------------------------------------------------------------------- statements


def merge(
    target: str,
    schema: TableSchema,
    layout: Layout,
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
    sequence = f"t.{quote(layout.sequence)}"
    newer = f"(s.{VERSION} >= {sequence} OR {sequence} IS NULL)"
    values = {c.name: _value(schema, i, c, folded) for i, c in enumerate(schema.columns)}
    own = {layout.sequence: f"s.{VERSION}"}
    if layout.soft:
        own[layout.deleted] = "false"
        gone = f"UPDATE SET {quote(layout.deleted)} = true, {quote(layout.sequence)} = s.{VERSION}"
    else:
        gone = "DELETE"
    sets = [f"{quote(name)} = {value}" for name, value in (values | own).items()]
    inserted = {c.name: f"s.c{i}" for i, c in enumerate(schema.columns)} | own
    return (
        f"MERGE INTO {target} AS t USING ({rows}) AS s ON {_matching(schema, bounds or {})} "
        f"WHEN MATCHED AND s.{OPERATION} = 'd' AND {newer} THEN {gone} "
        f"WHEN MATCHED AND s.{OPERATION} <> 'd' AND {newer} THEN UPDATE SET {', '.join(sets)} "
        f"WHEN NOT MATCHED AND s.{OPERATION} <> 'd' THEN INSERT "
        f"({', '.join(map(quote, inserted))}) VALUES ({', '.join(inserted.values())})"
    )


def _value(schema: TableSchema, number: int, column: Column, folded: bool) -> str:
    if not folded or number in schema.key:
        return f"s.c{number}"
    return f"if(s.k{number}, s.c{number}, t.{quote(column.name)})"


def _matching(schema: TableSchema, bounds: Mapping[str, tuple[object, object]]) -> str:
    parts = [f"t.{quote(schema.columns[number].name)} = s.c{number}" for number in schema.key]
    return " AND ".join(parts + within(schema, bounds))


def within(schema: TableSchema, bounds: Mapping[str, tuple[object, object]]) -> list[str]:
    """What is true of each row of target ``t`` whose key lies in ``bounds`` (by staged column)."""
    parts = []
    for number in schema.key:
        if f"c{number}" in bounds:
            column = f"t.{quote(schema.columns[number].name)}"
            low, high = bounds[f"c{number}"]
            parts += [f"{column} >= {_bound(low)}", f"{column} <= {_bound(high)}"]
    return parts


def _bound(value: object) -> str:
    return literal(value) if isinstance(value, str) else str(value)


def comparable(column: Column) -> bool:
    """The bounds of a column's log values are bounds of its typed values."""
    return column.physical != "string" or spark_type(column.logical) == "string"


def append(target: str, schema: TableSchema, layout: Layout, view: str) -> str:
    """Every staged row as a row of a table that keeps all changes."""
    names = [c.name for c in schema.columns]
    own = {
        layout.sequence: VERSION,
        past.OPERATION: word_of(OPERATION),
        past.ORDER: SEQ,
        past.COMMITTED_AT: moment(VERSION),
    }
    rows = source(schema, view, also=(SEQ,))
    columns = ", ".join(map(quote, [*names, *own]))
    values = ", ".join([*(f"c{i}" for i in range(len(names))), *own.values()])
    return f"INSERT INTO {target} ({columns}) SELECT {values} FROM ({rows})"


def versions(
    target: str,
    schema: TableSchema,
    layout: Layout,
    view: str,
    bounds: Mapping[str, tuple[object, object]] | None = None,
) -> str:
    """One MERGE that closes the current version of each changed key and adds the new ones.

    Each key has one row that may match, its first change, which ends what was current; and
    for every version a row that matches nothing and is inserted.
    """
    keys = [f"c{i}" for i in schema.key]
    names = [c.name for c in schema.columns]
    window = f"(PARTITION BY {', '.join(keys)} ORDER BY {VERSION}, {ORDER})"
    ordered = (
        f"SELECT *, lead({VERSION}) OVER {window} AS _next, row_number() OVER {window} AS _n "
        f"FROM ({source(schema, view, also=(ORDER,))})"
    )
    # Two rows out of one, so that the staged rows are read and sorted once.
    rows = (
        f"SELECT *, explode(if(_n = 1, array(true, false), array(false))) AS _closes "
        f"FROM ({ordered})"
    )
    columns = {name: f"s.c{i}" for i, name in enumerate(names)}
    columns |= {
        layout.sequence: f"s.{VERSION}",
        VALID_FROM: moment(f"s.{VERSION}"),
        VALID_TO: moment("s._next"),
        IS_CURRENT: "s._next IS NULL",
    }
    if layout.soft:
        columns[layout.deleted] = "false"
    current, sequence = f"t.{quote(IS_CURRENT)}", f"t.{quote(layout.sequence)}"
    ends = f"s._closes AND {current} AND {sequence} < s.{VERSION}"
    ended = {VALID_TO: moment(f"s.{VERSION}"), IS_CURRENT: "false"}
    if layout.soft:
        ended[layout.deleted] = f"s.{OPERATION} = 'd'"
    sets = ", ".join(f"{quote(name)} = {value}" for name, value in ended.items())
    return (
        f"MERGE INTO {target} AS t USING ({rows}) AS s "
        f"ON {ends} AND {_matching(schema, bounds or {})} "
        f"WHEN MATCHED AND s._closes THEN UPDATE SET {sets} "
        f"WHEN NOT MATCHED AND NOT s._closes AND s.{OPERATION} <> 'd' THEN INSERT "
        f"({', '.join(map(quote, columns))}) VALUES ({', '.join(columns.values())})"
    )


def counted(target: str, schema: TableSchema, layout: Layout, view: str) -> str:
    """One MERGE into a table whose rows have no key: equal rows are numbered from 1, and as
    many are added behind or taken from the end as the changes say in sum."""
    names = [quote(c.name) for c in schema.columns]
    columns = [f"c{i}" for i in range(len(names))]
    same = [f"t.{name} <=> s.{c}" for name, c in zip(names, columns, strict=True)]
    count = f"sum(CASE {OPERATION} WHEN 'd' THEN -1 WHEN 'u' THEN 0 ELSE 1 END)"
    changed = (
        f"SELECT {', '.join(columns)}, max({VERSION}) AS {VERSION}, {count} AS _n "
        f"FROM ({source(schema, view)}) GROUP BY {', '.join(columns)} HAVING {count} <> 0"
    )
    present = (
        f"SELECT {', '.join(names)}, max({quote(NUMBER)}) AS _m FROM {target} AS t "
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
    inserted |= {quote(layout.sequence): f"s.{VERSION}", quote(NUMBER): "s._o"}
    return (
        f"MERGE INTO {target} AS t USING ({rows}) AS s "
        f"ON t.{quote(NUMBER)} = s._o AND {' AND '.join(same)} "
        f"WHEN MATCHED AND s._n < 0 THEN DELETE "
        f"WHEN NOT MATCHED AND s._n > 0 THEN INSERT "
        f"({', '.join(inserted)}) VALUES ({', '.join(inserted.values())})"
    )


def numbered(schema: TableSchema, layout: Layout, view: str) -> str:
    """The rows of a scan of a table without a key, equal ones numbered."""
    columns = ", ".join(f"c{i}" for i in range(len(schema.columns)))
    names = [f"c{i} AS {quote(c.name)}" for i, c in enumerate(schema.columns)]
    return (
        f"SELECT {', '.join(names)}, _s AS {quote(layout.sequence)}, "
        f"explode(sequence(1L, _n)) AS {quote(NUMBER)} FROM (SELECT {columns}, "
        f"max({VERSION}) AS _s, count(*) AS _n FROM ({source(schema, view)}) GROUP BY {columns})"
    )


def scanned_versions(
    target: str,
    schema: TableSchema,
    layout: Layout,
    rows: str,
    bounds: Mapping[str, tuple[object, object]] | None = None,
) -> str:
    """One MERGE of scan rows into a table of versions: a scan says what is, not what changed,
    so it corrects the current version in place and adds rows that are new."""
    sequence = f"t.{quote(layout.sequence)}"
    newer = f"s.{VERSION} >= {sequence}"
    values = {c.name: f"s.c{i}" for i, c in enumerate(schema.columns)}
    sets = [f"{quote(name)} = {value}" for name, value in values.items()]
    columns = values | first_version(layout, f"s.{VERSION}")
    return (
        f"MERGE INTO {target} AS t USING ({rows}) AS s "
        f"ON t.{quote(IS_CURRENT)} AND {_matching(schema, bounds or {})} "
        f"WHEN MATCHED AND {newer} THEN UPDATE SET {', '.join(sets)}, "
        f"{quote(layout.sequence)} = s.{VERSION} "
        f"WHEN NOT MATCHED THEN INSERT "
        f"({', '.join(map(quote, columns))}) VALUES ({', '.join(columns.values())})"
    )


def first_version(layout: Layout, version: str) -> dict[str, str]:
    """Our columns of a row that comes from a scan: name to SQL."""
    own = {layout.sequence: version}
    if layout.history == "append":
        own |= {
            past.OPERATION: literal(READ),
            past.ORDER: "0L",
            past.COMMITTED_AT: moment(version),
        }
    elif layout.history == "scd2":
        own |= {
            VALID_FROM: moment(version),
            VALID_TO: "cast(NULL AS timestamp)",
            IS_CURRENT: "true",
        }
    if layout.soft and layout.history != "append":
        own[layout.deleted] = "false"
    return own


def remove(target: str, layout: Layout, condition: str, at: int) -> str:
    """What happens to rows that ``condition`` names, at version ``at``: gone, marked, or ended.

    A table that keeps every change loses nothing.
    """
    if layout.history == "scd2":
        sets = f"{quote(VALID_TO)} = {moment(str(at))}, {quote(IS_CURRENT)} = false"
        if layout.soft:
            sets += f", {quote(layout.deleted)} = true"
        return f"UPDATE {target} SET {sets} WHERE {quote(IS_CURRENT)} AND {condition}"
    if layout.soft:
        sets = f"{quote(layout.deleted)} = true, {quote(layout.sequence)} = {at}"
        return f"UPDATE {target} SET {sets} WHERE NOT {quote(layout.deleted)} AND {condition}"
    return f"DELETE FROM {target} WHERE {condition}"
