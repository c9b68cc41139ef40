"""Packs rows into bytes and back: whole columns to one record for each row. No Python per row.

    record = | per column: a byte for NULL, then a number or a length | texts, one after the other |

Numbers are in the fixed head, texts after it. Two records of one :class:`RecordLayout` with equal
values have equal bytes, so packed keys can be compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.core.arrow import PHYSICAL

#: The form of a value in the head, by physical type. The head has the length of a text.
_HEADS = {"bool": "<u1", "int16": "<i2", "int32": "<i4", "int64": "<i8", "string": "<u4"}

Places = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class RecordLayout:
    """The columns of a record.

    Attributes:
        refs: for each column, an identifier that is unique in all versions of its table.
        types: the physical type of each column.
    """

    refs: tuple[int | str, ...]
    types: tuple[str, ...]

    @cached_property
    def head(self) -> np.dtype[np.void]:
        """The fixed part of a record."""
        fields: list[tuple[str, str]] = []
        for i, name in enumerate(self.types):
            fields += [(f"n{i}", "u1"), (f"v{i}", _HEADS[name])]
        return np.dtype(fields)

    @cached_property
    def texts(self) -> tuple[int, ...]:
        """Indexes of the columns whose values follow the head."""
        return tuple(i for i, name in enumerate(self.types) if name == "string")

    def pack(self, columns: Sequence[pa.Array]) -> pa.LargeBinaryArray:
        """One record for each row of ``columns``."""
        count = len(columns[0])
        head = np.zeros(count, self.head)
        texts = []
        for i, column in enumerate(columns):
            if column.null_count:
                head[f"n{i}"] = np.asarray(column.is_null())
            if self.types[i] == "string":
                filled = column.fill_null("") if column.null_count else column
                head[f"v{i}"] = np.asarray(pc.binary_length(filled))
                texts.append(filled.cast(pa.large_string()).view(pa.large_binary()))
            else:
                empty = False if self.types[i] == "bool" else 0
                filled = column.fill_null(empty) if column.null_count else column
                head[f"v{i}"] = filled.to_numpy(zero_copy_only=False)
        size = self.head.itemsize
        ends = np.arange(0, size * (count + 1), size, dtype=np.int64)
        heads = pa.LargeBinaryArray.from_buffers(
            pa.large_binary(), count, [None, pa.py_buffer(ends), pa.py_buffer(head.tobytes())]
        )
        if not texts:
            return heads
        nothing = pa.scalar(b"", pa.large_binary())
        return pc.binary_join_element_wise(heads, *texts, nothing)

    def unpack(self, records: pa.LargeBinaryArray) -> list[pa.Array]:
        """The columns of ``records``, none of which is null. The inverse of :meth:`pack`."""
        count, size, width = len(records), self.head.itemsize, len(self.texts)
        if not count:
            return [pa.nulls(0, PHYSICAL[name]) for name in self.types]
        _, offsets, data = records.buffers()
        ends = np.frombuffer(offsets, np.int64)[records.offset : records.offset + count + 1]
        fixed = pc.binary_slice(records, 0, size)
        first = int(np.frombuffer(fixed.buffers()[1], np.int64)[fixed.offset])
        heads = np.frombuffer(fixed.buffers()[2], self.head, count, first)
        cells = np.empty((count, width + 1), np.int64)
        cells[:, 0] = size
        for j, i in enumerate(self.texts, start=1):
            cells[:, j] = heads[f"v{i}"]
        starts = np.empty(count * (width + 1) + 1, np.int64)
        starts[0] = 0
        np.cumsum(cells, out=starts[1:])
        starts += ends[0]
        if starts[-1] != ends[-1]:
            raise ValueError("a record is not of this layout")
        values = pa.LargeBinaryArray.from_buffers(
            pa.large_binary(), len(starts) - 1, [None, pa.py_buffer(starts), data]
        )
        columns = []
        place = 1
        for i, name in enumerate(self.types):
            null = heads[f"n{i}"].astype(np.bool_)
            if name == "string":
                at = pa.array(np.arange(place, len(starts) - 1, width + 1))
                found = values.take(at).view(pa.large_string()).cast(pa.string())
                if null.any():
                    found = pc.if_else(pa.array(null), pa.scalar(None, pa.string()), found)
                columns.append(found)
                place += 1
            else:
                plain = np.ascontiguousarray(heads[f"v{i}"])
                if name == "bool":
                    plain = plain.astype(np.bool_)
                columns.append(pa.array(plain, PHYSICAL[name], mask=null if null.any() else None))
        return columns

    def convert(self, records: pa.LargeBinaryArray, layout: RecordLayout) -> pa.LargeBinaryArray:
        """Convert records of this layout (or null) to another one; missing columns are NULL."""
        known = records.drop_null() if records.null_count else records
        columns = layout.choose(self, self.unpack(known))
        packed = layout.pack(columns) if len(known) else known
        if not records.null_count:
            return packed
        there = np.asarray(records.is_valid()).astype(np.bool_)
        at = np.where(there, np.cumsum(there) - 1, 0)
        return packed.take(pa.array(at, mask=~there))

    def choose(self, given: RecordLayout, columns: Sequence[pa.Array]) -> list[pa.Array]:
        """The columns of this layout, chosen by their refs from those of another one."""
        known = dict(zip(given.refs, columns, strict=True))
        count = len(columns[0])
        chosen = []
        for ref, name in zip(self.refs, self.types, strict=True):
            found = known.get(ref)
            kind = PHYSICAL[name]
            if found is None:
                found = pa.nulls(count, kind)
            chosen.append(found if found.type == kind else found.cast(kind))
        return chosen


#: The last factor of the hash, which spreads neighbouring keys, and the weights of the bytes of a
#: key by index (both from the golden ratio, as in Knuth's multiplicative hashing, The Art of
#: Computer Programming 6.4).
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_WEIGHTS = np.array(
    [pow(0x9E3779B97F4A7C15, n, 1 << 64) | 1 for n in range(1, 257)], dtype=np.uint64
)
Hashes = npt.NDArray[np.uint64]


def hashes_of(keys: pa.LargeBinaryArray) -> Hashes:
    """The hash of each key. Different keys may have the same hash."""
    count = len(keys)
    hashed = np.zeros(count, np.uint64)
    if not count:
        return hashed
    _, offsets, data = keys.buffers()
    ends = np.frombuffer(offsets, np.int64)[keys.offset : keys.offset + count + 1]
    values = np.frombuffer(data, np.uint8)[ends[0] : ends[-1]]
    starts = ends[:-1] - ends[0]
    sizes = np.diff(ends)
    if sizes[0] and (sizes == sizes[0]).all():
        width = int(sizes[0])
        weights = _WEIGHTS[np.arange(width) & 255]
        table = values.reshape(count, width)
        for place in range(width):
            hashed += (table[:, place].astype(np.uint64) + np.uint64(1)) * weights[place]
    else:
        places = np.arange(len(values), dtype=np.int64) - np.repeat(starts, sizes)
        weighted = (values.astype(np.uint64) + np.uint64(1)) * _WEIGHTS[places & 255]
        full = sizes > 0
        if full.any():
            hashed[full] = np.add.reduceat(weighted, starts[full])
    hashed ^= hashed >> np.uint64(32)
    hashed *= _SPREAD
    return hashed ^ (hashed >> np.uint64(29))
