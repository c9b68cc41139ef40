"""Which node runs which feed: every feed has one, none moves twice for one reason."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from changefeed.node.placement import FeedPlace, place

NODES = ("n1", "n2", "n3", "n4")

rooms = st.dictionaries(st.sampled_from(NODES), st.none() | st.integers(1, 12), min_size=1)
feeds = st.lists(
    st.builds(
        FeedPlace,
        job_id=st.integers(1, 1000),
        holder=st.none() | st.sampled_from(NODES),
        captor=st.sampled_from(NODES[:2]),
        bound=st.sampled_from([False, False, False, True]),
    ),
    max_size=40,
    unique_by=lambda feed: feed.job_id,
)


def after(found: list[FeedPlace], nodes: dict[int, str]) -> list[FeedPlace]:
    """The feeds where they were placed."""
    return [replace(feed, holder=nodes.get(feed.job_id)) for feed in found]


@given(feeds, rooms)
def test_what_was_placed_stays(found: list[FeedPlace], room: dict[str, int | None]) -> None:
    nodes = place(found, room)
    for feed in found:
        if feed.bound:
            assert nodes.get(feed.job_id) == (feed.captor if feed.captor in room else None)
        else:
            assert nodes[feed.job_id] in room
    assert place(after(found, nodes), room) == nodes


@given(feeds, rooms)
def test_feeds_that_stop_one_after_the_other_come_to_rest(
    found: list[FeedPlace], room: dict[str, int | None]
) -> None:
    """A node stops a feed that belongs elsewhere; the next one takes it only later. Each feed moves
    a few times at most, whatever is seen in between."""
    moves: Counter[int] = Counter()
    for _ in range(6 * len(found) + 6):
        nodes = place(found, room)
        moving = [f for f in found if f.holder is not None and f.holder != nodes.get(f.job_id)]
        if moving:
            moves[moving[0].job_id] += 1
            found = [replace(f, holder=None) if f == moving[0] else f for f in found]
            continue
        free = [f for f in found if f.holder is None and f.job_id in nodes]
        if not free:
            break
        found = [replace(f, holder=nodes[f.job_id]) if f == free[0] else f for f in found]
    else:
        raise AssertionError("feeds move to and fro")
    assert max(moves.values(), default=0) <= 2


def shares(nodes: dict[int, str]) -> dict[str, int]:
    return dict(Counter(nodes.values()))


def some(count: int, holder: str | None = None, captor: str = "n1") -> list[FeedPlace]:
    return [FeedPlace(number, holder, captor) for number in range(1, count + 1)]


def test_feeds_run_where_their_source_is_captured_as_long_as_there_is_room() -> None:
    assert shares(place(some(4), {"n1": 4, "n2": 4})) == {"n1": 4}
    assert shares(place(some(6), {"n1": 4, "n2": 4})) == {"n1": 4, "n2": 2}
    # Feeds are where they ended up, and one is paused: no other moves for that.
    nodes = place(some(12), {"n1": 8, "n2": 8})
    kept = after(some(12), nodes)[1:]
    assert place(kept, {"n1": 8, "n2": 8}).items() <= nodes.items()
    # With room to spare they come back, but for a reserve.
    assert shares(place(some(12, "n2"), {"n1": 8, "n2": 12})) == {"n1": 7, "n2": 5}


def test_where_no_node_has_room_their_loads_are_alike() -> None:
    assert shares(place(some(5), {"n1": 2})) == {"n1": 5}
    assert shares(place(some(12, "n1"), {"n1": 2, "n2": 4})) == {"n1": 4, "n2": 8}


def test_a_new_node_takes_its_share() -> None:
    room = {"n1": 2, "n2": 10, "n3": 10}
    before = [*some(2, "n1"), *(replace(f, job_id=f.job_id + 2) for f in some(8, "n2"))]
    moved = place(before, room)
    assert shares(moved) == {"n1": 2, "n2": 5, "n3": 3}
    assert place(after(before, moved), room) == moved
