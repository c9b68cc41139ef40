"""What several tests from a statement to a sink begin with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from changefeed.core.engines import EngineOption
from changefeed.spark.session import NodeSpark
from tests.conftest import LentSpark
from tests.e2e.feeds import Feeds, running

# What its assertions compared is shown, as in a test.
pytest.register_assert_rewrite("tests.e2e.registered")


@pytest.fixture
def feeds(tmp_path: Path, spark_engine: NodeSpark) -> Iterator[Feeds]:
    """A node on a state of its own, without any feed."""
    with running(tmp_path / "state", spark_engine) as feeds:
        yield feeds


@pytest.fixture(autouse=True)
def bulk_engine(request: pytest.FixtureRequest) -> Iterator[None]:
    """Where scans and backlogs run; by :data:`tests.e2e.feeds.EITHER_ENGINE` both in turn.

    In a run with Spark every scan and every backlog that can be a job is one, however few rows it
    has, and the test fails if there was none: then it proves nothing that its other run does not.
    """
    if getattr(request, "param", "node") != "spark":
        yield
        return
    engine: LentSpark = request.getfixturevalue("spark_engine")
    before = len(engine.jobs)
    with engine.preferring(EngineOption.SPARK, least_job_rows=1):
        yield
    assert len(engine.jobs) > before, "no scan and no backlog was a job of Spark"
