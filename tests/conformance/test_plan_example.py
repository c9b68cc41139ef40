"""EXPLAIN's example is the message made of a row with those values."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from changefeed.catalog.model import TableProgress
from changefeed.core.formats import TRAITS, Format
from changefeed.core.schema import BeforeImage, TableName, TableSchema
from changefeed.core.shapes import Envelope
from changefeed.encoding.compile import origin_of, source_members, table_messages
from changefeed.encoding.encode import encode_messages
from changefeed.encoding.plan import MessagePlan
from changefeed.options import parse_options
from changefeed.plan.example import example
from changefeed.sources.mysql import types as my
from changefeed.sources.postgres import types as pg
from grammar import nodes
from grammar.parser import parse
from tests.golden.world import shape

TABLE = TableName("shop", "public", "t")
COLUMNS = {
    "b": "text",
    "a": "bigint",
    "n": "numeric(12,2)",
    "j": "jsonb",
    "at": "timestamp with time zone",
    "yes": "boolean",
}
#: The values EXPLAIN makes up, as the log has them.
VALUES: dict[str, Any] = {
    "a": 1,
    "b": "x",
    "n": "1.50",
    "j": "{}",
    "at": "2024-03-31T01:02:03.5Z",
    "yes": True,
}
WHEN = (1536242855577149065, 0)


def update_of(schema: TableSchema, *, other_before: bool = False) -> pa.Table:
    """One update whose row is :data:`VALUES` before and after, or had nothing but its key."""
    row: dict[str, Any] = {
        "op": "u",
        "wall": WHEN[0],
        "logical": WHEN[1],
        "seq": 1,
        "ord": 0,
        "xid": 571,
        "commit_us": WHEN[0] // 1000,
        "last": True,
        "missing": None,
    }
    for i, column in enumerate(schema.columns):
        row[f"a{i}"] = VALUES[column.name]
    for i in schema.before_ordinals:
        if i in schema.key or not other_before:
            row[f"b{i}"] = VALUES[schema.columns[i].name]
    return pa.Table.from_pylist([row], schema=schema.log_schema())


def plan_of(options: str, schema: TableSchema, columns: tuple[str, ...]) -> MessagePlan:
    statement = parse(f"CREATE CHANGEFEED FOR t INTO 'kafka://k' WITH {options}")
    assert isinstance(statement, nodes.CreateChangefeed)
    typed = parse_options(statement.options, scheme="kafka")
    progress = TableProgress(TABLE, "top", columns=columns)
    members, origin = source_members("shop", 1, "kafka"), origin_of("postgresql://h/shop", "shop")
    return table_messages(typed, progress, schema, members, origin=origin)


@pytest.mark.parametrize("identity", [BeforeImage.KEY, BeforeImage.FULL])
@pytest.mark.parametrize("columns", [(), ("n",)])
@pytest.mark.parametrize(
    "options",
    [
        "updated",
        "diff, updated, mvcc_timestamp, key_in_value, topic_in_value",
        "envelope = 'row', updated",
        "envelope = 'row'",
        "envelope = 'bare', topic_in_value",
        "envelope = 'key_only'",
        "envelope = 'enriched', diff, key_in_value",
        "envelope = 'enriched', enriched_properties = 'source', updated",
        "key_column = 'b', unordered",
        "envelope = 'changed', updated",
        "envelope = 'row', updated, mvcc_timestamp",
        "envelope = 'bare', updated, mvcc_timestamp",
        "topic_in_value, updated",
        "envelope = 'debezium'",
        "envelope = 'debezium', schemas_enable",
    ],
)
def test_example(options: str, columns: tuple[str, ...], identity: BeforeImage) -> None:
    schema = shape(TABLE, COLUMNS, ["a"], identity)
    plan = plan_of(options, schema, columns)
    update = update_of(schema, other_before=plan.envelope is Envelope.CHANGED)
    (real,) = encode_messages(update, plan, now_ns=WHEN[0]).to_pylist()
    made = example(plan)
    assert (made.key, made.value) == (real["key"], real["value"])
    assert made.read == (real["key"].decode(), (real["value"] or b"").decode())


@pytest.mark.parametrize("columns", [(), ("n",)])
def test_example_of_a_line(columns: tuple[str, ...]) -> None:
    schema = shape(TABLE, COLUMNS, ["a"], BeforeImage.KEY)
    plan = plan_of("format = 'csv', initial_scan = 'only'", schema, columns)
    (real,) = encode_messages(update_of(schema), plan, scan=True).to_pylist()
    assert list(example(plan).lines()) == [real["value"].decode()]


#: A column of each type of PostgreSQL and MySQL whose values the encoder reads.
TYPES = [
    *(pg.column_of(f"p{oid}", oid, -1, {}) for oid in pg.BUILTIN),
    *(
        pg.column_of(f"n{number}", 1700, ((precision << 16) | scale & 0x7FF) + 4, {})
        for number, (precision, scale) in enumerate(
            ((12, 2), (5, 0), (3, 3), (3, -2), (38, 10), (50, 10))
        )
    ),
    pg.column_of("bits", 1560, 3, {}, type_name="bit(3)"),
    *(
        my.column_of(my.ColumnInfo(f"m{number}", written))
        for number, written in enumerate(
            (
                *my._FIXED, "bigint unsigned", "decimal(10,3)", "bit(1)", "bit(9)",
                "enum('it''s','b')", "set('a','b')", "time(3)", "datetime(6)", "year",
            )
        )
    ),
]  # fmt: skip


@pytest.mark.parametrize("identity", BeforeImage)
@pytest.mark.parametrize(
    ("form", "envelope"),
    [
        (form, envelope)
        for form in Format
        for envelope in Envelope
        if envelope not in TRAITS[form].never
        and (TRAITS[form].debezium or envelope is not Envelope.DEBEZIUM)
    ],
)
def test_a_value_of_each_type_can_be_made_up(
    form: Format, envelope: Envelope, identity: BeforeImage
) -> None:
    schema = TableSchema(TABLE, tuple(TYPES), (4,), identity)
    plan = MessagePlan(schema, "top", envelope, form, diff=True, updated=True, transactions=True)
    key, value = example(plan).read
    for text in (key, value):
        assert not text or TRAITS[form].line or json.loads(text)
    assert envelope is Envelope.KEY_ONLY or all(
        column.name in value for column in TYPES[5:] if not TRAITS[form].line
    )
