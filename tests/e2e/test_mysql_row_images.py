"""Feeds from a server whose binlog has only parts of rows (``binlog_row_image = MINIMAL``)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from changefeed.catalog.model import Status
from changefeed.core.errors import ChangefeedError
from tests.e2e.feeds import Feeds, running
from tests.helpers.duckdb_file import opened
from tests.helpers.waiting import until
from tests.services.mysql import BinlogServer

pytestmark = pytest.mark.e2e

#: What differs between the two is tested without feeds.
MARIADB = pytest.mark.parametrize("binlog_server", ["mariadb"], indirect=True)
BOTH = pytest.mark.parametrize("binlog_server", ["mariadb", "mysql8"], indirect=True)

UNSENT = "__changefeed_unsent__"


class Bench:
    """A table ``t`` of such a server, and one state."""

    def __init__(self, feeds: Feeds, server: BinlogServer, database: str, folder: Path) -> None:
        self.feeds, self.folder = feeds, folder
        self._server, self._database = server, database
        feeds.connect(shop=server.uri(database))

    def run(self, *statements: str) -> list[tuple[Any, ...]]:
        return self._server.run(*statements, database=self._database)

    def create(self, name: str, sink: str, more: str) -> None:
        self.feeds.execute(
            f"CREATE CHANGEFEED {name} FOR shop.{self._database}.t INTO '{sink}'{more}"
        )
        self.feeds.sync(name)

    def messages(self, name: str) -> list[dict[str, Any]]:
        """The messages of a feed into files, in their order, each once."""
        names = sorted((self.folder / name).rglob("*.ndjson"))
        lines = [line for path in names for line in path.read_text().splitlines()]
        return [m for m in map(json.loads, dict.fromkeys(lines)) if "after" in m]

    def truth(self) -> list[tuple[Any, ...]]:
        return self.run("SELECT id, n, v, w FROM t ORDER BY id")

    def events(self, name: str) -> list[str]:
        return [str(row[1]) for row in self.feeds.execute(f"SHOW CHANGEFEED {name} EVENTS").rows]


@pytest.fixture
def bench(tmp_path: Path, binlog_server: BinlogServer) -> Iterator[Bench]:
    with binlog_server.database() as database:
        binlog_server.run("SET GLOBAL binlog_row_image = 'MINIMAL'")
        try:
            binlog_server.run(
                "CREATE TABLE t (id INT PRIMARY KEY, n INT, v VARCHAR(20) NOT NULL DEFAULT 'new',"
                " w INT DEFAULT 5)",
                "INSERT INTO t VALUES (1, 1, 'a', 1), (2, 2, 'b', 2), (3, 3, 'c', 3)",
                database=database,
            )
            with running(tmp_path / "state") as feeds:
                yield Bench(feeds, binlog_server, database, tmp_path / "out")
        finally:
            binlog_server.run("SET GLOBAL binlog_row_image = 'FULL'")


def change(bench: Bench) -> None:
    bench.run("UPDATE t SET n = 10 WHERE id = 1")
    bench.run("UPDATE t SET v = 'x', w = NULL WHERE id = 2")
    bench.run("INSERT INTO t (id, n) VALUES (4, 4)")
    bench.run("DELETE FROM t WHERE id = 3")


@BOTH
def test_messages_say_what_was_not_sent_and_tables_keep_it(bench: Bench) -> None:
    bench.create("m", f"file://{bench.folder / 'm'}", " WITH key_in_value")
    bench.create("o", f"file://{bench.folder / 'o'}", " WITH unsent_values = 'omit'")
    bench.create("d", f"duckdb:///{bench.folder / 'copy.db'}", "")
    change(bench)
    for name in ("m", "o", "d"):
        bench.feeds.sync(name)

    changes = [message["after"] for message in bench.messages("m")][3:]
    assert changes == [
        {"id": 1, "n": 10, "v": UNSENT, "w": UNSENT},
        {"id": 2, "n": UNSENT, "v": "x", "w": None},
        {"id": 4, "n": 4, "v": "new", "w": 5},
        None,
    ]
    assert [message["after"] for message in bench.messages("o")][3:5] == [
        {"id": 1, "n": 10},
        {"id": 2, "v": "x", "w": None},
    ]
    with opened(bench.folder / "copy.db") as copy:
        assert copy.execute("SELECT id, n, v, w FROM t ORDER BY id").fetchall() == bench.truth()

    # The binlog has nothing of the row but its new key: the table is read again.
    bench.run("UPDATE t SET id = 20 WHERE id = 2")

    def same() -> bool:
        bench.feeds.sync("d")
        with opened(bench.folder / "copy.db") as copy:
            rows = copy.execute("SELECT id, n, v, w FROM t ORDER BY id").fetchall()
        return bool(rows == bench.truth())

    until(same)
    assert "schema" in bench.events("d")


@BOTH
def test_diff_is_refused_or_comes_from_row_images(bench: Bench) -> None:
    with pytest.raises(ChangefeedError) as refused:
        bench.create("f", f"file://{bench.folder / 'f'}", " WITH diff")
    assert refused.value.code == "CF2003"
    assert "binlog_row_image = 'FULL'" in str(refused.value.hint)

    bench.create("f", f"file://{bench.folder / 'f'}", " WITH diff, row_images = 'store'")
    change(bench)
    bench.run("UPDATE t SET id = 20 WHERE id = 2")
    bench.feeds.sync("f")

    found = [(message["before"], message["after"]) for message in bench.messages("f")][3:]
    one, two = {"id": 1, "n": 1, "v": "a", "w": 1}, {"id": 2, "n": 2, "v": "b", "w": 2}
    changed = {"id": 2, "n": 2, "v": "x", "w": None}
    assert found == [
        (one, {**one, "n": 10}),
        (two, changed),
        (None, {"id": 4, "n": 4, "v": "new", "w": 5}),
        ({"id": 3, "n": 3, "v": "c", "w": 3}, None),
        (changed, None),
        (None, {**changed, "id": 20}),
    ]


@MARIADB
def test_a_session_that_lowers_the_image_stops_a_feed_with_diff(bench: Bench) -> None:
    bench.run("SET GLOBAL binlog_row_image = 'FULL'")
    bench.create("f", f"file://{bench.folder / 'f'}", " WITH diff")
    bench.create("d", f"duckdb:///{bench.folder / 'copy.db'}", "")
    bench.run("SET SESSION binlog_row_image = 'MINIMAL'", "UPDATE t SET n = 10 WHERE id = 1")

    until(lambda: bench.feeds.catalog.jobs()[0].status is Status.FAILED)
    assert "logs only its key now" in str(bench.feeds.catalog.jobs()[0].error)
    bench.feeds.sync("d")
    with opened(bench.folder / "copy.db") as copy:
        assert copy.execute("SELECT id, n, v, w FROM t ORDER BY id").fetchall() == bench.truth()
