"""Look-up tables in memory: keys, duplicates, age; without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime
from typing import Any

import pyarrow as pa
import pytest

from changefeed.core.clock import ManualClock
from changefeed.core.errors import ChangefeedError
from changefeed.query.lookups import LookupCache, LookupRows
from changefeed.query.model import LookupField, LookupTable

NAME = LookupField("name", "string", pa.string())


def lookup(*keys: str) -> LookupTable:
    """A look-up of names by these columns."""
    pairs = tuple(enumerate(keys))
    return LookupTable(("dim", "a b"), "c", pairs, ("x",) * len(keys), True, (NAME,))


def rows(names: Sequence[str | None], **keys: list[Any]) -> LookupRows:
    table = pa.table({**keys, "name": pa.array(names, pa.string())})
    return LookupRows.of(lookup(*keys), table)


def found(made: LookupRows, *columns: Sequence[Any] | pa.Array) -> list[str | None]:
    """The name for each key; ``-`` where there is no row."""
    chunks = [pa.chunked_array([pa.array(c) if isinstance(c, list) else c]) for c in columns]
    return ["-" if row is None else row["name"] for row in made.at(chunks).to_pylist()]


def test_integers_of_any_width_find_each_other() -> None:
    made = rows(["c", "a", None], k=[30, -10, 20])
    wanted = pa.array([20, 30, None, -10, 31, -11, 30], pa.int16())
    assert found(made, wanted) == [None, "c", "-", "a", "-", "-", "c"]


@pytest.mark.parametrize(
    "keys",
    [
        ["b", "", "ä", "a b"],
        [date(2024, 1, 2), date(1969, 1, 1), date(2024, 1, 1), date(1970, 1, 1)],
        [datetime(2024, 1, 2), datetime(1969, 1, 1), datetime(2024, 1, 1, 0, 0, 0, 1)],
    ],
    ids=["text", "date", "timestamp"],
)
def test_each_key_finds_its_own_row(keys: list[Any]) -> None:
    names = [str(key) for key in keys]
    assert found(rows(names, k=keys), [*keys, None, *keys]) == [*names, "-", *names]


def test_all_columns_of_a_key_count() -> None:
    made = rows(["x", "y", "z"], a=["a", "ab", "a:1"], b=["bc", "c", "c"])
    assert found(made, ["a", "ab", "a", "a:1", None], ["bc", "c", "c", "c", "c"]) == [
        "x",
        "y",
        "-",
        "z",
        "-",
    ]


def test_keys_without_a_value_are_no_keys() -> None:
    assert found(rows(["x", "y", "z"], k=[None, None, 1]), [None, 1]) == ["-", "z"]


@pytest.mark.parametrize("keys", [[], [None]])
def test_an_empty_look_up_has_no_row(keys: list[Any]) -> None:
    made = LookupRows.of(
        lookup("k"), pa.table({"k": pa.array(keys, pa.int32()), "name": ["x"] * len(keys)})
    )
    assert found(made, pa.array([1, None], pa.int32())) == ["-", "-"]


def test_keys_of_several_rows_are_counted_and_not_shown() -> None:
    with pytest.raises(ChangefeedError) as caught:
        rows(["x"] * 6, k=["secret", "secret", "secret", "b", "b", "c"])
    assert caught.value.code.number == "CF4004"
    assert caught.value.message == (
        "look-up table dim.`a b` has 2 keys with several rows: k must be unique"
    )


def test_a_look_up_is_read_again_when_it_is_old() -> None:
    clock = ManualClock()
    answers = iter([rows(["old"], k=[1]), rows(["new"], k=[1])])
    cache = LookupCache(lambda _: next(answers), clock, 60.0)
    table = lookup("k")
    assert found(cache.rows(table), [1]) == ["old"]
    clock.advance(59)
    assert found(cache.rows(table), [1]) == ["old"]
    clock.advance(1)
    assert found(cache.rows(table), [1]) == ["new"]


def test_a_look_up_that_cannot_be_read_again_is_not_used() -> None:
    clock = ManualClock()

    def read(_: LookupTable) -> LookupRows:
        if clock.monotonic() > 30:
            raise ChangefeedError("CF4002", "Spark failed")
        return rows(["old"], k=[1])

    cache = LookupCache(read, clock, 60.0)
    cache.rows(lookup("k"))
    clock.advance(60)
    with pytest.raises(ChangefeedError, match="Spark failed"):
        cache.rows(lookup("k"))
