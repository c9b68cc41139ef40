"""A process that is nothing but a node, from its first moment on. Imports next to nothing."""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING

from changefeed.capture.standby import Standby
from changefeed.core.loading import loading

if TYPE_CHECKING:
    from changefeed.app import Application

#: New objects before the garbage collector looks for cycles among them.
COLLECTED = 10_000

#: The main thread looks up this often: a signal's handler runs in it.
_TICK = 1.0


@contextmanager
def node_process(state: str) -> Iterator[Standby]:
    """Prepare this process to be the node of ``state``, as its first step.

    Gives a capture process that loads its modules while this process has loaded its own; it ends
    with the block, unless a node took it. On SIGABRT, which a service manager sends to a process
    that hangs, the stacks of all threads are written to standard error.
    """
    with suppress(OSError, RuntimeError, ValueError):  # standard error is closed, or no file
        faulthandler.enable()
    with closing(Standby(state)) as ready:
        with loading():
            from changefeed.app import load_node

            load_node()
        # A listing of hundreds of feeds makes thousands of objects that are all in use: at Python's
        # 700 it would be looked through a dozen times, which is a quarter of its time.
        gc.set_threshold(COLLECTED)
        yield ready


def stop_on_signals() -> threading.Event:
    """An event that SIGTERM, SIGINT and SIGHUP set from now on."""
    stopping = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, stop)
    return stopping


def serve_until_stopped(application: Application, stopping: threading.Event) -> None:
    """Wait for ``stopping``, while the node runs. The service manager is notified when the node is
    ready, after each beat of its pulse, and when it stops.

    Raises:
        ChangefeedError: CF6005, the node has ended by itself; CF6002, it cannot use the state any
            more.
    """
    notify_manager("READY=1")
    seen = application.beats
    try:
        while not stopping.wait(_TICK):
            application.check_node()
            if application.beats != seen:
                seen = application.beats
                notify_manager("WATCHDOG=1")
    finally:
        notify_manager("STOPPING=1")


def notify_manager(state: str) -> None:
    """Send a state, as ``READY=1``, to the service manager (systemd, ``Type=notify``), if this
    process has one."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    # Loaded on use: most processes have no manager.
    import socket

    if address.startswith("@"):
        address = f"\0{address[1:]}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        with suppress(OSError):  # the manager has gone
            sender.sendto(state.encode(), address)
