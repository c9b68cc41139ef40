"""``pytest tests/golden --rewrite`` makes the golden files equal to what the code does now."""

from __future__ import annotations

import pytest


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
