"""Where the row of a key stands in a table's files: an index in memory and on this disk.

The index knows a key by 128 bits: a key of one whole number by its value, another by two
independent hashes with random factors, both of which two keys share with a chance below 1 in
10**28. Parts of the index have the keys whose bits begin alike. Each part has sorted levels: a
round adds a small one, and levels of like sizes become one, so a look-up searches few, and the
largest step takes a part of the keys into memory. No Python runs per row.
"""

from __future__ import annotations

import os
import secrets
import uuid
from collections.abc import Iterator, Sequence
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
#: The longest text of a key, in bytes of UTF-8; the most columns of a key.
LONGEST, _COLUMNS = 4096, 16
#: Factors of a column: of a text's length and of the pairs of its bytes.
_FACTORS = 1 + LONGEST // 2
#: A part of an index is made for so many keys.
_PART = 1 << 22
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
                place += _FACTORS
        return KeyBits(first, second)

    def _more(self, generator: np.random.Generator) -> Bits:
        """Odd factors for each column that a key may have."""
        made = generator.integers(0, 1 << 63, _FACTORS * _COLUMNS, np.uint64, endpoint=True)
        return made * np.uint64(2) + np.uint64(1)

    @staticmethod
    def _of_texts(column: pa.Array, weights: Bits, place: int) -> Bits:
        """The length and each pair of bytes of a text, each times its factor, added up."""
        sizes, words = _words_of(column)
        count, lengths = len(sizes), (sizes + 1) // 2
        longest = int(lengths.max(initial=0))
        if longest * 2 > LONGEST:
            raise ValueError("a key is too long for the index")
        hashed: Bits = (sizes.astype(np.uint64) + np.uint64(1)) * weights[place]
        if len(words) == count * longest:  # all have one length
            factors = weights[place + 1 : place + 1 + longest]
            hashed += words.reshape(count, longest).astype(np.uint64) @ factors + factors.sum()
            return hashed
        starts = np.cumsum(lengths) - lengths
        places = np.arange(len(words), dtype=np.int64) - np.repeat(starts, lengths)
        weighted = (words.astype(np.uint64) + np.uint64(1)) * weights[place + 1 + places]
        some = sizes > 0
        hashed[some] += np.add.reduceat(weighted, starts[some])
        return hashed


def _words_of(column: pa.Array) -> tuple[Numbers, npt.NDArray[np.uint16]]:
    """How many bytes each text has, and the bytes of all in pairs; an odd text ends with a zero."""
    binary = column.cast(pa.large_binary())
    _, offsets, data = binary.buffers()
    ends = np.frombuffer(offsets, np.int64)[binary.offset : binary.offset + len(binary) + 1]
    values = np.frombuffer(data or b"", np.uint8)[ends[0] : ends[-1]]
    sizes = np.diff(ends)
    odd = sizes % 2
    if odd.any():
        shift = np.cumsum(odd) - odd
        padded = np.zeros(len(values) + int(odd.sum()), np.uint8)
        padded[np.arange(len(values)) + np.repeat(shift, sizes)] = values
        values = padded
    return sizes, np.ascontiguousarray(values).view("<u2")


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
        rows: how many keys it will have, about.
        in_memory: a level with more entries is on disk.
        part: keys of a part, about.
    """

    def __init__(
        self, folder: Path, rows: int = 0, in_memory: int = IN_MEMORY, part: int = _PART
    ) -> None:
        self._bits = max(0, max(0, rows - 1).bit_length() - part.bit_length() + 1)
        self._parts = [_PartOfKeys(folder, in_memory) for _ in range(1 << self._bits)]

    @property
    def entries(self) -> int:
        """How many entries it has, with those that newer ones replace."""
        return sum(part.entries for part in self._parts)

    def find(self, keys: KeyBits) -> KeyHits:
        """The newest entry of each key."""
        count = len(keys.a)
        hits = KeyHits(np.zeros(count, np.bool_), *(np.zeros(count, np.int64) for _ in range(3)))
        for part, here in self._by_part(keys):
            part.find(keys, here, hits)
        return hits

    def add(self, keys: KeyBits, files: Numbers, rows: Numbers, has: Numbers) -> bool:
        """Set the rows of keys; of a key that comes twice the last counts. Returns whether none
        does."""
        places = files.astype(np.uint32), rows.astype(np.uint32)
        new = _Entries(*keys, *places, has.astype(np.int64))
        return all([part.add(new.take(here)) for part, here in self._by_part(keys)])

    def close(self) -> None:
        """Remove what is on disk."""
        for part in self._parts:
            part.close()

    def _by_part(self, keys: KeyBits) -> Iterator[tuple[_PartOfKeys, npt.NDArray[Any]]]:
        """Each part, and which of the keys are in it, sorted: a search is then much faster. Of
        equal keys the newest stays the last."""
        order = np.argsort(keys.a, kind="stable")
        if not self._bits:
            yield self._parts[0], order
            return
        part_of = keys.a[order] >> np.uint64(64 - self._bits)
        ends = np.searchsorted(part_of, np.arange(1, len(self._parts), dtype=np.uint64))
        for part, here in zip(self._parts, np.split(order, ends), strict=True):
            if len(here):
                yield part, here


class _PartOfKeys:
    """The keys whose bits begin alike, in sorted levels; see :class:`KeyIndex`."""

    def __init__(self, folder: Path, in_memory: int) -> None:
        self._folder = folder
        self._in_memory = in_memory
        self._levels: list[_Level] = []

    @property
    def entries(self) -> int:
        return sum(map(len, self._levels))

    def find(self, keys: KeyBits, left: npt.NDArray[Any], hits: KeyHits) -> None:
        """Put the newest entry of the keys ``left`` into ``hits``."""
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

    def add(self, entries: _Entries) -> bool:
        """Set entries, the newest last; returns whether each key has one."""
        new, distinct = _sorted(entries)
        older: list[_Level] = []
        while self._levels and len(self._levels[-1]) <= _ALIKE * len(new.a):
            older.append(self._levels.pop())
            new, _ = _sorted(new.after(older[-1].entries))
        self._levels.append(self._level(new))
        for level in older:
            level.remove()
        return distinct

    def close(self) -> None:
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
