"""The stand-ins of Spanner: what the sink relies on is so in both of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from changefeed.core.errors import ChangefeedError
from sinks.warehouse.dialect import SqlStatement
from sinks.warehouse.spanner.client import Spanner, SpannerTransaction
from tests.services.spanner import INSTANCE, PROJECT, SpannerServer

pytestmark = pytest.mark.spanner

CREATE = "CREATE TABLE IF NOT EXISTS t (a INT64 NOT NULL, b STRING(MAX), c JSON) PRIMARY KEY (a)"


@pytest.fixture
def database(spanner: SpannerServer) -> Iterator[str]:
    with spanner.database() as name:
        yield name


@pytest.fixture
def client(spanner: SpannerServer, database: str) -> Iterator[Spanner]:
    made = Spanner(PROJECT, INSTANCE, database, endpoint=spanner.endpoint)
    made.connect()
    made.run([SqlStatement(CREATE)])
    yield made
    made.close()


def _put(client: Spanner, key: int, text: str) -> None:
    client.transact(lambda transaction: transaction.upsert("t", ("a", "b"), [(str(key), text)]))


def test_definitions(client: Spanner, spanner: SpannerServer, database: str) -> None:
    client.run([SqlStatement(CREATE), SqlStatement("DROP TABLE IF EXISTS u")])
    assert client.columns("t") == {"a": "INT64", "b": "STRING(MAX)", "c": "JSON"}
    assert client.key("t") == ("a",)
    assert client.columns("u") == {} and client.key("u") == ()
    client.run(
        [
            SqlStatement("ALTER TABLE t ADD COLUMN IF NOT EXISTS d NUMERIC"),
            SqlStatement("ALTER TABLE t ADD COLUMN IF NOT EXISTS d NUMERIC"),
            SqlStatement("ALTER TABLE t DROP COLUMN b"),
        ]
    )
    assert client.columns("t") == {"a": "INT64", "c": "JSON", "d": "NUMERIC"}
    for wrong in (
        "CREATE TABLE _t (a INT64) PRIMARY KEY (a)",
        "ALTER TABLE t ALTER COLUMN d INT64",
    ):
        with pytest.raises(ChangefeedError):
            client.run([SqlStatement(wrong, "t")])
    with spanner.database() as other:
        assert spanner.rows(other, "t") == []


def test_writes_and_reads(client: Spanner, spanner: SpannerServer, database: str) -> None:
    _put(client, 1, "x")
    _put(client, 2, "y")

    def work(transaction: SpannerTransaction) -> list[object]:
        found = sorted(transaction.read("t", ("a", "b"), [("1",), ("2",), ("9",)]))
        transaction.update("t", ("a", "b"), [("1", "new")])
        transaction.delete("t", [("2",), ("9",)])
        # What it writes is seen when it has committed.
        assert sorted(transaction.read("t", ("a", "b"), [("1",), ("2",)])) == found
        return list(found)

    assert client.transact(work) == [("1", "x"), ("2", "y")]
    assert spanner.rows(database, "t") == [{"a": 1, "b": "new", "c": None}]
    with pytest.raises(ChangefeedError) as caught:
        client.transact(lambda transaction: transaction.update("t", ("a", "b"), [("7", "absent")]))
    assert caught.value.code.number == "CF5001"
    client.connect()
    client.change_all("UPDATE t SET b = 'all' WHERE a < 5", "t")
    assert spanner.rows(database, "t") == [{"a": 1, "b": "all", "c": None}]
    client.transact(lambda transaction: transaction.delete_all("t"))
    assert spanner.rows(database, "t") == []


def test_counts_by_an_array(client: Spanner) -> None:
    for key, text in enumerate(["x", "x", "y", "z"]):
        _put(client, key, text)
    sql = "SELECT b, COUNT(*) AS n FROM t WHERE b IN UNNEST(@rows) AND a < 3 GROUP BY b"
    found = client.transact(lambda transaction: transaction.query(sql, {"rows": ["x", "y", "q"]}))
    assert sorted(found) == [("x", "2"), ("y", "1")]


def test_a_commit_has_a_limit(client: Spanner, spanner: SpannerServer, database: str) -> None:
    if spanner.real:
        pytest.skip("the emulator does not count mutations")
    rows = [(str(a), None, None) for a in range(26_667)]  # 80,001 mutations
    with pytest.raises(ChangefeedError) as caught:
        client.transact(lambda transaction: transaction.upsert("t", ("a", "b", "c"), rows), "t")
    assert caught.value.code.number == "CF5006"
    assert spanner.rows(database, "t") == []
    client.transact(lambda transaction: transaction.upsert("t", ("a", "b", "c"), rows[1:]))


def test_what_was_read_did_not_change(
    client: Spanner, spanner: SpannerServer, database: str
) -> None:
    """Another transaction commits in between: this one begins again."""
    other = Spanner(PROJECT, INSTANCE, database, endpoint=spanner.endpoint)
    other.connect()
    seen: list[object] = []

    def work(transaction: SpannerTransaction) -> None:
        seen.append(list(transaction.read("t", ("b",), [("1",)])))
        if len(seen) == 1:
            _put(other, 1, "meanwhile")
        transaction.upsert("t", ("a", "b"), [("2", f"after {len(seen)}")])

    client.transact(work)
    assert seen == [[], [("meanwhile",)]]
    assert sorted(str(row["b"]) for row in spanner.rows(database, "t")) == ["after 2", "meanwhile"]
    other.close()
