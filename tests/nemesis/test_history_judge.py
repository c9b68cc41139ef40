"""The judge of histories: what it sees, and what it does about a table or a feed that stands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from changefeed.spark.session import NodeSpark
from tests.nemesis.histories import MySQLServer, PostgreSQLServer, Server
from tests.nemesis.history_targets import (
    Copy,
    DeltaCopy,
    DuckDBCopy,
    Judge,
    KafkaCopy,
)
from tests.nemesis.service import Service
from tests.services.kafka import KafkaBroker
from tests.services.mysql import BinlogServer
from tests.services.postgres import Database

pytestmark = [pytest.mark.nemesis, pytest.mark.e2e]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """A node that needs no Spark."""
    made = Service(tmp_path / "state", spark=("--engine", "driver"))
    made.start()
    yield made
    made.close()


def judge_of(server: Server, service: Service, copy: Copy) -> Judge:
    """Its feed follows the tables of the server."""
    tables = ", ".join(f"src.{server.schema}.{table}" for table in server.tables)
    service.execute(f"CREATE EXTERNAL CONNECTION src AS '{server.uri}'")
    service.execute(f"CREATE CHANGEFEED {copy.feed} FOR {tables} INTO '{copy.uri}'")
    return Judge(server, service, [copy])


@pytest.mark.kafka
def test_a_feed_that_gets_no_further_is_a_failure_with_the_stacks_of_its_node(
    postgres: Database, service: Service, own_kafka: KafkaBroker
) -> None:
    server = PostgreSQLServer(postgres)
    copy = KafkaCopy("f", own_kafka, "f_")
    judge_of(server, service, copy).look()
    own_kafka.stop()
    server.run("insert into words (id) values (1)")
    with pytest.raises(
        AssertionError,
        match=r"(?s)did not catch up.*Fatal Python error: Aborted.*in _run_module_as_main",
    ):
        Judge(server, service, [copy], still=5).look()


def test_a_table_without_transactions_is_added_again(
    binlog_servers: Callable[..., BinlogServer], service: Service, tmp_path: Path
) -> None:
    server = MySQLServer(binlog_servers("mariadb"), "judged")
    copy = DuckDBCopy("f", tmp_path / "f.duckdb")
    judge = judge_of(server, service, copy)
    server.run("ALTER TABLE words DROP PRIMARY KEY, ENGINE = MyISAM")
    judge.help(copy, "words", "it has failed", again=True)
    server.run("INSERT INTO words (id) VALUES (1)")
    judge.look()
    assert copy.query("SELECT id FROM words") == [(1,)]


@pytest.mark.spark
def test_a_column_that_a_delta_table_lacks_is_a_difference(
    spark_engine: NodeSpark, tmp_path: Path
) -> None:
    copy = DeltaCopy("f", tmp_path, spark_engine)
    copy.query(f"CREATE TABLE {copy.place('words')} USING delta AS SELECT 1 AS id")
    assert copy.difference("words", ["id"], [(1,)]) == ""
    assert "`lacking`" in copy.difference("words", ["id", "lacking"], [(1, 2)])
