"""Feeds from a real PostgreSQL into a real Elasticsearch: the index equals the table."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from changefeed.spark.session import SparkEngine
from tests.e2e.feeds import Feeds, running
from tests.services.elasticsearch import Elasticsearch
from tests.services.postgres import Database

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.spark,
    pytest.mark.postgres,
    pytest.mark.elasticsearch,
]

_numbers = itertools.count(1)


class Bench:
    """One database, one state, index names of its own."""

    def __init__(self, feeds: Feeds, db: Database, server: Elasticsearch) -> None:
        self.feeds = feeds
        self.db = db
        self.server = server
        self.prefix = f"e2e{next(_numbers)}_"
        feeds.connect(shop=db.uri)

    def create(self, name: str, targets: str, options: str = "", parameters: str = "") -> None:
        uri = f"{self.server.uri}/?index_prefix={self.prefix}{parameters}"
        more = f" WITH {options}" if options else ""
        self.feeds.execute(f"CREATE CHANGEFEED {name} FOR {targets} INTO '{uri}'{more}")

    def documents(self, table: str = "t") -> dict[str, dict[str, Any]]:
        return self.server.documents(f"{self.prefix}{table}")

    def status(self, name: str) -> str:
        return self.feeds.catalog.job(name).status.value


@pytest.fixture
def bench(
    tmp_path: Path, postgres: Database, elasticsearch: Elasticsearch, spark_engine: SparkEngine
) -> Iterator[Bench]:
    postgres.execute(
        "create table t (a int primary key, b text, n numeric(12, 2));"
        "insert into t select i, 'row ' || i, i * 1.5 from generate_series(1, 10) i"
    )
    with running(tmp_path / "state", spark_engine) as feeds:
        yield Bench(feeds, postgres, elasticsearch)


def until(condition: Callable[[], object], seconds: float = 60) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.05)


def truth(db: Database, sql: str = "select to_jsonb(t), a from t") -> dict[str, Any]:
    return {str(key): row for row, key in db.execute(sql)}


def test_the_index_equals_the_table(bench: Bench) -> None:
    bench.create("f", "t", "resolved = '200ms'")
    bench.feeds.sync("f")
    assert bench.documents() == truth(bench.db)
    bench.db.execute("update t set b = 'new' where a <= 3")
    bench.db.execute("delete from t where a = 4")
    bench.db.execute("update t set a = 100 where a = 5")
    bench.db.execute("insert into t values (200, 'x \"quoted\" \\ \n line', 0.10)")
    bench.feeds.sync("f")
    assert bench.documents() == truth(bench.db)
