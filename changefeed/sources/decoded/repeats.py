"""Which keys a large transaction writes more than once, in bounded memory.

A transaction that is decoded in chunks cannot be looked at as a whole, so its keys are: a record
of fixed size for each row, in a file, in the order of the rows. Records are compared by a hash
of 128 bits under a secret of this process; one part of the hashes after the other is sorted in
memory, and what is found goes into a second file of equally many records, which is read again in
the order of the rows. The checksums of both are in memory, one for each time that rows were added.
"""

from __future__ import annotations

import itertools
import os
import secrets
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from changefeed.core.proofs import AlteredBytes, Stretch, marks_of, stretches
from changefeed.sources.decoded.disk import altered
from changefeed.sources.decoded.rows import CREATED, DELETED, Operations
from changefeed.sources.decoded.spans import Mask, Places, spans_of

#: Records sorted in memory at once, some 200 MB.
AT_ONCE = 2_000_000
#: Bytes of text keys hashed in one go: their numbers take sixteen times as much.
_TEXT = 1 << 20
#: An odd number that spreads neighbouring values (the golden ratio: Knuth, The Art of Computer
#: Programming 6.4).
_SPREAD = np.uint64(0x9E3779B97F4A7C15)

Hashes = npt.NDArray[np.uint64]
Places64 = npt.NDArray[np.int64]

_RECORD = np.dtype([("high", "<u8"), ("low", "<u8"), ("place", "<i8"), ("op", "u1")])
_FOUND = np.dtype([("first", "<i8"), ("kind", "u1")])

#: What is found of a row: its key is written once; a later row supersedes it, or the key is made
#: and gone again; it is the last of several writes to a key that was there, or was not.
ONCE, SUPERSEDED, EXISTED, NEW = range(4)


@dataclass(frozen=True, slots=True)
class AddedRows:
    """What is known of rows that were added together.

    Attributes:
        place: of the message each row came from, in the transaction (rising).
        kind: :data:`ONCE`, :data:`SUPERSEDED`, :data:`EXISTED` or :data:`NEW`.
        first: with :data:`EXISTED`, the place of the message that wrote the key first.
    """

    place: Places64
    kind: npt.NDArray[np.uint8]
    first: Places64

    def of(self, lowest: int, highest: int) -> AddedRows:
        """Those of messages from ``lowest`` to ``highest``."""
        part = slice(
            int(np.searchsorted(self.place, lowest, "left")),
            int(np.searchsorted(self.place, highest, "right")),
        )
        return AddedRows(self.place[part], self.kind[part], self.first[part])

    def of_kind(self, kind: int) -> AddedRows:
        """Those of one kind."""
        at = self.kind == kind
        return AddedRows(self.place[at], self.kind[at], self.first[at])


class Repeats:
    """The rows of one transaction: added in order, sorted, and read in the same order."""

    def __init__(self, records: Path, found: Path, at_once: int = AT_ONCE) -> None:
        self._records = records.open("w+b")
        self._records_path, self._found_path = records, found
        self._at_once = at_once
        self._count = self._taken = 0
        #: ``[end, crc]`` of what was added together, see :func:`stretches`.
        self._marks: list[list[int]] = []
        self._stored: tuple[Stretch, ...] = ()
        self._found: tuple[Stretch, ...] = ()
        self._hashes = KeyHashes()

    def close(self) -> None:
        self._records.close()

    def add(self, group: int, key: Sequence[pa.Array], op: Operations, place: Places) -> None:
        """Rows of one table. Keys of different groups are never the same."""
        rows = np.empty(len(op), _RECORD)
        rows["high"], rows["low"] = self._hashes.of(group, key, len(op))
        rows["place"], rows["op"] = place, op
        rows.tofile(self._records)
        self._count += len(op)
        self._marks.append([self._count * _RECORD.itemsize, zlib.crc32(rows.view(np.uint8).data)])

    def sort(self) -> None:
        """Compare all that was added.

        Raises:
            ChangefeedError: CF2101, the file with the records is not what was written.
        """
        self._stored = stretches(self._marks)
        np.zeros(0, _FOUND).tofile(self._found_path)
        if self._count:
            found = np.memmap(self._found_path, _FOUND, "w+", shape=(self._count,))
            parts = -(-self._count // self._at_once)
            for part in range(parts):
                rows, numbers = self._part(part, parts)
                _compare(rows, numbers, found)
            found.flush()
        ends = (end // _RECORD.itemsize * _FOUND.itemsize for end, _ in self._marks)
        self._found = stretches(marks_of(self._found_path, ends))

    def _part(self, part: int, parts: int) -> tuple[npt.NDArray[np.void], Places]:
        chosen, numbers, start = [], [], 0
        for stretch in stretches(self._marks):
            block = _read(self._records_path, stretch, _RECORD)
            if parts > 1:
                at = np.flatnonzero(_mixed(block["high"]) % np.uint64(parts) == part)
                chosen.append(block[at])
                numbers.append(at + start)
            else:
                chosen.append(block)
                numbers.append(np.arange(start, start + len(block)))
            start += len(block)
        return np.concatenate(chosen), np.concatenate(numbers)

    def take(self) -> AddedRows:
        """What is known of the next rows that were added together; raises as :meth:`sort`."""
        place = _read(self._records_path, self._stored[self._taken], _RECORD)["place"].copy()
        found = _read(self._found_path, self._found[self._taken], _FOUND)
        self._taken += 1
        return AddedRows(place, found["kind"].copy(), found["first"].copy())


def _read(path: Path, stretch: Stretch, kind: np.dtype[np.void]) -> npt.NDArray[np.void]:
    content = np.empty(stretch.end - stretch.start, np.uint8)
    try:
        fd = os.open(path, os.O_RDONLY)
        try:
            stretch.read(fd, content.data)
        finally:
            os.close(fd)
    except (OSError, AlteredBytes) as error:
        raise altered(path, error) from error
    return content.view(kind)


def _mixed(hashes: Hashes) -> Hashes:
    """Numbers whose low bits differ where any bits of the hashes do. The hashes are sums of
    products: where few bytes of the keys differ, all of them may be even."""
    return ((hashes ^ (hashes >> np.uint64(32))) * _SPREAD) >> np.uint64(32)


def _compare(rows: npt.NDArray[np.void], numbers: Places, found: npt.NDArray[np.void]) -> None:
    """Write into ``found`` what is known of the rows whose key is there twice."""
    order = np.argsort(rows["high"], kind="stable")
    high = rows["high"][order]
    twice = np.zeros(len(order), np.bool_)
    np.equal(high[1:], high[:-1], out=twice[1:])
    twice[:-1] |= twice[1:]
    if not twice.any():
        return
    candidates = np.sort(order[twice])
    rows, numbers = rows[candidates], numbers[candidates]
    order = np.lexsort((rows["low"], rows["high"]))  # stable: within a key in the order of rows
    rows, numbers = rows[order], numbers[order]
    begins = np.ones(len(rows), np.bool_)
    begins[1:] = (rows["high"][1:] != rows["high"][:-1]) | (rows["low"][1:] != rows["low"][:-1])
    starts = np.flatnonzero(begins)
    sizes = np.diff(starts, append=len(rows))
    first = np.repeat(starts, sizes)
    last: Mask = np.zeros(len(rows), np.bool_)
    last[starts + sizes - 1] = True
    existed = rows["op"][first] != CREATED
    kind = np.full(len(rows), SUPERSEDED, np.uint8)
    kind[last & existed] = EXISTED
    kind[last & ~existed & (rows["op"] != DELETED)] = NEW
    several = np.repeat(sizes, sizes) > 1
    made = np.empty(int(several.sum()), _FOUND)
    made["kind"], made["first"] = kind[several], rows["place"][first][several]
    found[numbers[several]] = made


class KeyHashes:
    """Hashes of keys: sums of their bytes by secret random numbers, two of 64 bits each.

    Two different keys have both in common with a chance below 2**-112, and nobody who does not
    know the numbers can do better by choosing keys.
    """

    def __init__(self) -> None:
        self._random = np.random.default_rng(secrets.randbits(128))
        self._tables: dict[int, tuple[Hashes, Hashes]] = {}

    def of(self, group: int, key: Sequence[pa.Array], count: int) -> tuple[Hashes, Hashes]:
        """The hashes of ``count`` keys of one group, given as columns."""
        high, low = self._numbers(-1, group + 1)
        sums = np.full(count, high[group], np.uint64), np.full(count, low[group], np.uint64)
        for number, column in enumerate(key):
            self._add(number, column, sums)
        return sums

    def _add(self, number: int, column: pa.Array, sums: tuple[Hashes, Hashes]) -> None:
        if pa.types.is_string(column.type):
            start = 0
            for stretch in _stretches(column):
                end = start + len(stretch)
                self._add_text(number, stretch, (sums[0][start:end], sums[1][start:end]))
                start = end
            return
        whole = column.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
        digits = np.ascontiguousarray(whole).view(np.uint8).reshape(-1, 8).astype(np.uint64)
        for total, table in zip(sums, self._numbers(number, 9), strict=True):
            total += (digits * table[:8]).sum(axis=1, dtype=np.uint64)
            total += column.is_null().to_numpy(zero_copy_only=False) * table[8]

    def _add_text(self, number: int, column: pa.Array, sums: tuple[Hashes, Hashes]) -> None:
        spans = spans_of(column)
        lengths = spans.ends - spans.starts
        filled = np.flatnonzero(lengths)
        sizes, ends = lengths[filled], np.cumsum(lengths[filled])
        total_bytes = int(ends[-1]) if len(ends) else 0
        inside = np.arange(total_bytes) - np.repeat(ends - sizes, sizes)
        # One more than the byte, so that a zero byte at the end counts as well.
        begin = int(spans.starts[0]) if len(column) else 0
        values = spans.data[begin : begin + total_bytes].astype(np.uint64) + np.uint64(1)
        nulls = column.is_null().to_numpy(zero_copy_only=False)
        tables = self._numbers(number, 1 + int(sizes.max(initial=0)))
        for total, table in zip(sums, tables, strict=True):
            total += nulls * table[0]
            if total_bytes:
                total[filled] += np.add.reduceat(values * table[1:][inside], ends - sizes)

    def _numbers(self, number: int, count: int) -> tuple[Hashes, Hashes]:
        """At least ``count`` random numbers for each of the two hashes of a column."""
        high, low = self._tables.get(number, (np.empty(0, np.uint64), np.empty(0, np.uint64)))
        if len(high) < count:
            more = max(count - len(high), 64)
            fresh = self._random.integers(0, 1 << 64, (2, more), np.uint64)
            high, low = np.concatenate([high, fresh[0]]), np.concatenate([low, fresh[1]])
            self._tables[number] = high, low
        return high, low


def _stretches(column: pa.Array) -> list[pa.Array]:
    """A text column in parts of about :data:`_TEXT` bytes, at least a row each."""
    spans = spans_of(column)
    if not len(column) or int(spans.ends[-1] - spans.starts[0]) <= _TEXT:
        return [column]
    places = (spans.ends - spans.starts[0]) // _TEXT
    cuts = np.flatnonzero(np.diff(places)) + 1
    bounds = [0, *cuts.tolist(), len(column)]
    return [column.slice(a, b - a) for a, b in itertools.pairwise(bounds)]
