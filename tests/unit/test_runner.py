"""When a feed tries again and when it ends: its thread's decisions, over parts that do as told."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from changefeed.capture.feed_budgets import OverLimit
from changefeed.catalog import Catalog, Job, LeaseLost, Status
from changefeed.catalog.model import JobSpec, TableProgress, TableState
from changefeed.core.clock import ManualClock, Timestamp, Waitable
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.events import Frontier
from changefeed.core.schema import TableName
from changefeed.core.state import StateLayout
from changefeed.core.table_errors import TableError, TableFailure
from changefeed.core.telemetry import log
from changefeed.core.timings import Timings
from changefeed.feeds.feed import Feed
from changefeed.feeds.message_cache import MessageCache
from changefeed.feeds.runner import FeedRunner, FeedServices
from changefeed.spark.session import NodeSpark
from sinks.base import Sink
from tests.helpers.waiting import until

LONG = 3600.0
T, U = (TableName("shop", "public", name) for name in "tu")
REFUSED = ChangefeedError(Code.SINK_CANNOT_TAKE_TABLE, "the table is refused")


class Source:
    """A source that has nothing and lacks nothing."""

    name = "shop"
    folder = Path("log")
    held_up = ""
    error = None
    frontier: Frontier | None = None

    def __init__(self) -> None:
        self.problems: dict[TableName, ChangefeedError] = {}
        self.gaps: dict[TableName, object] = {}
        self.since: Timestamp | None = None
        self.over: OverLimit | None = None
        self.log = self.tables = self

    def over_limit(self, job_id: int) -> OverLimit | None:
        return self.over

    def begin_feed(self, job_id: int) -> None:
        self.over = None

    def silent_since(self, seconds: float) -> Timestamp | None:
        return self.since

    def waiter(self) -> None:
        """The rounds here wait for nothing."""

    def lost(self, table: TableName, table_id: int) -> None:
        return None


Step = bool | Exception


class Scanning:
    """A scan; ``steps`` are the turns until it breaks: whether it came further, or what it met."""

    def __init__(self) -> None:
        self.advanced = self.delivers = self.waits = False
        self.owed = self.reads = True
        self.steps: list[Step] = []
        self.stopped = 0
        #: A turn waits here.
        self.gate = threading.Event()
        self.gate.set()

    def begin(self, feed: object) -> None:
        """Nothing to do."""

    def owes(self, feed: object) -> bool:
        return self.owed

    active = owes

    def text(self) -> str:
        return "initial scan"

    def follow(self, feed: object, show: object) -> None:
        self.gate.wait(20)
        if not self.steps:
            raise ChangefeedError(Code.SINK_UNREACHABLE, "the sink is away")
        step = self.steps.pop(0)
        if isinstance(step, Exception):
            raise step
        self.advanced = step

    def stop(self, feed: object) -> None:
        self.stopped += 1


class Rounds:
    """Delivers nothing, but where it is told that it did."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.moved = self.hurried = False
        self.reloads = self.woken = 0
        #: Of each wait: whether time that passes ends it.
        self.prompt: list[bool] = []
        #: What happens meanwhile.
        self.waiting: Callable[[], None] = lambda: None

    def turn(self, feed: object) -> bool:
        return self.moved

    def joining(self, feed: object) -> bool:
        return False

    def reloaded(self) -> None:
        self.reloads += 1

    def hurry(self) -> None:
        self.hurried = True

    def wake(self) -> None:
        self.woken += 1

    def wait(self, feed: object, *, prompt: bool) -> None:
        self.prompt.append(prompt)
        self.waiting()
        self._clock.advance(LONG)


class Bench:
    """A feed of two tables and its runner, whose thread is the test's."""

    def __init__(
        self, folder: Path, sink_uri: str = "null://", end: int | None = None, **options: str
    ) -> None:
        self.catalog = Catalog.open(folder)
        tables = tuple(TableProgress(table, table.name) for table in (T, U))
        spec = JobSpec("shop", ("TABLE t",), tables, sink_uri=sink_uri, name="f",
                       options={"retry_for": "2h", **options},
                       end_time=None if end is None else Timestamp(end))  # fmt: skip
        job = self.catalog.create_job(spec)
        lease = self.catalog.acquire_lease(job.id, "n", 60)
        assert lease is not None
        self.clock = ManualClock()
        self.ended = 0
        services = FeedServices(
            self.catalog, NodeSpark(), MessageCache(), "n", self._ended, clock=self.clock
        )
        self.scanning, self.rounds = Scanning(), Rounds(self.clock)
        self.source = Source()
        self.runner = FeedRunner(job, lease, services, cast(Any, self.source))
        parts = cast(Any, self.runner)
        #: What the rounds that the runner made call after a commit.
        self.committed: Callable[[], None] = parts._rounds._committed
        parts._scanning = parts._status._scanning = self.scanning
        parts._rounds = self.rounds

    def _ended(self) -> None:
        self.ended += 1

    def goes_on(self, *steps: Step) -> bool:
        """Whether the feed does, after a scan of so many hours, and what it met then."""
        self.scanning.steps = list(steps)
        return self.runner._guarded()

    def done(self, upto: int) -> None:
        """The tables are scanned, and delivered up to there."""
        self.scanning.owed = False
        for name in self.runner._feed.tables:
            self.runner._feed.update(
                name, state=TableState.RUNNING, scan_wanted=False, done_upto=Timestamp(upto)
            )

    @property
    def job(self) -> Job:
        return self.catalog.job("f")

    def states(self) -> list[TableState]:
        return [table.state for table in self.catalog.tables(self.runner.job_id)]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.catalog.close()


def test_the_time_to_retry_counts_from_the_first_failure_since_the_last_progress(
    bench: Bench,
) -> None:
    """A scan may be longer than it: failures far apart are not one trouble."""
    for _ in range(3):
        assert bench.goes_on(False, True, True, False)
        job = bench.job
        assert (job.status, job.error_code) == (Status.RETRYING, Code.SINK_UNREACHABLE.number)
    assert bench.scanning.stopped == 3


def test_a_scan_that_never_comes_further_ends_with_its_error(bench: Bench) -> None:
    assert bench.goes_on(True)
    assert bench.goes_on(False)
    assert not bench.goes_on(False, False)
    job = bench.job
    assert (job.status, job.error_code) == (Status.FAILED, Code.SINK_UNREACHABLE.number)


def test_an_alter_is_taken_before_the_sink_is_opened(tmp_path: Path) -> None:
    """It may be what brings the sink back."""
    bench = Bench(tmp_path, "postgresql://nobody@127.0.0.1:1/gone")
    assert bench.goes_on()
    assert bench.job.error_code == Code.SINK_UNREACHABLE.number
    job = bench.catalog.alter_job(bench.runner.job_id, sink_uri="null://")
    bench.runner.request_reload()
    bench.scanning.steps = [True]
    before = bench.clock.monotonic()
    assert bench.runner._guarded()
    assert bench.scanning.steps == [], "the sink was opened"
    assert (job.generation, bench.job.taken) == (2, 2)
    assert bench.clock.monotonic() >= before + LONG
    bench.catalog.close()


def test_a_pause_after_an_error_ends_when_something_is_wanted(bench: Bench) -> None:
    before = bench.clock.monotonic()
    assert bench.goes_on()
    assert bench.clock.monotonic() > before
    before = bench.clock.monotonic()
    bench.runner._called.set()  # as it comes while the feed pauses
    error = ChangefeedError(Code.SINK_UNREACHABLE, "the sink is away")
    assert bench.runner._after_error(error)
    assert bench.clock.monotonic() == before
    for ask in (bench.runner.request_reload, bench.runner.request_stop):
        bench.runner._called.clear()
        ask()
        assert bench.runner._called.is_set()


def test_another_node_takes_nothing_for_a_feed_that_it_lost(bench: Bench) -> None:
    lease = bench.runner.lease
    bench.catalog.release_lease(lease)
    assert bench.catalog.acquire_lease(lease.job_id, "other", 60)
    with pytest.raises(LeaseLost):
        bench.catalog.take_generation(lease.job_id, 7, lease)
    assert bench.job.taken == 0


def test_what_is_delivered_is_progress_too(bench: Bench) -> None:
    """A feed goes on with its tables while the scan of another one breaks again and again."""
    bench.rounds.moved = True
    for _ in range(5):
        assert bench.goes_on(False, False, False)


def test_a_feed_that_has_nothing_to_scan_works_again(bench: Bench) -> None:
    assert bench.goes_on(True)
    bench.done(5)
    assert bench.goes_on(False)
    events = [event.text for event in bench.catalog.events(bench.job.id, kinds=["status"])]
    assert any("retrying -> running" in text for text in events), events


def test_a_feed_above_a_limit_is_stalled_until_its_time_is_up(bench: Bench) -> None:
    bench.done(5)
    bench.source.over = OverLimit(bench.runner.job_id, "it has 9 MB on disk", False)
    assert bench.goes_on(True)
    events = [event.text for event in bench.catalog.events(bench.job.id, kinds=["status"])]
    assert "starting -> stalled: it has 9 MB on disk" in events
    assert bench.job.status is Status.RETRYING, "the sink is away"
    assert bench.job.reason.endswith("; it has 9 MB on disk")
    bench.source.over = OverLimit(bench.runner.job_id, "it had 9 MB for long", True)
    assert not bench.goes_on(True)
    job = bench.job
    assert (job.status, job.error_code) == (Status.FAILED, Code.CLAIM_ENDED.number)
    assert job.error == "it had 9 MB for long" and "RESCAN" in str(job.hint)
    bench.catalog.transition(job.id, Status.STARTING, reason="resumed")
    bench.runner.request_stop()
    bench.runner._run()
    assert bench.source.over is None, "a feed that is resumed does not end for what was"


def test_a_table_fails_alone_and_the_last_one_ends_the_feed(bench: Bench) -> None:
    assert bench.goes_on(TableError(T, REFUSED))
    assert bench.states() == [TableState.FAILED, TableState.PENDING]
    assert bench.job.status is not Status.FAILED
    assert bench.scanning.stopped == 1
    assert not bench.goes_on(TableError(U, REFUSED))
    assert (bench.job.status, bench.job.error_code) == (Status.FAILED, REFUSED.code.number)


def test_a_feed_that_was_altered_at_its_last_moment_goes_on(bench: Bench) -> None:
    """A RESCAN between the failure of the last table and that of the feed was lost."""
    bench.goes_on(TableError(T, REFUSED))
    status = cast(Any, bench.runner)._status
    failed_table = status.failed_table

    def altered(feed: Feed, failed: TableError) -> None:
        failed_table(feed, failed)
        bench.catalog.alter_job(bench.job.id, rescan={T: 0, U: 0})

    def wait(waitable: Waitable, seconds: float) -> bool:
        waits.append((bench.runner.generation, seconds))
        return waitable.wait(0)

    waits: list[tuple[int, float]] = []
    status.failed_table = altered
    bench.clock.wait = wait  # type: ignore[method-assign]
    assert bench.goes_on(TableError(U, REFUSED))
    assert waits == [(1, Timings().source_look)], "what the source said before does not count"
    assert bench.job.status is not Status.FAILED
    status.failed_table = failed_table
    bench.runner._check_requests()
    assert bench.states() == [TableState.PENDING, TableState.PENDING]
    assert bench.runner.generation == bench.job.generation
    assert bench.goes_on(TableError(T, REFUSED)) and not bench.goes_on(TableError(U, REFUSED))
    assert (bench.job.status, bench.job.error_code) == (Status.FAILED, REFUSED.code.number)


def failure(about: TableName | None) -> Exception:
    """A fault of ours, that concerns a table or none."""
    try:
        raise KeyError("a value of a row")
    except KeyError as error:
        if about is None:
            return error
        made = TableFailure(about)
        made.__cause__ = error
        return made


def test_a_fault_of_ours_is_tried_a_few_times_and_stops_what_it_is_about(bench: Bench) -> None:
    for _ in range(5):
        assert bench.goes_on(failure(T))
        assert bench.job.error_code == Code.INTERNAL_ERROR.number
    assert bench.goes_on(failure(T))
    assert bench.states() == [TableState.FAILED, TableState.PENDING]
    for _ in range(5):
        assert bench.goes_on(failure(None))
    assert not bench.goes_on(failure(None))
    assert (bench.job.status, bench.job.error_code) == (
        Status.FAILED,
        Code.INTERNAL_ERROR_REPEATS.number,
    )
    assert "a value of a row" not in f"{bench.job.error} {bench.job.reason}"


def test_faults_of_ours_are_counted_and_told_by_table(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    log.addHandler(caplog.handler)
    for table in (T, U, None) * 5:
        assert bench.goes_on(failure(table))
        assert "KeyError" in str(bench.job.error)
    assert bench.states() == [TableState.PENDING] * 2
    log.removeHandler(caplog.handler)
    told = [r.getMessage().splitlines()[0] for r in caplog.records if r.levelno == logging.ERROR]
    assert told[:3] == [
        "feed f, table shop.public.t: KeyError",
        "feed f, table shop.public.u: KeyError",
        "feed f: KeyError",
    ]


@pytest.mark.parametrize(
    ("options", "end", "reason"),
    [
        ({"initial_scan": "only"}, None, "initial scan finished"),
        ({}, 30, "end_time reached"),
    ],
)
def test_a_feed_that_has_nothing_more_to_do_succeeds(
    tmp_path: Path, options: dict[str, str], end: int | None, reason: str
) -> None:
    bench = Bench(tmp_path, end=end, **options)
    bench.done(29)
    if end is not None:
        assert bench.goes_on(False), "it is not there yet"
        bench.done(30)
    bench.scanning.owed = True
    assert bench.goes_on(True), "a scan is owed"
    bench.scanning.owed = False
    assert not bench.goes_on(False)
    assert (bench.job.status, bench.job.reason) == (Status.SUCCEEDED, reason)
    assert bench.job.high_water == Timestamp(end or 29)
    bench.catalog.close()


def test_a_feed_that_left_a_table_out_has_not_succeeded(tmp_path: Path) -> None:
    bench = Bench(tmp_path, initial_scan="only")
    bench.done(29)
    assert bench.goes_on(TableError(T, REFUSED))
    assert not bench.goes_on(False)
    assert (bench.job.status, bench.job.error_code) == (Status.FAILED, REFUSED.code.number)
    assert bench.job.error == "1 of 2 tables failed: shop.public.t: the table is refused (null://)"
    bench.catalog.close()


def test_a_feed_that_is_to_stop_does_not_fail_with_what_that_broke(bench: Bench) -> None:
    bench.runner.request_stop()
    bench.clock.advance(3 * LONG)
    away = ChangefeedError(Code.SINK_UNREACHABLE, "interrupted")
    assert bench.runner._after_error(away)
    assert bench.job.status is Status.STARTING
    assert not bench.goes_on(False), "it ends"


def test_a_name_is_taken_by_a_running_feed(bench: Bench) -> None:
    assert bench.goes_on(False)
    bench.catalog.rename_job(bench.job.id, "g")
    bench.runner.request_rename("g")
    assert bench.runner.name == "g" and bench.runner._thread.name == "feed-g"
    session, told = bench.runner.sink_session, list[str]()
    opened = session.open

    def listen(feed: Feed | None = None) -> Sink:
        if feed is not None:
            told.append(feed.job.name)
        return opened(feed)

    session.open = listen  # type: ignore[method-assign]
    assert bench.goes_on(True, True)
    assert bench.runner._feed.job.name == "g"
    assert told == ["g"], "the sink hears it once"


def test_the_thread_saves_closes_and_tells_its_node(bench: Bench) -> None:
    bench.done(7)
    bench.runner.request_stop()
    bench.runner.start()
    bench.runner.join(20)
    assert not bench.runner.is_alive()
    assert bench.ended == 1 and bench.scanning.stopped
    assert bench.job.taken == 1
    assert bench.job.high_water == Timestamp(7)
    assert bench.runner._delivery._workers.reader._shutdown


def test_the_thread_ends_when_another_node_has_the_feed(bench: Bench) -> None:
    bench.runner.release_lease()
    assert bench.catalog.acquire_lease(bench.job.id, "other", 60)
    bench.runner.start()
    bench.runner.join(20)
    assert not bench.runner.is_alive() and bench.ended == 1
    assert bench.job.status is Status.STARTING, "the node that has it says how it is"


def test_a_feed_that_ends_by_itself_leaves_no_staged_file(tmp_path: Path) -> None:
    bench = Bench(tmp_path, initial_scan="only")
    bench.done(29)
    away = ChangefeedError(Code.SINK_UNREACHABLE, "the sink is away")
    bench.scanning.steps = [away, False]  # it goes on after an error
    bench.runner.start()
    until(lambda: not bench.runner.is_alive())
    assert bench.job.status is Status.SUCCEEDED
    assert bench.job.high_water == Timestamp(29)
    assert not StateLayout(tmp_path).scratch(bench.job.id).exists()
    bench.catalog.close()


@pytest.mark.parametrize(
    ("options", "scans", "prompt"),
    [({}, False, False), ({}, True, True), ({"resolved": "10s"}, False, False),
     ({"resolved": "1s"}, False, True)],
)  # fmt: skip
def test_a_feed_for_which_time_is_enough_waits_for_time(
    options: dict[str, Any], scans: bool, prompt: bool, tmp_path: Path
) -> None:
    bench = Bench(tmp_path, **options)
    if not scans:
        bench.done(29)
    bench.goes_on(True)
    assert bench.rounds.prompt == [prompt]
    bench.catalog.close()


def test_what_is_asked_of_a_feed_wakes_it(bench: Bench) -> None:
    runner = bench.runner
    asks: tuple[Callable[[], None], ...] = (
        runner.request_stop,
        runner.request_reload,
        lambda: runner.request_rename("g"),
        runner.request_checkpoint,
        runner.request_delivery,
    )
    for count, ask in enumerate(asks, 1):
        assert not bench.rounds.hurried
        ask()
        assert bench.rounds.woken == count
    assert bench.rounds.hurried
    assert runner._checkpoint._wanted.is_set()
    bench.source.frontier = Frontier(Timestamp(7), "0/7")
    runner.request_delivery()
    assert runner._checkpoint._awaited == Timestamp(7), "and saved when all of this is delivered"
    assert runner.sink_session._interrupted, "no sink waits for a server while the feed is to end"


def test_something_else_that_is_wanted_interrupts_a_round(bench: Bench) -> None:
    runner = bench.runner
    assert not runner._interrupted()
    bench.scanning.waits = True
    assert runner._interrupted()
    bench.scanning.waits = False
    for event in (runner._stopping, runner._reload):
        event.set()
        assert runner._interrupted()
        event.clear()


@pytest.mark.parametrize(
    ("change", "closes"),
    [({"sink_uri": "null://other"}, 1), ({"options": {"retry_for": "3h"}}, 1), ({}, 0)],
    ids=str,
)
def test_an_alter_closes_the_sink_where_it_is_another_one(
    bench: Bench, change: dict[str, Any], closes: int
) -> None:
    assert bench.goes_on(False)
    bench.done(7)
    session = bench.runner.sink_session
    closed: list[bool] = []
    close = session.close

    def counted(*, for_good: bool = False) -> None:
        closed.append(for_good)
        close(for_good=for_good)

    session.close = counted  # type: ignore[method-assign]
    bench.catalog.alter_job(bench.job.id, **change)
    stopped = bench.scanning.stopped
    bench.runner._take_new_row()
    assert (len(closed), bench.scanning.stopped, bench.rounds.reloads) == (closes, stopped + 1, 1)
    assert bench.job.high_water == Timestamp(7), "what was done is saved first"
    assert bench.runner.generation == bench.job.taken == 2


def test_each_part_has_its_turn(bench: Bench) -> None:
    told: list[str] = []
    parts = cast(Any, bench.runner)

    def listen(name: str, part: Any, method: str) -> None:
        before = getattr(part, method)

        def call(*given: Any, **named: Any) -> Any:
            told.append(name)
            return before(*given, **named)

        setattr(part, method, call)

    listen("open", parts.sink_session, "open")
    listen("leave", parts._leaving, "turn")
    listen("begin", bench.scanning, "begin")
    listen("status", parts._status, "turn")
    listen("deliver", bench.rounds, "turn")
    listen("follow", bench.scanning, "follow")
    listen("save", parts._checkpoint, "turn")
    listen("wait", bench.rounds, "wait")
    listen("close", parts.sink_session, "close")
    assert bench.goes_on(False)
    turn = ["leave", "begin", "status", "deliver", "follow"]
    assert [name for name in told if name in turn] == turn * 2
    assert told.index("open") < told.index("leave")
    assert told.index("follow") < told.index("save") < told.index("wait")
    assert told[-1] == "close", "after an error the sink is opened afresh"


def test_an_alter_is_taken_once_and_cuts_no_later_pause(bench: Bench) -> None:
    bench.runner.request_reload()
    assert bench.goes_on(False, False)
    assert bench.rounds.reloads == 1
    before = bench.clock.monotonic()
    assert bench.goes_on()
    assert bench.clock.monotonic() > before


def test_what_was_done_before_an_error_is_saved(bench: Bench) -> None:
    bench.done(7)
    assert bench.goes_on()
    assert bench.job.high_water == Timestamp(7)


def test_what_a_round_commits_is_saved_before_the_round_ends(bench: Bench) -> None:
    """A backlog may take hours: a crash repeats no more than the last seconds of it."""
    feed = bench.runner._feed
    bench.done(7)
    feed.save()
    bench.clock.advance(LONG)
    bench.committed()
    feed.advance(feed.tables, Timestamp(20))
    feed.count(T, 1, 10)
    bench.clock.advance(Timings().save)
    bench.committed()
    assert bench.job.high_water == Timestamp(20)


def test_a_feed_whose_last_table_fails_closes_its_sink(bench: Bench) -> None:
    assert bench.goes_on(False)
    closed: list[bool] = []
    bench.runner.sink_session.close = (  # type: ignore[method-assign]
        lambda *, for_good=False: closed.append(for_good)
    )
    assert bench.goes_on(TableError(T, REFUSED))
    assert closed == [False]


@pytest.mark.parametrize("progress", ["moved", "delivers", ""])
def test_a_feed_that_works_again_says_so_before_its_progress_is_saved(
    bench: Bench, progress: str
) -> None:
    """Who waits for the progress finds the status true."""
    assert bench.goes_on(False)
    assert bench.job.status is Status.RETRYING
    seen: list[Status] = []
    checkpoint = bench.runner._checkpoint
    turn = checkpoint.turn

    def save(feed: Feed) -> None:
        seen.append(bench.job.status)
        turn(feed)

    checkpoint.turn = save  # type: ignore[method-assign]
    bench.rounds.moved, bench.scanning.delivers = progress == "moved", progress == "delivers"
    assert bench.goes_on(False)
    assert seen == [Status.SCANNING if progress else Status.RETRYING]


def test_a_table_whose_scan_is_done_shows_in_the_status(bench: Bench) -> None:
    """Also when the feed tried again until then."""
    assert bench.goes_on(True)
    told = [bench.job.status]
    for owed in (True, False):
        bench.scanning.owed = owed
        bench.runner._scanned()
        told.append(bench.job.status)
    assert told == [Status.RETRYING, Status.SCANNING, Status.RUNNING]


def test_a_scan_is_of_the_tables_that_are_owed_one(bench: Bench) -> None:
    scan = bench.runner._scan([bench.runner._feed.tables[U]])
    assert list(scan.tables) == [U]


def test_a_feed_runs_beside_its_node_and_does_not_keep_it(bench: Bench) -> None:
    runner, scanning = bench.runner, bench.scanning
    scanning.gate.clear()
    assert runner.is_alive() is False
    runner.start()
    assert runner.is_alive()
    assert runner._thread.daemon and runner._thread.name == "feed-f"
    runner.request_stop()
    scanning.gate.set()
    runner.join(20)
    assert runner.is_alive() is False


def test_the_last_resolved_timestamp_is_told_whatever_its_interval(tmp_path: Path) -> None:
    bench = Bench(tmp_path, end=30, resolved="10000h")
    told: list[Timestamp] = []
    cast(Any, bench.runner.sink_session).resolved = told.append
    bench.done(30)
    assert not bench.goes_on(False)
    assert told == [Timestamp(30)]
    bench.catalog.close()


@pytest.mark.parametrize(("sink", "needs"), [("null://", False), ("delta:///tables", True)])
def test_a_feed_into_a_lake_needs_spark(tmp_path: Path, sink: str, needs: bool) -> None:
    bench = Bench(tmp_path, sink)
    assert bench.runner.needs_spark is needs
    bench.catalog.close()


def test_an_alter_is_taken_between_two_turns(bench: Bench) -> None:
    """A feed that works never ends a turn with an error."""

    def asked() -> None:
        if not bench.rounds.reloads:
            bench.runner.request_reload()

    bench.rounds.waiting = asked
    assert bench.goes_on(True, True)
    assert bench.rounds.reloads == 1


def test_a_stop_is_taken_between_two_turns(bench: Bench) -> None:
    bench.rounds.waiting = bench.runner.request_stop
    assert not bench.goes_on(True, True)
    assert bench.scanning.steps == [True]


def test_a_rescan_goes_on_with_what_the_feed_had_not_saved(bench: Bench) -> None:
    """Progress of a table that is to be scanned again is no longer saved, and still true."""
    bench.done(7)
    bench.runner._feed.save()
    bench.runner._feed.advance([T], Timestamp(33))
    bench.catalog.alter_job(bench.job.id, rescan={T: 0})
    bench.runner._take_new_row()
    found = bench.runner._feed.tables[T]
    assert (found.done_upto, found.scan_at) == (Timestamp(33), Timestamp(33).next())
    assert bench.runner._feed.tables[U].done_upto == Timestamp(7)


def test_after_an_alter_the_status_is_written_again(bench: Bench) -> None:
    """Whoever altered the job may have written another one."""
    bench.done(7)
    parts, seen = cast(Any, bench.runner), list[Status]()
    parts._status.turn(bench.runner._feed)
    parts._status.works(bench.runner._feed)
    seen.append(bench.job.status)
    lease = bench.runner.lease
    bench.catalog.transition(bench.job.id, Status.STARTING, reason="altered", lease=lease)
    parts._status.turn(bench.runner._feed)
    seen.append(bench.job.status)  # what has not changed is not written
    bench.runner._take_new_row()
    parts._status.turn(bench.runner._feed)
    seen.append(bench.job.status)
    assert seen == [Status.RUNNING, Status.STARTING, Status.RUNNING]


def test_a_rename_that_the_feed_made_itself_is_no_alter(bench: Bench) -> None:
    """The job's next generation is the rename's; a later one has an ALTER, too, which its own
    request takes."""
    bench.runner._took_rename(2)
    assert bench.runner.generation == bench.job.taken == 2
    bench.runner._took_rename(4)
    assert bench.runner.generation == bench.job.taken == 2
    bench.runner._took_rename(1)
    assert bench.runner.generation == bench.job.taken == 2


def test_a_feed_is_starting_until_its_first_round_is_delivered(bench: Bench) -> None:
    """Whatever a node before this one wrote; the pulse says what the feed's thread waits for."""
    bench.done(7)
    status, feed = cast(Any, bench.runner)._status, bench.runner._feed
    bench.catalog.transition(bench.job.id, Status.RUNNING, reason="running")
    status.begin(feed)
    assert (bench.job.status, bench.job.reason) == (Status.STARTING, "starting: the first round")
    status.pulse(feed, "Spark starts its JVM", None)
    status.turn(feed)
    assert (bench.job.status, bench.job.reason[10:]) == (Status.STARTING, "Spark starts its JVM")
    status.pulse(feed, "", None)
    status.works(feed)
    assert (bench.job.status, bench.job.reason) == (Status.RUNNING, "running")
    status.pulse(feed, "the brokers do not acknowledge", None)
    assert bench.job.reason == "running: the brokers do not acknowledge"
    status.turn(feed)
    assert bench.job.reason == "running: the brokers do not acknowledge"
    status.pulse(feed, "", None)
    assert (bench.job.status, bench.job.reason) == (Status.RUNNING, "running")


def test_a_log_that_stands_still_shows_as_what_its_feeds_wait_for(bench: Bench) -> None:
    """A capture process that hangs, or is stopped, ends with no error."""
    bench.done(7)
    status, feed = cast(Any, bench.runner)._status, bench.runner._feed
    status.begin(feed)
    status.works(feed)
    bench.source.since = Timestamp(wall=(10 * 3600 + 62) * 10**9)
    status.pulse(feed, "", None)
    still = "running: the change log of shop has not grown since 10:01:02 UTC"
    assert (bench.job.status, bench.job.reason) == (Status.RUNNING, still)
    status.pulse(feed, "the brokers do not acknowledge", None)
    assert bench.job.reason == "running: the brokers do not acknowledge"
    bench.source.since = None
    status.pulse(feed, "", None)
    assert bench.job.reason == "running"


def test_an_attempt_that_has_begun_is_no_next_one(bench: Bench) -> None:
    """A call of a sink that is away may wait for long."""
    assert bench.goes_on()
    status, feed = cast(Any, bench.runner)._status, bench.runner._feed
    bench.catalog.record_event(bench.job.id, "notice", "the attempt begins")
    assert "the sink is away (null://); attempt 1, next try at " in bench.job.reason
    bench.clock.advance(LONG)
    status.pulse(feed, "", None)
    assert "the sink is away (null://); attempt 2 under way since " in bench.job.reason
    assert (bench.job.status, bench.job.error_code) == (Status.RETRYING, "CF5001")
    assert bench.catalog.events(bench.job.id)[0].text == "the attempt begins"
    assert bench.goes_on()
    assert "the sink is away (null://); attempt 2, next try at " in bench.job.reason


def test_the_status_of_a_feed_that_is_being_written_holds_nobody_up(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writes of hundreds of feeds queue, and the node looks at one feed after the other."""
    bench.done(7)
    status, feed = cast(Any, bench.runner)._status, bench.runner._feed
    status.begin(feed)
    written, go_on = threading.Event(), threading.Event()

    def transition(*args: object, **named: object) -> None:
        written.set()
        assert go_on.wait(30)

    monkeypatch.setattr(bench.catalog, "transition", transition)
    feeds_thread = threading.Thread(target=status.works, args=(feed,))
    feeds_thread.start()
    assert written.wait(30)
    node = threading.Thread(target=status.pulse, args=(feed, "the brokers", None), daemon=True)
    node.start()
    node.join(10)
    held_up = node.is_alive()
    go_on.set()
    feeds_thread.join()
    assert not held_up


def test_a_scan_that_has_no_snapshot_yet_is_starting(bench: Bench) -> None:
    status, feed = cast(Any, bench.runner)._status, bench.runner._feed
    bench.scanning.reads = False
    status.turn(feed)
    assert (bench.job.status, bench.job.reason) == (Status.STARTING, "starting: initial scan")
    bench.scanning.reads = True
    status.turn(feed)
    assert bench.job.status is Status.SCANNING


def test_a_feed_without_its_spark_never_runs(bench: Bench) -> None:
    bench.done(7)
    status, feed = cast(Any, bench.runner)._status, bench.runner._feed
    status.begin(feed)
    status.works(feed)
    assert bench.job.status is Status.RUNNING
    lost = ChangefeedError(Code.SPARK_FAILED, "Spark's JVM ended (killed by signal 9)")
    for _ in range(2):
        status.pulse(feed, "Spark starts its JVM", lost)
        status.turn(feed)
    assert (bench.job.status, bench.job.error_code) == (Status.RETRYING, "CF4002")
    assert bench.job.reason == "Spark's JVM ended (killed by signal 9); Spark starts its JVM"
    status.pulse(feed, "", None)
    assert (bench.job.status, bench.job.error) == (Status.RUNNING, None)


def test_what_a_sink_does_not_answer_shows_while_it_is_asked(bench: Bench) -> None:
    """A request that failed at once; a call that lasts, after a while."""
    session = bench.runner.sink_session
    sink = session.open()
    assert session.waits() == ""
    with session._calling("committing in the sink", sink):
        assert session.waits() == ""
        bench.clock.advance(11)
        assert re.fullmatch(r"committing in the sink since \d\d:\d\d:\d\d UTC", session.waits())
        cast(Any, sink).unanswered = lambda: "no broker answers"
        assert session.waits().startswith("no broker answers (committing in the sink since ")
    assert session.waits() == ""
