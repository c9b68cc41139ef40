"""Delta and Iceberg tables kept by a feed from a real PostgreSQL equal the source."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from changefeed.core.clock import Timestamp
from changefeed.core.errors import Code
from changefeed.core.faults import armed
from changefeed.core.sizes import Sizes
from changefeed.spark.session import NodeSpark
from tests.e2e.feeds import Feeds, running
from tests.helpers.lake import Lake, unused_catalog
from tests.helpers.waiting import until
from tests.services.postgres import Database

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.postgres]

FORMATS = ("delta", "iceberg")


class Bench:
    """One database, one state, one place."""

    def __init__(self, feeds: Feeds, db: Database, lake: Lake) -> None:
        self.feeds = feeds
        self.db = db
        self.lake = lake
        feeds.connect(shop=db.uri)

    def create(self, targets: str = "t", options: str = "") -> None:
        more = f" WITH {options}" if options else ""
        self.feeds.execute(f"CREATE CHANGEFEED f FOR {targets} INTO '{self.lake.uri}'{more}")
        self.feeds.sync("f")

    def check(self, columns: str = "a, b", table: str = "t") -> None:
        """The target equals the source. ``columns``: in SQL of Spark."""
        self.feeds.sync("f")
        ours = columns.replace("`", '"')
        want = sorted(self.db.execute(f"select {ours} from {table}"), key=repr)
        got = sorted(self.lake.query(f"select {columns} from {{{table}}}"), key=repr)
        assert got == [tuple(row) for row in want]


@pytest.fixture(params=FORMATS)
def bench(
    request: pytest.FixtureRequest, tmp_path: Path, postgres: Database, spark_engine: NodeSpark
) -> Iterator[Bench]:
    uri = {
        "delta": f"delta://{tmp_path}/lake",
        "iceberg": f"iceberg://{unused_catalog()}/shop?type=hadoop&warehouse={tmp_path}/lake",
    }[request.param]
    postgres.execute(
        "create table t (a int primary key, b text);"
        "insert into t select i, 'row ' || i from generate_series(1, 10) i"
    )
    with running(tmp_path / "state", spark_engine) as feeds:
        yield Bench(feeds, postgres, Lake(spark_engine, uri))
        feeds.verified()


def test_every_kind_of_change(bench: Bench) -> None:
    bench.feeds.restart(Sizes(small_scan_rows=0))  # the scan goes through Spark
    bench.create()
    bench.check()
    db = bench.db
    db.execute("update t set b = 'new' where a <= 3")
    db.execute("delete from t where a = 4")
    db.execute("update t set a = 100 where a = 5")
    db.execute("begin; update t set b = '1' where a = 6; update t set b = '2' where a = 6; commit")
    bench.check()
    db.execute("begin; truncate t; insert into t values (1, 'again'), (2, 'x'); commit")
    bench.check()
    db.execute("alter table t add column c bigint; insert into t values (3, 'y', 9)")
    db.execute("alter table t rename column b to d; update t set d = 'z' where a = 1")
    bench.check("a, d, c")
    assert {note["changefeed.feed"] for note in bench.lake.notes("t")} == {"f"}


@pytest.mark.extended
@pytest.mark.parametrize("bench", ["delta"], indirect=True)
@pytest.mark.extended
def test_names_in_capitals_are_followed(bench: Bench) -> None:
    """Also where only their case changes."""
    bench.db.execute(
        'create table names ("Id" int primary key, "ColA" text, "colB" int);'
        "insert into names values (1, 'x', 1), (2, 'y', 2)"
    )
    bench.create("names")
    bench.db.execute(
        "update names set \"ColA\" = 'z' where \"Id\" = 1; insert into names values (3, 'w', 3)"
    )
    bench.check("`Id`, `ColA`, `colB`", "names")
    bench.db.execute(
        'alter table names rename "ColA" to "COLA"; alter table names add "New" int default 7;'
        'delete from names where "Id" = 2; update names set "colB" = 9'
    )
    bench.check("`Id`, `COLA`, `colB`, `New`", "names")
    assert bench.feeds.verified() == ["f"]


@pytest.mark.extended
def test_values_beyond_the_types_of_a_lake_stop_their_tables_alone(bench: Bench) -> None:
    beyond = {
        "early": ("date", "0044-03-15 BC"),
        "late": ("timestamp", "294276-12-31 23:59:59"),
        "undefined": ("numeric(12,2)", "NaN"),
    }
    within = {"wide": ("numeric(38,10)", "9" * 28 + "." + "9" * 10)}
    for table, (kind, _) in (beyond | within).items():
        bench.db.execute(f"create table {table} (a int primary key, b {kind})")
    bench.create(", ".join(beyond | within))
    for table, (_, value) in (beyond | within).items():
        bench.db.execute(f"insert into {table} values (1, '{value}')")

    def failed() -> dict[str, str]:
        tables = bench.feeds.catalog.tables(bench.feeds.catalog.job("f").id)
        return {t.table.name: str(t.error) for t in tables if t.error}

    until(lambda: failed().keys() == beyond.keys(), "these tables stop")
    for table, error in failed().items():
        assert "column b" in error and beyond[table][1] not in error, error
    want = [tuple(row) for row in bench.db.execute("select a, b from wide")]
    until(lambda: bench.lake.query("select a, b from {wide}") == want, "another goes on")


def test_a_crash_between_merge_and_progress_changes_nothing(bench: Bench) -> None:
    bench.create()
    bench.db.execute("insert into t values (20, 'x')")
    bench.check()
    with armed("runner.after_commit@1:error"):
        bench.db.execute("insert into t values (21, 'x'); delete from t where a = 20")
        until(lambda: bench.feeds.catalog.job("f").error_code)
    bench.check()
    # A restart: what was committed and not saved comes again to another sink object.
    with armed("runner.after_commit@1:error"):
        bench.db.execute("delete from t where a = 21; insert into t values (22, 'y')")
        until(lambda: bench.feeds.catalog.job("f").error_code)
        bench.feeds.close()
    bench.feeds.open()
    bench.check()
    notes = bench.lake.notes("t")
    applied = [int(note["changefeed.applied"]) for note in notes if "changefeed.applied" in note]
    assert applied == sorted(set(applied)), "each commit says more than the one before"
    assert [Timestamp.parse(n["changefeed.resolved"]).version for n in notes][-1] == applied[-1]


WIDE = """
    create table wide (id int primary key, money numeric(10,2), any_number numeric, f4 real,
        f8 double precision, raw bytea, day date, ts timestamp, tstz timestamptz, j jsonb, u uuid,
        tags text[], numbers int[], yes boolean, small smallint);
    insert into wide values
        (1, 12.30, 1e30, 'NaN', '-Infinity', '\\xdeadbeef', '2024-02-29', '2024-01-01 00:00:00.1',
         '2024-03-31 01:02:03.000001+02', '{"a": [1, null]}', gen_random_uuid(), '{a,NULL,"b c"}',
         '{1,2}', true, -3),
        (2, -0.01, 0.10, '-0', 1e-300, '', '0001-01-01', '1999-12-31', '1970-01-01+00', 'null',
         null, '{}', null, false, 0),
        (3, null, null, null, null, null, null, null, null, null, null, null, null, null, null)
"""


@pytest.mark.extended  # a Spark query each time a table is compared
@pytest.mark.parametrize(
    "bench", [pytest.param("delta", marks=pytest.mark.everything), "iceberg"], indirect=True
)
def test_verify_finds_what_differs(bench: Bench) -> None:
    """Equal values of every type are equal; each kind of difference is named and repaired."""
    bench.db.execute(WIDE)
    bench.create("t, wide")
    bench.db.execute("delete from t where a = 10; update wide set small = 9 where id = 2")
    equal = bench.feeds.execute("VERIFY CHANGEFEED f")
    assert (equal.rows, equal.failure) == ([], None)
    assert equal.notices == ["public.t: equal", "public.wide: equal"]
    bench.lake.query("DELETE FROM {t} WHERE a = 2")
    bench.lake.query("UPDATE {t} SET b = NULL WHERE a = 3")
    bench.lake.query("UPDATE {t} SET a = 99 WHERE a = 4")
    bench.lake.query("UPDATE {wide} SET raw = unhex('deaf'), tags = array('a') WHERE id = 1")
    answer = bench.feeds.execute("VERIFY CHANGEFEED f")
    assert answer.failure is not None and answer.failure.code is Code.TARGET_DIFFERS
    assert set(answer.rows) == {
        ("public.t", "[2]", "missing", '{"a": "2", "b": "row 2"}', None),
        ("public.t", "[3]", "changed", '{"b": "row 3"}', '{"b": null}'),
        ("public.t", "[4]", "missing", '{"a": "4", "b": "row 4"}', None),
        ("public.t", "[99]", "extra", None, '{"a": "99", "b": "row 4"}'),
        (
            "public.wide",
            "[1]",
            "changed",
            '{"raw": "\\\\xdeadbeef", "tags": "[\\"a\\",null,\\"b c\\"]"}',
            '{"raw": "\\\\xdeaf", "tags": "[\\"a\\"]"}',
        ),
    }
    repaired = bench.feeds.execute("VERIFY CHANGEFEED f REPAIR")
    assert repaired.failure is None and len(repaired.rows) == 5
    assert bench.feeds.execute("VERIFY CHANGEFEED f").rows == []
