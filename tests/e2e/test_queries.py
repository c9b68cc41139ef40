"""CDC queries from PostgreSQL through Spark SQL into sinks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from changefeed.spark.session import SparkEngine
from sinks.testing.readers import visible_files
from tests.e2e.feeds import Feeds, running
from tests.services.postgres import Database

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.postgres, pytest.mark.slow]


@pytest.fixture
def feeds(tmp_path: Path, postgres: Database, spark_engine: SparkEngine) -> Iterator[Feeds]:
    postgres.execute(
        "create table orders (id int primary key, status text, total numeric(8,2), doc jsonb);"
        "insert into orders values (1, 'open', 1.50, '{\"k\": [1, 2]}'), (2, 'closed', 2.00, null),"
        " (3, 'open', 3.00, null);"
        "alter table orders replica identity full"
    )
    with running(tmp_path / "state", spark_engine) as made:
        made.connect(shop=postgres.uri)
        yield made


def lines(folder: Path) -> list[dict[str, Any]]:
    """The rows of all files, in the order of their names."""
    return [
        json.loads(line)
        for path in visible_files(folder)
        if path.suffix == ".ndjson"
        for line in path.read_text().splitlines()
    ]


def test_a_feed_holds_the_rows_that_the_where_selects(
    feeds: Feeds, postgres: Database, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    feeds.execute(
        f"CREATE CHANGEFEED big INTO 'file://{out}' AS SELECT id, total * 2 AS t "
        "FROM shop.public.orders WHERE status = 'open'"
    )
    feeds.sync("big")
    rows = lines(out)
    assert sorted((row["id"], row["t"]) for row in rows) == [(1, 3.0), (3, 6.0)]
    postgres.execute("update orders set status = 'open' where id = 2")
    postgres.execute("update orders set total = 10 where id = 1")
    postgres.execute("update orders set status = 'closed' where id = 3")
    postgres.execute("update orders set total = 11 where id = 3")
    postgres.execute("delete from orders where id = 1")
    feeds.sync("big")
    assert [(row["id"], row["t"]) for row in lines(out)[2:]] == [
        (2, 4.0),
        (1, 20.0),
        (3, None),
        (1, None),
    ]
