"""Spanner without a server: values on the wire, commits, URIs, and what its errors mean."""

from __future__ import annotations

import concurrent.futures
import json
import random
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest
from google.api_core import exceptions as api
from google.auth import exceptions as auth
from google.cloud.spanner_v1 import types
from google.protobuf import struct_pb2
from hypothesis import given
from hypothesis import strategies as st

from changefeed.core.errors import ChangefeedError
from changefeed.core.uri import sink_location
from changefeed_testing.sinks.rows import column_of, table_of
from sinks.merged.policy import TablePolicy
from sinks.registry import check, open_sink
from sinks.warehouse.dialect import SqlStatement
from sinks.warehouse.sink import WarehouseSink
from sinks.warehouse.spanner.client import Spanner, sorted_out, streamed_rows
from sinks.warehouse.spanner.compare import comparable_text
from sinks.warehouse.spanner.rows import Value, canonical, cut, digests, wire
from sinks.warehouse.spanner.sink import SpannerSink
from sinks.warehouse.spanner.sql import SpannerDialect
from tests.unit.test_cloud_warehouses import KEY


@pytest.mark.parametrize(
    ("uri", "code"),
    [
        ("spanner://project/instance/database", None),
        ("spanner://project/instance/database?endpoint=127.0.0.1:9010", None),
        ("spanner://project/instance/database?endpoint=[::1]:9010", None),
        ("spanner://project/instance/database?endpoint=localhost:9010", None),
        (f"spanner://project/instance/database?credentials={KEY.replace('=', '%3D')}", None),
        ("spanner://project/instance", "CF1201"),
        ("spanner://project/instance/database/table", "CF1201"),
        ("spanner:///instance/database", "CF1201"),
        ("spanner://project/instance/database?endpoint=example.com:443", "CF1207"),
        ("spanner://project/instance/database?endpoint=localhost", "CF1207"),
        ("spanner://p/i/d?endpoint=localhost:1&credentials=" + KEY.replace("=", "%3D"), "CF1207"),
        ("spanner://project/instance/database?credentials=c2VjcmV0", "CF1207"),
        ("spanner://project/instance/database?host=localhost:9010", "CF1202"),
    ],
)
def test_uris(uri: str, code: str | None) -> None:
    assert [error.code.number for error in check(uri)] == ([code] if code else [])


def test_secrets_are_hidden() -> None:
    uri = f"spanner://p/i/d?credentials={KEY}"
    sink = open_sink(uri)
    assert isinstance(sink, SpannerSink)
    assert KEY not in sink_location(uri)
    assert "private_key" not in repr(sink) + repr(sink.server) + sink.server.place


@pytest.mark.parametrize(
    ("sql", "given", "found"),
    [
        ("BOOL", [True, None], [True, None]),
        ("INT64", [-(2**63), 0], ["-9223372036854775808", "0"]),
        ("FLOAT64", ["1e+300", "NaN", "Infinity", "-Infinity", None],
         [1e300, "NaN", "Infinity", "-Infinity", None]),
        ("NUMERIC", ["1.50", "-0.00", "100", "007.0", "-12.340", "0.5", None],
         ["1.5", "0", "100", "7", "-12.34", "0.5", None]),
        ("TIMESTAMP", ["2024-01-01T10:00:00", "2024-01-01T10:00:00.1200Z", "2024-01-01T10:00:10Z"],
         ["2024-01-01T10:00:00Z", "2024-01-01T10:00:00.12Z", "2024-01-01T10:00:10Z"]),
        ("BYTES(MAX)", ["\\x", "\\x00ff10", None], ["", "AP8Q", None]),
        ("STRING(MAX)", ["", "é", None], ["", "é", None]),
        ("JSON", ['{"a": 1}'], ['{"a": 1}']),
    ],
)  # fmt: skip
def test_values_on_the_wire(sql: str, given: Sequence[object], found: Sequence[Value]) -> None:
    column = pa.chunked_array([pa.array(given)])
    assert wire(sql, column) == found
    assert [canonical(sql, value) for value in found] == found


def test_answers_are_read_as_keys_are_written() -> None:
    assert canonical("TIMESTAMP", "2024-01-01T10:00:00.120Z") == "2024-01-01T10:00:00.12Z"
    assert canonical("TIMESTAMP", "2024-01-01T10:00:00.000000000Z") == "2024-01-01T10:00:00Z"
    assert canonical("NUMERIC", "1.500000000") == "1.5"
    assert canonical("NUMERIC", "100") == "100"


# ------------------------------------------------------------------------------- commits


def _staged(changes: Sequence[tuple[int, int]], text: str = "x") -> pa.Table:
    versions, orders = zip(*changes, strict=True)
    return pa.table(
        {
            "_sequence_num": pa.array(versions, pa.int64()),
            "_ord": pa.array(orders, pa.int64()),
            "b": pa.array([text] * len(changes)),
        }
    )


def _cut(parts: Sequence[tuple[pa.Table, int]], cells: int, size: int = 1 << 30) -> list[list[int]]:
    """The orders of the changes of each commit, which must be those of the log."""
    found = []
    for stretches in cut(parts, cells, size):
        taken = [int(parts[s.part][0]["_ord"][int(i)].as_py()) for s in stretches for i in s.rows]
        found.append(sorted(taken))
    return found


def test_commits_end_between_transactions() -> None:
    one = _staged([(1, 1), (1, 2), (2, 4), (3, 5)])
    two = _staged([(1, 3), (3, 6), (4, 7)])
    assert _cut([(one, 1), (two, 1)], 4) == [[1, 2, 3, 4], [5, 6, 7]]
    assert _cut([(one, 1), (two, 1)], 3) == [[1, 2, 3], [4, 5, 6], [7]]
    assert _cut([(one, 1), (two, 1)], 1000) == [[1, 2, 3, 4, 5, 6, 7]]
    assert _cut([(one, 2), (two, 2)], 1000, 1) == [[n] for n in range(1, 8)], "by size"
    assert _cut([], 4) == []


def test_a_transaction_that_is_too_large_is_cut() -> None:
    large = _staged([(1, 1), *((2, n) for n in range(2, 9)), (3, 9)])
    assert _cut([(large, 1)], 3) == [[1], [2, 3, 4], [5, 6, 7], [8, 9]]
    assert _cut([(large, 5)], 3) == [[n] for n in range(1, 10)], "a row is never cut"


def test_large_values_make_small_commits() -> None:
    small, large = _staged([(n, n) for n in range(1, 9)]), _staged([(9, 9), (10, 10)], "x" * 1000)
    assert _cut([(small, 1), (large, 1)], 1000, 1100) == [[1, 2, 3, 4, 5, 6, 7, 8], [9], [10]]


@given(st.integers(0, 2**32), st.integers(1, 30), st.integers(1, 12))
def test_commits_are_the_log(seed: int, changes: int, most: int) -> None:
    """In order, each change once, within the limit, and no transaction cut that could be whole."""
    rng = random.Random(seed)
    parts: list[list[tuple[int, int]]] = [[], [], []]
    sizes: dict[int, int] = {}
    version = 1
    for order in range(1, changes + 1):
        version += rng.random() < 0.5
        sizes[version] = sizes.get(version, 0) + 1
        parts[rng.randrange(3)].append((version, order))
    made = [(_staged(part), 1) for part in parts if part]
    versions = {order: version for part in parts for version, order in part}
    commits = _cut(made, most)
    assert [order for commit in commits for order in commit] == list(range(1, changes + 1))
    for commit in commits:
        assert len(commit) <= most
    for version, size in sizes.items():
        places = {i for i, commit in enumerate(commits) for n in commit if versions[n] == version}
        assert len(places) == 1 or size > most


def test_digests_outlive_new_columns_and_names() -> None:
    a, b = column_of("a", "int32", 1), column_of("b", "text", 2)
    values: list[list[Value]] = [["1", "1", "2", None], ["x", None, "x", "1"]]
    found = digests((a, b), values)
    assert len(set(found)) == 4
    renamed, added = column_of("c", "text", 2), column_of("d", "text", 3)
    assert digests((a, renamed, added), [*values, [None] * 4]) == found
    swapped = digests((column_of("a", "int32", 2), column_of("b", "text", 1)), values)
    assert swapped[0] not in found
    assert digests((a, b), [["1:"], ["x"]]) != digests((a, b), [["1"], [":x"]])


# ------------------------------------------------------------------------------- SQL and errors


def test_names() -> None:
    d = SpannerDialect()
    assert d.quote("a`b\\c") == "`a\\`b\\\\c`"
    assert d.literal("it's\n\\") == "'it\\'s\\n\\\\'"
    sink = open_sink("spanner://p/i/d")
    assert isinstance(sink, SpannerSink)
    assert sink.topic("shop.public._t") == "shop_public__t"
    assert sink.topic("_t") == "table_t"
    assert sink.topic("2024_orders") == "table2024_orders"
    assert len(sink.topic("t" * 200)) == 128


_PLUGIN = "Getting metadata from plugin failed with error"


@pytest.mark.parametrize(
    ("kind", "message", "topics", "code", "words"),
    [
        (api.ServiceUnavailable, "secret value", ["t"], "CF5001", "cannot be reached"),
        (api.ServiceUnavailable, f"{_PLUGIN}: timed out: secret value", [], "CF5001", "reached"),
        (api.ServiceUnavailable, f"{_PLUGIN}: ('invalid_grant: secret value', {{}})", ["t"],
         "CF5002", "refused the login"),
        (api.ServiceUnavailable, f"{_PLUGIN}: Reauthentication is needed", ["t"], "CF5002",
         "refused the login"),
        (api.DeadlineExceeded, "secret value", ["t"], "CF5001", "cannot be reached"),
        (TimeoutError, "secret value", ["t"], "CF5001", "did not finish in time"),
        (auth.TransportError, "secret value", [], "CF5001", "cannot be reached"),
        (auth.RefreshError, "secret value", [], "CF5002", "refused the login"),
        (auth.DefaultCredentialsError, "secret value", [], "CF5002", "refused the login"),
        (api.PermissionDenied, "secret value", ["t"], "CF5002", "refused the login"),
        (api.Unauthenticated, "secret value", [], "CF5002", "refused the login"),
        (api.Aborted, "secret value", ["t"], "CF5004", "busy"),
        (api.ResourceExhausted, "secret value", ["t"], "CF5004", "busy"),
        (api.NotFound, "Database not found: secret value", [], "CF5002", "is not there"),
        (api.NotFound, "Session not found: secret value", ["t"], "CF5001", "lost"),
        (api.NotFound, "Table not found: t", ["t"], "CF5001", "lost"),
        (api.InvalidArgument, "secret value", ["t"], "CF5006", "table t"),
        (api.AlreadyExists, "secret value in t.x", ["t", "u"], "CF5003", "refused a change"),
        (api.FailedPrecondition, "secret value", ["t", "u"], "CF5003", "refused a change"),
        (api.OutOfRange, "secret value", [], "CF5003", "refused a change"),
    ],
)  # fmt: skip
def test_errors(
    kind: Callable[[str], Exception], message: str, topics: list[str], code: str, words: str
) -> None:
    found = sorted_out(kind(message), "Spanner database p/i/d", "a transaction", topics)
    assert found.code.number == code and words in found.message
    assert "secret value" not in f"{found.message} {found.detail} {found.hint}"


@pytest.mark.parametrize(
    ("kind", "message", "of_row"),
    [
        (api.AlreadyExists, "UNIQUE violation", True),
        (api.OutOfRange, "Check constraint is violated", True),
        (api.FailedPrecondition, "t.b must not be NULL in table t", True),
        (api.FailedPrecondition, "New value exceeds the maximum size limit for this", True),
        (api.FailedPrecondition, "Cannot write into generated column t.b", False),
        (api.InvalidArgument, "Column count does not match", False),
    ],
)
def test_errors_of_rows(kind: Callable[[str], Exception], message: str, of_row: bool) -> None:
    place = "Spanner database p/i/d"
    assert sorted_out(kind(message), place, "a transaction", ["t"]).about_row is of_row
    assert not sorted_out(kind(message), place, "a definition", ["t"]).about_row


def test_a_key_that_is_none() -> None:
    """Its PEM is read when the sink connects, and no part of it is repeated."""
    key = {
        "type": "service_account",
        "client_email": "a@example.com",
        "token_uri": "https://example.com/token",
        "private_key": "secret value",
    }
    server = Spanner("p", "i", "d", credentials=json.dumps(key))
    with pytest.raises(ChangefeedError) as caught:
        server.connect()
    found = caught.value
    assert found.code.number == "CF5002" and found.__cause__ is None and found.__suppress_context__
    assert "secret" not in f"{found.message} {found.detail} {found.hint}"


def test_an_operation_that_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Spanner("p", "i", "d", endpoint="127.0.0.1:1")

    class Slow:
        def update_database_ddl(self, **_: object) -> Slow:
            return self

        def result(self, timeout: float) -> None:
            raise concurrent.futures.TimeoutError("secret value")

    monkeypatch.setattr(server, "_admin", Slow())
    monkeypatch.setattr(server, "close", lambda: None)
    with pytest.raises(ChangefeedError) as caught:
        server.run([SqlStatement("CREATE TABLE t", "t")])
    assert caught.value.code.number == "CF5001" and "in time" in caught.value.message


@pytest.mark.parametrize(
    ("table", "column", "words"),
    [
        ("t", "größe", "no column größe"),
        ("t", "my col", "no column my col"),
        ("my table", "a", "no table my table"),
        ("t", "_COPY", "column name _COPY is used"),
        ("t", "_Deleted", "column name _Deleted is used"),
        ("t", "_a1", ""),
    ],
)
def test_names_that_spanner_does_not_take(table: str, column: str, words: str) -> None:
    sink = open_sink("spanner://p/i/d", {"deletes": "soft"})
    assert isinstance(sink, SpannerSink)
    keeping = TablePolicy.read({"deletes": "soft"})
    applied = sink._tables.strategy.applied(sink.server, "x/1", table)
    made = sink._tables.strategy.table(sink.server, table, keeping, applied)
    schema = table_of(table, key=("k",), **{"k": "int32", column: "text"})
    if not words:
        sink._tables.strategy.check(made, schema)
        return
    with pytest.raises(ChangefeedError) as caught:
        sink._tables.strategy.check(made, schema)
    assert caught.value.code.number == "CF5006" and words in caught.value.message


def test_changes_wait_in_memory_in_smaller_rounds() -> None:
    sink = open_sink("spanner://p/i/d")
    assert sink.capabilities.pacing.rows == 50_000
    assert WarehouseSink.capabilities.pacing.rows == 500_000


def test_no_history() -> None:
    for history in ("scd2", "append"):
        with pytest.raises(ChangefeedError) as caught:
            open_sink("spanner://p/i/d", {"history": history})
        assert caught.value.code.number == "CF1206"


def test_nothing_is_loaded() -> None:
    with pytest.raises(AssertionError):
        Spanner("p", "i", "d").load("t", pa.table({"a": [1]}), "1")


def parts(*texts: tuple[list[Value], bool]) -> list[types.PartialResultSet]:
    """Parts of an answer: values, and whether the last of them goes on."""
    made = []
    for values, chunked in texts:
        part = types.PartialResultSet(chunked_value=chunked)
        types.PartialResultSet.pb(part).values.extend(map(_value, values))
        made.append(part)
    return made


def _value(value: Value) -> Any:
    made = struct_pb2.Value()
    if value is None:
        made.null_value = 0
    elif isinstance(value, str):
        made.string_value = value
    elif isinstance(value, bool):
        made.bool_value = value
    else:
        made.number_value = value
    return made


def test_rows_of_a_stream_are_put_together() -> None:
    """A part ends anywhere: between rows, in a row, in a text, more than once in a text."""
    stream = parts(
        (["1", "a"], False),
        (["2", "lo"], True),
        (["n"], True),
        (["", "3"], True),
        (["4", None, "5", True, "6"], False),
        ([1.5, "7", ""], True),
        ([], False),
        (["x"], False),
    )
    assert list(streamed_rows(stream, 2)) == [
        ("1", "a"),
        ("2", "lon"),
        ("34", None),
        ("5", True),
        ("6", 1.5),
        ("7", "x"),
    ]


@pytest.mark.parametrize(
    ("sql", "ours", "answered"),
    [
        ("JSON", '{"b": 1.50, "a": [1.0, null, "x"]}', '{"a":[1,null,"x"],"b":1.5}'),
        ("JSON", "100000000000000000000", "1e+20"),
        ("FLOAT64", -0.0, 0.0),
        ("TIMESTAMP", "2024-01-01T00:00:00.5Z", "2024-01-01T00:00:00.500000Z"),
        ("NUMERIC", "1.5", "1.500000000"),
    ],
)
def test_values_that_spanner_has_alike_are_equal(sql: str, ours: Value, answered: Value) -> None:
    assert comparable_text(sql, ours) == comparable_text(sql, canonical(sql, answered))


@pytest.mark.parametrize(
    ("sql", "one", "other"),
    [
        ("JSON", "9223372036854775807", "9223372036854775806"),
        ("JSON", '"1"', "1"),
        ("JSON", "null", None),
        ("FLOAT64", 0.1, 0.10000000000000002),
        ("STRING(MAX)", "", None),
        ("STRING(MAX)", "a ", "a"),
        ("BOOL", True, False),
    ],
)
def test_values_that_differ_are_not_equal(sql: str, one: Value, other: Value) -> None:
    assert comparable_text(sql, one) != comparable_text(sql, other)
