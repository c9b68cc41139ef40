"""Which feeds a node starts, when the job table changes while it looks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from changefeed.catalog import Catalog, DesiredStatus, Job, Status
from changefeed.catalog.model import JobSpec, TableProgress
from changefeed.core.clock import SYSTEM_CLOCK
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.schema import TableName
from changefeed.core.timings import Timings
from changefeed.node.running_feeds import RunningFeeds


class Sources:
    """All are ready; asked for one, a feed would be started."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def covered(self, job: Job) -> bool:
        return True

    def runtime(self, name: str) -> Any:
        self.asked.append(name)
        raise ChangefeedError(Code.NOT_SUPPORTED, "started")


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    catalog = Catalog.open(tmp_path)
    yield catalog
    catalog.close()


def feeds(catalog: Catalog, sources: Sources) -> RunningFeeds:
    services = SimpleNamespace(catalog=catalog, node_id="n", clock=SYSTEM_CLOCK, timings=Timings())
    return RunningFeeds(cast(Any, services), cast(Any, sources))


def created(catalog: Catalog) -> Job:
    table = TableName("shop", "public", "t")
    return catalog.create_job(JobSpec("shop", ("TABLE t",), (TableProgress(table, "t"),), name="f"))


def test_a_feed_that_should_run_is_started(catalog: Catalog) -> None:
    sources, job = Sources(), created(catalog)
    with pytest.raises(ChangefeedError, match="started"):
        feeds(catalog, sources).start_wanted([job])
    assert sources.asked == ["shop"]


@pytest.mark.parametrize("how", ["failed", "paused", "dropped"])
def test_a_feed_that_ended_after_the_jobs_were_read_stays_ended(catalog: Catalog, how: str) -> None:
    """Its runner told why it failed; started again it would tell that a failed job cannot run."""
    sources, job = Sources(), created(catalog)
    if how == "failed":
        error = ChangefeedError(Code.SOURCE_LOG_GONE, "the slot is gone")
        catalog.transition(job.id, Status.FAILED, reason="failed", error=error)
    elif how == "paused":
        catalog.request(job.id, DesiredStatus.PAUSED)
    else:
        catalog.delete_job(job.id)
    feeds(catalog, sources).start_wanted([job])
    assert sources.asked == []
    assert catalog.lease_holder(job.id) is None
    if how == "failed":
        assert catalog.job("f").error_code == Code.SOURCE_LOG_GONE.number
