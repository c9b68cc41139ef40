"""A capture process that is started before anybody knows which source it will read.

Half of the time until a node's first row is Python loading modules, first in the node and then
in its capture process. So ``changefeed start`` first starts a capture process: it loads its
modules, and the drivers of the sources that have feeds, while the node loads its own modules.
Then it waits for its task on standard input. Until then it only reads the state. This module is
loaded before all others and imports almost nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from dataclasses import asdict, dataclass

from changefeed.core.child_path import own_path

#: Names the state of a capture: a directory, or a URL that may have a password.
STATE_VARIABLE = "CHANGEFEED_CAPTURE_STATE"

#: Seconds that a capture process may take to end by itself.
STOP_SECONDS = 8.0

# -P: code that lies in the directory the node was started in is not imported.
_COMMAND = (sys.executable, "-P", "-m", "changefeed.capture")


@dataclass(frozen=True, slots=True)
class CaptureTask:
    """What a capture process is to do.

    Attributes:
        source: the connection to read.
        disk: the limit of its change log, bytes.
        copies: the limit of the copies of objects of a shared log, bytes.
        node, token: the lease of the source's shared log; 0: the log is not shared.
    """

    source: str
    disk: int | None = None
    copies: int | None = None
    node: str = ""
    token: int = 0

    @property
    def command(self) -> list[str]:
        """The command that does it."""
        return [*_COMMAND, "--task", self.line.decode()]

    @property
    def line(self) -> bytes:
        """As one line of JSON."""
        return json.dumps(asdict(self)).encode()


class Standby:
    """One capture process without a task; the next caller of :meth:`take` gets it."""

    def __init__(self, state: str) -> None:
        """Start the process for a source of ``state``; does not wait for it."""
        self._lock = threading.Lock()
        self._state = state
        self._child: subprocess.Popen[bytes] | None = None
        self.renew()

    def renew(self) -> None:
        """Start another process if the last one has a task; does not wait for it."""
        with self._lock:
            if self._child is None:
                self._child = start([*_COMMAND, "--standby"], self._state)

    def take(self, task: CaptureTask) -> subprocess.Popen[bytes] | None:
        """The process, which now does ``task``; None if it was taken before or has ended."""
        with self._lock:
            child, self._child = self._child, None
        if child is None or child.stdin is None:
            return None
        try:
            os.write(child.stdin.fileno(), task.line + b"\n")
        except OSError:
            end(child)
            _close_pipes(child)
            return None
        return child

    def close(self) -> None:
        """End the process if it was not taken."""
        with self._lock:
            child, self._child = self._child, None
        if child is not None:
            end(child)
            _close_pipes(child)


def read_task() -> CaptureTask | None:
    """The task from :meth:`Standby.take`; None if the node has ended. Reads nothing after the task
    from standard input.
    """
    line = b""
    # Byte by byte: other code reads what comes after the line.
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            return None
        line += byte
    return CaptureTask(**json.loads(line))


def start(words: list[str], state: str | None) -> subprocess.Popen[bytes]:
    """Start a capture process of ``state``; None: with this process's environment as it is."""
    return subprocess.Popen(
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=None if state is None else _environment(state),
        start_new_session=True,  # Ctrl-C in the shell is for the shell
    )


def end(child: subprocess.Popen[bytes]) -> None:
    """End a capture process: close its input, and kill it if it does not end; waits for it."""
    if child.poll() is not None:
        return
    if child.stdin is not None and not child.stdin.closed:
        child.stdin.close()
    try:
        child.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def _close_pipes(child: subprocess.Popen[bytes]) -> None:
    for pipe in (child.stdin, child.stdout, child.stderr):
        if pipe is not None:
            # Input that a dead process has not read is lost with it.
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


def _environment(state: str) -> dict[str, str]:
    """The capture's environment, with the URL of the state, which may contain a password.

    Every user may read the arguments of a process, but only its owner the environment.
    """
    return {**os.environ, STATE_VARIABLE: state, "PYTHONPATH": own_path()}
