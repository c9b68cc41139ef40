"""VALIDATE's look at lake tables: what is there is read from its metadata, and nothing is made."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from changefeed.core.errors import ChangefeedError
from changefeed.core.schema import TableSchema
from changefeed_testing.sinks.rows import table_of
from sinks.base import SinkContext, Target
from sinks.lake.look import overlooked
from sinks.lake.place import place_of
from sinks.registry import open_sink


def schema(**types: str) -> TableSchema:
    """Table ``t``, key ``a``."""
    return table_of("t", key=("a",), **types)


def look(
    uri: str, shape: TableSchema | None = None, options: Mapping[str, object] | None = None
) -> list[ChangefeedError]:
    """What VALIDATE is told of one table."""
    sink = open_sink(uri, options)
    shape = shape or schema(a="int32", b="text")
    try:
        return sink.check(SinkContext("validate", 0, (Target(shape.table, "t", shape),)))
    finally:
        sink.close()


def codes(found: list[ChangefeedError]) -> list[str]:
    return [problem.code.number for problem in found]


# ------------------------------------------------------------------------ tables in files


def delta_schema(**types: object) -> str:
    fields = [{"name": n, "type": t, "nullable": True, "metadata": {}} for n, t in types.items()]
    return json.dumps({"type": "struct", "fields": fields})


def delta_commit(folder: Path, version: int, text: str | None) -> None:
    """A commit that sets a schema, or one that does not."""
    log = folder / "t" / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    actions: list[object] = [{"commitInfo": {"operation": '"metaData"'}}]
    if text is not None:
        actions.append({"metaData": {"id": "x", "schemaString": text}})
    lines = "\n".join(json.dumps(action) for action in actions)
    (log / f"{version:020d}.json").write_text(lines)


def iceberg_table(folder: Path, version: int, **types: object) -> None:
    place = folder / "shop" / "t" / "metadata"
    place.mkdir(parents=True, exist_ok=True)
    fields = [
        {"id": n, "name": name, "required": False, "type": kind}
        for n, (name, kind) in enumerate(types.items(), 1)
    ]
    old = {"type": "struct", "schema-id": 0, "fields": []}
    new = {"type": "struct", "schema-id": 1, "fields": fields}
    text = json.dumps({"format-version": 2, "current-schema-id": 1, "schemas": [old, new]})
    (place / f"v{version}.metadata.json").write_text(text)


def test_a_delta_table_is_read_from_its_last_schema(tmp_path: Path) -> None:
    uri = f"delta://{tmp_path}"
    delta_commit(tmp_path, 0, delta_schema(a="string", b="string"))
    [problem] = look(uri)
    assert codes([problem]) == ["CF5006"]
    assert "column a is string in the target and cannot become int" in problem.message
    delta_commit(tmp_path, 1, delta_schema(a="integer", b="string", more="date"))
    delta_commit(tmp_path, 2, None)
    assert look(uri) == []
    # A narrower column becomes wider, a column that is missing is added.
    assert look(uri, schema(a="int64", c="timestamptz")) == []


def test_a_delta_table_is_read_from_a_checkpoint(tmp_path: Path) -> None:
    delta_commit(tmp_path, 11, None)
    tags = {"type": "array", "elementType": "long"}
    text = delta_schema(a="integer", tags=tags, _sequence_num="long")
    kind = pa.struct(
        {"schemaString": pa.string(), "configuration": pa.map_(pa.string(), pa.string())}
    )
    mark = [("changefeed.owner", "/0/shop.public.t")]
    metadata = pa.array([None, {"schemaString": text, "configuration": mark}], kind)
    log = tmp_path / "t" / "_delta_log"
    pq.write_table(pa.table({"metaData": metadata}), log / f"{10:020d}.checkpoint.parquet")
    (log / f"{9:020d}.json").write_text("no longer looked at")
    uri = f"delta://{tmp_path}"
    assert look(uri, schema(a="int32", tags="array<int64>")) == []
    assert codes(look(uri, schema(a="int32", tags="array<bool>"))) == ["CF5006"]


def delta_file(folder: Path, version: int, action: str) -> None:
    """A commit that adds or removes the file ``f``."""
    path = folder / "t" / "_delta_log" / f"{version:020d}.json"
    path.write_text(json.dumps({action: {"path": "f"}}))


def test_a_delta_table_that_holds_rows_of_somebody_else(tmp_path: Path) -> None:
    uri = f"delta://{tmp_path}"
    delta_commit(tmp_path, 0, delta_schema(a="integer", b="string"))
    delta_file(tmp_path, 1, "add")
    [problem] = look(uri)
    assert problem.code.number == "CF5008" and "table t of" in problem.message
    for policy in ("merge", "replace"):
        assert look(uri, options={"existing_target": policy}) == []
    delta_file(tmp_path, 2, "remove")
    assert look(uri) == [], "no row is left"


@pytest.mark.parametrize(
    ("properties", "code"),
    [
        ({}, "CF5008"),
        ({"changefeed.source": "shop.public.t"}, "CF5008"),
        ({"changefeed.owner": "/0/shop.public.t"}, ""),
        ({"changefeed.owner": "state/7/shop.public.t"}, "CF5008"),
    ],
)
def test_an_iceberg_table_says_whose_it_is(
    tmp_path: Path, properties: Mapping[str, str], code: str
) -> None:
    iceberg_table(tmp_path, 1, a="int", b="string", _sequence_num="long")
    path = tmp_path / "shop" / "t" / "metadata" / "v1.metadata.json"
    metadata = json.loads(path.read_text()) | {
        "properties": properties,
        "current-snapshot-id": 5,
        "snapshots": [{"snapshot-id": 5, "summary": {"total-data-files": "1"}}],
    }
    path.write_text(json.dumps(metadata))
    uri = f"iceberg://c/shop?type=hadoop&warehouse={tmp_path}"
    assert codes(look(uri)) == ([code] if code else [])
    assert look(uri, options={"existing_target": "merge"}) == []


def test_an_iceberg_table_is_read_from_its_last_metadata(tmp_path: Path) -> None:
    uri = f"iceberg://c/shop?type=hadoop&warehouse={tmp_path}"
    iceberg_table(tmp_path, 9, a="string")
    iceberg_table(
        tmp_path,
        10,
        a="int",
        d="decimal(12, 2)",
        at="timestamptz",
        local="timestamp",
        tags={"type": "list", "element": "long"},
    )
    shape = schema(
        a="int16", d="decimal(12,2)", at="timestamptz", local="timestamp", tags="array<int64>"
    )
    assert look(uri, shape) == []
    found = look(uri, schema(a="int16", d="decimal(12,3)", at="timestamp"))
    assert codes(found) == ["CF5006", "CF5006"], "every column that does not fit"
    assert "decimal(12,2)" in found[0].message and "timestamp_ntz" in found[1].message


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_key_that_is_not_there(tmp_path: Path, kind: str) -> None:
    if kind == "delta":
        uri = f"delta://{tmp_path}"
        delta_commit(tmp_path, 0, delta_schema(b="string"))
    else:
        uri = f"iceberg://c/shop?type=hadoop&warehouse={tmp_path}"
        iceberg_table(tmp_path, 1, b="string")
    [problem] = look(uri)
    assert codes([problem]) == ["CF5006"]
    assert "no column a, which is part of the key" in problem.message
    assert look(uri, options={"history": "append"}) == [], "every change is a row of its own"


def test_tables_that_cannot_be_kept(tmp_path: Path) -> None:
    uri = f"delta://{tmp_path}"
    keyless = table_of("t", a="int32")
    assert codes(look(uri, keyless, {"history": "scd2"})) == ["CF5006"]
    delta_commit(tmp_path, 0, delta_schema(a="integer"))
    (tmp_path / "t" / "_delta_log" / f"{1:020d}.json").write_text('{"metaData": nonsense')
    [problem] = look(uri)
    assert codes([problem]) == ["CF5006"] and "cannot be read" in problem.message


def test_other_files_are_in_the_way_of_a_delta_table(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "part.csv").write_text("1,x")
    [problem] = look(f"delta://{tmp_path}")
    assert codes([problem]) == ["CF5006"] and "no table of Delta's" in problem.message


# --------------------------------------------------------------------------------- reach


@pytest.mark.parametrize("uri", ["delta://{}", "iceberg://c/n?type=hadoop&warehouse={}"])
def test_directories(tmp_path: Path, uri: str) -> None:
    assert look(uri.format(tmp_path / "not" / "there")) == []
    assert list(tmp_path.iterdir()) == [], "nothing is made"
    (tmp_path / "file").touch()
    [problem] = look(uri.format(tmp_path / "file" / "lake"))
    assert codes([problem]) == ["CF5003"] and str(tmp_path / "file") in problem.message


@pytest.mark.parametrize(
    "parameters",
    [
        "type=rest&uri=http://u:pa55word@{}/api&token=pa55word",
        "type=rest&uri=http://{}&credential=me:pa55word",
        "type=jdbc&uri=jdbc:postgresql://{}/db&warehouse=/tmp&jdbc.user=me&jdbc.password=pa55word",
    ],
)
def test_catalogs_that_are_not_there(parameters: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
    [problem] = look(f"iceberg://c/n?{parameters.format(address)}")
    assert codes([problem]) == ["CF5001"]
    assert address in problem.message
    assert "pa55word" not in f"{problem.message} {problem.detail} {problem.hint}"
    assert problem.__cause__ is None


def test_a_store_that_is_not_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    settings = f"fs.s3a.endpoint=http://127.0.0.1:{port}&fs.s3a.access.key=k&fs.s3a.secret.key=pa55"
    [problem] = look(f"delta:///s3a://bucket/lake?{settings}")
    assert codes([problem]) == ["CF5001"] and "pa55" not in problem.message


@pytest.mark.parametrize(
    "uri",
    [
        "delta:///gs://bucket/lake",
        "delta:///hdfs://a-name-of-the-cluster-s-own/lake",
        "delta:///s3a://bucket/lake?fs.s3a.aws.credentials.provider=com.example.Login",
        "iceberg://c/n?type=jdbc&uri=jdbc:mysql://127.0.0.1:1/db&warehouse=/tmp",
        "iceberg://c/n?type=rest&uri=http://127.0.0.1:1&rest.sigv4-enabled=true",
    ],
)
def test_what_only_spark_can_reach_is_not_looked_at(uri: str) -> None:
    assert look(uri) == []
    assert "was not checked: only Spark can" in overlooked(place_of(uri))


def test_of_hdfs_the_name_node_s_address_is_tried() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = f"hdfs://127.0.0.1:{server.getsockname()[1]}/lake"
        uris = [f"delta:///{place}", f"iceberg://c/n?type=hadoop&warehouse={place}"]
        assert [look(uri) for uri in uris] == [[], []]
    for uri in uris:
        [problem] = look(uri)
        assert codes([problem]) == ["CF5001"]
        assert problem.message == f"cannot reach {place}"
        assert "only the NameNode's address was checked" in overlooked(place_of(uri))


def test_a_look_needs_no_spark(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from sinks.base import SinkContext\n"
        "from sinks.registry import open_sink\n"
        f"assert open_sink('delta://{tmp_path}').check(SinkContext('v', 0, ())) == []\n"
        "assert not [name for name in sys.modules if name.startswith(('pyspark', 'py4j'))]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
