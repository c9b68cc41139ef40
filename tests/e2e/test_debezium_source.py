"""A feed from a database that Debezium reads into files: the scan, every change, a killed capture.

MariaDB stands for the databases of which no server can be had.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from changefeed.sources.debezium.door import Door
from tests.e2e.feeds import Feeds, consumed, rebuilt, running
from tests.helpers.waiting import until
from tests.services.mariadb import PASSWORD, USER
from tests.services.mysql import BinlogServer

pytestmark = [pytest.mark.e2e, pytest.mark.extended, pytest.mark.usefixtures("debezium_jars")]


@pytest.fixture
def feeds(tmp_path: Path) -> Iterator[Feeds]:
    with running(tmp_path / "state") as made:
        yield made


def test_from_mariadb_into_files(feeds: Feeds, binlog_server: BinlogServer, tmp_path: Path) -> None:
    with binlog_server.database() as name:

        def run(*statements: str) -> list[tuple[object, ...]]:
            return binlog_server.run(*statements, database=name)

        run("CREATE TABLE t (id INT PRIMARY KEY, v DECIMAL(8,2))", "INSERT INTO t VALUES (1, 1.5)")
        feeds.connect(shop=f"debezium-{binlog_server.uri(name, USER, PASSWORD)}")
        feeds.execute(
            f"CREATE CHANGEFEED f FOR TABLE shop.{name}.t INTO 'file://{tmp_path}/out'"
            " WITH updated, resolved = '200ms'"
        )
        feeds.sync("f")
        assert rebuilt(consumed(tmp_path / "out", "t")) == {"[1]": {"id": 1, "v": 1.5}}
        run("INSERT INTO t VALUES (2, 2)", "UPDATE t SET v = 3 WHERE id = 1")
        feeds.sync("f")
        run("INSERT INTO t VALUES (3, 3)")
        restarted = feeds.kill_capture()
        run("DELETE FROM t WHERE id = 2", "UPDATE t SET id = 4 WHERE id = 3")
        until(restarted)
        feeds.sync("f")
        assert rebuilt(consumed(tmp_path / "out", "t")) == {
            "[1]": {"id": 1, "v": 3.0},
            "[4]": {"id": 4, "v": 3.0},
        }
        feeds.execute("DROP CHANGEFEED f")


def test_what_the_jvm_itself_says_is_no_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    """It warns of an option before the program begins, unasked on standard output."""
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Xmn1g")
    door = Door(["debezium-postgresql"], heap="64m")
    try:
        assert door.alive
    finally:
        door.close()
