"""What the feeds of a source make of the limits of its change log."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from changefeed.capture.feed_budgets import FeedBudgets
from changefeed.capture.process import _settings
from changefeed.catalog import Catalog
from changefeed.catalog.model import DesiredStatus
from changefeed.core.clock import ManualClock, Timestamp
from changefeed.core.errors import ChangefeedError
from changefeed.core.state import StateLayout
from changefeed.log.growth import STEP, Growth


@pytest.mark.parametrize(
    ("feeds", "size"),
    [
        ([], None),
        ([{}], None),
        ([{"gc_size": "1GB"}], 1_000_000_000),
        ([{"gc_size": "1GB"}, {"gc_size": "3GB"}], 3_000_000_000),
        ([{"gc_size": "1GB"}, {}], None),
    ],
)
def test_history_is_cut_to_the_largest_size_that_a_feed_allows(
    feeds: list[dict[str, Any]], size: int | None
) -> None:
    jobs = [SimpleNamespace(options=options) for options in feeds]
    catalog = cast(Catalog, SimpleNamespace(source_jobs=lambda name: jobs))
    made = _settings(catalog, "shop", disk=7)
    assert (made.keep_bytes, made.disk_budget) == (size, 7)


class Feeds:
    """Three feeds in a state: one with a limit, one without, one that goes away."""

    def __init__(self) -> None:
        self.limit = "8MiB"
        self.needed = {1: Timestamp(0), 2: Timestamp(0), 3: Timestamp(0)}
        self.changes = 0
        self.broken = ""

    def version(self) -> int:
        return self.changes

    def source_jobs(self, name: str) -> list[Any]:
        def feed(number: int, wanted: DesiredStatus, **options: str) -> Any:
            return SimpleNamespace(id=number, name=f"f{number}", options=options, wanted=wanted)

        return [
            feed(1, DesiredStatus.PAUSED, max_disk=self.limit),
            feed(2, DesiredStatus.RUNNING),
            feed(3, DesiredStatus.DROPPED, max_disk="1kB"),
        ]

    def needed_from(self, name: str) -> dict[int, Timestamp]:
        if self.broken:
            raise ChangefeedError(self.broken, "the state does not answer")
        return self.needed


def nowhere(job_id: int) -> Path:
    """A feed whose sink has staged nothing."""
    return Path("/nowhere")


def test_rows_that_are_staged_count_until_they_are_committed(tmp_path: Path) -> None:
    mib, left = 1 << 20, 5 << 20
    clock, layout = ManualClock(), StateLayout(tmp_path)
    catalog = cast(Catalog, Feeds())
    budgets = FeedBudgets(catalog, "shop", lambda at: left, layout.scratch, clock)
    assert not budgets.exceeded()
    staged = {job: layout.scratch(job) / "changes" / "part" / "1.parquet" for job in (1, 2)}
    for job, size in ((2, 9 * mib), (1, 3 * mib)):
        staged[job].parent.mkdir(parents=True)
        staged[job].write_bytes(bytes(size))
    clock.advance(5)
    assert not budgets.exceeded(), "as much as it may, and what another feed stages"
    (staged[1].parent / "2.parquet").write_bytes(b"1")
    clock.advance(5)
    assert "feed f1" in budgets.exceeded()
    staged[1].unlink()
    assert budgets.exceeded(), "half of it is to be free again"
    left = 3 * mib
    clock.advance(0.1)
    assert not budgets.exceeded(), "it is looked at again before anybody waits"


def test_a_feed_holds_reading_up_until_half_of_its_limit_is_free() -> None:
    feeds, mib = Feeds(), 1 << 20
    size = 8 * mib
    budgets = FeedBudgets(cast(Catalog, feeds), "shop", lambda at: size - at.wall, nowhere)
    assert not budgets.exceeded()
    size += 1
    assert budgets.exceeded() == (
        "feed f1 has as much on disk, of the change log and staged, as its max_disk of 8MiB "
        "allows; nothing is read until half of it is delivered"
    )
    feeds.needed = {1: Timestamp(4 * mib)}
    assert budgets.exceeded()
    feeds.needed = {1: Timestamp(4 * mib + 1)}
    assert not budgets.exceeded()
    assert not budgets.exceeded(), "the half is only for a feed that is waited for"
    size += 4 * mib + 1
    assert budgets.exceeded()
    feeds.needed = {}
    assert not budgets.exceeded(), "a feed that scans is not waited for"
    feeds.needed, feeds.limit, feeds.changes = {1: Timestamp(0)}, "1GiB", 1
    assert not budgets.exceeded()


def test_a_state_that_does_not_answer_leaves_the_limits_as_they_are() -> None:
    feeds, clock = Feeds(), ManualClock()
    budgets = FeedBudgets(cast(Catalog, feeds), "shop", lambda at: 9 << 20, nowhere, clock)
    assert budgets.exceeded()
    feeds.broken = "CF6001"
    clock.advance(5)
    assert budgets.exceeded()
    feeds.broken = "CF6002"
    clock.advance(5)
    with pytest.raises(ChangefeedError, match="does not answer"):
        budgets.exceeded()


def test_what_lies_above_a_place_in_the_log() -> None:
    growth = Growth()
    assert (growth.total, growth.above((5, 0))) == (0, 0)
    for n in range(1, 41):
        growth.reach((n, 0), n * STEP // 4)
    assert growth.total == growth.above((0, 0)) == 10 * STEP
    assert growth.above((40, 0)) == 0
    for n in range(1, 41):
        exact = growth.total - n * STEP // 4
        assert exact <= growth.above((n, 0)) <= exact + STEP
    growth.forget((20, 0))
    assert growth.total == 10 * STEP
    assert growth.above((0, 0)) == growth.above((20, 0)) <= 6 * STEP
    growth.reach((50, 0), 20 * STEP)
    assert growth.above((40, 0)) == 10 * STEP
