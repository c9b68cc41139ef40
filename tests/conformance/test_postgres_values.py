"""Every type that PostgreSQL ships, alone and in arrays: one log value however it was read."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from changefeed.core.schema import Column, TableSchema
from changefeed.core.types import Form, Kind
from changefeed.sources.postgres.connect import connect
from changefeed.sources.postgres.details import read_details
from changefeed.sources.postgres.types import schema_of
from changefeed.sources.postgres.values import text_column, text_value
from tests.helpers.postgres_tail import Tail, prepare, tailing
from tests.services.postgres import Database

pytestmark = pytest.mark.postgres

#: SQL literals by type. Every type of pg_catalog that a column can have is here.
SAMPLES: dict[str, Sequence[str]] = {
    "aclitem": ["postgres=r/postgres"],
    "bit": ["1", "0"],
    "bool": ["t", "f"],
    "box": ["(1,2),(0,0)"],
    "bpchar": ["a ", "", 'q"uo\\te'],
    "bytea": ["\\xdeadbeef", "\\x"],
    "char": ["a", "\u00e4"[:0]],
    "cid": ["7"],
    "cidr": ["10.0.0.0/8", "::/0"],
    "circle": ["<(1,2),3>"],
    "date": ["2024-03-31", "infinity", "-infinity", "0044-03-15 BC", "12024-01-01"],
    "datemultirange": ["{[2024-01-01,2024-02-01)}", "{}"],
    "daterange": ["[2024-01-01,2024-02-01)", "empty", "(,)"],
    "float4": ["1.5", "0.1", "-0", "1e30", "NaN", "Infinity", "-Infinity"],
    "float8": ["1.5", "0.1", "1e-300", "123456789012345680", "NaN", "Infinity", "-Infinity"],
    "gtsvector": [],
    "inet": ["192.168.1.1", "fe80::1/64"],
    "int2": ["0", "-32768", "32767"],
    "int2vector": ["1 2 3"],
    "int4": ["0", "-2147483648", "2147483647"],
    "int4multirange": ["{[1,3),[5,7)}"],
    "int4range": ["[1,5)", "empty"],
    "int8": ["0", "-9223372036854775808", "9223372036854775807"],
    "int8multirange": ["{[1,3)}"],
    "int8range": ["[1,5)"],
    "interval": ["1 year 2 mons 3 days 04:05:06.789", "-00:00:01", "00:00:00"],
    "json": ['{"a": 1}', '{"a":\n [1,\r\n2]}', "null", '"tab\\t"', "1E400"],
    "jsonb": ['{"b": 1, "a": {"c": "\u00e4\\n"}}', "null", "[]", "1.50"],
    "jsonpath": ['$."a"'],
    "line": ["{1,2,3}"],
    "lseg": ["[(1,2),(3,4)]"],
    "macaddr": ["08:00:2b:01:02:03"],
    "macaddr8": ["08:00:2b:01:02:03:04:05"],
    "money": ["12.34", "-1.00"],
    "name": ["some name"],
    "numeric": ["1.50", "0", "-123456789012345678901234567890.123456789", "NaN", "1e-20"],
    "nummultirange": ["{[1.5,2.5)}"],
    "numrange": ["[1.5,2.5]", "(,2)"],
    "oid": ["0", "4294967295"],
    "oidvector": ["1 2 3"],
    "path": ["[(1,2),(3,4)]", "((1,2),(3,4))"],
    "pg_lsn": ["16/B374D848"],
    "pg_snapshot": ["10:20:10,14,15"],
    "point": ["(1,2)"],
    "polygon": ["((1,2),(3,4),(5,6))"],
    "refcursor": ["cursor"],
    "regclass": ["pg_class", "-"],
    "regcollation": ['"C"'],
    "regconfig": ["english"],
    "regdictionary": ["simple"],
    "regnamespace": ["pg_catalog"],
    "regoper": [],
    "regoperator": ["+(integer,integer)"],
    "regproc": ["pg_catalog.now"],
    "regprocedure": ["now()"],
    "regrole": ["postgres"],
    "regtype": ["integer"],
    "text": ["", "plain", 'quo"te', "back\\slash", "new\nline", "tab\t", "\u0001", "NULL", "null",
             "a,b", "{x}", "\U0001f600", " lead"],
    "tid": ["(1,2)"],
    "time": ["12:34:56.789", "24:00:00"],
    "timestamp": ["2024-03-31 01:02:03.5", "2024-03-31 01:02:03", "infinity", "-infinity",
                  "0044-03-15 00:00:00 BC", "12024-01-01 00:00:00"],
    "timestamptz": ["2024-03-31 01:02:03.123456+02", "2024-03-31 01:02:03+00", "infinity",
                    "0044-03-15 00:00:00+00 BC", "12024-01-01 00:00:00+00"],
    "timetz": ["12:34:56.789+02", "00:00:00-05:30"],
    "tsmultirange": ['{["2024-01-01 00:00:00","2024-02-01 00:00:00")}'],
    "tsquery": ["'a' & 'b'"],
    "tsrange": ['["2024-01-01 00:00:00","2024-02-01 00:00:00")'],
    "tstzmultirange": ['{["2024-01-01 00:00:00+00","2024-02-01 00:00:00+00")}'],
    "tstzrange": ['["2024-01-01 00:00:00+00",)'],
    "tsvector": ["'a':1 'b':2"],
    "txid_snapshot": ["10:20:10,14,15"],
    "uuid": ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"],
    "varbit": ["10101", ""],
    "varchar": ["x", "y z"],
    "xid": ["7"],
    "xid8": ["7"],
    "xml": ["<a>\n<b/></a>"],
}  # fmt: skip
#: What no column can have, or only the server itself writes.
_INTERNAL = {
    "pg_brin_bloom_summary", "pg_brin_minmax_multi_summary", "pg_dependencies", "pg_mcv_list",
    "pg_ndistinct", "pg_node_tree", "gtsvector",
}  # fmt: skip
_EXTRA = """
create type mood as enum ('sad', 'ok', 'ha"ppy, you');
create domain positive as numeric(10,2) check (value > 0);
create domain words as text[];
create type pair as (a int, b text);
create type floats as range (subtype = float8);
"""
_EXTRA_SAMPLES: dict[str, Sequence[str]] = {
    "mood": ["sad", 'ha"ppy, you'],
    "positive": ["1.50"],
    "words": ['{a,"b c",NULL}'],
    "pair": ['(1,"x y")', "(,)"],
    "floats": ["[1.5,2.5)"],
}


def _types(database: Database) -> list[str]:
    """What a column can be made of; ``money`` and others by their own names."""
    rows = database.execute(
        "select typname from pg_type t where typnamespace = 'pg_catalog'::regnamespace"
        " and typtype in ('b', 'r', 'm') and not exists"
        "  (select from pg_type e where e.typarray = t.oid)"
        " and typrelid = 0"
    )
    return sorted({name for (name,) in rows} - _INTERNAL)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


@pytest.fixture
def filled(postgres: Database) -> Database:
    """Tables ``v`` and ``a`` (arrays) with a column for each type, sample by sample."""
    known = _types(postgres)
    assert set(known) <= set(SAMPLES), "a type that this test does not know yet"
    postgres.execute(_EXTRA)
    samples = {f'pg_catalog."{name}"': SAMPLES[name] for name in known if SAMPLES[name]}
    samples |= {f"public.{name}": values for name, values in _EXTRA_SAMPLES.items()}
    columns = list(samples)
    for table, brackets in (("v", ""), ("a", "[]")):
        shape = ", ".join(f"c{i} {name}{brackets}" for i, name in enumerate(columns))
        postgres.execute(f"create table {table} (id serial primary key, {shape})")
        postgres.execute(f"alter table {table} replica identity full")
    prepare(postgres)
    rounds = max(len(values) for values in samples.values())
    with postgres.connect() as connection:
        for turn in range(rounds + 1):
            texts = [v[turn] if turn < len(v) else None for v in samples.values()]
            values = ", ".join("null" if t is None else _quoted(t) for t in texts)
            names = ", ".join(f"c{i}" for i in range(len(columns)))
            connection.execute(f"insert into v ({names}) values ({values})")
        for literal in _array_shapes(samples):
            connection.execute(f"insert into a ({names}) select {literal}")
        connection.execute("update v set id = id + 1000; update a set id = id + 1000")
    return postgres


def _array_shapes(samples: dict[str, Sequence[str]]) -> list[str]:
    """Select lists: all samples and a null, none, two dimensions, other bounds, no array."""

    def each(make: Any) -> str:
        return ", ".join(make(name, values) for name, values in samples.items())

    def whole(name: str, values: Sequence[str]) -> str:
        inside = ", ".join([*map(_quoted, values), "null"])
        return f"array[{inside}]::{name}[]"

    def nested(name: str, values: Sequence[str]) -> str:
        if name == "public.words":  # an array of arrays would have the inner ones merged
            return f"array[{_quoted(values[0])}]::{name}[]"
        one = _quoted(values[0])
        return f"array[array[{one}, null], array[{one}, {one}]]::{name}[]"

    def shifted(name: str, values: Sequence[str]) -> str:
        return f"array_fill({_quoted(values[0])}::{name}, array[2], array[0])"

    return [
        each(whole),
        each(lambda name, _: f"'{{}}'::{name}[]"),
        each(nested),
        each(shifted),
        each(lambda name, _: "null"),
    ]


def _printed(database: Database, table: str) -> tuple[TableSchema, list[list[str | None]]]:
    """The rows as the types' own output functions print them in an ordinary session.

    By COPY: a cast to text is another function for some types (bool, character, inet).
    """
    with connect(database.uri) as connection:
        oid = connection.execute("select %s::regclass::oid::int8", [f"public.{table}"]).fetchone()
        assert oid is not None
        schema = schema_of(read_details(connection, [oid[0]])[oid[0]], "src")
        query = f"copy (select * from public.{table} order by id) to stdout"
        with connection.cursor() as cursor, cursor.copy(query) as copy:
            lines = b"".join(bytes(block) for block in copy).decode().split("\n")[:-1]
    return schema, [[_uncopied(field) for field in line.split("\t")] for line in lines]


def _uncopied(field: str) -> str | None:
    if field == "\\N":
        return None
    return re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[1]), field)


_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f", "v": "\v"}


@pytest.mark.parametrize("postgres", [14, 18], indirect=True)
def test_every_type(filled: Database, tmp_path: Path) -> None:
    """The stream by rows, the stream by columns, and an ordinary session say the same."""
    schema, printed = _printed(filled, "v")
    expected = [
        [text_value(column, text) for column, text in zip(schema.columns, row, strict=True)]
        for row in printed
    ]
    seen = []
    for small in (0, 1 << 30):
        tail = Tail(filled, tmp_path, small=small)
        tail.stream.acknowledge = lambda position: None  # type: ignore[method-assign]
        tail.catch_up()
        tail.close()
        seen.append([(c.op, c.after, c.before) for c in tail.changes()])
    assert seen[0] == seen[1]
    moved = [c.after for c in tail.changes("v") if c.op == "c" and c.after and c.after["id"] > 1000]
    assert [list(row.values()) for row in moved] == expected
    _check_json(schema, moved)
    arrays = tail.changes("a")
    assert [c.op for c in arrays] == ["c"] * 5 + ["d", "c"] * 5
    _check_json(tail.batches("a")[0].schema, [c.after for c in arrays[:5] if c.after])


def _check_json(schema: TableSchema, rows: Sequence[dict[str, Any]]) -> None:
    """Every RAW value is one JSON token on one line; arrays have the elements' count."""
    for column in schema.columns:
        for row in rows:
            value = row[column.name]
            if column.form is not Form.RAW or value is None:
                continue
            assert "\n" not in value and "\r" not in value
            parsed = json.loads(value)
            if column.kind is Kind.JSON:
                continue
            # Bounds of its own make an array a text.
            is_array = isinstance(parsed, list) or value.startswith('"[')
            assert is_array == (column.kind is Kind.ARRAY)


def test_arrays_by_element(postgres: Database, tmp_path: Path) -> None:
    postgres.execute(
        "create table t (id int primary key, i int[], n numeric[], b bool[], s text[],"
        " z timestamptz[], j jsonb[], y bytea[], f float8[], m int[])"
    )
    prepare(postgres)
    with tailing(postgres, tmp_path) as tail:
        postgres.execute(
            "insert into t values (1, '{1,NULL,-3}', '{1.50,NaN}', '{t,f,NULL}',"
            " array['a b', 'q\"', 'b\\s', null, 'NULL', ''], '{2024-01-02 03:04:05Z,infinity}',"
            " array['{\"a\": [1, \"x\"]}'::jsonb], array['\\xde'::bytea], '{1e300,-Infinity}',"
            " '[0:1][1:2]={{1,2},{3,4}}')"
        )
        tail.catch_up()
    [change] = tail.changes()
    assert change.after == {
        "id": 1,
        "i": "[1,null,-3]",
        "n": '[1.50,"NaN"]',
        "b": "[true,false,null]",
        "s": '["a b","q\\"","b\\\\s",null,"NULL",""]',
        "z": '["2024-01-02T03:04:05Z","infinity"]',
        "j": '[{"a": [1, "x"]}]',
        "y": '["\\\\xde"]',
        "f": '[1e+300,"-Infinity"]',
        "m": '"[0:1][1:2]={{1,2},{3,4}}"',
    }


@pytest.mark.parametrize("postgres", [16], indirect=True)
def test_column_rules_equal_value_rules(filled: Database) -> None:
    """The same texts through both forms of every rule, whole and sliced, both string types."""
    for table in ("v", "a"):
        schema, rows = _printed(filled, table)
        for i, column in enumerate(schema.columns):
            _check_both(column, [row[i] for row in rows])


def _check_both(column: Column, texts: list[str | None]) -> None:
    for part in (texts, texts[1:], texts[:1], [None, *texts], [t for t in texts if t]):
        expected = pa.array([text_value(column, text) for text in part], column.arrow)
        for kind in (pa.string(), pa.large_string()):
            got = text_column(column, pa.array(part, kind))
            got.validate(full=True)
            assert got.equals(expected), (column, part)
            sliced = text_column(column, pa.array([*part, *part], kind).slice(1))
            assert sliced.to_pylist() == [*expected.to_pylist(), *expected.to_pylist()][1:]
