"""Scans that tasks of Spark stage: each makes the staging rows of its part and writes them to a
file, and the node loads the files of a round at once and applies them as any other rows.

A task makes the rows by the functions of the node (:class:`.pending.PendingRows`), so they are the
same. Each attempt has a file of its own name, and only files with a receipt are loaded.
"""

from __future__ import annotations

import itertools
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from changefeed.core.errors import ChangefeedError
from changefeed.core.schema import TableSchema
from sinks.base import Capabilities, Epoch, PartPlace, PartWriter, Receipt, SinkContext, Target
from sinks.merged.applied import AppliedVersion
from sinks.merged.policy import Removal
from sinks.merged.rows import require_key_values
from sinks.warehouse.dialect import Warehouse
from sinks.warehouse.pending import PendingRows
from sinks.warehouse.sink import REFUSALS, WarehouseSink


class PartFiles(ABC):
    """Where tasks write their files; pickles."""

    @abstractmethod
    def create(self, name: str) -> AbstractContextManager[Any]:
        """A new file to write, whole once the block has ended. Called in a task."""

    def mark(self, name: str) -> str:
        """What the node is given of a file that is whole: its name, and what proves its bytes if
        the place does not. Called in a task."""
        return name


class FileWarehouse(Warehouse):
    """A warehouse that loads Parquet files."""

    #: Files that one load takes.
    most_files: ClassVar[int] = 10_000
    #: Of the files.
    compression: ClassVar[str] = "zstd"

    @abstractmethod
    def part_files(self, context: SinkContext, name: str) -> AbstractContextManager[PartFiles]:
        """A place for files of this name, empty at first; they are removed after the block. What
        an earlier process of the feed left is removed, too."""

    @abstractmethod
    def load_files(self, table: str, files: PartFiles, names: Sequence[str], load_id: str) -> None:
        """Append the rows of files to a staging table; as :meth:`load` otherwise. ``names`` are
        :meth:`PartFiles.mark`'s."""

    def file_column(self, name: str) -> str:
        """What a column of the table is called in a file."""
        return name


@dataclass(frozen=True)
class StagingWriter:
    """Writes the staging rows of a part; a :data:`sinks.base.PartWriter`.

    Attributes:
        pending: of the round; no rows wait there.
        columns: what the columns are called in a file.
        keyed: each row must have a key.
        rows, size: at most so many rows and bytes are in memory, or few more.
    """

    pending: PendingRows
    files: PartFiles
    columns: Sequence[str]
    compression: str
    keyed: bool
    rows: int
    size: int

    def __call__(self, part: int, found: Iterator[pa.Table]) -> Receipt:
        """Returns a receipt with the name of the file, which a part without rows does not have."""
        chunks = self._chunks(found)
        first = next(chunks, None)
        if first is None:
            return Receipt(part, 0, 0)
        name = f"{part:08d}-{uuid.uuid4().hex}.parquet"
        rows = size = 0
        with (
            self.files.create(name) as file,
            pq.ParquetWriter(file, first.schema, compression=self.compression) as writer,
        ):
            for chunk in itertools.chain([first], chunks):
                writer.write_table(chunk)
                rows, size = rows + chunk.num_rows, size + chunk.nbytes
        return Receipt(part, rows, size, (self.files.mark(name),))

    def _chunks(self, found: Iterator[pa.Table]) -> Iterator[pa.Table]:
        pending, count = replace(self.pending, buffer=[], spilled=[]), 0
        for table in (one for one in found if one.num_rows):
            if self.keyed:
                require_key_values(table, pending.shape.schema, pending.shape.topic)
            pending.add(table, pending.table.d)
            count += table.num_rows
            if count >= self.rows or pending.buffered >= self.size:
                yield from self._taken(pending)
                count = 0
        yield from self._taken(pending)

    def _taken(self, pending: PendingRows) -> Iterator[pa.Table]:
        for rows in pending.to_load(self.rows, self.size):
            yield rows.rename_columns(self.columns)
        pending.clear()


class PartsSink(WarehouseSink):
    """The sink of a :class:`FileWarehouse`."""

    capabilities: ClassVar[Capabilities] = replace(
        WarehouseSink.capabilities, loads_parts=PartPlace.OWN
    )

    def write_parts(
        self,
        written: Callable[[PartWriter], Sequence[Receipt]],
        epoch: Epoch,
        target: Target,
        schema: TableSchema,
    ) -> Receipt:
        """See :meth:`sinks.base.Sink.write_parts`."""
        if not self._begin(target, schema, epoch.upto):
            return Receipt(0, 0, 0)
        pending, warehouse = self.pending_rows(target, schema, scan=True), self._files
        pending.top = AppliedVersion(epoch.upto.version)
        with warehouse.part_files(self._opened, str(pending.batch)) as files:
            writer = StagingWriter(
                pending=pending,
                files=files,
                columns=[warehouse.file_column(name) for name in pending.shape.physical],
                compression=warehouse.compression,
                keyed=self._policy.removal is not Removal.RECORD,
                rows=self.load_rows,
                size=self.load_bytes,
            )
            warehouse.rest()  # for as long as tasks are at work
            found = [one for one in written(writer) if one.staged]
            if found:
                self._load_files(pending, files, found)
            else:
                self._pending.remove(pending)
        self.commit(epoch, found)
        return Receipt(0, sum(one.rows for one in found), sum(one.bytes for one in found))

    def _load_files(
        self, pending: PendingRows, files: PartFiles, receipts: Sequence[Receipt]
    ) -> None:
        self._tables.connect()
        for start in range(0, len(receipts), self._files.most_files):
            some = receipts[start : start + self._files.most_files]
            names = [name for one in some for name in one.staged]
            load_id = pending.load_id(self._opened.node)
            pending.loads += 1  # what is loaded of it goes with ``abort``
            try:
                with self._tables.errors():
                    self._files.load_files(pending.staging, files, names, load_id)
            except ChangefeedError as error:
                if error.code in REFUSALS:
                    error.target = pending.table.topic
                raise
            pending.rows += sum(one.rows for one in some)

    @property
    def _files(self) -> FileWarehouse:
        warehouse = self._tables.warehouse
        assert isinstance(warehouse, FileWarehouse)
        return warehouse
