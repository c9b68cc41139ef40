"""Which rows of a unit a slice takes, and where it ends, against rows in a list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from changefeed.core.clock import Timestamp
from changefeed.core.events import Truncate
from changefeed.core.schema import TableName
from changefeed.log.cut import RunPart, last_fitting, select
from changefeed.log.frame import Entry, Run, Unit
from changefeed.log.rows import Measure, Stamp
from changefeed.log.store import JournalRows
from tests.helpers.log_samples import narrow

TABLES = [narrow(name).table for name in "abc"]
END = (99, 0)


@dataclass(frozen=True)
class MadeRun:
    """A run whose rows have these timestamps."""

    stamps: tuple[Stamp, ...]
    bytes: int

    def run(self) -> Run:
        first, last = self.stamps[0], self.stamps[-1]
        measure = Measure(len(self.stamps), self.bytes, first, last, 0, 0, 0, False, False)
        return Run(cast(Any, None), cast(Any, self), measure)


class MadeStore:
    """Knows the timestamps of runs, and counts who asks."""

    def __init__(self) -> None:
        self.asked: list[Run] = []

    def stamps(self, run: Run) -> pa.RecordBatch:
        self.asked.append(run)
        made = cast(MadeRun, run.where).stamps
        return pa.record_batch(
            {
                "wall": pa.array([s[0] for s in made], pa.int64()),
                "logical": pa.array([s[1] for s in made], pa.int32()),
            }
        )


def store() -> JournalRows:
    return cast(JournalRows, MadeStore())


def unit(tables: Mapping[TableName, Sequence[Entry]]) -> Unit:
    return Unit((0, 0), END, cast(Any, None), {t: [*e] for t, e in tables.items()}, ())


def run(*stamps: Stamp, size: int = 100) -> Run:
    return MadeRun(stamps, size).run()


def mark(at: Stamp) -> Truncate:
    return Truncate(narrow("a"), Timestamp(*at), 1)


def rows_of(part: RunPart) -> list[Stamp]:
    """The timestamps of its rows."""
    return list(cast(MadeRun, part.run.where).stamps[part.start : part.stop])


stamps = st.tuples(st.integers(1, 6), st.integers(0, 2))
runs = st.builds(
    lambda found, size: MadeRun(tuple(sorted(found)), size).run(),
    st.lists(stamps, min_size=1, max_size=6),
    st.integers(1, 60),
)
entries = st.lists(st.one_of(runs, stamps.map(mark)), max_size=4)
units = st.fixed_dictionaries({}, optional={table: entries for table in TABLES}).map(unit)
bounds = st.fixed_dictionaries({}, optional={table: stamps for table in TABLES})


@settings(deadline=None)
@given(units, bounds, stamps)
def test_a_slice_takes_what_lies_above_its_bounds(
    found: Unit, after: dict[TableName, Stamp], upto: Stamp
) -> None:
    def wanted(table: TableName) -> list[Stamp]:
        of_table: list[Stamp] = []
        for entry in found.tables[table]:
            if isinstance(entry, Run):
                of_table += cast(MadeRun, entry.where).stamps
            else:
                of_table.append((entry.at.wall, entry.at.logical))
        return [s for s in of_table if after[table] < s <= upto]

    taken: dict[TableName, list[Stamp]] = {}
    for table, item in select(found, after, upto, store()):
        at = taken.setdefault(table, [])
        if isinstance(item, RunPart):
            assert item.rows > 0
            at += rows_of(item)
        else:
            at.append((item.at.wall, item.at.logical))
    assert taken == {t: wanted(t) for t in found.tables if t in after and wanted(t)}


def test_files_are_read_only_for_runs_that_straddle_a_bound() -> None:
    """A feed that is caught up reads no timestamps of what it has."""
    made = MadeStore()
    inside, before, behind = run((3, 0), (5, 0)), run((1, 0), (2, 9)), run((5, 1), (8, 0))
    table = unit({TABLES[0]: [before, inside, behind]})
    taken = list(select(table, {TABLES[0]: (2, 9)}, (5, 0), cast(JournalRows, made)))
    assert [part for _, part in taken] == [RunPart(inside, 0, 2)]
    assert made.asked == []
    list(select(table, {TABLES[0]: (3, 0)}, (5, 0), cast(JournalRows, made)))
    list(select(table, {TABLES[0]: (2, 9)}, (4, 9), cast(JournalRows, made)))
    assert made.asked == [inside, inside]


def test_a_part_has_its_share_of_the_bytes() -> None:
    found = run((1, 0), (2, 0), (3, 0), (4, 0), size=1000)
    assert [RunPart(found, 0, 4).bytes, RunPart(found, 1, 2).bytes] == [1000, 250]


def size_upto(parts: Sequence[RunPart], end: Stamp) -> tuple[int, float]:
    """Rows and bytes of a slice that ends there."""
    found = [(part.bytes / part.rows) for part in parts for s in rows_of(part) if s <= end]
    return len(found), sum(found)


@settings(deadline=None)
@given(
    st.fixed_dictionaries(dict.fromkeys(TABLES, st.lists(runs, min_size=1, max_size=3))),
    st.fixed_dictionaries(dict.fromkeys(TABLES, stamps)),
    st.integers(1, 6),
    st.integers(1, 100),
)
def test_a_slice_that_ends_early_fits_its_limits_or_is_one_transaction(
    tables: dict[TableName, list[Entry]],
    after: dict[TableName, Stamp],
    max_rows: int,
    max_bytes: int,
) -> None:
    """Tables have bounds of their own: what a table has above its bound may begin in the middle
    of a run whose first row is the oldest of all."""
    taken = [item for _, item in select(unit(tables), after, END, store())]
    parts = [item for item in taken if isinstance(item, RunPart)]
    assume(sum(p.rows for p in parts) > max_rows or sum(p.bytes for p in parts) > max_bytes)
    end = last_fitting(parts, max_rows, max_bytes, store())
    everything = sorted({s for part in parts for s in rows_of(part)})
    assert end in everything
    rows, size = size_upto(parts, end)
    assert end == everything[0] or (rows <= max_rows and size <= max_bytes + 1e-6)


def parts(*found: Run) -> list[RunPart]:
    taken = select(unit({TABLES[0]: list(found)}), {TABLES[0]: (0, 0)}, END, store())
    return [item for _, item in taken if isinstance(item, RunPart)]


def test_limits_may_be_reached() -> None:
    """With as many rows, or bytes, as a slice may have, it ends behind the last of them."""
    found = parts(run((1, 0), (5, 0)), run((3, 0), (7, 0)), run((8, 0)))
    assert last_fitting(found, 2, 10**9, store()) == (3, 0)
    assert last_fitting(found, 10**9, 100, store()) == (3, 0)
    assert last_fitting(found, 10**9, 99, store()) == (1, 0)


def test_a_slice_ends_before_a_transaction_that_does_not_fit() -> None:
    """Instants of one wall time, and of one transaction, are told apart."""
    found = parts(run((1, 0), (1, 1), (1, 2), (1, 2), (2, 0)))
    ends = [last_fitting(found, rows, 10**9, store()) for rows in (1, 2, 3, 4)]
    assert ends == [(1, 0), (1, 1), (1, 1), (1, 2)]


def test_what_was_not_looked_at_is_not_passed() -> None:
    """The first run has more than fits; the second begins in its middle."""
    found = parts(run((1, 0), (2, 0), (6, 0), (7, 0)), run((6, 0), (8, 0)))
    assert last_fitting(found, 3, 10**9, store()) == (2, 0)
