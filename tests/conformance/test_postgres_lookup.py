"""Present values by key, on real servers."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from changefeed.core.schema import TableSchema
from changefeed.sources.postgres import PostgresSource
from changefeed.sources.postgres.lookup import KEYS_AT_ONCE, Lookup, source_text
from tests.conformance.conftest import ALL
from tests.services.postgres import Database

pytestmark = pytest.mark.postgres


@pytest.fixture
def lookup(postgres: Database) -> Iterator[Lookup]:
    opened = Lookup(postgres.uri)
    yield opened
    opened.close()


def shape(postgres: Database, name: str = "t") -> TableSchema:
    source = PostgresSource("shop", postgres.uri)
    try:
        return source.describe(None, name)
    finally:
        source.close()


@ALL
def test_values_come_in_the_order_of_the_keys(postgres: Database, lookup: Lookup) -> None:
    count = 2 * KEYS_AT_ONCE + 7
    postgres.execute(
        f"""
        create table t (id bigint primary key, v text, n int);
        insert into t select i, case when i % 4 > 0 then 'v' || i when i % 8 > 0 then '' end, i
            from generate_series(1, {count}) i
        """
    )
    keys = [*range(count, 0, -1), -1, 5, 5]
    found = lookup.fetch(shape(postgres), [2, 1], [pa.array(keys, pa.int64())])

    def value(i: int) -> str | None:
        return f"v{i}" if i % 4 else "" if i % 8 else None

    numbers, texts = found.values
    assert numbers is not None and texts is not None
    assert found.present.to_pylist() == [i > 0 for i in keys]
    assert numbers.type == pa.int32()
    assert numbers.to_pylist() == [i if i > 0 else None for i in keys]
    assert texts.to_pylist() == [value(i) if i > 0 else None for i in keys]


KINDS: list[tuple[str, list[object]]] = [
    ("boolean", [True, False]),
    ("numeric", ['"NaN"', "1.50", "-3"]),
    ("numeric(10,2)", ["1.50"]),
    ("double precision", ['"-Infinity"', "0.1", "1e+300"]),
    ("timestamptz", ["2024-03-31T01:02:03.5Z", "infinity", "0044-03-15T00:00:00+00 BC"]),
    ("timestamp", ["2024-03-31T01:02:03.123456", "-infinity", "0044-03-15T00:00:00 BC"]),
    ("date", ["2024-02-29", "0044-03-15 BC"]),
    ("interval", ["1 day 02:00:00"]),
    ("uuid", ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"]),
    ("bytea", ["\\x00ff", "\\x"]),
    ("text", ['it\'s \\ "so"', "", "{a,b}", "NULL", "é\n"]),
    ('text collate "en-x-icu"', ["a", "A"]),
    ("varchar(5)", ["abc"]),
    ("char(4)", ["ab  "]),
    ("jsonb", ['{"a": [1, null]}', '"x"']),
    ("int[]", ["[1,null,3]", "[]", "[[1,2],[3,4]]"]),
    ("text[]", ['["a","b c","NULL","\\\\\\"",null,""]']),
    ("numeric[]", ['["NaN",1.10,12345678901234567890.123456789]']),
    ("inet", ["10.0.0.1/8"]),
    ("int4range", ["[1,5)", "empty"]),
    ("mood", ["sad", "it's"]),
    ("bit(3)", ["101"]),
    ("amount", [7]),
]


@ALL
def test_a_key_of_any_type_finds_its_row(postgres: Database, lookup: Lookup) -> None:
    """Log values, as the scan of the same table gives them, find their rows again."""
    postgres.execute("create type mood as enum ('sad', 'it''s'); create domain amount as int")
    source = PostgresSource("shop", postgres.uri)
    with postgres.connect() as writer:
        for place, (kind, values) in enumerate(KINDS):
            writer.execute(f"create table t{place} (k {kind} primary key, v int)")
            column = source.describe(None, f"t{place}").columns[0]
            texts = source_text(column, pa.array(values, column.arrow))
            for number, text in enumerate(texts):
                insert = f"insert into t{place} values (%s::text::{kind}, %s)"
                writer.execute(insert, [text, number])
    with source.snapshot() as snapshot:
        for place, (kind, values) in enumerate(KINDS):
            table = source.describe(None, f"t{place}")
            (batch,) = [b for part in snapshot.parts(table) for b in part.read()]
            assert batch.column(0).to_pylist() == values, kind
            found = lookup.fetch(table, [1], [batch.column(0)])
            assert found.present.to_pylist() == [True] * len(values), kind
            (numbers,) = found.values
            assert numbers is not None
            assert numbers.to_pylist() == list(range(len(values))), kind
    source.close()


def test_keys_of_several_columns_match_as_a_whole(postgres: Database, lookup: Lookup) -> None:
    postgres.execute(
        """
        create table t (v text, a int, b text, primary key (b, a)) partition by hash (a);
        create table t0 partition of t for values with (modulus 2, remainder 0);
        create table t1 partition of t for values with (modulus 2, remainder 1);
        insert into t select i || b, i, b from generate_series(1, 9) i, unnest('{x,y}'::text[]) b
        """
    )
    keys = [pa.array(["x", "y", "z"]), pa.array([3, 4, 3], pa.int32())]
    found = lookup.fetch(shape(postgres), [0], keys)
    assert found.present.to_pylist() == [True, True, False]
    assert [v.to_pylist() for v in found.values if v is not None] == [["3x", "4y", None]]


def test_the_index_is_used(postgres: Database, lookup: Lookup) -> None:
    """Also for a type whose operators live in another schema than the session looks at."""
    postgres.execute(
        """
        create schema ext; create domain ext.name_t as text;
        create table t (k varchar(40) primary key, v text);
        insert into t select md5(i::text), 'v' from generate_series(1, 50000) i; analyze t;
        """
    )
    ((before,),) = postgres.execute("select seq_scan from pg_stat_user_tables")
    postgres.execute("select pg_stat_reset()")
    table = shape(postgres)
    ((key,),) = postgres.execute("select md5('7')")
    for _ in range(3):
        assert lookup.fetch(table, [1], [pa.array([key])]).present.to_pylist() == [True]
    lookup.close()
    deadline_rows: list[tuple[int, int]] = []
    for _ in range(200):
        deadline_rows = postgres.execute(
            "select seq_scan, idx_scan from pg_stat_user_tables where relname = 't'"
        )
        if deadline_rows[0][1] >= 3:
            break
        postgres.execute("select pg_sleep(0.05)")
    assert before is not None
    assert deadline_rows == [(0, 3)]


def test_what_is_gone_is_missing_and_no_error(postgres: Database, lookup: Lookup) -> None:
    postgres.execute(
        """
        create table t (id int primary key, kept text, dropped text, changed int);
        insert into t values (1, 'k', 'd', 4);
        """
    )
    table = shape(postgres)
    key = [pa.array([1, 2], pa.int32())]
    postgres.execute(
        """
        alter table t drop column dropped; alter table t rename kept to renamed;
        alter table t alter changed type text; alter table t rename to t_new;
        alter table t_new rename id to ident;
        """
    )
    found = lookup.fetch(table, [1, 2, 3], key)
    assert found.present.to_pylist() == [True, False]
    kept, dropped, changed = found.values
    assert kept is not None and kept.to_pylist() == ["k", None]
    assert dropped is None and changed is None
    postgres.execute("drop table t_new")
    found = lookup.fetch(table, [1], key)
    assert found.present.to_pylist() == [False, False]
    assert found.values == (None,)


def test_no_keys_ask_for_nothing(postgres: Database, lookup: Lookup) -> None:
    postgres.execute("create table t (id int primary key, v text)")
    found = lookup.fetch(shape(postgres), [1], [pa.array([], pa.int32())])
    assert len(found.present) == 0
    assert [len(v) for v in found.values if v is not None] == [0]
