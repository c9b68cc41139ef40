"""The hybrid clock: both orders of its timestamps agree, whatever the source's clock does."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from changefeed.core.clock import Timestamp


@given(st.lists(st.integers(0, 3_000), min_size=2, max_size=200))
def test_timestamps_and_their_versions_rise(walls: list[int]) -> None:
    at = Timestamp(1_000)
    for wall in walls:
        later = at.at_least(wall)
        assert later > at
        assert later.version > at.version
        assert later.version >= wall
        at = later


def test_a_wall_clock_behind_the_version_counts_logically() -> None:
    assert Timestamp(1_000, 5).at_least(1_005) == Timestamp(1_000, 6)
    assert Timestamp(1_000, 5).at_least(1_006) == Timestamp(1_006, 0)
