"""The heartbeat of a node goes on, whatever else the node waits for."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path

import pytest

from changefeed.catalog import Catalog
from changefeed.core.timings import Timings
from changefeed.node.node import Node
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
