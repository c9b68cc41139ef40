"""Everything that can happen, at random, from a seed; the feeds must keep every promise.

A run prints its seed: ``CHANGEFEED_SEED=... pytest tests/nemesis`` repeats its choices.
``CHANGEFEED_NEMESIS_SECONDS`` says how long things go wrong (default 40).
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.helpers.waiting import PATIENCE
from tests.nemesis.copies import DeltaCopy, DuckDBCopy, IcebergCopy, IndexCopy, PostgreSQLCopy
from tests.nemesis.ends import Bus, Files, ImageFiles
from tests.nemesis.postgres_origin import PostgresOrigin
from tests.nemesis.readers import QueryCopy, ReaderCopy
from tests.nemesis.run import LOSSES, SECONDS, Run
from tests.services.elasticsearch import Elasticsearch
from tests.services.kafka import KafkaBroker
from tests.services.postgres import Database

pytestmark = [pytest.mark.nemesis, pytest.mark.e2e, pytest.mark.postgres]


def origin(run: Run) -> PostgresOrigin:
    """The server that a run over PostgreSQL reads."""
    assert isinstance(run.origin, PostgresOrigin)
    return run.origin


def source(run: Run) -> Database:
    """The database that a run over PostgreSQL reads."""
    return origin(run).db


@pytest.mark.kafka
@pytest.mark.elasticsearch
@pytest.mark.timeout(6 * PATIENCE + SECONDS)
def test_feeds_keep_their_promises_whatever_happens(
    run: Run, own_kafka: KafkaBroker, elasticsearch: Elasticsearch, tmp_path: Path
) -> None:
    run.create_feeds(
        [
            Files(run.ledger, tmp_path / "out"),
            ImageFiles(run.ledger, tmp_path / "images"),
            Bus(run.ledger, own_kafka),
            PostgreSQLCopy(run.ledger, source(run)),
            DuckDBCopy(run.ledger, tmp_path / "target.duckdb"),
            IndexCopy(run.ledger, elasticsearch, f"nemesis_{source(run).name}_"),
        ]
    )
    run.see_everywhere()
    run.go_wrong(SECONDS)
    run.settle()
    run.prove()


@pytest.mark.elasticsearch
@pytest.mark.timeout(6 * PATIENCE + SECONDS)
def test_copies_are_whole_again_after_changes_were_lost(
    run: Run, elasticsearch: Elasticsearch, tmp_path: Path
) -> None:
    """What was not published, or is not in the history of a server that was restored, is lost to
    the log; each feed says so, and RESCAN makes it good."""
    run.create_feeds(
        [
            PostgreSQLCopy(run.ledger, source(run)),
            DuckDBCopy(run.ledger, tmp_path / "target.duckdb"),
            IndexCopy(run.ledger, elasticsearch, f"nemesis_{source(run).name}_"),
        ]
    )
    for _ in range(LOSSES):
        run.go_without_looking(SECONDS / 40)
        run.lose()
        run.go_without_looking(SECONDS / 40)
        run.rescan()
    run.settle()
    run.see_everywhere()
    run.prove()


@pytest.mark.spark
@pytest.mark.timeout(6 * PATIENCE + SECONDS)
def test_what_spark_and_readers_keep_is_what_the_source_was(
    run: Run, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    # Spark is asked for when it is read: the node has one of its own until then.
    spark = partial(request.getfixturevalue, "spark_engine")
    run.create_feeds(
        [
            IcebergCopy(run.ledger, tmp_path / "lake", spark),
            DeltaCopy(run.ledger, tmp_path / "delta", spark),
            QueryCopy(run.ledger, tmp_path / "query.duckdb"),
            ReaderCopy(run.ledger, run.service.place, tmp_path / "reader"),
            Files(run.ledger, tmp_path / "out", engine=run.chance.choice(["spark", "driver"])),
        ]
    )
    # One after the other, as a MERGE takes seconds: each has to meet some.
    troubles = [run.kill_node, run.kill_working_jvm, run.kill_capture, run.end_streams]
    troubles.append(origin(run).hold_stream)
    troubles += [trouble for end in run.ends for _, trouble in end.troubles(run.meanwhile)]
    for trouble in run.chance.sample(troubles, k=len(troubles)):
        run.go_wrong(SECONDS / 10, run.writer.doings())
        run.note(trouble())
    run.settle()
    run.service.stop()
    failures = run.judge()
    assert not failures, run.told(failures)
