"""What becomes of a feed's table that was dropped, recreated or renamed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from changefeed.capture.lost_tables import LostTables
from changefeed.capture.process import Notice
from changefeed.capture.table_identity import LostTable, capturable, missing
from changefeed.catalog import Catalog
from changefeed.catalog.model import JobSpec, TableProgress, TableState
from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.schema import TableName, TableSchema
from changefeed.core.table_errors import TableError
from changefeed.feeds.feed import Feed
from changefeed.feeds.lost_tables import TableDeparture, TableRenames
from changefeed.sources.base import TableLocations
from sinks.base import Target

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
    there = {name: 1 for number, name in names.items() if number == 1}
    assert capturable({(T, 1)}, seen) == there, "what was renamed is captured on"


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
    ids: dict[TableName, int] = field(default_factory=dict)
    names: dict[int, TableName] = field(default_factory=dict)
    asked: int = 0
    numbers: bool = True
    there: set[TableName] = field(default_factory=set)

    @property
    def source(self) -> FakeSourceRuntime:
        return self

    @property
    def tables(self) -> FakeSourceRuntime:
        return self

    def locate(self, tables: object, ids: object) -> TableLocations | None:
        self.asked += 1
        return TableLocations(self.ids, self.names) if self.numbers else None

    def describe_tables(self, tables: Sequence[TableName]) -> dict[TableName, TableSchema]:
        self.asked += 1
        return {table: TableSchema(table, (), ()) for table in tables if table in self.there}

    def lost(self, table: TableName, oid: int) -> LostTable | None:
        return self.gone.get((table, oid))

    def end_of(self, lost: LostTable) -> Timestamp | None:
        return self.end


class Bench:
    """A running feed of one table; ``told`` are the tables its sink was told of."""

    def __init__(self, catalog: Catalog, *, joined: bool, table_id: int = 1) -> None:
        self.catalog = catalog
        progress = TableProgress(T, "t", table_id=table_id, joined=joined)
        targets = ("SCHEMA public",) if joined else ("public.t",)
        self.job = catalog.create_job(JobSpec("shop", targets, (progress,), sink_uri="null://"))
        lease = catalog.acquire_lease(self.job.id, "n", 60)
        assert lease is not None
        self.feed = Feed(catalog, self.job, lease)
        self.feed.update(T, state=TableState.RUNNING, scan_wanted=False, done_upto=Timestamp(10))
        self.source_runtime = FakeSourceRuntime(numbers=table_id != 0)
        self.told: list[TableName] = []
        self.generations: list[int] = []
        self.pulled = False
        runtime = cast(Any, self.source_runtime)
        self.renames = TableRenames(catalog, runtime, lambda: self.pulled, self.generations.append)
        self.leaving = TableDeparture(catalog, runtime, self.told.append, self.renames)

    def lose(self, *, now: TableName | None = None) -> None:
        error = ChangefeedError("CF2106", "gone")
        self.source_runtime.gone[T, 1] = LostTable(error, now is None, now=now)
        self.source_runtime.names = {} if now is None else {1: now}
        self.source_runtime.ids = {} if now is None else {now: 1}


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
    bench.lose(now=U)
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


# -- renames ----------------------------------------------------------------------------------


def test_a_named_table_goes_on_under_its_new_name(catalog: Catalog) -> None:
    """Nothing came under it yet: the feed has all that came under the old one."""
    bench = Bench(catalog, joined=False)
    bench.lose(now=U)
    bench.source_runtime.end = Timestamp(11)
    bench.leaving.turn(bench.feed)
    assert bench.feed.tables.keys() == {T}, "the feed has not come so far"
    bench.feed.advance([T], Timestamp(11))
    bench.leaving.turn(bench.feed)
    (stored,) = catalog.tables(bench.job.id)
    for table in (stored, bench.feed.tables[U]):
        assert (table.table, table.known_as, table.topic) == (U, T, "t")
        assert (table.state, table.done_upto) == (TableState.RUNNING, Timestamp(11))
    assert bench.feed.target(U) == Target(T, "t"), "the sink notices nothing"
    job = catalog.job(bench.job.id)
    assert job.targets == ("public.u AS t",) and "public.u AS t" in job.statement
    assert bench.generations == [job.generation] == [2]
    (event,) = catalog.events(bench.job.id, kinds=("rename",))
    assert event.text == '"public.t" was renamed to "public.u", its target stays t'
    assert (bench.job.id, str(T)) in catalog.living(), "its mark at the target names the old one"
    assert catalog.names("shop", 1) == [U]


def test_a_table_that_gets_its_first_name_back_is_as_it_was(catalog: Catalog) -> None:
    bench = Bench(catalog, joined=False)
    bench.lose(now=U)
    assert bench.renames.follow(bench.feed, T, U, Timestamp(9))
    bench.source_runtime.ids, bench.source_runtime.names = {T: 1}, {1: T}
    assert bench.renames.follow(bench.feed, U, T, Timestamp(12))
    (table,) = catalog.tables(bench.job.id)
    assert (table.table, table.original) == (T, None)
    assert catalog.names("shop", 1) == [T, U]


def test_a_table_that_has_its_name_again_is_asked_for_once(catalog: Catalog) -> None:
    bench = Bench(catalog, joined=False)
    bench.lose(now=U)
    bench.source_runtime.end = Timestamp(10)
    bench.source_runtime.ids, bench.source_runtime.names = {T: 1}, {1: T}
    for _ in range(3):
        bench.leaving.turn(bench.feed)
    assert bench.feed.tables.keys() == {T} and bench.source_runtime.asked == 1


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda bench: bench.source_runtime.ids.update({T: 2}), "another table has that name"),
        (lambda bench: setattr(bench, "pulled", True), "a reader takes from the log"),
        (lambda bench: setattr(bench.feed, "query", object()), "a CDC query"),
        (
            lambda bench: bench.feed.tables.update({U: TableProgress(U, "u")}),
            "the feed has a table",
        ),
        (lambda bench: bench.catalog.add_tables(bench.job.id, [TableProgress(U, "u")]), "the feed"),
    ],
)
def test_a_rename_that_cannot_be_followed_stops_the_table(
    catalog: Catalog, make: Callable[[Bench], object], why: str
) -> None:
    bench = Bench(catalog, joined=False)
    bench.lose(now=U)
    bench.source_runtime.end = Timestamp(10)
    make(bench)
    with pytest.raises(TableError, match=why) as caught:
        bench.leaving.turn(bench.feed)
    assert (caught.value.table, caught.value.error.code) == (T, Code.TABLE_REPLACED)
    assert 'was renamed to "public.u"' in caught.value.error.message
    assert T in bench.feed.tables and catalog.tables(bench.job.id)[0].table == T


def test_a_table_that_was_dropped_from_the_feed_is_not_renamed(catalog: Catalog) -> None:
    bench = Bench(catalog, joined=False)
    bench.lose(now=U)
    catalog.drop_tables(bench.job.id, [T])
    assert not bench.renames.follow(bench.feed, T, U, Timestamp(9))
    assert bench.feed.tables == {} and catalog.tables(bench.job.id) == []


@pytest.mark.parametrize(
    ("changes", "followed"),
    [
        ({"state": TableState.PENDING, "scan_wanted": True, "done_upto": None}, True),
        ({"state": TableState.SCANNING, "scan_wanted": True, "done_upto": None}, False),
        ({"scan_wanted": True, "scan_at": Timestamp(5)}, False),
    ],
)
def test_a_rename_in_the_middle_of_a_scan_is_not_followed(
    catalog: Catalog, changes: dict[str, object], followed: bool
) -> None:
    """Rows as of an instant under the old name may be out."""
    bench = Bench(catalog, joined=False)
    bench.feed.update(T, **changes)
    bench.lose(now=U)
    if followed:
        bench.leaving.turn(bench.feed)
        assert bench.feed.tables[U].scan_wanted
        return
    with pytest.raises(TableError):
        bench.leaving.turn(bench.feed)


# -- sources whose tables have no ids -------------------------------------------------------


def _lose_by_log(bench: Bench) -> None:
    """The log says that the table has another name, and the feed is there."""
    error = ChangefeedError("CF2106", "renamed")
    bench.source_runtime.gone[T, 0] = LostTable(error, False, at=Timestamp(9), now=U)
    bench.source_runtime.end = Timestamp(9)


def test_without_ids_the_log_says_that_a_table_is_followed(catalog: Catalog) -> None:
    bench = Bench(catalog, joined=False, table_id=0)
    assert bench.renames.follow(bench.feed, T, U, Timestamp(9))
    assert bench.feed.tables[U].known_as == T


@pytest.mark.parametrize("joined", [False, True])
def test_without_ids_the_name_decides_once_a_table_has_it_again(
    catalog: Catalog, joined: bool
) -> None:
    bench = Bench(catalog, joined=joined, table_id=0)
    bench.source_runtime.there = {T}
    _lose_by_log(bench)
    assert not bench.renames.follow(bench.feed, T, U, Timestamp(9))
    for _ in range(3):
        bench.leaving.turn(bench.feed)
    assert bench.feed.tables.keys() == {T}
    assert bench.source_runtime.asked == 3, "the source is asked for each loss once"


def test_without_ids_a_table_that_joined_leaves_where_the_log_says_so(catalog: Catalog) -> None:
    bench = Bench(catalog, joined=True, table_id=0)
    _lose_by_log(bench)
    bench.leaving.turn(bench.feed)
    assert bench.feed.tables == {} and bench.told == [], "it is not dropped"


def test_without_ids_a_rename_in_the_middle_of_a_scan_says_what_to_do(catalog: Catalog) -> None:
    bench = Bench(catalog, joined=False, table_id=0)
    bench.feed.update(T, scan_wanted=True, scan_at=Timestamp(5))
    _lose_by_log(bench)
    with pytest.raises(TableError, match="its scan had not ended") as caught:
        bench.leaving.turn(bench.feed)
    assert "DROP public.t ADD public.u" in caught.value.error.hint


def test_without_ids_an_absent_table_is_lost_until_it_is_there_or_has_another_name(
    catalog: Catalog,
) -> None:
    class Source:
        rename_delay_ns = 5

        def locate(self, tables: object, ids: object) -> None:
            return None

        def current_position(self) -> str:
            return "7"

    lost, source = LostTables(catalog, "shop"), cast(Any, Source())
    absent = {T: ChangefeedError("CF1101", "no such table")}
    assert lost.look(source, {(T, 0), (U, 0)}) == (None, False)
    assert lost.see_absent(source, absent) and not lost.see_absent(source, absent)
    found = lost.get(T, 0)
    assert found is not None
    assert (found.after, found.delay, found.now, found.dropped) == ("7", 5, None, False)
    lost.ends_at(found, Timestamp(12))
    known = lost.get(T, 0)
    assert known is not None and known.at == Timestamp(12)
    notice = Notice("moved", at="9.0", table=("public", "t"), now=("public", "u"))
    assert lost.hear(notice)
    assert not lost.see_absent(source, absent), "what the log said stays"
    found = lost.get(T, 0)
    assert found is not None and (found.now, found.at) == (U, Timestamp(9))
    lost.see_absent(source, {})
    assert lost.names == frozenset()
    lost.look(source, {(U, 0)})
    assert not lost.see_absent(source, absent), "nobody wants it"
