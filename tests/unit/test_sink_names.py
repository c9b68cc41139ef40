"""Topic names as CockroachDB makes them; file names whose order is time order."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from changefeed.core.clock import ManualClock, Timestamp
from sinks.files.names import (
    PARTITION_FORMATS,
    Namer,
    file_order,
    new_session,
    parse_name,
)
from sinks.naming import MAX_TOPIC, kafka_topic_name


@pytest.mark.parametrize(
    ("name", "topic"),
    [
        ("orders", "orders"),
        ("shop.public.orders", "shop.public.orders"),
        ("a-b_c.D9", "a-b_c.D9"),
        ("☃", "_u2603_"),
        ("foo☃bar", "foo_u2603_bar"),
        ("a b", "a_u0020_b"),
        ("/x", "_u002f_x"),
        ("\U0001f389", "_u0001f389_"),
        (".", "_u002e_"),
        ("..", "_u002e__u002e_"),
        ("_u2603_", "_u005f__u0075__u0032__u0036__u0030__u0033__u005f_"),
    ],
)
def test_topic_names(name: str, topic: str) -> None:
    assert kafka_topic_name(name) == topic


@settings(deadline=None)
@given(st.text(min_size=1, max_size=120), st.text(min_size=1, max_size=120))
def test_topic_names_are_legal_and_distinct(one: str, other: str) -> None:
    topic = kafka_topic_name(one)
    assert len(topic) <= MAX_TOPIC
    assert topic not in (".", "..")
    assert all(c.isascii() and (c.isalnum() or c in "._-") for c in topic)
    assert (topic == kafka_topic_name(other)) == (one == other)


walls = st.integers(0, 4_000_000_000 * 1_000_000_000)
stamps = st.builds(Timestamp, walls, st.integers(0, 2**31))


def data_name(namer: Namer, stamp: Timestamp, number: int = 0, topic: str = "t") -> str:
    return namer.data(
        stamp, job=1, epoch=1, partition=0, number=number, attempt="abc", topic=topic, schema=1
    )


@pytest.mark.parametrize("partition_format", PARTITION_FORMATS)
@settings(deadline=None)
@given(frontier=stamps, step=st.integers(1, 2**31), mark=stamps)
def test_marks_stand_between_what_they_cover_and_what_follows(
    partition_format: str, frontier: Timestamp, step: int, mark: Timestamp
) -> None:
    """A file delivered at a frontier below the mark sorts before it, at or above it after."""
    namer = Namer(PARTITION_FORMATS[partition_format], "ndjson", "0123456789abcdef")
    data = data_name(namer, frontier.next())
    resolved = namer.resolved(mark)
    if frontier < mark:
        assert data < resolved
    else:
        assert data > resolved
    nearest = namer.resolved(frontier.next())
    assert data < nearest


@settings(deadline=None)
@given(st.lists(stamps, min_size=2, max_size=6))
@pytest.mark.parametrize("partition_format", PARTITION_FORMATS)
def test_names_sort_by_time(partition_format: str, found: list[Timestamp]) -> None:
    namer = Namer(PARTITION_FORMATS[partition_format], "ndjson", "0123456789abcdef")
    ordered = sorted(set(found))
    names = [data_name(namer, stamp) for stamp in ordered]
    assert names == sorted(names)


def test_names_look_as_promised() -> None:
    stamp = Timestamp(1585800327107214000, 0)
    namer = Namer(PARTITION_FORMATS["daily"], "ndjson", "56087568dba1e6b8")
    assert data_name(namer, stamp, 3, "test_table") == (
        "2020-04-02/202004020405271072140000000000000-56087568dba1e6b8-1-0000000001-00000-"
        "000003abc-test_table-1.ndjson"
    )
    assert namer.resolved(stamp) == "2020-04-02/202004020405271072140000000000000.RESOLVED"
    assert Namer(PARTITION_FORMATS["flat"], "csv", "0").resolved(stamp).startswith("20200402")
    assert (
        Namer(PARTITION_FORMATS["minute"], "csv", "0")
        .resolved(stamp)
        .startswith("2020-04-02/04/05/2020")
    )


def test_a_topic_is_escaped_once_in_a_file_name() -> None:
    namer = Namer(PARTITION_FORMATS["flat"], "ndjson", "56087568dba1e6b8")
    topic = kafka_topic_name('Odd "name')
    found = parse_name(data_name(namer, Timestamp(1), topic=topic))
    assert found is not None
    assert found.topic == topic == "Odd_u0020__u0022_name"


def test_long_topics_leave_room_for_the_rest() -> None:
    namer = Namer(PARTITION_FORMATS["flat"], "ndjson.zst", "56087568dba1e6b8")
    assert len(data_name(namer, Timestamp(1), topic="x" * 249)) <= 255


def test_files_are_in_the_order_in_which_they_were_written() -> None:
    """A writer died before its progress was saved; the next one writes the same time again."""
    first = Namer(PARTITION_FORMATS["daily"], "ndjson", "f" * 16)
    second = Namer(PARTITION_FORMATS["daily"], "ndjson", "0" * 16)
    early, late = Timestamp(10**18), Timestamp(10**18 + 5)
    written = [
        (data_name(first, early, number=0), 100),
        (data_name(first, early, number=1), 130),
        (data_name(second, early, number=0), 110),  # the first file of an earlier round
        (data_name(second, late, number=1), 105),
    ]
    assert file_order(reversed(written)) == [path for path, _ in written]
    assert file_order([("2020-01-01/notes.txt", 1), *written[:1]]) == [written[0][0]]


def test_a_later_writer_repeats_a_time_behind_the_one_that_died() -> None:
    """Readers that sort by name get repeats in order, not versions that go back."""
    clock = ManualClock(10**18)
    for _ in range(20):
        died = Namer(PARTITION_FORMATS["daily"], "ndjson", new_session(clock))
        clock.advance(0.001)
        following = Namer(PARTITION_FORMATS["daily"], "ndjson", new_session(clock))
        written = [data_name(died, Timestamp(5), number=9), data_name(following, Timestamp(5))]
        assert written == sorted(written)
        assert all(parse_name(name.rpartition("/")[2]) for name in written)
