"""CDC queries from PostgreSQL through Spark SQL into sinks."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from changefeed.api import Interpreter, Session
from changefeed.catalog import Status
from changefeed.core.errors import ChangefeedError
from changefeed.spark.session import NodeSpark
from changefeed_testing.sinks.readers import visible_files
from tests.e2e.feeds import Feeds, running
from tests.helpers.waiting import until
from tests.services.kafka import KafkaBroker
from tests.services.postgres import Database

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.postgres, pytest.mark.slow]


@pytest.fixture
def feeds(tmp_path: Path, postgres: Database, spark_engine: NodeSpark) -> Iterator[Feeds]:
    postgres.execute(
        "create table orders (id int primary key, status text, total numeric(8,2), doc jsonb);"
        "insert into orders values (1, 'open', 1.50, '{\"k\": [1, 2]}'), (2, 'closed', 2.00, null),"
        " (3, 'open', 3.00, null);"
        "alter table orders replica identity full"
    )
    with running(tmp_path / "state", spark_engine) as made:
        made.connect(shop=postgres.uri)
        yield made


def lines(folder: Path) -> list[dict[str, Any]]:
    """The rows of all files, in the order of their names."""
    return [
        json.loads(line)
        for path in visible_files(folder)
        if path.suffix == ".ndjson"
        for line in path.read_text().splitlines()
    ]


def by_id(folder: Path) -> dict[int, dict[str, Any]]:
    """The last message of each row."""
    return {row["id"]: row for row in lines(folder)}


def refused(feeds: Feeds, sql: str) -> tuple[str, str, str, str]:
    """Code, message, hint and the words that a statement's error points at."""
    with pytest.raises(ChangefeedError) as caught:
        feeds.execute(sql)
    error = caught.value
    words = sql[error.span.start : error.span.end] if error.span else ""
    assert feeds.catalog.jobs() == []
    return error.code.number, error.message, error.hint or error.detail, words


def test_a_feed_holds_the_rows_that_the_where_selects(
    feeds: Feeds, postgres: Database, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    feeds.execute(
        f"CREATE CHANGEFEED big INTO 'file://{out}' AS SELECT id, total * 2 AS t "
        "FROM shop.public.orders WHERE status = 'open'"
    )
    feeds.sync("big")
    rows = lines(out)
    assert sorted((row["id"], row["t"]) for row in rows) == [(1, 3.0), (3, 6.0)]
    postgres.execute("update orders set status = 'open' where id = 2")
    postgres.execute("update orders set total = 10 where id = 1")
    postgres.execute("update orders set status = 'closed' where id = 3")
    postgres.execute("update orders set total = 11 where id = 3")
    postgres.execute("delete from orders where id = 1")
    feeds.sync("big")
    assert [(row["id"], row["t"]) for row in lines(out)[2:]] == [
        (2, 4.0),
        (1, 20.0),
        (3, None),
        (1, None),
    ]


def test_what_a_query_cannot_have_is_refused_where_it_stands(feeds: Feeds) -> None:
    def no(items: str, rest: str = "FROM orders") -> tuple[str, str, str, str]:
        return refused(feeds, f"CREATE CHANGEFEED f INTO 'null://' AS SELECT {items} {rest}")

    volatile = "its result differs from call to call, and a message may be sent again after a crash"
    alone = "each message is made of one change"
    assert no("id, totl") == (
        "CF1101",
        "column totl does not exist on table public.orders",
        'did you mean "total"?',
        "totl",
    )
    assert no("id, uper(status) AS u")[:3] == (
        "CF1101",
        "function uper() does not exist",
        "did you mean upper()?",
    )
    assert no("id, 1 / 0 AS n") == (
        "CF1303",
        "the query fails on every row: DIVIDE_BY_ZERO",
        "",
        "1 / 0",
    )
    assert no("id", "FROM orders WHERE total > int('x')")[1::2] == (
        "the query fails on every row: CAST_INVALID_INPUT",
        "int('x')",
    )
    assert no("named_struct('first', id).frist AS n")[:3] == (
        "CF1101",
        "field frist does not exist",
        'did you mean "first"?',
    )
    assert no("id, sum(total) AS s") == (
        "CF1303",
        "aggregate functions without GROUP BY are not supported by CDC queries",
        alone,
        "sum",
    )
    assert no("id, lag(total) AS s")[1] == "window functions are not supported by CDC queries"
    assert no("id, explode(array(1)) AS s")[3] == "explode"
    for call in ("rand()", "uuid()", "now()", "current_timestamp()"):
        name = call.removesuffix("()")
        found = no("id", f"FROM orders WHERE status = {call}::string")
        assert found == ("CF1303", f"{call} is not supported by CDC queries", volatile, name)
    assert no("id, current_timestamp AS n")[3] == "current_timestamp"
    assert no("id, java_method('java.lang.Runtime', 'getRuntime') AS n")[3] == "java_method"
    assert no("id, total * 2")[1] == "an expression of the SELECT has no name"
    assert no("id, total AS id")[1] == "the SELECT has two columns id"
    assert no("id", "FROM orders WHERE total")[1] == (
        "the WHERE of a CDC query is true or false, not decimal(8,2)"
    )
    assert no("id", "FROM ordrs")[0] == "CF1101"
    assert no("upper(id, 2) AS x")[:2] == (
        "CF1303",
        "the query is wrong: The `upper` requires 1 parameters but the actual number is 2. Please, "
        "refer to 'https://spark.apache.org/docs/latest/sql-ref-functions.html' for a fix",
    )


def test_a_moment_of_reading_the_query_is_refused(feeds: Feeds) -> None:
    postgres_epoch = (
        "CREATE CHANGEFEED f INTO 'null://' AS SELECT id, 'epoch'::timestamp AS e, 'now' AS n, "
        "cast('2020-01-01' AS date) AS d FROM orders WHERE timestamp '2020-01-01' > 'epoch'"
    )
    for expression, words in {
        "timestamp 'now' AS t": "'now'",
        "timestamp r'now' AS t": "'now'",
        "Date ' TODAY' AS t": "' TODAY'",
        "'tomorrow'::timestamp AS t": "'tomorrow'",
        "to_date('yesterday') AS t": "'yesterday'",
        "date_add('now', 1) AS t": "'now'",
        "to_timestamp(concat('to', 'day')) AS t": "",
    }.items():
        found = refused(
            feeds, f"CREATE CHANGEFEED f INTO 'null://' AS SELECT id, {expression} FROM orders"
        )
        assert found[0] == "CF1303"
        assert found[1].endswith("is not supported by CDC queries")
        assert found[2].startswith("Spark replaces it by the time at which it reads the query")
        assert found[3] == words
    feeds.execute(postgres_epoch)


def test_what_spark_has_no_place_or_no_error_for(feeds: Feeds) -> None:
    def no(item: str) -> tuple[str, str, str, str]:
        return refused(feeds, f"CREATE CHANGEFEED f INTO 'null://' AS SELECT {item} FROM orders")

    assert no("unix_timestamp() AS n") == (
        "CF1303",
        "current_timestamp is not supported by CDC queries",
        "its result differs from call to call, and a message may be sent again after a crash",
        "unix_timestamp()",
    )
    assert no("event_op(1) AS n") == (
        "CF1303",
        "function event_op() takes no arguments",
        "",
        "event_op(1)",
    )
    assert no("doc:k AS n") == (
        "CF1303",
        "the query is wrong: the operator : reads a VARIANT, which json columns are not",
        "write parse_json(column):field, or get_json_object(column, '$.field').",
        ":",
    )
    path = "write get_json_object(column, '$.field'): Spark SQL has no operators for JSON paths."
    for operator in ("->", "->>", "#>"):
        code, _, hint, words = no(f"doc {operator} 'k' AS n")
        assert code in ("CF1001", "CF1303")
        assert hint == path
        assert words and words in operator


def test_explain_says_the_types_and_show_create_makes_the_feed_again(
    feeds: Feeds, tmp_path: Path
) -> None:
    sql = (
        f"CREATE CHANGEFEED f INTO 'file://{tmp_path}/out' WITH updated AS SELECT o.id, "
        "get_json_object(doc, '$.k') AS k, struct(total, status) AS s FROM orders o "
        "WHERE total > 1"
    )
    rows = [detail for stage, detail in feeds.execute(f"EXPLAIN {sql}").rows if stage == "select"]
    assert rows[1:] == [
        "columns id int, k string, s struct<total:decimal(8,2),status:string>",
        "a row that stops satisfying the WHERE is deleted, one that begins to is inserted",
        "evaluated by Spark SQL: a small batch without a job, a large one by a job",
        "of several writes of a row in one transaction only the last is sent",
    ]
    feeds.execute(sql)
    feeds.sync("f")
    (shown,) = feeds.execute("SHOW CREATE CHANGEFEED f").rows[0][-1:]
    assert str(shown).endswith(
        "AS SELECT o.id, get_json_object(doc, '$.k') AS k, struct(total, status) AS s "
        "FROM shop.public.orders AS o WHERE total > 1"
    )
    assert "envelope = 'bare'" in str(shown)
    assert by_id(tmp_path / "out")[1]["s"] == {"total": 1.5, "status": "open"}
    assert by_id(tmp_path / "out")[1]["k"] == "[1,2]"
    with pytest.raises(ChangefeedError, match="tables of a CDC query cannot be altered"):
        feeds.execute("ALTER CHANGEFEED f ADD orders")
    feeds.execute("DROP CHANGEFEED f")
    feeds.execute(str(shown).replace("/out", "/again"))
    feeds.sync("f")
    assert by_id(tmp_path / "again").keys() == {1, 2, 3}


def test_feeds_with_one_query_tell_their_own_times(
    feeds: Feeds, postgres: Database, tmp_path: Path
) -> None:
    """Feeds share finished messages; these differ though the queries are the same text."""
    for name in ("one", "two"):
        feeds.execute(
            f"CREATE CHANGEFEED {name} INTO 'file://{tmp_path}/{name}' WITH initial_scan = 'no' "
            "AS SELECT id, changefeed_creation_timestamp() AS made FROM shop.public.orders"
        )
    feeds.sync("one")
    feeds.sync("two")
    postgres.execute("update orders set total = 9 where id = 1")
    feeds.sync("one")
    feeds.sync("two")
    made = {by_id(tmp_path / name)[1]["made"] for name in ("one", "two")}
    assert made == {float(job.created) for job in feeds.catalog.jobs()}
    assert len(made) == 2


def test_a_query_over_changes_tells_what_happened(
    feeds: Feeds, postgres: Database, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    feeds.execute(
        f"CREATE CHANGEFEED f INTO 'file://{out}' WITH initial_scan = 'no' AS SELECT id, "
        "event_op() AS op, cdc_prev.total AS was, total, cdc_prev.status IS NULL AS fresh, "
        "event_schema_timestamp() > 0 AND changefeed_creation_timestamp() > 0 AS timed "
        "FROM orders"
    )
    postgres.execute("insert into orders values (4, 'open', 4)")
    postgres.execute("update orders set total = 5 where id = 4")
    postgres.execute("delete from orders where id = 4")
    feeds.sync("f")
    found = [(r["op"], r["was"], r["total"], r["fresh"], r["timed"]) for r in lines(out)]
    assert found == [
        ("insert", None, 4, True, True),
        ("update", 4, 5, False, True),
        ("delete", 5, None, False, True),
    ]
    postgres.execute("alter table orders replica identity default")
    with pytest.raises(ChangefeedError, match="cdc_prev needs the old values") as caught:
        feeds.execute("CREATE CHANGEFEED g AS SELECT id, cdc_prev.total AS was FROM orders")
    assert caught.value.code.number == "CF2003"
    assert "REPLICA IDENTITY FULL" in caught.value.hint
    # Deletes without old values alone have nothing to evaluate.
    keys = tmp_path / "keys"
    feeds.execute(
        f"CREATE CHANGEFEED h INTO 'file://{keys}' WITH initial_scan = 'no' "
        "AS SELECT id, total * 2 AS t FROM orders WHERE status = 'open'"
    )
    postgres.execute("delete from orders where id in (1, 2)")
    feeds.sync("h")
    assert [(row["id"], row["t"]) for row in lines(keys)] == [(1, None), (2, None)]


def test_cdc_prev_and_rows_that_leave_by_row_images_of_a_table_that_logs_its_key_alone(
    feeds: Feeds, postgres: Database, tmp_path: Path
) -> None:
    """As with REPLICA IDENTITY FULL; also after the death of the process that has the images."""
    out, left = tmp_path / "out", tmp_path / "left"
    postgres.execute("alter table orders replica identity default")
    stored = "WITH row_images = 'store'"
    feeds.execute(
        f"CREATE CHANGEFEED f INTO 'file://{out}' {stored} AS SELECT id, event_op() AS op, "
        "cdc_prev.total AS was, total FROM orders"
    )
    notices = feeds.execute(
        f"CREATE CHANGEFEED g INTO 'file://{left}' {stored} AS SELECT id, total FROM orders "
        "WHERE total > 100"
    ).notices
    assert not [notice for notice in notices if "REPLICA IDENTITY" in notice]
    feeds.sync("f")
    feeds.sync("g")
    scanned = len(lines(out))
    postgres.execute("insert into orders values (4, 'open', 400)")
    postgres.execute("update orders set status = 'paid' where id = 4")
    feeds.sync("f")
    until(feeds.kill_capture())
    postgres.execute("update orders set total = 5 where id = 4")
    postgres.execute("update orders set total = 6 where id = 4")
    postgres.execute("delete from orders where id = 4")
    feeds.sync("f")
    feeds.sync("g")
    found = {(r["op"], r["was"], r["total"]) for r in lines(out)[scanned:]}
    assert found == {
        ("insert", None, 400),
        ("update", 400, 400),
        ("update", 400, 5),
        ("update", 5, 6),
        ("delete", 6, None),
    }
    # A row that the WHERE did not select before needs no delete.
    totals = [r["total"] for r in lines(left)]
    assert [total for total in totals if total is None] == [None]
    with pytest.raises(ChangefeedError, match="cannot be verified") as caught:
        feeds.execute("VERIFY CHANGEFEED f TABLE orders")
    assert caught.value.code.number == "CF1303"


def test_the_engine_that_is_asked_for_evaluates_the_query(
    feeds: Feeds, postgres: Database, tmp_path: Path
) -> None:
    postgres.execute("insert into orders select i, 'open', i from generate_series(10, 3000) i")
    select = "AS SELECT id, total * 2 AS t FROM orders"
    told, shown = {}, {}
    for engine in ("auto", "spark", "driver"):
        create = (
            f"CREATE CHANGEFEED {engine} INTO 'file://{tmp_path}/{engine}' "
            f"WITH engine = '{engine}' {select}"
        )
        plan = feeds.execute(f"EXPLAIN {create}").rows
        told[engine] = [text for _, text in plan if str(text).startswith("evaluated")]
        feeds.execute(create)
        feeds.sync(engine)
        found = feeds.execute(f"SHOW CHANGEFEED {engine}")
        shown[engine] = dict(zip(found.columns, found.rows[0], strict=True))["last_spark_job"]
    assert told == {
        "auto": ["evaluated by Spark SQL: a small batch without a job, a large one by a job"],
        "spark": ["evaluated by a Spark job, except for a few rows"],
        "driver": [
            "evaluated by Spark SQL in the driver's JVM without a job, however large the batch is"
        ],
    }
    assert shown["auto"] is shown["driver"] is None
    assert "the query over 2,994 rows as a Spark job" in str(shown["spark"])
    made = [sorted((row["id"], row["t"]) for row in lines(tmp_path / e)) for e in told]
    assert len(made[0]) == 2994 and made[0] == made[1] == made[2]


def test_every_row_of_a_large_table_and_of_a_large_transaction_is_evaluated(
    feeds: Feeds, postgres: Database, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    postgres.execute(
        "insert into orders select i, case when i % 3 = 0 then 'open' else 'no' end, i / 100.0 "
        "from generate_series(10, 40000) i"
    )
    feeds.execute(
        f"CREATE CHANGEFEED f INTO 'file://{out}' AS SELECT id, total * 2 AS t, "
        "md5(status) AS m FROM orders WHERE status = 'open'"
    )
    feeds.sync("f")
    postgres.execute("update orders set status = 'open', total = total + 1 where id % 3 = 1")
    feeds.sync("f")
    wanted = postgres.execute(
        "select id, total * 2, md5(status) from orders where status = 'open' order by id"
    )
    found = by_id(out)
    assert [(i, found[i]["t"], found[i]["m"]) for i in sorted(found)] == [
        (i, pytest.approx(float(t)), m) for i, t, m in wanted
    ]


@pytest.mark.extended
def test_a_feed_goes_on_after_a_restart_of_the_node_and_the_death_of_the_jvm(
    feeds: Feeds, postgres: Database, tmp_path: Path, spark_engine: NodeSpark
) -> None:
    out = tmp_path / "out"
    feeds.execute(
        f"CREATE CHANGEFEED f INTO 'file://{out}' AS SELECT id, total + 1 AS t FROM orders "
        "WHERE status = 'open'"
    )
    feeds.sync("f")
    feeds.close()
    postgres.execute("update orders set total = 7 where id = 1")
    feeds.open()
    feeds.sync("f")
    assert by_id(out)[1]["t"] == 8
    assert spark_engine.pid is not None
    os.kill(spark_engine.pid, signal.SIGKILL)
    postgres.execute("update orders set total = 8 where id = 1")
    postgres.execute("update orders set status = 'closed' where id = 3")
    feeds.sync("f")
    found = by_id(out)
    assert (found[1]["t"], found[3]["t"]) == (9, None)


def test_a_column_that_the_query_reads_is_dropped_or_changes_its_type(
    feeds: Feeds, postgres: Database, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    feeds.execute(
        f"CREATE CHANGEFEED f INTO 'file://{out}' AS SELECT * FROM orders WHERE total > 1"
    )
    feeds.sync("f")
    postgres.execute("alter table orders add column extra int default 5")
    postgres.execute("update orders set extra = 6 where id = 1")
    feeds.sync("f")
    assert by_id(out)[1]["extra"] == 6
    postgres.execute("alter table orders drop column total")
    postgres.execute("update orders set extra = 7 where id = 1")

    until(lambda: feeds.catalog.job("f").status is Status.FAILED, "the feed of its last table")
    (table,) = feeds.catalog.tables(feeds.catalog.job("f").id)
    assert (table.error_code, table.error) == (
        "CF1101",
        "column total does not exist on table public.orders",
    )
    postgres.execute("delete from orders where id = 2")
    postgres.execute("alter table orders add column total numeric(8,2) default 4")
    feeds.execute("ALTER CHANGEFEED f RESCAN")
    feeds.sync("f")
    assert by_id(out)[1]["total"] == 4.0
    postgres.execute("update orders set total = 5 where id = 3")
    feeds.sync("f")
    assert by_id(out)[3]["total"] == 5.0


def test_a_rescan_skips_the_change_that_the_query_fails_on(
    feeds: Feeds, postgres: Database, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    feeds.execute(
        f"CREATE CHANGEFEED f INTO 'file://{out}' AS SELECT id, 6 / total AS part FROM orders"
    )
    feeds.sync("f")
    postgres.execute("insert into orders values (4, 'open', 0, null)")
    until(lambda: feeds.catalog.job("f").status is Status.FAILED)
    job = feeds.catalog.job("f")
    assert job.error_code == "CF4001" and "DIVIDE_BY_ZERO in 6 / total" in (job.error or "")
    feeds.execute("ALTER CHANGEFEED f RESCAN")
    until(lambda: feeds.catalog.job("f").status is Status.FAILED)
    postgres.execute("update orders set total = 2 where id = 4")
    feeds.execute("ALTER CHANGEFEED f RESCAN")
    feeds.sync("f")
    assert by_id(out)[4]["part"] == 3.0
    (notice, *_) = [e.text for e in feeds.catalog.events(job.id) if e.kind == "notice"]
    assert "cannot be delivered: the query cannot be evaluated on a row" in notice
    postgres.execute("update orders set total = 1 where id = 4")
    feeds.sync("f")
    assert by_id(out)[4]["part"] == 6.0


@pytest.mark.kafka
def test_kafka_gets_keys_of_the_table_in_order_whatever_the_select_has(
    feeds: Feeds, postgres: Database, kafka: KafkaBroker, topic: str
) -> None:
    feeds.execute(
        f"CREATE CHANGEFEED f INTO 'kafka://{kafka.bootstrap}?topic_name={topic}' "
        "AS SELECT upper(status) AS state FROM orders WHERE total >= 2"
    )
    feeds.sync("f")
    for total in (2, 5, 1):
        postgres.execute(f"update orders set total = {total}, status = 's{total}' where id = 1")
    feeds.sync("f")
    found: dict[bytes, list[Any]] = {}
    for message in kafka.messages(topic, count=5):
        assert message.key is not None and message.value is not None
        found.setdefault(message.key, []).append(json.loads(message.value))
    assert {key: [value["state"] for value in values] for key, values in found.items()} == {
        b"[1]": ["S2", "S5", None],
        b"[2]": ["CLOSED"],
        b"[3]": ["OPEN"],
    }
    assert found[b"[2]"] == [{"__crdb__": {"key": [2]}, "state": "CLOSED"}]


@pytest.mark.extended
def test_debezium_s_envelope_of_a_query(feeds: Feeds, postgres: Database, tmp_path: Path) -> None:
    into = f"INTO 'experimental-sql:///sqlite:///{tmp_path}/out.db' WITH envelope = 'debezium'"
    code, message, hint, _ = refused(
        feeds, f"CREATE CHANGEFEED f {into} AS SELECT id, event_op() AS o FROM orders"
    )
    assert code == "CF1205" and "the row before a change cannot be shown" in message
    assert hint.startswith("use another envelope")
    feeds.execute(
        f"CREATE CHANGEFEED f {into} AS SELECT id, total * 2 AS t FROM orders WHERE status = 'open'"
    )
    feeds.sync("f")
    postgres.execute("update orders set total = 2 where id = 1")
    postgres.execute("update orders set status = 'closed' where id = 1")
    feeds.sync("f")
    with sqlite3.connect(tmp_path / "out.db") as found:
        texts = found.execute("SELECT value FROM changefeed_messages ORDER BY rowid").fetchall()
    values = [json.loads(text) for (text,) in texts if text]
    three, four, six = ({"id": n, "t": t} for n, t in ((1, "ASw="), (1, "AZA="), (3, "Alg=")))
    assert [(v["op"], v["before"], v["after"]) for v in values] == [
        ("r", None, three),
        ("r", None, six),
        ("u", three, four),
        ("d", four, None),
    ]


@pytest.mark.extended
def test_a_lake_table_is_kept_equal_to_the_query(
    feeds: Feeds, postgres: Database, tmp_path: Path, spark_engine: NodeSpark
) -> None:
    lake = tmp_path / "lake"
    code, message, _, _ = refused(
        feeds, f"CREATE CHANGEFEED f INTO 'delta://{lake}' AS SELECT total FROM orders"
    )
    assert code == "CF1302" and "leaves out key columns" in message
    feeds.execute(
        f"CREATE CHANGEFEED f INTO 'delta://{lake}' AS SELECT id AS order_id, total * 2 AS t, "
        "struct(status, total) AS s, sequence(1, id) AS q, id % 2 = 0 AS even "
        "FROM orders WHERE status = 'open'"
    )
    feeds.sync("f")
    postgres.execute("update orders set status = 'open' where id = 2")
    postgres.execute("update orders set status = 'closed' where id = 3")
    postgres.execute("update orders set total = total + 1 where id = 1")
    postgres.execute("insert into orders values (4, 'closed', 9), (5, 'open', 9)")
    feeds.sync("f")
    with spark_engine.use(packs=["delta"]) as session:
        frame = session.read.format("delta").load(str(lake / "orders")).orderBy("order_id")
        rows = frame.select("order_id", "t", "s", "q", "even").toArrow().to_pylist()
    assert [(r["order_id"], r["t"], r["even"]) for r in rows] == [
        (1, Decimal("5.00"), False),
        (2, Decimal("4.00"), True),
        (5, Decimal("18.00"), False),
    ]
    assert json.loads(rows[0]["s"]) == {"status": "open", "total": 2.5}
    assert rows[1]["q"] == [1, 2]


def test_a_client_without_spark_has_the_node_check_its_query(feeds: Feeds, tmp_path: Path) -> None:
    """Through the state alone: what is wrong is told at its place, and the feed runs."""
    customers = tmp_path / "customers"
    with feeds.node.spark.use() as spark:
        spark.sql("SELECT 1 AS k, 'Ann' AS name").write.parquet(str(customers))
    client, session = Interpreter(feeds.catalog), Session(client="elsewhere")
    join = f"LEFT JOIN parquet.`{customers}` AS c ON a.id = c.k"
    create = f"CREATE CHANGEFEED f INTO 'file://{tmp_path}/out' AS SELECT a.id, {{}} FROM orders a"
    wrong = create.format("rand() AS r")
    with pytest.raises(ChangefeedError) as caught:
        client.execute(wrong, session)
    span = caught.value.span
    assert span is not None and wrong[span.start : span.end] == "rand"
    right = f"{create.format('a.total * 2 AS twice, c.name')} {join} WHERE a.status = 'open'"
    shown = str(client.execute(f"EXPLAIN {right}", session).rows)
    assert "twice decimal(10,2)" in shown and "name string" in shown
    client.execute(right, session)
    feeds.sync("f")
    found = {row["id"]: (row["twice"], row["name"]) for row in lines(tmp_path / "out")}
    assert found == {1: (3, "Ann"), 3: (6, None)}


def test_a_client_without_spark_has_the_node_read_the_columns_of_a_dataset(
    feeds: Feeds, tmp_path: Path
) -> None:
    extract = tmp_path / "stock.csv"
    extract.write_text("id,item\n1,apple\n")
    client, session = Interpreter(feeds.catalog), Session(client="elsewhere")
    explain = f"EXPLAIN CREATE CHANGEFEED d FOR DATASET '{extract}' KEY (id) INTO 'null://'"
    assert "columns id bigint, item string" in str(client.execute(explain, session).rows)
    feeds.close()
    with pytest.raises(ChangefeedError, match="no node runs that could answer"):
        client.execute(explain, session)
    feeds.open()
