"""Rows of a transaction on disk: too large for memory, or prepared (XA) and not yet decided.

The rows can be decoded as they come, where the source's log has a transaction only once it is
complete; but which of several writes to one key is the last one is not known before the end.
Decoded rows are kept in Arrow files, one for each table of each stretch, whose checksums are in
memory, and in a note of a transaction that is kept beyond this process. At the end the keys are
compared (:mod:`changefeed.sources.decoded.repeats`), and the files are read again in order, mapped
and not loaded.
"""

from __future__ import annotations

import json
import shutil
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.core.durable import read_durable, replace_durably, sync_path
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.proofs import AlteredBytes, FileProof
from changefeed.core.schema import TableName, TableSchema
from changefeed.sources.decoded.disk import altered, no_room
from changefeed.sources.decoded.repeats import EXISTED, NEW, ONCE, SUPERSEDED, AddedRows, Repeats
from changefeed.sources.decoded.rows import CREATED, DELETED, UPDATED, DecodedRows, Operations
from changefeed.sources.decoded.superseded import CollapsedRows, transaction_op

Numbers = npt.NDArray[np.int64]

_SCHEMA, _VERSION = b"schema", b"version"
#: Beside the files of a transaction that is kept: what it has, with the proofs of the files.
NOTE = "note"


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

    def __init__(self, folder: Path, kept: Sequence[FileProof] | None = None) -> None:
        """``kept``: proofs of the files that are there; None: what is there is rubbish."""
        self.folder = folder
        self.rows = 0
        self._proofs = list(kept or ())
        self._verified = False
        #: Whether the source does not send the transaction again.
        self._kept = kept is not None
        self._adopted: dict[TableName, TableSchema] = {}
        if kept is None:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)

    @classmethod
    def open(cls, folder: Path) -> tuple[Self, dict[str, Any]]:
        """A transaction that was kept, and what :meth:`keep` noted.

        Raises:
            ChangefeedError: CF3001, the note is gone or not what was written.
        """
        try:
            note = json.loads(read_durable(folder / NOTE))
        except (OSError, AlteredBytes) as error:
            raise lost_rows(folder / NOTE, error) from error
        stored = cls(folder, [FileProof(*proof) for proof in note["files"]])
        stored.rows = note["rows"]
        return stored, note["note"]

    def keep(self, folder: Path, note: Mapping[str, Any]) -> None:
        """Move the rows to another folder, where they outlive this process and the machine's
        crash; this object is used up.

        Raises:
            OSError: no room.
        """
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        for number in range(len(self._proofs)):
            sync_path(self._path(number))
        self.folder.rename(folder)
        sync_path(folder.parent)
        files = [[proof.size, proof.crc] for proof in self._proofs]
        replace_durably(
            folder / NOTE, json.dumps({"rows": self.rows, "files": files, "note": dict(note)})
        )

    def append(self, parts: Sequence[StoredRows], rows: int) -> None:
        """Keep the rows of a stretch: ``rows`` of all ``parts`` together.

        Raises:
            ChangefeedError: CF3003 there is no room.
        """
        for part in parts:
            batch = _batch(part)
            path = self._path(len(self._proofs))
            try:
                with pa.OSFile(str(path), "wb") as sink:
                    with pa.ipc.new_file(sink, batch.schema) as writer:
                        writer.write_batch(batch)
                self._proofs.append(FileProof.of(path))
            except OSError as error:
                raise no_room(error) from error
        self.rows += rows

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:08d}.arrow"

    def adopt(self, schema: TableSchema) -> None:
        """Let the rows of a table have this version of it, whose images before have the same
        columns as those that are stored, or fewer."""
        self._adopted[schema.table] = schema

    def schemas(self) -> list[TableSchema]:
        """The versions of the tables of which there are rows."""
        found = {(file.schema.table, file.schema.version): file.schema for file in self._listed()}
        return list(found.values())

    def verify(self) -> Iterator[tuple[Path, int]]:
        """Compare the files with what was written: path and bytes of each.

        Raises:
            ChangefeedError: CF2101, one is another: the source sends the transaction again. Of a
                transaction that is kept it is CF3001.
        """
        for number, proof in enumerate(self._proofs):
            path = self._path(number)
            try:
                proof.verify(path)
            except (OSError, AlteredBytes) as error:
                raise (lost_rows if self._kept else altered)(path, error) from error
            yield path, proof.size

    def discard(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def replay(self) -> Iterator[list[ReplayedRows]]:
        """The rows in order, each part with what is known of its keys; a part at a time. Raises as
        :meth:`verify`, before the first part."""
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
        if not self._verified:
            list(self.verify())
            self._verified = True
        groups: dict[TableName, int] = {}
        files = []
        for path in map(self._path, range(len(self._proofs))):
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


def lost_rows(path: Path, why: object) -> ChangefeedError:
    """CF3001 for a file of a transaction that the source does not send again."""
    return ChangefeedError(
        Code.LOG_DAMAGED,
        "rows of a prepared transaction were damaged on disk",
        detail=f"file {path}: {why}",
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
    described = {_SCHEMA: schema.to_json().encode(), _VERSION: str(schema.version).encode()}
    return batch.replace_schema_metadata(described)


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
