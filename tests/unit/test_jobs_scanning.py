"""Which tables are scanned again, from where, and what holds resolved back meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from changefeed.capture.source_runtime import SourceKeeper
from changefeed.catalog import Catalog
from changefeed.catalog.model import JobSpec, TableProgress, TableState
from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError
from changefeed.core.schema import TableName
from changefeed.feeds.feed import Feed
from changefeed.feeds.scan_coordinator import Scanning
from changefeed.scan.barrier import Fence
from changefeed.scan.thread import Scan, TableScan

TABLE = TableName("shop", "public", "t")


class StillScan:
    """A scan that does nothing by itself."""

    def __init__(self, tables: list[TableProgress]) -> None:
        self.tables = {t.table: TableScan(t, backfill=t.done_upto is not None) for t in tables}
        self.at: Timestamp | None = None
        self.error: ChangefeedError | None = None
        self.placed = threading.Event()
        self.fence = Fence()
        self.alive = True

    def start(self) -> None:
        """Nothing runs."""

    def is_alive(self) -> bool:
        return self.alive

    def stop(self) -> None:
        self.alive = False

    def join(self, timeout: float) -> None:
        """Nothing runs."""


class StillKeeper:
    """A source whose change log begins at :attr:`oldest`."""

    def __init__(self) -> None:
        self.oldest = Timestamp(1)


class Bench:
    """A feed of one table, and the scans it starts."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        progress = TableProgress(TABLE, "t")
        self.job = catalog.create_job(
            JobSpec(source="shop", targets=("TABLE t",), tables=(progress,), sink_uri="null://")
        )
        self.scans: list[StillScan] = []
        self.keeper = StillKeeper()
        self.restart()

    def restart(self) -> None:
        """As after a crash: what was not saved is forgotten."""
        lease = self.catalog.acquire_lease(self.job.id, "n", 60)
        assert lease is not None
        self.feed = Feed(self.catalog, self.catalog.job(self.job.id), lease)
        self.scanning = Scanning(
            self.catalog, cast(SourceKeeper, self.keeper), threading.Event(), self._start
        )
        self.scanning.begin(self.feed)

    def _start(self, tables: list[TableProgress]) -> Scan:
        self.scans.append(StillScan(tables))
        return cast(Scan, self.scans[-1])

    @property
    def scan(self) -> StillScan:
        return self.scans[-1]

    @property
    def table(self) -> TableProgress:
        return self.feed.tables[TABLE]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    catalog = Catalog.open(str(tmp_path))
    yield Bench(catalog)
    catalog.close()


def test_the_instant_of_a_scan_is_durable_before_its_rows(bench: Bench) -> None:
    bench.scan.at = Timestamp(10)
    assert bench.scanning.waits
    bench.scanning.follow(bench.feed, lambda: None)
    assert bench.scan.placed.is_set()
    assert bench.catalog.tables(bench.job.id)[0].scan_at == Timestamp(10)


def test_a_scan_that_broke_is_followed_by_the_changes_since(bench: Bench) -> None:
    bench.scan.at = Timestamp(10)
    bench.scanning.follow(bench.feed, lambda: None)
    bench.restart()
    assert bench.table.done_upto == Timestamp(10), "what was deleted since must be told"
    assert bench.table.state is TableState.SCANNING
    assert bench.scan.tables[TABLE].backfill
    assert bench.feed.high_water() is None, "nothing is complete before the first scan is"
    bench.scan.at = Timestamp(20)
    bench.scanning.follow(bench.feed, lambda: None)
    assert not bench.scan.tables[TABLE].caught_up.is_set()
    bench.feed.advance([TABLE], Timestamp(20))
    bench.scanning.follow(bench.feed, lambda: None)
    assert bench.scan.tables[TABLE].caught_up.is_set()
    bench.scan.tables[TABLE].done = True
    bench.scanning.follow(bench.feed, lambda: None)
    assert (bench.table.state, bench.table.done_upto) == (TableState.RUNNING, Timestamp(20))
    assert bench.feed.high_water() == Timestamp(20)


def test_a_scan_that_delivered_nothing_just_begins_again(bench: Bench) -> None:
    bench.feed.save()
    bench.restart()
    assert bench.table.done_upto is None
    assert not bench.scan.tables[TABLE].backfill


def test_a_failed_backfill_that_is_tried_again_catches_up(bench: Bench) -> None:
    bench.feed.update(
        TABLE, state=TableState.RUNNING, done_upto=Timestamp(30), scan_at=Timestamp(25)
    )
    bench.feed.fail_table(TABLE, ChangefeedError("CF2202", "no right to read"))
    bench.catalog.retry_tables(bench.job.id)
    bench.restart()
    assert bench.scan.tables[TABLE].backfill
    assert bench.scanning.holds(bench.table)
    bench.scan.at = Timestamp(40)
    bench.feed.advance([TABLE], Timestamp(40))
    bench.scanning.follow(bench.feed, lambda: None)
    assert bench.scan.tables[TABLE].caught_up.is_set()


def test_a_backfill_that_becomes_due_while_the_scan_goes_on_is_another_scan(bench: Bench) -> None:
    """The table is done, and the scan still reads others, or its thread has not ended yet."""
    bench.scan.at = Timestamp(10)
    bench.scanning.follow(bench.feed, lambda: None)
    bench.scan.tables[TABLE].done = True
    bench.scanning.follow(bench.feed, lambda: None)
    assert not bench.table.scan_wanted
    # As the feed does at a new column with a default.
    bench.feed.update(TABLE, scan_wanted=True, scan_at=Timestamp(30), done_upto=Timestamp(35))
    bench.scanning.follow(bench.feed, lambda: None)
    assert bench.table.scan_wanted, "the old rows do not have the new column"
    assert bench.table.scan_at == Timestamp(30), "resolved waits there"
    assert not bench.scanning.holds(bench.table), "changes go on meanwhile"
    bench.scan.alive = False
    bench.scanning.follow(bench.feed, lambda: None)
    bench.scanning.begin(bench.feed)
    assert len(bench.scans) == 2 and bench.scan.tables[TABLE].backfill
    assert bench.scanning.holds(bench.table)


def test_a_rescan_goes_on_where_the_feed_was(bench: Bench) -> None:
    bench.feed.update(TABLE, state=TableState.RUNNING, scan_wanted=False, done_upto=Timestamp(30))
    bench.feed.save()
    bench.catalog.alter_job(bench.job.id, rescan={TABLE: 0})
    bench.feed.advance([TABLE], Timestamp(33))
    before = bench.feed
    bench.restart()
    bench.feed.continue_from(before)
    assert bench.table.done_upto == Timestamp(33), (
        "what was delivered meanwhile does not come again"
    )
    assert bench.table.scan_at == Timestamp(33).next(), "a sink may know of a scan at 33"
    assert bench.scan.tables[TABLE].backfill
    assert bench.feed.high_water() is None, "the target may be wrong until the rescan is done"
    bench.scan.at = Timestamp(40)
    bench.feed.advance([TABLE], Timestamp(40))
    bench.scanning.follow(bench.feed, lambda: None)
    bench.scan.tables[TABLE].done = True
    bench.scanning.follow(bench.feed, lambda: None)
    assert bench.table.state is TableState.RUNNING and not bench.table.rescan_owed
    assert bench.catalog.tables(bench.job.id)[0].rescanned == bench.table.rescan


def test_a_rescan_leaps_over_what_the_log_does_not_keep(bench: Bench) -> None:
    bench.feed.update(TABLE, state=TableState.RUNNING, scan_wanted=False, done_upto=Timestamp(30))
    bench.feed.save()
    bench.keeper.oldest = Timestamp(50)
    bench.catalog.alter_job(bench.job.id, rescan={TABLE: 0})
    bench.restart()
    assert bench.table.done_upto is None and not bench.scan.tables[TABLE].backfill
    [event] = [e for e in bench.catalog.events(bench.job.id) if e.kind == "notice"]
    assert "not in the change log" in event.text and event.table == str(TABLE)


def test_a_backfill_does_not_leap_over_what_the_log_does_not_keep(bench: Bench) -> None:
    bench.feed.update(TABLE, state=TableState.RUNNING, scan_wanted=True, done_upto=Timestamp(30))
    bench.feed.save()
    bench.keeper.oldest = Timestamp(50)
    bench.restart()
    assert bench.table.done_upto == Timestamp(30), "reading from there is an error, not a gap"
    assert bench.scan.tables[TABLE].backfill


def test_a_scan_ends_without_rows_when_a_rescan_came_first(bench: Bench) -> None:
    bench.catalog.alter_job(bench.job.id, rescan={TABLE: 0})
    bench.scan.at = Timestamp(10)
    bench.scanning.follow(bench.feed, lambda: None)
    assert not bench.scan.placed.is_set(), "the place of its rows was not saved"
