"""What the feeds of a source make of the limits of its change log."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from changefeed.capture.feed_budgets import FeedBudgets, OverLimit
from changefeed.capture.process import _settings
from changefeed.capture.standby import CaptureTask
from changefeed.catalog import Catalog, LogClaim
from changefeed.catalog.model import DesiredStatus, Status
from changefeed.core.clock import ManualClock, Timestamp
from changefeed.core.errors import ChangefeedError
from changefeed.core.events import Flush, Frontier, Truncate
from changefeed.core.schema import Column, TableName, TableSchema
from changefeed.core.state import StateLayout
from changefeed.core.timings import Timings
from changefeed.core.types import LogicalType
from changefeed.log import LogSettings, LogWriter
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
    made = _settings(catalog, CaptureTask("shop", disk=7, copies=5))
    assert (made.keep_bytes, made.disk_budget, made.copy_budget) == (size, 7, 5)


MIB = 1 << 20
SCHEMA = TableSchema(
    TableName("shop", "public", "t"),
    (Column("a", "integer", LogicalType.parse("int32"), False, 1),),
    (0,),
    version=1,
)
#: Timings have ten minutes.
GRACE = Timings().over_limit


class Bench:
    """Feeds of one source, the log that they share, and what they have left to deliver."""

    def __init__(self, tmp_path: Path, budget: int | None = None) -> None:
        self.jobs: dict[int, Any] = {}
        self.left: dict[int, int] = {}
        self.standing_tables: set[int] = set()
        self.changes = 0
        self.broken = ""
        self.clock, self.layout = ManualClock(), StateLayout(tmp_path)
        self.told: list[tuple[OverLimit, ...]] = []
        self.ended: list[tuple[int, str]] = []
        # Of the log:
        self.settings = LogSettings(disk_budget=budget)
        self.bytes = self.unfinished = self.fixed = 0
        self.budgets = FeedBudgets(
            cast(Catalog, self),
            "shop",
            cast(Any, self),
            self.layout.scratch,
            self.clock,
            tell=self.told.append,
        )

    def feed(self, left: int, status: Status = Status.RUNNING, **options: str) -> int:
        number = len(self.jobs) + 1
        self.jobs[number] = SimpleNamespace(
            id=number,
            name=f"f{number}",
            options=options,
            status=status,
            wanted=DesiredStatus.RUNNING,
            error_code="CF5001" if status is Status.FAILED else None,
        )
        self.left[number] = left
        self.changes += 1
        return number

    def held_up(self, full: bool = False, seconds: float = 5.0) -> str:
        """Why nothing is read some seconds later."""
        self.clock.advance(seconds)
        return self.budgets.held_up(full)

    def over(self, *, all_told: bool = False) -> list[OverLimit]:
        """The feeds that the node was told of last, or ever."""
        return [over for told in self.told[0 if all_told else -1 :] for over in told]

    # -- the log --

    def above(self, at: Timestamp) -> int:
        return self.left[at.wall]

    # -- the state --

    def version(self) -> int:
        return self.changes

    def source_jobs(self, name: str) -> list[Any]:
        return list(self.jobs.values())

    def claims(self, name: str) -> list[LogClaim]:
        if self.broken:
            raise ChangefeedError(self.broken, "the state does not answer")
        gone = {number for number, _ in self.ended}
        return [
            LogClaim(number, number in self.standing_tables, Timestamp(number))
            for number in self.left
            if number not in gone
        ]

    def end_claim(self, claim: LogClaim, message: str) -> bool:
        self.ended.append((claim.job_id, message))
        return True


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_one_of_fifty_over_its_limit_and_one_that_failed_hold_nobody_up(bench: Bench) -> None:
    for _ in range(48):
        bench.feed(100 * MIB)
    works = bench.feed(9 * MIB, max_disk="8MiB")
    failed = bench.feed(9 * MIB, Status.FAILED, max_disk="8MiB")
    assert not bench.held_up()
    why = "feed f49 has 9.4 MB on disk, of the change log and staged, and its max_disk is 8MiB"
    later = "the feed fails unless this becomes less within 10m"
    assert bench.told == [(OverLimit(works, f"{why}; {later}", False),)]
    assert bench.ended == [
        (
            failed,
            "feed f50 has 9.4 MB on disk, of the change log and staged, and its max_disk is 8MiB; "
            "this is for a feed that is failed (CF5001), so the change log no longer keeps changes "
            "for it",
        )
    ]
    assert not bench.held_up(seconds=GRACE)
    kept = "this did not become less for 10m, so the change log no longer keeps changes for it"
    assert bench.told[1:] == [(OverLimit(works, f"{why}; {kept}", True),)]
    assert [number for number, _ in bench.ended] == [failed], "its node ends the one that works"


def test_a_feed_that_comes_down_has_its_time_again(bench: Bench) -> None:
    feed = bench.feed(12 * MIB, max_disk="8MiB")
    for _ in range(3):
        bench.held_up(seconds=GRACE - 6)
        bench.left[feed] -= MIB
    assert [over.ends for over in bench.over(all_told=True)] == [False] * 3
    bench.held_up()
    bench.left[feed] = 8 * MIB
    bench.held_up(seconds=GRACE)
    assert bench.told[-1] == ()
    bench.left[feed] += 1
    bench.held_up(seconds=GRACE)
    assert [over.ends for over in bench.over()] == [False], "it is above only now"
    bench.held_up(seconds=GRACE)
    assert [over.ends for over in bench.over()] == [True]
    bench.held_up()
    assert [over.ends for over in bench.over()] == [False], "if it is resumed, as at first"


def test_rows_that_are_staged_count_until_they_are_committed(bench: Bench) -> None:
    one, other = bench.feed(5 * MIB, max_disk="8MiB"), bench.feed(5 * MIB)
    staged = {job: bench.layout.scratch(job) / "changes" / "1.parquet" for job in (one, other)}
    for job, size in ((other, 9 * MIB), (one, 3 * MIB)):
        staged[job].parent.mkdir(parents=True)
        staged[job].write_bytes(bytes(size))
    bench.held_up()
    assert bench.told == [()], "as much as it may, and what another feed stages"
    (staged[one].parent / "2.parquet").write_bytes(b"1")
    bench.held_up()
    assert [over.job_id for over in bench.over()] == [one]
    staged[one].unlink()
    bench.held_up()
    assert bench.told[-1] == ()


def test_tables_that_failed_are_ended_and_not_their_feed(bench: Bench) -> None:
    feed = bench.feed(9 * MIB, max_disk="8MiB")
    bench.standing_tables.add(feed)
    assert not bench.held_up()
    assert bench.told == [()]
    [(number, why)] = bench.ended
    assert number == feed and why.startswith(
        "the failed and paused tables of feed f1 have 9.4 MB on disk"
    )


def test_a_feed_that_is_to_wait_holds_reading_up_until_half_of_its_limit_is_free(
    bench: Bench,
) -> None:
    feed = bench.feed(8 * MIB, Status.PAUSED, max_disk="8MiB", on_max_disk="wait")
    assert not bench.held_up()
    bench.left[feed] += 1
    assert bench.held_up() == (
        "feed f1 has 8.4 MB on disk, of the change log and staged, and its max_disk is 8MiB; "
        "nothing is read until half of it is delivered"
    )
    bench.left[feed] = 4 * MIB + 1
    assert bench.held_up()
    bench.left[feed] = 4 * MIB
    assert not bench.held_up(seconds=0.1), "it is looked at again before anybody waits"
    bench.left[feed] = 4 * MIB + 1
    assert not bench.held_up(), "the half is only for a feed that is waited for"
    bench.left[feed] = 9 * MIB
    assert bench.held_up()
    assert bench.ended == [] and bench.told == [()]
    bench.jobs[feed].options, bench.changes = {"max_disk": "1GiB"}, 9
    assert not bench.held_up()


def test_a_state_that_does_not_answer_leaves_the_limits_as_they_are(bench: Bench) -> None:
    bench.feed(9 * MIB, max_disk="8MiB", on_max_disk="wait")
    assert bench.held_up()
    bench.broken = "CF6001"
    assert bench.held_up()
    bench.broken = "CF6002"
    with pytest.raises(ChangefeedError, match="does not answer"):
        bench.held_up()


# -- the budget of the whole log ----------------------------------------------------------------


@pytest.fixture
def small(tmp_path: Path) -> Bench:
    """A log whose budget of 10 MiB is used up."""
    made = Bench(tmp_path, 10 * MIB)
    made.bytes = 10 * MIB
    return made


FULL = "the change log reached its disk budget of 10.5 MB (--max-disk)"


def test_a_full_log_gives_up_feeds_that_do_not_work_one_after_another(small: Bench) -> None:
    small.feed(MIB - 1, Status.PAUSED)
    failed, paused = small.feed(9 * MIB, Status.FAILED), small.feed(5 * MIB, Status.PAUSED)
    works = small.feed(4 * MIB)
    assert small.held_up(full=True)
    assert small.ended == [
        (
            failed,
            f"{FULL} and keeps 9.4 MB for feed f2; this is for a feed that is failed (CF5001), so "
            "the change log no longer keeps changes for it",
        )
    ]
    assert not small.held_up(full=False), "there is room again"
    small.held_up(full=True)
    assert [number for number, _ in small.ended] == [failed, paused]
    for _ in range(3):
        assert small.held_up(full=True, seconds=GRACE) == (
            f"{FULL}; feed f{works} needs the most of it"
        )
    assert len(small.ended) == 2 and set(small.told) == {()}, "the rest is not to blame"


@pytest.mark.parametrize(
    ("left", "ends"),
    [
        ([9, 0], True),
        ([9, 8, 0, 0], True),
        ([9], False),
        ([9, 8, 0], False),
        ([5, 0, 0], False),
    ],
)
def test_a_feed_that_works_is_given_up_if_most_feeds_are_ahead(
    small: Bench, left: list[int], ends: bool
) -> None:
    for size in left:
        small.feed(size * MIB)
    for _ in range(2):
        assert small.held_up(full=True, seconds=GRACE) == f"{FULL}; feed f1 needs the most of it"
    over = [(told.job_id, told.ends) for round_ in small.told for told in round_]
    assert over == ([(1, False), (1, True)] if ends else [])


def test_a_feed_that_is_to_wait_stops_reading_at_the_budget(small: Bench) -> None:
    small.feed(9 * MIB, Status.PAUSED, on_max_disk="wait")
    small.feed(8 * MIB, Status.PAUSED)
    assert small.held_up(full=True) == f"{FULL}; feed f1 needs the most of it"
    assert small.ended == [], "the end of the other claim would free nothing"


def test_a_transaction_that_does_not_fit_says_so(small: Bench) -> None:
    small.feed(9 * MIB, Status.PAUSED)
    small.fixed, small.unfinished = 10 * MIB, 9 * MIB
    assert small.held_up(full=True) == (
        "a transaction does not fit into the disk budget of the change log: it takes 9.4 MB so "
        "far, --max-disk allows 10.5 MB, and waiting frees nothing. Start the node with a larger "
        "--max-disk; no change is lost"
    )
    assert small.ended == [], "no claim is to blame"
    small.fixed = small.unfinished = MIB
    small.held_up(full=True)
    assert small.held_up(full=True) == f"{FULL}; 1.0 MB of it is a transaction that has not ended"


def test_a_full_disk_is_nobodys_fault(small: Bench) -> None:
    small.feed(9 * MIB, Status.PAUSED)
    small.bytes = 9 * MIB
    assert "the disk of the change log has no room" in small.held_up(full=True)
    assert small.ended == []


def test_the_part_of_a_transaction_is_counted(tmp_path: Path) -> None:
    with LogWriter(tmp_path, LogSettings(disk_budget=1)) as log:
        assert log.room() == 0
        log.settings = LogSettings()
        log.append(Flush((), Frontier(Timestamp(1), "0" * 16, 1)))
        assert (log.unfinished, log.fixed) == (0, 0)
        before = log.bytes
        log.append(Flush((Truncate(SCHEMA, Timestamp(2), 5),), None))
        assert log.unfinished == log.bytes - before > 0
        assert log.fixed == log.bytes
        log.append(Flush((), Frontier(Timestamp(2), "0" * 15 + "1", 5)))
        assert (log.unfinished, log.fixed) == (0, 0)


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
