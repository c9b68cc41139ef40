"""A backlog by Spark in lanes has the bytes, and for each key the order, of the node's own."""

from __future__ import annotations

import os
import signal
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from changefeed.core.errors import ChangefeedError
from changefeed.feeds import backlog
from changefeed.spark.session import NodeSpark
from changefeed.spark.tasks import TaskResult, run_tasks
from tests.e2e.feeds import Feeds, running
from tests.helpers.ordered import assert_in_order
from tests.helpers.waiting import until
from tests.services.kafka import KafkaBroker
from tests.services.postgres import Database
from tests.services.webhook import WebhookServer

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.postgres, pytest.mark.kafka]

TABLES = """
create table t (a int primary key, b text);
create table named (shop text, n bigint, v text, primary key (shop, n));
create table plain (a int, b text);
alter table plain replica identity full
"""
ONE_BY_ONE = '{"Flush": {"Messages": 1, "Frequency": "5ms"}}'
CHANGES = (
    "insert into t select i, 'one ' || i from generate_series(1, 3000) i",
    "update t set b = 'two' where a % 2 = 0",
    "insert into named select 'shop ' || i % 7, i, '\"x\"' from generate_series(1, 2000) i",
    "delete from t where a % 5 = 0",
    "update t set a = a + 10000 where a % 7 = 0",
    "insert into plain select i % 10, 'y' from generate_series(1, 500) i",
    "update named set v = null where n % 3 = 0",
    "truncate named",
    "alter table t add column c int default 5",
    "insert into t select i, 'late', i from generate_series(20000, 22000) i",
    "update t set b = 'three', c = 9 where a % 3 = 0",
    "delete from plain where a = 3",
)


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[list[TaskResult]]:
    """What each job of a backlog did."""
    found: list[list[TaskResult]] = []

    def spied(*given: Any, **named: Any) -> list[TaskResult]:
        done = run_tasks(*given, **named)
        found.append(done)
        return done

    monkeypatch.setattr(backlog, "run_tasks", spied)
    return found


@pytest.fixture
def webhook() -> Iterator[WebhookServer]:
    server = WebhookServer()
    yield server
    server.stop()


def by_key(kafka: KafkaBroker, topics: dict[str, str]) -> dict[object, list[bytes | None]]:
    """The values of each key of each table, in order."""
    found: dict[object, list[bytes | None]] = defaultdict(list)
    for table, topic in topics.items():
        for record in kafka.messages(topic):
            if record.key is not None:
                found[table, record.key].append(record.value)
    return dict(found)


def test_a_backlog_in_lanes_is_the_backlog_of_the_node(
    tmp_path: Path,
    postgres: Database,
    kafka: KafkaBroker,
    topic: str,
    spark_engine: NodeSpark,
    jobs: list[list[TaskResult]],
) -> None:
    postgres.execute(TABLES)
    with running(tmp_path / "state", spark_engine) as feeds:
        feeds.connect(shop=postgres.uri)
        for engine in ("driver", "spark"):
            feeds.execute(
                f"CREATE CHANGEFEED {engine} FOR t, named, plain "
                f"INTO '{kafka.uri}?topic_prefix={topic}{engine}_' "
                f"WITH engine = '{engine}', updated, initial_scan = 'no', "
                "schema_change_policy = 'nobackfill'"
            )
            feeds.execute(f"PAUSE CHANGEFEED {engine}")
        for change in CHANGES:
            postgres.execute(change)
        for engine in ("driver", "spark"):
            feeds.execute(f"RESUME CHANGEFEED {engine}")
            feeds.sync(engine)
    assert jobs and all(len({done.item for done in job}) >= 1 for job in jobs)
    expected, found = (
        by_key(kafka, {table: f"{topic}{engine}_{table}" for table in ("t", "named", "plain")})
        for engine in ("driver", "spark")
    )
    assert len(expected) > 5_000
    assert found == expected


def test_lanes_share_the_wait_for_a_slow_sink_and_keep_the_order(
    tmp_path: Path,
    postgres: Database,
    webhook: WebhookServer,
    spark_engine: NodeSpark,
    jobs: list[list[TaskResult]],
) -> None:
    """A worker that dies in the middle repeats messages; none is lost, none out of order."""
    postgres.execute("create table t (a int primary key, b int)")
    with running(tmp_path / "state", spark_engine) as feeds:
        feeds.connect(shop=postgres.uri)
        feeds.execute(
            f"CREATE CHANGEFEED f FOR t INTO '{webhook.uri}' "
            "WITH engine = 'spark', initial_scan = 'no', updated"
        )
        feeds.execute("PAUSE CHANGEFEED f")
        postgres.execute("insert into t select i, 0 from generate_series(1, 1500) i")
        for n in range(1, 4):
            postgres.execute(f"update t set b = {n}")
        feeds.execute("RESUME CHANGEFEED f")
        until(lambda: webhook.taken, seconds=120)
        kill_a_worker(spark_engine)
        feeds.sync("f")
    assert jobs
    assert_in_order(webhook.messages(["t"]), keys=1500, last=3)


def kill_a_worker(engine: NodeSpark) -> None:
    """End one Python worker of the session as a machine would that fails."""
    assert engine.pid is not None
    workers = [
        child
        for daemon in psutil.Process(engine.pid).children()
        for child in daemon.children()
        if "python" in child.name()
    ]
    if workers:
        os.kill(workers[0].pid, signal.SIGKILL)


@pytest.mark.extended
def test_a_stopped_feed_leaves_no_lane_behind(
    tmp_path: Path, postgres: Database, webhook: WebhookServer, spark_engine: NodeSpark
) -> None:
    postgres.execute("create table t (a int primary key, b int)")
    with running(tmp_path / "state", spark_engine) as feeds:
        feeds.connect(shop=postgres.uri)
        feeds.execute(
            f"CREATE CHANGEFEED f FOR t INTO '{webhook.uri}' WITH engine = 'spark', "
            f"initial_scan = 'no', webhook_sink_config = '{ONE_BY_ONE}'"
        )
        feeds.execute("PAUSE CHANGEFEED f")
        postgres.execute("insert into t select i, 0 from generate_series(1, 20000) i")
        feeds.execute("RESUME CHANGEFEED f")
        until(lambda: len(webhook.taken) > 20, seconds=120)
        feeds.execute("PAUSE CHANGEFEED f")
        until(lambda: status(feeds) == "paused")
        taken = len(webhook.taken)
        assert taken < 20000
        feeds.execute("RESUME CHANGEFEED f")
        feeds.sync("f")
    keys = {m.key for m in webhook.messages(["t"]) if m.is_row}
    assert len(keys) == 20000


def status(feeds: Feeds) -> str:
    return feeds.catalog.job("f").status.value


def test_an_engine_that_is_none_is_refused(
    tmp_path: Path, postgres: Database, spark_engine: NodeSpark
) -> None:
    postgres.execute("create table t (a int primary key)")
    with running(tmp_path / "state", spark_engine) as feeds:
        feeds.connect(shop=postgres.uri)
        with pytest.raises(ChangefeedError, match="unknown engine: flink"):
            feeds.execute("CREATE CHANGEFEED f FOR t INTO 'null://' WITH engine = 'flink'")
