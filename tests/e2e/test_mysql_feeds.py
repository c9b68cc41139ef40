"""Feeds from a real MariaDB and MySQL into files: the initial scan, then every change."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from changefeed.catalog.model import Status
from changefeed.core.engines import EngineOption
from changefeed.core.errors import ChangefeedError
from changefeed.core.sizes import Sizes
from changefeed_testing.sinks.messages import Message
from tests.conftest import LentSpark
from tests.e2e.feeds import Feeds, consumed, rebuilt, running
from tests.helpers.duckdb_file import opened
from tests.helpers.lake import Lake, unused_catalog
from tests.helpers.waiting import until
from tests.services.kafka import KafkaBroker
from tests.services.mariadb import PASSWORD, USER
from tests.services.mysql import READER_PASSWORD, BinlogServer
from tests.services.webhook import WebhookServer

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
        return consumed(self.folder / name, topic)

    def table(self, name: str) -> dict[str, object]:
        return rebuilt(self.messages(name))

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


def test_a_living_feed_is_validated(bench: Bench) -> None:
    bench.create("f", "t")
    bench.feeds.sync("f")
    rows = bench.feeds.execute("VALIDATE CHANGEFEED f").rows
    assert "error" not in {row[0] for row in rows}, rows
    assert any("binlog" in str(row[4]) for row in rows if row[0] == "ok")


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


@pytest.mark.spark
@pytest.mark.extended
def test_a_scan_by_workers_of_spark_has_the_nodes_bytes(
    tmp_path: Path, binlog_server: BinlogServer, spark_engine: LentSpark
) -> None:
    """While an application writes: both ways give the table as it was at one instant."""
    with (
        binlog_server.database() as database,
        spark_engine.preferring(EngineOption.AUTO, least_job_rows=1),
        running(tmp_path / "state", spark=spark_engine) as feeds,
    ):
        bench = Bench(feeds, binlog_server, database, tmp_path / "out")
        rows = ", ".join(f"({i}, 'row {i} ä')" for i in range(1, 2001))
        bench.run(
            "CREATE TABLE t (a INT PRIMARY KEY, b VARCHAR(100))", f"INSERT INTO t VALUES {rows}"
        )
        bench.create("node", "t", "engine = 'driver'")
        bench.create("workers", "t", "engine = 'spark'")
        bench.run("UPDATE t SET b = 'new' WHERE a <= 9", "DELETE FROM t WHERE a = 10")
        for feed in ("node", "workers"):
            bench.feeds.sync(feed)
            assert bench.table(feed) == bench.truth()
        unchanged = [
            sorted((m.key, str(m.after)) for m in bench.messages(feed) if str(m.key) > "[2")
            for feed in ("node", "workers")
        ]
        assert unchanged[0] == unchanged[1]
        job = bench.feeds.execute("SHOW CHANGEFEED workers")
        shown = dict(zip(job.columns, job.rows[0], strict=True))
        assert f"scan of {database}.t as a Spark job" in str(shown["last_spark_job"])


@pytest.mark.spark
@pytest.mark.extended
@pytest.mark.parametrize("form", ["delta", "iceberg", "duckdb"])
def test_a_scan_into_tables_by_workers_of_spark_has_the_nodes_rows(
    tmp_path: Path, binlog_server: BinlogServer, spark_engine: LentSpark, form: str
) -> None:
    """Of a table with a key, and of one whose equal rows are counted."""
    found: dict[str, list[list[tuple[object, ...]]]] = {}
    with (
        binlog_server.database() as database,
        running(tmp_path / "state", spark=spark_engine) as feeds,
    ):
        bench = Bench(feeds, binlog_server, database, tmp_path / "out")
        rows = ", ".join(
            f"({i}, IF({i} % 7, 'ä {i}', NULL), {i} / 8, '2026-01-01' + INTERVAL {i} SECOND,"
            f" CHAR({i} % 256))"
            for i in range(1, 2001)
        )
        bench.run(
            "CREATE TABLE t (a INT PRIMARY KEY, b VARCHAR(100), c DECIMAL(9,3), d DATETIME(3),"
            " e VARBINARY(9))",
            f"INSERT INTO t VALUES {rows}",
            "CREATE TABLE u (a INT, b VARCHAR(100))",
            "INSERT INTO u SELECT a % 9, IF(a % 5, b, 'same') FROM t",
            "ANALYZE TABLE t, u",
        )
        for engine in ("driver", "spark"):
            place = tmp_path / engine
            uri = {
                "delta": f"delta://{place}",
                "iceberg": f"iceberg://{unused_catalog()}/shop?type=hadoop&warehouse={place}",
                "duckdb": f"duckdb://{place}",
            }[form]
            feeds.execute(
                f"CREATE CHANGEFEED {engine} FOR t, u INTO '{uri}' WITH engine = '{engine}'"
            )
            feeds.sync(engine)
            read = ("SELECT a, b, c, d, e FROM {t}", "SELECT a, b FROM {u}")
            if form == "duckdb":
                with opened(place) as file:
                    tables = [file.execute(q.format(t="t", u="u")).fetchall() for q in read]
            else:
                tables = [Lake(spark_engine, uri).query(query) for query in read]
            found[engine] = [sorted(table, key=repr) for table in tables]
        events = feeds.catalog.events(feeds.catalog.job("spark").id, kinds=("engine",))
        assert feeds.verified() == ["driver", "spark"]
    assert [len(table) for table in found["driver"]] == [2000, 2000]
    assert found["spark"] == found["driver"]
    scans = {f"scan of {database}.{table} as a Spark job" for table in ("t", "u")}
    assert scans <= {event.text for event in events}


def test_of_two_nodes_on_copies_of_a_state_one_stops(bench: Bench, tmp_path: Path) -> None:
    """The server lets only one reader have the id that a state gives; the other feed goes on."""
    bench.create("f", f"TABLE shop.{bench.database}.t")
    bench.feeds.sync("f")
    bench.feeds.close()
    shutil.copytree(bench.feeds.state, tmp_path / "copy")
    bench.feeds.open()
    with running(tmp_path / "copy") as copy:
        both = [bench.feeds, copy]

        def stopped() -> list[Feeds]:
            return [f for f in both if f.catalog.job("f").status is Status.FAILED]

        until(stopped, "one of them finds out")
        [lost] = stopped()
        job = lost.catalog.job("f")
        assert (job.error_code, "copies of one state" in str(job.hint)) == ("CF2109", True)
        [other] = [f for f in both if f is not lost]
        bench.run("UPDATE t SET b = 'new'")
        other.sync("f")
        assert bench.table("f") == bench.truth()
        assert stopped() == [lost]


def test_the_rights_that_validate_asks_for_are_enough(bench: Bench) -> None:
    """Of a user with nothing: each statement of VALIDATE is run, and no other. Then the initial
    scan, changes, DDL, a restart of the reader and RESCAN of a database with tables that the user
    may not read."""
    bench.run("CREATE TABLE hidden (a INT PRIMARY KEY, b VARCHAR(100))")
    user = f"poor_{bench.database}"[:32]
    bench.server.run(f"CREATE USER {user} IDENTIFIED BY '{READER_PASSWORD}'")
    feeds = bench.feeds
    try:
        feeds.connect(poor=bench.server.uri(bench.database, user, READER_PASSWORD))
        create = (
            f"CREATE CHANGEFEED f FOR poor.{bench.database}.t INTO 'file://{bench.folder / 'f'}'"
            " WITH updated, diff, resolved = '200ms'"
        )

        def missing() -> list[str]:
            rows = feeds.execute(f"VALIDATE {create}").rows
            return [str(row[-1]) for row in rows if row[0] == "error"]

        asked = missing()
        assert len(asked) == 2
        bench.server.run(*asked)
        assert missing() == []
        feeds.execute(create)
        feeds.sync("f")
        bench.run(
            "UPDATE t SET b = 'new' WHERE a <= 3",
            "DELETE FROM t WHERE a = 4",
            "INSERT INTO hidden VALUES (1, 'x')",
            "ALTER TABLE t ADD COLUMN c INT",
            "ALTER TABLE hidden ADD COLUMN c INT",
            "UPDATE t SET c = 7 WHERE a = 9",
        )
        feeds.sync("f")
        until(feeds.kill_capture("poor"))
        bench.run("UPDATE t SET a = 100 WHERE a = 5", "UPDATE hidden SET b = 'y'")
        feeds.sync("f")
        feeds.execute("ALTER CHANGEFEED f RESCAN")
        feeds.sync("f")
        rows = bench.run("SELECT a, b, c FROM t")
        assert bench.table("f") == {f"[{a}]": {"a": a, "b": b, "c": c} for a, b, c in rows}
        feeds.execute("DROP CHANGEFEED f")
    finally:
        bench.server.run(f"DROP USER {user}")


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
    until(lambda: len(_ddl(bench)) >= 7, "the tables are dropped")
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


def test_all_of_a_table_is_delivered_that_was_dropped_while_no_node_ran(bench: Bench) -> None:
    bench.run("CREATE TABLE u LIKE t")
    bench.create("f", "t, u")
    bench.feeds.sync("f")
    bench.feeds.close()
    bench.run("INSERT INTO t VALUES (11, 'last')", "DROP TABLE t")
    bench.feeds.open()
    job = bench.feeds.catalog.job("f")

    def failed() -> bool:
        return bench.feeds.catalog.tables(job.id)[0].error_code == "CF1101"

    until(failed, "the table fails")
    assert bench.table("f")["[11]"] == {"a": 11, "b": "last"}
    assert [str(statement)[:10] for _, statement in _ddl(bench)] == ["DROP TABLE"]


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


@pytest.mark.kafka
def test_ddl_is_told_in_kafka_between_the_rows(
    bench: Bench, kafka: KafkaBroker, topic: str
) -> None:
    """Also of a table that is renamed, whose topic stays."""
    schemas = f"{topic}_schemas"
    bench.feeds.execute(
        f"CREATE CHANGEFEED f FOR t AS '{topic}'"
        f" INTO 'kafka://{kafka.bootstrap}?schema_topic={schemas}' WITH updated"
    )
    bench.feeds.sync("f")
    statements = [
        "ALTER TABLE t ADD COLUMN c INT",
        "CREATE INDEX i ON t (b)",
        "RENAME TABLE t TO u",
    ]
    bench.run(
        "INSERT INTO t VALUES (21, 'before')",
        statements[0],
        "INSERT INTO t VALUES (22, 'altered', 1)",
        *statements[1:],
        "INSERT INTO u VALUES (23, 'renamed', 2)",
    )
    until(
        lambda: any(b"renamed" in (r.value or b"") for r in kafka.messages(topic)), "all rows", 60
    )
    rows = [json.loads(r.value) for r in kafka.messages(topic) if r.value]
    at = {row["after"]["a"]: row["updated"] for row in rows}
    told = [json.loads(r.value) for r in kafka.messages(schemas) if r.value]
    ddl = [message for message in told if "ddl" in message]
    assert [message["ddl"]["statement"] for message in ddl] == statements
    assert {(message["topic"], message["table"]["name"]) for message in ddl} == {(topic, "t")}
    placed = [(at[21], ""), *((m["at"], m["ddl"]["kind"]) for m in ddl), (at[22], ""), (at[23], "")]
    assert [kind for _, kind in sorted(placed)] == ["", "ALTER", "", "ALTER", "RENAME", ""]
    columns = [[c["name"] for c in m["columns"]] for m in told if "columns" in m]
    assert columns[0] == ["a", "b"] and columns[-1] == ["a", "b", "c"]
    after = [m["table"]["name"] for m in told[told.index(ddl[-1]) :] if "columns" in m]
    assert after and set(after) <= {"t", "u"}, "the schema is told again before the next row"


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


class Copy:
    """A feed of ``t`` into a table ``t``, which holds the rows of whatever ``t`` is called now."""

    def __init__(self, bench: Bench, folder: Path, targets: str = "t") -> None:
        self.bench = bench
        self.path = folder / "copy.duckdb"
        bench.feeds.execute(f"CREATE CHANGEFEED f FOR {targets} INTO 'duckdb://{self.path}'")
        bench.feeds.sync("f")

    def arrives(self, source: str, target: str = "t") -> None:
        """Wait until the target table has the rows of the source table."""

        def equal() -> bool:
            with opened(self.path) as connection:
                known = connection.execute("SELECT table_name FROM duckdb_tables()").fetchall()
                if (target,) not in known:
                    return False
                found = connection.execute(f"SELECT a, b FROM {target}").fetchall()
            return sorted(found) == sorted(self.bench.run(f"SELECT a, b FROM {source}"))

        until(equal, f"{target} has the rows of {source}")

    def tables(self) -> list[str]:
        """The tables of the feed by their present names, without its source."""
        job = self.bench.feeds.catalog.job("f")
        return [
            f"{t.table.schema}.{t.table.name}".removeprefix(f"{self.bench.database}.")
            for t in self.bench.feeds.catalog.tables(job.id)
        ]

    def told(self, kind: str) -> list[str]:
        """The texts of the feed's events of a kind, oldest first."""
        job = self.bench.feeds.catalog.job("f")
        return [e.text for e in reversed(self.bench.feeds.catalog.events(job.id, kinds=(kind,)))]

    def scans(self) -> int:
        """How many scans have begun."""
        return sum("begins" in text for text in self.told("scan"))


def test_a_renamed_table_is_followed_with_its_rows(bench: Bench, tmp_path: Path) -> None:
    """With rows before, at once after, while no node runs, and back again."""
    copy = Copy(bench, tmp_path)
    bench.run(
        "UPDATE t SET b = 'before' WHERE a = 1",
        "RENAME TABLE t TO u",
        "UPDATE u SET b = 'after' WHERE a = 2",
        "ALTER TABLE u ADD COLUMN c INT",
        "INSERT INTO u VALUES (11, 'new', 1)",
    )
    copy.arrives("u")
    bench.feeds.close()
    bench.run(
        "DELETE FROM u WHERE a = 3",
        "ALTER TABLE u RENAME TO v",
        "INSERT INTO v VALUES (12, 'nobody ran', 2)",
        "RENAME TABLE v TO w",
        "UPDATE w SET b = 'nor then' WHERE a = 4",
    )
    bench.feeds.open()
    copy.arrives("w")
    back = bench.feeds.kill_capture()
    bench.run("RENAME TABLE w TO t", "UPDATE t SET b = 'back' WHERE a = 5")
    until(back)
    copy.arrives("t")
    bench.feeds.sync("f")
    assert copy.tables() == ["t"]
    assert [
        text.partition(",")[0].replace(f"{bench.database}.", "") for text in copy.told("rename")
    ] == [f'"{old}" was renamed to "{new}"' for old, new in ("tu", "uv", "vw", "wt")]
    assert copy.scans() == 1, "nothing is scanned again"


def test_a_rename_is_followed_before_a_row_comes(bench: Bench, tmp_path: Path) -> None:
    """Also when it came while no node ran, and into another database."""
    copy = Copy(bench, tmp_path)
    bench.run("RENAME TABLE t TO u")
    until(lambda: copy.tables() == ["u"], "the feed goes by the new name")
    bench.feeds.close()
    with bench.server.database() as other:
        bench.run(f"RENAME TABLE u TO {other}.t")
        bench.feeds.open()
        until(lambda: copy.tables() == [f"{other}.t"], "the feed goes by the new name")
        bench.run(f"UPDATE {other}.t SET b = 'elsewhere' WHERE a = 1")
        copy.arrives(f"{other}.t")
        assert copy.scans() == 1
        created = str(bench.feeds.execute("SHOW CREATE CHANGEFEED f").rows[0][1])
        assert f"{other}.t AS t" in created


def test_a_feed_that_was_paused_follows_when_it_comes_so_far(bench: Bench, tmp_path: Path) -> None:
    """The table's rows stay in the change log although nobody else asks for the old name."""
    copy = Copy(bench, tmp_path)
    bench.create("g", "t")
    bench.feeds.sync("g")
    bench.feeds.execute("PAUSE CHANGEFEED g")
    bench.run("RENAME TABLE t TO u", "INSERT INTO u VALUES (11, 'one')")
    copy.arrives("u")
    bench.feeds.execute("DROP CHANGEFEED f")
    bench.feeds.close()
    bench.run("INSERT INTO u VALUES (12, 'two')")
    bench.feeds.open()
    until(lambda: bench.feeds.node.source_runtime("shop").tables.ready, "the source is ready")
    bench.run("INSERT INTO u VALUES (13, 'three')")
    bench.feeds.execute("RESUME CHANGEFEED g")
    until(lambda: len(bench.table("g")) == 13, "the feed has all rows")
    bench.feeds.sync("g")
    events = bench.feeds.catalog.events(bench.feeds.catalog.job("g").id, kinds=("scan",))
    assert sum(event.times for event in events if "begins" in event.text) == 1


@pytest.mark.parametrize(
    "swap",
    [
        ("RENAME TABLE t TO t_old, t_new TO t",),
        ("RENAME TABLE t TO tmp, t_new TO t, tmp TO t_new",),
        ("ALTER TABLE t RENAME t_old", "ALTER TABLE t_new RENAME t"),
    ],
    ids=["pt-osc", "swap", "two steps"],
)
def test_a_table_that_was_altered_online_keeps_its_name(
    bench: Bench, tmp_path: Path, swap: tuple[str, ...]
) -> None:
    """Its name goes to another table: that is read again."""
    copy = Copy(bench, tmp_path)
    bench.run(
        "CREATE TABLE t_new LIKE t",
        "ALTER TABLE t_new ADD COLUMN c INT DEFAULT 7",
        "INSERT INTO t_new (a, b) SELECT a, concat('copied ', b) FROM t",
        *swap,
        "INSERT INTO t VALUES (11, 'after', 1)",
    )
    copy.arrives("t")
    bench.feeds.sync("f")
    assert copy.tables() == ["t"] and copy.told("rename") == []


def test_a_feed_of_a_database_takes_a_renamed_table_for_a_new_one(
    bench: Bench, tmp_path: Path
) -> None:
    copy = Copy(bench, tmp_path, f"SCHEMA shop.{bench.database}")
    bench.run("RENAME TABLE t TO u", "INSERT INTO u VALUES (11, 'after')")
    until(lambda: copy.tables() == ["u"], "the feed has the new table alone")
    copy.arrives("u", "u")
    assert any("was renamed to" in text for text in copy.told("table"))


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


@pytest.mark.extended
def test_a_feed_goes_on_behind_transactions_that_are_skipped(bench: Bench) -> None:
    """Each that its sink refuses, also in a node that is started afterwards."""
    sink = WebhookServer(judge=lambda body: 422 if b'"b": "bad"' in body else 200)
    bench.feeds.execute(f"CREATE CHANGEFEED f FOR t INTO '{sink.uri}'")
    bench.feeds.sync("f")

    def skip() -> str:
        until(lambda: bench.feeds.catalog.job("f").status is Status.FAILED)
        (row,) = bench.feeds.execute("SHOW CHANGEFEED f TABLES").rows
        bench.feeds.execute(f"ALTER CHANGEFEED f SKIP TRANSACTION '{row[-1]}'")
        return str(row[-1])

    bench.run(
        "INSERT INTO t VALUES (21, 'b')",
        "INSERT INTO t VALUES (22, 'bad'), (23, 'd')",
        "INSERT INTO t VALUES (24, 'e')",
        "INSERT INTO t VALUES (25, 'bad')",
        "INSERT INTO t VALUES (26, 'g')",
    )
    first = skip()
    bench.feeds.restart(Sizes())
    assert skip() > first
    bench.feeds.sync("f")
    keys = {message.key for message in sink.messages(["t"]) if message.is_row}
    assert {"[10]", "[21]", "[24]", "[26]"} <= keys and not {"[22]", "[25]"} & keys
    sink.stop()
