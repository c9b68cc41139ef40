"""Conversations with Snowflake and BigQuery whose answers are changed by seed: as
:mod:`tests.helpers.answers_child`, which runs them."""

from __future__ import annotations

import gzip
import json
import random
import tempfile
from collections.abc import Callable
from typing import Any

import pyarrow as pa

Change = Callable[[str, Any], bytes]

# --------------------------------------------------------------------------------- Snowflake


def rows_of(*rows: tuple[object, ...], names: tuple[str, ...] = ("name", "type")) -> dict[str, Any]:
    """The answer of Snowflake to a query."""
    columns = [
        {
            "name": name, "type": "text", "length": 16_777_216, "byteLength": 16_777_216,
            "nullable": True, "precision": None, "scale": None, "database": "D", "schema": "S",
            "table": "T", "collation": None,
        }
        for name in names
    ]  # fmt: skip
    listed = [[None if value is None else str(value) for value in row] for row in rows]
    return {
        "parameters": [{"name": "TIMEZONE", "value": "UTC"}],
        "rowtype": columns,
        "rowset": listed,
        "total": len(listed),
        "returned": len(listed),
        "queryId": "01a-02b",
        "sqlState": "00000",
        "statementTypeId": 4096,
        "version": 1,
        "queryResultFormat": "json",
        "finalDatabaseName": "D",
        "finalSchemaName": "S",
        "finalWarehouseName": None,
        "finalRoleName": "R",
        "numberOfBinds": 0,
        "arrayBindSupported": False,
        "sendResultTime": 1_700_000_000_000,
    }


SESSION = {
    "masterToken": "m", "token": "t", "validityInSeconds": 3600, "masterValidityInSeconds": 14_400,
    "displayUserName": "U", "serverVersion": "8.1.0", "firstLogin": False, "sessionId": 7,
    "parameters": [{"name": "AUTOCOMMIT", "value": True}, {"name": "TIMEZONE", "value": "UTC"},
                   {"name": "CLIENT_PREFETCH_THREADS", "value": 4}],
    "sessionInfo": {"databaseName": "D", "schemaName": "S", "warehouseName": None, "roleName": "R"},
}  # fmt: skip


def uploading(sql: str, folder: str) -> dict[str, Any]:
    """What Snowflake says to a PUT: where the file goes."""
    path = sql.partition("file://")[2].partition("'")[0]
    return rows_of() | {
        "command": "UPLOAD", "src_locations": [path], "parallel": 4, "threshold": 209_715_200,
        "autoCompress": False, "overwrite": True, "sourceCompression": "none",
        "clientShowEncryptionParameter": True, "encryptionMaterial": None, "operation": "Node",
        "localLocation": None,
        "stageInfo": {"locationType": "LOCAL_FS", "location": folder, "path": "x/", "region": "r",
                      "storageAccount": None, "isClientSideEncrypted": False, "creds": {},
                      "presignedUrl": None, "endPoint": None},
    }  # fmt: skip


def snowflake_answer(line: str, body: bytes, folder: str) -> tuple[str, Any]:
    """What kind of answer it is, and the answer."""
    path = line.split()[1]
    if "login-request" in path:
        return "login", {"data": SESSION, "code": None, "message": None, "success": True}
    if "query-request" not in path:
        return "other", {"data": None, "code": None, "message": None, "success": True}
    text = gzip.decompress(body) if body.startswith(b"\x1f\x8b") else body
    sql = str(json.loads(text).get("sqlText", ""))
    if sql.startswith("PUT"):
        kind, data = "upload", uploading(sql, folder)
    elif sql.startswith("COPY"):
        names = ("file", "status", "rows_parsed", "rows_loaded")
        kind, data = "copy", rows_of(("x", "LOADED", 3, 3), names=names)
    elif sql.startswith(("SELECT", "DESCRIBE")):
        kind, data = "rows", rows_of(("a", "NUMBER(38,0)"), ("b", None), ("c", "x" * 90))
    else:
        kind, data = "statement", rows_of(("done", None))
    return kind, {"data": data, "code": None, "message": None, "success": True}


#: The answers of Snowflake that are taken apart.
SNOWFLAKE = ("login", "statement", "rows", "upload", "copy", "other")


def read_snowflake(change: Change) -> list[str]:
    """Login, a schema, a look, a file, a transaction; the columns that were found."""
    from sinks.warehouse.dialect import SqlStatement
    from sinks.warehouse.snowflake.client import Limits, Login, SnowflakeWarehouse
    from tests.helpers.answers_child import http_server, serving

    with tempfile.TemporaryDirectory() as folder:

        def answer(line: str, body: bytes) -> tuple[int, bytes]:
            return 200, change(*snowflake_answer(line, body, folder))

        with serving(http_server(answer)) as port:
            login = Login("acc", "u", "p", host="127.0.0.1", port=str(port), protocol="http")
            house = SnowflakeWarehouse(login, "D", "S", Limits(1, 1, 1, 1.0))
            try:
                house.connect()
                columns = list(house.columns("t"))
                house.query("SELECT 1")
                house.load("t", pa.table({"a": [1, 2, 3]}), "load")
                house.run([SqlStatement("UPDATE t SET a = 1"), SqlStatement("DELETE FROM t")])
            finally:
                house.close()
    return columns


# ---------------------------------------------------------------------------------- BigQuery

REFERENCE = {"projectId": "p", "datasetId": "d", "tableId": "t"}
FIELDS = [
    {"name": "a", "type": "INTEGER", "mode": "NULLABLE"},
    {"name": "b", "type": "NUMERIC", "precision": "38", "scale": "9", "mode": "NULLABLE"},
    {"name": "c", "type": "STRING", "mode": "REPEATED"},
]


def job_of(kind: str, **more: object) -> dict[str, Any]:
    """A job of BigQuery's that is done."""
    return {
        "kind": "bigquery#job", "id": "p:US.j", "selfLink": "x", "etag": "e",
        "jobReference": {"projectId": "p", "jobId": "j", "location": "US"},
        "configuration": {"jobType": kind.upper(), kind: {"destinationTable": REFERENCE, **more}},
        "status": {"state": "DONE"},
        "statistics": {"creationTime": "1700000000000", "startTime": "1700000000000",
                       "endTime": "1700000000001",
                       "query": {"statementType": "SELECT", "totalBytesProcessed": "0"},
                       "load": {"outputRows": "3"}},
    }  # fmt: skip


def bigquery_answer(line: str, body: bytes) -> tuple[str, Any]:
    """What kind of answer it is, and the answer."""
    verb, path, _ = line.split()
    place = path.partition("?")[0]
    rows = {
        "kind": "bigquery#getQueryResultsResponse", "jobComplete": True, "totalRows": "2",
        "jobReference": {"projectId": "p", "jobId": "j", "location": "US"},
        "schema": {"fields": FIELDS},
        "rows": [{"f": [{"v": "1"}, {"v": "1.5"}, {"v": [{"v": "x"}]}]},
                 {"f": [{"v": None}, {"v": None}, {"v": []}]}],
    }  # fmt: skip
    if place.endswith("/queries") or "/queries/" in place:
        return "rows", rows
    if place.startswith("/upload/"):
        return "load", job_of("load", sourceFormat="PARQUET")
    if place.endswith("/jobs") and verb == "POST":
        asked = json.loads(body).get("configuration", {}).get("query", {})
        return "job", job_of("query", query=asked.get("query", ""))
    if "/jobs/" in place:
        return "job", job_of("query", query="SELECT 1")
    if "/tables/" in place:
        table = {"kind": "bigquery#table", "id": "p:d.t", "tableReference": REFERENCE}
        return "table", {**table, "type": "TABLE", "schema": {"fields": FIELDS}, "numRows": "3"}
    found = {"kind": "bigquery#dataset", "id": "p:d", "location": "US"}
    return "dataset", {**found, "datasetReference": {"projectId": "p", "datasetId": "d"}}


#: The answers of BigQuery that are taken apart.
BIGQUERY = ("dataset", "table", "job", "rows", "load")


def read_bigquery(change: Change) -> list[str]:
    """A dataset, a table, a query, a load, a script; the columns that were found."""
    from sinks.warehouse.bigquery.client import BigQueryWarehouse, Limits
    from sinks.warehouse.dialect import SqlStatement
    from tests.helpers.answers_child import http_server, serving

    def answer(line: str, body: bytes) -> tuple[int, bytes]:
        return 200, change(*bigquery_answer(line, body))

    with serving(http_server(answer)) as port:
        house = BigQueryWarehouse(
            "p", "d", endpoint=f"http://127.0.0.1:{port}", limits=Limits(0.3, 1.0, 1.0)
        )
        try:
            house.connect()
            columns = list(house.columns("t"))
            house.query("SELECT 1")
            house.load("t", pa.table({"a": [1, 2, 3]}), "load")
            house.run([SqlStatement("UPDATE t SET a = 1"), SqlStatement("DELETE FROM t")])
        finally:
            house.close()
    return columns


# -------------------------------------------------------------------------------------- both


def spoilt(read: Callable[[Change], object], kinds: tuple[str, ...], rng: random.Random) -> None:
    """The answers of one kind are changed, from one of them on."""
    from tests.helpers.answers_child import compact, spoilt_body

    chosen, left = rng.choice(kinds), rng.choice((0, 0, 1))

    def change(kind: str, value: Any) -> bytes:
        nonlocal left
        if kind != chosen:
            return compact(value)
        left -= 1
        return spoilt_body(rng, value) if left < 0 else compact(value)

    read(change)


def whole(read: Callable[[Change], list[str]], kinds: tuple[str, ...]) -> None:
    """What nobody changed is read, and asks for every kind of answer."""
    from tests.helpers.answers_child import compact

    asked: set[str] = set()

    def unchanged(kind: str, value: Any) -> bytes:
        asked.add(kind)
        return compact(value)

    found = read(unchanged)
    if [name.lower() for name in found] != ["a", "b", "c"] or asked != set(kinds):
        raise RuntimeError(f"a conversation that nobody changed is not read: {found}, {asked}")
