"""Exactly once on Kafka: what readers of committed messages see, and where a feed goes on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import pyarrow as pa
import pytest

from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError
from changefeed.core.events import Resolved
from changefeed.core.schema import TableName
from changefeed_testing.sinks.feed import at, message_rows, put, table_schema
from sinks.base import Batch, Epoch, SinkContext, Target
from sinks.kafka.sink import KafkaSink
from sinks.registry import open_sink
from tests.services.kafka import KafkaBroker

pytestmark = pytest.mark.kafka

T = TableName("shop", "public", "t")
NAME, OTHER = str(T), f"{T}#scan"


def context(topic: str, *, job_id: int = 7) -> SinkContext:
    # The topic's name keeps tests apart that share a broker.
    return SinkContext("orders", job_id, (Target(T, topic),), state=topic)


@contextmanager
def opened(broker: KafkaBroker, given: SinkContext, uri: str = "") -> Iterator[KafkaSink]:
    sink = open_sink(uri or broker.uri, {"delivery": "exactly_once"})
    assert isinstance(sink, KafkaSink)
    sink.open(given)
    try:
        yield sink
    finally:
        sink.close()


def batch(topic: str, *steps: int) -> Batch:
    rows: pa.Table = message_rows(put(step, f"row {step}", step) for step in steps)
    upto = Epoch(1, at(max(steps)))
    return Batch("orders", upto, 0, Target(T, topic), table_schema("t"), rows)


def deliver(sink: KafkaSink, topic: str, *steps: int) -> None:
    written = batch(topic, *steps)
    receipt = sink.write(written)
    sink.commit_with(written.epoch, [receipt], {NAME: written.epoch.upto})


def keys(broker: KafkaBroker, topic: str) -> list[bytes | None]:
    return [record.key for record in broker.messages(topic)]


def test_progress_goes_with_the_messages(kafka: KafkaBroker, topic: str) -> None:
    with opened(kafka, context(topic)) as sink:
        assert sink.progress() == {}
        deliver(sink, topic, 1, 2)
        deliver(sink, topic, 3)
        assert sink.progress() == {NAME: at(3)}
    with opened(kafka, context(topic)) as again:
        assert again.progress() == {NAME: at(3)}
    assert keys(kafka, topic) == [b"[1]", b"[2]", b"[3]"]


def test_what_was_not_committed_is_never_seen(kafka: KafkaBroker, topic: str) -> None:
    with opened(kafka, context(topic)) as sink:
        deliver(sink, topic, 1)
        sink.write(batch(topic, 2))
        sink.abort(Epoch(2, at(2)), [])
        deliver(sink, topic, 2)
    assert keys(kafka, topic) == [b"[1]", b"[2]"]


def test_a_dead_process_leaves_nothing_open(kafka: KafkaBroker, topic: str) -> None:
    with opened(kafka, context(topic)) as dead:
        deliver(dead, topic, 1)
        dead.write(batch(topic, 2))
        dead._settle()  # the broker has it, in a transaction nobody ends
        with opened(kafka, context(topic)) as sink:
            assert sink.progress() == {NAME: at(1)}
            deliver(sink, topic, 2, 3)
            assert keys(kafka, topic) == [b"[1]", b"[2]", b"[3]"]
        with pytest.raises(ChangefeedError) as caught:
            deliver(dead, topic, 4)
        assert caught.value.code.number == "CF5001"
    assert keys(kafka, topic) == [b"[1]", b"[2]", b"[3]"]


def test_marks_inside_and_between_transactions(kafka: KafkaBroker, topic: str) -> None:
    with opened(kafka, context(topic)) as sink:
        written = batch(topic, 1)
        receipt = sink.write(written)
        sink.resolved(Resolved(at(0)), b"inside")
        assert keys(kafka, topic) == []
        sink.commit_with(written.epoch, [receipt], {NAME: at(1)})
        sink.resolved(Resolved(at(1)), b"between")
        values = [record.value for record in kafka.messages(topic)]
    assert values[1:] == [b"inside", b"between"]


def test_a_scan_and_changes_at_the_same_time(kafka: KafkaBroker, topic: str) -> None:
    given = context(topic)
    with opened(kafka, given) as changes, opened(kafka, replace(given, scan=True)) as scan:
        scan.write(batch(topic, 10))
        scan._settle()  # it is there, before the change
        deliver(changes, topic, 1)
        assert keys(kafka, topic) == []  # readers of committed messages wait for the scan
        scan.commit_with(Epoch(1, at(5)), [], {OTHER: at(5)})
        assert keys(kafka, topic) == [b"[10]", b"[1]"]
        with opened(kafka, replace(given, job_id=8)) as unrelated:
            assert unrelated.progress() == {}
    with opened(kafka, given) as again:
        assert again.progress() == {NAME: at(1), OTHER: at(5)}


def test_a_scan_of_a_dead_process_cannot_end(kafka: KafkaBroker, topic: str) -> None:
    with opened(kafka, replace(context(topic), scan=True)) as dead:
        dead.write(batch(topic, 1))
        with opened(kafka, context(topic)) as sink:
            assert sink.progress() == {}
            with pytest.raises(ChangefeedError):
                dead.commit_with(Epoch(1, at(1)), [], {OTHER: at(1)})
            assert sink.progress() == {}
    assert keys(kafka, topic) == []


def test_progress_behind_another_feeds_open_transaction_is_waited_for(
    kafka: KafkaBroker, topic: str
) -> None:
    """Record of feed A, not ended; record of feed B, committed; B starts again."""
    uri = f"{kafka.uri}?progress_topic={topic}_progress"
    first_of, second_of = context(topic, job_id=1), context(topic, job_id=2)
    with opened(kafka, first_of, uri) as first:
        with opened(kafka, second_of, uri) as second:
            first.write(batch(topic, 1))
            first._sending().send_one(f"{topic}_progress", b"changefeed-x-1", b"{}", partition=0)
            first._settle()
            deliver(second, topic, 2)
        waiting = open_sink(uri, {"delivery": "exactly_once"})
        assert isinstance(waiting, KafkaSink)
        waiting.stall_seconds = 4.0
        with pytest.raises(ChangefeedError, match="open transaction of another feed"):
            waiting.open(second_of)
        waiting.close()
        first.abort(Epoch(1, at(1)), [])
        with opened(kafka, second_of, uri) as second:
            assert second.progress() == {NAME: at(2)}


@pytest.mark.parametrize(
    ("uri", "options", "says"),
    [
        ("?transaction_timeout=soon", {}, "transaction_timeout"),
        ("", {"kafka_sink_config": {"RequiredAcks": "ONE"}}, "RequiredAcks ONE"),
    ],
)
def test_what_cannot_be_exactly_once(uri: str, options: Mapping[str, object], says: str) -> None:
    from changefeed.options.sink_config import kafka_sink_config

    config = options.get("kafka_sink_config")
    given: dict[str, object] = {"delivery": "exactly_once"}
    if isinstance(config, dict):
        given["kafka_sink_config"] = kafka_sink_config(config)
    with pytest.raises(ChangefeedError, match=says):
        open_sink(f"kafka://localhost{uri}", given)


def test_at_least_once_has_no_progress_of_its_own(kafka: KafkaBroker, topic: str) -> None:
    sink = open_sink(kafka.uri)
    assert isinstance(sink, KafkaSink)
    sink.open(context(topic))
    assert sink.progress() == {}
    with pytest.raises(ChangefeedError, match="not exactly once"):
        sink.commit_with(Epoch(1, Timestamp(1)), [], {NAME: Timestamp(1)})
    sink.close()
