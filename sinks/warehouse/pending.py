"""Rows that wait for the next commit."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from changefeed.core.clock import Clock
from sinks.merged.applied import NOTHING_APPLIED, AppliedVersion
from sinks.merged.fold import lacking
from sinks.merged.history import ORDER
from sinks.merged.policy import MergeMode
from sinks.merged.rows import last_of
from sinks.warehouse.dialect import Dialect, Warehouse
from sinks.warehouse.staging import MISSING, SEQUENCE, TargetShape, check_values
from sinks.warehouse.tables import StagedRows, TargetTable


@dataclass
class PendingRows:
    """Rows of one table and shape since the last commit, of changes or of a scan.

    Attributes:
        batch: the ``_batch_id`` of the rows.
        mode: how the table is kept.
        staging: the table that they are loaded into; empty: they stay in memory.
        rows: how many were loaded; ``loads``: in how many loads.
        missing: places of columns that the source did not send in some row.
        top: the last change.
        spilled: those in files, before those in memory.
        buffer: those that are not loaded yet, and their size ``buffered``.
    """

    table: TargetTable
    shape: TargetShape
    scan: bool
    batch: int
    mode: MergeMode
    staging: str = ""
    rows: int = 0
    loads: int = 0
    missing: frozenset[int] = frozenset()
    top: AppliedVersion = NOTHING_APPLIED
    spilled: list[pa.Table] = field(default_factory=list)
    buffer: list[pa.Table] = field(default_factory=list)
    buffered: int = 0

    def add(self, rows: pa.Table, dialect: Dialect) -> None:
        """Take rows of a batch.

        Raises:
            ChangefeedError: CF5006, the target cannot hold a value.
        """
        staged = self.shape.staged(rows, self.batch)
        check_values(self.shape, staged, dialect)
        self.top = self.top.latest(last_of(staged[SEQUENCE], staged[ORDER]))
        self.buffer.append(staged)
        self.buffered += staged.nbytes

    @property
    def folds(self) -> bool:
        """Whether a later row may change what is to be loaded of one."""
        every = MergeMode.APPEND if self.scan else None
        return self.mode not in (MergeMode.COUNT, every)

    def spill(self, folder: str) -> None:
        """The rows in memory go into a file of this folder. It loses its name: it exists as long as
        it is mapped here."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        path = Path(folder) / f"round-{self.batch}-{len(self.spilled)}.arrow"
        rows = pa.concat_tables(self.buffer)
        with pa.ipc.new_file(str(path), rows.schema) as file:
            file.write_table(rows)
        self.spilled.append(pa.ipc.open_file(pa.memory_map(str(path))).read_all())
        path.unlink()
        self.buffer, self.buffered = [], 0

    def gathered(self) -> pa.Table:
        """The rows that are not loaded yet."""
        rows = pa.concat_tables([*self.spilled, *self.buffer])
        return rows if self.spilled else rows.combine_chunks()

    def to_load(self, rows: int, size: int) -> Iterator[pa.Table]:
        """What is to be loaded of the rows, in tables of so many rows and bytes, or few more."""
        if not (self.spilled or self.buffer):
            return
        gathered = self.gathered()
        step = max(1, min(rows, gathered.num_rows * size // max(1, gathered.nbytes)))
        if not self.folds:
            self.missing |= lacking(gathered[MISSING])
            for start in range(0, gathered.num_rows, step):
                yield gathered.slice(start, step)
            return
        folded = self.shape.folded(gathered, self.mode, self.table.d)
        for start in range(0, len(folded.rows), step):
            found = self.shape.taken(gathered, folded.at(slice(start, start + step)))
            self.missing |= lacking(found[MISSING])
            yield found

    def load_id(self, node: str) -> str:
        """The name of the next load, of a process (:attr:`sinks.base.SinkContext.node`)."""
        return f"{node}_{self.batch}_{self.loads}"

    def clear(self) -> None:
        """The rows have gone where they belong."""
        self.spilled, self.buffer, self.buffered = [], [], 0

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
