"""A log that outlives its host: rows of the state database, objects, and a copy in a directory.

::

    flush --> frame --> the copy (no fsync) --> one transaction at the state database, with the
                                               lease's token: from here on the flush exists
                                            --> HEAD of the copy: feeds see it
                                            --> acknowledged at the source

    small frame            a row with the bytes (log_tail)
    large frame, segment   an object under a name of its own, written first; a row names it
    large, in a backlog    the object is written while the next frame is built (append_ahead); the
                           rows come in order, each after its objects
    journal after a roll   still those rows; upkeep makes it one object, and the rows go
    merged journal         an object, written before the ledger names it

The files have the bytes that they have in a directory of one host, so everything that reads a log
reads the copy. The copy can be lost: :meth:`SharedLog.fetch` makes it again, on any host. Objects
come when something reads them (copies.py). Nothing is trusted that is there but what is proved: a
journal's bytes by the checksums of the rows, other files by the list of which object each is a copy
of.

What a crash leaves behind: objects that no row names (:meth:`SharedLog.sweep` removes them), and
a copy that is ahead of the rows (the next fetch cuts it).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from changefeed.core.durable import UNFINISHED
from changefeed.core.errors import ChangefeedError
from changefeed.core.log_manifest import LogChange, TailPart
from changefeed.log.copies import COPIES_NAME, Copies, JournalCopy, part_checksum, trim_copies
from changefeed.log.follower import LogRows
from changefeed.log.journal import FIRST_FRAME, journal_name
from changefeed.log.ledger import LOCK_NAME, Ledger, write_ledger
from changefeed.log.objects import ObjectStore

#: A frame of at most this many bytes is stored in its row. Up to about this size a row is durable
#: as fast as a small one (docs/decisions/shared-log.md).
INLINE_BYTES: Final = 100_000

#: An object that no row names is removed at this age, ns: no upload takes so long.
ORPHAN_AGE: Final = 6 * 3600 * 10**9


#: How many flushes are on their way to the store while the next one is written.
AHEAD: Final = 2

#: The objects and the part of a journal that a row will name.
Prepared = tuple[Mapping[str, tuple[int, str]], TailPart]


class LogRegister(LogRows, Protocol):
    """The rows of one shared log, for the node that holds the source's lease."""

    def notes(self) -> Mapping[str, bytes]:
        """The files that the source keeps in addition."""
        ...

    def register(self, change: LogChange) -> None:
        """See :meth:`changefeed.catalog.shared_logs.SharedLogs.register`."""
        ...


class _Tail:
    """A journal that is registered as parts: where they end, and the objects among them."""

    def __init__(self) -> None:
        self.end = 0
        self._objects: list[tuple[int, str]] = []

    def add(self, part: TailPart) -> None:
        self.end = part.start + part.size
        if part.object is not None:
            self._objects.append((part.start, part.object))

    def cut(self, end: int) -> list[str]:
        """Forget the parts that begin at ``end`` or later; returns their objects."""
        gone = [name for start, name in self._objects if start >= end]
        self._objects = [item for item in self._objects if item[0] < end]
        self.end = end
        return gone

    @property
    def objects(self) -> list[str]:
        return [name for _, name in self._objects]


class Upload:
    """The objects of a frame, which a thread stores while the next frame is written."""

    def __init__(self, pool: ThreadPoolExecutor, work: Callable[[], Prepared]) -> None:
        self._pool = pool
        self._work = work
        self._future = pool.submit(work)

    def wait(self) -> None:
        """Wait until it has ended, well or not."""
        wait([self._future])

    def result(self) -> Prepared:
        """What is to be registered.

        Raises:
            ChangefeedError: CF3007; the upload has begun again.
        """
        try:
            return self._future.result()
        except ChangefeedError:
            self._future = self._pool.submit(self._work)
            raise


class SharedLog:
    """The shared log of a source, as its writer uses it: one call at a time, only :meth:`stage` may
    run beside another."""

    def __init__(
        self,
        register: LogRegister,
        store: ObjectStore,
        root: Path,
        folder: str,
        notes: Path,
        inline: int = INLINE_BYTES,
    ) -> None:
        """
        Args:
            root: directory of the copy.
            folder: of this log's objects in the store.
            notes: directory of small files that the source keeps in addition to the log.
            inline: bytes of the largest frame that its row stores.
        """
        self._register = register
        self._store = store
        self._root = root
        self._folder = folder
        self._notes = notes
        self._inline = inline
        self._pool: ThreadPoolExecutor | None = None
        self._objects: dict[str, tuple[int, str]] = {}
        #: Those that COPIES lists.
        self._listed: dict[str, tuple[int, str]] = {}
        #: The journals that are parts.
        self._tails: dict[int, _Tail] = {}
        #: Files that are objects, and will be registered with the ledger that names them.
        self._staged: dict[str, tuple[int, str]] = {}
        #: Size and time of each note that is registered.
        self._noted: dict[str, tuple[int, int]] = {}

    # ------------------------------------------------------------------------------- fetch

    def fetch(self, *, whole: bool = False) -> bool:
        """Make the copy equal to what is registered; returns whether the log has begun.

        Args:
            whole: fetch objects, too, which otherwise the first reader of each does.

        Raises:
            ChangefeedError: CF3007 the store, CF6001 the state cannot be reached; CF3001 what is
                registered is not there.
        """
        manifest = self._register.manifest()
        # Names of others, who keep things beside the log, have a folder.
        self._objects = {name: o for name, o in manifest.objects.items() if "/" not in name}
        self._tails = {}
        for part in manifest.tail:
            self._tails.setdefault(part.journal, _Tail()).add(part)
        if manifest.ledger is None:
            self._forget_copy()
            return False
        ledger = Ledger.from_json(manifest.ledger)
        replaced = {g.name for g in ledger.garbage}
        wanted = {n: o for n, o in self._objects.items() if n not in replaced}
        Copies.of(self._store, wanted).keep(self._root)
        self._listed = wanted
        if whole:
            for name, (size, found) in wanted.items():
                if not (self._root / name).exists():
                    self._store.fetch(found, self._root / name, size)
        for number in self._tails:
            parts = [part for part in manifest.tail if part.journal == number]
            if journal_name(number) not in replaced:
                copy = JournalCopy(self._root, number, self._store)
                copy.rebuild(parts, self._register.bodies)
        self._fetch_notes()
        write_ledger(self._root, ledger)
        return True

    def registered(self, name: str) -> bool:
        """Whether a file is an object, which may have no copy here yet."""
        return name in self._objects

    def _forget_copy(self) -> None:
        """Remove the copy of a log that another node has given up. A log of this host, which was
        never shared, stays: :meth:`adopt` registers it."""
        if not (self._root / COPIES_NAME).exists():
            return
        for folder in (self._root, self._notes):
            for name in [name for name, _ in _files(folder) if name != LOCK_NAME]:
                (folder / name).unlink()

    def _note_copies(self) -> None:
        listed = dict(self._objects)
        Copies.of(self._store, listed).write(self._root)
        self._listed = listed

    def _fetch_notes(self) -> None:
        notes = {name: body for name, body in self._register.notes().items() if "/" not in name}
        self._notes.mkdir(parents=True, exist_ok=True, mode=0o700)
        for path in self._notes.iterdir():
            if path.name not in notes and path.is_file():
                path.unlink()
        for name, body in notes.items():
            path = self._notes / name
            if not path.exists() or path.read_bytes() != body:
                path.write_bytes(body)
        self._noted = dict(_files(self._notes))

    # ------------------------------------------------------------------------------ append

    def append(
        self, journal: int, start: int, frame: bytes, segments: Sequence[tuple[str, int]]
    ) -> None:
        """Register a frame that was written to the copy, and the segments that it names.

        Raises:
            ChangefeedError: CF3007, nothing was registered. CF6001, it is not known whether it was:
                the log must be opened again. CF6003, another node has the source.
        """
        self._add(*self._prepared(journal, start, frame, segments))

    def append_ahead(
        self, journal: int, start: int, frame: bytes, segments: Sequence[tuple[str, int]]
    ) -> Upload:
        """Begin to store the objects of a frame that was written to the copy; :meth:`complete`
        registers it."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(AHEAD, thread_name_prefix="log-upload")
        return Upload(self._pool, partial(self._prepared, journal, start, frame, segments))

    def complete(self, upload: Upload) -> None:
        """Register a frame that was appended ahead: those before it must be registered.

        Raises:
            ChangefeedError: as :meth:`append`; after CF3007 the upload has begun again.
        """
        self._add(*upload.result())

    def close(self) -> None:
        """Begin no more uploads."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _prepared(
        self, journal: int, start: int, frame: bytes, segments: Sequence[tuple[str, int]]
    ) -> Prepared:
        objects = {name: (size, self._upload(name)) for name, size in segments}
        return objects, self._part(journal, start, frame)

    def _add(self, objects: Mapping[str, tuple[int, str]], part: TailPart) -> None:
        noted = dict(_files(self._notes))
        changed = {name for name, at in noted.items() if self._noted.get(name) != at}
        self._register.register(
            LogChange(
                tail=[part],
                objects=objects,
                notes={name: (self._notes / name).read_bytes() for name in changed},
                forget_notes=self._noted.keys() - noted.keys(),
            )
        )
        self._noted = noted
        self._objects |= objects
        self._tails.setdefault(part.journal, _Tail()).add(part)

    def _part(self, journal: int, start: int, data: bytes) -> TailPart:
        crc = part_checksum(start, data)
        if len(data) <= self._inline:
            return TailPart(journal, start, len(data), crc, None, data)
        found = self._upload(f"{journal_name(journal)}-{start:012d}", data)
        return TailPart(journal, start, len(data), crc, found, None)

    def _upload(self, name: str, data: bytes | None = None) -> str:
        content = self._root / name if data is None else data
        return self._store.put_new(f"{self._folder}/{name}", content)

    def cut(self, journal: int, end: int) -> None:
        """Forget the parts of a journal from ``end`` on: frames that no frontier completes.

        Raises:
            ChangefeedError: as :meth:`append`.
        """
        tail = self._tails.get(journal)
        if tail is not None and tail.end > end:
            self._register.register(LogChange(cut=(journal, end)))
            self._store.discard(tail.cut(end))

    # ------------------------------------------------------------------------------ ledger

    def stage(self, name: str, size: int) -> None:
        """Make a file an object, before :meth:`commit` or :meth:`settle` registers it.

        Raises:
            ChangefeedError: CF3007.
        """
        if name not in self._objects and name not in self._staged:
            self._staged[name] = (size, self._upload(name))

    def adopt(self, ledger: Ledger, end: int, live_segments: Sequence[tuple[str, int]]) -> None:
        """Register a log that is new, or that only this host had; its live journal ends at ``end``.

        Raises:
            ChangefeedError: as :meth:`append`.
        """
        files = [item for s in ledger.sealed for item in s.segments]
        files += [(journal_name(s.number), s.length) for s in ledger.sealed]
        for name, size in (*files, *live_segments):
            self.stage(name, size)
        Copies.of(self._store, {}).write(self._root)
        objects, self._staged = self._staged, {}
        data = (self._root / journal_name(ledger.live)).read_bytes()[:end]
        noted = dict(_files(self._notes))
        part = self._part(ledger.live, 0, data)
        self._register.register(
            LogChange(
                ledger=ledger.to_json(),
                tail=[part],
                objects=objects,
                notes={name: (self._notes / name).read_bytes() for name in noted},
            )
        )
        self._objects, self._noted = objects, noted
        self._tails = {ledger.live: _Tail()}
        self._tails[ledger.live].add(part)
        self._note_copies()

    def commit(self, ledger: Ledger, live_segments: Collection[str]) -> None:
        """Register a change of the ledger, which its copy gets at once: this writer must follow no
        other.

        New files that it names were staged. The begin of a new live journal is registered with the
        ledger that names it.

        Raises:
            ChangefeedError: CF6001, CF6003 as :meth:`append`.
        """
        begun: list[TailPart] = []
        if ledger.live not in self._tails:
            head = (self._root / journal_name(ledger.live)).read_bytes()[:FIRST_FRAME]
            begun = [self._part(ledger.live, 0, head)]
        kept = {journal_name(s.number) for s in ledger.sealed}
        kept |= {name for s in ledger.sealed for name, _ in s.segments}
        kept |= {*live_segments, *(g.name for g in ledger.garbage)}
        # A copy: the thread of the upkeep may stage meanwhile.
        fresh = {name: found for name, found in dict(self._staged).items() if name in kept}
        gone = [name for name in self._objects if name not in kept]
        journals = [
            number
            for number in self._tails
            if number != ledger.live and journal_name(number) not in kept
        ]
        self._register.register(
            LogChange(
                ledger=ledger.to_json(),
                tail=begun,
                objects=fresh,
                forget_objects=gone,
                forget_journals=journals,
            )
        )
        leftover = [self._objects.pop(name)[1] for name in gone]
        for number in journals:
            leftover += self._tails.pop(number).objects
        self._objects |= fresh
        for name in fresh:
            del self._staged[name]
        for part in begun:
            self._tails.setdefault(part.journal, _Tail()).add(part)
        if fresh or gone:
            self._note_copies()
        self._store.discard(leftover)

    def in_parts(self, journal: int) -> bool:
        """Whether a journal is still parts, and no object."""
        return journal in self._tails

    def settle(self, journal: int) -> None:
        """Register the staged object of a sealed journal in place of its parts.

        Raises:
            ChangefeedError: CF6001, CF6003 as :meth:`append`.
        """
        name = journal_name(journal)
        if name not in self._staged:
            return
        self._register.register(
            LogChange(objects={name: self._staged[name]}, forget_journals=[journal])
        )
        self._objects[name] = self._staged.pop(name)
        leftover = self._tails.pop(journal).objects
        self._note_copies()
        self._store.discard(leftover)

    def list_copies(self) -> None:
        """Let readers fetch what was appended since the last change of the ledger, too.

        Raises:
            OSError: the disk is full or fails.
        """
        if self._objects != self._listed:
            self._note_copies()

    def trim(self, limit: int) -> None:
        """Remove copies of listed objects (:func:`~changefeed.log.copies.trim_copies`). May run
        beside an append."""
        trim_copies(self._root, tuple(self._listed), limit)

    def sweep(self, now: int) -> int:
        """Remove old objects that no row names; returns how many.

        Args:
            now: wall clock, ns, of the store as far as that is known.

        Raises:
            ChangefeedError: CF3007, CF6001.
        """
        # The objects first: one that is registered meanwhile is young.
        found = [n for n, at in self._store.names(self._folder) if at < now - ORPHAN_AGE]
        if not found:
            return 0
        manifest = self._register.manifest()
        named = {name for _, name in manifest.objects.values()}
        named |= {part.object for part in manifest.tail if part.object}
        orphans = [name for name in found if name not in named]
        self._store.remove(orphans)
        return len(orphans)


def _files(folder: Path) -> Iterator[tuple[str, tuple[int, int]]]:
    """The whole files of a folder, with size and time of each."""
    try:
        entries = list(os.scandir(folder))
    except FileNotFoundError:
        return
    for entry in entries:
        if entry.is_file() and not entry.name.endswith(UNFINISHED):
            found = entry.stat()
            yield entry.name, (found.st_size, found.st_mtime_ns)
