"""Reading the change log: visibility, slices and their limits, pieces, positions."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.events import Ddl, Event, Flush, SchemaChange, Truncate
from changefeed.core.schema import TableSchema
from changefeed.log import LogReader, LogSettings, LogWriter
from tests.helpers.log_samples import Row, batch, clocks, flush, keys, narrow, position, wide

A, B = narrow("a"), wide("b", texts=2)
ALL = (10**9, 10**12)


def at(wall: int, logical: int = 0) -> Timestamp:
    """A timestamp."""
    return Timestamp(wall, logical)


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[LogWriter]:
    """A new log that begins at 1000; 50 rows make a segment, 20 a row group."""
    with LogWriter(tmp_path, LogSettings(segment_rows=50, group_rows=20, grace=0.0)) as made:
        made.append(flush([], at(1000), 1))
        yield made


@pytest.fixture
def reader(writer: LogWriter, tmp_path: Path) -> Iterator[LogReader]:
    """A reader of it."""
    with LogReader(tmp_path) as made:
        yield made


def rows(schema: TableSchema, first: int, count: int, step: int = 1) -> list[Row]:
    """One row a timestamp from ``first`` on; the sequence number is the wall time."""
    return [Row(at(first + i * step), first + i * step) for i in range(count)]


def put(writer: LogWriter, wall: int, *schemas: TableSchema) -> None:
    """One row at ``wall`` in each table."""
    events = [batch(s, [Row(at(wall), wall * 10 + i)]) for i, s in enumerate(schemas)]
    writer.append(flush(events, at(wall), wall, [(at(wall), wall)]))


def seqs(reader: LogReader, after: int = 1000, schema: TableSchema = A) -> list[int]:
    """Sequence numbers of all rows."""
    got = reader.slice({schema.table: at(after)}, Timestamp.MAX, *ALL)
    return [s for p in got.pieces for s in keys(p.load())]


class TestRefresh:
    def test_sees_nothing_new_before_it_looks(self, writer: LogWriter, reader: LogReader) -> None:
        put(writer, 2000, A)
        assert reader.frontier is not None and reader.frontier.at == at(1000)
        assert seqs(reader) == []
        found = reader.refresh()
        assert found is not None and found.at == at(2000)
        assert seqs(reader) == [20000]

    def test_is_one_small_read_when_nothing_happened(
        self, writer: LogWriter, reader: LogReader, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        put(writer, 2000, A)
        reader.refresh()
        reads: list[int] = []
        pread = os.pread

        def counted(fd: int, length: int, offset: int) -> bytes:
            reads.append(length)
            return pread(fd, length, offset)

        monkeypatch.setattr(os, "pread", counted)
        monkeypatch.setattr(os, "open", lambda *_: pytest.fail("a file was opened"))
        reader.refresh()
        assert reads == [36]

    def test_reads_only_what_is_new(
        self, writer: LogWriter, reader: LogReader, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for wall in range(2000, 2100):
            put(writer, wall, A)
        reader.refresh()
        put(writer, 3000, A)
        read: list[int] = []
        pread = os.pread

        def counted(fd: int, length: int, offset: int) -> bytes:
            data = pread(fd, length, offset)
            read.append(len(data))
            return data

        monkeypatch.setattr(os, "pread", counted)
        reader.refresh()
        assert sum(read) < 3_000

    def test_a_reader_may_be_there_first(self, tmp_path: Path) -> None:
        with LogReader(tmp_path / "log") as reader:
            assert reader.refresh() is None
            with LogWriter(tmp_path / "log") as writer:
                put(writer, 2000, A)
                assert reader.refresh() is not None
                assert reader.oldest == Timestamp(1999, 0)

    def test_an_idle_log_needs_no_cpu(self, writer: LogWriter, reader: LogReader) -> None:
        """10 us would be 1 % of a core at a thousand looks a second."""
        reader.refresh()
        before = time.process_time()
        for _ in range(2_000):
            reader.refresh()
        assert (time.process_time() - before) / 2_000 < 100e-6


class TestSlice:
    def test_own_bound_of_each_table(self, writer: LogWriter, reader: LogReader) -> None:
        for wall in (2000, 2001, 2002):
            put(writer, wall, A, B)
        reader.refresh()
        got = reader.slice({A.table: at(2001), B.table: at(1000)}, at(2001), *ALL)
        assert got.upto == at(2001)
        assert {p.schema.table: keys(p.load()) for p in got.pieces} == {
            B.table: [20001, 20011],
        }

    def test_only_the_tables_asked_for(self, writer: LogWriter, reader: LogReader) -> None:
        put(writer, 2000, A, B)
        reader.refresh()
        got = reader.slice({B.table: at(1000)}, Timestamp.MAX, *ALL)
        assert [p.schema.table for p in got.pieces] == [B.table]
        assert reader.slice({}, Timestamp.MAX, *ALL).upto == at(2000)

    def test_the_frontier_is_reached_without_rows(
        self, writer: LogWriter, reader: LogReader
    ) -> None:
        put(writer, 2000, B)
        writer.append(flush([], at(9000), 9000))
        reader.refresh()
        got = reader.slice({A.table: at(1000)}, Timestamp.MAX, *ALL)
        assert (got.upto, got.events) == (at(9000), ())

    def test_a_bound_above_the_frontier(self, writer: LogWriter, reader: LogReader) -> None:
        put(writer, 2000, A)
        reader.refresh()
        got = reader.slice({A.table: at(5000)}, Timestamp.MAX, *ALL)
        assert (got.upto, got.events) == (at(5000), ())

    def test_a_goal_below_the_bound(self, writer: LogWriter, reader: LogReader) -> None:
        """Progress never goes back."""
        writer.append(flush([], at(9000), 9000))
        reader.refresh()
        assert reader.slice({A.table: at(5000)}, at(4000), *ALL).upto == at(5000)

    def test_small_flushes_of_a_table_become_one_piece(
        self, writer: LogWriter, reader: LogReader
    ) -> None:
        for wall in range(2000, 2030):
            put(writer, wall, A, B)
        reader.refresh()
        got = reader.slice({A.table: at(1000), B.table: at(1000)}, Timestamp.MAX, *ALL)
        assert [p.rows for p in got.pieces] == [30, 30]
        table = got.pieces[0].load()
        assert table.column("a0").num_chunks == 1
        assert table.schema == A.log_schema()

    @pytest.mark.parametrize("merged", [False, True])
    def test_a_row_limit_stops_between_transactions(
        self, writer: LogWriter, reader: LogReader, merged: bool
    ) -> None:
        for wall in range(2000, 2040, 4):
            events = [
                batch(A, [Row(at(wall + i // 5), wall * 10 + i) for i in range(20)]),
                batch(B, [Row(at(wall + 1 + i // 5), wall * 10 + 20 + i) for i in range(10)]),
            ]
            writer.append(flush(events, at(wall + 3), wall))
        if merged:
            writer.roll()
            writer.maintain(clocks(at(3000)))
        reader.refresh()
        progress, taken = at(1000), 0
        while progress < at(2039):
            got = reader.slice({A.table: progress, B.table: progress}, Timestamp.MAX, 37, 10**9)
            assert 0 < got.rows <= 37
            for piece in got.pieces:
                loaded = piece.load()
                assert piece.first > progress
                assert piece.last <= got.upto
                assert len(loaded) == piece.rows
            taken += got.rows
            progress = got.upto
        assert taken == 300

    def test_rows_of_a_table_not_looked_at_yet_count(
        self, writer: LogWriter, reader: LogReader
    ) -> None:
        """The cut must not pass the first row of a run whose timestamps were not read."""
        events = [batch(A, rows(A, 2000, 45)), batch(B, rows(B, 2025, 45))]
        writer.append(flush(events, at(2100), 2))
        reader.refresh()
        got = reader.slice({A.table: at(1000), B.table: at(1000)}, Timestamp.MAX, 30, 10**9)
        assert got.upto == at(2024)
        assert got.rows == 25

    def test_a_byte_limit(self, writer: LogWriter, reader: LogReader) -> None:
        writer.append(flush([batch(A, rows(A, 2000, 40))], at(2100), 2))
        reader.refresh()
        whole = reader.slice({A.table: at(1000)}, Timestamp.MAX, *ALL)
        half = reader.slice({A.table: at(1000)}, Timestamp.MAX, 10**9, whole.bytes // 2)
        assert 15 <= half.rows <= 20
        assert half.upto == at(2000 + half.rows - 1)

    def test_a_huge_transaction_comes_alone_in_bounded_pieces(
        self, writer: LogWriter, reader: LogReader
    ) -> None:
        put(writer, 2000, A)
        for part in range(3):
            big = [Row(at(3000), 100_000 + part * 100 + i) for i in range(70)]
            writer.append(Flush([batch(A, big)], None))
        writer.append(flush([batch(B, [Row(at(3000), 200_000)])], at(3000), 3000))
        put(writer, 4000, A)
        reader.refresh()
        bounds = {A.table: at(1000), B.table: at(1000)}
        first = reader.slice(bounds, Timestamp.MAX, 50, 10**9)
        assert (first.rows, first.upto) == (1, at(2000))
        second = reader.slice(dict.fromkeys(bounds, first.upto), Timestamp.MAX, 50, 10**9)
        assert (second.rows, second.upto) == (211, at(3000))
        assert max(p.rows for p in second.pieces) <= 20
        third = reader.slice(dict.fromkeys(bounds, second.upto), Timestamp.MAX, 50, 10**9)
        assert (third.rows, third.upto) == (1, at(4000))

    def test_below_the_oldest_is_an_error(self, reader: LogReader) -> None:
        with pytest.raises(ChangefeedError) as caught:
            reader.slice({A.table: at(999)}, Timestamp.MAX, *ALL)
        assert caught.value.code.number == "CF3002"
        assert "1000.0000000000" in caught.value.detail

    def test_a_caught_up_feed_is_quick(self, writer: LogWriter, reader: LogReader) -> None:
        for wall in range(2000, 2400):
            put(writer, wall, A, B)
        reader.refresh()
        best = 1.0
        for _ in range(50):
            before = time.perf_counter()
            got = reader.slice({A.table: at(2394)}, Timestamp.MAX, 10_000, 10**8)
            got.pieces[0].load()
            best = min(best, time.perf_counter() - before)
        assert got.rows == 5
        assert best < 2e-3


class TestPieces:
    def test_a_segment_can_be_read_as_it_is(self, writer: LogWriter, reader: LogReader) -> None:
        writer.append(flush([batch(A, rows(A, 2000, 100))], at(2099), 2))
        reader.refresh()
        got = reader.slice({A.table: at(2009)}, at(2089), *ALL)
        assert [p.rows for p in got.pieces] == [10, 20, 20, 20, 10]
        assert [p.whole for p in got.pieces] == [False, True, True, True, False]
        assert [p.row_group for p in got.pieces] == [0, 1, 2, 3, 4]
        (path,) = {p.path for p in got.pieces}
        first, last = got.pieces[0].first_seq, got.pieces[-1].last_seq
        table = pq.read_table(path, filters=[("seq", ">=", first), ("seq", "<=", last)])
        assert keys(table) == list(range(2010, 2090))
        assert table.schema.names == A.log_schema().names

    def test_segments_carry_statistics_for_filters(self, writer: LogWriter, tmp_path: Path) -> None:
        writer.append(flush([batch(A, rows(A, 2000, 60))], at(2099), 2))
        (path,) = tmp_path.glob("*.parquet")
        group = pq.ParquetFile(path).metadata.row_group(1)
        columns = {group.column(i).path_in_schema: group.column(i) for i in range(12)}
        assert columns["seq"].statistics.min == 2020
        assert columns["a1"].compression == "ZSTD"

    @pytest.mark.parametrize(
        ("note", "clean"),
        [
            ("plain Äöü 😀 \x7f", True),
            ("", True),
            (None, True),
            ('"', False),
            ("a\\b", False),
            ("tab\t", False),
            ("\x00", False),
            ("x" * 9_000, True),
            ("x" * 9_000 + "\n", False),
        ],
    )
    def test_clean_columns(
        self, writer: LogWriter, reader: LogReader, note: str | None, clean: bool
    ) -> None:
        events = [
            batch(A, [Row(at(2000), 1, "x"), Row(at(2000), 2, note)]),
            batch(B, [Row(at(2000), 3, note)]),
        ]
        writer.append(flush(events, at(2000), 2))
        reader.refresh()
        got = reader.slice({A.table: at(1000), B.table: at(1000)}, Timestamp.MAX, *ALL)
        of_a, of_b = (p.clean for p in got.pieces)
        assert of_a == (frozenset({"a1"}) if clean else frozenset())
        # b1 and a1 of table b are raw JSON: never asked about.
        assert of_b == frozenset({"b2", "b3"} | ({"a2", "a3"} if clean else set()))

    def test_slices_of_larger_batches_are_measured_alone(
        self, writer: LogWriter, reader: LogReader
    ) -> None:
        """A batch may be a window on a larger one, with other people's text around it."""
        whole = batch(A, [Row(at(2000), 1, '"'), Row(at(2000), 2, "ok"), Row(at(2000), 3, '"')])
        part = type(whole)(A, whole.rows.slice(1, 1))
        writer.append(flush([part], at(2000), 2))
        reader.refresh()
        (piece,) = reader.slice({A.table: at(1000)}, Timestamp.MAX, *ALL).pieces
        assert piece.clean == {"a1"}
        assert keys(piece.load()) == [2]

    @pytest.mark.parametrize("last", [True, False])
    def test_superseded(self, writer: LogWriter, reader: LogReader, last: bool) -> None:
        writer.append(flush([batch(A, [Row(at(2000), 1, "x", last)])], at(2000), 2))
        reader.refresh()
        (piece,) = reader.slice({A.table: at(1000)}, Timestamp.MAX, *ALL).pieces
        assert piece.has_superseded is not last

    @pytest.mark.parametrize("count", [1, 60])
    @pytest.mark.parametrize("missing", [None, '["note"]'])
    def test_unsent_values(
        self, writer: LogWriter, reader: LogReader, missing: str | None, count: int
    ) -> None:
        """Inside the journal, and in a segment."""
        many = [Row(at(2000), n, None, missing=missing) for n in range(count)]
        writer.append(flush([batch(A, many)], at(2000), 2))
        reader.refresh()
        pieces = reader.slice({A.table: at(1000)}, Timestamp.MAX, *ALL).pieces
        assert {piece.path is not None for piece in pieces} == {count > 50}
        assert {piece.has_unsent for piece in pieces} == {missing is not None}


class TestMarks:
    @pytest.mark.parametrize("merged", [False, True])
    def test_between_the_rows_of_their_table(
        self, writer: LogWriter, reader: LogReader, merged: bool
    ) -> None:
        new = A.with_version(2)
        events: list[Event] = [
            batch(A, [Row(at(2000), 1)]),
            batch(B, [Row(at(2000), 2)]),
            Truncate(A, at(2001), 3),
            batch(A, [Row(at(2001), 4)]),
            Ddl(A.table, "ALTER", "ALTER TABLE a ..", "00000002", at(2002), 5),
            SchemaChange(A, new, at(2002), 5, rewritten=True, unreadable=True, why="because"),
            batch(new, [Row(at(2002), 5)]),
        ]
        writer.append(flush(events, at(2002), 2))
        put(writer, 3000, new)
        if merged:
            writer.roll()
            writer.maintain(clocks(at(3000)))
        reader.refresh()
        got = reader.slice({A.table: at(1000)}, Timestamp.MAX, *ALL)
        kinds = [type(e).__name__ for e in got.events]
        assert kinds == ["LogPiece", "Truncate", "LogPiece", "Ddl", "SchemaChange", "LogPiece"]
        assert [m.at for m in got.control_events] == [at(2001), at(2002), at(2002)]
        assert got.control_events[1] == events[4]
        change = got.control_events[2]
        assert isinstance(change, SchemaChange)
        assert (change.old.version, change.new.version, change.rewritten) == (1, 2, True)
        assert (change.unreadable, change.moved, change.why) == (True, False, "because")
        assert [p.schema.version for p in got.pieces] == [1, 1, 2]
        assert [p.rows for p in got.pieces] == [1, 1, 2]
        only = reader.slice({A.table: at(2001)}, Timestamp.MAX, *ALL)
        assert [type(e).__name__ for e in only.events] == ["Ddl", "SchemaChange", "LogPiece"]

    @pytest.mark.parametrize("merges", [0, 1, 2])
    def test_a_renamed_table_is_told_under_both_names(self, tmp_path: Path, merges: int) -> None:
        new = narrow("z", version=2)
        with LogWriter(tmp_path, LogSettings(merge_fan=2)) as writer:
            writer.append(flush([], at(1000), 1))
            events: list[Event] = [
                batch(new, [Row(at(2000), 1)]),
                batch(A, [Row(at(2001), 2)]),
                SchemaChange(A, new, at(2002), 3),
                batch(new, [Row(at(2002), 4)]),
            ]
            writer.append(flush(events, at(2002), 2))
            for wall in range(3000, 3000 + merges):
                writer.roll()
                writer.maintain(clocks(at(wall)))
                writer.append(flush([], at(wall), 3))
            assert [j.level for j in writer._ledger.sealed] == [merges][:merges]
        with LogReader(tmp_path) as reader:
            for schema, kinds in ((A, ["LogPiece", "SchemaChange"]), (new, None)):
                got = reader.slice({schema.table: at(1000)}, Timestamp.MAX, *ALL)
                found = [type(e).__name__ for e in got.events]
                assert found == (kinds or ["LogPiece", "SchemaChange", "LogPiece"])
                (mark,) = got.control_events
                assert isinstance(mark, SchemaChange) and mark.new == new
                # To readers of the new name the table has it since then.
                seen = A if schema is A else replace(A, table=new.table)
                assert (mark.old, mark.arrived) == (seen, schema is new)


class TestPositions:
    @pytest.mark.parametrize("merged", [False, True])
    @pytest.mark.parametrize("many", [3, 200])
    def test_timestamp_at(
        self, writer: LogWriter, reader: LogReader, merged: bool, many: int
    ) -> None:
        """Commits at positions 10, 20, ...; few are kept in the header, many in the body."""
        for first in (2000, 5000):
            commits = [(at(first + i), (first + i) * 10) for i in range(many)]
            end = first + many
            events = [batch(A, [Row(t, p) for t, p in commits[:3]])]
            writer.append(flush(events, at(end), end * 10, commits))
            writer.append(flush([], at(end + 100), end * 10 + 500))
        if merged:
            writer.roll()
            writer.maintain(clocks(at(3000)))
        reader.refresh()
        for where, expected in [
            (1, 1000),
            (19_999, 1000),
            (20_000, 2000),
            (20_009, 2000),
            (20_020, 2002),
            (50_010, 5001),
        ]:
            assert reader.timestamp_at(position(where)) == at(expected)
        # A heartbeat between two commits is as good an answer as the commit before it.
        between = reader.timestamp_at(position(49_999))
        assert between is not None and at(2000 + many - 1) <= between < at(5000)

    def test_older_than_the_log(self, reader: LogReader) -> None:
        assert reader.timestamp_at(position(0)) is None

    def test_not_reached_yet(self, reader: LogReader) -> None:
        with pytest.raises(ValueError, match="not reached"):
            reader.timestamp_at(position(2))


def test_a_log_that_was_removed_under_its_reader_is_said(
    writer: LogWriter, reader: LogReader, tmp_path: Path
) -> None:
    put(writer, 1001, A)
    reader.refresh()
    shutil.rmtree(tmp_path)
    with pytest.raises(ChangefeedError, match="removed while it was in use") as caught:
        reader.refresh()
    assert caught.value.code.number == "CF3001"
    with pytest.raises(ChangefeedError, match="folder of the change log") as caught:
        writer.room()
    assert caught.value.code.number == "CF3004"
    with LogWriter(tmp_path, LogSettings()) as again:
        again.append(flush([], at(5000), 1))
        with pytest.raises(ChangefeedError):
            reader.refresh()  # another log is no continuation of this one


def test_damage_that_was_met_once_is_met_again(tmp_path: Path) -> None:
    """HEAD is the same the second time: it was not taken in."""
    with LogWriter(tmp_path, LogSettings(roll_frames=1)) as writer, LogReader(tmp_path) as reader:
        put(writer, 1001, A)
        known = reader.refresh()
        put(writer, 1002, A)
        put(writer, 1003, A)
        (tmp_path / "LEDGER").rename(tmp_path / "elsewhere")
        for _ in range(2):
            with pytest.raises(ChangefeedError, match="there is a HEAD") as caught:
                reader.refresh()
            assert caught.value.code is Code.LOG_DAMAGED and reader.frontier == known
        (tmp_path / "elsewhere").rename(tmp_path / "LEDGER")
        assert reader.refresh() == writer.frontier
