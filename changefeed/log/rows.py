"""Rows as bytes: what is measured once about a batch, and its inline form in a journal.

Inline rows are one Arrow IPC record batch message without its schema (which the journal stores
once, in its own form). The whole message is compressed with lz4 if that makes it smaller.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.core.arrow import METADATA
from changefeed.core.schema import TableSchema
from changefeed.core.types import Form
from changefeed.log.journal import damaged, padded

#: A commit timestamp as (wall, logical): tuples compare fast.
Stamp = tuple[int, int]

#: Below this size the cost of lz4 (a call, a copy at each read) exceeds the worth of what it saves.
_COMPRESS_FROM: Final = 4096

#: Up to this many bytes one call of a regular expression is faster than four numpy calls.
_SCAN_WITH_RE: Final = 4096

_DIRTY = re.compile(rb'[\x00-\x1f"\\]')


class SchemaShape:
    """A schema, with values that are derived from it once. A cache by schema would be slower: to
    hash a schema takes longer than a small append."""

    __slots__ = ("_clean", "arrow", "schema", "text")

    def __init__(self, schema: TableSchema) -> None:
        self.schema = schema
        self.arrow: pa.Schema = schema.log_schema()
        self.text = _text_columns(schema)
        self._clean: dict[int, frozenset[str]] = {}

    def clean_names(self, mask: int) -> frozenset[str]:
        """The ``a*``/``b*`` names of the columns whose bit is set in ``mask``."""
        names = self._clean.get(mask)
        if names is None:
            names = frozenset(self.arrow.names[i] for i in self.text if mask >> i & 1)
            self._clean[mask] = names
        return names


def _text_columns(schema: TableSchema) -> tuple[int, ...]:
    """Positions in the log schema of the columns whose text becomes a JSON string.

    Raw columns are left out: they hold JSON tokens already, which need no escaping.
    """
    first = len(METADATA)
    ordinals = (*range(len(schema.columns)), *schema.before_ordinals)
    return tuple(
        first + at
        for at, i in enumerate(ordinals)
        if schema.columns[i].form is Form.TEXT and schema.columns[i].physical == "string"
    )


def _values(column: pa.Array) -> memoryview:
    """The bytes of all values of a string array, null values included."""
    _, offsets, data = column.buffers()
    if data is None or not len(column):
        return memoryview(b"")
    ends = np.frombuffer(offsets, dtype=np.int32)
    return memoryview(data)[ends[column.offset] : ends[column.offset + len(column)]]


def _is_clean(column: pa.Array) -> bool:
    """Whether all values are free of quotes, backslashes and control characters."""
    values = _values(column)
    if len(values) <= _SCAN_WITH_RE:
        return _DIRTY.search(values) is None
    data = np.frombuffer(values, dtype=np.uint8)
    return bool(data.min() >= 0x20 and not (data == 0x22).any() and not (data == 0x5C).any())


@dataclass(frozen=True, slots=True)
class Measure:
    """What the log stores about a run of rows besides the rows."""

    rows: int
    bytes: int
    first: Stamp
    last: Stamp
    first_seq: int
    last_seq: int
    clean: int
    superseded: bool
    unsent: bool


def measure(shape: SchemaShape, rows: pa.RecordBatch) -> Measure:
    """Measure a batch, once, when it is appended.

    Raises:
        ValueError: the batch is not in log order, or has another schema.
    """
    if rows.schema != shape.arrow:
        schema = shape.schema
        raise ValueError(f"rows of {schema.table} do not fit schema version {schema.version}")
    wall, logical, seq = (rows.column(i).to_numpy() for i in (1, 2, 3))
    _check_order(wall, logical, seq)
    clean = 0
    for i in shape.text:
        if _is_clean(rows.column(i)):
            clean |= 1 << i
    return Measure(
        rows=len(rows),
        bytes=rows.nbytes,
        first=(int(wall[0]), int(logical[0])),
        last=(int(wall[-1]), int(logical[-1])),
        first_seq=int(seq[0]),
        last_seq=int(seq[-1]),
        clean=clean,
        superseded=not pc.all(rows.column(7)).as_py(),
        unsent=rows.column(8).null_count < len(rows),
    )


def _check_order(
    wall: npt.NDArray[np.int64], logical: npt.NDArray[np.int32], seq: npt.NDArray[np.int64]
) -> None:
    """Check the order of rows. Slices search these columns, so a wrong order would lose rows."""
    if len(wall) < 2:
        return
    step = np.diff(wall)
    if (step < 0).any() or ((step == 0) & (np.diff(logical) < 0)).any():
        raise ValueError("rows are not in the order of their commit timestamps")
    if (np.diff(seq) <= 0).any():
        raise ValueError("rows are not in the order of their sequence numbers")


@dataclass(frozen=True, slots=True)
class Extent:
    """A stored run of bytes of a journal file. ``raw`` is the size before lz4, 0 if not packed."""

    file: int
    offset: int
    length: int
    raw: int
    crc: int


def pack(rows: pa.RecordBatch) -> tuple[bytes, list[int]]:
    """The padded bytes of a batch, and ``[length, raw, crc]`` for the header."""
    message = rows.serialize()
    raw = 0
    if message.size >= _COMPRESS_FROM:
        squeezed = pa.compress(message, codec="lz4_raw")
        if squeezed.size < message.size * 7 // 8:
            raw, message = message.size, squeezed
    data = message.to_pybytes()
    return data + bytes(padded(len(data)) - len(data)), [len(data), raw, zlib.crc32(data)]


def check(extent: Extent, data: bytes, name: str) -> None:
    """Raise CF3001 unless ``data`` is what was stored."""
    if zlib.crc32(data) != extent.crc:
        raise damaged(name, "stored bytes have changed", offset=extent.offset)


def unpack(extent: Extent, data: bytes, schema: pa.Schema, name: str) -> pa.RecordBatch:
    """The batch of stored bytes: the inverse of :func:`pack`.

    Raises:
        ChangefeedError: CF3001, the bytes differ from what was written.
    """
    check(extent, data, name)
    buffer: Any = pa.py_buffer(data)
    if extent.raw:
        buffer = pa.decompress(buffer, decompressed_size=extent.raw, codec="lz4_raw")
    return pa.ipc.read_record_batch(buffer, schema)


def stamps(rows: pa.RecordBatch | pa.Table) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """The wall and logical columns of rows."""
    return rows.column("wall").to_numpy(), rows.column("logical").to_numpy()


def rows_upto(wall: npt.NDArray[np.int64], logical: npt.NDArray[np.int32], stamp: Stamp) -> int:
    """How many of the (ordered) rows are at or below ``stamp``."""
    low = int(np.searchsorted(wall, stamp[0], side="left"))
    high = int(np.searchsorted(wall, stamp[0], side="right"))
    return low + int(np.searchsorted(logical[low:high], stamp[1], side="right"))
