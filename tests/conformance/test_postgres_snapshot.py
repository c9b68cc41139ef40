"""The initial scan on real servers: complete, consistent, exact, bounded."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from changefeed.core.errors import ChangefeedError
from changefeed.core.schema import KeyRange
from changefeed.sources.base import Watch
from changefeed.sources.postgres import PostgresSource, copyout
from changefeed.sources.postgres.connect import SESSION
from changefeed.sources.postgres.scan import READERS, PostgresPart
from changefeed.sources.postgres.values import text_value
from tests.conformance.conftest import ALL
from tests.helpers.waiting import until
from tests.services.postgres import Database

pytestmark = pytest.mark.postgres


def rows(parts: Sequence[PostgresPart]) -> list[tuple[Any, ...]]:
    """All rows, part by part, each part having been pickled as on its way to an executor."""
    found: list[tuple[Any, ...]] = []
    for part in parts:
        for batch in pickle.loads(pickle.dumps(part)).read():
            found += [tuple(row.values()) for row in batch.to_pylist()]
    return found


EVERY_TYPE = """
    create type mood as enum ('sad', 'so "so"');
    create type pair as (x int, y text);
    create domain price as numeric(10,3);
    create table every (
        a bigint primary key, b boolean, c smallint, d int, e oid, f real, g double precision,
        h numeric, i price, j text, k varchar(9), l char(4), m bytea, n uuid, o date, p time,
        q timetz, r timestamp, s timestamptz, t interval, u json, v jsonb, w int[], x text[],
        y mood, z pair, aa inet, ab int4range, ac bit(3), ad money, ae xml, af tsvector,
        ag point, ah timestamptz[], ai numeric(6,2)[], aj mood[]);
    insert into every (a) values (0);
    insert into every values
    (1, true, -3, 4, 5, 0.1, 1e300, 1.50, 2.5, 'text', 'vc', 'ch', '\\x00ff',
     'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '2024-02-29', '01:02:03.5', '01:02:03+02',
     '2024-03-31 01:02:03.25', '2024-03-31 01:02:03.123456+02', '1 day 02:00', '{"a":
  1, "a": 2}', '{"b": 1, "a": [null]}', '{1,null,3}', '{a,"b c",null,"q\\"",""}', 'so "so"',
     '(1,"x, y")', '10.0.0.1/8', '[1,5)', '101', '12.34', '<a>1</a>', 'a b', '(1,2)',
     '{"2024-01-01 00:00+00"}', '{1.10,NaN}', '{sad}'),
    (2, false, 0, 0, 0, 'NaN', '-Infinity', 'NaN', 'NaN', '', '', '', '', null, 'infinity',
     '24:00', null, '-infinity', 'infinity', '-1 mon', 'null', 'null', '{}', '{{a,b},{c,d}}',
     'sad', '(,)', '::1', 'empty', '000', '-1', '', '', null, '{infinity}', null, '{}'),
    (3, null, null, null, null, 'Infinity', '1e-5', -0.00001, null, E'line\\nbreak, "quoted"\\r\\n',
     E'\\\\.', 'é', '\\xdeadbeef', null, '0044-03-15 BC', null, null, '0044-03-15 BC',
     '10000-01-01 00:00+00', null, '"x"', '1', null, '{NULL,"NULL"}', null, null, null, null,
     null, null, null, null, null, null, null, null);
"""


@ALL
def test_every_type_comes_as_the_server_prints_it(
    postgres: Database, source: PostgresSource
) -> None:
    """The oracle is the plain text protocol and the one-value converter."""
    postgres.execute(EVERY_TYPE)
    schema = source.describe(None, "every")
    with source.snapshot([schema]) as snapshot:
        found = rows(snapshot.parts(schema))
    with postgres.connect() as plain:
        for name, value in SESSION.items():
            plain.execute("select set_config(%s, %s, false)", [name, value])
        answer = plain.execute("select * from public.every order by a").pgresult
    assert answer is not None
    expected = []
    for i in range(answer.ntuples):
        texts = [answer.get_value(i, j) for j in range(answer.nfields)]
        expected.append(
            tuple(
                text_value(column, None if text is None else text.decode())
                for column, text in zip(schema.columns, texts, strict=True)
            )
        )
    assert sorted(found) == expected
    assert len(found) == 4


@ALL
def test_the_image_is_of_one_instant(postgres: Database, source: PostgresSource) -> None:
    postgres.execute(
        """
        create table t (id int primary key, v text);
        insert into t select i, repeat('x', 200) from generate_series(1, 5000) i;
        """
    )
    schema = source.describe(None, "t")
    before = source.current_position()
    with source.snapshot([schema]) as snapshot:
        after = source.current_position()
        parts = list(snapshot.parts(schema, 100_000))
        postgres.execute("insert into t select i, 'new' from generate_series(5001, 9000) i")
        postgres.execute("update t set v = 'changed' where id % 3 = 0")
        postgres.execute("delete from t where id % 5 = 0")
        postgres.execute("vacuum t")
        found = rows(parts)
        assert before <= snapshot.position <= after
    assert len(parts) > 5
    assert sorted(found) == [(i, "x" * 200) for i in range(1, 5001)]


@ALL
def test_parts_are_ranges_with_an_open_end(postgres: Database, source: PostgresSource) -> None:
    postgres.execute("create table t (id int primary key, v text)")
    postgres.execute("insert into t select i, repeat('x', 700) from generate_series(1, 2000) i")
    schema = source.describe(None, "t")
    with source.snapshot([schema]) as snapshot:
        parts = snapshot.parts(schema, 160_000)
        assert [p.low for p in parts] == sorted({p.low for p in parts})
        assert [p.high for p in parts[:-1]] == [p.low for p in parts[1:]]
        assert parts[0].low == 0 and parts[-1].high is None
        # Never analysed: the estimate is by the size of the file and the width of columns.
        assert 1_000 < sum(p.rows_estimate for p in parts) < 100_000
        assert sum(p.bytes_estimate for p in parts) == pytest.approx(1_700_000, rel=0.2)
        (whole,) = snapshot.parts(schema)
        assert whole.whole and "ctid" not in whole.query().as_string(None)


@ALL
def test_an_empty_table_is_one_empty_part(postgres: Database, source: PostgresSource) -> None:
    postgres.execute("create table t (id int primary key)")
    schema = source.describe(None, "t")
    with source.snapshot([schema]) as snapshot:
        parts = snapshot.parts(schema)
        postgres.execute("insert into t values (1)")
        assert len(parts) == 1
        assert rows(parts) == []


@ALL
def test_a_partitioned_table_is_read_leaf_by_leaf(
    postgres: Database, source: PostgresSource
) -> None:
    """The second leaf has its columns in another order, and one more that is gone."""
    postgres.execute(
        """
        create table p (id int, region text, v text, primary key (id, region))
            partition by list (region);
        create table p_eu partition of p for values in ('eu') partition by range (id);
        create table p_eu_1 partition of p_eu for values from (0) to (100);
        create table p_us (gone int, v text, region text not null, id int not null);
        alter table p_us drop column gone;
        alter table p attach partition p_us for values in ('us');
        insert into p select i, 'eu', 'e' || i from generate_series(1, 50) i;
        insert into p select i, 'us', 'u' || i from generate_series(1, 70) i;
        analyze p;
        """
    )
    schema = source.describe(None, "p")
    with source.snapshot([schema]) as snapshot:
        parts = snapshot.parts(schema)
        assert [part.relation[1] for part in parts] == ["p_eu_1", "p_us"]
        assert [part.rows_estimate for part in parts] == [50, 70]
        found = sorted(rows(parts))
    assert found == sorted(
        [(i, "eu", f"e{i}") for i in range(1, 51)] + [(i, "us", f"u{i}") for i in range(1, 71)]
    )


@ALL
def test_columns_and_key_ranges_are_pushed_down(postgres: Database, source: PostgresSource) -> None:
    postgres.execute(
        """
        create table t (a text, b int, c text, d int, primary key (b, a));
        insert into t select chr(64 + i % 26), i % 10, repeat('c', 10), i
            from generate_series(1, 130) i;
        """
    )
    schema = source.describe(None, "t")
    with source.snapshot([schema]) as snapshot:

        def read(low: tuple[str, ...] | None, high: tuple[str, ...] | None) -> list[Any]:
            parts = snapshot.parts(schema, columns=[3], keys=KeyRange(low, high))
            return sorted(rows(parts))

        everything = [(chr(64 + i % 26), i % 10, None, i) for i in range(1, 131)]
        assert read(None, None) == sorted(everything)
        assert read(("3", "B"), ("5",)) == sorted(
            r for r in everything if (r[1], r[0]) >= (3, "B") and r[1] < 5
        )
        assert read(None, ("1", "it's")) == sorted(r for r in everything if (r[1], r[0]) < (1, "i"))
        with pytest.raises(ChangefeedError) as caught:
            read(("x",), None)
        assert caught.value.code.number == "CF2202"


def test_text_ranges_go_by_code_point(postgres: Database, source: PostgresSource) -> None:
    """The stream's rows are filtered without the source's collation: so are the scan's."""
    postgres.execute('create table t (a text collate "en-x-icu" primary key)')
    postgres.execute("insert into t values ('a'), ('B'), ('c'), ('é'), ('z')")
    schema = source.describe(None, "t")
    with source.snapshot([schema]) as snapshot:
        found = rows(snapshot.parts(schema, keys=KeyRange(("a",), ("z",))))
    assert sorted(found) == [("a",), ("c",)]


def test_one_column_of_nulls_keeps_its_rows(postgres: Database, source: PostgresSource) -> None:
    """A row of one NULL is an empty line of CSV."""
    postgres.execute("create table t (v text); insert into t values (null), (''), (null), ('x')")
    schema = source.describe(None, "t")
    with source.snapshot([schema]) as snapshot:
        assert rows(snapshot.parts(schema)) == [(None,), ("",), (None,), ("x",)]


def test_large_rows_and_many_blocks_stay_whole(postgres: Database, source: PostgresSource) -> None:
    postgres.execute("create table t (id int primary key, v text)")
    postgres.execute(
        """
        insert into t select i, repeat('ab"', case when i = 7 then 5000000 else 20000 end)
        from generate_series(1, 400) i
        """
    )
    schema = source.describe(None, "t")
    with source.snapshot([schema]) as snapshot:
        batches = [b for part in snapshot.parts(schema) for b in part.read()]
    assert len(batches) > 4
    lengths = {row["a0"]: len(row["a1"]) for b in batches for row in b.to_pylist()}
    assert lengths == {i: 15_000_000 if i == 7 else 60_000 for i in range(1, 401)}
    assert max(b.nbytes for b in batches[1:]) < 30_000_000
    assert {b.schema for b in batches} == {
        pa.schema([pa.field("a0", pa.int32()), pa.field("a1", pa.string())])
    }


def test_many_small_tables_share_connections(postgres: Database, source: PostgresSource) -> None:
    postgres.execute(
        ";".join(
            f"create table t{i} (id int primary key); insert into t{i} values ({i})"
            for i in range(60)
        )
    )
    schemas = source.describe_all([Watch(f"t{i}") for i in range(60)])
    with source.snapshot(schemas) as snapshot:
        used: set[int] = set()
        for number, schema in enumerate(schemas):
            assert rows(snapshot.parts(schema)) == [(number,)]
            used |= {c.info.backend_pid for idle in READERS._idle.values() for c in idle}
        assert len(used) == 1
        ((sessions,),) = postgres.execute(
            "select count(*) from pg_stat_activity where application_name = 'changefeed'"
            " and datname = %s",
            [postgres.name],
        )
        assert sessions <= 3
    assert not any(READERS._idle.values())


@ALL
def test_a_long_scan_holds_back_no_log_and_no_lock(
    postgres: Database, source: PostgresSource
) -> None:
    postgres.execute("create table t (id int primary key, v text)")
    postgres.execute("insert into t select i, repeat('x', 500) from generate_series(1, 3000) i")
    schema = source.describe(None, "t")
    with source.snapshot([schema]) as snapshot:
        parts = snapshot.parts(schema, 200_000)
        assert len(rows(parts[:2])) > 0
        # The server removes a temporary slot when it notices that its session has ended.
        until(lambda: postgres.slots() == [], "the slot of the snapshot is gone")
        # DDL that rewrites nothing goes through between two parts, and does no harm.
        postgres.execute("set lock_timeout = '5s'; alter table t add column late int default 7")
        assert len(rows(parts)) == 3000
        held = postgres.execute(
            "select relation::regclass::text, mode from pg_locks"
            " where relation = 't'::regclass and pid <> pg_backend_pid()"
        )
        assert held == []


@pytest.mark.parametrize(
    "ddl",
    [
        "truncate t",
        "alter table t alter column v type varchar(2000) using v || '!'",
        "alter table t alter column id type bigint",
        "vacuum full t",
        "alter table t rename column v to w",
        "alter table t drop column v; alter table t add column v text",
        "alter table t rename to renamed",
        "drop table t",
    ],
)
@pytest.mark.parametrize("when", ["before parts", "between parts"])
def test_ddl_that_a_snapshot_does_not_survive_is_found_out(
    postgres: Database, source: PostgresSource, ddl: str, when: str
) -> None:
    """Each of these would silently give an empty or a torn table."""
    postgres.execute("create table t (id int primary key, v text)")
    postgres.execute("insert into t select i, repeat('x', 500) from generate_series(1, 2000) i")
    schema = source.describe(None, "t")

    def alter() -> None:
        for statement in ddl.split(";"):
            postgres.execute(statement)

    with source.snapshot([schema]) as snapshot, pytest.raises(ChangefeedError) as caught:
        if when == "before parts":
            alter()
            rows(snapshot.parts(schema, 200_000))
        else:
            parts = snapshot.parts(schema, 200_000)
            assert len(rows(parts[:1])) > 0
            alter()
            rows(parts[1:])
    assert caught.value.code.number == "CF2201"
    assert "changed during its initial scan" in caught.value.message


def test_a_table_without_rights_fails_alone(postgres: Database, source: PostgresSource) -> None:
    postgres.execute(
        """
        create table open_one (id int primary key); insert into open_one values (1);
        create table shut (id int primary key); insert into shut values (1);
        create table guarded (id int primary key, who text);
        alter table guarded enable row level security;
        create policy mine on guarded using (who = current_user);
        """
    )
    role = f"reader_{postgres.name}"
    postgres.execute(f"create role {role} login replication")
    try:
        postgres.execute(f"grant select on open_one, guarded to {role}")
        limited = PostgresSource("shop", postgres.uri.replace("postgres@", f"{role}@"))
        schemas = limited.describe_all([Watch("open_one"), Watch("shut"), Watch("guarded")])
        with limited.snapshot(schemas) as snapshot:
            for schema in schemas[1:]:
                with pytest.raises(ChangefeedError) as caught:
                    rows(snapshot.parts(schema))
                assert caught.value.code.number == "CF2202"
            assert rows(snapshot.parts(schemas[0])) == [(1,)]
        limited.close()
    finally:
        postgres.execute(f"drop owned by {role}; drop role {role}")


def test_a_scan_left_early_leaves_nothing_behind(
    postgres: Database, source: PostgresSource
) -> None:
    postgres.execute("create table t (id int primary key, v text)")
    postgres.execute("insert into t select i, repeat('x', 900) from generate_series(1, 20000) i")
    schema = source.describe(None, "t")
    with source.snapshot([schema]) as snapshot:
        (part,) = snapshot.parts(schema)
        reading = part.read()
        assert next(reading).num_rows > 0
        del reading  # as when the consumer of the generator fails
        assert not READERS._idle
        assert len(rows([part])) == 20_000


def test_a_text_that_is_not_utf8_is_an_error(postgres: Database) -> None:
    postgres.server.execute("create database raw_bytes template template0 encoding 'SQL_ASCII'")
    try:
        uri = postgres.server.uri("raw_bytes")
        with psycopg.connect(uri, autocommit=True) as connection:
            connection.execute("create table t (v text)")
            connection.execute("insert into t values (convert_from('\\xff41', 'SQL_ASCII'))")
        source = PostgresSource("shop", uri)
        schema = source.describe(None, "t")
        with source.snapshot([schema]) as snapshot, pytest.raises(ChangefeedError) as caught:
            rows(snapshot.parts(schema))
        assert caught.value.code.number == "CF2202"
        assert "UTF8" in caught.value.message
        source.close()
    finally:
        postgres.server.execute("drop database raw_bytes with (force)")


def test_rows_are_the_same_by_either_way_of_reading(
    postgres: Database, source: PostgresSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the socket, and (as with encryption) through psycopg; blocks of a few rows."""
    postgres.execute(EVERY_TYPE)
    postgres.execute(
        "insert into every (a, j) select i, repeat('d', i) from generate_series(9, 999) i"
    )
    schema = source.describe(None, "every")
    monkeypatch.setattr(copyout.copy_out, "__defaults__", (3_000,))
    with source.snapshot([schema]) as snapshot:
        parts = snapshot.parts(schema)
        from_socket = rows(parts)
        monkeypatch.setattr(copyout, "is_plain", lambda _: False)
        assert rows(parts) == from_socket
        assert len(from_socket) == 995
