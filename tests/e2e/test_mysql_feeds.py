"""Feeds from a real MariaDB and MySQL into files: the initial scan, then every change."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from changefeed.catalog.model import Status
from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError
from sinks.testing.messages import Message
from sinks.testing.readers import read_files
from sinks.testing.validators import OrderValidator, ResolvedValidator, validate
from tests.e2e.feeds import Feeds, running
from tests.helpers.duckdb_file import opened
from tests.helpers.waiting import until
from tests.services.mariadb import PASSWORD, USER
from tests.services.mysql import BinlogServer

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.parametrize("binlog_server", ["mariadb", "mysql8"], indirect=True),
]


class Bench:
    """One database with a table ``t``, one state, one folder per feed."""

    def __init__(self, feeds: Feeds, server: BinlogServer, database: str, folder: Path) -> None:
        self.feeds = feeds
        self.server = server
        self.database = database
        self.folder = folder
        feeds.connect(shop=server.uri(database))

    def run(self, *statements: str) -> list[tuple[object, ...]]:
        return self.server.run(*statements, database=self.database)

    def create(self, name: str, targets: str, options: str = "") -> None:
        more = f", {options}" if options else ""
        self.feeds.execute(
            f"CREATE CHANGEFEED {name} FOR {targets} INTO 'file://{self.folder / name}'"
            f" WITH updated, resolved = '200ms'{more}"
        )

    def messages(self, name: str, topic: str = "t") -> list[Message]:
        found = read_files(self.folder / name, (topic,))
        validate(found, OrderValidator(), ResolvedValidator())
        return found

    def table(self, name: str) -> dict[str, object]:
        """The table as a consumer rebuilds it, by key."""
        rows: dict[str, tuple[Timestamp, object]] = {}
        for message in self.messages(name):
            at = message.at or Timestamp.ZERO
            if message.is_row and message.key and rows.get(message.key, (at,))[0] <= at:
                rows[message.key] = (at, message.after)
        return {key: row for key, (_, row) in rows.items() if row is not None}

    def wait_for(self, count: int) -> None:
        """Until the feed has delivered more messages than that."""
        until(lambda: len(self.messages("f")) > count)

    def truth(self) -> dict[str, object]:
        return {f"[{a}]": {"a": a, "b": b} for a, b in self.run("SELECT a, b FROM t")}


@pytest.fixture
def bench(tmp_path: Path, binlog_server: BinlogServer) -> Iterator[Bench]:
    with binlog_server.database() as database:
        rows = ", ".join(f"({i}, 'row {i}')" for i in range(1, 11))
        binlog_server.run(
            "CREATE TABLE t (a INT PRIMARY KEY, b VARCHAR(100))",
            f"INSERT INTO t VALUES {rows}",
            database=database,
        )
        with running(tmp_path / "state") as feeds:
            yield Bench(feeds, binlog_server, database, tmp_path / "out")


def test_scan_then_every_change(bench: Bench) -> None:
    bench.create("f", f"TABLE shop.{bench.database}.t", "diff")
    bench.feeds.sync("f")
    bench.run(
        "UPDATE t SET b = 'new' WHERE a <= 3",
        "DELETE FROM t WHERE a = 4",
        "UPDATE t SET a = 100 WHERE a = 5",
        "INSERT INTO t VALUES (200, 'x \"quoted\" ä\\n line')",
    )
    bench.feeds.sync("f")

    assert bench.table("f") == bench.truth()
    changes = [m for m in bench.messages("f") if m.key == "[1]"]
    assert [m.after and m.after["b"] for m in changes] == ["row 1", "new"]
    assert changes[1].before == {"a": 1, "b": "row 1"}


def _ddl(bench: Bench, feed: str = "f") -> list[tuple[object, object]]:
    """Table and statement of the DDL among a feed's events, oldest first."""
    rows = bench.feeds.execute(f"SHOW CHANGEFEED {feed} EVENTS").rows
    return [(row[2], row[3]) for row in reversed(rows) if row[1] == "ddl"]


def test_ddl_is_among_the_events_once_and_in_order(bench: Bench) -> None:
    """Also when the capture process and the node are killed between, and what would be secret is
    not shown."""
    t, u = (f"shop.{bench.database}.{name}" for name in "tu")
    bench.create("f", f"SCHEMA shop.{bench.database}")
    bench.feeds.sync("f")
    bench.run(
        "ALTER TABLE t ADD COLUMN c INT, COMMENT = 'password: hunter2'",
        "INSERT INTO t VALUES (11, 'x', 1)",
    )
    back = bench.feeds.kill_capture()
    bench.run("TRUNCATE TABLE t", "INSERT INTO t VALUES (12, 'y', 2)")
    until(back)
    bench.run(
        "CREATE TABLE u (a INT PRIMARY KEY)",
        "ALTER TABLE u ADD COLUMN b INT",
        "INSERT INTO u VALUES (1, 2)",
    )
    until(lambda: len(_ddl(bench)) >= 4, "the table joined")
    bench.feeds.sync("f")
    bench.feeds.close()
    bench.run("CREATE INDEX i ON u (b)")
    bench.feeds.open()
    bench.feeds.sync("f")
    bench.run("DROP TABLE t, u")
    until(lambda: len(_ddl(bench)) >= 7, "the tables are dropped", 60)
    told = _ddl(bench)
    assert [statement for table, statement in told if table == t] == [
        "ALTER TABLE t ADD COLUMN c INT, COMMENT = 'redacted'",
        "TRUNCATE TABLE t",
        told[-1][1],
    ]
    assert [statement for table, statement in told if table == u] == [
        "CREATE TABLE u (a INT PRIMARY KEY)",
        "ALTER TABLE u ADD COLUMN b INT",
        "CREATE INDEX i ON u (b)",
        told[-1][1],
    ]
    assert str(told[-1][1]).startswith("DROP TABLE")


def test_a_database_that_goes_is_told_of_its_tables(bench: Bench) -> None:
    bench.create("f", f"TABLE shop.{bench.database}.t")
    bench.feeds.sync("f")
    bench.server.run(
        f"DROP DATABASE {bench.database}",
        f"CREATE DATABASE {bench.database}",
    )
    t = f"shop.{bench.database}.t"
    expected = [(t, f"{verb} DATABASE {bench.database}") for verb in ("DROP", "CREATE")]
    until(lambda: _ddl(bench) == expected)


def test_messages_name_the_database_of_their_table(bench: Bench) -> None:
    options = "envelope = 'enriched', enriched_properties = 'source', initial_scan = 'only'"
    bench.feeds.execute(
        f"CREATE CHANGEFEED g FOR TABLE shop.{bench.database}.t INTO 'file://{bench.folder / 'g'}'"
        f" WITH {options}"
    )
    until(lambda: bench.feeds.catalog.jobs()[-1].status is Status.SUCCEEDED)
    lines = [
        line
        for path in (bench.folder / "g").rglob("*.ndjson")
        for line in path.read_text().splitlines()
    ]
    assert lines
    assert {json.loads(line)["source"]["database_name"] for line in lines} == {bench.database}


@pytest.mark.parametrize(
    "back",
    [
        "RENAME TABLE away TO t",
        pytest.param("ALTER TABLE away RENAME t", marks=pytest.mark.extended),
        pytest.param("CREATE TABLE t LIKE away", marks=pytest.mark.extended),
    ],
)
def test_a_table_that_comes_under_the_name_is_read_again(
    bench: Bench, tmp_path: Path, back: str
) -> None:
    """Nobody read what changed under the other name."""
    bench.feeds.execute(f"CREATE CHANGEFEED f FOR t INTO 'duckdb://{tmp_path}/copy.duckdb'")
    bench.feeds.sync("f")
    bench.run(
        "RENAME TABLE t TO away",
        "UPDATE away SET b = 'unseen' WHERE a = 1",
        "DELETE FROM away WHERE a = 2",
        back,
        "INSERT INTO t VALUES (100, 'seen')",
    )
    bench.feeds.sync("f")

    def copied() -> bool:
        with opened(tmp_path / "copy.duckdb") as connection:
            found = connection.execute("SELECT a, b FROM t").fetchall()
        return sorted(found) == sorted(bench.run("SELECT a, b FROM t"))

    until(copied)


def test_rows_that_differ_are_repaired_by_key(bench: Bench, tmp_path: Path) -> None:
    bench.run("CREATE TABLE p (a VARCHAR(20), b INT, v INT, PRIMARY KEY (a, b))")
    bench.run("INSERT INTO p VALUES ('é', 1, 1), ('it''s', 2, 2), ('x', 3, 3)")
    bench.feeds.execute(f"CREATE CHANGEFEED f FOR t, p INTO 'duckdb://{tmp_path}/copy.duckdb'")
    bench.feeds.sync("f")
    with opened(tmp_path / "copy.duckdb") as connection:
        connection.execute("DELETE FROM t WHERE a = 2")
        connection.execute("INSERT INTO t (a, b) VALUES (99, 'invented')")
        connection.execute("UPDATE p SET v = 7 WHERE b < 3")
    answer = bench.feeds.execute("VERIFY CHANGEFEED f REPAIR")
    assert answer.failure is None
    repaired = [notice for notice in answer.notices if "repaired" in notice]
    assert [notice.partition(": ")[2] for notice in sorted(repaired)] == [
        "2 rows were repaired by key: equal now",
        "2 rows were repaired by key: equal now",
    ]


@pytest.mark.extended
def test_killed_capture_and_a_restart_lose_nothing(bench: Bench) -> None:
    bench.create("f", "t")
    stop = threading.Event()

    def write() -> None:
        number = 1000
        while not stop.is_set():
            bench.run(
                f"INSERT INTO t VALUES ({number}, 'n')",
                f"UPDATE t SET b = 'at {number}' WHERE a = {number - 5}",
                f"DELETE FROM t WHERE a = {number - 20}",
            )
            number += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(3):
            before = len(bench.messages("f"))
            bench.feeds.kill_capture()
            bench.wait_for(before + 50)
        bench.feeds.close()
        bench.feeds.open()
    finally:
        stop.set()
        writer.join()
    bench.feeds.sync("f")

    assert bench.table("f") == bench.truth()


@pytest.mark.extended
def test_a_purged_binlog_stops_the_feed_and_rescan_goes_on(bench: Bench) -> None:
    bench.create("f", "t")
    bench.feeds.sync("f")
    bench.feeds.close()
    bench.run("INSERT INTO t VALUES (50, 'missed')", "DELETE FROM t WHERE a = 1")
    bench.server.purge()
    bench.feeds.open()
    until(lambda: bench.feeds.catalog.job("f").error_code == "CF2102")
    bench.feeds.execute("ALTER CHANGEFEED f RESCAN")
    until(lambda: bench.table("f").get("[50]") == {"a": 50, "b": "missed"})
    bench.run("INSERT INTO t VALUES (51, 'after')")
    until(lambda: "[51]" in bench.table("f"))


def test_what_hinders_a_feed_is_said_with_the_statement_that_helps(bench: Bench) -> None:
    bench.run("CREATE TABLE old (a INT PRIMARY KEY) ENGINE = MyISAM")
    with pytest.raises(ChangefeedError, match="myisam") as raised:
        bench.create("g", "old")

    assert "ENGINE = InnoDB" in raised.value.hint


def test_a_table_is_not_copied_into_itself(bench: Bench) -> None:
    port = bench.server.port
    target = f"mysql://{USER}:{PASSWORD}@127.0.0.1:{port}/{bench.database}"
    with pytest.raises(ChangefeedError, match="is the source table itself"):
        bench.feeds.execute(f"CREATE CHANGEFEED loop FOR t INTO '{target}'")
