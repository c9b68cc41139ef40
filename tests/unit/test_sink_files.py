"""Files: what is visible when, what a crash leaves, how rows are cut into files."""

from __future__ import annotations

import errno
import os
import pickle
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from changefeed.core.arrow import MESSAGE_SCHEMA
from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError
from changefeed_testing.sinks.feed import FeedDouble, at, put, table_schema
from changefeed_testing.sinks.readers import file_bytes, visible_files
from sinks.base import Batch, Sink
from sinks.files.places.base import explained
from sinks.files.places.local import TEMPORARY
from sinks.files.sink import FilesSink
from sinks.files.staged import UnpublishedFile
from sinks.files.writers import rows_within
from sinks.registry import open_sink


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def opened(out: Path, parameters: str = "", **options: object) -> tuple[Sink, FeedDouble]:
    sink = open_sink(f"file://{out}?{parameters}", options)
    feed = FeedDouble({"t": "t"}, key_in_value=True)
    feed.open(sink)
    return sink, feed


def temporaries(out: Path) -> list[str]:
    return sorted(os.listdir(out / TEMPORARY))


def test_nothing_is_visible_before_commit(out: Path) -> None:
    sink, feed = opened(out)
    epoch = feed.epoch(at(1))
    receipts = feed.write(sink, epoch, [put(1, "x", 1)])
    assert visible_files(out) == []
    sink.commit(epoch, receipts)
    (path,) = visible_files(out)
    assert path.parent.name == "2020-04-02"
    assert temporaries(out) == []


def test_abort_leaves_nothing(out: Path) -> None:
    sink, feed = opened(out)
    epoch = feed.epoch(at(1))
    receipts = feed.write(sink, epoch, [put(1, "x", 1)])
    sink.abort(epoch, receipts)
    assert visible_files(out) == []
    assert temporaries(out) == []


def test_a_failed_write_is_never_seen(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full half-way: what was written is dropped, also rows taken before."""
    sink, feed = opened(out)
    epoch = feed.epoch(at(3))
    receipts = feed.write(sink, epoch, [put(1, "x", 1)])
    whole = UnpublishedFile.write

    def half(self: UnpublishedFile, values: pa.Array) -> None:
        whole(self, pa.array([b'{"aft'], pa.binary()))
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patch, pytest.raises(ChangefeedError, match="no room"):
        patch.setattr(UnpublishedFile, "write", half)
        feed.write(sink, epoch, [put(2, "x", 2)])
    with pytest.raises(ChangefeedError) as caught:
        sink.commit(epoch, receipts)
    assert caught.value.action == "retry"
    assert visible_files(out) == []
    again = feed.write(sink, epoch, [put(1, "x", 1), put(2, "x", 2)])
    sink.commit(epoch, again)
    (path,) = visible_files(out)
    assert file_bytes(path).count(b"\n") == 2
    assert temporaries(out) == []


def test_a_commit_publishes_only_what_its_receipts_name(out: Path) -> None:
    """Two parts of a scan in one process: one ends while the other is being written."""
    sink, feed = opened(out)
    epoch = feed.epoch(at(1))
    rows = rows_of([b"1"], 5)
    parts = [Batch("f", epoch, part, feed.targets["t"], table_schema("t"), rows) for part in (0, 1)]
    first, second = [sink.write(batch) for batch in parts]
    sink.commit(epoch, [first])
    assert len(visible_files(out)) == 1
    more = sink.write(parts[1])
    sink.commit(epoch, [second, more])
    assert [file_bytes(path) for path in visible_files(out)] == [b"1\n", b"1\n1\n"]
    sink.close()


def test_a_copy_opened_elsewhere_commits_there(out: Path) -> None:
    sink, feed = opened(out)
    copy: Sink = pickle.loads(pickle.dumps(sink))
    copy.open(feed.context())
    feed.deliver(copy, [put(1, "x", 1)])
    assert len(visible_files(out)) == 1
    copy.close()


def test_an_old_orphan_is_swept_a_young_one_is_not(out: Path) -> None:
    crashed, feed = opened(out)
    feed.write(crashed, feed.epoch(at(1)), [put(1, "x", 1)])
    (orphan,) = temporaries(out)
    opened(out)
    assert temporaries(out) == [orphan]
    past = time.time() - 7200
    os.utime(out / TEMPORARY / orphan, (past, past))
    opened(out)
    assert temporaries(out) == []
    crashed.close()


def test_small_batches_of_an_epoch_share_a_file(out: Path) -> None:
    sink, feed = opened(out)
    epoch = feed.epoch(at(9))
    receipts = [
        receipt
        for step in range(1, 10)
        for receipt in feed.write(sink, epoch, [put(step, "x", step)])
    ]
    sink.commit(epoch, receipts)
    (path,) = visible_files(out)
    assert file_bytes(path).count(b"\n") == 9


def test_a_file_holds_one_schema_version(out: Path) -> None:
    sink, feed = opened(out)
    epoch = feed.epoch(at(2))
    receipts = feed.write(sink, epoch, [put(1, "x", 1)])
    feed.versions["t"] = 2
    receipts += feed.write(sink, epoch, [put(1, "y", 2)])
    sink.commit(epoch, receipts)
    assert [path.name.rpartition("-")[2] for path in visible_files(out)] == [
        "1.ndjson",
        "2.ndjson",
    ]


@pytest.mark.parametrize("compression", ["none", "gzip", "zstd"])
def test_files_close_at_their_size(out: Path, compression: str) -> None:
    sink, feed = opened(out, "file_size=1kB", compression=compression)
    feed.deliver(sink, [put(key, "x" * 50, key) for key in range(100)])
    sizes = [len(file_bytes(path)) for path in visible_files(out)]
    assert len(sizes) > 10
    assert max(sizes) <= 1000
    whole = b"".join(file_bytes(path) for path in visible_files(out))
    assert [line.count(b"x" * 50) for line in whole.splitlines()] == [1] * 100


def test_a_row_larger_than_a_file_gets_its_own(out: Path) -> None:
    sink, feed = opened(out, "file_size=100")
    feed.deliver(sink, [put(1, "a", 1), put(2, "b" * 500, 2), put(3, "c", 3)])
    assert len(visible_files(out)) == 3


def rows_of(values: list[bytes | None], wall: int) -> pa.Table:
    return pa.Table.from_pylist(
        [{"key": b"[1]", "value": v, "wall": wall, "logical": 3} for v in values],
        schema=MESSAGE_SCHEMA,
    )


def test_rows_without_a_value_are_left_out(out: Path) -> None:
    sink, feed = opened(out)
    epoch = feed.epoch(at(1))
    rows = rows_of([b"1", None, b"2"], 5)
    batch = Batch("f", epoch, 0, feed.targets["t"], table_schema("t"), rows)
    sink.commit(epoch, [sink.write(batch)])
    (path,) = visible_files(out)
    assert file_bytes(path) == b"1\n2\n"


def test_a_first_scan_is_stamped_with_its_rows(out: Path) -> None:
    """Nothing was delivered before: the oldest row gives the name; a later mark sorts behind."""
    sink, feed = opened(out, "partition_format=flat", format="csv")
    epoch = feed.epoch(at(1))
    stamp = Timestamp(at(1).wall, 3)
    rows = rows_of([b"1,x"], at(1).wall)
    batch = Batch("f", epoch, 0, feed.targets["t"], table_schema("t"), rows, scan=True)
    sink.commit(epoch, [sink.write(batch)])
    feed.resolve(sink, stamp)
    data, mark = visible_files(out)
    assert data.name.startswith(stamp.file_stamp())
    assert data.suffix == ".csv"
    assert mark.name == f"{stamp.file_stamp()}.RESOLVED"


def test_two_writers_never_share_a_name(out: Path) -> None:
    names = set()
    for _ in range(3):
        sink, feed = opened(out)
        feed.deliver(sink, [put(1, "x", 1)])
        sink.close()
        names |= {path.name for path in visible_files(out)}
    assert len(names) == len(visible_files(out)) == 3


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (errno.ENOSPC, "CF5004"),
        (errno.EACCES, "CF5002"),
        (errno.EROFS, "CF5002"),
        (errno.EIO, "CF5001"),
        (errno.ENOENT, "CF5001"),
    ],
)
def test_system_errors(number: int, code: str) -> None:
    with pytest.raises(ChangefeedError) as caught, explained("/out"):
        raise OSError(number, "no")
    assert caught.value.code.number == code
    assert os.strerror(number) in caught.value.message


def test_a_file_in_place_of_the_directory_is_told(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(ChangefeedError) as caught:
        opened(tmp_path / "out")
    assert caught.value.code.number == "CF5002"


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.string()], ids=str)
def test_lines_of_every_column_type(tmp_path: Path, kind: pa.DataType) -> None:
    field = pa.field("value", kind)
    file = UnpublishedFile(tmp_path, "x", "x", field, "json", "none")
    column = pa.array(["a", "", "ü"], pa.string()).cast(kind)
    file.write(column.slice(1))
    file.write(column.slice(0, 0))
    file.write(column.slice(0, 1))
    file.finish()
    assert (tmp_path / "x").read_bytes() == "\nü\na\n".encode()
    assert file.bytes == 6


def test_rows_within_counts_newlines() -> None:
    column = pa.array([b"123", b"123", b"123"], pa.binary())
    assert [rows_within(column, room) for room in (0, 4, 7, 8, 12, 99)] == [0, 1, 1, 2, 3, 3]


@pytest.fixture
def sink() -> Iterator[FilesSink]:
    yield FilesSink("file:///nowhere?topic_prefix=p_")


def test_labels(sink: FilesSink) -> None:
    assert sink.topic("a/b") == "p_a_u002f_b"


@pytest.mark.parametrize(
    ("uri", "options", "seconds"),
    [
        ("file:///d", {}, 3600.0),
        ("file:///d", {"resolved": 0.0}, 1.0),
        ("file:///d", {"resolved": 86400.0}, 3600.0),
        ("s3://bucket/d?AUTH=implicit", {}, 3600.0),
        ("https://host/d", {}, 3600.0),
        ("s3://bucket/d?AUTH=implicit", {"resolved": 4.0}, 4.0),
        ("s3://bucket/d?AUTH=implicit", {"resolved": 0.0}, 10.0),
        ("file:///d?flush_interval=5m", {}, 300.0),
        ("file:///d?flush_interval=5m", {"resolved": 60.0}, 60.0),
        ("file:///d?flush_interval=0s", {"resolved": 60.0}, 0.0),
    ],
)
def test_files_are_made_at_the_interval_or_when_a_resolved_timestamp_is_due(
    uri: str, options: dict[str, object], seconds: float
) -> None:
    sink = FilesSink(uri, options)
    assert sink.pacing().seconds == seconds
    assert pickle.loads(pickle.dumps(sink)).pacing().seconds == seconds


@pytest.mark.parametrize(
    ("parameters", "options", "files"),
    [
        ("", {}, (48, 0)),
        ("", {"resolved": 0.0}, (172_800, 0)),
        ("", {"resolved": 600.0}, (288, 144)),
        ("?flush_interval=7h", {}, (8, 0)),
        ("?partition_format=hourly", {}, (96, 0)),
        ("?partition_format=minute", {"resolved": 60.0}, (5760, 1440)),
        ("?partition_format=flat&flush_interval=1d", {}, (2, 0)),
        ("?flush_interval=0s", {}, None),
    ],
)
def test_a_day_has_tens_of_files_unless_more_are_asked_for(
    parameters: str, options: dict[str, object], files: tuple[int, int] | None
) -> None:
    assert FilesSink(f"file:///d{parameters}", options).files_a_day(2) == files


def test_changes_of_the_size_of_a_file_do_not_wait() -> None:
    assert FilesSink("file:///d?file_size=2MB").pacing().bytes == 2_000_000


@pytest.mark.parametrize("text", ["", "soon", "-1s"])
def test_an_interval_is_a_duration(text: str) -> None:
    with pytest.raises(ChangefeedError, match="flush_interval must be a duration such as 30s"):
        FilesSink(f"file:///d?flush_interval={text}")
