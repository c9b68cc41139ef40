"""Comparison of copies kept as messages: the envelope ``bare``, and keys that no row shows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from changefeed.core.errors import ChangefeedError, Code
from changefeed_testing.sinks.rows import table_of
from sinks.base import SinkContext
from sinks.copies import BARE, CopyComparison
from sinks.message_copies import MessageComparison


def context(scratch: Path, read: Callable[[int], object] = int) -> SinkContext:
    return SinkContext("f", 1, (), scratch=str(scratch), read=read)


@pytest.fixture
def copy(tmp_path: Path) -> Iterator[MessageComparison]:
    schema = table_of("t", key=("a",), a="int32", b="text", n="int64")
    with MessageComparison(context(tmp_path), schema, "json", BARE) as made:
        yield made
    assert not list(tmp_path.iterdir())


def expect(copy: MessageComparison, *rows: dict[str, object]) -> None:
    messages = pa.table(
        {
            "key": [json.dumps([row["a"]]).encode() for row in rows],
            "value": [json.dumps(row).encode() for row in rows],
        }
    )
    copy.expect_messages([messages])


def replay(copy: MessageComparison, *rows: dict[str, object]) -> None:
    copy.replay((json.dumps([row["a"]]), row) for row in rows)


def test_a_delete_of_bare_is_no_extra_row(copy: MessageComparison) -> None:
    expect(copy, {"a": 1, "b": "x", "n": 1})
    replay(
        copy,
        {"a": 1, "b": "x", "n": 1},
        {"a": 2, "b": "y", "n": 2},
        {"a": 2, "b": None, "n": None},
        {"a": 3, "b": None, "n": 3},
    )
    assert [(d.kind, d.key) for d in copy.differences(10)] == [("extra", "[3]")]


def test_a_row_of_nulls_is_accepted_and_one_that_was_deleted_is_missing(
    copy: MessageComparison,
) -> None:
    expect(copy, {"a": 1, "b": None, "n": None}, {"a": 2, "b": "x", "n": 2})
    replay(copy, {"a": 1, "b": None, "n": None}, {"a": 2, "b": None, "n": None})
    [found] = copy.differences(10)
    assert (found.kind, found.key, found.target) == ("missing", "[2]", None)


def test_what_is_read_of_the_target_is_told(tmp_path: Path) -> None:
    """Of a row that came several times each of them."""
    read: list[int] = []
    schema = table_of("t", key=("a",), a="int32", b="text")
    with MessageComparison(context(tmp_path, read.append), schema, "json", BARE) as copy:
        replay(copy, *[{"a": 1, "b": "x" * 1000}] * 5)
    assert 5 * 1000 < sum(read) < 6 * 1000


def test_rows_of_bare_that_look_like_deletes_are_refused(copy: MessageComparison) -> None:
    with pytest.raises(ChangefeedError, match="a row looks like its delete") as refused:
        expect(copy, {"a": 1})
    assert refused.value.code is Code.NOT_SUPPORTED


def test_a_key_that_the_row_does_not_show_is_named_by_its_message(copy: MessageComparison) -> None:
    copy.expect([("[1]", {"b": "x"})])
    copy.hold([("[1]", {"b": "y"}), ("[2]", {"b": "z"})])
    assert [(d.kind, d.key) for d in copy.differences(10)] == [("changed", "[1]"), ("extra", "[2]")]


def test_the_values_of_a_key_are_those_of_the_message(tmp_path: Path) -> None:
    """What the target does with a row follows from there."""
    schema = table_of("t", key=("a", "b"), a="int32", b="text", n="int64")
    row = {"a": 1, "b": "x", "n": 2}
    with CopyComparison(str(tmp_path), schema, read=int, keyed=True) as copy:
        copy.expect([('[1, "x"]', row)])
        copy.hold(
            [
                ('[1, "y"]', row),
                ('{"b": "z", "a": 1}', {"n": 5}),
                ("not JSON", row),
                ("[1.5, null]", row),
                ("[1]", {"a": 1, "b": {"deep": 1}}),
            ]
        )
        found = {d.values for d in copy.differences(10)}
    assert found == {(1, "x"), (1, "y"), (1, "z"), ()}
    with CopyComparison(str(tmp_path), schema, read=int) as copy:
        copy.expect([('[1, "x"]', row)])
        copy.hold([('[1, "y"]', {"a": 2, "b": "y", "n": 2})])
        assert {d.values for d in copy.differences(10)} == {(1, "x"), (2, "y")}
