"""The state of a feed as people see it: degraded and stopped, and the lag of the worst table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from changefeed.catalog import Status, TableProgress
from changefeed.core.clock import Timestamp
from changefeed.core.delays import Delays
from changefeed.core.errors import ChangefeedError
from changefeed.statements.health import DEGRADED, STARTING, STATUSES, STOPPED, Health, health
from changefeed.statements.values import Seconds
from tests.golden.world import NOW, World

SECOND = 10**9


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    world.shop()
    world.run("CREATE CHANGEFEED f FOR orders, items INTO 'null://'")
    yield world
    world.close()


def look(world: World, tables: list[TableProgress] | None = None, **job: object) -> Health:
    found = replace(world.catalog.job("f"), **job)  # type: ignore[arg-type]
    progress = world.catalog.tables(found.id) if tables is None else tables
    return health(found, progress, node=world.node.up, now=NOW + 60 * SECOND)


def broken(world: World, **changes: object) -> list[TableProgress]:
    """The tables of the feed, one of which failed."""
    items, orders = world.catalog.tables(1)
    failed = items.failed(ChangefeedError("CF2106", "dropped at the source"))
    return [replace(failed, **changes), orders]  # type: ignore[arg-type]


@pytest.mark.parametrize("status", [Status.STARTING, Status.SCANNING, Status.RUNNING])
def test_a_failed_table_degrades_a_feed_at_work(world: World, status: Status) -> None:
    shown = look(world, broken(world), status=status)
    assert (shown.status, shown.troubled) == (DEGRADED, True)
    assert shown.reason == "1 table failed: public.items: dropped at the source"


def test_a_feed_that_starts_waits_for_no_node_that_is_there(world: World) -> None:
    shown = look(world, status=Status.STARTING, reason="resumed, waits for a node")
    assert (shown.status, shown.reason, shown.troubled) == ("starting", STARTING, False)
    assert look(world, status=Status.STARTING, reason="waits for process 7").reason.endswith("7")
    assert look(world, status=Status.STARTING, reason="waits for a node").reason == STARTING


@pytest.mark.parametrize("status", [Status.RETRYING, Status.STALLED, Status.FAILED])
def test_worse_than_degraded_stays_what_it_is(world: World, status: Status) -> None:
    shown = look(world, broken(world), status=status, reason="why")
    assert (shown.status, shown.reason, shown.troubled) == (status, "why", True)


def test_the_lag_is_that_of_the_worst_table(world: World) -> None:
    world.node.deliver("f", NOW + 50 * SECOND)
    assert look(world).lag == Seconds(10)
    before = broken(world, done_upto=None, added_at=NOW - 40 * SECOND)
    assert look(world, before).lag == Seconds(100), "nothing of it came since it was added"
    assert look(world, before, status=Status.SUCCEEDED).lag is None


@pytest.mark.parametrize("status", [s for s in Status if s.active])
def test_without_a_node_nothing_runs(world: World, status: Status) -> None:
    world.node.up = False
    shown = look(world, broken(world), status=status)
    assert (shown.status, shown.troubled) == (STOPPED, True)
    assert shown.reason == "no node runs it: changefeed start"


@pytest.mark.parametrize("status", [Status.PAUSED, Status.FAILED, Status.SUCCEEDED])
def test_what_needs_no_node_keeps_its_status(world: World, status: Status) -> None:
    world.node.up = False
    assert look(world, status=status).status == status


def test_every_status_is_listed() -> None:
    assert set(STATUSES) == {*Status, DEGRADED, STOPPED} - {Status.DROPPED}


def test_the_summary_counts_them(world: World) -> None:
    world.run("CREATE CHANGEFEED g FOR orders INTO 'null://'")
    world.fail_table("f", "items", "CF2106 dropped at the source")
    summary = world.interpreter.summary()
    assert (summary.feeds, summary.running, summary.troubled, summary.stopped) == (2, 1, 1, 0)
    world.node.up = False
    summary = world.interpreter.summary()
    assert (summary.running, summary.troubled, summary.stopped, summary.active) == (0, 2, 2, 2)


def test_what_a_running_feed_waits_for_is_said(world: World) -> None:
    world.node.deliver("f", NOW)
    held = look(world, status=Status.RUNNING, reason="running: no broker answers")
    assert str(held.reason).endswith("; no broker answers")
    assert "; " not in str(look(world, status=Status.RUNNING, reason="running").reason)
    assert held.moves and not look(world, status=Status.RETRYING).moves


def test_a_wait_on_purpose_is_no_lag(world: World) -> None:
    since = NOW - 40 * SECOND

    def seen(
        until: int, tables: list[TableProgress] | None = None, status: Status = Status.RUNNING
    ) -> Health:
        # The round ended two seconds after the last commit that it delivered; 100 s have passed.
        return look(
            world,
            tables,
            status=status,
            reason="running",
            delays=Delays(waits=(since, until)),
            high_water=Timestamp(since - 2 * SECOND),
        )

    shown = seen(NOW + 3600 * SECOND)
    assert (shown.status, shown.lag, shown.age) == ("running", Seconds(2), Seconds(102))
    assert "; gathers changes until " in shown.reason and not shown.troubled
    over = seen(NOW + 10 * SECOND)
    assert (over.lag, over.gathers) == (Seconds(52), ""), "its time is over, nothing came: a lag"
    troubled = seen(NOW + 3600 * SECOND, status=Status.RETRYING)
    assert (troubled.lag, troubled.gathers) == (Seconds(102), "")
    assert seen(NOW + 3600 * SECOND, broken(world)).gathers == ""
    world.node.up = False
    assert seen(NOW + 3600 * SECOND).lag == Seconds(102)
