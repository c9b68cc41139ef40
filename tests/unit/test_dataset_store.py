"""Versions of a dataset on disk: a crash anywhere leaves the old or the new one."""

from __future__ import annotations

import datetime as dt
import stat
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest

from changefeed.core import faults
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.faults import DATASET_POINTS, Point
from changefeed.dataset import Dataset, DatasetColumn, Operation
from changefeed.dataset.store import DatasetFolders, ExtractMark, check_sides
from tests.helpers.datasets import publish_rows

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


def publish(dataset: Dataset, date: dt.date, rows: Rows, *, added: bool = False) -> None:
    tables = {o: pa.table({"a": keys}) for o, keys in rows.items()}
    publish_rows(dataset, date, tables, added=added)


def run_rows(dataset: Dataset, number: int) -> Rows:
    """The net changes of the run that was compared with a version."""
    run = DatasetFolders(dataset).run_after(number)
    assert run is not None
    found: Rows = {}
    for operation in (Operation.INSERT, Operation.UPDATE, Operation.DELETE):
        for file in run.files(operation):
            found.setdefault(str(operation), []).extend(pq.read_table(file)["a"].to_pylist())
    return found


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


@pytest.mark.parametrize("point", DATASET_POINTS)
def test_crash_of_a_run_that_adds_to_its_date(tmp_path: Path, point: Point) -> None:
    """Whatever a crash leaves, every run of a date can be read once the next one has ended."""
    dataset = dataset_in(tmp_path)
    publish(dataset, DAY1, OLD)
    rule = f"{point}@2:error" if point == Point.DATASET_DONE else f"{point}@1:error"
    with faults.armed(rule), pytest.raises(OSError, match=point):
        publish(dataset, DAY1, NEW, added=True)
    if point in (Point.DATASET_STAGED, Point.DATASET_VERSION_MADE):
        publish(dataset, DAY1, NEW, added=True)
    publish(dataset, DAY1, NEXT, added=True)
    assert [run_rows(dataset, number) for number in range(3)] == [OLD, NEW, {"I": [4]}]
    assert read(dataset.current) == pairs(NEXT, "I", "N")
    day = dataset.history / "EFF_DATE=2019-06-18"
    assert read(day) == sorted(pairs(OLD, "I") + pairs(NEW, "I", "U", "D") + pairs(NEXT, "I"))
    assert [path.name for path in dataset.history.iterdir()] == [day.name]


def test_repeat_replaces_the_last_run_of_a_date_only(tmp_path: Path) -> None:
    dataset = dataset_in(tmp_path)
    publish(dataset, DAY1, OLD)
    publish(dataset, DAY1, BAD, added=True)
    publish(dataset, DAY1, NEW)
    assert run_rows(dataset, 0) == OLD
    assert run_rows(dataset, 1) == NEW
    assert DatasetFolders(dataset).run_after(3) is None
    with pytest.raises(ChangefeedError, match="version 2 of dataset d was replaced"):
        DatasetFolders(dataset).run_after(2)


def test_first_run_that_crashes_is_forgotten(tmp_path: Path) -> None:
    dataset = dataset_in(tmp_path)
    with faults.armed(f"{Point.DATASET_VERSION_MADE}:error"), pytest.raises(OSError):
        publish(dataset, DAY1, BAD)
    assert not dataset.current.exists()
    publish(dataset, DAY1, OLD)
    assert read(dataset.current) == read(dataset.history) == pairs(OLD, "I")


def test_an_extract_that_was_refused_is_known_until_the_next_run(tmp_path: Path) -> None:
    dataset = dataset_in(tmp_path)
    store, mark = DatasetFolders(dataset), ExtractMark("a.csv", "1")
    assert store.refusal(mark) is None
    store.refuse(mark, ChangefeedError("CF1302", "twice", detail="a", hint="remove it."))
    found = DatasetFolders(dataset).refusal(mark)
    assert found is not None
    assert (found.code.number, found.message) == ("CF1302", "twice")
    assert (found.detail, found.hint) == ("a", "remove it.")
    assert store.refusal(ExtractMark("a.csv", "2")) is None, "its files have changed"
    publish(dataset, DAY1, OLD)
    assert store.refusal(mark) is None


def with_sensitive(folder: Path) -> Dataset:
    """Whose sensitive output has the files of the other one."""
    apart = DatasetColumn("ssn", "string", sensitive=True)
    plain = dataset_in(folder)
    return replace(plain, columns=(*plain.columns, apart), sensitive=folder / "apart")


@pytest.mark.parametrize("point", DATASET_POINTS)
def test_crash_with_sensitive_columns(tmp_path: Path, point: Point) -> None:
    """The sensitive columns follow the others, at the latest with the next run."""
    dataset = with_sensitive(tmp_path)
    publish(dataset, DAY1, OLD)
    rule = f"{point}@2:error" if point == Point.DATASET_DONE else f"{point}@1:error"
    with faults.armed(rule), pytest.raises(OSError, match=point):
        publish(dataset, DAY2, NEW)
    with DatasetFolders(dataset).locked():
        pass  # what a run begins with
    switched = point not in (Point.DATASET_STAGED, Point.DATASET_VERSION_MADE)
    wanted = pairs(NEW if switched else OLD, "I", "U", "N")
    assert read(dataset.current) == read(tmp_path / "apart" / "current") == wanted
    assert read(dataset.history) == read(tmp_path / "apart" / "history")
    publish(dataset, DAY3, NEXT)
    assert read(tmp_path / "apart" / "current") == pairs(NEXT, "I", "N")
    assert read(dataset.history) == read(tmp_path / "apart" / "history")
    kept = sorted(p.name for p in dataset.versions.iterdir() if p.name.isdigit())
    assert sorted(p.name for p in (tmp_path / "apart" / "versions").iterdir()) == kept


@pytest.mark.parametrize("mode", [None, 0o2750])
def test_sensitive_files_have_the_rights_of_their_folder(tmp_path: Path, mode: int | None) -> None:
    """A folder that changefeed makes is its owner's."""
    if mode is not None:
        (tmp_path / "apart").mkdir()
        (tmp_path / "apart").chmod(mode)
    dataset = with_sensitive(tmp_path)
    publish(dataset, DAY1, OLD)
    publish(dataset, DAY1, NEW, added=True)
    paths = [path for path in (tmp_path / "apart").rglob("*") if not path.is_symlink()]
    assert len(paths) > 10
    for path in (tmp_path / "apart", *paths):
        wanted = mode or 0o700
        found = stat.S_IMODE(path.stat().st_mode)
        assert found == (wanted if path.is_dir() else wanted & 0o666), path


def test_a_column_keeps_its_side(tmp_path: Path) -> None:
    plain, apart = dataset_in(tmp_path), with_sensitive(tmp_path)
    opened = replace(apart, columns=tuple(replace(c, sensitive=False) for c in apart.columns))
    store = DatasetFolders(plain)
    check_sides(apart, store.latest())
    publish(opened, DAY1, OLD)
    with pytest.raises(ChangefeedError, match="column ssn cannot become sensitive") as caught:
        check_sides(apart, store.latest())
    assert caught.value.code is Code.TARGET_NOT_WATCHABLE
    assert "new folders" in caught.value.hint
    # Its values are in the history also where the column is not in the last version.
    publish(plain, DAY2, OLD)
    with pytest.raises(ChangefeedError, match="column ssn cannot become sensitive"):
        check_sides(apart, store.latest())
    check_sides(opened, store.latest())


def test_an_open_column_was_never_sensitive(tmp_path: Path) -> None:
    apart = with_sensitive(tmp_path)
    opened = replace(apart, columns=tuple(replace(c, sensitive=False) for c in apart.columns))
    publish(apart, DAY1, OLD)
    with pytest.raises(ChangefeedError, match="column ssn cannot become open"):
        check_sides(opened, DatasetFolders(opened).latest())


def test_every_file_proves_itself(tmp_path: Path) -> None:
    """Versions, history and notes; both outputs."""
    dataset = with_sensitive(tmp_path)
    publish(dataset, DAY1, OLD)
    publish(dataset, DAY1, NEW, added=True)
    store = DatasetFolders(dataset)
    store.keep_registration({"tables": 1})
    found = [(path, damage) for path, _, damage in store.verify()]
    assert not [damage for _, damage in found if damage is not None]
    written = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "lock"]
    assert len(found) > 20 and {path.resolve() for path, _ in found} == set(written)
    latest = store.latest()
    assert latest is not None
    for path in written:
        content = path.read_bytes()
        for changed in (content[:-1], content + b" ", b""):
            path.write_bytes(changed)
            damaged = {str(damage.detail) for _, _, damage in store.verify() if damage is not None}
            linked = path.stat().st_nlink > 1  # the history has it under another name, too
            assert damaged and (linked or any(str(path) in text for text in damaged))
        path.write_bytes(content)
    base = next(latest.rows.glob("OPERATION=*/*"))
    base.write_bytes(b"other")
    with pytest.raises(ChangefeedError, match="a file of the dataset is damaged") as caught:
        store.check_rows(latest)
    assert caught.value.code is Code.LOG_DAMAGED and base.name in caught.value.detail


def test_sensitive_folder_of_somebody_else(tmp_path: Path) -> None:
    dataset = with_sensitive(tmp_path)
    (tmp_path / "apart" / "current").mkdir(parents=True)
    (tmp_path / "apart" / "current" / "precious").write_text("1")
    with pytest.raises(ChangefeedError, match="is no dataset of changefeed"):
        publish(dataset, DAY1, OLD)


def test_one_run_at_a_time(tmp_path: Path) -> None:
    dataset = dataset_in(tmp_path)
    with DatasetFolders(dataset).locked():
        with pytest.raises(ChangefeedError, match="another run of dataset d is at work"):
            with DatasetFolders(dataset).locked():
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
