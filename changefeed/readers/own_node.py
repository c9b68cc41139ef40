"""A node for a reader that was given a source: a child process that ends with this one.

One node runs a state. Each process that reads from it holds an :class:`OwnNode`, which waits for
the state's lock: while another node runs, it does nothing; when that one ends, it starts the next.
It takes the lock itself and passes it on, so there is no moment in which two start.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from changefeed.api import Interpreter
from changefeed.catalog import Catalog
from changefeed.core.child_path import own_path
from changefeed.core.clock import SYSTEM_CLOCK, Clock, Timestamp
from changefeed.core.errors import Action, ChangefeedError, Code
from changefeed.core.events import Position
from changefeed.core.node_lock import NodeLock
from changefeed.core.state import StateLayout
from changefeed.embedded.child import spawn
from changefeed.readers.reader import Reader
from changefeed.statements.context import log_lookup_of

#: Name the state of the node and its lock. A URL of a state may have a password, and every user
#: may read the arguments of a process, but only its owner the environment.
STATE_VARIABLE = "CHANGEFEED_READER_STATE"
LOCK_VARIABLE = "CHANGEFEED_READER_LOCK"

#: How often it looks whether the state has no node, seconds.
POLL_SECONDS = 0.1
#: A node that ends sooner than this is not started again, seconds.
SHORT_SECONDS = 30.0
#: Before the scan: how long an error may last that the node retries, seconds.
RETRY_SECONDS = 20.0
#: How long a node may take to end, seconds.
STOP_SECONDS = 30.0

#: What Spark gives its own processes to reach each other.
_OF_SPARK = ("PYTHON_WORKER_FACTORY_", "PYSPARK_GATEWAY_")


class OwnNode:
    """Sees to it that a node runs for a state, until :meth:`close` or the end of this process."""

    def __init__(self, state: str, directory: Path, clock: Clock = SYSTEM_CLOCK) -> None:
        """
        Args:
            state: directory or URL of the state.
            directory: where its change logs are.
        """
        self._state = state if "://" in state else str(Path(state).absolute())
        self._layout = StateLayout(directory.absolute())
        self._clock = clock
        self._lock = NodeLock(self._layout.lock)
        self._stopping = threading.Event()
        self._child: subprocess.Popen[bytes] | None = None
        self._error: ChangefeedError | None = None
        self._troubled_at: float | None = None
        self._thread = threading.Thread(target=self._run, name="own-node", daemon=True)

    def start(self) -> None:
        """Start the node, unless one runs; does not wait for it."""
        self._layout.make_private()
        self._thread.start()

    @property
    def pid(self) -> int | None:
        """Process id of the node, if it is ours."""
        child = self._child
        return None if child is None or child.poll() is not None else child.pid

    def _run(self) -> None:
        started = 0.0
        try:
            while not self._stopping.is_set():
                child = self._child
                if child is not None and child.poll() is not None:
                    self._child = None
                    if self._clock.monotonic() - started < SHORT_SECONDS:
                        self._error = self._ended(child.returncode)
                        return
                if self._child is None and self._lock.acquire():
                    started = self._clock.monotonic()
                    try:
                        self._child = self._spawn()
                    finally:
                        self._lock.release()
                self._clock.wait(self._stopping, POLL_SECONDS)
        except OSError as failure:
            self._error = ChangefeedError(
                Code.NODE_ENDED,
                f"cannot start a node in {self._layout.root}: {failure.strerror}",
                hint="the directory must be one that this user may write to.",
            )

    def _spawn(self) -> subprocess.Popen[bytes]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(_OF_SPARK)}
        descriptor = self._lock.descriptor
        return spawn(
            [sys.executable, "-P", "-m", "changefeed.reader_node", str(descriptor)],
            log_file=self._layout.node_log,
            at_our_death=signal.SIGTERM,
            environment={
                **kept,
                STATE_VARIABLE: self._state,
                LOCK_VARIABLE: str(self._layout.lock),
                "PYTHONPATH": own_path(),
            },
            inherited=(descriptor,),
        )

    def _ended(self, status: int) -> ChangefeedError:
        lines = self._layout.node_log.read_text(errors="replace").splitlines()[-3:]
        return ChangefeedError(
            Code.NODE_ENDED,
            f"the node that was started for this reader has ended (status {status})",
            detail="\n".join(lines),
            hint=f"{self._layout.node_log} says why.",
        )

    def check(self) -> None:
        """Raise an error if the node cannot be kept running.

        Raises:
            ChangefeedError: CF6005.
        """
        if self._error is not None:
            raise self._error

    def check_begin(self, reader: Reader) -> None:
        """Raise an error if a reader that has not begun will not begin. The caller asks again and
        again.

        Raises:
            ChangefeedError: CF6005 the node has ended; what keeps the feed from its scan.
        """
        self.check()
        self.bear(reader.trouble())

    def bear(self, trouble: ChangefeedError | None) -> None:
        """Raise an error of the source that will not pass, or lasts. The caller says again and
        again what is wrong now, and None where nothing is."""
        if trouble is None:
            self._troubled_at = None
            return
        now = self._clock.monotonic()
        self._troubled_at = now if self._troubled_at is None else self._troubled_at
        if trouble.code.action is not Action.RETRY or now - self._troubled_at >= RETRY_SECONDS:
            raise trouble

    def close(self) -> None:
        """Stop the node if it is ours, and wait for its end; another reader may start the next."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()
        child, self._child = self._child, None
        if child is None:
            return
        child.terminate()
        try:
            child.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


@contextmanager
def own_node(state: str, directory: Path) -> Iterator[OwnNode]:
    """A node for a state while the block runs."""
    node = OwnNode(state, directory)
    node.start()
    try:
        yield node
    finally:
        node.close()


def until_begun(reader: Reader, node: OwnNode, clock: Clock = SYSTEM_CLOCK) -> Timestamp:
    """Wait for the initial scan of a reader, however long it takes; gives where changes begin.

    Raises:
        ChangefeedError: the reader will not begin: see :meth:`OwnNode.check_begin`.
    """
    while (begun := reader.begun()) is None:
        node.check_begin(reader)
        clock.sleep(POLL_SECONDS)
    return begun


def until_logged(
    catalog: Catalog,
    source: str,
    node: OwnNode,
    clock: Clock = SYSTEM_CLOCK,
    wanted: Callable[[], bool] = lambda: True,
) -> bool:
    """Wait until the change log has everything that is committed at the source now; whether it has.

    Args:
        wanted: asked again and again; false ends the wait.

    Raises:
        ChangefeedError: CF6005 the node has ended; the source's error if it lasts.
    """
    position: Position | None = None
    look_up = log_lookup_of(catalog)
    while wanted():
        node.check()
        trouble: ChangefeedError | None = None
        if position is None:
            uri = catalog.connection(source).uri
            try:
                position = Interpreter(catalog).open_source(source, uri).current_position()
            except ChangefeedError as error:
                trouble = error
        if position is not None and look_up(source, position) is not None:
            return True
        state = catalog.source_state(source)
        if trouble is None and state.error:
            code = Code.stored(state.error_code) or Code.INTERNAL_ERROR
            trouble = ChangefeedError(code, state.error, hint=code.hint)
        node.bear(trouble)
        clock.sleep(POLL_SECONDS)
    return False
