"""Other versions of PySpark than ours, each in a folder of its own before our packages."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from changefeed.core.child_path import import_path
from changefeed.spark.java import find_java
from tests.services.cache import cache_root, made_once
from tests.services.python import Unavailable

#: What Spark Connect wants beside what we have.
_MORE = ("zstandard==0.25.0",)
#: The client that is made for the jar of a line, where that of the others is not.
_PY4J = {"3.5": "py4j==0.10.9.7"}
#: pip makes a wheel of 400 MB first. Most of it are jars: to compress them again doubles the time.
_WHEEL = "[bdist_wheel]\ncompression = stored\n"
_SECONDS = 900


def pyspark_folder(version: str) -> Path:
    """A folder with that PySpark, installed once.

    Raises:
        Unavailable: the package registry does not serve it.
    """

    def install(folder: Path) -> None:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
        command += ["--disable-pip-version-check", "--root-user-action", "ignore"]
        command += ["--target", str(folder), f"pyspark=={version}", *_MORE]
        command += [_PY4J[line] for line in _PY4J if version.startswith(line)]
        with tempfile.NamedTemporaryFile("w", suffix=".cfg") as settings:
            settings.write(_WHEEL)
            settings.flush()
            run = subprocess.run(
                command,
                env={**os.environ, "DIST_EXTRA_CONFIG": settings.name},
                capture_output=True,
                text=True,
                timeout=_SECONDS,
            )
        if "No matching distribution found" in run.stderr:
            raise Unavailable(f"PySpark {version}: the package registry does not serve it")
        if run.returncode != 0:
            raise RuntimeError(f"pip failed\n{run.stdout[-2000:]}{run.stderr[-3000:]}")

    return made_once(cache_root() / "packages" / f"pyspark-{version}", install)


def environment(version: str) -> dict[str, str]:
    """Variables for a process that takes this PySpark and our packages beside it."""
    folder = pyspark_folder(version)
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(folder / "home"),
        "JAVA_HOME": str(find_java().home),
        "JDK_JAVA_OPTIONS": os.environ.get("JDK_JAVA_OPTIONS", ""),
        "SPARK_HOME": str(folder / "pyspark"),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join([str(folder), str(Path.cwd()), import_path()]),
    }


def run_tests(version: str, tests: Sequence[str], scratch: Path, seconds: float) -> str:
    """Run tests of ours with this PySpark in a process of their own; returns what it printed.

    Raises:
        AssertionError: one of them failed, was skipped or did not run.
    """
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "SPARK_"))}
    variables = {
        **inherited,
        "CHANGEFEED_TEST_CACHE": str(cache_root()),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join([str(pyspark_folder(version)), str(Path.cwd())]),
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    run = subprocess.run(
        [*command, "--basetemp", str(scratch), *tests],
        env=variables,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    told = run.stdout[-6000:] + run.stderr[-2000:]
    assert run.returncode == 0, told
    assert f"{len(tests)} passed in" in run.stdout, told
    return run.stdout


def run_pipeline(
    version: str, spec: Path, properties: Mapping[str, str], log: Path, jars: Sequence[Path] = ()
) -> None:
    """``spark-pipelines run`` of this version, to its end."""
    # The server that the pipeline starts has these from the site's file alone.
    site = {"spark.jars": ",".join(map(str, jars)), **properties}
    folder = spec.parent / "conf"
    folder.mkdir(exist_ok=True)
    lines = (f"{name} {value}\n" for name, value in site.items())
    (folder / "spark-defaults.conf").write_text("".join(lines))
    variables = {**environment(version), "SPARK_CONF_DIR": str(folder)}
    command = [f"{variables['SPARK_HOME']}/bin/spark-pipelines", "run", "--spec", str(spec)]
    with log.open("ab") as output:
        subprocess.run(
            [*command, "--remote", "local[2]"],
            env=variables,
            stdout=output,
            stderr=output,
            timeout=500,
            check=False,
        )
    # Not the status: the client of 4.3 stumbles over what the server says of its accumulators after
    # the last event (UNKNOWN_RESPONSE).
    assert "Run is COMPLETED" in log.read_text(errors="replace"), log.read_text()[-3000:]
