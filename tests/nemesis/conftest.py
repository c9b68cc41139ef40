"""Runs of the chaos test, each with a source of its own."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import PostgresFactory
from tests.nemesis.mysql_origin import MySQLOrigin
from tests.nemesis.origin import Origin
from tests.nemesis.postgres_origin import PostgresOrigin
from tests.nemesis.run import Run
from tests.services.cache import server_folder
from tests.services.mysql import SERVERS


@contextmanager
def _running(folder: Path, make: Callable[[random.Random], Origin]) -> Iterator[Run]:
    seed = int(os.environ.get("CHANGEFEED_SEED", random.SystemRandom().randrange(10**6)))
    print(f"CHANGEFEED_SEED={seed}")
    chance = random.Random(seed)
    made = Run(make(chance), folder, seed, chance)
    try:
        yield made
    finally:
        print(made.story())
        made.close()


@pytest.fixture
def run(own_postgres_factory: PostgresFactory, tmp_path: Path) -> Iterator[Run]:
    """A run over PostgreSQL."""
    server = own_postgres_factory(
        logical_decoding_work_mem="64kB",
        track_commit_timestamp="on",
        max_prepared_transactions="10",
    )
    with (
        server.database() as db,
        _running(tmp_path, lambda chance: PostgresOrigin(db, tmp_path, chance)) as made,
    ):
        yield made


@pytest.fixture
def mysql_run(tmp_path: Path) -> Iterator[Run]:
    """A run over MariaDB; over MySQL where ``CHANGEFEED_NEMESIS_MYSQL`` is ``mysql8``."""
    kind = os.environ.get("CHANGEFEED_NEMESIS_MYSQL", "mariadb")
    with server_folder(kind) as folder:
        # What was committed is still there after the server was killed.
        server = SERVERS[kind](folder, "--innodb-flush-log-at-trx-commit=2").start()
        try:
            with _running(tmp_path, lambda chance: MySQLOrigin(server, tmp_path, chance)) as made:
                yield made
        finally:
            server.stop()
