"""What becomes of a feed's table that was dropped, recreated or renamed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from changefeed.capture.table_identity import LostTable, capturable, missing
from changefeed.catalog import Catalog
from changefeed.catalog.model import JobSpec, TableProgress, TableState
from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError
from changefeed.core.schema import TableName, TableSchema
from changefeed.core.table_errors import TableError
from changefeed.feeds.feed import Feed
from changefeed.feeds.lost_tables import TableDeparture
from changefeed.sources.base import TableLocations

T, U = TableName("shop", "public", "t"), TableName("shop", "public", "u")


@pytest.mark.parametrize(
    ("numbers", "names", "reason"),
    [
        ({T: 1}, {1: T}, ""),
        ({}, {}, 'table "public.t" was dropped'),
        ({T: 2}, {}, 'table "public.t" was dropped and created again: it is another table'),
        ({}, {1: U}, 'table "public.t" was renamed to "public.u"'),
        (
            {T: 2},
            {1: U},
            'table "public.t" was renamed to "public.u"; another table has that name now',
        ),
    ],
)
def test_why_a_table_is_lost(
    numbers: dict[TableName, int], names: dict[int, TableName], reason: str
) -> None:
    seen = TableLocations(numbers, names)
    gone = missing({(T, 1)}, seen)
    assert [error.message for error in gone.values()] == ([reason] if reason else [])
    assert all(error.code.number == "CF2106" and error.hint for error in gone.values())
    assert capturable({(T, 1)}, seen) == ({} if reason else {T: 1})


def test_two_feeds_that_mean_two_tables_by_one_name() -> None:
    """One began before the table was recreated, one after."""
    seen = TableLocations({T: 2}, {2: T})
    assert missing({(T, 1), (T, 2)}, seen).keys() == {(T, 1)}
    assert capturable({(T, 1), (T, 2)}, seen) == {T: 2}


def test_a_source_without_numbers_and_a_table_nobody_saw_yet() -> None:
    assert capturable({(T, 0), (U, 5)}, None) == {T: 0, U: 0}
    assert missing({(T, 0)}, TableLocations({}, {})) == {}
    assert capturable({(T, 0)}, TableLocations({}, {})) == {T: 0}, "the source says what is wrong"


@dataclass
class FakeSourceRuntime:
    gone: dict[tuple[TableName, int], LostTable] = field(default_factory=dict)
    end: Timestamp | None = None

    def lost(self, table: TableName, oid: int) -> LostTable | None:
        return self.gone.get((table, oid))

    def place_of(self, lost: LostTable) -> Timestamp | None:
        return self.end


class Bench:
    """A running feed of one table; ``told`` are the tables its sink was told of."""

    def __init__(self, catalog: Catalog, *, joined: bool) -> None:
        self.catalog = catalog
        progress = TableProgress(T, "t", table_id=1, joined=joined)
        targets = ("SCHEMA public",) if joined else ("TABLE t",)
        self.job = catalog.create_job(JobSpec("shop", targets, (progress,), sink_uri="null://"))
        lease = catalog.acquire_lease(self.job.id, "n", 60)
        assert lease is not None
        self.feed = Feed(catalog, self.job, lease)
        self.feed.update(T, state=TableState.RUNNING, scan_wanted=False, done_upto=Timestamp(10))
        self.source_runtime = FakeSourceRuntime()
        self.told: list[TableName] = []
        self.leaving = TableDeparture(catalog, self.source_runtime, self.told.append)  # type: ignore[arg-type]

    def lose(self, *, dropped: bool = True) -> None:
        error = ChangefeedError("CF2106", "gone")
        self.source_runtime.gone[T, 1] = LostTable(error, dropped)


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    catalog = Catalog.open(tmp_path)
    yield catalog
    catalog.close()


def test_a_named_table_fails_once_all_of_it_was_delivered(catalog: Catalog) -> None:
    bench = Bench(catalog, joined=False)
    bench.lose()
    bench.leaving.turn(bench.feed)  # the log has not come so far
    bench.source_runtime.end = Timestamp(11)
    bench.leaving.turn(bench.feed)  # it has, the feed has not
    assert bench.told == []
    bench.feed.advance([T], Timestamp(11))
    with pytest.raises(TableError) as caught:
        bench.leaving.turn(bench.feed)
    assert caught.value.table == T and caught.value.error.message == "gone"
    assert bench.told == [T]
    bench.feed.fail_table(T, caught.value.error)
    bench.leaving.turn(bench.feed)  # told once


def test_a_table_that_joined_leaves(catalog: Catalog) -> None:
    bench = Bench(catalog, joined=True)
    bench.lose(dropped=False)
    bench.source_runtime.end = Timestamp(10)
    bench.leaving.turn(bench.feed)
    assert bench.told == [], "it was renamed, not dropped"
    assert bench.feed.tables == {} and catalog.tables(bench.job.id) == []
    assert catalog.job(bench.job.id).generation == 2


def test_a_joined_table_whose_scan_failed_over_it_leaves_too(catalog: Catalog) -> None:
    bench = Bench(catalog, joined=True)
    bench.feed.fail_table(T, ChangefeedError("CF1101", "no such table"))
    bench.lose()
    bench.leaving.turn(bench.feed)
    assert catalog.tables(bench.job.id) == [] and bench.told == [T]


def test_rows_of_another_table_are_not_taken(catalog: Catalog) -> None:
    bench = Bench(catalog, joined=False)
    for oid in (0, 1):  # a source without numbers; the table itself
        bench.feed.recognise(TableSchema(T, (), (), table_id=oid))
    with pytest.raises(ChangefeedError) as caught:
        bench.feed.recognise(TableSchema(T, (), (), table_id=2))
    assert caught.value.code.number == "CF2106"
    bench.feed.recognise(TableSchema(U, (), (), table_id=2))  # no table of the feed


def test_resume_scans_what_was_missed_while_the_table_was_away(catalog: Catalog) -> None:
    bench = Bench(catalog, joined=False)
    bench.feed.fail_table(T, ChangefeedError("CF2106", "gone"))
    assert catalog.retry_tables(bench.job.id) == [T]
    (table,) = catalog.tables(bench.job.id)
    assert (table.state, table.scan_wanted) == (TableState.PENDING, True)
    assert table.done_upto == Timestamp(10), "what is in the log comes first"
