"""Feeds on a cluster whose executors do not see the node's state: rows go through a place that both
reach."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from changefeed.embedded.account import server_account
from changefeed.spark.session import NodeSpark
from tests.helpers.lake import Lake, in_a_store
from tests.helpers.ordered import assert_in_order
from tests.helpers.spark_copy import Program
from tests.helpers.waiting import until
from tests.nemesis.service import Service
from tests.services.hdfs import Hdfs
from tests.services.postgres import Database
from tests.services.s3 import SECRET, S3Server
from tests.services.spark_cluster import SparkCluster
from tests.services.webhook import WebhookServer

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.spark,
    pytest.mark.postgres,
    pytest.mark.extended,
    # Two executors, their Python workers and the node share the machine, all of them cold.
]

#: Enough that the initial scan is a job of several tasks.
ROWS = 30_000


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    service = Service(tmp_path / "state")
    assert not server_account().reaches(service.layout.root), "executors cannot read the state"
    yield service
    service.close()


def rows(db: Database) -> list[tuple[int, str]]:
    return [(row[0], row[1]) for row in db.execute("select a, b from t order by a")]


def event(service: Service, feed: str, name: str) -> object:
    result = service.execute(f"SHOW CHANGEFEED {feed}")
    return dict(zip(result.columns, next(iter(result.rows)), strict=True))[name]


#: HDFS takes three minutes more.
PLACES = ["s3", pytest.param("hdfs", marks=pytest.mark.everything)]


@pytest.mark.parametrize("place", PLACES)
def test_rows_reach_the_executors_through_a_staging_place(
    service: Service,
    place: str,
    postgres: Database,
    s3: S3Server,
    remote_spark: SparkCluster,
    spark_engine: NodeSpark,
    request: pytest.FixtureRequest,
) -> None:
    """Rounds of a lake, a rescan that the executors write down first, and the lanes of a backlog;
    an executor dies in the middle of each."""
    bucket = s3.bucket(f"staging-{place}")
    staging = s3.uri(f"{bucket}/rows")
    if place == "hdfs":
        hdfs: Hdfs = request.getfixturevalue("hdfs")
        staging = f"{hdfs.directory(spark_engine.session(), 'staging')}/rows"
    lake = Lake(spark_engine, in_a_store(s3, f"lake-{place}"))
    service.start(spark=[*remote_spark.flags, "--staging", staging])
    postgres.execute(
        "create table t (a int primary key, b text);"
        f"insert into t select i, 'row ' || i from generate_series(1, {ROWS}) i;"
        "create table u (a int primary key, b int);"
        "insert into u select i, 0 from generate_series(1, 2000) i"
    )
    hook = WebhookServer()
    service.execute(f"CREATE EXTERNAL CONNECTION shop AS '{postgres.uri}'")
    service.execute(f"CREATE CHANGEFEED lake FOR shop.public.t INTO '{lake.uri}'")
    service.execute(
        f"CREATE CHANGEFEED hook FOR shop.public.u INTO '{hook.uri}' WITH engine = 'spark', "
        """updated, webhook_sink_config = '{"Flush": {"Messages": 5, "Frequency": "5ms"}}'"""
    )
    service.sync("lake")
    service.sync("hook")
    query = "select a, b from {t} order by a"
    assert lake.query(query) == rows(postgres)

    postgres.execute("update t set b = 'new' where a % 3 = 0; delete from t where a % 7 = 0")
    remote_spark.executors()[0].kill()
    service.sync("lake")
    assert lake.query(query) == rows(postgres)
    service.execute("ALTER CHANGEFEED lake RESCAN shop.public.t")
    service.sync("lake")
    assert lake.query(query) == rows(postgres)

    until(lambda: len(remote_spark.executors()) == 2, "the lost executor is replaced")
    service.execute("PAUSE CHANGEFEED hook")
    for n in range(1, 4):
        postgres.execute(f"update u set b = {n}")
    before = len(hook.taken)
    service.execute("RESUME CHANGEFEED hook")
    until(lambda: len(hook.taken) > before + 10, "the executors deliver the backlog")
    remote_spark.executors()[0].kill()
    service.sync("hook")
    hook.stop()
    assert_in_order(hook.messages(["u"]), keys=2000, last=3)
    assert "as a Spark job of 2 lanes" in str(event(service, "hook", "last_spark_job"))
    outcome = service.execute("VERIFY CHANGEFEED lake")
    assert [row[-1] for row in outcome.rows] == [], "the lake equals the source"

    service.stop()
    assert s3.objects(bucket) == [], "nothing stays in the staging place"
    if place == "hdfs":
        session = spark_engine.session()
        java: Any = session.sparkContext._jvm
        folder = java.org.apache.hadoop.fs.Path(staging)
        assert len(hdfs.owned(session).listStatus(folder)) == 0
    for path in (service.layout.node_log, service.layout.spark_log):
        assert SECRET not in path.read_text(errors="replace")


def test_executors_that_see_no_log_say_so(
    service: Service, postgres: Database, remote_spark: SparkCluster
) -> None:
    postgres.execute("create table t (a int primary key, b int)")
    service.start(spark=remote_spark.flags)
    hook = WebhookServer()
    service.execute(f"CREATE EXTERNAL CONNECTION shop AS '{postgres.uri}'")
    service.execute(
        f"CREATE CHANGEFEED f FOR shop.public.t INTO '{hook.uri}' WITH engine = 'spark'"
    )
    service.sync("f")
    service.execute("PAUSE CHANGEFEED f")
    postgres.execute("insert into t select i, 0 from generate_series(1, 2000) i")
    service.execute("RESUME CHANGEFEED f")
    until(lambda: "Spark worker" in str(event(service, "f", "error")), "the error of the lanes")
    hook.stop()
    assert "--staging" in str(event(service, "f", "hint"))


def test_a_query_over_changes_survives_the_loss_of_executors(
    service: Service,
    tmp_path: Path,
    postgres: Database,
    s3: S3Server,
    remote_spark: SparkCluster,
    request: pytest.FixtureRequest,
) -> None:
    """Somebody's program reads by the format ``changefeed``, as a batch and as a stream: executors
    get URLs of rows in S3, and lose one of them, and then a worker, in the middle of a batch."""
    postgres.execute(
        "create table t (a int primary key, b text); alter table t replica identity full;"
        "insert into t select i, 'row ' || i from generate_series(1, 3000) i"
    )
    bucket = s3.bucket("staging-source")
    service.start()
    service.execute(f"CREATE EXTERNAL CONNECTION shop AS '{postgres.uri}'")
    service.execute(
        f"CREATE CHANGEFEED copy FOR shop.public.t INTO 'reader://{service.state}/readers/copy'"
    )
    service.sync("copy")
    program = Program(
        tmp_path / "program",
        {**remote_spark.properties, "spark.master": remote_spark.master},
        {
            "state": str(service.state),
            "reader": "copy",
            "rowsPerPartition": "100",
            "staging": "env:STAGING",
        },
    )
    request.addfinalizer(program.kill)
    program.start(STAGING=s3.uri(f"{bucket}/rows"))
    until(lambda: s3.objects(bucket), "a batch is staged", 400)
    until(lambda: remote_spark.executors(), "an executor reads it")
    remote_spark.executors()[0].kill()
    until(lambda: program.copy("batch") == dict(rows(postgres)), "the rows, by a batch query")
    until(lambda: program.copy("stream") == dict(rows(postgres)), "the rows, by a stream")

    staged = set(s3.objects(bucket))
    postgres.execute(
        "update t set b = 'new' where a % 3 = 0; delete from t where a % 7 = 0;"
        "update t set a = a + 9000 where a % 5 = 0"
    )
    until(lambda: set(s3.objects(bucket)) - staged, "a batch of changes is staged")
    remote_spark.kill_worker(0)
    remote_spark.add_worker()
    until(lambda: program.copy("stream") == dict(rows(postgres)), "the changes, by the stream")
    assert SECRET not in program.output
