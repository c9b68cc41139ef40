"""When a feed tries again and when it ends: its thread's decisions, over parts that do as told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from changefeed.catalog import Catalog, LeaseLost, Status
from changefeed.catalog.model import JobSpec, TableProgress
from changefeed.core.clock import ManualClock
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.schema import TableName
from changefeed.feeds.message_cache import MessageCache
from changefeed.feeds.runner import FeedRunner, FeedServices
from changefeed.spark.session import SparkEngine

LONG = 3600.0


class Source:
    """A source that has nothing and lacks nothing."""

    name = "shop"
    log_folder = Path("log")
    stalled = ""
    error = None

    def __init__(self) -> None:
        self.problems: dict[TableName, ChangefeedError] = {}
        self.gaps: dict[TableName, object] = {}

    def wake(self) -> None:
        """Nobody waits."""

    def lost(self, table: TableName, table_id: int) -> None:
        return None


class Scanning:
    """A scan that is owed all the time; ``steps`` are the turns until it breaks."""

    def __init__(self) -> None:
        self.advanced = self.delivers = self.waits = False
        self.steps: list[bool] = []
        self.stopped = 0

    def begin(self, feed: object) -> None:
        """Nothing to do."""

    def owes(self, feed: object) -> bool:
        return True

    active = owes

    def text(self) -> str:
        return "initial scan"

    def follow(self, feed: object, show: object) -> None:
        if not self.steps:
            raise ChangefeedError(Code.SINK_UNREACHABLE, "the sink is away")
        self.advanced = self.steps.pop(0)

    def stop(self) -> None:
        self.stopped += 1


class Rounds:
    """Delivers nothing."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock

    def turn(self, feed: object) -> bool:
        return False

    def joining(self, feed: object) -> bool:
        return False

    def reloaded(self) -> None:
        """It looks at its tables in each turn."""

    def wait(self) -> None:
        self._clock.advance(LONG)


class Bench:
    """A feed of one table and its runner, whose thread is the test's."""

    def __init__(self, folder: Path, sink_uri: str = "null://") -> None:
        self.catalog = Catalog.open(folder)
        table = TableProgress(TableName("shop", "public", "t"), "t")
        spec = JobSpec("shop", ("TABLE t",), (table,), sink_uri=sink_uri,
                       options={"retry_for": "2h"}, name="f")  # fmt: skip
        job = self.catalog.create_job(spec)
        lease = self.catalog.acquire_lease(job.id, "n", 60)
        assert lease is not None
        self.clock = ManualClock()
        engine = SparkEngine()
        services = FeedServices(
            self.catalog, engine, MessageCache(), "n", lambda: None, clock=self.clock
        )
        self.scanning = Scanning()
        self.runner = FeedRunner(job, lease, services, cast(Any, Source()))
        parts = cast(Any, self.runner)
        parts._scanning = parts._status._scanning = self.scanning
        parts._rounds = Rounds(self.clock)

    def goes_on(self, *steps: bool) -> bool:
        """After a scan of so many hours, each of which brought it further or not, that broke."""
        self.scanning.steps = list(steps)
        return self.runner._guarded()


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
        job = bench.catalog.job("f")
        assert (job.status, job.error_code) == (Status.RETRYING, Code.SINK_UNREACHABLE.number)
    assert bench.scanning.stopped == 3


def test_a_scan_that_never_comes_further_ends_with_its_error(bench: Bench) -> None:
    assert bench.goes_on(True)
    assert bench.goes_on(False)
    assert not bench.goes_on(False, False)
    job = bench.catalog.job("f")
    assert (job.status, job.error_code) == (Status.FAILED, Code.SINK_UNREACHABLE.number)


def test_an_alter_is_taken_before_the_sink_is_opened(tmp_path: Path) -> None:
    """It may be what brings the sink back."""
    bench = Bench(tmp_path, "postgresql://nobody@127.0.0.1:1/gone")
    assert bench.goes_on()
    assert bench.catalog.job("f").error_code == Code.SINK_UNREACHABLE.number
    job = bench.catalog.alter_job(bench.runner.job_id, sink_uri="null://")
    bench.runner.request_reload()
    bench.scanning.steps = [True]
    before = bench.clock.monotonic()
    assert bench.runner._guarded()
    assert bench.scanning.steps == [], "the sink was opened"
    assert (job.generation, bench.catalog.job("f").taken) == (2, 2)
    assert bench.clock.monotonic() >= before + LONG
    bench.catalog.close()


def test_a_pause_after_an_error_ends_when_something_is_wanted(bench: Bench) -> None:
    assert bench.goes_on()
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
    assert bench.catalog.job("f").taken == 0
