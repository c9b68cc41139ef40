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


@pytest.mark.parametrize("lost", [0, 2])
def test_a_reader_that_goes_away_ends_a_stream_that_has_nothing_to_write(lost: int) -> None:
    """``lost``: so many signals come right before the stream begins to wait, and do not end it."""
    code = f"""
import itertools, signal, sys, threading
from shell.signals import while_read
sent, numbers = signal.pthread_kill, itertools.count()
signal.pthread_kill = lambda *to: next(numbers) < {lost} or sent(*to)
try:
    with while_read(sys.stdout):
        print("a row", flush=True)
        threading.Event().wait(60)
except BrokenPipeError:
    sys.stderr.write("gone")
    sys.stdout = None
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.readline() == "a row\n"
    process.stdout.close()
    assert process.stderr.read() == "gone"
    process.stderr.close()
    assert process.wait(30) == 0


def test_a_pipe_that_is_read_is_left_alone() -> None:
    code = """
import sys, signal
from shell.signals import while_read
before = signal.getsignal(signal.SIGPIPE)
with while_read(sys.stdout):
    print("a row", flush=True)
assert signal.getsignal(signal.SIGPIPE) == before
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "a row\n", "")
