"""Delta and Iceberg against the list of what a merging sink must do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from changefeed.spark.session import NodeSpark
from changefeed_testing.sinks.merge_harness import MergeHarness
from changefeed_testing.sinks.merging import MERGE_CASES, MergeCase, run_merge_case
from changefeed_testing.sinks.rounds import run_random_rounds
from sinks.base import Batch, Sink, SinkContext
from sinks.lake import iceberg
from sinks.lake.sink import IcebergSink
from sinks.registry import open_sink
from tests.helpers.lake import Lake, place_in

pytestmark = pytest.mark.spark


class LakeHarness(MergeHarness):
    """A fresh place."""

    never: Mapping[str, str] = {
        "keeps_sequence_beside": "the version of a row is a column of the table",
        "hides_secrets": "the URI of a directory holds no secret",
    }
    #: What Spark alone refuses is in tests/e2e/test_dead_letters.py: its jobs take long.
    unfit: Mapping[str, str] = {"decimal(9,2)": '"NaN"'}

    def __init__(self, engine: NodeSpark, uri: str, scratch: Path) -> None:
        self.lake = Lake(engine, uri)
        self._scratch = scratch

    def sink(self, options: Mapping[str, object] | None = None) -> Sink:
        return open_sink(self.lake.uri, options)

    def context(self, context: SinkContext) -> SinkContext:
        return replace(context, spark=self.lake.engine, scratch=str(self._scratch))

    def make_foreign(self, name: str) -> None:
        table, kind = self.lake.table(name), self.lake.format
        if kind == "iceberg":
            namespace = table.rpartition(".")[0]
            self.lake.query(f"CREATE NAMESPACE IF NOT EXISTS {namespace}")
        self.lake.query(f"CREATE TABLE {table} (a INT, b STRING) USING {kind}")
        self.lake.query(f"INSERT INTO {table} VALUES (9, 'theirs')")

    def rows(self, topic: str) -> Sequence[Mapping[str, object]]:
        # Iceberg has a use of its own for the name _deleted.
        names = {"_is_deleted": "_deleted"}
        return [
            {names.get(name, name): value for name, value in row.items()}
            for row in self.lake.rows(topic)
        ]


class BySpark(LakeHarness):
    """Scans come as DataFrames."""

    def write_scan(self, sink: Sink, batch: Batch) -> None:
        assert sink.capabilities.scans_by_spark
        with self.lake.engine.use() as session:
            frame = session.createDataFrame(batch.rows)
            receipt = sink.write_scan(frame, batch.epoch, batch.target, batch.schema)
        assert receipt.rows == batch.rows.num_rows


class LargeRounds(LakeHarness):
    """Iceberg's tables take each round for a large one."""

    def sink(self, options: Mapping[str, object] | None = None) -> Sink:
        made = super().sink(options)
        assert isinstance(made, IcebergSink)
        made.spread_rows = 1
        made.filtered_bytes = 0
        return made


def watched(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether Iceberg's tables spread a large round, by round."""
    asked, spread = iceberg.IcebergTable._spreads, []

    def spreads(table: iceberg.IcebergTable) -> bool:
        spread.append(asked(table))
        return spread[-1]

    monkeypatch.setattr(iceberg.IcebergTable, "_spreads", spreads)
    return spread


#: What the two formats do each in its own way; the rest is one and the same SQL, and a MERGE of
#: Delta's takes seconds whatever it holds. CHANGEFEED_TESTS=all runs everything on both.
OF_DELTA = {
    "counts_duplicates",
    "keeps_unsent_values",
    "evolves",
    "leaves_dropped_tables",
    "deletes_softly",
    "keeps_versions",
    "refuses_foreign_rows",
    "refuses_targets_of_other_feeds",
}

#: What `make test` leaves to `make test-all`.
SLOW = {
    "counts_duplicates",
    "keeps_unsent_values",
    "keeps_versions",
    "refuses_targets_of_other_feeds",
    "goes_on_with_scans",
}


def marks(kind: str, name: str) -> list[pytest.MarkDecorator]:
    """The markers of a case of :data:`MERGE_CASES`."""
    made = [pytest.mark.extended] if name in SLOW else []
    if kind == "delta" and name not in OF_DELTA:
        made.append(pytest.mark.everything)
    return made


def cases(*, scans: bool = False) -> list[object]:
    """Format and case."""
    return [
        pytest.param(kind, case, id=f"{kind}-{case}", marks=marks(kind, case.name))
        for kind in ("delta", "iceberg")
        for case in MERGE_CASES
        if not scans or case.name.startswith("scans") or case.name == "goes_on_with_scans"
    ]


@pytest.mark.parametrize(("kind", "case"), cases())
def test_lake(case: MergeCase, kind: str, tmp_path: Path, spark_engine: NodeSpark) -> None:
    harness = LakeHarness(spark_engine, place_in(kind, tmp_path), tmp_path / "scratch")
    reason = run_merge_case(case, harness)
    if reason:
        pytest.skip(f"never: {reason}")


@pytest.mark.parametrize(("kind", "case"), cases(scans=True))
def test_scans_by_spark(
    case: MergeCase, kind: str, tmp_path: Path, spark_engine: NodeSpark
) -> None:
    run_merge_case(case, BySpark(spark_engine, place_in(kind, tmp_path), tmp_path / "scratch"))


@pytest.mark.extended
@pytest.mark.slow
def test_random_rounds(
    tmp_path: Path, spark_engine: NodeSpark, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Iceberg, each round written as large ones are. Delta's are in test_lake_rounds.py."""
    spread = watched(monkeypatch)
    harness = LargeRounds(spark_engine, place_in("iceberg", tmp_path), tmp_path / "scratch")
    run_random_rounds(harness, 11, rounds=2)
    assert spread and all(spread)
