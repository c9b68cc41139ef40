"""Whatever a source's owners do to its tables: the copies are equal, or their feeds have said that
not.

``CHANGEFEED_SEED`` names the history to run, and ``CHANGEFEED_HISTORIES`` how many from there on.
Without a seed a fixed history runs.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from changefeed.spark.session import NodeSpark
from tests.nemesis.histories import (
    LOOK_EVERY,
    STATEMENTS,
    History,
    MySQLServer,
    PostgreSQLServer,
    Server,
)
from tests.nemesis.history_targets import (
    Copy,
    DeltaCopy,
    DuckDBCopy,
    Judge,
    KafkaCopy,
    PostgreSQLCopy,
)
from tests.nemesis.service import Service
from tests.services.kafka import KafkaBroker
from tests.services.mysql import BinlogServer
from tests.services.postgres import Database, PostgresCluster

pytestmark = [pytest.mark.nemesis, pytest.mark.e2e, pytest.mark.timeout(1200)]

COUNT = int(os.environ.get("CHANGEFEED_HISTORIES", "1"))
FIRST = int(os.environ.get("CHANGEFEED_SEED", "0"))
SEEDS = range(FIRST, FIRST + COUNT) if FIRST else range(101, 102)


class Bench:
    """A node, and what its feeds write to."""

    def __init__(self, folder: Path, targets: PostgresCluster, kafka: KafkaBroker) -> None:
        self.service = Service(folder / "state", spark=("--engine", "driver"))
        self._folder, self._targets, self._kafka = folder, targets, kafka

    def prove(self, server: Server, seed: int) -> None:
        """Run a history with copies of its tables in DuckDB, PostgreSQL and Kafka."""
        name = _name(server, seed)
        with self._targets.database() as target:
            self._prove(
                server,
                seed,
                DuckDBCopy(f"{name}_d", self._folder / f"{name}.duckdb"),
                PostgreSQLCopy(f"{name}_p", target),
                KafkaCopy(f"{name}_m", self._kafka, f"{name}_"),
            )

    def prove_delta(self, server: Server, seed: int, spark: NodeSpark) -> None:
        """Run a history with a copy of its tables in Delta tables, which ``spark`` reads."""
        name = _name(server, seed)
        self._prove(server, seed, DeltaCopy(f"{name}_l", self._folder / name, spark))

    def _prove(self, server: Server, seed: int, *copies: Copy) -> None:
        print(f"CHANGEFEED_SEED={seed}")
        execute, name = self.service.execute, copies[0].feed
        execute(f"CREATE EXTERNAL CONNECTION {name} AS '{server.uri}'")
        tables = ", ".join(f"{name}.{server.schema}.{table}" for table in server.tables)
        for copy in copies:
            execute(f"CREATE CHANGEFEED {copy.feed} FOR {tables} INTO '{copy.uri}'")
        try:
            self._run(History(server, random.Random(seed)), Judge(server, self.service, copies))
        finally:
            for copy in copies:
                execute(f"DROP CHANGEFEED {copy.feed}")

    def _run(self, history: History, judge: Judge) -> None:
        for number in range(1, STATEMENTS + 1):
            history.step()
            if number % LOOK_EVERY == 0:
                judge.look()
        judge.look()
        done, refused = len(history.server.done), history.server.refused
        print(f"{done} statements, {refused} refused, failures:", *judge.failures, sep="\n  ")


def _name(server: Server, seed: int) -> str:
    return f"h{seed}_{server.schema}".replace("public", "pg")


@pytest.fixture(scope="module")
def bench(
    postgres_server: Callable[..., PostgresCluster],
    kafka: KafkaBroker,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Bench]:
    made = Bench(tmp_path_factory.mktemp("histories"), postgres_server(), kafka)
    made.service.start()
    yield made
    made.service.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_copies_of_postgresql_follow_any_history(
    seed: int, postgres: Database, bench: Bench
) -> None:
    bench.prove(PostgreSQLServer(postgres), seed)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", ["mariadb", "mysql8"])
def test_copies_of_mysql_follow_any_history(
    kind: str, seed: int, binlog_servers: Callable[..., BinlogServer], bench: Bench
) -> None:
    bench.prove(MySQLServer(binlog_servers(kind), f"{kind}_{seed}"), seed)


@pytest.mark.spark
@pytest.mark.parametrize("seed", SEEDS)
def test_delta_tables_follow_any_history_of_postgresql(
    seed: int, postgres: Database, bench: Bench, spark_engine: NodeSpark
) -> None:
    bench.prove_delta(PostgreSQLServer(postgres), seed, spark_engine)


@pytest.mark.spark
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", ["mariadb", "mysql8"])
def test_delta_tables_follow_any_history_of_mysql(
    kind: str,
    seed: int,
    binlog_servers: Callable[..., BinlogServer],
    bench: Bench,
    spark_engine: NodeSpark,
) -> None:
    server = MySQLServer(binlog_servers(kind), f"{kind}_{seed}_lake")
    bench.prove_delta(server, seed, spark_engine)
