"""Fixtures every test may use. Servers are real, started at first use, shared by the run.

How to use them (mark the test, so that `make test-fast` leaves it out):

    @pytest.mark.postgres
    def test_it(postgres: Database) -> None:        # fresh database, PostgreSQL 16
        postgres.execute("create table t (a int primary key)")
        stream(postgres.uri)                        # postgresql://postgres@127.0.0.1:PORT/NAME
        with postgres.connect() as connection: ...  # psycopg, autocommit

    @pytest.mark.postgres
    @pytest.mark.parametrize("postgres", [14, 18], indirect=True)    # these majors instead
    def test_versions(postgres: Database) -> None: ...

    @pytest.mark.postgres
    def test_crash(own_postgres: PostgresCluster) -> None:   # a server of your own: kill(),
        with own_postgres.database() as db: ...              # start(), restart(), set_hba()

    @pytest.mark.kafka
    def test_sink(kafka: KafkaBroker, topic: str) -> None:   # shared broker, unused topic name
        produce(kafka.bootstrap, topic)
        assert [m.value for m in kafka.messages(topic, count=1)] == [b"x"]

    @pytest.mark.kafka
    def test_broker_loss(own_kafka: KafkaBroker) -> None:    # yours to stop(), kill(), start()

    @pytest.mark.elasticsearch
    def test_search(elasticsearch: Elasticsearch) -> None:   # shared server: indices of your own
        write(elasticsearch.uri)
        assert elasticsearch.documents("my_index")["1"] == {"a": 1}

    @pytest.mark.elasticsearch
    @pytest.mark.parametrize("elasticsearch", [8, 9], indirect=True)   # these majors instead
    def test_majors(elasticsearch: Elasticsearch) -> None: ...

    @pytest.mark.spark
    def test_encoding(spark_engine: NodeSpark) -> None:    # the run's one Spark; closing it
        spark_engine.session()                             # does nothing, so lend it to nodes

    @pytest.mark.spark
    def test_lake(hdfs: Hdfs, spark_engine: NodeSpark) -> None:    # shared; `own_hdfs` is yours
        uri = hdfs.directory(spark_engine.session(), "name")       # to stop() and start()

    @pytest.mark.bigquery                                    # skips where it cannot be
    def test_load(bigquery: BigQueryEmulator) -> None:
        with bigquery.dataset() as name: ...                 # bigquery.uri(name), .query(sql)

    @pytest.mark.snowflake
    def test_stage(snowflake: SnowflakeEmulator) -> None:
        name = snowflake.database()                          # .uri(name), .query(name, sql)

    @pytest.mark.clickhouse
    def test_rows(clickhouse: ClickHouseServer) -> None:
        with clickhouse.database() as name: ...              # clickhouse.uri(name), .query(sql)

    @pytest.mark.spanner                                     # on the emulator and on the fake
    def test_commits(spanner: SpannerServer) -> None:
        with spanner.database() as name: ...                 # spanner.uri(name), .query(name, sql)

    @pytest.mark.parametrize("store", ["s3", "gcs", "azure"], indirect=True)
    def test_put(store: ObjectStore) -> None:                # object stores, each also a fixture
        store.bucket("mine")                                 # store.uri("mine/x"), .download(..)

`secure_kafka` is a shared broker with TLS and SASL listeners (see tests/services/kafka.py),
`own_postgres_factory(major, **settings)` makes servers with settings of your choice, `java`
is the path of a java program. Types are in `tests.services.postgres` and `.kafka`.
"""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, _GeneratorContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest
from hypothesis import settings
from xdist.remote import Producer

from changefeed.core.engines import EngineOption
from changefeed.core.errors import ChangefeedError
from changefeed.core.spark_jobs import JobGroup
from changefeed.embedded.account import server_account
from changefeed.spark import packs
from changefeed.spark.java import find_java
from changefeed.spark.session import NodeSpark
from tests import selection, workers
from tests.services.azure import AzureServer
from tests.services.bigquery import BigQueryEmulator
from tests.services.cache import cache_root, server_folder
from tests.services.clickhouse import ClickHouseServer
from tests.services.elasticsearch import DEFAULT_MAJOR as ELASTICSEARCH_MAJOR
from tests.services.elasticsearch import Elasticsearch, OpenSearch
from tests.services.gcs import GcsServer
from tests.services.hdfs import Hdfs
from tests.services.kafka import KafkaBroker
from tests.services.mariadb import MariaDB
from tests.services.mysql import SERVERS, BinlogServer
from tests.services.postgres import DEFAULT_MAJOR, Database, PostgresCluster
from tests.services.python import Unavailable
from tests.services.registry import FakeRegistry, Registry
from tests.services.s3 import S3Server
from tests.services.snowflake import SnowflakeEmulator
from tests.services.spanner import SpannerServer
from tests.services.spark_cluster import SparkCluster
from tests.services.stores import ObjectStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# How long an example takes says nothing: the machine is busy with other tests.
settings.register_profile("tests", deadline=None)
settings.load_profile("tests")

PostgresFactory = Callable[..., PostgresCluster]
ElasticsearchFactory = Callable[[int], Elasticsearch]
Server = TypeVar("Server")

# Tests start hundreds of Python processes of ours; each would recompile all modules, which takes
# a third of their start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# HotSpot's second compiler is half of the CPU of a JVM's first minute: to start Spark, make a Delta
# table, merge into it three times and read it takes 56 s of CPU with it and 28 s without. Without
# it, 48 MB are reserved for compiled code. Spark fills them in a few minutes; from then on HotSpot
# throws code away that it has to compile again.
os.environ.setdefault(
    "JDK_JAVA_OPTIONS",
    "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC",
)

# Jars of Spark's packs are downloaded once, into the cache of the tests.
os.environ.setdefault("CHANGEFEED_JARS", str(cache_root() / "spark-jars"))


def pytest_configure() -> None:
    """Programs under test get Ctrl-C and Ctrl-\\, also in a run that was started in the background:
    what a shell starts there ignores them, and so would its children."""
    for number in (signal.SIGINT, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            usual = signal.default_int_handler if number is signal.SIGINT else signal.SIG_DFL
            signal.signal(number, usual)


def pytest_report_header() -> str | None:
    """Which share of the second half runs."""
    share = selection.share()
    return share and f"extended tests: share {share[0]} of {share[1]}"


@pytest.hookimpl(tryfirst=True)  # before pytest leaves out what -m does
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Say which half of the tests each belongs to; on a worker, begin with the long ones."""
    items[:], rest = selection.split(items)
    selection.select(items)
    items[:], elsewhere = selection.in_share(items)
    config.hook.pytest_deselected(items=[*rest, *elsewhere])
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: workers.rank(item.nodeid))


@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> workers.ByServer | None:
    """With ``--dist loadfile`` the files that use one server share a worker, too."""
    return workers.ByServer(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.fixture(scope="session")
def java() -> Path:
    """A java program, 17 or newer."""
    return find_java().executable


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresFactory]:
    """``postgres_server(major)``: the run's shared server of that major version."""
    with ExitStack() as stack:
        running: dict[int, PostgresCluster] = {}

        def of_major(major: int = DEFAULT_MAJOR) -> PostgresCluster:
            if major not in running:
                folder = stack.enter_context(server_folder(f"pg{major}"))
                cluster = PostgresCluster.make(major, folder)
                running[major] = cluster.start()
                stack.callback(cluster.stop)
            return running[major]

        yield of_major


@pytest.fixture
def postgres(
    request: pytest.FixtureRequest, postgres_server: PostgresFactory
) -> Iterator[Database]:
    """A fresh database; on another major version by indirect parametrization."""
    with postgres_server(getattr(request, "param", DEFAULT_MAJOR)).database() as database:
        yield database


@pytest.fixture
def own_postgres_factory() -> Iterator[PostgresFactory]:
    """``own_postgres_factory(major, **settings)``: a started server for this test alone."""
    with ExitStack() as stack:

        def make(major: int = DEFAULT_MAJOR, **settings: str) -> PostgresCluster:
            folder = stack.enter_context(server_folder(f"pg{major}"))
            cluster = PostgresCluster.make(major, folder, settings).start()
            stack.callback(cluster.stop)
            return cluster

        yield make


@pytest.fixture
def own_postgres(
    request: pytest.FixtureRequest, own_postgres_factory: PostgresFactory
) -> PostgresCluster:
    """A server for this test alone."""
    return own_postgres_factory(getattr(request, "param", DEFAULT_MAJOR))


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaBroker]:
    """The run's shared broker. Do not stop it: others use it."""
    with server_folder("kafka") as folder:
        broker = KafkaBroker(folder).start()
        yield broker
        broker.stop()


@pytest.fixture(scope="session")
def secure_kafka() -> Iterator[KafkaBroker]:
    """A shared broker with TLS and SASL listeners beside the plain one."""
    with server_folder("kafka") as folder:
        broker = KafkaBroker(folder, secure=True).start()
        yield broker
        broker.stop()


@pytest.fixture
def own_kafka() -> Iterator[KafkaBroker]:
    """A broker for this test alone, to stop, kill and start again."""
    with server_folder("kafka") as folder:
        broker = KafkaBroker(folder).start()
        yield broker
        broker.kill()


def or_skip(make: Callable[[], Server]) -> Server:
    """A server; where its packages cannot be had, the tests that want it are skipped."""
    try:
        return make()
    except Unavailable as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def debezium_jars() -> None:
    """The jars of Debezium's connectors for the databases of the tests; where the registry does not
    serve one of them, the tests that want them are skipped with its name."""
    _jars_of("debezium-mysql", "debezium-mariadb", "debezium-postgresql")


@pytest.fixture(scope="session")
def mongodb_jars() -> None:
    """The jars of Debezium's connector for MongoDB."""
    _jars_of("debezium-mongodb")


def _jars_of(*connectors: str) -> None:
    def have() -> None:
        try:
            packs.paths(["debezium", *connectors])
        except ChangefeedError as missing:
            if "module not found" not in missing.detail:
                raise
            raise Unavailable(f"Debezium: {missing.detail}") from missing

    or_skip(have)


@pytest.fixture(scope="session")
def bigquery() -> Iterator[BigQueryEmulator]:
    """The run's shared BigQuery emulator."""
    with server_folder("bigquery") as folder:
        emulator = or_skip(lambda: BigQueryEmulator(folder))
        emulator.start()
        yield emulator
        emulator.stop()


@pytest.fixture(scope="session")
def snowflake() -> Iterator[SnowflakeEmulator]:
    """The run's shared Snowflake stand-in."""
    with server_folder("snowflake") as folder:
        emulator = SnowflakeEmulator(folder)
        emulator.start()
        yield emulator
        emulator.stop()


@pytest.fixture(scope="session")
def clickhouse() -> Iterator[ClickHouseServer]:
    """The run's shared ClickHouse."""
    with server_folder("clickhouse") as folder:
        server = ClickHouseServer(folder)
        server.start()
        yield server
        server.stop()


@pytest.fixture(scope="session", params=["emulator", "fake"])
def spanner(request: pytest.FixtureRequest) -> Iterator[SpannerServer]:
    """The run's shared Spanner: Google's emulator, where there is one, and the fake."""
    with server_folder("spanner") as folder:
        server = or_skip(lambda: SpannerServer(folder, real=request.param == "emulator"))
        server.start()
        yield server
        server.stop()


@pytest.fixture(scope="session")
def elasticsearch_server() -> Iterator[ElasticsearchFactory]:
    """``elasticsearch_server(major)``: the run's shared server of that major version."""
    with ExitStack() as stack:
        running: dict[int, Elasticsearch] = {}

        def of_major(major: int) -> Elasticsearch:
            if major not in running:
                folder = stack.enter_context(server_folder("elasticsearch"))
                running[major] = Elasticsearch(folder, major=major).start()
                stack.callback(running[major].stop)
            return running[major]

        yield of_major


@pytest.fixture
def elasticsearch(
    request: pytest.FixtureRequest, elasticsearch_server: ElasticsearchFactory
) -> Elasticsearch:
    """The run's shared Elasticsearch; another major version by indirect parametrization.

    Do not stop it: others use it.
    """
    return elasticsearch_server(getattr(request, "param", ELASTICSEARCH_MAJOR))


@pytest.fixture(scope="session")
def opensearch() -> Iterator[OpenSearch]:
    """The run's shared OpenSearch, which is what a sink for Elasticsearch has to turn away."""
    with server_folder("opensearch") as folder:
        server = OpenSearch(folder)
        server.start()
        yield server
        server.stop()


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariaDB]:
    """The run's shared MariaDB; make a database of your own."""
    with server_folder("mariadb") as folder:
        server = MariaDB(folder).start()
        yield server
        server.stop()


@pytest.fixture(scope="session")
def binlog_servers() -> Iterator[Callable[..., BinlogServer]]:
    """Servers with a row binlog: ``get("mariadb")``, ``get("mysql8")``; each starts once.

    Another number is another server of the kind, whose log has other transactions.
    """
    with ExitStack() as stack:
        started: dict[tuple[str, int], BinlogServer] = {}

        def get(kind: str, number: int = 1) -> BinlogServer:
            if (kind, number) not in started:
                folder = stack.enter_context(server_folder(kind))
                try:
                    server = SERVERS[kind](folder, f"--server-id={number}").start()
                except Unavailable as reason:
                    pytest.skip(str(reason))
                stack.callback(server.stop)
                started[kind, number] = server
            return started[kind, number]

        yield get


@pytest.fixture
def binlog_server(
    request: pytest.FixtureRequest, binlog_servers: Callable[..., BinlogServer]
) -> BinlogServer:
    """The run's shared MariaDB or MySQL with a row binlog; make a database of your own."""
    return binlog_servers(getattr(request, "param", "mariadb"))


@pytest.fixture
def other_binlog_server(
    binlog_server: BinlogServer, binlog_servers: Callable[..., BinlogServer]
) -> BinlogServer:
    """Another server of the same kind."""
    return binlog_servers(binlog_server.kind, 2)


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    """The run's shared S3 server (moto); make a bucket or use a prefix of your own."""
    with server_folder("s3") as folder:
        server = S3Server(folder).start()
        yield server
        server.stop()


@pytest.fixture(scope="session")
def hdfs() -> Iterator[Hdfs]:
    """The run's shared HDFS; use a directory of your own, and do not stop it."""
    with server_folder("hdfs") as folder:
        server = Hdfs(folder).start()
        yield server
        server.stop()


@pytest.fixture
def own_hdfs() -> Iterator[Hdfs]:
    """An HDFS for this test alone, to stop and start again."""
    with server_folder("hdfs") as folder:
        server = Hdfs(folder).start()
        yield server
        server.stop()


@pytest.fixture(scope="session")
def gcs() -> Iterator[GcsServer]:
    """The run's shared Google Cloud Storage (fake-gcs-server); make a bucket of your own."""
    with server_folder("gcs") as folder:
        server = or_skip(lambda: GcsServer(folder))
        server.start()
        yield server
        server.stop()


@pytest.fixture(scope="session")
def azure() -> Iterator[AzureServer]:
    """The run's shared Azure Blob Storage (Azurite); make a container of your own."""
    with server_folder("azure") as folder:
        server = or_skip(lambda: AzureServer(folder))
        server.start()
        yield server
        server.stop()


@pytest.fixture(scope="session")
def store(request: pytest.FixtureRequest) -> ObjectStore:
    """One of ``s3``, ``gcs`` and ``azure``, by indirect parametrization."""
    found: ObjectStore = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="session")
def schema_registry() -> Iterator[Registry]:
    """The run's shared schema registry (Apicurio; compatibility BACKWARD)."""
    with server_folder("registry") as folder:
        registry = Registry(folder).start()
        yield registry
        registry.kill()


@pytest.fixture
def fake_registry() -> Iterator[FakeRegistry]:
    """A schema registry in this process, for this test alone."""
    with FakeRegistry() as registry:
        yield registry


class LentSpark(NodeSpark):
    """Spark for all tests of the run: whoever closes it gives it back only.

    Attributes:
        jobs: the groups of the jobs of scans and backlogs so far.
    """

    jobs: list[str]

    def use(
        self, group: JobGroup | None = None, *, packs: Sequence[str] = ()
    ) -> _GeneratorContextManager[SparkSession, None, None]:
        """The session; a group of jobs is noted."""
        if group is not None:
            self.jobs.append(group if isinstance(group, str) else group.group)
        return super().use(group, packs=packs)

    @contextmanager
    def preferring(self, engine: EngineOption, least_job_rows: int) -> Iterator[None]:
        """For a block, bulk work of feeds runs there, if it has so many rows."""
        before = self.preferred, self.least_job_rows
        self.preferred, self.least_job_rows = engine, least_job_rows
        try:
            yield
        finally:
            self.preferred, self.least_job_rows = before

    def close(self) -> None:
        """Nothing: the fixture ends it."""

    def really_close(self) -> None:
        """End the JVM."""
        super().close()


@pytest.fixture(scope="session")
def spark_cluster() -> Iterator[SparkCluster]:
    """The run's standalone Spark cluster: a master and two workers as processes."""
    with server_folder("spark-cluster") as folder:
        cluster = SparkCluster(folder).start()
        yield cluster
        cluster.stop()


@pytest.fixture(scope="session")
def remote_spark() -> Iterator[SparkCluster]:
    """A standalone cluster whose executors see no private file of the driver's user: they run under
    an account of their own."""
    if os.geteuid() != 0:
        pytest.skip("only root starts processes under another account")
    with server_folder("remote-spark") as folder:
        cluster = SparkCluster(folder, account=server_account()).start()
        yield cluster
        cluster.stop()


@pytest.fixture(scope="session")
def spark_engine() -> Iterator[NodeSpark]:
    """The run's one Spark engine, starting in the background from its first use on."""
    formats = [name for name in ("delta", "iceberg") if name in packs.packs()]
    engine = LentSpark(heap="2g", packs=formats)
    engine.jobs = []
    engine.start()
    yield engine
    engine.really_close()


_topic_numbers = itertools.count(1)


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic name no other test uses."""
    name = "".join(c if c.isalnum() else "_" for c in request.node.name)
    return f"{name[:100]}_{next(_topic_numbers)}"
