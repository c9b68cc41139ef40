"""Whatever answers in the place of a server, a client of ours ends, in bounded memory, with what
it was asked for or with a ChangefeedError."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("kind", "first", "last"),
    [
        ("mysql", 0, 24),
        ("elasticsearch", 0, 40),
        ("registry", 0, 20),
        ("webhook", 0, 15),
        ("snowflake", 0, 8),
        ("bigquery", 0, 12),
        # Among them one over which the client's reader in C ends the process.
        ("clickhouse", 380, 410),
    ],
)
def test_changed_answers_are_read_or_refused(kind: str, first: int, last: int) -> None:
    """More seeds by hand: ``python -m tests.helpers.answers_child mysql 0 10000``."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.helpers.answers_child", kind, str(first), str(last)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
