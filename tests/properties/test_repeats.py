"""Which keys a large transaction writes more than once, against a dictionary in memory."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from changefeed.sources.decoded import repeats
from changefeed.sources.decoded.repeats import EXISTED, NEW, ONCE, SUPERSEDED, KeyHashes, Repeats
from changefeed.sources.decoded.rows import CREATED, DELETED, UPDATED

COLUMNS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "int64": (pa.int64(), [None, 0, 1, -1, 2**63 - 1, 256]),
    "int16": (pa.int16(), [None, 0, 1, 256]),
    "bool": (pa.bool_(), [None, False, True]),
    "text": (
        pa.string(),
        [None, "", "a", "b", "ab", "ba", "a\0", "\0", "a\1", "\1", "é", "x" * 30],
    ),
}
KEYS = (("int64",), ("text",), ("int16", "text"), ("text", "text"), ("bool", "int64"))


@dataclass(frozen=True)
class Added:
    """Rows of one table that are added together; its number says which columns its key has."""

    group: int
    keys: list[tuple[Any, ...]]
    ops: list[int]


@st.composite
def transactions(draw: st.DrawFn) -> list[Added]:
    found = []
    for group in draw(st.lists(st.integers(0, len(KEYS) - 1), max_size=6)):
        key = st.tuples(*(st.sampled_from(COLUMNS[kind][1]) for kind in KEYS[group]))
        keys = draw(st.lists(key, max_size=8))
        op = st.sampled_from([CREATED, UPDATED, DELETED])
        found.append(Added(group, keys, [draw(op) for _ in keys]))
    return found


def arrays(added: Added) -> list[pa.Array]:
    """The key's columns, as a window on larger arrays."""
    kinds = KEYS[added.group]
    columns = list(zip(*added.keys, strict=True)) if added.keys else [() for _ in kinds]
    made = []
    for kind, values in zip(kinds, columns, strict=True):
        around = COLUMNS[kind][1][-1]
        made.append(pa.array([around, *values, around], COLUMNS[kind][0])[1:-1])
    return made


@settings(deadline=None)
@given(transactions(), st.sampled_from([1, 2, 5, 1000]))
def test_what_becomes_of_each_write(transaction: list[Added], at_once: int) -> None:
    """In memory at once, or part by part; places rise, and one message may have several rows."""
    expected: list[list[int]] = []
    writes: dict[Any, list[tuple[int, int, int, int]]] = defaultdict(list)
    place = 0
    with tempfile.TemporaryDirectory() as folder, mock.patch.multiple(repeats, _TEXT=4):
        counted = Repeats(Path(folder, "records"), Path(folder, "found"), at_once)
        for number, added in enumerate(transaction):
            places = [place + n // 2 for n in range(len(added.keys))]
            place += len(places) + 1
            expected.append(places)
            counted.add(
                added.group,
                arrays(added),
                np.array(added.ops, np.uint8),
                np.array(places, np.int64),
            )
            for n, (key, op) in enumerate(zip(added.keys, added.ops, strict=True)):
                writes[added.group, key].append((number, n, op, places[n]))
        kinds, firsts = _kinds(expected, writes)
        counted.sort()
        for places, kind, first in zip(expected, kinds, firsts, strict=True):
            found = counted.take()
            assert found.place.tolist() == places
            assert found.kind.tolist() == kind
            assert found.of_kind(EXISTED).first.tolist() == [f for f in first if f is not None]
            if places:
                low, high = places[0] + 1, places[-1] - 1
                inside = [n for n, p in enumerate(places) if low <= p <= high]
                some = found.of(low, high)
                assert some.place.tolist() == [places[n] for n in inside]
                assert some.kind.tolist() == [kind[n] for n in inside]
        counted.close()


def _kinds(
    places: list[list[int]], writes: dict[Any, list[tuple[int, int, int, int]]]
) -> tuple[list[list[int]], list[list[int | None]]]:
    """Of each write its kind and, of the last to a key that was there, the first one's place."""
    kinds: list[list[int]] = [[ONCE] * len(p) for p in places]
    firsts: list[list[int | None]] = [[None] * len(p) for p in places]
    for of_key in writes.values():
        if len(of_key) == 1:
            continue
        for number, n, _, _ in of_key:
            kinds[number][n] = SUPERSEDED
        number, n, op, _ = of_key[-1]
        if of_key[0][2] != CREATED:
            kinds[number][n], firsts[number][n] = EXISTED, of_key[0][3]
        elif op != DELETED:
            kinds[number][n] = NEW
    return kinds, firsts


@pytest.mark.parametrize("kind", COLUMNS)
def test_different_keys_have_different_hashes(kind: str) -> None:
    """Also a NULL and a zero, an empty text, and texts of the same bytes in another order."""
    column, values = COLUMNS[kind]
    hashes = KeyHashes()
    pairs = [(a, b) for a in values for b in values]
    key = [pa.array([p[i] for p in pairs], column) for i in (0, 1)]
    for group in (0, 70):
        high, low = hashes.of(group, key, len(pairs))
        assert len(set(high.tolist())) == len(set(low.tolist())) == len(pairs)
        assert high.tolist() != low.tolist()
    again = hashes.of(70, [column[::-1] for column in key], len(pairs))
    assert again[0].tolist() == high.tolist()[::-1] and again[1].tolist() == low.tolist()[::-1]
    assert not set(hashes.of(0, key, len(pairs))[0].tolist()) & set(high.tolist())


def test_keys_that_share_one_hash_are_told_apart_by_the_other() -> None:
    """Half of the 128 bits may be the same by chance."""
    rows = np.zeros(4, repeats._RECORD)
    rows["high"], rows["low"] = 7, [1, 2, 3, 2]
    rows["place"], rows["op"] = [10, 20, 30, 40], [UPDATED] * 4
    found = np.zeros(4, repeats._FOUND)
    repeats._compare(rows, np.arange(4), found)
    assert found["kind"].tolist() == [ONCE, SUPERSEDED, ONCE, EXISTED]
    assert found["first"].tolist()[3] == 20


@pytest.mark.parametrize("parts", [1, 2, 3, 8])
def test_each_record_is_compared_in_one_part(tmp_path: Path, parts: int) -> None:
    """What is sorted at once is a part of a large transaction, whatever the secret of the hashes
    and however few bytes of the keys differ."""
    count = 240
    places = np.arange(count, dtype=np.int64)
    for _ in range(20):
        counted = Repeats(tmp_path / "records", tmp_path / "found")
        counted.add(0, [pa.array(places)], np.full(count, UPDATED, np.uint8), places)
        found = [counted._part(part, parts) for part in range(parts)]
        counted.close()
        assert sorted(n for _, numbers in found for n in numbers.tolist()) == places.tolist()
        assert all(rows["place"].tolist() == numbers.tolist() for rows, numbers in found)
        assert max(len(numbers) for _, numbers in found) < count / parts + 60


def test_large_texts_are_hashed_in_parts() -> None:
    """What is in memory at once is bounded, wherever in its buffers a column begins."""
    tenth = repeats._TEXT // 10
    sizes = [9, 2, None, 7, 0, 3, 25, 4, 5]
    column = pa.array([None if size is None else "x" * (size * tenth) for size in sizes])
    parts = repeats._stretches(column[1:-1])
    assert [len(part) for part in parts] == [4, 1, 1, 1]
    assert pa.concat_arrays(parts) == column[1:-1]
    assert [len(part) for part in repeats._stretches(column[1:4])] == [3]
    assert [len(part) for part in repeats._stretches(column[2:2])] == [0]


def test_hashes_are_a_secret_of_the_process() -> None:
    """Nobody may choose keys whose hashes are the same."""
    key = [pa.array([1, 2], pa.int64())]
    one, other = KeyHashes().of(0, key, 2), KeyHashes().of(0, key, 2)
    assert set(one[0].tolist()).isdisjoint(other[0].tolist())
