"""Every example does what its ``expected`` folder says, on real servers.

``pytest tests/e2e/test_examples.py tests/golden/test_language.py --rewrite`` writes the folders
again; read the difference.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from changefeed.spark.session import NodeSpark
from grammar.split import split
from tests.e2e.feeds import Feeds, running
from tests.helpers.duckdb_file import opened
from tests.helpers.lake import Lake, unused_catalog
from tests.helpers.waiting import until
from tests.services.cache import server_folder
from tests.services.elasticsearch import Elasticsearch
from tests.services.kafka import KafkaBroker
from tests.services.postgres import Database

EXAMPLES = Path(__file__).parents[2] / "examples"
GOLDEN = Path(__file__).parents[1] / "golden"
_TIMESTAMP = re.compile(r"\b\d{19}\.\d{10}\b")

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.postgres]


def masked(text: bytes | None) -> str:
    """Text with timestamps of this run replaced."""
    return _TIMESTAMP.sub("<ts>", (text or b"").decode())


def play(database: Database, file: Path) -> None:
    """Run a file as psql does: each statement a transaction, unless the file says otherwise."""
    with database.connect() as connection:
        for piece in split(file.read_text()):
            connection.execute(piece.text)


def follow(feeds: Feeds, database: Database, folder: Path, *names: str) -> None:
    """Let feeds deliver what an example's database holds, and then its changes."""
    for name in names:
        feeds.sync(name)
    play(database, folder / "changes.sql")
    for name in names:
        feeds.sync(name)


def check(request: pytest.FixtureRequest, file: Path, lines: list[str]) -> None:
    """Compare with an expected file, or write it."""
    text = "".join(line + "\n" for line in lines)
    if request.config.getoption("--rewrite", default=False):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    assert text == file.read_text()


@pytest.mark.kafka
def test_kafka(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    postgres: Database,
    kafka: KafkaBroker,
    spark_engine: NodeSpark,
) -> None:
    folder = EXAMPLES / "kafka"
    play(postgres, folder / "setup.sql")
    with running(tmp_path / "state", spark_engine) as feeds:
        feeds.connect(bank=postgres.uri, bus=f"{kafka.uri}?topic_prefix=bank_")
        feeds.run_file(folder / "feeds.sql")
        follow(feeds, postgres, folder, "bank_to_kafka")
        feeds.execute("DROP CHANGEFEED bank_to_kafka")
    for topic in ("bank_accounts", "bank_transfers"):
        records = kafka.messages(topic)
        assert [r for r in records if r.key is None], "no resolved timestamp came"
        rows = [f"{masked(r.key)}\t{masked(r.value)}" for r in records if r.key is not None]
        check(request, folder / "expected" / f"{topic}.txt", rows)


@pytest.mark.kafka
def test_outbox(
    request: pytest.FixtureRequest, tmp_path: Path, postgres: Database, kafka: KafkaBroker
) -> None:
    folder = EXAMPLES / "outbox"
    play(postgres, folder / "setup.sql")
    with running(tmp_path / "state") as feeds:
        feeds.connect(store=postgres.uri, bus=f"{kafka.uri}?topic_prefix=store_")
        feeds.run_file(folder / "feeds.sql")
        follow(feeds, postgres, folder, "order_events", "outbox")
    for topic in ("store_order_events", "store_outbox"):
        rows = [f"{masked(r.key)}\t{masked(r.value)}" for r in kafka.messages(topic)]
        check(request, folder / "expected" / f"{topic}.txt", rows)


def test_files(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    postgres: Database,
    spark_engine: NodeSpark,
) -> None:
    folder = EXAMPLES / "files"
    lake, exports = tmp_path / "lake", tmp_path / "exports"
    play(postgres, folder / "setup.sql")
    with running(tmp_path / "state", spark_engine) as feeds:
        feeds.connect(plant=postgres.uri, lake=lake.as_uri(), exports=exports.as_uri())
        feeds.run_file(folder / "feeds.sql")
        follow(feeds, postgres, folder, "readings_to_files")
        feeds.execute("DROP CHANGEFEED readings_to_files")
    names = sorted(str(path.relative_to(lake)) for path in lake.rglob("*") if path.is_file())
    assert any(name.endswith(".RESOLVED") for name in names)
    for topic in ("sensors", "readings"):
        data = [name for name in names if re.search(rf"-{topic}-\w+\.ndjson$", name)]
        rows = [masked(line) for name in data for line in (lake / name).read_bytes().splitlines()]
        check(request, folder / "expected" / f"{topic}.ndjson", rows)
    csv = [line for path in sorted(exports.rglob("*.csv")) for line in path.read_text().split("\n")]
    check(request, folder / "expected" / "sensors.csv", [line for line in csv if line])


def test_queries(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    postgres: Database,
    spark_engine: NodeSpark,
) -> None:
    folder = EXAMPLES / "queries"
    targets = {"open": tmp_path / "open", "events": tmp_path / "events"}
    play(postgres, folder / "setup.sql")
    with running(tmp_path / "state", spark_engine) as feeds:
        feeds.connect(shop=postgres.uri, **{n: path.as_uri() for n, path in targets.items()})
        feeds.run_file(folder / "feeds.sql")
        follow(feeds, postgres, folder, "open_orders", "order_events")
    for name, target in targets.items():
        files = sorted(target.rglob("*.ndjson"))
        rows = [masked(line) for file in files for line in file.read_bytes().splitlines()]
        check(request, folder / "expected" / f"{name}.ndjson", rows)


def test_warehouse(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    postgres: Database,
    spark_engine: NodeSpark,
) -> None:
    folder = EXAMPLES / "warehouse"
    path = tmp_path / "sales.duckdb"
    play(postgres, folder / "setup.sql")

    def rows(sql: str) -> list[str]:
        with opened(path) as connection:
            connection.execute("SET timezone = 'UTC'")
            return [str(row) for row in connection.execute(sql).fetchall()]

    with running(tmp_path / "state", spark_engine) as feeds:
        feeds.connect(
            sales=postgres.uri,
            warehouse=f"duckdb://{path}?schema=now",
            archive=f"duckdb://{path}?schema=past",
        )
        feeds.run_file(folder / "feeds.sql")
        both = ("sales_copy", "sales_history")
        follow(feeds, postgres, folder, *both)
        until(lambda: len(rows("FROM now.orders WHERE currency = 'EUR'")) == 3)  # the backfill
        for name in both:
            feeds.execute(f"DROP CHANGEFEED {name}")
    versions = "id, name, segment, _is_current, _valid_to IS NULL FROM past.customers"
    for name, sql in {
        "customers": "SELECT * FROM now.customers ORDER BY id",
        "orders": "SELECT * REPLACE (placed::VARCHAR AS placed) FROM now.orders ORDER BY id",
        "customers_history": f"SELECT {versions} ORDER BY id, _valid_from",
    }.items():
        check(request, folder / "expected" / f"{name}.txt", rows(sql))


@pytest.mark.extended
def test_lake(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    postgres: Database,
    spark_engine: NodeSpark,
) -> None:
    folder = EXAMPLES / "lake"
    play(postgres, folder / "setup.sql")
    lake = Lake(spark_engine, f"delta://{tmp_path}/lake")
    past = Lake(
        spark_engine, f"iceberg://{unused_catalog()}/sales?type=hadoop&warehouse={tmp_path}/past"
    )
    with running(tmp_path / "state", spark_engine) as feeds:
        feeds.connect(sales=postgres.uri, lake=lake.uri, past=past.uri)
        feeds.run_file(folder / "feeds.sql")
        both = ("sales_lake", "sales_past")
        follow(feeds, postgres, folder, *both)
        euros = "select id from {orders} where currency = 'EUR'"
        until(lambda: len(lake.query(euros)) == 3)  # the backfill
        for name in both:
            feeds.execute(f"DROP CHANGEFEED {name}")
    versions = "id, name, segment, _is_current, _valid_to is null from {customers}"
    for name, rows in {
        "customers": lake.query("select id, name, segment, tags from {customers} order by id"),
        "orders": lake.query(
            "select id, customer, total, string(placed), extra, currency from {orders} order by id"
        ),
        "customers_past": past.query(f"select {versions} order by id, _valid_from"),
    }.items():
        check(request, folder / "expected" / f"{name}.txt", [str(row) for row in rows])


@pytest.mark.elasticsearch
def test_elasticsearch(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    postgres: Database,
    elasticsearch: Elasticsearch,
    spark_engine: NodeSpark,
) -> None:
    folder = EXAMPLES / "elasticsearch"
    play(postgres, folder / "setup.sql")
    with running(tmp_path / "state", spark_engine) as feeds:
        search = f"{elasticsearch.uri}/?index_prefix=store_"
        feeds.connect(store=postgres.uri, search=search)
        for piece in split((folder / "feeds.sql").read_text()):
            feeds.execute(piece.text.replace("127.0.0.1:9200", elasticsearch.address))
        follow(feeds, postgres, folder, "store_to_search", "cdc_store_products")
        feeds.execute("DROP CHANGEFEED store_to_search")
        feeds.execute("DROP CDC FOR store.products")
    assert elasticsearch.documents("store_changefeed_resolved"), "no resolved timestamp came"
    for index in ("store_products", "store_reviews", "catalogue"):
        documents = sorted(elasticsearch.documents(index).items())
        rows = [f"{key}\t{json.dumps(document)}" for key, document in documents]
        check(request, folder / "expected" / f"{index}.txt", rows)
    fields = sorted(elasticsearch.mapping("store_products").items())
    lines = [f"{name}\t{json.dumps(field)}" for name, field in fields]
    check(request, folder / "expected" / "store_products.mapping.txt", lines)


#: What differs between two runs of the demo, and what stands for it.
_VARYING = (
    (re.compile(r"(?<=127\.0\.0\.1:)\d+"), "<port>"),
    (re.compile(r"\d{19}\.\d{10}"), "<ts>"),
    (re.compile(r"complete up to \d\d:\d\d:\d\d UTC"), "complete up to <time> UTC"),
    (re.compile(r"\d{4}-\d\d-\d\d(?:T[\d:.]+Z)?"), "<time>"),
    (re.compile(r" +(?:[\d,]+ ms|< \d+ s) "), " <ms> "),
    (re.compile(r"downloading MariaDB \(150 MB, only once\)"), "unpacking MariaDB"),
    (re.compile(r"\d+ rows in \d+ files"), "<n> rows in <m> files"),
    (re.compile(r"(?<=running \|) *[\d.]+m?s +\| +[\d,.]+ +(?=\|)"), " <lag> | <n> "),
    (re.compile(r"(?<=~)\d+ \| +[\d.]+ \wB"), "<n> | <size>"),
)
_LIVE = "live: what is committed"
_FIRST_ORDER = re.compile(r"  » \w+ \w+ places order 4|  \+ \w+ +\[4[],]")
_SCANNED = re.compile(r"  \+ (?!.*(?:<ms>|with_tax))")
_OTHERS = re.compile(r"  [+~] orders +\[(?!1\]).*with_tax|    \{.*resolved")


def screen_of_demo(said: str) -> list[str]:
    """What the demo shows, the same in every run: of what happens while it is watched the first
    order alone, of the orders that the query finds the first."""
    shown: list[str] = []
    live = False
    for line in said.splitlines():
        if line.endswith("──"):
            live = line.startswith(_LIVE)
        elif (live and line and not _FIRST_ORDER.match(line)) or _OTHERS.match(line):
            continue
        elif not line:
            live = False
        for varying, mask in _VARYING:
            line = varying.sub(mask, line)
        if "|" in line or "-+-" in line:
            # The columns are as wide as what is in them.
            line = re.sub(r"-+", "-", re.sub(r" *\| *", " | ", line))
        shown.append(line.rstrip())
    # Tables are scanned side by side.
    scanned = [i for i, line in enumerate(shown) if _SCANNED.match(line)]
    rows = sorted(shown[i] for i in scanned)
    for i, row in zip(scanned, rows, strict=True):
        shown[i] = row
    return shown


#: The demo's sources. That of MariaDB unpacks a server each time.
_SOURCES = ("postgresql", pytest.param("mysql", marks=pytest.mark.extended))


@pytest.mark.parametrize("source", _SOURCES)
def test_quickstart(source: str, request: pytest.FixtureRequest) -> None:
    """The demo, as a user sees it; in a process of its own, because it starts Spark itself."""
    run = subprocess.run(
        [sys.executable, "-m", "shell", "demo", "--seconds", "6", "--source", source],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=EXAMPLES.parent,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    said = run.stdout
    places = [
        said.index(part)
        for part in ("USE shop", "initial scan: ", "+ customers", "live: ", "»", "after it")
    ]
    assert places == sorted(places)
    live = said[places[3] : places[5]]
    assert re.search(r"[+~-] (orders|order_items|customers) +\[\d", live), "no change arrived"
    by_spark = said[said.index("spark.sql") :]
    assert re.search(r'\+ orders +\[1\].*"status": ?"SHIPPED"', by_spark), "no row of the query"
    assert re.search(r"(public|shop)\.orders: equal", by_spark)
    assert "shop_to_lake" in by_spark and "orders_table" in by_spark
    assert "Traceback" not in run.stderr
    golden = {"postgresql": "demo.txt", "mysql": "demo_mysql.txt"}[source]
    check(request, GOLDEN / golden, screen_of_demo(said))


@pytest.mark.parametrize("source", _SOURCES)
def test_the_demo_ends_at_ctrl_c_and_leaves_nothing(source: str) -> None:
    with server_folder("demo") as folder:
        environment = {**os.environ, "TMPDIR": str(folder), "PYTHONUNBUFFERED": "1"}
        with subprocess.Popen(
            [sys.executable, "-m", "shell", "demo", "--source", source],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
            cwd=EXAMPLES.parent,
            start_new_session=True,
        ) as demo:
            assert demo.stdout is not None
            said = ""
            for line in demo.stdout:
                said += line
                if line.startswith("initial scan"):
                    break
            family = psutil.Process(demo.pid).children(recursive=True)
            names = {"postgresql": "postgres", "mysql": "mariadbd"}
            assert any(names[source] in process.name() for process in family), said
            demo.send_signal(signal.SIGINT)
            said += demo.stdout.read()
            assert demo.wait(90) == 130, said
        _, alive = psutil.wait_procs(family, timeout=30)
        assert alive == []
        assert list(folder.glob("changefeed-demo-*")) == []
        assert "Traceback" not in said


@pytest.mark.parametrize("source", _SOURCES)
def test_a_prompt_on_the_shop_that_can_be_started_again(source: str) -> None:
    """``demo --shell --keep`` prints a command; what that command starts has the feed still, on
    the same server."""
    with server_folder("demo-shell") as folder:
        environment = {**os.environ, "TMPDIR": str(folder)}

        def typed(arguments: list[str], statements: str) -> str:
            ran = subprocess.run(
                [sys.executable, "-m", "shell", "--format", "jsonl", "demo", *arguments],
                input=statements,
                capture_output=True,
                text=True,
                timeout=300,
                env=environment,
                cwd=EXAMPLES.parent,
            )
            assert ran.returncode == 0, ran.stdout + ran.stderr
            return ran.stdout

        said = typed(
            ["--shell", "--keep", "--source", source],
            "CREATE CHANGEFEED f FOR orders INTO 'external://lake';\n"
            "SYNC CHANGEFEED f TIMEOUT '120s';\n",
        )
        assert "try" in said and "SHOW TABLES;" in said
        (again,) = re.findall(r"start it again: changefeed demo (.*)", said)
        said = typed(shlex.split(again), "SYNC CHANGEFEED f TIMEOUT '120s';\nSHOW CHANGEFEEDS;\n")
        assert re.search(r'"name": "f".*"sink_uri": "external://lake"', said), said
        assert re.search(r'"name": "f", "synced_to": "\d+', said), said
        labels = {"postgresql": "embedded PostgreSQL", "mysql": "embedded MariaDB"}
        assert labels[source] in said
