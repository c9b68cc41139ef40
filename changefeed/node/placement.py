"""Which node runs which feed, where the nodes of a state share its logs.

Every node computes this by itself from what the state says, and acts on its own part only: it stops
feeds that belong elsewhere, and takes those that are its own as soon as nobody has their lease. The
leases decide while two nodes see different things.

A feed stays where it is unless there is a reason:

* Only the node that captures its source can run it.
* Its node has more feeds than room, and another has room.
* The node that captures its source has had room for more than one of its next feeds
  (:func:`_reserve`). So a feed that is paused and resumed moves no other to and fro.
* Of two nodes that do not capture its source, one has far more feeds for its room
  (:data:`_UNEVEN`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

#: How much more of its room one node may use than another before a feed moves.
_UNEVEN: Final = 0.25
#: What one reason moves may make room for another.
_ROUNDS: Final = 10


@dataclass(frozen=True, slots=True)
class FeedPlace:
    """A feed that is to run.

    Attributes:
        holder: the node that has its lease.
        captor: the node that captures its source.
        bound: only that node can run it.
    """

    job_id: int
    holder: str | None
    captor: str | None
    bound: bool = False


def place(feeds: Collection[FeedPlace], rooms: Mapping[str, int | None]) -> dict[int, str]:
    """The node of each feed. A feed without one waits for the node that captures its source.

    Args:
        rooms: how many feeds each node that takes feeds has room for; None: any number. The room
            is a share: where it is used up on all nodes, their loads become alike.
    """
    table = _Table(rooms)
    ordered = sorted(feeds, key=lambda feed: feed.job_id)
    free: list[FeedPlace] = []
    for feed in ordered:
        if feed.bound:
            if feed.captor in rooms:
                table.put(feed, feed.captor)
        elif feed.holder in rooms:
            table.put(feed, feed.holder)
        else:
            free.append(feed)
    for feed in free:
        # Without a captor the log may be there: what it has is delivered.
        table.put(feed, table.best_for(feed))
    movable = [feed for feed in ordered if not feed.bound]
    for _ in range(_ROUNDS):
        before = dict(table.nodes)
        table.make_room(movable)
        table.bring_home(movable)
        table.even_out(movable)
        if table.nodes == before:
            break
    return table.nodes


def _reserve(room: int) -> int:
    """How much of its room a node keeps free for new feeds when it takes feeds back."""
    return -(-room // 8)


@dataclass
class _Table:
    rooms: Mapping[str, int | None]
    nodes: dict[int, str] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def put(self, feed: FeedPlace, node: str | None) -> None:
        before = self.nodes.pop(feed.job_id, None)
        if before is not None:
            self.counts[before] -= 1
        if node is not None:
            self.nodes[feed.job_id] = node
            self.counts[node] = self.counts.get(node, 0) + 1

    def left(self, node: str) -> float:
        room = self.rooms[node]
        return float("inf") if room is None else room - self.counts.get(node, 0)

    def load(self, node: str, more: int = 0) -> float:
        room = self.rooms[node]
        return 0.0 if room is None else (self.counts.get(node, 0) + more) / room

    def best_for(self, feed: FeedPlace, others: Collection[str] = ()) -> str | None:
        """The captor while it has room, else the node with the least load, the captor first."""
        allowed = [node for node in self.rooms if node not in others]
        home = feed.captor
        if home is not None and home in allowed and self.left(home) > 0:
            return home
        return min(
            allowed,
            key=lambda node: (self.load(node), node != home, node),
            default=None,
        )

    def make_room(self, feeds: Sequence[FeedPlace]) -> None:
        # Feeds that their source is elsewhere for come first, and of those the newest.
        for feed in sorted(feeds, key=lambda f: (self._at_home(f), -f.job_id)):
            node = self.nodes.get(feed.job_id)
            if node is None or self.left(node) >= 0:
                continue
            taker = self.best_for(feed, (node,))
            if taker is not None and (self.left(taker) > 0 or self._far_apart(node, taker)):
                self.put(feed, taker)

    def bring_home(self, feeds: Sequence[FeedPlace]) -> None:
        for feed in feeds:
            home = feed.captor
            if home is None or home not in self.rooms or self._at_home(feed):
                continue
            room = self.rooms[home]
            if room is None or self.left(home) > _reserve(room):
                self.put(feed, home)

    def even_out(self, feeds: Sequence[FeedPlace]) -> None:
        for feed in reversed(feeds):
            node = self.nodes.get(feed.job_id)
            if node is None or self._at_home(feed):
                continue
            taker = self.best_for(feed, (node,))
            if taker is not None and self.left(taker) > 0 and self._far_apart(node, taker):
                self.put(feed, taker)

    def _at_home(self, feed: FeedPlace) -> bool:
        return self.nodes.get(feed.job_id) == feed.captor

    def _far_apart(self, node: str, taker: str) -> bool:
        """Whether a node uses far more of its room, and still more than the other with a feed more.
        So that feed does not come back."""
        load = self.load(node)
        return load - self.load(taker) > _UNEVEN and load > self.load(taker, 1)
