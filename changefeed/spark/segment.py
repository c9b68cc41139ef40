"""Rows of the log that lie in files: what is handed to Spark instead of the rows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Segment:
    """Part of a Parquet file of the log: the rows whose sequence number is in the range."""

    path: Path
    first_seq: int = 0
    last_seq: int = 2**63 - 1
