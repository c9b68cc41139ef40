"""A stream of Spark over a table's changes: the format ``changefeed``, and Kafka with JSON parsed.

    python -m benchmarks.spark_stream --rows 1000000 --rounds 2

The same backlog of changes of PostgreSQL waits in the change log and, as messages of Debezium's
envelope, in a topic with two partitions. A Structured Streaming query (``availableNow``) takes all
of it into ``noop``, once with ``format("changefeed")``, once with ``format("kafka")`` and
``from_json`` into columns of the same types (but for the decimal, which is left as Debezium's
bytes). Both run in one session of a process of its own; the
first round warms it and is not printed. CPU is that of the process and its children, the JVM and
Python workers. The messages lie in Kafka already: what it cost to bring them there is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.measure import Meter
from benchmarks.peers.debezium import place
from benchmarks.query import here
from benchmarks.workload import NARROW
from changefeed import spark_source
from tests.services.ivy import Artifact, resolve

HEAP = "4g"
#: Spark's connector for Kafka; a release of the minor version that ours is, too.
CONNECTOR = "4.1.1"
TOPIC = "narrow"
ROW = "struct<id: bigint, quantity: int, label: string, at: timestamp, price: binary>"
MESSAGE = f"before {ROW}, after {ROW}, op string, source struct<ts_us: bigint>"


def kafka_jars() -> str:
    """The connector with all it needs, as ``spark.jars`` names them."""
    found = resolve(
        f"spark-kafka-{CONNECTOR}",
        [Artifact("org.apache.spark", "spark-sql-kafka-0-10_2.13", CONNECTOR)],
    )
    shipped = {"scala-library", "slf4j-api", "spark-tags_2.13"}
    jars = [jar for jar in found.glob("*.jar") if jar.name.rpartition("-")[0] not in shipped]
    return ",".join(map(str, sorted(jars)))


def from_log(spark: SparkSession, state: str, reader: str) -> DataFrame:
    """Typed changes out of the log."""
    changes = spark.readStream.format("changefeed").option("state", state)
    return changes.option("table", "source.public.narrow").option("reader", reader).load()


def from_kafka(spark: SparkSession, bootstrap: str) -> DataFrame:
    """Typed changes out of messages."""
    read = spark.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap)
    messages = read.option("subscribe", TOPIC).option("startingOffsets", "earliest").load()
    # A tombstone follows each delete.
    change = messages.where("value IS NOT NULL").select(
        F.from_json(F.col("value").cast("string"), MESSAGE).alias("m")
    )
    row = F.coalesce("m.after", "m.before")
    return change.select(
        row["id"].alias("id"),
        row["quantity"].alias("quantity"),
        row["label"].alias("label"),
        row["at"].alias("at"),
        row["price"].alias("price"),
        F.col("m.op").alias("op"),
        F.timestamp_micros("m.source.ts_us").alias("committed"),
    )


def read(state: str, bootstrap: str, readers: int, folder: Path) -> None:
    """Both ways, round by round; a line of JSON for each."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[2]").config("spark.driver.memory", HEAP)
    builder = builder.config("spark.jars", kafka_jars()).config("spark.ui.enabled", "false")
    spark = builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark_source.register(spark)
    for number in range(readers):
        # Each way is the first one in some round.
        for name in ("changefeed", "kafka")[:: 1 if number % 2 else -1]:
            frame = (
                from_log(spark, state, f"r{number}")
                if name == "changefeed"
                else from_kafka(spark, bootstrap)
            )
            with Meter(os.getpid()) as meter:
                stream = frame.writeStream.format("noop").trigger(availableNow=True)
                query = stream.option("checkpointLocation", f"{folder}/{name}{number}").start()
                query.awaitTermination()
            rows = sum(progress["numInputRows"] for progress in query.recentProgress)
            cost = meter.cost
            print(json.dumps([name, rows, cost.wall_seconds, cost.cpu_seconds]), flush=True)
    spark.stop()


def main() -> None:
    """Make the backlog, read it, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--read", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.read:
        state, bootstrap, readers, folder = given.read
        read(state, bootstrap, int(readers), Path(folder))
        return
    readers = given.rounds + 1
    with place() as run, run.database.connect() as connection, here(run) as ours:
        run.broker.create_topic(TOPIC, 2)
        NARROW.create(connection)
        state = run.folder / "query-state"
        for number in range(readers):
            ours.execute(
                f"CREATE CHANGEFEED r{number} FOR source.narrow "
                f"INTO 'reader://{state}/readers/r{number}' WITH initial_scan = 'no'"
            )
        ours.execute(
            f"CREATE CHANGEFEED messages FOR source.narrow INTO 'kafka://{run.broker.bootstrap}"
            f"?topic_name={TOPIC}' WITH initial_scan = 'no', envelope = 'debezium'"
        )
        NARROW.change(connection, given.rows)
        ours.sync("messages")
        words = [sys.executable, "-m", "benchmarks.spark_stream", "--read", str(state)]
        words += [run.broker.bootstrap, str(readers), str(run.folder)]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for number, line in enumerate(process.stdout):
                name, rows, seconds, cpu = json.loads(line)
                if rows < given.rows:  # tombstones are more
                    process.kill()
                    raise SystemExit(f"{name}: {rows:,} rows instead of {given.rows:,}")
                if number >= 2:
                    print(
                        f"round {number // 2} {name:10} {given.rows / seconds:10,.0f} rows/s  "
                        f"{cpu / given.rows * 1e6:5.1f} us CPU a row",
                        flush=True,
                    )
        if process.returncode:
            raise SystemExit(process.returncode)


if __name__ == "__main__":
    main()
