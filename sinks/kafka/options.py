"""What the URI of a Kafka sink says, made into the client's configuration.

``confluent-cloud://`` and ``azure-event-hub://`` are Kafka with a fixed way of logging in: their
parameters become the same SASL settings. Texts of the errors follow CockroachDB's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.formats import formats_with, traits_of
from changefeed.core.settings import (
    Parameter,
    ParameterKind,
    Settings,
    Tls,
    group,
    invalid,
    setting,
    several,
)
from changefeed.core.uri import invalid_uri
from changefeed.encoding.registry import RegistrySettings, parse_registry
from changefeed.options.sink_config import KafkaSinkConfig
from sinks.kafka.librdkafka import property_refusal
from sinks.kafka.topics import TopicForm
from sinks.naming import TOPIC_PREFIX, kafka_topic_name

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
PROGRESS_TOPIC = "_changefeed_progress"
DEFAULT_PORT = 9092
HUB_PORT = 9093

#: URI parameter -> client setting, by kind of mechanism. All of a kind are needed but scopes.
_PASSWORD_LOGIN = {"sasl_user": "sasl.username", "sasl_password": "sasl.password"}
_TOKEN_LOGIN = {
    "sasl_client_id": "sasl.oauthbearer.client.id",
    "sasl_client_secret": "sasl.oauthbearer.client.secret",
    "sasl_token_url": "sasl.oauthbearer.token.endpoint.url",
    "sasl_scopes": "sasl.oauthbearer.scope",
}
_OPTIONAL = frozenset({"sasl_scopes"})

_PEM_SETTINGS = {
    "ca_cert": "ssl.ca.pem",
    "client_cert": "ssl.certificate.pem",
    "client_key": "ssl.key.pem",
}

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


#: Prefixes of parameters that are handed on.
TOPIC_SETTING = "topic."
CLIENT_PROPERTY = "librdkafka."

CLEANUP_POLICIES = ("delete", "compact", "compact,delete")

_DELIVERY = "messages would be lost, repeated late or out of order"
_URI = "a parameter of the URI sets it"
#: Properties of librdkafka that the sink relies on, with the reason.
REFUSED_PROPERTIES: dict[str, str] = {
    **dict.fromkeys(
        (
            "acks",
            "request.required.acks",
            "enable.idempotence",
            "enable.gapless.guarantee",
            "max.in.flight",
            "max.in.flight.requests.per.connection",
            "message.timeout.ms",
            "delivery.timeout.ms",
            "message.send.max.retries",
            "retries",
            "queuing.strategy",
        ),
        _DELIVERY,
    ),
    **dict.fromkeys(
        ("partitioner", "partitioner_cb"), "a row must keep its partition; see partition_alg"
    ),
    **dict.fromkeys(
        ("transactional.id", "transaction.timeout.ms"), "delivery = 'exactly_once' sets it"
    ),
    **dict.fromkeys(("bootstrap.servers", "metadata.broker.list"), "the URI names the brokers"),
    **dict.fromkeys(
        ("security.protocol", "ssl.ca.pem", "ssl.certificate.pem", "ssl.key.pem"), _URI
    ),
    **dict.fromkeys(("compression.type", "compression.codec"), "the option compression sets it"),
    "client.id": "ClientID of kafka_sink_config sets it",
}


@dataclass(frozen=True, kw_only=True)
class Sasl(Settings):
    """The login of ``kafka://``."""

    sasl_enabled: bool = setting(False, "Logs in by SASL.")
    sasl_handshake: bool = setting(True, "Must be true: this client always does the handshake.")
    sasl_mechanism: str = setting(MECHANISMS[0], "How SASL logs in.", values=MECHANISMS)
    sasl_grant_type: str = setting(
        "client_credentials", "How OAUTHBEARER gets its token.", values=("client_credentials",)
    )
    sasl_user: str = setting("", "The user for PLAIN and SCRAM.")
    sasl_password: str = setting("", "The user's password.", secret=True)
    sasl_client_id: str = setting("", "The client id for OAUTHBEARER.")
    sasl_client_secret: str = setting("", "The client's secret.", secret=True)
    sasl_token_url: str = setting("", "Where OAUTHBEARER gets its token.", ParameterKind.URL)
    sasl_scopes: str = setting("", "Scopes of the token.", shown="none")

    @property
    def _token(self) -> bool:
        return self.sasl_mechanism == "OAUTHBEARER"

    @property
    def _wanted(self) -> Mapping[str, str]:
        return _TOKEN_LOGIN if self._token else _PASSWORD_LOGIN

    def check(self) -> Iterator[ChangefeedError]:
        names = (*_PASSWORD_LOGIN, *_TOKEN_LOGIN)
        if not self.sasl_enabled:
            if not self.sasl_handshake:
                yield invalid("sasl_enabled must be enabled to configure SASL handshake behavior")
            for name in names:
                if name in self.given:
                    yield invalid(f"sasl_enabled must be enabled if {name} is provided")
            return
        if not self.sasl_handshake:
            yield invalid("param sasl_handshake cannot be false: this client always does it")
        suffix = f" using mechanism {self.sasl_mechanism}" if self._token else ""
        for name in names:
            if name in self._wanted:
                if not getattr(self, name) and name not in _OPTIONAL:
                    yield invalid(f"{name} must be provided when SASL is enabled{suffix}")
            elif name in self.given:
                yield invalid(f"{name} is not used with sasl_mechanism {self.sasl_mechanism}")

    @property
    def config(self) -> dict[str, str]:
        """The client's settings for it."""
        if not self.sasl_enabled:
            return {}
        config = {
            key: getattr(self, name) for name, key in self._wanted.items() if name in self.given
        }
        if self._token:
            config["sasl.oauthbearer.method"] = "oidc"
            config["sasl.oauthbearer.grant.type"] = self.sasl_grant_type
        return config | {"sasl.mechanisms": self.sasl_mechanism}


@dataclass(frozen=True, kw_only=True)
class KeyLogin(Settings):
    """A login whose parameters are both needed."""

    def check(self) -> Iterator[ChangefeedError]:
        for one in self.parameters():
            if not getattr(self, one.name):
                yield invalid(f"{self.uri.scheme} requires parameter {one.name}")


@dataclass(frozen=True, kw_only=True)
class ConfluentLogin(KeyLogin):
    """The login of ``confluent-cloud://``."""

    api_key: str = setting("", "The API key.", secret=True)
    api_secret: str = setting("", "The API key's secret.", secret=True)


@dataclass(frozen=True, kw_only=True)
class HubLogin(KeyLogin):
    """The login of ``azure-event-hub://``."""

    shared_access_key_name: str = setting("", "The name of the shared access key.")
    shared_access_key: str = setting("", "The shared access key.", secret=True)


@dataclass(frozen=True, kw_only=True)
class KafkaSettings(Settings):
    """``kafka://`` and its spellings."""

    topic_prefix: str = setting("", TOPIC_PREFIX)
    kafka_topic_prefix: str = setting("", "The same as topic_prefix.")
    topic_name: str = setting("", "One topic for all tables.", shown="a topic per table")
    progress_topic: str = setting(
        PROGRESS_TOPIC,
        "The topic that keeps the progress of feeds with delivery = 'exactly_once'.",
        convert=lambda text: text or PROGRESS_TOPIC,
    )
    transaction_timeout: float = setting(
        0.0,
        "How long the broker lets a transaction of delivery = 'exactly_once' stay open.",
        ParameterKind.DURATION,
        shown="the client's",
    )
    topic_partitions: int = setting(
        1, "Partitions of topics that are made.", least=1, most=2**31 - 1
    )
    replication_factor: int = setting(
        0, "Replicas of topics that are made.", shown="the broker's", least=1, most=32767
    )
    cleanup_policy: str = setting(
        "",
        "What the broker removes from topics that are made.",
        values=CLEANUP_POLICIES,
        shown="the broker's",
    )
    others: Mapping[str, str] = several(
        Parameter(
            f"{TOPIC_SETTING}*",
            "Any setting of topics that are made, as topic.retention.ms=86400000.",
        ),
        Parameter(
            f"{CLIENT_PROPERTY}*",
            "Any property of librdkafka, as librdkafka.socket.timeout.ms=30000.",
        ),
    )
    schema_topic: str = setting(
        "",
        "A topic that gets every change of a table's schema, its drop, and its statements of DDL.",
        shown="none",
        convert=lambda text: kafka_topic_name(text) if text else "",
    )
    confluent_schema_registry: str = setting(
        "",
        "The schema registry for format = 'avro' and 'protobuf'; also an option.",
        ParameterKind.URL,
    )
    avro_schema_prefix: str = setting("", "Prefix of the registry's subjects; also an option.")
    tls_enabled: bool = setting(False, "Connects by TLS.", schemes=("kafka",))
    tls: Tls = group(Tls, "kafka")
    sasl: Sasl = group(Sasl, "kafka")
    confluent: ConfluentLogin = group(ConfluentLogin, "confluent-cloud")
    hub: HubLogin = group(HubLogin, "azure-event-hub")

    def topic(self, name: str) -> str:
        """The topic of the table (or topic alias) ``name``."""
        prefix = self.topic_prefix or self.kafka_topic_prefix
        return kafka_topic_name(prefix + (self.topic_name or name))

    @property
    def topic_form(self) -> TopicForm:
        """How missing topics are made."""
        settings = self._others(TOPIC_SETTING)
        if self.cleanup_policy:
            settings["cleanup.policy"] = self.cleanup_policy
        return TopicForm(self.topic_partitions, self.replication_factor or -1, settings)

    def _others(self, prefix: str) -> dict[str, str]:
        return {
            name.removeprefix(prefix): value
            for name, value in self.others.items()
            if name.startswith(prefix)
        }

    @property
    def exactly_once(self) -> bool:
        """Messages are written in transactions, with the progress in ``progress_topic``."""
        return str(self.options.get("delivery", "")) == "exactly_once"

    @cached_property
    def connection(self) -> Mapping[str, str]:
        """What any client of these brokers needs: addresses, TLS, login."""
        port = HUB_PORT if self.uri.scheme == "azure-event-hub" else DEFAULT_PORT
        brokers = {"bootstrap.servers": ",".join(self.uri.addresses(port))}
        return brokers | self._login() | self._others(CLIENT_PROPERTY)

    def _login(self) -> dict[str, str]:
        if self.uri.scheme == "confluent-cloud":
            return _plain(self.confluent.api_key, self.confluent.api_secret)
        if self.uri.scheme == "azure-event-hub":
            # Azure wants its connection string as the password of a user of that name.
            shared = (
                f"Endpoint=sb://{self.uri.host}/;SharedAccessKeyName="
                f"{self.hub.shared_access_key_name};SharedAccessKey={self.hub.shared_access_key}"
            )
            return _plain("$ConnectionString", shared)
        sasl, tls = self.sasl.config, self._tls()
        if sasl:
            tls["security.protocol"] = "sasl_ssl" if tls else "sasl_plaintext"
        return tls | sasl

    def _tls(self) -> dict[str, str]:
        if not self.tls_enabled:
            return {}
        config = {"security.protocol": "ssl"}
        for name, key in _PEM_SETTINGS.items():
            if name in self.tls.given:
                config[key] = getattr(self.tls, name)
        if self.tls.insecure_tls_skip_verify:
            config["enable.ssl.certificate.verification"] = "false"
        return config

    @cached_property
    def producer(self) -> Mapping[str, str]:
        """What the producer needs besides."""
        compression = self.options.get("compression")
        chosen = compression and compression != "none"
        more = {"compression.type": str(compression)} if chosen else {}
        if str(self.options.get("partition_alg", "")) == "murmur2":
            # As Java's client, but rows without a key share one partition here, too.
            more["partitioner"] = "murmur2"
        own = self._others(CLIENT_PROPERTY)
        return BASE | _sink_config(_config_of(self.options)) | more | own

    @property
    def compressed(self) -> bool:
        """Batches are compressed: the size of a message says little about what is sent."""
        return self.producer.get("compression.type", "none") != "none"

    @cached_property
    def registry(self) -> RegistrySettings | None:
        """Where readers find the schemas of messages whose format has schemas."""
        address = self._registry_address
        traits = traits_of(str(self.options.get("format") or ""))
        found = parse_registry(address) if address else None
        return found if traits and traits.schemas else None

    @property
    def _registry_address(self) -> str:
        given = self.options.get("confluent_schema_registry")
        return str(given or self.confluent_schema_registry)

    def check(self) -> Iterator[ChangefeedError]:
        if not self.uri.host:
            port = HUB_PORT if self.uri.scheme == "azure-event-hub" else DEFAULT_PORT
            raise invalid_uri(
                "the sink URI names no broker",
                f"write {self.uri.scheme}://host:{port}, several separated by commas.",
            )
        if "topic_name" in self.given and not self.topic_name:
            yield invalid("param topic_name must not be empty")
        if self.uri.scheme == "kafka" and not self.tls_enabled:
            for name in self.tls.wanted:
                yield invalid(f"{name} requires tls_enabled=true")
        config = _config_of(self.options)
        acks = None if config is None else config.required_acks
        if acks == "0":
            yield invalid(
                "kafka_sink_config: RequiredAcks NONE cannot distinguish a delivered message from "
                "a lost one",
                "use ALL or ONE.",
                Code.INVALID_OPTION_VALUE,
            )
        if acks == "1" and self.exactly_once:
            yield invalid("kafka_sink_config: RequiredAcks ONE cannot be exactly once")
        yield from self._check_registry()
        if "compact" in self.topic_form.settings.get("cleanup.policy", "") and (
            self.options.get("resolved") is not None
        ):
            yield invalid(
                "a topic with cleanup_policy=compact takes no message without a key, and resolved "
                "timestamps have none",
                "leave resolved out, or compact the topics only.",
            )
        if "cleanup_policy" in self.given and f"{TOPIC_SETTING}cleanup.policy" in self.others:
            yield invalid("cleanup_policy is given twice: topic.cleanup.policy is the same")
        yield from self._check_properties()

    def _check_properties(self) -> Iterator[ChangefeedError]:
        given = self._others(CLIENT_PROPERTY)
        for name, value in given.items():
            if name in REFUSED_PROPERTIES or name.startswith("sasl."):
                why = REFUSED_PROPERTIES.get(name, "the sasl_* parameters of the URI set it")
                yield invalid(f"librdkafka.{name} cannot be set: {why}")
            elif problem := property_refusal(name, value):
                yield invalid(f"librdkafka.{name}: {problem}")

    def _check_registry(self) -> Iterator[ChangefeedError]:
        """``confluent_schema_registry`` and ``avro_schema_prefix`` are parameters of the URI and
        options. Protobuf can be read with types from elsewhere, Avro only with the writer's schema.
        The URI of a connection comes without a format."""
        form = str(self.options.get("format") or "")
        traits = traits_of(form)
        for name in ("confluent_schema_registry", "avro_schema_prefix"):
            parameter, given = getattr(self, name), self.options.get(name)
            if parameter and given:
                yield invalid(f"{name} is given as a parameter of the URI and as an option")
            if parameter and "format" in self.options and not (traits and traits.schemas):
                able = " or ".join(f"format={f}" for f in formats_with(lambda t: t.schemas))
                yield invalid(f"param {name} is only usable with {able}")
        if traits and traits.unreadable_alone and not self._registry_address:
            yield invalid(
                f"format={form} to Kafka requires confluent_schema_registry",
                "a message holds the id of its schema, and readers ask the registry for it: write "
                "confluent_schema_registry = 'http://host:8081'.",
            )
        _ = self.registry


def _plain(user: str, password: str) -> dict[str, str]:
    return {
        "security.protocol": "sasl_ssl",
        "sasl.mechanisms": "PLAIN",
        "sasl.username": user,
        "sasl.password": password,
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
    if acks != "1":
        return {}
    # The idempotent producer needs all; one request at a time keeps the order without it.
    return {
        "acks": "1",
        "enable.idempotence": "false",
        "enable.gapless.guarantee": "false",
        "max.in.flight": "1",
    }
