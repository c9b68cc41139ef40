"""The files of a shared log that a directory has or can have: each is a copy of an object.

``COPIES`` lists all of them with their objects and the store. A file that is not there is fetched
when something first reads it (:func:`fetch_copy`), by whichever process that is.
"""

from __future__ import annotations

import fcntl
import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

from changefeed.core.clock import SYSTEM_CLOCK, Clock
from changefeed.core.durable import UNFINISHED, read_durable, replace_durably, write_at
from changefeed.core.elapsed import read_clocks
from changefeed.core.errors import ChangefeedError
from changefeed.core.log_manifest import TailPart
from changefeed.core.proofs import AlteredBytes
from changefeed.core.telemetry import log
from changefeed.log.journal import FIRST_FRAME, damaged, journal_name
from changefeed.log.objects import ObjectStore

#: A directory with this file is the copy of a shared log.
COPIES_NAME: Final = "COPIES"

#: How long an object that is not in the store stays listed: its name is removed from the list just
#: before or just after the object itself.
_GONE_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Copies:
    """What a directory lists.

    Attributes:
        store: address of the store; may hold secrets.
        objects: size and object of each file.
        boot: of the machine, when its files were written. They are not synced, so they prove
            nothing after another boot.
    """

    store: str
    objects: Mapping[str, tuple[int, str]]
    boot: str

    @classmethod
    def of(cls, store: ObjectStore, objects: Mapping[str, tuple[int, str]]) -> Copies:
        """The list of what this boot of the machine writes."""
        return cls(store.address, objects, read_clocks().boot)

    @classmethod
    def read(cls, root: Path) -> Copies | None:
        """The list of a directory; None if it has none that is whole."""
        try:
            found = json.loads(read_durable(root / COPIES_NAME))
            objects = {name: (size, made) for name, (size, made) in found["objects"].items()}
            return cls(found["store"], objects, found["boot"])
        except (OSError, AlteredBytes, ValueError, KeyError, TypeError):
            return None  # nothing is a copy: everything is fetched

    def write(self, root: Path) -> None:
        """Replace the list of a directory.

        Raises:
            OSError: the disk is full or fails.
        """
        listed = {"store": self.store, "objects": self.objects, "boot": self.boot}
        replace_durably(root / COPIES_NAME, json.dumps(listed, sort_keys=True))

    def keep(self, root: Path) -> None:
        """Make this the list of a directory, and remove files there that are other objects' copies,
        or are not known to be whole."""
        before = Copies.read(root)
        known = before.objects if before is not None and before.boot == self.boot else {}
        for name, found in self.objects.items():
            path = root / name
            with suppress(FileNotFoundError):
                if known.get(name) != found or path.stat().st_size != found[0]:
                    path.unlink()
        self.write(root)


def fetch_copy(root: Path, name: str, clock: Clock = SYSTEM_CLOCK) -> bool:
    """Fetch a file of a directory that is not there. Readers that need it at the same time fetch
    it once.

    Returns:
        False: the log no longer consists of the file, or the directory is no copy.

    Raises:
        ChangefeedError: CF3007, its detail names the object.
    """
    path, since = root / name, clock.monotonic()
    while True:
        copies = Copies.read(root)
        if copies is None or name not in copies.objects:
            return False
        size, found = copies.objects[name]
        store = _store(copies.store)
        try:
            _fetch_once(store, found, path, size)
            return True
        except ChangefeedError:
            if clock.monotonic() - since > _GONE_SECONDS or store.exists(found):
                raise
            clock.sleep(0.05)


def drop_copy(root: Path, name: str) -> bool:
    """Remove a file of a directory that is damaged, and that :func:`fetch_copy` can fetch again.

    Returns:
        False: nothing was removed, because it is no copy.
    """
    copies = Copies.read(root)
    if copies is None or name not in copies.objects:
        return False
    log.warning("log %s: the copy of %s is damaged, it is fetched again", root, name)
    (root / name).unlink(missing_ok=True)
    return True


def trim_copies(root: Path, names: Iterable[str], limit: int) -> None:
    """Remove those of the files ``names`` that were written or fetched first, until the others have
    at most ``limit`` bytes. What is read again is fetched again."""
    found = []
    for name in names:
        with suppress(FileNotFoundError):
            stat = (root / name).stat()
            found.append((stat.st_mtime_ns, name, stat.st_size))
    excess = sum(size for _, _, size in found) - limit
    for _, name, size in sorted(found):
        if excess <= 0:
            return
        (root / name).unlink(missing_ok=True)
        excess -= size


@lru_cache(maxsize=8)
def _store(address: str) -> ObjectStore:
    return ObjectStore(address)


def _fetch_once(store: ObjectStore, found: str, path: Path, size: int) -> None:
    # The lock is the unfinished file, of which all that fetch at the same time have the same one.
    fresh = path.with_name(path.name + UNFINISHED)
    lock = os.open(fresh, os.O_RDWR | os.O_CREAT, 0o640)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if path.exists():
            fresh.unlink(missing_ok=True)
        else:
            store.fetch(found, path, size)
    finally:
        os.close(lock)


def part_checksum(start: int, data: bytes) -> int:
    """CRC-32 of a part of a journal. Of the file's header without the checksum that it ends with:
    bytes that end with their own CRC-32 all have the same one.
    """
    if start:
        return zlib.crc32(data)
    return zlib.crc32(data[FIRST_FRAME:], zlib.crc32(data[: FIRST_FRAME - 8]))


class JournalCopy:
    """A journal in a directory, made of its registered parts. It stays the same file: readers may
    have it open."""

    def __init__(self, root: Path, number: int, store: ObjectStore) -> None:
        self._path = root / journal_name(number)
        self._store = store

    @contextmanager
    def _open(self) -> Iterator[int]:
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o640)
        try:
            yield fd
        finally:
            os.close(fd)

    def rebuild(
        self,
        parts: Sequence[TailPart],
        bodies: Callable[[int, int], Iterable[tuple[int, bytes]]],
    ) -> None:
        """Make it consist of its parts; bytes that are there and proved stay.

        Args:
            bodies: the bytes in rows of a journal from a place on, and where each begins.

        Raises:
            ChangefeedError: CF3001, a part is not registered or differs from what was written;
                CF3007; CF6001.
        """
        end = 0
        for part in parts:
            if part.start != end:
                raise damaged(self._path.name, "a part of it is not registered", offset=end)
            end += part.size
        with self._open() as fd:
            kept = next((p.start for p in parts if not _is_there(fd, p)), end)
            os.ftruncate(fd, kept)
            found = dict(bodies(parts[0].journal, kept)) if kept < end else {}
            for part in parts:
                if part.start >= kept:
                    self._write(fd, part, found.get(part.start))

    def extend(self, parts: Iterable[TailPart]) -> None:
        """Write parts that have their bodies; raises as :meth:`rebuild`."""
        with self._open() as fd:
            for part in parts:
                self._write(fd, part, part.body)

    def _write(self, fd: int, part: TailPart, body: bytes | None) -> None:
        data = self._store.get(part.object) if part.object else body or b""
        if len(data) != part.size or part_checksum(part.start, data) != part.crc:
            why = "a part differs from what was written"
            raise damaged(self._path.name, why, offset=part.start)
        write_at(fd, data, part.start)

    def complete(self, start: int, data: bytes) -> None:
        """Give it the bytes that follow ``start`` in its object."""
        with self._open() as fd:
            write_at(fd, data[start:], start)
            os.ftruncate(fd, len(data))


def _is_there(fd: int, part: TailPart) -> bool:
    data = os.pread(fd, part.size, part.start)
    return len(data) == part.size and part_checksum(part.start, data) == part.crc
