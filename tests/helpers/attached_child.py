"""A program with a Spark session of its own, in which ``changefeed.attach`` runs a node.

``python -m tests.helpers.attached_child SOURCE FOLDER [URL]``: without URL of a Connect server a
classic session. Prints one JSON object on its last line.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import changefeed
from changefeed.core.errors import ChangefeedError
from changefeed.dataset.shuffle import comparing_session
from changefeed.spark.packs import pack, paths


def session(folder: Path, url: str) -> SparkSession:
    """As the program would have it."""
    if url:
        return SparkSession.builder.remote(url).getOrCreate()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings = {
        "spark.jars": ",".join(map(str, paths(["delta"]))),
        "spark.sql.extensions": pack("delta").extension,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.sql.session.timeZone": "Asia/Tokyo",
        "spark.sql.ansi.enabled": "false",
        "spark.local.dir": str(folder),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    builder = SparkSession.builder.master("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def seen(spark: SparkSession) -> dict[str, Any]:
    """What of a session must stay as it was."""
    names = ("spark.sql.catalog.spark_catalog", "spark.sql.ansi.enabled", "spark.scheduler.pool")
    return {
        "settings": {name: spark.conf.get(name, None) for name in names},
        "views": [table.name for table in spark.catalog.listTables()],
        "zone": spark.conf.get("spark.sql.session.timeZone"),
    }


def messages(folder: Path) -> list[dict[str, Any]]:
    """Those of rows in the files of a feed."""
    lines = (
        json.loads(line)
        for path in sorted(folder.rglob("*.ndjson"))
        for line in path.read_text().splitlines()
    )
    return [line for line in lines if "a" in line]


def main(source: str, folder: Path, url: str = "") -> None:
    """Two feeds of a table, a lake and a query; what is refused; the session before and after."""
    spark = session(folder, url)
    spark.range(3).createOrReplaceTempView("mine")
    before = seen(spark)
    lake, out = f"delta://{folder}/lake", f"file://{folder}/out"
    found: dict[str, Any] = {}
    with changefeed.attach(spark, str(folder / "state")) as node:
        node.execute(f"CREATE EXTERNAL CONNECTION shop AS '{source}'")
        found["early"] = node.execute("SHOW SPARK").rows[0][1]
        node.execute(f"CREATE CHANGEFEED lake FOR shop.t INTO '{lake}'")
        node.execute("SYNC CHANGEFEED lake TIMEOUT '120s'")
        node.execute(
            f"CREATE CHANGEFEED query INTO '{out}' AS SELECT a, upper(b) AS loud, hour(c) AS hour "
            "FROM shop.public.t WHERE a % 2 = 0"
        )
        node.execute("SYNC CHANGEFEED query TIMEOUT '120s'")
        node.execute(
            f"CREATE CHANGEFEED files FOR shop.big INTO 'file://{folder}/files' "
            "WITH engine = 'spark', envelope = 'bare'"
        )
        node.execute("SYNC CHANGEFEED files TIMEOUT '120s'")
        node.execute("PAUSE CHANGEFEED files")
        found["spark"] = [list(row) for row in node.execute("SHOW SPARK").rows]
        print(json.dumps("ready"), flush=True)
        sys.stdin.readline()  # the tables change
        node.execute("RESUME CHANGEFEED files")
        node.execute("SYNC CHANGEFEED files TIMEOUT '120s'")
        try:
            jobs = node.execute("SHOW CHANGEFEED files JOBS")
            steps = jobs.columns.index("step")
            found["jobs"] = [str(row[steps]).partition(" ")[0] for row in jobs.rows]
        except ChangefeedError as error:
            found["jobs"] = error.code.number
        node.execute("SYNC CHANGEFEED lake TIMEOUT '120s'")
        node.execute("SYNC CHANGEFEED query TIMEOUT '120s'")
        found["verify"] = len(node.execute("VERIFY CHANGEFEED lake").rows)
        place = f"iceberg://c/n?type=hadoop&warehouse={folder}/w"
        node.execute(f"CREATE CHANGEFEED ice FOR shop.t INTO '{place}'")
        try:
            node.execute("SYNC CHANGEFEED ice TIMEOUT '20s'")
        except ChangefeedError as error:
            found["ice"] = f"{error.message} {error.hint}"
        node.execute(f"CREATE CHANGEFEED beyond FOR shop.beyond INTO '{lake}'")
        try:
            node.execute("SYNC CHANGEFEED beyond TIMEOUT '60s'")
        except ChangefeedError as error:
            found["beyond"] = f"{error.message} {error.detail}"
    found["rows"] = sorted(
        [row["a"], row["b"]]
        for row in spark.read.format("delta").load(f"{folder}/lake/t").collect()
    )
    found["loud"], big = messages(folder / "out"), messages(folder / "files")
    found["big"] = len(big), len({row["a"] for row in big})
    found["same"] = seen(spark) == before
    if not url:
        compared = comparing_session(spark, 1, 1)
        found["compared"] = compared.conf.get("spark.sql.session.timeZone")
    found["mine"] = spark.table("mine").count()
    print(json.dumps(found), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
