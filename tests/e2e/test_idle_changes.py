"""A schema change that no row follows reaches the target, and SYNC waits for it."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from tests.e2e.feeds import Feeds
from tests.services.postgres import Database

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
