"""Feeds of a role that may only log in, replicate and read, from what an administrator made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from changefeed.api import Result
from changefeed.catalog.model import TableState
from changefeed.spark.session import NodeSpark
from tests.e2e.feeds import BRISK, Feeds, running
from tests.helpers.duckdb_file import opened
from tests.helpers.postgres_slots import drop_slot
from tests.helpers.waiting import until
from tests.services.postgres import Database

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.postgres]

TABLES = """
    create table items (id int primary key, name text, secret text);
    create table orders (id int primary key, total int);
    create table parted (id int primary key, v text) partition by range (id);
    create table parted_1 partition of parted for values from (0) to (100);
    create table hidden (id int primary key, n int, big text);
    insert into items select n, 'item ' || n, 'secret' from generate_series(1, 20) n;
    insert into orders select n, n from generate_series(1, 20) n;
    insert into parted select n, 'v' from generate_series(1, 20) n;
    insert into hidden select 1, 1, string_agg(md5(n::text), '') from generate_series(1, 500) n
"""


class Bench:
    """An administrator's database, and a node that reads it with the least rights."""

    def __init__(self, feeds: Feeds, database: Database, path: Path) -> None:
        self.feeds = feeds
        self.database = database
        self.path = path
        self.role = f"feeds_{database.name}"
        database.execute(TABLES)
        database.execute(f"create role {self.role} login replication")
        database.execute(f"grant select (id, name) on items to {self.role}")
        database.execute(f"grant select on orders, parted, parted_1 to {self.role}")
        database.execute(
            "create publication cdc for table items (id, name), orders where (id > 5), parted,"
            " hidden with (publish_via_partition_root = true)"
        )
        database.execute(f"select pg_create_logical_replication_slot('{self.role}', 'pgoutput')")
        uri = database.uri.replace("postgres@", f"{self.role}@")
        feeds.connect(shop=f"{uri}?publication=cdc&slot={self.role}")

    def objects(self) -> Sequence[object]:
        """What is at the source."""
        execute = self.database.execute
        return (
            execute("select oid, xmin::text, * from pg_publication order by oid"),
            execute("select oid, xmin::text, * from pg_publication_rel order by oid"),
            execute("select obj_description(oid, 'pg_publication') from pg_publication"),
            execute(
                "select slot_name, plugin from pg_replication_slots"
                " where database = current_database()"
            ),
            execute("select oid, relreplident from pg_class order by oid"),
            execute("select tgname from pg_trigger"),
            execute("select evtname from pg_event_trigger"),
        )

    def equal(self) -> Result:
        """VERIFY after everything was delivered."""
        self.feeds.sync("f")
        answer = self.feeds.execute("VERIFY CHANGEFEED f")
        assert (answer.rows, answer.failure) == ([], None)
        return answer

    def copied(self, query: str) -> list[tuple[object, ...]]:
        """Of the copy."""
        with opened(self.path) as connection:
            return [tuple(row) for row in connection.execute(query).fetchall()]


@pytest.fixture
def bench(tmp_path: Path, postgres: Database, spark_engine: NodeSpark) -> Iterator[Bench]:
    with running(tmp_path / "state", spark_engine, timings=BRISK) as feeds:
        made = Bench(feeds, postgres, tmp_path / "copies.duckdb")
        yield made
    drop_slot(postgres, made.role)
    postgres.execute(f"drop owned by {made.role}; drop role {made.role}")


def test_the_publication_is_the_truth_and_stays_as_it_is(bench: Bench) -> None:
    """Scan, changes, a large transaction of a table that nobody wants or may read, RESCAN, a change
    by the administrator, DROP."""
    feeds, execute = bench.feeds, bench.database.execute
    before = bench.objects()
    create = f"FOR items, orders, parted INTO 'duckdb://{bench.path}?schema=copy'"
    feeds.execute("USE shop")
    checked = feeds.execute(f"VALIDATE CREATE CHANGEFEED f {create}")
    assert not [row for row in checked.rows if "error" in row]
    feeds.execute(f"CREATE CHANGEFEED f {create}")
    bench.equal()
    assert bench.copied("select count(*), min(id) from copy.orders") == [(15, 6)]

    execute(
        "update items set name = 'new', secret = 'other' where id = 3;"
        "delete from items where id = 4"
    )
    execute("update orders set id = 30 where id = 2; update orders set id = -7 where id = 7")
    execute("delete from orders where id = 8; update orders set total = 0 where id = 9")
    execute("insert into parted values (50, 'x'); truncate parted; insert into parted values (1)")
    # Large values that are not sent would be looked up, which this role may not.
    execute("update hidden set n = n + 1; insert into hidden select n from generate_series(2, 9) n")
    execute("insert into hidden select n, 1, repeat('x', 500) from generate_series(10, 90000) n")
    bench.equal()
    assert "secret" not in [
        c for (c,) in bench.copied("select column_name from information_schema.columns")
    ]
    assert bench.copied("select min(id), max(id) from copy.orders") == [(6, 30)]

    feeds.execute("ALTER CHANGEFEED f RESCAN")
    bench.equal()
    assert bench.objects() == before

    execute("alter publication cdc drop table parted; delete from parted")
    execute("alter publication cdc add table parted")
    [job] = feeds.catalog.jobs()

    def failed() -> list[str]:
        tables = feeds.catalog.tables(job.id)
        return [t.table.name for t in tables if t.state is TableState.FAILED]

    until(lambda: failed() == ["parted"], "the gap was found")
    [table] = [t for t in feeds.catalog.tables(job.id) if t.table.name == "parted"]
    assert table.error_code == "CF2107" and "and put back" in (table.error or "")
    feeds.execute("ALTER CHANGEFEED f RESCAN parted")
    bench.equal()

    changed = bench.objects()
    feeds.execute("DROP CHANGEFEED f")
    until(lambda: not feeds.catalog.source_state("shop").memo, "the source is left")
    assert bench.objects() == changed
