"""PostgreSQL -> protobuf in Kafka through a real broker, with and without a real registry.

Messages are read by Confluent's deserializer and Google's runtime, with types made of the text
that the registry, or EXPLAIN, shows.
"""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from tests.e2e.feeds import EITHER_ENGINE, Feeds
from tests.e2e.registered import (
    Reader,
    by_commit,
    check_refused_table_stops_alone,
    feed_of_fruit,
    into,
)
from tests.helpers.proto_reader import message_class
from tests.services.kafka import KafkaBroker
from tests.services.postgres import Database
from tests.services.registry import Registry

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.spark,
    pytest.mark.kafka,
    pytest.mark.postgres,
    pytest.mark.slow,
]

#: A message as a dict of what is in it.
Plain = dict[str, Any]

READ: Plain = {
    "id": 1,
    "name": "pear",
    "price": "1.50",
    "born": "2024-03-31",
    "at": (1_711_846_923, 123_456_000),
    "seen": (1_711_857_906, 0),
    "alarm": "07:08:09.5",
    "tags": ["a", None, "b c"],
    "doc": '{"x": [1]}',
    "data": b"\xde\xad",
    "rate": 0.1,
    "exact": "1.000",
}


@pytest.fixture
def read(kafka: KafkaBroker, schema_registry: Registry) -> Reader:
    """Keys and values of a topic, each with the type that its id stands for."""
    types: dict[bytes, Any] = {}

    def decoded(data: bytes | None, topic: str, part: MessageField) -> Any:
        if data is None:
            return None
        schema_id = data[1:5]
        if schema_id not in types:
            found = schema_registry.request("GET", f"/schemas/ids/{int.from_bytes(schema_id)}")
            assert found["schemaType"] == "PROTOBUF"
            kind = message_class(found["schema"])
            types[schema_id] = ProtobufDeserializer(kind, {"use.deprecated.format": False})
        return plain(types[schema_id](data, SerializationContext(topic, part)))

    def messages(topic: str) -> list[tuple[Any, Any]]:
        return [
            (
                decoded(r.key, topic, MessageField.KEY),
                decoded(r.value, topic, MessageField.VALUE),
            )
            for r in kafka.messages(topic)
        ]

    return messages


def plain(message: Any) -> Any:
    if message.DESCRIPTOR.full_name == "google.protobuf.Timestamp":
        return message.seconds, message.nanos
    if message.DESCRIPTOR.name.endswith("_array"):
        return [plain(item).get("value") for item in message.items]
    return {
        field.name: value if field.message_type is None else plain(value)
        for field, value in message.ListFields()
    }


@EITHER_ENGINE
def test_changes_and_a_new_column(
    feeds: Feeds,
    postgres: Database,
    kafka: KafkaBroker,
    schema_registry: Registry,
    read: Reader,
    topic: str,
) -> None:
    target = into("protobuf", kafka, schema_registry)
    feed_of_fruit(feeds, postgres, topic, target, "(id, price, at) values (2, 'NaN', 'infinity')")
    postgres.execute("truncate fruit")
    feeds.sync("f")

    (scan, update, insert, delete, colored) = by_commit(read(topic))
    assert scan[0] == {"id": 1}
    assert scan[1].keys() == {"after", "updated"}
    assert scan[1]["after"] == READ
    changed = {name: value for name, value in READ.items() if name != "name"} | {"price": "2.00"}
    assert (update[1]["before"], update[1]["after"]) == (READ, changed)
    infinite = (9_223_372_036_825, 200_000_000)
    assert insert[1]["after"] == {"id": 2, "price": "NaN", "at": infinite}
    assert delete[0] == {"id": 2}
    assert delete[1].keys() == {"before", "updated"}
    assert delete[1]["before"] == insert[1]["after"]
    assert colored[1]["after"] == changed | {"color": "green"}

    marks = [value for key, value in read(topic) if key is None]
    resolved = [value["resolved"] for value in marks if "resolved" in value]
    assert resolved == sorted(resolved)
    assert resolved
    assert [value.keys() for value in marks if "truncate" in value] == [{"table", "truncate"}]
    assert len(schema_registry.versions(f"{topic}-key")) == 1
    assert len(schema_registry.versions(f"{topic}-value")) == 2
    assert len(schema_registry.versions(f"{topic}-mark")) == 1
    assert "optional string color = 13;" in schema_registry.text(f"{topic}-value")


def test_a_table_whose_type_is_refused_stops_alone(
    feeds: Feeds,
    postgres: Database,
    kafka: KafkaBroker,
    schema_registry: Registry,
    read: Reader,
    topic: str,
) -> None:
    target = into("protobuf", kafka, schema_registry)
    check_refused_table_stops_alone(feeds, postgres, topic, target, read)


def types_of(feeds: Feeds, statement: str) -> tuple[Any, Any]:
    """The classes of keys and values, as EXPLAIN shows them."""
    shown = [str(detail) for stage, detail in feeds.execute(statement).rows if stage == "encode"]
    key, value = shown.index("key.proto:"), shown.index("value.proto:")
    texts = (shown[key + 1 : value], shown[value + 1 :])
    made = [message_class("\n".join(text)) for text in texts]
    return made[0], made[1]


def test_without_a_registry_the_types_are_what_explain_shows(
    feeds: Feeds, postgres: Database, kafka: KafkaBroker, topic: str
) -> None:
    """And those of the first day read what is written after a column was dropped, one renamed and
    one added, and the other way round."""
    postgres.execute("create table t (id int primary key, a int, b text, c text)")
    postgres.execute("insert into t values (1, 0, '', 'x')")
    feeds.connect(shop=postgres.uri)
    statement = (
        f"CREATE CHANGEFEED f FOR TABLE t AS {topic} INTO '{kafka.uri}' "
        "WITH format = 'protobuf', envelope = 'row', updated, resolved = '1s'"
    )
    old_key, old = types_of(feeds, f"EXPLAIN {statement}")
    feeds.execute(statement)
    feeds.sync("f")
    postgres.execute("alter table t drop column b, add column d boolean default false")
    postgres.execute("alter table t rename column c to e")
    postgres.execute("update t set e = 'y', d = true")
    postgres.execute("delete from t")
    feeds.sync("f")
    _, new = types_of(feeds, f"EXPLAIN {statement.replace(' f ', ' g ')}")

    read = [r for r in kafka.messages(topic) if r.key is not None]
    assert {str(plain(old_key.FromString(r.key or b""))) for r in read} == {"{'id': 1}"}
    assert read[-1].value is None
    values = [(old.FromString(r.value), new.FromString(r.value)) for r in read if r.value]
    as_old, as_new = ([without_stamp(plain(v[n])) for v in values] for n in (0, 1))
    assert as_old[0] == {"id": 1, "a": 0, "b": "", "c": "x"}
    assert as_old[-1] == {"id": 1, "a": 0, "c": "y"}
    assert as_new[0] == {"id": 1, "a": 0, "e": "x"}
    assert as_new[-1] == {"id": 1, "a": 0, "e": "y", "d": True}
    marks = [plain(old.FromString(r.value or b"")) for r in kafka.messages(topic) if r.key is None]
    assert marks
    assert all(mark.keys() == {"__crdb__"} for mark in marks)
    assert all(mark["__crdb__"].keys() == {"resolved"} for mark in marks)


def without_stamp(value: Plain) -> Plain:
    assert value["__crdb__"]["updated"]
    return {name: part for name, part in value.items() if name != "__crdb__"}
