"""What a node takes the other nodes of its state to be doing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from changefeed.catalog import CaptureNews, Catalog, Job, Lease
from changefeed.catalog.model import JobSpec, TableProgress
from changefeed.core.clock import ManualClock, Timestamp
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.schema import TableName
from changefeed.core.timings import Timings
from changefeed.node import lost_sources
from changefeed.node.sources import NodeSources

LEASE = 3.0


class Two:
    """Node n1, which is looked at, and n2, which captures; a feed of each."""

    def __init__(self, catalog: Catalog, clock: ManualClock) -> None:
        self.catalog, self.clock = catalog, clock
        catalog.register_node("n1", 1, "here boot space", max_feeds=8)
        catalog.register_node("n2", 1, "there boot space", max_feeds=1)
        self.source = catalog.acquire_source("shop", "n2", LEASE)
        self.jobs = [self._feed("one"), self._feed("two")]
        self.leases = [self._lease(job, f"n{job.id}") for job in self.jobs]
        self.sources = NodeSources(
            catalog,
            "state",
            "n1",
            clock=clock,
            timings=replace(Timings(), lease=LEASE),
            max_disk=None,
            standby=None,
            capturing=lambda: True,
            runs=lambda _: False,
            changed=lambda: None,
            held_up=lambda _: "",
        )

    def _feed(self, name: str) -> Job:
        table = TableName("shop", "public", "t")
        spec = JobSpec("shop", ("TABLE t",), (TableProgress(table, "t"),), name=name)
        return self.catalog.create_job(spec)

    def _lease(self, job: Job, node: str) -> Lease:
        lease = self.catalog.acquire_lease(job.id, node, LEASE)
        assert lease is not None
        return lease

    def beat(self, *numbers: int) -> None:
        """The nodes renew what they have."""
        for number in numbers:
            held = [lease for lease in self.leases if lease.node == f"n{number}"]
            own = [self.source] if number == 2 and self.source is not None else []
            self.catalog.heartbeat(f"n{number}", [*held, *own], LEASE)

    def here(self) -> list[str]:
        """The feeds that n1 is to run."""
        self.sources.look()
        placed = self.sources.placed(self.jobs)
        return [job.name for job in self.jobs if job.id in placed]


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Two]:
    clock = ManualClock()
    with closing(Catalog.open(tmp_path / "state", clock=clock)) as catalog:
        catalog.set_log_place(str(tmp_path / "store"))
        yield Two(catalog, clock)


def test_a_silent_node_gives_way_when_its_leases_end(two: Two) -> None:
    assert two.here() == ["one"]
    two.clock.advance(2.0)
    two.beat(1)
    assert two.here() == ["one"] and two.sources.owned(["shop"]) == set()
    two.clock.advance(2.0)
    two.beat(1)
    assert two.here() == ["one", "two"] and two.sources.owned(["shop"]) == {"shop"}


def test_after_a_silence_of_all_nodes_none_takes_what_others_still_run(two: Two) -> None:
    """As after an outage of the state: whichever node looks first must not take everything."""
    assert two.here() == ["one"]
    two.clock.advance(20.0)
    assert two.here() == ["one"] and two.sources.owned(["shop"]) == set()
    two.beat(1)
    assert two.here() == ["one"] and two.sources.owned(["shop"]) == set()
    two.clock.advance(1.0)
    two.beat(1, 2)
    two.clock.advance(1.5)
    assert two.here() == ["one"] and two.sources.owned(["shop"]) == set()


class Reached:
    """In place of sources: ``error``, if one cannot be reached."""

    error: ChangefeedError | None = None

    def __init__(self) -> None:
        self.tries = 0

    def __call__(self, name: str, uri: str) -> Reached:
        assert (name, uri) == ("shop", "postgresql://h/shop")
        return self

    def current_position(self) -> str:
        self.tries += 1
        if self.error is not None:
            raise self.error
        return "1"


UNREACHABLE = ChangefeedError(Code.SOURCE_UNREACHABLE, "no answer")


@pytest.fixture
def lost(two: Two, monkeypatch: pytest.MonkeyPatch) -> Reached:
    """n2 has lost its source; whether n1 reaches it."""
    found = Reached()
    monkeypatch.setattr(lost_sources, "open_source", found)
    two.catalog.create_connection("shop", "postgresql://h/shop")
    assert two.source is not None
    error = (UNREACHABLE.code.number, UNREACHABLE.message, "", "")
    two.catalog.save_capture_news(two.source, CaptureNews(error=error))
    return found


def pass_by(two: Two, seconds: float) -> set[str]:
    """Let time pass while both nodes live; returns what n1 captures then."""
    found: set[str] = set()
    for _ in range(round(seconds)):
        two.clock.advance(1.0)
        two.beat(1, 2)
        two.here()
        for thread in threading.enumerate():
            if thread.name.startswith("reach-"):
                thread.join()
        found = two.sources.owned(["shop"])
    return found


def test_a_source_goes_to_a_node_that_reaches_it(two: Two, lost: Reached) -> None:
    assert (pass_by(two, LEASE), lost.tries) == (set(), 0)
    assert (pass_by(two, 2), lost.tries) == ({"shop"}, 1)
    assert two.catalog.source_holders() == {"shop": "n1"}


def test_a_source_that_no_node_reaches_stays(two: Two, lost: Reached) -> None:
    lost.error = UNREACHABLE
    assert pass_by(two, 20) == set()
    assert 1 < lost.tries < 6
    lost.error = None
    assert pass_by(two, 6) == {"shop"}


def test_a_source_whose_capture_goes_on_stays(two: Two, lost: Reached) -> None:
    for wall in range(1, 20):
        two.catalog.save_source_state("shop", frontier=Timestamp(wall))
        assert pass_by(two, 1) == set()
    assert not lost.tries


def test_the_error_of_a_capture_that_tries_again_comes_and_goes(two: Two, lost: Reached) -> None:
    assert two.source is not None
    pass_by(two, 2)
    two.catalog.save_capture_news(two.source, CaptureNews())
    assert pass_by(two, 4) == {"shop"}


def test_a_node_that_drains_takes_no_lost_source(two: Two, lost: Reached) -> None:
    two.catalog.drain_node("n1", True)
    assert pass_by(two, 10) == set() and not lost.tries


def test_a_feed_that_only_its_captor_can_run_goes_there(two: Two) -> None:
    assert two.source is not None
    news = CaptureNews({job.id: 1 for job in two.jobs}, {two.jobs[0].id: "row images"})
    two.catalog.save_capture_news(two.source, news)
    # There is room for one: the other makes way.
    assert two.here() == ["two"]
    assert two.sources.covered(two.jobs[0])


def test_feeds_of_a_captor_that_drains_come_with_their_source(two: Two) -> None:
    assert two.source is not None
    two.catalog.drain_node("n2", True)
    assert two.here() == ["one", "two"], "n2 is to end it"
    two.catalog.release_lease(two.leases[1])
    assert two.here() == ["one"]
    two.catalog.release_lease(two.source)
    assert two.here() == ["one", "two"]
