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
from typing import NamedTuple, Self, TypeVar
from uuid import uuid4

#: Rows that go into the file in one statement.
ROWS_AT_ONCE = 10_000

T = TypeVar("T")


class Unequal(NamedTuple):
    """What both sides have under an id, where that is not alike: texts of rows, None where there
    is none, and how often each is there."""

    id: str
    source: str | None
    source_count: int
    target: str | None
    target_count: int


class ComparisonFile:
    """A comparison with tables ``source`` and ``target`` in a file of its own, in :attr:`_file`.

    Of each id a table has one row as text, and how often it was there. The target's may be of a
    ``part``, and ``vague``: it may be there or not. A context manager: at its end the file is gone.
    """

    def __init__(self, folder: str, read: Callable[[int], object]) -> None:
        """
        Args:
            folder: for the file; it is made where it is missing.
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
                f"CREATE TABLE {side} (id TEXT PRIMARY KEY, row TEXT, count INTEGER DEFAULT 1, "
                "part INTEGER DEFAULT 0, vague INTEGER DEFAULT 0) WITHOUT ROWID"
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

    def unequal(self, limit: int) -> list[Unequal]:
        """At most ``limit``: ids that the source has before those that only the target has."""
        found = self._file.execute(
            "SELECT s.id, s.row, s.count, CASE WHEN NOT t.vague THEN t.row END, "
            "coalesce(t.count, 0) FROM source s LEFT JOIN target t ON t.id = s.id "
            "WHERE t.row IS NOT s.row OR t.count <> s.count ORDER BY s.id LIMIT ?",
            (limit,),
        ).fetchall()
        extra = self._file.execute(
            "SELECT t.id, NULL, 0, t.row, t.count FROM target t LEFT JOIN source s ON s.id = t.id "
            "WHERE s.id IS NULL AND NOT t.vague ORDER BY t.id LIMIT ?",
            (limit - len(found),),
        )
        return [Unequal(*row) for row in (*found, *extra)]


def batches(rows: Iterable[T], size: int = ROWS_AT_ONCE) -> Iterator[list[T]]:
    """The rows in lists of at most ``size``; none where there are no rows."""
    waiting = iter(rows)
    while many := list(islice(waiting, size)):
        yield many
