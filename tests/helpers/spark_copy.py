"""A Spark program of its own that keeps a copy of a table by the format ``changefeed``.

``python -m tests.helpers.spark_copy FOLDER``: the folder has ``spec.json`` (properties of Spark,
options of the source) and gets the table's rows by key, ``batch.json`` of a batch query and
``stream.json`` of a stream.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from changefeed import spark_source
from changefeed.spark.java import find_java


class Program:
    """The program as a process, in which a batch query reads what a reader has not committed,
    and then a stream reads all of it and what follows."""

    def __init__(
        self, folder: Path, properties: Mapping[str, str], options: Mapping[str, str]
    ) -> None:
        self.folder = folder
        folder.mkdir()
        spec = {"properties": dict(properties), "options": dict(options)}
        (folder / "spec.json").write_text(json.dumps(spec))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, **environment: str) -> None:
        """Start it, with these variables of its environment."""
        with (self.folder / "output").open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.helpers.spark_copy", str(self.folder)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, "JAVA_HOME": str(find_java().home), **environment},
            )

    def kill(self) -> None:
        """End it; its JVM ends with it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
            self._process = None

    def copy(self, kind: str) -> dict[int, Any]:
        """The rows by key that the ``batch`` or the ``stream`` has read; none before its end."""
        if self._process is not None and self._process.poll() is not None:
            raise AssertionError(self.output[-3000:])
        return {int(key): value for key, value in _read(self.folder / f"{kind}.json").items()}

    @property
    def output(self) -> str:
        """What it and Spark printed."""
        return (self.folder / "output").read_text(errors="replace")


def main(folder: Path) -> None:
    """Run until it is killed."""
    spec = json.loads((folder / "spec.json").read_text())
    properties = {**spec["properties"], **spark_source.executor_properties()}
    spark = SparkSession.builder.config(map=properties).getOrCreate()
    spark_source.register(spark)
    options = spec["options"]
    # The reader is made by a statement; a batch query of it commits nothing.
    _merge(spark.read.format("changefeed").options(**options).load(), folder / "batch.json")
    changes = spark.readStream.format("changefeed").options(**options).load()
    stream = changes.writeStream.foreachBatch(lambda b, n: _merge(b, folder / "stream.json"))
    query = stream.option("checkpointLocation", str(folder / "checkpoint")).start()
    query.awaitTermination()


def _merge(batch: DataFrame, target: Path) -> None:
    rows = _read(target)
    for row in sorted(batch.collect(), key=lambda row: str(row["_commit_version"])):
        kind, key = row["_change_type"], str(row["a"])
        if kind == "delete":
            rows.pop(key, None)
        elif kind != "update_preimage":
            rows[key] = row["b"]
    made = target.with_suffix(".next")
    made.write_text(json.dumps(rows))
    made.replace(target)


def _read(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]))
