"""Feeds from a real PostgreSQL into BigQuery's emulator, Snowflake's stand-in and ClickHouse."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from uuid import UUID

import pytest

from changefeed.spark.session import NodeSpark
from tests.e2e.feeds import BRISK, running
from tests.e2e.test_examples import EXAMPLES, check, follow, play
from tests.e2e.test_warehouse_feeds import (
    WIDE,
    Bench,
    check_changes,
    check_shapes,
    plain,
    texts,
)
from tests.services.bigquery import BigQueryEmulator
from tests.services.clickhouse import ClickHouseServer
from tests.services.postgres import Database
from tests.services.snowflake import SnowflakeEmulator

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.postgres]

#: Kept as text in both, or a value neither holds: `24:00:00` is no time of a day there.
_TYPED = "id, small, big, yes, f4, f8, money, free, t, v, raw, u, d, ts, tstz, j, ints, texts"


class IntoBigQuery(Bench):
    emulator: BigQueryEmulator

    def uri(self) -> str:
        return self.emulator.uri(self.schema, "load_interval=0")

    def read(self, sql: str) -> list[tuple[object, ...]]:
        return self.emulator.query(sql)


class IntoSnowflake(Bench):
    emulator: SnowflakeEmulator
    database = ""

    def uri(self) -> str:
        return self.emulator.uri(self.database, self.schema, "load_interval=0")

    def read(self, sql: str) -> list[tuple[object, ...]]:
        return [tuple(row) for row in self.emulator.query(self.database, sql)]


class IntoClickHouse(Bench):
    server: ClickHouseServer

    def uri(self) -> str:
        return self.server.uri(self.schema)

    def read(self, sql: str) -> list[tuple[object, ...]]:
        with self.server.client() as client:
            rows = client.query(sql, column_formats={"raw": "bytes"}).result_rows
            return [tuple(row) for row in rows]


@pytest.fixture(
    params=[
        pytest.param("bigquery", marks=pytest.mark.bigquery),
        pytest.param("snowflake", marks=pytest.mark.snowflake),
        pytest.param("clickhouse", marks=pytest.mark.clickhouse),
    ]
)
def bench(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    postgres: Database,
    spark_engine: NodeSpark,
) -> Iterator[Bench]:
    emulator = request.getfixturevalue(request.param)
    postgres.execute("create table t (a int primary key, b text)")
    postgres.execute("insert into t select i, 'row ' || i from generate_series(1, 10) i")
    with running(tmp_path / "state", spark_engine, timings=BRISK) as feeds, ExitStack() as stack:
        if request.param == "bigquery":
            into = IntoBigQuery(feeds, postgres)
            into.emulator, into.schema = emulator, stack.enter_context(emulator.dataset())
            yield into
            into.judge()
        elif request.param == "clickhouse":
            house = IntoClickHouse(feeds, postgres)
            house.server, house.schema = emulator, stack.enter_context(emulator.database())
            yield house
            house.judge()
        else:
            to = IntoSnowflake(feeds, postgres)
            to.emulator, to.database = emulator, emulator.database()
            yield to
            to.judge()


def test_target_equals_source(bench: Bench) -> None:
    check_changes(bench)
    assert bench.same("t") and bench.same("n"), "a column too many"
    check_shapes(bench)


def _loose(value: object) -> object:
    """JSON by its value, in whatever the client hands it out; times of a day without their type."""
    if isinstance(value, str) and value[:1] in ("[", "{"):
        value = json.loads(value)
    if isinstance(value, UUID):
        return str(value)
    if value == "null":  # the JSON value, which the other clients hand out as None
        return None
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, dt.datetime | dt.time):
        return plain(value)
    return json.dumps(value) if isinstance(value, dict | list) else plain(value)


def test_values_of_every_type(bench: Bench) -> None:
    bench.source.execute(WIDE)
    bench.source.execute("update wide set tod = '23:59:59.999999' where tod = '24:00:00'")
    # A number without declared digits has as many as both of them keep.
    bench.source.execute("update wide set free = round(free, 10)")
    if isinstance(bench, IntoClickHouse):  # which holds 400 years
        bench.source.execute("update wide set d = '1900-01-01' where id = 3")
        bench.source.execute("update wide set tstz = '2299-12-31 23:59:59.999999Z' where id = 3")
    bench.create("wide")
    for statement in ("", "update wide set small = 7", "update wide set id = id + 10"):
        if statement:
            bench.source.execute(statement)
        bench.feeds.sync("f")
        assert _rows(bench, "public") == _rows(bench, bench.schema)
    # To the emulator, unlike BigQuery, 12.30 and 12.300000000 are two numbers.
    bench.equal = not isinstance(bench, IntoBigQuery)


def _rows(bench: Bench, schema: str) -> list[str]:
    sql = f"select {_TYPED} from {schema}.wide where t is not null or id <> 2"
    rows = bench.source.execute(sql) if schema == "public" else bench.read(sql)
    zones = not isinstance(bench, IntoClickHouse)  # which has one type for both timestamps
    return texts([[_loose(value) if zones else _in_utc(value) for value in row] for row in rows])


def _in_utc(value: object) -> object:
    value = _loose(value)
    return value.replace(tzinfo=None) if isinstance(value, dt.datetime) else value


@pytest.mark.bigquery
def test_example(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    postgres: Database,
    spark_engine: NodeSpark,
    bigquery: BigQueryEmulator,
) -> None:
    """``examples/bigquery`` does what its folder ``expected`` says."""
    folder = EXAMPLES / "bigquery"
    play(postgres, folder / "setup.sql")
    with bigquery.dataset() as name, running(tmp_path / "state", spark_engine) as feeds:
        feeds.connect(sales=postgres.uri, lake=bigquery.uri(name, "load_interval=0"))
        feeds.run_file(folder / "feeds.sql")
        follow(feeds, postgres, folder, "sales_to_bigquery")
        feeds.execute("DROP CHANGEFEED sales_to_bigquery")
        for table in ("customers", "orders"):
            rows = bigquery.query(
                f"SELECT * EXCEPT (_sequence_num) FROM {name}.{table} ORDER BY id"
            )
            check(request, folder / "expected" / f"{table}.txt", [str(row) for row in rows])
