"""Changes of a table's rows that no row of the stream describes.

A partition that is attached, detached, dropped or truncated brings or takes rows, and an ALTER may
write every stored value again: the server sends none of these rows. So what holds the rows
(:mod:`.storage`) is compared with what was seen last. VACUUM FULL, CLUSTER, another tablespace and
a new partition write other files, too, and change no row. Two observations make the difference:

* VACUUM FULL and its like copy a row with the number of the transaction that inserted it. A row
  in the new file that is older than the last look shows that the file is a copy. ALTER and
  TRUNCATE leave no such row.
* An ALTER writes the definitions of columns; what only copies the file does not. It writes the rows
  with its own number: a partition without such a row was truncated before it or after it. One
  that was truncated and filled again before it has such rows, too; new rows of the table are in
  the stream then.

What cannot be decided counts as a change: the table is read again, and nothing is lost.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import psycopg
from psycopg import sql

from changefeed.core.clock import SYSTEM_CLOCK, Clock
from changefeed.core.durable import read_durable, replace_durably
from changefeed.core.proofs import AlteredBytes
from changefeed.sources.postgres.connect import LateSession, PsycopgConnection
from changefeed.sources.postgres.storage import (
    Fingerprints,
    Heap,
    Storage,
    TypeParts,
    columns_of,
    key_of,
)
from changefeed.sources.postgres.types import TableDetails

#: The file next to the change log with what was seen last.
FILE_NAME = "postgres-storage.json"
#: So many rows of a heap are looked at.
_ROWS = 1000
#: A heap that is locked is waited for a moment only: the stream is not read meanwhile. A
#: policy that would hide rows is an error then.
_CAREFUL = """
set local lock_timeout = '100ms'; set local statement_timeout = '1s'; set local row_security = off
"""
#: What was seen is saved at least this often, in seconds: its horizon decides after a restart.
_SAVE_SECONDS = 3600.0
#: Transactions that are remembered for a table.
_TRANSACTIONS = 64
#: Partitions that a sentence names.
_NAMED = 5

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StoredChange:
    """The stored rows of a table have changed; the fields are those of
    :class:`~changefeed.core.events.SchemaChange`."""

    why: str
    moved: bool = False


class HeapEvidence:
    """What a few rows of a heap show. Each answer is True if in doubt."""

    def __init__(self, session: LateSession) -> None:
        self._late = session

    @property
    def _session(self) -> PsycopgConnection:
        return self._late.get()

    def may_be_lost(
        self,
        heap: Heap,
        oid: int,
        horizon: int,
        alters: Collection[int],
        *,
        refilled: bool = False,
    ) -> bool:
        """Whether rows from before the horizon may have gone with another file of the heap.
        ``alters``: transactions that wrote every row again; ``refilled``: new rows, too."""
        writers = self._writers(heap)
        if writers is None:
            return True
        if not writers:
            return not self._never_filled(oid, altered=heap.writer in alters)
        telling = () if refilled else alters
        return not any(writer in telling or _precedes(writer, horizon) for writer in writers)

    def may_be_unsent(self, heap: Heap, oid: int) -> bool:
        """Whether a partition of which nothing was known may have brought rows."""
        if not heap.file:
            return True  # of a foreign table no row is sent
        return not self._made_as_partition(oid) and self._writers(heap) != []

    def _writers(self, heap: Heap) -> list[int] | None:
        """The transactions that inserted the first rows; None if they cannot be read."""
        table = sql.Identifier(heap.schema, heap.name)
        query = sql.SQL(
            "select distinct w from (select xmin::text::int8 from only {} limit {}) r(w)"
        )
        try:
            with self._session.transaction():
                self._session.execute(_CAREFUL)
                found = self._session.execute(query.format(table, _ROWS)).fetchall()
        except (psycopg.OperationalError, psycopg.ProgrammingError):
            return None
        return [int(writer) for (writer,) in found]

    def _never_filled(self, oid: int, *, altered: bool) -> bool:
        """No row was ever inserted, as far as the statistics know, and the file was not truncated:
        that would leave no statistics (-1, from version 14 on). Neither does an ALTER."""
        row = self._session.execute(
            "select pg_catalog.pg_stat_get_tuples_inserted(oid) = 0 and (reltuples = 0 or %s)"
            " from pg_catalog.pg_class where oid = %s",
            (altered, oid),
        ).fetchone()
        return row is not None and bool(row[0])

    def _made_as_partition(self, oid: int) -> bool:
        """CREATE TABLE .. PARTITION OF made it: ATTACH writes every column's definition again."""
        row = self._session.execute(
            "select bool_or(a.xmin::text = t.xmin::text and a.cmin = t.cmin)"
            " from pg_catalog.pg_class c join pg_catalog.pg_type t on t.oid = c.reltype"
            " join pg_catalog.pg_attribute a on a.attrelid = c.oid and a.attnum > 0"
            " where c.oid = %s",
            (oid,),
        ).fetchone()
        return row is not None and bool(row[0])


def _precedes(writer: int, horizon: int) -> bool:
    """Numbers wrap around: one up to 2**31 behind is earlier."""
    return 0 < (horizon - writer) & 0xFFFFFFFF < 1 << 31


def compare(
    old: Storage,
    new: Storage,
    emptied: Iterable[int],
    altered: Iterable[int],
    rows: HeapEvidence,
    key: Collection[str] = (),
    *,
    refilled: bool = False,
) -> StoredChange | None:
    """How the stored rows of a table changed from ``old`` to ``new``; None: not at all.

    ``emptied``, ``altered``: transactions whose TRUNCATE, or ALTER, of the table readers get
    anyway. ``key``: the columns that identify a row: with other values in them rows left and others
    came. ``refilled``: the stream has new rows of the table that may be from after ``old``.
    """
    written = _rewritten(old, new)
    moved = _moved(old, new, rows)
    alters = {*altered, *(writer for name, writer in new.columns.values() if name in written)}
    moved += _emptied(old, new, set(emptied), alters, rows, refilled=refilled)
    types = _altered_types(old, new)
    reasons = [*moved, *_altered(written), *_types(types)]
    keys_moved = bool(set(key) & {*written, *(c for kind, *_ in types for c in kind.columns)})
    return StoredChange("; ".join(reasons), bool(moved) or keys_moved) if reasons else None


def _rewritten(old: Storage, new: Storage) -> list[str]:
    """The columns that an ALTER rewrote, or whose values were not sent before."""
    both = old.heaps.keys() & new.heaps.keys()
    copied = any(old.heaps[oid].file != new.heaps[oid].file for oid in both)
    names = []
    for number, (name, writer) in new.columns.items():
        before = old.columns.get(number)
        if before is None:
            if copied or number <= old.width:
                names.append(name)  # it has values, or had them when it was not sent
        elif copied and before[1] != writer:
            names.append(name)
    return names


def _altered(names: Sequence[str]) -> list[str]:
    if not names:
        return []
    quoted = ", ".join(f'"{name}"' for name in names[:_NAMED])
    return [f"ALTER TABLE changed stored rows (column {quoted})"]


def _moved(old: Storage, new: Storage, rows: HeapEvidence) -> list[str]:
    """Partitions that brought or took rows by coming or leaving."""
    came = [
        heap.name
        for oid, heap in new.heaps.items()
        if oid not in old.heaps and rows.may_be_unsent(heap, oid)
    ]
    left = [heap.name for oid, heap in old.heaps.items() if oid not in new.heaps]
    both = old.heaps.keys() & new.heaps.keys()
    again = [new.heaps[oid].name for oid in both if old.heaps[oid].link != new.heaps[oid].link]
    return [
        *_sentence(came, "attached"),
        *_sentence(left, "detached or dropped"),
        *_sentence(again, "detached and attached again"),
    ]


def _emptied(
    old: Storage,
    new: Storage,
    known: set[int],
    alters: set[int],
    rows: HeapEvidence,
    *,
    refilled: bool,
) -> list[str]:
    """Partitions that lost rows in their places. TRUNCATE of a whole table is in the stream."""
    emptied, doubtful = [], []
    for oid, heap in new.heaps.items():
        before = old.heaps.get(oid)
        if before is None or before.file == heap.file or not heap.link:
            continue
        if heap.link != before.link or heap.writer in known:
            continue
        if rows.may_be_lost(heap, oid, old.horizon, alters):
            emptied.append(heap.name)
        elif refilled and rows.may_be_lost(heap, oid, old.horizon, alters, refilled=True):
            doubtful.append(heap.name)
    return [*_sentence(emptied, "truncated"), *_sentence(doubtful, "perhaps truncated")]


def _sentence(names: Sequence[str], what: str) -> list[str]:
    if not names:
        return []
    shown = ", ".join(sorted(names)[:_NAMED])
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return [f"partition{'s' if names[1:] else ''} {shown}{more} {what}"]


def _altered_types(old: Storage, new: Storage) -> list[tuple[TypeParts, str, str, str | None]]:
    """Types whose stored values read otherwise now, with the part, what it was and what it is."""
    return [
        (kind, part, text, kind.parts.get(part))
        for oid, kind in new.types.items()
        if oid in old.types
        for part, text in old.types[oid].parts.items()
        if kind.parts.get(part) != text
    ]


def _types(altered: Iterable[tuple[TypeParts, str, str, str | None]]) -> list[str]:
    return [
        f"type {kind.name} has other attributes"
        if part == "attributes"
        else f'label "{text}" of type {kind.name} is "{now}" now'
        for kind, part, text, now in altered
    ]


def _remember(known: dict[int, deque[int]], oid: int, xid: int) -> None:
    known.setdefault(oid, deque(maxlen=_TRANSACTIONS)).append(xid)


def _parted(tables: Mapping[int, Storage]) -> frozenset[int]:
    return frozenset(oid for oid, one in tables.items() if oid not in one.heaps)


class StorageWatch:
    """What was seen last of the tables' storage. Kept in a file, so that a change while nobody
    read the stream is found later. One thread."""

    def __init__(
        self,
        folder: Path | None,
        clock: Clock = SYSTEM_CLOCK,
        before: Callable[[], Mapping[int, Fingerprints]] = lambda: {},
    ) -> None:
        """
        Args:
            folder: is kept as long as the change log; None: nothing is kept.
            before: how tables were, by oid, before their rows were read.
        """
        self._before = before
        self._path = None if folder is None else folder / FILE_NAME
        self._clock = clock
        #: Tables with partitions.
        self.parted: frozenset[int] = frozenset()
        self._seen: dict[int, Storage] = {}
        self._found: dict[int, Storage] = {}
        self._emptied: dict[int, deque[int]] = {}
        self._altered: dict[int, deque[int]] = {}
        #: The newest transaction with new rows of a table.
        self._filled: dict[int, int] = {}
        #: Tables of which the file says that they have new rows.
        self._noted: set[int] = set()
        self._changed = False
        self._saved = clock.monotonic()
        self._damaged = False
        self._load()

    def look(self, found: Mapping[int, Storage]) -> bool:
        """Take what the catalog shows, for :meth:`changes`; whether a known table has changed."""
        self._found = dict(found)
        self.parted = _parted(found)
        return any(oid in self._seen and self._differs(oid) for oid in found)

    def _differs(self, oid: int) -> bool:
        old, new = self._seen.get(oid), self._found[oid]
        return old is None or replace(old, horizon=new.horizon) != new

    def changes(
        self, rows: HeapEvidence, tables: Mapping[int, TableDetails]
    ) -> dict[int, StoredChange]:
        """What changed from the last call of :meth:`reported` to the last look, by oid. ``tables``:
        as that look found them."""
        changes = {}
        for oid in filter(self._differs, self._found):
            self._changed = True
            old, change = self._seen.get(oid), None
            key = key_of(tables[oid])
            if old is not None:
                known = self._emptied.get(oid, ()), self._altered.get(oid, ())
                refilled = self._has_new_rows(oid)
                change = compare(old, self._found[oid], *known, rows, key, refilled=refilled)
            elif self._damaged:
                change = StoredChange("what was known of its stored rows is lost", moved=True)
            else:
                change = self._since_it_joined(oid, key)
            if change is not None:
                changes[oid] = change
        return changes

    def _since_it_joined(self, oid: int, key: Collection[str]) -> StoredChange | None:
        """Of a table that is looked at for the first time, whose rows may have been read."""
        before, now = self._before().get(oid), self._found[oid].fingerprints(key)
        if before is None or before[:2] == now[:2]:
            return None
        rewritten = before[0] != now[0]
        parted = rewritten and oid not in self._found[oid].heaps
        what = "partitions" if parted else "stored rows or types"
        keys_moved = (rewritten and before[2:3] != now[2:3]) or before[3:] != now[3:]
        return StoredChange(
            f"its {what} changed when it was read for the first time", parted or keys_moved
        )

    def reported(self) -> None:
        """The changes are durable in the change log."""
        changed = self._changed or self._found.keys() != self._seen.keys()
        self._seen, self._changed, self._damaged = self._found, False, False
        for known in (self._emptied, self._altered, self._filled):
            for oid in known.keys() - self._seen.keys():
                del known[oid]
        now = self._clock.monotonic()
        if changed or now - self._saved > _SAVE_SECONDS:
            self._saved = now
            self._save()

    def emptied(self, oid: int, xid: int) -> None:
        """The stream has the TRUNCATE of a table."""
        _remember(self._emptied, oid, xid & 0xFFFFFFFF)

    def filled(self, writers: Mapping[int, Iterable[int]]) -> None:
        """The stream has new rows of tables with partitions: by oid, of these transactions. Before
        readers get them, the file says so: after a restart they do not come again."""
        for oid, xids in writers.items():
            for xid in xids:
                if oid not in self._filled or _precedes(self._filled[oid], xid):
                    self._filled[oid] = xid & 0xFFFFFFFF
        if any(self._has_new_rows(oid) for oid in writers.keys() - self._noted):
            self._save()

    def _has_new_rows(self, oid: int) -> bool:
        """Whether some are perhaps from after the last look."""
        old, newest = self._seen.get(oid), self._filled.get(oid)
        return old is not None and newest is not None and not _precedes(newest, old.horizon)

    def reread(self, details: TableDetails) -> bool:
        """The table is read again, as the catalog shows it now or later: how its columns were
        rewritten until then needs no further word. Whether its keys may have been, too."""
        columns, moved = columns_of(details), False
        numbers = {column.number for column in details.columns if column.name in key_of(details)}
        for storages in (self._seen, self._found):
            old = storages.get(details.oid)
            if old is None:
                continue
            for number, (_, writer) in columns.items():
                if old.columns.get(number, ("", 0))[1] != writer:
                    _remember(self._altered, details.oid, writer)
                    moved |= number in numbers and (
                        details.partitioned or old.heaps[details.oid].file != details.file
                    )
            heaps = old.heaps
            if not details.partitioned:
                heaps = {details.oid: Heap(details.schema, details.name, details.file)}
            storages[details.oid] = replace(old, width=details.width, columns=columns, heaps=heaps)
            self._changed = True
        return moved

    # ----------------------------------------------------------------------- the file

    def _load(self) -> None:
        if self._path is None or not self._path.exists():
            return
        try:
            text = read_durable(self._path)
        except AlteredBytes:
            _logger.warning("%s is damaged: every table is read again", self._path)
            self._damaged = True
            return
        for oid, one in json.loads(text).items():
            old = self._seen[int(oid)] = Storage.from_json(one)
            if (newest := one.get("filled", old.horizon)) is not None:
                self._filled[int(oid)] = newest
        self.parted = _parted(self._seen)

    def _save(self) -> None:
        self._noted = set(filter(self._has_new_rows, self._seen))
        if self._path is None:
            return
        kept = {
            oid: {**one.to_json(), "filled": self._filled.get(oid)}
            for oid, one in self._seen.items()
        }
        replace_durably(self._path, json.dumps(kept))
