"""The file of one VERIFY: what the source has and what the target holds, as two tables of SQLite.

Memory stays bounded whatever the size of the table. Rows may be secret, so nobody else can read it.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar
from uuid import uuid4

#: Rows that go into the file in one statement.
ROWS_AT_ONCE = 10_000

T = TypeVar("T")


class ComparisonFile:
    """A comparison with tables ``source`` and ``target`` in a file of its own, in :attr:`_file`.

    A context manager: at its end the file is gone.
    """

    def __init__(self, folder: str, columns: str, read: Callable[[int], object]) -> None:
        """
        Args:
            folder: for the file; it is made where it is missing.
            columns: of both tables, after their ``id``, as CREATE TABLE takes them.
            read: see :attr:`sinks.base.SinkContext.read`.
        """
        self._read = read
        home = Path(folder)
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._path = home / f"verify-{uuid4().hex}.db"
        os.close(os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        self._file = sqlite3.connect(self._path, isolation_level=None)
        for setting in ("journal_mode = OFF", "synchronous = OFF", "cache_size = -65536"):
            self._file.execute(f"PRAGMA {setting}")
        for side in ("source", "target"):
            self._file.execute(
                f"CREATE TABLE {side} (id TEXT PRIMARY KEY, {columns}) WITHOUT ROWID"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()
        self._path.unlink(missing_ok=True)


def batches(rows: Iterable[T], size: int = ROWS_AT_ONCE) -> Iterator[list[T]]:
    """The rows in lists of at most ``size``; none where there are no rows."""
    waiting = iter(rows)
    while many := list(islice(waiting, size)):
        yield many
