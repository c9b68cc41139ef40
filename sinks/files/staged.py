"""One file on its way: written where no reader looks, then given to its place as a whole."""

from __future__ import annotations

import mmap
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

from sinks.files.writers import WRITERS, Writer


class StagedFile:
    """Rows of one schema version of one table.

    Attributes:
        path: the temporary file; its name is the file's in receipts.
        name: what the file will be called below the sink's directory.
        bytes: written so far, before compression.
    """

    def __init__(
        self, path: Path, name: str, field: pa.Field, format: str, compression: str, *, keep: bool
    ) -> None:
        """``keep``: the file stays under its temporary name for a rename, of any process. Else
        only this object can reach it, and nothing is left of it whatever happens."""
        self.path = path
        self.name = name
        self.bytes = 0
        self._keep = keep
        raw = pa.OSFile(str(path), "wb")
        self._reader: Any = None
        if not keep:
            self._reader = open(path, "rb")  # noqa: SIM115 - lives as long as this object
            os.unlink(path)
        self._raw = raw
        self._writer: Writer = WRITERS[format](raw, field, compression)
        self._closed = False

    def write(self, values: pa.Array) -> None:
        """Append values (no nulls); no Python object per row."""
        if len(values):
            self.bytes += self._writer.write(values)

    def finish(self) -> None:
        """Close. A file that is kept is on disk on return."""
        if not self._closed:
            self._writer.close()
            self._closed = True
            if self._keep:
                sync(self.path)

    def content(self) -> pa.Buffer:
        """The bytes of a finished file that is not kept."""
        size = os.fstat(self._reader.fileno()).st_size
        if not size:
            return pa.py_buffer(b"")
        return pa.py_buffer(mmap.mmap(self._reader.fileno(), size, access=mmap.ACCESS_READ))

    def discard(self) -> None:
        """Close and forget."""
        if not self._closed:
            self._closed = True
            with suppress(OSError, pa.ArrowInvalid):  # a full disk takes no ending, and needs none
                self._writer.close()
            with suppress(OSError):
                self._raw.close()
        self.release()
        if self._keep:
            self.path.unlink(missing_ok=True)

    def release(self) -> None:
        """Its place has it: give back what holds the content."""
        if self._reader is not None:
            self._reader.close()


def sync(path: Path) -> None:
    """Make a file's content, or a directory's entries, durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
