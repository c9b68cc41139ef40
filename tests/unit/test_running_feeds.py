"""Which feeds a node starts, when the job table changes while it looks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from changefeed.catalog import Catalog, DesiredStatus, Job, Status
from changefeed.catalog.model import JobSpec, TableProgress
from changefeed.core.clock import SYSTEM_CLOCK, Clock, ManualClock
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.schema import TableName
from changefeed.core.timings import Timings
from changefeed.node.running_feeds import RunningFeeds
from changefeed.statements.context import NoHost


class Started(Exception):
    """A feed would run."""


class Sources:
    """All are ready, here or ``away`` from here."""

    def __init__(self, away: ChangefeedError | None = None) -> None:
        self.started: list[str] = []
        self._away = away

    def covered(self, job: Job) -> bool:
        return True

    def held_elsewhere(self, job_id: int) -> bool:
        return False

    def runtime_for(self, job: Job) -> Any:
        if self._away is not None:
            raise self._away
        return Runtime(partial(self.started.append, job.source))


class Runtime:
    """Asked for its log, a feed would be started."""

    def __init__(self, started: Callable[[], None]) -> None:
        self._started = started

    @property
    def log(self) -> Any:
        self._started()
        raise Started


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    catalog = Catalog.open(tmp_path)
    yield catalog
    catalog.close()


def feeds(catalog: Catalog, sources: Sources, clock: Clock = SYSTEM_CLOCK) -> RunningFeeds:
    services = SimpleNamespace(catalog=catalog, node_id="n", clock=clock, timings=Timings())
    return RunningFeeds(cast(Any, services), cast(Any, sources))


def created(catalog: Catalog) -> Job:
    table = TableName("shop", "public", "t")
    return catalog.create_job(JobSpec("shop", ("TABLE t",), (TableProgress(table, "t"),), name="f"))


def test_a_feed_that_should_run_is_started(catalog: Catalog) -> None:
    sources, job = Sources(), created(catalog)
    with pytest.raises(Started):
        feeds(catalog, sources).start_wanted([job], {job.id})
    assert sources.started == ["shop"]


@pytest.mark.parametrize("how", ["failed", "paused", "dropped"])
def test_a_feed_that_ended_after_the_jobs_were_read_stays_ended(catalog: Catalog, how: str) -> None:
    """Its runner told why it failed; started again it would tell that a failed job cannot run."""
    sources, job = Sources(), created(catalog)
    if how == "failed":
        error = ChangefeedError(Code.SOURCE_LOG_GONE, "the slot is gone")
        catalog.transition(job.id, Status.FAILED, reason="failed", error=error)
    elif how == "paused":
        catalog.request(job.id, DesiredStatus.PAUSED)
    else:
        catalog.delete_job(job.id)
    feeds(catalog, sources).start_wanted([job], {job.id})
    assert sources.started == []
    assert catalog.lease_holder(job.id) is None
    if how == "failed":
        assert catalog.job("f").error_code == Code.SOURCE_LOG_GONE.number


@pytest.mark.parametrize("gone", [False, True])
def test_a_log_that_is_not_here_is_why_a_feed_does_not_run(catalog: Catalog, gone: bool) -> None:
    job = created(catalog)
    if gone:
        catalog.delete_job(job.id)
    away = ChangefeedError(Code.LOG_STORE_UNREACHABLE, "the store does not answer")
    feeds(catalog, Sources(away)).start_wanted([job], {job.id})
    shown = catalog.find_job(job.id)
    assert gone or (shown is not None and shown.status is Status.RETRYING)
    assert gone or (shown is not None and shown.reason == "the store does not answer")


def test_a_stream_is_given_up_when_no_client_has_run_it_for_as_long_as_a_lease(
    catalog: Catalog,
) -> None:
    """Whatever the clock of its client's machine said when it was created."""
    clock = ManualClock(10**18)
    found = feeds(catalog, Sources(), clock)
    table = TableName("shop", "public", "t")
    job = catalog.create_job(
        JobSpec("shop", ("TABLE t",), (TableProgress(table, "t"),), sinkless=True)
    )
    old = replace(job, created=0)
    assert found.settle([old]) == [old]
    lease = catalog.acquire_lease(job.id, "client", 15)
    assert lease is not None
    clock.advance(60.0)
    assert found.settle([old]) == [old]
    catalog.release_lease(lease)
    assert found.settle([old]) == [old]
    clock.advance(Timings().lease + 1)
    assert found.settle([old]) == []
    assert catalog.find_job(job.id) is None


def test_what_gathers_is_delivered_when_another_process_asks(catalog: Catalog) -> None:
    """A SYNC at a prompt beside the node."""
    job, asked = created(catalog), []
    runner = SimpleNamespace(
        name="f",
        generation=job.generation,
        hurried=job.hurried,
        request_delivery=lambda: asked.append("f"),
    )
    found = feeds(catalog, Sources())
    found.register(job, cast(Any, runner))
    found.tell_altered(catalog.jobs())
    assert asked == []
    for times in (1, 2):
        NoHost(catalog).deliver_now(job.id)
        for _ in range(2):
            found.tell_altered(catalog.jobs())
        assert len(asked) == times
