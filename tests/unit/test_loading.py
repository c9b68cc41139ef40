"""Loading many modules in a row."""

from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
from changefeed.core.loading import loading
with loading():
    import duckdb
    connection = duckdb.connect()
    connection.execute("SELECT 1").fetchall()
"""


def test_a_process_ends_without_words_of_a_library() -> None:
    """DuckDB's module lists what is not freed at the end."""
    ended = subprocess.run(
        [sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stderr == ""
