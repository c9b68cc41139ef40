"""What changes a table without a row reaches the target, SYNC waits for it, EVENTS tells it."""

from __future__ import annotations

import json
import sqlite3
from functools import partial
from pathlib import Path

import pytest

from tests.e2e.feeds import Feeds
from tests.helpers.waiting import until
from tests.services.postgres import Database, PostgresCluster

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize("postgres", [16], indirect=True)
def test_a_default_reaches_the_rows_that_are_there(
    postgres: Database, feeds: Feeds, tmp_path: Path
) -> None:
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1), (2)")
    feeds.connect(shop=postgres.uri)
    feeds.execute(
        f"CREATE CHANGEFEED f FOR shop.public.t INTO 'experimental-sql:///sqlite:///{tmp_path}/o.db'"
    )
    feeds.sync("f")

    postgres.execute("ALTER TABLE t ADD x int DEFAULT 5")
    feeds.sync("f")

    with sqlite3.connect(tmp_path / "o.db") as found:
        values = found.execute("SELECT value FROM changefeed_messages ORDER BY rowid").fetchall()
    rows = [json.loads(value)["after"] for (value,) in values]
    assert sorted(map(str, rows)) == [
        "{'id': 1, 'x': 5}", "{'id': 1}", "{'id': 2, 'x': 5}", "{'id': 2}",
    ]  # fmt: skip


@pytest.mark.parametrize("postgres", [16], indirect=True)
def test_events_tell_what_happened_to_a_table(
    postgres: Database, feeds: Feeds, tmp_path: Path
) -> None:
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1), (2)")
    feeds.connect(shop=postgres.uri)
    feeds.execute(f"CREATE CHANGEFEED f FOR shop.public.t INTO 'file://{tmp_path}/out'")
    feeds.sync("f")
    postgres.execute("ALTER TABLE t ADD x int; INSERT INTO t VALUES (3, 3)")
    feeds.sync("f")
    feeds.execute("PAUSE CHANGEFEED f")
    postgres.execute("TRUNCATE t; ALTER TABLE t DROP x; INSERT INTO t VALUES (4)")
    feeds.execute("RESUME CHANGEFEED f")
    feeds.sync("f")

    events = feeds.execute("SHOW CHANGEFEED f EVENTS").rows[::-1]
    of_table = [(kind, event) for _, kind, table, event, *_ in events if table == "shop.public.t"]
    scan, *changes = of_table
    assert scan[0] == "scan" and str(scan[1]).startswith("scanned: 2 rows as of ")
    assert changes == [
        ("schema", 'column "x" added (integer)'),
        ("truncate", "all rows were removed"),
        ("schema", 'column "x" dropped'),
    ]
    life = [event for _, kind, _, event, *_ in events if kind == "status"]
    assert life[0] == "created" and "running -> paused: paused by the user" in life
    [newest] = feeds.execute("SHOW CHANGEFEED f EVENTS LIMIT 1").rows
    assert newest == events[-1]


@pytest.mark.extended
def test_an_idle_table_holds_no_log_of_its_server(
    own_postgres: PostgresCluster, feeds: Feeds, tmp_path: Path
) -> None:
    """Whether another database is written, or a table of its own that is in no feed."""
    with own_postgres.database() as shop, own_postgres.database() as other:
        shop.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
        feeds.connect(shop=shop.uri)
        feeds.execute(f"CREATE CHANGEFEED f FOR shop.public.t INTO 'file://{tmp_path}/out'")
        feeds.sync("f")

        for writer in (other, shop):
            writer.execute(
                "CREATE TABLE noise AS SELECT repeat('x', 1000) FROM generate_series(1, 20000)"
            )
            [(end,)] = shop.execute("SELECT pg_current_wal_lsn()::text")
            released = (
                f"SELECT 1 FROM pg_replication_slots WHERE restart_lsn >= '{end}'"
                " AND database = current_database()"
            )
            until(partial(shop.execute, released), "the slot releases what others wrote")
