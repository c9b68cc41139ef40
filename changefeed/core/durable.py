"""What a crash of the machine must not undo."""

from __future__ import annotations

import os
from pathlib import Path


def replace_durably(path: Path, text: str) -> None:
    """Give a file another content: a crash leaves the old one or the new one. Only this user can
    read it.

    Raises:
        OSError: the disk is full or failed; the file has its old content.
    """
    fresh = path.with_name(path.name + ".new")
    with os.fdopen(os.open(fresh, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    sync_path(path.parent)


def sync_path(path: Path) -> None:
    """Make the bytes of a file, or the names in a folder, durable."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
