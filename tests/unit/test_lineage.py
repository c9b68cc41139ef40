"""SHOW CHANGEFEED f LINEAGE: what each column of a target is made of."""

from __future__ import annotations

from dataclasses import replace

import pytest

from changefeed.catalog import TableProgress
from changefeed.core.schema import BeforeImage, TableName
from changefeed.options import Options
from changefeed.plan.lineage import table_lineage
from grammar import nodes
from grammar.parser import parse
from tests.golden.world import shop

ORDERS = shop("shop")[TableName("shop", "public", "orders")]
WINDOW = "window(event_timestamp(), '1 minute')"


def lineage(
    select: str = "", *, full: bool = False, typed: bool = False, **options: str
) -> list[tuple[str, str, str, str, str]]:
    """Part, column, source (``table.column``), how and detail of each row."""
    query = None
    if select:
        statement = parse(f"CREATE CHANGEFEED f INTO 'null://' AS {select}")
        assert isinstance(statement, nodes.CreateChangefeed)
        query = statement.query
        assert query is not None
    image = BeforeImage.FULL if full else BeforeImage.KEY
    rows = table_lineage(
        Options.from_dict(options),
        TableProgress(ORDERS.table, topic="t"),
        replace(ORDERS, before_image=image),
        query,
        takes_rows=typed,
    )
    found = []
    for row in rows:
        table = row.source_table
        name = table.name if isinstance(table, TableName) else table
        source = f"{name}.{row.source_column}" if row.source_column else ""
        assert row.target == "t"
        found.append((row.part, row.column, source, row.how, row.detail))
    return found


@pytest.mark.parametrize(
    ("item", "column", "reads", "how"),
    [
        ("note AS n", "n", ["note"], "copy"),
        ('o.note AS "My Note"', "My Note", ["note"], "copy"),
        ("NOTE", "note", ["note"], "copy"),
        ("cdc_prev.total AS old", "old", ["total"], "before"),
        ("total * 2 AS twice", "twice", ["total"], "computed"),
        ("meta.a.b", "b", ["meta"], "computed"),
        ("meta:a.b AS v", "v", ["meta"], "computed"),
        ("o.meta['x'] AS x", "x", ["meta"], "computed"),
        ("transform(array(total), x -> x + customer) AS a", "a", ["customer", "total"], "computed"),
        ("note || \"note\" || 'total' AS c", "c", ["note"], "computed"),
        ("id AS k, k + total AS s", "s", ["id", "total"], "computed"),
        ("count(*) AS n", "n", [""], "aggregated"),
        ("changefeed_creation_timestamp() AS born", "born", [""], "computed"),
        ("event_op() AS op", "op", [""], "metadata"),
        ("crdb_internal_mvcc_timestamp AS ts", "ts", [""], "metadata"),
    ],
)
def test_what_an_expression_reads(item: str, column: str, reads: list[str], how: str) -> None:
    rows = lineage(f"SELECT {item} FROM orders AS o", typed=True)
    mine = [(source, kind) for _, name, source, kind, _ in rows if name == column]
    assert sorted(mine) == [(f"orders.{read}" if read else "", how) for read in reads]


def test_a_star_is_every_column_and_the_key_that_a_query_hides_is_in_the_message_key() -> None:
    rows = lineage("SELECT o.*, note AS again FROM orders AS o", typed=True)
    assert [(column, source) for _, column, source, _, _ in rows] == [
        *((c.name, f"orders.{c.name}") for c in ORDERS.columns),
        ("again", "orders.note"),
    ]
    assert lineage("SELECT note FROM orders", envelope="bare")[:2] == [
        ("key", "id", "orders.id", "copy", ""),
        ("value", "note", "orders.note", "copy", ""),
    ]


def test_rows_are_chosen_by_conditions_joins_and_groups() -> None:
    joined = lineage(
        "SELECT id, c.name FROM orders AS o JOIN parquet.`/d` AS c ON o.customer = c.id "
        "WHERE c.name LIKE 'a%' AND event_op() = 'u'",
        typed=True,
    )
    assert joined[1:] == [
        ("row", "name", "parquet./d.name", "copy", ""),
        ("row", "", "parquet./d.name", "filter", "c.name LIKE 'a%' AND event_op() = 'u'"),
        ("row", "", "", "filter", "c.name LIKE 'a%' AND event_op() = 'u'"),
        ("row", "", "orders.customer", "join", "customer = c.id"),
        ("row", "", "parquet./d.id", "join", "customer = c.id"),
    ]
    grouped = lineage(
        f"SELECT {WINDOW}.start AS since, Customer, sum(total) AS s, 1 AS one FROM orders "
        f"GROUP BY {WINDOW}, customer"
    )
    assert [(part, column, how) for part, column, _, how, _ in grouped] == [
        ("key", "since", "computed"),
        ("key", "Customer", "copy"),
        ("value", "after.since", "computed"),
        ("value", "after.Customer", "copy"),
        ("value", "after.s", "aggregated"),
        ("value", "after.one", "computed"),
        ("row", "", "group"),
        ("row", "", "group"),
    ]


def test_syntax_that_cannot_be_read_names_every_column_in_it() -> None:
    """``|>`` is no operator of an expression: Spark would refuse it, sqlglot cannot read it."""
    select = "SELECT id, (total |> note) AS odd FROM orders WHERE (customer |> 1)"
    rows = lineage(select, typed=True)
    assert [(column, source, how) for _, column, source, how, _ in rows] == [
        ("id", "orders.id", "copy"),
        ("odd", "orders.total", "computed"),
        ("odd", "orders.note", "computed"),
        ("", "orders.customer", "filter"),
    ]


@pytest.mark.parametrize(
    ("envelope", "form"),
    [
        *((e, "json") for e in ("wrapped", "row", "bare", "enriched", "debezium", "changed")),
        *((e, "avro") for e in ("wrapped", "row", "bare", "enriched", "debezium")),
        *((e, "protobuf") for e in ("wrapped", "row", "bare", "enriched")),
    ],
)
def test_every_envelope_has_every_column(envelope: str, form: str) -> None:
    rows = lineage(full=True, envelope=envelope, format=form)
    value = [row for row in rows if row[0] == "value"]
    columns = [f"orders.{column.name}" for column in ORDERS.columns]
    copied = [row for row in value if row[3] == "copy" and not row[1].startswith("__crdb__")]
    assert [source for _, _, source, _, _ in copied] == columns
    before = [source for _, _, source, how, _ in value if how == "before"]
    assert before == (columns if envelope == "debezium" else [])
    assert {detail for _, _, _, how, detail in value if how == "metadata"} <= {
        "operation", "time of the message", "transaction and place in it",
        "source, table and commit timestamp",
    }  # fmt: skip
