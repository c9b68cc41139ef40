"""XA transactions that are prepared and not decided: their rows on disk, by their names.

The decision may come days and restarts later, so what is kept outlives the process.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from pathlib import Path

from changefeed.core.errors import ChangefeedError, Code
from changefeed.sources.decoded.stored import NOTE, StoredTransaction, lost_rows


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
