"""Windows of commit time: which are whole, and the rows that their groups become."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError
from changefeed.query.model import Output
from changefeed.query.types import output_column
from changefeed.query.window_rows import SEQ, result_rows, window_batch
from changefeed.query.windows import (
    WINDOW,
    first_start,
    last_end,
    through,
    window_length,
    windows_of,
)
from grammar.select import read_select
from tests.unit.test_query_changes import FULL, OPEN, log

SECOND = 1_000_000_000
SHOP, COUNT = output_column("shop", "string"), output_column("n", "bigint")
#: ``SELECT shop, count(*) AS n FROM orders GROUP BY window(event_timestamp(), '1 second'), shop``
GROUPED = replace(
    OPEN,
    schema=replace(FULL, columns=(SHOP, COUNT), key=(0,)),
    outputs=(Output(None, 0, "string"), Output(None, 1, "bigint")),
    inputs=(1,),
    filtered=False,
    of_changes=True,
    window=SECOND,
)


@given(done=st.integers(0, 50), upto=st.integers(0, 50), length=st.integers(1, 7))
def test_a_window_is_delivered_when_all_of_it_is_known_and_none_of_it_was_before(
    done: int, upto: int, length: int
) -> None:
    """By looking at each window, in units of which a commit has a multiple."""
    unit = 1_000
    begin, known = Timestamp(done * unit), Timestamp(upto * unit)
    start = first_start(begin, length * unit)
    end = last_end(known, length * unit)
    whole = [
        first
        for first in range(0, 70 * unit, length * unit)
        if begin < Timestamp(first) and known >= through(first + length * unit)
    ]
    assert list(range(start, end, length * unit)) == whole


def test_the_last_instant_of_a_window_is_before_the_next_one_and_after_its_own_commits() -> None:
    assert Timestamp(2 * SECOND - 1000, 7) < through(2 * SECOND) < Timestamp(2 * SECOND)
    assert through(2 * SECOND).version < Timestamp(2 * SECOND).version


def test_a_change_is_of_the_window_that_it_was_committed_in() -> None:
    wall = pa.array([SECOND - 1000, SECOND, 2 * SECOND - 1000])
    starts = [w["start"].timestamp() for w in windows_of(wall, SECOND).to_pylist()]
    assert starts == [0, 1, 1]


@pytest.mark.parametrize(
    "group, length",
    [
        ("window(event_timestamp(), '1 minute')", 60 * SECOND),
        ("shop, WINDOW(Event_Timestamp(), '90s')", 90 * SECOND),
        ("window(event_timestamp(), '1 day'), upper(shop)", 86_400 * SECOND),
    ],
)
def test_how_long_a_window_is(group: str, length: int) -> None:
    _, query = read_select(f"SELECT window.start AS at, count(*) AS n FROM t GROUP BY {group}")
    assert window_length(query) == length


@pytest.mark.parametrize(
    "group",
    [
        "shop",
        "window(event_timestamp(), '0s')",
        "window(event_timestamp(), '500 ms')",
        "window(event_timestamp(), '25h')",
        "window(event_timestamp(), '1 fortnight')",
        "window(event_timestamp(), '1 minute', '10 seconds')",
        "window(created, '1 minute')",
        "window(event_timestamp(), '1 minute'), window(event_timestamp(), '2 minutes')",
    ],
)
def test_what_is_no_window(group: str) -> None:
    _, query = read_select(f"SELECT count(*) AS n FROM t GROUP BY {group}")
    with pytest.raises(ChangefeedError, match="window") as caught:
        window_length(query)
    assert "1 minute" in caught.value.hint


def test_a_query_without_group_by_has_no_windows() -> None:
    assert window_length(read_select("SELECT window.a FROM window WHERE window.b")[1]) is None


def test_each_change_is_a_row_of_a_batch_a_delete_with_its_key() -> None:
    rows = log(
        FULL,
        ("c", (1, "a", 5), None),
        ("u", (1, "b", 6), (1, "a", 5)),
        ("d", None, (1, "b", 6)),
    )
    reads_op = replace(GROUPED, inputs=(0, 1), sql="SELECT `__cf_op`")
    batch = window_batch(reads_op, rows)
    found = [
        (r["id"], r["status"], r["__cf_op"], r[SEQ], r[WINDOW]["start"].timestamp())
        for r in batch.to_pylist()
    ]
    assert found == [
        (1, "a", "insert", 0, 0.0),
        (1, "b", "update", 1, 0.0),
        (1, None, "delete", 2, 0.0),
    ]


def test_groups_are_inserts_of_the_last_instant_of_their_window() -> None:
    groups = pa.table(
        {
            "__cf_end": pa.array([2_000_000, 1_000_000, 2_000_000]),
            "c0": ["b", "z", "a"],
            "c1": pa.array([1, 2, 3]),
        }
    )
    rows: list[dict[str, Any]] = result_rows(GROUPED, groups, 40).to_pylist()
    assert [(r["a0"], r["a1"]) for r in rows] == [("z", 2), ("a", 3), ("b", 1)]
    assert [(r["wall"], r["logical"]) for r in rows] == [
        (SECOND - 1, 0),
        (2 * SECOND - 1, 0),
        (2 * SECOND - 1, 0),
    ]
    assert [(r["op"], r["seq"], r["ord"], r["last"]) for r in rows] == [
        ("c", 38, 0, True),
        ("c", 39, 0, True),
        ("c", 40, 1, True),
    ]
    assert [r["commit_us"] for r in rows] == [999_999, 1_999_999, 1_999_999]
