"""Versions of the current dataset on disk, and the history beside them.

::

    versions/000002/manifest.json     effective date, base version, counts
    versions/000002/rows/OPERATION=N/part-*.parquet    I, U, N and X: the current dataset
    versions/000002/deleted/OPERATION=D/part-*.parquet
    current -> versions/000002/rows   one rename switches it
    history/EFF_DATE=2019-06-19/OPERATION=U/...        I, U and D: hard links where possible

The switch of ``current`` is the commit of a run. What a crash leaves before it is removed by the
next run; what is missing after it (the history partition, the removal of old versions) is done by
the next run, which finds all of it in the version.
"""

from __future__ import annotations

import datetime as dt
import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from changefeed.core.errors import ChangefeedError
from changefeed.core.faults import Point, fault_point
from changefeed.dataset.model import IN_CURRENT, IN_HISTORY, OPERATION, Dataset, Operation

_MANIFEST = "manifest.json"
_ROWS = "rows"
_DELETED = "deleted"
_NAME = re.compile(r"\d{6,}\Z")
#: Names in a history partition that Spark does not read begin with an underscore.
_MARK = "_version"


@dataclass(frozen=True, slots=True)
class Version:
    """A version of the current dataset.

    Attributes:
        number: counts runs.
        date: effective date of the run that made it.
        base: the version it was compared with; None: the first run.
        hashing: see :attr:`.model.Dataset.hashing`.
        counts: rows by operation.
        folder: where it is.
    """

    number: int
    date: dt.date
    base: int | None
    hashing: str
    counts: Mapping[str, int]
    folder: Path

    @property
    def rows(self) -> Path:
        """The rows of the current dataset."""
        return self.folder / _ROWS


@dataclass(frozen=True, slots=True)
class Run:
    """A comparison, as its history partition has it.

    Attributes:
        number: the version it made.
        base: the version it compared with; 0: the first run.
        folder: its net changes, a folder for each operation.
    """

    number: int
    base: int
    folder: Path


class Store:
    """The folders of a dataset. Use :meth:`locked` around a run."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self._versions = dataset.versions

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other runs of this dataset away, and finish what a crash left.

        Raises:
            ChangefeedError: CF1301 another run is at work; CF1302 ``current`` is somebody else's.
        """
        self._check_current()
        for folder in (self._versions, self._dataset.history, self._dataset.current.parent):
            folder.mkdir(parents=True, exist_ok=True)
        with (self._versions / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ChangefeedError(
                    "CF1301",
                    f"another run of dataset {self._dataset.name} is at work",
                    hint="wait until it has ended.",
                ) from None
            self._recover()
            yield

    def _check_current(self) -> None:
        current = self._dataset.current
        if current.is_symlink() or not current.exists():
            return
        if current.is_dir() and not any(current.iterdir()):
            current.rmdir()
            return
        raise ChangefeedError(
            "CF1302",
            f"{current} exists and is no dataset of changefeed",
            hint="move it away, or name another folder for the current dataset; its rows can be "
            "the extract of the first run.",
        )

    # -- reading ----------------------------------------------------------------------------

    def latest(self) -> Version | None:
        """The version that ``current`` points to."""
        current = self._dataset.current
        if not current.is_symlink():
            return None
        folder = current.resolve().parent
        if folder.parent != self._versions.resolve():
            raise ChangefeedError(
                "CF1302",
                f"{current} points to {folder}, which is not in {self._versions}",
                hint="give the dataset the folder of versions that it was made with.",
            )
        return self._read(folder)

    def version(self, number: int) -> Version:
        """A version that is kept: the newest or its base."""
        return self._read(self._versions / f"{number:06d}")

    def _read(self, folder: Path) -> Version:
        try:
            content: dict[str, Any] = json.loads((folder / _MANIFEST).read_text())
        except (OSError, ValueError) as error:
            raise ChangefeedError(
                "CF1302", f"{folder / _MANIFEST} cannot be read", hint="restore it from a backup."
            ) from error
        return Version(
            number=int(folder.name),
            date=dt.date.fromisoformat(content["date"]),
            base=content["base"],
            hashing=content["hashing"],
            counts=content["counts"],
            folder=folder,
        )

    def run_after(self, number: int) -> Run | None:
        """The comparison with version ``number``; None while that is the current one.

        Raises:
            ChangefeedError: CF2103 the version was replaced: its day was repeated.
        """
        latest = self.latest()
        newest = 0 if latest is None else latest.number
        if newest == number:
            return None
        runs = {run.base: run for run in self._runs()}
        if number in runs and runs[number].number <= newest:
            return runs[number]
        if latest is not None and latest.base == number:
            # Its history partition is about to be written.
            return None
        raise ChangefeedError(
            "CF2103",
            f"version {number} of dataset {self._dataset.name} was replaced after its changes "
            "were read",
            detail="a day was compared again, or history partitions were removed",
        )

    def _runs(self) -> Iterator[Run]:
        for mark in self._dataset.history.glob(f"EFF_DATE=*/{_MARK}"):
            try:
                content = json.loads(mark.read_text())
            except FileNotFoundError:
                # Replaced between the listing and here.
                continue
            yield Run(content["number"], content["base"], mark.parent)

    # -- writing ----------------------------------------------------------------------------

    def stage(self) -> Path:
        """An empty place for the rows of a run; what was there is removed."""
        stage = self._versions / "staging"
        shutil.rmtree(stage, ignore_errors=True)
        stage.mkdir()
        shutil.rmtree(self.rejected, ignore_errors=True)
        return stage / _ROWS

    def discard(self) -> None:
        """Remove what a run staged."""
        shutil.rmtree(self._versions / "staging", ignore_errors=True)

    @property
    def rejected(self) -> Path:
        """Where a run that was refused leaves the rows that it was refused for."""
        return self._versions / "rejected"

    def publish(
        self, date: dt.date, base: Version | None, counts: Mapping[str, int], columns: object
    ) -> Version:
        """Make the staged rows the current dataset, and their net changes a history partition."""
        fault_point(Point.DATASET_STAGED)
        stage = self._versions / "staging"
        gone = f"{OPERATION}={Operation.DELETE}"
        (stage / _DELETED).mkdir()
        if (stage / _ROWS / gone).exists():
            (stage / _ROWS / gone).rename(stage / _DELETED / gone)
        latest = self.latest()
        number = 1 if latest is None else latest.number + 1
        manifest = {
            "date": date.isoformat(),
            "base": None if base is None else base.number,
            "hashing": self._dataset.hashing,
            "counts": dict(counts),
            "columns": columns,
        }
        _write_durably(stage / _MANIFEST, json.dumps(manifest, indent=1))
        _sync_tree(stage)
        folder = self._versions / f"{number:06d}"
        stage.rename(folder)
        _sync(self._versions)
        fault_point(Point.DATASET_VERSION_MADE)
        self._switch(folder)
        fault_point(Point.DATASET_SWITCHED)
        version = self._read(folder)
        self._finish(version)
        return version

    def _switch(self, folder: Path) -> None:
        current = self._dataset.current
        link = current.with_name(f".{current.name}.next")
        link.unlink(missing_ok=True)
        link.symlink_to(os.path.relpath(folder / _ROWS, current.parent))
        link.replace(current)
        _sync(current.parent)

    def _recover(self) -> None:
        """Finish the newest version's run, and forget one that did not get as far as the switch."""
        latest = self.latest()
        self.discard()
        if latest is not None:
            self._finish(latest)
        else:
            self._keep(set())

    def _finish(self, version: Version) -> None:
        self._write_history(version)
        self._keep({version.number} | ({version.base} if version.base is not None else set()))
        fault_point(Point.DATASET_DONE)

    def _keep(self, numbers: set[int]) -> None:
        for folder in self._versions.iterdir():
            if _NAME.match(folder.name) and int(folder.name) not in numbers:
                shutil.rmtree(folder)

    def _write_history(self, version: Version) -> None:
        history = self._dataset.history
        target = history / f"EFF_DATE={version.date.isoformat()}"
        made, old = history / "_next", history / "_old"
        shutil.rmtree(made, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)
        mark = json.dumps({"number": version.number, "base": version.base or 0})
        if (target / _MARK).exists() and (target / _MARK).read_text() == mark:
            return
        made.mkdir()
        for operation in IN_HISTORY:
            name = f"{OPERATION}={operation}"
            side = _ROWS if operation in IN_CURRENT else _DELETED
            if (version.folder / side / name).is_dir():
                _link_tree(version.folder / side / name, made / name)
        _write_durably(made / _MARK, mark)
        _sync_tree(made)
        fault_point(Point.DATASET_HISTORY_BEGUN)
        if target.exists():
            target.rename(old)
        fault_point(Point.DATASET_HISTORY_REMOVED)
        made.rename(target)
        _sync(history)
        shutil.rmtree(old, ignore_errors=True)
        fault_point(Point.DATASET_HISTORY_MADE)


def _link_tree(source: Path, target: Path) -> None:
    target.mkdir()
    for file in source.iterdir():
        if file.name.startswith((".", "_")):
            continue
        try:
            os.link(file, target / file.name)
        except OSError:
            # Another filesystem, or one without hard links.
            shutil.copyfile(file, target / file.name)


def _write_durably(path: Path, text: str) -> None:
    with path.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _sync_tree(folder: Path) -> None:
    for path, _, files in os.walk(folder):
        for name in files:
            _sync(Path(path) / name)
        _sync(Path(path))


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
