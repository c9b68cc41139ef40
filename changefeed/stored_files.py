"""Every stored file of a state, read and compared with its checksums, while a node may run.

A file that vanishes because nobody needs it any more is no damage. Not read are transactions in
progress (``spool``): the process that writes them has their checksums, compares them itself, and
what is damaged is read from the source again.
"""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from changefeed.api import Result
from changefeed.catalog import Catalog, SourceLease
from changefeed.catalog.leases import held_elsewhere
from changefeed.core.clock import Timestamp
from changefeed.core.durable import PROOF, UNFINISHED, read_durable, sync_path, verify_proven
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.proofs import AlteredBytes, stretches
from changefeed.core.state import StateLayout
from changefeed.core.timings import LONGEST_LEASE
from changefeed.dataset.definition import SCHEME
from changefeed.dataset.source import DatasetSource
from changefeed.images.runs import ImageRun
from changefeed.images.shared import TOKEN_NAME, SharedImages
from changefeed.images.states import MANIFEST, StoreState, read_manifest
from changefeed.log.copies import COPIES_NAME
from changefeed.log.frame import frame_extents
from changefeed.log.journal import FIRST_FRAME, JournalFile, damaged, journal_name
from changefeed.log.ledger import HEAD_NAME, LEDGER_NAME, Head, Ledger, read_head, read_ledger
from changefeed.log.objects import ObjectStore
from changefeed.log.rows import check
from changefeed.shared_logs import SharedSource
from changefeed.sources.decoded.stored import NOTE, StoredTransaction
from sinks.registry import capabilities, open_sink, scheme_of

_COLUMNS: Final = ("source", "what", "files", "bytes", "file", "damage", "feeds", "remedy")

#: How often a small file is read again while a writer overwrites it in place.
_ATTEMPTS: Final = 20


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file that was read.

    Attributes:
        source: the source that it belongs to; empty for the state itself.
        what: the kind of file, in the plural.
        size: bytes that were read.
        damage: how it differs from what was written; None: it does not.
        upto: feeds that have delivered everything up to here do not need it; None: unknown.
        feed: the only feed that needs it.
    """

    source: str
    what: str
    name: str
    size: int
    damage: ChangefeedError | None = None
    upto: Timestamp | None = None
    feed: str = ""

    def needed_by(self, catalog: Catalog) -> list[str]:
        """The names of the feeds that read it."""
        if self.feed:
            return [self.feed]
        return [
            job.name
            for job in catalog.source_jobs(self.source)
            if self.upto is None or job.high_water is None or job.high_water < self.upto
        ]


def verify_files(catalog: Catalog) -> Result:
    """Read all files: a row for each kind, and one for each file that is damaged; then the result
    has a ``failure``. A notice counts what was read, of all sources together.

    Raises:
        ChangefeedError: the state cannot be read.
    """
    read: dict[tuple[str, str], list[StoredFile]] = {}
    for file in _stored_files(catalog):
        read.setdefault((file.source, file.what), []).append(file)
    result = Result(columns=_COLUMNS)
    for (source, what), files in read.items():
        size = sum(file.size for file in files)
        result.rows.append((source or None, what, len(files), size, None, None, None, None))
        for file in files:
            if file.damage is not None:
                feeds = ", ".join(file.needed_by(catalog))
                found = (file.name, _sentence(file.damage), feeds, file.damage.hint)
                result.rows.append((source or None, what, None, file.size, *found))
    every = [file for files in read.values() for file in files]
    result.notices.append(_read_in_all(every))
    damaged_files = sum(file.damage is not None for file in every)
    if damaged_files:
        count = "1 file is" if damaged_files == 1 else f"{damaged_files} files are"
        failure = ChangefeedError(Code.LOG_DAMAGED, f"{count} damaged")
        return replace(result, failure=failure)
    return result


def _read_in_all(files: Sequence[StoredFile]) -> str:
    """``read 12 files, 3,456 bytes: state 1 (512 bytes), journals 11 (2,944 bytes)``."""
    kinds: dict[str, list[int]] = {}
    for file in files:
        kinds.setdefault(file.what, []).append(file.size)
    listed = (f"{what} {len(sizes)} ({sum(sizes):,} bytes)" for what, sizes in kinds.items())
    size = sum(file.size for file in files)
    return f"read {len(files):,} files, {size:,} bytes: {', '.join(listed)}"


def _sentence(damage: ChangefeedError) -> str:
    facts = f" ({damage.detail})" if damage.detail else ""
    return f"{damage.code.number}: {damage.message}{facts}"


def _stored_files(catalog: Catalog) -> Iterator[StoredFile]:
    layout = StateLayout(Path(catalog.directory))
    state_bytes = catalog.verify()
    if state_bytes is not None:
        yield StoredFile("", "state", layout.database.name, state_bytes)
    place = catalog.log_place
    for source in (state.name for state in catalog.source_states()):
        if place is None:
            yield from _of_source(source, layout)
            continue
        with tempfile.TemporaryDirectory(prefix="changefeed-") as folder:
            copy = StateLayout(Path(folder))
            damage = _copied(catalog, source, place, copy)
            if damage is not None:
                yield StoredFile(source, "objects", damage.detail or source, 0, damage)
            yield from _of_source(source, copy)
    yield from _readers(catalog)
    yield from _datasets(catalog)


def _copied(
    catalog: Catalog, source: str, place: str, layout: StateLayout
) -> ChangefeedError | None:
    """Copy the shared log of a source; returns what was not as it is registered."""
    shared = SharedSource(catalog, SourceLease(source, "", 0), place, layout)
    root, images = layout.log(source), layout.images(source)
    root.mkdir(parents=True, exist_ok=True)
    for _ in range(_ATTEMPTS):
        seen = catalog.log_manifest(source)
        try:
            if shared.log().fetch(whole=True) and (ledger := read_ledger(root)) is not None:
                length = (root / journal_name(ledger.live)).stat().st_size
                head = Head(ledger.generation, ledger.live, length)
                (root / HEAD_NAME).write_bytes(head.to_bytes())
            SharedImages(shared.register, shared.store, images, shared.folder, -1).fetch()
            return None
        except ChangefeedError as error:
            # A node may have made an object of rows, or merged objects, since they were listed.
            if catalog.log_manifest(source) == seen:
                return error
            found = error
    return found


def bring_logs_home(catalog: Catalog) -> None:
    """Move the shared logs of a state, with all that belongs to them, into this machine's folder.
    The state then has one node. Does nothing if no log is shared.

    Raises:
        ChangefeedError: CF1303 a node runs, or the log of a source is on the disk of another
            machine; CF6003 another node has a source; CF3001, CF3007 something of a log cannot be
            read. The logs then stay where they are.
    """
    place = catalog.log_place
    if place is None:
        return
    if alive := catalog.live_nodes():
        node = alive[0]
        raise ChangefeedError(
            Code.NOT_SUPPORTED,
            f"node {node.id} on {node.hostname} runs this state",
            hint="stop all nodes first (SHOW NODES); one that has died is gone after 10 seconds.",
        )
    leases: list[SourceLease] = []
    try:
        _copy_home(catalog, place, leases)
        objects = catalog.forget_log_place(leases)
    except BaseException:
        for lease in leases:
            with suppress(ChangefeedError):  # it ends by itself
                catalog.release_lease(lease)
        raise
    ObjectStore(place).discard(objects)


def _copy_home(catalog: Catalog, place: str, leases: list[SourceLease]) -> None:
    """Take every source, adding to ``leases``, and copy what is shared of it."""
    layout, mover = StateLayout(Path(catalog.directory)), f"move-{uuid.uuid4().hex[:12]}"
    for source in [state.name for state in catalog.source_states()]:
        lease = catalog.acquire_source(source, mover, LONGEST_LEASE)
        if lease is None:
            raise held_elsewhere(source)
        leases.append(lease)
        if source in catalog.unmoved_logs():
            if not (layout.log(source) / LEDGER_NAME).exists():
                raise ChangefeedError(
                    Code.NOT_SUPPORTED,
                    f"the change log of {source!r} is on the disk of another machine",
                    hint="run this there.",
                )
            continue
        damage = _copied(catalog, source, place, layout)
        if damage is not None:
            raise damage
        _make_own(layout, source)
        catalog.heartbeat(mover, leases, LONGEST_LEASE)


def _make_own(layout: StateLayout, source: str) -> None:
    """Make copies durable, and no longer copies. The next writer says how far the log is whole."""
    (layout.log(source) / HEAD_NAME).unlink(missing_ok=True)
    for folder in (layout.log(source), layout.beside_log(source), layout.images(source)):
        if folder.exists():
            for path in (*folder.rglob("*"), folder):
                sync_path(path)
    for mark in (layout.log(source) / COPIES_NAME, layout.images(source) / TOKEN_NAME):
        mark.unlink(missing_ok=True)
        if mark.parent.exists():
            sync_path(mark.parent)


def _of_source(source: str, layout: StateLayout) -> Iterator[StoredFile]:
    yield from _log(source, layout.log(source))
    yield from _images(source, layout.images(source))
    yield from _notes(source, layout.beside_log(source))
    yield from _prepared(source, layout.beside_log(source))


# ---------------------------------------------------------------------------------- change log


def _log(source: str, root: Path) -> Iterator[StoredFile]:
    try:
        ledger = read_ledger(root)
    except ChangefeedError as error:
        yield StoredFile(source, "indexes", LEDGER_NAME, 0, error)
        return
    if ledger is None:
        return
    yield StoredFile(source, "indexes", LEDGER_NAME, (root / LEDGER_NAME).stat().st_size)
    if not any(read_head(root) is not None for _ in range(_ATTEMPTS)):
        gone = damaged(HEAD_NAME, "it cannot be read")
        yield StoredFile(source, "indexes", HEAD_NAME, 0, gone)
    known: set[int] = set()
    # Journals that were merged meanwhile are read in their new form.
    while left := [one for one in _journals(root, ledger) if one[0] not in known]:
        number, length, upto = left[0]
        known.add(number)
        yield from _journal(source, root, number, length, upto)
        ledger = read_ledger(root) or ledger


def _journals(root: Path, ledger: Ledger) -> list[tuple[int, int, Timestamp | None]]:
    """Number, length and last timestamp of the journals; the live one as far as HEAD says."""
    head = None
    for _ in range(_ATTEMPTS):
        head = read_head(root)
        if head is not None and head.live == ledger.live:
            break
        # HEAD is being overwritten, or the log has begun another journal since.
        ledger = read_ledger(root) or ledger
    found: list[tuple[int, int, Timestamp | None]] = [
        (sealed.number, sealed.length, sealed.frontier.at) for sealed in ledger.sealed
    ]
    if head is not None and head.live == ledger.live:
        found.append((ledger.live, head.length, None))
    return found


def _journal(
    source: str, root: Path, number: int, length: int, upto: Timestamp | None
) -> Iterator[StoredFile]:
    """A journal, and the segments that its frames name."""
    name, damage = journal_name(number), None
    segments: list[list[Any]] = []
    try:
        journal = JournalFile(root, number)
        for frame in journal.frames(FIRST_FRAME, length):
            segments += [entry for entry in frame.header.get("e", ()) if entry[0] == "p"]
            for extent in frame_extents(frame, number):
                try:
                    check(extent, journal.read(extent.offset, extent.length), name)
                except ChangefeedError as error:
                    damage = damage or error
    except FileNotFoundError:
        if not _needs(root, number):
            return
        damage = damaged(name, "file is gone")
    except ChangefeedError as error:
        damage = error
    yield StoredFile(source, "journals", name, length, damage, upto)
    for entry in segments:
        try:
            size = _read_segment(root, entry)
        except FileNotFoundError:
            if not _needs(root, number):
                continue
            yield StoredFile(
                source, "segments", entry[2], 0, damaged(entry[2], "file is gone"), upto
            )
        except ChangefeedError as error:
            yield StoredFile(source, "segments", entry[2], entry[3], error, upto)
        else:
            yield StoredFile(source, "segments", entry[2], size, None, upto)


def _needs(root: Path, number: int) -> bool:
    """Whether the log still consists of this journal and its segments."""
    ledger = read_ledger(root)
    return ledger is not None and (
        number == ledger.live or any(number == sealed.number for sealed in ledger.sealed)
    )


def _read_segment(root: Path, entry: list[Any]) -> int:
    """Compare the file of a frame's entry (:mod:`changefeed.log.frame`); returns its size.

    Raises:
        FileNotFoundError: it is gone.
        ChangefeedError: CF3001, it differs from what was written.
    """
    name, size, groups, marks = entry[2], entry[3], entry[6], entry[8]
    fd = os.open(root / name, os.O_RDONLY)
    try:
        if os.fstat(fd).st_size != size:
            raise damaged(name, f"it has {os.fstat(fd).st_size} bytes, and had {size}")
        for number, stretch in enumerate(stretches(marks)):
            try:
                stretch.verify(fd)
            except (AlteredBytes, OSError) as error:
                group = number // 2
                where = f"row group {group}" if group < len(groups) else "the footer"
                raise damaged(name, f"{where} cannot be read", reason=error) from error
    finally:
        os.close(fd)
    return int(size)


# --------------------------------------------------------------- images, notes, and readers


def _images(source: str, root: Path) -> Iterator[StoredFile]:
    for folder in (entry for entry in _listed(root) if entry.is_dir()):
        name = f"{folder.name}/{MANIFEST}"
        try:
            memo = read_manifest(folder)
        except ChangefeedError as error:
            yield StoredFile(source, "row images", name, 0, error)
            continue
        if memo is None or memo["state"] == StoreState.BROKEN:
            continue  # an empty store, or one that was given up and is made again
        yield StoredFile(source, "row images", name, len(str(memo)))
        for run in memo.get("runs", ()):
            name, damage = f"{folder.name}/{run['file']}", None
            try:
                for _ in ImageRun.from_memo(folder, run).batches():
                    pass
            except ChangefeedError as error:
                now = read_manifest(folder)
                if now is None or run["file"] not in [r["file"] for r in now.get("runs", ())]:
                    continue
                damage = error
            yield StoredFile(source, "row images", name, run["bytes"], damage)


def _notes(source: str, root: Path) -> Iterator[StoredFile]:
    paths = [path for path in _listed(root) if path.is_file() and path.suffix != UNFINISHED]
    # Other programs write these, so each has its checksum in a note of its own.
    proven = {path.with_suffix("") for path in paths if path.suffix == PROOF}
    for path in dict.fromkeys([*paths, *sorted(proven)]):
        try:
            size = _read_note(path, proven=path in proven)
        except FileNotFoundError as error:
            if path in proven:
                yield StoredFile(source, "notes", path.name, 0, _damaged_note(path, error))
        except (OSError, AlteredBytes) as error:
            yield StoredFile(source, "notes", path.name, 0, _damaged_note(path, error))
        else:
            yield StoredFile(source, "notes", path.name, size)


def _read_note(path: Path, *, proven: bool) -> int:
    if proven:
        verify_proven(path)
        return path.stat().st_size
    for _ in range(_ATTEMPTS - 1):
        try:
            return len(read_durable(path))
        except AlteredBytes:
            continue  # it is perhaps being overwritten
    return len(read_durable(path))


def _damaged_note(path: Path, error: Exception) -> ChangefeedError:
    said = "a note of the source cannot be read"
    return ChangefeedError(Code.LOG_DAMAGED, said, detail=f"file {path}: {error}")


def _prepared(source: str, root: Path) -> Iterator[StoredFile]:
    """Prepared transactions that are not decided."""
    for note in sorted(root.glob(f"*/*/{NOTE}")):
        kind, name = "prepared transactions", str(note.parent.relative_to(root))
        try:
            stored, _ = StoredTransaction.open(note.parent)
            for path, size in [(note, note.stat().st_size), *stored.verify()]:
                yield StoredFile(source, kind, f"{name}/{path.name}", size)
        except (OSError, ChangefeedError) as error:
            # Else it was decided meanwhile.
            if isinstance(error, ChangefeedError) and note.exists():
                yield StoredFile(source, kind, name, 0, error)


def _readers(catalog: Catalog) -> Iterator[StoredFile]:
    """What feeds have stored for consumers that read the change log themselves."""
    for job in catalog.jobs(include_finished=False):
        if job.sink_uri is None:
            continue
        try:
            uri = catalog.resolve_uri(job.sink_uri)
            pulled = capabilities(scheme_of(uri)).pulled
        except ChangefeedError:
            continue  # its package or its connection is gone; SHOW CHANGEFEED says so
        if not pulled:
            continue
        for path, size, damage in open_sink(uri).pull().verify():
            yield StoredFile(job.source, "readers", str(path), size, damage, feed=job.name)


def _datasets(catalog: Catalog) -> Iterator[StoredFile]:
    """Versions and histories of the datasets that are connections."""
    for connection in catalog.connections():
        if not connection.uri.lower().startswith(f"{SCHEME}:"):
            continue
        try:
            store = DatasetSource(connection.name, connection.uri).store()
        except ChangefeedError:
            continue  # its configuration cannot be read; its feeds say so
        for path, size, damage in store.verify():
            yield StoredFile(connection.name, "datasets", str(path), size, damage)


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
