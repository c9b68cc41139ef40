"""A directory of this machine: files are written below ``.tmp``, synced, and renamed."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from changefeed.core.clock import Clock
from changefeed.core.errors import ChangefeedError, Code
from sinks.files.places.base import ListedFile, Move, PublishedFile
from sinks.files.staged import sync

TEMPORARY = ".tmp"
ORPHAN_SECONDS = 3600.0
"""Age at which a temporary file of another run is removed."""


class LocalPlace:
    """A directory; what another process staged can be published here."""

    def __init__(self, root: Path, clock: Clock) -> None:
        self._root = root
        self._clock = clock
        self.staging = root / TEMPORARY
        self._mine = "0-unopened"

    def prepare(self, job: int, session: str) -> None:
        folder = self.staging
        folder.mkdir(parents=True, exist_ok=True)
        self._mine = f"{job}-{session}"
        probe = folder / f"{self._mine}.probe"
        probe.touch()
        probe.unlink()
        self._sweep(job)

    def look(self) -> ChangefeedError | None:
        """A folder is made in the nearest one that is there, and removed again."""
        there = self._root.absolute()
        while not there.exists() and there != there.parent:
            there = there.parent
        try:
            if not there.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            os.rmdir(tempfile.mkdtemp(prefix=".changefeed-", dir=there))
        except OSError as error:
            return ChangefeedError(
                Code.SINK_REFUSED_LOGIN,
                f"{self._root} cannot be written: {error.strerror}",
                detail=f"tried in {there}",
                hint="check the path, its owner and its rights.",
            )
        return None

    def _sweep(self, job: int) -> None:
        for path in self.staging.glob(f"{job}-*"):
            if path.name.startswith(self._mine):
                continue
            try:
                if self._clock.now().wall / 1e9 - path.stat().st_mtime > ORPHAN_SECONDS:
                    path.unlink()
            except FileNotFoundError:
                continue  # another run of the job swept it first

    def publish(self, moves: Sequence[Move]) -> None:
        touched: set[Path] = set()
        for move in sorted(moves, key=lambda move: move.name):
            final = self._root / move.name
            if final.parent not in touched:
                touched |= _make(self._root, final.parent)
            os.rename(self.staging / move.temporary, final)
        for folder in sorted(touched):
            sync(folder)

    def put(self, name: str, content: bytes) -> None:
        temporary = f"{self._mine}-{os.urandom(8).hex()}"
        path = self.staging / temporary
        path.write_bytes(content)
        sync(path)
        self.publish([Move(temporary, name, None)])

    def remove(self, names: Sequence[str]) -> None:
        """Does nothing: what is published here was committed."""

    def folders(self, folder: str) -> list[str]:
        return [entry.name for entry in self._entries(folder) if entry.is_dir()]

    def files(self, folder: str) -> list[ListedFile]:
        found = [entry for entry in self._entries(folder) if entry.is_file()]
        return [ListedFile(entry.name, entry.stat().st_size) for entry in found]

    def _entries(self, folder: str) -> list[os.DirEntry[str]]:
        try:
            return list(os.scandir(self._root / folder))
        except FileNotFoundError:
            return []

    def every(self) -> list[PublishedFile]:
        found = []
        for folder, folders, names in os.walk(self._root):
            folders[:] = [name for name in folders if not name.startswith(".")]
            for name in names:
                path = Path(folder, name)
                known = path.relative_to(self._root).as_posix()
                found.append(PublishedFile(known, path.stat().st_mtime_ns))
        return found

    def open(self, path: str) -> pa.NativeFile:
        return pa.OSFile(str(self._root / path), "rb")

    def url(self, name: str) -> str:
        return (self._root / name).absolute().as_uri()

    def close(self) -> None:
        """Nothing is open."""


def _make(root: Path, folder: Path) -> set[Path]:
    changed = {folder}
    while folder != root and not folder.exists():
        folder = folder.parent
        changed.add(folder)
    for path in sorted(changed):
        path.mkdir(exist_ok=True)
    return changed
