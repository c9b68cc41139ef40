"""One file on its way: written where no reader looks, then given to its place as a whole."""

from __future__ import annotations

import mmap
import os
import tempfile
import threading
from collections.abc import Callable, Hashable, Iterable
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

from sinks.files.writers import FILE_FORMATS, ValueWriter

SPOOL_BYTES = 1_000_000
"""Above it a file without a folder goes to disk: many small ones need no file handles."""


class UnpublishedFile:
    """Rows of one schema version of one table.

    Attributes:
        temporary: what receipts call it.
        name: what the file will be called below the sink's directory.
        bytes: written so far, before compression.
    """

    def __init__(
        self,
        folder: Path | None,
        temporary: str,
        name: str,
        field: pa.Field,
        format: str,
        compression: str,
    ) -> None:
        """In ``folder`` the file has its temporary name, for a rename by any process. Without
        one only this object can reach it, and nothing is left of it whatever happens."""
        self.temporary = temporary
        self.name = name
        self.bytes = 0
        self._path = None if folder is None else folder / temporary
        self._spool = _Spool(SPOOL_BYTES) if self._path is None else None
        self._raw = (
            pa.PythonFile(self._spool, "w")
            if self._path is None
            else pa.OSFile(str(self._path), "wb")
        )
        self._writer: ValueWriter = FILE_FORMATS[format].writer(self._raw, field, compression)
        self._closed = False

    def write(self, values: pa.Array) -> None:
        """Append values (no nulls); no Python object per row."""
        if len(values):
            self.bytes += self._writer.write(values)

    def finish(self) -> None:
        """Close. A file in a folder is on disk on return."""
        if not self._closed:
            self._writer.close()
            self._closed = True
            if self._path is not None:
                sync(self._path)

    def content(self) -> pa.Buffer:
        """The bytes of a finished file without a folder."""
        if self._spool is None:
            raise ValueError("a file in a folder is renamed, not read")
        size = self._spool.seek(0, os.SEEK_END)
        self._spool.seek(0)
        if size <= SPOOL_BYTES:
            return pa.py_buffer(self._spool.read())
        self._spool.flush()
        return pa.py_buffer(mmap.mmap(self._spool.fileno(), size, access=mmap.ACCESS_READ))

    def discard(self) -> None:
        """Close the file and remove it."""
        if not self._closed:
            self._closed = True
            with suppress(OSError, pa.ArrowInvalid):  # a full disk takes no ending, and needs none
                self._writer.close()
            with suppress(OSError):
                self._raw.close()
        self.release()
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def release(self) -> None:
        """Free the content, which its place has by now."""
        if self._spool is not None:
            self._spool.release()


class _Spool(tempfile.SpooledTemporaryFile[bytes]):
    """Holds its content in memory while it is small, then in a file that has no name."""

    def close(self) -> None:
        """The writer is done; the content is still to be read."""

    def release(self) -> None:
        super().close()


def sync(path: Path) -> None:
    """Make a file's content, or a directory's entries, durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


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
