"""The formats of files: how message values become the bytes of one file.

Lines (ndjson, csv) are joined bytes; an Avro object container is made of finished datums and
a Parquet file of a struct column. No row becomes a Python object.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

BLOCK_BYTES = 256_000
"""Datums of an Avro block before compression; a reader holds one block."""
ROW_GROUP_BYTES = 64_000_000
"""Arrow bytes after which a Parquet row group is written."""


class ValueWriter(Protocol):
    """Writes values into one open file."""

    def write(self, values: pa.Array) -> int:
        """Append values (no nulls); returns their bytes before compression."""
        ...

    def close(self) -> None:
        """Write what belongs to the end, and close the file."""
        ...


class LineWriter:
    """Each value on a line."""

    def __init__(self, raw: Any, field: pa.Field, compression: str) -> None:
        packed = compression != "none"
        self._stream = pa.CompressedOutputStream(raw, compression) if packed else raw

    def write(self, values: pa.Array) -> int:
        # Arrow joins lists with 32-bit offsets only; what goes into one file is far below that.
        whole = pa.ListArray.from_arrays([0, len(values)], values.cast(pa.binary()))
        joined = pc.binary_join(whole, b"\n")[0].as_buffer()
        self._stream.write(joined)
        self._stream.write(b"\n")
        return int(joined.size) + 1

    def close(self) -> None:
        self._stream.close()


class AvroWriter:
    """An Avro object container of finished datums; ``gzip`` is its ``deflate``."""

    def __init__(self, raw: Any, field: pa.Field, compression: str) -> None:
        # Most feeds write lines, and this loads a schema parser.
        from changefeed.encoding.arrow_schema import SYNC_SIZE, avro_block, avro_header

        self._raw, self._compression, self._block = raw, compression, avro_block
        self._sync = secrets.token_bytes(SYNC_SIZE)
        raw.write(avro_header(pa.schema([field]), self._sync, compression))

    def write(self, values: pa.Array) -> int:
        sizes = sizes_of(values)
        start = 0
        while start < len(values):
            count = max(1, _within(sizes[start:], BLOCK_BYTES))
            self._raw.write(self._block(values.slice(start, count), self._sync, self._compression))
            start += count
        return int(sizes.sum())

    def close(self) -> None:
        self._raw.close()


class ParquetWriter:
    """A Parquet file whose columns are the members of the values."""

    def __init__(self, raw: Any, field: pa.Field, compression: str) -> None:
        self._raw = raw
        self._schema = pa.schema(list(field.type))
        self._writer = pq.ParquetWriter(raw, self._schema, compression=compression)
        self._waiting: list[pa.RecordBatch] = []
        self._bytes = 0

    def write(self, values: pa.Array) -> int:
        batch = pa.RecordBatch.from_struct_array(values)
        size = int(sizes_of(values).sum())
        self._waiting.append(batch)
        self._bytes += size
        if self._bytes >= ROW_GROUP_BYTES:
            self._write_group()
        return size

    def _write_group(self) -> None:
        table = pa.Table.from_batches(self._waiting, self._schema)
        self._writer.write_table(table, row_group_size=max(1, table.num_rows))
        self._waiting, self._bytes = [], 0

    def close(self) -> None:
        if self._waiting:
            self._write_group()
        self._writer.close()
        self._raw.close()


@dataclass(frozen=True, slots=True)
class FileFormat:
    """Files of one format.

    Attributes:
        extension: of their names.
        packings: ``compression`` -> what it adds to the extension. Avro and Parquet are packed
            inside, and their files say so themselves.
        writer: takes the open file, the Arrow column of the values and ``compression``.
        control_lines: a control message is a line as rows are; else it is JSON in a file of its
            own kind.
        container: a file has records, and says itself in which schema.
        columnar: a file has rows, with our columns next to the table's.
    """

    extension: str
    packings: Mapping[str, str]
    writer: Callable[[Any, pa.Field, str], ValueWriter]
    control_lines: bool = False
    container: bool = False
    columnar: bool = False


_LINES = {"none": "", "gzip": ".gz", "zstd": ".zst", "lz4": ".lz4"}

#: ``format`` -> its files; the first is the default.
FILE_FORMATS: Mapping[str, FileFormat] = {
    "json": FileFormat("ndjson", _LINES, LineWriter, control_lines=True),
    "csv": FileFormat("csv", _LINES, LineWriter),
    "avro": FileFormat(
        "avro",
        dict.fromkeys(("none", "gzip", "zstd", "snappy"), ""),
        AvroWriter,
        container=True,
    ),
    "parquet": FileFormat(
        "parquet",
        dict.fromkeys(("none", "snappy", "gzip", "zstd", "lz4"), ""),
        ParquetWriter,
        columnar=True,
    ),
}

#: All values of ``compression`` that some format takes.
COMPRESSIONS = tuple(dict.fromkeys(n for form in FILE_FORMATS.values() for n in form.packings))


def sizes_of(values: pa.Array) -> Any:
    """About how many bytes each value adds to a file, as a numpy array.

    Text and datums have their length and a newline; of a struct the columns' share.
    """
    if pa.types.is_struct(values.type):
        return np.full(len(values), max(1, values.nbytes // max(1, len(values))), dtype=np.int64)
    return pc.binary_length(values).to_numpy(zero_copy_only=False).astype(np.int64) + 1


def rows_within(values: pa.Array, room: int) -> int:
    """How many leading values fit into ``room`` bytes."""
    return _within(sizes_of(values), room)


def _within(sizes: Any, room: int) -> int:
    return int(np.searchsorted(np.cumsum(sizes), room, side="right"))
