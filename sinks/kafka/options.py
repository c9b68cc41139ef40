"""Parameters of ``kafka://`` and its spellings, made into the client's configuration.

``confluent-cloud://`` and ``azure-event-hub://`` are Kafka with a fixed way of logging in: their
parameters become the same SASL settings. Texts of the errors follow CockroachDB's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.formats import formats_with, traits_of
from changefeed.core.parameters import Parameter, ParameterKind
from changefeed.encoding.registry import RegistrySettings, parse_registry
from changefeed.options.sink_config import KafkaSinkConfig
from changefeed.options.types import parse_duration
from sinks.naming import kafka_topic_name
from sinks.parameters import TLS, TOPIC_PREFIX, Parameters

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
PROGRESS_TOPIC = "_changefeed_progress"
DEFAULT_PORT = 9092
HUB_PORT = 9093

_KAFKA, _CONFLUENT, _HUB = ("kafka",), ("confluent-cloud",), ("azure-event-hub",)


def _of_kafka(
    name: str,
    summary: str,
    kind: ParameterKind = ParameterKind.TEXT,
    *,
    default: str = "",
    secret: bool = False,
) -> Parameter:
    return Parameter(name, summary, kind, default=default, secret=secret, schemes=_KAFKA)


#: What the URIs of the three schemes take.
PARAMETERS = (
    TOPIC_PREFIX,
    Parameter("kafka_topic_prefix", "The same as topic_prefix."),
    Parameter("topic_name", "One topic for all tables.", default="a topic per table"),
    Parameter(
        "progress_topic",
        "The topic that keeps the progress of feeds with delivery = 'exactly_once'.",
        default=PROGRESS_TOPIC,
    ),
    Parameter(
        "transaction_timeout",
        "How long the broker lets a transaction of delivery = 'exactly_once' stay open.",
        ParameterKind.DURATION,
        default="the client's",
    ),
    Parameter(
        "schema_topic",
        "A topic that gets every change of a table's schema, its drop, and its statements of DDL.",
        default="none",
    ),
    Parameter(
        "confluent_schema_registry",
        "The schema registry for format = 'avro' and 'protobuf'; also an option.",
        ParameterKind.URL,
    ),
    Parameter("avro_schema_prefix", "Prefix of the registry's subjects; also an option."),
    _of_kafka("tls_enabled", "Connects by TLS.", ParameterKind.FLAG, default="false"),
    *(replace(one, schemes=_KAFKA) for one in TLS),
    _of_kafka("sasl_enabled", "Logs in by SASL.", ParameterKind.FLAG, default="false"),
    _of_kafka(
        "sasl_handshake",
        "Must be true: this client always does the handshake.",
        ParameterKind.FLAG,
        default="true",
    ),
    Parameter(
        "sasl_mechanism",
        "How SASL logs in.",
        ParameterKind.CHOICE,
        MECHANISMS,
        MECHANISMS[0],
        schemes=_KAFKA,
    ),
    Parameter(
        "sasl_grant_type",
        "How OAUTHBEARER gets its token.",
        ParameterKind.CHOICE,
        ("client_credentials",),
        "client_credentials",
        schemes=_KAFKA,
    ),
    _of_kafka("sasl_user", "The user for PLAIN and SCRAM."),
    _of_kafka("sasl_password", "The user's password.", secret=True),
    _of_kafka("sasl_client_id", "The client id for OAUTHBEARER."),
    _of_kafka("sasl_client_secret", "The client's secret.", secret=True),
    _of_kafka("sasl_token_url", "Where OAUTHBEARER gets its token.", ParameterKind.URL),
    _of_kafka("sasl_scopes", "Scopes of the token.", default="none"),
    Parameter("api_key", "The API key.", secret=True, schemes=_CONFLUENT),
    Parameter("api_secret", "The API key's secret.", secret=True, schemes=_CONFLUENT),
    Parameter("shared_access_key_name", "The name of the shared access key.", schemes=_HUB),
    Parameter("shared_access_key", "The shared access key.", secret=True, schemes=_HUB),
)

#: What all our producers run with, before the user's settings.
BASE: dict[str, str] = {
    # Duplicates and reordering by the client's own retries are ruled out.
    "enable.idempotence": "true",
    "acks": "all",
    # FNV-1a of the key as Sarama computes it, so partitions are those CockroachDB would take;
    # rows without a key share one partition instead of a random one.
    "partitioner": "fnv1a",
    # No message ever times out by itself, and one refused stops all behind it: else a later
    # version of a row could arrive while an earlier one failed, and the repeat would bring the
    # old one last. The channel gives up as a whole instead (``STALL_SECONDS``).
    "message.timeout.ms": "0",
    "enable.gapless.guarantee": "true",
    # A flush overrides it, so this delays nothing a reader waits for; it fills batches.
    "linger.ms": "20",
    "batch.size": "1000000",
    "batch.num.messages": "10000",
    # The broker's and the topic's limit decide, not the client's (1 MB).
    "message.max.bytes": "268435456",
    # Memory of one feed's queue. A batch that does not fit waits, which is the back-pressure.
    "queue.buffering.max.kbytes": "131072",
    "queue.buffering.max.messages": "1000000",
    "topic.metadata.refresh.interval.ms": "30000",
    "socket.keepalive.enable": "true",
    "reconnect.backoff.max.ms": "2000",
    "log.connection.close": "false",
}

#: Settings of :data:`BASE` that only a producer has.
PRODUCER_ONLY = frozenset(BASE) - {
    "topic.metadata.refresh.interval.ms",
    "socket.keepalive.enable",
    "reconnect.backoff.max.ms",
    "log.connection.close",
}


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """A checked sink URI with its options.

    Attributes:
        connection: what any client of these brokers needs (addresses, TLS, login).
        producer: what the producer needs besides.
        topic_prefix, topic_name: how topics are called; an empty ``topic_name`` means by table.
        exactly_once: messages are written in transactions, with the progress in
            ``progress_topic``.
        transaction_timeout: seconds a transaction may last; 0 is the default of each kind.
        schema_topic: topic that gets every change of a table's schema; empty for none.
        registry: where readers find the schemas of messages, whose format has schemas.
    """

    connection: Mapping[str, str]
    producer: Mapping[str, str]
    topic_prefix: str = ""
    topic_name: str = ""
    exactly_once: bool = False
    progress_topic: str = PROGRESS_TOPIC
    transaction_timeout: float = 0.0
    schema_topic: str = ""
    registry: RegistrySettings | None = None

    def topic(self, name: str) -> str:
        """The topic of the table (or topic alias) ``name``."""
        return kafka_topic_name(self.topic_prefix + (self.topic_name or name))

    @property
    def compressed(self) -> bool:
        """Batches are compressed: the size of a message says little about what is sent."""
        return self.producer.get("compression.type", "none") != "none"


def parse(uri: str, options: Mapping[str, object]) -> KafkaSettings:
    """Check a Kafka URI and the options that concern it; connects to nothing.

    Raises:
        ChangefeedError: all problems found (``Problems`` when there are several).
    """
    url = _Reader(uri)
    connection = {"bootstrap.servers": url.brokers()}
    prefix = url.text("topic_prefix") or url.text("kafka_topic_prefix") or ""
    name = url.text("topic_name")
    if name == "":
        url.problem("param topic_name must not be empty")
    progress_topic = url.text("progress_topic") or PROGRESS_TOPIC
    timeout = url.duration("transaction_timeout")
    exactly_once = str(options.get("delivery", "")) == "exactly_once"
    login = {"confluent-cloud": _confluent_login, "azure-event-hub": _hub_login}
    connection |= login.get(url.scheme, _kafka_login)(url)
    nothing: dict[str, str] = {}
    producer = BASE | url.attempt(lambda: _sink_config(_config_of(options)), nothing)
    compression = options.get("compression")
    if compression and compression != "none":
        producer["compression.type"] = str(compression)
    if exactly_once and producer["enable.idempotence"] != "true":
        url.problem("kafka_sink_config: RequiredAcks ONE cannot be exactly once")
    registry = _registry(url, options)
    schema_topic = url.text("schema_topic") or ""
    url.finish()
    return KafkaSettings(
        connection,
        producer,
        prefix,
        name or "",
        exactly_once,
        progress_topic,
        timeout,
        kafka_topic_name(schema_topic) if schema_topic else "",
        registry,
    )


def _registry(url: _Reader, options: Mapping[str, object]) -> RegistrySettings | None:
    """Check that readers of the messages find their schemas; the feed registers them.

    ``confluent_schema_registry`` and ``avro_schema_prefix`` are parameters of the URI and options.
    Protobuf can be read with types from elsewhere, Avro only with the writer's schema. The URI of
    a connection comes without a format.
    """
    form = str(options.get("format") or "")
    traits = traits_of(form)
    address = ""
    for name in ("confluent_schema_registry", "avro_schema_prefix"):
        parameter, given = url.text(name), options.get(name)
        if parameter and given:
            url.problem(f"{name} is given as a parameter of the URI and as an option")
        if parameter and "format" in options and not (traits and traits.schemas):
            able = " or ".join(f"format={f}" for f in formats_with(lambda t: t.schemas))
            url.problem(f"param {name} is only usable with {able}")
        if name == "confluent_schema_registry":
            address = str(given or parameter or "")
    if address:
        found = url.attempt(lambda: parse_registry(address), None)
        return found if traits and traits.schemas else None
    if traits and traits.unreadable_alone:
        url.problem(
            f"format={form} to Kafka requires confluent_schema_registry",
            "a message holds the id of its schema, and readers ask the registry for it: write "
            "confluent_schema_registry = 'http://host:8081'.",
        )
    return None


class _Reader(Parameters):
    def __init__(self, uri: str) -> None:
        super().__init__(uri, PARAMETERS)

    def duration(self, name: str) -> float:
        """Seconds; 0 when the parameter is absent."""
        text = self.text(name)
        if text is None:
            return 0.0
        try:
            return parse_duration(text)
        except ValueError as error:
            self.problem(f"param {name}: {error}")
            return 0.0

    def needed(self, name: str) -> str:
        value = self.text(name)
        if not value:
            self.problem(f"{self.scheme} requires parameter {name}")
        return value or ""

    def brokers(self) -> str:
        port = HUB_PORT if self.scheme == "azure-event-hub" else DEFAULT_PORT
        if not self.host:
            raise ChangefeedError(
                Code.INVALID_URI,
                "the sink URI names no broker",
                hint=f"write {self.scheme}://host:{port}, several separated by commas.",
            )
        return ",".join(self.url.addresses(port))


def _kafka_login(url: _Reader) -> dict[str, str]:
    tls, sasl = _tls(url), _sasl(url)
    if sasl:
        protocol = "sasl_ssl" if tls else "sasl_plaintext"
        return tls | sasl | {"security.protocol": protocol}
    return tls


_PEM_SETTINGS = {
    "ca_cert": "ssl.ca.pem",
    "client_cert": "ssl.certificate.pem",
    "client_key": "ssl.key.pem",
}


def _tls(url: _Reader) -> dict[str, str]:
    enabled = url.flag("tls_enabled")
    skip = url.flag("insecure_tls_skip_verify")
    pem = {name: text for name in _PEM_SETTINGS if (text := url.pem(name)) is not None}
    if not enabled:
        for name in [*pem, *["insecure_tls_skip_verify"] * skip]:
            url.problem(f"{name} requires tls_enabled=true")
        return {}
    url.check_certificate(pem)
    config = {"security.protocol": "ssl"}
    config |= {setting: pem[name] for name, setting in _PEM_SETTINGS.items() if name in pem}
    if skip:
        config["enable.ssl.certificate.verification"] = "false"
    return config


#: URI parameter -> client setting, by kind of mechanism. All of a kind are needed but scopes.
_PASSWORD_LOGIN = {"sasl_user": "sasl.username", "sasl_password": "sasl.password"}
_TOKEN_LOGIN = {
    "sasl_client_id": "sasl.oauthbearer.client.id",
    "sasl_client_secret": "sasl.oauthbearer.client.secret",
    "sasl_token_url": "sasl.oauthbearer.token.endpoint.url",
    "sasl_scopes": "sasl.oauthbearer.scope",
}
_OPTIONAL = frozenset({"sasl_scopes"})


def _sasl(url: _Reader) -> dict[str, str]:
    enabled = url.flag("sasl_enabled")
    handshake = url.flag("sasl_handshake", True)
    mechanism = url.choice("sasl_mechanism")
    grant = url.choice("sasl_grant_type")
    names = (*_PASSWORD_LOGIN, *_TOKEN_LOGIN)
    given = {name: value for name in names if (value := url.text(name)) is not None}
    if not enabled:
        if not handshake:
            url.problem("sasl_enabled must be enabled to configure SASL handshake behavior")
        for name in given:
            url.problem(f"sasl_enabled must be enabled if {name} is provided")
        return {}
    if not handshake:
        url.problem("param sasl_handshake cannot be false: this client always does it")
    token = mechanism == "OAUTHBEARER"
    wanted, other = (_TOKEN_LOGIN, _PASSWORD_LOGIN) if token else (_PASSWORD_LOGIN, _TOKEN_LOGIN)
    suffix = f" using mechanism {mechanism}" if token else ""
    for name in wanted:
        if not given.get(name) and name not in _OPTIONAL:
            url.problem(f"{name} must be provided when SASL is enabled{suffix}")
    for name in other:
        if name in given:
            url.problem(f"{name} is not used with sasl_mechanism {mechanism}")
    config = {wanted[name]: value for name, value in given.items() if name in wanted}
    if token:
        config |= {"sasl.oauthbearer.method": "oidc", "sasl.oauthbearer.grant.type": grant}
    return config | {"sasl.mechanisms": mechanism}


def _confluent_login(url: _Reader) -> dict[str, str]:
    return {
        "security.protocol": "sasl_ssl",
        "sasl.mechanisms": "PLAIN",
        "sasl.username": url.needed("api_key"),
        "sasl.password": url.needed("api_secret"),
    }


def _hub_login(url: _Reader) -> dict[str, str]:
    """Azure wants its connection string as the password of a user of that name."""
    name = url.needed("shared_access_key_name")
    key = url.needed("shared_access_key")
    shared = f"Endpoint=sb://{url.host}/;SharedAccessKeyName={name};SharedAccessKey={key}"
    return {
        "security.protocol": "sasl_ssl",
        "sasl.mechanisms": "PLAIN",
        "sasl.username": "$ConnectionString",
        "sasl.password": shared,
    }


def _config_of(options: Mapping[str, object]) -> KafkaSinkConfig | None:
    config = options.get("kafka_sink_config")
    return config if isinstance(config, KafkaSinkConfig) else None


def _sink_config(config: KafkaSinkConfig | None) -> dict[str, str]:
    """CockroachDB's ``kafka_sink_config`` as settings of this client.

    There, ``Flush`` says when a waiting batch goes; here a batch goes when it is full or has
    lingered, so ``Messages`` and ``Bytes`` are what full means and ``Frequency`` is the linger.
    ``Retry`` and ``Version`` have nothing to act on: the feed retries, and the client asks the
    broker for its version.
    """
    if config is None:
        return {}
    flush = config.flush
    settings = {
        "client.id": config.client_id,
        "compression.type": config.compression,
        "compression.level": config.compression_level,
        "linger.ms": f"{flush.frequency * 1000:g}" if flush.frequency else None,
        "batch.size": _most(flush.bytes or flush.max_bytes, 2**31 - 1),
        "batch.num.messages": _most(flush.messages or flush.max_messages, 1_000_000),
    }
    return {k: str(v) for k, v in settings.items() if v is not None} | _acks(config.required_acks)


def _most(value: int | None, limit: int) -> int | None:
    return min(value, limit) if value else None


def _acks(acks: str | None) -> dict[str, str]:
    if acks in (None, "all"):
        return {}
    if acks == "1":
        # The idempotent producer needs all; one request at a time keeps the order without it.
        return {
            "acks": "1",
            "enable.idempotence": "false",
            "enable.gapless.guarantee": "false",
            "max.in.flight": "1",
        }
    raise ChangefeedError(
        Code.INVALID_OPTION_VALUE,
        "kafka_sink_config: RequiredAcks NONE cannot distinguish a delivered message from a lost "
        "one",
        hint="use ALL or ONE.",
    )
