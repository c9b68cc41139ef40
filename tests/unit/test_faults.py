"""The fault points themselves."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from changefeed.core import faults
from changefeed.core.faults import VARIABLE, Point, armed, fault_point

#: Two points of which nothing else is reached here.
HERE, THERE = Point.LOG_APPEND_BEGIN, Point.LOG_ROLL_BEGIN


def test_nothing_happens_when_nothing_is_armed() -> None:
    fault_point(HERE)
    assert faults._rules is None


@pytest.mark.parametrize(("action", "number"), [("error", errno.EIO), ("full", errno.ENOSPC)])
def test_errors_carry_their_number(action: str, number: int) -> None:
    with armed(f"{HERE}:{action}"), pytest.raises(OSError, match=f"injected at {HERE}") as caught:
        fault_point(HERE)
    assert caught.value.errno == number


def hits(rule: str, visits: int) -> list[int]:
    """Which of the visits fail."""
    failed = []
    with armed(rule):
        for visit in range(1, visits + 1):
            try:
                fault_point(HERE)
            except OSError:
                failed.append(visit)
    return failed


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (f"{HERE}:error", [1, 2, 3, 4]),
        (f"{HERE}@3:error", [3]),
        (f"{HERE}@3+:error", [3, 4]),
        (f"{THERE}:error", []),
        (f" {THERE}:full , {HERE}@1:full", [1]),
    ],
)
def test_hits(rule: str, expected: list[int]) -> None:
    assert hits(rule, 4) == expected


def test_the_rules_of_before_come_back() -> None:
    with armed(f"{HERE}:error"):
        with armed(f"{THERE}:error"):
            fault_point(HERE)
        with pytest.raises(OSError, match=HERE):
            fault_point(HERE)


@pytest.mark.parametrize("wrong", [HERE, f"{HERE}:explode", f"{HERE}@x:kill", ":kill"])
def test_a_rule_that_is_none(wrong: str) -> None:
    with pytest.raises(ValueError, match="not a fault rule"), armed(wrong):
        pytest.fail("armed")


def test_a_name_that_no_point_has() -> None:
    with pytest.raises(ValueError, match="no fault point has the name"):
        with armed("log.append.begun:kill"):
            pytest.fail("armed")


def test_every_point_is_somewhere() -> None:
    root = Path(faults.__file__).parents[1]
    used = "".join(path.read_text("utf-8") for path in root.rglob("*.py"))
    assert [point.name for point in Point if f"Point.{point.name})" not in used] == []


def test_kill_from_the_environment() -> None:
    code = (
        "from changefeed.core.faults import Point, fault_point;"
        "[fault_point(Point.LOG_APPEND_BEGIN) for _ in range(2)]; print('alive')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, VARIABLE: f"{HERE}@2:kill"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "")
