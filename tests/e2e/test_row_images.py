"""``row_images = 'store'``: true rows before and after from a source that logs little."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from changefeed.catalog.model import Status, TableState
from changefeed.core.schema import TableName
from changefeed.core.state import StateLayout
from changefeed.images.states import StoreState, store_folder, store_status
from tests.e2e.feeds import Feeds, running
from tests.helpers.waiting import until
from tests.services.postgres import Database

pytestmark = [pytest.mark.e2e, pytest.mark.postgres]

TABLE = TableName("shop", "public", "t")
#: Stored outside of the row, so that an update of another column does not log it.
BIG = 12_000


class Bench:
    """A table under its default identity, with a feed into files."""

    def __init__(self, feeds: Feeds, db: Database, folder: Path) -> None:
        self.feeds, self.db, self.folder = feeds, db, folder
        feeds.connect(shop=db.uri)

    @property
    def stores(self) -> Path:
        """The folder of the source's stores."""
        return StateLayout(self.feeds.state).images("shop")

    def create(self, more: str = "") -> None:
        """The feed ``f``, which has scanned."""
        self.feeds.execute(
            f"CREATE CHANGEFEED f FOR t INTO 'file://{self.folder}' WITH row_images = 'store', "
            f"envelope = 'wrapped', diff, updated, key_in_value{more}"
        )
        self.feeds.sync("f")

    def changes(self) -> list[tuple[Any, Any]]:
        """Each change of the feed after its scan: the row before and the row after."""
        names = sorted(self.folder.rglob("*.ndjson"))
        lines = [json.loads(line) for name in names for line in name.read_text().splitlines()]
        found = [message for message in lines if "before" in message]  # no marks
        assert not any("__changefeed_unsent__" in json.dumps(message) for message in found)
        seen = {json.dumps(m, sort_keys=True): (m["before"], m["after"]) for m in found}
        return list(seen.values())

    def kill(self) -> None:
        """Kill the capture process, and wait for the next one."""
        until(self.feeds.kill_capture())


@pytest.fixture
def bench(tmp_path: Path, postgres: Database) -> Iterator[Bench]:
    postgres.execute(
        "create table t (a int primary key, n int, big text);"
        "alter table t alter big set storage external;"
        f"insert into t select i, i, repeat(chr(96 + i), {BIG}) from generate_series(1, 9) i"
    )
    with running(tmp_path / "state") as feeds:
        yield Bench(feeds, postgres, tmp_path / "out")


def row(a: int, n: int | None, big: str | None) -> dict[str, Any]:
    return {"a": a, "n": n, "big": big if big is None else big * BIG}


def test_rows_before_and_after_are_whole(bench: Bench) -> None:
    bench.create()
    scanned = len(bench.changes())
    assert scanned == 9
    for statement in (
        "insert into t values (20, 1, null)",
        "update t set n = 100 where a = 1",  # its large value is not sent
        "update t set n = 101 where a = 1",
        f"update t set big = repeat('z', {BIG}) where a = 2",
        "update t set a = 30, n = 3 where a = 3",  # the key changes, its large value is not sent
        "update t set n = 31 where a = 30",
        "delete from t where a = 4",
    ):
        bench.db.execute(statement)
    bench.db.execute(
        "begin; update t set n = 50 where a = 5; update t set n = 51 where a = 5;"
        "delete from t where a = 6; insert into t values (6, 60, 'x'); commit"
    )
    bench.feeds.sync("f")
    changes = bench.changes()[scanned:]
    expected = [
        (None, {"a": 20, "n": 1, "big": None}),
        (row(1, 1, "a"), row(1, 100, "a")),
        (row(1, 100, "a"), row(1, 101, "a")),
        (row(2, 2, "b"), row(2, 2, "z")),
        (row(3, 3, "c"), None),
        (None, row(30, 3, "c")),
        (row(30, 3, "c"), row(30, 31, "c")),
        (row(4, 4, "d"), None),
        (row(5, 5, "e"), row(5, 51, "e")),
        (row(6, 6, "f"), {"a": 6, "n": 60, "big": "x"}),
    ]
    assert sorted(changes, key=str) == sorted(expected, key=str)


def test_a_crash_loses_no_image(bench: Bench) -> None:
    bench.create()
    scanned = len(bench.changes())
    bench.db.execute("update t set n = 10 where a = 1")
    bench.db.execute("update t set a = 40 where a = 4")
    bench.feeds.sync("f")
    bench.kill()
    bench.db.execute("update t set n = 11 where a = 1")
    bench.db.execute("update t set n = 41 where a = 40")
    bench.feeds.sync("f")
    changes = bench.changes()[scanned:]
    assert (row(1, 10, "a"), row(1, 11, "a")) in changes
    assert (row(40, 4, "d"), row(40, 41, "d")) in changes
    assert len(changes) == 5


def test_columns_come_and_go(bench: Bench) -> None:
    bench.create()
    scanned = len(bench.changes())
    bench.db.execute("alter table t add column more text")
    bench.db.execute("update t set n = 10 where a = 1")
    bench.db.execute("alter table t drop column n")
    bench.db.execute("update t set more = 'x' where a = 1")
    bench.feeds.sync("f")
    bench.kill()
    bench.db.execute("delete from t where a in (1, 2)")
    bench.feeds.sync("f")
    changes = [c for c in bench.changes()[scanned:] if c[0] is not None]
    one = row(1, 1, "a")
    without = {"a": 1, "big": one["big"]}
    assert (one | {"more": None}, one | {"more": None, "n": 10}) in changes
    assert (without | {"more": None}, without | {"more": "x"}) in changes
    assert (without | {"more": "x"}, None) in changes
    assert ({"a": 2, "big": "b" * BIG, "more": None}, None) in changes


def test_truncate_empties_the_store(bench: Bench) -> None:
    bench.create()
    scanned = len(bench.changes())
    bench.db.execute("truncate t")
    bench.db.execute("insert into t values (1, 5, 'new')")
    bench.db.execute("update t set n = 6 where a = 1")
    bench.feeds.sync("f")
    new = {"a": 1, "n": 5, "big": "new"}
    assert (new, new | {"n": 6}) in bench.changes()[scanned:]


def test_a_damaged_store_is_said_and_made_again(bench: Bench) -> None:
    """No value is made up: the table stops, and a RESCAN goes on with a new store."""
    bench.create()
    until(lambda: list(store_folder(bench.stores, TABLE).glob("run-*")) != [])
    for run in store_folder(bench.stores, TABLE).glob("run-*"):
        run.write_bytes(b"rubbish")
    bench.kill()
    bench.db.execute("update t set n = 10 where a = 1")
    until(lambda: bench.feeds.catalog.job("f").status is Status.FAILED)
    (table,) = bench.feeds.catalog.tables(bench.feeds.catalog.job("f").id)
    assert table.state is TableState.FAILED and "t" in str(table.error)
    bench.feeds.execute("ALTER CHANGEFEED f RESCAN t")
    bench.feeds.sync("f")
    bench.db.execute("update t set n = 11 where a = 1")
    bench.feeds.sync("f")
    assert (row(1, 10, "a"), row(1, 11, "a")) in bench.changes()


def test_show_tables_says_which_way_a_table_has(bench: Bench) -> None:
    def shown() -> Any:
        answer = bench.feeds.execute("SHOW TABLES FROM shop")
        return dict(zip(answer.columns, answer.rows[0], strict=True))["replica_identity"]

    before = shown()
    bench.create()
    assert shown() == f"{before}, row images"


def test_a_table_that_logs_whole_rows_needs_no_store(bench: Bench) -> None:
    bench.db.execute("alter table t replica identity full")
    bench.create()
    assert store_status(bench.stores, TABLE).state is StoreState.NOT_NEEDED
    bench.db.execute("update t set n = 10 where a = 1")
    bench.feeds.sync("f")
    assert (row(1, 1, "a"), row(1, 10, "a")) in bench.changes()


def test_a_store_goes_with_its_feed(bench: Bench) -> None:
    bench.db.execute("create table other (a int primary key)")
    bench.feeds.execute(f"CREATE CHANGEFEED o FOR other INTO 'file://{bench.folder}2'")
    bench.create()
    assert store_status(bench.stores, TABLE).state is StoreState.LIVE
    bench.feeds.execute("DROP CHANGEFEED f")
    until(lambda: not store_folder(bench.stores, TABLE).exists())
    bench.db.execute("update t set n = 10 where a = 1; insert into other values (1)")
    bench.feeds.sync("o")


def test_a_store_beyond_its_limit_is_given_up(bench: Bench) -> None:
    bench.feeds.execute(
        f"CREATE CHANGEFEED f FOR t INTO 'file://{bench.folder}' WITH row_images = 'store', "
        "row_images_max_disk = '10KiB', diff, key_in_value"
    )
    until(lambda: store_status(bench.stores, TABLE).state is StoreState.BROKEN)
    assert "row_images_max_disk" in store_status(bench.stores, TABLE).reason
    bench.db.execute("update t set n = 10 where a = 1")
    until(lambda: bench.feeds.catalog.job("f").status is Status.FAILED)
