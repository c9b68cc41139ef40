"""Parameters of kafka:// and its spellings, with CockroachDB's error texts."""

from __future__ import annotations

import base64

import pytest

from changefeed.core.errors import ChangefeedError, Problems
from changefeed.options.sink_config import kafka_sink_config
from sinks.kafka.errors import Reasons, explain_name
from sinks.kafka.librdkafka import library
from sinks.kafka.options import BASE, REFUSED_PROPERTIES, KafkaSettings
from sinks.kafka.sink import KafkaSink
from sinks.kafka.topics import TopicForm
from sinks.registry import check

PEM = base64.b64encode(b"-----BEGIN CERTIFICATE-----").decode()


def problems(uri: str, **options: object) -> list[str]:
    return [error.message for error in check(uri, options)]


def test_brokers_get_the_default_port() -> None:
    settings = KafkaSettings.read("kafka://a,b:19092,[::1]")
    assert settings.connection == {"bootstrap.servers": "a:9092,b:19092,[::1]:9092"}


def test_producers_are_idempotent_and_wait_for_all_replicas() -> None:
    producer = KafkaSettings.read("kafka://a").producer
    assert producer["enable.idempotence"] == "true"
    assert producer["acks"] == "all"
    assert producer["partitioner"] == "fnv1a"
    assert producer == BASE


def test_topics_are_made_as_the_uri_says() -> None:
    given = KafkaSettings.read(
        "kafka://a?topic_partitions=6&replication_factor=3&cleanup_policy=compact,delete"
        "&topic.retention.ms=1000"
    )
    assert given.topic_form == TopicForm(
        6, 3, {"cleanup.policy": "compact,delete", "retention.ms": "1000"}
    )
    assert KafkaSettings.read("kafka://a").topic_form == TopicForm(1, -1, {})


def test_properties_of_librdkafka_go_to_every_client() -> None:
    given = KafkaSettings.read("kafka://a?librdkafka.linger.ms=5&librdkafka.socket.timeout.ms=9000")
    assert given.producer["linger.ms"] == "5"
    assert given.connection["socket.timeout.ms"] == "9000"


@pytest.mark.parametrize("name", [*REFUSED_PROPERTIES, "sasl.password", "sasl.username"])
def test_properties_that_would_break_a_promise_are_refused(name: str) -> None:
    (said,) = problems(f"kafka://a?librdkafka.{name}=1")
    assert said.startswith(f"librdkafka.{name} cannot be set: ")


def test_every_property_that_the_sink_sets_for_delivery_is_refused() -> None:
    for name in ("enable.idempotence", "acks", "partitioner", "message.timeout.ms"):
        assert name in BASE and name in REFUSED_PROPERTIES
    assert "enable.gapless.guarantee" in REFUSED_PROPERTIES


def test_compacted_topics_take_no_resolved_timestamps() -> None:
    uri = "kafka://a?cleanup_policy=compact"
    assert problems(uri) == []
    assert problems("kafka://a?topic.cleanup.policy=delete", resolved=1.0) == []
    for written in (uri, "kafka://a?topic.cleanup.policy=compact"):
        (said,) = problems(written, resolved=1.0)
        assert "takes no message without a key" in said


#: From the tests of Kafka's own murmur2 (``UtilsTest``), and their partitions of 1,000.
VECTORS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize("key", VECTORS)
def test_murmur2_is_that_of_java_s_client(key: bytes) -> None:
    assert KafkaSettings.read("kafka://a", {"partition_alg": "murmur2"}).producer[
        "partitioner"
    ] == ("murmur2")
    chosen = library().rd_kafka_msg_partitioner_murmur2(None, key, len(key), 1000, None, None)
    assert chosen == (VECTORS[key] & 0x7FFFFFFF) % 1000


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        (
            "kafka://a?topic_partitions=0",
            ["param topic_partitions must be between 1 and 2147483647"],
        ),
        (
            "kafka://a?librdkafka.foo.bar=1",
            ['librdkafka.foo.bar: No such configuration property: "foo.bar"'],
        ),
        (
            "kafka://a?cleanup_policy=compact&topic.cleanup.policy=delete",
            ["cleanup_policy is given twice: topic.cleanup.policy is the same"],
        ),
        ("kafka://", ["the sink URI names no broker"]),
        ("kafka://a?x=1&y=2", ["unknown kafka sink query parameters: [x, y]"]),
        ("kafka://a?topic_name=", ["param topic_name must not be empty"]),
        ("kafka://a?tls_enabled=maybe", ["param tls_enabled must be a bool"]),
        ("kafka://a?tls_enabled=true&ca_cert=%25", ["param ca_cert must be base 64 encoded"]),
        (f"kafka://a?ca_cert={PEM}", ["ca_cert requires tls_enabled=true"]),
        (
            f"kafka://a?tls_enabled=true&client_cert={PEM}",
            ["client_cert requires client_key to be set"],
        ),
        (
            f"kafka://a?tls_enabled=true&client_key={PEM}",
            ["client_key requires client_cert to be set"],
        ),
        (
            "kafka://a?insecure_tls_skip_verify=true",
            ["insecure_tls_skip_verify requires tls_enabled=true"],
        ),
        (
            "kafka://a?sasl_enabled=true",
            [
                "sasl_user must be provided when SASL is enabled",
                "sasl_password must be provided when SASL is enabled",
            ],
        ),
        ("kafka://a?sasl_user=u", ["sasl_enabled must be enabled if sasl_user is provided"]),
        (
            "kafka://a?sasl_handshake=false",
            ["sasl_enabled must be enabled to configure SASL handshake behavior"],
        ),
        (
            "kafka://a?sasl_enabled=true&sasl_user=u&sasl_password=p&sasl_mechanism=KERBEROS",
            [
                "param sasl_mechanism must be one of "
                "PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER"
            ],
        ),
        (
            "kafka://a?sasl_enabled=true&sasl_mechanism=OAUTHBEARER&sasl_client_id=c",
            [
                "sasl_client_secret must be provided when SASL is enabled "
                "using mechanism OAUTHBEARER",
                "sasl_token_url must be provided when SASL is enabled using mechanism OAUTHBEARER",
            ],
        ),
        (
            "confluent-cloud://a",
            [f"confluent-cloud requires parameter api_{x}" for x in ("key", "secret")],
        ),
        (
            "confluent-cloud://a?api_key=k&api_secret=s&sasl_user=u",
            ["unknown confluent-cloud sink query parameters: [sasl_user]"],
        ),
        (
            "azure-event-hub://a?shared_access_key=k",
            ["azure-event-hub requires parameter shared_access_key_name"],
        ),
    ],
)
def test_errors(uri: str, expected: list[str]) -> None:
    assert problems(uri) == expected


def test_all_problems_come_at_once() -> None:
    with pytest.raises(Problems) as caught:
        KafkaSettings.read("kafka://a?sasl_enabled=x&tls_enabled=y&topic_prefx=z")
    assert len(caught.value.problems) == 3
    assert 'did you mean "topic_prefix"' in caught.value.problems[-1].hint


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ("tls_enabled=true", {"security.protocol": "ssl"}),
        (
            f"tls_enabled=true&ca_cert={PEM}",
            {"security.protocol": "ssl", "ssl.ca.pem": "-----BEGIN CERTIFICATE-----"},
        ),
        (
            "sasl_enabled=true&sasl_user=u&sasl_password=p",
            {
                "security.protocol": "sasl_plaintext",
                "sasl.mechanisms": "PLAIN",
                "sasl.username": "u",
                "sasl.password": "p",
            },
        ),
        (
            "sasl_enabled=true&tls_enabled=true&sasl_mechanism=oauthbearer&sasl_client_id=c"
            "&sasl_client_secret=s&sasl_token_url=https%3A%2F%2Fid%2Ftoken&sasl_scopes=a",
            {
                "security.protocol": "sasl_ssl",
                "sasl.mechanisms": "OAUTHBEARER",
                "sasl.oauthbearer.method": "oidc",
                "sasl.oauthbearer.grant.type": "client_credentials",
                "sasl.oauthbearer.client.id": "c",
                "sasl.oauthbearer.client.secret": "s",
                "sasl.oauthbearer.token.endpoint.url": "https://id/token",
                "sasl.oauthbearer.scope": "a",
            },
        ),
    ],
)
def test_logins(parameters: str, expected: dict[str, str]) -> None:
    settings = KafkaSettings.read(f"kafka://a?{parameters}")
    assert settings.connection == {"bootstrap.servers": "a:9092", **expected}


def test_spellings_are_sasl_over_tls() -> None:
    cloud = KafkaSettings.read("confluent-cloud://a:9092?api_key=k&api_secret=s").connection
    assert cloud["sasl.username"] == "k"
    assert cloud["sasl.password"] == "s"
    hub = KafkaSettings.read(
        "azure-event-hub://ns.net?shared_access_key_name=n&shared_access_key=k%3D", {}
    ).connection
    assert hub["bootstrap.servers"] == "ns.net:9093"
    assert hub["sasl.username"] == "$ConnectionString"
    assert hub["sasl.password"] == (
        "Endpoint=sb://ns.net/;SharedAccessKeyName=n;SharedAccessKey=k="
    )
    assert cloud["security.protocol"] == hub["security.protocol"] == "sasl_ssl"


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"ClientID": "me"}, {"client.id": "me"}),
        (
            {"Compression": "ZSTD", "CompressionLevel": 7},
            {"compression.type": "zstd", "compression.level": "7"},
        ),
        (
            {"Flush": {"Messages": 100, "Bytes": 5000, "Frequency": "250ms"}},
            {"batch.num.messages": "100", "batch.size": "5000", "linger.ms": "250"},
        ),
        ({"Flush": {"MaxMessages": 10}}, {"batch.num.messages": "10"}),
        ({"RequiredAcks": "ALL"}, {}),
        (
            {"RequiredAcks": "ONE"},
            {
                "acks": "1",
                "enable.idempotence": "false",
                "enable.gapless.guarantee": "false",
                "max.in.flight": "1",
            },
        ),
    ],
)
def test_kafka_sink_config(config: dict[str, object], expected: dict[str, str]) -> None:
    options = {"kafka_sink_config": kafka_sink_config(config)}
    assert KafkaSettings.read("kafka://a", options).producer == {**BASE, **expected}


def test_unacknowledged_messages_are_refused() -> None:
    config = kafka_sink_config({"RequiredAcks": "NONE"})
    assert problems("kafka://a", kafka_sink_config=config) == [
        "kafka_sink_config: RequiredAcks NONE cannot distinguish a delivered message from a lost "
        "one"
    ]


def test_compression_option() -> None:
    settings = KafkaSettings.read("kafka://a", {"compression": "lz4"})
    assert settings.compressed
    assert settings.producer["compression.type"] == "lz4"
    assert not KafkaSettings.read("kafka://a", {"compression": "none"}).compressed


def test_the_client_takes_every_setting() -> None:
    """What we write is known to the library, for every kind of login and configuration."""
    config = kafka_sink_config({"Flush": {"Bytes": 9, "Messages": 9, "Frequency": "1s"}})
    for parameters in (
        "tls_enabled=true&insecure_tls_skip_verify=true",
        "sasl_enabled=true&sasl_user=u&sasl_password=p&sasl_mechanism=SCRAM-SHA-512",
        "sasl_enabled=true&sasl_mechanism=OAUTHBEARER&sasl_client_id=c&sasl_client_secret=s"
        "&sasl_token_url=http%3A%2F%2F127.0.0.1%3A1%2F",
    ):
        sink = KafkaSink(f"kafka://127.0.0.1:1?{parameters}", {"kafka_sink_config": config})
        assert sink._producer().reasons.latest is None
        sink.close()


def test_a_setting_the_client_refuses_does_not_show_its_value() -> None:
    bad = base64.b64encode(b"hunter2").decode()
    sink = KafkaSink(f"kafka://127.0.0.1:1?tls_enabled=true&client_cert={bad}&client_key={bad}")
    with pytest.raises(ChangefeedError) as caught:
        sink._producer()
    assert "hunter2" not in f"{caught.value.message} {caught.value.detail}"


@pytest.mark.parametrize("name", ["MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE"])
def test_what_is_too_large_says_which_limit_may_be_raised(name: str) -> None:
    error = explain_name(name, "too large", Reasons(), topic="orders")
    assert error.code.number == "CF5006" and error.target == "orders"
    assert "max.message.bytes of the topic" in error.hint and error.hint.endswith("then RESUME.")
