"""``changefeed start`` beside the measuring: the process that a user runs, and what it costs."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.measure import compiled
from changefeed.api import Interpreter, Result, Session
from changefeed.catalog import Catalog
from changefeed.embedded.child import spawn


class Ours:
    """One state, statements against it, and its node while :meth:`running`."""

    def __init__(
        self, folder: Path, source_uri: str, sink_uri: str, state: str = "", log: str = ""
    ) -> None:
        """
        Args:
            state: a database of a server for the state, in place of a file in ``folder``.
            log: where the change logs are, in place of beside the state.
        """
        self.state = folder / "state"
        self.state.mkdir()
        self.log_file = folder / "ours.log"
        self._flags = ["--state", state or str(self.state), *(["--log", log] if log else [])]
        place = self.state if state else None
        self._catalog = Catalog.open(state or self.state, directory=place)
        self._interpreter = Interpreter(self._catalog)
        self._session = Session(client="benchmark")
        self.execute(f"CREATE EXTERNAL CONNECTION source AS '{source_uri}'")
        self.execute(f"CREATE EXTERNAL CONNECTION sink AS '{sink_uri}'")

    def execute(self, sql: str) -> Result:
        """One statement."""
        return self._interpreter.execute(sql, self._session)

    def wait_status(self, name: str, *wanted: str, timeout: float = 120.0) -> None:
        """Wait until the feed has one of these states.

        Raises:
            TimeoutError: it has not in ``timeout`` seconds; says its state and error.
        """
        deadline = time.monotonic() + timeout
        while True:
            job = self._catalog.job(name)
            if str(job.status) in wanted:
                return
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"{name} is {job.status}: {job.error or job.reason}\n{self._log_tail()}"
                )
            time.sleep(0.05)

    @contextmanager
    def running(self) -> Iterator[int]:
        """A node on this state; gives its process id."""
        process = spawn(
            [sys.executable, "-m", "shell", "start", *self._flags],
            log_file=self.log_file,
            environment=compiled(
                {
                    **os.environ,
                    "PYTHONPATH": str(Path(__file__).parents[1]),
                    "XDG_DATA_HOME": str(self.state),
                }
            ),
        )
        try:
            yield process.pid
        finally:
            process.terminate()
            process.wait(60)

    def check(self) -> None:
        """Raise when a feed has failed."""
        for job in self._catalog.jobs():
            if str(job.status) == "failed":
                raise RuntimeError(f"{job.name} failed: {job.error}\n{self._log_tail()}")

    def _log_tail(self) -> str:
        return self.log_file.read_text()[-3000:] if self.log_file.exists() else ""

    def close(self) -> None:
        """Close the state."""
        self._catalog.close()
