"""Schema changes that no row follows.

PostgreSQL announces a table's new shape with the first row that has it. Until then nobody hears of
an ALTER TABLE: a copy keeps the old columns, and a column's default never reaches its rows. So the
catalog is looked at when a heartbeat is due and the server's log has grown: what it shows, and
where the log ends just after. Once the stream has come to that place, every row of the old shape
was read (ALTER TABLE excludes writers), and a shape that is still not ours is a change.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from changefeed.core.clock import SYSTEM_CLOCK, Clock
from changefeed.core.errors import ChangefeedError, Code
from changefeed.sources.postgres.connect import LateSession, source_errors
from changefeed.sources.postgres.details import published, read_details
from changefeed.sources.postgres.lsn import LOG_END, parse_lsn
from changefeed.sources.postgres.relations import Relations, ShapeChange, UnannouncedChange

#: At most this share of the time is spent on looking.
_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class _Look:
    """What the catalog showed, and where the log ended then."""

    lsn: int
    found: Mapping[int, UnannouncedChange]


class IdleChanges:
    """Finds shapes that were not announced. Used by the thread that reads the stream."""

    def __init__(
        self,
        session: LateSession,
        publication: str,
        relations: Relations,
        clock: Clock = SYSTEM_CLOCK,
        wanted: Callable[[], Collection[int] | None] = lambda: None,
    ) -> None:
        """``wanted``: the tables to look at; None: those of the publication, which is ours."""
        self._wanted = wanted
        self._clock = clock
        self._session = session
        self._publication = publication
        self._relations = relations
        self._pending: _Look | None = None
        self._looked = 0
        self._next = 0.0

    @property
    def waiting(self) -> bool:
        """A change was found that is true from a place on which was not read yet."""
        return self._pending is not None and bool(self._pending.found)

    def due(self, lsn: int, *, hasty: bool = False) -> list[ShapeChange]:
        """The changes that are true from here on; everything up to ``lsn`` was read.

        ``hasty``: somebody waits, so the catalog is looked at, however soon after the last time.

        Raises:
            ChangefeedError: the catalog cannot be read.
        """
        began = self._clock.monotonic()
        if self._pending is None and lsn > self._looked and (hasty or began >= self._next):
            self._pending = self._look()
            now = self._clock.monotonic()
            self._next = now + (now - began) / _SHARE
        if self._pending is None or lsn < self._pending.lsn:
            return []
        look, self._pending = self._pending, None
        self._looked = look.lsn
        return [c for oid, one in look.found.items() if (c := self._relations.adopt(oid, one))]

    def _look(self) -> _Look:
        session = self._session.get()
        with source_errors("look for schema changes"), session.transaction():
            session.execute("set transaction isolation level repeatable read, read only")
            wanted = self._wanted()
            if wanted is None:
                found = read_details(session, published(session, self._publication))
            else:
                found = read_details(session, wanted, self._publication)
            # After the snapshot: what it shows committed below this place.
            end = session.execute(f"select {LOG_END}").fetchone()
        if end is None:
            raise ChangefeedError(Code.STREAM_BROKE, "the source did not say where its log ends")
        return _Look(parse_lsn(end[0]), self._relations.unannounced(found))
