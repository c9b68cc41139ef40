"""A directory that follows a shared log which another process writes.

It gets the files that the writer has: the live journal as its rows come, the ledger when it
changes, HEAD last. So whatever reads a log reads it, here and in processes that see the directory.
Objects come when something reads them (copies.py).

::

    rows of the live journal --> journal --> COPIES (segments that they name) --> HEAD
    another ledger           --> journals that are rows --> COPIES --> LEDGER --> HEAD
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol

from changefeed.core.clock import SYSTEM_CLOCK, Clock
from changefeed.core.durable import write_at
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.internal_errors import FailureCounter
from changefeed.core.log_manifest import MARK_LENGTH, LogManifest, LogNews, TailPart
from changefeed.core.telemetry import log
from changefeed.log.copies import Copies, JournalCopy, trim_copies
from changefeed.log.frame import frame_segments
from changefeed.log.journal import FIRST_FRAME, JournalFile, damaged, journal_name
from changefeed.log.ledger import HEAD_NAME, LOCK_NAME, Head, Ledger, write_ledger
from changefeed.log.objects import ObjectStore

#: Seconds between two looks at the rows: while there are new ones, and at rest.
POLL_SECONDS: Final = 0.05
REST_SECONDS: Final = 0.5
#: ... and after one that failed.
RETRY_SECONDS: Final = 1.0
#: Seconds between two times that copies of objects are removed, and how many bytes stay.
TRIM_SECONDS: Final = 30.0
COPY_BYTES: Final = 10**9

#: How often the manifest is read again because what it named was replaced meanwhile.
_ATTEMPTS: Final = 5


class LogRows(Protocol):
    """The rows of one shared log, for those who read them."""

    def manifest(self) -> LogManifest:
        """What the log consists of now."""
        ...

    def bodies(self, journal: int, start: int) -> Iterator[tuple[int, bytes]]:
        """The bytes in rows of a journal from ``start`` on, and where each begins."""
        ...

    def news(self, journal: int, start: int) -> LogNews:
        """What is registered of a journal from ``start`` on."""
        ...

    def objects(self, names: Collection[str]) -> Mapping[str, tuple[int, str]]:
        """Size and object of those of the files that are objects."""
        ...


class LogFollower:
    """Keeps a directory up to date. One thread follows; :attr:`error` may be read by others."""

    def __init__(
        self,
        rows: LogRows,
        store: ObjectStore,
        root: Path,
        lock: int,
        clock: Clock = SYSTEM_CLOCK,
        copies: int = COPY_BYTES,
    ) -> None:
        """
        Args:
            root: a directory that nothing else writes.
            lock: descriptor of its lock, which is closed with the follower.
            copies: limit in bytes of the copies of objects, which is kept from time to time.
        """
        self.root = root
        #: Why the directory is not up to date, if it is not.
        self.error: ChangefeedError | None = None
        self._rows = rows
        self._store = store
        self._lock = lock
        self._clock = clock
        self._copies = copies
        self._ledger: Ledger | None = None
        self._mark: str | None = None
        #: Checksum of the live journal's first part.
        self._begin: int | None = None
        self._objects: dict[str, tuple[int, str]] = {}
        #: Where the live journal is complete, and the parts behind that, which may be cut off.
        self._end = 0
        self._pending: set[TailPart] = set()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Fill the directory, and follow from now on.

        Raises:
            ChangefeedError: as :meth:`look`.
        """
        self.look()
        self._thread = threading.Thread(target=self._follow, name="log-follower", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Follow no longer; the directory stays."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        os.close(self._lock)

    def _follow(self) -> None:
        pause = POLL_SECONDS
        trimmed = self._clock.monotonic()
        failures = FailureCounter(self._clock)
        while not self._clock.wait(self._stop, pause):
            try:
                if self._clock.monotonic() - trimmed >= TRIM_SECONDS:
                    trimmed = self._clock.monotonic()
                    with self._writing():
                        trim_copies(self.root, self._objects, self._copies)
                news = self.look()
            except ChangefeedError as error:
                if self.error is None or self.error.message != error.message:
                    log.warning("log %s: %s %s", self.root, error.code.number, error.message)
                self.error, pause = error, RETRY_SECONDS
            except Exception as failure:
                # Readers wait for this thread, and nothing starts another.
                self.error, pause = failures.error(f"log {self.root}", failure), RETRY_SECONDS
            else:
                self.error = None
                pause = POLL_SECONDS if news else min(pause * 1.2, REST_SECONDS)

    # -- one look -------------------------------------------------------------------------

    def look(self) -> bool:
        """Take in what was registered since the last look; returns whether there was anything.

        Raises:
            ChangefeedError: CF6001 the state, CF3007 the store cannot be reached; CF3001 what is
                registered is not there; CF3004 the directory cannot be written.
        """
        with self._writing():
            return self._look()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ChangefeedError(
                Code.LOG_NOT_WRITABLE,
                f"the copy of the change log cannot be written: {error.strerror}",
                detail=str(self.root),
            ) from error

    def _look(self) -> bool:
        ledger = self._ledger
        if ledger is not None:
            news = self._rows.news(ledger.live, self._end)
            same = (news.mark, news.begin) == (self._mark, self._begin)
            if same and self._extend(ledger, news.parts):
                return bool(news.parts)
        for _ in range(_ATTEMPTS):
            manifest = self._rows.manifest()
            try:
                return self._take(manifest)
            except ChangefeedError as error:
                # Rows may have become an object, and objects others, since they were listed.
                if self._rows.manifest() == manifest:
                    raise
                found = error
        raise found

    def _extend(self, ledger: Ledger, parts: Sequence[TailPart]) -> bool:
        """Append parts of the live journal; False if they do not fit to what is there."""
        end = self._end
        for part in parts:
            if part.start != end:
                return False
            end += part.size
        # What a transaction has so far is listed until it is complete, or gives way to another.
        known = next((i for i, p in enumerate(parts) if p not in self._pending), len(parts))
        if known < len(parts):
            JournalCopy(self.root, ledger.live, self._store).extend(parts[known:])
            # All of them: a name that a transaction had that was given up can come again, as
            # another object.
            self._publish(ledger, end, self._rows.objects)
        self._pending = {part for part in parts if part.start >= self._end}
        return True

    def _publish(
        self,
        ledger: Ledger,
        end: int,
        objects: Callable[[Collection[str]], Mapping[str, tuple[int, str]]] | None = None,
    ) -> None:
        """Let readers see the live journal as far as it is complete.

        Args:
            objects: of segments that become visible; None: they are listed.
        """
        complete, segments = self._end, []
        found: set[str] = set()
        journal = JournalFile(self.root, ledger.live)
        for frame in journal.frames(max(complete, FIRST_FRAME), end):
            segments += [name for name, _ in frame_segments(frame)]
            if "f" in frame.header:
                complete = frame.end
                found.update(segments)
                segments = []
        if found and objects is not None:
            self._objects |= objects(found)
            Copies.of(self._store, self._objects).write(self.root)
        self._end = complete
        head = Head(ledger.generation, ledger.live, complete).to_bytes()
        fd = os.open(self.root / HEAD_NAME, os.O_RDWR | os.O_CREAT, 0o640)
        try:
            write_at(fd, head, 0)
        finally:
            os.close(fd)

    # -- another ledger -------------------------------------------------------------------

    def _take(self, manifest: LogManifest) -> bool:
        """Make the directory that of a manifest; returns whether it changed."""
        before = self._ledger
        if not manifest.ledger:
            self._forget()
            return before is not None
        ledger = Ledger.from_json(manifest.ledger)
        live = [part for part in manifest.tail if part.journal == ledger.live]
        begin = live[0].crc if live else None
        if before is not None and (
            ledger.generation < before.generation
            or (ledger.live == before.live and begin != self._begin)
        ):
            # The log was given up, and another one begun.
            self._forget()
            before = None
        objects = {name: o for name, o in manifest.objects.items() if "/" not in name}
        replaced = {g.name for g in ledger.garbage}
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Readers have the old ledger until HEAD says that there is another.
        Copies.of(self._store, self._objects | objects).write(self.root)
        known = before is not None and before.live
        if known and known != ledger.live:
            self._finish(known, ledger, objects)
        tails: dict[int, list[TailPart]] = {}
        for part in manifest.tail:
            if journal_name(part.journal) not in replaced:
                tails.setdefault(part.journal, []).append(part)
        for number, parts in tails.items():
            JournalCopy(self.root, number, self._store).rebuild(parts, self._rows.bodies)
        if ledger.live not in tails:
            raise damaged(journal_name(ledger.live), "no part of it is registered")
        write_ledger(self.root, ledger)
        if known != ledger.live:
            self._end = 0
        last = tails[ledger.live][-1]
        self._objects, self._pending = objects, set()
        self._publish(ledger, last.start + last.size)
        self._ledger, self._mark, self._begin = ledger, manifest.ledger[:MARK_LENGTH], begin
        Copies.of(self._store, self._objects).write(self.root)
        kept = {*map(journal_name, tails), *(name for name in objects if name not in replaced)}
        for path in self.root.iterdir():
            if path.name.startswith(("journal-", "segment-")) and path.name not in kept:
                path.unlink(missing_ok=True)
        return True

    def _finish(self, number: int, ledger: Ledger, objects: Mapping[str, tuple[int, str]]) -> None:
        """Complete a journal that was live here, and is an object now. Readers have its file open,
        so it stays the same file."""
        name = journal_name(number)
        if name in objects and any(sealed.number == number for sealed in ledger.sealed):
            data = self._store.get(objects[name][1])
            JournalCopy(self.root, number, self._store).complete(self._end, data)

    def _forget(self) -> None:
        """Remove the directory's files: its readers get the error of a log that is gone."""
        self._ledger = self._mark = None
        self._objects, self._end, self._pending = {}, 0, set()
        if self.root.exists():
            for path in self.root.iterdir():
                if path.name != LOCK_NAME:
                    path.unlink(missing_ok=True)
