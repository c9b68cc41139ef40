"""Names and texts in SQL, by the rules of each dialect."""

from __future__ import annotations

import duckdb
import pytest

from changefeed.core.sql import literal, quoted, readable
from sinks.warehouse.bigquery.sql import BigQueryDialect
from sinks.warehouse.clickhouse.sql import ClickHouseDialect
from sinks.warehouse.spanner.sql import SpannerDialect


@pytest.mark.parametrize("text", ["x", "it's", "a\\", "\\'", "'; DROP TABLE t; --", 'say "x"'])
def test_texts_and_names_come_back(text: str) -> None:
    result = duckdb.execute(f"SELECT {literal(text)} AS {quoted(text)}")
    assert (result.fetchall(), [column[0] for column in result.description]) == ([(text,)], [text])


@pytest.mark.parametrize("dialect", [BigQueryDialect(), ClickHouseDialect(), SpannerDialect()])
def test_a_backslash_is_escaped_before_what_it_would_end(
    dialect: BigQueryDialect | ClickHouseDialect | SpannerDialect,
) -> None:
    assert dialect.literal("a\\'b") == r"'a\\\'b'"


@pytest.mark.parametrize("dialect", [ClickHouseDialect(), SpannerDialect()])
def test_a_mark_in_a_name_is_escaped(dialect: ClickHouseDialect | SpannerDialect) -> None:
    assert dialect.quote("a\\`b") == r"`a\\\`b`"


@pytest.mark.parametrize(
    ("name", "shown"),
    [("orders", "orders"), ("Orders", '"Orders"'), ('a"b', '"a""b"'), ("é", '"é"')],
)
def test_a_name_is_quoted_for_people_where_it_must_be(name: str, shown: str) -> None:
    assert readable(name) == shown
