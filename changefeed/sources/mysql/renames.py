"""Which watched tables have another name by now, and when readers of the log learn it.

The binlog has the statement that renamed a table. A tool that alters a table online gives the name
to another table at once, in the same statement or in the next one (``RENAME TABLE a TO old, new TO
a``): there the name stays, and only the table behind it is another. So a table counts as renamed
only while nothing else has its old name, and readers learn it with the first row under the new
name, or once the log is some seconds further without one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from changefeed.core.events import Position
from changefeed.sources.mysql.ddl import DefinedTables, Named
from changefeed.sources.mysql.kept import read_kept, write_kept

#: So long the old name may be taken again before a rename without rows is announced, ns of the log.
GRACE_NS = 5_000_000_000

#: In the folder that lives as long as the change log.
_FILE = "renames"

Tables = frozenset[Named]


@dataclass(slots=True)
class Rename:
    """A table that has another name.

    Attributes:
        old: until the statement.
        new: since then.
        position: where the statement's transaction ends.
        wall: when it committed, ns.
        announced: where the transaction ends that announces it to readers; empty: not yet.
        due: the open transaction announces it.
    """

    old: Named
    new: Named
    position: Position
    wall: int
    announced: Position = ""
    due: bool = False


def _renames_of(kept: Iterable[Any]) -> list[Rename]:
    return [
        Rename((old[0], old[1]), (new[0], new[1]), position, int(wall), announced)
        for old, new, position, wall, announced in kept
    ]


class Renames:
    """The renames of one stream. What they say outlives the stream, because the names that feeds
    want follow only when the feeds have come so far."""

    def __init__(self, folder: Path, start: Position) -> None:
        """
        Args:
            folder: lives as long as the change log.
            start: where the stream begins; what came behind it comes again.

        Raises:
            ChangefeedError: CF3001 the file cannot be read.
        """
        self._path = folder / _FILE
        self._all: list[Rename] = []
        self._changed = False
        for rename in read_kept(self._path, "renames of tables", _renames_of):
            if rename.position <= start:
                if rename.announced > start:
                    rename.announced = ""
                self._all.append(rename)

    def save(self) -> None:
        """Make what is known durable, before a flush that relies on it is out.

        Raises:
            ChangefeedError: CF3004 the file cannot be written.
        """
        if not self._changed:
            return
        kept = [[r.old, r.new, r.position, r.wall, r.announced] for r in self._all]
        write_kept(self._path, kept)
        self._changed = False

    def watched(self, wanted: Tables) -> Tables:
        """The wanted tables, by all names that they have or had. Forgets the renames of others."""
        if not self._all:
            return wanted
        found = set(wanted)
        kept: list[Rename] = []
        for rename in self._all:  # a table that was renamed twice comes in that order
            if rename.old in found:
                found.add(rename.new)
                kept.append(rename)
        self._keep(kept)
        return frozenset(found)

    def _keep(self, kept: list[Rename]) -> None:
        if len(kept) != len(self._all):
            self._all, self._changed = kept, True

    def defined(
        self,
        found: DefinedTables,
        gone: Collection[Named],
        watched: Tables,
        at: Position,
        wall: int,
    ) -> None:
        """Take note of a statement of DDL.

        Args:
            found: what it says.
            gone: the tables that are no more, also where others have their names now.
            watched: the tables that readers may want, by all their names.
            at: where its transaction ends.
            wall: when it committed, ns.
        """
        moves = net_moves(found.moves)
        taken = {*moves.values(), *(found.tables if found.kind == "CREATE" else ())}
        self._keep([r for r in self._all if r.new not in gone])
        for old, new in moves.items():
            if old in watched and old not in taken:
                self._moved(old, new, at, wall)
        self._keep([r for r in self._all if r.announced or r.old not in taken])

    def _moved(self, old: Named, new: Named, at: Position, wall: int) -> None:
        self._changed = True
        for rename in self._all:
            if rename.new == old and not rename.announced:
                rename.new, rename.position, rename.wall = new, at, wall
                return
        self._all.append(Rename(old, new, at, wall))

    @property
    def pending(self) -> bool:
        """Some of them are not announced yet."""
        return any(not rename.announced for rename in self._all)

    def awaiting(self, named: Named) -> Rename | None:
        """The rename that gave a table this name, if its first row is to announce it."""
        return next(
            (r for r in self._all if r.new == named and not r.announced and not r.due), None
        )

    def overdue(self, wall: int) -> list[Rename]:
        """Those whose old name nobody took in time, once the log has come to ``wall``, ns."""
        return [r for r in self._all if not r.announced and not r.due and wall - r.wall >= GRACE_NS]

    def announce(self, old: Named, new: Named, at: Position) -> None:
        """The transaction that ends there announces it."""
        for rename in self._all:
            if (rename.old, rename.new) == (old, new) and not rename.announced:
                rename.announced, rename.due, self._changed = at, False, True

    def forget(self, rename: Rename) -> None:
        """It has no readers: no row of the table was ever read, and it is gone."""
        self._keep([r for r in self._all if r is not rename])


def net_moves(moves: Iterable[tuple[Named, Named]]) -> dict[Named, Named]:
    """What tables are called after all renames of a statement, by what they were called before."""
    began: dict[Named, Named] = {}
    for old, new in moves:
        began[new] = began.pop(old, old)
    return {old: new for new, old in began.items() if old != new}
