"""Is a copy of the source's tables what the source was? Key by key, value by value.

A copy says up to which instant it is complete. What it holds is compared with what the ledger
knows of that instant, so a row that is missing, left over, or from another instant is found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from changefeed.core.clock import Timestamp
from tests.nemesis.ledger import Ledger, Row, Rows, Table

#: Rows of a table that a failure shows, and characters of one.
SHOWN, WIDTH = 5, 400


@dataclass(frozen=True)
class Look:
    """What a reader found in a copy: these tables, complete up to ``at`` and nothing beyond."""

    at: Timestamp
    tables: Mapping[str, Rows]


@dataclass(frozen=True)
class Document:
    """A row by itself, with the version it says it has."""

    key: str
    version: int
    row: Row


def check_instant(ledger: Ledger, look: Look) -> list[str]:
    """All tables are as the source's were at one instant. Columns that cannot be compared at
    any instant (see :class:`Table`) are left out."""
    nearest: list[str] | None = None
    for number in reversed(ledger.moments(look.at)):
        found = [
            f"at {look.at} (commit {number} of {ledger.last}) {difference}"
            for name, rows in look.tables.items()
            for difference in _differences(
                ledger.tables[name],
                _comparable(ledger.tables[name], rows),
                _comparable(ledger.tables[name], ledger.state(name, number)),
            )
        ]
        if nearest is None or len(found) < len(nearest):
            nearest = found
        if not nearest:
            break
    return nearest or []


def check_end(ledger: Ledger, tables: Mapping[str, Rows], *, whole: bool = True) -> list[str]:
    """The tables are as the source's are now, in every column that those have; or, where a
    copy is not ``whole``, in the columns that can be compared at any instant."""
    found = []
    for name, rows in tables.items():
        table, true = ledger.tables[name], ledger.state(name, ledger.last)
        if whole:
            said = {key: _only(row, ledger.columns[name]) for key, row in rows.items()}
            found += _differences(table, said, true)
        else:
            steady = table.steady_part
            said = {key: steady(row) for key, row in rows.items()}
            found += _differences(table, said, {key: steady(row) for key, row in true.items()})
    return [f"in the end {difference}" for difference in found]


def check_documents(
    ledger: Ledger, name: str, resolved: Timestamp, documents: Sequence[Document]
) -> list[str]:
    """Rows that are written one by one: none up to ``resolved`` is missing or left over, and
    each, later ones too, is what the row was at its own version."""
    settled = ledger.moments(resolved)
    found = []
    for document in documents:
        key, own = document.key, ledger.moments(Timestamp(document.version))
        late = document.version > resolved.version
        if late and ledger.truncations[name].intersection(own):
            continue  # written before the TRUNCATE of its transaction, and about to go
        said, true = _shown(ledger.tables[name], document.row), _was(ledger, name, key, own)
        if said in true and not late:
            true = _was(ledger, name, key, settled)
        if said not in true:
            found.append(f"version {document.version} of {_told(key, said, true)}")
    since = range(settled.start, ledger.last + 1)
    always = set.intersection(*(set(ledger.state(name, n)) for n in since))
    if ledger.truncations[name].intersection(since[1:]):
        always = set()  # what the transaction of a TRUNCATE wrote again is out for a moment
    for key in sorted(always - {document.key for document in documents}):
        found.append(_told(key, None, _was(ledger, name, key, settled)))
    return [f"{name}: at resolved {resolved} {text}" for text in found[:SHOWN]]


def _was(ledger: Ledger, name: str, key: str, moments: range) -> list[Row | None]:
    """What the row may have been at an instant."""
    rows = [ledger.state(name, number).get(key) for number in moments]
    return [None if row is None else _shown(ledger.tables[name], row) for row in rows]


def _differences(table: Table, said: Rows, true: Rows) -> list[str]:
    keys = sorted(key for key in said.keys() | true.keys() if said.get(key) != true.get(key))
    told = [_told(key, said.get(key), [true.get(key)]) for key in keys[:SHOWN]]
    more = [f"and {len(keys) - SHOWN} rows more"] if len(keys) > SHOWN else []
    return [f"{table.name}: {text}" for text in told + more]


def _told(key: str, said: Row | None, true: Sequence[Row | None]) -> str:
    source = " or ".join(dict.fromkeys(f"{row}"[:WIDTH] for row in true))
    return f"{key[:WIDTH]}: the copy has {f'{said}'[:WIDTH]}, the source had {source}"


def _comparable(table: Table, rows: Rows) -> Rows:
    return {key: _shown(table, row) for key, row in rows.items()}


def _shown(table: Table, row: Row) -> Row:
    return table.steady_part(table.shown(row) or {})


def _only(row: Row, columns: Sequence[str]) -> Row:
    return {column: row[column] for column in columns if column in row}
