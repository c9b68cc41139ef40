"""The comparison of the article "Change Data Capture at Scale using Spark", in its manner.

Written for this measurement from the article's description: lines are split, cast and hashed (MD5)
in Python on an RDD; hashes are joined; each operation is a stage of its own with its own join for
the whole rows and its own writes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def schema(keys: int, values: int) -> str:
    """Keys are text and values are floats."""
    columns = [f"keycol{i} STRING" for i in range(1, keys + 1)]
    columns += [f"nonkeycol{i} FLOAT" for i in range(1, values + 1)]
    hashes = "keyhash STRING, nonkeyhash STRING, operation STRING, eff_start_date STRING"
    return ", ".join([*columns, hashes])


def _hashed(keys: int, date: str) -> Callable[[str], tuple[Any, ...]]:
    def hashed(line: str) -> tuple[Any, ...]:
        parts = line.split(",")
        values = [float(part) for part in parts[keys:]]
        key = hashlib.md5(str(parts[:keys]).encode()).hexdigest()
        rest = hashlib.md5(str(values).encode()).hexdigest()
        return (*parts[:keys], *values, key, rest, "I", date)

    return hashed


def run(
    session: SparkSession, folder: Path, day: str, date: str, *, keys: int, values: int
) -> dict[str, int]:
    """Compare ``folder/day`` with ``folder/article_current``; rows by operation."""
    from pyspark.sql import functions as F

    lines = session.sparkContext.textFile(str(folder / day)).map(_hashed(keys, date))
    incoming = session.createDataFrame(lines, schema(keys, values))
    history, current = folder / "article_history" / date, folder / "article_current"
    if not current.exists():
        for target in (current, history):
            incoming.write.parquet(str(target))
        return {"I": session.read.parquet(str(current)).count()}
    old = session.read.parquet(str(current))
    joined = (
        old.select("keyhash", F.col("nonkeyhash").alias("old"))
        .join(incoming.select("keyhash", F.col("nonkeyhash").alias("new")), "keyhash", "full_outer")
        .cache()
    )
    staged = folder / "article_next"
    both = joined.where("old IS NOT NULL AND new IS NOT NULL")
    stages = [
        ("I", joined.where("old IS NULL"), incoming, (staged, history)),
        ("D", joined.where("new IS NULL"), old, (history,)),
        ("U", both.where("old <> new"), incoming, (staged, history)),
        ("N", both.where("old = new"), old, (staged,)),
    ]
    for operation, matched, rows, targets in stages:
        made: DataFrame = matched.select("keyhash").join(rows, "keyhash")
        made = made.withColumn("operation", F.lit(operation))
        if operation != "N":
            made = made.withColumn("eff_start_date", F.lit(date))
        for target in targets:
            made.write.parquet(str(target), mode="append")
    kept = session.read.parquet(str(staged)).groupBy("operation").count().collect()
    counts = {row[0]: row[1] for row in kept}
    gone = session.read.parquet(str(history)).where("operation = 'D'").count()
    joined.unpersist()
    return {**counts, "D": gone}
