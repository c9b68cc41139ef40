"""Warehouses that load scans out of files, against the list of what a merging sink must do."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyarrow.fs import FileSelector, LocalFileSystem, SubTreeFileSystem

from changefeed.core.errors import ChangefeedError, Code
from changefeed_testing.sinks.merge_steps import visible
from changefeed_testing.sinks.merging import MERGE_CASES, MergeCase, run_merge_case
from changefeed_testing.sinks.rows import RowFeed, SourceDouble, table_of
from sinks.base import Batch, Sink, SinkContext
from sinks.registry import open_sink
from sinks.warehouse.bigquery.client import BigQueryWarehouse
from sinks.warehouse.duckdb import DuckDB, DuckDBSink, FolderFiles
from tests.conformance.test_bigquery import BigQueryHarness
from tests.conformance.test_snowflake import SnowflakeHarness
from tests.conformance.test_warehouse import DuckDBHarness
from tests.helpers.staged_parts import FOLDERS, Killed, write_scan
from tests.services.bigquery import BigQueryEmulator
from tests.services.gcs import GcsServer
from tests.services.snowflake import SnowflakeEmulator

#: What has a scan in it; the SQL of the others is tested elsewhere.
SCANS = [case for case in MERGE_CASES if ".scan(" in inspect.getsource(case.run)]
#: Those of targets whose stand-ins take long.
FEW = [case for case in SCANS if case.name in ("scans", "goes_on_with_scans")]


class DuckDBByFiles(DuckDBHarness):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "shop.duckdb")
        self._scratch = folder / "scratch"

    def context(self, context: SinkContext) -> SinkContext:
        return replace(context, spark=FOLDERS, scratch=str(self._scratch))

    def write_scan(self, sink: Sink, batch: Batch) -> None:
        write_scan(sink, batch)
        assert not list(self._scratch.glob("parts-*")), "files of a round are left"


@pytest.mark.parametrize("case", SCANS, ids=str)
def test_duckdb(case: MergeCase, tmp_path: Path) -> None:
    reason = run_merge_case(case, DuckDBByFiles(tmp_path))
    if reason:
        pytest.skip(f"never: {reason}")


class BigQueryByFiles(BigQueryHarness):
    """The emulator reads ``gs://`` from a directory; tasks write there in the same way."""

    def __init__(self, emulator: BigQueryEmulator, dataset: str) -> None:
        super().__init__(emulator, dataset)
        self.bucket = emulator.folder / "gcs" / "bucket"
        folder = self.bucket / "feeds" / "changefeed_parts" / "conformance-state-17"
        folder.mkdir(parents=True, exist_ok=True)

    def sink(self, options: Mapping[str, object] | None = None) -> Sink:
        more = "load_interval=0&gcs_bucket=bucket/feeds"
        return open_sink(self._emulator.uri(self.dataset, more), options)

    def write_scan(self, sink: Sink, batch: Batch) -> None:
        write_scan(sink, batch)
        assert not self.objects(), "objects of a round are left"

    def objects(self) -> list[Path]:
        return [path for path in self.bucket.rglob("*") if path.is_file()]


@pytest.fixture
def by_files(
    bigquery: BigQueryEmulator, monkeypatch: pytest.MonkeyPatch
) -> Iterator[BigQueryByFiles]:
    store = SubTreeFileSystem(str(bigquery.folder / "gcs"), LocalFileSystem())
    monkeypatch.setattr(BigQueryWarehouse, "files", lambda self: store)
    with bigquery.dataset() as name:
        yield BigQueryByFiles(bigquery, name)


@pytest.mark.bigquery
@pytest.mark.parametrize("case", FEW, ids=str)
def test_bigquery(case: MergeCase, by_files: BigQueryByFiles) -> None:
    run_merge_case(case, by_files)


def test_parts_are_objects_of_a_bucket(gcs: GcsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts of many tasks at the same time; what a run leaves, the next one removes."""
    monkeypatch.setattr(BigQueryWarehouse, "files", lambda self: gcs.client())
    gcs.client().create_dir("parts")
    warehouse = BigQueryWarehouse("local", "d", bucket="parts")
    context = SinkContext("f", 3, (), state="s")

    def names() -> list[str]:
        found = gcs.client().get_file_info(FileSelector("parts", recursive=True))
        return sorted(info.base_name for info in found if info.is_file)

    def write(number: int) -> None:
        with pickle.loads(carried).create(f"{number}.parquet") as file:
            file.write(b"x" * 100)

    with warehouse.part_files(context, "1") as files:
        carried = pickle.dumps(files)
        with ThreadPoolExecutor(4) as tasks:
            list(tasks.map(write, range(8)))
        assert names() == [f"1-{number}.parquet" for number in range(8)]
    assert names() == []
    write(9)  # an attempt that outlives its job
    with warehouse.part_files(context, "2"):
        assert names() == []


def _scanned(sink: Sink, feed: RowFeed) -> None:
    opened = feed.open(sink)
    feed.scan(opened, "t")
    opened.close()


def _feed(folder: Path) -> tuple[RowFeed, DuckDBByFiles]:
    harness = DuckDBByFiles(folder)
    source = SourceDouble(table_of("t", key=("a",), a="int32", b="text"))
    source.load("t", [{"a": number, "b": f"row {number}"} for number in range(20)])
    return RowFeed(source, write_scan=harness.write_scan, context=harness.context), harness


def test_a_node_that_dies_after_the_load_repeats_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Staged rows of the dead one stay, and are in no round of the next one."""
    feed, harness = _feed(tmp_path)

    def die(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        dying = harness.sink()
        patch.setattr(dying, "commit", die)
        _scanned(dying, feed)
    assert not harness.rows("t") and harness.rows("_staging_t")
    _scanned(harness.sink(), feed)
    assert visible(harness.rows("t")) == feed.source.rows("t")


def test_files_that_are_not_here_are_not_passed_over(tmp_path: Path) -> None:
    """Executors that do not share the node's directory: the hint says what to do."""
    feed, harness = _feed(tmp_path)

    class Elsewhere(DuckDB):
        def load_files(self, *given: Any) -> None:
            table, files, names, load_id = given
            super().load_files(table, files, [*names, "lost.parquet 1 1"], load_id)

    sink = DuckDBSink(f"duckdb://{tmp_path}/shop.duckdb?schema=shop")
    sink._tables.warehouse = Elsewhere(f"{tmp_path}/shop.duckdb", "shop")
    with pytest.raises(ChangefeedError, match="cannot load what Spark's executors wrote") as caught:
        _scanned(sink, feed)
    assert caught.value.code is Code.SINK_REFUSED_DATA and "engine = 'driver'" in caught.value.hint
    sink.close()
    assert not harness.rows("t")


def test_a_file_that_is_damaged_is_not_loaded(tmp_path: Path) -> None:
    feed, harness = _feed(tmp_path)

    class Damaged(DuckDB):
        def load_files(self, *given: Any) -> None:
            table, files, names, load_id = given
            path = files.folder / names[0].split()[0]
            content = bytearray(path.read_bytes())
            content[len(content) // 2] ^= 1
            path.write_bytes(content)
            super().load_files(table, files, names, load_id)

    sink = DuckDBSink(f"duckdb://{tmp_path}/shop.duckdb?schema=shop")
    sink._tables.warehouse = Damaged(f"{tmp_path}/shop.duckdb", "shop")
    with pytest.raises(ChangefeedError, match="a file of a scan is damaged") as caught:
        _scanned(sink, feed)
    assert caught.value.code is Code.SINK_UNREACHABLE, "it is tried again"
    sink.close()
    assert not harness.rows("t")


class SnowflakeByFiles(SnowflakeHarness):
    def write_scan(self, sink: Sink, batch: Batch) -> None:
        write_scan(sink, batch)


@pytest.mark.snowflake
@pytest.mark.parametrize("case", FEW, ids=str)
def test_snowflake(case: MergeCase, snowflake: SnowflakeEmulator) -> None:
    run_merge_case(case, SnowflakeByFiles(snowflake))


def test_an_executor_that_cannot_write_there_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(ChangefeedError, match="an executor of Spark cannot write") as caught,
        FolderFiles(tmp_path / "file" / "parts-1").create("1.parquet"),
    ):
        pytest.fail("there is no such folder")
    assert "engine = 'driver'" in caught.value.hint
