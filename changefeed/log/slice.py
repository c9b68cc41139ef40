"""A slice, as a feed gets it: pieces of rows, and control events, table by table in log order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from changefeed.core.clock import Timestamp
from changefeed.core.events import SchemaChange
from changefeed.core.schema import TableName, TableSchema
from changefeed.log.cut import RunPart
from changefeed.log.frame import ControlEvent, RowGroup
from changefeed.log.journal import DamagedFile
from changefeed.log.settings import LogSettings
from changefeed.log.store import JournalRows

_LIMITS = LogSettings()


class Finder(Protocol):
    """Finds the rows of a piece again after compaction has moved them."""

    def find(self, piece: LogPiece) -> pa.Table:
        """The rows of ``piece``."""
        ...


@dataclass(frozen=True, slots=True)
class LogPiece:
    """Rows of one table and schema version: at most 128k rows and 64 MB.

    Rows in a Parquet segment have ``path`` and ``row_group``; any reader of Parquet finds exactly
    these rows with ``seq BETWEEN first_seq AND last_seq`` (sequence numbers rise through a table's
    log). Rows inside the journal have no path. :meth:`load` works for both, even after the file
    was merged into another one.

    Attributes:
        schema: schema version of the rows.
        rows: number of rows.
        bytes: approximate size in memory.
        has_superseded: some row may have ``last`` false.
        has_unsent: some row may lack a value that the source did not send.
        clean: ``a*``/``b*`` columns of text form in which no value holds a character that JSON
            escapes (``"``, ``\\``, below 0x20). Raw columns are never listed: they are JSON.
        first, last: timestamps of the first and last row.
        whole: the piece has all rows of the row group.
    """

    schema: TableSchema
    rows: int
    bytes: int
    has_superseded: bool
    has_unsent: bool
    clean: frozenset[str]
    first: Timestamp
    last: Timestamp
    first_seq: int
    last_seq: int
    path: Path | None
    row_group: int | None
    whole: bool
    _parts: tuple[RunPart, ...] = field(repr=False)
    _store: JournalRows = field(repr=False, compare=False)
    _finder: Finder = field(repr=False, compare=False)

    def load(self) -> pa.Table:
        """The rows, in one chunk.

        Raises:
            ChangefeedError: CF3001, the log is damaged; CF3002, retention removed the rows.
        """
        try:
            return load_parts(self._parts, self._store)
        except (FileNotFoundError, DamagedFile):
            return self._finder.find(self)


def load_parts(parts: Iterable[RunPart], store: JournalRows) -> pa.Table:
    """The rows of parts of one shape, in one chunk; raises as :meth:`JournalRows.rows`."""
    tables = [store.rows(p.run).slice(p.start, p.rows) for p in parts]
    return tables[0] if len(tables) == 1 else pa.concat_tables(tables).combine_chunks()


@dataclass(frozen=True, slots=True)
class Slice:
    """The part of the log that a feed asked for, within the limits.

    Attributes:
        upto: the feed's next progress: this slice and the ones before hold everything at or below
            it that the feed wants. It divides no transaction.
        events: pieces and control events, table by table, in log order within a table.
    """

    upto: Timestamp
    events: tuple[LogPiece | ControlEvent, ...] = ()

    @property
    def pieces(self) -> list[LogPiece]:
        """The rows."""
        return [e for e in self.events if isinstance(e, LogPiece)]

    @property
    def control_events(self) -> list[ControlEvent]:
        """Truncations, schema changes and statements in the order of their timestamps."""
        events = [e for e in self.events if isinstance(e, ControlEvent)]
        return sorted(events, key=lambda m: (m.at, m.seq))

    @property
    def rows(self) -> int:
        """The number of rows in all pieces."""
        return sum(p.rows for p in self.pieces)

    @property
    def bytes(self) -> int:
        """The size of all pieces."""
        return sum(p.bytes for p in self.pieces)


class Assembly:
    """Turns parts into pieces; joins small neighbouring parts of one table and version."""

    def __init__(self, store: JournalRows, finder: Finder) -> None:
        self._store = store
        self._finder = finder
        self._tables: dict[TableName, list[RunPart | ControlEvent]] = {}

    def add(self, table: TableName, taken: RunPart | ControlEvent) -> None:
        """Take the next part or control event of a table."""
        self._tables.setdefault(table, []).append(taken)

    def events(self) -> Iterator[LogPiece | ControlEvent]:
        """The pieces and control events, table by table."""
        for table, entries in self._tables.items():
            held: list[RunPart] = []
            for entry in entries:
                if held and not (isinstance(entry, RunPart) and _joins(held, entry)):
                    yield self._piece(held)
                    held = []
                if isinstance(entry, RunPart):
                    held.append(entry)
                else:
                    yield _seen_from(table, entry)
            if held:
                yield self._piece(held)

    def _piece(self, parts: list[RunPart]) -> LogPiece:
        first, last = parts[0], parts[-1]
        shape = first.run.shape
        clean = first.run.measure.clean
        for part in parts:
            clean &= part.run.measure.clean
        where = first.run.where
        parquet = isinstance(where, RowGroup)
        start, end = self._edge(first, first.start), self._edge(last, last.stop - 1)
        return LogPiece(
            schema=shape.schema,
            rows=sum(p.rows for p in parts),
            bytes=sum(p.bytes for p in parts),
            has_superseded=any(p.run.measure.superseded for p in parts),
            has_unsent=any(p.run.measure.unsent for p in parts),
            clean=shape.clean_names(clean),
            first=start[0],
            last=end[0],
            first_seq=start[1],
            last_seq=end[1],
            path=self._store.root / where.file if isinstance(where, RowGroup) else None,
            row_group=where.index if isinstance(where, RowGroup) else None,
            whole=parquet and first.rows == first.run.measure.rows,
            _parts=tuple(parts),
            _store=self._store,
            _finder=self._finder,
        )

    def _edge(self, part: RunPart, row: int) -> tuple[Timestamp, int]:
        """The timestamp and sequence number of one row, from the index if it has them."""
        m = part.run.measure
        if row == 0:
            return Timestamp(*m.first), m.first_seq
        if row == m.rows - 1:
            return Timestamp(*m.last), m.last_seq
        rows = self._store.stamps(part.run)
        wall, logical, seq = (rows.column(n)[row].as_py() for n in ("wall", "logical", "seq"))
        return Timestamp(wall, logical), seq


def _seen_from(table: TableName, event: ControlEvent) -> ControlEvent:
    """The event as readers of a table see it: they read a rename under both names."""
    if not isinstance(event, SchemaChange) or table == event.old.table:
        return event
    return replace(event, old=replace(event.old, table=table), arrived=True)


def _joins(held: list[RunPart], part: RunPart) -> bool:
    """Whether the part may be in one piece with those before it."""
    run = held[0].run
    if isinstance(run.where, RowGroup) or isinstance(part.run.where, RowGroup):
        return False
    if run.shape is not part.run.shape:
        return False
    rows = sum(p.rows for p in held) + part.rows
    size = sum(p.bytes for p in held) + part.bytes
    return rows <= _LIMITS.group_rows and size <= _LIMITS.group_bytes
