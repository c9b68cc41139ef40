"""Writing the change log: durability, order, budgets, recovery, damage."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path

import pytest

from changefeed.core import faults
from changefeed.core.clock import Timestamp
from changefeed.core.durable import UNFINISHED, read_durable, replace_durably
from changefeed.core.errors import ChangefeedError
from changefeed.core.events import Commits, Flush, Frontier
from changefeed.log import LogReader, LogSettings, LogWriter
from changefeed.log.journal import FIRST_FRAME, journal_name
from changefeed.log.ledger import HEAD_NAME, LEDGER_NAME, LOCK_NAME, Head, read_ledger
from tests.helpers.log_samples import (
    Row,
    batch,
    clocks,
    drop_process,
    flush,
    keys,
    narrow,
    position,
    wide,
)

A, B = narrow("a"), wide("b")
SECOND = 10**9


def at(wall: int, logical: int = 0) -> Timestamp:
    """A timestamp."""
    return Timestamp(wall, logical)


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[LogWriter]:
    """A new log that begins at 1000."""
    with LogWriter(tmp_path) as made:
        made.append(flush([], at(1000), 1))
        yield made


def rows_of(root: Path, after: int = 1000) -> list[int]:
    """Sequence numbers of all rows of table a."""
    with LogReader(root) as reader:
        got = reader.slice({A.table: at(after)}, Timestamp.MAX, 10**9, 10**12)
        return [seq for piece in got.pieces for seq in keys(piece.load())]


def open_files(root: Path) -> list[str]:
    """The files of a log that this process has open."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        try:
            path = Path(os.readlink(link))
        except FileNotFoundError:
            continue  # the folder of descriptors itself
        if path.is_relative_to(root):
            found.append(path.name)
    return sorted(found)


def test_a_new_log_is_empty(tmp_path: Path) -> None:
    root = tmp_path / "logs" / "shop"
    with LogWriter(root) as log:
        assert log.frontier is None
        assert log.oldest == Timestamp.MAX
    with LogReader(root) as reader:
        assert reader.refresh() is None
        assert reader.slice({A.table: at(5)}, Timestamp.MAX, 10, 10).upto == at(5)


def test_the_frontier_survives_reopening(writer: LogWriter, tmp_path: Path) -> None:
    done = Frontier(at(2000), position(7), 12)
    writer.append(Flush([batch(A, [Row(at(2000), 1)])], done))
    writer.close()
    with LogWriter(tmp_path) as again:
        assert again.frontier == done
        again.append(flush([batch(A, [Row(at(2001), 2)])], at(2001), 8))
    assert rows_of(tmp_path) == [1, 2]


def test_one_append_is_one_sync_of_the_journal(
    writer: LogWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many tables a small flush touches."""
    synced: list[int] = []
    monkeypatch.setattr("changefeed.log.live._sync", synced.append)
    monkeypatch.setattr(os, "fsync", synced.append)
    events = [batch(narrow(f"t{i}"), [Row(at(2000), 1 + i)]) for i in range(40)]
    writer.append(flush(events, at(2000), 2))
    assert len(synced) == 1


def test_a_segment_is_durable_before_the_frame_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its bytes, and its name in the folder."""
    with LogWriter(tmp_path, LogSettings(segment_rows=1)) as writer:
        synced: list[str] = []

        def sync(fd: int) -> None:
            synced.append("folder" if stat.S_ISDIR(os.fstat(fd).st_mode) else "file")

        monkeypatch.setattr(os, "fsync", sync)
        monkeypatch.setattr("changefeed.log.live._sync", lambda fd: synced.append("journal"))
        writer.append(flush([batch(A, [Row(at(2000), 1)])], at(2000), 2))
        assert synced == ["file", "folder", "journal"]


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="the system lists no open files")
def test_what_is_not_needed_any_more_is_closed(writer: LogWriter, tmp_path: Path) -> None:
    open_now = sorted([HEAD_NAME, LOCK_NAME, journal_name(1)])
    assert open_files(tmp_path) == open_now
    with pytest.raises(ChangefeedError):
        LogWriter(tmp_path)
    assert open_files(tmp_path) == open_now
    with faults.armed(f"{faults.Point.LOG_LEDGER_WRITE}:full"), pytest.raises(ChangefeedError):
        writer.roll()
    assert open_files(tmp_path) == open_now
    assert len(list(tmp_path.glob("journal-*"))) == 1
    assert writer.roll()
    assert len(open_files(tmp_path)) == 3
    writer.close()
    assert open_files(tmp_path) == []


def test_a_source_may_move_on_without_time(writer: LogWriter) -> None:
    writer.append(flush([], at(1000), 2))
    assert writer.frontier == Frontier(at(1000), position(2))


@pytest.mark.parametrize("rolled", [False, True])
def test_a_log_that_is_opened_again_knows_how_much_lies_above(
    writer: LogWriter, tmp_path: Path, rolled: bool
) -> None:
    writer.append(flush([batch(A, [Row(at(2000), 1)])], at(2000), 2))
    size = writer.bytes
    assert not rolled or writer.roll()
    writer.close()
    with LogWriter(tmp_path) as again:
        assert again.above(at(0)) == (size if rolled else again.bytes)
        assert again.above(at(2000)) == 0


def test_only_one_process_writes(writer: LogWriter, tmp_path: Path) -> None:
    with pytest.raises(ChangefeedError) as caught:
        LogWriter(tmp_path)
    assert caught.value.code.number == "CF6003"


def test_close_lets_the_next_one_in(writer: LogWriter, tmp_path: Path) -> None:
    writer.close()
    writer.close()
    with pytest.raises(ChangefeedError, match="opened again"):
        writer.append(flush([], at(3000), 9))
    LogWriter(tmp_path).close()


class TestOrder:
    """The caller's mistakes are refused before anything is stored."""

    @pytest.mark.parametrize(
        ("wrong", "message"),
        [
            (flush([batch(A, [Row(at(1000), 1)])], at(2000), 2), "not above the frontier"),
            (flush([batch(A, [Row(at(2001), 1)])], at(2000), 2), "above its frontier"),
            (flush([], at(999), 2), "below"),
            (flush([], at(2000), 0), "below"),
            (flush([batch(A, [Row(at(2), 1), Row(at(1), 2)])], at(2000), 2), "timestamps"),
            (
                flush([batch(A, [Row(at(1500, 2), 1), Row(at(1500, 1), 2)])], at(2000), 2),
                "timestamps",
            ),
            (flush([batch(A, [Row(at(1500), 2), Row(at(1500), 2)])], at(2000), 2), "sequence"),
            (
                flush([batch(A, [Row(at(1500), 5)]), batch(A, [Row(at(1600), 4)])], at(2000), 2),
                "log order",
            ),
            (
                Flush([], Frontier(at(2000), position(2)), Commits(wall=[1500])),
                "differ in length",
            ),
        ],
    )
    def test_refused(self, writer: LogWriter, tmp_path: Path, wrong: Flush, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            writer.append(wrong)
        assert writer.frontier == Frontier(at(1000), position(1))
        writer.append(flush([batch(A, [Row(at(2000), 1)])], at(2000), 2))
        assert rows_of(tmp_path) == [1]

    def test_order_holds_across_the_parts_of_a_transaction(self, writer: LogWriter) -> None:
        writer.append(Flush([batch(A, [Row(at(2000), 5)])], None))
        with pytest.raises(ValueError, match="log order"):
            writer.append(Flush([batch(A, [Row(at(2000), 5)])], None))
        writer.append(Flush([batch(A, [Row(at(2000), 6)])], None))

    def test_a_version_has_one_shape(self, writer: LogWriter) -> None:
        writer.append(flush([batch(A, [Row(at(2000), 1)])], at(2000), 2))
        other = wide("a")
        with pytest.raises(ValueError, match="another shape"):
            writer.append(flush([batch(other, [Row(at(2001), 2)])], at(2001), 3))

    def test_rows_must_fit_their_schema(self, writer: LogWriter) -> None:
        good = batch(B, [Row(at(2000), 1)])
        with pytest.raises(ValueError, match="do not fit"):
            writer.append(flush([type(good)(A, good.rows)], at(2000), 2))


class TestUnfinished:
    """Parts of a large transaction."""

    def test_invisible_until_complete(self, writer: LogWriter, tmp_path: Path) -> None:
        writer.append(Flush([batch(A, [Row(at(2000), 1)])], None))
        writer.append(Flush([batch(A, [Row(at(2000), 2)])], None))
        assert rows_of(tmp_path) == []
        assert writer.frontier == Frontier(at(1000), position(1))
        writer.append(flush([batch(A, [Row(at(2000), 3)])], at(2000), 2))
        assert rows_of(tmp_path) == [1, 2, 3]

    @pytest.mark.parametrize("how", ["killed", "closed", "abandoned"])
    def test_cut_off(self, tmp_path: Path, how: str) -> None:
        """With its segment; then the source sends it again."""
        settings = LogSettings(segment_rows=2)
        writer = LogWriter(tmp_path, settings)
        writer.append(flush([], at(1000), 1))
        size = writer.bytes
        part = Flush([batch(A, [Row(at(2000), 1), Row(at(2000), 2)])], None)
        writer.append(part)
        assert list(tmp_path.glob("segment-*"))
        assert writer.above(at(0)) == size, "a part is nobody's to deliver yet"
        if how == "abandoned":
            writer.abandon()
        else:
            drop_process(writer) if how == "killed" else writer.close()
            writer = LogWriter(tmp_path, settings)
        assert not list(tmp_path.glob("segment-*"))
        assert writer.bytes == size
        writer.append(part)
        writer.append(flush([batch(A, [Row(at(2000), 3)])], at(2000), 2))
        assert rows_of(tmp_path) == [1, 2, 3]
        assert writer.above(at(0)) == writer.bytes
        assert writer.above(at(2000)) == 0
        writer.close()

    def test_the_journal_is_not_rolled_in_the_middle(self, tmp_path: Path) -> None:
        with LogWriter(tmp_path, LogSettings(roll_frames=1)) as writer:
            writer.append(flush([], at(1000), 1))
            writer.append(Flush([batch(A, [Row(at(2000), 1)])], None))
            writer.append(Flush([batch(A, [Row(at(2000), 2)])], None))
            assert not writer.roll()
            assert len(list(tmp_path.glob("journal-*"))) == 2
            writer.append(flush([], at(2000), 2))
            assert writer.roll()
        assert rows_of(tmp_path) == [1, 2]


class TestRoom:
    """Budgets and full disks."""

    def test_the_disk_budget_stops_appends(self, tmp_path: Path) -> None:
        with LogWriter(tmp_path, LogSettings(disk_budget=2_000)) as writer:
            writer.append(flush([], at(1000), 1))
            wall = 1000
            with pytest.raises(ChangefeedError) as caught:
                for wall in range(2000, 2100):
                    writer.append(flush([batch(A, [Row(at(wall), wall)])], at(wall), wall))
            assert caught.value.code.number == "CF3003"
            assert "budget 2000 bytes" in caught.value.detail
            assert writer.room() == 0
            assert rows_of(tmp_path) == list(range(2000, wall))
            # The frontier of a source that is silent may still move.
            writer.append(flush([], at(3000), 3000))

    def test_room_comes_back_when_history_goes(self, tmp_path: Path) -> None:
        with LogWriter(tmp_path, LogSettings(disk_budget=3_000)) as writer:
            writer.append(flush([], at(1000), 1))
            for wall in range(2000, 2100):
                if not writer.room():
                    break
                writer.append(flush([batch(A, [Row(at(wall), wall)])], at(wall), wall))
            assert not writer.room()
            # A feed that has not read it keeps it, though nothing can be appended.
            assert writer.maintain(clocks(at(4000)), keep_from=at(1999)).dropped == 0
            assert not writer.room()
            assert writer.maintain(clocks(at(4000)), keep_from=at(2100)).dropped == 1
            assert writer.room()
            writer.append(flush([batch(A, [Row(at(5000), 5000)])], at(5000), 5000))

    def test_room_is_the_memory_budget_at_most(self, tmp_path: Path) -> None:
        with LogWriter(tmp_path, LogSettings(memory_budget=5_000)) as writer:
            assert writer.room() == 5_000

    def test_the_reserve_of_the_file_system_is_left(self, tmp_path: Path) -> None:
        with LogWriter(tmp_path, LogSettings(disk_reserve=2**62)) as writer:
            assert writer.room() == 0

    def test_a_full_disk_leaves_the_log_as_it_was(self, writer: LogWriter, tmp_path: Path) -> None:
        wanted = flush([batch(A, [Row(at(2000), 1)])], at(2000), 2)
        size = writer.bytes
        for point in (faults.Point.LOG_APPEND_WRITE, faults.Point.LOG_APPEND_WRITTEN):
            with faults.armed(f"{point}:full"), pytest.raises(ChangefeedError) as caught:
                writer.append(wanted)
            assert caught.value.code.number == "CF3003"
            assert f"injected at {point}" in caught.value.detail
            assert writer.bytes == size
        writer.append(wanted)
        assert rows_of(tmp_path) == [1]


class TestDamage:
    """What no crash can leave is an error, not a gap."""

    def _two_frames(self, root: Path) -> tuple[Path, int, int]:
        """Path of the journal, where its second frame begins, where the last one does."""
        writer = LogWriter(root)
        writer.append(flush([], at(1000), 1))
        first = writer._live.tally.end
        writer.append(flush([batch(A, [Row(at(2000), 1)])], at(2000), 2))
        second = writer._live.tally.end
        writer.append(flush([batch(A, [Row(at(3000), 2)])], at(3000), 3))
        writer.close()
        return root / journal_name(1), first, second

    @pytest.mark.parametrize("where", ["sync", "header", "body"])
    def test_a_changed_byte_before_a_whole_frame(self, tmp_path: Path, where: str) -> None:
        path, first, second = self._two_frames(tmp_path)
        data = bytearray(path.read_bytes())
        data[{"sync": first, "header": first + 40, "body": second - 100}[where]] ^= 0x40
        path.write_bytes(data)
        with pytest.raises(ChangefeedError) as caught:
            LogWriter(tmp_path)
        assert caught.value.code.number == "CF3001"
        with pytest.raises(ChangefeedError) as caught:
            rows_of(tmp_path)
        assert caught.value.code.number == "CF3001"

    @pytest.mark.parametrize("name", [LEDGER_NAME, journal_name(1)])
    def test_a_file_is_gone(self, tmp_path: Path, name: str) -> None:
        self._two_frames(tmp_path)
        (tmp_path / name).unlink()
        with pytest.raises(ChangefeedError) as caught:
            LogWriter(tmp_path)
        assert caught.value.code.number == "CF3001"

    def test_an_unfinished_ledger_is_removed(self, tmp_path: Path) -> None:
        self._two_frames(tmp_path)
        (tmp_path / f"{LEDGER_NAME}{UNFINISHED}").write_text("{")
        LogWriter(tmp_path).close()
        assert not list(tmp_path.glob(f"{LEDGER_NAME}.*"))

    @pytest.mark.parametrize("left", [None, FIRST_FRAME])
    def test_a_sealed_journal_is_gone_or_shorter(self, tmp_path: Path, left: int | None) -> None:
        with LogWriter(tmp_path) as writer:
            writer.append(flush([batch(A, [Row(at(2000), 1)])], at(2000), 2))
            writer.roll()
        path = tmp_path / journal_name(1)
        path.unlink() if left is None else os.truncate(path, left)
        with pytest.raises(
            ChangefeedError, match="gone" if left is None else "too short"
        ) as caught:
            LogWriter(tmp_path)
        assert caught.value.code.number == "CF3001"

    def test_a_segment_is_shorter(self, tmp_path: Path) -> None:
        with LogWriter(tmp_path, LogSettings(segment_rows=1)) as writer:
            writer.append(flush([batch(A, [Row(at(2000), 1)])], at(2000), 2))
        (segment,) = tmp_path.glob("segment-*")
        os.truncate(segment, segment.stat().st_size - 1)
        with pytest.raises(ChangefeedError) as caught:
            LogWriter(tmp_path)
        assert caught.value.code.number == "CF3001"

    def test_a_ledger_of_another_format(self, tmp_path: Path) -> None:
        self._two_frames(tmp_path)
        path = tmp_path / LEDGER_NAME
        replace_durably(path, read_durable(path).replace('"format": 2', '"format": 1'))
        with pytest.raises(ChangefeedError, match=r"has format 1, .* reads format 2\n"):
            LogWriter(tmp_path)

    def test_the_lock_is_free_after_a_failed_open(self, tmp_path: Path) -> None:
        self._two_frames(tmp_path)
        text = (tmp_path / LEDGER_NAME).read_text()
        (tmp_path / LEDGER_NAME).write_text("{")
        with pytest.raises(ChangefeedError):
            LogWriter(tmp_path)
        (tmp_path / LEDGER_NAME).write_text(text)
        LogWriter(tmp_path).close()

    def test_a_lost_head_is_written_again(self, tmp_path: Path) -> None:
        """HEAD is not synced: after a power failure it may be empty or old."""
        self._two_frames(tmp_path)
        (tmp_path / HEAD_NAME).write_bytes(b"")
        assert rows_of(tmp_path) == []
        LogWriter(tmp_path).close()
        assert rows_of(tmp_path) == [1, 2]

    def test_the_first_creation_was_cut_short(self, tmp_path: Path) -> None:
        """A journal without frames and no ledger: nothing was ever stored."""
        (tmp_path / journal_name(1)).write_bytes(bytes(FIRST_FRAME))
        with LogWriter(tmp_path) as writer:
            assert writer.frontier is None


def test_rows_that_look_like_a_frame_are_rows(writer: LogWriter, tmp_path: Path) -> None:
    """Recovery that searches for frames must not find one inside somebody's text."""
    sync = writer._live.sync.hex()
    note = (tmp_path / journal_name(1)).read_bytes()[FIRST_FRAME:].hex() + sync
    writer.append(flush([batch(A, [Row(at(2000), 1, note)])], at(2000), 2))
    drop_process(writer)
    LogWriter(tmp_path).close()
    assert rows_of(tmp_path) == [1]


def refuses_all(writer: LogWriter) -> None:
    """Every call says that the log must be opened again."""
    calls: list[Callable[[], object]] = [
        writer.roll,
        writer.abandon,
        lambda: writer.append(flush([], at(3000), 3)),
        lambda: writer.maintain(clocks(at(3000))),
    ]
    for call in calls:
        with pytest.raises(ChangefeedError, match="opened again") as refused:
            call()
        assert refused.value.code.number == "CF3004"


class TestFailedAppend:
    """The disk failed while a flush was being stored: opening the log again finds out."""

    def test_after_it_was_durable(self, writer: LogWriter, tmp_path: Path) -> None:
        with (
            faults.armed(f"{faults.Point.LOG_APPEND_SYNCED}:error"),
            pytest.raises(ChangefeedError) as caught,
        ):
            writer.append(flush([batch(A, [Row(at(2000), 1)])], at(2000), 2))
        assert caught.value.code.number == "CF3004"
        refuses_all(writer)
        writer.close()
        LogWriter(tmp_path).close()
        assert rows_of(tmp_path) == [1]

    def test_and_could_not_be_undone(
        self, writer: LogWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(fd: int, length: int) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        with monkeypatch.context() as patched:
            patched.setattr(os, "ftruncate", fail)
            with (
                faults.armed(f"{faults.Point.LOG_APPEND_WRITTEN}:full"),
                pytest.raises(ChangefeedError) as caught,
            ):
                writer.append(flush([batch(A, [Row(at(2000), 1)])], at(2000), 2))
        assert caught.value.code.number == "CF3004"
        refuses_all(writer)


class TestUpkeep:
    """What maintain does when the disk, or the time, is not as usual."""

    def test_a_journal_is_closed_at_its_age(self, tmp_path: Path) -> None:
        """That of its first event: one without events has no age."""
        with LogWriter(tmp_path, LogSettings(roll_age=100.0)) as writer:
            writer.append(flush([], at(SECOND), 1))
            assert not writer.maintain(clocks(at(900 * SECOND))).rolled
            writer.append(flush([batch(A, [Row(at(2 * SECOND), 1)])], at(2 * SECOND), 2))
            rolled = [writer.maintain(clocks(at(n * SECOND))).rolled for n in (1000, 1099, 1100)]
            assert rolled == [False, False, True]

    @pytest.mark.parametrize(("more", "journals"), [(0, 2), (1, 1)])
    def test_a_journal_is_closed_at_its_size(
        self, writer: LogWriter, tmp_path: Path, more: int, journals: int
    ) -> None:
        writer.settings = LogSettings(roll_bytes=writer.bytes + more)
        writer.append(flush([batch(A, [Row(at(2000), 1)])], at(2000), 2))
        assert len(list(tmp_path.glob("journal-*"))) == journals

    @pytest.mark.parametrize(("less", "merged"), [(0, 2), (1, 0)])
    def test_a_merge_needs_room_for_the_old_files_and_the_new(
        self, writer: LogWriter, tmp_path: Path, less: int, merged: int
    ) -> None:
        for wall in (2000, 3000):
            writer.append(flush([batch(A, [Row(at(wall), wall)])], at(wall), wall))
            writer.roll()
        ledger = read_ledger(tmp_path)
        assert ledger is not None
        room = 2 * sum(sealed.length for sealed in ledger.sealed) - less
        writer.settings = LogSettings(disk_budget=writer.bytes + room)
        assert writer.maintain(clocks(at(4000))).merged == merged

    def test_what_waits_to_be_removed_is_no_history(self, tmp_path: Path) -> None:
        """No history goes for a limit that is met without the files that a merge replaced."""
        with LogWriter(tmp_path, LogSettings(grace=1000.0)) as writer:
            for wall in (2000, 3000):
                writer.append(flush([batch(A, [Row(at(wall), wall)])], at(wall), wall))
                writer.roll()
            full = writer.bytes
            assert writer.maintain(clocks(at(4000))).merged == 2
            assert writer.bytes > full
            writer.settings = LogSettings(grace=1000.0, keep_bytes=full)
            assert writer.maintain(clocks(at(4000))).dropped == 0
            writer.settings = LogSettings(grace=1000.0, keep_bytes=(writer.bytes - full) // 2)
            assert writer.maintain(clocks(at(4000))).dropped == 1
            assert writer.above(at(0)) == 0

    def test_a_removal_that_could_not_be_noted_is_gone_on_with(self, tmp_path: Path) -> None:
        with LogWriter(tmp_path, LogSettings(grace=0.0)) as writer:
            for wall in (2000, 3000):
                writer.append(flush([batch(A, [Row(at(wall), wall)])], at(wall), wall))
                writer.roll()
            with (
                faults.armed(f"{faults.Point.LOG_SWEEP_REMOVED}:full"),
                pytest.raises(ChangefeedError) as caught,
            ):
                writer.maintain(clocks(at(4000)))
            assert caught.value.code.number == "CF3003"
            assert writer.maintain(clocks(at(4000))).removed > 0
            assert writer.bytes == sum(p.stat().st_size for p in tmp_path.glob("journal-*"))
        assert rows_of(tmp_path, after=1999) == [2000, 3000]

    def test_a_ledger_that_a_crash_may_or_may_not_leave_ends_the_writer(
        self, writer: LogWriter, tmp_path: Path
    ) -> None:
        """After the rename nobody knows which one is on the disk: reopening finds out."""
        writer.append(flush([batch(A, [Row(at(2000), 1)])], at(2000), 2))
        with (
            faults.armed(f"{faults.Point.LOG_LEDGER_RENAMED}:error"),
            pytest.raises(ChangefeedError),
        ):
            writer.roll()
        refuses_all(writer)
        writer.close()
        with LogWriter(tmp_path) as again:
            assert again.frontier is not None
            assert again.frontier.at == at(2000)
        assert rows_of(tmp_path) == [1]

    @pytest.mark.parametrize(("fault", "works"), [("full", True), ("error", False)])
    def test_a_full_disk_does_not_keep_history_from_going(
        self, tmp_path: Path, fault: str, works: bool
    ) -> None:
        settings, second = LogSettings(gc_ttl=10, roll_age=5, grace=0), 10**9
        with LogWriter(tmp_path, settings) as writer:
            writer.append(flush([], at(1000), 1))
            writer.append(flush([batch(A, [Row(at(2000), 1)])], at(2000), 2))
            assert writer.roll()
            writer.append(flush([batch(A, [Row(at(3000), 2)])], at(3000), 3))
            assert writer.maintain(clocks(at(second)), keep_from=None).dropped == 0
            with faults.armed(f"{faults.Point.LOG_ROLL_BEGIN}:{fault}"):
                if works:
                    done = writer.maintain(clocks(at(100 * second)), keep_from=None)
                    assert (done.rolled, done.dropped) == (False, 1)
                else:
                    with pytest.raises(ChangefeedError):
                        writer.maintain(clocks(at(100 * second)), keep_from=None)

    def test_the_time_is_saved_where_nothing_else_is(self, tmp_path: Path) -> None:
        """Ten minutes apart, and not sooner: each is a sync of the disk."""
        minute = 60 * 10**9
        with LogWriter(tmp_path) as writer:
            writer.append(flush([], at(1000), 1))
            writer.maintain(clocks(at(minute)), keep_from=None)
            saved = (tmp_path / LEDGER_NAME).read_bytes()
            writer.maintain(clocks(at(11 * minute - 1)), keep_from=None)
            assert (tmp_path / LEDGER_NAME).read_bytes() == saved
            writer.maintain(clocks(at(11 * minute)), keep_from=None)
            assert (tmp_path / LEDGER_NAME).read_bytes() != saved

    def test_readers_find_merged_files_at_once(self, tmp_path: Path) -> None:
        """The old ones go with the next sweep, so the head has to name the new ones before."""
        settings = LogSettings(merge_fan=2, grace=0, roll_frames=1)
        with LogWriter(tmp_path, settings) as writer, LogReader(tmp_path) as reader:
            for wall in range(1000, 1006):
                writer.append(flush([batch(A, [Row(at(wall), wall)])], at(wall), wall))
                writer.roll()
            generation = _generation(tmp_path)
            with (
                faults.armed(f"{faults.Point.LOG_COMPACT_DONE}:error"),
                pytest.raises(ChangefeedError),
            ):
                writer.maintain(clocks(at(2000)), keep_from=at(999))
            assert _generation(tmp_path) > generation
            reader.refresh()
            got = reader.slice({A.table: at(1000)}, Timestamp.MAX, 10**9, 10**12)
            assert [s for p in got.pieces for s in keys(p.load())] == list(range(1001, 1006))

    def test_what_a_full_log_frees_lets_appends_go_on_for_a_while(self, tmp_path: Path) -> None:
        """A tenth of what is used, and not all history."""
        settings = LogSettings(disk_budget=31_000, roll_bytes=500)
        with LogWriter(tmp_path, settings) as writer:
            wall = 1000
            while writer.room():
                writer.append(flush([batch(A, [Row(at(wall), wall)])], at(wall), wall))
                wall += 1
            writer.roll()
            used, ledger = writer.bytes, read_ledger(tmp_path)
            assert ledger is not None
            freed = list(accumulate(sealed.bytes for sealed in ledger.sealed))
            done = writer.maintain(clocks(at(wall)), keep_from=at(wall))
            assert done.dropped == 1 + sum(size < used // 10 for size in freed)

    def test_closing_cuts_off_what_is_not_complete(self, tmp_path: Path) -> None:
        writer = LogWriter(tmp_path)
        writer.append(flush([], at(1000), 1))
        journal = tmp_path / journal_name(1)
        size = journal.stat().st_size
        writer.append(Flush([batch(A, [Row(at(2000), 1)])], None))
        assert journal.stat().st_size > size
        writer.close()
        assert journal.stat().st_size == size


def _generation(root: Path) -> int:
    """That of the head, which is what readers look at."""
    head = Head.from_bytes((root / HEAD_NAME).read_bytes())
    assert head is not None
    return head.generation
