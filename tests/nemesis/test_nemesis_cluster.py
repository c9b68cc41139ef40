"""Feeds of a node that works with a standalone Spark cluster, whose processes die at random."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.helpers.waiting import PATIENCE
from tests.nemesis.cluster import ClusterTroubles
from tests.nemesis.copies import DeltaCopy
from tests.nemesis.ends import Bus
from tests.nemesis.readers import QueryCopy
from tests.nemesis.run import SECONDS, Run
from tests.services.kafka import KafkaBroker
from tests.services.spark_cluster import SparkCluster

pytestmark = [
    pytest.mark.nemesis,
    pytest.mark.e2e,
    pytest.mark.spark,
    pytest.mark.postgres,
    pytest.mark.kafka,
]


@pytest.mark.timeout(12 * PATIENCE + SECONDS)
def test_feeds_keep_their_promises_on_a_cluster_that_falls_apart(
    cluster_run: Run,
    own_cluster: SparkCluster,
    own_kafka: KafkaBroker,
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> None:
    """Executors, workers, the master and the driver are killed while tables are merged, a query is
    evaluated, and messages are delivered by jobs."""
    run = cluster_run
    # Asked for when it reads: the node's driver and executors have the memory until then.
    spark = partial(request.getfixturevalue, "spark_engine")
    run.create_feeds(
        [
            DeltaCopy(run.ledger, tmp_path / "delta", spark),
            QueryCopy(run.ledger, tmp_path / "query.duckdb"),
            Bus(run.ledger, own_kafka),
        ]
    )
    troubles = [
        *ClusterTroubles(own_cluster, run.chance, run.meanwhile).all(),
        run.kill_working_jvm,
        run.kill_node,
        run.kill_capture,
    ]
    for trouble in run.chance.sample(troubles, k=len(troubles)):
        run.go_wrong(SECONDS / 10, run.writer.doings())
        run.note(trouble())
    run.settle()
    events = [
        event.text
        for event in run.service.catalog.events(run.service.job("bus").id, kinds=["engine"])
    ]
    assert any("as a Spark job" in text for text in events), "the messages came by jobs, too"
    run.service.stop()
    failures = run.judge()
    assert not failures, run.told(failures)
