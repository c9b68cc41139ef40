"""The frame of one flush while it is built: inline rows, segments on disk, header entries.

A reader sees the schemas that a draft declares and the segments that it wrote only after the
writer has put its frame into the journal. Until then :meth:`FrameBuilder.discard` undoes the draft.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from changefeed.core.events import (
    ChangeBatch,
    Commits,
    Ddl,
    Event,
    Frontier,
    SchemaChange,
    Truncate,
)
from changefeed.core.schema import TableName, TableSchema
from changefeed.log.frame import (
    BOTH,
    COMMIT_SCHEMA,
    RowGroup,
    encode_frontier,
    encode_run,
    encode_segment,
    segment_marks,
    stamp_of,
)
from changefeed.log.journal import Frame, encode_frame, segment_name
from changefeed.log.rows import Measure, SchemaShape, Stamp, measure, pack
from changefeed.log.segment import SegmentWriter, group_size
from changefeed.log.settings import LogSettings

#: Up to this many commits are written as JSON into the header; more go as a batch into the body.
_FEW_COMMITS: Final = 16

#: Commits in one stored batch: a lookup reads one or two of them.
COMMIT_GROUP: Final = 65_536


class DeclaredSchemas:
    """The schemas that a journal file has declared, and their numbers in that file."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[tuple[TableName, int], tuple[int, SchemaShape]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def get(self, schema: TableSchema) -> tuple[int, SchemaShape] | None:
        """The number and shape of a schema that the file has declared; None for any other.

        Raises:
            ValueError: the file has declared this version of the table with another shape.
        """
        found = self._known.get((schema.table, schema.version))
        if found and found[1].schema is not schema and found[1].schema != schema:
            raise ValueError(f"version {schema.version} of {schema.table} had another shape before")
        return found

    def add(self, number: int, shape: SchemaShape) -> None:
        """Remember a declaration."""
        self._known[shape.schema.table, shape.schema.version] = (number, shape)

    def replay(self, frame: Frame) -> None:
        """Remember what a frame of this file declares."""
        for number, version, text in frame.header.get("s", ()):
            self.add(number, SchemaShape(TableSchema.from_json(text, version)))

    def cut(self, size: int) -> None:
        """Forget all but the first ``size`` declarations."""
        for key in list(self._known)[size:]:
            del self._known[key]


class FrameBuilder:
    """Builds one frame."""

    def __init__(
        self,
        root: Path,
        number: int,
        ordinal: int,
        declared: DeclaredSchemas,
        settings: LogSettings,
        *,
        durable: bool = True,
    ) -> None:
        """``durable``: make segments durable; not where they are copies."""
        self.rows = 0
        self.events = 0
        self.segments: list[tuple[str, int]] = []
        self.new: list[tuple[int, SchemaShape]] = []
        self.first: Stamp | None = None
        self.last: Stamp | None = None
        #: The timestamp and sequence number of each table's last row; later rows must be above.
        self.lower_bounds: dict[TableName, tuple[Stamp, int]] = {}
        self._root = root
        self._number = number
        self._ordinal = ordinal
        self._declared = declared
        self._settings = settings
        self._durable = durable
        self._header: dict[str, Any] = {}
        self._entries: list[list[Any]] = []
        self._body: list[bytes] = []
        self._length = 0

    @property
    def body_length(self) -> int:
        """Bytes of the body so far."""
        return self._length

    # ------------------------------------------------------------------------------ content

    def add(self, event: Event) -> None:
        """Take the next event in log order.

        Raises:
            ValueError: rows are out of order or do not fit their schema.
            OSError: a segment cannot be written.
        """
        _ADDERS[type(event)](self, event)
        self.events += 1

    def _batch(self, batch: ChangeBatch) -> None:
        rows = batch.rows
        if not len(rows):
            return
        number, shape = self.declare(batch.schema)
        settings = self._settings
        size = rows.nbytes
        if len(rows) >= settings.segment_rows or size >= settings.segment_bytes:
            step = group_size(len(rows), size, settings)
            parts = [rows.slice(at, step) for at in range(0, len(rows), step)]
            measures = [measure(shape, part) for part in parts]
            self._write_segment(number, shape, parts, measures)
        else:
            measures = [measure(shape, rows)]
            self.inline(number, rows, measures[0])
        self.rows += len(rows)
        first, last = measures[0], measures[-1]
        self._follow(batch.schema.table, (first.first, first.first_seq), (last.last, last.last_seq))

    def inline(self, number: int, rows: pa.RecordBatch, measured: Measure) -> None:
        """Put rows into the body."""
        self._entries.append(encode_run(number, measured, self._store(*pack(rows))))

    def _store(self, data: bytes, sizes: list[int]) -> list[int]:
        extent = [self._length, *sizes]
        self._body.append(data)
        self._length += len(data)
        return extent

    def _write_segment(
        self, number: int, shape: SchemaShape, parts: list[pa.RecordBatch], measures: list[Measure]
    ) -> None:
        writer = self.open_segment(shape)
        try:
            for part, measured in zip(parts, measures, strict=True):
                writer.add(pa.Table.from_batches([part]), measured)
            self.close_segment(number, writer)
        except BaseException:
            writer.discard()
            raise

    def open_segment(self, shape: SchemaShape) -> SegmentWriter:
        """A new Parquet file that belongs to this journal."""
        writer = SegmentWriter(self._root, segment_name(self._number, self._ordinal), shape)
        self._ordinal += 1
        return writer

    def close_segment(self, number: int, writer: SegmentWriter) -> None:
        """Finish a Parquet file and name it in the frame."""
        writer.close(durable=self._durable)
        self.segments.append((writer.name, writer.size))
        self._entries.append(
            encode_segment(number, writer.name, writer.size, writer.groups, writer.marks)
        )

    def keep_segment(self, number: int, groups: list[RowGroup], measures: list[Measure]) -> None:
        """Name a Parquet file that exists already (compaction keeps large ones)."""
        file, marks = groups[0], segment_marks(groups)
        self._entries.append(encode_segment(number, file.file, file.size, measures, marks))

    def _truncate(self, event: Truncate) -> None:
        self.truncate(event)
        self._control(event.schema.table, stamp_of(event.at))

    def truncate(self, event: Truncate) -> None:
        """Put a truncation among the entries."""
        number, _ = self.declare(event.schema)
        self._entries.append(["t", number, event.at.wall, event.at.logical, event.seq])

    def _schema_change(self, event: SchemaChange) -> None:
        self.schema_change(event, BOTH)
        self._control(event.new.table, stamp_of(event.at))

    def schema_change(self, event: SchemaChange, side: int) -> None:
        """Put a schema change among the entries of the old table name, the new one, or both."""
        old, _ = self.declare(event.old)
        new, _ = self.declare(event.new)
        rewritten, moved = int(event.rewritten), int(event.moved)
        at = [event.at.wall, event.at.logical, event.seq]
        more = [moved, event.why, int(event.unreadable), event.renamed]
        self._entries.append(["s", old, new, *at, rewritten, side, *more])

    def _ddl(self, event: Ddl) -> None:
        self.ddl(event)
        self._control(event.table, stamp_of(event.at))

    def ddl(self, event: Ddl) -> None:
        """Put a statement of DDL among the entries."""
        table = [event.table.source, event.table.schema, event.table.name]
        said = event.kind, event.position, event.statement
        self._entries.append(["d", table, event.at.wall, event.at.logical, event.seq, *said])

    def declare(self, schema: TableSchema) -> tuple[int, SchemaShape]:
        """The number and shape of a schema, which this frame declares if it is new in the file."""
        known = self._declared.get(schema)
        if known is None:
            known = (len(self._declared) + 1, SchemaShape(schema))
            self._declared.add(*known)
            self.new.append(known)
        return known

    def commits(self, commits: Commits) -> None:
        """Take the transactions that ended in this flush."""
        count = len(commits.wall)
        if not count:
            return
        lists = (commits.wall, commits.logical, commits.position, commits.xid)
        if len({len(values) for values in lists}) != 1:
            raise ValueError("the lists of Commits differ in length")
        if count <= _FEW_COMMITS:
            wall, logical, xid = ([int(v) for v in lists[i]] for i in (0, 1, 3))
            self._header["k"] = [wall, logical, [str(p) for p in commits.position], xid]
            return
        self.commit_batch(commit_batch(lists))

    def commit_batch(self, batch: pa.RecordBatch) -> None:
        """Store commits in the body."""
        stored = self._header.setdefault("c", [])
        for at in range(0, len(batch), COMMIT_GROUP):
            part = batch.slice(at, COMMIT_GROUP)
            last = part.column(2)[len(part) - 1].as_py()
            stored.append([len(part), last, *self._store(*pack(part))])

    def _control(self, table: TableName, at: Stamp) -> None:
        # It may share the sequence number of a row; only its order among the rows counts.
        seq = self.lower_bounds[table][1] if table in self.lower_bounds else -1
        self._follow(table, (at, seq + 1), (at, seq))

    def _follow(self, table: TableName, first: tuple[Stamp, int], last: tuple[Stamp, int]) -> None:
        bound = self.lower_bounds.get(table)
        if bound and (first[0] < bound[0] or first[1] <= bound[1]):
            raise ValueError(f"events of {table} are not in log order")
        self.lower_bounds[table] = last
        self.first = first[0] if self.first is None else min(self.first, first[0])
        self.last = last[0] if self.last is None else max(self.last, last[0])

    # ------------------------------------------------------------------------------- result

    def encode(self, sync: bytes, frontier: Frontier | None, after: Stamp | None) -> list[bytes]:
        """The bytes of the frame. ``after`` only in the first frame of a new log."""
        header: dict[str, Any] = {}
        if frontier is not None:
            header["f"] = encode_frontier(frontier)
        if after is not None:
            header["a"] = after
        if self.new:
            header["s"] = [[n, s.schema.version, s.schema.to_json()] for n, s in self.new]
        if self._entries:
            header["e"] = self._entries
        return encode_frame(sync, header | self._header, self._body)

    def discard(self) -> None:
        """Remove the segments of this frame and forget the schemas that it declares."""
        self._declared.cut(len(self._declared) - len(self.new))
        for name, _ in self.segments:
            (self._root / name).unlink(missing_ok=True)


_ADDERS: Final[dict[type, Callable[[FrameBuilder, Any], None]]] = {
    ChangeBatch: FrameBuilder._batch,
    Truncate: FrameBuilder._truncate,
    SchemaChange: FrameBuilder._schema_change,
    Ddl: FrameBuilder._ddl,
}


def commit_batch(lists: Sequence[Any]) -> pa.RecordBatch:
    """Four equally long lists as rows of :data:`COMMIT_SCHEMA`."""
    columns = [pa.array(v, f.type) for v, f in zip(lists, COMMIT_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=COMMIT_SCHEMA)
