"""BigQuery's emulator against the list of what a merging sink must do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
import pytest
from google.api_core.exceptions import NotFound
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

from changefeed.core.errors import ChangefeedError
from changefeed_testing.sinks.merge_harness import MergeHarness
from changefeed_testing.sinks.merging import MERGE_CASES, MergeCase, run_merge_case
from sinks.base import Sink
from sinks.registry import open_sink
from sinks.warehouse.bigquery.client import BigQueryWarehouse
from sinks.warehouse.dialect import SqlStatement
from tests.services.bigquery import BigQueryEmulator


class BigQueryHarness(MergeHarness):
    never: Mapping[str, str] = {"hides_secrets": "the emulator needs no login"}

    def __init__(self, emulator: BigQueryEmulator, dataset: str) -> None:
        self.dataset = dataset
        self._emulator = emulator

    def sink(self, options: Mapping[str, object] | None = None) -> Sink:
        return open_sink(self._emulator.uri(self.dataset, "load_interval=0"), options)

    def rows(self, topic: str) -> Sequence[Mapping[str, object]]:
        with self._emulator.client() as client:
            try:
                found = client.query_and_wait(f"SELECT * FROM `{self.dataset}`.`{topic}`")
            except NotFound:
                return []
            return [dict(row.items()) for row in found]

    def make_foreign(self, name: str) -> None:
        with self._emulator.client() as client:
            client.create_dataset(self.dataset, exists_ok=True)
            place = f"`{self.dataset}`.`{name}`"
            client.query_and_wait(f"CREATE TABLE {place} (a INT64, b STRING)")
            client.query_and_wait(f"INSERT INTO {place} (a, b) VALUES (9, 'theirs')")


@pytest.fixture
def harness(bigquery: BigQueryEmulator) -> Iterator[BigQueryHarness]:
    with bigquery.dataset() as name:
        yield BigQueryHarness(bigquery, name)


#: What takes the emulator longest, and is the same SQL as in other warehouses;
#: ``CHANGEFEED_TESTS=all`` has these cases, too.
LONG = {
    "repairs_single_rows",
    "repairs_single_rows_marked",
    "carries_unsent_values",
    "scans_versions",
    "scans_anew",
    "goes_on_with_scans",
    "appends_changes",
    "appends_scans_once",
    "keeps_sequence_beside",
    "forgets_values_of_reused_keys",
}


@pytest.mark.bigquery
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=pytest.mark.everything if case.name in LONG else (), id=str(case))
        for case in MERGE_CASES
    ],
)
def test_merges(case: MergeCase, harness: BigQueryHarness) -> None:
    reason = run_merge_case(case, harness)
    if reason:
        pytest.skip(f"never: {reason}")


# ------------------------------------------------------------------------------- loads

ROWS = pa.table({"a": pa.array([1, 2], pa.int64()), "b.c": ["x", None]})


@pytest.fixture
def warehouse(bigquery: BigQueryEmulator, harness: BigQueryHarness) -> Iterator[BigQueryWarehouse]:
    made = BigQueryWarehouse("local", harness.dataset, endpoint=bigquery.endpoint)
    made.connect()
    made.run(
        [SqlStatement(made.dialect.create_table(made.name("s"), {"a": "INT64", "b.c": "STRING"}))]
    )
    yield made
    made.close()


def _count(warehouse: BigQueryWarehouse) -> object:
    return warehouse.query(f"SELECT count(*) FROM {warehouse.name('s')}")[0][0]


@pytest.mark.bigquery
def test_a_load_that_comes_again_loads_nothing(warehouse: BigQueryWarehouse) -> None:
    assert warehouse.columns("s") == {"a": "INT64", "b.c": "STRING"}
    for _ in range(2):
        warehouse.load("s", ROWS, "load-1")
    assert _count(warehouse) == 2
    warehouse.load("s", ROWS, "load-2")
    assert _count(warehouse) == 4


@pytest.mark.bigquery
def test_a_load_that_failed_may_come_again(warehouse: BigQueryWarehouse) -> None:
    """The failed job keeps its id; the next attempt has another."""
    with pytest.raises(ChangefeedError) as caught:
        warehouse.load("s", pa.table({"a": ["no number"], "b.c": ["x"]}), "load-1")
    assert "no number" not in f"{caught.value.message} {caught.value.detail}"
    warehouse.load("s", ROWS, "load-1")
    assert _count(warehouse) == 2


@pytest.mark.bigquery
def test_loads_through_a_bucket(
    warehouse: BigQueryWarehouse, bigquery: BigQueryEmulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The emulator reads ``gs://`` from a directory; the sink writes there in the same way."""
    root = bigquery.folder / "gcs"
    (root / "bucket" / "feeds").mkdir(parents=True, exist_ok=True)
    store = SubTreeFileSystem(str(root), LocalFileSystem())
    monkeypatch.setattr(BigQueryWarehouse, "files", lambda self: store)
    monkeypatch.setattr(warehouse, "_bucket", "bucket/feeds")
    for _ in range(2):
        warehouse.load("s", ROWS, "load-1")
    assert _count(warehouse) == 2
    assert not list((root / "bucket" / "feeds").iterdir()), "an object was left behind"


@pytest.mark.bigquery
def test_a_script_is_all_or_nothing(warehouse: BigQueryWarehouse) -> None:
    insert = SqlStatement(f"INSERT INTO {warehouse.name('s')} (`a`) VALUES (1)", "s")
    with pytest.raises(ChangefeedError) as caught:
        warehouse.run([insert, SqlStatement("SELECT ERROR('hushhush')", "s")])
    assert caught.value.code.number == "CF5006"
    assert "hushhush" not in f"{caught.value.message} {caught.value.detail}"
    assert _count(warehouse) == 0
    warehouse.run([insert, insert])
    assert _count(warehouse) == 2
