"""The test servers do what the fixtures promise."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from clickhouse_connect.driver.exceptions import DatabaseError
from confluent_kafka import Producer
from google.api_core.exceptions import BadRequest, Conflict

from tests.services.bigquery import BigQueryEmulator
from tests.services.cache import server_folder
from tests.services.clickhouse import ClickHouseServer
from tests.services.kafka import PASSWORD, USER, KafkaBroker
from tests.services.postgres import MAJORS, Database, PostgresCluster
from tests.services.snowflake import SnowflakeEmulator


@pytest.mark.postgres
@pytest.mark.parametrize("postgres", MAJORS, indirect=True)
def test_every_major_decodes_logically(postgres: Database) -> None:
    server = postgres.server
    assert postgres.execute("show server_version")[0][0].startswith(f"{server.major}.")
    postgres.execute("select pg_create_logical_replication_slot('s', 'pgoutput')")
    assert postgres.slots() == ["s"]  # the fixture drops it with the database


@pytest.mark.postgres
def test_databases_are_fresh_and_dropped(postgres_server: object, postgres: Database) -> None:
    with postgres.server.database() as other:
        other.execute("create table t (a int)")
        assert postgres.execute("select to_regclass('t')") == [(None,)]
        name = other.name
    assert postgres.execute("select 1 from pg_database where datname = %s", [name]) == []


@pytest.mark.postgres
def test_killed_server_comes_back_with_its_data(own_postgres: PostgresCluster) -> None:
    with own_postgres.database() as database:
        database.execute("create table t (a int); insert into t values (7)")
        own_postgres.kill()
        with pytest.raises(psycopg.OperationalError):
            database.execute("select 1")
        own_postgres.start()
        assert database.execute("select a from t") == [(7,)]


@pytest.mark.postgres
def test_hba_lines_apply(own_postgres: PostgresCluster) -> None:
    own_postgres.execute("create user alice password 'secret'")
    own_postgres.set_hba("host all alice 127.0.0.1/32 scram-sha-256")
    uri = own_postgres.uri(user="alice")
    with pytest.raises(psycopg.OperationalError, match="no password supplied"):
        psycopg.connect(uri)
    with psycopg.connect(uri, password="secret") as connection:
        assert connection.execute("select current_user").fetchone() == ("alice",)


@pytest.mark.postgres
def test_server_dies_with_the_process_that_started_it(tmp_path: Path) -> None:
    script = textwrap.dedent(
        """
        import sys
        from tests.services.cache import server_folder
        from tests.services.postgres import PostgresCluster
        from pathlib import Path
        with server_folder("pg") as folder:
            print(PostgresCluster.make(16, folder).start().pid, flush=True)
            sys.stdin.read()
        """
    )
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    ) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        owner.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 60
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.kafka
def test_broker_takes_and_gives_messages(kafka: KafkaBroker, topic: str) -> None:
    kafka.create_topic(topic, partitions=3)
    _produce({"bootstrap.servers": kafka.bootstrap}, topic, 100)
    records = kafka.messages(topic, count=100)
    assert sorted(int(record.key or b"") for record in records) == list(range(100))
    assert kafka.topics()[topic] == 3
    assert kafka.messages("never_made") == []


@pytest.mark.extended
@pytest.mark.kafka
def test_killed_broker_comes_back_with_its_data(own_kafka: KafkaBroker, topic: str) -> None:
    _produce({"bootstrap.servers": own_kafka.bootstrap}, topic, 10)
    own_kafka.restart()
    assert len(own_kafka.messages(topic, count=10)) == 10
    own_kafka.kill()
    assert not own_kafka.running
    own_kafka.start()
    assert len(own_kafka.messages(topic, count=10)) == 10


@pytest.mark.kafka
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_sasl_logins(secure_kafka: KafkaBroker, topic: str, mechanism: str) -> None:
    login = {"sasl.mechanism": mechanism, "sasl.username": USER, "sasl.password": PASSWORD}
    _produce(
        {
            "bootstrap.servers": secure_kafka.sasl_bootstrap,
            "security.protocol": "SASL_PLAINTEXT",
            **login,
        },
        topic,
        5,
    )
    _produce(
        {
            "bootstrap.servers": secure_kafka.sasl_tls_bootstrap,
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(secure_kafka.certificates / "ca.pem"),
            **login,
        },
        topic,
        5,
    )
    assert len(secure_kafka.messages(topic, count=10)) == 10


@pytest.mark.kafka
def test_tls_with_a_client_certificate(secure_kafka: KafkaBroker, topic: str) -> None:
    folder = secure_kafka.certificates
    config = {
        "bootstrap.servers": secure_kafka.tls_bootstrap,
        "security.protocol": "SSL",
        "ssl.ca.location": str(folder / "ca.pem"),
        "ssl.certificate.location": str(folder / "client.pem"),
        "ssl.key.location": str(folder / "client.key"),
    }
    _produce(config, topic, 5)
    assert len(secure_kafka.messages(topic, count=5)) == 5
    assert os.stat(folder / "client.key").st_mode & 0o077 == 0


def _produce(config: dict[str, str], topic: str, count: int) -> None:
    producer = Producer({**config, "message.timeout.ms": "20000"})
    failed: list[object] = []
    for number in range(count):
        producer.produce(
            topic,
            key=str(number).encode(),
            value=b"v",
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
    assert producer.flush(30) == 0
    assert failed == []


@pytest.mark.bigquery
def test_bigquery_emulator_refuses_what_bigquery_refuses(bigquery: BigQueryEmulator) -> None:
    with bigquery.dataset() as name, bigquery.client() as client:
        client.create_dataset(name)
        bigquery.query(f"create table {name}.t (a int64, b string)")
        bigquery.query(f"insert {name}.t values (1, 'x')")
        twice = "(select 1 as a, v as b from unnest(['y', 'z']) as v)"
        merge = (
            f"merge {name}.t using {twice} as s on t.a = s.a when matched then update set b = s.b"
        )
        with pytest.raises(BadRequest, match="at most one source row"):
            bigquery.query(merge)
        client.query("select 1", job_id=f"{name}_once", job_retry=None).result()
        with pytest.raises(Conflict):
            client.query("select 1", job_id=f"{name}_once", job_retry=None)


@pytest.mark.bigquery
def test_bigquery_emulator_keeps_its_data(bigquery: BigQueryEmulator) -> None:
    with bigquery.dataset() as name:
        with bigquery.client() as client:
            client.create_dataset(name)
        bigquery.query(f"create table {name}.t as select 7 as a")
        bigquery.kill()
        assert not bigquery.ready()
        bigquery.start()
        assert bigquery.query(f"select a from {name}.t") == [(7,)]


@pytest.mark.snowflake
def test_snowflake_stand_in_takes_uploads(snowflake: SnowflakeEmulator, tmp_path: Path) -> None:
    database = snowflake.database()
    pq.write_table(pa.table({"A": [1, 2]}), tmp_path / "part.parquet")
    with snowflake.connect(database) as connection:
        run = connection.cursor().execute
        run("create table T (A number)")
        run("create temporary stage S")
        run(f"put 'file://{tmp_path}/part.parquet' @S auto_compress=false")
        run("copy into T from @S file_format=(type=parquet) match_by_column_name=case_sensitive")
        cursor = run("select A from T order by A")
        assert cursor is not None
        assert cursor.fetchall() == [(1,), (2,)]


@pytest.mark.clickhouse
def test_clickhouse_is_the_engine_behind_its_clients_protocol(clickhouse: ClickHouseServer) -> None:
    with clickhouse.database() as name, clickhouse.client() as client:
        client.command(f"CREATE DATABASE {name}")
        order = "ENGINE = ReplacingMergeTree(v) ORDER BY a"
        client.command(f"CREATE TABLE {name}.t (a Int32, b Nullable(String), v Int64) {order}")
        for version, text in ((2, "new ☃"), (1, "old\n'")):
            rows = pa.table({"a": pa.array([1], pa.int32()), "b": [text], "v": [version]})
            client.insert_arrow(f"{name}.t", rows)
        client.command(f"INSERT INTO {name}.t (a, v) VALUES (2, 1)")
        found = clickhouse.query(f"SELECT a, b FROM {name}.t FINAL ORDER BY a")
        assert found == [(1, "new ☃"), (2, None)]
        with pytest.raises(DatabaseError) as caught:
            client.query(f"SELECT missing FROM {name}.t", settings={"join_use_nulls": 1})
        assert caught.value.code == 47


@pytest.mark.clickhouse
def test_clickhouse_keeps_its_data() -> None:
    with server_folder("clickhouse") as folder:
        server = ClickHouseServer(folder)
        server.start()
        server.query("CREATE DATABASE d")
        server.query("CREATE TABLE d.t ENGINE = MergeTree ORDER BY a AS SELECT 7 AS a")
        server.kill()
        assert not server.ready()
        server.start()
        assert server.query("SELECT a FROM d.t") == [(7,)]
        server.stop()
