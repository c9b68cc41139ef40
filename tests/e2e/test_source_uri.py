"""Readers that are given a source: no state, no connection and no node of the user's own."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession

import changefeed
from changefeed import spark_source
from changefeed.api import Interpreter, Session
from changefeed.catalog import Catalog
from changefeed.core.child_path import import_path
from changefeed.core.errors import ChangefeedError
from changefeed.core.node_lock import NodeLock
from changefeed.core.state import StateLayout
from changefeed.readers import Subscription
from changefeed.readers.own_state import own_directory
from changefeed.spark.session import NodeSpark
from tests.helpers import source_uri_child
from tests.helpers.refused_logins import error, refusing
from tests.helpers.waiting import until
from tests.services.postgres import Database

pytestmark = [pytest.mark.e2e, pytest.mark.postgres]

SECONDS = 60.0


@pytest.fixture
def shop(postgres: Database) -> Database:
    """A source with a table of 100 rows."""
    postgres.execute(
        "create table t (id int primary key, name text); alter table t replica identity full;"
        "insert into t select i, 'row ' || i from generate_series(1, 100) i"
    )
    return postgres


def table(db: Database) -> dict[int, str]:
    return {row[0]: row[1] for row in db.execute("select id, name from t")}


def slots(db: Database) -> list[str]:
    found = db.execute(
        "select slot_name from pg_replication_slots where database = current_database()"
    )
    return [row[0] for row in found]


def node_of(state: Path) -> int:
    """Process id of the node that a state has or had."""
    return int(StateLayout(state).lock.read_text())


def no_node(state: Path) -> bool:
    """Whether nobody runs the state, and another node could start."""
    lock = NodeLock(StateLayout(state).lock)
    free = lock.acquire()
    lock.release()
    return free


@pytest.mark.spark
def test_a_stream_whose_driver_is_killed_continues_and_leaves_no_node(
    shop: Database, spark_engine: NodeSpark, tmp_path: Path
) -> None:
    state, checkpoint, folder = tmp_path / "state", tmp_path / "checkpoint", tmp_path / "batches"
    folder.mkdir()
    # The JVM of the tests has no such variable: its query gets the URL itself, with no password.
    environment = {**os.environ, "SHOP_URL": shop.uri, "PYTHONPATH": import_path()}
    environment["PYSPARK_PYTHON"] = sys.executable
    words = [sys.executable, "-m", source_uri_child.__name__, str(state), str(checkpoint)]
    with (tmp_path / "driver.log").open("wb") as output:
        driver = subprocess.Popen(
            [*words, str(folder)], env=environment, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        until(lambda: driver.poll() is None and source_uri_child.copied(folder) == table(shop))
        first = node_of(state)
        shop.execute("update t set name = 'new' where id % 3 = 0; delete from t where id % 5 = 0")
    finally:
        driver.kill()
        driver.wait()
    shop.execute("insert into t values (1000, 'while nobody read')")
    until(lambda: no_node(state), seconds=SECONDS)
    until(lambda: not psutil.pid_exists(first), seconds=SECONDS)

    query = source_uri_child.start(
        spark_engine.session(), str(state), str(checkpoint), folder, shop.uri
    )

    def equal() -> bool:
        assert query.exception() is None, query.exception()
        return source_uri_child.copied(folder) == table(shop)

    until(equal)
    second = node_of(state)
    assert second != first
    query.stop()
    until(lambda: not psutil.pid_exists(second), seconds=SECONDS)

    # What remains is the slot; DROP removes it, without a node.
    assert len(slots(shop)) == 1
    with closing(Catalog.open(state)) as catalog:
        Interpreter(catalog).execute("DROP CHANGEFEED r", Session(client="tests"))
    assert slots(shop) == []


@pytest.mark.spark
def test_a_batch_without_a_reader_is_the_table_as_it_is(
    shop: Database, spark_engine: NodeSpark, tmp_path: Path
) -> None:
    spark: SparkSession = spark_engine.session()
    spark_source.register(spark)
    state = tmp_path / "state"
    read = spark.read.format("changefeed").option("source", shop.uri).option("state", str(state))
    rows = read.option("table", "public.t").load().collect()
    assert {row["id"]: row["name"] for row in rows} == table(shop)
    assert {row["_change_type"] for row in rows} == {"insert"}
    assert slots(shop) == []
    with closing(Catalog.open(state)) as catalog:
        assert catalog.jobs(include_finished=False) == []
    assert no_node(state)

    with pytest.raises(Exception, match=r'table "public.nope" does not exist\s+CF1101'):
        read.option("table", "public.nope").load()
    secret = shop.uri.replace("postgres@", "postgres:geheim@")
    refused = spark.read.format("changefeed").option("source", secret)
    with pytest.raises(Exception, match=r"Spark's plans\s+CF1205") as refusal:
        refused.option("table", "public.t").load()
    assert "geheim" not in str(refusal.value)


def subscribed(shop: Database, reader: str = "audit") -> Subscription:
    return changefeed.subscribe(source=shop.uri, table="public.t", reader=reader)


def names(subscription: Subscription) -> list[str]:
    """The names in the next part, which is committed: then the files of a scan may go."""
    found = subscription.next(SECONDS)
    assert found is not None, "nothing came"
    values: list[str] = found.table()["name"].to_pylist()
    subscription.commit()
    return values


def test_subscriptions_share_a_node_and_one_takes_it_over(
    shop: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    state = own_directory(shop.uri)
    assert state.is_relative_to(tmp_path)
    with subscribed(shop, "first") as changes, subscribed(shop) as other:
        assert len(names(changes)) == len(names(other)) == 100
        node = node_of(state)
        changes.close()
        assert not psutil.pid_exists(node)
        shop.execute("insert into t values (101, 'later')")
        assert names(other) == ["later"]
        psutil.Process(node_of(state)).kill()
        with pytest.raises(ChangefeedError) as ended:
            until(lambda: other.next(0.1) is not None, seconds=SECONDS)
        assert ended.value.code.number == "CF6005"
        assert str(StateLayout(state).node_log) in (ended.value.hint or "")
    assert no_node(state)
    with subscribed(shop, "first") as changes:
        assert names(changes) == ["later"]
    assert no_node(state)


def test_a_refused_login_is_said_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    with refusing(error("28P01", 'password authentication failed for user "x"')) as (server, uri):
        # The second is another login for the same state.
        for source in (uri, f"{uri}&connect_timeout=9"):
            before = server.logins
            with pytest.raises(ChangefeedError) as refusal:
                changefeed.subscribe(source=source, table="public.t", reader="r")
            assert refusal.value.code.number == "CF2002"
            assert "geheim" not in f"{refusal.value} {refusal.value.hint}"
            assert server.logins > before
    with pytest.raises(ChangefeedError, match="neither source nor state"):
        changefeed.subscribe(reader="r")
