"""Captures forked from one process that has loaded their modules.

A node starts its capture process as a new Python, which loads 700 modules: a large part of the CPU
of a test that delivers a few rows. The nodes of tests have :class:`ForkedCaptures` as their process
on standby: each capture is a fork, and otherwise what ``python -m changefeed.capture`` is, with a
session, an environment and standard streams of its own. Its parent is the process that forks, which
passes on how it ended. ``tests/unit/test_private_processes.py`` and the tests that start
``changefeed`` itself prove the command.

    python -m tests.helpers.forked_captures FD    # answers requests until the socket closes
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from functools import cache
from typing import IO, Self, cast

from changefeed.capture.standby import STATE_VARIABLE, CaptureTask, Standby
from changefeed.core import faults
from changefeed.core.child_path import own_path

#: The most bytes of a request: a task and an environment.
_REQUEST = 1 << 20


class ForkedCaptures(Standby):
    """The captures of one node's state; :meth:`take` makes one each time."""

    def __init__(self, state: str) -> None:
        """The captures of ``state``; nothing starts."""
        self._of = state

    def renew(self) -> None:
        """Nothing: there is always another."""

    def take(self, task: CaptureTask) -> subprocess.Popen[bytes]:
        """A capture that does ``task``."""
        environment = {**os.environ, STATE_VARIABLE: self._of, "PYTHONPATH": own_path()}
        words = ["--task", task.line.decode()]
        return cast("subprocess.Popen[bytes]", _origin().fork(words, environment))

    def close(self) -> None:
        """Nothing: no process waits."""


class _Origin:
    """The process that forks, and the socket by which it is asked to."""

    def __init__(self) -> None:
        """Start it; the first request waits for its modules."""
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _REQUEST)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__, str(theirs.fileno())],
                env={**os.environ, "PYTHONPATH": own_path()},
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    def fork(self, words: list[str], environment: dict[str, str]) -> _Fork:
        """A capture with these arguments, in the current directory."""
        request = json.dumps([words, environment, os.getcwd()]).encode()
        ours, theirs = socket.socketpair()
        pipes = [os.pipe() for _ in range(3)]
        for_child = [pipes[0][0], pipes[1][1], pipes[2][1]]
        socket.send_fds(self._socket, [request], [*for_child, theirs.fileno()])
        theirs.close()
        for descriptor in for_child:
            os.close(descriptor)
        return _Fork(ours, pipes[0][1], pipes[1][0], pipes[2][0])

    def close(self) -> None:
        """End it; its captures end when their nodes do."""
        self._socket.close()
        self._process.wait()


@cache
def _origin() -> _Origin:
    """That of this process, which ends with it."""
    origin = _Origin()
    atexit.register(origin.close)
    return origin


class _Fork:
    """What a supervisor uses of ``subprocess.Popen``, of a process that another one waits for."""

    def __init__(self, answers: socket.socket, stdin: int, stdout: int, stderr: int) -> None:
        self.stdin: IO[bytes] = os.fdopen(stdin, "wb", buffering=0)
        self.stdout: IO[bytes] = os.fdopen(stdout, "rb")
        self.stderr: IO[bytes] = os.fdopen(stderr, "rb")
        self.returncode: int | None = None
        self.pid = int(answers.makefile("rb", buffering=0).readline())
        self._ended = threading.Event()
        threading.Thread(target=self._await_end, args=(answers,), daemon=True).start()

    def poll(self) -> int | None:
        """How it ended, if it has."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end."""
        if not self._ended.wait(timeout) or self.returncode is None:
            raise subprocess.TimeoutExpired("a forked capture", timeout or 0.0)
        return self.returncode

    def kill(self) -> None:
        """Kill it, if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stdout.close()
        self.stderr.close()
        self.stdin.close()
        self.wait()

    def _await_end(self, answers: socket.socket) -> None:
        with answers:
            # A process that ended without an answer was killed with its origin.
            self.returncode = int(answers.recv(64) or -signal.SIGKILL)
        self._ended.set()


def _load() -> None:
    """Load what a capture of PostgreSQL, MySQL or MariaDB loads."""
    import changefeed.capture.process  # noqa: F401
    from changefeed.sources.registry import open_source

    for scheme in ("postgresql", "mysql"):
        open_source("none", f"{scheme}://nobody@127.0.0.1:1/none")
    gc.collect()
    gc.freeze()


def serve(requests: socket.socket) -> list[str] | None:
    """Fork for each request until the socket closes; in a fork, its arguments."""
    running: dict[int, tuple[int, socket.socket]] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(requests, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is not requests:
                    ended = cast(int, key.fileobj)
                    pid, answers = running.pop(ended)
                    selector.unregister(ended)
                    os.close(ended)
                    _, status = os.waitpid(pid, 0)
                    with answers:
                        answers.send(str(os.waitstatus_to_exitcode(status)).encode())
                    continue
                request, files, _, _ = socket.recv_fds(requests, _REQUEST, 4)
                if not request:
                    return None
                pid = os.fork()
                if pid == 0:
                    for descriptor, (_, other) in running.items():
                        other.close()
                        os.close(descriptor)
                    requests.close()
                    return _become(request, files)
                for descriptor in files[:3]:
                    os.close(descriptor)
                answers = socket.socket(fileno=files[3])
                answers.send(f"{pid}\n".encode())
                watched = os.pidfd_open(pid)
                running[watched] = pid, answers
                selector.register(watched, selectors.EVENT_READ)


def _become(request: bytes, files: list[int]) -> list[str]:
    """Make this fork what a new process would be; returns its arguments."""
    words, environment, folder = json.loads(request)
    os.setsid()
    for number, descriptor in enumerate(files[:3]):
        os.dup2(descriptor, number)
    for descriptor in files:
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    time.tzset()
    return cast("list[str]", words)


if __name__ == "__main__":
    _load()
    given = serve(socket.socket(fileno=int(sys.argv[1])))
    if given is not None:
        from changefeed.capture.process import main

        # The rules of its own environment, not of that in which the first process began.
        with faults.armed(os.environ.get(faults.VARIABLE, "")):
            sys.exit(main(given))
