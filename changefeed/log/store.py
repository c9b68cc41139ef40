"""Reading stored bytes of a log directory, with small bounded caches. Safe for threads."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import pyarrow as pa

from changefeed.log.frame import COMMIT_SCHEMA, CommitExtent, RowGroup, Run
from changefeed.log.journal import JournalFile
from changefeed.log.rows import Extent, unpack
from changefeed.log.segment import read_group, read_stamps

V = TypeVar("V")

#: How many journal files are kept open. An open file can be read after compaction removed its name.
_OPEN_FILES: Final = 16


class Cache(Generic[V]):
    """The most recently used values, up to a total weight."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._weight = 0
        self._items: OrderedDict[Hashable, tuple[V, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], V], weigh: Callable[[V], int]) -> V:
        """The value of ``key``; a missing one is made, outside the lock."""
        with self._lock:
            item = self._items.get(key)
            if item is not None:
                self._items.move_to_end(key)
                return item[0]
        value = make()
        weight = weigh(value)
        with self._lock:
            if key not in self._items and weight <= self._limit:
                self._items[key] = (value, weight)
                self._weight += weight
            while self._weight > self._limit:
                self._weight -= self._items.popitem(last=False)[1][1]
        return value

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._items.clear()
            self._weight = 0


class JournalRows:
    """Reads rows, timestamps and commits by their extents in the files."""

    def __init__(self, root: Path, cache_bytes: int) -> None:
        self.root = root
        self._files: Cache[JournalFile] = Cache(_OPEN_FILES)
        # The feeds of one table read its newest rows within milliseconds of each other.
        self._batches: Cache[pa.RecordBatch] = Cache(cache_bytes)
        self._stamps: Cache[pa.Table] = Cache(cache_bytes // 4)

    def journal(self, number: int) -> JournalFile:
        """A journal file, opened at most once while it is in use.

        Raises:
            FileNotFoundError: compaction or retention removed the file.
        """
        return self._files.get(number, lambda: JournalFile(self.root, number), lambda _: 1)

    def close_files(self) -> None:
        """Open journals again when they are read next: one was replaced."""
        self._files.clear()

    def _inline(self, extent: Extent, schema: pa.Schema) -> pa.RecordBatch:
        def read() -> pa.RecordBatch:
            file = self.journal(extent.file)
            return unpack(extent, file.read(extent.offset, extent.length), schema, file.name)

        return self._batches.get((extent.file, extent.offset), read, _weight)

    def rows(self, run: Run) -> pa.Table:
        """The rows of a run.

        Raises:
            FileNotFoundError: compaction or retention removed the file.
            ChangefeedError: CF3001, the log is damaged.
        """
        if isinstance(run.where, RowGroup):
            return read_group(self.root, run.where, run.shape)
        return pa.Table.from_batches([self._inline(run.where, run.shape.arrow)])

    def stamps(self, run: Run) -> pa.Table:
        """At least the ``wall``, ``logical`` and ``seq`` columns of a run; raises as ``rows``."""
        where = run.where
        if isinstance(where, Extent):
            return self.rows(run)
        key = (where.file, where.index)
        return self._stamps.get(key, lambda: read_stamps(self.root, where), _weight)

    def commits(self, commits: CommitExtent) -> pa.RecordBatch:
        """Stored commits; raises as ``rows``."""
        return self._inline(commits.extent, COMMIT_SCHEMA)


def _weight(rows: Any) -> int:
    return int(rows.nbytes)
