"""What the executors of a Spark that the node has not started answer, and how long that holds."""

from __future__ import annotations

import base64
import io
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark import cloudpickle
from pyspark.errors import PySparkRuntimeError
from pyspark.worker_util import check_python_version

from changefeed.core.clock import ManualClock, Waitable
from changefeed.core.errors import ChangefeedError, Code
from changefeed.spark.executor_check import (
    AGAIN_SECONDS,
    ANSWER_SECONDS,
    NOT_KNOWN,
    ExecutorCheck,
    look,
    reason,
)
from changefeed.spark.failure import pack
from tests.helpers.waiting import until

ROOT = Path(__file__).parents[2]
PACKAGES = Path(pyspark.__file__).parents[1]

#: What a worker does with a task of one row.
WORKER = """
import base64, pickle, sys
sys.path += sys.argv[1:]
import pyarrow
task = pickle.loads(base64.b64decode(sys.stdin.read()))
[answer] = task([pyarrow.record_batch({"id": [0]})])
print(answer["why"][0])
"""


class OneExecutor:
    """Stands in for a session and its executor: a Python with these import paths, and without what
    is installed here."""

    def __init__(self, *paths: Path) -> None:
        self.conf = {"spark.driver.host": "127.0.0.1"}
        self._paths = paths
        self._task = b""

    def range(self, count: int, numPartitions: int) -> OneExecutor:
        assert count == numPartitions == 1
        return self

    def mapInArrow(self, task: Callable[..., Any], schema: str) -> OneExecutor:
        dumps: Callable[[object], bytes] = cloudpickle.dumps
        self._task = dumps(task)
        return self

    def collect(self) -> list[dict[str, str]]:
        words = [sys.executable, "-S", "-P", "-c", WORKER, *map(str, self._paths)]
        text = base64.b64encode(self._task).decode()
        done = subprocess.run(words, input=text, env={}, capture_output=True, text=True, timeout=60)
        if done.returncode:
            raise RuntimeError(done.stderr)  # Spark's exception quotes the worker's traceback
        return [{"why": done.stdout.strip()}]


def answer(*paths: Path, folder: str = "") -> str:
    session: Any = OneExecutor(*paths)
    check = ExecutorCheck(partial(look, session), lambda group: None)
    return check.ask(folder, lambda: False)


def test_an_executor_with_the_nodes_packages_can(tmp_path: Path) -> None:
    assert answer(PACKAGES, ROOT) == ""
    assert answer(PACKAGES, ROOT, folder=str(tmp_path)) == ""


def test_an_executor_that_does_not_see_the_log_cannot_read_it(tmp_path: Path) -> None:
    missing = tmp_path / "log"
    assert answer(PACKAGES, ROOT, folder=str(missing)).startswith(
        f"the executors cannot read {missing}: "
    )


def test_an_executor_without_changefeed() -> None:
    assert answer(PACKAGES).startswith("the executors lack changefeed: ship it by ")


def test_an_executor_without_any_package() -> None:
    assert answer().startswith("the executors lack pyarrow: ")


def test_an_executor_without_a_client_that_the_node_has(tmp_path: Path) -> None:
    for entry in PACKAGES.iterdir():
        if not entry.name.startswith("psycopg"):
            (tmp_path / entry.name).symlink_to(entry)
    assert answer(tmp_path, ROOT).startswith("the executors lack psycopg: ")


def test_an_executor_with_another_version(tmp_path: Path) -> None:
    core = tmp_path / "changefeed" / "core"
    core.mkdir(parents=True)
    (core / "version.py").write_text('__version__ = "0.0.1"')
    why = answer(tmp_path, PACKAGES)
    assert why.startswith("the executors have changefeed 0.0.1, and the node has ")


def test_an_executor_with_another_python() -> None:
    with pytest.raises(PySparkRuntimeError) as caught:
        check_python_version(io.BytesIO(struct.pack("!i", 3) + b"2.7"))
    minor = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert f"another Python than the node's {minor}: set spark.pyspark.python" in reason(
        RuntimeError(f"Job aborted. PySparkRuntimeError: {caught.value}")
    )


def test_a_job_that_fails_is_no_last_word_and_shows_no_value() -> None:
    unreached = ChangefeedError(Code.SPARK_FAILED, "no key from node:1", hint="set the host.")
    assert reason(RuntimeError(f"in a task: {pack(unreached)}")) == (
        "no key from node:1 (set the host)"
    )
    why = reason(ValueError("s3cret"))
    assert "failed (ValueError): the next scan or backlog asks again" in why


class Waits(ManualClock):
    """Waits as long as it takes, unless it is out of patience; other time stands still."""

    patient = True

    def wait(self, waitable: Waitable, seconds: float) -> bool:
        return waitable.wait(30) if self.patient else super().wait(waitable, seconds)


class Answers:
    """A check whose jobs answer what the test says, once the test lets them."""

    def __init__(self) -> None:
        self.clock = Waits()
        self.why = ""
        self.free = threading.Event()
        self.free.set()
        self.asked: list[str] = []
        self.cancelled: list[str] = []
        self.check = ExecutorCheck(self._look, self.cancelled.append, self.clock)

    def _look(self, group: str, folder: str) -> str:
        self.asked.append(group)
        why = self.why
        assert self.free.wait(30)
        return why

    def ask(self, folder: str = "", *, stopping: bool = False) -> str:
        return self.check.ask(folder, lambda: stopping)


def test_a_yes_holds_for_the_session_and_a_no_for_a_minute() -> None:
    world = Answers()
    world.why = "lacks it"
    assert world.check.hindrances == {}
    assert [world.ask(), world.ask()] == ["lacks it"] * 2 and len(world.asked) == 1
    assert world.check.hindrances == {"": "lacks it"}
    world.clock.advance(AGAIN_SECONDS)
    world.why = ""
    assert world.check.hindrances == {}
    assert world.ask() == "" and len(world.asked) == 2
    world.clock.advance(10 * AGAIN_SECONDS)
    assert world.ask() == "" and len(world.asked) == 2
    world.why = "cannot read it"
    assert world.ask("/log") == "cannot read it" and world.ask() == ""
    assert world.check.hindrances == {"/log": "cannot read it"}


def test_who_stops_waiting_has_no_answer_and_the_next_has_it() -> None:
    world = Answers()
    world.free.clear()
    assert [world.ask(stopping=True), world.ask(stopping=True)] == [NOT_KNOWN] * 2
    assert world.check.hindrances == {}
    world.free.set()
    assert world.ask() == "" and len(world.asked) == 1


def test_a_job_that_no_executor_takes_is_given_up_and_its_late_answer_ignored() -> None:
    world = Answers()
    world.free.clear()
    world.clock.patient = False
    why = world.ask()
    assert why.startswith(f"no executor has answered within {ANSWER_SECONDS:.0f} s")
    until(lambda: world.asked and world.cancelled == world.asked, "its job is cancelled")
    world.free.set()
    assert world.ask() == why
    world.clock.advance(AGAIN_SECONDS)
    world.clock.patient = True
    assert world.ask() == ""
