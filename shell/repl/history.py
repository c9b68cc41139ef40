"""What was typed before, on disk; without secrets."""

from __future__ import annotations

import re
from pathlib import Path

from prompt_toolkit.history import FileHistory

from changefeed.options import mask_statement

_CONNECTION = re.compile(r"\b(CREATE|ALTER)\s+EXTERNAL\s+CONNECTION\b", re.IGNORECASE)


def holds_secret(text: str) -> bool:
    """The text names a connection's URI, or has a password in it."""
    return bool(_CONNECTION.search(text)) or mask_statement(text) != text


class PromptHistory(FileHistory):
    """Entries with secrets can be recalled while the prompt lives, and are written nowhere."""

    def __init__(self, path: Path) -> None:
        """The file is made at the first entry, readable by its owner only."""
        super().__init__(path)
        self._path = path

    def store_string(self, string: str) -> None:
        """Append to the file, unless it holds a secret."""
        if holds_secret(string):
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.touch(mode=0o600)
        super().store_string(string)
