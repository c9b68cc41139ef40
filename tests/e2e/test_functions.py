"""CREATE FUNCTION: Python in CDC queries, called by Spark's workers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from changefeed.core.errors import ChangefeedError
from changefeed.spark.session import NodeSpark
from changefeed_testing.sinks.readers import visible_files
from tests.e2e.feeds import Feeds, running
from tests.helpers.waiting import until
from tests.services.postgres import Database

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.postgres, pytest.mark.slow]

MODULE = """
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc


def tax(total, percent):
    if total is None:
        return None
    if total > 900:
        raise ValueError(f"too much: {total}")
    return total * Decimal(percent) / 100


def shout(text: pa.Array) -> pa.Array:
    return pc.utf8_upper(text)


answer = 42
"""


@pytest.fixture
def feeds(tmp_path: Path, postgres: Database, spark_engine: NodeSpark) -> Iterator[Feeds]:
    postgres.execute(
        "create table orders (id int primary key, status text, total numeric(8,2));"
        "insert into orders values (1, 'open', 1.50), (2, 'closed', 200), (3, 'open', null);"
        "alter table orders replica identity full"
    )
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "shop_functions.py").write_text(MODULE)
    with running(tmp_path / "state", spark_engine) as made:
        made.connect(shop=postgres.uri)
        yield made


def make(feeds: Feeds, tmp_path: Path) -> None:
    path = f"PATH '{tmp_path}/code'"
    feeds.execute(
        "CREATE FUNCTION tax (total decimal(10,2), percent int) RETURNS decimal(12,4) "
        f"AS 'shop_functions:tax' {path}"
    )
    feeds.execute(
        f"CREATE FUNCTION shout (t string) RETURNS string AS 'shop_functions:shout' {path}"
    )


def lines(folder: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for path in visible_files(folder)
        if path.suffix == ".ndjson"
        for line in path.read_text().splitlines()
    ]


def test_functions_in_select_and_where(feeds: Feeds, postgres: Database, tmp_path: Path) -> None:
    make(feeds, tmp_path)
    out = tmp_path / "out"
    select = (
        "SELECT id, tax(total, 19) AS tax, shout(status) AS loud FROM shop.public.orders "
        "WHERE shout(status) = 'OPEN' OR id = 2"
    )
    shown = str(feeds.execute(f"EXPLAIN CREATE CHANGEFEED f INTO 'null://' AS {select}").rows)
    assert "tax(total decimal(10,2), percent int) decimal(12,4) is Python shop_functions" in shown
    assert "called with columns" in shown and "called with a row at a time" in shown
    feeds.execute(f"CREATE CHANGEFEED f INTO 'file://{out}' AS {select}")
    feeds.sync("f")
    found = {row["id"]: (row["tax"], row["loud"]) for row in lines(out)}
    assert found == {1: (0.285, "OPEN"), 2: (38, "CLOSED"), 3: (None, "OPEN")}
    postgres.execute("update orders set status = 'gone' where id = 1")
    postgres.execute("update orders set total = 10 where id = 3")
    feeds.sync("f")
    assert [(row["id"], row["tax"]) for row in lines(out)[3:]] == [(1, None), (3, 1.9)]
    rows = feeds.execute("SHOW FUNCTIONS").rows
    assert [(row[0], row[1], row[3]) for row in rows] == [
        ("shout(t string) string", "shop_functions:shout", "columns"),
        ("tax(total decimal(10,2), percent int) decimal(12,4)", "shop_functions:tax", "rows"),
    ]
    with pytest.raises(ChangefeedError, match='function "tax" is used by f'):
        feeds.execute("DROP FUNCTION tax")
    # A node that starts anew registers them again.
    feeds.close()
    feeds.open()
    postgres.execute("insert into orders values (4, 'open', 100)")
    feeds.sync("f")
    assert lines(out)[-1]["tax"] == 19
    # What a function raises stops its table, without a value of the row.
    postgres.execute("update orders set total = 901 where id = 4")

    def stopped() -> bool:
        return "(shop_functions:tax) raised ValueError" in str(
            feeds.execute("SHOW CHANGEFEED f ERRORS").rows
        )

    until(stopped)
    # Only its words: a clock's microseconds may have the same digits.
    for error in feeds.execute("SHOW CHANGEFEED f ERRORS").objects():
        assert "901" not in f"{error['problem']} {error['hint']}"
    feeds.execute("DROP CHANGEFEED f")
    feeds.execute("DROP FUNCTION tax")
    with pytest.raises(ChangefeedError, match=r"function tax.. does not exist"):
        feeds.execute(f"CREATE CHANGEFEED g INTO 'null://' AS {select}")


def test_what_is_refused(feeds: Feeds, tmp_path: Path) -> None:
    make(feeds, tmp_path)
    path = f"PATH '{tmp_path}/code'"

    def refused(sql: str, match: str) -> None:
        with pytest.raises(ChangefeedError, match=match):
            feeds.execute(sql)

    refused("CREATE FUNCTION f (a int) RETURNS int AS 'no_such:f'", "ModuleNotFoundError")
    refused("CREATE FUNCTION f (a int) RETURNS int AS 'shop_functions:tax'", "ModuleNotFoundError")
    no = f"CREATE FUNCTION f (a int) RETURNS int AS 'shop_functions:no' {path}"
    refused(no, "AttributeError")
    answer = f"CREATE FUNCTION f (a int) RETURNS int AS 'shop_functions:answer' {path}"
    refused(answer, "answer is not a function")
    refused("CREATE FUNCTION f (a int) RETURNS int AS 'shop_functions'", "module:function")
    refused("CREATE FUNCTION f (a itn) RETURNS int AS 'json:dumps'", "unknown type 'itn'")
    refused("CREATE FUNCTION f (a int) RETURNS int AS 'json:dumps' PATH 'x'", "from the root")
    refused("CREATE FUNCTION tax (a int) RETURNS int AS 'json:dumps'", "already exists")
    refused("CREATE FUNCTION event_op (a int) RETURNS int AS 'json:dumps'", "already")
    few = r"shop_functions:tax cannot be called with 1 argument: .* \(total, percent\)"
    refused(f"CREATE FUNCTION f (a int) RETURNS int AS 'shop_functions:tax' {path}", few)
    refused("DROP FUNCTION tex", 'function "tex" does not exist')
    feeds.execute("DROP FUNCTION IF EXISTS tex")

    def query(call: str) -> str:
        return (
            f"CREATE CHANGEFEED f INTO 'null://' AS SELECT id, {call} AS x FROM shop.public.orders"
        )

    array = r"argument percent of function tax is int, and array<int> cannot be cast to it"
    refused(query("tax(total, array(1))"), array)
    refused(query("tax(total)"), "function tax takes 2 arguments, not 1")
    refused(query("tex(total)"), "function tex.. does not exist")
    feeds.execute("CREATE FUNCTION upper (a string) RETURNS string AS 'json:dumps'")
    refused(query("upper(status)"), "Spark SQL has a function upper.. of its own")
    # It would stop a feed that calls Spark's, and could not be dropped then.
    feeds.execute("DROP FUNCTION upper")
    feeds.execute(query("upper(status)"))
    refused("CREATE FUNCTION upper (a string) RETURNS string AS 'json:dumps'", "own, used by f")
    feeds.execute("DROP CHANGEFEED f")
