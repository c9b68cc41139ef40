"""Feeds by a node whose Spark is a standalone cluster."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from changefeed.spark.session import NodeSpark
from tests.helpers.lake import Lake, unused_catalog
from tests.helpers.ordered import assert_in_order
from tests.helpers.waiting import until
from tests.nemesis.service import Service
from tests.services.mysql import BinlogServer
from tests.services.postgres import Database
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


def test_a_scan_of_mysql_survives_the_loss_of_its_executors(
    service: Service, binlog_server: BinlogServer, spark_cluster: SparkCluster
) -> None:
    """The image is lost with the workers that hold it: the scan goes on in another one."""
    hook = WebhookServer()
    with binlog_server.database() as database:
        values = ", ".join(f"({i}, 0)" for i in range(1, 4001))
        binlog_server.run(
            "CREATE TABLE t (a INT PRIMARY KEY, b INT)",
            f"INSERT INTO t VALUES {values}",
            database=database,
        )
        service.execute(f"CREATE EXTERNAL CONNECTION shop AS '{binlog_server.uri(database)}'")
        service.execute(
            f"CREATE CHANGEFEED f FOR t INTO '{hook.uri}' WITH engine = 'spark', updated, "
            """webhook_sink_config = '{"Flush": {"Messages": 5, "Frequency": "5ms"}}'"""
        )
        until(lambda: len(hook.taken) > 10, "an executor scans")
        for executor in spark_cluster.executors():
            executor.kill()
        binlog_server.run("UPDATE t SET b = 1 WHERE a % 2 = 0", database=database)
        service.sync("f")
        shown = service.execute("SHOW CHANGEFEED f")
        service.execute("DROP CHANGEFEED f")
    hook.stop()
    job = dict(zip(shown.columns, next(iter(shown.rows)), strict=True))["last_spark_job"]
    assert f"scan of {database}.t as a Spark job" in str(job)
    last = {m.key: m.after for m in hook.messages(["t"]) if m.is_row}
    assert last == {f"[{n}]": {"a": n, "b": (n + 1) % 2} for n in range(1, 4001)}


def test_executors_that_come_and_go_count(tmp_path: Path) -> None:
    # In a process of its own: this one may have the Spark of other tests.
    child = [sys.executable, "-m", "tests.helpers.spark_child", "cores", str(tmp_path)]
    done = subprocess.run(child, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    # Spark says two while there are fewer.
    assert json.loads(done.stdout.splitlines()[-1]) == {"cores": [2, 3]}


#: Spark speculates as soon as it can, and gives up a silent executor within seconds.
_EAGER = {
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
    "spark.eventLog.rolling.enabled": "false",
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.minTaskRuntime": "200ms",
    "spark.executor.heartbeatInterval": "2s",
    "spark.network.timeout": "20s",
    "spark.network.timeoutInterval": "2s",
    "spark.executor.maxNumFailures": "1000",
}
#: The harness was run with 20.
ROUNDS = int(os.environ.get("CHANGEFEED_CLUSTER_ROUNDS", "2"))


@dataclass
class BusyKey:
    """A feed whose backlogs are lanes of Spark: one key has many changes, so its lane takes long,
    and Spark starts a second attempt of it on the other host."""

    service: Service
    database: Database
    cluster: SparkCluster
    hook: WebhookServer
    events: Path

    def begin(self) -> None:
        """Scan 4,000 rows."""
        self.database.execute(
            "create table t (a int primary key, b int);"
            "insert into t select i, 0 from generate_series(1, 4000) i"
        )
        self.service.execute(f"CREATE EXTERNAL CONNECTION shop AS '{self.database.uri}'")
        self.service.execute(
            f"CREATE CHANGEFEED f FOR shop.public.t INTO '{self.hook.uri}?parallel=1' "
            """WITH engine = 'spark', """
            """webhook_sink_config = '{"Flush": {"Messages": 5, "Frequency": "5ms"}}'"""
        )
        self.service.sync("f")

    def fall_behind(self, value: int, changes: int) -> None:
        """Each row gets ``value``, and the busy one counts on; then the feed goes on."""
        until(lambda: len(self.cluster.executors()) == 2, "both hosts have an executor")
        self.service.execute("PAUSE CHANGEFEED f")
        self.database.execute(f"update t set b = {value}")
        self.database.execute(
            f"do $$ begin for n in {value + 1}..{value + changes} loop "
            "update t set b = n where a = 1; commit; end loop; end $$"
        )
        self.service.execute("RESUME CHANGEFEED f")

    def last(self) -> dict[str, int]:
        """The last message of each key."""
        rows = (m for m in self.hook.messages(["t"]) if m.is_row and m.key and m.after)
        return {str(m.key): m.after["b"] for m in rows if m.after}

    def speculated(self) -> int:
        """How many speculative tasks were launched."""
        logs = (log.read_text() for log in self.events.iterdir())
        started = (
            "SparkListenerTaskStart" in line and '"Speculative":true' in line
            for text in logs
            for line in text.splitlines()
        )
        return sum(started)


@pytest.fixture
def busy(tmp_path: Path, postgres: Database, spark_cluster: SparkCluster) -> Iterator[BusyKey]:
    tmp_path.chmod(0o755)
    service = Service(tmp_path / "state")
    (events := tmp_path / "events").mkdir()
    eager = {**_EAGER, "spark.eventLog.dir": events.as_uri()}
    settings = [flag for pair in eager.items() for flag in ("--conf", "=".join(pair))]
    service.start(spark=[*spark_cluster.flags, *settings])
    hook = WebhookServer(judge=_slowly)
    made = BusyKey(service, postgres, spark_cluster, hook, events)
    try:
        made.begin()
        yield made
    finally:
        hook.stop()
        service.close()


def test_a_speculative_copy_of_a_lane_does_not_deliver_beside_it(busy: BusyKey) -> None:
    busy.fall_behind(1, 1999)
    busy.service.sync("f")
    values = [m.after["b"] for m in busy.hook.messages(["t"]) if m.key == "[1]" and m.after]
    assert busy.speculated()
    assert values[-1] == 2000
    assert values == sorted(values), "two attempts delivered beside each other"


@pytest.mark.nemesis
@pytest.mark.timeout(300 + 180 * ROUNDS)
def test_lanes_of_executors_that_die_or_freeze_leave_the_last_value(
    busy: BusyKey, capsys: pytest.CaptureFixture[str]
) -> None:
    """In each round one executor is killed or frozen, with its Python workers, while the lane of
    the busy key delivers and is speculated. A frozen one wakes when the feed has all delivered."""
    chance = random.Random(27)
    for number in range(ROUNDS):
        began, value = time.monotonic(), 1000 * (number + 1)
        before, speculated = len(busy.hook.taken), busy.speculated()
        busy.fall_behind(value, 400)
        until(lambda: len(busy.hook.taken) > before + 20, "the lanes deliver")  # noqa: B023
        executor = chance.choice(busy.cluster.executors())
        frozen = [executor, *executor.children(recursive=True)] if number % 2 else []
        for process in frozen:
            process.suspend()
        if not frozen:
            executor.kill()
        busy.service.sync("f")
        for process in frozen:
            with suppress(psutil.NoSuchProcess):
                process.resume()
        # What a zombie still wrote would come now.
        time.sleep(3 if frozen else 0)
        source = {f"[{a}]": b for a, b in rows(busy.database)}
        wrong = {key: (b, source[key]) for key, b in busy.last().items() if b != source[key]}
        with capsys.disabled():
            print(
                f"round {number + 1}: {'frozen' if frozen else 'killed'}, "
                f"{busy.speculated() - speculated} speculative tasks, "
                f"{time.monotonic() - began:.0f} s, {len(wrong)} keys differ"
            )
        assert wrong == {} and len(busy.last()) == 4000


def _slowly(body: bytes) -> int:
    time.sleep(0.02 if b'"key": [1]' in body else 0)
    return 200
