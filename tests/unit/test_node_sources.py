"""What a node takes the other nodes of its state to be doing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from changefeed.catalog import CaptureNews, Catalog, Job, Lease
from changefeed.catalog.model import JobSpec, TableProgress
from changefeed.core.clock import ManualClock
from changefeed.core.schema import TableName
from changefeed.core.timings import Timings
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
