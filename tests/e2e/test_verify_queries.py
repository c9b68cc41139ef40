"""VERIFY CHANGEFEED of CDC queries: the target is compared with the query's result."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest

from changefeed.api import Interpreter, Result, Session
from changefeed.core.errors import ChangefeedError, Code
from changefeed.spark.session import NodeSpark
from changefeed_testing.sinks.readers import visible_files
from tests.e2e.feeds import Feeds, running
from tests.helpers.duckdb_file import opened
from tests.services.postgres import Database

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.postgres, pytest.mark.slow]


@pytest.fixture
def feeds(tmp_path: Path, postgres: Database, spark_engine: NodeSpark) -> Iterator[Feeds]:
    postgres.execute(
        "create table orders (id int primary key, status text, total numeric(8,2));"
        "insert into orders values (1, 'open', 1.50), (2, 'closed', 2), (3, 'open', 3),"
        " (4, 'open', null), (5, 'open', 5);"
        "alter table orders replica identity full"
    )
    with running(tmp_path / "state", spark_engine) as made:
        made.connect(shop=postgres.uri)
        yield made


CHANGES = (
    "update orders set status = 'closed' where id = 3;"
    "update orders set status = 'open', total = 7 where id = 2;"
    "delete from orders where id = 5"
)


def test_a_table_is_compared_with_the_result_of_the_query(
    feeds: Feeds, postgres: Database, tmp_path: Path
) -> None:
    path = tmp_path / "shop.db"
    feeds.execute(
        f"CREATE CHANGEFEED f INTO 'duckdb://{path}' AS SELECT id AS order_id, total * 2 AS t "
        "FROM shop.public.orders WHERE status = 'open'"
    )
    feeds.sync("f")
    postgres.execute(CHANGES)
    assert feeds.execute("VERIFY CHANGEFEED f").notices == ["public.orders: equal"]
    with opened(path) as file:
        file.execute("update orders set t = 1 where order_id = 2")
        file.execute("delete from orders where order_id = 4")
        file.execute("insert into orders (order_id, t) values (3, 6)")
    answer = feeds.execute("VERIFY CHANGEFEED f REPAIR")
    assert {tuple(map(str, row[1:])) for row in answer.rows} == {
        ("[2]", "changed", '{"t": "14.00"}', '{"t": "1.00"}'),
        ("[4]", "missing", '{"order_id": "4", "t": null}', "None"),
        ("[3]", "extra", "None", '{"order_id": "3", "t": "6.00"}'),
    }
    assert answer.failure is None
    with opened(path) as file:
        rows = file.execute("select order_id, t from orders order by 1").fetchall()
    assert rows == [(1, Decimal(3)), (2, Decimal(14)), (4, None)]


def test_a_client_without_spark_asks_the_node(
    feeds: Feeds, postgres: Database, tmp_path: Path
) -> None:
    """The query's result is compared, and read again where it differs, by the node."""
    path = tmp_path / "shop.db"
    feeds.execute(
        f"CREATE CHANGEFEED f INTO 'duckdb://{path}' AS SELECT id, total * 2 AS t "
        "FROM shop.public.orders WHERE status = 'open'"
    )
    feeds.sync("f")
    client = Interpreter(feeds.catalog)
    assert client.host.spark_elsewhere

    def verify(more: str = "") -> Result:
        return client.execute(f"VERIFY CHANGEFEED f{more}", Session(client="tests"))

    assert verify().notices == ["public.orders: equal"]
    with opened(path) as file:
        file.execute("update orders set t = 1 where id = 3")
    answer = verify()
    assert answer.rows == [("public.orders", "[3]", "changed", '{"t": "6.00"}', '{"t": "1.00"}')]
    assert answer.failure is not None and answer.failure.code is Code.TARGET_DIFFERS
    answer = verify(" TABLE orders REPAIR")
    assert answer.failure is None
    assert answer.notices[-1].startswith("public.orders was read again as a whole")
    assert answer.notices[-1].endswith(": equal now")
    with pytest.raises(ChangefeedError, match='has no table "other"') as refused:
        verify(" TABLE other")
    assert refused.value.code is Code.NAME_UNKNOWN


@pytest.mark.parametrize("select", ["id, total * 2 AS t", "total AS t, status"])
def test_messages_of_the_envelope_bare_are_compared(
    feeds: Feeds, postgres: Database, tmp_path: Path, select: str
) -> None:
    """A delete there is a row whose other columns are NULL; the key may not be in the row."""
    out = tmp_path / "out"
    feeds.execute(
        f"CREATE CHANGEFEED f INTO 'file://{out}' WITH resolved = '100ms' AS SELECT {select} "
        "FROM shop.public.orders WHERE status = 'open'"
    )
    feeds.sync("f")
    postgres.execute(CHANGES)
    assert feeds.execute("VERIFY CHANGEFEED f").notices == ["public.orders: equal"]
    [first, *_] = [path for path in visible_files(out) if path.suffix == ".ndjson"]
    kept = [line for line in first.read_text().splitlines() if '"key": [1]' not in line]
    told = '{"__crdb__": {"key": [9]}, "id": 9, "t": 1, "status": "open"}'
    first.write_text("\n".join([*kept, told, ""]))
    answer = feeds.execute("VERIFY CHANGEFEED f")
    assert {row[1:3] for row in answer.rows} == {("[1]", "missing"), ("[9]", "extra")}
    assert answer.failure is not None and answer.failure.code is Code.TARGET_DIFFERS


def test_a_query_over_changes_has_no_result_to_compare(feeds: Feeds, tmp_path: Path) -> None:
    for number, query in enumerate(
        (
            "SELECT id, event_op() AS op FROM shop.public.orders",
            "SELECT id FROM shop.public.orders WHERE cdc_prev.total IS NULL",
            "SELECT id, event_schema_timestamp() AS seen FROM shop.public.orders",
            "SELECT window.start AS s, count(*) AS n FROM shop.public.orders "
            "GROUP BY window(event_timestamp(), '1 second')",
        )
    ):
        feeds.execute(f"CREATE CHANGEFEED f INTO 'file://{tmp_path}/out{number}' AS {query}")
        feeds.sync("f")
        with pytest.raises(ChangefeedError, match="the query tells of changes") as refused:
            feeds.execute("VERIFY CHANGEFEED f TABLE orders")
        assert refused.value.code is Code.NOT_SUPPORTED
        feeds.execute("DROP CHANGEFEED f")
