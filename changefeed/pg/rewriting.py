"""PostgreSQL's SQL, as sqlglot reads it, in forms that SQLite has."""

from __future__ import annotations

from typing import Any

from sqlglot import exp
from sqlglot.dialects.sqlite import SQLite

from changefeed.pg.values import (
    ARRAYS,
    BOOL,
    FLOAT8,
    INT4,
    INT8,
    OID,
    TEXT,
    TEXTS,
    TIMESTAMPTZ,
    TYPES,
)

_OIDS = """
oid relnamespace reltype reloftype relowner relam relfilenode reltablespace reltoastrelid
typnamespace typowner typrelid typelem typarray typbasetype typcollation attrelid atttypid
attcollation nspowner datdba objoid classoid conrelid indexrelid indrelid inhrelid inhparent
adrelid pronamespace prorettype enumtypid rngtypid
"""
_NUMBERS = """
attlen attnum atttypmod attndims attstattarget ordinal_position relnatts relchecks relpages typlen
typtypmod typndims encoding datconnlimit rolconnlimit objsubid adnum character_maximum_length
numeric_precision numeric_scale datetime_precision
"""
_FLAGS = """
attnotnull atthasdef attisdropped atthasmissing attislocal relhasindex relisshared relhasrules
relhastriggers relhassubclass relrowsecurity relforcerowsecurity relispopulated relispartition
typbyval typispreferred typisdefined typnotnull datistemplate datallowconn rolsuper rolinherit
rolcreaterole rolcreatedb rolcanlogin rolreplication rolbypassrls usecreatedb usesuper
indisunique indisprimary
"""

#: Types of columns of the catalog, by name; others are texts.
_CATALOG_TYPES: dict[str, int] = {
    **dict.fromkeys(_OIDS.split(), OID),
    **dict.fromkeys(_NUMBERS.split(), INT4),
    **dict.fromkeys(_FLAGS.split(), BOOL),
}

#: A cast to it, by the type's name in capitals.
_CASTS: dict[str, int] = {
    "BIGINT": INT8,
    "BOOLEAN": BOOL,
    "CHAR": TEXT,
    "DOUBLE": FLOAT8,
    "DECIMAL": FLOAT8,
    "FLOAT": FLOAT8,
    "INT": INT4,
    "NAME": TEXT,
    "OID": OID,
    "SMALLINT": INT4,
    "TEXT": TEXT,
    "TIMESTAMP": TIMESTAMPTZ,
    "TIMESTAMPTZ": TIMESTAMPTZ,
    "VARCHAR": TEXT,
}
_ARRAY_OF = {element: oid for oid, element in ARRAYS.items()}
_AFFINITY = {INT8: "INTEGER", INT4: "INTEGER", OID: "INTEGER", BOOL: "INTEGER", FLOAT8: "REAL"}


def type_of(column: str) -> int:
    """The type of a column of a view or of the catalog, by its name."""
    name = column.lower()
    return TYPES.get(name) or _CATALOG_TYPES.get(name, TEXT)


#: A node of a query; sqlglot's types differ from version to version.
Node = Any

#: SQLite takes a name in double quotes that it does not know for a text; not in these.
BACKTICKS: Any = SQLite()
BACKTICKS.IDENTIFIER_START = BACKTICKS.IDENTIFIER_END = "`"


class Rewriter:
    """Rewrites one query."""

    def rewrite(self, query: Node) -> Node:
        """The query, changed in place: what is inside comes before what is around it."""
        # In these ``user`` is a column.
        tables = {table.name for table in query.find_all(exp.Table)}
        self._has_users = not tables.isdisjoint(("audit", "users"))
        for node in reversed(list(query.bfs())):
            made = self._rewritten(node)
            if made is not node:
                if node is query:
                    query = made
                else:
                    node.replace(made)
        return query

    def _rewritten(self, node: Node) -> Node:
        match node:
            case exp.Dot(this=exp.Identifier(), expression=exp.Func() as function):
                return function
            case exp.Column(this=exp.Identifier(this="user", quoted=False), table="") if (
                not self._has_users
            ):
                return _call("pg_user")
            case exp.Dot(this=exp.Paren()):
                return exp.Null()  # a field of a record, which no function here returns
            case exp.Table(this=exp.Func()):
                return _table(node)
            case exp.Bracket(expressions=[place]):
                # sqlglot counts from 0 where the place is a number.
                from_0 = place if isinstance(place, exp.Literal) else place - 1
                return _call("pg_item", node.this, from_0)
            case exp.Operator():
                return _operator(node)
            case exp.Collate():
                return node.this
            case exp.ByteString():
                return exp.Literal.string(node.name)
            case exp.RegexpLike():
                return _call("regexp_like", node.this, node.expression)
            case exp.RegexpILike():
                return _call("regexp_ilike", node.this, node.expression)
            case exp.Cast():
                return _cast(node)
            case exp.EQ(expression=exp.Any() as some):
                return _call("pg_any", node.this, _unwrapped(some))
            case exp.Array():
                inner = node.expressions
                if len(inner) == 1 and isinstance(inner[0], exp.Query):
                    return _call("pg_no_list")
                return _call("json_array", *inner)
            case exp.ArraySize():
                return _call("array_upper", node.this, exp.Literal.number(1))
            case exp.StringToArray():
                return _call("string_to_array", node.this, node.expression)
            case exp.CurrentSchemas():
                return _call("current_schemas", exp.true())
            case exp.TimestampTrunc():
                return _call("pg_trunc", exp.Literal.string(node.text("unit")), node.this)
            case exp.ArrayToString():
                return _call("array_to_string", node.this, node.expression)
            case exp.CurrentTimestamp() | exp.CurrentDatetime():
                return _call("pg_now")
            case exp.CurrentDate():
                return _call("pg_today")
            case exp.CurrentUser() | exp.SessionUser():
                return _call("pg_user")
            case exp.CurrentSchema():
                return _call("current_schema")
            case exp.CurrentDatabase() | exp.CurrentCatalog():
                return _call("current_database")
            case exp.CurrentVersion():
                return _call("pg_version")
            case exp.Interval():
                return _call("pg_seconds", exp.Literal.string(f"{node.name} {node.text('unit')}"))
            case exp.Add() | exp.Sub() if _is_call(node.expression, "pg_seconds"):
                sign = 1 if isinstance(node, exp.Add) else -1
                return _call("pg_shift", node.this, node.expression, exp.Literal.number(sign))
            case exp.Sub() if {_type(node.this), _type(node.expression)} == {TIMESTAMPTZ}:
                return _call("pg_between", node.this, node.expression)
            case exp.Extract(this=part):
                return _call("pg_extract", exp.Literal.string(part.name), node.expression)
            case exp.EQ() | exp.NEQ() | exp.LT() | exp.LTE() | exp.GT() | exp.GTE() | exp.Between():
                return _compared(node)
        return node

    def columns(self, query: Node) -> list[tuple[str, int | None]] | None:
        """Name and type of each column of a query that was rewritten, with its name set; None where
        it takes all columns of a table. A type is None where only a value can say it."""
        while isinstance(query, exp.Subquery | exp.SetOperation):
            query = query.this
        if not isinstance(query, exp.Select):
            return None
        found: list[tuple[str, int | None]] = []
        for place, item in enumerate(query.expressions):
            if item.is_star:
                return None
            name = _folded(item.args["alias"]) if item.alias else _name(item)
            found.append((name, _type(item)))
            if not item.alias:
                query.expressions[place].replace(exp.alias_(item.copy(), name, quoted=True))
        return found


def parameter_types(query: Node) -> dict[int, int]:
    """Types of parameters, by what they are compared with or cast to."""
    found: dict[int, int] = {}
    for node in query.find_all(exp.Placeholder):
        if not node.name.removeprefix("p").isdigit():
            continue
        inner, outer = node, node.parent
        while isinstance(outer, exp.Paren):
            inner, outer = outer, outer.parent
        oid: int | None = None
        match outer:
            case exp.Cast():
                name = _target(outer)
                oid = _CASTS.get(name.removesuffix("[]"))
                oid = _ARRAY_OF.get(oid or 0, TEXTS) if name.endswith("[]") else oid
            case exp.Limit() | exp.Offset():
                oid = INT8
            case exp.Any() if isinstance(outer.parent, exp.EQ):
                oid = _ARRAY_OF.get(_type(outer.parent.this) or 0)
            case exp.In():
                oid = _type(outer.this)
            case exp.Binary() | exp.Between() if outer.this is not inner:
                oid = _type(outer.this)
            case exp.Binary():
                oid = _type(outer.expression)
        if oid is not None and inner is not None:
            found.setdefault(int(node.name.removeprefix("p")), oid)
    return found


def _call(name: str, *arguments: Node) -> Node:
    return exp.Anonymous(this=name, expressions=list(arguments))


def _table(node: exp.Table) -> Node:
    """A function in FROM: a row for each number of a series, or one row."""
    function, alias = node.this, node.args.get("alias")
    name = node.alias or _name(function)
    column = alias.columns[0].name if alias is not None and alias.columns else name
    if isinstance(function, exp.GenerateSeries | exp.ExplodingGenerateSeries):
        series = _call("pg_series", function.args["start"], function.args["end"])
        rows = exp.select(exp.alias_(exp.column("value"), column, quoted=True))
        return rows.from_(exp.Table(this=_call("json_each", series))).subquery(name)
    return exp.select(exp.alias_(function, column, quoted=True)).subquery(name)


def _is_call(node: Node, name: str) -> bool:
    return isinstance(node, exp.Anonymous) and node.name == name


def _unwrapped(node: Node) -> Node:
    inner = node.this
    return inner.unnest() if isinstance(inner, exp.Paren) else inner


def _operator(node: exp.Operator) -> Node:
    symbol = str(node.args["operator"]).rpartition(".")[2]
    made = {"~": "regexp_like", "~*": "regexp_ilike", "=": "", "<>": ""}.get(symbol)
    if made:
        return _call(made, node.this, node.expression)
    kind = {"=": exp.EQ, "<>": exp.NEQ}.get(symbol)
    return kind(this=node.this, expression=node.expression) if kind else node


def _target(node: exp.Cast) -> str:
    return str(node.to.sql("postgres")).rpartition(".")[2].strip('"').partition("(")[0].upper()


def _cast(node: exp.Cast) -> Node:
    name = _target(node)
    inner = node.this
    if name in ("REGCLASS", "REGTYPE", "REGPROC", "REGNAMESPACE", "REGROLE"):
        return _call(f"pg_{name.lower()}", inner)
    texts = ("TEXT", "VARCHAR", "NAME", "CHAR")
    if name in texts and isinstance(inner, exp.Anonymous) and inner.name.startswith("pg_reg"):
        return _call(f"{inner.name}_name", *inner.expressions)
    if name.startswith("TIMESTAMP"):
        return _call("pg_moment", inner)
    if name == "DATE":
        return _call("pg_day", inner)
    if name == "BOOLEAN":
        return _call("pg_bool", inner)
    if name.endswith("[]") or name == "INTERVAL":
        return _call("pg_seconds", inner) if name == "INTERVAL" else inner
    affinity = _AFFINITY.get(_CASTS.get(name, TEXT), "TEXT")
    kind = {"INTEGER": exp.DataType.Type.INT, "REAL": exp.DataType.Type.FLOAT}.get(
        affinity, exp.DataType.Type.TEXT
    )
    cast = exp.Cast(this=inner, to=exp.DataType(this=kind))
    cast.meta["pg"] = _CASTS.get(name, TEXT)
    return cast


def _compared(node: Node) -> Node:
    """A moment is compared with a text of any form as a moment."""
    sides = [node.args[key] for key in ("this", "expression", "low", "high") if node.args.get(key)]
    moments = [side for side in sides if isinstance(side, exp.Column) and _is_moment(side)]
    if moments:
        for side in sides:
            if isinstance(side, exp.Literal | exp.Placeholder):
                side.replace(_call("pg_moment", side.copy()))
    return node


def _is_moment(column: exp.Column) -> bool:
    return type_of(column.name) == TIMESTAMPTZ


def _folded(name: Node) -> str:
    """A name without quotes is in lower case."""
    return str(name.name if name.args.get("quoted") else name.name.lower())


def _name(item: Node) -> str:
    match item:
        case exp.Column():
            return _folded(item.this)
        case exp.ExplodingGenerateSeries():
            return "generate_series"
        case exp.Cast() | exp.Filter() | exp.Window():
            return _name(item.this)
        case exp.Anonymous():
            name = str(item.this).removeprefix("pg_")
            if name in ("any", "between", "item", "shift"):
                return "?column?"
            return _NAMES.get(name, name)
        case exp.Paren():
            return _name(item.this)
        case exp.Case():
            return "case"
        case exp.Exists():
            return "exists"
        case exp.GroupConcat():
            return "string_agg"
        case exp.Func():
            return item.sql_name().lower()
    return "?column?"


_NAMES = {
    "day": "date",
    "moment": "timestamptz",
    "today": "current_date",
    "trunc": "date_trunc",
    "user": "current_user",
}
_BOOLEANS = frozenset(("pg_any", "regexp_like", "regexp_ilike", "pg_bool", "pg_table_is_visible"))


def _type(item: Node) -> int | None:
    match item:
        case exp.Alias() | exp.Paren() | exp.Min() | exp.Max():
            return _type(item.this)
        case exp.Coalesce():
            return _type(item.this)
        case exp.Column():
            return type_of(item.name)
        case exp.Cast():
            return item.meta.get("pg")
        case exp.Count():
            return INT8
        case exp.Avg() | exp.Sum():
            return FLOAT8
        case exp.Literal():
            return TEXT if item.is_string else INT4 if item.is_int else FLOAT8
        case exp.Anonymous():
            name = str(item.this)
            if name in _BOOLEANS:
                return BOOL
            return {
                "pg_now": TIMESTAMPTZ,
                "pg_moment": TIMESTAMPTZ,
                "pg_shift": TIMESTAMPTZ,
                "pg_trunc": TIMESTAMPTZ,
                "pg_between": FLOAT8,
                "json_array": TEXTS,
                "pg_no_list": TEXTS,
                "pg_regclass": OID,
                "pg_extract": FLOAT8,
            }.get(name)
        case exp.Predicate() | exp.Not() | exp.And() | exp.Or() | exp.Boolean() | exp.Exists():
            return BOOL
    return None
