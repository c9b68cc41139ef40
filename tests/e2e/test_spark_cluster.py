"""Feeds by a node whose Spark is a standalone cluster."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from changefeed.spark.session import NodeSpark
from tests.helpers.lake import Lake, unused_catalog
from tests.helpers.ordered import assert_in_order
from tests.helpers.waiting import until
from tests.nemesis.service import Service
from tests.services.postgres import Database
from tests.services.spark_cluster import SparkCluster
from tests.services.webhook import WebhookServer

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.spark,
    pytest.mark.postgres,
    pytest.mark.extended,
    # Two executors, their Python workers and the node share the machine, all of them cold.
    pytest.mark.timeout(900),
]

#: Enough that the initial scan is a job of several tasks.
ROWS = 30_000


@pytest.fixture
def service(tmp_path: Path, spark_cluster: SparkCluster) -> Iterator[Service]:
    tmp_path.chmod(0o755)
    service = Service(tmp_path / "state")
    service.start(spark=spark_cluster.flags)
    yield service
    service.close()


def rows(db: Database) -> list[tuple[object, ...]]:
    return [tuple(row) for row in db.execute("select a, b from t order by a")]


@pytest.mark.parametrize(
    "kind",
    # test_spark_staging.py and the nemesis lose executors while they write Delta tables.
    [pytest.param("delta", marks=pytest.mark.everything), "iceberg"],
)
def test_a_lake_feed_survives_the_loss_of_an_executor(
    kind: str,
    service: Service,
    tmp_path: Path,
    postgres: Database,
    spark_cluster: SparkCluster,
    spark_engine: NodeSpark,
) -> None:
    postgres.execute(
        "create table t (a int primary key, b text);"
        f"insert into t select i, 'row ' || i from generate_series(1, {ROWS}) i"
    )
    uri = f"iceberg://{unused_catalog()}/shop?type=hadoop&warehouse={tmp_path}/lake"
    lake = Lake(spark_engine, f"delta://{tmp_path}/lake" if kind == "delta" else uri)
    service.execute(f"CREATE EXTERNAL CONNECTION shop AS '{postgres.uri}'")
    service.execute(f"CREATE CHANGEFEED f FOR shop.public.t INTO '{lake.uri}'")
    service.sync("f")
    query = "select a, b from {t} order by a"
    assert lake.query(query) == rows(postgres)

    before = spark_cluster.executors()
    assert len(before) == 2
    postgres.execute("update t set b = 'new' where a % 3 = 0; delete from t where a % 7 = 0")
    before[0].kill()
    service.sync("f")
    assert lake.query(query) == rows(postgres)


def test_scans_and_backlogs_survive_the_loss_of_an_executor(
    service: Service, postgres: Database, spark_cluster: SparkCluster
) -> None:
    """Lanes of executors deliver messages; one of them dies in the middle of scan and backlog."""
    postgres.execute(
        "create table t (a int primary key, b int);"
        "insert into t select i, 0 from generate_series(1, 4000) i"
    )
    hook = WebhookServer()
    service.execute(f"CREATE EXTERNAL CONNECTION shop AS '{postgres.uri}'")
    service.execute(
        f"CREATE CHANGEFEED f FOR shop.public.t INTO '{hook.uri}' WITH engine = 'spark', updated, "
        """webhook_sink_config = '{"Flush": {"Messages": 5, "Frequency": "5ms"}}'"""
    )
    until(lambda: len(hook.taken) > 10, "the executors scan")
    spark_cluster.executors()[0].kill()
    service.sync("f")
    assert {m.key for m in hook.messages(["t"]) if m.is_row} == {f"[{n}]" for n in range(1, 4001)}

    service.execute("PAUSE CHANGEFEED f")
    for n in range(1, 4):
        postgres.execute(f"update t set b = {n}")
    until(lambda: len(spark_cluster.executors()) == 2, "the lost executor is replaced")
    before = len(hook.taken)
    service.execute("RESUME CHANGEFEED f")
    until(lambda: len(hook.taken) > before + 10, "the executors deliver the backlog")
    spark_cluster.executors()[0].kill()
    service.sync("f")
    hook.stop()
    assert_in_order(hook.messages(["t"]), keys=4000, last=3)
    events = service.execute("SHOW CHANGEFEED f")
    job = dict(zip(events.columns, next(iter(events.rows)), strict=True))["last_spark_job"]
    # How many rows had been captured when the feed went on is not ours to say.
    assert re.search(r"backlog of [\d,]+ rows as a Spark job of 2 lanes", str(job)), job
