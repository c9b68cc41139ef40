"""A day's extract against the current dataset: ours, ``cdc.py``, and DuckDB as the limit.

    python -m benchmarks.dataset --rows 1000000 --cdc FOLDER

Each way runs in a process of its own, compares the same two days of CSV (5 UUIDs as the key and 10
numbers a row; 20 % deleted, 40 % updated, 40 % unchanged, 20 % new) and writes the whole result
as Parquet. CPU is that of the process and all its children, Spark's JVM and Python workers
included, during the second day's comparison, in a session that has run the first day's.

FOLDER has ``cdc.py`` and ``functions.py`` of github.com/avensolutions/cdc-at-scale-using-spark; it
runs as it is, on the PySpark and with the heap of ours. Without FOLDER it is left out.
"""

from __future__ import annotations

import argparse
import datetime as dt
import functools
import json
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import duckdb
import yaml

from benchmarks.measure import Meter
from changefeed.dataset import Dataset, DatasetColumn
from changefeed.dataset.run import run_dataset
from changefeed.spark.session import NodeSpark

KEYS, VALUES = 5, 10
HEAP = "4g"
DAY1, DAY2 = "2019-06-18", "2019-06-19"
Counts = dict[str, int]


def make_days(folder: Path, rows: int) -> None:
    """``folder/day1`` and ``folder/day2``, CSV without a header."""
    keys = ", ".join(f"md5(g || 'k{i}') AS k{i}" for i in range(1, KEYS + 1))
    values = ", ".join(f"(hash(g, version, {i}) % 1000000) / 1e6 AS v{i}" for i in range(VALUES))
    fifth = rows // 5
    days = {
        "day1": f"SELECT g, 0 AS version FROM range({rows}) t(g)",
        "day2": f"SELECT g, CASE WHEN g < {3 * fifth} THEN 1 ELSE 0 END AS version "
        f"FROM range({fifth}, {rows + fifth}) t(g)",
    }
    for day, query in days.items():
        (folder / day).mkdir()
        target = folder / day / "part.csv"
        duckdb.sql(f"COPY (SELECT {keys}, {values} FROM ({query})) TO '{target}' (HEADER false)")


def _measured(day: Callable[[str, str], Counts]) -> dict[str, object]:
    day("day1", DAY1)
    with Meter(os.getpid()) as meter:
        counts = day("day2", DAY2)
    cost = meter.cost
    return {"counts": counts, "cpu": cost.cpu_seconds, "seconds": cost.wall_seconds}


def ours(folder: Path) -> dict[str, object]:
    """``changefeed dataset`` with xxHash."""
    columns = [DatasetColumn(f"keycol{i}", "string", key=True) for i in range(1, KEYS + 1)]
    columns += [DatasetColumn(f"nonkeycol{i}", "float") for i in range(1, VALUES + 1)]
    dataset = Dataset(
        "bench", tuple(columns), folder / "current", folder / "history", folder / "versions"
    )
    with NodeSpark(heap=HEAP) as spark:

        def day(name: str, date: str) -> Counts:
            made = run_dataset(spark, dataset, str(folder / name), dt.date.fromisoformat(date))
            return dict(made.counts)

        return _measured(day)


def article(folder: Path) -> dict[str, object]:
    """``cdc.py``, with its own hash (MD5). Its text calls ``yaml.load`` as PyYAML 5 had it."""
    program = Path(os.environ["CDC_PROGRAM"])
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--driver-memory {HEAP} pyspark-shell"
    # Spark's Python workers import functions.py, too.
    os.environ["PYTHONPATH"] = f"{program}:{os.getenv('PYTHONPATH', '')}"
    sys.path.insert(0, str(program))
    names = [(f"keycol{i}", "string", True) for i in range(1, KEYS + 1)]
    names += [(f"nonkeycol{i}", "float", False) for i in range(1, VALUES + 1)]
    history = folder / "cdc_history"
    config = {
        "name": "bench",
        "delimiter": ",",
        "extract_type": "full",
        "columns": [
            {"name": name, "type": kind, "key": key, "ignore": False} for name, kind, key in names
        ],
        "current_table_path": str(folder / "cdc_current"),
        "temp_current_table_path": str(folder / "cdc_next"),
        "history_table_path": str(history),
    }
    (folder / "cdc.yaml").write_text(json.dumps(config))
    for name in ("cdc_current", "cdc_next", "cdc_history"):
        (folder / name).mkdir()
    yaml.load = functools.partial(yaml.load, Loader=yaml.SafeLoader)

    def day(name: str, date: str) -> Counts:
        sys.argv = ["cdc.py", str(folder / "cdc.yaml"), str(folder / name), date]
        runpy.run_path(str(program / "cdc.py"))
        if name == "day1":
            return {}
        written = [f"{folder}/cdc_next/*.parquet", f"{history}/{date}/*.parquet"]
        query = "SELECT operation, count(DISTINCT keyhash) FROM read_parquet(?) GROUP BY 1"
        rows = duckdb.execute(query, [written]).fetchall()
        return {str(op): int(count) for op, count in rows}

    return _measured(day)


def limit(folder: Path) -> dict[str, object]:
    """DuckDB: a full outer join by the keys themselves, and one partitioned write."""
    keys = ", ".join(f"k{i}" for i in range(1, KEYS + 1))
    values = [f"v{i}" for i in range(1, VALUES + 1)]
    types = ", ".join(
        [f"'k{i}': 'VARCHAR'" for i in range(1, KEYS + 1)] + [f"'{v}': 'FLOAT'" for v in values]
    )
    current = folder / "duck_current"
    con = duckdb.connect()
    con.sql("SET threads = 2")

    def day(name: str, date: str) -> Counts:
        new = f"read_csv('{folder / name}/*.csv', header = false, columns = {{{types}}})"
        target = folder / f"duck_{name}"
        if name == "day1":
            query = f"SELECT *, 'I' AS op, DATE '{date}' AS since FROM {new}"
        else:
            changed = " OR ".join(f"n.{v} IS DISTINCT FROM o.{v}" for v in values)
            taken = ", ".join(f"coalesce(n.{v}, o.{v}) AS {v}" for v in values)
            query = (
                f"SELECT {keys}, {taken}, CASE WHEN o.since IS NULL THEN 'I' WHEN n.here IS NULL "
                f"THEN 'D' WHEN {changed} THEN 'U' ELSE 'N' END AS op, CASE WHEN o.since IS NOT "
                f"NULL AND n.here AND NOT ({changed}) THEN o.since ELSE DATE '{date}' END AS since "
                f"FROM (SELECT *, true AS here FROM {new}) n FULL JOIN "
                f"read_parquet('{current}/**/*.parquet') o USING ({keys})"
            )
        con.sql(f"COPY ({query}) TO '{target}' (FORMAT parquet, PARTITION_BY (op))")
        if name == "day1":
            target.rename(current)
            target = current
        rows = con.sql(
            f"SELECT op, count(*) FROM read_parquet('{target}/**/*.parquet', "
            "hive_partitioning = true) GROUP BY op"
        ).fetchall()
        return {str(op): int(count) for op, count in rows}

    return _measured(day)


WAYS: dict[str, Callable[[Path], dict[str, object]]] = {
    "ours": ours,
    "cdc.py": article,
    "duckdb": limit,
}


def main() -> None:
    """Run every way and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--cdc", type=Path, metavar="FOLDER", help="where cdc.py is")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.way:
        print(json.dumps(WAYS[given.way](given.folder)))
        return
    if given.cdc:
        os.environ["CDC_PROGRAM"] = str(given.cdc.resolve())
    ways = [way for way in WAYS if given.cdc or way != "cdc.py"]
    with tempfile.TemporaryDirectory(prefix="changefeed-dataset-") as name:
        folder = Path(name)
        make_days(folder, given.rows)
        fifth = given.rows // 5
        right = {"I": fifth, "U": 2 * fifth, "D": fifth, "N": given.rows - 3 * fifth}
        for way in ways:
            words = [sys.executable, "-m", "benchmarks.dataset", "--way", way, "--folder", name]
            done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
            found = json.loads(done.stdout.splitlines()[-1])
            if found["counts"] != right:
                raise SystemExit(f"{way}: {found['counts']} instead of {right}")
            rate = given.rows / found["seconds"]
            print(
                f"{way:8} {given.rows:,} rows  {found['seconds']:8.1f} s  {rate:12,.0f} rows/s  "
                f"{found['cpu']:8.1f} CPU s"
            )


if __name__ == "__main__":
    main()
