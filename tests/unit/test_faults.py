"""The fault points themselves."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys

import pytest

from changefeed.core import faults
from changefeed.core.faults import VARIABLE, armed, fault_point


def test_nothing_happens_when_nothing_is_armed() -> None:
    fault_point("log.append.begin")
    assert faults._rules is None


@pytest.mark.parametrize(("action", "number"), [("error", errno.EIO), ("full", errno.ENOSPC)])
def test_errors_carry_their_number(action: str, number: int) -> None:
    with armed(f"here:{action}"), pytest.raises(OSError, match="injected at here") as caught:
        fault_point("here")
    assert caught.value.errno == number


def hits(rule: str, visits: int) -> list[int]:
    """Which of the visits of ``here`` fail."""
    failed = []
    with armed(rule):
        for visit in range(1, visits + 1):
            try:
                fault_point("here")
            except OSError:
                failed.append(visit)
    return failed


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("here:error", [1, 2, 3, 4]),
        ("here@3:error", [3]),
        ("here@3+:error", [3, 4]),
        ("there:error", []),
        (" there:full , here@1:full", [1]),
    ],
)
def test_hits(rule: str, expected: list[int]) -> None:
    assert hits(rule, 4) == expected


def test_the_rules_of_before_come_back() -> None:
    with armed("here:error"):
        with armed("there:error"):
            fault_point("here")
        with pytest.raises(OSError, match="here"):
            fault_point("here")


@pytest.mark.parametrize("wrong", ["here", "here:explode", "here@x:kill", ":kill"])
def test_a_rule_that_is_none(wrong: str) -> None:
    with pytest.raises(ValueError, match="not a fault rule"), armed(wrong):
        pytest.fail("armed")


def test_kill_from_the_environment() -> None:
    code = "from changefeed.core.faults import fault_point as f; f('x'); f('x'); print('alive')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, VARIABLE: "x@2:kill"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "")
