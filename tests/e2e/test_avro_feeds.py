"""PostgreSQL -> Avro in Kafka through a real broker and a real schema registry."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from tests.e2e.feeds import EITHER_ENGINE, Feeds
from tests.e2e.registered import (
    Reader,
    by_commit,
    check_refused_table_stops_alone,
    feed_of_fruit,
    into,
    rows,
)
from tests.services.kafka import KafkaBroker, Record
from tests.services.postgres import Database
from tests.services.registry import Registry

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.spark,
    pytest.mark.kafka,
    pytest.mark.postgres,
    pytest.mark.slow,
]

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


@EITHER_ENGINE
def test_changes_and_a_new_column(
    feeds: Feeds,
    postgres: Database,
    kafka: KafkaBroker,
    schema_registry: Registry,
    read: Reader,
    topic: str,
) -> None:
    target = into("avro", kafka, schema_registry)
    feed_of_fruit(feeds, postgres, topic, target, "(id, price) values (2, 'NaN')")

    (scan, update, insert, delete, colored) = by_commit(read(topic))
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

    marks = [value["resolved"] for key, value in read(topic) if key is None]
    assert marks == sorted(marks)
    assert marks
    assert "color" in str(schema_registry.schema(f"{topic}-value", "latest"))
    assert len(schema_registry.versions(f"{topic}-key")) == 1
    value = schema_registry.schema(f"{topic}-value", 1)
    assert value["name"] == f"{topic}_envelope"


@pytest.mark.extended
def test_debezium_s_envelope(
    feeds: Feeds,
    postgres: Database,
    kafka: KafkaBroker,
    schema_registry: Registry,
    read: Reader,
    topic: str,
) -> None:
    postgres.execute("create table t (id int primary key, n numeric(12,2) not null, d date)")
    postgres.execute("insert into t values (1, 1.50, '2024-03-31')")
    feeds.connect(shop=postgres.uri)
    target = into("avro", kafka, schema_registry)
    feeds.execute(
        f"CREATE CHANGEFEED f FOR TABLE t AS {topic} {target}, envelope = 'debezium', "
        "resolved = '1s'"
    )
    feeds.sync("f")
    postgres.execute("delete from t where id = 1")
    postgres.execute("alter table t add column color text")
    postgres.execute("insert into t values (2, -3.00, null, 'green')")
    feeds.sync("f")

    (scan, delete, tombstone, insert) = rows(read(topic))
    assert [key for key, _ in (scan, delete, tombstone, insert)] == [
        {"id": n} for n in (1, 1, 1, 2)
    ]
    row = {"id": 1, "n": Decimal("1.50"), "d": 19_813}
    assert (scan[1]["op"], scan[1]["before"], scan[1]["after"]) == ("r", None, row)
    before = {"id": 1, "n": Decimal("0.00"), "d": None}
    assert (delete[1]["op"], delete[1]["before"], delete[1]["after"]) == ("d", before, None)
    assert tombstone[1] is None
    assert insert[1]["after"] == {"id": 2, "n": Decimal("-3.00"), "d": None, "color": "green"}
    assert insert[1]["source"]["connector"] == "postgresql"
    assert insert[1]["source"]["db"] == postgres.name
    assert any(key is None and "resolved" in value for key, value in read(topic))


def test_a_table_whose_schema_is_refused_stops_alone(
    feeds: Feeds,
    postgres: Database,
    kafka: KafkaBroker,
    schema_registry: Registry,
    read: Reader,
    topic: str,
) -> None:
    target = into("avro", kafka, schema_registry)
    check_refused_table_stops_alone(feeds, postgres, topic, target, read)
