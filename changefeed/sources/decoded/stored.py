"""Rows of a transaction on disk: too large for memory, or prepared (XA) and not yet decided.

The rows can be decoded as they come, where the source's log has a transaction only once it is
complete; but which of several writes to one key is the last one is not known before the end.
Decoded rows are kept in Arrow files, one for each table of each stretch. At the end the keys are
compared (:mod:`changefeed.sources.decoded.repeats`), and the files are read again in order, mapped
and not loaded.
"""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.core.durable import sync_path
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.schema import TableName, TableSchema
from changefeed.sources.decoded.disk import no_room
from changefeed.sources.decoded.repeats import EXISTED, NEW, ONCE, SUPERSEDED, AddedRows, Repeats
from changefeed.sources.decoded.rows import CREATED, DELETED, UPDATED, DecodedRows, Operations
from changefeed.sources.decoded.superseded import CollapsedRows, transaction_op

Numbers = npt.NDArray[np.int64]

_SCHEMA, _VERSION = b"schema", b"version"


@dataclass(frozen=True, slots=True)
class StoredRows:
    """Decoded rows of one table. ``number`` counts all rows of the transaction, from 0."""

    schema: TableSchema
    rows: DecodedRows
    number: Numbers


@dataclass(frozen=True, slots=True)
class ReplayedRows:
    """Rows of one table as the transaction leaves them."""

    schema: TableSchema
    rows: DecodedRows
    number: Numbers
    marked: CollapsedRows


@dataclass(frozen=True, slots=True)
class _File:
    path: Path
    written: TableSchema
    schema: TableSchema
    group: int


class StoredTransaction:
    """A folder of rows in the order of the log."""

    def __init__(self, folder: Path, *, fresh: bool = True) -> None:
        """``fresh``: what is there already is rubbish."""
        self.folder = folder
        self.rows = 0
        self._files = 0
        self._adopted: dict[TableName, TableSchema] = {}
        if fresh:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)

    def append(self, parts: Sequence[StoredRows], rows: int) -> None:
        """Keep the rows of a stretch: ``rows`` of all ``parts`` together.

        Raises:
            ChangefeedError: CF3003 there is no room.
        """
        for part in parts:
            batch = _batch(part)
            try:
                with pa.OSFile(str(self.folder / f"{self._files:08d}.arrow"), "wb") as sink:
                    with pa.ipc.new_file(sink, batch.schema) as writer:
                        writer.write_batch(batch)
            except OSError as error:
                raise no_room(error) from error
            self._files += 1
        self.rows += rows

    def adopt(self, schema: TableSchema) -> None:
        """Let the rows of a table have this version of it, whose images before have the same
        columns as those that are stored, or fewer."""
        self._adopted[schema.table] = schema

    def schemas(self) -> list[TableSchema]:
        """The versions of the tables of which there are rows."""
        found = {(file.schema.table, file.schema.version): file.schema for file in self._listed()}
        return list(found.values())

    def make_durable(self) -> None:
        """Everything is on disk when this returns."""
        for path in [*sorted(self.folder.iterdir()), self.folder, self.folder.parent]:
            sync_path(path)

    def discard(self) -> None:
        """Forget the transaction."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def replay(self) -> Iterator[list[ReplayedRows]]:
        """The rows in order, each part with what is known of its keys; a part at a time."""
        files = self._listed()
        compared = _compared(files)
        records, found = self.folder / "records", self.folder / "found"
        with closing(Repeats(records, found)) as repeats:
            for file in files:
                if file.schema.table in compared:
                    part = _read(file)
                    repeats.add(file.group, part.rows.key, part.rows.op, _places(part))
            repeats.sort()
            for file in files:
                part = _read(file)
                if file.schema.table in compared:
                    marked = self._collapsed(files, file, part, repeats.take())
                else:
                    marked = CollapsedRows(part.rows.op, None, part.rows.before)
                yield [ReplayedRows(part.schema, part.rows, part.number, marked)]

    def _listed(self) -> list[_File]:
        groups: dict[TableName, int] = {}
        files = []
        for path in sorted(self.folder.glob("*.arrow")):
            with pa.memory_map(str(path)) as source:
                metadata = pa.ipc.open_file(source).schema.metadata
            schema = TableSchema.from_json(
                metadata[_SCHEMA].decode(), version=int(metadata[_VERSION])
            )
            group = groups.setdefault(schema.table, len(groups))
            files.append(_File(path, schema, self._adopted.get(schema.table, schema), group))
        return files

    def _collapsed(
        self, files: Sequence[_File], file: _File, part: StoredRows, writes: AddedRows
    ) -> CollapsedRows:
        rows = part.rows
        if (writes.kind == ONCE).all():
            return CollapsedRows(rows.op, None, rows.before)
        existed, made = writes.kind == EXISTED, writes.kind == NEW
        keep = pa.array(~made)
        before = [pc.if_else(keep, column, None) for column in rows.before]
        images = _images(files, file, writes.first[existed])
        chosen = pa.array(existed)
        return CollapsedRows(
            op=transaction_op(rows.op, existed | made, existed),
            stays=writes.kind != SUPERSEDED,
            before=[
                pc.replace_with_mask(column, chosen, image)
                for column, image in zip(before, images, strict=True)
            ],
        )


def _batch(part: StoredRows) -> pa.RecordBatch:
    schema, rows = part.schema, part.rows
    names = ["number", "op"]
    names += [f"a{i}" for i in range(len(schema.columns))]
    names += [f"b{i}" for i in schema.before_ordinals]
    names += [f"u{i}" for i in rows.unchanged]
    arrays = [pa.array(part.number), pa.array(rows.op), *rows.after, *rows.before]
    arrays += [pa.array(unsent) for unsent in rows.unchanged.values()]
    batch = pa.RecordBatch.from_arrays(arrays, names)
    told = {_SCHEMA: schema.to_json().encode(), _VERSION: str(schema.version).encode()}
    return batch.replace_schema_metadata(told)


def _read(file: _File) -> StoredRows:
    with pa.memory_map(str(file.path)) as source:
        batch = pa.ipc.open_file(source).get_batch(0)
    schema, written = file.schema, file.written.before_ordinals
    width = len(schema.columns)
    columns = batch.columns
    behind = 2 + width + len(written)
    after, before = columns[2 : 2 + width], columns[2 + width : behind]
    unchanged = {
        int(name[1:]): unsent.to_numpy(zero_copy_only=False)
        for name, unsent in zip(batch.schema.names[behind:], columns[behind:], strict=True)
    }
    op: Operations = columns[1].to_numpy(zero_copy_only=False)
    deleted = pa.array(op == DELETED)
    of_before = dict(zip(written, before, strict=True))
    before = [of_before[i] for i in schema.before_ordinals]
    key = [pc.if_else(deleted, of_before[i], after[i]) for i in schema.key]
    number: Numbers = columns[0].to_numpy(zero_copy_only=False)
    rows = DecodedRows(np.arange(len(op)), op, list(after), list(before), key, unchanged)
    return StoredRows(schema, rows, number)


def _places(part: StoredRows) -> npt.NDArray[np.intp]:
    return part.number.astype(np.intp)


def _compared(files: Sequence[_File]) -> set[TableName]:
    """Tables of which a key may be written twice."""
    kinds: dict[TableName, set[int]] = defaultdict(set)
    for file in files:
        if not file.schema.keyless:
            kinds[file.schema.table].update(np.unique(_read(file).rows.op).tolist())
    return {table for table, seen in kinds.items() if UPDATED in seen or {CREATED, DELETED} <= seen}


def _images(files: Sequence[_File], like: _File, places: Numbers) -> list[pa.Array]:
    """The rows before the changes numbered ``places``, by ``schema.before_ordinals``."""
    wanted, inverse = np.unique(places, return_inverse=True)
    found: list[list[pa.Array]] = []
    left = wanted
    for file in files:
        if file.group != like.group or not len(left):
            continue
        part = _read(file)
        here = left[(left >= part.number[0]) & (left <= part.number[-1])]
        if len(here):
            at = pa.array(np.searchsorted(part.number, here))
            found.append([column.take(at) for column in part.rows.before])
            left = left[left > part.number[-1]]
    if sum(len(part[0]) for part in found) != len(wanted):
        raise ChangefeedError(Code.LOG_DAMAGED, "rows of a large transaction are missing on disk")
    columns = []
    for number, ordinal in enumerate(like.schema.before_ordinals):
        kind = like.schema.columns[ordinal].arrow
        whole = pa.chunked_array([part[number] for part in found], kind).combine_chunks()
        columns.append(whole.take(pa.array(inverse)))
    return columns
