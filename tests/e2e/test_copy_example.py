"""The RFC's warehouse: minute buckets, manifests, COPY; always a state the source was in."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from changefeed.spark.session import NodeSpark
from sinks.files.names import PARTITION_FORMATS, Buckets
from tests.e2e.feeds import running
from tests.e2e.test_examples import EXAMPLES, play
from tests.services.postgres import Database, PostgresCluster

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.postgres]

FOLDER = EXAMPLES / "copy"
#: Two seconds stand for a minute, so that the test need not wait for one.
SHORT = Buckets("%Y-%m-%d/%H/%M-%S", 2_000_000_000)


def load_script(path: Path) -> ModuleType:
    """A script of an example, not run."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_copy(
    tmp_path: Path,
    postgres: Database,
    postgres_server: Callable[..., PostgresCluster],
    spark_engine: NodeSpark,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(PARTITION_FORMATS, "minute", SHORT)
    load, lake = load_script(FOLDER / "load.py").load, tmp_path / "lake"
    play(postgres, FOLDER / "setup.sql")
    postgres.execute(
        "insert into rides select i, 'rome', 'ann ' || i, 0, now() from generate_series(1, 300) i"
    )
    with (
        running(tmp_path / "state", spark_engine) as feeds,
        postgres_server().database() as warehouse,
    ):
        play(warehouse, FOLDER / "setup.sql")
        warehouse.execute("truncate rides, tills")
        feeds.connect(movr=postgres.uri, lake=f"{lake.as_uri()}?partition_format=minute")
        feeds.run_file(FOLDER / "feeds.sql")
        feeds.sync("feed_analytics")
        seen: set[object] = set()
        number = 1000
        deadline = time.monotonic() + 120
        while len(seen) < 4:
            assert time.monotonic() < deadline, f"only {seen} was loaded"
            number += 1
            ride(postgres, number)
            if load(lake, warehouse.uri):
                assert sums(warehouse)[0] == sums(warehouse)[1], "half a transaction was loaded"
                seen.add(sums(warehouse)[0])
        postgres.execute("truncate rides; update tills set taken = 0")
        ride(postgres, 1)
        ride(postgres, 2)
        postgres.execute("delete from rides where id = 2")
        while rows(warehouse) != rows(postgres):
            assert time.monotonic() < deadline, "the warehouse does not catch up"
            load(lake, warehouse.uri)
        assert load(lake, warehouse.uri) == 0


def ride(db: Database, number: int) -> None:
    """A ride and its fare in the till, in one transaction."""
    with db.connect(autocommit=False) as connection:
        connection.execute(
            "insert into rides values (%s, 'rome', 'bob', 2.50, now(), null)", [number]
        )
        connection.execute("update tills set taken = taken + 2.50 where city = 'rome'")


def sums(db: Database) -> tuple[object, object]:
    """What the rides say was taken, and what the tills say."""
    ((fares, taken),) = db.execute(
        "select (select coalesce(sum(fare), 0) from rides), (select sum(taken) from tills)"
    )
    return fares, taken


def rows(db: Database) -> list[object]:
    """Both tables."""
    return [db.execute(f"select * from {table} order by 1") for table in ("rides", "tills")]
