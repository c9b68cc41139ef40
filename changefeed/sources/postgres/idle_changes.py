"""Schema changes that no row follows, and changes of rows that the stream does not have.

PostgreSQL announces a table's new shape with the first row that has it. Until then nobody hears of
an ALTER TABLE: a copy keeps the old columns, and a column's default never reaches its rows. So the
catalog is looked at when a heartbeat is due and the server's log has grown: what it shows, and
where the log ends just after. Once the stream has come to that place, every row of the old shape
was read (ALTER TABLE excludes writers), and a shape that is still not ours is a change.

What holds the tables' rows is looked at in the same moment (:mod:`.storage_changes`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from changefeed.core.clock import SYSTEM_CLOCK, Clock
from changefeed.core.errors import ChangefeedError, Code
from changefeed.sources.decoded.flushes import ShapeChange
from changefeed.sources.postgres.connect import LateSession, source_errors
from changefeed.sources.postgres.details import published, read_details
from changefeed.sources.postgres.lsn import LOG_END, parse_lsn
from changefeed.sources.postgres.relations import Relations, UnannouncedChange
from changefeed.sources.postgres.storage import read_storage
from changefeed.sources.postgres.storage_changes import HeapEvidence, StorageWatch, StoredChange
from changefeed.sources.postgres.types import TableDetails

#: At most this share of the time is spent on looking.
_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class _Look:
    """What the catalog showed, and where the log ended then.

    Attributes:
        lsn: where.
        after: how far the stream was before: everything that committed up to there is shown.
        second: it was made because the stream had gone on after another one.
        found: shapes that were not announced.
        tables: all tables.
        stored: what holds their rows is not what was seen last.
    """

    lsn: int
    after: int
    found: Mapping[int, UnannouncedChange]
    tables: Mapping[int, TableDetails] = field(default_factory=dict)
    stored: bool = False
    second: bool = False

    @property
    def finds(self) -> bool:
        """Something has changed."""
        return bool(self.found) or self.stored


class IdleChanges:
    """Finds shapes that were not announced. Used by the thread that reads the stream."""

    def __init__(
        self,
        session: LateSession,
        publication: str,
        relations: Relations,
        storage: StorageWatch,
        clock: Clock = SYSTEM_CLOCK,
        wanted: Callable[[], Collection[int] | None] = lambda: None,
    ) -> None:
        """``wanted``: the tables to look at; None: those of the publication, which is ours."""
        self._wanted = wanted
        self._clock = clock
        self._storage = storage
        self._told = True
        self._session = session
        self._publication = publication
        self._relations = relations
        self._pending: _Look | None = None
        self._looked = 0
        self._next = 0.0

    def examined(self, lsn: int) -> bool:
        """Whether every change that is true up to ``lsn`` was returned, so that a statement which
        waits for that place (SYNC) may go on. It was not if a change was found that is true from a
        later place on, or if there was no look since because looks would take too much time."""
        look = self._pending
        return lsn <= (self._looked if look is None or look.finds else look.after)

    def due(self, lsn: int, *, hasty: bool = False) -> list[ShapeChange]:
        """The changes that are true from here on; everything up to ``lsn`` was read.

        ``hasty``: a caller waits, so the catalog is looked at, however soon after the last time.

        Raises:
            ChangefeedError: the catalog cannot be read.
        """
        look = self._pending
        if look is None:
            self.look(lsn, hasty=hasty)
        elif look.finds and look.after < lsn >= look.lsn and not look.second:
            # Its changes come with a frontier beyond it: what committed up to there belongs to
            # them.
            self._pending = replace(self._look(lsn), second=True)
        look = self._pending
        if look is None or lsn < look.lsn:
            return []
        self._pending = None
        self._looked = look.after
        self._told = False
        shapes = {o: c for o, one in look.found.items() if (c := self._relations.adopt(o, one))}
        return [*self._with_rows(shapes, look), *shapes.values()]

    def look(self, lsn: int, *, hasty: bool = False) -> None:
        """Look at the catalog if the log has grown, for the next :meth:`due`; everything up to
        ``lsn`` was read.

        Raises:
            ChangefeedError: the catalog cannot be read.
        """
        now = self._clock.monotonic()
        if self._pending is None and lsn > self._looked and (hasty or now >= self._next):
            self._pending = self._look(lsn)

    def _with_rows(self, shapes: dict[int, ShapeChange], look: _Look) -> list[ShapeChange]:
        """The changes of tables whose stored rows have changed; takes those from ``shapes``."""
        stored = self._storage.changes(HeapEvidence(self._session), look.tables)
        changes = []
        for oid, one in stored.items():
            shape = shapes.pop(oid, None)
            same = self._relations.unchanged(look.tables[oid]) if shape is None else [shape]
            changes += [_stored(change, one) for change in same]
        return changes

    def delivered(self) -> None:
        """What :meth:`due` returned is durable in the change log."""
        if not self._told:
            self._told = True
            self._storage.reported()

    def _look(self, after: int) -> _Look:
        began = self._clock.monotonic()
        look = self._read(after)
        now = self._clock.monotonic()
        self._next = now + (now - began) / _SHARE
        return look

    def _read(self, after: int) -> _Look:
        session = self._session.get()
        with source_errors("look for schema changes"), session.transaction():
            session.execute("set transaction isolation level repeatable read, read only")
            wanted = self._wanted()
            if wanted is None:
                found = read_details(session, published(session, self._publication))
            else:
                found = read_details(session, wanted, self._publication)
            storage = read_storage(session, found)
            # After the snapshot: what it shows committed below this place.
            end = session.execute(f"select {LOG_END}").fetchone()
        if end is None:
            raise ChangefeedError(Code.STREAM_BROKE, "the source did not say where its log ends")
        stored = self._storage.look(storage)
        return _Look(parse_lsn(end[0]), after, self._relations.unannounced(found), found, stored)


def _stored(change: ShapeChange, stored: StoredChange) -> ShapeChange:
    return replace(change, rewritten=True, moved=stored.moved, why=stored.why)
