"""PostgreSQL -> Avro in Kafka through a real broker and a real schema registry."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from changefeed.spark.session import SparkEngine
from tests.e2e.feeds import Feeds, running
from tests.services.kafka import KafkaBroker, Record
from tests.services.postgres import Database
from tests.services.registry import Registry
from tests.waiting import until

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.spark,
    pytest.mark.kafka,
    pytest.mark.postgres,
    pytest.mark.slow,
]

TABLE = """
create table {name} (
  id int primary key, name text, price numeric(12,2), born date, at timestamptz(6),
  seen timestamp, alarm time, tags text[], doc jsonb, data bytea, rate double precision,
  exact numeric
)"""
ROW = """
insert into {name} values (1, 'pear', 1.50, '2024-03-31', '2024-03-31 01:02:03.123456+00',
  '2024-03-31 04:05:06', '07:08:09.5', '{{a,null,"b c"}}', '{{"x": [1]}}', '\\xdead', 0.1, 1.000)"""
READ = {
    "id": 1,
    "name": "pear",
    "price": Decimal("1.50"),
    "born": dt.date(2024, 3, 31),
    "at": dt.datetime(2024, 3, 31, 1, 2, 3, 123456, tzinfo=dt.UTC),
    "seen": dt.datetime(2024, 3, 31, 4, 5, 6, tzinfo=dt.UTC),
    "alarm": dt.time(7, 8, 9, 500_000),
    "tags": ["a", None, "b c"],
    "doc": '{"x": [1]}',
    "data": b"\xde\xad",
    "rate": 0.1,
    "exact": "1.000",
}

Reader = Callable[[str], list[tuple[Any, Any]]]


@pytest.fixture
def feeds(tmp_path: Path, spark_engine: SparkEngine) -> Iterator[Feeds]:
    with running(tmp_path / "state", spark_engine) as feeds:
        yield feeds


@pytest.fixture
def read(kafka: KafkaBroker, schema_registry: Registry) -> Iterator[Reader]:
    """Keys and values of a topic as a consumer with Confluent's deserializer sees them."""
    with SchemaRegistryClient({"url": schema_registry.url}) as client:
        decode = AvroDeserializer(client)

        def decoded(record: Record, part: MessageField) -> Any:
            data = record.key if part == MessageField.KEY else record.value
            return decode(data, SerializationContext(record.topic, part))

        def messages(topic: str) -> list[tuple[Any, Any]]:
            return [
                (decoded(r, MessageField.KEY), decoded(r, MessageField.VALUE))
                for r in kafka.messages(topic)
            ]

        yield messages


def error_of(feeds: Feeds, table: str) -> str:
    """Why a table of the feed failed; empty while it has not."""
    found = feeds.catalog.tables(feeds.catalog.job("f").id)
    return next(t.error or "" for t in found if t.table.name == table)


def rows(messages: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Without marks."""
    return [(key, value) for key, value in messages if key is not None]


def test_changes_and_a_new_column(
    feeds: Feeds,
    postgres: Database,
    kafka: KafkaBroker,
    schema_registry: Registry,
    read: Reader,
    topic: str,
) -> None:
    postgres.execute(TABLE.format(name="fruit"))
    postgres.execute("alter table fruit replica identity full")
    postgres.execute(ROW.format(name="fruit"))
    feeds.connect(shop=postgres.uri)
    feeds.execute(
        f"CREATE CHANGEFEED f FOR TABLE fruit AS {topic} INTO '{kafka.uri}' WITH format = 'avro', "
        f"confluent_schema_registry = '{schema_registry.url}', diff, updated, resolved = '1s'"
    )
    feeds.sync("f")
    postgres.execute("update fruit set price = 2.00, name = null where id = 1")
    postgres.execute("insert into fruit (id, price) values (2, 'NaN')")
    postgres.execute("delete from fruit where id = 2")
    feeds.sync("f")
    postgres.execute("alter table fruit add column color text")
    postgres.execute("update fruit set color = 'green' where id = 1")
    feeds.sync("f")

    (scan, update, insert, delete, colored) = rows(read(topic))
    assert scan[0] == {"id": 1}
    assert scan[1]["after"] == READ
    assert scan[1]["before"] is None
    changed = READ | {"price": Decimal("2.00"), "name": None}
    assert (update[1]["before"], update[1]["after"]) == (READ, changed)
    assert insert[1]["after"]["price"] == "NaN"
    assert delete[0] == {"id": 2}
    assert delete[1]["after"] is None
    assert delete[1]["before"]["id"] == 2
    assert colored[1]["after"] == changed | {"color": "green"}
    stamps = [value["updated"] for _, value in (scan, update, insert, delete, colored)]
    assert stamps == sorted(stamps)

    marks = [value["resolved"] for key, value in read(topic) if key is None]
    assert marks == sorted(marks)
    assert marks
    assert "color" in str(schema_registry.schema(f"{topic}-value", "latest"))
    assert len(schema_registry.versions(f"{topic}-key")) == 1
    value = schema_registry.schema(f"{topic}-value", 1)
    assert value["name"] == f"{topic}_envelope"


def test_a_table_whose_schema_is_refused_stops_alone(
    feeds: Feeds,
    postgres: Database,
    kafka: KafkaBroker,
    schema_registry: Registry,
    read: Reader,
    topic: str,
) -> None:
    for name in ("one", "two"):
        postgres.execute(f"create table {name} (id int primary key, n int)")
        postgres.execute(f"insert into {name} values (1, 1)")
    feeds.connect(shop=postgres.uri)
    feeds.execute(
        f"CREATE CHANGEFEED f FOR TABLE one AS {topic}_1, TABLE two AS {topic}_2 "
        f"INTO '{kafka.uri}' WITH format = 'avro', "
        f"confluent_schema_registry = '{schema_registry.url}'"
    )
    feeds.sync("f")
    # A number that becomes a text cannot be read as one.
    postgres.execute("alter table one alter column n type text using 'x'")
    postgres.execute("update one set n = 'y'")
    postgres.execute("update two set n = 2")

    until(lambda: error_of(feeds, "one"))
    assert "is not compatible with an earlier version" in error_of(feeds, "one")
    until(lambda: len(rows(read(f"{topic}_2"))) == 2)
    assert [value["after"] for _, value in rows(read(f"{topic}_2"))][-1] == {"id": 1, "n": 2}
    assert [value["after"] for _, value in rows(read(f"{topic}_1"))] == [{"id": 1, "n": 1}]
