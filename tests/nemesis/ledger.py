"""What the database really held, written down without any code of the product.

After every commit of the one writer the touched tables are read with SELECT. A :class:`Ledger`
keeps the states each table went through and since when, and for each key the versions it had.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Any

from changefeed.core.clock import Timestamp

Row = Mapping[str, Any]
Rows = dict[str, Row]

#: Nanoseconds since 1970 between which the log's timestamp of a commit lies: the time it has at
#: the source, and the time at which it was known to be done. It has its time a moment before it
#: stands in the source's log, and what is stamped in that moment pushes it behind itself.
Span = tuple[int, int]


#: Asks the source for the columns of a table, in order, and its rows with every digit.
Read = Callable[["Table"], tuple[tuple[str, ...], Sequence[Row]]]


class Cause(StrEnum):
    """Why a row is as it is. Rows that only DDL changed need not come as a message each."""

    WRITE = "write"
    TRUNCATE = "truncate"
    DDL = "ddl"


@dataclass(frozen=True, slots=True)
class Version:
    """One committed value of a row; None where there is no row.

    ``truncate`` says by which TRUNCATE of the table (1 is the first) the row went, ``commit`` is
    the number of the commit that made it.
    """

    row: Row | None
    cause: Cause
    truncate: int = 0
    commit: int = 0


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the workload.

    ``key`` names its key columns, all columns when empty. Where DDL changes a table, only its
    ``steady`` columns can be compared at any instant; none named means all. A ``looked_up``
    column is long and not in the log where an update leaves it alone, so the product asks the
    source for its present value: it is right in the end only. ``topic`` and ``index`` are what
    sinks call it that do not take its name.
    """

    name: str
    key: tuple[str, ...] = ("id",)
    steady: tuple[str, ...] = ()
    looked_up: tuple[str, ...] = ()
    topic: str = ""
    index: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "topic", self.topic or self.name)
        object.__setattr__(self, "index", self.index or self.name)

    @property
    def quoted(self) -> str:
        """The name in a statement."""
        return quoted(self.name)

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


def quoted(name: str) -> str:
    """A name in a statement, of SQL and of ours."""
    return '"' + name.replace('"', '""') + '"'


def normal(row: Mapping[str, Any] | None) -> Row | None:
    """A row without its NULLs: a column that was added empty changes no row."""
    return None if row is None else {c: v for c, v in row.items() if v is not None}


class Ledger:
    """States and versions of all tables of one run.

    Attributes:
        columns: the present columns of each table, in order.
        truncations: numbers of the commits that truncated a table.
        settled: number of the last commit that a scan may have delivered.
    """

    def __init__(self, tables: Iterable[Table]) -> None:
        self.tables = {table.name: table for table in tables}
        self.states: dict[str, list[Rows]] = {name: [{}] for name in self.tables}
        self.versions: dict[str, dict[str, list[Version]]] = {name: {} for name in self.tables}
        self.born_before: dict[str, set[str]] = defaultdict(set)
        self.columns: dict[str, tuple[str, ...]] = {}
        self.truncations: dict[str, set[int]] = defaultdict(set)
        self.settled = 0
        self._truncates: dict[str, int] = defaultdict(int)
        self._earliest, self._latest = [0], [0]
        self._since: dict[str, list[int]] = {name: [0] for name in self.tables}

    def record(
        self,
        read: Read,
        names: Sequence[str],
        cause: Cause = Cause.WRITE,
        span: Span = (0, 0),
    ) -> None:
        """Write down what ``names`` hold now, after a commit."""
        found = {}
        for name in names:
            table = self.tables[name]
            self.columns[name], rows = read(table)
            # A table without a key needs its columns in their order.
            found[name] = by_key(table, ({c: row[c] for c in self.columns[name]} for row in rows))
        self.note(found, cause, span)

    def note(
        self, found: Mapping[str, Rows], cause: Cause = Cause.WRITE, span: Span = (0, 0)
    ) -> None:
        """What these tables are after a commit; it is no earlier than the one before."""
        for times, at in zip((self._earliest, self._latest), span, strict=True):
            times.append(max(at, times[-1]))
        for name, rows in found.items():
            if cause is Cause.TRUNCATE:
                self.truncations[name].add(self.last)
            self._record_table(name, rows, cause)
            self._since[name].append(self.last)

    def scanned(self) -> None:
        """The initial scans are over: from here on every version must be delivered."""
        self.settled = self.last
        for name, versions in self.versions.items():
            self.born_before[name] = set(versions)

    # -- the tables at an instant ---------------------------------------------------------

    @property
    def last(self) -> int:
        """Number of the last commit; the first has 1."""
        return len(self._latest) - 1

    def changed(self, name: str) -> int:
        """Number of the last commit that changed a row of a table: a statement that finds no row
        leaves nothing in the log."""
        states, since = self.states[name], self._since[name]
        for number in range(len(states) - 1, 0, -1):
            if states[number] != states[number - 1]:
                return since[number]
        return since[0]

    def moments(self, at: Timestamp) -> range:
        """Numbers of the commits that may have been the last one at or below ``at``."""
        surely = bisect_right(self._latest, at.version) - 1
        return range(surely, bisect_right(self._earliest, at.version))

    def dated(self, number: int, at: Timestamp) -> bool:
        """Whether ``at`` may be the timestamp of commit ``number``; of one of which the ledger does
        not know when it was, any may."""
        latest = self._latest[number]
        return latest == 0 or self._earliest[number] <= at.version <= latest

    def state(self, name: str, number: int) -> Rows:
        """A table as it was after commit ``number``."""
        return self.states[name][bisect_right(self._since[name], number) - 1]

    # -- writing down ---------------------------------------------------------------------

    def _record_table(self, name: str, rows: Rows, cause: Cause) -> None:
        before = self.states[name][-1]
        if cause is Cause.TRUNCATE:
            self._truncates[name] += 1
            for key in before:
                self._version(name, key, Version(None, cause, self._truncates[name], self.last))
            before, cause = {}, Cause.WRITE
        for key in before.keys() - rows.keys():
            self._version(name, key, Version(None, cause, commit=self.last))
        for key, row in rows.items():
            if before.get(key) != row:
                self._version(name, key, Version(row, cause, commit=self.last))
        self.states[name].append(rows)

    def _version(self, name: str, key: str, version: Version) -> None:
        self.versions[name].setdefault(key, []).append(version)


def by_key(table: Table, rows: Iterable[Row]) -> Rows:
    """Rows by their keys. A further row of a key has its number behind the key: of a table
    without a key it is one more copy, in any other there should be none."""
    copies: Counter[str] = Counter()
    found: Rows = {}
    for row in rows:
        key = table.key_of(row)
        copies[key] += 1
        found[key if copies[key] == 1 else f"{key} #{copies[key]}"] = normal(row) or {}
    return found


def exact_json(text: str) -> Any:
    """JSON whose numbers keep their digits."""
    return json.loads(text, parse_float=Decimal)
