"""Transactions that are not complete: the one whose events are being read, and prepared ones (XA),
whose rows are kept on disk by their names: the decision may come days and restarts later."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.schema import TableName, TableSchema
from changefeed.sources.decoded.flushes import ShapeChange
from changefeed.sources.decoded.stored import NOTE, StoredTransaction, lost_rows
from changefeed.sources.mysql.ddl import DefinedTables


@dataclass(slots=True)
class ReadTransaction:
    """A transaction being read.

    Attributes:
        first: its first row event among those that wait.
        skip: it was read before.
        gtid: adds it to the position; None for an anonymous one.
        commit_us: when it committed, microseconds; 0 where the event of its end says so.
        changes: tables that look otherwise from here on.
        ddl: tables that its statements define, with what happens to each, and the statement.
        defined: the same, statement by statement, and the tables that each removes.
        stored: its rows that were put on disk, because it is large.
        begun: a BEGIN opened it; else one statement is the transaction.
        xid: the number in the event of its end.
        savepoints: by name, how many of its row events waited when each savepoint was set; -1:
            they are on disk since.
        mapped: numbers of the tables that are described for the present statement.
        again: tables that have to be read again, because the binlog does not have their changes,
            with the reason.
        lost: tables with rows, among those that were put on disk, that cannot be read, with the
            reason.
        unread: tables that it changes and nobody watches, by database and name.
    """

    first: int
    skip: bool = False
    gtid: Callable[[], None] | None = None
    commit_us: int = 0
    changes: list[ShapeChange] = field(default_factory=list)
    ddl: list[tuple[TableName, str, str]] = field(default_factory=list)
    defined: list[tuple[DefinedTables, list[tuple[str, str]]]] = field(default_factory=list)
    stored: StoredTransaction | None = None
    begun: bool = False
    xid: int = 0
    savepoints: dict[str, int] = field(default_factory=dict)
    mapped: set[int] = field(default_factory=set)
    again: dict[TableName, tuple[TableSchema, str]] = field(default_factory=dict)
    lost: dict[TableName, tuple[TableSchema, str]] = field(default_factory=dict)
    unread: set[tuple[str, str]] = field(default_factory=set)


class PreparedTransactions:
    """A folder with one for each."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def keep(
        self, name: str, stored: StoredTransaction, unread: Collection[tuple[str, str]]
    ) -> None:
        """Keep the rows of a transaction that is prepared now; ``stored`` is used up.

        Args:
            name: of the transaction.
            unread: tables that it changes and nobody watches, by database and name.
        """
        stored.keep(self._folder_of(name), {"name": name, "unread": sorted(unread)})

    def find(self, name: str) -> tuple[StoredTransaction, set[tuple[str, str]]] | None:
        """The rows of a prepared transaction, and the tables that nobody watched; None where it was
        prepared before the binlog was read.

        Raises:
            ChangefeedError: CF3001, what was kept of it is damaged.
        """
        folder = self._folder_of(name)
        if not folder.exists():
            return None
        stored, note = StoredTransaction.open(folder)
        if note["name"] != name:
            raise lost_rows(folder / NOTE, "it is about another transaction")
        return stored, {(database, table) for database, table in note["unread"]}

    def _folder_of(self, name: str) -> Path:
        return self._folder / hashlib.sha256(name.encode()).hexdigest()[:32]


def unknown_rows(what: str) -> ChangefeedError:
    """Rows of a prepared transaction that commits now were not kept."""
    return ChangefeedError(
        Code.SOURCE_LOG_REPLACED,
        f"an XA transaction commits that {what}: its rows are unknown",
        hint="RESCAN the feeds of this source; the new scan has the rows.",
    )
