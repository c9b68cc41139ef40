"""Feeds when something breaks: nothing is lost, order stays, and the feed says what is wrong.

Faults that random ones (tests/nemesis) would seldom hit at the right place are put there.
"""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from changefeed.catalog import Catalog, DesiredStatus, Job, Status
from changefeed.core.engines import EngineOption
from changefeed.core.errors import ChangefeedError
from changefeed.core.faults import VARIABLE
from changefeed.core.timings import Timings
from changefeed.node.node import Node
from changefeed.spark.session import NodeSpark
from tests.conftest import PostgresFactory
from tests.e2e.feeds import Feeds, running
from tests.e2e.shop import Shop, feeds, shop
from tests.helpers.duckdb_file import opened
from tests.helpers.lake import Lake
from tests.helpers.waiting import until
from tests.nemesis.ledger import Cause
from tests.nemesis.service import Service
from tests.services.kafka import KafkaBroker
from tests.services.postgres import Database

__all__ = ["feeds", "shop"]
pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.postgres]


def job_of(feeds: Feeds, name: str = "f") -> Job:
    return feeds.catalog.job(name)


def until_status(feeds: Feeds, status: Status, name: str = "f") -> Job:
    """Wait for a status; the job then."""
    until(lambda: job_of(feeds, name).status is status, f"{name} is {status}")
    return job_of(feeds, name)


def scanned(feeds: Feeds, shop: Shop, name: str = "f") -> None:
    """Wait for the initial scan: from then on no version may be missing."""
    feeds.sync(name)
    shop.ledger.scanned()


# ---------------------------------------------------------------------------- crashes


@pytest.mark.parametrize(
    "place",
    [
        "capture.before_append",
        *(
            pytest.param(place, marks=pytest.mark.extended)
            for place in ("capture.before_acknowledge", "capture.after_acknowledge")
        ),
    ],
)
def test_capture_dies_again_and_again(
    feeds: Feeds, shop: Shop, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    # The node has read its own environment already: only captures are armed.
    monkeypatch.setenv(VARIABLE, f"{place}@3:kill")
    shop.create(feeds)
    lives: set[int] = set()

    def died_often() -> bool:
        shop.write()
        pid = feeds.node.source_runtime("shop").capture_pid
        if pid is not None:
            lives.add(pid)
        return len(lives) >= 3

    until(died_often, "three captures")
    monkeypatch.delenv(VARIABLE)
    scanned(feeds, shop)
    shop.write(2)
    feeds.sync("f")
    shop.check()


@pytest.mark.extended
def test_a_capture_that_hangs_shows_in_its_feeds(
    shop: Shop, spark_engine: NodeSpark, tmp_path: Path
) -> None:
    with running(tmp_path / "state", spark_engine, timings=Timings(silent=3.0)) as feeds:
        feeds.connect(shop=shop.db.uri)
        shop.create(feeds)
        feeds.sync("f")
        pid = feeds.node.source_runtime("shop").capture_pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        try:
            says = "running: the change log of shop has not grown since "
            until(lambda: job_of(feeds).reason.startswith(says), "SHOW says so")
        finally:
            os.kill(pid, signal.SIGCONT)
        until(lambda: job_of(feeds).reason == "running", "it goes on")


def test_node_dies_at_every_place(shop: Shop, tmp_path: Path) -> None:
    service = Service(tmp_path / "state")
    try:
        service.execute(f"CREATE EXTERNAL CONNECTION shop AS '{shop.db.uri}'")
        shop.create(service)
        for place in (
            "scan.after_snapshot",
            "scan.table_saved",
            "runner.before_write@2",
            "runner.after_commit@2",
            "runner.after_save@4",
        ):
            service.start(f"{place}:kill" if "@" in place else f"{place}@1:kill")
            deadline = time.monotonic() + 120
            while service.running:
                assert time.monotonic() < deadline, f"{place} was not reached"
                shop.write()
                time.sleep(0.2)
            assert service.exit_status == -9, place
        service.start()
        service.sync("f")
        shop.ledger.scanned()
        shop.write(2)
        service.sync("f")
        shop.check()
    finally:
        print(service.last_words())
        service.close()


def test_node_dies_while_a_feed_follows_a_rename(tmp_path: Path, postgres: Database) -> None:
    """Before the new name is saved, and after; and the capture before the log has the rename."""
    service, target = Service(tmp_path / "state"), tmp_path / "shop.duckdb"
    postgres.execute("create table t (id int primary key, v text); insert into t values (0, 't')")
    names = ("t", "u", "w", "t")
    try:
        service.execute(f"CREATE EXTERNAL CONNECTION shop AS '{postgres.uri}'")
        service.execute(f"CREATE CHANGEFEED f FOR shop.public.t INTO 'duckdb://{target}'")
        service.start()
        service.sync("f")
        service.stop()
        points = ("runner.after_rename@1:kill", "runner.after_commit@1:kill", "")
        for number, (old, new, point) in enumerate(zip(names, names[1:], points, strict=False), 1):
            postgres.execute(f"insert into {old} values ({number}, '{old}')")
            postgres.execute(f"alter table {old} rename to {new}")
            postgres.execute(f"insert into {new} values (-{number}, '{new}')")
            postgres.execute(f"delete from {new} where id = {number - 1}")
            if point:
                service.start(point)
                until(lambda: not service.running, point)
                assert service.exit_status == -9, point
            service.start()
            service.sync("f")
            service.stop()
        with closing(Catalog.open(str(tmp_path / "state"))) as catalog:
            (table,) = catalog.tables(catalog.job("f").id)
            assert (table.table.name, table.error, table.original) == ("t", None, None)
    finally:
        print(service.last_words())
        service.close()
    with opened(target, read_only=True) as connection:
        found = connection.execute("SELECT id, v FROM t ORDER BY id").fetchall()
    assert found == [(-3, "t"), (-2, "w"), (-1, "u"), (3, "w")]


@pytest.mark.parametrize(
    ("more", "places", "rows"),
    [
        ("", ("scan.before_end", "scan.after_end"), 0),
        pytest.param(
            ", initial_scan = 'only'",
            ("scan.after_end", "scan.placed", "scan.placed"),
            1,
            marks=pytest.mark.extended,
        ),
    ],
    ids=("of the same instant", "of others, before the first row"),
)
def test_a_scan_into_a_history_that_died_before_it_was_saved_comes_once(
    shop: Shop, tmp_path: Path, more: str, places: tuple[str, ...], rows: int
) -> None:
    """``rows`` are committed before each of the scans that follow."""
    service, target = Service(tmp_path / "state"), tmp_path / "shop.duckdb"
    try:
        service.execute(f"CREATE EXTERNAL CONNECTION shop AS '{shop.db.uri}'")
        made = f"CREATE CHANGEFEED f FOR t INTO 'duckdb://{target}' WITH history = 'append'{more}"
        service.execute(made)
        for place in places:
            service.start(f"{place}@1:kill")
            until(lambda: not service.running, place)
            assert service.exit_status == -9, place
            for _ in range(rows):
                shop.db.execute("insert into t select max(id) + 1, 0, 'new' from t")
        service.start()
        ended = (Status.RUNNING, Status.SUCCEEDED)
        until(lambda: service.job("f").status in ended, "the scan is done")
    finally:
        print(service.last_words())
        service.close()
    with opened(target, read_only=True) as connection:
        found = connection.execute("SELECT _operation, id FROM t ORDER BY id").fetchall()
    assert found == [("READ", i) for i in range(1, 11 + rows * len(places))]


@pytest.mark.extended
def test_a_scan_into_a_lake_dies_at_every_place(
    postgres: Database, tmp_path: Path, spark_engine: NodeSpark
) -> None:
    """By Spark, in several commits. What was committed and not saved comes again, and is there
    once; between two scans rows change that are there, and that are not."""
    postgres.execute(
        "create table t (id int primary key, v int, b text); insert into t"
        " select i, 0, repeat('x', 200) from generate_series(1, 2000) i; analyze t"
    )
    uri = f"delta://{tmp_path}/lake"
    flags = ("--master", "local[1]", "--scan-part-bytes", "8192")
    service = Service(tmp_path / "state", flags, EngineOption.SPARK)
    try:
        service.execute(f"CREATE EXTERNAL CONNECTION shop AS '{postgres.uri}'")
        service.execute(f"CREATE CHANGEFEED f FOR shop.public.t INTO '{uri}'")
        places = ("committed@3", "before_end@1", "after_end@1")
        for number, place in enumerate(places, 1):
            service.start(f"scan.{place}:kill")
            until(lambda: not service.running, place)
            assert service.exit_status == -9, place
            postgres.execute(
                f"update t set v = {number} where id % 7 = {number};"
                f"delete from t where id % 11 = {number};"
                f"update t set id = -id where id % 13 = {number};"
                f"insert into t values ({10_000 + number}, {number}, 'new')"
            )
        service.start()
        service.sync("f")
        (table,) = service.catalog.tables(service.job("f").id)
        assert table.scan_rows <= 3000, "the last scan read what the first had left"
    finally:
        print(service.last_words())
        service.close()
    columns = "id, v, b"
    copy = Lake(spark_engine, uri).query(f"select {columns} from {{t}} order by id")
    assert copy == [tuple(row) for row in postgres.execute(f"select {columns} from t order by id")]


# ---------------------------------------------------------------------------- the source


def drop_slot(db: Database, make_anew: bool) -> None:
    """Somebody drops our slot; maybe makes another of the name."""
    [slot] = db.slots()
    deadline = time.monotonic() + 60
    while True:
        db.execute("select pg_terminate_backend(active_pid) from pg_replication_slots where active")
        try:
            db.execute("select pg_drop_replication_slot(%s)", [slot])
            break
        except psycopg.errors.ObjectInUse:
            assert time.monotonic() < deadline, "the slot stays in use"
    if make_anew:
        db.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", [slot])


@pytest.mark.parametrize(
    "trouble",
    [
        "dropped",
        *(
            pytest.param(word, marks=pytest.mark.extended)
            for word in ("dropped while stopped", "recreated")
        ),
    ],
)
def test_slot_is_lost(feeds: Feeds, shop: Shop, trouble: str) -> None:
    shop.create(feeds)
    scanned(feeds, shop)
    if trouble != "dropped":
        feeds.close()
    shop.db.execute("insert into t values (5000, 0, 'before')")
    drop_slot(shop.db, make_anew=trouble == "recreated")
    shop.db.execute("insert into t values (6000, 0, 'after')")
    if trouble != "dropped":
        feeds.open()
    job = until_status(feeds, Status.FAILED)
    assert job.error_code == ("CF2103" if trouble == "recreated" else "CF2102")
    assert "RESCAN" in (job.hint or "")
    assert "[6000]" not in shop.keys("f", "t")
    # It cannot be talked into a gap.
    feeds.execute("RESUME CHANGEFEED f")
    until_status(feeds, Status.FAILED)
    assert "[6000]" not in shop.keys("f", "t")
    feeds.execute("DROP CHANGEFEED f")
    until(lambda: not shop.db.slots(), "the slot goes with the last feed")
    shop.create(feeds, "g")
    feeds.sync("g")
    assert {"[5000]", "[6000]"} <= shop.keys("g", "t")


def test_source_is_down(
    own_postgres_factory: PostgresFactory, tmp_path: Path, spark_engine: NodeSpark
) -> None:
    server = own_postgres_factory()
    with server.database() as db, running(tmp_path / "state", spark_engine) as feeds:
        shop = Shop(db, tmp_path)
        feeds.connect(shop=db.uri)
        server.stop()
        with pytest.raises(ChangefeedError) as refused:
            shop.create(feeds)
        assert refused.value.code.number == "CF2001"
        assert not feeds.catalog.jobs()
        server.start()
        shop.create(feeds)
        scanned(feeds, shop)

        server.kill()
        job = until_status(feeds, Status.RETRYING)
        assert job.reason.startswith("source: ")
        server.start()
        shop.write(2)
        feeds.sync("f")
        until_status(feeds, Status.RUNNING)

        server.stop()
        feeds.close()
        feeds.open()
        until_status(feeds, Status.RETRYING)
        server.start()
        shop.write()
        feeds.sync("f")
        shop.check()
        feeds.execute("DROP CHANGEFEED f")
        until(lambda: not db.slots(), "the slot goes")


# ---------------------------------------------------------------------------- scans


def test_resolved_waits_for_a_backfill(feeds: Feeds, shop: Shop) -> None:
    shop.create(feeds)
    scanned(feeds, shop)
    with shop.db.connect(autocommit=False) as other:
        # A transaction that stays open holds up the snapshot of the backfill.
        other.execute("insert into u values (2, 2, 'held')")
        shop.db.execute("alter table t add column c int default 7")
        shop.record_as("t", Cause.DDL)
        shop.write()
        until(lambda: shop.with_column("c"), "the change is seen")
        shop.write()
        newest = shop.ledger.states["u"][-1]["[1]"]["v"]
        until(lambda: newest in shop.values("u", "v"), "another table flows meanwhile")
        changed = min(m.at for m in shop.with_column("c") if m.at)
        assert all(m.resolved < changed for m in shop.messages() if m.resolved)
        # Nothing waits for the snapshot.
        assert feeds.execute("PAUSE CHANGEFEED f").rows[0][2] == "paused"
        feeds.execute("RESUME CHANGEFEED f")
        other.commit()
    shop.record("u")
    feeds.sync("f")
    shop.check()
    last = {m.key: m.after for m in shop.messages() if m.is_row and m.topic == "t"}
    assert all("c" in row for row in last.values() if row)


def test_a_table_joins_a_quiet_feed(feeds: Feeds, shop: Shop) -> None:
    shop.create(feeds, tables="t")
    scanned(feeds, shop)
    resolved = len([m for m in shop.messages() if m.resolved])
    until(lambda: len([m for m in shop.messages() if m.resolved]) > resolved, "resolved goes on")
    feeds.execute("ALTER CHANGEFEED f ADD u WITH initial_scan = 'yes'")
    feeds.sync("f")
    shop.write()
    feeds.sync("f")
    shop.check()


# ---------------------------------------------------------------------------- sinks


def test_folder_goes_away(feeds: Feeds, shop: Shop) -> None:
    shop.create(feeds)
    shop.create(feeds, "other")
    scanned(feeds, shop)
    folder, aside = shop.out / "f", shop.out / "aside"
    folder.rename(aside)
    folder.symlink_to(folder)  # as a mount that comes back some time: too many levels of links
    shop.write()
    job = until_status(feeds, Status.RETRYING)
    assert job.error_code == "CF5001"
    assert re.search(r"; attempt \d+, next try at \d\d:\d\d:\d\d UTC$", job.reason)
    feeds.sync("other")  # one dead sink holds up no other feed
    folder.unlink()
    aside.rename(folder)
    shop.write()
    feeds.sync("f")
    until_status(feeds, Status.RUNNING)

    folder.rename(aside)
    folder.write_text("in the way")  # as missing rights: no repetition mends it
    shop.write()
    job = until_status(feeds, Status.FAILED)
    assert job.error_code == "CF5002"
    assert "RESUME" in (job.hint or "")
    folder.unlink()
    aside.rename(folder)
    feeds.execute("RESUME CHANGEFEED f")
    for name in ("f", "other"):
        feeds.sync(name)
        shop.check(name)


@pytest.mark.extended
@pytest.mark.kafka
def test_broker_is_away_and_a_row_is_too_large(
    feeds: Feeds, shop: Shop, own_kafka: KafkaBroker
) -> None:
    feeds.execute(f"CREATE CHANGEFEED bus FOR t, u INTO '{own_kafka.uri}' WITH updated, resolved")
    shop.create(feeds)
    for name in ("bus", "f"):
        feeds.sync(name)
    feeds.execute("PAUSE CHANGEFEED bus")
    own_kafka.kill()
    feeds.execute("RESUME CHANGEFEED bus")
    job = until_status(feeds, Status.RETRYING, "bus")
    assert "next try at " in job.reason
    assert job.error_code == "CF5001"
    shop.db.execute("insert into t values (7000, 0, 'while away')")
    feeds.sync("f")  # one dead sink holds up no other feed
    own_kafka.start()
    feeds.sync("bus")
    assert b"[7000]" in {r.key for r in own_kafka.messages("t")}

    shop.db.execute("update u set b = repeat('x', 3000000)")
    shop.db.execute("insert into t values (7001, 0, 'goes on')")

    def states() -> dict[str, str]:
        tables = feeds.catalog.tables(job.id)
        return {t.table.name: t.state.value for t in tables}

    until(lambda: states() == {"t": "running", "u": "failed"}, "only u fails")
    until(lambda: b"[7001]" in {r.key for r in own_kafka.messages("t")}, "t goes on")
    [failed] = [t for t in feeds.catalog.tables(job.id) if t.table.name == "u"]
    assert failed.error_code == "CF5006"
    assert job_of(feeds, "bus").status is Status.RUNNING


# ---------------------------------------------------------------------------- statements


def test_a_backlog_with_truncations_keeps_its_order(feeds: Feeds, shop: Shop) -> None:
    shop.create(feeds)
    scanned(feeds, shop)
    feeds.execute("PAUSE CHANGEFEED f")
    for _ in range(2):
        shop.write()
        shop.db.execute("begin; delete from t where id = 1; truncate t; commit")
        shop.record_as("t", Cause.TRUNCATE)
        shop.db.execute("insert into t select i, 900 + i, 'anew' from generate_series(1, 3) i")
        shop.record("t")
    feeds.execute("RESUME CHANGEFEED f")
    feeds.sync("f")
    # One slice of the log: its files must sort as they were written.
    shop.check()
    for number in (3, 4):
        shop.db.execute(f"begin; truncate t; insert into t values ({number}, {number}, ''); commit")
        shop.record_as("t", Cause.TRUNCATE)
        feeds.sync("f")
    shop.check()
    assert len({m.truncated for m in shop.messages() if m.truncated and m.topic == "t"}) == 4


def test_resume_is_not_lost(feeds: Feeds, shop: Shop) -> None:
    shop.create(feeds)
    scanned(feeds, shop)
    feeds.execute("PAUSE CHANGEFEED f")
    # RESUME says what is wanted while the node still writes what it has just done.
    feeds.catalog.request(job_of(feeds).id, DesiredStatus.RUNNING)
    until_status(feeds, Status.RUNNING)
    for _ in range(5):
        feeds.execute("PAUSE CHANGEFEED f")
        feeds.execute("RESUME CHANGEFEED f")
    shop.write()
    feeds.sync("f")
    shop.check()


# ---------------------------------------------------------------------------- two nodes


def test_two_nodes_on_one_state(feeds: Feeds) -> None:
    second = Node(feeds.catalog, str(feeds.state))
    assert not second.start()
    command = [sys.executable, "-m", "shell", "start", "--state", str(feeds.state)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ})
    assert run.returncode == 3
    assert "another node" in run.stderr


def test_a_lost_lease_stops_the_feed(feeds: Feeds, shop: Shop) -> None:
    shop.create(feeds)
    scanned(feeds, shop)
    until_status(feeds, Status.RUNNING)

    def threads() -> list[str]:
        return [t.name for t in threading.enumerate() if t.name == "feed-f"]

    assert threads()

    def change(what: str, seconds: float) -> None:
        """Change the lease, which ends in so many seconds."""
        with closing(sqlite3.connect(feeds.state / "state.db", timeout=30)) as state, state:
            state.execute(f"update job_lease set {what}", [time.time_ns() + int(seconds * 10**9)])

    change("node = 'thief', token = token + 1, expires = ?", 60)
    until(lambda: not threads(), "the feed stops")
    shop.write()
    assert feeds.catalog.lease_holder(job_of(feeds).id) == "thief"
    change("expires = ?", 0)
    until(threads, "the lease ends and the node takes the feed again")
    feeds.sync("f")
    shop.check()
