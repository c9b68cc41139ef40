"""Keeps one capture process alive: starts it, reads its notices, restarts it with back-off.

A capture that ended with an error that a person must fix is not restarted until :meth:`retry`.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from collections import deque
from collections.abc import Callable

from changefeed.capture import standby
from changefeed.capture.process import EXIT_RETRY, EXIT_STOP, Notice
from changefeed.capture.standby import STOP_SECONDS, CaptureTask, Standby
from changefeed.core.clock import Clock, SystemClock
from changefeed.core.errors import Code
from changefeed.core.internal_errors import LIMIT, SPAN_SECONDS, log_failure
from changefeed.core.telemetry import log
from changefeed.core.timings import Timings


class CaptureSupervisor:
    """Keeps a child process running until :meth:`stop`.

    ``on_notice`` is called from the supervisor's thread for each line of the child, and with an
    ``error`` notice of the supervisor when the child ends without a reason.
    """

    def __init__(
        self,
        spawn: Callable[[], subprocess.Popen[bytes]],
        on_notice: Callable[[Notice], None],
        clock: Clock | None = None,
        timings: Timings | None = None,
    ) -> None:
        """``spawn`` starts the child with three pipes, at first and after each end."""
        self._clock = clock or SystemClock()
        self._timings = timings or Timings()
        self._spawn = spawn
        self._on_notice = on_notice
        self._wanted = threading.Event()
        self._stopping = threading.Event()
        self._nudge = threading.Event()
        self._child: subprocess.Popen[bytes] | None = None
        #: The last errors that the child reported, and when; an empty text for an expected one.
        self._failures: deque[tuple[str, float]] = deque(maxlen=LIMIT)
        self._thread: threading.Thread | None = None

    @classmethod
    def for_source(
        cls,
        state: str,
        task: CaptureTask,
        on_notice: Callable[[Notice], None],
        ready: Standby | None = None,
        clock: Clock | None = None,
        timings: Timings | None = None,
    ) -> CaptureSupervisor:
        """The supervisor of a capture in ``state``; ``ready`` becomes the child if it has no task
        yet.
        """

        def spawn() -> subprocess.Popen[bytes]:
            waiting = None if ready is None else ready.take(task)
            return waiting or standby.start(task.command, state)

        return cls(spawn, on_notice, clock, timings)

    @property
    def pid(self) -> int | None:
        """Process id of the running child."""
        child = self._child
        return child.pid if child is not None and child.poll() is None else None

    def start(self) -> None:
        """Start the child and the thread that listens to it; does nothing the second time."""
        if self._thread is not None:
            return
        self._thread = threading.Thread(target=self._run, name="capture", daemon=True)
        self._thread.start()

    def retry(self) -> None:
        """Restart a stopped child now instead of after the pause (or never)."""
        self._nudge.set()

    def hasten(self) -> None:
        """Make the child report the source's frontier now; does nothing without a child."""
        child = self._child
        if child is not None and child.stdin is not None:
            # A child that has just ended reads nothing, and its successor begins with a
            # frontier.
            with contextlib.suppress(OSError, ValueError):
                os.write(child.stdin.fileno(), b"\n")

    def stop(self) -> None:
        """End the child: close its input, and kill it if it does not end; waits for it."""
        self._stopping.set()
        self._nudge.set()
        child = self._child
        if child is not None:
            standby.end(child)
        if self._thread is not None:
            self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        pause = self._timings.restart_first
        while not self._stopping.is_set():
            try:
                status, useful = self._one_life()
            except Exception as surprise:
                # Nothing else would restart it, or report that it is down.
                log_failure("capture cannot be supervised", surprise)
                status, useful = EXIT_RETRY, False
                what = f"the capture process cannot be run: {type(surprise).__name__}"
                self._on_notice(Notice("error", code=Code.STREAM_BROKE, message=what))
            if self._stopping.is_set():
                return
            if useful:
                pause = self._timings.restart_first
            if self._repeats():
                status = EXIT_STOP
            if status == EXIT_STOP:
                self._nudge.wait()
            else:
                self._clock.wait(self._nudge, pause)
                pause = min(pause * 2, self._timings.restart_longest)
            self._nudge.clear()

    def _repeats(self) -> bool:
        """Whether the same internal error has ended the child repeatedly, and not over days: a
        person must look.
        """
        texts = {text for text, _ in self._failures}
        if len(self._failures) < LIMIT or len(texts) > 1 or "" in texts:
            return False
        if self._clock.monotonic() - self._failures[0][1] > SPAN_SECONDS:
            return False
        self._on_notice(Notice("error", code=Code.INTERNAL_ERROR_REPEATS, message=texts.pop()))
        self._failures.clear()
        return True

    def _one_life(self) -> tuple[int, bool]:
        """Run the child until it ends; returns its exit status, and whether it made progress."""
        child = self._spawn()
        self._child = child
        if self._stopping.is_set():
            standby.end(child)
        errors = _StderrTail(child)
        frontiers, reported = 0, False
        with child:  # closes the pipes at the end
            if child.stdout is None:
                raise AssertionError("the child was started with a pipe")
            for line in child.stdout:
                notice = Notice.parse(line)
                frontiers += notice.kind == "frontier"
                reported = reported or notice.kind == "error"
                if notice.kind == "error":
                    text = notice.message if notice.code == Code.INTERNAL_ERROR else ""
                    self._failures.append((text, self._clock.monotonic()))
                self._on_notice(notice)
            status = child.wait()
            errors.join()
        if reported and self._failures and self._failures[-1][0]:
            log.warning("capture met an internal error: %s", errors.text())
        if status != 0 and not reported and not self._stopping.is_set():
            log.warning("capture ended with status %s: %s", status, errors.text())
            self._on_notice(
                Notice(
                    "error", code=Code.STREAM_BROKE, message=f"the capture process ended ({status})"
                )
            )
        return status, frontiers > 1


class _StderrTail:
    """The last lines of a child's standard error; reading them keeps the child from blocking."""

    def __init__(self, child: subprocess.Popen[bytes]) -> None:
        self._lines: list[str] = []
        self._thread = threading.Thread(target=self._read, args=(child,), daemon=True)
        self._thread.start()

    def _read(self, child: subprocess.Popen[bytes]) -> None:
        if child.stderr is None:
            return
        for line in child.stderr:
            self._lines = [*self._lines[-19:], line.decode(errors="replace").rstrip()]

    def join(self) -> None:
        self._thread.join(STOP_SECONDS)

    def text(self) -> str:
        return " | ".join(self._lines)
