"""CDC queries that group changes by windows of commit time."""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pytest

from changefeed.catalog import Status
from changefeed.core.errors import ChangefeedError
from changefeed.core.sizes import Sizes
from changefeed.spark.session import NodeSpark
from changefeed_testing.sinks.readers import visible_files
from tests.e2e.feeds import Feeds, running
from tests.helpers.waiting import until
from tests.services.postgres import Database

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.postgres, pytest.mark.slow]

SECOND = 1_000_000_000
GROUPED = (
    "AS SELECT window.start AS at, shop, count(*) AS changes, sum(total) AS total, "
    "count_if(event_op() = 'delete') AS deletes FROM shop.public.orders "
    "GROUP BY window(event_timestamp(), '1 second'), shop"
)
Groups = dict[tuple[int, str | None], tuple[int, Decimal | None, int]]


@pytest.fixture
def feeds(tmp_path: Path, postgres: Database, spark_engine: NodeSpark) -> Iterator[Feeds]:
    postgres.execute(
        "create table orders (id int primary key, shop text, total numeric(8,2));"
        "insert into orders select i, 'old', 1 from generate_series(1, 50) i;"
        "alter table orders replica identity full"
    )
    with running(
        tmp_path / "state", spark_engine, sizes=Sizes(slice_rows=20, chunk_rows=7)
    ) as made:
        made.connect(shop=postgres.uri)
        yield made


def lines(folder: Path) -> list[dict[str, Any]]:
    """The messages of all files, in the order of their names."""
    return [
        json.loads(line, parse_float=Decimal)
        for path in visible_files(folder)
        if path.suffix == ".ndjson"
        for line in path.read_text().splitlines()
    ]


def second(stamp: str) -> int:
    """The second in which something was committed."""
    return int(stamp.partition(".")[0]) // SECOND


def expected(messages: list[dict[str, Any]]) -> Groups:
    """The groups of single changes, computed here."""
    made: Groups = {}
    for message in messages:
        row = message["after"] or message["before"]
        key = second(message["updated"]), row["shop"] if message["after"] else None
        changes, total, deletes = made.get(key, (0, None, 0))
        if message["after"]:
            total = (total or Decimal(0)) + row["total"]
        made[key] = changes + 1, total, deletes + (message["after"] is None)
    return made


def told(messages: list[dict[str, Any]]) -> Groups:
    """The groups of a feed; none comes twice."""

    made: Groups = {}
    for message in messages:
        row = message["after"]
        at = int(dt.datetime.fromisoformat(row["at"]).timestamp())
        assert second(message["updated"]) == at, "a group is committed within its window"
        key = at, row["shop"]
        assert key not in made, f"{key} came twice"
        made[key] = row["changes"], row["total"], row["deletes"]
    return made


def write(postgres: Database, rounds: range) -> None:
    """Inserts, updates and deletes of several shops over a few seconds."""
    for i in rounds:
        postgres.execute(
            f"insert into orders values ({1000 + i}, 'shop{i % 3}', {i}.25);"
            f"update orders set total = total + 1, shop = 'shop{i % 2}' where id = {1 + i % 50}"
        )
        if i % 5 == 0:
            postgres.execute(f"delete from orders where id = {1000 + i}")
        postgres.execute("select pg_sleep(0.1)")


def test_groups_are_those_of_the_changes_across_restarts(
    feeds: Feeds, postgres: Database, tmp_path: Path
) -> None:
    feeds.execute(
        f"CREATE CHANGEFEED plain FOR shop.public.orders INTO 'file://{tmp_path}/plain' "
        "WITH updated, diff, initial_scan = 'no'"
    )
    feeds.execute(
        f"CREATE CHANGEFEED sums INTO 'file://{tmp_path}/sums' "
        f"WITH updated, resolved, envelope = 'wrapped' {GROUPED}"
    )
    write(postgres, range(25))
    feeds.sync("sums")
    feeds.restart(Sizes())
    write(postgres, range(25, 40))
    feeds.sync("sums")
    feeds.sync("plain")
    found, all_changes = told(lines(tmp_path / "sums")), lines(tmp_path / "plain")
    first = min(at for at, _ in found)
    # The window in which the feed began is not told: it may have begun within a change.
    assert first <= min(second(m["updated"]) for m in all_changes) + 1
    assert found == {k: v for k, v in expected(all_changes).items() if k[0] >= first}
    assert sum(Counter(k[0] for k in found).values()) >= 6


def pass_a_window(feeds: Feeds, name: str) -> None:
    """Wait until the window in which the feed began, which is not told, is over."""

    def reached() -> int:
        high_water = feeds.catalog.job(name).high_water
        return 0 if high_water is None else high_water.wall // SECOND

    until(lambda: reached() > 0, "the feed begins")
    began = reached()
    until(lambda: reached() > began, "its first window is over")


@pytest.mark.extended
def test_a_table_gets_each_group_once_whatever_happens_to_the_table(
    feeds: Feeds, postgres: Database, tmp_path: Path
) -> None:
    """A TRUNCATE is no change of a row and empties nothing; a column that comes changes nothing."""
    copy = tmp_path / "copy.duckdb"
    feeds.execute(
        f"CREATE CHANGEFEED plain FOR shop.public.orders INTO 'file://{tmp_path}/plain' "
        "WITH updated, diff, initial_scan = 'no', schema_change_policy = 'nobackfill'"
    )
    with pytest.raises(ChangefeedError, match="shop, which may be NULL"):
        feeds.execute(f"CREATE CHANGEFEED sums INTO 'duckdb://{copy}' {GROUPED}")
    never_null = GROUPED.replace("shop,", "coalesce(shop, '') AS shop,", 1)
    never_null = never_null.removesuffix("shop") + "coalesce(shop, '')"
    feeds.execute(f"CREATE CHANGEFEED sums INTO 'duckdb://{copy}' {never_null}")
    write(postgres, range(12))
    # Changes that a busy machine reads late are told as of the moment at which it began to read.
    pass_a_window(feeds, "sums")
    postgres.execute("truncate orders; alter table orders add column note text default 'x'")
    postgres.execute("insert into orders select i, 'new', 2 from generate_series(1, 30) i")
    write(postgres, range(12, 25))
    for name in ("sums", "plain"):
        feeds.sync(name)
    feeds.close()
    with duckdb.connect(str(copy), read_only=True) as connection:
        rows = connection.execute(
            'select epoch_us("at"), shop, changes, total, deletes from orders'
        ).fetchall()
    found = {(at // 1_000_000, shop): tuple(rest) for at, shop, *rest in rows}
    assert len(found) == len(rows)
    first = min(at for at, _ in found)
    changes = [m for m in lines(tmp_path / "plain") if "updated" in m and "after" in m]
    wanted = {(at, shop or ""): group for (at, shop), group in expected(changes).items()}
    assert found == {k: v for k, v in wanted.items() if k[0] >= first}
    assert any(shop == "new" for _, shop in found)


@pytest.mark.extended
def test_a_stretch_of_the_past_is_told_in_whole_windows(
    feeds: Feeds, postgres: Database, tmp_path: Path
) -> None:
    feeds.execute(
        f"CREATE CHANGEFEED plain FOR shop.public.orders INTO 'file://{tmp_path}/plain' "
        "WITH updated, diff, initial_scan = 'no'"
    )
    write(postgres, range(30))
    feeds.sync("plain")
    changes = lines(tmp_path / "plain")
    begin, end = changes[0]["updated"], changes[-1]["updated"]
    feeds.execute(
        f"CREATE CHANGEFEED sums INTO 'file://{tmp_path}/sums' WITH updated, resolved, "
        f"envelope = 'wrapped', cursor = '{begin}', end_time = '{end}' {GROUPED}"
    )
    until(lambda: feeds.catalog.jobs()[-1].status is Status.SUCCEEDED, "the feed ends")
    found = told(lines(tmp_path / "sums"))
    seconds = range(second(begin) + 1, second(end))
    assert found == {k: v for k, v in expected(changes).items() if k[0] in seconds}
    # On a busy machine a second may pass without a change.
    assert found, "a window was whole"


def test_what_a_query_with_groups_cannot_have_is_refused(feeds: Feeds, tmp_path: Path) -> None:
    def no(items: str, group: str, options: str = "") -> tuple[str, str, str, str]:
        sql = (
            f"CREATE CHANGEFEED f INTO 'file://{tmp_path}/f' {options} AS SELECT {items} "
            f"FROM shop.public.orders GROUP BY {group}"
        )
        with pytest.raises(ChangefeedError) as caught:
            feeds.execute(sql)
        error = caught.value
        words = sql[error.span.start : error.span.end] if error.span else ""
        assert feeds.catalog.jobs() == []
        return error.code.number, error.message, error.hint or error.detail, words

    window = "window(event_timestamp(), '1 minute')"
    some = "window.start AS at, count(*) AS n"
    written = "write GROUP BY window(event_timestamp(), '1 minute'), from '1 second' to '1 day'."
    assert no("shop, count(*) AS n", "shop") == (
        "CF1303",
        "a CDC query groups by one window of the commit time",
        written,
        "shop",
    )
    assert no(some, "window(event_timestamp(), '90 days')")[1] == ("a window cannot last '90 days'")
    assert no(some, "window(event_timestamp(), 'soon')")[1] == "a window cannot last 'soon'"
    assert no(some, f"{window}, window(event_timestamp(), '2 minutes')")[1] == (
        "a CDC query groups by one window only"
    )
    assert no("count(*) AS n", window) == (
        "CF1303",
        f"the query groups by {window}, which the SELECT leaves out",
        "add window.start AS name to the SELECT.",
        window,
    )
    assert no(some, f"{window}, upper(shop)")[1:] == (
        "the query groups by upper(shop), which the SELECT leaves out",
        "add upper(shop) AS name to the SELECT.",
        "upper(shop)",
    )
    ordered = "its result depends on the order of rows, and a window may be evaluated again after"
    for call in ("first", "collect_list", "any_value", "mode"):
        found = no(f"window.start AS at, {call}(shop) AS s", window)
        assert found[1:] == (
            f"{call}() is not supported by CDC queries",
            f"{ordered} a crash",
            call,
        )
    for group, name in {
        f"{window} WITH ROLLUP": "WITH ROLLUP",
        f"GROUPING SETS (({window}))": "GROUPING SETS",
        f"{window}, CUBE(shop)": "CUBE",
    }.items():
        assert no(some, group)[:3] == (
            "CF1303",
            f"{name} is not supported by CDC queries",
            "a row of the result is known by all that the query groups by",
        )
    assert no("window.start AS at, count(*)", window)[1] == (
        "an expression of the SELECT has no name"
    )
    assert no("window.start AS at, shop", window)[0] == "CF1303"
    assert no(some, window, "WITH initial_scan = 'yes'")[1] == (
        "a query with GROUP BY has no initial scan: it groups changes, and rows that were there "
        "before are none"
    )
    assert no(some, window, "WITH transaction_metadata")[0] == "CF1205"
    assert no("window(event_timestamp(), '1 minute', '10 seconds').start AS at, 1 AS n", window)[
        1:
    ] == (
        "other windows than of GROUP BY are not supported",
        written,
        "window",
    )
    feeds.execute(
        f"CREATE CHANGEFEED f INTO 'file://{tmp_path}/f' AS SELECT {some} "
        f"FROM shop.public.orders GROUP BY {window}"
    )
    with pytest.raises(ChangefeedError, match="groups changes, and a scan reads none"):
        feeds.execute("ALTER CHANGEFEED f RESCAN")
    with pytest.raises(ChangefeedError, match="a group is of many transactions"):
        feeds.execute("ALTER CHANGEFEED f SET transaction_metadata")
    explained = feeds.execute(
        f"EXPLAIN CREATE CHANGEFEED g INTO 'file://{tmp_path}/g' AS SELECT {some} "
        f"FROM shop.public.orders GROUP BY {window}"
    ).rows
    assert [detail for stage, detail in explained if stage == "select"][1:4] == [
        "columns at timestamp, n bigint",
        "groups the changes of each 1m of commit time; a window is delivered once, when all "
        "changes up to its end are known",
        "evaluated by a Spark job for whole windows",
    ]
