"""A DuckDB file that a test reads while a feed of the same process opens and closes it."""

from __future__ import annotations

import time
from pathlib import Path

import duckdb

from sinks.warehouse.duckdb import _files_lock


def opened(path: str | Path, *, read_only: bool = False) -> duckdb.DuckDBPyConnection:
    """A connection to the file, once no other of this process is at its opening or closing.

    Connections of one process share a database. While the last of them closes, DuckDB refuses the
    next one ("Unique file handle conflict"), for a moment; and one that comes while the first is
    being made lacks the functions that read Arrow. So the sink is not at its opening meanwhile.
    """
    deadline = time.monotonic() + 60
    while True:
        try:
            with _files_lock:
                return duckdb.connect(str(path), read_only=read_only)
        except duckdb.ResourceInUseException:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
