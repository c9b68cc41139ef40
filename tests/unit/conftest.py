"""Fixtures of the fast tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.golden.world import World
from tests.helpers.served import Bench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A shop's source, no feed."""
    world = World(tmp_path)
    world.shop()
    bench = Bench(world)
    with bench.server:
        yield bench
    world.close()
