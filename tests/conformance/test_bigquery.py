"""BigQuery's emulator against the list of what a merging sink must do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pytest
from google.api_core.exceptions import NotFound

from sinks.base import Sink
from sinks.registry import open_sink
from sinks.testing.merging import MERGE_CASES, MergeCase, MergeHarness, run_merge_case
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


@pytest.fixture
def harness(bigquery: BigQueryEmulator) -> Iterator[BigQueryHarness]:
    with bigquery.dataset() as name:
        yield BigQueryHarness(bigquery, name)


@pytest.mark.bigquery
@pytest.mark.parametrize("case", MERGE_CASES, ids=str)
def test_merges(case: MergeCase, harness: BigQueryHarness) -> None:
    reason = run_merge_case(case, harness)
    if reason:
        pytest.skip(f"never: {reason}")
