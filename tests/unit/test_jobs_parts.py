"""The small parts of a running feed: sharing, retrying, schema changes, chunks, capture."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pytest

from changefeed.capture.process import Capture, CaptureLoop, Notice
from changefeed.catalog import TableProgress
from changefeed.catalog.model import RowRepair
from changefeed.core.clock import ManualClock, Timestamp
from changefeed.core.elapsed import ClockSample
from changefeed.core.errors import ChangefeedError
from changefeed.core.events import Flush, Frontier, SchemaChange, Truncate
from changefeed.core.schema import BeforeImage, Column, TableName, TableSchema
from changefeed.core.table_errors import TableError
from changefeed.core.timings import Timings
from changefeed.core.types import Kind, LogicalType
from changefeed.feeds.chunks import Chunk
from changefeed.feeds.message_cache import MessageCache
from changefeed.feeds.retry import RetryClock
from changefeed.feeds.schema_policy import (
    check_images,
    check_message_key,
    difference,
    needs_backfill,
    scan_has,
)
from changefeed.log import LogSettings
from changefeed.options import parse_options
from changefeed.sources.base import StreamFallback
from grammar import nodes

TABLE = TableName("shop", "public", "t")
SCHEMA = TableSchema(
    TABLE,
    (
        Column("a", "integer", LogicalType.parse("int32"), False, 1),
        Column("b", "text", LogicalType.parse("text"), True, 2),
    ),
    (0,),
    version=1,
)


class TestSharing:
    def test_two_feeds_compute_once(self) -> None:
        shared = MessageCache()
        shared.feeds = 2
        started, release = threading.Event(), threading.Event()
        made = []

        def compute() -> pa.Table:
            started.set()
            release.wait(5)
            made.append(1)
            return pa.table({"x": [1]})

        results: list[pa.Table] = []
        threads = [
            threading.Thread(target=lambda: results.append(shared.get("k", compute)))
            for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        assert started.wait(5)
        release.set()
        for thread in threads:
            thread.join(5)
        assert len(made) == 1
        assert [r.num_rows for r in results] == [1, 1, 1]

    def test_a_failure_reaches_its_caller_and_is_not_kept(self) -> None:
        shared = MessageCache()
        shared.feeds = 2

        def broken() -> pa.Table:
            raise ChangefeedError("CF4002", "broken")

        with pytest.raises(ChangefeedError):
            shared.get("k", broken)
        assert shared.get("k", lambda: pa.table({"x": [2]}))["x"].to_pylist() == [2]

    def test_what_is_kept_is_bounded(self) -> None:
        shared = MessageCache(max_bytes=1000)
        shared.feeds = 2
        for key in range(50):
            shared.get(key, lambda: pa.table({"x": list(range(100))}))
        assert shared.misses == 50
        shared.get(0, lambda: pa.table({"x": [1]}))
        assert shared.misses == 51, "the oldest was let go"

    def test_one_feed_alone_keeps_nothing(self) -> None:
        shared = MessageCache()
        shared.feeds = 1
        calls = []

        def compute() -> pa.Table:
            calls.append(1)
            return pa.table({"x": [1]})

        for _ in range(2):
            shared.get("k", compute)
        assert len(calls) == 2


class TestRetryClock:
    def test_pauses_double_up_to_a_bound(self) -> None:
        """Each a little shorter or longer, so that feeds do not try at the same moments."""
        clock = RetryClock(ManualClock(), Timings(retry_first=1.0, retry_longest=8.0))
        for usual in (1, 2, 4, 8, 8):
            assert 0.75 * usual <= clock.next_pause() <= 1.25 * usual
        clock.attempt = 5000
        assert clock.next_pause() <= 10

    def test_a_target_that_is_away_for_days_is_tried_until_the_budget_is_spent(
        self,
    ) -> None:
        class Jumping(ManualClock):
            """Its date jumps by a day to and fro; its seconds go on."""

            seconds = 5.0

            def monotonic(self) -> float:
                return self.seconds

        time, tries = Jumping(), 0
        clock = RetryClock(time)
        while clock.allows(3 * 86_400):
            tries += 1
            time.seconds += clock.next_pause()
            time.advance((-1) ** tries * 86_400)  # nothing is counted by a clock that jumps
        assert 3 * 86_400 < time.seconds < 3 * 86_400 + 45
        assert 86_400 * 3 / 30 / 1.25 < tries < 86_400 * 3 / 30 / 0.75 + 10
        assert clock.attempt == tries
        clock.reset()
        assert clock.allows(60) and clock.next_pause() < 1

    def test_the_budget_counts_from_the_first_failure(self) -> None:
        time = ManualClock()
        clock = RetryClock(time)
        assert not clock.allows(0)
        assert clock.allows(1)
        time.advance(60)
        assert clock.allows(60)
        time.advance(1)
        assert not clock.allows(60)
        clock.next_pause()
        clock.reset()
        assert clock.attempt == 0
        assert clock.allows(60)


def changed(new: TableSchema, rewritten: bool = False) -> SchemaChange:
    return SchemaChange(SCHEMA, new, Timestamp(5), 9, rewritten)


def with_column() -> TableSchema:
    added = Column("c", "integer", LogicalType.parse("int32"), True, 3)
    return replace(SCHEMA, columns=(*SCHEMA.columns, added))


def options(**given: str) -> object:
    return parse_options(
        [nodes.Option(n, nodes.Literal(text) if text else None) for n, text in given.items()],
        scheme="kafka",
        capabilities=None,
        text="",
    )


class TestSchemaChanges:
    def test_the_words(self) -> None:
        assert difference(changed(with_column())) == 'column "c" added (integer)'
        renamed = replace(SCHEMA, columns=(SCHEMA.columns[0], replace(SCHEMA.columns[1], name="z")))
        assert difference(changed(renamed)) == 'column "b" renamed to "z"'

    @pytest.mark.parametrize(
        ("given", "rewritten", "wanted"),
        [
            ({}, False, False),
            ({}, True, True),
            ({"schema_change_policy": "nobackfill"}, True, False),
            ({"schema_change_policy": "ignore"}, True, False),
            ({"schema_change_events": "column_changes"}, False, True),
            (
                {"schema_change_events": "column_changes", "schema_change_policy": "nobackfill"},
                False,
                False,
            ),
        ],
    )
    def test_what_is_scanned_again(
        self, given: dict[str, str], rewritten: bool, wanted: bool
    ) -> None:
        assert needs_backfill(changed(with_column(), rewritten), options(**given)) is wanted  # type: ignore[arg-type]

    def test_a_name_that_was_another_column_s_is_sent_again_where_names_are_all_there_is(
        self,
    ) -> None:
        first, second = SCHEMA.columns
        exchanged = (replace(first, name="b"), replace(second, name="a"))
        again = (first, replace(second, column_id=9))
        for columns in (exchanged, again):
            event = changed(replace(SCHEMA, columns=columns))
            assert needs_backfill(event, options(), by_name=True)  # type: ignore[arg-type]
            assert not needs_backfill(event, options())  # type: ignore[arg-type]
        new_name = changed(replace(SCHEMA, columns=(first, replace(second, name="z"))))
        assert not needs_backfill(new_name, options(), by_name=True)  # type: ignore[arg-type]

    @pytest.mark.parametrize("change", ["dropped", "renamed", "retyped", "identity"])
    def test_every_change_of_columns_is_scanned_again_where_wanted(self, change: str) -> None:
        first, second = SCHEMA.columns
        new = {
            "dropped": replace(SCHEMA, columns=(first,)),
            "renamed": replace(SCHEMA, columns=(first, replace(second, name="z"))),
            "retyped": replace(SCHEMA, columns=(first, replace(second, type_name="varchar(9)"))),
            "identity": replace(SCHEMA, before_image=BeforeImage.FULL),
        }[change]
        wishes = options(schema_change_events="column_changes")
        assert needs_backfill(changed(new), wishes) is (change != "identity")  # type: ignore[arg-type]
        assert not needs_backfill(changed(new), options())  # type: ignore[arg-type]

    @pytest.mark.parametrize("policy", ["backfill", "nobackfill", "stop"])
    def test_another_key_stops_the_table(self, policy: str) -> None:
        event = changed(replace(SCHEMA, key=(1,)))
        with pytest.raises(TableError, match=r"key changed from \(a\) to \(b\)") as caught:
            check_message_key(event, options(schema_change_policy=policy))  # type: ignore[arg-type]
        assert caught.value.error.code.number == "CF4101"
        assert "RESCAN" in caught.value.error.hint

    def test_a_key_whose_values_read_otherwise_stops_the_table(self) -> None:
        first, second = SCHEMA.columns
        text = replace(first, type_name="text", logical=LogicalType(Kind.TEXT))
        wider = replace(first, type_name="bigint", logical=LogicalType(Kind.INT64))
        with pytest.raises(TableError, match="type of"):
            check_message_key(changed(replace(SCHEMA, columns=(text, second))), options())  # type: ignore[arg-type]
        check_message_key(changed(replace(SCHEMA, columns=(wider, second))), options())  # type: ignore[arg-type]

    def test_other_keys_that_are_no_surprise(self) -> None:
        event = changed(replace(SCHEMA, key=(1,)))
        check_message_key(event, options(schema_change_policy="ignore"))  # type: ignore[arg-type]
        check_message_key(event, options(key_column="b", unordered=""))  # type: ignore[arg-type]
        old = replace(SCHEMA, keyless=True, key=(0, 1))
        grown = replace(with_column(), keyless=True, key=(0, 1, 2))
        check_message_key(SchemaChange(old, grown, Timestamp(9), 1), options())  # type: ignore[arg-type]

    def test_thin_images_are_refused_where_whole_ones_are_needed(self) -> None:
        whole = replace(SCHEMA, before_image=BeforeImage.FULL)
        for given in ({"diff": ""}, {"envelope": "changed"}):
            check_images(whole, options(**given))  # type: ignore[arg-type]
            with pytest.raises(TableError, match="logs only its key now") as caught:
                check_images(SCHEMA, options(**given))  # type: ignore[arg-type]
            assert (
                "REPLICA IDENTITY FULL; MySQL: binlog_row_image = FULL" in caught.value.error.hint
            )
        check_images(SCHEMA, options())  # type: ignore[arg-type]

    def test_stop_stops_the_table(self) -> None:
        wishes = options(schema_change_policy="stop", schema_change_events="column_changes")
        with pytest.raises(TableError) as caught:
            needs_backfill(changed(with_column()), wishes)  # type: ignore[arg-type]
        assert caught.value.table == TABLE
        assert caught.value.error.code.number == "CF4101"

    def test_a_scan_that_has_the_new_shape_leaves_nothing_to_stop_for(self) -> None:
        wishes = options(schema_change_policy="stop", schema_change_events="column_changes")
        event = replace(changed(with_column()), new=with_column().with_version(5))
        assert not needs_backfill(event, wishes, scanned=True)  # type: ignore[arg-type]
        before = TableProgress(TABLE, "t", schema_version=4, scan_wanted=False)
        assert not scan_has(event, before)
        assert not scan_has(event, replace(before, scan_wanted=True)), "a scan that broke"
        assert scan_has(event, replace(before, schema_version=5))
        asked = replace(before, scan_wanted=True, rescan=7)
        assert scan_has(event, asked), "a RESCAN goes on after a stop"
        assert not scan_has(event, replace(asked, scan_wanted=False, rescanned=7))
        assert not scan_has(event, replace(asked, repair=RowRepair(((1,),)))), "of other rows"


@dataclass(frozen=True)
class FakePiece:
    table: pa.Table
    schema: TableSchema = SCHEMA
    clean: frozenset[str] = frozenset({"a1"})
    path: None = None

    @property
    def rows(self) -> int:
        return int(self.table.num_rows)

    def load(self) -> pa.Table:
        return self.table


def test_rows_a_truncate_of_their_transaction_removed_are_left_out() -> None:
    rows = pa.table({"wall": [1, 2, 2, 2], "logical": [0, 0, 0, 0], "seq": [1, 2, 3, 5]})
    event = Truncate(SCHEMA, Timestamp(2), 4)
    chunk = Chunk(SCHEMA, (FakePiece(rows),), Timestamp(0), Timestamp(2), 1, (event,), False)  # type: ignore[arg-type]
    assert chunk.load()["seq"].to_pylist() == [1, 5]


@dataclass
class FakeStream:
    flushes: list[Flush]
    order: list[str]
    closed: bool = False

    def __iter__(self) -> Iterator[Flush]:
        return iter(self.flushes)

    def acknowledge(self, position: str) -> None:
        self.order.append(f"acknowledge {position}")

    def hasten(self) -> None:
        self.order.append("hasten")

    def close(self) -> None:
        self.closed = True


@dataclass
class FakeWriter:
    order: list[str]
    full: int = 0
    kept: list[Flush] = field(default_factory=list)
    settings: LogSettings = field(default_factory=LogSettings)

    def append(self, flush: Flush, *, ahead: bool = False) -> None:
        if self.full:
            self.full -= 1
            raise ChangefeedError("CF3003", "no room")
        self.kept.append(flush)
        self.order.append("append")

    def room(self) -> int:
        return 1

    def maintain(self, read: ClockSample, keep_from: Timestamp | None) -> None:
        self.order.append("maintain")

    def abandon(self) -> None:
        self.order.append("abandon")


class TestLife:
    """A capture whose stream breaks, of a source that knows another way."""

    def test_it_goes_on_the_other_way(self) -> None:
        order: list[str] = []
        told: list[Notice] = []
        writer = FakeWriter(order)
        done = Flush((), Frontier(Timestamp(1), "0" * 16, 1))

        class Breaking(FakeStream):
            def __iter__(self) -> Iterator[Flush]:
                yield Flush((), None)  # a part of a transaction
                raise StreamFallback("CF2101", "cannot be decoded")

        streams = iter([Breaking([], order), FakeStream([done], order)])

        def worker() -> Capture:
            return Capture(next(streams), writer, told.append, keep_from=lambda: None)  # type: ignore[arg-type]

        CaptureLoop(worker, writer, told.append).run()  # type: ignore[arg-type]
        assert order == ["append", "abandon", "append", f"acknowledge {'0' * 16}"]
        assert [(n.kind, n.message) for n in told] == [
            ("warning", "cannot be decoded"),
            ("frontier", ""),
        ]

    def test_another_error_ends_it(self) -> None:
        class Broken(FakeStream):
            def __iter__(self) -> Iterator[Flush]:
                raise ChangefeedError("CF2101", "broke")

        def worker() -> Capture:
            return Capture(Broken([], []), writer, told.append, keep_from=lambda: None)  # type: ignore[arg-type]

        writer = FakeWriter([])
        told: list[Notice] = []
        with pytest.raises(ChangefeedError, match="broke"):
            CaptureLoop(worker, writer, told.append).run()  # type: ignore[arg-type]
        assert told == []

    def test_stopped_before_it_begins(self) -> None:
        writer = FakeWriter([])

        def worker() -> Capture:
            return Capture(
                FakeStream([Flush((), None)], []),
                writer,  # type: ignore[arg-type]
                lambda notice: None,
                keep_from=lambda: None,
            )

        life = CaptureLoop(worker, writer, lambda notice: None)  # type: ignore[arg-type]
        life.stop()
        life.run()
        assert writer.kept == []


class TestCapture:
    def run(self, flushes: list[Flush], full: int = 0) -> tuple[list[str], list[Notice]]:
        order: list[str] = []
        told: list[Notice] = []
        stream, writer = FakeStream(flushes, order), FakeWriter(order, full)
        Capture(stream, writer, told.append, keep_from=lambda: None).run()  # type: ignore[arg-type]
        assert writer.kept == flushes, "every flush is in the log, in order"
        return order, told

    def test_it_acknowledges_only_what_is_in_the_log(self) -> None:
        flushes = [Flush((), Frontier(Timestamp(n), f"{n:016X}", n)) for n in (1, 2)]
        order, told = self.run(flushes)
        assert order == [
            "append",
            "acknowledge 0000000000000001",
            "append",
            "acknowledge 0000000000000002",
        ]
        assert [n.kind for n in told] == ["frontier", "frontier"]

    def test_part_of_a_large_transaction_is_not_acknowledged(self) -> None:
        flushes = [Flush((), None), Flush((), Frontier(Timestamp(1), "0" * 16, 1))]
        order, _ = self.run(flushes)
        assert order == ["append", "append", f"acknowledge {'0' * 16}"]

    def test_a_full_disk_stalls_and_goes_on(self) -> None:
        flushes = [Flush((), Frontier(Timestamp(1), "0" * 16, 1))]
        order, told = self.run(flushes, full=1)
        assert [n.kind for n in told] == ["stalled", "frontier"]
        assert "maintain" in order

    def test_what_feeds_ask_of_the_log_holds_without_a_restart(self) -> None:
        flushes = [Flush((), Frontier(Timestamp(n), f"{n:016X}", n)) for n in (1, 2)]
        wishes = iter([LogSettings(gc_ttl=60), LogSettings(gc_ttl=7200)])
        writer = FakeWriter([], full=2)  # upkeep after each append that found no room
        capture = Capture(
            FakeStream(flushes, []),
            writer,  # type: ignore[arg-type]
            lambda notice: None,
            keep_from=lambda: None,
            settings=lambda: next(wishes),
        )
        capture.run()
        assert writer.settings == LogSettings(gc_ttl=7200)

    def test_changes_do_not_wait_for_the_upkeep_of_the_log(self) -> None:
        begun, appended = threading.Event(), threading.Event()

        class Busy(FakeWriter):
            def append(self, flush: Flush, *, ahead: bool = False) -> None:
                assert begun.wait(10), "the upkeep has not begun"
                super().append(flush)
                appended.set()

            def maintain(self, read: ClockSample, keep_from: Timestamp | None) -> None:
                begun.set()
                assert appended.wait(10), "an append waited for the upkeep"

        writer = Busy([])
        flushes = [Flush((), Frontier(Timestamp(1), "0" * 16, 1))]
        Capture(
            FakeStream(flushes, []),
            writer,  # type: ignore[arg-type]
            lambda notice: None,
            keep_from=lambda: None,
            timings=Timings(upkeep=0.0),
        ).run()
        assert writer.kept == flushes

    @pytest.mark.parametrize(
        ("leap", "words"),
        [
            (108_000, ["the clock of this machine was set forward by 108,000 s: "]),
            (-108_000, ["the clock of this machine was set back by 108,000 s: "]),
            (10, []),
        ],
    )
    def test_a_clock_that_leaps_is_told(
        self, monkeypatch: pytest.MonkeyPatch, leap: int, words: list[str]
    ) -> None:
        """Once: it is the same clock afterwards."""
        module = "changefeed.capture.process"
        reads = itertools.chain(
            [ClockSample("boot", 0, 0)],
            (ClockSample("boot", n, leap * 10**9 + n) for n in itertools.count(1)),
        )
        monkeypatch.setattr(f"{module}.read_clocks", lambda: next(reads))
        writer, told = FakeWriter([], full=3), list[Notice]()
        flushes = [Flush((), Frontier(Timestamp(1), "0" * 16, 1))]
        capture = Capture(FakeStream(flushes, []), writer, told.append, keep_from=lambda: None)  # type: ignore[arg-type]
        capture.run()
        found = [n.message for n in told if n.kind == "warning"]
        assert [text.partition("the change log")[0] for text in found] == words

    def test_upkeep_that_fails_ends_the_capture(self) -> None:
        failed = threading.Event()

        class Broken(FakeWriter):
            def append(self, flush: Flush, *, ahead: bool = False) -> None:
                assert failed.wait(10)

            def maintain(self, read: ClockSample, keep_from: Timestamp | None) -> None:
                failed.set()
                raise ChangefeedError("CF3004", "the disk is gone")

        capture = Capture(
            FakeStream([Flush((), Frontier(Timestamp(1), "0" * 16, 1))], []),
            Broken([]),  # type: ignore[arg-type]
            lambda notice: None,
            keep_from=lambda: None,
            timings=Timings(upkeep=0.0),
        )
        with pytest.raises(ChangefeedError, match="the disk is gone"):
            capture.run()

    def test_a_version_is_announced_once_its_rows_can_be_read(self) -> None:
        old, new = SCHEMA.with_version(1), replace(SCHEMA, key=()).with_version(2)
        event = SchemaChange(old, new, Timestamp(5), 9, False)
        end = Frontier(Timestamp(6), "0" * 16, 1)
        flushes = [Flush((event,), None), Flush((), end), Flush((event,), end)]
        order: list[str] = []
        stream, writer = FakeStream(flushes, order), FakeWriter(order, 0)
        Capture(
            stream,
            writer,  # type: ignore[arg-type]
            lambda notice: None,
            keep_from=lambda: None,
            announced=lambda versions: order.append(f"announce {sorted(versions)}"),
        ).run()
        acknowledged = f"acknowledge {'0' * 16}"
        assert order == [
            "append",
            "append",
            "announce [2]",
            acknowledged,
            "append",
            acknowledged,
        ]

    def test_a_table_under_a_new_name_is_told_before_its_frontier(self) -> None:
        old, new = (
            replace(SCHEMA, table_id=7),
            replace(SCHEMA, table=TableName("shop", "s", "u"), table_id=7),
        )
        event = SchemaChange(old, new, Timestamp(5), 9, False)
        _, told = self.run([Flush((event,), Frontier(Timestamp(6), "0" * 16, 1))])
        assert [notice.kind for notice in told] == ["moved", "frontier"]
        moved = told[0]
        assert (moved.table, moved.now, moved.table_id) == (("public", "t"), ("s", "u"), 7)
        assert Timestamp.parse(moved.at) == Timestamp(5)
        assert Notice.parse(moved.line()) == moved

    def test_notices_survive_the_pipe(self) -> None:
        notice = Notice("error", code="CF2101", message="broken", hint="wait")
        assert Notice.parse(notice.line()) == notice
