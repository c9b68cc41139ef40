"""Other PySparks than ours: changefeed runs on 3.5, 4.0 and 4.2, and AUTO CDC flows of newer ones
read its source."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow.dataset as pads
import pytest

from changefeed.catalog import Status
from tests.conftest import or_skip
from tests.helpers.waiting import until
from tests.nemesis.service import Service
from tests.services.ivy import Artifact, fetch
from tests.services.postgres import Database
from tests.services.pyspark_versions import pyspark_folder, run_pipeline, run_tests

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.spark,
    pytest.mark.postgres,
    pytest.mark.extended,
]

#: Neither Delta nor Iceberg has tables here that AUTO CDC takes: it wants MERGE of the second
#: version of Spark's data sources. Spark's own tests have a catalog in memory that has it.
CATALOG_JAR = Artifact("org.apache.spark", "spark-catalyst_2.13", "4.2.0", "jar", "tests")
CATALOG = "org.apache.spark.sql.connector.catalog.SharedTablesInMemoryRowLevelOperationTableCatalog"

#: PySpark 4.2 has flows of type 1 alone. Each version is another 400 MB to download and build, so
#: 4.3 is for ``CHANGEFEED_TESTS=all``.
FLOWS = [
    ("4.2.1", 1),
    *(pytest.param("4.3.0", scd, marks=pytest.mark.everything) for scd in (1, 2)),
]

#: One test of each thing that Spark does for us: scans and backlogs as jobs, the Spark source in
#: queries and in streams, CDC queries, datasets, and Delta tables.
EVERYWHERE = (
    "tests/conformance/test_spark_scan.py::test_the_error_of_a_part_comes_back_as_itself",
    "tests/e2e/test_engines.py::test_a_backlog_in_lanes_is_the_backlog_of_the_node",
    "tests/e2e/test_queries.py::test_a_feed_holds_the_rows_that_the_where_selects",
    "tests/e2e/test_datasets.py::test_example_of_the_article",
    "tests/e2e/test_lake.py::test_every_kind_of_change[delta]",
)
SOURCE = (
    "tests/e2e/test_spark_source.py::test_a_query_that_is_stopped_and_restarted_equals_the_source"
)
ICEBERG = "tests/e2e/test_lake.py::test_every_kind_of_change[iceberg]"
#: What the page says that each version has (docs/spark.md).
VERSIONS = {
    "3.5.9": EVERYWHERE,
    "4.0.5": (*EVERYWHERE, SOURCE, ICEBERG),
    "4.2.1": (*EVERYWHERE, SOURCE),
}

FLOW = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

from changefeed import spark_source

spark = SparkSession.active()
spark_source.register(spark)


@dp.temporary_view
def changes():
    found = spark.readStream.format("changefeed").options(**{options}).load()
    return found.where("_change_type <> 'update_preimage'")


dp.create_streaming_table("memory.default.copy")
dp.create_auto_cdc_flow(
    target="memory.default.copy",
    source="changes",
    keys=["a"],
    sequence_by="_commit_version",
    apply_as_deletes="_change_type = 'delete'",
    except_column_list=["_change_type", "_commit_version", "_commit_timestamp"],
    stored_as_scd_type={scd},
)


# The catalog ends with the pipeline's process.
@dp.materialized_view(name="spark_catalog.default.result", format="parquet")
def result():
    return spark.read.table("memory.default.copy")
"""


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    service = Service(tmp_path / "state")
    service.start()
    until(service.catalog.live_nodes, "the node")
    yield service
    service.close()


def pipeline(folder: Path, options: dict[str, str], scd: int) -> Path:
    """A project with one flow; its spec."""
    (folder / "flows").mkdir(parents=True)
    text = FLOW.replace("{options}", repr(options)).replace("{scd}", str(scd))
    (folder / "flows" / "copy.py").write_text(text)
    spec = {
        "name": "copy",
        "storage": (folder / "storage").as_uri(),
        "libraries": [{"glob": {"include": "flows/**"}}],
    }
    path = folder / "spark-pipeline.yml"
    path.write_text(json.dumps(spec))
    return path


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_what_spark_does_for_us(version: str, tmp_path: Path) -> None:
    or_skip(lambda: pyspark_folder(version))
    run_tests(version, VERSIONS[version], tmp_path / "tests", seconds=800)


@pytest.mark.parametrize(("version", "scd"), FLOWS)
def test_an_auto_cdc_flow_reads_the_source(
    service: Service, tmp_path: Path, postgres: Database, version: str, scd: int
) -> None:
    or_skip(lambda: pyspark_folder(version))
    postgres.execute(
        "create table t (a int primary key, b text); alter table t replica identity full;"
        "insert into t select i, 'row ' || i from generate_series(1, 500) i"
    )
    service.execute(f"CREATE EXTERNAL CONNECTION shop AS '{postgres.uri}'")
    place = f"reader://{service.state}/readers/copy"
    service.execute(f"CREATE CHANGEFEED copy FOR TABLE shop.public.t INTO '{place}'")
    service.execute("CREATE CHANGEFEED seen FOR TABLE shop.public.t INTO 'null://'")
    until(lambda: service.job("copy").status is Status.RUNNING, "the scan")
    service.sync("seen")
    postgres.execute(
        "update t set b = 'new' where a % 5 = 0; delete from t where a % 7 = 0;"
        "insert into t values (1000, 'late')"
    )
    service.sync("seen")
    options = {"state": str(service.state), "table": "shop.public.t", "reader": "copy"}
    spec = pipeline(tmp_path / "pipeline", options, scd)
    properties = {
        "spark.sql.catalog.memory": CATALOG,
        "spark.sql.warehouse.dir": str(tmp_path / "warehouse"),
    }
    log = tmp_path / "pipeline.log"
    run_pipeline(version, spec, properties, log, [fetch(CATALOG_JAR)])
    found = pads.dataset(tmp_path / "warehouse" / "result", format="parquet").to_table()
    rows = found.to_pylist()
    current = rows if scd == 1 else [row for row in rows if row["__END_AT"] is None]
    assert {row["a"]: row["b"] for row in current} == dict(postgres.execute("select a, b from t"))
    if scd == 2:
        ended = [row["a"] for row in rows if row["__END_AT"] is not None]
        changed = [a for a in range(1, 501) if a % 5 == 0 or a % 7 == 0]
        assert sorted(ended) == changed, "each version that ended, with one a transaction"
