"""What the sources of a state have in a store that outlives hosts: the rows of its catalog and the
store that they name."""

from __future__ import annotations

import os
import shutil
import threading
import uuid
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from changefeed.catalog import Catalog, SourceLease
from changefeed.catalog.leases import held_elsewhere
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.log_manifest import LogChange, LogManifest, LogNews
from changefeed.core.processes import process_space
from changefeed.core.state import StateLayout

# Loaded on use, as all of the log: a listing needs none of it.
if TYPE_CHECKING:
    from changefeed.log.follower import LogFollower
    from changefeed.log.objects import ObjectStore
    from changefeed.log.shared import SharedLog


def keep_logs_at(catalog: Catalog, address: str) -> None:
    """Keep the logs of a state in the store at ``address``. A node's own logs move there when it
    starts; the state remembers the address.

    Raises:
        ChangefeedError: CF1201, CF1202 no address of a store; CF3007 the store cannot be used;
            CF1303 the state is on this machine, has its logs in another store, or has a node that
            keeps them on its disk.
    """
    from changefeed.log.objects import ObjectStore

    store = ObjectStore(address)
    known = catalog.log_place
    if known == address:
        return
    if not catalog.on_server:
        raise ChangefeedError(
            Code.NOT_SUPPORTED,
            "a shared log needs a state that all nodes reach",
            hint="name one with --state postgresql://..",
        )
    if known is not None and (place := ObjectStore(known).shown) != store.shown:
        raise ChangefeedError(
            Code.NOT_SUPPORTED,
            f"the logs of this state are in {place}",
            hint="start without --log: the state remembers it.",
        )
    if known is None and catalog.live_nodes():
        raise ChangefeedError(
            Code.NOT_SUPPORTED,
            "a node runs this state and keeps its logs on its own disk",
            hint="stop that node, and start it with --log first: its logs move to the store.",
        )
    store.probe()
    catalog.set_log_place(address)


def is_elsewhere(catalog: Catalog, source: str) -> bool:
    """Whether the log of a source is shared, and no node of this machine's directory writes it."""
    if catalog.log_place is None:
        return False
    from changefeed.log.ledger import HEAD_NAME

    if not (StateLayout(Path(catalog.directory)).log(source) / HEAD_NAME).exists():
        return True
    holder = catalog.source_holders().get(source)
    return all(node.host != process_space() for node in catalog.live_nodes() if node.id == holder)


class SourceManifest:
    """The rows of one source's log (:class:`~changefeed.log.follower.LogRows`)."""

    def __init__(self, catalog: Catalog, source: str) -> None:
        self._catalog = catalog
        self._source = source

    def news(self, journal: int, start: int) -> LogNews:
        return self._catalog.log_news(self._source, journal, start)

    def objects(self, names: Collection[str]) -> Mapping[str, tuple[int, str]]:
        return self._catalog.log_objects(self._source, names)

    def manifest(self) -> LogManifest:
        return self._catalog.log_manifest(self._source)

    def bodies(self, journal: int, start: int) -> Iterator[tuple[int, bytes]]:
        return self._catalog.tail_bodies(self._source, journal, start)


class SourceRegister(SourceManifest):
    """The rows of one source's log, for the node that holds ``lease``
    (:class:`~changefeed.log.shared.LogRegister`)."""

    def __init__(self, catalog: Catalog, lease: SourceLease) -> None:
        super().__init__(catalog, lease.source)
        self._lease = lease

    def notes(self) -> Mapping[str, bytes]:
        return self._catalog.log_notes(self._source)

    def register(self, change: LogChange) -> None:
        self._catalog.register(self._lease, change)


class FollowedLogs:
    """The logs of other nodes that this process follows. All readers of a log share a follower."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: By state and source, each with the count of those that read it.
        self._followers: dict[tuple[str, str], tuple[LogFollower, int]] = {}

    def open(self, catalog: Catalog, source: str, copies: int | None = None) -> LogFollower:
        """The follower of a log, which :meth:`close` gives back. ``copies``: the first one's limit
        in bytes for the copies of objects; by default a gigabyte.

        Raises:
            ChangefeedError: CF6001 the state, CF3007 the store cannot be reached; CF3001 the log is
                damaged; CF3004 this host has no room for its newest part.
        """
        key = catalog.state_id, source
        with self._lock:
            follower, readers = self._followers.get(key) or (_follower(catalog, source, copies), 0)
            self._followers[key] = follower, readers + 1
            return follower

    def close(self, follower: LogFollower) -> None:
        """Give back what :meth:`open` returned; with the last one its directory goes."""
        with self._lock:
            key = next(k for k, (found, _) in self._followers.items() if found is follower)
            readers = self._followers[key][1] - 1
            self._followers[key] = follower, readers
            if readers:
                return
            del self._followers[key]
        follower.close()
        shutil.rmtree(follower.root, ignore_errors=True)


def _follower(catalog: Catalog, source: str, copies: int | None) -> LogFollower:
    from changefeed.log.follower import COPY_BYTES, LogFollower
    from changefeed.log.objects import ObjectStore
    from changefeed.log.writer import lock_log

    place, folder = catalog.log_place, StateLayout(Path(catalog.directory).absolute()).follow
    if place is None:
        raise ValueError("the logs of the state are not shared")
    for left in folder.glob("log-*"):
        # Of a process that has ended.
        with suppress(ChangefeedError, OSError):
            os.close(lock_log(left))
            shutil.rmtree(left)
    name = uuid.uuid4().hex[:12]
    fresh, root = folder / f"new-{name}", folder / f"log-{name}"
    fresh.mkdir(parents=True, mode=0o700)
    lock = lock_log(fresh)
    # Only now another process may find it.
    fresh.rename(root)
    follower = LogFollower(
        SourceManifest(catalog, source),
        ObjectStore(place),
        root,
        lock,
        copies=COPY_BYTES if copies is None else copies,
    )
    try:
        follower.start()
    except BaseException:
        follower.close()
        shutil.rmtree(root)
        raise
    return follower


@cache
def followed_logs() -> FollowedLogs:
    """Those of this process."""
    return FollowedLogs()


@contextmanager
def readable_log(catalog: Catalog, source: str) -> Iterator[Path]:
    """The directory of a source's change log, for a short look: the node's, or what this process
    follows.

    Raises:
        ChangefeedError: as :meth:`FollowedLogs.open`.
    """
    if not is_elsewhere(catalog, source):
        yield StateLayout(Path(catalog.directory)).log(source)
        return
    follower = followed_logs().open(catalog, source)
    try:
        yield follower.root
    finally:
        followed_logs().close(follower)


class SharedSource:
    """What a source has in a store that outlives its host, for the node that holds the lease."""

    def __init__(
        self,
        catalog: Catalog,
        lease: SourceLease,
        place: str,
        layout: StateLayout | None = None,
    ) -> None:
        """
        Args:
            layout: where copies are; the node's directory when not given.

        Raises:
            ChangefeedError: CF1201, CF1202 ``place`` is no address of a store.
        """
        from changefeed.log.objects import ObjectStore

        self.register = SourceRegister(catalog, lease)
        self.store: ObjectStore = ObjectStore(place)
        self.token = lease.token
        self._layout = layout or StateLayout(Path(catalog.directory))
        self._source = lease.source
        self.folder = f"{catalog.state_id}/{self._layout.log(lease.source).name}"

    @classmethod
    def of(cls, catalog: Catalog, lease: SourceLease | None) -> SharedSource | None:
        """None: the state keeps its logs in the node's directory."""
        place = catalog.log_place
        return None if place is None or lease is None else cls(catalog, lease, place)

    def log(self) -> SharedLog:
        """The shared change log."""
        from changefeed.log.shared import SharedLog

        source, layout = self._source, self._layout
        notes = layout.beside_log(source)
        return SharedLog(self.register, self.store, layout.log(source), self.folder, notes)


def remove_shared_log(catalog: Catalog, source: str, lease: SourceLease | None) -> None:
    """Remove the shared log of a source, if there is one; its copy in the directory stays.

    Args:
        lease: of the node that has the source; None for a process that is no node.

    Raises:
        ChangefeedError: CF6003, another node has the source; CF3007, objects may be left, which the
            sweep of a later log removes.
    """
    place = catalog.log_place
    if place is None:
        return
    from changefeed.log.objects import ObjectStore

    if lease is None:
        taken = catalog.acquire_source(source, f"statement-{uuid.uuid4().hex[:12]}", 1.0)
        if taken is None:
            raise held_elsewhere(source)
        lease = taken
    ObjectStore(place).remove(catalog.forget_shared_log(lease))
