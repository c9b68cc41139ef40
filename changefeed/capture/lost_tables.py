"""The tables of a source that are no longer the ones that a feed began with."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from changefeed.capture.process import Notice
from changefeed.capture.table_identity import Known, LostTable, missing
from changefeed.catalog import Catalog
from changefeed.catalog.model import TableState
from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError
from changefeed.core.schema import TableName
from changefeed.core.table_errors import renamed
from changefeed.core.telemetry import log
from changefeed.sources.base import Source, TableLocations


class LostTables:
    """Detects lost tables at the source, and by rows in the log under another name. Thread-safe."""

    def __init__(self, catalog: Catalog, name: str) -> None:
        self._catalog = catalog
        self._name = name
        self._lock = threading.Lock()
        self._wanted: frozenset[Known] = frozenset()
        self._lost: dict[Known, LostTable] = {}

    def get(self, table: TableName, table_id: int) -> LostTable | None:
        """What became of a table that is no longer the one that a feed began with."""
        return self._lost.get((table, table_id))

    @property
    def names(self) -> frozenset[TableName]:
        with self._lock:
            return frozenset(table for table, _ in self._lost)

    def look(self, source: Source, wanted: Iterable[Known]) -> tuple[TableLocations | None, bool]:
        """The present tables behind the wanted names (None if the source has no ids), and
        whether another table is lost.

        Raises:
            ChangefeedError: the source cannot be asked.
        """
        self._wanted = frozenset(wanted)
        names = {table for table, _ in self._wanted}
        seen = source.locate(sorted(names), sorted({i for _, i in self._wanted if i}))
        if seen is None:
            return None, False
        unknown = {table for table, table_id in self._wanted if not table_id}
        self._catalog.adopt_table_ids({t: seen.ids[t] for t in unknown & seen.ids.keys()})
        gone = missing(self._wanted, seen)
        back = self._back(gone)
        with self._lock:
            new = gone.keys() - self._lost.keys()
        for _, table_id in new:
            if table_id in seen.names:
                # Before a feed relies on it: that feed must learn of rows under a later name.
                self._catalog.note_name(seen.names[table_id], table_id)
        after = source.current_position() if new else ""
        with self._lock:
            self._lost = {known: lost for known, lost in self._lost.items() if known not in back}
            for known in new:
                now = seen.names.get(known[1])
                self._lost[known] = LostTable(gone[known], now is None, after, now=now)
        for known in new:
            log.warning("source %s: %s", self._name, gone[known].message)
        return seen, bool(new)

    def _back(self, gone: Collection[Known]) -> set[Known]:
        """Tables that are no longer lost: no feed wants them, or they have their name again.

        While a table had another name, its rows went there, so a feed that it joined must see the
        loss first. A feed that names the table follows the renames in the log.
        """
        back = self._lost.keys() - self._wanted
        again = self._lost.keys() - back - set(gone)
        if again:
            for job in self._catalog.source_jobs(self._name):
                for table in self._catalog.tables(job.id):
                    delivers = table.state in (TableState.RUNNING, TableState.PAUSED)
                    if delivers and table.joined:
                        again.discard((table.table, table.table_id))
        return back | again

    def see_absent(self, source: Source, absent: Mapping[TableName, ChangefeedError]) -> bool:
        """Record which wanted tables of a source without ids are not there, and why. Returns
        whether another table is lost.

        All that the source sends of them lies below its present position.

        Raises:
            ChangefeedError: the source cannot be asked.
        """
        with self._lock:
            self._lost = {
                known: lost
                for known, lost in self._lost.items()
                if known in self._wanted and known[0] in absent
            }
            new = {(table, 0) for table in absent} & self._wanted - self._lost.keys()
        after = source.current_position() if new else ""
        with self._lock:
            for known in new - self._lost.keys():
                self._lost[known] = LostTable(
                    absent[known[0]], dropped=False, after=after, delay=source.rename_delay_ns
                )
        for table, _ in new:
            log.warning("source %s: %s", self._name, absent[table].message)
        return bool(new)

    def ends_at(self, lost: LostTable, at: Timestamp) -> None:
        """Record where in the log the changes of a lost table end."""
        with self._lock:
            for known, found in self._lost.items():
                if found is lost:
                    self._lost[known] = replace(lost, at=at)

    def hear(self, notice: Notice) -> bool:
        """Record that the log has rows of a table under a new name, which the next look at the
        source may miss. Returns whether the table is now lost.
        """
        table, now = (TableName(self._name, *name) for name in (notice.table, notice.now))
        known = (table, notice.table_id)
        with self._lock:
            if known not in self._wanted or (known in self._lost and known[1]):
                return False
            error = renamed(table, now)
            at = Timestamp.parse(notice.at)
            self._lost[known] = LostTable(error, dropped=False, at=at, now=now)
        log.warning("source %s: %s is %s now", self._name, table, now)
        return True
