"""Names to complete, read in the background: a keystroke never waits for a source.

What is asked for the first time is waited for a moment, which only the thread of completion
does; what takes longer is empty now, and ``changed`` is called when it is there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from changefeed.backend import Backend
from changefeed.core.clock import SYSTEM_CLOCK, Clock
from changefeed.core.errors import ChangefeedError

if TYPE_CHECKING:
    from changefeed.api import FeedFacts, KnownNames, ShownTable

T = TypeVar("T")

#: Names older than this are read again, seconds.
FRESH = 15.0

#: How long the first reading is waited for, seconds.
PATIENCE = 0.2


@dataclass(slots=True)
class _Entry:
    value: Any
    at: float
    reading: bool
    read: threading.Event = field(default_factory=threading.Event)


class NameCache:
    """Connections, feeds, tables and columns of a backend. Thread-safe."""

    def __init__(
        self,
        backend: Backend,
        *,
        changed: Callable[[], None] | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """``changed`` is called from a thread when something new is known."""
        self._backend = backend
        self._clock = clock
        self._changed = changed
        self._lock = threading.Lock()
        self._entries: dict[Hashable, _Entry] = {}

    def connections(self) -> list[str]:
        """Names of the external connections."""
        return list(self._names().connections)

    def users(self) -> tuple[str, ...]:
        """Names of the users."""
        return self._names().users

    def functions(self) -> dict[str, str]:
        """Python functions of queries, with the signature of each."""
        return self._names().functions

    def schedules(self) -> dict[str, str]:
        """The schedules, with the times of each."""
        return self._names().schedules

    def source(self) -> str | None:
        """What unqualified tables belong to, as it was known a moment ago."""
        if not self._backend.opened:
            return None
        return self._backend.session.source or self._asked(*self._all()).value.source

    def schemes(self) -> dict[str, str]:
        """External connections, with the scheme of each."""
        return self._names().connections

    def feeds(self) -> tuple[FeedFacts, ...]:
        """The changefeeds."""
        return self._names().feeds

    def tables(self, source: str | None = None) -> list[tuple[str, str]]:
        """(schema, name) of each table of a connection, or of the source in use."""
        name = source or self._source()
        if name is None:
            return []
        return self._kept(("tables", name), lambda: self._backend.facts.tables(name), [])

    def columns(self, table: tuple[str, ...], source: str | None = None) -> list[tuple[str, str]]:
        """(name, type) of the columns of a table, by the parts of its name."""
        found = self._table(table, source)
        return [] if found is None else [(c.name, c.type) for c in found.columns]

    def partitions(self, table: tuple[str, ...], source: str | None = None) -> list[str]:
        """The partitions of a table, by the parts of its name."""
        found = self._table(table, source)
        return [] if found is None else list(found.partitions)

    def forget(self) -> None:
        """Read everything again when it is asked for next, because a statement ran. Until then the
        old names serve."""
        with self._lock:
            for entry in self._entries.values():
                entry.at = float("-inf")
                entry.read.clear()

    # -- reading --------------------------------------------------------------------------

    def _names(self) -> KnownNames:
        return self._kept(*self._all())

    def _all(self) -> tuple[Hashable, Callable[[], KnownNames], KnownNames]:
        from changefeed.api import KnownNames

        return "names", lambda: self._backend.facts.names(), KnownNames()

    def _source(self) -> str | None:
        if not self._backend.opened:
            return None
        return self._backend.session.source or self._names().source

    def _table(self, table: tuple[str, ...], source: str | None) -> ShownTable | None:
        name = table[0] if len(table) == 3 else source or self._source()
        if name is None:
            return None
        return self._kept(
            ("table", name, table), lambda: self._backend.facts.table(name, table[-2:]), None
        )

    def _kept(self, key: Hashable, read: Callable[[], T], default: T) -> T:
        entry = self._asked(key, read, default)
        if self._backend.opened:
            entry.read.wait(PATIENCE)
        with self._lock:
            value: T = entry.value
            return value

    def _asked(self, key: Hashable, read: Callable[[], T], default: T) -> _Entry:
        with self._lock:
            entry = self._entries.setdefault(key, _Entry(default, float("-inf"), False))
            stale = self._clock.monotonic() - entry.at > FRESH
            if stale and not entry.reading and self._backend.opened:
                entry.reading = True
                threading.Thread(
                    target=self._read, args=(entry, read), name="shell-names", daemon=True
                ).start()
            return entry

    def _read(self, entry: _Entry, read: Callable[[], Any]) -> None:
        try:
            value = read()
        except ChangefeedError:
            # Completion is a courtesy: the statement itself will say what is wrong.
            value = entry.value
        with self._lock:
            new = value != entry.value
            entry.value, entry.at, entry.reading = value, self._clock.monotonic(), False
            entry.read.set()
        if new and self._changed is not None:
            self._changed()
