"""What several tests from a statement to a sink begin with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from changefeed.spark.session import NodeSpark
from tests.e2e.feeds import Feeds, running

# What its assertions compared is shown, as in a test.
pytest.register_assert_rewrite("tests.e2e.registered")


@pytest.fixture
def feeds(tmp_path: Path, spark_engine: NodeSpark) -> Iterator[Feeds]:
    """A node on a state of its own, without any feed."""
    with running(tmp_path / "state", spark_engine) as feeds:
        yield feeds
