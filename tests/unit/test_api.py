"""What statements do to the state, the node and the source; what they show is in golden files."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from changefeed.api import Interpreter, NoHost, Session
from changefeed.capture.expand import expand_job
from changefeed.catalog import DesiredStatus, Job, Status, TableState
from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError, Code, Problems
from changefeed.core.events import Flush, Frontier
from changefeed.core.schema import TableName
from changefeed.core.state import StateLayout
from changefeed.core.timings import NODE_TTL, Timings
from changefeed.log import LogSettings, LogWriter
from changefeed.options import mask_statement
from changefeed.sources.base import CaptureResult
from grammar import nodes
from tests.golden.world import NOW, FakeAttachment, World, shape

ORDERS = TableName("shop", "public", "orders")
CUSTOMERS = TableName("shop", "public", "customers")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    world.shop()
    yield world
    world.close()


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[World]:
    """No node runs."""
    world = World(tmp_path, node=False)
    world.shop()
    yield world
    world.close()


SHOP_URI = "postgresql://app:s3cret@db:5432/shop"
ALTER_SHOP = "ALTER EXTERNAL CONNECTION shop"


def refused(world: World, text: str, code: str) -> ChangefeedError:
    with pytest.raises(ChangefeedError) as caught:
        world.run(text)
    assert caught.value.code.number == code
    assert caught.value.text == mask_statement(text)
    return caught.value


# -- CREATE -------------------------------------------------------------------------------


def test_create_stores_what_the_runner_needs(world: World) -> None:
    result = world.run(
        "CREATE CHANGEFEED f FOR orders (total) VALUES FROM (1) TO (9) AS o, SCHEMA audit "
        "INTO 'kafka://u:hunter2@k:9092' WITH resolved = '5s', end_time = '1h', updated"
    )
    assert (result.job_id, result.name, result.kind) == (1, "f", "rows")
    job = world.catalog.job("f")
    assert job.sink_uri == "kafka://u:hunter2@k:9092"
    assert job.targets == ("public.orders (total) VALUES FROM (1) TO (9) AS o", "SCHEMA audit")
    end = Timestamp(NOW + 3_600 * 10**9)
    assert job.options == {"resolved": "5s", "end_time": str(end), "updated": ""}
    assert job.end_time == end and job.cursor is None
    tables = {str(t.table): t for t in world.catalog.tables(1)}
    orders = tables["shop.public.orders"]
    assert (orders.topic, orders.columns, orders.values_from) == ("o", ("total",), ("1",))
    assert orders.scan_wanted and not orders.joined and orders.scan_total == 6000
    assert tables["shop.audit.log"].joined
    assert "hunter2" not in job.statement and "hunter2" not in repr(result)


def test_without_a_scan_the_feed_begins_at_the_position_of_the_statement(world: World) -> None:
    world.run("CREATE CHANGEFEED f FOR orders INTO 'null://' WITH initial_scan = 'no'")
    (table,) = world.catalog.tables(1)
    assert not table.scan_wanted
    assert table.start == f"{world.sources['shop'].position:016X}"


def test_what_the_source_refuses_later_leaves_no_job(world: World) -> None:
    world.node.refuses = ChangefeedError("CF2004", "role app may not make a publication")
    error = refused(world, "CREATE CHANGEFEED f FOR orders INTO 'null://'", "CF2004")
    assert error.message == "role app may not make a publication"
    assert world.catalog.jobs() == []


def test_a_source_that_is_late(world: World) -> None:
    """A feed that scans waits for it; one that would miss changes is not made."""
    world.interpreter.timings = Timings(answer=0.05)
    world.node.asleep = True
    world.catalog.save_source_state("shop", error="cannot reach the source")
    result = world.run("CREATE CHANGEFEED f FOR orders INTO 'null://'")
    assert result.notices[-1] == (
        "the source does not send the tables yet: cannot reach the source; "
        "the feed begins when it does"
    )
    text = "CREATE CHANGEFEED g FOR customers INTO 'null://' WITH initial_scan = 'no'"
    error = refused(world, text, "CF1304")
    assert "would miss changes" in error.detail
    assert [job.name for job in world.catalog.jobs()] == ["f"]
    late = world.run("ALTER CHANGEFEED f ADD items").notices
    assert late[-1].startswith("the source does not send the added tables yet")


def test_problems_leave_nothing(world: World) -> None:
    with pytest.raises(Problems) as caught:
        world.run("CREATE CHANGEFEED f FOR nothing, visits (x) INTO 'null://' WITH nope")
    assert len(caught.value.problems) == 3
    assert all(problem.text is not None for problem in caught.value.problems)
    assert world.catalog.jobs() == [] and world.catalog.source_states() == []


def test_sinkless_rows_come_as_text_and_closing_reaches_the_node(world: World) -> None:
    result = world.run("CREATE CHANGEFEED FOR orders WITH resolved")
    assert result.kind == "stream" and result.stream is not None
    assert next(result.stream) == ("orders", "[1]", '{"after": {"a": "é"}}', "c")
    result.stream.close()  # type: ignore[attr-defined]
    assert list(result.stream) == []
    assert world.catalog.jobs() == []


def test_sinkless_needs_a_node_in_this_process(world: World) -> None:
    interpreter = Interpreter(world.catalog, world.clock, open_source=world.open_source)
    assert isinstance(interpreter.host, NoHost)
    with pytest.raises(ChangefeedError) as caught:
        interpreter.execute("CREATE CHANGEFEED FOR orders", Session())
    assert caught.value.code.number == "CF1303"


def test_without_a_node_a_feed_that_owes_changes_makes_its_slot_at_once(alone: World) -> None:
    alone.run("CREATE CHANGEFEED a FOR orders INTO 'null://'")
    source = alone.sources["shop"]
    assert source.captured == []  # a scan can wait for the node, and the slot with it
    alone.run("CREATE CHANGEFEED b FOR customers INTO 'null://' WITH initial_scan = 'no'")
    assert source.captured == [(CUSTOMERS, ORDERS)]
    state = alone.catalog.source_state("shop")
    assert state.memo == {"slot": "changefeed_k3x9qa_shop"} and state.identity == "7001/shop"


def test_the_job_is_there_before_anything_is_made_at_the_source(
    alone: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that begins just then removes the slot of a source that no job needs."""
    seen: list[tuple[list[str], str]] = []
    source = alone.open_source("shop", "")

    def looking(
        self: FakeAttachment, tables: Sequence[TableName], *, resume: bool
    ) -> CaptureResult:
        jobs = [job.name for job in alone.catalog.source_jobs(source.name)]
        seen.append((jobs, alone.catalog.source_state(source.name).holds))
        return CaptureResult()

    monkeypatch.setattr(FakeAttachment, "capture", looking)
    alone.run("CREATE CHANGEFEED f FOR orders INTO 'null://' WITH initial_scan = 'no'")
    assert seen == [(["f"], "slot changefeed_k3x9qa_shop")]


def test_without_a_node_what_the_source_refuses_leaves_nothing(alone: World) -> None:
    source = alone.open_source("shop", "")
    source.refused[ORDERS] = ChangefeedError("CF2004", "only its owner may add table orders")
    text = "CREATE CHANGEFEED f FOR orders INTO 'null://' WITH initial_scan = 'no'"
    refused(alone, text, "CF2004")
    assert alone.catalog.jobs() == [] and alone.catalog.source_states() == []
    assert source.released == ["changefeed_k3x9qa_shop"]


def test_create_and_alter_pass_on_what_the_source_has_to_say(world: World) -> None:
    """What it says of itself comes once, with its first feed."""
    source = world.sources["shop"]
    source.words, source.heirs = ["the log has no limit"], ("orders", "items")
    made = world.run("CREATE CHANGEFEED f FOR orders INTO 'null://'")
    assert made.notices[:2] == ["the log has no limit", "orders has heirs"]
    second = world.run("CREATE CHANGEFEED g FOR orders INTO 'null://'")
    assert second.notices[0] == "orders has heirs"
    altered = world.run("ALTER CHANGEFEED f ADD items")
    assert altered.notices[0] == "items has heirs"
    assert world.run("ALTER CHANGEFEED f SET resolved = '1s'").notices == []


def test_a_source_says_what_it_says_of_itself_once_in_a_session(world: World) -> None:
    """A feed without a sink leaves nothing behind: the next is the first of its source again."""
    source = world.sources["shop"]
    source.words = ["the log has no limit"]
    create = "CREATE CHANGEFEED FOR orders"
    assert world.run(create).notices == ["the log has no limit"]
    assert world.run(create).notices == []
    assert [row[4] for row in world.run(f"VALIDATE {create}").rows if row[0] == "warning"] == [
        "the log has no limit"
    ]
    world.session = Session()
    assert world.run(create).notices == ["the log has no limit"]


def test_validate_looks_at_the_target_and_tells_everything(world: World) -> None:
    world.target_troubles = ["cannot reach the broker"]
    text = "VALIDATE CREATE CHANGEFEED f FOR orders AS o, nothing INTO 'kafka://127.0.0.1:9092'"
    codes = [row[1] for row in world.run(text).rows]
    assert sorted(map(str, codes)) == ["CF1101", "CF5001"] and world.probed == ["o"]
    world.sources["shop"].down = ChangefeedError("CF2001", "cannot reach the source")
    codes = [row[1] for row in world.run(text).rows]
    assert sorted(map(str, codes)) == ["CF2001", "CF5001"] and world.probed == []
    world.probed = ["untouched"]
    world.run("VALIDATE CREATE CHANGEFEED f FOR orders INTO 'kafka://127.0.0.1:9092?x=1'")
    assert world.probed == ["untouched"], "its URI is wrong already"
    assert world.catalog.jobs() == []


def test_validate_says_what_of_the_target_it_did_not_look_at(world: World) -> None:
    world.target_overlooked = ["hdfs://nn/lake was not looked at"]
    rows = world.run("VALIDATE CREATE CHANGEFEED f FOR orders INTO 'null://'").rows
    assert ("warning", "", "", "", "hdfs://nn/lake was not looked at", "") in rows
    made = world.run("CREATE CHANGEFEED f FOR orders INTO 'null://'")
    assert "hdfs://nn/lake was not looked at" not in made.notices


def test_create_does_not_wait_for_the_target(world: World) -> None:
    world.target_troubles = ["cannot reach the broker"]
    world.run("CREATE CHANGEFEED f FOR orders INTO 'kafka://127.0.0.1:9092'")
    assert world.probed == []


def test_a_feed_does_not_move_to_a_sink_that_does_not_answer(world: World) -> None:
    world.run("CREATE CHANGEFEED f FOR orders INTO 'kafka://127.0.0.1:9092'")
    world.target_troubles = ["cannot reach the broker"]
    before = world.catalog.job("f")
    with pytest.raises(ChangefeedError) as refused:
        world.run("ALTER CHANGEFEED f INTO 'kafka://127.0.0.1:1'")
    assert refused.value.code.number == "CF5001" and world.probed == ["orders"]
    assert world.catalog.job("f") == before
    world.probed = ["untouched"]
    world.run("ALTER CHANGEFEED f SET resolved = '1s'")
    assert world.probed == ["untouched"], "the sink stays where it is"


def test_an_alter_is_remembered_with_what_was_before_and_who_did_it(world: World) -> None:
    world.run("CREATE CHANGEFEED f FOR orders INTO 'null://' WITH resolved = '10s'")
    world.run("ALTER CHANGEFEED f SET resolved = '5s', updated")
    world.run("ALTER CHANGEFEED f UNSET updated, resolved")
    told = [event.text for event in world.catalog.events(world.catalog.job("f").id)]
    by = " (by ann)"
    assert f"resolved from '10s' to '5s'; updated set{by}" in told
    assert f"resolved unset, was '5s'; updated unset{by}" in told


def test_validate_alter_changes_nothing_and_lists_every_problem(world: World) -> None:
    world.run("CREATE CHANGEFEED f FOR orders INTO 'kafka://127.0.0.1:9092'")
    before = world.catalog.job("f")
    assert world.run("VALIDATE ALTER CHANGEFEED f SET resolved = '1s' ADD items").rows == [
        ("ok", "", "", "", "f can be altered", "")
    ]
    world.target_troubles = ["cannot reach the broker"]
    rows = world.run("VALIDATE ALTER CHANGEFEED f INTO 'kafka://127.0.0.1:1'").rows
    assert [tuple(row)[:5] for row in rows] == [
        ("error", "CF5001", "sink", "kafka://127.0.0.1:1", "cannot reach the broker")
    ]
    rows = world.run("VALIDATE ALTER CHANGEFEED f SET formt = 'json' DROP nothing").rows
    assert next(tuple(row)[2:4] for row in rows) == ("option", "formt")
    rows = world.run("VALIDATE ALTER CHANGEFEED nosuch SET resolved = '1s'").rows
    assert rows[0][0] == "error"
    assert world.catalog.job("f") == before


# -- DROP ---------------------------------------------------------------------------------


def test_the_last_drop_leaves_nothing_at_the_source(alone: World) -> None:
    for name in "ab":
        alone.run(f"CREATE CHANGEFEED {name} FOR orders INTO 'null://' WITH initial_scan = 'no'")
    log = alone.catalog.directory / "log" / "shop"
    log.mkdir(parents=True)
    source = alone.sources["shop"]
    alone.run("DROP CHANGEFEED a")
    assert source.released == [] and log.exists()
    alone.run("DROP CHANGEFEED b")
    assert source.released == ["changefeed_k3x9qa_shop"]
    assert alone.catalog.source_states() == [] and not log.exists()
    alone.run("DROP EXTERNAL CONNECTION shop")


def test_a_source_that_cannot_be_reached_does_not_hold_up_a_drop(alone: World) -> None:
    alone.run("CREATE CHANGEFEED a FOR orders INTO 'null://' WITH initial_scan = 'no'")
    alone.sources["shop"].down = ChangefeedError("CF2001", "cannot reach the source")
    result = alone.run("DROP CHANGEFEED a")
    assert alone.catalog.jobs() == []
    assert "source shop still keeps its log for slot changefeed_k3x9qa_shop" in result.notices[0]
    assert [state.name for state in alone.catalog.source_states()] == ["shop"]


def test_drop_waits_for_the_node(world: World) -> None:
    world.run("CREATE CHANGEFEED a FOR orders INTO 'null://'")
    world.node.asleep = True
    answers: list[object] = []
    waiting = threading.Thread(target=lambda: answers.append(world.run("DROP CHANGEFEED a")))
    waiting.start()
    while world.catalog.job(1).wanted is not DesiredStatus.DROPPED:
        world.catalog.wait(world.catalog.version(), 0.05)
    assert waiting.is_alive()
    world.node.asleep = False
    world.node.wake()
    waiting.join(20)
    assert answers and world.catalog.jobs() == []


def test_alter_answers_when_the_running_feed_goes_by_it_or_says_that_it_does_not(
    world: World,
) -> None:
    world.run("CREATE CHANGEFEED f FOR orders, customers INTO 'null://'")
    assert world.run("ALTER CHANGEFEED f SET updated").notices == []
    world.interpreter.timings = Timings(answer=0.05)
    world.node.asleep = True
    late = 'changefeed "f" has not applied this yet: '
    for action in ("UNSET updated", "INTO 'null://other'", "DROP customers"):
        [notice] = world.run(f"ALTER CHANGEFEED f {action}").notices
        assert notice == f"{late}it first finishes what it has started", action
    world.catalog.save_source_state("shop", error="cannot reach the source")
    [notice] = world.run("ALTER CHANGEFEED f SET updated").notices
    assert notice == f"{late}it waits for source shop: cannot reach the source"
    world.fail_table("f", "orders", "CF5005 no topic")
    assert world.run("RESUME CHANGEFEED f").notices == [notice]
    job = world.catalog.job("f")
    assert (job.generation, job.taken) == (7, 2)
    world.node.asleep = False
    world.node.wake()
    assert world.catalog.job("f").taken == 7
    # Nobody runs it, so it goes by it when it starts.
    world.run("PAUSE CHANGEFEED f")
    world.node.asleep = True
    assert world.run("ALTER CHANGEFEED f UNSET updated").notices == []


def test_an_alter_of_a_feed_that_has_failed_says_how_it_goes_on(world: World) -> None:
    world.run("CREATE CHANGEFEED f FOR orders, customers INTO 'kafka://127.0.0.1:1'")
    world.catalog.transition(1, Status.FAILED, reason="x")
    told = 'changefeed "f" has failed: RESUME CHANGEFEED f continues it'
    assert told in world.run("ALTER CHANGEFEED f DROP customers").notices
    assert told not in world.run("ALTER CHANGEFEED f RESCAN").notices


def test_a_feed_that_fails_while_its_rescan_is_planned_goes_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.run("CREATE CHANGEFEED f FOR orders INTO 'kafka://127.0.0.1:1'")
    alter = world.catalog.alter_job

    def fails_first(job_id: int, **asked: Any) -> Job:
        world.catalog.transition(job_id, Status.FAILED, reason="x", generation=1)
        return alter(job_id, **asked)

    monkeypatch.setattr(world.catalog, "alter_job", fails_first)
    world.run("ALTER CHANGEFEED f RESCAN")
    assert world.catalog.job("f").status is not Status.FAILED


def test_a_rescan_takes_tables_that_were_replaced_and_are_not_found_out_yet(world: World) -> None:
    """Else they would fail after the statement, one by one, and each want it again."""
    world.run("CREATE CHANGEFEED f FOR orders, customers, items INTO 'delta:///lake'")
    names = {table.table.name: table.table for table in world.catalog.tables(1)}
    world.catalog.adopt_table_ids({names["orders"]: 7, names["customers"]: 8})
    source = world.sources["shop"]
    source.located = {"orders": 70, "customers": 8, "items": 9}
    source.down = ChangefeedError(Code.SOURCE_UNREACHABLE, "nobody answers")
    assert world.run("ALTER CHANGEFEED f RESCAN").notices == []
    source.down = None
    [notice] = world.run("ALTER CHANGEFEED f RESCAN").notices
    assert notice == (
        "table public.orders was replaced: the feed goes on with the table that has the name now"
    )
    ids = {table.table.name: table.table_id for table in world.catalog.tables(1)}
    assert ids == {"orders": 70, "customers": 8, "items": 0}, "what nobody began with is no other"


# -- PAUSE, RESUME ------------------------------------------------------------------------


def test_resume_of_a_running_feed_tries_its_failed_tables_again(world: World) -> None:
    world.run("CREATE CHANGEFEED f FOR orders, customers INTO 'null://'")
    job = world.catalog.job("f")
    lease = world.node.run(job.id)
    bad = ChangefeedError("CF5006", "a message is too large")
    orders = next(t for t in world.catalog.tables(job.id) if t.table == ORDERS)
    world.catalog.save_progress(job.id, {ORDERS: orders.failed(bad)}, lease=lease)
    assert "public.orders: a message is too large" in str(world.run("SHOW CHANGEFEEDS").rows)
    world.run("RESUME CHANGEFEED f")
    assert {t.state for t in world.catalog.tables(job.id)} == {TableState.PENDING}
    refused(world, "RESUME CHANGEFEED f", "CF1301")


def test_resume_of_a_failed_feed(world: World) -> None:
    world.run("CREATE CHANGEFEED f FOR orders INTO 'null://'")
    error = ChangefeedError("CF5003", "sink refused the data")
    world.catalog.transition(1, Status.FAILED, reason="x", error=error)
    assert str(refused(world, "PAUSE CHANGEFEED f", "CF1301")) == (
        'changefeed "f" is failed and cannot be paused'
    )
    assert world.run("RESUME CHANGEFEED f").rows == [(1, "f", "running")]


# -- ALTER --------------------------------------------------------------------------------


def test_alter_is_seen_by_the_runner_as_one_generation(world: World) -> None:
    world.run("CREATE CHANGEFEED f FOR orders INTO 'null://'")
    before = world.catalog.job("f")
    world.run("ALTER CHANGEFEED f ADD customers DROP orders SET diff, resolved = '1s'")
    after = world.catalog.job("f")
    assert after.generation == before.generation + 1
    assert [t.table for t in world.catalog.tables(1)] == [CUSTOMERS]
    assert after.options == {"diff": "", "resolved": "1s"}
    assert after.targets == ("public.customers",)
    assert CUSTOMERS in world.catalog.captured("shop")


def test_a_refused_alter_changes_nothing(world: World) -> None:
    world.run("CREATE CHANGEFEED f FOR orders INTO 'null://'")
    before = world.catalog.job("f")
    with pytest.raises(ChangefeedError):
        world.run("ALTER CHANGEFEED f ADD customers DROP nothing SET diff")
    assert world.catalog.job("f") == before
    assert [t.table for t in world.catalog.tables(1)] == [ORDERS]


def test_set_needs_no_source(world: World) -> None:
    world.run("CREATE CHANGEFEED f FOR orders INTO 'null://'")
    world.sources["shop"].down = ChangefeedError("CF2001", "cannot reach the source")
    world.run("ALTER CHANGEFEED f SET resolved = '1s'")
    refused(world, "ALTER CHANGEFEED f ADD customers", "CF2001")


# -- tables that come later ---------------------------------------------------------------


def test_later_tables_join_by_pattern(world: World) -> None:
    world.run("CREATE CHANGEFEED f FOR SCHEMA audit EXCLUDE TABLES tmp_*, orders INTO 'null://'")
    source = world.sources["shop"]
    for name in ("audit.late", "audit.tmp_x", "public.late"):
        schema, _, short = name.partition(".")
        table = TableName("shop", schema, short)
        source.schemas[table] = shape(table, {"id": "bigint"}, ["id"])
    job = world.catalog.job("f")
    assert expand_job(world.catalog, job, source) == ["shop.audit.late"]
    assert expand_job(world.catalog, world.catalog.job("f"), source) == []
    late = next(t for t in world.catalog.tables(job.id) if t.table.name == "late")
    assert late.joined and late.scan_wanted and late.topic == "late"
    assert world.catalog.job("f").generation == job.generation + 1


@pytest.mark.parametrize("options", ["WITH initial_scan = 'only'", ""])
def test_a_finished_or_scanning_feed_takes_no_later_tables(world: World, options: str) -> None:
    world.run(f"CREATE CHANGEFEED f FOR DATABASE shop INTO 'null://' {options}")
    if not options:
        world.catalog.transition(1, Status.SUCCEEDED, reason="end_time reached")
    source = world.sources["shop"]
    table = TableName("shop", "public", "late")
    source.schemas[table] = shape(table, {"id": "bigint"}, ["id"])
    assert expand_job(world.catalog, world.catalog.job("f"), source) == []


# -- SYNC ---------------------------------------------------------------------------------


def running(world: World) -> None:
    world.run("CREATE CHANGEFEED f FOR orders INTO 'null://'")


def test_sync_waits_for_the_log_and_then_for_the_sink(world: World) -> None:
    running(world)
    target = NOW + 5
    answers: list[object] = []
    asked = threading.Event()

    def place(_source: str, _position: str) -> Timestamp | None:
        asked.set()
        return world.logs.get("shop")

    interpreter = Interpreter(
        world.catalog,
        world.clock,
        host=world.node,
        open_source=world.open_source,
        log_lookup=place,
    )
    waiting = threading.Thread(
        target=lambda: answers.append(
            interpreter.execute("SYNC CHANGEFEED f", Session()).rows[0][:3]
        )
    )
    waiting.start()
    assert asked.wait(20)
    world.node.deliver("f", target - 1)
    world.logs["shop"] = Timestamp(target)
    asked.clear()
    assert asked.wait(20)
    assert waiting.is_alive() and not answers
    world.node.deliver("f", target)
    waiting.join(20)
    assert answers == [(1, "f", str(Timestamp(target)))]


def test_sync_asks_for_the_frontier_of_an_idle_source_and_for_delivery(world: World) -> None:
    """Nobody waits for the next heartbeat of a source, or for the pause between two rounds."""
    running(world)
    refused(world, "SYNC CHANGEFEED f TIMEOUT '50ms'", "CF1304")
    assert world.node.hastened == ["shop"]
    world.node.wakes = 0
    world.logs["shop"] = Timestamp(NOW)
    refused(world, "SYNC CHANGEFEED f TIMEOUT '50ms'", "CF1304")
    assert world.node.hastened == ["shop"], "the log has what SYNC waits for"
    assert world.node.wakes


def test_sync_that_is_late_names_the_lag(world: World) -> None:
    running(world)
    world.node.deliver("f", NOW - 90 * 10**9)
    world.logs["shop"] = Timestamp(NOW)
    error = refused(world, "SYNC CHANGEFEED f TIMEOUT '50ms'", "CF1304")
    assert error.message == (
        'changefeed "f" did not catch up within 50ms: it is 1m 30s behind (running)'
    )
    assert "what blocks it" in error.hint


def test_sync_of_a_reader_says_that_it_waits_for_its_program(world: World) -> None:
    world.run("CREATE CHANGEFEED f FOR orders INTO 'reader:///nowhere/orders'")
    world.logs["shop"] = Timestamp(NOW)
    error = refused(world, "SYNC CHANGEFEED f TIMEOUT '50ms'", "CF1304")
    assert "until the program that reads these changes has committed them" in error.hint


def test_sync_all_names_paused_feeds_and_ends_with_a_failed_one(world: World) -> None:
    running(world)
    world.run("CREATE CHANGEFEED g FOR customers INTO 'null://'")
    world.run("CREATE CHANGEFEED h FOR customers INTO 'null://'")
    world.run("PAUSE CHANGEFEED h")
    world.logs["shop"] = Timestamp(NOW)
    for name in ("f", "g"):
        world.node.deliver(name, NOW)
    result = world.run("SYNC ALL CHANGEFEEDS TIMEOUT '5s'")
    assert [row[1] for row in result.rows] == ["f", "g"]
    assert result.notices == ["paused changefeeds are left out: h"]
    world.catalog.transition(2, Status.FAILED, reason="", error=ChangefeedError("CF5001", "gone"))
    error = refused(world, "SYNC ALL CHANGEFEEDS", "CF1301")
    assert error.message == 'changefeed "g" is failed: gone'


def test_show_job_when_complete_waits_for_the_end(world: World) -> None:
    running(world)
    answers: list[object] = []
    waiting = threading.Thread(
        target=lambda: answers.append(
            world.interpreter.execute("SHOW JOB WHEN COMPLETE 1", Session()).rows[0][4]
        )
    )
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()
    world.catalog.transition(1, Status.SUCCEEDED, reason="all rows are delivered")
    waiting.join(20)
    assert answers == ["succeeded"]


def test_show_job_when_complete_needs_a_node(alone: World) -> None:
    running(alone)
    error = refused(alone, "SHOW JOB WHEN COMPLETE 1", "CF1301")
    assert error.message == 'no node runs changefeed "f"'


@pytest.mark.parametrize("status", [Status.PAUSED, Status.FAILED])
def test_sync_ends_when_the_feed_stops(world: World, status: Status) -> None:
    running(world)
    errors: list[ChangefeedError] = []
    begun = threading.Event()

    def place(_source: str, _position: str) -> Timestamp | None:
        begun.set()
        return None

    interpreter = Interpreter(
        world.catalog, world.clock, host=world.node, open_source=world.open_source, log_lookup=place
    )

    def wait() -> None:
        try:
            interpreter.execute("SYNC CHANGEFEED f", Session())
        except ChangefeedError as error:
            errors.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert begun.wait(20)
    trouble = ChangefeedError("CF5003", "sink refused the data")
    world.catalog.transition(1, status, reason="x", error=trouble)
    waiting.join(20)
    assert [e.code.number for e in errors] == ["CF1301"]
    assert errors[0].message == f'changefeed "f" is {status}: sink refused the data'
    assert "RESUME" in errors[0].hint


def test_sync_waits_for_a_node_that_is_not_heard_of_for_a_moment(world: World) -> None:
    running(world)
    looks: list[bool] = []

    def place(_source: str, _position: str) -> Timestamp | None:
        looks.append(world.node.up)
        world.node.up = len(looks) % 4 == 0
        if len(looks) == 10:
            world.catalog.transition(1, Status.PAUSED, reason="x")
        return None

    interpreter = Interpreter(
        world.catalog, world.clock, host=world.node, open_source=world.open_source, log_lookup=place
    )
    with pytest.raises(ChangefeedError, match="is paused"):
        interpreter.execute("SYNC CHANGEFEED f", Session())
    assert not all(looks)


def test_sync_ends_when_no_node_runs_any_more(world: World) -> None:
    running(world)

    def place(_source: str, _position: str) -> Timestamp | None:
        world.node.up = False
        world.clock.advance(NODE_TTL)
        return None

    interpreter = Interpreter(
        world.catalog, world.clock, host=world.node, open_source=world.open_source, log_lookup=place
    )
    with pytest.raises(ChangefeedError, match="no node runs"):
        interpreter.execute("SYNC CHANGEFEED f", Session())


def test_sync_does_not_pass_over_a_failed_table(world: World) -> None:
    running(world)
    world.logs["shop"] = Timestamp(NOW)
    world.node.deliver("f", NOW)
    lease = world.node.run(1)
    table = world.catalog.tables(1)[0]
    bad = table.failed(ChangefeedError("CF4001", "value cannot be encoded"))
    world.catalog.save_progress(1, {ORDERS: bad}, lease=lease)
    error = refused(world, "SYNC CHANGEFEED f", "CF1301")
    assert "public.orders: value cannot be encoded" in error.message


@pytest.mark.parametrize("timeout", ["'soon'", "'0s'", "'-1s'"])
def test_sync_with_a_strange_timeout(world: World, timeout: str) -> None:
    running(world)
    refused(world, f"SYNC CHANGEFEED f TIMEOUT {timeout}", "CF1204")


# -- the door -----------------------------------------------------------------------------


def test_a_node_is_as_good_as_its_text(world: World) -> None:
    world.interpreter.execute(nodes.Use("shop"), world.session)
    assert world.session.source == "shop"
    with pytest.raises(ChangefeedError) as caught:
        world.interpreter.execute(nodes.Use("nothing"), world.session)
    assert caught.value.text == "USE nothing"


def test_every_statement_of_the_language_has_a_handler() -> None:
    from changefeed.statements.context import HANDLERS

    statements = {
        kind
        for kind in vars(nodes).values()
        if isinstance(kind, type) and issubclass(kind, nodes.Statement)
    } - {nodes.Statement, nodes.Inquiry}
    assert set(HANDLERS) == statements


def test_a_script_stops_where_it_fails(world: World) -> None:
    script = "USE shop; USE nothing; CREATE EXTERNAL CONNECTION x AS 'null://'"
    results = world.interpreter.execute_script(script, world.session)
    assert next(results).tag == "USE"
    with pytest.raises(ChangefeedError):
        next(results)
    assert world.interpreter.connections() == ["shop"]


def test_the_hint_of_a_tables_error_is_that_of_the_error(world: World) -> None:
    """Not that of all errors of its code; it is gone with the error."""
    world.run("CREATE CHANGEFEED f FOR orders, customers INTO 'null://'")
    error = ChangefeedError("CF4001", "total is NaN", hint="ALTER CHANGEFEED .. RESCAN the table")
    world.node.fail_table("f", "orders", error)
    said = "ALTER CHANGEFEED f RESCAN public.orders"
    for statement in ("SHOW CHANGEFEED f TABLES", "SHOW CHANGEFEED f ERRORS"):
        result = world.run(statement)
        found = [dict(zip(result.columns, row, strict=True)) for row in result.rows]
        assert [row["hint"] for row in found if row["hint"]] == [said], statement
    checked = world.run("VALIDATE CHANGEFEED f")
    assert said in [row[5] for row in checked.rows]
    world.run(said)
    assert [table.hint for table in world.catalog.tables(1)] == ["", ""]


def test_a_feed_into_files_says_how_long_changes_wait(world: World) -> None:
    for name, options, said in (
        ("hourly", "", "changes wait up to 1h for others to share it (flush_interval)"),
        ("brisk", "?flush_interval=0s", None),
    ):
        world.run(f"CREATE CHANGEFEED {name} FOR orders INTO 'file:///srv/{name}{options}'")
        result = world.run(f"SHOW CHANGEFEED {name}")
        assert dict(zip(result.columns, result.rows[0], strict=True))["files"] == said


def test_a_session_keeps_the_source_that_it_has_read(world: World) -> None:
    """Whatever connections others make meanwhile."""
    used, new = Session(), Session()
    world.interpreter.execute("SHOW TABLES", used)
    other = "CREATE EXTERNAL CONNECTION other AS 'postgresql://app@db2/other'"
    made = world.interpreter.execute(other, Session())
    assert made.notices == []
    world.interpreter.execute("CREATE CHANGEFEED f FOR orders INTO 'null://'", used)
    assert world.catalog.job("f").source == "shop"
    assert world.interpreter.source_name(used) == "shop"
    with pytest.raises(ChangefeedError, match="no source is selected"):
        world.interpreter.execute("SHOW TABLES", new)

    third = world.interpreter.execute(other.replace("other", "Third"), used)
    assert third.notices == [
        "table names without a source are still those of shop: USE third changes that"
    ]
    world.interpreter.execute("USE third", used)
    world.interpreter.execute("DROP EXTERNAL CONNECTION third", used)
    assert world.interpreter.source_name(used) is None
    world.interpreter.execute("DROP EXTERNAL CONNECTION other", used)
    assert world.interpreter.source_name(used) == "shop"


def test_a_source_uri_is_read_and_tried_before_it_is_kept(world: World) -> None:
    world.open_source("away", "").down = ChangefeedError("CF2001", "no answer")
    for uri, code in (
        ("postgresql://app@db2/shop?nonsense=1", "CF1202"),
        ("postgresql://app@db2/away", "CF2001"),
    ):
        with pytest.raises(ChangefeedError) as caught:
            world.interpreter.use_source(Session(), uri)
        assert caught.value.code == code, uri
    assert world.interpreter.connections() == ["shop"]


def test_a_source_uri_becomes_a_connection_once(world: World) -> None:
    session = Session()
    uri = "postgresql://app:s3cret@db2/Shop-2?sslmode=require"
    world.interpreter.use_source(session, uri)
    assert session.source == "shop_2"
    world.interpreter.use_source(session, uri)
    assert world.interpreter.connections() == ["shop", "shop_2"]
    world.interpreter.use_source(session, "postgresql://app@db3/shop")
    assert session.source == "shop_3"  # shop and shop_2 are other databases
    world.interpreter.use_source(session, "shop")
    assert session.source == "shop"
    with pytest.raises(ChangefeedError) as caught:
        world.interpreter.use_source(session, "kafka://u:s3cret@k")
    assert "s3cret" not in str(caught.value)


def test_the_toolbar(world: World) -> None:
    world.run("CREATE CHANGEFEED a FOR orders INTO 'null://'")
    world.run("CREATE CHANGEFEED b FOR customers INTO 'null://'")
    world.node.deliver("a", NOW - 3 * 10**9)
    lease = world.node.run(2)
    scanning = replace(
        world.catalog.tables(2)[0], state=TableState.SCANNING, scan_rows=500, scan_total=2000
    )
    world.catalog.save_progress(2, {CUSTOMERS: scanning}, lease=lease)
    world.catalog.transition(2, Status.SCANNING, reason="initial scan")
    summary = world.interpreter.summary()
    assert (summary.feeds, summary.running, summary.troubled) == (2, 2, 0)
    assert summary.worst_lag == 3.0 and str(summary.worst_lag) == "3s"
    assert summary.scanning == {"b": (500, 2000)}
    world.catalog.transition(1, Status.FAILED, reason="x")
    assert world.interpreter.summary().troubled == 1


def test_sources_are_opened_once_and_anew_for_another_uri(world: World) -> None:
    opened: list[str] = []

    def open_source(name: str, uri: str) -> object:
        opened.append(uri)
        return world.open_source(name, uri)

    interpreter = Interpreter(world.catalog, world.clock, open_source=open_source)  # type: ignore[arg-type]
    session = Session()
    for _ in range(3):
        interpreter.execute("SHOW TABLES", session)
    assert len(opened) == 1
    interpreter.execute(
        "ALTER EXTERNAL CONNECTION shop AS 'postgresql://app:new@db:5432/shop'", session
    )
    interpreter.execute("SHOW TABLES", session)
    assert len(opened) == 2


def test_a_connection_in_use_stays_a_source(world: World) -> None:
    running(world)
    refused(world, "ALTER EXTERNAL CONNECTION shop AS 'kafka://k'", "CF1303")
    before = world.catalog.job("f").generation
    world.run("ALTER EXTERNAL CONNECTION shop AS 'postgresql://app:new@db:5432/shop'")
    assert world.catalog.job("f").generation == before + 1


@pytest.mark.parametrize(
    "uri", ["no scheme at all", "kafak://u:s3cret@k", "s3cret" * 9 + "://x", "://s3cret"]
)
def test_a_connection_must_lead_somewhere(world: World, uri: str) -> None:
    error = refused(world, f"CREATE EXTERNAL CONNECTION x AS '{uri}'", "CF1201")
    assert "s3cret" not in error.message + error.hint


# -- statements that can know -------------------------------------------------------------


def test_a_connection_keeps_the_topics_of_its_feeds(world: World) -> None:
    world.run("CREATE EXTERNAL CONNECTION k AS 'kafka://b:9092?topic_prefix=a_'")
    world.run("CREATE CHANGEFEED f FOR orders INTO 'external://k'")
    for uri in ("kafka://b:9092", "kafka://b:9092?topic_name=two", "file:///srv/x"):
        error = refused(world, f"ALTER EXTERNAL CONNECTION k AS '{uri}'", "CF1303")
        assert "is the sink of f, whose topic a_orders would become" in error.message
        assert "ALTER CHANGEFEED f SET sink" in error.hint
        assert world.catalog.connection("k").uri.endswith("topic_prefix=a_")
    world.run("ALTER EXTERNAL CONNECTION k AS 'kafka://c:9093?topic_prefix=a_'")
    assert world.catalog.connection("k").uri.startswith("kafka://c:9093")


def test_a_connection_still_fits_the_options_of_its_feeds(world: World) -> None:
    registry = "confluent_schema_registry=http://r:8081"
    world.run(f"CREATE EXTERNAL CONNECTION k AS 'kafka://b:9092?{registry}'")
    world.run("CREATE CHANGEFEED f FOR orders INTO 'external://k' WITH format = 'avro'")
    error = refused(world, "ALTER EXTERNAL CONNECTION k AS 'kafka://b:9092'", "CF1207")
    assert error.detail == 'changefeed "f" writes to it'


@pytest.mark.parametrize("statement", ["CREATE EXTERNAL CONNECTION new", ALTER_SHOP])
@pytest.mark.parametrize(
    ("uri", "code", "word"),
    [
        ("kafka://", "CF1201", "names no broker"),
        ("kafka://h:notaport", "CF1201", "host and port"),
        ("kafka://h:9092?nonsense=1", "CF1202", "[nonsense]"),
        ("kafka://h:9092?tls_enabled=maybe", "CF1207", "must be a bool"),
        ("kafka://h:9092?sasl_mechanism=AWS_MSK_IAM", "CF1207", "must be one of PLAIN"),
        ("kafka://h:9092?topic_partitions=0", "CF1207", "topic_partitions"),
        ("elasticsearch://h:9200/?bulk_size=abc", "CF1207", "must be an integer"),
        ("webhook-https://h/x?parallel=999", "CF1207", "between 1 and 64"),
        ("iceberg://cat/ns", "CF1207", "hadoop, rest or jdbc"),
        ("iceberg://cat/ns?type=glue", "CF1207", "one of hadoop, rest, jdbc"),
        ("snowflake://", "CF1201", "an account, a database and a schema"),
        ("bigquery://p", "CF1201", "a project and a dataset"),
        ("delta://x", "CF1201", "has no host"),
        ("file://relative/x", "CF1201", "an absolute path"),
        ("oracle://h", "CF1201", "names a database"),
        ("db2://h", "CF1201", "names a database"),
        ("sqlserver://h", "CF1201", "names a database"),
    ],
)
def test_a_uri_that_cannot_work_is_no_connection(
    world: World, statement: str, uri: str, code: str, word: str
) -> None:
    error = refused(world, f"{statement} AS '{uri}' WITH check = 'no'", code)
    assert word in error.message
    assert error.text is not None and error.span is not None
    assert error.text[error.span.start :].startswith("'")
    assert [c.uri for c in world.catalog.connections()] == [SHOP_URI]
    assert world.run("CREATE EXTERNAL CONNECTION erp AS 'debezium-mysql://h'").rows == []


@pytest.mark.parametrize("statement", ["CREATE EXTERNAL CONNECTION new", ALTER_SHOP])
@pytest.mark.parametrize(
    ("uri", "code"), [("postgresql://h/d", "CF2001"), ("kafka://k:9092", "CF5001")]
)
def test_a_connection_is_tried_unless_the_statement_says_otherwise(
    world: World, statement: str, uri: str, code: str
) -> None:
    world.open_source("new", "").down = ChangefeedError("CF2001", "no route to host")
    world.open_source("shop", "").down = ChangefeedError("CF2001", "no route to host")
    world.target_troubles = ["no broker answers"]
    error = refused(world, f"{statement} AS '{uri}'", code)
    assert error.hint.endswith("WITH check = 'no' stores the connection without trying the server.")
    assert ".." not in error.hint
    assert [c.uri for c in world.catalog.connections()] == [SHOP_URI]
    # One that is there already is not tried.
    world.run(f"CREATE EXTERNAL CONNECTION IF NOT EXISTS shop AS '{uri}'")
    world.run(f"{statement} AS '{uri}' WITH check = no")
    assert uri in [c.uri for c in world.catalog.connections()]


def test_a_package_that_is_missing_here_is_a_matter_of_the_check(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("changefeed.core.extras.installed", lambda package: package != "pyspark")
    refused(world, "CREATE EXTERNAL CONNECTION lake AS 'delta:///srv/lake'", "CF5005")
    world.run("CREATE EXTERNAL CONNECTION lake AS 'delta:///srv/lake' WITH check = 'no'")
    refused(world, "CREATE EXTERNAL CONNECTION l AS 'delta://x' WITH check = 'no'", "CF1201")


def test_what_was_not_tried_of_a_sink_is_said(world: World) -> None:
    world.target_overlooked = ["s3://bucket was not checked"]
    made = world.run("CREATE EXTERNAL CONNECTION lake AS 's3://bucket/x?AUTH=implicit'")
    assert made.notices == ["s3://bucket was not checked"]


@pytest.mark.parametrize(
    ("options", "code", "word"),
    [
        ("chek = 'no'", "CF1203", 'did you mean "check"?'),
        ("sslmode = 'require'", "CF1203", "a parameter of the URI"),
        ("check", "CF1204", ""),
        ("check = 'maybe'", "CF1204", ""),
        ("check = 'no', check = 'yes'", "CF1205", ""),
    ],
)
def test_options_of_a_connection_are_checked(
    world: World, options: str, code: str, word: str
) -> None:
    error = refused(world, f"CREATE EXTERNAL CONNECTION k AS 'kafka://k:9092' WITH {options}", code)
    assert word in error.hint


@pytest.mark.parametrize(
    ("uri", "code", "word"),
    [
        ("postgresql://u:p@ssw0rd@h/d", "CF1201", "%40"),
        ("postgresql://u:ssw0rd@h/d?sslmod=require", "CF1202", 'did you mean "sslmode"?'),
        ("postgresql://u:ssw0rd@h:port:1/d", "CF1201", "postgresql://user:password@host"),
    ],
)
def test_a_connection_that_cannot_be_read_is_refused(
    world: World, uri: str, code: str, word: str
) -> None:
    error = refused(world, f"CREATE EXTERNAL CONNECTION c AS '{uri}'", code)
    assert word in error.hint
    assert "ssw0rd" not in f"{error.message}{error.detail}{error.hint}{error.text}"
    assert [c.name for c in world.catalog.connections()] == ["shop"]


def test_a_connection_may_have_parameters_of_the_sink_of_its_scheme(world: World) -> None:
    world.run("CREATE EXTERNAL CONNECTION dw AS 'postgresql://u@h/d?schema=copies'")
    assert "dw" in [c.name for c in world.catalog.connections()]


def test_a_cursor_before_the_log_is_refused_for_the_first_tables_too(world: World) -> None:
    begin = Timestamp(NOW - 5 * 10**9)
    log = StateLayout(Path(world.catalog.directory)).log("shop")
    log.mkdir(parents=True)
    with LogWriter(log, LogSettings()) as writer:
        writer.append(Flush((), Frontier(begin, "0001")))
    world.catalog.set_captured("shop", {ORDERS: Timestamp.ZERO})
    early = f"CREATE CHANGEFEED f FOR orders INTO 'null://' WITH cursor = '{begin.wall - 1}'"
    error = refused(world, early, "CF3002")
    assert f"which begins at {begin}" in error.message
    world.run(f"CREATE CHANGEFEED f FOR orders INTO 'null://' WITH cursor = '{begin.wall + 1}'")


def test_the_failure_of_the_last_table_is_told_once(world: World) -> None:
    world.run("CREATE CHANGEFEED f FOR orders INTO 'null://'")
    error = ChangefeedError("CF5006", "its target table orders is gone")
    world.node.fail_table("f", "orders", error)
    world.fail("f", error)
    result = world.run("SHOW CHANGEFEED f ERRORS")
    rows = [dict(zip(result.columns, row, strict=True)) for row in result.rows]
    assert [(row["code"], row["table"]) for row in rows] == [("CF5006", "shop.public.orders")]
    assert "RESUME" in str(rows[0]["hint"])
