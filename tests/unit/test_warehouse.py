"""The core of SQL warehouses: values, shapes, bookkeeping, errors; no server."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.events import SchemaChange
from changefeed.core.schema import TableSchema
from changefeed.core.uri import sink_location
from changefeed.options import History
from changefeed_testing.sinks.feed import at
from changefeed_testing.sinks.rows import (
    RowFeed,
    SourceDouble,
    column_of,
    delete,
    insert,
    table_of,
    update,
)
from sinks.base import SinkContext
from sinks.merged.policy import TablePolicy
from sinks.registry import check, open_sink
from sinks.warehouse import evolution
from sinks.warehouse.applied import AppliedRow
from sinks.warehouse.bigquery.sql import BigQueryDialect
from sinks.warehouse.clickhouse.sql import ClickHouseDialect
from sinks.warehouse.database_sink import PACE, SLOWEST
from sinks.warehouse.dialect import Dialect
from sinks.warehouse.duckdb import DuckDB, DuckDBDialect, DuckDBSink
from sinks.warehouse.mysql import MySQLDialect
from sinks.warehouse.postgresql import PostgreSQL, PostgreSQLDialect
from sinks.warehouse.redshift import RedshiftDialect
from sinks.warehouse.rows import packets
from sinks.warehouse.sink import WarehouseSink
from sinks.warehouse.snowflake.sql import SnowflakeDialect
from sinks.warehouse.spanner.sql import SpannerDialect
from sinks.warehouse.staging import TargetShape, check_values, fits
from sinks.warehouse.tables import TargetTable

DIALECTS: Mapping[str, Dialect] = {
    d.name: d
    for d in (
        *(DuckDBDialect(), PostgreSQLDialect(), MySQLDialect(), RedshiftDialect()),
        *(ClickHouseDialect(), SpannerDialect()),
    )
}

# ------------------------------------------------------------------------------- values


def refused(
    dialect: Dialect, logical: str, text: str | None, *, key: bool = False, keyless: bool = False
) -> str:
    """What the sink says of a value; empty when it takes it."""
    names = () if keyless else ("a",)
    schema = table_of("t", key=names, a=logical if key else "int32", b=logical)
    source = SourceDouble(schema)
    source.commit(insert("t", a=text if key else 1, b=None if key else text))
    shape = TargetShape(schema, "t")
    rows = RowFeed(source)._batch(RowFeed(source)._next(at(1)), source.log, 0).rows
    staged = shape.staged(rows, 1)
    try:
        check_values(shape, staged, dialect)
    except ChangefeedError as error:
        assert (error.code.number, error.target) == ("CF5006", "t")
        shown = f"{error.message} {error.detail} {error.hint}"
        assert not text or len(text) < 3 or text.strip('"') not in shown, "the value is shown"
        assert "shop.public.t" in shown and f"column {'a' if key else 'b'}" in shown
        return shown
    return ""


@pytest.mark.parametrize(
    ("logical", "text", "refusing"),
    [
        ("decimal", "12345678901234567890.123456789012345678", "MySQL? Spanner"),
        ("decimal", "0.0000000000000000001", "DuckDB Redshift Spanner"),
        ("decimal", "1.50000000000000000000000000000000000000000", ""),
        ("decimal", '"NaN"', "DuckDB MySQL Redshift ClickHouse Spanner"),
        ("decimal", '"-Infinity"', "DuckDB MySQL Redshift ClickHouse Spanner"),
        ("decimal(6,2)", "-9999.99", ""),
        ("decimal(6,2)", '"NaN"', "DuckDB MySQL Redshift ClickHouse Spanner"),
        ("decimal(3,5)", "0.00999", ""),
        ("decimal(2,-3)", "-99000", ""),
        ("float64", '"Infinity"', "MySQL"),
        ("float64", "1e+300", ""),
        ("float32", '"NaN"', "MySQL"),
        ("date", "2024-02-29", ""),
        ("date", "infinity", "MySQL Redshift ClickHouse Spanner"),
        ("date", "0044-03-15 BC", "DuckDB MySQL Redshift ClickHouse Spanner"),
        ("date", "1944-03-15 BC", "DuckDB MySQL Redshift ClickHouse Spanner"),
        ("date", "12024-01-01", "MySQL Redshift ClickHouse Spanner"),
        ("date", "1899-12-31", "ClickHouse"),
        ("date", "2299-12-31", ""),
        ("timestamp", "2300-01-01T00:00:00", "ClickHouse"),
        ("timestamptz", "1900-01-01T00:00:00Z", ""),
        ("timestamp", "2024-03-31T01:02:03.123456", ""),
        ("timestamptz", "2024-03-31T01:02:03Z", ""),
        ("timestamptz", "-infinity", "MySQL Redshift ClickHouse Spanner"),
        ("timestamptz", "0044-03-15T00:00:00Z BC", "DuckDB MySQL Redshift ClickHouse Spanner"),
        ("array<int32>", "[1,null]", ""),
        ("array<int32>", "[]", ""),
        ("array<int32>", "[[1],[2]]", "DuckDB"),
        ("array<json>", '[{"a": 1}]', ""),
        ("text", "x" * 70_000, "Redshift"),
        ("text", None, ""),
    ],
)
def test_values_that_a_type_cannot_hold_are_named_by_column(
    logical: str, text: str | None, refusing: str
) -> None:
    found = {name for name, d in DIALECTS.items() if refused(d, logical, text)}
    assert found == {name for name in refusing.split() if not name.endswith("?")}


def test_texts_in_keys_have_a_length_in_mysql() -> None:
    mysql = DIALECTS["MySQL"]
    assert not refused(mysql, "text", "☃" * 255, key=True)
    assert "VARCHAR(255)" in refused(mysql, "text", "☃\n" * 128, key=True)
    assert not refused(mysql, "bytes", "\\x" + "00" * 255, key=True)
    assert "VARBINARY(255)" in refused(mysql, "bytes", "\\x" + "00" * 256, key=True)


def test_what_cannot_be_compared_is_a_text_in_a_key() -> None:
    dialects = (RedshiftDialect(), SnowflakeDialect(), BigQueryDialect(), SpannerDialect())
    for d in dialects:
        for logical in ("json", "array<int32>"):
            value, key = (d.rule(column_of("a", logical, 1), key=key) for key in (False, True))
            assert key.sql == d.rule(column_of("a", "text", 1), key=True).sql != value.sql
            assert key.of("x") == "x"


def test_blanks_at_the_end_of_a_key_are_refused_where_they_do_not_count() -> None:
    redshift = DIALECTS["Redshift"]
    assert "VARCHAR(65535)" in refused(redshift, "text", "two words\n ", key=True)
    for text in ("", " a\nb", "[1, 2]"):
        assert not refused(redshift, "text", text, key=True)
    assert not refused(redshift, "text", "two words ")


@pytest.mark.parametrize("name", ["MySQL", "Spanner"])
def test_texts_of_a_table_without_a_key_are_no_keys(name: str) -> None:
    assert refused(DIALECTS[name], "text", "x" * 9_000, key=True)
    assert not refused(DIALECTS[name], "text", "x" * 9_000, keyless=True)


def test_texts_have_a_length_in_spanner() -> None:
    assert not refused(DIALECTS["Spanner"], "text", "x" * 2_621_440)
    assert refused(DIALECTS["Spanner"], "text", "x" * 2_621_441)


@pytest.mark.parametrize(
    ("logical", "text", "shown"),
    [
        ("decimal", "0.000000000000000001", "0.000000000000000001"),
        ("decimal(12,2)", "-12.30", "-12.30"),
        ("float64", "NaN", "nan"),
        ("bytes", "\\xdeadBEEF", r"\xDE\xAD\xBE\xEF"),
        ("bytes", "\\x", ""),
        ("date", "-infinity", "-infinity"),
        ("timestamp", "10000-01-01T00:00:00.5", "10000-01-01 00:00:00.5"),
        ("interval", "1 year -3 days +04:05:06", "1 year -3 days 04:05:06"),
        ("interval", "-00:00:01", "-00:00:01"),
        ("time", "24:00:00", "24:00:00"),
        ("timetz", "01:02:03.5+05:30", "01:02:03.5+05:30"),
        ("json", '{"b": 1.50, "a": [null]}', '{"b": 1.50, "a": [null]}'),
        ("array<text>", '["a,b",null,"c\\"d"]', "['a,b', NULL, 'c\"d']"),
        ("array<float64>", '[1.5,"NaN"]', "[1.5, nan]"),
        ("array<timestamp>", '["2024-01-01T01:02:03"]', "['2024-01-01 01:02:03']"),
        ("array<int32>", "[]", "[]"),
        ("uuid", "EEB6EEFE-f688-46d8-952a-9f1101369c1b", "eeb6eefe-f688-46d8-952a-9f1101369c1b"),
    ],
)
def test_duckdb_makes_each_type_of_its_log_form(logical: str, text: str, shown: str) -> None:
    dialect = DuckDBDialect()
    rule = dialect.rule(column_of("c", logical, 1))
    sql = f"SELECT v::VARCHAR, typeof(v) FROM (SELECT {rule.of(dialect.literal(text))} AS v)"
    with duckdb.connect() as connection:
        [(found, kind)] = connection.execute(sql).fetchall()
    assert found == shown
    assert kind.replace(" WITH TIME ZONE", "TZ") == rule.sql


def test_literals_of_inserted_rows() -> None:
    source = SourceDouble(table_of("t", key=("a",), a="int64", b="text", c="bool"))
    source.commit(insert("t", a=1, b="it's \\ \n☃", c=True), insert("t", a=2))
    shape = TargetShape(source.schemas["t"], "t")
    feed = RowFeed(source)
    staged = shape.staged(feed._batch(feed._next(at(1)), source.log, 0).rows, 7)
    [text] = packets(staged.select(["a", "b", "c", "_batch_id"]))
    assert text == "(1,'it''s \\ \n☃',1,7),(2,NULL,NULL,7)"
    wide = SourceDouble(table_of("w", key=("a",), a="int64", b="text"))
    wide.commit(*(insert("w", a=i, b="x" * 3_000_000) for i in range(3)))
    feed = RowFeed(wide)
    staged = TargetShape(wide.schemas["w"], "w").staged(
        feed._batch(feed._next(at(1)), wide.log, 0).rows, 7
    )
    assert [p.count("(") for p in packets(staged)] == [1, 1, 1]


# ------------------------------------------------------------------------------- shapes


def table(dialect: Dialect | None = None, policy: TablePolicy | None = None) -> TargetTable:
    d = dialect or PostgreSQLDialect()
    warehouse = PostgreSQL("", "s", "")
    warehouse.dialect = d  # type: ignore[assignment]
    policy = policy or TablePolicy()
    return TargetTable.of(
        warehouse, "t", policy, AppliedRow(d, '"s"."_changefeed_applied"', "x/1", "t")
    )


def changes(
    old: TableSchema, new: TableSchema, *present: str, renamed: dict[str, str] | None = None
) -> list[str]:
    event = SchemaChange(old, new, at(1), 1, renamed=tuple((renamed or {}).items()))
    names = present or tuple(c.name for c in old.columns)
    found = evolution.changes(table(), event, dict.fromkeys(names, ""))
    return [change.sql.removeprefix('ALTER TABLE "s"."t" ') for change in found]


def test_renames_never_meet() -> None:
    old = table_of("t", key=("id",), id="int32", a="text", b="text", c="text")
    names = {"a": "b", "b": "c", "c": "a"}
    turned = tuple(replace(c, name=names.get(c.name, c.name)) for c in old.columns)
    assert changes(old, replace(old, columns=turned)) == [
        'RENAME COLUMN "a" TO "_renamed_a"',
        'RENAME COLUMN "c" TO "a"',
        'RENAME COLUMN "b" TO "c"',
        'RENAME COLUMN "_renamed_a" TO "b"',
    ]


def test_dropped_columns_make_room() -> None:
    old = table_of("t", key=("id",), id="int32", a="text", b="text")
    new = replace(old, columns=(old.columns[0], replace(old.columns[2], name="a")))
    want = ['RENAME COLUMN "a" TO "_dropped_3_a"', 'RENAME COLUMN "b" TO "a"']
    assert changes(old, new) == want
    assert changes(old, new, "id", "_dropped_3_a", "a") == [], "it was done before a crash"


def without_numbers(*names: str) -> TableSchema:
    made = table_of("t", key=("id",), **dict.fromkeys(names, "int32"))
    return replace(made, columns=tuple(replace(c, column_id=0) for c in made.columns))


def test_columns_without_numbers_are_followed_by_the_names_that_the_source_says() -> None:
    old = without_numbers("id", "a", "b")
    want = ['RENAME COLUMN "a" TO "c"']
    assert changes(old, without_numbers("id", "c", "b"), renamed={"a": "c"}) == want
    key = without_numbers("id", "a", "b")
    key = replace(key, columns=(replace(key.columns[0], name="no"), *key.columns[1:]))
    assert changes(old, key, renamed={"id": "no"}) == ['RENAME COLUMN "id" TO "no"']
    first = without_numbers("id", "w", "a", "b")
    assert changes(old, first) == ['ADD COLUMN "w" integer'], "the others stay as they are"
    again = changes(old, first, "id", "w", "_dropped_0_w", "a", "b")
    assert again == ['RENAME COLUMN "w" TO "_dropped_1_w"', 'ADD COLUMN "w" integer']


def test_a_name_may_be_another_column_s_at_once() -> None:
    want = ['RENAME COLUMN "a" TO "_dropped_0_a"', 'ADD COLUMN "a" integer']
    old = without_numbers("id", "a", "b")
    assert changes(old, without_numbers("id", "b", "a"), renamed={"a": ""}) == want


def test_a_broken_rename_is_repeated() -> None:
    """What earlier attempts left where a rename is an add and a drop does not block it for ever."""
    old = table_of("t", key=("id",), id="int32", a="text")
    new = replace(old, columns=(old.columns[0], replace(old.columns[1], name="b")))
    left = ("id", "a", "_dropped_2_b", "b")
    assert changes(old, new, *left) == ['RENAME COLUMN "a" TO "b"']


@pytest.mark.parametrize(
    ("old", "new", "wider"),
    [
        ("int16", "int64", True),
        ("int32", "decimal", True),
        ("int64", "int32", False),
        ("decimal(10,2)", "decimal(12,2)", True),
        ("decimal(10,2)", "decimal(12,5)", False),
        ("decimal(10,2)", "decimal", True),
        ("decimal", "decimal(38,10)", False),
        ("float32", "float64", True),
        ("text", "int32", False),
        ("timestamp", "timestamptz", False),
    ],
)
def test_wider_types(old: str, new: str, wider: bool) -> None:
    before = table_of("t", key=("id",), id="int32", a=old)
    after = replace(before, columns=(before.columns[0], column_of("a", new, 2)))
    if wider:
        [sql] = changes(before, after)
        assert sql.startswith('ALTER COLUMN "a" TYPE')
        return
    with pytest.raises(ChangefeedError, match="not wider") as caught:
        changes(before, after)
    assert caught.value.code.number == "CF5006"


@pytest.mark.parametrize(
    ("columns", "policy", "why"),
    [
        ({"a": "int32", "_operation": "text"}, TablePolicy(), "used by the sink itself"),
        ({"a": "int32", "_deleted": "text"}, TablePolicy(soft=True), "used by the sink itself"),
    ],
)
def test_tables_that_cannot_be_kept(columns: dict[str, str], policy: TablePolicy, why: str) -> None:
    with pytest.raises(ChangefeedError, match=why):
        table(policy=policy).check(table_of("t", key=("a",), **columns))


def test_tables_without_a_key_have_no_versions() -> None:
    for policy in (TablePolicy(soft=True), TablePolicy(history=History.SCD2)):
        with pytest.raises(ChangefeedError, match="needs a table with a key"):
            table(policy=policy).check(table_of("t", a="int32"))
    with pytest.raises(ChangefeedError, match="Redshift needs a table with a key"):
        table(RedshiftDialect()).check(table_of("t", a="int32"))
    with pytest.raises(ChangefeedError, match="differ only in case"):
        table(DuckDBDialect()).check(table_of("t", key=("a",), a="int32", A="int32"))


def test_keys_that_no_table_can_have() -> None:
    columns = {f"k{i}": "int16" for i in range(17)}
    many = table_of("t", key=tuple(columns), **columns)
    texts = {"a": "text", "b": "decimal", "c": "text", "d": "json", "e": "bytes"}
    wide = table_of("t", key=tuple(texts), **texts)
    for d, schema, why in (
        (SpannerDialect(), many, "17 columns, and Spanner takes 16"),
        (MySQLDialect(), many, "17 columns, and MySQL takes 16"),
        (MySQLDialect(), wide, "needs 3,348 bytes in an index, and MySQL has 3,072: a "),
    ):
        for policy in (TablePolicy(), TablePolicy(sequence="")):
            with pytest.raises(ChangefeedError, match=why) as caught:
                table(d, policy=policy).check(schema)
            assert caught.value.code is Code.SINK_CANNOT_TAKE_TABLE
            assert "history = 'append'" in caught.value.hint
        table(d, policy=TablePolicy(history=History.APPEND)).check(schema)
    table(DuckDBDialect()).check(wide)


def test_columns_of_one_name_for_the_target_are_named() -> None:
    head = "é" * 31  # 62 bytes
    columns = {"a": "int32", f"{head}_1": "int32", f"{head}_2": "text"}
    with pytest.raises(ChangefeedError, match="alike in their first 63 bytes") as caught:
        table(PostgreSQLDialect()).check(table_of("t", key=("a",), **columns))
    assert f"columns {head}_1 and {head}_2 are" in caught.value.message
    assert "leave one of them out with a column list" in caught.value.hint
    table(DuckDBDialect()).check(table_of("t", key=("a",), **columns))


def test_long_names_stay_unique() -> None:
    d = PostgreSQLDialect()
    one, two = d.fit("_staging_" + "é" * 40 + "1"), d.fit("_staging_" + "é" * 40 + "2")
    assert one != two and len(one.encode()) <= 63


# ------------------------------------------------------------------------------- the sink


@pytest.fixture
def source() -> SourceDouble:
    return SourceDouble(table_of("t", key=("a",), a="int32", b="text"))


def opened(path: Path, source: SourceDouble, **options: object) -> tuple[RowFeed, DuckDBSink]:
    feed = RowFeed(source, options=options)
    sink = DuckDBSink(f"duckdb://{path}", options)
    feed.open(sink)
    return feed, sink


def read(path: Path, sql: str) -> list[tuple[Any, ...]]:
    with duckdb.connect(str(path)) as connection:
        return connection.execute(sql).fetchall()


def test_a_look_makes_nothing(tmp_path: Path) -> None:
    looked = SinkContext("validate", 0, ())
    sink = DuckDBSink(f"duckdb://{tmp_path}/shop.duckdb?schema=copy")
    assert sink.check(looked) == []
    sink.close()
    assert list(tmp_path.iterdir()) == []
    sink = DuckDBSink(f"duckdb://{tmp_path}/nowhere/shop.duckdb")
    (problem,) = sink.check(looked)
    assert (problem.code.number, "directory" in problem.message) == ("CF5003", True)


def test_a_look_says_what_cannot_be_reached() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        sink = open_sink(f"postgresql://copy:pa55word@127.0.0.1:{port}/db")
        (problem,) = sink.check(SinkContext("validate", 0, ()))
    assert problem.code.number == "CF5001"
    assert "pa55word" not in f"{problem.message} {problem.detail} {problem.hint}"


def test_staged_rows_that_went_are_missed(tmp_path: Path, source: SourceDouble) -> None:
    path = tmp_path / "db"
    feed, sink = opened(path, source)
    source.commit(insert("t", a=1, b="x"))
    epoch, receipts = feed.write(sink, 0, 1)
    sink._load(sink._pending[0])
    with duckdb.connect(str(path)) as connection:
        connection.execute("DELETE FROM _staging_t")
    with pytest.raises(ChangefeedError) as caught:
        sink.commit(epoch, receipts)
    assert caught.value.code.number == "CF5001"
    sink.abort(epoch, receipts)
    feed.deliver(sink, 0)
    assert read(path, "SELECT a, b FROM t") == [(1, "x")]
    sink.close()


@pytest.mark.parametrize("always", [False, True])
def test_a_refused_load_is_about_a_row_if_one_without_values_is_taken(
    tmp_path: Path, source: SourceDouble, monkeypatch: pytest.MonkeyPatch, always: bool
) -> None:
    """The error of a load names no row, and may as well be one of the table."""
    path = tmp_path / "db"
    feed, sink = opened(path, source)
    warehouse = sink._tables.warehouse
    load = warehouse.load

    def refusing(table: str, rows: pa.Table, load_id: str) -> None:
        if always or "bad" in rows["b"].to_pylist():
            raise ChangefeedError(Code.SINK_REFUSED_DATA, "the load is refused", target=table)
        load(table, rows, load_id)

    monkeypatch.setattr(warehouse, "load", refusing)
    source.commit(insert("t", a=1, b="x"), insert("t", a=2, b="bad"))
    epoch, receipts = feed.write(sink, 0, 2)
    with pytest.raises(ChangefeedError) as caught:
        sink.commit(epoch, receipts)
    assert (caught.value.about_row, caught.value.target) == (not always, "t")
    sink.abort(epoch, receipts)
    assert read(path, "SELECT * FROM _staging_t") == [], "the row without values went, too"
    sink.close()


def test_a_target_that_went_is_missed(tmp_path: Path, source: SourceDouble) -> None:
    path = tmp_path / "db"
    feed, sink = opened(path, source)
    source.commit(insert("t", a=1, b="x"))
    feed.deliver(sink)
    sink.close()
    with duckdb.connect(str(path)) as connection:
        connection.execute("DROP TABLE t")
    source.commit(insert("t", a=2, b="x"))
    feed, sink = opened(path, source)
    with pytest.raises(ChangefeedError, match="is gone") as caught:
        feed.deliver(sink, 1)
    assert caught.value.code.number == "CF5006"
    source.load("t", [])
    feed.open(sink)
    feed.scan(sink, "t")
    assert read(path, "SELECT a FROM t ORDER BY a") == [(1,), (2,)]
    sink.close()


def test_a_target_that_was_there_is_taken_over_when_the_option_says_so(
    tmp_path: Path, source: SourceDouble
) -> None:
    path = tmp_path / "db"
    with duckdb.connect(str(path)) as connection:
        connection.execute("CREATE TABLE t (a INTEGER, mine TEXT); INSERT INTO t VALUES (1, 'm')")
    feed = RowFeed(source, options={"existing_target": "merge"})
    sink = feed.open(open_sink(f"duckdb://{path}", {"existing_target": "merge"}))
    source.commit(insert("t", a=1, b="x"), insert("t", a=2, b="y"))
    feed.deliver(sink)
    assert read(path, "SELECT a, mine, b FROM t ORDER BY a") == [(1, "m", "x"), (2, None, "y")]
    sink.close()
    with duckdb.connect(str(path)) as connection:
        connection.execute("ALTER TABLE t DROP a")
    feed, sink = opened(path, source)
    source.commit(update("t", {"a": 1}, b="z"))
    with pytest.raises(ChangefeedError, match="no column a"):
        feed.deliver(sink, 2)
    sink.close()


def test_an_empty_target_that_was_there_is_taken(tmp_path: Path, source: SourceDouble) -> None:
    path = tmp_path / "db"
    with duckdb.connect(str(path)) as connection:
        connection.execute("CREATE TABLE T (a INTEGER, mine TEXT)")
    feed, sink = opened(path, source)
    source.commit(insert("t", a=1, b="x"))
    feed.deliver(sink)
    assert read(path, "SELECT a, mine, b FROM T") == [(1, None, "x")]
    sink.close()


def test_a_table_that_somebody_put_in_the_place_of_a_target_is_not_taken(
    tmp_path: Path, source: SourceDouble
) -> None:
    """The mark in the bookkeeping outlives the target; the table has no column of ours."""
    path = tmp_path / "db"
    feed, sink = opened(path, source)
    source.commit(insert("t", a=1, b="x"))
    feed.deliver(sink)
    sink.close()
    with duckdb.connect(str(path)) as connection:
        connection.execute("DROP TABLE t; CREATE TABLE t (a INTEGER); INSERT INTO t VALUES (7)")
    feed, sink = opened(path, source)
    source.commit(insert("t", a=2, b="y"))
    with pytest.raises(ChangefeedError, match="was not made by this changefeed") as caught:
        feed.deliver(sink, 1)
    assert caught.value.code.number == "CF5008"
    sink.close()
    assert read(path, "SELECT * FROM t") == [(7,)]


def test_the_bookkeeping_of_somebody_else_is_left_alone(
    tmp_path: Path, source: SourceDouble
) -> None:
    path = tmp_path / "db"
    with duckdb.connect(str(path)) as connection:
        connection.execute("CREATE TABLE _changefeed_applied (mine TEXT)")
    with pytest.raises(ChangefeedError, match="not made by a changefeed"):
        opened(path, source)
    assert read(path, "SELECT count(*) FROM _changefeed_applied") == [(0,)]


@pytest.mark.parametrize("table", [r'"s"."a\1b"', r'"s"."a\nb"', '"s"."o\'t."'])
def test_redshift_deletes_from_any_name(table: str) -> None:
    on = """target."a" = d."a" AND target."a target." = d."a t." AND target."b" <> 'target."x"' """
    sql = RedshiftDialect().delete_joined(table, '"diff"', "d", on)
    where = (
        f"""{table}."a" = d."a" AND {table}."a target." = d."a t." """
        f"""AND {table}."b" <> 'target."x"' """
    )
    assert sql == f'DELETE FROM {table} USING "diff" AS d WHERE {where}'


def test_resolved_stands_beside_the_tables(tmp_path: Path, source: SourceDouble) -> None:
    from changefeed.core.events import Resolved

    path = tmp_path / "db"
    feed, sink = opened(path, source)
    source.commit(insert("t", a=1, b="x"))
    feed.deliver(sink)
    sink.resolved(Resolved(at(9)), b"")
    [row] = read(path, "SELECT feed, table_name, resolved FROM _changefeed_applied")
    assert row == ("conformance", "t", str(at(9)))
    sink.close()


def test_the_file_is_free_between_rounds(tmp_path: Path, source: SourceDouble) -> None:
    """Also after steps that change nothing, and after those that are refused."""
    path = tmp_path / "db"
    feed, sink = opened(path, source)

    def free() -> bool:
        program = f"import duckdb; print(duckdb.connect({str(path)!r}).sql('FROM t').fetchall())"
        ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        return ran.stdout.startswith("[(1, 'x', ")

    source.commit(insert("t", a=1, b="x"))
    feed.deliver(sink)
    assert free()
    target = feed.targets["t"]
    assert sink.holds_target(target) and free()

    def altered(name: str, logical: str) -> SchemaChange:
        old = source.schemas["t"]
        source.alter("t", replace(old, columns=(*old.columns[:2], column_of(name, logical, 9))))
        change = source.log[-1].control
        assert isinstance(change, SchemaChange)
        return change

    change = altered("c", "int32")
    feed.deliver(sink)
    sink.evolve(change, target)  # it is there already
    assert free()
    with pytest.raises(ChangefeedError):
        sink.evolve(altered("c", "bool"), target)
    assert free()
    batch = feed._batch(feed._next(at(9)), source.log[:1], 0)
    keyless = batch.rows.set_column(
        batch.rows.schema.get_field_index("a0"), "a0", pa.nulls(1, pa.int32())
    )
    with pytest.raises(ChangefeedError):
        sink.write(replace(batch, rows=keyless, scan=True))
    sink.abort(batch.epoch, [])
    assert free()
    sink.close()


def test_a_file_in_use_is_tried_again(tmp_path: Path, source: SourceDouble) -> None:
    path = tmp_path / "db"
    program = (
        f"import duckdb, sys; c = duckdb.connect({str(path)!r}); print('open', flush=True); "
        "sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(ChangefeedError) as caught:
            opened(path, source)
        assert caught.value.code.number == "CF5001"
    feed, sink = opened(path, source)
    source.commit(insert("t", a=1, b="x"), delete("t", a=1))
    feed.deliver(sink)
    assert read(path, "FROM t") == []
    sink.close()


def test_a_file_at_its_closing_is_in_use(
    tmp_path: Path, source: SourceDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While another connection of this process closes, DuckDB refuses a new one."""

    def closing(path: str) -> None:
        raise duckdb.ResourceInUseException("Unique file handle conflict")

    with monkeypatch.context() as patch, pytest.raises(ChangefeedError) as caught:
        patch.setattr(duckdb, "connect", closing)
        opened(tmp_path / "db", source)
    assert caught.value.code.number == "CF5001" and "retries" in str(caught.value.hint)


VERSIONS: dict[str, list[tuple[int, str | None, int | None]]] = {
    "append": [
        (1, "kept", 0),
        (1, "kept", 1),
        (2, "own", 2),
        (2, "own", 3),
        (1, None, None),  # deleted
        (2, None, None),
        (1, None, 3),
    ],
    "scd2": [(1, "kept", 0), (1, "kept", 1), (2, "own", 3), (1, None, 3)],
}


@pytest.mark.parametrize("history", VERSIONS)
def test_a_version_has_the_values_that_its_row_had_before(tmp_path: Path, history: str) -> None:
    """Those that the source did not send; a changed key begins a row of which nothing is known,
    whatever row had that key before."""
    path = tmp_path / "db"
    source = SourceDouble(table_of("t", key=("a",), a="int32", b="text", c="int32"))
    feed, sink = opened(path, source, history=history)
    source.commit(insert("t", a=1, b="kept", c=0))
    feed.deliver(sink)
    unsent = ["b"]
    source.commit(update("t", {"a": 1}, unsent, c=1))
    source.commit(insert("t", a=2, b="own", c=2), update("t", {"a": 2}, unsent, c=3))
    source.commit(delete("t", a=1))
    source.commit(update("t", {"a": 2}, unsent, a=1))
    feed.deliver(sink)
    order = "_sequence_num, _ord" if history == "append" else "_sequence_num, a"
    found = read(path, f"SELECT a, b, c FROM t ORDER BY {order}")
    assert found == VERSIONS[history]
    sink.close()


def test_a_round_that_is_large_waits_in_files(tmp_path: Path) -> None:
    path, scratch = tmp_path / "db", tmp_path / "scratch"
    source = SourceDouble(table_of("t", key=("a",), a="int32", b="text", c="int32"))
    feed, sink = opened(path, source)
    sink._context = replace(sink._opened, scratch=str(scratch))
    sink.load_bytes = 1
    source.commit(insert("t", a=1, b="kept", c=0))
    feed.write(sink, 0, 1)
    source.commit(update("t", {"a": 1}, ["b"], c=1), insert("t", a=2, b="gone"))
    feed.write(sink, 1, 3)
    source.commit(delete("t", a=2))
    epoch, receipts = feed.write(sink, 3, 4)
    assert [rows.num_rows for rows in sink._pending[0].spilled] == [1, 2, 1]
    assert not list(scratch.iterdir()), "no file outlives the process"
    sink.commit(epoch, receipts)
    assert read(path, "SELECT a, b, c FROM t") == [(1, "kept", 1)]
    sink.close()


def test_the_pace_follows_the_cost_of_a_merge() -> None:
    sink = WarehouseSink(DuckDB("unused"))
    assert sink.pace.seconds == PACE
    sink.pace.after(4.0)
    assert sink.pace.seconds == 20.0
    sink.pace.after(100.0)
    assert sink.pace.seconds == SLOWEST
    for _ in range(10):
        sink.pace.after(0.1)
    assert PACE <= sink.pace.seconds < PACE + 1


def test_options() -> None:
    assert TablePolicy.read({}) == TablePolicy()
    found = TablePolicy.read({"deletes": "soft", "sequence_column": "none", "on_drop": "drop"})
    assert found == TablePolicy(soft=True, sequence="", drop=True)
    assert TablePolicy.read({"sequence_column": "_v", "history": "scd2"}).sequence == "_v"


def test_uris() -> None:
    secret = "postgresql://app:pa55@db/shop?schema=copy"
    assert "pa55" not in sink_location(secret) + repr(open_sink(secret))
    for uri, code in [
        ("duckdb:///x.duckdb?shema=a", "CF1202"),
        ("duckdb://host/x.duckdb", "CF1201"),
        ("postgresql://db", "CF1201"),
        ("postgresql://db/shop?schma=x", "CF1202"),
        ("mysql://db", "CF1201"),
        ("mysql://u:p@db/shop?tls=1", "CF1202"),
        ("redshift:///shop", "CF1201"),
    ]:
        assert [problem.code.number for problem in check(uri)] == [code], uri


def test_servers_that_are_not_there_are_tried_again(source: SourceDouble) -> None:
    for uri in ("postgresql://u:pa55@127.0.0.1:1/d", "mysql://u:pa55@127.0.0.1:1/d"):
        sink = open_sink(uri)
        with pytest.raises(ChangefeedError) as caught:
            RowFeed(source).open(sink)
        assert caught.value.code.number == "CF5001"
        assert "pa55" not in f"{caught.value.message} {caught.value.detail}"
        sink.close()


@pytest.mark.parametrize(
    ("present", "wanted", "same"),
    [
        ("INTEGER", "INTEGER", True),
        ("INTEGER", "BIGINT", False),
        ("INTEGER", "VARCHAR", False),
        ("tinyint(1)", "BOOLEAN", True),
        ("bigint(20)", "INTEGER", False),
        ("longtext", "LONGTEXT", True),
        ("Nullable(Int32)", "Nullable(Int32)", True),
        ("Nullable(Int16)", "Nullable(String)", False),
        ("NUMBER", "INTEGER", True),
        ("NUMBER", "BOOLEAN", False),
        ("TEXT", "VARCHAR", True),
    ],
)
def test_a_staging_table_of_other_types_is_made_again(
    present: str, wanted: str, same: bool
) -> None:
    """An ALTER may leave every name as it was."""
    assert fits({"v": present}, {"v": wanted}) is same
    assert not fits({"v": present}, {"w": wanted})
