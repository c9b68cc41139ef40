"""``changefeed drain``: which node, who takes its sources, and what SHOW NODES says meanwhile."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from changefeed.api import Interpreter, Session
from changefeed.capture.standby import CaptureTask, Standby
from changefeed.catalog import Catalog, SourceLease
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.timings import Timings
from changefeed.drain import drain, undo_drain
from changefeed.node.node import Node

HERE = socket.gethostname()


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    """A state whose logs are shared, with a node here and one elsewhere that has a source."""
    with closing(Catalog.open(tmp_path / "state")) as catalog:
        catalog.set_log_place(str(tmp_path / "store"))
        catalog.register_node("n1", os.getpid())
        catalog.register_node("n2", 1, "alpha boot space")
        yield catalog


def take(catalog: Catalog, node: str) -> SourceLease:
    """The node captures the source now."""
    lease = catalog.acquire_source("shop", node, 60.0)
    assert lease is not None
    return lease


def shown(catalog: Catalog) -> list[tuple[object, ...]]:
    """Node, status and what it waits for, as SHOW NODES has it."""
    result = Interpreter(catalog).execute("SHOW NODES", Session(client="tests"))
    return [(row[0], row[4], row[10]) for row in result.rows]


def test_it_is_done_when_the_node_has_nothing_left(catalog: Catalog) -> None:
    assert drain(catalog, None, 0.0) == f"node n1 on {HERE} is drained"
    assert shown(catalog) == [("n1", "drained", ""), ("n2", "running", "")]
    assert undo_drain(catalog, HERE) == f"node n1 on {HERE} takes sources again"
    assert undo_drain(catalog, "n1") == f"node n1 on {HERE} does not drain"


def test_what_a_node_that_drains_waits_for(catalog: Catalog) -> None:
    take(catalog, "n2")
    with pytest.raises(ChangefeedError, match="it waits for source shop") as late:
        drain(catalog, "alpha", 0.0)
    assert late.value.code is Code.TIMED_OUT
    catalog.unregister_node("n1")
    assert shown(catalog) == [("n2", "draining", "another node, which takes its sources")]
    catalog.register_node("n2", 1, "alpha boot space")
    assert shown(catalog) == [("n2", "running", "")]


def test_a_node_that_cannot_be_drained(catalog: Catalog, tmp_path: Path) -> None:
    drain(catalog, "n1", 0.0)
    with pytest.raises(ChangefeedError, match="no other node is there to take") as alone:
        drain(catalog, "n2", 0.0)
    assert alone.value.code is Code.NOT_SUPPORTED
    assert shown(catalog)[1] == ("n2", "running", "")
    with pytest.raises(ChangefeedError, match="no node beta runs") as unknown:
        drain(catalog, "beta", 0.0)
    assert unknown.value.hint == f"these run: n1 on {HERE}, n2 on alpha."
    catalog.register_node("n3", 1, "alpha boot space")
    with pytest.raises(ChangefeedError, match="2 nodes run on alpha"):
        undo_drain(catalog, "alpha")
    with closing(Catalog.open(tmp_path / "local")) as local:
        with pytest.raises(ChangefeedError, match="no node runs on this machine"):
            drain(local, None, 0.0)
        local.register_node("n1", os.getpid())
        with pytest.raises(ChangefeedError, match="the change logs of this state are on its disk"):
            drain(local, None, 0.0)


def test_a_node_keeps_its_sources_until_another_takes_them(catalog: Catalog) -> None:
    catalog.unregister_node("n1")
    node = Node(catalog, "state", timings=Timings(pulse=0.01))
    catalog.register_node(node.id, os.getpid())
    sources = node.sources
    sources.look()
    assert sources.owned({"shop"}) == {"shop"}
    catalog.drain_node(node.id, True)
    sources.look()
    assert sources.given_away == {"shop"}
    assert sources.owned({"shop", "crm"}) == {"shop"}
    catalog.drain_node("n2", True)
    sources.look()
    assert sources.given_away == set()


def test_all_nodes_have_the_lease_that_the_state_has(catalog: Catalog) -> None:
    assert Node(catalog, "state").timings.lease == Timings().lease
    for wrong in (0.0, 2.9, 61.0):
        with pytest.raises(ChangefeedError, match="a lease cannot last"):
            catalog.set_lease_seconds(wrong)
    catalog.set_lease_seconds(20.0)
    assert Node(catalog, "state").timings.lease == 20.0


def test_a_capture_waits_for_each_source_that_becomes_free(tmp_path: Path) -> None:
    with closing(Catalog.open(tmp_path / "state")), closing(Standby(str(tmp_path / "state"))) as it:
        first = it.take(CaptureTask("shop"))
        assert first is not None and it.take(CaptureTask("crm")) is None
        it.renew()
        it.renew()
        second = it.take(CaptureTask("crm"))
        assert second is not None and second.pid != first.pid
        for child in (first, second):
            child.communicate(timeout=60)
