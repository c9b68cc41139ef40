"""Programs under ``spark-submit``: one that copies a table, and those of ``deploy/spark``."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psutil
import pyspark
import pytest

from changefeed.api import Interpreter, Session
from changefeed.catalog import Catalog
from changefeed.spark.java import find_java
from changefeed.spark.packs import paths
from changefeed.spark.session import NodeSpark
from tests.docs.blocks import blocks
from tests.helpers.lake import Lake
from tests.helpers.waiting import until
from tests.services.postgres import Database, PostgresCluster
from tests.services.spark_cluster import SparkCluster

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.postgres,
    pytest.mark.spark,
    pytest.mark.extended,
    # Two cold executors, six JVMs and an archive of 200 MB, one after the other.
    pytest.mark.timeout(1500),
]

ROOT = Path(__file__).parents[2]
SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"
PAGE = "docs/spark-applications.md"

#: Appends what there is to a folder of Parquet files, and ends.
PROGRAM = """
import sys
from pyspark.sql import SparkSession
from changefeed import spark_source

folder = sys.argv[1]
spark = SparkSession.builder.getOrCreate()
spark_source.register(spark)
changes = (
    spark.readStream.format("changefeed")
    .option("source", "env:SHOP_URL")
    .option("table", "public.orders")
    .option("reader", "submitted")
    .load()
)
changes.writeStream.format("parquet").option("checkpointLocation", folder + "/checkpoint").trigger(
    availableNow=True
).start(folder + "/changes").awaitTermination()
found = spark.read.parquet(folder + "/changes").orderBy("_commit_version", "_change_type", "id")
for row in found.collect():
    print("row", row["_change_type"], row["id"], row["status"])
spark.stop()
"""


def test_each_run_of_a_program_that_ends_has_what_was_committed_before(
    tmp_path: Path, postgres: Database
) -> None:
    """Its node ends with it: at the next run nothing has been read since."""
    postgres.execute(
        "create table orders (id int primary key, status text);"
        "insert into orders values (1, 'new'), (2, 'paid')"
    )
    scanned = ["row insert 1 new", "row insert 2 paid"]
    assert rows_of_a_run(tmp_path, postgres) == scanned
    postgres.execute("insert into orders values (3, 'late'); delete from orders where id = 1")
    assert rows_of_a_run(tmp_path, postgres) == [*scanned, "row delete 1 None", "row insert 3 late"]


def rows_of_a_run(folder: Path, postgres: Database) -> list[str]:
    """What the folder has after a run of the program."""
    program = folder / "program.py"
    program.write_text(PROGRAM)
    environment = {
        **os.environ,
        "SHOP_URL": postgres.uri,
        "JAVA_HOME": str(find_java().home),
        "PYSPARK_PYTHON": sys.executable,
        "XDG_DATA_HOME": str(folder / "data"),
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }

    done = subprocess.run(
        [SUBMIT, "--master", "local[1]", "--conf", "spark.ui.enabled=false", program, folder],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if line.startswith("row ")]


class Submitted:
    """Runs programs of ``deploy/spark`` by the command of the page, on a driver and executors that
    have a Python without packages."""

    def __init__(self, folder: Path, cluster: SparkCluster) -> None:
        self._folder = folder
        self._cluster = cluster
        self.output = folder / "output.txt"
        for program in ("changefeed_node.py", "glue_sync.py"):
            shutil.copy(ROOT / "deploy/spark" / program, folder)
        (block,) = (each for each in blocks(PAGE) if "spark-submit" in each.text)
        pack, submit = map(shlex.split, block.commands())
        subprocess.run([sys.executable, "-m", "shell", *pack[1:]], cwd=folder, check=True)
        with tarfile.open(folder / pack[-1]) as archive:
            archive.extractall(folder / "libraries", filter="data")
        python = f"python{sys.version_info.major}.{sys.version_info.minor}"
        self._words = [word.replace("python3.11", python) for word in submit]

    @contextmanager
    def started(self, *words: str, shipped: bool = True) -> Iterator[subprocess.Popen[bytes]]:
        """spark-submit of a program and its arguments, for a block; ``shipped``: with the
        archive."""
        ours = self._words[1 : self._words.index("changefeed_node.py")]
        flags = self._cluster.flags
        for name, value in zip(ours[::2], ours[1::2], strict=True):
            if name == "--packages":
                flags += ["--jars", ",".join(map(str, paths(["delta"])))]
            elif name == "--conf" or (name == "--archives" and shipped):
                flags += [name, value]
        environment = {
            "PATH": os.pathsep.join([f"{sys.base_prefix}/bin", os.environ["PATH"]]),
            "HOME": str(self._folder),
            "JAVA_HOME": str(find_java().home),
            "PYTHONPATH": "libraries",
        }
        with self.output.open("ab") as output:
            process = subprocess.Popen(
                [SUBMIT, *flags, "--conf", "spark.ui.enabled=false", *words],
                cwd=self._folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        try:
            yield process
        finally:
            process.kill()  # its node ends by itself
            process.wait(10)

    def run(self, *words: str) -> int:
        """The status of a program that ends; its executors have no package of ours."""
        with self.started(*words, shipped=False) as process:
            return process.wait(400)

    def last_words(self) -> str:
        """The end of the output of all programs."""
        return self.output.read_text(errors="replace")[-3000:]


def node_of(submitted: subprocess.Popen[bytes]) -> psutil.Process:
    """The Python process that spark-submit has started; the JVM has workers, too."""
    children = psutil.Process(submitted.pid).children()
    (found,) = (child for child in children if "existing" in child.cmdline())
    return found


def test_a_node_and_jobs_that_end(
    tmp_path: Path,
    postgres: Database,
    postgres_server: Callable[..., PostgresCluster],
    spark_cluster: SparkCluster,
    spark_engine: NodeSpark,
) -> None:
    """State in PostgreSQL, shared log; Delta tables, and a query with a Python function, which the
    executors find in the archive. Each form ends as the page says."""
    (tmp_path / "functions").mkdir()
    (tmp_path / "functions/shop_words.py").write_text(
        "def shout(text):\n    return text and text.upper()\n"
    )
    postgres.execute(
        "create table t (a int primary key, b text);"
        "insert into t select i, 'row ' || i from generate_series(1, 60000) i"
    )
    lake = Lake(spark_engine, f"delta://{tmp_path}/lake")

    def check() -> None:
        rows = [tuple(row) for row in postgres.execute("select a, b from t order by a")]
        assert lake.query("select a, b from {t} order by a") == rows

    submitted = Submitted(tmp_path, spark_cluster)
    with postgres_server().database() as state, closing(Catalog.open(state.uri)) as catalog:
        interpreter, session = Interpreter(catalog), Session(client="tests")
        for sql in (
            f"CREATE EXTERNAL CONNECTION shop AS '{postgres.uri}'",
            "CREATE FUNCTION shout (text string) RETURNS string AS 'shop_words:shout' "
            f"PATH '{tmp_path}/functions'",
            f"CREATE CHANGEFEED lake FOR shop.t INTO '{lake.uri}'",
            f"CREATE CHANGEFEED files FOR shop.t INTO 'file://{tmp_path}/files' "
            "WITH engine = 'spark'",
        ):
            interpreter.execute(sql, session)

        def last_scan() -> str:
            job = catalog.job("files").id
            found = catalog.events(job, kinds=("engine",))
            return next(event.text for event in found if "backlog" not in event.text)

        node = ["changefeed_node.py", "--state", state.uri, "--spark", "existing"]

        places = ["--staging", f"{tmp_path}/rows", "--log", f"{tmp_path}/log"]
        with submitted.started(*node, "start", *places) as process:
            until(catalog.live_nodes, "a node of the state")
            interpreter.execute(
                f"CREATE CHANGEFEED query INTO 'file://{tmp_path}/out' "
                "AS SELECT a, shout(b) AS loud FROM shop.public.t WHERE a <= 3",
                session,
            )
            interpreter.execute("SYNC ALL TIMEOUT '300s'", session)
            check()
            assert last_scan() == "scan of public.t as a Spark job"
            postgres.execute(
                "update t set b = 'new' where a % 3 = 0; delete from t where a > 59000"
            )
            interpreter.execute("SYNC ALL TIMEOUT '300s'", session)
            check()
            node_of(process).terminate()
            assert process.wait(60) == 0, submitted.last_words()
        written = [
            json.loads(line)
            for file in sorted((tmp_path / "out").rglob("*.ndjson"))
            for line in file.read_text().splitlines()
        ]
        last = {row["a"]: row["loud"] for row in written if "a" in row}
        assert last == {1: "ROW 1", 2: "ROW 2", 3: "NEW"}

        postgres.execute("insert into t select i, 'more' from generate_series(70001, 130000) i")
        interpreter.execute("ALTER CHANGEFEED files RESCAN", session)
        ends = [f"SYNC CHANGEFEED {feed} TIMEOUT '300s'" for feed in ("lake", "files", "nobody")]
        words = [word for each in ends for word in ("-c", each)]
        assert submitted.run(*node, *words) == 1, submitted.last_words()
        check()
        why = "the node reads the table although engine = 'spark': the executors lack "
        assert last_scan().startswith(why), "without the archive"

        interpreter.execute("PAUSE CHANGEFEED query", session)  # its function was in the archive
        postgres.execute("delete from t where a > 100000")
        words = ["--JOB_NAME", "changefeed", "--state", state.uri, "--timeout", "300s"]
        assert submitted.run("glue_sync.py", *words) == 0, submitted.last_words()
        check()

        with submitted.started(*node, "start", shipped=False) as process:
            until(catalog.live_nodes, "a node of the state")
            its = node_of(process)
            process.terminate()
            assert process.wait(60) == 143
            its.wait(60)
    (log,) = tmp_path.rglob("node.log")
    assert log.read_text().splitlines()[-1].endswith("stopped"), "it was not killed"


def test_the_standalone_master_takes_no_python_program(tmp_path: Path) -> None:
    refused = subprocess.run(
        [SUBMIT, "--master", "spark://127.0.0.1:1", "--deploy-mode", "cluster", "program.py"],
        env={**os.environ, "JAVA_HOME": str(find_java().home)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    text = "Cluster deploy mode is currently not supported for python applications on standalone "
    assert refused.returncode == 1 and text in refused.stderr
    assert text in (ROOT / PAGE).read_text().replace("\n", " ")
