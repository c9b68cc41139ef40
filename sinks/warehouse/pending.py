"""Rows that wait for the next commit."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import pyarrow as pa

from changefeed.core.clock import Clock
from sinks.merged.applied import NOTHING_APPLIED, AppliedVersion
from sinks.merged.history import ORDER
from sinks.merged.rows import last_of
from sinks.warehouse.dialect import Dialect, Warehouse
from sinks.warehouse.staging import SEQUENCE, TargetShape, check_values
from sinks.warehouse.tables import StagedRows, TargetTable


@dataclass
class PendingRows:
    """Rows of one table and shape since the last commit, of changes or of a scan.

    Attributes:
        batch: the ``_batch_id`` of the rows.
        staging: the table that they are loaded into; empty: they stay in memory.
        rows: how many; ``loads``: in how many loads so far.
        missing: places of columns that the source did not send in some row.
        top: the last change.
        buffer: those that are not loaded yet, and their size ``buffered``.
    """

    table: TargetTable
    shape: TargetShape
    scan: bool
    batch: int
    staging: str = ""
    rows: int = 0
    loads: int = 0
    missing: frozenset[int] = frozenset()
    top: AppliedVersion = NOTHING_APPLIED
    buffer: list[pa.Table] = field(default_factory=list)
    buffered: int = 0

    def add(self, rows: pa.Table, dialect: Dialect) -> None:
        """Take rows of a batch.

        Raises:
            ChangefeedError: CF5006, the target cannot hold a value.
        """
        staged = self.shape.staged(rows, self.batch)
        check_values(self.shape, staged, dialect)
        self.missing |= self.shape.missing(staged)
        self.top = self.top.latest(last_of(staged[SEQUENCE], staged[ORDER]))
        self.rows += staged.num_rows
        self.buffer.append(staged)
        self.buffered += staged.nbytes

    def gathered(self) -> pa.Table:
        """The rows of the buffer."""
        return pa.concat_tables(self.buffer)

    def clear(self) -> None:
        """The rows of the buffer have gone where they belong."""
        self.buffer, self.buffered = [], 0

    def staged(self, warehouse: Warehouse) -> StagedRows:
        """The rows in their staging table."""
        return StagedRows(
            shape=self.shape,
            batch=self.batch,
            staging=warehouse.name(self.staging),
            rows=self.rows,
            scan=self.scan,
            missing=self.missing,
            top=self.top,
        )


_last_batch = 0
_batch_lock = threading.Lock()


def new_batch(clock: Clock) -> int:
    """Microseconds since 1970, never twice in a process."""
    global _last_batch
    with _batch_lock:
        _last_batch = max(_last_batch + 1, clock.now().wall // 1_000)
        return _last_batch
