"""Writing a change log: by one process, with durable appends and upkeep.

The steps of an append, and what a crash leaves at each of them:

1. large batches are written to Parquet segments and synced, then the directory is synced
   (crash: files that no frame names; opening the log removes them);
2. the frame is written and synced (crash: a torn frame; opening the log cuts it off);
3. HEAD is overwritten (crash: readers see the flush when the log is opened again).

A flush without a frontier does not reach step 3, so readers see it only together with the flush
that completes it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from changefeed.core.clock import Timestamp
from changefeed.core.durable import UNFINISHED, sync_path, write_at
from changefeed.core.elapsed import ClockSample
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.events import Flush, Frontier
from changefeed.core.faults import Point, fault_point
from changefeed.core.schema import TableName
from changefeed.log.compaction import JournalMerge, plan
from changefeed.log.copies import drop_copy, fetch_copy
from changefeed.log.draft import FrameBuilder
from changefeed.log.frame import stamp_of
from changefeed.log.growth import Growth
from changefeed.log.journal import FIRST_FRAME, DamagedFile, damaged, journal_name
from changefeed.log.ledger import (
    HEAD_NAME,
    LEDGER_NAME,
    LOCK_NAME,
    Garbage,
    Head,
    Ledger,
    LogTime,
    SealedJournal,
    read_head,
    read_ledger,
    write_ledger,
)
from changefeed.log.live import LiveJournal
from changefeed.log.retention import UpkeepResult, dated, expendable, swept
from changefeed.log.rows import Stamp
from changefeed.log.settings import LogSettings
from changefeed.log.shared import AHEAD, SharedLog, Upload

#: How far the log's time in the ledger may be behind, ns. After a crash the rest is measured again.
_SAVE_TIME: Final = 600 * 10**9

#: How often objects that no row names are looked for, ns.
_SWEEP_STORE: Final = 3600 * 10**9

_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


#: After these errors it is not known what is stored.
_UNKNOWN: Final = frozenset(
    {Code.LOG_NOT_WRITABLE, Code.STATE_UNREACHABLE, Code.STATE_HELD_BY_ANOTHER_NODE}
)


@dataclass(frozen=True, eq=False, slots=True)
class AppendedAhead:
    """A flush whose objects are on their way to the store of a shared log.

    Attributes:
        before, end: how far the log was complete before it.
        frontier: of the flush.
        appended: bytes that were appended with it and before it.
    """

    upload: Upload
    before: Frontier | None
    end: int
    frontier: Frontier | None
    appended: int


class LogWriter:
    """Appends flushes to the change log of one source.

    ``append`` and ``maintain`` may be called from two threads. Neither holds the lock longer than
    necessary (compaction merges outside the lock).
    """

    def __init__(
        self,
        root: Path,
        settings: LogSettings | None = None,
        shared: SharedLog | None = None,
    ) -> None:
        """Open the log in ``root``, or begin one; recover it from a crash.

        ``shared``: what makes the log durable elsewhere; ``root`` then is a copy, and the copy
        becomes what is registered.

        What a crash left unfinished (a torn frame, part of a transaction, files that nothing
        refers to) is removed. All other flushes whose ``append`` returned are kept.

        Raises:
            ChangefeedError: CF6003 another process writes this log; CF3001 it is damaged;
                CF3003, CF3004 it cannot be written; of a shared log CF3007, CF6001, too.
        """
        self.root = root
        self._shared = shared
        self.settings = settings or LogSettings()
        self._lock = threading.RLock()
        self._upkeep_lock = threading.Lock()
        self._broken: str | None = None
        self._used = 0
        self._growth = Growth()
        self._appended = 0
        self._store_swept = 0
        self._ahead: deque[AppendedAhead] = deque()
        self._lower_bounds: dict[TableName, tuple[Stamp, int]] = {}
        root.mkdir(parents=True, exist_ok=True)
        lock = lock_log(root)
        self._lock_fd: int | None = lock
        try:
            with self._writing():
                registered = shared is not None and shared.fetch()
                self._ledger = read_ledger(root) or self._begin()
                self._saved_time = self._ledger.time
                self._live = self._recover_live()
                self._live.shared = shared
                if shared is not None and registered:
                    shared.cut(self._live.number, self._live.tally.end)
                elif shared is not None:
                    shared.adopt(self._ledger, self._live.tally.end, self._live.segments)
                self._remove_orphans()
                self._head_fd = os.open(root / HEAD_NAME, os.O_RDWR | os.O_CREAT, 0o640)
                self._next = self._ledger.next
                self._count()
                self._measure()
                self._publish()
        except BaseException:
            os.close(lock)
            raise

    def _begin(self) -> Ledger:
        """Begin a log. The journal is made first, so that the ledger never names a missing file."""
        for path in self.root.glob("journal-*"):
            if path.stat().st_size > FIRST_FRAME:
                raise damaged(LEDGER_NAME, "gone, but there are journals")
        LiveJournal.create(self.root, 1, None).close()
        ledger = Ledger(generation=1, next=2, live=1)
        write_ledger(self.root, ledger)
        return ledger

    def _recover_live(self) -> LiveJournal:
        for sealed in self._ledger.sealed:
            if not self._is_object(journal_name(sealed.number)):
                _check_file(self.root, journal_name(sealed.number), sealed.length)
        last = self._ledger.last
        live, head = self._ledger.live, read_head(self.root)
        durable = head.length if head is not None and head.live == live else 0
        try:
            return LiveJournal.recover(
                self.root, live, stamp_of(last.at) if last else None, durable, self._is_object
            )
        except FileNotFoundError:
            raise damaged(journal_name(live), "journal is gone") from None

    def _is_object(self, name: str) -> bool:
        """Whether a file is in the store of a shared log, and need not be here."""
        return self._shared is not None and self._shared.registered(name)

    def _remove_orphans(self) -> None:
        """Remove files of appends, rolls, compactions and sweeps that a crash interrupted."""
        known = {journal_name(self._live.number)} | {name for name, _ in self._live.segments}
        for sealed in self._ledger.sealed:
            known.add(journal_name(sealed.number))
            known.update(name for name, _ in sealed.segments)
        present = {path.name for path in self.root.iterdir()}
        garbage = tuple(g for g in self._ledger.garbage if g.name in present)
        self._ledger = replace(self._ledger, garbage=garbage)
        known.update(g.name for g in garbage)
        for path in self.root.iterdir():
            unfinished = path.suffix == UNFINISHED
            ours = path.name.startswith(("journal-", "segment-")) or unfinished
            if ours and path.name not in known:
                path.unlink()

    # ------------------------------------------------------------------------------- append

    @property
    def frontier(self) -> Frontier | None:
        """The timestamp up to which the log is complete and durable, None when it is new."""
        ahead = next(iter(tuple(self._ahead)), None)
        return self._written if ahead is None else ahead.before

    @property
    def _written(self) -> Frontier | None:
        return self._live.frontier or self._ledger.last

    def append(self, flush: Flush, *, ahead: bool = False) -> AppendedAhead | None:
        """Store a flush; it survives any crash once this returns, but for one that is appended
        ``ahead``.

        Args:
            ahead: may return while the objects of a shared log are on their way to the store.

        Returns:
            What :meth:`register` takes, if the flush is not durable yet.

        Raises:
            ValueError: the flush does not follow what is in the log (a bug of the caller).
            ChangefeedError: CF3003, there is no room; nothing was stored, and the same flush may
                be appended later. CF3004, the disk failed: open the log again, then go on from its
                frontier.
        """
        with self._lock, self._writing():
            self._check_usable()
            fault_point(Point.LOG_APPEND_BEGIN)
            if flush.frontier is None and not flush.events:
                return None
            if flush.events and not self.room():
                raise self._full()
            # What was appended before is registered first: else it is kept, and this is refused.
            self._register_ahead(AHEAD - 1 if ahead else 0)
            if self._live_is_full():
                self._roll()
            before, end = self._written, self._live.complete.end
            upload = self._append(flush, ahead=ahead)
            if flush.frontier is not None:
                self._lower_bounds = {}
            if upload is not None:
                found = AppendedAhead(upload, before, end, flush.frontier, self._appended)
                self._ahead.append(found)
                return found
            self._reach(flush.frontier, self._appended)
            return None

    def register(self, appended: AppendedAhead) -> None:
        """Make a flush durable that was appended ahead, and those before it. Others may be
        appended meanwhile.

        Raises:
            ChangefeedError: CF3007, some of them are not durable: call it again. CF6001, CF6003 as
                :meth:`append`.
        """
        while True:
            with self._lock:
                self._check_usable()
                if appended not in self._ahead:
                    return
                first = self._ahead[0]
            first.upload.wait()
            with self._lock, self._writing():
                if self._ahead and self._ahead[0] is first:
                    self._register_ahead(len(self._ahead) - 1)

    def _register_ahead(self, rest: int = 0) -> None:
        """Register what was appended ahead, the oldest first, up to ``rest`` of them; call with the
        lock held."""
        while len(self._ahead) > rest and self._shared is not None:
            first = self._ahead[0]
            self._shared.complete(first.upload)
            self._ahead.popleft()
            self._reach(first.frontier, first.appended)

    def _reach(self, frontier: Frontier | None, appended: int) -> None:
        if frontier is not None:
            self._growth.reach(stamp_of(frontier.at), appended)
            self._publish()

    def _append(self, flush: Flush, *, ahead: bool) -> Upload | None:
        live = self._live
        draft = FrameBuilder(
            self.root,
            live.number,
            live.tally.ordinal,
            live.declared,
            self.settings,
            durable=self._shared is None,
        )
        draft.lower_bounds.update(self._lower_bounds)
        try:
            for event in flush.events:
                draft.add(event)
            draft.commits(flush.commits)
            self._check_order(draft, flush)
            if draft.segments and self._shared is None:
                sync_path(self.root)
            after = self._first_after(draft, flush.frontier)
            parts = draft.encode(live.sync, flush.frontier, after)
            upload = live.append(draft, parts, flush.frontier, ahead=ahead)
        except ChangefeedError as error:
            # Else the frame may be stored: its segments must stay.
            if error.code is Code.LOG_STORE_UNREACHABLE:
                draft.discard()
            raise
        except BaseException:
            draft.discard()
            raise
        live.after = live.after or after
        size = sum(map(len, parts)) + sum(size for _, size in draft.segments)
        self._used += size
        self._appended += size
        self._lower_bounds = draft.lower_bounds
        try:
            fault_point(Point.LOG_APPEND_SYNCED)
        except OSError as error:
            raise self._break(error) from error
        return upload

    def _first_after(self, draft: FrameBuilder, frontier: Frontier | None) -> Stamp | None:
        """For the first frame of a new log: the timestamp above which the log has everything."""
        if self._live.after is not None:
            return None
        if draft.first is not None:
            return stamp_of(Timestamp(*draft.first).previous())
        if frontier is None:
            raise ValueError("a flush without frontier must have events")
        return stamp_of(frontier.at)

    def _check_order(self, draft: FrameBuilder, flush: Flush) -> None:
        """Check that the flush keeps the log in timestamp order: slices and merges rely on it."""
        before = self._written
        if before is not None:
            if draft.first is not None and draft.first <= stamp_of(before.at):
                raise ValueError(f"event at {draft.first} is not above the frontier {before.at}")
            now = flush.frontier
            if now and (now.at < before.at or now.position < before.position):
                raise ValueError(f"frontier {now} is below {before}")
        if flush.frontier and draft.last and draft.last > stamp_of(flush.frontier.at):
            raise ValueError(f"event at {draft.last} is above its frontier {flush.frontier.at}")

    def abandon(self) -> None:
        """Forget the flushes of an unfinished transaction (the source will send it again).

        Raises:
            ChangefeedError: CF3004.
        """
        with self._lock:
            self._check_usable()
            self._register_ahead()
            self._live.cut()
            if self._shared is not None:
                self._shared.cut(self._live.number, self._live.tally.end)
            self._lower_bounds = {}
            self._appended = self._growth.total
            self._count()

    def _live_is_full(self) -> bool:
        tally = self._live.tally
        full = tally.end >= self.settings.roll_bytes or tally.frames >= self.settings.roll_frames
        return full and not self._live.pending

    # ---------------------------------------------------------------------- ledger and head

    def _roll(self) -> None:
        """Close the live journal and begin the next."""
        self._register_ahead()
        fault_point(Point.LOG_ROLL_BEGIN)
        old, frontier = self._live, self._live.frontier
        if frontier is None or old.after is None:
            raise ValueError("an empty journal cannot be sealed")
        number = self._take_number()
        new = LiveJournal.create(self.root, number, stamp_of(frontier.at))
        new.shared = self._shared
        sealed = (*self._ledger.sealed, old.seal(old.after, frontier))
        try:
            # Compaction removes heartbeats, so the ledger must keep where the log began.
            base = self._ledger.base or (None if self._ledger.sealed else old.origin)
            self._commit(new, sealed=sealed, base=base)
        except OSError:
            new.close()
            if self._broken is None:
                (self.root / journal_name(number)).unlink()
            raise

    def _take_number(self) -> int:
        with self._lock:
            number = self._next
            self._next += 1
            return number

    def _commit(self, live: LiveJournal | None = None, **fields: Any) -> None:
        """Make a change of the ledger durable and publish it; call with the lock held.

        Args:
            live: the new live journal, if the change seals the present one.
            fields: of the ledger, that change.
        """
        number = (live or self._live).number
        changed = self._ledger.changed(next=self._next, live=number, **fields)
        registered = False

        def register() -> None:
            nonlocal registered
            if self._shared is not None:
                registered = True
                segments = () if live is not None else self._live.segments
                self._shared.commit(changed, [name for name, _ in segments])

        try:
            # On a full disk nothing may be registered that this writer then does not follow: what
            # it appended to a journal that is sealed there would be lost to the next node.
            write_ledger(self.root, changed, register)
        except OSError as error:
            # If the rename happened, it is unknown which of the two ledgers a crash would leave.
            disk = read_ledger(self.root)
            if registered or disk is None or disk.generation != self._ledger.generation:
                self._break(error)
            raise
        self._ledger = changed
        self._saved_time = changed.time
        if live is not None:
            self._live.close()
            self._live = live
        self._count()
        self._publish()

    def _publish(self) -> None:
        """Overwrite HEAD, so that readers see what is complete."""
        end = self._ahead[0].end if self._ahead else self._live.complete.end
        head = Head(self._ledger.generation, self._live.number, end)
        try:
            write_at(self._head_fd, head.to_bytes(), 0)
            fault_point(Point.LOG_APPEND_PUBLISHED)
        except OSError as error:
            raise self._break(error) from error

    def _break(self, error: OSError) -> ChangefeedError:
        """Refuse every further call: what is stored is safe, but its extent is unknown here."""
        self._broken = str(error)
        return ChangefeedError(
            Code.LOG_NOT_WRITABLE,
            "change log cannot be written",
            detail=f"{error}; it must be opened again",
        )

    def _check_usable(self) -> None:
        if self._broken is not None:
            raise ChangefeedError(
                Code.LOG_NOT_WRITABLE,
                "change log must be opened again",
                detail=f"after {self._broken}",
            )

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Turn errors of the operating system into a ChangefeedError."""
        try:
            yield
        except OSError as error:
            if error.errno in _NO_ROOM:
                raise self._full(error) from error
            raise ChangefeedError(
                Code.LOG_NOT_WRITABLE, "change log cannot be written", detail=str(error)
            ) from error
        except ChangefeedError as error:
            if error.code in _UNKNOWN and self._broken is None:
                self._broken = error.detail or error.message
            raise

    # --------------------------------------------------------------------------------- room

    @property
    def bytes(self) -> int:
        """Size of the log on disk."""
        return self._used

    def room(self) -> int:
        """How many bytes capture may append now; 0: stop reading from the source.

        The least of the memory budget (the largest flush to build), the rest of the disk budget,
        and the free space of the file system above the reserve.
        """
        return min(self.settings.memory_budget, self._disk_room())

    def _disk_room(self) -> int:
        settings = self.settings
        try:
            disk = os.statvfs(self.root)
        except OSError as error:
            raise ChangefeedError(
                Code.LOG_NOT_WRITABLE,
                f"the folder of the change log cannot be read: {error.strerror}",
                detail=str(self.root),
            ) from error
        room = disk.f_bavail * disk.f_frsize - settings.disk_reserve
        if settings.disk_budget is not None:
            room = min(room, settings.disk_budget - self._used)
        return max(room, 0)

    @property
    def unfinished(self) -> int:
        """The bytes of a large transaction of which only a part is in the log; 0: of none."""
        return self._appended - self._growth.total if self._live.pending else 0

    @property
    def fixed(self) -> int:
        """The bytes of which none can be removed before a large transaction has come to its end:
        that transaction, and what is in one file with it. 0 if there is no such transaction."""
        return self._live.bytes if self._live.pending else 0

    def _full(self, error: OSError | None = None) -> ChangefeedError:
        budget = self.settings.disk_budget
        facts = [f"log {self._used} bytes"]
        facts += [f"budget {budget} bytes"] if budget is not None else []
        facts += [str(error)] if error else []
        return ChangefeedError(Code.LOG_FULL, "change log has no room", detail=", ".join(facts))

    def _count(self) -> None:
        self._used = (
            sum(s.bytes for s in self._ledger.sealed)
            + sum(g.size for g in self._ledger.garbage)
            + self._live.bytes
        )

    def _measure(self) -> None:
        """Mark the growth of a log that an earlier writer left: only the sizes of whole journals
        are known."""
        for sealed in self._ledger.sealed:
            self._appended += sealed.bytes
            self._growth.reach(sealed.upto, self._appended)
        self._appended += self._live.bytes
        if self._live.frontier is not None:
            self._growth.reach(stamp_of(self._live.frontier.at), self._appended)

    def above(self, at: Timestamp) -> int:
        """About how many bytes the log has above ``at``, without unfinished transactions."""
        with self._lock:
            return self._growth.above(stamp_of(at))

    # ------------------------------------------------------------------------------- upkeep

    @property
    def oldest(self) -> Timestamp:
        """Everything above this (up to the frontier) is in the log; MAX when it is new."""
        ledger = self._ledger
        first = ledger.sealed[0].after if ledger.sealed else self._live.after
        return Timestamp(*first) if first else Timestamp.MAX

    def maintain(self, read: ClockSample, keep_from: Timestamp | None = None) -> UpkeepResult:
        """Roll by age, drop old history, merge small files, remove replaced ones.

        Call it every few seconds to minutes, from any thread.

        Args:
            read: the machine's clocks now.
            keep_from: the least progress of all feeds that may go on; None when there is none.
                History above it is kept past ``gc_ttl`` and past ``keep_bytes``, but not past
                ``max_age``.

        Raises:
            ChangefeedError: CF3003, CF3004; none of the work was done, or a part of it.
        """
        with self._upkeep_lock, self._writing():
            self._check_usable()
            now = self._tell_time(read)
            try:
                rolled = self._roll_if_due(now)
            except ChangefeedError as error:
                if error.code is not Code.LOG_FULL:
                    raise
                rolled = False  # dropping history below may free enough room
            dropped = self._retain(now, keep_from)
            removed = self._sweep(now)
            merged = self._compact(now)
            removed += self._sweep(now)
            self._settle()
            if self._shared is not None and self.settings.copy_budget is not None:
                # Not while a merge reads what it has fetched. Readers fetch again.
                with self._lock:
                    self._shared.list_copies()
                self._shared.trim(self.settings.copy_budget)
            self._sweep_store(read.wall)
            self._save_time()
        return UpkeepResult(rolled=rolled, dropped=dropped, merged=merged, removed=removed)

    def _tell_time(self, read: ClockSample) -> int:
        """The log's time. Journals sealed since the last upkeep get the time from which
        their age counts."""
        with self._lock:
            before = self._ledger.time
            time = LogTime(read.wall, read) if before is None else before.on(read)
            sealed = dated(self._ledger.sealed, last=before.at if before else None, now=time.at)
            self._ledger = replace(self._ledger, sealed=sealed, time=time)
            return time.at

    def _save_time(self) -> None:
        """Make the log's time durable if no other change of the ledger has done so recently."""
        with self._lock:
            saved, time = self._saved_time, self._ledger.time
            if time is not None and (saved is None or time.at - saved.at >= _SAVE_TIME):
                self._commit()

    def _settle(self) -> None:
        """Make sealed journals of a shared log objects."""
        shared = self._shared
        if shared is None:
            return
        for sealed in self._ledger.sealed:
            if shared.in_parts(sealed.number):
                shared.stage(journal_name(sealed.number), sealed.length)
                with self._lock:
                    shared.settle(sealed.number)

    def _sweep_store(self, wall: int) -> None:
        """Remove objects that an append or a merge has left behind, now and then."""
        if self._shared is not None and wall - self._store_swept >= _SWEEP_STORE:
            self._store_swept = wall
            self._shared.sweep(wall)

    def roll(self) -> bool:
        """Close the live journal now, if it has a complete flush and no unfinished one."""
        with self._lock, self._writing():
            self._check_usable()
            if self._live.pending or not self._live.complete.frames:
                return False
            self._roll()
            return True

    def _roll_if_due(self, now: int) -> bool:
        with self._lock:
            live = self._live
            if not live.complete.events:
                return False
            if live.since is None:
                live.since = now
            age = (now - live.since) / 1e9
            # Retention drops sealed journals only, so without room the live one must be sealed.
            due = age >= self.settings.roll_age or not self.room()
            return self.roll() if due else False

    def _retain(self, now: int, keep_from: Timestamp | None) -> int:
        """Drop the oldest journals; return how many."""
        with self._lock:
            count = expendable(
                self._ledger.sealed,
                self.settings,
                now=now,
                keep_from=keep_from,
                excess=self._excess(),
            )
            if not count:
                return 0
            fault_point(Point.LOG_RETAIN_DECIDED)
            gone, kept = self._ledger.sealed[:count], self._ledger.sealed[count:]
            self._commit(
                base=gone[-1].frontier,
                sealed=kept,
                garbage=(*self._ledger.garbage, *_garbage(gone, kept, since=0)),
            )
            self._growth.forget(gone[-1].upto)
            return count

    def _excess(self) -> int:
        """How many bytes of history to drop, if no feed needs them, to meet the limits."""
        settings = self.settings
        used = self._used - sum(g.size for g in self._ledger.garbage)
        excess = used - settings.keep_bytes if settings.keep_bytes is not None else 0
        if not self.room():
            # Appends wait for room: free enough for a while, but do not drop all history.
            excess = max(excess, settings.roll_bytes, used // 10)
        return excess

    def _compact(self, now: int) -> int:
        """Merge runs of neighbours until none is left; return how many journals were merged."""
        merged = 0
        dropped: set[str] = set()
        while run := plan(self._ledger.sealed, self.settings):
            if self._disk_room() < 2 * sum(s.length for s in run):
                break  # for a while, a merge needs room for the old files and the merged ones
            try:
                self._merge(run, now)
            except DamagedFile as error:
                if error.file in dropped or not drop_copy(self.root, error.file):
                    raise
                dropped.add(error.file)
            else:
                merged += len(run)
        return merged

    def _merge(self, run: tuple[SealedJournal, ...], now: int) -> None:
        fault_point(Point.LOG_COMPACT_BEGIN)
        self._fetch(run)
        merge = JournalMerge(self.root, self._take_number(), run, self.settings)
        try:
            made = merge.run()
            fault_point(Point.LOG_COMPACT_WRITTEN)
            if self._shared is not None:
                for name, size in ((journal_name(made.number), made.length), *made.segments):
                    self._shared.stage(name, size)
            with self._lock:
                at = self._ledger.sealed.index(run[0])
                rest = self._ledger.sealed
                sealed = (*rest[:at], made, *rest[at + len(run) :])
                garbage = _garbage(run, sealed, since=now)
                self._commit(sealed=sealed, garbage=(*self._ledger.garbage, *garbage))
        except BaseException:
            if self._broken is None:
                merge.discard()
            raise
        fault_point(Point.LOG_COMPACT_DONE)

    def _fetch(self, run: tuple[SealedJournal, ...]) -> None:
        """Fetch what a merge reads of a shared log and this host does not have."""
        for sealed in run:
            small = (n for n, size in sealed.segments if size < self.settings.segment_keep)
            for name in (journal_name(sealed.number), *small):
                if not (self.root / name).exists():
                    fetch_copy(self.root, name)

    def _sweep(self, now: int) -> int:
        """Remove files that no reader needs any more; return their bytes."""
        with self._lock:
            garbage = self._ledger.garbage
            pressed = not self.room()
        gone = swept(garbage, self.settings, now=now, pressed=pressed)
        if not gone:
            return 0
        fault_point(Point.LOG_SWEEP_BEGIN)
        for item in gone:
            (self.root / item.name).unlink(missing_ok=True)
        fault_point(Point.LOG_SWEEP_REMOVED)
        with self._lock:
            self._commit(garbage=tuple(g for g in self._ledger.garbage if g not in gone))
        return sum(g.size for g in gone)

    def close(self) -> None:
        """Cut off an unfinished transaction, release the lock. May be called twice."""
        with self._upkeep_lock, self._lock:
            if self._lock_fd is None:
                return
            if self._broken is None:
                self._live.cut()
            self._live.close()
            if self._shared is not None:
                self._shared.close()
            os.close(self._head_fd)
            os.close(self._lock_fd)
            self._lock_fd = None
            self._broken = "it was closed"

    def __enter__(self) -> LogWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def lock_log(root: Path) -> int:
    """Become the one writer of a directory, until the descriptor is closed.

    Raises:
        ChangefeedError: CF6003, another process is.
    """
    fd = os.open(root / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o640)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise ChangefeedError(
            Code.STATE_HELD_BY_ANOTHER_NODE,
            "another process writes this change log",
            detail=f"log {root.name}",
        ) from None
    return fd


def _check_file(root: Path, name: str, length: int) -> None:
    try:
        size = (root / name).stat().st_size
    except FileNotFoundError:
        raise damaged(name, "journal is gone") from None
    if size < length:
        raise damaged(name, "file is too short", expected=length, found=size)


def _garbage(
    gone: tuple[SealedJournal, ...], kept: tuple[SealedJournal, ...], *, since: int
) -> tuple[Garbage, ...]:
    """The files of ``gone`` that none of ``kept`` uses."""
    used = {name for s in kept for name, _ in s.segments}
    files = [(journal_name(s.number), s.length) for s in gone]
    files += [item for s in gone for item in s.segments if item[0] not in used]
    return tuple(Garbage(name, size, since) for name, size in files)
