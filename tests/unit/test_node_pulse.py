"""The heartbeat of a node goes on, whatever else the node waits for."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from changefeed.catalog import Catalog
from changefeed.core.clock import Timestamp
from changefeed.core.timings import Timings
from changefeed.node.node import Node
from tests.conformance.test_catalog import spec
from tests.helpers.waiting import until


def test_nothing_that_the_node_saves_holds_up_its_heartbeat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 200 feeds the frontiers and statuses took longer than a node may be silent, and SHOW
    said that no node runs."""
    with closing(Catalog.open(str(tmp_path / "state"))) as catalog:
        node = Node(catalog, str(tmp_path / "state"), timings=Timings(pulse=0.01))
        held, go_on = threading.Event(), threading.Event()

        def save_frontiers() -> None:
            held.set()
            go_on.wait(60)

        monkeypatch.setattr(node.sources, "save_frontiers", save_frontiers)
        assert node.start()
        try:
            assert held.wait(30)
            seen = catalog.live_nodes()[0].seen
            until(lambda: catalog.live_nodes()[0].seen > seen, "a heartbeat")
        finally:
            go_on.set()
            node.stop()


def test_a_node_writes_what_feeds_at_rest_offer_and_at_once_if_a_statement_waits(
    tmp_path: Path,
) -> None:
    with closing(Catalog.open(str(tmp_path / "state"))) as catalog:
        job = catalog.create_job(spec())
        lease = catalog.acquire_lease(job.id, "n", 60)
        assert lease is not None
        node = Node(catalog, str(tmp_path / "state"), timings=Timings(pulse=3600.0))
        assert node.start()
        try:
            catalog.offered.offer(lease, Timestamp(3))
            until(lambda: catalog.job(job.id).high_water == Timestamp(3), "a write")
            catalog.offered.offer(lease, Timestamp(4), soon=True)
            until(lambda: catalog.job(job.id).high_water == Timestamp(4), "a hurried write")
            catalog.offered.offer(lease, Timestamp(5), soon=True)
            until(lambda: catalog.job(job.id).high_water == Timestamp(5), "another one")
        finally:
            node.stop()


def test_a_feed_waits_until_its_node_knows_which_leases_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that stood still must not deliver what another node may have delivered since."""
    with closing(Catalog.open(str(tmp_path / "state"))) as catalog:
        catalog.set_log_place(str(tmp_path / "store"))
        node = Node(catalog, str(tmp_path / "state"), timings=Timings(pulse=0.01))
        go_on, beat, answers = threading.Event(), catalog.heartbeat, list[bool]()

        def heartbeat(*arguments: Any) -> Any:
            go_on.wait(60)
            return beat(*arguments)

        monkeypatch.setattr(catalog, "heartbeat", heartbeat)
        assert node.start()
        try:
            assert node._holds_leases()
            node._renewed -= 60.0
            feed = threading.Thread(target=lambda: answers.append(node._holds_leases()))
            feed.start()
            feed.join(0.2)
            assert feed.is_alive() and not answers
            go_on.set()
            feed.join(30)
            assert answers == [True]
        finally:
            go_on.set()
            node.stop()
        node._renewed -= 60.0
        assert not node._holds_leases(), "it has ended"
