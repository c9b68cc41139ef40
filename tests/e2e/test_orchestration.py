"""examples/orchestration with the programs that it is for, and a notebook."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict

import changefeed
from tests.e2e.test_examples import EXAMPLES, play
from tests.e2e.test_shell import Shell, read_until
from tests.helpers.python_env import environment, run
from tests.helpers.waiting import PATIENCE
from tests.services.postgres import Database, PostgresCluster

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.postgres,
    pytest.mark.extended,
]

FOLDER = EXAMPLES / "orchestration"


@dataclass
class Served:
    """The example's feed at a node that serves HTTP."""

    shop: Database
    warehouse: Database
    url: str

    @property
    def variables(self) -> dict[str, str]:
        """What the files of the example read."""
        return {"CHANGEFEED_URL": self.url, "WAREHOUSE": self.warehouse.uri}


@pytest.fixture
def served(
    tmp_path: Path, postgres: Database, postgres_server: Callable[..., PostgresCluster]
) -> Iterator[Served]:
    play(postgres, FOLDER / "setup.sql")
    shell = Shell(tmp_path)
    with postgres_server().database() as warehouse:
        for name, database in (("shop", postgres), ("warehouse", warehouse)):
            made = shell.run("-c", f"CREATE EXTERNAL CONNECTION {name} AS '{database.uri}'")
            assert made.returncode == 0, made.stderr
        assert shell.run("-f", str(FOLDER / "feeds.sql")).returncode == 0
        with shell.running("start", "--http", "127.0.0.1:0") as node:
            said = read_until(node, b"/healthz", errors=True)
            url = re.findall(rb"http://127\.0\.0\.1:\d+", said)[0].decode()
            with changefeed.connect(url) as connection:
                connection.feed("orders_copy").wait_until(timeout=PATIENCE)
                yield Served(postgres, warehouse, url)


AIRFLOW = """
import datetime as dt, json, runpy, sys
import changefeed
dag = runpy.run_path(sys.argv[1])["orders_report"]()
sensor, total = dag.get_task("arrived"), dag.get_task("total")
assert total.upstream_task_ids == {"arrived"}
now = dt.datetime.now(dt.timezone.utc)
later = sensor.poke({"data_interval_end": now + dt.timedelta(days=1)})
earlier = sensor.poke({"data_interval_end": now - dt.timedelta(days=1)})
with changefeed.connect(sensor.node) as connection:
    connection.execute("PAUSE CHANGEFEED orders_copy")
try:
    sensor.poke({"data_interval_end": now + dt.timedelta(days=1)})
except changefeed.dbapi.OperationalError as error:
    paused = str(error)
print("RESULT", json.dumps([later, earlier, paused, total.python_callable()]))
"""


def test_airflow(served: Served, tmp_path: Path) -> None:
    python = environment("apache-airflow>=3.1,<4")
    home = {
        "AIRFLOW_HOME": str(tmp_path / "airflow"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
    }
    said = run(python, "-c", AIRFLOW, FOLDER / "airflow_report.py", **home, **served.variables)
    later, earlier, paused, total = json.loads(said.partition("RESULT ")[2].splitlines()[0])
    assert (later, earlier, total) == (False, True, "1219.90")
    assert 'changefeed "orders_copy" is paused' in paused


DAGSTER = """
import json, runpy, sys
import dagster as dg
names = runpy.run_path(sys.argv[1])
done = dg.materialize([names["orders"], names["total"]])
(made,) = done.asset_materializations_for_node("orders")
first = names["changed"](dg.build_sensor_context())
again = names["changed"](dg.build_sensor_context(cursor=first.run_key))
answers = [done.output_for_node("total"), made.metadata["resolved"].value, first.run_key,
    type(again).__name__]
print("RESULT", json.dumps(answers))
"""


def test_dagster(served: Served, tmp_path: Path) -> None:
    python = environment("dagster>=1.11,<2")
    play(served.shop, FOLDER / "changes.sql")
    home = {"DAGSTER_HOME": str(tmp_path), "DAGSTER_DISABLE_TELEMETRY": "1"}
    said = run(python, "-c", DAGSTER, FOLDER / "dagster_report.py", **home, **served.variables)
    total, resolved, rows, again = json.loads(said.partition("RESULT ")[2].splitlines()[0])
    assert total == "1200.00", "what was committed before is there"
    assert re.fullmatch(r"\d{19}\.\d{10}", resolved) and int(rows) >= 4
    assert again == "SkipReason"


def test_dbt(served: Served, tmp_path: Path) -> None:
    folder = shutil.copytree(FOLDER / "dbt", tmp_path / "dbt")  # dbt writes there
    python = environment("dbt-core>=1.9,<1.11", "dbt-postgres>=1.9,<1.11")
    play(served.shop, FOLDER / "changes.sql")
    names = {
        f"WAREHOUSE_{name.removeprefix('db').upper()}": str(value)
        for name, value in conninfo_to_dict(served.warehouse.uri).items()
    }
    names["WAREHOUSE_DATABASE"] = names.pop("WAREHOUSE_NAME")
    said = run(python, folder / "build.py", **names, **served.variables)
    assert "orders_copy is complete up to" in said and "Completed successfully" in said
    rows = served.warehouse.execute("SELECT customer, revenue::text FROM revenue ORDER BY 1")
    assert rows == [("Ada", "100.00"), ("Grace", "1100.00")]


NOTEBOOK = """
import sys
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_line_magic("load_ext", "changefeed")
shell.run_line_magic("changefeed", sys.argv[1])
done = shell.run_cell("%%changefeed\\nSHOW CHANGEFEEDS;\\nSHOW CHANGEFEED orders_copy TABLES")
assert done.success, done
data, _ = shell.display_formatter.format(done.result)
print("RESULT", data["text/html"])
print(data["text/plain"])
assert shell.run_cell("_.columns[0]").result == done.result.columns[0]
assert not shell.run_cell("%%changefeed\\nSHOW CHANGEFEED nobody").success
"""


def test_a_notebook(served: Served, tmp_path: Path) -> None:
    python = environment("ipython>=9,<10")
    said = run(python, "-c", NOTEBOOK, served.url, IPYTHONDIR=str(tmp_path))
    page, _, text = said.partition("RESULT ")[2].partition("\n")
    assert page.startswith("<table><thead><tr><th>") and "<td>public.orders</td>" in page
    assert "public.orders" in text
