"""Whatever a source's owners do to its tables: the copies are equal, or their feeds have said that
not.

Each history has copies in DuckDB, PostgreSQL, Kafka and Delta. A node mostly waits, so a few
histories of a source run beside each other, with one node for all of them.

``CHANGEFEED_SEED`` names the history to run, and ``CHANGEFEED_HISTORIES`` how many from there on.
Without a seed five fixed histories of each source run. Only the first of them has a copy in Delta,
which takes most of the CPU.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
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
from tests.services.postgres import PostgresCluster

pytestmark = [pytest.mark.nemesis, pytest.mark.e2e, pytest.mark.timeout(2400)]

COUNT = int(os.environ.get("CHANGEFEED_HISTORIES", "1"))
FIRST = int(os.environ.get("CHANGEFEED_SEED", "0"))
SEEDS = range(FIRST, FIRST + COUNT) if FIRST else range(101, 106)
#: The histories that have a copy in a lake, too.
WITH_LAKE = SEEDS if FIRST else SEEDS[:1]
#: Histories of a source beside each other.
AT_ONCE = int(os.environ.get("CHANGEFEED_HISTORIES_AT_ONCE", "3"))
#: A history has few rows of many shapes, for each of which Spark would compile code.
INTERPRETED = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
KINDS = ("postgresql", "mariadb", "mysql8")


class Bench:
    """A node, and what its feeds write to."""

    def __init__(
        self, folder: Path, targets: PostgresCluster, kafka: KafkaBroker, spark: NodeSpark
    ) -> None:
        flags = [f"--conf={name}={value}" for name, value in INTERPRETED.items()]
        self.service = Service(folder / "state", spark=("--engine", "driver", *flags))
        self._folder, self._targets, self._kafka, self._spark = folder, targets, kafka, spark

    def prove(self, server: Server, seed: int) -> str:
        """Run a history with copies of its tables in every target; what there is to say of it."""
        name = f"h{seed}_{server.schema}".replace("public", "pg")
        with self._targets.database() as target:
            copies: list[Copy] = [
                DuckDBCopy(f"{name}_d", self._folder / f"{name}.duckdb"),
                PostgreSQLCopy(f"{name}_p", target),
                KafkaCopy(f"{name}_m", self._kafka, f"{name}_"),
            ]
            if seed in WITH_LAKE:
                copies.append(DeltaCopy(f"{name}_l", self._folder / name, self._spark))
            return self._prove(server, seed, *copies)

    def _prove(self, server: Server, seed: int, *copies: Copy) -> str:
        execute, name = self.service.execute, copies[0].feed
        execute(f"CREATE EXTERNAL CONNECTION {name} AS '{server.uri}'")
        tables = ", ".join(f"{name}.{server.schema}.{table}" for table in server.tables)
        made: list[Copy] = []
        try:
            for copy in copies:
                execute(f"CREATE CHANGEFEED {copy.feed} FOR {tables} INTO '{copy.uri}'")
                made.append(copy)
            judge = Judge(server, self.service, copies)
            self._run(History(server, random.Random(seed)), judge)
        finally:
            for copy in made:
                execute(f"DROP CHANGEFEED {copy.feed}")
        done = f"CHANGEFEED_SEED={seed}: {server.count} statements, {server.refused} refused"
        return "\n  ".join((done, *judge.failures))

    def _run(self, history: History, judge: Judge) -> None:
        steps, enough = 0, history.server.count + STATEMENTS
        while history.server.count < enough:
            history.step()
            steps += 1
            if steps % LOOK_EVERY == 0:
                judge.look()
        judge.look()


@pytest.fixture(scope="module")
def bench(
    postgres_server: Callable[..., PostgresCluster],
    kafka: KafkaBroker,
    spark_engine: NodeSpark,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("histories")
    made = Bench(folder, postgres_server(), kafka, spark_engine)
    made.service.start()
    with spark_engine.use(packs=("delta",)) as session:  # whose conf outlasts this block
        for name, value in INTERPRETED.items():
            session.conf.set(name, value)
    yield made
    made.service.close()
    with spark_engine.use(packs=("delta",)) as session:
        for name in INTERPRETED:
            session.conf.unset(name)


@pytest.fixture(scope="module")
def histories(
    request: pytest.FixtureRequest,
    bench: Bench,
    postgres_server: Callable[..., PostgresCluster],
    binlog_servers: Callable[..., BinlogServer],
) -> Iterator[dict[int, Future[str]]]:
    """The histories of a kind of source, which run beside each other."""
    kind: str = request.param
    chosen = {
        item.callspec.params["seed"]
        for item in request.session.items
        if isinstance(item, pytest.Function)
        and item.path == request.path
        and item.callspec.params["histories"] == kind
    }
    server = postgres_server() if kind == "postgresql" else binlog_servers(kind)

    def prove(seed: int) -> str:
        if isinstance(server, PostgresCluster):
            with server.database() as database:
                return bench.prove(PostgreSQLServer(database), seed)
        return bench.prove(MySQLServer(server, f"{kind}_{seed}"), seed)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        started = {seed: pool.submit(prove, seed) for seed in SEEDS if seed in chosen}
        yield started
        for history in started.values():
            history.cancel()  # what a failed test left over


@pytest.mark.spark
@pytest.mark.parametrize("histories", KINDS, indirect=True)
@pytest.mark.parametrize("seed", SEEDS)
def test_copies_follow_any_history(seed: int, histories: dict[int, Future[str]]) -> None:
    print(histories[seed].result())
