"""Who delivers a round, and what is left for whom."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from changefeed.catalog.model import TableProgress, TableState
from changefeed.core.clock import ManualClock, Timestamp
from changefeed.core.events import Frontier, SchemaChange, Truncate
from changefeed.core.schema import Column, TableName, TableSchema
from changefeed.core.table_errors import TableError
from changefeed.core.timings import Timings
from changefeed.core.types import LogicalType
from changefeed.core.unread import PartRange, UnreadParts
from changefeed.feeds.backlog import BacklogResult
from changefeed.feeds.chunks import Chunk, ControlItem, Item, Watermark
from changefeed.feeds.rounds import Deliverers, Rounds
from changefeed.options import Options

T = TableName("shop", "public", "t")
BEGIN, END = Timestamp(10), Timestamp(20)


class World:
    """A feed that is behind, a Spark job that answers ``done``, and a driver that delivers."""

    def __init__(
        self, done: BacklogResult, *, pace: float = 0.0, timings: Timings | None = None
    ) -> None:
        self.done = done
        self.delivered: list[Timestamp] = []
        self.bounds: list[dict[TableName, Timestamp]] = []
        self.scanned: list[bool] = []
        self.rows = 1
        self.windows: list[Timestamp] = []
        self.commits = 0
        table = TableProgress(T, "t", state=TableState.RUNNING, scan_wanted=False, done_upto=BEGIN)
        tables = {T: table}
        #: Seconds of each pause that was shown.
        self.gathered: list[float] = []
        self.feed = SimpleNamespace(
            job=SimpleNamespace(id=1, name="f", end_time=None),
            gather=lambda since, until: self.gathered.append((until - since) / 1e9),
            options=Options.from_dict({}),
            tables=tables,
            in_state=lambda *states: [t for t in tables.values() if t.state in states],
            keep_only=self._keep_only,
            query=None,
            boundaries=None,
            update=self._update,
            advance=self._advance,
            record_event=lambda *told: self.events.append(told),
        )
        self.events: list[tuple[object, ...]] = []
        self.held: set[TableName] = set()
        self.scanning = SimpleNamespace(holds=lambda table: table.table in self.held, at=None)
        #: The tables of the job, as the state has them, and how often it was changed.
        self.stored, self.version = [T], 1
        catalog = SimpleNamespace(
            version=lambda: self.version,
            table_names=lambda job, version: frozenset(self.stored),
        )
        #: The log has nothing of the feed's tables.
        self.quiet = False
        self.change_log = SimpleNamespace(
            frontier=Frontier(END, "1"),
            waiter=lambda: SimpleNamespace(wait_beyond=self._wait_beyond),
            oldest=BEGIN,
            has_nothing=lambda bounds, upto: self.quiet,
        )
        source_runtime = SimpleNamespace(log=self.change_log)
        self.waits: list[Timestamp] = []
        #: Whose changes alone end each of these waits.
        self.waits_for: list[AbstractSet[TableName] | None] = []
        self.rename: SchemaChange | None = None
        self.change: SchemaChange | None = None
        self.followed: list[tuple[object, ...]] = []
        self.follows = True
        delivery = SimpleNamespace(deliver=self._driver)
        backlog = SimpleNamespace(deliver=lambda *args, **named: self.done)
        windows = SimpleNamespace(deliver=self._windows)
        self.clock = ManualClock()
        self.interrupted = False
        self.sink_session = SimpleNamespace(
            pulled=False,
            pace=pace,
            takes_rows=False,
            consumed=lambda: Timestamp(14),
            round_bytes=0,
        )
        self.rounds = Rounds(
            cast(Any, catalog),
            cast(Any, source_runtime),
            cast(Any, self.sink_session),
            cast(Any, self.scanning),
            Deliverers(cast(Any, delivery), cast(Any, backlog), cast(Any, windows)),
            renames=cast(Any, SimpleNamespace(follow=self._follow)),
            clock=self.clock,
            timings=timings or Timings(),
            committed=self._committed,
            interrupted=lambda: self.interrupted,
        )

    def _driver(
        self, feed: object, bounds: dict[TableName, Timestamp], upto: Timestamp, **named: Any
    ) -> int:
        self.delivered.append(upto)
        self.bounds.append(bounds)
        self.scanned.append(named["scanned"])
        if self.rename is not None:
            named["on_rename"](self.rename)
        if self.change is not None:
            named["on_schema_change"](self.change)
        return self.rows

    def _keep_only(self, names: set[TableName]) -> None:
        for name in self.feed.tables.keys() - names:
            del self.feed.tables[name]

    def _update(self, name: TableName, **changes: Any) -> None:
        self.feed.tables[name] = replace(self.feed.tables[name], **changes)

    def _advance(self, names: list[TableName], upto: Timestamp) -> None:
        for name in names:
            self._update(name, done_upto=upto)

    def add(self, name: str, done_upto: Timestamp | None, **fields: Any) -> TableName:
        """Another table of the feed."""
        table = replace(T, name=name)
        fields = {"state": TableState.RUNNING, "scan_wanted": False, **fields}
        self.feed.tables[table] = TableProgress(table, name, done_upto=done_upto, **fields)
        self.stored.append(table)
        return table

    def joining(self) -> bool:
        return self.rounds.joining(cast(Any, self.feed))

    def _follow(self, *told: object) -> bool:
        self.followed.append(told[1:])
        return self.follows

    def _windows(
        self, feed: object, query: object, bounds: object, upto: Timestamp, **_: object
    ) -> int:
        self.windows.append(upto)
        return 0

    def _committed(self) -> None:
        self.commits += 1

    def _wait_beyond(
        self, at: Timestamp, seconds: float, tables: AbstractSet[TableName] | None = None
    ) -> None:
        self.waits.append(at)
        self.waits_for.append(tables)

    def turn(self) -> bool:
        return self.rounds.turn(cast(Any, self.feed))

    def wait(self, *, prompt: bool = False) -> None:
        self.rounds.wait(cast(Any, self.feed), prompt=prompt)


@pytest.mark.parametrize("rows", [0, 5])
def test_what_spark_delivered_is_not_read_again(rows: int) -> None:
    """A range may hold no row that the feed takes: it is delivered all the same."""
    world = World(BacklogResult(rows, moved=True))
    assert world.turn() is (rows > 0)
    assert world.delivered == [] and world.commits == 1
    world.wait()
    # There may be more behind the range; after rows the next round waits for its time.
    assert world.waits == ([Timestamp.ZERO, Timestamp.MAX] if rows else [Timestamp.ZERO])


def test_what_spark_leaves_is_delivered_by_the_driver() -> None:
    world = World(BacklogResult())
    assert world.turn() and world.delivered == [END]


def test_the_driver_goes_as_far_as_spark_says() -> None:
    world = World(BacklogResult(node_upto=Timestamp(15)))
    assert world.turn() and world.delivered == [Timestamp(15)]


def test_the_log_is_waited_for_before_the_pause_between_rounds() -> None:
    """A change that comes after the pause then wakes the feed's thread once, not twice."""
    world = World(BacklogResult())
    assert world.turn()
    world.wait()
    assert world.waits == [END, Timestamp.MAX]
    world.clock.advance(Timings().gather)
    world.wait()
    assert world.waits[2:] == [END]


def test_where_only_time_passes_tables_move_without_a_delivery() -> None:
    world = World(BacklogResult())
    world.quiet, world.stored = True, []
    world.held = {world.add("held", Timestamp(11), state=TableState.SCANNING)}
    world.scanning.at = Timestamp(16)
    assert not world.turn()
    assert world.delivered == [] and world.commits == 0
    assert world.feed.tables[T].done_upto == END
    assert [world.feed.tables[name].done_upto for name in world.held] == [Timestamp(16)]
    world.wait()
    assert world.waits == [END]
    world.quiet = False
    world.change_log.frontier = Frontier(Timestamp(40), "2")
    world.turn()
    assert T not in world.feed.tables, "it was dropped: its changes are not delivered"


def test_boundaries_and_windows_are_delivered_where_only_time_passes() -> None:
    for feed in ({"boundaries": object()}, {"query": SimpleNamespace(grouped=True)}):
        world = World(BacklogResult())
        world.quiet = True
        vars(world.feed).update(feed)
        world.turn()
        assert world.delivered == [END] or world.windows == [END]


def test_a_feed_without_haste_waits_for_changes_of_its_tables() -> None:
    world = World(BacklogResult())
    assert world.turn()
    for prompt, tables in ((False, {T}), (True, None)):
        world.clock.advance(1.0)
        world.wait(prompt=prompt)
        assert world.waits_for[-1] == tables


@pytest.mark.parametrize(("longest", "rests"), [(60.0, 5.0), (0.5, 0.5)])
def test_a_feed_rests_as_its_sink_asks_and_no_longer_than_it_may(
    longest: float, rests: float
) -> None:
    world = World(BacklogResult(), pace=5.0, timings=Timings(rest_longest=longest))
    assert world.turn()
    assert world.gathered == [rests] * (rests >= 1), "a long pause is shown, a short one is not"
    world.clock.advance(rests - 0.1)
    assert not world.turn()
    world.clock.advance(0.2)
    assert world.turn()


def test_rows_that_an_interruption_left_are_not_waited_for() -> None:
    world = World(BacklogResult())
    world.interrupted = True
    world.turn()
    world.wait()
    assert world.waits[0] == Timestamp.ZERO


def test_a_query_that_groups_is_delivered_by_windows_alone() -> None:
    world = World(BacklogResult(5, moved=True))
    world.feed.query = SimpleNamespace(grouped=True)
    assert not world.turn()
    assert world.windows == [END] and world.delivered == [] and world.commits == 0


def test_what_comes_under_another_name_is_not_waited_for() -> None:
    world = World(BacklogResult())
    old = TableSchema(T, (), ())
    now = replace(T, name="u")
    world.rename = SchemaChange(old, replace(old, table=now), Timestamp(15), 3)
    assert world.turn()
    assert world.followed == [(T, now, Timestamp(15))]
    world.wait()
    assert world.waits[0] == Timestamp.ZERO


@pytest.mark.parametrize(("follows", "done"), [(True, BEGIN), (False, Timestamp(15))])
def test_a_rename_that_is_not_followed_is_met_once(follows: bool, done: Timestamp) -> None:
    """A table has the name again: the feed goes on with it behind the rename."""
    world = World(BacklogResult())
    world.follows = follows
    old = TableSchema(T, (), ())
    world.rename = SchemaChange(old, replace(old, table=replace(T, name="u")), Timestamp(15), 3)
    assert world.turn()
    assert world.feed.tables[T].done_upto == done


def test_a_round_without_rows_needs_no_rest() -> None:
    world = World(BacklogResult(), pace=5.0)
    world.rows = 0
    assert not world.turn()
    world.wait()
    assert world.waits == [END]
    assert not world.turn() and len(world.delivered) == 2


def test_rounds_begin_at_most_so_often_however_fast_they_are() -> None:
    world = World(BacklogResult(), timings=Timings(gather=2.0))
    assert world.turn()
    world.clock.advance(1.9)
    assert not world.turn()
    world.clock.advance(0.1)
    assert world.turn()


def test_a_slow_round_has_gathered_enough() -> None:
    world = World(BacklogResult(), timings=Timings(gather=2.0))
    clock = world.clock
    world.rounds._committed = lambda: clock.advance(3.0)
    world.done = BacklogResult(5, moved=True)
    assert world.turn() and world.turn()


def test_who_hurries_does_not_wait_for_the_pace_once() -> None:
    world = World(BacklogResult(), pace=60.0)
    assert world.turn()
    world.rounds.hurry()
    world.wait()
    assert world.waits == [END]
    assert world.turn()
    assert not world.turn()
    world.wait()
    assert world.waits == [END, END, Timestamp.MAX]


def test_a_dropped_table_is_left_and_a_new_one_is_joining() -> None:
    world = World(BacklogResult())
    gone = world.add("gone", BEGIN)
    world.stored.remove(gone)
    assert not world.joining()
    assert list(world.feed.tables) == [T]
    world.add("new", None)
    del world.feed.tables[replace(T, name="new")]
    assert not world.joining(), "nobody changed the state"
    world.version += 1
    assert world.joining() and world.joining()
    world.add("new", None, state=TableState.PENDING)
    assert world.joining(), "the feed was not reloaded"
    world.rounds.reloaded()
    assert not world.joining()


def test_a_turn_leaves_dropped_tables_first() -> None:
    world = World(BacklogResult())
    world.stored.clear()
    assert not world.turn()
    assert world.delivered == []


def test_a_consumer_that_reads_the_log_itself_is_followed() -> None:
    world = World(BacklogResult())
    world.sink_session.pulled = True
    seen: list[tuple[list[TableName], Timestamp]] = []
    world.feed.advance = lambda names, upto: seen.append((names, upto))
    assert not world.turn()
    assert seen == [([T], Timestamp(14))]
    assert world.delivered == []
    world.wait()
    assert world.waits == [Timestamp.MAX], "what comes into the log is no work of the feed"


def test_before_the_log_has_anything_nothing_is_delivered() -> None:
    world = World(BacklogResult())
    world.change_log.frontier = None
    assert not world.turn()
    assert world.delivered == []


def test_tables_advance_together_as_far_as_the_log_is_complete() -> None:
    world = World(BacklogResult())
    other = world.add("other", Timestamp(12))
    world.add("there", END)
    world.add("fresh", None)
    world.add("broken", BEGIN, state=TableState.FAILED)
    world.add("scanned", BEGIN, state=TableState.SCANNING)
    assert world.turn()
    assert world.delivered == [END]
    assert world.bounds == [{T: BEGIN, other: Timestamp(12)}]
    assert world.scanned == [False]


def test_nothing_is_delivered_twice() -> None:
    world = World(BacklogResult())
    world.feed.tables[T] = replace(world.feed.tables[T], done_upto=END)
    assert not world.turn()
    assert world.delivered == []


@pytest.mark.parametrize(("end", "upto"), [(Timestamp(15), Timestamp(15)), (Timestamp(99), END)])
def test_a_feed_goes_no_further_than_its_end(end: Timestamp, upto: Timestamp) -> None:
    world = World(BacklogResult())
    world.feed.job.end_time = end
    assert world.turn()
    assert world.delivered == [upto]


def test_a_feed_that_only_scans_delivers_no_changes() -> None:
    world = World(BacklogResult())
    world.feed.options = Options.from_dict({"initial_scan": "only"})
    assert not world.turn()
    assert world.delivered == []


def test_a_table_waits_for_its_scan_at_the_scans_timestamp() -> None:
    world = World(BacklogResult())
    world.held = {world.add("held", Timestamp(11), state=TableState.SCANNING)}
    assert world.turn()
    assert world.delivered == [END], "the scan has no timestamp yet"
    world.delivered.clear()
    world.scanning.at = Timestamp(16)
    world.clock.advance(1.0)
    assert world.turn()
    assert world.delivered == [END, Timestamp(16)]
    assert world.scanned[-2:] == [False, True]
    assert world.bounds[-1] == dict.fromkeys(world.held, Timestamp(11))
    world.wait()
    assert world.waits[0] == END


def test_a_scan_that_is_ahead_of_the_log_waits_for_it() -> None:
    world = World(BacklogResult())
    world.held, world.scanning.at = {T}, Timestamp(99)
    assert world.turn()
    assert (world.delivered, world.scanned) == ([END], [False])


def test_while_a_scan_holds_back_every_table_the_log_wakes_nobody() -> None:
    world = World(BacklogResult())
    world.held, world.scanning.at = {T}, Timestamp(16)
    assert world.turn()
    assert world.delivered == [Timestamp(16)]
    world.clock.advance(1.0)
    world.wait()
    assert world.waits == [Timestamp.MAX]


def test_tables_that_no_scan_holds_are_not_told_as_scanned() -> None:
    """Though the log ends where the scan is."""
    world = World(BacklogResult())
    world.scanning.at = END
    assert world.turn()
    assert world.scanned == [False]


def test_a_part_that_spark_leaves_is_not_waited_for() -> None:
    for upto, waits in ((Timestamp(15), Timestamp.ZERO), (END, END)):
        world = World(BacklogResult(node_upto=upto))
        assert world.turn()
        world.wait()
        assert world.waits[0] == waits


def test_tables_that_are_as_far_as_spark_says_are_left_out() -> None:
    world = World(BacklogResult(node_upto=Timestamp(15)))
    world.add("there", Timestamp(15))
    assert world.turn()
    assert world.bounds == [{T: BEGIN}]


def test_an_interruption_ends_a_round_between_its_parts() -> None:
    world = World(BacklogResult())
    world.held, world.scanning.at = {world.add("held", BEGIN)}, Timestamp(16)
    world.interrupted = True
    assert not world.turn()
    assert world.delivered == []
    deliver = world._driver

    def interrupting(*given: Any, **named: Any) -> int:
        world.interrupted = True
        return deliver(*given, **named)

    world.interrupted = False
    world.rounds._deliverers.delivery.deliver = interrupting  # type: ignore[method-assign]
    assert world.turn()
    assert world.delivered == [END]


def _change(world: World, **fields: Any) -> SchemaChange:
    column = Column("a", "integer", LogicalType.parse("int32"), False, 1)
    more = Column("b", "text", LogicalType.parse("text"), True, 2)
    old = TableSchema(T, (column,), (0,), version=1)
    new = replace(old, **{"columns": (column, more), "version": 2, **fields})
    world.change = SchemaChange(old, new, Timestamp(15), 3)
    return world.change


def test_a_schema_change_is_recorded() -> None:
    world = World(BacklogResult())
    _change(world)
    assert world.turn()
    assert world.events == [("schema", 'column "b" added (text)', T, Timestamp(15))]
    assert not world.feed.tables[T].scan_wanted


@pytest.mark.parametrize(
    ("moved", "option"), [(True, "on_partition_change"), (False, "schema_change_policy")]
)
def test_a_change_of_rows_alone_stops_a_table_that_was_scanned_in_that_shape(
    moved: bool, option: str
) -> None:
    """The version of the table says nothing of when its rows changed."""
    world = World(BacklogResult())
    world.feed.options = Options.from_dict({option: "stop"})
    world.feed.tables[T] = replace(world.feed.tables[T], schema_version=2)
    change = _change(world)
    world.change = replace(change, old=change.new, rewritten=True, moved=moved, why="a statement")
    with pytest.raises(TableError, match="a statement"):
        world.turn()


@pytest.mark.parametrize("policy", ["backfill", "ignore"])
def test_a_table_that_cannot_be_read_fails_whatever_the_policy(policy: str) -> None:
    world = World(BacklogResult())
    world.feed.options = Options.from_dict({"schema_change_policy": policy})
    world.change = replace(_change(world), rewritten=True, unreadable=True, why="an odd type")
    with pytest.raises(TableError) as failed:
        world.turn()
    assert failed.value.table == T
    assert (failed.value.error.code.number, failed.value.error.message) == ("CF2108", "an odd type")
    assert not world.events and not world.feed.tables[T].scan_wanted


@pytest.mark.parametrize(
    ("before", "since"),
    [
        ({}, Timestamp(15)),
        ({"scan_at": Timestamp(12)}, Timestamp(15)),
        ({"scan_wanted": True}, Timestamp(15)),
        ({"scan_wanted": True, "scan_at": Timestamp(12)}, Timestamp(12)),
    ],
)
def test_a_backfill_is_owed_since_the_first_change_that_needs_it(
    before: dict[str, Any], since: Timestamp
) -> None:
    world = World(BacklogResult())
    world._update(T, scan_rows=7, scan_total=9, **before)
    world.feed.options = Options.from_dict(
        {"schema_change_policy": "backfill", "schema_change_events": "column_changes"}
    )
    _change(world)
    assert world.turn()
    owed = world.feed.tables[T]
    assert (owed.scan_wanted, owed.scan_at) == (True, since)
    assert (owed.scan_rows, owed.scan_total) == (0, 0)


@pytest.mark.parametrize(
    ("fields", "takes_rows", "refused"),
    [
        ({}, False, True),
        ({}, True, False),
        ({"scan_wanted": True}, False, True),
        ({"scan_wanted": True, "rescan": 1}, False, False),
        ({"schema_version": 2}, False, False),
    ],
)
def test_other_keys_of_messages_are_refused(
    fields: dict[str, Any], takes_rows: bool, refused: bool
) -> None:
    """Unless rows are sent instead of messages, or RESCAN asks for every row under its new key. A
    backfill that is owed for something else has nobody's word for that."""
    world = World(BacklogResult())
    world._update(T, **fields)
    world.sink_session.takes_rows = takes_rows
    _change(world, key=(0, 1))
    if refused:
        with pytest.raises(TableError, match="would get other keys"):
            world.turn()
    else:
        assert world.turn()


def chunk(*, unsent: bool) -> Chunk:
    piece = cast(Any, SimpleNamespace(has_unsent=unsent))
    return Chunk(TableSchema(T, (), ()), (piece,), BEGIN, END, 1, (), unsent_beside=False)


TRUNCATED = ControlItem(Truncate(TableSchema(T, (), ()), Timestamp(15), 1))


@pytest.mark.parametrize(
    ("found", "goes_on"),
    [
        ([chunk(unsent=False), Watermark((T,), END)], True),
        ([chunk(unsent=False), chunk(unsent=True)], False),
        ([TRUNCATED], False),
    ],
    ids=("whole rows", "a value was not sent", "a truncation"),
)
def test_changes_that_do_not_complete_a_scan_let_it_begin_again(
    monkeypatch: pytest.MonkeyPatch, found: list[Item], goes_on: bool
) -> None:
    """Known before they are delivered: progress and this are saved together."""
    monkeypatch.setattr("changefeed.feeds.rounds.items", lambda *_: iter(found))
    world = World(BacklogResult())
    unread = UnreadParts(BEGIN, "form", ("",), (PartRange(""),))
    world.feed.update(T, unread=unread, scan_wanted=True)
    world.interrupted = True
    world.turn()
    assert world.feed.tables[T].unread == (unread if goes_on else None)
