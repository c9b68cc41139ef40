"""XA transactions that are prepared and not decided: their rows on disk, by their names.

The decision may come days and restarts later, so what is kept outlives the process.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from pathlib import Path

from changefeed.core.errors import ChangefeedError, Code
from changefeed.sources.decoded.stored import StoredTransaction

#: Files beside the rows: how many they are, and the tables that the transaction changes and nobody
#: watched when it was prepared.
_ROWS, _UNREAD = "rows", "unread"


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
        folder = self._folder_of(name)
        kept = StoredTransaction(folder)
        for path in stored.folder.iterdir():
            path.rename(folder / path.name)
        (folder / _ROWS).write_text(str(stored.rows))
        (folder / _UNREAD).write_text(json.dumps(sorted(unread)))
        kept.make_durable()
        stored.discard()

    def find(self, name: str) -> tuple[StoredTransaction, set[tuple[str, str]]] | None:
        """The rows of a prepared transaction, and the tables that nobody watched; None where it was
        prepared before the binlog was read."""
        folder = self._folder_of(name)
        if not folder.exists():
            return None
        stored = StoredTransaction(folder, fresh=False)
        stored.rows = int((folder / _ROWS).read_text())
        unread = {
            (database, table) for database, table in json.loads((folder / _UNREAD).read_text())
        }
        return stored, unread

    def _folder_of(self, name: str) -> Path:
        return self._folder / hashlib.sha256(name.encode()).hexdigest()[:32]


def unknown_rows(what: str) -> ChangefeedError:
    """Rows of a prepared transaction that commits now were not kept."""
    return ChangefeedError(
        Code.SOURCE_LOG_REPLACED,
        f"an XA transaction commits that {what}: its rows are unknown",
        hint="RESCAN the feeds of this source; the new scan has the rows.",
    )
