"""Which rows of a unit a slice takes, and where it stops when they are too many.

A slice ends at a timestamp, the same for all its tables, so it always ends between
transactions. Whole runs are taken by what the index knows; timestamps are read from the files
only of runs that straddle a bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from changefeed.core.schema import TableName
from changefeed.log.frame import Entry, Mark, Run, Unit, stamp_of
from changefeed.log.rows import Stamp, rows_upto, stamps
from changefeed.log.store import Store

#: Exclusive lower bound of each table a feed reads.
Bounds = Mapping[TableName, Stamp]


@dataclass(frozen=True, slots=True)
class Part:
    """Rows ``[start, stop)`` of a run."""

    run: Run
    start: int
    stop: int

    @property
    def rows(self) -> int:
        """How many."""
        return self.stop - self.start

    @property
    def bytes(self) -> int:
        """Their share of the run's size."""
        m = self.run.measure
        return m.bytes if self.rows == m.rows else m.bytes * self.rows // m.rows


def select(
    unit: Unit, bounds: Bounds, upto: Stamp, store: Store
) -> Iterator[tuple[TableName, Part | Mark]]:
    """Rows and marks of the tables above their bounds and at or below ``upto``.

    In log order within a table.
    """
    if len(bounds) <= len(unit.tables):
        names = [name for name in bounds if name in unit.tables]
    else:
        names = [name for name in unit.tables if name in bounds]
    for name in names:
        for entry in unit.tables[name]:
            taken = _take(entry, bounds[name], upto, store)
            if taken is not None:
                yield name, taken


def _take(entry: Entry, after: Stamp, upto: Stamp, store: Store) -> Part | Mark | None:
    if not isinstance(entry, Run):
        return entry if after < stamp_of(entry.at) <= upto else None
    m = entry.measure
    if m.last <= after or m.first > upto:
        return None
    start, stop = 0, m.rows
    if m.first <= after or m.last > upto:
        wall, logical = stamps(store.stamps(entry))
        if m.first <= after:
            start = rows_upto(wall, logical, after)
        if m.last > upto:
            stop = rows_upto(wall, logical, upto)
    return Part(entry, start, stop) if start < stop else None


def last_fitting(parts: list[Part], max_rows: int, max_bytes: int, store: Store) -> Stamp:
    """The last timestamp at which a slice of ``parts`` may end.

    Everything up to it fits the limits; or, when already the first transaction does not, it is
    the timestamp of that transaction alone.
    """
    loaded: list[Part] = []
    fence: Stamp | None = None
    rows = size = 0
    for part in sorted(parts, key=lambda p: p.run.measure.first):
        if rows > max_rows or size > max_bytes:
            # What is not loaded starts here: no end beyond it is proven to fit.
            fence = part.run.measure.first
            break
        loaded.append(part)
        rows += part.rows
        size += part.bytes
    wall, logical, weight = _columns(loaded, store)
    fitting = min(max_rows, int(np.searchsorted(np.cumsum(weight), max_bytes, side="right")))
    limit = (int(wall[fitting]), int(logical[fitting])) if fitting < len(wall) else fence
    if limit is None:
        return int(wall[-1]), int(logical[-1])
    if fence is not None:
        limit = min(limit, fence)
    count = rows_upto(wall, logical, (limit[0], limit[1] - 1))
    at = max(count - 1, 0)
    return int(wall[at]), int(logical[at])


def _columns(
    parts: list[Part], store: Store
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[np.float64]]:
    """Timestamps and sizes of the rows, in the order of the timestamps."""
    columns: list[tuple[Any, Any, Any]] = []
    for part in parts:
        wall, logical = stamps(store.stamps(part.run))
        share = np.full(part.rows, part.bytes / part.rows)
        columns.append((wall[part.start : part.stop], logical[part.start : part.stop], share))
    walls: Any = np.concatenate([c[0] for c in columns])
    logicals: Any = np.concatenate([c[1] for c in columns])
    weights: Any = np.concatenate([c[2] for c in columns])
    order = np.lexsort((logicals, walls))
    return walls[order], logicals[order], weights[order]
