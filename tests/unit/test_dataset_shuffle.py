"""How many parts a comparison's rows are shuffled into, and how large each may be."""

from __future__ import annotations

import pytest

from changefeed.dataset.shuffle import count_parts, part_bytes, size_bytes

MIB = 1 << 20


@pytest.mark.parametrize(
    ("heap", "tasks", "part"),
    [(4096, 2, 189), (1024, 2, 36), (1024, 16, 16), (256, 1, 16), (64 * 1024, 4, 256)],
)
def test_a_part_is_a_share_of_a_task_memory(heap: int, tasks: int, part: int) -> None:
    assert part_bytes(heap * MIB, tasks) // MIB == part


def test_parts_follow_rows_and_bytes() -> None:
    assert count_parts(0, 0, 64 * MIB, cores=4) == 4
    assert count_parts(10_000_000, 0, 64 * MIB, cores=2) == 20
    assert count_parts(10, 6_400 * MIB, 64 * MIB, cores=2) == 100
    assert count_parts(10, 10**15, 64 * MIB, cores=2) == 1_000, "the most"


@pytest.mark.parametrize(
    ("text", "size"), [("2g", 2 << 30), ("512M", 512 << 20), (" 64kb", 64 << 10), ("1024", 1 << 30)]
)
def test_sizes_as_spark_writes_memory(text: str, size: int) -> None:
    assert size_bytes(text) == size
