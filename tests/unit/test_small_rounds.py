"""Rounds of few rows into a Delta table beside another writer, and the node's checkpoints."""

from __future__ import annotations

import datetime as dt
import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from changefeed.core.clock import ManualClock, Timestamp
from changefeed.core.schema import Column, TableName, TableSchema
from changefeed.core.types import LogicalType
from changefeed.options import History
from sinks.base import Batch, Epoch, Target
from sinks.lake.small.commit_log import Action, CommitLog, file_key, physical_name
from sinks.lake.small.creation import create_table
from sinks.lake.small.rounds import CommitNotes, SmallLimits, SmallRounds
from sinks.lake.small.table_files import LocalTableFiles, TableFiles
from sinks.lake.small.vectors import VectorFile, read_vector
from sinks.lake.staging import stage
from sinks.lake.table import mark_of
from sinks.ownership import Owner
from tests.helpers.waiting import until

OWNER = Owner("state", 1, "s.public.t", "feed")
SCHEMA = TableSchema(
    TableName("s", "public", "t"),
    (Column("at", "timestamp", LogicalType.parse("timestamp"), False, 1),),
    (0,),
)


def table_in(folder: Path) -> CommitLog:
    properties = {"delta.enableDeletionVectors": "true", **mark_of(OWNER)}
    columns = {"at": "timestamp_ntz", "_sequence_num": "bigint"}
    assert create_table(folder, columns, properties, 1)
    return CommitLog(LocalTableFiles(folder), 10)


def small_rounds(files: TableFiles, folder: Path, limits: SmallLimits | None = None) -> SmallRounds:
    return SmallRounds(
        files, folder / "keys", OWNER, "_sequence_num", limits or SmallLimits(), ManualClock()
    )


def insert(few: SmallRounds, folder: Path, number: int, day: int) -> bool:
    row = {
        "op": "c", "wall": number, "logical": 0, "seq": number, "ord": 0, "xid": 1,
        "commit_us": 1, "last": True, "missing": None, "a0": f"2024-01-{day:02d}T00:00:00",
    }  # fmt: skip
    rows = pa.Table.from_pylist([row], schema=SCHEMA.log_schema())
    target = Target(SCHEMA.table, "t")
    batch = Batch("feed", Epoch(number, Timestamp(number)), 0, target, SCHEMA, rows)
    staged = stage(batch, folder / f"{number}.parquet", history=History.OFF)
    assert staged is not None
    return few.commit([staged], SCHEMA, CommitNotes("{}", ("changefeed", number)))


def days(folder: Path) -> list[int]:
    found = []
    log = CommitLog(LocalTableFiles(folder), 10)
    name = physical_name(log.fields[0])
    for path, action in log.files.items():
        column = pq.read_table(folder / path)[name]
        if vector := action.get("deletionVector"):
            column = column.filter(
                pa.array(~read_vector(vector, LocalTableFiles(folder), len(column)))
            )
        found += [at.day for at in column.to_pylist()]
    return sorted(found)


def test_files_beside_one_that_cannot_be_read_are_indexed_later(tmp_path: Path) -> None:
    """Else a row that the table has would be added a second time."""
    folder = tmp_path / "t"
    others = table_in(folder)
    few = SmallRounds(
        LocalTableFiles(folder),
        tmp_path / "keys",
        OWNER,
        "_sequence_num",
        SmallLimits(),
        ManualClock(),
    )
    names = [physical_name(field) for field in others.fields]
    actions: list[Action] = []
    second = int(dt.datetime(2024, 1, 2, tzinfo=dt.UTC).timestamp()) * 10**6
    for number, kind, at in ((1, "us", second), (2, "ns", 1)):
        path = folder / f"{number}.parquet"
        columns = [pa.array([at], pa.timestamp(kind)), pa.array([1], pa.int64())]
        pq.write_table(pa.table(columns, names), path)
        size = path.stat().st_size
        actions.append({"path": path.name, "partitionValues": {}, "size": size, "dataChange": True})
    assert others.commit([{"add": action} for action in actions])
    assert not insert(few, tmp_path, 10, 2)
    assert others.commit([{"remove": actions[1]}])
    assert insert(few, tmp_path, 20, 2) and insert(few, tmp_path, 30, 3)
    assert days(folder) == [2, 3]
    few.close()


def test_a_checkpoint_leaves_out_removed_files_that_are_back(tmp_path: Path) -> None:
    """Another writer restores a version: the table has a file without its vector again."""
    folder = tmp_path / "t"
    log = table_in(folder)
    plain: Action = {"path": "a.parquet", "partitionValues": {}, "size": 1, "dataChange": True}
    vectors = [VectorFile().add(np.array([True])) for _ in range(2)]
    marked = [plain | {"deletionVector": vector} for vector in vectors]
    inline = plain | {"deletionVector": {"storageType": "i", "pathOrInlineDv": "x",
                                         "sizeInBytes": 1, "cardinality": 1}}  # fmt: skip
    assert log.commit([{"add": plain}])
    gone = set()
    for old, new in itertools.pairwise([plain, *marked, inline, plain, marked[1]]):
        assert log.commit([{"remove": old | {"deletionTimestamp": 1}}, {"add": new}])
        log.checkpoint(5)
        path = folder / "_delta_log" / f"{log.version:020d}.checkpoint.parquet"
        found = [file_key(row) for row in pq.read_table(path)["remove"].drop_null().to_pylist()]
        gone.add(file_key(old))
        assert sorted(found) == sorted(gone - {file_key(new)})
        assert CommitLog(LocalTableFiles(folder), 10).files.keys() == log.files.keys()


class DoubtfulFiles(LocalTableFiles):
    """Commits that fail once, after or before they are there, or come later."""

    certain = False

    def __init__(self, folder: Path, happens: str) -> None:
        super().__init__(folder)
        self.happens = happens
        self.late: tuple[str, bytes] | None = None

    def commit(self, path: str, content: bytes) -> None:
        happens, self.happens = self.happens, ""
        if happens == "late":
            self.late = path, content
        elif happens != "never":
            super().commit(path, content)
        if happens:
            raise TimeoutError("no answer")

    def arrive(self) -> None:
        if self.late is not None:
            with suppress(FileExistsError):
                super().commit(*self.late)


@pytest.mark.parametrize("happens", ["done", "never", "late"])
def test_a_commit_without_an_answer_loses_and_repeats_nothing(tmp_path: Path, happens: str) -> None:
    folder = tmp_path / "t"
    table_in(folder)
    files = DoubtfulFiles(folder, "")
    few = small_rounds(files, tmp_path)
    assert insert(few, tmp_path, 10, 1) and not few.in_doubt
    files.happens = happens
    assert not insert(few, tmp_path, 20, 2) and few.in_doubt
    files.arrive()
    assert insert(few, tmp_path, 20, 2) and insert(few, tmp_path, 30, 3)
    assert not few.in_doubt
    assert days(folder) == [1, 2, 3]
    left = {path.name for path in folder.glob("*.parquet")}
    assert left == CommitLog(files, 10).files.keys()
    few.close()


class OverwritingFiles(LocalTableFiles):
    """A place that passes over the condition of a commit."""

    def refuses(self, path: str) -> bool:
        return False


def test_a_place_that_overwrites_commits_is_left_to_spark(tmp_path: Path) -> None:
    folder = tmp_path / "t"
    log = table_in(folder)
    few = small_rounds(OverwritingFiles(folder), tmp_path)
    assert not insert(few, tmp_path, 10, 1)
    assert not log.follow() and not list(folder.glob("*.parquet"))


class WaitingFiles(LocalTableFiles):
    """Data files can be read from a moment on."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.ready = threading.Event()

    @contextmanager
    def parquet(self, path: str) -> Iterator[pq.ParquetFile]:
        assert self.ready.wait(60)
        with super().parquet(path) as opened:
            yield opened


@pytest.mark.parametrize("ends", [False, True])
def test_the_index_of_a_large_table_is_made_beside_the_rounds_of_spark(
    tmp_path: Path, ends: bool
) -> None:
    """Which are in it as soon as it is used; a table that is forgotten meanwhile leaves nothing."""
    folder = tmp_path / "t"
    table_in(folder)
    first = small_rounds(LocalTableFiles(folder), tmp_path)
    assert all(insert(first, tmp_path, number, number) for number in (1, 2, 3))
    files = WaitingFiles(folder)
    few = small_rounds(files, tmp_path, SmallLimits(at_once=2))
    assert not insert(few, tmp_path, 4, 4) and not few.in_doubt
    assert insert(first, tmp_path, 4, 4)
    assert not insert(few, tmp_path, 5, 3)
    if ends:
        few.close()
    files.ready.set()
    until(lambda: insert(few, tmp_path, 5, 3))
    assert insert(few, tmp_path, 6, 4) and insert(few, tmp_path, 7, 7)
    assert days(folder) == [1, 2, 3, 4, 7]
    few.close()
    first.close()
    until(lambda: not list((tmp_path / "keys").glob("*")))
