"""Recent changes of a store of row images, in memory, held against a dict of the true records."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from changefeed.images.memory import MemoryLayer
from changefeed.images.packing import RecordLayout
from changefeed.images.runs import ImageRun, KeyBatch, LayerHits

LAYOUT = RecordLayout((1,), ("string",))


def some_keys(numbers: list[int], hashes: int = 0) -> KeyBatch:
    """Keys with these numbers. ``hashes``: how many hashes there are; 0: as many as keys."""
    keys = KeyBatch.of(pa.array([f"key {n}".encode() for n in numbers], pa.large_binary()))
    return KeyBatch(keys.packed, keys.hashes % np.uint64(hashes)) if hashes else keys


def found(layer: MemoryLayer | ImageRun, upto: int, hashes: int = 0) -> dict[int, bytes | None]:
    """What the layer has, by the number of the key; None: deleted."""
    keys = some_keys(list(range(upto)), hashes)
    hits: LayerHits = layer.find(keys, keys.in_hash_order())
    return dict(zip(hits.at.tolist(), hits.records.to_pylist(), strict=True))


@pytest.mark.parametrize("hashes", [0, 7], ids=["hashes differ", "hashes alike"])
@pytest.mark.parametrize("seed", range(5))
def test_the_newest_record_of_each_key_is_found(seed: int, hashes: int, tmp_path: Path) -> None:
    """Puts of any size, deletes, keys that come again, and keys of the same hash."""
    draw = random.Random(seed)
    layer, true = MemoryLayer(LAYOUT), dict[int, bytes | None]()
    assert layer.empty
    for _ in range(40):
        numbers = draw.sample(range(200), draw.choice([1, 1, 2, 30, 150]))
        there = np.array([draw.random() < 0.8 for _ in numbers])
        # A slice: what lies before its first row is not the layer's.
        texts = pa.array(["-", *(draw.choice(["", "a", "b" * 300]) for _ in numbers)])
        records = LAYOUT.pack([texts]).slice(1)
        layer.put(some_keys(numbers, hashes), records, there)
        kept = zip(numbers, there.tolist(), records.to_pylist(), strict=True)
        true |= {number: record if is_there else None for number, is_there, record in kept}
        assert found(layer, 250, hashes) == true
    assert found(layer.write(tmp_path / "run"), 250, hashes) == true


def test_what_it_takes_counts_every_change() -> None:
    """Records that a newer one replaced are still in memory."""
    layer = MemoryLayer(LAYOUT)
    sizes = []
    for _ in range(3):
        layer.put(some_keys([1]), LAYOUT.pack([pa.array(["x" * 1_000])]), np.array([True]))
        sizes.append(layer.bytes)
    assert 1_000 < sizes[0] < 1_100
    assert sizes == [sizes[0], 2 * sizes[0], 3 * sizes[0]]
