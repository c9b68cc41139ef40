"""Statements against a real PostgreSQL and no node: what they see there and what they leave."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from changefeed.api import Interpreter, Session
from changefeed.catalog import Catalog
from changefeed.core.errors import ChangefeedError, Problems
from tests.services.postgres import Database

pytestmark = pytest.mark.postgres

SCHEMA = """
create table orders (id bigint primary key, total numeric(12,2), note text);
create table visits (at timestamptz, page text);
create view busy as select * from orders;
create schema audit;
create table audit.log (id int primary key, what text);
create table audit.old_log (id int primary key, what text);
insert into orders select i, i * 1.5, 'n' from generate_series(1, 1000) i;
analyze
"""


class Client:
    """An interpreter and a session on a fresh state, with the database as source ``shop``."""

    def __init__(self, catalog: Catalog, database: Database) -> None:
        self.catalog = catalog
        self.database = database
        self.interpreter = Interpreter(catalog)
        self.session = Session()
        self.run(f"CREATE EXTERNAL CONNECTION shop AS '{database.uri}'")

    def run(self, text: str) -> list[tuple[object, ...]]:
        return list(self.interpreter.execute(text, self.session).rows)

    def publications(self) -> list[str]:
        return [name for (name,) in self.database.execute("select pubname from pg_publication")]


@pytest.fixture
def client(postgres: Database, tmp_path: Path) -> Iterator[Client]:
    postgres.execute(SCHEMA)
    catalog = Catalog.open(tmp_path)
    yield Client(catalog, postgres)
    catalog.close()


@pytest.mark.parametrize(
    "statement", ["CREATE EXTERNAL CONNECTION new", "ALTER EXTERNAL CONNECTION shop"]
)
def test_a_connection_that_does_not_lead_in_is_refused(client: Client, statement: str) -> None:
    database = client.database
    good = database.uri
    wrong = {
        good.replace(f"/{database.name}", "/nowhere"): "CF2002",
        "postgresql://nobody@127.0.0.1:1/d": "CF2001",
        f"{good}{'&' if '?' in good else '?'}schema=copies".replace(
            f"/{database.name}", "/x"
        ): "CF5",
        "kafka://127.0.0.1:1": "CF5001",
    }
    before = client.catalog.connections()
    for uri, code in wrong.items():
        with pytest.raises(ChangefeedError) as caught:
            client.run(f"{statement} AS '{uri}'")
        assert caught.value.code.number.startswith(code), uri
        assert "WITH check = 'no'" in caught.value.hint
        assert client.catalog.connections() == before
    client.run(f"{statement} AS '{good}'")
    client.run("CREATE EXTERNAL CONNECTION later AS 'kafka://127.0.0.1:1' WITH check = 'no'")
    assert len(client.catalog.connections()) > len(before)


def test_show_tables(client: Client) -> None:
    rows = {row[0]: row for row in client.run("SHOW TABLES")}
    assert set(rows) == {"public.orders", "public.visits", "audit.log", "audit.old_log"}
    orders = rows["public.orders"]
    assert (orders[1], orders[2], orders[3]) == (("id",), "default", 1000)
    assert rows["public.visits"][1] == ()


def test_looking_leaves_nothing_behind(client: Client) -> None:
    create = "CREATE CHANGEFEED f FOR orders, SCHEMA audit INTO 'null://' WITH updated"
    stages = client.run(f"EXPLAIN {create}")
    assert {stage for stage, _ in stages} >= {"source", "table", "scan", "encode", "sink"}
    (example,) = [str(text) for _, text in stages if "for example" in str(text)]
    assert '{"after": {"id": 1, "total": 1.50, "note": "x"}, "updated": ' in example
    assert client.run(f"VALIDATE {create}")[0][0] == "ok"
    assert client.database.slots() == [] and client.publications() == []
    assert client.catalog.jobs() == []


def test_every_problem_at_once(client: Client) -> None:
    text = "CREATE CHANGEFEED FOR order, busy, orders (totl), visits INTO 'null://' WITH x"
    with pytest.raises(Problems) as caught:
        client.run(text)
    found = [
        (p.code.number, p.span and text[p.span.start : p.span.end]) for p in caught.value.problems
    ]
    assert found[:3] == [("CF1101", "order"), ("CF1302", "busy"), ("CF1101", "orders (totl)")]
    assert ("CF1203", "x") in found


def test_a_feed_that_owes_changes_has_its_slot_when_create_returns(client: Client) -> None:
    client.run("CREATE CHANGEFEED f FOR orders INTO 'null://' WITH initial_scan = 'no'")
    slot = client.catalog.source_state("shop").memo["slot"]
    assert client.database.slots() == [slot] and client.publications() == [slot]
    (table,) = client.catalog.tables(1)
    assert table.start is not None and len(table.start) == 16
    client.run("DROP CHANGEFEED f")
    assert client.database.slots() == [] and client.publications() == []
    assert client.catalog.source_states() == []


def test_a_server_that_is_gone(client: Client) -> None:
    gone = "postgresql://u:s3cret@127.0.0.1:1/x"
    client.run(f"ALTER EXTERNAL CONNECTION shop AS '{gone}' WITH check = 'no'")
    with pytest.raises(ChangefeedError) as caught:
        client.run("CREATE CHANGEFEED FOR orders, visits INTO 'null://'")
    assert caught.value.code.number == "CF2001"
    assert not isinstance(caught.value, Problems)
    assert "s3cret" not in str(caught.value) + caught.value.hint + caught.value.detail
    rows = client.run("VALIDATE CREATE CHANGEFEED FOR orders, visits INTO 'null://'")
    assert [(row[0], row[1], row[2]) for row in rows] == [("error", "CF2001", "connection")]
