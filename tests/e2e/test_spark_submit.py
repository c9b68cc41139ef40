"""A plain program under ``spark-submit`` copies a table."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from changefeed.spark.java import find_java
from tests.services.postgres import Database

pytestmark = [pytest.mark.e2e, pytest.mark.postgres, pytest.mark.spark, pytest.mark.extended]

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
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    environment = {
        **os.environ,
        "SHOP_URL": postgres.uri,
        "JAVA_HOME": str(find_java().home),
        "PYSPARK_PYTHON": sys.executable,
        "XDG_DATA_HOME": str(folder / "data"),
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }

    done = subprocess.run(
        [submit, "--master", "local[1]", "--conf", "spark.ui.enabled=false", program, folder],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if line.startswith("row ")]
