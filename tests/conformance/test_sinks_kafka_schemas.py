"""``schema_topic``: every schema is told, before the first row that has it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from changefeed.core.events import Ddl, SchemaChange
from changefeed_testing.sinks.feed import FeedDouble, at, put, table_schema
from sinks.kafka.sink import KafkaSink
from tests.services.kafka import KafkaBroker

pytestmark = pytest.mark.kafka


def told(broker: KafkaBroker, topic: str) -> list[dict[str, Any]]:
    return [json.loads(record.value or b"") for record in broker.messages(topic)]


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_schemas_are_told_before_their_rows(kafka: KafkaBroker, topic: str, delivery: str) -> None:
    feed = FeedDouble({"t": topic})
    uri = f"{kafka.uri}?schema_topic={topic}_schemas&progress_topic={topic}_progress"
    sink = KafkaSink(uri, {"delivery": delivery})
    feed.open(sink)
    feed.deliver(sink, [put(1, "x", 10), put(2, "x", 20)])
    feed.deliver(sink, [put(1, "x", 30)])
    old, new = table_schema("t", 1), table_schema("t", 2)
    sink.evolve(SchemaChange(old, new, at(40), 4), feed.targets["t"])
    feed.versions["t"] = 2
    feed.deliver(sink, [put(1, "x", 50)])
    sink.close()

    first, second = told(kafka, f"{topic}_schemas")
    assert first["table"] == {"source": "shop", "schema": "public", "name": "t"}
    assert (first["topic"], first["at"], first["key"]) == (topic, str(at(10)), ["a"])
    assert [c["name"] for c in first["columns"]] == [c.name for c in old.columns]
    assert (second["version"], second["at"]) == (2, str(at(40)))
    assert second["columns"][-1] == {
        "name": new.columns[-1].name,
        "type": new.columns[-1].type_name,
        "nullable": new.columns[-1].nullable,
    }
    stamps = [record.timestamp_ms for record in kafka.messages(topic)]
    assert kafka.messages(f"{topic}_schemas")[0].timestamp_ms <= stamps[0]
    assert {record.key for record in kafka.messages(f"{topic}_schemas")} == {b'["shop.public.t"]'}


def test_a_restart_tells_again(kafka: KafkaBroker, topic: str) -> None:
    feed = FeedDouble({"t": topic})
    uri = f"{kafka.uri}?schema_topic={topic}_schemas"
    for number in (1, 2):
        sink = KafkaSink(uri)
        feed.open(sink)
        feed.deliver(sink, [put(number, "x", 10 * number)])
        sink.close()
    assert [message["version"] for message in told(kafka, f"{topic}_schemas")] == [1, 1]


def test_without_the_parameter_nothing_is_told(kafka: KafkaBroker, topic: str) -> None:
    feed = FeedDouble({"t": topic})
    sink = KafkaSink(kafka.uri)
    feed.open(sink)
    feed.deliver(sink, [put(1, "x", 10)])
    sink.evolve(
        SchemaChange(table_schema("t", 1), table_schema("t", 2), at(20), 2), feed.targets["t"]
    )
    sink.close()
    assert len(kafka.messages(topic)) == 1


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_a_statement_is_told_between_the_rows(
    kafka: KafkaBroker, topic: str, delivery: str
) -> None:
    """Under the table's key; the schema is told again before the next row, so that it is the newest
    message with columns."""
    table = f"defined_{delivery}"
    feed = FeedDouble({table: topic})
    uri = f"{kafka.uri}?schema_topic={topic}_schemas&progress_topic={topic}_progress"
    sink = KafkaSink(uri, {"delivery": delivery})
    feed.open(sink)
    feed.deliver(sink, [put(1, "x", 10, table)])
    statement = "ALTER TABLE t ADD INDEX (b)"
    event = Ddl(feed.targets[table].table, "ALTER", statement, "00000015", at(15), 2)
    sink.tell_ddl(event, feed.targets[table])
    feed.deliver(sink, [put(1, "x", 20, table)])
    sink.close()
    first, defined, again = told(kafka, f"{topic}_schemas")
    assert defined == {
        "table": first["table"],
        "topic": topic,
        "ddl": {"kind": "ALTER", "statement": statement, "position": "00000015"},
        "at": str(at(15)),
    }
    assert again["columns"] == first["columns"]
    records = kafka.messages(f"{topic}_schemas")
    assert len({record.key for record in records}) == 1
    before, behind = (record.timestamp_ms for record in kafka.messages(topic))
    assert before <= records[1].timestamp_ms <= behind


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_a_dropped_table_is_told(kafka: KafkaBroker, topic: str, delivery: str) -> None:
    """After its rows; a table that is made again in its place tells its schema."""
    table = f"dropped_{delivery}"  # what a process has told, it does not tell the same node again
    feed = FeedDouble({table: topic})
    uri = f"{kafka.uri}?schema_topic={topic}_schemas&progress_topic={topic}_progress"
    sink = KafkaSink(uri, {"delivery": delivery})
    feed.open(sink)
    feed.deliver(sink, [put(1, "x", 10, table)])
    sink.dropped(feed.targets[table])
    feed.deliver(sink, [put(1, "x", 20, table)])
    sink.close()
    first, gone, again = told(kafka, f"{topic}_schemas")
    assert gone == {"table": first["table"], "topic": topic, "dropped": True}
    assert again["columns"] == first["columns"]
    keys = {record.key for record in kafka.messages(f"{topic}_schemas")}
    assert keys == {f'["shop.public.{table}"]'.encode()}
