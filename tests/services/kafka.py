"""A real Kafka broker (KRaft, one node), and the few calls a test makes of it.

``broker.bootstrap`` is the plain listener. A broker made with ``secure=True`` has three more,
with users ``alice`` / ``secret`` (PLAIN and SCRAM-SHA-256/512): ``broker.tls_bootstrap``,
``broker.sasl_bootstrap`` and ``broker.sasl_tls_bootstrap``; ``broker.certificates`` holds
``ca.pem``, ``client.pem`` and ``client.key``.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from changefeed.embedded.child import spawn
from changefeed.embedded.server import free_port
from changefeed.spark.java import find_java
from tests.helpers.waiting import suspend
from tests.services.cache import made_once, readable_root
from tests.services.certificates import write_certificates
from tests.services.ivy import Artifact, resolve

VERSION = "4.4.0"
USER, PASSWORD = "alice", "secret"
_CLUSTER_ID = "Y2hhbmdlZmVlZC10ZXN0cw"

_SETTINGS: Mapping[str, str] = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,"
    "TLS:SSL,SASL:SASL_PLAINTEXT,SASLTLS:SASL_SSL",
    "num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "auto.create.topics.enable": "true",
}

_LOGGING = """\
Configuration:
  Appenders:
    Console: {name: STDOUT, PatternLayout: {pattern: "[%d] %p %m (%c)%n"}}
  Loggers:
    Root: {level: WARN, AppenderRef: {ref: STDOUT}}
    Logger:
      - {name: kafka.server.KafkaRaftServer, level: INFO}
"""


@dataclass(frozen=True, slots=True)
class Record:
    """One message as a consumer sees it."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int


class KafkaBroker:
    """A broker over ``folder``; the same ports and data for every start."""

    def __init__(
        self, folder: Path, *, secure: bool = False, settings: Mapping[str, str] | None = None
    ) -> None:
        self.folder = folder
        self.secure = secure
        self.settings = dict(settings or {})
        names = ["PLAINTEXT", "CONTROLLER"] + (["TLS", "SASL", "SASLTLS"] if secure else [])
        self.ports = {name: free_port() for name in names}
        self._host = "127.0.0.1"
        self.certificates = folder / "certificates"
        self.log_file = folder / "broker.log"
        self._process: subprocess.Popen[bytes] | None = None

    # ------------------------------------------------------------------ addresses

    @property
    def bootstrap(self) -> str:
        """``host:port`` of the plain listener."""
        return self._address("PLAINTEXT")

    @property
    def uri(self) -> str:
        """The plain listener as a sink URI."""
        return f"kafka://{self.bootstrap}"

    @property
    def tls_bootstrap(self) -> str:
        """``host:port`` of the TLS listener (a client certificate is taken, not demanded)."""
        return self._address("TLS")

    @property
    def sasl_bootstrap(self) -> str:
        """``host:port`` of the SASL listener without TLS."""
        return self._address("SASL")

    @property
    def sasl_tls_bootstrap(self) -> str:
        """``host:port`` of the SASL listener over TLS."""
        return self._address("SASLTLS")

    def _address(self, listener: str) -> str:
        return f"{self._host}:{self.ports[listener]}"

    def listen_at(self, address: str) -> None:
        """Be found there, from the next start on, instead of on the loopback."""
        self._host = address

    # ------------------------------------------------------------------ life

    @property
    def running(self) -> bool:
        """Whether the broker's process lives."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Process id of the broker's JVM.

        Raises:
            RuntimeError: the broker was not started.
        """
        if self._process is None:
            raise RuntimeError("the broker is not started")
        return self._process.pid

    def start(self, timeout: float = 90.0) -> KafkaBroker:
        """Start and wait until the broker serves."""
        if self.running:
            return self
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.secure and not self.certificates.exists():
            write_certificates(self.certificates)
        data = self.folder / "data"
        if not data.exists():
            shutil.copytree(_formatted_data(), data)
        properties = self.folder / "server.properties"
        properties.write_text(_properties_text(self._properties(data)))
        seen = self.log_file.stat().st_size if self.log_file.exists() else 0
        self._process = spawn(
            [*_jvm(self.folder), "kafka.Kafka", properties],
            log_file=self.log_file,
            environment=_environment(),
        )
        atexit.register(self.kill)
        self._wait_ready(seen, time.monotonic() + timeout)
        return self

    def stop(self, timeout: float = 30.0) -> None:
        """Controlled shutdown; a request right after start can get lost, so ask again."""
        deadline = time.monotonic() + timeout
        while self._process is not None and self.running:
            if time.monotonic() > deadline:
                self.kill()
                return
            os.kill(self.pid, signal.SIGTERM)
            try:
                self._process.wait(1.0)
            except subprocess.TimeoutExpired:
                continue
        atexit.unregister(self.kill)
        self._process = None

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
        atexit.unregister(self.kill)
        self._process = None

    def pause(self) -> None:
        """Freeze the broker: a peer that hangs instead of refusing."""
        suspend(self.pid)

    def unpause(self) -> None:
        """Let a frozen broker go on."""
        os.kill(self.pid, signal.SIGCONT)

    def restart(self) -> KafkaBroker:
        """Stop, then start on the same port and data."""
        self.stop()
        return self.start()

    # ------------------------------------------------------------------ topics and messages

    def admin(self) -> AdminClient:
        """An admin client on the plain listener."""
        return AdminClient({"bootstrap.servers": self.bootstrap})

    def create_topic(self, name: str, partitions: int = 1, **config: str) -> None:
        """Make a topic and wait until it is there."""
        topic = NewTopic(name, partitions, 1, config=dict(config))
        admin = self.admin()  # must outlive the futures
        for future in admin.create_topics([topic]).values():
            future.result(30)

    def topics(self) -> dict[str, int]:
        """Topics (not the broker's own) and how many partitions each has."""
        found = self.admin().list_topics(timeout=30).topics
        return {
            name: len(topic.partitions)
            for name, topic in found.items()
            if not name.startswith("__")
        }

    def end(self, topic: str, partition: int = 0) -> int:
        """The offset behind everything in a partition, also what is not committed."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": "tests",
                "isolation.level": "read_uncommitted",
            }
        )
        try:
            return int(consumer.get_watermark_offsets(TopicPartition(topic, partition))[1])
        finally:
            consumer.close()

    def messages(self, topic: str, count: int | None = None, timeout: float = 30.0) -> list[Record]:
        """Everything in a topic in order of partition and offset, aborted messages left out.

        With ``count`` it waits until so many are there (and returns all it then has);
        without, it reads up to the ends the partitions have now.

        Raises:
            TimeoutError: fewer than ``count`` came in ``timeout`` seconds.
        """
        deadline = time.monotonic() + timeout
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": "tests",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
            }
        )
        try:
            records = _read(consumer, topic, count, deadline)
        finally:
            consumer.close()
        return sorted(records, key=lambda record: (record.partition, record.offset))

    # ------------------------------------------------------------------ details

    def _properties(self, data: Path) -> dict[str, str]:
        listeners = ",".join(f"{n}://{self._address(n)}" for n in self.ports)
        advertised = ",".join(f"{n}://{self._address(n)}" for n in self.ports if n != "CONTROLLER")
        properties = {
            **_SETTINGS,
            "controller.quorum.voters": f"1@{self._address('CONTROLLER')}",
            "listeners": listeners,
            "advertised.listeners": advertised,
            "log.dirs": str(data),
        }
        if self.secure:
            properties |= _security(self.certificates)
        return properties | self.settings

    def _wait_ready(self, seen: int, deadline: float) -> None:
        while True:
            log = self.log_file.read_bytes()[seen:]
            if b"Kafka Server started" in log and _listens(self._host, self.ports["PLAINTEXT"]):
                return
            if not self.running or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"Kafka did not start\n{log[-3000:].decode(errors='replace')}")
            time.sleep(0.05)


def _read(consumer: Consumer, topic: str, count: int | None, deadline: float) -> list[Record]:
    partitions: list[int] = []
    while not partitions:
        known = consumer.list_topics(topic, timeout=10).topics.get(topic)
        if known is not None and known.error is None:
            partitions = list(known.partitions)
        elif count is None:
            return []
        elif time.monotonic() > deadline:
            raise TimeoutError(f"topic {topic} does not exist")
        else:
            time.sleep(0.05)
    consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in partitions])
    records: list[Record] = []
    at_end: set[int] = set()
    while len(at_end) < len(partitions) or (count is not None and len(records) < count):
        if time.monotonic() > deadline:
            raise TimeoutError(f"topic {topic}: {len(records)} messages, wanted {count}")
        for message in consumer.consume(500, timeout=0.1):
            error = message.error()
            if error is None:
                records.append(_record(message))
                at_end.discard(message.partition() or 0)
            elif error.name() == "_PARTITION_EOF":
                at_end.add(message.partition() or 0)
            elif not error.retriable():
                raise KafkaException(error)
    return records


def _record(message: Message) -> Record:
    headers = message.headers() or []
    pairs = headers.items() if isinstance(headers, dict) else headers
    return Record(
        topic=message.topic() or "",
        partition=message.partition() or 0,
        offset=message.offset() or 0,
        key=message.key(),
        value=message.value(),
        headers=tuple((n, v.encode() if isinstance(v, str) else v) for n, v in pairs),
        timestamp_ms=message.timestamp()[1],
    )


def _libraries() -> Path:
    """The broker's jars. Two remarks on the list:

    4.4.0 names kafka-tools-api, which is not in the repository and which a broker does not
    need; without a binding for slf4j the broker logs nothing.
    """
    wanted = [
        Artifact("org.apache.kafka", "kafka_2.13", VERSION),
        Artifact("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.5"),
    ]
    return resolve(f"kafka-{VERSION}", wanted, exclude=("org.apache.kafka:kafka-tools-api",))


def _jvm(folder: Path) -> list[str | Path]:
    logging = folder / "log4j2.yaml"
    logging.write_text(_LOGGING)
    return [
        find_java().executable,
        "-Xms128m",
        "-Xmx512m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        f"-Dlog4j2.configurationFile={logging}",
        "-cp",
        f"{_libraries()}/*",
    ]


def _formatted_data() -> Path:
    """A freshly formatted data folder with the users in it, to be copied (formatting costs a
    JVM of its own)."""

    def make(partial: Path) -> None:
        data = partial / "data"
        properties = partial / "server.properties"
        quorum = {"controller.quorum.voters": "1@127.0.0.1:1", "log.dirs": str(data)}
        listeners = "PLAINTEXT://127.0.0.1:2,CONTROLLER://127.0.0.1:1"
        advertised = {"listeners": listeners, "advertised.listeners": "PLAINTEXT://127.0.0.1:2"}
        properties.write_text(_properties_text({**_SETTINGS, **quorum, **advertised}))
        command = [*_jvm(partial), "kafka.tools.StorageTool", "format"]
        command += ["-t", _CLUSTER_ID, "-c", properties]
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
            command += ["--add-scram", f"{mechanism}=[name={USER},password={PASSWORD}]"]
        run = subprocess.run(command, capture_output=True, text=True, timeout=120)
        if run.returncode != 0:
            raise RuntimeError(f"formatting failed\n{run.stdout}{run.stderr}")

    return made_once(readable_root() / f"kafka-{VERSION}-formatted", make) / "data"


def _security(certificates: Path) -> dict[str, str]:
    settings: dict[str, str] = {}
    for listener in ("tls", "sasltls"):
        prefix = f"listener.name.{listener}.ssl"
        settings |= {
            f"{prefix}.keystore.type": "PEM",
            f"{prefix}.keystore.location": str(certificates / "server-keystore.pem"),
            f"{prefix}.truststore.type": "PEM",
            f"{prefix}.truststore.location": str(certificates / "ca.pem"),
            f"{prefix}.client.auth": "requested",
        }
    plain = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    for listener in ("sasl", "sasltls"):
        prefix = f"listener.name.{listener}"
        settings |= {
            f"{prefix}.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
            f"{prefix}.plain.sasl.jaas.config": f'{plain} user_{USER}="{PASSWORD}";',
            f"{prefix}.scram-sha-256.sasl.jaas.config": scram,
            f"{prefix}.scram-sha-512.sasl.jaas.config": scram,
        }
    return settings


def _properties_text(properties: Mapping[str, str]) -> str:
    return "".join(f"{name}={value}\n" for name, value in properties.items())


def _environment() -> dict[str, str]:
    return {name: os.environ[name] for name in ("PATH", "JAVA_HOME") if name in os.environ}


def _listens(host: str, port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((host, port)) == 0
