"""Statements with a real node, PostgreSQL and files: each does what it says before it returns."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from changefeed.core.errors import ChangefeedError
from changefeed.spark.session import NodeSpark
from tests.e2e.feeds import Feeds, running
from tests.helpers.waiting import until
from tests.services.postgres import Database

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.postgres]

SCHEMA = """
create table orders (id bigint primary key, note text);
create table items (id bigint primary key, note text);
create schema audit;
create table audit.log (id bigint primary key, note text);
insert into orders values (1, 'a'), (2, 'b')
"""


class Bench:
    """Feeds into a folder, and what is in it."""

    def __init__(self, feeds: Feeds, database: Database, folder: Path) -> None:
        self.feeds = feeds
        self.database = database
        self.folder = folder
        feeds.connect(shop=database.uri)

    def notes(self, table: str) -> list[str]:
        """The notes of a table's messages, in file order, repeats once."""
        found: list[str] = []
        for file in sorted(self.folder.rglob(f"*-{table}-*.ndjson")):
            for line in file.read_text().splitlines():
                after = json.loads(line)["after"]
                found.append("deleted" if after is None else after["note"])
        return list(dict.fromkeys(found))

    def becomes(self, status: str, seconds: float = 60.0) -> None:
        """Wait until the only feed has that status."""
        deadline = time.monotonic() + seconds
        while True:
            ((found,),) = [row[2:3] for row in self.feeds.execute("SHOW CHANGEFEEDS").rows]
            if found == status:
                return
            assert time.monotonic() < deadline, f"it is {found} and not {status}"
            self.feeds.catalog.wait(self.feeds.catalog.version(), 0.5)


@pytest.fixture
def bench(tmp_path: Path, postgres: Database, spark_engine: NodeSpark) -> Iterator[Bench]:
    postgres.execute(SCHEMA)
    with running(tmp_path / "state", spark_engine) as feeds:
        yield Bench(feeds, postgres, tmp_path / "out")


def test_a_living_feed_is_validated(bench: Bench, tmp_path: Path) -> None:
    """Its own tables, slot and marks at the target are no problem; what has gone wrong is."""
    feeds, database = bench.feeds, bench.database

    def validated(name: str) -> list[tuple[str, str, str]]:
        rows = feeds.execute(f"VALIDATE CHANGEFEED {name}").rows
        return [(str(row[0]), str(row[1]), str(row[4])) for row in rows]

    feeds.execute(f"CREATE CHANGEFEED f FOR SCHEMA audit, orders INTO 'file://{bench.folder}'")
    feeds.execute(f"CREATE CHANGEFEED g FOR orders INTO 'duckdb://{tmp_path}/copy.duckdb'")
    for name in ("f", "g"):
        feeds.sync(name)
        found = validated(name)
        assert "error" not in {severity for severity, _, _ in found}, found
        assert ("ok", "", f"{name} is running, and nothing is wrong") == found[0]
        assert any(words.startswith("replication slot changefeed_") for _, _, words in found)
        assert any(words.endswith("(gc_ttl)") for _, _, words in found)
    before = feeds.catalog.version()
    feeds.execute("PAUSE CHANGEFEED f")
    assert validated("f")[0] == ("ok", "", "f is paused, and nothing is wrong")
    assert feeds.catalog.job("f").status == "paused" and feeds.catalog.version() > before

    database.execute("drop table audit.log; alter table orders replica identity nothing")
    [(publication,)] = database.execute("select pubname from pg_publication")
    database.execute(f"drop publication {publication}")
    bench.folder.rename(tmp_path / "gone")
    bench.folder.write_text("a file where the folder was")
    answer = feeds.execute("VALIDATE CHANGEFEED f")
    codes = {str(row[1]) for row in answer.rows if row[0] == "error"}
    assert {"CF1302", "CF2003", "CF2102"} <= codes and any(c.startswith("CF50") for c in codes)
    assert answer.failure is not None
    feeds.execute("DROP CHANGEFEED f, g")


def test_the_life_of_a_feed(bench: Bench) -> None:
    feeds, database = bench.feeds, bench.database
    feeds.execute(f"CREATE CHANGEFEED f FOR orders INTO 'file://{bench.folder}'")
    database.execute("insert into orders values (3, 'c')")  # committed after CREATE returned
    feeds.sync("f")
    assert bench.notes("orders") == ["a", "b", "c"]
    bench.becomes("running")

    assert feeds.execute("PAUSE CHANGEFEED f").rows == [(1, "f", "paused")]
    database.execute("insert into orders values (4, 'd')")
    with pytest.raises(ChangefeedError) as caught:
        feeds.sync("f")
    assert caught.value.code.number == "CF1301"
    assert feeds.execute("RESUME CHANGEFEED f").rows[0][2] in ("running", "scanning")
    feeds.sync("f")
    assert bench.notes("orders") == ["a", "b", "c", "d"]

    feeds.execute("ALTER CHANGEFEED f ADD items WITH initial_scan = 'no' SET resolved = '1s'")
    database.execute("insert into items values (1, 'x'); insert into orders values (5, 'e')")
    feeds.sync("f")
    assert bench.notes("items") == ["x"] and bench.notes("orders")[-1] == "e"

    feeds.execute("ALTER CHANGEFEED f DROP orders")
    database.execute("insert into orders values (6, 'f'); insert into items values (2, 'y')")
    feeds.sync("f")
    assert bench.notes("items") == ["x", "y"] and bench.notes("orders")[-1] == "e"

    assert feeds.execute("DROP CHANGEFEED f").rows == [(1, "f", "dropped")]
    assert database.slots() == []
    assert database.execute("select pubname from pg_publication") == []
    assert not (feeds.state / "log" / "shop").exists()
    assert feeds.catalog.source_states() == []


def test_a_running_feed_takes_its_new_name(bench: Bench) -> None:
    feeds = bench.feeds
    feeds.execute(f"CREATE CHANGEFEED f FOR orders INTO 'file://{bench.folder}'")
    feeds.sync("f")
    feeds.execute("ALTER CHANGEFEED f RENAME TO g")
    runner = feeds.node.feeds.runner(1)
    assert runner is not None

    def renamed() -> bool:
        threads = {thread.name for thread in threading.enumerate()}
        return "feed-g" in threads and runner.sink_session.context().feed == "g"

    until(renamed, "the runner has the new name")
    assert "feed-f" not in {thread.name for thread in threading.enumerate()}
    bench.database.execute("insert into orders values (3, 'c')")
    feeds.sync("g")
    assert bench.notes("orders") == ["a", "b", "c"]


def test_a_node_whose_thread_ended_is_not_alive(bench: Bench) -> None:
    assert bench.feeds.node.alive
    bench.feeds.node._stopping.set()
    until(lambda: not bench.feeds.node.alive, "the node's threads end")


def test_the_limit_of_the_disk_reaches_the_capture(bench: Bench) -> None:
    feeds = bench.feeds
    feeds.node.sources._max_disk = 123 << 20
    feeds.node.sources._standby = None  # a process whose command says what it is for
    feeds.execute("CREATE CHANGEFEED f FOR orders INTO 'null://' WITH initial_scan = 'no'")
    source_runtime = feeds.node.source_runtime("shop")
    until(lambda: source_runtime.capture_pid is not None, "the capture runs")
    pid = source_runtime.capture_pid
    arguments = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    task = json.loads(arguments[arguments.index("--task") + 1])
    assert task["disk"] == 123 << 20


def test_two_feeds_share_one_slot(bench: Bench) -> None:
    feeds = bench.feeds
    feeds.execute("CREATE CHANGEFEED a FOR orders INTO 'null://'")
    feeds.execute("CREATE CHANGEFEED b FOR items INTO 'null://' WITH initial_scan = 'no'")
    assert bench.database.slots() == [feeds.catalog.source_state("shop").memo["slot"]]
    feeds.sync("a")
    feeds.sync("b")
    feeds.execute("DROP CHANGEFEED a")
    assert len(bench.database.slots()) == 1
    feeds.execute("DROP ALL CHANGEFEEDS")
    assert bench.database.slots() == []


def test_a_scan_alone_succeeds_and_frees_the_source(bench: Bench) -> None:
    feeds = bench.feeds
    feeds.execute(
        f"CREATE CHANGEFEED f FOR orders INTO 'file://{bench.folder}' WITH initial_scan = 'only'"
    )
    bench.becomes("succeeded")
    assert bench.notes("orders") == ["a", "b"]
    with pytest.raises(ChangefeedError) as caught:
        feeds.execute("PAUSE CHANGEFEED f")
    assert caught.value.message == 'changefeed "f" is succeeded and cannot be paused'


def test_a_sinkless_feed(bench: Bench) -> None:
    stream = bench.feeds.execute("CREATE CHANGEFEED FOR orders").stream
    assert stream is not None
    rows = [next(stream), next(stream)]
    bench.database.execute("insert into orders values (3, 'c')")
    rows.append(next(stream))
    stream.close()  # type: ignore[attr-defined]
    # Read by the scan, and inserted.
    assert [(table, key, op) for table, key, _, op in rows] == [
        ("orders", "[1]", "r"),
        ("orders", "[2]", "r"),
        ("orders", "[3]", "c"),
    ]
    assert rows[2][2] == '{"after": {"id": 3, "note": "c"}}'
    assert bench.feeds.execute("SHOW JOBS").rows == []
