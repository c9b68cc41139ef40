"""A feed goes on where a Debezium connector stopped, under writes, and nothing is lost."""

from __future__ import annotations

import itertools
import json
import sqlite3
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from changefeed.core.errors import ChangefeedError
from tests.e2e.feeds import Feeds
from tests.helpers.waiting import until
from tests.services.debezium import DebeziumEngine, engine, mysql_settings, postgres_settings
from tests.services.mysql import BinlogServer
from tests.services.postgres import Database

pytestmark = [pytest.mark.e2e, pytest.mark.extended]

KEYS = 5
TABLE = "CREATE TABLE counters (id int PRIMARY KEY, n int NOT NULL)"
ROWS = f"INSERT INTO counters VALUES {', '.join(f'({key}, 0)' for key in range(KEYS))}"


class Writer:
    """Counts up the rows of a table, one after the other, two of them a transaction."""

    def __init__(self, run: Callable[[str, str], None]) -> None:
        self.counts = dict.fromkeys(range(KEYS), 0)
        self._run = run
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._write)

    def _write(self) -> None:
        for key in itertools.cycle(range(0, KEYS, 2)):
            if self._over.is_set():
                return
            pair = (key, (key + 1) % KEYS)
            self._run(*(f"UPDATE counters SET n = n + 1 WHERE id = {k}" for k in pair))
            for k in pair:
                self.counts[k] += 1

    def more(self, by: int) -> None:
        """Wait until so many transactions more have been written."""
        goal = sum(self.counts.values()) + 2 * by
        until(lambda: sum(self.counts.values()) >= goal)

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(30)
        assert not self._thread.is_alive()


def theirs(peer: DebeziumEngine) -> dict[int, list[int]]:
    """The values of each row that the connector delivered."""
    found = defaultdict(list)
    for event in peer.events():
        if event.value is not None and event.value.get("after") is not None:
            found[event.value["after"]["id"]].append(event.value["after"]["n"])
    return found


def ours(folder: Path) -> dict[int, list[int]]:
    """The values of each row that the feed delivered."""
    found = defaultdict(list)
    with sqlite3.connect(folder / "out.db") as messages:
        rows = messages.execute("SELECT value FROM changefeed_messages ORDER BY rowid")
        for (text,) in rows:
            value = json.loads(text)
            assert value["op"] == "u", "the feed makes no scan"
            found[value["after"]["id"]].append(value["after"]["n"])
    return found


def take_over(feeds: Feeds, folder: Path, offset: str) -> None:
    feeds.execute(
        f"CREATE CHANGEFEED f FOR counters INTO 'experimental-sql:///sqlite:///{folder}/out.db'"
        f" WITH envelope = 'debezium', cursor = 'debezium:{offset}'"
    )


def check(writer: Writer, before: dict[int, list[int]], after: dict[int, list[int]]) -> None:
    """Each row counts to its end without a gap. What both delivered is little: less than the
    connector had delivered."""
    for key, last in writer.counts.items():
        assert before[key] == list(range(before[key][0], before[key][-1] + 1))
        first = after[key][0]
        assert after[key] == list(range(first, last + 1))
        assert before[key][0] < first <= before[key][-1] + 1, (
            f"row {key}: {before[key][-1]}, then {first}"
        )


@contextmanager
def postgres_peer(postgres: Database, folder: Path) -> Iterator[DebeziumEngine]:
    settings = postgres_settings(postgres) | {
        "table.include.list": "public.counters",
        "publication.autocreate.mode": "filtered",
    }
    with engine(folder / "peer", settings) as peer:
        yield peer


@pytest.mark.parametrize("postgres", [16], indirect=True)
def test_a_slot_is_taken_over_with_what_nobody_has_read(
    postgres: Database, feeds: Feeds, tmp_path: Path
) -> None:
    def run(*statements: str) -> None:
        postgres.execute("; ".join(statements))

    run(TABLE, ROWS)
    feeds.connect(shop=postgres.uri)
    feeds.execute("USE shop")
    with Writer(run) as writer, postgres_peer(postgres, tmp_path) as peer:
        peer.wait_for(KEYS + 100)
        peer.kill()
        before, offset = theirs(peer), peer.offset()
        writer.more(100)
        take_over(feeds, tmp_path, offset)
        # A table that the connector's publication lacks waits until ours is used.
        run("CREATE TABLE others (id int PRIMARY KEY)", "INSERT INTO others VALUES (1)")
        feeds.execute(f"CREATE CHANGEFEED g FOR others INTO 'file://{tmp_path}/others'")
        run("INSERT INTO others VALUES (2)")
        writer.more(100)
        feeds.sync("g")
        feeds.close()
        writer.more(50)
        feeds.open()
        writer.more(50)
    run("INSERT INTO others VALUES (3)")
    feeds.sync("f")
    feeds.sync("g")
    check(writer, before, ours(tmp_path))
    lines = [
        json.loads(line)
        for file in sorted((tmp_path / "others").rglob("*.ndjson"))
        for line in file.read_text().splitlines()
    ]
    assert sorted(line["after"]["id"] for line in lines) == [1, 2, 3]

    # Nothing of ours needs what the connector held.
    run("SELECT pg_drop_replication_slot('debezium')")
    run("DROP PUBLICATION dbz_publication", "UPDATE counters SET n = n + 1 WHERE id = 0")
    feeds.sync("f")
    assert ours(tmp_path)[0][-1] == writer.counts[0] + 1


@pytest.mark.parametrize("postgres", [16], indirect=True)
def test_a_feed_goes_on_from_an_offset_within_its_log(
    postgres: Database, feeds: Feeds, tmp_path: Path
) -> None:
    def run(*statements: str) -> None:
        postgres.execute("; ".join(statements))

    run(TABLE, ROWS)
    feeds.connect(shop=postgres.uri)
    feeds.execute("USE shop")
    with Writer(run) as writer, postgres_peer(postgres, tmp_path) as peer:
        peer.wait_for(KEYS + 20)
        old = peer.offset()
        writer.more(50)
        feeds.execute("CREATE CHANGEFEED other FOR counters INTO 'null://'")
        feeds.sync("other")
        writer.more(50)
        goal = len(peer.events()) + 100
        peer.wait_for(goal)
        peer.kill()
        before, offset = theirs(peer), peer.offset()
        with pytest.raises(ChangefeedError, match="has not every change of") as early:
            take_over(feeds, tmp_path, old)
        assert early.value.code.number == "CF3002"
        take_over(feeds, tmp_path, offset)
        writer.more(50)
    feeds.sync("f")
    check(writer, before, ours(tmp_path))


@pytest.mark.parametrize("binlog_server", ["mysql8"], indirect=True)
def test_a_binlog_is_read_on(binlog_server: BinlogServer, feeds: Feeds, tmp_path: Path) -> None:
    with binlog_server.database() as database:

        def run(*statements: str) -> None:
            binlog_server.run("BEGIN", *statements, "COMMIT", database=database)

        binlog_server.run(TABLE, ROWS, database=database)
        settings = mysql_settings(binlog_server, database)
        feeds.connect(shop=binlog_server.uri(database))
        feeds.execute("USE shop")
        with Writer(run) as writer, engine(tmp_path / "peer", settings) as peer:
            peer.wait_for(KEYS + 100)
            peer.kill()
            before, offset = theirs(peer), peer.offset()
            writer.more(100)
            take_over(feeds, tmp_path, offset)
            writer.more(50)
        feeds.sync("f")
        check(writer, before, ours(tmp_path))
