"""Merging sealed journals: many frames become one unit, small rows of a table become long runs.

Journals have levels, as in a log-structured merge tree: journals as written (level 0) are merged
as soon as they are sealed, and ``merge_fan`` neighbours of one level make one journal of the next
level. A table gets a Parquet file of its own only when it has ``pack_bytes`` in the range; the rows
of all other tables stay together in the journal file. So the number of files depends on the number
of bytes, not of tables. Large segments are kept as they are.

The result is an ordinary journal with a single unit: a few frames without a frontier, then one
with the frontier of the last merged journal. The result contains no heartbeats.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Final

import pyarrow as pa

from changefeed.core.durable import sync_path
from changefeed.core.events import Ddl, Truncate
from changefeed.core.faults import Point, fault_point
from changefeed.core.schema import TableName
from changefeed.log.draft import COMMIT_GROUP, FrameBuilder, commit_batch
from changefeed.log.frame import (
    NEW,
    OLD,
    CommitExtent,
    ControlEvent,
    Entry,
    RowGroup,
    Run,
    ShapeCache,
    Unit,
    UnitReader,
)
from changefeed.log.journal import FIRST_FRAME, journal_name
from changefeed.log.ledger import SealedJournal
from changefeed.log.live import LiveJournal
from changefeed.log.rows import Measure
from changefeed.log.segment import SegmentWriter, group_size
from changefeed.log.settings import LogSettings
from changefeed.log.store import JournalRows

#: A frame of a merged journal is closed when its body has this many bytes.
_FRAME_BYTES: Final = 8 * 1024 * 1024

#: Inline runs are merged up to this size, because a reader that has caught up decodes a whole run.
_INLINE_BYTES: Final = 2 * 1024 * 1024
_INLINE_ROWS: Final = 16_384


def plan(
    sealed: tuple[SealedJournal, ...], settings: LogSettings
) -> tuple[SealedJournal, ...] | None:
    """The next neighbours to merge, or None.

    A merged journal spans at most an eighth of ``gc_ttl``, because retention drops it whole.
    """
    for level, run in groupby(sealed, key=lambda s: s.level):
        for part in _fitting(list(run), settings):
            if level == 0 or len(part) >= settings.merge_fan:
                return tuple(part)
    return None


def _fitting(run: list[SealedJournal], settings: LogSettings) -> Iterator[list[SealedJournal]]:
    """Divide a run of neighbours into parts that stay within the limits of a merge."""
    span = int(settings.gc_ttl * 1e9 / 8)
    part: list[SealedJournal] = []
    for item in run:
        size = sum(s.length for s in part) + item.length
        wide = bool(part) and item.upto[0] - part[0].after[0] > span
        full = len(part) >= settings.merge_fan or size > settings.merge_bytes
        if part and (wide or full):
            yield part
            part = []
        part.append(item)
    if part:
        yield part


def _latest(run: tuple[SealedJournal, ...]) -> int | None:
    """The time from which the age of a merged journal counts: that of its youngest part."""
    known = [item.since for item in run if item.since is not None]
    return max(known) if len(known) == len(run) else None


class JournalMerge:
    """Merges sealed journals into a new one. The caller updates the ledger."""

    def __init__(
        self, root: Path, number: int, run: tuple[SealedJournal, ...], settings: LogSettings
    ) -> None:
        self._root = root
        self._run = run
        self._settings = settings
        self._number = number
        self._store = JournalRows(root, cache_bytes=0)
        self._shapes: ShapeCache = {}
        self._made: list[str] = []
        self._kept: list[tuple[str, int]] = []
        self._journal: LiveJournal | None = None
        self._draft: FrameBuilder | None = None

    def run(self) -> SealedJournal:
        """Write the merged journal; durable on return.

        Raises:
            OSError: the disk is full; call :meth:`discard`.
            ChangefeedError: CF3001, a journal to be merged is damaged.
        """
        first, last = self._run[0], self._run[-1]
        self._made.append(journal_name(self._number))
        self._journal = LiveJournal.create(self._root, self._number, first.after)
        units = [unit for sealed in self._run for unit in self._units(sealed)]
        self._tables(units)
        self._commits(units)
        self._finish_frame(last=True)
        made = self._journal.seal(first.after, last.frontier)
        self._journal.close()
        return SealedJournal(
            number=made.number,
            after=made.after,
            frontier=made.frontier,
            length=made.length,
            rows=sum(s.rows for s in self._run),
            segments=(*self._kept, *made.segments),
            level=max(s.level for s in self._run) + 1,
            since=_latest(self._run),
        )

    def discard(self) -> None:
        """Remove whatever was written."""
        if self._journal is not None:
            self._journal.close()
        if self._draft is not None:
            self._draft.discard()
        if self._journal is not None:
            self._made += [name for name, _ in self._journal.segments]
        for name in self._made:
            (self._root / name).unlink(missing_ok=True)

    def _units(self, sealed: SealedJournal) -> Iterator[Unit]:
        reader = UnitReader(sealed.number, sealed.after, self._shapes)
        file = self._store.journal(sealed.number)
        return reader.units(file.frames(FIRST_FRAME, sealed.length))

    # ------------------------------------------------------------------------------- tables

    def _tables(self, units: list[Unit]) -> None:
        tables: dict[TableName, list[Entry]] = {}
        for unit in units:
            for name, entries in unit.tables.items():
                tables.setdefault(name, []).extend(entries)
        for name, entries in tables.items():
            for _, group in groupby(entries, key=_kind):
                part = list(group)
                self._controls(name, [e for e in part if not isinstance(e, Run)])
                self._runs([e for e in part if isinstance(e, Run)])

    def _controls(self, table: TableName, events: list[ControlEvent]) -> None:
        for event in events:
            if isinstance(event, Truncate):
                self._frame().truncate(event)
            elif isinstance(event, Ddl):
                self._frame().ddl(event)
            else:
                self._frame().schema_change(event, OLD if table == event.old.table else NEW)

    def _runs(self, runs: list[Run]) -> None:
        """Keep neighbouring runs of one table and version, write them to Parquet, or merge them
        inline."""
        for keep, group in groupby(runs, key=self._is_kept):
            part = list(group)
            if keep or _is_one_file(part):
                self._keep(part)
            elif self._deserves_file(part):
                self._to_segments(part)
            else:
                self._to_inline(part)

    def _deserves_file(self, runs: list[Run]) -> bool:
        settings = self._settings
        rows = sum(r.measure.rows for r in runs)
        size = sum(r.measure.bytes for r in runs)
        return rows >= settings.segment_rows or size >= settings.pack_bytes

    def _is_kept(self, run: Run) -> bool:
        return isinstance(run.where, RowGroup) and run.where.size >= self._settings.segment_keep

    def _keep(self, runs: list[Run]) -> None:
        draft = self._frame()
        number, _ = draft.declare(runs[0].schema)
        for _, group in groupby(runs, key=lambda r: r.where.file):
            part = list(group)
            kept = [r.where for r in part if isinstance(r.where, RowGroup)]
            draft.keep_segment(number, kept, [r.measure for r in part])
            self._kept.append((kept[0].file, kept[0].size))

    def _to_segments(self, runs: list[Run]) -> None:
        rows, size = sum(r.measure.rows for r in runs), sum(r.measure.bytes for r in runs)
        step = group_size(rows, size, self._settings)
        writer: SegmentWriter | None = None
        draft = self._frame()
        number, shape = draft.declare(runs[0].schema)
        try:
            for table, measured in self._blocks(runs, step, size):
                writer = writer or draft.open_segment(shape)
                fault_point(Point.LOG_COMPACT_WRITE)
                writer.add(table, measured)
                if writer.bytes >= self._settings.segment_target:
                    draft.close_segment(number, writer)
                    writer = None
            if writer is not None:
                draft.close_segment(number, writer)
        except BaseException:
            if writer is not None:
                writer.discard()
            raise

    def _to_inline(self, runs: list[Run]) -> None:
        size = sum(r.measure.bytes for r in runs)
        rows = sum(r.measure.rows for r in runs)
        step = max(1, min(_INLINE_ROWS, _INLINE_BYTES * rows // max(size, 1)))
        for table, measured in self._blocks(runs, step, size):
            draft = self._frame()
            number, _ = draft.declare(runs[0].schema)
            fault_point(Point.LOG_COMPACT_WRITE)
            draft.inline(number, table.combine_chunks().to_batches()[0], measured)
            draft.rows += measured.rows

    def _blocks(self, runs: list[Run], step: int, size: int) -> Iterator[tuple[pa.Table, Measure]]:
        """The rows of runs in blocks of ``step`` rows, each with its measure."""
        clean = runs[0].measure.clean
        for run in runs:
            clean &= run.measure.clean
        held: list[pa.Table] = []
        count = 0
        for run in runs:
            held.append(self._store.rows(run))
            count += run.measure.rows
            while count >= step:
                block = pa.concat_tables(held)
                yield block.slice(0, step), _remeasure(block.slice(0, step), clean)
                held, count = [block.slice(step)], count - step
        if count:
            block = pa.concat_tables(held)
            yield block, _remeasure(block, clean)

    # ------------------------------------------------------------------------------ commits

    def _commits(self, units: list[Unit]) -> None:
        held: list[pa.RecordBatch] = []
        count = 0
        for unit in units:
            for commits in unit.commits:
                if isinstance(commits, CommitExtent):
                    batch = self._store.commits(commits)
                else:
                    batch = commit_batch(commits)
                held.append(batch)
                count += len(batch)
            if count >= COMMIT_GROUP:
                self._frame().commit_batch(pa.concat_batches(held))
                held, count = [], 0
        if held:
            self._frame().commit_batch(pa.concat_batches(held))

    # ------------------------------------------------------------------------------- frames

    def _frame(self) -> FrameBuilder:
        """The frame that is being filled."""
        if self._draft is not None and self._draft.body_length >= _FRAME_BYTES:
            self._finish_frame(last=False)
        if self._draft is None:
            journal = self._live()
            self._draft = FrameBuilder(
                self._root, journal.number, journal.tally.ordinal, journal.declared, self._settings
            )
        return self._draft

    def _live(self) -> LiveJournal:
        if self._journal is None:
            raise RuntimeError("the merge has not begun")
        return self._journal

    def _finish_frame(self, *, last: bool) -> None:
        draft, journal = self._frame() if last else self._draft, self._live()
        if draft is None:
            return
        frontier = self._run[-1].frontier if last else None
        if draft.segments:
            sync_path(self._root)
        journal.append(draft, draft.encode(journal.sync, frontier, None), frontier)
        self._draft = None


def _is_one_file(runs: list[Run]) -> bool:
    """Whether the runs are one segment already, which need not be rewritten."""
    files = {r.where.file for r in runs}
    return len(files) == 1 and isinstance(runs[0].where, RowGroup)


def _kind(entry: Entry) -> object:
    """Neighbouring entries of the same kind may be merged: rows of one schema version."""
    if isinstance(entry, ControlEvent):
        return "control"
    return entry.schema.version, id(entry.shape)


def _remeasure(rows: pa.Table, clean: int) -> Measure:
    wall, logical, seq = (rows.column(n) for n in ("wall", "logical", "seq"))
    last = len(rows) - 1
    return Measure(
        rows=len(rows),
        bytes=rows.nbytes,
        first=(wall[0].as_py(), logical[0].as_py()),
        last=(wall[last].as_py(), logical[last].as_py()),
        first_seq=seq[0].as_py(),
        last_seq=seq[last].as_py(),
        clean=clean,
        superseded=not _all_last(rows),
        unsent=rows.column("missing").null_count < len(rows),
    )


def _all_last(rows: pa.Table) -> bool:
    return all(chunk.true_count == len(chunk) for chunk in rows.column("last").chunks)
