"""The Replicator's two worked examples (with and without a primary key), event by event and
staging table by staging table, on DuckDB and on BigQuery's emulator, every batch applied twice.

What differs from its text:

* An UPDATE that changes the key is a DELETE of the old and an INSERT of the new key, so that a
  batch may be applied twice.
* Of the changes of a batch to one key the last one is loaded, and a DELETE has the row before in
  the columns themselves, so that there are no ``_before_`` columns.
* A batch leaves the staging table in the transaction of its merge.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from changefeed_testing.sinks.rows import (
    Row,
    RowChange,
    RowFeed,
    SourceDouble,
    delete,
    insert,
    table_of,
    update,
)
from sinks.warehouse.bigquery.client import BigQueryWarehouse
from sinks.warehouse.dialect import SqlStatement, Warehouse
from sinks.warehouse.duckdb import DuckDB
from sinks.warehouse.sink import WarehouseSink
from tests.services.bigquery import PROJECT, BigQueryEmulator

STAGING = "_staging_customers"

Staged = list[tuple[object, ...]]


class Watch:
    """What the staging table held each time it was merged: one batch and nothing else."""

    def __init__(self) -> None:
        self.staged: list[Staged] = []
        self.batches: set[object] = set()

    def look(self, warehouse: Warehouse, statements: Sequence[SqlStatement]) -> None:
        """Statements are about to be run: is a merge among them?"""
        q, table = warehouse.dialect.quote, warehouse.name(STAGING)
        end = f"DELETE FROM {table} WHERE {q('_batch_id')} = "
        if not any(statement.sql.startswith(end) for statement in statements):
            return
        columns = [c for c in warehouse.columns(STAGING) if c not in ("_ord", "_missing")]
        listed = ", ".join(map(q, columns))
        rows = warehouse.query(f"SELECT {listed} FROM {table} ORDER BY {q('_ord')}")
        assert columns[0] == "_batch_id"
        [batch] = {row[0] for row in rows}
        assert batch not in self.batches, "a batch has a number of its own"
        self.batches.add(batch)
        self.staged.append([row[1:] for row in rows])


class WatchedDuckDB(DuckDB):
    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self.watch = Watch()

    def run(self, statements: Sequence[SqlStatement]) -> None:
        self.watch.look(self, statements)
        super().run(statements)


class WatchedBigQuery(BigQueryWarehouse):
    def __init__(self, emulator: BigQueryEmulator, dataset: str) -> None:
        super().__init__(PROJECT, dataset, endpoint=emulator.endpoint)
        self.watch = Watch()

    def run(self, statements: Sequence[SqlStatement]) -> None:
        self.watch.look(self, statements)
        super().run(statements)


Watched = WatchedDuckDB | WatchedBigQuery


@pytest.fixture(params=["duckdb", pytest.param("bigquery", marks=pytest.mark.bigquery)])
def warehouse(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Watched]:
    with ExitStack() as stack:
        made: Watched
        if request.param == "duckdb":
            made = WatchedDuckDB(tmp_path / "db")
        else:
            emulator: BigQueryEmulator = request.getfixturevalue("bigquery")
            made = WatchedBigQuery(emulator, stack.enter_context(emulator.dataset()))
        stack.callback(made.close)
        yield made


def two_batches(transactions: int) -> pytest.MarkDecorator:
    """Parameters ``cut``, every place between two transactions. On BigQuery, which is slow, the
    tests event by event repeat old batches, too; one place is for ``CHANGEFEED_TESTS=all``."""
    cases = [pytest.param("duckdb", cut, id=f"duckdb-{cut}") for cut in range(1, transactions)]
    middle = transactions // 2
    marks = [pytest.mark.bigquery, pytest.mark.everything]
    cases.append(pytest.param("bigquery", middle, id=f"bigquery-{middle}", marks=marks))
    return pytest.mark.parametrize(("warehouse", "cut"), cases, indirect=["warehouse"])


class Example:
    """A source, its copy, and the numbers of its transactions from ``first`` on."""

    def __init__(self, source: SourceDouble, warehouse: Watched) -> None:
        self.source = source
        self.feed = RowFeed(source)
        self.warehouse = warehouse
        self.ends: list[int] = []

    def commit(self, *changes: RowChange) -> None:
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
        """What is in the target, sorted, without the sequence numbers; staging must be empty."""
        assert self._read(STAGING, "_sequence_num") == []
        names = [column.name for column in self.source.schemas["customers"].columns]
        return [dict(zip(names, row, strict=True)) for row in self._read("customers", *names)]

    def numbers(self) -> list[object]:
        """``_sequence_num`` of each row of the target, as places of transactions."""
        return [row[0] for row in self._numbered(self._read("customers", "_sequence_num"))]

    def _read(self, table: str, *columns: str) -> list[tuple[object, ...]]:
        self.warehouse.connect()
        listed = ", ".join(map(self.warehouse.dialect.quote, columns))
        sql = f"SELECT {listed} FROM {self.warehouse.name(table)} ORDER BY {listed}"
        found = self.warehouse.query(sql)
        self.warehouse.rest()
        return found

    @property
    def staged(self) -> list[Staged]:
        """The staging table of every batch; sequence numbers as the places of their
        transactions, the first being 1."""
        return [self._numbered(rows) for rows in self.warehouse.watch.staged]

    def _numbered(self, rows: Staged) -> Staged:
        versions = sorted({e.at.version for e in self.source.log})
        return [(versions.index(int(str(row[0]))) + 1, *row[1:]) for row in rows]


@pytest.fixture
def keyed(warehouse: Watched) -> Example:
    schema = table_of("customers", key=("id",), id="int32", name="text")
    example = Example(SourceDouble(schema), warehouse)
    example.commit(insert("customers", id=0, name="alice"))
    example.commit(update("customers", {"id": 0}, id=1))
    example.commit(update("customers", {"id": 1}, id=2))
    example.commit(delete("customers", id=2))
    example.commit(insert("customers", id=0, name="Alice"))
    example.commit(insert("customers", id=1, name="blob"))
    example.commit(update("customers", {"id": 1}, name="Bob"))
    return example


#: What each transaction of the first example is in the staging table ..
KEYED: list[Staged] = [
    # _sequence_num, _operation, id, name
    [(1, "INSERT", 0, "alice")],
    [(2, "DELETE", 0, None), (2, "INSERT", 1, "alice")],
    [(3, "DELETE", 1, None), (3, "INSERT", 2, "alice")],
    [(4, "DELETE", 2, None)],
    [(5, "INSERT", 0, "Alice")],
    [(6, "INSERT", 1, "blob")],
    [(7, "UPDATE", 1, "Bob")],
]
#: .. what all of them are as one batch ..
FOLDED: Staged = [(4, "DELETE", 2, None), (5, "INSERT", 0, "Alice"), (7, "UPDATE", 1, "Bob")]
#: .. and what the target is after each.
COPIES = [
    *([(0, "alice")], [(1, "alice")], [(2, "alice")], [], [(0, "Alice")]),
    *([(0, "Alice"), (1, "blob")], [(0, "Alice"), (1, "Bob")]),
]


def test_with_primary_key_all_together(keyed: Example) -> None:
    assert keyed.deliver(0, 7) == [{"id": 0, "name": "Alice"}, {"id": 1, "name": "Bob"}]
    [staged] = keyed.staged  # the second run found nothing new
    assert staged == FOLDED
    assert keyed.numbers() == [5, 7]


def test_with_primary_key_event_by_event(keyed: Example) -> None:
    for i, copy in enumerate(COPIES):
        found = [(row["id"], row["name"]) for row in keyed.deliver(i, i + 1)]
        assert found == copy, f"after event {i + 1}"
    assert keyed.staged == KEYED
    # And every old batch once more, oldest first, then all together.
    for i in range(7):
        keyed.deliver(i, i + 1)
    assert [(row["id"], row["name"]) for row in keyed.deliver(0, 7)] == COPIES[-1]
    assert keyed.staged == KEYED and keyed.numbers() == [5, 7]


@two_batches(7)
def test_with_primary_key_in_two_batches(keyed: Example, cut: int) -> None:
    keyed.deliver(0, cut)
    want = [{"id": 0, "name": "Alice"}, {"id": 1, "name": "Bob"}]
    assert keyed.deliver(cut, 7) == want
    assert keyed.deliver(0, cut) == want


@pytest.mark.bigquery
@pytest.mark.parametrize("warehouse", ["bigquery"], indirect=True)
def test_tables_of_bigquery(keyed: Example, bigquery: BigQueryEmulator) -> None:
    """Staging by batch and sequence, the target by key. The emulator knows the column of a
    partitioning only, and takes the ranges of batches for days; the SQL of them is in
    ``tests/golden/warehouse/bigquery.txt``."""
    keyed.deliver(0, 7)
    found = bigquery.query(
        "SELECT table_name, column_name, data_type, is_partitioning_column,"
        f" clustering_ordinal_position FROM {keyed.warehouse.schema}.INFORMATION_SCHEMA.COLUMNS"
        f" WHERE table_name IN ('{STAGING}', 'customers') ORDER BY table_name, ordinal_position"
    )
    assert found == [
        (STAGING, "_batch_id", "INT64", "YES", None),
        (STAGING, "_sequence_num", "INT64", "NO", 1),
        (STAGING, "_ord", "INT64", "NO", None),
        (STAGING, "_operation", "STRING", "NO", None),
        (STAGING, "_missing", "STRING", "NO", None),
        (STAGING, "id", "INT64", "NO", None),
        (STAGING, "name", "STRING", "NO", None),
        ("customers", "id", "INT64", "NO", 1),
        ("customers", "name", "STRING", "NO", None),
        ("customers", "_sequence_num", "INT64", "NO", None),
    ]


@pytest.fixture
def keyless(warehouse: Watched) -> Example:
    example = Example(SourceDouble(table_of("customers", name="text")), warehouse)
    alice, bob = insert("customers", name="alice"), insert("customers", name="Bob")
    example.commit(alice, alice, bob)
    example.commit(*[update("customers", {"name": "alice"}, name="Alyce")] * 2)
    example.commit(*[update("customers", {"name": "Alyce"}, name="Alice")] * 2)
    example.commit(*[delete("customers", name="Alice")] * 2)
    return example


KEYLESS: list[Staged] = [
    # _sequence_num, _operation, name
    [(1, "INSERT", "alice"), (1, "INSERT", "alice"), (1, "INSERT", "Bob")],
    [(2, "DELETE", "alice"), (2, "INSERT", "Alyce")] * 2,
    [(3, "DELETE", "Alyce"), (3, "INSERT", "Alice")] * 2,
    [(4, "DELETE", "Alice")] * 2,
]


def test_without_primary_key_event_by_event(keyless: Example) -> None:
    tables = [["Bob", "alice", "alice"], ["Alyce", "Alyce", "Bob"], ["Alice", "Alice", "Bob"]]
    for i, table in enumerate([*tables, ["Bob"]]):
        assert [row["name"] for row in keyless.deliver(i, i + 1)] == table
    for i in range(4):
        assert [row["name"] for row in keyless.deliver(i, 4)] == ["Bob"]
    assert keyless.staged == KEYLESS


def test_without_primary_key_all_together(keyless: Example) -> None:
    assert keyless.deliver(0, 4) == [{"name": "Bob"}]
    assert keyless.staged == [[row for rows in KEYLESS for row in rows]]


@two_batches(4)
def test_without_primary_key_in_two_batches(keyless: Example, cut: int) -> None:
    keyless.deliver(0, cut)
    assert keyless.deliver(cut, 4) == [{"name": "Bob"}]
    assert keyless.deliver(0, 4) == [{"name": "Bob"}]
