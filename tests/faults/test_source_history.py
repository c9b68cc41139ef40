"""Feeds of a server that went back, or was replaced by one that lacks what they read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from changefeed.catalog import Job, Status
from changefeed.core.errors import ChangefeedError
from changefeed.spark.session import NodeSpark
from tests.conformance.test_postgres_standby import pair
from tests.conftest import PostgresFactory
from tests.e2e.feeds import Feeds, running
from tests.helpers.waiting import until
from tests.services.postgres import Database, PostgresCluster

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.postgres]


def ids_in(folder: Path) -> set[int]:
    """The rows that files in a folder have."""
    lines = (line for file in folder.rglob("*.ndjson") for line in file.read_text().splitlines())
    return {message["after"]["id"] for message in map(json.loads, lines)}


class Bench:
    """A feed of one table into a folder."""

    def __init__(self, feeds: Feeds, server: PostgresCluster, folder: Path) -> None:
        self.feeds = feeds
        self.server = server
        self.database = Database(server, "postgres")
        self.folder = folder
        self.database.execute("create table t (id int primary key); insert into t values (1)")
        feeds.connect(shop=self.database.uri)
        feeds.execute("USE shop")
        feeds.execute(f"CREATE CHANGEFEED f FOR t INTO 'file://{folder}'")
        feeds.sync("f")

    def delivered(self) -> set[int]:
        """The rows so far."""
        return ids_in(self.folder)

    def refused(self, reason: str) -> None:
        """The feed fails with CF2104, SYNC says so, and nothing of the server was delivered."""
        job = self.feeds.catalog.job("f")
        until(lambda: self.feeds.catalog.job("f").status is Status.FAILED, "f fails")
        job = self.feeds.catalog.job("f")
        assert job.error_code == "CF2104" and job.error and reason in job.error, job
        with pytest.raises(ChangefeedError) as caught:
            self.feeds.sync("f", "10s")
        assert "history of the source" in caught.value.message

    def goes_on(self, *rows: int) -> None:
        """It runs, and has delivered these."""
        self.feeds.sync("f")
        assert self.feeds.catalog.job("f").status is Status.RUNNING
        assert self.delivered() == set(rows)


@contextmanager
def bench(server: PostgresCluster, folder: Path, spark: NodeSpark) -> Iterator[Bench]:
    with running(folder / "state", spark) as feeds:
        yield Bench(feeds, server, folder / "out")


@pytest.mark.parametrize("passed", [False, True], ids=["behind", "passed"])
def test_a_server_restored_while_the_node_was_away(
    own_postgres: PostgresCluster,
    tmp_path: Path,
    spark_engine: NodeSpark,
    passed: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with bench(own_postgres, tmp_path, spark_engine) as it:
        it.feeds.close()
        own_postgres.stop()
        snapshot = own_postgres.copy_data(tmp_path.parent / f"{tmp_path.name}-snapshot")
        own_postgres.start()
        it.feeds.open()
        it.database.execute("insert into t select generate_series(2, 500)")
        it.feeds.sync("f")
        it.feeds.close()
        own_postgres.stop()
        own_postgres.restore_data(snapshot)
        own_postgres.start()
        it.database.execute("insert into t values (1001)")
        if passed:
            it.database.execute("create table u as select i from generate_series(1, 50000) i")
        it.feeds.open()
        it.refused("was read, is not in its log" if passed else "its log ends at")
        it.database.execute("insert into t values (1002)")
        assert 1001 not in it.delivered()
        alter = it.feeds.catalog.alter_job

        def slow(job_id: int, **changes: Any) -> Job:
            """The node has seen to the altered job before the statement does anything else."""
            altered = alter(job_id, **changes)
            until(lambda: it.feeds.node.sources.covered(altered))
            return altered

        monkeypatch.setattr(it.feeds.catalog, "alter_job", slow)
        it.feeds.execute("ALTER CHANGEFEED f RESCAN")
        it.goes_on(*range(1, 501), 1001, 1002)
        it.database.execute("insert into t values (1003)")
        it.goes_on(*range(1, 501), 1001, 1002, 1003)


@pytest.mark.extended
def test_a_promoted_copy_and_the_way_back(
    own_postgres_factory: PostgresFactory, tmp_path: Path, spark_engine: NodeSpark
) -> None:
    primary = own_postgres_factory(16)
    with bench(primary, tmp_path, spark_engine) as it:
        it.feeds.close()
        primary.stop()
        copy = primary.standby("copy", slots=True, primary_conninfo="")
        primary.start()
        it.feeds.open()
        it.database.execute("insert into t values (2), (3)")
        it.feeds.sync("f")
        with copy:
            copy.promote()
            copy.execute("insert into t values (1001)")
            copy.execute("create table u as select i from generate_series(1, 50000) i")
            it.feeds.execute(f"ALTER EXTERNAL CONNECTION shop AS '{copy.uri('postgres')}'")
            it.refused("its timeline 2 left timeline 1 at")
        it.feeds.execute(f"ALTER EXTERNAL CONNECTION shop AS '{it.database.uri}'")
        it.feeds.execute("RESUME CHANGEFEED f")
        it.database.execute("insert into t values (4)")
        it.goes_on(1, 2, 3, 4)


@pytest.mark.extended
def test_a_feed_of_a_standby_that_is_promoted(
    own_postgres_factory: PostgresFactory, tmp_path: Path, spark_engine: NodeSpark
) -> None:
    """The connection stays as it is; a table that joins later is scanned at the new primary."""
    primary = own_postgres_factory(16)
    with pair(primary) as both, running(tmp_path / "state", spark_engine) as feeds:
        database = Database(primary, "postgres")
        database.execute("create table t (id int primary key); insert into t values (1)")
        database.execute("create table u (id int primary key); insert into u values (50)")
        feeds.connect(shop=both.uri("postgres"))
        feeds.execute("USE shop")
        out = tmp_path / "out"
        feeds.execute(f"CREATE CHANGEFEED f FOR t INTO 'file://{out}'")
        database.execute("insert into t values (2)")
        feeds.sync("f")
        assert database.slots() == [] and len(Database(both.standby, "postgres").slots()) == 1
        assert ids_in(out) == {1, 2}
        primary.kill()
        both.standby.promote()
        both.standby.execute("insert into t values (3)")
        feeds.sync("f")
        feeds.execute("ALTER CHANGEFEED f ADD u")
        both.standby.execute("insert into u values (51)")
        feeds.sync("f")
        assert feeds.catalog.job("f").status is Status.RUNNING
        assert ids_in(out) == {1, 2, 3, 50, 51}
        feeds.execute("DROP CHANGEFEED f")
        until(lambda: Database(both.standby, "postgres").slots() == [])
