"""Feeds from a real PostgreSQL into Spanner's emulator and its fake."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest

from changefeed.spark.session import NodeSpark
from sinks.registry import open_sink
from sinks.warehouse.spanner.sink import SpannerSink
from tests.e2e.feeds import BRISK, running
from tests.e2e.test_dead_letters import keeps_dates_before_christ
from tests.e2e.test_proof_targets import mends
from tests.e2e.test_warehouse_feeds import WIDE, Bench, check_changes, check_shapes
from tests.services.postgres import Database
from tests.services.spanner import SpannerServer

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.postgres, pytest.mark.spanner]


class IntoSpanner(Bench):
    options = ""  # a table without a key has columns of ours there
    server: SpannerServer

    def uri(self) -> str:
        return self.server.uri(self.schema)

    def target_of(self, table: str) -> str:
        return table

    def read(self, sql: str) -> list[tuple[object, ...]]:
        return [tuple(row.values()) for row in self.server.query(self.schema, sql)]


@pytest.fixture
def bench(
    spanner: SpannerServer,
    tmp_path: Path,
    postgres: Database,
    spark_engine: NodeSpark,
) -> Iterator[IntoSpanner]:
    postgres.execute("create table t (a int primary key, b text)")
    postgres.execute("insert into t select i, 'row ' || i from generate_series(1, 10) i")
    with (
        running(tmp_path / "state", spark_engine, timings=BRISK) as feeds,
        spanner.database() as into,
    ):
        made = IntoSpanner(feeds, postgres)
        made.server, made.schema = spanner, into
        yield made


def test_target_equals_source(bench: IntoSpanner) -> None:
    check_changes(bench)
    check_shapes(bench)
    assert bench.feeds.verified() == ["f"]


def test_a_difference_is_named_and_repaired(bench: IntoSpanner) -> None:
    db = bench.source
    db.execute("create table n (a int, b text); alter table n replica identity full")
    db.execute("insert into n values (1, 'x'), (1, 'x'), (2, null)")
    bench.create("t, n")
    bench.feeds.sync("f")
    sink = open_sink(bench.uri())
    assert isinstance(sink, SpannerSink)
    sink.server.connect()
    changed = [("1", "other"), ("99", "invented")]
    sink.server.transact(lambda tx: tx.upsert("t", ("a", "b"), changed))
    sink.server.transact(lambda tx: tx.delete("t", [("2",)]))
    sink.server.change_all("DELETE FROM n WHERE a = 1", "n")
    answer = bench.feeds.execute("VERIFY CHANGEFEED f")
    assert {tuple(row) for row in answer.rows} == {
        ("public.t", "[1]", "changed", '{"b": "row 1"}', '{"b": "other"}'),
        ("public.t", "[2]", "missing", '{"a": "2", "b": "row 2"}', None),
        ("public.t", "[99]", "extra", None, '{"a": "99", "b": "invented"}'),
        ("public.n", "[]", "missing", '2 x {"a": "1", "b": "x"}', None),
    }
    assert bench.feeds.execute("VERIFY CHANGEFEED f REPAIR").failure is None
    sink.server.transact(lambda tx: tx.upsert("t", ("a", "b"), [("2", "other")]))
    sink.close()
    mends(bench.feeds)


def test_a_value_that_a_table_cannot_hold(bench: IntoSpanner) -> None:
    keeps_dates_before_christ(bench.feeds, bench.source, bench.uri())


def test_values_of_every_type(bench: IntoSpanner) -> None:
    """As the source's server prints them, but for what the protocol has in a form of its own."""
    if not bench.server.real:
        pytest.skip("the fake keeps numbers and JSON as texts")
    db = bench.source
    db.execute(WIDE)
    db.execute("update wide set free = round(free, 9)")
    bench.create("wide")
    for statement in ("", "update wide set small = 7", "update wide set id = id + 10"):
        if statement:
            db.execute(statement)
        bench.feeds.sync("f")
        found = bench.server.query(bench.schema, "SELECT * FROM wide")
        assert sorted(_source(db), key=str) == sorted(map(_target, found), key=str)


#: Column -> SQL of the source that is as Spanner answers it.
_COLUMNS = {
    **{name: name for name in ("id", "small", "big", "yes", "t", "v", "j", "ints", "texts")},
    **{name: f"{name}::text" for name in ("u", "d", "tod", "tz", "span")},
    "f4": "f4::float8",
    "f8": "f8",
    "money": "money",
    "free": "free",
    "raw": "encode(raw, 'base64')",
    "ts": "rtrim(rtrim(to_char(ts, 'YYYY-MM-DD\"T\"HH24:MI:SS.US'), '0'), '.') || 'Z'",
    "tstz": "rtrim(rtrim(to_char(tstz at time zone 'UTC', "
    "'YYYY-MM-DD\"T\"HH24:MI:SS.US'), '0'), '.') || 'Z'",
}


def _source(db: Database) -> list[dict[str, object]]:
    rows = db.execute(f"select {', '.join(_COLUMNS.values())} from wide")
    return [
        {name: _plain(value) for name, value in zip(_COLUMNS, row, strict=True)} for row in rows
    ]


def _target(row: dict[str, object]) -> dict[str, object]:
    found: dict[str, object] = {}
    for name in _COLUMNS:
        value = row[name]
        if isinstance(value, str) and name in ("money", "free"):
            value = Decimal(value)
        elif isinstance(value, str) and name in ("j", "ints", "texts"):
            value = json.loads(value)
        elif isinstance(value, str) and name == "raw":
            value = base64.b64encode(base64.b64decode(value)).decode()
        found[name] = _plain(value)
    return found


def _plain(value: object) -> str:
    if isinstance(value, float):
        return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}.get(str(value), str(value))
    return str(value.normalize() if isinstance(value, Decimal) else value)
