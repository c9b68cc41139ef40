"""Compaction and retention: how many files there are, who survives them, what may go."""

from __future__ import annotations

import threading
import tracemalloc
from pathlib import Path

import pytest

from changefeed.core import faults
from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError
from changefeed.core.events import Frontier
from changefeed.log import LogReader, LogSettings, LogWriter
from changefeed.log.compaction import plan
from changefeed.log.ledger import SealedJournal, read_ledger
from tests.helpers.log_samples import Row, batch, clocks, drop_process, flush, keys, narrow

SECOND = 1_000_000_000
A = narrow("a")
ALL = (10**9, 10**12)


def at(seconds: float) -> Timestamp:
    """A timestamp in seconds."""
    return Timestamp(int(seconds * SECOND))


def put(writer: LogWriter, seconds: int, *names: str, count: int = 1) -> None:
    """``count`` rows at a time in each table."""
    events = [
        batch(
            narrow(name), [Row(at(seconds), seconds * 10_000 + i * 100 + n) for n in range(count)]
        )
        for i, name in enumerate(names)
    ]
    writer.append(flush(events, at(seconds), seconds, [(at(seconds), seconds)]))


def started(root: Path, settings: LogSettings) -> LogWriter:
    """A log that begins at second 1."""
    writer = LogWriter(root, settings)
    writer.append(flush([], at(1), 1))
    return writer


def sealed_at(writer: LogWriter, *seconds: int) -> None:
    """One sealed journal a row."""
    for second in seconds:
        put(writer, second, "a")
        writer.roll()


def seqs(root: Path, after: Timestamp) -> list[int]:
    """Sequence numbers of table a."""
    with LogReader(root) as reader:
        got = reader.slice({A.table: after}, Timestamp.MAX, *ALL)
        return [s for p in got.pieces for s in keys(p.load())]


class TestFiles:
    def test_a_thousand_sparse_tables_share_files(self, tmp_path: Path) -> None:
        """Hours of a thousand tables that change now and then: files follow the bytes."""
        names = [f"t{i}" for i in range(1000)]
        settings = LogSettings(gc_ttl=8 * 3600.0, grace=0.0)
        with started(tmp_path, settings) as writer:
            second = 10
            for tick in range(40):
                put(writer, second, *names[tick % 10 :: 10])
                second += 600
                writer.maintain(clocks(at(second)))
            files = list(tmp_path.iterdir())
            assert len(files) <= 3 + 1 + 4 * settings.merge_fan
            assert not list(tmp_path.glob("*.parquet"))
        with LogReader(tmp_path) as reader:
            some = narrow("t7").table
            got = reader.slice({some: reader.oldest}, Timestamp.MAX, *ALL)
            assert got.rows == len(
                [t for t in range(40) if t % 10 == 7 and at(10 + t * 600) > reader.oldest]
            )

    def test_a_table_gets_files_by_its_bytes(self, tmp_path: Path) -> None:
        settings = LogSettings(pack_bytes=5_000, grace=0.0)
        with started(tmp_path, settings) as writer:
            for second in range(10, 30):
                put(writer, second, "a", count=10)
                put(writer, second + 100, "b") if second == 29 else None
            writer.roll()
            writer.maintain(clocks(at(200)))
            (path,) = tmp_path.glob("*.parquet")
            assert len(list(tmp_path.glob("journal-*"))) == 2
        with LogReader(tmp_path) as reader:
            (piece,) = reader.slice({A.table: at(1)}, Timestamp.MAX, *ALL).pieces
            assert (piece.path, piece.rows, piece.clean) == (path, 200, frozenset({"a1"}))
            got = reader.slice({narrow("b").table: at(1)}, Timestamp.MAX, *ALL)
            assert [p.path for p in got.pieces] == [None]

    @pytest.mark.parametrize("pack_bytes", [1, 10**9])
    def test_merged_rows_are_as_clean_as_the_worst(self, tmp_path: Path, pack_bytes: int) -> None:
        """In a file of their own or inside the journal."""
        with started(tmp_path, LogSettings(pack_bytes=pack_bytes, grace=0.0)) as writer:
            for second, note, last in ((2, "fine", True), (3, 'a "quote"', False)):
                missing = None if last else '["note"]'
                rows = batch(A, [Row(at(second), second, note, last, missing)])
                writer.append(flush([rows], at(second), second))
            writer.roll()
            writer.maintain(clocks(at(200)))
        with LogReader(tmp_path) as reader:
            (piece,) = reader.slice({A.table: at(1)}, Timestamp.MAX, *ALL).pieces
            assert (piece.rows, piece.clean) == (2, frozenset())
            assert (piece.has_superseded, piece.has_unsent) == (True, True)
            assert (piece.path is not None) == (pack_bytes == 1)

    def test_an_idle_log_stays_small(self, tmp_path: Path) -> None:
        """A day of heartbeats, one each second, is not a day of frames."""
        with started(tmp_path, LogSettings(roll_frames=200, grace=0.0)) as writer:
            for second in range(2, 2002):
                writer.append(flush([], at(second), second))
                if second % 100 == 0:
                    writer.maintain(clocks(at(second)))
            writer.roll()
            writer.maintain(clocks(at(2002)))
            assert writer.bytes < 2_000
            assert len(list(tmp_path.iterdir())) <= 3 + 2 + LogSettings().merge_fan

    def test_idle_tables_cost_no_memory(self, tmp_path: Path) -> None:
        """What a journal knows of a table goes when the journal is sealed."""
        with started(tmp_path, LogSettings()) as writer:
            put(writer, 2, *[f"t{i}" for i in range(100)])
            writer.roll()
            assert len(writer._live.declared) == 0
            tracemalloc.start()
            try:
                before = tracemalloc.get_traced_memory()[0]
                for second in range(3, 103):
                    writer.append(flush([], at(second), second))
                grown = tracemalloc.get_traced_memory()[0] - before
            finally:
                tracemalloc.stop()
            assert grown < 50_000


class TestPlan:
    @staticmethod
    def journal(number: int, level: int, length: int = 1000, seconds: float = 1) -> SealedJournal:
        """A sealed journal of ``seconds``."""
        begin, end = at(number * seconds), at((number + 1) * seconds)
        return SealedJournal(number, (begin.wall, 0), Frontier(end, "0"), length, 0, (), level)

    def chosen(self, *journals: SealedJournal, settings: LogSettings | None = None) -> list[int]:
        """The numbers of what would be merged."""
        run = plan(journals, settings or LogSettings(merge_fan=3))
        return [s.number for s in run] if run else []

    def test_fresh_journals_at_once(self) -> None:
        assert self.chosen(self.journal(1, 1), self.journal(2, 0)) == [2]
        assert self.chosen(self.journal(1, 0), self.journal(2, 0)) == [1, 2]

    def test_levels_by_the_fan(self) -> None:
        two = [self.journal(i, 1) for i in (1, 2)]
        assert self.chosen(*two) == []
        assert self.chosen(*two, self.journal(3, 1)) == [1, 2, 3]
        assert self.chosen(self.journal(0, 2), *two, self.journal(3, 1)) == [1, 2, 3]

    def test_not_past_the_size(self) -> None:
        big = LogSettings().merge_bytes // 2 + 1
        assert self.chosen(*[self.journal(i, 1, big) for i in range(6)]) == []

    def test_not_past_an_eighth_of_the_ttl(self) -> None:
        hours = [self.journal(i, 1, seconds=3600) for i in range(9)]
        assert self.chosen(*hours, settings=LogSettings(merge_fan=4)) == []
        assert self.chosen(*hours, settings=LogSettings(merge_fan=3)) == [0, 1, 2]


class TestReadersSurvive:
    def test_a_piece_whose_file_was_merged(self, tmp_path: Path) -> None:
        with started(tmp_path, LogSettings(grace=0.0)) as writer:
            for second in range(2, 12):
                put(writer, second, "a", "b", count=3)
            with LogReader(tmp_path, cache_bytes=0) as reader:
                bounds = {A.table: at(3)}
                (piece,) = reader.slice(bounds, at(8), *ALL).pieces
                expected = keys(piece.load())
                writer.roll()
                writer.maintain(clocks(at(20)))
                reader._store._files.clear()
                assert len(list(tmp_path.glob("journal-*"))) == 2
                assert (
                    keys(piece.load())
                    == expected
                    == [s * 10_000 + n for s in range(4, 9) for n in range(3)]
                )

    def test_a_piece_of_two_files_that_were_merged_apart(self, tmp_path: Path) -> None:
        """Its first row is the last of a journal."""
        with started(tmp_path, LogSettings(grace=0.0, merge_fan=9)) as writer:
            sealed_at(writer, 2, 3)
            with LogReader(tmp_path, cache_bytes=0) as reader:
                (piece,) = reader.slice({A.table: at(1)}, Timestamp.MAX, *ALL).pieces
                alone = LogSettings(grace=0.0, merge_bytes=1)
                writer.settings = alone  # too small for two: each is merged alone
                assert writer.maintain(clocks(at(20))).merged == 2
                reader._store._files.clear()
                assert keys(piece.load()) == [20000, 30000]

    def test_a_segment_that_was_merged_into_a_larger_one(self, tmp_path: Path) -> None:
        with started(tmp_path, LogSettings(segment_rows=4, grace=0.0)) as writer:
            for second in range(2, 6):
                put(writer, second, "a", count=5)
            with LogReader(tmp_path) as reader:
                pieces = reader.slice({A.table: at(1)}, Timestamp.MAX, *ALL).pieces
                assert len({p.path for p in pieces}) == 4
                writer.roll()
                writer.maintain(clocks(at(20)))
                assert len(list(tmp_path.glob("*.parquet"))) == 1
                loaded = [s for p in pieces for s in keys(p.load())]
                assert loaded == [s * 10_000 + n for s in range(2, 6) for n in range(5)]

    def test_a_slice_with_an_old_index(self, tmp_path: Path) -> None:
        """The reader has not looked since; the files it knows are gone."""
        with started(tmp_path, LogSettings(grace=0.0)) as writer:
            sealed_at(writer, 2, 3, 4)
            with LogReader(tmp_path) as reader:
                writer.maintain(clocks(at(20)))
                got = reader.slice({A.table: at(1)}, Timestamp.MAX, *ALL)
                assert [s for p in got.pieces for s in keys(p.load())] == [20000, 30000, 40000]

    def test_replaced_files_stay_for_their_grace(self, tmp_path: Path) -> None:
        with started(tmp_path, LogSettings(grace=60.0)) as writer:
            sealed_at(writer, 2, 3)
            assert writer.maintain(clocks(at(100))).removed == 0
            assert len(list(tmp_path.glob("journal-*"))) == 4
        with LogWriter(tmp_path, LogSettings(grace=60.0)) as writer:
            assert writer.maintain(clocks(at(159))).removed == 0
            assert writer.maintain(clocks(at(160))).removed > 0
            assert len(list(tmp_path.glob("journal-*"))) == 2

    def test_a_large_segment_is_kept_as_it_is(self, tmp_path: Path) -> None:
        settings = LogSettings(segment_rows=4, segment_keep=1, grace=0.0)
        with started(tmp_path, settings) as writer:
            put(writer, 2, "a", count=5)
            put(writer, 3, "a", count=1)
            put(writer, 4, "a", count=5)
            writer.roll()
            before = {p: p.stat().st_ino for p in tmp_path.glob("*.parquet")}
            writer.maintain(clocks(at(20)))
            assert {p: p.stat().st_ino for p in tmp_path.glob("*.parquet")} == before
        assert seqs(tmp_path, at(1)) == [
            *(20000 + n for n in range(5)),
            30000,
            *(40000 + n for n in range(5)),
        ]


class TestRetention:
    SETTINGS = LogSettings(gc_ttl=100.0, max_age=200.0, grace=0.0)

    def oldest_after(
        self, root: Path, now: int, keep: int | None, settings: LogSettings = SETTINGS
    ) -> float:
        """The oldest second after upkeep; a row each ten seconds up to 100 was written."""
        with started(root, settings) as writer:
            for second in range(10, 101, 10):
                put(writer, second, "a")
                writer.roll()
            writer.maintain(clocks(at(now)), at(keep) if keep is not None else None)
            return writer.oldest.wall / SECOND

    def test_young_history_stays(self, tmp_path: Path) -> None:
        assert self.oldest_after(tmp_path, now=105, keep=None) == 1

    def test_old_history_goes(self, tmp_path: Path) -> None:
        assert self.oldest_after(tmp_path, now=155, keep=None) == 50

    def test_not_what_a_feed_needs(self, tmp_path: Path) -> None:
        assert self.oldest_after(tmp_path, now=155, keep=35) == 30
        assert seqs(tmp_path, at(35))[0] == 40 * 10_000

    def test_but_past_the_maximum_age(self, tmp_path: Path) -> None:
        assert self.oldest_after(tmp_path, now=255, keep=35) == 50
        with LogReader(tmp_path) as reader, pytest.raises(ChangefeedError) as caught:
            reader.slice({A.table: at(35)}, Timestamp.MAX, *ALL)
        assert caught.value.code.number == "CF3002"

    def test_without_a_maximum_age_the_ttl_is_it(self, tmp_path: Path) -> None:
        settings = LogSettings(gc_ttl=100.0, grace=0.0)
        assert self.oldest_after(tmp_path, now=155, keep=35, settings=settings) == 50

    def test_by_bytes_only_what_no_feed_needs(self, tmp_path: Path) -> None:
        settings = LogSettings(gc_ttl=1e6, keep_bytes=1, grace=0.0)
        assert self.oldest_after(tmp_path / "a", now=105, keep=35, settings=settings) == 30
        assert self.oldest_after(tmp_path / "b", now=105, keep=None, settings=settings) == 100

    def test_history_goes_though_there_is_no_room_to_roll(self, tmp_path: Path) -> None:
        """A full disk must not keep the log from making room."""
        with started(tmp_path, LogSettings(gc_ttl=100.0, grace=0.0, roll_age=0.0)) as writer:
            sealed_at(writer, 10, 20)
            put(writer, 30, "a")
            writer.maintain(clocks(at(30)))
            with faults.armed(f"{faults.Point.LOG_ROLL_CREATED}:full"):
                done = writer.maintain(clocks(at(125)))
            assert (done.rolled, writer.oldest) == (False, at(20))

    def test_dropped_files_are_gone_and_a_piece_says_so(self, tmp_path: Path) -> None:
        with started(tmp_path, self.SETTINGS) as writer:
            sealed_at(writer, 10, 20)
            with LogReader(tmp_path) as reader:
                (piece,) = reader.slice({A.table: at(1)}, at(15), *ALL).pieces
                writer.maintain(clocks(at(500)))
                reader._store._files.clear()  # an open file could still be read
                with pytest.raises(ChangefeedError) as caught:
                    piece.load()
                assert caught.value.code.number == "CF3002"
            assert len(list(tmp_path.iterdir())) == 4

    def test_the_log_remembers_where_it_begins(self, tmp_path: Path) -> None:
        """After everything was dropped, and after a crash."""
        writer = started(tmp_path, self.SETTINGS)
        sealed_at(writer, 10, 20)
        writer.maintain(clocks(at(500)))
        drop_process(writer)
        with LogWriter(tmp_path, self.SETTINGS) as again, LogReader(tmp_path) as reader:
            assert again.frontier is not None and again.frontier.at == at(20)
            assert again.oldest == reader.oldest == at(20)
            assert reader.timestamp_at(f"{20:016X}") == at(20)
            assert reader.timestamp_at(f"{19:016X}") is None


DAY = 86_400


class TestAges:
    """Ages count by time that was measured: clocks leap, of this machine and of the source."""

    SETTINGS = LogSettings(gc_ttl=100.0, grace=0.0)

    def test_a_clock_that_leaps_drops_nothing(self, tmp_path: Path) -> None:
        with started(tmp_path, self.SETTINGS) as writer:
            sealed_at(writer, 10, 20)
            writer.maintain(clocks(at(30)), at(10))
            writer.maintain(clocks(at(60), leap=DAY * SECOND), at(10))
            assert writer.oldest == at(1)
            writer.maintain(clocks(at(125), leap=DAY * SECOND), at(10))
            assert writer.oldest == at(20), "and the time goes on"

    def test_nor_one_that_leaps_while_no_process_looks(self, tmp_path: Path) -> None:
        with started(tmp_path, self.SETTINGS) as writer:
            sealed_at(writer, 10, 20)
            writer.maintain(clocks(at(30)), at(10))
        with LogWriter(tmp_path, self.SETTINGS) as again:
            again.maintain(clocks(at(60), leap=DAY * SECOND), at(10))
            assert again.oldest == at(1)
            again.maintain(clocks(at(125), leap=DAY * SECOND), at(10))
            assert again.oldest == at(20)

    def test_a_leap_back_ages_no_longer(self, tmp_path: Path) -> None:
        with started(tmp_path, self.SETTINGS) as writer:
            sealed_at(writer, 10, 20)
            writer.maintain(clocks(at(30)), at(10))
            writer.maintain(clocks(at(125), leap=-DAY * SECOND), at(10))
            assert writer.oldest == at(20)

    def test_the_clock_of_a_source_that_leaps(self, tmp_path: Path) -> None:
        """What came before the leap is as old as it is, whatever the rows after it say."""
        with started(tmp_path, self.SETTINGS) as writer:
            sealed_at(writer, 10, 20)
            writer.maintain(clocks(at(30)), at(10))
            sealed_at(writer, DAY, DAY + 10)
            writer.maintain(clocks(at(60)), at(10))
            assert writer.oldest == at(1)
            writer.maintain(clocks(at(125)), at(DAY))
            assert writer.oldest == at(20)
            # Sealed between 30 and 60.
            writer.maintain(clocks(at(165)), at(DAY))
            assert writer.oldest == at(DAY + 10)

    def test_the_clock_of_a_source_that_is_behind(self, tmp_path: Path) -> None:
        """Its rows look a day old when they come."""
        with started(tmp_path, self.SETTINGS) as writer:
            writer.maintain(clocks(at(DAY)), at(1))
            sealed_at(writer, 10, 20)
            writer.maintain(clocks(at(DAY + 30)), at(10))
            assert writer.oldest == at(1)
            writer.maintain(clocks(at(DAY + 125)), at(10))
            assert writer.oldest == at(20)

    def test_over_a_start_of_the_machine_the_wall_clock_counts(self, tmp_path: Path) -> None:
        with started(tmp_path, self.SETTINGS) as writer:
            sealed_at(writer, 10, 20)
            writer.maintain(clocks(at(30)), at(10))
        with LogWriter(tmp_path, self.SETTINGS) as again:
            again.maintain(clocks(at(115), boot="second"), at(10))
            assert again.oldest == at(10)

    def test_the_time_outlives_a_crash_of_a_log_where_nothing_happens(self, tmp_path: Path) -> None:
        """Its ledger is written though no journal comes or goes."""
        writer = started(tmp_path, self.SETTINGS)
        writer.maintain(clocks(at(30)))
        drop_process(writer)
        found = read_ledger(tmp_path)
        assert found is not None and found.time is not None and found.time.at == at(30).wall
        with LogWriter(tmp_path, self.SETTINGS) as again:
            again.maintain(clocks(at(60)))
            assert read_ledger(tmp_path) == found, "it is not written at every look"
            again.maintain(clocks(at(630)))
            later = read_ledger(tmp_path)
            assert later is not None and later.time is not None and later.time.at == at(630).wall


def test_a_journal_is_closed_by_age(tmp_path: Path) -> None:
    with started(tmp_path, LogSettings(roll_age=60.0)) as writer:
        put(writer, 10, "a")
        assert not writer.maintain(clocks(at(100))).rolled
        assert not writer.maintain(clocks(at(159))).rolled
        assert writer.maintain(clocks(at(160))).rolled
        # Nothing but heartbeats: nothing to close.
        writer.append(flush([], at(170), 170))
        assert not writer.maintain(clocks(at(1000))).rolled


def test_upkeep_in_another_thread(tmp_path: Path) -> None:
    """Appends go on while journals are merged and dropped; nobody loses or repeats a row."""
    settings = LogSettings(gc_ttl=1e6, roll_frames=3, merge_fan=2, grace=0.0)
    failures: list[BaseException] = []
    done = threading.Event()

    def upkeep() -> None:
        try:
            while not done.is_set():
                writer.maintain(clocks(at(10_000)), at(1))
        except BaseException as error:
            failures.append(error)

    with started(tmp_path, settings) as writer, LogReader(tmp_path) as reader:
        thread = threading.Thread(target=upkeep)
        thread.start()
        try:
            seen: list[int] = []
            progress = at(1)
            for second in range(2, 122):
                put(writer, second, "a", "b")
                reader.refresh()
                got = reader.slice({A.table: progress}, Timestamp.MAX, *ALL)
                seen += [s for p in got.pieces for s in keys(p.load())]
                progress = got.upto
        finally:
            done.set()
            thread.join()
    assert not failures
    expected = [s * 10_000 for s in range(2, 122)]
    assert seen == expected
    assert seqs(tmp_path, at(1)) == expected
