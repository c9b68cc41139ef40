"""Readers: from a statement to the changes as Arrow, by ``changefeed.subscribe``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import changefeed
from changefeed.readers import Subscription
from tests.e2e.feeds import Feeds
from tests.services.postgres import Database
from tests.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.postgres]

SECONDS = 60.0


def part(subscription: Subscription) -> pa.Table:
    """The next part's rows."""
    found = subscription.next(SECONDS)
    assert found is not None, "nothing came"
    return found.table()


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

    until(step, SECONDS)


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
