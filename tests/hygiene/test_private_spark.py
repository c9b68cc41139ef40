"""Internals of Spark are named in one package."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
INTERNALS = "changefeed/spark/internals/"

#: Private attributes of PySpark's objects, its private modules, and what py4j adds to exceptions.
PRIVATE = re.compile(
    r"\._(jvm|jdf|jc|jo|jsc|jsparkSession|jreader|jwrite|gateway|sc|ssql|active_spark_context|"
    r"instantiatedSession|activeSession|accumulatorServer|explain_string)\b"
    r"|\bpy4j\.\w|\bfrom py4j\b|\bJavaPackage\b|\bjava_exception\b|_parse_datatype_json"
    r"|\bpyspark\.(java_gateway|accumulators|daemon|worker|logger|serializers|core|util)\b"
    r"|\bpyspark\.sql\.(pandas|classic|connect)\b|\bfrom pyspark import (daemon|accumulators)\b"
)


def test_private_parts_of_spark_are_named_in_one_package() -> None:
    command = ["git", "ls-files", "changefeed", "sinks", "shell", "grammar"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    files = [name for name in listed.split() if name.endswith(".py")]
    named = {
        f"{name}:{number}: {line.strip()}"
        for name in files
        for number, line in enumerate((ROOT / name).read_text("utf-8").splitlines(), 1)
        if PRIVATE.search(line)
    }
    assert {line for line in named if not line.startswith(INTERNALS)} == set()
    assert len(named) > 20, "the expression finds them where they are"
