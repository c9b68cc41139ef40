"""What an import loads, proved in a fresh interpreter."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

#: Prints the packages that running ``{code}`` loaded, the standard library's and ours left out.
_REPORT = """
import sys
before = set(sys.modules)
{code}
loaded = {{name.partition(".")[0] for name in set(sys.modules) - before}}
loaded |= {{n for n in sys.modules if n.startswith("sqlalchemy.dialects.")}}
print(*sorted(n for n in loaded - set(sys.stdlib_module_names) if not n.startswith("_")))
"""

_HELP = """
import contextlib, io
from shell.cli import main
sys.argv = ["changefeed", {option!r}]
with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.suppress(SystemExit):
    main()
assert said.getvalue(), "it printed nothing"
"""

_COMMAND = """
import contextlib, io
from shell.cli import main
sys.argv = ["changefeed", "--state", {state!r}, "-c", {statement!r}]
with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.suppress(SystemExit):
    main()
assert {heading!r} in said.getvalue(), said.getvalue()
"""

#: Each lets Arrow convert a list, which looks for pandas unless the process has kept it out.
_PROCESSES = {
    "node": """
import os, signal
import pyarrow as pa
from changefeed.app import Application
from shell.service import serve
Application.check_node = lambda self: os.kill(os.getpid(), signal.SIGTERM)
serve({state!r})
pa.array([1])
""",
    "standby": """
import json, os
import pyarrow as pa
from changefeed.capture.process import main
from changefeed.capture.standby import STATE_VARIABLE
os.environ[STATE_VARIABLE] = {state!r}
out = os.dup(1)
os.dup2(2, 1)  # its notices are not the report
task, told = os.pipe()
os.dup2(task, 0)
os.write(told, json.dumps(dict(source="nobody", disk=None)).encode() + b"\\n")
assert main(["--standby"]) != 0
os.dup2(out, 1)
pa.array([1])
""",
    "capture": """
import json, os
import pyarrow as pa
from changefeed.capture.process import main
from changefeed.capture.standby import STATE_VARIABLE
os.environ[STATE_VARIABLE] = {state!r}
out = os.dup(1)
os.dup2(2, 1)  # its notices are not the report
assert main(["--task", json.dumps(dict(source="nobody"))]) != 0
os.dup2(out, 1)
pa.array([1])
""",
}

_EVERY_MODULE = """
import importlib, pkgutil
import {package}
for module in pkgutil.walk_packages({package}.__path__, "{package}."):
    importlib.import_module(module.name)
"""


def packages_loaded_by(code: str) -> set[str]:
    """Top-level packages a fresh interpreter has loaded after ``code``."""
    run = subprocess.run(
        [sys.executable, "-c", _REPORT.format(code=code)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    return set(run.stdout.split())


def test_grammar_loads_lark_and_nothing_else() -> None:
    loaded = packages_loaded_by(_EVERY_MODULE.format(package="grammar"))
    # lark takes the package regex where something else has brought it.
    assert loaded - {"regex"} == {"grammar", "lark"}


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_shell_answers_without_spark_and_without_sinks(option: str) -> None:
    heavy = {"pyspark", "py4j", "pyarrow", "confluent_kafka", "sqlalchemy", "psycopg", "numpy"}
    assert packages_loaded_by(_HELP.format(option=option)) & heavy == set()


@pytest.mark.parametrize(
    ("statement", "heading"),
    [("SHOW JOBS", "job_id"), ("SHOW CHANGEFEEDS", "lag"), ("SHOW EXTERNAL CONNECTIONS", "uri")],
)
def test_a_listing_loads_nothing_that_reads_rows(
    statement: str, heading: str, tmp_path: Path
) -> None:
    heavy = {"pyspark", "py4j", "pyarrow", "numpy", "pandas", "psycopg", "confluent_kafka", "rich"}
    unused = {"prompt_toolkit", "sqlalchemy.dialects.postgresql", "starlette", "httpx", "sqlglot"}
    code = _COMMAND.format(state=str(tmp_path / "state"), statement=statement, heading=heading)
    loaded = packages_loaded_by(code)
    assert "sqlalchemy.dialects.sqlite" in loaded
    assert loaded & (heavy | unused) == set()


@pytest.mark.parametrize("process", sorted(_PROCESSES))
def test_a_service_loads_what_it_needs_only(process: str, tmp_path: Path) -> None:
    code = _PROCESSES[process].format(state=str(tmp_path / "state"))
    loaded = packages_loaded_by(code)
    assert "pyarrow" in loaded
    unused = {"confluent_kafka", "grpc", "httpx", "sqlglot", "starlette"}
    assert loaded & ({"pandas", "pyspark", "py4j", "rich", "prompt_toolkit"} | unused) == set()


@pytest.mark.parametrize("sink", ["files", "kafka"])
def test_a_sink_of_messages_loads_no_parser_of_schemas_before_it_reads(sink: str) -> None:
    loaded = packages_loaded_by(f"import sinks.{sink}.sink")
    assert "pyarrow" in loaded
    assert loaded & {"fastavro", "lz4", "cramjam", "snappy"} == set()


def test_the_garbage_collector_works_again_when_all_is_loaded() -> None:
    code = """
import gc
from changefeed.core.loading import loading
with loading():
    import changefeed.app
    assert not gc.isenabled()
    with loading():
        import changefeed.node
    assert not gc.isenabled()
assert gc.isenabled() and gc.get_freeze_count() > 10_000
"""
    assert "sqlalchemy" in packages_loaded_by(code)


def test_pandas_is_there_for_who_asks_for_it_itself() -> None:
    code = "from changefeed.core.arrow import keep_pandas_out\nkeep_pandas_out()\nimport pandas"
    assert "pandas" in packages_loaded_by(code)


def test_naming_the_sinks_loads_none() -> None:
    code = "from sinks.registry import schemes\nassert 'kafka' in schemes()"
    assert packages_loaded_by(code) & {"pyspark", "confluent_kafka", "fastavro"} == set()


def test_test_servers_need_no_spark_session() -> None:
    loaded = packages_loaded_by("import tests.services.postgres, tests.services.kafka")
    assert "pyspark" not in loaded
