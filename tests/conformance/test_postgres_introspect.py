"""Names, shapes, lists: what the catalog of a real server says."""

from __future__ import annotations

import pytest

from changefeed.core.errors import ChangefeedError, Problems
from changefeed.core.schema import BeforeImage, TableName
from changefeed.sources.base import Watch
from changefeed.sources.postgres import PostgresSource
from tests.conformance.conftest import ALL
from tests.services.postgres import Database

pytestmark = pytest.mark.postgres


def refused(source: PostgresSource, name: str, schema: str | None = None) -> ChangefeedError:
    with pytest.raises(ChangefeedError) as caught:
        source.describe(schema, name)
    return caught.value


@ALL
def test_a_table_is_described_as_it_is(postgres: Database, source: PostgresSource) -> None:
    postgres.execute(
        """
        create type mood as enum ('sad', 'ok');
        create domain positive as int check (value > 0);
        create table "Orders" (
            gone int, region text, id bigint, note varchar(20), price numeric(12,2),
            feeling mood, quantity positive, tags text[], twice bigint generated always as (id * 2)
            stored, "Mixed Case" boolean not null, primary key (id, region));
        alter table "Orders" drop column gone;
        """
    )
    schema = source.describe(None, "Orders")
    assert schema.table == TableName("shop", "public", "Orders")
    assert [(c.name, c.column_id, c.type_name, str(c.logical)) for c in schema.columns] == [
        ("region", 2, "text", "text"),
        ("id", 3, "bigint", "int64"),
        ("note", 4, "character varying(20)", "text"),
        ("price", 5, "numeric(12,2)", "decimal(12,2)"),
        ("feeling", 6, "public.mood", "text"),
        ("quantity", 7, "public.positive", "int32"),
        ("tags", 8, "text[]", "array<text>"),
        ("Mixed Case", 10, "boolean", "bool"),
    ]
    assert [c.name for c in schema.key_columns] == ["id", "region"]
    assert [c.nullable for c in schema.columns[:3]] == [False, False, True]
    assert schema.before_image is BeforeImage.KEY
    assert not schema.keyless


@ALL
@pytest.mark.parametrize(
    ("ddl", "identity", "key", "keyless"),
    [
        ("create table t (a int primary key, b int)", BeforeImage.KEY, ["a"], False),
        ("create table t (a int, b int)", BeforeImage.KEY, ["a", "b"], True),
        (
            "create table t (a int, b int); alter table t replica identity full",
            BeforeImage.FULL,
            ["a", "b"],
            True,
        ),
        (
            "create table t (a int primary key, b int); alter table t replica identity full",
            BeforeImage.FULL,
            ["a"],
            False,
        ),
        (
            "create table t (a int not null, b int not null, c int);"
            "create unique index u on t (b, a); alter table t replica identity using index u",
            BeforeImage.KEY,
            ["b", "a"],
            False,
        ),
    ],
)
def test_the_key_follows_the_replica_identity(
    postgres: Database,
    source: PostgresSource,
    ddl: str,
    identity: BeforeImage,
    key: list[str],
    keyless: bool,
) -> None:
    postgres.execute(ddl)
    schema = source.describe("public", "t")
    assert schema.before_image is identity
    assert [c.name for c in schema.key_columns] == key
    assert schema.keyless is keyless


def test_an_unqualified_name_is_the_first_on_the_search_path(
    postgres: Database, source: PostgresSource
) -> None:
    postgres.execute(
        f"""
        create schema app; create schema other;
        create table public.t (a int primary key); create table app.t (b int primary key);
        create table other.only_there (a int primary key);
        alter database {postgres.name} set search_path = app, public;
        """
    )
    assert source.describe(None, "t").table.schema == "app"
    assert source.describe("public", "t").table.schema == "public"
    error = refused(source, "only_there")
    assert (error.code.number, error.message) == ("CF1101", 'table "only_there" does not exist')
    assert error.hint == 'did you mean "other.only_there"?'


def test_a_wrong_name_gets_the_nearest(postgres: Database, source: PostgresSource) -> None:
    postgres.execute("create schema app; create table app.customers (a int primary key)")
    assert refused(source, "custmers", "app").hint == 'did you mean "app.customers"?'
    missing = refused(source, "customers", "ap")
    assert missing.message == 'schema "ap" does not exist'
    assert missing.hint == 'did you mean "app.customers"?'
    assert refused(source, "zzz").hint == "SHOW TABLES lists what can be watched."


@ALL
def test_what_cannot_be_watched_says_what_it_is(postgres: Database, source: PostgresSource) -> None:
    postgres.execute(
        """
        create table t (a int primary key);
        create view v as select * from t;
        create materialized view m as select * from t;
        create sequence s;
        create unlogged table u (a int primary key);
        create table p (a int primary key) partition by range (a);
        create table p_1 partition of p for values from (0) to (9) partition by range (a);
        create table p_1_1 partition of p_1 for values from (0) to (5);
        create table nothing ();
        create type pair as (a int, b int);
        create foreign data wrapper w; create server far foreign data wrapper w;
        create foreign table f (a int) server far;
        """
    )
    names = ["v", "m", "s", "u", "p_1", "p_1_1", "nothing", "pair", "f", "pg_class", "t_pkey"]
    with pytest.raises(Problems) as caught:
        source.describe_all([Watch(name) for name in [*names, "t", "p"]])
    assert [problem.message for problem in caught.value.problems] == [
        "CHANGEFEED cannot target views: v",
        "CHANGEFEED cannot target materialized views: m",
        "CHANGEFEED cannot target sequences: s",
        "CHANGEFEED cannot target unlogged tables: u",
        "CHANGEFEED cannot target partitions: p_1",
        "CHANGEFEED cannot target partitions: p_1_1",
        "CHANGEFEED cannot target tables without columns: nothing",
        "CHANGEFEED cannot target composite types: pair",
        "CHANGEFEED cannot target foreign tables: f",
        "CHANGEFEED cannot target system tables: pg_class",
        "CHANGEFEED cannot target indexes: t_pkey",
    ]
    assert caught.value.problems[5].hint == "watch its table: public.p PARTITION p_1_1"
    assert {p.code.number for p in caught.value.problems} == {"CF1302"}


def test_a_temporary_table_of_another_session_is_refused(
    postgres: Database, source: PostgresSource
) -> None:
    with postgres.connect() as session:
        session.execute("create temporary table mine (a int primary key)")
        row = session.execute("select nspname from pg_namespace where oid = pg_my_temp_schema()")
        ((schema,),) = row.fetchall()
        error = refused(source, "mine", schema)
    assert error.message == "CHANGEFEED cannot target temporary tables: mine"


@ALL
def test_the_list_has_key_size_and_kind(postgres: Database, source: PostgresSource) -> None:
    postgres.execute(
        """
        create table big (a int primary key, b text);
        insert into big select i, repeat('x', 50) from generate_series(1, 20000) i;
        analyze big;
        create table fresh (a int); alter table fresh replica identity full;
        insert into fresh select i from generate_series(1, 10000) i;
        create table parts (a int primary key, b int) partition by range (a);
        create table parts_1 partition of parts for values from (0) to (500);
        create table parts_2 partition of parts default;
        insert into parts select i, i from generate_series(1, 1000) i;
        analyze parts;
        create view v as select 1;
        """
    )
    tables = {info.name.name: info for info in source.tables()}
    assert list(tables) == ["big", "fresh", "parts"]
    assert tables["big"].rows_estimate == 20_000
    assert (tables["big"].key, tables["big"].kind) == (("a",), "table")
    assert tables["fresh"].key == ()
    assert (tables["fresh"].identity, tables["fresh"].note) == ("full", "")
    assert 2_000 < tables["fresh"].rows_estimate < 50_000
    assert tables["parts"].kind == "partitioned table"
    assert tables["parts"].rows_estimate == 1_000
    assert tables["big"].bytes > tables["parts"].bytes > 0


def test_the_list_does_not_wait_for_a_table_that_is_being_altered(
    postgres: Database, source: PostgresSource
) -> None:
    postgres.execute("create table t (a int primary key); insert into t values (1); analyze t")
    with postgres.connect() as application:
        application.execute("begin")
        application.execute("alter table t add column b int")
        [table] = source.tables()
        application.execute("rollback")
    assert (table.name.name, table.key, table.rows_estimate) == ("t", ("a",), 1)
    assert table.bytes == 8192


def test_schemas_and_globs_list_tables(postgres: Database, source: PostgresSource) -> None:
    postgres.execute(
        """
        create schema app;
        create table app.orders (a int primary key); create table app.orders_old (a int);
        create table app.people (a int primary key) partition by range (a);
        create table app.people_1 partition of app.people default;
        create table public.audit (a int primary key);
        """
    )

    def found(schema: str | None, *globs: str) -> list[str]:
        return [f"{t.schema}.{t.name}" for t in source.matching(schema, globs)]

    assert found("app") == ["app.orders", "app.orders_old", "app.people"]
    assert found(None) == ["app.orders", "app.orders_old", "app.people", "public.audit"]
    assert found(None, "order*", "public.*") == ["app.orders", "app.orders_old", "public.audit"]
    assert found("app", "*_old") == ["app.orders_old"]
    with pytest.raises(ChangefeedError) as caught:
        source.matching("apq")
    assert caught.value.hint == 'did you mean "app"?'


def test_details_by_number_leave_out_what_is_gone(
    postgres: Database, source: PostgresSource
) -> None:
    postgres.execute("create table t (a int primary key, b text default 'x')")
    oid = source.describe(None, "t").table_id
    details = source.describe_oids([oid, 4_000_000_000])
    assert list(details) == [oid]
    assert details[oid].primary_key == ("a",)
    assert [c.has_default for c in details[oid].columns] == [False, True]


def test_a_session_that_the_server_ended_is_replaced(
    postgres: Database, source: PostgresSource
) -> None:
    postgres.execute("create table t (a int primary key)")
    assert len(source.tables()) == 1
    ended = postgres.execute(
        "select pg_terminate_backend(pid, 10000) from pg_stat_activity"
        " where datname = %s and application_name = 'changefeed'",
        [postgres.name],
    )
    assert ended == [(True,)]
    assert len(source.tables()) == 1


def test_a_server_that_is_not_there_is_a_retry(source: PostgresSource) -> None:
    gone = PostgresSource("shop", "postgresql://u@127.0.0.1:1/db?connect_timeout=2")
    with pytest.raises(ChangefeedError) as caught:
        gone.tables()
    assert caught.value.code.number == "CF2001"
    missing = PostgresSource("shop", source.address.reader.rpartition("/")[0] + "/no_such_database")
    with pytest.raises(ChangefeedError) as caught:
        missing.tables()
    assert caught.value.code.number == "CF2002"
