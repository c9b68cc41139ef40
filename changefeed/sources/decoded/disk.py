"""Errors of files that hold what does not fit into memory."""

from __future__ import annotations

from changefeed.core.errors import ChangefeedError, Code


def no_room(error: OSError) -> ChangefeedError:
    """CF3003 for what a full disk answers."""
    return ChangefeedError(
        Code.LOG_FULL, f"cannot keep a large transaction on disk: {error.strerror}"
    )
