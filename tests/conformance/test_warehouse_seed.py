"""The Replicator's two worked examples (with and without a primary key), event by event.

What differs from its text: an UPDATE that changes the key is a DELETE of the old and an INSERT of
the new key, so that a batch may be applied twice; and all of it is, here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import duckdb
import pytest

from sinks.testing.rows import Change, Row, RowFeed, Source, delete, insert, table_of, update
from sinks.warehouse.dialect import Statement
from sinks.warehouse.duckdb import DuckDB
from sinks.warehouse.sink import WarehouseSink

Staged = list[tuple[object, ...]]


class Watched(DuckDB):
    """Remembers what the staging table held each time it was merged."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.staged: list[Staged] = []

    def run(self, statements: Sequence[Statement]) -> None:
        if any('_staging_customers" WHERE "_batch_id" = ' in s.sql for s in statements):
            columns = [c for c in self.columns("_staging_customers") if c != "_batch_id"]
            shown = ", ".join(f'"{c}"' for c in columns if c not in ("_ord", "_missing"))
            rows = self.query(f'SELECT {shown} FROM main._staging_customers ORDER BY "_ord"')
            self.staged.append(rows)
        super().run(statements)


class Example:
    """A source, its copy, and the numbers of its transactions from ``first`` on."""

    def __init__(self, source: Source, path: Path) -> None:
        self.source = source
        self.path = path
        self.feed = RowFeed(source)
        self.warehouse = Watched(str(path))
        self.ends: list[int] = []

    def commit(self, *changes: Change) -> None:
        self.source.commit(*changes)
        self.ends.append(len(self.source.log))

    def deliver(self, start: int, stop: int) -> list[Row]:
        """Transactions ``start`` to before ``stop`` as one batch, twice, by two runs."""
        places = [0, *self.ends]
        for _ in range(2):
            sink = WarehouseSink(self.warehouse)
            self.feed.open(sink)
            self.feed.deliver(sink, places[start], places[stop])
            sink.close()
        return self.rows()

    def rows(self) -> list[Row]:
        with duckdb.connect(str(self.path)) as connection:
            found = connection.execute(
                "SELECT * EXCLUDE (_sequence_num) FROM customers ORDER BY ALL"
            )
            names = [column[0] for column in found.description or ()]
            return [dict(zip(names, row, strict=True)) for row in found.fetchall()]

    def numbered(self, staged: Staged) -> Staged:
        """Sequence numbers as the places of their transactions, the first being 1."""
        versions = sorted({e.at.version for e in self.source.log})
        return [(versions.index(int(str(row[0]))) + 1, *row[1:]) for row in staged]


@pytest.fixture
def keyed(tmp_path: Path) -> Iterator[Example]:
    example = Example(
        Source(table_of("customers", key=("id",), id="int32", name="text")), tmp_path / "db"
    )
    example.commit(insert("customers", id=0, name="alice"))
    example.commit(update("customers", {"id": 0}, id=1))
    example.commit(update("customers", {"id": 1}, id=2))
    example.commit(delete("customers", id=2))
    example.commit(insert("customers", id=0, name="Alice"))
    example.commit(insert("customers", id=1, name="blob"))
    example.commit(update("customers", {"id": 1}, name="Bob"))
    yield example
    example.warehouse.close()


def test_with_primary_key_all_together(keyed: Example) -> None:
    assert keyed.deliver(0, 7) == [{"id": 0, "name": "Alice"}, {"id": 1, "name": "Bob"}]
    [staged] = keyed.warehouse.staged  # the second run found nothing new
    assert keyed.numbered(staged) == [
        # _sequence_num, _operation, _before_id, id, name
        (1, "INSERT", None, 0, "alice"),
        (2, "DELETE", 0, 0, None),
        (2, "INSERT", None, 1, "alice"),
        (3, "DELETE", 1, 1, None),
        (3, "INSERT", None, 2, "alice"),
        (4, "DELETE", 2, 2, None),
        (5, "INSERT", None, 0, "Alice"),
        (6, "INSERT", None, 1, "blob"),
        (7, "UPDATE", 1, 1, "Bob"),
    ]


def test_with_primary_key_event_by_event(keyed: Example) -> None:
    tables = [[(0, "alice")], [(1, "alice")], [(2, "alice")], [], [(0, "Alice")]]
    tables += [[(0, "Alice"), (1, "blob")], [(0, "Alice"), (1, "Bob")]]
    for i, table in enumerate(tables):
        found = [(row["id"], row["name"]) for row in keyed.deliver(i, i + 1)]
        assert found == table, f"after event {i + 1}"
    assert [len(staged) for staged in keyed.warehouse.staged] == [1, 2, 2, 1, 1, 1, 1]
    # And every old batch once more, oldest first, then all together.
    for i in range(7):
        keyed.deliver(i, i + 1)
    assert [(row["id"], row["name"]) for row in keyed.deliver(0, 7)] == tables[-1]


@pytest.mark.parametrize("cut", range(1, 7))
def test_with_primary_key_in_two_batches(keyed: Example, cut: int) -> None:
    keyed.deliver(0, cut)
    want = [{"id": 0, "name": "Alice"}, {"id": 1, "name": "Bob"}]
    assert keyed.deliver(cut, 7) == want
    assert keyed.deliver(0, cut) == want


@pytest.fixture
def keyless(tmp_path: Path) -> Iterator[Example]:
    example = Example(Source(table_of("customers", name="text")), tmp_path / "db")
    alice, bob = insert("customers", name="alice"), insert("customers", name="Bob")
    example.commit(alice, alice, bob)
    example.commit(*[update("customers", {"name": "alice"}, name="Alyce")] * 2)
    example.commit(*[update("customers", {"name": "Alyce"}, name="Alice")] * 2)
    example.commit(*[delete("customers", name="Alice")] * 2)
    yield example
    example.warehouse.close()


def test_without_primary_key_event_by_event(keyless: Example) -> None:
    tables = [["Bob", "alice", "alice"], ["Alyce", "Alyce", "Bob"], ["Alice", "Alice", "Bob"]]
    for i, table in enumerate([*tables, ["Bob"]]):
        assert [row["name"] for row in keyless.deliver(i, i + 1)] == table
    for i in range(4):
        assert [row["name"] for row in keyless.deliver(i, 4)] == ["Bob"]
    staged = [keyless.numbered(rows) for rows in keyless.warehouse.staged]
    assert staged == [
        # _sequence_num, _operation, _before_name, name
        [(1, "INSERT", None, "alice"), (1, "INSERT", None, "alice"), (1, "INSERT", None, "Bob")],
        [(2, "DELETE", "alice", None), (2, "INSERT", None, "Alyce")] * 2,
        [(3, "DELETE", "Alyce", None), (3, "INSERT", None, "Alice")] * 2,
        [(4, "DELETE", "Alice", None)] * 2,
    ]


@pytest.mark.parametrize("cut", range(1, 5))
def test_without_primary_key_in_two_batches(keyless: Example, cut: int) -> None:
    keyless.deliver(0, cut)
    assert keyless.deliver(cut, 4) == [{"name": "Bob"}] if cut < 4 else True
    assert keyless.deliver(0, 4) == [{"name": "Bob"}]
