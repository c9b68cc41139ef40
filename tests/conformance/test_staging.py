"""Rows for executors: files in a staging place, and tasks that get the content of one."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from changefeed.core.errors import ChangefeedError
from changefeed.spark.session import NodeSpark
from changefeed.spark.staging import StagingArea
from changefeed.spark.staging_place import StagingPlace
from changefeed.spark.tasks import TaskResult, run_files

pytestmark = pytest.mark.spark


def size_of(
    number: int, content: pa.Buffer, report: Callable[[int, int], None]
) -> list[TaskResult]:
    """A task: says how long the content is, and what its first byte is."""
    report(1, content.size)
    return [TaskResult(number, content.size, content.to_pybytes()[0])]


def made(folder: Path, count: int) -> list[Path]:
    folder.mkdir()
    paths = [folder / f"part-{number}" for number in range(count)]
    for number, path in enumerate(paths):
        path.write_bytes(bytes([number]) * (number + 1))
    return paths


def test_each_file_is_a_task_by_its_place(spark_engine: NodeSpark, tmp_path: Path) -> None:
    done = run_files(
        spark_engine, size_of, made(tmp_path / "own", 5), group="g", on_progress=lambda r, s: None
    )
    assert sorted(done, key=lambda d: d.item) == [TaskResult(n, n + 1, n) for n in range(5)]


def keep_local_files(spark: NodeSpark, kind: str) -> None:
    """Have Hadoop's cache hold a client of this class for ``file:``."""
    context: Any = spark.session().sparkContext
    hadoop = context._jvm.org.apache.hadoop
    settings = hadoop.conf.Configuration(context._jsc.hadoopConfiguration())
    settings.set("fs.file.impl", f"org.apache.hadoop.fs.{kind}")
    root = context._jvm.java.net.URI("file:///")
    hadoop.fs.FileSystem.get(root, settings).close()
    found = hadoop.fs.FileSystem.get(root, settings)
    assert found.getClass().getSimpleName() == kind


@pytest.mark.parametrize("kept", ["LocalFileSystem", "RawLocalFileSystem"])
def test_files_are_copied_for_a_block_and_removed(
    spark_engine: NodeSpark, tmp_path: Path, kept: str
) -> None:
    """Whichever of its two classes the JVM keeps for local files."""
    keep_local_files(spark_engine, kept)
    place = tmp_path / "place"
    staging = StagingArea(StagingPlace(str(place)), spark_engine.session)
    paths = made(tmp_path / "own", 6)
    with staging.shared([str(path) for path in paths]) as names:
        assert [Path(name).read_bytes() for name in names] == [p.read_bytes() for p in paths]
        assert all(Path(name).is_relative_to(place) for name in names)
    with pytest.raises(ZeroDivisionError), staging.shared([str(paths[0])]):
        raise ZeroDivisionError
    with staging.folder() as folder:
        Path(folder).mkdir(parents=True)
    assert [path for path in place.rglob("*") if path.is_file() or path.name.isdigit()] == []
    staging.close()
    assert list(place.iterdir()) == []
    assert all(path.exists() for path in paths)


class FarSession:
    """A session whose JVM is out of reach."""

    version = "4.1"


def test_without_the_jvms_clients_files_are_copied_and_removed(tmp_path: Path) -> None:
    place, session = tmp_path / "place", FarSession()
    old = place / "changefeed-rows-of-a-crash" / "00000001"
    old.mkdir(parents=True)
    (old / "part-0").write_bytes(b"old")
    os.utime(old / "part-0", (1e9, 1e9))
    staging = StagingArea(StagingPlace(str(place)), lambda: cast(SparkSession, session))
    paths = made(tmp_path / "own", 6)
    with staging.shared([str(path) for path in paths]) as names:
        assert [Path(name).read_bytes() for name in names] == [p.read_bytes() for p in paths]
        assert not old.parent.exists()
    staging.close()
    assert not list(place.iterdir())


def test_what_a_crash_left_goes_after_a_day_and_nothing_else(
    spark_engine: NodeSpark, tmp_path: Path
) -> None:
    place = tmp_path / "place"
    old = place / "changefeed-rows-0a" / "00000001"
    fresh = place / "changefeed-rows-0b" / "00000001"
    theirs = place / "changefeed" / "old"
    for folder in (old, fresh, theirs):
        folder.mkdir(parents=True)
        (folder / "rows").write_text("x")
    for folder in (old, theirs):
        os.utime(folder / "rows", (time.time() - 90_000,) * 2)
    with StagingArea(StagingPlace(str(place)), spark_engine.session).folder():
        assert not old.parent.exists()
        assert (fresh / "rows").exists() and (theirs / "rows").exists()


def test_a_place_that_cannot_be_written_is_an_error(
    spark_engine: NodeSpark, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    staging = StagingArea(StagingPlace(str(tmp_path / "file")), spark_engine.session)
    with (
        pytest.raises(ChangefeedError, match="rows cannot be staged in") as caught,
        staging.shared([str(tmp_path / "file")]),
    ):
        pytest.fail("nothing was staged")
    assert caught.value.code.number == "CF4002"
