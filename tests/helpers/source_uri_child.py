"""A program with a streaming query over the source in ``SHOP_URL``, for a test that kills it.

``python -m tests.helpers.source_uri_child STATE CHECKPOINT FOLDER``
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from changefeed import spark_source


def start(
    spark: SparkSession, state: str, checkpoint: str, folder: Path, source: str = "env:SHOP_URL"
) -> StreamingQuery:
    """The query. Each batch becomes a file in ``folder``; one that comes again replaces it."""
    spark_source.register(spark)
    changes = spark.readStream.format("changefeed").option("source", source)
    changes = changes.option("state", state).option("table", "public.t").option("reader", "r")

    def keep(batch: DataFrame, number: int) -> None:
        rows = [
            [*row]
            for row in batch.select("_change_type", "_commit_version", "id", "name")
            .sort("_commit_version")
            .collect()
        ]
        draft = folder / f".{number}"
        draft.write_text(json.dumps(rows))
        draft.rename(folder / f"{number:06}.json")

    writer = changes.load().writeStream.foreachBatch(keep)
    return writer.option("checkpointLocation", checkpoint).start()


def copied(folder: Path) -> dict[int, str]:
    """The table by key, from the files of the batches."""
    rows: dict[int, str] = {}
    for file in sorted(folder.glob("*.json")):
        for kind, _, key, name in json.loads(file.read_text()):
            if kind == "delete":
                del rows[key]
            elif kind == "insert":
                assert key not in rows, "a row came twice"
                rows[key] = name
            elif kind == "update_postimage":
                rows[key] = name
    return rows


if __name__ == "__main__":
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    session = builder.config("spark.driver.memory", "512m").getOrCreate()
    start(session, sys.argv[1], sys.argv[2], Path(sys.argv[3])).awaitTermination()
