"""Reading a change log: by any number of processes, without a lock, with nothing stored."""

from __future__ import annotations

import os
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, TypeVar

import pyarrow as pa

from changefeed.core.clock import SYSTEM_CLOCK, Clock, Timestamp
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.events import Frontier, Position
from changefeed.core.schema import TableName
from changefeed.log.copies import drop_copy, fetch_copy
from changefeed.log.cut import RunPart, last_fitting, select
from changefeed.log.frame import (
    Run,
    ShapeCache,
    Unit,
    UnitReader,
    first_after,
    first_reaching,
    stamp_of,
)
from changefeed.log.journal import FIRST_FRAME, DamagedFile, damaged
from changefeed.log.ledger import HEAD_NAME, HEAD_SIZE, Head, Ledger, read_ledger
from changefeed.log.rows import Stamp
from changefeed.log.slice import Assembly, LogPiece, Slice, load_parts
from changefeed.log.store import JournalRows

T = TypeVar("T")

#: How often a call reads HEAD again while HEAD is being overwritten; then the next call tries.
_HEAD_ATTEMPTS: Final = 20

#: How often work is done again because compaction has replaced a file that it needs.
_MOVED_ATTEMPTS: Final = 10

#: Units of sealed journals kept in memory; about 1 kB each.
_KEPT_UNITS: Final = 50_000


class _Journal:
    """The index of one journal file, as far as it has been read."""

    __slots__ = ("_file", "_parsed", "_reader", "length", "number", "units")

    def __init__(self, number: int, after: Stamp | None, shapes: ShapeCache) -> None:
        self.number = number
        self.length = FIRST_FRAME
        self.units: list[Unit] = []
        self._parsed = FIRST_FRAME
        self._reader = UnitReader(number, after, shapes)

    def read(self, store: JournalRows) -> list[Unit]:
        """All units up to ``length``.

        Raises:
            FileNotFoundError: compaction or retention removed the file.
        """
        if self._parsed < self.length:
            frames = store.journal(self.number).frames(self._parsed, self.length)
            for frame in frames:
                unit = self._reader.add(frame)
                self._parsed = frame.end
                if unit is not None:
                    self.units.append(unit)
        return self.units


class LogReader:
    """Reads the change log of one source; may be shared by threads.

    A reader sees the log as of its last call of :meth:`refresh`.
    """

    def __init__(
        self, root: Path, cache_bytes: int = 64 * 1024 * 1024, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        """Read the log in ``root``, which need not exist yet.

        Args:
            cache_bytes: size of the cache of decoded rows, which other feeds may ask for, too.
            clock: for waits until a file of a shared log can be had.
        """
        self.root = root
        self._clock = clock
        self._store = JournalRows(root, cache_bytes)
        self._lock = threading.RLock()
        self._shapes: ShapeCache = {}
        self._journals: dict[int, _Journal] = {}
        self._ledger: Ledger | None = None
        self._head_fd = -1
        self._head = b""
        self._frontier: Frontier | None = None
        self.refresh()

    # ------------------------------------------------------------------------------ refresh

    @property
    def frontier(self) -> Frontier | None:
        """The timestamp up to which this reader sees the log, None while it is empty."""
        return self._frontier

    @property
    def oldest(self) -> Timestamp:
        """Everything above this is in the log; MAX while it is empty."""
        with self._lock:
            first = self._first_after()
        return Timestamp(*first) if first is not None else Timestamp.MAX

    @property
    def bytes(self) -> int:
        """Size of the log on disk: sealed journals with their segments, and the live one."""
        with self._lock:
            if self._ledger is None:
                return 0
            waiting = sum(g.size for g in self._ledger.garbage)
            sealed = sum(s.bytes for s in self._ledger.sealed)
            return sealed + waiting + self._journals[self._ledger.live].length

    def refresh(self) -> Frontier | None:
        """Take in what the writer has completed since the last call; return the frontier.

        Reads 36 bytes when nothing was appended, else also the headers of the new frames.

        Raises:
            ChangefeedError: CF3001, the log is damaged.
        """
        with self._lock:
            head = self._read_head()
            if head is None:
                return self._frontier
            for _ in range(_MOVED_ATTEMPTS):
                try:
                    self._adopt(head)
                    return self._frontier
                except FileNotFoundError as error:
                    # The journal was sealed, merged and removed since HEAD was read.
                    missing = error
                    head = self._read_head(again=True) or head
                except ChangefeedError:
                    self._head = b""  # not taken in: the next call meets the damage again
                    raise
            raise _gone(missing)

    def _read_head(self, *, again: bool = False) -> Head | None:
        """HEAD if it has changed (or ``again``), else None."""
        if self._head_fd < 0:
            try:
                self._head_fd = os.open(self.root / HEAD_NAME, os.O_RDONLY)
            except FileNotFoundError:
                return None
        elif os.fstat(self._head_fd).st_nlink == 0:
            # A writer overwrites HEAD in place, so it no longer writes to the file we have open.
            raise damaged(HEAD_NAME, "its files were removed while it was in use")
        for _ in range(_HEAD_ATTEMPTS):
            data = os.pread(self._head_fd, HEAD_SIZE, 0)
            if data == self._head and not again:
                return None
            head = Head.from_bytes(data)
            if head is not None:
                self._head = data
                return head
        return None

    def _adopt(self, head: Head) -> None:
        ledger = self._ledger
        if ledger is None or ledger.generation != head.generation:
            ledger = read_ledger(self.root)
            if ledger is None:
                raise damaged("LEDGER", "gone, but there is a HEAD")
            self._load(ledger)
        live = self._journals[ledger.live]
        if head.live == ledger.live:
            live.length = max(live.length, head.length)
        # Otherwise the writer has just sealed the journal that HEAD names, and will publish soon.
        units = live.read(self._store)
        self._frontier = units[-1].frontier if units else ledger.last

    def _load(self, ledger: Ledger) -> None:
        """Take a new ledger, and keep what has been read of its journals."""
        before = self._journals
        last = ledger.last
        journals: dict[int, _Journal] = {}
        for sealed in ledger.sealed:
            journal = before.get(sealed.number)
            if journal is None:
                journal = _Journal(sealed.number, sealed.after, self._shapes)
            journal.length = sealed.length
            journals[sealed.number] = journal
        live = before.get(ledger.live)
        if live is None:
            after = stamp_of(last.at) if last else None
            live = _Journal(ledger.live, after, self._shapes)
        journals[ledger.live] = live
        self._journals = journals
        self._ledger = ledger

    def _first_after(self) -> Stamp | None:
        if self._ledger is None:
            return None
        if self._ledger.sealed:
            return self._ledger.sealed[0].after
        units = self._journals[self._ledger.live].units
        if units:
            return units[0].after
        return stamp_of(self._ledger.base.at) if self._ledger.base else None

    # -------------------------------------------------------------------------------- units

    def has_nothing(self, bounds: Mapping[TableName, Timestamp], upto: Timestamp) -> bool:
        """Whether no table has rows or events above its bound, up to ``upto``, which this reader
        has seen. Asks only what is in memory: false also where the range begins before that."""
        floor, goal = stamp_of(min(bounds.values())), stamp_of(upto)
        with self._lock:
            if self._ledger is None:
                return False
            units = self._journals[self._ledger.live].units
            if not units or floor < units[0].after:
                return False
            for at in range(first_after(units, floor), len(units)):
                if units[at].after >= goal:
                    break
                if not units[at].tables.keys().isdisjoint(bounds):
                    return False
            return True

    def tables_beyond(self, at: Timestamp) -> set[TableName]:
        """The tables that have rows or events above a timestamp which this reader has seen."""
        with self._lock:
            return {name for unit in self._units(stamp_of(at)) for name in unit.tables}

    def _units(self, after: Stamp) -> Iterator[Unit]:
        """All units that reach above ``after``, in order; call with the lock held."""
        ledger = self._ledger
        if ledger is None:
            return
        first = bisect_left(ledger.sealed, True, key=lambda s: s.upto > after)
        for sealed in ledger.sealed[first:]:
            units = self._read(sealed.number)
            yield from units[first_after(units, after) :]
        units = self._journals[ledger.live].units
        for at in range(first_after(units, after), len(units)):
            yield units[at]

    def _read(self, number: int) -> list[Unit]:
        """The units of a sealed journal; those least recently read are evicted from memory."""
        journal = self._journals.pop(number)
        self._journals[number] = journal
        units = journal.read(self._store)
        held = sum(len(j.units) for j in self._journals.values())
        if held > _KEPT_UNITS and self._ledger is not None:
            self._forget(held - _KEPT_UNITS, keep={number, self._ledger.live})
        return units

    def _forget(self, excess: int, keep: set[int]) -> None:
        ledger = self._ledger
        if ledger is None:
            return
        after = {s.number: (s.after, s.length) for s in ledger.sealed}
        for number, journal in list(self._journals.items()):
            if excess <= 0:
                return
            if number in keep or not journal.units:
                continue
            excess -= len(journal.units)
            fresh = _Journal(number, after[number][0], self._shapes)
            fresh.length = after[number][1]
            self._journals[number] = fresh

    def _retrying(self, work: Callable[[], T]) -> T:
        """Do ``work``, again if a file that it needs had to be fetched, or once more because the
        copy of an object was damaged, and with a new index if compaction has removed it. No lock
        is held meanwhile: others read on."""
        moved = 0
        dropped: set[str] = set()
        while True:
            try:
                return work()
            except FileNotFoundError as error:
                if fetch_copy(self.root, _name_of(error), self._clock):
                    continue
                moved += 1
                if moved == _MOVED_ATTEMPTS:
                    raise _gone(error) from None
                self.refresh()
            except DamagedFile as error:
                if error.file in dropped or not drop_copy(self.root, error.file):
                    raise
                dropped.add(error.file)
                self._store.close_files()

    # -------------------------------------------------------------------------------- slice

    def slice(
        self,
        tables: Mapping[TableName, Timestamp],
        upto: Timestamp,
        max_rows: int,
        max_bytes: int,
    ) -> Slice:
        """Rows and control events of ``tables`` above their own (exclusive) bounds, up to ``upto``.

        The slice stops earlier at the limits, but only between transactions. If the first
        transaction is larger than the limits, the slice is this whole transaction (in pieces of
        bounded size). The slice never reaches above the frontier. :meth:`LogPiece.load` reads the
        rows.

        Raises:
            ChangefeedError: CF3002, the bound of some table is below ``oldest``; CF3001, the log is
                damaged; CF3007, a file of a shared log cannot be fetched.
        """
        bounds = {name: stamp_of(at) for name, at in tables.items()}
        return self._retrying(lambda: self._slice(bounds, stamp_of(upto), max_rows, max_bytes))

    def _slice(
        self, bounds: dict[TableName, Stamp], upto: Stamp, max_rows: int, max_bytes: int
    ) -> Slice:
        with self._lock:
            frontier = self._frontier
            goal = min(upto, stamp_of(frontier.at) if frontier else (0, 0))
            floor = min(bounds.values(), default=goal)
            if frontier is None:
                return Slice(Timestamp(*floor))
            if bounds:
                self._check_kept(floor)
            assembly = Assembly(self._store, self)
            reached = self._fill(assembly, bounds, floor, goal, max_rows, max_bytes)
            return Slice(Timestamp(*reached), tuple(assembly.events()))

    def _check_kept(self, floor: Stamp) -> None:
        first = self._first_after()
        if first is not None and floor < first:
            raise ChangefeedError(
                Code.POSITION_TOO_OLD,
                "position is older than the change log keeps",
                detail=f"asked for changes after {Timestamp(*floor)}, "
                f"the log begins at {Timestamp(*first)}",
            )

    def _fill(
        self,
        assembly: Assembly,
        bounds: dict[TableName, Stamp],
        floor: Stamp,
        goal: Stamp,
        max_rows: int,
        max_bytes: int,
    ) -> Stamp:
        """Take units until the goal or a limit; returns the timestamp reached."""
        if goal <= floor:
            return floor  # earlier slices had everything up to the floor
        rows = size = 0
        reached = floor
        for unit in self._units(floor):
            if unit.after >= goal:
                break
            end = min(unit.upto, goal)
            taken = list(select(unit, bounds, end, self._store))
            parts = [t for _, t in taken if isinstance(t, RunPart)]
            more, larger = sum(p.rows for p in parts), sum(p.bytes for p in parts)
            if parts and (rows + more > max_rows or size + larger > max_bytes):
                if rows:
                    return reached
                end = last_fitting(parts, max_rows, max_bytes, self._store)
                for name, item in select(unit, bounds, end, self._store):
                    assembly.add(name, item)
                return end
            for name, item in taken:
                assembly.add(name, item)
            rows, size, reached = rows + more, size + larger, end
        return goal

    def find(self, piece: LogPiece) -> pa.Table:
        """The rows of a piece whose file has since been merged into another one.

        Raises:
            ChangefeedError: CF3002, retention removed them.
        """
        self.refresh()
        return self._retrying(lambda: self._find(piece))

    def _find(self, piece: LogPiece) -> pa.Table:
        table, before = piece.schema.table, stamp_of(piece.first.previous())
        with self._lock:
            self._check_kept(before)
            parts = []
            for unit in self._units(before):
                if unit.after >= stamp_of(piece.last):
                    break
                for entry in unit.tables.get(table, ()):
                    if isinstance(entry, Run) and _overlaps(entry, piece):
                        parts.append(self._within(entry, piece))
        rows = load_parts(parts, self._store) if parts else None
        if rows is None or len(rows) != piece.rows:
            raise damaged(self.root.name, "rows are gone", table=table, rows=piece.rows)
        return rows

    def _within(self, run: Run, piece: LogPiece) -> RunPart:
        seq = self._store.stamps(run).column("seq").to_numpy()
        start = int(seq.searchsorted(piece.first_seq, side="left"))
        stop = int(seq.searchsorted(piece.last_seq, side="right"))
        return RunPart(run, start, stop)

    # ---------------------------------------------------------------------------- positions

    def timestamp_at(self, position: Position) -> Timestamp | None:
        """The timestamp that divides the log at ``position`` of the source.

        Commits at or below ``position`` have a timestamp at or below it, later commits one above.
        None when ``position`` is older than the log.

        Raises:
            ValueError: the frontier has not reached ``position`` yet; try again later.
        """
        return self._retrying(lambda: self._timestamp_at(position))

    def _timestamp_at(self, position: Position) -> Timestamp | None:
        with self._lock:
            ledger, frontier = self._ledger, self._frontier
            if ledger is None or frontier is None or position > frontier.position:
                raise ValueError(f"the log has not reached {position}")
            count = bisect_left(ledger.sealed, True, key=lambda s: s.frontier.position > position)
            if count < len(ledger.sealed):
                units = self._read(ledger.sealed[count].number)
            else:
                units = self._journals[ledger.live].units
            found = _commit_before(units, position, self._store)
            if found is not None:
                return Timestamp(*found)
            start = ledger.sealed[count - 1].frontier if count else ledger.base
            return start.at if start is not None and start.position <= position else None

    def close(self) -> None:
        """Close HEAD. A journal file is closed with the last piece that uses it."""
        with self._lock:
            if self._head_fd >= 0:
                os.close(self._head_fd)
                self._head_fd = -1

    def __enter__(self) -> LogReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _gone(missing: FileNotFoundError) -> ChangefeedError:
    """CF3001 for a file that the index names, and that nobody has replaced."""
    return damaged(_name_of(missing), "file is gone")


def _name_of(missing: FileNotFoundError) -> str:
    return Path(os.fsdecode(missing.filename)).name


def _overlaps(run: Run, piece: LogPiece) -> bool:
    m = run.measure
    return (
        run.schema.version == piece.schema.version
        and m.first_seq <= piece.last_seq
        and m.last_seq >= piece.first_seq
    )


def _commit_before(units: list[Unit], position: Position, store: JournalRows) -> Stamp | None:
    """Timestamp of the last commit or frontier in ``units`` at or below ``position``."""
    at = first_reaching(units, position)
    if at < len(units):
        found = units[at].commit_at(position, store.commits)
        if found is not None:
            return found
    return units[at - 1].upto if at else None
