"""ALTER CHANGEFEED .. RESCAN: tables are read again at one instant while the feed goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from changefeed.catalog import Status, TableState
from changefeed.core.errors import LOG_LOST, ChangefeedError
from changefeed.core.faults import armed
from changefeed.core.state import StateLayout
from changefeed.sources.postgres.snapshot import PostgresSnapshot
from changefeed.spark.session import NodeSpark
from changefeed_testing.sinks.readers import read_files
from tests.conftest import PostgresFactory
from tests.e2e.feeds import EITHER_ENGINE, Feeds, running
from tests.e2e.shop import Shop, feeds, shop, table_of
from tests.e2e.test_warehouse_feeds import Bench, IntoDuckDB, IntoPostgreSQL, bench
from tests.faults.test_feed_faults import drop_slot, until_status
from tests.helpers.duckdb_file import opened
from tests.helpers.waiting import until

__all__ = ["bench", "feeds", "shop"]
pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.postgres]


def tamper(bench: Bench, sql: str) -> None:
    """Change the target behind the feed's back."""
    if isinstance(bench, IntoDuckDB):
        # The feed's node holds the file open in this process.
        with opened(bench.path) as connection:
            connection.execute(sql)
    else:
        assert isinstance(bench, IntoPostgreSQL)
        import psycopg

        with psycopg.connect(bench.target, autocommit=True) as connection:
            connection.execute(sql.encode())


@pytest.mark.parametrize("options", ["WITH sequence_column = 'none'", ""])
def test_a_target_that_was_changed_is_put_right(bench: Bench, options: str) -> None:
    db, feeds = bench.source, bench.feeds
    db.execute("create table n (a int, b text); alter table n replica identity full")
    db.execute("insert into n values (1, 'x'), (1, 'x'), (null, null)")
    db.execute("create table other (a int primary key); insert into other values (1)")
    bench.options = options
    bench.create("t, n, other")
    feeds.sync("f")
    tamper(bench, "update shop.t set b = 'wrong' where a = 1")
    tamper(bench, "delete from shop.t where a = 2")
    tamper(bench, "insert into shop.t (a, b) values (99, 'invented')")
    tamper(bench, "insert into shop.n (a, b) values (1, 'x')")
    tamper(bench, "delete from shop.other")
    db.execute("update t set b = 'after' where a = 3; delete from t where a = 4")
    feeds.execute("ALTER CHANGEFEED f RESCAN t, n")
    feeds.sync("f")
    assert bench.same("t", "a, b") and bench.same("n", "a, b")
    assert not bench.read("select a from shop.other"), "a table that was not named stays"
    db.execute("update t set b = 'later' where a = 5; delete from t where a = 6")
    db.execute("insert into n values (2, 'y'); delete from n where a is null")
    feeds.sync("f")
    assert bench.same("t", "a, b") and bench.same("n", "a, b"), "the feed goes on"
    feeds.execute("PAUSE CHANGEFEED f")
    answer = feeds.execute("ALTER CHANGEFEED f RESCAN")
    assert answer.notices == ['changefeed "f" is paused: the rescan begins with RESUME']
    feeds.execute("RESUME CHANGEFEED f")
    feeds.sync("f")
    assert bench.same("other", "a")


def test_order_and_resolved_hold_while_tables_are_read_again(feeds: Feeds, shop: Shop) -> None:
    """Writes go on; the feed is paused, resumed and breaks in the middle of the rescan."""
    shop.create(feeds)
    feeds.sync("f")
    shop.ledger.scanned()
    with shop.writing():
        before = len(shop.messages())
        feeds.execute("ALTER CHANGEFEED f RESCAN t")
        feeds.execute("PAUSE CHANGEFEED f")
        feeds.execute("RESUME CHANGEFEED f")
        for place in ("scan.before_end", "scan.after_snapshot", "scan.table_saved"):
            with armed(f"{place}@1:error") as broke:
                feeds.execute("ALTER CHANGEFEED f RESCAN")
                until(broke)
        feeds.sync("f")
        assert len(shop.messages()) > before
    shop.write()
    feeds.sync("f")
    assert table_of(feeds, "t").rescanned == table_of(feeds, "t").rescan > 0
    shop.check()


@EITHER_ENGINE
def test_a_message_sink_gets_every_row_again(feeds: Feeds, shop: Shop) -> None:
    shop.create(feeds)
    feeds.sync("f")
    shop.db.execute("update t set v = 5 where id = 5; delete from t where id = 6")
    feeds.sync("f")
    answer = feeds.execute("ALTER CHANGEFEED f RESCAN t")
    assert any("is sent again" in notice for notice in answer.notices)
    feeds.sync("f")
    place = table_of(feeds, "t").scan_at
    again = [m for m in shop.messages() if m.is_row and m.topic == "t" and m.at == place]
    assert sorted(m.after["id"] for m in again if m.after) == [1, 2, 3, 4, 5, 7, 8, 9, 10]
    assert not [m for m in shop.messages() if m.is_row and m.topic == "u" and m.at == place]


@pytest.mark.parametrize(
    "trouble",
    [
        "dropped",
        *(pytest.param(word, marks=pytest.mark.extended) for word in ("recreated", "log damaged")),
    ],
)
def test_a_lost_source_goes_on_with_a_new_log(feeds: Feeds, shop: Shop, trouble: str) -> None:
    """A gap is skipped by a RESCAN alone, feed by feed."""
    shop.create(feeds)
    shop.create(feeds, "g", "u")
    feeds.sync("f")
    feeds.sync("g")
    feeds.execute("PAUSE CHANGEFEED g")
    if trouble == "log damaged":
        feeds.close()
        (StateLayout(feeds.state).log("shop") / "LEDGER").write_text("{}")
    else:
        drop_slot(shop.db, make_anew=trouble == "recreated")
    shop.db.execute("insert into t values (6000, 0, 'in the gap'); delete from t where id = 1")
    shop.db.execute("update u set v = 7")
    if trouble == "log damaged":
        feeds.open()
    job = until_status(feeds, Status.FAILED)
    assert job.error_code in LOG_LOST and "RESCAN" in (job.hint or "")
    answer = feeds.execute("ALTER CHANGEFEED f RESCAN")
    assert any("need a RESCAN, too: g" in notice for notice in answer.notices)
    feeds.sync("f")
    assert "[6000]" in shop.keys("f", "t")
    assert not feeds.catalog.source_state("shop").renewal
    shop.db.execute("insert into t values (6001, 0, 'afterwards')")
    feeds.sync("f")
    assert "[6001]" in shop.keys("f", "t")
    events = feeds.catalog.events(job.id, kinds=["notice"])
    assert {event.table for event in events} == {"shop.public.t", "shop.public.u"}, (
        "the gap is told"
    )
    slots = shop.db.slots()

    feeds.execute("RESUME CHANGEFEED g")
    assert until_status(feeds, Status.FAILED, "g").error_code == "CF3002", (
        "no feed is talked into it"
    )
    feeds.execute("ALTER CHANGEFEED g RESCAN")
    feeds.sync("g")
    assert {m.after["v"] for m in read_files(shop.out / "g", ["u"]) if m.after} == {1, 7}
    assert feeds.catalog.job("f").status is Status.RUNNING
    assert shop.db.slots() == slots, "one log, one slot: the rescan of g begins no other"


def test_another_server_is_followed_by_a_rescan(
    own_postgres_factory: PostgresFactory, tmp_path: Path, spark_engine: NodeSpark
) -> None:
    """Its positions are below those of the old one."""
    with own_postgres_factory().database() as old, own_postgres_factory().database() as new:
        shop = Shop(old, tmp_path)
        Shop(new, tmp_path)
        old.execute(
            "create table filler as select repeat(i::text, 100) from generate_series(1, 1e5) i"
        )
        with running(tmp_path / "state", spark_engine) as feeds:
            feeds.connect(shop=old.uri)
            shop.create(feeds)
            feeds.sync("f")
            last = table_of(feeds, "t").done_upto
            feeds.execute(f"ALTER EXTERNAL CONNECTION shop AS '{new.uri}'")
            new.execute("update t set v = 77 where id = 2; delete from t where id = 3")
            until_status(feeds, Status.FAILED)
            feeds.execute("ALTER CHANGEFEED f RESCAN")
            feeds.sync("f")
            new.execute("update t set v = 78 where id = 4")
            feeds.sync("f")
            assert {77, 78} <= shop.values("t", "v")
            place = table_of(feeds, "t").scan_at
            assert place and last and place > last, "time does not go back"


def test_a_failed_table_starts_again(feeds: Feeds, shop: Shop) -> None:
    """Another table has the name: RESCAN takes that one."""
    shop.create(feeds)
    feeds.sync("f")
    shop.db.execute(
        "drop table t; create table t (id int primary key, v bigint);"
        "insert into t values (7, 70), (8, 80)"
    )
    until(lambda: table_of(feeds, "t").state is TableState.FAILED)
    with pytest.raises(ChangefeedError, match="failed"):
        feeds.sync("f")
    feeds.execute("ALTER CHANGEFEED f RESCAN t")
    feeds.sync("f")
    shop.db.execute("insert into t values (9, 90); update u set v = 2")
    feeds.sync("f")
    assert table_of(feeds, "t").state is TableState.RUNNING
    # One that the feed has not come to yet would else stop after the statement.
    feeds.execute("PAUSE CHANGEFEED f")
    shop.db.execute("drop table u; create table u (id int primary key, v bigint)")
    shop.db.execute("insert into u values (7, 70)")
    answer = feeds.execute("ALTER CHANGEFEED f RESCAN u")
    assert any("table public.u was replaced" in notice for notice in answer.notices)
    feeds.execute("RESUME CHANGEFEED f")
    feeds.sync("f")
    assert "[7]" in shop.keys("f", "u")
    last = {m.key: m.after for m in read_files(shop.out / "f", ["t"]) if m.is_row}
    assert {last[f"[{key}]"] == {"id": key, "v": key * 10} for key in (7, 8, 9)} == {True}


def test_a_table_that_was_renamed_before_its_rescan_began_is_followed(
    feeds: Feeds, shop: Shop
) -> None:
    """The feed cannot follow by itself, because rows as of the old name may be out; RESCAN can."""
    shop.create(feeds)
    feeds.sync("f")
    feeds.execute("PAUSE CHANGEFEED f")
    feeds.execute("ALTER CHANGEFEED f RESCAN t")
    shop.db.execute("alter table t rename to elsewhere; insert into elsewhere values (11, 110)")
    feeds.execute("RESUME CHANGEFEED f")
    until(lambda: table_of(feeds, "t").state is TableState.FAILED)
    # The scan has looked for the table first, or the feed.
    said = {"CF1101": "does not exist", "CF2106": 'was renamed to "public.elsewhere"'}
    failed = table_of(feeds, "t")
    assert failed.error == f'table "public.t" {said[str(failed.error_code)]}'
    answer = feeds.execute("ALTER CHANGEFEED f RESCAN t")
    assert answer.notices[0] == (
        "table public.t was renamed: the feed goes on with it as public.elsewhere, and its target "
        "stays t"
    )
    shop.db.execute("insert into elsewhere values (12, 120)")
    feeds.sync("f")
    assert table_of(feeds, "elsewhere").state is TableState.RUNNING
    assert {110, 120} <= shop.values("t", "v"), "the target has the name that it had"
    created = str(feeds.execute("SHOW CREATE CHANGEFEED f").rows[0][1])
    assert "FOR public.elsewhere AS t" in created
    events = feeds.catalog.events(feeds.catalog.job("f").id, kinds=("altered",))
    assert any("shop.public.t is followed as shop.public.elsewhere" in e.text for e in events)


def test_a_renamed_table_of_a_query_is_not_followed_by_a_rescan(feeds: Feeds, shop: Shop) -> None:
    """It says what is to be done instead, and changes nothing."""
    feeds.execute(f"CREATE CHANGEFEED f INTO 'file://{shop.out / 'f'}' AS SELECT id, v FROM t")
    feeds.sync("f")
    shop.db.execute("alter table t rename to elsewhere; insert into elsewhere values (11, 110)")
    until(lambda: table_of(feeds, "t").state is TableState.FAILED)
    with pytest.raises(ChangefeedError, match="a CDC query does not follow"):
        feeds.execute("ALTER CHANGEFEED f RESCAN")
    assert table_of(feeds, "t").state is TableState.FAILED


def test_a_scan_that_waits_for_a_transaction_says_so(
    feeds: Feeds, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And names it, after ten seconds; here at once."""
    defaults = PostgresSnapshot.__init__.__kwdefaults__ or {}
    monkeypatch.setitem(defaults, "told_after_seconds", 0.2)
    shop.create(feeds)
    feeds.sync("f")
    with shop.db.connect(autocommit=False) as held:
        held.execute("insert into u values (99, 99, 'not yet')")
        feeds.execute("ALTER CHANGEFEED f RESCAN t")

        def waits() -> bool:
            reason = feeds.catalog.job("f").reason
            pid = f"pid {held.info.backend_pid} of postgres, open for "
            return reason.startswith(f"rescan: waits for the source's snapshot, for {pid}")

        until(waits, "the feed says what it waits for")
    feeds.sync("f")
    assert table_of(feeds, "t").state is TableState.RUNNING


def test_a_rescan_of_all_tables_leaves_out_one_that_is_gone(feeds: Feeds, shop: Shop) -> None:
    shop.create(feeds)
    feeds.sync("f")
    shop.db.execute("drop table u")
    until(lambda: table_of(feeds, "u").state is TableState.FAILED)
    with pytest.raises(ChangefeedError, match=r"public\.u\" does not exist") as caught:
        feeds.execute("ALTER CHANGEFEED f RESCAN u")
    assert caught.value.hint == "ALTER CHANGEFEED .. DROP public.u removes it."
    answer = feeds.execute("ALTER CHANGEFEED f RESCAN")
    assert answer.notices[0] == (
        "table public.u does not exist and is left out: ALTER CHANGEFEED .. DROP public.u removes "
        "it from the feed"
    )
    shop.db.execute("insert into t values (11, 110)")
    until(lambda: 110 in shop.values("t", "v"), "the other table is read again")
    until(lambda: table_of(feeds, "t").rescanned, "its scan has ended")
    assert not table_of(feeds, "u").rescanned
    assert table_of(feeds, "u").state is TableState.FAILED


def test_a_table_whose_name_a_view_has_is_followed(feeds: Feeds, shop: Shop) -> None:
    """The name of a view is that of no table, for a RESCAN too."""
    shop.create(feeds)
    feeds.sync("f")
    feeds.execute("PAUSE CHANGEFEED f")
    feeds.execute("ALTER CHANGEFEED f RESCAN t")
    shop.db.execute(
        "alter table t rename to elsewhere; create view t as select * from elsewhere;"
        "insert into elsewhere values (11, 110)"
    )
    feeds.execute("RESUME CHANGEFEED f")
    until(lambda: table_of(feeds, "t").state is TableState.FAILED)
    answer = feeds.execute("ALTER CHANGEFEED f RESCAN")
    assert "table public.t was renamed" in answer.notices[0]
    feeds.sync("f")
    assert table_of(feeds, "elsewhere").state is TableState.RUNNING
    assert 110 in shop.values("t", "v")
