"""Queries with Python functions, and datasets, by a node whose Spark is a standalone cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import psutil
import pyarrow.dataset as pads
import pytest

from tests.helpers.datasets import article_days
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
]


@pytest.fixture(scope="module")
def node(
    tmp_path_factory: pytest.TempPathFactory, spark_cluster: SparkCluster
) -> Iterator[Service]:
    """One node for all tests: a driver and executors take long to start."""
    folder = tmp_path_factory.mktemp("node")
    folder.chmod(0o755)
    node = Service(folder / "state")
    node.start(spark=spark_cluster.flags)
    until(node.catalog.live_nodes, "the node")
    yield node
    node.close()


@pytest.fixture
def service(node: Service, tmp_path: Path, postgres: Database) -> Iterator[Service]:
    """The node, with the test's database as ``shop``."""
    tmp_path.chmod(0o755)
    node.execute(f"CREATE EXTERNAL CONNECTION shop AS '{postgres.uri}'")
    yield node
    for job in node.catalog.jobs(include_finished=False):
        node.execute(f"DROP CHANGEFEED {job.name}")
    until(lambda: not node.catalog.jobs(include_finished=False), "the feeds are gone")
    node.execute("DROP EXTERNAL CONNECTION shop")


@pytest.fixture
def hook() -> Iterator[WebhookServer]:
    server = WebhookServer()
    yield server
    server.stop()


#: A call waits until the test lets it, and says before that whose worker it is in.
FUNCTION = """
import os
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

FOLDER = Path(__file__).parent


def shout(text: pa.Array) -> pa.Array:
    (FOLDER / "calls" / str(os.getpid())).touch()
    while (FOLDER / "wait").exists():
        time.sleep(0.01)
    return pc.utf8_upper(text)
"""


def kill(victim: str, service: Service, cluster: SparkCluster, executor: psutil.Process) -> None:
    """End the executor, a worker with its own, or the JVM of the driver."""
    if victim == "executor":
        executor.kill()
    elif victim == "worker":
        cluster.kill_worker(-1)
        cluster.add_worker()
    else:
        assert service.kill_child("jvm")


VICTIMS = (
    pytest.param("executor", marks=pytest.mark.everything),  # a worker takes its executor with it
    "worker",
    "driver",
)
#: A dataset's run takes a minute here; ``CHANGEFEED_TESTS=all`` kills the others in it, too.
VICTIMS_OF_DATASETS = (
    "executor",
    *(pytest.param(victim, marks=pytest.mark.everything) for victim in ("worker", "driver")),
)


@pytest.mark.parametrize("victim", VICTIMS)
def test_a_function_of_a_query_survives_the_loss_of_a_process(
    victim: str,
    service: Service,
    tmp_path: Path,
    postgres: Database,
    spark_cluster: SparkCluster,
    hook: WebhookServer,
) -> None:
    calls, wait = tmp_path / "calls", tmp_path / "wait"
    calls.mkdir()
    wait.touch()
    # A worker keeps a module that it has imported.
    (tmp_path / f"functions_{victim}.py").write_text(FUNCTION)
    postgres.execute(
        "create table t (a int primary key, b text);"
        "insert into t select i, 'row ' || i from generate_series(1, 1000) i"
    )
    service.execute(
        f"CREATE FUNCTION shout (t string) RETURNS string AS 'functions_{victim}:shout' "
        f"PATH '{tmp_path}'"
    )
    service.execute(
        f"CREATE CHANGEFEED q INTO '{hook.uri}' WITH envelope = 'wrapped' AS "
        "SELECT a, shout(b) AS b FROM shop.public.t WHERE shout(b) <> 'ROW 7'"
    )
    until(lambda: any(calls.iterdir()), "an executor calls the function")
    worker = psutil.Process(int(next(calls.iterdir()).name))
    above = {process.pid for process in worker.parents()}
    executor = next(found for found in spark_cluster.executors() if found.pid in above)
    kill(victim, service, spark_cluster, executor)
    wait.unlink()
    service.sync("q")
    assert last_rows(hook) == {a: f"ROW {a}" for a in range(1, 1001) if a != 7}
    postgres.execute("update t set b = 'new ' || a where a % 2 = 0; delete from t where a = 9")
    service.sync("q")
    rows = {a: f"ROW {a}" if a % 2 else f"NEW {a}" for a in range(1, 1001)}
    assert last_rows(hook) == {a: b for a, b in rows.items() if a not in (7, 9)}
    service.execute("DROP CHANGEFEED q")
    service.execute("DROP FUNCTION shout")


def last_rows(hook: WebhookServer) -> dict[object, object]:
    """The query's result as a consumer knows it who keeps the last message of each key."""
    last = {message.key: message.after for message in hook.messages(["t"]) if message.is_row}
    return {row["a"]: row["b"] for row in last.values() if row is not None}


@pytest.mark.parametrize("victim", VICTIMS_OF_DATASETS)
def test_a_dataset_survives_the_loss_of_a_process(
    victim: str, service: Service, tmp_path: Path, spark_cluster: SparkCluster
) -> None:
    """The article's two days, as extracts that arrive; a process dies in the second run."""
    day1, day2 = article_days(Random(5), 2000)
    extracts, staging = tmp_path / "in", tmp_path / "current.versions" / "staging"
    extracts.mkdir()
    put_extract(extracts / "day-2019-06-18.csv", day1)
    service.execute(
        f"CREATE CHANGEFEED d FOR DATASET '{extracts}/day-*.csv' "
        "KEY (keycol1, keycol2, keycol3, keycol4, keycol5) INTO 'null://' "
        "WITH effective_date = 'name', "
        f"current_path = '{tmp_path}/current', history_path = '{tmp_path}/history'"
    )
    service.sync("d")
    put_extract(extracts / "day-2019-06-19.csv", day2)
    until(staging.exists, "the run writes the parts of its result")
    kill(victim, service, spark_cluster, spark_cluster.executors()[0])
    service.sync("d")
    found = pads.dataset((tmp_path / "current").resolve(), format="parquet", partitioning="hive")
    rows = found.to_table().to_pylist()
    counts = Counter(row["OPERATION"] for row in rows)
    assert counts == {"I": 400, "U": 800, "N": 800}
    values = {tuple(str(row[name]) for name in COLUMNS[:6]): row["OPERATION"] for row in rows}
    assert values.keys() == {tuple(row[:6]) for row in day2}


COLUMNS = [f"keycol{i}" for i in range(1, 6)] + [f"nonkeycol{i}" for i in range(1, 11)]


def put_extract(path: Path, rows: list[list[str]]) -> None:
    """An extract that is there at once."""
    begun = path.with_name("." + path.name)
    begun.write_text("".join(",".join(row) + "\n" for row in [COLUMNS, *rows]))
    begun.replace(path)
