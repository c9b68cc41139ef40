"""What a warehouse says of a target that differs from the source, without a feed that runs."""

from __future__ import annotations

import pytest

from changefeed_testing.sinks.comparing import differences
from changefeed_testing.sinks.merge_harness import MergeHarness
from changefeed_testing.sinks.rows import RowFeed, SourceDouble, insert, table_of, update
from tests.conformance.test_warehouse import MariaDBHarness, PostgreSQLHarness
from tests.services.mariadb import MariaDB
from tests.services.postgres import Database


def check(harness: MergeHarness) -> None:
    """Equal, then one row of each kind; texts compare by bytes, NULL is equal to NULL."""
    schema = table_of("t", key=("a",), a="int32", b="text", raw="bytes", n="decimal(12,2)")
    written, truth = SourceDouble(schema), SourceDouble(schema)
    same = insert("t", a=1, b="same ", raw="\\x00ff", n="1.50")
    empty = insert("t", a=2, b=None, raw=None, n=None)
    for source in (written, truth):
        source.commit(same, empty, insert("t", a=3, b="x", raw="\\x01", n="1.00"))
    feed = RowFeed(written)
    sink = feed.open(harness.sink())
    feed.deliver(sink)
    assert differences(harness, truth, feed, 10) == []
    written.commit(insert("t", a=9, b="only there", raw=None, n=None))
    written.commit(update("t", {"a": 1}, b="same", raw="\\x00ff", n="1.50"))
    written.commit(update("t", {"a": 3}, b="X", raw="\\x02", n="1.01"))
    truth.commit(insert("t", a=4, b="only here", raw="\\xab", n="0.10"))
    feed.deliver(sink)
    found = differences(harness, truth, feed, 10)
    sink.close()
    assert [(d.kind, d.key) for d in found] == [
        ("changed", "[1]"),
        ("changed", "[3]"),
        ("missing", "[4]"),
        ("extra", "[9]"),
    ]
    assert (found[0].source, found[0].target) == ('{"b": "same "}', '{"b": "same"}')
    assert found[1].source == '{"b": "x", "raw": "\\\\x01", "n": "1.00"}'
    assert found[2].source == '{"a": "4", "b": "only here", "raw": "\\\\xab", "n": "0.10"}'
    assert found[3].source is None and found[3].target is not None
    assert differences(harness, truth, feed, 3) == found[:3], "the first ones where there are more"


@pytest.mark.postgres
def test_postgresql(postgres: Database) -> None:
    check(PostgreSQLHarness(postgres))


def test_mariadb(mariadb: MariaDB) -> None:
    with mariadb.database() as database:
        check(MariaDBHarness(mariadb, database))
