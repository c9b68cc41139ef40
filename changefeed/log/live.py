"""The live journal, the one file that grows: durable appends, undo of a failed append, recovery."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from changefeed.core.durable import sync_path, write_at
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.events import Frontier
from changefeed.core.faults import Point, fault_point
from changefeed.log.draft import DeclaredSchemas, FrameBuilder
from changefeed.log.frame import UnitReader, frame_extents, frame_segments
from changefeed.log.journal import (
    FIRST_FRAME,
    SYNC_LENGTH,
    Frame,
    JournalFile,
    damaged,
    file_header,
    journal_name,
)
from changefeed.log.ledger import SealedJournal
from changefeed.log.rows import Stamp, check
from changefeed.log.shared import SharedLog, Upload

#: fdatasync makes the data and size of a file durable, not its times. Not every system has it.
_sync = getattr(os, "fdatasync", os.fsync)


@dataclass(frozen=True, slots=True)
class Tally:
    """How far a journal has grown."""

    end: int = FIRST_FRAME
    frames: int = 0
    rows: int = 0
    events: int = 0
    segments: int = 0
    ordinal: int = 0
    declared: int = 0


class LiveJournal:
    """Appends frames at the end; frames that no frontier completes can be cut off again."""

    def __init__(self, root: Path, number: int, after: Stamp | None, fd: int, sync: bytes) -> None:
        self.number = number
        self.after = after
        self.frontier: Frontier | None = None
        #: Where a new log begins, if its first frame is a frontier without events.
        self.origin: Frontier | None = None
        self.declared = DeclaredSchemas()
        self.segments: list[tuple[str, int]] = []
        self.tally = Tally()
        #: As of the last frame with a frontier.
        self.complete = Tally()
        #: The log's time when upkeep first saw events here.
        self.since: int | None = None
        self.sync = sync
        #: What makes frames durable instead of this disk, if the log is shared.
        self.shared: SharedLog | None = None
        self._root = root
        self._fd = fd

    @classmethod
    def create(cls, root: Path, number: int, after: Stamp | None) -> LiveJournal:
        """Begin a file; durable on return.

        Raises:
            OSError: the file cannot be made; nothing is left behind.
        """
        path = root / journal_name(number)
        sync = os.urandom(SYNC_LENGTH)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o640)
        try:
            write_at(fd, file_header(number, sync), 0)
            os.fsync(fd)
            sync_path(root)
            fault_point(Point.LOG_ROLL_CREATED)
        except OSError:
            os.close(fd)
            path.unlink(missing_ok=True)
            raise
        return cls(root, number, after, fd, sync)

    # ------------------------------------------------------------------------------- append

    @property
    def pending(self) -> bool:
        """Whether only a part of a large transaction is in the journal."""
        return self.tally.end != self.complete.end

    def append(
        self,
        draft: FrameBuilder,
        parts: list[bytes],
        frontier: Frontier | None,
        *,
        ahead: bool = False,
    ) -> Upload | None:
        """Write a frame and make it durable; ``ahead``: begin to, if the log is shared.

        Raises:
            OSError: the append failed; the file is as before.
            ChangefeedError: CF3004, the contents of the disk are unknown: open the log again. For a
                shared log, as :meth:`changefeed.log.shared.SharedLog.append`.
        """
        start = self.tally.end
        upload: Upload | None = None
        try:
            frame = b"".join(parts)
            end = self._write(frame, start)
            fault_point(Point.LOG_APPEND_WRITTEN)
            if self.shared is None:
                _sync(self._fd)
            elif ahead:
                upload = self.shared.append_ahead(self.number, start, frame, draft.segments)
            else:
                self.shared.append(self.number, start, frame, draft.segments)
        except BaseException:
            self._truncate(start)
            raise
        self.segments += draft.segments
        self.tally = Tally(
            end=end,
            frames=self.tally.frames + 1,
            rows=self.tally.rows + draft.rows,
            events=self.tally.events + draft.events,
            segments=len(self.segments),
            ordinal=self.tally.ordinal + len(draft.segments),
            declared=len(self.declared),
        )
        if frontier is not None:
            self._complete(frontier)
        return upload

    def _complete(self, frontier: Frontier) -> None:
        if self.frontier is None and not self.tally.events:
            self.origin = frontier
        self.complete = self.tally
        self.frontier = frontier

    def _write(self, data: bytes, start: int) -> int:
        fault_point(Point.LOG_APPEND_WRITE)
        return write_at(self._fd, data, start)

    def _truncate(self, end: int) -> None:
        try:
            os.ftruncate(self._fd, end)
            _sync(self._fd)
        except OSError as error:
            raise ChangefeedError(
                Code.LOG_NOT_WRITABLE,
                "change log cannot be written",
                detail=f"file {self.number}: {error}",
            ) from error

    def cut(self) -> None:
        """Remove the frames that no frontier completes, with their segments.

        Raises:
            ChangefeedError: CF3004.
        """
        if not self.pending:
            return
        self._truncate(self.complete.end)
        for name, _ in self.segments[self.complete.segments :]:
            (self._root / name).unlink(missing_ok=True)
        del self.segments[self.complete.segments :]
        self.declared.cut(self.complete.declared)
        self.tally = self.complete

    def seal(self, after: Stamp, frontier: Frontier) -> SealedJournal:
        """The ledger's entry for this file after it is closed."""
        return SealedJournal(
            number=self.number,
            after=after,
            frontier=frontier,
            length=self.complete.end,
            rows=self.complete.rows,
            segments=tuple(self.segments),
        )

    @property
    def bytes(self) -> int:
        """Size on disk, segments included."""
        return self.tally.end + sum(size for _, size in self.segments)

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    # ----------------------------------------------------------------------------- recovery

    @classmethod
    def recover(
        cls,
        root: Path,
        number: int,
        after: Stamp | None,
        durable: int = 0,
        is_object: Callable[[str], bool] = lambda _: False,
    ) -> LiveJournal:
        """Open the file after a crash, and cut off a torn frame and an unfinished transaction.

        Args:
            durable: how far the file was complete at least; no crash has torn what is before.
            is_object: whether a segment is in the store of a shared log, and need not be here.

        Raises:
            ChangefeedError: CF3001, bytes that were durable have changed.
        """
        file = JournalFile(root, number)
        size = os.fstat(file.fd).st_size
        whole = _whole_frames(file, size)
        fd = os.open(root / file.name, os.O_RDWR)
        live = cls(root, number, after, fd, file.sync)
        try:
            live._replay(whole)
            del live.segments[live.complete.segments :]
            if live.complete.end < durable:
                at = live.complete.end
                raise damaged(file.name, "a durable frame is broken", offset=at, end=durable)
            live._check_segments(is_object)
            live.tally = live.complete
            if live.tally.end != size:
                live._truncate(live.tally.end)
        except BaseException:
            live.close()
            raise
        return live

    def _replay(self, frames: list[Frame]) -> None:
        units = UnitReader(self.number, self.after, {})
        rows = events = 0
        for frame in frames:
            unit = units.add(frame)
            self.declared.replay(frame)
            self.segments += frame_segments(frame)
            for e in frame.header.get("e", ()):
                events += 1
                rows += e[2] if e[0] == "b" else sum(g[0] for g in e[6]) if e[0] == "p" else 0
            self.tally = Tally(
                end=frame.end,
                frames=self.tally.frames + 1,
                rows=rows,
                events=events,
                segments=len(self.segments),
                ordinal=len(self.segments),
                declared=len(self.declared),
            )
            if unit is not None:
                self._complete(unit.frontier)
                self.after = self.after or unit.after
        self.declared.cut(self.complete.declared)

    def _check_segments(self, is_object: Callable[[str], bool]) -> None:
        for name, size in self.segments:
            if is_object(name):
                continue
            try:
                found = (self._root / name).stat().st_size
            except FileNotFoundError:
                raise damaged(name, "segment is gone") from None
            if found != size:
                raise damaged(name, "segment has another size", expected=size, found=found)


def _whole_frames(file: JournalFile, size: int) -> list[Frame]:
    """The frames before a torn tail, with verified headers and bodies."""
    whole: list[Frame] = []
    for frame in file.valid_frames(FIRST_FRAME, size):
        try:
            for extent in frame_extents(frame, file.number):
                check(extent, file.read(extent.offset, extent.length), file.name)
        except ChangefeedError:
            break
        whole.append(frame)
    end = whole[-1].end if whole else FIRST_FRAME
    if end < size and (behind := file.valid_frame_after(end, size)) is not None:
        raise damaged(file.name, "a broken frame before a whole one", offset=end, next=behind)
    return whole
