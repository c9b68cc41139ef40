"""What the pages say to servers, typed at real ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from changefeed.query.evaluate import QuerySessions
from changefeed.spark.session import NodeSpark
from tests.docs.blocks import Block, all_blocks, blocks, is_of_a_server
from tests.docs.planned import has_query, plan
from tests.e2e.feeds import running
from tests.services.postgres import Database, PostgresCluster

QUERIES = [block for block in all_blocks() if block.language == "sql" and has_query(block)]


def said_to_servers(page: str) -> list[str]:
    """The statements of a page that changefeed does not execute."""
    found = [b for b in blocks(page) if b.language == "sql"]
    return [text for block in found for text in block.statements() if is_of_a_server(text)]


@pytest.mark.spark
@pytest.mark.parametrize("block", QUERIES, ids=str)
def test_queries_compile(block: Block, spark_engine: NodeSpark, tmp_path: Path) -> None:
    with spark_engine.use() as session:
        customers = session.createDataFrame([(1, "Ada")], "id int, name string")
        customers.createOrReplaceTempView("customers")
    try:
        assert plan(block, tmp_path, QuerySessions(spark_engine).compile)
    finally:
        session.catalog.dropTempView("customers")


@pytest.fixture
def shop(own_postgres: PostgresCluster) -> Iterator[Database]:
    """A database ``shop`` as somebody has it who has not heard of changefeed."""
    own_postgres.execute("create role shop_owner")
    own_postgres.execute("create database shop owner shop_owner")
    shop = Database(own_postgres, "shop")
    (create, identity) = said_to_servers("docs/messages.md")
    shop.execute(f"set role shop_owner; {create}; {identity}")
    shop.execute("insert into orders values (1, 'new', 12.50, null)")
    yield shop


@pytest.mark.postgres
@pytest.mark.spark
@pytest.mark.parametrize("page", ["README.md", "docs/source-postgresql.md"])
def test_a_role_made_as_a_page_says_is_enough(
    page: str, shop: Database, spark_engine: NodeSpark, tmp_path: Path
) -> None:
    for text in said_to_servers(page):
        if text.startswith(("ALTER SYSTEM", "CREATE ROLE", "CREATE PUBLICATION", "GRANT")):
            shop.execute(text)
    own: PostgresCluster = shop.server
    own.stop()
    own.start()
    uri = own.uri("shop", user="feeds")
    with running(tmp_path / "state", spark_engine) as feeds:
        feeds.connect(shop=f"{uri}?publication=changefeed")
        feeds.execute(
            f"CREATE CHANGEFEED f FOR shop.public.orders INTO 'file://{tmp_path}/files' WITH diff"
        )
        feeds.sync("f")
        feeds.execute("DROP CHANGEFEED f")
    (file,) = (tmp_path / "files").rglob("*.ndjson")
    assert '"id": 1, "status": "new"' in file.read_text()


@pytest.mark.postgres
@pytest.mark.spark
def test_what_is_left_at_a_server_is_found_and_removed(
    shop: Database, spark_engine: NodeSpark, tmp_path: Path
) -> None:
    """The last resort of source-postgresql.md, after a state directory was lost."""
    with running(tmp_path / "state", spark_engine) as feeds:
        feeds.connect(shop=shop.uri)
        feeds.execute(f"CREATE CHANGEFEED f FOR orders INTO 'file://{tmp_path}/files'")
        feeds.sync("f")
    (operating,) = said_to_servers("docs/operating.md")
    ((slot, *_),) = shop.execute(operating)
    page = said_to_servers("docs/source-postgresql.md")
    looked, drop_slot, drop_publication = (
        s for s in page if "changefeed_" in s or "changefeed%" in s
    )
    assert [name for name, *_ in shop.execute(looked)] == [slot]
    (publication,) = shop.execute("select pubname from pg_publication")[0]
    shop.execute(drop_slot.replace("changefeed_...", slot))
    shop.execute(drop_publication.replace("changefeed_...", publication))
    assert shop.slots() == []
    assert shop.execute("select pubname from pg_publication") == []
