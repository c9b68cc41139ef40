"""The hybrid clock: both orders of its timestamps agree, whatever the source's clock does."""

from __future__ import annotations

import datetime as dt
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from changefeed.core.clock import ManualClock, SystemClock, Timestamp


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


def test_timestamps_are_ordered_by_wall_time_and_then_by_the_counter() -> None:
    rising = [Timestamp.ZERO, Timestamp(1, 0), Timestamp(1, 1), Timestamp(2, 0), Timestamp.MAX]
    for i, one in enumerate(rising):
        for j, other in enumerate(rising):
            assert (one < other, one <= other, one > other) == (i < j, i <= j, i > j)
    with pytest.raises(TypeError):
        assert Timestamp(1) < 2


def test_no_timestamp_lies_between_neighbours() -> None:
    """A bound just below a mark keeps every row of the transactions before it."""
    assert Timestamp(5, 2).previous() == Timestamp(5, 1)
    assert Timestamp(5, 1).previous() == Timestamp(5, 0)
    assert Timestamp(5, 0).previous() == Timestamp(4, 0)
    assert Timestamp(5, 2).previous().next() == Timestamp(5, 2)


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("1536242855577149065.0000000003", Timestamp(1536242855577149065, 3)),
        ("1536242855577149065", Timestamp(1536242855577149065)),
        (" 7 ", Timestamp(7)),
        # Digits behind the point have their places, as in any decimal number.
        ("7.0000000012", Timestamp(7, 12)),
        ("7.000000001", Timestamp(7, 10)),
    ],
)
def test_the_written_form_is_read(text: str, read: Timestamp) -> None:
    assert Timestamp.parse(text) == read
    assert Timestamp.parse(str(read)) == read


def test_the_written_form_has_ten_digits_of_the_counter() -> None:
    assert str(Timestamp(1536242855577149065, 3)) == "1536242855577149065.0000000003"


@pytest.mark.parametrize("text", ["", "x", "-1", "1.", "1.00000000001", "1e9", "1.2.3", "1" * 20])
def test_what_is_no_timestamp_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a timestamp"):
        Timestamp.parse(text)


def test_a_moment_is_exact_to_the_microsecond() -> None:
    moment = dt.datetime(2024, 2, 29, 23, 59, 58, 123456, tzinfo=dt.UTC)
    at = Timestamp.from_datetime(moment)
    assert at == Timestamp(1_709_251_198_123_456_000)
    assert Timestamp(at.wall + 789, 4).datetime() == moment
    assert Timestamp.from_datetime(moment.replace(tzinfo=None)) == at, "a naive moment is UTC"
    east = moment.astimezone(dt.timezone(dt.timedelta(hours=5)))
    assert Timestamp.from_datetime(east) == at


@given(st.datetimes(dt.datetime(1970, 1, 1), dt.datetime(2200, 1, 1)))
def test_moments_come_back(moment: dt.datetime) -> None:
    moment = moment.replace(tzinfo=dt.UTC)
    assert Timestamp.from_datetime(moment).datetime() == moment


def test_the_stamp_in_a_files_name_sorts_as_time_does() -> None:
    stamp = Timestamp(1_709_251_198_123_456_789, 12).file_stamp()
    assert stamp == "202402292359581234567890000000012"
    rising = [Timestamp(9 * 10**8, 3), Timestamp(10**9), Timestamp(10**9, 1), Timestamp(10**9 + 1)]
    names = [at.file_stamp() for at in rising]
    assert names == sorted(names) and len(set(names)) == len(names)


def test_the_clocks_give_time_in_their_units() -> None:
    before = time.time_ns(), time.monotonic()
    clock = SystemClock()
    wall, monotonic = clock.now(), clock.monotonic()
    assert before[0] <= wall.wall <= time.time_ns() and wall.logical == 0
    assert before[1] <= monotonic <= time.monotonic()
    told = ManualClock(5_000_000_000)
    told.advance(1.5)
    assert (told.now(), told.monotonic()) == (Timestamp(6_500_000_000), 6.5)


def test_a_clock_waits_for_an_event_or_until_its_time_is_over() -> None:
    event = threading.Event()
    assert not SystemClock().wait(event, 0.01)
    event.set()
    assert SystemClock().wait(event, 3600)


def test_a_clock_sleeps() -> None:
    began = time.monotonic()
    SystemClock().sleep(0.02)
    assert time.monotonic() - began >= 0.02
    clock = ManualClock(1_000_000_000)
    clock.sleep(3600)
    assert clock.monotonic() == 3601.0


def test_a_manual_clock_moves_instead_of_waiting() -> None:
    clock, event = ManualClock(), threading.Event()
    began = clock.monotonic()
    assert not clock.wait(event, 3600)
    assert clock.monotonic() == began + 3600
    event.set()
    assert clock.wait(event, 3600)
    assert clock.monotonic() == began + 3600
    waited: list[float | None] = []

    class Asked:
        def wait(self, timeout: float | None = None) -> bool:
            waited.append(timeout)
            return True

    assert clock.wait(Asked(), 3600)
    assert waited == [0], "the wait takes no time of the machine's clock"
    condition = threading.Condition()
    with condition:
        assert not clock.wait(condition, 1)
    assert clock.monotonic() == began + 3601
