"""Odd tables of a MariaDB: each works, is read again or stops alone, and its neighbours go on."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from changefeed.catalog.model import Status, TableState
from tests.e2e.feeds import Feeds, running
from tests.helpers.duckdb_file import opened
from tests.helpers.waiting import until
from tests.services.mysql import BinlogServer

pytestmark = pytest.mark.e2e

TABLES = ("packed", "hashed", "plain", "undone", "stated", "versioned")


class Copies:
    """A feed ``f`` of all odd tables and one of a table ``quiet``, each with a file of its own."""

    def __init__(self, feeds: Feeds, server: BinlogServer, database: str, folder: Path) -> None:
        self.feeds, self.server, self.database, self.folder = feeds, server, database, folder
        feeds.connect(shop=server.uri(database))
        self.create("f", *TABLES)
        self.create("bystander", "quiet")

    def create(self, feed: str, *tables: str) -> None:
        names = ", ".join(f"shop.{self.database}.{table}" for table in tables)
        target = f"duckdb://{self.folder}/{feed}.duckdb"
        self.feeds.execute(f"CREATE CHANGEFEED {feed} FOR {names} INTO '{target}'")
        self.feeds.sync(feed)

    def run(self, *statements: str) -> list[tuple[object, ...]]:
        """In one session."""
        return self.server.run(*statements, database=self.database)

    def wait_equal(self, feed: str, *tables: str) -> None:
        def equal(table: str) -> bool:
            shown = self.run(
                "SELECT COLUMN_NAME FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = DATABASE()"
                f" AND TABLE_NAME = '{table}' ORDER BY ORDINAL_POSITION"
            )
            rows = f"SELECT {', '.join(str(name) for (name,) in shown)} FROM {table} ORDER BY id"
            with opened(self.folder / f"{feed}.duckdb") as connection:
                known = connection.execute(
                    f"SELECT column_name FROM duckdb_columns() WHERE table_name = '{table}'"
                ).fetchall()
                if not {*shown} <= {*known} or any("HASH" in name for (name,) in known):
                    return False
                return connection.execute(rows).fetchall() == [*self.run(rows)]

        for table in tables:
            until(partial(equal, table), f"{table} is equal")

    def failed(self, feed: str) -> dict[str, str]:
        """The failed tables with their reasons, as the state has them."""
        tables = self.feeds.catalog.tables(self.feeds.catalog.job(feed).id)
        return {t.table.name: str(t.error) for t in tables if t.state is TableState.FAILED}


@pytest.fixture
def copies(tmp_path: Path, binlog_server: BinlogServer) -> Iterator[Copies]:
    with binlog_server.database() as database:
        binlog_server.run(
            "CREATE TABLE packed (id INT PRIMARY KEY, note VARCHAR(500) COMPRESSED, more TEXT)",
            "CREATE TABLE hashed (id INT PRIMARY KEY, note TEXT, UNIQUE (note))",
            "CREATE TABLE plain (id INT PRIMARY KEY, note TEXT)",
            *(f"CREATE TABLE {t} (id INT PRIMARY KEY, v INT)" for t in (*TABLES[3:], "quiet")),
            "CREATE TABLE scratch (id INT) ENGINE=MyISAM",
            *(f"INSERT INTO {t} (id) VALUES (1), (2)" for t in (*TABLES, "quiet")),
            database=database,
        )
        with running(tmp_path / "state") as feeds:
            yield Copies(feeds, binlog_server, database, tmp_path)


def test_the_trouble_of_one_table_is_no_trouble_of_another(copies: Copies) -> None:
    copies.run(
        "INSERT INTO packed VALUES (3, 'three', ''), (4, REPEAT('x', 400), NULL)",
        "ALTER TABLE packed MODIFY more TEXT COMPRESSED",
        "INSERT INTO packed VALUES (5, '', REPEAT('üx', 5000))",
        "UPDATE packed SET more = 'short' WHERE id = 3",
    )
    copies.run(
        "INSERT INTO hashed VALUES (3, 'c')",
        "UPDATE hashed SET note = 'b' WHERE id = 2",
        "ALTER TABLE plain ADD UNIQUE (note)",
        "INSERT INTO plain VALUES (3, 'c')",
        "ALTER TABLE plain ADD COLUMN w INT",
        "INSERT INTO plain VALUES (4, 'd', 4)",
    )
    copies.run(
        "BEGIN",
        "INSERT INTO undone VALUES (10, 10)",
        "SAVEPOINT s",
        "INSERT INTO undone VALUES (11, 11)",
        "INSERT INTO scratch VALUES (1)",
        "ROLLBACK TO SAVEPOINT s",
        "INSERT INTO undone VALUES (12, 12)",
        "COMMIT",
    )
    copies.run(
        "SET SESSION binlog_format = 'STATEMENT'",
        "UPDATE stated SET v = id * 7",
        "DELETE FROM stated WHERE id = 2",
    )
    copies.run(
        "ALTER TABLE versioned ADD SYSTEM VERSIONING", "UPDATE versioned SET v = 1 WHERE id = 1"
    )
    copies.run("INSERT INTO quiet VALUES (3, 3)")

    copies.wait_equal("bystander", "quiet")
    copies.wait_equal("f", *TABLES[:-1])
    until(lambda: "versioned" in copies.failed("f"), "the table stops")
    assert copies.failed("f").keys() == {"versioned"}
    shown = str(copies.feeds.execute("SHOW CHANGEFEED f TABLES").rows)
    assert "is system-versioned" in shown and "RESCAN" in shown
    events = str(copies.feeds.execute("SHOW CHANGEFEED f EVENTS").rows)
    assert "a statement in place of rows" in events
    job = copies.feeds.catalog.job("bystander")
    assert job.status is Status.RUNNING and not copies.failed("bystander")

    rescan = f"ALTER CHANGEFEED f RESCAN shop.{copies.database}.versioned"
    copies.feeds.execute(rescan)
    until(lambda: "is system-versioned" in copies.failed("f").get("versioned", ""), "it says again")
    copies.run(
        "ALTER TABLE versioned DROP SYSTEM VERSIONING", "UPDATE versioned SET v = 2 WHERE id = 1"
    )
    copies.feeds.execute(rescan)
    copies.wait_equal("f", *TABLES)
    copies.run("DELETE FROM versioned WHERE id = 2", "INSERT INTO versioned VALUES (3, 3)")
    copies.wait_equal("f", *TABLES)
    assert not copies.failed("f")


def test_a_zero_date_in_a_key_names_its_column(tmp_path: Path, binlog_server: BinlogServer) -> None:
    """It is read as NULL, which no key has: the scan stops, and goes on once the row has a date."""
    with binlog_server.database() as database, running(tmp_path / "state") as feeds:
        run = partial(binlog_server.run, database=database)
        run(
            "CREATE TABLE days (day DATE, n INT, PRIMARY KEY (day, n))",
            "INSERT INTO days VALUES ('2024-02-29', 1)",
            "SET SESSION sql_mode = ''",
            "INSERT INTO days VALUES ('0000-00-00', 2)",
        )
        feeds.connect(shop=binlog_server.uri(database))
        feeds.execute(
            f"CREATE CHANGEFEED f FOR shop.{database}.days INTO 'duckdb://{tmp_path}/d.duckdb'"
        )

        def failure() -> str:
            tables = feeds.catalog.tables(feeds.catalog.job("f").id)
            return "".join(str(t.error) for t in tables if t.error)

        until(failure)
        said = failure()
        assert "days cannot be scanned: column 'day' of the key has a value that is no date" in said
        run("SET SESSION sql_mode = ''", "UPDATE days SET day = '2024-03-01' WHERE n = 2")
        feeds.execute("ALTER CHANGEFEED f RESCAN days")
        if feeds.catalog.job("f").status is Status.FAILED:
            feeds.execute("RESUME CHANGEFEED f")
        feeds.sync("f")
        with opened(tmp_path / "d.duckdb") as connection:
            found = connection.execute("SELECT CAST(day AS VARCHAR), n FROM days ORDER BY n")
            assert found.fetchall() == [("2024-02-29", 1), ("2024-03-01", 2)]
