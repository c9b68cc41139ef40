"""Programs in Java, run from their source by the compiler that Spark brings."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

from changefeed.spark.java import find_java


def from_source(source: Path, class_path: str, *arguments: str | Path) -> list[str | Path]:
    """The command that runs the class of a file, which has the file's name."""
    spark = find_spec("pyspark")
    if spark is None or spark.origin is None:
        raise LookupError("pyspark is not installed")
    compiler = [
        str(next((Path(spark.origin).parent / "jars").glob(pattern)))
        for pattern in ("janino-*.jar", "commons-compiler-*.jar")
    ]
    return [
        find_java().executable,
        "-Xmx512m",
        "-Dorg.codehaus.janino.UnitCompiler.defaultTargetVersion=8",
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
        "-cp",
        os.pathsep.join([class_path, *compiler]),
        "org.codehaus.janino.SimpleCompiler",
        source,
        source.stem,
        *arguments,
    ]
