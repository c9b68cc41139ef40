"""The lock that makes one process the node of a local state."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Self, TextIO


class NodeLock:
    """A ``flock`` on a file: it ends with the last process that holds it.

    A process that starts a node can take the lock for it and pass on :attr:`descriptor`: between
    the two no other process gets it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: TextIO | None = None

    @classmethod
    def passed_on(cls, path: Path, descriptor: int) -> Self:
        """The lock that the process which started this one has taken for it."""
        os.set_inheritable(descriptor, False)
        lock = cls(path)
        lock._file = os.fdopen(descriptor, "a+")
        lock._sign(lock._file)
        return lock

    @property
    def descriptor(self) -> int:
        """What a child process inherits to hold the lock.

        Raises:
            RuntimeError: the lock is not held.
        """
        if self._file is None:
            raise RuntimeError("the lock is not held")
        return self._file.fileno()

    def acquire(self) -> bool:
        """Take the lock, unless it is held already; False when another process holds it."""
        if self._file is not None:
            return True
        self._path.parent.mkdir(parents=True, exist_ok=True)
        file = self._path.open("a+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return False
        self._sign(file)
        self._file = file
        return True

    def _sign(self, file: TextIO) -> None:
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()

    def release(self) -> None:
        """Let go of the lock; a process that it was passed on to still holds it."""
        if self._file is not None:
            self._file.close()
            self._file = None
