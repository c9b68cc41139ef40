"""PostgreSQL -> typed files, on a disk and in object stores, through real statements."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import fastavro
import pyarrow.parquet as pq
import pytest

from changefeed.spark.session import NodeSpark
from changefeed_testing.sinks.readers import visible_files
from tests.e2e.feeds import Feeds, running
from tests.services.postgres import Database
from tests.services.proxy import Proxy
from tests.services.s3 import S3Server
from tests.services.stores import ObjectStore

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.postgres, pytest.mark.slow]


@pytest.fixture
def feeds(tmp_path: Path, postgres: Database, spark_engine: NodeSpark) -> Iterator[Feeds]:
    postgres.execute(
        "create table t (a int primary key, b text, price numeric(8,2), at timestamptz);"
        "insert into t select i, 'row ' || i, i / 4.0, '2024-03-31 01:02:03Z'"
        " from generate_series(1, 2000) i"
    )
    with running(tmp_path / "state", spark_engine) as made:
        made.connect(shop=postgres.uri)
        yield made


def table(rows: list[dict[str, Any]]) -> dict[int, tuple[Any, ...] | None]:
    """The table as a reader of files rebuilds it; rows come in the order of the names."""
    return {row["a"]: row["row"] for row in rows}


def avro_rows(path: Path) -> list[dict[str, Any]]:
    with path.open("rb") as file:
        values: list[Any] = list(fastavro.reader(file))
    found = []
    for value in values:
        after = value["after"]
        key = value["key"]["a"] if value.get("key") else after["a"]
        row = after and (after["b"], after["price"], after["at"])
        found.append({"a": key, "row": row})
    return found


def parquet_rows(path: Path) -> list[dict[str, Any]]:
    found = []
    for row in pq.read_table(path).to_pylist():
        gone = row["__crdb__event_type"] == "d"
        found.append({"a": row["a"], "row": None if gone else (row["b"], row["price"], row["at"])})
    return found


READERS: dict[str, Callable[[Path], list[dict[str, Any]]]] = {
    "avro": avro_rows,
    "parquet": parquet_rows,
}


def truth(db: Database) -> dict[int, tuple[Any, ...]]:
    rows = db.execute("select a, b, price, at from t")
    return {a: (b, price, at) for a, b, price, at in rows}


PLACES = [("avro", "file"), ("parquet", "file"), ("avro", "s3"), ("parquet", "s3")]
PLACES += [("avro", "gcs"), ("parquet", "azure")]


@pytest.mark.parametrize(("form", "place"), PLACES)
def test_typed_files(
    form: str,
    place: str,
    feeds: Feeds,
    postgres: Database,
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> None:
    folder = tmp_path / "out"
    uri = f"file://{folder}"
    if place != "file":
        store: ObjectStore = request.getfixturevalue(place)
        uri = store.uri(f"{store.bucket(f'typed-{form}')}/deep")
    feeds.execute(
        f"CREATE CHANGEFEED f FOR t INTO '{uri}'"
        f" WITH format = '{form}', updated, resolved = '200ms', compression = 'gzip'"
    )
    feeds.sync("f")
    postgres.execute("update t set b = 'new', price = price + 0.01 where a <= 10")
    postgres.execute("delete from t where a = 11; insert into t values (9000, null, null, null)")
    feeds.sync("f")
    feeds.execute("PAUSE CHANGEFEED f")
    if place != "file":
        store.download(f"typed-{form}", "deep", folder)
        shown = repr(feeds.execute("SHOW CHANGEFEEDS").rows)
        assert store.secret not in shown and quote(store.secret, safe="") not in shown
        assert "redacted" in shown
    paths = visible_files(folder)
    data = [path for path in paths if path.suffix == f".{form}"]
    rows = [row for path in data for row in READERS[form](path)]
    found = table(rows)
    assert found.pop(11) is None
    assert found == truth(postgres)
    marks = [path for path in paths if path.suffix == ".RESOLVED"]
    assert marks and all("resolved" in json.loads(path.read_text()) for path in marks)


def test_s3_that_fails_for_a_while(
    feeds: Feeds, postgres: Database, s3: S3Server, tmp_path: Path
) -> None:
    proxy = Proxy(s3.port)
    bucket = s3.bucket("outage")
    feeds.execute(
        f"CREATE CHANGEFEED f FOR t INTO 's3://{bucket}/x?{s3.parameters(proxy.port)}'"
        " WITH updated, resolved = '200ms', compression = 'gzip'"
    )
    feeds.sync("f")
    for mode in ("503", "cut"):
        with proxy.spoiling(mode):
            postgres.execute("update t set b = b || '!' where a <= 100")
            _until(feeds, "retrying")
    feeds.sync("f")
    feeds.execute("PAUSE CHANGEFEED f")
    proxy.close()
    lines = [
        json.loads(line)
        for path in visible_files(s3.download(bucket, "x", tmp_path / "out"))
        if path.name.endswith(".ndjson.gz")
        for line in gzip.decompress(path.read_bytes()).splitlines()
    ]
    found = {line["key"][0]: line["after"]["b"] for line in lines}
    assert found == {a: row[0] for a, row in truth(postgres).items()}


def _until(feeds: Feeds, status: str) -> None:
    import time

    deadline = time.monotonic() + 60
    while feeds.catalog.job("f").status.value != status:
        assert time.monotonic() < deadline, f"the feed never was {status}"
        time.sleep(0.05)
