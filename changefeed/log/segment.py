"""Parquet segments: rows of one table and schema version in a file of their own.

Compression is zstd. Only ``op`` is dictionary-encoded, which halves the CPU time of writing. Only
``wall``, ``logical`` and ``seq``, which filters use, have statistics. A file is complete and synced
before a frame names it, so a segment that no frame names was left by a crash and can be removed.

The frame has the checksums of all stretches of the file: two for each row group (the columns
``op`` to ``seq``, and the others), and one for what follows the last row group. Nothing is decoded
before its stretch was verified. Parquet's own page checksums leave out the headers of pages, the
order of pages and the file's footer, so they are not used.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from changefeed.core.durable import sync_path
from changefeed.core.faults import Point, fault_point
from changefeed.core.proofs import AlteredBytes, marks_of
from changefeed.log.frame import RowGroup
from changefeed.log.journal import damaged
from changefeed.log.rows import Measure, SchemaShape
from changefeed.log.settings import LogSettings

#: The first columns of a segment, which have a checksum of their own.
_FIRST: Final = ("op", "wall", "logical", "seq")


def group_size(rows: int, size: int, settings: LogSettings) -> int:
    """How many rows of this size a row group (and a piece) holds."""
    width = max(size // max(rows, 1), 1)
    return max(1, min(settings.group_rows, settings.group_bytes // width))


class SegmentWriter:
    """Writes one segment by row groups. The file is complete when :meth:`close` returns."""

    def __init__(self, root: Path, name: str, shape: SchemaShape) -> None:
        """Create the file.

        Raises:
            OSError: the disk is full or fails.
        """
        self.name = name
        self.groups: list[Measure] = []
        #: The checksums of the stretches of the file (:func:`changefeed.core.proofs.stretches`).
        self.marks: list[list[int]] = []
        self._path = root / name
        self._written: list[pq.FileMetaData] = []
        self._writer: Any = pq.ParquetWriter(
            self._path,
            shape.arrow,
            compression="zstd",
            compression_level=1,
            use_dictionary=["op"],
            write_statistics=["wall", "logical", "seq"],
            metadata_collector=self._written,
        )
        self.size = 0

    def add(self, rows: pa.Table, measure: Measure) -> None:
        """Write ``rows`` as the next row group."""
        fault_point(Point.LOG_SEGMENT_WRITE)
        self._writer.write_table(rows, row_group_size=max(len(rows), 1))
        self.groups.append(measure)

    @property
    def bytes(self) -> int:
        """Uncompressed size of what was added."""
        return sum(m.bytes for m in self.groups)

    def close(self, *, durable: bool = True) -> None:
        """Finish the file and make its bytes ``durable``. Its name is durable once the
        directory is synced."""
        self._writer.close()
        self.size = self._path.stat().st_size
        # Before the sync: a sync that fails may drop the bytes that memory still has.
        self.marks = marks_of(self._path, [*_ends(self._written[0]), self.size])
        if durable:
            sync_path(self._path)
        fault_point(Point.LOG_SEGMENT_SYNCED)

    def discard(self) -> None:
        """Close the file without an error, and remove it."""
        try:
            self._writer.close()
        except (OSError, pa.ArrowException):
            # The caller reports the error that led to the discard; this file is removed anyway.
            self._writer.is_open = False
        self._path.unlink(missing_ok=True)


def _ends(written: pq.FileMetaData) -> Iterator[int]:
    """Where the two stretches of each row group end."""
    for index in range(written.num_row_groups):
        group = written.row_group(index)
        for last in (len(_FIRST), group.num_columns):
            column = group.column(last - 1)
            start = column.dictionary_page_offset or column.data_page_offset
            yield start + column.total_compressed_size


def read_group(root: Path, group: RowGroup, shape: SchemaShape) -> pa.Table:
    """The rows of one row group.

    Raises:
        FileNotFoundError: compaction or retention removed the file.
        ChangefeedError: CF3001, the file differs from what was written.
    """
    return _read(root, group, None).cast(shape.arrow)


def read_stamps(root: Path, group: RowGroup) -> pa.Table:
    """The timestamp and sequence columns of a row group, without the others."""
    return _read(root, group, list(_FIRST[1:]))


def _read(root: Path, group: RowGroup, columns: list[str] | None) -> pa.Table:
    fd = os.open(root / group.file, os.O_RDONLY)
    try:
        source = _verified(fd, group, stamps_only=columns is not None)
        with pq.ParquetFile(source) as file:
            return file.read_row_group(group.index, columns=columns, use_threads=False)
    except (OSError, AlteredBytes, pa.ArrowException) as error:
        raise damaged(group.file, "segment cannot be read", reason=error) from error
    finally:
        os.close(fd)


def _verified(fd: int, group: RowGroup, *, stamps_only: bool) -> pa.NativeFile:
    """The file with the verified bytes that a reader of the row group needs; the rest is left
    out."""
    stamps, others, footer = group.proof
    # Memory that is not written to is not taken.
    content = np.empty(group.size, np.uint8)
    for stretch in (stamps, footer) if stamps_only else (stamps, others, footer):
        stretch.read(fd, content.data[stretch.start : stretch.end])
    return pa.BufferReader(pa.py_buffer(content))
