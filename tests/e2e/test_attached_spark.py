"""A node on a Spark that exists: classic in the same program, and behind Spark Connect."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest

from changefeed.spark.java import find_java
from changefeed.spark.session import NodeSpark
from changefeed.spark.settings import SparkSettings
from tests.services.postgres import Database
from tests.services.spark_connect import SparkConnectServer

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.postgres]

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def connect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkConnectServer]:
    made = SparkConnectServer(tmp_path_factory.mktemp("connect"), ("delta",)).start()
    yield made
    made.stop()


def program(postgres: Database, folder: Path, *url: str) -> dict[str, Any]:
    """What the program found; the table changes in its middle."""
    postgres.execute(
        "create table t (a int primary key, b text, c timestamptz default '2024-01-01 05:00+00');"
        "insert into t select i, 'row ' || i from generate_series(1, 10) i;"
        "create table big (a int primary key); insert into big select generate_series(1, 3000);"
        "create table beyond (a int primary key, at timestamp);"
        "insert into beyond values (1, '294276-12-31 23:59:59')"
    )
    words = [sys.executable, "-m", "tests.helpers.attached_child", postgres.uri, str(folder), *url]
    with (folder / "errors.txt").open("w") as errors:
        child = subprocess.Popen(
            words,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        try:
            assert child.stdout is not None and child.stdin is not None
            lines = iter(child.stdout.readline, "")
            ready = next((line for line in lines if line == '"ready"\n'), "")
            assert ready, (folder / "errors.txt").read_text()[-3000:]
            postgres.execute(
                "update t set b = 'new' where a <= 2; delete from t where a > 4;"
                "insert into big select generate_series(3001, 6000)"
            )
            rest, _ = child.communicate("go on\n", timeout=200)
        finally:
            child.kill()
            child.communicate()
    assert child.returncode == 0, (folder / "errors.txt").read_text()[-3000:]
    found: dict[str, Any] = json.loads(rest.splitlines()[-1])
    return found


def check(found: dict[str, Any]) -> dict[str, list[str]]:
    """What holds on every Spark; returns what SHOW SPARK says."""
    assert found["early"] == "not started: it starts with the first feed that needs it"
    assert found["rows"] == [[1, "new"], [2, "new"], [3, "row 3"], [4, "row 4"]]
    assert found["verify"] == 0
    last = {row["a"]: row.get("loud") for row in found["loud"]}
    assert last == {2: "NEW", 4: "ROW 4", 6: None, 8: None, 10: None}
    assert {row["hour"] for row in found["loud"] if row.get("loud")} == {5}, "in UTC"
    assert found["big"] == [6000, 6000], "each row once"
    assert "at" in found["beyond"], "a value that Spark cannot cast is not NULL"
    assert found["same"] and found["mine"] == 3, "the program's session is as it was"
    shown: dict[str, list[str]] = {}
    for name, value in found["spark"]:
        shown.setdefault(name, []).append(value)
    assert shown["status"] == ["running"] and shown["cores"] == ["2"]
    return shown


def test_a_programs_own_session(postgres: Database, tmp_path: Path) -> None:
    found = program(postgres, tmp_path)
    shown = check(found)
    assert shown["master"] == ["existing"] and "falls back" not in shown
    assert sorted(found["jobs"]) == ["backlog", "scan"] and found["compared"] == "UTC"
    assert "this Spark was started without iceberg" in found["ice"]


def test_spark_connect(postgres: Database, tmp_path: Path, connect: SparkConnectServer) -> None:
    found = program(postgres, tmp_path, connect.url)
    shown = check(found)
    assert any("MERGE" in clause for clause in shown["falls back"])
    why = "scans and backlogs run in the node: over Spark Connect the node runs no tasks of its own"
    assert shown["falls back"][-1] == why and found["jobs"] == "CF4003"
    assert "this Spark was started without iceberg" in found["ice"]


NONE_MADE = """
from changefeed.core.errors import ChangefeedError
from changefeed.spark.session import NodeSpark
from changefeed.spark.settings import SparkSettings
try:
    NodeSpark.of(SparkSettings(master="existing")).session()
except ChangefeedError as error:
    print(error.code.number, error.message)
"""


def test_where_there_is_no_session(tmp_path: Path) -> None:
    shown = output(NONE_MADE, sys.executable, tmp_path)
    assert shown == "CF4003 there is no Spark session in this process\n"


def test_the_token_of_a_server_is_not_shown() -> None:
    spark = NodeSpark.of(SparkSettings(master="sc://127.0.0.1:1/;token=s3cret"))
    assert "s3cret" not in spark.report().master


MADE_BEFORE = """
from pyspark.sql import SparkSession
made = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
from changefeed.spark.java import find_java
from changefeed.spark.session import NodeSpark
from changefeed.spark.settings import SparkSettings
with NodeSpark.of(SparkSettings(master="existing")).use() as session:
    print(session.range(3).count(), session.sparkContext is made.sparkContext)
made.stop()
"""


def output(program: str, python: str | Path, folder: Path) -> str:
    """What a program prints whose Spark has workers of this Python."""
    left_out = ("PYSPARK_GATEWAY_PORT", "SPARK_REMOTE")
    environment = {name: value for name, value in os.environ.items() if name not in left_out}
    environment |= {"JAVA_HOME": str(find_java().home), "PYSPARK_PYTHON": str(python)}
    environment["PYTHONPATH"] = str(ROOT)
    words = [sys.executable, "-c", program]
    done = subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_the_session_that_another_thread_of_the_process_has_made(tmp_path: Path) -> None:
    assert output(MADE_BEFORE, sys.executable, tmp_path) == "3 True\n"


DAMAGED = """
import pyarrow as pa, pyarrow.parquet as pq
from pathlib import Path
from pyspark.sql import SparkSession
made = (
    SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    .config("spark.sql.files.ignoreCorruptFiles", "true").getOrCreate()
)
from changefeed.spark.internals.sessions import another_session
rows, path = list(range(1000)), Path("rows.parquet")
pq.write_table(
    pa.table({"a": rows}), path, compression="none", use_dictionary=False, write_page_checksum=True
)
data = bytearray(path.read_bytes())
data[data.index((500).to_bytes(8, "little"))] ^= 1
path.write_bytes(data)
for session in (made, another_session(made)):
    try:
        found = session.read.schema("a long").parquet(str(path)).collect()
        print("another number" if sorted(row.a for row in found) != rows else "as written")
    except Exception:
        print("refused")
made.stop()
"""


def test_staged_rows_that_are_damaged_are_refused(tmp_path: Path) -> None:
    """Whatever the program's own sessions make of them."""
    assert output(DAMAGED, sys.executable, tmp_path) == "another number\nrefused\n"


ASKED = """
from pyspark.sql import SparkSession
made = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
from changefeed.spark.session import NodeSpark
spark = NodeSpark(master="existing", attached=lambda: made)
assert spark.state().hindrance == ""
why = spark.hindrance(lambda: False)
assert spark.state().hindrance == why
print(*spark.report().instead, sep="\\n")
stopped = NodeSpark(master="existing", attached=lambda: made)
stopped.session()
made.stop()
print(stopped.hindrance(lambda: False))
assert not stopped.ready  # who asks next looks for another session
"""


def test_executors_without_changefeed(tmp_path: Path) -> None:
    """A job of Spark finds it out, before any scan or backlog fails; nothing is asked before. A
    session that was stopped meanwhile is looked for again."""
    python = tmp_path / "python"
    packages = Path(pyspark.__file__).parents[1]
    python.write_text(f'#!/bin/sh\nPYTHONPATH={packages} exec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    clause, stopped = output(ASKED, python, tmp_path).splitlines()
    assert clause.startswith(
        "scans and backlogs run in the node: the executors lack changefeed: ship it "
    )
    assert stopped.startswith("the job that asks whether the executors have changefeed failed ")


def test_a_node_by_the_url_of_a_server(
    postgres: Database, tmp_path: Path, connect: SparkConnectServer
) -> None:
    postgres.execute("create table t (a int primary key, b text); insert into t values (1, 'x')")
    statements = (
        f"CREATE EXTERNAL CONNECTION shop AS '{postgres.uri}'; "
        f"CREATE CHANGEFEED f FOR shop.t INTO 'delta://{tmp_path}/lake'; "
        "SYNC CHANGEFEED f TIMEOUT '120s'; SHOW SPARK WHERE property = 'master'"
    )
    words = ["--state", str(tmp_path / "state"), "--spark", f"{connect.url}/;user_id=me"]
    done = subprocess.run(
        [sys.executable, "-m", "shell", *words, "-c", statements],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert connect.url in done.stdout and "user_id" not in done.stdout
    assert list((tmp_path / "lake" / "t").rglob("*.parquet"))


@pytest.mark.extended
def test_iceberg_over_a_server(postgres: Database, tmp_path: Path) -> None:
    """A scan, then a round that updates, deletes and inserts: the table equals the source."""
    (tmp_path / "connect").mkdir()
    server = SparkConnectServer(tmp_path / "connect", ("iceberg",)).start()

    def run(statements: str) -> str:
        words = ["--state", str(tmp_path / "state"), "--spark", server.url, "-c", statements]
        done = subprocess.run(
            [sys.executable, "-m", "shell", *words],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=200,
        )
        assert done.returncode == 0, done.stderr
        return done.stderr

    try:
        postgres.execute(
            "create table t (a int primary key, b text); insert into t values (1, 'x'), (2, 'y')"
        )
        run(
            f"CREATE EXTERNAL CONNECTION shop AS '{postgres.uri}'; "
            "CREATE CHANGEFEED f FOR shop.t INTO "
            f"'iceberg://ice/shop?type=hadoop&warehouse={tmp_path}/lake'; "
            "SYNC CHANGEFEED f TIMEOUT '120s'"
        )
        postgres.execute(
            "update t set b = 'new' where a = 1; delete from t where a = 2;"
            "insert into t values (3, 'z')"
        )
        verified = run("SYNC CHANGEFEED f TIMEOUT '120s'; VERIFY CHANGEFEED f")
        assert "public.t: equal" in verified
        assert list((tmp_path / "lake" / "shop" / "t").rglob("*.parquet"))
    finally:
        server.stop()
