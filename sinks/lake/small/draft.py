"""A commit of a Delta table that is being made."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from changefeed.spark.internals.delta import TIGHT_BOUNDS, WIDE_BOUNDS
from sinks.lake.small.commit_log import Action, CommitLog
from sinks.lake.small.partitions import Partition
from sinks.lake.small.values import statistics
from sinks.lake.small.vectors import Gone, VectorFile

#: How the node names its data files.
NODE_FILES = "changefeed-"


class CommitDraft:
    """A commit that is being made. ``change``: readers of changes see its rows."""

    def __init__(self, log: CommitLog, millis: int, *, change: bool = True) -> None:
        self.actions: list[Action] = []
        self._log = log
        self._millis = millis
        self._change = change
        self._made: dict[str, pa.Buffer] = {}

    def add(self, rows: pa.Table, partition: Partition) -> Action:
        """Make a data file of a partition; returns its ``add`` action."""
        path, content = f"{NODE_FILES}{uuid.uuid4()}.parquet", pa.BufferOutputStream()
        pq.write_table(rows, content, compression="snappy")
        self._made[path] = content.getvalue()
        action = {
            "path": path,
            "partitionValues": dict(partition),
            "size": self._made[path].size,
            "modificationTime": self._millis,
            "dataChange": self._change,
            "stats": _text(statistics(rows)),
        }
        self.actions.append({"add": action})
        return action

    def remove(self, action: Action) -> None:
        """Remove the data file of an ``add`` action."""
        kept = ("path", "partitionValues", "size", "deletionVector", "baseRowId", "tags")
        removed = {name: action[name] for name in kept if name in action} | {
            "deletionTimestamp": self._millis,
            "dataChange": self._change,
            "extendedFileMetadata": True,
        }
        self.actions.append({"remove": removed})

    def mark(self, files: Iterable[tuple[Action, Gone]]) -> None:
        """Make the vectors of files whose rows are gone; a file without a row left is removed."""
        vectors = VectorFile()
        for action, gone in files:
            self.remove(action)
            if not gone.all():
                new = {
                    "deletionVector": vectors.add(gone),
                    "stats": _wide(action, len(gone)),
                    "dataChange": self._change,
                }
                self.actions.append({"add": action | new})
        if not vectors.empty:
            self._made[vectors.name] = pa.py_buffer(vectors.content)

    def commit(self, info: Action) -> bool:
        """Write its files and commit it; false: another writer was faster, and nothing is left.

        Raises:
            OSError: the place failed. The commit may be there.
        """
        try:
            self._log.place.add(self._made)
        except OSError:
            self._remove_made()
            raise
        try:
            committed = self._log.commit([info, *self.actions])
        except OSError:
            if self._log.is_lost(self._millis):
                self._remove_made()
            raise
        if not committed:
            self._remove_made()
        return committed

    def _remove_made(self) -> None:
        with suppress(OSError):  # a VACUUM finds them
            self._log.place.remove(self._made)


def _wide(action: Action, rows: int) -> str:
    """The statistics of a file that loses rows: its bounds are those of its rows, gone ones
    included. The text is changed, not read and written, which would round decimals."""
    text = action.get("stats") or ""
    if WIDE_BOUNDS in text:
        return text
    if text.count(TIGHT_BOUNDS) == 1 and not action.get("deletionVector"):
        return text.replace(TIGHT_BOUNDS, WIDE_BOUNDS)
    return _text({"numRecords": rows, "tightBounds": False})


def _text(stats: Mapping[str, Any]) -> str:
    return json.dumps(stats, separators=(",", ":"))
