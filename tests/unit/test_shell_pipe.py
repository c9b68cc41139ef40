"""A reader of standard output that goes away ends the process with 141."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("arguments", [["-c", "SHOW JOBS"], ["--help"], ["version"]])
def test_a_closed_pipe_is_141(arguments: list[str], tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "shell", *arguments],
            env={**os.environ, "CHANGEFEED_STATE": str(tmp_path / "state")},
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
        )
    finally:
        os.close(writing)
    assert (ended.returncode, ended.stderr) == (141, "")
