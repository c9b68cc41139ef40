"""What a user sees when files cannot be written: a full disk, a missing right."""

from __future__ import annotations

import errno
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from changefeed.core.timings import Timings
from changefeed.spark.session import NodeSpark
from changefeed_testing.sinks.readers import file_bytes, visible_files
from sinks.files.staged import UnpublishedFile
from tests.e2e.feeds import Feeds, running
from tests.helpers import waiting
from tests.services.postgres import Database

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.postgres]


@pytest.fixture
def feeds(tmp_path: Path, postgres: Database, spark_engine: NodeSpark) -> Iterator[Feeds]:
    postgres.execute("create table t (a int primary key, b text); insert into t values (1, 'x')")
    with running(tmp_path / "state", spark_engine) as made:
        made.connect(shop=postgres.uri)
        yield made


def until(feeds: Feeds, status: str) -> str:
    """Wait until the feed has a status; what it says of itself then."""
    deadline = time.monotonic() + 60
    while (job := feeds.catalog.job("f")).status.value != status:
        assert time.monotonic() < deadline, f"{job.status} {job.reason}, never {status}"
        time.sleep(0.05)
    return f"{job.reason}|{feeds.execute('SHOW CHANGEFEED f').rows!r}"


def test_a_full_disk_is_waited_for(
    feeds: Feeds, postgres: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = threading.Event()
    whole = UnpublishedFile.write

    def write(self: UnpublishedFile, values: pa.Array) -> None:
        if full.is_set():
            raise OSError(errno.ENOSPC, "No space left on device")
        whole(self, values)

    monkeypatch.setattr(UnpublishedFile, "write", write)
    folder = tmp_path / "out"
    feeds.execute(f"CREATE CHANGEFEED f FOR t INTO 'file://{folder}' WITH updated")
    feeds.sync("f")
    full.set()
    postgres.execute("update t set b = 'y'")
    said = until(feeds, "retrying")
    assert f"no room for {folder}: No space left on device" in said
    full.clear()
    feeds.sync("f")
    lines = [line for path in visible_files(folder) for line in file_bytes(path).splitlines()]
    assert [json.loads(line)["after"]["b"] for line in lines if b"after" in line] == ["x", "y"]


def test_a_missing_right_stops_the_feed_and_resume_goes_on(
    feeds: Feeds, postgres: Database, tmp_path: Path
) -> None:
    """Root may write anywhere, so a file in place of the directory stands for the right."""
    (tmp_path / "out").write_text("")
    feeds.execute(f"CREATE CHANGEFEED f FOR t INTO 'file://{tmp_path}/out' WITH updated")
    said = until(feeds, "failed")
    assert f"{tmp_path}/out cannot be written" in said
    assert "check the owner and rights of the directory, then RESUME." in said
    (tmp_path / "out").unlink()
    feeds.execute("RESUME CHANGEFEED f")
    feeds.sync("f")
    assert len(visible_files(tmp_path / "out")) == 1


def gathers(feeds: Feeds) -> bool:
    """Whether feed f says so; the time for which it does is then no part of its lag."""
    found = {job.name: shown for job, shown in feeds.interpreter.health()}
    if not (shown := found["f"]).gathers:
        return False
    assert shown.status == "running" and shown.lag is not None and shown.age is not None
    assert shown.lag < shown.age and not found["g"].gathers
    said = feeds.execute("SHOW CHANGEFEED f").rows
    return "gathers changes until " in repr(said)


def test_changes_gather_until_they_fill_a_file_or_the_interval_is_over(
    postgres: Database, tmp_path: Path, spark_engine: NodeSpark
) -> None:
    """Another feed shows that the changes are in the change log; SYNC does not wait."""
    folder = tmp_path / "out"
    postgres.execute("create table t (a int primary key, b text); insert into t values (1, 'x')")
    with running(tmp_path / "state", spark_engine, timings=Timings()) as feeds:
        feeds.connect(shop=postgres.uri)
        feeds.execute(f"CREATE CHANGEFEED f FOR t INTO 'file://{folder}?file_size=20kB'")
        feeds.execute("CREATE CHANGEFEED g FOR t INTO 'null://'")
        feeds.sync("f")
        postgres.execute("insert into t values (2, 'y')")
        feeds.sync("f")  # the first change after a scan is a file at once
        for number in range(3, 7):
            postgres.execute(f"insert into t values ({number}, 'y')")
            feeds.sync("g")
        assert len(visible_files(folder)) == 2
        waiting.until(lambda: gathers(feeds), "SHOW says that changes gather")
        feeds.sync("f")
        lines = [file_bytes(path).count(b"\n") for path in visible_files(folder)]
        assert lines == [1, 1, 4]
        for number in range(7, 10):  # two are not enough to fill a file
            assert len(visible_files(folder)) == 3
            postgres.execute(f"insert into t values ({number}, repeat('y', 9000))")
            feeds.sync("g")
        waiting.until(lambda: len(visible_files(folder)) > 3, "the changes are a file")
        counted = [f"each change of {name} counts, the row of its scan does not" for name in "fg"]
        waiting.until(lambda: feeds.catalog.job("f").delays.rows == 8, counted[0])
        waiting.until(lambda: feeds.catalog.job("g").delays.rows == 8, counted[1])
