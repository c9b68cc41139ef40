"""Debezium's engine: its PostgreSQL connector into Kafka, on the broker we use ourselves.

    python -m benchmarks.peers.debezium drain --table narrow --rows 200000
    python -m benchmarks.peers.debezium scan --table narrow --rows 500000
    python -m benchmarks.peers.debezium latency --rate 100 --seconds 20

Each run starts a PostgreSQL and a Kafka of its own, prints rows a second, CPU seconds (user
and system) and memory of Debezium's JVM, and leaves nothing running. JSON without schemas,
no tombstones, decimals as text: as little work as it can be asked for. The connectors of MySQL
and MariaDB run in ``mysql_kafka``, ``mysql_capture`` and ``door``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from urllib.parse import urlsplit

import psutil
import psycopg
from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks.latency import Latencies, Ticks, measure, postgresql_ticks
from benchmarks.measure import Cost, Meter
from benchmarks.workload import WORKLOADS, Workload
from changefeed.embedded.child import spawn
from changefeed.spark.java import find_java
from tests.services.cache import server_folder
from tests.services.ivy import Artifact, resolve
from tests.services.kafka import KafkaBroker
from tests.services.mariadb import PASSWORD, USER
from tests.services.mysql import BinlogServer
from tests.services.postgres import Database, PostgresCluster

VERSION = "3.6.1.Final"
SOURCE = Path(__file__).with_name("DebeziumPeer.java")
SLOT = PUBLICATION = "debezium"
PREFIX = "dbz"

#: The newest version of each connector that can be had.
VERSIONS: Mapping[str, str] = {"postgres": VERSION, "mysql": VERSION, "mariadb": "3.5.0.Final"}

#: As little as it can be asked to do, and nothing that slows it down.
ENGINE: Mapping[str, str] = {
    "name": "peer",
    "offset.storage": "org.apache.kafka.connect.storage.MemoryOffsetBackingStore",
    "offset.flush.interval.ms": "1000",
    "topic.prefix": PREFIX,
    "decimal.handling.mode": "string",
    "tombstones.on.delete": "false",
    "converter.schemas.enable": "false",
    "key.converter.schemas.enable": "false",
    "value.converter.schemas.enable": "false",
    "peer.to": "kafka",
    "peer.format": "json",
}
#: Larger batches and queues, for throughput.
TUNED: Mapping[str, str] = {
    "max.batch.size": "16384",
    "max.queue.size": "65536",
    "poll.interval.ms": "50",
    "snapshot.fetch.size": "16384",
    "producer.linger.ms": "5",
    "producer.batch.size": "262144",
    "producer.buffer.memory": "134217728",
}


def chunked_snapshot(threads: int) -> dict[str, str]:
    """Debezium's newest initial snapshot: chunks of one table read by several threads."""
    return {
        "snapshot.mode": "initial_only",
        "snapshot.max.threads": str(threads),
        "snapshot.max.threads.multiplier": "4",
        "legacy.snapshot.max.threads": "false",
    }


@dataclass(frozen=True, slots=True)
class Connector:
    """One of Debezium's connectors: its module, the version, and its settings."""

    module: str
    properties: Mapping[str, str]
    version: str = ""

    @property
    def resolved_version(self) -> str:
        """The given version, else the newest."""
        return self.version or VERSIONS[self.module]


def of_postgresql(database: Database, *, version: str = "") -> Connector:
    """The connector of a PostgreSQL database, behind :data:`SLOT`."""
    address = urlsplit(database.uri)
    properties = {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "plugin.name": "pgoutput",
        "slot.name": SLOT,
        "publication.name": PUBLICATION,
        "publication.autocreate.mode": "disabled",
        "database.hostname": address.hostname or "",
        "database.port": str(address.port),
        "database.user": address.username or "",
        "database.password": "",
        "database.dbname": database.name,
    }
    return Connector("postgres", properties, version)


def of_binlog(
    server: BinlogServer, database: str, table: str, *, offset: str = "", version: str = ""
) -> Connector:
    """The connector of one table of a MySQL or MariaDB server.

    ``offset``: where it begins, as its JSON; it reads the definitions of tables as they are now.
    """
    kind = "MariaDb" if server.flavor == "mariadb" else "MySql"
    properties = {
        "connector.class": f"io.debezium.connector.{server.flavor}.{kind}Connector",
        "database.hostname": "127.0.0.1",
        "database.port": str(server.port),
        "database.user": USER,
        "database.password": PASSWORD,
        "database.server.id": "4711",
        "database.include.list": database,
        "table.include.list": f"{database}.{table}",
        "include.schema.changes": "false",
        "schema.history.internal": "io.debezium.relational.history.MemorySchemaHistory",
    }
    if offset:
        properties |= {
            "snapshot.mode": "recovery",
            "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
            # Compared byte by byte.
            "peer.partition": json.dumps({"server": PREFIX}, separators=(",", ":")),
            "peer.offset": offset,
        }
    return Connector(server.flavor, properties, version)


@dataclass(frozen=True, slots=True)
class Run:
    """Where a run takes place."""

    database: Database
    broker: KafkaBroker
    folder: Path


class Debezium:
    """The engine in a JVM of its own; ends with the ``with`` block."""

    def __init__(
        self, folder: Path, connector: Connector, settings: Mapping[str, str], *, heap: str = "2g"
    ) -> None:
        self.log_file = folder / "debezium.log"
        self.log_file.unlink(missing_ok=True)
        properties = {
            **ENGINE,
            "offset.storage.file.filename": str(folder / "debezium.offsets"),
            **connector.properties,
            **settings,
        }
        file = folder / "debezium.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        command: list[str | Path] = [find_java().executable, f"-Xmx{heap}"]
        # The compiler's own default is a class format without static methods in interfaces.
        command += ["-Dorg.codehaus.janino.UnitCompiler.defaultTargetVersion=8"]
        command += ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp"]
        command += [_class_path(connector)]
        command += ["org.codehaus.janino.SimpleCompiler", SOURCE, SOURCE.stem, file]
        self._process = spawn(
            command,
            log_file=self.log_file,
            environment={"PATH": os.environ.get("PATH", "")},
        )

    @property
    def pid(self) -> int:
        """Process id of the JVM."""
        return self._process.pid

    def wait_line(self, word: str, timeout: float) -> None:
        """Wait until the program has printed a line that is this word.

        Raises:
            TimeoutError: it has not in ``timeout`` seconds.
        """
        deadline = time.monotonic() + timeout
        while word not in self.log_file.read_text(errors="replace").splitlines():
            self.check()
            if time.monotonic() > deadline:
                raise TimeoutError(f"no {word!r} in {timeout:.0f} s")
            time.sleep(0.005)

    def check(self) -> None:
        """Raise when the JVM has ended before it was asked to."""
        if self._process.poll() not in (None, 0):
            raise RuntimeError(f"Debezium ended\n{self.log_file.read_text()[-3000:]}")

    def __enter__(self) -> Debezium:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)


class Counter:
    """Counts the messages of one topic by its ends, without reading them."""

    def __init__(self, broker: KafkaBroker, topic: str) -> None:
        self._consumer = Consumer(
            {"bootstrap.servers": broker.bootstrap, "group.id": "counter-" + topic}
        )
        self._topic = topic

    def count(self) -> int:
        """How many messages the topic has now."""
        known = self._consumer.list_topics(timeout=10).topics.get(self._topic)
        total = 0
        for partition in known.partitions if known else ():
            ends = self._consumer.get_watermark_offsets(TopicPartition(self._topic, partition))
            total += ends[1] - ends[0]
        return total

    def wait(
        self, count: int, check: Callable[[], None], timeout: float, *, pause: float = 0.02
    ) -> None:
        """Wait until there are ``count``, asking every ``pause`` seconds; ``check`` raises when
        nobody sends them any more.

        Raises:
            TimeoutError: they did not come in ``timeout`` seconds.
        """
        deadline = time.monotonic() + timeout
        while (now := self.count()) < count:
            check()
            if time.monotonic() > deadline:
                raise TimeoutError(f"{now:,} of {count:,} messages in {timeout:.0f} s")
            time.sleep(pause)

    def close(self) -> None:
        """End the client."""
        self._consumer.close()


# ------------------------------------------------------------------------------- the modes


def drain(run: Run, workload: Workload, rows: int, settings: Mapping[str, str]) -> Cost:
    """A backlog of ``rows`` changes behind a slot, until all are in Kafka."""
    with run.database.connect() as connection:
        workload.create(connection)
        connection.execute(f"create publication {PUBLICATION} for table {workload.table}")
        connection.execute(f"select pg_create_logical_replication_slot('{SLOT}', 'pgoutput')")
        workload.change(connection, rows)
    return timed(run, workload, rows, {"snapshot.mode": "no_data", **settings})


def scan(
    run: Run, workload: Workload, rows: int, settings: Mapping[str, str], threads: int = 2
) -> Cost:
    """An initial snapshot of ``rows`` rows, until all are in Kafka."""
    with run.database.connect() as connection:
        workload.create(connection, rows)
        connection.execute(f"create publication {PUBLICATION} for table {workload.table}")
    return timed(run, workload, rows, {**chunked_snapshot(threads), **settings})


def timed(run: Run, workload: Workload, rows: int, settings: Mapping[str, str]) -> Cost:
    """What the engine uses from its start until ``rows`` messages are in the topic."""
    name = f"public.{workload.table}"
    settings = {**settings, "table.include.list": name}
    return into_kafka(run.folder, run.broker, of_postgresql(run.database), name, rows, settings)


def into_kafka(
    folder: Path,
    broker: KafkaBroker,
    connector: Connector,
    table: str,
    rows: int,
    settings: Mapping[str, str],
) -> Cost:
    """What a connector uses from its start until ``rows`` messages are in the topic of a table
    (``schema.name``)."""
    counter = Counter(broker, f"{PREFIX}.{table}")
    settings = {**to_broker(broker), **settings}
    with Debezium(folder, connector, settings) as peer, Meter(peer.pid) as meter:
        counter.wait(1, peer.check, timeout=180)
        meter.first()
        counter.wait(rows, peer.check, timeout=3600)
    counter.close()
    return meter.cost


def to_broker(broker: KafkaBroker) -> dict[str, str]:
    """Settings of the producer."""
    return {"producer.bootstrap.servers": broker.bootstrap}


def dropped(
    folder: Path,
    connector: Connector,
    table: str,
    rows: int,
    settings: Mapping[str, str],
    *,
    form: str = "connect",
) -> Cost:
    """What a connector uses, once its program runs, until it gave ``rows`` records of a table
    (``schema.name``) to a consumer that drops them; ``form`` is ``connect``, the records as the
    connector made them, or ``json``."""
    ours = {
        "peer.to": "nothing",
        "peer.format": form,
        "peer.topic": f"{PREFIX}.{table}",
        "peer.rows": str(rows),
    }
    with Debezium(folder, connector, {**settings, **ours}) as peer:
        peer.wait_line("begun", timeout=120)
        with Meter(peer.pid) as meter:
            peer.wait_line("done", timeout=3600)
    return meter.cost


def latency(
    run: Run, rate: int, seconds: float, settings: Mapping[str, str]
) -> tuple[Latencies, Cost]:
    """From commit to a consumer, for single-row commits at a steady rate."""
    with postgresql_ticks(run.database.uri) as ticks:
        run.database.execute(f"create publication {PUBLICATION} for table ticks")
        run.database.execute(f"select pg_create_logical_replication_slot('{SLOT}', 'pgoutput')")
        settings = {"snapshot.mode": "no_data", "table.include.list": "public.ticks", **settings}
        return latency_of(
            run.folder,
            run.broker,
            of_postgresql(run.database),
            "public.ticks",
            ticks,
            rate,
            seconds,
            settings,
        )


def latency_of(
    folder: Path,
    broker: KafkaBroker,
    connector: Connector,
    table: str,
    ticks: Ticks,
    rate: int,
    seconds: float,
    settings: Mapping[str, str],
) -> tuple[Latencies, Cost]:
    """From commit to a consumer, for ticks of a table (``schema.name``) at a steady rate."""
    topic = f"{PREFIX}.{table}"
    broker.create_topic(topic)
    settings = {**to_broker(broker), **settings}
    with Debezium(folder, connector, settings) as peer, Meter(peer.pid) as meter:
        delays = measure(
            ticks,
            broker.bootstrap,
            topic,
            rate=rate,
            seconds=seconds,
            check=peer.check,
            steady=meter.steady,
        )
    return delays, meter.cost


# ------------------------------------------------------------------------------- programs


def _class_path(connector: Connector) -> str:
    """Debezium's jars, and the compiler among Spark's."""
    version = connector.resolved_version
    jars = resolve(
        f"debezium-{version}-peer-{connector.module}",
        [
            Artifact("io.debezium", "debezium-embedded", version),
            Artifact("io.debezium", f"debezium-connector-{connector.module}", version),
            Artifact("org.slf4j", "slf4j-simple", "1.7.36"),
        ],
    )
    spark = find_spec("pyspark")
    if spark is None or spark.origin is None:
        raise LookupError("pyspark is not installed")
    compiler = [
        str(next((Path(spark.origin).parent / "jars").glob(pattern)))
        for pattern in ("janino-*.jar", "commons-compiler-*.jar")
    ]
    return os.pathsep.join([f"{jars}/*", *compiler])


@contextmanager
def place() -> Iterator[Run]:
    """A PostgreSQL, a database in it, and a broker, for one run."""
    with broker_place() as (folder, broker), ExitStack() as stack:
        cluster = PostgresCluster.make(16, folder).start()
        stack.callback(cluster.stop)
        database = stack.enter_context(cluster.database())
        yield Run(database, broker, folder)


@contextmanager
def broker_place() -> Iterator[tuple[Path, KafkaBroker]]:
    """A folder and a broker, for one run."""
    with server_folder("peer") as folder:
        broker = KafkaBroker(folder / "kafka").start()
        try:
            _warm(broker)
            yield folder, broker
        finally:
            broker.stop()


def _warm(broker: KafkaBroker) -> None:
    """One idempotent message: what a fresh broker loads for it is nobody's cost."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
    producer.produce("warm", b"")
    producer.flush(60)


def main(words: list[str] | None = None) -> None:
    """Run one mode and print what it cost."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers.debezium")
    parser.add_argument("mode", choices=["drain", "scan", "latency"])
    parser.add_argument("--table", choices=sorted(WORKLOADS), default="narrow")
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--threads", type=int, default=psutil.cpu_count() or 2)
    parser.add_argument("--rate", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--defaults", action="store_true", help="without our tuning")
    given = parser.parse_args(words)
    settings = {} if given.defaults else TUNED
    workload = WORKLOADS[given.table]
    title = f"debezium {VERSION} {given.mode}{' (defaults)' if given.defaults else ''}"
    with place() as run:
        if given.mode == "latency":
            delays, cost = latency(run, given.rate, given.seconds, settings)
            print(f"{title}, {given.rate}/s: {delays}, {cost.share}")
            return
        if given.mode == "drain":
            cost = drain(run, workload, given.rows, settings)
        else:
            cost = scan(run, workload, given.rows, settings, given.threads)
        print(f"{title}, {given.table}, {given.rows:,} rows: {cost.per_row(given.rows)}")


if __name__ == "__main__":
    try:
        main()
    except psycopg.Error as error:
        raise SystemExit(f"benchmark failed: {error}") from error
