"""CDC queries that join look-up tables: from PostgreSQL and files of Spark into a sink."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from changefeed.catalog import Status
from changefeed.core.errors import ChangefeedError
from changefeed.spark.session import NodeSpark
from changefeed_testing.sinks.readers import visible_files
from tests.e2e.feeds import Feeds, running
from tests.helpers.waiting import until
from tests.services.postgres import Database

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.postgres, pytest.mark.slow]


@pytest.fixture
def feeds(tmp_path: Path, postgres: Database, spark_engine: NodeSpark) -> Iterator[Feeds]:
    postgres.execute(
        "create table orders (id int primary key, customer int, total int);"
        "insert into orders values (1, 10, 5), (2, 20, 6), (3, null, 7), (4, 99, 8);"
        "alter table orders replica identity full"
    )
    with running(tmp_path / "state", spark_engine) as made:
        made.connect(shop=postgres.uri)
        yield made


@pytest.fixture
def customers(tmp_path: Path) -> Path:
    """A look-up with the customers 10 and 20."""
    folder = tmp_path / "customers"
    write(folder, [10, 20], ["Ada", "Bob"])
    return folder


def write(folder: Path, ids: list[int | None], names: list[str | None]) -> None:
    """The customers anew, as a job of Spark overwrites a folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    table = pa.table({"id": pa.array(ids, pa.int64()), "name": names, "unread": [b""] * len(ids)})
    pq.write_table(table, folder / "part-0.parquet")


def lines(folder: Path) -> list[dict[str, Any]]:
    """The messages of all files, in the order of their names."""
    return [
        json.loads(line)
        for path in visible_files(folder)
        if path.suffix == ".ndjson"
        for line in path.read_text().splitlines()
    ]


def told(folder: Path) -> list[tuple[int, str | None]]:
    """Id and name of each message."""
    return [(row["id"], row["name"]) for row in lines(folder)]


def refused(feeds: Feeds, sql: str) -> ChangefeedError:
    with pytest.raises(ChangefeedError) as caught:
        feeds.execute(sql)
    assert feeds.catalog.jobs() == []
    return caught.value


def test_a_left_join_keeps_rows_without_a_row_of_the_look_up(
    feeds: Feeds, postgres: Database, customers: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    sql = (
        f"CREATE CHANGEFEED f INTO 'file://{out}' WITH lookup_refresh = '1h' "
        f"AS SELECT o.id, c.name, upper(c.name) AS loud FROM shop.public.orders AS o "
        f"LEFT JOIN parquet.`{customers}` AS c ON o.customer = c.id"
    )
    said = [str(detail) for stage, detail in feeds.execute(f"EXPLAIN {sql}").rows]
    assert f"look-up parquet.`{customers}`: one row by customer = id" in said
    assert (
        "look-ups are kept in memory, read again when 1h old; nothing is sent again when they "
        "change"
    ) in said
    feeds.execute(sql)
    feeds.sync("f")
    assert sorted(told(out)) == [(1, "Ada"), (2, "Bob"), (3, None), (4, None)]
    assert {row["id"]: row["loud"] for row in lines(out)}[1] == "ADA"
    postgres.execute("update orders set customer = 10 where id = 4")
    postgres.execute("delete from orders where id = 1")
    feeds.sync("f")
    assert told(out)[4:] == [(4, "Ada"), (1, None)]
    feeds.execute("ALTER CHANGEFEED f SET lookup_refresh = '5m'")
    feeds.execute("CREATE CHANGEFEED plain FOR orders INTO 'null://'")
    with pytest.raises(ChangefeedError, match="needs a query that joins a look-up table"):
        feeds.execute("ALTER CHANGEFEED plain SET lookup_refresh = '5m'")
    (shown,) = feeds.execute("SHOW CREATE CHANGEFEED f").rows[0][-1:]
    assert f"LEFT JOIN parquet.`{customers}` AS c ON o.customer = c.id" in str(shown)
    assert "lookup_refresh = '5m'" in str(shown)


@pytest.mark.extended
def test_an_inner_join_leaves_out_rows_without_a_row_of_the_look_up(
    feeds: Feeds, postgres: Database, customers: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    feeds.execute(
        f"CREATE CHANGEFEED f INTO 'file://{out}' AS SELECT o.id, c.name FROM orders o "
        f"JOIN parquet.`{customers}` c ON c.id = o.customer WHERE total > 5 OR c.name = 'Ada'"
    )
    feeds.sync("f")
    assert sorted(told(out)) == [(1, "Ada"), (2, "Bob")]
    postgres.execute("update orders set customer = 20 where id = 4")  # enters
    postgres.execute("update orders set customer = 77 where id = 2")  # leaves: no such customer
    postgres.execute("update orders set customer = 20 where id = 1")  # leaves: total is 5
    postgres.execute("insert into orders values (5, 77, 9)")
    feeds.sync("f")
    assert told(out)[2:] == [(4, "Bob"), (2, None), (1, None)]


@pytest.mark.extended
def test_a_refresh_sends_nothing_again_and_later_changes_see_it(
    feeds: Feeds, postgres: Database, customers: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    feeds.execute(
        f"CREATE CHANGEFEED f INTO 'file://{out}' WITH lookup_refresh = '1ms' "
        f"AS SELECT o.id, c.name FROM orders o JOIN parquet.`{customers}` c ON o.customer = c.id"
    )
    feeds.execute(
        f"CREATE CHANGEFEED old INTO 'file://{out}-old' WITH lookup_refresh = 'forever' "
        f"AS SELECT o.id, c.name FROM orders o JOIN parquet.`{customers}` c ON o.customer = c.id"
    )
    feeds.sync("f")
    feeds.sync("old")
    write(customers, [20, 99], ["Barbara", "Zoe"])
    postgres.execute("update orders set total = 0 where id = 2")
    postgres.execute("insert into orders values (6, 99, 1)")
    # The row was delivered while the look-up had its customer: it must go all the same.
    postgres.execute("delete from orders where id = 1")
    feeds.sync("f")
    feeds.sync("old")
    assert sorted(told(out)[:2]) == [(1, "Ada"), (2, "Bob")]
    assert told(out)[2:] == [(2, "Barbara"), (6, "Zoe"), (1, None)]
    assert told(Path(f"{out}-old"))[2:] == [(2, "Bob"), (1, None)]


def test_a_look_up_that_cannot_be_used_stops_the_feed_until_it_can(
    feeds: Feeds, postgres: Database, customers: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    feeds.execute(
        f"CREATE CHANGEFEED f INTO 'file://{out}' WITH lookup_refresh = '1ms' "
        f"AS SELECT o.id, c.name FROM orders o LEFT JOIN parquet.`{customers}` c "
        "ON o.customer = c.id"
    )
    feeds.sync("f")

    def stopped() -> str:
        """What the feed says once it has met the look-up; only the look-up can mend it."""
        until(lambda: feeds.catalog.job("f").error_code == "CF4004", "an error of the look-up")
        return str(feeds.catalog.job("f").error)

    shutil.rmtree(customers)
    postgres.execute("update orders set total = 0 where id = 1")
    assert "does not exist" in stopped()
    # Begun again, it asks for the columns first.
    feeds.execute("PAUSE CHANGEFEED f")
    until(lambda: feeds.catalog.job("f").status is Status.PAUSED, "a feed that is paused")
    feeds.execute("RESUME CHANGEFEED f")
    until(lambda: feeds.catalog.job("f").status is Status.RETRYING, "a feed that tries again")
    assert "does not exist" in stopped()
    write(customers, [10], ["Adele"])
    feeds.sync("f")
    assert told(out)[4:] == [(1, "Adele")]

    write(customers, [10, 10], ["Adele", "Zoe"])
    postgres.execute("update orders set customer = 10 where id = 2")
    assert "1 key with several rows" in stopped()
    write(customers, [10], ["Zoe"])
    feeds.sync("f")
    assert told(out)[5:] == [(2, "Zoe")]


def test_what_a_look_up_cannot_be_is_refused(feeds: Feeds, customers: Path, tmp_path: Path) -> None:
    def no(join: str, items: str = "id", options: str = "") -> tuple[str, str, str]:
        sql = f"CREATE CHANGEFEED f INTO 'null://' {options} AS SELECT {items} FROM orders o {join}"
        error = refused(feeds, sql)
        words = sql[error.span.start : error.span.end] if error.span else ""
        return error.code.number, error.message, words

    at = f"parquet.`{customers}`"
    assert no("JOIN nowhere AS c ON o.id = c.id") == (
        "CF4004",
        "look-up table `nowhere` does not exist",
        "nowhere",
    )
    assert no(f"JOIN parquet.`{tmp_path}/none` AS c ON o.id = c.id")[0] == "CF4004"
    assert no("JOIN parquet.`s3a://me:secret@b/x` AS c ON o.id = c.id")[:2] == (
        "CF1303",
        "the path of a look-up table cannot have a password",
    )
    assert no(f"JOIN {at} AS c ON o.custmer = c.id") == (
        "CF1101",
        "column custmer does not exist on table public.orders",
        "o.custmer = c.id",
    )
    assert no(f"JOIN {at} AS c ON o.customer = c.key")[1] == "column key does not exist on c"
    assert no(f"JOIN {at} AS c ON o.customer = c.name")[:2] == (
        "CF4004",
        "customer is int and name of the look-up table is string: they cannot be joined",
    )
    assert no(f"JOIN {at} AS total ON o.customer = total.id")[1] == (
        "total is a column of the table and the alias of a look-up table"
    )
    assert no(f"JOIN {at} AS c ON o.customer = c.id", "o.id, name")[2] == "name"
    assert no("", options="WITH lookup_refresh = '1h'")[:2] == (
        "CF1205",
        "lookup_refresh needs a query that joins a look-up table",
    )
    write(customers, [10, 10, 20, None, None], ["a", "b", "c", "d", "e"])
    assert no(f"JOIN {at} AS c ON o.customer = c.id")[:2] == (
        "CF4004",
        f"look-up table {at} has 1 key with several rows: id must be unique",
    )


@pytest.mark.extended
def test_several_look_ups_of_the_catalog_and_of_delta(
    feeds: Feeds, postgres: Database, spark_engine: NodeSpark, tmp_path: Path
) -> None:
    with spark_engine.use(packs=("delta",)) as session:
        rows = session.createDataFrame([(10, "EU"), (20, "US")], "customer int, region string")
        rows.write.format("delta").save(f"{tmp_path}/regions")
    with spark_engine.use() as session:
        session.sql("CREATE TABLE grades (grade string, total int, region string) USING parquet")
        session.sql("INSERT INTO grades VALUES ('low', 5, 'EU'), ('high', 6, 'US')")
    try:
        out = tmp_path / "out"
        feeds.execute(
            f"CREATE CHANGEFEED f INTO 'file://{out}' AS SELECT o.id, r.region AS name, "
            f"g.grade FROM orders o LEFT JOIN delta.`{tmp_path}/regions` r "
            "ON o.customer = r.customer LEFT JOIN grades g ON o.total = g.total"
        )
        feeds.sync("f")
        found = {row["id"]: (row["name"], row["grade"]) for row in lines(out)}
        assert found == {1: ("EU", "low"), 2: ("US", "high"), 3: (None, None), 4: (None, None)}
    finally:
        with spark_engine.use() as session:
            session.sql("DROP TABLE grades")


def test_verify_compares_with_the_look_up_as_it_is_now(
    feeds: Feeds, customers: Path, tmp_path: Path
) -> None:
    """A row keeps the values of the look-up that it was delivered with: REPAIR delivers it anew."""
    out = tmp_path / "out"
    feeds.execute(
        f"CREATE CHANGEFEED f INTO 'file://{out}' AS SELECT o.id, c.name "
        f"FROM shop.public.orders AS o JOIN parquet.`{customers}` AS c ON o.customer = c.id"
    )
    feeds.sync("f")
    assert feeds.execute("VERIFY CHANGEFEED f").notices == ["public.orders: equal"]
    write(customers, [10, 20], ["Ada", "Eve"])
    answer = feeds.execute("VERIFY CHANGEFEED f")
    assert [row[1:] for row in answer.rows] == [
        ("[2]", "changed", '{"name": "Eve"}', '{"name": "Bob"}')
    ]
    assert any("was read for the comparison" in notice for notice in answer.notices)
    assert feeds.execute("VERIFY CHANGEFEED f REPAIR").failure is None
    assert told(out)[-1:] == [(2, "Eve")]
