"""SHOW CHANGEFEEDS and SHOW JOBS for people, and how instants are worded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, event

from changefeed.catalog.model import Status, TableProgress
from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.schema import TableName
from changefeed.statements.show import scan_text
from changefeed.statements.times import ago, clock_text, date, moment
from changefeed.statements.values import ShownText
from tests.golden.world import NOW, World

SECOND = 10**9


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    world.shop()
    yield world
    world.close()


def listed(world: World, statement: str = "SHOW CHANGEFEEDS") -> list[dict[str, object]]:
    brief = world.run(statement).brief
    assert brief is not None
    return [dict(zip(brief.columns, row, strict=True)) for row in brief.rows]


def test_a_feed_that_runs_needs_no_reason(world: World) -> None:
    world.run("CREATE CHANGEFEED f FOR orders INTO 'kafka://u:hunter2@k:9092?topic_prefix=a'")
    world.node.deliver("f", NOW - 2 * SECOND, rows=5)
    (row,) = listed(world)
    assert (row["name"], row["status"], str(row["lag"])) == ("f", "running", "2s")
    assert (row["tables"], row["sink"], row["why"]) == ("orders", "kafka://u:redacted@k:9092", None)


def test_trouble_says_what_and_why(world: World) -> None:
    world.run("CREATE CHANGEFEED f FOR orders, items, audit.log INTO 'null://'")
    world.fail_table("f", "items", "CF2106 it was dropped at the source")
    world.run("CREATE CHANGEFEED g FOR orders INTO 'null://'")
    world.fail("g", ChangefeedError("CF3002", "older than the log", hint="use a later cursor."))
    world.clock.advance(200)
    f, g = listed(world)
    assert f["status"] == "degraded: 1 of 3 tables"
    assert f["tables"] == "items!, audit.log, orders"
    assert f["why"] == "1 table failed: public.items: it was dropped at the source"
    assert (g["status"], g["lag"]) == ("failed 3m ago", None)
    assert g["why"] == "older than the log; use a later cursor."


def test_hints_name_the_feed_and_the_table(world: World) -> None:
    world.run("CREATE CHANGEFEED \"My feed\" FOR orders, items INTO 'null://'")
    world.fail_table("My feed", "items", "CF2106 it was dropped at the source")
    wanted = (
        'ALTER CHANGEFEED "My feed" RESCAN public.items continues with the table that has the '
        'name now; ALTER CHANGEFEED "My feed" DROP public.items removes it from the feed.'
    )
    for aspect in ("TABLES", "ERRORS"):
        shown = world.run(f'SHOW CHANGEFEED "My feed" {aspect}')
        hints = {row[shown.columns.index("hint")] for row in shown.rows}
        assert hints - {None} == {wanted}


def test_the_hint_of_a_feed_names_it(world: World) -> None:
    world.run("CREATE CHANGEFEED f FOR orders INTO 'null://'")
    world.fail("f", ChangefeedError("CF2102", "the slot is gone"))
    (row,) = listed(world)
    assert "changes were missed. ALTER CHANGEFEED f RESCAN, run for each feed" in str(row["why"])
    detail = world.run("SHOW CHANGEFEED f")
    assert "ALTER CHANGEFEED f RESCAN" in str(detail.rows[0][detail.columns.index("hint")])


def test_conditions_and_order_hold_for_people_too(world: World) -> None:
    for name in ("a", "b", "c"):
        world.run(f"CREATE CHANGEFEED {name} FOR orders INTO 'null://'")
    shown = listed(world, "SHOW CHANGEFEEDS WHERE name <> 'b' ORDER BY name DESC")
    assert [row["name"] for row in shown] == ["c", "a"]


def test_many_tables_are_counted(world: World) -> None:
    world.run("CREATE CHANGEFEED f FOR orders, items, customers, audit.log INTO 'null://'")
    assert listed(world)[0]["tables"] == "audit.log, customers and 2 more"


def test_tables_are_estimates_and_say_what_would_be_refused(world: World) -> None:
    world.run("CREATE CHANGEFEED f FOR orders INTO 'null://'")
    rows = {row["table"]: row for row in listed(world, "SHOW TABLES")}
    assert str(rows["public.orders"]["rows"]) == "~6,000"
    assert str(rows["public.orders"]["watched_by"]) == "f"
    assert rows["public.orders"]["note"] is None
    assert rows["public.visits"]["note"] == (
        "no primary key: ALTER TABLE public.visits REPLICA IDENTITY FULL; first"
    )
    assert rows['public."Odd Name"']["note"] is None


@pytest.mark.parametrize("statement", ["SHOW CHANGEFEEDS", "SHOW JOBS"])
def test_a_listing_asks_the_state_as_often_for_many_feeds_as_for_one(
    world: World, statement: str
) -> None:
    asked: list[str] = []

    def note(_: object, __: object, text: str, *___: object) -> None:
        asked.append(text)

    counts: list[int] = []
    for feeds in ("a",), ("b", "c", "d"):
        for name in feeds:
            world.run(f"CREATE CHANGEFEED {name} FOR orders, items INTO 'null://'")
        asked.clear()
        event.listen(Engine, "before_cursor_execute", note)
        try:
            assert len(listed(world, statement)) == len(counts) * 3 + 1
        finally:
            event.remove(Engine, "before_cursor_execute", note)
        counts.append(len(asked))
    assert counts[0] == counts[1] > 0


def test_jobs_tell_of_those_that_are_gone(world: World) -> None:
    world.run("CREATE CHANGEFEED f FOR orders INTO 'null://'")
    world.clock.advance(120)
    world.run("DROP CHANGEFEED f")
    (row,) = listed(world, "SHOW JOBS")
    assert (row["status"], row["created"], row["sink"]) == ("dropped now", "2m ago", "null://")


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "now"),
        (0.4, "now"),
        (2, "2s ago"),
        (100, "1m ago"),
        (3_725, "1h 2m ago"),
        (200_000, "2d 7h ago"),
        (-300, "in 5m"),
    ],
)
def test_ages(seconds: float, said: str) -> None:
    assert ago(NOW - int(seconds * SECOND), NOW) == said


def test_instants() -> None:
    shown = moment(NOW, NOW + 61 * SECOND)
    assert shown is not None
    assert str(shown) == "2023-11-14 22:13:20.000000"
    assert shown.words == "2023-11-14 22:13:20 UTC (1m ago)"
    assert date(NOW).words == "2023-11-14 22:13:20 UTC"
    assert clock_text(Timestamp(NOW), NOW + 2 * SECOND) == "22:13:20 UTC (2s ago)"
    assert clock_text(Timestamp(NOW), NOW + 86_400 * SECOND) == "2023-11-14 22:13:20 UTC (24h ago)"


@pytest.mark.parametrize(
    ("total", "told"),
    [(0, "0 of 1 tables, 450 rows"), (1000, "45 % (0 of 1 tables, 450 of about 1,000 rows)")],
)
def test_a_scan_names_an_estimate_only_where_there_is_one(total: int, told: str) -> None:
    table = TableName("shop", "public", "orders")
    scanning = TableProgress(table, "orders", scan_wanted=True, scan_rows=450, scan_total=total)
    assert scan_text([scanning]) == told


def test_what_happened_often_is_one_event_with_a_count(world: World) -> None:
    """People read times of day; programs get the numbers of the log."""
    world.run("CREATE CHANGEFEED f FOR orders INTO 'null://'")
    job = world.catalog.job("f")
    stamp = Timestamp(world.clock.wall - 3_600 * 10**9)
    world.catalog.record_event(job.id, "scan", f"scanned: 7 rows as of {stamp}")
    for number in (1, 2):
        world.clock.advance(60)
        lost = ChangefeedError(Code.SINK_UNREACHABLE, f"no answer from port {number}")
        world.catalog.transition(job.id, Status.RETRYING, reason="", error=lost)
    events = world.run("SHOW CHANGEFEED f EVENTS")
    assert events.brief is not None
    assert [str(row[3]) for row in events.rows][2] == f"scanned: 7 rows as of {stamp}"
    assert [row[5] for row in events.rows] == [2, 1, 1, 1, 1]
    assert events.brief.columns == ("time", "kind", "table", "event", "code")
    told = [row[3].words if isinstance(row[3], ShownText) else row[3] for row in events.brief.rows]
    assert told[0] == "no answer from port 2 (2 times, last at 2023-11-14 22:15:20 UTC (now))"
    assert told[2] == "scanned: 7 rows as of 21:13:20 UTC (1h 2m ago)"
    errors = world.run("SHOW CHANGEFEED f ERRORS")
    assert errors.brief is not None and "(2 times, last at" in str(errors.brief.rows[0][4])
