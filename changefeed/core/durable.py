"""What a crash of the machine must not undo."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from changefeed.core.proofs import FileProof, sealed, unsealed

#: The end of the name of a file that is being written. A crash may leave one.
UNFINISHED: Final = ".new"
#: The end of the name of a note that proves the begin of a file which another program writes.
PROOF: Final = ".proof"


def replace_durably(
    path: Path, text: str, *, on_written: Callable[[], None] | None = None, mode: int = 0o600
) -> None:
    """Give a file another content: a crash leaves the old one or the new one.
    :func:`read_durable` reads it.

    Args:
        mode: rights of the file, less those that the process's umask takes away; else only this
            user can read it.
        on_written: called when the new content is durable and the file still has the old one.

    Raises:
        OSError: the disk is full or failed. If it is full, the file has its old content, because no
            step after the rename needs room.
    """
    fresh = path.with_name(path.name + UNFINISHED)
    try:
        with os.fdopen(os.open(fresh, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, mode), "w") as file:
            file.write(sealed(text, path.name))
            file.flush()
            os.fsync(file.fileno())
        if on_written is not None:
            on_written()
        fresh.replace(path)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise
    sync_path(path.parent)


def read_durable(path: Path) -> str:
    """The content that :func:`replace_durably` gave a file.

    Raises:
        AlteredBytes: the bytes differ from what was written.
        OSError: there is no file, or it cannot be read.
    """
    return unsealed(path.read_bytes(), path.name)


def prove(path: Path) -> None:
    """Make a file durable that another program appends to, and note the checksum of what it has
    now, for :func:`verify_proven`.

    Raises:
        OSError: as :func:`replace_durably`.
    """
    sync_path(path)
    proof = FileProof.of(path)
    replace_durably(path.with_name(path.name + PROOF), json.dumps([proof.size, proof.crc]))


def verify_proven(path: Path) -> None:
    """Compare a file with the note that :func:`prove` made last; without one nothing is known.

    Raises:
        AlteredBytes: the bytes differ from what was written.
        OSError: it is gone or cannot be read.
    """
    try:
        proof = FileProof(*json.loads(read_durable(path.with_name(path.name + PROOF))))
    except FileNotFoundError:
        return
    proof.verify(path, grown=True)


def write_at(fd: int, data: bytes, start: int) -> int:
    """Write all of ``data`` from a place of a file on; returns where it ends.

    One write may take a part only, as on a disk that becomes full with it.

    Raises:
        OSError: the disk is full or failed.
    """
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, start)
        start += written
        view = view[written:]
    return start


def sync_path(path: Path) -> None:
    """Make the bytes of a file, or the names in a folder, durable."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
