"""Versions of a dataset on disk: a crash anywhere leaves the old or the new one."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as pads
import pytest

from changefeed.core import faults
from changefeed.core.errors import ChangefeedError
from changefeed.core.faults import DATASET_POINTS, Point
from changefeed.dataset import Dataset, DatasetColumn
from changefeed.dataset.store import Store
from tests.datasets import publish_rows

DAY1, DAY2, DAY3 = (dt.date(2019, 6, day) for day in (18, 19, 20))
Rows = dict[str, list[int]]

OLD: Rows = {"I": [1, 2]}
BAD: Rows = {"I": [5], "D": [1, 2]}
NEW: Rows = {"U": [1], "I": [3], "D": [2]}
NEXT: Rows = {"N": [1, 3], "I": [4]}


def dataset_in(folder: Path) -> Dataset:
    return Dataset(
        "d",
        (DatasetColumn("a", "int", key=True),),
        folder / "current",
        folder / "history",
        folder / "current.versions",
    )


def publish(dataset: Dataset, date: dt.date, rows: Rows) -> None:
    publish_rows(dataset, date, {o: pa.table({"a": keys}) for o, keys in rows.items()})


def read(folder: Path) -> list[tuple[int, str]]:
    rows = pads.dataset(folder.resolve(), format="parquet", partitioning="hive").to_table()
    return sorted((row["a"], row["OPERATION"]) for row in rows.to_pylist())


def pairs(rows: Rows, *operations: str) -> list[tuple[int, str]]:
    return sorted((key, o) for o, keys in rows.items() for key in keys if o in operations)


@pytest.mark.parametrize("point", DATASET_POINTS)
@pytest.mark.parametrize("repeated", [False, True], ids=["new day", "same day"])
def test_crash(tmp_path: Path, point: Point, repeated: bool) -> None:
    dataset = dataset_in(tmp_path)
    publish(dataset, DAY1, OLD)
    if repeated:
        publish(dataset, DAY2, BAD)
    # A run first finishes the one before: the last point is passed for that, too.
    rule = f"{point}@2:error" if point == Point.DATASET_DONE else f"{point}@1:error"
    with faults.armed(rule), pytest.raises(OSError, match=point):
        publish(dataset, DAY2, NEW)
    switched = point not in (Point.DATASET_STAGED, Point.DATASET_VERSION_MADE)
    old = BAD if repeated else OLD
    assert read(dataset.current) == pairs(NEW if switched else old, "I", "U", "N")
    if switched:
        # The next day's run completes the history of the day before.
        publish(dataset, DAY3, NEXT)
        assert read(dataset.current) == pairs(NEXT, "I", "N")
        assert read(dataset.history / "EFF_DATE=2019-06-20") == pairs(NEXT, "I")
    else:
        publish(dataset, DAY2, NEW)
        assert read(dataset.current) == pairs(NEW, "I", "U")
    assert read(dataset.history / "EFF_DATE=2019-06-19") == pairs(NEW, "I", "U", "D")
    assert read(dataset.history / "EFF_DATE=2019-06-18") == pairs(OLD, "I")
    left = [p.name for p in dataset.history.iterdir() if not p.name.startswith("EFF_DATE=")]
    assert left == []
    kept = [p.name for p in dataset.versions.iterdir() if p.name.isdigit()]
    assert len(kept) == 2


def test_first_run_that_crashes_is_forgotten(tmp_path: Path) -> None:
    dataset = dataset_in(tmp_path)
    with faults.armed(f"{Point.DATASET_VERSION_MADE}:error"), pytest.raises(OSError):
        publish(dataset, DAY1, BAD)
    assert not dataset.current.exists()
    publish(dataset, DAY1, OLD)
    assert read(dataset.current) == read(dataset.history) == pairs(OLD, "I")


def test_one_run_at_a_time(tmp_path: Path) -> None:
    dataset = dataset_in(tmp_path)
    with Store(dataset).locked():
        with pytest.raises(ChangefeedError, match="another run of dataset d is at work"):
            with Store(dataset).locked():
                pass


def test_history_outlives_the_versions_it_shares_files_with(tmp_path: Path) -> None:
    dataset = dataset_in(tmp_path)
    publish(dataset, DAY1, OLD)
    first = dataset.history / "EFF_DATE=2019-06-18" / "OPERATION=I" / "part.parquet"
    assert first.stat().st_nlink == 2
    for day in (DAY2, DAY3):
        publish(dataset, day, {"N": [1, 2]})
    assert first.stat().st_nlink == 1
    assert read(dataset.history) == pairs(OLD, "I")


def test_crash_while_history_is_written_twice(tmp_path: Path) -> None:
    """Recovery that crashes is recovered from."""
    dataset = dataset_in(tmp_path)
    for _ in range(2):
        with faults.armed(f"{Point.DATASET_HISTORY_BEGUN}:error"), pytest.raises(OSError):
            publish(dataset, DAY1, OLD)
    publish(dataset, DAY2, NEW)
    assert read(dataset.history / "EFF_DATE=2019-06-18") == pairs(OLD, "I")
    assert read(dataset.history / "EFF_DATE=2019-06-19") == pairs(NEW, "I", "U", "D")
