"""The values of ``--format``."""

from __future__ import annotations

from enum import StrEnum


class OutputFormat(StrEnum):
    """How results are written: for people, or for programs."""

    TABLE = "table"
    VERTICAL = "vertical"
    CSV = "csv"
    JSON = "json"
    JSONL = "jsonl"
    MARKDOWN = "markdown"

    @property
    def structured(self) -> bool:
        """Whether errors come as JSON, too."""
        return self in (OutputFormat.JSON, OutputFormat.JSONL)
