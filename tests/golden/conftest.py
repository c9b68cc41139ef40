"""``pytest tests/golden --rewrite`` makes the golden files equal to what the code does now."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.golden.world import World


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite",
        action="store_true",
        help="write what the code does into the golden files; read the diff before you commit",
    )


@pytest.fixture
def rewrite(request: pytest.FixtureRequest) -> bool:
    """The golden files are to be written, not compared."""
    return bool(request.config.getoption("--rewrite", default=False))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A catalog, a source and a node without processes."""
    world = World(tmp_path)
    yield world
    world.close()
