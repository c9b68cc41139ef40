"""The commands of the examples' pages, typed into a shell as they stand.

Only the addresses are those of the test's servers, ``changefeed start`` gets its second terminal,
and psql, curl, DuckDB's shell and Kafka's console consumer are programs of a few lines that do what
the page uses them for. ``bq`` alone is not typed: Google's client speaks to no emulator.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from changefeed.embedded.server import free_port
from tests.docs.blocks import blocks
from tests.helpers.waiting import until
from tests.services.bigquery import BigQueryEmulator
from tests.services.elasticsearch import Elasticsearch
from tests.services.kafka import KafkaBroker
from tests.services.postgres import Database, PostgresCluster

ROOT = Path(__file__).parents[2]
_TIMESTAMP = re.compile(r"\b\d{19}\.\d{10}\b")

pytestmark = [pytest.mark.e2e, pytest.mark.postgres, pytest.mark.extended]

CHANGEFEED = """
import sys
from shell.cli import main
sys.exit(main())
"""

#: psql URI -f FILE, or -c SQL: each statement a transaction, unless the file says otherwise.
PSQL = """
import sys
from pathlib import Path
import psycopg
from grammar.split import split
uri, option, text = sys.argv[1:]
with psycopg.connect(uri, autocommit=True) as connection:
    for piece in split({"-f": lambda: Path(text).read_text(), "-c": lambda: text}[option]()):
        connection.execute(piece.text)
"""

#: kafka-console-consumer.sh --bootstrap-server ADDRESS --topic NAME --from-beginning, up to the end
#: that the topic has now.
CONSUMER = """
import sys
from confluent_kafka import Consumer, TopicPartition
_, server, _, topic, beginning = sys.argv[1:]
assert beginning == "--from-beginning"
consumer = Consumer({"bootstrap.servers": server, "group.id": "console"})
for partition in consumer.list_topics(topic, 30).topics[topic].partitions:
    first, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), 30)
    consumer.assign([TopicPartition(topic, partition, first)])
    for _ in range(end - first):
        print(consumer.poll(30).value().decode())
consumer.close()
"""

#: curl URL, of a server without TLS.
CURL = """
import sys
from urllib.request import urlopen
print(urlopen("http://" + sys.argv[1], timeout=30).read().decode())
"""

#: duckdb FILE -c SQL, a row a line.
DUCKDB = """
import sys
import duckdb
file, option, sql = sys.argv[1:]
assert option == "-c"
for row in duckdb.connect(file, read_only=True).sql(sql).fetchall():
    print(row)
"""


class Typist:
    """Types the lines of a page into bash, in a folder with the examples."""

    def __init__(self, folder: Path, places: dict[str, str]) -> None:
        """``places``: what the page calls a place, and where it is here."""
        self._places = places
        programs = folder / "bin"
        programs.mkdir()
        for name, code in (
            ("changefeed", CHANGEFEED),
            ("psql", PSQL),
            ("kafka-console-consumer.sh", CONSUMER),
            ("curl", CURL),
            ("duckdb", DUCKDB),
        ):
            file = programs / name
            file.write_text(f"#!{sys.executable}{code}")
            file.chmod(0o700)
        python = programs / "python"
        python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        python.chmod(0o700)
        self._folder = folder / "repository"
        shutil.copytree(ROOT / "examples", self._folder / "examples")
        for script in self._folder.rglob("*.sql"):
            script.write_text(self._here(script.read_text()))
        self._environment = {
            **os.environ,
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "CHANGEFEED_STATE": str(folder / "state"),
        }
        self._log = folder / "node.log"
        self.told = ""

    def type(self, line: str) -> str:
        """What a line writes to standard output; it must end well. What it writes to standard
        error is in :attr:`told`."""
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", self._here(line)],
            cwd=self._folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}\n{self._said()}"
        self.told = done.stderr
        return done.stdout

    @contextmanager
    def second_terminal(self, line: str, *, crash: bool = False) -> Iterator[None]:
        """A line that runs until Ctrl-C, or with ``crash`` until Ctrl-\\."""
        with self._log.open("w") as log:
            process = subprocess.Popen(
                shlex.split(self._here(line), comments=True),
                cwd=self._folder,
                env=self._environment,
                stderr=log,
            )
            try:
                until(lambda: "started" in self._said())
                yield
            finally:
                process.send_signal(signal.SIGQUIT if crash else signal.SIGTERM)
                process.wait(60)
        assert process.returncode == (-signal.SIGQUIT if crash else 0), self._said()

    @contextmanager
    def background(self, line: str) -> Iterator[Path]:
        """A line that ends with ``&``: what it writes, until the block ends."""
        written = self._folder / "background.log"
        with written.open("w") as log:
            process = subprocess.Popen(
                shlex.split(self._here(line.removesuffix("&"))),
                cwd=self._folder,
                env=self._environment,
                stdout=log,
            )
            try:
                yield written
            finally:
                process.terminate()
                process.wait(60)

    def _said(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    def _here(self, line: str) -> str:
        for place, here in self._places.items():
            line = line.replace(place, here)
        return line


def typed(page: str, typist: Typist) -> str:
    """Type the commands of an example's page; what the last one wrote."""
    block = next(block for block in blocks(page) if block.language == "sh")
    lines = [line for line in block.text.splitlines() if not line.endswith("&")]
    [node] = [line for line in lines if line.startswith("changefeed start")]
    before, after = lines[: lines.index(node)], lines[lines.index(node) + 1 :]
    for line in before:
        typist.type(line)
    with typist.second_terminal(node):
        return [typist.type(line) for line in after][-1]


def masked(text: str) -> list[str]:
    """Lines in an order of their own, timestamps of this run replaced."""
    return sorted(_TIMESTAMP.sub("<ts>", text).splitlines())


def test_files(tmp_path: Path, postgres: Database) -> None:
    data = tmp_path / "data"
    places = {"postgresql://app:pw@localhost/plant": postgres.uri, "/data": str(data)}
    shown = typed("examples/files/README.md", Typist(tmp_path, places))
    expected = ROOT / "examples" / "files" / "expected"
    wanted = "".join(file.read_text() for file in expected.glob("*.ndjson"))
    assert masked(shown) == masked(wanted)


@pytest.mark.kafka
def test_kafka(tmp_path: Path, postgres: Database, kafka: KafkaBroker) -> None:
    places = {
        "postgresql://app:pw@localhost/bank": postgres.uri,
        "localhost:9092": kafka.bootstrap,
    }
    shown = typed("examples/kafka/README.md", Typist(tmp_path, places))
    expected = ROOT / "examples" / "kafka" / "expected" / "bank_accounts.txt"
    values = [line.partition("\t")[2] for line in expected.read_text().splitlines()]
    rows = "\n".join(line for line in shown.splitlines() if '"resolved"' not in line)
    assert masked(rows) == sorted(values)


@pytest.mark.kafka
def test_outbox(tmp_path: Path, postgres: Database, kafka: KafkaBroker) -> None:
    places = {
        "postgresql://app:pw@localhost/store": postgres.uri,
        "localhost:9092": kafka.bootstrap,
        "store_": "typed_store_",
    }
    shown = typed("examples/outbox/README.md", Typist(tmp_path, places))
    expected = ROOT / "examples" / "outbox" / "expected" / "store_order_events.txt"
    values = [line.partition("\t")[2] for line in expected.read_text().splitlines()]
    assert shown.splitlines() == values


def test_queries(tmp_path: Path, postgres: Database) -> None:
    places = {"postgresql://app:pw@localhost/shop": postgres.uri, "/data": str(tmp_path / "data")}
    shown = typed("examples/queries/README.md", Typist(tmp_path, places))
    expected = ROOT / "examples" / "queries" / "expected"
    wanted = "".join(file.read_text() for file in expected.glob("*.ndjson"))
    assert masked(shown) == masked(wanted)


def test_warehouse(tmp_path: Path, postgres: Database) -> None:
    (tmp_path / "data").mkdir()
    places = {"postgresql://app:pw@localhost/sales": postgres.uri, "/data": str(tmp_path / "data")}
    shown = typed("examples/warehouse/README.md", Typist(tmp_path, places))
    expected = ROOT / "examples" / "warehouse" / "expected" / "customers.txt"
    assert sorted(shown.splitlines()) == sorted(expected.read_text().splitlines())


@pytest.mark.spark
@pytest.mark.everything  # test_examples.py has its statements and its rows
def test_lake(tmp_path: Path, postgres: Database) -> None:
    places = {"postgresql://app:pw@localhost/sales": postgres.uri, "/data": str(tmp_path / "data")}
    typist = Typist(tmp_path, places)
    typed("examples/lake/README.md", typist)
    told = typist.told
    assert "public.customers: equal" in told and "public.orders: equal" in told


@pytest.mark.elasticsearch
def test_elasticsearch(tmp_path: Path, postgres: Database, elasticsearch: Elasticsearch) -> None:
    places = {
        "postgresql://app:pw@localhost/store": postgres.uri,
        "localhost:9200": elasticsearch.address,
        "127.0.0.1:9200": elasticsearch.address,
    }
    shown = typed("examples/elasticsearch/README.md", Typist(tmp_path, places))
    found = {hit["_id"]: hit["_source"] for hit in json.loads(shown)["hits"]["hits"]}
    expected = ROOT / "examples" / "elasticsearch" / "expected" / "store_products.txt"
    wanted = dict(line.split("\t") for line in expected.read_text().splitlines())
    assert found == {key: json.loads(document) for key, document in wanted.items()}


def test_webhook(tmp_path: Path, postgres: Database) -> None:
    page = "examples/webhook/README.md"
    places = {"postgresql://app:pw@localhost/shop": postgres.uri, "8080": str(free_port())}
    typist = Typist(tmp_path, places)
    [receiver] = [line for b in blocks(page) for line in b.commands() if line.endswith("&")]
    with typist.background(receiver) as written:
        typed(page, typist)
        rows = [line.split(" ", 2) for line in written.read_text().splitlines()]
    assert {topic for topic, _, _ in rows} == {"orders"}
    last = {key: row for _, key, row in rows}
    assert last.pop("[2]") == "null"
    assert {key: json.loads(row)["customer"] for key, row in last.items()} == {"[1]": "ann"}


def test_copy(tmp_path: Path, postgres_server: Callable[..., PostgresCluster]) -> None:
    page = "examples/copy/README.md"
    with postgres_server().database() as movr, postgres_server().database() as analytics:
        places = {
            "postgresql://app:pw@localhost/movr": movr.uri,
            "postgresql://app:pw@localhost/analytics": analytics.uri,
            "/data": str(tmp_path / "data"),
        }
        typist = Typist(tmp_path, places)
        [block] = [b for b in blocks(page) if b.language == "sh"]
        *lines, load = block.commands()
        node = next(line for line in lines if line.startswith("changefeed start"))
        for line in lines[: lines.index(node)]:
            typist.type(line)
        analytics.execute("UPDATE tills SET taken = -1")
        with typist.second_terminal(node):
            typist.type(lines[-1])
            until(lambda: typist.type(load) == "1 buckets loaded\n", "a minute is over")
        assert analytics.execute("SELECT DISTINCT taken FROM tills") == [(0,)]


@pytest.mark.bigquery
def test_bigquery(tmp_path: Path, postgres: Database, bigquery: BigQueryEmulator) -> None:
    with bigquery.dataset() as name:
        places = {
            "postgresql://app:pw@localhost/sales": postgres.uri,
            "bigquery://my-project/sales?location=EU": bigquery.uri(name, "load_interval=0"),
        }
        typed("examples/bigquery/README.md", Typist(tmp_path, places))
        found = bigquery.query(f"SELECT * EXCEPT (_sequence_num) FROM {name}.customers ORDER BY id")
    expected = ROOT / "examples" / "bigquery" / "expected" / "customers.txt"
    assert [str(row) for row in found] == expected.read_text().splitlines()


@pytest.mark.kafka
def test_kafka_connect_in_an_hour(
    tmp_path: Path, postgres_server: Callable[..., PostgresCluster], kafka: KafkaBroker
) -> None:
    """The tutorial, with a slot and a publication in the place of the connector's."""
    server = postgres_server()
    with server.database() as store, server.database() as analytics:
        store.execute("create table orders (id int primary key, customer text, total numeric)")
        store.execute("insert into orders values (1, 'ann', 12.50), (2, 'bob', 7), (3, 'cy', 1)")
        store.execute("create publication dbz_publication for table orders")
        store.execute("select pg_create_logical_replication_slot('debezium', 'pgoutput')")
        places = {
            "postgresql://feeds:pw@localhost/store": store.uri,
            "postgresql://feeds:pw@localhost/analytics?": f"{analytics.uri}?",
            "localhost:9092": kafka.bootstrap,
        }
        typist = Typist(tmp_path, places)
        found = [b for b in blocks("docs/tutorial-kafka-connect.md") if b.language == "sh"]
        install, *lines = [line for block in found for line in block.commands()]
        assert install == "pip install changefeed"
        first, again = (n for n, line in enumerate(lines) if line == "changefeed start")
        shown, said = [], []

        def type_all(some: list[str]) -> None:
            for line in some:
                shown.append(typist.type(line))
                said.append(typist.told)

        type_all(lines[:first])
        with typist.second_terminal(lines[first], crash=True):
            type_all(lines[first + 1 : again - 1])
        type_all(lines[again - 1 : again])  # what is written while no node runs
        with typist.second_terminal(lines[again]):
            type_all(lines[again + 1 :])
        assert "".join(said).count("public.orders: equal") == 2
        assert [
            json.loads(line)["payload"]["op"]
            for text in shown
            for line in text.splitlines()
            if line.startswith('{"schema"')
        ] == ["r", "r", "r"]
        copied = analytics.execute("select id, customer from copy.orders order by id")
        assert copied == [(1, "ann"), (2, "bob"), (3, "cy"), (4, "dee")]
        assert store.execute(
            "select count(*) from pg_replication_slots where slot_name = 'debezium'"
        ) == [(0,)]
