"""Messages say what a transaction did to a row, and nothing that was never so."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from changefeed.catalog.model import Status, TableProgress, TableState
from changefeed.core.sizes import Sizes
from changefeed.spark.session import NodeSpark
from tests.e2e.feeds import Feeds, running
from tests.helpers.duckdb_file import opened
from tests.helpers.waiting import until
from tests.services.postgres import Database

pytestmark = [pytest.mark.e2e, pytest.mark.postgres, pytest.mark.spark]


class Bench:
    """A table with ten rows, and the messages of feeds into files."""

    def __init__(self, feeds: Feeds, db: Database, folder: Path) -> None:
        self.feeds = feeds
        self.db = db
        self.folder = folder
        feeds.connect(shop=db.uri)

    def create(self, options: str, table: str = "t") -> None:
        """The feed ``f``, delivered up to now; it has told row 10."""
        self.feeds.execute(
            f"CREATE CHANGEFEED f FOR {table} INTO 'file://{self.folder}' WITH updated, {options}"
        )
        self.feeds.sync("f")
        self.db.execute("update t set b = b where a = 10")
        self.feeds.sync("f")

    def messages(self) -> list[dict[str, Any]]:
        """All messages in the order of their files, marks aside."""
        names = sorted(self.folder.rglob("*.ndjson"))
        found = [json.loads(line) for name in names for line in name.read_text().splitlines()]
        return [message for message in found if "resolved" not in message]

    def of_key(self, *keys: Any) -> list[dict[str, Any]]:
        """The messages of some keys."""
        return [m for m in self.messages() if m["key"] in [[key] for key in keys]]

    def table(self, name: str = "t") -> TableProgress:
        """How far a table of the feed is."""
        tables = self.feeds.catalog.tables(self.feeds.catalog.job("f").id)
        return next(table for table in tables if table.table.name == name)

    def failure(self) -> tuple[str, str]:
        """Code and message of the table, which fails soon, and the feed with its only table."""
        until(lambda: self.feeds.catalog.job("f").status is Status.FAILED)
        table = self.table()
        return str(table.error_code), str(table.error)


@pytest.fixture
def bench(tmp_path: Path, postgres: Database, spark_engine: NodeSpark) -> Iterator[Bench]:
    postgres.execute(
        "create table t (a int primary key, b text); alter table t replica identity full;"
        "insert into t select i, 'row ' || i from generate_series(1, 10) i"
    )
    with running(tmp_path / "state", spark_engine) as feeds:
        yield Bench(feeds, postgres, tmp_path / "out")


def test_op_is_what_the_transaction_did(bench: Bench) -> None:
    named = "enriched_properties = 'source'"
    bench.create(f"envelope = 'enriched', {named}, diff, key_in_value, initial_scan = 'no'")
    bench.db.execute(
        "begin; insert into t values (20, 'x'); update t set b = 'y' where a = 20;"
        "delete from t where a = 1; insert into t values (1, 'again');"
        "update t set b = 'z' where a = 2; delete from t where a = 2;"
        "insert into t values (30, 'x'); delete from t where a = 30; commit"
    )
    bench.feeds.sync("f")
    [(database,)] = bench.db.execute("select current_database()")
    assert {m["source"]["database_name"] for m in bench.messages()} == {database}
    found = [(m["key"]["a"], m["op"], m["before"], m["after"]) for m in bench.messages()]
    assert sorted(found[1:]) == [
        (1, "u", {"a": 1, "b": "row 1"}, {"a": 1, "b": "again"}),
        (2, "d", {"a": 2, "b": "row 2"}, None),
        (20, "c", None, {"a": 20, "b": "y"}),
    ]


def test_a_transaction_above_the_buffer_is_one_message_a_key(bench: Bench) -> None:
    bench.create("diff, key_in_value, initial_scan = 'no'")
    bench.db.execute(
        "begin; update t set b = 'first';"
        "insert into t select i, repeat('p', 600) from generate_series(11, 20000) i;"
        "update t set b = 'last' where a <= 20; commit"
    )
    bench.feeds.sync("f")
    found = [(m["key"][0], m["before"], m["after"]["b"]) for m in bench.of_key(*range(1, 21))]
    found = found[1:]
    old = [(i, {"a": i, "b": f"row {i}"}, "last") for i in range(1, 11)]
    assert sorted(found) == [*old, *((i, None, "last") for i in range(11, 21))]
    assert len(bench.messages()) == 20_001


def test_a_lowered_replica_identity_stops_the_table(bench: Bench) -> None:
    bench.create("diff, key_in_value, initial_scan = 'no'")
    bench.db.execute("alter table t replica identity default; update t set b = 'thin' where a = 1")
    code, message = bench.failure()
    assert code == "CF2003" and "logs only its key now" in message
    assert not bench.of_key(1)
    bench.db.execute("alter table t replica identity full")
    bench.feeds.execute("ALTER CHANGEFEED f RESCAN t")
    bench.feeds.sync("f")
    bench.db.execute("update t set b = 'whole' where a = 1")
    bench.feeds.sync("f")
    assert bench.of_key(1)[-1]["before"] == {"a": 1, "b": "thin"}


def test_another_primary_key_stops_the_table(bench: Bench) -> None:
    bench.create("key_in_value, initial_scan = 'no'")
    bench.db.execute(
        "alter table t drop constraint t_pkey, add primary key (b);"
        "update t set b = 'new' where a = 1"
    )
    code, message = bench.failure()
    assert code == "CF4101" and "key changed from (a) to (b)" in message
    assert [m["key"] for m in bench.messages()] == [[10]]
    bench.feeds.execute("ALTER CHANGEFEED f RESCAN t")
    bench.feeds.sync("f")
    assert {m["key"][0] for m in bench.messages() if m["after"]} >= {"new", "row 2", "row 10"}
    bench.db.execute("insert into t values (11, 'more')")
    bench.feeds.sync("f")
    assert bench.messages()[-1]["key"] == ["more"]


def test_another_primary_key_is_taken_where_the_user_says_so(bench: Bench) -> None:
    bench.create("key_in_value, initial_scan = 'no', schema_change_policy = 'ignore'")
    bench.db.execute(
        "alter table t drop constraint t_pkey, add primary key (b);"
        "update t set b = 'new' where a = 1"
    )
    bench.feeds.sync("f")
    assert ["new"] in [m["key"] for m in bench.messages()]


def test_a_change_that_another_feeds_scan_saw_first_stops_the_feed(bench: Bench) -> None:
    """No row of the table was streamed before; the feed that scanned the new column goes on."""
    stop = "schema_change_policy = 'stop', schema_change_events = 'column_changes'"
    into = f"INTO 'file://{bench.folder}"
    bench.feeds.execute(f"CREATE CHANGEFEED f FOR t {into}' WITH key_in_value, {stop}")
    bench.feeds.sync("f")
    bench.db.execute("alter table t add column c int default 5")
    bench.feeds.execute(f"CREATE CHANGEFEED g FOR t {into}_g' WITH {stop}")
    bench.feeds.sync("g")
    bench.db.execute("insert into t values (11, 'x', 1)")
    code, message = bench.failure()
    assert code == "CF4101" and 'column "c" added' in message
    bench.feeds.sync("g")
    bench.feeds.execute("ALTER CHANGEFEED f RESCAN t")
    bench.feeds.sync("f")
    assert bench.of_key(3)[-1]["after"] == {"a": 3, "b": "row 3", "c": 5}
    assert bench.of_key(11)[-1]["after"] == {"a": 11, "b": "x", "c": 1}


def test_column_changes_deliver_the_table_again(bench: Bench) -> None:
    bench.create("key_in_value, initial_scan = 'no', schema_change_events = 'column_changes'")
    bench.db.execute("alter table t add column c int; insert into t values (11, 'x', 1)")
    until(lambda: len(bench.of_key(*range(1, 11))) >= 10)
    assert bench.of_key(3)[-1]["after"] == {"a": 3, "b": "row 3", "c": None}


@pytest.mark.parametrize(
    ("way", "unsent"), [("mark", {"big": "__changefeed_unsent__"}), ("omit", {})]
)
def test_a_large_value_is_never_a_later_one_and_never_null(
    bench: Bench, way: str, unsent: dict[str, str]
) -> None:
    bench.db.execute(
        "create table large (a int primary key, v int, big text);"
        "alter table large alter big set storage external;"
        "insert into large select i, 0, repeat('x', 5000) || i from generate_series(1, 10) i"
    )
    bench.feeds.execute(
        f"CREATE CHANGEFEED f FOR large INTO 'file://{bench.folder}'"
        f" WITH updated, key_in_value, initial_scan = 'no', unsent_values = '{way}'"
    )
    bench.feeds.sync("f")
    bench.feeds.node.stop()
    bench.db.execute("update large set v = 1 where a <= 3")
    bench.db.execute("update large set big = repeat('z', 5000) where a = 2")
    bench.db.execute("delete from large where a = 3")
    bench.feeds.catalog.close()
    bench.feeds.open()
    bench.feeds.sync("f")
    found = [(m["key"][0], m["after"]) for m in bench.messages()]
    assert sorted(found[:3], key=lambda one: one[0]) == [
        (1, {"a": 1, "v": 1, "big": "x" * 5000 + "1"}),
        (2, {"a": 2, "v": 1} | unsent),
        (3, {"a": 3, "v": 1} | unsent),
    ]
    assert found[3:] == [(2, {"a": 2, "v": 1, "big": "z" * 5000}), (3, None)]


def test_a_table_gets_a_large_value_of_another_chunk_of_the_transaction(
    bench: Bench, tmp_path: Path
) -> None:
    """The transaction arrives in several parts, the value in the first; at its last change the
    value is not sent, and by then another transaction has changed it."""
    bench.db.execute(
        "create table large (a int primary key, v int, big text);"
        "alter table large alter big set storage external"
    )
    bench.feeds.execute(
        f"CREATE CHANGEFEED f FOR large INTO 'duckdb://{tmp_path}/shop.duckdb'"
        " WITH history = 'scd2', initial_scan = 'no'"
    )
    bench.feeds.sync("f")
    bench.feeds.close()
    bench.db.execute(
        "begin; insert into large values (1, 0, repeat('x', 5000));"
        "insert into large select i, 0, repeat('p', 600) from generate_series(2, 20000) i;"
        "update large set v = 1 where a = 1; commit"
    )
    bench.db.execute("update large set v = 2, big = repeat('z', 5000) where a = 1")
    bench.feeds.restart(Sizes(chunk_rows=1000))
    bench.feeds.sync("f")
    bench.feeds.node.stop()
    with opened(tmp_path / "shop.duckdb") as target:
        found = target.execute(
            "select v, left(big, 1), length(big) from large where a = 1 order by v"
        ).fetchall()
    assert found == [(1, "x", 5000), (2, "z", 5000)]


def test_a_large_value_that_was_not_sent_stops_the_table_where_that_is_wanted(
    bench: Bench,
) -> None:
    bench.db.execute(
        "create table large (a int primary key, v int, big text);"
        "alter table large alter big set storage external;"
        "insert into large values (1, 0, repeat('x', 5000)); create table small (a int primary key)"
    )
    bench.feeds.execute(
        f"CREATE CHANGEFEED f FOR large, small INTO 'file://{bench.folder}'"
        " WITH updated, key_in_value, initial_scan = 'no', unsent_values = 'fail'"
    )
    bench.feeds.sync("f")
    bench.feeds.node.stop()
    bench.db.execute("update large set v = 1")
    bench.db.execute("update large set big = repeat('z', 5000)")
    bench.db.execute("insert into small values (7)")
    bench.feeds.catalog.close()
    bench.feeds.open()
    until(lambda: bench.of_key(7))
    until(lambda: any(t.state is TableState.FAILED for t in bench.feeds.catalog.tables(1)))
    [failed] = [t for t in bench.feeds.catalog.tables(1) if t.state is TableState.FAILED]
    assert (failed.table.name, failed.error_code) == ("large", "CF4001")
    assert "column big" in (failed.error or "") and "was not sent" in (failed.error or "")
    assert not bench.of_key(1)
