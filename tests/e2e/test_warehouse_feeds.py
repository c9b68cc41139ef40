"""Feeds from a real PostgreSQL into SQL warehouses: the target equals the source."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from pathlib import Path

import psycopg
import pytest

from changefeed.core.faults import armed
from changefeed.spark.session import NodeSpark
from tests.e2e.feeds import BRISK, Feeds, running
from tests.helpers.duckdb_file import opened
from tests.helpers.waiting import until
from tests.services.postgres import Database

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.postgres]

WIDE = """
create table wide (
    id int primary key, small smallint, big bigint, yes boolean, f4 real, f8 double precision,
    money numeric(12,2), free numeric, t text, v varchar(20), raw bytea, u uuid, d date, tod time,
    tz timetz, ts timestamp, tstz timestamptz, span interval, j jsonb, ints int[], texts text[]);
insert into wide values
    (1, 1, 2, true, 0.5, 1e300, 12.30, 0.000000000000000001, 'a''b"c', 'v', '\\xdead',
     gen_random_uuid(), '2024-02-29', '12:00:00.5', '12:00:00+02', '2024-03-31 01:02:03.123456',
     '2024-03-31 01:02:03+02', '1 year 2 mons -3 days +04:05:06', '{"a": [1, null, "x"]}',
     '{1,null,3}', '{"a,b",null,"c\\"d"}'),
    (2, null, null, null, 'NaN', '-Infinity', null, null, '', null, '', null, null, null, null,
     null, null, null, 'null', '{}', null),
    (3, -32768, 9223372036854775807, false, 0.25, 'NaN', -9999999999.99, 12345678901234567890.5,
     null, '☃', '\\x00ff', null, '0001-01-01', '24:00:00', '00:00:00-12', '1970-01-01',
     '9999-12-31 23:59:59Z', '-00:00:01', '[]', '{-1}', '{}')
"""
#: What both databases print alike.
COLUMNS = """id, small, big, yes, f4, f8, money, free, t, v, raw, u, d, tz, ts, tstz, ints, texts,
    cast(tod as text), cast(j as text), cast(extract(epoch from span) as int)"""


def plain(value: object) -> object:
    """A value of either client without what tells the clients apart."""
    if isinstance(value, Decimal):
        return value.normalize()
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        return value.astimezone(dt.UTC)
    if isinstance(value, dt.time):
        return value.isoformat()
    return float(value) if isinstance(value, float) else value


def texts(rows: Iterable[Sequence[object]]) -> list[str]:
    """Rows as texts, sorted: NaN is not equal to itself."""
    return sorted(repr([plain(value) for value in row]) for row in rows)


class Bench:
    """A source, a feed over all of its tables, and a target that is read by itself."""

    def __init__(self, feeds: Feeds, source: Database) -> None:
        self.feeds = feeds
        self.source = source
        feeds.connect(shop=source.uri)

    def same(self, table: str, columns: str = "*") -> bool:
        """Source and target hold the same rows."""
        truth = texts(self.source.execute(f"select {columns} from public.{table}"))
        found = texts(self.read(f"select {columns} from {self.target_of(table)}"))
        if truth != found:
            print("source:", *truth, "target:", *found, sep="\n")
        return truth == found

    schema = "shop"
    #: A test that leaves the target as it should not be says so.
    equal = True

    def judge(self) -> None:
        """At the end of a test."""
        if self.equal:
            self.feeds.verified()

    def target_of(self, table: str) -> str:
        """Its name in a statement of the target."""
        return f"{self.schema}.{table}"

    def read(self, sql: str) -> list[tuple[object, ...]]:
        raise NotImplementedError

    def run(self, sql: str) -> None:
        """A statement of the target's owner."""
        raise NotImplementedError

    def uri(self) -> str:
        raise NotImplementedError

    #: Of every feed; without our column the target has the source's columns only.
    options = "WITH sequence_column = 'none'"

    def create(self, targets: str, options: str = "") -> None:
        self.feeds.execute(
            f"CREATE CHANGEFEED f FOR {targets} INTO '{self.uri()}' {self.options}{options}"
        )


def check_changes(bench: Bench) -> None:
    """A table with a key and one without, scanned, and after each kind of change."""
    db = bench.source
    db.execute("create table n (a int, b text); alter table n replica identity full")
    db.execute("insert into n values (1, 'x'), (1, 'x'), (null, null)")
    bench.create("t, n")
    bench.feeds.sync("f")
    assert bench.same("t", "a, b") and bench.same("n", "a, b")
    change(db)
    db.execute("delete from n where ctid = (select min(ctid) from n where a = 1)")
    db.execute("insert into n values (2, 'y'), (2, 'y'); update n set b = 'z' where a = 2")
    bench.feeds.sync("f")
    assert bench.same("t", "a, b") and bench.same("n", "a, b")


def check_shapes(bench: Bench) -> None:
    """A new, a renamed and a widened column, with rows in between."""
    db = bench.source
    db.execute("alter table t add column c int; insert into t values (70, 'z', 8)")
    db.execute("alter table t rename column b to label; alter table t alter column c type bigint")
    db.execute("insert into t values (71, 'wide', 5000000000); delete from t where a = 1")
    bench.feeds.sync("f")
    until(lambda: bench.same("t", "a, label, c"))


class IntoDuckDB(Bench):
    path = Path()

    def uri(self) -> str:
        return f"duckdb://{self.path}?schema={self.schema}"

    def read(self, sql: str) -> list[tuple[object, ...]]:
        with opened(self.path) as connection:
            connection.execute("set timezone = 'UTC'")
            return [tuple(row) for row in connection.execute(sql).fetchall()]

    def run(self, sql: str) -> None:
        with opened(self.path) as connection:
            connection.execute(sql)


class IntoPostgreSQL(Bench):
    target = ""

    def uri(self) -> str:
        return f"{self.target}?schema={self.schema}"

    def read(self, sql: str) -> list[tuple[object, ...]]:
        with psycopg.connect(self.target, options="-c timezone=UTC") as connection:
            return list(connection.execute(sql.encode()).fetchall())

    def run(self, sql: str) -> None:
        with psycopg.connect(self.target) as connection:
            connection.execute(sql.encode())


@pytest.fixture(params=["duckdb", "postgresql"])
def bench(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    postgres: Database,
    spark_engine: NodeSpark,
) -> Iterator[Bench]:
    postgres.execute("create table t (a int primary key, b text)")
    postgres.execute("insert into t select i, 'row ' || i from generate_series(1, 10) i")
    with running(tmp_path / "state", spark_engine, timings=BRISK) as feeds:
        if request.param == "duckdb":
            into = IntoDuckDB(feeds, postgres)
            into.path = tmp_path / "target.duckdb"
            yield into
            into.judge()
        else:
            name = postgres.uri.rpartition("/")[2]
            postgres.execute(f"create database {name}_copy")
            to = IntoPostgreSQL(feeds, postgres)
            to.target = f"{postgres.uri}_copy"
            yield to
            to.judge()


def change(db: Database) -> None:
    """Each kind of change."""
    db.execute("update t set b = 'new' where a <= 3")
    db.execute("delete from t where a = 4")
    db.execute("update t set a = a + 100 where a between 5 and 6")
    db.execute("begin; insert into t values (50, 'x'); delete from t where a = 50; commit")
    db.execute("begin; update t set a = -1 where a = 7; update t set a = 7 where a = 8; commit")
    db.execute("begin; truncate t; insert into t values (1, 'after'), (2, 'after'); commit")
    db.execute("update t set a = 3 where a = 1; insert into t values (1, 'again')")


def test_target_equals_source(bench: Bench) -> None:
    check_changes(bench)
    assert bench.same("t") and bench.same("n"), "a column too many"


def test_values_of_every_type(bench: Bench) -> None:
    bench.source.execute(WIDE)
    bench.create("wide")
    bench.feeds.sync("f")
    assert bench.same("wide", COLUMNS)
    bench.source.execute("update wide set t = repeat(md5(id::text), 500)")  # kept out of line
    bench.source.execute("update wide set small = 7; update wide set id = id + 10")
    bench.source.execute("update wide set raw = null, ints = '{7}', money = 0 where id = 12")
    bench.feeds.sync("f")
    assert bench.same("wide", COLUMNS)


def test_shapes_are_followed(bench: Bench) -> None:
    db = bench.source
    bench.create("t")
    bench.feeds.sync("f")
    db.execute("update t set b = 'before' where a = 2; alter table t add column c int")
    db.execute("insert into t values (70, 'z', 8); alter table t rename column b to label")
    db.execute(
        "update t set label = 'renamed' where a = 3; alter table t add column e int default 5"
    )
    db.execute("alter table t alter column c type bigint")
    db.execute("insert into t values (71, 'wide', 5000000000, 6); delete from t where a = 1")
    bench.feeds.sync("f")
    until(lambda: bench.same("t", "a, label, c, e"))
    db.execute("alter table t drop column label; insert into t values (72, 1, 1)")
    bench.feeds.sync("f")
    until(lambda: bench.same("t", "a, c, e"))


@pytest.mark.parametrize("place", ["runner.after_commit", "runner.after_save"])
def test_a_crash_around_a_commit_changes_nothing(bench: Bench, place: str) -> None:
    db = bench.source
    db.execute("create table n (a int, b text); alter table n replica identity full")
    db.execute("insert into n values (1, 'x'), (1, 'x')")
    bench.create("t, n", ", delivery = 'exactly_once'")
    bench.feeds.sync("f")
    with armed(f"{place}@1:error"):
        change(db)
        db.execute(
            "insert into n values (1, 'x'); delete from n where ctid = (select min(ctid) from n)"
        )
        until(lambda: bench.feeds.catalog.job("f").error_code)
    bench.feeds.sync("f")
    assert bench.same("t") and bench.same("n")


def test_a_node_that_ended_goes_on(bench: Bench) -> None:
    bench.create("t", ", resolved = '100ms'")
    bench.feeds.sync("f")
    bench.feeds.close()
    change(bench.source)
    bench.feeds.open()
    bench.feeds.sync("f")
    assert bench.same("t")
    until(
        lambda: any(row[0] for row in bench.read("select resolved from shop._changefeed_applied"))
    )


def test_one_value_stops_one_table(bench: Bench) -> None:
    """A date that the target cannot hold: named by column, never by value; others go on."""
    if isinstance(bench, IntoPostgreSQL):
        pytest.skip("PostgreSQL holds what PostgreSQL has")
    bench.source.execute("create table old (a int primary key, d date)")
    bench.create("t, old")
    bench.feeds.sync("f")
    bench.source.execute(
        "insert into old values (1, '0044-03-15 BC'); insert into t values (99, 'on')"
    )
    until(lambda: (99, "on") in bench.read("select * from shop.t"))

    def failed() -> list[str]:
        job = bench.feeds.catalog.job("f")
        return [str(t.error) for t in bench.feeds.catalog.tables(job.id) if t.error]

    until(failed)
    [error] = failed()
    assert "column d" in error and "0044" not in error


def test_without_deletes_a_table_without_a_key_gets_the_rows_of_its_scan(bench: Bench) -> None:
    db = bench.source
    db.execute("create table n (a int, b text); alter table n replica identity full")
    db.execute("insert into n values (1, 'x'), (1, 'x'), (null, null)")
    bench.create("t, n", ", deletes = 'no'")
    bench.feeds.sync("f")
    assert bench.same("t", "a, b") and bench.same("n", "a, b")
    db.execute("insert into n values (2, 'y'); delete from t where a = 1")
    bench.feeds.sync("f")
    assert bench.same("n", "a, b")
    bench.feeds.execute("ALTER CHANGEFEED f RESCAN")
    bench.feeds.sync("f")
    assert bench.same("n", "a, b")
    assert bench.read("select b from shop.t where a = 1") == [("row 1",)]


def test_without_deletes_an_appended_table_keeps_its_whole_scans(bench: Bench) -> None:
    bench.options = ""
    bench.create("t", " WITH history = 'append', deletes = 'no'")
    bench.feeds.sync("f")
    bench.source.execute("insert into t values (11, 'new')")
    bench.feeds.sync("f")
    bench.feeds.execute("ALTER CHANGEFEED f RESCAN t")
    bench.feeds.sync("f")
    scans = bench.read(
        "select count(*) from shop.t where _operation = 'READ' "
        "group by _sequence_num order by _sequence_num"
    )
    assert scans == [(10,), (11,)]


@pytest.mark.extended
@pytest.mark.parametrize("postgres", [16], indirect=True)
@pytest.mark.parametrize("history", ["append", "scd2"])
def test_a_history_keeps_a_value_that_its_own_transaction_inserted(
    postgres: Database, spark_engine: NodeSpark, tmp_path: Path, history: str
) -> None:
    """The second change of the transaction does not send it, and a later transaction has changed
    the row before it could be read."""
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY, b text, c text)")
    postgres.execute("ALTER TABLE t ALTER c SET STORAGE EXTERNAL")
    target = tmp_path / "out.duckdb"
    with running(tmp_path / "state", spark_engine) as feeds:
        feeds.connect(shop=postgres.uri)
        feeds.execute(
            f"CREATE CHANGEFEED f FOR shop.public.t INTO 'duckdb:///{target}' "
            f"WITH history = '{history}'"
        )
        feeds.sync("f")
        feeds.close()
        postgres.execute(
            "BEGIN; INSERT INTO t VALUES (1, 'x', repeat('A', 4000));"
            "UPDATE t SET b = 'y' WHERE id = 1; COMMIT"
        )
        postgres.execute("UPDATE t SET b = 'z' WHERE id = 1")
        postgres.execute("UPDATE t SET c = 'new' WHERE id = 1")
        feeds.open()
        feeds.sync("f")
    with opened(target) as there:
        rows = there.execute("SELECT b, left(c, 3) FROM t ORDER BY _sequence_num").fetchall()
    within = [("x", "AAA")] if history == "append" else []
    assert rows == [*within, ("y", "AAA"), ("z", "AAA"), ("z", "new")]


def failures(bench: Bench) -> list[str]:
    """What stopped tables of the feed say, with their hints."""
    job = bench.feeds.catalog.job("f")
    return [str(t.error) for t in bench.feeds.catalog.tables(job.id) if t.error]


def test_a_column_gets_another_type(bench: Bench) -> None:
    """By ALTER to text, and as another column of the same name."""
    db = bench.source
    db.execute("create table u (a int primary key, n bigint, i int, label text)")
    db.execute("insert into u values (1, 9007199254740993, -7, 'one'), (2, null, 0, 'two')")
    bench.create("u")
    bench.feeds.sync("f")
    db.execute("alter table u alter column n type varchar(40), alter column i type text")
    db.execute("insert into u values (3, 'words', 'more', 'three')")
    bench.feeds.sync("f")
    until(lambda: bench.same("u", "a, n, i, label"))
    db.execute("alter table u drop column label, add column label int default 7")
    db.execute("insert into u values (4, '4', '4', 4)")
    bench.feeds.sync("f")
    until(lambda: bench.same("u", "a, n, i, label"))
    db.execute("alter table u drop column label; alter table u add column label text")
    db.execute("insert into u values (5, '4', '4', 'word')")
    bench.feeds.sync("f")
    until(lambda: bench.same("u", "a, n, i, label"))


def test_a_type_that_is_not_wider_is_healed_as_the_message_says(bench: Bench) -> None:
    db = bench.source
    db.execute("create table u (a int primary key, n text); insert into u values (1, '5')")
    bench.create("t, u")
    bench.feeds.sync("f")
    db.execute("alter table u alter column n type int using n::int; insert into u values (2, 6)")
    until(lambda: failures(bench))
    [error] = failures(bench)
    assert "column n changed from text to integer, which is not wider" in error, error
    bench.feeds.execute("ALTER CHANGEFEED f DROP u")
    bench.run("drop table shop.u")
    bench.feeds.execute("ALTER CHANGEFEED f ADD u")
    bench.feeds.sync("f")
    assert bench.same("u", "a, n")


def test_a_json_text_that_the_target_refuses_names_its_column(bench: Bench) -> None:
    """The database itself says only that a cast failed."""
    db = bench.source
    db.execute("create table docs (a int primary key, b text, doc json, n int)")
    db.execute(r"""insert into docs values (1, '\u0000', '{"a": "x"}', 5)""")
    bench.create("t, docs")
    bench.feeds.sync("f")
    db.execute(r"""insert into docs values (2, 'b', '{"a": "hidden\u0000"}', 6)""")
    db.execute("insert into t values (99, 'on')")
    until(lambda: (99, "on") in bench.read("select * from shop.t"))
    if isinstance(bench, IntoDuckDB):
        bench.feeds.sync("f")
        assert failures(bench) == []
        return
    until(lambda: failures(bench))
    [error] = failures(bench)
    assert "column doc has a value that jsonb of PostgreSQL cannot hold" in error, error
    assert "source type json" in error and "22P05" in error and "hidden" not in error
