"""Errors of files that hold what does not fit into memory."""

from __future__ import annotations

from pathlib import Path

from changefeed.core.errors import ChangefeedError, Code


def no_room(error: OSError) -> ChangefeedError:
    """CF3003 for what a full disk answers."""
    return ChangefeedError(
        Code.LOG_FULL, f"cannot keep a large transaction on disk: {error.strerror}"
    )


def altered(path: Path, why: object) -> ChangefeedError:
    """CF2101 for a file of a transaction in progress whose bytes have changed: the source has the
    transaction, and sends it again to the next stream."""
    return ChangefeedError(
        Code.STREAM_BROKE,
        "a large transaction was damaged on disk before it was in the change log",
        detail=f"file {path}: {why}",
        hint="it is read from the source again by itself; check the disk under the state "
        "directory.",
    )
