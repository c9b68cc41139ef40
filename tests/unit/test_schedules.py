"""Schedules: when a node makes which feed, what follows a failure, and the statements."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from changefeed.api import Session
from changefeed.apply import Declaration
from changefeed.catalog import Catalog, Schedule, ScheduledRun, Status
from changefeed.core.errors import ChangefeedError
from changefeed.core.recurring import next_time
from changefeed.node.schedules import ScheduledFeeds
from changefeed.statements.rights import Role
from changefeed.statements.schedules import run_sql, schedule_sql
from grammar.parser import parse
from grammar.printer import to_sql
from grammar.split import split
from tests.golden.world import NOW, World

HOUR = 3600 * 10**9
#: The first full hour after the world's time.
FIRST = NOW - NOW % HOUR + HOUR
HOURLY = "CREATE SCHEDULE hourly FOR CHANGEFEED orders INTO 'file:///x' RECURRING '@hourly'"


class Bench:
    """A world and the part of its node that makes runs."""

    def __init__(self, folder: Path) -> None:
        self.world = World(folder)
        self.world.shop()
        self.node = self.another_node()

    def another_node(
        self, make: Callable[[str, ScheduledRun], object] | None = None
    ) -> ScheduledFeeds:
        return ScheduledFeeds(self.world.catalog, self.world.clock, make or self.make)

    def make(self, statement: str, run: ScheduledRun) -> None:
        session = Session(client="schedule", user="", run=run)
        self.world.interpreter.execute(statement, session)

    def look(self, *nodes: ScheduledFeeds) -> None:
        """Let nodes look, and wait until they have done what they began."""
        for node in nodes or (self.node,):
            node.look(self.world.catalog.version())
        for thread in threading.enumerate():
            if thread.name.startswith("schedule-"):
                thread.join(30)
                assert not thread.is_alive()

    def at(self, wall: int) -> list[str]:
        """The node looks at this time; the feeds that there are then."""
        self.world.clock.wall = wall
        self.look()
        return [f"{job.name} {job.status}" for job in self.world.catalog.jobs()]

    def end(self, name: str) -> None:
        job = self.world.catalog.job(name)
        self.world.catalog.transition(job.id, Status.SUCCEEDED, reason="initial scan finished")

    def fail(self, name: str) -> None:
        self.world.fail(name, ChangefeedError("CF5001", "the sink is gone"))

    @property
    def schedule(self) -> Schedule:
        (found,) = self.world.catalog.schedules()
        return found


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.world.close()


def options(bench: Bench, given: str) -> None:
    bench.world.run(f"{HOURLY} WITH SCHEDULE OPTIONS {given}")


# ---------------------------------------------------------------------- when and what


def test_times_are_those_of_the_expression_in_utc_and_later_than_now() -> None:
    def after(expression: str, *moment: int) -> str:
        begin = dt.datetime(*moment, tzinfo=dt.UTC)  # type: ignore[misc,arg-type]
        found = next_time(expression, int(begin.timestamp()) * 10**9)
        return f"{dt.datetime.fromtimestamp(found / 1e9, dt.UTC):%Y-%m-%d %H:%M:%S}"

    assert after("@daily", 2026, 3, 29, 0, 0, 0) == "2026-03-30 00:00:00"
    # The night in which clocks of Europe are put forward has all its hours.
    assert after("30 1 * * *", 2026, 3, 29) == "2026-03-29 01:30:00"
    assert after("*/15 8-18 * * MON-FRI", 2026, 11, 27, 18, 50) == "2026-11-30 08:00:00"
    for wrong in ("* * * *", "0 0 * * * *", "61 * * * *", "@reboot", "0 0 30 2 *", ""):
        with pytest.raises(ValueError, match=r"\w"):
            next_time(wrong, NOW)


def test_a_run_is_a_feed_of_its_own_that_ends_with_its_scan(bench: Bench) -> None:
    (made,) = bench.world.run(HOURLY).objects()
    assert (made["name"], made["first_run"]) == ("hourly", "2023-11-14 23:00:00.000000")
    assert bench.at(FIRST - 1) == []
    assert bench.at(FIRST) == ["hourly_20231114_230000 running"]
    job = bench.world.catalog.job("hourly_20231114_230000")
    assert job.options == {"initial_scan": "only"} and job.sink_uri == "file:///x"
    assert (bench.schedule.due, bench.schedule.last_due) == (FIRST + HOUR, FIRST)
    # Nothing more before the next time, at which the first has ended.
    assert len(bench.at(FIRST + HOUR - 1)) == 1
    bench.end(job.name)
    assert bench.at(FIRST + HOUR)[1:] == ["hourly_20231115_000000 running"]


def test_times_that_were_missed_are_made_up_for_by_one_run(bench: Bench) -> None:
    bench.world.run(HOURLY)
    later = FIRST + 100 * HOUR + 5
    assert bench.at(later) == ["hourly_20231114_230000 running"]
    assert bench.schedule.due == FIRST + 101 * HOUR
    assert len(bench.at(later + 1)) == 1


def test_the_first_run_may_be_now_or_at_a_time(bench: Bench) -> None:
    options(bench, "first_run = now")
    assert bench.at(NOW) == ["hourly_20231114_221320 running"]
    assert bench.schedule.due == FIRST
    bench.world.run(
        "CREATE SCHEDULE later FOR CHANGEFEED items INTO 'null://' RECURRING '@yearly' "
        "WITH SCHEDULE OPTIONS first_run = '2023-11-14 22:30:00'"
    )
    shown = bench.world.run("SHOW CREATE SCHEDULE later").rows[0][1]
    assert str(shown).endswith("first_run = '2023-11-14T22:30:00Z'")
    assert bench.at(NOW + HOUR // 2)[1:] == ["later_20231114_223000 running"]


# ---------------------------------------------------------------------- nodes


def test_of_two_nodes_that_make_a_run_at_once_one_does(bench: Bench) -> None:
    bench.world.run(HOURLY)
    both = threading.Barrier(2)

    def make(statement: str, run: ScheduledRun) -> None:
        both.wait(30)
        bench.make(statement, run)

    bench.world.clock.wall = FIRST
    bench.look(bench.another_node(make), bench.another_node(make))
    assert [job.name for job in bench.world.catalog.jobs()] == ["hourly_20231114_230000"]
    assert (bench.schedule.due, bench.schedule.error) == (FIRST + HOUR, None)


# That is how threads of a process end that dies.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_run_that_a_node_began_is_made_once_whenever_the_node_dies(bench: Bench) -> None:
    def before(statement: str, run: ScheduledRun) -> None:
        raise SystemExit

    def after(statement: str, run: ScheduledRun) -> None:
        bench.make(statement, run)
        raise SystemExit

    bench.world.run(HOURLY)
    bench.world.clock.wall = FIRST
    bench.look(bench.another_node(before))
    assert bench.world.catalog.jobs() == [] and bench.schedule.due == FIRST
    bench.look(bench.another_node(after))
    bench.look(bench.another_node())
    assert [job.name for job in bench.world.catalog.jobs()] == ["hourly_20231114_230000"]


def test_what_was_paused_or_dropped_meanwhile_makes_no_feed(bench: Bench) -> None:
    for change in ("PAUSE SCHEDULE hourly", "DROP SCHEDULE hourly"):
        bench.world.clock.wall = NOW
        bench.world.run(HOURLY.replace("SCHEDULE ", "SCHEDULE IF NOT EXISTS "))
        bench.world.run("RESUME SCHEDULE hourly")

        def make(statement: str, run: ScheduledRun, change: str = change) -> None:
            bench.world.run(change)
            bench.make(statement, run)

        bench.world.clock.wall = FIRST
        bench.look(bench.another_node(make))
        assert bench.world.catalog.jobs() == []
        assert [each.error for each in bench.world.catalog.schedules()] in ([None], [])


# ---------------------------------------------------------------------- the run before


def test_a_run_waits_for_the_one_before(bench: Bench) -> None:
    bench.world.run(HOURLY)
    bench.at(FIRST)
    assert len(bench.at(FIRST + HOUR)) == 1
    assert [row[2] for row in bench.world.run("SHOW SCHEDULES").rows] == ["waiting"]
    bench.end("hourly_20231114_230000")
    assert bench.at(FIRST + HOUR + 5)[1:] == ["hourly_20231115_000000 running"]


def test_a_run_is_left_out_while_the_one_before_is_under_way(bench: Bench) -> None:
    options(bench, "on_previous_running = 'skip'")
    bench.at(FIRST)
    bench.world.run("PAUSE CHANGEFEED hourly_20231114_230000")
    assert len(bench.at(FIRST + HOUR)) == 1
    bench.world.run("RESUME CHANGEFEED hourly_20231114_230000")
    bench.end("hourly_20231114_230000")
    assert len(bench.at(FIRST + HOUR + 5)) == 1
    assert bench.at(FIRST + 2 * HOUR)[1:] == ["hourly_20231115_010000 running"]


def test_a_run_may_begin_beside_the_one_before(bench: Bench) -> None:
    options(bench, "on_previous_running = 'start'")
    bench.at(FIRST)
    assert [name.split()[1] for name in bench.at(FIRST + HOUR)] == ["running", "running"]


# ---------------------------------------------------------------------- failures


def test_after_a_failure_the_next_time_is_as_it_was(bench: Bench) -> None:
    bench.world.run(HOURLY)
    bench.at(FIRST)
    bench.fail("hourly_20231114_230000")
    bench.at(FIRST + 1)
    assert bench.schedule.error == "run hourly_20231114_230000 has failed: the sink is gone"
    assert (bench.schedule.due, bench.schedule.paused) == (FIRST + HOUR, False)
    # The failed feed goes with the next run, the error when one has succeeded.
    assert bench.at(FIRST + HOUR) == ["hourly_20231115_000000 running"]
    assert bench.schedule.error is not None
    bench.end("hourly_20231115_000000")
    bench.at(FIRST + HOUR + 1)
    assert bench.schedule.error is None


def test_after_a_failure_a_run_may_be_tried_again_in_a_minute(bench: Bench) -> None:
    options(bench, "on_execution_failure = 'retry'")
    bench.at(FIRST)
    bench.fail("hourly_20231114_230000")
    bench.at(FIRST + 10**9)
    assert bench.at(FIRST + 60 * 10**9) == ["hourly_20231114_230000 failed"]
    assert bench.at(FIRST + 61 * 10**9) == ["hourly_20231114_230101 running"]
    assert bench.schedule.due == FIRST + HOUR


def test_after_a_failure_a_schedule_may_pause(bench: Bench) -> None:
    options(bench, "on_execution_failure = 'pause'")
    bench.at(FIRST)
    bench.fail("hourly_20231114_230000")
    bench.at(FIRST + 1)
    assert [row[2] for row in bench.world.run("SHOW PAUSED SCHEDULES").rows] == ["paused"]
    assert bench.at(FIRST + HOUR) == ["hourly_20231114_230000 failed"]
    bench.world.run("RESUME SCHEDULE hourly")
    assert bench.schedule.error is not None, "until a run succeeds"
    assert bench.at(FIRST + 2 * HOUR) == ["hourly_20231115_010000 running"]


def test_a_run_that_cannot_begin_has_failed(bench: Bench) -> None:
    options(bench, "on_execution_failure = 'retry'")
    shop = bench.world.open_source("shop", "")
    shop.down = ChangefeedError("CF2001", "the server does not answer")
    assert bench.at(FIRST) == []
    assert bench.schedule.error == "a run could not begin: CF2001 the server does not answer"
    shop.down = None
    assert bench.at(FIRST + 59 * 10**9) == []
    assert bench.at(FIRST + 60 * 10**9) == ["hourly_20231114_230100 running"]


def test_a_node_reads_schedules_when_something_may_be_due(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[int] = []
    read = bench.world.catalog.schedules

    def counted() -> list[Schedule]:
        reads.append(bench.world.clock.wall)
        return read()

    monkeypatch.setattr(bench.world.catalog, "schedules", counted)
    bench.at(NOW)
    bench.at(NOW + 10**9)
    assert reads == [NOW]
    bench.world.run(HOURLY)
    reads.clear()
    for wall in (FIRST - 2, FIRST - 1, FIRST, FIRST + 1):
        bench.at(wall)
    # A run that is under way may end, which is no change of the state's version.
    assert reads == [FIRST - 2, FIRST, FIRST + 1]


def test_a_feed_that_a_person_drops_is_over(bench: Bench) -> None:
    bench.world.run(HOURLY)
    bench.at(FIRST)
    bench.world.run("DROP CHANGEFEED hourly_20231114_230000")
    assert bench.at(FIRST + HOUR) == ["hourly_20231115_000000 running"]
    assert bench.schedule.error is None


def test_a_bounded_number_of_runs_stays(bench: Bench) -> None:
    assert bench.world.catalog.kept_runs == 10
    bench.world.catalog.kept_runs = 3
    bench.world.run(HOURLY)
    for hour in range(5):
        bench.end(bench.at(FIRST + hour * HOUR)[-1].split()[0])
    assert [job.id for job in bench.world.catalog.jobs()] == [3, 4, 5]


# ---------------------------------------------------------------------- statements


def refused(bench: Bench, statement: str) -> str:
    with pytest.raises(ChangefeedError) as caught:
        bench.world.run(statement)
    return f"{caught.value.code.number} {caught.value.message}"


@pytest.mark.parametrize(
    ("statement", "error"),
    [
        (
            HOURLY.replace("@hourly", "0 25 * * *"),
            "CF1204 RECURRING is no cron expression: bad hour",
        ),
        (
            HOURLY.replace("@hourly", "*/99 * * * *"),
            "CF1204 RECURRING is no cron expression: the step of the minute is 99, and may be 59",
        ),
        (
            HOURLY.replace("@hourly", "0 1 * *"),
            "CF1204 RECURRING is no cron expression: it has 4 fields, and needs 5",
        ),
        (
            f"{HOURLY} WITH SCHEDULE OPTIONS first_run = 'soon'",
            "CF1204 first_run is 'now' or a time",
        ),
        (
            f"{HOURLY} WITH SCHEDULE OPTIONS on_previous_running = 'go'",
            "CF1204 unknown on_previous",
        ),
        (f"{HOURLY} WITH SCHEDULE OPTIONS resolved = '1s'", 'CF1203 invalid option "resolved"'),
        (
            HOURLY.replace("RECURRING", "WITH initial_scan = 'yes' RECURRING"),
            "CF1205 a run of a sched",
        ),
        (
            HOURLY.replace("RECURRING", "WITH no_initial_scan RECURRING"),
            "CF1205 a run of a schedule",
        ),
        (HOURLY.replace("RECURRING", "WITH updated RECURRING"), "CF1205 "),
        (HOURLY.replace("orders", "nothing"), 'CF1101 table "nothing" does not exist'),
        ("PAUSE SCHEDULE hourli", 'CF1101 schedule "hourli" does not exist'),
        ("SHOW SCHEDULE 7", 'CF1101 schedule "7" does not exist'),
    ],
)
def test_what_is_wrong_is_said(bench: Bench, statement: str, error: str) -> None:
    assert refused(bench, statement).startswith(error)
    assert bench.world.catalog.schedules() == [] and bench.world.catalog.jobs() == []


def test_names(bench: Bench) -> None:
    bench.world.run(HOURLY)
    assert refused(bench, HOURLY) == 'CF1102 schedule "hourly" already exists'
    same = bench.world.run(HOURLY.replace("SCHEDULE", "SCHEDULE IF NOT EXISTS", 1))
    assert same.notices == ['schedule "hourly" already exists, skipping']
    made = bench.world.run(HOURLY.replace(" hourly", "", 1)).objects()
    assert made[0]["name"] == "schedule_2"
    bench.world.run("PAUSE SCHEDULE 2, hourly")
    assert bench.world.run("SHOW RUNNING SCHEDULES").rows == []
    gone = bench.world.run("DROP SCHEDULE IF EXISTS 2, hourly, other")
    assert gone.notices == ['schedule "other" does not exist, skipping']
    assert bench.world.catalog.schedules() == []


def test_what_a_schedule_uses_cannot_be_dropped(bench: Bench) -> None:
    bench.world.run("CREATE EXTERNAL CONNECTION out AS 'kafka://k:9092' WITH check = 'no'")
    bench.world.run(HOURLY.replace("file:///x", "external://out"))
    for name in ("out", "shop"):
        assert refused(bench, f"DROP EXTERNAL CONNECTION {name}") == (
            f'CF1301 external connection "{name}" is used by schedule hourly'
        )
    used = {row[0]: str(row[2]) for row in bench.world.run("SHOW EXTERNAL CONNECTIONS").rows}
    assert used == {"out": "schedule hourly", "shop": "schedule hourly"}
    bench.world.run("CREATE CHANGEFEED f FOR orders INTO 'null://'")
    with pytest.raises(ChangefeedError) as caught:
        bench.world.run("DROP EXTERNAL CONNECTION shop")
    assert caught.value.hint == "DROP CHANGEFEED f and DROP SCHEDULE hourly first."


def test_secrets_are_in_the_run_and_nowhere_else(bench: Bench) -> None:
    secret = "s3://bucket/x?AWS_ACCESS_KEY_ID=key&AWS_SECRET_ACCESS_KEY=s3cret"
    bench.world.run(HOURLY.replace("file:///x", secret) + " WITH SCHEDULE OPTIONS first_run = now")
    statements = ("SHOW SCHEDULES", "SHOW SCHEDULE hourly", "SHOW CREATE SCHEDULE hourly")
    for statement in (*statements, "SHOW CREATE ALL", "SHOW AUDIT"):
        bench.world.transcript(statement)  # refuses secrets
    assert "s3cret" not in repr(bench.schedule)
    bench.at(NOW)
    assert bench.world.catalog.jobs()[0].sink_uri == secret


def test_the_query_of_a_schedule_is_that_of_its_runs() -> None:
    select = "SELECT id, upper(note) AS loud FROM shop.public.orders WHERE total > 5"
    schedule = Schedule(
        "shop", "null://", (select,), {"format": "json", "key_in_value": ""}, "@daily",
        "retry", "skip", due=FIRST, name="Q 1", created=NOW,
    )  # fmt: skip
    options = "format = 'json', key_in_value"
    assert run_sql(schedule, FIRST) == (
        f"CREATE CHANGEFEED \"Q 1_20231114_230000\" INTO 'null://' WITH {options} AS {select}"
    )
    written = schedule_sql(replace(schedule, due=next_time("@daily", NOW)))
    assert written == (
        f"CREATE SCHEDULE \"Q 1\" FOR CHANGEFEED INTO 'null://' WITH {options} AS {select} "
        "RECURRING '@daily' WITH SCHEDULE OPTIONS on_execution_failure = 'retry', "
        "on_previous_running = 'skip'"
    )
    assert to_sql(parse(written)) == written


def test_export_and_apply_know_schedules(bench: Bench) -> None:
    options(bench, "on_execution_failure = 'pause', first_run = 'now'")
    bench.at(NOW)
    world = bench.world
    exported = [str(row[2]) for row in world.run("SHOW CREATE ALL").rows]
    # Not the feed of its run.
    assert [text.split()[1] for text in exported] == ["EXTERNAL", "SCHEDULE"]
    (schedule,) = exported[1:]
    assert world.run("SHOW CREATE SCHEDULE hourly").rows == [("hourly", schedule)]

    def applied(text: str) -> list[str]:
        parts = [piece.text for piece in split(text)]
        done = Declaration(parts, world.interpreter, {}).apply(prune=True)
        return [f"{step.sign} {step.what}" for step, _ in done]

    shop = "CREATE EXTERNAL CONNECTION shop AS 'postgresql://app:redacted@db:5432/shop'"
    assert applied(f"{shop}; {schedule}") == []
    assert (
        applied(f"{shop}; USE shop; {HOURLY} WITH SCHEDULE OPTIONS on_execution_failure = pause")
        == []
    )
    world.run("PAUSE SCHEDULE hourly")
    before = bench.schedule
    assert before.last_due is not None
    assert applied(f"{shop}; USE shop; {HOURLY}") == ["~ schedule hourly"]
    # It is the same schedule still: paused, and with its runs.
    assert bench.schedule == replace(before, on_failure="reschedule")
    assert applied(shop) == ["- schedule hourly"]
    # The feed of the run goes on.
    assert [job.name for job in world.catalog.jobs()] == ["hourly_20231114_221320"]


def test_nothing_is_applied_before_every_secret_is_known(bench: Bench) -> None:
    """A user is not changed when a schedule cannot be."""
    text = "CREATE USER ann; USE shop; " + HOURLY.replace(
        "file:///x", "s3://b/x?AWS_ACCESS_KEY_ID=k&AWS_SECRET_ACCESS_KEY=${KEYS}"
    )
    steps = Declaration([each.text for each in split(text)], bench.world.interpreter, {})
    with pytest.raises(ChangefeedError, match="schedule hourly needs the environment variable"):
        next(steps.apply(prune=False))
    assert bench.world.catalog.users() == []


def test_explain_and_validate_name_the_next_runs_and_look_at_the_feed(bench: Bench) -> None:
    stages = [tuple(map(str, row)) for row in bench.world.run(f"EXPLAIN {HOURLY}").rows]
    assert stages[0] == (
        "schedule",
        "@hourly: runs at 2023-11-14 23:00:00 UTC, 2023-11-15 00:00:00 UTC, "
        "2023-11-15 01:00:00 UTC",
    )
    feed = bench.world.run(
        "EXPLAIN CREATE CHANGEFEED FOR orders INTO 'file:///x' WITH initial_scan = 'only'"
    )
    assert stages[1:] == [tuple(map(str, row)) for row in feed.rows]
    checked = bench.world.run(f"VALIDATE {HOURLY}").objects()
    assert [row["severity"] for row in checked] == ["ok", "ok"]
    assert str(checked[1]["problem"]).startswith("@hourly: runs at 2023-11-14 23:00:00 UTC")
    wrong = HOURLY.replace("orders", "nothing").replace("@hourly", "0 25 * * *")
    wrong += " WITH SCHEDULE OPTIONS on_previous_running = 'go'"
    checked = bench.world.run(f"VALIDATE {wrong}").objects()
    assert [(row["code"], row["place"], row["where"]) for row in checked] == [
        ("CF1204", "option", "on_previous_running"),
        ("CF1204", "option", "RECURRING"),
        ("CF1101", "table", "nothing"),
    ]
    assert bench.world.catalog.schedules() == []
    bench.world.run(HOURLY)
    assert refused(bench, f"EXPLAIN {HOURLY}") == 'CF1102 schedule "hourly" already exists'
    (taken,) = bench.world.run(f"VALIDATE {HOURLY}").objects()
    assert (taken["code"], taken["where"]) == ("CF1102", "hourly")


def test_a_schedule_is_replaced_in_its_place(bench: Bench) -> None:
    secret = "s3://bucket/x?AWS_ACCESS_KEY_ID=key&AWS_SECRET_ACCESS_KEY=s3cret"
    bench.world.run(HOURLY.replace("file:///x", secret))
    bench.at(FIRST)
    bench.world.run("PAUSE SCHEDULE hourly")
    before = bench.schedule
    replaced = bench.world.run("SHOW CREATE SCHEDULE hourly").objects()[0]["create_statement"]
    assert "redacted" in str(replaced)
    again = str(replaced).replace("CREATE", "CREATE OR REPLACE")
    assert bench.world.run(f"EXPLAIN {again}").rows[0][0] == "nothing"
    (notice,) = bench.world.run(again).notices
    assert notice == 'schedule "hourly" is as the statement says: nothing was changed'
    other = again.replace("orders", "orders, items").replace("'@hourly'", "'@daily'")
    shown = [tuple(map(str, row)) for row in bench.world.run(f"EXPLAIN {other}").rows]
    assert shown[-1] == ("change", "RECURRING from '@hourly' to '@daily'")
    assert shown[:-1] == [("add", "public.items")]
    assert bench.schedule == before
    made = bench.world.run(other)
    assert made.notices[-1] == "run hourly_20231114_230000 goes on"
    after = bench.schedule
    assert (after.sink_uri, after.paused, after.job_id) == (secret, True, before.job_id)
    assert after.recurring == "@daily" and after.due == next_time("@daily", FIRST)
    assert refused(
        bench, HOURLY.replace("CREATE", "CREATE OR REPLACE").replace(" hourly", "", 1)
    ) == ("CF1303 CREATE OR REPLACE needs the name of a schedule")


def test_who_may(bench: Bench) -> None:
    may = {
        HOURLY: Role.ADMIN,
        "PAUSE SCHEDULE hourly": Role.OPERATOR,
        "RESUME SCHEDULE hourly": Role.OPERATOR,
        "SHOW SCHEDULES": Role.VIEWER,
        "SHOW SCHEDULE hourly": Role.VIEWER,
        "SHOW CREATE SCHEDULE hourly": Role.VIEWER,
        "DROP SCHEDULE hourly": Role.ADMIN,
    }
    for statement, least in may.items():
        for role in Role:
            if not role.covers(least):
                with pytest.raises(ChangefeedError, match="needs the role"):
                    bench.world.interpreter.execute(statement, Session(user="ann", role=role))
        bench.world.interpreter.execute(statement, Session(user="ann", role=least))


def test_schedules_survive_the_state_being_opened_again(bench: Bench) -> None:
    bench.world.run(HOURLY)
    before = bench.schedule
    state = Catalog.open(bench.world.catalog.directory)
    assert state.schedules() == [before]
    state.close()
