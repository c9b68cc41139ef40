"""BigQuery, Snowflake and ClickHouse without a server: URIs, names, and what their errors mean."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import requests
from clickhouse_connect.driver.exceptions import DatabaseError, OperationalError
from google.api_core import exceptions as api
from google.auth import exceptions as auth
from google.cloud.bigquery import SchemaField
from hypothesis import given
from hypothesis import strategies as st
from snowflake.connector import errors as snow

from changefeed.core.errors import ChangefeedError
from changefeed.core.uri import sink_location
from sinks.registry import check, open_sink
from sinks.warehouse.bigquery.client import _scripts, folding_of
from sinks.warehouse.bigquery.errors import sorted_out
from sinks.warehouse.bigquery.sql import BigQueryDialect, escape_name, plain_name
from sinks.warehouse.clickhouse.client import Address, ClickHouse
from sinks.warehouse.clickhouse.client import sorted_out as clickhouse_error
from sinks.warehouse.clickhouse.keeping import same_engine
from sinks.warehouse.dialect import SqlStatement
from sinks.warehouse.snowflake.client import Login, SnowflakeWarehouse
from sinks.warehouse.snowflake.sql import folded

KEY = base64.b64encode(
    json.dumps({"type": "service_account", "private_key": "x"}).encode()
).decode()


def codes(uri: str) -> list[str]:
    return [error.code.number for error in check(uri)]


@pytest.mark.parametrize(
    ("uri", "code"),
    [
        ("bigquery://project/dataset", None),
        ("bigquery://project/dataset?location=EU&gcs_bucket=b/p&load_interval=0", None),
        (f"bigquery://project/dataset?credentials={KEY.replace('=', '%3D')}", None),
        ("bigquery://project", "CF1201"),
        ("bigquery://project/a/b", "CF1201"),
        ("bigquery://project/dataset?credentials=c2VjcmV0", "CF1207"),
        ("bigquery://project/dataset?credentials=/no/such/file", "CF1207"),
        ("bigquery://project/dataset?load_interval=soon", "CF1207"),
        ("bigquery://project/dataset?locaton=EU", "CF1202"),
        ("snowflake://u:p@account/db/schema?warehouse=w&role=r", None),
        ("snowflake://u:p@account/db", None),
        ("snowflake://u@account/db/schema?private_key=LS0t", None),
        ("snowflake://u@account/db/schema", "CF1207"),
        ("snowflake://u:p@account", "CF1201"),
        ("snowflake://u:p@account/db/schema?api_endpoint=ftp://x", "CF1207"),
        ("snowflake://u:p@account/db/schema?wharehouse=w", "CF1202"),
        ("clickhouse://u:p@host:8123/shop", None),
        ("clickhouse://host/shop?tls_enabled=true&ca_cert_file=/etc/ca.pem", None),
        ("clickhouse://host", "CF1201"),
        ("clickhouse://host/a/b", "CF1201"),
        ("clickhouse:///shop", "CF1201"),
        ("clickhouse://host/shop?tls=1", "CF1202"),
    ],
)
def test_uris(uri: str, code: str | None) -> None:
    assert codes(uri) == ([code] if code else [])


def test_secrets_are_hidden() -> None:
    uris = [
        f"bigquery://p/d?credentials={KEY}",
        "snowflake://u:hushhush@a/d/s?private_key=hushhush&passphrase=hushhush&token=hushhush",
        "clickhouse://u:hushhush@host/shop",
    ]
    for uri in uris:
        shown = sink_location(uri)
        assert KEY not in shown and "hushhush" not in shown
    assert "hushhush" not in repr(Login("a", "u", "hushhush", private_key=b"hushhush"))
    assert "hushhush" not in repr(Address("host", 8123, "u", "hushhush"))
    assert "hushhush" not in repr(open_sink("clickhouse://u:hushhush@host/shop"))


def test_a_key_may_be_a_file(tmp_path: Path) -> None:
    file = tmp_path / "key.json"
    file.write_bytes(base64.b64decode(KEY))
    assert codes(f"bigquery://p/d?credentials={file}") == []


@given(st.text(min_size=1))
def test_bigquery_names_come_back(name: str) -> None:
    escaped = escape_name(name)
    assert plain_name(escaped) == name
    assert not set(escaped) & set('!"$()*,./;?@[\\]^`{}~')


def test_bigquery_keeps_prefixes_for_itself() -> None:
    assert escape_name("_PARTITIONTIME") == "_u005f_PARTITIONTIME"
    assert escape_name("_sequence_num") == "_sequence_num"


@given(st.text(min_size=1))
def test_snowflake_names_come_back(name: str) -> None:
    assert folded(folded(name)) == name


def test_bigquery_literals() -> None:
    assert BigQueryDialect().literal("it's \\ a\nline") == r"'it\'s \\ a\nline'"


def _reason(
    kind: type[api.GoogleAPICallError], reason: str, text: str = "secret value"
) -> Exception:
    return kind(text, errors=[{"reason": reason, "message": text}])


def _login(kind: Callable[[str], Exception]) -> Exception:
    return kind("secret value")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (_reason(api.Forbidden, "rateLimitExceeded"), "CF5004"),
        (_reason(api.Forbidden, "quotaExceeded"), "CF5004"),
        (_reason(api.TooManyRequests, "other"), "CF5004"),
        (_reason(api.BadRequest, "jobBackendError"), "CF5004"),
        (
            _reason(
                api.BadRequest, "invalidQuery", "Transaction is aborted due to concurrent update"
            ),
            "CF5004",
        ),
        (_reason(api.ServiceUnavailable, "x"), "CF5004"),
        (_reason(api.BadGateway, "x"), "CF5001"),
        (requests.exceptions.ConnectionError("secret value"), "CF5001"),
        (_login(auth.TransportError), "CF5001"),
        (_reason(api.NotFound, "notFound"), "CF5001"),
        (_reason(api.Forbidden, "accessDenied"), "CF5002"),
        (_reason(api.Unauthorized, "authError"), "CF5002"),
        (_login(auth.RefreshError), "CF5002"),
        (_login(auth.DefaultCredentialsError), "CF5002"),
        (_reason(api.BadRequest, "invalidQuery"), "CF5006"),
    ],
)
def test_bigquery_errors(error: Exception, code: str) -> None:
    found = sorted_out(error, "BigQuery dataset p.d", "statements, job j", "orders")
    assert found.code.number == code
    assert "secret" not in f"{found.message} {found.detail} {found.hint}"
    without = sorted_out(error, "BigQuery dataset p.d", "statements")
    assert without.code.number == ("CF5003" if code == "CF5006" else code)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (snow.ProgrammingError(msg="secret value", errno=100035), "CF5006"),
        (snow.ProgrammingError(msg="secret value", errno=625), "CF5004"),
        (snow.ProgrammingError(msg="secret value", errno=390114), "CF5001"),
        (snow.ProgrammingError(msg="secret value", errno=3001), "CF5002"),
        (snow.ProgrammingError(msg="secret value", errno=606), "CF5002"),
        (snow.DatabaseError(msg="390100: secret value", errno=250001), "CF5002"),
        (snow.OperationalError(msg="secret value", errno=250001), "CF5001"),
        (snow.ServiceUnavailableError(msg="secret value"), "CF5004"),
        (ConnectionResetError("secret value"), "CF5001"),
    ],
)
def test_snowflake_errors(error: Exception, code: str) -> None:
    warehouse = SnowflakeWarehouse(Login("account", "u", "p"), "db", "schema")
    with pytest.raises(ChangefeedError) as caught, warehouse._translated("a statement", "orders"):
        raise error
    found = caught.value
    assert found.code.number == code
    assert "secret" not in f"{found.message} {found.detail} {found.hint}"


@pytest.mark.parametrize(
    ("number", "state", "of_row"),
    [
        (100040, "22007", True),  # a date that is none
        (100069, "22P02", True),  # JSON that is none
        (100072, "22000", True),  # NULL in a column without
        (2023, "22000", False),  # a column of another type
        (904, "42000", False),  # no such column
    ],
)
def test_errors_of_rows_of_snowflake(number: int, state: str, of_row: bool) -> None:
    warehouse = SnowflakeWarehouse(Login("account", "u", "p"), "db", "schema")
    error = snow.ProgrammingError(msg="secret value", errno=number, sqlstate=state)
    assert warehouse._sorted_out(error, "a statement", "orders").about_row is of_row


def test_errors_of_rows_of_bigquery_and_clickhouse() -> None:
    place = "BigQuery dataset p.d"
    for text, of_row in (
        ("Required field b cannot be null at [1:2]", True),
        ("Unrecognized name: b at [1:2]", False),
    ):
        error = _reason(api.BadRequest, "invalidQuery", text)
        assert sorted_out(error, place, "statements", "orders").about_row is of_row
    for number, of_row in ((349, True), (469, True), (16, False), (252, False)):
        refused = DatabaseError("row value", code=number, name="X")
        assert clickhouse_error(refused, "ClickHouse h/d", "a load", "t").about_row is of_row


def test_an_unreadable_private_key_is_not_repeated() -> None:
    with pytest.raises(ChangefeedError) as caught:
        Login("account", "u", private_key=b"-----BEGIN hushhush").arguments()
    assert caught.value.code.number == "CF5002"
    assert "hushhush" not in f"{caught.value.message} {caught.value.detail} {caught.value.hint}"


def test_scripts_keep_tables_whole() -> None:
    statements = [SqlStatement(f"s{i}", f"t{i // 3}") for i in range(300)]
    scripts = list(_scripts(statements))
    assert [s for script in scripts for s in script] == statements
    assert len(scripts) > 1
    homes: dict[str, set[int]] = {}
    for number, script in enumerate(scripts):
        for statement in script:
            homes.setdefault(statement.topic, set()).add(number)
    assert {len(found) for found in homes.values()} == {1}
    large = [SqlStatement("x" * 500_000, "a"), SqlStatement("y" * 500_000, "b")]
    assert [len(script) for script in _scripts(large)] == [1, 1]


@pytest.mark.parametrize(
    ("error", "topic", "code"),
    [
        (OperationalError("Error HTTPConnectionPool(..) executing HTTP request"), "t", "CF5001"),
        (DatabaseError("row value", code=60, name="UNKNOWN_TABLE"), "t", "CF5001"),
        (DatabaseError("row value", code=252, name="TOO_MANY_PARTS"), "t", "CF5004"),
        (DatabaseError("row value", code=241, name="MEMORY_LIMIT_EXCEEDED"), "t", "CF5004"),
        (DatabaseError("row value", code=516, name="AUTHENTICATION_FAILED"), "", "CF5002"),
        (DatabaseError("row value", code=497, name="ACCESS_DENIED"), "t", "CF5002"),
        (
            DatabaseError("row value", code=349, name="CANNOT_INSERT_NULL_IN_ORDINARY_COLUMN"),
            "t",
            "CF5006",
        ),
        (DatabaseError("row value", code=62, name="SYNTAX_ERROR"), "", "CF5003"),
        (ConnectionResetError("gone"), "t", "CF5001"),
    ],
)
def test_errors_of_clickhouse(error: Exception, topic: str, code: str) -> None:
    found = clickhouse_error(error, "ClickHouse h/d", "a statement", topic)
    assert found.code.number == code
    assert str(error) not in f"{found.message} {found.detail} {found.hint}"
    if code == "CF5006":
        assert topic in found.message


@pytest.mark.parametrize(
    ("found", "wanted", "same"),
    [
        ("ReplacingMergeTree(_sequence_num, _is_deleted) ORDER BY id SETTINGS x = 8",
         "ReplacingMergeTree(`_sequence_num`, `_is_deleted`)", True),
        ("SharedReplacingMergeTree('/t', '{replica}', _sequence_num, _is_deleted) ORDER BY id",
         "ReplacingMergeTree(`_sequence_num`, `_is_deleted`)", True),
        ("ReplacingMergeTree(_sequence_num) ORDER BY id",
         "ReplacingMergeTree(`_sequence_num`, `_is_deleted`)", False),
        ("ReplacingMergeTree ORDER BY (_sequence_num, _ord, _row)", "ReplacingMergeTree", True),
        ("ReplacingMergeTree(_sequence_num) ORDER BY id", "ReplacingMergeTree", False),
        ("MergeTree ORDER BY id", "ReplacingMergeTree", False),
    ],
)  # fmt: skip
def test_engines_of_clickhouse(found: str, wanted: str, same: bool) -> None:
    assert same_engine(found, wanted) is same


@pytest.mark.parametrize(("version", "code"), [("23.8.1.94", "CF5003"), ("24.3.2.23", None)])
def test_old_clickhouse_is_refused(
    version: str, code: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[str] = []
    server = SimpleNamespace(
        server_version=version,
        command=commands.append,
        query=lambda sql: SimpleNamespace(result_rows=[]),
        close=lambda: commands.append("close"),
    )
    monkeypatch.setattr("clickhouse_connect.get_client", lambda **_: server)
    warehouse = ClickHouse(Address("h", 8123, "u", "p"), "shop")
    if code is None:
        warehouse.connect()
        assert commands == ["CREATE DATABASE IF NOT EXISTS `shop`"]
        return
    with pytest.raises(ChangefeedError, match=r"of version 23\.8") as caught:
        warehouse.connect()
    assert caught.value.code.number == code
    assert commands == ["close"]


def test_collations_of_bigquery_are_those_of_its_fields() -> None:
    plain = {"type": "STRING", "mode": "REQUIRED"}
    fields = [
        SchemaField.from_api_repr({"name": "a", **plain, "collation": "und:ci"}),
        SchemaField.from_api_repr({"name": "b", **plain, "collation": ""}),
        SchemaField.from_api_repr({"name": "c", **plain}),
    ]
    assert folding_of(fields) == {"a": "the collation und:ci"}
