"""Which extract of a dataset is to be compared next, where a node compares by itself."""

from __future__ import annotations

import datetime as dt
import glob
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from changefeed.core.errors import ChangefeedError, Code
from changefeed.dataset.store import ExtractMark, Version

#: Effective dates that stand in the names of extracts.
DATE_OF_NAME: Final = "name"

_WILDCARD = re.compile(r"[*?\[{]")
#: What a path may not have that Spark reads as it is.
_PATTERN = re.compile(r"[*?\[\]{}\\]")
_DATE = re.compile(r"(?<!\d)(\d{4})-?(\d{2})-?(\d{2})(?!\d)")


@dataclass(frozen=True, slots=True)
class ExtractSchedule:
    """Where extracts come from, and when one is compared.

    Attributes:
        location: a file, folder or glob that Spark reads, or ``jdbc:url#table``. Each match of a
            glob is an extract, in the order of their names (:func:`name_order`); anything else is
            one extract, which is replaced. It may hold a password.
        every: seconds between two comparisons; None: when the files are others than before.
        date: the effective date of every run, :data:`DATE_OF_NAME`, or None: the day of the run.
    """

    location: str
    every: float | None = None
    date: dt.date | str | None = None

    @property
    def local(self) -> bool:
        """Its files can be listed here."""
        return _local_path(self.location) is not None

    @property
    def several(self) -> bool:
        """Each match is an extract."""
        return self.local and _WILDCARD.search(self.location) is not None


@dataclass(frozen=True, slots=True)
class FoundExtract:
    """An extract that is there, and what to remember it by."""

    location: str
    mark: ExtractMark


def effective_date(text: str) -> dt.date:
    """A business date, written ``2019-06-18``.

    Raises:
        ChangefeedError: CF1204 it is written otherwise or does not exist.
    """
    try:
        if len(text) != 10:
            raise ValueError(text)
        return dt.date.fromisoformat(text)
    except ValueError:
        raise ChangefeedError(
            Code.INVALID_OPTION_VALUE,
            f"invalid effective date {text!r}",
            hint="write year-month-day, such as 2019-06-18.",
        ) from None


def check_schedule(schedule: ExtractSchedule) -> None:
    """Refuse what could never be compared.

    Raises:
        ChangefeedError: CF1204, CF1205.
    """
    if schedule.local and "{" in schedule.location:
        raise ChangefeedError(
            Code.INVALID_OPTION_VALUE,
            "braces in a location are not supported",
            hint="write a glob with *, ? or [..].",
        )
    if schedule.every is None and not schedule.local:
        raise ChangefeedError(
            Code.INVALID_OPTION_VALUE,
            "option every is needed: only files on this machine can be watched",
            hint="write every = '1h'.",
        )
    if schedule.every is not None and schedule.several:
        raise ChangefeedError(
            Code.OPTIONS_CONTRADICT,
            "option every does not go with a glob: each file or folder that matches is compared "
            "when it arrives",
            hint="leave out every, or name one file or folder.",
        )
    if schedule.date == DATE_OF_NAME and not schedule.several:
        raise ChangefeedError(
            Code.OPTIONS_CONTRADICT,
            "effective_date = 'name' needs a glob: the dates stand in the names that match",
            hint="write a date, such as 2019-06-18, or leave it out: the day of each comparison.",
        )


def next_extract(
    schedule: ExtractSchedule, latest: Version | None, now: float
) -> FoundExtract | None:
    """The extract to compare next; None while there is none.

    Args:
        schedule: says where they are.
        latest: the current version.
        now: seconds since 1970.
    """
    return next(_due(schedule, latest, now), None)


def last_arrived(
    schedule: ExtractSchedule, latest: Version | None, now: float
) -> FoundExtract | None:
    """The last of the extracts that are to be compared; None while there is none."""
    return next(reversed([*_due(schedule, latest, now)]), None)


def _due(schedule: ExtractSchedule, latest: Version | None, now: float) -> Iterator[FoundExtract]:
    """The extracts that are to be compared, in their order."""
    last = None if latest is None else latest.extract
    early = schedule.every is not None and latest is not None
    if early and latest is not None and now - latest.made < (schedule.every or 0):
        return
    if not schedule.local:
        yield FoundExtract(schedule.location, ExtractMark("", ""))
        return
    for name, path in _matches(schedule.location):
        if schedule.several and last is not None and name_order(name) <= name_order(last.name):
            continue
        signature = _signature(path)
        if not signature:
            continue
        if not schedule.several and last is not None and last.signature == signature:
            continue
        yield FoundExtract(str(path), ExtractMark(name if schedule.several else "", signature))


def check_name(schedule: ExtractSchedule, extract: FoundExtract) -> None:
    """Refuse a match of a glob whose name Spark would take for a glob, and read other files.

    Raises:
        ChangefeedError: CF1302.
    """
    if schedule.several and _PATTERN.search(extract.location):
        raise ChangefeedError(
            Code.TARGET_NOT_WATCHABLE,
            f"Spark would read the name of extract {extract.mark.name} as a pattern",
            hint="rename it: names have none of * ? [ ] { } \\.",
        )


def name_order(name: str) -> tuple[str, ...]:
    """What the names of a glob's matches are sorted by: folders, then what is in them."""
    return tuple(name.split("/"))


def date_of(schedule: ExtractSchedule, extract: FoundExtract, today: dt.date) -> dt.date:
    """The effective date of a comparison with an extract.

    Raises:
        ChangefeedError: CF1302 its name holds no date.
    """
    if schedule.date is None:
        return today
    if isinstance(schedule.date, dt.date):
        return schedule.date
    # That of the file before those of the folders.
    for part in reversed(name_order(extract.mark.name)):
        for match in _DATE.finditer(part):
            try:
                return dt.date(int(match[1]), int(match[2]), int(match[3]))
            except ValueError:
                continue
    raise ChangefeedError(
        Code.TARGET_NOT_WATCHABLE,
        f"the name of extract {extract.mark.name} holds no date",
        hint="name extracts such as stock-2019-06-18.csv, or set effective_date.",
    )


def absolute_location(location: str) -> str:
    """The location, with a path on this machine made absolute: Spark's JVM and the node have
    working directories of their own."""
    path = _local_path(location)
    return location if path is None or location.startswith("file:") else str(Path(path).absolute())


def _local_path(location: str) -> str | None:
    if location.startswith("file:"):
        return unquote("/" + location.removeprefix("file:").lstrip("/"))
    return None if re.match(r"[A-Za-z][\w+.\-]+:", location) else location


def check_files(location: str) -> None:
    """Refuse a folder on this machine in which Spark would find no file: all rows of the dataset
    would be deleted.

    Raises:
        ChangefeedError: CF1302.
    """
    found = _matches(location) if _local_path(location) is not None else []
    if found and not any(_signature(path) for _, path in found):
        raise ChangefeedError(
            Code.TARGET_NOT_WATCHABLE,
            f"there is no extract: {location} has no files",
            hint="check the path.",
        )


def _matches(location: str) -> list[tuple[str, Path]]:
    """The files and folders of a location with their names, in order. A name begins where the first
    wildcard is: ``2019-06-18/stock.csv`` for ``/in/*/stock.csv``."""
    pattern = Path(_local_path(location) or "")
    fixed = next((f for f in reversed(pattern.parents) if _WILDCARD.search(f.name)), pattern).parent
    named = [(str(path.relative_to(fixed)), path) for path in map(Path, glob.glob(str(pattern)))]
    seen = [(name, path) for name, path in named if not any(map(_hidden, name.split("/")))]
    return sorted(seen, key=lambda match: name_order(match[0]))


def _signature(path: Path) -> str:
    """Stands for the files with sizes and times; empty where there is none."""
    seen = sorted(_files(path))
    if not seen:
        return ""
    return hashlib.sha256("\n".join(seen).encode()).hexdigest()[:32]


def _files(path: Path) -> Iterator[str]:
    for file in _inner_files(path):
        try:
            state = file.stat()
        except FileNotFoundError:
            continue  # taken away since it was listed
        yield f"{file.relative_to(path)}:{state.st_size}:{state.st_mtime_ns}"


def _inner_files(path: Path) -> Iterator[Path]:
    """The files that Spark reads of a file or folder."""
    for file in path.rglob("*") if path.is_dir() else [path]:
        if file.is_file() and not any(map(_hidden, file.relative_to(path).parts)):
            yield file


def data_files(location: str) -> list[Path] | None:
    """The files that Spark reads of a location; None where that is not on this machine."""
    if _local_path(location) is None:
        return None
    return sorted(file for _, path in _matches(location) for file in _inner_files(path))


def _hidden(name: str) -> bool:
    """Spark does not read a file or folder of this name, for example what another job of Spark is
    writing in ``_temporary``."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name)
