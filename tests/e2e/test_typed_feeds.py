"""Feeds from a real PostgreSQL into sinks of typed rows, and into one that keeps progress."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from changefeed.core.errors import ChangefeedError
from changefeed.core.faults import armed
from changefeed.core.sizes import Sizes
from changefeed.spark.session import NodeSpark
from tests.e2e.feeds import Feeds, running
from tests.helpers.typed_sink import STORES, Store, typed_sinks
from tests.helpers.waiting import until
from tests.services.postgres import Database

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.postgres]


class Bench:
    """One database, one state, stores in memory."""

    def __init__(self, feeds: Feeds, db: Database) -> None:
        self.feeds = feeds
        self.db = db
        feeds.connect(shop=db.uri)

    def create(
        self, name: str, targets: str = "t", options: str = "", scheme: str = "typed", uri: str = ""
    ) -> Store:
        more = f" WITH {options}" if options else ""
        self.feeds.execute(
            f"CREATE CHANGEFEED {name} FOR {targets} INTO '{scheme}://{name}{uri}'{more}"
        )
        return STORES[name]

    def truth(self, sql: str = "select a, b from t") -> dict[tuple[object, ...], object]:
        return {(a,): {"a": a, "b": b} for a, b in self.db.execute(sql)}

    def states(self, name: str) -> dict[str, str]:
        job = self.feeds.catalog.job(name)
        return {t.table.name: t.state.value for t in self.feeds.catalog.tables(job.id)}


@pytest.fixture
def bench(
    tmp_path: Path,
    postgres: Database,
    spark_engine: NodeSpark,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Bench]:
    postgres.execute(
        "create table t (a int primary key, b text);"
        "insert into t select i, 'row ' || i from generate_series(1, 10) i"
    )
    with typed_sinks(monkeypatch), running(tmp_path / "state", spark_engine) as feeds:
        yield Bench(feeds, postgres)


@pytest.fixture
def large(bench: Bench) -> None:
    """Every table counts as a large one."""
    bench.feeds.restart(Sizes(small_scan_rows=-1_000_000))


# ------------------------------------------------------------------------------- typed rows


def change(db: Database) -> None:
    """Each kind of change."""
    db.execute("update t set b = 'new' where a <= 3")
    db.execute("delete from t where a = 4")
    db.execute("update t set a = 100 where a = 5")
    db.execute("begin; insert into t values (50, 'x'); delete from t where a = 50; commit")
    db.execute("begin; update t set b = '1' where a = 6; update t set b = '2' where a = 6; commit")


@pytest.mark.parametrize("scheme", ["typed", "typed-spark"])
def test_scan_and_changes_arrive_typed(bench: Bench, large: None, scheme: str) -> None:
    store = bench.create("f", scheme=scheme)
    bench.feeds.sync("f")
    assert store.table("t") == bench.truth()
    assert ("write_scan" in store.calls) == (scheme == "typed-spark")
    [(topic, at)] = store.ended
    assert topic == "t"
    assert {version for version, _ in store.rows["t"].values()} == {at.version}
    change(bench.db)
    bench.feeds.sync("f")
    assert store.table("t") == bench.truth()
    context = store.contexts[0]
    assert context.spark is bench.feeds.node.spark
    assert context.state == bench.feeds.catalog.state_id
    assert {c.scan for c in store.contexts} == {False, True}
    assert len(store.scratch) == 2, "each sink object has a folder of its own"
    bench.feeds.execute("DROP CHANGEFEED f")
    until(lambda: not any(Path(folder).exists() for folder in store.scratch))


def test_a_scan_by_spark_goes_on_where_it_broke(bench: Bench) -> None:
    bench.feeds.restart(Sizes(small_scan_rows=-1_000_000, scan_part_bytes=8192))
    bench.db.execute(
        "create table s (a int primary key, b text);"
        "insert into s select i, repeat('x', 200) from generate_series(1, 2000) i; analyze s"
    )
    with armed("scan.committed@2:error"):
        store = bench.create("f", "s", scheme="typed-spark")
        bench.feeds.sync("f")
    assert store.table("s") == bench.truth("select a, b from s")
    assert len(store.commits) > 4 and sum(store.commits) == 2000, "no part is read twice"
    [(_, ended)] = store.ended
    assert ended.version == min(version for version, _ in store.rows["s"].values())


@pytest.mark.parametrize("scheme", ["typed", "typed-spark"])
def test_columns_key_range_and_deletes(bench: Bench, large: None, scheme: str) -> None:
    bench.db.execute("create table w (x text, k int primary key, y text, z numeric)")
    bench.db.execute("insert into w select 'x' || i, i, 'y', i + 0.50 from generate_series(1, 9) i")
    store = bench.create("f", "w (z, k) VALUES FROM (3) TO (8)", "deletes = 'no'", scheme=scheme)
    bench.feeds.sync("f")
    bench.db.execute("update w set z = -z; update w set y = 'unseen'")
    bench.db.execute("delete from w where k = 5")
    bench.feeds.sync("f")
    assert store.table("w") == {(k,): {"k": k, "z": f"-{k}.50"} for k in range(3, 8)}
    assert not store.ended, "a feed without deletes takes nothing away"
    assert [c.name for c in store.shapes["w"].columns] == ["k", "z"]
    bench.db.execute("alter table w drop column x")
    bench.db.execute("update w set z = 1 where k = 3")
    bench.feeds.sync("f")
    assert store.table("w")[3,] == {"k": 3, "z": "1"}
    assert not store.events, "the change concerns no column of the feed"


@pytest.mark.parametrize("scheme", ["typed", "typed-spark"])
def test_a_change_of_shape_is_followed_and_backfilled(
    bench: Bench, large: None, scheme: str
) -> None:
    store = bench.create("f", scheme=scheme)
    bench.feeds.sync("f")
    bench.db.execute("update t set b = 'before' where a = 2")
    bench.db.execute("alter table t add column c int default 7")
    bench.db.execute("insert into t values (70, 'z', 8)")
    bench.feeds.sync("f")
    want = {(a,): {"a": a, "b": b, "c": c} for a, b, c in bench.db.execute("select a, b, c from t")}
    until(lambda: store.table("t") == want)
    until(lambda: len(store.ended) == 2)
    assert [[c.name for c in e.new.columns] for e in store.events] == [["a", "b", "c"]]
    # The same instant where a heartbeat noticed the change: no row comes with it.
    assert store.ended[1][1] >= store.events[0].at


def test_a_table_that_cannot_follow_fails_alone(bench: Bench) -> None:
    bench.db.execute("create table u (a int primary key, b text)")
    store = bench.create("f", "t, u", "resolved = '50ms'")
    bench.feeds.sync("f")
    until(lambda: store.resolved)
    store.faults["evolve"].append(ChangefeedError("CF5006", "no such type"))
    bench.db.execute("insert into u values (1, 'last'); alter table u add column c int")
    bench.db.execute("insert into u values (2, 'never', 1); insert into t values (80, 'goes on')")
    until(lambda: (80,) in store.table("t"))
    until(lambda: bench.states("f") == {"t": "running", "u": "failed"})
    assert set(store.table("u")) == {(1,)}
    # A mark covers all tables, and rows of this one will come.
    [stopped] = [
        t.done_upto
        for t in bench.feeds.catalog.tables(bench.feeds.catalog.job("f").id)
        if t.table.name == "u"
    ]
    bench.db.execute("insert into t values (81, 'goes on')")
    until(lambda: (81,) in store.table("t"))
    assert stopped is not None
    assert store.resolved[-1] <= stopped
    bench.feeds.execute("RESUME CHANGEFEED f")
    until(lambda: set(store.table("u")) == {(1,), (2,)})
    bench.feeds.sync("f")
    until(lambda: store.resolved[-1] > stopped)
    assert store.resolved == sorted(store.resolved)


def test_a_backlog_is_committed_in_rounds(bench: Bench) -> None:
    bench.feeds.restart(Sizes(slice_rows=100))
    store = bench.create("f", uri="?rounds")
    bench.feeds.sync("f")
    bench.feeds.execute("PAUSE CHANGEFEED f")
    for n in range(10):
        bench.db.execute(
            "insert into t select i, 'r' from generate_series(%s::int, %s::int) i",
            [1000 * (n + 1), 1000 * (n + 1) + 99],
        )
    del store.commits[:]
    bench.feeds.execute("RESUME CHANGEFEED f")
    bench.feeds.sync("f")
    assert store.table("t") == bench.truth()
    assert sum(store.commits) == 1000
    assert len(store.commits) <= 3, "one round, but for what the log had when it was asked"


def test_what_a_broken_scan_left_goes(bench: Bench, large: None) -> None:
    with armed("scan.before_end@1:error"):
        store = bench.create("f")
        until(lambda: store.table("t"))
        bench.db.execute("delete from t where a = 1")
        bench.db.execute("insert into t values (11, 'after the first scan')")
        until(lambda: bench.feeds.catalog.job("f").error_code)
    bench.feeds.sync("f")
    assert store.table("t") == bench.truth()
    assert len(store.ended) == 1
    assert all(version >= store.ended[0][1].version for version, _ in store.rows["t"].values())


@pytest.mark.parametrize("place", ["runner.after_commit", "runner.after_save"])
def test_a_crash_around_a_commit_repeats_and_harms_nothing(bench: Bench, place: str) -> None:
    store = bench.create("f")
    bench.feeds.sync("f")
    with armed(f"{place}@1:error"):
        change(bench.db)
        bench.feeds.sync("f")
    assert store.table("t") == bench.truth()
    bench.feeds.close()
    bench.db.execute("delete from t where a = 6")
    bench.feeds.open()
    bench.feeds.sync("f")
    assert store.table("t") == bench.truth()


# ------------------------------------------------------------------------------- exactly once


def test_exactly_once_is_refused_where_the_sink_cannot(bench: Bench, tmp_path: Path) -> None:
    with pytest.raises(ChangefeedError) as refused:
        bench.feeds.execute(
            f"CREATE CHANGEFEED f FOR t INTO 'file://{tmp_path}' WITH delivery = 'exactly_once'"
        )
    assert refused.value.code.number == "CF1206"
    assert "delivery=exactly_once" in refused.value.message


def once(store: Store, bench: Bench) -> None:
    """Every row of the source arrived exactly once."""
    keys = [key for topic, key, _ in store.messages if topic == "t"]
    assert sorted(keys) == sorted(f"[{a}]" for (a,) in bench.db.execute("select a from t"))


def fill(db: Database, since: int) -> None:
    for n in range(5):
        db.execute("insert into t values (%s, 'x')", [since + n])


@pytest.mark.parametrize("place", ["runner.after_commit", "runner.after_save"])
def test_exactly_once_goes_on_from_what_the_sink_says(bench: Bench, place: str) -> None:
    store = bench.create("f", options="delivery = 'exactly_once'", scheme="keeping")
    bench.feeds.sync("f")
    with armed(f"{place}@1:error"):
        fill(bench.db, 100)
        bench.feeds.sync("f")
    once(store, bench)
    # The commit arrived, its answer did not.
    store.lost_answers += 1
    fill(bench.db, 200)
    bench.feeds.sync("f")
    assert not store.lost_answers
    bench.feeds.close()
    fill(bench.db, 300)
    bench.feeds.open()
    bench.feeds.sync("f")
    once(store, bench)


@pytest.mark.parametrize("place", ["scan.before_end@1", "scan.table_saved@1"])
def test_a_scan_is_exactly_once(bench: Bench, large: None, place: str) -> None:
    with armed(f"{place}:error"):
        store = bench.create("f", options="delivery = 'exactly_once'", scheme="keeping")
        bench.feeds.sync("f")
    once(store, bench)
    assert {"shop.public.t#scan"} <= store.progress.keys()
    fill(bench.db, 100)
    bench.feeds.sync("f")
    once(store, bench)
    # A scan again after a change of shape: again each row once.
    store.messages.clear()
    with armed(f"{place}:error"):
        bench.db.execute("alter table t add column c int default 7")
        bench.db.execute("insert into t values (400, 'after', 1)")
        bench.feeds.sync("f")
        until(lambda: len(store.messages) >= 16)
    bench.feeds.sync("f")
    keys = sorted(key for _, key, _ in store.messages)
    truth = [f"[{a}]" for (a,) in bench.db.execute("select a from t")]
    assert keys in (sorted(truth), sorted([*truth, "[400]"])), "the new row may be a change, too"


def test_a_scan_that_fails_before_its_commit_left_nothing(bench: Bench, large: None) -> None:
    STORES["f"].faults["commit_with"].append(ChangefeedError("CF5001", "away"))
    store = bench.create("f", options="delivery = 'exactly_once'", scheme="keeping")
    bench.feeds.sync("f")
    assert store.calls.count("commit_with") >= 2
    once(store, bench)
