"""Scans into a warehouse whose parts tasks of Spark read and stage: the rows are the node's."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest

from changefeed.core.engines import EngineOption
from changefeed.core.faults import armed
from changefeed.core.sizes import Sizes
from changefeed.spark.session import NodeSpark
from sinks.base import SinkContext
from sinks.warehouse.bigquery.client import BigQueryWarehouse, BucketFiles
from sinks.warehouse.duckdb import DuckDB, FolderFiles
from tests.e2e.feeds import BRISK, Feeds, running
from tests.e2e.test_warehouse_feeds import WIDE, texts
from tests.helpers.duckdb_file import opened
from tests.services.bigquery import BigQueryEmulator
from tests.services.postgres import Database
from tests.services.snowflake import SnowflakeEmulator

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.postgres]

TABLES = """
create table t (shop text, n bigint, v text, primary key (shop, n));
insert into t select 'shop ' || i % 7, i, repeat('é"x', i % 50) from generate_series(1, 3000) i;
create table plain (a int, b text);
alter table plain replica identity full;
insert into plain select i % 10, 'twice' from generate_series(1, 1500) i;
create table none (a int primary key);
analyze
"""
#: So that a table of these has several parts, and its scan several rounds.
SMALL = Sizes(scan_part_bytes=32_768)


@pytest.fixture
def feeds(tmp_path: Path, postgres: Database, spark_engine: NodeSpark) -> Iterator[Feeds]:
    postgres.execute(WIDE + ";" + TABLES)
    with (
        spark_engine.preferring(EngineOption.AUTO, least_job_rows=0),  # type: ignore[attr-defined]
        running(tmp_path / "state", spark_engine, timings=BRISK, sizes=SMALL) as made,
    ):
        made.connect(shop=postgres.uri)
        yield made


def rows(path: Path, table: str) -> list[str]:
    """Of a table in a file, without the version, which differs with the instant of the scan."""
    with opened(path) as connection:
        connection.execute("set timezone = 'UTC'")
        found = connection.execute(f"select * exclude (_sequence_num) from {table}").fetchall()
    return texts(found)


def last_job(feeds: Feeds, feed: str) -> str:
    shown = feeds.execute(f"SHOW CHANGEFEED {feed}")
    return str(dict(zip(shown.columns, shown.rows[0], strict=True))["last_spark_job"])


def test_a_scan_by_tasks_is_the_scan_of_the_node(
    tmp_path: Path, feeds: Feeds, postgres: Database
) -> None:
    paths = {engine: tmp_path / f"{engine}.duckdb" for engine in ("driver", "spark")}
    for engine, path in paths.items():
        targets = "wide, t VALUES FROM ('shop 2') TO ('shop 9'), plain, none"
        feeds.execute(
            f"CREATE CHANGEFEED {engine} FOR {targets} INTO 'duckdb://{path}' "
            f"WITH engine = '{engine}'"
        )
        feeds.sync(engine)
    assert "as a Spark job" in last_job(feeds, "spark")
    assert "as a Spark job" not in last_job(feeds, "driver")

    def same() -> bool:
        return all(
            rows(paths["driver"], table) == rows(paths["spark"], table)
            for table in ("wide", "t", "plain", "none")
        )

    assert same() and len(rows(paths["spark"], "plain")) == 1500
    assert 2000 < len(rows(paths["spark"], "t")) < 3000
    assert not list((tmp_path / "state").rglob("*.parquet")), "files of a round are left"
    postgres.execute("update t set v = 'new' where n % 3 = 0; delete from plain where a = 1")
    for engine in paths:
        feeds.sync(engine)
    assert same() and len(rows(paths["spark"], "plain")) == 1350


def test_a_scan_by_tasks_goes_on_where_it_broke(tmp_path: Path, feeds: Feeds) -> None:
    path = tmp_path / "t.duckdb"
    with armed("scan.committed@1:error"):
        feeds.execute(f"CREATE CHANGEFEED f FOR t INTO 'duckdb://{path}' WITH engine = 'spark'")
        feeds.sync("f")
    with opened(path) as connection:
        [found] = connection.execute(
            "select count(*), count(distinct n), count(distinct _sequence_num) from t"
        ).fetchall()
    assert found[:2] == (3000, 3000) and found[2] == 2, "the second scan read the rest"
    feeds.verified()


class OnceLost(FolderFiles):
    """The first task that has written its file dies before it returns the receipt."""

    @contextmanager
    def create(self, name: str) -> Iterator[IO[bytes]]:
        with super().create(name) as file:
            yield file
        try:
            (self.folder.parent / "died").touch(exist_ok=False)
        except FileExistsError:
            return
        os._exit(9)


def test_a_task_that_dies_with_its_file_written_repeats_nothing(
    tmp_path: Path, feeds: Feeds, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[set[str]] = []
    ours: Callable[..., object] = DuckDB.part_files
    load = DuckDB.load_files

    @contextmanager
    def part_files(self: DuckDB, context: SinkContext, name: str) -> Iterator[FolderFiles]:
        with ours(self, context, name) as files:  # type: ignore[attr-defined]
            yield OnceLost(files.folder)

    def load_files(
        self: DuckDB, table: str, files: FolderFiles, marks: list[str], load_id: str
    ) -> None:
        taken = {mark.split()[0] for mark in marks}
        written.append({path.name for path in files.folder.iterdir()} - taken)
        load(self, table, files, marks, load_id)

    monkeypatch.setattr(DuckDB, "part_files", part_files)
    monkeypatch.setattr(DuckDB, "load_files", load_files)
    path = tmp_path / "t.duckdb"
    feeds.execute(f"CREATE CHANGEFEED f FOR t INTO 'duckdb://{path}' WITH engine = 'spark'")
    feeds.sync("f")
    assert sum(map(len, written)) == 1, "a file without a receipt was there, and was not loaded"
    assert len(rows(path, "t")) == 3000
    feeds.verified()
    assert not list((tmp_path / "state").rglob("*.parquet"))


@pytest.mark.snowflake
def test_tasks_put_files_into_a_stage(feeds: Feeds, snowflake: SnowflakeEmulator) -> None:
    """Each logs in with what the task carries."""
    uri = snowflake.uri(snowflake.database(), "shop", "load_interval=0")
    feeds.execute(f"CREATE CHANGEFEED f FOR t, plain INTO '{uri}' WITH engine = 'spark'")
    feeds.sync("f")
    assert "as a Spark job" in last_job(feeds, "f")
    assert feeds.verified() == ["f"]


@dataclass(frozen=True)
class LocalObjects(BucketFiles):
    """The emulator reads ``gs://`` from a directory."""

    root: Path

    @contextmanager
    def create(self, name: str) -> Iterator[IO[bytes]]:
        path = self.root / (self.prefix + name)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            yield file


@pytest.mark.bigquery
def test_one_load_job_takes_what_tasks_wrote_into_a_bucket(
    feeds: Feeds, bigquery: BigQueryEmulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[int] = []
    load = BigQueryWarehouse.load_files

    @contextmanager
    def part_files(
        self: BigQueryWarehouse, context: SinkContext, name: str
    ) -> Iterator[LocalObjects]:
        yield LocalObjects(self, f"bucket/parts/{name}-", bigquery.folder / "gcs")

    def load_files(
        self: BigQueryWarehouse, table: str, files: LocalObjects, names: list[str], load_id: str
    ) -> None:
        loaded.append(len(names))
        load(self, table, files, names, load_id)

    monkeypatch.setattr(BigQueryWarehouse, "part_files", part_files)
    monkeypatch.setattr(BigQueryWarehouse, "load_files", load_files)
    with bigquery.dataset() as dataset:
        uri = bigquery.uri(dataset, "load_interval=0&gcs_bucket=bucket")
        feeds.execute(f"CREATE CHANGEFEED f FOR t INTO '{uri}' WITH engine = 'spark'")
        feeds.sync("f")
        assert max(loaded) > 1, "several files in one job"
        assert bigquery.query(f"select count(*), count(distinct n) from {dataset}.t") == [
            (3000, 3000)
        ]
        feeds.execute("DROP CHANGEFEED f")


def test_a_warehouse_that_loads_no_files_says_so(
    tmp_path: Path, feeds: Feeds, postgres: Database
) -> None:
    create = "CREATE CHANGEFEED f FOR t INTO '{}' WITH engine = 'spark'"

    def explained(sink: str) -> str:
        found = feeds.execute(f"EXPLAIN {create.format(sink)}")
        return "\n".join(str(row) for row in found.rows)

    assert "scans, not for backlogs" in explained(f"duckdb://{tmp_path}/x.duckdb")
    assert "scans, not for backlogs" in explained("bigquery://p/d?gcs_bucket=b")
    refused = "driver: the rows of this sink are staged by the node"
    assert refused in explained("bigquery://p/d")
    assert refused in explained(f"{postgres.uri}?schema=copy")
