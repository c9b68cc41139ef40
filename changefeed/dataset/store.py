"""Versions of the current dataset on disk, and the history beside them.

::

    versions/000002/manifest.json     effective date, base version, counts
    versions/000002/rows/OPERATION=N/part-*.parquet    I, U, N and X: the current dataset
    versions/000002/deleted/OPERATION=D/part-*.parquet
    current -> versions/000002/rows   one rename switches it
    history/EFF_DATE=2019-06-19/OPERATION=U/...        I, U and D: hard links where possible

A date may have several runs: the files of the second and later ones begin with the number of their
version, and the partition's mark lists the runs.

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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from changefeed.core.clock import SYSTEM_CLOCK, Clock
from changefeed.core.durable import sync_path
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.faults import Point, fault_point
from changefeed.dataset.model import IN_CURRENT, IN_HISTORY, OPERATION, Dataset, Operation

_MANIFEST = "manifest.json"
_REFUSED = "refused.json"
_REGISTERED = "registered.json"
_ROWS = "rows"
_DELETED = "deleted"
_NAME = re.compile(r"\d{6,}\Z")
#: Names in a history partition that Spark does not read begin with an underscore.
_MARK = "_version"
#: The files of a later run of a date begin with its number.
_LATER = re.compile(r"(\d{6,})-")
#: A history partition is exchanged in two steps; whoever misses it looks again, seconds later.
_LOOKS, _LOOK_SECONDS = 20, 0.05


@dataclass(frozen=True, slots=True)
class ExtractMark:
    """Which extract a version was made from.

    Attributes:
        name: of the file or folder, where the dataset takes one after the other; else empty.
        signature: stands for its files with their sizes and times; empty where that is not known.
    """

    name: str
    signature: str


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
        made: when, in seconds since 1970; 0: by an earlier version of changefeed.
        extract: what it was made from; None: a run of the command.
    """

    number: int
    date: dt.date
    base: int | None
    hashing: str
    counts: Mapping[str, int]
    folder: Path
    made: float = 0.0
    extract: ExtractMark | None = None

    @property
    def rows(self) -> Path:
        """The rows of the current dataset."""
        return self.folder / _ROWS


@dataclass(frozen=True, slots=True)
class ComparisonRun:
    """A comparison, as its history partition has it.

    Attributes:
        number: the version it made.
        base: the version it compared with; 0: the first run.
        folder: the partition, a folder for each operation.
        first: it is the first run of its date.
    """

    number: int
    base: int
    folder: Path
    first: bool = True

    def files(self, operation: Operation) -> list[Path]:
        """Its net changes of one kind."""
        found = sorted((self.folder / f"{OPERATION}={operation}").glob("*.parquet"))
        return [file for file in found if self._owns(file.name)]

    def _owns(self, name: str) -> bool:
        later = _LATER.match(name)
        return self.first if later is None else int(later[1]) == self.number


class DatasetFolders:
    """The folders of a dataset. Use :meth:`locked` around a run."""

    def __init__(self, dataset: Dataset, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
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
                    Code.WRONG_JOB_STATE,
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
            Code.TARGET_NOT_WATCHABLE,
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
                Code.TARGET_NOT_WATCHABLE,
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
                Code.TARGET_NOT_WATCHABLE,
                f"{folder / _MANIFEST} cannot be read",
                hint="restore it from a backup.",
            ) from error
        extract = content.get("extract")
        return Version(
            number=int(folder.name),
            date=dt.date.fromisoformat(content["date"]),
            base=content["base"],
            hashing=content["hashing"],
            counts=content["counts"],
            folder=folder,
            made=content.get("made", 0.0),
            extract=None if extract is None else ExtractMark(**extract),
        )

    def run_after(self, number: int) -> ComparisonRun | None:
        """The comparison with version ``number``; None while that is the current one.

        Raises:
            ChangefeedError: CF2103 the version was replaced: its day was repeated.
        """
        for _ in range(_LOOKS):
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
            self._clock.sleep(_LOOK_SECONDS)
        raise ChangefeedError(
            Code.SOURCE_LOG_REPLACED,
            f"version {number} of dataset {self._dataset.name} was replaced after its changes "
            "were read",
            detail="a day was compared again, or history partitions were removed",
        )

    def _runs(self) -> Iterator[ComparisonRun]:
        for mark in self._dataset.history.glob(f"EFF_DATE=*/{_MARK}"):
            try:
                yield from _runs_of(mark)
            except FileNotFoundError:
                # Replaced between the listing and here.
                continue

    # -- writing ----------------------------------------------------------------------------

    def stage(self) -> Path:
        """An empty place for the rows of a run; what was there is removed."""
        stage = self._versions / "staging"
        shutil.rmtree(stage, ignore_errors=True)
        stage.mkdir()
        shutil.rmtree(self.rejected, ignore_errors=True)
        return stage / _ROWS

    def refuse(self, extract: ExtractMark, error: ChangefeedError) -> None:
        """Remember why an extract was refused, until the next comparison."""
        told = {
            "extract": asdict(extract),
            "code": error.code.number,
            "message": error.message,
            "detail": error.detail,
            "hint": error.hint,
        }
        self._versions.mkdir(parents=True, exist_ok=True)
        self._keep_note(_REFUSED, told)

    def refusal(self, extract: ExtractMark) -> ChangefeedError | None:
        """Why an extract was refused; None where it was not, or not as its files are now."""
        try:
            told = json.loads((self._versions / _REFUSED).read_text())
        except FileNotFoundError:
            return None
        if ExtractMark(**told["extract"]) != extract:
            return None
        code = Code.stored(told["code"]) or Code.NOT_SUPPORTED
        return ChangefeedError(code, told["message"], detail=told["detail"], hint=told["hint"])

    def keep_registration(self, told: Mapping[str, object]) -> None:
        """Remember what the tables of the catalog show."""
        self._keep_note(_REGISTERED, told)

    def registration(self) -> dict[str, Any]:
        """What :meth:`keep_registration` was told last; empty before."""
        try:
            told: dict[str, Any] = json.loads((self._versions / _REGISTERED).read_text())
        except FileNotFoundError:
            return {}
        return told

    def _keep_note(self, name: str, told: Mapping[str, object]) -> None:
        made = self._versions / f".{name}"
        made.write_text(json.dumps(told))
        made.replace(self._versions / name)

    def discard(self) -> None:
        """Remove what a run staged."""
        shutil.rmtree(self._versions / "staging", ignore_errors=True)

    @property
    def rejected(self) -> Path:
        """Where a run that was refused leaves the rows that it was refused for."""
        return self._versions / "rejected"

    def publish(
        self,
        date: dt.date,
        base: Version | None,
        counts: Mapping[str, int],
        columns: object,
        extract: ExtractMark | None = None,
    ) -> Version:
        """Make the staged rows the current dataset, and add their net changes to the history.

        Runs of the same date that came after ``base`` are replaced, those before it stay.
        """
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
            "made": self._clock.now().wall / 1e9,
            "extract": None if extract is None else asdict(extract),
        }
        _write_durably(stage / _MANIFEST, json.dumps(manifest, indent=1))
        _sync_tree(stage)
        folder = self._versions / f"{number:06d}"
        stage.rename(folder)
        sync_path(self._versions)
        fault_point(Point.DATASET_VERSION_MADE)
        self._switch(folder)
        (self._versions / _REFUSED).unlink(missing_ok=True)
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
        sync_path(current.parent)

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
        if old.exists() and not target.exists():
            # A crash between the two renames below: earlier runs of the date are only there.
            old.rename(target)
        shutil.rmtree(made, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)
        base = version.base or 0
        known = list(_runs_of(target / _MARK)) if (target / _MARK).exists() else []
        if any((run.number, run.base) == (version.number, base) for run in known):
            return
        kept = [run for run in known if run.number <= base]
        made.mkdir()
        prefix = f"{version.number:06d}-" if kept else ""
        for operation in IN_HISTORY:
            name = f"{OPERATION}={operation}"
            side = _ROWS if operation in IN_CURRENT else _DELETED
            files = [file for run in kept for file in run.files(operation)]
            _link_files(files, made / name)
            _link_files(_data_files(version.folder / side / name), made / name, prefix)
        runs = [{"number": run.number, "base": run.base} for run in kept]
        mark = json.dumps({"runs": [*runs, {"number": version.number, "base": base}]})
        _write_durably(made / _MARK, mark)
        _sync_tree(made)
        fault_point(Point.DATASET_HISTORY_BEGUN)
        if target.exists():
            target.rename(old)
        fault_point(Point.DATASET_HISTORY_REMOVED)
        made.rename(target)
        sync_path(history)
        shutil.rmtree(old, ignore_errors=True)
        fault_point(Point.DATASET_HISTORY_MADE)


def _runs_of(mark: Path) -> Iterator[ComparisonRun]:
    """The runs of a history partition, the first one first."""
    content = json.loads(mark.read_text())
    # Partitions of earlier versions have one run.
    runs = content.get("runs", [content])
    for place, run in enumerate(runs):
        yield ComparisonRun(run["number"], run["base"], mark.parent, first=place == 0)


def _data_files(folder: Path) -> list[Path]:
    """What a run wrote, without the files that Spark keeps beside it."""
    if not folder.is_dir():
        return []
    return [file for file in sorted(folder.iterdir()) if not file.name.startswith((".", "_"))]


def _link_files(files: Sequence[Path], target: Path, prefix: str = "") -> None:
    if files:
        target.mkdir(exist_ok=True)
    for file in files:
        try:
            os.link(file, target / f"{prefix}{file.name}")
        except OSError:
            # Another filesystem, or one without hard links.
            shutil.copyfile(file, target / f"{prefix}{file.name}")


def _write_durably(path: Path, text: str) -> None:
    with path.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _sync_tree(folder: Path) -> None:
    for path, _, files in os.walk(folder):
        for name in files:
            sync_path(Path(path) / name)
        sync_path(Path(path))
