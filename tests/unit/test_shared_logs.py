"""A shared log: what belongs to it comes along, what belongs to nobody goes; who may read it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from changefeed.capture.process import Capture, Notice
from changefeed.catalog import Catalog, SourceLease
from changefeed.core import elapsed, faults
from changefeed.core.clock import ManualClock, Timestamp
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.events import Flush
from changefeed.core.state import StateLayout
from changefeed.core.timings import Timings
from changefeed.log import LogReader, LogSettings, LogWriter, copies, segment
from changefeed.log import writer as writer_module
from changefeed.log.follower import LogFollower
from changefeed.log.journal import journal_name
from changefeed.log.objects import ObjectStore
from changefeed.log.shared import ORPHAN_AGE
from changefeed.log.writer import lock_log
from changefeed.shared_logs import (
    FollowedLogs,
    SharedSource,
    SourceManifest,
    is_elsewhere,
    readable_log,
    remove_shared_log,
)
from changefeed.stored_files import bring_logs_home
from tests.helpers.log_samples import SOURCE, Row, batch, clocks, drop_process, flush, keys, narrow
from tests.helpers.waiting import until

A = narrow("a")


class Shared:
    """A shared log and its hosts, one folder each."""

    def __init__(self, folder: Path, catalog: Catalog) -> None:
        self.folder = folder
        self.catalog = catalog
        self.store = ObjectStore(str(folder / "store"))

    def take(self, host: str) -> tuple[SourceLease, StateLayout]:
        """The host has the source now."""
        lease = self.catalog.acquire_source(SOURCE, host, -1.0)
        assert lease is not None
        layout = StateLayout(self.folder / host)
        layout.beside_log(SOURCE).mkdir(parents=True, exist_ok=True)
        return lease, layout

    def open(self, host: str, settings: LogSettings | None = None) -> LogWriter:
        """The log as a host opens it that takes the source."""
        lease, layout = self.take(host)
        source = SharedSource(self.catalog, lease, self.store.shown, layout)
        return LogWriter(layout.log(SOURCE), settings, source.log())

    def rows(self, host: str) -> list[int]:
        """The rows that readers see there."""
        with LogReader(StateLayout(self.folder / host).log(SOURCE)) as reader:
            found = reader.slice({A.table: Timestamp(1_000)}, Timestamp.MAX, 10**9, 10**12)
            return [seq for piece in found.pieces for seq in keys(piece.load())]

    @property
    def objects(self) -> set[str]:
        """What is in the store."""
        return {name for name, _ in self.store.names("")}


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Shared]:
    with closing(Catalog.open(tmp_path / "state")) as catalog:
        catalog.set_log_place(str(tmp_path / "store"))
        yield Shared(tmp_path, catalog)


def test_a_source_that_no_node_has_captured_has_no_log_elsewhere(tmp_path: Path) -> None:
    """Statements came before the first start of a node, which is one with --log."""
    with closing(Catalog.open(tmp_path / "state")) as catalog:
        for source in ("stated", "sent", "read"):
            catalog.save_source_state(source, memo={"slot": source})
        catalog.set_captured("sent", {A.table: Timestamp(1)})
        catalog.save_source_state("read", frontier=Timestamp(1))
        catalog.set_log_place(str(tmp_path / "store"))
        assert catalog.unmoved_logs() == {"sent", "read"}


def append(writer: LogWriter, wall: int, seq: int) -> None:
    """One row."""
    at = Timestamp(wall)
    writer.append(flush([batch(A, [Row(at, seq)])], at, wall))


def test_what_a_source_keeps_beside_its_log_comes_along(shared: Shared) -> None:
    writer = shared.open("one")
    writer.append(flush([], Timestamp(1_000), 1_000))
    beside = StateLayout(shared.folder / "one").beside_log(SOURCE)
    (beside / "prepared").write_text("a transaction")
    (beside / "gone").write_text("of a moment")
    (beside / "half.new").write_text("not whole")
    append(writer, 1_001, 1)
    (beside / "gone").unlink()
    append(writer, 1_002, 2)
    drop_process(writer)
    other = StateLayout(shared.folder / "two").beside_log(SOURCE)
    other.mkdir(parents=True)
    (other / "old").write_text("of an earlier time on this host")
    with shared.open("two"):
        assert [path.name for path in other.iterdir()] == ["prepared"]
        assert (other / "prepared").read_text() == "a transaction"
        assert shared.rows("two") == [1, 2]


def test_what_is_a_copy_is_not_synced(shared: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for the store already, and proves nothing after a power failure."""
    synced: list[Path] = []
    monkeypatch.setattr(segment, "sync_path", synced.append)
    monkeypatch.setattr(writer_module, "sync_path", synced.append)
    with shared.open("one", LogSettings(segment_rows=1)) as writer:
        writer.append(flush([], Timestamp(1_000), 1_000))
        append(writer, 1_001, 1)
        assert shared.rows("one") == [1] and synced == []


def test_a_log_that_was_given_up_is_not_taken_up_again(shared: Shared) -> None:
    """Its copy on a host is no log of that host alone."""
    writer = shared.open("one", LogSettings(segment_rows=1))
    writer.append(flush([], Timestamp(1_000), 1_000))
    append(writer, 1_001, 1)
    drop_process(writer)
    assert len(shared.objects) == 1
    lease, _ = shared.take("two")
    remove_shared_log(shared.catalog, SOURCE, lease)
    assert not shared.objects
    with shared.open("one") as again:
        assert again.frontier is None
        again.append(flush([], Timestamp(1_000), 1_000))
        append(again, 2_000, 7)
        assert shared.rows("one") == [7]


def test_a_log_of_one_host_becomes_a_shared_one(shared: Shared) -> None:
    """Segments, sealed journals and what is appended later."""
    layout = StateLayout(shared.folder / "one")
    with LogWriter(layout.log(SOURCE), LogSettings(segment_rows=1)) as alone:
        alone.append(flush([], Timestamp(1_000), 1_000))
        append(alone, 1_001, 1)
        alone.roll()
        append(alone, 1_002, 2)
    writer = shared.open("one")
    append(writer, 1_003, 3)
    drop_process(writer)
    with shared.open("two"):
        assert shared.rows("two") == [1, 2, 3]


def test_only_old_objects_that_no_row_names_are_swept(shared: Shared) -> None:
    with shared.open("one", LogSettings(segment_rows=1)) as writer:
        writer.append(flush([], Timestamp(1_000), 1_000))
        append(writer, 1_001, 1)
        (named,) = shared.objects
        folder = named.rpartition("/")[0]
        for name in ("young", "old"):
            shared.store.put(f"{folder}/{name}", b"of a crash")
        for name in (named, f"{folder}/old"):
            os.utime(shared.folder / "store" / name, ns=(1, 1))
        writer.maintain(clocks(Timestamp(ORPHAN_AGE + 10**15)))
        assert shared.objects == {named, f"{folder}/young"}


def test_where_a_log_is_read(shared: Shared) -> None:
    """In the directory of the host that has the source; elsewhere in one that follows it."""
    with shared.open("one") as writer:
        writer.append(flush([], Timestamp(1_000), 1_000))
        append(writer, 1_001, 1)
    assert is_elsewhere(shared.catalog, SOURCE)
    with readable_log(shared.catalog, SOURCE) as folder, LogReader(folder) as reader:
        found = reader.slice({A.table: Timestamp(1_000)}, Timestamp.MAX, 10, 10**9)
        assert [keys(piece.load()) for piece in found.pieces] == [[1]]
    assert not folder.exists()
    shared.catalog.register_node("n1", 1, "alpha boot space")
    lease = shared.catalog.acquire_source(SOURCE, "n1", 60.0)
    assert lease is not None
    layout = StateLayout(Path(shared.catalog.directory))
    with LogWriter(layout.log(SOURCE)):
        # A copy of the time before, which no longer grows.
        assert is_elsewhere(shared.catalog, SOURCE)
        shared.catalog.register_node("n1", os.getpid())
        with readable_log(shared.catalog, SOURCE) as folder:
            assert folder == layout.log(SOURCE)


def test_a_transaction_that_is_read_again_takes_the_names_of_its_files_again(
    shared: Shared,
) -> None:
    """What was registered of its first reading gives way, also after another start."""
    settings = LogSettings(segment_rows=1)
    writer = shared.open("one", settings)
    writer.append(flush([], Timestamp(1_000), 1_000))
    for _ in range(2):
        writer.append(flush([batch(A, [Row(Timestamp(1_001), 1)])], None))
        writer.abandon()
    writer.append(flush([batch(A, [Row(Timestamp(1_001), 2)])], None))
    drop_process(writer)
    with shared.open("two", settings) as again:
        append(again, 1_002, 3)
        assert shared.rows("two") == [3]
        again.roll()
    with shared.open("one", settings):
        assert shared.rows("one") == [3]


# -- a backlog ----------------------------------------------------------------------------


class Backlog:
    """A stream of large flushes, and a small one at the end."""

    def __init__(self, sent: list[str]) -> None:
        self._sent = sent
        self.closed = threading.Event()

    def __iter__(self) -> Iterator[Flush]:
        for seq in range(1, 5):
            at = Timestamp(1_000 + seq)
            self._sent.append(f"read {at.wall}")
            count = 9 if seq < 4 else 1
            rows = [Row(at, 10 * seq + i) for i in range(count)]
            yield flush([batch(A, rows)], at, at.wall)

    def acknowledge(self, position: str) -> None:
        self._sent.append(f"acknowledged {int(position, 16)}")

    def hasten(self) -> None:
        """Nothing to send."""

    def close(self) -> None:
        self.closed.set()


def test_uploads_of_a_backlog_overlap_and_are_acknowledged_in_order(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next flush is read while others are on their way; what is acknowledged is durable; a
    store that fails is tried again, and nobody has to send a flush again."""
    said: list[str] = []
    go = threading.Event()
    put, failures = ObjectStore.put, iter([True, False, True])

    def slow(store: ObjectStore, name: str, data: bytes | Path) -> None:
        assert go.wait(30)
        if next(failures, False):
            raise ChangefeedError(Code.LOG_STORE_UNREACHABLE, "a fault of the test")
        put(store, name, data)

    with shared.open("one", LogSettings(segment_rows=5)) as writer:
        writer.append(flush([], Timestamp(1_000), 1_000))
        monkeypatch.setattr(ObjectStore, "put", slow)
        notices: list[Notice] = []
        stream = Backlog(said)
        capture = Capture(
            stream,
            writer,
            notices.append,
            keep_from=lambda: None,
            timings=Timings(stall=0.001),
        )
        running = threading.Thread(target=capture.run)
        running.start()
        until(lambda: "read 1003" in said, "two are on their way")
        assert said == ["read 1001", "read 1002", "read 1003"]
        assert writer.frontier is not None and writer.frontier.at == Timestamp(1_000)
        assert shared.rows("one") == []
        go.set()
        running.join(30)
        assert not running.is_alive()
        done = [text for text in said if text.startswith("ack")]
        assert done == [f"acknowledged {wall}" for wall in range(1_001, 1_005)]
        assert any(notice.kind == "stalled" for notice in notices)
        expected = [10 * seq + i for seq in range(1, 5) for i in range(9 if seq < 4 else 1)]
        assert shared.rows("one") == expected
    with shared.open("two"):
        assert shared.rows("two") == expected


def test_capture_ends_when_what_is_on_its_way_cannot_be_registered(shared: Shared) -> None:
    """Another node has the source: nothing is acknowledged."""
    said: list[str] = []
    with shared.open("one", LogSettings(segment_rows=5)) as writer:
        writer.append(flush([], Timestamp(1_000), 1_000))
        shared.take("two")
        capture = Capture(Backlog(said), writer, lambda _: None, keep_from=lambda: None)
        with pytest.raises(ChangefeedError) as failed:
            capture.run()
        assert failed.value.code in (Code.STATE_HELD_BY_ANOTHER_NODE, Code.LOG_NOT_WRITABLE)
        assert not [text for text in said if text.startswith("ack")]


# -- objects are fetched when they are read -----------------------------------------------


@pytest.fixture
def taken_over(shared: Shared) -> Iterator[Shared]:
    """A log of five flushes in segments, of which the host "two" has just become the owner."""
    settings = LogSettings(segment_rows=1, segment_keep=1, roll_frames=2)
    writer = shared.open("one", settings)
    writer.append(flush([], Timestamp(1_000), 1_000))
    for seq in range(1, 6):
        append(writer, 1_000 + seq, seq)
    writer.maintain(clocks(Timestamp(2_000)))
    drop_process(writer)
    with shared.open("two"):
        yield shared


def fetched(shared: Shared, host: str = "two") -> set[str]:
    """The segments that a host has."""
    return {path.name for path in StateLayout(shared.folder / host).log(SOURCE).glob("segment-*")}


def test_a_takeover_copies_nothing_that_is_an_object(taken_over: Shared) -> None:
    assert fetched(taken_over) == set()
    with LogReader(StateLayout(taken_over.folder / "two").log(SOURCE)) as reader:
        newest = reader.slice({A.table: Timestamp(1_004)}, Timestamp.MAX, 10, 10**9)
        assert [keys(piece.load()) for piece in newest.pieces] == [[5]]
    assert len(fetched(taken_over)) == 1
    assert taken_over.rows("two") == [1, 2, 3, 4, 5]
    assert len(fetched(taken_over)) == 5


def test_a_small_cache_keeps_what_came_last_and_fetches_the_rest(shared: Shared) -> None:
    settings = LogSettings(segment_rows=1, segment_keep=1, roll_frames=2, copy_budget=0)
    with shared.open("one", settings) as writer:
        writer.append(flush([], Timestamp(1_000), 1_000))
        for seq in range(1, 6):
            append(writer, 1_000 + seq, seq)
        root = StateLayout(shared.folder / "one").log(SOURCE)
        with LogReader(root) as reader:
            found = reader.slice({A.table: Timestamp(1_000)}, Timestamp.MAX, 10, 10**9)
            writer.maintain(clocks(Timestamp(2_000)))
            assert fetched(shared, "one") == set()
            assert [seq for piece in found.pieces for seq in keys(piece.load())] == [1, 2, 3, 4, 5]
        assert len(fetched(shared, "one")) == 5
        budget = 2 * max(path.stat().st_size for path in root.glob("segment-*"))
        writer.settings = replace(settings, copy_budget=budget)
        writer.roll()
        append(writer, 1_006, 6)
        writer.maintain(clocks(Timestamp(3_000)))
        names = shared.catalog.log_objects(SOURCE, [path.name for path in root.iterdir()])
        assert sum((root / name).stat().st_size for name in names) <= budget
        assert "segment-000000000005-000000.parquet" in names
        assert shared.rows("one") == [1, 2, 3, 4, 5, 6]


def test_a_merge_fetches_what_a_small_cache_has_not(shared: Shared) -> None:
    settings = LogSettings(merge_fan=2, roll_frames=1, pack_bytes=10**9, copy_budget=0)
    with shared.open("one", settings) as writer:
        writer.append(flush([], Timestamp(1_000), 1_000))
        for seq in range(1, 6):
            append(writer, 1_000 + seq, seq)
            settle(writer)
        root = StateLayout(shared.folder / "one").log(SOURCE)
        assert len(list(root.glob("journal-*"))) == 1, "only the live one"
        assert writer.maintain(clocks(Timestamp(3_000))).merged
        assert shared.rows("one") == [1, 2, 3, 4, 5]


def test_readers_at_the_same_time_fetch_an_object_once(
    taken_over: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []
    fetch = ObjectStore.fetch

    def slow(store: ObjectStore, name: str, path: Path, size: int) -> None:
        names.append(name)
        time.sleep(0.02)
        fetch(store, name, path, size)

    monkeypatch.setattr(ObjectStore, "fetch", slow)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: taken_over.rows("two"), range(4)))
    assert found == [[1, 2, 3, 4, 5]] * 4
    assert len(names) == len(set(names)) > 4


def test_a_store_that_fails_is_asked_again(taken_over: Shared) -> None:
    """The error names the object, the reader goes on by itself, and others are not held up."""
    away = taken_over.folder / "away"
    root = StateLayout(taken_over.folder / "two").log(SOURCE)
    with LogReader(root) as reader:
        named = min(name for name in taken_over.objects if "/segment-" in name)
        path = taken_over.folder / "store" / named
        path.rename(away)
        path.mkdir()  # it is there, and cannot be read
        with pytest.raises(ChangefeedError) as failed:
            taken_over.rows("two")
        assert failed.value.code is Code.LOG_STORE_UNREACHABLE
        assert named in (failed.value.detail or "")
        newest = reader.slice({A.table: Timestamp(1_004)}, Timestamp.MAX, 10, 10**9)
        assert [keys(piece.load()) for piece in newest.pieces] == [[5]]
        path.rmdir()
        away.rename(path)
        assert taken_over.rows("two") == [1, 2, 3, 4, 5]


def settle(writer: LogWriter) -> None:
    """Make sealed journals objects, without a merge: there is no room for one."""
    settings = writer.settings
    writer.settings = replace(settings, disk_budget=writer.bytes + 1)
    writer.maintain(clocks(Timestamp(2_000)))
    writer.settings = settings


def flip(path: Path) -> None:
    """Change one byte in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_a_damaged_copy_is_fetched_again(taken_over: Shared) -> None:
    """Once: what is damaged in the store, too, is an error that names the file."""
    root = StateLayout(taken_over.folder / "two").log(SOURCE)
    assert taken_over.rows("two") == [1, 2, 3, 4, 5]
    with LogReader(root) as reader:
        found = reader.slice({A.table: Timestamp(1_000)}, Timestamp.MAX, 10**9, 10**12)
        listed = taken_over.catalog.log_objects(SOURCE, [path.name for path in root.iterdir()])
        assert {name.partition("-")[0] for name in listed} == {"segment", "journal"}
        for name in listed:
            flip(root / name)
        assert [seq for piece in found.pieces for seq in keys(piece.load())] == [1, 2, 3, 4, 5]
    assert taken_over.rows("two") == [1, 2, 3, 4, 5]
    name = min(path.name for path in root.glob("segment-*"))
    (damaged,) = (n for n in taken_over.objects if f"/{name}-" in n)
    flip(taken_over.folder / "store" / damaged)
    assert taken_over.rows("two") == [1, 2, 3, 4, 5]
    flip(root / name)
    with pytest.raises(ChangefeedError) as failed:
        taken_over.rows("two")
    assert failed.value.code is Code.LOG_DAMAGED and name in failed.value.detail


def test_a_merge_fetches_a_damaged_copy_again(shared: Shared) -> None:
    settings = LogSettings(merge_fan=2, roll_frames=1, pack_bytes=10**9, segment_rows=1)
    writer = shared.open("one", settings)
    writer.append(flush([], Timestamp(1_000), 1_000))
    for seq in range(1, 4):
        append(writer, 1_000 + seq, seq)
    settle(writer)
    drop_process(writer)
    with shared.open("one", settings) as again:
        root = StateLayout(shared.folder / "one").log(SOURCE)
        flip(min(root.glob("segment-*")))
        assert again.maintain(clocks(Timestamp(3_000))).merged
        assert shared.rows("one") == [1, 2, 3]


def test_a_follower_completes_the_journal_that_it_followed(shared: Shared) -> None:
    """It has become an object since the follower's last look; readers have its file open."""
    with shared.open("one") as writer:
        writer.append(flush([], Timestamp(1_000), 1_000))
        append(writer, 1_001, 1)
        root = shared.folder / "follower"
        root.mkdir()
        rows = SourceManifest(shared.catalog, SOURCE)
        follower = LogFollower(rows, shared.store, root, lock_log(root))
        follower.look()
        live = root / journal_name(1)
        with open(live, "rb") as opened:
            before = len(opened.read())
            append(writer, 1_002, 2)
            writer.roll()
            settle(writer)
            follower.look()
            with LogReader(root) as reader:
                found = reader.slice({A.table: Timestamp(1_000)}, Timestamp.MAX, 10**9, 10**12)
                assert [seq for piece in found.pieces for seq in keys(piece.load())] == [1, 2]
            (size, name) = shared.catalog.log_manifest(SOURCE).objects[live.name]
            opened.seek(0)
            assert opened.read() == shared.store.get(name) and size > before
        follower.close()


def test_a_follower_keeps_no_more_copies_than_it_may(shared: Shared) -> None:
    """A node that runs feeds of another node's source, for weeks: what they read goes again."""
    with shared.open("one", LogSettings(segment_rows=1)) as writer:
        writer.append(flush([], Timestamp(1_000), 1_000))
        for seq in range(1, 6):
            append(writer, 1_000 + seq, seq)
        root = shared.folder / "follower"
        root.mkdir()
        rows = SourceManifest(shared.catalog, SOURCE)
        lock = lock_log(root)
        follower = LogFollower(rows, shared.store, root, lock, ManualClock(), copies=0)
        follower.start()
        with LogReader(root) as reader:
            found = reader.slice({A.table: Timestamp(1_000)}, Timestamp.MAX, 10, 10**9)
            for _ in range(2):
                read = [seq for piece in found.pieces for seq in keys(piece.load())]
                assert read == [1, 2, 3, 4, 5]
                until(lambda: not list(root.glob("segment-*.parquet")), "the copies go")
        follower.close()


@pytest.mark.parametrize(
    "point",
    [
        faults.Point.LOG_ROLL_CREATED,
        faults.Point.LOG_LEDGER_WRITE,
        faults.Point.LOG_LEDGER_WRITTEN,
        faults.Point.LOG_LEDGER_RENAMED,
    ],
)
def test_what_is_appended_after_a_journal_could_not_be_sealed_is_there_for_the_next_node(
    shared: Shared, point: faults.Point
) -> None:
    """Without room capture seals its journal, so that history can go. The next node must see no
    sealed journal to which this one appended."""
    appended = [1]
    with shared.open("one") as writer:
        writer.append(flush([], Timestamp(1_000), 1_000))
        append(writer, 1_001, 1)
        with faults.armed(f"{point}:full"), pytest.raises(ChangefeedError):
            writer.roll()
        # Either nothing was registered, or the writer takes nothing more.
        with suppress(ChangefeedError):
            append(writer, 1_002, 2)
            appended.append(2)
    with shared.open("two"):
        assert shared.rows("two") == appended
    with shared.open("one") as writer:
        append(writer, 1_003, 3)
        assert shared.rows("one") == [*appended, 3]


def test_a_follower_goes_on_when_a_copy_cannot_be_removed(
    shared: Shared, caplog: pytest.LogCaptureFixture
) -> None:
    with shared.open("one", LogSettings(segment_rows=1)) as writer:
        writer.append(flush([], Timestamp(1_000), 1_000))
        append(writer, 1_001, 1)
        root = shared.folder / "follower"
        root.mkdir()
        rows = SourceManifest(shared.catalog, SOURCE)
        lock = lock_log(root)
        follower = LogFollower(rows, shared.store, root, lock, ManualClock(), copies=0)
        follower.look()
        listed = copies.Copies.read(root)
        assert listed is not None
        [name] = listed.objects
        (root / name).mkdir()  # which no unlink removes
        follower.start()
        until(lambda: "CF3004" in caplog.text, "it says so")
        (root / name).rmdir()
        append(writer, 1_002, 2)
        with LogReader(root) as reader:
            until(lambda: reader.refresh() == writer.frontier, "it follows all the same")
        follower.close()


def test_a_follower_outlives_an_error_that_nobody_expects(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    with shared.open("one") as writer:
        writer.append(flush([], Timestamp(1_000), 1_000))
        followed = FollowedLogs()
        follower = followed.open(shared.catalog, SOURCE)

        def fails(*_: object) -> None:
            raise KeyError("secret")

        with monkeypatch.context() as patch:
            patch.setattr(type(shared.catalog), "log_news", fails)
            until(lambda: follower.error is not None, "it says so")
            assert follower.error is not None
            assert follower.error.code is Code.INTERNAL_ERROR
            assert "secret" not in follower.error.message
        append(writer, 1_001, 1)
        with LogReader(follower.root) as reader:
            until(lambda: reader.refresh() == writer.frontier, "it has the row")
        followed.close(follower)


def test_a_copy_is_whole_where_a_write_takes_a_part(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the last one does on a disk that becomes full, before the next one fails."""
    whole = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: whole(fd, bytes(data[:100]), at))
    with shared.open("one") as writer:
        writer.append(flush([], Timestamp(1_000), 1_000))
        root = shared.folder / "follower"
        root.mkdir()
        rows = SourceManifest(shared.catalog, SOURCE)
        follower = LogFollower(rows, shared.store, root, lock_log(root), ManualClock(), copies=0)
        follower.look()
        append(writer, 1_001, 1)
        follower.look()
        with LogReader(root) as reader:
            found = reader.slice({A.table: Timestamp(1_000)}, Timestamp.MAX, 10, 10**9)
            assert [seq for piece in found.pieces for seq in keys(piece.load())] == [1]
        follower.close()


def test_copies_of_another_boot_are_not_trusted(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are not synced: a machine that lost its power may have lost their bytes."""
    writer = shared.open("one", LogSettings(segment_rows=1))
    writer.append(flush([], Timestamp(1_000), 1_000))
    append(writer, 1_001, 1)
    writer.roll()
    drop_process(writer)
    (segment,) = StateLayout(shared.folder / "one").log(SOURCE).glob("segment-*")
    segment.write_bytes(bytes(segment.stat().st_size))
    read = elapsed.read_clocks()
    monkeypatch.setattr(copies, "read_clocks", lambda: replace(read, boot="another"))
    with shared.open("one"):
        assert shared.rows("one") == [1]


def test_merging_fetches_what_it_merges(shared: Shared) -> None:
    """Sealed journals that this host has never read."""
    settings = LogSettings(merge_fan=2, roll_frames=1, pack_bytes=10**9)
    writer = shared.open("one", settings)
    writer.append(flush([], Timestamp(1_000), 1_000))
    for seq in range(1, 4):
        append(writer, 1_000 + seq, seq)
        writer.maintain(clocks(Timestamp(2_000)))
    drop_process(writer)
    with shared.open("two", settings) as again:
        append(again, 1_004, 4)
        append(again, 1_005, 5)
        assert again.maintain(clocks(Timestamp(2_001))).merged
        assert shared.rows("two") == [1, 2, 3, 4, 5]


def test_logs_that_cannot_come_home_stay_in_the_store(shared: Shared) -> None:
    writer = shared.open("one", LogSettings(segment_rows=1))
    writer.append(flush([], Timestamp(1_000), 1_000))
    append(writer, 1_001, 1)
    drop_process(writer)
    shared.catalog.save_source_state(SOURCE, status="running")
    held = shared.catalog.acquire_source(SOURCE, "two", 60.0)
    assert held is not None
    with pytest.raises(ChangefeedError, match="another node captures"):
        bring_logs_home(shared.catalog)
    shared.catalog.release_lease(held)
    (named,) = shared.objects
    path = shared.folder / "store" / named
    body = path.read_bytes()
    path.unlink()
    with pytest.raises(ChangefeedError) as lost:
        bring_logs_home(shared.catalog)
    assert lost.value.code is Code.LOG_STORE_UNREACHABLE
    assert shared.catalog.log_place == shared.store.shown
    path.write_bytes(body)
    bring_logs_home(shared.catalog)
    assert shared.catalog.log_place is None and not shared.objects
    with LogWriter(StateLayout(Path(shared.catalog.directory)).log(SOURCE)) as again:
        append(again, 1_002, 2)
    with LogReader(StateLayout(Path(shared.catalog.directory)).log(SOURCE)) as reader:
        found = reader.slice({A.table: Timestamp(1_000)}, Timestamp.MAX, 10**9, 10**12)
        assert [seq for piece in found.pieces for seq in keys(piece.load())] == [1, 2]


# -- followers ----------------------------------------------------------------------------


def test_readers_of_a_process_have_one_follower(shared: Shared) -> None:
    """Its directory goes with the last of them; what a process that died left goes with the
    next."""
    followed = FollowedLogs()
    folder = StateLayout(Path(shared.catalog.directory).absolute()).follow
    (folder / "log-left").mkdir(parents=True)
    with shared.open("one") as writer:
        writer.append(flush([], Timestamp(1_000), 1_000))
        first, second = (followed.open(shared.catalog, SOURCE) for _ in range(2))
        assert first is second
        assert list(folder.iterdir()) == [first.root]
        followed.close(first)
        append(writer, 1_001, 1)
        with LogReader(first.root) as reader:
            until(lambda: reader.refresh() == writer.frontier, "the follower has the row")
        followed.close(second)
        assert not list(folder.iterdir())


def test_a_log_that_begins_again_ends_its_followers_readers(shared: Shared) -> None:
    """As where the node writes; a new reader reads the new log."""
    followed = FollowedLogs()
    writer = shared.open("one")
    writer.append(flush([], Timestamp(1_000), 1_000))
    append(writer, 1_001, 1)
    follower = followed.open(shared.catalog, SOURCE)
    with LogReader(follower.root) as reader:
        drop_process(writer)
        remove_shared_log(shared.catalog, SOURCE, shared.take("one")[0])
        with shared.open("one") as again:
            again.append(flush([], Timestamp(2_000), 2_000))
            append(again, 2_001, 2)

            def broken() -> bool:
                try:
                    reader.refresh()
                except ChangefeedError as gone:
                    return gone.code is Code.LOG_DAMAGED
                return False

            until(broken, "its reader notices")
            with LogReader(follower.root) as fresh:
                until(lambda: fresh.refresh() == again.frontier, "the new log is there")
    followed.close(follower)


def test_a_follower_says_why_it_does_not_follow(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    with shared.open("one") as writer:
        writer.append(flush([], Timestamp(1_000), 1_000))
        followed = FollowedLogs()
        follower = followed.open(shared.catalog, SOURCE)
        gone = ChangefeedError(Code.STATE_UNREACHABLE, "the state is not there")

        def fails(*_: object) -> None:
            raise gone

        with monkeypatch.context() as patch:
            patch.setattr(type(shared.catalog), "log_news", fails)
            until(lambda: follower.error is gone, "it says so")
        append(writer, 1_001, 1)
        until(lambda: follower.error is None, "it goes on by itself")
        with LogReader(follower.root) as reader:
            until(lambda: reader.refresh() == writer.frontier, "it has the row")
        followed.close(follower)
