"""Copies that readers keep by themselves, and the result of a CDC query, beside the source."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import changefeed
from changefeed.core.clock import Timestamp
from changefeed.readers import Subscription
from tests.nemesis.copies import Copy, DuckDBCopy
from tests.nemesis.fingerprint import Look, check_end, check_instant
from tests.nemesis.ledger import Ledger, Row, Rows, Table, normal
from tests.nemesis.service import Nodes
from tests.nemesis.trouble import Trouble


class ReaderCopy(Copy):
    """A program that takes the changes of a table from ``changefeed.subscribe``."""

    name = "reader_copy"
    tables = ("orders",)

    def __init__(self, ledger: Ledger, state: str, folder: Path) -> None:
        super().__init__(ledger)
        self._state = state
        self._folder = folder
        self._open: Subscription | None = None
        self._rows: Rows = {}
        self._committed: Rows = {}

    @property
    def uri(self) -> str:
        return f"reader://{self._folder}"

    def look(self) -> None:
        if self._open is None:
            self._open = changefeed.subscribe(
                self._state, "shop.public.orders", reader=self.name, truncate="row"
            )
        while (part := self._open.next(0)) is not None:
            for row in part.table().to_pylist():
                self._apply(row)
            self.note(part.upto, check_instant(self.ledger, Look(part.upto, self._found_now())))
            if part.upto.wall % 3:
                self._open.commit()
                self._committed = dict(self._rows)

    def _apply(self, row: dict[str, object]) -> None:
        kind = row.pop("_change_type")
        key = self.ledger.tables["orders"].key_of(row)
        if kind == "truncate":
            self._rows.clear()
        elif kind == "delete":
            self._rows.pop(key, None)
        elif kind != "update_preimage":
            self._rows[key] = row

    def _found_now(self) -> Mapping[str, Rows]:
        return {"orders": self.rows("orders", self._rows.values())}

    def catch_up(self, service: Nodes) -> None:
        self.look_until_whole()

    def troubles(self, meanwhile: Callable[[], None]) -> list[Trouble]:
        def die() -> str:
            """What was not committed comes again to the next one."""
            self.close()
            self._rows = dict(self._committed)
            return "the reader died"

        return [(3, die)]

    def close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None

    def differences(self) -> list[str]:
        return check_end(self.ledger, self._found_now())


#: A query in whose result rows come and go while they change.
QUERY = "SELECT id, v, upper(a) AS a, v * 2 AS twice FROM orders WHERE v % 3 <> 0"


def query_result(row: Row) -> Row | None:
    """The row of :data:`QUERY`'s result that a row of the table gives."""
    if row["v"] % 3 == 0:
        return None
    a = row.get("a")
    return {"id": row["id"], "v": row["v"], "a": None if a is None else a.upper(),
            "twice": row["v"] * 2}  # fmt: skip


class QueryLedger(Ledger):
    """What the result of :data:`QUERY` was, by the ledger of its table."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__([Table("orders")])
        self._of = ledger
        self.columns["orders"] = ("id", "v", "a", "twice")

    @property
    def last(self) -> int:
        return self._of.last

    def changed(self, name: str) -> int:
        return self._of.changed(name)

    def moments(self, at: Timestamp) -> range:
        return self._of.moments(at)

    def state(self, name: str, number: int) -> Rows:
        rows = self._of.state(name, number).items()
        found = ((key, normal(query_result(row))) for key, row in rows)
        return {key: row for key, row in found if row is not None}


class QueryCopy(DuckDBCopy):
    """The result of a CDC query, kept as a table."""

    name = "query_copy"
    tables = ("orders",)

    def __init__(self, ledger: Ledger, path: Path) -> None:
        super().__init__(QueryLedger(ledger), path)

    @property
    def statement(self) -> str:
        return f"CREATE CHANGEFEED {self.name} INTO '{self.uri}' WITH {self.options} AS {QUERY}"

    def catch_up(self, service: Nodes) -> None:
        super().catch_up(service)
        self.look_until_whole()
