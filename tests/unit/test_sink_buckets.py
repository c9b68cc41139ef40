"""Buckets hold the rows of their time, close when a mark is beyond them, and get a manifest."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import unquote, urlparse

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from changefeed.core.clock import Timestamp
from changefeed_testing.sinks.feed import (
    START,
    FeedDouble,
    Write,
    at,
    message_rows,
    put,
    table_schema,
)
from changefeed_testing.sinks.readers import file_bytes, read_files, visible_files
from changefeed_testing.sinks.validators import (
    FingerprintValidator,
    OrderValidator,
    ResolvedValidator,
    validate,
)
from sinks.base import Batch, Sink
from sinks.files.names import PARTITION_FORMATS, DataName, parse_name
from sinks.files.places.local import LocalPlace
from sinks.files.sink import FilesSink, in_buckets
from sinks.registry import open_sink

MINUTE = 60


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def opened(
    out: Path, feed: FeedDouble | None = None, parameters: str = ""
) -> tuple[Sink, FeedDouble]:
    sink = open_sink(f"file://{out}?partition_format=minute{parameters}")
    feed = feed or FeedDouble({"t": "t", "u": "u"}, key_in_value=True)
    feed.open(sink)
    return sink, feed


def manifests(out: Path) -> dict[str, list[Path]]:
    """Path of each manifest -> the files it names; sizes are checked."""
    found = {}
    for path in visible_files(out):
        if path.suffix == ".manifest":
            entries = json.loads(path.read_text())["entries"]
            files = [Path(unquote(urlparse(entry["url"]).path)) for entry in entries]
            for entry, file in zip(entries, files, strict=True):
                assert entry["mandatory"] is True
                assert file.stat().st_size == entry["meta"]["content_length"]
            found[str(path.relative_to(out))] = files
    return found


def data(out: Path) -> list[Path]:
    return [path for path in visible_files(out) if parse_name(path.name)]


def keys(paths: list[Path]) -> list[int]:
    lines = [line for path in paths for line in file_bytes(path).splitlines()]
    return [json.loads(line)["key"][0] for line in lines]


def test_a_batch_is_cut_by_minute(out: Path) -> None:
    sink, feed = opened(out)
    feed.deliver(sink, [put(1, "x", 10), put(2, "x", 59), put(3, "x", 60), put(4, "x", 200)])
    # START is 04:00:00, so these are the minutes 0, 1 and 3.
    assert [path.parent.name for path in data(out)] == ["00", "01", "03"]
    assert [keys([path]) for path in data(out)] == [[1, 2], [3], [4]]
    assert manifests(out) == {}


def test_a_bucket_closes_when_a_mark_is_beyond_it(out: Path) -> None:
    sink, feed = opened(out)
    feed.deliver(sink, [put(1, "x", 10), put(5, "u", 11, "u"), put(3, "x", 61)])
    feed.resolve(sink, at(59))
    assert manifests(out) == {}
    feed.resolve(sink, at(61))
    first = manifests(out)
    assert [name.rpartition("/")[2][33:] for name in first] == [
        "-17-t-1.manifest",
        "-17-u-1.manifest",
    ]
    assert [keys(files) for files in first.values()] == [[1], [5]]
    feed.deliver(sink, [put(4, "y", 62), put(6, "y", 119)])
    feed.resolve(sink, at(119))
    assert manifests(out) == first
    feed.resolve(sink, at(120))
    assert [keys(files) for name, files in manifests(out).items() if name not in first] == [
        [3, 4, 6]
    ]


def test_versions_of_a_table_have_manifests_of_their_own(out: Path) -> None:
    sink, feed = opened(out)
    feed.deliver(sink, [put(1, "x", 1)])
    feed.versions["t"] = 2
    feed.deliver(sink, [Write(2, {"a": 2, "b": "y", "c": "z"}, at(2))])
    feed.resolve(sink, at(60))
    assert [keys(files) for files in manifests(out).values()] == [[1], [2]]


def test_another_job_is_left_out(out: Path) -> None:
    sink, feed = opened(out)
    other, _ = opened(out)
    vars(other)["_job"] = 18
    feed.deliver(other, [put(9, "x", 1)])
    feed.deliver(sink, [put(1, "x", 2)])
    feed.resolve(sink, at(60))
    assert [keys(files) for files in manifests(out).values()] == [[1]]


@pytest.mark.parametrize("crash", ["before", "half", "after"])
def test_a_crash_around_closing_is_made_good(out: Path, crash: str) -> None:
    """Rows of the crashed run, and of its repeat, are in the one manifest."""
    first, feed = opened(out)
    feed.deliver(first, [put(1, "x", 1), put(1, "u", 1, "u")])
    feed.deliver(first, [put(2, "x", 61), put(2, "u", 61, "u"), put(3, "x", 121)])
    if crash != "before":
        feed.resolve(first, at(121))
    whole = manifests(out)
    if crash == "half":
        (out / max(whole)).unlink()
    first.close()
    second, _ = opened(out, feed)
    feed.deliver(second, [put(4, "x", 130)])
    feed.resolve(second, at(130))
    again = manifests(out)
    assert [keys(files) for files in again.values()] == [[1], [1], [2], [2]]
    if whole:
        assert again == whole
    second.close()


def test_only_new_buckets_are_listed(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink, feed = opened(out)
    for minute in range(1, 8):
        feed.deliver(sink, [put(minute, "x", minute * MINUTE)])
        feed.resolve(sink)
    looked: list[str] = []
    listing = LocalPlace.files

    def counted(self: LocalPlace, folder: str) -> list[object]:
        looked.append(folder)
        return list(listing(self, folder))

    monkeypatch.setattr(LocalPlace, "files", counted)
    feed.deliver(sink, [put(9, "x", 8 * MINUTE)])
    feed.resolve(sink)
    assert len(looked) == 1
    looked.clear()
    again, _ = opened(out, feed)
    feed.resolve(again)
    # The newest that has a manifest, which ends the search: looked at twice.
    assert len(looked) <= 3
    feed.resolve(again, at(8 * MINUTE + 1))
    assert len(looked) <= 3


def test_late_rows_of_a_scan_never_enter_a_closed_bucket(out: Path) -> None:
    sink, feed = opened(out)
    feed.deliver(sink, [put(1, "x", 61)])
    feed.resolve(sink, at(61))
    epoch = feed.epoch(at(62))
    rows = message_rows([put(7, "old", 2)], key_in_value=True)
    batch = Batch("f", epoch, 0, feed.targets["t"], table_schema("t"), rows, at(61), scan=True)
    sink.commit(epoch, [sink.write(batch)])
    assert [path.parent.name for path in data(out)] == ["01", "01"]


def test_manifests_by_format(out: Path) -> None:
    for parameters, wanted in (("hourly", False), ("hourly&manifest=yes", True), ("flat", False)):
        sink = open_sink(f"file://{out}?partition_format={parameters}")
        assert isinstance(sink, FilesSink) and sink.settings.manifests is wanted
    sink = open_sink(f"file://{out}?partition_format=minute&manifest=no")
    assert isinstance(sink, FilesSink) and not sink.settings.manifests


@pytest.mark.parametrize("partition", ["daily", "hourly"])
def test_longer_buckets_close_too(out: Path, partition: str) -> None:
    sink = open_sink(f"file://{out}?partition_format={partition}&manifest=yes")
    feed = FeedDouble({"t": "t"}, key_in_value=True)
    feed.open(sink)
    feed.deliver(sink, [put(1, "x", 1)])
    feed.resolve(sink, at(3599))
    assert manifests(out) == {}
    feed.resolve(sink, at(24 * 3600))
    assert [keys(files) for files in manifests(out).values()] == [[1]]


def test_strange_folders_are_left_alone(out: Path) -> None:
    sink, feed = opened(out)
    (out / "2020-04-02" / "backup" / "00").mkdir(parents=True)
    (out / "lost+found").mkdir()
    feed.deliver(sink, [put(1, "x", 1)])
    feed.resolve(sink, at(60))
    assert len(manifests(out)) == 1


def test_names_are_read_back() -> None:
    name = (
        "202004020405271072140000000000000-56087568dba1e6b8-1-0000000001-00000-000003abc"
        "-a-b_u002f_c-2-12.ndjson.gz"
    )
    assert parse_name(name) == DataName(1, "a-b_u002f_c-2", 12)
    for other in ("202004020405271072140000000000000.RESOLVED", "x.ndjson", name + ".manifest"):
        assert parse_name(other) is None


# ------------------------------------------------------------------------------- properties

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("rows"), st.lists(st.integers(1, 90), min_size=1, max_size=6)),
        st.tuples(st.just("mark"), st.integers(0, 90)),
        st.tuples(st.just("crash"), st.integers(0, 1)),
    ),
    min_size=1,
    max_size=12,
)


@settings(deadline=None, max_examples=60)
@given(STEPS)
def test_every_row_is_in_exactly_one_closed_bucket(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, object]]
) -> None:
    out = tmp_path_factory.mktemp("buckets")
    sink, feed = opened(out)
    now, mark, key = 0, 0, 0
    closed: dict[str, list[Path]] = {}
    for kind, value in [*steps, ("rows", [1]), ("mark", 0)]:
        if kind == "rows":
            writes = []
            for step in value:  # type: ignore[attr-defined]
                now, key = now + step, key + 1
                writes.append(put(key, "x", now))
            feed.deliver(sink, writes)
        elif kind == "mark" and now:
            now += value  # type: ignore[operator]
            mark = now
            feed.delivered = max(feed.delivered, at(mark))
            feed.resolve(sink, at(mark))
            present = manifests(out)
            for name, files in closed.items():
                assert present[name] == files
                assert sorted(Path(name).parent.name for _ in files) == [
                    f.parent.name for f in files
                ]
            closed = present
        elif kind == "crash":
            sink.close()
            sink, _ = opened(out, feed)
    sink.close()
    listed = [file for files in closed.values() for file in files]
    assert len(listed) == len(set(listed))
    upto = START.wall // 10**9 + mark
    whole = {p for p in data(out) if _minute(out, p) + MINUTE <= upto}
    assert set(listed) == whole
    for path in data(out):
        walls = [
            Timestamp.parse(json.loads(line)["updated"]).wall // 10**9
            for line in file_bytes(path).splitlines()
        ]
        assert {wall - wall % MINUTE for wall in walls} == {_minute(out, path)}
    messages = read_files(out, ["t"])
    validate(
        messages,
        OrderValidator(),
        ResolvedValidator({"t": 1}),
        FingerprintValidator(feed.history.table, {"t": 1}, feed.history),
    )


def _minute(out: Path, path: Path) -> int:
    begin = PARTITION_FORMATS["minute"].begin(str(path.parent.relative_to(out)))
    assert begin is not None
    return begin // 10**9


def test_cutting_keeps_the_order() -> None:
    feed = FeedDouble({"t": "t"})
    writes = [put(n, f"{n}", step) for n, step in enumerate((61, 2, 59, 3, 130, 62))]
    rows = message_rows(writes)
    epoch = feed.epoch(at(200))
    batch = Batch("f", epoch, 0, feed.targets["t"], table_schema("t"), rows, START.previous())
    cut = list(in_buckets(batch, PARTITION_FORMATS["minute"]))
    assert [stamp for stamp, _ in cut] == [START, at(60), at(120)]
    assert [part.column("key").to_pylist() for _, part in cut] == [
        [b"[1]", b"[2]", b"[3]"],
        [b"[0]", b"[5]"],
        [b"[4]"],
    ]
