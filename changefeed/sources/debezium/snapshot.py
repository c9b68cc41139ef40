"""The initial scan: Debezium's own snapshot, kept in files until it is delivered.

Debezium reads one table after the other and pushes rows; a scan pulls parts of tables, several at a
time. So the rows go to files, in a folder for temporary files, and a part is one of them. The
engine of a snapshot is not the one that streams: it has offsets and a history of its own, and
ends when the tables are read.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.events import Position
from changefeed.core.partition import Partition
from changefeed.core.proofs import AlteredBytes, FileProof
from changefeed.core.schema import Column, KeyRange, TableName, TableSchema
from changefeed.core.types import INTEGERS, Kind
from changefeed.sources.base import DEFAULT_PART_BYTES, KeySet, Snapshot, range_of
from changefeed.sources.debezium.carriers import fits, log_values
from changefeed.sources.debezium.connectors.base import Connector
from changefeed.sources.debezium.door import Door
from changefeed.sources.debezium.frames import Group, TableShape, read_batch
from changefeed.sources.debezium.sessions import Sessions
from changefeed.sources.debezium.stream import engine_properties
from changefeed.sources.decoded.disk import no_room
from changefeed.sources.scans import chosen_columns, table_changed

#: Rows of one batch in a file: a part reads whole batches.
BATCH_ROWS = 1024
_LOOK = 0.2
#: What Debezium says of its snapshot.
_COMPLETED = "Initial Snapshot: COMPLETED"
_FAILED = frozenset({"Initial Snapshot: ABORTED", "Initial Snapshot: SKIPPED"})


@dataclass(slots=True)
class _StoredBatch:
    path: Path
    proof: FileProof
    number: int
    rows: int
    bytes: int


class DoorSnapshot(Snapshot):
    """An image of tables as files. Thread-safe."""

    def __init__(
        self,
        connector: Connector,
        source: str,
        tables: Sequence[TableSchema],
        before: Position,
        sessions: Sessions,
    ) -> None:
        """Start the engine; returns when the position of the image is known.

        ``before``: a position in the log that was passed before.

        Raises:
            ChangefeedError: what the engine ended with.
        """
        self._connector = connector
        self._source = source
        self._sessions = sessions
        self._tables = {schema.table: schema for schema in tables}
        self._folder = Path(tempfile.mkdtemp(prefix="changefeed-scan-"))
        self._pieces: dict[TableName, list[_StoredBatch]] = defaultdict(list)
        self._position: Position = ""
        self._before = before
        self._error: ChangefeedError | None = None
        self._positioned = threading.Event()
        self._done = threading.Event()
        self._closed = False
        self._door: Door | None = None
        self._thread = threading.Thread(target=self._run, name="door-scan", daemon=True)
        self._thread.start()
        try:
            self._wait(self._positioned)
        except BaseException:
            self.close()
            raise

    @property
    def position(self) -> Position:
        return self._position or self._before

    def parts(
        self,
        table: TableSchema,
        target_bytes: int = DEFAULT_PART_BYTES,
        *,
        columns: Sequence[int] | None = None,
        keys: KeyRange | KeySet | None = None,
        partition: Partition | None = None,
    ) -> Sequence[DoorPart]:
        """See :class:`changefeed.sources.base.Snapshot`; waits until the engine has read all.

        Raises:
            ChangefeedError: CF2201 the snapshot is gone, or has not this table, or another shape.
        """
        self._wait(self._done)
        known = self._tables.get(table.table)
        if known is None or known.fingerprint() != table.fingerprint():
            raise table_changed(table.table, "its columns changed")
        chosen = chosen_columns(table, columns)
        pieces = self._pieces.get(table.table, [])
        groups: list[list[_StoredBatch]] = []
        size = 0
        for piece in pieces:
            if not groups or size >= target_bytes:
                groups.append([])
                size = 0
            groups[-1].append(piece)
            size += piece.bytes
        return [
            DoorPart(
                table,
                tuple((piece.path, piece.proof, piece.number) for piece in group),
                chosen,
                range_of(keys) or KeyRange(),
                sum(piece.rows for piece in group),
                sum(piece.bytes for piece in group),
            )
            for group in groups or [[]]
        ]

    def close(self) -> None:
        self._closed = True
        if self._door is not None:
            self._door.close()
        self._thread.join()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _wait(self, event: threading.Event) -> None:
        event.wait()
        if self._error is not None:
            raise self._error
        if self._closed:
            raise ChangefeedError(
                Code.SCAN_INTERRUPTED, "the snapshot of the initial scan was closed"
            )

    # --------------------------------------------------------------------------- reading

    def _run(self) -> None:
        try:
            if self._tables:
                self._read()
        except ChangefeedError as error:
            self._error = _of_scan(error)
        except OSError as error:
            self._error = no_room(error)
        finally:
            self._positioned.set()
            self._done.set()

    def _read(self) -> None:
        history = self._folder / "history"
        history.mkdir()
        properties = {
            **engine_properties(self._connector, history),
            **self._connector.scanning(list(self._tables)),
            "schema.history.internal.store.only.captured.tables.ddl": "true",
            "notification.enabled.channels": "sink",
            "notification.sink.topic.name": "notices",
        }
        door = self._door = Door(self._connector.packs, heap=self._connector.address.heap)
        try:
            door.start(properties, None)
            shapes: dict[int, TableShape] = {}
            while not self._closed:
                frame = door.frame(_LOOK)
                if frame is None:
                    continue
                kind, content = frame
                if kind == "S":
                    shape = TableShape.parse(content)
                    shapes[shape.number] = shape
                elif kind == "B" and self._batch(content, shapes):
                    return
                elif kind == "X":
                    raise ChangefeedError(
                        Code.SCAN_INTERRUPTED, "the snapshot by Debezium ended by itself"
                    )
        finally:
            door.close()
            self._sessions.ask(lambda session: self._connector.scanned(session, properties))

    def _batch(self, content: bytes, shapes: dict[int, TableShape]) -> bool:
        """Keep the rows; whether the snapshot is complete."""
        batch = read_batch(content, shapes)
        for group in batch.groups:
            self._group(group, shapes[group.table])
        notices = {mark.id for mark in batch.marks if mark.kind == "notice"}
        if failed := notices & _FAILED:
            raise ChangefeedError(
                Code.SCAN_INTERRUPTED, f"Debezium says of its snapshot: {min(failed)}"
            )
        done = _COMPLETED in notices
        if not self._position and (batch.groups or done):
            offsets = [mark.offset[1] for mark in batch.marks if mark.offset[1]]
            self._position = self._connector.scan_position(offsets[0]) if offsets else self._before
            self._positioned.set()
        return done

    def _group(self, group: Group, shape: TableShape) -> None:
        name = TableName(self._source, *self._connector.table_of(shape.source))
        schema = self._tables.get(name)
        if schema is None:
            return
        pairs = list(zip(shape.columns, schema.columns, strict=False))
        long_times = self._connector.long_times
        if len(shape.columns) != len(schema.columns) or not all(
            fits(carrier, column, long_times=long_times) for carrier, column in pairs
        ):
            raise _other_shape(schema, shape, long_times=long_times)
        columns = [
            log_values(carrier, column, values)
            for (carrier, column), values in zip(pairs, group.after, strict=True)
        ]
        names = [f"a{i}" for i in range(len(columns))]
        rows = pa.RecordBatch.from_arrays(columns, names)
        pieces = self._pieces[name]
        path = self._folder / f"{len(self._pieces)}-{len(pieces)}.arrow"
        parts = [rows.slice(start, BATCH_ROWS) for start in range(0, rows.num_rows, BATCH_ROWS)]
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, rows.schema) as writer:
            for part in parts:
                writer.write_batch(part)
        proof = FileProof.of(path)
        pieces += [
            _StoredBatch(path, proof, number, part.num_rows, part.nbytes)
            for number, part in enumerate(parts)
        ]


@dataclass(frozen=True, slots=True)
class DoorPart:
    """Some batches of a table's files. See :class:`changefeed.sources.base.ScanPart`."""

    table: TableSchema
    batches: tuple[tuple[Path, FileProof, int], ...]
    columns: tuple[int, ...]
    keys: KeyRange
    rows_estimate: int
    bytes_estimate: int

    def read(self) -> Iterator[pa.RecordBatch]:
        verified = None
        for path, proof, number in self.batches:
            try:
                if path != verified:
                    proof.verify(path)
                    verified = path
                with pa.memory_map(str(path)) as source:
                    batch = pa.ipc.open_file(source).get_batch(number)
            except (OSError, AlteredBytes, pa.ArrowException) as error:
                raise ChangefeedError(
                    Code.SCAN_INTERRUPTED,
                    "rows of the initial scan were removed or damaged on disk",
                    detail=f"file {path}: {error}",
                    hint="the scan starts again.",
                ) from error
            batch = in_range(self.table, self.keys, batch)
            kept: list[Any] = [
                column if place in self.columns else pa.nulls(batch.num_rows, column.type)
                for place, column in enumerate(batch.columns)
            ]
            yield pa.RecordBatch.from_arrays(kept, batch.schema.names)


def _other_shape(schema: TableSchema, shape: TableShape, *, long_times: bool) -> ChangefeedError:
    if [c.name for c in shape.columns] != [c.name for c in schema.columns]:
        return table_changed(schema.table, "its columns changed")
    wrong = next(
        (column, carrier)
        for carrier, column in zip(shape.columns, schema.columns, strict=True)
        if not fits(carrier, column, long_times=long_times)
    )
    column, carrier = wrong
    return ChangefeedError(
        Code.TABLE_NOT_SCANNABLE,
        f"column {column.name} of {schema.table} cannot be read",
        detail=f"the database calls it {column.type_name} ({column.logical}), Debezium sends"
        f" {carrier.semantic or carrier.type}",
        hint="leave the table out, or change the type of the column; please report it.",
    )


def _of_scan(error: ChangefeedError) -> ChangefeedError:
    """A stream that broke is, in a scan, a scan that was interrupted."""
    if error.code is not Code.STREAM_BROKE:
        return error
    return ChangefeedError(
        Code.SCAN_INTERRUPTED,
        "the snapshot by Debezium broke",
        detail=error.detail or error.message,
    )


_SORTED_TEXT = (Kind.TEXT, Kind.UUID, Kind.DATE)


def range_problem(table: TableSchema, keys: KeyRange) -> ChangefeedError | None:
    """Why no row can be in the range."""
    for bound in (keys.low, keys.high):
        for column, value in zip(table.key_columns, bound or (), strict=False):
            if column.kind in _SORTED_TEXT:
                continue
            if column.kind not in INTEGERS:
                return ChangefeedError(
                    Code.NOT_SUPPORTED,
                    f"a range of keys cannot be of column {column.name}, a {column.logical}",
                    hint="columns of whole numbers, text, dates and UUIDs can have one.",
                )
            try:
                int(value)
            except ValueError:
                return ChangefeedError(
                    Code.NOT_SUPPORTED, f"a bound of column {column.name} is no whole number"
                )
    if keys.low and keys.high:
        low, high = _values(table, keys.low), _values(table, keys.high)
        if len(low) == len(high) and low >= high:
            return ChangefeedError(
                Code.NOT_SUPPORTED, "the range of keys is empty: FROM is not below TO"
            )
    return None


def _values(table: TableSchema, bound: tuple[str, ...]) -> list[int | str]:
    return [_value(column, text) for column, text in zip(table.key_columns, bound, strict=False)]


def _value(column: Column, text: str) -> int | str:
    return int(text) if column.kind in INTEGERS else text


def in_range(table: TableSchema, keys: KeyRange, batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows whose key is in ``[low, high)``."""
    for bound, above in ((keys.low, True), (keys.high, False)):
        if bound:
            batch = batch.filter(_beyond(table, bound, batch, above=above))
    return batch


def _beyond(
    table: TableSchema, bound: tuple[str, ...], batch: pa.RecordBatch, *, above: bool
) -> pa.Array:
    """Rows at or above a bound, or below it, column by column."""
    beyond = pa.array(np.zeros(batch.num_rows, np.bool_))
    same = pa.array(np.ones(batch.num_rows, np.bool_))
    for place, text in zip(table.key, bound, strict=False):
        values = batch.column(place)
        value = pa.scalar(_value(table.columns[place], text), values.type)
        compare = pc.greater if above else pc.less
        beyond = pc.or_(beyond, pc.and_(same, compare(values, value)))
        same = pc.and_(same, pc.equal(values, value))
    return pc.or_(beyond, same) if above else beyond
