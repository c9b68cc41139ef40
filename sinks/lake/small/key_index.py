"""Where the row of a key stands in a table's files: an index in memory and on this disk.

The index knows a key by 128 bits: a key of one whole number by its value, another by two
independent hashes with random factors, both of which two keys share with a chance below 1 in
10**28. The index has sorted levels: a round adds a small one, and levels of like sizes become one,
so a look-up searches few. No Python runs per row.
"""

from __future__ import annotations

import os
import secrets
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

Bits = npt.NDArray[np.uint64]

#: A new level becomes one with an older one that is at most this many times as large.
_ALIKE = 4
#: Levels with more entries are on disk.
IN_MEMORY = 1 << 18
#: The longest text of a key, in bytes of UTF-8.
LONGEST = 4096
_SPREAD = np.uint64(0x9E3779B97F4A7C15)


class KeyHits(NamedTuple):
    """For each key of a look-up: whether the index has it; then the number of its file, of its row
    there, and the version of the row."""

    there: Flags
    files: Numbers
    rows: Numbers
    has: Numbers


class KeyBits(NamedTuple):
    """The 128 bits of each key of a batch."""

    a: Bits
    b: Bits


class KeyHash:
    """Makes the bits of keys. Two objects make different bits."""

    def __init__(self) -> None:
        self._seeds = (secrets.randbits(128), secrets.randbits(128))
        self._factors = [np.random.default_rng(seed) for seed in self._seeds]
        self._weights = [self._more(generator) for generator in self._factors]

    def bits(self, columns: Sequence[pa.Array]) -> KeyBits:
        """The bits of keys; their columns have no NULL.

        Raises:
            ValueError: a text is longer than :data:`LONGEST`.
        """
        columns = [_hashable(column) for column in columns]
        if len(columns) == 1 and pa.types.is_integer(columns[0].type):
            value = whole_numbers(columns[0]).view(np.uint64)
            return KeyBits(value * _SPREAD, np.zeros(len(value), np.uint64))
        first, second = (np.zeros(len(columns[0]), np.uint64) for _ in range(2))
        place = 0
        for column in columns:
            if pa.types.is_integer(column.type):
                parts = whole_numbers(column).view("<u2").reshape(-1, 4)
                for part in range(4):
                    value = parts[:, part].astype(np.uint64) + np.uint64(1)
                    first += value * self._weights[0][place]
                    second += value * self._weights[1][place]
                    place += 1
            else:
                first += self._of_texts(column, self._weights[0], place)
                second += self._of_texts(column, self._weights[1], place)
                place += LONGEST + 2
        return KeyBits(first, second)

    def _more(self, generator: np.random.Generator) -> Bits:
        """Odd factors for the bytes of each column that a key may have."""
        made = generator.integers(0, 1 << 63, (LONGEST + 6) * 16, np.uint64, endpoint=True)
        return made * np.uint64(2) + np.uint64(1)

    @staticmethod
    def _of_texts(column: pa.Array, weights: Bits, place: int) -> Bits:
        binary = column.cast(pa.large_binary())
        _, offsets, data = binary.buffers()
        count = len(binary)
        ends = np.frombuffer(offsets, np.int64)[binary.offset : binary.offset + count + 1]
        values = np.frombuffer(data or b"", np.uint8)[ends[0] : ends[-1]]
        sizes = np.diff(ends)
        if count and int(sizes.max()) > LONGEST:
            raise ValueError("a key is too long for the index")
        starts = ends[:-1] - ends[0]
        places = np.arange(len(values), dtype=np.int64) - np.repeat(starts, sizes)
        weighted = (values.astype(np.uint64) + np.uint64(1)) * weights[place + 1 + places]
        hashed: Bits = (sizes.astype(np.uint64) + np.uint64(1)) * weights[place]
        some = sizes > 0
        if some.any():
            hashed[some] += np.add.reduceat(weighted, starts[some])
        return hashed


class _Entries(NamedTuple):
    """Both halves of each key's bits, and what :class:`KeyHits` has of it. Each column is an array
    of its own, because a search reads all of one."""

    a: Bits
    b: Bits
    files: npt.NDArray[np.uint32]
    rows: npt.NDArray[np.uint32]
    has: Numbers

    def take(self, at: npt.NDArray[Any]) -> _Entries:
        return _Entries(*(column[at] for column in self))

    def after(self, older: _Entries) -> _Entries:
        return _Entries(
            np.concatenate([older.a, self.a]),
            np.concatenate([older.b, self.b]),
            np.concatenate([older.files, self.files]),
            np.concatenate([older.rows, self.rows]),
            np.concatenate([older.has, self.has]),
        )


@dataclass(frozen=True, slots=True)
class _Level:
    """Distinct keys in the order of their bits."""

    entries: _Entries
    path: Path | None = None

    def __len__(self) -> int:
        return len(self.entries.a)

    def remove(self) -> None:
        if self.path is not None:
            self.path.unlink(missing_ok=True)


class KeyIndex:
    """The keys of one table.

    Args:
        folder: of large levels. Nobody reads what an earlier process left there.
        in_memory: a level with more entries is on disk.
    """

    def __init__(self, folder: Path, in_memory: int = IN_MEMORY) -> None:
        self._folder = folder
        self._in_memory = in_memory
        self._levels: list[_Level] = []

    @property
    def entries(self) -> int:
        """How many entries it has, with those that newer ones replace."""
        return sum(map(len, self._levels))

    def find(self, keys: KeyBits) -> KeyHits:
        """The newest entry of each key."""
        count = len(keys.a)
        hits = KeyHits(np.zeros(count, np.bool_), *(np.zeros(count, np.int64) for _ in range(3)))
        left = np.arange(count)
        for level in reversed(self._levels):
            if not len(left):
                break
            at = _places(level.entries, KeyBits(keys.a[left], keys.b[left]))
            here = at >= 0
            found, asked = level.entries.take(at[here]), left[here]
            hits.there[asked] = True
            hits.files[asked], hits.rows[asked] = found.files, found.rows
            hits.has[asked] = found.has
            left = left[~here]
        return hits

    def add(self, keys: KeyBits, files: Numbers, rows: Numbers, has: Numbers) -> bool:
        """Set the rows of keys; of a key that comes twice the last counts. Returns whether none
        does."""
        places = files.astype(np.uint32), rows.astype(np.uint32)
        new, distinct = _sorted(_Entries(*keys, *places, has.astype(np.int64)))
        older: list[_Level] = []
        while self._levels and len(self._levels[-1]) <= _ALIKE * len(new.a):
            older.append(self._levels.pop())
            new, _ = _sorted(new.after(older[-1].entries))
        self._levels.append(self._level(new))
        for level in older:
            level.remove()
        return distinct

    def close(self) -> None:
        """Remove what is on disk."""
        for level in self._levels:
            level.remove()
        self._levels.clear()

    def _level(self, entries: _Entries) -> _Level:
        count = len(entries.a)
        if count <= self._in_memory:
            return _Level(entries)
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{os.getpid()}-{uuid.uuid4().hex}.keys"
        columns, start = [], 0
        with path.open("wb") as file:
            for column in entries:
                column.tofile(file)
        for column in entries:
            columns.append(np.memmap(path, column.dtype, "r", start, (count,)))
            start += column.nbytes
        return _Level(_Entries(*columns), path)


def whole_numbers(column: pa.Array) -> Numbers:
    """The values of a column of whole numbers, without NULL."""
    values = column.cast(pa.int64()).to_numpy(zero_copy_only=False)
    return np.ascontiguousarray(values, np.int64)


def _sorted(entries: _Entries) -> tuple[_Entries, bool]:
    """The last entry of each key, in order, and whether each key had only one."""
    order = np.argsort(entries.a, kind="stable")  # of equal keys the newest is last
    first = entries.a[order]
    if (first[1:] == first[:-1]).any():
        order = np.lexsort((entries.b, entries.a))
    found = entries.take(order)
    last = np.ones(len(order), np.bool_)
    last[:-1] = (found.a[1:] != found.a[:-1]) | (found.b[1:] != found.b[:-1])
    distinct = bool(last.all())
    return (found if distinct else found.take(last)), distinct


def _places(entries: _Entries, keys: KeyBits) -> Numbers:
    """Where each key stands in a level; -1: nowhere."""
    at = np.searchsorted(entries.a, keys.a).astype(np.int64)
    found = np.full(len(at), -1, np.int64)
    left = np.flatnonzero(at < len(entries.a))
    while len(left):  # more than once only where keys share the first half of their bits
        left = left[entries.a[at[left]] == keys.a[left]]
        same = entries.b[at[left]] == keys.b[left]
        found[left[same]] = at[left[same]]
        left = left[~same]
        at[left] += 1
        left = left[at[left] < len(entries.a)]
    return found


def _hashable(column: pa.Array) -> pa.Array:
    """A key column as whole numbers, texts or bytes."""
    kind = column.type
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        return column.cast(pa.int64())
    if pa.types.is_date32(kind):
        return column.cast(pa.int32()).cast(pa.int64())
    if pa.types.is_timestamp(kind):
        return column.cast(pa.timestamp("us", kind.tz)).cast(pa.int64())
    if pa.types.is_decimal(kind):
        return pc.cast(column, pa.string())
    return column
