"""Runs of the chaos test, each with a source of its own."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from changefeed.core.engines import EngineOption
from tests.conftest import PostgresFactory
from tests.helpers.waiting import PATIENCE
from tests.nemesis.mysql_origin import MySQLOrigin
from tests.nemesis.origin import Origin
from tests.nemesis.postgres_origin import PostgresOrigin
from tests.nemesis.run import Run
from tests.nemesis.service import Nodes, Service
from tests.services.cache import server_folder
from tests.services.mysql import SERVERS
from tests.services.postgres import Database
from tests.services.spark_cluster import SparkCluster

#: Seconds: executors start anew while others use the machine, too.
CLUSTER_PATIENCE = 3 * PATIENCE
#: With ``spark`` every scan and every backlog that can be a job of Spark is one.
ENGINE = EngineOption(os.environ.get("CHANGEFEED_NEMESIS_ENGINE", "auto"))


@contextmanager
def running(
    folder: Path,
    make: Callable[[random.Random], Origin],
    service: Nodes | None = None,
) -> Iterator[Run]:
    """A run whose seed and story are printed; by default with one node."""
    seed = int(os.environ.get("CHANGEFEED_SEED", random.SystemRandom().randrange(10**6)))
    print(f"CHANGEFEED_SEED={seed}")
    chance = random.Random(seed)
    service = service or Service(folder / "state", engine=ENGINE)
    made = Run(make(chance), seed, chance, service)
    try:
        yield made
    finally:
        print(made.story())
        made.close()


@pytest.fixture
def origin_database(own_postgres_factory: PostgresFactory) -> Iterator[Database]:
    """A database of a server of PostgreSQL for this run alone."""
    server = own_postgres_factory(
        logical_decoding_work_mem="64kB",
        track_commit_timestamp="on",
        max_prepared_transactions="10",
    )
    with server.database() as db:
        yield db


@pytest.fixture
def run(origin_database: Database, tmp_path: Path) -> Iterator[Run]:
    """A run over PostgreSQL; with ``CHANGEFEED_NEMESIS_ENGINE=spark`` by jobs of Spark."""
    with running(
        tmp_path, lambda chance: PostgresOrigin(origin_database, tmp_path, chance)
    ) as made:
        yield made


@pytest.fixture
def own_cluster() -> Iterator[SparkCluster]:
    """A standalone Spark cluster for this run alone."""
    with server_folder("spark-cluster") as folder:
        cluster = SparkCluster(folder).start()
        yield cluster
        cluster.stop()


@pytest.fixture
def cluster_run(
    origin_database: Database, own_cluster: SparkCluster, tmp_path: Path
) -> Iterator[Run]:
    """A run over PostgreSQL whose node works with a cluster, and by jobs wherever it can."""
    # The executors have this interpreter: an archive with ours would be unpacked by each anew.
    flags = [*own_cluster.flags, "--conf", f"spark.pyspark.python={sys.executable}"]
    with running(
        tmp_path,
        lambda chance: PostgresOrigin(origin_database, tmp_path, chance),
        Service(tmp_path / "state", flags, EngineOption.SPARK, CLUSTER_PATIENCE),
    ) as made:
        yield made


@pytest.fixture
def mysql_run(tmp_path: Path) -> Iterator[Run]:
    """A run over MariaDB; over MySQL where ``CHANGEFEED_NEMESIS_MYSQL`` is ``mysql8``."""
    kind = os.environ.get("CHANGEFEED_NEMESIS_MYSQL", "mariadb")
    with server_folder(kind) as folder:
        # What was committed is still there after the server was killed.
        server = SERVERS[kind](folder, "--innodb-flush-log-at-trx-commit=2").start()
        try:
            with running(tmp_path, lambda chance: MySQLOrigin(server, tmp_path, chance)) as made:
                yield made
        finally:
            server.stop()
