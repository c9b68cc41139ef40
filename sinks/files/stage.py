"""The files of one process that nobody can see yet."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable

from sinks.files.staged import UnpublishedFile


class OpenFiles:
    """Open files by what goes into them, and all unpublished ones by their temporary name.

    Several threads may use it as long as each writes into files of its own.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[Hashable, UnpublishedFile] = {}
        self._unpublished: dict[str, UnpublishedFile] = {}

    def file(self, key: Hashable, make: Callable[[], UnpublishedFile]) -> UnpublishedFile:
        """The open file of ``key``, made when there is none."""
        with self._lock:
            file = self._open.get(key)
            if file is None:
                file = self._open[key] = make()
                self._unpublished[file.temporary] = file
            return file

    def get(self, temporary: str) -> UnpublishedFile | None:
        """The unpublished file of this temporary name, where this process wrote it."""
        with self._lock:
            return self._unpublished.get(temporary)

    def roll(self, key: Hashable) -> None:
        """The open file of ``key`` takes no more; the next row begins another."""
        with self._lock:
            file = self._open.pop(key)
        file.finish()

    def spoil(self, key: Hashable) -> None:
        """A write failed half-way: what the file of ``key`` holds must never be seen.

        Committing receipts that name it fails, so rows that went in before are sent again.
        """
        with self._lock:
            file = self._open.pop(key, None)
            if file is not None:
                self._unpublished.pop(file.temporary, None)
        if file is not None:
            file.discard()

    def finish(self, names: Iterable[str] | None = None) -> None:
        """Make the files of these temporary names durable; all open ones without names."""
        with self._lock:
            if names is None:
                files = list(self._open.values())
            else:
                files = [self._unpublished[name] for name in names if name in self._unpublished]
            self._open = {key: file for key, file in self._open.items() if file not in files}
        for file in files:
            file.finish()

    def published(self, names: Iterable[str]) -> None:
        """These have their final names; forget them."""
        with self._lock:
            files = [self._unpublished.pop(name, None) for name in names]
        for file in files:
            if file is not None:
                file.release()

    def close(self, *, keep: bool = False) -> None:
        """Remove everything unpublished; with ``keep`` only what is still open."""
        with self._lock:
            files = list((self._open if keep else self._unpublished).values())
            self._open, self._unpublished = {}, {}
        for file in files:
            file.discard()
