"""Where the shell keeps things by default: the user's data folder."""

from __future__ import annotations

import os
from pathlib import Path

from changefeed.core.state import data_folder


def default_state() -> str:
    """The state directory when neither ``--state`` nor CHANGEFEED_STATE names one."""
    return str(data_folder() / "state")


def rc_file() -> Path | None:
    """What a prompt runs first: $CHANGEFEED_RC, else ``rc.sql`` in the user's data folder."""
    named = os.environ.get("CHANGEFEED_RC")
    if named is not None:
        return Path(named).expanduser() if named else None
    return data_folder() / "rc.sql"


def history_file() -> Path:
    """The history of what was typed at the prompt."""
    return data_folder() / "history"
