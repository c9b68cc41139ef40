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

from tests.nemesis.histories import (
    LOOK_EVERY,
    STATEMENTS,
    History,
    MySQLServer,
    PostgreSQLServer,
    Server,
)
from tests.nemesis.history_targets import DuckDBCopy, Judge, KafkaCopy, PostgreSQLCopy
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
        """Run a history with three copies of its tables."""
        print(f"CHANGEFEED_SEED={seed}")
        execute, name = self.service.execute, f"h{seed}_{server.schema}".replace("public", "pg")
        execute(f"CREATE EXTERNAL CONNECTION {name} AS '{server.uri}'")
        tables = ", ".join(f"{name}.{server.schema}.{table}" for table in server.tables)
        messages = KafkaCopy(f"{name}_m", self._kafka, f"{name}_")
        with self._targets.database() as target:
            copies = (
                DuckDBCopy(f"{name}_d", self._folder / f"{name}.duckdb"),
                PostgreSQLCopy(f"{name}_p", target),
                messages,
            )
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
