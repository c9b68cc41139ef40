"""The changes of one table in the change log, cut into ranges that can be read apart.

A :class:`Range` is small and pickles: the planner of a read looks at the log's index alone, and
the process that gets the range opens the log's files and reads the rows. A range ends between
transactions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import pyarrow as pa

from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.events import Ddl, SchemaChange, Truncate
from changefeed.core.partition import Partition
from changefeed.core.proofs import AlteredBytes, FileProof
from changefeed.core.schema import TableName, TableSchema
from changefeed.encoding.plan import MessagePlan
from changefeed.encoding.typed_rows import RowPlan
from changefeed.log import LogPiece, LogReader
from changefeed.readers.changes import ChangeRows, index_of
from changefeed.readers.staged_rows import RowLocations

#: About so many rows are one range: enough that opening the log does not show.
RANGE_ROWS = 200_000
RANGE_BYTES = 128 << 20
#: Most rows of one record batch.
BATCH_ROWS = 32_768


class OnTruncate(StrEnum):
    """What a TRUNCATE becomes, which no change of a row can say."""

    ERROR = "error"
    SKIP = "skip"
    ROW = "row"


@dataclass(frozen=True)
class Selection:
    """Which rows and columns of a table a reader has.

    Attributes:
        columns: names of the wanted columns, empty for all.
        values_from, values_to, partition: see :class:`changefeed.catalog.TableProgress`.
    """

    table: TableName
    columns: tuple[str, ...] = ()
    values_from: tuple[str, ...] = ()
    values_to: tuple[str, ...] = ()
    partition: Partition | None = None

    def of(self, schema: TableSchema) -> RowPlan:
        """The selection applied to one version of the table."""
        return RowPlan(
            MessagePlan(
                schema=schema,
                topic=schema.table.name,
                projection=self.columns or None,
                key_from=self.values_from,
                key_to=self.values_to,
                within=self.partition.conditions if self.partition else (),
                collapse=False,
            )
        )


@dataclass(frozen=True)
class Range:
    """A part of the work of a read.

    Attributes:
        log: directory of the change log.
        schema: the shape the changes get; None: each row has the shape of its version.
        after, upto: changes above ``after``, up to ``upto``.
        files: of a scan, the files to read in place of the log; their rows have ``version``.
        proofs: of the files, in the same order.
        rows: how many rows of the log there are, about.
        staged: where the rows are, if the reading process does not see the log.
    """

    log: Path
    selection: Selection
    schema: TableSchema | None
    after: Timestamp
    upto: Timestamp
    files: tuple[str, ...] = ()
    proofs: tuple[FileProof, ...] = ()
    version: TableSchema | None = None
    rows: int = 0
    on_truncate: OnTruncate = OnTruncate.ERROR
    staged: RowLocations | None = None

    def read(self) -> Iterator[pa.RecordBatch]:
        """The changes in log order.

        Raises:
            ChangefeedError: CF3001 the log is damaged, CF3002 it does not go back so far, CF1303 a
                TRUNCATE, CF4001 a value does not fit its type.
        """
        batches = self._scanned() if self.version is not None else self._logged()
        for batch in batches:
            for start in range(0, batch.num_rows, BATCH_ROWS):
                yield batch.slice(start, BATCH_ROWS)

    def _scanned(self) -> Iterator[pa.RecordBatch]:
        if self.version is None:
            raise AssertionError("a scan has a shape")
        change = ChangeRows(self.schema or self.version)
        for content in self._mapped() if self.staged is None else self.staged.files():
            reader = pa.ipc.open_file(content)
            for i in range(reader.num_record_batches):
                rows = pa.Table.from_batches([reader.get_batch(i)])
                yield change.of(rows, self.version)

    def _mapped(self) -> Iterator[pa.NativeFile]:
        for path, _ in self.verified_files():
            with pa.memory_map(str(path)) as file:
                yield file

    def verified_files(self) -> Iterator[tuple[Path, FileProof]]:
        """The files of a scan, each compared with its proof before it is given out.

        Raises:
            ChangefeedError: CF3001 one is not what was written, CF3002 one is gone.
        """
        for path, proof in zip(map(Path, self.files), self.proofs, strict=True):
            try:
                proof.verify(path)
            except FileNotFoundError as cause:
                raise ChangefeedError(
                    Code.POSITION_TOO_OLD,
                    "the reader's initial scan no longer exists",
                    detail=str(path),
                    hint="make another reader, which begins with a scan of the table.",
                ) from cause
            except PermissionError as cause:
                raise _unseen("the reader's initial scan may not be read here") from cause
            except (OSError, AlteredBytes) as cause:
                raise ChangefeedError(
                    Code.LOG_DAMAGED,
                    "the reader's initial scan is damaged",
                    detail=f"file {path}: {cause}",
                    hint="make another reader, which begins with a scan of the table.",
                ) from cause
            yield path, proof

    def _logged(self) -> Iterator[pa.RecordBatch]:
        if self.staged is None:
            for event in self.events():
                if isinstance(event, Truncate):
                    yield from self._truncated(event.schema, event.at)
                elif not isinstance(event, SchemaChange | Ddl):
                    yield self._changes(event.schema, event.load())
        else:
            for version, found in self.staged.events():
                if isinstance(found, Timestamp):
                    yield from self._truncated(version, found)
                else:
                    yield self._changes(version, found)

    def events(self) -> Iterator[LogPiece | Truncate | SchemaChange | Ddl]:
        """What the log has in this range, in its order."""
        try:
            opened = LogReader(self.log)
        except PermissionError as cause:
            raise _unseen("the change log may not be read here") from cause
        with opened as log:
            after = self.after
            while after < self.upto:
                piece = log.slice({self.selection.table: after}, self.upto, RANGE_ROWS, RANGE_BYTES)
                yield from piece.events
                if piece.upto <= after:
                    raise _unseen(
                        f"the change log ends at {after}, and {self.upto} was promised: this "
                        "machine does not see the same files as the node's"
                    )
                after = piece.upto

    def _changes(self, version: TableSchema, rows: pa.Table) -> pa.RecordBatch:
        plan = self.selection.of(version)
        return ChangeRows(self.schema or plan.schema).of(plan.rows(rows), plan.schema)

    def _truncated(self, version: TableSchema, at: Timestamp) -> Iterator[pa.RecordBatch]:
        if self.on_truncate is OnTruncate.ROW:
            plan = self.selection.of(version)
            yield ChangeRows(self.schema or plan.schema).truncated(at)
        elif self.on_truncate is OnTruncate.ERROR:
            raise ChangefeedError(
                Code.NOT_SUPPORTED,
                f"{version.table} was truncated at {at}, which no change of a row can say",
                hint="the option truncate = 'row' gives a row with _change_type 'truncate', "
                "'skip' leaves it out.",
            )


def _unseen(message: str) -> ChangefeedError:
    return ChangefeedError(
        Code.LOG_DAMAGED,
        message,
        hint="let executors see the node's files, as the node's user, or name a place that both "
        "reach with the option staging.",
    )


@dataclass(frozen=True)
class TableRanges:
    """What a part of the log holds of a table, without its rows.

    Attributes:
        ranges: the work, in log order; ranges without rows and truncations are left out.
        versions: the shapes its rows have, oldest first.
        changes: the changes of shape in it.
    """

    ranges: tuple[Range, ...]
    upto: Timestamp
    versions: tuple[TableSchema, ...] = ()
    changes: tuple[SchemaChange, ...] = ()


@dataclass
class TableLog:
    """One table in the change log of its source."""

    root: Path
    selection: Selection
    on_truncate: OnTruncate = OnTruncate.ERROR
    range_rows: int = RANGE_ROWS
    _log: LogReader | None = field(default=None, init=False, repr=False)

    @property
    def log(self) -> LogReader:
        """The log's index, opened at first use."""
        if self._log is None:
            self._log = LogReader(self.root, cache_bytes=0)
        return self._log

    def frontier(self) -> Timestamp | None:
        """How far the log is now; None while it is empty."""
        frontier = self.log.refresh()
        return None if frontier is None else frontier.at

    def reach(self, after: Timestamp, upto: Timestamp, rows: int) -> Timestamp:
        """Where about ``rows`` rows above ``after`` end, ``upto`` at most."""
        if upto <= after:
            return after
        return self.log.slice({self.selection.table: after}, upto, rows, RANGE_BYTES * 64).upto

    def span(
        self, after: Timestamp, upto: Timestamp, schema: TableSchema | None = None
    ) -> TableRanges:
        """The ranges of changes above ``after``, up to ``upto``; the rows are not read.

        Args:
            schema: the shape all changes get.

        Raises:
            ChangefeedError: CF3001; CF3002 the log does not go back to ``after``; CF2108 changes of
                the table could not be read.
        """
        self.log.refresh()
        ranges: list[Range] = []
        versions: dict[int, TableSchema] = {}
        changes: list[SchemaChange] = []
        while after < upto:
            part = self.log.slice({self.selection.table: after}, upto, self.range_rows, RANGE_BYTES)
            if part.upto <= after:
                break
            for piece in part.pieces:
                versions[piece.schema.version] = piece.schema
            for event in part.control_events:
                if isinstance(event, SchemaChange):
                    if event.unreadable:
                        raise ChangefeedError(Code.TABLE_NOT_READABLE, event.why)
                    changes.append(event)
            if part.rows or any(isinstance(event, Truncate) for event in part.control_events):
                ranges.append(
                    Range(
                        self.root,
                        self.selection,
                        schema,
                        after,
                        part.upto,
                        rows=part.rows,
                        on_truncate=self.on_truncate,
                    )
                )
            after = part.upto
        shapes = tuple(versions[number] for number in sorted(versions))
        return TableRanges(tuple(ranges), after, shapes, tuple(changes))

    def close(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None


def lost_columns(version: TableSchema, schema: TableSchema) -> list[str]:
    """What changes in the shape ``schema`` would not say of rows of ``version``: columns that
    ``schema`` lacks or has under another name or type."""
    lost = []
    for column in version.columns:
        index = index_of(column, schema)
        if index is None or (schema.columns[index].name, schema.columns[index].logical) != (
            column.name,
            column.logical,
        ):
            lost.append(column.name)
    return lost
