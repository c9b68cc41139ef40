"""Versions of the current dataset on disk, and the history beside them.

::

    versions/000002/manifest.json     effective date, base version, counts
    versions/000002/rows/OPERATION=N/part-*.parquet    I, U, N and X: the current dataset
    versions/000002/deleted/OPERATION=D/part-*.parquet
    versions/000002/rows/_proofs      checksums of the files; also in deleted/ and in the history
    current -> versions/000002/rows   one rename switches it
    history/EFF_DATE=2019-06-19/OPERATION=U/...        I, U and D: hard links where possible
    sensitive/versions, sensitive/current, sensitive/history    the same for the sensitive columns

A date may have several runs: the files of the second and later ones begin with the number of their
version, and the partition's mark lists the runs.

The switch of ``current`` is the commit of a run. What a crash leaves before it is removed by the
next run; what is missing after it (the history partition, the link of the sensitive columns, the
removal of old versions) is done by the next run, which finds all of it in the version.
"""

from __future__ import annotations

import datetime as dt
import fcntl
import json
import os
import re
import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from changefeed.core.clock import SYSTEM_CLOCK, Clock
from changefeed.core.durable import read_durable, replace_durably, sync_path
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.faults import Point, fault_point
from changefeed.core.proofs import AlteredBytes, FileProof
from changefeed.core.telemetry import log
from changefeed.dataset.model import IN_CURRENT, IN_HISTORY, OPERATION, Dataset, Operation

_MANIFEST = "manifest.json"
_REFUSED = "refused.json"
_REGISTERED = "registered.json"
_ROWS = "rows"
_DELETED = "deleted"
_WHOLE = "whole"
_NAME = re.compile(r"\d{6,}\Z")
#: Names in a history partition that Spark does not read begin with an underscore.
_MARK, _PROOFS = "_version", "_proofs"
#: Others may read a dataset.
_RIGHTS = 0o666
#: The files of a later run of a date begin with its number.
_LATER = re.compile(r"(\d{6,})-")
#: A history partition is exchanged in two steps; a reader that misses it looks again.
_LOOKS, _LOOK_SECONDS = 20, 0.05


@dataclass(frozen=True, slots=True)
class ExtractMark:
    """Which extract a version was made from.

    Attributes:
        name: of the file or folder, where the dataset takes one after the other, from the first
            wildcard on; else empty.
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
        made: when, in seconds since 1970.
        extract: what it was made from; None: a run of the command.
        sides: the columns that it and the versions before it had, in lower case, and whether each
            was kept apart as sensitive.
    """

    number: int
    date: dt.date
    base: int | None
    hashing: str
    counts: Mapping[str, int]
    folder: Path
    made: float
    extract: ExtractMark | None
    sides: Mapping[str, bool]

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


class _Output:
    """The folders of one output: a link to its newest version, its versions, and its history.

    Args:
        current: the link.
        history: the folder of the history partitions.
        versions: the folder of the versions.
        rights: what the output makes has the rights of this folder; None: those that Spark and the
            process give.
    """

    def __init__(
        self, current: Path, history: Path, versions: Path, rights: Path | None = None
    ) -> None:
        self.current = current
        self.history = history
        self.versions = versions
        self._rights = rights

    def prepare(self) -> None:
        """Have the folders.

        Raises:
            ChangefeedError: CF1302 ``current`` is not a dataset's.
        """
        self._check_current()
        if self._rights is not None and not self._rights.exists():
            self._rights.parent.mkdir(parents=True, exist_ok=True)
            self._rights.mkdir(mode=0o700)
        for folder in (self.versions, self.history, self.current.parent):
            if not folder.exists():
                folder.mkdir(parents=True)
                self.protect(folder)

    @property
    def staging(self) -> Path:
        """The place of a version that is being made."""
        return self.versions / "staging"

    def folder(self, number: int) -> Path:
        """The place of a version."""
        return self.versions / f"{number:06d}"

    def stage(self) -> Path:
        """An empty place for rows; what was there is removed."""
        self.discard()
        self.staging.mkdir()
        self.protect(self.staging)
        return self.staging / _ROWS

    def protect(self, folder: Path) -> None:
        """Give a folder, and what is in it, the rights of the output's own folder."""
        if self._rights is None:
            return
        mode = stat.S_IMODE(self._rights.stat().st_mode)
        for path, _, files in os.walk(folder):
            Path(path).chmod(mode)
            for name in files:
                (Path(path) / name).chmod(mode & 0o666)

    def divide(self) -> None:
        """Take the rows that are in the history only out of those of the current dataset."""
        gone = f"{OPERATION}={Operation.DELETE}"
        (self.staging / _DELETED).mkdir()
        if (self.staging / _ROWS / gone).exists():
            (self.staging / _ROWS / gone).rename(self.staging / _DELETED / gone)

    def keep_staged(self, number: int) -> None:
        """Make what is staged a version, durably; no reader sees it yet."""
        for side in (_ROWS, _DELETED):
            if (self.staging / side).is_dir():
                _prove(self.staging / side)
        self.protect(self.staging)
        _sync_tree(self.staging)
        self.staging.rename(self.folder(number))
        sync_path(self.versions)

    def discard(self) -> None:
        """Remove what is staged."""
        shutil.rmtree(self.staging, ignore_errors=True)

    def _check_current(self) -> None:
        current = self.current
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

    def switch(self, number: int) -> None:
        """Let readers see a version."""
        folder = self.folder(number)
        current = self.current
        target = os.path.relpath(folder / _ROWS, current.parent)
        if current.is_symlink() and os.readlink(current) == target:
            return
        link = current.with_name(f".{current.name}.next")
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        link.replace(current)
        sync_path(current.parent)

    def keep(self, numbers: set[int]) -> None:
        """Remove all versions but these."""
        for folder in self.versions.iterdir():
            if _NAME.match(folder.name) and int(folder.name) not in numbers:
                shutil.rmtree(folder)

    def write_history(self, version: Version) -> None:
        """Have the history partition of a version, once."""
        history = self.history
        target = history / f"EFF_DATE={version.date.isoformat()}"
        made, old = history / "_next", history / "_old"
        if old.exists() and not target.exists():
            # A crash between the two renames below: earlier runs of the date are only there.
            old.rename(target)
        shutil.rmtree(made, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)
        base, source = version.base or 0, self.folder(version.number)
        known = list(_runs_of(target / _MARK)) if (target / _MARK).exists() else []
        if any((run.number, run.base) == (version.number, base) for run in known):
            return
        kept = [run for run in known if run.number <= base]
        made.mkdir()
        prefix = f"{version.number:06d}-" if kept else ""
        proofs: _Proofs = {}
        for operation in IN_HISTORY:
            name = f"{OPERATION}={operation}"
            side = _ROWS if operation in IN_CURRENT else _DELETED
            files = [file for run in kept for file in run.files(operation)]
            proofs |= _link_files(files, made / name)
            proofs |= _link_files(_data_files(source / side / name), made / name, prefix)
        runs = [{"number": run.number, "base": run.base} for run in kept]
        runs.append({"number": version.number, "base": base})
        mark = json.dumps({"date": version.date.isoformat(), "runs": runs})
        replace_durably(made / _MARK, mark, mode=_RIGHTS)
        _keep_proofs(made, proofs)
        self.protect(made)
        _sync_tree(made)
        fault_point(Point.DATASET_HISTORY_BEGUN)
        if target.exists():
            target.rename(old)
        fault_point(Point.DATASET_HISTORY_REMOVED)
        made.rename(target)
        sync_path(history)
        shutil.rmtree(old, ignore_errors=True)
        fault_point(Point.DATASET_HISTORY_MADE)

    def verify(self) -> Iterator[tuple[Path, int, ChangefeedError | None]]:
        """See :meth:`DatasetFolders.verify`."""
        for folder in sorted(self.versions.glob("*")):
            if not _NAME.match(folder.name):
                continue
            if (folder / _MANIFEST).exists():
                yield _verify_note(folder / _MANIFEST)
            for side in (_ROWS, _DELETED):
                yield from _verify_rows(folder / side)
        for name in (_REFUSED, _REGISTERED):
            if (self.versions / name).exists():
                yield _verify_note(self.versions / name)
        for day in sorted(self.history.glob("EFF_DATE=*")):
            yield _verify_note(day / _MARK)
            yield from _verify_rows(day)


class DatasetFolders:
    """The folders of a dataset. Use :meth:`locked` around a run."""

    def __init__(self, dataset: Dataset, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._dataset = dataset
        self._versions = dataset.versions
        self._main = _Output(dataset.current, dataset.history, dataset.versions)
        #: Of the sensitive columns. Its link follows that of the others, which is the commit.
        self._sensitive: _Output | None = None
        if dataset.sensitive is not None:
            self._sensitive = sensitive_output(dataset.sensitive)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other runs of this dataset away, and finish what a crash left.

        Raises:
            ChangefeedError: CF1301 another run is at work; CF1302 ``current`` is not a dataset's.
        """
        for output in self._outputs():
            output.prepare()
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

    def _outputs(self) -> Iterator[_Output]:
        """The one of the commit last."""
        if self._sensitive is not None:
            yield self._sensitive
        yield self._main

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
            content: dict[str, Any] = json.loads(read_durable(folder / _MANIFEST))
        except (OSError, AlteredBytes) as error:
            raise _damaged(folder / _MANIFEST, error) from error
        if content["number"] != int(folder.name):
            raise _damaged(folder / _MANIFEST, "it is that of another version")
        extract = content["extract"]
        return Version(
            number=content["number"],
            date=dt.date.fromisoformat(content["date"]),
            base=content["base"],
            hashing=content["hashing"],
            counts=content["counts"],
            folder=folder,
            made=content["made"],
            extract=None if extract is None else ExtractMark(**extract),
            sides=content["sensitive"],
        )

    def check_rows(self, version: Version) -> None:
        """Compare the files of a version with what was written.

        Raises:
            ChangefeedError: CF3001, one is another or gone.
        """
        for folder in (version.rows, self.sensitive_rows(version.number)):
            for _, _, damage in _verify_rows(folder) if folder is not None else ():
                if damage is not None:
                    raise damage

    def verify(self) -> Iterator[tuple[Path, int, ChangefeedError | None]]:
        """Compare everything with its checksums; a run may be at work: path, bytes and damage of
        each file."""
        for output in self._outputs():
            yield from output.verify()

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

    @property
    def sensitive_history(self) -> Path:
        """The history of the sensitive columns, for a dataset that has some."""
        assert self._sensitive is not None
        return self._sensitive.history

    # -- writing ----------------------------------------------------------------------------

    def stage(self) -> Path:
        """An empty place for the rows of a run; what was there is removed."""
        shutil.rmtree(self.rejected, ignore_errors=True)
        return self._main.stage()

    def stage_sensitive(self) -> tuple[Path, Path]:
        """Two more empty places, which only those see who may see the sensitive columns: for the
        whole rows of a run, and for the sensitive columns."""
        assert self._sensitive is not None
        rows = self._sensitive.stage()
        return rows.with_name(_WHOLE), rows

    def sensitive_rows(self, number: int) -> Path | None:
        """The sensitive columns of a version; None where it was made without any."""
        if self._sensitive is None:
            return None
        rows = self._sensitive.folder(number) / _ROWS
        return rows if rows.is_dir() else None

    def refuse(self, extract: ExtractMark, error: ChangefeedError) -> None:
        """Remember why an extract was refused, until the next comparison."""
        note = {
            "extract": asdict(extract),
            "code": error.code.number,
            "message": error.message,
            "detail": error.detail,
            "hint": error.hint,
        }
        self._versions.mkdir(parents=True, exist_ok=True)
        self._keep_note(_REFUSED, note)

    def refusal(self, extract: ExtractMark) -> ChangefeedError | None:
        """Why an extract was refused; None where it was not, or not as its files are now."""
        note = self._note(_REFUSED)
        if note is None or ExtractMark(**note["extract"]) != extract:
            return None
        code = Code.stored(note["code"]) or Code.NOT_SUPPORTED
        return ChangefeedError(code, note["message"], detail=note["detail"], hint=note["hint"])

    def keep_registration(self, shown: Mapping[str, object]) -> None:
        """Remember what the tables of the catalog show."""
        self._keep_note(_REGISTERED, shown)

    def registration(self) -> dict[str, Any]:
        """What :meth:`keep_registration` kept last; empty before."""
        return self._note(_REGISTERED) or {}

    def _keep_note(self, name: str, note: Mapping[str, object]) -> None:
        replace_durably(self._versions / name, json.dumps(note), mode=_RIGHTS)

    def _note(self, name: str) -> dict[str, Any] | None:
        """What was kept under a name; a damaged note is made again by the next run."""
        try:
            note: dict[str, Any] = json.loads(read_durable(self._versions / name))
        except FileNotFoundError:
            return None
        except AlteredBytes as error:
            log.warning("%s is not used: %s", self._versions / name, error)
            return None
        return note

    def discard(self) -> None:
        """Remove what a run staged."""
        for output in self._outputs():
            output.discard()

    @property
    def rejected(self) -> Path:
        """Where a run that was refused leaves the rows that it was refused for."""
        return (self._sensitive or self._main).versions / "rejected"

    def protect_rejected(self) -> None:
        """Give :attr:`rejected` the rights of the sensitive columns, if there are any."""
        if self._sensitive is not None:
            self._sensitive.protect(self.rejected)

    def publish(
        self,
        date: dt.date,
        base: Version | None,
        counts: Mapping[str, int],
        columns: object,
        extract: ExtractMark | None = None,
    ) -> Version:
        """Make the staged rows the current dataset, those of the sensitive columns, too, and add
        their net changes to the history.

        Runs of the same date that came after ``base`` are replaced, those before it stay.
        """
        fault_point(Point.DATASET_STAGED)
        for output in self._outputs():
            output.divide()
        latest = self.latest()
        number = 1 if latest is None else latest.number + 1
        manifest = {
            "number": number,
            "date": date.isoformat(),
            "base": None if base is None else base.number,
            "hashing": self._dataset.hashing,
            "counts": dict(counts),
            "columns": columns,
            "sensitive": {**(latest.sides if latest else {}), **self._dataset.sides},
            "made": self._clock.now().wall / 1e9,
            "extract": None if extract is None else asdict(extract),
        }
        replace_durably(
            self._main.staging / _MANIFEST, json.dumps(manifest, indent=1), mode=_RIGHTS
        )
        for output in self._outputs():
            output.keep_staged(number)
        fault_point(Point.DATASET_VERSION_MADE)
        self._main.switch(number)
        (self._versions / _REFUSED).unlink(missing_ok=True)
        fault_point(Point.DATASET_SWITCHED)
        version = self._read(self._main.folder(number))
        self._finish(version)
        return version

    def _recover(self) -> None:
        """Finish the newest version's run, and forget one that did not get as far as the switch."""
        latest = self.latest()
        self.discard()
        if latest is not None:
            self._finish(latest)
        else:
            for output in self._outputs():
                output.keep(set())

    def _finish(self, version: Version) -> None:
        kept = {version.number} | ({version.base} if version.base is not None else set())
        # A version of before the dataset had sensitive columns has none of their rows.
        if self._sensitive is not None and self.sensitive_rows(version.number) is not None:
            self._sensitive.switch(version.number)
            self._sensitive.write_history(version)
        self._main.write_history(version)
        for output in self._outputs():
            output.keep(kept)
        fault_point(Point.DATASET_DONE)


def check_sides(dataset: Dataset, latest: Version | None) -> None:
    """Refuse a column that becomes sensitive, or open, in folders that have its values.

    Raises:
        ChangefeedError: CF1302.
    """
    known = {} if latest is None else latest.sides
    for column in dataset.columns:
        side = known.get(column.name.lower(), column.sensitive)
        if side == column.sensitive:
            continue
        what = "sensitive" if column.sensitive else "open"
        where = "readable in" if column.sensitive else "kept apart from"
        raise ChangefeedError(
            Code.TARGET_NOT_WATCHABLE,
            f"column {column.name} cannot become {what}: its values are {where} the dataset's "
            "history",
            hint="start with new folders for the current dataset and the history.",
        )


def sensitive_output(folder: Path) -> _Output:
    """The output of the sensitive columns of a dataset, in a folder of its own."""
    return _Output(folder / "current", folder / "history", folder / "versions", folder)


def _runs_of(mark: Path) -> Iterator[ComparisonRun]:
    """The runs of a history partition, the first one first."""
    try:
        content = json.loads(read_durable(mark))
    except AlteredBytes as error:
        raise _damaged(mark, error) from error
    if not mark.parent.name.endswith(content["date"]):
        raise _damaged(mark, "it is that of another date")
    for place, run in enumerate(content["runs"]):
        yield ComparisonRun(run["number"], run["base"], mark.parent, first=place == 0)


def _data_files(folder: Path) -> list[Path]:
    """What a run wrote, without the files that Spark keeps beside it."""
    if not folder.is_dir():
        return []
    return [file for file in sorted(folder.iterdir()) if not file.name.startswith((".", "_"))]


def _link_files(files: Sequence[Path], target: Path, prefix: str = "") -> _Proofs:
    """Have the files in another folder; returns the proofs that they have there."""
    if not files:
        return {}
    target.mkdir(exist_ok=True)
    known = _proofs_of(files[0].parent.parent)
    for file in files:
        try:
            os.link(file, target / f"{prefix}{file.name}")
        except OSError:
            # Another filesystem, or one without hard links.
            shutil.copyfile(file, target / f"{prefix}{file.name}")
    return {f"{target.name}/{prefix}{f.name}": known[f"{f.parent.name}/{f.name}"] for f in files}


# ----------------------------------------------------------------------------------- checksums

#: By the name of the operation's folder and of the file in it: size and checksum.
_Proofs = dict[str, list[int]]


def _prove(folder: Path) -> None:
    """Note the proofs of the rows in a folder that was just written."""
    proofs: _Proofs = {}
    for part in sorted(folder.glob(f"{OPERATION}=*")):
        for file in _data_files(part):
            proof = FileProof.of(file)
            proofs[f"{part.name}/{file.name}"] = [proof.size, proof.crc]
    _keep_proofs(folder, proofs)


def _keep_proofs(folder: Path, proofs: _Proofs) -> None:
    replace_durably(folder / _PROOFS, json.dumps(proofs), mode=_RIGHTS)


def _proofs_of(folder: Path) -> _Proofs:
    try:
        found: _Proofs = json.loads(read_durable(folder / _PROOFS))
    except (OSError, AlteredBytes) as error:
        if isinstance(error, FileNotFoundError) and not folder.exists():
            raise
        raise _damaged(folder / _PROOFS, error) from error
    return found


def check_file(file: Path) -> None:
    """Compare a file of rows with what was written.

    Raises:
        FileNotFoundError: it was replaced.
        ChangefeedError: CF3001, it is another.
    """
    proof = _proofs_of(file.parent.parent).get(f"{file.parent.name}/{file.name}")
    if proof is None:
        raise _damaged(file, "changefeed has not written it")
    try:
        FileProof(*proof).verify(file)
    except AlteredBytes as error:
        raise _damaged(file, error) from error


def _verify_note(path: Path) -> tuple[Path, int, ChangefeedError | None]:
    """A file that begins with its checksum."""
    try:
        return path, len(read_durable(path)), None
    except (OSError, AlteredBytes) as error:
        gone = isinstance(error, FileNotFoundError) and not path.parent.exists()
        return path, 0, None if gone else _damaged(path, error)


def _verify_rows(folder: Path) -> Iterator[tuple[Path, int, ChangefeedError | None]]:
    """The files of rows in a folder, and what proves them."""
    try:
        proofs = _proofs_of(folder)
    except FileNotFoundError:
        return
    except ChangefeedError as damage:
        yield folder / _PROOFS, 0, damage
        return
    yield folder / _PROOFS, (folder / _PROOFS).stat().st_size, None
    for name, proof in proofs.items():
        try:
            FileProof(*proof).verify(folder / name)
        except (OSError, AlteredBytes) as error:
            if folder.exists():  # else it was replaced
                yield folder / name, 0, _damaged(folder / name, error)
        else:
            yield folder / name, proof[0], None


def _damaged(path: Path, why: object) -> ChangefeedError:
    return ChangefeedError(
        Code.LOG_DAMAGED,
        "a file of the dataset is damaged",
        detail=f"file {path}: {why}",
        hint="put it back from a backup; or move the folders of the dataset away and begin again "
        "with a full extract.",
    )


def _sync_tree(folder: Path) -> None:
    for path, _, files in os.walk(folder):
        for name in files:
            sync_path(Path(path) / name)
        sync_path(Path(path))
