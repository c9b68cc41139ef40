"""The place that a reader and its changefeed share."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from changefeed.catalog.model import TableProgress, TableState
from changefeed.core.clock import ManualClock, Timestamp
from changefeed.core.errors import ChangefeedError
from changefeed.core.log_rows import scan_rows
from changefeed.core.schema import TableName
from changefeed.feeds.rounds import follow_consumer
from changefeed.options import Deletes
from sinks.base import Batch, ConsumerProgress, Epoch, SinkContext, Target
from sinks.reader.sink import ReaderSink
from sinks.registry import capabilities, open_sink
from tests.helpers.log_samples import narrow

SCHEMA = narrow("t", version=3)
TARGET = Target(SCHEMA.table, "t")
AT = Timestamp(1_700_000_000_000_000_000)


def context(job: int = 1, **also: object) -> SinkContext:
    fields = {"state": "abcdef", "targets": (TARGET,), **also}
    return SinkContext(f"feed{job}", job, **fields)  # type: ignore[arg-type]


def sink(path: Path) -> ReaderSink:
    return ReaderSink(f"reader://{path}/r")


def scan(to: ReaderSink, at: Timestamp = AT, keys: tuple[int, ...] = (1, 2, 3)) -> None:
    """Write a scan of two batches, without its end."""
    for number, half in enumerate((keys[:2], keys[2:])):
        batch = pa.record_batch({"a0": pa.array(half, pa.int64()), "a1": ["x"] * len(half)})
        rows = scan_rows(SCHEMA, batch, at)
        epoch = Epoch(1, at)
        receipt = to.write(Batch("feed", epoch, number, TARGET, SCHEMA, rows, scan=True))
        to.commit(epoch, [receipt])


def test_a_scan_is_there_once_it_is_whole_and_until_it_was_consumed(tmp_path: Path) -> None:
    feed, other = sink(tmp_path), open_sink(f"reader://{tmp_path}/r")
    assert other.capabilities.pulled
    consumer = other.pull()
    feed.open(context())
    scan(feed)
    assert consumer.scanned() is None
    feed.end_scan(TARGET, SCHEMA, AT)
    found = consumer.scanned()
    assert found is not None
    assert (found.at, found.schema, found.schema.version, found.rows) == (AT, SCHEMA, 3, 3)
    assert len(found.files) == 2
    keys = [k for f in found.files for k in pa.ipc.open_file(f).read_all()["a0"].to_pylist()]
    assert keys == [1, 2, 3]
    consumer.move(ConsumerProgress(planned=AT))
    assert feed.consumer().needs_above is None
    assert consumer.scanned() == found
    consumer.move(ConsumerProgress(committed=AT, planned=AT))
    assert feed.consumer().needs_above == AT
    assert consumer.scanned() is None
    assert not list((tmp_path / "r").glob("scan-*"))


def test_what_a_broken_scan_left_goes_with_the_next(tmp_path: Path) -> None:
    feed = sink(tmp_path)
    feed.open(context())
    scan(feed)
    again = sink(tmp_path)
    again.open(context())
    scan(again, AT.next(), (8, 9, 10))
    again.end_scan(TARGET, SCHEMA, AT.next())
    found = again.scanned()
    assert found is not None
    assert found.rows == 3
    assert len(list((tmp_path / "r").glob("scan-*/*"))) == 2


def test_an_empty_table_has_an_empty_scan(tmp_path: Path) -> None:
    feed = sink(tmp_path)
    feed.open(context())
    feed.end_scan(TARGET, SCHEMA, AT)
    found = feed.scanned()
    assert found is not None
    assert (found.files, found.rows) == ((), 0)


def test_aborted_files_are_removed(tmp_path: Path) -> None:
    feed = sink(tmp_path)
    feed.open(context())
    rows = scan_rows(SCHEMA, pa.record_batch({"a0": pa.array([1]), "a1": ["x"]}), AT)
    epoch = Epoch(1, AT)
    receipt = feed.write(Batch("feed", epoch, 0, TARGET, SCHEMA, rows, scan=True))
    feed.abort(epoch, [receipt])
    assert not list((tmp_path / "r").glob("scan-*/*"))


def test_a_directory_belongs_to_one_feed(tmp_path: Path) -> None:
    sink(tmp_path).open(context(1))
    sink(tmp_path).open(context(1))  # idempotent
    living = frozenset({(1, str(SCHEMA.table))})
    with pytest.raises(ChangefeedError, match='belongs to changefeed "feed1"') as error:
        sink(tmp_path).open(context(2, feeds=living))
    assert error.value.code.number == "CF5008"
    with pytest.raises(ChangefeedError) as error:
        sink(tmp_path).open(context(1, state="zzzzzz"))
    assert error.value.code.number == "CF5008"


def test_what_a_dropped_feed_left_means_nothing_to_the_next(tmp_path: Path) -> None:
    first = sink(tmp_path)
    first.open(context(1))
    scan(first)
    first.end_scan(TARGET, SCHEMA, AT)
    first.move(ConsumerProgress(committed=AT.previous()))
    second = sink(tmp_path)
    assert second.belongs("abcdef", 1)
    assert not second.belongs("abcdef", 2)
    second.open(context(2))
    assert second.belongs("abcdef", 2)
    assert second.scanned() is None
    assert second.consumer() == ConsumerProgress()


def test_a_reader_has_one_table(tmp_path: Path) -> None:
    two = (TARGET, Target(TableName("shop", "public", "u"), "u"))
    with pytest.raises(ChangefeedError, match="one table") as error:
        sink(tmp_path).open(context(targets=two))
    assert error.value.code.number == "CF1303"


def test_one_process_reads_at_a_time(tmp_path: Path) -> None:
    one, other = sink(tmp_path), sink(tmp_path)
    other.clock = clock = ManualClock()
    began = clock.monotonic()
    one.occupy(0)
    with pytest.raises(ChangefeedError, match="read by another process") as error:
        other.occupy(60)
    assert clock.monotonic() - began >= 60
    assert error.value.code.number == "CF1301"
    one.leave()
    other.occupy(0)
    other.leave()


@pytest.mark.parametrize("uri", ["reader://", "reader:///", "reader://host/a", "reader:///a?b=1"])
def test_the_uri_is_a_directory(uri: str) -> None:
    with pytest.raises(ChangefeedError) as error:
        ReaderSink(uri)
    assert error.value.code.number in ("CF1201", "CF1202")


def test_a_reader_takes_deletes(tmp_path: Path) -> None:
    with pytest.raises(ChangefeedError, match="deletes"):
        ReaderSink(f"reader://{tmp_path}", {"deletes": Deletes.NO})
    ReaderSink(f"reader://{tmp_path}", {"deletes": Deletes.YES})


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    feed = sink(tmp_path)
    feed.open(context())
    (tmp_path / "r" / "PLACE").write_text("{")
    with pytest.raises(ChangefeedError, match=r"is damaged: .*/PLACE") as damage:
        feed.consumer()
    assert damage.value.code.number == "CF3001" and "make another reader" in damage.value.hint


def test_check_looks_without_making_anything(tmp_path: Path) -> None:
    assert sink(tmp_path).check(context()) == []
    assert not (tmp_path / "r").exists()
    (tmp_path / "r").write_text("a file")
    assert [e.code.number for e in sink(tmp_path).check(context())] == ["CF5001"]


def test_the_registry_knows_it() -> None:
    assert capabilities("reader").takes_rows


# ------------------------------------------------------------------------- the feed's progress


class FeedOfOneTable:
    """What :func:`follow_consumer` asks of a feed."""

    def __init__(self, done: Timestamp | None, state: TableState = TableState.RUNNING) -> None:
        self.table = TableProgress(SCHEMA.table, "t", state=state, done_upto=done)
        self.done = done

    def in_state(self, *states: TableState) -> list[TableProgress]:
        return [self.table] if self.table.state in states else []

    def advance(self, names: list[TableName], upto: Timestamp) -> None:
        assert names == [SCHEMA.table]
        self.done = upto


class NoScan:
    at: Timestamp | None = None

    def holds(self, table: TableProgress) -> bool:
        return self.at is not None


def follow(feed: FeedOfOneTable, consumed: Timestamp | None, oldest: Timestamp) -> None:
    follow_consumer(feed, consumed, NoScan(), oldest)  # type: ignore[arg-type]


def test_progress_is_what_was_consumed() -> None:
    feed = FeedOfOneTable(AT)
    follow(feed, None, AT.previous())
    assert feed.done == AT
    follow(feed, AT.next(), AT)
    assert feed.done == AT.next()


def test_the_feed_fails_when_the_log_was_let_go_below_its_consumer() -> None:
    feed = FeedOfOneTable(AT)
    with pytest.raises(ChangefeedError) as error:
        follow(feed, AT, AT.next())
    assert error.value.code.number == "CF3002"
    follow(feed, AT.next(), AT.next())  # it had read on meanwhile
    follow(FeedOfOneTable(AT), AT, Timestamp.MAX)  # an empty log


def test_a_scan_that_begins_again_waits_for_no_changes() -> None:
    feed, scanning = FeedOfOneTable(AT), NoScan()
    scanning.at = AT.next()
    follow_consumer(feed, None, scanning, AT.next().next())  # type: ignore[arg-type]
    assert feed.done == AT.next()
