"""Option verify: a feed compares its targets with the source by itself, part by part."""

from __future__ import annotations

import threading

import pytest

from changefeed.catalog.model import TableProgress
from changefeed.core.clock import SystemClock, Waitable
from changefeed.core.sizes import Sizes
from tests.e2e.test_rescan import tamper
from tests.e2e.test_warehouse_feeds import Bench, bench
from tests.helpers.waiting import until

__all__ = ["bench"]
pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.postgres]


def table(bench: Bench, name: str = "t") -> TableProgress:
    catalog = bench.feeds.catalog
    return next(t for t in catalog.tables(catalog.job("f").id) if t.table.name == name)


def said(bench: Bench) -> list[str]:
    """What the feed said of differences, oldest first."""
    catalog = bench.feeds.catalog
    return [e.text for e in reversed(catalog.events(catalog.job("f").id, kinds=["verify"]))]


def proved(bench: Bench, *names: str) -> None:
    """Wait for a round of each table that begins from now on."""
    now = bench.feeds.node.clock.now().wall
    until(lambda: all(table(bench, name).proof.whole > now for name in names or ("t",)))


def shown(bench: Bench, columns: str) -> object:
    (row,) = bench.feeds.execute("SHOW CHANGEFEED f").rows
    return row[bench.feeds.execute("SHOW CHANGEFEED f").columns.index(columns)]


@pytest.mark.parametrize("bench", ["duckdb"], indirect=True)
def test_a_difference_is_noticed_and_mended(bench: Bench) -> None:
    bench.source.execute("create table n (a int); insert into n values (1), (1), (2)")
    bench.source.execute("alter table n replica identity full")
    bench.feeds.restart(Sizes(proof_rows=6))
    bench.create("t, n", ", verify = '100ms'")
    bench.feeds.sync("f")
    proved(bench, "t", "n")
    assert (table(bench).proof.rows, table(bench).proof.total) == (10, 10)
    assert not said(bench) and shown(bench, "status") == "running"
    assert "public.n: " in str(shown(bench, "proved"))

    tamper(bench, "update shop.t set b = 'secret' where a = 2")
    tamper(bench, "insert into shop.t (a, b) values (99, 'secret')")
    tamper(bench, "delete from shop.t where a = 7")
    until(lambda: table(bench).differing == 3)
    assert all(of in str(said(bench)) for of in ("changed [2]", "missing [7]", "extra [99]"))
    assert shown(bench, "status") == "degraded"
    assert shown(bench, "running_status") == (
        "public.t: 3 rows differ from the source: VERIFY CHANGEFEED f REPAIR makes them equal"
    )
    assert "3 rows differ" in str(shown(bench, "proved"))
    assert "secret" not in str(said(bench)) + str(bench.feeds.execute("SHOW CHANGEFEED f").rows)
    bench.feeds.execute("VERIFY CHANGEFEED f REPAIR")
    assert shown(bench, "status") == "running", "what was asked to be mended is not said again"

    bench.feeds.execute("ALTER CHANGEFEED f SET verify_repair")
    tamper(bench, "delete from shop.t where a = 3")
    tamper(bench, "delete from shop.n where a = 2")
    until(lambda: bench.same("t", "a, b") and bench.same("n", "a"))
    until(lambda: "1 row was repaired by key: equal now" in str(said(bench)))
    until(lambda: "public.n was read again as a whole" in str(said(bench)))

    bench.feeds.execute("ALTER CHANGEFEED f UNSET verify, verify_repair")
    until(lambda: not [t for t in threading.enumerate() if t.name == "verify-f"])
    assert shown(bench, "proved") is None


@pytest.mark.parametrize("bench", ["postgresql"], indirect=True)
def test_what_cannot_be_repaired_is_said_once(bench: Bench) -> None:
    """A repair comes when the rows change, and not with every round."""
    bench.create("t")
    bench.feeds.sync("f")
    tamper(
        bench,
        "create function shop.kept() returns trigger language plpgsql as "
        "$$begin new.b := 'kept'; return new; end$$;"
        "create trigger kept before insert or update on shop.t for each row "
        "when (new.a = 2) execute function shop.kept();"
        "update shop.t set b = '' where a = 2",
    )
    bench.feeds.execute("ALTER CHANGEFEED f SET verify = '100ms', verify_repair")
    until(lambda: len(said(bench)) == 2)
    assert said(bench) == [
        "1 row differs: changed [2]",
        "public.t: 1 row was repaired by key: rows that still differ: 1: the target does not keep "
        "what is delivered in b (a trigger, or another writer). The feed tries again when they "
        "change",
    ]
    tried = table(bench).rescan
    proved(bench)
    proved(bench)
    assert (len(said(bench)), table(bench).rescan, table(bench).differing) == (2, tried, 1)
    bench.source.execute("update t set b = 'other' where a = 2")
    until(lambda: len(said(bench)) == 4)
    assert table(bench).rescan > tried
    tamper(bench, "drop trigger kept on shop.t; update shop.t set b = 'other' where a = 2")
    until(lambda: table(bench).differing == 0)


@pytest.mark.parametrize("bench", ["postgresql"], indirect=True)
def test_rows_that_are_written_meanwhile_are_no_difference(bench: Bench) -> None:
    """Not while the feed is paused and resumed, either; the next node goes on with the round."""
    bench.source.execute("insert into t select i, 'up' from generate_series(20, 99) i")
    bench.feeds.restart(Sizes(proof_rows=60))
    bench.create("t", ", verify = '100ms'")
    bench.feeds.sync("f")
    over = threading.Event()

    def write() -> None:
        number = 0
        while not over.wait(0.03):
            number += 1
            bench.source.execute(
                "update t set b = case b when 'up' then 'down' else 'up' end "
                "where a between 20 and 99 and random() < 0.2"
            )
            bench.source.execute(f"insert into t values ({1000 + number}, 'new')")
            bench.source.execute(f"delete from t where a = {1000 + number - 20}")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        until(lambda: table(bench).proof.next_key is not None)
        bench.feeds.execute("PAUSE CHANGEFEED f")
        until(lambda: not [t for t in threading.enumerate() if t.name == "verify-f"])
        place = table(bench).proof
        bench.feeds.restart(Sizes(proof_rows=60))
        assert table(bench).proof == place
        bench.feeds.execute("RESUME CHANGEFEED f")
        until(lambda: table(bench).proof.whole == place.begun)
        tamper(bench, "delete from shop.t where a = 7")
        until(lambda: said(bench) != [])
    finally:
        over.set()
        writer.join()
    assert set(said(bench)) == {"1 row differs: missing [7]"}
    bench.equal = False


@pytest.mark.extended
@pytest.mark.parametrize("bench", ["duckdb"], indirect=True)
def test_no_more_is_read_in_a_second_than_the_feed_allows(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pauses are as long as what was read asks for, at the source and at the target."""
    bench.source.execute("insert into t select i, repeat('x', 2000) from generate_series(20, 29) i")
    pauses: list[float] = []
    wait = SystemClock.wait

    def counted(clock: SystemClock, waitable: Waitable, seconds: float) -> bool:
        if threading.current_thread().name != "verify-f":
            return wait(clock, waitable, seconds)
        pauses.append(seconds)
        return wait(clock, waitable, min(seconds, 0.01))

    monkeypatch.setattr(SystemClock, "wait", counted)
    bench.create("t", ", verify = '1h', verify_max_rate = '1kB'")
    until(lambda: table(bench).proof.rows == 20)
    # At least 20 kB of the source's rows and as many of the target's, at 1 kB a second.
    until(lambda: sum(1 for pause in pauses if pause >= 20) >= 2, "both pauses")
