"""What only Kafka can get wrong: outages, partitions, logins, the producer."""

from __future__ import annotations

import base64
import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from urllib.parse import quote

import pyarrow as pa
import pytest

from changefeed.core.arrow import MESSAGE_SCHEMA
from changefeed.core.clock import SystemClock
from changefeed.core.errors import Action, ChangefeedError
from changefeed.options.sink_config import kafka_sink_config
from changefeed_testing.sinks.conformance import CASES, run_case
from changefeed_testing.sinks.feed import FeedDouble, Write, at, put, table_schema
from changefeed_testing.sinks.messages import Message, parse_message
from changefeed_testing.sinks.retry import Attempt, RetryLoop, RetryPolicy
from changefeed_testing.sinks.validators import (
    FingerprintValidator,
    OrderValidator,
    ResolvedValidator,
    validate,
)
from sinks.base import Batch, Epoch, Receipt, Sink, SinkContext, Target
from sinks.kafka.channel import Channel
from sinks.kafka.errors import Reasons
from sinks.kafka.options import BASE
from sinks.kafka.sink import KafkaSink
from sinks.kafka.topics import Topics
from sinks.registry import open_sink
from tests.services.kafka import PASSWORD, USER, KafkaBroker

pytestmark = pytest.mark.kafka


def make_sink(
    broker: KafkaBroker, stall: float = 30.0, config: Mapping[str, object] | None = None
) -> KafkaSink:
    sink = KafkaSink(broker.uri, {"kafka_sink_config": kafka_sink_config(config or {})})
    sink.stall_seconds = stall
    return sink


def read(broker: KafkaBroker, topic: str) -> list[Message]:
    return [parse_message(r.topic, r.partition, r.key, r.value) for r in broker.messages(topic)]


def check(broker: KafkaBroker, feed: FeedDouble) -> None:
    topics = [target.topic for target in feed.targets.values()]
    counts = {t: n for t, n in broker.topics().items() if t in topics}
    messages = [message for topic in topics for message in read(broker, topic)]
    validate(
        messages,
        OrderValidator(),
        ResolvedValidator(counts),
        FingerprintValidator(feed.history.table, counts, feed.history),
    )


# ----------------------------------------------------------------------------------- outages


class OutageHarness:
    """The conformance list's outage, with a broker that is killed."""

    never: Mapping[str, str] = {}
    secret = ""
    max_message_bytes = 0

    def __init__(self, broker: KafkaBroker) -> None:
        self._broker = broker

    def sink(self) -> Sink:
        return make_sink(self._broker, stall=2.0)

    def topic(self, table: str) -> str:
        return table

    def partitions(self) -> Mapping[str, int]:
        return {"t": 1}

    def read(self) -> Sequence[Message]:
        return read(self._broker, "t")

    def raw(self) -> bytes:
        return b""

    @contextmanager
    def down(self) -> Iterator[None]:
        self._broker.kill()
        yield
        self._broker.start()


@pytest.mark.slow
def test_outlives_outage(own_kafka: KafkaBroker) -> None:
    case = next(case for case in CASES if case.name == "outlives_outage")
    assert run_case(case, OutageHarness(own_kafka)) == ""


@pytest.mark.extended
@pytest.mark.slow
def test_order_survives_kills_while_writing(own_kafka: KafkaBroker) -> None:
    """One row of each key is rewritten all the time; the broker dies twice under it."""
    own_kafka.create_topic("t", 3)
    feed = FeedDouble({"t": "t"})
    sink = make_sink(own_kafka, stall=1.5)
    feed.open(sink)
    failures: list[Attempt] = []
    epochs = threading.Semaphore(0)
    killed = threading.Event()

    def kill_twice() -> None:
        """Under load; the second outage lasts until the sink has given up once."""
        for lasting in (False, True):
            for _ in range(10):
                epochs.acquire()
            own_kafka.kill()
            deadline = time.monotonic() + 60
            while lasting and not failures and time.monotonic() < deadline:
                time.sleep(0.02)
            own_kafka.start()
        killed.set()

    retry = RetryLoop(
        RetryPolicy(retry_for=60, longest=0.5),
        SystemClock(),
        threading.Event().wait,
        failures.append,
    )
    killer = threading.Thread(target=kill_twice)
    killer.start()
    step = 0
    while not killed.is_set():
        writes = [put(key, f"{step}", step + key) for key in range(1, 9)]
        step += 8
        epoch = feed.epoch(at(step))

        def attempt(epoch: Epoch = epoch, writes: list[Write] = writes) -> None:
            try:
                sink.commit(epoch, feed.write(sink, epoch, writes))
            except ChangefeedError:
                sink.abort(epoch, ())
                raise

        retry.run(attempt)
        feed.delivered = at(step)
        epochs.release()
    killer.join()
    retry.run(lambda: feed.resolve(sink))
    check(own_kafka, feed)
    assert failures, "no outage was seen"
    sink.close()


def test_a_frozen_broker_is_given_up(own_kafka: KafkaBroker) -> None:
    feed = FeedDouble({"t": "t"})
    sink = make_sink(own_kafka, stall=5.0)
    feed.open(sink)
    feed.deliver(sink, [put(1, "x", 1)])
    own_kafka.pause()
    try:
        with pytest.raises(ChangefeedError) as caught:
            feed.deliver(sink, [put(1, "y", 2)])
    finally:
        own_kafka.unpause()
    assert caught.value.action is Action.RETRY
    feed.deliver(sink, [put(1, "y", 2)])
    feed.resolve(sink)
    check(own_kafka, feed)
    sink.close()


def test_an_interrupted_sink_does_not_wait_for_a_frozen_broker(own_kafka: KafkaBroker) -> None:
    """A node that is stopped does not wait out the patience with a broker that is away."""
    feed = FeedDouble({"t": "t"})
    sink = make_sink(own_kafka, stall=120.0)
    feed.open(sink)
    feed.deliver(sink, [put(1, "x", 1)])
    own_kafka.pause()
    try:
        threading.Timer(0.5, sink.interrupt).start()
        with pytest.raises(ChangefeedError):
            feed.deliver(sink, [put(1, "y", 2)])
    finally:
        own_kafka.unpause()
    sink.close()


def test_an_interrupted_sink_does_not_wait_for_its_first_answer() -> None:
    sink = KafkaSink("kafka://127.0.0.1:1")
    sink.request_seconds = 120.0
    threading.Timer(0.5, sink.interrupt).start()
    targets = (Target(table_schema("t").table, "t"),)
    with pytest.raises(ChangefeedError) as caught:
        sink.open(SinkContext("f", 0, targets))
    assert caught.value.code.number == "CF5001"
    sink.close()


def test_nothing_reaches_the_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    """No broker at that address: one error of ours, not a line of the library's."""
    sink = KafkaSink("kafka://127.0.0.1:1")
    sink.request_seconds, sink.stall_seconds = 2.0, 0.5
    with pytest.raises(ChangefeedError) as caught:
        FeedDouble({"t": "t"}).open(sink)
    assert caught.value.code.number == "CF5001"
    assert "127.0.0.1:1" in caught.value.detail
    channel = Channel({**BASE, "bootstrap.servers": "127.0.0.1:1"}, Reasons(), 0.5)
    channel.send_one("t", b"k", b"v")
    with pytest.raises(ChangefeedError, match="cannot reach"):
        channel.settle()
    channel.close()
    out, err = capfd.readouterr()
    assert (out, err) == ("", "")


# ----------------------------------------------------------------------------------- producer


@pytest.fixture
def channel(kafka: KafkaBroker) -> Iterator[Channel]:
    found = Channel({**BASE, "bootstrap.servers": kafka.bootstrap}, Reasons())
    yield found
    found.close()


def fnv1a_partition(key: bytes, count: int) -> int:
    """Sarama's hash partitioner: FNV-1a of 32 bits, its absolute value as a signed number."""
    value = 0x811C9DC5
    for byte in key:
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    signed = value - (1 << 32) if value & 0x80000000 else value
    return abs(signed) % count


def test_partition_is_the_hash_of_the_key(kafka: KafkaBroker, channel: Channel, topic: str) -> None:
    kafka.create_topic(topic, 7)
    keys = [f"[{number}]".encode() for number in range(200)]
    channel.send(topic, pa.array(keys, pa.binary()), pa.array([b"v"] * 200, pa.binary()))
    assert channel.settle() == []
    placed = {record.key: record.partition for record in kafka.messages(topic)}
    assert placed == {key: fnv1a_partition(key, 7) for key in keys}


def murmur2(key: bytes) -> int:
    """The hash of Java's client, from the text of its algorithm."""
    word = 0x5BD1E995
    value = 0x9747B28C ^ len(key)
    whole = len(key) & ~3
    for start in range(0, whole, 4):
        part = int.from_bytes(key[start : start + 4], "little") * word & 0xFFFFFFFF
        part = (part ^ part >> 24) * word & 0xFFFFFFFF
        value = (value * word & 0xFFFFFFFF) ^ part
    if whole < len(key):
        value = (value ^ int.from_bytes(key[whole:], "little")) * word & 0xFFFFFFFF
    value = (value ^ value >> 13) * word & 0xFFFFFFFF
    return value ^ value >> 15


def test_murmur2_chooses_the_partitions_of_java_s_client(kafka: KafkaBroker, topic: str) -> None:
    sink = KafkaSink(f"{kafka.uri}?topic_partitions=7", {"partition_alg": "murmur2"})
    feed = FeedDouble({"t": topic})
    feed.open(sink)
    feed.deliver(sink, [put(number, "x", 1 + number) for number in range(100)])
    sink.close()
    records = kafka.messages(topic)
    assert len({record.partition for record in records}) == 7
    placed = {record.key or b"": record.partition for record in records}
    assert placed == {key: (murmur2(key) & 0x7FFFFFFF) % 7 for key in placed}


def test_rows_without_a_key_share_a_partition(
    kafka: KafkaBroker, channel: Channel, topic: str
) -> None:
    kafka.create_topic(topic, 5)
    values = [f"{number}".encode() for number in range(50)]
    channel.send(topic, pa.nulls(50, pa.binary()), pa.array(values, pa.binary()))
    assert channel.settle() == []
    records = kafka.messages(topic)
    assert {record.partition for record in records} == {fnv1a_partition(b"", 5)}
    assert [record.value for record in records] == values


def test_null_is_not_empty(kafka: KafkaBroker, channel: Channel, topic: str) -> None:
    kafka.create_topic(topic)
    keys = pa.array([b"a", b"b", b"", None, b"c"], pa.binary())
    values = pa.array([b"1", None, b"", b"", None], pa.binary())
    for start in range(5):  # sliced arrays share buffers that begin earlier
        channel.send(topic, keys.slice(start, 1), values.slice(start, 1))
    channel.send(topic, keys.cast(pa.large_binary()), values)
    channel.send(topic, pa.array([b""], pa.binary()), pa.array([b""], pa.binary()))
    assert channel.settle() == []
    pairs = list(zip(keys.to_pylist(), values.to_pylist(), strict=True))
    records = kafka.messages(topic)
    assert [(r.key, r.value) for r in records] == [*pairs, *pairs, (b"", b"")]


def test_a_full_queue_waits_and_keeps_order(kafka: KafkaBroker, topic: str) -> None:
    kafka.create_topic(topic)
    config = {**BASE, "bootstrap.servers": kafka.bootstrap, "queue.buffering.max.messages": "100"}
    channel = Channel(config, Reasons())
    values = [f"{number}".encode() for number in range(5_000)]
    channel.send(topic, pa.array(values, pa.binary()), pa.array(values, pa.binary()))
    assert channel.settle() == []
    channel.close()
    assert [record.value for record in kafka.messages(topic)] == values


def test_headers_arrive(kafka: KafkaBroker, topic: str) -> None:
    feed = FeedDouble({"t": topic})
    sink = make_sink(kafka)
    feed.open(sink)
    headers = '{"trace": "abc", "hops": 3, "none": null}'
    row = {"a": 1, "b": "x"}
    feed.deliver(sink, [Write(1, row, at(1), headers=headers), Write(2, row, at(2))])
    first, second = kafka.messages(topic)
    assert first.headers == (("trace", b"abc"), ("hops", b"3"), ("none", b"null"))
    assert second.headers == ()
    sink.close()


def test_a_refused_message_leaves_no_gap(
    kafka: KafkaBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker refuses one message: nothing behind it arrives, so the repeat is in order."""
    monkeypatch.setattr(Topics, "limit", lambda self, name: None)
    kafka.create_topic(topic, 1, **{"max.message.bytes": "2000"})
    feed = FeedDouble({"t": topic})
    # Every message a batch of its own, so the ones behind the refused one could arrive.
    sink = make_sink(kafka, config={"Flush": {"Messages": 1, "Frequency": "1ms"}})
    feed.open(sink)
    epoch = feed.epoch(at(50))
    writes = [put(1, "first", 1), put(1, "x" * 5_000, 2)]
    writes += [put(1, f"later {step}", step) for step in range(3, 50)]
    with pytest.raises(ChangefeedError) as caught:
        sink.commit(epoch, feed.write(sink, epoch, writes))
    assert caught.value.code.number == "CF5006"
    assert "table shop.public.t" in caught.value.message
    sink.abort(epoch, ())
    assert len(kafka.messages(topic)) <= 1
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource  # type: ignore[attr-defined]

    resource = ConfigResource(
        ConfigResource.Type.TOPIC,
        topic,
        incremental_configs=[
            ConfigEntry("max.message.bytes", "100000", incremental_operation=AlterConfigOpType.SET)
        ],
    )
    admin = kafka.admin()
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(60)
    feed.deliver(sink, writes)
    feed.resolve(sink)
    check(kafka, feed)
    sink.close()


# ------------------------------------------------------------------------------------- topics


def test_missing_topics_are_made_with_one_partition(kafka: KafkaBroker, topic: str) -> None:
    kafka.create_topic(f"{topic}_old", 4)
    sink = make_sink(kafka)
    FeedDouble({"t": f"{topic}_old", "u": f"{topic}_new"}).open(sink)
    wanted = {f"{topic}_old": 4, f"{topic}_new": 1}
    deadline = time.monotonic() + 60
    while not wanted.keys() <= kafka.topics().keys() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert wanted.items() <= kafka.topics().items()
    sink.close()


def test_missing_topics_are_made_as_the_uri_says(kafka: KafkaBroker, topic: str) -> None:
    from confluent_kafka.admin import (  # type: ignore[attr-defined]  # no __all__ there
        ConfigResource,
        ResourceType,
    )

    form = "topic_partitions=3&replication_factor=1&cleanup_policy=compact&topic.retention.ms=5000"
    sink = KafkaSink(f"{kafka.uri}?{form}&schema_topic={topic}_schemas&librdkafka.linger.ms=5")
    FeedDouble({"t": topic}).open(sink)
    sink._admin().known([topic, f"{topic}_schemas"])
    sink.close()
    assert (kafka.topics()[topic], kafka.topics()[f"{topic}_schemas"]) == (3, 1)
    resource = ConfigResource(ResourceType.TOPIC, topic)
    admin = kafka.admin()
    (answer,) = admin.describe_configs([resource]).values()
    found = answer.result(30)
    assert (found["cleanup.policy"].value, found["retention.ms"].value) == ("compact", "5000")


@pytest.mark.parametrize("form", ["replication_factor=3", "topic.retention.ms=soon"])
def test_a_topic_that_cannot_be_made_so_is_found_before(
    kafka: KafkaBroker, topic: str, form: str
) -> None:
    sink = KafkaSink(f"{kafka.uri}?{form}")
    targets = (Target(table_schema("t").table, topic),)
    (problem,) = sink.check(SinkContext("validate", 0, targets))
    assert "topic_partitions, replication_factor or the topic.* setting" in problem.hint
    with pytest.raises(ChangefeedError, match="does not exist"):
        FeedDouble({"t": topic}).open(sink)
    sink.close()


def test_marks_reach_partitions_added_later(kafka: KafkaBroker, topic: str) -> None:
    from confluent_kafka.cimpl import NewPartitions

    kafka.create_topic(topic, 2)
    feed = FeedDouble({"t": topic})
    sink = make_sink(kafka)
    feed.open(sink)
    feed.resolve(sink, at(1))
    admin = kafka.admin()
    for future in admin.create_partitions([NewPartitions(topic, 4)]).values():
        future.result(60)
    deadline = time.monotonic() + 60
    while kafka.topics()[topic] < 4 and time.monotonic() < deadline:
        time.sleep(0.02)
    feed.resolve(sink, at(2))
    reached = {(m.partition, m.resolved) for m in read(kafka, topic)}
    assert reached == {(0, at(1)), (1, at(1)), *((p, at(2)) for p in range(4))}
    sink.close()


def test_a_topic_that_vanished_is_made_again(kafka: KafkaBroker, topic: str) -> None:
    feed = FeedDouble({"t": topic})
    sink = make_sink(kafka)
    feed.open(sink)
    admin = kafka.admin()
    for future in admin.delete_topics([topic]).values():
        future.result(60)
    deadline = time.monotonic() + 60
    while topic in kafka.topics() and time.monotonic() < deadline:
        time.sleep(0.02)
    feed.resolve(sink, at(1))
    assert [message.resolved for message in read(kafka, topic)] == [at(1)]
    sink.close()


# ------------------------------------------------------------------------------------- logins


def _pem(broker: KafkaBroker, name: str) -> str:
    data = (broker.certificates / name).read_bytes()
    return quote(base64.b64encode(data).decode(), safe="")


def _login(**changed: str) -> str:
    given = {"sasl_enabled": "true", "sasl_user": USER, "sasl_password": PASSWORD} | changed
    return "&".join(f"{name}={value}" for name, value in given.items())


LOGINS: dict[str, Callable[[KafkaBroker], str]] = {
    "tls": lambda b: f"kafka://{b.tls_bootstrap}?tls_enabled=true&ca_cert={_pem(b, 'ca.pem')}",
    "tls-client": lambda b: (
        f"kafka://{b.tls_bootstrap}?tls_enabled=true&ca_cert={_pem(b, 'ca.pem')}"
        f"&client_cert={_pem(b, 'client.pem')}&client_key={_pem(b, 'client.key')}"
    ),
    "tls-unverified": lambda b: (
        f"kafka://{b.tls_bootstrap}?tls_enabled=true&insecure_tls_skip_verify=true"
    ),
    "plain": lambda b: f"kafka://{b.sasl_bootstrap}?{_login()}",
    "scram-256": lambda b: f"kafka://{b.sasl_bootstrap}?{_login(sasl_mechanism='SCRAM-SHA-256')}",
    "scram-512-tls": lambda b: (
        f"kafka://{b.sasl_tls_bootstrap}?{_login(sasl_mechanism='SCRAM-SHA-512')}"
        f"&tls_enabled=true&ca_cert={_pem(b, 'ca.pem')}"
    ),
}


@pytest.mark.parametrize("login", LOGINS)
def test_logins(login: str, secure_kafka: KafkaBroker, topic: str) -> None:
    sink = open_sink(LOGINS[login](secure_kafka))
    feed = FeedDouble({"t": topic})
    feed.open(sink)
    feed.deliver(sink, [put(1, "x", 1)])
    feed.resolve(sink)
    check(secure_kafka, feed)
    assert PASSWORD not in repr(sink)
    sink.close()


def test_a_wrong_password_stops_the_feed(secure_kafka: KafkaBroker, topic: str) -> None:
    wrong = "wrong-hunter2"
    sink = open_sink(f"kafka://{secure_kafka.sasl_bootstrap}?{_login(sasl_password=wrong)}")
    with pytest.raises(ChangefeedError) as caught:
        FeedDouble({"t": topic}).open(sink)
    assert caught.value.code.number == "CF5002"
    assert wrong not in f"{caught.value.message} {caught.value.detail} {caught.value.hint}"
    sink.close()


def test_an_unknown_authority_is_told(secure_kafka: KafkaBroker, topic: str) -> None:
    sink = open_sink(f"kafka://{secure_kafka.tls_bootstrap}?tls_enabled=true")
    with pytest.raises(ChangefeedError) as caught:
        FeedDouble({"t": topic}).open(sink)
    assert "certificate" in caught.value.detail
    sink.close()


# ---------------------------------------------------------------------------------- executors


def _task(sink: Sink, batches: list[Batch]) -> list[Receipt]:
    """Runs in a process of its own, as a Spark task does; the producer stays for the next."""
    return [sink.write(batch) for batch in batches]


def test_tasks_in_other_processes(kafka: KafkaBroker, topic: str) -> None:
    kafka.create_topic(topic, 3)
    feed = FeedDouble({"t": topic})
    sink = make_sink(kafka)
    feed.open(sink)
    epoch = feed.epoch(at(1))
    target, schema = feed.targets["t"], table_schema("t")
    tasks = []
    for part in range(6):
        rows = pa.Table.from_pylist(
            [
                {"key": f"[{part}, {n}]".encode(), "value": b"{}", "wall": 1, "op": "r"}
                for n in range(1_000)
            ],
            schema=MESSAGE_SCHEMA,
        )
        tasks.append(
            [
                Batch("f", epoch, part, target, schema, rows.slice(start, 100), scan=True)
                for start in range(0, 1_000, 100)
            ]
        )
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=spawn) as pool:
        receipts = [r for found in pool.map(_task, [sink] * 6, tasks) for r in found]
    sink.commit(epoch, receipts)
    assert sum(receipt.rows for receipt in receipts) == 6_000
    assert len({record.key for record in kafka.messages(topic)}) == 6_000
    sink.close()


def test_a_look_at_the_broker_makes_nothing(kafka: KafkaBroker, topic: str) -> None:
    """VALIDATE: topics that could be made are no problem, and are not made."""
    targets = (Target(table_schema("t").table, topic), Target(table_schema("u").table, topic + "b"))
    sink = KafkaSink(kafka.uri)
    for asked in (targets, ()):
        assert sink.check(SinkContext("validate", 0, asked)) == []
    assert sink._admin().partitions([topic]) == {topic: 0}
    sink.close()


def test_a_look_at_a_broker_that_is_away() -> None:
    for targets in ((Target(table_schema("t").table, "t"),), ()):
        sink = KafkaSink("kafka://127.0.0.1:1")
        sink.request_seconds = 1.0
        problems = sink.check(SinkContext("validate", 0, targets))
        assert [problem.code.number for problem in problems] == ["CF5001"]
        sink.close()
