"""Readers: from a statement to the changes as Arrow, by ``changefeed.subscribe``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import changefeed
from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError
from changefeed.readers import Subscription
from changefeed.readers.reader import Reader
from tests.e2e.feeds import Feeds
from tests.helpers.waiting import until
from tests.services.postgres import Database

pytestmark = [pytest.mark.e2e, pytest.mark.postgres]

SECONDS = 60.0


def part(subscription: Subscription) -> pa.Table:
    """The next part's rows."""
    found = subscription.next(SECONDS)
    assert found is not None, "nothing came"
    return found.table()


def drained(subscription: Subscription) -> None:
    """Read and commit what is there."""
    part(subscription)
    subscription.commit()


def apply(copy: dict[Any, tuple[Any, ...]], rows: pa.Table) -> None:
    """What a consumer does that keeps a copy by key, which is the first column."""
    for row in rows.to_pylist():
        kind = row.pop("_change_type")
        version, moment = row.pop("_commit_version"), row.pop("_commit_timestamp")
        assert version and moment
        values = tuple(row.values())
        if kind == "truncate":
            copy.clear()
        elif kind == "delete":
            del copy[values[0]]
        elif kind != "update_preimage":
            copy[values[0]] = values


def follow(
    subscription: Subscription, copy: dict[Any, tuple[Any, ...]], done: Callable[[], bool]
) -> None:
    """Apply and commit parts until ``done``."""

    def step() -> bool:
        found = subscription.next(0.1)
        if found is not None:
            apply(copy, found.table())
            subscription.commit()
        return done()

    until(step, seconds=SECONDS)


def source(db: Database) -> dict[Any, tuple[Any, ...]]:
    return {row[0]: tuple(row) for row in db.execute("select * from t")}


def subscribe(feeds: Feeds, reader: str = "r", **options: Any) -> Subscription:
    return changefeed.subscribe(str(feeds.state), "shop.public.t", reader=reader, **options)


def test_scan_changes_and_a_restart_equal_the_source(feeds: Feeds, postgres: Database) -> None:
    postgres.execute(
        "create table t (id int primary key, name text, price numeric(10,2), at timestamptz);"
        "insert into t select i, 'row ' || i, i / 4.0, now() from generate_series(1, 500) i"
    )
    feeds.connect(shop=postgres.uri)
    copy: dict[Any, tuple[Any, ...]] = {}
    with subscribe(feeds) as changes:
        first = changes.next(SECONDS)
        assert first is not None
        assert first.scan
        apply(copy, first.table())
        assert copy == source(postgres)
        # Not committed: the next one gets it again.
    with subscribe(feeds) as changes:
        again = changes.next(SECONDS)
        assert again is not None
        assert again.table().equals(first.table())
        changes.commit()
        postgres.execute("update t set name = 'new', id = id + 1000 where id % 3 = 0")
        postgres.execute(
            "delete from t where id % 5 = 0; insert into t values (7777, 'x', 1, null)"
        )
        follow(changes, copy, lambda: copy == source(postgres))
    postgres.execute("truncate t; insert into t values (1, 'after', 2, null)")
    with subscribe(feeds, truncate="row") as changes:
        follow(changes, copy, lambda: copy == source(postgres))


def keys(rows: pa.Table) -> list[tuple[str, int]]:
    return list(zip(rows["_change_type"].to_pylist(), rows["id"].to_pylist(), strict=True))


@pytest.fixture
def table(feeds: Feeds, postgres: Database) -> Database:
    """A table of one row, and the source of it."""
    postgres.execute(
        "create table t (id int primary key, name text); insert into t values (1, 'a')"
    )
    feeds.connect(shop=postgres.uri)
    return postgres


def test_two_readers_go_at_their_own_pace_and_the_slowest_holds_the_log(
    feeds: Feeds, table: Database
) -> None:
    with subscribe(feeds, "fast") as fast, subscribe(feeds, "slow") as slow:
        drained(fast)
        drained(slow)
        stands = slow.position
        assert stands is not None
        table.execute("insert into t values (2, 'b')")
        assert keys(part(fast)) == [("insert", 2)]
        fast.commit()
        far = fast.position
        assert far is not None
        until(lambda: high_water(feeds, "fast") >= far, seconds=SECONDS)
        held = feeds.catalog.oldest_needed("shop")
        assert held is not None
        assert held <= high_water(feeds, "slow") < far
        assert keys(part(slow)) == [("insert", 2)]
        slow.commit()
        until(lambda: (feeds.catalog.oldest_needed("shop") or stands) >= far, seconds=SECONDS)


def high_water(feeds: Feeds, name: str) -> Timestamp:
    job = feeds.catalog.find_job(name)
    assert job is not None
    return job.high_water or Timestamp.ZERO


def test_a_quiet_table_does_not_hold_the_log(feeds: Feeds, table: Database) -> None:
    with subscribe(feeds) as changes:
        drained(changes)
        stands = changes.position
        assert stands is not None

        def moved() -> bool:
            assert changes.next(0.0) is None
            return high_water(feeds, "r") > stands

        until(moved, seconds=SECONDS)
        table.execute("insert into t values (2, 'b')")
        assert keys(part(changes)) == [("insert", 2)]


def test_pause_resume_and_drop(feeds: Feeds, table: Database) -> None:
    with subscribe(feeds) as changes:
        drained(changes)
        listed = feeds.execute("SHOW CHANGEFEEDS")
        assert any("r" in [str(cell) for cell in row] for row in listed.rows)
        feeds.execute("PAUSE CHANGEFEED r")
        table.execute("insert into t values (2, 'b')")
        assert changes.next(1.0) is None
        feeds.execute("RESUME CHANGEFEED r")
        assert keys(part(changes)) == [("insert", 2)]
        changes.commit()
        feeds.execute("DROP CHANGEFEED r")
        with pytest.raises(ChangefeedError) as error:
            changes.next(SECONDS)
        assert error.value.code.number == "CF1101"
    with subscribe(feeds) as changes:
        assert keys(part(changes)) == [("insert", 1), ("insert", 2)], "a new one of that name"


def test_a_new_column_comes_with_the_rows_that_have_it(feeds: Feeds, table: Database) -> None:
    with subscribe(feeds) as changes:
        drained(changes)
        table.execute("alter table t add column more int; insert into t values (2, 'b', 7)")
        rows = part(changes)
        assert rows.column_names[:3] == ["id", "name", "more"]
        assert rows["more"].to_pylist() == [7]


def test_without_a_scan_a_reader_begins_with_the_next_change(feeds: Feeds, table: Database) -> None:
    with subscribe(feeds, initial_scan=False) as changes:
        until(lambda: changes.next(0.1) is None and changes.position is not None, seconds=SECONDS)
        table.execute("insert into t values (2, 'b')")
        assert keys(part(changes)) == [("insert", 2)]


def test_a_rescan_ends_the_reader_with_an_error(feeds: Feeds, table: Database) -> None:
    with subscribe(feeds) as changes:
        drained(changes)
        feeds.execute("ALTER CHANGEFEED r RESCAN shop.public.t")

    def refused() -> bool:
        with subscribe(feeds) as changes:
            try:
                return changes.next(0.2) is not None
            except ChangefeedError as error:
                assert error.code.number == "CF1303"
                return True

    until(refused, seconds=SECONDS)
    with pytest.raises(ChangefeedError, match="scanned again"), subscribe(feeds) as changes:
        changes.next(0.2)


def test_names_that_do_not_fit(feeds: Feeds, table: Database, tmp_path: Path) -> None:
    table.execute("create table u (id int primary key)")
    feeds.execute(f"CREATE CHANGEFEED f FOR shop.public.t INTO 'file://{tmp_path}/files'")
    with pytest.raises(ChangefeedError, match="is no reader") as error:
        subscribe(feeds, "f")
    assert error.value.code.number == "CF1303"
    with subscribe(feeds):
        with pytest.raises(ChangefeedError, match=r"reads shop\.public\.t") as error:
            changefeed.subscribe(str(feeds.state), "shop.public.u", reader="r")
        assert error.value.code.number == "CF1302"
        # Another process would wait for this one to end; so does another subscription.
        busy = Reader.open(str(feeds.state), "r")
        with pytest.raises(ChangefeedError, match="read by another process"):
            busy.sink().occupy(0)
        busy.close()
    with pytest.raises(ChangefeedError) as error:
        changefeed.subscribe(str(feeds.state), reader="nobody")
    assert error.value.code.number == "CF1101"


def test_a_reader_stays_in_its_folder_whatever_its_name_is(feeds: Feeds, table: Database) -> None:
    with subscribe(feeds, "plain") as changes:
        part(changes)
    before = {path.name for path in feeds.state.iterdir()}
    for name in ("..", "../other", "."):
        with subscribe(feeds, name) as changes:
            part(changes)
    assert {path.name for path in feeds.state.iterdir()} == before
    assert len(list((feeds.state / "readers").iterdir())) == 4
