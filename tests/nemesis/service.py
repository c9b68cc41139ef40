"""Nodes in processes of their own, which a test may kill; statements reach them through the
state."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path

import psutil

from changefeed.api import Interpreter, Result, Session
from changefeed.catalog import Catalog, Job
from changefeed.core.engines import EngineOption
from changefeed.core.faults import VARIABLE
from changefeed.core.state import StateLayout
from tests.helpers.waiting import PATIENCE, until


class Nodes(ABC):
    """Nodes of a state that a test may kill; statements reach them through the state.

    Attributes:
        place: the state, for clients.
        catalog: the state as this process sees it.
        patience: seconds within which a feed has everything.
    """

    def __init__(self, place: str, catalog: Catalog, patience: float = PATIENCE) -> None:
        self.place = place
        self.catalog = catalog
        self._patience = patience
        self.interpreter = Interpreter(catalog)
        self.session = Session(client="tests")

    @abstractmethod
    def start(self, faults: str = "") -> None:
        """Start what does not run; ``faults`` arms it (see changefeed.core.faults)."""

    @abstractmethod
    def kill(self) -> None:
        """kill -9 of a node; its capture and JVM must end by themselves."""

    @abstractmethod
    def stop(self) -> None:
        """A clean stop of all that runs."""

    @abstractmethod
    def kill_child(self, part: str) -> bool:
        """kill -9 of the ``capture`` or the ``jvm``; whether there was one."""

    @abstractmethod
    def last_words(self, lines: int = 60) -> str:
        """The end of what the nodes said, for a test that failed."""

    def close(self) -> None:
        """Stop the nodes and let go of the state."""
        self.stop()
        self.catalog.close()

    def execute(self, sql: str) -> Result:
        """One statement, from this process."""
        return self.interpreter.execute(sql, self.session)

    def sync(self, feed: str, seconds: float | None = None) -> None:
        """Wait until everything committed before now is durable in the feed's sink."""
        # A node that was started a moment ago has not registered yet, and SYNC says so.
        until(lambda: self.catalog.live_nodes(), "a node of the state")
        self.execute(f"SYNC CHANGEFEED {feed} TIMEOUT '{seconds or self._patience:.0f}s'")

    def job(self, feed: str) -> Job:
        """The feed's row of the job table."""
        return self.catalog.job(feed)


class Service(Nodes):
    """``changefeed start`` over a state, and a client of that state in this process.

    Args:
        state: its directory.
        spark: the flags that say where Spark runs.
        engine: with ``spark`` every scan and every backlog that can be a job of Spark is one.
        patience: seconds within which a feed has everything.
    """

    def __init__(
        self,
        state: Path,
        spark: Sequence[str] = ("--master", "local[2]"),
        engine: EngineOption = EngineOption.AUTO,
        patience: float = PATIENCE,
    ) -> None:
        state.mkdir(parents=True, exist_ok=True)
        super().__init__(str(state), Catalog.open(str(state)), patience)
        self.state = state
        self._spark = spark
        self._program = (
            ("tests.nemesis.spark_node",) if engine is EngineOption.SPARK else ("shell", "start")
        )
        self.layout = StateLayout(state)
        self._output = state / "service.out"
        self._process: subprocess.Popen[bytes] | None = None

    # -- the process ----------------------------------------------------------------------

    def start(self, faults: str = "", spark: Sequence[str] = ()) -> None:
        """Start the node; ``faults`` arms it and its captures (see changefeed.core.faults).

        ``spark`` are flags in place of the service's own.
        """
        environment = {**os.environ, VARIABLE: faults}
        command = [sys.executable, "-m", *self._program, "--state", str(self.state)]
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(
                [*command, "--heap", "512m", *(spark or self._spark)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,
            )

    @property
    def running(self) -> bool:
        """The node's process lives."""
        return self._process is not None and self._process.poll() is None

    @property
    def exit_status(self) -> int | None:
        """How the last node ended; None while it lives."""
        return None if self._process is None else self._process.poll()

    def kill(self) -> None:
        """kill -9 of the node; its capture and JVM must end by themselves."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)

    def stop(self) -> None:
        """A clean stop; killed with all its children when it does not come."""
        if self._process is None:
            return
        children = self._children()
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)
        for child in children:
            _end(child)

    def kill_child(self, part: str) -> bool:
        return kill_child(self._children(), part)

    def _children(self) -> list[psutil.Process]:
        if self._process is None:
            return []
        try:
            return psutil.Process(self._process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def last_words(self, lines: int = 60) -> str:
        return last_lines([self.layout.node_log, self._output], lines)

    def stacks(self) -> str:
        """Where each thread of the node was; it is aborted for that, and another one goes on."""
        if self._process is None or not self.running:
            return f"the node is gone, exit status {self.exit_status}"
        before = self._output.stat().st_size
        self._process.send_signal(signal.SIGABRT)
        self._process.wait(60)
        said = self._output.read_bytes()[before:].decode(errors="replace")
        self.start()
        return said


def kill_child(children: Iterable[psutil.Process], part: str) -> bool:
    """kill -9 of the ``capture`` or the ``jvm`` among them; whether there was one."""
    word = {"capture": "changefeed.capture", "jvm": "org.apache.spark"}[part]
    for child in children:
        try:
            if word in " ".join(child.cmdline()):
                child.kill()
                return True
        except psutil.NoSuchProcess:
            continue
    return False


def last_lines(paths: Iterable[Path], lines: int) -> str:
    """The ends of logs."""
    found = []
    for path in paths:
        if path.exists():
            tail = _without_noise(path)[-lines:]
            found += [f"--- {path.name}", *(line[:300] for line in tail)]
    return "\n".join(found)


def _end(process: psutil.Process) -> None:
    try:
        process.kill()
    except psutil.NoSuchProcess:
        pass  # it ended with its parent, as it should


def _without_noise(path: Path) -> list[str]:
    """The lines of a log; what the Kafka client says about a broker that is away is left out."""
    lines = path.read_text(errors="replace").splitlines()
    return [line for line in lines if "FAIL [" not in line]
