"""The chaos test over MariaDB, or over MySQL (``CHANGEFEED_NEMESIS_MYSQL=mysql8``)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.waiting import PATIENCE
from tests.nemesis.copies import DuckDBCopy, MySQLCopy
from tests.nemesis.ends import Files
from tests.nemesis.mysql_origin import MySQLOrigin
from tests.nemesis.run import LOSSES, SECONDS, Run
from tests.services.mysql import BinlogServer

pytestmark = [
    pytest.mark.nemesis,
    pytest.mark.e2e,
    pytest.mark.timeout(6 * PATIENCE + SECONDS),
]


def source(run: Run) -> BinlogServer:
    """The server that the run reads."""
    assert isinstance(run.origin, MySQLOrigin)
    return run.origin.server


def test_feeds_of_mysql_keep_their_promises(mysql_run: Run, tmp_path: Path) -> None:
    run = mysql_run
    run.create_feeds(
        [
            Files(run.ledger, tmp_path / "out"),
            MySQLCopy(run.ledger, source(run)),
            DuckDBCopy(run.ledger, tmp_path / "target.duckdb"),
        ]
    )
    run.see_everywhere()
    run.go_wrong(SECONDS / 4)
    run.settle()
    run.prove()


def test_copies_of_mysql_are_whole_again_after_changes_were_lost(
    mysql_run: Run, tmp_path: Path
) -> None:
    """What was purged, or is not in the history of a server that was restored, is lost; each feed
    says so, and RESCAN makes it good."""
    run = mysql_run
    run.create_feeds([DuckDBCopy(run.ledger, tmp_path / "target.duckdb")])
    for _ in range(LOSSES - 1):
        run.go_without_looking(SECONDS / 40)
        run.lose()
        run.go_without_looking(SECONDS / 40)
        run.rescan()
    run.settle()
    run.see_everywhere()
    run.prove()
