"""The connections that a sink opens and the text that it prints, observed by the tests.

Both are observed at the operating system, because client libraries in C bypass Python.
"""

from __future__ import annotations

import contextlib
import io
import os
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

Made = TypeVar("Made")
_OPEN_FILES = Path("/proc/self/fd")


def _sockets() -> frozenset[str]:
    """The sockets of this process; none if the operating system does not list them."""
    found = set()
    for name in os.listdir(_OPEN_FILES) if _OPEN_FILES.is_dir() else ():
        with contextlib.suppress(OSError):  # a file may be closed by now: the listing's, for one
            target = os.readlink(_OPEN_FILES / name)
            if target.startswith("socket:"):
                found.add(target)
    return frozenset(found)


def assert_connects_to_nothing(make: Callable[[], Made]) -> Made:
    """Call ``make`` and return its result; it may neither connect nor leave a connection open.

    Raises:
        AssertionError: it did one of them.
    """
    asked: list[object] = []
    thread = threading.get_ident()
    connect, connect_ex, resolve = (
        socket.socket.connect,
        socket.socket.connect_ex,
        socket.getaddrinfo,
    )

    def seen(call: Callable[..., Any], at: int) -> Callable[..., Any]:
        def noted(*args: Any, **options: Any) -> Any:
            if threading.get_ident() == thread:
                asked.append(args[at] if len(args) > at else options)
            return call(*args, **options)

        return noted

    before = _sockets()
    with (
        mock.patch.object(socket.socket, "connect", seen(connect, 1)),
        mock.patch.object(socket.socket, "connect_ex", seen(connect_ex, 1)),
        mock.patch.object(socket, "getaddrinfo", seen(resolve, 0)),
    ):
        made = make()
    assert not asked, f"the constructor asked for connections: {asked}"
    left = _sockets() - before
    assert not left, f"the constructor left connections open: {sorted(left)}"
    return made


@contextmanager
def assert_prints_nothing() -> Iterator[None]:
    """Check that the block writes nothing to standard output or error, in Python or in C.

    Raises:
        AssertionError: it did; the message has the beginning of the text.
    """
    out, err = io.StringIO(), io.StringIO()
    with tempfile.TemporaryFile() as file:
        kept = [(number, os.dup(number)) for number in (1, 2)]
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                for number, _ in kept:
                    os.dup2(file.fileno(), number)
                yield
        finally:
            for stream in (sys.__stdout__, sys.__stderr__):
                if stream is not None:
                    stream.flush()
            for number, copy in kept:
                os.dup2(copy, number)
                os.close(copy)
        file.seek(0)
        said = out.getvalue() + err.getvalue() + file.read().decode(errors="replace")
    assert not said, f"the sink printed: {said[:500]!r}"
