"""Lake tables outside of a local directory: in an object store, in a catalog that is a database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import pytest

from changefeed.spark.session import SparkEngine
from tests.e2e.feeds import running
from tests.e2e.test_lake import Bench
from tests.lake import Lake, unused_catalog
from tests.services.postgres import Database
from tests.services.s3 import KEY, SECRET, S3Server

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.postgres]


def in_a_store(s3: S3Server, bucket: str) -> str:
    """Delta tables in a bucket."""
    s3.client().create_dir(bucket)
    settings = {
        "fs.s3a.endpoint": f"http://127.0.0.1:{s3.port}",
        "fs.s3a.endpoint.region": "us-east-1",
        "fs.s3a.access.key": KEY,
        "fs.s3a.secret.key": SECRET,
        "fs.s3a.path.style.access": "true",
        "fs.s3a.connection.ssl.enabled": "false",
    }
    return f"delta:///s3a://{bucket}/lake?{urlencode(settings)}"


def in_a_database(database: Database, warehouse: Path) -> str:
    """Iceberg tables in a directory, their catalog in the database itself."""
    address = urlsplit(database.uri)
    settings = {
        "type": "jdbc",
        "uri": f"jdbc:postgresql://{address.hostname}:{address.port}/{database.name}",
        "jdbc.user": address.username or "",
        "warehouse": str(warehouse),
    }
    return f"iceberg://{unused_catalog()}/shop?{urlencode(settings)}"


@pytest.fixture(params=["delta on s3a", "iceberg in jdbc"])
def bench(
    request: pytest.FixtureRequest, tmp_path: Path, postgres: Database, spark_engine: SparkEngine
) -> Iterator[Bench]:
    if request.param == "delta on s3a":
        uri = in_a_store(request.getfixturevalue("s3"), f"lake-{postgres.name}".replace("_", "-"))
    else:
        uri = in_a_database(postgres, tmp_path / "lake")
    postgres.execute(
        "create table t (a int primary key, b text);"
        "insert into t select i, 'row ' || i from generate_series(1, 10) i"
    )
    with running(tmp_path / "state", spark_engine) as feeds:
        yield Bench(feeds, postgres, Lake(spark_engine, uri))


def test_a_table_elsewhere_equals_the_source(bench: Bench) -> None:
    bench.create()
    bench.check()
    db = bench.db
    db.execute("update t set b = 'new' where a <= 3; delete from t where a = 4")
    db.execute("update t set a = 100 where a = 5; insert into t values (200, 'x')")
    bench.check()
    bench.feeds.close()
    db.execute("delete from t where a = 200; insert into t values (201, 'while it was down')")
    bench.feeds.open()
    bench.check()
    shown = "\n".join(str(row) for row in bench.feeds.execute("SHOW CHANGEFEED f").rows)
    assert SECRET not in shown
