"""The index of keys beside a dictionary."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from sinks.lake.small.key_index import IN_MEMORY, LONGEST, KeyBits, KeyHash, KeyIndex

Keys = list[tuple[int | str | None, ...]]


def columns(keys: Keys, kinds: list[pa.DataType]) -> list[pa.Array]:
    return [pa.array(c, k) for c, k in zip(zip(*keys, strict=True), kinds, strict=True)]


def key(kinds: list[pa.DataType], chance: random.Random) -> tuple[int | str, ...]:
    return tuple(
        chance.randint(-40, 40) if pa.types.is_integer(kind) else "k" * chance.randint(0, 60)
        for kind in kinds
    )


@pytest.mark.parametrize(
    "kinds",
    [[pa.int64()], [pa.string()], [pa.string(), pa.int32()], [pa.int16(), pa.string(), pa.int64()]],
    ids=str,
)
@pytest.mark.parametrize(("in_memory", "part"), [(IN_MEMORY, 1000), (30, 1000), (5, 60)])
def test_it_finds_the_newest_place_of_each_key(
    kinds: list[pa.DataType], in_memory: int, part: int, tmp_path: Path
) -> None:
    """Also in several parts."""
    chance, hashing = random.Random(1), KeyHash()
    index = KeyIndex(tmp_path, 500, in_memory, part)
    model: dict[tuple[int | str, ...], tuple[int, int, int]] = {}
    for number in range(60):
        keys = [key(kinds, chance) for _ in range(chance.randint(1, 25))]
        bits = hashing.bits(columns([*keys], kinds))
        found = index.find(bits)
        assert found.there.tolist() == [k in model for k in keys]
        for place, k in enumerate(keys):
            if k in model:
                here = found.files[place], found.rows[place], found.has[place]
                assert here == model[k]
        count = len(keys)
        versions = np.array([chance.randint(-(2**62), 2**62) for _ in keys])
        distinct = index.add(bits, np.full(count, number), np.arange(count), versions)
        assert distinct == (len(set(keys)) == count)
        model |= {k: (number, row, int(versions[row])) for row, k in enumerate(keys)}
    assert index.entries < 3 * len(model) + 100
    assert bool(list(tmp_path.glob("*.keys"))) == (in_memory < 100)
    index.close()
    assert not list(tmp_path.glob("*.keys"))


def test_keys_that_share_half_of_their_bits_are_told_apart(tmp_path: Path) -> None:
    index = KeyIndex(tmp_path)
    same = np.array([7, 7, 7, 9], np.uint64)
    other = np.array([3, 1, 2, 1], np.uint64)
    assert index.add(KeyBits(same, other), np.arange(4), np.arange(4), np.arange(4))
    found = index.find(KeyBits(same[::-1].copy(), other[::-1].copy()))
    assert found.files.tolist() == [3, 2, 1, 0]
    missing = index.find(KeyBits(np.array([7, 8], np.uint64), np.array([4, 1], np.uint64)))
    assert not missing.there.any()


def test_keys_that_look_alike_have_other_bits() -> None:
    keys: Keys = [("a", "bc"), ("ab", "c"), ("abc", ""), ("", "abc"), ("a", "b"), ("aa", "b")]
    bits = KeyHash().bits(columns(keys, [pa.string(), pa.string()]))
    assert len(set(bits.a.tolist())) == len(set(bits.b.tolist())) == len(keys)


def test_a_key_that_is_too_long_is_refused() -> None:
    with pytest.raises(ValueError, match="too long"):
        KeyHash().bits([pa.array(["x" * (LONGEST + 1)])])
