"""Runs: immutable files of images, sorted by the hash of their key.

A run is one Arrow file, uncompressed and read through a memory map, in batches of a few dozen
megabytes: ``hash``, ``key`` (packed), ``record`` (packed; null: the row was deleted). The checksum
of each batch is verified when the batch is first read. A file never changes after it was written.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.images.packing import Hashes, Places, RecordLayout, hashes_of
from changefeed.images.states import damaged_images

_SCHEMA = pa.schema(
    [
        pa.field("hash", pa.uint64(), nullable=False),
        pa.field("key", pa.large_binary(), nullable=False),
        pa.field("record", pa.large_binary()),
    ]
)
#: A batch of a run has about this many bytes.
BATCH_BYTES = 16 << 20

#: Returns whether long work should end early.
Stopping = Callable[[], bool]


@dataclass(frozen=True, slots=True)
class KeyBatch:
    """Distinct keys to look up: packed, with their hashes."""

    packed: pa.LargeBinaryArray
    hashes: Hashes

    @classmethod
    def of(cls, packed: pa.LargeBinaryArray) -> KeyBatch:
        """The keys with their hashes."""
        return cls(packed, hashes_of(packed))

    def in_hash_order(self) -> Places:
        """The indexes of the keys, in the order of their hashes."""
        return np.argsort(self.hashes)

    def take(self, at: Places) -> KeyBatch:
        """The keys at these indexes."""
        return KeyBatch(self.packed.take(pa.array(at)), self.hashes[at])

    def __len__(self) -> int:
        return len(self.hashes)


@dataclass(frozen=True, slots=True)
class LayerHits:
    """The result of a look-up of keys in one layer.

    Attributes:
        at: indexes, in the requested keys, of the keys that the layer has.
        records: their records in the layer's layout; null: the row was deleted.
    """

    at: Places
    records: pa.LargeBinaryArray


@dataclass(frozen=True, slots=True)
class _BatchMark:
    rows: int
    first: int
    last: int
    crc: int


class ImageRun:
    """A complete run. Thread-safe."""

    def __init__(
        self, path: Path, layout: RecordLayout, pieces: Sequence[_BatchMark], size: int
    ) -> None:
        self.path = path
        self.layout = layout
        self.bytes = size
        self._pieces = list(pieces)
        self._firsts = np.array([piece.first for piece in pieces], np.uint64)
        self._lasts = np.array([piece.last for piece in pieces], np.uint64)
        #: The batches that were read, whose checksums fit.
        self._known: dict[int, pa.RecordBatch] = {}
        self._reader: pa.ipc.RecordBatchFileReader | None = None

    @property
    def memo(self) -> dict[str, Any]:
        """The entry of this run in a manifest."""
        pieces = [[p.rows, p.first, p.last, p.crc] for p in self._pieces]
        layout = [list(pair) for pair in zip(self.layout.refs, self.layout.types, strict=True)]
        return {"file": self.path.name, "bytes": self.bytes, "pieces": pieces, "layout": layout}

    @classmethod
    def from_memo(cls, folder: Path, memo: dict[str, Any]) -> ImageRun:
        """The inverse of :attr:`memo`.

        Raises:
            ChangefeedError: CF3005, the file is missing or has another length.
        """
        path = folder / str(memo["file"])
        try:
            size = path.stat().st_size
        except FileNotFoundError:
            raise damaged_images(path.name, "the file is gone") from None
        if size != memo["bytes"]:
            raise damaged_images(path.name, "the file is not as long as it was")
        pieces = [_BatchMark(*piece) for piece in memo["pieces"]]
        refs, types = zip(*memo["layout"], strict=True)
        return cls(path, RecordLayout(refs, types), pieces, size)

    def find(self, keys: KeyBatch, asked: Places) -> LayerHits:
        """Look up those of ``keys`` with the indexes ``asked``, which are in hash order."""
        hashes = keys.hashes[asked]
        hits, records = [], []
        starts = np.searchsorted(hashes, self._firsts, "left")
        ends = np.searchsorted(hashes, self._lasts, "right")
        for number in np.flatnonzero(ends > starts).tolist():
            batch = self._batch(number)
            some = asked[starts[number] : ends[number]]
            places, at = match_keys(batch["hash"].to_numpy(), batch["key"], None, keys, some)
            if len(at):
                hits.append(some[at])
                records.append(batch["record"].take(pa.array(places)))
        if not hits:
            return LayerHits(np.empty(0, np.int64), pa.nulls(0, pa.large_binary()))
        return LayerHits(np.concatenate(hits), pa.concat_arrays(records))

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All rows, in hash order."""
        for number in range(len(self._pieces)):
            yield self._batch(number)

    def _batch(self, number: int) -> pa.RecordBatch:
        known = self._known.get(number)
        if known is not None:
            return known
        if self._reader is None:
            try:
                self._reader = pa.ipc.open_file(pa.memory_map(str(self.path)))
            except (OSError, pa.ArrowInvalid):
                raise damaged_images(self.path.name, "it cannot be read") from None
        try:
            batch = self._reader.get_batch(number)
        except (OSError, pa.ArrowInvalid):
            raise damaged_images(self.path.name, "it cannot be read") from None
        if _checksum(batch) != self._pieces[number].crc:
            raise damaged_images(self.path.name, "a checksum does not fit")
        self._known[number] = batch
        return batch


def match_keys(
    theirs: Hashes,
    their_keys: pa.LargeBinaryArray,
    places: Places | None,
    keys: KeyBatch,
    asked: Places,
) -> tuple[Places, Places]:
    """The indexes of matches in ``theirs``, which is in order, with those in ``asked``, which is in
    hash order. ``places``: for each of ``theirs``, where its key is (None: at the same index)."""
    hashes = keys.hashes[asked]
    left = np.searchsorted(theirs, hashes, "left")
    inside = left < len(theirs)
    at = np.flatnonzero(inside)
    at = at[theirs[left[at]] == hashes[at]]
    found, hits = [], []
    place = left[at]
    while len(at):
        # Nearly always one step: only another key with the same hash needs a further one.
        there = their_keys.take(pa.array(place if places is None else places[place]))
        same = np.asarray(pc.equal(there, keys.packed.take(pa.array(asked[at])))).astype(np.bool_)
        found.append(place[same])
        hits.append(at[same])
        at, place = at[~same], place[~same] + 1
        inside = place < len(theirs)
        at, place = at[inside], place[inside]
        alike = theirs[place] == hashes[at]
        at, place = at[alike], place[alike]
    if not found:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    return np.concatenate(found), np.concatenate(hits)


def newest_rows(hashes: Hashes, keys: pa.LargeBinaryArray, places: Places) -> Places | None:
    """The indexes of the last row of each key, in order; None: of all rows.

    Args:
        hashes: the hash of each row, in order.
        places: where in ``keys`` the key of each row is.
    """
    twice = np.flatnonzero(hashes[1:] == hashes[:-1])
    if not len(twice):
        return None
    one, next_one = keys.take(pa.array(places[twice])), keys.take(pa.array(places[twice + 1]))
    if pc.all(pc.equal(one, next_one)).as_py():
        last = np.ones(len(hashes), np.bool_)
        last[twice] = False
        return np.flatnonzero(last)
    # Different keys have the same hash.
    codes = keys.take(pa.array(places)).dictionary_encode().indices.to_numpy()
    final = np.empty(int(codes.max()) + 1, np.int64)
    final[codes] = np.arange(len(codes))
    return np.sort(final)


class RunWriter:
    """Writes a run. Rows must be added in hash order, each key once."""

    def __init__(self, path: Path, layout: RecordLayout) -> None:
        self._path = path
        self._layout = layout
        self._pieces: list[_BatchMark] = []
        self._file = os.fdopen(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "wb")
        self._writer = pa.ipc.new_file(self._file, _SCHEMA)

    def add(self, hashes: Hashes, keys: pa.LargeBinaryArray, records: pa.LargeBinaryArray) -> None:
        """Add the next rows."""
        if not len(hashes):
            return
        batch = pa.record_batch([pa.array(hashes), keys, records], schema=_SCHEMA)
        per_row = max(1, batch.nbytes // len(hashes))
        step = max(1, BATCH_BYTES // per_row)
        for start in range(0, len(hashes), step):
            part = batch.slice(start, step)
            ordered = part["hash"].to_numpy()
            self._writer.write_batch(part)
            self._pieces.append(
                _BatchMark(len(ordered), int(ordered[0]), int(ordered[-1]), _checksum(part))
            )

    def close(self) -> ImageRun:
        """Complete the run. Durable on return."""
        self._writer.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        size = self._file.tell()
        self._file.close()
        return ImageRun(self._path, self._layout, self._pieces, size)

    def abandon(self) -> None:
        """Close and remove the file."""
        self._file.close()
        self._path.unlink(missing_ok=True)


def write_run(
    path: Path, layout: RecordLayout, keys: KeyBatch, records: pa.LargeBinaryArray
) -> ImageRun:
    """Write a run of distinct keys, which are in hash order."""
    writer = RunWriter(path, layout)
    try:
        writer.add(keys.hashes, keys.packed, records)
        return writer.close()
    except BaseException:
        writer.abandon()
        raise


def merge_runs(
    path: Path, layout: RecordLayout, runs: Sequence[ImageRun], *, last: bool, stopping: Stopping
) -> ImageRun | None:
    """Merge several runs (oldest first) into one of this layout; None if told to stop.

    ``last``: there is no older run below them, so deleted keys need not be kept.
    """
    writer = RunWriter(path, layout)
    try:
        for hashes, keys, records in _merged(runs, layout):
            if stopping():
                writer.abandon()
                return None
            if last:
                there = records.is_valid()
                if records.null_count:
                    hashes = hashes[np.asarray(there).astype(np.bool_)]
                    keys, records = keys.filter(there), records.filter(there)
            writer.add(hashes, keys, records)
        return writer.close()
    except BaseException:
        writer.abandon()
        raise


class _Cursor:
    def __init__(self, run: ImageRun, layout: RecordLayout) -> None:
        self._batches = run.batches()
        self._theirs, self._ours = run.layout, layout
        self.batch: pa.RecordBatch | None = None
        self.place = 0
        self.hashes: Hashes = np.empty(0, np.uint64)
        self.forward()

    def forward(self) -> None:
        while self.batch is None or self.place >= len(self.hashes):
            self.batch = next(self._batches, None)
            if self.batch is None:
                return
            self.hashes = self.batch["hash"].to_numpy()
            self.place = 0

    def upto(self, bound: int) -> pa.RecordBatch:
        """The rows of the present batch whose hash is at most ``bound``."""
        if self.batch is None:
            raise AssertionError("the cursor is at its end")
        end = int(np.searchsorted(self.hashes, np.uint64(bound), "right"))
        part = self.batch.slice(self.place, end - self.place)
        self.place = end
        if self._theirs == self._ours:
            return part
        records = self._theirs.convert(part["record"], self._ours)
        return pa.record_batch([part["hash"], part["key"], records], schema=_SCHEMA)


def _merged(
    runs: Sequence[ImageRun], layout: RecordLayout
) -> Iterator[tuple[Hashes, pa.LargeBinaryArray, pa.LargeBinaryArray]]:
    """The rows of all runs in hash order, in batches, with only the newest record of each key."""
    cursors = [_Cursor(run, layout) for run in runs]
    while True:
        live = [c for c in cursors if c.batch is not None]
        if not live:
            return
        # Every run has been read up to the bound, so all rows of one hash are in one batch.
        bound = min(int(c.hashes[-1]) for c in live)
        parts: list[pa.RecordBatch] = []
        for cursor in live:  # oldest first
            while cursor.batch is not None and int(cursor.hashes[cursor.place]) <= bound:
                parts.append(cursor.upto(bound))
                cursor.forward()
        hashes = np.concatenate([part["hash"].to_numpy() for part in parts])
        keys = pa.concat_arrays([part["key"] for part in parts])
        records = pa.concat_arrays([part["record"] for part in parts])
        order = np.argsort(hashes, kind="stable")  # for equal hashes, the newest comes last
        hashes = hashes[order]
        kept = newest_rows(hashes, keys, order)
        if kept is not None:
            order, hashes = order[kept], hashes[kept]
        at = pa.array(order)
        yield hashes, keys.take(at), records.take(at)


def _checksum(batch: pa.RecordBatch) -> int:
    """The checksum of the values of a batch, independent of their places in memory."""
    crc = zlib.crc32(_bytes(batch["hash"].to_numpy()))
    for name in ("key", "record"):
        column = batch[name]
        count = len(column)
        _, offsets, data = column.buffers()
        ends = np.frombuffer(offsets, np.int64)[column.offset : column.offset + count + 1]
        crc = zlib.crc32(_bytes(np.diff(ends)), crc)
        if column.null_count:
            crc = zlib.crc32(_bytes(np.packbits(np.asarray(column.is_null()).astype(bool))), crc)
        if data is not None:
            crc = zlib.crc32(memoryview(data)[int(ends[0]) : int(ends[-1])], crc)
    return crc


def _bytes(values: npt.NDArray[Any]) -> memoryview:
    return np.ascontiguousarray(values).data.cast("B")
