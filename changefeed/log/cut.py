"""Which rows of a unit a slice takes, and where the slice stops when there are too many.

A slice ends at one timestamp for all its tables, so it always ends between transactions. The
index is enough to take whole runs; timestamps are read from the files only for runs that a bound
divides.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from changefeed.core.schema import TableName
from changefeed.log.frame import ControlEvent, Entry, Run, Unit, stamp_of
from changefeed.log.rows import Stamp, rows_upto, stamps
from changefeed.log.store import JournalRows

#: Exclusive lower bound of each table a feed reads.
Bounds = Mapping[TableName, Stamp]
#: Greater than every timestamp.
_NEVER: Stamp = (np.iinfo(np.int64).max, 0)


@dataclass(frozen=True, slots=True)
class RunPart:
    """Rows ``[start, stop)`` of a run."""

    run: Run
    start: int
    stop: int

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self.stop - self.start

    @property
    def bytes(self) -> int:
        """The share of these rows in the size of the run."""
        m = self.run.measure
        return m.bytes * self.rows // m.rows


def select(
    unit: Unit, bounds: Bounds, upto: Stamp, store: JournalRows
) -> Iterator[tuple[TableName, RunPart | ControlEvent]]:
    """The rows and control events of the tables above their bounds and at or below ``upto``.

    Those of one table are in log order.
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


def _take(
    entry: Entry, after: Stamp, upto: Stamp, store: JournalRows
) -> RunPart | ControlEvent | None:
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
    return RunPart(entry, start, stop) if start < stop else None


def last_fitting(parts: list[RunPart], max_rows: int, max_bytes: int, store: JournalRows) -> Stamp:
    """The last timestamp at which a slice of ``parts``, which exceed the limits, may end.

    Everything up to it is within the limits. If the first transaction alone exceeds them, the
    result is the timestamp of that transaction.
    """
    loaded: list[RunPart] = []
    limit = _NEVER
    rows = size = 0
    for first, part in sorted(((_first(p, store), p) for p in parts), key=lambda found: found[0]):
        if rows > max_rows or size > max_bytes:
            # The rows from here on are not loaded, so a later end might exceed the limits.
            limit = first
            break
        loaded.append(part)
        rows += part.rows
        size += part.bytes
    wall, logical, weight = _columns(loaded, store)
    fitting = min(max_rows, int(np.searchsorted(np.cumsum(weight), max_bytes, side="right")))
    if fitting < len(wall):
        limit = min(limit, (int(wall[fitting]), int(logical[fitting])))
    count = rows_upto(wall, logical, (limit[0], limit[1] - 1))
    at = max(count - 1, 0)
    return int(wall[at]), int(logical[at])


def _first(part: RunPart, store: JournalRows) -> Stamp:
    if not part.start:
        return part.run.measure.first
    wall, logical = stamps(store.stamps(part.run))
    return int(wall[part.start]), int(logical[part.start])


def _columns(
    parts: list[RunPart], store: JournalRows
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[np.float64]]:
    """The timestamps and sizes of the rows, ordered by timestamp."""
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
