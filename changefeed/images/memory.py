"""Recent changes of a table in memory: by key, the newest record or that the row was deleted.

    keys, records        one behind the other, as they came; nothing is removed before all are
    indexes, oldest first:  hashes in order, and where the key and the record of each are

A put adds an index; indexes of like sizes become one. So no put sorts everything, and a look-up
searches few indexes. No Python runs per row.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.images.packing import Hashes, Mask, Places, RecordLayout
from changefeed.images.runs import (
    ImageRun,
    KeyBatch,
    LayerHits,
    match_keys,
    newest_rows,
    write_run,
)

#: The memory that a key and a record take besides their bytes: ends, hash, place, and a mark.
_ENTRY_BYTES = 40
#: A new index becomes one with an older one that is at most this many times as large.
_ALIKE = 4


class MemoryLayer:
    """The recent changes."""

    def __init__(self, layout: RecordLayout) -> None:
        self.layout = layout
        #: About the memory that it takes.
        self.bytes = 0
        self._keys = _Heap()
        self._records = _Heap()
        #: Whether the row is there, by place.
        self._there = _Numbers(np.bool_)
        self._deletes = False
        self._indexes: list[_Index] = []

    @property
    def empty(self) -> bool:
        """Whether there is no change."""
        return not self._indexes

    def find(self, keys: KeyBatch, asked: Places) -> LayerHits:
        """As :meth:`ImageRun.find`."""
        hits, places = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for index in reversed(self._indexes):
            found, at = match_keys(index.hashes, self._keys.values, index.places, keys, asked)
            if len(at):
                hits.append(asked[at])
                places.append(index.places[found])
                left = np.ones(len(asked), np.bool_)
                left[at] = False
                asked = asked[left]
        return LayerHits(np.concatenate(hits), self._newest(np.concatenate(places)))

    def put(self, keys: KeyBatch, records: pa.LargeBinaryArray, there: Mask) -> None:
        """Set the records of distinct keys. ``there`` is false for a deleted row."""
        order = keys.in_hash_order()
        first = self._keys.append(keys.packed)
        self._records.append(records)
        self._there.append(there)
        self._deletes = self._deletes or not there.all()
        self.bytes = self._keys.bytes + self._records.bytes + _ENTRY_BYTES * (first + len(keys))
        new = _Index(keys.hashes[order], order + first)
        while self._indexes and len(self._indexes[-1]) <= _ALIKE * len(new):
            new = self._joined(self._indexes.pop(), new)
        self._indexes.append(new)

    def write(self, path: Path) -> ImageRun:
        """Write the recent changes as a run."""
        whole = self._indexes[-1]
        for older in reversed(self._indexes[:-1]):
            whole = self._joined(older, whole)
        keys = KeyBatch(self._keys.values.take(pa.array(whole.places)), whole.hashes)
        return write_run(path, self.layout, keys, self._newest(whole.places))

    def _newest(self, places: Places) -> pa.LargeBinaryArray:
        records = self._records.values.take(pa.array(places))
        if not self._deletes:
            return records
        there = pa.array(self._there.values[places])
        return pc.if_else(there, records, pa.scalar(None, pa.large_binary()))

    def _joined(self, older: _Index, newer: _Index) -> _Index:
        hashes = np.concatenate([older.hashes, newer.hashes])
        places = np.concatenate([older.places, newer.places])
        order = np.argsort(hashes, kind="stable")  # for equal hashes, the newest comes last
        hashes, places = hashes[order], places[order]
        kept = newest_rows(hashes, self._keys.values, places)
        return _Index(hashes, places) if kept is None else _Index(hashes[kept], places[kept])


@dataclass(frozen=True, slots=True)
class _Index:
    """Distinct keys in the order of their hashes, and their places."""

    hashes: Hashes
    places: Places

    def __len__(self) -> int:
        return len(self.hashes)


class _Numbers:
    def __init__(self, kind: npt.DTypeLike) -> None:
        self._room: npt.NDArray[Any] = np.empty(0, kind)
        self.count = 0

    @property
    def values(self) -> npt.NDArray[Any]:
        return self._room[: self.count]

    def append(self, more: npt.NDArray[Any]) -> None:
        end = self.count + len(more)
        if end > len(self._room):
            larger = np.empty(max(end, 2 * len(self._room)), self._room.dtype)
            larger[: self.count] = self.values
            self._room = larger
        self._room[self.count : end] = more
        self.count = end


class _Heap:
    """The bytes of many rows, one after the other."""

    def __init__(self) -> None:
        self._data = _Numbers(np.uint8)
        self._ends = _Numbers(np.int64)
        self._ends.append(np.zeros(1, np.int64))

    @property
    def bytes(self) -> int:
        return self._data.count

    @property
    def values(self) -> pa.LargeBinaryArray:
        """All rows, without a copy."""
        ends, data = pa.py_buffer(self._ends.values), pa.py_buffer(self._data.values)
        return pa.LargeBinaryArray.from_buffers(
            pa.large_binary(), self._ends.count - 1, [None, ends, data]
        )

    def append(self, rows: pa.LargeBinaryArray) -> int:
        """Add rows, none of which is null; returns the place of the first one."""
        first, count = self._ends.count - 1, len(rows)
        _, offsets, data = rows.buffers()
        ends = np.frombuffer(offsets, np.int64)[rows.offset : rows.offset + count + 1]
        self._ends.append(ends[1:] + (self.bytes - ends[0]))
        self._data.append(np.frombuffer(data, np.uint8)[ends[0] : ends[-1]])
        return first
