"""Parquet segments: rows of one table and schema version in a file of their own.

Compression is zstd. Only ``op`` is dictionary-encoded, which halves the CPU time of writing. Only
``wall``, ``logical`` and ``seq``, which filters use, have statistics. A file is complete and synced
before a frame names it, so a segment that no frame names was left by a crash and can be removed.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from changefeed.core.faults import Point, fault_point
from changefeed.log.frame import RowGroup
from changefeed.log.journal import damaged
from changefeed.log.rows import Measure, SchemaShape
from changefeed.log.settings import LogSettings


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
        self._path = root / name
        self._writer: Any = pq.ParquetWriter(
            self._path,
            shape.arrow,
            compression="zstd",
            compression_level=1,
            use_dictionary=["op"],
            write_statistics=["wall", "logical", "seq"],
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

    def close(self) -> None:
        """Finish the file and make its bytes durable. Its name is durable once the
        directory is synced."""
        self._writer.close()
        fd = os.open(self._path, os.O_RDONLY)
        try:
            os.fsync(fd)
            self.size = os.fstat(fd).st_size
        finally:
            os.close(fd)
        fault_point(Point.LOG_SEGMENT_SYNCED)

    def discard(self) -> None:
        """Close the file without an error, and remove it."""
        try:
            self._writer.close()
        except (OSError, pa.ArrowException):
            # The caller reports the error that led to the discard; this file is removed anyway.
            self._writer.is_open = False
        self._path.unlink(missing_ok=True)


def read_group(root: Path, group: RowGroup, shape: SchemaShape) -> pa.Table:
    """The rows of one row group.

    Raises:
        FileNotFoundError: compaction or retention removed the file.
        ChangefeedError: CF3001, the file differs from what was written.
    """
    return _read(root, group, None).cast(shape.arrow)


def read_stamps(root: Path, group: RowGroup) -> pa.Table:
    """The timestamp and sequence columns of a row group, without the others."""
    return _read(root, group, ["wall", "logical", "seq"])


def _read(root: Path, group: RowGroup, columns: list[str] | None) -> pa.Table:
    try:
        with pq.ParquetFile(root / group.file) as file:
            return file.read_row_group(group.index, columns=columns, use_threads=False)
    except FileNotFoundError:
        raise
    except (OSError, pa.ArrowException) as error:
        raise damaged(group.file, "segment cannot be read") from error
