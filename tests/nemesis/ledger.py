"""What the database really held, written down without any code of the product.

After every commit of the one writer the touched tables are read with SELECT. A :class:`Ledger`
keeps the states each table went through, and for each key the versions it had.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Any

import psycopg

Row = Mapping[str, Any]
Rows = dict[str, Row]


class Cause(StrEnum):
    """Why a row is as it is. Rows that only DDL changed need not come as a message each."""

    WRITE = "write"
    TRUNCATE = "truncate"
    DDL = "ddl"


@dataclass(frozen=True, slots=True)
class Version:
    """One committed value of a row; None where there is no row.

    ``truncate`` says by which TRUNCATE of the table (1 is the first) the row went.
    """

    row: Row | None
    cause: Cause
    truncate: int = 0


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the workload.

    ``key`` names its key columns, all columns when empty. Where DDL changes a table, only its
    ``steady`` columns can be compared at any instant; none named means all. A ``looked_up``
    column is long and not in the log where an update leaves it alone, so the product asks the
    source for its present value: it is right in the end only.
    """

    name: str
    key: tuple[str, ...] = ("id",)
    steady: tuple[str, ...] = ()
    looked_up: tuple[str, ...] = ()

    def shown(self, row: Row | None) -> Row | None:
        """What a message must say exactly."""
        if row is None or not self.looked_up:
            return row
        return {c: v for c, v in row.items() if c not in self.looked_up}

    def key_of(self, row: Row) -> str:
        """The message key of a row, as normalised JSON."""
        return json.dumps([row.get(c) for c in self.key or tuple(row)], default=str)

    def steady_part(self, row: Row) -> Row:
        """The columns that DDL leaves alone."""
        return {c: row[c] for c in self.steady if c in row} if self.steady else row


def normal(row: Mapping[str, Any] | None) -> Row | None:
    """A row without its NULLs: a column that was added empty changes no row."""
    return None if row is None else {c: v for c, v in row.items() if v is not None}


class Ledger:
    """States and versions of all tables of one run."""

    def __init__(self, tables: Iterable[Table]) -> None:
        self.tables = {table.name: table for table in tables}
        self.states: dict[str, list[Rows]] = {name: [{}] for name in self.tables}
        self.versions: dict[str, dict[str, list[Version]]] = {name: {} for name in self.tables}
        self.born_before: dict[str, set[str]] = defaultdict(set)
        self._truncates: dict[str, int] = defaultdict(int)

    def record(
        self, connection: psycopg.Connection, names: Sequence[str], cause: Cause = Cause.WRITE
    ) -> None:
        """Write down what ``names`` hold now, after a commit."""
        for name in names:
            self._record_table(name, read_table(connection, self.tables[name]), cause)

    def scanned(self) -> None:
        """The initial scans are over: from here on every version must be delivered."""
        for name, versions in self.versions.items():
            self.born_before[name] = set(versions)

    def _record_table(self, name: str, rows: Rows, cause: Cause) -> None:
        before = self.states[name][-1]
        if cause is Cause.TRUNCATE:
            self._truncates[name] += 1
            for key in before:
                self._version(name, key, Version(None, cause, self._truncates[name]))
            before, cause = {}, Cause.WRITE
        for key in before.keys() - rows.keys():
            self._version(name, key, Version(None, cause))
        for key, row in rows.items():
            if before.get(key) != row:
                self._version(name, key, Version(row, cause))
        self.states[name].append(rows)

    def _version(self, name: str, key: str, version: Version) -> None:
        self.versions[name].setdefault(key, []).append(version)


def read_table(connection: psycopg.Connection, table: Table) -> Rows:
    """The table's rows by key, every number with its digits."""
    found = connection.execute(f"select to_jsonb(t)::text from {table.name} t").fetchall()
    columns = [
        name
        for (name,) in connection.execute(
            "select attname from pg_attribute where attrelid = %s::regclass and attnum > 0"
            " and not attisdropped order by attnum",
            [table.name],
        ).fetchall()
    ]
    rows = (json.loads(text, parse_float=Decimal) for (text,) in found)
    # jsonb sorts its members; a table without a key needs them in the order of the columns.
    return {
        table.key_of(row): normal(row) or {} for row in ({c: r[c] for c in columns} for r in rows)
    }
