"""One file on its way: written under a temporary name, made durable, then renamed."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.errors import ChangefeedError

#: ``compression`` -> suffix of the file name.
SUFFIXES = {"none": "", "gzip": ".gz", "zstd": ".zst"}

#: Errors of the system that no repetition mends, by number.
_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR}
_FULL = {errno.ENOSPC, errno.EDQUOT}


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """System errors as ours, naming the path."""
    try:
        yield
    except OSError as error:
        text = os.strerror(error.errno) if error.errno else str(error)
        if error.errno in _REFUSED:
            raise ChangefeedError(
                "CF5002",
                f"{path} cannot be written: {text}",
                hint="check the owner and rights of the directory, then RESUME.",
            ) from error
        if error.errno in _FULL:
            raise ChangefeedError(
                "CF5004", f"no room for {path}: {text}", hint="free space on that filesystem."
            ) from error
        raise ChangefeedError("CF5001", f"{path} cannot be written: {text}") from error


class StagedFile:
    """Rows of one schema version, one a line."""

    def __init__(self, temporary: Path, name: str, compression: str) -> None:
        """``name`` is what the file will be called below the sink's directory."""
        self.path = temporary
        self.name = name
        self.bytes = 0
        raw = pa.OSFile(str(temporary), "wb")
        packed = compression != "none"
        self._stream = pa.CompressedOutputStream(raw, compression) if packed else raw

    def write(self, values: pa.Array) -> None:
        """Append values (binary, no nulls), each with a newline; no Python object per row."""
        if not len(values):
            return
        # Arrow joins lists with 32-bit offsets only; what goes into one file is far below that.
        whole = pa.ListArray.from_arrays([0, len(values)], values.cast(pa.binary()))
        joined = pc.binary_join(whole, b"\n")[0]
        self._stream.write(joined.as_buffer())
        self._stream.write(b"\n")
        self.bytes += joined.as_buffer().size + 1

    def finish(self) -> None:
        """Close; the content is on disk on return."""
        if not self._stream.closed:
            self._stream.close()
            sync(self.path)

    def discard(self) -> None:
        """Close and remove."""
        with suppress(OSError):  # a full disk cannot keep a file from being removed
            self._stream.close()
        self.path.unlink(missing_ok=True)


def rows_within(values: pa.Array, room: int) -> int:
    """How many leading values fit into ``room`` bytes with their newlines."""
    sizes = pc.binary_length(values).to_numpy(zero_copy_only=False).astype(np.int64) + 1
    return int(np.searchsorted(np.cumsum(sizes), room, side="right"))


def sync(path: Path) -> None:
    """Make a file's content, or a directory's entries, durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def publish(root: Path, moves: list[tuple[Path, str]]) -> None:
    """Give finished files their names below ``root``, in the order of the names; durable."""
    touched: set[Path] = set()
    for temporary, name in sorted(moves, key=lambda move: move[1]):
        final = root / name
        if final.parent not in touched:
            touched |= _make(root, final.parent)
        os.rename(temporary, final)
    for folder in sorted(touched):
        sync(folder)


def _make(root: Path, folder: Path) -> set[Path]:
    """Make ``folder``; every folder whose entries changed or will."""
    changed = {folder}
    while folder != root and not folder.exists():
        folder = folder.parent
        changed.add(folder)
    for path in sorted(changed):
        path.mkdir(exist_ok=True)
    return changed
