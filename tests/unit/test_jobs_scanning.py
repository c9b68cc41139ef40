"""Which tables are scanned again, from where, and what holds resolved back meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from changefeed.capture.source_runtime import SourceRuntime
from changefeed.catalog import Catalog
from changefeed.catalog.model import JobSpec, RowRepair, TableProgress, TableState
from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.partition import Partition, Prefixes
from changefeed.core.schema import TableName
from changefeed.core.table_errors import TableError
from changefeed.core.unread import PartRange, UnreadParts
from changefeed.feeds.feed import Feed
from changefeed.feeds.scan_coordinator import ScanCoordinator
from changefeed.scan.admission import ScanStopped, WriteBarrier
from changefeed.scan.thread import SnapshotScan, TableScan

TABLE = TableName("shop", "public", "t")
PROGRESS = TableProgress(TABLE, "t")
UNSCANNED = TableProgress(TABLE, "t", scan_wanted=False)
#: Logical messages, of which a RESCAN wants what the log has.
MESSAGES = replace(PROGRESS, partition=Partition("messages", (Prefixes(0, ("audit*",)),)), rescan=1)


class StillScan:
    """A scan that does nothing by itself."""

    def __init__(self, tables: list[TableProgress]) -> None:
        self.tables = {t.table: TableScan.of(t) for t in tables}
        self.at: Timestamp | None = None
        self.error: ChangefeedError | None = None
        self.timestamp_saved = threading.Event()
        self.barrier = WriteBarrier()
        self.alive = True
        self.started = self.joined = self.delivered = False

    def start(self) -> None:
        assert not self.started
        self.started = True

    def is_alive(self) -> bool:
        return self.alive

    def stop(self) -> None:
        self.alive = False

    def join(self, timeout: float) -> None:
        self.joined = True

    def text(self) -> str:
        return "12 %"


class StillSourceRuntime:
    """A source whose change log begins at :attr:`oldest`, and whose positions are times."""

    name = "shop"

    def __init__(self) -> None:
        self.oldest = Timestamp(1)
        self.source = self
        self.log = self
        self.captured: list[TableName] = []
        #: Positions below it the log does not have.
        self.first = 0

    def has(self, position: str) -> bool:
        return int(position) >= self.first

    def current_position(self) -> str:
        return "70"

    def wait_captured(self, tables: list[TableName], stop: threading.Event) -> None:
        self.captured += tables

    def wait_position(self, position: str, stop: threading.Event) -> Timestamp:
        assert self.captured, "what is not captured yet is not in the log up to there"
        return Timestamp(int(position))


class Bench:
    """A feed of one table, and the scans it starts."""

    def __init__(
        self,
        catalog: Catalog,
        progress: TableProgress = PROGRESS,
        *,
        resolved: Timestamp | None = None,
        **given: Any,
    ) -> None:
        self.catalog = catalog
        spec = JobSpec(source="shop", targets=("TABLE t",), tables=(progress,), sink_uri="null://")
        self.job = catalog.create_job(replace(spec, **given))
        self.scans: list[StillScan] = []
        self.source_runtime = StillSourceRuntime()
        self.resolved = resolved
        self.holds_target = True
        self.restart()

    def restart(self) -> None:
        """As after a crash: what was not saved is forgotten."""
        lease = self.catalog.acquire_lease(self.job.id, "n", 60)
        assert lease is not None
        self.feed = Feed(self.catalog, self.catalog.job(self.job.id), lease)
        self.scanning = ScanCoordinator(
            self.catalog,
            cast(SourceRuntime, self.source_runtime),
            threading.Event(),
            self._start,
            lambda: self.resolved,
            holds_target=lambda table: self.holds_target,
        )
        self.scanning.begin(self.feed)

    def _start(self, tables: list[TableProgress]) -> SnapshotScan:
        self.scans.append(StillScan(tables))
        return cast(SnapshotScan, self.scans[-1])

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
    assert bench.scan.timestamp_saved.is_set()
    assert bench.catalog.tables(bench.job.id)[0].scan_at == Timestamp(10)


UNREAD = UnreadParts(Timestamp(10), "form", ("",), (PartRange("", ("7",)),), rows=6, bytes=60)


def half(bench: Bench) -> None:
    """The first scan has delivered some parts, and the node ends."""
    bench.scan.at = Timestamp(10)
    bench.scan.tables[TABLE].ledger = cast(Any, SimpleNamespace(unread=UNREAD))
    bench.scanning.follow(bench.feed, lambda: None)
    bench.feed.save()
    bench.restart()


def test_a_scan_goes_on_with_what_the_one_before_has_left(bench: Bench) -> None:
    half(bench)
    table = bench.scan.tables[TABLE]
    assert (table.before, table.rows) == (UNREAD, 6)
    bench.scan.at = Timestamp(20)
    bench.feed.advance([TABLE], Timestamp(20))
    bench.scanning.follow(bench.feed, lambda: None)
    assert not table.caught_up.is_set(), "the scan does not know yet whether its image is enough"
    table.goes_on = True
    bench.scanning.follow(bench.feed, lambda: None)
    assert table.caught_up.is_set() and table.before == UNREAD
    table.done = True
    bench.scanning.follow(bench.feed, lambda: None)
    assert (bench.table.unread, bench.table.emitted_rows) == (None, 6)


@pytest.mark.parametrize("why", ["image", "changes", "target"])
def test_a_scan_begins_again_if_what_was_delivered_is_not_enough(bench: Bench, why: str) -> None:
    bench.holds_target = why != "target"
    half(bench)
    table = bench.scan.tables[TABLE]
    table.goes_on = why != "image"
    if why == "changes":
        bench.feed.update(TABLE, unread=None)
    bench.scan.at = Timestamp(20)
    bench.feed.advance([TABLE], Timestamp(20))
    bench.scanning.follow(bench.feed, lambda: None)
    assert table.caught_up.is_set() and table.before is None
    assert bench.catalog.tables(bench.job.id)[0].unread is None, "before the first row"


def test_a_rescan_reads_all(bench: Bench) -> None:
    half(bench)
    bench.catalog.alter_job(bench.job.id, rescan={TABLE: 0})
    bench.restart()
    assert bench.table.unread is None and bench.scan.tables[TABLE].before is None


def test_a_scan_that_is_stopped_keeps_its_last_parts(bench: Bench) -> None:
    bench.scan.at = Timestamp(10)
    bench.scanning.follow(bench.feed, lambda: None)
    bench.scan.tables[TABLE].ledger = cast(Any, SimpleNamespace(unread=UNREAD))
    bench.scanning.stop(bench.feed)
    assert bench.table.unread == UNREAD


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


def test_a_backfill_delivers_nothing_before_its_place_is_durable(bench: Bench) -> None:
    """After a crash, what comes later has a later place than the rows of the scan, and a later
    name where files are read in the order of theirs."""
    bench.feed.update(TABLE, state=TableState.RUNNING, done_upto=Timestamp(5))
    bench.feed.save()
    bench.restart()
    bench.scan.at = Timestamp(20)
    bench.scanning.follow(bench.feed, lambda: None)
    bench.feed.advance([TABLE], Timestamp(20))
    bench.scanning.follow(bench.feed, lambda: None)
    assert bench.scan.tables[TABLE].caught_up.is_set()
    assert bench.catalog.tables(bench.job.id)[0].done_upto == Timestamp(20)


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
    assert bench.table.done_upto == Timestamp(30), "never back to the schema change"
    bench.scan.at = Timestamp(40)
    bench.feed.advance([TABLE], Timestamp(40))
    bench.scanning.follow(bench.feed, lambda: None)
    assert bench.scan.tables[TABLE].caught_up.is_set()
    assert bench.table.scan_at == Timestamp(25), "resolved waits at the schema change"


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
    bench.source_runtime.oldest = Timestamp(50)
    bench.catalog.alter_job(bench.job.id, rescan={TABLE: 0})
    bench.restart()
    assert bench.table.done_upto is None and not bench.scan.tables[TABLE].backfill
    [event] = [e for e in bench.catalog.events(bench.job.id) if e.kind == "notice"]
    assert "not in the change log" in event.text and event.table == str(TABLE)


def test_a_repair_is_a_scan_of_all_rows_where_the_log_lost_changes(bench: Bench) -> None:
    bench.feed.update(TABLE, state=TableState.RUNNING, scan_wanted=False, done_upto=Timestamp(30))
    bench.feed.save()
    bench.source_runtime.oldest = Timestamp(50)
    bench.catalog.alter_job(bench.job.id, repair={TABLE: RowRepair(((1,),))})
    bench.restart()
    assert bench.table.repair is None and bench.scan.tables[TABLE].repair is None


@pytest.mark.parametrize("backfill", [True, False])
def test_a_backfill_that_becomes_due_dismisses_a_repair(bench: Bench, backfill: bool) -> None:
    """The repair reads other rows in their old shape no more than their new one."""
    bench.feed.update(TABLE, state=TableState.RUNNING, scan_wanted=False, done_upto=Timestamp(30))
    bench.feed.save()
    bench.catalog.alter_job(bench.job.id, repair={TABLE: RowRepair(((1,),), ((2,),))})
    bench.restart()
    scan, table = bench.scan, bench.scan.tables[TABLE]
    assert table.repair == RowRepair(((1,),), ((2,),)) and table.backfill
    scan.at = Timestamp(40)
    bench.scanning.follow(bench.feed, lambda: None)
    if backfill:
        bench.feed.update(TABLE, repair=None)
    bench.feed.update(TABLE, done_upto=Timestamp(40))
    bench.scanning.follow(bench.feed, lambda: None)
    assert table.caught_up.is_set(), "the scan goes on, or ends"
    assert table.dismissed is backfill
    table.done, scan.alive = not backfill, False
    bench.scanning.follow(bench.feed, lambda: None)
    assert bench.table.scan_wanted is backfill and bench.table.repair is None
    bench.scanning.begin(bench.feed)
    assert len(bench.scans) == (2 if backfill else 1) + 1, "the first scan of the fixture"
    if backfill:
        assert bench.scan.tables[TABLE].repair is None
    else:
        [event] = [e for e in bench.catalog.events(bench.job.id) if "by key" in e.text and e.table]
        assert event.text.startswith("repaired by key: 0 rows as of")


def test_a_rescan_of_a_table_at_the_begin_of_the_log_leaps_over_nothing(bench: Bench) -> None:
    bench.feed.update(TABLE, state=TableState.RUNNING, scan_wanted=False, done_upto=Timestamp(30))
    bench.feed.save()
    bench.source_runtime.oldest = Timestamp(30)
    bench.catalog.alter_job(bench.job.id, rescan={TABLE: 0})
    bench.restart()
    assert bench.table.done_upto == Timestamp(30) and bench.scan.tables[TABLE].backfill
    assert not [e for e in bench.catalog.events(bench.job.id) if e.kind == "notice"]


def test_a_backfill_does_not_leap_over_what_the_log_does_not_keep(bench: Bench) -> None:
    bench.feed.update(TABLE, state=TableState.RUNNING, scan_wanted=True, done_upto=Timestamp(30))
    bench.feed.save()
    bench.source_runtime.oldest = Timestamp(50)
    bench.restart()
    assert bench.table.done_upto == Timestamp(30), "reading from there is an error, not a gap"
    assert bench.scan.tables[TABLE].backfill


def test_a_scan_ends_without_rows_when_a_rescan_came_first(bench: Bench) -> None:
    bench.catalog.alter_job(bench.job.id, rescan={TABLE: 0})
    bench.scan.at = Timestamp(10)
    bench.scanning.follow(bench.feed, lambda: None)
    assert not bench.scan.timestamp_saved.is_set(), "the timestamp of its rows was not saved"


def test_a_running_scan_is_told_with_what_it_has_delivered(bench: Bench) -> None:
    assert bench.scanning.active(bench.feed) and bench.scanning.owes(bench.feed)
    assert bench.scan.started
    assert (bench.scanning.at, bench.scanning.waits, bench.scanning.text()) == (None, False, "12 %")
    bench.scan.at = Timestamp(10)
    table = bench.scan.tables[TABLE]
    table.rows, table.total, table.bytes = 5, 9, 500
    bench.scanning.follow(bench.feed, lambda: None)
    assert (bench.scanning.at, bench.scanning.waits) == (Timestamp(10), False)
    assert (bench.table.scan_rows, bench.table.scan_total) == (5, 9)
    assert (bench.table.emitted_rows, bench.table.done_upto) == (0, None)
    shown: list[TableState] = []
    table.rows, table.done = 9, True
    bench.scanning.follow(bench.feed, lambda: shown.append(bench.table.state))
    assert shown == [TableState.RUNNING]
    assert (bench.table.scan_rows, bench.table.scan_total) == (9, 9)
    assert (bench.table.emitted_rows, bench.table.emitted_bytes) == (9, 500)
    bench.scanning.follow(bench.feed, lambda: pytest.fail("its end counts once"))
    assert bench.table.emitted_rows == 9
    assert bench.scanning.active(bench.feed) and not bench.scanning.owes(bench.feed)
    bench.scan.alive = False
    bench.scanning.follow(bench.feed, lambda: None)
    assert not bench.scanning.active(bench.feed)
    assert (bench.scanning.at, bench.scanning.text()) == (None, "initial scan")
    assert bench.catalog.tables(bench.job.id)[0].emitted_rows == 9, "saved"


def test_a_table_that_went_on_during_its_backfill_is_not_set_back(bench: Bench) -> None:
    bench.feed.update(TABLE, done_upto=Timestamp(50))
    bench.scan.at, bench.scan.tables[TABLE].done = Timestamp(40), True
    bench.scanning.follow(bench.feed, lambda: None)
    assert bench.table.done_upto == Timestamp(50)


def test_a_scan_that_broke_is_begun_again(bench: Bench) -> None:
    lost = ChangefeedError("CF2001", "the source is gone")
    bench.scan.error, bench.scan.alive = lost, False
    with pytest.raises(ChangefeedError) as caught:
        bench.scanning.follow(bench.feed, lambda: None)
    assert caught.value is lost
    bench.scanning.begin(bench.feed)
    assert len(bench.scans) == 2
    bench.scanning.begin(bench.feed)
    assert len(bench.scans) == 2, "one at a time"


def test_a_table_that_cannot_be_scanned_fails_alone(bench: Bench) -> None:
    refused = ChangefeedError("CF2202", "no right to read")
    bench.scan.at, bench.scan.tables[TABLE].error = Timestamp(10), refused
    with pytest.raises(TableError) as caught:
        bench.scanning.follow(bench.feed, lambda: None)
    assert (caught.value.table, caught.value.error) == (TABLE, refused)
    bench.feed.fail_table(TABLE, refused)
    bench.scanning.follow(bench.feed, lambda: None)
    assert bench.table.state is TableState.FAILED


def test_a_table_that_failed_before_its_scan_was_placed_has_no_place(bench: Bench) -> None:
    """When it is tried again, nothing says that rows of it are out."""
    bench.feed.fail_table(TABLE, ChangefeedError("CF2202", "no right to read"))
    bench.scan.at = Timestamp(10)
    bench.scanning.follow(bench.feed, lambda: None)
    assert bench.scan.timestamp_saved.is_set() and bench.table.scan_at is None


@pytest.mark.parametrize("timestamp_saved", [False, True])
def test_a_scan_that_is_stopped_delivers_nothing_more(bench: Bench, timestamp_saved: bool) -> None:
    """One without a timestamp may wait for its snapshot for as long as transactions are open at
    the source, and is not waited for."""
    scan = bench.scan
    scan.at = Timestamp(10) if timestamp_saved else None
    bench.scanning.stop(bench.feed)
    assert (scan.alive, scan.joined) == (False, timestamp_saved)
    with pytest.raises(ScanStopped), scan.barrier.passing():
        pytest.fail("it writes")
    assert bench.scanning.owes(bench.feed)
    bench.scanning.stop(bench.feed)
    bench.scanning.begin(bench.feed)
    assert len(bench.scans) == 2


def test_a_feed_with_an_end_does_not_wait_for_what_lies_behind(tmp_path: Path) -> None:
    catalog = Catalog.open(str(tmp_path))
    progress = replace(PROGRESS, done_upto=Timestamp(20), state=TableState.RUNNING)
    bench = Bench(catalog, progress, end_time=Timestamp(30))
    assert bench.scan.tables[TABLE].backfill
    bench.scan.at = Timestamp(40)
    bench.feed.advance([TABLE], Timestamp(29))
    bench.scanning.follow(bench.feed, lambda: None)
    assert not bench.scan.tables[TABLE].caught_up.is_set()
    bench.feed.advance([TABLE], Timestamp(30))
    bench.scanning.follow(bench.feed, lambda: None)
    assert bench.scan.tables[TABLE].caught_up.is_set()
    catalog.close()


def test_a_feed_of_the_scan_alone_begins_a_broken_one_anew(tmp_path: Path) -> None:
    """No changes follow that could tell what was deleted since."""
    catalog = Catalog.open(str(tmp_path))
    bench = Bench(catalog, options={"initial_scan": "only"})
    bench.scan.at = Timestamp(10)
    bench.scanning.follow(bench.feed, lambda: None)
    bench.restart()
    assert bench.table.done_upto is None and not bench.scan.tables[TABLE].backfill
    catalog.close()


def test_what_broken_scans_of_a_feed_of_the_scan_alone_left_counts_for_nothing(
    tmp_path: Path,
) -> None:
    """However often it breaks: a sink that heard the end of the first one may not keep its rows."""
    catalog = Catalog.open(str(tmp_path))
    bench = Bench(catalog, options={"initial_scan": "only"})
    for at in (10, 20, 30):
        bench.scan.at = Timestamp(at)
        bench.scanning.follow(bench.feed, lambda: None)
        assert bench.scan.timestamp_saved.is_set()
        bench.restart()
        assert bench.scan.tables[TABLE].progress.scan_at == Timestamp(10)
    bench.scan.at = Timestamp(40)
    bench.scan.tables[TABLE].done = True
    bench.scanning.follow(bench.feed, lambda: None)
    assert (bench.table.scan_at, bench.table.done_upto) == (Timestamp(40), Timestamp(40))
    catalog.close()


def test_the_scan_of_a_table_that_was_lost_has_a_place_too(bench: Bench) -> None:
    """Else a sink that heard its end before a crash would take the next one for a second scan."""
    bench.feed.update(TABLE, state=TableState.RUNNING, scan_wanted=False, done_upto=Timestamp(30))
    bench.feed.fail_table(TABLE, ChangefeedError(Code.TABLE_REPLACED, "another table"))
    bench.catalog.retry_tables(bench.job.id)
    bench.restart()
    bench.scan.at = Timestamp(40)
    bench.scanning.follow(bench.feed, lambda: None)
    bench.restart()
    assert bench.scan.tables[TABLE].progress.scan_at == Timestamp(40)


def test_a_lost_table_of_a_feed_of_the_scan_alone_is_scanned_again(tmp_path: Path) -> None:
    """It waits for no changes: none come."""
    catalog = Catalog.open(str(tmp_path))
    bench = Bench(catalog, options={"initial_scan": "only"})
    bench.feed.update(TABLE, state=TableState.RUNNING, scan_wanted=False, done_upto=Timestamp(30))
    bench.feed.fail_table(TABLE, ChangefeedError(Code.TABLE_REPLACED, "another table"))
    catalog.retry_tables(bench.job.id)
    bench.restart()
    assert not bench.scan.tables[TABLE].backfill
    catalog.close()


def test_a_scan_advances_when_it_comes_further_than_any_try_before(bench: Bench) -> None:
    """One that breaks at the same row each time does not."""

    def follow(rows: int, *, delivered: bool = True) -> bool:
        bench.scan.delivered, bench.scan.tables[TABLE].rows = delivered, rows
        bench.scanning.follow(bench.feed, lambda: None)
        return bench.scanning.advanced

    assert not bench.scanning.advanced
    bench.scan.at = Timestamp(10)
    assert not follow(5, delivered=False)
    assert [follow(rows) for rows in (0, 1, 5, 5, 7)] == [False, True, True, False, True]
    bench.scanning.stop(bench.feed)
    bench.scanning.begin(bench.feed)
    bench.scan.at = Timestamp(20)
    assert [follow(rows) for rows in (5, 7, 8, 8)] == [False, False, True, False]
    bench.scanning.stop(bench.feed)
    bench.scanning.follow(bench.feed, lambda: None)
    assert not bench.scanning.advanced
    bench.scanning.begin(bench.feed)
    bench.scan.at = Timestamp(30)
    bench.feed.advance([TABLE], Timestamp(30))
    bench.scan.tables[TABLE].done = True
    assert follow(3), "the table is done"
    assert not follow(3)
    bench.scan.alive = False
    assert not follow(3)
    for again in (False, True):
        if again:  # a turn in which nothing was owed lies between
            bench.scanning.begin(bench.feed)
        bench.feed.update(TABLE, scan_wanted=True)
        bench.scanning.begin(bench.feed)
        bench.scan.at = Timestamp(40)
        assert follow(1), "another scan begins with its first row"
        bench.scan.tables[TABLE].done, bench.scan.alive = True, False
        assert follow(1)


def test_a_scan_delivers_from_the_first_row_that_is_durable_until_it_ends(bench: Bench) -> None:
    assert not bench.scanning.delivers
    bench.scan.delivered = True
    assert bench.scanning.delivers
    bench.scanning.stop(bench.feed)
    assert not bench.scanning.delivers


@pytest.mark.parametrize(("names", "text"), [("t", "1 table"), ("tu", "2 tables")])
def test_the_history_of_a_feed_has_its_scans(tmp_path: Path, names: str, text: str) -> None:
    catalog = Catalog.open(str(tmp_path))
    tables = tuple(TableProgress(TableName("shop", "public", name), name) for name in names)
    bench = Bench(catalog, tables=tables)
    table = bench.scan.tables[TABLE]
    bench.scan.at, table.rows, table.done = Timestamp(10), 1234, True
    bench.scanning.follow(bench.feed, lambda: None)
    events = [(e.text, e.table) for e in catalog.events(bench.job.id, kinds=["scan"])]
    assert sorted(events, key=str) == [
        (f"a scan of {text} begins", None),
        (f"scanned: 1,234 rows as of {Timestamp(10)}", str(TABLE)),
    ]
    catalog.close()


@pytest.mark.parametrize(
    ("start", "resolved", "expected"),
    [
        (None, None, 70),  # where the source is now
        ("60", None, 60),  # after the statement that added it
        ("60", Timestamp(65), 65),  # what was resolved meanwhile may not be taken back
        ("60", Timestamp(5), 60),
    ],
)
def test_a_table_without_a_scan_begins_now(
    tmp_path: Path, start: str | None, resolved: Timestamp | None, expected: int
) -> None:
    catalog = Catalog.open(str(tmp_path))
    bench = Bench(catalog, replace(UNSCANNED, start=start), resolved=resolved)
    assert (bench.table.state, bench.table.done_upto) == (TableState.RUNNING, Timestamp(expected))
    assert bench.scans == [] and not bench.scanning.active(bench.feed)
    catalog.close()


def test_a_table_without_a_scan_goes_on_where_it_was(tmp_path: Path) -> None:
    catalog = Catalog.open(str(tmp_path))
    bench = Bench(catalog, replace(UNSCANNED, done_upto=Timestamp(9)), cursor=Timestamp(5))
    assert (bench.table.state, bench.table.done_upto) == (TableState.RUNNING, Timestamp(9))
    catalog.close()


@pytest.mark.parametrize(("cursor", "start", "expected"), [(30, None, 30), (30, "60", 60)])
def test_the_cursor_is_for_the_tables_of_the_statement(
    tmp_path: Path, cursor: int, start: str | None, expected: int
) -> None:
    """A table that joins later begins after the statement that added it."""
    catalog = Catalog.open(str(tmp_path))
    bench = Bench(catalog, replace(UNSCANNED, start=start), cursor=Timestamp(cursor))
    assert bench.source_runtime.captured == [TABLE]
    assert bench.table.done_upto == Timestamp(expected)
    catalog.close()


def test_a_cursor_before_the_change_log_of_its_table_is_an_error(tmp_path: Path) -> None:
    catalog = Catalog.open(str(tmp_path))
    assert Bench(catalog, UNSCANNED, cursor=Timestamp(1)).table.done_upto == Timestamp(1)
    with pytest.raises(TableError, match=r"which begins at 1\.0000000000") as caught:
        Bench(catalog, UNSCANNED, cursor=Timestamp(0))
    assert (caught.value.table, caught.value.error.code.number) == (TABLE, "CF3002")
    catalog.close()


def test_a_table_may_be_in_the_change_log_for_less_long_than_others(tmp_path: Path) -> None:
    catalog = Catalog.open(str(tmp_path))
    catalog.set_captured("shop", {TABLE: Timestamp(20)})
    assert Bench(catalog, UNSCANNED, cursor=Timestamp(20)).table.done_upto == Timestamp(20)
    with pytest.raises(TableError, match=r"which begins at 20\.0000000000"):
        Bench(catalog, UNSCANNED, cursor=Timestamp(19))
    catalog.close()


def test_a_feed_begins_at_the_offset_of_a_connector(tmp_path: Path) -> None:
    """Only where the log has all that the connector did not deliver, of the table too."""
    catalog = Catalog.open(str(tmp_path))
    options = {"cursor": 'debezium:{"lsn": 60}'}
    table = replace(UNSCANNED, start="60")
    assert Bench(catalog, table, options=options).table.done_upto == Timestamp(60)
    later = Bench(catalog, table, options=options)
    later.feed.update(TABLE, state=TableState.PENDING, done_upto=None)
    later.source_runtime.first = 61
    with pytest.raises(TableError, match="the connector's offset is before the change log"):
        later.scanning.begin(later.feed)
    catalog.set_captured("shop", {TABLE: Timestamp(61)})
    with pytest.raises(TableError, match=r"which begins at 61\.0000000000") as caught:
        Bench(catalog, table, options=options)
    assert caught.value.error.code.number == "CF3002"
    catalog.close()


# ------------------------------------------------------------------------------- FOR MESSAGES


def notices(bench: Bench) -> list[tuple[str, str | None]]:
    return [(e.text, e.table) for e in bench.catalog.events(bench.job.id, kinds=["notice"])]


def test_logical_messages_are_never_scanned(tmp_path: Path) -> None:
    """They are in no table: those to come are delivered."""
    catalog = Catalog.open(str(tmp_path))
    bench = Bench(catalog, MESSAGES)
    assert bench.scans == [] and not bench.scanning.active(bench.feed)
    assert (bench.table.state, bench.table.done_upto) == (TableState.RUNNING, Timestamp(70))
    assert not bench.table.scan_wanted and not bench.table.rescan_owed
    assert notices(bench) == []
    catalog.close()


@pytest.mark.parametrize(
    "oldest",
    [
        Timestamp(1),
        Timestamp(30),  # the log begins right behind what was delivered
        Timestamp.MAX,  # no log yet: nothing is known to be lost
    ],
    ids=str,
)
def test_logical_messages_go_on_where_the_feed_was(tmp_path: Path, oldest: Timestamp) -> None:
    catalog = Catalog.open(str(tmp_path))
    bench = Bench(catalog, MESSAGES)
    bench.feed.update(TABLE, scan_wanted=True, done_upto=Timestamp(30))
    bench.source_runtime.oldest = oldest
    bench.scanning.begin(bench.feed)
    assert bench.scans == [] and not bench.table.scan_wanted
    assert (bench.table.done_upto, notices(bench)) == (Timestamp(30), [])
    catalog.close()


def test_logical_messages_that_the_log_lost_are_told_as_lost(tmp_path: Path) -> None:
    """Where the log begins is asked once the log has the messages."""
    catalog = Catalog.open(str(tmp_path))
    bench = Bench(catalog, MESSAGES)
    bench.feed.update(TABLE, scan_wanted=True, done_upto=Timestamp(30))
    runtime = bench.source_runtime
    runtime.captured.clear()

    def captured(tables: list[TableName], stop: threading.Event) -> None:
        runtime.captured += tables
        runtime.oldest = Timestamp(50)

    runtime.wait_captured = captured  # type: ignore[method-assign]
    bench.scanning.begin(bench.feed)
    assert runtime.captured == [TABLE]
    assert bench.scans == [] and bench.table.done_upto == Timestamp(50)
    lost = f"the logical messages between {Timestamp(30)} and {Timestamp(50)} are lost"
    assert notices(bench) == [(f"{lost}: the change log does not have them any more", str(TABLE))]
    catalog.close()
