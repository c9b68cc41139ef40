"""Whatever a source's owners do to its tables: the copy is equal, or the feed has said that not.

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
    Judge,
    MySQLServer,
    PostgreSQLServer,
    Server,
)
from tests.nemesis.service import Service
from tests.services.mysql import BinlogServer
from tests.services.postgres import Database

pytestmark = [pytest.mark.nemesis, pytest.mark.e2e, pytest.mark.timeout(1200)]

COUNT = int(os.environ.get("CHANGEFEED_HISTORIES", "1"))
FIRST = int(os.environ.get("CHANGEFEED_SEED", "0"))
SEEDS = range(FIRST, FIRST + COUNT) if FIRST else range(101, 102)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    made = Service(tmp_path / "state")
    made.start()
    yield made
    made.close()


def prove(server: Server, service: Service, folder: Path, seed: int) -> None:
    print(f"CHANGEFEED_SEED={seed}")
    service.execute(f"CREATE EXTERNAL CONNECTION shop AS '{server.uri}'")
    tables = ", ".join(f"shop.{server.schema}.{table}" for table in server.tables)
    file = folder / "copy.duckdb"
    service.execute(f"CREATE CHANGEFEED f FOR {tables} INTO 'duckdb://{file}'")
    history, judge = History(server, random.Random(seed)), Judge(server, service, file)
    for number in range(1, STATEMENTS + 1):
        history.step()
        if number % LOOK_EVERY == 0:
            judge.look()
    judge.look()
    print(f"{len(server.done)} statements, {server.refused} refused, failures {judge.failures}")


@pytest.mark.parametrize("seed", SEEDS)
def test_copies_of_postgresql_follow_any_history(
    seed: int, postgres: Database, service: Service, tmp_path: Path
) -> None:
    prove(PostgreSQLServer(postgres), service, tmp_path, seed)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", ["mariadb", "mysql8"])
def test_copies_of_mysql_follow_any_history(
    kind: str,
    seed: int,
    binlog_servers: Callable[..., BinlogServer],
    service: Service,
    tmp_path: Path,
) -> None:
    server = MySQLServer(binlog_servers(kind), f"history{seed}")
    prove(server, service, tmp_path, seed)
