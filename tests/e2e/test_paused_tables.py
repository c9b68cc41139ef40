"""``PAUSE CHANGEFEED f TABLE t``: a feed delivers its other tables, and RESUME leaves no gap."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from changefeed.catalog import TableState
from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError
from tests.e2e.feeds import BRISK, Feeds, consumed, running
from tests.helpers.waiting import until
from tests.services.kafka import KafkaBroker
from tests.services.postgres import Database

pytestmark = [pytest.mark.e2e, pytest.mark.postgres]


@pytest.fixture
def feeds(tmp_path: Path, postgres: Database) -> Iterator[Feeds]:
    with running(tmp_path / "state", timings=BRISK) as feeds:
        feeds.connect(shop=postgres.uri)
        yield feeds


def states(feeds: Feeds) -> dict[str, str]:
    return {
        str(row[0]).removeprefix("public."): str(row[2])
        for row in feeds.execute("SHOW CHANGEFEED f TABLES").rows
    }


def values(folder: Path, table: str) -> list[object]:
    """Column ``a`` of the rows of a table in the order in which they came."""
    rows = (m for m in consumed(folder, table) if m.is_row and m.topic == table)
    return [m.after["a"] for m in rows if m.after is not None]


def last_resolved(folder: Path) -> Timestamp:
    found = [m.resolved for m in consumed(folder, "t", "u") if m.resolved is not None]
    return max(found, default=Timestamp.ZERO)


def test_others_go_on_and_the_table_continues_without_a_gap(
    feeds: Feeds, postgres: Database, tmp_path: Path
) -> None:
    """Through a change of the table's columns, and with another node in between."""
    out = tmp_path / "out"
    postgres.execute(
        "create table t (a int primary key); insert into t values (1);"
        "create table u (a int primary key); insert into u values (1)"
    )
    feeds.execute(f"CREATE CHANGEFEED f FOR t, u INTO 'file://{out}' WITH resolved = '50ms'")
    feeds.sync("f")
    answer = feeds.execute("PAUSE CHANGEFEED f TABLE t")
    assert (answer.rows[0][2:], states(feeds)) == (
        ("running", ("public.t",)),
        {"t": "paused", "u": "running"},
    )
    assert answer.notices == ["resolved timestamps wait: none passes the place of a paused table"]
    stopped = feeds.catalog.tables(1)[0].done_upto
    assert stopped is not None
    postgres.execute("insert into t values (2); insert into u values (2)")
    postgres.execute("alter table t add column b int; insert into t values (3, 3)")
    answer = feeds.execute("SYNC ALL CHANGEFEEDS")
    assert "paused tables of f are left out: public.t" in answer.notices
    assert (values(out, "t"), values(out, "u")) == ([1], [1, 2])

    feeds.close()
    feeds.open()
    postgres.execute("insert into t values (4, 4); insert into u values (3)")
    feeds.execute("SYNC ALL CHANGEFEEDS")
    assert (values(out, "t"), values(out, "u")) == ([1], [1, 2, 3])
    assert last_resolved(out) <= stopped == feeds.catalog.tables(1)[0].done_upto
    claimed = feeds.catalog.oldest_needed("shop")
    assert claimed is not None and claimed <= stopped, "the log keeps its changes"
    with pytest.raises(ChangefeedError, match=r"public\.t is paused"):
        feeds.execute("SYNC CHANGEFEED f TIMEOUT '60s'")

    feeds.execute("RESUME CHANGEFEED f TABLE t")
    feeds.sync("f")
    assert (values(out, "t"), states(feeds)) == ([1, 2, 3, 4], {"t": "running", "u": "running"})
    end = feeds.catalog.job("f").high_water
    assert end is not None and feeds.catalog.oldest_needed("shop") > stopped
    until(lambda: last_resolved(out) >= end, "resolved timestamps go on")


@pytest.mark.extended
def test_a_scan_that_a_pause_interrupted_goes_on(
    feeds: Feeds, postgres: Database, tmp_path: Path
) -> None:
    postgres.execute(
        "create table t (a int primary key, b text); create table u (a int primary key);"
        "insert into t select i, repeat('x', 1000) from generate_series(1, 4000) i;"
        "insert into u values (1)"
    )
    feeds.execute(
        f"CREATE CHANGEFEED f FOR t, u INTO 'duckdb://{tmp_path}/d.db' "
        "WITH initial_scan_max_rate = '400kB', initial_scan_concurrency = '1'"
    )
    until(lambda: any(t.scan_rows for t in feeds.catalog.tables(1) if t.table.name == "t"))
    feeds.execute("PAUSE CHANGEFEED f TABLE t")
    feeds.execute("ALTER CHANGEFEED f SET initial_scan_max_rate = '100MiB'")
    postgres.execute("delete from t where a < 100; update t set b = 'new' where a > 3900")
    feeds.execute("SYNC ALL CHANGEFEEDS")
    paused = next(t for t in feeds.catalog.tables(1) if t.table.name == "t")
    assert (paused.state, paused.scan_wanted) == (TableState.PAUSED, True)
    answer = feeds.execute("VERIFY CHANGEFEED f")
    assert answer.notices == ["public.t is paused: it was left out", "public.u: equal"]
    feeds.execute("RESUME CHANGEFEED f TABLE t")
    answer = feeds.execute("VERIFY CHANGEFEED f")
    assert answer.notices == ["public.t: equal", "public.u: equal"]
    feeds.execute("PAUSE CHANGEFEED f TABLE t")
    feeds.execute("ALTER CHANGEFEED f DROP u")
    with pytest.raises(ChangefeedError, match=r"public\.t"):
        feeds.execute("VERIFY CHANGEFEED f")


def deliver_and_pause(feeds: Feeds, postgres: Database, out: Path) -> None:
    """A feed of t and u, with one row of t, of which t is paused."""
    postgres.execute(
        "create table t (a int primary key); insert into t values (1);"
        "create table u (a int primary key)"
    )
    feeds.execute(f"CREATE CHANGEFEED f FOR t, u INTO 'file://{out}'")
    feeds.sync("f")
    feeds.execute("PAUSE CHANGEFEED f TABLE t")


@pytest.mark.extended
def test_a_rescan_of_a_paused_table_waits_for_its_resume(
    feeds: Feeds, postgres: Database, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    deliver_and_pause(feeds, postgres, out)
    answer = feeds.execute("ALTER CHANGEFEED f RESCAN t")
    expected = "the scan of what is paused begins with RESUME CHANGEFEED f TABLE public.t"
    assert expected in answer.notices
    feeds.execute("PAUSE CHANGEFEED f")
    answer = feeds.execute("RESUME CHANGEFEED f")
    assert answer.notices == ["public.t stays paused: RESUME CHANGEFEED f TABLE public.t"]
    feeds.execute("SYNC ALL CHANGEFEEDS")
    assert (values(out, "t"), states(feeds)["t"]) == ([1], "paused")
    feeds.execute("RESUME CHANGEFEED f TABLE t")
    feeds.sync("f")
    assert values(out, "t") == [1, 1]


@pytest.mark.extended
@pytest.mark.parametrize("change", ["drop table t", "alter table t rename to v"])
def test_a_table_that_goes_while_it_is_paused_is_delivered_up_to_then(
    feeds: Feeds, postgres: Database, tmp_path: Path, change: str
) -> None:
    out = tmp_path / "out"
    deliver_and_pause(feeds, postgres, out)
    postgres.execute(f"insert into t values (2); {change}; insert into u values (2)")
    feeds.execute("SYNC ALL CHANGEFEEDS")
    feeds.close()
    feeds.open()
    postgres.execute("insert into u values (3)")
    if "rename" in change:
        postgres.execute("insert into v values (3)")
    feeds.execute("SYNC ALL CHANGEFEEDS")
    assert (values(out, "t"), states(feeds)) == ([1], {"t": "paused", "u": "running"})
    feeds.execute("RESUME CHANGEFEED f TABLE t")
    if "rename" in change:
        feeds.sync("f")
        assert (values(out, "t"), states(feeds)["v"]) == ([1, 2, 3], "running")
    else:
        until(lambda: states(feeds)["t"] == "failed")
        assert feeds.catalog.tables(1)[0].error_code == "CF2106"
        assert values(out, "t") == [1, 2]
    assert values(out, "u") == [2, 3]


@pytest.mark.extended
@pytest.mark.kafka
def test_other_topics_have_their_resolved_timestamps(
    feeds: Feeds, postgres: Database, kafka: KafkaBroker
) -> None:
    """And exactly once holds over the pause and another node."""
    postgres.execute(
        "create table t (a int primary key); insert into t values (1);"
        "create table u (a int primary key)"
    )
    feeds.execute(
        f"CREATE CHANGEFEED f FOR t, u INTO '{kafka.uri}?topic_prefix=paused_' "
        "WITH resolved = '100ms', updated, delivery = 'exactly_once'"
    )

    def seen(topic: str) -> tuple[list[int], str]:
        """The rows, and the last resolved timestamp."""
        found = [json.loads(record.value or b"{}") for record in kafka.messages(f"paused_{topic}")]
        rows = [message["after"]["a"] for message in found if "after" in message]
        return rows, max((m["resolved"] for m in found if "resolved" in m), default="")

    feeds.sync("f")
    answer = feeds.execute("PAUSE CHANGEFEED f TABLE t")
    assert answer.notices == ["no resolved timestamps go to paused_t while the table is paused"]
    for number in (2, 3):
        postgres.execute(f"insert into t values ({number}); insert into u values ({number})")
        feeds.execute("SYNC ALL CHANGEFEEDS")
        feeds.close()
        feeds.open()
    place, end = str(feeds.catalog.tables(1)[0].done_upto), str(feeds.catalog.job("f").high_water)
    until(lambda: seen("u")[1] >= end)
    assert (seen("u")[0], seen("t")[0]) == ([2, 3], [1])
    assert seen("t")[1] <= place < end
    feeds.execute("RESUME CHANGEFEED f TABLE t")
    feeds.sync("f")
    until(lambda: seen("t")[1] > end)
    assert seen("t")[0] == [1, 2, 3]


@pytest.mark.extended
def test_a_feed_whose_other_tables_fail_ends_and_leaves_the_table_paused(
    feeds: Feeds, postgres: Database, tmp_path: Path
) -> None:
    postgres.execute(
        "create table t (a int primary key); create table u (a int primary key);"
        "insert into t values (1)"
    )
    feeds.execute(f"CREATE CHANGEFEED f FOR t, u INTO 'file://{tmp_path}/out'")
    feeds.sync("f")
    feeds.execute("PAUSE CHANGEFEED f TABLE t")
    postgres.execute("drop table u")
    until(lambda: str(feeds.catalog.job("f").status) == "failed")
    assert states(feeds) == {"t": "paused", "u": "failed"}
    postgres.execute("insert into t values (2)")
    feeds.execute("RESUME CHANGEFEED f TABLE t")
    until(lambda: values(tmp_path / "out", "t") == [1, 2])
