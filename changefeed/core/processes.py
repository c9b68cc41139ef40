"""Whether another process lives, as far as this one can see it."""

from __future__ import annotations

import os
import socket
import sys
from functools import cache
from pathlib import Path

from changefeed.core.elapsed import read_clocks

_NAMESPACE = Path("/proc/self/ns/pid")


@cache
def process_space() -> str:
    """Names the processes among which a process id means one: those of a boot of this machine
    and, on Linux, of a pid namespace.

    A host name is not enough: containers can share the machine's, and each has ids of its own.
    A space that cannot be found out is like no other.
    """
    host = socket.gethostname()
    if not sys.platform.startswith("linux"):
        return host
    boot = read_clocks().boot
    try:
        namespace = os.readlink(_NAMESPACE)
    except OSError:
        namespace = f"pid:{os.getpid()}"
    return f"{host} {boot} {namespace}"


def has_ended(pid: int, space: str) -> bool:
    """Whether a process is certain to have ended: one of this space whose id no process has.

    False says little: the id may be another process's by now, and processes of another space
    cannot be seen.
    """
    if space != process_space():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False  # it exists, and is another user's
    return False
