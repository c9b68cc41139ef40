"""Feeds from a real PostgreSQL into files, judged by the validators a consumer would want."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from changefeed.api import Session
from changefeed.app import Application
from changefeed.core.errors import ChangefeedError
from changefeed.spark.session import NodeSpark
from changefeed_testing.sinks.messages import Message
from changefeed_testing.sinks.readers import file_bytes, read_files, visible_files
from tests.e2e.feeds import EITHER_ENGINE, Feeds, consumed, rebuilt, running
from tests.helpers.waiting import until
from tests.services.postgres import Database

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.postgres]


class Bench:
    """One database, one state, one folder per feed."""

    def __init__(self, feeds: Feeds, db: Database, folder: Path) -> None:
        self.feeds = feeds
        self.db = db
        self.folder = folder
        feeds.connect(shop=db.uri)

    def create(self, name: str, targets: str, options: str = "") -> None:
        """A feed into its own folder, with timestamps and resolved."""
        more = f", {options}" if options else ""
        self.feeds.execute(
            f"CREATE CHANGEFEED {name} FOR {targets} INTO 'file://{self.folder / name}'"
            f" WITH updated, resolved = '200ms'{more}"
        )

    def messages(self, name: str, *topics: str) -> list[Message]:
        return consumed(self.folder / name, *(topics or ("t",)))

    def table(self, name: str, topic: str = "t") -> dict[str, object]:
        found = self.messages(name, topic)
        return rebuilt(m for m in found if not m.is_row or m.topic == topic)

    def status(self, name: str) -> str:
        return self.feeds.catalog.job(name).status.value


@pytest.fixture
def bench(tmp_path: Path, postgres: Database, spark_engine: NodeSpark) -> Iterator[Bench]:
    postgres.execute(
        "create table t (a int primary key, b text); alter table t replica identity full;"
        "insert into t select i, 'row ' || i from generate_series(1, 10) i"
    )
    with running(tmp_path / "state", spark_engine) as feeds:
        yield Bench(feeds, postgres, tmp_path / "out")


def truth(db: Database, sql: str = "select a, b from t") -> dict[str, object]:
    return {f"[{a}]": {"a": a, "b": b} for a, b in db.execute(sql)}


@EITHER_ENGINE
def test_scan_then_every_change(bench: Bench) -> None:
    bench.create("f", "t", "diff")
    bench.feeds.sync("f")
    bench.db.execute("update t set b = 'new' where a <= 3")
    bench.db.execute("delete from t where a = 4")
    bench.db.execute("update t set a = 100 where a = 5")
    bench.db.execute("insert into t values (200, 'x \"quoted\" \\ \n line')")
    bench.feeds.sync("f")
    assert bench.table("f") == truth(bench.db)
    changes = [m for m in bench.messages("f") if m.key == "[1]"]
    assert [m.after and m.after["b"] for m in changes] == ["row 1", "new"]
    assert changes[1].before == {"a": 1, "b": "row 1"}
    moved = [m for m in bench.messages("f") if m.key in ("[5]", "[100]")]
    assert [(m.key, m.after is None) for m in moved][1:] == [("[5]", True), ("[100]", False)]


def test_several_writes_in_a_transaction_are_one_message(bench: Bench) -> None:
    bench.create("f", "t", "diff, initial_scan = 'no'")
    with bench.db.connect(autocommit=False) as connection:
        connection.execute("update t set b = 'first' where a = 1")
        connection.execute("update t set b = 'second' where a = 1")
        connection.execute("insert into t values (50, 'gone')")
        connection.execute("delete from t where a = 50")
    bench.feeds.sync("f")
    rows = [m for m in bench.messages("f") if m.is_row]
    assert [m.after for m in rows if m.key == "[1]"] == [{"a": 1, "b": "second"}]
    assert [m.before for m in rows if m.key == "[1]"] == [{"a": 1, "b": "row 1"}]
    assert "[50]" not in [m.key for m in rows]


@EITHER_ENGINE
def test_truncate_is_a_mark(bench: Bench) -> None:
    bench.create("f", "t")
    bench.feeds.sync("f")
    bench.db.execute(
        "begin; insert into t values (60, 'x'); truncate t; insert into t values (61, 'y'); commit"
    )
    bench.feeds.sync("f")
    assert {m.table for m in bench.messages("f") if m.truncated is not None} == {"shop.public.t"}
    assert [m.after for m in bench.messages("f") if m.key == "[61]"] == [{"a": 61, "b": "y"}]
    # Nobody ever saw the row that the transaction itself removed.
    assert not [m for m in bench.messages("f") if m.key == "[60]"]


@EITHER_ENGINE
def test_a_column_with_a_default_is_backfilled(bench: Bench) -> None:
    bench.create("f", "t")
    bench.feeds.sync("f")
    bench.db.execute("alter table t add column c int default 7")
    bench.db.execute("update t set b = 'after' where a = 1")
    bench.db.execute("insert into t values (70, 'z', 8)")
    bench.feeds.sync("f")
    want = {
        f"[{a}]": {"a": a, "b": b, "c": c} for a, b, c in bench.db.execute("select a, b, c from t")
    }
    until(lambda: bench.table("f") == want)


def test_a_column_that_comes_while_a_backfill_waits_for_its_image(bench: Bench) -> None:
    """A transaction that stays open holds up the image: it shows columns that came meanwhile."""
    bench.create("f", "t")
    bench.feeds.sync("f")
    waiting = "select 1 from pg_stat_activity where query like 'CREATE_REPLICATION_SLOT%'"
    with bench.db.connect(autocommit=False) as held:
        held.execute("select pg_current_xact_id()")
        bench.db.execute("alter table t add column c int default 7")
        bench.db.execute("update t set b = 'after' where a = 1")
        until(lambda: bench.db.execute(f"{waiting} and wait_event = 'transactionid'"))
        bench.db.execute("alter table t add column d int default 8")
        bench.db.execute("update t set b = 'later' where a = 2")
        held.commit()
    bench.feeds.sync("f")
    rows = bench.db.execute("select a, b, c, d from t")
    assert {row[2:] for row in rows} == {(7, 8)}
    want = {f"[{a}]": {"a": a, "b": b, "c": c, "d": d} for a, b, c, d in rows}
    assert bench.table("f") == want


def test_schema_change_policy_stop(bench: Bench) -> None:
    bench.create("f", "t", "schema_change_policy = 'stop', schema_change_events = 'column_changes'")
    bench.feeds.sync("f")
    bench.db.execute(
        "update t set b = 'last' where a = 1; alter table t add column c int;"
        " insert into t values (80, 'never', 1)"
    )
    until(lambda: bench.status("f") == "failed")
    job = bench.feeds.catalog.job("f")
    assert job.error_code == "CF4101"
    assert "c" in (job.error or "")
    assert "[80]" not in bench.table("f")


def test_many_feeds_read_the_source_once_and_encode_once(bench: Bench) -> None:
    for number in range(4):
        bench.create(f"f{number}", "t", "initial_scan = 'no'")
    for number in range(4):
        bench.feeds.sync(f"f{number}")
    assert len(bench.db.slots()) == 1
    for number in range(20):
        bench.db.execute("insert into t values (%s, 'shared')", [1000 + number])
    for number in range(4):
        bench.feeds.sync(f"f{number}")
        assert len(bench.table(f"f{number}")) == 20
    assert bench.feeds.node.shared.hits > 0


def test_pause_and_resume_over_a_restart_of_the_node(bench: Bench) -> None:
    bench.create("f", "t")
    bench.feeds.sync("f")
    bench.feeds.execute("PAUSE CHANGEFEED f")
    assert bench.status("f") == "paused"
    bench.db.execute("update t set b = 'while paused'")
    bench.feeds.close()
    bench.db.execute("insert into t values (90, 'while stopped')")
    bench.feeds.open()
    assert bench.status("f") == "paused"
    bench.feeds.execute("RESUME CHANGEFEED f")
    bench.feeds.sync("f")
    assert bench.table("f") == truth(bench.db)


def test_cursor_in_the_past_and_end_time(bench: Bench) -> None:
    bench.create("f", "t", "initial_scan = 'no'")
    bench.db.execute("insert into t values (301, 'before')")
    bench.feeds.sync("f")
    cursor = bench.feeds.catalog.job("f").high_water
    bench.db.execute("insert into t values (302, 'after')")
    bench.feeds.sync("f")
    bench.create("late", "t", f"cursor = '{cursor}', end_time = '3s'")
    until(lambda: bench.status("late") == "succeeded")
    assert set(bench.table("late")) == {"[302]"}


def test_a_cursor_before_the_log_is_refused(bench: Bench) -> None:
    bench.create("f", "t")
    bench.feeds.sync("f")
    try:
        bench.create("g", "t", "cursor = '-1h'")
    except ChangefeedError as error:
        assert error.code.number == "CF3002"
        return
    until(lambda: bench.status("g") == "failed")
    assert bench.feeds.catalog.job("g").error_code == "CF3002"


def test_scan_only_ends(bench: Bench) -> None:
    bench.feeds.execute(
        f"CREATE CHANGEFEED f FOR t INTO 'file://{bench.folder / 'f'}' WITH initial_scan = 'only'"
    )
    until(lambda: bench.status("f") == "succeeded")
    found = read_files(bench.folder / "f", ("t",))
    assert {m.key: m.after for m in found if m.is_row} == truth(bench.db)
    until(lambda: not bench.db.slots())


@EITHER_ENGINE
def test_alter_while_running(bench: Bench) -> None:
    bench.db.execute("create table u (a int primary key, b text); insert into u values (1, 'u')")
    bench.create("f", "t")
    bench.feeds.sync("f")
    bench.feeds.execute("ALTER CHANGEFEED f ADD u WITH initial_scan = 'yes'")
    bench.db.execute("insert into u values (2, 'uu'); insert into t values (400, 'x')")
    bench.feeds.sync("f")
    assert set(bench.table("f", "u")) == {"[1]", "[2]"}
    bench.feeds.execute("ALTER CHANGEFEED f DROP u")
    bench.db.execute("insert into u values (3, 'unseen'); insert into t values (401, 'y')")
    bench.feeds.sync("f")
    found = read_files(bench.folder / "f", ("t", "u"))
    assert "[3]" not in {m.key for m in found if m.topic == "u"}
    assert "[401]" in {m.key for m in found if m.topic == "t"}
    # An answer means that the feed goes by it.
    for number, options in enumerate(("SET diff", "UNSET diff", "SET diff"), 500):
        answer = bench.feeds.execute(f"ALTER CHANGEFEED f {options}")
        assert not answer.notices
        bench.db.execute(f"insert into t values ({number}, '{options}')")
        bench.feeds.sync("f")
        lines = [
            line
            for path in visible_files(bench.folder / "f")
            for line in file_bytes(path).splitlines()
            if f'"a": {number},'.encode() in line
        ]
        assert [b'"before"' in line for line in lines] == [options == "SET diff"]


def test_a_dropped_table_fails_alone(bench: Bench) -> None:
    bench.db.execute("create table u (a int primary key, b text)")
    bench.create("f", "t, u")
    bench.feeds.sync("f")
    bench.db.execute("drop table u")
    bench.feeds.close()
    bench.feeds.open()
    bench.db.execute("insert into t values (500, 'goes on')")
    until(lambda: "[500]" in bench.table("f"))

    def states() -> dict[str, str]:
        return {t.table.name: t.state.value for t in bench.feeds.catalog.tables(1)}

    until(lambda: states() == {"t": "running", "u": "failed"})


@EITHER_ENGINE
@pytest.mark.parametrize("victim", ["capture", "jvm"])
def test_kill_a_process_in_the_middle(bench: Bench, victim: str) -> None:
    bench.create("f", "t")
    bench.feeds.sync("f")
    for round_ in range(3):
        bench.db.execute(
            "insert into t select i, 'r' from generate_series(%s::int, %s::int) i",
            [10_000 * (round_ + 1), 10_000 * (round_ + 1) + 5_999],
        )
        source_runtime = bench.feeds.node.source_runtime("shop")
        pid = source_runtime.capture_pid if victim == "capture" else bench.feeds.node.spark.pid
        if pid is not None:
            # One that the round before killed may be gone by now.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        bench.db.execute("update t set b = 'updated' where a = %s", [round_ + 1])
    bench.feeds.sync("f", "180s")
    assert bench.table("f") == truth(bench.db)


def test_one_partition(bench: Bench) -> None:
    """Rows that move out of it are deleted, rows that move in are new; others are not told."""
    bench.db.execute(
        """
        create table sales (id int, day date, v text, primary key (id, day))
            partition by range (day);
        create table sales_1 partition of sales for values from ('2026-01-01') to ('2026-02-01');
        create table sales_2 partition of sales for values from ('2026-02-01') to ('2026-03-01');
        insert into sales select i, date '2026-01-01' + i, 'v' from generate_series(0, 50) i;
        """
    )
    bench.create("whole", "sales AS every")
    bench.create("part", "sales PARTITION sales_2 AS one")
    bench.feeds.sync("part")
    bench.db.execute("update sales set v = 'new' where id in (3, 40)")
    bench.db.execute("update sales set day = '2026-01-30' where id = 41")
    bench.db.execute("update sales set day = '2026-02-03' where id = 4")
    bench.db.execute("delete from sales where id in (5, 42)")
    bench.db.execute("insert into sales values (100, '2026-02-28', 'x'), (101, '2026-01-28', 'x')")
    bench.feeds.sync("part")
    bench.feeds.sync("whole")

    def rows(table: str) -> dict[str, object]:
        found = bench.db.execute(f"select id, day::text, v from {table}")
        return {f'[{i}, "{day}"]': {"id": i, "day": day, "v": v} for i, day, v in found}

    assert bench.table("part", "one") == rows("sales_2")
    assert bench.table("whole", "every") == rows("sales")
    known = set(rows("sales_2")) | {'[41, "2026-02-11"]', '[42, "2026-02-12"]'}
    assert {m.key for m in bench.messages("part", "one") if m.is_row} == known
    shown = bench.feeds.execute("SHOW CREATE CHANGEFEED part").rows[0]
    assert "PARTITION sales_2" in str(shown)


def test_a_prompt_that_read_beside_a_node_reads_the_source_once_it_is_the_node(
    tmp_path: Path, postgres: Database
) -> None:
    """Rows for its terminal came from the log that the other node wrote."""
    postgres.execute("create table t (a int primary key); insert into t values (1)")
    first = Feeds(tmp_path / "state")
    with contextlib.ExitStack() as stack:
        stack.callback(first.close)
        first.connect(shop=postgres.uri)
        first.execute(f"CREATE CHANGEFEED f FOR t INTO 'file://{tmp_path}/out'")
        first.sync("f")
        prompt = stack.enter_context(Application(str(first.state)))
        assert not prompt.start_node()
        session = Session(client="prompt")
        shown = prompt.interpreter.execute("CREATE CHANGEFEED FOR t", session).stream
        assert shown is not None and next(shown)[1] == "[1]"
        first.node.stop()
        assert prompt.start_node()
        postgres.execute("insert into t values (2)")
        prompt.interpreter.execute("SYNC CHANGEFEED f TIMEOUT '120s'", session)
        assert {m.key for m in consumed(tmp_path / "out") if m.is_row} == {"[1]", "[2]"}
