"""What the nodes of a state have to do, and how one of them gives it to the others.

A node that drains is asked by a row of the state. It ends its feeds, which saves their progress,
and the capture of its sources, and releases its leases; it takes none until the request is
withdrawn. A node that starts again is another node, which takes sources.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass

from changefeed.catalog import Catalog, NodeRow
from changefeed.core.clock import Clock, SystemClock
from changefeed.core.errors import ChangefeedError, Code


@dataclass(frozen=True, slots=True)
class NodeDuties:
    """A node that lives, with the sources that it captures and the feeds that it runs."""

    node: NodeRow
    sources: tuple[str, ...]
    feeds: tuple[str, ...]
    #: Whether another node would take sources.
    relieved: bool

    @property
    def status(self) -> str:
        if not self.node.draining:
            return "running"
        return "draining" if self.sources or self.feeds else "drained"

    @property
    def waits_for(self) -> str:
        """What a node that drains waits for; empty if for nothing."""
        if self.status != "draining":
            return ""
        if not self.relieved:
            return "another node, which takes its sources"
        rest = [f"source {name}" for name in self.sources]
        return ", ".join(rest + [f"feed {name}" for name in self.feeds])


def node_duties(catalog: Catalog) -> list[NodeDuties]:
    """The nodes that live, oldest first."""
    alive = catalog.live_nodes()
    feeds, names = catalog.feeds_of_nodes(), {job.id: job.name for job in catalog.jobs()}
    holders = sorted(catalog.source_holders().items())
    takers = {node.id for node in alive if not node.draining}
    return [
        NodeDuties(
            node,
            tuple(source for source, holder in holders if holder == node.id),
            tuple(names[job] for job in feeds.get(node.id, ()) if job in names),
            bool(takers - {node.id}),
        )
        for node in alive
    ]


def drain(catalog: Catalog, named: str | None, seconds: float, clock: Clock | None = None) -> str:
    """Make a node give its sources and feeds to the others; returns what was done, when it is done.

    Args:
        named: its id or host; None: the node of this machine.
        seconds: how long to wait for it.

    Raises:
        ChangefeedError: CF1101 there is no such node, or there are several; CF1303 nothing could
            take its sources; CF1304 it is not done, and goes on draining.
    """
    clock = clock or SystemClock()
    node = _find(catalog, named)
    shown = _shown(node)
    if catalog.log_place is None:
        raise ChangefeedError(
            Code.NOT_SUPPORTED,
            f"{shown} cannot be drained: the change logs of this state are on its disk, so no "
            "other node can go on",
            hint="stop it; its feeds go on when it is started again. With changefeed start --log "
            "another node can.",
        )
    if all(other.id == node.id or other.draining for other in catalog.live_nodes()):
        raise ChangefeedError(
            Code.NOT_SUPPORTED,
            f"{shown} cannot be drained: no other node is there to take its sources",
            hint="start another one first, or stop this one: its feeds wait for the next node.",
        )
    catalog.drain_node(node.id, True)
    deadline = clock.monotonic() + seconds
    while True:
        seen = catalog.version()
        left = next((each for each in node_duties(catalog) if each.node.id == node.id), None)
        if left is None or not left.node.draining:
            return f"{shown} has ended or takes sources again"
        if left.status == "drained":
            return f"{shown} is drained"
        if clock.monotonic() >= deadline:
            raise ChangefeedError(
                Code.TIMED_OUT,
                f"{shown} is not drained after {seconds:g} s: it waits for {left.waits_for}",
                hint="it goes on draining (SHOW NODES); --undo ends that.",
            )
        catalog.wait(seen, 0.5)


def undo_drain(catalog: Catalog, named: str | None) -> str:
    """Let a node take sources again; returns what was done.

    Raises:
        ChangefeedError: CF1101 as :func:`drain`.
    """
    node = _find(catalog, named)
    if not node.draining:
        return f"{_shown(node)} does not drain"
    catalog.drain_node(node.id, False)
    return f"{_shown(node)} takes sources again"


def _find(catalog: Catalog, named: str | None) -> NodeRow:
    alive = catalog.live_nodes()
    wanted = named or socket.gethostname()
    found = [node for node in alive if wanted in (node.id, node.hostname)]
    if len(found) == 1:
        return found[0]
    if found:
        problem = f"{len(found)} nodes run on {wanted}: name one by its id"
    elif named:
        problem = f"no node {named} runs"
    else:
        problem = f"no node runs on this machine ({wanted})"
    there = ", ".join(f"{node.id} on {node.hostname}" for node in alive)
    raise ChangefeedError(
        Code.NAME_UNKNOWN,
        problem,
        hint=f"these run: {there}." if alive else "no node of this state runs.",
    )


def _shown(node: NodeRow) -> str:
    return f"node {node.id} on {node.hostname}"
